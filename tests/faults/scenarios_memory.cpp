// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Scenarios of memory of every kind.
#include "scenario.h"

#include <gtest/gtest.h>

namespace faults {
namespace {

gpumem_memory_desc desc_of(gpumem_kind kind, uint64_t size) {
  gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
  desc.kind = kind;
  desc.size = size;
  return desc;
}

Step get_info(size_t slot) { return CALL(gpumem_memory_get_info, w.out.memory[slot], &w.out.memory_info); }
Step destroy(size_t slot) { return ENDING_CALL(gpumem_memory_destroy, w.out.memory[slot]); }

// The instance can pin no byte more than the scenario, so that what a failed call does not give back is
// missed.
auto exact_budget(uint64_t bytes) {
  return [bytes](gpumem_instance_desc& desc, gpumem_host_options&) { desc.pin_budget = bytes; };
}

// What the scenario has got does what it says.
auto usable(uint64_t size, gpumem_memory_flags required) {
  return [=](World& w) {
    gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
    ASSERT_EQ(gpumem_memory_get_info(w.out.memory[0], &info, nullptr), GPUMEM_SUCCESS);
    EXPECT_EQ(info.size, size);
    EXPECT_EQ(info.granted_flags & required, required);
    void* const address = info.host_pointer != nullptr ? info.host_pointer : info.device_pointer;
    const uint64_t piece = std::min<uint64_t>(size, kPage);
    if ((required & GPUMEM_MEMORY_READ_ONLY) == 0) {
      ASSERT_EQ(gpumem_fill(w.out.instance, address, piece, 0x5C, 1, &w.error), GPUMEM_SUCCESS)
          << w.error.message;
    }
    unsigned char bytes[kPage] = {};
    ASSERT_EQ(gpumem_copy(w.out.instance, bytes, address, piece, nullptr, &w.error), GPUMEM_SUCCESS)
        << w.error.message;
    if ((required & GPUMEM_MEMORY_READ_ONLY) == 0) {
      EXPECT_EQ(bytes[0], 0x5C);
      EXPECT_EQ(bytes[piece - 1], 0x5C);
    }
    if (info.host_pointer != nullptr && (info.granted_flags & GPUMEM_MEMORY_READ_ONLY) == 0) {
      auto* const first = static_cast<unsigned char*>(info.host_pointer);
      first[0] = 1;
      first[size - 1] = 2;
    }
  };
}

struct Wanted {
  const char* name;
  unsigned backends;
  gpumem_kind kind;
  uint64_t size;
  gpumem_memory_flags require;
  gpumem_memory_flags prefer;
  uint64_t alignment;
  bool life;    // also as a life: create, ask, destroy
  bool costly;  // see Scenario
};

constexpr Wanted kWanted[] = {
    {"device memory", kBoth, GPUMEM_KIND_DEVICE, 100'000, 0, 0, 0, true, false},
    {"device memory, aligned a little", kBoth, GPUMEM_KIND_DEVICE, 1000, 0, 0, 65536, false, false},
    {"device memory, aligned much", kBoth, GPUMEM_KIND_DEVICE, 1000, 0, 0, 64 * kMiB, true, false},
    {"pinned memory", kBoth, GPUMEM_KIND_PINNED, 10'000, 0, 0, 0, true, false},
    {"pinned memory, portable and mapped", kBoth, GPUMEM_KIND_PINNED, 10'000,
     GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED, 0, 0, false, false},
    {"pinned memory, aligned", kBoth, GPUMEM_KIND_PINNED, 10'000, 0, 0, 65536, false, false},
    {"pinned memory, write-combined", kBoth, GPUMEM_KIND_PINNED, 10'000, GPUMEM_MEMORY_WRITE_COMBINED, 0, 0,
     true, false},
    {"pinned memory, page-locked", kBoth, GPUMEM_KIND_PINNED, 10'000, GPUMEM_MEMORY_PAGE_LOCKED, 0, 0, false,
     false},
    {"pinned memory on a node", kBoth, GPUMEM_KIND_PINNED, 10'000, GPUMEM_MEMORY_NUMA_NODE, 0, 0, false,
     false},
    {"pinned memory, with preferences", kBoth, GPUMEM_KIND_PINNED, 10'000, 0,
     GPUMEM_MEMORY_NUMA_NODE | GPUMEM_MEMORY_WRITE_COMBINED, 0, false, false},
    {"pinned memory of huge pages", kBoth, GPUMEM_KIND_PINNED, 2 * kMiB, 0, 0, 0, false, false},
    {"much pinned memory of the host", kHost, GPUMEM_KIND_PINNED, 33 * kMiB, 0, 0, 0, false, true},
    {"much pinned memory", kCuda, GPUMEM_KIND_PINNED, 72 * kMiB, 0, 0, 0, false, true},
    {"registered memory", kBoth, GPUMEM_KIND_REGISTERED, 10'000, 0, 0, 0, false, false},
    {"registered memory, portable and mapped", kBoth, GPUMEM_KIND_REGISTERED, 10'000,
     GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED, 0, 0, true, false},
    {"registered memory, read-only", kBoth, GPUMEM_KIND_REGISTERED, 10'000,
     GPUMEM_MEMORY_READ_ONLY | GPUMEM_MEMORY_MAPPED, 0, 0, false, false},
    {"managed memory", kBoth, GPUMEM_KIND_MANAGED, 10'000, 0, 0, 0, true, false},
    {"managed memory, aligned", kBoth, GPUMEM_KIND_MANAGED, 10'000, 0, 0, 4096, false, false},
    {"managed memory, attached to the host", kBoth, GPUMEM_KIND_MANAGED, 10'000, GPUMEM_MEMORY_ATTACH_HOST, 0,
     0, false, false},
    {"managed memory, more than there is", kBoth, GPUMEM_KIND_MANAGED, 10'000, GPUMEM_MEMORY_OVERSUBSCRIBE, 0,
     0, true, false},
};

}  // namespace

Step create(size_t slot, gpumem_kind kind, uint64_t size, gpumem_memory_flags require,
            gpumem_memory_flags prefer, uint64_t alignment, uint32_t device) {
  gpumem_memory_desc desc = desc_of(kind, size);
  desc.require = require;
  desc.prefer = prefer;
  desc.alignment = alignment;
  desc.name = "a name that is longer than a short string";
  if (kind == GPUMEM_KIND_REGISTERED) {
    return {"gpumem_memory_register", [=](World& w) {
              gpumem_register_desc given = GPUMEM_REGISTER_DESC_INIT;
              given.pointer = w.host[0] + 100;
              given.size = desc.size;
              given.require = desc.require;
              given.prefer = desc.prefer;
              given.name = desc.name;
              return gpumem_memory_register(w.out.device[device], &given, &w.out.memory[slot], &w.error);
            }};
  }
  Step step{"gpumem_memory_create", [=](World& w) {
              return gpumem_memory_create(w.out.device[device], &desc, &w.out.memory[slot], &w.error);
            }};
  if (kind == GPUMEM_KIND_DEVICE) step.exhausted = GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY;
  return step;
}

std::vector<Scenario> memory_scenarios() {
  std::vector<Scenario> all;
  for (const Wanted& one : kWanted) {
    Scenario scenario{
        one.name, one.backends, {}, {create(0, one.kind, one.size, one.require, one.prefer, one.alignment)}};
    scenario.verify = usable(one.size, one.require);
    if (one.kind != GPUMEM_KIND_DEVICE) scenario.options = exact_budget(one.size);
    scenario.costly = one.costly;
    if (one.costly) {
      scenario.options = [](gpumem_instance_desc&, gpumem_host_options& host) {
        host.fill = GPUMEM_TOGGLE_OFF;
      };
    }
    all.push_back(scenario);
    if (!one.life) continue;
    scenario.name += ", its life";
    scenario.steps = {scenario.steps[0], get_info(0), destroy(0)};
    scenario.verify = nullptr;
    all.push_back(scenario);
  }

  all.push_back({"several objects",
                 kBoth,
                 {},
                 {create(0, GPUMEM_KIND_DEVICE, 1000), create(1, GPUMEM_KIND_PINNED, 1000),
                  create(2, GPUMEM_KIND_REGISTERED, 1000), create(3, GPUMEM_KIND_DEVICE, 1000, 0, 0, 0, 1),
                  destroy(1), destroy(0), destroy(3), destroy(2)}});
  Scenario pieces{"registered memory in pieces",
                  kHost,
                  {},
                  {create(0, GPUMEM_KIND_REGISTERED, 8 * kPage, GPUMEM_MEMORY_PAGE_LOCKED)}};
  pieces.verify = usable(8 * kPage, GPUMEM_MEMORY_PAGE_LOCKED);
  pieces.options = [](gpumem_instance_desc&, gpumem_host_options& host) {
    host.lock_piece = kPage;
    host.register_count_max = 9;
  };
  all.push_back(pieces);
  Scenario must_lock{
      "pinned memory that must be locked", kHost, {}, {create(0, GPUMEM_KIND_PINNED, 4 * kPage)}};
  must_lock.verify = usable(4 * kPage, GPUMEM_MEMORY_PAGE_LOCKED);
  must_lock.options = [](gpumem_instance_desc&, gpumem_host_options& host) {
    host.lock_mode = GPUMEM_HOST_LOCK_REQUIRE;
    host.lock_piece = kPage;
  };
  all.push_back(must_lock);
  Scenario plain{"device memory that the CPU may touch", kHost, {}, {create(0, GPUMEM_KIND_DEVICE, 10'000)}};
  plain.verify = usable(10'000, 0);
  plain.options = [](gpumem_instance_desc&, gpumem_host_options& host) { host.strict = GPUMEM_TOGGLE_OFF; };
  all.push_back(plain);
  Step overlapping = create(1, GPUMEM_KIND_REGISTERED, 1000);
  overlapping.expected = GPUMEM_ERROR_ALREADY_EXISTS;
  all.push_back(
      {"a registration that overlaps", kBoth, {create(0, GPUMEM_KIND_REGISTERED, 5000)}, {overlapping}});

  const Step register_both[] = {
      Step{"gpumem_register",
           [](World& w) {
             const gpumem_status status =
                 gpumem_register(w.out.device[0], w.host[0], 3 * kPage, GPUMEM_MEMORY_MAPPED, &w.error);
             if (status == GPUMEM_SUCCESS) w.out.registered[0] = w.host[0];
             return status;
           }},
      Step{"gpumem_unregister", [](World& w) {
             const gpumem_status status = gpumem_unregister(w.out.instance, w.host[0], &w.error);
             if (status == GPUMEM_SUCCESS) unset(w.out.registered[0]);
             return status;
           }}};
  Scenario registering{
      "register and unregister", kBoth, {}, {register_both[0], register_both[1], register_both[0]}};
  registering.options = exact_budget(3 * kPage);
  all.push_back(registering);
  const auto release = [](World& w) {
    const gpumem_status status = gpumem_free(w.out.instance, w.out.pointer[0], &w.error);
    if (status == GPUMEM_SUCCESS) unset(w.out.pointer[0]);
    return status;
  };
  all.push_back({"malloc and free of device memory",
                 kBoth,
                 {},
                 {DEVICE_CALL(gpumem_malloc, w.out.device[1], GPUMEM_KIND_DEVICE, 1000, &w.out.pointer[0]),
                  Step{"gpumem_free", release}}});
  all.push_back({"malloc and free of pinned memory",
                 kBoth,
                 {},
                 {CALL(gpumem_malloc, w.out.device[1], GPUMEM_KIND_PINNED, 1000, &w.out.pointer[0]),
                  Step{"gpumem_free", release}}});

  all.push_back({"malloc and free of managed memory",
                 kBoth,
                 {},
                 {CALL(gpumem_malloc, w.out.device[1], GPUMEM_KIND_MANAGED, 1000, &w.out.pointer[0]),
                  Step{"gpumem_free", release}}});

  all.push_back(
      {"questions about pointers",
       kBoth,
       {create(0, GPUMEM_KIND_PINNED, 10'000), create(1, GPUMEM_KIND_DEVICE, 10'000), get_info(0),
        Step{"gpumem_memory_get_info",
             [](World& w) {
               w.out.address[0] = w.out.memory_info.host_pointer;
               const gpumem_status status =
                   gpumem_memory_get_info(w.out.memory[1], &w.out.memory_info, &w.error);
               w.out.address[1] = w.out.memory_info.device_pointer;
               return status;
             }}},
       {CALL(gpumem_pointer_get_info, w.out.instance, w.out.address[0], &w.out.pointer_info),
        CALL(gpumem_pointer_get_info, w.out.instance, w.out.address[1], &w.out.pointer_info),
        CALL(gpumem_pointer_get_device_pointer, w.out.device[1], w.out.address[0], &w.out.address[0]),
        CALL(gpumem_pointer_get_device_pointer, w.out.device[0], w.out.address[1], &w.out.address[1]),
        CALL(gpumem_pointer_get_access, w.out.instance, w.out.address[0], GPUMEM_LOCATION_DEVICE, 1,
             &w.out.access),
        CALL(gpumem_pointer_get_access, w.out.instance, w.out.address[1], GPUMEM_LOCATION_HOST, 0,
             &w.out.access),
        CALL(gpumem_pointer_get_access, w.out.instance, w.host[1], GPUMEM_LOCATION_DEVICE, 0, &w.out.access),
        CALL(gpumem_pointer_get_info, w.out.instance, w.host[1], &w.out.pointer_info)},
       [](World& w) { EXPECT_EQ(w.out.pointer_info.kind, GPUMEM_KIND_PAGEABLE); }});
  return all;
}

}  // namespace faults
