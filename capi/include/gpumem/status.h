/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file status.h
 * Status codes, their texts, and the error detail that a failing call fills in.
 */
#ifndef GPUMEM_STATUS_H
#define GPUMEM_STATUS_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Result of a call: 0 is success, negative is a failure, positive is a note.
 *
 * Test it with #GPUMEM_FAILED, because a note is not a failure. Numbers are never reused. Treat an unknown negative
 * number as #GPUMEM_ERROR_INTERNAL. */
typedef int32_t gpumem_status;

/** Whether a status is a failure. Success and notes are not. */
#define GPUMEM_FAILED(status) ((status) < 0)

#define GPUMEM_SUCCESS 0   /**< Done. */
#define GPUMEM_NOT_READY 1 /**< Note: the work that was queried is not complete. */
/** Note: the hint is valid, but this device or driver cannot use it; nothing changed. */
#define GPUMEM_NO_EFFECT 2

#define GPUMEM_ERROR_INVALID_ARGUMENT (-101) /**< A value that no configuration accepts. */
#define GPUMEM_ERROR_WRONG_KIND (-102)       /**< The memory is of a kind that this function does not take. */
#define GPUMEM_ERROR_NOT_FOUND (-103)        /**< This instance has nothing of that name, address or id. */
#define GPUMEM_ERROR_ALREADY_EXISTS (-104)   /**< The range or relation exists already. */
#define GPUMEM_ERROR_STALE_HANDLE (-105)     /**< The object of this handle was destroyed. */

#define GPUMEM_ERROR_INVALID_STATE (-201) /**< Right object, wrong moment. */
#define GPUMEM_ERROR_NO_ACCESS (-202)     /**< The processor that would act has no right to the range. */
#define GPUMEM_ERROR_BUSY (-203)          /**< In use by other work; the same call may succeed later. */
#define GPUMEM_ERROR_CLOSED (-204)        /**< The instance is closed, or the driver is shutting down. */
#define GPUMEM_ERROR_FORKED (-205)        /**< An object of the parent process was used in a forked child. */
#define GPUMEM_ERROR_PEER_GONE (-206)     /**< The other process of a shared object has ended. */
#define GPUMEM_ERROR_DEVICE_LOST (-207)   /**< The device cannot be used again until the process ends. */
#define GPUMEM_ERROR_CANCELLED (-208)     /**< The caller's progress function ended the call. */
#define GPUMEM_ERROR_CONTENT_LOST (-209)  /**< Content that was kept can no longer be read. */

#define GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY (-301) /**< Not enough memory on a device. */
/** Not enough host memory, for the request or for the library's records. */
#define GPUMEM_ERROR_OUT_OF_HOST_MEMORY (-302)
#define GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE (-303) /**< No address range of that size. */
#define GPUMEM_ERROR_LIMIT_EXCEEDED (-304)       /**< A limit or budget is used up; the message names it. */

/** The request is valid, but this device, driver, backend or object cannot do it. */
#define GPUMEM_ERROR_UNSUPPORTED (-401)
#define GPUMEM_ERROR_PERMISSION_DENIED (-402) /**< System, driver or peer refuses this user or process. */
#define GPUMEM_ERROR_NO_DEVICE (-403)         /**< The driver is present but has no usable device. */
#define GPUMEM_ERROR_DRIVER_NOT_FOUND (-404)  /**< No driver library can be loaded, or only a stub. */
/** The driver is older than #GPUMEM_CUDA_DRIVER_VERSION_MIN or mismatched. */
#define GPUMEM_ERROR_DRIVER_TOO_OLD (-405)
#define GPUMEM_ERROR_SYMBOL_MISSING (-406) /**< This driver lacks the entry point of this one function. */

#define GPUMEM_ERROR_INTERNAL (-901) /**< Anything else; the native code is attached. */

/** Oldest CUDA driver that the cuda backend works with, in the driver's own counting (11020 is 11.2). */
#define GPUMEM_CUDA_DRIVER_VERSION_MIN 11020

/** What `native_code` is a code of: one of the GPUMEM_NATIVE_ values. */
typedef int32_t gpumem_native_domain;
#define GPUMEM_NATIVE_NONE 0  /**< There is no native code: the library decided by itself. */
#define GPUMEM_NATIVE_ERRNO 1 /**< An `errno` value of the operating system. */
#define GPUMEM_NATIVE_CUDA 2  /**< A `CUresult` of the CUDA driver. */

/** Error detail of a call, filled in by the call itself through its last parameter.
 *
 * Initialise it once with #GPUMEM_ERROR_INIT and pass it to any number of calls. If `struct_size` is smaller than
 * in the first version, the call fails with #GPUMEM_ERROR_INVALID_ARGUMENT and does not touch the struct. All texts
 * are 0-terminated; long ones are truncated. */
typedef struct gpumem_error {
  size_t struct_size;   /**< `sizeof(gpumem_error)` of the caller; the only field that the caller sets. */
  gpumem_status status; /**< The status that the call returned. */
  gpumem_native_domain native_domain; /**< What `native_code` is a code of. */
  int32_t native_code;                /**< Code of the driver or operating system; 0 if there was none. */
  uint32_t reserved;                  /**< 0. */
  /** Name of `native_code`, such as `CUDA_ERROR_OUT_OF_MEMORY` or `ENOMEM`; empty if it is not known, as those of `errno` are not
   * with a glibc before 2.32. */
  char native_name[56];
  char function[48];    /**< The gpumem function that failed. */
  char entry_point[48]; /**< The driver or system call that failed; empty if none was reached. */
  char message[512];    /**< One line: what is wrong and what to do. Empty on success. */
} gpumem_error;

/** Initial value of a gpumem_error. */
#define GPUMEM_ERROR_INIT                                  \
  {                                                        \
    sizeof(gpumem_error), 0, 0, 0, 0, {0}, {0}, {0}, { 0 } \
  }

/** Name, cause and remedy of a status code. The texts are constants of the library and stay valid forever. */
typedef struct gpumem_status_info {
  size_t struct_size;   /**< `sizeof(gpumem_status_info)` of the caller. */
  gpumem_status status; /**< The code. */
  uint32_t reserved;    /**< 0. */
  const char *name;     /**< Name of its constant, such as `GPUMEM_ERROR_BUSY`. */
  const char *cause;    /**< One line: when it is returned. */
  const char *remedy;   /**< One line: what to do about it. */
} gpumem_status_info;

/** Initial value of a gpumem_status_info. */
#define GPUMEM_STATUS_INFO_INIT \
  { sizeof(gpumem_status_info), 0, 0, NULL, NULL, NULL }

/** Returns the name of a status code, such as `"GPUMEM_ERROR_BUSY"`.
 *
 * \param status any number
 * \return a constant string, never NULL; `"GPUMEM_ERROR_?"` for a number that is not a status of this version
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API const char *gpumem_status_name(gpumem_status status);

/** Gets the name, cause and remedy of a status code. It needs no driver and no instance.
 *
 * \param status a status code
 * \param[in,out] out_info receives the texts; set `struct_size` first
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the texts were written to `*out_info`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_info` is NULL or has a wrong size
 * \retval GPUMEM_ERROR_NOT_FOUND no status has this number
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_status_get_info(gpumem_status status, gpumem_status_info *out_info,
                                                gpumem_error *error);

/** Enumerates the status codes of this version.
 *
 * \param index position in the list, from 0
 * \param[out] out_status receives the code at that position
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the code was written to `*out_status`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_status` is NULL
 * \retval GPUMEM_ERROR_NOT_FOUND `index` is past the end of the list
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_status_enumerate(uint32_t index, gpumem_status *out_status,
                                                 gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
