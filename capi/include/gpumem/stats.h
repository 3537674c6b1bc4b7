/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file stats.h
 * Counters of an instance, and a report of its live objects.
 */
#ifndef GPUMEM_STATS_H
#define GPUMEM_STATS_H

#include "memory.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Counters of an instance. A failed call leaves them unchanged, but for `peak_bytes`. */
typedef struct gpumem_stats {
  size_t struct_size;  /**< `sizeof(gpumem_stats)` of the caller. */
  uint64_t live_count; /**< Live memory objects of all kinds. */
  /** Bytes of memory: the sizes of live allocations, registrations and imports, as requested, and of physical memory for
   * as long as a handle or a mapping keeps it, such as that of buffers and pools. A block counts once. */
  uint64_t live_bytes;
  uint64_t reserved_bytes; /**< Addresses of live ranges, mapped or not, with those of buffers and pools. */
  uint64_t streams;        /**< Live streams, including wrapped ones. */
  uint64_t events;         /**< Live events, including wrapped ones. */
  /** Largest `live_bytes` since the instance was opened or the peaks were reset. What a call took and gave back, because it
   * failed, counts: it lived. */
  uint64_t peak_bytes;
} gpumem_stats;

/** Initial value of a gpumem_stats. */
#define GPUMEM_STATS_INIT \
  { sizeof(gpumem_stats), 0, 0, 0, 0, 0, 0 }

/** Counters of one kind of memory. A failed call leaves them unchanged. Bytes of #GPUMEM_KIND_VIRTUAL are the addresses of
 * ranges, mapped or not; of every other kind they are the sizes that were requested. */
typedef struct gpumem_kind_stats {
  size_t struct_size;   /**< `sizeof(gpumem_kind_stats)` of the caller. */
  uint64_t live_count;  /**< Live objects. */
  uint64_t live_bytes;  /**< Their sizes. */
  uint64_t peak_count;  /**< Largest `live_count` since the instance was opened or the peaks were reset. */
  uint64_t peak_bytes;  /**< Largest `live_bytes` since then. */
  uint64_t total_count; /**< Objects created since the instance was opened. */
  uint64_t total_bytes; /**< Their sizes. */
} gpumem_kind_stats;

/** Initial value of a gpumem_kind_stats. */
#define GPUMEM_KIND_STATS_INIT \
  { sizeof(gpumem_kind_stats), 0, 0, 0, 0, 0, 0 }

/** Reads the counters of an instance.
 *
 * \param instance instance to query
 * \param[in,out] out_stats receives the counters
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the counters were written to `*out_stats`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_stats` is NULL or has a wrong size
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stats_get(gpumem_instance instance, gpumem_stats *out_stats,
                                          gpumem_error *error);

/** Reads the counters of one kind of memory.
 *
 * \param instance instance to query
 * \param kind #GPUMEM_KIND_DEVICE, #GPUMEM_KIND_PINNED, #GPUMEM_KIND_REGISTERED, #GPUMEM_KIND_MANAGED,
 *         #GPUMEM_KIND_VIRTUAL or #GPUMEM_KIND_IMPORTED
 * \param[in,out] out_stats receives the counters
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the counters were written to `*out_stats`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_stats` is NULL or has a wrong size, the kind is unknown, or an instance
 *         has no memory of this kind to count (#GPUMEM_KIND_PAGEABLE, #GPUMEM_KIND_FOREIGN, #GPUMEM_KIND_UNKNOWN)
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stats_get_kind(gpumem_instance instance, gpumem_kind kind,
                                               gpumem_kind_stats *out_stats, gpumem_error *error);

/** Resets the peaks, of every kind and of all memory, to what is live now.
 *
 * \param instance instance whose peaks to reset
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the peaks are reset
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stats_reset_peaks(gpumem_instance instance, gpumem_error *error);

/** Writes a report of the live objects of an instance: a line for each with its kind, name, size and device, or
 * the one line "nothing lives". The memory of a pool has no line beside the pool's. Call it before closing to find leaks.
 *
 * \param instance instance to query
 * \param[out] buffer receives the text, 0-terminated and truncated to fit; NULL if `capacity` is 0
 * \param capacity size of `buffer` in bytes
 * \param[out] out_required receives the size of the whole text with its 0 byte; or NULL
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the text was written; it was truncated if `*out_required` is greater than `capacity`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `buffer` is NULL and `capacity` is not 0
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory for the text
 * \handles
 * \blocking{no}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stats_report(gpumem_instance instance, char *buffer, uint64_t capacity,
                                             uint64_t *out_required, gpumem_error *error);

/** Writes the counters and the live objects of an instance as JSON (RFC 8259) in UTF-8, for programs: an object with
 * "version", "backend", "name", "process", "live_count", "live_bytes", "peak_bytes", "reserved_bytes", "kept_imports", the arrays
 * "devices", "kinds", "exports", "imports" and "objects", and perhaps "last_failure". Each of "objects" has a "type" and what it has
 * of "name", "device", "kind", "size" and others: see `docs/statistics.md`. Sizes are in bytes, addresses are texts such as
 * "0x7f00". Later versions may add members. What other threads do meanwhile may be in it in part. The free bytes of a device are left out
 * if they cannot be asked: in a host function, and once the device is lost.
 *
 * \param instance instance to query
 * \param[out] buffer receives the text, 0-terminated and truncated to fit; NULL if `capacity` is 0
 * \param capacity size of `buffer` in bytes
 * \param[out] out_required receives the size of the whole text with its 0 byte; or NULL
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the text was written; it was truncated, and so is no JSON, if `*out_required` is greater than
 *         `capacity`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `buffer` is NULL and `capacity` is not 0
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory for the text
 * \handles
 * \blocking{briefly, for a driver call for each device}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_stats_snapshot(gpumem_instance instance, char *buffer, uint64_t capacity,
                                               uint64_t *out_required, gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
