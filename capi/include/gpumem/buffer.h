/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file buffer.h
 * Buffers that grow and shrink in place, and that can sleep.
 *
 * A buffer reserves addresses once and maps physical memory behind one another as it grows. Its address stays the same, what
 * lies in it is never copied or touched, and work on it may be in flight while it grows. A buffer that sleeps gives its
 * memory back and keeps its address; its content is kept on the host if wished. It is built from a gpumem_range and
 * gpumem_physical; use these for anything that a buffer does not do.
 *
 * Calls on one buffer that change it run one after the other. What a call that fails has made and the driver refuses to take back
 * stays counted in the statistics until a later call that changes a buffer, or closing the instance, releases it.
 *
 * **Sleep.** gpumem_buffer_sleep() is for one buffer, gpumem_group_sleep() for many. It calls the callbacks of the buffers, waits
 * for work on them, refuses if a registration is still noted, copies what is to be kept, and gives the memory back. Waking makes
 * new memory at the old addresses, copies back, and calls the callbacks. Both do all or nothing.
 *
 * Once its callback has been called and until it is awake again, nobody else uses a buffer: copies, fills and value operations of
 * any thread fail with #GPUMEM_ERROR_INVALID_STATE, and those that began before are waited for. The library does not see kernels,
 * graphs, the CPU and other processes. Keep these off: what they write may be lost.
 *
 * **A sleep that fails** loses no content:
 * - Content that is kept is in its store before its memory is freed. A buffer that was freed already is woken from there.
 * - Content that is not kept stays in its memory until all buffers of the call are unmapped. If one cannot be, the others get the
 *   same memory back.
 * - A buffer that cannot be woken for that is #GPUMEM_BUFFER_STATE_FAILED, and keeps its store or its memory until it is woken or
 *   destroyed.
 *
 * There are two exceptions, and the message names them: a file that can no longer be read (#GPUMEM_ERROR_CONTENT_LOST), and a group
 * with ordinary allocations (#GPUMEM_BUFFER_COPYABLE) whose content is not kept. These are freed one after the other; if what comes
 * next cannot be given back, those before it get new memory, zeroed or indeterminate as was asked for.
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
/** Where the device has no virtual memory management, be one ordinary allocation instead of refusing: the buffer grows by
 * allocating, copying and freeing, and its address changes whenever its memory does. A resize that does so waits for all work
 * of the device. Such a buffer has no range, and no access but the default. */
#define GPUMEM_BUFFER_COPYABLE UINT64_C(0x2)
/** Whenever the buffer grows, add at least an eighth of its capacity: growing by small steps then makes a number of blocks that
 * is logarithmic in the size. Where there is not so much memory, or not so many addresses, only what is missing is added.
 * gpumem_buffer_set_capacity() with 0 gives back the blocks that are not needed. */
#define GPUMEM_BUFFER_GEOMETRIC UINT64_C(0x4)
/** Reserve all the addresses that are asked for, or fail with #GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE: without it, fewer will do. An
 * ordinary allocation (#GPUMEM_BUFFER_COPYABLE) reserves none. */
#define GPUMEM_BUFFER_RESERVE_ALL UINT64_C(0x8)

/** Options for a buffer. */
typedef struct gpumem_buffer_desc {
  size_t struct_size; /**< `sizeof(gpumem_buffer_desc)` of the caller. */
  uint64_t size;      /**< Bytes to begin with; may be 0. */
  /** Bytes of addresses to reserve, rounded up; 0 means as much as the device, or the host, has memory, but at most a 64th of
   * the addresses that the instance has not reserved of 128 TiB. If so much cannot be reserved, half of it is tried, and so on
   * down to `size`, unless `flags` has #GPUMEM_BUFFER_RESERVE_ALL. */
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
  gpumem_group group; /**< The group that it belongs to while it lives, of the same instance; or NULL. */
  /** What it is in its group, such as `"weights"`: up to 63 bytes without ASCII control characters, or NULL; copied. */
  const char *tag;
} gpumem_buffer_desc;

/** Initial value of a gpumem_buffer_desc. */
#define GPUMEM_BUFFER_DESC_INIT \
  { sizeof(gpumem_buffer_desc), 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0, NULL, NULL, NULL }

/** Makes a buffer. Its contents are indeterminate.
 *
 * \param device device of the memory; for host memory the device that may access it
 * \param desc options
 * \param[out] out_buffer receives the buffer
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the buffer was written to `*out_buffer`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, a size above 2^63-1, a reservation below the size, another location, no
 *         such NUMA node, an unknown flag or handle type, a group of another instance, a tag without a group, or entries of
 *         access as gpumem_range_set_access() refuses them
 * \retval GPUMEM_ERROR_UNSUPPORTED the device has no virtual memory management, or a required property, handle type or
 *         access cannot be granted here; the message names the capability
 * \retval GPUMEM_ERROR_PERMISSION_DENIED see gpumem_physical_create()
 * \retval GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE not even `size` bytes of addresses can be reserved, or, with
 *         #GPUMEM_BUFFER_RESERVE_ALL, not all of `reserve`
 * \retval GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY the device has not enough memory
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY the system has not enough memory
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the process has reached a limit: of open files or of mappings, say
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

/** Frees a buffer, awake or asleep. All work on it must have been observed complete. If the driver refuses to free a part of it, the
 * call fails, and the next one goes on with the rest.
 *
 * \param buffer buffer to destroy; NULL does nothing and succeeds
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the buffer is destroyed, also if its device is lost
 * \retval GPUMEM_ERROR_BUSY strict host backend: work that uses the buffer was not observed complete; called from a callback, as in
 *         gpumem_progress_function; or the driver was busy, again and again
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{until calls of other threads that use the buffer have returned, and for driver calls}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_buffer_destroy(gpumem_buffer buffer, gpumem_error *error);

/** Where a buffer stands: one of the GPUMEM_BUFFER_STATE_ values. */
typedef int32_t gpumem_buffer_state;
#define GPUMEM_BUFFER_STATE_AWAKE 0  /**< It has its memory. */
#define GPUMEM_BUFFER_STATE_ASLEEP 1 /**< It has given its memory back. */
/** It is asleep against the caller's wish: it could not be woken, not even to undo a call that failed. Its
 * content is still kept, in the store or in its memory, unless that call said #GPUMEM_ERROR_CONTENT_LOST. Wake it again, or
 * destroy it. */
#define GPUMEM_BUFFER_STATE_FAILED 2

/** Information about a buffer. */
typedef struct gpumem_buffer_info {
  size_t struct_size; /**< `sizeof(gpumem_buffer_info)` of the caller. */
  void *base;         /**< First byte. */
  /** Bytes, as last asked for: the content. The bytes between them and `capacity` can be used too, but are not kept: not by
   * sleep, nor by a buffer that grows by copying, and shrinking may give their memory back. */
  uint64_t size;
  uint64_t capacity;      /**< Bytes that have memory, or had when the buffer went to sleep. */
  uint64_t reserved_size; /**< Bytes of addresses: what the buffer can grow to in place. */
  uint64_t granularity;   /**< Unit in which it grows, in bytes. */
  uint64_t block_count;   /**< Blocks of physical memory that it is made of. */
  uint64_t
      generation; /**< How often it has woken or moved: what other code derived from it before is out of date. */
  uint64_t stored_size; /**< Bytes of content that are kept while it sleeps. */
  uint64_t
      store_capacity; /**< Bytes of host memory or file that it has for its content, prepared, in use or kept. */
  uint64_t ahead;     /**< As set by gpumem_buffer_set_ahead(). */
  uint64_t registrations;    /**< Number of registrations noted. */
  gpumem_location location;  /**< Where its memory lies. */
  int32_t location_id;       /**< Ordinal of the device or NUMA node; -1 if it has none. */
  gpumem_device device;      /**< Device given at creation. */
  uint32_t device_ordinal;   /**< Its ordinal. */
  gpumem_buffer_state state; /**< Where it stands. */
  /** The range that it is mapped in, which only the buffer may change; NULL if it is an ordinary allocation. */
  gpumem_range range;
  uint64_t buffer_id; /**< Number of the reservation or allocation, unique in the process and never reused. */
  gpumem_group group; /**< As given at creation. */
  char name[64];      /**< As given at creation. */
  char tag[64];       /**< As given at creation. */
} gpumem_buffer_info;

/** Initial value of a gpumem_buffer_info. */
#define GPUMEM_BUFFER_INFO_INIT                                                                             \
  {                                                                                                         \
    sizeof(gpumem_buffer_info), NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0, 0, NULL, 0, NULL, {0}, { \
      0                                                                                                     \
    }                                                                                                       \
  }

/** Gets information about a buffer. It makes no driver call, works after the device was lost, and does not wait for a call that
 * changes the buffer.
 *
 * \param buffer buffer to query
 * \param[in,out] out_info receives the information
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the information was written to `*out_info`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_info` is NULL or has a wrong size
 * \handles
 * \blocking{no}
 * \threads{any thread, callbacks and host functions included}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_buffer_get_info(gpumem_buffer buffer, gpumem_buffer_info *out_info,
                                                gpumem_error *error);

/** Grows or shrinks a buffer. The bytes that remain are not touched. If the call fails, the buffer is as it was.
 *
 * Growing maps one more block, as large as what is missing (or larger, #GPUMEM_BUFFER_GEOMETRIC). Work on the buffer may go on meanwhile, unless it must move
 * (#GPUMEM_BUFFER_MOVABLE, #GPUMEM_BUFFER_COPYABLE). Shrinking gives back each block that lies whole behind the new size; all work that uses these must
 * have been observed complete. A resize that copies (#GPUMEM_BUFFER_COPYABLE) waits for all work of the device.
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
 * \retval GPUMEM_ERROR_INVALID_STATE the buffer is asleep; or called from a host function, or from a callback of the
 *         buffer
 * \retval GPUMEM_ERROR_BUSY strict host backend: work that uses what is to be given back, or the buffer that is to move, was not
 *         observed complete (one that copies waits instead); or the driver was busy, again and again
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the process has reached a limit: of open files or of mappings, say
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{for driver calls: longer for more bytes; if it copies, also for work of the device}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_buffer_resize(gpumem_buffer buffer, uint64_t size, gpumem_error *error);

/** Gives a buffer memory ahead of its growth, or takes back what is unused. Its size stays. As gpumem_buffer_resize() otherwise.
 *
 * \param buffer buffer to change
 * \param capacity bytes that shall have memory, at least the size of the buffer; 0 means no more whole blocks than the size needs
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS at least so many bytes have memory
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT the capacity is above 2^63-1, or below the size and not 0
 * \retval GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE see gpumem_buffer_resize()
 * \retval GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY see gpumem_buffer_resize()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY see gpumem_buffer_resize()
 * \retval GPUMEM_ERROR_INVALID_STATE see gpumem_buffer_resize()
 * \retval GPUMEM_ERROR_BUSY see gpumem_buffer_resize()
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED see gpumem_buffer_resize()
 * \retval GPUMEM_ERROR_DEVICE_LOST see gpumem_buffer_resize()
 * \retval GPUMEM_ERROR_SYMBOL_MISSING see gpumem_buffer_resize()
 * \handles
 * \blocking{as gpumem_buffer_resize()}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_buffer_set_capacity(gpumem_buffer buffer, uint64_t capacity,
                                                    gpumem_error *error);

/** Has memory made ahead of the growth of a buffer, on a thread of the library: as soon as less than half of `bytes` of it lie
 * behind the size, more is mapped, up to `bytes`. A gpumem_buffer_resize() that needs no more than what is there makes no driver
 * call and waits for nobody.
 *
 * Nothing is made ahead while the buffer sleeps, beyond its reservation, or while there is no memory for it; then the next resize
 * makes what it needs by itself, and tells what is wrong.
 *
 * \param buffer buffer to change
 * \param bytes bytes to keep ahead; 0, as at creation, ends it and leaves what is there
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the value is set
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT more than 2^63-1 bytes
 * \retval GPUMEM_ERROR_UNSUPPORTED the buffer is an ordinary allocation (#GPUMEM_BUFFER_COPYABLE)
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory for the record, or the system provides no thread
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function, or from a callback of the buffer
 * \handles
 * \blocking{until calls of other threads that change the buffer have returned}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_buffer_set_ahead(gpumem_buffer buffer, uint64_t bytes, gpumem_error *error);

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
 * \retval GPUMEM_ERROR_INVALID_STATE the buffer is asleep; or called from a host function, or from a callback of the
 *         buffer
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
#define GPUMEM_CONTENT_FILE 4     /**< Kept in a file without a name, which is gone with the process. */

/** Called by a call that sleeps, wakes or copies a file, on its thread, before the first byte and after each piece; not at all if
 * there are no bytes. A piece has at most 64 MiB if a buffer's content is copied, and the whole buffer if it is not kept; for a
 * file it has about 64 MiB, or more if other threads are faster than the calls.
 *
 * During a sleep or a waking it may do what gpumem_before_sleep_function may. During gpumem_copy_file() it may call every
 * function, also gpumem_copy_file(), but must not wait for a thread that frees or unmaps the memory that is being copied; doing
 * so itself fails with #GPUMEM_ERROR_INVALID_STATE. No call waits there for a call of another thread that is in a callback too, or
 * waits itself, since each could wait for the other: it is #GPUMEM_ERROR_BUSY, and changes nothing; call after the function has
 * returned. Closing an instance fails in either. It must return: it must not throw or end its thread, and a child process that it
 * forks must not return from it.
 *
 * \param user_data as in the descriptor
 * \param done bytes that are done; of a file in any order, see `copied` in gpumem_copy_file_info
 * \param total bytes in all
 * \return 0 to go on; anything else ends the call with #GPUMEM_ERROR_CANCELLED, and what it did is undone, but for bytes of a
 *         file that are copied. Once all bytes are done the value means nothing */
typedef int32_t(GPUMEM_CALL *gpumem_progress_function)(void *user_data, uint64_t done, uint64_t total);

/** How to sleep: a sum of GPUMEM_SLEEP_ values. */
typedef uint64_t gpumem_sleep_flags;
/** All work on the buffers was observed complete: wait for nothing. */
#define GPUMEM_SLEEP_IDLE UINT64_C(0x1)

/** Options for sleeping. */
typedef struct gpumem_sleep_desc {
  size_t struct_size;       /**< `sizeof(gpumem_sleep_desc)` of the caller. */
  gpumem_content content;   /**< What happens to the content. */
  uint32_t reserved;        /**< 0. */
  gpumem_sleep_flags flags; /**< A sum of GPUMEM_SLEEP_ values. */
  /** For #GPUMEM_CONTENT_FILE: directory of the file, by its path; otherwise NULL. */
  const char *directory;
  /** For a group: only the buffers with this tag; NULL or an empty one means all. For one buffer NULL. */
  const char *tag;
  /** Work to wait for: all that is in this stream, and what this event marks. With neither, and without #GPUMEM_SLEEP_IDLE, the call
   * waits for all work of each device that may access the buffers, whoever enqueued it. It must not do so while a stream of
   * these is being captured. */
  gpumem_stream stream;
  gpumem_event event;                /**< See `stream`. */
  gpumem_progress_function progress; /**< Progress and cancellation, or NULL. */
  void *user_data;                   /**< Passed to `progress`. */
} gpumem_sleep_desc;

/** Initial value of a gpumem_sleep_desc. */
#define GPUMEM_SLEEP_DESC_INIT \
  { sizeof(gpumem_sleep_desc), 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL }

/** Puts a buffer to sleep: its memory is given back, its addresses stay reserved. If the call fails, the buffer is awake, with
 * its content, whatever was to happen to that; or #GPUMEM_BUFFER_STATE_FAILED, with its content, if the driver refuses to wake it.
 *
 * Whoever else uses its physical memory keeps that alive: exports, imports, retained handles and other mappings. It is not freed
 * then, the buffer wakes with other memory, and what they write meanwhile does not come to it. The library knows of them what
 * gpumem_buffer_note_registration() told it.
 *
 * \param buffer buffer to put to sleep
 * \param desc options; NULL means all defaults
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the buffer sleeps
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT an unknown content or flag, a directory without #GPUMEM_CONTENT_FILE, no directory with it or
 *         something else than a directory, a tag, a stream or event of another instance, or #GPUMEM_SLEEP_IDLE with a stream or
 *         an event
 * \retval GPUMEM_ERROR_NOT_FOUND there is no such directory
 * \retval GPUMEM_ERROR_INVALID_STATE the buffer sleeps already; a stream is being captured; the event was never recorded; or called
 *         from a host function, or from a callback of the buffer
 * \retval GPUMEM_ERROR_NO_ACCESS the device has no access to the buffer, and so cannot save it
 * \retval GPUMEM_ERROR_BUSY registrations are noted, which the message names; a callback refused; called from a callback, as in
 *         gpumem_progress_function; the driver was busy, again and again; or strict host backend: work that uses the buffer
 *         was not observed complete
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the pin budget is used up, the disk is full, or the file reaches a limit
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY the system has not enough memory for the content
 * \retval GPUMEM_ERROR_PERMISSION_DENIED no file may be made in the directory
 * \retval GPUMEM_ERROR_CANCELLED the progress function ended the call
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \handles
 * \blocking{for the work, until the content is copied, and for driver calls}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_buffer_sleep(gpumem_buffer buffer, const gpumem_sleep_desc *desc,
                                             gpumem_error *error);

/** Options for waking. */
typedef struct gpumem_wake_desc {
  size_t struct_size; /**< `sizeof(gpumem_wake_desc)` of the caller. */
  /** Bytes of the store that each buffer keeps for its next sleep, rounded up; 0 frees it, UINT64_MAX keeps all. */
  uint64_t keep;
  const char *tag;                   /**< As in gpumem_sleep_desc. */
  gpumem_progress_function progress; /**< Progress and cancellation, or NULL. */
  void *user_data;                   /**< Passed to `progress`. */
} gpumem_wake_desc;

/** Initial value of a gpumem_wake_desc. */
#define GPUMEM_WAKE_DESC_INIT \
  { sizeof(gpumem_wake_desc), 0, NULL, NULL, NULL }

/** Wakes a buffer: at the same address, with its size, the access of each processor, its properties, and the content that was kept.
 * An ordinary allocation (#GPUMEM_BUFFER_COPYABLE) gets a new address. If the call fails, the buffer sleeps on, and nothing is
 * lost.
 *
 * \param buffer buffer to wake
 * \param desc options; NULL means all defaults
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the buffer is awake
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT a tag, or a wrong size of `desc`
 * \retval GPUMEM_ERROR_INVALID_STATE the buffer does not sleep; or called from a host function, or from a callback of the buffer
 * \retval GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY the device has not enough memory
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY the system has not enough memory
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the process has reached a limit, or the pin budget is used up: content in a file is copied through pinned memory
 * \retval GPUMEM_ERROR_UNSUPPORTED a required property cannot be granted any more
 * \retval GPUMEM_ERROR_BUSY the driver was busy, again and again
 * \retval GPUMEM_ERROR_CANCELLED the progress function ended the call
 * \retval GPUMEM_ERROR_CONTENT_LOST the file can no longer be read: another program cut it short, or the disk failed
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \handles
 * \blocking{until the content is copied back, and for driver calls; freeing pinned memory (`keep`) may wait for all work of the device}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_buffer_wake(gpumem_buffer buffer, const gpumem_wake_desc *desc,
                                            gpumem_error *error);

/** Options for preparing. */
typedef struct gpumem_prepare_desc {
  size_t struct_size; /**< `sizeof(gpumem_prepare_desc)` of the caller. */
  /** What to prepare for. #GPUMEM_CONTENT_ZERO and #GPUMEM_CONTENT_DROP need no store: an old one is freed. */
  gpumem_content content;
  uint32_t reserved;     /**< 0. */
  const char *directory; /**< As in gpumem_sleep_desc. */
  const char *tag;       /**< As in gpumem_sleep_desc. */
  /** 0: the call returns once all is prepared. Otherwise it returns at once, and a thread of the library does it, at most so
   * many bytes a second, in pieces of 2 MiB or more. */
  uint64_t bytes_per_second;
} gpumem_prepare_desc;

/** Initial value of a gpumem_prepare_desc. */
#define GPUMEM_PREPARE_DESC_INIT \
  { sizeof(gpumem_prepare_desc), 0, 0, NULL, NULL, 0 }

/** Makes the store for the content of a buffer ahead of its sleep, as large as the buffer is now: allocated, pinned and touched, so
 * that gpumem_buffer_sleep() with the same content only copies. A store for another content, or in another directory, is replaced.
 *
 * What a thread of the library could not prepare, the sleep makes, and tells what is wrong. `store_capacity` of gpumem_buffer_info
 * says how far it is.
 *
 * \param buffer buffer to prepare
 * \param desc options; NULL means all defaults
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the store is there, or on its way
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT see gpumem_buffer_sleep()
 * \retval GPUMEM_ERROR_NOT_FOUND see gpumem_buffer_sleep()
 * \retval GPUMEM_ERROR_INVALID_STATE the buffer is asleep; or called from a host function, or from a callback of the buffer
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED see gpumem_buffer_sleep()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY see gpumem_buffer_sleep(); or the system provides no thread
 * \retval GPUMEM_ERROR_PERMISSION_DENIED see gpumem_buffer_sleep()
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \handles
 * \blocking{until all is prepared, or, with a pace, until calls of other threads that change the buffer have returned}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_buffer_prepare(gpumem_buffer buffer, const gpumem_prepare_desc *desc,
                                               gpumem_error *error);

/** Notes that something outside the library holds the memory of a buffer: a network card, a communicator, a process that imported it.
 * The buffer does not sleep before gpumem_buffer_forget_registration(). Nothing else is kept from happening: it can be shrunk, moved
 * and destroyed.
 *
 * \param buffer buffer whose memory is registered
 * \param name what holds it, for messages: up to 63 bytes without ASCII control characters
 * \param[out] out_registration receives a number for gpumem_buffer_forget_registration(), never 0 and never used again
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the registration is noted
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, or a name that is empty, too long or has control characters
 * \retval GPUMEM_ERROR_INVALID_STATE the buffer is asleep
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory for the record
 * \handles
 * \blocking{no}
 * \threads{any thread, callbacks of the buffer and host functions included}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_buffer_note_registration(gpumem_buffer buffer, const char *name,
                                                         uint64_t *out_registration, gpumem_error *error);

/** Ends what gpumem_buffer_note_registration() began.
 *
 * \param buffer buffer that was named
 * \param registration number that was received
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the registration is forgotten
 * \retval GPUMEM_ERROR_NOT_FOUND the buffer has no registration of this number
 * \handles
 * \blocking{no}
 * \threads{any thread, callbacks of the buffer and host functions included}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_buffer_forget_registration(gpumem_buffer buffer, uint64_t registration,
                                                           gpumem_error *error);

/** Called before a buffer sleeps, on the thread that puts it to sleep: the time to end registrations and to stop using it. It may
 * ask for information about the buffer, and note and forget registrations; it must not change the buffer otherwise, or destroy
 * it. What changes another buffer or group does not wait there: it is #GPUMEM_ERROR_BUSY if another thread changes that too. It
 * must return: it must not throw or end its thread, and a child process that it forks must not return from it.
 *
 * \param user_data as in the struct of callbacks
 * \param buffer the buffer
 * \return 0 to let it sleep; anything else refuses: the call fails with #GPUMEM_ERROR_BUSY. It must have undone then what it did:
 *         gpumem_after_wake_function is called for the others only */
typedef int32_t(GPUMEM_CALL *gpumem_before_sleep_function)(void *user_data, gpumem_buffer buffer);

/** Called after a buffer has woken, and after a sleep that it had been told of did not happen: the time to renew registrations. What
 * it may do is as before sleeping.
 *
 * \param user_data as in the struct of callbacks
 * \param buffer the buffer
 * \param generation number of its memory, as in gpumem_buffer_info: unchanged if it has not slept */
typedef void(GPUMEM_CALL *gpumem_after_wake_function)(void *user_data, gpumem_buffer buffer,
                                                      uint64_t generation);

/** What is called when a buffer sleeps and wakes. */
typedef struct gpumem_buffer_callbacks {
  size_t struct_size;                        /**< `sizeof(gpumem_buffer_callbacks)` of the caller. */
  gpumem_before_sleep_function before_sleep; /**< Or NULL. */
  gpumem_after_wake_function after_wake;     /**< Or NULL. */
  void *user_data;                           /**< Passed to both. */
} gpumem_buffer_callbacks;

/** Initial value of a gpumem_buffer_callbacks. */
#define GPUMEM_BUFFER_CALLBACKS_INIT \
  { sizeof(gpumem_buffer_callbacks), NULL, NULL, NULL }

/** Sets the callbacks of a buffer. When the call has returned, the ones before are not called any more.
 *
 * \param buffer buffer to change
 * \param callbacks what to call from now on; NULL means nothing
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the callbacks are set
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT a wrong size of `callbacks`
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function, or from a callback of the buffer
 * \handles
 * \blocking{until calls of other threads that change the buffer have returned}
 * \threads{any thread}
 * \owner{`user_data` belongs to the caller, and must live until other callbacks are set or the buffer is destroyed}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_buffer_set_callbacks(gpumem_buffer buffer,
                                                     const gpumem_buffer_callbacks *callbacks,
                                                     gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
