# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reads the public headers: the functions with their comments, the structs with an initial value, the includes.

It relies on how the headers are written (one GPUMEM_API declaration after one documentation comment), and the test of
the comments fails where they are written differently.
"""

import re
from collections import namedtuple
from pathlib import Path

Function = namedtuple("Function", "header name returns parameters comment")

_COMMENT = r"/\*\*((?:(?!\*/).)*)\*/\s*"
_DECLARATION = re.compile(
    rf"(?:{_COMMENT})?GPUMEM_API\s+([\w\s*]*?[\s*])(gpumem_\w+)\s*\(([^;]*)\)\s*;", re.DOTALL)


def without_comments(text):
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)


def functions(headers):
    """Every exported function. `comment` is None where there is none."""
    found = []
    for path in headers:
        for comment, returns, name, parameters in _DECLARATION.findall(Path(path).read_text(encoding="utf-8")):
            names = [re.search(r"(\w+)\s*(?:\[\w*\])?\s*$", p).group(1)
                     for p in without_comments(parameters).split(",") if p.strip() not in ("", "void")]
            found.append(Function(Path(path).name, name, " ".join(returns.split()), names, comment or None))
    return found


def export_marks(headers):
    """How often GPUMEM_API marks a declaration, counted without understanding the declaration."""
    text = "\n".join(without_comments(Path(path).read_text(encoding="utf-8")) for path in headers)
    return len(re.findall(r"^GPUMEM_API\b", text, re.MULTILINE))


def init_macros(headers):
    """The structs with an initial value, by the naming rule gpumem_x, GPUMEM_X_INIT."""
    text = "\n".join(without_comments(Path(path).read_text(encoding="utf-8")) for path in headers)
    return [macro.lower() for macro in re.findall(r"^#define (GPUMEM_\w+)_INIT\b", text, re.MULTILINE)]


def flags(headers):
    """The constants that are bits of flags."""
    text = "\n".join(without_comments(Path(path).read_text(encoding="utf-8")) for path in headers)
    return re.findall(r"^#define (GPUMEM_(?:MEMORY|EVENT)_(?!\w*_INIT\b)\w+)[ \t]", text, re.MULTILINE)


def growing_structs(headers):
    """The structs that begin with struct_size."""
    text = "\n".join(without_comments(Path(path).read_text(encoding="utf-8")) for path in headers)
    return re.findall(r"typedef struct (gpumem_\w+)\s*\{\s*size_t struct_size;", text)


def includes(path):
    return re.findall(r'^\s*#\s*include\s+([<"][^>"]+[>"])', Path(path).read_text(encoding="utf-8"), re.MULTILINE)
