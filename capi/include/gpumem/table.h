/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file table.h
 * For programs that load the library with dlopen: a type for each function, and a table of all functions.
 *
 * Look up the symbol `gpumem_table_get` as a ::PFN_gpumem_table_get, call it, and use the members.
 */
#ifndef GPUMEM_TABLE_H
#define GPUMEM_TABLE_H

#include "capability.h"
#include "copy.h"
#include "device.h"
#include "event.h"
#include "host.h"
#include "instance.h"
#include "log.h"
#include "memory.h"
#include "pointer.h"
#include "stats.h"
#include "stream.h"
#include "version.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef uint32_t(GPUMEM_CALL *PFN_gpumem_version)(void);          /**< Type of gpumem_version(). */
typedef const char *(GPUMEM_CALL *PFN_gpumem_version_text)(void); /**< Type of gpumem_version_text(). */
typedef int32_t(GPUMEM_CALL *PFN_gpumem_feature_supported)(
    gpumem_feature feature); /**< Type of gpumem_feature_supported(). */
typedef const char *(GPUMEM_CALL *PFN_gpumem_status_name)(
    gpumem_status status); /**< Type of gpumem_status_name(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_status_get_info)(
    gpumem_status status, gpumem_status_info *out_info,
    gpumem_error *error); /**< Type of gpumem_status_get_info(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_status_enumerate)(
    uint32_t index, gpumem_status *out_status,
    gpumem_error *error); /**< Type of gpumem_status_enumerate(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_log_set_function)(
    gpumem_log_function function, void *user_data, gpumem_log_level max_level,
    gpumem_error *error); /**< Type of gpumem_log_set_function(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_instance_probe)(
    gpumem_backend backend, gpumem_probe_info *out_info,
    gpumem_error *error); /**< Type of gpumem_instance_probe(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_instance_open)(
    const gpumem_instance_desc *desc, gpumem_instance *out_instance,
    gpumem_error *error); /**< Type of gpumem_instance_open(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_instance_close)(
    gpumem_instance instance, gpumem_close_mode mode, uint64_t *out_destroyed,
    gpumem_error *error); /**< Type of gpumem_instance_close(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_instance_default)(
    gpumem_instance *out_instance, gpumem_error *error); /**< Type of gpumem_instance_default(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_instance_get_info)(
    gpumem_instance instance, gpumem_instance_info *out_info,
    gpumem_error *error); /**< Type of gpumem_instance_get_info(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_device_get)(
    gpumem_instance instance, uint32_t ordinal, gpumem_device *out_device,
    gpumem_error *error); /**< Type of gpumem_device_get(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_device_get_info)(
    gpumem_device device, gpumem_device_info *out_info,
    gpumem_error *error); /**< Type of gpumem_device_get_info(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_device_get_memory)(
    gpumem_device device, uint64_t *out_free, uint64_t *out_total,
    gpumem_error *error); /**< Type of gpumem_device_get_memory(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_device_can_access_peer)(
    gpumem_device device, gpumem_device peer, uint32_t *out_possible,
    gpumem_error *error); /**< Type of gpumem_device_can_access_peer(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_device_enable_peer_access)(
    gpumem_device device, gpumem_device peer,
    gpumem_error *error); /**< Type of gpumem_device_enable_peer_access(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_device_disable_peer_access)(
    gpumem_device device, gpumem_device peer,
    gpumem_error *error); /**< Type of gpumem_device_disable_peer_access(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_device_get_capability)(
    gpumem_device device, gpumem_capability capability, gpumem_device peer, gpumem_capability_info *out_info,
    gpumem_error *error); /**< Type of gpumem_device_get_capability(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_capability_enumerate)(
    uint32_t index, gpumem_capability *out_capability,
    gpumem_error *error); /**< Type of gpumem_capability_enumerate(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_memory_create)(
    gpumem_device device, const gpumem_memory_desc *desc, gpumem_memory *out_memory,
    gpumem_error *error); /**< Type of gpumem_memory_create(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_memory_register)(
    gpumem_device device, const gpumem_register_desc *desc, gpumem_memory *out_memory,
    gpumem_error *error); /**< Type of gpumem_memory_register(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_memory_destroy)(
    gpumem_memory memory, gpumem_error *error); /**< Type of gpumem_memory_destroy(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_memory_get_info)(
    gpumem_memory memory, gpumem_memory_info *out_info,
    gpumem_error *error); /**< Type of gpumem_memory_get_info(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_malloc)(gpumem_device device, gpumem_kind kind, uint64_t size,
                                                      void **out_pointer,
                                                      gpumem_error *error); /**< Type of gpumem_malloc(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_free)(gpumem_instance instance, void *pointer,
                                                    gpumem_error *error); /**< Type of gpumem_free(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_register)(
    gpumem_device device, void *pointer, uint64_t size, gpumem_memory_flags require,
    gpumem_error *error); /**< Type of gpumem_register(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_unregister)(
    gpumem_instance instance, void *pointer, gpumem_error *error); /**< Type of gpumem_unregister(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_pointer_get_info)(
    gpumem_instance instance, const void *pointer, gpumem_pointer_info *out_info,
    gpumem_error *error); /**< Type of gpumem_pointer_get_info(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_pointer_get_access)(
    gpumem_instance instance, const void *pointer, gpumem_location location, int32_t location_id,
    gpumem_access *out_access, gpumem_error *error); /**< Type of gpumem_pointer_get_access(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_pointer_get_device_pointer)(
    gpumem_device device, const void *pointer, void **out_device_pointer,
    gpumem_error *error); /**< Type of gpumem_pointer_get_device_pointer(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_copy)(gpumem_instance instance, void *destination,
                                                    const void *source, uint64_t size,
                                                    const gpumem_copy_options *options,
                                                    gpumem_error *error); /**< Type of gpumem_copy(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_copy_async)(
    gpumem_stream stream, void *destination, const void *source, uint64_t size,
    const gpumem_copy_options *options, gpumem_error *error); /**< Type of gpumem_copy_async(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_copy_2d)(gpumem_instance instance, void *destination,
                                                       uint64_t destination_pitch, const void *source,
                                                       uint64_t source_pitch, uint64_t width, uint64_t height,
                                                       const gpumem_copy_options *options,
                                                       gpumem_error *error); /**< Type of gpumem_copy_2d(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_copy_2d_async)(
    gpumem_stream stream, void *destination, uint64_t destination_pitch, const void *source,
    uint64_t source_pitch, uint64_t width, uint64_t height, const gpumem_copy_options *options,
    gpumem_error *error); /**< Type of gpumem_copy_2d_async(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_copy_regions)(
    gpumem_instance instance, const gpumem_copy_region *regions, uint64_t count, uint64_t *out_failed,
    gpumem_error *error); /**< Type of gpumem_copy_regions(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_copy_regions_async)(
    gpumem_stream stream, const gpumem_copy_region *regions, uint64_t count, uint64_t *out_failed,
    gpumem_error *error); /**< Type of gpumem_copy_regions_async(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_fill)(gpumem_instance instance, void *destination,
                                                    uint64_t size, uint32_t value, uint32_t value_size,
                                                    gpumem_error *error); /**< Type of gpumem_fill(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_fill_async)(
    gpumem_stream stream, void *destination, uint64_t size, uint32_t value, uint32_t value_size,
    gpumem_error *error); /**< Type of gpumem_fill_async(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_fill_2d)(gpumem_instance instance, void *destination,
                                                       uint64_t pitch, uint64_t width, uint64_t height,
                                                       uint32_t value, uint32_t value_size,
                                                       gpumem_error *error); /**< Type of gpumem_fill_2d(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_fill_2d_async)(
    gpumem_stream stream, void *destination, uint64_t pitch, uint64_t width, uint64_t height, uint32_t value,
    uint32_t value_size, gpumem_error *error); /**< Type of gpumem_fill_2d_async(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_stream_create)(
    gpumem_device device, const gpumem_stream_desc *desc, gpumem_stream *out_stream,
    gpumem_error *error); /**< Type of gpumem_stream_create(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_stream_wrap)(
    gpumem_device device, void *native_stream, gpumem_stream *out_stream,
    gpumem_error *error); /**< Type of gpumem_stream_wrap(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_stream_destroy)(
    gpumem_stream stream, gpumem_error *error); /**< Type of gpumem_stream_destroy(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_stream_get_info)(
    gpumem_stream stream, gpumem_stream_info *out_info,
    gpumem_error *error); /**< Type of gpumem_stream_get_info(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_stream_query)(
    gpumem_stream stream, gpumem_error *error); /**< Type of gpumem_stream_query(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_stream_synchronize)(
    gpumem_stream stream, uint64_t timeout_ns,
    gpumem_error *error); /**< Type of gpumem_stream_synchronize(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_stream_wait_event)(
    gpumem_stream stream, gpumem_event event,
    gpumem_error *error); /**< Type of gpumem_stream_wait_event(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_stream_launch_host_function)(
    gpumem_stream stream, gpumem_host_function function, void *user_data,
    gpumem_error *error); /**< Type of gpumem_stream_launch_host_function(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_stream_write_value)(
    gpumem_stream stream, void *address, uint64_t value, uint32_t value_size,
    gpumem_error *error); /**< Type of gpumem_stream_write_value(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_stream_wait_value)(
    gpumem_stream stream, void *address, uint64_t value, uint32_t value_size, gpumem_wait_condition condition,
    gpumem_error *error); /**< Type of gpumem_stream_wait_value(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_event_create)(
    gpumem_device device, const gpumem_event_desc *desc, gpumem_event *out_event,
    gpumem_error *error); /**< Type of gpumem_event_create(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_event_wrap)(
    gpumem_device device, void *native_event, gpumem_event_flags flags, gpumem_event *out_event,
    gpumem_error *error); /**< Type of gpumem_event_wrap(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_event_destroy)(
    gpumem_event event, gpumem_error *error); /**< Type of gpumem_event_destroy(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_event_get_info)(
    gpumem_event event, gpumem_event_info *out_info,
    gpumem_error *error); /**< Type of gpumem_event_get_info(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_event_record)(
    gpumem_event event, gpumem_stream stream, gpumem_error *error); /**< Type of gpumem_event_record(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_event_query)(
    gpumem_event event, gpumem_error *error); /**< Type of gpumem_event_query(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_event_synchronize)(
    gpumem_event event, uint64_t timeout_ns, gpumem_error *error); /**< Type of gpumem_event_synchronize(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_event_get_elapsed_time)(
    gpumem_event start, gpumem_event end, int64_t *out_nanoseconds,
    gpumem_error *error); /**< Type of gpumem_event_get_elapsed_time(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_stats_get)(
    gpumem_instance instance, gpumem_stats *out_stats,
    gpumem_error *error); /**< Type of gpumem_stats_get(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_stats_get_kind)(
    gpumem_instance instance, gpumem_kind kind, gpumem_kind_stats *out_stats,
    gpumem_error *error); /**< Type of gpumem_stats_get_kind(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_stats_reset_peaks)(
    gpumem_instance instance, gpumem_error *error); /**< Type of gpumem_stats_reset_peaks(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_stats_report)(
    gpumem_instance instance, char *buffer, uint64_t capacity, uint64_t *out_required,
    gpumem_error *error); /**< Type of gpumem_stats_report(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_host_launch)(
    gpumem_stream stream, gpumem_host_kernel_function function, void *user_data,
    gpumem_error *error); /**< Type of gpumem_host_launch(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_host_kernel_view)(
    gpumem_host_kernel kernel, const void *address, uint64_t size, gpumem_access access, void **out_view,
    gpumem_error *error); /**< Type of gpumem_host_kernel_view(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_host_native_stream_create)(
    gpumem_device device, void **out_native_stream,
    gpumem_error *error); /**< Type of gpumem_host_native_stream_create(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_host_native_stream_destroy)(
    gpumem_device device, void *native_stream,
    gpumem_error *error); /**< Type of gpumem_host_native_stream_destroy(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_host_stream_set_capturing)(
    gpumem_stream stream, uint32_t capturing,
    gpumem_error *error); /**< Type of gpumem_host_stream_set_capturing(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_host_device_lose)(
    gpumem_device device, gpumem_error *error); /**< Type of gpumem_host_device_lose(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_host_fail_step)(
    gpumem_instance instance, uint64_t step, uint32_t repeat,
    gpumem_error *error); /**< Type of gpumem_host_fail_step(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_host_foreign_alloc)(
    gpumem_device device, gpumem_kind kind, uint64_t size, void **out_pointer,
    gpumem_error *error); /**< Type of gpumem_host_foreign_alloc(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_host_foreign_free)(
    gpumem_device device, void *pointer, gpumem_error *error); /**< Type of gpumem_host_foreign_free(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_host_foreign_peer_access)(
    gpumem_device device, gpumem_device peer, uint32_t enabled,
    gpumem_error *error); /**< Type of gpumem_host_foreign_peer_access(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_host_set_current_device)(
    int32_t ordinal, int32_t *out_previous,
    gpumem_error *error); /**< Type of gpumem_host_set_current_device(). */

/** Every function of the library except gpumem_table_get(). New members are added at the end. */
typedef struct gpumem_table {
  size_t struct_size;                                    /**< `sizeof(gpumem_table)` of the caller. */
  PFN_gpumem_version gpumem_version;                     /**< gpumem_version(). */
  PFN_gpumem_version_text gpumem_version_text;           /**< gpumem_version_text(). */
  PFN_gpumem_feature_supported gpumem_feature_supported; /**< gpumem_feature_supported(). */
  PFN_gpumem_status_name gpumem_status_name;             /**< gpumem_status_name(). */
  PFN_gpumem_status_get_info gpumem_status_get_info;     /**< gpumem_status_get_info(). */
  PFN_gpumem_status_enumerate gpumem_status_enumerate;   /**< gpumem_status_enumerate(). */
  PFN_gpumem_log_set_function gpumem_log_set_function;   /**< gpumem_log_set_function(). */
  PFN_gpumem_instance_probe gpumem_instance_probe;       /**< gpumem_instance_probe(). */
  PFN_gpumem_instance_open gpumem_instance_open;         /**< gpumem_instance_open(). */
  PFN_gpumem_instance_close gpumem_instance_close;       /**< gpumem_instance_close(). */
  PFN_gpumem_instance_default gpumem_instance_default;   /**< gpumem_instance_default(). */
  PFN_gpumem_instance_get_info gpumem_instance_get_info; /**< gpumem_instance_get_info(). */
  PFN_gpumem_device_get gpumem_device_get;               /**< gpumem_device_get(). */
  PFN_gpumem_device_get_info gpumem_device_get_info;     /**< gpumem_device_get_info(). */
  PFN_gpumem_device_get_memory gpumem_device_get_memory; /**< gpumem_device_get_memory(). */
  /** gpumem_device_can_access_peer(). */
  PFN_gpumem_device_can_access_peer gpumem_device_can_access_peer;
  /** gpumem_device_enable_peer_access(). */
  PFN_gpumem_device_enable_peer_access gpumem_device_enable_peer_access;
  /** gpumem_device_disable_peer_access(). */
  PFN_gpumem_device_disable_peer_access gpumem_device_disable_peer_access;
  /** gpumem_device_get_capability(). */
  PFN_gpumem_device_get_capability gpumem_device_get_capability;
  /** gpumem_capability_enumerate(). */
  PFN_gpumem_capability_enumerate gpumem_capability_enumerate;
  PFN_gpumem_memory_create gpumem_memory_create;           /**< gpumem_memory_create(). */
  PFN_gpumem_memory_register gpumem_memory_register;       /**< gpumem_memory_register(). */
  PFN_gpumem_memory_destroy gpumem_memory_destroy;         /**< gpumem_memory_destroy(). */
  PFN_gpumem_memory_get_info gpumem_memory_get_info;       /**< gpumem_memory_get_info(). */
  PFN_gpumem_malloc gpumem_malloc;                         /**< gpumem_malloc(). */
  PFN_gpumem_free gpumem_free;                             /**< gpumem_free(). */
  PFN_gpumem_register gpumem_register;                     /**< gpumem_register(). */
  PFN_gpumem_unregister gpumem_unregister;                 /**< gpumem_unregister(). */
  PFN_gpumem_pointer_get_info gpumem_pointer_get_info;     /**< gpumem_pointer_get_info(). */
  PFN_gpumem_pointer_get_access gpumem_pointer_get_access; /**< gpumem_pointer_get_access(). */
  /** gpumem_pointer_get_device_pointer(). */
  PFN_gpumem_pointer_get_device_pointer gpumem_pointer_get_device_pointer;
  PFN_gpumem_copy gpumem_copy;                             /**< gpumem_copy(). */
  PFN_gpumem_copy_async gpumem_copy_async;                 /**< gpumem_copy_async(). */
  PFN_gpumem_copy_2d gpumem_copy_2d;                       /**< gpumem_copy_2d(). */
  PFN_gpumem_copy_2d_async gpumem_copy_2d_async;           /**< gpumem_copy_2d_async(). */
  PFN_gpumem_copy_regions gpumem_copy_regions;             /**< gpumem_copy_regions(). */
  PFN_gpumem_copy_regions_async gpumem_copy_regions_async; /**< gpumem_copy_regions_async(). */
  PFN_gpumem_fill gpumem_fill;                             /**< gpumem_fill(). */
  PFN_gpumem_fill_async gpumem_fill_async;                 /**< gpumem_fill_async(). */
  PFN_gpumem_fill_2d gpumem_fill_2d;                       /**< gpumem_fill_2d(). */
  PFN_gpumem_fill_2d_async gpumem_fill_2d_async;           /**< gpumem_fill_2d_async(). */
  PFN_gpumem_stream_create gpumem_stream_create;           /**< gpumem_stream_create(). */
  PFN_gpumem_stream_wrap gpumem_stream_wrap;               /**< gpumem_stream_wrap(). */
  PFN_gpumem_stream_destroy gpumem_stream_destroy;         /**< gpumem_stream_destroy(). */
  PFN_gpumem_stream_get_info gpumem_stream_get_info;       /**< gpumem_stream_get_info(). */
  PFN_gpumem_stream_query gpumem_stream_query;             /**< gpumem_stream_query(). */
  PFN_gpumem_stream_synchronize gpumem_stream_synchronize; /**< gpumem_stream_synchronize(). */
  PFN_gpumem_stream_wait_event gpumem_stream_wait_event;   /**< gpumem_stream_wait_event(). */
  /** gpumem_stream_launch_host_function(). */
  PFN_gpumem_stream_launch_host_function gpumem_stream_launch_host_function;
  PFN_gpumem_stream_write_value gpumem_stream_write_value; /**< gpumem_stream_write_value(). */
  PFN_gpumem_stream_wait_value gpumem_stream_wait_value;   /**< gpumem_stream_wait_value(). */
  PFN_gpumem_event_create gpumem_event_create;             /**< gpumem_event_create(). */
  PFN_gpumem_event_wrap gpumem_event_wrap;                 /**< gpumem_event_wrap(). */
  PFN_gpumem_event_destroy gpumem_event_destroy;           /**< gpumem_event_destroy(). */
  PFN_gpumem_event_get_info gpumem_event_get_info;         /**< gpumem_event_get_info(). */
  PFN_gpumem_event_record gpumem_event_record;             /**< gpumem_event_record(). */
  PFN_gpumem_event_query gpumem_event_query;               /**< gpumem_event_query(). */
  PFN_gpumem_event_synchronize gpumem_event_synchronize;   /**< gpumem_event_synchronize(). */
  /** gpumem_event_get_elapsed_time(). */
  PFN_gpumem_event_get_elapsed_time gpumem_event_get_elapsed_time;
  PFN_gpumem_stats_get gpumem_stats_get;                 /**< gpumem_stats_get(). */
  PFN_gpumem_stats_get_kind gpumem_stats_get_kind;       /**< gpumem_stats_get_kind(). */
  PFN_gpumem_stats_reset_peaks gpumem_stats_reset_peaks; /**< gpumem_stats_reset_peaks(). */
  PFN_gpumem_stats_report gpumem_stats_report;           /**< gpumem_stats_report(). */
  PFN_gpumem_host_launch gpumem_host_launch;             /**< gpumem_host_launch(). */
  PFN_gpumem_host_kernel_view gpumem_host_kernel_view;   /**< gpumem_host_kernel_view(). */
  /** gpumem_host_native_stream_create(). */
  PFN_gpumem_host_native_stream_create gpumem_host_native_stream_create;
  /** gpumem_host_native_stream_destroy(). */
  PFN_gpumem_host_native_stream_destroy gpumem_host_native_stream_destroy;
  /** gpumem_host_stream_set_capturing(). */
  PFN_gpumem_host_stream_set_capturing gpumem_host_stream_set_capturing;
  PFN_gpumem_host_device_lose gpumem_host_device_lose;     /**< gpumem_host_device_lose(). */
  PFN_gpumem_host_fail_step gpumem_host_fail_step;         /**< gpumem_host_fail_step(). */
  PFN_gpumem_host_foreign_alloc gpumem_host_foreign_alloc; /**< gpumem_host_foreign_alloc(). */
  PFN_gpumem_host_foreign_free gpumem_host_foreign_free;   /**< gpumem_host_foreign_free(). */
  /** gpumem_host_foreign_peer_access(). */
  PFN_gpumem_host_foreign_peer_access gpumem_host_foreign_peer_access;
  /** gpumem_host_set_current_device(). */
  PFN_gpumem_host_set_current_device gpumem_host_set_current_device;
} gpumem_table;

/** Fills a table with the functions of the loaded library.
 *
 * \param version version of the interface that the caller was written for: #GPUMEM_VERSION of its headers
 * \param[out] out_table receives the functions; set `struct_size` first. Members that this library does not have,
 *         because the caller is newer, are set to NULL
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the functions were written to `*out_table`
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `out_table` is NULL, or its size is less than two pointers or not a multiple of
 *         the size of a pointer
 * \retval GPUMEM_ERROR_UNSUPPORTED the library's major version differs from the one in `version`
 * \blocking{no}
 * \threads{any thread}
 * \owner{the functions stay valid for the life of the process: the library is never unloaded}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_table_get(uint32_t version, gpumem_table *out_table, gpumem_error *error);

/** Type of gpumem_table_get(). */
typedef gpumem_status(GPUMEM_CALL *PFN_gpumem_table_get)(uint32_t version, gpumem_table *out_table,
                                                         gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
