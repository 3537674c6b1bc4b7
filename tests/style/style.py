#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Format of C and C++, syntax of shell and Python, and the licence line, over our own files.
Usage: style.py SOURCE_ROOT CLANG_FORMAT"""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tap import Tap

FOLDERS = ["capi", "impl", "bindings", "tests", "docs", "packaging", ".ci"]
CLANG_FORMAT_MAJOR = "14"  # Others lay out some lines differently.
LICENCE = "SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception"
LICENSED = {".c", ".cpp", ".h", ".hpp", ".py", ".sh", ".build"}

# What makes a test fail by chance, harm others when it fails, or fail to compile: docs/testing.md.
CHANCE = {
    r"\b(EXPECT|ASSERT)_L[TE]\([^;]*now\(\) - ": "an upper bound on elapsed time",
    r"now\(\) \+ (std::chrono::seconds\(\d+\)|\d+s\b)": "a watchdog of less than a minute",
    r"(?<![\w.>])kill\((-1|[^,;]*\bpid\(\)),": "a signal to a process that may have ended or never begun",
    r"\bif \([^\n{]*\)\s+(EXPECT|ASSERT)_(EQ|NE|[LG][TE]|TRUE|FALSE|STR\w+|NEAR)\(": "a check of an if without braces, which GCC does not compile",
}
CHANCE_EXAMPLES = ["EXPECT_LT(steady_clock::now() - begun, 3s);", "ASSERT_EQ(kill(peer.pid(), SIGSTOP), 0);", "::kill(-1, SIGKILL);",
                   "const auto end = steady_clock::now() + 20s;", "steady_clock::now() + std::chrono::seconds(20)", "if (ready) EXPECT_TRUE(done);"]


def run(*command, **options):
    result = subprocess.run(command, **options, text=True, capture_output=True, check=False)
    return (result.stdout + result.stderr) if result.returncode else ""


def first_line(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.readline()


def clang_format(tap, program, files):
    name = "clang-format leaves every file as it is"
    version = ""
    if program and shutil.which(program):
        version = subprocess.run([program, "--version"], text=True, capture_output=True, check=True).stdout
    if f"version {CLANG_FORMAT_MAJOR}." not in version:
        tap.skip(name, f"clang-format {CLANG_FORMAT_MAJOR} is not installed")
    else:
        output = run(program, "--dry-run", "-Werror", "--ferror-limit=1", *files)
        tap.check(name, re.findall(r"^.*error: code should be clang-formatted.*$", output, re.MULTILINE) or output)


def python_syntax(files):
    for path in files:
        try:
            ast.parse(path.read_text(encoding="utf-8"), str(path))
        except SyntaxError as problem:
            yield f"{path}:{problem.lineno}: {problem.msg}"


def forgotten(sources):
    """A source that no build of its folder or of one above names is neither built nor run."""
    for path in sources:
        if path.suffix in {".h", ".hpp"}:
            continue
        builds = [folder / "meson.build" for folder in path.parents if (folder / "meson.build").is_file()]
        near = "".join(text.read_text(encoding="utf-8") for text in [*builds, *path.parent.glob("*.py")])
        if path.name not in near and f"'{path.stem}'" not in near:
            yield str(path)


def left_to_chance(texts):
    for path, text in texts:
        for pattern, name in CHANCE.items():
            for match in re.finditer(pattern, text):
                yield f"{path}:{text.count(chr(10), 0, match.start()) + 1}: {name}"


def bare_names(texts, functions):
    """Messages name a function with (), as prose does. A literal that is a name and nothing else is no message."""
    for path, text in texts:
        for literal in re.findall(r'"((?:[^"\\\n]|\\.)* (?:[^"\\\n]|\\.)*)"', text):
            for name in re.findall(r"\b(gpumem_\w+)(?!\w|\()", literal):
                if name in functions:
                    yield f"{path}: {name} without ()"


def bare_limits(texts):
    """Who is told to raise a limit is told which one, and so how."""
    named = re.compile(r"ulimit -\w|pids\.max|sysctl|vm\.\w+|fs\.\w+|control group|\w=|GPUMEM_\w+|gpumem_\w+\(\)|reserve is")
    for path, text in texts:
        joined = re.sub(r'"\s*(?:PRI\w+\s*)?"', "", text)
        for literal in re.findall(r'"((?:[^"\\\n]|\\.)*\b[Rr]aise\b(?:[^"\\\n]|\\.)*)"', joined):
            if not named.search(literal):
                yield f"{path}: {literal}"


def main():
    root, program = Path(sys.argv[1]), sys.argv[2]
    tap = Tap()
    files = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*")
                   if path.is_file() and "__pycache__" not in path.parts)
    files += [path for path in root.iterdir() if path.suffix == ".build" or path.name == "meson_options.txt"]
    sources = [path for path in files if path.suffix in {".c", ".cpp", ".h", ".hpp"}]
    scripts = [path for path in files if path.suffix == ".sh" or (not path.suffix and "bash" in first_line(path))]
    pythons = [path for path in files if path.suffix == ".py"]

    clang_format(tap, program, sources)
    tap.check("bash -n accepts every shell script", [run("bash", "-n", str(path)) for path in scripts])
    if shutil.which("shellcheck"):
        tap.check("shellcheck has nothing to say", run("shellcheck", "-x", *map(str, scripts), cwd=root))
    else:
        tap.skip("shellcheck has nothing to say", "shellcheck is not installed")
    tap.check("every Python file can be parsed", python_syntax(pythons))
    tap.check("every source names its licence at the top",
              [str(path) for path in files if path.suffix in LICENSED or path.name == "meson_options.txt" or path in scripts
               if LICENCE not in "".join(path.read_text(encoding="utf-8").splitlines(True)[:2])])
    tap.check("no source is forgotten in the build", forgotten(sources))
    tap.check("no test is left to chance",
              left_to_chance((path, path.read_text(encoding="utf-8")) for path in sources if "tests" in path.parts))
    tap.check("a test that is left to chance would be seen",
              [text for text in CHANCE_EXAMPLES if not list(left_to_chance([("", text)]))])
    functions = set(re.findall(r"\b(gpumem_\w+);", (root / "capi/gpumem.map").read_text(encoding="utf-8")))
    ours = [path for path in sources if path.is_relative_to(root / "impl") or path.is_relative_to(root / "capi/src")]
    texts = [(path, path.read_text(encoding="utf-8")) for path in ours]
    tap.check("every function in a message has its ()", bare_names(texts, functions))
    tap.check("a function without its () would be seen",
              [] if list(bare_names([("", 'f("call gpumem_instance_open now")')], functions)) else ["not seen"])
    tap.check("every limit to raise is named", bare_limits(texts))
    tap.check("a limit without its name would be seen",
              [] if list(bare_limits([("", 'f("%d is all; "\n  "raise the limit")')])) else ["not seen"])
    tap.check("there were files to look at", [] if sources and scripts and pythons else ["none found"])
    tap.finish()


if __name__ == "__main__":
    main()
