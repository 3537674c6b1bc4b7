/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file event.h
 * Points in streams that can be waited for and timed.
 */
#ifndef GPUMEM_EVENT_H
#define GPUMEM_EVENT_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Properties of an event: a sum of GPUMEM_EVENT_ values. */
typedef uint32_t gpumem_event_flags;
#define GPUMEM_EVENT_DISABLE_TIMING 0x1u /**< Takes no time stamp; cheaper. */
/** gpumem_event_synchronize() gives up the processor while it waits. */
#define GPUMEM_EVENT_BLOCKING_SYNC 0x2u

/** How an event shall be. */
typedef struct gpumem_event_desc {
  size_t struct_size;       /**< `sizeof(gpumem_event_desc)` of the caller. */
  gpumem_event_flags flags; /**< Sum of GPUMEM_EVENT_ values. */
  uint32_t reserved;        /**< 0. */
  const char *name;         /**< For messages and reports, up to 63 bytes, or NULL; copied. */
} gpumem_event_desc;

/** Initial value of a gpumem_event_desc. */
#define GPUMEM_EVENT_DESC_INIT \
  { sizeof(gpumem_event_desc), 0, 0, NULL }

/** Sets up a gpumem_event_desc as #GPUMEM_EVENT_DESC_INIT does.
 *
 * \param[out] out_desc struct to set up; NULL does nothing
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API void gpumem_event_desc_init(gpumem_event_desc *out_desc);

/** Creates an event. Until it is recorded it counts as complete.
 *
 * \param device device whose streams it will be recorded in
 * \param desc how it shall be, or NULL for defaults
 * \param[out] out_event receives the event
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS done
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL output, wrong size or unknown flag
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory for it
 * \retval GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY no device memory for it
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{briefly, for a driver call}
 * \threads{any thread}
 * \owner{the caller destroys the event}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_event_create(gpumem_device device, const gpumem_event_desc *desc,
                                             gpumem_event *out_event, gpumem_error *error);

/** Adopts an event that other code made. It stays its maker's, who must keep it until the handle is
 * destroyed.
 *
 * \param device device of the event
 * \param native_event the `CUevent`; not NULL
 * \param flags the flags it was made with, as a sum of GPUMEM_EVENT_ values
 * \param[out] out_event receives the handle
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS done
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT a NULL pointer or unknown flag
 * \retval GPUMEM_ERROR_UNSUPPORTED the host backend has no native events
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory for the library's records
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \owner{the caller destroys the handle; the native event stays its maker's}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_event_wrap(gpumem_device device, void *native_event, gpumem_event_flags flags,
                                           gpumem_event *out_event, gpumem_error *error);

/** Destroys an event, or lets go of an adopted one. Work that waits for it goes on as it would have.
 *
 * \param event event to destroy; NULL does nothing and succeeds
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS gone; also when its device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{until calls of other threads that use the event have returned; not for its work}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_event_destroy(gpumem_event event, gpumem_error *error);

/** What is known about an event. */
typedef struct gpumem_event_info {
  size_t struct_size;       /**< `sizeof(gpumem_event_info)` of the caller. */
  gpumem_device device;     /**< Its device. */
  uint32_t device_ordinal;  /**< The device's number. */
  uint32_t wrapped;         /**< 1 if it was adopted by gpumem_event_wrap(). */
  gpumem_event_flags flags; /**< Flags granted. */
  uint32_t reserved;        /**< 0. */
  void *native_event;       /**< The `CUevent`, for use by other code; NULL on host. */
  char name[64];            /**< As given at creation. */
} gpumem_event_info;

/** Initial value of a gpumem_event_info. */
#define GPUMEM_EVENT_INFO_INIT                               \
  {                                                          \
    sizeof(gpumem_event_info), NULL, 0, 0, 0, 0, NULL, { 0 } \
  }

/** Sets up a gpumem_event_info as #GPUMEM_EVENT_INFO_INIT does.
 *
 * \param[out] out_info struct to set up; NULL does nothing
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API void gpumem_event_info_init(gpumem_event_info *out_info);

/** What is known about an event.
 *
 * \param event event to ask
 * \param[in,out] out_info receives the answer
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the answer was written
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_info` is NULL or its size wrong
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_event_get_info(gpumem_event event, gpumem_event_info *out_info,
                                               gpumem_error *error);

/** Captures the work that is in a stream now; a later record replaces the capture.
 *
 * \param event event to record
 * \param stream stream of the same device
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS recorded
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT event and stream belong to different devices or instances
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE the stream is being captured, or called from a host function
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_event_record(gpumem_event event, gpumem_stream stream, gpumem_error *error);

/** Whether the work of the latest record is complete. Success is an observation with the same rights as
 * gpumem_event_synchronize().
 *
 * \param event event to ask
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS complete, or never recorded
 * \retval GPUMEM_NOT_READY work is pending
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_event_query(gpumem_event event, gpumem_error *error);

/** Waits until the work of the record that is the latest at the call is complete.
 *
 * \param event event to wait for
 * \param timeout_ns time limit in nanoseconds; 0 asks once, #GPUMEM_TIMEOUT_INFINITE waits without limit
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS complete, or never recorded
 * \retval GPUMEM_NOT_READY the time ran out; nothing changed
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{until the work is complete or the time is over}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_event_synchronize(gpumem_event event, uint64_t timeout_ns,
                                                  gpumem_error *error);

/** Time between two recorded, complete events of one device that were made with timing.
 *
 * \param start earlier event
 * \param end later event
 * \param[out] out_milliseconds receives the time; the resolution is about half a microsecond
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the time was written
 * \retval GPUMEM_NOT_READY one of them is not complete
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL output, or the two belong to different devices
 * \retval GPUMEM_ERROR_INVALID_STATE one was never recorded or has no timing, or called from a host function
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_event_get_elapsed_time(gpumem_event start, gpumem_event end,
                                                       float *out_milliseconds, gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
