/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file host.h
 * Options of the host backend, and functions that only it has: stand-ins for kernels, and ways to bring a program into
 * situations that are rare on a GPU. On the cuda backend every function that takes a handle fails with
 * #GPUMEM_ERROR_UNSUPPORTED.
 */
#ifndef GPUMEM_HOST_H
#define GPUMEM_HOST_H

#include "pointer.h"

#ifdef __cplusplus
extern "C" {
#endif

/** When the host backend locks pages: one of the GPUMEM_HOST_LOCK_ values. */
typedef int32_t gpumem_host_lock_mode;
#define GPUMEM_HOST_LOCK_DEFAULT 0 /**< The same as #GPUMEM_HOST_LOCK_TRY. */
#define GPUMEM_HOST_LOCK_TRY 1     /**< Lock if the limits allow it; the granted flags show whether. */
#define GPUMEM_HOST_LOCK_REQUIRE 2 /**< Fail if the limits do not allow it. */
#define GPUMEM_HOST_LOCK_OFF 3     /**< Never lock. */

/** Options for an instance of the host backend. Every field has a default. The default instance reads the environment
 * variable named at each field. */
typedef struct gpumem_host_options {
  size_t struct_size;    /**< `sizeof(gpumem_host_options)` of the caller. */
  uint32_t device_count; /**< Emulated devices, 1 to 64; 0 means 2. `GPUMEM_HOST_DEVICES` */
  /** Device memory faults when the CPU touches it, and unfinished work is tracked; on by default.
   * `GPUMEM_HOST_STRICT` */
  gpumem_toggle strict;
  /** Memory of each device in bytes, at least one granule; 0 means 4 GiB. The system's memory is taken only as blocks
   * are allocated. `GPUMEM_HOST_DEVICE_BYTES` */
  uint64_t device_bytes;
  /** Unit in which device memory is charged: a power of two from 512 to 1 GiB; 0 means 512.
   * `GPUMEM_HOST_GRANULARITY` */
  uint64_t granularity;
  gpumem_toggle pageable; /**< Devices access pageable memory; off by default. `GPUMEM_HOST_PAGEABLE` */
  /** Registered memory has the same address for the CPU and for devices; off by default. `GPUMEM_HOST_SAME_POINTER` */
  gpumem_toggle same_pointer;
  gpumem_host_lock_mode lock_mode; /**< When pages are locked. `GPUMEM_HOST_LOCK` (`require`, `try`, `off`) */
  /** Number of NUMA nodes to simulate, 1 to 64; 0 means those of the machine. `GPUMEM_HOST_NUMA_NODES` */
  uint32_t numa_nodes;
  /** Registrations (pieces) that may live at once; 0 means 65500. `GPUMEM_HOST_REGISTER_MAX` */
  uint64_t register_count_max;
  /** Size of the pieces in which memory is locked, in bytes: a multiple of the page size, at most 2^63-1; 0 means
   * 256 MiB. `GPUMEM_HOST_LOCK_PIECE` */
  uint64_t lock_piece;
  /** Number of freed address ranges that stay inaccessible before they are reused, 1 to 65536; 0 means 64.
   * `GPUMEM_HOST_QUARANTINE` */
  uint32_t quarantine;
  gpumem_toggle fill; /**< Fresh memory is filled with 0xA5; by default as `strict`. `GPUMEM_HOST_FILL` */
  /** Directed links between devices: `"all"`, `"none"`, or a list such as `"0>1,1>0"`. NULL means all.
   * `GPUMEM_HOST_PEERS` */
  const char *peers;
  /** Comma-separated entry points to treat as missing: `launch_host_function`, `write_value`, `wait_value`, `register`,
   * `copy_2d`, `fill_2d`, `peer_access`, `vmm` (all of virtual memory management), `sharing` (all sharing between
   * processes). NULL means none. `GPUMEM_HOST_MASKED` */
  const char *masked;
  /** The CPU and devices use managed memory at the same time; on by default. Off, the rules of older GPUs hold: a touch of
   * the CPU at the wrong time faults. `GPUMEM_HOST_CONCURRENT` */
  gpumem_toggle concurrent;
  gpumem_toggle
      compressible; /**< Physical memory can be compressible; on by default. `GPUMEM_HOST_COMPRESSIBLE` */
  /** Unit of physical memory and of mappings in bytes: a power of two from the page size to 1 GiB; 0 means 2 MiB.
   * `GPUMEM_HOST_VMM_GRANULARITY` */
  uint64_t vmm_granularity;
} gpumem_host_options;

/** Initial value of a gpumem_host_options. */
#define GPUMEM_HOST_OPTIONS_INIT \
  { sizeof(gpumem_host_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, 0, 0, 0 }

/** A running stand-in for a kernel; valid only while its function runs. */
typedef struct gpumem_host_kernel_s *gpumem_host_kernel;

/** The code of a kernel. It must not throw, and accesses memory only through gpumem_host_kernel_view(). Otherwise it
 * may call only what a host function may. */
typedef void(GPUMEM_CALL *gpumem_host_kernel_function)(gpumem_host_kernel kernel, void *user_data);

/** Enqueues a function that stands in for a kernel.
 *
 * \param stream stream to enqueue in
 * \param function code to run
 * \param user_data passed to `function`
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the function is enqueued
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `function` is NULL
 * \retval GPUMEM_ERROR_UNSUPPORTED the instance uses another backend
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE the stream is being captured, or called from a host function
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory to enqueue the function
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \owner{`user_data` belongs to the caller and must live until the function has run}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_host_launch(gpumem_stream stream, gpumem_host_kernel_function function,
                                            void *user_data, gpumem_error *error);

/** Opens a view of memory for a running kernel, with the rights of its device.
 *
 * A view that the device's address translation would refuse loses the device, as a faulting kernel does. The loss
 * takes effect when the function returns: whoever gets #GPUMEM_ERROR_DEVICE_LOST from a stream because of it may reuse
 * what the function had.
 *
 * \param kernel the running kernel
 * \param address first byte, by its device address; also by its host address where the two are equal
 * \param size bytes, at least 1
 * \param access #GPUMEM_ACCESS_READ or #GPUMEM_ACCESS_READWRITE
 * \param[out] out_view receives an address that the function may use until it returns
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the address was written to `*out_view`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL kernel, address or output, size 0, a range that wraps around, or unknown
 *         access
 * \retval GPUMEM_ERROR_DEVICE_LOST the device has no such right there, now or in an earlier view of this kernel, and is
 *         lost; or it was lost before
 * \blocking{no}
 * \threads{only the thread that runs the kernel}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_host_kernel_view(gpumem_host_kernel kernel, const void *address,
                                                 uint64_t size, gpumem_access access, void **out_view,
                                                 gpumem_error *error);

/** Creates a native stream, as other code would, to be wrapped with gpumem_stream_wrap().
 *
 * \param device device of the stream
 * \param[out] out_native_stream receives the native stream
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the native stream was written to `*out_native_stream`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL output
 * \retval GPUMEM_ERROR_UNSUPPORTED the instance uses another backend
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory or thread for the stream
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{briefly, to start a thread}
 * \threads{any thread}
 * \owner{the caller destroys it, after every handle that wraps it and before closing the instance}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_host_native_stream_create(gpumem_device device, void **out_native_stream,
                                                          gpumem_error *error);

/** Destroys a stream of gpumem_host_native_stream_create(). Pending work still completes, and pools hear of the end, which no
 * driver tells them.
 *
 * \param device device of the stream
 * \param native_stream stream to destroy; NULL does nothing and succeeds
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the stream is destroyed
 * \retval GPUMEM_ERROR_NOT_FOUND no such native stream was created on this device
 * \retval GPUMEM_ERROR_BUSY a handle that wraps it is live
 * \retval GPUMEM_ERROR_UNSUPPORTED the instance uses another backend
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_host_native_stream_destroy(gpumem_device device, void *native_stream,
                                                           gpumem_error *error);

/** Marks a stream as being captured into a graph by other code, or removes the mark. No graph comes of it.
 *
 * Marking a stream that has no mark begins a capture with a number of its own, see gpumem_stream_get_capture_id(). A second 1
 * changes nothing, nor does a second 0. While the mark is there, calls in the stream are served or refused as in a capture (see
 * stream.h), and what they enqueue never runs, as in a graph that is not launched. gpumem_host_launch() is refused.
 * A stream that waits for an event of the capture joins it until the mark is removed from either.
 *
 * \param stream stream to mark
 * \param capturing 1 or 0
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the mark is set or removed
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `capturing` is another number
 * \retval GPUMEM_ERROR_UNSUPPORTED the instance uses another backend
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_host_stream_set_capturing(gpumem_stream stream, uint32_t capturing,
                                                          gpumem_error *error);

/** Loses a device, as a faulting kernel would: pending work does not run, and every later call that needs the device
 * fails.
 *
 * Running copies, fills and value writes finish first. So memory that was lent to them can be reused as soon as a call
 * returns #GPUMEM_ERROR_DEVICE_LOST. Running host functions and kernels are not waited for.
 *
 * \param device device to lose
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the device is lost, also if it was before
 * \retval GPUMEM_ERROR_UNSUPPORTED the instance uses another backend
 * \handles
 * \blocking{until running copies, fills and value writes are done}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_host_device_lose(gpumem_device device, gpumem_error *error);

/** Makes a step of the backend fail. Each allocation, mapping, lock, thread and enqueue of the host backend for this
 * instance counts as one step.
 *
 * \param instance instance whose steps are counted, from now on
 * \param step number of the step that fails, from 1; 0 turns it off
 * \param repeat 1 if every later step fails too, otherwise 0
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the step is set
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `repeat` is another number
 * \retval GPUMEM_ERROR_UNSUPPORTED the instance uses another backend
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_host_fail_step(gpumem_instance instance, uint64_t step, uint32_t repeat,
                                               gpumem_error *error);

/** Allocates memory as other code would through the driver: the devices know it, but the instance does not.
 *
 * \param device device of the memory
 * \param kind #GPUMEM_KIND_DEVICE or #GPUMEM_KIND_PINNED
 * \param size bytes
 * \param[out] out_pointer receives the first byte
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the pointer was written to `*out_pointer`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL output, size 0 or above 2^63-1, or another kind
 * \retval GPUMEM_ERROR_UNSUPPORTED the instance uses another backend
 * \retval GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY the device has not enough memory
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY the system has not enough memory
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{for system calls}
 * \threads{any thread}
 * \owner{the caller frees it before closing the instance}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_host_foreign_alloc(gpumem_device device, gpumem_kind kind, uint64_t size,
                                                   void **out_pointer, gpumem_error *error);

/** Frees memory of gpumem_host_foreign_alloc().
 *
 * \param device device of the memory
 * \param pointer first byte; NULL does nothing and succeeds
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the memory is freed
 * \retval GPUMEM_ERROR_NOT_FOUND no such memory starts there
 * \retval GPUMEM_ERROR_BUSY strict: work that uses the memory was not observed complete; nothing changed
 * \retval GPUMEM_ERROR_UNSUPPORTED the instance uses another backend
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{for system calls}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_host_foreign_free(gpumem_device device, void *pointer, gpumem_error *error);

/** Enables or disables peer access as other code of the process would.
 *
 * \param device device that gets access
 * \param peer device that has the memory
 * \param enabled 1 or 0
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the access is enabled or disabled
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `enabled` is another number, or the two are the same device or of different
 *         instances
 * \retval GPUMEM_ERROR_UNSUPPORTED there is no link, or the instance uses another backend
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_host_foreign_peer_access(gpumem_device device, gpumem_device peer,
                                                         uint32_t enabled, gpumem_error *error);

/** Sets the calling thread's current device in the host backend, the counterpart of CUDA's current context. No other
 * function of gpumem changes it.
 *
 * \param ordinal device to make current, or -1 for none
 * \param[out] out_previous receives the previous one, -1 if none; or NULL
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the current device is set
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT an ordinal below -1 or above 63
 * \blocking{no}
 * \threads{any thread; each thread has its own current device}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_host_set_current_device(int32_t ordinal, int32_t *out_previous,
                                                        gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
