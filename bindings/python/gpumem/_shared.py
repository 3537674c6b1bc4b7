# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The type of shared arrays. Only :func:`shared_array` and what it has pickled import this module, because it needs numpy."""

from __future__ import annotations

import sys
import weakref
from typing import Any, NoReturn, Union

import numpy

from ._memory import Region, View
from ._share import ShareHandle, import_memory
from .errors import Error, PeerGone, StaleHandle

# The handle of all memory that has a shared array.
handles: weakref.WeakKeyDictionary[Region, ShareHandle] = weakref.WeakKeyDictionary()


class SharedArray(numpy.ndarray):  # type: ignore[type-arg]
    """An array that is pickled as the handle of its memory and its place in it, as its views are."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        owner: Any = self
        while isinstance(owner, numpy.ndarray):
            owner = owner.base
        handle = None if not isinstance(owner, View) or owner.memory is None else handles.get(owner.memory)
        if handle is None:  # a copy, or a result
            return numpy.asarray(self).__reduce_ex__(protocol)
        offset = self.ctypes.data - owner.address
        return _attach, (handle, self.flags.writeable, self.shape, self.dtype, offset, self.strides)

    def __array_wrap__(self, array: Any, *_: Any) -> Any:
        """Results lie in ordinary memory, so they are ordinary arrays and numbers."""
        return array if array is self else numpy.asarray(array)[()]


SharedArray.__name__ = SharedArray.__qualname__ = "shared_array"
SharedArray.__module__ = "gpumem"


class _Lost:
    """What a pool of processes gets in place of an array that cannot be attached to. Its use raises the reason."""

    def __init__(self, problem: Error) -> None:
        self._problem = problem

    # A worker may return it.
    def __reduce__(self) -> Any:
        return _Lost, (object.__getattribute__(self, "_problem"),)

    def __repr__(self) -> str:
        return f"<gpumem.shared_array: {object.__getattribute__(self, '_problem')}>"

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name) if name in _OF_ALL else _fail(self)


def _fail(lost: _Lost, *_: Any, **__: Any) -> NoReturn:
    make, parts = object.__getattribute__(lost, "_problem").__reduce__()
    raise make(*parts)


_OF_ALL = dir(object)
for _name in {*dir(numpy.ndarray)} - {*_OF_ALL} | {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"}:
    setattr(_Lost, _name, _fail)


def _in_a_pool() -> bool:
    """Whether a Pool of multiprocessing, or a ProcessPoolExecutor, unpickles. An exception there ends the worker, or the thread of the
    results: whoever waits for a result waits for ever, or the executor can do no more."""
    receiving: Any = sys._getframe(2)
    return receiving.f_globals.get("__name__") in ("multiprocessing.connection", "multiprocessing.queues") and (
        receiving.f_back is not None
        and receiving.f_back.f_globals.get("__name__") in ("multiprocessing.pool", "concurrent.futures.process"))


def _attach(handle: ShareHandle, writeable: bool, *place: Any) -> Union[SharedArray, _Lost]:
    try:
        memory = import_memory(handle, access=None if writeable else "read")
    except Error as problem:
        failure = problem
        if isinstance(problem, (PeerGone, StaleHandle)):
            failure = type(problem)("the process that made the shared array has dropped it or ended, or is on another machine; keep the "
                                    "array there until the others have unpickled it", function=problem.function)
        if _in_a_pool():
            return _Lost(failure)
        raise failure from (None if failure is problem else problem)
    handles[memory] = handle
    shape, dtype, offset, strides = place
    return SharedArray(shape, dtype, memory.numpy(), offset, strides)
