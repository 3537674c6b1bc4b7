/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file pointer.h
 * What is this pointer? For any address, ours or not.
 */
#ifndef GPUMEM_POINTER_H
#define GPUMEM_POINTER_H

#include "memory.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Where bytes lie: one of the GPUMEM_LOCATION_ values. */
typedef int32_t gpumem_location;
#define GPUMEM_LOCATION_NONE 0      /**< Nowhere that can be named. */
#define GPUMEM_LOCATION_DEVICE 1    /**< A device; its ordinal beside it. */
#define GPUMEM_LOCATION_HOST 2      /**< The host, any node. */
#define GPUMEM_LOCATION_HOST_NUMA 3 /**< The host; the node beside it. */

/** Rights of devices to memory: one of the GPUMEM_ACCESS_ values. */
typedef int32_t gpumem_access;
#define GPUMEM_ACCESS_NONE 0      /**< No right. */
#define GPUMEM_ACCESS_READ 1      /**< Read. */
#define GPUMEM_ACCESS_READWRITE 3 /**< Read and write. */
#define GPUMEM_ACCESS_UNKNOWN 4   /**< Foreign memory: the driver does not tell. */

/** What is known about an address. */
typedef struct gpumem_pointer_info {
  size_t struct_size;       /**< `sizeof(gpumem_pointer_info)` of the caller. */
  gpumem_kind kind;         /**< What it is. */
  gpumem_location location; /**< Where its bytes lie. */
  int32_t location_id;      /**< Device ordinal or NUMA node of the location; -1 if it has none. */
  int32_t device_ordinal;   /**< Device of the allocation or registration; -1 if none. */
  void *host_pointer;       /**< The same byte for the CPU; NULL if none. */
  void *device_pointer;     /**< The same byte for devices; NULL if none. */
  void *base;    /**< First byte of the object, in the address range that was asked in; NULL if unknown. */
  uint64_t size; /**< Bytes of the object; 0 if unknown. */
  uint64_t buffer_id;                /**< Number of the allocation, never used again; 0 if none. */
  gpumem_memory_flags granted_flags; /**< Its properties. */
  gpumem_access access;              /**< What the devices in `access_devices` may do. */
  uint32_t reserved;                 /**< 0. */
  uint64_t access_devices;           /**< Bit n stands for the device with ordinal n. */
  gpumem_memory memory;              /**< Its handle; NULL if it was not made through this instance. */
} gpumem_pointer_info;

/** Initial value of a gpumem_pointer_info. */
#define GPUMEM_POINTER_INFO_INIT \
  { sizeof(gpumem_pointer_info), 0, 0, 0, 0, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, NULL }

/** Sets up a gpumem_pointer_info as #GPUMEM_POINTER_INFO_INIT does.
 *
 * \param[out] out_info struct to set up; NULL does nothing
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API void gpumem_pointer_info_init(gpumem_pointer_info *out_info);

/** What is this pointer? Every address has an answer; an unknown one is #GPUMEM_KIND_PAGEABLE if the CPU can
 * read it and #GPUMEM_KIND_UNKNOWN otherwise. For memory of the instance no driver is asked, and the answer
 * also comes after a device was lost.
 *
 * \param instance instance to ask
 * \param pointer any address but NULL
 * \param[in,out] out_info receives the answer
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the answer was written
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT a NULL pointer, or a wrong size in `out_info`
 * \handles
 * \blocking{no for memory of the instance; otherwise briefly, for a driver call}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_pointer_get_info(gpumem_instance instance, const void *pointer,
                                                 gpumem_pointer_info *out_info, gpumem_error *error);

/** Address of a byte of host memory for a device. A device pointer is returned as it is.
 *
 * \param device device that will use the address
 * \param pointer any byte inside the memory
 * \param[out] out_device_pointer receives the address
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the address was written
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT a NULL pointer
 * \retval GPUMEM_ERROR_NOT_FOUND no known memory is there
 * \retval GPUMEM_ERROR_NO_ACCESS registered without #GPUMEM_MEMORY_MAPPED, or for another device without
 *         #GPUMEM_MEMORY_PORTABLE
 * \retval GPUMEM_ERROR_UNSUPPORTED the memory is pageable and the device does not reach that, or the device
 *         cannot map host memory
 * \handles
 * \blocking{no for memory of the instance; otherwise briefly, for a driver call}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_pointer_get_device_pointer(gpumem_device device, const void *pointer,
                                                           void **out_device_pointer, gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
