# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What the library says in the names of C, in those of Python."""

from __future__ import annotations

import re
from enum import Flag
from typing import Dict, Match

from . import _codes, _native
from ._names import FUNCTIONS as _FUNCTIONS
from .errors import STATUS_CLASSES, STATUS_NAMES

_C_NAME = re.compile(r"\bor close with GPUMEM_CLOSE_FORCE|\bwith GPUMEM_MEMORY_[A-Z0-9_]+|\b(?:GPUMEM_[A-Z0-9_]+\??|gpumem_[a-z0-9_]+(?:\(\))?|NULL\b)")
_POOL_BLOCKS = re.compile(r"free (?:it|them) with gpumem_pool_free_pointer\(\)|gpumem_pool_free_pointer\(\) frees them")
_END_OF_BLOCKS = "call free() of each PoolBlock or drop it, and Instance.free_block() for those of Pool.malloc()"
# What Python passes in another way than C. A word alone may be a name or part of a path that a program has chosen.
_PHRASES = tuple((re.compile(pattern), words) for pattern, words in (
    (r"was (?:destroyed|closed); do not use its handle after that", "was closed"),
    (r"\bdesc->", ""),
    (r" than that in desc\b", " than the call says"),
    (r"\bthe functions of gpumem_buffer\b", "the methods of the Buffer"),
    (r", with the node in location_id\b", ' with the node, as in ("host_numa", 0)'),
    (r"\bset location and location_id to 0\b", "leave it out"),
    (r"\blocation_id is\b", "the number of the location is"),
    (r"\btoken_size is\b", "len(token) is"),
    (r"\bfd_count is\b", "len(fds) is"),
    (r"\bcontext_count (?=is|exceeds)", "len(contexts) "),
    (r"\bmax_level is\b", "level is"),
    (r"\bphysicals\[(.+?)\]", r"block \1"),
    (r"\bpointers\[.+?\]: ", "a block: "),
    (r"\bone of the GPUMEM_TOGGLE_ values \(0 to 2\)", "True, False or None"),
))
_DESTROY = re.compile(r"\b([Dd])estroy(ed|ing)?\b")
_MEMORY_FLAGS = re.compile(r"the flags (0x[0-9a-f]+) are(?=.* memory)")
_OBJECT = re.compile(r"(?m)(^|[:;] ?)(?:(device|pinned|registered|managed|imported) memory|"
                     r"(stream|event|physical|virtual|buffer|pool|ring|hub)(?: memory)?) (.*?): (?=\d+ |device \d|[/@])")
_LINK = re.compile(r"(?m)(^|[:;] )link: (?=[/@])")
_GROUP = re.compile(r"(?m)(^|[:;] )group (.*?)(?=$|; )")


def _constants() -> Dict[str, str]:
    """The constants of the enumerations, and what messages call all of one: "GPUMEM_KIND_"."""
    found = {}
    for name in vars(_native):
        for prefix, cls in sorted(_codes.PREFIXES, key=lambda item: -len(item[0])):
            if name.startswith(prefix) and name[len(prefix):] in cls.__members__:
                # The guide passes flags by their names.
                value = name[len(prefix):]
                found[name] = f'"{value.lower()}"' if issubclass(cls, Flag) else f"{cls.__name__}.{value}"
                if cls is _codes.MemoryFlags:
                    found[f"with {name}"] = f'with require="{value.lower()}"'
                break
    # Of two types with the same prefix, the first.
    found.update((prefix, cls.__name__) for prefix, cls in reversed(_codes.PREFIXES))
    found.update((STATUS_NAMES[status], cls.__name__) for status, cls in STATUS_CLASSES.items())
    return {**found, **_FUNCTIONS, "NULL": "None", "GPUMEM_CLOSE_FORCE": "force=True", "GPUMEM_SLEEP_IDLE": "idle=True",
            "or close with GPUMEM_CLOSE_FORCE": "or call close(force=True)", "gpumem_buffer": "Buffer", "gpumem_physical": "Physical"}


_names: Dict[str, str] = {}


def _in_python(match: Match[str]) -> str:
    if not _names:
        _names.update(_constants())
    name = match[0]
    return _names.get(name) or _names.get(name.replace("()", "")) or name


def _flags(match: Match[str]) -> str:
    return f"the flags {_codes.MemoryFlags(int(match[1], 16))} are"


def in_python(text: str) -> str:
    """A message of the library. Names that Python does not have, such as those of the environment, stay."""
    for phrase, words in _PHRASES:
        text = phrase.sub(words, text)
    # By its address, a block would be freed a second time when its object is dropped.
    text = _POOL_BLOCKS.sub(_END_OF_BLOCKS, text)
    text = _DESTROY.sub(lambda match: ("C" if match[1] == "D" else "c") + "los" + (match[2] or "e"), text)
    return _C_NAME.sub(_in_python, _MEMORY_FLAGS.sub(_flags, text))


def _object(match: Match[str]) -> str:
    begin, kind, other, name = match.groups()
    name = "" if name == "(no name)" else f" {name!r}"
    other = "range" if other == "virtual" else other
    return f"{begin}Memory{name}: {kind}, " if kind else f"{begin}{other.capitalize()}{name}: "


def _group(match: Match[str]) -> str:
    begin, name = match.groups()
    return f"{begin}Group" if name == "(no name)" else f"{begin}Group {name!r}"


def report_in_python(text: str) -> str:
    """A report of live objects, each named as by its repr."""
    return in_python(_LINK.sub(r"\1Link: ", _GROUP.sub(_group, _OBJECT.sub(_object, text))))
