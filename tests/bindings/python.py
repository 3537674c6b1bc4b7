#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tests the Python binding. Usage: python.py SOURCE_ROOT BUILD_ROOT

Runs the binding's own tests from a copy of the package, on each backend, with numpy and without, with warnings as errors.
Compares the output of the samples, runs the code of the guide, over stand-ins where it needs other packages, checks the
types, and builds the package.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import stage
from tap import Tap

OLDEST = (3, 9)  # as pyproject.toml says
TIME_LIMIT = 900
GUIDE = "python.md", "arrow-dlpack.md"  # their code runs
OTHER_PACKAGES = "cupy-numba.md", "pytorch.md", "serving.md"  # and theirs, over stand-ins
OTHER_PROGRAM = re.compile(r'"""\n(import .*?)"""', re.DOTALL)


def has(interpreter, module):
    return subprocess.run([interpreter, "-c", f"import {module}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          check=False).returncode == 0


def interpreter_with(*modules):
    """An interpreter that has some modules: this one or Debian's, or None."""
    for interpreter in (sys.executable, "/usr/bin/python3"):
        if Path(interpreter).exists() and all(has(interpreter, module) for module in modules):
            return interpreter
    return None


def run(*command, **options):
    """(exit status, output)"""
    result = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            timeout=TIME_LIMIT, check=False, **options)
    return result.returncode, result.stdout


def environment(staged, backend, package):
    return {**staged.environment(backend), "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"}


def own_tests(tap, staged, package, backend, numpy, interpreter):
    """One line for each test of the package."""
    title = f"{backend}, {'with' if numpy else 'without'} numpy"
    lines = package / "results"
    options = [] if numpy else ["--without-numpy"]
    variables = environment(staged, backend, package)
    status, output = run(interpreter, "-W", "error", "-m", "tests.report", *options, lines, cwd=package, env=variables)
    found = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()] if lines.exists() else []
    for case in found:
        name = f"{title}: {case['name']}"
        if case["outcome"] == "skipped":
            tap.skip(name, case["note"])
        else:
            tap.check(name, case["note"] if case["outcome"] == "failed" else [])
    good = status == 0 and found and not output
    tap.check(f"{title}: the tests exit with 0 and print nothing", "" if good else f"exit status {status}\n{output}")
    lines.unlink(missing_ok=True)
    tap.check(f"{title}: the driver was used correctly", staged.violations())


def samples(tap, staged, package, source, numpy):
    for path in sorted((package / "examples").glob("*.py")):
        if numpy is None and "import numpy" in path.read_text(encoding="utf-8"):
            tap.skip(f"the sample {path.stem}", "numpy is not installed")
            continue
        expected = (source / "tests" / "bindings" / "samples" / f"{path.stem}.txt").read_text(encoding="utf-8")
        status, output = run(numpy or sys.executable, "-W", "error", path, env=environment(staged, "host", package))
        same = status == 0 and output == expected.replace("destroyed", "closed")  # as messages say in Python
        tap.check(f"the sample {path.stem}", "" if same else f"exit status {status}\n{output}")


def bench(tap, staged, package, numpy):
    """It runs and has its rows; no number is looked at."""
    status, output = run(numpy or sys.executable, "-W", "error", package / "bench" / "bench.py", "1",
                         env=environment(staged, "host", package))
    rows = ["memory.close(), whole, device", "gpumem.from_dlpack(view): export and import", "pool.alloc() and free()",
            *(["numpy.from_dlpack(view): export"] if numpy else [])]
    missing = [row for row in rows if not re.search(rf"^{re.escape(row)} +\d+ ns ", output, re.MULTILINE)]
    tap.check("the bench runs", f"exit status {status}, without {missing}\n{output}" if status or missing else "")


def compiled_consumer(tap, staged, source, package):
    for backend in staged.backends:
        name = f"{backend}: a compiled consumer of DLPack"
        status, output = run(sys.executable, "-W", "error", source / "tests" / "bindings" / "clients" / "exchange.py",
                             env=environment(staged, backend, package))
        tap.check(name, "" if status == 0 and "pinned memory, borrowed: " in output else f"exit status {status}\n{output}")
        tap.check(f"{name} uses the driver correctly", staged.violations())


def code_of(path, language="python"):
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def documentation(tap, staged, package, source, numpy):
    sample = "".join((package / "examples" / "basic.py").read_text(encoding="utf-8").splitlines(True)[1:])
    tap.check("the README shows the sample basic", "" if sample in code_of(package / "README.md") else "it differs")
    guide, *more = (source / "docs" / page for page in GUIDE)
    # They start other processes, which would run the whole guide.
    for stem, page in ("share", guide), ("shared_array", source / "docs" / "sharing.md"):
        program = "".join((package / "examples" / f"{stem}.py").read_text(encoding="utf-8").splitlines(True)[1:])
        tap.check(f"{page.name} shows the sample {stem}", "" if program in code_of(page, "py") else "it differs")
    for page in guide, *more:
        name = f"the code of {page.name} runs"
        if numpy is None:
            tap.skip(name, "numpy is not installed")
            continue
        program = package / "guide.py"
        program.write_text("\n".join(code_of(page)), encoding="utf-8")
        status, output = run(numpy, "-W", "error", program, env=environment(staged, "host", package))
        tap.check(name, "" if status == 0 and code_of(page) else f"exit status {status}\n{output}")
    for page in OTHER_PACKAGES:
        name = f"the code of {page} runs over stand-ins"
        if "cuda" not in staged.backends:
            tap.skip(name, "it needs the fake driver")
            continue
        status, output = run(numpy or sys.executable, "-W", "error", "-m", "tests.guides", source / "docs" / page, cwd=package,
                             env=environment(staged, "cuda", package))
        tap.check(name, "" if status == 0 else f"exit status {status}\n{output}")
        tap.check(f"{name} and uses the driver correctly", staged.violations())


def sources(tap, package):
    problems = []
    for path in sorted(package.rglob("*.py")):
        try:
            ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=OLDEST)
        except SyntaxError as problem:
            problems.append(f"{path}: {problem}")
    tap.check(f"the sources are Python {'.'.join(map(str, OLDEST))}", problems)
    name = "pyflakes finds nothing"
    interpreter = interpreter_with("pyflakes")
    if interpreter:
        # __init__.py imports names for others.
        files = [path for path in sorted(package.rglob("*.py")) if path.name != "__init__.py"]
        status, output = run(interpreter, "-m", "pyflakes", *files)
        tap.check(name, "" if status == 0 else output)
    else:
        tap.skip(name, "pyflakes is not installed")


def types(tap, package, source):
    """mypy finds nothing in the package, nor in programs that use it, the guide among them. With a planted fault it finds that."""
    name = "mypy finds nothing"
    interpreter = interpreter_with("mypy", "numpy")
    if interpreter is None:
        tap.skip(name, "mypy, or numpy with its types, is not installed")
        return
    cache = package / "mypy"
    planted = package / "planted.py"
    planted.write_text('import gpumem\n\ngpumem.default_device().memory("64", pinned=True).fill(0)\n', encoding="utf-8")

    def mypy(*what):
        return run(interpreter, "-m", "mypy", "--strict", "--cache-dir", cache, *what, cwd=package)
    status, output = mypy("--package", "gpumem")
    tap.check(name, "" if status == 0 else output)
    status, output = mypy(*sorted((package / "examples").glob("*.py")))
    tap.check("mypy finds nothing in the samples", "" if status == 0 else output)
    guide = package / "typed_guide.py"
    text = "\n".join(code for page in GUIDE for code in code_of(source / "docs" / page))
    guide.write_text(text, encoding="utf-8")
    # Programs for other processes are texts in it.
    others = []
    for program in OTHER_PROGRAM.findall(text):
        others.append(package / f"typed_guide_{len(others)}.py")
        others[-1].write_text(program, encoding="utf-8")
    # Its functions stand without types, for brevity.
    status, output = mypy("--allow-untyped-defs", "--allow-untyped-calls", guide, *others)
    output += "" if others else "no program for another process is left in the guide"
    tap.check("mypy finds nothing in the guide", "" if status == 0 else output)
    status, output = mypy(planted)
    found = status == 1 and 'unexpected keyword argument "pinned"' in output.lower() and 'type "str"' in output
    tap.check("mypy finds wrong arguments", "" if found else output)
    shutil.rmtree(cache, ignore_errors=True)


def building(tap, staged, package, folder):
    """A wheel, built without the network, has the package and works when it is unpacked. The hooks that pip calls leave
    nothing where the source lies, nor in the folder for temporary files."""
    name = "the package can be built"
    interpreter = interpreter_with("setuptools.build_meta", "wheel")
    if interpreter is None:
        tap.skip(name, "setuptools or wheel is not installed")
        return
    copy = folder / "wheel"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    dist, temporary = folder / "dist", folder / "temporary"
    for made in (dist, temporary):
        made.mkdir()
    before, outputs = sorted(copy.rglob("*")), []
    for hook in ("prepare_metadata_for_build_wheel", "build_wheel", "build_sdist"):
        status, output = run(interpreter, "-c", f"import setuptools.build_meta as build; build.{hook}({str(dist)!r})",
                             cwd=copy, env={**os.environ, "TMPDIR": str(temporary)})
        outputs.append(f"{hook}: exit status {status}\n{output}" if status else "")
    wheels = list(dist.glob("gpumem-*.whl"))
    if any(outputs) or not wheels:
        tap.check(name, "".join(outputs) or "no wheel")
        return
    left = [str(path) for path in [*sorted(copy.rglob("*")), *temporary.iterdir()] if path not in before]
    tap.check("building the package leaves nothing behind", left)
    unpacked = unpack(wheels[0], folder / "unpacked")
    program = "import gpumem, gpumem.adapters, gpumem.host; print(gpumem.__file__, gpumem.version_text(), gpumem.__version__)"
    status, output = run(sys.executable, "-c", program, cwd=folder, env=environment(staged, "host", unpacked))
    words = output.split()
    good = status == 0 and words[0].startswith(str(unpacked)) and words[1] == words[2]
    good = good and (unpacked / "gpumem" / "py.typed").exists() and wheels[0].name.endswith("-py3-none-any.whl")
    tap.check(name, "" if good else f"exit status {status}\n{output}")
    plug_ins(tap, staged, interpreter, copy, folder)


def plug_ins(tap, staged, interpreter, copy, folder):
    """A wheel with the plug-ins finds its own, and is not for every machine."""
    name = "a package with the plug-ins can be built"
    dist = folder / "carrying"
    dist.mkdir()
    command = (interpreter, "-c", f"import setuptools.build_meta as build; build.build_wheel({str(dist)!r})")
    for variable, what in ("GPUMEM_PLUG_INS", "the plug-ins"), ("GPUMEM_BUNDLE", "the library"):
        status, output = run(*command, cwd=copy, env={**os.environ, variable: "/nowhere"})
        tap.check(f"a folder without {what} is refused", "" if status and "no /nowhere/" in output else output)
    installed = staged.library.parent / "gpumem"
    status, output = run(*command, cwd=copy, env={**os.environ, "GPUMEM_PLUG_INS": str(installed)})
    wheels = list(dist.glob("gpumem-*-py3-none-linux_*.whl"))
    if status or not wheels:
        tap.check(name, f"exit status {status}\n{output}")
        return
    unpacked = unpack(wheels[0], folder / "carried")
    program = """
from gpumem.adapters import _plug_in
for name in "python", "tms", "torch":
    path = _plug_in.path(f"libgpumem-{name}.so", "GPUMEM_NOT_SET")
    _plug_in.load(path)
    print(path)
"""
    status, output = run(sys.executable, "-c", program, cwd=folder, env=environment(staged, "host", unpacked))
    expected = "".join(f"{unpacked}/gpumem/adapters/libgpumem-{name}.so\n" for name in ("python", "tms", "torch"))
    tap.check(name, "" if status == 0 and output == expected else f"exit status {status}\n{output}")


def unpack(wheel, folder):
    shutil.unpack_archive(wheel, folder, "zip")
    return folder


def main():
    source, build = Path(sys.argv[1]), Path(sys.argv[2])
    tap, numpy = Tap(), interpreter_with("numpy")
    with stage.staged(build) as staged, tempfile.TemporaryDirectory() as folder:
        if not (staged.library.parent / "gpumem" / "libgpumem-python.so").exists():
            name, problem = "the binding for Python", "the plug-ins were not built"
            if stage.GATE:
                tap.check(name, problem)
            else:
                tap.skip(name, problem)
            tap.finish()
        package = Path(folder) / "package"
        shutil.copytree(source / "bindings" / "python", package, ignore=shutil.ignore_patterns("__pycache__"))
        for interpreter in {sys.executable, numpy or sys.executable}:  # once, not in each process that a test starts
            run(interpreter, "-m", "compileall", "-q", "gpumem", "tests", cwd=package)
        for backend in staged.backends:
            # What is done without numpy is the same on each backend.
            if numpy is None or (backend == "host" and not stage.GATE):
                own_tests(tap, staged, package, backend, False, sys.executable)
            if numpy is None:
                tap.skip(f"{backend}, with numpy", "numpy is not installed")
            else:
                own_tests(tap, staged, package, backend, True, numpy)
        samples(tap, staged, package, source, numpy)
        documentation(tap, staged, package, source, numpy)
        sources(tap, package)
        if stage.GATE:
            tap.finish()
        bench(tap, staged, package, numpy)
        compiled_consumer(tap, staged, source, package)
        types(tap, package, source)
        building(tap, staged, package, Path(folder))
    tap.finish()


if __name__ == "__main__":
    main()
