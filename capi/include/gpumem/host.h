/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file host.h
 * What only the host backend has: stand-ins for kernels, and the means to put a program into situations that
 * are hard to come by on a GPU. On the cuda backend every function here is #GPUMEM_ERROR_UNSUPPORTED.
 */
#ifndef GPUMEM_HOST_H
#define GPUMEM_HOST_H

#include "pointer.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A running stand-in for a kernel; valid only while its function runs. */
typedef struct gpumem_host_kernel_s *gpumem_host_kernel;

/** The code of a kernel. It must not throw, reaches memory only through gpumem_host_kernel_view(), and may else
 * call only what a host function may. */
typedef void(GPUMEM_CALL *gpumem_host_kernel_function)(gpumem_host_kernel kernel, void *user_data);

/** Runs a function in stream order as a kernel would run on the device.
 *
 * \param stream stream to enqueue in
 * \param function code to run
 * \param user_data handed to `function` as it is
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS enqueued
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `function` is NULL
 * \retval GPUMEM_ERROR_UNSUPPORTED the instance is not of the host backend
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE the stream is being captured, or called from a host function
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory to enqueue it
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \owner{`user_data` stays the caller's and must live until the function has run}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_host_launch(gpumem_stream stream, gpumem_host_kernel_function function,
                                            void *user_data, gpumem_error *error);

/** Opens a view of memory for a running kernel, with the rights that its device has. A view that the device's
 * address translation would refuse loses the device, exactly as a faulting kernel does.
 *
 * \param kernel the running kernel
 * \param address first byte, by its device address; host addresses are good where device and host pointer are
 *         equal
 * \param size bytes, at least 1
 * \param access #GPUMEM_ACCESS_READ or #GPUMEM_ACCESS_READWRITE
 * \param[out] out_view receives an address that the function may use until it returns
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the view is open
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL kernel, address or output, size 0, a range that wraps around the
 *         address space, or unknown access
 * \retval GPUMEM_ERROR_DEVICE_LOST the device has no such right there, and is lost now
 * \blocking{no; one that loses the device, as gpumem_host_device_lose()}
 * \threads{only the thread that runs the kernel}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_host_kernel_view(gpumem_host_kernel kernel, const void *address,
                                                 uint64_t size, gpumem_access access, void **out_view,
                                                 gpumem_error *error);

/** Makes a stream as other code would make one, to be adopted by gpumem_stream_wrap().
 *
 * \param device device of the stream
 * \param[out] out_native_stream receives it
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS done
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL output
 * \retval GPUMEM_ERROR_UNSUPPORTED the instance is not of the host backend
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory or thread for it
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{briefly, to start a thread}
 * \threads{any thread}
 * \owner{the caller destroys it, after every handle that adopted it and before closing the instance}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_host_native_stream_create(gpumem_device device, void **out_native_stream,
                                                          gpumem_error *error);

/** Destroys what gpumem_host_native_stream_create() made. Pending work still completes.
 *
 * \param device device of the stream
 * \param native_stream stream to destroy; NULL does nothing and succeeds
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS gone
 * \retval GPUMEM_ERROR_NOT_FOUND no such stream was made on this device
 * \retval GPUMEM_ERROR_BUSY a handle that adopted it lives
 * \retval GPUMEM_ERROR_UNSUPPORTED the instance is not of the host backend
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_host_native_stream_destroy(gpumem_device device, void *native_stream,
                                                           gpumem_error *error);

/** Marks a stream as being captured into a graph by other code, or no longer so.
 *
 * \param stream stream to mark
 * \param capturing 1 or 0
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS marked
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT another number
 * \retval GPUMEM_ERROR_UNSUPPORTED the instance is not of the host backend
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_host_stream_set_capturing(gpumem_stream stream, uint32_t capturing,
                                                          gpumem_error *error);

/** Loses a device, as a faulting kernel would: pending work is not run, and every call that needs the device
 * fails from now on. Copies, fills and value writes of its streams that run come to their end first, so that
 * memory which was lent to them can be used again as soon as a call says #GPUMEM_ERROR_DEVICE_LOST. Host
 * functions and kernels that run are not waited for.
 *
 * \param device device to lose
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS lost; also if it was lost before
 * \retval GPUMEM_ERROR_UNSUPPORTED the instance is not of the host backend
 * \handles
 * \blocking{until copies, fills and value writes that run are done}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_host_device_lose(gpumem_device device, gpumem_error *error);

/** Lets a step of the backend fail: each allocation, mapping, lock, thread and enqueue that the host backend
 * makes for this instance counts as one step.
 *
 * \param instance instance whose steps to count, from now on
 * \param step number of the step that fails, from 1; 0 switches it off
 * \param repeat 1: every later step fails too; 0: only this one
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS set
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `repeat` is another number
 * \retval GPUMEM_ERROR_UNSUPPORTED the instance is not of the host backend
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_host_fail_step(gpumem_instance instance, uint64_t step, uint32_t repeat,
                                               gpumem_error *error);

/** Makes memory as other code would make it through the driver: it is known to the devices but not to the
 * instance.
 *
 * \param device device of the memory
 * \param kind #GPUMEM_KIND_DEVICE or #GPUMEM_KIND_PINNED
 * \param size bytes
 * \param[out] out_pointer receives the first byte
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS done
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL output, size 0 or above 2^63-1, or another kind
 * \retval GPUMEM_ERROR_UNSUPPORTED the instance is not of the host backend
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

/** Frees what gpumem_host_foreign_alloc() made.
 *
 * \param device device of the memory
 * \param pointer first byte; NULL does nothing and succeeds
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS gone
 * \retval GPUMEM_ERROR_NOT_FOUND nothing was made there
 * \retval GPUMEM_ERROR_BUSY strict: work that uses the memory was not observed complete; nothing changed
 * \retval GPUMEM_ERROR_UNSUPPORTED the instance is not of the host backend
 * \retval GPUMEM_ERROR_INVALID_STATE called from a host function
 * \handles
 * \blocking{for system calls}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_host_foreign_free(gpumem_device device, void *pointer, gpumem_error *error);

/** Switches peer access on or off as other code of the process would.
 *
 * \param device device that gets access
 * \param peer device that has the memory
 * \param enabled 1 or 0
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS done
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT another number, the two are the same, or of different instances
 * \retval GPUMEM_ERROR_UNSUPPORTED there is no link, or the instance is not of the host backend
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_host_foreign_peer_access(gpumem_device device, gpumem_device peer,
                                                         uint32_t enabled, gpumem_error *error);

/** The calling thread's current device in the host backend, the counterpart of CUDA's current context. Calls
 * of gpumem never change it; only this function does.
 *
 * \param ordinal device to make current, or -1 for none
 * \param[out] out_previous receives the former one, -1 if none; or NULL
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS done
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT an ordinal below -1 or above 63
 * \blocking{no}
 * \threads{any thread; the value is the thread's own}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_host_set_current_device(int32_t ordinal, int32_t *out_previous,
                                                        gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
