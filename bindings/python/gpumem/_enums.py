# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The bases of the enumerations in `_codes`, and their values by number or name."""

from __future__ import annotations

import enum
from operator import index
from typing import Any, List, Optional, Type, Union

from . import _native as c
from .errors import InvalidArgument


class _EnumType(enum.EnumMeta):
    """Lists the members alone, so that help() leaves out everything that they have as numbers."""

    def __dir__(cls) -> List[str]:
        return ["__doc__", *cls.__members__]


def _format(value: int, spec: str) -> str:
    return int.__format__(value, spec) if spec[-1:] in tuple("bcdoxXneEfFgG%") else format(str(value), spec)


class Code(enum.IntEnum, metaclass=_EnumType):
    """A number with a name. As text it is its name in lower case, which every function takes in its place."""

    def __str__(self) -> str:
        return self.name.lower()

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __format__(self, spec: str) -> str:
        return _format(self, spec)


class Flags(enum.IntFlag, metaclass=_EnumType):
    """A sum of flags with names. As text it is their names in lower case, such as "portable|mapped"."""

    def _names(self) -> List[str]:
        names, rest = [], int(self)
        for name, member in type(self).__members__.items():
            if rest & member.value:
                names.append(name)
                rest &= ~member.value
        return names + [hex(rest)] * bool(rest)

    def __str__(self) -> str:
        return "|".join(self._names()).lower() or "none"

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{'|'.join(self._names())}" if self else f"{type(self).__name__}(0)"

    def __format__(self, spec: str) -> str:
        return _format(self, spec)


def known(cls: Type[Any], number: int) -> Any:
    """The member of an enumeration, or the number itself if only a newer version has a name for it; a sum of flags."""
    found = cls._value2member_map_.get(number)
    if found is None:
        found = cls(number) if issubclass(cls, Flags) else number
    return found


def code(cls: Type[Code], value: Union[int, str], what: str, choice: str = "") -> int:
    """The number of a value that is given by its number or name. ``choice`` are the names that make sense, if not all."""
    if isinstance(value, str):
        try:
            return int(cls[value.upper()])
        except KeyError:
            raise InvalidArgument(f"{what} is {value!r}; it must be one of {choice or _choice(cls)}") from None
    number = _number(cls, value, what)
    if -1 << 31 <= number < 1 << 31:
        return number
    raise InvalidArgument(f"{what} is {number}; it must be one of {choice or _choice(cls)}")


def flags(cls: Type[Flags], value: Union[int, str], what: str) -> int:
    """The number of a sum of flags that is given by its number, or by names with "|" between them."""
    if isinstance(value, str):
        total = 0
        for name in value.split("|"):
            try:
                total |= cls[name.strip().upper()].value
            except KeyError:
                raise InvalidArgument(f"{what} has {name.strip()!r}; it can have {_choice(cls)}") from None
        return total
    number = _number(cls, value, what)
    if 0 <= number < 1 << 64:
        return number
    raise InvalidArgument(f"{what} is {number}; it can have {_choice(cls)}")


def _number(cls: Type[enum.IntEnum] | Type[enum.IntFlag], value: int, what: str) -> int:
    try:
        return index(value)
    except TypeError:
        raise TypeError(f"{what} must be a name or a {cls.__name__}, not a {type(value).__name__}") from None


def _choice(cls: Type[enum.IntEnum] | Type[enum.IntFlag]) -> str:
    return ", ".join(cls.__members__).lower()


def truth(value: Any, what: str) -> bool:
    """Whether something is true. An array of several elements does not say that."""
    try:
        return bool(value)
    except ValueError:
        raise TypeError(f"{what} must be True or False, not a {type(value).__name__}") from None


def toggle(value: Optional[bool], what: str) -> int:
    """The number of True or False, or of None for the default."""
    if value not in (None, True, False):
        raise TypeError(f"{what} is {value!r}; it must be True, False or None")
    return c.GPUMEM_TOGGLE_DEFAULT if value is None else c.GPUMEM_TOGGLE_ON if value else c.GPUMEM_TOGGLE_OFF


def expect(cls: Any, value: Any, what: str) -> None:
    """Refuses an argument that is no object of a class."""
    if not isinstance(value, cls):
        raise TypeError(f"{what} must be a gpumem.{cls.__name__}, not a {type(value).__name__}")
