/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file cuda.h
 * Options of the cuda backend. This header needs no header of the CUDA Toolkit.
 */
#ifndef GPUMEM_CUDA_H
#define GPUMEM_CUDA_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Options for an instance of the cuda backend. */
typedef struct gpumem_cuda_options {
  size_t struct_size; /**< `sizeof(gpumem_cuda_options)` of the caller. */
  /** `CUcontext` values to work in instead of the primary contexts of their devices, at most one for each device; or
   * NULL. The array is copied; the contexts must outlive the instance. */
  void *const *contexts;
  uint64_t context_count; /**< Number of entries in `contexts`, at most 64. */
} gpumem_cuda_options;

/** Initial value of a gpumem_cuda_options. */
#define GPUMEM_CUDA_OPTIONS_INIT \
  { sizeof(gpumem_cuda_options), NULL, 0 }

#ifdef __cplusplus
}
#endif

#endif
