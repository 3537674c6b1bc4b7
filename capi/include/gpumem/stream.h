/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file stream.h
 * Ordered queues of work.
 *
 * **Captures.** While other code captures a stream into a graph, with `cuStreamBeginCapture` or what is built on that, copies, fills,
 * records and waits of events, value writes and waits, and host functions become nodes of the graph. They run at each launch
 * of it, and read their sources then. What the graph uses is yours to keep: the memory, mapped and in its place, and what host functions
 * use. A stream that waits for an event of a capture joins it. What no graph can hold fails with #GPUMEM_ERROR_INVALID_STATE, and the
 * capture goes on. Pools serve such streams too: see pool.h.
 */
#ifndef GPUMEM_STREAM_H
#define GPUMEM_STREAM_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Options for creating a stream. */
typedef struct gpumem_stream_desc {
  size_t struct_size; /**< `sizeof(gpumem_stream_desc)` of the caller. */
  int32_t priority;   /**< Lower numbers run first; clamped to the range of the device; 0 is the default. */
  uint32_t reserved;  /**< 0. */
  const char *
      name; /**< For messages and reports, up to 63 bytes without ASCII control characters, or NULL; copied. */
} gpumem_stream_desc;

/** Initial value of a gpumem_stream_desc. */
#define GPUMEM_STREAM_DESC_INIT \
  { sizeof(gpumem_stream_desc), 0, 0, NULL }

/** Creates a stream. It does not synchronise with the legacy default stream of the device.
 *
 * \param device device of the stream
 * \param desc options, or NULL for defaults
 * \param[out] out_stream receives the stream
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the stream was written to `*out_stream`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL output or wrong size
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no host memory or thread for the stream
 * \retval GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY no device memory for the stream
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{for driver calls}
 * \threads{any thread}
 * \owner{the caller destroys the stream}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stream_create(gpumem_device device, const gpumem_stream_desc *desc,
                                              gpumem_stream *out_stream, gpumem_error *error);

/** Wraps a stream that other code created. The native stream must live until the handle is destroyed.
 *
 * \param device device of the stream
 * \param native_stream the `CUstream`, or a stream of gpumem_host_native_stream_create(). NULL and
 *         `CU_STREAM_LEGACY` are the legacy default stream of the device. `CU_STREAM_PER_THREAD` is the default stream
 *         of the calling thread; on other threads the handle fails with #GPUMEM_ERROR_INVALID_STATE
 * \param[out] out_stream receives the handle
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the handle was written to `*out_stream`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL output, or the stream belongs to another device
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory for the library's records
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{for driver calls}
 * \threads{any thread}
 * \owner{the caller destroys the handle; the native stream stays its creator's}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stream_wrap(gpumem_device device, void *native_stream,
                                            gpumem_stream *out_stream, gpumem_error *error);

/** Destroys a stream, or releases a wrapped one. The handle is stale at once; pending work still completes.
 *
 * \param stream stream to destroy; NULL does nothing and succeeds
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the stream is destroyed, also if its device is lost
 * \retval GPUMEM_ERROR_BUSY the driver was busy, again and again; nothing changed
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{until calls of other threads that use the stream have returned; not for its work. On host, the thread that
 *         ran its work ends soon after, and counts against RLIMIT_NPROC until then}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stream_destroy(gpumem_stream stream, gpumem_error *error);

/** Information about a stream. */
typedef struct gpumem_stream_info {
  size_t struct_size;      /**< `sizeof(gpumem_stream_info)` of the caller. */
  gpumem_device device;    /**< Its device. */
  uint32_t device_ordinal; /**< The device's ordinal. */
  uint32_t wrapped;        /**< 1 if gpumem_stream_wrap() made the handle. */
  int32_t priority;        /**< Priority granted. */
  uint32_t reserved;       /**< 0. */
  /** The `CUstream`, for use by other code; on host see gpumem_host_native_stream_create(). */
  void *native_stream;
  /** Tells this stream from every other one of the process, also from an earlier one with the same native handle. 0 if
   * the driver cannot tell: the stream is wrapped, and the driver is older than 12.0 or was capturing it then. */
  uint64_t id;
  char name[64]; /**< As given at creation. */
} gpumem_stream_info;

/** Initial value of a gpumem_stream_info. */
#define GPUMEM_STREAM_INFO_INIT                                  \
  {                                                              \
    sizeof(gpumem_stream_info), NULL, 0, 0, 0, 0, NULL, 0, { 0 } \
  }

/** Gets information about a stream.
 *
 * \param stream stream to query
 * \param[in,out] out_info receives the information
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the information was written to `*out_info`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_info` is NULL or has a wrong size
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stream_get_info(gpumem_stream stream, gpumem_stream_info *out_info,
                                                gpumem_error *error);

/** Gets the number of the capture into a graph that a stream is part of. All streams that have joined one capture answer the same,
 * and no other capture of the process has it. It is that of `cuStreamGetCaptureInfo`.
 *
 * \param stream stream to query
 * \param[out] out_capture_id receives the number, or 0 if the stream is not being captured
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the number was written to `*out_capture_id`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_capture_id` is NULL
 * \retval GPUMEM_ERROR_INVALID_STATE a capture of the stream has failed; or called from a host function
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stream_get_capture_id(gpumem_stream stream, uint64_t *out_capture_id,
                                                      gpumem_error *error);

/** Queries whether all work of a stream is complete. Success counts as observing that work complete.
 *
 * \param stream stream to query
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS all work is complete
 * \retval GPUMEM_NOT_READY work is pending
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE the stream is being captured; called from a host function; or, on host, work of
 *         the stream failed because memory of the caller had been unmapped, which is reported once
 * \retval GPUMEM_ERROR_PEER_GONE on host, the stream waited for an event, and the process that recorded it ended before
 *         the work was complete; reported once
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stream_query(gpumem_stream stream, gpumem_error *error);

/** Waits until the work that is in a stream now is complete. Work that other threads enqueue during the call is not
 * waited for.
 *
 * \param stream stream to wait for
 * \param timeout_ns timeout in nanoseconds; 0 queries once, #GPUMEM_TIMEOUT_INFINITE waits without limit
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the work is complete
 * \retval GPUMEM_NOT_READY the timeout expired; nothing changed
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE the stream is being captured; called from a host function; or, on host, work of
 *         the stream failed because memory of the caller had been unmapped, which is reported once
 * \retval GPUMEM_ERROR_PEER_GONE on host, the stream waited for an event, and the process that recorded it ended before
 *         the work was complete; reported once
 * \handles
 * \blocking{until the work is complete or the timeout expires}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stream_synchronize(gpumem_stream stream, uint64_t timeout_ns,
                                                   gpumem_error *error);

/** Makes later work of a stream wait for the latest record of an event. An event that was never recorded is complete.
 *
 * \param stream stream that waits
 * \param event event to wait for; of the same instance and of any device
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the wait is enqueued
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT stream and event belong to different instances
 * \retval GPUMEM_ERROR_DEVICE_LOST a device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE the stream is being captured, and the event was recorded outside of that capture; or it was
 *         last recorded in a capture that has ended; or called from a host function
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stream_wait_event(gpumem_stream stream, gpumem_event event,
                                                  gpumem_error *error);

/** A function of the caller that runs in stream order. It must return: it must not throw, end its thread or wait for
 * device work. Of gpumem it may call only what docs/threads-fork-exit.md lists under "What a host function may call".
 * It runs with the signal mask of the thread that enqueued it. A child process that it forks is a process like any
 * other, but must not return from the function. */
typedef void(GPUMEM_CALL *gpumem_host_function)(void *user_data);

/** Enqueues a function that runs on the CPU, after all earlier and before all later work of a stream.
 *
 * It runs on a thread other than the caller's. It does not run if the device is lost. In a stream that is being captured it becomes part
 * of the graph, and runs at each launch.
 *
 * \param stream stream to enqueue in
 * \param function function to run
 * \param user_data passed to `function`
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the function is enqueued
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `function` is NULL
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE a capture of the stream has failed; or called from a host function
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory to enqueue the function
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point; for a stream that is being captured it must be that of CUDA 11.3
 *         or newer
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \owner{`user_data` belongs to the caller and must live until the function has run, or until nothing is left of the graph}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stream_launch_host_function(gpumem_stream stream,
                                                            gpumem_host_function function, void *user_data,
                                                            gpumem_error *error);

/** Enqueues a write of a value to a word of pinned or device memory.
 *
 * \param stream stream to enqueue in
 * \param address word, aligned to its size, by its host or device address
 * \param value value to write; its low 32 bits if `value_size` is 4
 * \param value_size 4 or 8 bytes
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the write is enqueued
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL or misaligned address, another size, or past the end of the memory
 * \retval GPUMEM_ERROR_NOT_FOUND there is no known memory at the address
 * \retval GPUMEM_ERROR_WRONG_KIND the memory is not pinned, registered with a device pointer, or device memory
 * \retval GPUMEM_ERROR_NO_ACCESS the device may not write there
 * \retval GPUMEM_ERROR_UNSUPPORTED the device cannot do it, or the memory is of a pool with #GPUMEM_POOL_FROM_DRIVER
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE the word is in a buffer that is asleep, or is being put to sleep or woken; or called from a
 *         host function
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stream_write_value(gpumem_stream stream, void *address, uint64_t value,
                                                   uint32_t value_size, gpumem_error *error);

/** Condition that ends a value wait: one of the GPUMEM_WAIT_ values. */
typedef int32_t gpumem_wait_condition;
#define GPUMEM_WAIT_GEQ 0 /**< `(signed)(word - value) >= 0`, so that counters may wrap around. */
#define GPUMEM_WAIT_EQ 1  /**< `word == value` */
#define GPUMEM_WAIT_AND 2 /**< `(word & value) != 0` */
#define GPUMEM_WAIT_NOR 3 /**< `~(word | value) != 0` */

/** Makes later work of a stream wait until a word of pinned or device memory meets a condition.
 *
 * \param stream stream to enqueue in
 * \param address word, aligned to its size, by its host or device address
 * \param value value to compare with; its low 32 bits if `value_size` is 4
 * \param value_size 4 or 8 bytes
 * \param condition one of the GPUMEM_WAIT_ values
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the wait is enqueued
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL or misaligned address, another size, an unknown condition, or past the
 *         end of the memory
 * \retval GPUMEM_ERROR_NOT_FOUND there is no known memory at the address
 * \retval GPUMEM_ERROR_WRONG_KIND the memory is not pinned, registered with a device pointer, or device memory
 * \retval GPUMEM_ERROR_NO_ACCESS the device may not read there
 * \retval GPUMEM_ERROR_UNSUPPORTED the device cannot do it, or not with this condition; or the memory is of a pool with
 *         #GPUMEM_POOL_FROM_DRIVER
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE the word is in a buffer that is asleep, or is being put to sleep or woken; or called from a
 *         host function
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stream_wait_value(gpumem_stream stream, void *address, uint64_t value,
                                                  uint32_t value_size, gpumem_wait_condition condition,
                                                  gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
