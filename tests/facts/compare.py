#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Holds the fake CUDA driver against the facts of a real one: each difference must be in differences.txt, with its
reason, and each entry there must still differ. Usage: compare.py [--write] FACTS_PROGRAM FAKE_FOLDER SOURCE_ROOT

--write stores what the program prints over the fake driver, and prints the differences that the list lacks."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tap import Tap

REAL = "docs/measured/facts-h200-driver580.txt"
FAKE = "docs/measured/facts-fake-driver.txt"
LIST = "tests/facts/differences.txt"
LIBRARY = "libcuda.so.1"

GROUPS = ["com", "cap", "pin", "dev", "uva", "str", "man", "ipc", "vmm"]
ABSENT = "(none)"
OF_THE_MACHINE = "(of the machine)"
# The facts wait for each other's processes most of the time, but on a small machine they would be in each other's way.
AT_ONCE = 1 if (os.cpu_count() or 1) < 4 else 3

HEADER = """\
# What gpumem_facts prints over the fake driver (tests/fake_cuda), less what is of one run.
# Written by tests/facts/compare.py --write; a test compares it with the program.
"""


def normal(key, value):
    """The value without what is of one machine or one run."""
    if key.startswith("~"):
        return OF_THE_MACHINE
    # Beyond the size of the driver's pages the lowest bit of a few addresses is chance.
    if key.startswith("dev.alignment.") and value.isdigit() and int(value) >= 2 << 20:
        return "2097152 or more"
    if key == "pin.as_nobody.uid" and value != "0":
        return "not root"
    return value


def facts_of(text):
    """Key -> value of each line, in the order of the lines. A key that comes twice has both values."""
    facts = {}
    for line in text.splitlines():
        if line.startswith("#") or line.startswith("~run."):
            continue
        key, _, value = line.partition(": ")
        value = normal(key, value)
        facts[key] = f"{facts[key]}; {value}" if key in facts else value
    return facts


def text_of(facts):
    return HEADER + "".join(f"{key}: {value}\n" for key, value in facts.items())


def group_of(key):
    return key.lstrip("~").split(".")[0]


class Entry:
    """One line of the list: `key: the real driver's value -> the fake's value`, `*` standing for anything."""

    def __init__(self, line, where, reason):
        self.line, self.where, self.reason = line, where, reason
        key, colon, values = line.partition(": ")
        real, arrow, fake = values.partition(" -> ")
        self.good = bool(colon and arrow and reason and re.match(r"~?[a-z]+\.[a-z]", key))
        self.patterns = [re.compile(".*".join(map(re.escape, part.split("*")))) for part in (key, real, fake)]

    def covers(self, difference):
        return all(pattern.fullmatch(part) for pattern, part in zip(self.patterns, difference))


def entries_of(text):
    """A reason is a paragraph at the margin, the entries that it explains are indented below it."""
    entries, reason, below = [], "", False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line[0] == " ":
            entries.append(Entry(line.strip(), f"{LIST}:{number}", reason))
        else:
            reason = line if below else f"{reason} {line}".strip()
        below = line[0] == " "
    return entries


def differences(real, fake):
    for key in list(real) + [key for key in fake if key not in real]:
        values = real.get(key, ABSENT), fake.get(key, ABSENT)
        if values[0] != values[1]:
            yield key, *values


def judge(real, fake, entries):
    """What is wrong: by group, differences without an entry or with more than one; and entries that cover none."""
    wrong, used = defaultdict(list), set()
    for difference in differences(real, fake):
        covering = [entry for entry in entries if entry.covers(difference)]
        used.update(covering)
        if len(covering) != 1:
            key, of_real, of_fake = difference
            places = "".join(f" ({entry.where})" for entry in covering) or " (not in the list)"
            wrong[group_of(key)].append(f"{key}: {of_real} -> {of_fake}{places}")
    return wrong, [f"{entry.where}: {entry.line}" for entry in entries if entry not in used]


def environment(folder, real_text):
    """Of a machine with one device as large as the real one, and of no other setting."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("FAKE_CUDA_")}
    env["LD_LIBRARY_PATH"] = folder
    env["FAKE_CUDA_MEMORY"] = re.search(r"^~cap\.machine\.total_bytes: (\d+)$", real_text, re.MULTILINE)[1]
    # A fault of the CPU is an answer here, to be seen as the signal that it is.
    for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"):
        env[name] = env.get(name, "") + ":handle_segv=0:handle_sigbus=0:handle_abort=0"
    return env


def run_over_fake(program, env):
    def run(group):
        done = subprocess.run([program, "--group", group], env=env, capture_output=True, text=True, check=False)
        return done.stdout, [f"{group}: exit status {done.returncode}"] if done.returncode else []

    with ThreadPoolExecutor(AT_ONCE) as several:
        results = list(several.map(run, GROUPS))
    return facts_of("".join(output for output, _ in results)), [line for _, lines in results for line in lines]


def self_check():
    """Plants what must be found."""
    real = {"pin.a.x": "1", "pin.a.y": "2", "pin.b.x": "3"}
    fake = {"pin.a.x": "1", "pin.a.y": "0", "pin.c.x": "4"}
    listed = entries_of("A reason.\n  pin.a.*: 2 -> 0\n  pin.b.x: * -> (none)\n  pin.c.x: (none) -> 4\n")
    plants = {
        "what is listed passes": judge(real, fake, listed) == ({}, []),
        "a difference that is not listed": list(judge(real, fake, listed[1:])[0]) == ["pin"],
        "another value than the listed one": list(judge(real, {**fake, "pin.a.y": "9"}, listed)[0]) == ["pin"],
        "an entry that no longer differs": len(judge(real, {**fake, "pin.a.y": "2"}, listed)[1]) == 1,
        "two entries for one difference": list(judge(real, fake, listed + listed[:1])[0]) == ["pin"],
        "an entry without a reason": not entries_of("  pin.a.y: 2 -> 0\n")[0].good,
    }
    return [f"not found: {name}" for name, found in plants.items() if not found]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("program")
    parser.add_argument("folder", type=Path)
    parser.add_argument("root", type=Path)
    arguments = parser.parse_args()

    real_text = (arguments.root / REAL).read_text(encoding="utf-8")
    real = facts_of(real_text)
    entries = entries_of((arguments.root / LIST).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        # Where every user can read it: some facts give up their rights before they load the driver.
        os.chmod(folder, 0o755)
        shutil.copy(arguments.folder / LIBRARY, folder)
        fake, failures = run_over_fake(arguments.program, environment(folder, real_text))
    wrong, idle = judge(real, fake, entries)
    stored = arguments.root / FAKE

    if arguments.write:
        stored.write_text(text_of(fake), encoding="utf-8")
        print("\n".join(failures + sum(wrong.values(), []) + idle))
        sys.exit(1 if failures else 0)

    tap = Tap()
    tap.check("the comparison finds what is planted", self_check())
    tap.check("the program runs over the fake driver", failures)
    tap.check("each entry of the list can be read and has a reason",
              [f"{entry.where}: {entry.line}" for entry in entries if not entry.good])
    for group in GROUPS:
        tap.check(f"{group}: each difference from the real driver is in the list", wrong[group])
    tap.check("each entry of the list still differs", idle)
    stored_facts = facts_of(stored.read_text(encoding="utf-8"))
    tap.check(f"{FAKE} is what the program prints",
              [f"{key}: stored {was}, now {now}" for key, was, now in differences(stored_facts, fake)])
    listed = sum(1 for _ in differences(real, fake))
    tap.measured(f"{len(real)} facts of the real driver, {listed} lines differ, {len(entries)} entries explain them")
    tap.finish()


if __name__ == "__main__":
    main()
