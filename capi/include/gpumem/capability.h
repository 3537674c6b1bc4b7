/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file capability.h
 * What a device can do on this machine, how the library found out, and why not.
 */
#ifndef GPUMEM_CAPABILITY_H
#define GPUMEM_CAPABILITY_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Something that a device may be able to do: one of the GPUMEM_CAPABILITY_ values. */
typedef int32_t gpumem_capability;
#define GPUMEM_CAPABILITY_UVA 1               /**< `uva`: do host and devices share one address space? */
#define GPUMEM_CAPABILITY_DEVICE_COUNT 2      /**< `device.count`: how many devices does the instance have? */
#define GPUMEM_CAPABILITY_DEVICE_BYTES 3      /**< `device.bytes`: how much memory does the device have? */
#define GPUMEM_CAPABILITY_DEVICE_CPU_ACCESS 4 /**< `dev.cpu_access`: may the CPU touch device memory? */
#define GPUMEM_CAPABILITY_PIN_MAP_HOST 10 /**< `pin.map_host`: can the device use pinned memory in place? */
#define GPUMEM_CAPABILITY_PIN_PAGE_LOCKED 11 /**< `pin.page_locked`: are pinned pages really locked? */
/** `pin.write_combined`: is there write-combined pinned memory? */
#define GPUMEM_CAPABILITY_PIN_WRITE_COMBINED 12
#define GPUMEM_CAPABILITY_PIN_REGISTER 13 /**< `pin.register`: can existing memory be pinned? */
/** `pin.register_same_pointer`: does registered memory have the same address for CPU and devices? */
#define GPUMEM_CAPABILITY_PIN_REGISTER_SAME_POINTER 14
/** `pin.register_read_only`: can memory be registered for reading only? */
#define GPUMEM_CAPABILITY_PIN_REGISTER_READ_ONLY 15
/** `pin.register_iomemory`: can memory-mapped I/O be registered? */
#define GPUMEM_CAPABILITY_PIN_REGISTER_IOMEMORY 16
/** `pin.max_single`: what is the largest range that is locked in one piece? */
#define GPUMEM_CAPABILITY_PIN_MAX_SINGLE 17
#define GPUMEM_CAPABILITY_PIN_MAX_COUNT 18 /**< `pin.max_count`: how many pieces can be locked at once? */
#define GPUMEM_CAPABILITY_PIN_NUMA 19      /**< `pin.numa`: can pinned memory be placed on a NUMA node? */
#define GPUMEM_CAPABILITY_HOST_ATOMICS 20  /**< `host.atomics`: do atomics work between CPU and device? */
#define GPUMEM_CAPABILITY_PAGEABLE 30      /**< `man.pageable`: can the device access ordinary memory? */
/** `man.pageable_host_tables`: does the device access ordinary memory through the host's page tables? */
#define GPUMEM_CAPABILITY_PAGEABLE_HOST_TABLES 31
#define GPUMEM_CAPABILITY_MANAGED 32 /**< `man.alloc`: is there managed memory? */
/** `man.concurrent`: may the CPU and the device use managed memory at the same time? */
#define GPUMEM_CAPABILITY_MANAGED_CONCURRENT 33
/** `man.direct_from_host`: does the CPU reach managed pages on the device without moving them? */
#define GPUMEM_CAPABILITY_MANAGED_DIRECT_FROM_HOST 34
/** `man.numa_locations`: can prefetches and advice name a NUMA node? Drivers may ignore the node in advice, which is then
 * #GPUMEM_NO_EFFECT. */
#define GPUMEM_CAPABILITY_MANAGED_NUMA_LOCATIONS 35
#define GPUMEM_CAPABILITY_MANAGED_BATCH 36 /**< `man.batch`: is a batch of prefetches one driver call? */
/** `man.discard`: can the contents of managed memory be discarded? */
#define GPUMEM_CAPABILITY_MANAGED_DISCARD 37
/** `stream.value32`: can a stream write a 4-byte value, and wait for one? */
#define GPUMEM_CAPABILITY_STREAM_VALUE32 40
/** `stream.value64`: can a stream write an 8-byte value, and wait for one? */
#define GPUMEM_CAPABILITY_STREAM_VALUE64 41
/** `stream.value_nor`: can a stream wait with #GPUMEM_WAIT_NOR? */
#define GPUMEM_CAPABILITY_STREAM_VALUE_NOR 42
#define GPUMEM_CAPABILITY_COPY_ENGINES 50 /**< `copy.engines`: how many copies can run at the same time? */
/** `copy.batch`: are the small copies of a batch handed over together, not one by one? See gpumem_copy_regions(). */
#define GPUMEM_CAPABILITY_COPY_BATCH 51
/** `peer.access`: can this device access the memory of the other one? */
#define GPUMEM_CAPABILITY_PEER_ACCESS 60
/** `peer.atomics`: do atomics work between this device and the other one? */
#define GPUMEM_CAPABILITY_PEER_ATOMICS 61

#define GPUMEM_CAPABILITY_VMM_DEVICE 70 /**< `vmm.device`: can physical memory of the device be mapped? */
#define GPUMEM_CAPABILITY_VMM_HOST 71   /**< `vmm.host`: can physical memory of the host be mapped? */
/** `vmm.host_numa`: can physical memory of a NUMA node be mapped? */
#define GPUMEM_CAPABILITY_VMM_HOST_NUMA 72
/** `vmm.granularity_min`: in which unit is physical memory made and mapped? */
#define GPUMEM_CAPABILITY_VMM_GRANULARITY_MIN 73
/** `vmm.granularity_rec`: which unit of physical memory gives the best performance? */
#define GPUMEM_CAPABILITY_VMM_GRANULARITY_RECOMMENDED 74
/** `vmm.handle_posix_fd`: can physical memory be shared by file descriptor? */
#define GPUMEM_CAPABILITY_VMM_HANDLE_POSIX_FD 75
/** `vmm.handle_fabric`: can physical memory be shared over the fabric? */
#define GPUMEM_CAPABILITY_VMM_HANDLE_FABRIC 76
#define GPUMEM_CAPABILITY_VMM_COMPRESSIBLE 77 /**< `vmm.compressible`: can physical memory be compressible? */
#define GPUMEM_CAPABILITY_VMM_RDMA 78         /**< `vmm.rdma`: can network cards access physical memory? */
/** `vmm.hw_decompress`: can a decompression engine of the device use physical memory? */
#define GPUMEM_CAPABILITY_VMM_HW_DECOMPRESS 79
/** `share.legacy`: can device memory be shared with other processes by handles of the driver? */
#define GPUMEM_CAPABILITY_SHARE_LEGACY 80
#define GPUMEM_CAPABILITY_SHARE_EVENTS 81 /**< `share.events`: can events be shared? */
/** `share.channel`: can processes send each other file descriptors, which all sharing needs? */
#define GPUMEM_CAPABILITY_SHARE_CHANNEL 82
/** `share.dma_buf`: can device memory be exported as a dma-buf? */
#define GPUMEM_CAPABILITY_SHARE_DMA_BUF 83
/** `share.dma_buf_pcie`: can device memory be exported as a dma-buf that is mapped over PCIe? */
#define GPUMEM_CAPABILITY_SHARE_DMA_BUF_PCIE 84
/** `pool.driver`: can a pool take its memory from a pool of the driver? */
#define GPUMEM_CAPABILITY_POOL_DRIVER 90

/** Type of `value` in a gpumem_capability_info: one of the GPUMEM_ANSWER_TYPE_ values. */
typedef int32_t gpumem_answer_type;
/** #GPUMEM_ANSWER_NO, #GPUMEM_ANSWER_YES or #GPUMEM_ANSWER_EMULATED. */
#define GPUMEM_ANSWER_TYPE_TRI 1
#define GPUMEM_ANSWER_TYPE_INT 2   /**< A number. */
#define GPUMEM_ANSWER_TYPE_BYTES 3 /**< A number of bytes. */

#define GPUMEM_ANSWER_NO 0       /**< It does not work; `status` and `reason` say why. */
#define GPUMEM_ANSWER_YES 1      /**< It works. */
#define GPUMEM_ANSWER_EMULATED 2 /**< It works as documented, but without the effect on hardware. */

/** How the library found the answer: one of the GPUMEM_ANSWER_FROM_ values. */
typedef int32_t gpumem_answer_source;
#define GPUMEM_ANSWER_FROM_ATTRIBUTE 1     /**< The driver says so. */
#define GPUMEM_ANSWER_FROM_TRIAL 2         /**< The library tried it. */
#define GPUMEM_ANSWER_FROM_CONFIGURATION 3 /**< An option of the instance says so. */
#define GPUMEM_ANSWER_FROM_CONTRACT 4      /**< It is the same for every device of this backend. */

/** Answer to a capability query. It does not change while the instance is open, except to #GPUMEM_ANSWER_NO when the
 * device is lost. A #GPUMEM_ANSWER_NO whose trial lacked memory or file descriptors says so in `reason`, and the next
 * query tries again. */
typedef struct gpumem_capability_info {
  size_t struct_size;           /**< `sizeof(gpumem_capability_info)` of the caller. */
  gpumem_capability capability; /**< The capability that was queried. */
  gpumem_answer_type type;      /**< Type of `value`. */
  uint64_t value;               /**< The answer. */
  gpumem_answer_source source;  /**< How the library found the answer. */
  /** Status of a call that needs the capability: #GPUMEM_SUCCESS unless the answer is #GPUMEM_ANSWER_NO. */
  gpumem_status status;
  gpumem_native_domain native_domain; /**< What `native_code` is a code of. */
  int32_t native_code;                /**< Native code of a failed trial; 0 if there was none. */
  char name[48];                      /**< Such as `pin.map_host`. */
  char reason[256];                   /**< One line: what the answer is based on, or why not. */
} gpumem_capability_info;

/** Initial value of a gpumem_capability_info. */
#define GPUMEM_CAPABILITY_INFO_INIT                                 \
  {                                                                 \
    sizeof(gpumem_capability_info), 0, 0, 0, 0, 0, 0, 0, {0}, { 0 } \
  }

/** Queries a capability of a device. The first query may run a trial, which leaves nothing behind and whose result
 * is kept.
 *
 * \param device device to query
 * \param capability one of the GPUMEM_CAPABILITY_ values
 * \param peer the other device for the `peer.` capabilities; NULL for all others
 * \param[in,out] out_info receives the answer
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the answer, also a no, was written to `*out_info`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_info` is NULL or has a wrong size, the capability is unknown, `peer`
 *         is given for a capability of one device or missing for one of a pair, the two devices are the same or
 *         belong to different instances
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory for the library's records
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{during a trial, a few milliseconds}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_device_get_capability(gpumem_device device, gpumem_capability capability,
                                                      gpumem_device peer, gpumem_capability_info *out_info,
                                                      gpumem_error *error);

/** Enumerates the capabilities of this version.
 *
 * \param index position in the list, from 0
 * \param[out] out_capability receives the capability at that position
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the capability was written to `*out_capability`
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
