// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Scenarios of buffers, on host. Over the fake driver the conformance tests buf_4 and buf_9 fail each driver
// call.
#include <gtest/gtest.h>

#include "scenario.h"

namespace faults {
namespace {

// Small on host, so that the loops do not spend their time on clearing memory.
constexpr uint64_t kHostUnit = 64 * 1024;
uint64_t unit(const World& w) { return w.backend == GPUMEM_BACKEND_HOST ? kHostUnit : 2 * kMiB; }
void small_units(gpumem_instance_desc&, gpumem_host_options& host) { host.vmm_granularity = kHostUnit; }

Step of_many(Step step) {
  step.exhausted = GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY;
  step.of_many = true;
  return step;
}

Step make(uint64_t units, uint64_t reserve, gpumem_buffer_flags flags = 0) {
  return of_many({"gpumem_buffer_create", [=](World& w) {
                    gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
                    desc.size = units * unit(w);
                    desc.reserve = reserve * unit(w);
                    desc.flags = flags;
                    desc.name = "a name that is longer than a short string";
                    return gpumem_buffer_create(w.out.device[0], &desc, &w.out.buffer[0], &w.error);
                  }});
}

Step resize(uint64_t units) {
  return of_many({"gpumem_buffer_resize", [=](World& w) {
                    return gpumem_buffer_resize(w.out.buffer[0], units * unit(w), &w.error);
                  }});
}

Step set_capacity(uint64_t units) {
  return of_many({"gpumem_buffer_set_capacity", [=](World& w) {
                    return gpumem_buffer_set_capacity(w.out.buffer[0], units * unit(w), &w.error);
                  }});
}

Step set_access(gpumem_access access) {
  return of_many({"gpumem_buffer_set_access", [=](World& w) {
                    gpumem_access_desc rights = GPUMEM_ACCESS_DESC_INIT;
                    rights.location = GPUMEM_LOCATION_DEVICE;
                    rights.access = access;
                    return gpumem_buffer_set_access(w.out.buffer[0], &rights, 1, &w.error);
                  }});
}

Step sleep(gpumem_content content) {
  return of_many({"gpumem_buffer_sleep", [=](World& w) {
                    gpumem_sleep_desc desc = GPUMEM_SLEEP_DESC_INIT;
                    desc.content = content;
                    return gpumem_buffer_sleep(w.out.buffer[0], &desc, &w.error);
                  }});
}
Step wake() { return of_many(CALL(gpumem_buffer_wake, w.out.buffer[0], nullptr)); }
Step info() { return CALL(gpumem_buffer_get_info, w.out.buffer[0], &w.out.buffer_info); }
Step destroy() { return ENDING_CALL(gpumem_buffer_destroy, w.out.buffer[0]); }

gpumem_buffer_info info_of(World& w) {
  gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
  EXPECT_EQ(gpumem_buffer_get_info(w.out.buffer[0], &info, nullptr), GPUMEM_SUCCESS);
  return info;
}

// Writes to the whole buffer, and says whether it holds that value.
Step write(uint32_t value) {
  return {"gpumem_fill", [=](World& w) {
            const gpumem_buffer_info now = info_of(w);
            return gpumem_fill(w.out.instance, now.base, now.size, value, 1, &w.error);
          }};
}
auto holds(uint8_t value, uint64_t units) {
  return [=](World& w) {
    const gpumem_buffer_info now = info_of(w);
    EXPECT_EQ(now.size, units * unit(w));
    for (const uint64_t offset : {uint64_t{0}, now.size - 1}) {
      uint8_t byte = static_cast<uint8_t>(~value);
      EXPECT_EQ(gpumem_copy(w.out.instance, &byte, static_cast<const char*>(now.base) + offset, 1, nullptr,
                            &w.error),
                GPUMEM_SUCCESS)
          << w.error.message;
      EXPECT_EQ(byte, value) << "at " << offset;
    }
  };
}

}  // namespace

std::vector<Scenario> buffer_scenarios() {
  std::vector<Scenario> all;
  all.push_back({"a buffer, its life", kHost, {}, {make(2, 8), info(), destroy()}});
  all.push_back({"a buffer grows and shrinks",
                 kHost,
                 {make(1, 8), write(0x21)},
                 {resize(3), set_capacity(5), resize(4), resize(1), set_capacity(0)},
                 holds(0x21, 1)});
  all.push_back({"a buffer moves",
                 kHost,
                 {make(2, 2, GPUMEM_BUFFER_MOVABLE), write(0x22)},
                 {resize(3), resize(2)},
                 holds(0x22, 2)});
  all.push_back({"access to a buffer",
                 kHost,
                 {make(2, 4), write(0x23)},
                 {set_access(GPUMEM_ACCESS_NONE), set_access(GPUMEM_ACCESS_READ), resize(3), resize(2)},
                 holds(0x23, 2)});
  for (const gpumem_content content : {GPUMEM_CONTENT_PINNED, GPUMEM_CONTENT_PAGEABLE}) {
    all.push_back({content == GPUMEM_CONTENT_PINNED ? "a buffer sleeps, kept in pinned memory"
                                                    : "a buffer sleeps, kept in ordinary memory",
                   kHost,
                   {make(1, 4), resize(2), write(0x24)},
                   {sleep(content), wake()},
                   holds(0x24, 2)});
    all.back().idle_streams = 1;
  }
  all.push_back({"a buffer sleeps, and is zero afterwards",
                 kHost,
                 {make(2, 4), write(0x25)},
                 {sleep(GPUMEM_CONTENT_ZERO), wake()},
                 holds(0, 2)});
  all.back().idle_streams = 1;
  for (Scenario& scenario : all)
    scenario.options = small_units;
  return all;
}

}  // namespace faults
