#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs a test that is not Meson's, and writes what summarize.py reads. Usage: recorded.py NAME FOLDER PROGRAM ARGUMENT...

What the program prints is shown. The record goes to FOLDER/meson-logs, in the form of Meson's own.
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path


def main():
    name, folder, *command = sys.argv[1:]
    log = Path(folder) / "meson-logs" / "testlog-timed.py.json"
    log.parent.mkdir(parents=True, exist_ok=True)
    start, lines = time.time(), []
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as program:
        for line in program.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    log.write_text(json.dumps({
        "name": f"gpumem:{name} / {name}", "result": "FAIL" if program.returncode else "OK",
        "returncode": program.returncode, "starttime": start, "duration": time.time() - start, "stdout": "".join(lines), "command": command,
        "stderr": f"\ncpu seconds: {usage.ru_utime + usage.ru_stime:.2f}\n"}) + "\n", encoding="utf-8")
    sys.exit(program.returncode)


if __name__ == "__main__":
    main()
