/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file status.h
 * Status codes, their texts, and the detail that a failing call hands out.
 */
#ifndef GPUMEM_STATUS_H
#define GPUMEM_STATUS_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Result of a call: 0 is success, negative is a failure, positive is a note that is no failure.
 *
 * Numbers are never reused. A program treats an unknown negative number as #GPUMEM_ERROR_INTERNAL. */
typedef int32_t gpumem_status;

#define GPUMEM_SUCCESS 0   /**< Done. */
#define GPUMEM_NOT_READY 1 /**< Note: the work that was asked about is not complete. */
/** Note: a valid hint that this device or driver cannot use; nothing changed. */
#define GPUMEM_NO_EFFECT 2

#define GPUMEM_ERROR_INVALID_ARGUMENT (-101) /**< A value that no configuration accepts. */
#define GPUMEM_ERROR_WRONG_KIND (-102)       /**< The memory is of a kind that this function does not take. */
#define GPUMEM_ERROR_NOT_FOUND (-103) /**< Nothing of that name, address or id exists in this instance. */
#define GPUMEM_ERROR_ALREADY_EXISTS (-104) /**< The range or relation exists already. */
#define GPUMEM_ERROR_STALE_HANDLE (-105)   /**< The handle named an object that is gone. */

#define GPUMEM_ERROR_INVALID_STATE (-201) /**< Right object, wrong moment. */
#define GPUMEM_ERROR_NO_ACCESS (-202)     /**< The processor that would act has no right to the range. */
#define GPUMEM_ERROR_BUSY (-203)          /**< In use by other work; the same call may succeed later. */
#define GPUMEM_ERROR_CLOSED (-204)        /**< The instance is closed, or the driver is shutting down. */
#define GPUMEM_ERROR_FORKED (-205)        /**< An object of the parent was used in a forked child. */
#define GPUMEM_ERROR_PEER_GONE (-206)     /**< The other process of a shared object has ended. */
#define GPUMEM_ERROR_DEVICE_LOST (-207)   /**< The device cannot be used again until the process ends. */

#define GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY (-301) /**< No memory at a device location. */
/** No memory at a host location or for the library's records. */
#define GPUMEM_ERROR_OUT_OF_HOST_MEMORY (-302)
#define GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE (-303) /**< No address range of that size. */
#define GPUMEM_ERROR_LIMIT_EXCEEDED (-304)       /**< A limit or budget is used up; the detail names it. */

/** Valid, but this device, driver, backend or object cannot do it. */
#define GPUMEM_ERROR_UNSUPPORTED (-401)
#define GPUMEM_ERROR_PERMISSION_DENIED (-402) /**< System, driver or peer refuses this user or process. */
#define GPUMEM_ERROR_NO_DEVICE (-403)         /**< The driver is present but no usable device. */
#define GPUMEM_ERROR_DRIVER_NOT_FOUND (-404)  /**< No driver library can be loaded, or it is a stub. */
/** The driver is below #GPUMEM_CUDA_DRIVER_VERSION_MIN or mismatched. */
#define GPUMEM_ERROR_DRIVER_TOO_OLD (-405)
#define GPUMEM_ERROR_SYMBOL_MISSING (-406) /**< This driver lacks the entry point of this one function. */

#define GPUMEM_ERROR_INTERNAL (-901) /**< Anything else; the native code is attached. */

/** Oldest CUDA driver that the cuda backend works with, as the driver counts (11020 is 11.2). */
#define GPUMEM_CUDA_DRIVER_VERSION_MIN 11020

/** Whose number `native_code` is: one of the GPUMEM_NATIVE_ values. */
typedef int32_t gpumem_native_domain;
#define GPUMEM_NATIVE_NONE 0  /**< No native code: the library decided by itself. */
#define GPUMEM_NATIVE_ERRNO 1 /**< An `errno` value of the operating system. */
#define GPUMEM_NATIVE_CUDA 2  /**< A `CUresult` of the CUDA driver. */

/** What went wrong, filled by the call itself through its last parameter.
 *
 * Set it up once with #GPUMEM_ERROR_INIT and pass it to any number of calls. A call whose
 * `error->struct_size` is below the first version's size is refused with #GPUMEM_ERROR_INVALID_ARGUMENT and
 * leaves the struct alone. All texts end with a 0 byte; long ones are cut. */
typedef struct gpumem_error {
  size_t struct_size;   /**< `sizeof(gpumem_error)` of the caller; the only field the caller sets. */
  gpumem_status status; /**< The same value that the call returned. */
  gpumem_native_domain native_domain; /**< Whose number `native_code` is. */
  int32_t native_code;                /**< Code of the driver or operating system; 0 if there was none. */
  uint32_t reserved;                  /**< 0. */
  char native_name[56]; /**< Name of `native_code`, such as `CUDA_ERROR_OUT_OF_MEMORY` or `ENOMEM`. */
  char function[48];    /**< The gpumem function that failed. */
  char entry_point[48]; /**< The driver or system call that failed; empty if none was reached. */
  char message[512];    /**< One line: what is wrong and what to do. Empty on success. */
} gpumem_error;

/** Initial value of a gpumem_error. */
#define GPUMEM_ERROR_INIT                                  \
  {                                                        \
    sizeof(gpumem_error), 0, 0, 0, 0, {0}, {0}, {0}, { 0 } \
  }

/** Sets up a gpumem_error as #GPUMEM_ERROR_INIT does; for languages that cannot use macros.
 *
 * \param[out] out_error struct to set up; NULL does nothing
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API void gpumem_error_init(gpumem_error *out_error);

/** Everything that is known about one status code without a driver or an instance.
 *
 * The texts are constants of the library and stay valid for ever. */
typedef struct gpumem_status_info {
  size_t struct_size;   /**< `sizeof(gpumem_status_info)` of the caller. */
  gpumem_status status; /**< The code. */
  uint32_t reserved;    /**< 0. */
  const char *name;     /**< Its constant's name, such as `GPUMEM_ERROR_BUSY`. */
  const char *cause;    /**< One line: when it is returned. */
  const char *remedy;   /**< One line: what to do about it. */
} gpumem_status_info;

/** Initial value of a gpumem_status_info. */
#define GPUMEM_STATUS_INFO_INIT \
  { sizeof(gpumem_status_info), 0, 0, NULL, NULL, NULL }

/** Sets up a gpumem_status_info as #GPUMEM_STATUS_INFO_INIT does.
 *
 * \param[out] out_info struct to set up; NULL does nothing
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API void gpumem_status_info_init(gpumem_status_info *out_info);

/** Name of a status code, such as `"GPUMEM_ERROR_BUSY"`.
 *
 * \param status any number
 * \return a constant text, never NULL; `"GPUMEM_ERROR_?"` for a number that is not a status of this version
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API const char *gpumem_status_name(gpumem_status status);

/** Name, cause and remedy of a status code.
 *
 * \param status a status code
 * \param[in,out] out_info receives the texts; set `struct_size` before
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the texts were written
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_info` is NULL or its size wrong
 * \retval GPUMEM_ERROR_NOT_FOUND no status has this number
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_status_get_info(gpumem_status status, gpumem_status_info *out_info,
                                                gpumem_error *error);

/** The status codes of this version, one after the other, for programs that list them.
 *
 * \param index position in the list, from 0
 * \param[out] out_status receives the code at that position
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the code was written
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
