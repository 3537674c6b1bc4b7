/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file instance.h
 * Opening a backend, and closing it again.
 */
#ifndef GPUMEM_INSTANCE_H
#define GPUMEM_INSTANCE_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Who does the work: one of the GPUMEM_BACKEND_ values. */
typedef int32_t gpumem_backend;
#define GPUMEM_BACKEND_ANY 0  /**< The cuda backend if it has a usable device, otherwise the host backend. */
#define GPUMEM_BACKEND_CUDA 1 /**< The CUDA driver, loaded at run time. */
#define GPUMEM_BACKEND_HOST 2 /**< CPU and operating system only, with the rules of a GPU. */

/** What a probe found out about a backend. */
typedef struct gpumem_probe_info {
  size_t struct_size;     /**< `sizeof(gpumem_probe_info)` of the caller. */
  gpumem_backend backend; /**< The backend that an open would use. */
  int32_t driver_version; /**< Version as the driver counts (13000 is 13.0); 0 for host. */
  uint32_t device_count;  /**< Number of devices that an open would offer. */
  uint32_t reserved;      /**< 0. */
  char name[64];          /**< For people, such as `CUDA driver 13.0`. */
} gpumem_probe_info;

/** Initial value of a gpumem_probe_info. */
#define GPUMEM_PROBE_INFO_INIT                   \
  {                                              \
    sizeof(gpumem_probe_info), 0, 0, 0, 0, { 0 } \
  }

/** Sets up a gpumem_probe_info as #GPUMEM_PROBE_INFO_INIT does.
 *
 * \param[out] out_info struct to set up; NULL does nothing
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API void gpumem_probe_info_init(gpumem_probe_info *out_info);

/** Finds out whether a backend can be opened here, without opening it. A failure is not remembered: the next
 * probe or open looks again.
 *
 * \param backend one of the GPUMEM_BACKEND_ values
 * \param[in,out] out_info receives what was found, on success; or NULL
 * \param[out] error says why the backend is unusable, or NULL
 * \retval GPUMEM_SUCCESS the backend can be opened
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT unknown backend, or a wrong size in `out_info`
 * \retval GPUMEM_ERROR_UNSUPPORTED this build has no such backend, or the driver has no unified addressing
 * \retval GPUMEM_ERROR_DRIVER_NOT_FOUND no driver library, or only the Toolkit's stub
 * \retval GPUMEM_ERROR_DRIVER_TOO_OLD the driver is below #GPUMEM_CUDA_DRIVER_VERSION_MIN
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks an entry point that nothing works without
 * \retval GPUMEM_ERROR_NO_DEVICE the driver sees no device
 * \retval GPUMEM_ERROR_PERMISSION_DENIED the device files may not be opened by this user
 * \retval GPUMEM_ERROR_FORKED the parent had initialised the driver before it forked
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \blocking{while the driver initialises, which can take seconds at the first use on a machine}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_instance_probe(gpumem_backend backend, gpumem_probe_info *out_info,
                                               gpumem_error *error);

/** How an instance of the host backend behaves. Every field has a default; the default instance reads the
 * environment variable named at each field. */
typedef struct gpumem_host_options {
  size_t struct_size;    /**< `sizeof(gpumem_host_options)` of the caller. */
  uint32_t device_count; /**< Emulated devices, 1 to 64; 0 means 2. `GPUMEM_HOST_DEVICES` */
  gpumem_toggle strict;  /**< Device memory faults when the CPU touches it, and unfinished work is tracked;
                            default on. `GPUMEM_HOST_STRICT` */
  uint64_t device_bytes; /**< Memory of each device, at least one granule; 0 means 64 MiB.
                              `GPUMEM_HOST_DEVICE_BYTES` */
  uint64_t granularity;  /**< Unit in which device memory is charged: a power of two and multiple of the page,
                            at most 1 GiB; 0 means 2 MiB. `GPUMEM_HOST_GRANULARITY` */
  gpumem_toggle pageable; /**< Devices reach ordinary pageable memory; default off. `GPUMEM_HOST_PAGEABLE` */
  gpumem_toggle same_pointer; /**< Registered memory has one address for CPU and devices; default off.
                                   `GPUMEM_HOST_SAME_POINTER` */
  int32_t lock_mode; /**< One of the GPUMEM_HOST_LOCK_ values. `GPUMEM_HOST_LOCK` (`require`, `try`, `off`) */
  uint32_t numa_nodes; /**< Pretend that this many NUMA nodes exist, 1 to 64; 0 means those of the machine.
                            `GPUMEM_HOST_NUMA_NODES` */
  uint64_t register_count_max; /**< Registrations (pieces) that may live at once; 0 means 65500.
                                    `GPUMEM_HOST_REGISTER_MAX` */
  uint64_t
      lock_piece; /**< Locking works in pieces of this many bytes, a multiple of the page, at most 2^63-1; 0
                          means 256 MiB. `GPUMEM_HOST_LOCK_PIECE` */
  /** How many freed address ranges stay inaccessible before they can be used again, 1 to 65536; 0 means 64.
   * `GPUMEM_HOST_QUARANTINE` */
  uint32_t quarantine;
  gpumem_toggle fill; /**< Fresh memory is filled with 0xA5; default as `strict`. `GPUMEM_HOST_FILL` */
  const char *peers;  /**< Directed links between devices: `"all"`, `"none"`, or a list such as `"0>1,1>0"`.
                         NULL means all. `GPUMEM_HOST_PEERS` */
  const char *masked; /**< Comma-separated entry points to treat as missing: `launch_host_function`,
                         `write_value`, `wait_value`, `register`, `copy_2d`, `fill_2d`, `peer_access`. NULL
                         means none. `GPUMEM_HOST_MASKED` */
} gpumem_host_options;

#define GPUMEM_HOST_LOCK_DEFAULT 0 /**< As #GPUMEM_HOST_LOCK_TRY. */
#define GPUMEM_HOST_LOCK_TRY 1     /**< Lock if the limits allow; the granted flags tell. */
#define GPUMEM_HOST_LOCK_REQUIRE 2 /**< Fail if the limits do not allow it. */
#define GPUMEM_HOST_LOCK_OFF 3     /**< Never lock. */

/** Initial value of a gpumem_host_options. */
#define GPUMEM_HOST_OPTIONS_INIT \
  { sizeof(gpumem_host_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL }

/** Sets up a gpumem_host_options as #GPUMEM_HOST_OPTIONS_INIT does.
 *
 * \param[out] out_options struct to set up; NULL does nothing
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API void gpumem_host_options_init(gpumem_host_options *out_options);

/** What is to be opened. */
typedef struct gpumem_instance_desc {
  size_t struct_size;     /**< `sizeof(gpumem_instance_desc)` of the caller. */
  gpumem_backend backend; /**< One of the GPUMEM_BACKEND_ values. */
  uint32_t reserved;      /**< 0. */
  const char *name;       /**< For messages and reports, up to 63 bytes, or NULL; copied. */
  /** Page-locked bytes that may live at once, registered ones included; 0 means no limit. */
  uint64_t pin_budget;
  /** Options of the host backend, or NULL; used only if that backend is opened. */
  const gpumem_host_options *host;
  void *const *cuda_contexts;  /**< `CUcontext` values of the caller to work in, one for each device at most,
                                  instead of the primary contexts of these devices; or NULL. They must outlive
                                  the instance. Used only if the cuda backend is opened. */
  uint64_t cuda_context_count; /**< Number of entries of `cuda_contexts`. */
} gpumem_instance_desc;

/** Initial value of a gpumem_instance_desc. */
#define GPUMEM_INSTANCE_DESC_INIT \
  { sizeof(gpumem_instance_desc), 0, 0, NULL, 0, NULL, NULL, 0 }

/** Sets up a gpumem_instance_desc as #GPUMEM_INSTANCE_DESC_INIT does.
 *
 * \param[out] out_desc struct to set up; NULL does nothing
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API void gpumem_instance_desc_init(gpumem_instance_desc *out_desc);

/** Opens a backend. Several instances of one or of different backends may live side by side.
 *
 * \param desc what to open; NULL means #GPUMEM_BACKEND_ANY with defaults
 * \param[out] out_instance receives the instance
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS opened; close it with gpumem_instance_close()
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT a NULL output, a wrong size, an unknown backend or an option out of
 *         its range
 * \retval GPUMEM_ERROR_UNSUPPORTED this build has no such backend, or the driver has no unified addressing
 * \retval GPUMEM_ERROR_DRIVER_NOT_FOUND see gpumem_instance_probe()
 * \retval GPUMEM_ERROR_DRIVER_TOO_OLD see gpumem_instance_probe()
 * \retval GPUMEM_ERROR_SYMBOL_MISSING see gpumem_instance_probe()
 * \retval GPUMEM_ERROR_NO_DEVICE see gpumem_instance_probe()
 * \retval GPUMEM_ERROR_PERMISSION_DENIED see gpumem_instance_probe()
 * \retval GPUMEM_ERROR_FORKED see gpumem_instance_probe()
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory for the library's records
 * \blocking{while the driver initialises and creates its primary contexts}
 * \threads{any thread}
 * \owner{the caller closes the instance; texts and arrays of `desc` are copied, CUDA contexts stay the
 *         caller's}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_instance_open(const gpumem_instance_desc *desc, gpumem_instance *out_instance,
                                              gpumem_error *error);

/** What to do with objects that live at close: one of the GPUMEM_CLOSE_ values. */
typedef int32_t gpumem_close_mode;
#define GPUMEM_CLOSE_CHECK 0 /**< Refuse, and say what lives. */
#define GPUMEM_CLOSE_FORCE 1 /**< Wait for the instance's streams, then destroy everything. */

/** Closes an instance. Afterwards every call with it or with a handle made through it fails with
 * #GPUMEM_ERROR_CLOSED. With #GPUMEM_CLOSE_FORCE that is so from the beginning of the call on: no work is enqueued
 * once it waits. On cuda it does not wait for a stream that other code is capturing, or that is the default stream of
 * another thread.
 *
 * \param instance instance to close; NULL does nothing and succeeds
 * \param mode one of the GPUMEM_CLOSE_ values
 * \param[out] out_destroyed receives how many objects #GPUMEM_CLOSE_FORCE destroyed; or NULL
 * \param[out] error detail of a failure, or NULL; with #GPUMEM_ERROR_BUSY the message lists the first objects
 * \retval GPUMEM_SUCCESS closed
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT unknown mode
 * \retval GPUMEM_ERROR_BUSY #GPUMEM_CLOSE_CHECK, and memory, streams or events live, or another thread is just
 *         making or destroying one; nothing changed
 * \retval GPUMEM_ERROR_INVALID_STATE the default instance, which belongs to the process; or called from a
 *         host function
 * \handles
 * \blocking{a refused #GPUMEM_CLOSE_CHECK no; otherwise until calls of other threads on this instance have
 *         returned and the work of its streams, destroyed ones too, is complete; if a device is lost, until host functions that
 *         run have returned: no other will begin}
 * \threads{any thread, but not from a host function or the log function}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_instance_close(gpumem_instance instance, gpumem_close_mode mode,
                                               uint64_t *out_destroyed, gpumem_error *error);

/** The one instance of the process for people and plug-ins that want one without asking. The first call opens
 * it as the environment says: `GPUMEM_BACKEND` (`any`, `cuda`, `host`), `GPUMEM_PIN_BUDGET` (bytes) and the
 * variables of gpumem_host_options. In a process with raised privileges the environment is ignored. A failed
 * open is not remembered. A forked child gets its own.
 *
 * \param[out] out_instance receives the instance; it is never closed
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS here it is
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL output, or a variable with a value out of its range
 * \retval GPUMEM_ERROR_UNSUPPORTED see gpumem_instance_open()
 * \retval GPUMEM_ERROR_DRIVER_NOT_FOUND see gpumem_instance_open()
 * \retval GPUMEM_ERROR_DRIVER_TOO_OLD see gpumem_instance_open()
 * \retval GPUMEM_ERROR_SYMBOL_MISSING see gpumem_instance_open()
 * \retval GPUMEM_ERROR_NO_DEVICE see gpumem_instance_open()
 * \retval GPUMEM_ERROR_PERMISSION_DENIED see gpumem_instance_open()
 * \retval GPUMEM_ERROR_FORKED see gpumem_instance_open()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory for the library's records
 * \blocking{at the first call, as gpumem_instance_open()}
 * \threads{any thread}
 * \owner{the process}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_instance_default(gpumem_instance *out_instance, gpumem_error *error);

/** What is known about an open instance. */
typedef struct gpumem_instance_info {
  size_t struct_size;     /**< `sizeof(gpumem_instance_info)` of the caller. */
  gpumem_backend backend; /**< #GPUMEM_BACKEND_CUDA or #GPUMEM_BACKEND_HOST. */
  int32_t driver_version; /**< Version as the driver counts; 0 for host. */
  uint32_t device_count;  /**< Number of devices. */
  uint32_t strict;     /**< 1 if the host backend enforces its rules by faults and tracking; 0 otherwise. */
  uint64_t pin_budget; /**< As given at open. */
  char name[64];       /**< As given at open. */
} gpumem_instance_info;

/** Initial value of a gpumem_instance_info. */
#define GPUMEM_INSTANCE_INFO_INIT                      \
  {                                                    \
    sizeof(gpumem_instance_info), 0, 0, 0, 0, 0, { 0 } \
  }

/** Sets up a gpumem_instance_info as #GPUMEM_INSTANCE_INFO_INIT does.
 *
 * \param[out] out_info struct to set up; NULL does nothing
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API void gpumem_instance_info_init(gpumem_instance_info *out_info);

/** What is known about an open instance.
 *
 * \param instance instance to ask
 * \param[in,out] out_info receives the answer
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the answer was written
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_info` is NULL or its size wrong
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_instance_get_info(gpumem_instance instance, gpumem_instance_info *out_info,
                                                  gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
