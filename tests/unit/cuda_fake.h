// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A fixture for tests of the cuda backend over the fake driver, which the test's environment puts into the
// library path.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/device.h"
#include "backends/cuda/memory.h"
#include "fake_cuda.h"
#include "request.h"

namespace gpumem::cuda {

using test::copy_of;
using test::create_memory;
using test::fill_of;
using test::pageable;
using test::Request;
using test::Sort;
using test::span_in;

inline void* fake_library() {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return library;
}

#define FAKE(name) reinterpret_cast<decltype(&name)>(dlsym(gpumem::cuda::fake_library(), #name))

// Success, or the text of the error for the test's output.
#define EXPECT_DONE(expression)                                   \
  do {                                                            \
    const auto& done = (expression);                              \
    EXPECT_TRUE(done.ok()) << (done ? "" : done.error().message); \
  } while (false)

#define EXPECT_FAILS(wanted, expression)                            \
  do {                                                              \
    const auto& done = (expression);                                \
    ASSERT_FALSE(done.ok());                                        \
    EXPECT_EQ(done.error().status, wanted) << done.error().message; \
    EXPECT_NE(done.error().message[0], '\0');                       \
  } while (false)

class CudaFake : public testing::Test {
 protected:
  void SetUp() override {
    if (fake_library() == nullptr || dlsym(fake_library(), "fake_cuda_reset") == nullptr) {
      GTEST_SKIP() << "the fake driver is not in LD_LIBRARY_PATH";
    }
    reset();
  }

  void TearDown() override {
    if (IsSkipped()) return;
    FAKE(fake_cuda_configure)("FAKE_CUDA_FAIL", "");
    backend_.reset();
    EXPECT_EQ(FAKE(fake_cuda_live)(FAKE_CUDA_ANY), 0u);
    EXPECT_EQ(violations(), "");
  }

  void reset() {
    backend_.reset();
    FAKE(fake_cuda_reset)();
  }

  static void configure(const char* name, const char* value) {
    ASSERT_EQ(FAKE(fake_cuda_configure)(name, value), 0) << name;
  }

  // Opens with the settings made so far; `contexts` are the caller's own.
  void open(std::vector<void*> contexts = {}) {
    backend::OpenRequest request;
    request.cuda_contexts = std::move(contexts);
    auto opened = cuda::open(request);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    backend_ = std::move(*opened);
  }

  Device& device(size_t ordinal = 0) { return static_cast<Device&>(*backend_->devices().at(ordinal)); }
  const Driver& cu() { return device().cu(); }

  static uint64_t calls(const char* function) { return FAKE(fake_cuda_call_count)(function); }
  static uint64_t live(fake_cuda_object object) { return FAKE(fake_cuda_live)(object); }

  static std::string violations() {
    std::vector<char> text(65536);
    FAKE(fake_cuda_violations)(text.data(), text.size());
    return text.data();
  }

  static Request request(Sort sort, uint64_t size, gpumem_memory_flags require = 0) {
    Request result;
    result.sort = sort;
    result.size = size;
    result.require = require;
    return result;
  }

  static Request registering(void* pointer, uint64_t size, gpumem_memory_flags require = 0) {
    Request result = request(Sort::kRegistered, size, require);
    result.pointer = pointer;
    return result;
  }

  // Memory of each sort that is made and given back in a way of its own; 10,000 bytes of `pages` are
  // registered.
  static std::vector<Request> requests_of_every_sort(void* pages) {
    Request aligned = request(Sort::kDevice, 1000);
    aligned.alignment = uint64_t{64} << 20;
    return {request(Sort::kDevice, 1000),
            aligned,
            request(Sort::kPinned, 1000),
            request(Sort::kPinned, uint64_t{4} << 20),
            request(Sort::kPinned, 1000, GPUMEM_MEMORY_WRITE_COMBINED),
            registering(pages, 10000)};
  }

  std::unique_ptr<backend::Backend> backend_;
};

}  // namespace gpumem::cuda
