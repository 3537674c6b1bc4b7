// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Short ways to use the public interface in a test of one backend's inside.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "gpumem/gpumem.h"

namespace gpumem::test {

// Success, or the text of the error for the test's output: CALL(gpumem_free, instance, pointer).
#define CALL(function, ...)                                                              \
  do {                                                                                   \
    gpumem_error call_error = GPUMEM_ERROR_INIT;                                         \
    EXPECT_EQ(function(__VA_ARGS__, &call_error), GPUMEM_SUCCESS) << call_error.message; \
  } while (false)

// An open instance and what it was asked for. Everything must be destroyed before its end.
class Session {
 public:
  explicit Session(gpumem_backend backend, const gpumem_host_options* host = nullptr) {
    gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
    desc.backend = backend;
    desc.host = host;
    CALL(gpumem_instance_open, &desc, &instance_);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() {
    if (instance_ != nullptr) CALL(gpumem_instance_close, instance_, GPUMEM_CLOSE_CHECK, nullptr);
  }
  void close_by_force() {
    CALL(gpumem_instance_close, std::exchange(instance_, nullptr), GPUMEM_CLOSE_FORCE, nullptr);
  }

  gpumem_instance instance() const { return instance_; }
  gpumem_device device(uint32_t ordinal = 0) const {
    gpumem_device device = nullptr;
    CALL(gpumem_device_get, instance_, ordinal, &device);
    return device;
  }
  gpumem_memory create(gpumem_kind kind, uint64_t size, uint64_t alignment = 0, uint32_t ordinal = 0) const {
    gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
    desc.kind = kind;
    desc.size = size;
    desc.alignment = alignment;
    gpumem_memory memory = nullptr;
    CALL(gpumem_memory_create, device(ordinal), &desc, &memory);
    return memory;
  }
  gpumem_memory lend(void* pointer, uint64_t size, gpumem_memory_flags require = 0,
                     uint32_t ordinal = 0) const {
    gpumem_register_desc desc = GPUMEM_REGISTER_DESC_INIT;
    desc.pointer = pointer;
    desc.size = size;
    desc.require = require;
    gpumem_memory memory = nullptr;
    CALL(gpumem_memory_register, device(ordinal), &desc, &memory);
    return memory;
  }
  gpumem_stream stream(uint32_t ordinal = 0) const {
    gpumem_stream stream = nullptr;
    CALL(gpumem_stream_create, device(ordinal), nullptr, &stream);
    return stream;
  }
  gpumem_event event(uint32_t ordinal = 0) const {
    gpumem_event event = nullptr;
    CALL(gpumem_event_create, device(ordinal), nullptr, &event);
    return event;
  }

 private:
  gpumem_instance instance_ = nullptr;
};

// The address that copies and fills are given: of the CPU, or else of devices.
inline unsigned char* address(gpumem_memory memory) {
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  CALL(gpumem_memory_get_info, memory, &info);
  return static_cast<unsigned char*>(info.host_pointer != nullptr ? info.host_pointer : info.device_pointer);
}

inline void finish(gpumem_stream stream) { CALL(gpumem_stream_synchronize, stream, GPUMEM_TIMEOUT_INFINITE); }

// Holds a stream in a host function until it is opened. Must outlive the work.
class StreamGate {
 public:
  void hold(gpumem_stream stream) { CALL(gpumem_stream_launch_host_function, stream, wait, this); }
  void open() { open_ = true; }

 private:
  static void GPUMEM_CALL wait(void* gate) {
    while (!static_cast<StreamGate*>(gate)->open_)
      std::this_thread::yield();
  }
  std::atomic<bool> open_{false};
};

}  // namespace gpumem::test
