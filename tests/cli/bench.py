#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs `gpumem bench`, and looks at its results and, in a browser, at its reports.
Usage: bench.py PROGRAM BENCHMARK_PROGRAM SOURCE_ROOT [FOLDER_OF_A_FAKE_CUDA_DRIVER]

BENCHMARK_PROGRAM is `-` where it is not built, as with a sanitizer; then only what needs no run is looked at.
The numbers are not looked at: they only have to be there and to fit together.
"""

import ctypes
import functools
import json
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from pathlib import Path

import browser
from tap import Failed, Skipped, require, run_cases

PROGRAM, BENCHMARK, ROOT = sys.argv[1:4]
FAKE_CUDA = sys.argv[4] if len(sys.argv) > 4 else None
MEASURED = Path(ROOT) / "docs" / "measured"
SCRIPTS = Path(ROOT) / "tests" / "bench"
# A run with every kind of plot, and no more than that needs.
GROUPS = ["copy", "pool", "trace", "query"]


def environment(**variables):
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("GPUMEM_", "FAKE_CUDA_"))}
    return {**plain, "GPUMEM_BENCH": BENCHMARK, "COLUMNS": "100", **variables}


def need_benchmark():
    if BENCHMARK == "-":
        raise Skipped("the benchmarks are not built")


def run(*arguments, **variables):
    return subprocess.run([PROGRAM, "bench", *map(os.fspath, arguments)], env=environment(**variables), text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, check=False)


def require_failure(outcome, status, *words):
    require(outcome.returncode == status, f"exit status {status} was expected\n{outcome}")
    require(outcome.stdout == "", f"nothing should be on stdout\n{outcome}")
    require(re.fullmatch(r"gpumem: [^\n]+\n", outcome.stderr), f"stderr should be one line of gpumem\n{outcome}")
    for word in words:
        require(word in outcome.stderr, f"{word!r} is not mentioned\n{outcome}")


@functools.lru_cache(maxsize=None)
def results():
    """One run, which several cases look at: what it printed, and its results."""
    need_benchmark()
    with tempfile.TemporaryDirectory() as folder:
        path, traces = Path(folder) / "results.json", Path(folder) / "traces"
        traces.mkdir()
        (traces / "two_<streams>.csv").write_text("# op,id,size,stream\na,0,1000000,0\na,1,5000,1\nf,0,0,0\na,2,3000000,1\n",
                                                encoding="utf-8")
        groups = [word for group in GROUPS for word in ("--group", group)]
        outcome = run("--backend", "host", "--quick", "--repeat", "2", *groups, "--traces", traces, "--json", path)
        require(outcome.returncode == 0 and outcome.stderr == "", str(outcome))
        return outcome.stdout, json.loads(path.read_text(encoding="utf-8"))


@functools.lru_cache(maxsize=None)
def every_group():
    """The same for a run of every group."""
    need_benchmark()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        outcome = run("--backend", "host", "--quick", "--repeat", "1", "--json", path)
        require(outcome.returncode == 0 and outcome.stderr == "", str(outcome))
        return outcome.stdout, json.loads(path.read_text(encoding="utf-8"))


def write(folder, name, content):
    path = Path(folder) / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def peers():
    value = {"median": 500.0, "p10": 400.0, "p90": 600.0, "rows": 5}
    return {"schema": "gpumem-peers", "version": 1, "missing": [{"peer": "CuPy", "why": "it is <not> </script> here"}],
            "peers": [{"peer": "PyTorch 9.9", "rows": [
                *({"name": f"pool/device/pair_4KiB/threads_{count}", "unit": "us", "bytes": None, "value": value}
                  for count in (1, 2, 16)),
                {"name": "no such row", "unit": "GB/s", "bytes": 1, "value": value}]}]}


# ---- the command ----


def case_list_names_the_groups():
    need_benchmark()
    outcome = run("--list")
    require(outcome.returncode == 0 and outcome.stderr == "", str(outcome))
    names = [line.split()[0] for line in outcome.stdout.splitlines()]
    require(set(GROUPS) < set(names) and len(names) == len(set(names)), str(outcome))
    printed = subprocess.run([BENCHMARK, "--list"], text=True, capture_output=True, check=True).stdout
    require(outcome.stdout == printed, str(outcome))
    for columns in (20, 40, 60):
        outcome = run("--list", COLUMNS=str(columns))
        wide = [line for line in outcome.stdout.splitlines() if len(line) > columns]
        require(outcome.returncode == 0 and not wide, f"wider than {columns}: {wide}")
        require(outcome.stdout.split() == printed.split(), str(outcome))


def case_a_table_that_cannot_be_written_is_noticed():
    need_benchmark()
    for arguments in (["--list"], ["--backend", "host", "--group", "load", "--quick"]):
        with open("/dev/full", "wb") as full:
            outcome = subprocess.run([PROGRAM, "bench", *arguments], env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        require(outcome.returncode == 1 and re.fullmatch("gpumem: (bench: )?cannot write to the standard output\n", outcome.stderr), str(outcome))


def case_wrong_usage_is_status_2():
    need_benchmark()
    require_failure(run("--group", "soup"), 2, "there is no group soup")
    require_failure(run("--group", "copy", "--traces", "/no/such/folder"), 2, "--traces")
    require_failure(run(GPUMEM_BACKEND="abacus"), 2, "abacus")


def case_what_cannot_be_used_is_said_before_measuring():
    with tempfile.TemporaryDirectory() as folder:
        good = {"schema": "gpumem-bench", "version": 1, "rows": [], "traces": []}
        row = {"group": "copy", "name": "copy", "unit": "GB/s", "ours": {"median": 1, "p10": 1, "p90": 1}, "raw": None}
        for content, word in (("{", "is no JSON"), ("[]", "is no result"), ({**good, "schema": "other"}, "is no result"),
                              ({**good, "version": 2}, "this version"), ({**good, "rows": 7}, "is no result"),
                              ({**good, "rows": [{**row, "unit": "parsec"}]}, "unknown unit"),
                              ({**good, "rows": [{**row, "ours": None}]}, "is no result"),
                              ({"schema": "gpumem-bench", "version": 1, "rows": []}, "is no result")):
            require_failure(run("--from", write(folder, "bad.json", content), "--html", f"{folder}/report"), 1, word)
        require(not Path(f"{folder}/report").exists(), "a report was made of nothing")
        for content, word in (("{", "is no JSON"), (good, "is no result"), ({**peers(), "peers": 7}, "is no result"),
                              ({**peers(), "missing": [{}]}, "is no result")):
            require_failure(run("--group", "load", "--with", write(folder, "bad.json", content), "--json", "-"), 1, word)
        for option in ("--json", "--html"):
            require_failure(run("--group", "load", option, f"{folder}/no/file"), 1, "cannot be opened")
        require_failure(run("--from", f"{folder}/none", "--json", "-"), 1, "No such file")
        full = run("--from", write(folder, "good.json", {**good, "rows": [row] * 3000}), "--html", "/dev/full")
        require_failure(full, 1, "cannot be written")


def case_without_the_benchmark_program():
    need_benchmark()
    with tempfile.TemporaryDirectory() as folder:
        require_failure(run("--list", GPUMEM_BENCH=f"{folder}/none"), 1, "cannot be started", "No such file")
        # Where nobody has named it, it is looked for beside the installed program.
        moved = Path(folder) / "bin" / "gpumem"
        moved.parent.mkdir()
        moved.write_bytes(Path(PROGRAM).read_bytes())
        moved.chmod(0o755)
        # A library that is found by the rpath of the build is not found from there.
        libraries = f"{Path(PROGRAM).parents[2]}/capi:{os.environ.get('LD_LIBRARY_PATH', '')}"
        outcome = subprocess.run([moved, "bench", "--list"], text=True, capture_output=True, check=False,
                                 env=environment(GPUMEM_BENCH="", LD_LIBRARY_PATH=libraries))
        require_failure(outcome, 1, "not installed", "-Dbench=true", "gpumem/gpumem_bench")
        looked_for = Path(re.search(r"there is no (\S+)\.", outcome.stderr)[1])
        looked_for.parent.mkdir(parents=True)
        looked_for.symlink_to(Path(BENCHMARK).resolve())
        outcome = subprocess.run([moved, "bench", "--list"], text=True, capture_output=True, check=False,
                                 env=environment(GPUMEM_BENCH="", LD_LIBRARY_PATH=libraries))
        require(outcome.returncode == 0 and "copy" in outcome.stdout, str(outcome))


def case_a_benchmark_program_that_dies():
    with tempfile.TemporaryDirectory() as folder:
        path = write(folder, "dies", "#!/bin/sh\nkill -KILL $$\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        require_failure(run("--group", "load", GPUMEM_BENCH=path), 1, "signal 9")


def case_files_stay_until_there_is_something_to_write():
    with tempfile.TemporaryDirectory() as folder:
        wrong = write(folder, "wrong", "#!/bin/sh\necho gpumem: bench: wrong >&2\nexit 2\n")
        wrong.chmod(wrong.stat().st_mode | stat.S_IXUSR)
        old = [write(folder, name, "of an earlier run") for name in ("old.json", "old.html")]
        new = [Path(folder) / name for name in ("new.json", "new.html")]
        for files in (old, new):
            arguments = ("--group", "load", "--json", files[0], "--html", files[1])
            require_failure(run(*arguments, GPUMEM_BENCH=wrong), 2, "wrong")
            require_failure(run(*arguments, GPUMEM_BENCH=f"{folder}/none"), 1, "cannot be started")
            interrupt(folder, *arguments)
        require(all(path.read_text(encoding="utf-8") == "of an earlier run" for path in old), "an earlier run is lost")
        require(not any(path.exists() for path in new), "files are left with nothing in them")
        # A longer file leaves nothing behind a shorter one, and a pipe is written too.
        results = write(folder, "results.json", {"schema": "gpumem-bench", "version": 1, "rows": [], "traces": []})
        old[0].write_text("x" * 100000, encoding="utf-8")
        require(run("--from", results, "--json", old[0], "--html", new[1]).returncode == 0, "no results")
        require(json.loads(old[0].read_text(encoding="utf-8"))["rows"] == [] and "<html" in new[1].read_text(encoding="utf-8"), "not the results")
        outcome = subprocess.run(f"'{PROGRAM}' bench --from '{results}' --json /dev/stdout | cat", shell=True, env=environment(), text=True,
                                 capture_output=True, check=True)
        require(json.loads(outcome.stdout)["rows"] == [] and outcome.stderr == "", str(outcome))


def case_no_device_is_status_1():
    need_benchmark()
    if FAKE_CUDA is None:
        raise Skipped("the cuda backend is not built")
    outcome = run("--backend", "cuda", "--group", "call", LD_LIBRARY_PATH=FAKE_CUDA, FAKE_CUDA_DEVICES="0")
    require_failure(outcome, 1, "GPUMEM_ERROR_NO_DEVICE")


def case_the_cuda_backend_is_measured():
    need_benchmark()
    if FAKE_CUDA is None:
        raise Skipped("the cuda backend is not built")
    outcome = run("--backend", "cuda", "--group", "call", "--quick", "--repeat", "1", "--json", "-",
                  LD_LIBRARY_PATH=FAKE_CUDA)
    require(outcome.returncode == 0, str(outcome))
    found = json.loads(outcome.stdout)
    require(found["backend"] == "cuda" and re.fullmatch(r"\d+\.\d+", found["driver"]), str(outcome))
    require(all(row["raw"] for row in found["rows"]), str(outcome))
    outcome = run("--backend", "cuda", "--group", "threads", "--quick", "--repeat", "1", "--json", "-",
                  LD_LIBRARY_PATH=FAKE_CUDA)
    rows = {row["name"]: row for row in json.loads(outcome.stdout)["rows"]}
    record = rows["threads_16/event_record"]
    require(abs(record["goal"] / record["raw"]["median"] - 1.05) < 0.001, str(record))
    require(rows["threads_2/event_record"]["goal"] is None, str(rows["threads_2/event_record"]))


def case_rows_have_their_goals():
    need_benchmark()
    if FAKE_CUDA is None:
        raise Skipped("the cuda backend is not built")
    with tempfile.TemporaryDirectory() as folder:
        def rows_of(group, only, *arguments):
            path = f"{folder}/results.json"
            subprocess.run([BENCHMARK, "--group", group, "--repeat", "1", "--only", only, "--max-size", "1", "--json", path, *arguments],
                           check=True, stdout=subprocess.DEVNULL,
                           env=environment(LD_LIBRARY_PATH=FAKE_CUDA))
            return json.loads(Path(path).read_text(encoding="utf-8"))["rows"]

        for group, name, ratio in (("threads", "threads_1/copy_4KiB_async", 1.05), ("threads", "threads_1/fill_4KiB_async", 1.05),
                                   ("threads", "threads_1/stream_query", 1.2), ("threads", "threads_1/event_record", 1.1),
                                   ("fence", "threads_1/fence_mark", 2), ("pageable", "pageable/to_host/async/64B", 0.97),
                                   ("pageable", "pageable/to_device/sync/64B", 0.97), ("copy", "copy/pageable_to_pageable/sync/4KiB", 0.97),
                                   ("copy", "copy/pinned_to_pinned/async/4KiB", 0.97), ("copy", "copy/pinned_to_device/sync/4KiB", None)):
            rows = [row for row in rows_of(group, name, "--backend", "cuda") if row["name"] == name]
            # What measures fences is a library of the build.
            if not rows and name.endswith("fence_mark"):
                continue
            require(len(rows) == 1, f"{name}: {rows}")
            goal = rows[0]["goal"]
            require(goal is None if ratio is None else abs(goal / rows[0]["raw"]["median"] / ratio - 1) < 0.001, str(rows[0]))
        touched = rows_of("create", "beside_touch", "--backend", "host")
        require(len(touched) == 1 and abs(touched[0]["goal"] / touched[0]["raw"]["median"] / 1.5 - 1) < 0.001, str(touched))
        # The name of a smaller sleep is another.
        require(all(row["goal"] is None for row in rows_of("group", "group/sleep/cold", "--backend", "cuda", "--smoke")), "the goal is of 8 GiB")


def case_a_pool_stands_beside_mimalloc_where_that_is_installed():
    need_benchmark()
    with tempfile.TemporaryDirectory() as folder:
        def run_rows(**variables):
            path = f"{folder}/results.json"
            outcome = subprocess.run([BENCHMARK, "--backend", "host", "--group", "pool", "--smoke", "--only", "mimalloc", "--json", path],
                                     check=True, capture_output=True, text=True, env=environment(**variables))
            return outcome.stdout, json.loads(Path(path).read_text(encoding="utf-8"))["rows"]

        Path(folder, "libmimalloc.so.2").write_bytes(b"")
        shown, rows = run_rows(LD_LIBRARY_PATH=folder)
        require(not rows and "mimalloc is left out: there is no libmimalloc.so.2" in shown, f"{shown}{rows}")
        try:
            ctypes.CDLL("libmimalloc.so.2")
        except OSError as problem:
            raise Skipped("mimalloc is not installed") from problem
        rows = run_rows()[1]
        names = [f"pool/pageable/mimalloc_{size}/threads_{count}" for size in ("64B", "256B", "1KiB", "4KiB") for count in (1, 2)]
        require([row["name"] for row in rows] == names and all(row["raw"] for row in rows), str(rows))


def case_one_group_fails():
    """The fake device is too small for one group; the others have their results."""
    need_benchmark()
    if FAKE_CUDA is None:
        raise Skipped("the cuda backend is not built")
    with tempfile.TemporaryDirectory() as folder:
        outcome = run("--backend", "cuda", "--group", "trace", "--group", "call", "--quick", "--repeat", "1", "--json",
                      f"{folder}/results.json", "--html", f"{folder}/report.html", LD_LIBRARY_PATH=FAKE_CUDA)
        require(outcome.returncode == 1, str(outcome))
        require(outcome.stderr == "gpumem: bench: group trace: GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY\n", str(outcome))
        found = json.loads(Path(f"{folder}/results.json").read_text(encoding="utf-8"))
        require(found["failed"] == [{"group": "trace", "why": "GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY"}], str(found))
        require({row["group"] for row in found["rows"]} == {"call"}, str(found))
        require("<dd>trace: GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY</dd>" in
                Path(f"{folder}/report.html").read_text(encoding="utf-8"), "the report does not say so")


def interrupt(folder, *arguments):
    """Sends a signal while the benchmark runs. Its process number is left in a file."""
    path, number = write(folder, "slow", f"#!/bin/sh\necho $$ > {folder}/number\nexec sleep 100\n"), write(folder, "number", "")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    with subprocess.Popen([PROGRAM, "bench", *map(os.fspath, arguments)], env=environment(GPUMEM_BENCH=str(path)), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while not number.read_text(encoding="utf-8"):
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        try:
            _, err = process.communicate(timeout=30)
        except subprocess.TimeoutExpired as late:
            process.kill()
            raise Failed("it has not ended after 30 seconds") from late
        require(process.returncode == 130 and "interrupted" in err, f"{process.returncode}: {err}")
    return number.read_text(encoding="utf-8").strip()


def case_an_interrupt_ends_both():
    with tempfile.TemporaryDirectory() as folder:
        number = interrupt(folder, "--group", "load")
        require(not Path(f"/proc/{number}").exists(), "the benchmark still runs")


# ---- the results ----


def case_the_results_fit_together():
    printed, found = results()
    require(found["schema"] == "gpumem-bench" and found["version"] == 1 and found["quick"] is True, str(found)[:500])
    require(found["failed"] == [] and found["backend"] == "host" and found["driver"] is None and found["device"] and found["raw"], str(found)[:500])
    require(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", found["date"]), found["date"])
    # The row of a trace stands in its group; other groups did not run.
    require({row["group"] for row in found["rows"]} == set(GROUPS), str({row["group"] for row in found["rows"]}))
    names = [row["name"] for row in found["rows"]]
    require(len(names) == len(set(names)), "a name stands there twice")
    for row in found["rows"]:
        for side in filter(None, (row["ours"], row["raw"])):
            require(0 < side["p10"] <= side["median"] <= side["p90"] and side["rows"] in (1, 2), str(row))
        require((row["raw"] is None) == (row["ratio"] is None), str(row))
        if row["raw"]:
            require(abs(row["ours"]["median"] / row["raw"]["median"] / row["ratio"] - 1) < 0.01, str(row))
        require((row["unit"] == "GB/s") == (row["bytes"] is not None), str(row))
        # The row, and the spread in the line below.
        lines = re.search(rf"^{re.escape(row['name'])} .*\n( .*)?", printed, re.MULTILINE)
        require(lines and row["unit"] in lines[0].split(), f"not printed: {row}")
        require(row["ours"]["rows"] == 1 or f"{row['ours']['p10']:.4g}..{row['ours']['p90']:.4g}" in (lines[1] or ""),
                f"no spread: {lines[0]} {row}")
    for pattern, count in ((r"pool/device/pair_4KiB/threads_\d+", 5), (r"live_1/threads_\d+/pointer_get_info", 5),
                           (r"copy/pinned_to_device/sync/\w+", 7), (r"copy/device_to_pageable/async/\w+", 7)):
        matching = [name for name in names if re.fullmatch(pattern, name)]
        require(len(matching) == count, f"{pattern}: {matching}")


def case_no_line_is_wider_than_80_columns():
    """Whatever the terminal has, since tables are kept in files too."""
    for text in (every_group()[0], results()[0], run("--list").stdout):
        wide = [line for line in text.splitlines() if len(line) > 80]
        require(text and not wide, f"wider than 80 columns: {wide}")


def case_a_table_becomes_results():
    for printed, found in (every_group(), results()):
        with tempfile.TemporaryDirectory() as folder:
            outcome = subprocess.run([sys.executable, SCRIPTS / "from_text.py", write(folder, "table.txt", printed)], text=True,
                                     capture_output=True, check=False)
        require(outcome.returncode == 0, str(outcome))
        read = json.loads(outcome.stdout)
        for key in ("gpumem", "backend", "device", "raw"):
            require(read[key] == found[key], f"{key}: {read[key]!r} instead of {found[key]!r}")
        # A table does not say how many rows of calls there were.
        sides = [{side: row[side] and {**row[side], "rows": 1} for side in ("ours", "raw")} for row in found["rows"]]
        expected = [{"name": row["name"], "unit": row["unit"], **values} for row, values in zip(found["rows"], sides)]
        differ = [pair for pair in zip(({key: row[key] for key in ("name", "unit", "ours", "raw")} for row in read["rows"]), expected)
                  if pair[0] != pair[1]]
        require(len(read["rows"]) == len(expected) and not differ, f"{len(read['rows'])} of {len(expected)} rows; {differ[:3]}")


def case_a_trace_is_replayed():
    _, found = results()
    require([trace["name"] for trace in found["traces"]] == ["small_training", "two_<streams>"], str(found["traces"])[:300])
    for trace in found["traces"]:
        require(trace["points"][-1][0] == trace["events"], str(trace)[:300])
        require(max(point[1] for point in trace["points"]) == trace["peak_live"], str(trace)[:300])
        require(trace["peak_reserved"] >= max(point[2] for point in trace["points"]) > 0, str(trace)[:300])
        require(trace["peak_reserved"] >= trace["peak_live"], str(trace)[:300])
    points = found["traces"][1]["points"]
    require([point[:2] for point in points] == [[1, 1000000], [2, 1005000], [3, 1005000], [4, 3005000]], str(points))


def case_peers_stand_beside():
    with tempfile.TemporaryDirectory() as folder:
        source, peer = write(folder, "results.json", results()[1]), write(folder, "peers.json", peers())
        outcome = run("--from", source, "--with", peer, "--json", "-", "--html", f"{folder}/report.html")
        require(outcome.returncode == 0, outcome.stderr)
        require(json.loads(outcome.stdout) == {**results()[1], "peers": peers()["peers"], "missing": peers()["missing"]},
                "not the results with the peers")
        report = Path(f"{folder}/report.html").read_text(encoding="utf-8")
        require('data-series="device 4KiB: PyTorch 9.9" data-points="3"' in report, "the peer's line is missing")
        require("CuPy: it is &lt;not&gt; &lt;/script&gt; here" in report, "what is missing is not said")
        require('<td class="number">500,000</td><td class="spread">400,000 to 600,000</td>' in report, "500 us are 500,000 ns")


def case_the_report_says_who_is_faster():
    with tempfile.TemporaryDirectory() as folder:
        rows = []
        for number, (unit, ours, raw) in enumerate((("ns", 90, 100), ("ns", 110, 100), ("us", 104, 100), ("GB/s", 90, 100),
                                                    ("GB/s", 110, 100), ("GB/s", 96, 100), ("ms", 1, None))):
            sides = [value and {"median": value, "p10": value, "p90": value, "rows": 1} for value in (ours, raw)]
            rows.append({"group": "some", "name": f"row_{number}", "unit": unit, "bytes": None, "ours": sides[0],
                         "raw": sides[1], "ratio": raw and ours / raw, "goal": None})
        source = write(folder, "results.json", {"schema": "gpumem-bench", "version": 1, "rows": rows, "traces": []})
        outcome = run("--from", source, "--html", f"{folder}/report.html")
        require(outcome.returncode == 0, str(outcome))
        report = Path(f"{folder}/report.html").read_text(encoding="utf-8")
        said = re.findall(r'scope="row">row_\d</th>.*?class="number">([\d.-]+)</td><td[^>]*>(?:&#\d+; ([a-z ]+))?</td></tr>', report)
        require(said == [("0.9", "faster"), ("1.1", "slower"), ("1.04", "as fast"), ("0.9", "slower"), ("1.1", "faster"),
                         ("0.96", "as fast"), ("-", "")], str(said))
        require("reached" not in report and "missed" not in report, "there are goals")
        require('some</th><td class="number">2</td><td class="number">2</td><td class="number">2</td><td class="number">1</td>'
                in report, "the summary counts otherwise")
        for unit, ours, goal, expected in (("ns", 19, 20, ("at most 20", "reached")), ("us", 21, 20, ("at most 20", "missed")),
                                           ("GB/s", 21, 20, ("at least 20", "reached")), ("GB/s", 19, 20, ("at least 20", "missed"))):
            value = {"median": ours, "p10": ours, "p90": ours, "rows": 1}
            row = {"group": "some", "name": "row", "unit": unit, "bytes": None, "ours": value, "raw": None, "ratio": None, "goal": goal}
            source = write(folder, "results.json", {"schema": "gpumem-bench", "version": 1, "rows": [row], "traces": []})
            require(run("--from", source, "--html", f"{folder}/report.html").returncode == 0, "no report")
            report = Path(f"{folder}/report.html").read_text(encoding="utf-8")
            said = re.findall(r'<td class="number">(at [\w ]+)</td><td[^>]*>&#\d+; (\w+)</td></tr>', report)
            require(said == [expected], f"{said} instead of {expected}")


def case_peers_names_what_is_missing():
    with tempfile.TemporaryDirectory() as folder:
        for package in ("torch", "cupy"):
            write(folder, f"{package}.py", f"raise ImportError('no {package} today')\n")
        outcome = subprocess.run([sys.executable, SCRIPTS / "peers.py", "--json", f"{folder}/peers.json"], text=True,
                                 capture_output=True, check=False, env={**environment(), "PYTHONPATH": folder})
        require(outcome.returncode == 1 and "PyTorch is missing: ImportError: no torch today" in outcome.stdout, str(outcome))
        written = run("--from", write(folder, "results.json", results()[1]), "--with", f"{folder}/peers.json", "--json", "-")
        require(written.returncode == 0 and "no cupy today" in written.stdout, str(written)[:2000])


# ---- the reports ----

# Of each plot: its lines with the number of points that they claim and the marks that are there, texts outside the
# drawing, and marks of an axis that lie on each other. Of the page: colours that are too close to the ground.
LOOK = r"""(() => {
  const inside = (inner, outer) => inner.left >= outer.left - 1 && inner.right <= outer.right + 1 &&
    inner.top >= outer.top - 1 && inner.bottom <= outer.bottom + 1;
  const overlap = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  const box = element => element.getBoundingClientRect();
  const light = colour => colour.match(/\d+/g).slice(0, 3).map(value => value / 255)
    .map(value => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
  const contrast = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const plots = {};
  for (const svg of document.querySelectorAll('svg.plot')) {
    const ground = getComputedStyle(svg.querySelector('.back')).fill;
    const texts = [...svg.querySelectorAll('text')];
    const ticks = texts.filter(text => text.matches('.tick') && !text.closest('.key'));
    const faint = [...texts.map(text => [text.textContent, getComputedStyle(text).fill, 4.5]),
                   ...[...svg.querySelectorAll('.series .line')].map(line => ['a line', getComputedStyle(line).stroke, 3])];
    plots[svg.id] = {
      series: Object.fromEntries([...svg.querySelectorAll('.series')].map(series => [series.dataset.series, {
        points: +series.dataset.points, marks: series.querySelectorAll('.mark').length,
        line: series.querySelector('.line').getTotalLength()}])),
      keys: [...svg.querySelectorAll('.key text')].map(text => text.textContent),
      labels: texts.filter(text => text.matches('.label')).map(text => text.textContent),
      title: svg.getElementById(svg.getAttribute('aria-labelledby')).textContent,
      outside: texts.filter(text => !inside(box(text), box(svg))).map(text => text.textContent),
      crowded: ticks.filter((text, i) => ticks.some((other, j) => i < j && overlap(box(text), box(other)))).map(text => text.textContent),
      smallest: Math.min(...texts.map(text => parseFloat(getComputedStyle(text).fontSize))) * svg.getScreenCTM().a,
      faint: faint.filter(([name, colour, least]) => contrast(colour, ground) < least).map(([name]) => name),
      rows: svg.closest('section') ? svg.closest('section').querySelectorAll('tbody tr').length : 0,
    };
  }
  return {plots, width: [document.documentElement.scrollWidth, innerWidth],
          ground: getComputedStyle(document.body || document.documentElement).backgroundColor,
          data: JSON.parse((document.getElementById('results') || {textContent: 'null'}).textContent),
          verdicts: [...document.querySelectorAll('.faster, .slower, .level')].map(cell => cell.textContent)};
})()"""


def require_plots(found, expected):
    require(set(found["plots"]) == set(expected), f"{sorted(found['plots'])} instead of {sorted(expected)}")
    for name, plot in found["plots"].items():
        for series, what in plot["series"].items():
            marks = 0 if name.startswith("trace-") else what["points"]
            require(what["points"] > 1 and what["marks"] == marks and what["line"] > 0, f"{name}, {series}: {what}")
        require(sorted(plot["series"]) == sorted(plot["keys"]), f"{name}: the legend has {plot['keys']}")
        require(len(plot["labels"]) == 2 and all(plot["labels"]) and plot["title"], f"{name}: {plot}")
        for problem in ("outside", "crowded", "faint"):
            require(not plot[problem], f"{name}: {problem}: {plot[problem]}")


def copies(found, to, source, mode):
    """The lines that a plot of copies must have."""
    subjects = {row["name"].split("/")[1] for row in found["rows"] if row["group"] == "copy" and f"/{mode}/" in row["name"]}
    ends = {tuple(subject.split("_to_")) for subject in subjects}
    kinds = [a if to else b for a, b in ends if (a == "device") == source and (b == "device") == to]
    return {f"{kind.replace('_', ' ')}: {side}" for kind in kinds for side in ("gpumem", "raw")}


def with_browser(case):
    program = browser.find()
    if program is None:
        raise Skipped(f"none of {', '.join(browser.PROGRAMS)} is installed")
    with tempfile.TemporaryDirectory() as folder, browser.started(program) as window:
        case(Path(folder), window)


def case_the_report_in_a_browser():
    def look(folder, window):
        found = {**results()[1], "failed": [{"group": "group", "why": "GPUMEM_ERROR_OUT_OF_HOST_MEMORY_" * 2}]}
        source, peer = write(folder, "results.json", found), write(folder, "peers.json", peers())
        outcome = run("--from", source, "--with", peer, "--html", folder / "report.html", "--svg", folder / "plots")
        require(outcome.returncode == 0 and outcome.stderr == "", str(outcome))
        expected = {f"copy-{way}{end}" for way in ("to-device", "from-device", "other") for end in ("", "-async")}
        expected |= {"pool-threads", "query-threads", "call-threads", "trace-1", "trace-2"}
        grounds = set()
        for width, dark in ((1280, False), (390, True)):
            window.ask("Emulation.setDeviceMetricsOverride", {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500})
            said, asked = window.open(f"file://{folder}/report.html", dark)
            require(said == [], f"the console has {said}")
            others = [url for url in asked if url not in (f"file://{folder}/report.html", "data:,")]
            require(others == [], f"the page asks for {others}")
            seen = window.evaluate(LOOK)
            grounds.add(seen["ground"])
            require(seen["width"][0] <= width, f"wider than the window: {seen['width']}")
            for name, plot in seen["plots"].items():
                require(plot["smallest"] >= 9, f"{name} at {width}: texts of {plot['smallest']} pixels")
            require_plots(seen, expected)
            for name, plot in seen["plots"].items():
                require(plot["rows"] >= sum(series["points"] for series in plot["series"].values()) / 3 / (20 if "trace" in name else 1),
                        f"{name}: a table of {plot['rows']} rows")
            for plot, to, source_side in (("copy-to-device", True, False), ("copy-from-device", False, True)):
                for end, mode in (("", "sync"), ("-async", "async")):
                    lines = set(seen["plots"][plot + end]["series"])
                    require(lines == copies(found, to, source_side, mode) and len(lines) == 8, f"{plot}{end}: {lines}")
            require(set(seen["plots"]["trace-1"]["series"]) == {"live", "reserved"}, str(seen["plots"]["trace-1"]))
            require({"of 1 alive: gpumem", "of 10000 in a pool: gpumem"} < set(seen["plots"]["query-threads"]["series"]),
                    str(seen["plots"]["query-threads"]))
            require("device 4KiB: PyTorch 9.9" in seen["plots"]["pool-threads"]["series"], str(seen["plots"]["pool-threads"]))
            require(seen["data"] == {**found, "peers": peers()["peers"], "missing": peers()["missing"]},
                    "the results in the page are others")
            words = {verdict.split(" ", 1)[1] for verdict in seen["verdicts"]}
            require(words and words <= {"faster", "slower", "as fast"}, str(words))
        require(len(grounds) == 2, f"light and dark look alike: {grounds}")
        require({path.stem for path in (folder / "plots").iterdir()} == expected, str(list((folder / "plots").iterdir())))
        said, asked = window.open(f"file://{folder}/plots/copy-to-device.svg")
        require(said == [] and len(asked) == 1, f"the console has {said}; asked for {asked}")
    with_browser(look)


def case_the_browser_would_notice():
    """A page that does what a report must not do."""
    def look(folder, window):
        path = write(folder, "bad.html", "<!DOCTYPE html><img src='http://127.0.0.1:9/image.png'>"
                                         "<script>console.error('trouble'); nothing();</script>")
        said, asked = window.open(f"file://{path}")
        require("trouble" in said and len(said) >= 2, f"the console has {said}")
        require("http://127.0.0.1:9/image.png" in asked, f"asked for {asked}")
    with_browser(look)


def case_every_plot_is_valid_xml():
    with tempfile.TemporaryDirectory() as folder:
        outcome = run("--from", write(folder, "results.json", results()[1]), "--svg", f"{folder}/plots")
        require(outcome.returncode == 0, str(outcome))
        for path in Path(f"{folder}/plots").iterdir():
            require(xml.etree.ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg", str(path))


def case_recorded_tables_become_plots():
    """The plots in docs/measured are those of the tables beside them; tests/bench/from_text.py says how they are made."""
    with tempfile.TemporaryDirectory() as folder:
        command = (MEASURED / "plots" / "make").read_text(encoding="utf-8")
        require("from_text.py" in command, command)
        subprocess.run(["bash", MEASURED / "plots" / "make", PROGRAM, folder], check=True, env=environment())
        made = {path.name: path.read_text(encoding="utf-8") for path in Path(folder).glob("*.svg")}
        kept = {path.name: path.read_text(encoding="utf-8") for path in (MEASURED / "plots").glob("*.svg")}
        require(made and sorted(made) == sorted(kept), f"{sorted(made)} instead of {sorted(kept)}")
        differ = [name for name, text in made.items() if kept[name] != text]
        require(not differ, f"out of date, run docs/measured/plots/make: {differ}")


if __name__ == "__main__":
    run_cases(globals())
