# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The base of the exceptions in `errors`, and those that belong to no status."""

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
        from .errors import STATUS_NAMES
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
