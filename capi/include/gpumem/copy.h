/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file copy.h
 * Copies between any two kinds of memory, and fills.
 *
 * Each operation comes in two forms. The plain one takes an instance and returns when the work is done. It is not
 * ordered against any stream: work that it depends on must have been observed complete. The one that ends in `_async`
 * takes a stream, enqueues the work and returns. Both operands must then stay valid, and the source unmodified, until
 * the work has been observed complete (see gpumem_source_order).
 *
 * An operand may be memory of any kind, including ordinary pageable memory and memory of other code, by its host or
 * device address. It lies inside one object. If neither the instance nor the driver knows the address, the library
 * checks that the first and last byte can be accessed. A page between them that cannot be is reported where the CPU
 * copies: between ordinary memory, in a call that waits, in large copies between ordinary memory and a device, and on the
 * host backend. Elsewhere it may end the process in the driver.
 *
 * On cuda, threads of the library make large copies between ordinary memory and a device, because the driver's own are
 * several times slower (see `transfer_threads` of gpumem_instance_desc).
 */
#ifndef GPUMEM_COPY_H
#define GPUMEM_COPY_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Direction of a copy: one of the GPUMEM_DIRECTION_ values. */
typedef int32_t gpumem_direction;
#define GPUMEM_DIRECTION_INFER 0            /**< Inferred from the operands. */
#define GPUMEM_DIRECTION_HOST_TO_HOST 1     /**< Both operands are host memory. */
#define GPUMEM_DIRECTION_HOST_TO_DEVICE 2   /**< The source is host memory, the destination device memory. */
#define GPUMEM_DIRECTION_DEVICE_TO_HOST 3   /**< The source is device memory, the destination host memory. */
#define GPUMEM_DIRECTION_DEVICE_TO_DEVICE 4 /**< Both operands are device memory. */

/** When the source of an asynchronous copy is read: one of the GPUMEM_SOURCE_ORDER_ values. */
typedef int32_t gpumem_source_order;
/** In stream order. The driver may read pageable memory during the call, so what earlier host functions and kernels
 * write there must have been observed complete. Earlier copies and fills of this library need not be. */
#define GPUMEM_SOURCE_ORDER_STREAM 0
/** Before the call returns, so that the source can be a local variable. No earlier work of the stream may write it.
 */
#define GPUMEM_SOURCE_ORDER_DURING_CALL 1
/** At any time before completion, even before earlier work of the stream. The source must be host memory, and must not
 * change from the call on. */
#define GPUMEM_SOURCE_ORDER_ANY 2

/** Options for a copy. */
typedef struct gpumem_copy_options {
  size_t struct_size;               /**< `sizeof(gpumem_copy_options)` of the caller. */
  gpumem_direction direction;       /**< One of the GPUMEM_DIRECTION_ values. */
  gpumem_source_order source_order; /**< One of the GPUMEM_SOURCE_ORDER_ values. */
} gpumem_copy_options;

/** Initial value of a gpumem_copy_options. */
#define GPUMEM_COPY_OPTIONS_INIT \
  { sizeof(gpumem_copy_options), 0, 0 }

/** Copies bytes, and returns when they are copied.
 *
 * \param instance instance that copies
 * \param destination first byte to write
 * \param source first byte to read; the two ranges must not overlap
 * \param size bytes; 0 succeeds and ignores the pointers
 * \param options options, or NULL for defaults
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the bytes are copied
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, a size above 2^63-1, a range that leaves its object, ranges
 *         that overlap, a direction that contradicts the operands, #GPUMEM_SOURCE_ORDER_ANY with a source on a device, or
 *         an unknown option value
 * \retval GPUMEM_ERROR_NOT_FOUND there is no memory at one of the pointers
 * \retval GPUMEM_ERROR_NO_ACCESS the source cannot be read or the destination cannot be written
 * \retval GPUMEM_ERROR_INVALID_STATE a page of registered or ordinary memory is not mapped, or not for this use; nothing is
 *         mapped in a part of a range; its buffer is asleep, or is being put to sleep or woken; or called from a host function
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory to enqueue the copy
 * \handles
 * \blocking{until the bytes are copied}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_copy(gpumem_instance instance, void *destination, const void *source,
                                     uint64_t size, const gpumem_copy_options *options, gpumem_error *error);

/** Enqueues a copy of bytes.
 *
 * \param stream stream to enqueue in
 * \param destination first byte to write
 * \param source first byte to read; the two ranges must not overlap
 * \param size bytes; 0 succeeds, enqueues nothing and ignores the pointers
 * \param options options, or NULL for defaults
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the copy is enqueued
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT see gpumem_copy()
 * \retval GPUMEM_ERROR_NOT_FOUND see gpumem_copy()
 * \retval GPUMEM_ERROR_NO_ACCESS see gpumem_copy()
 * \retval GPUMEM_ERROR_INVALID_STATE see gpumem_copy(); or the stream is being captured, and the source order is
 *         #GPUMEM_SOURCE_ORDER_DURING_CALL; or, on the host backend in strict mode, earlier work of the stream writes a source
 *         that this source order may read before it
 * \retval GPUMEM_ERROR_DEVICE_LOST see gpumem_copy()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY see gpumem_copy()
 * \handles
 * \blocking{only while pageable bytes are staged, for which earlier work of the stream may be waited for, or while
 *         #GPUMEM_SOURCE_ORDER_DURING_CALL reads the source}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_copy_async(gpumem_stream stream, void *destination, const void *source,
                                           uint64_t size, const gpumem_copy_options *options,
                                           gpumem_error *error);

/** Copies a rectangle of bytes, and returns when it is copied.
 *
 * \param instance instance that copies
 * \param destination first byte to write
 * \param destination_pitch bytes from one row of the destination to the next, at least `width`
 * \param source first byte to read; the two rectangles must share no byte
 * \param source_pitch bytes from one row of the source to the next, at least `width`
 * \param width bytes of a row; 0 succeeds and does nothing
 * \param height number of rows; 0 succeeds and does nothing
 * \param options options, or NULL for defaults
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the rectangle is copied
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT see gpumem_copy(); or a pitch is less than `width`
 * \retval GPUMEM_ERROR_NOT_FOUND see gpumem_copy()
 * \retval GPUMEM_ERROR_NO_ACCESS see gpumem_copy()
 * \retval GPUMEM_ERROR_INVALID_STATE see gpumem_copy()
 * \retval GPUMEM_ERROR_DEVICE_LOST see gpumem_copy()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY see gpumem_copy()
 * \retval GPUMEM_ERROR_UNSUPPORTED a pitch is larger than the device supports
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{until the rectangle is copied}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_copy_2d(gpumem_instance instance, void *destination,
                                        uint64_t destination_pitch, const void *source, uint64_t source_pitch,
                                        uint64_t width, uint64_t height, const gpumem_copy_options *options,
                                        gpumem_error *error);

/** Enqueues a copy of a rectangle of bytes.
 *
 * \param stream stream to enqueue in
 * \param destination first byte to write
 * \param destination_pitch bytes from one row of the destination to the next, at least `width`
 * \param source first byte to read; the two rectangles must share no byte
 * \param source_pitch bytes from one row of the source to the next, at least `width`
 * \param width bytes of a row; 0 succeeds and enqueues nothing
 * \param height number of rows; 0 succeeds and enqueues nothing
 * \param options options, or NULL for defaults
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the copy is enqueued
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT see gpumem_copy_2d()
 * \retval GPUMEM_ERROR_NOT_FOUND see gpumem_copy()
 * \retval GPUMEM_ERROR_NO_ACCESS see gpumem_copy()
 * \retval GPUMEM_ERROR_INVALID_STATE see gpumem_copy_async()
 * \retval GPUMEM_ERROR_DEVICE_LOST see gpumem_copy()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY see gpumem_copy()
 * \retval GPUMEM_ERROR_UNSUPPORTED see gpumem_copy_2d()
 * \retval GPUMEM_ERROR_SYMBOL_MISSING see gpumem_copy_2d()
 * \handles
 * \blocking{as gpumem_copy_async()}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_copy_2d_async(gpumem_stream stream, void *destination,
                                              uint64_t destination_pitch, const void *source,
                                              uint64_t source_pitch, uint64_t width, uint64_t height,
                                              const gpumem_copy_options *options, gpumem_error *error);

/** One side of a region: a memory object and an offset, or a pointer.
 *
 * Set exactly one of `memory` and `pointer`. A region has the same struct for both sides, so the pointer of a source is
 * not `const`; the library only reads there. */
typedef struct gpumem_copy_operand {
  gpumem_memory memory; /**< Memory of the instance, or NULL if `pointer` is set. */
  uint64_t offset;      /**< First byte, counted from the start of `memory`; 0 with `pointer`. */
  void *pointer;        /**< First byte, by its host or device address, or NULL if `memory` is set. */
  uint64_t row_pitch;   /**< Bytes from one row to the next, at least `width`; 0 means `width`. */
  /** Bytes from one slice to the next, at least what the rows of a slice span; 0 means `height` times the row pitch.
   * With a depth of 1 it is not looked at. */
  uint64_t slice_pitch;
} gpumem_copy_operand;

/** A box of bytes to copy: `depth` slices of `height` rows of `width` bytes. */
typedef struct gpumem_copy_region {
  size_t struct_size;              /**< `sizeof(gpumem_copy_region)` of the caller. */
  gpumem_copy_operand destination; /**< Where to write. */
  gpumem_copy_operand source;      /**< Where to read; it must share no byte with the destination. */
  uint64_t width;             /**< Bytes of a row; 0 makes the region a no-op whose operands are ignored. */
  uint64_t height;            /**< Rows of a slice; 0 means 1. */
  uint64_t depth;             /**< Slices; 0 means 1. */
  gpumem_direction direction; /**< One of the GPUMEM_DIRECTION_ values. */
  gpumem_source_order source_order; /**< One of the GPUMEM_SOURCE_ORDER_ values. */
} gpumem_copy_region;

/** Initial value of a gpumem_copy_region. */
#define GPUMEM_COPY_REGION_INIT \
  { sizeof(gpumem_copy_region), {NULL, 0, NULL, 0, 0}, {NULL, 0, NULL, 0, 0}, 0, 0, 0, 0, 0 }

/** Copies a batch of regions, and returns when they are copied.
 *
 * Every region is checked before any is copied. The regions are copied in any order, also at the same time, so no region
 * may write bytes that another one reads or writes: a batch with such a pair is refused, and the message names both.
 * Boxes may lie in each other's gaps.
 *
 * Regions of one row that lie in a row in the array, and side by side in memory on both sides, are one copy.
 *
 * On cuda, regions of one row of at most 256 KiB each, between pinned, mapped and device memory of one device, are copied together
 * by a kernel, hundreds in one launch, where the instance was the first to use the device in the process; else by the
 * driver's batch (12.8 and later). Capability `copy.batch` tells whether either serves; else each is a call of the driver.
 *
 * If a region fails its check, nothing is copied. If the backend fails midway, the regions before `*out_failed` are
 * copied, the one at `*out_failed` and those that are copied together with it may be copied in part, and later ones are not.
 * No copy is running when the call returns.
 *
 * \param instance instance that copies
 * \param regions array of `count` regions; each has the `struct_size` of the first, which is the distance between
 *         them. NULL if `count` is 0
 * \param count number of regions; 0 succeeds and does nothing
 * \param[out] out_failed receives the index of the region that failed; unchanged on success, and if the failure does
 *         not belong to one region. Or NULL
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the regions are copied
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `regions` is NULL; a wrong size; an operand with both memory and pointer, or
 *         with neither; memory of another instance; a pitch that is too small; two regions that depend on each other,
 *         of which `*out_failed` is the later one; or see gpumem_copy()
 * \retval GPUMEM_ERROR_NOT_FOUND see gpumem_copy()
 * \retval GPUMEM_ERROR_NO_ACCESS see gpumem_copy()
 * \retval GPUMEM_ERROR_INVALID_STATE see gpumem_copy()
 * \retval GPUMEM_ERROR_DEVICE_LOST see gpumem_copy()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY see gpumem_copy()
 * \retval GPUMEM_ERROR_UNSUPPORTED see gpumem_copy_2d()
 * \retval GPUMEM_ERROR_SYMBOL_MISSING see gpumem_copy_2d()
 * \handles
 * \blocking{until the regions are copied}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_copy_regions(gpumem_instance instance, const gpumem_copy_region *regions,
                                             uint64_t count, uint64_t *out_failed, gpumem_error *error);

/** Enqueues the copies of a batch of regions.
 *
 * Every region is checked before any is enqueued. The batch is ordered against other work of the stream; its regions
 * are not ordered among themselves, so none may write bytes that another one reads or writes (see
 * gpumem_copy_regions()). Drivers take no batches in the default stream.
 *
 * If a region fails its check, nothing is enqueued. If the backend fails midway, the regions before `*out_failed` are
 * enqueued, the one at `*out_failed` and those that are copied together with it may be enqueued in part, and later ones are not. Keep the operands valid until the
 * stream has been observed complete.
 *
 * \param stream stream to enqueue in
 * \param regions array of `count` regions; each has the `struct_size` of the first, which is the distance between
 *         them. NULL if `count` is 0. The array is not used after the call
 * \param count number of regions; 0 succeeds and enqueues nothing
 * \param[out] out_failed receives the index of the region that failed; unchanged on success, and if the failure does
 *         not belong to one region. Or NULL
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the copies are enqueued
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT see gpumem_copy_regions(); or the stream is the default stream
 * \retval GPUMEM_ERROR_NOT_FOUND see gpumem_copy()
 * \retval GPUMEM_ERROR_NO_ACCESS see gpumem_copy()
 * \retval GPUMEM_ERROR_INVALID_STATE see gpumem_copy_async()
 * \retval GPUMEM_ERROR_DEVICE_LOST see gpumem_copy()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY see gpumem_copy()
 * \retval GPUMEM_ERROR_UNSUPPORTED see gpumem_copy_2d()
 * \retval GPUMEM_ERROR_SYMBOL_MISSING see gpumem_copy_2d()
 * \handles
 * \blocking{as gpumem_copy_async()}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_copy_regions_async(gpumem_stream stream, const gpumem_copy_region *regions,
                                                   uint64_t count, uint64_t *out_failed, gpumem_error *error);

/** Fills memory with a repeated value, and returns when it is filled.
 *
 * \param instance instance that fills
 * \param destination first byte to write, aligned to `value_size`
 * \param size bytes, a multiple of `value_size`; 0 succeeds and ignores the pointer
 * \param value value to repeat; the low bytes of it if `value_size` is less than 4
 * \param value_size 1, 2 or 4 bytes
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the memory is filled
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL or misaligned pointer, a size above 2^63-1 or not a multiple of
 *         `value_size`, another `value_size`, or a range that leaves its object
 * \retval GPUMEM_ERROR_NOT_FOUND there is no memory at the pointer
 * \retval GPUMEM_ERROR_NO_ACCESS the destination cannot be written
 * \retval GPUMEM_ERROR_INVALID_STATE see gpumem_copy()
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory to enqueue the fill
 * \handles
 * \blocking{until the memory is filled}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_fill(gpumem_instance instance, void *destination, uint64_t size,
                                     uint32_t value, uint32_t value_size, gpumem_error *error);

/** Enqueues a fill of memory with a repeated value.
 *
 * \param stream stream to enqueue in
 * \param destination first byte to write, aligned to `value_size`
 * \param size bytes, a multiple of `value_size`; 0 succeeds, enqueues nothing and ignores the pointer
 * \param value value to repeat; the low bytes of it if `value_size` is less than 4
 * \param value_size 1, 2 or 4 bytes
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the fill is enqueued
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT see gpumem_fill()
 * \retval GPUMEM_ERROR_NOT_FOUND see gpumem_fill()
 * \retval GPUMEM_ERROR_NO_ACCESS see gpumem_fill()
 * \retval GPUMEM_ERROR_INVALID_STATE see gpumem_copy_async()
 * \retval GPUMEM_ERROR_DEVICE_LOST see gpumem_fill()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY see gpumem_fill()
 * \handles
 * \blocking{only for pageable memory, until the work before it is complete}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_fill_async(gpumem_stream stream, void *destination, uint64_t size,
                                           uint32_t value, uint32_t value_size, gpumem_error *error);

/** Fills a rectangle of memory with a repeated value, and returns when it is filled.
 *
 * \param instance instance that fills
 * \param destination first byte to write, aligned to `value_size`
 * \param pitch bytes from one row to the next, at least `width` and a multiple of `value_size`
 * \param width bytes of a row, a multiple of `value_size`; 0 succeeds and does nothing
 * \param height number of rows; 0 succeeds and does nothing
 * \param value value to repeat; the low bytes of it if `value_size` is less than 4
 * \param value_size 1, 2 or 4 bytes
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the rectangle is filled
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT see gpumem_fill(); or a pitch that is less than `width` or not a multiple of
 *         `value_size`
 * \retval GPUMEM_ERROR_NOT_FOUND see gpumem_fill()
 * \retval GPUMEM_ERROR_NO_ACCESS see gpumem_fill()
 * \retval GPUMEM_ERROR_INVALID_STATE see gpumem_copy()
 * \retval GPUMEM_ERROR_DEVICE_LOST see gpumem_fill()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY see gpumem_fill()
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{until the rectangle is filled}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_fill_2d(gpumem_instance instance, void *destination, uint64_t pitch,
                                        uint64_t width, uint64_t height, uint32_t value, uint32_t value_size,
                                        gpumem_error *error);

/** Enqueues a fill of a rectangle of memory with a repeated value.
 *
 * \param stream stream to enqueue in
 * \param destination first byte to write, aligned to `value_size`
 * \param pitch bytes from one row to the next, at least `width` and a multiple of `value_size`
 * \param width bytes of a row, a multiple of `value_size`; 0 succeeds and enqueues nothing
 * \param height number of rows; 0 succeeds and enqueues nothing
 * \param value value to repeat; the low bytes of it if `value_size` is less than 4
 * \param value_size 1, 2 or 4 bytes
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the fill is enqueued
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT see gpumem_fill_2d()
 * \retval GPUMEM_ERROR_NOT_FOUND see gpumem_fill()
 * \retval GPUMEM_ERROR_NO_ACCESS see gpumem_fill()
 * \retval GPUMEM_ERROR_INVALID_STATE see gpumem_copy_async()
 * \retval GPUMEM_ERROR_DEVICE_LOST see gpumem_fill()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY see gpumem_fill()
 * \retval GPUMEM_ERROR_SYMBOL_MISSING see gpumem_fill_2d()
 * \handles
 * \blocking{as gpumem_fill_async()}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_fill_2d_async(gpumem_stream stream, void *destination, uint64_t pitch,
                                              uint64_t width, uint64_t height, uint32_t value,
                                              uint32_t value_size, gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
