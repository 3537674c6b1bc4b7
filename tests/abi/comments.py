#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Every exported function says what a caller must know. Usage: comments.py HEADER..."""

import re
import sys
import tempfile
from pathlib import Path

from tap import Tap
import description

_COMMANDS = r"\\(?:param|retval|return|handles|blocking|threads|owner|since)\b"

# What a host function may call: whatever else there is lists INVALID_STATE (COM-27).
_ALSO_IN_HOST_FUNCTIONS = {
    "gpumem_capability_enumerate", "gpumem_device_get", "gpumem_device_get_info", "gpumem_event_get_info",
    "gpumem_host_device_lose", "gpumem_host_fail_step", "gpumem_host_foreign_peer_access", "gpumem_host_kernel_view",
    "gpumem_host_set_current_device", "gpumem_host_stream_set_capturing", "gpumem_instance_get_info",
    "gpumem_buffer_get_info", "gpumem_buffer_forget_registration", "gpumem_group_get_info",
    "gpumem_hub_get_info", "gpumem_link_get_info", "gpumem_memory_get_import_info", "gpumem_memory_get_info",
    "gpumem_physical_get_info", "gpumem_pool_capacity_for", "gpumem_pool_get_block_info", "gpumem_pool_get_class_info", "gpumem_pool_get_info",
    "gpumem_pool_reset_peaks", "gpumem_range_get_info", "gpumem_ring_get_info", "gpumem_share_get_fds",
    "gpumem_share_get_info", "gpumem_share_revoke", "gpumem_stats_get", "gpumem_stats_get_kind", "gpumem_stats_report",
    "gpumem_stats_reset_peaks", "gpumem_stats_snapshot", "gpumem_status_enumerate", "gpumem_status_get_info", "gpumem_stream_get_info",
    "gpumem_table_get"}


def missing_parts(function):
    if function.comment is None:
        return ["no documentation comment"]
    text = re.sub(r"^\s*\* ?", "", function.comment, flags=re.MULTILINE)
    missing = []
    if not re.match(r"\s*[A-Z][^\\]*?[.:](\s|$)", text):
        missing.append("no sentence at the start that says what it does")
    parameters = [parameter.name for parameter in function.parameters]
    documented = re.findall(r"\\param(?:\[[\w,]+\])?\s+(\w+)", text)
    missing += [f"\\param {name} is missing" for name in parameters if name not in documented]
    missing += [f"\\param {name} names no parameter" for name in documented if name not in parameters]
    result = str(function.result)
    if result == "gpumem_status":
        statuses = re.findall(r"\\retval\s+(\w+)", text)
        if "GPUMEM_SUCCESS" not in statuses:
            missing.append("\\retval GPUMEM_SUCCESS is missing")
        if function.name not in _ALSO_IN_HOST_FUNCTIONS and "GPUMEM_ERROR_INVALID_STATE" not in statuses:
            missing.append("\\retval GPUMEM_ERROR_INVALID_STATE is missing, as in a host function")
        missing += [f"\\retval {s} stands twice" for s in sorted(set(statuses)) if statuses.count(s) > 1]
    elif result != "void" and not re.search(r"\\returns?\s", text):
        missing.append("\\return is missing")
    missing += [f"{command} stands inside a line" for command in re.findall(rf"\S.*?[^\s`].*?({_COMMANDS})", text)]
    for part in (r"\blocking{", r"\threads{", r"\since "):
        if part not in text:
            missing.append(f"{part.rstrip(' {')} is missing")
    return missing


def self_check():
    """A comment that lacks everything is found."""
    with tempfile.TemporaryDirectory() as folder:
        header = Path(folder) / "bad.h"
        header.write_text("/** \n * \\param b wrong \\return name\n */\nGPUMEM_API gpumem_status gpumem_bad(int a);\n"
                          "GPUMEM_API void gpumem_bare(void);\n", encoding="utf-8")
        bad, bare = description.Description([header]).functions
        found = missing_parts(bad) + missing_parts(bare)
        expected = ["no sentence", "\\param a", "\\param b", "\\retval", "\\blocking", "\\threads", "\\since", "\\return stands",
                    "no documentation"]
        return [f"a missing part was not noticed: {part}" for part in expected
                if not any(line.startswith(part) for line in found)]


def main():
    headers = sys.argv[1:]
    tap = Tap()
    tap.check("the test notices missing parts", self_check())
    functions = description.Description(headers).functions
    # Counted without understanding the declarations.
    marks = sum(len(re.findall(r"^GPUMEM_API\b", description.without_comments(Path(path).read_text(encoding="utf-8")), re.MULTILINE))
                for path in headers)
    tap.check("every GPUMEM_API declaration was understood",
              [] if marks == len(functions) else [f"{marks} declarations, {len(functions)} understood"])
    for function in functions:
        tap.check(function.name, missing_parts(function))
    tap.finish()


if __name__ == "__main__":
    main()
