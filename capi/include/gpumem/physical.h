/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file physical.h
 * Physical memory without an address: blocks on a device or on the host, to be mapped into a gpumem_range.
 *
 * A block lives while anything refers to it: a handle, a mapping, or another process that imported it. Releasing the
 * handle ends the handle only.
 */
#ifndef GPUMEM_PHYSICAL_H
#define GPUMEM_PHYSICAL_H

#include "pointer.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Properties of physical memory: a sum of GPUMEM_PHYSICAL_ values. */
typedef uint64_t gpumem_physical_flags;
/** The device may compress the memory. It may then not map on every device. Capability `vmm.compressible`. */
#define GPUMEM_PHYSICAL_COMPRESSIBLE UINT64_C(0x1)
/** Devices outside the GPU, such as network cards, may access the memory. Capability `vmm.rdma`. */
#define GPUMEM_PHYSICAL_RDMA UINT64_C(0x2)
/** The device's decompression engine may read and write the memory, as `cuMemBatchDecompressAsync()` and nvCOMP have it do. Capability
 * `vmm.hw_decompress`. */
#define GPUMEM_PHYSICAL_HW_DECOMPRESS UINT64_C(0x4)

/** Ways to share physical memory with other processes: a sum of GPUMEM_HANDLE_TYPE_ values. */
typedef uint64_t gpumem_handle_types;
#define GPUMEM_HANDLE_TYPE_POSIX_FD UINT64_C(0x1) /**< A file descriptor. Capability `vmm.handle_posix_fd`. */
/** A handle for other nodes of the fabric. Capability `vmm.handle_fabric`. */
#define GPUMEM_HANDLE_TYPE_FABRIC UINT64_C(0x8)

/** Options for physical memory. */
typedef struct gpumem_physical_desc {
  size_t struct_size; /**< `sizeof(gpumem_physical_desc)` of the caller. */
  /** #GPUMEM_LOCATION_DEVICE, or 0 for it: the device of the call. Or #GPUMEM_LOCATION_HOST, or
   * #GPUMEM_LOCATION_HOST_NUMA. */
  gpumem_location location;
  int32_t location_id;              /**< NUMA node for #GPUMEM_LOCATION_HOST_NUMA; otherwise 0. */
  uint64_t size;                    /**< Bytes, a multiple of the granularity. */
  gpumem_handle_types handle_types; /**< Ways of sharing that must be possible. */
  gpumem_physical_flags require;    /**< Properties that the memory must have; otherwise the call fails. */
  gpumem_physical_flags prefer;     /**< Properties that the memory should have if possible. */
  const char *
      name; /**< For messages and reports, up to 63 bytes without ASCII control characters, or NULL; copied. */
} gpumem_physical_desc;

/** Initial value of a gpumem_physical_desc. */
#define GPUMEM_PHYSICAL_DESC_INIT \
  { sizeof(gpumem_physical_desc), 0, 0, 0, 0, 0, 0, NULL }

/** Gets the units in which physical memory is made and mapped. Both are powers of two, and the recommended one is a
 * multiple of the smallest.
 *
 * \param device device of the memory
 * \param desc the properties; its size is ignored
 * \param[out] out_minimum receives the smallest unit in bytes; or NULL
 * \param[out] out_recommended receives the unit for the best performance in bytes; or NULL
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the units were written
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT see gpumem_physical_create()
 * \retval GPUMEM_ERROR_UNSUPPORTED see gpumem_physical_create()
 * \retval GPUMEM_ERROR_PERMISSION_DENIED see gpumem_physical_create()
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{briefly, for a driver call; during the trial of a capability, a few milliseconds}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_physical_get_granularity(gpumem_device device,
                                                         const gpumem_physical_desc *desc,
                                                         uint64_t *out_minimum, uint64_t *out_recommended,
                                                         gpumem_error *error);

/** Makes physical memory. Its contents are indeterminate, and nobody can access it before it is mapped.
 *
 * \param device device of the memory; for host memory the device that it is close to
 * \param desc options
 * \param[out] out_physical receives the physical memory
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the handle was written to `*out_physical`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, a size of 0, above 2^63-1 or not a multiple of the granularity,
 *         another location, no such NUMA node, an unknown flag or handle type, or handle types with #GPUMEM_LOCATION_HOST
 * \retval GPUMEM_ERROR_UNSUPPORTED the device has no virtual memory management, or a required property or handle type
 *         cannot be granted here; the message names the capability
 * \retval GPUMEM_ERROR_PERMISSION_DENIED the driver refuses a handle type to this user or system
 * \retval GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY the device has not enough memory
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY the system has not enough memory
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the process has reached a limit: of open files, of their size or of mappings, say
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{for a driver or system call: longer for more bytes, milliseconds for each GiB of host memory}
 * \threads{any thread}
 * \owner{the caller releases the handle}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_physical_create(gpumem_device device, const gpumem_physical_desc *desc,
                                                gpumem_physical *out_physical, gpumem_error *error);

/** Releases a handle of physical memory. The memory itself lives on while it is mapped or shared.
 *
 * \param physical handle to release; NULL does nothing and succeeds
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the handle is released, also if its device is lost
 * \retval GPUMEM_ERROR_BUSY the driver was busy, again and again; nothing changed
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{until calls of other threads that use the handle have returned, and for a driver call}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_physical_release(gpumem_physical physical, gpumem_error *error);

/** Information about physical memory. */
typedef struct gpumem_physical_info {
  size_t struct_size;                  /**< `sizeof(gpumem_physical_info)` of the caller. */
  gpumem_location location;            /**< Where it lies. */
  int32_t location_id;                 /**< Ordinal of the device or NUMA node; -1 if it has none. */
  gpumem_device device;                /**< Device given at creation or import. */
  uint32_t device_ordinal;             /**< Its ordinal. */
  uint32_t imported;                   /**< 1 if it came from a file descriptor or fabric handle, else 0. */
  uint64_t size;                       /**< Bytes. */
  uint64_t granularity;                /**< Unit in which it is mapped, in bytes. */
  uint64_t block_id;                   /**< Number of the block behind the handle, unique in the process. */
  gpumem_handle_types handle_types;    /**< Ways in which it can be shared. */
  gpumem_physical_flags granted_flags; /**< Properties of the memory; contains `require`. */
  /** The `CUmemGenericAllocationHandle`, for use by other code; 0 on host. The library owns it: do not release it. It is
   * valid until the gpumem_physical is released. Another gpumem_physical of the same block may have the same number. */
  uint64_t native_handle;
  char name[64]; /**< As given at creation. */
} gpumem_physical_info;

/** Initial value of a gpumem_physical_info. */
#define GPUMEM_PHYSICAL_INFO_INIT                                           \
  {                                                                         \
    sizeof(gpumem_physical_info), 0, 0, NULL, 0, 0, 0, 0, 0, 0, 0, 0, { 0 } \
  }

/** Gets information about physical memory. It makes no driver call, and works after the device was lost.
 *
 * \param physical physical memory to query
 * \param[in,out] out_info receives the information
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the information was written to `*out_info`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_info` is NULL or has a wrong size
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_physical_get_info(gpumem_physical physical, gpumem_physical_info *out_info,
                                                  gpumem_error *error);

/** Gets one more handle of the physical memory that is mapped at an address.
 *
 * \param instance instance that mapped it
 * \param pointer any byte of the mapping
 * \param[out] out_physical receives the handle, with the same block id
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the handle was written to `*out_physical`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer
 * \retval GPUMEM_ERROR_NOT_FOUND there is no memory of this instance at the pointer
 * \retval GPUMEM_ERROR_WRONG_KIND the address is not in a gpumem_range
 * \retval GPUMEM_ERROR_INVALID_STATE nothing is mapped at the address; or called from a host function
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \handles
 * \blocking{briefly, for a driver call}
 * \threads{any thread}
 * \owner{the caller releases the handle}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_physical_retain(gpumem_instance instance, const void *pointer,
                                                gpumem_physical *out_physical, gpumem_error *error);

/** Makes a file descriptor for physical memory, which another process can import. The descriptor keeps the memory alive.
 *
 * \param physical memory that was created with #GPUMEM_HANDLE_TYPE_POSIX_FD
 * \param[out] out_fd receives a new descriptor, which is closed on exec
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the descriptor was written to `*out_fd`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_fd` is NULL
 * \retval GPUMEM_ERROR_UNSUPPORTED the memory was created without this handle type, or the driver does not export
 *         imported memory
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the process has no free descriptor
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{for a driver call}
 * \threads{any thread}
 * \owner{the caller closes the descriptor}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_physical_export_fd(gpumem_physical physical, int32_t *out_fd,
                                                   gpumem_error *error);

/** Makes a handle for the physical memory behind a file descriptor. The descriptor stays the caller's and may be closed
 * afterwards.
 *
 * \param device device of the memory, as in the process that exported it
 * \param desc location, size and handle types, as they were given to gpumem_physical_create() there; `require` and `prefer`
 *         are 0
 * \param fd descriptor that gpumem_physical_export_fd() made, here or in another process
 * \param[out] out_physical receives the physical memory
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the handle was written to `*out_physical`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, bad values in `desc`, a descriptor that is closed or not of GPU memory
 *         of this backend, or another size or location than that of the memory, as far as that can be seen
 * \retval GPUMEM_ERROR_UNSUPPORTED the device cannot import file descriptors
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the process has no free descriptor
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{for a driver call}
 * \threads{any thread}
 * \owner{the caller releases the handle, and closes its descriptor}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_physical_import_fd(gpumem_device device, const gpumem_physical_desc *desc,
                                                   int32_t fd, gpumem_physical *out_physical,
                                                   gpumem_error *error);

/** A handle of physical memory for other nodes of the fabric: bytes that may be sent by any channel. */
typedef struct gpumem_fabric_handle {
  uint8_t bytes[64]; /**< The handle. Only the driver can read it. */
} gpumem_fabric_handle;

/** Makes a fabric handle for physical memory, which a process on this or another node of the fabric can import. The handle does
 * not keep the memory alive.
 *
 * \param physical memory that was created with #GPUMEM_HANDLE_TYPE_FABRIC
 * \param[out] out_handle receives the handle
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the handle was written to `*out_handle`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_handle` is NULL
 * \retval GPUMEM_ERROR_UNSUPPORTED the memory was created without this handle type, or the driver does not export
 *         imported memory
 * \retval GPUMEM_ERROR_PERMISSION_DENIED the driver refuses this handle type to this user or system
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{for a driver call}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_physical_export_fabric(gpumem_physical physical,
                                                       gpumem_fabric_handle *out_handle, gpumem_error *error);

/** Makes a handle for the physical memory behind a fabric handle.
 *
 * \param device device that shall use the memory
 * \param desc location, size and handle types, as they were given to gpumem_physical_create() there; `require` and `prefer`
 *         are 0
 * \param handle handle that gpumem_physical_export_fabric() made, here or elsewhere on the fabric
 * \param[out] out_physical receives the physical memory
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the handle was written to `*out_physical`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, bad values in `desc`, or a handle that is none
 * \retval GPUMEM_ERROR_UNSUPPORTED the device cannot import fabric handles
 * \retval GPUMEM_ERROR_PERMISSION_DENIED the driver refuses this handle type to this user or system
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \retval GPUMEM_ERROR_SYMBOL_MISSING the driver lacks the entry point
 * \handles
 * \blocking{for a driver call}
 * \threads{any thread}
 * \owner{the caller releases the handle}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_physical_import_fabric(gpumem_device device, const gpumem_physical_desc *desc,
                                                       const gpumem_fabric_handle *handle,
                                                       gpumem_physical *out_physical, gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
