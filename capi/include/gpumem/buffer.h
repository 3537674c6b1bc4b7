/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file buffer.h
 * Buffers that grow and shrink in place, and that can sleep.
 *
 * A buffer reserves addresses once and maps physical memory behind one another as it grows. Its address stays the same, what
 * lies in it is never copied or touched, and work on it may be in flight while it grows. A buffer that sleeps gives its
 * memory back and keeps its address; its content is kept on the host if wished. It is built from a gpumem_range and
 * gpumem_physical; use these for anything that a buffer does not do.
 *
 * Calls on one buffer that change it run one after the other.
 */
#ifndef GPUMEM_BUFFER_H
#define GPUMEM_BUFFER_H

#include "range.h"

#ifdef __cplusplus
extern "C" {
#endif

/** How a buffer behaves: a sum of GPUMEM_BUFFER_ values. */
typedef uint64_t gpumem_buffer_flags;
/** When the reserved addresses are used up, move to a larger reservation. No byte is copied: the memory is mapped there, and
 * the address changes. All work on the buffer must then have been observed complete. */
#define GPUMEM_BUFFER_MOVABLE UINT64_C(0x1)

/** Options for a buffer. */
typedef struct gpumem_buffer_desc {
  size_t struct_size; /**< `sizeof(gpumem_buffer_desc)` of the caller. */
  uint64_t size;      /**< Bytes to begin with; may be 0. */
  /** Bytes of addresses to reserve, rounded up; 0 means as much as the device, or the host, has memory. If so much cannot be
   * reserved, half of it is tried, and so on down to `size`. */
  uint64_t reserve;
  /** #GPUMEM_LOCATION_DEVICE, or 0 for it: the device of the call. Or #GPUMEM_LOCATION_HOST, or
   * #GPUMEM_LOCATION_HOST_NUMA. */
  gpumem_location location;
  int32_t location_id;              /**< NUMA node for #GPUMEM_LOCATION_HOST_NUMA; otherwise 0. */
  gpumem_handle_types handle_types; /**< Ways of sharing that must be possible for its physical memory. */
  gpumem_physical_flags require;    /**< Properties that the memory must have; otherwise the call fails. */
  gpumem_physical_flags prefer;     /**< Properties that the memory should have if possible. */
  gpumem_buffer_flags flags;        /**< A sum of GPUMEM_BUFFER_ values. */
  /** Who may access the buffer, `access_count` entries as in gpumem_range_set_access(). NULL means: the device of the call,
   * and for memory of the host the CPU too, may read and write. */
  const gpumem_access_desc *accesses;
  uint64_t access_count; /**< Number of entries; 0 with NULL. */
  const char *
      name; /**< For messages and reports, up to 63 bytes without ASCII control characters, or NULL; copied. */
} gpumem_buffer_desc;

/** Initial value of a gpumem_buffer_desc. */
#define GPUMEM_BUFFER_DESC_INIT \
  { sizeof(gpumem_buffer_desc), 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0, NULL }

/** Makes a buffer. Its contents are indeterminate.
 *
 * \param device device of the memory; for host memory the device that may access it
 * \param desc options
 * \param[out] out_buffer receives the buffer
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the buffer was written to `*out_buffer`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, a size above 2^63-1, a reservation below the size, another location, no
 *         such NUMA node, an unknown flag or handle type, or entries of access as gpumem_range_set_access() refuses them
 * \retval GPUMEM_ERROR_UNSUPPORTED the device has no virtual memory management, or a required property, handle type or
 *         access cannot be granted here; the message names the capability
 * \retval GPUMEM_ERROR_PERMISSION_DENIED see gpumem_physical_create()
 * \retval GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE not even `size` bytes of addresses can be reserved
 * \retval GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY the device has not enough memory
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY the system has not enough memory
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{for driver calls: longer for more bytes, milliseconds for each GiB}
 * \threads{any thread}
 * \owner{the caller destroys the buffer}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_buffer_create(gpumem_device device, const gpumem_buffer_desc *desc,
                                              gpumem_buffer *out_buffer, gpumem_error *error);

/** Frees a buffer, awake or asleep. All work on it must have been observed complete.
 *
 * \param buffer buffer to destroy; NULL does nothing and succeeds
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the buffer is destroyed, also if its device is lost
 * \retval GPUMEM_ERROR_BUSY strict host backend: work that uses the buffer was not observed complete; nothing changed
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{until calls of other threads that use the buffer have returned, and for driver calls}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_buffer_destroy(gpumem_buffer buffer, gpumem_error *error);

/** Information about a buffer. */
typedef struct gpumem_buffer_info {
  size_t struct_size;     /**< `sizeof(gpumem_buffer_info)` of the caller. */
  void *base;             /**< First byte. */
  uint64_t size;          /**< Bytes, as last asked for: the only ones that may be used. */
  uint64_t capacity;      /**< Bytes that have memory, or had when the buffer went to sleep. */
  uint64_t reserved_size; /**< Bytes of addresses: what the buffer can grow to in place. */
  uint64_t granularity;   /**< Unit in which it grows, in bytes. */
  uint64_t block_count;   /**< Blocks of physical memory that it is made of. */
  uint64_t
      generation; /**< How often it has woken or moved: what other code derived from it before is out of date. */
  uint64_t stored_size;     /**< Bytes of the host that keep its content while it sleeps. */
  gpumem_location location; /**< Where its memory lies. */
  int32_t location_id;      /**< Ordinal of the device or NUMA node; -1 if it has none. */
  gpumem_device device;     /**< Device given at creation. */
  uint32_t device_ordinal;  /**< Its ordinal. */
  uint32_t asleep;          /**< 1 while it sleeps, else 0. */
  gpumem_range range;       /**< The range that it is mapped in. Only the buffer may change it. */
  uint64_t buffer_id;       /**< Number of the reservation, unique in the process and never reused. */
  char name[64];            /**< As given at creation. */
} gpumem_buffer_info;

/** Initial value of a gpumem_buffer_info. */
#define GPUMEM_BUFFER_INFO_INIT                                                             \
  {                                                                                         \
    sizeof(gpumem_buffer_info), NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0, 0, NULL, 0, { 0 } \
  }

/** Gets information about a buffer. It makes no driver call, and works after the device was lost.
 *
 * \param buffer buffer to query
 * \param[in,out] out_info receives the information
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the information was written to `*out_info`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_info` is NULL or has a wrong size
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{while another call changes the buffer}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_buffer_get_info(gpumem_buffer buffer, gpumem_buffer_info *out_info,
                                                gpumem_error *error);

/** Grows or shrinks a buffer. The bytes that remain are not touched. If the call fails, the buffer is as it was.
 *
 * Growing maps one more block, as large as what is missing. Work on the buffer may go on meanwhile, unless it must move
 * (#GPUMEM_BUFFER_MOVABLE). Shrinking gives back each block that lies whole behind the new size; all work that uses these must
 * have been observed complete.
 *
 * \param buffer buffer to resize
 * \param size new size in bytes; may be 0
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the buffer has the new size
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT the size is above 2^63-1
 * \retval GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE the reserved addresses are used up, and the buffer is not movable or no larger
 *         range is free
 * \retval GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY the device has not enough memory
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY the system has not enough memory
 * \retval GPUMEM_ERROR_INVALID_STATE the buffer is asleep; or called from a host function
 * \retval GPUMEM_ERROR_BUSY strict host backend: work that uses what is to be given back, or the buffer that is to move, was not
 *         observed complete; or the driver was busy, again and again
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{for driver calls: longer for more bytes}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_buffer_resize(gpumem_buffer buffer, uint64_t size, gpumem_error *error);

/** Gives a buffer memory ahead of its growth, or takes back what is unused. Its size stays. As gpumem_buffer_resize() otherwise.
 *
 * \param buffer buffer to change
 * \param capacity bytes that shall have memory, at least the size of the buffer; 0 means no more than the size needs
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS at least so many bytes have memory
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT the capacity is above 2^63-1, or below the size and not 0
 * \retval GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE see gpumem_buffer_resize()
 * \retval GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY see gpumem_buffer_resize()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY see gpumem_buffer_resize()
 * \retval GPUMEM_ERROR_INVALID_STATE see gpumem_buffer_resize()
 * \retval GPUMEM_ERROR_BUSY see gpumem_buffer_resize()
 * \retval GPUMEM_ERROR_DEVICE_LOST see gpumem_buffer_resize()
 * \retval GPUMEM_ERROR_SYMBOL_MISSING see gpumem_buffer_resize()
 * \handles
 * \blocking{as gpumem_buffer_resize()}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_buffer_set_capacity(gpumem_buffer buffer, uint64_t capacity,
                                                    gpumem_error *error);

/** Sets what processors may do with a buffer, now and as it grows. Processors that are not named keep what they have. Before some
 * access is taken away, all work that uses it must have been observed complete.
 *
 * \param buffer buffer to change
 * \param accesses array of `count` entries; each has the `struct_size` of the first, which is the distance between them
 * \param count number of entries, at least 1
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the access is set
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT see gpumem_range_set_access()
 * \retval GPUMEM_ERROR_UNSUPPORTED see gpumem_range_set_access()
 * \retval GPUMEM_ERROR_INVALID_STATE the buffer is asleep; or called from a host function
 * \retval GPUMEM_ERROR_BUSY see gpumem_range_set_access()
 * \retval GPUMEM_ERROR_DEVICE_LOST a device is lost
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{for driver calls, longer for more bytes}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_buffer_set_access(gpumem_buffer buffer, const gpumem_access_desc *accesses,
                                                  uint64_t count, gpumem_error *error);

/** What happens to the content of a buffer that sleeps: one of the GPUMEM_CONTENT_ values. */
typedef int32_t gpumem_content;
#define GPUMEM_CONTENT_PINNED 0   /**< Kept in pinned memory: the fastest way back. */
#define GPUMEM_CONTENT_PAGEABLE 1 /**< Kept in ordinary memory of the process. */
#define GPUMEM_CONTENT_ZERO 2     /**< Not kept; all bytes are 0 after waking. */
#define GPUMEM_CONTENT_DROP 3     /**< Not kept; indeterminate after waking. */

/** Puts a buffer to sleep: its memory is given back, its addresses stay reserved. All work on it must have been observed
 * complete. If the call fails, the buffer is awake, with its content.
 *
 * Whoever else uses its physical memory keeps that alive: exports, imports and aliases. A buffer with such memory sleeps, but its
 * memory is not free before they end.
 *
 * \param buffer buffer to put to sleep
 * \param content one of the GPUMEM_CONTENT_ values
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the buffer sleeps
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT an unknown value
 * \retval GPUMEM_ERROR_INVALID_STATE the buffer sleeps already; or called from a host function
 * \retval GPUMEM_ERROR_NO_ACCESS the device has no access to the buffer, and so cannot save it
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the pin budget is used up
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY the system has not enough memory for the content
 * \retval GPUMEM_ERROR_BUSY strict host backend: work that uses the buffer was not observed complete
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \handles
 * \blocking{until the content is copied, and for driver calls}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_buffer_sleep(gpumem_buffer buffer, gpumem_content content,
                                             gpumem_error *error);

/** Wakes a buffer: at the same address, with its size, the access of each processor, its properties, and the content that was kept. If
 * the call fails, the buffer sleeps on, and nothing is lost.
 *
 * \param buffer buffer to wake
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the buffer is awake
 * \retval GPUMEM_ERROR_INVALID_STATE the buffer does not sleep; or called from a host function
 * \retval GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY the device has not enough memory
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY the system has not enough memory
 * \retval GPUMEM_ERROR_UNSUPPORTED a required property cannot be granted any more
 * \retval GPUMEM_ERROR_BUSY the driver was busy, again and again
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \handles
 * \blocking{until the content is copied back, and for driver calls}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_buffer_wake(gpumem_buffer buffer, gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
