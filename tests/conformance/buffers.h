// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Buffers and groups for tests, and the fixture of the BUF rules.
#pragma once

#include <array>
#include <cstring>
#include <vector>

#include "vmm.h"

namespace conformance {

inline gpumem_sleep_desc sleep_desc(gpumem_content content, gpumem_sleep_flags flags = 0) {
  gpumem_sleep_desc desc = GPUMEM_SLEEP_DESC_INIT;
  desc.content = content;
  desc.flags = flags;
  return desc;
}
inline gpumem_wake_desc wake_desc(uint64_t keep) {
  gpumem_wake_desc desc = GPUMEM_WAKE_DESC_INIT;
  desc.keep = keep;
  return desc;
}

class Buffer : public Owned<gpumem_buffer, gpumem_buffer_destroy> {
 public:
  using Owned::Owned;
  gpumem_buffer_info info() const {
    gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
    EXPECT_OK(gpumem_buffer_get_info(get(), &info, why()));
    return info;
  }
  uint8_t* base() const { return static_cast<uint8_t*>(info().base); }
  gpumem_status resize(uint64_t size) const { return gpumem_buffer_resize(get(), size, why()); }
  gpumem_status sleep(const gpumem_sleep_desc& desc) const {
    return gpumem_buffer_sleep(get(), &desc, why());
  }
  gpumem_status sleep(gpumem_content content, gpumem_sleep_flags flags = 0) const {
    return sleep(sleep_desc(content, flags));
  }
  gpumem_status wake(uint64_t keep = 0) const {
    const gpumem_wake_desc desc = wake_desc(keep);
    return gpumem_buffer_wake(get(), &desc, why());
  }
};

// Two answers about a buffer to which nothing has happened.
inline void expect_same(const gpumem_buffer_info& now, const gpumem_buffer_info& before) {
  EXPECT_EQ(std::memcmp(&now, &before, sizeof now), 0)
      << "size " << before.size << " then " << now.size << ", capacity " << before.capacity << " then "
      << now.capacity << ", blocks " << before.block_count << " then " << now.block_count;
}

// What lives now. Peaks and totals of an instance also count what a call makes and gives back.
inline std::array<uint64_t, 5> live(gpumem_instance instance) {
  gpumem_stats stats = GPUMEM_STATS_INIT;
  EXPECT_OK(gpumem_stats_get(instance, &stats, why()));
  return {stats.live_count, stats.live_bytes, stats.reserved_bytes, stats.streams, stats.events};
}

class Buf : public Conformance {
 protected:
  void SetUp() override {
    Conformance::SetUp();
    if (on_host()) {
      instance_ = open_instance([](gpumem_instance_desc&, gpumem_host_options& host) {
        host.vmm_granularity = kHostUnit;
        host.device_bytes = 64 * kHostUnit;
      });
      device_ = instance_.device();
    }
    if (!has_vmm(device_)) SKIP_RULE("the device has no virtual memory management");
    unit_ = unit_of(device_, physical_desc(0));
  }

  gpumem_buffer_desc desc(uint64_t size, uint64_t reserve = 0) const {
    gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
    desc.size = size;
    desc.reserve = reserve;
    return desc;
  }
  Buffer make(const gpumem_buffer_desc& wanted) const {
    gpumem_buffer buffer = nullptr;
    EXPECT_OK(gpumem_buffer_create(device_, &wanted, &buffer, why()));
    return Buffer(buffer);
  }
  Buffer make(uint64_t size, uint64_t reserve = 0) const { return make(desc(size, reserve)); }

  void fill(const Buffer& buffer, uint64_t offset, uint64_t size, uint8_t value) const {
    EXPECT_OK(gpumem_fill(instance_, buffer.base() + offset, size, value, 1, why()));
  }
  void expect(const Buffer& buffer, uint64_t offset, uint64_t size, uint8_t value) const {
    EXPECT_TRUE(holds_only(instance_, buffer.base() + offset, size, value)) << "from offset " << offset;
  }
  uint64_t free_bytes() const {
    uint64_t free = 0;
    EXPECT_OK(gpumem_device_get_memory(device_, &free, nullptr, why()));
    return free;
  }

  static constexpr uint64_t kHostUnit = 64 * 1024;
  uint64_t unit_ = 0;
};

}  // namespace conformance
