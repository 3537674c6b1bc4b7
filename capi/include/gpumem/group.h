/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file group.h
 * Groups of buffers that sleep and wake as one.
 *
 * A buffer enters a group when it is created (`group` of gpumem_buffer_desc) and leaves it when it is destroyed. Its tag says what it
 * is there: a call may be for all buffers of the group or for those with one tag, in the order in which they were created.
 */
#ifndef GPUMEM_GROUP_H
#define GPUMEM_GROUP_H

#include "buffer.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Options for a group. */
typedef struct gpumem_group_desc {
  size_t struct_size; /**< `sizeof(gpumem_group_desc)` of the caller. */
  const char *
      name; /**< For messages and reports, up to 63 bytes without ASCII control characters, or NULL; copied. */
} gpumem_group_desc;

/** Initial value of a gpumem_group_desc. */
#define GPUMEM_GROUP_DESC_INIT \
  { sizeof(gpumem_group_desc), NULL }

/** Makes an empty group.
 *
 * \param instance instance of the group
 * \param desc options; NULL means all defaults
 * \param[out] out_group receives the group
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the group was written to `*out_group`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, or a bad name
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory for the record
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \owner{the caller destroys the group}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_group_create(gpumem_instance instance, const gpumem_group_desc *desc,
                                             gpumem_group *out_group, gpumem_error *error);

/** Destroys a group. Its buffers must have been destroyed.
 *
 * \param group group to destroy; NULL does nothing and succeeds
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the group is destroyed
 * \retval GPUMEM_ERROR_BUSY a buffer belongs to it
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function, or from a callback during a call for the group
 * \handles
 * \blocking{until calls of other threads that use the group have returned}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_group_destroy(gpumem_group group, gpumem_error *error);

/** Information about a group, or about its buffers with one tag. */
typedef struct gpumem_group_info {
  size_t struct_size;      /**< `sizeof(gpumem_group_info)` of the caller. */
  uint64_t buffer_count;   /**< Number of buffers. */
  uint64_t awake_count;    /**< How many are #GPUMEM_BUFFER_STATE_AWAKE. */
  uint64_t asleep_count;   /**< How many are #GPUMEM_BUFFER_STATE_ASLEEP. */
  uint64_t failed_count;   /**< How many are #GPUMEM_BUFFER_STATE_FAILED. */
  uint64_t size;           /**< Sum of their sizes in bytes. */
  uint64_t stored_size;    /**< Sum of the bytes of content that are kept. */
  uint64_t store_capacity; /**< Sum of the bytes of host memory or file for content. */
  char name[64];           /**< As given at creation. */
} gpumem_group_info;

/** Initial value of a gpumem_group_info. */
#define GPUMEM_GROUP_INFO_INIT                            \
  {                                                       \
    sizeof(gpumem_group_info), 0, 0, 0, 0, 0, 0, 0, { 0 } \
  }

/** Gets information about a group. It makes no driver call.
 *
 * \param group group to query
 * \param tag only the buffers with this tag; NULL or an empty one means all
 * \param[in,out] out_info receives the information
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the information was written to `*out_info`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_info` is NULL or has a wrong size, or a bad tag
 * \handles
 * \blocking{no}
 * \threads{any thread, callbacks and host functions included}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_group_get_info(gpumem_group group, const char *tag,
                                               gpumem_group_info *out_info, gpumem_error *error);

/** Puts the buffers of a group to sleep as one. Copies and the freeing of memory overlap. Buffers that sleep already stay as they are, but
 * for those that have failed and hold their memory: these are put to sleep again.
 *
 * If the call fails, each buffer that it put to sleep is woken again, with its content, also if that was to be dropped or zeroed; `buffer.h`
 * tells of ordinary allocations. One for which there is no memory any more stays asleep with its content,
 * #GPUMEM_BUFFER_STATE_FAILED; the message says how many.
 *
 * \param group group to put to sleep
 * \param desc options; NULL means all defaults
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS all of the buffers sleep, also if there is none
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT see gpumem_buffer_sleep(); a bad tag
 * \retval GPUMEM_ERROR_NOT_FOUND see gpumem_buffer_sleep()
 * \retval GPUMEM_ERROR_INVALID_STATE see gpumem_buffer_sleep()
 * \retval GPUMEM_ERROR_NO_ACCESS see gpumem_buffer_sleep()
 * \retval GPUMEM_ERROR_BUSY see gpumem_buffer_sleep()
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED see gpumem_buffer_sleep()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY see gpumem_buffer_sleep()
 * \retval GPUMEM_ERROR_PERMISSION_DENIED see gpumem_buffer_sleep()
 * \retval GPUMEM_ERROR_CANCELLED the progress function ended the call
 * \retval GPUMEM_ERROR_DEVICE_LOST a device is lost
 * \handles
 * \blocking{for the work, until the content is copied, and for driver calls}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_group_sleep(gpumem_group group, const gpumem_sleep_desc *desc,
                                            gpumem_error *error);

/** Wakes the buffers of a group as one. Copies and the making of memory overlap. Buffers that are awake stay as they are. If the call
 * fails, those that it woke sleep again, and nothing is lost.
 *
 * \param group group to wake
 * \param desc options; NULL means all defaults
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS all of the buffers are awake, also if there is none
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT a bad tag, or a wrong size of `desc`
 * \retval GPUMEM_ERROR_INVALID_STATE see gpumem_buffer_wake()
 * \retval GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY see gpumem_buffer_wake()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY see gpumem_buffer_wake()
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED see gpumem_buffer_wake()
 * \retval GPUMEM_ERROR_UNSUPPORTED see gpumem_buffer_wake()
 * \retval GPUMEM_ERROR_BUSY see gpumem_buffer_wake()
 * \retval GPUMEM_ERROR_CANCELLED the progress function ended the call
 * \retval GPUMEM_ERROR_CONTENT_LOST see gpumem_buffer_wake()
 * \retval GPUMEM_ERROR_DEVICE_LOST a device is lost
 * \handles
 * \blocking{as gpumem_buffer_wake()}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_group_wake(gpumem_group group, const gpumem_wake_desc *desc,
                                           gpumem_error *error);

/** Prepares the stores of the buffers of a group that are awake, as gpumem_buffer_prepare() does. With a pace, the whole group keeps to
 * it. On failure the stores that were made stay.
 *
 * \param group group to prepare
 * \param desc options; NULL means all defaults
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the stores are there, or on their way
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT see gpumem_buffer_prepare(); a bad tag
 * \retval GPUMEM_ERROR_NOT_FOUND see gpumem_buffer_prepare()
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function, or from a callback of one of the buffers
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED see gpumem_buffer_prepare()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY see gpumem_buffer_prepare()
 * \retval GPUMEM_ERROR_PERMISSION_DENIED see gpumem_buffer_prepare()
 * \retval GPUMEM_ERROR_DEVICE_LOST a device is lost
 * \handles
 * \blocking{as gpumem_buffer_prepare()}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_group_prepare(gpumem_group group, const gpumem_prepare_desc *desc,
                                              gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
