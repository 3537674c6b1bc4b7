// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Scenarios of buffers.
#include <gtest/gtest.h>

#include "scenario.h"

namespace faults {
namespace {

// Small, so that the loops do not spend their time on clearing memory.
constexpr uint64_t kUnit = 64 * 1024;
void small_units(gpumem_instance_desc&, gpumem_host_options& host) { host.vmm_granularity = kUnit; }

// Nor on locking and filling what content is copied through.
void plain_memory(gpumem_instance_desc& desc, gpumem_host_options& host) {
  small_units(desc, host);
  host.lock_mode = GPUMEM_HOST_LOCK_OFF;
  host.fill = GPUMEM_TOGGLE_OFF;
}

// Neither the fake driver, see Scenario::vmm.
void no_vmm(gpumem_instance_desc& desc, gpumem_host_options& host) {
  small_units(desc, host);
  host.masked = "vmm";
}

Step of_many(Step step) {
  step.exhausted = GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY;
  step.of_many = true;
  return step;
}

Step make(uint64_t units, uint64_t reserve, gpumem_buffer_flags flags = 0, size_t slot = 0,
          bool in_group = false, gpumem_location location = 0, gpumem_handle_types handle_types = 0) {
  return of_many({"gpumem_buffer_create", [=](World& w) {
                    gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
                    desc.size = units * kUnit;
                    desc.reserve = reserve * kUnit;
                    desc.flags = flags;
                    desc.location = location;
                    desc.handle_types = handle_types;
                    desc.name = "a name that is longer than a short string";
                    if (in_group) {
                      desc.group = w.out.group[0];
                      desc.tag = "a tag that is longer than a short string";
                    }
                    return gpumem_buffer_create(w.out.device[0], &desc, &w.out.buffer[slot], &w.error);
                  }});
}

Step resize(uint64_t units) {
  return of_many({"gpumem_buffer_resize",
                  [=](World& w) { return gpumem_buffer_resize(w.out.buffer[0], units * kUnit, &w.error); }});
}

Step set_capacity(uint64_t units) {
  return of_many({"gpumem_buffer_set_capacity", [=](World& w) {
                    return gpumem_buffer_set_capacity(w.out.buffer[0], units * kUnit, &w.error);
                  }});
}

Step set_access(gpumem_access access, int32_t device = 0) {
  return of_many({"gpumem_buffer_set_access", [=](World& w) {
                    gpumem_access_desc rights = GPUMEM_ACCESS_DESC_INIT;
                    rights.location = GPUMEM_LOCATION_DEVICE;
                    rights.location_id = device;
                    rights.access = access;
                    return gpumem_buffer_set_access(w.out.buffer[0], &rights, 1, &w.error);
                  }});
}

gpumem_buffer_info info_of(World& w) {
  gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
  EXPECT_EQ(gpumem_buffer_get_info(w.out.buffer[0], &info, nullptr), GPUMEM_SUCCESS);
  return info;
}

// A step of several, some of which take memory of the host or reach limits of it.
gpumem_sleep_desc asleep(gpumem_content content) {
  gpumem_sleep_desc desc = GPUMEM_SLEEP_DESC_INIT;
  desc.content = content;
  if (content == GPUMEM_CONTENT_FILE) desc.directory = "/tmp";
  return desc;
}
Step sleep(gpumem_content content) {
  return of_many({"gpumem_buffer_sleep", [=](World& w) {
                    const gpumem_sleep_desc desc = asleep(content);
                    return gpumem_buffer_sleep(w.out.buffer[0], &desc, &w.error);
                  }});
}
Step sleep_after_stream() {
  return of_many({"gpumem_buffer_sleep", [=](World& w) {
                    gpumem_sleep_desc desc = asleep(GPUMEM_CONTENT_PAGEABLE);
                    desc.stream = w.out.stream[0];
                    return gpumem_buffer_sleep(w.out.buffer[0], &desc, &w.error);
                  }});
}
Step write_in_stream(uint32_t value) {
  return {"gpumem_fill_async", [=](World& w) {
            const gpumem_buffer_info now = info_of(w);
            return gpumem_fill_async(w.out.stream[0], now.base, now.size, value, 1, &w.error);
          }};
}
Step wake(uint64_t keep = 0) {
  return of_many({"gpumem_buffer_wake", [=](World& w) {
                    gpumem_wake_desc desc = GPUMEM_WAKE_DESC_INIT;
                    desc.keep = keep;
                    return gpumem_buffer_wake(w.out.buffer[0], &desc, &w.error);
                  }});
}
Step prepare(gpumem_content content, uint64_t pace = 0) {
  return of_many({"gpumem_buffer_prepare", [=](World& w) {
                    gpumem_prepare_desc desc = GPUMEM_PREPARE_DESC_INIT;
                    desc.content = content;
                    desc.directory = asleep(content).directory;
                    desc.bytes_per_second = pace;
                    return gpumem_buffer_prepare(w.out.buffer[0], &desc, &w.error);
                  }});
}
Step set_ahead(uint64_t units) {
  return of_many({"gpumem_buffer_set_ahead", [=](World& w) {
                    return gpumem_buffer_set_ahead(w.out.buffer[0], units * kUnit, &w.error);
                  }});
}
Step note() {
  return CALL(gpumem_buffer_note_registration, w.out.buffer[0], "a card with a name that is not short",
              &w.out.number[0]);
}
Step forget() { return CALL(gpumem_buffer_forget_registration, w.out.buffer[0], w.out.number[0]); }
Step set_callbacks() {
  return {"gpumem_buffer_set_callbacks", [](World& w) {
            gpumem_buffer_callbacks callbacks = GPUMEM_BUFFER_CALLBACKS_INIT;
            callbacks.before_sleep = [](void*, gpumem_buffer) -> int32_t { return 0; };
            return gpumem_buffer_set_callbacks(w.out.buffer[0], &callbacks, &w.error);
          }};
}
Step refused(Step step) {
  step.expected = GPUMEM_ERROR_BUSY;
  return step;
}

Step create_group() {
  return {"gpumem_group_create", [](World& w) {
            gpumem_group_desc desc = GPUMEM_GROUP_DESC_INIT;
            desc.name = "a name that is longer than a short string";
            return gpumem_group_create(w.out.instance, &desc, &w.out.group[0], &w.error);
          }};
}
Step destroy_group() { return ENDING_CALL(gpumem_group_destroy, w.out.group[0]); }
Step group_info() {
  return CALL(gpumem_group_get_info, w.out.group[0], "a tag that is longer than a short string",
              &w.out.group_info);
}
Step group_sleep(gpumem_content content) {
  return of_many({"gpumem_group_sleep", [=](World& w) {
                    const gpumem_sleep_desc desc = asleep(content);
                    return gpumem_group_sleep(w.out.group[0], &desc, &w.error);
                  }});
}
Step group_wake() { return of_many(CALL(gpumem_group_wake, w.out.group[0], nullptr)); }
Step export_it() {
  return of_many({"gpumem_share_export", [=](World& w) {
                    return gpumem_share_export(w.out.instance, info_of(w).base, nullptr, &w.out.share[0],
                                               &w.error);
                  }});
}
Step group_prepare() { return of_many(CALL(gpumem_group_prepare, w.out.group[0], nullptr)); }

Step info() { return CALL(gpumem_buffer_get_info, w.out.buffer[0], &w.out.buffer_info); }
Step destroy() { return of_many(ENDING_CALL(gpumem_buffer_destroy, w.out.buffer[0])); }

// Of two buffers, as one in the second slot stands for the other.
void swap_buffers(World& w) { std::swap(w.out.buffer[0], w.out.buffer[1]); }
Step second(const Step& step) {
  Step other = step;
  other.call = [call = step.call](World& w) {
    swap_buffers(w);
    const gpumem_status status = call(w);
    swap_buffers(w);
    return status;
  };
  return other;
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
    EXPECT_EQ(now.size, units * kUnit);
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

// The first sleep of so many needs memory to say that it uses them all.
std::vector<Scenario> first_buffer_scenarios() {
  std::vector<Step> before = {create_group()};
  for (size_t slot = 0; slot < std::size(Out().buffer); ++slot)
    before.push_back(make(1, 1, 0, slot, true));
  std::vector<Scenario> all;
  all.push_back({"a group of many sleeps", kBoth, before, {group_sleep(GPUMEM_CONTENT_DROP)}});
  all.back().options = plain_memory;
  all.back().costly = true;
  return all;
}

std::vector<Scenario> buffer_scenarios() {
  std::vector<Scenario> all;
  all.push_back({"a buffer, its life", kBoth, {}, {make(2, 8), info(), destroy()}});
  all.push_back({"a buffer grows and shrinks",
                 kBoth,
                 {make(1, 8), write(0x21)},
                 {resize(3), set_capacity(5), resize(4), resize(1), set_capacity(0)},
                 holds(0x21, 1)});
  all.push_back({"a buffer moves",
                 kBoth,
                 {make(2, 2, GPUMEM_BUFFER_MOVABLE), write(0x22)},
                 {resize(3), resize(2)},
                 holds(0x22, 2)});
  all.push_back({"access to a buffer",
                 kBoth,
                 {make(2, 4), write(0x23)},
                 {set_access(GPUMEM_ACCESS_NONE), set_access(GPUMEM_ACCESS_READ), resize(3), resize(2)},
                 holds(0x23, 2)});
  const std::pair<gpumem_content, const char*> contents[] = {
      {GPUMEM_CONTENT_PINNED, "kept in pinned memory"},
      {GPUMEM_CONTENT_PAGEABLE, "kept in ordinary memory"},
      {GPUMEM_CONTENT_FILE, "kept in a file"},
  };
  for (const auto& [content, text] : contents) {
    all.push_back({std::string("a buffer sleeps, ") + text,
                   kBoth,
                   {make(1, 4), resize(2), write(0x24)},
                   {prepare(content), sleep(content), wake(1)},
                   holds(0x24, 2)});
    all.back().idle_streams = 1;
    all.back().helpless = true;                          // content is being copied
    all.back().costly = content == GPUMEM_CONTENT_FILE;  // which is copied through much memory
    if (content == GPUMEM_CONTENT_FILE) continue;
    all.push_back(
        {std::string("a group sleeps, ") + text,
         kBoth,
         {create_group(), make(1, 4, 0, 0, true), make(1, 4, 0, 1, true), write(0x26), second(write(0x27))},
         {group_sleep(content), group_wake()},
         [](World& w) {
           holds(0x26, 1)(w);
           swap_buffers(w);
           holds(0x27, 1)(w);
           swap_buffers(w);
         }});
    all.back().idle_streams = 4;
    all.back().helpless = true;
  }
  all.push_back(
      {"a group, its life",
       kBoth,
       {},
       {create_group(), make(1, 2, 0, 0, true), group_info(), group_prepare(), destroy(), destroy_group()}});
  all.push_back({"registrations",
                 kBoth,
                 {make(1, 2), write(0x28)},
                 {set_callbacks(), note(), refused(sleep(GPUMEM_CONTENT_PINNED)), forget()},
                 holds(0x28, 1)});
  all.back().idle_streams = 1;
  // What the thread has to do is there already, so that all faults meet this thread.
  all.push_back({"a thread of the library",
                 kBoth,
                 {make(1, 8), set_capacity(6), prepare(GPUMEM_CONTENT_PAGEABLE)},
                 {set_ahead(2), prepare(GPUMEM_CONTENT_PAGEABLE, 1 << 20), set_ahead(0)}});
  all.back().idle_streams = 1;
  all.push_back({"a buffer sleeps, and is zero afterwards",
                 kBoth,
                 {make(2, 4), write(0x25)},
                 {sleep(GPUMEM_CONTENT_ZERO), wake()},
                 holds(0, 2)});
  all.back().idle_streams = 1;
  all.back().helpless = true;  // content is being filled
  all.push_back({"a group sleeps, and drops its content",
                 kBoth,
                 {create_group(), make(1, 4, 0, 0, true), make(1, 4, 0, 1, true), write(0x29)},
                 {group_sleep(GPUMEM_CONTENT_DROP), group_wake()}});
  all.push_back({"a buffer grows by an eighth",
                 kBoth,
                 {make(9, 12, GPUMEM_BUFFER_GEOMETRIC), write(0x2A)},
                 {resize(10), resize(12), resize(3)},
                 holds(0x2A, 3)});
  all.push_back({"a buffer of host memory sleeps",
                 kBoth,
                 {make(1, 4, 0, 0, false, GPUMEM_LOCATION_HOST), resize(2), write(0x2B)},
                 {sleep(GPUMEM_CONTENT_PAGEABLE), wake()},
                 holds(0x2B, 2)});
  all.back().idle_streams = 1;
  all.back().helpless = true;
  all.push_back({"a buffer that two devices use sleeps",
                 kBoth,
                 {make(1, 4), set_access(GPUMEM_ACCESS_READ, 1), resize(2), write(0x2C)},
                 {sleep(GPUMEM_CONTENT_PAGEABLE), wake(), resize(3), resize(2)},
                 holds(0x2C, 2)});
  all.back().idle_streams = 1;
  all.back().helpless = true;
  all.push_back({"a buffer sleeps after the work of a stream",
                 kBoth,
                 {make(2, 4), create_stream(0), write_in_stream(0x2D)},
                 {sleep_after_stream(), wake()},
                 holds(0x2D, 2)});
  all.back().idle_streams = 1;
  all.back().helpless = true;
  all.push_back(
      {"a buffer that is exported sleeps",
       kBoth,
       {make(1, 4, 0, 0, false, 0, GPUMEM_HANDLE_TYPE_POSIX_FD), resize(2), write(0x2E), export_it()},
       {sleep(GPUMEM_CONTENT_PAGEABLE), wake(), export_it(), resize(0)},
       [](World& w) { EXPECT_EQ(info_of(w).size, 0u); }});
  all.back().idle_streams = 1;
  all.back().helpless = true;
  all.push_back({"a buffer that was moved sleeps, and is destroyed asleep",
                 kBoth,
                 {make(2, 2, GPUMEM_BUFFER_MOVABLE), write(0x2F)},
                 {resize(3), sleep(GPUMEM_CONTENT_PINNED), destroy()}});
  all.back().idle_streams = 1;
  all.back().helpless = true;
  for (Scenario& scenario : all) {
    scenario.options = scenario.costly ? plain_memory : small_units;
  }
  all.push_back({"an ordinary allocation grows, shrinks and sleeps",
                 kBoth,
                 {make(1, 0, GPUMEM_BUFFER_COPYABLE), write(0x30)},
                 {resize(3), resize(1), sleep(GPUMEM_CONTENT_PAGEABLE), wake(), set_capacity(2),
                  sleep(GPUMEM_CONTENT_ZERO)},
                 [](World& w) { EXPECT_EQ(info_of(w).range, nullptr) << "it is not ordinary"; }});
  all.back().idle_streams = 1;
  all.back().helpless = true;
  all.back().vmm = false;
  all.back().options = no_vmm;
  return all;
}

}  // namespace faults
