/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file base.h
 * What every other header of gpumem needs: the export macro, the handle types and the conventions.
 *
 * Conventions that hold for the whole interface, stated once:
 *
 * - **Structs that grow.** A struct that begins with `struct_size` is set up with its `_INIT` macro or its
 * `_init` function. A smaller size (an older caller) means that the missing fields are 0; a larger size (a
 * newer caller) is accepted if every byte that this library does not know is 0. 0 is the default of every
 * field; reserved fields are 0. Anything else is #GPUMEM_ERROR_INVALID_ARGUMENT.
 * - **Handles** are values, not addresses. A handle that is NULL, forged or of another type gets
 *   #GPUMEM_ERROR_INVALID_ARGUMENT, one that was destroyed #GPUMEM_ERROR_STALE_HANDLE, one of a closed
 * instance #GPUMEM_ERROR_CLOSED (#GPUMEM_ERROR_STALE_HANDLE once newer objects have used its place), and one that a
 * forked child inherited #GPUMEM_ERROR_FORKED. These four can come from every function that takes a handle and
 * are not repeated at each (`\handles` stands for them).
 * Destroying NULL does nothing and succeeds.
 * - **Failures from below.** A function that asks the driver or the system, or keeps a record, can also fail for
 * a reason that it cannot foresee: #GPUMEM_ERROR_OUT_OF_HOST_MEMORY, #GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY,
 * #GPUMEM_ERROR_DEVICE_LOST or #GPUMEM_ERROR_INTERNAL, with the native code. These are listed at a function
 * only where they mean something of their own.
 * - **Outputs** (`out_...`) are written on success only. The one exception is the last parameter, `error`.
 * - **error** may be NULL. Otherwise it is filled by the call, on success too (see gpumem_error).
 * - **Sizes, counts and offsets** are unsigned 64-bit numbers of bytes unless the name says otherwise. A size
 * of 0 is refused, except that a copy or fill of 0 bytes succeeds and does nothing.
 * - **Threads.** Every function may be called from any thread. Two calls on one object are safe; when one of
 * them destroys it, the other either completes or gets #GPUMEM_ERROR_STALE_HANDLE.
 * - **CUDA context.** No function needs a current CUDA context and none changes the caller's.
 */
#ifndef GPUMEM_BASE_H
#define GPUMEM_BASE_H

#include <stddef.h>
#include <stdint.h>

/** Marks an exported function. Define it beforehand to vendor the headers differently. */
#ifndef GPUMEM_API
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

/** An opened backend with its devices and everything that was made through it. See instance.h. */
typedef struct gpumem_instance_s *gpumem_instance;
/** One processor with its memory; lives as long as its instance. See device.h. */
typedef struct gpumem_device_s *gpumem_device;
/** One allocation or registration of any kind. See memory.h. */
typedef struct gpumem_memory_s *gpumem_memory;
/** An ordered queue of work of one device. See stream.h. */
typedef struct gpumem_stream_s *gpumem_stream;
/** A point in a stream that others can wait for. See event.h. */
typedef struct gpumem_event_s *gpumem_event;

/** A choice whose default belongs to the library: one of the GPUMEM_TOGGLE_ values. */
typedef int32_t gpumem_toggle;
#define GPUMEM_TOGGLE_DEFAULT 0 /**< What the field's text says. */
#define GPUMEM_TOGGLE_ON 1      /**< On. */
#define GPUMEM_TOGGLE_OFF 2     /**< Off. */

/** Time limit that never runs out, in nanoseconds. */
#define GPUMEM_TIMEOUT_INFINITE UINT64_MAX

#ifdef __cplusplus
}
#endif

#endif
