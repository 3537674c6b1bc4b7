/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file native.h
 * Between Go and the library: one small function for each call. Most are generated, in calls.h; what they are
 * made of is here, and those that register functions of Go or make more than one call.
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
#include <sys/socket.h>
#include <sys/un.h>

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
  uint64_t value;       /**< A handle, address or number; of the first two, 0 after a failure. */
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

/** Body of a function whose one output, `output`, is a pointer of the given type. */
#define GPUMEM_GO_RETURN_POINTER(type, function, ...)                    \
  do {                                                                   \
    gpumem_go_result result;                                             \
    type output = NULL;                                                  \
    GPUMEM_GO_CALL(result, function, __VA_ARGS__);                       \
    if (!GPUMEM_FAILED(result.status)) result.value = (uintptr_t)output; \
    return result;                                                       \
  } while (0)

/** Body of a function whose one output, `output`, is a number. After a failure it is what the library wrote,
 * or `before`. */
#define GPUMEM_GO_RETURN_NUMBER(type, before, function, ...) \
  do {                                                       \
    gpumem_go_result result;                                 \
    type output = before;                                    \
    GPUMEM_GO_CALL(result, function, __VA_ARGS__);           \
    result.value = (uint64_t)output;                         \
    return result;                                           \
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

/** A text of Go with a 0 byte at its end, also if it is empty. */
static inline const char* gpumem_go_word(gpumem_go_name* name, _GoString_ text) {
  const char* word = gpumem_go_text(name, text);
  return word != NULL ? word : "";
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

static inline int32_t gpumem_go_pool_callback(void* callback, gpumem_pool unused, uint64_t size) {
  int32_t again;
  (void)unused;
  ++gpumem_go_inside;
  again = gpumemGoPoolCallback((uintptr_t)callback, size);
  --gpumem_go_inside;
  return again;
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

/** A new block, or several, whose addresses are in memory of Go. */
typedef struct gpumem_go_block {
  gpumem_go_result result; /**< With the address of one block. */
  uintptr_t unwound;       /**< See gpumem_go_unwound. */
} gpumem_go_block;

/** Body of a function that may call the callback of a pool. `output` is the address of one block. */
#define GPUMEM_GO_RETURN_BLOCK(function, ...)                                      \
  do {                                                                             \
    gpumem_go_block made;                                                          \
    void* output = NULL;                                                           \
    gpumem_go_unwound = 0;                                                         \
    GPUMEM_GO_CALL(made.result, function, __VA_ARGS__);                            \
    made.unwound = gpumem_go_unwound;                                              \
    if (!GPUMEM_FAILED(made.result.status)) made.result.value = (uintptr_t)output; \
    return made;                                                                   \
  } while (0)

/* One function for each of the library. */
#include "calls.h"

/* ---- calls that are not generated ---- */

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

/** None if the number is 0. */
static inline gpumem_go_result gpumem_go_buffer_set_callbacks(uintptr_t buffer, uintptr_t number) {
  gpumem_buffer_callbacks callbacks = GPUMEM_BUFFER_CALLBACKS_INIT;
  callbacks.before_sleep = gpumem_go_before_sleep;
  callbacks.after_wake = gpumem_go_after_wake;
  callbacks.user_data = (void*)number;
  GPUMEM_GO_RETURN(gpumem_buffer_set_callbacks, (gpumem_buffer)buffer, number != 0 ? &callbacks : NULL);
}

/** None if the number is 0. */
static inline gpumem_go_result gpumem_go_pool_set_callback(uintptr_t pool, uintptr_t number) {
  GPUMEM_GO_RETURN(gpumem_pool_set_callback, (gpumem_pool)pool, number != 0 ? gpumem_go_pool_callback : NULL,
                   (void*)number);
}

static inline gpumem_go_result gpumem_go_instance_open(const uint8_t* given, _GoString_ name,
                                                       const uint8_t* host_given, const char* peers,
                                                       const char* masked, const uint8_t* cuda_given,
                                                       const uint8_t* contexts) {
  gpumem_instance_desc desc;
  gpumem_host_options host;
  gpumem_cuda_options cuda;
  gpumem_go_name text;
  memcpy(&desc, given, sizeof desc);
  desc.name = gpumem_go_text(&text, name);
  if (host_given != NULL) {
    memcpy(&host, host_given, sizeof host);
    host.peers = peers;
    host.masked = masked;
    desc.host = &host;
  }
  if (cuda_given != NULL) {
    memcpy(&cuda, cuda_given, sizeof cuda);
    cuda.contexts = (void* const*)(const void*)contexts;
    desc.cuda = &cuda;
  }
  GPUMEM_GO_RETURN_POINTER(gpumem_instance, gpumem_instance_open, &desc, &output);
}

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
  memcpy(&desc, given, sizeof desc);
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
  memcpy(&desc, given, sizeof desc);
  desc.name = gpumem_go_text(&text, name);
  GPUMEM_GO_CALL(result, gpumem_memory_register, (gpumem_device)device, &desc, &memory);
  return gpumem_go_memory_made(result, memory);
}

/** Imported memory. */
typedef struct gpumem_go_import {
  gpumem_go_memory memory;
  uint64_t exported; /**< Address of the byte that was exported. */
  uint64_t size;
  uint32_t ordinal; /**< Of the device that uses it. */
} gpumem_go_import;

/** Adds addresses, size and device of imported memory to the result of the call that made it, if it did. */
static inline gpumem_go_import gpumem_go_import_made(gpumem_go_result result, gpumem_memory memory,
                                                     const void* exported) {
  gpumem_go_import made;
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  memset(&made, 0, sizeof made);
  made.memory.result = result;
  if (result.status != GPUMEM_SUCCESS) return made;
  made.memory = gpumem_go_memory_made(result, memory);
  if (GPUMEM_FAILED(made.memory.result.status)) return made;
  GPUMEM_GO(gpumem_memory_get_info)(memory, &info, NULL);
  made.exported = (uintptr_t)exported;
  made.size = info.size;
  made.ordinal = info.device_ordinal;
  return made;
}

static inline gpumem_go_import gpumem_go_share_import(uintptr_t instance, const uint8_t* handle,
                                                      const uint8_t* descriptors, uint32_t count,
                                                      const uint8_t* given, _GoString_ name) {
  gpumem_go_result result;
  gpumem_import_desc desc;
  gpumem_memory memory = NULL;
  void* exported = NULL;
  gpumem_go_name text;
  memcpy(&desc, given, sizeof desc);
  desc.name = gpumem_go_text(&text, name);
  GPUMEM_GO_CALL(result, gpumem_share_import, (gpumem_instance)instance,
                 (const gpumem_share_handle*)(const void*)handle, (const int32_t*)(const void*)descriptors,
                 count, &desc, &exported, &memory);
  return gpumem_go_import_made(result, memory, exported);
}

/** Imports the next version of a name; its status is GPUMEM_NOT_READY if there was none in time. */
static inline gpumem_go_import gpumem_go_link_import_next(uintptr_t link, _GoString_ name,
                                                          uint64_t after_version, uint64_t timeout_ns,
                                                          const uint8_t* given, _GoString_ memory_name,
                                                          uint8_t* out_info) {
  gpumem_go_result result;
  gpumem_import_desc desc;
  gpumem_memory memory = NULL;
  void* exported = NULL;
  gpumem_go_name name_text;
  gpumem_go_name text;
  memcpy(&desc, given, sizeof desc);
  desc.name = gpumem_go_text(&text, memory_name);
  GPUMEM_GO_CALL(result, gpumem_link_import_next, (gpumem_link)link, gpumem_go_word(&name_text, name),
                 after_version, timeout_ns, &desc, (gpumem_entry_info*)(void*)out_info, &exported, &memory);
  return gpumem_go_import_made(result, memory, exported);
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
  memcpy(&desc, given, sizeof desc);
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

/** Unmaps everything in a range. */
static inline gpumem_go_result gpumem_go_copy_from_slice(uintptr_t instance, uint64_t destination,
                                                         const uint8_t* source, uint64_t size) {
  GPUMEM_GO_RETURN(gpumem_copy, (gpumem_instance)instance, gpumem_go_pointer(destination), source, size,
                   NULL);
}

static inline gpumem_go_result gpumem_go_copy_from_slice_async(uintptr_t stream, uint64_t destination,
                                                               const uint8_t* source, uint64_t size) {
  gpumem_copy_options options = GPUMEM_COPY_OPTIONS_INIT;
  options.source_order = GPUMEM_SOURCE_ORDER_DURING_CALL;
  GPUMEM_GO_RETURN(gpumem_copy_async, (gpumem_stream)stream, gpumem_go_pointer(destination), source, size,
                   &options);
}

static inline gpumem_go_result gpumem_go_copy_to_slice(uintptr_t instance, uint8_t* destination,
                                                       uint64_t source, uint64_t size) {
  GPUMEM_GO_RETURN(gpumem_copy, (gpumem_instance)instance, destination, gpumem_go_pointer(source), size,
                   NULL);
}

/** Whether the library can pass handles over a descriptor. */
static inline int gpumem_go_is_connected(int32_t descriptor) {
  int domain = 0, type = 0;
  struct sockaddr_un name;
  socklen_t size = sizeof domain, type_size = sizeof type, name_size = sizeof name;
  return getsockopt(descriptor, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX &&
         getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &type_size) == 0 &&
         (type == SOCK_STREAM || type == SOCK_SEQPACKET) &&
         getpeername(descriptor, (struct sockaddr*)&name, &name_size) == 0;
}

/** Waits until a socket could be read from, or written to, also if that would fail, or the library would
 * refuse it; for ever if the limit is negative. */
static inline int32_t gpumem_go_ready(int32_t socket_fd, uint32_t to_write, int32_t milliseconds) {
  struct pollfd one;
  int found;
  if (!gpumem_go_is_connected(socket_fd)) return 1;
  one.fd = socket_fd;
  one.events = to_write ? POLLOUT : POLLIN;
  do
    found = poll(&one, 1, milliseconds);
  while (found < 0 && errno == EINTR);
  return found != 0;
}

#ifndef POLLRDHUP
#define POLLRDHUP 0x2000 /* The header has it only with _GNU_SOURCE. */
#endif

/** Whether the library can read from a socket without a wait in the middle of a packet: what has come is a
 * whole one, or what it would refuse, or all that will come. */
static inline int32_t gpumem_go_has_packet(int32_t socket_fd) {
  enum { HEADER = 24, BODY_AT = 8, BODY_MAX = 1024 }; /* see impl/core/share/wire/protocol.h */
  uint8_t packet[HEADER + BODY_MAX];
  uint32_t body;
  int type = 0;
  socklen_t size = sizeof type;
  struct pollfd one;
  ssize_t found;
  if (!gpumem_go_ready(socket_fd, 0, 0)) return 0;
  if (getsockopt(socket_fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM) return 1;
  one.fd = socket_fd;
  one.events = POLLRDHUP;
  if (poll(&one, 1, 0) != 0) return 1;
  found = recv(socket_fd, packet, sizeof packet, MSG_PEEK | MSG_DONTWAIT);
  if (found < 0) return 1;
  if (found < HEADER) return 0;
  memcpy(&body, packet + BODY_AT, sizeof body);
  return body > BODY_MAX || found >= (ssize_t)(HEADER + body);
}

#endif
