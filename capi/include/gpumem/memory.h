/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file memory.h
 * Allocations and registrations, as objects and as plain pointers.
 */
#ifndef GPUMEM_MEMORY_H
#define GPUMEM_MEMORY_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Kind of memory: one of the GPUMEM_KIND_ values. */
typedef int32_t gpumem_kind;
#define GPUMEM_KIND_UNKNOWN 0    /**< An address that the instance, the driver and the CPU do not know. */
#define GPUMEM_KIND_PAGEABLE 1   /**< Ordinary memory of the process. */
#define GPUMEM_KIND_PINNED 2     /**< Page-locked host memory, allocated through this instance. */
#define GPUMEM_KIND_REGISTERED 3 /**< Memory of the caller, page-locked through this instance. */
#define GPUMEM_KIND_DEVICE 4     /**< Memory of one device. */
#define GPUMEM_KIND_MANAGED 5  /**< One address for the CPU and all devices; its pages move. See managed.h. */
#define GPUMEM_KIND_POOL 6     /**< A block of a pool, unless its memory is PAGEABLE. See pool.h. */
#define GPUMEM_KIND_VIRTUAL 7  /**< Reserved addresses, and what is mapped there. See range.h. */
#define GPUMEM_KIND_IMPORTED 8 /**< Memory of another process, imported through this instance. See share.h. */
#define GPUMEM_KIND_FOREIGN 9  /**< Known to the driver, but made by other code. */

/** Properties of memory: a sum of GPUMEM_MEMORY_ values. */
typedef uint64_t gpumem_memory_flags;
/** All devices treat the memory as pinned. Pinned allocations always have it. */
#define GPUMEM_MEMORY_PORTABLE UINT64_C(0x1)
/** The memory has a device pointer. Pinned allocations always have it. */
#define GPUMEM_MEMORY_MAPPED UINT64_C(0x2)
/** Pinned only: the CPU does not cache the memory, and may read it very slowly. */
#define GPUMEM_MEMORY_WRITE_COMBINED UINT64_C(0x4)
/** Registered: devices may only read; needed if the CPU mapping is read-only. Imported: nobody may write here. */
#define GPUMEM_MEMORY_READ_ONLY UINT64_C(0x8)
#define GPUMEM_MEMORY_IOMEMORY UINT64_C(0x10)    /**< Registered only: memory-mapped I/O of another device. */
#define GPUMEM_MEMORY_PAGE_LOCKED UINT64_C(0x20) /**< Pinned and registered: the pages are really locked. */
#define GPUMEM_MEMORY_NUMA_NODE UINT64_C(0x40)   /**< Pinned only: the pages lie on `numa_node`. */
/** Managed only: created as if attached with #GPUMEM_ATTACH_HOST. Without it, as if with #GPUMEM_ATTACH_GLOBAL. */
#define GPUMEM_MEMORY_ATTACH_HOST UINT64_C(0x80)
/** Managed only: the managed memory of the instance may exceed the memory of the device, and lie on the host in part. */
#define GPUMEM_MEMORY_OVERSUBSCRIBE UINT64_C(0x100)
/** Device only: nothing else lies in the memory's block of the driver, so that it can be shared with other processes and shows
 * them nothing else. The memory is a multiple of that block: 2 MiB on cuda. */
#define GPUMEM_MEMORY_SHAREABLE UINT64_C(0x200)
/** Pinned and registered: locked in pieces below 512 MiB, one after the other, so that no other call of the driver waits long for a
 * large one. Copies and fills of this library cross the borders of pieces; a copy by the driver's own functions must not. */
#define GPUMEM_MEMORY_IN_PIECES UINT64_C(0x400)

/** Options for an allocation. */
typedef struct gpumem_memory_desc {
  size_t struct_size;          /**< `sizeof(gpumem_memory_desc)` of the caller. */
  gpumem_kind kind;            /**< #GPUMEM_KIND_DEVICE, #GPUMEM_KIND_PINNED or #GPUMEM_KIND_MANAGED. */
  int32_t numa_node;           /**< Node for #GPUMEM_MEMORY_NUMA_NODE; otherwise 0. */
  uint64_t size;               /**< Bytes, 1 to 2^63-1. */
  uint64_t alignment;          /**< Power of two in bytes, met exactly or refused; 0 means at least 256. */
  gpumem_memory_flags require; /**< Properties that the memory must have; otherwise the call fails. */
  gpumem_memory_flags prefer;  /**< Properties that the memory should have if possible. */
  const char *
      name; /**< For messages and reports, up to 63 bytes without ASCII control characters, or NULL; copied. */
} gpumem_memory_desc;

/** Initial value of a gpumem_memory_desc. */
#define GPUMEM_MEMORY_DESC_INIT \
  { sizeof(gpumem_memory_desc), 0, 0, 0, 0, 0, 0, NULL }

/** Allocates memory. Its contents are indeterminate.
 *
 * \param device device of the memory; for pinned memory the device that it is close to
 * \param desc options
 * \param[out] out_memory receives the memory
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the memory was written to `*out_memory`; `granted_flags` of gpumem_memory_get_info()
 *         contains every required property
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, a size of 0 or above 2^63-1, an alignment that is not a power
 *         of two, an unknown flag or one that the kind does not have, no such NUMA node, or a kind that cannot be
 *         allocated (register existing memory with gpumem_memory_register())
 * \retval GPUMEM_ERROR_UNSUPPORTED a required property cannot be granted here; the message names the capability
 * \retval GPUMEM_ERROR_PERMISSION_DENIED the system or the driver refuses this user
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the pin budget, the system's lock limit or, on the host backend, the number of
 *         descriptors is used up
 * \retval GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY the device has not enough memory
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY the system has not enough memory
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{for driver and system calls: microseconds for device memory, up to seconds for many GiB of pinned
 *         memory. The driver may synchronise with the device}
 * \threads{any thread}
 * \owner{the caller destroys the memory}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_memory_create(gpumem_device device, const gpumem_memory_desc *desc,
                                              gpumem_memory *out_memory, gpumem_error *error);

/** Options for registering existing memory. */
typedef struct gpumem_register_desc {
  size_t struct_size;          /**< `sizeof(gpumem_register_desc)` of the caller. */
  void *pointer;               /**< First byte, at any address. It must stay mapped while it is registered. */
  uint64_t size;               /**< Bytes, 1 to 2^63-1. */
  gpumem_memory_flags require; /**< Properties that the memory must have; otherwise the call fails. */
  gpumem_memory_flags prefer;  /**< Properties that the memory should have if possible. */
  const char *
      name; /**< For messages and reports, up to 63 bytes without ASCII control characters, or NULL; copied. */
} gpumem_register_desc;

/** Initial value of a gpumem_register_desc. */
#define GPUMEM_REGISTER_DESC_INIT \
  { sizeof(gpumem_register_desc), NULL, 0, 0, 0, NULL }

/** Page-locks existing memory, so that devices can use it. gpumem_memory_destroy() makes it pageable again.
 *
 * \param device device that the memory is pinned for, unless #GPUMEM_MEMORY_PORTABLE is granted
 * \param desc the memory, and options
 * \param[out] out_memory receives the memory object
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the memory object was written to `*out_memory`; `granted_flags` of
 *         gpumem_memory_get_info() contains every required property
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, a size of 0 or above 2^63-1, a range that wraps around, an
 *         unknown flag or one that registered memory does not have, or a page of the range is not mapped
 * \retval GPUMEM_ERROR_WRONG_KIND the range lies in memory that is not ordinary memory
 * \retval GPUMEM_ERROR_ALREADY_EXISTS a byte of the range is already pinned or registered
 * \retval GPUMEM_ERROR_UNSUPPORTED a required property cannot be granted here; the message names the capability
 * \retval GPUMEM_ERROR_PERMISSION_DENIED the CPU mapping is read-only and #GPUMEM_MEMORY_READ_ONLY is not required;
 *         or the system or the driver refuses this user
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the pin budget, the system's lock limit or the number of registrations is
 *         used up
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY the system has not enough memory
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{for driver and system calls, up to seconds for many GiB. The driver may synchronise with the device}
 * \threads{any thread}
 * \owner{the caller destroys the memory object; the bytes stay the caller's}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_memory_register(gpumem_device device, const gpumem_register_desc *desc,
                                                gpumem_memory *out_memory, gpumem_error *error);

/** Frees an allocation, makes registered memory pageable again and keeps its contents, or ends an import; one that was imported
 * several times is counted down.
 *
 * All device work on the memory must have been observed complete: see "order of free" in the guide.
 *
 * \param memory memory to destroy; NULL does nothing and succeeds
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the memory is destroyed, also if its device is lost
 * \retval GPUMEM_ERROR_BUSY strict host backend: work that uses the memory was not observed complete; another process has
 *         imported it by #GPUMEM_SHARE_WAY_LEGACY; or the driver was busy, again and again. Nothing changed
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function; or the memory belongs to a gpumem_buffer
 * \handles
 * \blocking{until calls of other threads that use the memory have been enqueued, and for driver calls. The driver may
 *         synchronise with the device}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_memory_destroy(gpumem_memory memory, gpumem_error *error);

/** Information about memory of the instance. */
typedef struct gpumem_memory_info {
  size_t struct_size;      /**< `sizeof(gpumem_memory_info)` of the caller. */
  gpumem_kind kind;        /**< Kind of memory. */
  int32_t numa_node;       /**< Node that the pages lie on, with #GPUMEM_MEMORY_NUMA_NODE; otherwise -1. */
  gpumem_device device;    /**< Device given at creation. */
  uint32_t device_ordinal; /**< Its ordinal. */
  uint32_t reserved;       /**< 0. */
  void *host_pointer;      /**< Address for the CPU; NULL for device memory. */
  void *device_pointer;    /**< Address for devices; NULL if the memory has none. */
  uint64_t size;           /**< Bytes requested: the only ones that may be used. */
  uint64_t granted_size;   /**< Bytes charged. */
  uint64_t alignment;      /**< Alignment requested; 0 if none. */
  gpumem_memory_flags requested_flags; /**< `require` and `prefer` together. */
  gpumem_memory_flags granted_flags;   /**< Properties of the memory; contains `require`. */
  uint64_t buffer_id; /**< Number of this allocation, unique in the process and never reused. */
  char name[64];      /**< As given at creation. */
} gpumem_memory_info;

/** Initial value of a gpumem_memory_info. */
#define GPUMEM_MEMORY_INFO_INIT                                                       \
  {                                                                                   \
    sizeof(gpumem_memory_info), 0, 0, NULL, 0, 0, NULL, NULL, 0, 0, 0, 0, 0, 0, { 0 } \
  }

/** Gets information about memory. It makes no driver call, and works after the device was lost.
 *
 * \param memory memory to query
 * \param[in,out] out_info receives the information
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the information was written to `*out_info`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_info` is NULL or has a wrong size
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_memory_get_info(gpumem_memory memory, gpumem_memory_info *out_info,
                                                gpumem_error *error);

/** Allocates memory with the defaults of gpumem_memory_create(), and returns only its pointer.
 *
 * \param device device of the memory
 * \param kind #GPUMEM_KIND_DEVICE, #GPUMEM_KIND_PINNED or #GPUMEM_KIND_MANAGED
 * \param size bytes, 1 to 2^63-1
 * \param[out] out_pointer receives the device pointer (device memory) or the host pointer (pinned memory)
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the pointer was written to `*out_pointer`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL output, a size of 0 or above 2^63-1, or a kind that cannot be allocated
 * \retval GPUMEM_ERROR_UNSUPPORTED the device cannot do it
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED see gpumem_memory_create()
 * \retval GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY see gpumem_memory_create()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY see gpumem_memory_create()
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{as gpumem_memory_create()}
 * \threads{any thread}
 * \owner{the caller frees the pointer with gpumem_free()}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_malloc(gpumem_device device, gpumem_kind kind, uint64_t size,
                                       void **out_pointer, gpumem_error *error);

/** Frees an allocation of the instance by its pointer, whichever function allocated it. The rules of
 * gpumem_memory_destroy() apply.
 *
 * \param instance instance that made the allocation
 * \param pointer first byte, by its host or device address; NULL does nothing and succeeds
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the memory is freed
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT the pointer lies inside an allocation but not at its start
 * \retval GPUMEM_ERROR_NOT_FOUND no memory of this instance is there: it never was, is freed already, or was made by
 *         other code
 * \retval GPUMEM_ERROR_WRONG_KIND the memory is registered: see gpumem_unregister(); or imported: see gpumem_memory_destroy(); or
 *         a block of a pool: see gpumem_pool_free()
 * \retval GPUMEM_ERROR_BUSY see gpumem_memory_destroy()
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function; or the memory belongs to a gpumem_buffer or a gpumem_ring
 * \handles
 * \blocking{as gpumem_memory_destroy()}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_free(gpumem_instance instance, void *pointer, gpumem_error *error);

/** Page-locks existing memory by its pointer. The rules of gpumem_memory_register() apply.
 *
 * \param device device that the memory is pinned for
 * \param pointer first byte, at any address
 * \param size bytes, 1 to 2^63-1
 * \param require properties that the memory must have; otherwise the call fails
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the memory is registered
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT see gpumem_memory_register()
 * \retval GPUMEM_ERROR_WRONG_KIND see gpumem_memory_register()
 * \retval GPUMEM_ERROR_ALREADY_EXISTS see gpumem_memory_register()
 * \retval GPUMEM_ERROR_UNSUPPORTED see gpumem_memory_register()
 * \retval GPUMEM_ERROR_PERMISSION_DENIED see gpumem_memory_register()
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED see gpumem_memory_register()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY see gpumem_memory_register()
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{as gpumem_memory_register()}
 * \threads{any thread}
 * \owner{the bytes stay the caller's and must stay mapped until gpumem_unregister()}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_register(gpumem_device device, void *pointer, uint64_t size,
                                         gpumem_memory_flags require, gpumem_error *error);

/** Makes registered memory pageable again, by the pointer that was registered.
 *
 * On the host backend, pages that the program had locked before it registered them stay locked, and so do all pages
 * after mlockall(). The system does not count locks: a page that the program locks with mlock() while it is registered
 * is unlocked here.
 *
 * \param instance instance that registered the memory
 * \param pointer first byte, as it was registered
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the memory is pageable again
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL, or the pointer lies inside a registered range but not at its start
 * \retval GPUMEM_ERROR_NOT_FOUND this instance registered nothing there
 * \retval GPUMEM_ERROR_WRONG_KIND the memory was allocated, not registered: see gpumem_free(); or it is a block of a pool
 * \retval GPUMEM_ERROR_BUSY see gpumem_memory_destroy()
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function; or the memory belongs to a gpumem_buffer
 * \handles
 * \blocking{as gpumem_memory_destroy()}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_unregister(gpumem_instance instance, void *pointer, gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
