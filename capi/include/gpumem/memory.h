/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file memory.h
 * Allocations of every kind, as objects and as plain pointers.
 */
#ifndef GPUMEM_MEMORY_H
#define GPUMEM_MEMORY_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What a piece of memory is: one of the GPUMEM_KIND_ values. */
typedef int32_t gpumem_kind;
#define GPUMEM_KIND_UNKNOWN 0    /**< An address that neither the instance, the driver nor the CPU knows. */
#define GPUMEM_KIND_PAGEABLE 1   /**< Ordinary memory of the process. */
#define GPUMEM_KIND_PINNED 2     /**< Page-locked host memory that was allocated here. */
#define GPUMEM_KIND_REGISTERED 3 /**< Memory of the caller that was page-locked here. */
#define GPUMEM_KIND_DEVICE 4     /**< Memory of one device. */
#define GPUMEM_KIND_FOREIGN 9    /**< Known to the driver, but made by other code. */

/** Properties of an allocation: a sum of GPUMEM_MEMORY_ values. */
typedef uint64_t gpumem_memory_flags;
/** All devices treat the memory as pinned. Pinned allocations have it anyway. */
#define GPUMEM_MEMORY_PORTABLE 0x1u
/** The memory has a device pointer. Pinned allocations have it anyway. */
#define GPUMEM_MEMORY_MAPPED 0x2u
/** Pinned only: uncached for the CPU, which may read it very slowly. */
#define GPUMEM_MEMORY_WRITE_COMBINED 0x4u
/** Registered only: devices may only read. Needed if the CPU mapping is read-only. */
#define GPUMEM_MEMORY_READ_ONLY 0x8u
#define GPUMEM_MEMORY_IOMEMORY 0x10u    /**< Registered only: memory-mapped I/O of another device. */
#define GPUMEM_MEMORY_PAGE_LOCKED 0x20u /**< Pinned and registered: the pages are really locked. */
#define GPUMEM_MEMORY_NUMA_NODE 0x40u   /**< Pinned only: the pages lie on `numa_node`. */

/** What is to be allocated or registered. */
typedef struct gpumem_memory_desc {
  size_t struct_size; /**< `sizeof(gpumem_memory_desc)` of the caller. */
  gpumem_kind kind;   /**< #GPUMEM_KIND_DEVICE, #GPUMEM_KIND_PINNED or #GPUMEM_KIND_REGISTERED. */
  int32_t numa_node;  /**< Node for #GPUMEM_MEMORY_NUMA_NODE; otherwise 0. */
  uint64_t size;      /**< Bytes, 1 to 2^63-1. */
  uint64_t alignment; /**< Power of two in bytes, met exactly or refused; 0 means at least 256. Not for
                           registered memory. */
  gpumem_memory_flags require; /**< Properties without which the call shall fail. */
  gpumem_memory_flags prefer;  /**< Properties that may be missing from what is granted. */
  void *host_pointer; /**< Registered only: first byte, at any address. The memory must stay mapped for as
                         long as it is registered. Otherwise NULL. */
  const char *name;   /**< For messages and reports, up to 63 bytes, or NULL; copied. */
} gpumem_memory_desc;

/** Initial value of a gpumem_memory_desc. */
#define GPUMEM_MEMORY_DESC_INIT \
  { sizeof(gpumem_memory_desc), 0, 0, 0, 0, 0, 0, NULL, NULL }

/** Sets up a gpumem_memory_desc as #GPUMEM_MEMORY_DESC_INIT does.
 *
 * \param[out] out_desc struct to set up; NULL does nothing
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API void gpumem_memory_desc_init(gpumem_memory_desc *out_desc);

/** Allocates memory, or page-locks memory that exists. Fresh memory has indeterminate contents.
 *
 * \param device device of the memory; for pinned memory the one it shall be near to, for registered memory
 *         the one it is pinned for unless #GPUMEM_MEMORY_PORTABLE is granted
 * \param desc what is wanted
 * \param[out] out_memory receives the memory
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS done; `granted_flags` of gpumem_memory_get_info() contains what was required
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, size 0 or above 2^63-1, a range that wraps, alignment
 *         that is no power of two, unknown kind or flag, a flag that the kind does not have, no such NUMA
 *         node; registered: a page of the range is not mapped
 * \retval GPUMEM_ERROR_WRONG_KIND registered: the range lies in memory that is no ordinary memory
 * \retval GPUMEM_ERROR_ALREADY_EXISTS registered: a byte of the range is pinned or registered already
 * \retval GPUMEM_ERROR_UNSUPPORTED a required property cannot be granted here; the message names the
 *         capability
 * \retval GPUMEM_ERROR_PERMISSION_DENIED registered: the CPU mapping is read-only and
 *         #GPUMEM_MEMORY_READ_ONLY is not required; or the system or driver refuses this user
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the pin budget, the system's lock limit or the number of registrations
 *         is used up
 * \retval GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY the device has not enough memory
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY the system has not enough memory
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{for driver and system calls: microseconds for device memory, up to seconds for many GiB of pinned
 *         memory. The driver may synchronise with the device}
 * \threads{any thread}
 * \owner{the caller destroys the memory; registered bytes stay the caller's}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_memory_create(gpumem_device device, const gpumem_memory_desc *desc,
                                              gpumem_memory *out_memory, gpumem_error *error);

/** Frees an allocation, or makes registered memory pageable again with its contents. All device work on the
 * memory must have been observed complete: see "order of free" in the guide.
 *
 * \param memory memory to destroy, from any thread; NULL does nothing and succeeds
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS gone; also when its device is lost
 * \retval GPUMEM_ERROR_BUSY host backend, strict: work that uses the memory was not observed complete;
 *         nothing changed
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{until calls of other threads that use the memory have been enqueued, and for driver calls. The
 *         driver may synchronise with the device}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_memory_destroy(gpumem_memory memory, gpumem_error *error);

/** What is known about an allocation. */
typedef struct gpumem_memory_info {
  size_t struct_size;      /**< `sizeof(gpumem_memory_info)` of the caller. */
  gpumem_kind kind;        /**< What it is. */
  int32_t numa_node;       /**< Node that the pages lie on, for #GPUMEM_MEMORY_NUMA_NODE; otherwise -1. */
  gpumem_device device;    /**< Device given at creation. */
  uint32_t device_ordinal; /**< Its number. */
  uint32_t reserved;       /**< 0. */
  void *host_pointer;      /**< Address for the CPU; NULL for device memory. */
  void *device_pointer;    /**< Address for devices; NULL if the memory has none. */
  uint64_t size;           /**< Bytes asked for: the only ones that may be used. */
  uint64_t granted_size;   /**< Bytes charged. */
  uint64_t alignment;      /**< Alignment asked for; 0 if none. */
  gpumem_memory_flags requested_flags; /**< `require` and `prefer` together. */
  gpumem_memory_flags granted_flags;   /**< What the memory really has; contains `require`. */
  uint64_t buffer_id; /**< Number of this allocation; unique in the process and never used again. */
  char name[64];      /**< As given at creation. */
} gpumem_memory_info;

/** Initial value of a gpumem_memory_info. */
#define GPUMEM_MEMORY_INFO_INIT                                                       \
  {                                                                                   \
    sizeof(gpumem_memory_info), 0, 0, NULL, 0, 0, NULL, NULL, 0, 0, 0, 0, 0, 0, { 0 } \
  }

/** Sets up a gpumem_memory_info as #GPUMEM_MEMORY_INFO_INIT does.
 *
 * \param[out] out_info struct to set up; NULL does nothing
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API void gpumem_memory_info_init(gpumem_memory_info *out_info);

/** What is known about an allocation; no driver call, also after its device is lost.
 *
 * \param memory memory to ask
 * \param[in,out] out_info receives the answer
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the answer was written
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_info` is NULL or its size wrong
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_memory_get_info(gpumem_memory memory, gpumem_memory_info *out_info,
                                                gpumem_error *error);

/** The two-line way to an allocation: only a pointer, with the defaults of gpumem_memory_create().
 *
 * \param device device of the memory
 * \param kind #GPUMEM_KIND_DEVICE or #GPUMEM_KIND_PINNED
 * \param size bytes, 1 to 2^63-1
 * \param[out] out_pointer receives the device pointer (device memory) or the host pointer (pinned memory)
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS done
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL output, size 0 or above 2^63-1, or a kind that cannot be
 *         allocated
 * \retval GPUMEM_ERROR_UNSUPPORTED the device cannot do it
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED see gpumem_memory_create()
 * \retval GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY see gpumem_memory_create()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY see gpumem_memory_create()
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{as gpumem_memory_create()}
 * \threads{any thread}
 * \owner{the caller frees the pointer}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_malloc(gpumem_device device, gpumem_kind kind, uint64_t size,
                                       void **out_pointer, gpumem_error *error);

/** Frees an allocation by its pointer, however it was made here. The order of free is that of
 * gpumem_memory_destroy().
 *
 * \param instance instance that made it
 * \param pointer first byte, by its host or device address; NULL does nothing and succeeds
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS gone
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT the pointer lies inside an allocation but not at its start
 * \retval GPUMEM_ERROR_NOT_FOUND nothing of this instance is there: never was, freed already, or made by
 *         other code
 * \retval GPUMEM_ERROR_WRONG_KIND the memory is registered: see gpumem_unregister()
 * \retval GPUMEM_ERROR_BUSY see gpumem_memory_destroy()
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{as gpumem_memory_destroy()}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_free(gpumem_instance instance, void *pointer, gpumem_error *error);

/** The two-line way to page-lock memory that exists, with the rules of gpumem_memory_create().
 *
 * \param device device that the memory is pinned for
 * \param pointer first byte, at any address
 * \param size bytes, 1 to 2^63-1
 * \param require properties without which the call shall fail
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS done
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT see gpumem_memory_create()
 * \retval GPUMEM_ERROR_WRONG_KIND see gpumem_memory_create()
 * \retval GPUMEM_ERROR_ALREADY_EXISTS see gpumem_memory_create()
 * \retval GPUMEM_ERROR_UNSUPPORTED see gpumem_memory_create()
 * \retval GPUMEM_ERROR_PERMISSION_DENIED see gpumem_memory_create()
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED see gpumem_memory_create()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY see gpumem_memory_create()
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{as gpumem_memory_create()}
 * \threads{any thread}
 * \owner{the bytes stay the caller's and must stay mapped until unregistered}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_register(gpumem_device device, void *pointer, uint64_t size,
                                         gpumem_memory_flags require, gpumem_error *error);

/** Makes registered memory pageable again, by the exact pointer that was registered.
 *
 * \param instance instance that registered it
 * \param pointer first byte, as it was registered
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS gone
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL, or inside a registered range but not at its start
 * \retval GPUMEM_ERROR_NOT_FOUND this instance registered nothing there
 * \retval GPUMEM_ERROR_WRONG_KIND the memory was allocated, not registered: see gpumem_free()
 * \retval GPUMEM_ERROR_BUSY see gpumem_memory_destroy()
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{as gpumem_memory_destroy()}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_unregister(gpumem_instance instance, void *pointer, gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
