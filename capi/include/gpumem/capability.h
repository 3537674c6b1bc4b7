/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file capability.h
 * What a device can do here, how that was found out, and why not.
 */
#ifndef GPUMEM_CAPABILITY_H
#define GPUMEM_CAPABILITY_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Something that can be asked of a device: one of the GPUMEM_CAPABILITY_ values. */
typedef int32_t gpumem_capability;
#define GPUMEM_CAPABILITY_UVA 1               /**< `uva`: one address space for host and devices. */
#define GPUMEM_CAPABILITY_DEVICE_COUNT 2      /**< `device.count`: devices of the instance. */
#define GPUMEM_CAPABILITY_DEVICE_BYTES 3      /**< `device.bytes`: memory of the device. */
#define GPUMEM_CAPABILITY_DEVICE_CPU_ACCESS 4 /**< `dev.cpu_access`: the CPU may touch device memory. */
#define GPUMEM_CAPABILITY_PIN_MAP_HOST 10 /**< `pin.map_host`: the device can use pinned memory in place. */
#define GPUMEM_CAPABILITY_PIN_PAGE_LOCKED 11    /**< `pin.page_locked`: pinned pages are really locked. */
#define GPUMEM_CAPABILITY_PIN_WRITE_COMBINED 12 /**< `pin.write_combined`: write-combined pinned memory. */
#define GPUMEM_CAPABILITY_PIN_REGISTER 13       /**< `pin.register`: pinning of memory that exists already. */
/** `pin.register_same_pointer`: registered memory has one address for CPU and devices. */
#define GPUMEM_CAPABILITY_PIN_REGISTER_SAME_POINTER 14
/** `pin.register_read_only`: pinning for reading only. */
#define GPUMEM_CAPABILITY_PIN_REGISTER_READ_ONLY 15
/** `pin.register_iomemory`: pinning of memory-mapped I/O. */
#define GPUMEM_CAPABILITY_PIN_REGISTER_IOMEMORY 16
/** `pin.max_single`: bytes of the largest range that is locked in one piece. */
#define GPUMEM_CAPABILITY_PIN_MAX_SINGLE 17
#define GPUMEM_CAPABILITY_PIN_MAX_COUNT 18 /**< `pin.max_count`: pieces that may be locked at once. */
#define GPUMEM_CAPABILITY_PIN_NUMA 19      /**< `pin.numa`: pinned memory can be placed on a NUMA node. */
#define GPUMEM_CAPABILITY_HOST_ATOMICS 20  /**< `host.atomics`: atomics work across CPU and device. */
#define GPUMEM_CAPABILITY_PAGEABLE 30 /**< `man.pageable`: the device reaches ordinary pageable memory. */
/** `man.pageable_host_tables`: it does so by the host's page tables. */
#define GPUMEM_CAPABILITY_PAGEABLE_HOST_TABLES 31
#define GPUMEM_CAPABILITY_STREAM_VALUE32 40 /**< `stream.value32`: value write and wait on 4 bytes. */
#define GPUMEM_CAPABILITY_STREAM_VALUE64 41 /**< `stream.value64`: value write and wait on 8 bytes. */
/** `stream.value_nor`: value wait with #GPUMEM_WAIT_VALUE_NOR. */
#define GPUMEM_CAPABILITY_STREAM_VALUE_NOR 42
#define GPUMEM_CAPABILITY_COPY_ENGINES 50 /**< `copy.engines`: copies that can run at the same time. */
#define GPUMEM_CAPABILITY_PEER_ACCESS 60  /**< `peer.access`: asked of a pair of devices. */
#define GPUMEM_CAPABILITY_PEER_ATOMICS 61 /**< `peer.atomics`: asked of a pair of devices. */

/** What `value` of a gpumem_capability_info counts: one of the GPUMEM_CAPABILITY_TYPE_ values. */
typedef int32_t gpumem_capability_type;
/** #GPUMEM_CAPABILITY_NO, #GPUMEM_CAPABILITY_YES or #GPUMEM_CAPABILITY_EMULATED. */
#define GPUMEM_CAPABILITY_TYPE_TRI 1
#define GPUMEM_CAPABILITY_TYPE_INT 2   /**< A number. */
#define GPUMEM_CAPABILITY_TYPE_BYTES 3 /**< A number of bytes. */

#define GPUMEM_CAPABILITY_NO 0       /**< It cannot be done; `status` and `reason` say why. */
#define GPUMEM_CAPABILITY_YES 1      /**< It works. */
#define GPUMEM_CAPABILITY_EMULATED 2 /**< It works as described, without the effect on hardware. */

/** How an answer was found: one of the GPUMEM_CAPABILITY_FROM_ values. */
typedef int32_t gpumem_capability_source;
#define GPUMEM_CAPABILITY_FROM_ATTRIBUTE 1     /**< The driver says so. */
#define GPUMEM_CAPABILITY_FROM_TRIAL 2         /**< It was tried. */
#define GPUMEM_CAPABILITY_FROM_CONFIGURATION 3 /**< An option of the instance says so. */
#define GPUMEM_CAPABILITY_FROM_CONTRACT 4      /**< It is so for every device of this backend. */

/** Answer to a capability question. It never changes during the life of an instance, except to
 * #GPUMEM_CAPABILITY_NO when the device is lost. */
typedef struct gpumem_capability_info {
  size_t struct_size;              /**< `sizeof(gpumem_capability_info)` of the caller. */
  gpumem_capability capability;    /**< What was asked. */
  gpumem_capability_type type;     /**< What `value` counts. */
  uint64_t value;                  /**< The answer. */
  gpumem_capability_source source; /**< How it was found. */
  /** What a call that needs it would return: #GPUMEM_SUCCESS unless the answer is no. */
  gpumem_status status;
  gpumem_native_domain native_domain; /**< Whose number `native_code` is. */
  int32_t native_code;                /**< Code that the trial got; 0 if it succeeded or there was none. */
  char name[48];                      /**< Such as `pin.map_host`. */
  char reason[256];                   /**< One line: how the answer was established, or why not. */
} gpumem_capability_info;

/** Initial value of a gpumem_capability_info. */
#define GPUMEM_CAPABILITY_INFO_INIT                                 \
  {                                                                 \
    sizeof(gpumem_capability_info), 0, 0, 0, 0, 0, 0, 0, {0}, { 0 } \
  }

/** Sets up a gpumem_capability_info as #GPUMEM_CAPABILITY_INFO_INIT does.
 *
 * \param[out] out_info struct to set up; NULL does nothing
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API void gpumem_capability_info_init(gpumem_capability_info *out_info);

/** Asks what a device can do. The first question about a capability may try it; the trial leaves nothing
 * behind and its result is kept.
 *
 * \param device device to ask
 * \param capability one of the GPUMEM_CAPABILITY_ values
 * \param peer the other device for the `peer.` capabilities; NULL for all others
 * \param[in,out] out_info receives the answer
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the answer was written, be it yes or no
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL output or wrong size, unknown capability, a peer where none
 *         belongs or none where one does, the peer is the device itself or of another instance
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory for the library's records
 * \handles
 * \blocking{while a trial runs, a few milliseconds}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_device_get_capability(gpumem_device device, gpumem_capability capability,
                                                      gpumem_device peer, gpumem_capability_info *out_info,
                                                      gpumem_error *error);

/** The capabilities of this version, one after the other, for programs that list them.
 *
 * \param index position in the list, from 0
 * \param[out] out_capability receives the capability at that position
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the capability was written
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_capability` is NULL
 * \retval GPUMEM_ERROR_NOT_FOUND `index` is past the end of the list
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_capability_enumerate(uint32_t index, gpumem_capability *out_capability,
                                                     gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
