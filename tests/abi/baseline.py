#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Today's headers have all that each baseline has, and programs that were compiled with a baseline work with today's library.
Usage: baseline.py SOURCE_ROOT LIBRARY COMPILER...

A baseline is the interface of one version as a single header, `baseline/VERSION/gpumem/gpumem.h`. Compared are the types by
capi/description.py, and sizes, offsets and values by the compiler. docs/abi.md has the rules.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "bindings")]
import agreement  # noqa: E402
import description  # noqa: E402
import generate  # noqa: E402
import layout  # noqa: E402
import old_caller  # noqa: E402
from tap import Tap  # noqa: E402

BASELINES = HERE / "baseline"
# What each version says of itself.
OF_THE_VERSION = re.compile(r"GPUMEM_VERSION(_MAJOR|_MINOR|_PATCH)?")

# A small interface, and what may happen to it: the change, and what is said of it. Without a word it is an addition.
HEAD = "#include <stddef.h>\n#include <stdint.h>\n#define GPUMEM_API\n#define GPUMEM_CALL\n"
SMALL = """\
typedef struct gpumem_thing_s *gpumem_thing;
typedef int32_t gpumem_sort;
#define GPUMEM_SORT_ONE 1
#define GPUMEM_SORT_TWO (UINT64_C(1) << 40)
#define GPUMEM_TWICE(number) ((number)*2)
typedef void(GPUMEM_CALL *gpumem_function)(void *user);
typedef struct gpumem_pair {
  uint32_t first;
  uint32_t second;
} gpumem_pair;
typedef struct gpumem_desc {
  size_t struct_size;
  gpumem_sort sort;
  char name[12];
  uint64_t bytes;
  uint32_t last;
} gpumem_desc;
#define GPUMEM_DESC_INIT \\
  { sizeof(gpumem_desc) }
GPUMEM_API int32_t gpumem_do(gpumem_thing thing, const gpumem_desc *desc, uint64_t size);
GPUMEM_API void gpumem_other(void);
"""
CHANGES = [
    ("a function is removed", "GPUMEM_API void gpumem_other(void);\n", "", "function gpumem_other is removed"),
    ("a parameter has another type", "uint64_t size)", "uint32_t size)", "function gpumem_do is changed"),
    ("a parameter is const no more", "const gpumem_desc *desc", "gpumem_desc *desc", "function gpumem_do is changed"),
    ("a parameter is added", "uint64_t size)", "uint64_t size, int32_t more)", "function gpumem_do is changed"),
    ("a result has another type", "int32_t gpumem_do", "int64_t gpumem_do", "function gpumem_do is changed"),
    ("a callback has another parameter", "void *user", "const void *user", "callback gpumem_function is changed"),
    ("a handle points to something else", "gpumem_thing_s", "gpumem_other_s", "handle gpumem_thing is changed"),
    ("a type has another size", "typedef int32_t gpumem_sort", "typedef int64_t gpumem_sort", "type gpumem_sort is changed"),
    ("a constant has another value", "SORT_ONE 1", "SORT_ONE 2", "constant GPUMEM_SORT_ONE is changed"),
    ("a constant has another type", "SORT_ONE 1", "SORT_ONE UINT64_C(1)", "constant GPUMEM_SORT_ONE is changed"),
    ("a constant is removed", "#define GPUMEM_SORT_TWO (UINT64_C(1) << 40)\n", "", "constant GPUMEM_SORT_TWO is removed"),
    ("a macro has another parameter", "TWICE(number) ((number)*2)", "TWICE(number, by) ((number)*(by))", "macro GPUMEM_TWICE is changed"),
    ("an _INIT macro is removed", "#define GPUMEM_DESC_INIT \\\n  { sizeof(gpumem_desc) }\n", "", "initial value gpumem_desc is removed"),
    ("a field has another type of the same size", "uint64_t bytes", "int64_t bytes", "field gpumem_desc.bytes is changed"),
    ("a field has another size", "char name[12]", "char name[20]", "field gpumem_desc.name is changed"),
    ("a field is removed", "  uint64_t bytes;\n", "", "field gpumem_desc.bytes is removed"),
    ("fields change places", "uint32_t first;\n  uint32_t second;", "uint32_t second;\n  uint32_t first;", "field gpumem_pair.first is changed"),
    ("a field comes in the middle", "  uint64_t bytes;\n", "  uint64_t new_one;\n  uint64_t bytes;\n", "field gpumem_desc.bytes is changed"),
    ("a field comes where older programs have padding", "  uint32_t last;\n", "  uint32_t last;\n  uint32_t new_one;\n",
     "field gpumem_desc.new_one lies inside the old struct"),
    ("a struct without its size grows", "uint32_t second;", "uint32_t second;\n  uint32_t third;", "struct gpumem_pair is changed"),
    ("a function is added", "GPUMEM_API void", "GPUMEM_API void gpumem_new(void);\nGPUMEM_API void", ""),
    ("a constant is added", "#define GPUMEM_SORT_TWO", "#define GPUMEM_SORT_NEW 7\n#define GPUMEM_SORT_TWO", ""),
    ("a struct is added", "typedef struct gpumem_pair", "typedef struct gpumem_new {\n  int32_t one;\n} gpumem_new;\ntypedef struct gpumem_pair", ""),
    ("a field is added at the end", "  uint32_t last;\n", "  uint32_t last;\n  uint64_t new_one;\n", ""),
    # The last one, because it applies to the rest of the file.
    ("a struct is packed", "typedef struct gpumem_desc {", "#pragma pack(4)\ntypedef struct gpumem_desc {", "struct gpumem_desc is changed"),
]


class Failed(Exception):
    """A program that does not compile, or whose run fails."""


def run(*command):
    result = subprocess.run([str(word) for word in command], text=True, capture_output=True, check=False)
    if result.returncode:
        raise Failed(f"{' '.join(map(str, command))}: {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout


def facts(header, compiler, folder):
    """What a program relies on: the name of each thing, with what is said of it."""
    interface = description.Description([header])
    known = {f"handle {handle.name}": f"struct {handle.target} *" for handle in interface.handles}
    known |= {f"type {numbers.name}": numbers.base for numbers in interface.numbers if numbers.declared}
    known |= {f"macro {name}": f"of ({', '.join(parameters)})" for name, (parameters, _) in interface.function_macros.items()}
    known |= {f"initial value {name}": "there" for name in interface.initial_values}
    for kind, functions in (("function", interface.functions), ("callback", interface.callbacks)):
        known |= {f"{kind} {one.name}": f"{one.result} ({', '.join(str(parameter.type) for parameter in one.parameters)})"
                  for one in functions}
    types = {f"constant {constant.name}": constant.type for constant in interface.constants}
    types |= {f"field {struct.name}.{field.name}": f"{field.type}{'' if field.length is None else f' [{field.length}]'}"
              for struct in interface.structs for field in struct.fields}
    for line in run_program(layout.program(interface), header, compiler, folder).splitlines():
        kind, name, said = re.match(r"(\w+) (\S+) ?(.*)", line).groups()
        if kind != "function" and not OF_THE_VERSION.fullmatch(name):
            known[f"{kind} {name}"] = " ".join(filter(None, [types.get(f"{kind} {name}"), said]))
    return known


def run_program(text, header, compiler, folder, *more):
    """Compiles a program in C with a header, and returns what it prints."""
    source, made = Path(folder) / "program.c", Path(folder) / "program"
    source.write_text(text, encoding="utf-8")
    run(*compiler, "-std=c99", "-w", f"-I{header.parent.parent}", f"-I{HERE}", source, "-o", made, *more)
    return run(made)


def size(said):
    return int(re.search(r"size (\d+)", said)[1])


def differences(old, new):
    """What breaks programs, and what is new."""
    broken, added = [], []
    for name, said in old.items():
        kind, _, struct = name.partition(" ")
        grows = kind == "struct" and f"field {struct}.struct_size" in old
        if name not in new:
            broken.append(f"{name} is removed; it was {said}")
        elif grows and new[name].split()[2:] == said.split()[2:] and size(new[name]) >= size(said):
            continue
        elif new[name] != said:
            broken.append(f"{name} is changed from {said} to {new[name]}")
    for name, said in new.items():
        owner = f"struct {name.partition(' ')[2].partition('.')[0]}"
        if name in old:
            continue
        if name.startswith("field ") and owner in old and int(re.search(r"offset (\d+)", said)[1]) < size(old[owner]):
            broken.append(f"{name} lies inside the old struct of {size(old[owner])} bytes, where old programs have something else")
        else:
            added.append(f"{name} is new: {said}")
    return broken, added


def compared_by_abidiff(old, new, compiler, folder):
    """What libabigail says of the functions of two headers, and of the types that they take. Structs with their size may grow."""
    libraries = []
    for number, header in enumerate((old, new)):
        text = re.sub(r"^(GPUMEM_API [^;{]*\));", r"\1 { __builtin_trap(); }", header.read_text(encoding="utf-8"), flags=re.MULTILINE)
        source = Path(folder) / f"bodies_{number}.c"
        source.write_text(text, encoding="utf-8")
        libraries.append(source.with_suffix(".so"))
        run(*compiler, "-std=gnu99", "-w", "-g", "-shared", "-fPIC", source, "-o", libraries[-1])
    growing = [struct.name for struct in description.Description([old]).structs if struct.fields[0].name == "struct_size"]
    growth = Path(folder) / "growth"
    growth.write_text(f"[suppress_type]\n  type_kind = struct\n  name_regexp = ^({'|'.join(growing)})$\n  has_data_member_inserted_at = end\n",
                      encoding="utf-8")
    result = subprocess.run(["abidiff", "--no-added-syms", "--suppressions", growth, *libraries], text=True, capture_output=True, check=False)
    return [line for line in (result.stdout + result.stderr).splitlines() if line] if result.returncode else []


def shortened(lines):
    """Where one field moves, all that follow do: of each struct, the first line only."""
    first, more = {}, {}
    for line in lines:
        struct = re.match(r"field (\w+)|", line)[1] or line
        more[struct] = more.get(struct, -1) + 1
        first.setdefault(struct, line)
    return [line + (f"; and {more[struct]} more of this struct" if more[struct] else "") for struct, line in first.items()]


def self_check(tap, compiler, folder):
    """Each kind of change, made to a small interface, is noticed, and each addition is known to be one."""
    changed = [SMALL] + [SMALL.replace(before, after) for _, before, after, _ in CHANGES]
    # One header with all of them, each with its number in its names, so that the compiler starts once.
    text = HEAD + "".join(re.sub(r"(gpumem|GPUMEM)_(?!API|CALL)", rf"\1_{number}_", text) for number, text in enumerate(changed))
    known = facts(written(folder, "small", text), compiler, folder)

    def numbered(number):
        mark = re.compile(rf"(?<=gpumem_){number}_", re.IGNORECASE)
        return {mark.sub("", name): mark.sub("", said) for name, said in known.items() if mark.search(name)}
    for number, (what, _, _, expected) in enumerate(CHANGES, 1):
        broken, added = differences(numbered(0), numbered(number))
        good = any(line.startswith(expected) for line in broken) if expected else added and not broken
        tap.check(f"known for what it is: {what}",
                  [] if good and changed[number] != SMALL else broken + added + ["nothing else was said"])


# It is no judge of macros, `const`, types of the same size, and what lies in padding.
SEEN_BY_ABIDIFF = {"a function is removed", "a parameter has another type", "a parameter is added", "a result has another type",
                   "a field is removed", "a field comes in the middle"}


def abidiff_check(tap, compiler, folder):
    for number, (what, before, after, expected) in enumerate(CHANGES):
        if expected and what not in SEEN_BY_ABIDIFF:
            continue
        old, new = (written(folder, f"abidiff_{number}_{name}", HEAD + text) for name, text in (("old", SMALL), ("new", SMALL.replace(before, after))))
        said = compared_by_abidiff(old, new, compiler, folder)
        tap.check(f"known to abidiff for what it is: {what}", [] if bool(said) == bool(expected) else said + ["nothing else was said"])


def written(folder, name, text):
    header = Path(folder) / name / "gpumem" / "gpumem.h"
    header.parent.mkdir(parents=True)
    header.write_text(text, encoding="utf-8")
    return header


def main():
    root, library, *compiler = sys.argv[1:]
    tap = Tap()
    current, released = generate.version_of_headers(), generate.released_versions(Path(root))
    baselines = {path.parent.parent.name: path for path in sorted(BASELINES.glob("*/gpumem/gpumem.h"))
                 if path.parent.parent.name.split(".")[0] == current.split(".")[0]}
    functions = description.Description().functions
    with tempfile.TemporaryDirectory() as folder:
        self_check(tap, compiler, folder)
        abidiff = shutil.which("abidiff") is not None
        if abidiff:
            abidiff_check(tap, compiler, folder)
        (Path(folder) / "CHANGELOG.md").write_text("# Changes\n\n## 1.0.10 (not yet released)\n\n## 0.2.0\n\n## 0.1.12 (2027-01-05)\n", encoding="utf-8")
        tap.check("a version is released if CHANGELOG.md does not deny it", {"0.1", "0.2"} ^ generate.released_versions(Path(folder)))
        tap.check("every released version, and that of the headers, has a baseline",
                  [f"{version} has none: run capi/generate.py" for version in sorted({*released, current} - set(baselines))
                   if version.split(".")[0] == current.split(".")[0]])
        of_today = written(folder, "today", generate.one_header(description.Description()))
        today = facts(of_today, compiler, folder)
        link = [library, f"-Wl,-rpath,{Path(library).parent}"]
        for version, baseline in baselines.items():
            broken, added = differences(facts(baseline, compiler, folder), today)
            advice = f"{version} is released, and its programs rely on this: docs/abi.md says what may change" \
                if version in released else f"{version} is not released: if this is meant, record it with capi/generate.py"
            tap.check(f"{version}: nothing is removed or changed", shortened(broken) + [advice] * bool(broken))
            what = f"{version}: abidiff finds nothing removed or changed"
            if abidiff:
                tap.check(what, compared_by_abidiff(baseline, of_today, compiler, folder))
            else:
                tap.skip(what, "abidiff of abigail-tools is not installed")
            if version == current:
                advice = f"{version} is released: raise GPUMEM_VERSION_MINOR, and run capi/generate.py" \
                    if version in released else "record it with capi/generate.py"
                tap.check(f"{version}: nothing is new", added + [advice] * bool(added))
            interface = description.Description([baseline])
            had = {function.name for function in interface.functions}
            tap.check(f"{version}: \\since says what it has",
                      [f"{function.name} says \\since {'.'.join(map(str, function.since))}" for function in functions
                       if (function.since <= tuple(map(int, version.split(".")))) != (function.name in had)])
            for what, text in (("the library is what its headers say", agreement.program(interface)),
                               ("a program that was compiled with its headers works", old_caller.program(interface))):
                problems = []
                try:
                    run_program(text, baseline, compiler, folder, *link)
                except Failed as problem:
                    lines = str(problem).splitlines()
                    problems = [line for line in lines if not line.startswith("ok ")] + ["The last line: " + lines[-1]]
                tap.check(f"{version}: {what}", problems)
    tap.finish()


if __name__ == "__main__":
    main()
