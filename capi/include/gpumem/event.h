/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file event.h
 * Points in streams that can be waited for and timed.
 */
#ifndef GPUMEM_EVENT_H
#define GPUMEM_EVENT_H

#include "share.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Properties of an event: a sum of GPUMEM_EVENT_ values. */
typedef uint64_t gpumem_event_flags;
/** The event takes no time stamp, which makes it cheaper. */
#define GPUMEM_EVENT_DISABLE_TIMING UINT64_C(0x1)
/** gpumem_event_synchronize() yields the processor while it waits without a limit. On cuda it may spin otherwise. */
#define GPUMEM_EVENT_BLOCKING_SYNC UINT64_C(0x2)
/** The event can be exported to other processes. Needs #GPUMEM_EVENT_DISABLE_TIMING, and the capability
 * `share.events`. */
#define GPUMEM_EVENT_INTERPROCESS UINT64_C(0x4)

/** Options for creating an event. */
typedef struct gpumem_event_desc {
  size_t struct_size;       /**< `sizeof(gpumem_event_desc)` of the caller. */
  gpumem_event_flags flags; /**< Sum of GPUMEM_EVENT_ values. */
  /** For messages and reports, up to 63 bytes without ASCII control characters, or NULL; copied. */
  const char *name;
} gpumem_event_desc;

/** Initial value of a gpumem_event_desc. */
#define GPUMEM_EVENT_DESC_INIT \
  { sizeof(gpumem_event_desc), 0, NULL }

/** Creates an event. It counts as complete until it is recorded.
 *
 * \param device device whose streams will record the event
 * \param desc options, or NULL for defaults
 * \param[out] out_event receives the event
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the event was written to `*out_event`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL output, a wrong size, an unknown flag, or #GPUMEM_EVENT_INTERPROCESS
 *         without #GPUMEM_EVENT_DISABLE_TIMING
 * \retval GPUMEM_ERROR_UNSUPPORTED #GPUMEM_EVENT_INTERPROCESS, and the device cannot share events
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no host memory for the event
 * \retval GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY no device memory for the event
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{briefly, for a driver call}
 * \threads{any thread}
 * \owner{the caller destroys the event}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_event_create(gpumem_device device, const gpumem_event_desc *desc,
                                             gpumem_event *out_event, gpumem_error *error);

/** Wraps an event that other code created. The native event must live until the handle is destroyed.
 *
 * \param device device of the event
 * \param native_event the `CUevent`; not NULL
 * \param flags the flags it was created with, as a sum of GPUMEM_EVENT_ values
 * \param[out] out_event receives the handle
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the handle was written to `*out_event`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer or unknown flag
 * \retval GPUMEM_ERROR_UNSUPPORTED the host backend has no native events
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory for the library's records
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \owner{the caller destroys the handle; the native event stays its creator's}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_event_wrap(gpumem_device device, void *native_event, gpumem_event_flags flags,
                                           gpumem_event *out_event, gpumem_error *error);

/** Destroys an event, or releases a wrapped one. Work that waits for it is not affected.
 *
 * \param event event to destroy; NULL does nothing and succeeds
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the event is destroyed, also if its device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \retval GPUMEM_ERROR_BUSY other processes have imported it, the message says how many; or the driver was busy, again and again
 * \handles
 * \blocking{until calls of other threads that use the event have returned; not for its work}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_event_destroy(gpumem_event event, gpumem_error *error);

/** Information about an event. */
typedef struct gpumem_event_info {
  size_t struct_size;       /**< `sizeof(gpumem_event_info)` of the caller. */
  gpumem_device device;     /**< Its device. */
  uint32_t device_ordinal;  /**< The device's ordinal. */
  uint32_t wrapped;         /**< 1 if gpumem_event_wrap() made the handle. */
  gpumem_event_flags flags; /**< Its flags. */
  void *native_event;       /**< The `CUevent`, for use by other code; NULL on host. */
  char name[64];            /**< As given at creation. */
} gpumem_event_info;

/** Initial value of a gpumem_event_info. */
#define GPUMEM_EVENT_INFO_INIT                            \
  {                                                       \
    sizeof(gpumem_event_info), NULL, 0, 0, 0, NULL, { 0 } \
  }

/** Gets information about an event.
 *
 * \param event event to query
 * \param[in,out] out_info receives the information
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the information was written to `*out_info`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_info` is NULL or has a wrong size
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_event_get_info(gpumem_event event, gpumem_event_info *out_info,
                                               gpumem_error *error);

/** Records the work that is in a stream now. A later record replaces it.
 *
 * \param event event to record
 * \param stream stream of the same device
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the record is enqueued
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT event and stream belong to different devices or instances
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE the stream is being captured, and processes share the event, or the capture has failed; or called
 *         from a host function
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_event_record(gpumem_event event, gpumem_stream stream, gpumem_error *error);

/** Queries whether the work of the latest record is complete. Success counts as observing that work complete.
 *
 * \param event event to query
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the work is complete, or the event was never recorded
 * \retval GPUMEM_NOT_READY work is pending
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE the event was last recorded in a capture; called from a host function; or, on host,
 *         recorded work failed because memory of the caller had been unmapped, which is reported once
 * \retval GPUMEM_ERROR_PEER_GONE the process that exported the event has ended; or, on host, the one that recorded it,
 *         before the work was complete
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_event_query(gpumem_event event, gpumem_error *error);

/** Waits until the work of the latest record is complete. A record that another thread makes during the call is not
 * waited for.
 *
 * \param event event to wait for
 * \param timeout_ns timeout in nanoseconds; 0 queries once, #GPUMEM_TIMEOUT_INFINITE waits without limit
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the work is complete, or the event was never recorded
 * \retval GPUMEM_NOT_READY the timeout expired; nothing changed
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE the event was last recorded in a capture; called from a host function; or, on host,
 *         recorded work failed because memory of the caller had been unmapped, which is reported once
 * \retval GPUMEM_ERROR_PEER_GONE the process that exported the event has ended; or, on host, the one that recorded it,
 *         before the work was complete
 * \handles
 * \blocking{until the work is complete or the timeout expires}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_event_synchronize(gpumem_event event, uint64_t timeout_ns,
                                                  gpumem_error *error);

/** Gets the time between two complete records of one device. Both events must have been created with timing.
 *
 * \param start earlier event
 * \param end later event
 * \param[out] out_nanoseconds receives the time in nanoseconds; negative if `end` was recorded first. On cuda the
 *         resolution is about half a microsecond
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the time was written to `*out_nanoseconds`
 * \retval GPUMEM_NOT_READY one of the records is not complete
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL output, or the events belong to different devices
 * \retval GPUMEM_ERROR_INVALID_STATE one of the events was never recorded, or last in a capture, or has no timing; or called from a
 *         host function
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_event_get_elapsed_time(gpumem_event start, gpumem_event end,
                                                       int64_t *out_nanoseconds, gpumem_error *error);

/** Exports an event that was created with #GPUMEM_EVENT_INTERPROCESS. Exporting it again gives the same bytes.
 *
 * The handle is sent, received and published like one of memory: see share.h. An event that was never recorded counts
 * as complete, so an importer must learn by other means that it was recorded. The export ends when the event is
 * destroyed, or with gpumem_share_revoke().
 *
 * \param event event to export
 * \param[out] out_handle receives the handle
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the handle was written to `*out_handle`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_handle` is NULL
 * \retval GPUMEM_ERROR_UNSUPPORTED the event was created without that flag, wrapped or imported; or the device cannot
 *         share events
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the process has no free descriptor
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{as gpumem_share_export()}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_event_export(gpumem_event event, gpumem_share_handle *out_handle,
                                             gpumem_error *error);

/** Imports an event. Both processes can record it, wait for it and query it; a wait is for the latest record at the
 * time of the call, in whichever process. It has no times.
 *
 * When the exporter has ended, the import is of no more use: #GPUMEM_ERROR_PEER_GONE. When another importer ends before
 * the work of its record is complete, the host backend says so too, by #GPUMEM_ERROR_PEER_GONE; a driver may call the
 * record complete, or never.
 *
 * \param device device whose streams will use it: the one of the exporter's event
 * \param handle handle of an event
 * \param fds its descriptors, as in gpumem_share_import()
 * \param fd_count number of descriptors
 * \param[out] out_event receives the event
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the event was written to `*out_event`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, damaged bytes, the handle of memory or of another backend,
 *         another number of descriptors than belong to it or some of something else, or a device that is not the
 *         event's
 * \retval GPUMEM_ERROR_INVALID_STATE this process exported it: use the event itself; or called from a host function
 * \retval GPUMEM_ERROR_STALE_HANDLE the event was destroyed, or the export has ended
 * \retval GPUMEM_ERROR_PEER_GONE the exporter has ended
 * \retval GPUMEM_ERROR_PERMISSION_DENIED the exporter refuses this user
 * \retval GPUMEM_ERROR_BUSY the exporter did not answer in time
 * \retval GPUMEM_ERROR_UNSUPPORTED the device cannot share events, the exporter cannot be reached, or the handle is of
 *         a newer version of the library
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the process has no free descriptor
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{until the exporter has answered, and for driver calls}
 * \threads{any thread}
 * \owner{the caller destroys the event}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_event_import(gpumem_device device, const gpumem_share_handle *handle,
                                             const int32_t *fds, uint32_t fd_count, gpumem_event *out_event,
                                             gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
