#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What capi/generate.py writes is what the headers say now. Usage: generated.py SOURCE_ROOT"""

import contextlib
import shutil
import sys
import tempfile
from pathlib import Path
from unittest import mock

import description
import generate
import generate_csharp_calls
import generate_csharp_objects
import generate_go
import generate_go_calls
import generate_python
import generate_rust_calls
from tap import Tap

# A struct, constants and a function that no header has.
PLANTED = """
/** What is planted: one of the GPUMEM_PLANTED_ values. */
typedef int32_t gpumem_planted_kind;
#define GPUMEM_PLANTED_FIRST 41                    /**< The first. */
#define GPUMEM_PLANTED_SECOND (UINT64_C(1) << 33) /**< The second. */

/** Something planted. */
typedef struct gpumem_planted {
  size_t struct_size;       /**< Its size. */
  gpumem_planted_kind kind; /**< Its kind. */
  uint32_t reserved;        /**< 0. */
  const struct gpumem_planted_later *later; /**< What is declared later. */
} gpumem_planted;

/** Declared after its use. */
typedef struct gpumem_planted_later {
  char name[16]; /**< A text. */
} gpumem_planted_later;

/** Plants something.
 *
 * \\since 9.7 */
GPUMEM_API gpumem_status gpumem_plant(gpumem_device device, const gpumem_planted *planted, void **out_pointer,
                                      gpumem_error *error);
"""

PLANTED_STATUS = "#define GPUMEM_ERROR_PLANTED (-900) /**< Planted. */\n"

# A handle, with a function that bindings only pass on, and one that ends its object.
PLANTED_HANDLE = """
/** A sprout. */
typedef struct gpumem_sprout_s *gpumem_sprout;
"""
PLANTED_CALLS = """
/** Waters it.
 *
 * \\since 9.7 */
GPUMEM_API gpumem_status gpumem_sprout_water(gpumem_sprout sprout, gpumem_error *error);
/** Ends it.
 *
 * \\since 9.7 */
GPUMEM_API gpumem_status gpumem_sprout_destroy(gpumem_sprout sprout, gpumem_error *error);
"""

# A field at the end of structs that bindings have as structs of their own.
GROWN = {"stream.h": ("gpumem_stream_desc", "gpumem_stream_info"), "host.h": ("gpumem_host_options",)}


def self_check():
    """A planted function changes every file, with planted fields; it comes last in the table, in a version node of its own."""
    with tempfile.TemporaryDirectory() as folder:
        for path in description.HEADERS.glob("*.h"):
            shutil.copy(path, folder)
        header = Path(folder) / "version.h"
        text = header.read_text(encoding="utf-8")
        end = text.rindex("#ifdef __cplusplus")
        header.write_text(text[:end] + PLANTED_CALLS + PLANTED + text[end:], encoding="utf-8")
        header = Path(folder) / "base.h"
        text = header.read_text(encoding="utf-8")
        event = "typedef struct gpumem_event_s *gpumem_event;\n"
        header.write_text(text.replace(event, event + PLANTED_HANDLE), encoding="utf-8")
        header = Path(folder) / "status.h"
        text = header.read_text(encoding="utf-8")
        header.write_text(text.replace("#define GPUMEM_ERROR_INTERNAL", PLANTED_STATUS + "#define GPUMEM_ERROR_INTERNAL"), encoding="utf-8")
        for name, structs in GROWN.items():
            header = Path(folder) / name
            text = header.read_text(encoding="utf-8")
            for struct in structs:
                text = text.replace(f"}} {struct};", f"  uint64_t planted; /**< Planted. */\n}} {struct};")
            header.write_text(text, encoding="utf-8")
        interface = description.Description(description.in_order(folder))
        with contextlib.ExitStack() as planted:
            for module in (generate_csharp_calls, generate_go_calls, generate_rust_calls):
                planted.enter_context(mock.patch.object(module, "CALLS", [*module.CALLS, "sprout_water"]))
            for table, more in ((generate_csharp_calls.HANDLES, {"gpumem_sprout": ("Sprout", None)}),
                                (generate_csharp_objects.OBJECTS, {"Sprout": ("sprout", "Its instance.", "", "Its name.")}),
                                (generate_python.KNOWN, {"StreamKnown": ("gpumem_stream_info", "What it is.", False, {"planted": ""})})):
                planted.enter_context(mock.patch.dict(table, more))
            planted.enter_context(mock.patch.object(generate_go, "HANDLES", (*generate_go.HANDLES, "sprout")))
            stale = dict(generate.outdated(interface))
        problems = [f"{name} did not change" for name in generate.OUTPUTS if name not in stale]
        script = stale.get("capi/gpumem.map", "")
        if "GPUMEM_9.7 {\n  global:\n    # version.h\n" not in script or "    gpumem_plant;\n} GPUMEM_0." not in script:
            problems.append(f"the version script has no node for a new version:\n{script[-300:]}")
        if not stale.get("capi/src/table.inc", "").endswith("\ngpumem_plant,\n"):
            problems.append("a new function is not the last one of the table")
        row = "| `GPUMEM_ERROR_PLANTED` | `Status::PLANTED` | `ErrorKind::Internal` | `gpumem.ErrPlanted` | `Status.Planted` | `gpumem.Planted` |"
        if row not in stale.get("docs/errors.md", ""):
            problems.append("the guide does not say what a new status is called")
        values = {constant.name: (constant.value, constant.type) for constant in interface.constants}
        if values.get("GPUMEM_PLANTED_FIRST") != (41, "gpumem_planted_kind") or values["GPUMEM_PLANTED_SECOND"][0] != 1 << 33:
            problems.append(f"wrong values: {values.get('GPUMEM_PLANTED_FIRST')}, {values.get('GPUMEM_PLANTED_SECOND')}")
        return problems


def refuses(line):
    """The reader takes no declaration that it does not understand."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "strange.h"
        path.write_text(line, encoding="utf-8")
        try:
            description.Description([path])
        except description.Unreadable:
            return []
        return [f"accepted: {line}"]


def unknown_field():
    interface = description.Description()
    interface.require(["gpumem_stream_desc.priority"])
    try:
        interface.require(["gpumem_stream_desc.prioritys"])
    except description.Unreadable:
        return []
    return ["accepted: gpumem_stream_desc.prioritys"]


def main():
    root = Path(sys.argv[1]).resolve()
    tap = Tap()
    tap.check("a new function changes every generated file", self_check())
    for line in ("int gpumem_variable;\n", "GPUMEM_API void gpumem_f(int a[3]);\n", "#define GPUMEM_X sizeof(int)\n",
                 "typedef union { int a; } gpumem_u\n"):
        tap.check(f"the reader refuses {line.strip()}", refuses(line))
    tap.check("a generator that names a field which no header has is refused", unknown_field())
    stale = dict(generate.outdated(description.Description(), root))
    for name in generate.OUTPUTS:
        tap.check(f"{name} is up to date", "run capi/generate.py" if name in stale else "")
        tap.check(f"{name} says that it is generated",
                  "" if generate.NOTE[:-1] in (root / name).read_text(encoding="utf-8") else generate.NOTE)
    tap.finish()


if __name__ == "__main__":
    main()
