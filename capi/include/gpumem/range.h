/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file range.h
 * Ranges of addresses, and what is mapped in them: virtual memory management at its own level.
 *
 * A range is reserved without memory. Blocks of physical memory (gpumem_physical) are mapped into it, of several devices and of
 * the host if wished, and each processor is given access. The addresses stay the same when more is mapped behind, which
 * disturbs nothing that is there.
 *
 * Offsets count from the first byte of the range. Mapping, unmapping and changes of access happen at the call, not in the
 * order of a stream.
 */
#ifndef GPUMEM_RANGE_H
#define GPUMEM_RANGE_H

#include "physical.h"

#ifdef __cplusplus
extern "C" {
#endif

/** How a range is reserved: a sum of GPUMEM_RANGE_ values. */
typedef uint64_t gpumem_range_flags;
#define GPUMEM_RANGE_FIXED UINT64_C(0x1) /**< At `address` exactly, or not at all. */

/** Options for a range. */
typedef struct gpumem_range_desc {
  size_t struct_size; /**< `sizeof(gpumem_range_desc)` of the caller. */
  uint64_t size;      /**< Bytes, a multiple of the granularity of every device of the instance. */
  uint64_t alignment; /**< Power of two in bytes, met exactly or refused; 0 means the granularity. */
  /** Where the range should begin, a multiple of the granularity and of `alignment`; NULL means anywhere. */
  void *address;
  gpumem_range_flags flags; /**< A sum of GPUMEM_RANGE_ values. */
  const char *
      name; /**< For messages and reports, up to 63 bytes without ASCII control characters, or NULL; copied. */
} gpumem_range_desc;

/** Initial value of a gpumem_range_desc. */
#define GPUMEM_RANGE_DESC_INIT \
  { sizeof(gpumem_range_desc), 0, 0, NULL, 0, NULL }

/** Reserves addresses, far more than there is memory if wished. No processor can access them before something is mapped.
 *
 * \param instance instance of the range
 * \param desc options
 * \param[out] out_range receives the range
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the range was written to `*out_range`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, a size of 0, above 2^63-1 or not a multiple of the granularity, an
 *         alignment that is not a power of two, a misaligned address, #GPUMEM_RANGE_FIXED without an address, or an
 *         unknown flag
 * \retval GPUMEM_ERROR_ALREADY_EXISTS #GPUMEM_RANGE_FIXED, and the addresses are in use
 * \retval GPUMEM_ERROR_UNSUPPORTED no device has virtual memory management, or the alignment cannot be met
 * \retval GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE there is no free range of that size
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{briefly, for a driver call}
 * \threads{any thread}
 * \owner{the caller releases the range}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_range_reserve(gpumem_instance instance, const gpumem_range_desc *desc,
                                              gpumem_range *out_range, gpumem_error *error);

/** Gives the addresses back. Nothing may be mapped in the range.
 *
 * \param range range to release; NULL does nothing and succeeds
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the range is released
 * \retval GPUMEM_ERROR_BUSY something is mapped in the range, unmap it first; or the driver was busy, again and again
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{until calls of other threads that use the range have returned, and for a driver call}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_range_release(gpumem_range range, gpumem_error *error);

/** Information about a range. */
typedef struct gpumem_range_info {
  size_t struct_size;     /**< `sizeof(gpumem_range_info)` of the caller. */
  void *base;             /**< First byte. */
  uint64_t size;          /**< Bytes reserved. */
  uint64_t granularity;   /**< Offsets of mappings are multiples of this. */
  uint64_t mapped_size;   /**< Bytes mapped. */
  uint64_t mapping_count; /**< Number of mappings. */
  uint64_t buffer_id;     /**< Number of this reservation, unique in the process and never reused. */
  char name[64];          /**< As given at its making. */
} gpumem_range_info;

/** Initial value of a gpumem_range_info. */
#define GPUMEM_RANGE_INFO_INIT                            \
  {                                                       \
    sizeof(gpumem_range_info), NULL, 0, 0, 0, 0, 0, { 0 } \
  }

/** Gets information about a range. It makes no driver call.
 *
 * \param range range to query
 * \param[in,out] out_info receives the information
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the information was written to `*out_info`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_info` is NULL or has a wrong size
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_range_get_info(gpumem_range range, gpumem_range_info *out_info,
                                               gpumem_error *error);

/** Maps blocks of physical memory one behind the other, all or none. Each is mapped whole. No processor has access to a
 * new mapping, not even the device of the block: see gpumem_range_set_access(). Work on other parts of the range may go on.
 *
 * \param range range to map into
 * \param offset where the first block begins, a multiple of the granularity
 * \param physicals array of `count` blocks; one may be there more than once, and may be mapped elsewhere
 * \param count number of blocks, at least 1
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the blocks are mapped
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL array, a count of 0, a misaligned offset, blocks that do not fit into the range,
 *         or a block of another instance
 * \retval GPUMEM_ERROR_ALREADY_EXISTS something is mapped there; it stays as it is
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the process has as many mappings as it may have
 * \retval GPUMEM_ERROR_DEVICE_LOST a device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \retval GPUMEM_ERROR_BUSY the driver was busy, again and again; try later
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{for driver calls, microseconds for each block}
 * \threads{any thread}
 * \owner{the mapping keeps the memory alive; the handles stay the caller's}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_range_map(gpumem_range range, uint64_t offset,
                                          const gpumem_physical *physicals, uint64_t count,
                                          gpumem_error *error);

/** All that is mapped in a range, wherever it is, also if that is nothing: for gpumem_range_unmap(). */
#define GPUMEM_WHOLE_RANGE UINT64_MAX

/** Unmaps whole mappings, one or several in a row. The addresses are reserved again. All work that uses them must have been
 * observed complete: a wait of one stream for another is no such observation.
 *
 * \param range range to unmap in
 * \param offset where the first mapping begins
 * \param size bytes, up to the end of the last mapping; or #GPUMEM_WHOLE_RANGE, with an offset of 0
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the mappings are gone, also if a device is lost
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT a size of 0, a part of a mapping, or a range that leaves the reservation
 * \retval GPUMEM_ERROR_INVALID_STATE a part of the range has no mapping; or called from a host function
 * \retval GPUMEM_ERROR_BUSY the driver was busy, again and again; or, on the strict host backend, work that uses the memory was
 *         not observed complete. All stays mapped; of the whole range, what does not lie before something that is in use
 * \handles
 * \blocking{until calls of other threads that use the range have returned, and for driver calls}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_range_unmap(gpumem_range range, uint64_t offset, uint64_t size,
                                            gpumem_error *error);

/** What one processor may do. */
typedef struct gpumem_access_desc {
  size_t struct_size;       /**< `sizeof(gpumem_access_desc)` of the caller. */
  gpumem_location location; /**< #GPUMEM_LOCATION_DEVICE or #GPUMEM_LOCATION_HOST. */
  int32_t location_id;      /**< Ordinal of the device; 0 for the CPU. */
  gpumem_access access;     /**< #GPUMEM_ACCESS_NONE, #GPUMEM_ACCESS_READ or #GPUMEM_ACCESS_READWRITE. */
  uint32_t reserved;        /**< 0. */
} gpumem_access_desc;

/** Initial value of a gpumem_access_desc. */
#define GPUMEM_ACCESS_DESC_INIT \
  { sizeof(gpumem_access_desc), 0, 0, 0, 0 }

/** Sets what processors may do with whole mappings, one or several in a row; all is set or nothing. Processors that are not
 * named keep what they have.
 *
 * Access may be added at any time. Before some is taken away, all work that uses it must have been observed complete.
 *
 * \param range range to change
 * \param offset where the first mapping begins
 * \param size bytes, up to the end of the last mapping
 * \param accesses array of `count` entries; each has the `struct_size` of the first, which is the distance between them
 * \param count number of entries, at least 1
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the access is set
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL array, a count of 0, a size of 0, an unknown location or access, no such device,
 *         a processor that is named twice, a part of a mapping, or a range that leaves the reservation
 * \retval GPUMEM_ERROR_INVALID_STATE a part of the range has no mapping; or called from a host function
 * \retval GPUMEM_ERROR_UNSUPPORTED the CPU and memory of a device, or a device without a link to the one that has the memory
 * \retval GPUMEM_ERROR_BUSY the driver was busy, again and again, and nothing changed, or not all could be undone:
 *         gpumem_pointer_get_access() tells; or, on the strict host backend, work that uses the memory was not observed complete
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the process has as many mappings as it may have
 * \retval GPUMEM_ERROR_DEVICE_LOST a device is lost
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{for driver calls, longer for more bytes}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_range_set_access(gpumem_range range, uint64_t offset, uint64_t size,
                                                 const gpumem_access_desc *accesses, uint64_t count,
                                                 gpumem_error *error);

/** What is mapped at an address. */
typedef struct gpumem_mapping_info {
  size_t struct_size; /**< `sizeof(gpumem_mapping_info)` of the caller. */
  gpumem_range range; /**< The range that the address lies in. */
  void *base;         /**< First byte of the mapping. */
  uint64_t size;      /**< Bytes of the mapping. */
  uint64_t block_id;  /**< Number of the physical memory; the same for every mapping and handle of it. */
  gpumem_location location; /**< Where the memory lies. */
  int32_t location_id;      /**< Ordinal of the device or NUMA node; -1 if it has none. */
} gpumem_mapping_info;

/** Initial value of a gpumem_mapping_info. */
#define GPUMEM_MAPPING_INFO_INIT \
  { sizeof(gpumem_mapping_info), NULL, NULL, 0, 0, 0, 0 }

/** Gets what is mapped at an address. What a processor may do there, gpumem_pointer_get_access() says.
 *
 * \param instance instance that mapped it
 * \param pointer any byte of a mapping
 * \param[in,out] out_info receives the information
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the information was written to `*out_info`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, or `out_info` has a wrong size
 * \retval GPUMEM_ERROR_NOT_FOUND there is no memory of this instance at the pointer
 * \retval GPUMEM_ERROR_WRONG_KIND the address is not in a gpumem_range
 * \retval GPUMEM_ERROR_INVALID_STATE nothing is mapped at the address
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_range_get_mapping(gpumem_instance instance, const void *pointer,
                                                  gpumem_mapping_info *out_info, gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
