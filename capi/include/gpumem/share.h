/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file share.h
 * Sharing memory and events with other processes of this machine.
 *
 * The process that has the memory *exports* it and gets a gpumem_share_handle: 256 bytes, which may be sent by any
 * channel. Whoever has these bytes, and runs as the same user, *imports* it. The importer gets a gpumem_memory, for its
 * own handles and pointers, which shows the same bytes; it ends it with gpumem_memory_destroy().
 *
 * The exporter answers importers on a thread of its own, the *sharing thread* of its instance, which sleeps while
 * nobody asks. An importer stays connected to it. So each side learns when the other ends: the exporter drops what a
 * dead importer held, and the importer sees #GPUMEM_IMPORT_PEER_GONE. The connection is an abstract Unix socket, which
 * leaves no file. Between containers without a common network namespace, send the handle with gpumem_share_send(): it
 * takes a connection along. Or use a hub with a path, see hub.h.
 *
 * What happens when the exporter ends depends on the way. #GPUMEM_SHARE_WAY_POSIX_FD: nothing, importers keep the
 * memory. For #GPUMEM_SHARE_WAY_LEGACY: copies, fills and prefetches of the import fail with #GPUMEM_ERROR_PEER_GONE.
 *
 * It guards against mistakes and strangers, not against the peer that was let in: who may write can write anything.
 */
#ifndef GPUMEM_SHARE_H
#define GPUMEM_SHARE_H

#include "pointer.h"

#ifdef __cplusplus
extern "C" {
#endif

/** How memory reaches another process: one of the GPUMEM_SHARE_WAY_ values. */
typedef int32_t gpumem_share_way;
#define GPUMEM_SHARE_WAY_ANY 0 /**< The best one that the memory has. */
/** An inter-process handle of the driver, for device memory and events. Capabilities `share.legacy` and
 * `share.events`. */
#define GPUMEM_SHARE_WAY_LEGACY 1
/** File descriptors, for physical memory that was created with #GPUMEM_HANDLE_TYPE_POSIX_FD. */
#define GPUMEM_SHARE_WAY_POSIX_FD 2
/** Fabric handles, for physical memory that was created with #GPUMEM_HANDLE_TYPE_FABRIC. Not by gpumem_share_export(),
 * as they keep nothing alive: see gpumem_physical_export_fabric(). */
#define GPUMEM_SHARE_WAY_FABRIC 3
/** A dma-buf, for other drivers: gpumem_share_export_dma_buf(). Capability `share.dma_buf`. */
#define GPUMEM_SHARE_WAY_DMA_BUF 4

/** What a handle stands for: one of the GPUMEM_SHARE_TYPE_ values. */
typedef int32_t gpumem_share_type;
#define GPUMEM_SHARE_TYPE_MEMORY 1 /**< Memory, to be imported with gpumem_share_import(). */
#define GPUMEM_SHARE_TYPE_EVENT 2  /**< An event, to be imported with gpumem_event_import(). */
#define GPUMEM_SHARE_TYPE_RING 3   /**< A ring, to be opened with gpumem_ring_open(). */

/** A shared memory or event, as bytes for any channel. They hold no address, and a secret: who has them may import. */
typedef struct gpumem_share_handle {
  uint8_t bytes[256]; /**< Only the library reads them; see gpumem_share_get_info(). */
} gpumem_share_handle;

/** How memory is exported: a sum of GPUMEM_EXPORT_ values. */
typedef uint64_t gpumem_export_flags;
/** Importers may see what else lies in the same block of the driver. Small device memory that was created without
 * #GPUMEM_MEMORY_SHAREABLE cannot be exported otherwise, and on the host backend not at all. A block of a pool needs it on both
 * backends. */
#define GPUMEM_EXPORT_NEIGHBOURS UINT64_C(0x1)

/** Options for an export. */
typedef struct gpumem_export_desc {
  size_t struct_size;   /**< `sizeof(gpumem_export_desc)` of the caller. */
  gpumem_share_way way; /**< One of the GPUMEM_SHARE_WAY_ values but DMA_BUF. */
  /** The most that importers get: #GPUMEM_ACCESS_READ, or #GPUMEM_ACCESS_READWRITE, or 0 for it. */
  gpumem_access access;
  gpumem_export_flags flags; /**< A sum of GPUMEM_EXPORT_ values. */
} gpumem_export_desc;

/** Initial value of a gpumem_export_desc. */
#define GPUMEM_EXPORT_DESC_INIT \
  { sizeof(gpumem_export_desc), 0, 0, 0 }

/** Exports memory. Exporting it again gives the same bytes and costs little.
 *
 * By #GPUMEM_SHARE_WAY_LEGACY an allocation is shared as a whole. By descriptors, all blocks that are mapped one behind
 * the other around the pointer are shared as one, as they lie; a buffer is shared with all its memory, so the shared
 * size is its capacity. An importer that needs its size must be sent that too. The offset of the pointer is part of the
 * handle.
 *
 * An export ends when its memory is freed, when one of its blocks is unmapped (as when a buffer shrinks or sleeps), and
 * with gpumem_share_revoke(). Importers keep what they have imported by descriptors.
 *
 * Of a pool, the pieces are shared that the block lies in: see pool.h. Blocks in the same pieces, with the same access, share one
 * export, which does not end when one of them is freed.
 *
 * \param instance instance that has the memory
 * \param pointer any byte of it, by its device address
 * \param desc options; NULL means all defaults
 * \param[out] out_handle receives the handle
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the handle was written to `*out_handle`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, or an unknown way, access or flag
 * \retval GPUMEM_ERROR_NOT_FOUND the instance has no memory there, or it is a pool's, but no live block; or another thread freed or
 *         unmapped it during the call
 * \retval GPUMEM_ERROR_WRONG_KIND managed, registered or ordinary memory; or imported: pass on the handle it came with
 * \retval GPUMEM_ERROR_INVALID_STATE nothing is mapped at the address; the memory belongs to a ring; or called from a host function
 * \retval GPUMEM_ERROR_UNSUPPORTED the memory does not have this way; the message says what would give it. Or
 *         #GPUMEM_ACCESS_READ was asked for by #GPUMEM_SHARE_WAY_LEGACY. Or the memory has neighbours: see
 *         #GPUMEM_EXPORT_NEIGHBOURS
 * \retval GPUMEM_ERROR_PERMISSION_DENIED the driver refuses this way to this user or system
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the process has no free descriptor; exports of pools that are not needed can be revoked
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{the first time for driver calls, and to start the sharing thread of the instance; afterwards no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_share_export(gpumem_instance instance, const void *pointer,
                                             const gpumem_export_desc *desc, gpumem_share_handle *out_handle,
                                             gpumem_error *error);

/** Ends an export. Whoever imports the handle from now on gets #GPUMEM_ERROR_STALE_HANDLE; what has been imported
 * stays. So it is with the handles of other blocks of a pool that share the export.
 *
 * \param instance instance that exported it
 * \param handle handle of memory, an event or a ring
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the export has ended
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, or damaged bytes
 * \retval GPUMEM_ERROR_UNSUPPORTED the handle is of a newer version of the library
 * \retval GPUMEM_ERROR_NOT_FOUND this instance has no such export, or no longer
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_share_revoke(gpumem_instance instance, const gpumem_share_handle *handle,
                                             gpumem_error *error);

/** What a handle says of itself. It was true when the handle was made. */
typedef struct gpumem_share_info {
  size_t struct_size;       /**< `sizeof(gpumem_share_info)` of the caller. */
  gpumem_share_type type;   /**< One of the GPUMEM_SHARE_TYPE_ values. */
  gpumem_share_way way;     /**< How it is shared. */
  int32_t backend;          /**< #GPUMEM_BACKEND_CUDA or #GPUMEM_BACKEND_HOST. */
  gpumem_access access;     /**< The most that importers get. */
  gpumem_location location; /**< Where the memory lies. */
  int32_t exporter_pid;     /**< The exporter, as its own process namespace counts, or that of a keeper. */
  uint64_t size;            /**< Bytes of the whole memory; of a buffer, its capacity. */
  uint64_t offset;          /**< Of the exported pointer in it. */
  uint64_t buffer_id;       /**< Number of the allocation in the exporter. */
  uint32_t fd_count;        /**< Descriptors that belong to it. */
  uint32_t reserved;        /**< 0. */
  uint8_t device_uuid[16];  /**< Of the device. */
} gpumem_share_info;

/** Initial value of a gpumem_share_info. */
#define GPUMEM_SHARE_INFO_INIT                                        \
  {                                                                   \
    sizeof(gpumem_share_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, { 0 } \
  }

/** Reads a handle. It needs no instance, and asks nobody.
 *
 * \param handle handle to read
 * \param[in,out] out_info receives the information
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the information was written to `*out_info`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, a wrong size of `out_info`, or bytes that are damaged or no
 *         handle
 * \retval GPUMEM_ERROR_UNSUPPORTED the handle is of a newer version of the library
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_share_get_info(const gpumem_share_handle *handle, gpumem_share_info *out_info,
                                               gpumem_error *error);

/** Gets the file descriptors of an export, for a transport of the caller's own. They keep the memory alive, also after
 * the exporter's end. Without them, an importer gets them from the exporter.
 *
 * \param instance instance that exported it
 * \param handle its handle
 * \param[out] out_fds receives new descriptors, which are closed on exec; or NULL with a capacity of 0
 * \param capacity room in `out_fds`
 * \param[out] out_count receives how many there are
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the descriptors were written, or without `out_fds` their number
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, damaged bytes, or room for some but not for all; the message says how many there are
 * \retval GPUMEM_ERROR_UNSUPPORTED the handle is of a newer version of the library
 * \retval GPUMEM_ERROR_NOT_FOUND this instance has no such export, or no longer
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the process has no free descriptor
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \owner{the caller closes the descriptors}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_share_get_fds(gpumem_instance instance, const gpumem_share_handle *handle,
                                              int32_t *out_fds, uint32_t capacity, uint32_t *out_count,
                                              gpumem_error *error);

/** How a handle is imported: a sum of GPUMEM_IMPORT_ values. */
typedef uint64_t gpumem_import_flags;
/** Import #GPUMEM_SHARE_WAY_LEGACY memory although the exporter cannot be asked. If it was freed since, the import may
 * show other memory of the exporter, and nobody learns when a process ends. */
#define GPUMEM_IMPORT_UNVERIFIED UINT64_C(0x1)

/** Options for an import. */
typedef struct gpumem_import_desc {
  size_t struct_size; /**< `sizeof(gpumem_import_desc)` of the caller. */
  /** Device that will use the memory; NULL means the one that has it, found by its UUID. */
  gpumem_device device;
  /** #GPUMEM_ACCESS_READ or #GPUMEM_ACCESS_READWRITE; 0 means what the exporter allows. */
  gpumem_access access;
  uint32_t reserved;         /**< 0. */
  gpumem_import_flags flags; /**< A sum of GPUMEM_IMPORT_ values. */
  /** Where the memory must begin, a multiple of the granularity of ranges; NULL means anywhere. Only for
   * #GPUMEM_SHARE_WAY_POSIX_FD. */
  const void *address;
  uint64_t timeout_ns; /**< How long the exporter may take to answer; 0 means 5 seconds. */
  /** For messages and reports, up to 63 bytes without ASCII control characters, or NULL; copied. */
  const char *name;
} gpumem_import_desc;

/** Initial value of a gpumem_import_desc. */
#define GPUMEM_IMPORT_DESC_INIT \
  { sizeof(gpumem_import_desc), NULL, 0, 0, 0, NULL, 0, NULL }

/** Imports memory.
 *
 * What one process grants of a memory is mapped once, for each device and access: importing it again gives the same
 * gpumem_memory and counts, and as many calls of gpumem_memory_destroy() end it. The exporter sees the last one.
 *
 * A handle that was received or fetched is imported from where it came, and any other one from its exporter. What a
 * handle says of its exporter is not believed.
 *
 * Imported memory cannot be exported or published. A third process imports the same handle, or fetches it from the hub
 * itself; to publish the bytes, copy them to memory of your own.
 *
 * \param instance instance that will use the memory; by #GPUMEM_SHARE_WAY_LEGACY none of the process that exported it
 * \param handle handle of memory
 * \param fds its descriptors, which stay the caller's; or NULL with a count of 0: they are those that came with the
 *         handle through gpumem_share_receive() or gpumem_link_fetch(), or the exporter is asked for them
 * \param fd_count number of descriptors
 * \param desc options; NULL means all defaults
 * \param[out] out_pointer receives the byte that was exported, as a device address; or NULL
 * \param[out] out_memory receives the memory, of #GPUMEM_KIND_IMPORTED
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the memory was written to `*out_memory`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, damaged bytes, the handle of an event or of another backend,
 *         another number of descriptors than belong to it, some of other memory or in another order (those of the driver
 *         look alike, so that the cuda backend notices a difference of number or size only), an unknown access or flag,
 *         a device of another instance, or an address that is not a multiple of the granularity
 * \retval GPUMEM_ERROR_INVALID_STATE this process exported it by #GPUMEM_SHARE_WAY_LEGACY: use the memory itself; or
 *         called from a host function
 * \retval GPUMEM_ERROR_NO_ACCESS the exporter allows only reading
 * \retval GPUMEM_ERROR_NOT_FOUND the instance does not see the device that has the memory
 * \retval GPUMEM_ERROR_STALE_HANDLE the memory was freed, or the export has ended
 * \retval GPUMEM_ERROR_PEER_GONE the exporter has ended
 * \retval GPUMEM_ERROR_PERMISSION_DENIED the exporter refuses this user; or the driver does
 * \retval GPUMEM_ERROR_BUSY the exporter did not answer in time; or other code of this process has the memory open
 * \retval GPUMEM_ERROR_UNSUPPORTED the device has no link to the one that has the memory, #GPUMEM_ACCESS_READ was asked
 *         for memory that is shared by #GPUMEM_SHARE_WAY_LEGACY, the exporter cannot be reached (see
 *         #GPUMEM_IMPORT_UNVERIFIED), or the handle is of a newer version of the library
 * \retval GPUMEM_ERROR_ALREADY_EXISTS the addresses asked for are taken, or the memory is imported already at others
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the process has no free descriptor, or holds 4,096 exports of that exporter; what another user
 *         has sent takes its share of the descriptors; or peer access is used up
 * \retval GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE no addresses for it, or none so high
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{until the exporter has answered, and for driver calls; no, if it is imported already}
 * \threads{any thread}
 * \owner{the caller destroys the memory, once for each call}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_share_import(gpumem_instance instance, const gpumem_share_handle *handle,
                                             const int32_t *fds, uint32_t fd_count,
                                             const gpumem_import_desc *desc, void **out_pointer,
                                             gpumem_memory *out_memory, gpumem_error *error);

/** How an import stands: one of the GPUMEM_IMPORT_ state values. */
typedef int32_t gpumem_import_state;
#define GPUMEM_IMPORT_LIVE \
  0 /**< The exporter lives, and still exports it; or a keeper lives, and holds it. */
#define GPUMEM_IMPORT_WITHDRAWN \
  1 /**< The exporter has ended the export, or withdrawn the name; the bytes are still there. */
#define GPUMEM_IMPORT_PEER_GONE 2 /**< The exporter has ended; or the keeper that it was fetched from. */
#define GPUMEM_IMPORT_UNKNOWN 3   /**< Nobody can tell: imported with descriptors only, or unverified. */

/** Information about an import. */
typedef struct gpumem_import_info {
  size_t struct_size;          /**< `sizeof(gpumem_import_info)` of the caller. */
  gpumem_share_way way;        /**< How it is shared. */
  gpumem_access access;        /**< What may be done here. */
  gpumem_import_state state;   /**< How it stands at this moment. */
  int32_t exporter_pid;        /**< As in gpumem_share_info: of the publisher, not of a keeper. */
  uint64_t count;              /**< How often it is imported, and so must be destroyed. */
  uint64_t exporter_buffer_id; /**< Number of the allocation in the exporter. */
} gpumem_import_info;

/** Initial value of a gpumem_import_info. */
#define GPUMEM_IMPORT_INFO_INIT \
  { sizeof(gpumem_import_info), 0, 0, 0, 0, 0, 0 }

/** Gets information about an import. It asks nobody.
 *
 * \param memory imported memory
 * \param[in,out] out_info receives the information
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the information was written to `*out_info`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_info` is NULL or has a wrong size
 * \retval GPUMEM_ERROR_WRONG_KIND the memory is not imported
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_memory_get_import_info(gpumem_memory memory, gpumem_import_info *out_info,
                                                       gpumem_error *error);

/** Options for imports that are kept after they were destroyed, because they may be imported again. */
typedef struct gpumem_import_cache_desc {
  size_t struct_size; /**< `sizeof(gpumem_import_cache_desc)` of the caller. */
  uint64_t idle_ns;   /**< How long one is kept; 0 means not at all. */
  /** Bytes that are kept at most; those that were destroyed first go first. 0 means no limit. */
  uint64_t bytes_max;
} gpumem_import_cache_desc;

/** Initial value of a gpumem_import_cache_desc. */
#define GPUMEM_IMPORT_CACHE_DESC_INIT \
  { sizeof(gpumem_import_cache_desc), 0, 0 }

/** Sets how long imports are kept mapped after they were destroyed. At the beginning they are not. What is kept keeps
 * the exporter's memory alive, and goes before a call of this instance fails for lack of memory. It keeps at most 128
 * connections to exporters, and no more than an eighth of the descriptors that the process may have (RLIMIT_NOFILE). Only
 * #GPUMEM_SHARE_WAY_POSIX_FD is kept.
 *
 * \param instance instance of the imports
 * \param desc the limits; NULL means that nothing is kept
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the limits hold, and what exceeds them is unmapped
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT a wrong size of `desc`
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{for driver calls}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_share_set_cache(gpumem_instance instance,
                                                const gpumem_import_cache_desc *desc, gpumem_error *error);

/** Unmaps all imports that were destroyed and are kept.
 *
 * \param instance instance of the imports
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS none is kept any more
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{for driver calls}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_share_flush_cache(gpumem_instance instance, gpumem_error *error);

/** Whom memory would be shared with: one of the GPUMEM_PEER_ values. */
typedef int32_t gpumem_share_peer;
/** Another process of this user, in the same namespaces, on the same device. */
#define GPUMEM_PEER_OTHER_PROCESS 0
#define GPUMEM_PEER_SAME_PROCESS 1 /**< Another instance in this process. */
/** A process of another user, to which a socket or a hub with a path leads. */
#define GPUMEM_PEER_OTHER_USER 2
/** Another process of this user that imports it for another device, one with a link to the device that has it. */
#define GPUMEM_PEER_OTHER_DEVICE 3
#define GPUMEM_PEER_CONTAINER \
  4 /**< A process in other process, mount, network and user namespaces, of the same user outside. */

/** Whether memory can be shared in one way. */
typedef struct gpumem_way_info {
  size_t struct_size;   /**< `sizeof(gpumem_way_info)` of the caller. */
  gpumem_status status; /**< #GPUMEM_SUCCESS, or what gpumem_share_export() or the import would return. */
  uint32_t fd_count;    /**< Descriptors that an export would have. */
  /** 1 if the handle alone is not enough: use gpumem_share_send() or a hub with a path. A dma-buf needs a socket of the
   * caller's own. */
  uint32_t needs_socket;
  uint32_t slow; /**< 1 if the importer's device reaches the memory over a bus or a link to another device. */
  char message[256]; /**< Why not, and what would help; or why it is slow, and what it needs. */
} gpumem_way_info;

/** Initial value of a gpumem_way_info. */
#define GPUMEM_WAY_INFO_INIT                   \
  {                                            \
    sizeof(gpumem_way_info), 0, 0, 0, 0, { 0 } \
  }

/** Says whether memory can be shared in one way, and why not. It changes nothing, and gpumem_share_export() does what
 * it says.
 *
 * It answers from here, for an export without flags. gpumem_link_get_way() asks the other process.
 *
 * \param instance instance that has the memory
 * \param pointer any byte of it
 * \param way one of the GPUMEM_SHARE_WAY_ values but ANY
 * \param peer whom it would be shared with: one of the GPUMEM_PEER_ values. A dma-buf is the same for all
 * \param[in,out] out_info receives the answer
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the answer was written to `*out_info`, whatever it is
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, a wrong size of `out_info`, or an unknown way or peer
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{no; during the trial of a capability, a few milliseconds}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_share_get_way(gpumem_instance instance, const void *pointer,
                                              gpumem_share_way way, gpumem_share_peer peer,
                                              gpumem_way_info *out_info, gpumem_error *error);

/** Options for sending a handle. */
typedef struct gpumem_send_desc {
  size_t struct_size;  /**< `sizeof(gpumem_send_desc)` of the caller. */
  uint64_t lease_ns;   /**< How long the receiver may take to import it; 0 means 30 seconds. */
  uint64_t timeout_ns; /**< How long the call may wait for room in the socket; 0 means 5 seconds. */
} gpumem_send_desc;

/** Initial value of a gpumem_send_desc. */
#define GPUMEM_SEND_DESC_INIT \
  { sizeof(gpumem_send_desc), 0, 0 }

/** Sends a handle, with its descriptors and a connection to this process, over a Unix socket of the caller's. It needs
 * no right to inspect processes and no common namespace. What the receiver has not imported when the lease ends, or
 * when it hangs up, is taken back.
 *
 * The message is sent whole, between two messages of the caller's own.
 *
 * \param instance instance that exported it
 * \param handle its handle
 * \param socket_fd a connected Unix socket, of streams or packets; it stays the caller's
 * \param desc options; NULL means all defaults
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the message is sent
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, damaged bytes, or not a connected Unix socket
 * \retval GPUMEM_ERROR_UNSUPPORTED the handle is of a newer version of the library
 * \retval GPUMEM_ERROR_NOT_FOUND this instance has no such export, or no longer
 * \retval GPUMEM_ERROR_PEER_GONE the receiver has hung up
 * \retval GPUMEM_ERROR_BUSY the socket had no room in time. If a part of the message was sent, the socket is of no use
 *         any more, which the message says
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the process has no free descriptor, or the receiver is another user, who has its share of the
 *         connections that went with handles
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{until the socket has room}
 * \threads{any thread; calls for one socket must not overlap}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_share_send(gpumem_instance instance, const gpumem_share_handle *handle,
                                           int32_t socket_fd, const gpumem_send_desc *desc,
                                           gpumem_error *error);

/** Receives a handle that gpumem_share_send() sent. Its descriptors and connection are kept until it is imported, or
 * for the sender's lease. The handle says over which connection it came, so its bytes differ from the exporter's.
 *
 * \param instance instance that will import it
 * \param socket_fd a connected Unix socket; it stays the caller's
 * \param timeout_ns how long to wait for the whole message, or #GPUMEM_TIMEOUT_INFINITE
 * \param[out] out_handle receives the handle
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the handle was written to `*out_handle`
 * \retval GPUMEM_NOT_READY nothing came in time
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, not a connected Unix socket, or a message that is damaged, or has
 *         other descriptors than it says: these are closed
 * \retval GPUMEM_ERROR_UNSUPPORTED the message is of a newer version of the library; or nothing can be shared here
 * \retval GPUMEM_ERROR_PEER_GONE the sender has hung up
 * \retval GPUMEM_ERROR_BUSY only a part of the message came in time. The socket is of no use any more
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED as many handles wait to be imported as may, or of the sender's user: the message
 *         stays in the socket; or these have as many descriptors as they may, or the process has no free one: if the
 *         message says that the handle is lost, it must be sent again
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{until a message has come}
 * \threads{any thread; calls for one socket must not overlap}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_share_receive(gpumem_instance instance, int32_t socket_fd,
                                              uint64_t timeout_ns, gpumem_share_handle *out_handle,
                                              gpumem_error *error);

/** How a dma-buf is made: a sum of GPUMEM_DMA_BUF_ values. */
typedef uint64_t gpumem_dma_buf_flags;
/** Prefer the mapping over PCIe; the plain form is made where it cannot be had. */
#define GPUMEM_DMA_BUF_PREFER_PCIE UINT64_C(0x1)

/** Makes a dma-buf of device memory, which drivers of other devices import: of network cards, say. A part of a range
 * must be exported again after it was mapped anew.
 *
 * \param instance instance that has the memory
 * \param pointer first byte, a multiple of the page size
 * \param size bytes, a multiple of the page size, inside one memory
 * \param flags a sum of GPUMEM_DMA_BUF_ values
 * \param[out] out_fd receives a new descriptor, which is closed on exec
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the descriptor was written to `*out_fd`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, a size of 0, an address or a size that is not a multiple of the
 *         page size, a range beyond the memory, or an unknown flag
 * \retval GPUMEM_ERROR_NOT_FOUND the instance has no memory there
 * \retval GPUMEM_ERROR_WRONG_KIND memory that is not on a device
 * \retval GPUMEM_ERROR_INVALID_STATE a part of the range is not mapped; or called from a host function
 * \retval GPUMEM_ERROR_UNSUPPORTED the device or the driver cannot do it
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the process has no free descriptor
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{for a driver call}
 * \threads{any thread}
 * \owner{the caller closes the descriptor}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_share_export_dma_buf(gpumem_instance instance, const void *pointer,
                                                     uint64_t size, gpumem_dma_buf_flags flags,
                                                     int32_t *out_fd, gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
