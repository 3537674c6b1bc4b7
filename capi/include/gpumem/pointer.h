/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file pointer.h
 * Queries about any address, whether this library made it or not.
 */
#ifndef GPUMEM_POINTER_H
#define GPUMEM_POINTER_H

#include "memory.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Where memory lies, or a processor: one of the GPUMEM_LOCATION_ values. */
typedef int32_t gpumem_location;
#define GPUMEM_LOCATION_NONE 0      /**< Nowhere in particular: the memory moves, or nothing is known. */
#define GPUMEM_LOCATION_DEVICE 1    /**< A device; the id is its ordinal. */
#define GPUMEM_LOCATION_HOST 2      /**< The host, any NUMA node. */
#define GPUMEM_LOCATION_HOST_NUMA 3 /**< The host; the id is the NUMA node. */
/** The NUMA node of the calling thread; only for prefetches and advice. */
#define GPUMEM_LOCATION_HOST_NUMA_CURRENT 4

/** What a processor may do with memory in place: one of the GPUMEM_ACCESS_ values. */
typedef int32_t gpumem_access;
#define GPUMEM_ACCESS_NONE 0      /**< Nothing. */
#define GPUMEM_ACCESS_READ 1      /**< Read. */
#define GPUMEM_ACCESS_READWRITE 3 /**< Read and write. */
#define GPUMEM_ACCESS_UNKNOWN 4   /**< Memory of other code: the driver does not report it. */

/** Information about an address. */
typedef struct gpumem_pointer_info {
  size_t struct_size;       /**< `sizeof(gpumem_pointer_info)` of the caller. */
  gpumem_kind kind;         /**< Kind of memory at the address. */
  gpumem_location location; /**< Where its bytes lie. */
  int32_t location_id;      /**< Device ordinal or NUMA node of the location; -1 if it has none. */
  int32_t device_ordinal;   /**< Device that the memory was allocated or registered for; -1 if none. */
  void *host_pointer;       /**< Address of the same byte for the CPU; NULL if none. */
  void *device_pointer;     /**< Address of the same byte for devices; NULL if none. */
  void *base;         /**< First byte of the object, in the address range of the query; NULL if unknown. */
  uint64_t size;      /**< Size of the object in bytes; 0 if unknown. */
  uint64_t buffer_id; /**< Number of the allocation, never reused; 0 if none. */
  gpumem_memory_flags granted_flags; /**< Properties of the memory. */
  gpumem_memory
      memory; /**< Its handle; NULL if it was not made through this instance, and in a gpumem_range. */
  /** Handle of the buffer whose reserved addresses, or ordinary allocation, hold the address: also behind its size, where
   * nothing is mapped, and while it sleeps. gpumem_buffer_get_info() reports its `size` and, as `capacity`, how much has memory.
   * NULL anywhere else: in a gpumem_range that the caller reserved, in a block of a pool, in an import, and in a buffer that was
   * not made through this instance. */
  gpumem_buffer buffer;
} gpumem_pointer_info;

/** Initial value of a gpumem_pointer_info. */
#define GPUMEM_POINTER_INFO_INIT \
  { sizeof(gpumem_pointer_info), 0, 0, 0, 0, NULL, NULL, NULL, 0, 0, 0, NULL, NULL }

/** Gets information about an address.
 *
 * It succeeds for every address: one that neither the instance nor the driver knows is #GPUMEM_KIND_PAGEABLE if the
 * CPU can read it, and otherwise #GPUMEM_KIND_UNKNOWN. For memory of the instance it makes no driver call, and works
 * after a device was lost.
 *
 * \param instance instance to query
 * \param pointer any address but NULL
 * \param[in,out] out_info receives the information
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the information was written to `*out_info`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `pointer` or `out_info` is NULL, or `out_info` has a wrong size
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function about an address that is not memory of the instance
 * \handles
 * \blocking{no for memory of the instance; otherwise briefly, for a driver call}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_pointer_get_info(gpumem_instance instance, const void *pointer,
                                                 gpumem_pointer_info *out_info, gpumem_error *error);

/** Gets what one processor may do, in place, with the memory at an address.
 *
 * It is about loads and stores of the CPU, and about kernels and value words of a device. Copies and fills need no
 * such right. The answer can change: enabling peer access adds to it, and unmapping takes from it.
 *
 * \param instance instance to query
 * \param pointer any address but NULL, by its host or device address
 * \param location #GPUMEM_LOCATION_DEVICE for a device, #GPUMEM_LOCATION_HOST for the CPU
 * \param location_id ordinal of the device; for the CPU 0 or -1
 * \param[out] out_access receives one of the GPUMEM_ACCESS_ values
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the access was written to `*out_access`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `pointer` or `out_access` is NULL, another location, or no such device
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function about an address that is not memory of the instance
 * \handles
 * \blocking{no for memory of the instance; otherwise briefly, for a driver call}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_pointer_get_access(gpumem_instance instance, const void *pointer,
                                                   gpumem_location location, int32_t location_id,
                                                   gpumem_access *out_access, gpumem_error *error);

/** Gets the address of a byte of host memory for a device. A device pointer is returned unchanged.
 *
 * \param device device that will use the address
 * \param pointer any byte of the memory
 * \param[out] out_device_pointer receives the address
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the address was written to `*out_device_pointer`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer
 * \retval GPUMEM_ERROR_NOT_FOUND there is no known memory at the pointer
 * \retval GPUMEM_ERROR_NO_ACCESS the memory was registered without #GPUMEM_MEMORY_MAPPED, or for another device
 *         without #GPUMEM_MEMORY_PORTABLE
 * \retval GPUMEM_ERROR_UNSUPPORTED the memory is pageable and the device cannot access that, or the device cannot
 *         map host memory
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function about an address that is not memory of the instance
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
