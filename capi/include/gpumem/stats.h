/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file stats.h
 * What lives in an instance, in every build of the library.
 */
#ifndef GPUMEM_STATS_H
#define GPUMEM_STATS_H

#include "memory.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Counts of one kind of memory. */
typedef struct gpumem_stats_kind {
  uint64_t live_count;  /**< Objects that live. */
  uint64_t live_bytes;  /**< Their sizes, as asked for. */
  uint64_t peak_count;  /**< Most objects that lived at once since open or the last reset. */
  uint64_t peak_bytes;  /**< Most bytes that lived at once. */
  uint64_t total_count; /**< Objects made since open. */
  uint64_t total_bytes; /**< Bytes made since open. */
} gpumem_stats_kind;

/** Counts of an instance. A failed call leaves them unchanged. */
typedef struct gpumem_stats {
  size_t struct_size;           /**< `sizeof(gpumem_stats)` of the caller. */
  gpumem_stats_kind device;     /**< Device memory. */
  gpumem_stats_kind pinned;     /**< Pinned allocations. */
  gpumem_stats_kind registered; /**< Registered memory. */
  uint64_t streams;             /**< Streams that live, adopted ones included. */
  uint64_t events;              /**< Events that live, adopted ones included. */
  uint64_t file_descriptors;    /**< File descriptors that the instance holds open. */
} gpumem_stats;

/** Initial value of a gpumem_stats. */
#define GPUMEM_STATS_INIT \
  { sizeof(gpumem_stats), {0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}, 0, 0, 0 }

/** Sets up a gpumem_stats as #GPUMEM_STATS_INIT does.
 *
 * \param[out] out_stats struct to set up; NULL does nothing
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API void gpumem_stats_init(gpumem_stats *out_stats);

/** Reads the counts of an instance.
 *
 * \param instance instance to ask
 * \param[in,out] out_stats receives the counts
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the counts were written
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_stats` is NULL or its size wrong
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stats_get(gpumem_instance instance, gpumem_stats *out_stats,
                                          gpumem_error *error);

/** Sets the peaks of an instance to what lives now.
 *
 * \param instance instance whose peaks to reset
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS done
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stats_reset_peaks(gpumem_instance instance, gpumem_error *error);

/** Writes a list of all that lives in an instance: a line for each object with its kind, name, size and
 * device, or the one line "nothing lives". Call it before closing to find leaks.
 *
 * \param instance instance to ask
 * \param[out] buffer receives the text with a 0 byte at the end, cut to fit; NULL if `capacity` is 0
 * \param capacity bytes of `buffer`
 * \param[out] out_required receives the bytes that the whole text needs with its 0 byte; or NULL
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS done; the text was cut if `*out_required` is above `capacity`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `buffer` is NULL and `capacity` is not 0
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory for the list
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stats_report(gpumem_instance instance, char *buffer, uint64_t capacity,
                                             uint64_t *out_required, gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
