#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Makes results for `gpumem bench --from` of the tables that the benchmarks print, such as those in docs/measured.
Usage: from_text.py FILE... [--only REGEX] > results.json

A row that stands in several files, or several times in one, is that of the first. Its spread stands in the line below; in
older tables behind it. What a table does not have is missing in the results too: the oldest have no spread, and none has
traces.
"""

import argparse
import json
import re
import sys
from pathlib import Path

HEADING = re.compile(r"# gpumem (\S+), (\w+) backend, (.+?);\s(?:# )?raw: (.+?); medians")
NUMBER = r"([\d.]+(?:e[+-]?\d+)?)"
ROW = re.compile(rf"^(?! )(\S.*?)\s+{NUMBER}\s+(?:{NUMBER}|-)\s+(?:{NUMBER}|-)\s+(ns|us|ms|s|GB/s|bytes)"
                 rf"(?:\s+(?:{NUMBER}\.\.{NUMBER}|-))?(?:\s+(?:{NUMBER}\.\.{NUMBER}|-))?\s*$", re.MULTILINE)
# By the beginning of the name.
GROUPS = {"create_destroy/": "create", "pin_": "pin", "vmm/": "map", "buffer/": "buffer", "group/": "group",
          "share: ring": "ring", "share": "share", "pool/device/replay": "trace", "pool/": "pool", "copy/": "copy",
          "pageable/": "pageable", "pageable_setting/": "pageable_setting", "managed_": "managed", "call/": "call",
          "live_": "query", "threads_": "threads", "dlopen": "load"}


def sample(median, low, high):
    value = float(median)
    return {"median": value, "p10": float(low or value), "p90": float(high or value), "rows": 1}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--only", type=re.compile, default=re.compile(""), help="rows whose names match")
    options = parser.parse_args()
    texts = [path.read_text(encoding="utf-8") for path in options.files]
    heading = next((match for match in map(HEADING.search, texts) if match), None)
    if not heading:
        sys.exit("from_text.py: no file has the heading of a benchmark")
    rows = {}
    for text in texts:
        for name, ours, raw, ratio, unit, *spread in ROW.findall(text):
            if name.startswith("#") or not options.only.search(name):
                continue
            group = next((group for start, group in GROUPS.items() if name.startswith(start)), "")
            rows.setdefault(name, {
                "group": group, "name": name, "unit": unit, "bytes": None, "ours": sample(ours, *spread[:2]),
                "raw": sample(raw, *spread[2:]) if raw else None, "ratio": float(ratio) if ratio else None})
    json.dump({"schema": "gpumem-bench", "version": 1, "gpumem": heading[1], "date": None, "system": None,
               "backend": heading[2], "device": heading[3], "driver": None, "raw": heading[4], "quick": False,
               "rows": list(rows.values()), "traces": []}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
