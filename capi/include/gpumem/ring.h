/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file ring.h
 * Passing memory from one process to others, again and again: a *producer* fills slots, *consumers* use them.
 *
 * A ring is device memory that is cut into equal slots. The producer acquires a slot, fills it and publishes it. Each
 * consumer gets every message that is published after it has opened the ring, in order, and releases it. The producer
 * gets the slot again when all consumers have released it: so the slowest one sets the pace.
 *
 * Who passes a stream orders the work on the device, and neither side waits for it on the CPU: publishing and releasing
 * record an event in the stream, acquiring and waiting let the stream wait for those of the other side. There is one
 * event for each slot and side, made when the ring is, and no message of the sharing thread for a hand-over. Who passes
 * no stream has done the work itself, or waits for that of the other side before the call returns.
 *
 * The producer exports the ring, and its handle goes to other processes like one of memory: see share.h. A consumer
 * that ends, in whatever way, holds up nobody. Without their producer, consumers get #GPUMEM_ERROR_PEER_GONE.
 *
 * Two things on cuda are the driver's when a process is killed with work pending. The last message that its producer
 * published in a stream may be unfinished. And a stream in which the producer acquired a slot can wait for ever for work that a
 * killed consumer had still in its stream: acquire without a stream where that may be.
 */
#ifndef GPUMEM_RING_H
#define GPUMEM_RING_H

#include "share.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Options for creating a ring. */
typedef struct gpumem_ring_desc {
  size_t struct_size;     /**< `sizeof(gpumem_ring_desc)` of the caller. */
  uint64_t slot_size;     /**< Bytes that a message has at most. */
  uint32_t slot_count;    /**< Slots, 1 to 256; 0 means 4. */
  uint32_t consumers_max; /**< Consumers at the same time, 1 to 64; 0 means 4. */
  /** The first slot can be acquired when so many consumers have opened the ring; at most `consumers_max`. */
  uint32_t consumers_first;
  uint32_t reserved; /**< 0. */
  /** For messages and reports, up to 63 bytes without ASCII control characters, or NULL; copied. */
  const char *name;
} gpumem_ring_desc;

/** Initial value of a gpumem_ring_desc. */
#define GPUMEM_RING_DESC_INIT \
  { sizeof(gpumem_ring_desc), 0, 0, 0, 0, 0, NULL }

/** Creates a ring. The caller is its producer.
 *
 * It has `slot_count` * (`consumers_max` + 1) events between processes. On the host backend each of them, the memory and
 * the ring itself take two file descriptors of the producer (`ulimit -n`).
 *
 * \param device device that gets the memory
 * \param desc options
 * \param[out] out_ring receives the ring
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the ring was written to `*out_ring`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, a wrong size, a slot size of 0, or a number out of range
 * \retval GPUMEM_ERROR_UNSUPPORTED the device shares no memory or no events; see `share.legacy` and `share.events`
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the process has no free descriptor
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{for driver calls, and to start the sharing thread of the instance}
 * \threads{any thread}
 * \owner{the caller destroys the ring}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_ring_create(gpumem_device device, const gpumem_ring_desc *desc,
                                            gpumem_ring *out_ring, gpumem_error *error);

/** Exports a ring. The handle is sent, received and published like one of memory: see share.h. Exporting it again gives
 * the same bytes.
 *
 * \param ring ring that was created by this process
 * \param[out] out_handle receives the handle
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the handle was written to `*out_handle`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_handle` is NULL
 * \retval GPUMEM_ERROR_INVALID_STATE this is a consumer; or called from a host function
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_ring_export(gpumem_ring ring, gpumem_share_handle *out_handle,
                                            gpumem_error *error);

/** Options for opening a ring. */
typedef struct gpumem_ring_open_desc {
  size_t struct_size;  /**< `sizeof(gpumem_ring_open_desc)` of the caller. */
  uint64_t timeout_ns; /**< How long the producer may take for all answers; 0 means 5 seconds. */
  /** For messages and reports, up to 63 bytes without ASCII control characters, or NULL; copied. */
  const char *name;
} gpumem_ring_open_desc;

/** Initial value of a gpumem_ring_open_desc. */
#define GPUMEM_RING_OPEN_DESC_INIT \
  { sizeof(gpumem_ring_open_desc), 0, NULL }

/** Opens a ring of another process. The caller is a consumer from now on: it sees every message that is published after
 * this has returned, and the producer waits for it.
 *
 * \param instance instance that will use the messages
 * \param handle handle of a ring
 * \param desc options; NULL means all defaults
 * \param[out] out_ring receives the ring
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the ring was written to `*out_ring`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, a wrong size, damaged bytes, or the handle of something else or
 *         of another backend
 * \retval GPUMEM_ERROR_INVALID_STATE this process created it; or called from a host function
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the ring has `consumers_max` consumers; or the process has no free descriptor
 * \retval GPUMEM_ERROR_CLOSED the producer has finished the ring
 * \retval GPUMEM_ERROR_STALE_HANDLE the ring was destroyed, or its export has ended
 * \retval GPUMEM_ERROR_PEER_GONE the producer has ended
 * \retval GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE no free address range is as large as the ring
 * \retval GPUMEM_ERROR_PERMISSION_DENIED the producer refuses this user
 * \retval GPUMEM_ERROR_BUSY the producer did not answer in time; the connection to it broke, or another consumer wrote
 *         over what this one did: open it again; or other code of this process has its memory open
 * \retval GPUMEM_ERROR_NOT_FOUND the instance does not see the device that has the memory
 * \retval GPUMEM_ERROR_UNSUPPORTED the device shares no memory or no events, the producer cannot be reached, or the
 *         handle or the ring is of a newer version of the library
 * \handles
 * \blocking{until the producer's sharing thread has answered, and for driver calls}
 * \threads{any thread}
 * \owner{the caller destroys the ring}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_ring_open(gpumem_instance instance, const gpumem_share_handle *handle,
                                          const gpumem_ring_open_desc *desc, gpumem_ring *out_ring,
                                          gpumem_error *error);

/** A slot: one to be filled, or one with a message. */
typedef struct gpumem_ring_slot {
  size_t struct_size; /**< `sizeof(gpumem_ring_slot)` of the caller. */
  void *pointer;      /**< Its first byte, as a device address; a multiple of 512. */
  uint64_t size;      /**< Acquired: how many bytes may be filled. Waited for: how many the message has. */
  uint64_t number;    /**< Of the message: 0, 1, 2 and so on since the ring was created. */
  uint64_t tag;       /**< Waited for: as the producer passed it. */
  uint32_t index;     /**< Of the slot. */
  uint32_t reserved;  /**< 0. */
} gpumem_ring_slot;

/** Initial value of a gpumem_ring_slot. */
#define GPUMEM_RING_SLOT_INIT \
  { sizeof(gpumem_ring_slot), NULL, 0, 0, 0, 0, 0 }

/** Acquires the next slot, for the producer. Waits on the CPU until all consumers have released it. A consumer that has
 * ended is not waited for.
 *
 * \param ring ring of this producer
 * \param stream stream that will fill the slot, of the ring's device: it waits for the work of the consumers, and for what
 *         another stream of the producer filled the slot with before. NULL: the call waits for that work
 * \param timeout_ns how long to wait, or #GPUMEM_TIMEOUT_INFINITE
 * \param[in,out] out_slot receives the slot
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the slot was written to `*out_slot`
 * \retval GPUMEM_NOT_READY it was not free in time; nothing changed
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT a wrong size of `out_slot`, or a stream of another device or instance
 * \retval GPUMEM_ERROR_INVALID_STATE this is a consumer, a slot is acquired and not published, the ring is finished, or
 *         the stream is being captured; or called from a host function
 * \retval GPUMEM_ERROR_PEER_GONE a consumer ended, or wrote into its events, before its work on the slot was complete; call again
 * \retval GPUMEM_ERROR_BUSY another thread is in a call of this ring
 * \retval GPUMEM_ERROR_STALE_HANDLE the ring was destroyed during the call
 * \handles
 * \blocking{until the slot is free, or the timeout expires}
 * \threads{any thread, one at a time}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_ring_acquire(gpumem_ring ring, gpumem_stream stream, uint64_t timeout_ns,
                                             gpumem_ring_slot *out_slot, gpumem_error *error);

/** Publishes the slot that was acquired. Consumers see it at once; who of them passes a stream sees what is in it when
 * the work that is in `stream` now is complete. Without consumers, the message is lost.
 *
 * \param ring ring of this producer
 * \param stream stream that fills the slot, of the ring's device; NULL: it is filled, and no work on it is pending
 * \param size bytes of the message, at most the slot's size; may be 0
 * \param tag a number for the consumers
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the message is published
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT a size above the slot's, or a stream of another device or instance
 * \retval GPUMEM_ERROR_INVALID_STATE this is a consumer, no slot is acquired, or the stream is being captured; or
 *         called from a host function
 * \retval GPUMEM_ERROR_BUSY another thread is in a call of this ring
 * \handles
 * \blocking{no}
 * \threads{any thread, one at a time}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_ring_publish(gpumem_ring ring, gpumem_stream stream, uint64_t size,
                                             uint64_t tag, gpumem_error *error);

/** Waits for the next message, for a consumer, which may hold several.
 *
 * \param ring ring that this consumer opened
 * \param stream stream that will use the message, of the ring's device: it waits for the work of the producer. NULL:
 *         the call waits for that work
 * \param timeout_ns how long to wait, or #GPUMEM_TIMEOUT_INFINITE
 * \param[in,out] out_slot receives the message
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the message was written to `*out_slot`
 * \retval GPUMEM_NOT_READY none came in time; nothing changed
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT a wrong size of `out_slot`, or a stream of another device or instance
 * \retval GPUMEM_ERROR_INVALID_STATE this is the producer, the consumer holds as many messages as there are slots, the
 *         producer has dropped this consumer because of what it wrote, another consumer has overwritten its place, the
 *         producer wrote what cannot be, or the stream is being captured; or called from a host function
 * \retval GPUMEM_ERROR_CLOSED the producer has finished the ring, and there is no further message
 * \retval GPUMEM_ERROR_PEER_GONE the producer has ended, and its memory with it
 * \retval GPUMEM_ERROR_BUSY another thread is in a call of this ring
 * \retval GPUMEM_ERROR_STALE_HANDLE the ring was destroyed during the call
 * \handles
 * \blocking{until there is a message, or the timeout expires}
 * \threads{any thread, one at a time}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_ring_wait(gpumem_ring ring, gpumem_stream stream, uint64_t timeout_ns,
                                          gpumem_ring_slot *out_slot, gpumem_error *error);

/** Releases a message. The producer may fill the slot again when the work that is in `stream` now is complete.
 *
 * \param ring ring that this consumer opened
 * \param stream stream that uses the message, of the ring's device; NULL: no work on it is pending
 * \param number `number` of the oldest message that the consumer holds
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the message is released
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT a stream of another device or instance
 * \retval GPUMEM_ERROR_INVALID_STATE this is the producer, the message is not the oldest one that is held, or the
 *         stream is being captured; or called from a host function
 * \retval GPUMEM_ERROR_PEER_GONE the producer has ended
 * \retval GPUMEM_ERROR_BUSY another thread is in a call of this ring
 * \handles
 * \blocking{no}
 * \threads{any thread, one at a time}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_ring_release(gpumem_ring ring, gpumem_stream stream, uint64_t number,
                                             gpumem_error *error);

/** Says that no message will follow, and waits until all consumers have destroyed the ring. They take what is
 * published, and then get #GPUMEM_ERROR_CLOSED. A slot that is acquired is dropped. May be called again to wait on.
 *
 * \param ring ring of this producer
 * \param timeout_ns how long to wait, or #GPUMEM_TIMEOUT_INFINITE
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS there are no consumers, and there will be none
 * \retval GPUMEM_NOT_READY the ring is finished, and consumers still have it
 * \retval GPUMEM_ERROR_INVALID_STATE this is a consumer; or called from a host function
 * \retval GPUMEM_ERROR_BUSY another thread is in a call of this ring
 * \retval GPUMEM_ERROR_STALE_HANDLE the ring was destroyed during the call
 * \handles
 * \blocking{until there are no consumers, or the timeout expires}
 * \threads{any thread, one at a time}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_ring_finish(gpumem_ring ring, uint64_t timeout_ns, gpumem_error *error);

/** Information about a ring. */
typedef struct gpumem_ring_info {
  size_t struct_size;      /**< `sizeof(gpumem_ring_info)` of the caller. */
  gpumem_device device;    /**< Its device. */
  uint32_t device_ordinal; /**< The device's ordinal. */
  uint32_t is_producer;    /**< 1 if this process created it. */
  void *base;              /**< First byte of the first slot, as a device address. */
  uint64_t slot_size;      /**< Bytes that a message has at most. */
  uint64_t slot_stride;    /**< Bytes from one slot to the next. */
  uint32_t slot_count;     /**< Slots. */
  uint32_t consumers_max;  /**< Consumers at the same time. */
  uint32_t consumer_count; /**< Consumers now. */
  uint32_t held_count; /**< Slots that this side has acquired or waited for, and not published or released. */
  uint64_t published;  /**< Messages that were published. */
  uint64_t released;   /**< Messages that this consumer, or the slowest one, has released or not seen. */
  uint32_t finished;   /**< 1 once the producer has called gpumem_ring_finish(). */
  uint32_t reserved;   /**< 0. */
  char name[64];       /**< As given here. */
} gpumem_ring_info;

/** Initial value of a gpumem_ring_info. */
#define GPUMEM_RING_INFO_INIT                                                       \
  {                                                                                 \
    sizeof(gpumem_ring_info), NULL, 0, 0, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, { 0 } \
  }

/** Gets information about a ring. It asks nobody.
 *
 * \param ring ring to query
 * \param[in,out] out_info receives the information
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the information was written to `*out_info`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_info` is NULL or has a wrong size
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_ring_get_info(gpumem_ring ring, gpumem_ring_info *out_info,
                                              gpumem_error *error);

/** Destroys a ring. A consumer leaves it: what it has not released is released, so no work may use that any more. A call of
 * another thread that waits returns.
 *
 * \param ring ring to destroy; NULL does nothing and succeeds
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the ring is destroyed
 * \retval GPUMEM_ERROR_BUSY this is the producer, and consumers have the ring: see gpumem_ring_finish(); or, on the host
 *         backend, work uses its memory, and no other ring of this process has the same
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{a consumer until its work on what it has used is complete, for which on the host backend its producer must run;
 *           and for driver calls}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_ring_destroy(gpumem_ring ring, gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
