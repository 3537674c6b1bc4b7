#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Builds the library for arm64 with Debian's cross compiler, and runs the conformance suite of the host backend and the
program gpumem in qemu-user. Usage: arm64.py SOURCE_ROOT FOLDER

FOLDER is where it is built. Of xxHash only the header is used, and GoogleTest is built from Debian's source, so that no
package of arm64 is needed.
"""

import concurrent.futures
import os
import platform
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from packages import attempt, run
from tap import Tap

CROSS = "aarch64-linux-gnu-"
EMULATOR = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
GTEST = Path("/usr/src/googletest/googletest")
# qemu-user never forgets a page that a process has reserved, so one process for all would take gigabytes.
SHARDS = 32
WATCHDOG_SECONDS = 600
NO_ADVICE = "qemu-user ignores madvise(), and so MADV_DONTFORK"
NO_NUMA = "qemu-user has no mbind()"
NO_MREMAP = "qemu-user makes no second view of pages by mremap()"
RESERVES = "reserves many addresses, for which qemu-user takes gigabytes and minutes"
START_TIME = "processes that share compare when they began, and qemu-user makes up what /proc says of its own process"
SLOW = "takes a minute in qemu-user"
# Patterns of GoogleTest -> why these cases cannot run in qemu-user, or not in this stage.
LEFT_OUT = {
    "Buf.buf_2_more_than_the_host_has": NO_MREMAP,
    "Buf.buf_5_reserves_less_if_it_must": RESERVES,
    "Buf.buf_6_access_holds_as_it_grows": NO_MREMAP,
    "ComProcess.com_25_a_child_cannot_touch_the_memory": NO_ADVICE,
    "Conformance.com_16_map_count_limit": "qemu-user ends when there are too many maps",
    "Conformance.hst_2_a_million_small_blocks": SLOW,
    "Conformance.hst_2_numa_nodes": NO_NUMA,
    "Devices/Man.man_33/*": NO_ADVICE,
    "Files.file_6_each_call_fails_once": SLOW,
    "Hub.*": START_TIME,
    "Ipc.*": START_TIME,
    "Pageable.str_7_a_mapped_file": "qemu-user ends when a system call meets a page behind the end of a file",
    "Pin.pin_18_pretended_nodes": NO_NUMA,
    "Pool.*": RESERVES,
    "PoolCapture.*": RESERVES,
    "Producers/UnendingWork.*": START_TIME,
    "Race.*": RESERVES,
    "Rings.*": START_TIME,
    "Sleep.*": RESERVES,
    "Vmm.*": NO_MREMAP,
    "Ways.*": START_TIME,
}


def missing():
    """Why nothing can be built or run here, or None."""
    if platform.machine() == "aarch64":
        return "this machine is arm64: the other suites run there as they are"
    needed = {CROSS + "g++": "g++-aarch64-linux-gnu", EMULATOR[0]: "qemu-user", "meson": "meson", "ninja": "ninja-build"}
    packages = [package for program, package in needed.items() if not shutil.which(program)]
    if not (GTEST / "src" / "gtest-all.cc").exists():
        packages.append("googletest")
    return f"not installed: {' '.join(packages)}" if packages else None


def make_dependencies(folder):
    """What pkg-config finds for arm64: xxHash, as its header alone, and GoogleTest."""
    folder.mkdir(parents=True, exist_ok=True)
    launcher = ["ccache"] if shutil.which("ccache") else []
    for name, source in (("gtest", "gtest-all"), ("gtest_main", "gtest_main")):
        made = folder / f"{source}.o"
        run(*launcher, f"{CROSS}g++", "-O1", "-c", f"-I{GTEST}", GTEST / "src" / f"{source}.cc", "-o", made)
        run(f"{CROSS}ar", "rcs", folder / f"lib{name}.a", made)
    for name, line in (("libxxhash", "Cflags: -DXXH_INLINE_ALL="), ("gtest", "Libs: -L${pcfiledir} -lgtest -pthread"),
                       ("gtest_main", "Requires: gtest\nLibs: -L${pcfiledir} -lgtest_main")):
        (folder / f"{name}.pc").write_text(f"Name: {name}\nDescription: for arm64\nVersion: 1\n{line}\n", encoding="utf-8")
    binaries = "".join(f"{name} = {[*launcher, CROSS + compiler]}\n" for name, compiler in (("c", "gcc"), ("cpp", "g++")))
    (folder / "launcher.ini").write_text(f"[binaries]\n{binaries}", encoding="utf-8")


def build(source, folder):
    dependencies, made = folder / "dependencies", folder / "build"
    make_dependencies(dependencies)
    known = ["--reconfigure"] if (made / "build.ninja").exists() else []
    run("meson", "setup", *known, made, source, "--cross-file", source / "packaging" / "arm64.ini", "--cross-file",
        dependencies / "launcher.ini", "--pkg-config-path", dependencies, "-Doptimization=1", "-Ddebug=false", "-Dwerror=true",
        "-Dunity=on", "-Dunity_size=16", "-Dadapters=false")
    run("ninja", "-C", made, "bindings/cli/gpumem", "tests/conformance/gpumem_conformance")
    header = run("readelf", "--file-header", made / "capi" / "libgpumem.so.0")
    return [] if re.search("Machine: +AArch64", header) else [header]


def run_shard(program, folder, shard):
    """The cases of one process, as pairs of a name and an element of GoogleTest, and what is wrong if it did not end well."""
    result = folder / f"conformance-{shard}.xml"
    result.unlink(missing_ok=True)
    env = {"GPUMEM_TEST_EMULATOR": " ".join(EMULATOR), "GTEST_TOTAL_SHARDS": str(SHARDS), "GTEST_SHARD_INDEX": str(shard)}
    command = [*EMULATOR, program, "--backend", "host", f"--gtest_filter=-{':'.join(LEFT_OUT)}", f"--gtest_output=xml:{result}"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, env=os.environ | env,
                              timeout=WATCHDOG_SECONDS)
        output, status = done.stdout, f"exit status {done.returncode}"
    except subprocess.TimeoutExpired as problem:
        output, status = problem.stdout or b"", f"not done after {WATCHDOG_SECONDS} s"
    if not result.exists():
        return [], [*output.decode("utf-8", "replace").splitlines()[-30:], status]
    cases = ElementTree.parse(result).iter("testcase")
    return [(f"{case.get('classname')}.{case.get('name')}", case) for case in cases if case.get("status") == "run"], []


def conformance(tap, folder):
    """Reports each case by its name."""
    program = folder / "build" / "tests" / "conformance" / "gpumem_conformance"
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for shard, (cases, problems) in enumerate(pool.map(lambda shard: run_shard(program, folder, shard), range(SHARDS))):
            for name, case in cases:
                skipped = case.find("skipped")
                if skipped is not None:
                    tap.skip(name, skipped.get("message", "").splitlines()[-1])
                else:
                    tap.check(name, [failure.get("message") for failure in case.iter("failure")])
            if problems:
                tap.check(f"conformance, part {shard}", problems)
    for pattern, reason in LEFT_OUT.items():
        tap.skip(pattern, reason)


def move(source, program, **options):
    said = run(*EMULATOR, program, "move", source / "LICENSE", "--backend", "host", **options)
    return [] if len(re.findall(r"^[a-z-]+ .* verified$", said, re.MULTILINE)) == 8 else [said]


def main():
    source, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    tap = Tap()
    reason = missing()
    if reason:
        tap.skip("arm64", reason)
    elif attempt(tap, "built", lambda: build(source, folder)):
        attempt(tap, "gpumem moves a file by every kind of memory",
                lambda: move(source, folder / "build" / "bindings" / "cli" / "gpumem"))
        conformance(tap, folder)
    tap.finish()


if __name__ == "__main__":
    main()
