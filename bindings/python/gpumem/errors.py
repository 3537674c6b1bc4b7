# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The exceptions of gpumem: one class for each status of the C interface, all derived from :class:`Error`.

Decide by the class or by :attr:`Error.code`. The texts are for people and may change.
"""

from typing import Any, Dict, Optional, Tuple, Type


class Error(Exception):
    """A call of gpumem failed. The class says how, and the attributes have the details.

    A status that this version does not know is raised as :class:`InternalError` with its number in ``code``.
    """

    #: Number of the status, such as -203; None if the library was not called.
    code: Optional[int] = None
    #: Index of the region that failed in a call of copy_regions(); None if the failure does not belong to one region.
    region: Optional[int] = None
    #: Bytes that a call of read_file() or write_file() copied before it failed, from the start on with no gap: a call for the others
    #: goes on from there. None if the failure is of another function.
    copied: Optional[int] = None

    def __init__(self, message: str = "", *, code: Optional[int] = None, function: str = "", native_domain: int = 0,
                 native_code: int = 0, native_name: str = "", entry_point: str = "") -> None:
        super().__init__(message)
        #: One line: what is wrong, and what to do.
        self.message = message
        if code is not None:
            self.code = code
        #: The function of the C interface that failed, such as "gpumem_memory_create".
        self.function = function
        #: What ``native_code`` is a code of: a :class:`NativeDomain`.
        self.native_domain = native_domain
        #: Code of the driver or operating system; 0 if there was none.
        self.native_code = native_code
        #: Its name, such as "CUDA_ERROR_OUT_OF_MEMORY" or "ENOMEM".
        self.native_name = native_name
        #: The driver or system call that failed; empty if none was reached.
        self.entry_point = entry_point

    @property
    def name(self) -> str:
        """Name of the status, such as "GPUMEM_ERROR_BUSY"; empty if the class belongs to no status."""
        return "" if self.code is None else STATUS_NAMES.get(self.code, "GPUMEM_ERROR_?")

    def __reduce__(self) -> Tuple[Any, ...]:
        return _restore, (type(self), self.message, dict(self.__dict__))


def _restore(cls: Type[Error], message: str, attributes: Dict[str, Any]) -> Error:
    error = cls(message)
    error.__dict__.update(attributes)
    return error


class LibraryNotFound(Error):
    """The shared library of gpumem cannot be loaded, or the file is another library."""


class VersionMismatch(Error):
    """The shared library is too old for this package, or of another major version."""


class NotReady(Error):
    """The work that was queried is not complete."""

    code = 1


class NoEffect(Error):
    """The hint is valid, but this device or driver cannot use it."""

    code = 2


class InvalidArgument(Error, ValueError):
    """A value that no configuration accepts."""

    code = -101


class WrongKind(Error, TypeError):
    """The memory is of a kind that this function does not take."""

    code = -102


class NotFound(Error, LookupError):
    """This instance has nothing of that name, address or number."""

    code = -103


class AlreadyExists(Error):
    """The range or relation exists already."""

    code = -104


class StaleHandle(Error):
    """The object was closed."""

    code = -105


class InvalidState(Error):
    """Right object, wrong moment."""

    code = -201


class NoAccess(Error):
    """The processor that would act has no right to the memory."""

    code = -202


class Busy(Error):
    """In use by work that was not observed complete, or by live objects."""

    code = -203


class Closed(Error):
    """The instance is closed, or the driver is shutting down."""

    code = -204


class Forked(Error):
    """An object of the parent process was used in a forked child."""

    code = -205


class PeerGone(Error):
    """The other process of a shared object has ended."""

    code = -206


class DeviceLost(Error):
    """The device cannot be used again until the process ends."""

    code = -207


class Cancelled(Error):
    """A progress function ended the call. Raise it in one, with a text of your own, to cancel."""

    code = -208


class ContentLost(Error):
    """Content that was kept while a buffer slept can no longer be read."""

    code = -209


class OutOfDeviceMemory(Error, MemoryError):
    """Not enough memory on a device."""

    code = -301


class OutOfHostMemory(Error, MemoryError):
    """Not enough host memory."""

    code = -302


class OutOfAddressSpace(Error, MemoryError):
    """There is no address range of that size."""

    code = -303


class LimitExceeded(Error):
    """A limit or budget is used up; the message names it."""

    code = -304


class Unsupported(Error):
    """The request is valid, but this device, driver, backend or object cannot do it."""

    code = -401


class PermissionDenied(Error):
    """The system, driver or peer refuses this user or process."""

    code = -402


class NoDevice(Error):
    """The driver is present but has no usable device."""

    code = -403


class DriverNotFound(Error):
    """No driver library can be loaded, or only a stub."""

    code = -404


class DriverTooOld(Error):
    """The driver is older than the cuda backend needs, or its parts do not match."""

    code = -405


class SymbolMissing(Error):
    """This driver lacks the entry point of this one function."""

    code = -406


class InternalError(Error):
    """Anything else; the native code is attached."""

    code = -901


#: The exception class of each status.
STATUS_CLASSES: Dict[int, Type[Error]] = {cls.code: cls for cls in Error.__subclasses__() if cls.code is not None}


def _status_name(cls: Type[Error]) -> str:
    words = "".join("_" + letter if letter.isupper() else letter.upper() for letter in cls.__name__)[1:]
    words = "INTERNAL" if cls is InternalError else words
    return f"GPUMEM_{words}" if cls in (NotReady, NoEffect) else f"GPUMEM_ERROR_{words}"


STATUS_NAMES: Dict[int, str] = {0: "GPUMEM_SUCCESS", **{code: _status_name(cls) for code, cls in STATUS_CLASSES.items()}}

__all__ = ["Error", *(cls.__name__ for cls in Error.__subclasses__())]
