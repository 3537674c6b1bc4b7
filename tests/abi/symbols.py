#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Headers, version script, shared library and function table name the same functions, and the library needs nothing
but the C and C++ run time. Usage: symbols.py LIBRARY MAP SONAME VERSION SANITIZED HEADER..."""

import re
import subprocess
import sys
from pathlib import Path

from tap import Tap
import description

# libdl, libpthread and librt are parts of libc that stood apart before glibc 2.34.
RUNTIME = re.compile(r"lib(c|m|dl|pthread|rt|stdc\+\+|gcc_s)\.so\.\d+|ld-linux[\w-]*\.so\.\d+")
SANITIZER = re.compile(r"lib(asan|ubsan|tsan|lsan)\.so\.\d+")


def difference(left, right, left_name, right_name):
    return ([f"in {left_name}, not in {right_name}: {name}" for name in sorted(set(left) - set(right))]
            + [f"in {right_name}, not in {left_name}: {name}" for name in sorted(set(right) - set(left))])


def map_nodes(text):
    """Node name -> (functions, the node it continues)."""
    text = re.sub(r"/\*.*?\*/|#[^\n]*", "", text, flags=re.DOTALL)
    nodes = {}
    for name, body, parent in re.findall(r"(\w+(?:\.\w+)*)\s*\{(.*?)\}\s*([\w.]*)\s*;", text, re.DOTALL):
        exported = body.split("local:")[0].replace("global:", "")
        nodes[name] = ([entry.strip() for entry in exported.split(";") if entry.strip()], parent)
    return nodes


def run(*command):
    return subprocess.run(command, text=True, capture_output=True, check=True).stdout


def main():
    library, map_file, soname, version, sanitized, *headers = sys.argv[1:]
    tap = Tap()

    interface = description.Description(headers)
    declared = [function.name for function in interface.functions]
    nodes = map_nodes(Path(map_file).read_text(encoding="utf-8"))
    mapped = [name for names, _ in nodes.values() for name in names]
    exported = {}
    for line in run("nm", "--dynamic", "--defined-only", "--with-symbol-versions", library).splitlines():
        _, kind, symbol = line.split()
        name, _, node = symbol.partition("@@")
        if kind != "A":
            exported[name] = node

    tap.check("no function is declared or listed twice",
              [f"twice: {name}" for names in (declared, mapped) for name in sorted(set(names)) if names.count(name) > 1])
    tap.check("the map lists names, no patterns", [f"pattern: {name}" for name in mapped if not re.fullmatch(r"\w+", name)])
    tap.check("the headers and the map agree", difference(declared, mapped, "headers", "map"))
    tap.check("the map and the library agree", difference(mapped, exported, "map", "library"))
    tap.check("each symbol has the version node that the map says",
              [f"{name} has node {exported.get(name)}, not {node}" for node, (names, _) in nodes.items() for name in names
               if exported.get(name) != node])
    tap.check("no C++ symbol is exported", [name for name in exported if name.startswith("_Z")])

    table = interface.struct("gpumem_table")
    members = table.fields[1:] if table else []
    tap.check("the function table agrees with the headers",
              difference(set(declared) - {"gpumem_table_get"}, [member.name for member in members], "headers", "function table"))
    tap.check("each table member has the type of its function",
              [f"{member.name} has type {member.type}" for member in members if str(member.type) != f"PFN_{member.name}"])

    dynamic = run("readelf", "--dynamic", "--wide", library)
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    allowed = [name for name in needed if RUNTIME.fullmatch(name) or (sanitized == "true" and SANITIZER.fullmatch(name))]
    tap.check("the library needs the C and C++ run time only", difference(needed, allowed, "NEEDED", "what is allowed"))
    tap.check("SONAME", difference(re.findall(r"\(SONAME\).*\[(.*)\]", dynamic), [soname], "library", "build"))
    flags = " ".join(re.findall(r"\(FLAGS(?:_1)?\)\s+(.*)", dynamic))
    tap.check("the library is linked with -z nodelete and -z now",
              [f"{flag} is missing" for flag in ("NODELETE", "NOW") if flag not in flags])

    macros = dict(re.findall(r"#define GPUMEM_VERSION_(MAJOR|MINOR|PATCH) (\d+)",
                             "".join(Path(path).read_text(encoding="utf-8") for path in headers)))
    tap.check("the headers have the version of the build",
              difference([".".join(macros.get(part, "?") for part in ("MAJOR", "MINOR", "PATCH"))], [version],
                         "headers", "build"))
    tap.finish()


if __name__ == "__main__":
    main()
