// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/object/status_list.h"

#include <array>

namespace gpumem::core {
namespace {

#define GPUMEM_STATUS_TEXT(status, cause, remedy) \
  StatusText { status, #status, cause, remedy }

constexpr std::array kStatusList{
    GPUMEM_STATUS_TEXT(GPUMEM_SUCCESS, "The call succeeded.", "Nothing to do."),
    GPUMEM_STATUS_TEXT(GPUMEM_NOT_READY, "The queried work is not complete. This is not a failure.",
                       "Query again later, or wait with a synchronize call."),
    GPUMEM_STATUS_TEXT(GPUMEM_NO_EFFECT,
                       "A valid hint that this device or driver cannot use; nothing changed.",
                       "Nothing to do; the program is correct without the hint."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_INVALID_ARGUMENT,
                       "A value is invalid in every configuration: NULL, zero, an unknown bit, misaligned, "
                       "or out of bounds.",
                       "Correct the call; the message names the argument."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_WRONG_KIND, "The memory is of a kind that this function does not accept.",
                       "Use the function for that kind; gpumem_pointer_get_info() reports the kind."),
    GPUMEM_STATUS_TEXT(
        GPUMEM_ERROR_NOT_FOUND,
        "The instance has nothing with that name, address or number, or the directory for a file does not "
        "exist.",
        "Check that it was made through this instance and not freed already, or create the directory."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_ALREADY_EXISTS, "The range or relation already exists.",
                       "Use the existing one, or remove it first."),
    GPUMEM_STATUS_TEXT(
        GPUMEM_ERROR_STALE_HANDLE,
        "The handle refers to an object that was destroyed, or the share handle to an export that has ended.",
        "Do not use a handle after destroying its object; ask the exporter for a new share handle."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_INVALID_STATE,
                       "The call is not allowed at this time, for example from a host function.",
                       "Call again when the obstacle that the message names is gone."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_NO_ACCESS,
                       "The processor that would do the work has no access to the memory.",
                       "Register or map the memory with the missing access, or use another device."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_BUSY,
                       "Unfinished work, live objects or other processes are using it, or another process "
                       "did not answer in time.",
                       "Wait for the work, or until they are destroyed, then make the same call again."),
    GPUMEM_STATUS_TEXT(
        GPUMEM_ERROR_CLOSED,
        "The instance was closed, the producer of a ring has finished it, or the driver is shutting down.",
        "Open a new instance, or destroy the ring. At process exit nothing needs to be freed."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_FORKED, "A forked child used an object of its parent.",
                       "Open a new instance in the child; for cuda, start the child with exec."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_PEER_GONE,
                       "The process that exported the memory or event, or that has the hub, has ended.",
                       "Destroy the import or close the link, and get a new handle from its successor."),
    GPUMEM_STATUS_TEXT(
        GPUMEM_ERROR_DEVICE_LOST,
        "Work on the device failed in a way that makes it unusable for the rest of this process.",
        "Save what is in host memory and restart the process."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_CANCELLED, "The caller's progress function ended the call.",
                       "To have it done, call again and let the function go on. If the message speaks of "
                       "buffers that sleep, wake them."),
    GPUMEM_STATUS_TEXT(
        GPUMEM_ERROR_CONTENT_LOST, "Content that was kept can no longer be read.",
        "Destroy the buffer that the message names and fill a new one; look for what changed the file."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, "The device does not have enough memory.",
                       "Free device memory, request less, or use pinned memory in place."),
    GPUMEM_STATUS_TEXT(
        GPUMEM_ERROR_OUT_OF_HOST_MEMORY,
        "The system does not have enough memory for the request or for the library's own records.",
        "Free memory, or request less."),
    GPUMEM_STATUS_TEXT(
        GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE,
        "There is no free address range of that size, or a buffer has used up the addresses that it "
        "reserved.",
        "Request a smaller range; reserve more for the buffer, or create it with GPUMEM_BUFFER_MOVABLE."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_LIMIT_EXCEEDED, "A limit or budget is exhausted; the message names it.",
                       "Free some of what it counts, or raise it (for locked memory: ulimit -l)."),
    GPUMEM_STATUS_TEXT(
        GPUMEM_ERROR_UNSUPPORTED,
        "The request is valid, but this device, driver, backend or object does not support it.",
        "Query gpumem_device_get_capability() first; the message names the capability."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_PERMISSION_DENIED,
                       "The system, the driver or a peer denies this to the user or process.",
                       "Check device files, container settings, groups and file permissions."),
    GPUMEM_STATUS_TEXT(
        GPUMEM_ERROR_NO_DEVICE, "The driver is present, but there is no usable device.",
        "Check nvidia-smi, CUDA_VISIBLE_DEVICES and the container's devices, or use the host backend."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_DRIVER_NOT_FOUND,
                       "libcuda.so.1 cannot be loaded, or it is the Toolkit's stub.",
                       "Install the NVIDIA driver, or use the host backend."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_DRIVER_TOO_OLD,
                       "The driver is older than CUDA 11.2, or its parts do not match.",
                       "Update the driver; after an update, reboot or reload its modules."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_SYMBOL_MISSING, "This driver lacks the entry point of this one function.",
                       "Update the driver, or avoid the function."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_INTERNAL,
                       "An unexpected error; the detail has the native code and its name.",
                       "Look up the native code; report it if it is a bug in gpumem."),
};

}  // namespace

std::span<const StatusText> status_list() { return kStatusList; }

const StatusText* find_status(Status status) {
  for (const StatusText& text : kStatusList) {
    if (text.status == status) return &text;
  }
  return nullptr;
}

bool lacks_room(Status status) {
  return status == GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY || status == GPUMEM_ERROR_OUT_OF_HOST_MEMORY ||
         status == GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE || status == GPUMEM_ERROR_LIMIT_EXCEEDED;
}

}  // namespace gpumem::core
