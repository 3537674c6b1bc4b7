#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs every command of the program gpumem and looks at its output, its exit status and its complaints.
Usage: cli.py PROGRAM MAN_PAGE STATUS_HEADER SHORT_OF_MEMORY FOLDER_OF_FAKE_NVML [FOLDER_OF_A_FAKE_CUDA_DRIVER]

SHORT_OF_MEMORY is the library of short_of_memory.c, or `-` where it cannot be loaded beside a sanitizer.
Nearly everything is done on the host backend. Some cases use the cuda backend, with a fake driver and, where there is
one, with the GPU.
"""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path

from tap import Failed, Skipped, require, run_cases

PROGRAM = sys.argv[1]
MAN_PAGE = Path(sys.argv[2])
STATUS_HEADER = Path(sys.argv[3])
SHORT_OF_MEMORY = sys.argv[4]
FAKE_NVML = sys.argv[5]
FAKE_CUDA = sys.argv[6] if len(sys.argv) > 6 else None
KINDS = ["pageable", "pinned", "write-combined", "registered", "mapped", "managed", "range", "buffer"]
COMMANDS = ["info", "move", "share", "attach", "hub", "keep", "bench", "why", "trace", "errors", "help"]
COMPLETIONS = Path(__file__).resolve().parents[2] / "bindings" / "cli" / "completions"
KEEPER_UNIT = Path(__file__).resolve().parents[2] / "packaging" / "systemd" / "gpumem-keeper.service.in"
KEEPER_SOCKET_UNIT = KEEPER_UNIT.with_name("gpumem-keeper.socket")
MIB = 1 << 20


def environment(**variables):
    """This process's environment without settings for gpumem and without the fake driver, and with those given."""
    plain = {name: value for name, value in os.environ.items()
             if not name.startswith(("GPUMEM_", "FAKE_CUDA_", "LISTEN_")) and name not in ("COLUMNS", "FDSTORE", "NOTIFY_SOCKET")}
    folders = [folder for folder in plain.pop("LD_LIBRARY_PATH", "").split(":") if folder and folder != FAKE_CUDA]
    folders = filter(None, [variables.pop("LD_LIBRARY_PATH", None), *folders])
    return {**plain, "LD_LIBRARY_PATH": ":".join(folders), **{name: str(value) for name, value in variables.items()}}


class Outcome:
    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err

    def __str__(self):
        return f"exit status {self.status}\nstdout:\n{self.out}\nstderr:\n{self.err}"

    def json(self):
        require(self.status == 0, str(self))
        return json.loads(self.out)


def run(*arguments, variables=None, **more):
    result = subprocess.run([PROGRAM, *map(os.fspath, arguments)], env=environment(**(variables or {})),
                            stdin=subprocess.DEVNULL, stdout=more.pop("stdout", subprocess.PIPE),
                            stderr=subprocess.PIPE, check=False, **more)
    return Outcome(result.returncode, (result.stdout or b"").decode(), result.stderr.decode())


@contextlib.contextmanager
def fake_driver():
    """Yields the variables for a run with the fake driver, and requires that everything was freed in the end."""
    if FAKE_CUDA is None:
        raise Skipped("the cuda backend is not built")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report"
        # What is kept for the next large copy of ordinary memory stays for ten seconds, and so, perhaps, until the end.
        yield {"LD_LIBRARY_PATH": FAKE_CUDA, "FAKE_CUDA_REPORT": report, "FAKE_CUDA_LEAKS_AT_EXIT": 1, "GPUMEM_TRANSFER_THREADS": "off"}
        # The process keeps its default instance, and that the device's context, a few idle streams and a kernel.
        left = report.read_text(encoding="utf-8")
        require(re.fullmatch(r"leak: 1 of context\n(leak: [1-4] of stream\n)?leak: 1 of module\n", left), left)


def run_host(command, *arguments, **more):
    return run(command, "--backend", "host", *arguments, **more)


def require_failure(outcome, status, *words):
    """One line on stderr that has these words, nothing on stdout."""
    require(outcome.status == status, f"exit status {status} was expected\n{outcome}")
    require(outcome.out == "", f"nothing should be on stdout\n{outcome}")
    require(re.fullmatch(r"gpumem: [^\n]+\n", outcome.err), f"stderr should be one line of gpumem\n{outcome}")
    for word in words:
        require(word in outcome.err, f"{word!r} is not mentioned\n{outcome}")


def words_of(text):
    return " ".join(text.split())


def require_within(columns, text):
    """No line is longer than that, unless it is a single word."""
    long = [line for line in text.splitlines() if len(line) > columns and len(line.split()) > 1]
    require(not long, f"longer than {columns} columns: {long}")


def make_file(folder, size, name="file"):
    """A file whose chunks differ from each other and from anything a memory might hold by chance."""
    path = Path(folder) / name
    block = os.urandom(min(size, MIB))
    with open(path, "wb") as file:
        for number in range(0, size, MIB):
            file.write((number.to_bytes(8, "little") + block)[:min(MIB, size - number)])
    return path


def make_sparse_file(folder, size):
    path = Path(folder) / "sparse"
    with open(path, "wb") as file:
        file.truncate(size)
    return path


def require_all_verified(report, kinds=tuple(KINDS)):
    require([path["kind"] for path in report["paths"]] == list(kinds), f"not the expected paths: {report}")
    for path in report["paths"]:
        require(path["verified"] is True, f"not verified: {path}")
        require(path["xxh3_128"] == report["xxh3_128"], f"another hash: {path}")
        for direction in ("to_device", "to_host"):
            for side in ("gpumem", "raw"):
                rates = path[direction][side]
                require(len(rates["passes"]) == report["repeat"], f"not {report['repeat']} passes: {rates}")
                require(0 < min(rates["passes"]) <= rates["median"] <= rates["best"], f"odd rates: {rates}")
            expected = path[direction]["gpumem"]["median"] / path[direction]["raw"]["median"]
            require(abs(path[direction]["ratio"] / expected - 1) < 1e-6, f"not the ratio: {path[direction]}")


@contextlib.contextmanager
def on_terminal(*arguments, preexec_fn=None, **variables):
    """The program with a terminal as its stderr; yields the process and a function that reads the terminal until it
    has shown some text, or until it is closed."""
    terminal, end = pty.openpty()
    with subprocess.Popen([PROGRAM, *map(os.fspath, arguments)], env=environment(**variables),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=end, preexec_fn=preexec_fn) as process:
        os.close(end)
        shown = []

        def read_until(text=None):
            while text is None or text not in "".join(shown):
                try:
                    piece = os.read(terminal, 4096)
                except OSError:  # How Linux reports that the other end is closed.
                    piece = b""
                if not piece:
                    break
                shown.append(piece.decode())
            return "".join(shown).replace("\r\n", "\n")

        try:
            yield process, read_until
        finally:
            process.kill()
            os.close(terminal)


# ---- usage ----


def case_help_names_each_command():
    outcome = run("--help")
    require(outcome.status == 0 and outcome.err == "", str(outcome))
    for word in ("info", "move", "share", "attach", "hub", "keep", "bench", "why", "trace", "errors"):
        require(word in outcome.out, f"{word} is missing\n{outcome}")


def case_version():
    outcome = run("--version")
    require(outcome.status == 0 and re.fullmatch(r"gpumem \d+\.\d+\.\d+\n", outcome.out), str(outcome))


def case_wrong_usage_is_status_2():
    for arguments in ([], ["fly"], ["info", "--fly"], ["info", "--backend", "abacus"], ["info", "--device", "x"],
                      ["info", "--device", "-1"], ["move"], ["move", "--repeat", "0", "file"],
                      ["move", "--kind", "liquid", "file"], ["move", "--chunk", "12", "file"],
                      ["move", "--chunk", "1 parsec", "file"], ["move", "file", "file"],
                      ["share"], ["share", "file"], ["share", "--name", "n"], ["attach"], ["attach", "file"],
                      ["share", "file", "--name", "n", "--name", "m"], ["hub"], ["hub", "list", "list"],
                      ["hub", "--backend", "host", "list"], ["keep", "file"], ["bench", "file"], ["bench", "--from", "file"],
                      ["bench", "--from", "file", "--quick", "--json", "-"], ["bench", "--with", "file"],
                      ["bench", "--json", "a", "--json", "b"], ["bench", "--repeat", "0"], ["bench", "--backend", "abacus"],
                      ["why", "file", "file"], ["why", "file", "--json"], ["why", "--all"],
                      ["trace"], ["trace", "show"], ["trace", "record"], ["trace", "html", "file"],
                      ["errors", "--json", "--markdown"], ["help", "fly"], ["help", "info", "move"]):
        require_failure(run(*arguments), 2)


def case_what_is_wrong_is_named():
    require_failure(run("fly"), 2, "fly")
    require_failure(run("fly", "info"), 2, "fly")
    require_failure(run("--fly"), 2, "--fly")
    require_failure(run("info", "--fly"), 2, "--fly")
    require_failure(run(), 2, "info", "move", "errors")
    for arguments, problem in (
            ("info --bref", "there is no option --bref"), ("info fly", "info does not take fly"),
            ("info --device -1", "--device takes a number from 0 to 4294967295, not -1"),
            ("info --device 1x", "--device takes a number from 0 to 4294967295, not 1x"),
            ("info --device 4294967296", "--device takes a number from 0 to 4294967295, not 4294967296"),
            ("info --device 18446744073709551616", "--device takes a number from 0 to 4294967295, not 18446744073709551616"),
            ("info --backend foo", "--backend is any, cuda or host, not foo"),
            ("move --kind foo f", "--kind is pageable, pinned, write-combined, registered, mapped, managed, range or buffer, not foo"),
            ("info --backend host --backend cuda", "--backend is given twice"),
            ("move f --repeat 1 --repeat 2", "--repeat is given twice"), ("move f --repeat", "--repeat needs a value"),
            ("move f --kind", "--kind needs a value"), ("info --json=x", "--json takes no value"),
            ("move --repeat 10001 f", "--repeat takes a number from 1 to 10000, not 10001"),
            ("keep --links 0", "--links takes a number from 1 to 65536, not 0"),
            ("move --chunk 4095 f", "--chunk takes 4096 bytes to 1 TiB, not 4095"),
            ("move --chunk 2TiB f", "--chunk takes 4096 bytes to 1 TiB, not 2TiB"),
            ("move", "move needs a FILE"), ("share --name n", "share needs a FILE"), ("share f", "share needs --name"),
            ("attach f", "attach needs --name"), ("hub", "hub needs an ACTION: list or withdraw"),
            ("hub fly", "ACTION is list or withdraw, not fly"), ("hub list --hub", "--hub needs a value"),
            ("share f --name n --hub a --keep b", "--hub and --keep exclude each other"),
            ("attach --name n --timeout 1.5", "--timeout takes seconds from 0 to 86400, not 1.5"),
            ("attach --name n --timeout 86401", "--timeout takes seconds from 0 to 86400, not 86401"), ("errors --json --markdown", "--json and --markdown exclude each other"),
            ("why f --json", "--json and FILE exclude each other: FILE is JSON"), ("why f g", "why does not take g"),
            ("trace", "trace needs an ACTION: record, show, replay or html"),
            ("trace fly", "ACTION is record, show, replay or html, not fly"), ("trace show", "trace show needs a FILE"),
            ("trace record ls", "trace record needs --, and behind it the PROGRAM with its arguments"),
            ("trace record -o a --", "trace record needs --, and behind it the PROGRAM with its arguments"),
            ("trace show f -- ls", "-- and a PROGRAM are for trace record"), ("trace html f", "trace html needs --output"),
            ("trace show f -o g", "--output is for trace record and html"),
            ("trace show f --no-pool", "--backend, --pool and --no-pool are for trace replay"),
            ("trace replay f --pool soup", "--pool is device, pinned, managed or pageable, not soup"),
            ("trace replay f --pool device --no-pool", "--pool and --no-pool exclude each other"),
            ("help fly", "there is no command fly")):
        outcome = run(*arguments.split())
        require_failure(outcome, 2)
        first = arguments.split()[0]
        command = f"{first} " if first in COMMANDS and first != "help" else ""
        require(outcome.err == f"gpumem: {problem} (gpumem {command}--help tells more)\n", str(outcome))
    for chunk in ("32XB", "1.5MiB", "", "MiB", "-5", "64KiBx", "64iB"):
        require_failure(run("move", "--chunk", chunk, "f"), 2, "--chunk takes a whole number", "KiB, MiB, GiB")


def case_what_a_terminal_obeys_is_escaped():
    for arguments, expected in ((["errors", "a\nb"], '"a\\x0ab"'), (["errors", "\x1b[31m"], '"\\x1b[31m"'),
                                (["move", "a\nb\x7f"], '"a\\x0ab\\x7f" cannot be opened'),
                                (["move", ""], '"" cannot be opened'), (["move", "\u009b1m"], '"\\xc2\\x9b1m"'),
                                (["move", "x\u202ey\ufeff"], '"x\\xe2\\x80\\xaey\\xef\\xbb\\xbf"'),
                                (["move", os.fsdecode(b"\xff\xc3")], '"\\xff\\xc3"'), (["move", "gr\u00fcn"], " gr\u00fcn cannot")):
        require_failure(run(*arguments), 1, expected)
    for arguments in (["--f\nly"], ["f\nly"], ["info", "f\nly"], ["info", "--backend", "f\nly"], ["help", "f\nly"]):
        require_failure(run(*arguments), 2, "f\\x0aly")
    with tempfile.TemporaryDirectory() as folder:
        outcome = run_host("move", "--repeat", "1", make_file(folder, 1000, "\x1b[31mred"))
    require(outcome.status == 0 and "\x1b" not in outcome.out and '\\x1b[31mred":' in outcome.out, str(outcome))


def case_help_is_a_command_too():
    require(run("help").out == run("--help").out, str(run("help")))
    for command in COMMANDS:
        outcome = run("help", command)
        require(outcome.status == 0 and outcome.err == "" and outcome.out == run(command, "--help").out, str(outcome))
        require(f"Usage: gpumem {command} " in outcome.out, str(outcome))
        needed = {"move": " FILE\n", "share": " FILE\n", "attach": " [FILE]\n", "why": " [FILE]\n", "errors": " [CODE]\n"}.get(command, "\n")
        require(f"[OPTION...]{needed}" in outcome.out, str(outcome)) if command not in ("hub", "trace", "help") else None
        require(outcome.out.endswith("\n") and not outcome.out.endswith("\n\n"), f"it ends in a blank line\n{outcome}")


def case_help_speaks_to_people():
    for arguments in ([], *([command] for command in COMMANDS)):
        shown = run(*arguments, "--help").out
        found = re.findall(r"\b(?:UINT|INT|TEXT|ENUM|REQUIRED|Excludes|Positionals|SUBCOMMAND)\b", shown)
        require(not found, f"{found} in\n{shown}")
        require_within(80, shown)
        for columns in (20, 40):
            narrow = run(*arguments, "--help", variables={"COLUMNS": columns}).out
            require_within(columns, narrow)
            require(words_of(narrow) == words_of(shown), narrow)
    for word in ("--chunk SIZE", "--kind KIND", "--repeat N", "--device N", "--backend NAME", "FILE"):
        require(word in run("move", "--help").out, f"{word} is missing")


def case_man_page_has_each_option():
    page = MAN_PAGE.read_text(encoding="utf-8")
    for command in COMMANDS:
        require(f".Cm {command}" in page, f"{command} is missing")
        for option in set(re.findall(r"--([a-z-]+)", run(command, "--help").out)):
            require(re.search(rf"Fl -{option}\b", page), f"--{option} of {command} is missing")


def case_a_full_disk_is_noticed():
    with open("/dev/full", "wb") as full:
        for arguments in (["errors"], ["info", "--backend", "host"], ["--help"], ["--version"], ["info", "--help"],
                          ["errors", "--json"]):
            outcome = run(*arguments, stdout=full)
            require(outcome.status == 1 and "cannot write" in outcome.err, str(outcome))


# ---- completion ----

BASH = """source "$COMPLETIONS/gpumem.bash"
COMP_WORDS=(gpumem "$@"); COMP_CWORD=$#
_gpumem gpumem
printf '%s\\n' "${COMPREPLY[@]}"
"""
# The functions of zsh's own completion print what they are given.
ZSH = """_describe() { print -l -- ${${(P)2}%%:*} }
_arguments() { print -l -- ${${@[1,-2]}%%\\[*} }
words=(gpumem "$@"); CURRENT=$#words
_gpumem() { source $COMPLETIONS/_gpumem }
_gpumem
"""
FISH = """source $COMPLETIONS/gpumem.fish
complete --do-complete "gpumem $argv"
"""


def completed(shell, *words):
    """What the shell offers in place of the last word."""
    if not shutil.which(shell):
        raise Skipped(f"{shell} is not installed")
    command = {"bash": ["bash", "--norc", "-c", BASH, "bash"], "zsh": ["zsh", "-f", "-c", ZSH, "zsh"],
               "fish": ["fish", "--no-config", "-c", FISH]}[shell]
    result = subprocess.run([*command, *words], text=True, capture_output=True, check=False, stdin=subprocess.DEVNULL, env=environment(
        COMPLETIONS=COMPLETIONS, PATH=f"{Path(PROGRAM).resolve().parent}:{os.environ['PATH']}"))
    require(result.stderr == "", result.stderr)
    return [line.split("\t")[0] for line in result.stdout.splitlines() if line]


def require_completion(shell):
    """All that the help has, and no more."""
    require(sorted(completed(shell, "")) == sorted(COMMANDS), str(completed(shell, "")))
    require(sorted(completed(shell, "help", "")) == sorted(COMMANDS), str(completed(shell, "help", "")))
    for command in COMMANDS:
        options = re.findall(r"^  (-\S+)", run(command, "--help", variables={"COLUMNS": 10000}).out, re.MULTILINE)
        # A lone - stands for both kinds; fish is asked for all, since it offers the long ones after -- alone.
        found = {*completed(shell, command, "-"), *completed(shell, command, "--")}
        require(found == {name for option in options for name in option.split(",")}, f"{command}: {found}")


def case_bash_completes_what_the_help_has():
    require_completion("bash")
    for words, expected in (
            (("move", "--kind", ""), list(KINDS)), (("info", "--backend", ""), ["any", "cuda", "host"]),
            (("info", "--backend", "=", "c"), ["cuda"]), (("info", "--backend", "="), ["any", "cuda", "host"]),
            (("hub", ""), ["list", "withdraw"]),
            (("trace", ""), ["record", "show", "replay", "html"]), (("trace", "replay", "--pool", ""), ["device", "pinned", "managed", "pageable"]),
            (("info", "--device", ""), []), (("nothing", ""), [])):
        require(completed("bash", *words) == expected, f"{words}: {completed('bash', *words)}")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a folder").mkdir()
        Path(folder, "a file").touch()
        both, start = [f"{folder}/a file", f"{folder}/a folder"], f"{folder}/a"
        for words, expected in ((("move", start), both), (("bench", "--traces", start), both[1:]), (("trace", "show", start), both),
                                (("trace", "-o", start), both), (("errors", start), [])):
            require(sorted(completed("bash", *words)) == expected, f"{words}: {completed('bash', *words)}")


def case_zsh_completes_what_the_help_has():
    require_completion("zsh")


def case_fish_completes_what_the_help_has():
    require_completion("fish")


# ---- info ----


def case_info_for_people():
    outcome = run_host("info", "--all")
    require(outcome.status == 0 and outcome.err == "", str(outcome))
    for pattern in (r"^  cuda +(un)?usable", r"^  host +usable", r"^Device 0 of host: ", r"^  uuid +[0-9a-f-]{36}$",
                    r"^  memory +4 GiB, ", r"^  CAPABILITY +VALUE +FROM +REASON$", r"^  pin\.map_host +yes "):
        require(re.search(pattern, outcome.out, re.MULTILINE), f"nothing matches {pattern}\n{outcome}")


def case_info_for_programs():
    report = run_host("info", "--json", variables={"GPUMEM_HOST_DEVICES": 3, "GPUMEM_HOST_DEVICE_BYTES": 64 * MIB}).json()
    require([backend["name"] for backend in report["backends"]] == ["cuda", "host"], str(report))
    require(report["backend"] == "host" and len(report["devices"]) == 3, str(report))
    require(len({device["uuid"] for device in report["devices"]}) == 3, "the devices share a uuid")
    for ordinal, device in enumerate(report["devices"]):
        require(device["ordinal"] == ordinal, str(device))
        require(device["free_bytes"] <= device["total_bytes"] == 64 * MIB, str(device))
        names = [capability["name"] for capability in device["capabilities"]]
        require(len(names) == len(set(names)), f"a capability is listed twice: {names}")
        peers = {f"peer.access {other}" for other in range(3) if other != ordinal}
        known = {"uva", "pin.register", "copy.engines", "copy.batch", "man.alloc", "vmm.device", "vmm.handle_posix_fd", "vmm.handle_fabric"}
        require(known | peers <= set(names), f"something is missing: {names}")
        for capability in device["capabilities"]:
            require(capability["source"] in ("attribute", "trial", "configuration", "contract"), str(capability))
            require(capability["reason"], f"no reason: {capability}")
            refused = capability["value"] == "no"
            require(refused == (capability["status"] != "GPUMEM_SUCCESS"), f"value and status disagree: {capability}")


def case_info_of_one_device():
    report = run_host("info", "--json", "--device", "1").json()
    require([device["ordinal"] for device in report["devices"]] == [1], str(report))


def case_info_of_a_device_that_is_not_there():
    outcome = run_host("info", "--device", "9")
    require(outcome.status == 1 and "GPUMEM_ERROR_INVALID_ARGUMENT" in outcome.err, str(outcome))


def case_info_says_why_cuda_is_unusable():
    answers = {backend["name"]: backend for backend in run_host("info", "--json").json()["backends"]}
    cuda = answers["cuda"]
    if cuda["usable"]:
        require(cuda["device_count"] > 0 and re.fullmatch(r"\d+\.\d+", cuda["driver"]), str(cuda))
        return
    require(cuda["status"].startswith("GPUMEM_ERROR_") and cuda["code"] < 0, str(cuda))
    require(cuda["reason"] and cuda["remedy"], f"no reason or remedy: {cuda}")
    outcome = run_host("info")
    for text in (cuda["status"], cuda["reason"]):
        require(text in words_of(outcome.out), f"{text!r} is missing\n{outcome}")
    require_one_remedy(outcome, cuda)
    for more in ([], ["--all"], ["--json"]):
        outcome = run("info", "--backend", "cuda", *more)
        require(outcome.status == 1 and outcome.err == f"gpumem: {cuda['status']}: {cuda['reason']}\n", str(outcome))
    outcome = run("info", "--backend", "cuda", "--json")
    require(outcome.status == 1 and cuda["status"] in outcome.err, str(outcome))
    require(json.loads(outcome.out)["devices"] == [], str(outcome))


def require_one_remedy(outcome, cuda):
    """What to do is behind a semicolon of the reason, which is said once, and the one of the status is not beside it."""
    shown = words_of(outcome.out + outcome.err)
    require(";" in cuda["reason"] and shown.count(cuda["reason"]) == 1 and cuda["remedy"] not in shown,
            f"not one remedy\n{outcome}")


def case_info_says_what_to_do_about_a_driver_that_cannot_start():
    if FAKE_CUDA is None:
        raise Skipped("the cuda backend is not built")
    for code in (3, 100, 999):  # CUDA_ERROR_NOT_INITIALIZED, _NO_DEVICE and _UNKNOWN
        variables = {"LD_LIBRARY_PATH": FAKE_CUDA, "FAKE_CUDA_FAIL": f"cuInit:1:always:{code}"}
        cuda = run_host("info", "--json", variables=variables).json()["backends"][0]
        require(not cuda["usable"], str(cuda))
        require_one_remedy(run_host("info", variables=variables), cuda)


def case_info_is_short_unless_all_is_wanted():
    outcome = run_host("info", variables={"GPUMEM_HOST_DEVICES": 3, "GPUMEM_HOST_DEVICE_BYTES": 64 * MIB})
    require(outcome.status == 0 and len(outcome.out.splitlines()) < 20, str(outcome))
    for pattern in (r"^  cuda +(un)?usable", r"^  host +usable", r"^Devices of host$", r"^  2 +64 MiB, .* free  \S", r"info --all"):
        require(re.search(pattern, outcome.out, re.MULTILINE), f"nothing matches {pattern}\n{outcome}")
    whole = run_host("info", "--all").out
    for capability in run_host("info", "--json").json()["devices"][0]["capabilities"]:
        require(capability["name"] in whole and capability["name"] not in outcome.out, capability["name"])


def case_tables_fit_the_terminal():
    whole = run_host("info", "--all", variables={"COLUMNS": 1000}).out
    require(max(map(len, whole.splitlines())) > 80, "nothing needs to be wrapped")
    for columns in (60, 80, 100):
        shown = run_host("info", "--all", variables={"COLUMNS": columns}).out
        require_within(columns, shown)
        require(sorted(words_of(shown).split()) == sorted(words_of(whole).split()), f"a word is broken\n{shown}")
    require(run_host("info", "--all").out == run_host("info", "--all", variables={"COLUMNS": 80}).out, "unknown is not 80 columns")
    for columns in ("0", "many", "-3"):
        require(run_host("info", "--all", variables={"COLUMNS": columns}).out == run_host("info", "--all").out, f"COLUMNS={columns}")
    for columns in (20, 40):
        narrow = run_host("info", "--all", variables={"COLUMNS": columns}).out
        require_within(columns, narrow)
        require(re.search(r"^  pin\.map_host\n    VALUE: yes\n    FROM: ", narrow, re.MULTILINE), narrow)
    require_within(40, run_host("info", variables={"COLUMNS": 40}).out)
    for command in ("info", "errors"):
        require(run(command, variables={"COLUMNS": 1}).out == run(command, variables={"COLUMNS": 20}).out, "below 20 columns")
    require_within(80, run("errors").out)
    require_within(50, run("errors", variables={"COLUMNS": 50}).out)


def case_the_terminal_knows_its_width():
    main, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 64, 0, 0))
    with open(end, "wb", closefd=True) as terminal:
        require(run_host("info", stdout=terminal).status == 0, "info failed")
    shown = b""
    with contextlib.suppress(OSError):  # How Linux reports that the other end is closed.
        while piece := os.read(main, 65536):
            shown += piece
    os.close(main)
    shown = shown.decode().replace("\r\n", "\n")
    require(shown == run_host("info", variables={"COLUMNS": 64}).out, shown)


def case_a_terminal_shows_errors_within_its_width():
    wrong = ("info", "--backend", "host", "--device", "7")
    problem = run(*wrong, variables={"GPUMEM_HOST_DEVICES": 2}).err
    require(len(problem) > 40, problem)
    main, end = pty.openpty()
    with open(end, "wb", closefd=True) as terminal:
        result = subprocess.run([PROGRAM, *wrong], env=environment(GPUMEM_HOST_DEVICES=2, COLUMNS=40), stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=terminal, check=False)
    shown = os.read(main, 65536).decode().replace("\r\n", "\n")
    os.close(main)
    require(result.returncode == 1 and shown.count("\n") > 1 and words_of(shown) == words_of(problem), shown)
    require_within(40, shown)


def case_the_environment_counts():
    report = run("info", "--json", variables={"GPUMEM_BACKEND": "host", "GPUMEM_HOST_DEVICE_BYTES": 16 * MIB}).json()
    require(report["backend"] == "host" and report["devices"][0]["total_bytes"] == 16 * MIB, str(report))
    outcome = run("info", "--backend", "host", variables={"GPUMEM_HOST_DEVICES": "many"})
    require(outcome.status == 1 and "GPUMEM_HOST_DEVICES" in outcome.err, str(outcome))


# ---- errors ----


def header_statuses():
    text = STATUS_HEADER.read_text(encoding="utf-8")
    pattern = r"^#define (GPUMEM_(?:SUCCESS|NOT_READY|NO_EFFECT|ERROR_(?!INIT)\w+)) \(?(-?\d+)\)?"
    return {name: int(code) for name, code in re.findall(pattern, text, re.MULTILINE)}


def case_errors_lists_each_status_of_the_header():
    listed = run("errors", "--json").json()
    require({status["name"]: status["code"] for status in listed} == header_statuses(), str(listed))
    for status in listed:
        require(status["cause"] and status["remedy"], f"no cause or remedy: {status}")


def case_errors_finds_one_by_number_or_name():
    for code in ("-301", "301", "GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY", "out_of_device_memory"):
        outcome = run("errors", code)
        require(outcome.status == 0 and outcome.out.startswith("GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY (-301)\n"),
                f"{code}: {outcome}")
    for code in ("success", "0"):
        (status,) = run("errors", "--json", code).json()
        require(status["name"] == "GPUMEM_SUCCESS", str(status))


def case_errors_does_not_know_everything():
    for code in ("-7", "12345678901234", "nothing", "30"):
        require_failure(run("errors", code), 1, code, "(gpumem errors lists them)")
    require_failure(run("errors", ""), 1, '""', "(gpumem errors lists them)")


def case_errors_as_markdown():
    rows = run("errors", "--markdown").out.splitlines()
    listed = run("errors", "--json").json()
    require(len(rows) == len(listed) + 2, f"{len(rows)} rows")
    for row, status in zip(rows[2:], listed):
        expected = f"| `{status['name']}` | {status['code']} | {status['cause']} | {status['remedy']} |"
        require(row == expected, f"{row!r} is not {expected!r}")


# ---- out of memory ----


def case_a_lack_of_memory_is_an_error():
    if SHORT_OF_MEMORY == "-":
        raise Skipped("a sanitizer has an allocator of its own")

    def run_with(allocations, *arguments):
        return run(*arguments, variables={"LD_PRELOAD": SHORT_OF_MEMORY, "TEST_ALLOCATIONS": allocations})

    # Before main() nothing can be reported.
    first = next(count for count in range(0, 20000, 20) if run_with(count, "--version").status == 0)
    for arguments in (["errors", "--json"], ["info", "--backend", "host", "--json"], ["info", "--backend", "host", "--all"]):
        whole = run(*arguments).out
        allocations, failures = first, 0
        while (outcome := run_with(allocations, *arguments)).status != 0:
            require(outcome.status == 1 and re.search(r"^gpumem: .*(out of memory|OUT_OF_HOST_MEMORY)", outcome.err),
                    f"{arguments} after {allocations} allocations: {outcome}")
            failures += 1
            allocations += 1 + allocations // 50
        require(failures > 5, f"{arguments}: only {failures} failures")
        if arguments[0] == "errors":
            require(outcome.out == whole, str(outcome))


# ---- move ----


def case_move_for_people():
    with tempfile.TemporaryDirectory() as folder:
        path = make_file(folder, 3 * MIB + 5)
        outcome = run_host("move", path)
    require(outcome.status == 0 and outcome.err == "", str(outcome))
    require(f"{path}: {3 * MIB + 5} bytes (3 MiB)\nXXH3 " in outcome.out, str(outcome))
    for kind in KINDS:
        require(re.search(rf"^{kind}( +\d+\.\d+){{6}}  verified$", outcome.out, re.MULTILINE), f"{kind}\n{outcome}")


def case_move_fits_the_terminal():
    with tempfile.TemporaryDirectory() as folder:
        path = make_file(folder, 5000)
        for columns in (20, 40, 60):
            outcome = run_host("move", path, variables={"COLUMNS": columns})
            require(outcome.status == 0, str(outcome))
            require_within(columns, outcome.out)
            for kind in KINDS:
                pattern = rf"^{kind}\n  TO DEVICE: \d+\.\d+\n(  [A-Z]+: \d+\.\d+\n){{5}}  BYTES: verified$"
                require(re.search(pattern, outcome.out, re.MULTILINE), f"{kind}\n{outcome}")
        outcome = run_host("move", path, variables={"COLUMNS": 40, "GPUMEM_HOST_MASKED": "register"})
        require(re.search(r"^registered\n  BYTES: GPUMEM", outcome.out.replace("BYTES:\n    ", "BYTES: "), re.MULTILINE),
                str(outcome))
        require_within(80, run_host("move", path).out)


def case_move_says_when_there_is_no_gpu():
    if FAKE_CUDA is None:
        raise Skipped("the cuda backend is not built")
    with tempfile.TemporaryDirectory() as folder:
        path = make_file(folder, 5000)
        variables = {"LD_LIBRARY_PATH": FAKE_CUDA, "FAKE_CUDA_FAIL": "cuInit:1:always:100"}
        outcome = run("move", path, variables=variables)
        require(outcome.status == 0 and "No GPU, so the host backend simulates one: " in words_of(outcome.out), str(outcome))
        require_within(80, outcome.out)
        require("No GPU" not in run_host("move", path, variables=variables).out, "the host backend was asked for")


def case_move_tells_how_it_was_asked():
    with tempfile.TemporaryDirectory() as folder:
        path = make_file(folder, 70000)
        for arguments, words in ((["--repeat", "1"], "in flight; one pass in GB/s"),
                                 (["--repeat", "2"], "in flight; median of 2 passes in GB/s"),
                                 (["--chunk", "1TiB"], "Chunks of 68.36 KiB (the whole file, not 1 TiB), 1 in flight")):
            outcome = run_host("move", "--kind", "pageable", *arguments, path)
            require(outcome.status == 0 and words in words_of(outcome.out), str(outcome))
        for chunk, size in (("64K", 64000), ("64k", 64000), ("64kB", 64000), ("64 KB", 64000), ("64KiB", 65536), ("64ki", 65536),
                            ("4096", 4096), ("5000B", 5000)):
            report = run_host("move", "--kind", "pageable", "--repeat", "1", "--json", "--chunk", chunk, path).json()
            require(report["chunk_bytes"] == size, f"{chunk}: {report}")


def case_move_of_any_size():
    chunk = 64 * 1024
    with tempfile.TemporaryDirectory() as folder:
        for size in (1, chunk - 1, chunk, chunk + 1, 4 * chunk, 4 * chunk + 1, 9 * chunk + 77):
            report = run_host("move", "--json", "--repeat", "2", "--chunk", "64KiB", make_file(folder, size)).json()
            require(report["bytes"] == size and report["repeat"] == 2, str(report))
            require(report["chunk_bytes"] == min(chunk, size), str(report))
            require_all_verified(report)


def case_move_of_a_file_larger_than_the_device():
    with tempfile.TemporaryDirectory() as folder:
        report = run_host("move", "--json", "--repeat", "1", make_file(folder, 40 * MIB + 1),
                          variables={"GPUMEM_HOST_DEVICE_BYTES": 8 * MIB}).json()
    require(report["chunk_bytes"] * report["chunks_in_flight"] < 8 * MIB, str(report))
    require_all_verified(report)


def case_move_hashes_the_contents():
    with tempfile.TemporaryDirectory() as folder:
        path = make_file(folder, MIB)
        same = make_file(folder, 0, "same")
        same.write_bytes(path.read_bytes())
        other = make_file(folder, 0, "other")
        other.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))
        hashes = [run_host("move", "--json", "--kind", "pageable", "--repeat", "1", file).json()["xxh3_128"]
                  for file in (path, same, other)]
    require(hashes[0] == hashes[1] != hashes[2], str(hashes))
    require(all(re.fullmatch(r"[0-9a-f]{32}", text) for text in hashes), str(hashes))


def case_move_by_chosen_kinds():
    with tempfile.TemporaryDirectory() as folder:
        report = run_host("move", "--kind", "registered", "--json", "--kind", "pageable", make_file(folder, 1000)).json()
    require_all_verified(report, ["pageable", "registered"])


def case_move_to_another_device():
    with tempfile.TemporaryDirectory() as folder:
        path = make_file(folder, 1000)
        report = run_host("move", "--json", "--device", "1", path).json()
        require(report["device"]["ordinal"] == 1, str(report))
        require_failure(run_host("move", "--device", "2", path), 1, "GPUMEM_ERROR_INVALID_ARGUMENT")


def case_move_without_a_kind_that_cannot_be_had():
    with tempfile.TemporaryDirectory() as folder:
        path = make_file(folder, 1000)
        masked = {"GPUMEM_HOST_MASKED": "register"}
        report = run_host("move", "--json", path, variables=masked).json()
        verified = {item["kind"]: item["verified"] for item in report["paths"]}
        require(verified == {kind: kind != "registered" for kind in KINDS}, str(report))
        outcome = run_host("move", path, variables=masked)
        require(re.search(r"^registered( +-){6}\n +GPUMEM_ERROR_SYMBOL_MISSING: ", outcome.out, re.MULTILINE), str(outcome))
        require("(pin.register is no)" in words_of(outcome.out), str(outcome))
        require_failure(run_host("move", "--kind", "registered", path, variables=masked), 1,
                        "GPUMEM_ERROR_SYMBOL_MISSING")


def case_move_within_limits():
    with tempfile.TemporaryDirectory() as folder:
        path = make_file(folder, MIB)
        report = run_host("move", "--json", path, variables={"GPUMEM_PIN_BUDGET": 10}).json()
        for item in report["paths"]:
            require(item["verified"] == (item["kind"] in ("pageable", "managed")), str(report))
            require(item["verified"] or "pin budget of 10 bytes" in item["reason"], str(report))
        report = run_host("move", "--json", path, variables={"GPUMEM_PIN_BUDGET": MIB}).json()
        verified = [item["kind"] for item in report["paths"] if item["verified"]]
        require(verified == ["pageable", "pinned", "managed"], str(report))
        require_failure(run_host("move", "--kind", "pinned", path, variables={"GPUMEM_PIN_BUDGET": 4096}), 1,
                        "or raise GPUMEM_PIN_BUDGET")
        outcome = run_host("move", "--kind", "pageable", path, variables={"GPUMEM_PIN_BUDGET": 4096})
        require(outcome.status == 0, str(outcome))
        require_failure(run_host("move", "--chunk", "1GiB", make_sparse_file(folder, 1 << 30),
                                 variables={"GPUMEM_HOST_DEVICE_BYTES": 64 * MIB}), 1,
                        "GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY")


def case_move_needs_a_regular_file_with_bytes():
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        pipe = folder / "pipe"
        os.mkfifo(pipe)
        for path, words in ((folder / "none", "No such file"), (folder, "is a directory"),
                            (pipe, "is not a regular file"), (make_file(folder, 0, "empty"), "is empty"),
                            (Path("/dev/null"), "is not a regular file"), (make_file(folder, 1) / "x", "Not a directory")):
            require_failure(run_host("move", path), 1, str(path), words)
        empty = folder / "empty"
        require_failure(run_host("move", empty), 1, f"the file {empty} is empty, or does not know its size: give one with at least one byte")


def case_move_needs_a_readable_file():
    def as_nobody():
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)

    try:
        usable = run("--version", preexec_fn=as_nobody).status == 0
    except PermissionError:
        usable = False
    if not usable:
        raise Skipped("an ordinary user may not run the program from where it lies")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = make_file(folder, 1)
        os.chmod(path, 0)
        require_failure(run_host("move", path, preexec_fn=as_nobody), 1, str(path), "Permission denied")


def case_move_of_a_file_that_shrinks():
    with tempfile.TemporaryDirectory() as folder:
        path = make_sparse_file(folder, 2 << 30)
        with on_terminal("move", "--backend", "host", "--kind", "pageable", path) as (process, read_until):
            read_until("|----|")
            os.truncate(path, 4096)
            shown = read_until()
            out, status = process.stdout.read(), process.wait()
    require(status == 1 and out == b"", f"exit status {status}: {out} {shown}")
    require(re.search(rf" gpumem: {path} has shrunk while it was read: it had {2 << 30} bytes, and ends after \d+$",
                      words_of(shown)), shown)


def case_move_of_a_file_that_vanishes():
    # A file that is open stays readable when its name is gone.
    with tempfile.TemporaryDirectory() as folder:
        path = make_sparse_file(folder, 256 * MIB)
        with on_terminal("move", "--backend", "host", "--kind", "pageable", "--repeat", "1", "--json",
                         path) as (process, read_until):
            read_until("|----|")
            path.unlink()
            report = Outcome(0, process.stdout.read().decode(), read_until())
            require(process.wait() == 0, str(report))
    require_all_verified(report.json(), ["pageable"])


def stop_by(number):
    with tempfile.TemporaryDirectory() as folder:
        path = make_sparse_file(folder, 2 << 30)
        with on_terminal("move", "--backend", "host", path) as (process, read_until):
            read_until("|----|")
            process.send_signal(number)
            shown = read_until()
            out, status = process.stdout.read(), process.wait()
    require(status == 130 and out == b"", f"exit status {status}: {out} {shown}")
    require(shown.endswith("\ngpumem: interrupted; everything was freed\n"), shown)


def case_move_stopped_by_ctrl_c():
    stop_by(signal.SIGINT)


def case_move_stopped_by_sigterm():
    stop_by(signal.SIGTERM)


def case_move_goes_on_where_signals_are_ignored():
    def ignore():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    with tempfile.TemporaryDirectory() as folder:
        path = make_sparse_file(folder, 128 * MIB)
        with on_terminal("move", "--backend", "host", "--kind", "pageable", "--repeat", "1", "--json", path,
                         preexec_fn=ignore) as (process, read_until):
            read_until("|----|")
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
            report = Outcome(0, process.stdout.read().decode(), read_until())
            require(process.wait() == 0, str(report))
    require_all_verified(report.json(), ["pageable"])


def case_move_shows_progress_on_a_terminal_only():
    with tempfile.TemporaryDirectory() as folder:
        path = make_file(folder, 3 * MIB)
        with on_terminal("move", "--backend", "host", "--json", path) as (process, read_until):
            shown = read_until()
            report = Outcome(0, process.stdout.read().decode(), shown)
            require(process.wait() == 0, str(report))
        piped = run_host("move", "--json", path)
    require_all_verified(report.json())
    require(re.fullmatch(r"0% .* 100%\n\|[-|]+\|\n\*{51}\n", shown), shown)
    require(piped.status == 0 and piped.err == "", str(piped))


def case_progress_fits_the_terminal():
    with tempfile.TemporaryDirectory() as folder:
        path = make_file(folder, 3 * MIB)
        with on_terminal("move", "--backend", "host", "--json", path, COLUMNS=40) as (process, read_until):
            shown = read_until()
            process.stdout.read()
            require(process.wait() == 0, shown)
    steps = [int(step) for step in re.findall(r"(\d+)%", shown)]
    require(re.fullmatch(r"0%(\r\d+%)+\n", shown) and steps == sorted(steps) and steps[-1] == 100, repr(shown))


def case_move_of_a_file_whose_name_is_not_utf8():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(os.fsencode(folder), b"\xff\xfe")
        Path(os.fsdecode(path)).write_bytes(b"bytes")
        require_all_verified(run_host("move", "--json", os.fsdecode(path)).json())


def case_info_of_a_fake_gpu():
    with fake_driver() as variables:
        report = run("info", "--json", variables=variables).json()
    cuda = report["backends"][0]
    require(report["backend"] == "cuda" and cuda["usable"] and cuda["device_count"] == 1, str(report))
    require(re.fullmatch(r"\d+\.\d+", cuda["driver"]), str(cuda))
    require(re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.0", report["devices"][0]["pci_id"].lower()), str(report))


def case_move_on_a_fake_gpu():
    with tempfile.TemporaryDirectory() as folder:
        path = make_file(folder, 5 * MIB + 3)
        for arguments in ([], ["--chunk", "64KiB", "--repeat", "2"]):
            with fake_driver() as variables:
                report = run("move", "--json", path, *arguments, variables=variables).json()
            require(report["backend"] == "cuda" and report["raw"] == "the CUDA driver", str(report))
            require_all_verified(report)
        require(report["chunks_in_flight"] == 4, str(report))


def case_move_of_managed_memory_times_the_migration():
    with tempfile.TemporaryDirectory() as folder:
        path = make_file(folder, 64 * 1024)
        everything = ["move", "--json", "--repeat", "1", path]
        with fake_driver() as variables:
            report = run(*everything, variables=variables).json()
        with fake_driver() as variables:
            printed = run("move", path, variables=variables)
        require_all_verified(report)
        for item in report["paths"]:
            require(item["measured"] == ("migration" if item["kind"] == "managed" else "copy"), str(item))
        require(re.search(r"^managed( +\d+\.\d+){6}( +|\n +)verified, migrated$", printed.out, re.MULTILINE), str(printed))
        require("not of a copy" in words_of(printed.out) and printed.out.count("migrated") == 1, str(printed))
        # A trial, and for each side a trip to the device and back that is not timed, and two that are.
        for number, status in ((13, 1), (14, 0)):
            with fake_driver() as variables:
                rule = {"FAKE_CUDA_FAIL": f"cuMemPrefetchAsync_v2:{number}:once:999"}
                outcome = run("move", "--kind", "managed", "--repeat", "2", path, variables={**variables, **rule})
            require(outcome.status == status, f"call {number}\n{outcome}")
        # Without concurrent access there are no prefetches.
        with fake_driver() as variables:
            report = run(*everything, variables={**variables, "FAKE_CUDA_ATTRIBUTE_89": "0"}).json()
        require_all_verified(report)
        require({item["measured"] for item in report["paths"]} == {"copy"}, str(report))
        # An older driver has them by another name, which is not what the header declares.
        with fake_driver() as variables:
            old = {**variables, "FAKE_CUDA_VERSION": "11.8"}
            report = run("move", "--json", "--kind", "managed", "--repeat", "1", path, variables=old).json()
        require(report["paths"][0]["measured"] == "migration" and report["paths"][0]["to_device"]["raw"] is None, str(report))
        require(report["note"] == "managed: the CUDA driver has no cuMemPrefetchAsync_v2", str(report))
    report = None
    with tempfile.TemporaryDirectory() as folder:
        report = run_host("move", "--json", make_file(folder, 1000)).json()
    require({item["measured"] for item in report["paths"]} == {"copy"}, str(report))


def case_move_frees_everything_after_a_failure():
    with tempfile.TemporaryDirectory() as folder:
        path = make_file(folder, MIB)
        for number in (1, 4, 9):
            with fake_driver() as variables:
                rule = {"FAKE_CUDA_FAIL": f"cuMemcpyAsync:{number}:once:999"}
                require_failure(run("move", path, variables={**variables, **rule}), 1)


def case_move_wakes_a_buffer_or_frees_everything():
    with tempfile.TemporaryDirectory() as folder:
        path = make_file(folder, 8 * MIB)
        short = 0
        for number in range(1, 20):
            with fake_driver() as variables:
                rule = {"FAKE_CUDA_FAIL": f"cuMemCreate:{number}:once:2"}
                outcome = run("move", "--kind", "buffer", "--repeat", "1", path, variables={**variables, **rule})
            if outcome.status == 0:
                break
            require_failure(outcome, 1)
            short += "GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY" in outcome.err
    # One in the trial of the capability, four while it grows; the others when it wakes.
    require(outcome.status == 0 and short > 5, f"{short} failures\n{outcome}")


def case_move_frees_everything_after_ctrl_c():
    with tempfile.TemporaryDirectory() as folder:
        path = make_sparse_file(folder, 2 << 30)
        for moment in ("|----|", "*"):  # before the first copies, or in them; and behind some
            with fake_driver() as variables, on_terminal("move", path, **variables) as (process, read_until):
                read_until(moment)
                process.send_signal(signal.SIGINT)
                shown = read_until()
                require(process.wait() == 130 and "everything was freed" in shown, shown)


def case_move_on_the_gpu():
    cuda = run_host("info", "--json").json()["backends"][0]
    if not cuda["usable"]:
        raise Skipped(cuda["reason"])
    with tempfile.TemporaryDirectory() as folder:
        require_all_verified(run("move", "--backend", "cuda", "--json", make_file(folder, 300 * MIB + 3)).json())


# ---- share, attach, hub, keep ----


@contextlib.contextmanager
def staying(*arguments, variables=None, program=(PROGRAM,), pass_fds=()):
    """A command that says something and stays; yields the process and what it said, as one line. The program's own commands
    say in the end what ends them."""
    with subprocess.Popen([*program, *map(os.fspath, arguments)], env=environment(**(variables or {})), pass_fds=pass_fds,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            lines = [process.stdout.readline().decode()]
            own = arguments[0] in COMMANDS
            while own and lines[-1] and not lines[-1].startswith("Stays until "):
                require_within(80, lines[-1])
                lines.append(process.stdout.readline().decode())
            line = words_of("".join(lines[:-1] if own else lines)) + "\n"
            if not lines[-1]:
                raise Failed(f"exit status {process.wait()}\n{process.stderr.read().decode()}")
            yield process, line
        finally:
            process.kill()


def require_end(process, number=signal.SIGTERM):
    """A signal ends it, and it says nothing more."""
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    outcome = Outcome(process.returncode, out.decode(), err.decode())
    require(outcome.status == 0 and outcome.out == "" and outcome.err == "", str(outcome))


def listed(hub, variables=None):
    return run("hub", "list", "--json", "--hub", hub, variables=variables).json()


def share_and_attach(backend, variables_of):
    """Another process gets the bytes of a file; variables_of() yields the variables of one process."""
    with tempfile.TemporaryDirectory() as folder:
        hub, copy = Path(folder) / "hub", Path(folder) / "copy"
        path = make_file(folder, 17 * MIB + 3)
        with variables_of() as variables, staying("share", path, "--name", "gr\u00fcn", "--hub", hub, "--backend", backend,
                                                  variables=variables) as (process, line):
            found = re.fullmatch(rf"gr\u00fcn version 1: {17 * MIB + 3} bytes of {path}, XXH3 ([0-9a-f]{{32}}), at {hub}\n", line)
            require(found, line)
            for target in ([], [copy]):
                with variables_of() as importer:
                    outcome = run("attach", "--name", "gr\u00fcn", "--hub", hub, "--backend", backend, *target, variables=importer)
                written = f", written to {copy}" if target else ""
                require(outcome.status == 0 and outcome.err == "", str(outcome))
                require_within(80, outcome.out)
                require(words_of(outcome.out) == f"gr\u00fcn version 1: {17 * MIB + 3} bytes verified, XXH3 {found[1]}{written}", str(outcome))
            require(copy.read_bytes() == path.read_bytes(), "other bytes were written")
            require_end(process)
        require(not hub.exists(), "the socket file is left")
        report = run_host("move", "--json", "--kind", "pageable", "--repeat", "1", path).json()
        require(report["xxh3_128"] == found[1], "not the hash that move shows")


def case_what_ends_a_keeper_is_said_and_does():
    for ignored, says, ends in ((False, "Stays until Ctrl-C or SIGTERM.", signal.SIGHUP), (True, "Stays until SIGTERM.", signal.SIGTERM)):
        with tempfile.TemporaryDirectory() as folder:
            hub = Path(folder) / "hub"
            program = ("sh", "-c", "trap '' INT; exec \"$0\" \"$@\"", PROGRAM) if ignored else (PROGRAM,)
            with subprocess.Popen([*program, "keep", "--hub", hub], env=environment(), stdout=subprocess.PIPE, text=True) as process:
                process.stdout.readline()
                last = process.stdout.readline().strip()
                require(last == says and hub.exists(), last)
                if ignored:
                    process.send_signal(signal.SIGINT)
                process.send_signal(ends)
                require(process.wait() == 0 and not hub.exists(), f"{process.returncode} {hub.exists()}")


def case_share_and_attach():
    share_and_attach("host", lambda: contextlib.nullcontext({}))


def case_share_and_attach_on_a_fake_gpu():
    share_and_attach("cuda", fake_driver)


def case_share_in_the_default_hub():
    with tempfile.TemporaryDirectory() as folder:
        variables = {"XDG_RUNTIME_DIR": folder}
        path = make_file(folder, 5000)
        with staying("share", path, "--name", "n", "--backend", "host", variables=variables) as (process, line):
            require(line.endswith(f", at {folder}/gpumem/default\n"), line)
            require(run_host("attach", "--name", "n", variables=variables).status == 0, "cannot attach")
            outcome = run("hub", "list", variables=variables)
            require(outcome.status == 0 and outcome.out.startswith(f"Hub {folder}/gpumem/default, process {process.pid}\n"),
                    str(outcome))
            require_failure(run_host("share", path, "--name", "m", variables=variables), 1, "GPUMEM_ERROR_ALREADY_EXISTS",
                            "start gpumem keep and pass --keep")
            require_end(process, signal.SIGINT)


def case_share_ends_with_its_input():
    with tempfile.TemporaryDirectory() as folder:
        path = make_file(folder, 5000)
        with staying("share", path, "--name", "n", "--hub", f"{folder}/hub", "--backend", "host", "--wait-stdin") as (process, _):
            process.stdin.write(b"not yet\n")
            process.stdin.flush()
            require(run_host("attach", "--name", "n", "--hub", f"{folder}/hub").status == 0, "it did not stay")
            out, err = process.communicate(timeout=60)
            require((process.returncode, out, err) == (0, b"", b""), f"{process.returncode}: {out} {err}")
        # One that is closed has ended.
        command = [PROGRAM, "share", path, "--name", "n", "--hub", f"{folder}/hub", "--backend", "host", "--wait-stdin"]
        ended = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", *command], env=environment(), timeout=60, check=False, stdout=subprocess.PIPE)
        require(ended.returncode == 0 and b"until the standard input ends" in ended.stdout, str(ended))


def case_attach_waits_for_the_hub():
    with tempfile.TemporaryDirectory() as folder:
        path = make_file(folder, 2 * MIB)
        with subprocess.Popen([PROGRAM, "attach", "--name", "n", "--hub", f"{folder}/hub", "--timeout", "600", "--backend", "host"],
                              env=environment(), stdout=subprocess.PIPE) as waiting:
            try:
                with staying("share", path, "--name", "n", "--hub", f"{folder}/hub", "--backend", "host") as (process, _):
                    out = waiting.communicate(timeout=120)[0].decode()
                    require(waiting.returncode == 0 and f"{2 * MIB} bytes verified" in out, out)
                    require_end(process)
            finally:
                waiting.kill()


def case_attach_waits_for_a_keeper_that_begins_again():
    with tempfile.TemporaryDirectory() as folder:
        hub, path = f"{folder}/keeper", make_file(folder, 5000)
        with staying("keep", "--hub", hub) as (keeper, _), \
                subprocess.Popen([PROGRAM, "attach", "--name", "n", "--hub", hub, "--timeout", "600", "--backend", "host"],
                                 env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as waiting:
            try:
                while not has_socket(waiting.pid):
                    require(waiting.poll() is None, "it has ended")
                keeper.kill()
                keeper.wait()
                with staying("share", path, "--name", "n", "--hub", hub, "--backend", "host") as (process, _):
                    out, err = waiting.communicate(timeout=120)
                    require(waiting.returncode == 0 and b"5000 bytes verified" in out, f"{out} {err}")
                    require_end(process)
            finally:
                waiting.kill()


def stop(child):
    """Stops it. The signal stops all threads only once one of them has taken it, which a busy machine delays."""
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)


def case_attach_gives_up_in_time():
    """Also where a hub is stopped, before it is asked or while it is."""
    with tempfile.TemporaryDirectory() as folder:
        hub = f"{folder}/keeper"
        with staying("keep", "--hub", hub) as (keeper, _):
            for early in (True, False):
                begin = time.monotonic()
                if early:
                    stop(keeper)
                with subprocess.Popen([PROGRAM, "attach", "--name", "n", "--hub", hub, "--timeout", "2", "--backend", "host"],
                                      env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as waiting:
                    time.sleep(1)
                    stop(keeper)
                    out, err = waiting.communicate(timeout=120)
                took = time.monotonic() - begin
                keeper.send_signal(signal.SIGCONT)
                require_failure(Outcome(waiting.returncode, out.decode(), err.decode()), 1, "GPUMEM_ERROR_BUSY", hub,
                                f"process {keeper.pid}")
                require(took < 4, f"it took {took} s")
            require_end(keeper)


def descriptors(pid):
    """What each descriptor of a process is, by its path in /proc."""
    links = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            links[link] = os.readlink(link)
    return links


def has_socket(pid):
    return any(target.startswith("socket:") for target in descriptors(pid).values())


def case_attach_notices_other_bytes():
    with tempfile.TemporaryDirectory() as folder:
        hub, copy, path = f"{folder}/hub", Path(folder) / "copy", make_file(folder, 5000)
        copy.write_bytes(b"old")
        with staying("share", path, "--name", "n", "--hub", hub, "--backend", "host") as (process, _):
            changed = 0
            for link, target in descriptors(process.pid).items():
                if target.startswith("/memfd:") and path.read_bytes() in link.read_bytes():
                    with open(link, "r+b") as memory:
                        memory.seek(link.read_bytes().index(path.read_bytes()) + 4999)
                        memory.write(bytes([path.read_bytes()[-1] ^ 1]))
                    changed += 1
            require(changed > 0, f"the memory was not found: {descriptors(process.pid)}")
            require_failure(run_host("attach", "--name", "n", "--hub", hub, copy), 1, "other bytes than were published")
            require(copy.read_bytes() == b"old", "wrong bytes were written")
            require_end(process)


def case_attach_can_be_interrupted():
    with tempfile.TemporaryDirectory() as folder:
        with staying("keep", "--hub", f"{folder}/hub") as (keeper, _), \
                subprocess.Popen([PROGRAM, "attach", "--name", "n", "--hub", f"{folder}/hub", "--timeout", "600", "--backend", "host"],
                                 env=environment(), stderr=subprocess.PIPE) as waiting:
            try:
                while not has_socket(waiting.pid):
                    require(waiting.poll() is None, "it has ended")
                waiting.send_signal(signal.SIGINT)
                err = waiting.communicate(timeout=60)[1].decode()
                require(waiting.returncode == 130 and "everything was freed" in err, f"{waiting.returncode}: {err}")
            finally:
                waiting.kill()
            require_end(keeper)


def case_hub_list():
    with tempfile.TemporaryDirectory() as folder:
        hub = f"{folder}/hub"
        with staying("share", make_file(folder, 3_000_000), "--name", "weights", "--hub", hub, "--backend", "host") as (process, line):
            outcome = run("hub", "list", "--hub", hub)
            require(outcome.status == 0 and outcome.err == "", str(outcome))
            require_within(80, outcome.out)
            require(re.search(r"^NAME +VERSION +TYPE +SIZE +WAY +ACCESS +PUBLISHER\s+FINGERPRINT$", outcome.out, re.MULTILINE), str(outcome))
            require(re.search(rf"^weights +1 +memory +2\.861 MiB +posix-fd +read +{process.pid}\s+XXH3 [0-9a-f]{{32}}$", outcome.out, re.MULTILINE), str(outcome))
            report = listed(hub)
            entry, = report["entries"]
            require((report["path"], report["keeper"], report["pid"]) == (hub, False, process.pid), str(report))
            require((entry["name"], entry["version"], entry["type"], entry["way"], entry["access"]) ==
                    ("weights", 1, "memory", "posix-fd", "read"), str(entry))
            require(entry["publisher"] == {"pid": process.pid, "uid": os.getuid(), "gone": False}, str(entry))
            require(re.search(r"XXH3 (\w+)", outcome.out)[1] in line, str(outcome))
            require(entry["bytes"] == 3_000_000 and entry["fingerprint"][:32] in line, str(entry))
            require(int.from_bytes(bytes.fromhex(entry["fingerprint"])[16:24], "little") == 3_000_000, str(entry))
        # Columns are those of the terminal, and not bytes.
        with staying("share", make_file(folder, 1), "--name", "größe", "--hub", hub, "--backend", "host"):
            header, row = run("hub", "list", "--hub", hub).out.splitlines()[2:4]
            require(header.index("TYPE") == row.index("memory"), f"{header}\n{row}")


# A keeper that serves another user, whose child publishes in it as that user.
KEEPER_OF_TWO = """
import os, sys
sys.path.insert(0, sys.argv[1])
import gpumem
path, user = sys.argv[2], int(sys.argv[3])
gpumem.version()  # loads the library, while this is root
open_end, wait_end = os.pipe()
if os.fork() == 0:
    os.read(open_end, 1)
    os.setresuid(user, user, user)
    instance = gpumem.Instance("host")
    buffer = instance.device(0).buffer(4096, handle_types="posix_fd")
    link = instance.connect(path)
    link.publish("theirs", instance.export(buffer))
    # As gpumem share marks it, of a size that the memory does not have.
    link.publish("lie", instance.export(buffer), fingerprint=bytes(16) + (1 << 40).to_bytes(8, "little") + b"gpumem 1")
    print("ready", flush=True)
else:
    instance = gpumem.Instance("host")
    hub = instance.hub(path, flags="keeper", users=[user], mode=0o666)
    os.write(wait_end, b"x")
sys.stdin.read()
"""


def case_a_publisher_of_another_user_that_lies():
    if os.geteuid() != 0:
        raise Skipped("only root has a process of another user")
    if SHORT_OF_MEMORY == "-":
        raise Skipped("a program without the sanitizer cannot load the library")
    user, hub, python = 65534, f"@gpumem-cli-{os.getpid()}-two", Path(__file__).resolve().parents[2] / "bindings/python"
    with staying(python, hub, str(user), program=(sys.executable, "-c", KEEPER_OF_TWO), variables={"GPUMEM_LIBRARY": library_path()}):
        outcome = run("hub", "list", "--hub", hub)
        # What follows is in the next line where the number of the process is long.
        require(len(re.findall(rf" \d+ of user {user}(?: .*)?$", outcome.out, re.MULTILINE)) == 2, str(outcome))
        require([entry["publisher"]["uid"] for entry in listed(hub)["entries"]] == [user, user], str(listed(hub)))
        require(listed(hub)["entries"][0]["bytes"] == 2 * MIB, str(listed(hub)))
        require_failure(run_host("attach", "--name", "lie", "--hub", hub), 1, "lie version 1 has memory of", "1099511627776")


# Publishes a ring with the library alone; prints a line and stays.
RING = """
import ctypes, sys
lib, path = ctypes.CDLL(sys.argv[1]), ctypes.create_string_buffer(sys.argv[2].encode())
NONE = None
def made(function, *before):
    out = ctypes.c_void_p()
    status = getattr(lib, function)(*before, ctypes.byref(out), NONE)
    assert status == 0, (function, status)
    return out
# gpumem_ring_desc with slot_size, gpumem_hub_desc with path.
ring_desc, hub_desc = (ctypes.c_uint64 * 5)(40, 4096), (ctypes.c_uint64 * 13)(104, ctypes.addressof(path))
device = made("gpumem_device_get", made("gpumem_instance_default"), ctypes.c_uint32(0))
ring = made("gpumem_ring_create", device, ring_desc)
hub = made("gpumem_hub_open", made("gpumem_instance_default"), hub_desc)
handle = ctypes.create_string_buffer(256)
assert lib.gpumem_ring_export(ring, handle, NONE) == 0
assert lib.gpumem_hub_publish(hub, b"batches", handle, NONE, NONE, NONE) == 0
print("ready", flush=True)
sys.stdin.read()
"""


def library_path():
    for line in subprocess.run(["ldd", PROGRAM], env=environment(), stdout=subprocess.PIPE, check=True).stdout.decode().splitlines():
        if "libgpumem.so" in line:
            return line.split("=>")[1].split()[0]
    raise Skipped("the library is not a file of its own")


def case_a_ring_is_no_memory():
    if SHORT_OF_MEMORY == "-":
        raise Skipped("a program without the sanitizer cannot load the library")
    with tempfile.TemporaryDirectory() as folder:
        hub = f"{folder}/hub"
        with staying(library_path(), hub, program=(sys.executable, "-c", RING), variables={"GPUMEM_BACKEND": "host"}):
            outcome = run("hub", "list", "--hub", hub)
            require(re.search(r"^batches +1 +ring ", outcome.out, re.MULTILINE), str(outcome))
            require([entry["type"] for entry in listed(hub)["entries"]] == ["ring"], str(listed(hub)))
            require_failure(run_host("attach", "--name", "batches", "--hub", hub), 1, "is of type ring, not memory")


def keep_after_the_publisher(backend, variables_of):
    with tempfile.TemporaryDirectory() as folder:
        hub, copy = f"{folder}/keeper", Path(folder) / "copy"
        path = make_file(folder, 5 * MIB + 1)
        with staying("keep", "--hub", hub) as (keeper, line):
            require(line == f"Keeper at {hub}\n", line)
            outcome = run("hub", "list", "--hub", hub)
            require(outcome.out == f"Keeper {hub}, process {keeper.pid}: nothing is published\n", str(outcome))
            maps = Path(f"/proc/{keeper.pid}/maps").read_text(encoding="utf-8")
            require("libcuda" not in maps, "the keeper has loaded the driver")
            for version in (1, 2):
                with staying("share", path, "--name", "n", "--keep", hub, "--stay", "--backend", backend,
                             variables=variables_of()) as (publisher, line):
                    require(line.startswith(f"n version {version}: "), line)
                    require(listed(hub)["entries"][-1]["publisher"] == {"pid": publisher.pid, "uid": os.getuid(), "gone": False}, str(listed(hub)))
                    publisher.kill()
                    publisher.wait()
                entry = listed(hub)["entries"][-1]
                require(entry["version"] == version and entry["publisher"]["gone"] is True, str(entry))
                require(re.search(rf" was {publisher.pid}\b", run("hub", "list", "--hub", hub).out), "it does not say so")
                outcome = run("attach", "--name", "n", "--hub", hub, "--backend", backend, copy, variables=variables_of())
                require(outcome.status == 0 and outcome.out.startswith(f"n version {version}: "), str(outcome))
                require(copy.read_bytes() == path.read_bytes(), "other bytes were written")
                copy.unlink()
            require_end(keeper)
        require_failure(run("hub", "list", "--hub", hub), 1, "GPUMEM_ERROR_NOT_FOUND")


def case_a_keeper_outlives_its_publisher():
    keep_after_the_publisher("host", dict)


def case_a_keeper_outlives_its_publisher_on_a_fake_gpu():
    if FAKE_CUDA is None:
        raise Skipped("the cuda backend is not built")
    keep_after_the_publisher("cuda", lambda: {"LD_LIBRARY_PATH": FAKE_CUDA})


def case_a_publisher_learns_that_its_keeper_has_ended():
    with tempfile.TemporaryDirectory() as folder:
        hub, path = f"{folder}/keeper", make_file(folder, 5000)
        for number in (signal.SIGTERM, signal.SIGKILL):
            with staying("keep", "--hub", hub) as (keeper, _), \
                    staying("share", path, "--name", "n", "--keep", hub, "--stay", "--backend", "host") as (publisher, _):
                keeper.send_signal(number)
                keeper.wait(timeout=60)
                out, err = publisher.communicate(timeout=60)
                require_failure(Outcome(publisher.returncode, out.decode(), err.decode()), 1,
                                f"the keeper at {hub} has ended, and with it n version 1")


def case_attach_to_a_version():
    with tempfile.TemporaryDirectory() as folder:
        hub, copy = f"{folder}/keeper", Path(folder) / "copy"
        with staying("keep", "--hub", hub) as (keeper, _):

            def share(size):
                require(run_host("share", make_file(folder, size), "--name", "n", "--keep", hub).status == 0, "it is not published")

            def attach(version, timeout=0):
                return run_host("attach", "--name", "n", "--version", version, "--hub", hub, "--timeout", str(timeout), copy)

            for size in (3000, 4000, 5000):
                share(size)
            for version, size in (("2", 4000), ("3", 5000)):
                outcome = attach(version)
                require(outcome.out.startswith(f"n version {version}: {size} bytes verified"), str(outcome))
                require(copy.stat().st_size == size, "other bytes were written")
            require_failure(attach("1"), 1,
                            f"there is no n version 1 at {hub} any more, but newer ones (gpumem hub list --hub {hub} shows them)")
            require_failure(attach("4"), 1,
                            f"there is no n version 4 at {hub} after 0 s (gpumem hub list --hub {hub} shows what is there)")
            require_failure(attach("0"), 2, "--version takes a number from 1")
            later = threading.Timer(0.3, share, [6000])
            later.start()
            outcome = attach("4", 600)
            later.join()
            require(outcome.out.startswith("n version 4: 6000 bytes verified"), str(outcome))
            require_end(keeper)


def case_a_publisher_stays_where_it_is_asked_to():
    with tempfile.TemporaryDirectory() as folder:
        hub, path = f"{folder}/keeper", make_file(folder, 5000)
        with staying("keep", "--hub", hub) as (keeper, _):
            for option in ("--stay", "--wait-stdin"):
                with staying("share", path, "--name", "n", "--keep", hub, option, "--backend", "host") as (publisher, _):
                    require(listed(hub)["entries"][-1]["publisher"] == {"pid": publisher.pid, "uid": os.getuid(), "gone": False}, option)
                    require_end(publisher)
            require_end(keeper)
        require_failure(run_host("share", path, "--name", "n", "--stay", "--hub", hub), 2, "--stay needs --keep")


def case_a_keeper_without_descriptors_says_so():
    """Whoever asks learns that the limit is the keeper's."""
    few = ("sh", "-c", 'ulimit -n 24; exec "$0" "$@"', PROGRAM)
    with tempfile.TemporaryDirectory() as folder:
        hub, path = f"{folder}/keeper", make_file(folder, 5000)
        with staying("keep", "--hub", hub, program=few) as (keeper, _):
            for number in range(24):
                outcome = run_host("share", path, "--name", f"n{number}", "--keep", hub)
                if outcome.status != 0:
                    break
            require_failure(outcome, 1, "GPUMEM_ERROR_LIMIT_EXCEEDED", f"process {keeper.pid} refuses it", "ulimit -n")
            require(keeper.poll() is None, "it has ended")


def case_a_keeper_has_as_many_links_as_it_is_told():
    with tempfile.TemporaryDirectory() as folder:
        hub, path = f"{folder}/keeper", make_file(folder, 5000)
        with staying("keep", "--hub", hub, "--links", "1") as (keeper, _):
            with staying("share", path, "--name", "n", "--keep", hub, "--stay", "--backend", "host") as (publisher, _):
                require_failure(run("hub", "list", "--hub", hub), 1, "GPUMEM_ERROR_LIMIT_EXCEEDED", "links_max = 1")
                require_end(publisher, signal.SIGINT)
            require(keeper.poll() is None, "it has ended")


def case_what_is_kept_can_be_withdrawn():
    with tempfile.TemporaryDirectory() as folder:
        hub, path = f"{folder}/keeper", make_file(folder, 5000)
        with staying("keep", "--hub", hub) as (keeper, _):
            for name in ("a", "a", "b"):
                outcome = run_host("share", path, "--name", name, "--keep", hub)
                require(outcome.status == 0 and outcome.err == "" and outcome.out.startswith(f"{name} version "), str(outcome))

            def left():
                return [(entry["name"], entry["version"]) for entry in listed(hub)["entries"]]

            require(left() == [("a", 1), ("a", 2), ("b", 1)], str(left()))
            outcome = run("hub", "withdraw", "a", "--version", "1", "--hub", hub)
            require((outcome.status, outcome.out, outcome.err) == (0, f"a version 1 is withdrawn from {hub}\n", ""), str(outcome))
            require(left() == [("a", 2), ("b", 1)], str(left()))
            outcome = run("hub", "withdraw", "--hub", hub, "b")
            require((outcome.status, outcome.out) == (0, f"b is withdrawn from {hub}\n"), str(outcome))
            require(left() == [("a", 2)], str(left()))
            for words in (("b",), ("a", "--version", "1")):
                require_failure(run("hub", "withdraw", *words, "--hub", hub), 1, "GPUMEM_ERROR_NOT_FOUND")
            require_end(keeper)
        for words, problem in ((("withdraw",), "needs a NAME"), (("list", "n"), "does not take n"), (("list", "--version", "1"), "--version"),
                               (("withdraw", "n", "--version", "0"), "from 1, not 0"), (("withdraw", "n", "--version", "x"), "from 1, not x"),
                               (("withdraw", "n", "--json"), "--json is for hub list"), (("list", "n", "m"), "does not take m")):
            require_failure(run("hub", *words), 2, problem)
        with staying("share", path, "--name", "n", "--hub", hub, "--backend", "host"):
            require_failure(run("hub", "withdraw", "n", "--hub", hub), 1, "is no keeper", hub)


# Starts a program with the descriptors after the first argument as 3, 4, ..., as a service manager does.
AS_A_SERVICE = """
import os, resource, sys
given = list(map(int, filter(None, sys.argv[1].split(","))))
for number, fd in enumerate(given):
    os.dup2(fd, 3 + number)
    os.close(fd)
os.environ["LISTEN_PID"] = str(os.getpid())
if limit := os.environ.get("NOFILE"):
    resource.setrlimit(resource.RLIMIT_NOFILE, tuple(map(int, limit.split(","))))
os.execv(sys.argv[2], sys.argv[2:])
"""


class ServiceManager:
    """Stores descriptors of a service as systemd does: by name, each open file once."""

    def __init__(self, address):
        self.address, self.store, self.size, self.asked = address, [], 100, threading.Event()
        self.ready = threading.Event()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address.replace("@", "\0", 1))
        self.thread = threading.Thread(target=self.serve)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.send(b"END")
        self.thread.join()
        self.socket.close()
        for _, fd in self.store:
            os.close(fd)

    def send(self, text):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(text, self.socket.getsockname())

    def serve(self):
        while True:
            text, fds, _, _ = socket.recv_fds(self.socket, 4096, 253)
            if text in (b"END", b"ASK"):
                self.asked.set()
                if text == b"END":
                    return
                continue
            said = dict(line.split("=", 1) for line in text.decode().split("\n"))
            if said.get("READY") == "1":
                self.ready.set()
            if said.get("FDSTORE") == "1":
                for fd in fds:
                    if any(os.path.sameopenfile(fd, known) for _, known in self.store) or len(self.store) >= self.size:
                        os.close(fd)
                    else:
                        self.store.append((said["FDNAME"], fd))
            elif said.get("FDSTOREREMOVE") == "1":
                for name, fd in self.store:
                    if name == said["FDNAME"]:
                        os.close(fd)
                self.store = [one for one in self.store if one[0] != said["FDNAME"]]

    def add(self, name, fd):
        self.store.insert(0, (name, fd))

    def names(self):
        """Of what is stored, without their IDs, when all that was sent before has come."""
        self.asked.clear()
        self.send(b"ASK")
        require(self.asked.wait(60), "the thread has ended")
        return sorted(name.rpartition("-")[0] for name, _ in self.store)

    @contextlib.contextmanager
    def keeper(self, hub, taken="", says_size=True, more=None, program=(PROGRAM,), listener=None):
        self.names()  # what the last keeper sent has come
        # systemd hands out sockets first, and what was stored last before the rest.
        sockets = [("gpumem-keeper.socket", listener.fileno())] if listener else []
        store = sockets + list(reversed(self.store))
        fds = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3 + 2 * len(store)) for _, fd in store]
        variables = {**(more or {}), "NOTIFY_SOCKET": self.address, "LISTEN_FDS": len(store), "LISTEN_FDNAMES": ":".join(name for name, _ in store)}
        if says_size:
            variables["FDSTORE"] = self.size
        self.ready.clear()
        program = (sys.executable, "-c", AS_A_SERVICE, ",".join(map(str, fds)), *program)
        with staying("keep", "--store", "--hub", hub, variables=variables, program=program, pass_fds=fds) as (process, line):
            for fd in fds:
                os.close(fd)
            require(line == f"Keeper at {hub}{taken}\n", line)
            require(self.ready.wait(60), "it does not say that it is ready")
            yield process


def keep_in_the_store(backend, variables, address_in):
    """A keeper that is killed begins again with what it had."""
    with tempfile.TemporaryDirectory() as folder, ServiceManager(address_in(folder)) as manager:
        hub, copy = f"{folder}/keeper", Path(folder) / "copy"
        path = make_file(folder, 5 * MIB + 1)

        def publish(version):
            with staying("share", path, "--name", "n", "--keep", hub, "--stay", "--backend", backend, variables=variables) as (publisher, line):
                require(line.startswith(f"n version {version}: "), line)
                publisher.kill()
                publisher.wait()

        def require_content(version):
            outcome = run("attach", "--name", "n", "--hub", hub, "--backend", backend, copy, variables=variables)
            require(outcome.status == 0 and outcome.out.startswith(f"n version {version}: "), str(outcome))
            require(copy.read_bytes() == path.read_bytes(), "other bytes were written")

        def described():
            return [{**entry, "publisher": entry["publisher"]["pid"]} for entry in listed(hub)["entries"]]

        with manager.keeper(hub) as keeper:
            for version in (1, 2, 3):
                publish(version)
            before, stored = described(), manager.names()
            require([entry["version"] for entry in before] == [2, 3], str(before))
            # What was replaced has left the store.
            require(stored.count("gpumem-version") == 2 and stored == sorted(stored), str(stored))
            files = stored.count("gpumem-file")
            require(files >= 2 and len(stored) == files + 2, str(stored))
            keeper.kill()
            keeper.wait()
        require(manager.names() == stored, str(manager.names()))
        # A version that was cut off, what is no record, and what is another's.
        for name in ("gpumem-file-00000000000000aa", "gpumem-version-00000000000000bb", "of-somebody-else"):
            manager.add(name, os.memfd_create(name))
        with manager.keeper(hub, ", took back 2 versions") as keeper:
            require(described() == before, f"{described()}\nnot\n{before}")
            require(all(entry["publisher"]["gone"] for entry in listed(hub)["entries"]), str(listed(hub)))
            require(manager.names() == sorted([*stored, "of-somebody"]), str(manager.names()))
            require_content(3)
            publish(4)
            require([entry["version"] for entry in described()] == [3, 4], str(described()))
            keeper.send_signal(signal.SIGTERM)
            err = keeper.communicate(timeout=60)[1].decode()
            require(keeper.returncode == 0 and "1 incomplete versions and 1 files of none" in err, err)
        # Its end is no withdrawal.
        with manager.keeper(hub, ", took back 2 versions") as keeper:
            require([entry["version"] for entry in described()] == [3, 4], str(described()))
            require_content(4)
            require(manager.names() == sorted([*stored, "of-somebody"]), str(manager.names()))
            keeper.kill()
            keeper.wait()


def case_a_keeper_gets_back_its_store():
    keep_in_the_store("host", {}, lambda folder: f"{folder}/notify")


def case_a_keeper_gets_back_its_store_on_a_fake_gpu():
    if FAKE_CUDA is None:
        raise Skipped("the cuda backend is not built")
    keep_in_the_store("cuda", {"LD_LIBRARY_PATH": FAKE_CUDA}, lambda folder: f"@{folder}/notify")


def case_a_full_store_is_noticed():
    """By the keeper where the service manager says its size, and by the next one where it does not."""
    with tempfile.TemporaryDirectory() as folder, ServiceManager(f"{folder}/notify") as manager:
        hub, path = f"{folder}/keeper", make_file(folder, 5000)
        manager.size = 3
        with manager.keeper(hub) as keeper:
            require(run_host("share", path, "--name", "n", "--keep", hub).status == 0, "the first one does not fit")
            require_failure(run_host("share", path, "--name", "m", "--keep", hub), 1, "GPUMEM_ERROR_LIMIT_EXCEEDED",
                            f"process {keeper.pid}", "FileDescriptorStoreMax=")
            require([entry["name"] for entry in listed(hub)["entries"]] == ["n"], str(listed(hub)))
            require(run("hub", "withdraw", "n", "--hub", hub).status == 0, "it is not withdrawn")
            require(run_host("share", path, "--name", "m", "--keep", hub).status == 0, "there is no room again")
            require_end(keeper)
        with manager.keeper(hub, ", took back 1 version", says_size=False) as keeper:
            require(run_host("share", path, "--name", "lost", "--keep", hub).status == 0, "nobody could know")
            keeper.kill()
            require("$FDSTORE" in keeper.communicate(timeout=60)[1].decode(), "it does not warn")
        with manager.keeper(hub, ", took back 1 version") as keeper:
            keeper.send_signal(signal.SIGTERM)
            err = keeper.communicate(timeout=60)[1].decode()
            require("files of none" in err, err)


def case_a_full_keeper_begins_again():
    """As many files as a keeper may have are no more than the next one can be given."""
    with tempfile.TemporaryDirectory() as folder, ServiceManager(f"{folder}/notify") as manager:
        hub, path = f"{folder}/keeper", make_file(folder, 5000)
        limits = {"NOFILE": "48,64"}
        with manager.keeper(hub, more=limits) as keeper:
            soft = Path(f"/proc/{keeper.pid}/limits").read_text().split("Max open files")[1].split()[0]
            require(soft == "64", f"the soft limit is {soft}")
            for number in range(64):
                publisher = run_host("share", path, "--name", f"n{number}", "--keep", hub)
                if publisher.status != 0:
                    break
            require_failure(publisher, 1, "GPUMEM_ERROR_LIMIT_EXCEEDED", "RLIMIT_NOFILE")
            require(number >= 8, f"only {number} were kept")
            before = [entry["name"] for entry in listed(hub)["entries"]]
            keeper.kill()
            keeper.wait()
        with manager.keeper(hub, f", took back {number} versions", more=limits):
            after = [entry["name"] for entry in listed(hub)["entries"]]
            require(after == before and len(after) == number, f"{after}\nnot\n{before}")
            copy = Path(folder) / "copy"
            require(run_host("attach", "--name", "n7", "--hub", hub, copy).status == 0, "cannot attach")
            require(copy.read_bytes() == path.read_bytes(), "other bytes were written")


def case_a_store_needs_a_service_manager():
    with tempfile.TemporaryDirectory() as folder:
        hub = f"{folder}/hub"
        for address, status, text in ((None, "GPUMEM_ERROR_INVALID_STATE", "NOTIFY_SOCKET is not set"),
                                      (f"{folder}/none", "GPUMEM_ERROR_NOT_FOUND", "nobody takes packets"),
                                      ("vsock:2:1", "GPUMEM_ERROR_UNSUPPORTED", "no address of a Unix socket")):
            variables = {"NOTIFY_SOCKET": address} if address else {}
            require_failure(run("keep", "--store", "--hub", hub, variables=variables), 1, status, text)
            require(not Path(hub).exists(), "the socket file is left")


def listening(path, kind=socket.SOCK_SEQPACKET):
    """The socket of a socket unit."""
    listener = socket.socket(socket.AF_UNIX, kind)
    listener.bind(path)
    listener.listen()
    return listener


def case_a_keeper_listens_with_the_socket_of_its_unit():
    """Whoever connects before it runs waits for it, also while it begins again, and the socket outlives it."""
    with tempfile.TemporaryDirectory() as folder, ServiceManager(f"{folder}/notify") as manager:
        hub, path = f"{folder}/keeper", make_file(folder, 5000)
        manager.size = 2
        with listening(hub) as listener:

            @contextlib.contextmanager
            def started_by_a_link(taken):
                with subprocess.Popen([PROGRAM, "hub", "list", "--json", "--hub", hub], env=environment(), stdout=subprocess.PIPE) as first:
                    require(select.select([listener], [], [], 60)[0], "nobody connects")
                    with manager.keeper(hub, taken, listener=listener) as keeper:
                        out = first.communicate(timeout=60)[0]
                        require(first.returncode == 0 and json.loads(out)["pid"] == keeper.pid, f"{first.returncode} {out} {keeper.pid}")
                        yield keeper

            with started_by_a_link("") as keeper:
                # The socket takes nothing of the store.
                require(run_host("share", path, "--name", "n", "--keep", hub).status == 0, "cannot share")
                require(listed(hub)["pid"] == keeper.pid, "it is not at the other end")
                require_failure(run("keep", "--hub", hub), 1, "GPUMEM_ERROR_ALREADY_EXISTS", f"process {keeper.pid} listens")
                keeper.kill()
                keeper.wait()
            with started_by_a_link(", took back 1 version") as keeper:
                require_end(keeper)
            require(Path(hub).is_socket(), "the file is gone")
            with started_by_a_link(", took back 1 version"):
                require(run_host("attach", "--name", "n", "--hub", hub).status == 0, "cannot attach")


def case_a_socket_unit_for_a_stream_is_refused():
    with tempfile.TemporaryDirectory() as folder, listening(f"{folder}/keeper", socket.SOCK_STREAM) as listener:
        given = fcntl.fcntl(listener.fileno(), fcntl.F_DUPFD_CLOEXEC, 8)
        outcome = subprocess.run([sys.executable, "-c", AS_A_SERVICE, str(given), PROGRAM, "keep", "--hub", f"{folder}/keeper"],
                                 env=environment(LISTEN_FDS=1), pass_fds=[given], capture_output=True, check=False)
        os.close(given)
        require_failure(Outcome(outcome.returncode, outcome.stdout.decode(), outcome.stderr.decode()), 1, "GPUMEM_ERROR_ALREADY_EXISTS",
                        "ListenSequentialPacket=")


def case_the_units_of_the_keeper_are_valid_and_hardened():
    if not shutil.which("systemd-analyze"):
        raise Skipped("systemd-analyze is not installed")
    with tempfile.TemporaryDirectory() as folder:
        unit = Path(folder) / "gpumem-keeper.service"
        address = Path(shutil.copy(KEEPER_SOCKET_UNIT, folder))
        # As bindings/cli/meson.build writes it.
        bindir = Path(folder) / "a 100% good place"
        bindir.mkdir()
        (bindir / "gpumem").symlink_to(os.path.abspath(PROGRAM))
        unit.write_text(KEEPER_UNIT.read_text(encoding="utf-8").replace("@bindir@", str(bindir).replace("%", "%%")), encoding="utf-8")

        def analyze(*words):
            return subprocess.run(["systemd-analyze", *words], env=environment(XDG_RUNTIME_DIR=folder), text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)

        outcome = analyze("verify", "--user", "--man=no", unit, address)
        if outcome.returncode != 0 and unit.stem not in outcome.stdout:
            raise Skipped(f"systemd-analyze cannot verify units here: {words_of(outcome.stdout)}")
        require(outcome.returncode == 0 and unit.stem not in outcome.stdout, outcome.stdout)
        # As of a service of the system: a user's has no capabilities anyway, and no namespaces.
        outcome = analyze("security", "--offline=yes", "--threshold=63", unit)
        require(outcome.returncode == 0, outcome.stdout)


@contextlib.contextmanager
def traced(folder, calls):
    """Yields how to start the program so that `calls` has each of its system calls in the end, a line each."""
    pipe = f"{folder}/trace"
    os.mkfifo(pipe)

    def read():
        with open(pipe, encoding="utf-8", errors="replace") as lines:
            calls.extend(lines)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    yield (shutil.which("strace"), "-D", "-f", "-qq", "-s", "0", "-o", pipe, PROGRAM)
    thread.join()
    os.unlink(pipe)


def system_calls(sets):
    """The names in systemd's sets of system calls."""
    said = subprocess.run(["systemd-analyze", "syscall-filter", *sets], text=True, stdout=subprocess.PIPE, check=True).stdout
    words = set(re.findall(r"^ +(@?\w[\w-]*)$", said, re.MULTILINE))
    more = {word for word in words if word.startswith("@")}
    return (words - more) | (system_calls(more) if more else set())


def case_the_unit_of_the_keeper_allows_what_the_keeper_does():
    for program in ("systemd-analyze", "strace"):
        if not shutil.which(program):
            raise Skipped(f"{program} is not installed")
    if SHORT_OF_MEMORY == "-":
        raise Skipped("a sanitizer's own calls are not the keeper's")
    if subprocess.run(["strace", "-o", "/dev/null", "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        raise Skipped("strace may not trace here")
    unit = dict(re.findall(r"^(\w+)=(.*)$", KEEPER_UNIT.read_text(encoding="utf-8"), re.MULTILINE))
    calls = []
    with tempfile.TemporaryDirectory() as folder, ServiceManager(f"{folder}/notify") as manager:
        hub, path = f"{folder}/keeper", make_file(folder, 5000)
        with traced(folder, calls) as program, manager.keeper(hub, program=program) as keeper:
            for name in ("n", "m"):
                require(run_host("share", path, "--name", name, "--keep", hub).status == 0, "cannot share")
            keeper.kill()
            keeper.wait()
        os.unlink(hub)
        with listening(hub) as listener, traced(folder, calls) as program, \
                manager.keeper(hub, ", took back 2 versions", program=program, listener=listener) as keeper:
            require(run_host("attach", "--name", "n", "--hub", hub).status == 0, "cannot attach")
            require(run("hub", "withdraw", "n", "--hub", hub).status == 0, "cannot withdraw")
            require_end(keeper)
    made = {match[1] for line in calls if (match := re.match(r"\d+ +(?:<\.\.\. )?([a-z]\w*)(?:\(| resumed>)", line))}
    require({"execve", "accept4", "sendmsg", "kcmp"} <= made, f"only these were seen: {sorted(made)}")
    require(made <= system_calls(unit["SystemCallFilter"].split()), f"refused: {sorted(made - system_calls(unit['SystemCallFilter'].split()))}")
    families = set(re.findall(r"\bsocket(?:pair)?\((AF_\w+)", "".join(calls)))
    require(families == set(unit["RestrictAddressFamilies"].split()), f"these families are used: {families}")
    if unit["MemoryDenyWriteExecute"] == "yes":
        executable = [line for line in calls if "PROT_EXEC" in line and ("PROT_WRITE" in line or "mprotect(" in line)]
        require(not executable, "".join(executable))
    require(int(unit["LimitNOFILE"]) > int(unit["FileDescriptorStoreMax"]), "a keeper cannot begin with a full store")


def case_sharing_says_what_is_missing():
    with tempfile.TemporaryDirectory() as folder:
        hub, path = f"{folder}/hub", make_file(folder, 5000)
        for command in (["hub", "list"], ["attach", "--name", "n", "--timeout", "0"], ["attach", "--name", "n", "--timeout", "1"],
                        ["share", path, "--name", "n", "--keep"]):
            target = [] if command[-1] == "--keep" else ["--hub"]
            require_failure(run(*command, *target, hub), 1, "GPUMEM_ERROR_NOT_FOUND", hub)
        for name in ("", "a/b", "a\nb", "x" * 64):
            require_failure(run_host("share", path, "--name", name, "--hub", hub), 1, "GPUMEM_ERROR_INVALID_ARGUMENT")
            require(not Path(hub).exists(), "the socket file is left")
        require_failure(run_host("share", f"{folder}/none", "--name", "n", "--hub", hub), 1, "No such file")
        require_failure(run_host("share", path, "--name", "n", "--hub", path), 1, "GPUMEM_ERROR_ALREADY_EXISTS")
        with staying("share", path, "--name", "n", "--hub", hub, "--backend", "host") as (process, _):
            require_failure(run_host("attach", "--name", "m", "--hub", hub, "--timeout", "0"), 1,
                            f"there is no m at {hub} after 0 s")
            require_failure(run_host("attach", "--name", "a/b", "--hub", hub), 1, "GPUMEM_ERROR_INVALID_ARGUMENT")
            require_failure(run_host("attach", "--name", "n", "--hub", hub, f"{folder}/none/copy"), 1, "No such file")
            require_failure(run_host("share", path, "--name", "n", "--keep", hub), 1, f"the hub at {hub}, process {process.pid}, is no keeper",
                            "start gpumem keep")
            with open("/dev/full", "wb") as full:
                outcome = run_host("attach", "--name", "n", "--hub", hub, stdout=full)
            require(outcome.status == 1 and "cannot write" in outcome.err, str(outcome))
            require_failure(run_host("attach", "--name", "n", "--hub", hub, "/dev/full"), 1, "cannot be written")
            require_end(process)


def case_a_token_is_needed():
    """Where a hub or a keeper has one."""
    with tempfile.TemporaryDirectory() as folder:
        path, token, line, wrong = (f"{folder}/{name}" for name in ("file", "token", "line", "wrong"))
        for name, content in ((path, b"x" * 5000), (token, b"\0 secret"), (line, b"\0 secret\n"), (wrong, b"other")):
            Path(name).write_bytes(content)
        share = ("share", path, "--name", "n", "--backend", "host")
        hub, keeper = ("--hub", f"{folder}/hub"), ("--hub", f"{folder}/keeper")
        with staying(*share, *hub, "--token-file", token), staying("keep", *keeper, "--token-file", token), \
                staying(*share, "--keep", keeper[1], "--stay", "--token-file", line):
            for place in (hub, keeper):
                for command in (("hub", "list"), ("attach", "--name", "n", "--backend", "host")):
                    outcome = run(*command, *place, "--token-file", line)
                    require(outcome.status == 0 and "n" in outcome.out, str(outcome))
                    for given, word in (((), "pass it with --token-file"), (("--token-file", wrong), "GPUMEM_ERROR_PERMISSION_DENIED")):
                        require_failure(run(*command, *place, *given), 1, word)
            require_failure(run_host("share", path, "--name", "m", "--keep", keeper[1]), 1, "GPUMEM_ERROR_PERMISSION_DENIED")
        for content, word in ((b"", "empty"), (b"\n", "holds no token"), (b"x" * 257, "holds no token"), (None, "No such file")):
            Path(wrong).unlink(missing_ok=True)
            if content is not None:
                Path(wrong).write_bytes(content)
            require_failure(run("hub", "list", *hub, "--token-file", wrong), 1, word)


def case_a_hub_that_stands_still():
    with tempfile.TemporaryDirectory() as folder:
        require_failure(run("hub", "list", "--hub", ""), 1, "leave the option out for the default")
        hub = ("--hub", f"{folder}/hub")
        with staying("keep", *hub) as (keeper, _):
            stop(keeper)
            try:
                require_failure(run("hub", "list", *hub), 1, "see whether it is stopped or busy, and try again")
            finally:
                os.kill(keeper.pid, signal.SIGCONT)


def case_a_stale_socket_file_is_replaced():
    with tempfile.TemporaryDirectory() as folder:
        hub, path = f"{folder}/hub", make_file(folder, 5000)
        with staying("share", path, "--name", "n", "--hub", hub, "--backend", "host") as (process, _):
            process.kill()
            process.wait()
        require(Path(hub).is_socket(), "there is no socket file")
        require_failure(run_host("attach", "--name", "n", "--hub", hub, "--timeout", "0"), 1, "GPUMEM_ERROR_NOT_FOUND")
        with staying("share", path, "--name", "n", "--hub", hub, "--backend", "host") as (process, _):
            require(run_host("attach", "--name", "n", "--hub", hub).status == 0, "cannot attach")
            require_end(process)


# ---- why ----

# Makes what its first argument says, with the hub at its second; prints a line and stays. Each line of the standard input is
# the name of a file, which then has a snapshot.
HOLDER = """
import json, sys
import gpumem
MIB = 1 << 20
instance, device = gpumem.default_instance(), gpumem.default_device()
if sys.argv[1] == "all":
    staging = device.memory(4 * MIB, "pinned", name="staging")
    pool = device.pool(name="activations", limit=256 * MIB)
    blocks = [pool.malloc(16 * MIB) for number in range(5)]
    pool.free(blocks[0])
    pool.free(blocks[2])
    weights = device.buffer(8 * MIB, name="weights", handle_types="posix_fd")
    resting = device.buffer(2 * MIB, name="resting")
    resting.sleep("pageable")
    try:
        device.memory(1 << 50)
    except gpumem.Error:
        pass
    hub = instance.hub(sys.argv[2])
    hub.publish("weights", instance.export(weights))
else:
    link = instance.connect(sys.argv[2])
    memory, entry = link.import_next("weights", timeout=600, memory_name="theirs")
    if sys.argv[1] == "cached":
        instance.set_import_cache(3600)
        memory.close()
print("ready", flush=True)
for line in sys.stdin:
    with open(line.rstrip(), "w") as file:
        json.dump(instance.snapshot(), file)
    print("written", flush=True)
"""


@contextlib.contextmanager
def holding(what, hub):
    """A process that holds memory; yields it and a function that returns its snapshot as JSON text."""
    if SHORT_OF_MEMORY == "-":
        raise Skipped("a program without the sanitizer cannot load the library")
    folder = MAN_PAGE.resolve().parents[2] / "bindings" / "python"
    variables = {"GPUMEM_BACKEND": "host", "GPUMEM_LIBRARY": library_path(), "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": 1}
    with staying(what, hub, program=(sys.executable, "-c", HOLDER), variables=variables) as (process, _), \
            tempfile.TemporaryDirectory() as own:

        def snapshot():
            process.stdin.write(f"{own}/snapshot\n".encode())
            process.stdin.flush()
            require(process.stdout.readline() == b"written\n", "there is no snapshot")
            return Path(f"{own}/snapshot").read_text(encoding="utf-8")

        yield process, snapshot


def why(text, watchdog=600, **variables):
    """What the program says of a snapshot."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "snapshot"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        outcome = run("why", file, variables=variables, timeout=watchdog)
        outcome.err = outcome.err.replace(str(file), "FILE")
        return outcome


def section(outcome, title):
    """The lines below a title, without the indent."""
    require(outcome.status == 0 and outcome.err == "", str(outcome))
    found = re.search(rf"^{re.escape(title)}\n((?:  .*\n)+)", outcome.out, re.MULTILINE)
    require(found, f"there is no {title!r}\n{outcome}")
    return [line[2:] for line in found[1].splitlines()]


EMPTY = {"version": "0.1.0", "backend": "host", "name": "", "process": 1, "live_count": 0, "live_bytes": 0, "peak_bytes": 0,
         "reserved_bytes": 0, "devices": [], "kinds": [], "objects": []}


def snapshot_of(*objects, **members):
    return json.dumps({**EMPTY, "objects": list(objects), **members})


def case_why_explains_a_snapshot():
    with tempfile.TemporaryDirectory() as folder, holding("all", f"{folder}/hub") as (process, snapshot):
        text = snapshot()
        outcome = why(text, COLUMNS=120)
        require(outcome.out.startswith(f"Process {process.pid}, backend host, instance default, gpumem {json.loads(text)['version']}\n\n"), str(outcome))
        require(re.search(r"^\d+ MiB of memory, \d+ MiB at most so far; .* of reserved addresses$", outcome.out, re.MULTILINE), str(outcome))
        failure = words_of(" ".join(section(outcome, "Last failure for lack of memory, in this process")))
        require(re.match(r"GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY in gpumem_memory_create\(\) at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC ",
                         failure), failure)
        message = json.loads(text)["last_failure"]["message"]
        known, = run("errors", "--json", "-301").json()
        require(failure.endswith(f" {message}") and ";" in message and known["remedy"] not in failure, failure)
        short = {"status": known["name"], "function": "f", "message": "no room", "time": 0}
        failure = words_of(" ".join(section(why(snapshot_of(last_failure=short)), "Last failure for lack of memory, in this process")))
        require(failure == f"{known['name']} in f() at 1970-01-01 00:00:00 UTC no room {known['remedy']}", failure)
        require(section(outcome, "Devices")[1].startswith("     0   4 GiB  "), str(outcome))
        kinds = section(outcome, "Memory by device and kind")
        require("     0      1           4 MiB  pinned memory" in kinds, str(outcome))
        require(any(re.fullmatch(r" +- +2 +8 MiB of \S+ .iB  virtual memory", line) for line in kinds), str(outcome))
        largest = section(outcome, "The largest")
        require([line.split()[2:] for line in largest[1:]][0][:2] == ["activations", "0"], str(outcome))
        require(any(re.fullmatch(r"8 MiB of \S+ .iB +weights +- +virtual memory", line.strip()) for line in largest), str(outcome))
        require(not any("resting" in line for line in largest), str(outcome))
        pool, = (words_of(line) for line in section(outcome, "Pools")[1:])
        found = re.fullmatch(r"activations 0 (\d+) MiB 48 MiB (\d+) MiB (\d+) MiB (\d+) MiB (\d+) %", pool)
        require(found, str(outcome))
        taken, cached, free, piece, part = map(int, found.groups())
        require(cached == taken - 48 and free == cached and 16 <= piece < free, pool)
        require(part == 100 * (free - piece) // free, pool)
        back = words_of(" ".join(section(outcome, "What can go back")))
        require(f"{cached} MiB cached by pool activations: gpumem_pool_trim()" in back, back)
        require("2 MiB host memory or file for the content of buffer resting, which sleeps" in back, back)
        # The same from a pipe, and with the byte that ends the text of the library.
        piped = subprocess.run([PROGRAM, "why", "-"], input=text.encode() + b"\0", env=environment(COLUMNS=120), check=False,
                               stdout=subprocess.PIPE)
        require(piped.stdout.decode() == outcome.out, piped.stdout.decode())


def case_the_guide_shows_what_why_prints():
    page = (MAN_PAGE.parents[1] / "where-memory.md").read_text(encoding="utf-8")
    shown = re.search(r"^\$ gpumem why snapshot.json\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    outcome = run("why", Path(__file__).parent / "where.json")
    require(shown and shown[1] == outcome.out, str(outcome))


def case_why_says_who_shares():
    with tempfile.TemporaryDirectory() as folder:
        hub = f"{folder}/hub"
        with holding("all", hub) as (exporter, of_exporter):
            title = "Shared with other processes"
            line = words_of(section(why(of_exporter()), title)[1])
            require(line == "weights memory 8 MiB posix-fd nobody", line)
            with holding("import", hub) as (importer, of_importer), holding("cached", hub) as (cacher, of_cacher):
                held = words_of(" ".join(section(why(of_exporter(), COLUMNS=200), title)[1:]))
                for process in (importer, cacher):
                    require(re.search(rf"\bprocess {process.pid} \(python[^)]*\)", held), held)
                line = words_of(section(why(of_importer(), COLUMNS=200), "Memory of other processes")[1])
                require(re.fullmatch(rf"theirs 8 MiB 1 live process {exporter.pid} \(python[^)]*\)", line), line)
                # A number may be that of a later process.
                other = json.loads(of_importer())
                other["imports"][0]["exporter_start_time"] += 1
                line = words_of(section(why(json.dumps(other), COLUMNS=200), "Memory of other processes")[1])
                require(line.startswith(f"theirs 8 MiB 1 live process {exporter.pid}, which has ended"), line)
                back = words_of(" ".join(section(why(of_cacher()), "What can go back")))
                require(back == "8 MiB of 1 import that has ended, kept mapped: gpumem_share_flush_cache()", back)
                before = of_exporter()
                importer.kill()
                importer.wait()
                held = words_of(" ".join(section(why(before, COLUMNS=200), title)[1:]))
                require(f"process {importer.pid}, which has ended" in held, held)
                exporter.kill()
                exporter.wait()


def case_why_prints_only_what_a_snapshot_has():
    outcome = why(snapshot_of())
    require(outcome.out == "Process 1, backend host, gpumem 0.1.0\n\n0 B of memory, 0 B at most so far; 0 B of reserved addresses\n\n"
            "What can go back\n  nothing that the snapshot shows\n", str(outcome))
    # As the first versions wrote pools.
    old = snapshot_of({"type": "pool", "name": "p", "device": 0, "kind": "device", "live_count": 1, "live_bytes": 5, "reserved_bytes": 9},
                      {"type": "buffer", "name": "b", "device": 0}, {"type": "memory", "name": "in it", "kind": "device", "size": 9,
                                                                     "of_pool": True, "device": 0})
    outcome = why(old)
    require(words_of(section(outcome, "Pools")[1]) == "p 0 9 B 5 B 4 B - - -" and "in it" not in outcome.out, str(outcome))
    outcome = why(snapshot_of({"type": "pool", "name": "p", "device": 0, "kind": "device", "live_count": 0, "live_bytes": 0,
                               "reserved_bytes": 0, "busy": True}))
    require(words_of(" ".join(section(outcome, "Pools")[1:])) == "p 0 - - - - - in a call at that moment", str(outcome))
    # What outlives its pool is all that is listed of it.
    outcome = why(snapshot_of({"type": "range", "name": "gone", "kind": "virtual", "size": 99, "mapped_bytes": 7, "of_pool": True,
                               "pool_destroyed": True}))
    require("7 B of 99 B" in outcome.out and "gpumem_pool_free_pointer()" in outcome.out, str(outcome))
    outcome = why(snapshot_of({"type": "pool", "name": "p", "device": 0, "live_count": 1, "live_bytes": 5, "reserved_bytes": 9, "destroyed": True}))
    require("p (destroyed)" in outcome.out and "5 B live blocks of pool p, which is destroyed" in words_of(outcome.out), str(outcome))
    many = snapshot_of(*({"type": "memory", "name": f"m{number}", "kind": "pinned", "size": number, "device": 0} for number in range(13)))
    lines = section(why(many), "The largest")
    require([line.split()[2] for line in lines[1:11]] == [f"m{number}" for number in range(12, 2, -1)], str(lines))
    require(lines[11:] == ["and 2 smaller"], str(lines))


def case_why_of_another_version():
    for version, known in (("0.0.9", True), ("0.1.0", True), ("0.1.1", False), ("7.0.0", False), ("new", False), ("1.2", False)):
        outcome = why(snapshot_of(version=version, something=[{"new": 1}]))
        require(outcome.status == 0 and outcome.err == "", str(outcome))
        require(("of another version than this program" in outcome.out) != known, f"{version}: {outcome}")


def case_why_of_what_is_no_snapshot():
    whole = snapshot_of({"type": "memory", "name": "m", "kind": "pinned", "size": 7, "device": 0})
    for text, problem in (
            ("", "is empty: write into it what gpumem_stats_snapshot() returns"), ("\0", "is empty: "), (" \n", "is empty: "),
            (whole[:40], "ends in the middle, after 40 bytes: write all that gpumem_stats_snapshot() returns"),
            ("snapshot", "is no JSON: see byte 1"), (whole + "x", f"is no JSON: see byte {len(whole) + 1}"), (b"\xff\xfe", "is no JSON: see byte 1"),
            (b'{"name":"\xff"}', "is no JSON: see byte 10"), ("1e999", "is no snapshot: it has a number that is too large"),
            ("[" * 100000, "is no snapshot: it nests too deeply"), ("[]", "is JSON, but no snapshot of gpumem: the whole is no object"),
            ("7", "is JSON, but no snapshot of gpumem: the whole is no object"), ("{}", 'is JSON, but no snapshot of gpumem: it has no "version"'),
            (json.dumps({key: EMPTY[key] for key in EMPTY if key != "objects"}), 'no snapshot of gpumem: it has no "objects"'),
            (snapshot_of(objects={}), "objects is no list"), (snapshot_of(7), "objects[0] is no object"),
            (snapshot_of({}, {"type": 1}), "objects[1].type is no text"), (snapshot_of(live_bytes=-1), "live_bytes is no whole number of 64 bits"),
            (snapshot_of(live_bytes=1.5), "live_bytes is no whole number of 64 bits"), (snapshot_of(peak_bytes=1 << 64), "peak_bytes is no whole number"),
            (snapshot_of(kept_imports=[]), "kept_imports is no object"), (snapshot_of(last_failure={"time": "now"}), "last_failure.time is no whole"),
            (snapshot_of(exports=[{"holders": [1, "x"]}]), "exports[0].holders[1] is no whole number"),
            (snapshot_of({"type": "pool", "destroyed": 1}), "objects[0].destroyed is no boolean")):
        outcome = why(text)
        require_failure(outcome, 1, f"gpumem: the file FILE {problem}" if problem.startswith("is ") or problem.startswith("ends") else problem)


def case_why_of_an_object_with_very_many_members():
    require(why(snapshot_of(**{f"m{number}": 0 for number in range(500_000)}), watchdog=120).status == 0, "it failed")


def case_why_of_what_cannot_be_read():
    with tempfile.TemporaryDirectory() as folder:
        require_failure(run("why", f"{folder}/none"), 1, f"the file {folder}/none cannot be opened: No such file")
        require_failure(run("why", folder), 1, f"the file {folder} is a directory")
        require_failure(run("why", "/dev/zero"), 1, "has more than 64 MiB, and so is no snapshot")
        require_failure(run("why", "-"), 1, "the standard input is empty")
        descriptor = os.open(folder, os.O_RDONLY)
        outcome = subprocess.run([PROGRAM, "why", "-"], stdin=descriptor, env=environment(), check=False, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE)
        os.close(descriptor)
        require_failure(Outcome(outcome.returncode, outcome.stdout.decode(), outcome.stderr.decode()), 1, "the standard input is a directory")
        closed = subprocess.run(["sh", "-c", 'exec "$0" why - <&-', PROGRAM], env=environment(), check=False, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)
        require_failure(Outcome(closed.returncode, closed.stdout.decode(), closed.stderr.decode()), 1, "the standard input is empty")


def case_why_of_odd_names_and_numbers():
    odd = "\x1b[31m\u202ered\n"
    most = (1 << 64) - 1
    outcome = why(snapshot_of({"type": "memory", "name": odd, "kind": odd, "size": most, "device": most},
                              {"type": "memory", "name": odd, "kind": odd, "size": most, "device": most},
                              {"type": "pool", "name": odd, "live_bytes": most, "reserved_bytes": 0, "live_count": most, "free_bytes": 1,
                               "largest_free_bytes": most}, {"type": odd}, {"type": "buffer", "name": odd, "state": odd, "store_bytes": most},
                              name=odd, backend=odd, version=odd, process=most, live_bytes=most, devices=[{"ordinal": most, "name": odd}],
                              last_failure={"status": odd, "function": odd, "message": odd, "time": most},
                              exports=[{"name": odd, "type": odd, "way": odd, "claims": most, "holders": [0, most]}],
                              imports=[{"name": odd, "state": odd, "exporter": most, "exporter_start_time": most, "granter": 0}],
                              kept_imports={"count": most, "bytes": most}))
    require(outcome.status == 0 and outcome.err == "", str(outcome))
    require("\x1b" not in outcome.out and "\u202e" not in outcome.out, repr(outcome.out))
    require(outcome.out.count("\\x1b[31m\\xe2\\x80\\xaered\\x0a") >= 15, str(outcome))
    require(re.search(r"^ +18446744073709551615 +2 +1.638e\+04 PiB ", outcome.out, re.MULTILINE), str(outcome))


def case_why_fits_the_terminal():
    with tempfile.TemporaryDirectory() as folder, holding("all", f"{folder}/hub") as (_, snapshot):
        text = snapshot()
        for columns in (20, 40, 80):
            outcome = why(text, COLUMNS=columns)
            require(outcome.status == 0, str(outcome))
            require_within(columns, outcome.out)


def machine(*arguments, **variables):
    return run("why", "--json", *arguments, variables=variables).json()


def case_why_shows_the_processes_of_this_machine():
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder) / "gpumem"
        names.mkdir(mode=0o700)
        with holding("all", f"{names}/hub") as (exporter, _), holding("import", f"{names}/hub") as (importer, _), \
                staying("keep", "--hub", f"{names}/keeper") as (keeper, _), staying("keep", "--hub", f"{names}/dead") as (dead, _):
            dead.kill()
            dead.wait()
            (names / "file").write_bytes(b"no socket")
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as odd:
                odd.bind(f"{names}/@abstract")
            report = machine(XDG_RUNTIME_DIR=folder)
            found = {process["pid"]: process for process in report["processes"]}
            one = found[exporter.pid]
            require(one["gpumem"] is True and one["command"].startswith("python"), str(one))
            # Five blocks, the buffer, and what belongs to them; those that are mapped without a descriptor count.
            require(one["memory_files"] >= 3 and one["memory_file_bytes"] >= 88 * MIB, str(one))
            require(len(one["instances"]) == 1 and re.fullmatch("@gpumem-[0-9a-f]{32}", one["instances"][0]), str(one))
            require(found[importer.pid]["memory_file_bytes"] >= 8 * MIB, str(found[importer.pid]))
            require(keeper.pid in found and dead.pid not in found and os.getpid() not in found, str(found.keys()))
            require(report["memory_file_bytes"] < sum(process["memory_file_bytes"] for process in found.values()), "shared files count twice")
            hubs = {hub["path"]: hub for hub in report["hubs"]}
            require(set(hubs) == {f"{names}/{name}" for name in ("hub", "keeper", "dead")} and report["folder"] == str(names), str(hubs))
            require(hubs[f"{names}/hub"] == {"path": f"{names}/hub", "problem": None, "keeper": False, "pid": exporter.pid, "versions": 1,
                                             "bytes": 8 * MIB}, str(hubs))
            require(hubs[f"{names}/keeper"]["keeper"] is True and hubs[f"{names}/keeper"]["versions"] == 0, str(hubs))
            require(hubs[f"{names}/dead"]["problem"] == "nobody listens there any more", str(hubs))
            outcome = run("why", variables={"XDG_RUNTIME_DIR": folder, "COLUMNS": 200})
            require(re.search(rf"^ +{exporter.pid}  \S+ +1 +\d+, \d+ MiB +\S+ +\S+  python", outcome.out, re.MULTILINE), str(outcome))
            require(f"  {names}/hub: hub, process {exporter.pid}, 1 version of 8 MiB\n" in outcome.out, str(outcome))
            require(f"  {names}/dead: nobody listens there any more\n" in outcome.out, str(outcome))
            require(re.search(r"^  \d+ memory files of gpumem, .*, each counted once$", outcome.out, re.MULTILINE), str(outcome))
            for columns in (20, 80):
                require_within(columns, run("why", variables={"XDG_RUNTIME_DIR": folder, "COLUMNS": columns}).out)
            # One that is stopped holds up nothing for long.
            stop(keeper)
            try:
                hubs = {hub["path"]: hub for hub in machine(XDG_RUNTIME_DIR=folder)["hubs"]}
            finally:
                keeper.send_signal(signal.SIGCONT)
            require("GPUMEM_ERROR_BUSY" in hubs[f"{names}/keeper"]["problem"], str(hubs))
            require(hubs[f"{names}/hub"]["versions"] == 1, str(hubs))
        # What is in a folder of somebody else is not asked.
        names.chmod(0o777)
        problems = [hub["problem"] for hub in machine(XDG_RUNTIME_DIR=folder)["hubs"]]
        require(problems and all(problem and str(names) in problem for problem in problems), str(problems))
        outcome = run("why", variables={"XDG_RUNTIME_DIR": f"{folder}/none"})
        require(f"Hubs and keepers in {folder}/none/gpumem\n  none\n" in outcome.out, str(outcome))


def gpus_of(processes, **variables):
    return machine(LD_LIBRARY_PATH=FAKE_NVML, FAKE_NVML_PROCESSES=",".join(f"{process} {size}" for process, size in processes), **variables)


def case_why_shows_the_memory_of_gpus():
    # In another namespace of processes the driver's number may be that of anybody.
    whole = os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            unseen = 4194305  # above the most that a system gives
            processes = [(other.pid, 3 * MIB), (unseen, MIB), (os.getpid(), "?"), *((unseen + number, 1) for number in range(1, 40))]
            report = gpus_of(processes)
            require(report["gpu_problem"] is None and report["gpus"] == [
                {"number": 0, "name": "fake GPU 0", "total_bytes": 8 << 30, "free_bytes": 5 << 30},
                {"number": 1, "name": "fake GPU 1", "total_bytes": 8 << 30, "free_bytes": 8 << 30}], str(report))
            found = {process["pid"]: process for process in report["processes"]}
            # On two GPUs.
            require(found[other.pid]["gpu_bytes"] == 6 * MIB, str(found[other.pid]))
            require(found[other.pid]["command"] == ("sleep" if whole else None), str(found[other.pid]))
            require(found[unseen] == {**dict.fromkeys(found[unseen]), "pid": unseen, "gpu_bytes": MIB}, str(found[unseen]))
            require(found[os.getpid()]["gpu_bytes"] is None, str(found[os.getpid()]))
            require(all(number in found for number in range(unseen, unseen + 40)), str(sorted(found)))
            shown = {"LD_LIBRARY_PATH": FAKE_NVML, "FAKE_NVML_PROCESSES": f"{other.pid} {3 * MIB},{unseen} {MIB},{os.getpid()} ?"}
            outcome = run("why", variables={**shown, "COLUMNS": 200})
            nobody = r"\?", "a process that the system does not show"
            for process, size, (user, command) in ((other.pid, "6 MiB", (r"\S+", r"sleep \(without gpumem\)") if whole else nobody),
                                                   (unseen, "1 MiB", nobody), (os.getpid(), r"\?", (r"\S+", "python.*") if whole else nobody)):
                require(re.search(rf"^ +{process}  {user} +- +- +- +{size}  {command}$", outcome.out, re.MULTILINE), f"{process}\n{outcome}")
            require(section(outcome, "GPUs") == ["GPU  MEMORY   FREE  NAME", "  0   8 GiB  5 GiB  fake GPU 0", "  1   8 GiB  8 GiB  fake GPU 1"],
                    str(outcome))
            for columns in (20, 80):
                require_within(columns, run("why", variables={**shown, "COLUMNS": columns}).out)
        finally:
            other.kill()


def case_why_says_why_it_does_not_know_gpus():
    # Init, count, then a handle, a name, memory and two lists for each GPU. One that cannot be asked the first three is left out.
    left = {1: [], 2: [], **dict.fromkeys((3, 4, 5), [1]), **dict.fromkeys((8, 9, 10), [0])}
    for call in range(1, 13):
        report = gpus_of([(os.getpid(), MIB)], FAKE_NVML_FAILS=call)
        require(report["gpu_problem"] == "libnvidia-ml.so.1: Unknown Error", f"call {call}: {report}")
        expected = left.get(call, [0, 1])
        require([gpu["number"] for gpu in report["gpus"]] == expected, f"call {call}: {report}")
        outcome = run("why", variables={"LD_LIBRARY_PATH": FAKE_NVML, "FAKE_NVML_FAILS": call})
        wanted = expected or any(process["nvidia_device_files"] for process in report["processes"])
        require(outcome.status == 0 and ("incomplete: libnvidia-ml.so.1: Unknown Error" in words_of(outcome.out)) == bool(wanted), str(outcome))
    require(gpus_of([], FAKE_NVML_FAILS=13)["gpu_problem"] is None, "there are more calls than are known here")
    with tempfile.TemporaryDirectory() as folder:
        Path(f"{folder}/libnvidia-ml.so.1").write_bytes(b"no library")
        problem = machine(LD_LIBRARY_PATH=folder)["gpu_problem"]
        require(re.fullmatch(r"libnvidia-ml\.so\.1, which .* cannot be loaded: .*file too short.*", problem), problem)


def case_why_says_what_it_may_not_see():
    def as_nobody():
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)

    try:
        usable = run("--version", preexec_fn=as_nobody).status == 0
    except PermissionError:
        usable = False
    if not usable or os.geteuid() != 0:
        raise Skipped("only root can run the program as another user, and only where that may run it")
    with tempfile.TemporaryDirectory() as folder, holding("all", f"{folder}/hub") as (exporter, _), \
            holding("import", f"{folder}/hub") as (importer, _):
        outcome = run("why", "--json", preexec_fn=as_nobody)
        report = outcome.json()
        require(not {exporter.pid, importer.pid} & {process["pid"] for process in report["processes"]}, str(report))
        require(report["not_looked_at"] >= 2 and report["instances_of_unknown_processes"] >= 1, str(report))
        outcome = run("why", preexec_fn=as_nobody)
        require(len(re.findall(r"could not be looked at", words_of(outcome.out))) == 1, str(outcome))
        require(re.search(r"The processes of \d+ instances? are not shown here\.", words_of(outcome.out)), str(outcome))


if __name__ == "__main__":
    run_cases(globals())
