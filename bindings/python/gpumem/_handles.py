# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What the objects of the library have in common: their handle, and how they end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Callable, Iterable, Optional

from . import _library as c
from ._calls import GONE, Made, Unique, call, destroy_quietly, finalizer, leave
from ._enums import expect

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._stream import Queue


def expect_device(device: Any) -> None:
    from ._instance import Device
    expect(Device, device, "device")


def expect_instance(instance: Any) -> None:
    from ._instance import Instance
    expect(Instance, instance, "instance")


class Scoped:
    """An object that ends with a ``with`` block, by the method that ``_leaves_by`` names."""

    __slots__ = ()
    _leaves_by = "close"

    def _awaited(self) -> Iterable[Queue]:
        """Streams whose work the end of the block waits for."""
        return ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, problem: Optional[BaseException], trace: Any) -> None:
        if problem is None:  # else the work may never end
            for queue in self._awaited():
                queue.settle()
        leave(self, getattr(self, self._leaves_by), problem)


class Owner(Unique, Scoped):
    """An object of the library, which a function of C destroys: by ``close()``, or when nothing refers to this any more."""

    __slots__ = ("_handle", "_closed", "__weakref__")
    _destroyed_by = ""

    if TYPE_CHECKING:
        _handle: int
        _closed: bool

        def info(self) -> Any: ...

    def _own(self, made: Made) -> None:
        self._handle, self._closed = made.value or 0, False
        made.value = None

    def _end(self) -> None:
        """Destroys the object, unless that was done before."""
        if self._closed:
            return
        try:
            self._closed = True
            call(getattr(c, self._destroyed_by), self._handle)
        except BaseException as problem:
            if getattr(problem, "code", None) not in GONE:
                self._closed = False
                raise

    def _give_up(self, destroy: Callable[..., None], library: Any) -> None:
        """Destroys the object for the finalizer, now or later."""
        destroy(getattr(library, self._destroyed_by), self._handle)

    @property
    def handle(self) -> int:
        """The handle in the C interface: the ``gpumem_stream`` of a :class:`Stream`, the ``gpumem_ring`` of either side of a ring,
        and so on."""
        return self._handle

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def _last_info(self) -> Any:
        """Information that was asked for before, or now."""
        return self.info()

    def _about(self, info: Any) -> str:
        """What its repr says behind the name."""
        raise NotImplementedError

    def __repr__(self) -> str:
        what = f"<gpumem.{type(self).__name__}"
        try:
            info = self._last_info()
        except Exception as problem:
            return f"{what}, closed>" if self._closed else f"{what}: {problem}>"
        name = getattr(info, "name", "")
        return f"{what}{f' {name!r}' if name else ''}: {self._about(info)}>"


def _finisher(finalizing: Callable[[], bool], destroy: Callable[..., None], library: Any) -> Callable[[Owner], None]:
    # The names of the module are gone at the end of the interpreter, but not what a function encloses.
    def finish(self: Owner) -> None:
        """Destroys the object unless it was closed."""
        try:
            if self._closed or finalizing():
                return
        except AttributeError:  # it was never made
            return
        self._give_up(destroy, library)
    return finish


finalizer(Owner, _finisher(sys.is_finalizing, destroy_quietly, c))
