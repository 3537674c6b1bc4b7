#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Every public header compiles alone, and all of them in each language standard, without a warning; Clang's
-Weverything has nothing to say about a use of every macro; and no header defines what a second translation unit may not
define too. So it is with the headers of C++, with exceptions and without.
Usage: header_matrix.py INCLUDE_FOLDER HEADER..."""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tap import Tap
import description

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Wundef", "-Werror"]
# Standard names that the oldest supported compilers know.
STANDARDS = {"c": ["c99", "c11", "c17", "c2x"], "c++": ["c++11", "c++14", "c++17", "c++20", "c++2b"]}
COMPILERS = {"gcc": {"c": "gcc", "c++": "g++"}, "clang": {"c": "clang", "c++": "clang++"}}
# Commands of Doxygen that Clang does not know are in the comments on purpose.
EVERYTHING = ["-Weverything", "-Wno-documentation-unknown-command"]
# GCC has no -Weverything; this is what a C++ project is likely to ask for.
CAREFUL = {"c": ["-Wcast-qual", "-Wstrict-prototypes", "-Wsign-conversion"],
           "c++": ["-Wcast-qual", "-Wold-style-cast", "-Wuseless-cast", "-Wsign-conversion", "-Wzero-as-null-pointer-constant"]}
EMPTY = "typedef int nothing;\n"
SHADOW = "int shadow(int a);\nint shadow(int a) { { int a = 1; return a; } }\n"
# The headers of C++. Without exceptions, a call must be given its error.
CPP_STANDARDS = ["c++17", "c++20", "c++2b"]
CPP_FORMS = {"": [], " without exceptions": ["-fno-exceptions"]}
CPP_ERROR_LEFT_OUT = "#include <gpumem/gpumem.hpp>\nint main() { gpumem::default_instance().reset_peaks(); }\n"
ALLOWED_SYSTEM = {"<stddef.h>", "<stdint.h>"}


def cpp_header(tap, include):
    """What the headers of C++ promise beside what tests/bindings/cpp runs."""
    text = "#include <gpumem/mr.hpp>\n"  # which includes gpumem.hpp
    for family, compilers in COMPILERS.items():
        compiler = compilers["c++"]
        if not shutil.which(compiler):
            tap.skip(f"{compiler} mr.hpp", f"{compiler} is not installed")
            continue
        for standard in CPP_STANDARDS:
            for form, flags in CPP_FORMS.items():
                more = [*flags, *CAREFUL["c++"], "-Wextra-semi"]
                if family == "clang":  # It has no such warning as GCC has, but one for comments.
                    more = [flag for flag in more if flag != "-Wuseless-cast"] + ["-Wdocumentation"]
                tap.check(f"{compiler} {standard}: mr.hpp{form}, in any number of units",
                          problems_of(compiler, "c++", standard, include, text * 2, more))
        for form, flags in CPP_FORMS.items():
            result = compile_text(compiler, "c++", "c++17", include, CPP_ERROR_LEFT_OUT, ["-c", "-o", "/dev/null", *flags])
            refused = "must be a gpumem::Error" in result.stderr
            tap.check(f"{compiler}: the error of a call can{'not' if flags else ''} be left out{form}",
                      "" if bool(result.returncode) == refused == bool(flags) else result.stderr or "it compiled")


def compile_text(compiler, language, standard, include, text, extra=("-fsyntax-only",)):
    command = [compiler, "-x", language, f"-std={standard}", *WARNINGS, f"-I{include}", *extra, "-"]
    return subprocess.run(command, input=text, text=True, capture_output=True, check=False)


def problems_of(compiler, language, standard, include, text, flags, allowed=()):
    """What the compiler says of `text`, or which definitions another unit cannot have too."""
    with tempfile.TemporaryDirectory() as folder:
        made = str(Path(folder) / "unit.o")
        result = compile_text(compiler, language, standard, include, text, ["-c", "-o", made, *flags])
        if result.returncode:
            return result.stderr
        defined = subprocess.run(["nm", "--extern-only", "--defined-only", made], text=True, capture_output=True, check=True).stdout
        # Weak ones (W, V) and unique ones (u) are those of inline functions and templates.
        return [f"defines {name}" for _, sort, name in map(str.split, defined.splitlines())
                if sort not in "WVu" and name not in allowed]


def uses_of_macros(headers):
    """A unit that expands every macro of the headers, because a warning about a macro comes only where it is used."""
    values, initials = [], []
    for path in headers:
        text = re.sub(r"\\\n", " ", path.read_text(encoding="utf-8"))
        for name, value in re.findall(r"^#define (GPUMEM_\w+)(?: +(?!/\*)(\S.*))?$", text, re.MULTILINE):
            if name.endswith("_INIT"):
                initials.append(f"  {{ {name.lower().removesuffix('_init')} object = {name}; (void)object; }}\n")
            elif value and not name.endswith("_H") and name not in ("GPUMEM_API", "GPUMEM_CALL"):
                values.append(f"  (void)({name});\n")
    return ("int main(void) {\n" + "".join(values + initials) +
            "  (void)GPUMEM_MAKE_VERSION(1, 2, 3);\n  return GPUMEM_FAILED(GPUMEM_SUCCESS);\n}\n", len(values), len(initials))


def main():
    include, headers = sys.argv[1], [Path(name) for name in sys.argv[2:]]
    tap = Tap()

    own = {f'"{path.name}"' for path in headers}
    tap.check("includes nothing but each other, stddef.h and stdint.h",
              [f"{path.name} includes {name}" for path in headers for name in description.includes(path)
               if name not in ALLOWED_SYSTEM and name not in own])
    present = {path.name for path in (Path(include) / "gpumem").glob("*.h")}
    tap.check("the build installs every header in the folder",
              [f"{name} is not installed" for name in present - {path.name for path in headers}])
    everything = {name.strip('"') for name in description.includes(Path(include) / "gpumem" / "gpumem.h")}
    tap.check("gpumem.h includes every other header",
              [f"{path.name} is missing" for path in headers if path.name not in everything | {"gpumem.h"}])

    all_of_them = "".join(f"#include <gpumem/{path.name}>\n" for path in headers)
    uses, values, initials = uses_of_macros(headers)
    tap.check("there are constants and initial values to use", [] if values > 100 and initials > 10 else
              [f"{values} constants, {initials} initial values"])
    alone = set()
    for family, compilers in COMPILERS.items():
        for language, standards in STANDARDS.items():
            compiler = compilers[language]
            if not shutil.which(compiler):
                tap.skip(f"{compiler}", f"{compiler} is not installed")
                continue
            bad = compile_text(compiler, language, standards[0], include, SHADOW)
            tap.check(f"{compiler}: a warning is an error", [] if bad.returncode else ["a warning passed"])
            for standard in standards:
                if compile_text(compiler, language, standard, include, EMPTY).returncode:
                    tap.skip(f"{compiler} {standard}", f"this {family} does not know -std={standard}")
                    continue
                # What a header needs, it needs in every standard and of every compiler.
                if language not in alone:
                    alone.add(language)
                    tap.check(f"{compiler} {standard}: each header alone",
                              [compile_text(compiler, language, standard, include,
                                            f"#include <gpumem/{path.name}>\n").stderr for path in headers])
                # The second copy of the includes proves the guards.
                tap.check(f"{compiler} {standard}: every macro, in any number of units, with "
                          f"{'-Weverything' if family == 'clang' else 'more warnings'}",
                          problems_of(compiler, language, standard, include, all_of_them * 2 + uses,
                                      EVERYTHING if family == "clang" else CAREFUL[language], ("main",)))
    cpp_header(tap, include)
    tap.finish()


if __name__ == "__main__":
    main()
