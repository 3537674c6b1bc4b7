/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file version.h
 * Version of the headers and of the loaded library, and the features of this build.
 */
#ifndef GPUMEM_VERSION_H
#define GPUMEM_VERSION_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GPUMEM_VERSION_MAJOR 0 /**< Changes when the interface breaks. */
#define GPUMEM_VERSION_MINOR 1 /**< Changes when the interface grows. */
#define GPUMEM_VERSION_PATCH 0 /**< Changes otherwise. */
/** A version as one number; newer versions are larger. */
#ifdef __cplusplus
#define GPUMEM_MAKE_VERSION(major, minor, patch) \
  ((static_cast<uint32_t>(major) << 22) | (static_cast<uint32_t>(minor) << 12) | static_cast<uint32_t>(patch))
#else
#define GPUMEM_MAKE_VERSION(major, minor, patch) \
  (((uint32_t)(major) << 22) | ((uint32_t)(minor) << 12) | (uint32_t)(patch))
#endif
/** Version of these headers. */
#define GPUMEM_VERSION GPUMEM_MAKE_VERSION(GPUMEM_VERSION_MAJOR, GPUMEM_VERSION_MINOR, GPUMEM_VERSION_PATCH)

/** A feature that a build of the library may lack: one of the GPUMEM_FEATURE_ values. */
typedef int32_t gpumem_feature;
#define GPUMEM_FEATURE_BACKEND_HOST 1 /**< The host backend is compiled in. */
/** The cuda backend is compiled in; gpumem_instance_probe() finds out whether it works here. */
#define GPUMEM_FEATURE_BACKEND_CUDA 2
#define GPUMEM_FEATURE_MEMORY_DEVICE 10     /**< Device memory. */
#define GPUMEM_FEATURE_MEMORY_PINNED 11     /**< Pinned and mapped host memory. */
#define GPUMEM_FEATURE_MEMORY_REGISTERED 12 /**< Pinning of existing memory. */
#define GPUMEM_FEATURE_MEMORY_MANAGED 13    /**< Managed memory: managed.h. */
#define GPUMEM_FEATURE_VMM 14               /**< Virtual memory management: physical.h and range.h. */
#define GPUMEM_FEATURE_BUFFER 15       /**< Buffers that grow and sleep, and groups: buffer.h and group.h. */
#define GPUMEM_FEATURE_POOL 16         /**< Pools: pool.h. */
#define GPUMEM_FEATURE_STREAM_VALUE 20 /**< Value writes and value waits in a stream. */
#define GPUMEM_FEATURE_COPY_FILE 21    /**< Copies between memory and a file: file.h. */
#define GPUMEM_FEATURE_HOST_SIMULATION 30 /**< The functions of host.h. */
#define GPUMEM_FEATURE_SHARE 40           /**< Memory and events shared between processes: share.h. */
#define GPUMEM_FEATURE_HUB 41             /**< Names under which processes share: hub.h. */
#define GPUMEM_FEATURE_RING 42            /**< Rings of messages between processes: ring.h. */

/** Returns the version of the loaded library.
 *
 * \return the version as #GPUMEM_MAKE_VERSION makes it; compare it with #GPUMEM_VERSION of the headers
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API uint32_t gpumem_version(void);

/** Returns the version of the loaded library as text.
 *
 * \return a constant string such as `"0.1.0"`
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API const char *gpumem_version_text(void);

/** Returns whether this build of the library has a feature. It says nothing about drivers and devices: use
 * gpumem_instance_probe() and gpumem_device_get_capability() for those.
 *
 * \param feature one of the GPUMEM_FEATURE_ values; for any other number the result is 0
 * \return 1 if the build has the feature, otherwise 0
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API int32_t gpumem_feature_supported(gpumem_feature feature);

#ifdef __cplusplus
}
#endif

#endif
