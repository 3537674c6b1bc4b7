#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Loading the library opens no file of a GPU driver. Usage: load.py LOADER LIBRARY EMPTY_LIBRARY"""

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tap import Tap

ROUNDS = 15
CONTROL = "libcuda-control.so"  # Does not exist; looking for it must be seen.


def of_a_driver(path):
    name = os.path.basename(path)
    return "libcuda" in name or "nvidia" in name or path.startswith(("/dev/nvidia", "/proc/driver/nvidia"))


def opened_by_strace(command):
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        subprocess.run(["strace", "-f", "-e", "trace=open,openat", "-o", str(log), *command], check=True,
                       capture_output=True)
        return re.findall(r'open(?:at)?\((?:[^"]*, )?"([^"]*)"', log.read_text(encoding="utf-8", errors="replace"))


def opened_by_loader_log(command):
    env = {**os.environ, "LD_DEBUG": "files,libs"}
    log = subprocess.run(command, check=True, capture_output=True, text=True, env=env).stderr
    return re.findall(r"(?:trying file=|file=)(\S+)", log)


def choose_watcher(loader):
    """strace sees every open; where it is missing or not permitted, the dynamic loader's own log sees libraries."""
    if shutil.which("strace"):
        try:
            opened_by_strace([loader, "libc.so.6"])
            return "strace", opened_by_strace
        except subprocess.CalledProcessError:
            pass
    return "LD_DEBUG", opened_by_loader_log


def main():
    loader, library, empty = sys.argv[1:]
    tap = Tap()
    name, opened = choose_watcher(loader)

    files = opened([loader, library])
    tap.check(f"{name} sees the library being opened", [] if library in files else ["it does not"])
    tap.check(f"{name} sees a driver's file being opened",
              [] if any(map(of_a_driver, opened([loader, library, CONTROL]))) else [f"{CONTROL} was not seen"])
    tap.check("loading opens no file of a driver", [f"opened: {path}" for path in files if of_a_driver(path)])

    times = {library: [], empty: []}
    for _ in range(ROUNDS):
        for path, values in times.items():
            values.append(float(subprocess.run([loader, path], check=True, capture_output=True, text=True).stdout))
    ours, theirs = (statistics.median(values) / 1000 for values in times.values())
    tap.measured(f"dlopen of libgpumem {ours:.2f} ms, of an empty C++ library {theirs:.2f} ms, "
                 f"{ours - theirs:+.2f} ms (medians of {ROUNDS} processes)")
    tap.finish()


if __name__ == "__main__":
    main()
