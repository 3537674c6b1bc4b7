/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file native.h
 * Between Go and the library: one small function for each call.
 *
 * - Handles and device addresses cross as numbers. Go's garbage collector must never see one as a pointer.
 * - The error struct lives on the C stack. Only a call that fails copies it to the heap, so success costs
 * nothing.
 * - Memory of Go that is passed in is used during the call only. Parameters for it are bytes (uint8_t),
 * because Go then need not look for pointers in it.
 */
#ifndef GPUMEM_GO_NATIVE_H
#define GPUMEM_GO_NATIVE_H

#include "functions.h"
#include "headers.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#ifdef GPUMEM_GO_DLOPEN
/** Filled by gpumem_go_load() in library.go, before any other function here is called. */
extern gpumem_table gpumem_go_table;
#define GPUMEM_GO(function) gpumem_go_table.function
/** Objects exist only once the library is loaded, but a method of nil may be called before. */
#define GPUMEM_GO_LOADED(function) (gpumem_go_table.function != NULL)
#else
#define GPUMEM_GO(function) function
#define GPUMEM_GO_LOADED(function) 1
#endif

static inline gpumem_status gpumem_go_not_loaded(gpumem_error* error, const char* function) {
  memset(error, 0, sizeof *error);
  error->status = GPUMEM_ERROR_INVALID_ARGUMENT;
  strncpy(error->function, function, sizeof error->function - 1);
  strcpy(error->message, "the object is nil");
  return error->status;
}

/** Result of a call. */
typedef struct gpumem_go_result {
  gpumem_status status;
  gpumem_error* detail; /**< NULL on success; otherwise the caller frees it. */
  uint64_t value;       /**< A handle, address or number; 0 after a failure. */
} gpumem_go_result;

static inline gpumem_error* gpumem_go_keep(const gpumem_error* error) {
  gpumem_error* copy = (gpumem_error*)malloc(sizeof *copy);
  if (copy != NULL) *copy = *error;
  return copy;
}

/** Calls a function whose last parameter is the error. */
#define GPUMEM_GO_CALL(result, function, ...)                                               \
  do {                                                                                      \
    gpumem_error error;                                                                     \
    error.struct_size = sizeof error;                                                       \
    (result).status = GPUMEM_GO_LOADED(function) ? GPUMEM_GO(function)(__VA_ARGS__, &error) \
                                                 : gpumem_go_not_loaded(&error, #function); \
    (result).detail = GPUMEM_FAILED((result).status) ? gpumem_go_keep(&error) : NULL;       \
    (result).value = 0;                                                                     \
  } while (0)

/** Body of a function without an output, or whose output is in memory of Go. */
#define GPUMEM_GO_RETURN(function, ...)            \
  do {                                             \
    gpumem_go_result result;                       \
    GPUMEM_GO_CALL(result, function, __VA_ARGS__); \
    return result;                                 \
  } while (0)

/** Body of a function whose one output is a pointer of the given type. */
#define GPUMEM_GO_RETURN_POINTER(type, function, ...)                    \
  do {                                                                   \
    gpumem_go_result result;                                             \
    type output = NULL;                                                  \
    GPUMEM_GO_CALL(result, function, __VA_ARGS__, &output);              \
    if (!GPUMEM_FAILED(result.status)) result.value = (uintptr_t)output; \
    return result;                                                       \
  } while (0)

/** Address as a pointer of C. */
static inline void* gpumem_go_pointer(uint64_t address) { return (void*)(uintptr_t)address; }

/** A text of Go with a 0 byte at its end, for the library to copy. A name that is truncated here is still
 * longer than the 63 bytes that the library accepts. */
typedef struct gpumem_go_name {
  char bytes[80];
} gpumem_go_name;

static inline const char* gpumem_go_text(gpumem_go_name* name, _GoString_ text) {
  size_t length = _GoStringLen(text);
  if (length == 0) return NULL;
  if (length >= sizeof name->bytes) length = sizeof name->bytes - 1;
  memcpy(name->bytes, _GoStringPtr(text), length);
  name->bytes[length] = 0;
  return name->bytes;
}

/** Sets up a descriptor from the one of Go, which has no pointers in it. */
#define GPUMEM_GO_DESC(desc, given) memcpy(&desc, given, sizeof desc)

/* ---- version.h, status.h ---- */

static inline uint32_t gpumem_go_version(void) { return GPUMEM_GO(gpumem_version)(); }

static inline const char* gpumem_go_version_text(void) { return GPUMEM_GO(gpumem_version_text)(); }

static inline int32_t gpumem_go_feature_supported(gpumem_feature feature) {
  return GPUMEM_GO(gpumem_feature_supported)(feature);
}

static inline const char* gpumem_go_status_name(gpumem_status status) {
  return GPUMEM_GO(gpumem_status_name)(status);
}

static inline gpumem_go_result gpumem_go_status_get_info(gpumem_status status, uint8_t* info) {
  GPUMEM_GO_RETURN(gpumem_status_get_info, status, (gpumem_status_info*)(void*)info);
}

static inline gpumem_go_result gpumem_go_status_enumerate(uint32_t index) {
  gpumem_go_result result;
  gpumem_status status = 0;
  GPUMEM_GO_CALL(result, gpumem_status_enumerate, index, &status);
  result.value = (uint64_t)(int64_t)status;
  return result;
}

/* ---- instance.h ---- */

static inline gpumem_go_result gpumem_go_instance_probe(gpumem_backend backend, uint8_t* info) {
  GPUMEM_GO_RETURN(gpumem_instance_probe, backend, (gpumem_probe_info*)(void*)info);
}

static inline gpumem_go_result gpumem_go_instance_open(const uint8_t* given, _GoString_ name,
                                                       const uint8_t* host_given, const char* peers,
                                                       const char* masked, const uint8_t* cuda_given,
                                                       const uint8_t* contexts) {
  gpumem_instance_desc desc;
  gpumem_host_options host;
  gpumem_cuda_options cuda;
  gpumem_go_name text;
  GPUMEM_GO_DESC(desc, given);
  desc.name = gpumem_go_text(&text, name);
  if (host_given != NULL) {
    GPUMEM_GO_DESC(host, host_given);
    host.peers = peers;
    host.masked = masked;
    desc.host = &host;
  }
  if (cuda_given != NULL) {
    GPUMEM_GO_DESC(cuda, cuda_given);
    cuda.contexts = (void* const*)(const void*)contexts;
    desc.cuda = &cuda;
  }
  GPUMEM_GO_RETURN_POINTER(gpumem_instance, gpumem_instance_open, &desc);
}

static inline gpumem_go_result gpumem_go_instance_close(uintptr_t instance, gpumem_close_mode mode) {
  gpumem_go_result result;
  uint64_t destroyed = 0;
  GPUMEM_GO_CALL(result, gpumem_instance_close, (gpumem_instance)instance, mode, &destroyed);
  result.value = destroyed;
  return result;
}

/* gpumem_instance_default() has no parameter before its output. */
static inline gpumem_go_result gpumem_go_instance_default(void) {
  gpumem_go_result result;
  gpumem_instance instance = NULL;
  GPUMEM_GO_CALL(result, gpumem_instance_default, &instance);
  if (!GPUMEM_FAILED(result.status)) result.value = (uintptr_t)instance;
  return result;
}

static inline gpumem_go_result gpumem_go_instance_get_info(uintptr_t instance, uint8_t* info) {
  GPUMEM_GO_RETURN(gpumem_instance_get_info, (gpumem_instance)instance, (gpumem_instance_info*)(void*)info);
}

/* ---- device.h, capability.h ---- */

static inline gpumem_go_result gpumem_go_device_get(uintptr_t instance, uint32_t ordinal) {
  GPUMEM_GO_RETURN_POINTER(gpumem_device, gpumem_device_get, (gpumem_instance)instance, ordinal);
}

static inline gpumem_go_result gpumem_go_device_get_info(uintptr_t device, uint8_t* info) {
  GPUMEM_GO_RETURN(gpumem_device_get_info, (gpumem_device)device, (gpumem_device_info*)(void*)info);
}

static inline gpumem_go_result gpumem_go_device_get_memory(uintptr_t device, uint64_t* free_bytes,
                                                           uint64_t* total_bytes) {
  GPUMEM_GO_RETURN(gpumem_device_get_memory, (gpumem_device)device, free_bytes, total_bytes);
}

static inline gpumem_go_result gpumem_go_device_can_access_peer(uintptr_t device, uintptr_t peer) {
  gpumem_go_result result;
  uint32_t possible = 0;
  GPUMEM_GO_CALL(result, gpumem_device_can_access_peer, (gpumem_device)device, (gpumem_device)peer,
                 &possible);
  result.value = possible;
  return result;
}

static inline gpumem_go_result gpumem_go_device_enable_peer_access(uintptr_t device, uintptr_t peer) {
  GPUMEM_GO_RETURN(gpumem_device_enable_peer_access, (gpumem_device)device, (gpumem_device)peer);
}

static inline gpumem_go_result gpumem_go_device_disable_peer_access(uintptr_t device, uintptr_t peer) {
  GPUMEM_GO_RETURN(gpumem_device_disable_peer_access, (gpumem_device)device, (gpumem_device)peer);
}

static inline gpumem_go_result gpumem_go_device_get_capability(uintptr_t device, gpumem_capability capability,
                                                               uintptr_t peer, uint8_t* info) {
  GPUMEM_GO_RETURN(gpumem_device_get_capability, (gpumem_device)device, capability, (gpumem_device)peer,
                   (gpumem_capability_info*)(void*)info);
}

static inline gpumem_go_result gpumem_go_capability_enumerate(uint32_t index) {
  gpumem_go_result result;
  gpumem_capability capability = 0;
  GPUMEM_GO_CALL(result, gpumem_capability_enumerate, index, &capability);
  result.value = (uint64_t)(int64_t)capability;
  return result;
}

/* ---- memory.h, pointer.h ---- */

/** New memory. */
typedef struct gpumem_go_memory {
  gpumem_go_result result; /**< With the handle. */
  uint64_t host_pointer;
  uint64_t device_pointer;
} gpumem_go_memory;

/** Adds the addresses of new memory to the result of the call that made it. */
static inline gpumem_go_memory gpumem_go_memory_made(gpumem_go_result result, gpumem_memory memory) {
  gpumem_go_memory made = {result, 0, 0};
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  if (GPUMEM_FAILED(result.status)) return made;
  GPUMEM_GO_CALL(made.result, gpumem_memory_get_info, memory, &info);
  if (GPUMEM_FAILED(made.result.status)) {
    GPUMEM_GO(gpumem_memory_destroy)(memory, NULL);
    return made;
  }
  made.result.value = (uintptr_t)memory;
  made.host_pointer = (uintptr_t)info.host_pointer;
  made.device_pointer = (uintptr_t)info.device_pointer;
  return made;
}

static inline gpumem_go_memory gpumem_go_memory_create(uintptr_t device, const uint8_t* given,
                                                       _GoString_ name) {
  gpumem_go_result result;
  gpumem_memory_desc desc;
  gpumem_memory memory = NULL;
  gpumem_go_name text;
  GPUMEM_GO_DESC(desc, given);
  desc.name = gpumem_go_text(&text, name);
  GPUMEM_GO_CALL(result, gpumem_memory_create, (gpumem_device)device, &desc, &memory);
  return gpumem_go_memory_made(result, memory);
}

static inline gpumem_go_memory gpumem_go_memory_register(uintptr_t device, const uint8_t* given,
                                                         _GoString_ name) {
  gpumem_go_result result;
  gpumem_register_desc desc;
  gpumem_memory memory = NULL;
  gpumem_go_name text;
  GPUMEM_GO_DESC(desc, given);
  desc.name = gpumem_go_text(&text, name);
  GPUMEM_GO_CALL(result, gpumem_memory_register, (gpumem_device)device, &desc, &memory);
  return gpumem_go_memory_made(result, memory);
}

static inline gpumem_go_result gpumem_go_memory_destroy(uintptr_t memory) {
  GPUMEM_GO_RETURN(gpumem_memory_destroy, (gpumem_memory)memory);
}

static inline gpumem_go_result gpumem_go_memory_get_info(uintptr_t memory, uint8_t* info) {
  GPUMEM_GO_RETURN(gpumem_memory_get_info, (gpumem_memory)memory, (gpumem_memory_info*)(void*)info);
}

static inline gpumem_go_result gpumem_go_malloc(uintptr_t device, gpumem_kind kind, uint64_t size) {
  GPUMEM_GO_RETURN_POINTER(void*, gpumem_malloc, (gpumem_device)device, kind, size);
}

static inline gpumem_go_result gpumem_go_free(uintptr_t instance, uint64_t address) {
  GPUMEM_GO_RETURN(gpumem_free, (gpumem_instance)instance, gpumem_go_pointer(address));
}

static inline gpumem_go_result gpumem_go_register(uintptr_t device, uint64_t address, uint64_t size,
                                                  gpumem_memory_flags require) {
  GPUMEM_GO_RETURN(gpumem_register, (gpumem_device)device, gpumem_go_pointer(address), size, require);
}

static inline gpumem_go_result gpumem_go_unregister(uintptr_t instance, uint64_t address) {
  GPUMEM_GO_RETURN(gpumem_unregister, (gpumem_instance)instance, gpumem_go_pointer(address));
}

static inline gpumem_go_result gpumem_go_pointer_get_info(uintptr_t instance, uint64_t address,
                                                          uint8_t* info) {
  GPUMEM_GO_RETURN(gpumem_pointer_get_info, (gpumem_instance)instance, gpumem_go_pointer(address),
                   (gpumem_pointer_info*)(void*)info);
}

static inline gpumem_go_result gpumem_go_pointer_get_access(uintptr_t instance, uint64_t address,
                                                            gpumem_location location, int32_t location_id) {
  gpumem_go_result result;
  gpumem_access access = GPUMEM_ACCESS_NONE;
  GPUMEM_GO_CALL(result, gpumem_pointer_get_access, (gpumem_instance)instance, gpumem_go_pointer(address),
                 location, location_id, &access);
  result.value = (uint64_t)(int64_t)access;
  return result;
}

static inline gpumem_go_result gpumem_go_pointer_get_device_pointer(uintptr_t device, uint64_t address) {
  GPUMEM_GO_RETURN_POINTER(void*, gpumem_pointer_get_device_pointer, (gpumem_device)device,
                           gpumem_go_pointer(address));
}

/* ---- stream.h ---- */

static inline gpumem_go_result gpumem_go_stream_create(uintptr_t device, const uint8_t* given,
                                                       _GoString_ name) {
  gpumem_stream_desc desc;
  gpumem_go_name text;
  GPUMEM_GO_DESC(desc, given);
  desc.name = gpumem_go_text(&text, name);
  GPUMEM_GO_RETURN_POINTER(gpumem_stream, gpumem_stream_create, (gpumem_device)device, &desc);
}

static inline gpumem_go_result gpumem_go_stream_wrap(uintptr_t device, uintptr_t native_stream) {
  GPUMEM_GO_RETURN_POINTER(gpumem_stream, gpumem_stream_wrap, (gpumem_device)device, (void*)native_stream);
}

static inline gpumem_go_result gpumem_go_stream_destroy(uintptr_t stream) {
  GPUMEM_GO_RETURN(gpumem_stream_destroy, (gpumem_stream)stream);
}

static inline gpumem_go_result gpumem_go_stream_get_capture_id(uintptr_t stream) {
  gpumem_go_result result;
  uint64_t number = 0;
  GPUMEM_GO_CALL(result, gpumem_stream_get_capture_id, (gpumem_stream)stream, &number);
  result.value = number;
  return result;
}

static inline gpumem_go_result gpumem_go_stream_get_info(uintptr_t stream, uint8_t* info) {
  GPUMEM_GO_RETURN(gpumem_stream_get_info, (gpumem_stream)stream, (gpumem_stream_info*)(void*)info);
}

static inline gpumem_go_result gpumem_go_stream_query(uintptr_t stream) {
  GPUMEM_GO_RETURN(gpumem_stream_query, (gpumem_stream)stream);
}

static inline gpumem_go_result gpumem_go_stream_synchronize(uintptr_t stream, uint64_t timeout_ns) {
  GPUMEM_GO_RETURN(gpumem_stream_synchronize, (gpumem_stream)stream, timeout_ns);
}

static inline gpumem_go_result gpumem_go_stream_wait_event(uintptr_t stream, uintptr_t event) {
  GPUMEM_GO_RETURN(gpumem_stream_wait_event, (gpumem_stream)stream, (gpumem_event)event);
}

static inline gpumem_go_result gpumem_go_stream_write_value(uintptr_t stream, uint64_t address,
                                                            uint64_t value, uint32_t value_size) {
  GPUMEM_GO_RETURN(gpumem_stream_write_value, (gpumem_stream)stream, gpumem_go_pointer(address), value,
                   value_size);
}

static inline gpumem_go_result gpumem_go_stream_wait_value(uintptr_t stream, uint64_t address, uint64_t value,
                                                           uint32_t value_size,
                                                           gpumem_wait_condition condition) {
  GPUMEM_GO_RETURN(gpumem_stream_wait_value, (gpumem_stream)stream, gpumem_go_pointer(address), value,
                   value_size, condition);
}

/* ---- event.h ---- */

static inline gpumem_go_result gpumem_go_event_create(uintptr_t device, const uint8_t* given,
                                                      _GoString_ name) {
  gpumem_event_desc desc;
  gpumem_go_name text;
  GPUMEM_GO_DESC(desc, given);
  desc.name = gpumem_go_text(&text, name);
  GPUMEM_GO_RETURN_POINTER(gpumem_event, gpumem_event_create, (gpumem_device)device, &desc);
}

static inline gpumem_go_result gpumem_go_event_wrap(uintptr_t device, uintptr_t native_event,
                                                    gpumem_event_flags flags) {
  GPUMEM_GO_RETURN_POINTER(gpumem_event, gpumem_event_wrap, (gpumem_device)device, (void*)native_event,
                           flags);
}

static inline gpumem_go_result gpumem_go_event_destroy(uintptr_t event) {
  GPUMEM_GO_RETURN(gpumem_event_destroy, (gpumem_event)event);
}

static inline gpumem_go_result gpumem_go_event_get_info(uintptr_t event, uint8_t* info) {
  GPUMEM_GO_RETURN(gpumem_event_get_info, (gpumem_event)event, (gpumem_event_info*)(void*)info);
}

static inline gpumem_go_result gpumem_go_event_record(uintptr_t event, uintptr_t stream) {
  GPUMEM_GO_RETURN(gpumem_event_record, (gpumem_event)event, (gpumem_stream)stream);
}

static inline gpumem_go_result gpumem_go_event_query(uintptr_t event) {
  GPUMEM_GO_RETURN(gpumem_event_query, (gpumem_event)event);
}

static inline gpumem_go_result gpumem_go_event_synchronize(uintptr_t event, uint64_t timeout_ns) {
  GPUMEM_GO_RETURN(gpumem_event_synchronize, (gpumem_event)event, timeout_ns);
}

static inline gpumem_go_result gpumem_go_event_get_elapsed_time(uintptr_t start, uintptr_t end) {
  gpumem_go_result result;
  int64_t nanoseconds = 0;
  GPUMEM_GO_CALL(result, gpumem_event_get_elapsed_time, (gpumem_event)start, (gpumem_event)end, &nanoseconds);
  result.value = (uint64_t)nanoseconds;
  return result;
}

/* ---- copy.h ---- */

static inline gpumem_copy_options gpumem_go_copy_options(gpumem_direction direction,
                                                         gpumem_source_order order) {
  gpumem_copy_options options = GPUMEM_COPY_OPTIONS_INIT;
  options.direction = direction;
  options.source_order = order;
  return options;
}

static inline gpumem_go_result gpumem_go_copy(uintptr_t instance, uint64_t destination, uint64_t source,
                                              uint64_t size, gpumem_direction direction,
                                              gpumem_source_order order) {
  gpumem_copy_options options = gpumem_go_copy_options(direction, order);
  GPUMEM_GO_RETURN(gpumem_copy, (gpumem_instance)instance, gpumem_go_pointer(destination),
                   gpumem_go_pointer(source), size, &options);
}

static inline gpumem_go_result gpumem_go_copy_async(uintptr_t stream, uint64_t destination, uint64_t source,
                                                    uint64_t size, gpumem_direction direction,
                                                    gpumem_source_order order) {
  gpumem_copy_options options = gpumem_go_copy_options(direction, order);
  GPUMEM_GO_RETURN(gpumem_copy_async, (gpumem_stream)stream, gpumem_go_pointer(destination),
                   gpumem_go_pointer(source), size, &options);
}

static inline gpumem_go_result gpumem_go_copy_from_slice(uintptr_t instance, uint64_t destination,
                                                         const uint8_t* source, uint64_t size) {
  GPUMEM_GO_RETURN(gpumem_copy, (gpumem_instance)instance, gpumem_go_pointer(destination), source, size,
                   NULL);
}

static inline gpumem_go_result gpumem_go_copy_from_slice_async(uintptr_t stream, uint64_t destination,
                                                               const uint8_t* source, uint64_t size) {
  gpumem_copy_options options =
      gpumem_go_copy_options(GPUMEM_DIRECTION_INFER, GPUMEM_SOURCE_ORDER_DURING_CALL);
  GPUMEM_GO_RETURN(gpumem_copy_async, (gpumem_stream)stream, gpumem_go_pointer(destination), source, size,
                   &options);
}

static inline gpumem_go_result gpumem_go_copy_to_slice(uintptr_t instance, uint8_t* destination,
                                                       uint64_t source, uint64_t size) {
  GPUMEM_GO_RETURN(gpumem_copy, (gpumem_instance)instance, destination, gpumem_go_pointer(source), size,
                   NULL);
}

static inline gpumem_go_result gpumem_go_copy_2d(uintptr_t instance, uint64_t destination,
                                                 uint64_t destination_pitch, uint64_t source,
                                                 uint64_t source_pitch, uint64_t width, uint64_t height,
                                                 gpumem_direction direction, gpumem_source_order order) {
  gpumem_copy_options options = gpumem_go_copy_options(direction, order);
  GPUMEM_GO_RETURN(gpumem_copy_2d, (gpumem_instance)instance, gpumem_go_pointer(destination),
                   destination_pitch, gpumem_go_pointer(source), source_pitch, width, height, &options);
}

static inline gpumem_go_result gpumem_go_copy_2d_async(uintptr_t stream, uint64_t destination,
                                                       uint64_t destination_pitch, uint64_t source,
                                                       uint64_t source_pitch, uint64_t width, uint64_t height,
                                                       gpumem_direction direction,
                                                       gpumem_source_order order) {
  gpumem_copy_options options = gpumem_go_copy_options(direction, order);
  GPUMEM_GO_RETURN(gpumem_copy_2d_async, (gpumem_stream)stream, gpumem_go_pointer(destination),
                   destination_pitch, gpumem_go_pointer(source), source_pitch, width, height, &options);
}

/** The value of the result is the index of the region that failed, or UINT64_MAX if it was none of them. */
static inline gpumem_go_result gpumem_go_copy_regions(uintptr_t instance, const uint8_t* regions,
                                                      uint64_t count) {
  gpumem_go_result result;
  uint64_t failed = UINT64_MAX;
  GPUMEM_GO_CALL(result, gpumem_copy_regions, (gpumem_instance)instance,
                 (const gpumem_copy_region*)(const void*)regions, count, &failed);
  result.value = failed;
  return result;
}

static inline gpumem_go_result gpumem_go_copy_regions_async(uintptr_t stream, const uint8_t* regions,
                                                            uint64_t count) {
  gpumem_go_result result;
  uint64_t failed = UINT64_MAX;
  GPUMEM_GO_CALL(result, gpumem_copy_regions_async, (gpumem_stream)stream,
                 (const gpumem_copy_region*)(const void*)regions, count, &failed);
  result.value = failed;
  return result;
}

static inline gpumem_go_result gpumem_go_fill(uintptr_t instance, uint64_t destination, uint64_t size,
                                              uint32_t value, uint32_t value_size) {
  GPUMEM_GO_RETURN(gpumem_fill, (gpumem_instance)instance, gpumem_go_pointer(destination), size, value,
                   value_size);
}

static inline gpumem_go_result gpumem_go_fill_async(uintptr_t stream, uint64_t destination, uint64_t size,
                                                    uint32_t value, uint32_t value_size) {
  GPUMEM_GO_RETURN(gpumem_fill_async, (gpumem_stream)stream, gpumem_go_pointer(destination), size, value,
                   value_size);
}

static inline gpumem_go_result gpumem_go_fill_2d(uintptr_t instance, uint64_t destination, uint64_t pitch,
                                                 uint64_t width, uint64_t height, uint32_t value,
                                                 uint32_t value_size) {
  GPUMEM_GO_RETURN(gpumem_fill_2d, (gpumem_instance)instance, gpumem_go_pointer(destination), pitch, width,
                   height, value, value_size);
}

static inline gpumem_go_result gpumem_go_fill_2d_async(uintptr_t stream, uint64_t destination, uint64_t pitch,
                                                       uint64_t width, uint64_t height, uint32_t value,
                                                       uint32_t value_size) {
  GPUMEM_GO_RETURN(gpumem_fill_2d_async, (gpumem_stream)stream, gpumem_go_pointer(destination), pitch, width,
                   height, value, value_size);
}

/* ---- managed.h ---- */

static inline gpumem_go_result gpumem_go_managed_attach(uintptr_t stream, uint64_t address, uint64_t size,
                                                        gpumem_attach attach) {
  GPUMEM_GO_RETURN(gpumem_managed_attach, (gpumem_stream)stream, gpumem_go_pointer(address), size, attach);
}

static inline gpumem_go_result gpumem_go_managed_advise(uintptr_t instance, uint64_t address, uint64_t size,
                                                        gpumem_advice advice, gpumem_location location,
                                                        int32_t location_id) {
  GPUMEM_GO_RETURN(gpumem_managed_advise, (gpumem_instance)instance, gpumem_go_pointer(address), size, advice,
                   location, location_id);
}

static inline gpumem_go_result gpumem_go_managed_prefetch(uintptr_t stream, uint64_t address, uint64_t size,
                                                          gpumem_location location, int32_t location_id) {
  GPUMEM_GO_RETURN(gpumem_managed_prefetch, (gpumem_stream)stream, gpumem_go_pointer(address), size, location,
                   location_id);
}

static inline gpumem_go_result gpumem_go_managed_prefetch_batch(uintptr_t stream, const uint8_t* ranges,
                                                                uint64_t count) {
  GPUMEM_GO_RETURN(gpumem_managed_prefetch_batch, (gpumem_stream)stream,
                   (const gpumem_managed_range*)(const void*)ranges, count);
}

static inline gpumem_go_result gpumem_go_managed_discard_batch(uintptr_t stream, const uint8_t* ranges,
                                                               uint64_t count) {
  GPUMEM_GO_RETURN(gpumem_managed_discard_batch, (gpumem_stream)stream,
                   (const gpumem_managed_range*)(const void*)ranges, count);
}

static inline gpumem_go_result gpumem_go_managed_discard_and_prefetch_batch(uintptr_t stream,
                                                                            const uint8_t* ranges,
                                                                            uint64_t count) {
  GPUMEM_GO_RETURN(gpumem_managed_discard_and_prefetch_batch, (gpumem_stream)stream,
                   (const gpumem_managed_range*)(const void*)ranges, count);
}

static inline gpumem_go_result gpumem_go_managed_get_info(uintptr_t instance, uint64_t address, uint64_t size,
                                                          uint8_t* info) {
  GPUMEM_GO_RETURN(gpumem_managed_get_info, (gpumem_instance)instance, gpumem_go_pointer(address), size,
                   (gpumem_managed_info*)(void*)info);
}

static inline gpumem_go_result gpumem_go_managed_begin_host_access(uintptr_t instance, uint64_t address) {
  GPUMEM_GO_RETURN(gpumem_managed_begin_host_access, (gpumem_instance)instance, gpumem_go_pointer(address));
}

static inline gpumem_go_result gpumem_go_managed_end_host_access(uintptr_t instance, uint64_t address) {
  GPUMEM_GO_RETURN(gpumem_managed_end_host_access, (gpumem_instance)instance, gpumem_go_pointer(address));
}

/* ---- physical.h, range.h ---- */

static inline gpumem_go_result gpumem_go_physical_get_granularity(uintptr_t device, const uint8_t* given,
                                                                  uint64_t* minimum, uint64_t* recommended) {
  gpumem_physical_desc desc;
  GPUMEM_GO_DESC(desc, given);
  GPUMEM_GO_RETURN(gpumem_physical_get_granularity, (gpumem_device)device, &desc, minimum, recommended);
}

static inline gpumem_go_result gpumem_go_physical_create(uintptr_t device, const uint8_t* given,
                                                         _GoString_ name) {
  gpumem_physical_desc desc;
  gpumem_go_name text;
  GPUMEM_GO_DESC(desc, given);
  desc.name = gpumem_go_text(&text, name);
  GPUMEM_GO_RETURN_POINTER(gpumem_physical, gpumem_physical_create, (gpumem_device)device, &desc);
}

static inline gpumem_go_result gpumem_go_physical_import_fd(uintptr_t device, const uint8_t* given,
                                                            _GoString_ name, int32_t fd) {
  gpumem_physical_desc desc;
  gpumem_go_name text;
  GPUMEM_GO_DESC(desc, given);
  desc.name = gpumem_go_text(&text, name);
  GPUMEM_GO_RETURN_POINTER(gpumem_physical, gpumem_physical_import_fd, (gpumem_device)device, &desc, fd);
}

static inline gpumem_go_result gpumem_go_physical_import_fabric(uintptr_t device, const uint8_t* given,
                                                                _GoString_ name, const uint8_t* handle) {
  gpumem_physical_desc desc;
  gpumem_fabric_handle fabric;
  gpumem_go_name text;
  GPUMEM_GO_DESC(desc, given);
  desc.name = gpumem_go_text(&text, name);
  memcpy(&fabric, handle, sizeof fabric);
  GPUMEM_GO_RETURN_POINTER(gpumem_physical, gpumem_physical_import_fabric, (gpumem_device)device, &desc,
                           &fabric);
}

static inline gpumem_go_result gpumem_go_physical_retain(uintptr_t instance, uint64_t address) {
  GPUMEM_GO_RETURN_POINTER(gpumem_physical, gpumem_physical_retain, (gpumem_instance)instance,
                           gpumem_go_pointer(address));
}

static inline gpumem_go_result gpumem_go_physical_release(uintptr_t physical) {
  GPUMEM_GO_RETURN(gpumem_physical_release, (gpumem_physical)physical);
}

static inline gpumem_go_result gpumem_go_physical_get_info(uintptr_t physical, uint8_t* info) {
  GPUMEM_GO_RETURN(gpumem_physical_get_info, (gpumem_physical)physical, (gpumem_physical_info*)(void*)info);
}

static inline gpumem_go_result gpumem_go_physical_export_fd(uintptr_t physical) {
  gpumem_go_result result;
  int32_t fd = -1;
  GPUMEM_GO_CALL(result, gpumem_physical_export_fd, (gpumem_physical)physical, &fd);
  result.value = (uint64_t)fd;
  return result;
}

static inline gpumem_go_result gpumem_go_physical_export_fabric(uintptr_t physical, uint8_t* handle) {
  GPUMEM_GO_RETURN(gpumem_physical_export_fabric, (gpumem_physical)physical,
                   (gpumem_fabric_handle*)(void*)handle);
}

/** A new range. */
typedef struct gpumem_go_range {
  gpumem_go_result result; /**< With the handle. */
  uint64_t base;
} gpumem_go_range;

static inline gpumem_go_range gpumem_go_range_reserve(uintptr_t instance, const uint8_t* given,
                                                      _GoString_ name) {
  gpumem_go_range made = {{0, NULL, 0}, 0};
  gpumem_range range = NULL;
  gpumem_range_info info = GPUMEM_RANGE_INFO_INIT;
  gpumem_range_desc desc;
  gpumem_go_name text;
  GPUMEM_GO_DESC(desc, given);
  desc.name = gpumem_go_text(&text, name);
  GPUMEM_GO_CALL(made.result, gpumem_range_reserve, (gpumem_instance)instance, &desc, &range);
  if (GPUMEM_FAILED(made.result.status)) return made;
  GPUMEM_GO_CALL(made.result, gpumem_range_get_info, range, &info);
  if (GPUMEM_FAILED(made.result.status)) {
    GPUMEM_GO(gpumem_range_release)(range, NULL);
    return made;
  }
  made.result.value = (uintptr_t)range;
  made.base = (uintptr_t)info.base;
  return made;
}

static inline gpumem_go_result gpumem_go_range_release(uintptr_t range) {
  GPUMEM_GO_RETURN(gpumem_range_release, (gpumem_range)range);
}

static inline gpumem_go_result gpumem_go_range_get_info(uintptr_t range, uint8_t* info) {
  GPUMEM_GO_RETURN(gpumem_range_get_info, (gpumem_range)range, (gpumem_range_info*)(void*)info);
}

static inline gpumem_go_result gpumem_go_range_map(uintptr_t range, uint64_t offset, const uint8_t* physicals,
                                                   uint64_t count) {
  GPUMEM_GO_RETURN(gpumem_range_map, (gpumem_range)range, offset,
                   (const gpumem_physical*)(const void*)physicals, count);
}

static inline gpumem_go_result gpumem_go_range_unmap(uintptr_t range, uint64_t offset, uint64_t size) {
  GPUMEM_GO_RETURN(gpumem_range_unmap, (gpumem_range)range, offset, size);
}

static inline gpumem_go_result gpumem_go_range_set_access(uintptr_t range, uint64_t offset, uint64_t size,
                                                          const uint8_t* accesses, uint64_t count) {
  GPUMEM_GO_RETURN(gpumem_range_set_access, (gpumem_range)range, offset, size,
                   (const gpumem_access_desc*)(const void*)accesses, count);
}

static inline gpumem_go_result gpumem_go_range_get_mapping(uintptr_t instance, uint64_t address,
                                                           uint8_t* info) {
  GPUMEM_GO_RETURN(gpumem_range_get_mapping, (gpumem_instance)instance, gpumem_go_pointer(address),
                   (gpumem_mapping_info*)(void*)info);
}

/** Unmaps everything in a range. */
static inline gpumem_status gpumem_go_range_unmap_all(uintptr_t instance, uintptr_t range) {
  gpumem_range_info info = GPUMEM_RANGE_INFO_INIT;
  gpumem_status status = GPUMEM_GO(gpumem_range_get_info)((gpumem_range)range, &info, NULL);
  uint64_t offset = 0, step = 0;
  for (; !GPUMEM_FAILED(status) && info.mapped_size > 0 && offset < info.size; offset += step) {
    gpumem_mapping_info mapping = GPUMEM_MAPPING_INFO_INIT;
    step = info.granularity;
    if (GPUMEM_FAILED(GPUMEM_GO(gpumem_range_get_mapping)((gpumem_instance)instance,
                                                          (char*)info.base + offset, &mapping, NULL)))
      continue;
    step = mapping.size;
    info.mapped_size -= mapping.size;
    status = GPUMEM_GO(gpumem_range_unmap)((gpumem_range)range, offset, mapping.size, NULL);
  }
  return status;
}

/* ---- buffer.h ---- */

static inline gpumem_go_result gpumem_go_buffer_create(uintptr_t device, const uint8_t* given,
                                                       const uint8_t* accesses, _GoString_ name,
                                                       _GoString_ tag) {
  gpumem_buffer_desc desc;
  gpumem_go_name name_text, tag_text;
  GPUMEM_GO_DESC(desc, given);
  desc.accesses = (const gpumem_access_desc*)(const void*)accesses;
  desc.name = gpumem_go_text(&name_text, name);
  desc.tag = gpumem_go_text(&tag_text, tag);
  GPUMEM_GO_RETURN_POINTER(gpumem_buffer, gpumem_buffer_create, (gpumem_device)device, &desc);
}

static inline gpumem_go_result gpumem_go_buffer_destroy(uintptr_t buffer) {
  GPUMEM_GO_RETURN(gpumem_buffer_destroy, (gpumem_buffer)buffer);
}

static inline gpumem_go_result gpumem_go_buffer_get_info(uintptr_t buffer, uint8_t* info) {
  GPUMEM_GO_RETURN(gpumem_buffer_get_info, (gpumem_buffer)buffer, (gpumem_buffer_info*)(void*)info);
}

static inline gpumem_go_result gpumem_go_buffer_resize(uintptr_t buffer, uint64_t size) {
  GPUMEM_GO_RETURN(gpumem_buffer_resize, (gpumem_buffer)buffer, size);
}

static inline gpumem_go_result gpumem_go_buffer_set_capacity(uintptr_t buffer, uint64_t capacity) {
  GPUMEM_GO_RETURN(gpumem_buffer_set_capacity, (gpumem_buffer)buffer, capacity);
}

static inline gpumem_go_result gpumem_go_buffer_set_access(uintptr_t buffer, const uint8_t* accesses,
                                                           uint64_t count) {
  GPUMEM_GO_RETURN(gpumem_buffer_set_access, (gpumem_buffer)buffer,
                   (const gpumem_access_desc*)(const void*)accesses, count);
}

static inline gpumem_go_result gpumem_go_buffer_set_ahead(uintptr_t buffer, uint64_t bytes) {
  GPUMEM_GO_RETURN(gpumem_buffer_set_ahead, (gpumem_buffer)buffer, bytes);
}

static inline gpumem_go_result gpumem_go_buffer_note_registration(uintptr_t buffer, _GoString_ name) {
  gpumem_go_result result;
  uint64_t registration = 0;
  gpumem_go_name text = {{0}};
  gpumem_go_text(&text, name);
  GPUMEM_GO_CALL(result, gpumem_buffer_note_registration, (gpumem_buffer)buffer, text.bytes, &registration);
  result.value = registration;
  return result;
}

static inline gpumem_go_result gpumem_go_buffer_forget_registration(uintptr_t buffer, uint64_t registration) {
  GPUMEM_GO_RETURN(gpumem_buffer_forget_registration, (gpumem_buffer)buffer, registration);
}

static inline gpumem_prepare_desc gpumem_go_prepare_desc(const uint8_t* given, const char* directory,
                                                         const char* tag) {
  gpumem_prepare_desc desc;
  GPUMEM_GO_DESC(desc, given);
  desc.directory = directory;
  desc.tag = tag;
  return desc;
}

static inline gpumem_go_result gpumem_go_buffer_prepare(uintptr_t buffer, const uint8_t* given,
                                                        const char* directory, _GoString_ tag) {
  gpumem_go_name text;
  gpumem_prepare_desc desc = gpumem_go_prepare_desc(given, directory, gpumem_go_text(&text, tag));
  GPUMEM_GO_RETURN(gpumem_buffer_prepare, (gpumem_buffer)buffer, &desc);
}

/* ---- group.h ---- */

static inline gpumem_go_result gpumem_go_group_create(uintptr_t instance, _GoString_ name) {
  gpumem_group_desc desc = GPUMEM_GROUP_DESC_INIT;
  gpumem_go_name text;
  desc.name = gpumem_go_text(&text, name);
  GPUMEM_GO_RETURN_POINTER(gpumem_group, gpumem_group_create, (gpumem_instance)instance, &desc);
}

static inline gpumem_go_result gpumem_go_group_destroy(uintptr_t group) {
  GPUMEM_GO_RETURN(gpumem_group_destroy, (gpumem_group)group);
}

static inline gpumem_go_result gpumem_go_group_get_info(uintptr_t group, _GoString_ tag, uint8_t* info) {
  gpumem_go_name text;
  GPUMEM_GO_RETURN(gpumem_group_get_info, (gpumem_group)group, gpumem_go_text(&text, tag),
                   (gpumem_group_info*)(void*)info);
}

static inline gpumem_go_result gpumem_go_group_prepare(uintptr_t group, const uint8_t* given,
                                                       const char* directory, _GoString_ tag) {
  gpumem_go_name text;
  gpumem_prepare_desc desc = gpumem_go_prepare_desc(given, directory, gpumem_go_text(&text, tag));
  GPUMEM_GO_RETURN(gpumem_group_prepare, (gpumem_group)group, &desc);
}

/* ---- stats.h ---- */

static inline gpumem_go_result gpumem_go_stats_get(uintptr_t instance, uint8_t* stats) {
  GPUMEM_GO_RETURN(gpumem_stats_get, (gpumem_instance)instance, (gpumem_stats*)(void*)stats);
}

static inline gpumem_go_result gpumem_go_stats_get_kind(uintptr_t instance, gpumem_kind kind,
                                                        uint8_t* stats) {
  GPUMEM_GO_RETURN(gpumem_stats_get_kind, (gpumem_instance)instance, kind, (gpumem_kind_stats*)(void*)stats);
}

static inline gpumem_go_result gpumem_go_stats_reset_peaks(uintptr_t instance) {
  GPUMEM_GO_RETURN(gpumem_stats_reset_peaks, (gpumem_instance)instance);
}

static inline gpumem_go_result gpumem_go_stats_report(uintptr_t instance, uint8_t* buffer,
                                                      uint64_t capacity) {
  gpumem_go_result result;
  uint64_t required = 0;
  GPUMEM_GO_CALL(result, gpumem_stats_report, (gpumem_instance)instance, (char*)buffer, capacity, &required);
  result.value = required;
  return result;
}

/* ---- host.h ---- */

static inline gpumem_go_result gpumem_go_host_kernel_view(uintptr_t kernel, uint64_t address, uint64_t size,
                                                          gpumem_access access) {
  GPUMEM_GO_RETURN_POINTER(void*, gpumem_host_kernel_view, (gpumem_host_kernel)kernel,
                           gpumem_go_pointer(address), size, access);
}

static inline gpumem_go_result gpumem_go_host_native_stream_create(uintptr_t device) {
  GPUMEM_GO_RETURN_POINTER(void*, gpumem_host_native_stream_create, (gpumem_device)device);
}

static inline gpumem_go_result gpumem_go_host_native_stream_destroy(uintptr_t device,
                                                                    uintptr_t native_stream) {
  GPUMEM_GO_RETURN(gpumem_host_native_stream_destroy, (gpumem_device)device, (void*)native_stream);
}

static inline gpumem_go_result gpumem_go_host_stream_set_capturing(uintptr_t stream, uint32_t capturing) {
  GPUMEM_GO_RETURN(gpumem_host_stream_set_capturing, (gpumem_stream)stream, capturing);
}

static inline gpumem_go_result gpumem_go_host_device_lose(uintptr_t device) {
  GPUMEM_GO_RETURN(gpumem_host_device_lose, (gpumem_device)device);
}

static inline gpumem_go_result gpumem_go_host_fail_step(uintptr_t instance, uint64_t step, uint32_t repeat) {
  GPUMEM_GO_RETURN(gpumem_host_fail_step, (gpumem_instance)instance, step, repeat);
}

static inline gpumem_go_result gpumem_go_host_foreign_alloc(uintptr_t device, gpumem_kind kind,
                                                            uint64_t size) {
  GPUMEM_GO_RETURN_POINTER(void*, gpumem_host_foreign_alloc, (gpumem_device)device, kind, size);
}

static inline gpumem_go_result gpumem_go_host_foreign_free(uintptr_t device, uint64_t address) {
  GPUMEM_GO_RETURN(gpumem_host_foreign_free, (gpumem_device)device, gpumem_go_pointer(address));
}

static inline gpumem_go_result gpumem_go_host_foreign_peer_access(uintptr_t device, uintptr_t peer,
                                                                  uint32_t enabled) {
  GPUMEM_GO_RETURN(gpumem_host_foreign_peer_access, (gpumem_device)device, (gpumem_device)peer, enabled);
}

static inline gpumem_go_result gpumem_go_host_set_current_device(int32_t ordinal) {
  gpumem_go_result result;
  int32_t previous = -1;
  GPUMEM_GO_CALL(result, gpumem_host_set_current_device, ordinal, &previous);
  result.value = (uint64_t)(int64_t)previous;
  return result;
}

/* ---- functions of Go that the library calls ---- */

/* Defined in callback.go. */
extern void gpumemGoHostFunction(uintptr_t call);
extern void gpumemGoHostKernel(uintptr_t kernel, uintptr_t call);
extern void gpumemGoLog(int32_t level, char* message);
extern int32_t gpumemGoProgress(uintptr_t call, uint64_t done, uint64_t total);
extern int32_t gpumemGoBeforeSleep(uintptr_t call, uintptr_t callbacks);
extern void gpumemGoAfterWake(uintptr_t call, uintptr_t callbacks, uint64_t generation);
extern int32_t gpumemGoPoolCallback(uintptr_t callback, uint64_t size);

/** Not 0 while this thread runs such a function. Go does not move the function to another thread meanwhile.
 */
extern __thread int gpumem_go_inside;

/** The call of this thread that sleeps or wakes; 0 if there is none. What the library calls belongs to it. */
extern __thread uintptr_t gpumem_go_sleeping;

/** The function that this thread runs for a call of another thread; 0 if there is none. See aside.go. */
extern __thread uintptr_t gpumem_go_aside;

/** How a callback of a pool that this thread's call made has ended, if it did not return; otherwise 0. See
 * pool.go. */
extern __thread uintptr_t gpumem_go_unwound;

static inline void gpumem_go_run_host_function(void* call) {
  ++gpumem_go_inside;
  gpumemGoHostFunction((uintptr_t)call);
  --gpumem_go_inside;
}

static inline void gpumem_go_run_host_kernel(gpumem_host_kernel kernel, void* call) {
  ++gpumem_go_inside;
  gpumemGoHostKernel((uintptr_t)kernel, (uintptr_t)call);
  --gpumem_go_inside;
}

static inline void gpumem_go_write_log(void* unused, gpumem_log_level level, const char* message) {
  (void)unused;
  ++gpumem_go_inside;
  gpumemGoLog(level, (char*)message);
  --gpumem_go_inside;
}

static inline int gpumem_go_is_inside(void) { return gpumem_go_inside != 0 || gpumem_go_aside != 0; }

static inline uintptr_t gpumem_go_get_aside(void) { return gpumem_go_aside; }

static inline void gpumem_go_set_aside(uintptr_t aside) { gpumem_go_aside = aside; }

static inline void gpumem_go_set_unwound(uintptr_t unwound) { gpumem_go_unwound = unwound; }

static inline gpumem_go_result gpumem_go_stream_launch_host_function(uintptr_t stream, uintptr_t call) {
  GPUMEM_GO_RETURN(gpumem_stream_launch_host_function, (gpumem_stream)stream, gpumem_go_run_host_function,
                   (void*)call);
}

static inline gpumem_go_result gpumem_go_host_launch(uintptr_t stream, uintptr_t call) {
  GPUMEM_GO_RETURN(gpumem_host_launch, (gpumem_stream)stream, gpumem_go_run_host_kernel, (void*)call);
}

static inline gpumem_go_result gpumem_go_log_set_function(uint32_t on, gpumem_log_level max_level) {
  GPUMEM_GO_RETURN(gpumem_log_set_function, on ? gpumem_go_write_log : NULL, NULL, max_level);
}

static inline int32_t gpumem_go_progress(void* call, uint64_t done, uint64_t total) {
  int32_t ends;
  ++gpumem_go_inside;
  ends = gpumemGoProgress((uintptr_t)call, done, total);
  --gpumem_go_inside;
  return ends;
}

static inline int32_t gpumem_go_before_sleep(void* callbacks, gpumem_buffer unused) {
  int32_t refused;
  (void)unused;
  ++gpumem_go_inside;
  refused = gpumemGoBeforeSleep(gpumem_go_sleeping, (uintptr_t)callbacks);
  --gpumem_go_inside;
  return refused;
}

static inline void gpumem_go_after_wake(void* callbacks, gpumem_buffer unused, uint64_t generation) {
  (void)unused;
  ++gpumem_go_inside;
  gpumemGoAfterWake(gpumem_go_sleeping, (uintptr_t)callbacks, generation);
  --gpumem_go_inside;
}

/** None if the number is 0. */
static inline gpumem_go_result gpumem_go_buffer_set_callbacks(uintptr_t buffer, uintptr_t number) {
  gpumem_buffer_callbacks callbacks = GPUMEM_BUFFER_CALLBACKS_INIT;
  callbacks.before_sleep = gpumem_go_before_sleep;
  callbacks.after_wake = gpumem_go_after_wake;
  callbacks.user_data = (void*)number;
  GPUMEM_GO_RETURN(gpumem_buffer_set_callbacks, (gpumem_buffer)buffer, number != 0 ? &callbacks : NULL);
}

/** Body of a function during which the library calls functions of Go. */
#define GPUMEM_GO_RETURN_SLEEPING(call, function, ...) \
  do {                                                 \
    gpumem_go_result result;                           \
    uintptr_t outer = gpumem_go_sleeping;              \
    gpumem_go_sleeping = call;                         \
    GPUMEM_GO_CALL(result, function, __VA_ARGS__);     \
    gpumem_go_sleeping = outer;                        \
    return result;                                     \
  } while (0)

static inline gpumem_sleep_desc gpumem_go_sleep_desc(const uint8_t* given, const char* directory,
                                                     const char* tag, uintptr_t call, uint32_t progress) {
  gpumem_sleep_desc desc;
  GPUMEM_GO_DESC(desc, given);
  desc.directory = directory;
  desc.tag = tag;
  desc.progress = progress ? gpumem_go_progress : NULL;
  desc.user_data = (void*)call;
  return desc;
}

static inline gpumem_go_result gpumem_go_buffer_sleep(uintptr_t buffer, const uint8_t* given,
                                                      const char* directory, _GoString_ tag, uintptr_t call,
                                                      uint32_t progress) {
  gpumem_go_name text;
  gpumem_sleep_desc desc = gpumem_go_sleep_desc(given, directory, gpumem_go_text(&text, tag), call, progress);
  GPUMEM_GO_RETURN_SLEEPING(call, gpumem_buffer_sleep, (gpumem_buffer)buffer, &desc);
}

static inline gpumem_go_result gpumem_go_group_sleep(uintptr_t group, const uint8_t* given,
                                                     const char* directory, _GoString_ tag, uintptr_t call,
                                                     uint32_t progress) {
  gpumem_go_name text;
  gpumem_sleep_desc desc = gpumem_go_sleep_desc(given, directory, gpumem_go_text(&text, tag), call, progress);
  GPUMEM_GO_RETURN_SLEEPING(call, gpumem_group_sleep, (gpumem_group)group, &desc);
}

static inline gpumem_wake_desc gpumem_go_wake_desc(uint64_t keep, const char* tag, uintptr_t call,
                                                   uint32_t progress) {
  gpumem_wake_desc desc = GPUMEM_WAKE_DESC_INIT;
  desc.keep = keep;
  desc.tag = tag;
  desc.progress = progress ? gpumem_go_progress : NULL;
  desc.user_data = (void*)call;
  return desc;
}

static inline gpumem_go_result gpumem_go_buffer_wake(uintptr_t buffer, uint64_t keep, _GoString_ tag,
                                                     uintptr_t call, uint32_t progress) {
  gpumem_go_name text;
  gpumem_wake_desc desc = gpumem_go_wake_desc(keep, gpumem_go_text(&text, tag), call, progress);
  GPUMEM_GO_RETURN_SLEEPING(call, gpumem_buffer_wake, (gpumem_buffer)buffer, &desc);
}

static inline gpumem_go_result gpumem_go_group_wake(uintptr_t group, uint64_t keep, _GoString_ tag,
                                                    uintptr_t call, uint32_t progress) {
  gpumem_go_name text;
  gpumem_wake_desc desc = gpumem_go_wake_desc(keep, gpumem_go_text(&text, tag), call, progress);
  GPUMEM_GO_RETURN_SLEEPING(call, gpumem_group_wake, (gpumem_group)group, &desc);
}

/** The info is filled in also if the call fails. */
static inline gpumem_go_result gpumem_go_copy_file(uintptr_t instance, const uint8_t* given, uint8_t* info,
                                                   uintptr_t call, uint32_t progress) {
  gpumem_go_result result;
  gpumem_copy_file_desc desc;
  uintptr_t outer = gpumem_go_sleeping;
  GPUMEM_GO_DESC(desc, given);
  desc.progress = progress ? gpumem_go_progress : NULL;
  desc.user_data = (void*)call;
  gpumem_go_sleeping = call;
  GPUMEM_GO_CALL(result, gpumem_copy_file, (gpumem_instance)instance, &desc,
                 (gpumem_copy_file_info*)(void*)info);
  gpumem_go_sleeping = outer;
  return result;
}

/* ---- share.h ---- */

/** A text of Go with a 0 byte at its end, also if it is empty. */
static inline const char* gpumem_go_word(gpumem_go_name* name, _GoString_ text) {
  const char* word = gpumem_go_text(name, text);
  return word != NULL ? word : "";
}

static inline gpumem_go_result gpumem_go_share_export(uintptr_t instance, uint64_t address,
                                                      const uint8_t* given, uint8_t* handle) {
  gpumem_export_desc desc;
  GPUMEM_GO_DESC(desc, given);
  GPUMEM_GO_RETURN(gpumem_share_export, (gpumem_instance)instance, gpumem_go_pointer(address), &desc,
                   (gpumem_share_handle*)(void*)handle);
}

static inline gpumem_go_result gpumem_go_share_revoke(uintptr_t instance, const uint8_t* handle) {
  GPUMEM_GO_RETURN(gpumem_share_revoke, (gpumem_instance)instance,
                   (const gpumem_share_handle*)(const void*)handle);
}

static inline gpumem_go_result gpumem_go_share_get_info(const uint8_t* handle, uint8_t* info) {
  GPUMEM_GO_RETURN(gpumem_share_get_info, (const gpumem_share_handle*)(const void*)handle,
                   (gpumem_share_info*)(void*)info);
}

static inline gpumem_go_result gpumem_go_share_get_fds(uintptr_t instance, const uint8_t* handle,
                                                       uint8_t* descriptors, uint32_t capacity) {
  gpumem_go_result result;
  uint32_t count = 0;
  GPUMEM_GO_CALL(result, gpumem_share_get_fds, (gpumem_instance)instance,
                 (const gpumem_share_handle*)(const void*)handle, (int32_t*)(void*)descriptors, capacity,
                 &count);
  result.value = count;
  return result;
}

/** Imported memory. */
typedef struct gpumem_go_import {
  gpumem_go_memory memory;
  uint64_t exported; /**< Address of the byte that was exported. */
  uint64_t size;
  uint32_t ordinal; /**< Of the device that uses it. */
} gpumem_go_import;

static inline gpumem_go_import gpumem_go_share_import(uintptr_t instance, const uint8_t* handle,
                                                      const uint8_t* descriptors, uint32_t count,
                                                      const uint8_t* given, _GoString_ name) {
  gpumem_go_import made;
  gpumem_go_result result;
  gpumem_import_desc desc;
  gpumem_memory memory = NULL;
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  void* exported = NULL;
  gpumem_go_name text;
  memset(&made, 0, sizeof made);
  GPUMEM_GO_DESC(desc, given);
  desc.name = gpumem_go_text(&text, name);
  GPUMEM_GO_CALL(result, gpumem_share_import, (gpumem_instance)instance,
                 (const gpumem_share_handle*)(const void*)handle, (const int32_t*)(const void*)descriptors,
                 count, &desc, &exported, &memory);
  made.memory = gpumem_go_memory_made(result, memory);
  if (GPUMEM_FAILED(made.memory.result.status)) return made;
  GPUMEM_GO(gpumem_memory_get_info)(memory, &info, NULL);
  made.exported = (uintptr_t)exported;
  made.size = info.size;
  made.ordinal = info.device_ordinal;
  return made;
}

static inline gpumem_go_result gpumem_go_memory_get_import_info(uintptr_t memory, uint8_t* info) {
  GPUMEM_GO_RETURN(gpumem_memory_get_import_info, (gpumem_memory)memory, (gpumem_import_info*)(void*)info);
}

static inline gpumem_go_result gpumem_go_share_set_cache(uintptr_t instance, const uint8_t* given) {
  gpumem_import_cache_desc desc;
  GPUMEM_GO_DESC(desc, given);
  GPUMEM_GO_RETURN(gpumem_share_set_cache, (gpumem_instance)instance, &desc);
}

static inline gpumem_go_result gpumem_go_share_flush_cache(uintptr_t instance) {
  GPUMEM_GO_RETURN(gpumem_share_flush_cache, (gpumem_instance)instance);
}

static inline gpumem_go_result gpumem_go_share_get_way(uintptr_t instance, uint64_t address,
                                                       gpumem_share_way way, gpumem_share_peer peer,
                                                       uint8_t* info) {
  GPUMEM_GO_RETURN(gpumem_share_get_way, (gpumem_instance)instance, gpumem_go_pointer(address), way, peer,
                   (gpumem_way_info*)(void*)info);
}

/** Waits until a socket could be read from, or written to, also if that would fail; for ever if the limit is
 * negative. */
static inline int32_t gpumem_go_ready(int32_t socket_fd, uint32_t to_write, int32_t milliseconds) {
  struct pollfd one;
  int found;
  one.fd = socket_fd;
  one.events = to_write ? POLLOUT : POLLIN;
  do
    found = poll(&one, 1, milliseconds);
  while (found < 0 && errno == EINTR);
  return found != 0;
}

static inline gpumem_go_result gpumem_go_share_send(uintptr_t instance, const uint8_t* handle,
                                                    int32_t socket_fd, const uint8_t* given) {
  gpumem_send_desc desc;
  GPUMEM_GO_DESC(desc, given);
  GPUMEM_GO_RETURN(gpumem_share_send, (gpumem_instance)instance,
                   (const gpumem_share_handle*)(const void*)handle, socket_fd, &desc);
}

static inline gpumem_go_result gpumem_go_share_receive(uintptr_t instance, int32_t socket_fd,
                                                       uint64_t timeout_ns, uint8_t* handle) {
  GPUMEM_GO_RETURN(gpumem_share_receive, (gpumem_instance)instance, socket_fd, timeout_ns,
                   (gpumem_share_handle*)(void*)handle);
}

static inline gpumem_go_result gpumem_go_share_export_dma_buf(uintptr_t instance, uint64_t address,
                                                              uint64_t size, gpumem_dma_buf_flags flags) {
  gpumem_go_result result;
  int32_t descriptor = -1;
  GPUMEM_GO_CALL(result, gpumem_share_export_dma_buf, (gpumem_instance)instance, gpumem_go_pointer(address),
                 size, flags, &descriptor);
  result.value = (uint64_t)(int64_t)descriptor;
  return result;
}

static inline gpumem_go_result gpumem_go_event_export(uintptr_t event, uint8_t* handle) {
  GPUMEM_GO_RETURN(gpumem_event_export, (gpumem_event)event, (gpumem_share_handle*)(void*)handle);
}

static inline gpumem_go_result gpumem_go_event_import(uintptr_t device, const uint8_t* handle,
                                                      const uint8_t* descriptors, uint32_t count) {
  GPUMEM_GO_RETURN_POINTER(gpumem_event, gpumem_event_import, (gpumem_device)device,
                           (const gpumem_share_handle*)(const void*)handle,
                           (const int32_t*)(const void*)descriptors, count);
}

/* ---- hub.h ---- */

static inline gpumem_go_result gpumem_go_hub_open(uintptr_t instance, const uint8_t* given, const char* path,
                                                  const uint8_t* users, const uint8_t* groups,
                                                  const uint8_t* token, _GoString_ name) {
  gpumem_hub_desc desc;
  gpumem_go_name text;
  GPUMEM_GO_DESC(desc, given);
  desc.path = path;
  desc.users = (const uint32_t*)(const void*)users;
  desc.groups = (const uint32_t*)(const void*)groups;
  desc.token = token;
  desc.name = gpumem_go_text(&text, name);
  GPUMEM_GO_RETURN_POINTER(gpumem_hub, gpumem_hub_open, (gpumem_instance)instance, &desc);
}

static inline gpumem_go_result gpumem_go_hub_close(uintptr_t hub) {
  GPUMEM_GO_RETURN(gpumem_hub_close, (gpumem_hub)hub);
}

static inline gpumem_go_result gpumem_go_hub_get_info(uintptr_t hub, uint8_t* info) {
  GPUMEM_GO_RETURN(gpumem_hub_get_info, (gpumem_hub)hub, (gpumem_hub_info*)(void*)info);
}

static inline gpumem_go_result gpumem_go_hub_publish(uintptr_t hub, _GoString_ name, const uint8_t* handle,
                                                     const uint8_t* given) {
  gpumem_go_result result;
  gpumem_publish_desc desc;
  gpumem_go_name text;
  uint64_t version = 0;
  GPUMEM_GO_DESC(desc, given);
  GPUMEM_GO_CALL(result, gpumem_hub_publish, (gpumem_hub)hub, gpumem_go_word(&text, name),
                 (const gpumem_share_handle*)(const void*)handle, &desc, &version);
  result.value = version;
  return result;
}

static inline gpumem_go_result gpumem_go_hub_withdraw(uintptr_t hub, _GoString_ name, uint64_t version) {
  gpumem_go_name text;
  GPUMEM_GO_RETURN(gpumem_hub_withdraw, (gpumem_hub)hub, gpumem_go_word(&text, name), version);
}

static inline gpumem_go_result gpumem_go_link_connect(uintptr_t instance, const uint8_t* given,
                                                      const char* path, const uint8_t* token) {
  gpumem_link_desc desc;
  GPUMEM_GO_DESC(desc, given);
  desc.path = path;
  desc.token = token;
  GPUMEM_GO_RETURN_POINTER(gpumem_link, gpumem_link_connect, (gpumem_instance)instance, &desc);
}

static inline gpumem_go_result gpumem_go_link_close(uintptr_t link) {
  GPUMEM_GO_RETURN(gpumem_link_close, (gpumem_link)link);
}

static inline gpumem_go_result gpumem_go_link_get_info(uintptr_t link, uint8_t* info) {
  GPUMEM_GO_RETURN(gpumem_link_get_info, (gpumem_link)link, (gpumem_link_info*)(void*)info);
}

static inline gpumem_go_result gpumem_go_link_get_way(uintptr_t link, uint64_t address, gpumem_share_way way,
                                                      gpumem_share_peer peer, uint8_t* info) {
  GPUMEM_GO_RETURN(gpumem_link_get_way, (gpumem_link)link, gpumem_go_pointer(address), way, peer,
                   (gpumem_way_info*)(void*)info);
}

static inline gpumem_go_result gpumem_go_link_enumerate(uintptr_t link, uint32_t index, uint8_t* info) {
  GPUMEM_GO_RETURN(gpumem_link_enumerate, (gpumem_link)link, index, (gpumem_entry_info*)(void*)info);
}

static inline gpumem_go_result gpumem_go_link_wait(uintptr_t link, _GoString_ name, uint64_t after_version,
                                                   uint64_t timeout_ns, uint8_t* info) {
  gpumem_go_name text;
  GPUMEM_GO_RETURN(gpumem_link_wait, (gpumem_link)link, gpumem_go_word(&text, name), after_version,
                   timeout_ns, (gpumem_entry_info*)(void*)info);
}

static inline gpumem_go_result gpumem_go_link_fetch(uintptr_t link, _GoString_ name, const uint8_t* given,
                                                    uint8_t* handle) {
  gpumem_fetch_desc desc;
  gpumem_go_name text;
  GPUMEM_GO_DESC(desc, given);
  GPUMEM_GO_RETURN(gpumem_link_fetch, (gpumem_link)link, gpumem_go_word(&text, name), &desc,
                   (gpumem_share_handle*)(void*)handle);
}

static inline gpumem_go_result gpumem_go_link_publish(uintptr_t link, _GoString_ name, const uint8_t* handle,
                                                      const uint8_t* given) {
  gpumem_go_result result;
  gpumem_publish_desc desc;
  gpumem_go_name text;
  uint64_t version = 0;
  GPUMEM_GO_DESC(desc, given);
  GPUMEM_GO_CALL(result, gpumem_link_publish, (gpumem_link)link, gpumem_go_word(&text, name),
                 (const gpumem_share_handle*)(const void*)handle, &desc, &version);
  result.value = version;
  return result;
}

static inline gpumem_go_result gpumem_go_link_withdraw(uintptr_t link, _GoString_ name, uint64_t version) {
  gpumem_go_name text;
  GPUMEM_GO_RETURN(gpumem_link_withdraw, (gpumem_link)link, gpumem_go_word(&text, name), version);
}

/* ---- pool.h ---- */

static inline gpumem_go_result gpumem_go_pool_create(uintptr_t device, const uint8_t* given,
                                                     const uint8_t* accesses, _GoString_ name) {
  gpumem_pool_desc desc;
  gpumem_go_name text;
  GPUMEM_GO_DESC(desc, given);
  desc.accesses = (const gpumem_access_desc*)(const void*)accesses;
  desc.name = gpumem_go_text(&text, name);
  GPUMEM_GO_RETURN_POINTER(gpumem_pool, gpumem_pool_create, (gpumem_device)device, &desc);
}

static inline gpumem_go_result gpumem_go_pool_destroy(uintptr_t pool) {
  GPUMEM_GO_RETURN(gpumem_pool_destroy, (gpumem_pool)pool);
}

/** A new block, or several, whose addresses are in memory of Go. */
typedef struct gpumem_go_block {
  gpumem_go_result result; /**< With the address of one block. */
  uintptr_t unwound;       /**< See gpumem_go_unwound. */
} gpumem_go_block;

/** Body of a function that may call the callback of a pool. */
#define GPUMEM_GO_RETURN_BLOCK(pointer, function, ...)                                \
  do {                                                                                \
    gpumem_go_block made;                                                             \
    gpumem_go_unwound = 0;                                                            \
    GPUMEM_GO_CALL(made.result, function, __VA_ARGS__);                               \
    made.unwound = gpumem_go_unwound;                                                 \
    if (!GPUMEM_FAILED(made.result.status)) made.result.value = (uintptr_t)(pointer); \
    return made;                                                                      \
  } while (0)

static inline gpumem_go_block gpumem_go_pool_alloc(uintptr_t pool, uint64_t size, uintptr_t stream) {
  void* pointer = NULL;
  GPUMEM_GO_RETURN_BLOCK(pointer, gpumem_pool_alloc, (gpumem_pool)pool, size, (gpumem_stream)stream,
                         &pointer);
}

static inline gpumem_go_block gpumem_go_pool_alloc_aligned(uintptr_t pool, uint64_t size, uint64_t alignment,
                                                           uintptr_t stream) {
  void* pointer = NULL;
  GPUMEM_GO_RETURN_BLOCK(pointer, gpumem_pool_alloc_aligned, (gpumem_pool)pool, size, alignment,
                         (gpumem_stream)stream, &pointer);
}

static inline gpumem_go_block gpumem_go_pool_alloc_native(uintptr_t pool, uint64_t size,
                                                          uintptr_t native_stream) {
  void* pointer = NULL;
  GPUMEM_GO_RETURN_BLOCK(pointer, gpumem_pool_alloc_native, (gpumem_pool)pool, size, (void*)native_stream,
                         &pointer);
}

static inline gpumem_go_block gpumem_go_pool_alloc_batch(uintptr_t pool, const uint8_t* sizes, uint64_t count,
                                                         uintptr_t stream, uint8_t* pointers) {
  GPUMEM_GO_RETURN_BLOCK(NULL, gpumem_pool_alloc_batch, (gpumem_pool)pool,
                         (const uint64_t*)(const void*)sizes, count, (gpumem_stream)stream,
                         (void**)(void*)pointers);
}

static inline gpumem_go_result gpumem_go_pool_free(uintptr_t pool, uint64_t address, uintptr_t stream) {
  GPUMEM_GO_RETURN(gpumem_pool_free, (gpumem_pool)pool, gpumem_go_pointer(address), (gpumem_stream)stream);
}

static inline gpumem_go_result gpumem_go_pool_free_sized(uintptr_t pool, uint64_t address, uint64_t size,
                                                         uintptr_t stream) {
  GPUMEM_GO_RETURN(gpumem_pool_free_sized, (gpumem_pool)pool, gpumem_go_pointer(address), size,
                   (gpumem_stream)stream);
}

static inline gpumem_go_result gpumem_go_pool_free_batch(uintptr_t pool, const uint8_t* pointers,
                                                         uint64_t count, uintptr_t stream) {
  GPUMEM_GO_RETURN(gpumem_pool_free_batch, (gpumem_pool)pool, (void* const*)(const void*)pointers, count,
                   (gpumem_stream)stream);
}

static inline gpumem_go_result gpumem_go_pool_free_native(uintptr_t pool, uint64_t address,
                                                          uintptr_t native_stream) {
  GPUMEM_GO_RETURN(gpumem_pool_free_native, (gpumem_pool)pool, gpumem_go_pointer(address),
                   (void*)native_stream);
}

static inline gpumem_go_result gpumem_go_pool_free_pointer(uintptr_t instance, uint64_t address,
                                                           uintptr_t stream) {
  GPUMEM_GO_RETURN(gpumem_pool_free_pointer, (gpumem_instance)instance, gpumem_go_pointer(address),
                   (gpumem_stream)stream);
}

static inline gpumem_go_result gpumem_go_pool_record_use(uintptr_t pool, uint64_t address, uintptr_t stream) {
  GPUMEM_GO_RETURN(gpumem_pool_record_use, (gpumem_pool)pool, gpumem_go_pointer(address),
                   (gpumem_stream)stream);
}

static inline gpumem_go_result gpumem_go_pool_release_capture(uintptr_t pool, uint64_t capture_id,
                                                              uintptr_t stream) {
  GPUMEM_GO_RETURN(gpumem_pool_release_capture, (gpumem_pool)pool, capture_id, (gpumem_stream)stream);
}

static inline gpumem_go_result gpumem_go_pool_trim(uintptr_t pool, uint64_t keep_bytes) {
  gpumem_go_result result;
  uint64_t released = 0;
  GPUMEM_GO_CALL(result, gpumem_pool_trim, (gpumem_pool)pool, keep_bytes, &released);
  result.value = released;
  return result;
}

static inline gpumem_go_result gpumem_go_pool_set_limit(uintptr_t pool, uint64_t bytes) {
  GPUMEM_GO_RETURN(gpumem_pool_set_limit, (gpumem_pool)pool, bytes);
}

static inline gpumem_go_result gpumem_go_pool_set_release_threshold(uintptr_t pool, uint64_t bytes) {
  GPUMEM_GO_RETURN(gpumem_pool_set_release_threshold, (gpumem_pool)pool, bytes);
}

static inline gpumem_go_result gpumem_go_pool_get_info(uintptr_t pool, uint8_t* info) {
  GPUMEM_GO_RETURN(gpumem_pool_get_info, (gpumem_pool)pool, (gpumem_pool_info*)(void*)info);
}

static inline gpumem_go_result gpumem_go_pool_get_class_info(uintptr_t pool, uint32_t index, uint8_t* info) {
  GPUMEM_GO_RETURN(gpumem_pool_get_class_info, (gpumem_pool)pool, index,
                   (gpumem_pool_class_info*)(void*)info);
}

static inline gpumem_go_result gpumem_go_pool_reset_peaks(uintptr_t pool) {
  GPUMEM_GO_RETURN(gpumem_pool_reset_peaks, (gpumem_pool)pool);
}

static inline gpumem_go_result gpumem_go_pool_get_block_info(uintptr_t instance, uint64_t address,
                                                             uint8_t* info) {
  GPUMEM_GO_RETURN(gpumem_pool_get_block_info, (gpumem_instance)instance, gpumem_go_pointer(address),
                   (gpumem_pool_block_info*)(void*)info);
}

static inline int32_t gpumem_go_pool_callback(void* callback, gpumem_pool unused, uint64_t size) {
  int32_t again;
  (void)unused;
  ++gpumem_go_inside;
  again = gpumemGoPoolCallback((uintptr_t)callback, size);
  --gpumem_go_inside;
  return again;
}

/** None if the number is 0. */
static inline gpumem_go_result gpumem_go_pool_set_callback(uintptr_t pool, uintptr_t number) {
  GPUMEM_GO_RETURN(gpumem_pool_set_callback, (gpumem_pool)pool, number != 0 ? gpumem_go_pool_callback : NULL,
                   (void*)number);
}

/* ---- ring.h ---- */

static inline gpumem_go_result gpumem_go_ring_create(uintptr_t device, const uint8_t* given,
                                                     _GoString_ name) {
  gpumem_ring_desc desc;
  gpumem_go_name text;
  GPUMEM_GO_DESC(desc, given);
  desc.name = gpumem_go_text(&text, name);
  GPUMEM_GO_RETURN_POINTER(gpumem_ring, gpumem_ring_create, (gpumem_device)device, &desc);
}

static inline gpumem_go_result gpumem_go_ring_export(uintptr_t ring, uint8_t* handle) {
  GPUMEM_GO_RETURN(gpumem_ring_export, (gpumem_ring)ring, (gpumem_share_handle*)(void*)handle);
}

static inline gpumem_go_result gpumem_go_ring_open(uintptr_t instance, const uint8_t* handle,
                                                   const uint8_t* given, _GoString_ name) {
  gpumem_ring_open_desc desc;
  gpumem_go_name text;
  GPUMEM_GO_DESC(desc, given);
  desc.name = gpumem_go_text(&text, name);
  GPUMEM_GO_RETURN_POINTER(gpumem_ring, gpumem_ring_open, (gpumem_instance)instance,
                           (const gpumem_share_handle*)(const void*)handle, &desc);
}

static inline gpumem_go_result gpumem_go_ring_acquire(uintptr_t ring, uintptr_t stream, uint64_t timeout_ns,
                                                      uint8_t* slot) {
  GPUMEM_GO_RETURN(gpumem_ring_acquire, (gpumem_ring)ring, (gpumem_stream)stream, timeout_ns,
                   (gpumem_ring_slot*)(void*)slot);
}

static inline gpumem_go_result gpumem_go_ring_publish(uintptr_t ring, uintptr_t stream, uint64_t size,
                                                      uint64_t tag) {
  GPUMEM_GO_RETURN(gpumem_ring_publish, (gpumem_ring)ring, (gpumem_stream)stream, size, tag);
}

static inline gpumem_go_result gpumem_go_ring_wait(uintptr_t ring, uintptr_t stream, uint64_t timeout_ns,
                                                   uint8_t* slot) {
  GPUMEM_GO_RETURN(gpumem_ring_wait, (gpumem_ring)ring, (gpumem_stream)stream, timeout_ns,
                   (gpumem_ring_slot*)(void*)slot);
}

static inline gpumem_go_result gpumem_go_ring_release(uintptr_t ring, uintptr_t stream, uint64_t number) {
  GPUMEM_GO_RETURN(gpumem_ring_release, (gpumem_ring)ring, (gpumem_stream)stream, number);
}

static inline gpumem_go_result gpumem_go_ring_finish(uintptr_t ring, uint64_t timeout_ns) {
  GPUMEM_GO_RETURN(gpumem_ring_finish, (gpumem_ring)ring, timeout_ns);
}

static inline gpumem_go_result gpumem_go_ring_get_info(uintptr_t ring, uint8_t* info) {
  GPUMEM_GO_RETURN(gpumem_ring_get_info, (gpumem_ring)ring, (gpumem_ring_info*)(void*)info);
}

static inline gpumem_go_result gpumem_go_ring_destroy(uintptr_t ring) {
  GPUMEM_GO_RETURN(gpumem_ring_destroy, (gpumem_ring)ring);
}

#endif
