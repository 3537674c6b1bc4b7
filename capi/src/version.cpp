// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "gpumem/version.h"

#include "core/instance/backends.h"

#define GPUMEM_TEXT_OF(value) #value
#define GPUMEM_VERSION_TEXT(major, minor, patch) \
  GPUMEM_TEXT_OF(major) "." GPUMEM_TEXT_OF(minor) "." GPUMEM_TEXT_OF(patch)

uint32_t gpumem_version(void) { return GPUMEM_VERSION; }

const char* gpumem_version_text(void) {
  return GPUMEM_VERSION_TEXT(GPUMEM_VERSION_MAJOR, GPUMEM_VERSION_MINOR, GPUMEM_VERSION_PATCH);
}

int32_t gpumem_feature_supported(gpumem_feature feature) {
  switch (feature) {
    case GPUMEM_FEATURE_BACKEND_HOST:
      return gpumem::core::has_backend(GPUMEM_BACKEND_HOST) ? 1 : 0;
    case GPUMEM_FEATURE_BACKEND_CUDA:
      return gpumem::core::has_backend(GPUMEM_BACKEND_CUDA) ? 1 : 0;
    case GPUMEM_FEATURE_MEMORY_DEVICE:
    case GPUMEM_FEATURE_MEMORY_PINNED:
    case GPUMEM_FEATURE_MEMORY_REGISTERED:
    case GPUMEM_FEATURE_MEMORY_MANAGED:
    case GPUMEM_FEATURE_VMM:
    case GPUMEM_FEATURE_BUFFER:
    case GPUMEM_FEATURE_POOL:
    case GPUMEM_FEATURE_STREAM_VALUE:
    case GPUMEM_FEATURE_COPY_FILE:
    case GPUMEM_FEATURE_HOST_SIMULATION:
    case GPUMEM_FEATURE_SHARE:
    case GPUMEM_FEATURE_HUB:
    case GPUMEM_FEATURE_RING:
      return 1;
    default:
      return 0;
  }
}
