# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The C interface of gpumem, declared for ctypes: every constant, struct and function by its C name.

Nothing is loaded when this module is imported. The library is found and checked when a function is first used, as an
attribute of this module (``_library.gpumem_version()``), or by :func:`load`:

1. the file named by the environment variable ``GPUMEM_LIBRARY``, and then no other;
2. ``libgpumem.so.0`` where the system's dynamic loader finds it.

The structs have the names and fields of the headers, which describe them. A struct is made with its ``struct_size``
filled in. This layer checks nothing: handles and addresses are plain integers, and what is passed as a pointer must live
for as long as the header says. Every call releases the interpreter lock.
"""

import ctypes
import os
import threading
from ctypes import CFUNCTYPE, POINTER, c_char, c_char_p, c_float, c_int32, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p

from .errors import LibraryNotFound, VersionMismatch

# version.h
GPUMEM_VERSION_MAJOR = 0
GPUMEM_VERSION_MINOR = 1
GPUMEM_VERSION_PATCH = 0


def GPUMEM_MAKE_VERSION(major, minor, patch):
    """A version as one number that grows with it."""
    return major << 22 | minor << 12 | patch


GPUMEM_VERSION = GPUMEM_MAKE_VERSION(GPUMEM_VERSION_MAJOR, GPUMEM_VERSION_MINOR, GPUMEM_VERSION_PATCH)
GPUMEM_FEATURE_BACKEND_HOST = 1
GPUMEM_FEATURE_BACKEND_CUDA = 2
GPUMEM_FEATURE_MEMORY_DEVICE = 10
GPUMEM_FEATURE_MEMORY_PINNED = 11
GPUMEM_FEATURE_MEMORY_REGISTERED = 12
GPUMEM_FEATURE_STREAM_VALUE = 20
GPUMEM_FEATURE_HOST_SIMULATION = 30

# base.h
GPUMEM_TOGGLE_DEFAULT = 0
GPUMEM_TOGGLE_ON = 1
GPUMEM_TOGGLE_OFF = 2
GPUMEM_TIMEOUT_INFINITE = (1 << 64) - 1

# status.h
GPUMEM_SUCCESS = 0
GPUMEM_NOT_READY = 1
GPUMEM_NO_EFFECT = 2
GPUMEM_ERROR_INVALID_ARGUMENT = -101
GPUMEM_ERROR_WRONG_KIND = -102
GPUMEM_ERROR_NOT_FOUND = -103
GPUMEM_ERROR_ALREADY_EXISTS = -104
GPUMEM_ERROR_STALE_HANDLE = -105
GPUMEM_ERROR_INVALID_STATE = -201
GPUMEM_ERROR_NO_ACCESS = -202
GPUMEM_ERROR_BUSY = -203
GPUMEM_ERROR_CLOSED = -204
GPUMEM_ERROR_FORKED = -205
GPUMEM_ERROR_PEER_GONE = -206
GPUMEM_ERROR_DEVICE_LOST = -207
GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY = -301
GPUMEM_ERROR_OUT_OF_HOST_MEMORY = -302
GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE = -303
GPUMEM_ERROR_LIMIT_EXCEEDED = -304
GPUMEM_ERROR_UNSUPPORTED = -401
GPUMEM_ERROR_PERMISSION_DENIED = -402
GPUMEM_ERROR_NO_DEVICE = -403
GPUMEM_ERROR_DRIVER_NOT_FOUND = -404
GPUMEM_ERROR_DRIVER_TOO_OLD = -405
GPUMEM_ERROR_SYMBOL_MISSING = -406
GPUMEM_ERROR_INTERNAL = -901
GPUMEM_CUDA_DRIVER_VERSION_MIN = 11020
GPUMEM_NATIVE_NONE = 0
GPUMEM_NATIVE_ERRNO = 1
GPUMEM_NATIVE_CUDA = 2

# log.h
GPUMEM_LOG_ERROR = 1
GPUMEM_LOG_WARNING = 2
GPUMEM_LOG_INFO = 3
GPUMEM_LOG_DEBUG = 4

# instance.h
GPUMEM_BACKEND_ANY = 0
GPUMEM_BACKEND_CUDA = 1
GPUMEM_BACKEND_HOST = 2
GPUMEM_HOST_LOCK_DEFAULT = 0
GPUMEM_HOST_LOCK_TRY = 1
GPUMEM_HOST_LOCK_REQUIRE = 2
GPUMEM_HOST_LOCK_OFF = 3
GPUMEM_CLOSE_CHECK = 0
GPUMEM_CLOSE_FORCE = 1

# capability.h
GPUMEM_CAPABILITY_UVA = 1
GPUMEM_CAPABILITY_DEVICE_COUNT = 2
GPUMEM_CAPABILITY_DEVICE_BYTES = 3
GPUMEM_CAPABILITY_DEVICE_CPU_ACCESS = 4
GPUMEM_CAPABILITY_PIN_MAP_HOST = 10
GPUMEM_CAPABILITY_PIN_PAGE_LOCKED = 11
GPUMEM_CAPABILITY_PIN_WRITE_COMBINED = 12
GPUMEM_CAPABILITY_PIN_REGISTER = 13
GPUMEM_CAPABILITY_PIN_REGISTER_SAME_POINTER = 14
GPUMEM_CAPABILITY_PIN_REGISTER_READ_ONLY = 15
GPUMEM_CAPABILITY_PIN_REGISTER_IOMEMORY = 16
GPUMEM_CAPABILITY_PIN_MAX_SINGLE = 17
GPUMEM_CAPABILITY_PIN_MAX_COUNT = 18
GPUMEM_CAPABILITY_PIN_NUMA = 19
GPUMEM_CAPABILITY_HOST_ATOMICS = 20
GPUMEM_CAPABILITY_PAGEABLE = 30
GPUMEM_CAPABILITY_PAGEABLE_HOST_TABLES = 31
GPUMEM_CAPABILITY_STREAM_VALUE32 = 40
GPUMEM_CAPABILITY_STREAM_VALUE64 = 41
GPUMEM_CAPABILITY_STREAM_VALUE_NOR = 42
GPUMEM_CAPABILITY_COPY_ENGINES = 50
GPUMEM_CAPABILITY_PEER_ACCESS = 60
GPUMEM_CAPABILITY_PEER_ATOMICS = 61
GPUMEM_CAPABILITY_TYPE_TRI = 1
GPUMEM_CAPABILITY_TYPE_INT = 2
GPUMEM_CAPABILITY_TYPE_BYTES = 3
GPUMEM_CAPABILITY_NO = 0
GPUMEM_CAPABILITY_YES = 1
GPUMEM_CAPABILITY_EMULATED = 2
GPUMEM_CAPABILITY_FROM_ATTRIBUTE = 1
GPUMEM_CAPABILITY_FROM_TRIAL = 2
GPUMEM_CAPABILITY_FROM_CONFIGURATION = 3
GPUMEM_CAPABILITY_FROM_CONTRACT = 4

# memory.h
GPUMEM_KIND_UNKNOWN = 0
GPUMEM_KIND_PAGEABLE = 1
GPUMEM_KIND_PINNED = 2
GPUMEM_KIND_REGISTERED = 3
GPUMEM_KIND_DEVICE = 4
GPUMEM_KIND_FOREIGN = 9
GPUMEM_MEMORY_PORTABLE = 0x1
GPUMEM_MEMORY_MAPPED = 0x2
GPUMEM_MEMORY_WRITE_COMBINED = 0x4
GPUMEM_MEMORY_READ_ONLY = 0x8
GPUMEM_MEMORY_IOMEMORY = 0x10
GPUMEM_MEMORY_PAGE_LOCKED = 0x20
GPUMEM_MEMORY_NUMA_NODE = 0x40

# pointer.h
GPUMEM_LOCATION_NONE = 0
GPUMEM_LOCATION_DEVICE = 1
GPUMEM_LOCATION_HOST = 2
GPUMEM_LOCATION_HOST_NUMA = 3
GPUMEM_ACCESS_NONE = 0
GPUMEM_ACCESS_READ = 1
GPUMEM_ACCESS_READWRITE = 3
GPUMEM_ACCESS_UNKNOWN = 4

# copy.h
GPUMEM_DIRECTION_INFER = 0
GPUMEM_DIRECTION_HOST_TO_HOST = 1
GPUMEM_DIRECTION_HOST_TO_DEVICE = 2
GPUMEM_DIRECTION_DEVICE_TO_HOST = 3
GPUMEM_DIRECTION_DEVICE_TO_DEVICE = 4
GPUMEM_SOURCE_ORDER_STREAM = 0
GPUMEM_SOURCE_ORDER_DURING_CALL = 1
GPUMEM_SOURCE_ORDER_ANY = 2

# stream.h
GPUMEM_WAIT_VALUE_GEQ = 0
GPUMEM_WAIT_VALUE_EQ = 1
GPUMEM_WAIT_VALUE_AND = 2
GPUMEM_WAIT_VALUE_NOR = 3

# event.h
GPUMEM_EVENT_DISABLE_TIMING = 0x1
GPUMEM_EVENT_BLOCKING_SYNC = 0x2


class Growing(ctypes.Structure):
    """A struct that begins with its own size."""

    def __init__(self, *values, **fields):
        super().__init__(ctypes.sizeof(self), *values, **fields)


class gpumem_error(Growing):
    _fields_ = [("struct_size", c_size_t), ("status", c_int32), ("native_domain", c_int32), ("native_code", c_int32),
                ("reserved", c_uint32), ("native_name", c_char * 56), ("function", c_char * 48),
                ("entry_point", c_char * 48), ("message", c_char * 512)]


class gpumem_status_info(Growing):
    _fields_ = [("struct_size", c_size_t), ("status", c_int32), ("reserved", c_uint32), ("name", c_char_p),
                ("cause", c_char_p), ("remedy", c_char_p)]


class gpumem_probe_info(Growing):
    _fields_ = [("struct_size", c_size_t), ("backend", c_int32), ("driver_version", c_int32),
                ("device_count", c_uint32), ("reserved", c_uint32), ("name", c_char * 64)]


class gpumem_host_options(Growing):
    _fields_ = [("struct_size", c_size_t), ("device_count", c_uint32), ("strict", c_int32), ("device_bytes", c_uint64),
                ("granularity", c_uint64), ("pageable", c_int32), ("same_pointer", c_int32), ("lock_mode", c_int32),
                ("numa_nodes", c_uint32), ("register_count_max", c_uint64), ("lock_piece", c_uint64),
                ("quarantine", c_uint32), ("fill", c_int32), ("peers", c_char_p), ("masked", c_char_p)]


class gpumem_instance_desc(Growing):
    _fields_ = [("struct_size", c_size_t), ("backend", c_int32), ("reserved", c_uint32), ("name", c_char_p),
                ("pin_budget", c_uint64), ("host", POINTER(gpumem_host_options)), ("cuda_contexts", POINTER(c_void_p)),
                ("cuda_context_count", c_uint64)]


class gpumem_instance_info(Growing):
    _fields_ = [("struct_size", c_size_t), ("backend", c_int32), ("driver_version", c_int32),
                ("device_count", c_uint32), ("strict", c_uint32), ("pin_budget", c_uint64), ("name", c_char * 64)]


class gpumem_device_info(Growing):
    _fields_ = [("struct_size", c_size_t), ("ordinal", c_uint32), ("numa_node", c_int32), ("total_bytes", c_uint64),
                ("uuid", c_uint8 * 16), ("pci_domain", c_uint32), ("pci_bus", c_uint32), ("pci_device", c_uint32),
                ("compute_major", c_int32), ("compute_minor", c_int32), ("lost", c_uint32), ("pci_id", c_char * 32),
                ("name", c_char * 256)]


class gpumem_capability_info(Growing):
    _fields_ = [("struct_size", c_size_t), ("capability", c_int32), ("type", c_int32), ("value", c_uint64),
                ("source", c_int32), ("status", c_int32), ("native_domain", c_int32), ("native_code", c_int32),
                ("name", c_char * 48), ("reason", c_char * 256)]


class gpumem_memory_desc(Growing):
    _fields_ = [("struct_size", c_size_t), ("kind", c_int32), ("numa_node", c_int32), ("size", c_uint64),
                ("alignment", c_uint64), ("require", c_uint64), ("prefer", c_uint64), ("host_pointer", c_void_p),
                ("name", c_char_p)]


class gpumem_memory_info(Growing):
    _fields_ = [("struct_size", c_size_t), ("kind", c_int32), ("numa_node", c_int32), ("device", c_void_p),
                ("device_ordinal", c_uint32), ("reserved", c_uint32), ("host_pointer", c_void_p),
                ("device_pointer", c_void_p), ("size", c_uint64), ("granted_size", c_uint64), ("alignment", c_uint64),
                ("requested_flags", c_uint64), ("granted_flags", c_uint64), ("buffer_id", c_uint64),
                ("name", c_char * 64)]


class gpumem_pointer_info(Growing):
    _fields_ = [("struct_size", c_size_t), ("kind", c_int32), ("location", c_int32), ("location_id", c_int32),
                ("device_ordinal", c_int32), ("host_pointer", c_void_p), ("device_pointer", c_void_p),
                ("base", c_void_p), ("size", c_uint64), ("buffer_id", c_uint64), ("granted_flags", c_uint64),
                ("access", c_int32), ("reserved", c_uint32), ("access_devices", c_uint64), ("memory", c_void_p)]


class gpumem_copy_options(Growing):
    _fields_ = [("struct_size", c_size_t), ("direction", c_int32), ("source_order", c_int32)]


class gpumem_stream_desc(Growing):
    _fields_ = [("struct_size", c_size_t), ("priority", c_int32), ("reserved", c_uint32), ("name", c_char_p)]


class gpumem_stream_info(Growing):
    _fields_ = [("struct_size", c_size_t), ("device", c_void_p), ("device_ordinal", c_uint32), ("wrapped", c_uint32),
                ("priority", c_int32), ("reserved", c_uint32), ("native_stream", c_void_p), ("name", c_char * 64)]


class gpumem_event_desc(Growing):
    _fields_ = [("struct_size", c_size_t), ("flags", c_uint32), ("reserved", c_uint32), ("name", c_char_p)]


class gpumem_event_info(Growing):
    _fields_ = [("struct_size", c_size_t), ("device", c_void_p), ("device_ordinal", c_uint32), ("wrapped", c_uint32),
                ("flags", c_uint32), ("reserved", c_uint32), ("native_event", c_void_p), ("name", c_char * 64)]


class gpumem_stats_kind(ctypes.Structure):
    _fields_ = [("live_count", c_uint64), ("live_bytes", c_uint64), ("peak_count", c_uint64), ("peak_bytes", c_uint64),
                ("total_count", c_uint64), ("total_bytes", c_uint64)]


class gpumem_stats(Growing):
    _fields_ = [("struct_size", c_size_t), ("device", gpumem_stats_kind), ("pinned", gpumem_stats_kind),
                ("registered", gpumem_stats_kind), ("streams", c_uint64), ("events", c_uint64),
                ("file_descriptors", c_uint64)]


gpumem_log_function = CFUNCTYPE(None, c_void_p, c_int32, c_char_p)
gpumem_host_function = CFUNCTYPE(None, c_void_p)
gpumem_host_kernel_function = CFUNCTYPE(None, c_void_p, c_void_p)

_ERROR = POINTER(gpumem_error)
_OUT_HANDLE = POINTER(c_void_p)

# name: (result, arguments), in the order of gpumem_table.
PROTOTYPES = {
    "gpumem_version": (c_uint32, ()),
    "gpumem_version_text": (c_char_p, ()),
    "gpumem_feature_supported": (c_int32, (c_int32,)),
    "gpumem_error_init": (None, (_ERROR,)),
    "gpumem_status_info_init": (None, (POINTER(gpumem_status_info),)),
    "gpumem_status_name": (c_char_p, (c_int32,)),
    "gpumem_status_get_info": (c_int32, (c_int32, POINTER(gpumem_status_info), _ERROR)),
    "gpumem_status_enumerate": (c_int32, (c_uint32, POINTER(c_int32), _ERROR)),
    "gpumem_log_set_function": (c_int32, (gpumem_log_function, c_void_p, c_int32, _ERROR)),
    "gpumem_probe_info_init": (None, (POINTER(gpumem_probe_info),)),
    "gpumem_instance_probe": (c_int32, (c_int32, POINTER(gpumem_probe_info), _ERROR)),
    "gpumem_host_options_init": (None, (POINTER(gpumem_host_options),)),
    "gpumem_instance_desc_init": (None, (POINTER(gpumem_instance_desc),)),
    "gpumem_instance_open": (c_int32, (POINTER(gpumem_instance_desc), _OUT_HANDLE, _ERROR)),
    "gpumem_instance_close": (c_int32, (c_void_p, c_int32, POINTER(c_uint64), _ERROR)),
    "gpumem_instance_default": (c_int32, (_OUT_HANDLE, _ERROR)),
    "gpumem_instance_info_init": (None, (POINTER(gpumem_instance_info),)),
    "gpumem_instance_get_info": (c_int32, (c_void_p, POINTER(gpumem_instance_info), _ERROR)),
    "gpumem_device_get": (c_int32, (c_void_p, c_uint32, _OUT_HANDLE, _ERROR)),
    "gpumem_device_info_init": (None, (POINTER(gpumem_device_info),)),
    "gpumem_device_get_info": (c_int32, (c_void_p, POINTER(gpumem_device_info), _ERROR)),
    "gpumem_device_get_memory": (c_int32, (c_void_p, POINTER(c_uint64), POINTER(c_uint64), _ERROR)),
    "gpumem_device_can_access_peer": (c_int32, (c_void_p, c_void_p, POINTER(c_uint32), _ERROR)),
    "gpumem_device_enable_peer_access": (c_int32, (c_void_p, c_void_p, _ERROR)),
    "gpumem_device_disable_peer_access": (c_int32, (c_void_p, c_void_p, _ERROR)),
    "gpumem_capability_info_init": (None, (POINTER(gpumem_capability_info),)),
    "gpumem_device_get_capability": (c_int32, (c_void_p, c_int32, c_void_p, POINTER(gpumem_capability_info), _ERROR)),
    "gpumem_capability_enumerate": (c_int32, (c_uint32, POINTER(c_int32), _ERROR)),
    "gpumem_memory_desc_init": (None, (POINTER(gpumem_memory_desc),)),
    "gpumem_memory_create": (c_int32, (c_void_p, POINTER(gpumem_memory_desc), _OUT_HANDLE, _ERROR)),
    "gpumem_memory_destroy": (c_int32, (c_void_p, _ERROR)),
    "gpumem_memory_info_init": (None, (POINTER(gpumem_memory_info),)),
    "gpumem_memory_get_info": (c_int32, (c_void_p, POINTER(gpumem_memory_info), _ERROR)),
    "gpumem_malloc": (c_int32, (c_void_p, c_int32, c_uint64, _OUT_HANDLE, _ERROR)),
    "gpumem_free": (c_int32, (c_void_p, c_void_p, _ERROR)),
    "gpumem_register": (c_int32, (c_void_p, c_void_p, c_uint64, c_uint64, _ERROR)),
    "gpumem_unregister": (c_int32, (c_void_p, c_void_p, _ERROR)),
    "gpumem_pointer_info_init": (None, (POINTER(gpumem_pointer_info),)),
    "gpumem_pointer_get_info": (c_int32, (c_void_p, c_void_p, POINTER(gpumem_pointer_info), _ERROR)),
    "gpumem_pointer_get_device_pointer": (c_int32, (c_void_p, c_void_p, _OUT_HANDLE, _ERROR)),
    "gpumem_stream_desc_init": (None, (POINTER(gpumem_stream_desc),)),
    "gpumem_stream_create": (c_int32, (c_void_p, POINTER(gpumem_stream_desc), _OUT_HANDLE, _ERROR)),
    "gpumem_stream_wrap": (c_int32, (c_void_p, c_void_p, _OUT_HANDLE, _ERROR)),
    "gpumem_stream_destroy": (c_int32, (c_void_p, _ERROR)),
    "gpumem_stream_info_init": (None, (POINTER(gpumem_stream_info),)),
    "gpumem_stream_get_info": (c_int32, (c_void_p, POINTER(gpumem_stream_info), _ERROR)),
    "gpumem_stream_query": (c_int32, (c_void_p, _ERROR)),
    "gpumem_stream_synchronize": (c_int32, (c_void_p, c_uint64, _ERROR)),
    "gpumem_stream_wait_event": (c_int32, (c_void_p, c_void_p, _ERROR)),
    "gpumem_stream_launch_host_function": (c_int32, (c_void_p, gpumem_host_function, c_void_p, _ERROR)),
    "gpumem_stream_write_value": (c_int32, (c_void_p, c_void_p, c_uint64, c_uint32, _ERROR)),
    "gpumem_stream_wait_value": (c_int32, (c_void_p, c_void_p, c_uint64, c_uint32, c_int32, _ERROR)),
    "gpumem_event_desc_init": (None, (POINTER(gpumem_event_desc),)),
    "gpumem_event_create": (c_int32, (c_void_p, POINTER(gpumem_event_desc), _OUT_HANDLE, _ERROR)),
    "gpumem_event_wrap": (c_int32, (c_void_p, c_void_p, c_uint32, _OUT_HANDLE, _ERROR)),
    "gpumem_event_destroy": (c_int32, (c_void_p, _ERROR)),
    "gpumem_event_info_init": (None, (POINTER(gpumem_event_info),)),
    "gpumem_event_get_info": (c_int32, (c_void_p, POINTER(gpumem_event_info), _ERROR)),
    "gpumem_event_record": (c_int32, (c_void_p, c_void_p, _ERROR)),
    "gpumem_event_query": (c_int32, (c_void_p, _ERROR)),
    "gpumem_event_synchronize": (c_int32, (c_void_p, c_uint64, _ERROR)),
    "gpumem_event_get_elapsed_time": (c_int32, (c_void_p, c_void_p, POINTER(c_float), _ERROR)),
    "gpumem_copy_options_init": (None, (POINTER(gpumem_copy_options),)),
    "gpumem_copy": (c_int32, (c_void_p, c_void_p, c_void_p, c_void_p, c_uint64, POINTER(gpumem_copy_options), _ERROR)),
    "gpumem_copy_2d": (c_int32, (c_void_p, c_void_p, c_void_p, c_uint64, c_void_p, c_uint64, c_uint64, c_uint64,
                                 POINTER(gpumem_copy_options), _ERROR)),
    "gpumem_fill": (c_int32, (c_void_p, c_void_p, c_void_p, c_uint64, c_uint32, c_uint32, _ERROR)),
    "gpumem_fill_2d": (c_int32, (c_void_p, c_void_p, c_void_p, c_uint64, c_uint64, c_uint64, c_uint32, c_uint32,
                                 _ERROR)),
    "gpumem_stats_init": (None, (POINTER(gpumem_stats),)),
    "gpumem_stats_get": (c_int32, (c_void_p, POINTER(gpumem_stats), _ERROR)),
    "gpumem_stats_reset_peaks": (c_int32, (c_void_p, _ERROR)),
    "gpumem_stats_report": (c_int32, (c_void_p, c_char_p, c_uint64, POINTER(c_uint64), _ERROR)),
    "gpumem_host_launch": (c_int32, (c_void_p, gpumem_host_kernel_function, c_void_p, _ERROR)),
    "gpumem_host_kernel_view": (c_int32, (c_void_p, c_void_p, c_uint64, c_int32, _OUT_HANDLE, _ERROR)),
    "gpumem_host_native_stream_create": (c_int32, (c_void_p, _OUT_HANDLE, _ERROR)),
    "gpumem_host_native_stream_destroy": (c_int32, (c_void_p, c_void_p, _ERROR)),
    "gpumem_host_stream_set_capturing": (c_int32, (c_void_p, c_uint32, _ERROR)),
    "gpumem_host_device_lose": (c_int32, (c_void_p, _ERROR)),
    "gpumem_host_fail_step": (c_int32, (c_void_p, c_uint64, c_uint32, _ERROR)),
    "gpumem_host_foreign_alloc": (c_int32, (c_void_p, c_int32, c_uint64, _OUT_HANDLE, _ERROR)),
    "gpumem_host_foreign_free": (c_int32, (c_void_p, c_void_p, _ERROR)),
    "gpumem_host_foreign_peer_access": (c_int32, (c_void_p, c_void_p, c_uint32, _ERROR)),
    "gpumem_host_set_current_device": (c_int32, (c_int32, POINTER(c_int32), _ERROR)),
}


class gpumem_table(Growing):
    _fields_ = [("struct_size", c_size_t)] + [(name, c_void_p) for name in PROTOTYPES]


# The same functions without argument types, for hot calls whose arguments were all made beforehand, by byref() or
# c_void_p.from_param(): ctypes then converts nothing.
PREPARED = {"memory_create_prepared": "gpumem_memory_create"}

PROTOTYPES["gpumem_table_get"] = (c_int32, (c_uint32, POINTER(gpumem_table), _ERROR))

SONAME = "libgpumem.so.0"
_lock = threading.Lock()
_loaded = None


def _open(path, source):
    try:
        return ctypes.CDLL(path)
    except OSError as problem:
        raise LibraryNotFound(f"the gpumem library cannot be loaded: {problem} ({source})") from None


def _check(library, path):
    """Makes sure that the library speaks this interface, before anything else of it is called."""
    try:
        version = library.gpumem_version
    except AttributeError:
        raise LibraryNotFound(f"{path} is not the gpumem library: it has no function gpumem_version") from None
    version.restype, version.argtypes = c_uint32, ()
    found = version()
    major, minor, patch = found >> 22, found >> 12 & 0x3ff, found & 0xfff
    if major != GPUMEM_VERSION_MAJOR or minor < GPUMEM_VERSION_MINOR:
        raise VersionMismatch(
            f"{path} has version {major}.{minor}.{patch}; this package needs version {GPUMEM_VERSION_MAJOR}.x with x at "
            f"least {GPUMEM_VERSION_MINOR}")


def _declare(library, path):
    for name, (result, arguments) in PROTOTYPES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise VersionMismatch(f"{path} lacks the function {name}: it is too old for this package") from None
        function.restype, function.argtypes = result, arguments


def load():
    """Loads the library if that has not been done, and returns it as a ``ctypes.CDLL`` with all functions declared.

    A failure is not remembered: the next call looks again.
    """
    global _loaded
    with _lock:
        if _loaded is None:
            named = os.environ.get("GPUMEM_LIBRARY")
            if named:
                path, source = named, "named by the environment variable GPUMEM_LIBRARY"
            else:
                path, source = SONAME, ("searched by the system's dynamic loader; install the library, or name its file "
                                        "in the environment variable GPUMEM_LIBRARY")
            library = _open(path, source)
            _check(library, path)
            _declare(library, path)
            globals().update({name: getattr(library, name) for name in PROTOTYPES})
            globals().update({name: library[function] for name, function in PREPARED.items()})
            _loaded = library
    return _loaded


def table():
    """The addresses of all functions, as a gpumem_table, for code that calls them by pointer."""
    found = gpumem_table()
    if load().gpumem_table_get(GPUMEM_VERSION, found, None) != GPUMEM_SUCCESS:
        raise VersionMismatch("the library has no table of functions for this version")
    return found


def __getattr__(name):
    """The functions become attributes of this module when the first one is used."""
    if name in PROTOTYPES or name in PREPARED:
        load()
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
