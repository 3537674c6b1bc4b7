// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/cuda/error.h"

namespace gpumem::cuda {
namespace {

// The status of every code in the headers. OUT_OF_MEMORY depends on the place.
#define GPUMEM_CUDA_CODES(X)                                                \
  X(CUDA_SUCCESS, GPUMEM_SUCCESS)                                           \
  X(CUDA_ERROR_INVALID_VALUE, GPUMEM_ERROR_INVALID_ARGUMENT)                \
  X(CUDA_ERROR_OUT_OF_MEMORY, GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY)            \
  X(CUDA_ERROR_NOT_INITIALIZED, GPUMEM_ERROR_INTERNAL)                      \
  X(CUDA_ERROR_DEINITIALIZED, GPUMEM_ERROR_CLOSED)                          \
  X(CUDA_ERROR_PROFILER_DISABLED, GPUMEM_ERROR_INTERNAL)                    \
  X(CUDA_ERROR_PROFILER_NOT_INITIALIZED, GPUMEM_ERROR_INTERNAL)             \
  X(CUDA_ERROR_PROFILER_ALREADY_STARTED, GPUMEM_ERROR_INTERNAL)             \
  X(CUDA_ERROR_PROFILER_ALREADY_STOPPED, GPUMEM_ERROR_INTERNAL)             \
  X(CUDA_ERROR_STUB_LIBRARY, GPUMEM_ERROR_DRIVER_NOT_FOUND)                 \
  X(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, GPUMEM_ERROR_DRIVER_TOO_OLD)     \
  X(CUDA_ERROR_DEVICE_UNAVAILABLE, GPUMEM_ERROR_BUSY)                       \
  X(CUDA_ERROR_NO_DEVICE, GPUMEM_ERROR_NO_DEVICE)                           \
  X(CUDA_ERROR_INVALID_DEVICE, GPUMEM_ERROR_INVALID_ARGUMENT)               \
  X(CUDA_ERROR_DEVICE_NOT_LICENSED, GPUMEM_ERROR_INTERNAL)                  \
  X(CUDA_ERROR_INVALID_IMAGE, GPUMEM_ERROR_INTERNAL)                        \
  X(CUDA_ERROR_INVALID_CONTEXT, GPUMEM_ERROR_DEVICE_LOST)                   \
  X(CUDA_ERROR_CONTEXT_ALREADY_CURRENT, GPUMEM_ERROR_INTERNAL)              \
  X(CUDA_ERROR_MAP_FAILED, GPUMEM_ERROR_INTERNAL)                           \
  X(CUDA_ERROR_UNMAP_FAILED, GPUMEM_ERROR_INTERNAL)                         \
  X(CUDA_ERROR_ARRAY_IS_MAPPED, GPUMEM_ERROR_INTERNAL)                      \
  X(CUDA_ERROR_ALREADY_MAPPED, GPUMEM_ERROR_ALREADY_EXISTS)                 \
  X(CUDA_ERROR_NO_BINARY_FOR_GPU, GPUMEM_ERROR_INTERNAL)                    \
  X(CUDA_ERROR_ALREADY_ACQUIRED, GPUMEM_ERROR_INTERNAL)                     \
  X(CUDA_ERROR_NOT_MAPPED, GPUMEM_ERROR_INVALID_STATE)                      \
  X(CUDA_ERROR_NOT_MAPPED_AS_ARRAY, GPUMEM_ERROR_INTERNAL)                  \
  X(CUDA_ERROR_NOT_MAPPED_AS_POINTER, GPUMEM_ERROR_INTERNAL)                \
  X(CUDA_ERROR_ECC_UNCORRECTABLE, GPUMEM_ERROR_DEVICE_LOST)                 \
  X(CUDA_ERROR_UNSUPPORTED_LIMIT, GPUMEM_ERROR_INTERNAL)                    \
  X(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, GPUMEM_ERROR_INTERNAL)               \
  X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, GPUMEM_ERROR_UNSUPPORTED)           \
  X(CUDA_ERROR_INVALID_PTX, GPUMEM_ERROR_INTERNAL)                          \
  X(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, GPUMEM_ERROR_INTERNAL)             \
  X(CUDA_ERROR_NVLINK_UNCORRECTABLE, GPUMEM_ERROR_DEVICE_LOST)              \
  X(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, GPUMEM_ERROR_INTERNAL)               \
  X(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, GPUMEM_ERROR_INTERNAL)              \
  X(CUDA_ERROR_JIT_COMPILATION_DISABLED, GPUMEM_ERROR_INTERNAL)             \
  X(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, GPUMEM_ERROR_INTERNAL)            \
  X(CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC, GPUMEM_ERROR_INTERNAL)             \
  X(CUDA_ERROR_CONTAINED, GPUMEM_ERROR_DEVICE_LOST)                         \
  X(CUDA_ERROR_INVALID_SOURCE, GPUMEM_ERROR_INTERNAL)                       \
  X(CUDA_ERROR_FILE_NOT_FOUND, GPUMEM_ERROR_INTERNAL)                       \
  X(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, GPUMEM_ERROR_INTERNAL)       \
  X(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, GPUMEM_ERROR_INTERNAL)            \
  X(CUDA_ERROR_OPERATING_SYSTEM, GPUMEM_ERROR_INTERNAL)                     \
  X(CUDA_ERROR_INVALID_HANDLE, GPUMEM_ERROR_STALE_HANDLE)                   \
  X(CUDA_ERROR_ILLEGAL_STATE, GPUMEM_ERROR_INVALID_STATE)                   \
  X(CUDA_ERROR_LOSSY_QUERY, GPUMEM_ERROR_INTERNAL)                          \
  X(CUDA_ERROR_NOT_FOUND, GPUMEM_ERROR_NOT_FOUND)                           \
  X(CUDA_ERROR_NOT_READY, GPUMEM_ERROR_BUSY) /* not from a query */         \
  X(CUDA_ERROR_ILLEGAL_ADDRESS, GPUMEM_ERROR_DEVICE_LOST)                   \
  X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, GPUMEM_ERROR_INTERNAL)              \
  X(CUDA_ERROR_LAUNCH_TIMEOUT, GPUMEM_ERROR_DEVICE_LOST)                    \
  X(CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING, GPUMEM_ERROR_INTERNAL)        \
  X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, GPUMEM_ERROR_ALREADY_EXISTS)    \
  X(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, GPUMEM_ERROR_INVALID_STATE)         \
  X(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, GPUMEM_ERROR_INTERNAL)               \
  X(CUDA_ERROR_CONTEXT_IS_DESTROYED, GPUMEM_ERROR_DEVICE_LOST)              \
  X(CUDA_ERROR_ASSERT, GPUMEM_ERROR_DEVICE_LOST)                            \
  X(CUDA_ERROR_TOO_MANY_PEERS, GPUMEM_ERROR_LIMIT_EXCEEDED)                 \
  X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, GPUMEM_ERROR_ALREADY_EXISTS) \
  X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, GPUMEM_ERROR_NOT_FOUND)          \
  X(CUDA_ERROR_HARDWARE_STACK_ERROR, GPUMEM_ERROR_DEVICE_LOST)              \
  X(CUDA_ERROR_ILLEGAL_INSTRUCTION, GPUMEM_ERROR_DEVICE_LOST)               \
  X(CUDA_ERROR_MISALIGNED_ADDRESS, GPUMEM_ERROR_DEVICE_LOST)                \
  X(CUDA_ERROR_INVALID_ADDRESS_SPACE, GPUMEM_ERROR_DEVICE_LOST)             \
  X(CUDA_ERROR_INVALID_PC, GPUMEM_ERROR_DEVICE_LOST)                        \
  X(CUDA_ERROR_LAUNCH_FAILED, GPUMEM_ERROR_DEVICE_LOST)                     \
  X(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, GPUMEM_ERROR_INTERNAL)         \
  X(CUDA_ERROR_TENSOR_MEMORY_LEAK, GPUMEM_ERROR_DEVICE_LOST)                \
  X(CUDA_ERROR_NOT_PERMITTED, GPUMEM_ERROR_PERMISSION_DENIED)               \
  X(CUDA_ERROR_NOT_SUPPORTED, GPUMEM_ERROR_UNSUPPORTED)                     \
  X(CUDA_ERROR_SYSTEM_NOT_READY, GPUMEM_ERROR_NO_DEVICE)                    \
  X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, GPUMEM_ERROR_DRIVER_TOO_OLD)         \
  X(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, GPUMEM_ERROR_DRIVER_TOO_OLD) \
  X(CUDA_ERROR_MPS_CONNECTION_FAILED, GPUMEM_ERROR_INTERNAL)                \
  X(CUDA_ERROR_MPS_RPC_FAILURE, GPUMEM_ERROR_INTERNAL)                      \
  X(CUDA_ERROR_MPS_SERVER_NOT_READY, GPUMEM_ERROR_BUSY)                     \
  X(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, GPUMEM_ERROR_LIMIT_EXCEEDED)        \
  X(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, GPUMEM_ERROR_LIMIT_EXCEEDED)    \
  X(CUDA_ERROR_MPS_CLIENT_TERMINATED, GPUMEM_ERROR_DEVICE_LOST)             \
  X(CUDA_ERROR_CDP_NOT_SUPPORTED, GPUMEM_ERROR_INTERNAL)                    \
  X(CUDA_ERROR_CDP_VERSION_MISMATCH, GPUMEM_ERROR_INTERNAL)                 \
  X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, GPUMEM_ERROR_INVALID_STATE)      \
  X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, GPUMEM_ERROR_INVALID_STATE)      \
  X(CUDA_ERROR_STREAM_CAPTURE_MERGE, GPUMEM_ERROR_INVALID_STATE)            \
  X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, GPUMEM_ERROR_INVALID_STATE)        \
  X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, GPUMEM_ERROR_INVALID_STATE)         \
  X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, GPUMEM_ERROR_INVALID_STATE)        \
  X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, GPUMEM_ERROR_INVALID_STATE)         \
  X(CUDA_ERROR_CAPTURED_EVENT, GPUMEM_ERROR_INVALID_STATE)                  \
  X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, GPUMEM_ERROR_INVALID_STATE)     \
  X(CUDA_ERROR_TIMEOUT, GPUMEM_ERROR_INTERNAL)                              \
  X(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, GPUMEM_ERROR_INTERNAL)            \
  X(CUDA_ERROR_EXTERNAL_DEVICE, GPUMEM_ERROR_INTERNAL)                      \
  X(CUDA_ERROR_INVALID_CLUSTER_SIZE, GPUMEM_ERROR_INTERNAL)                 \
  X(CUDA_ERROR_FUNCTION_NOT_LOADED, GPUMEM_ERROR_INTERNAL)                  \
  X(CUDA_ERROR_INVALID_RESOURCE_TYPE, GPUMEM_ERROR_INTERNAL)                \
  X(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, GPUMEM_ERROR_INTERNAL)       \
  X(CUDA_ERROR_KEY_ROTATION, GPUMEM_ERROR_INTERNAL)                         \
  X(CUDA_ERROR_UNKNOWN, GPUMEM_ERROR_INTERNAL)

const char* what_to_do(Status status) {
  switch (status) {
    case GPUMEM_ERROR_INVALID_ARGUMENT:
      return "the driver rejected an argument; check the request against the device's capabilities";
    case GPUMEM_ERROR_INVALID_STATE:
      return "this is not possible now; if a stream is being captured, end the capture first";
    case GPUMEM_ERROR_UNSUPPORTED:
      return "this device or driver does not support it; query its capabilities first";
    case GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY:
      return "the device is out of memory; free some or request less";
    case GPUMEM_ERROR_OUT_OF_HOST_MEMORY:
      return "the system is out of memory; free some or request less";
    case GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE:
      return "no free address range is that large; request less";
    case GPUMEM_ERROR_LIMIT_EXCEEDED:
      return "a limit of the driver is reached; release something of that kind first";
    case GPUMEM_ERROR_NOT_FOUND:
      return "the driver does not know this object; it may already be gone";
    case GPUMEM_ERROR_ALREADY_EXISTS:
      return "other code in this process has already done it";
    case GPUMEM_ERROR_BUSY:
      return "it is in use by other work; try again later";
    case GPUMEM_ERROR_PERMISSION_DENIED:
      return "the driver denied permission; check the rights of this process and its container";
    case GPUMEM_ERROR_STALE_HANDLE:
      return "the driver does not know this object; it may already be destroyed";
    case GPUMEM_ERROR_CLOSED:
      return "the driver is shutting down; make no calls while the process exits";
    case GPUMEM_ERROR_DEVICE_LOST:
      return "the device has failed and cannot be used again; restart the process";
    case GPUMEM_ERROR_NO_DEVICE:
      return "there is no usable device; check the hardware, the driver and CUDA_VISIBLE_DEVICES";
    case GPUMEM_ERROR_DRIVER_NOT_FOUND:
      return "libcuda.so.1 is the Toolkit's stub; install a driver, and remove the stub from the library "
             "path";
    case GPUMEM_ERROR_DRIVER_TOO_OLD:
      return "the driver is too old, or its parts do not match; install a newer driver";
    case GPUMEM_ERROR_SYMBOL_MISSING:
      return "this driver lacks the entry point; install a newer driver";
    default:
      return "the driver failed; check the system log";
  }
}

}  // namespace

Status status_of(CUresult code, Place place) {
  if (code == CUDA_ERROR_OUT_OF_MEMORY) {
    if (place == Place::kHost) return GPUMEM_ERROR_OUT_OF_HOST_MEMORY;
    if (place == Place::kAddresses) return GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE;
  }
  switch (static_cast<int>(code)) {
#define GPUMEM_CUDA_STATUS(name, status) \
  case name:                             \
    return status;
    GPUMEM_CUDA_CODES(GPUMEM_CUDA_STATUS)
#undef GPUMEM_CUDA_STATUS
    default:
      return GPUMEM_ERROR_INTERNAL;
  }
}

const char* name_of(CUresult code) {
  switch (static_cast<int>(code)) {
#define GPUMEM_CUDA_NAME(name, status) \
  case name:                           \
    return #name;
    GPUMEM_CUDA_CODES(GPUMEM_CUDA_NAME)
#undef GPUMEM_CUDA_NAME
    default:
      return "CUDA_ERROR_?";
  }
}

Error error_of(Outcome outcome, Place place, const char* format, va_list arguments) {
  const Status status = outcome.missing() ? GPUMEM_ERROR_SYMBOL_MISSING : status_of(outcome.code, place);
  char what[256];
  std::vsnprintf(what, sizeof what, format, arguments);
  if (outcome.missing()) {
    Error error = make_error(status, "%s: %s: %s", what, outcome.entry_point, what_to_do(status));
    error.entry_point = outcome.entry_point;
    return error;
  }
  return make_error(status, "%s: %s", what, what_to_do(status))
      .from_native(GPUMEM_NATIVE_CUDA, outcome.code, name_of(outcome.code), outcome.entry_point);
}

Error error_of(Outcome outcome, Place place, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  Error error = error_of(outcome, place, format, arguments);
  va_end(arguments);
  return error;
}

}  // namespace gpumem::cuda
