/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file base.h
 * The export macro, the handle types, and the conventions of the whole interface.
 *
 * These conventions hold for every function and are not repeated there:
 *
 * - **Structs that grow.** A struct that begins with `struct_size` is initialised with its `_INIT` macro, or by
 *   zeroing it and setting `struct_size` to its size; both give the same bytes. 0 is the default of every field,
 *   and reserved fields must be 0. If the caller's struct is smaller, of the size that an earlier version had, the missing fields are 0.
 *   If it is larger (a newer caller), up to 4096 bytes, the call succeeds as long as every byte that this library does
 *   not know is 0. Any other size, and another byte there, fail with #GPUMEM_ERROR_INVALID_ARGUMENT.
 * - **Handles** are values, not addresses. NULL, a forged handle and a handle of another type fail with
 *   #GPUMEM_ERROR_INVALID_ARGUMENT. A handle of a destroyed object fails with #GPUMEM_ERROR_STALE_HANDLE, one of a
 *   closed instance with #GPUMEM_ERROR_CLOSED (or #GPUMEM_ERROR_STALE_HANDLE once newer objects have reused its
 *   slot), and one that a forked child inherited with #GPUMEM_ERROR_FORKED, unless it was stale or closed before the fork. A
 *   forged handle of an object's type may also count as stale or closed; it never reaches an object. Every function that takes a handle can
 *   return these four; in the reference it has a paragraph "Handles". Destroying NULL does nothing and succeeds.
 * - **Failures from below.** A function that calls the driver or the system, or keeps a record, can also fail with
 *   #GPUMEM_ERROR_OUT_OF_HOST_MEMORY, #GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, #GPUMEM_ERROR_DEVICE_LOST or
 *   #GPUMEM_ERROR_INTERNAL, with the native code in the error detail. A function lists them only where they have a
 *   meaning of their own.
 * - **Notes** such as #GPUMEM_NOT_READY are not failures. Test a status with #GPUMEM_FAILED.
 * - **Outputs** (`out_...`) are written on success only. The exceptions are `error`, `out_failed` of
 *   gpumem_copy_regions(), and `out_info` of gpumem_copy_file(), which a call that fails midway writes too.
 * - **error** may be NULL. Otherwise the call fills it in, on success too; see gpumem_error.
 * - **Sizes, counts and offsets** are unsigned 64-bit numbers of bytes unless the name says otherwise. A size of 0
 *   is refused, unless the function says otherwise: a copy or fill of 0 bytes succeeds and does nothing.
 * - **Flags** are 64-bit, and so are their constants: `flags &= ~GPUMEM_MEMORY_PORTABLE` clears one bit.
 * - **Threads.** Every function may be called from any thread. Two calls on one object are safe. If one of them
 *   destroys the object, the other either completes or fails with #GPUMEM_ERROR_STALE_HANDLE.
 * - **CUDA context.** No function needs a current CUDA context, and none changes the caller's.
 */
#ifndef GPUMEM_BASE_H
#define GPUMEM_BASE_H

#include <stddef.h>
#include <stdint.h>

#ifndef GPUMEM_API
/** Marks an exported function. Define it before including a header to vendor the headers differently. */
#if defined(__GNUC__)
#define GPUMEM_API __attribute__((visibility("default")))
#else
#define GPUMEM_API
#endif
#endif

/** Calling convention of every function and callback; empty on Linux. */
#define GPUMEM_CALL

#ifdef __cplusplus
extern "C" {
#endif

/** An open backend with its devices and every object made through it. See instance.h. */
typedef struct gpumem_instance_s *gpumem_instance;
/** One processor with its memory; lives as long as its instance. See device.h. */
typedef struct gpumem_device_s *gpumem_device;
/** One allocation or registration of any kind. See memory.h. */
typedef struct gpumem_memory_s *gpumem_memory;
/** Physical memory without an address. See physical.h. */
typedef struct gpumem_physical_s *gpumem_physical;
/** Reserved addresses, and what is mapped there. See range.h. */
typedef struct gpumem_range_s *gpumem_range;
/** An array that grows in place and can sleep. See buffer.h. */
typedef struct gpumem_buffer_s *gpumem_buffer;
/** Buffers that sleep and wake as one. See group.h. */
typedef struct gpumem_group_s *gpumem_group;
/** Shared memory and events under names. See hub.h. */
typedef struct gpumem_hub_s *gpumem_hub;
/** A connection to a hub. See hub.h. */
typedef struct gpumem_link_s *gpumem_link;
/** Memory that goes from one process to others again and again. See ring.h. */
typedef struct gpumem_ring_s *gpumem_ring;
/** Blocks of memory, allocated and freed fast. See pool.h. */
typedef struct gpumem_pool_s *gpumem_pool;
/** An ordered queue of work on one device. See stream.h. */
typedef struct gpumem_stream_s *gpumem_stream;
/** A point in a stream that can be waited for. See event.h. */
typedef struct gpumem_event_s *gpumem_event;

/** A setting that the library chooses unless you do: one of the GPUMEM_TOGGLE_ values. */
typedef int32_t gpumem_toggle;
#define GPUMEM_TOGGLE_DEFAULT 0 /**< The default that the field documents. */
#define GPUMEM_TOGGLE_ON 1      /**< On. */
#define GPUMEM_TOGGLE_OFF 2     /**< Off. */

/** Timeout that never expires, in nanoseconds. */
#define GPUMEM_TIMEOUT_INFINITE UINT64_MAX

#ifdef __cplusplus
}
#endif

#endif
