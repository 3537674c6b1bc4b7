// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Memory of every kind, by every address that it has, for tests that go through all kinds or all pairs of
// kinds.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>

#include "harness.h"

namespace conformance {

struct Operand {
  std::string name;
  gpumem_kind kind = GPUMEM_KIND_UNKNOWN;
  uint8_t* address = nullptr;  // as copies and fills get it
  uint8_t* cpu = nullptr;      // the same byte for the CPU; null for device memory
  bool writable = true;        // by devices

  bool on_device() const { return cpu == nullptr; }
};

class Operands {
 public:
  // `second` may be null.
  Operands(gpumem_device device, gpumem_device second, uint64_t size, bool with_foreign = true)
      : size_(size) {
    heap_.resize(size + 1);
    add("pageable", GPUMEM_KIND_PAGEABLE, heap_.data() + 1, heap_.data() + 1);
    add_both("pinned", alloc_pinned(device, size));
    add_both("write-combined", alloc_pinned(device, size, GPUMEM_MEMORY_WRITE_COMBINED));
    add_both("mapped registered", register_bytes(device, GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_PORTABLE));
    add_both("registered", register_bytes(device, 0));
    if (capability(device, GPUMEM_CAPABILITY_PIN_REGISTER_READ_ONLY).value != GPUMEM_ANSWER_NO) {
      add_both("read-only registered", register_bytes(device, GPUMEM_MEMORY_READ_ONLY));
      all_.back().writable = false;
    }
    add_both("device", alloc_device(device, size));
    if (capability(device, GPUMEM_CAPABILITY_MANAGED).value != GPUMEM_ANSWER_NO)
      add_both("managed", create_memory(device, memory_desc(GPUMEM_KIND_MANAGED, size)));
    if (second != nullptr) add_both("second device", alloc_device(second, size));
    if (with_foreign && no_foreign_reason().empty()) {
      foreign_.push_back(std::make_unique<ForeignMemory>(device, GPUMEM_KIND_DEVICE, size));
      add("foreign device", GPUMEM_KIND_FOREIGN, foreign_.back()->get(), nullptr);
      foreign_.push_back(std::make_unique<ForeignMemory>(device, GPUMEM_KIND_PINNED, size));
      add("foreign pinned", GPUMEM_KIND_FOREIGN, foreign_.back()->get(), foreign_.back()->get());
    }
  }

  uint64_t size() const { return size_; }
  const std::vector<Operand>& all() const { return all_; }

 private:
  void add(const std::string& name, gpumem_kind kind, uint8_t* address, uint8_t* cpu) {
    all_.push_back({name, kind, address, cpu});
  }
  // An operand for the host address and, where it differs, one for the device address.
  void add_both(const std::string& name, Memory memory) {
    const gpumem_kind kind = memory.info().kind;
    if (memory.host() != nullptr) add(name, kind, memory.host(), memory.host());
    if (memory.device() != nullptr && memory.device() != memory.host()) {
      add(memory.host() == nullptr ? name : name + " by device address", kind, memory.device(),
          memory.host());
    }
    memories_.push_back(std::move(memory));
  }
  Memory register_bytes(gpumem_device device, gpumem_memory_flags require) {
    constexpr uint64_t kOddStart = 17;
    pages_.push_back(std::make_unique<Pages>(size_ + kOddStart));
    return register_memory(device, pages_.back()->get() + kOddStart, size_, require);
  }

  uint64_t size_;
  std::vector<Operand> all_;
  std::vector<uint8_t> heap_;
  std::vector<std::unique_ptr<Pages>> pages_;
  std::vector<std::unique_ptr<ForeignMemory>> foreign_;
  std::vector<Memory> memories_;  // destroyed before the pages that some of them register
};

// Writes a pattern by the CPU where it can, so that what is tested is not needed to prepare it.
inline void prepare(gpumem_instance instance, const Operand& operand, uint64_t size, uint32_t seed) {
  if (operand.cpu != nullptr) {
    fill_pattern(operand.cpu, size, seed);
  } else {
    put_pattern(instance, operand.address, size, seed);
  }
}

// The first bytes of an operand, read by the CPU where it can.
inline std::vector<uint8_t> bytes_of(gpumem_instance instance, const Operand& operand, uint64_t size) {
  std::vector<uint8_t> bytes(size);
  if (operand.cpu != nullptr) {
    std::memcpy(bytes.data(), operand.cpu, size);
  } else {
    EXPECT_OK(gpumem_copy(instance, bytes.data(), operand.address, size, nullptr, why()));
  }
  return bytes;
}

inline std::vector<uint8_t> pattern(uint64_t size, uint32_t seed) {
  std::vector<uint8_t> bytes(size);
  fill_pattern(bytes.data(), size, seed);
  return bytes;
}

inline ::testing::AssertionResult same_bytes(const std::vector<uint8_t>& expected,
                                             const std::vector<uint8_t>& actual) {
  if (expected == actual) return ::testing::AssertionSuccess();
  const auto [left, right] = std::mismatch(expected.begin(), expected.end(), actual.begin(), actual.end());
  auto failure = ::testing::AssertionFailure() << "differ from byte " << left - expected.begin();
  if (left == expected.end() || right == actual.end()) return failure << ": one of them ends there";
  return failure << ": expected " << unsigned{*left} << ", found " << unsigned{*right};
}

// Rows of bytes inside an operand; one row is a plain range.
struct Rows {
  uint64_t offset;
  uint64_t pitch;
  uint64_t width;
  uint64_t height;

  uint64_t end() const { return offset + pitch * (height - 1) + width; }
};

}  // namespace conformance
