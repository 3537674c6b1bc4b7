/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file hub.h
 * Shared memory and events under names, on a Unix socket.
 *
 * A process opens a *hub* and publishes handles of share.h under names. Others connect, which gives them a *link*, and
 * list, wait for and fetch what is there.
 *
 * A name has versions, numbered upwards while the hub is open. Publishing adds one: before that nobody sees it, and
 * from then on it is the newest. Readers of older versions keep them. A hub that is opened again begins anew.
 *
 * A hub serves its links on the sharing thread of its instance. When a process ends, however it does, its links hang
 * up: what a publisher had is gone, and importers see #GPUMEM_IMPORT_PEER_GONE.
 *
 * A *keeper* is a hub in which others publish (#GPUMEM_HUB_KEEPER). It holds their file descriptors, and so their
 * memory, after they have ended; a process that begins again attaches to what it left. `gpumem keep` is one.
 */
#ifndef GPUMEM_HUB_H
#define GPUMEM_HUB_H

#include "share.h"

#ifdef __cplusplus
extern "C" {
#endif

/** How a hub behaves: a sum of GPUMEM_HUB_ values. */
typedef uint64_t gpumem_hub_flags;
/** Links may publish and withdraw too: handles by #GPUMEM_SHARE_WAY_POSIX_FD. What they publish stays when they end. */
#define GPUMEM_HUB_KEEPER UINT64_C(0x1)
/** What links publish is also put into the store of the service manager that started this process (systemd:
 * `FileDescriptorStoreMax=`), and what an earlier keeper has put there is taken back: it survives the keeper's end,
 * until it is withdrawn. Needs #GPUMEM_HUB_KEEPER, and `$NOTIFY_SOCKET`. For one hub of a process at a time. */
#define GPUMEM_HUB_STORE UINT64_C(0x2)

/** Options for a hub. 0 as a limit means its default.
 *
 * With `users` or `groups`, no user takes all links, names, descriptors or bytes: when n users hold some, each of them may
 * hold the (n + 1)th part of what the others have left. Whoever holds more by then keeps it. The hub's own user is one of
 * them; only what the process of the hub publishes itself has no limit but the whole. */
typedef struct gpumem_hub_desc {
  size_t struct_size; /**< `sizeof(gpumem_hub_desc)` of the caller. */
  /** Path of the socket, up to 107 bytes. One that begins with `@` is an abstract address, which has no file. A name
   * without `/` stands for that file in `$XDG_RUNTIME_DIR/gpumem`, or in `/tmp/gpumem-UID` where that is not set; these
   * folders are made, for the user alone. NULL stands for the name `default`. */
  const char *path;
  uint32_t mode;          /**< Permissions of the socket file; 0 means 0600: the user alone. */
  uint32_t user_count;    /**< Number of `users`. */
  const uint32_t *users;  /**< Users that may connect beside the own one, by their ids; or NULL. */
  const uint32_t *groups; /**< Groups whose members may connect; or NULL. */
  uint32_t group_count;   /**< Number of `groups`. */
  uint32_t token_size;    /**< Bytes of `token`, at most 256; 0 with NULL. */
  /** A secret that links must show; or NULL. Copied. Links show it only to a hub of their own user or of root. */
  const void *token;
  gpumem_hub_flags flags; /**< A sum of GPUMEM_HUB_ values. */
  /** Links at once, and closed ones from which something is still imported; 64 by default. */
  uint32_t links_max;
  uint32_t names_max;    /**< Names at once; 1,024 by default. */
  uint32_t versions_max; /**< Versions of one name at once; 16 by default. */
  /** Descriptors that are held at once; 4,096 by default. In a keeper, by default half of those that RLIMIT_NOFILE leaves
   * beside its links. */
  uint32_t fds_max;
  uint64_t bytes_max;  /**< Bytes of memory that links may publish in a keeper; no limit by default. */
  uint64_t timeout_ns; /**< How long a link may take for a message that it has begun; 5 seconds by default. */
  /** For messages and reports, up to 63 bytes without ASCII control characters, or NULL; copied. */
  const char *name;
} gpumem_hub_desc;

/** Initial value of a gpumem_hub_desc. */
#define GPUMEM_HUB_DESC_INIT \
  { sizeof(gpumem_hub_desc), NULL, 0, 0, NULL, NULL, 0, 0, NULL, 0, 0, 0, 0, 0, 0, 0, NULL }

/** Opens a hub. A socket file that a dead process has left at the path is replaced.
 *
 * \param instance instance that exports what is published; for a keeper any one
 * \param desc options; NULL means all defaults
 * \param[out] out_hub receives the hub
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS links can connect
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, a path that is too long, empty or has a folder `..`, a mode above
 *         0777, a token without bytes or above 256, an unknown flag, or #GPUMEM_HUB_STORE without #GPUMEM_HUB_KEEPER
 * \retval GPUMEM_ERROR_ALREADY_EXISTS a hub of a living process has the address; or a file that is no socket; or
 *         another hub of this process uses the store
 * \retval GPUMEM_ERROR_PERMISSION_DENIED the folder may not be written, or belongs to another user
 * \retval GPUMEM_ERROR_NOT_FOUND the folder does not exist; or nobody listens at `$NOTIFY_SOCKET`
 * \retval GPUMEM_ERROR_UNSUPPORTED nothing can be shared here; the message says why. Or `$NOTIFY_SOCKET` is no address
 *         of a Unix socket
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the process has no free descriptor; or the disk is full
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function; or #GPUMEM_HUB_STORE and `$NOTIFY_SOCKET` is not set
 * \handles
 * \blocking{briefly, for system calls}
 * \threads{any thread}
 * \owner{the caller closes the hub}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_hub_open(gpumem_instance instance, const gpumem_hub_desc *desc,
                                         gpumem_hub *out_hub, gpumem_error *error);

/** Closes a hub: its links hang up, its file is removed, and its names are gone. Memory that links have imported stays
 * with them, and what is in the store of the service manager stays there.
 *
 * \param hub hub to close; NULL does nothing and succeeds
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the hub is closed
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{until calls of other threads that use the hub have returned}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_hub_close(gpumem_hub hub, gpumem_error *error);

/** Information about a hub. */
typedef struct gpumem_hub_info {
  size_t struct_size;  /**< `sizeof(gpumem_hub_info)` of the caller. */
  uint32_t link_count; /**< Links that are connected; of the closed ones that `links_max` counts too, none. */
  uint32_t name_count; /**< Names. */
  uint32_t version_count; /**< Versions of all names. */
  uint32_t fd_count;      /**< Descriptors that are held for them. */
  /** How often it has refused something since it was opened: a process that may not connect, a request with a wrong
   * value, without the right or beyond a limit, or a link that broke the protocol and was disconnected. Names that were
   * not found do not count. */
  uint64_t refused_count;
  char path[108];    /**< Where it listens: a whole path, or `@` and an abstract address. */
  char name[64];     /**< As given at opening. */
  uint32_t reserved; /**< 0. */
} gpumem_hub_info;

/** Initial value of a gpumem_hub_info. */
#define GPUMEM_HUB_INFO_INIT \
  { sizeof(gpumem_hub_info), 0, 0, 0, 0, 0, {0}, {0}, 0 }

/** Gets information about a hub.
 *
 * \param hub hub to query
 * \param[in,out] out_info receives the information
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the information was written to `*out_info`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_info` is NULL or has a wrong size
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_hub_get_info(gpumem_hub hub, gpumem_hub_info *out_info, gpumem_error *error);

/** Options for publishing. */
typedef struct gpumem_publish_desc {
  size_t struct_size; /**< `sizeof(gpumem_publish_desc)` of the caller. */
  /** Number of the version, above all that the name ever had, and at most 2^62 or one more than the last; 0 means
   * one more than the last. */
  uint64_t version;
  /** The most that links get, within what the export allows: #GPUMEM_ACCESS_READ or #GPUMEM_ACCESS_READWRITE; 0 means
   * #GPUMEM_ACCESS_READ for descriptors, and what the export allows otherwise. */
  gpumem_access access;
  uint32_t keep;           /**< How many older versions to keep; those before are withdrawn. 0 means one. */
  uint8_t fingerprint[32]; /**< What the bytes are, such as a hash of them, to be fetched by; 0 means none. */
} gpumem_publish_desc;

/** Initial value of a gpumem_publish_desc. */
#define GPUMEM_PUBLISH_DESC_INIT                \
  {                                             \
    sizeof(gpumem_publish_desc), 0, 0, 0, { 0 } \
  }

/** Publishes a handle under a name, as its newest version. The work that fills the memory must be complete.
 *
 * \param hub hub to publish in
 * \param name up to 63 bytes of UTF-8 without `/` and control characters; not empty
 * \param handle handle that the hub's instance exported
 * \param desc options; NULL means all defaults
 * \param[out] out_version receives the number of the version; or NULL
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS links see the new version
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, a bad name, a version that is too high, damaged bytes, an unknown
 *         access, more access than the export allows, or read-only access for #GPUMEM_SHARE_WAY_LEGACY
 * \retval GPUMEM_ERROR_NOT_FOUND the instance has no such export, or no longer
 * \retval GPUMEM_ERROR_ALREADY_EXISTS the name has this version, or had it and has a later one
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED a limit of the hub is reached, which the message names
 * \retval GPUMEM_ERROR_PERMISSION_DENIED in a keeper: another user has published under this name, or a link of this
 *         process this handle
 * \retval GPUMEM_ERROR_UNSUPPORTED the handle is of a newer version of the library
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function; or the name is withdrawn, and its numbers up to a higher one
 *         are used up
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_hub_publish(gpumem_hub hub, const char *name,
                                            const gpumem_share_handle *handle,
                                            const gpumem_publish_desc *desc, uint64_t *out_version,
                                            gpumem_error *error);

/** Withdraws a name, or one version of it. Importers keep what they have and see #GPUMEM_IMPORT_WITHDRAWN.
 *
 * \param hub hub of the name
 * \param name the name
 * \param version its version; 0 means all
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS links do not see it any more
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT a bad name
 * \retval GPUMEM_ERROR_NOT_FOUND the hub has no such name or version
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_hub_withdraw(gpumem_hub hub, const char *name, uint64_t version,
                                             gpumem_error *error);

/** Options for connecting. */
typedef struct gpumem_link_desc {
  size_t struct_size; /**< `sizeof(gpumem_link_desc)` of the caller. */
  const char *path;   /**< As in gpumem_hub_desc. */
  const void *token;  /**< The secret of the hub, shown only to a process of this user or of root; or NULL. */
  uint32_t token_size; /**< Bytes of `token`, at most 256; 0 with NULL. */
  uint32_t reserved;   /**< 0. */
  uint64_t timeout_ns; /**< How long the hub may take for each answer; 0 means 5 seconds. */
} gpumem_link_desc;

/** Initial value of a gpumem_link_desc. */
#define GPUMEM_LINK_DESC_INIT \
  { sizeof(gpumem_link_desc), NULL, NULL, 0, 0, 0 }

/** Connects to a hub. It does not wait for one to be opened: on #GPUMEM_ERROR_NOT_FOUND, pause and try again.
 *
 * \param instance instance that will import what is fetched
 * \param desc options; NULL means all defaults
 * \param[out] out_link receives the link
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the link is connected
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, a bad path, or a token without bytes or above 256
 * \retval GPUMEM_ERROR_NOT_FOUND no hub is there
 * \retval GPUMEM_ERROR_PERMISSION_DENIED the hub, or the permissions of its file, refuse this user or token; or the hub
 *         is of another user, who must not see a token; or the folder of a name is not of this user alone
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the hub has as many links as it takes, of all users or of this one, which the message
 *         says; or the process has no free descriptor
 * \retval GPUMEM_ERROR_BUSY the hub did not answer in time
 * \retval GPUMEM_ERROR_UNSUPPORTED the hub speaks another version of the protocol; or nothing can be shared here
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{until the hub has answered}
 * \threads{any thread}
 * \owner{the caller closes the link}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_link_connect(gpumem_instance instance, const gpumem_link_desc *desc,
                                             gpumem_link *out_link, gpumem_error *error);

/** Closes a link. Imports made through it stay valid, and their state is still updated.
 *
 * \param link link to close; NULL does nothing and succeeds
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the link is closed
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{until calls of other threads that use the link have returned; a waiting one returns
 *         #GPUMEM_ERROR_STALE_HANDLE}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_link_close(gpumem_link link, gpumem_error *error);

/** Information about a link. */
typedef struct gpumem_link_info {
  size_t struct_size; /**< `sizeof(gpumem_link_info)` of the caller. */
  int32_t pid;        /**< Process of the hub, as this process counts; 0 if not visible here, or ended. */
  uint32_t uid; /**< User who listens at its path: that of a service manager which passes the socket on. */
  uint32_t connected; /**< 1 until one side has hung up. */
  uint32_t keeper;    /**< 1 if it is a keeper. */
  char path[108];     /**< As in gpumem_hub_info. */
  uint32_t reserved;  /**< 0. */
} gpumem_link_info;

/** Initial value of a gpumem_link_info. */
#define GPUMEM_LINK_INFO_INIT \
  { sizeof(gpumem_link_info), 0, 0, 0, 0, {0}, 0 }

/** Gets information about a link.
 *
 * \param link link to query
 * \param[in,out] out_info receives the information
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the information was written to `*out_info`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_info` is NULL or has a wrong size
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_link_get_info(gpumem_link link, gpumem_link_info *out_info,
                                              gpumem_error *error);

/** One version of a name in a hub. */
typedef struct gpumem_entry_info {
  size_t struct_size;      /**< `sizeof(gpumem_entry_info)` of the caller. */
  char name[64];           /**< The name. */
  uint64_t version;        /**< Number of the version. */
  uint64_t size;           /**< Bytes of the memory; of a buffer, its capacity; 0 for an event. */
  gpumem_share_type type;  /**< Memory or event. */
  gpumem_share_way way;    /**< How it is shared. */
  gpumem_access access;    /**< The most that links get. */
  int32_t publisher_pid;   /**< The process that published it, as that of the hub counts, if it can. */
  uint32_t publisher_gone; /**< 1 if that is not connected any more, and a keeper holds what it left. */
  uint32_t publisher_uid;  /**< The user of that process, as that of the hub counts. */
  uint8_t fingerprint[32]; /**< As published. */
} gpumem_entry_info;

/** Initial value of a gpumem_entry_info. */
#define GPUMEM_ENTRY_INFO_INIT                                    \
  {                                                               \
    sizeof(gpumem_entry_info), {0}, 0, 0, 0, 0, 0, 0, 0, 0, { 0 } \
  }

/** Gets one of the versions in a hub, in the order of names and versions. What is published or withdrawn between two
 * calls may shift the places.
 *
 * \param link link to the hub
 * \param index place, from 0
 * \param[in,out] out_info receives the information
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the information was written to `*out_info`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_info` is NULL or has a wrong size
 * \retval GPUMEM_ERROR_NOT_FOUND `index` is past the end of the list
 * \retval GPUMEM_ERROR_PEER_GONE the hub has ended
 * \retval GPUMEM_ERROR_BUSY the hub did not answer in time
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{until the hub has answered}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_link_enumerate(gpumem_link link, uint32_t index, gpumem_entry_info *out_info,
                                               gpumem_error *error);

/** Waits until a name has a version after a given one.
 *
 * Fetch the version that it found. If that is #GPUMEM_ERROR_NOT_FOUND, newer ones have replaced it: wait again. The
 * numbers only grow while the hub is open, and another hub counts anew: after #GPUMEM_ERROR_PEER_GONE, connect again
 * and begin with 0.
 *
 * \param link link to the hub
 * \param name the name
 * \param after_version the newest version that this link has found; 0 waits for any
 * \param timeout_ns how long to wait, or #GPUMEM_TIMEOUT_INFINITE
 * \param[in,out] out_info receives the newest version; or NULL
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS there is one
 * \retval GPUMEM_NOT_READY there was none in time
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT a bad name, or a wrong size of `out_info`
 * \retval GPUMEM_ERROR_PEER_GONE the hub has ended
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED 64 calls wait by this link already
 * \retval GPUMEM_ERROR_BUSY the hub does not read, or refuses, before the time is over
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{until there is such a version}
 * \threads{any thread; other calls for the link go on meanwhile}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_link_wait(gpumem_link link, const char *name, uint64_t after_version,
                                          uint64_t timeout_ns, gpumem_entry_info *out_info,
                                          gpumem_error *error);

/** Options for fetching. */
typedef struct gpumem_fetch_desc {
  size_t struct_size; /**< `sizeof(gpumem_fetch_desc)` of the caller. */
  uint64_t version;   /**< Number of the version; 0 means the newest. */
  /** What the bytes must be; 0 means anything. With it and no version: the newest that has it. */
  uint8_t fingerprint[32];
} gpumem_fetch_desc;

/** Initial value of a gpumem_fetch_desc. */
#define GPUMEM_FETCH_DESC_INIT          \
  {                                     \
    sizeof(gpumem_fetch_desc), 0, { 0 } \
  }

/** Fetches the handle of a name. Its descriptors and connection are kept until gpumem_share_import() or
 * gpumem_event_import(), or for 30 seconds. The handle says over which link it came, so its bytes differ from the
 * exporter's.
 *
 * \param link link to the hub
 * \param name the name
 * \param desc options; NULL means all defaults
 * \param[out] out_handle receives the handle
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the handle was written to `*out_handle`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer or a bad name
 * \retval GPUMEM_ERROR_NOT_FOUND the hub has no such name, version or fingerprint
 * \retval GPUMEM_ERROR_PEER_GONE the hub has ended
 * \retval GPUMEM_ERROR_BUSY the hub did not answer in time
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the process has no free descriptor; or as many handles wait to be imported as
 *         may, or of the hub's user, or have as many descriptors
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{until the hub has answered}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_link_fetch(gpumem_link link, const char *name, const gpumem_fetch_desc *desc,
                                           gpumem_share_handle *out_handle, gpumem_error *error);

/** Waits until a name has memory after a given version, and imports the newest one.
 *
 * It is gpumem_link_wait(), gpumem_link_fetch() and gpumem_share_import() for the instance of the link. A version that
 * newer ones have replaced meanwhile is passed over. To follow a name, pass the version of the last one; after
 * #GPUMEM_ERROR_PEER_GONE, connect again and begin with 0.
 *
 * \param link link to the hub
 * \param name the name
 * \param after_version the newest version that this link has found; 0 waits for any
 * \param timeout_ns how long to wait for a version, or #GPUMEM_TIMEOUT_INFINITE
 * \param desc options of the import; NULL means all defaults
 * \param[in,out] out_info receives what was imported; or NULL
 * \param[out] out_pointer receives the byte that was published, as a device address; or NULL
 * \param[out] out_memory receives the memory, of #GPUMEM_KIND_IMPORTED
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the memory was written to `*out_memory`
 * \retval GPUMEM_NOT_READY there was none in time
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT a bad name, a wrong size of `out_info`, `out_memory` is NULL, the name is that of an
 *         event or a ring, or as gpumem_share_import() has it
 * \retval GPUMEM_ERROR_PEER_GONE the hub or the exporter has ended
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED 64 calls wait by this link already, the process has no free descriptor, or holds
 *         4,096 exports of that exporter; or peer access is used up
 * \retval GPUMEM_ERROR_BUSY the hub does not read, or refuses, before the time is over; the hub or the exporter did not answer in
 *         time; or other code of this process has the memory open
 * \retval GPUMEM_ERROR_INVALID_STATE this process published it by #GPUMEM_SHARE_WAY_LEGACY: use the memory itself; or
 *         called from a host function
 * \retval GPUMEM_ERROR_NO_ACCESS the publisher allows only reading
 * \retval GPUMEM_ERROR_NOT_FOUND the instance does not see the device that has the memory
 * \retval GPUMEM_ERROR_PERMISSION_DENIED the exporter refuses this user; or the driver does
 * \retval GPUMEM_ERROR_UNSUPPORTED as gpumem_share_import() has it
 * \retval GPUMEM_ERROR_ALREADY_EXISTS the addresses asked for are taken, or the memory is imported already at others
 * \retval GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE no addresses for it, or none so high
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{until there is such a version, the hub and the exporter have answered, and for driver calls}
 * \threads{any thread; other calls for the link go on meanwhile}
 * \owner{the caller destroys the memory}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_link_import_next(gpumem_link link, const char *name, uint64_t after_version,
                                                 uint64_t timeout_ns, const gpumem_import_desc *desc,
                                                 gpumem_entry_info *out_info, void **out_pointer,
                                                 gpumem_memory *out_memory, gpumem_error *error);

/** Publishes a handle in a keeper, under the rules of gpumem_hub_publish(). The keeper takes its descriptors. What was
 * imported cannot be published again; the keeper holds it already.
 *
 * After #GPUMEM_ERROR_BUSY the keeper may still have published it, or do so later. To be sure, pass a `version` and
 * call again with the same one: #GPUMEM_ERROR_ALREADY_EXISTS says that it is there.
 *
 * \param link link to a keeper
 * \param name the name
 * \param handle handle that the link's instance exported by #GPUMEM_SHARE_WAY_POSIX_FD
 * \param desc options; NULL means all defaults
 * \param[out] out_version receives the number of the version; or NULL
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the keeper has it
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT see gpumem_hub_publish()
 * \retval GPUMEM_ERROR_NOT_FOUND the instance has no such export, or no longer
 * \retval GPUMEM_ERROR_ALREADY_EXISTS the name has this version, or had it and has a later one
 * \retval GPUMEM_ERROR_UNSUPPORTED the hub is no keeper, or the handle is shared in another way or of a newer version
 *         of the library
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED a limit of the keeper is reached, or this user's share of it; the message names it
 * \retval GPUMEM_ERROR_PERMISSION_DENIED another user has published under this name, or another process exported it
 * \retval GPUMEM_ERROR_PEER_GONE the keeper has ended
 * \retval GPUMEM_ERROR_BUSY the keeper did not answer in time, and may have published it; see above. Or its service
 *         manager takes nothing
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function; or the name is withdrawn, and its numbers up to a higher one
 *         are used up
 * \handles
 * \blocking{until the keeper has answered}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_link_publish(gpumem_link link, const char *name,
                                             const gpumem_share_handle *handle,
                                             const gpumem_publish_desc *desc, uint64_t *out_version,
                                             gpumem_error *error);

/** Withdraws a name, or one version of it, from a keeper.
 *
 * \param link link to a keeper
 * \param name the name
 * \param version its version; 0 means all
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS links do not see it any more
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT a bad name
 * \retval GPUMEM_ERROR_NOT_FOUND the keeper has no such name or version
 * \retval GPUMEM_ERROR_UNSUPPORTED the hub is no keeper
 * \retval GPUMEM_ERROR_PERMISSION_DENIED another user has published it
 * \retval GPUMEM_ERROR_PEER_GONE the keeper has ended
 * \retval GPUMEM_ERROR_BUSY the keeper did not answer in time, and may have withdrawn it; call again
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{until the keeper has answered}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_link_withdraw(gpumem_link link, const char *name, uint64_t version,
                                              gpumem_error *error);

/** Says whether memory can be shared in one way with the process of the hub that the link leads to, by a trial at both
 * ends. What no export would give is refused without one, as gpumem_share_get_way() does.
 *
 * The process of the hub opens a small block of memory that is made for it in the same place, on the device that has
 * it, or with #GPUMEM_PEER_OTHER_DEVICE on another one, and each side finds what the other one has written. A keeper
 * opens nothing, and its answer is #GPUMEM_ERROR_UNSUPPORTED. The answer is kept with the link; one that may change,
 * such as #GPUMEM_ERROR_BUSY, is not.
 *
 * \param link link to a hub in the process that would import
 * \param pointer any byte of memory of the link's instance
 * \param way one of the GPUMEM_SHARE_WAY_ values but ANY. No process of this library opens a dma-buf
 * \param peer who that process is: one of the GPUMEM_PEER_ values
 * \param[in,out] out_info receives the answer
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the answer was written to `*out_info`, whatever it is; #GPUMEM_ERROR_PEER_GONE is one if the
 *         hub has ended
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, a wrong size of `out_info`, or an unknown way or peer
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{until the hub has answered, and for driver calls; no, if the answer is kept}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_link_get_way(gpumem_link link, const void *pointer, gpumem_share_way way,
                                             gpumem_share_peer peer, gpumem_way_info *out_info,
                                             gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
