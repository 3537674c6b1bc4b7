# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The type of shared arrays. Only :func:`shared_array` and what it has pickled import this module, because it needs numpy."""

from __future__ import annotations

import weakref
from typing import Any

import numpy

from ._memory import Region, View
from ._share import ShareHandle, import_memory
from .errors import PeerGone, StaleHandle

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


def _attach(handle: ShareHandle, writeable: bool, *place: Any) -> SharedArray:
    try:
        memory = import_memory(handle, access=None if writeable else "read")
    except (PeerGone, StaleHandle) as problem:
        raise type(problem)("the process that made the shared array has dropped it or ended, or is on another machine; keep the "
                            "array there until the others have unpickled it", function=problem.function) from problem
    handles[memory] = handle
    shape, dtype, offset, strides = place
    return SharedArray(shape, dtype, memory.numpy(), offset, strides)
