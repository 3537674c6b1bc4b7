#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""CUDA frames of stock libavutil in pools of gpumem, over the fake driver; the program of the guide.
Usage: ffmpeg.py SOURCE_ROOT BUILD_ROOT FAKE_CUDA_FOLDER C_COMPILER...

BUILD_ROOT is a build of Meson, or a folder into which one was installed with DESTDIR.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from consumers import WARNINGS, install, not_in_driver, pkg_config, run
from packages import blocks
from tap import Tap


def flags_of_ffmpeg():
    """How to compile and link with libavutil, or why that is not possible."""
    try:
        run("pkg-config", "--atleast-version=57", "libavutil")
        return shlex.split(run("pkg-config", "--cflags", "--libs", "libavutil", "ffnvcodec")), ""
    except (RuntimeError, OSError):
        return [], "FFmpeg 5.0 or newer and the types of CUDA for it are not installed: libavutil-dev, libffmpeg-nvenc-dev"


def lacking(fake):
    """What the stock loader of FFmpeg cannot do without, of which its headers have the names, and the fake driver has not."""
    folder = Path(run("pkg-config", "--variable=includedir", "ffnvcodec").strip())
    loader = (folder / "ffnvcodec" / "dynlink_loader.h").read_text(encoding="utf-8")
    loader = re.sub(r"^#if defined\(_WIN32\).*?^#endif", "", loader[loader.index("int cuda_load_functions("):], flags=re.DOTALL | re.MULTILINE)
    return not_in_driver(fake, re.findall(r'LOAD_SYMBOL\(.*"(cu[A-Z]\w+)"', loader.partition("\n}")[0]))


def stock_program(source, fake, folder):
    """The command of the page about the fake driver: each frame comes back as it was, and nothing is done that a driver forbids."""
    (command,) = (block for block in blocks(source / "docs" / "fake-driver.md", "sh") if "ffmpeg " in block)
    report, without = folder / "violations", command.replace("hwupload,hwdownload,format=nv12", "null")
    if without == command:
        return [f"no way to the device and back: {command}"]

    def frames(command):
        said = run("sh", "-ec", command.replace("ffmpeg ", "ffmpeg -v error ", 1), FAKE=str(fake), FAKE_CUDA_REPORT=str(report))
        return [line for line in said.splitlines() if line.strip() and not line.startswith("#")]

    there, never = frames(command), frames(without)
    problems = [] if len(there) == 25 and there == never else ["frames:", *there, "without the device:", *never]
    return problems + (report.read_text(encoding="utf-8").splitlines() if report.exists() else [])


def main():
    source, build, fake, compiler = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]
    adapter = source / "adapters" / "ffmpeg"
    tap = Tap()
    flags, reason = flags_of_ffmpeg()
    if reason:
        tap.skip("FFmpeg", reason)
        tap.finish()
    tap.check("the fake driver has each function that FFmpeg loads", lacking(fake))
    with tempfile.TemporaryDirectory() as folder:
        folder, name = Path(folder), "the program ffmpeg moves frames to the device and back"
        if shutil.which("ffmpeg"):
            try:
                tap.check(name, stock_program(source, fake, folder))
            except RuntimeError as problem:
                tap.check(name, str(problem))
        else:
            tap.skip(name, "not installed: ffmpeg")
        installed = install(build, folder / "installed") if (build / "build.ninja").exists() else build
        (library,) = installed.rglob("libgpumem.so.0")
        env = {"LD_LIBRARY_PATH": f"{fake}:{library.parent}", "FAKE_CUDA_DEVICES": "2"}

        def compiled(program, standard, *more):
            path = folder / program.stem
            run(*compiler, standard, *WARNINGS[1:], "-I", adapter, *more, program, adapter / "gpumem_ffmpeg.c", "-o", path,
                *pkg_config(installed, "--cflags", "--libs"), *flags, "-ldl", "-pthread")
            return path

        try:
            said = run(compiled(source / "docs" / "examples" / "ffmpeg.c", "-std=c99"), **env)
            tap.check("the program of the guide", "" if re.fullmatch(r"1 frame, \d+ bytes\nlive objects: 0\n", said) else f"it says: {said}")
            program = compiled(source / "tests" / "consumers" / "ffmpeg.c", "-std=gnu99", "-I", source / "tests" / "fake_cuda")
        except RuntimeError as problem:
            tap.check("the programs are compiled, and that of the guide runs", str(problem))
            tap.finish()
        process = subprocess.run([program], env={**os.environ, **env}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 check=False)
        problems = []
        for line in process.stdout.splitlines():
            if case := re.match(r"(ok|not ok) - (.*)", line):
                tap.check(case[2], [] if case[1] == "ok" else [case[0], *problems])
                problems = []
            else:
                problems.append(line)
        tap.check("the program ends", [*problems, f"exit status {process.returncode}"] if process.returncode else problems)
    tap.finish()


if __name__ == "__main__":
    main()
