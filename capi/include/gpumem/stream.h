/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file stream.h
 * Ordered queues of work.
 */
#ifndef GPUMEM_STREAM_H
#define GPUMEM_STREAM_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** How a stream shall be. */
typedef struct gpumem_stream_desc {
  size_t struct_size; /**< `sizeof(gpumem_stream_desc)` of the caller. */
  int32_t priority;   /**< Lower numbers run first; cut to the range of the device; 0 is the default. */
  uint32_t reserved;  /**< 0. */
  const char *name;   /**< For messages and reports, up to 63 bytes, or NULL; copied. */
} gpumem_stream_desc;

/** Initial value of a gpumem_stream_desc. */
#define GPUMEM_STREAM_DESC_INIT \
  { sizeof(gpumem_stream_desc), 0, 0, NULL }

/** Sets up a gpumem_stream_desc as #GPUMEM_STREAM_DESC_INIT does.
 *
 * \param[out] out_desc struct to set up; NULL does nothing
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API void gpumem_stream_desc_init(gpumem_stream_desc *out_desc);

/** Creates a stream. It does not wait for the device's legacy default stream, nor that one for it.
 *
 * \param device device of the stream
 * \param desc how it shall be, or NULL for defaults
 * \param[out] out_stream receives the stream
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS done
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL output or wrong size
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory or thread for it
 * \retval GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY no device memory for it
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{for driver calls}
 * \threads{any thread}
 * \owner{the caller destroys the stream}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stream_create(gpumem_device device, const gpumem_stream_desc *desc,
                                              gpumem_stream *out_stream, gpumem_error *error);

/** Adopts a stream that other code made. It stays its maker's, who must keep it until the handle is
 * destroyed.
 *
 * \param device device of the stream
 * \param native_stream the `CUstream`, or what gpumem_host_native_stream_create() made; NULL and
 *         `CU_STREAM_LEGACY` are the device's legacy default stream. `CU_STREAM_PER_THREAD` is the default stream
 *         of the calling thread: on other threads the handle is #GPUMEM_ERROR_INVALID_STATE
 * \param[out] out_stream receives the handle
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS done
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL output, or the stream belongs to another device
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory for the library's records
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{for driver calls}
 * \threads{any thread}
 * \owner{the caller destroys the handle; the native stream stays its maker's}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stream_wrap(gpumem_device device, void *native_stream,
                                            gpumem_stream *out_stream, gpumem_error *error);

/** Destroys a stream, or lets go of an adopted one. Pending work still completes; the handle is stale at
 * once.
 *
 * \param stream stream to destroy; NULL does nothing and succeeds
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS gone; also when its device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{until calls of other threads that use the stream have returned; not for its work}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stream_destroy(gpumem_stream stream, gpumem_error *error);

/** What is known about a stream. */
typedef struct gpumem_stream_info {
  size_t struct_size;      /**< `sizeof(gpumem_stream_info)` of the caller. */
  gpumem_device device;    /**< Its device. */
  uint32_t device_ordinal; /**< The device's number. */
  uint32_t wrapped;        /**< 1 if it was adopted by gpumem_stream_wrap(). */
  int32_t priority;        /**< Priority granted. */
  uint32_t reserved;       /**< 0. */
  void *native_stream;     /**< The `CUstream`, for use by other code; for host see
                              gpumem_host_native_stream_create(). */
  char name[64];           /**< As given at creation. */
} gpumem_stream_info;

/** Initial value of a gpumem_stream_info. */
#define GPUMEM_STREAM_INFO_INIT                               \
  {                                                           \
    sizeof(gpumem_stream_info), NULL, 0, 0, 0, 0, NULL, { 0 } \
  }

/** Sets up a gpumem_stream_info as #GPUMEM_STREAM_INFO_INIT does.
 *
 * \param[out] out_info struct to set up; NULL does nothing
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API void gpumem_stream_info_init(gpumem_stream_info *out_info);

/** What is known about a stream.
 *
 * \param stream stream to ask
 * \param[in,out] out_info receives the answer
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the answer was written
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_info` is NULL or its size wrong
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stream_get_info(gpumem_stream stream, gpumem_stream_info *out_info,
                                                gpumem_error *error);

/** Whether all work of a stream is complete. Success is an observation with the same rights as
 * gpumem_stream_synchronize().
 *
 * \param stream stream to ask
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS all work is complete
 * \retval GPUMEM_NOT_READY work is pending
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE the stream is being captured, or called from a host function
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stream_query(gpumem_stream stream, gpumem_error *error);

/** Waits until the work that was in the stream at the call is complete.
 *
 * \param stream stream to wait for
 * \param timeout_ns time limit in nanoseconds; 0 asks once, #GPUMEM_TIMEOUT_INFINITE waits without limit
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the work is complete
 * \retval GPUMEM_NOT_READY the time ran out; nothing changed
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE the stream is being captured, or called from a host function
 * \handles
 * \blocking{until the work is complete or the time is over}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stream_synchronize(gpumem_stream stream, uint64_t timeout_ns,
                                                   gpumem_error *error);

/** Lets later work of a stream wait for what an event has captured. An event that was never recorded is
 * complete.
 *
 * \param stream stream that waits
 * \param event event to wait for; of the same instance, and of any device
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS enqueued
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT the two belong to different instances
 * \retval GPUMEM_ERROR_DEVICE_LOST a device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE the stream is being captured, or called from a host function
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stream_wait_event(gpumem_stream stream, gpumem_event event,
                                                  gpumem_error *error);

/** A function of the caller that runs in stream order. It must not throw and must not wait for device work.
 * Of gpumem it may call only the functions that give status texts, versions and information about objects. */
typedef void(GPUMEM_CALL *gpumem_host_function)(void *user_data);

/** Runs a function on the CPU after all earlier and before all later work of a stream, on a thread that is
 * not the caller's. It is not run if the device is lost.
 *
 * \param stream stream to enqueue in
 * \param function function to run
 * \param user_data handed to `function` as it is
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS enqueued
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `function` is NULL
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE the stream is being captured, or called from a host function
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory to enqueue it
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \owner{`user_data` stays the caller's and must live until the function has run}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stream_launch_host_function(gpumem_stream stream,
                                                            gpumem_host_function function, void *user_data,
                                                            gpumem_error *error);

/** Writes a number to a word of pinned or device memory, in stream order.
 *
 * \param stream stream to enqueue in
 * \param address word, aligned to its size, by its host or device address
 * \param value number to write; the lower 32 bits if `value_size` is 4
 * \param value_size 4 or 8 bytes
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS enqueued
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL or misaligned address, another size, or past the end of the
 *         memory
 * \retval GPUMEM_ERROR_NOT_FOUND no known memory is there
 * \retval GPUMEM_ERROR_WRONG_KIND the memory is neither pinned, registered with a device pointer, nor device
 *         memory
 * \retval GPUMEM_ERROR_NO_ACCESS the device may not write there
 * \retval GPUMEM_ERROR_UNSUPPORTED the device cannot do it
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE the stream is being captured, or called from a host function
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stream_write_value(gpumem_stream stream, void *address, uint64_t value,
                                                   uint32_t value_size, gpumem_error *error);

/** When a value wait lets go: one of the GPUMEM_WAIT_VALUE_ values. */
typedef int32_t gpumem_wait_value;
#define GPUMEM_WAIT_VALUE_GEQ 0 /**< `(signed)(word - value) >= 0`, so that counters may wrap. */
#define GPUMEM_WAIT_VALUE_EQ 1  /**< `word == value` */
#define GPUMEM_WAIT_VALUE_AND 2 /**< `(word & value) != 0` */
#define GPUMEM_WAIT_VALUE_NOR 3 /**< `~(word | value) != 0` */

/** Holds a stream until a word of pinned or device memory meets a condition.
 *
 * \param stream stream to enqueue in
 * \param address word, aligned to its size, by its host or device address
 * \param value number to compare with
 * \param value_size 4 or 8 bytes
 * \param condition one of the GPUMEM_WAIT_VALUE_ values
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS enqueued
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL or misaligned address, another size, an unknown condition, or
 *         past the end of the memory
 * \retval GPUMEM_ERROR_NOT_FOUND no known memory is there
 * \retval GPUMEM_ERROR_WRONG_KIND the memory is neither pinned, registered with a device pointer, nor device
 *         memory
 * \retval GPUMEM_ERROR_NO_ACCESS the device may not read there
 * \retval GPUMEM_ERROR_UNSUPPORTED the device cannot do it, or not with this condition
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE the stream is being captured, or called from a host function
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stream_wait_value(gpumem_stream stream, void *address, uint64_t value,
                                                  uint32_t value_size, gpumem_wait_value condition,
                                                  gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
