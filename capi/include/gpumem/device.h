/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file device.h
 * The devices of an instance, their memory, and access from one device to another.
 */
#ifndef GPUMEM_DEVICE_H
#define GPUMEM_DEVICE_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Gets a device of an instance. The handle is the same at each call.
 *
 * \param instance instance to query
 * \param ordinal number of the device, from 0 to one less than `device_count` of gpumem_instance_get_info()
 * \param[out] out_device receives the device
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the device was written to `*out_device`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL output, or no device has this ordinal
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \owner{the instance; the handle is valid until the instance is closed}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_device_get(gpumem_instance instance, uint32_t ordinal,
                                           gpumem_device *out_device, gpumem_error *error);

/** Information about a device. */
typedef struct gpumem_device_info {
  size_t struct_size;    /**< `sizeof(gpumem_device_info)` of the caller. */
  uint32_t ordinal;      /**< Its number in the instance. */
  int32_t numa_node;     /**< Nearest NUMA node of the host; -1 if unknown. */
  uint64_t total_bytes;  /**< Memory of the device. */
  uint8_t uuid[16];      /**< The same in every process; also for emulated devices with the same options. */
  uint32_t pci_domain;   /**< PCI domain; 0 for emulated devices. */
  uint32_t pci_bus;      /**< PCI bus; 0 for emulated devices. */
  uint32_t pci_device;   /**< PCI device; 0 for emulated devices. */
  int32_t compute_major; /**< Major number of the compute capability; 0 for emulated devices. */
  int32_t compute_minor; /**< Minor number of the compute capability. */
  uint32_t lost;         /**< 1 once the device is lost. */
  char pci_id[32];       /**< Such as `0000:65:00.0`; empty for emulated devices. */
  char name[256];        /**< Such as `NVIDIA H200`. */
} gpumem_device_info;

/** Initial value of a gpumem_device_info. */
#define GPUMEM_DEVICE_INFO_INIT                                            \
  {                                                                        \
    sizeof(gpumem_device_info), 0, 0, 0, {0}, 0, 0, 0, 0, 0, 0, {0}, { 0 } \
  }

/** Gets information about a device. It works after the device was lost.
 *
 * \param device device to query
 * \param[in,out] out_info receives the information
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the information was written to `*out_info`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_info` is NULL or has a wrong size
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_device_get_info(gpumem_device device, gpumem_device_info *out_info,
                                                gpumem_error *error);

/** Gets the free and total bytes of a device. Both are estimates: other processes change them at any time, and an
 * allocation of all free bytes may fail.
 *
 * \param device device to query
 * \param[out] out_free receives the free bytes; or NULL
 * \param[out] out_total receives the total bytes; or NULL
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the bytes were written to `*out_free` and `*out_total`
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{briefly, for a driver call}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_device_get_memory(gpumem_device device, uint64_t *out_free,
                                                  uint64_t *out_total, gpumem_error *error);

/** Gives back the memory that a device keeps for graphs and that no graph uses.
 *
 * A graph with nodes that allocate, such as those of `cudaMallocAsync()` in a capture, has its memory from a cache of the driver,
 * one for each device and process. The cache keeps it when the graph has run and even when it is destroyed: only this call, or
 * `cuDeviceGraphMemTrim()`, gives it back. Memory of gpumem never comes from there.
 *
 * \param device device that keeps the memory
 * \param[out] out_released receives the bytes that the cache is smaller now, less what graphs of other threads took meanwhile;
 *             0 on the host backend, where graphs allocate nothing; or NULL
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the memory was given back, if there was any
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver is older than CUDA 11.4
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{for driver calls that free memory}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_device_trim_graphs(gpumem_device device, uint64_t *out_released,
                                                   gpumem_error *error);

/** Finds out whether a device could access the memory of a peer directly.
 *
 * \param device device that would access
 * \param peer device that has the memory; of the same instance
 * \param[out] out_possible receives 1 or 0
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS 1 or 0 was written to `*out_possible`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL output, or the two are the same device or of different instances
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{briefly, for a driver call}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_device_can_access_peer(gpumem_device device, gpumem_device peer,
                                                       uint32_t *out_possible, gpumem_error *error);

/** Lets a device access all device memory of a peer, present and future, at the same addresses.
 *
 * The access is one-way and counted: it ends after as many disables as enables. Copies between devices do not need it.
 *
 * \param device device that gets access
 * \param peer device that has the memory; of the same instance
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS access is enabled, also if other code had enabled it before
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT the two are the same device or of different instances
 * \retval GPUMEM_ERROR_UNSUPPORTED there is no link between them
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the device has the largest possible number of peers
 * \retval GPUMEM_ERROR_DEVICE_LOST one of them is lost
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{for driver calls that map memory, tens of milliseconds at the first use}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_device_enable_peer_access(gpumem_device device, gpumem_device peer,
                                                          gpumem_error *error);

/** Undoes one gpumem_device_enable_peer_access().
 *
 * The last one, over all instances that use the same context, disables the access, unless other code had enabled it
 * before. Work of the device that still uses the peer's memory may fault: wait for it first.
 *
 * \param device device that had access
 * \param peer device that has the memory
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS one enable is undone
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT the two are the same device or of different instances
 * \retval GPUMEM_ERROR_INVALID_STATE there is no enable to undo; or called from a host function
 * \handles
 * \blocking{for a driver call}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_device_disable_peer_access(gpumem_device device, gpumem_device peer,
                                                           gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
