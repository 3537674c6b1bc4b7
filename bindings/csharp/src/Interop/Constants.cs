// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The numbers of the C interface, under their C names; the enums of the binding are made of them.

#pragma warning disable 1591 // The C headers describe each number.

namespace GpuMem.Interop
{
  /// <summary>Every numeric macro of the C headers.</summary>
  public static class Constants
  {
    // version.h
    public const int GPUMEM_VERSION_MAJOR = 0;
    public const int GPUMEM_VERSION_MINOR = 1;
    public const int GPUMEM_VERSION_PATCH = 0;
    public const uint GPUMEM_VERSION =
        ((uint)GPUMEM_VERSION_MAJOR << 22) | ((uint)GPUMEM_VERSION_MINOR << 12) | (uint)GPUMEM_VERSION_PATCH;
    public const int GPUMEM_FEATURE_BACKEND_HOST = 1;
    public const int GPUMEM_FEATURE_BACKEND_CUDA = 2;
    public const int GPUMEM_FEATURE_MEMORY_DEVICE = 10;
    public const int GPUMEM_FEATURE_MEMORY_PINNED = 11;
    public const int GPUMEM_FEATURE_MEMORY_REGISTERED = 12;
    public const int GPUMEM_FEATURE_STREAM_VALUE = 20;
    public const int GPUMEM_FEATURE_HOST_SIMULATION = 30;

    // base.h
    public const int GPUMEM_TOGGLE_DEFAULT = 0;
    public const int GPUMEM_TOGGLE_ON = 1;
    public const int GPUMEM_TOGGLE_OFF = 2;
    public const ulong GPUMEM_TIMEOUT_INFINITE = ulong.MaxValue;

    // status.h
    public const int GPUMEM_SUCCESS = 0;
    public const int GPUMEM_NOT_READY = 1;
    public const int GPUMEM_NO_EFFECT = 2;
    public const int GPUMEM_ERROR_INVALID_ARGUMENT = -101;
    public const int GPUMEM_ERROR_WRONG_KIND = -102;
    public const int GPUMEM_ERROR_NOT_FOUND = -103;
    public const int GPUMEM_ERROR_ALREADY_EXISTS = -104;
    public const int GPUMEM_ERROR_STALE_HANDLE = -105;
    public const int GPUMEM_ERROR_INVALID_STATE = -201;
    public const int GPUMEM_ERROR_NO_ACCESS = -202;
    public const int GPUMEM_ERROR_BUSY = -203;
    public const int GPUMEM_ERROR_CLOSED = -204;
    public const int GPUMEM_ERROR_FORKED = -205;
    public const int GPUMEM_ERROR_PEER_GONE = -206;
    public const int GPUMEM_ERROR_DEVICE_LOST = -207;
    public const int GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY = -301;
    public const int GPUMEM_ERROR_OUT_OF_HOST_MEMORY = -302;
    public const int GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE = -303;
    public const int GPUMEM_ERROR_LIMIT_EXCEEDED = -304;
    public const int GPUMEM_ERROR_UNSUPPORTED = -401;
    public const int GPUMEM_ERROR_PERMISSION_DENIED = -402;
    public const int GPUMEM_ERROR_NO_DEVICE = -403;
    public const int GPUMEM_ERROR_DRIVER_NOT_FOUND = -404;
    public const int GPUMEM_ERROR_DRIVER_TOO_OLD = -405;
    public const int GPUMEM_ERROR_SYMBOL_MISSING = -406;
    public const int GPUMEM_ERROR_INTERNAL = -901;
    public const int GPUMEM_CUDA_DRIVER_VERSION_MIN = 11020;
    public const int GPUMEM_NATIVE_NONE = 0;
    public const int GPUMEM_NATIVE_ERRNO = 1;
    public const int GPUMEM_NATIVE_CUDA = 2;

    // log.h
    public const int GPUMEM_LOG_ERROR = 1;
    public const int GPUMEM_LOG_WARNING = 2;
    public const int GPUMEM_LOG_INFO = 3;
    public const int GPUMEM_LOG_DEBUG = 4;

    // instance.h
    public const int GPUMEM_BACKEND_ANY = 0;
    public const int GPUMEM_BACKEND_CUDA = 1;
    public const int GPUMEM_BACKEND_HOST = 2;
    public const int GPUMEM_HOST_LOCK_DEFAULT = 0;
    public const int GPUMEM_HOST_LOCK_TRY = 1;
    public const int GPUMEM_HOST_LOCK_REQUIRE = 2;
    public const int GPUMEM_HOST_LOCK_OFF = 3;
    public const int GPUMEM_CLOSE_CHECK = 0;
    public const int GPUMEM_CLOSE_FORCE = 1;

    // capability.h
    public const int GPUMEM_CAPABILITY_UVA = 1;
    public const int GPUMEM_CAPABILITY_DEVICE_COUNT = 2;
    public const int GPUMEM_CAPABILITY_DEVICE_BYTES = 3;
    public const int GPUMEM_CAPABILITY_DEVICE_CPU_ACCESS = 4;
    public const int GPUMEM_CAPABILITY_PIN_MAP_HOST = 10;
    public const int GPUMEM_CAPABILITY_PIN_PAGE_LOCKED = 11;
    public const int GPUMEM_CAPABILITY_PIN_WRITE_COMBINED = 12;
    public const int GPUMEM_CAPABILITY_PIN_REGISTER = 13;
    public const int GPUMEM_CAPABILITY_PIN_REGISTER_SAME_POINTER = 14;
    public const int GPUMEM_CAPABILITY_PIN_REGISTER_READ_ONLY = 15;
    public const int GPUMEM_CAPABILITY_PIN_REGISTER_IOMEMORY = 16;
    public const int GPUMEM_CAPABILITY_PIN_MAX_SINGLE = 17;
    public const int GPUMEM_CAPABILITY_PIN_MAX_COUNT = 18;
    public const int GPUMEM_CAPABILITY_PIN_NUMA = 19;
    public const int GPUMEM_CAPABILITY_HOST_ATOMICS = 20;
    public const int GPUMEM_CAPABILITY_PAGEABLE = 30;
    public const int GPUMEM_CAPABILITY_PAGEABLE_HOST_TABLES = 31;
    public const int GPUMEM_CAPABILITY_STREAM_VALUE32 = 40;
    public const int GPUMEM_CAPABILITY_STREAM_VALUE64 = 41;
    public const int GPUMEM_CAPABILITY_STREAM_VALUE_NOR = 42;
    public const int GPUMEM_CAPABILITY_COPY_ENGINES = 50;
    public const int GPUMEM_CAPABILITY_PEER_ACCESS = 60;
    public const int GPUMEM_CAPABILITY_PEER_ATOMICS = 61;
    public const int GPUMEM_CAPABILITY_TYPE_TRI = 1;
    public const int GPUMEM_CAPABILITY_TYPE_INT = 2;
    public const int GPUMEM_CAPABILITY_TYPE_BYTES = 3;
    public const int GPUMEM_CAPABILITY_NO = 0;
    public const int GPUMEM_CAPABILITY_YES = 1;
    public const int GPUMEM_CAPABILITY_EMULATED = 2;
    public const int GPUMEM_CAPABILITY_FROM_ATTRIBUTE = 1;
    public const int GPUMEM_CAPABILITY_FROM_TRIAL = 2;
    public const int GPUMEM_CAPABILITY_FROM_CONFIGURATION = 3;
    public const int GPUMEM_CAPABILITY_FROM_CONTRACT = 4;

    // memory.h
    public const int GPUMEM_KIND_UNKNOWN = 0;
    public const int GPUMEM_KIND_PAGEABLE = 1;
    public const int GPUMEM_KIND_PINNED = 2;
    public const int GPUMEM_KIND_REGISTERED = 3;
    public const int GPUMEM_KIND_DEVICE = 4;
    public const int GPUMEM_KIND_FOREIGN = 9;
    public const ulong GPUMEM_MEMORY_PORTABLE = 0x1;
    public const ulong GPUMEM_MEMORY_MAPPED = 0x2;
    public const ulong GPUMEM_MEMORY_WRITE_COMBINED = 0x4;
    public const ulong GPUMEM_MEMORY_READ_ONLY = 0x8;
    public const ulong GPUMEM_MEMORY_IOMEMORY = 0x10;
    public const ulong GPUMEM_MEMORY_PAGE_LOCKED = 0x20;
    public const ulong GPUMEM_MEMORY_NUMA_NODE = 0x40;

    // pointer.h
    public const int GPUMEM_LOCATION_NONE = 0;
    public const int GPUMEM_LOCATION_DEVICE = 1;
    public const int GPUMEM_LOCATION_HOST = 2;
    public const int GPUMEM_LOCATION_HOST_NUMA = 3;
    public const int GPUMEM_ACCESS_NONE = 0;
    public const int GPUMEM_ACCESS_READ = 1;
    public const int GPUMEM_ACCESS_READWRITE = 3;
    public const int GPUMEM_ACCESS_UNKNOWN = 4;

    // copy.h
    public const int GPUMEM_DIRECTION_INFER = 0;
    public const int GPUMEM_DIRECTION_HOST_TO_HOST = 1;
    public const int GPUMEM_DIRECTION_HOST_TO_DEVICE = 2;
    public const int GPUMEM_DIRECTION_DEVICE_TO_HOST = 3;
    public const int GPUMEM_DIRECTION_DEVICE_TO_DEVICE = 4;
    public const int GPUMEM_SOURCE_ORDER_STREAM = 0;
    public const int GPUMEM_SOURCE_ORDER_DURING_CALL = 1;
    public const int GPUMEM_SOURCE_ORDER_ANY = 2;

    // stream.h
    public const int GPUMEM_WAIT_VALUE_GEQ = 0;
    public const int GPUMEM_WAIT_VALUE_EQ = 1;
    public const int GPUMEM_WAIT_VALUE_AND = 2;
    public const int GPUMEM_WAIT_VALUE_NOR = 3;

    // event.h
    public const uint GPUMEM_EVENT_DISABLE_TIMING = 0x1;
    public const uint GPUMEM_EVENT_BLOCKING_SYNC = 0x2;
  }
}
