#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs a test and writes the CPU time that it took, as the last line of stderr. Usage: timed.py PROGRAM ARGUMENT...

For `meson test --wrapper`. The program ends as it would without.
"""

import os
import resource
import signal
import subprocess
import sys


def main():
    # A test that is stopped, because its time is over, may still say something.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    status = subprocess.run(sys.argv[1:], check=False).returncode
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"\ncpu seconds: {usage.ru_utime + usage.ru_stime:.2f}", file=sys.stderr, flush=True)
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main()
