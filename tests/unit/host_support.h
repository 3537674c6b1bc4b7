// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// An open host backend and short ways to ask it for things.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backends/host/host_backend.h"
#include "contract/backend.h"
#include "platform/pages.h"
#include "request.h"

namespace gpumem::test {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kForever = GPUMEM_TIMEOUT_INFINITE;

using backend::Span;
using StreamPointer = std::shared_ptr<backend::Stream>;
using EventPointer = std::shared_ptr<backend::Event>;

// Not success, with the failure's status; for EXPECT_EQ.
template <class T>
Status status_of(const Result<T>& result) {
  return result ? GPUMEM_SUCCESS : result.error().status;
}

#define EXPECT_OK(expression)                                          \
  do {                                                                 \
    const auto expect_ok_result = (expression);                        \
    EXPECT_TRUE(expect_ok_result) << expect_ok_result.error().message; \
  } while (false)

inline std::vector<unsigned char> pattern(uint64_t size, unsigned seed = 1) {
  std::vector<unsigned char> bytes(size);
  for (uint64_t index = 0; index < size; ++index) {
    bytes[index] = static_cast<unsigned char>((index * 31 + index / 251 + seed) & 0xff);
  }
  return bytes;
}

inline Span device(const MemoryPointer& memory, uint64_t offset = 0) {
  return span_in(Sort::kDevice, memory, offset);
}
inline Span pinned(const MemoryPointer& memory, uint64_t offset = 0) {
  return span_in(Sort::kPinned, memory, offset);
}
inline Span registered(const MemoryPointer& memory, uint64_t offset = 0) {
  return span_in(Sort::kRegistered, memory, offset);
}
inline Span foreign(void* address, bool on_device) {
  Span span;
  span.address = address;
  span.on_device = on_device;
  return span;
}

// Holds a stream in a host function until it is opened, at the latest by its own end.
class Gate {
 public:
  ~Gate() { open(); }
  void open() { state_->open = true; }
  void await() const {
    while (!state_->reached)
      std::this_thread::yield();
  }
  Result<void> hold(backend::Stream& stream) {
    state_->reached = false;
    held().push_back(state_);
    return stream.launch_host_function(&Gate::wait, state_.get(), false);
  }
  // Once no stream can run a function any more.
  static void forget() { held().clear(); }

 private:
  struct State {
    std::atomic<bool> reached{false};
    std::atomic<bool> open{false};
  };

  static void wait(void* data) {
    auto* const state = static_cast<State*>(data);
    state->reached = true;
    while (!state->open)
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  // What a stream may still use when the gate is gone.
  static std::vector<std::shared_ptr<State>>& held() {
    static std::vector<std::shared_ptr<State>> states;
    return states;
  }

  std::shared_ptr<State> state_ = std::make_shared<State>();
};

class Host : public testing::Test {
 protected:
  Host() {
    // Small, so that tests reach the limits.
    options_.device_bytes = 16 * kMiB;
    options_.granularity = 64 * kKiB;
  }

  void TearDown() override { close(); }

  // With options_.
  void open() {
    close();
    backend::OpenRequest request;
    request.host = options_;
    auto opened = host::open(request);
    ASSERT_TRUE(opened) << opened.error().message;
    backend_ = std::move(*opened);
  }

  void close() {
    backend_.reset();
    Gate::forget();
  }

  backend::Device& dev(size_t ordinal = 0) { return *backend_->devices().at(ordinal); }
  backend::Simulation& simulation() { return *backend_->simulation(); }
  uint64_t free_bytes(size_t ordinal = 0) { return dev(ordinal).memory_available()->free_bytes; }

  MemoryPointer make(const Request& request, size_t ordinal = 0) {
    auto memory = create_memory(dev(ordinal), request);
    if (!memory) {
      ADD_FAILURE() << memory.error().message;
      return nullptr;
    }
    return *memory;
  }

  static Request device_request(uint64_t size, uint64_t alignment = 0) {
    Request request;
    request.size = size;
    request.alignment = alignment;
    return request;
  }
  static Request pinned_request(uint64_t size, gpumem_memory_flags require = 0) {
    Request request;
    request.sort = Sort::kPinned;
    request.size = size;
    request.require = require;
    return request;
  }
  static Request register_request(void* address, uint64_t size, gpumem_memory_flags require = 0) {
    Request request;
    request.sort = Sort::kRegistered;
    request.pointer = address;
    request.size = size;
    request.require = require;
    return request;
  }

  MemoryPointer make_device(uint64_t size, size_t ordinal = 0) { return make(device_request(size), ordinal); }
  MemoryPointer make_pinned(uint64_t size, gpumem_memory_flags require = 0) {
    return make(pinned_request(size, require));
  }
  MemoryPointer make_registered(void* address, uint64_t size, gpumem_memory_flags require = 0) {
    return make(register_request(address, size, require));
  }
  StreamPointer make_stream(size_t ordinal = 0) {
    auto stream = dev(ordinal).create_stream(0);
    EXPECT_TRUE(stream);
    return *stream;
  }
  EventPointer make_event(size_t ordinal = 0) {
    auto event = dev(ordinal).create_event(0);
    EXPECT_TRUE(event);
    return *event;
  }

  // Waits without limit; any failure is a failure of the test.
  static void finish(backend::Stream& stream) {
    auto finished = stream.synchronize(kForever);
    ASSERT_TRUE(finished) << finished.error().message;
    EXPECT_TRUE(*finished);
  }

  // Through a stream of its own, as a synchronous copy would.
  void write(const Span& destination, const std::vector<unsigned char>& bytes) {
    const StreamPointer stream = make_stream();
    EXPECT_OK(stream->copy(copy_of(destination, pageable(bytes.data()), bytes.size())));
    finish(*stream);
    EXPECT_OK(stream->release());
  }
  std::vector<unsigned char> read(const Span& source, uint64_t size) {
    std::vector<unsigned char> bytes(size);
    const StreamPointer stream = make_stream();
    EXPECT_OK(stream->copy(copy_of(pageable(bytes.data()), source, size)));
    finish(*stream);
    EXPECT_OK(stream->release());
    return bytes;
  }

  // Runs a function as a kernel and waits for its end.
  Status run_kernel(backend::Stream& stream, const std::function<void(backend::Kernel&)>& function) {
    launch(stream, function);
    const auto finished = stream.synchronize(kForever);
    return status_of(finished);
  }
  void launch(backend::Stream& stream, const std::function<void(backend::Kernel&)>& function) {
    auto* const data = new std::function<void(backend::Kernel&)>(function);
    const auto call = [](gpumem_host_kernel handle, void* user_data) {
      const std::unique_ptr<std::function<void(backend::Kernel&)>> work(
          static_cast<std::function<void(backend::Kernel&)>*>(user_data));
      auto* const kernel = host::current_kernel();
      EXPECT_EQ(static_cast<void*>(handle), static_cast<void*>(kernel));
      (*work)(*kernel);
    };
    const auto launched = simulation().launch(stream, call, data);
    if (!launched) delete data;
    EXPECT_TRUE(launched);
  }

  backend::HostOptions options_;
  std::unique_ptr<backend::Backend> backend_;
};

}  // namespace gpumem::test
