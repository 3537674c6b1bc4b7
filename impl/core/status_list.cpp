// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/status_list.h"

#include <array>

namespace gpumem::core {
namespace {

#define GPUMEM_STATUS_TEXT(status, cause, remedy) \
  StatusText { status, #status, cause, remedy }

constexpr std::array kStatusList{
    GPUMEM_STATUS_TEXT(GPUMEM_SUCCESS, "The call did what it says.", "Nothing to do."),
    GPUMEM_STATUS_TEXT(GPUMEM_NOT_READY, "The work asked about is not complete; nothing is wrong.",
                       "Ask again later, or wait with a synchronize call."),
    GPUMEM_STATUS_TEXT(GPUMEM_NO_EFFECT,
                       "A valid hint that this device or driver cannot use; nothing changed.",
                       "Nothing to do: the program is right without the hint."),
    GPUMEM_STATUS_TEXT(
        GPUMEM_ERROR_INVALID_ARGUMENT,
        "A value that no configuration accepts: NULL, zero, an unknown bit, misaligned, out of bounds.",
        "Correct the call; the message names the argument."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_WRONG_KIND,
                       "The memory is known, but of a kind that this function does not take.",
                       "Use the function for that kind; gpumem_pointer_get_info tells the kind."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_NOT_FOUND,
                       "Nothing of that name, address or number exists in this instance.",
                       "Check that it was made through this instance and not freed already."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_ALREADY_EXISTS, "The range or relation exists already.",
                       "Use the existing one, or end it first."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_STALE_HANDLE, "The handle named an object that was destroyed.",
                       "Do not use a handle after destroying its object."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_INVALID_STATE,
                       "The object is right but the moment is wrong, such as a call from a host function.",
                       "Make the call at another time; the message says what stands in the way."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_NO_ACCESS, "The processor that would act has no right to the memory.",
                       "Register or map the memory with the missing right, or use another device."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_BUSY, "In use by work, or by objects, that are not finished.",
                       "Wait for the work or destroy the objects, then make the same call again."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_CLOSED, "The instance was closed, or the driver is shutting down.",
                       "Open another instance; at process exit, nothing needs to be freed."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_FORKED, "A forked child used something of its parent.",
                       "Open an instance of the child's own; for cuda, start the child with exec."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_PEER_GONE, "The other process of a shared object has ended.",
                       "Close the import and connect again."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_DEVICE_LOST,
                       "Work on the device failed in a way that ends all use of it by this process.",
                       "Free what is left, save the work of the host, and start the process again."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, "The device has not enough memory.",
                       "Free device memory, ask for less, or use pinned memory in place."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_OUT_OF_HOST_MEMORY,
                       "The system has not enough memory for the request or for the library's records.",
                       "Free memory or ask for less."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE, "There is no range of addresses of that size.",
                       "Ask for a smaller range."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_LIMIT_EXCEEDED, "A limit or budget is used up; the message names it.",
                       "Free some of what is counted, or raise the limit (for locked memory: ulimit -l)."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_UNSUPPORTED,
                       "A valid request that this device, driver, backend or object cannot serve.",
                       "Ask gpumem_device_get_capability first; the message names the capability."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_PERMISSION_DENIED,
                       "The system, driver or peer refuses this user or process.",
                       "Get the right: device files, container settings, groups or file permissions."),
    GPUMEM_STATUS_TEXT(
        GPUMEM_ERROR_NO_DEVICE, "The driver is there but offers no device.",
        "Check nvidia-smi, CUDA_VISIBLE_DEVICES and the container's devices; or use the host backend."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_DRIVER_NOT_FOUND,
                       "libcuda.so.1 cannot be loaded, or it is the Toolkit's stub.",
                       "Install the NVIDIA driver, or use the host backend."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_DRIVER_TOO_OLD,
                       "The driver is older than CUDA 11.2, or its parts do not match.",
                       "Update the driver; after an update, reboot or reload its modules."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_SYMBOL_MISSING, "This driver lacks the entry point of this one function.",
                       "Update the driver, or do without the function."),
    GPUMEM_STATUS_TEXT(GPUMEM_ERROR_INTERNAL,
                       "Something unexpected; the native code and its name are attached.",
                       "Look the native code up; report it if it is a fault of gpumem."),
};

}  // namespace

std::span<const StatusText> status_list() { return kStatusList; }

const StatusText* find_status(Status status) {
  for (const StatusText& text : kStatusList) {
    if (text.status == status) return &text;
  }
  return nullptr;
}

}  // namespace gpumem::core
