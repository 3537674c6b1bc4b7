#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Everything that the library calls outside itself is made to fail by the fault loops, or there is a reason why not.
Usage: symbols.py ARCHIVE NOT_FAILED WRAPPED..."""

import re
import subprocess
import sys
from pathlib import Path

from tap import Tap


def called_outside(archive):
    """Names that some object of the archive needs and none has."""
    needed, defined = set(), set()
    for line in subprocess.run(["nm", archive], text=True, capture_output=True, check=True).stdout.splitlines():
        kind, _, name = line[17:].partition(" ")
        if kind in {"U", "w", "v"}:
            needed.add(name)
        elif name:
            defined.add(name)
    return needed - defined


def reasons(text):
    """Pattern -> reason."""
    lines = [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]
    return {pattern: reason.strip() for pattern, reason in lines}


def main():
    archive, not_failed, *wrapped = sys.argv[1:]
    tap = Tap()
    called = called_outside(archive)
    excused = reasons(Path(not_failed).read_text(encoding="utf-8"))
    tap.check("the archive could be read", [] if "memcpy" in called else ["it calls no memcpy"])
    tap.check("every call can be made to fail, or there is a reason why not",
              [f"neither in meson.build nor in not_failed.txt: {name}" for name in sorted(called - set(wrapped))
               if not any(re.fullmatch(pattern, name) for pattern in excused)])
    tap.check("nothing is wrapped that is not called",
              [f"not called: {name}" for name in sorted(set(wrapped) - called)])
    tap.finish()


if __name__ == "__main__":
    main()
