#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs the commands that the README and the guide show, in a copy of the sources. Usage: commands.py SOURCE_ROOT

A block that begins like none in GROUPS or NOT_RUN is a failure. The compilers are the system's.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from packages import blocks, cuda_include, missing_packages
from tap import Tap

# The blocks that are run: page, how the block begins, and what it prints, how often. Those of a group run in one shell, as a reader has it.
GROUPS = [
    (("mono", "cargo", "go"), [("docs/building.md", "meson setup build/checkout", "Linking target capi/libgpumem.so.", 1),
                               ("docs/building.md", "cc docs/examples/readme.c", "live objects: 0\n", 4)]),
    (("mono",), [("docs/csharp.md", "meson setup build/checkout", "live objects: 0\n", 1)]),
    (("go",), [("docs/go.md", "meson setup build/checkout", "live objects: 0\n", 1)]),
    ((), [("docs/python.md", "meson setup build/checkout", "live objects: 0\n", 1)]),
    (("cargo",), [("docs/rust.md", "meson setup build/checkout", "live objects: 0\n", 1)]),
    (("the headers of CUDA",), [("docs/building.md", "meson setup build/prefix", "gpumem.pc to", 2),
                                ("docs/fake-driver.md", "meson setup build/fake-driver", "fake_cuda.h to", 1),
                                ("docs/fake-driver.md", "FAKE_CUDA_DEVICES=2 LD_LIBRARY_PATH=$FAKE", "Fake CUDA device 1", 1)]),
]

# Why others are not run here -> how they begin.
NOT_RUN = {
    "it changes the system": [
        "meson setup build/system ", "sudo apt-get install g++-aarch64-linux-gnu ", "cd build/packages/deb\n", "cd build/packages/rpm\n",
        "sudo apt install ./gpumem-fakecuda_", "make -C adapters/postgresql ", "pip install ./bindings/python\n", "systemctl --user enable "],
    "it needs a program or a machine of the user's": [
        "gdb -ex run ", "python3 tests/bench/peers.py --json ", "GPUMEM_VLLM=1 vllm serve "],
    "it takes hours": ["CC=clang CXX=clang++ meson setup build/fuzz ", "build/fuzz/tests/sequences/gpumem_fuzz ", "tests/mutants.py --list\n"],
    "tests/run is what runs this, or has built it": [
        "tests/run", "tests/stress --rounds 50 ", "PYTHONPATH=tests tests/release.py . ", "PYTHONPATH=tests python3 tests/consumers/postgresql.py ",
        "meson setup build/bench "],
    "consumers.py and ffmpeg.py compile such programs": [
        "cc first.c $(", "cc program.c $(", "cc -I adapters/ffmpeg program.c "],
    "ffmpeg.py runs it": ["LD_LIBRARY_PATH=$FAKE ffmpeg "],
    "consumers.py runs packaging/quickstart": ["packaging/quickstart", "build/quickstart/bindings/cli/gpumem info\n"],
    "the tests of packages run it": [
        "packaging/build deb ", "packaging/build wheel\n", "source packaging/dependencies\n", "packaging/release ", "python3 -m venv ", "mkdir -p ../crates\n",
        "go get github.com/gpumem/", "export GOPROXY=file://", "GO111MODULE=off GOPATH=/usr/share/gocode ", "set -eu\ncc program.c ",
        "dotnet add package GpuMem ", "dotnet pack src/GpuMem.csproj "],
    "the tests of bindings run it": [
        "go mod init program\n", "go build -tags gpumem_dlopen\n", "cargo run --example basic\ncargo test\n", "python3 - << 'END'\n",
        "GPUMEM_PLUG_INS=$PWD/", "mcs -unsafe -optimize "],
    "the tests of the command line run such commands": [
        "gpumem info  ", "gpumem move FILE\n", "gpumem keep --hub ", "gpumem share weights.bin ", "gpumem trace record ", "gpumem bench --html "],
    "the tests of the fake driver run it": [
        "export FAKE_CUDA_REPORT=", "FAKE_CUDA_FAIL=cuInit:1:once:", "cc -I/usr/local/cuda/include -I$FAKE "],
}


def pages_of(source):
    return [source / "README.md", *sorted((source / "docs").glob("*.md")), *sorted((source / "bindings").glob("*/README.md"))]


def missing(needed):
    tools = [name for name in needed if name != "the headers of CUDA" and not shutil.which("mcs" if name == "mono" else name)]
    return tools + ["the headers of CUDA"] * ("the headers of CUDA" in needed and cuda_include() is None)


def main():
    source, tap = Path(sys.argv[1]), Tap()
    found = [(str(path.relative_to(source)), block) for path in pages_of(source) for block in blocks(path, "sh")]
    chosen = [(page, beginning) for _, group in GROUPS for page, beginning, _, _ in group]
    others = [beginning for beginnings in NOT_RUN.values() for beginning in beginnings]

    def runs(name, block):
        return any(name == page and block.startswith(beginning) for page, beginning in chosen)
    tap.check("each block of commands is run, here or elsewhere, or it is said why not",
              [f"{page}: {block}" for page, block in found if not runs(page, block) and not block.startswith(tuple(others))] +
              [f"no block begins with {beginning!r}" for beginning in others if not any(block.startswith(beginning) for _, block in found)])
    tap.check("each block is good to a shell", [
        f"{page}: {result.stderr}" for page, block in found
        if (result := subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True, check=False)).returncode])

    lacking = missing_packages(source, "build")
    if lacking:
        tap.skip("the commands of the pages", f"not installed: {' '.join(lacking)}")
        tap.finish()
    with tempfile.TemporaryDirectory() as folder:
        clone, home = Path(folder) / "clone", Path(folder) / "home"
        shutil.copytree(source, clone, symlinks=True, ignore=shutil.ignore_patterns(".git", "build", "target", "__pycache__"))
        home.mkdir()
        for path, _, _ in os.walk(clone):
            os.chmod(path, os.stat(path).st_mode | 0o700)  # the sources may be read-only
        env = {name: value for name, value in os.environ.items() if name not in ("LD_LIBRARY_PATH", "PYTHONPATH", "CC", "CXX", "MAKEFLAGS")}
        env |= {"HOME": str(home), "RUSTUP_HOME": os.environ.get("RUSTUP_HOME", str(Path.home() / ".rustup")), "GPUMEM_BACKEND": "host",
                "CCACHE_DIR": os.environ.get("CCACHE_DIR", str(Path.home() / ".cache" / "ccache")), "CCACHE_SLOPPINESS": "pch_defines,time_macros",
                "CARGO_HOME": str(home / "cargo"), "CARGO_NET_OFFLINE": "true", "GOPROXY": "off", "GOTOOLCHAIN": "local"}
        if shutil.which("ccache"):
            env |= {"CC": "ccache cc", "CXX": "ccache c++"}
        for needed, group in GROUPS:
            name = "; ".join(f"{page}: {beginning}" for page, beginning, _, _ in group)
            if missing(needed):
                tap.skip(name, f"not installed: {' '.join(missing(needed))}")
                continue
            script = "".join(block for page, beginning, _, _ in group for other, block in found if other == page and block.startswith(beginning))
            # In a list of commands, only the last would end the shell.
            script = "set -e\n" + script.replace(" && ", "\n")
            result = subprocess.run(["bash", "-c", script], cwd=clone, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            lost = [words for _, _, words, count in group if result.stdout.count(words) < count]
            tap.check(name, [] if result.returncode == 0 and not lost else [
                result.stdout[-6000:], f"exit status {result.returncode}", f"not said, or not often enough: {lost}"])
    tap.finish()


if __name__ == "__main__":
    main()
