#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Counts every test case of one or more build folders and ends with the line `N passed, N failed, N skipped`.

Usage: summarize.py [--failed TEXT] [--skipped TEXT] [--seconds NUMBER] [--tree ID] BUILD_FOLDER...
       summarize.py --self-check

Reads Meson's logs of each folder and counts single cases: those of GoogleTest from its XML file, those of a TAP program
from its output, any other program as one. A program that fails without a failing case (a crash, a leak found at exit,
a time-out) counts as one failure of its own. --failed and --skipped add what went wrong, or was left out, before any
test ran. The exit status is 0 only if something passed and nothing failed.

A case that failed is run once more by itself; what is no GoogleTest, with its whole program. If it passes, it counts as
passed and is listed as unstable, with both outputs. Where more than MANY fail in a program, that is no matter of chance.

The minutes by configuration and suite come from timed.py, which ran the tests, and from BUILD_FOLDER.time, which has the
seconds of user, system and clock that the build took. --seconds is what the whole run took by the clock.

--tree is the id of the Git tree that was tested. If it is green, it becomes the last line of the file of green trees,
~/.cache/gpumem/green.
"""

import argparse
import collections
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import textwrap
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tap import Tap

PASSED, FAILED, SKIPPED, UNSTABLE = "passed", "failed", "skipped", "unstable"
NOTE_LINES = 20  # Of a failure; the rest stands in Meson's log.
AGAIN_LINES = 40  # Of each of the two outputs of an unstable case.
MANY = 5
AGAIN_SECONDS = 900
GREEN_TREES = 200
Case = collections.namedtuple("Case", "name outcome note")


def last_line(text):
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def last_words(text):
    """What a program said before it failed: from a sanitizer's first report on, else its last line."""
    report = re.search(r"^.*(?:ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|: runtime error: )[\s\S]*", text or "",
                       re.MULTILINE)
    return report.group(0) if report else last_line(text)


def gtest_note(message):
    """GoogleTest puts the place in the first line and the text after it."""
    lines = message.strip().splitlines()
    if len(lines) > 1 and re.search(r":\d+$", lines[0]):
        lines = lines[1:]
    return "\n".join(lines)


def gtest_cases(path):
    for case in ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        failure, skip = case.find("failure"), case.find("skipped")
        if failure is not None:
            yield Case(name, FAILED, gtest_note(failure.get("message", "")))
        elif skip is not None:
            yield Case(name, SKIPPED, gtest_note(skip.get("message", "")).replace("\n", " ") or "no reason given")
        elif case.get("status") == "notrun":
            yield Case(name, SKIPPED, "disabled in the source")
        else:
            yield Case(name, PASSED, "")


def tap_cases(output):
    comments = []
    for line in output.splitlines():
        match = re.match(r"(not )?ok\b\s*\d*\s*-?\s*([^#]*?)\s*(?:#\s*(\w+)\s*(.*))?$", line)
        if not match:
            comments.append(line.removeprefix("# "))
            continue
        negative, name, directive, reason = match.groups()
        if (directive or "").upper() == "SKIP":
            yield Case(name, SKIPPED, reason or "no reason given")
        else:
            yield Case(name, FAILED if negative else PASSED, "\n".join(comments) if negative else "")
        comments = []


def gtest_file(folder, record):
    """Meson has GoogleTest write NAME.xml; one from before this run is what a crash leaves behind."""
    path = folder / (record["name"].split(" / ")[-1] + ".xml")
    return path, path.is_file() and path.stat().st_mtime >= record["starttime"] - 1


def is_gtest(record):
    return re.search(r"^\[=+\] Running \d+ test", record.get("stdout") or "", re.MULTILINE)


def program_cases(folder, record):
    """The cases of one program that Meson ran."""
    output = record.get("stdout") or ""
    cases = []
    if is_gtest(record):
        path, is_new = gtest_file(folder, record)
        if is_new:
            cases = list(gtest_cases(path))
        elif record["result"] == "OK":
            cases = [Case("", FAILED, f"{path.name} was not written")]
    elif re.search(r"^1\.\.\d+", output, re.MULTILINE):
        cases = list(tap_cases(output))

    result = record["result"]
    if result == "SKIP" and not cases:
        return [Case("", SKIPPED, last_line(record.get("stdout")) or last_line(record.get("stderr")) or "no reason given")]
    if result not in ("OK", "EXPECTEDFAIL", "SKIP") and not any(case.outcome == FAILED for case in cases):
        text = last_words(record.get("stderr")) or last_line(output)
        cases.append(Case("", FAILED, f"{result}, exit status {record['returncode']}: {text}"))
    return cases or [Case("", PASSED, "")]


def run_again(record, name):
    """The record of another run of a program: of one case if it is GoogleTest's, of the whole program if `name` is ""."""
    # The part of a suite that the gate runs is counted by the cases that a filter leaves.
    env = {key: value for key, value in (record.get("env") or os.environ).items() if not key.startswith("GTEST_")}
    command = [word for word in record["command"] if not word.startswith("--gtest_output=")]
    again = {"name": record["name"], "starttime": time.time(), "result": "OK", "returncode": 0}
    with tempfile.TemporaryDirectory() as folder:
        if is_gtest(record):
            path, _ = gtest_file(Path(folder), record)
            command += [f"--gtest_output=xml:{path}"] + ([f"--gtest_filter={name}"] if name else [])
        try:
            run = subprocess.run(command, env=env, cwd=record.get("workdir") or None, timeout=AGAIN_SECONDS, check=False,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        except (OSError, subprocess.TimeoutExpired) as problem:
            return again | {"result": "FAIL", "returncode": 1, "stderr": str(problem)}, []
        texts = {key: text.decode("utf-8", "replace") for key, text in (("stdout", run.stdout), ("stderr", run.stderr))}
        again |= {"result": "FAIL" if run.returncode else "OK", "returncode": run.returncode, **texts}
        return again, program_cases(Path(folder), again)


def output_of(record, name):
    """The end of what a program said, from a case of GoogleTest on if it names it."""
    text = record.get("stdout") or ""
    match = re.search(rf"^\[ RUN      \] {re.escape(name)}$[\s\S]*?^\[  FAILED  \] {re.escape(name)} .*$", text, re.MULTILINE)
    text = match.group(0) if match else text
    return (text + "\n" + (record.get("stderr") or "")).strip().splitlines()[-AGAIN_LINES:]


def without_chance(folder, record):
    """The cases of one program. What failed and passes when it runs once more is UNSTABLE."""
    cases = program_cases(folder, record)
    failed = [case for case in cases if case.outcome == FAILED]
    if not failed or len(failed) > MANY or not record.get("command"):
        return cases
    runs = {}
    for case in failed:
        name = case.name if is_gtest(record) else ""
        if name not in runs:
            runs[name] = run_again(record, name)
        again, found = runs[name]
        passed = again["result"] == "OK" and any(one.outcome == PASSED and case.name in ("", one.name) for one in found)
        if passed:
            note = "\n".join(["failed:", *output_of(record, case.name), "passed when run again:", *output_of(again, "")])
            cases[cases.index(case)] = Case(case.name, UNSTABLE, note)
    return cases


def records_of(folder):
    """Meson's records of the tests, with the CPU time that timed.py has put below stderr under a key of its own."""
    logs = sorted((folder / "meson-logs").glob("*-timed.py.json"))
    if not logs:
        raise OSError(f"there is none in {folder / 'meson-logs'}")
    for line in (line for log in logs for line in log.read_text(encoding="utf-8").splitlines()):
        record = json.loads(line)
        match = re.search(r"\n?cpu seconds: ([\d.]+)\s*$", record.get("stderr") or "")
        if match:
            record |= {"cpu": float(match.group(1)), "stderr": record["stderr"][:match.start()]}
        yield record


def read_folder(folder):
    """Yields (full name, case) and prints nothing; measurements come as cases without an outcome."""
    for record in records_of(folder):
        program = record["name"].split(" / ")[-1]
        for case in without_chance(folder, record):
            yield Case(f"{program}: {case.name}" if case.name else program, case.outcome, case.note)
        for text in re.findall(r"^# measured: (.*)$", record.get("stdout") or "", re.MULTILINE):
            yield Case(program, "measured", text)


def print_minutes(folders, seconds, out):
    """A table of the minutes of CPU and, in brackets, by the clock. Tests run at the same time share the clock."""
    cells = collections.defaultdict(lambda: [0.0, 0.0])  # (suite, configuration) to seconds of CPU and clock
    for folder in folders:
        built = folder.with_name(folder.name + ".time")
        if built.is_file() and re.fullmatch(r"[\d.]+ [\d.]+ [\d.]+", text := last_line(built.read_text(encoding="utf-8"))):
            user, system, clock = map(float, text.split())
            cells["build", folder.name] = [user + system, clock]
        for record in records_of(folder):
            suite = record["name"].rpartition(" / ")[0].rpartition(":")[2]
            cells[suite, folder.name][0] += record.get("cpu", 0)
            cells[suite, folder.name][1] += record.get("duration", 0)
    names = [folder.name for folder in folders]
    suites = sorted({suite for suite, _ in cells}, key=lambda suite: (suite != "build", suite))

    def cell(*pairs):
        cpu, clock = (sum(column) / 60 for column in zip((0, 0), *pairs))
        return f"{cpu:6.2f} ({clock:5.2f})" if pairs else ""

    def line(title, cells):
        print(f"  {title:12}" + "".join(f" {text:>17}" for text in cells).rstrip(), file=out)

    print("\nMinutes of CPU (by the clock; tests beside each other share it):", file=out)
    line("", names + ["all"])
    for suite in suites:
        row = [cells[suite, name] for name in names if (suite, name) in cells]
        line(suite, [cell(cells[suite, name]) if (suite, name) in cells else "" for name in names] + [cell(*row)])
    line("all", [cell(*(pair for (_, where), pair in cells.items() if where == name)) for name in names] +
         [cell(*cells.values())])
    if seconds is not None:
        # tests/run has become this program, so its children are ours.
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"  The whole run: {(usage.ru_utime + usage.ru_stime) / 60:.2f} ({seconds / 60:.2f})", file=out)


def summarize(folders, failed=(), skipped=(), seconds=None, out=sys.stdout):
    found = [("", Case(text, FAILED, "")) for text in failed] + [("", Case(text, SKIPPED, "")) for text in skipped]
    readable = []
    for folder in map(Path, folders):
        try:
            found += [(folder.name, case) for case in read_folder(folder)]
            readable.append(folder)
        except (OSError, ValueError, KeyError, ElementTree.ParseError) as problem:
            found.append((folder.name, Case("the test log", FAILED, f"cannot be read: {problem}")))

    def where(folder, case):
        return f"[{folder}] {case.name}" if folder else case.name

    def of(outcome):
        return [(folder, case) for folder, case in found if case.outcome == outcome]

    if of("measured"):
        print("\nMeasured (decides nothing):", file=out)
        for folder, case in of("measured"):
            print(f"  {where(folder, case)}: {case.note}", file=out)
    if of(SKIPPED):
        print("\nSkipped:", file=out)
        reasons = collections.defaultdict(list)
        for folder, case in of(SKIPPED):
            reasons[case.note].append(where(folder, case))
        for reason, names in reasons.items():
            if reason:
                print(f"  {reason} ({len(names)}):", file=out)
            print(textwrap.fill(", ".join(names), 118, initial_indent="    ", subsequent_indent="    ",
                                break_on_hyphens=False, break_long_words=False), file=out)
    if of(FAILED):
        print("\nFailed:", file=out)
        for folder, case in of(FAILED):
            print(f"  {where(folder, case)}", file=out)
            for line in case.note.splitlines()[:NOTE_LINES]:
                print(f"    {line}", file=out)

    if readable:
        print_minutes(readable, seconds, out)
    if of(UNSTABLE):
        print("\nUnstable:", file=out)
        for folder, case in of(UNSTABLE):
            print(f"  {where(folder, case)}", file=out)
            print(textwrap.indent(case.note, "    "), file=out)
    counts = [len(of(PASSED) + of(UNSTABLE)), len(of(FAILED)), len(of(SKIPPED))]
    print("\n{} passed, {} failed, {} skipped".format(*counts), file=out)
    return 0 if counts[0] and not counts[1] else 1


def remember(tree):
    """Adds a tree to the file of those that passed. A cache: where it cannot be written, nothing is lost."""
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpumem" / "green"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        lines = [line for line in lines if line != tree] + [tree]
        path.write_text("\n".join(lines[-GREEN_TREES:]) + "\n", encoding="utf-8")
    except OSError as problem:
        print(f"summarize.py: {path} was not written: {problem}", file=sys.stderr)


GTEST_XML = """<testsuites><testsuite name="A">
<testcase name="Good" classname="A" status="run" result="completed"/>
<testcase name="Off" classname="A" status="notrun" result="suppressed"/>
<testcase name="Later" classname="A" status="run" result="skipped"><skipped message="a.cpp:7&#x0A;no GPU here"/></testcase>
{}</testsuite></testsuites>"""
GTEST_BAD = '<testcase name="Bad" classname="A" status="run"><failure message="a.cpp:9&#x0A;1 is not 2"/></testcase>'


def self_check():
    """Made-up logs of every kind of result are counted and judged as they should be."""
    tap = Tap()

    def expect(name, last, status, records, xml=None, mentions=(), **more):
        with tempfile.TemporaryDirectory() as folder:
            build = Path(folder) / "conf"
            (build / "meson-logs").mkdir(parents=True)
            (Path(folder) / "conf.time").write_text("50 10 30\n", encoding="utf-8")
            if records is not None:
                lines = [json.dumps({"name": "p:s / prog", "returncode": 0, "stdout": "",
                                     "starttime": 0, **record}) for record in records]
                (build / "meson-logs" / "testlog-timed.py.json").write_text("\n".join(lines), encoding="utf-8")
            if xml is not None:
                (build / "prog.xml").write_text(xml, encoding="utf-8")
            with open(build / "out", "w+", encoding="utf-8") as out:
                got = summarize([build], out=out, **more)
                out.seek(0)
                text = out.read()
        problems = [] if got == status else [f"exit status {got}, not {status}"]
        if text.splitlines()[-1] != last:
            problems.append(f"ends with {text.splitlines()[-1]!r}, not {last!r}")
        problems += [f"{word!r} is not mentioned" for word in mentions if word not in text]
        tap.check(name, problems)

    gtest = {"stdout": "[==========] Running 3 tests from 1 test suite.\n"}
    expect("a passing program", "1 passed, 0 failed, 0 skipped", 0, [{"result": "OK"}])
    expect("a failing program", "1 passed, 1 failed, 0 skipped", 1,
           [{"result": "OK"}, {"result": "FAIL", "returncode": 3, "stderr": "broken"}], mentions=["exit status 3", "broken"])
    expect("a sanitizer's report", "0 passed, 1 failed, 0 skipped", 1,
           [{"result": "FAIL", "returncode": 1, "stderr": "a\n==7==ERROR: AddressSanitizer: bad\n  #0 place\n==7==ABORTING"}],
           mentions=["AddressSanitizer: bad", "#0 place"])
    expect("a time-out", "0 passed, 1 failed, 0 skipped", 1, [{"result": "TIMEOUT"}], mentions=["TIMEOUT"])
    expect("exit status 77", "0 passed, 0 failed, 1 skipped", 1, [{"result": "SKIP", "stdout": "x\nno strace\n"}],
           mentions=["no strace"])
    expect("no test at all", "0 passed, 0 failed, 0 skipped", 1, [])
    expect("no log", "0 passed, 1 failed, 0 skipped", 1, None, mentions=["cannot be read"])
    expect("GoogleTest cases", "1 passed, 0 failed, 2 skipped", 0, [{"result": "OK", **gtest}], GTEST_XML.format(""),
           ["no GPU here", "A.Later"])
    expect("a failing GoogleTest case", "1 passed, 1 failed, 2 skipped", 1, [{"result": "FAIL", **gtest}],
           GTEST_XML.format(GTEST_BAD), ["A.Bad", "1 is not 2"])
    expect("GoogleTest cases pass, the program fails at exit", "1 passed, 1 failed, 2 skipped", 1,
           [{"result": "FAIL", "returncode": 23, **gtest}], GTEST_XML.format(""), ["exit status 23"])
    expect("a crash before GoogleTest writes", "0 passed, 1 failed, 0 skipped", 1,
           [{"result": "FAIL", "returncode": -11, **gtest}])
    expect("GoogleTest that writes no file", "0 passed, 1 failed, 0 skipped", 1, [{"result": "OK", **gtest}],
           mentions=["prog.xml was not written"])
    expect("a file from an earlier run", "0 passed, 1 failed, 0 skipped", 1,
           [{"result": "FAIL", "returncode": -11, "starttime": 1e12, **gtest}], GTEST_XML.format(""))
    with tempfile.TemporaryDirectory() as folder:
        def shell(name, text):
            return {"result": "FAIL", "returncode": 1, "command": ["sh", "-c", text.format(Path(folder) / name), "sh"]}
        expect("a program that passes when run again", "1 passed, 0 failed, 0 skipped", 0,
               [shell("a", "echo never mind") | {"stdout": "so it failed"}],
               mentions=["Unstable", "so it failed", "never mind"])
        expect("a program that fails again", "0 passed, 1 failed, 0 skipped", 1, [shell("b", "exit 3")])
        tap_log = {"stdout": "ok 1 - a\nnot ok 2 - b\n1..2\n"}
        expect("a TAP case that passes when run again", "2 passed, 0 failed, 0 skipped", 0,
               [shell("c", "echo ok 1 - a; echo ok 2 - b; echo 1..2") | tap_log], mentions=["Unstable", "prog: b"])
        expect("a TAP case that is missing when run again", "1 passed, 1 failed, 0 skipped", 1,
               [shell("d", "echo ok 1 - a; echo 1..1") | tap_log])
        xml = GTEST_XML.format('<testcase name="Bad" classname="A" status="run"/>').replace('"', '\\"')
        again = 'for word; do :; done; for out; do case $out in --gtest_output=*) ;; *) continue;; esac; ' \
            f'echo "{xml}" > "${{{{out#--gtest_output=xml:}}}}"; done; echo "[====] Running 1 test"; echo "$*"'
        expect("a GoogleTest case that passes when run again", "2 passed, 0 failed, 2 skipped", 0,
               [shell("e", again) | gtest], GTEST_XML.format(GTEST_BAD), ["Unstable", "--gtest_filter=A.Bad"])
        expect("a GoogleTest case that does not run again", "1 passed, 1 failed, 2 skipped", 1,
               [shell("f", again.replace("Bad", "Other")) | gtest], GTEST_XML.format(GTEST_BAD))
    expect("TAP cases", "1 passed, 1 failed, 1 skipped", 1,
           [{"result": "FAIL", "stdout": "ok 1 - a\n# seven\nnot ok 2 - b\nok 3 - c # SKIP no clang\n1..3\n"}],
           mentions=["prog: b", "seven", "no clang"])
    expect("a TAP program that ends early", "1 passed, 1 failed, 0 skipped", 1,
           [{"result": "ERROR", "returncode": 1, "stdout": "1..3\nok 1 - a\n"}])
    expect("a failure before the tests", "1 passed, 1 failed, 1 skipped", 1, [{"result": "OK"}],
           failed=["clang: build"], skipped=["tsan: not run"], mentions=["clang: build", "tsan: not run"])
    expect("the CPU time of tests and build", "2 passed, 0 failed, 0 skipped", 0,
           [{"result": "OK", "duration": 60, "stderr": "word\n\ncpu seconds: 90.00\n"},
            {"result": "OK", "duration": 30, "stderr": "\ncpu seconds: 30.00\n"}],
           mentions=["1.00 ( 0.50)", "2.00 ( 1.50)", "3.00 ( 2.00)"])
    expect("the CPU time is not what a program said last", "0 passed, 1 failed, 0 skipped", 1,
           [{"result": "FAIL", "stderr": "broken\n\ncpu seconds: 1.00\n"}], mentions=["exit status 0: broken"])
    expect("a measurement", "1 passed, 0 failed, 0 skipped", 0, [{"result": "OK", "stdout": "# measured: 3 ms\n"}],
           mentions=["3 ms"])
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        for tree in [*map(str, range(300)), "250"]:
            remember(tree)
        lines = (Path(folder) / "gpumem" / "green").read_text(encoding="utf-8").split()
    tap.check("the last 200 green trees, the newest last",
              [] if len(lines) == 200 and lines[-1] == "250" and lines.count("250") == 1 else lines)
    tap.finish()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--self-check", action="store_true", help="test this program")
    parser.add_argument("--failed", action="append", default=[], metavar="TEXT", help="count a failure")
    parser.add_argument("--skipped", action="append", default=[], metavar="TEXT", help="count something left out")
    parser.add_argument("--seconds", type=float, metavar="NUMBER", help="what the whole run took by the clock")
    parser.add_argument("--tree", metavar="ID", help="the Git tree that was tested")
    parser.add_argument("folders", nargs="*", metavar="BUILD_FOLDER")
    arguments = parser.parse_args()
    if arguments.self_check:
        self_check()
    status = summarize(arguments.folders, arguments.failed, arguments.skipped, arguments.seconds)
    if status == 0 and arguments.tree:
        remember(arguments.tree)
    sys.exit(status)


if __name__ == "__main__":
    main()
