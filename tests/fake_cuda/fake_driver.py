#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compares docs/fake-driver.md with the fake driver, and runs the commands that it shows.
Usage: fake_driver.py SOURCE_ROOT FAKE_CUDA_FOLDER CUDA_INCLUDE C_COMPILER...

FAKE_CUDA_FOLDER has libcuda.so and libcuda.so.1: a build folder, or where the package has them.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tap import Tap

WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def differences(code, page):
    """Between what the code has and what the page has."""
    return ([f"not in the page: {name}" for name in sorted(code - page)] + [f"not in the code: {name}" for name in sorted(page - code)]
            if code else ["none found in the code"])


def compare(tap, source, page, header):
    folder = source / "tests" / "fake_cuda"
    code = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.cpp") if path.name != "fake_cuda_test.cpp")
    options = dict(re.findall(r"^\| `(FAKE_CUDA_[A-Z_]+)[^|]*\|([^|]*)\|", page, re.MULTILINE))
    tap.check("the page has each variable", differences(set(re.findall(r'"(FAKE_CUDA_[A-Z_]+)"', code)) - {"FAKE_CUDA_"}, set(options)))
    versions = set(re.findall(r'\{"(\d+\.\d)", \d+\}', code))
    tap.check("the page has each version of the driver",
              differences(versions, set(re.findall(r"\d+\.\d", options.get("FAKE_CUDA_VERSION", "")))))
    kinds = set(re.findall(r'"([a-z-]+)"', " ".join(re.findall(r"\bviolation\(([^,]*),", code))))
    cells = re.findall(r"^\|([^|]*)\|", page.partition("\n## Violations\n")[2].partition("\n## ")[0], re.MULTILINE)
    tap.check("the page has each kind of violation", differences(kinds, set(re.findall(r"`([a-z-]+)`", " ".join(cells)))))
    text = header.read_text(encoding="utf-8")
    tap.check("the page names no function that fake_cuda.h does not have",
              [name for name in re.findall(r"\b(fake_cuda_\w+)\(", page) if f"{name}(" not in text])


def run_commands(tap, source, page, fake, header, include, compiler):
    def block(words, language="sh"):
        blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
        (found,) = (text for kind, text in blocks if kind == language and words in text)
        return found

    expected = block("each of", "")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FAKE_CUDA_", "LD_"))}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(source / "docs" / "examples" / "fake_driver.c", folder)

        def shell(command, **variables):
            """The exit status of a block of the page, run as a job does it, and all that it printed."""
            (Path(folder) / "violations").unlink(missing_ok=True)
            command = re.sub(r"^cc ", f"{shlex.join([*compiler, *WARNINGS])} ", command.replace("/usr/local/cuda/include", str(include)))
            result = subprocess.run(["sh", "-ec", command], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                    env={**environment, "FAKE": str(fake), **variables}, check=False)
            return result.returncode, result.stdout

        def check(name, right, outcome):
            tap.check(name, "" if outcome == right else f"exit status {outcome[0]}, and it says: {outcome[1]}")

        build = block("cc -I").replace("-I$FAKE", f"-I{shlex.quote(str(header.parent))}")
        check("the program is compiled, and every call fails once", (0, expected), shell(build))
        wrong = "FAKE_CUDA_DEVICE=2"
        said = f"fake_cuda: {wrong} is ignored: no such variable, or not a value that it can have\n"
        # Many compilers have functions bound when the program starts, as this variable does.
        for how, variables in (("", {}), (", bound at its start", {"LD_BIND_NOW": "1"})):
            check(f"nothing is reported of it{how}", (0, expected), shell(block("FAKE_CUDA_REPORT="), **variables))
            check(f"a variable that does not exist is reported, and fails the job{how}", (1, f"{said}{expected}bad-setting: {wrong}\n"),
                  shell(block("FAKE_CUDA_REPORT="), FAKE_CUDA_DEVICE="2", **variables))
            check(f"a variable makes a call of the program fail{how}", (1, "cuInit(0): CUDA_ERROR_NO_DEVICE\n"),
                  shell(block("FAKE_CUDA_FAIL="), **variables))


def main():
    source, fake, include, compiler = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]
    page = (source / "docs" / "fake-driver.md").read_text(encoding="utf-8")
    # Beside the driver only where it is installed.
    header = next(folder / "fake_cuda.h" for folder in (fake, source / "tests" / "fake_cuda") if (folder / "fake_cuda.h").exists())
    tap = Tap()
    compare(tap, source, page, header)
    run_commands(tap, source, page, fake, header, include, compiler)
    tap.finish()


if __name__ == "__main__":
    main()
