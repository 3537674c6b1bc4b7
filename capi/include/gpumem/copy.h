/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file copy.h
 * Copies between any two kinds of memory, and fills.
 *
 * With a stream, a call enqueues the work and returns; both operands must stay valid, and the source
 * unmodified, until the work has been observed complete (see gpumem_source_order). With a NULL stream, the
 * call returns when the work is done. It is then not ordered against any stream: what it needs must have been
 * observed complete.
 *
 * Operands may be of any kind, ordinary pageable memory and foreign memory included, by their host or device
 * address. Each lies inside one object. An operand that no instance and no driver knows is probed at its
 * first and last byte.
 */
#ifndef GPUMEM_COPY_H
#define GPUMEM_COPY_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Between which sides a copy goes: one of the GPUMEM_DIRECTION_ values. */
typedef int32_t gpumem_direction;
#define GPUMEM_DIRECTION_INFER 0            /**< As the pointers say. */
#define GPUMEM_DIRECTION_HOST_TO_HOST 1     /**< Both operands are host memory. */
#define GPUMEM_DIRECTION_HOST_TO_DEVICE 2   /**< The source is host memory, the destination device memory. */
#define GPUMEM_DIRECTION_DEVICE_TO_HOST 3   /**< The source is device memory, the destination host memory. */
#define GPUMEM_DIRECTION_DEVICE_TO_DEVICE 4 /**< Both operands are device memory. */

/** When the source of a copy is read: one of the GPUMEM_SOURCE_ORDER_ values. */
typedef int32_t gpumem_source_order;
/** In stream order. Ordinary pageable bytes may be read by the call already, as the driver does it: what host
 * functions and kernels before it write there must have been observed complete. Copies and fills of this
 * library may be left to the order of the stream. */
#define GPUMEM_SOURCE_ORDER_STREAM 0
/** Before the call returns, so that a variable on the stack will do; no earlier work of the stream may
 * write it. */
#define GPUMEM_SOURCE_ORDER_DURING_CALL 1
/** At any time before completion, also before earlier work of the stream; the source must not change from
 * the call on. */
#define GPUMEM_SOURCE_ORDER_ANY 2

/** What else a copy can be told. */
typedef struct gpumem_copy_options {
  size_t struct_size;               /**< `sizeof(gpumem_copy_options)` of the caller. */
  gpumem_direction direction;       /**< One of the GPUMEM_DIRECTION_ values. */
  gpumem_source_order source_order; /**< One of the GPUMEM_SOURCE_ORDER_ values. */
} gpumem_copy_options;

/** Initial value of a gpumem_copy_options. */
#define GPUMEM_COPY_OPTIONS_INIT \
  { sizeof(gpumem_copy_options), 0, 0 }

/** Sets up a gpumem_copy_options as #GPUMEM_COPY_OPTIONS_INIT does.
 *
 * \param[out] out_options struct to set up; NULL does nothing
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API void gpumem_copy_options_init(gpumem_copy_options *out_options);

/** Copies bytes.
 *
 * \param instance instance that does it
 * \param stream stream to enqueue in, of this instance; or NULL to return when the copy is done
 * \param destination first byte to write
 * \param source first byte to read; the two ranges must not overlap
 * \param size bytes; 0 succeeds, enqueues nothing and looks at no pointer
 * \param options what else to tell, or NULL
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS enqueued, or done
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, size above 2^63-1, a range that leaves its object,
 *         ranges that overlap, a direction that contradicts the pointers, a stream of another instance,
 *         unknown option values
 * \retval GPUMEM_ERROR_NOT_FOUND no memory is at one of the pointers
 * \retval GPUMEM_ERROR_NO_ACCESS the device may not read the source or write the destination
 * \retval GPUMEM_ERROR_INVALID_STATE registered memory that is mapped no longer; the stream is being
 *         captured; called from a host function
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory to enqueue it
 * \handles
 * \blocking{with a stream only while pageable bytes are staged or #GPUMEM_SOURCE_ORDER_DURING_CALL reads its
 *         source; with NULL until the copy is done}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_copy(gpumem_instance instance, gpumem_stream stream, void *destination,
                                     const void *source, uint64_t size, const gpumem_copy_options *options,
                                     gpumem_error *error);

/** Copies a rectangle of bytes.
 *
 * \param instance instance that does it
 * \param stream stream to enqueue in, of this instance; or NULL to return when the copy is done
 * \param destination first byte to write
 * \param destination_pitch bytes from one row of the destination to the next, at least `width`
 * \param source first byte to read; the two rectangles must share no byte
 * \param source_pitch bytes from one row of the source to the next, at least `width`
 * \param width bytes of a row; 0 succeeds and does nothing
 * \param height rows; 0 succeeds and does nothing
 * \param options what else to tell, or NULL
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS enqueued, or done
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT see gpumem_copy(); or a pitch below `width`
 * \retval GPUMEM_ERROR_NOT_FOUND see gpumem_copy()
 * \retval GPUMEM_ERROR_NO_ACCESS see gpumem_copy()
 * \retval GPUMEM_ERROR_INVALID_STATE see gpumem_copy()
 * \retval GPUMEM_ERROR_DEVICE_LOST see gpumem_copy()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY see gpumem_copy()
 * \retval GPUMEM_ERROR_UNSUPPORTED a pitch is above what the device can do
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{as gpumem_copy()}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_copy_2d(gpumem_instance instance, gpumem_stream stream, void *destination,
                                        uint64_t destination_pitch, const void *source, uint64_t source_pitch,
                                        uint64_t width, uint64_t height, const gpumem_copy_options *options,
                                        gpumem_error *error);

/** Fills memory with a repeated number.
 *
 * \param instance instance that does it
 * \param stream stream to enqueue in, of this instance; or NULL to return when the fill is done
 * \param destination first byte to write, aligned to `value_size`
 * \param size bytes, a multiple of `value_size`; 0 succeeds, enqueues nothing and looks at no pointer
 * \param value number to repeat; the lower bits if `value_size` is below 4
 * \param value_size 1, 2 or 4 bytes
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS enqueued, or done
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL or misaligned pointer, size above 2^63-1 or no multiple of
 *         `value_size`, a range that leaves its object, a stream of another instance
 * \retval GPUMEM_ERROR_NOT_FOUND no memory is at the pointer
 * \retval GPUMEM_ERROR_NO_ACCESS the device may not write there
 * \retval GPUMEM_ERROR_INVALID_STATE see gpumem_copy()
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory to enqueue it
 * \handles
 * \blocking{with a stream only on ordinary pageable memory, until the work before it is done; with NULL until
 *         the fill is done}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_fill(gpumem_instance instance, gpumem_stream stream, void *destination,
                                     uint64_t size, uint32_t value, uint32_t value_size, gpumem_error *error);

/** Fills a rectangle of memory with a repeated number.
 *
 * \param instance instance that does it
 * \param stream stream to enqueue in, of this instance; or NULL to return when the fill is done
 * \param destination first byte to write, aligned to `value_size`
 * \param pitch bytes from one row to the next, at least `width` and a multiple of `value_size`
 * \param width bytes of a row, a multiple of `value_size`; 0 succeeds and does nothing
 * \param height rows; 0 succeeds and does nothing
 * \param value number to repeat; the lower bits if `value_size` is below 4
 * \param value_size 1, 2 or 4 bytes
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS enqueued, or done
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT see gpumem_fill(); or a pitch below `width`
 * \retval GPUMEM_ERROR_NOT_FOUND see gpumem_fill()
 * \retval GPUMEM_ERROR_NO_ACCESS see gpumem_fill()
 * \retval GPUMEM_ERROR_INVALID_STATE see gpumem_fill()
 * \retval GPUMEM_ERROR_DEVICE_LOST see gpumem_fill()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY see gpumem_fill()
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{as gpumem_fill()}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_fill_2d(gpumem_instance instance, gpumem_stream stream, void *destination,
                                        uint64_t pitch, uint64_t width, uint64_t height, uint32_t value,
                                        uint32_t value_size, gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
