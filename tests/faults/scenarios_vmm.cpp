// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Scenarios of physical memory and ranges.
#include "scenario.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace faults {
namespace {

// Small on host, so that the loops do not spend their time on clearing memory.
constexpr uint64_t kHostUnit = 64 * 1024;
uint64_t unit(const World& w) { return w.backend == GPUMEM_BACKEND_HOST ? kHostUnit : 2 * kMiB; }
void small_units(gpumem_instance_desc&, gpumem_host_options& host) { host.vmm_granularity = kHostUnit; }

struct Wanted {
  const char* name;
  gpumem_location location;
  gpumem_handle_types handle_types;
  gpumem_physical_flags prefer;
};

gpumem_physical_desc desc_of(const World& w, const Wanted& wanted, uint64_t units) {
  gpumem_physical_desc desc = GPUMEM_PHYSICAL_DESC_INIT;
  desc.location = wanted.location;
  desc.size = units * unit(w);
  desc.handle_types = wanted.handle_types;
  desc.prefer = wanted.prefer;
  desc.name = "a name that is longer than a short string";
  return desc;
}

constexpr Wanted kOnDevice = {"physical memory of a device", GPUMEM_LOCATION_DEVICE, 0, 0};
constexpr Wanted kOnHost = {"physical memory of the host", GPUMEM_LOCATION_HOST, 0, 0};
constexpr Wanted kOnNode = {"physical memory of a node", GPUMEM_LOCATION_HOST_NUMA, 0, 0};
constexpr Wanted kShared = {"physical memory to be shared", GPUMEM_LOCATION_DEVICE,
                            GPUMEM_HANDLE_TYPE_POSIX_FD, 0};
constexpr Wanted kOnFabric = {"physical memory for the fabric", GPUMEM_LOCATION_DEVICE,
                              GPUMEM_HANDLE_TYPE_FABRIC, 0};
constexpr Wanted kPreferring = {
    "physical memory with preferences", GPUMEM_LOCATION_DEVICE, 0,
    GPUMEM_PHYSICAL_COMPRESSIBLE | GPUMEM_PHYSICAL_RDMA | GPUMEM_PHYSICAL_HW_DECOMPRESS};

Step make(size_t slot, const Wanted& wanted, uint64_t units = 1) {
  Step step{"gpumem_physical_create", [=](World& w) {
              const gpumem_physical_desc desc = desc_of(w, wanted, units);
              return gpumem_physical_create(w.out.device[0], &desc, &w.out.physical[slot], &w.error);
            }};
  if (wanted.location == GPUMEM_LOCATION_DEVICE) step.exhausted = GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY;
  return step;
}

Step reserve(size_t slot, uint64_t units, uint64_t alignment = 0, bool at_hint = false) {
  return {"gpumem_range_reserve",
          [=](World& w) {
            gpumem_range_desc desc = GPUMEM_RANGE_DESC_INIT;
            desc.size = units * unit(w);
            desc.alignment = alignment;
            if (at_hint) desc.address = w.out.address[0];
            return gpumem_range_reserve(w.out.instance, &desc, &w.out.range[slot], &w.error);
          },
          GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE};
}

Step map(size_t slot, uint64_t at, std::vector<size_t> blocks) {
  return {"gpumem_range_map", [=](World& w) {
            gpumem_physical handles[4] = {};  // no vector, which would take memory under faults
            for (size_t i = 0; i < blocks.size(); ++i)
              handles[i] = w.out.physical[blocks[i]];
            return gpumem_range_map(w.out.range[slot], at * unit(w), handles, blocks.size(), &w.error);
          }};
}

Step unmap(size_t slot, uint64_t at, uint64_t units) {
  return {"gpumem_range_unmap", [=](World& w) {
            return gpumem_range_unmap(w.out.range[slot], at * unit(w), units * unit(w), &w.error);
          }};
}

Step set_access(size_t slot, uint64_t at, uint64_t units, gpumem_access access, bool with_cpu = false) {
  return {"gpumem_range_set_access", [=](World& w) {
            gpumem_access_desc rights[2] = {GPUMEM_ACCESS_DESC_INIT, GPUMEM_ACCESS_DESC_INIT};
            rights[0].location = GPUMEM_LOCATION_DEVICE;
            rights[1].location = GPUMEM_LOCATION_HOST;
            rights[0].access = rights[1].access = access;
            return gpumem_range_set_access(w.out.range[slot], at * unit(w), units * unit(w), rights,
                                           with_cpu ? 2 : 1, &w.error);
          }};
}

Step release_physical(size_t slot) { return ENDING_CALL(gpumem_physical_release, w.out.physical[slot]); }
Step release_range(size_t slot) { return ENDING_CALL(gpumem_range_release, w.out.range[slot]); }
Step range_info(size_t slot) { return CALL(gpumem_range_get_info, w.out.range[slot], &w.out.range_info); }
Step keep_base() {
  return {"gpumem_range_get_info", [](World& w) {
            const gpumem_status status = gpumem_range_get_info(w.out.range[0], &w.out.range_info, &w.error);
            if (status == GPUMEM_SUCCESS) w.out.address[0] = w.out.range_info.base;
            return status;
          }};
}
Step export_file() { return CALL(gpumem_physical_export_fd, w.out.physical[0], &w.out.file); }
Step import_file(size_t slot) {
  return {"gpumem_physical_import_fd", [=](World& w) {
            const gpumem_physical_desc desc = desc_of(w, kShared, 1);
            return gpumem_physical_import_fd(w.out.device[0], &desc, w.out.file, &w.out.physical[slot],
                                             &w.error);
          }};
}
Step export_fabric(gpumem_status expected) {
  Step step = CALL(gpumem_physical_export_fabric, w.out.physical[0], &w.out.fabric);
  step.expected = expected;
  return step;
}
Step import_fabric(size_t slot, gpumem_status expected) {
  Step step{"gpumem_physical_import_fabric", [=](World& w) {
              const gpumem_physical_desc desc = desc_of(w, kOnFabric, 1);
              return gpumem_physical_import_fabric(w.out.device[0], &desc, &w.out.fabric,
                                                   &w.out.physical[slot], &w.error);
            }};
  step.expected = expected;
  return step;
}

// The first `units` of range 0 can be written and read.
auto usable(uint64_t units) {
  return [=](World& w) {
    gpumem_range_info info = GPUMEM_RANGE_INFO_INIT;
    ASSERT_EQ(gpumem_range_get_info(w.out.range[0], &info, nullptr), GPUMEM_SUCCESS);
    EXPECT_EQ(info.mapped_size, units * unit(w));
    ASSERT_EQ(gpumem_fill(w.out.instance, info.base, info.mapped_size, 0x5C, 1, &w.error), GPUMEM_SUCCESS)
        << w.error.message;
    unsigned char byte = 0;
    const auto* const last = static_cast<const unsigned char*>(info.base) + info.mapped_size - 1;
    ASSERT_EQ(gpumem_copy(w.out.instance, &byte, last, 1, nullptr, &w.error), GPUMEM_SUCCESS)
        << w.error.message;
    EXPECT_EQ(byte, 0x5C);
  };
}

}  // namespace

std::vector<Scenario> vmm_scenarios() {
  std::vector<Scenario> all;
  for (const Wanted& wanted : {kOnDevice, kOnHost, kOnNode, kShared, kPreferring}) {
    all.push_back(
        {wanted.name,
         kBoth,
         {},
         {make(0, wanted, 2), CALL(gpumem_physical_get_info, w.out.physical[0], &w.out.physical_info),
          release_physical(0), make(0, wanted)}});
  }
  all.push_back(
      {"units of physical memory", kBoth, {}, {Step{"gpumem_physical_get_granularity", [](World& w) {
                                                      const gpumem_physical_desc desc =
                                                          desc_of(w, kOnDevice, 0);
                                                      return gpumem_physical_get_granularity(
                                                          w.out.device[0], &desc, &w.out.number[0],
                                                          &w.out.number[1], &w.error);
                                                    }}}});
  all.push_back({"a range, its life", kBoth, {}, {reserve(0, 4), range_info(0), release_range(0)}});
  all.push_back({"a range, aligned", kBoth, {}, {reserve(0, 4, 64 * kMiB)}});
  all.push_back({"a range at a hint", kBoth, {reserve(0, 4), keep_base()}, {reserve(1, 4, 0, true)}});
  Step fixed = reserve(1, 4);
  fixed.call = [](World& w) {
    gpumem_range_desc desc = GPUMEM_RANGE_DESC_INIT;
    desc.size = unit(w);
    desc.address = w.out.address[0];
    desc.flags = GPUMEM_RANGE_FIXED;
    return gpumem_range_reserve(w.out.instance, &desc, &w.out.range[1], &w.error);
  };
  fixed.expected = GPUMEM_ERROR_ALREADY_EXISTS;
  all.push_back({"a range at an address that is taken", kBoth, {reserve(0, 4), keep_base()}, {fixed}});

  const std::vector<Step> blocks = {make(0, kOnDevice), make(1, kOnHost, 2), reserve(0, 6)};
  all.push_back({"map and set access",
                 kBoth,
                 blocks,
                 {map(0, 0, {0, 1, 0}), set_access(0, 0, 4, GPUMEM_ACCESS_READWRITE)},
                 usable(4)});
  all.push_back({"map and unmap",
                 kBoth,
                 blocks,
                 {map(0, 0, {0, 1}), map(0, 3, {0, 0}), unmap(0, 0, 5), map(0, 1, {1}), unmap(0, 1, 2),
                  release_range(0), release_physical(1), release_physical(0)}});
  all.push_back(
      {"access comes and goes",
       kBoth,
       {make(1, kOnHost, 2), make(0, kOnHost), reserve(0, 3), map(0, 0, {0, 1})},
       {set_access(0, 0, 3, GPUMEM_ACCESS_READWRITE, true), set_access(0, 1, 2, GPUMEM_ACCESS_READ, true),
        set_access(0, 0, 3, GPUMEM_ACCESS_NONE, true), set_access(0, 0, 3, GPUMEM_ACCESS_READWRITE, true),
        unmap(0, 0, 3)}});
  Step over = map(0, 0, {0});
  over.expected = GPUMEM_ERROR_ALREADY_EXISTS;
  Step hole = unmap(0, 0, 6);
  hole.expected = GPUMEM_ERROR_INVALID_STATE;
  all.push_back({"mapping over a mapping",
                 kBoth,
                 {blocks[0], blocks[1], blocks[2], map(0, 0, {0, 1})},
                 {over, hole, map(0, 3, {0}), range_info(0)}});
  all.push_back({"questions about a range",
                 kBoth,
                 {blocks[0], blocks[2], map(0, 0, {0}), set_access(0, 0, 1, GPUMEM_ACCESS_READ), keep_base()},
                 {CALL(gpumem_range_get_mapping, w.out.instance, w.out.address[0], &w.out.mapping_info),
                  CALL(gpumem_pointer_get_info, w.out.instance, w.out.address[0], &w.out.pointer_info),
                  CALL(gpumem_pointer_get_access, w.out.instance, w.out.address[0], GPUMEM_LOCATION_DEVICE, 0,
                       &w.out.access)},
                 [](World& w) { EXPECT_EQ(w.out.access, GPUMEM_ACCESS_READ); }});
  all.push_back({"copies across mappings",
                 kBoth,
                 {blocks[0], blocks[1], blocks[2], map(0, 0, {0, 1}),
                  set_access(0, 0, 3, GPUMEM_ACCESS_READWRITE), keep_base()},
                 {DEVICE_CALL(gpumem_fill, w.out.instance, w.out.address[0], 3 * unit(w), 1, 1),
                  DEVICE_CALL(gpumem_copy, w.out.instance,
                              static_cast<unsigned char*>(w.out.address[0]) + unit(w) - kPage, w.host[0],
                              2 * kPage, nullptr)}});
  all.back().idle_streams = 1;
  all.push_back({"retain",
                 kBoth,
                 {blocks[0], blocks[2], map(0, 0, {0}), keep_base()},
                 {CALL(gpumem_physical_retain, w.out.instance, w.out.address[0], &w.out.physical[2]),
                  release_physical(0), release_physical(2),
                  CALL(gpumem_physical_retain, w.out.instance, w.out.address[0], &w.out.physical[0])}});
  all.push_back({"export and import",
                 kBoth,
                 {make(0, kShared)},
                 {export_file(), import_file(1), import_file(2), release_physical(1), release_physical(0)}});
  all.push_back({"there is no fabric",
                 kHost,
                 {make(0, kShared)},
                 {export_fabric(GPUMEM_ERROR_UNSUPPORTED), import_fabric(1, GPUMEM_ERROR_UNSUPPORTED)}});
  all.push_back({"export to the fabric and import",
                 kCuda,
                 {make(0, kOnFabric)},
                 {export_fabric(GPUMEM_SUCCESS), import_fabric(1, GPUMEM_SUCCESS),
                  import_fabric(2, GPUMEM_SUCCESS), release_physical(1), release_physical(0)}});
  all.push_back(
      {"map what was imported",
       kBoth,
       {make(0, kShared), export_file()},
       {import_file(1), reserve(0, 2), map(0, 0, {1, 0}), set_access(0, 0, 2, GPUMEM_ACCESS_READWRITE)},
       usable(2)});
  for (Scenario& scenario : all)
    scenario.options = small_units;
  return all;
}

}  // namespace faults
