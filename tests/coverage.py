#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Prints which lines and branches of capi/ and impl/ the tests have run. Usage: coverage.py SOURCE_ROOT BUILD_FOLDER

Reads the profiles that a build with clang's source-based coverage has left in BUILD_FOLDER/profiles. A branch is an
outcome of a condition in the source. The exit status is 1 if the totals are below what is asked for.
"""

import json
import subprocess
import sys
from pathlib import Path

LEAST = {"lines": 90, "branches": 80}  # Per cent of the total.
PRODUCT = ("capi", "impl")
# The library, and the programs that hold its objects.
OBJECTS = ("capi/libgpumem.so.0", "tests/unit/gpumem_unit", "tests/unit/gpumem_unit_cuda")


def summaries(source, build):
    profile = build / "profiles" / "all.profdata"
    raw = sorted((build / "profiles").glob("*.profraw"))
    if not raw:
        sys.exit(f"coverage.py: there are no profiles in {build}/profiles")
    subprocess.run(["llvm-profdata", "merge", "--sparse", "-o", str(profile), *map(str, raw)], check=True)
    objects = [f"--object={build / name}" for name in OBJECTS if (build / name).exists()]
    report = subprocess.run(["llvm-cov", "export", "--summary-only", f"--instr-profile={profile}", *objects],
                            check=True, capture_output=True, text=True).stdout
    for entry in json.loads(report)["data"][0]["files"]:
        # As the compiler was told it, which is relative to the build folder.
        path = (build / entry["filename"]).resolve()
        if path.is_relative_to(source) and path.relative_to(source).parts[0] in PRODUCT:
            yield str(path.relative_to(source)), entry["summary"]


def percent(covered, count):
    return 100 * covered / count if count else 100.0


def main():
    source, build = (Path(argument).resolve() for argument in sys.argv[1:])
    total = {kind: [0, 0] for kind in LEAST}
    print(f"{'lines':>7} {'not run':>8} {'branches':>9} {'not run':>8}")
    for path, summary in sorted(summaries(source, build)):
        columns = []
        for kind, sums in total.items():
            count, covered = summary[kind]["count"], summary[kind]["covered"]
            sums[0] += covered
            sums[1] += count
            columns.append((percent(covered, count), count - covered))
        print(f"{columns[0][0]:6.1f}% {columns[0][1]:8} {columns[1][0]:8.1f}% {columns[1][1]:8}  {path}")
    short = [kind for kind, (covered, count) in total.items() if percent(covered, count) < LEAST[kind] or not count]
    for kind, (covered, count) in total.items():
        print(f"{kind}: {percent(covered, count):.1f} % of {count}, at least {LEAST[kind]} % are asked for")
    if short:
        print(f"too few {' and '.join(short)} were run")
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
