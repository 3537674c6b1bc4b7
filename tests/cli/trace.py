# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs `gpumem trace`: records programs, replays what was recorded, and looks at the page in a browser.
Usage: trace.py PROGRAM SHIM TRACED SOURCE_ROOT [FOLDER_OF_A_FAKE_CUDA_DRIVER]

SHIM is the library that records, and TRACED the program of traced.c.
"""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import browser
from tap import Failed, Skipped, require, run_cases

PROGRAM, SHIM, TRACED, ROOT = sys.argv[1:5]
FAKE_CUDA = sys.argv[5] if len(sys.argv) > 5 else None
MIB = 1 << 20
THREADS, ROUNDS = 8, 500  # of traced.c


def environment(**variables):
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("GPUMEM_", "FAKE_CUDA_", "LD_PRELOAD"))}
    return {**plain, "GPUMEM_BACKEND": "host", "GPUMEM_TRACE_SHIM": SHIM, "COLUMNS": "80", **variables}


def run(*words, preexec_fn=None, **variables):
    return subprocess.run([PROGRAM, "trace", *map(os.fspath, words)], env=environment(**variables), text=True, stdin=subprocess.DEVNULL,
                          capture_output=True, check=False, preexec_fn=preexec_fn)


def record(folder, *program, status=0, **more):
    """The file, and what the command said."""
    file = Path(folder) / "trace"
    outcome = run("record", "-o", file, "--", *program, **more)
    require(outcome.returncode == status, str(outcome))
    return file, outcome


def lines(file):
    found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line]
    require(found[0]["gpumem_trace"] == 1 and found[0]["lost"] == 0, str(found[0]))
    return found[1:]


def show(file):
    outcome = run("show", file)
    require(outcome.returncode == 0 and outcome.stderr == "", str(outcome))
    wide = [line for line in outcome.stdout.splitlines() if len(line) > 80]
    require(not wide, f"wider than 80 columns: {wide}")
    return outcome.stdout


def section(text, title):
    return re.search(rf"^{title}\n((?:  .*\n)+)", text, re.MULTILINE)[1]


def replay(file, *options, **variables):
    """The numbers that it prints, by the words behind them."""
    outcome = run("replay", file, *options, **variables)
    require(outcome.returncode == 0 and outcome.stderr == "", str(outcome))
    table = " ".join(outcome.stdout.split())
    return {name: re.search(rf"([\d.]+(?: [KM]iB| B)?) {name}", table)[1]
            for name in ("calls in the trace", "left out", "replayed", "failed", "live at most", "taken at most")}


def require_failure(outcome, status, *words):
    require(outcome.returncode == status, f"exit status {status} was expected\n{outcome}")
    require(outcome.stdout == "" and re.fullmatch(r"gpumem: [^\n]+\n", outcome.stderr), f"stderr should be one line of gpumem\n{outcome}")
    for word in words:
        require(word in outcome.stderr, f"{word!r} is not mentioned\n{outcome}")


def bytes_of(number, unit):
    return float(number) * {"B": 1, "KiB": 1024, "MiB": MIB}[unit]


# ---- recording ----


def case_calls_of_many_threads_are_recorded():
    with tempfile.TemporaryDirectory() as folder:
        file, outcome = record(folder, TRACED, "threads")
        require(outcome.stdout == "" and re.fullmatch(rf"gpumem: the calls of process \d+ are in {file}\n", outcome.stderr), str(outcome))
        calls = lines(file)
        counts = Counter(call["call"] for call in calls)
        require(counts == {"pool_create": 1, "pool_alloc": THREADS * ROUNDS, "pool_free": THREADS * ROUNDS, "pool_destroy": 1}, str(counts))
        require(all(call["status"] == 0 for call in calls), "a call failed")
        per_thread = Counter(call["thread"] for call in calls if call["call"] == "pool_alloc")
        require(sorted(per_thread.values()) == [ROUNDS] * THREADS, str(per_thread))
        by_thread = {}
        for call in calls:
            if call["call"] in ("pool_alloc", "pool_free"):
                by_thread.setdefault(call["thread"], []).append(call)
        for list_ in by_thread.values():
            for made, freed in zip(list_[::2], list_[1::2]):
                require((made["call"], freed["call"]) == ("pool_alloc", "pool_free") and made["pointer"] == freed["pointer"], f"{made} {freed}")
                require(made["t"] + made["ns"] <= freed["t"], f"{made} {freed}")
        text = show(file)
        require(f"{2 + 2 * THREADS * ROUNDS} calls of {THREADS + 1} threads in " in text and "Never freed" not in text, text)


def case_each_kind_of_call_is_recorded():
    with tempfile.TemporaryDirectory() as folder:
        file, _ = record(folder, TRACED, "variety", "fails")
        calls = lines(file)
        counts = Counter(call["call"] for call in calls)
        expected = {"memory_create": 2, "memory_destroy": 1, "malloc": 2, "free": 1, "register": 1, "unregister": 1, "pool_create": 1,
                    "pool_alloc_batch": 3, "pool_free_batch": 3, "pool_trim": 1, "pool_destroy": 1, "stream_create": 1, "stream_destroy": 1,
                    "buffer_create": 1, "buffer_resize": 1, "group_sleep": 1, "group_wake": 1, "buffer_destroy": 1, "physical_create": 2,
                    "physical_release": 2, "range_reserve": 1, "range_map": 2, "range_unmap": 1, "range_release": 1}
        require(counts == expected, f"{counts}")
        whole = [call for call in calls if call.get("index", 0) == 0]
        for before, after in zip(whole, whole[1:]):
            require(before["t"] + before["ns"] <= after["t"], f"one thread made one after the other: {before} {after}")
        of = {call["call"]: call for call in reversed(calls)}
        made = of["memory_create"]
        require((made["kind"], made["size"], made["name"], made["device"], made["taken"]) == ("pinned", 4 * MIB, 'stag"ing', 0, 4 * MIB), str(made))
        require([call["size"] for call in calls if call["call"] == "pool_alloc_batch"] == [1000, MIB, 0], str(calls))
        require(of["pool_create"]["taken"] == 2 * MIB and of["pool_trim"]["taken"] == 0, str(of["pool_trim"]))
        require(of["buffer_resize"]["size"] == of["buffer_resize"]["taken"] == 16 * MIB, str(of["buffer_resize"]))
        require([call["status"] for call in calls if call["call"] == "malloc"] == [0, -301], str(calls))
        text = show(file)
        most = {kind: (live, taken) for live, taken, kind in re.findall(r"^ +(.*?B)  +(.*?B)  (\w+)$", section(text, "Most memory at a time"), re.MULTILINE)}
        # The buffer and one memory; two blocks and what their pool has taken, beside the other memory.
        live, taken = most.pop("pinned")
        require(live == "5.001 MiB" and 6 * MIB <= bytes_of(*taken.split()) <= 16 * MIB, text)
        require(most == {"device": ("24 MiB", "24 MiB"), "managed": ("1 MiB", "1 MiB"), "registered": ("1 MiB", "1 MiB")}, f"{most}\n{text}")
        left = section(text, "Never freed").splitlines()[1:]
        require(len(left) == 1 and "8 MiB  never freed <b>" in left[0] and left[0].endswith("device memory"), text)


def case_python_is_recorded():
    library = next((Path(line.split("=>")[1].split()[0]) for line in subprocess.run(
        ["ldd", PROGRAM], text=True, capture_output=True, check=True).stdout.splitlines() if "libgpumem.so" in line), None)
    require(library is not None, "the program has no library")
    text = "import gpumem\ndevice = gpumem.default_device()\nmemory = device.memory(1 << 20, 'pinned', name='gr\\u00fcn')\nmemory.close()\n"
    with tempfile.TemporaryDirectory() as folder:
        file, _ = record(folder, sys.executable, "-c", text, PYTHONPATH=f"{ROOT}/bindings/python", PYTHONDONTWRITEBYTECODE="1",
                         GPUMEM_LIBRARY=str(library))
        require([(call["call"], call.get("name")) for call in lines(file)] == [("memory_create", "gr\u00fcn"), ("memory_destroy", None)],
                str(lines(file)))


def case_the_table_has_the_functions_that_record():
    """As Go and C# load the library."""
    text = ("import ctypes, gpumem._native as n, os\nlibrary = ctypes.CDLL(os.environ['GPUMEM_LIBRARY'])\n"
            "table, small = n.gpumem_table(), n.gpumem_table()\n"
            "assert library.gpumem_table_get(1 << 12, ctypes.byref(table), None) == 0\n"
            "address = lambda function: ctypes.cast(function, ctypes.c_void_p).value\n"
            "assert address(table.gpumem_pool_alloc) == address(library.gpumem_pool_alloc)\n"
            "small.struct_size = 16\n"
            "assert library.gpumem_table_get(1 << 12, ctypes.byref(small), None) == 0 and not small.gpumem_pool_alloc\n"
            "print('good')\n")
    with tempfile.TemporaryDirectory() as folder:
        outcome = run("record", "-o", f"{folder}/trace", "--", sys.executable, "-c", text, PYTHONPATH=f"{ROOT}/bindings/python",
                      PYTHONDONTWRITEBYTECODE="1")
        require(outcome.returncode == 0 and outcome.stdout == "good\n", str(outcome))


def case_a_child_has_a_file_of_its_own():
    with tempfile.TemporaryDirectory() as folder:
        file, outcome = record(folder, TRACED, "fork")
        (other,) = Path(folder).glob("trace.*")
        require(f"the calls of another process are in {other}" in outcome.stderr, str(outcome))
        require([call["name"] for call in lines(file)] == ["of the parent", "after the child"], str(lines(file)))
        require([call["name"] for call in lines(other)] == ["of the child"], str(lines(other)))
        # Programs that a program starts: the second finds the file taken.
        again = Path(folder) / "again"
        outcome = run("record", "-o", again, "--", "sh", "-c", f"{TRACED} variety && {TRACED} threads")
        require(outcome.returncode == 0 and len(list(Path(folder).glob("again*"))) == 2, str(outcome))
        require(any(call["call"] == "memory_create" for call in lines(again)), "the first program is not in the file")


def case_a_killed_program_leaves_what_it_did():
    with tempfile.TemporaryDirectory() as folder:
        file, outcome = record(folder, TRACED, "threads", "variety", "kill", status=128 + signal.SIGKILL)
        require("the program was ended by signal 9" in outcome.stderr, str(outcome))
        require(sum(call["call"] == "pool_alloc" for call in lines(file)) == THREADS * ROUNDS, "calls are missing")
        require(lines(file)[-1], "nothing")
        require(" in the middle" not in show(file), show(file))
        # As if it had been killed while it wrote.
        text = file.read_text(encoding="utf-8").rstrip("\n")
        file.write_text(text[:-20], encoding="utf-8")
        require("1 line ends in the middle, as when the program is killed; it is left out." in " ".join(show(file).split()), show(file))


def case_a_full_disk_does_not_stop_the_program():
    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4 * MIB, 4 * MIB))  # enough for the memory of the host backend

    with tempfile.TemporaryDirectory() as folder:
        file, outcome = record(folder, TRACED, *["threads"] * 5, "seven", status=7, preexec_fn=small_files)
        missing = int(re.search(r"; (\d+) of them had no room: the disk is full", outcome.stderr)[1])
        there = sum(1 for line in file.read_text(encoding="utf-8").splitlines() if '"call"' in line)
        require(outcome.stderr.count("\n") == 1 and there + missing == 5 * (2 + 2 * THREADS * ROUNDS) and there > 10000, f"{there}: {outcome}")
        require(f"{missing} calls are missing" in " ".join(show(file).split()), show(file))

        def no_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

        # The reason is said once. Without a trace the command has failed, whatever the program says.
        old = Path(folder) / "old"
        for words, status in ((["fails", "seven"], 7), (["fails"], 1)):
            old.write_text("of an earlier run", encoding="utf-8")
            for output in (f"{folder}/none", old):
                outcome = run("record", "-o", output, "--", TRACED, *words, preexec_fn=no_files)
                require(outcome.returncode == status and outcome.stderr.count("\n") == 1 and f"{output} cannot be written: " in outcome.stderr,
                        str(outcome))
        require(old.read_text(encoding="utf-8") == "of an earlier run" and sorted(os.listdir(folder)) == ["old", "trace"], str(os.listdir(folder)))


def case_a_program_may_close_all_descriptors():
    with tempfile.TemporaryDirectory() as folder:
        file, outcome = record(folder, TRACED, "variety", "closed", "threads")
        require(outcome.stdout == "" and sum(call["call"] == "pool_alloc" for call in lines(file)) == THREADS * ROUNDS, str(outcome))


def case_the_status_of_the_program_is_passed_on():
    with tempfile.TemporaryDirectory() as folder:
        record(folder, TRACED, "variety", "seven", status=7)
        require_failure(run("record", "-o", f"{folder}/trace", "--", f"{folder}/none"), 127, "none cannot be started: No such file")
        require_failure(run("record", "-o", f"{folder}/trace", "--", folder), 126, "cannot be started: Permission denied")
        # The words of the program are its own.
        outcome = run("record", "-o", f"{folder}/trace", "--", "printf", "%s|", "-o", "--", "[a,b]", "")
        require(outcome.stdout == "-o|--|[a,b]||", str(outcome))


def case_a_program_without_the_library():
    with tempfile.TemporaryDirectory() as folder:
        for program in (["true"], [TRACED, "nothing"]):
            require_failure(run("record", "-o", f"{folder}/trace", "--", *program), 0, "nothing was recorded", "linked statically", "privileges")
            require(not Path(f"{folder}/trace").exists(), "an empty file is left")


def case_only_a_new_trace_replaces_an_old_file():
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "trace"
        old.write_text("of an earlier run", encoding="utf-8")
        for program, status in ([f"{folder}/none"], 127), ([folder], 126), (["true"], 0), ([TRACED, "nothing"], 0):
            require_failure(run("record", "-o", old, "--", *program), status)
            require(old.read_text(encoding="utf-8") == "of an earlier run", f"{program} has replaced it")
        # What the program sees meanwhile is a new file.
        outcome = run("record", "-o", old, "--", "sh", "-c", f"cat {old}; exit 3")
        require(outcome.returncode == 3 and outcome.stdout == "" and old.read_text(encoding="utf-8") == "of an earlier run", str(outcome))
        record(folder, TRACED, "variety")
        require(lines(old), "no new trace")
        require(os.listdir(folder) == ["trace"], str(os.listdir(folder)))


def case_what_cannot_be_written_is_said_first():
    with tempfile.TemporaryDirectory() as folder:
        for file, why in ((f"{folder}/no/file", "No such file"), (folder, "is no regular file"), ("/dev/full", "is no regular file")):
            require_failure(run("record", "-o", file, "--", "touch", f"{folder}/ran"), 1, why)
        require_failure(run("record", "-o", f"{folder}/trace", "--", "touch", f"{folder}/ran", GPUMEM_TRACE_SHIM=""), 1, "not installed", "GPUMEM_TRACE_SHIM")
        spaced = Path(folder) / "a b"
        spaced.symlink_to(Path(SHIM).resolve())
        require_failure(run("record", "-o", f"{folder}/trace", "--", "touch", f"{folder}/ran", GPUMEM_TRACE_SHIM=str(spaced)), 1, "has a space or a colon")
        require(not Path(f"{folder}/ran").exists(), "the program ran")


def case_what_is_no_trace():
    head = '{"gpumem_trace": 1, "gpumem": "0.1.0", "process": 1, "command": "x", "date": 0, "lost": 0}\n'
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace"
        require_failure(run("show", file), 1, "cannot be opened: No such file")
        for text, why in (("", "is empty"), ("\n\n", "is empty"), ("hello\n", "is no trace"), ("{}\n", "is no trace"), ("[1]\n", "is no trace"),
                          (head.replace("1,", "2,", 1), "is a trace of version 2, and this program reads version 1"),
                          ('{"gpumem_trace": 1}\n', "line 1 is not"), (head + '{"t": 1}\n', "line 2 is not"),
                          (head + '{"t": 1, "ns": 1, "thread": 1, "call": "free", "status": 0, "pointer": "x"}\n', "line 2 is not")):
            file.write_text(text, encoding="utf-8")
            for action in (["show"], ["replay"], ["html", "-o", f"{folder}/page"]):
                require_failure(run(*action, file), 1, why)
        file.write_bytes(head.encode() + b'{"t": 1, "ns": 1, "thread": 1, "call": "pool_create", "status": 0, "name": "\xff", "new": [1]}\n')
        require("1 call of 1 thread" in show(file), show(file))
        require_failure(run("html", file, "-o", f"{folder}/no/page"), 1, "cannot be opened")
        require_failure(run("html", file, "-o", "/dev/full"), 1, "cannot be written")


# ---- replay ----


def case_a_replay_makes_what_was_recorded():
    with tempfile.TemporaryDirectory() as folder:
        file, _ = record(folder, TRACED, "variety", "fails")
        count = len([call for call in lines(file) if call.get("index", 0) == 0])
        found = replay(file)
        require(int(found["calls in the trace"]) == count and int(found["left out"]) == 1 and int(found["replayed"]) == count - 1, str(found))
        require(found["failed"] == "0", str(found))
        file, _ = record(folder, TRACED, "threads")
        for options in ((), ("--pool", "device"), ("--pool", "pinned"), ("--pool", "managed"), ("--pool", "pageable"), ("--no-pool",)):
            found = replay(file, *options)
            left = 2 if options else 0  # the pool itself
            require(int(found["replayed"]) == 2 + 2 * THREADS * ROUNDS - left and found["failed"] == "0", f"{options}: {found}")
            most = bytes_of(*found["live at most"].split())
            require(4096 <= most <= THREADS * (4096 + 256 * THREADS), f"{options}: {found}")


def case_a_replay_leaves_what_has_happened_and_frees_what_is_left():
    with tempfile.TemporaryDirectory() as folder:
        file, _ = record(folder, TRACED, "leftovers")
        for options in ((), ("--no-pool",)):
            found = replay(file, *options)
            require(found["failed"] == "0" and int(found["left out"]) >= 2, f"{options}: {found}")


def case_a_replay_on_another_backend():
    if FAKE_CUDA is None:
        raise Skipped("the cuda backend is not built")
    with tempfile.TemporaryDirectory() as folder:
        file, _ = record(folder, TRACED, "variety", "threads")
        for options in ((), ("--pool", "device"), ("--no-pool",)):
            found = replay(file, "--backend", "cuda", *options, LD_LIBRARY_PATH=FAKE_CUDA)
            require(found["failed"] == "0" and int(found["replayed"]) > 2 * THREADS * ROUNDS, f"{options}: {found}")


def case_a_replay_says_what_fails():
    with tempfile.TemporaryDirectory() as folder:
        file, _ = record(folder, TRACED, "variety")
        outcome = run("replay", file, GPUMEM_HOST_DEVICE_BYTES=str(4 * MIB))
        require(outcome.returncode == 1 and "with GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY" in outcome.stdout, str(outcome))


# ---- the page ----

LOOK = """(() => ({
  plots: [...document.querySelectorAll('svg.plot')].map(plot => plot.querySelector('.title').textContent),
  boxes: [...document.querySelectorAll('svg.plot a')].map(box => ({text: box.querySelector('title').textContent,
    row: document.querySelector(box.getAttribute('href')).textContent,
    size: [box.getBoundingClientRect().width, box.getBoundingClientRect().height]})),
  left: [...document.querySelectorAll('#never-freed tbody tr')].map(row => row.textContent),
  ground: getComputedStyle(document.body).backgroundColor,
  width: [document.documentElement.scrollWidth, innerWidth],
}))()"""


def case_the_page_opens_without_a_network():
    program = browser.find()
    if program is None:
        raise Skipped("no browser is installed")
    with tempfile.TemporaryDirectory() as folder:
        file, _ = record(folder, TRACED, "variety")
        outcome = run("html", file, "-o", f"{folder}/page.html")
        require(outcome.returncode == 0 and outcome.stdout == "" and outcome.stderr == "", str(outcome))
        with browser.started(program) as window:
            grounds = set()
            for width, dark in ((1280, False), (390, True)):
                window.ask("Emulation.setDeviceMetricsOverride", {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500})
                said, asked = window.open(f"file://{folder}/page.html", dark)
                require(said == [] and set(asked) <= {f"file://{folder}/page.html", "data:,"}, f"said {said}, asked for {asked}")
                seen = window.evaluate(LOOK)
                grounds.add(seen["ground"])
                require(seen["width"][0] <= width, f"wider than the window: {seen['width']}")
                require({"Memory over time: device", "Memory over time: pinned", "Memory map"} < set(seen["plots"]), str(seen["plots"]))
                # Two memories, one of malloc, one registered, two blocks, a buffer and two mappings.
                require(len(seen["boxes"]) == 9, str(seen["boxes"]))
                for box in seen["boxes"]:
                    require(min(box["size"]) >= 0.5, str(box))
                    require(re.search(r"\d+ \w+, \w+ (memory|block|buffer|mapping) of device 0 at 0x[0-9a-f]+, made at .* by thread \d+, "
                                      r"(never freed|freed after .*)$", box["text"]), str(box))
                    require(re.search(r"at (0x\w+)", box["text"])[1] in box["row"], str(box))
                require(len(seen["left"]) == 1 and "never freed <b>" in seen["left"][0], str(seen["left"]))
            require(len(grounds) == 2, f"light and dark look alike: {grounds}")


if __name__ == "__main__":
    run_cases(globals())
