/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file pool.h
 * Pools: blocks of memory at the price of a few loads and stores.
 *
 * A pool takes large pieces of one kind of memory from the driver or the system and cuts them into *blocks*. A warm
 * allocation makes no driver call and takes no lock: each thread keeps some free blocks of the sizes that it uses. Only streams
 * that other code can capture are asked about at each call: wrapped and native ones, and those whose native handle was handed out.
 * Blocks can be freed by any thread.
 *
 * **Streams.** A block is allocated and freed in the order of a stream. It may be used at once by work of that stream,
 * and what is enqueued before the free still has it. The next allocation in the same stream may get it at once, one in
 * another stream only when the work before the free is complete, which the pool finds out by itself, with one mark for
 * many frees. The work of other streams that uses a block is either ordered before the free by the caller, or named with
 * gpumem_pool_record_use(). Streams are told apart by their identity, not by the value of their native handles.
 *
 * **Without streams.** A caller that passes NULL for the stream says at the free that no work uses the block any more. Everyone
 * may get it at once. Blocks that were allocated in a stream can be freed so, and the other way round. Allocate with NULL what the
 * CPU writes first: in a stream, a block may still be in use by earlier work of that stream. For the same reason free a block that was
 * allocated in a stream with NULL only once the work is complete that the stream had at the allocation, even if you never used it.
 *
 * **Memory.** What is freed stays in the pool, unless gpumem_pool_trim(), a release threshold or a lack of memory takes
 * it back. A pool that lacks memory first uses all that it has free, then releases what other pools of the instance and
 * the import cache keep, then asks its callback; then the call fails, and its message says what was lacking.
 *
 * **Sharing.** gpumem_share_export() takes blocks of a pool that was created with #GPUMEM_HANDLE_TYPE_POSIX_FD. An importer maps
 * the whole pieces of the pool that the block lies in, and sees what else is there now or later, so the export needs
 * #GPUMEM_EXPORT_NEIGHBOURS. Exports of blocks that lie in the same pieces, with the same access, share one import. Free a block only
 * after its importers have stopped using it: the pool then hands out the same bytes again. Pieces that the pool gives back stay
 * taken until their last import ends. A pool with #GPUMEM_MEMORY_SHAREABLE is shared by #GPUMEM_SHARE_WAY_LEGACY instead: what
 * others have imported of it is not given back before they end their imports.
 *
 * **Captures.** A stream that is being captured into a graph is served from a *part* of the pool that belongs to that capture
 * alone, since the graph uses its blocks each time it is launched. The graph gets no node for it. A block that is freed in
 * a captured stream may be allocated again in the same stream while the capture lasts; what is freed elsewhere is kept
 * back. gpumem_pool_release_capture() ends the part. Nothing that a pool does spoils a capture, with one exception: see
 * gpumem_pool_destroy(). Do not destroy a stream, nor the handle of a wrapped one, while it is being captured: on cuda no mark can be set
 * behind what was freed in it before the capture, which then stays in the pool until that is destroyed.
 */
#ifndef GPUMEM_POOL_H
#define GPUMEM_POOL_H

#include "range.h"

#ifdef __cplusplus
extern "C" {
#endif

/** How a pool works: a sum of GPUMEM_POOL_ values. */
typedef uint64_t gpumem_pool_flags;
/** An allocation of up to 1 MiB may let its stream wait for the work of another one, rather than take new memory. */
#define GPUMEM_POOL_ALLOW_INTERNAL_DEPENDENCIES UINT64_C(0x1)
/** Finds mistakes, and is slower: each block lies between guards, which count in the statistics, the last 64 freed blocks are kept
 * back, unless memory is lacking or the pool is trimmed, and gpumem_pool_get_block_info() knows the requested size. The CPU reaches
 * pinned and ordinary memory, and managed memory if all devices have `man.concurrent`: there a block that is freed without a stream is filled with 0xDD, and a free looks at the guards, but not at
 * those of a block that was allocated in a stream while work before an earlier free in it might still run, as in a capture it always
 * might: that work may write to them. Blocks that live when the pool is destroyed or its instance closed are logged as
 * #GPUMEM_LOG_WARNING, 32 at most; a process that just ends logs none. */
#define GPUMEM_POOL_DEBUG UINT64_C(0x2)
/** gpumem_pool_alloc_native() and gpumem_pool_free_native() do not ask the driver about the stream, which makes them as fast as in a
 * stream of the library. The caller sees to what they then do not know: a handle that the driver gives out again counts as the same stream, so
 * the work of the stream that had it before must be complete; and blocks that a graph uses are like all others, so they must not
 * be freed while it may be launched. The default stream of each thread, `CU_STREAM_PER_THREAD`, is asked about in any case. */
#define GPUMEM_POOL_TRUST_NATIVE_STREAMS UINT64_C(0x4)
/** The pool takes its memory from a memory pool of the driver, in pieces of 64 KiB. Needs #GPUMEM_CAPABILITY_POOL_DRIVER. Which pool that is
 * depends on the memory:
 *
 * - Of #GPUMEM_KIND_DEVICE without accesses it is the device's current one, from which `cudaMallocAsync` serves other code of the process. Memory
 *   goes back there: what one of the two does not need, the other can use. Taking memory may wait for work of other code: the driver can hand
 *   out memory that was freed behind work which still runs. Allocations that lack memory then wait too, and so does
 *   who destroys the pool or closes the instance; frees, trims and queries do not. Memory that is given back goes to
 *   the system if the driver's pool keeps no more, as `cudaMemPoolAttrReleaseThreshold` says.
 * - Of #GPUMEM_KIND_DEVICE with accesses for other devices, and of #GPUMEM_KIND_PINNED, it is one that the library makes, for all its pools of
 *   the device that ask for the same. No other code has memory of it, and no work is waited for. The driver takes memory for it from the
 *   system in large steps, and gives a step back once nothing of it is used. Pinned memory needs a driver of CUDA 13.0. Accesses are
 *   #GPUMEM_ACCESS_READWRITE; pinned memory is accessed by all devices, as elsewhere, and grows faster without the flag.
 *
 * It goes with no memory flag but #GPUMEM_MEMORY_NUMA_NODE of pinned memory, and with no handle types: the memory cannot be shared. Other devices reach
 * device memory by the accesses alone, whatever peer access is enabled. No memory of it takes gpumem_stream_write_value() and
 * gpumem_stream_wait_value(). */
#define GPUMEM_POOL_FROM_DRIVER UINT64_C(0x8)

/** Options for creating a pool. */
typedef struct gpumem_pool_desc {
  size_t struct_size; /**< `sizeof(gpumem_pool_desc)` of the caller. */
  /** #GPUMEM_KIND_DEVICE, #GPUMEM_KIND_PINNED, #GPUMEM_KIND_MANAGED, or #GPUMEM_KIND_PAGEABLE for ordinary memory of the
   * host; 0 means #GPUMEM_KIND_DEVICE. */
  gpumem_kind kind;
  int32_t numa_node;       /**< Node for #GPUMEM_MEMORY_NUMA_NODE; otherwise 0. */
  gpumem_pool_flags flags; /**< A sum of GPUMEM_POOL_ values. */
  gpumem_memory_flags
      memory_flags; /**< Properties that the memory must have, as in gpumem_memory_create(). */
  /** #GPUMEM_HANDLE_TYPE_POSIX_FD if blocks are to be shared by file descriptors; of a pool of #GPUMEM_KIND_DEVICE without memory
   * flags only. */
  gpumem_handle_types handle_types;
  /** Bytes that the pool takes at most; 0 means no limit. Memory is taken in pieces: of #GPUMEM_KIND_DEVICE of 2 MiB on today's
   * devices, of other kinds and #GPUMEM_POOL_FROM_DRIVER of 64 KiB. With a limit below one piece it
   * takes none: a new pool serves nothing then, one that has memory what is free in it. */
  uint64_t limit;
  /** Bytes that the pool keeps when blocks are freed. A free that its thread does not keep gives back more, down to `low_water`, as far as
   * no work uses it any more. 0 means that all is kept. */
  uint64_t release_threshold;
  /** Bytes that the pool takes when it is created, at most the limit; rounded up to pieces, or down where the limit has no room for
   * the last one. */
  uint64_t initial_size;
  /** Bytes that the pool takes at a time, at least, unless there is no room for as many; 0 means that it chooses. */
  uint64_t segment_size;
  /** Devices besides its own that may access all blocks, `access_count` entries as in gpumem_range_set_access(); of a pool of
   * #GPUMEM_KIND_DEVICE only. NULL means none. Streams of other devices then allocate nothing, unless the pool has memory flags or
   * the device no virtual memory management: then access is that of gpumem_device_enable_peer_access(), which is not checked. With
   * #GPUMEM_POOL_FROM_DRIVER they never do without access. */
  const gpumem_access_desc *accesses;
  uint64_t access_count; /**< Number of entries; 0 with NULL. */
  const char *
      name; /**< For messages and reports, up to 63 bytes without ASCII control characters, or NULL; copied. */
  /** Once the pool has more than `release_threshold`, it gives back what is free until it has this many bytes, so that the next frees give
   * nothing back; at most `release_threshold`. 0 means `release_threshold`. Pieces go back whole, so it may keep less, by one piece. */
  uint64_t low_water;
} gpumem_pool_desc;

/** Initial value of a gpumem_pool_desc. */
#define GPUMEM_POOL_DESC_INIT \
  { sizeof(gpumem_pool_desc), 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0, NULL, 0 }

/** Creates a pool.
 *
 * \param device device of the memory; for host memory the device that it is pinned for
 * \param desc options; NULL means all defaults
 * \param[out] out_pool receives the pool
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the pool was written to `*out_pool`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, a wrong size, another kind, an unknown flag, a flag of memory that does
 *         not belong to the kind, #GPUMEM_POOL_FROM_DRIVER with #GPUMEM_KIND_MANAGED, #GPUMEM_KIND_PAGEABLE or a
 *         flag of memory other than #GPUMEM_MEMORY_NUMA_NODE, no such NUMA node, a size above 2^63-1, an initial size above the limit, a low water above the release
 *         threshold, entries of access as gpumem_range_set_access() refuses them, another handle type, or accesses or
 *         handle types for a pool that is not of device memory
 * \retval GPUMEM_ERROR_UNSUPPORTED the kind, a required property, a handle type, or access of another device cannot be granted
 *         here; the message names the capability. Or memory flags together with accesses or handle types; or
 *         #GPUMEM_POOL_FROM_DRIVER with handle types, with #GPUMEM_ACCESS_READ, or with pinned memory where the driver has no
 *         pools of it
 * \retval GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY the device has not enough memory for the initial size
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY the system has not enough memory
 * \retval GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE no addresses are left
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the pin budget is exhausted, or the process has as many pools as it may have
 * \retval GPUMEM_ERROR_PERMISSION_DENIED see gpumem_memory_create(); or the driver refuses the handle type to this user or system
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{for driver calls}
 * \threads{any thread}
 * \owner{the caller destroys the pool}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_pool_create(gpumem_device device, const gpumem_pool_desc *desc,
                                            gpumem_pool *out_pool, gpumem_error *error);

/** Destroys a pool. Its handle is stale at once. Blocks that live stay usable: gpumem_pool_free_pointer() frees them, and the
 * memory goes back with the last one, or later where work still uses it that was not waited for, at the latest when the instance is
 * closed. Parts of captures end as with gpumem_pool_release_capture() and no stream.
 *
 * Work before frees by gpumem_pool_free_native() may be in streams that the pool can no longer ask. Then it waits for all work
 * of the device, which fails while a stream of it is being captured, and spoils that capture: destroy such a pool outside
 * of captures. The same goes for a stream whose wrapper was destroyed where it could not be marked: one of the default streams while a
 * blocking stream is being captured, or a thread's own on another thread.
 *
 * \param pool pool to destroy; NULL does nothing and succeeds
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the pool is destroyed
 * \retval GPUMEM_ERROR_BUSY other processes have imported memory of the pool by #GPUMEM_SHARE_WAY_LEGACY; or strict host backend:
 *         work in a stream that no free named uses freed blocks, and was not observed complete. The pool lives on, but the parts
 *         of captures have ended
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function, or from the pool's callback; or blocks were freed in a stream
 *         that is being captured now, in the legacy default stream or another thread's while a blocking stream of the context is, or in
 *         native streams while any stream of the device is; nothing changed
 * \handles
 * \blocking{until calls of other threads that use the pool have returned, until the work before the frees is complete, and
 *           for driver calls}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_pool_destroy(gpumem_pool pool, gpumem_error *error);

/** Allocates a block. Its contents are indeterminate. It is aligned to 16 bytes in host memory, and to 256 in other kinds.
 *
 * 0 bytes are served with NULL, since an empty array is no mistake and needs no memory.
 *
 * Of #GPUMEM_KIND_DEVICE, what exceeds the memory of the device is refused at once: nothing is released for it, and only the callback is
 * asked.
 *
 * \param pool pool to allocate from
 * \param size bytes; 0 gives NULL
 * \param stream stream in whose order the block is allocated, of any device of the instance that can access the pool; NULL: none
 * \param[out] out_pointer receives the block's address, a device address except for pools of host memory
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the address was written to `*out_pointer`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_pointer` is NULL, a size above 2^63-1, or a stream of another instance
 * \retval GPUMEM_ERROR_NO_ACCESS the stream is of a device without access to the pool: see `accesses` in gpumem_pool_desc
 * \retval GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY the device has not enough memory; the message says where the search ended, and
 *         which block would have fitted
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY the system has not enough memory
 * \retval GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE no addresses are left
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the pool's limit or the pin budget is reached
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE a capture of the stream has failed; or called from a host function
 * \handles
 * \blocking{no, if the thread keeps a free block; otherwise for a lock, which another thread may hold while it calls the driver,
 *           and for driver calls. gpumem_pool_try_alloc() does not}
 * \threads{any thread}
 * \owner{the caller frees the block}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_pool_alloc(gpumem_pool pool, uint64_t size, gpumem_stream stream,
                                           void **out_pointer, gpumem_error *error);

/** Allocates a block as gpumem_pool_alloc() does, with an alignment.
 *
 * \param pool pool to allocate from
 * \param size bytes; 0 gives NULL
 * \param alignment power of two in bytes; 0 means that of gpumem_pool_alloc()
 * \param stream as for gpumem_pool_alloc()
 * \param[out] out_pointer receives the block's address
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the address was written to `*out_pointer`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT as gpumem_pool_alloc(); or an alignment that is no power of two, or above 2^40
 * \retval GPUMEM_ERROR_NO_ACCESS see gpumem_pool_alloc()
 * \retval GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY see gpumem_pool_alloc()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY see gpumem_pool_alloc()
 * \retval GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE see gpumem_pool_alloc()
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED see gpumem_pool_alloc()
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE a capture of the stream has failed; or called from a host function
 * \handles
 * \blocking{as gpumem_pool_alloc()}
 * \threads{any thread}
 * \owner{the caller frees the block}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_pool_alloc_aligned(gpumem_pool pool, uint64_t size, uint64_t alignment,
                                                   gpumem_stream stream, void **out_pointer,
                                                   gpumem_error *error);

/** What an attempt to allocate came to: one of the GPUMEM_POOL_ANSWER_ values. */
typedef int32_t gpumem_pool_answer;
/** There was a free block. */
#define GPUMEM_POOL_ANSWER_ALLOCATED 1
/** Another thread is changing the pool: try again. */
#define GPUMEM_POOL_ANSWER_BUSY 2
/** What would do was freed in another stream, whose work before the free was not seen to end. Allocate in that stream, or try again
 * when its work is done; if it is a native stream, only the first is sure to help. */
#define GPUMEM_POOL_ANSWER_NEEDS_WAIT 3
/** The pool would have to take memory, or blocks that other threads keep: gpumem_pool_alloc() does. */
#define GPUMEM_POOL_ANSWER_NEEDS_MEMORY 4
/** As #GPUMEM_POOL_ANSWER_NEEDS_MEMORY, but the pool may take no more, and threads keep too little: it has reached its limit, or a block
 * of this size is beyond it, or beyond the memory of the device. */
#define GPUMEM_POOL_ANSWER_OVER_LIMIT 5

/** Answer of gpumem_pool_try_alloc(). */
typedef struct gpumem_pool_attempt {
  size_t struct_size;        /**< `sizeof(gpumem_pool_attempt)` of the caller. */
  gpumem_pool_answer answer; /**< What came of it: one of the GPUMEM_POOL_ANSWER_ values. */
  uint32_t reserved;         /**< 0. */
  /** With #GPUMEM_POOL_ANSWER_NEEDS_WAIT the `id` of the stream, as in gpumem_stream_info; otherwise 0, as where streams have no ids, or
   * the pool has #GPUMEM_POOL_TRUST_NATIVE_STREAMS and the stream is a native one. */
  uint64_t stream_id;
} gpumem_pool_attempt;

/** Initial value of a gpumem_pool_attempt. */
#define GPUMEM_POOL_ATTEMPT_INIT \
  { sizeof(gpumem_pool_attempt), 0, 0, 0 }

/** Allocates a block of those that the pool has free: it waits for nothing and takes no memory. For threads that must not be held
 * up: if it has none, `out_attempt` says what would help.
 *
 * Where native code has the handle of the stream, the driver is asked whether it is being captured. A block that was freed in
 * another stream is given only if a mark behind its free was seen to pass. Frees set such marks, one for many, and so does a call that
 * answers #GPUMEM_POOL_ANSWER_NEEDS_WAIT, which takes one driver call, or for the first mark in a stream a few. On a
 * device with neither #GPUMEM_CAPABILITY_STREAM_VALUE32 nor #GPUMEM_CAPABILITY_STREAM_VALUE64 the driver is also asked whether marks
 * have passed. No other driver call is made.
 *
 * \param pool pool to allocate from
 * \param size bytes; 0 gives NULL
 * \param alignment as for gpumem_pool_alloc_aligned()
 * \param stream as for gpumem_pool_alloc()
 * \param[out] out_pointer receives the block's address
 * \param[in,out] out_attempt receives what came of it; or NULL
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the address was written to `*out_pointer`
 * \retval GPUMEM_NOT_READY no block is free, or another thread is changing the pool; `*out_pointer` is as before
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT as gpumem_pool_alloc_aligned(); or `out_attempt` has a wrong size
 * \retval GPUMEM_ERROR_NO_ACCESS see gpumem_pool_alloc()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY the system has not enough memory for the pool's own records
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE a capture of the stream has failed; or called from a host function
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \owner{the caller frees the block}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_pool_try_alloc(gpumem_pool pool, uint64_t size, uint64_t alignment,
                                               gpumem_stream stream, void **out_pointer,
                                               gpumem_pool_attempt *out_attempt, gpumem_error *error);

/** Frees a block in the order of a stream: work that is enqueued before may still use it.
 *
 * If the stream is being captured, a block of that capture may be allocated again in the stream while the capture lasts.
 * Other blocks are kept back until gpumem_pool_release_capture(), as is a block of a capture that is freed outside.
 *
 * \param pool pool that the block was allocated from
 * \param pointer the block's address; NULL does nothing and succeeds
 * \param stream stream after whose work, as enqueued now, the block is free; it may be another one than that of the
 *        allocation. NULL: no work uses the block any more, also none that was in the stream of the allocation before that
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the block is freed, also if its device is lost
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT the address lies inside a block, or the stream is of another instance; or debug mode:
 *         bytes around the block were overwritten
 * \retval GPUMEM_ERROR_NOT_FOUND the pool has no live block there; it may be freed already, or belong to another pool
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function, or from the progress function of a copy that uses the block
 * \handles
 * \blocking{no, while the thread has room to keep the block; otherwise for a lock, which another thread may hold while it calls the
 *           driver; with a release threshold for driver calls}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_pool_free(gpumem_pool pool, void *pointer, gpumem_stream stream,
                                          gpumem_error *error);

/** Frees a block as gpumem_pool_free() does, with its size.
 *
 * \param pool pool that the block was allocated from
 * \param pointer the block's address; NULL does nothing and succeeds
 * \param size bytes that were asked for, a hint; debug mode checks it
 * \param stream as for gpumem_pool_free()
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the block is freed
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT as gpumem_pool_free(), or a size above 2^63-1; or debug mode: another size was asked for
 * \retval GPUMEM_ERROR_NOT_FOUND as gpumem_pool_free()
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function, or as gpumem_pool_free()
 * \handles
 * \blocking{as gpumem_pool_free()}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_pool_free_sized(gpumem_pool pool, void *pointer, uint64_t size,
                                                gpumem_stream stream, gpumem_error *error);

/** Allocates several blocks, all or none. If one of them cannot be allocated, those before it are freed again, and the message
 * says its index. What the message calls in use includes those before it.
 *
 * \param pool pool to allocate from
 * \param sizes bytes of each block; 0 gives NULL
 * \param count number of blocks; 0 does nothing and succeeds
 * \param stream as for gpumem_pool_alloc()
 * \param[out] out_pointers receives the `count` addresses
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the addresses were written to `out_pointers`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, a size above 2^63-1, or a stream of another instance
 * \retval GPUMEM_ERROR_NO_ACCESS see gpumem_pool_alloc()
 * \retval GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY see gpumem_pool_alloc()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY see gpumem_pool_alloc()
 * \retval GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE see gpumem_pool_alloc()
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED see gpumem_pool_alloc()
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE a capture of the stream has failed; or called from a host function
 * \handles
 * \blocking{as gpumem_pool_alloc()}
 * \threads{any thread}
 * \owner{the caller frees the blocks}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_pool_alloc_batch(gpumem_pool pool, const uint64_t *sizes, uint64_t count,
                                                 gpumem_stream stream, void **out_pointers,
                                                 gpumem_error *error);

/** Frees several blocks, in the order of the array. The first one that cannot be freed ends the call: all before it are
 * freed, it and all behind it are not, and the message says its index. If the pool, the stream or the array is wrong, or the
 * call is made from a host function, nothing is freed, and the message says no index.
 *
 * \param pool pool that the blocks were allocated from
 * \param pointers addresses of the blocks; NULL entries are skipped
 * \param count number of blocks; 0 does nothing and succeeds
 * \param stream as for gpumem_pool_free()
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS all are freed
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL array, or as gpumem_pool_free()
 * \retval GPUMEM_ERROR_NOT_FOUND as gpumem_pool_free()
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function, or as gpumem_pool_free()
 * \handles
 * \blocking{as gpumem_pool_free()}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_pool_free_batch(gpumem_pool pool, void *const *pointers, uint64_t count,
                                                gpumem_stream stream, gpumem_error *error);

/** Allocates a block in the order of a native stream, which needs no gpumem_stream: for code that is handed a `cudaStream_t`
 * at each call. It is otherwise gpumem_pool_alloc().
 *
 * The stream is looked up by its identity each time, so a handle value that the driver has given out again counts as a new
 * stream. The lookup makes some driver calls, half a microsecond in all (`docs/measured/adapters.md`), unless the pool has
 * #GPUMEM_POOL_TRUST_NATIVE_STREAMS.
 *
 * \param pool pool to allocate from
 * \param size bytes; 0 gives NULL
 * \param native_stream `CUstream` or `cudaStream_t` of the pool's device; NULL is the legacy default stream. On the host backend
 *        as for gpumem_stream_wrap()
 * \param[out] out_pointer receives the block's address
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the address was written to `*out_pointer`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT as gpumem_pool_alloc(); or no stream of the device's context
 * \retval GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY see gpumem_pool_alloc()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY see gpumem_pool_alloc()
 * \retval GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE see gpumem_pool_alloc()
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED see gpumem_pool_alloc()
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE a capture of the stream has failed; or called from a host function
 * \handles
 * \blocking{as gpumem_pool_alloc()}
 * \threads{any thread}
 * \owner{the caller frees the block}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_pool_alloc_native(gpumem_pool pool, uint64_t size, void *native_stream,
                                                  void **out_pointer, gpumem_error *error);

/** Frees a block in the order of a native stream. It is otherwise gpumem_pool_free().
 *
 * While the stream is being captured, the pool cannot tell which stream it is. What the stream did with the block before the capture must be
 * complete when gpumem_pool_release_capture() ends the part, or the stream named there must be ordered behind it.
 *
 * \param pool pool that the block was allocated from
 * \param pointer the block's address; NULL does nothing and succeeds
 * \param native_stream as for gpumem_pool_alloc_native()
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the block is freed
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT as gpumem_pool_free(); or no stream of the device's context
 * \retval GPUMEM_ERROR_NOT_FOUND as gpumem_pool_free()
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost, and nothing was freed; gpumem_pool_free() without a stream frees the block
 * \retval GPUMEM_ERROR_INVALID_STATE a capture of the stream has failed; called from a host function, or as gpumem_pool_free()
 * \handles
 * \blocking{as gpumem_pool_free(); with a driver before 12.0, which cannot tell streams apart, until the work of the stream is complete}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_pool_free_native(gpumem_pool pool, void *pointer, void *native_stream,
                                                 gpumem_error *error);

/** Frees a block by its address alone: of any pool of the instance, also of one that is destroyed.
 *
 * A destroyed pool has no parts of captures. If its last block is freed in a stream that is being captured, or in a default stream where
 * gpumem_pool_destroy() would be refused, it ends after the capture.
 *
 * \param instance instance of the pool
 * \param pointer the block's address; NULL does nothing and succeeds
 * \param stream as for gpumem_pool_free()
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the block is freed
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT the address lies inside a block, or as gpumem_pool_free()
 * \retval GPUMEM_ERROR_NOT_FOUND no pool of the instance has a live block there
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function, or as gpumem_pool_free()
 * \handles
 * \blocking{for a lock; with the last block of a destroyed pool, until the work before the frees is complete, and for driver
 *           calls}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_pool_free_pointer(gpumem_instance instance, void *pointer,
                                                  gpumem_stream stream, gpumem_error *error);

/** Records that work of a stream uses a block that lives, besides the stream in whose order it will be freed. The free then waits,
 * without holding up the caller, for the work that the stream has at the time of the free, or had when it was destroyed before. If the
 * stream is being captured, the block is kept back until gpumem_pool_release_capture() of that capture.
 *
 * \param pool pool that the block was allocated from
 * \param pointer the block's address
 * \param stream stream whose work uses the block
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the use is recorded
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL, an address inside a block, or a stream of another instance
 * \retval GPUMEM_ERROR_NOT_FOUND the pool has no live block there
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory for the record
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE a capture of the stream has failed; or called from a host function
 * \handles
 * \blocking{for a lock}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_pool_record_use(gpumem_pool pool, void *pointer, gpumem_stream stream,
                                                gpumem_error *error);

/** Releases the part of a pool that belongs to a capture, when its graph is not launched any more.
 *
 * Its free memory goes to the pool, and so does what was kept back for it. Blocks that live stay usable, and are ordinary
 * blocks from then on.
 *
 * See to it yourself that the capture has ended, successfully or not, and that its graph is not launched any more: only
 * `stream` is checked. During the capture the call succeeds with NULL or another stream. Then the part's memory goes to others
 * although the graph will use it, and the next allocation in the capture begins a new part.
 *
 * \param pool pool that served the capture
 * \param capture_id number of the capture: see gpumem_stream_get_capture_id()
 * \param stream stream after whose work, as enqueued now, the graph does not run any more. NULL: it runs no more
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the part is released
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT a stream of another instance
 * \retval GPUMEM_ERROR_NOT_FOUND the pool has no part of such a capture; it may be released already
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory for the record
 * \retval GPUMEM_ERROR_DEVICE_LOST the device of the stream is lost; pass NULL
 * \retval GPUMEM_ERROR_INVALID_STATE `stream` is being captured; or called from a host function
 * \handles
 * \blocking{for a lock; with a release threshold for driver calls}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_pool_release_capture(gpumem_pool pool, uint64_t capture_id,
                                                     gpumem_stream stream, gpumem_error *error);

/** Releases what is free, until the pool has no more than `keep_bytes`. Blocks that live stay, and so do blocks whose work is not
 * complete, all that captures have, and what other processes have imported by #GPUMEM_SHARE_WAY_LEGACY.
 *
 * \param pool pool to trim
 * \param keep_bytes bytes that the pool may keep, live or free
 * \param[out] out_released receives the bytes that were released; or NULL
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS what could be released is
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function, or from the pool's callback
 * \handles
 * \blocking{for driver calls, and until other threads that are allocating or freeing are done}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_pool_trim(gpumem_pool pool, uint64_t keep_bytes, uint64_t *out_released,
                                          gpumem_error *error);

/** Gets how many bytes a pool takes to hold blocks of these sizes at the same time, what rounding adds included. A new pool with
 * this as its `initial_size` serves them without taking more: to one thread, in one stream, whatever the order; then this may also be
 * its `limit`, which alone would not suffice. Blocks that are freed and allocated again in another order may need more, because a large
 * one does not fit between small ones, and so may other threads, which each keep some free blocks of a size that they use.
 *
 * The answer depends only on the sizes and on what the pool was created with, not on what is in it now.
 *
 * \param pool pool, which may be empty
 * \param sizes bytes of each block, with the alignment of gpumem_pool_alloc(); 0 takes nothing
 * \param count number of sizes; 0 gives 0 bytes
 * \param[out] out_bytes receives the number of bytes, a multiple of the pieces that the pool takes: see `limit` in gpumem_pool_desc
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the number was written to `*out_bytes`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, a size above 2^63-1, or sizes that take more than that together
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_pool_capacity_for(gpumem_pool pool, const uint64_t *sizes, uint64_t count,
                                                  uint64_t *out_bytes, gpumem_error *error);

/** Sets how many bytes the pool takes at most. A limit below what it has releases nothing: see gpumem_pool_trim(). One below a
 * piece of memory, 2 MiB of #GPUMEM_KIND_DEVICE, lets the pool take none, and it serves what is free in it: see `limit` in
 * gpumem_pool_desc.
 *
 * \param pool pool to change
 * \param bytes new limit; 0 means none
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the limit is set
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT above 2^63-1
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{for a lock}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_pool_set_limit(gpumem_pool pool, uint64_t bytes, gpumem_error *error);

/** Sets how many bytes the pool keeps when blocks are freed. Its `low_water` stays, or is the threshold if that is lower.
 *
 * \param pool pool to change
 * \param bytes new threshold; 0 means that all is kept
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the threshold is set
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT above 2^63-1
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{for driver calls, and until other threads that are allocating or freeing are done}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_pool_set_release_threshold(gpumem_pool pool, uint64_t bytes,
                                                           gpumem_error *error);

/** Information about a pool. Threads that allocate meanwhile may or may not be counted. */
typedef struct gpumem_pool_info {
  size_t struct_size;               /**< `sizeof(gpumem_pool_info)` of the caller. */
  gpumem_device device;             /**< Its device. */
  uint32_t device_ordinal;          /**< The device's ordinal. */
  gpumem_kind kind;                 /**< Kind of its memory. */
  gpumem_pool_flags flags;          /**< As it was created. */
  gpumem_memory_flags memory_flags; /**< As it was created. */
  gpumem_handle_types handle_types; /**< As it was created. */
  uint64_t limit;                   /**< Bytes that it takes at most; 0: no limit. */
  uint64_t release_threshold;       /**< Bytes that it keeps; 0: all. */
  uint64_t live_count;              /**< Blocks that live. */
  uint64_t live_bytes;              /**< Their usable sizes. */
  uint64_t reserved_bytes;          /**< Bytes that the pool has taken. */
  uint64_t cached_bytes;            /**< Those of them that no live block has. */
  uint64_t segment_count;           /**< Pieces in which it has taken them. */
  /** Largest number of blocks since the peaks were reset that lived, or that a thread kept for its next allocations. It is never
   * below the largest `live_count`, and above it by what threads keep. Each thread keeps, for each stream and for none: of
   * each size class 512 KiB, but at least 8 blocks and at most 64; and up to 16 larger blocks, of 32 MiB in all. */
  uint64_t peak_live_count;
  uint64_t peak_live_bytes;     /**< Their usable sizes at most: the same for `live_bytes`. */
  uint64_t peak_reserved_bytes; /**< Largest `reserved_bytes` since then. */
  /** Blocks allocated since the pool was created, also those that a failed gpumem_pool_alloc_batch() has freed again. */
  uint64_t total_count;
  uint64_t total_bytes; /**< Their usable sizes. */
  /** Blocks freed in one stream and given to another; a thread takes several at a time, and allocates perhaps not all. */
  uint64_t cross_stream_count;
  uint64_t wait_count; /**< Waits of one stream for another that the pool has enqueued. */
  uint64_t mark_count; /**< Marks that the pool has enqueued in streams. */
  uint64_t grow_count; /**< How often it has taken memory; other allocations were served from what it had. */
  uint64_t release_count; /**< How often it has released some. */
  uint64_t capture_count; /**< Captures that have a part of it: see gpumem_pool_release_capture(). */
  uint64_t
      captured_bytes; /**< Bytes of their parts, live or free, and of released parts that work may still use. */
  uint32_t class_count; /**< Number of size classes: see gpumem_pool_get_class_info(). */
  uint32_t reserved;    /**< 0. */
  char name[64];        /**< As it was created. */
  uint64_t low_water;   /**< As it was created. */
  /** Blocks that it has cut since it was created: those of the size classes, and larger ones each time, unless a thread takes one
   * again that it kept. If `total_count` is larger, at least the difference was served by blocks that had been allocated before. */
  uint64_t cut_count;
} gpumem_pool_info;

/** Initial value of a gpumem_pool_info. */
#define GPUMEM_POOL_INFO_INIT                                                                               \
  {                                                                                                         \
    sizeof(gpumem_pool_info), NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
        0, 0, {0}, 0, 0                                                                                     \
  }

/** Gets information about a pool.
 *
 * \param pool pool to query
 * \param[in,out] out_info receives the information
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the information was written to `*out_info`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_info` is NULL or has a wrong size
 * \handles
 * \blocking{for a lock}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_pool_get_info(gpumem_pool pool, gpumem_pool_info *out_info,
                                              gpumem_error *error);

/** Information about a size class: blocks of one usable size. Larger blocks than the largest class has are cut to measure. */
typedef struct gpumem_pool_class_info {
  size_t struct_size;   /**< `sizeof(gpumem_pool_class_info)` of the caller. */
  uint64_t block_size;  /**< Usable bytes of each block. */
  uint64_t live_count;  /**< Blocks that live. */
  uint64_t total_count; /**< Blocks allocated since the pool was created. */
  uint64_t block_count; /**< Blocks that the pool has, live or free. */
  /** Blocks that it has cut since it was created, mostly several at a time. If `total_count` is larger, at least the difference
   * was served by blocks that had been allocated before. */
  uint64_t cut_count;
} gpumem_pool_class_info;

/** Initial value of a gpumem_pool_class_info. */
#define GPUMEM_POOL_CLASS_INFO_INIT \
  { sizeof(gpumem_pool_class_info), 0, 0, 0, 0, 0 }

/** Gets information about a size class.
 *
 * \param pool pool to query
 * \param index of the class, below `class_count` of gpumem_pool_info; larger ones have larger blocks
 * \param[in,out] out_info receives the information
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the information was written to `*out_info`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT no such class, or `out_info` is NULL or has a wrong size
 * \handles
 * \blocking{for a lock}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_pool_get_class_info(gpumem_pool pool, uint32_t index,
                                                    gpumem_pool_class_info *out_info, gpumem_error *error);

/** Resets the peaks of a pool to what it has now. Blocks that threads keep count: see `peak_live_count` in gpumem_pool_info.
 *
 * \param pool pool whose peaks to reset
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the peaks are reset
 * \handles
 * \blocking{for a lock}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_pool_reset_peaks(gpumem_pool pool, gpumem_error *error);

/** Information about a block. */
typedef struct gpumem_pool_block_info {
  size_t struct_size;      /**< `sizeof(gpumem_pool_block_info)` of the caller. */
  gpumem_pool pool;        /**< Its pool; NULL if that is destroyed. */
  void *base;              /**< First byte. */
  uint64_t usable_size;    /**< Bytes that may be used. */
  uint64_t requested_size; /**< Bytes that were asked for; 0 unless the pool has #GPUMEM_POOL_DEBUG. */
} gpumem_pool_block_info;

/** Initial value of a gpumem_pool_block_info. */
#define GPUMEM_POOL_BLOCK_INFO_INIT \
  { sizeof(gpumem_pool_block_info), NULL, NULL, 0, 0 }

/** Gets information about the block that has an address.
 *
 * \param instance instance of the pool
 * \param pointer any address in the block
 * \param[in,out] out_info receives the information
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the information was written to `*out_info`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `pointer` or `out_info` is NULL, or `out_info` has a wrong size
 * \retval GPUMEM_ERROR_NOT_FOUND no pool of the instance has a live block there
 * \handles
 * \blocking{for a lock}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_pool_get_block_info(gpumem_instance instance, const void *pointer,
                                                    gpumem_pool_block_info *out_info, gpumem_error *error);

/** Called when a pool cannot get memory, before the allocation fails: the time to free blocks of the pool or other memory. It may
 * call every function but those that say otherwise. It is called once for an allocation, so it frees all that it can, or as much as
 * is lacking. An allocation from the same pool that lacks memory meanwhile fails without calling it. Closing an instance fails. It must
 * return: it must not throw or end its thread, and a child process that it forks must not return from it. While another pool's callback
 * runs on another thread, an allocation from that pool fails in this one without calling it, and what would wait for it is
 * #GPUMEM_ERROR_BUSY: see gpumem_progress_function.
 *
 * \param user_data as it was passed to gpumem_pool_set_callback()
 * \param pool pool that lacks memory
 * \param size bytes that it lacks
 * \return 1 if the allocation should be tried again, 0 if not */
typedef int32_t(GPUMEM_CALL *gpumem_pool_callback)(void *user_data, gpumem_pool pool, uint64_t size);

/** Sets the function that is called when the pool cannot get memory. When the call returns, the one before is not running.
 *
 * \param pool pool to change
 * \param callback function; NULL for none
 * \param user_data passed to `callback`
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the function is set
 * \retval GPUMEM_ERROR_INVALID_STATE called from the callback, or from a host function
 * \retval GPUMEM_ERROR_BUSY called from another callback, and the one before runs
 * \handles
 * \blocking{until the callback before has returned}
 * \threads{any thread}
 * \owner{`user_data` belongs to the caller and must live until the function is replaced}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_pool_set_callback(gpumem_pool pool, gpumem_pool_callback callback,
                                                  void *user_data, gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
