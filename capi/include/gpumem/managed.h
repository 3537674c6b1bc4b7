/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file managed.h
 * Managed (unified) memory: who may touch it, where it should lie, and when it moves.
 *
 * gpumem_memory_create() and gpumem_malloc() make it, with #GPUMEM_KIND_MANAGED. It has one address for the CPU and all
 * devices, and its pages move to where they are used. gpumem_memory_destroy() and gpumem_free() free it.
 *
 * A range is given by its first byte and its size, and lies inside one allocation. Advice, prefetches and discards act
 * on whole pages: on every page that has a byte in the range.
 *
 * **Concurrent devices.** On a device with the capability `man.concurrent` the CPU and the device may use the same memory
 * at the same time, and attaching restricts nothing. On any other device the CPU must not touch managed memory while the
 * device is active, unless the memory is attached elsewhere; a touch faults. gpumem_managed_begin_host_access() waits for
 * exactly the work that it must wait for.
 *
 * **Hints.** Advice, prefetches and discards that a device or a driver cannot use change nothing and return the note
 * #GPUMEM_NO_EFFECT, so that portable code can give them everywhere. Bad arguments are refused first.
 *
 * Memory of malloc() or mmap() takes prefetches, advice and attaching too, where the device accesses pageable memory
 * (capability `man.pageable`).
 */
#ifndef GPUMEM_MANAGED_H
#define GPUMEM_MANAGED_H

#include "pointer.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Who may access managed memory on devices that are not concurrent: one of the GPUMEM_ATTACH_ values. */
typedef int32_t gpumem_attach;
#define GPUMEM_ATTACH_GLOBAL \
  1                          /**< Any stream of any device. The CPU may touch it while no device is active. */
#define GPUMEM_ATTACH_HOST 2 /**< The CPU, at any time; no device. */
#define GPUMEM_ATTACH_SINGLE \
  4 /**< One stream. The CPU may touch it once the work of that stream is observed complete. */

/** Attaches managed memory, in stream order: it takes effect when the earlier work of the stream is complete. It replaces
 * what the memory was attached to before. Destroying the stream takes the memory back to the association that it was
 * created with.
 *
 * \param stream stream to enqueue in; with #GPUMEM_ATTACH_SINGLE also the stream that may use the memory
 * \param pointer first byte of the allocation
 * \param size 0 or the size of the allocation; for pageable memory the bytes to attach, at least 1
 * \param attach one of the GPUMEM_ATTACH_ values
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the attachment is enqueued
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, an unknown value, a part of an allocation, pageable memory of size 0
 *         or that is not mapped, or #GPUMEM_ATTACH_SINGLE with the default stream
 * \retval GPUMEM_ERROR_WRONG_KIND the memory is neither managed nor pageable
 * \retval GPUMEM_ERROR_NOT_FOUND there is no known memory at the pointer
 * \retval GPUMEM_ERROR_UNSUPPORTED the memory is pageable, and the device cannot access that
 * \retval GPUMEM_ERROR_INVALID_STATE the stream is being captured; or called from a host function
 * \retval GPUMEM_ERROR_BUSY the CPU has begun an access with gpumem_managed_begin_host_access()
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_managed_attach(gpumem_stream stream, void *pointer, uint64_t size,
                                               gpumem_attach attach, gpumem_error *error);

/** Advice about managed memory: one of the GPUMEM_ADVICE_ values. */
typedef int32_t gpumem_advice;
#define GPUMEM_ADVICE_SET_READ_MOSTLY \
  1 /**< Mostly read: each reader may have a copy. The location is ignored. */
#define GPUMEM_ADVICE_UNSET_READ_MOSTLY 2 /**< Undoes it. The location is ignored. */
/** The pages should lie at the location: a concurrent device, or the host. Nothing moves now. */
#define GPUMEM_ADVICE_SET_PREFERRED_LOCATION 3
#define GPUMEM_ADVICE_UNSET_PREFERRED_LOCATION 4 /**< Undoes it. The location is ignored. */
/** The location, a concurrent device or #GPUMEM_LOCATION_HOST, uses the pages: keep them mapped there. */
#define GPUMEM_ADVICE_SET_ACCESSED_BY 5
#define GPUMEM_ADVICE_UNSET_ACCESSED_BY 6 /**< Undoes it for that location. */

/** Advises how a range will be used. No byte changes and nothing moves now.
 *
 * \param instance instance that made the memory
 * \param pointer first byte
 * \param size bytes, 1 to 2^63-1
 * \param advice one of the GPUMEM_ADVICE_ values
 * \param location #GPUMEM_LOCATION_DEVICE, #GPUMEM_LOCATION_HOST, #GPUMEM_LOCATION_HOST_NUMA or
 *         #GPUMEM_LOCATION_HOST_NUMA_CURRENT, as the advice allows; ignored where the advice has no location
 * \param location_id ordinal of the device or number of the NUMA node; ignored otherwise
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the advice is given
 * \retval GPUMEM_NO_EFFECT the device or the driver cannot use this advice; nothing changed
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, a size of 0 or above 2^63-1, unknown advice, a location that the
 *         advice does not take, no such device or node, a range that leaves its allocation, or pageable memory that is not
 *         mapped
 * \retval GPUMEM_ERROR_WRONG_KIND the memory is neither managed nor pageable
 * \retval GPUMEM_ERROR_NOT_FOUND there is no known memory at the pointer
 * \retval GPUMEM_ERROR_UNSUPPORTED the memory is pageable, and no device can access that
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \handles
 * \blocking{for a driver call, microseconds for each MiB}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_managed_advise(gpumem_instance instance, const void *pointer, uint64_t size,
                                               gpumem_advice advice, gpumem_location location,
                                               int32_t location_id, gpumem_error *error);

/** Moves a range to a location, in stream order. It is never needed for correctness, and the memory may be used
 * meanwhile.
 *
 * \param stream stream to enqueue in, of a concurrent device
 * \param pointer first byte
 * \param size bytes, 1 to 2^63-1
 * \param location #GPUMEM_LOCATION_DEVICE (a concurrent device), #GPUMEM_LOCATION_HOST, #GPUMEM_LOCATION_HOST_NUMA or
 *         #GPUMEM_LOCATION_HOST_NUMA_CURRENT
 * \param location_id ordinal of the device or number of the NUMA node; ignored otherwise
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the prefetch is enqueued
 * \retval GPUMEM_NO_EFFECT the device or the driver cannot prefetch; nothing changed
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, a size of 0 or above 2^63-1, another location, no such device or
 *         node, a range that leaves its allocation, or pageable memory that is not mapped
 * \retval GPUMEM_ERROR_WRONG_KIND the memory is neither managed nor pageable
 * \retval GPUMEM_ERROR_NOT_FOUND there is no known memory at the pointer
 * \retval GPUMEM_ERROR_UNSUPPORTED the memory is pageable, and the device cannot access that
 * \retval GPUMEM_ERROR_INVALID_STATE the stream is being captured; or called from a host function
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \handles
 * \blocking{for a driver call, which may take as long as moving the pages}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_managed_prefetch(gpumem_stream stream, const void *pointer, uint64_t size,
                                                 gpumem_location location, int32_t location_id,
                                                 gpumem_error *error);

/** A range of a batch. */
typedef struct gpumem_managed_range {
  size_t struct_size;       /**< `sizeof(gpumem_managed_range)` of the caller. */
  void *pointer;            /**< First byte. */
  uint64_t size;            /**< Bytes, 1 to 2^63-1. */
  gpumem_location location; /**< Where to move the range, as in gpumem_managed_prefetch(); 0 for a discard. */
  int32_t location_id;      /**< Ordinal of the device or number of the NUMA node; otherwise 0. */
} gpumem_managed_range;

/** Initial value of a gpumem_managed_range. */
#define GPUMEM_MANAGED_RANGE_INIT \
  { sizeof(gpumem_managed_range), NULL, 0, 0, 0 }

/** Moves the ranges of a batch, each to its location. The batch is ordered against other work of the stream; its ranges
 * are not ordered among themselves. Every range is checked before any is enqueued. Older drivers get a call for each
 * range (capability `man.batch`).
 *
 * \param stream stream to enqueue in, of a concurrent device; not the default stream
 * \param ranges array of `count` ranges; each has the `struct_size` of the first, which is the distance between them.
 *         NULL if `count` is 0
 * \param count number of ranges; 0 succeeds and enqueues nothing
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the prefetches are enqueued
 * \retval GPUMEM_NO_EFFECT see gpumem_managed_prefetch()
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT see gpumem_managed_prefetch(); or the stream is the default stream. The message
 *         names the range
 * \retval GPUMEM_ERROR_WRONG_KIND see gpumem_managed_prefetch()
 * \retval GPUMEM_ERROR_NOT_FOUND see gpumem_managed_prefetch()
 * \retval GPUMEM_ERROR_UNSUPPORTED see gpumem_managed_prefetch()
 * \retval GPUMEM_ERROR_INVALID_STATE see gpumem_managed_prefetch()
 * \retval GPUMEM_ERROR_DEVICE_LOST see gpumem_managed_prefetch()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory for the batch
 * \handles
 * \blocking{as gpumem_managed_prefetch()}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_managed_prefetch_batch(gpumem_stream stream,
                                                       const gpumem_managed_range *ranges, uint64_t count,
                                                       gpumem_error *error);

/** Declares the contents of a batch of ranges useless, in stream order: until a byte is written, or prefetched, reading it
 * gives an indeterminate value. Advice stays. Nothing else may access the ranges meanwhile. Only pages that lie whole in a
 * range are discarded.
 *
 * \param stream stream to enqueue in; not the default stream
 * \param ranges array of `count` ranges, as in gpumem_managed_prefetch_batch(); their locations are 0
 * \param count number of ranges; 0 succeeds and enqueues nothing
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the discards are enqueued
 * \retval GPUMEM_NO_EFFECT the driver cannot discard, or a device is not concurrent; nothing changed
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT see gpumem_managed_prefetch_batch(); or a range has a location
 * \retval GPUMEM_ERROR_WRONG_KIND the memory is not managed
 * \retval GPUMEM_ERROR_NOT_FOUND see gpumem_managed_prefetch()
 * \retval GPUMEM_ERROR_INVALID_STATE see gpumem_managed_prefetch()
 * \retval GPUMEM_ERROR_DEVICE_LOST see gpumem_managed_prefetch()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory for the batch
 * \handles
 * \blocking{for a driver call}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_managed_discard_batch(gpumem_stream stream,
                                                      const gpumem_managed_range *ranges, uint64_t count,
                                                      gpumem_error *error);

/** Discards the ranges of a batch and moves each to its location: as gpumem_managed_discard_batch(), then
 * gpumem_managed_prefetch_batch(), but no byte is moved.
 *
 * \param stream stream to enqueue in, of a concurrent device; not the default stream
 * \param ranges array of `count` ranges, as in gpumem_managed_prefetch_batch()
 * \param count number of ranges; 0 succeeds and enqueues nothing
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the work is enqueued
 * \retval GPUMEM_NO_EFFECT the driver cannot discard, or a device is not concurrent; nothing changed
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT see gpumem_managed_prefetch_batch()
 * \retval GPUMEM_ERROR_WRONG_KIND the memory is not managed
 * \retval GPUMEM_ERROR_NOT_FOUND see gpumem_managed_prefetch()
 * \retval GPUMEM_ERROR_INVALID_STATE see gpumem_managed_prefetch()
 * \retval GPUMEM_ERROR_DEVICE_LOST see gpumem_managed_prefetch()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory for the batch
 * \handles
 * \blocking{for a driver call}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_managed_discard_and_prefetch_batch(gpumem_stream stream,
                                                                   const gpumem_managed_range *ranges,
                                                                   uint64_t count, gpumem_error *error);

/** What is known about a range of managed memory: at one moment, and true of every page of the range. */
typedef struct gpumem_managed_info {
  size_t struct_size;   /**< `sizeof(gpumem_managed_info)` of the caller. */
  uint32_t read_mostly; /**< 1 if every page is read-mostly, else 0. */
  /** Preferred location that all pages share; #GPUMEM_LOCATION_NONE if they differ or have none. */
  gpumem_location preferred_location;
  int32_t preferred_location_id; /**< Its device ordinal or NUMA node; -1 if it has none. */
  /** Location that all pages were last asked to move to; #GPUMEM_LOCATION_NONE if they differ or one never was. A CUDA driver
   * leaves some pages as they were where one prefetch moves pages that differed before, in three runs or more. */
  gpumem_location last_prefetch_location;
  int32_t last_prefetch_location_id; /**< Its device ordinal or NUMA node; -1 if it has none. */
  uint32_t accessed_by_host;         /**< 1 if the CPU is set as an accessor of every page, else 0. */
  uint64_t
      accessed_by_devices; /**< A bit for each device, by its ordinal: set as an accessor of every page. */
} gpumem_managed_info;

/** Initial value of a gpumem_managed_info. */
#define GPUMEM_MANAGED_INFO_INIT \
  { sizeof(gpumem_managed_info), 0, 0, 0, 0, 0, 0, 0 }

/** Gets the advice and the last prefetch of a range.
 *
 * \param instance instance that made the memory
 * \param pointer first byte
 * \param size bytes, 1 to 2^63-1
 * \param[in,out] out_info receives the information
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the information was written to `*out_info`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, a size of 0 or above 2^63-1, `out_info` has a wrong size, or a range
 *         that leaves its allocation
 * \retval GPUMEM_ERROR_WRONG_KIND the memory is not managed
 * \retval GPUMEM_ERROR_NOT_FOUND there is no known memory at the pointer
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \handles
 * \blocking{for a driver call}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_managed_get_info(gpumem_instance instance, const void *pointer, uint64_t size,
                                                 gpumem_managed_info *out_info, gpumem_error *error);

/** Begins an access of the CPU to managed memory: waits until the CPU may touch it.
 *
 * Where all devices are concurrent it waits for nothing and counts nothing; order the access as you would order any other.
 * Elsewhere it waits for the stream that the memory is attached to, or, for memory that is attached globally, for the
 * streams of this instance on devices that are not concurrent. What it waits for is then observed complete. Until
 * gpumem_managed_end_host_access(), work on the memory in such a device, its attachment and its destruction fail with
 * #GPUMEM_ERROR_BUSY. Accesses are counted.
 *
 * Other work that is enqueued on such a device meanwhile is not held off, and takes memory that is attached globally away
 * from the CPU again. If there can be any, attach the memory to the host or to one stream. Kernels and streams that the
 * instance does not know are the caller's to wait for.
 *
 * \param instance instance that made the memory
 * \param pointer any byte of the memory
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the CPU may touch the memory
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer
 * \retval GPUMEM_ERROR_WRONG_KIND the memory is not managed
 * \retval GPUMEM_ERROR_NOT_FOUND there is no memory of this instance at the pointer
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function; or a stream to wait for is being captured
 * \retval GPUMEM_ERROR_DEVICE_LOST a device to wait for is lost
 * \handles
 * \blocking{where not all devices are concurrent, until the work is complete}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_managed_begin_host_access(gpumem_instance instance, const void *pointer,
                                                          gpumem_error *error);

/** Ends an access that gpumem_managed_begin_host_access() began.
 *
 * \param instance instance that made the memory
 * \param pointer any byte of the memory
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the access has ended
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer
 * \retval GPUMEM_ERROR_WRONG_KIND the memory is not managed
 * \retval GPUMEM_ERROR_NOT_FOUND there is no memory of this instance at the pointer
 * \retval GPUMEM_ERROR_INVALID_STATE no access has begun, which is known only where accesses are counted: where not all
 *         devices are concurrent
 * \handles
 * \blocking{no}
 * \threads{any thread; not only the one that began the access}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_managed_end_host_access(gpumem_instance instance, const void *pointer,
                                                        gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
