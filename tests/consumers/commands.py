#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs the commands that the README and the guide show, in a copy of the sources. Usage: commands.py SOURCE_ROOT

A block that is neither run here nor in NOT_RUN is a failure, so that each new one is decided on. CC and CXX are the system's, as for
whoever reads the pages.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from packages import missing_packages
from tap import Tap

# The blocks that are run: page, a part of the block, and a part of what it prints. Those of a line run in one shell, as a reader has it.
RUN = [
    [("docs/building.md", "meson setup build/checkout", "gpumem"), ("docs/building.md", "cc docs/examples/readme.c", "live objects: 0")],
    [("docs/csharp.md", "meson setup build/checkout", "live objects: 0")],
    [("docs/go.md", "meson setup build/checkout", "live objects: 0")],
    [("docs/python.md", "meson setup build/checkout", "live objects: 0")],
    [("docs/rust.md", "meson setup build/checkout", "live objects: 0")],
    [("docs/building.md", "meson setup build/prefix", "gpumem.pc"), ("docs/fake-driver.md", "meson setup build/fake-driver", "fake_cuda.h"),
     ("docs/fake-driver.md", "gpumem info --backend cuda", "Fake CUDA device 1")],
]

# A part of a block -> why it is not run here.
SYSTEM = "it changes the system"
OTHER = "another program or a machine of the user's"
NOT_RUN = {
    "packaging/quickstart": "the test quickstart runs it", "build/quickstart/bindings": "the test quickstart runs the program",
    "tests/run": "it is what runs this", "tests/stress": "a stage of tests/run --all", "tests/mutants.py": "hours",
    "tests/release.py": "a stage of tests/run --all", "packaging/release": "tests/release.py runs it", "packaging/build deb": "tests/packages.py",
    "packaging/build wheel": "tests/packages.py", "build/fuzz": "hours", "meson setup build/system": SYSTEM, "sudo ": SYSTEM,
    "systemctl --user": SYSTEM, "adapters/postgresql install": SYSTEM, "$(pkg-config --": "consumers.py and guide.py compile programs like these",
    "gpumem info --all": "tests/cli", "gpumem move FILE": "tests/cli", "gpumem keep": "tests/cli and tests/bindings", "gpumem share": "tests/cli",
    "gpumem trace record": "tests/cli", "gpumem bench --group": "tests/cli/bench.py",
    "GPUMEM_PLUG_INS=": "tests/bindings/python.py builds the wheel; pip would fetch setuptools", "tar -xf build/packages/crate": "tests/language_packages.py", "go get ": "tests/language_packages.py",
    "GO111MODULE=off": "tests/packages.py", "go mod ": "tests/bindings/go.py", "go build -tags": "tests/bindings/go.py",
    "dotnet ": "tests/packages_nuget.py, with an SDK", "python3 -m venv": "tests/packages_wheel.py", "pip install ./bindings": "it would install it for all",
    "set -eu": "tests/packages.py runs the script of this page", "FAKE_CUDA_REPORT=": "tests/fake_cuda runs them", "FAKE_CUDA_FAIL=": "tests/fake_cuda runs it",
    "cc -I/usr/local/cuda": "tests/fake_cuda runs it", "gdb ": OTHER, "vllm serve": OTHER, "torch_memory_saver": "tests/bindings runs it over a stand-in",
    "build/bench": "it builds what tests/run has built", "tests/bench/peers.py": OTHER, "postgresql.py . build/gcc": "the test postgresql",
    "/path/": "it names no file that is there", "cargo run --example basic\ncargo test": "tests/bindings/rust.py",
    "sudo apt": SYSTEM,
}


def blocks_of(source):
    pages = [source / "README.md", *sorted((source / "docs").glob("*.md")), *sorted((source / "bindings").glob("*/README.md"))]
    return [(str(path.relative_to(source)), block) for path in pages
            for block in re.findall(r"^```sh\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)]


def main():
    source, tap = Path(sys.argv[1]), Tap()
    blocks = blocks_of(source)

    def runs(page, block):
        return any(page == name and part in block for group in RUN for name, part, _ in group)
    tap.check("each block of commands is run, here or elsewhere, or it is said why not",
              [f"{page}: {block}" for page, block in blocks if not runs(page, block) and not any(part in block for part in NOT_RUN)] +
              [f"no block has {part!r}" for part in NOT_RUN if not any(part in block for _, block in blocks)])
    tap.check("each block is good to a shell", [
        f"{page}: {result.stderr}" for page, block in blocks
        if (result := subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True, check=False)).returncode])

    missing = missing_packages(source, "build") + [name for name in ("cargo", "go", "mcs", "mono") if not shutil.which(name)]
    if missing:
        tap.skip("the commands of the pages", f"not installed: {' '.join(missing)}")
        tap.finish()
    with tempfile.TemporaryDirectory() as folder:
        clone, home = Path(folder) / "clone", Path(folder) / "home"
        shutil.copytree(source, clone, symlinks=True, ignore=shutil.ignore_patterns(".git", "build", "target", "__pycache__"))
        home.mkdir()
        # What the user's own programs keep in the folder of the user.
        env = {name: value for name, value in os.environ.items() if name not in ("LD_LIBRARY_PATH", "PYTHONPATH", "CC", "CXX", "MAKEFLAGS")}
        env |= {"CARGO_HOME": os.environ.get("CARGO_HOME", str(Path.home() / ".cargo")), "RUSTUP_HOME": os.environ.get("RUSTUP_HOME", str(Path.home() / ".rustup")),
                "CARGO_NET_OFFLINE": "true", "GOPROXY": "off", "GOTOOLCHAIN": "local", "HOME": str(home), "GPUMEM_BACKEND": "host", "CCACHE_DIR": os.environ.get("CCACHE_DIR", str(Path.home() / ".cache" / "ccache")),
                "CCACHE_SLOPPINESS": "pch_defines,time_macros"}
        if shutil.which("ccache"):
            env |= {"CC": "ccache cc", "CXX": "ccache c++"}
        for group in RUN:
            script = "".join(block for page, part, _ in group for name, block in blocks if name == page and part in block)
            # In a list of commands, only the last would end the shell.
            script = "set -e\n" + script.replace(" && ", "\n")
            result = subprocess.run(["bash", "-c", script], cwd=clone, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            lost = [words for _, _, words in group if words not in result.stdout]
            tap.check("; ".join(f"{page}: {part}" for page, part, _ in group), [] if result.returncode == 0 and not lost else [
                result.stdout[-6000:], f"exit status {result.returncode}", f"not said: {lost}"])
    tap.finish()


if __name__ == "__main__":
    main()
