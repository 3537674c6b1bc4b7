/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file instance.h
 * Opening and closing a backend.
 */
#ifndef GPUMEM_INSTANCE_H
#define GPUMEM_INSTANCE_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What does the work: one of the GPUMEM_BACKEND_ values. */
typedef int32_t gpumem_backend;
/** The cuda backend if it can be opened, otherwise the host backend. */
#define GPUMEM_BACKEND_ANY 0
#define GPUMEM_BACKEND_CUDA 1 /**< The CUDA driver, loaded at run time. */
#define GPUMEM_BACKEND_HOST 2 /**< CPU and operating system only, with the rules of a GPU. */

/** Result of a probe. */
typedef struct gpumem_probe_info {
  size_t struct_size;     /**< `sizeof(gpumem_probe_info)` of the caller. */
  gpumem_backend backend; /**< The backend that an open would use. */
  int32_t driver_version; /**< Driver version in the driver's own counting (13000 is 13.0); 0 for host. */
  uint32_t device_count;  /**< Number of devices that an open would find. */
  /** Why #GPUMEM_BACKEND_ANY would use the host backend: the status of the cuda backend. 0 if it would not fall
   * back, or if a backend was named. */
  gpumem_status fallback_status;
  char name[64];             /**< For people, such as `CUDA driver 13.0`. */
  char fallback_reason[256]; /**< The same as one line of text; empty if there is no fallback. */
} gpumem_probe_info;

/** Initial value of a gpumem_probe_info. */
#define GPUMEM_PROBE_INFO_INIT                        \
  {                                                   \
    sizeof(gpumem_probe_info), 0, 0, 0, 0, {0}, { 0 } \
  }

/** Finds out whether a backend can be opened here, without opening it. A failure is not remembered: the next probe
 * or open looks again.
 *
 * \param backend one of the GPUMEM_BACKEND_ values
 * \param[in,out] out_info receives the result; or NULL
 * \param[out] error says why the backend is unusable, or NULL
 * \retval GPUMEM_SUCCESS the backend can be opened
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT the backend is unknown, or `out_info` has a wrong size
 * \retval GPUMEM_ERROR_UNSUPPORTED this build has no such backend, or the driver has no unified addressing
 * \retval GPUMEM_ERROR_DRIVER_NOT_FOUND there is no driver library, or only the Toolkit's stub
 * \retval GPUMEM_ERROR_DRIVER_TOO_OLD the driver is older than #GPUMEM_CUDA_DRIVER_VERSION_MIN
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks an entry point that the backend cannot do without
 * \retval GPUMEM_ERROR_NO_DEVICE the driver finds no device
 * \retval GPUMEM_ERROR_PERMISSION_DENIED this user may not open the device files
 * \retval GPUMEM_ERROR_FORKED the parent process had initialised the driver before it forked
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \blocking{while the driver initialises, which can take seconds at the first use on a machine}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_instance_probe(gpumem_backend backend, gpumem_probe_info *out_info,
                                               gpumem_error *error);

struct gpumem_host_options;
struct gpumem_cuda_options;

/** For `transfer_threads`: large copies of ordinary memory are left to the driver, as small ones are. */
#define GPUMEM_TRANSFER_OFF UINT32_MAX

/** Options for opening an instance. */
typedef struct gpumem_instance_desc {
  size_t struct_size;     /**< `sizeof(gpumem_instance_desc)` of the caller. */
  gpumem_backend backend; /**< One of the GPUMEM_BACKEND_ values. */
  /** Threads for each device that copy between it and ordinary memory or files, that of the caller included; 0 means as many as
   * help, #GPUMEM_TRANSFER_OFF none. They start at the first large copies and end when none has come for 10 seconds. */
  uint32_t transfer_threads;
  const char *
      name; /**< For messages and reports, up to 63 bytes without ASCII control characters, or NULL; copied. */
  /** Limit on page-locked bytes that live at once, including registered ones; 0 means no limit. */
  uint64_t pin_budget;
  /** Options of the host backend (see host.h), or NULL for defaults. Ignored with #GPUMEM_BACKEND_CUDA. */
  const struct gpumem_host_options *host;
  /** Options of the cuda backend (see cuda.h), or NULL for defaults. Ignored with #GPUMEM_BACKEND_HOST. */
  const struct gpumem_cuda_options *cuda;
  /** Page-locked memory that these threads use for a device at most, in bytes; 0 means 4 MiB for each. It counts
   * against `pin_budget`, and is freed where other memory lacks. */
  uint64_t transfer_bytes;
} gpumem_instance_desc;

/** Initial value of a gpumem_instance_desc. */
#define GPUMEM_INSTANCE_DESC_INIT \
  { sizeof(gpumem_instance_desc), 0, 0, NULL, 0, NULL, NULL, 0 }

/** Opens a backend. Several instances can be open at once; each has its own records and objects.
 *
 * With #GPUMEM_BACKEND_ANY, a cuda backend that cannot be opened is not a failure: the call opens the host backend,
 * logs a warning, and gpumem_instance_get_info() reports why.
 *
 * \param desc options, or NULL for the defaults of every field
 * \param[out] out_instance receives the instance
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the instance was written to `*out_instance`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL output, a wrong size, an unknown backend, or an option out of its
 *         range; the message names the option
 * \retval GPUMEM_ERROR_UNSUPPORTED see gpumem_instance_probe()
 * \retval GPUMEM_ERROR_DRIVER_NOT_FOUND see gpumem_instance_probe()
 * \retval GPUMEM_ERROR_DRIVER_TOO_OLD see gpumem_instance_probe()
 * \retval GPUMEM_ERROR_SYMBOL_MISSING see gpumem_instance_probe()
 * \retval GPUMEM_ERROR_NO_DEVICE see gpumem_instance_probe()
 * \retval GPUMEM_ERROR_PERMISSION_DENIED see gpumem_instance_probe()
 * \retval GPUMEM_ERROR_FORKED see gpumem_instance_probe()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory for the library's records
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \blocking{while the driver initialises, creates contexts, and compiles the kernel for small copies at the first use on a machine,
 *           up to seconds}
 * \threads{any thread}
 * \owner{the caller closes the instance; texts and arrays of `desc` are copied, CUDA contexts stay the caller's}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_instance_open(const gpumem_instance_desc *desc, gpumem_instance *out_instance,
                                              gpumem_error *error);

/** What closing does if objects live: one of the GPUMEM_CLOSE_ values. */
typedef int32_t gpumem_close_mode;
#define GPUMEM_CLOSE_CHECK 0 /**< Fail, and list the live objects. */
#define GPUMEM_CLOSE_FORCE 1 /**< Wait for the instance's streams, then destroy everything. */

/** Closes an instance. Afterwards every call with it or with a handle made through it fails with
 * #GPUMEM_ERROR_CLOSED.
 *
 * #GPUMEM_CLOSE_FORCE refuses calls with the instance and new objects from its beginning, and waits for calls that run.
 * Until those have returned, calls with streams and other objects may still succeed; their work is waited for. On cuda it
 * does not wait for a stream that other code is capturing, or that is the default stream of another thread. On host it waits
 * for a second at most for other processes that have recorded an event, and drops what waits for them. A stream that waits
 * for a value which nobody writes is waited for without end: write it before.
 *
 * \param instance instance to close; NULL does nothing and succeeds
 * \param mode one of the GPUMEM_CLOSE_ values
 * \param[out] out_destroyed receives the number of objects that #GPUMEM_CLOSE_FORCE destroyed; or NULL
 * \param[out] error detail of a failure, or NULL; with #GPUMEM_ERROR_BUSY the message says how much of
 *         each kind lives, and lists the first objects
 * \retval GPUMEM_SUCCESS the instance is closed
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT the mode is unknown
 * \retval GPUMEM_ERROR_BUSY #GPUMEM_CLOSE_CHECK, and memory, streams or events live, or another thread is creating
 *         or destroying one; nothing changed
 * \retval GPUMEM_ERROR_INVALID_STATE this is the default instance, which belongs to the process; or called from a
 *         host function
 * \handles
 * \blocking{a refused #GPUMEM_CLOSE_CHECK no; otherwise until calls of other threads on this instance have returned
 *         and the work of its streams, including destroyed ones, is complete. If a device is lost, until running host
 *         functions have returned; no other will start}
 * \threads{any thread, but not from a host function, the log function, or another callback of the library}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_instance_close(gpumem_instance instance, gpumem_close_mode mode,
                                               uint64_t *out_destroyed, gpumem_error *error);

/** Gets the default instance of the process, for programs and plug-ins that do not open their own.
 *
 * The first call opens it as the environment says: `GPUMEM_BACKEND` (`any`, `cuda`, `host`), `GPUMEM_PIN_BUDGET`
 * (bytes), `GPUMEM_TRANSFER_THREADS` (a number, or `off`), `GPUMEM_TRANSFER_BYTES` and the variables listed at gpumem_host_options. A process with raised privileges ignores the environment.
 * A failed open is not remembered. A forked child gets a default instance of its own.
 *
 * \param[out] out_instance receives the instance, which is never closed
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the instance was written to `*out_instance`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL output, or a variable is out of its range
 * \retval GPUMEM_ERROR_UNSUPPORTED see gpumem_instance_open()
 * \retval GPUMEM_ERROR_DRIVER_NOT_FOUND see gpumem_instance_open()
 * \retval GPUMEM_ERROR_DRIVER_TOO_OLD see gpumem_instance_open()
 * \retval GPUMEM_ERROR_SYMBOL_MISSING see gpumem_instance_open()
 * \retval GPUMEM_ERROR_NO_DEVICE see gpumem_instance_open()
 * \retval GPUMEM_ERROR_PERMISSION_DENIED see gpumem_instance_open()
 * \retval GPUMEM_ERROR_FORKED see gpumem_instance_open()
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory for the library's records
 * \retval GPUMEM_ERROR_INVALID_STATE first called from a host function
 * \blocking{at the first call, as gpumem_instance_open()}
 * \threads{any thread}
 * \owner{the process}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_instance_default(gpumem_instance *out_instance, gpumem_error *error);

/** Information about an open instance. */
typedef struct gpumem_instance_info {
  size_t struct_size;     /**< `sizeof(gpumem_instance_info)` of the caller. */
  gpumem_backend backend; /**< #GPUMEM_BACKEND_CUDA or #GPUMEM_BACKEND_HOST. */
  int32_t driver_version; /**< Driver version in the driver's own counting; 0 for host. */
  uint32_t device_count;  /**< Number of devices. */
  uint32_t strict;     /**< 1 if the host backend enforces its rules with faults and tracking; otherwise 0. */
  uint64_t pin_budget; /**< As given at open. */
  /** Why #GPUMEM_BACKEND_ANY opened the host backend: the status of the cuda backend. 0 if it did not fall back, or
   * if a backend was named. */
  gpumem_status fallback_status;
  uint32_t reserved;         /**< 0. */
  char name[64];             /**< As given at open. */
  char fallback_reason[256]; /**< The same as one line of text; empty if there was no fallback. */
} gpumem_instance_info;

/** Initial value of a gpumem_instance_info. */
#define GPUMEM_INSTANCE_INFO_INIT                                 \
  {                                                               \
    sizeof(gpumem_instance_info), 0, 0, 0, 0, 0, 0, 0, {0}, { 0 } \
  }

/** Gets information about an open instance.
 *
 * \param instance instance to query
 * \param[in,out] out_info receives the information
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the information was written to `*out_info`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_info` is NULL or has a wrong size
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
