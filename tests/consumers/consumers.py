#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Uses the library as others do. Usage: consumers.py installed|subproject SOURCE_ROOT BUILD_ROOT COMPILER...

installed: installs the build into an empty folder; builds and runs programs with pkg-config, with dlopen and with
Python's ctypes against that folder alone.
subproject: builds and runs a Meson project that has gpumem in its subprojects/ folder.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from tap import Tap

WARNINGS = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def run(*command, **env):
    """Output of a command; a failure raises with all that it printed."""
    result = subprocess.run([str(word) for word in command], text=True, env={**os.environ, **env},
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{result.stdout}exit status {result.returncode}")
    return result.stdout


def case(tap, name, steps):
    try:
        tap.check(name, [] if "round trip good" in steps() else ["the round trip did not report success"])
    except RuntimeError as problem:
        tap.check(name, str(problem))


def installed(tap, source, build, compiler, folder):
    here = source / "tests" / "consumers"
    run("meson", "install", "-C", build, "--no-rebuild", DESTDIR=str(folder))
    (pc,) = folder.rglob("gpumem.pc")
    (header,) = folder.rglob("gpumem.h")
    (library,) = (path for path in folder.rglob("libgpumem.so.*") if re.fullmatch(r"libgpumem\.so\.\d+", path.name))
    private = [path.name for path in folder.rglob("*") if "internal" in path.name or path.suffix in (".a", ".hpp")]
    tap.check("nothing private is installed", private)

    def linked(text, name):
        # The folder stands for the root of a system, where the compiler would find the library by itself.
        flags = run("pkg-config", "--cflags", "--libs", "gpumem", PKG_CONFIG_LIBDIR=str(pc.parent),
                    PKG_CONFIG_SYSROOT_DIR=str(folder))
        program = folder / name
        run(*compiler, *WARNINGS, text, "-o", program, *shlex.split(flags))
        return run(program, LD_LIBRARY_PATH=str(library.parent))

    def loaded():
        program = folder / "loaded"
        run(*compiler, *WARNINGS, here / "loaded.c", f"-I{header.parent.parent}", "-o", program, "-ldl")
        return run(program, library)

    case(tap, "C, linked by pkg-config", lambda: linked(here / "linked.c", "linked"))
    case(tap, "C, loaded with dlopen, through the function table", loaded)
    case(tap, "Python, ctypes", lambda: run(sys.executable, here / "ctypes_round_trip.py", library))


def subproject(tap, source, folder):
    here = source / "tests" / "consumers"
    project = folder / "consumer"
    (project / "subprojects").mkdir(parents=True)
    (project / "meson.build").write_bytes((here / "subproject" / "meson.build").read_bytes())
    for name in ("linked.c", "round_trip.h"):
        (folder / name).symlink_to(here / name)
    (project / "subprojects" / "gpumem").symlink_to(source)

    def steps():
        # Without optimisation and debug information: whether it builds is the question. Without precompiled headers, so
        # that a source that does not include what it uses is found; without CUDA, as on most machines.
        run("meson", "setup", folder / "build", project, "--buildtype=plain", "-Db_pch=false", "-Dgpumem:cuda=disabled",
            "--force-fallback-for=gpumem")
        run("meson", "compile", "-C", folder / "build")
        return run("meson", "test", "-C", folder / "build", "--verbose")

    case(tap, "C, with gpumem as a Meson subproject", steps)


def main():
    way, source, build, *compiler = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:]
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        if way == "installed":
            installed(tap, source, build, compiler, Path(folder))
        else:
            subproject(tap, source, Path(folder))
    tap.finish()


if __name__ == "__main__":
    main()
