#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Prints what Ninja must build for some suites: what their tests need, and what is installed.
Usage: targets.py BUILD_FOLDER SUITE..."""

import json
import sys
from pathlib import Path


def main():
    folder, suites = Path(sys.argv[1]).resolve(), set(sys.argv[2:])

    def introspected(what):
        return json.loads((folder / "meson-info" / f"intro-{what}.json").read_text(encoding="utf-8"))

    needed = {target for test in introspected("tests") for target in test["depends"]
              if suites & {suite.rpartition(":")[2] for suite in test["suite"]}}
    for target in introspected("targets"):
        if target["id"] in needed or target["installed"]:
            for name in target["filename"]:
                print(Path(name).relative_to(folder))


if __name__ == "__main__":
    main()
