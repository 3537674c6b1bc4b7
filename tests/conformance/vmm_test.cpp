// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Physical memory and ranges: the rules VMM-1 to VMM-30, and what other rules say of them.
#include "vmm.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>
#include <thread>

#include "cuda_raw.h"
#include "operands.h"

namespace conformance {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr uint64_t kGiB = 1024 * kMiB;

Instance open_small_units(
    const std::function<void(gpumem_instance_desc&, gpumem_host_options&)>& change = {}) {
  // Neither the default of the host backend nor the unit of any GPU, so that nothing can rely on either.
  return open_instance([&](gpumem_instance_desc& desc, gpumem_host_options& host) {
    host.vmm_granularity = 64 * kKiB;
    if (change) change(desc, host);
  });
}

// A unit that suits blocks of every sort on every device of an instance.
uint64_t common_unit(const Instance& instance) {
  uint64_t unit = 0;
  for (uint32_t ordinal = 0; ordinal < instance.device_count(); ++ordinal) {
    const gpumem_device device = instance.device(ordinal);
    const auto use = [&](const gpumem_physical_desc& desc) { unit = std::max(unit, unit_of(device, desc)); };
    const auto can = [&](gpumem_capability what) {
      return capability(device, what).value != GPUMEM_ANSWER_NO;
    };
    use(physical_desc(0));
    if (can(GPUMEM_CAPABILITY_VMM_HOST)) use(physical_desc(0, GPUMEM_LOCATION_HOST));
    if (can(GPUMEM_CAPABILITY_VMM_HOST_NUMA)) use(physical_desc(0, GPUMEM_LOCATION_HOST_NUMA));
    if (can(GPUMEM_CAPABILITY_VMM_HANDLE_POSIX_FD))
      use(physical_desc(0, GPUMEM_LOCATION_DEVICE, GPUMEM_HANDLE_TYPE_POSIX_FD));
  }
  return unit;
}

bool is_power_of_two(uint64_t number) { return number != 0 && (number & (number - 1)) == 0; }

// A descriptor that is closed with its owner.
class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) { EXPECT_GE(descriptor, 0); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  File(File&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  operator int() const { return descriptor_; }  // NOLINT: stands for the descriptor in every call

 private:
  int descriptor_;
};

File export_fd(gpumem_physical physical) {
  int32_t descriptor = -1;
  EXPECT_OK(gpumem_physical_export_fd(physical, &descriptor, why()));
  return File(descriptor);
}

Physical import_fd(gpumem_device device, const gpumem_physical_desc& desc, int descriptor) {
  gpumem_physical physical = nullptr;
  EXPECT_OK(gpumem_physical_import_fd(device, &desc, descriptor, &physical, why()));
  return Physical(physical);
}

class Vmm : public Conformance {
 protected:
  void SetUp() override {
    Conformance::SetUp();
    if (on_host()) {
      instance_ = open_small_units();
      device_ = instance_.device();
    }
    if (!has_vmm(device_)) GTEST_SKIP() << "the device has no virtual memory management";
    unit_ = common_unit(instance_);
  }

  bool has(gpumem_capability what) const { return capability(device_, what).value != GPUMEM_ANSWER_NO; }
  Physical block(uint64_t units = 1, gpumem_location location = GPUMEM_LOCATION_DEVICE,
                 gpumem_handle_types handle_types = 0) const {
    return create_physical(device_, physical_desc(units * unit_, location, handle_types));
  }
  Range range(uint64_t units) const { return reserve(instance_, range_desc(units * unit_)); }
  // A range that is mapped from its beginning, with access for the first device.
  Range mapped(std::initializer_list<gpumem_physical> blocks, uint64_t units,
               gpumem_access access = GPUMEM_ACCESS_READWRITE) const {
    Range made = range(units);
    EXPECT_OK(made.map(0, blocks));
    EXPECT_OK(made.set_access(0, made.info().mapped_size, {device_rights(0, access)}));
    return made;
  }
  gpumem_status copy(void* destination, const void* source, uint64_t size,
                     gpumem_stream stream = nullptr) const {
    return copy_on(instance_, stream, destination, source, size, nullptr, why());
  }
  gpumem_status fill(void* destination, uint64_t size, uint32_t value = 7,
                     gpumem_stream stream = nullptr) const {
    return fill_on(instance_, stream, destination, size, value, 1, why());
  }
  gpumem_status try_create(const gpumem_physical_desc& desc) const {
    const Counters before = counters(instance_);
    gpumem_physical physical = nullptr;
    const gpumem_status status = gpumem_physical_create(device_, &desc, &physical, why());
    EXPECT_STATUS(status, status);  // the detail agrees
    if (status == GPUMEM_SUCCESS) {
      Physical owner(physical);
    } else {
      EXPECT_EQ(physical, nullptr);
      EXPECT_TRUE(counters(instance_) == before);
    }
    return status;
  }
  gpumem_status try_reserve(const gpumem_range_desc& desc) const {
    const Counters before = counters(instance_);
    gpumem_range made = nullptr;
    const gpumem_status status = gpumem_range_reserve(instance_, &desc, &made, why());
    EXPECT_STATUS(status, status);  // the detail agrees
    if (status == GPUMEM_SUCCESS) {
      Range owner(made);
    } else {
      EXPECT_EQ(made, nullptr);
      EXPECT_TRUE(counters(instance_) == before);
    }
    return status;
  }
  void expect_no_access(const void* address) const {
    for (uint32_t ordinal = 0; ordinal < instance_.device_count(); ++ordinal)
      EXPECT_EQ(device_access(instance_, address, ordinal), GPUMEM_ACCESS_NONE) << ordinal;
    EXPECT_EQ(cpu_access(instance_, address), GPUMEM_ACCESS_NONE);
  }
  uint64_t free_bytes() const {
    uint64_t free = 0;
    EXPECT_OK(gpumem_device_get_memory(device_, &free, nullptr, why()));
    return free;
  }

  uint64_t unit_ = 0;
};

// What a range tells of itself, to see that a refused call changed nothing.
struct Layout {
  uint64_t mapped_size;
  uint64_t mapping_count;
  bool operator==(const Layout& other) const {
    return mapped_size == other.mapped_size && mapping_count == other.mapping_count;
  }
};
Layout layout_of(const Range& range) {
  const gpumem_range_info info = range.info();
  return {info.mapped_size, info.mapping_count};
}

// ---- physical memory ----

TEST_F(Vmm, vmm_1_granularity) {
  std::vector<gpumem_physical_desc> all = {physical_desc(0)};
  if (has(GPUMEM_CAPABILITY_VMM_HOST)) all.push_back(physical_desc(0, GPUMEM_LOCATION_HOST));
  if (has(GPUMEM_CAPABILITY_VMM_HOST_NUMA)) all.push_back(physical_desc(0, GPUMEM_LOCATION_HOST_NUMA));
  if (has(GPUMEM_CAPABILITY_VMM_HANDLE_POSIX_FD))
    all.push_back(physical_desc(0, GPUMEM_LOCATION_DEVICE, GPUMEM_HANDLE_TYPE_POSIX_FD));
  for (gpumem_physical_desc& desc : all) {
    SCOPED_TRACE(testing::Message() << "location " << desc.location << ", types " << desc.handle_types);
    uint64_t minimum = 0;
    uint64_t recommended = 0;
    EXPECT_OK(gpumem_physical_get_granularity(device_, &desc, &minimum, &recommended, why()));
    EXPECT_TRUE(is_power_of_two(minimum)) << minimum;
    EXPECT_TRUE(is_power_of_two(recommended)) << recommended;
    EXPECT_EQ(minimum % page_size(), 0u);
    EXPECT_EQ(recommended % minimum, 0u);
    uint64_t alone = 0;
    desc.size = 12345;  // ignored
    EXPECT_OK(gpumem_physical_get_granularity(device_, &desc, nullptr, &alone, why()));
    EXPECT_EQ(alone, recommended);
    EXPECT_OK(gpumem_physical_get_granularity(device_, &desc, &alone, nullptr, why()));
    EXPECT_EQ(alone, minimum);
    desc.size = minimum;
    const Physical one = create_physical(device_, desc);
    EXPECT_EQ(one.info().granularity, minimum);
  }
  const gpumem_physical_desc plain = physical_desc(0);
  EXPECT_EQ(capability(device_, GPUMEM_CAPABILITY_VMM_GRANULARITY_MIN).value, unit_of(device_, plain));
  EXPECT_EQ(
      capability(device_, GPUMEM_CAPABILITY_VMM_GRANULARITY_RECOMMENDED).value % unit_of(device_, plain), 0u);
}

TEST_F(Vmm, vmm_1_is_configured_on_host) {
  if (!on_host()) SKIP_RULE("the granularity can be chosen on host only");
  EXPECT_EQ(unit_, 64 * kKiB);
  EXPECT_EQ(common_unit(open_instance()), 2 * kMiB);
  const Instance large = open_instance(
      [](gpumem_instance_desc&, gpumem_host_options& host) { host.vmm_granularity = 16 * kMiB; });
  EXPECT_EQ(common_unit(large), 16 * kMiB);
  for (const uint64_t wrong : {uint64_t{1}, page_size() / 2, 3 * page_size(), 2 * kGiB, uint64_t{1} << 63}) {
    gpumem_host_options host = GPUMEM_HOST_OPTIONS_INIT;
    host.vmm_granularity = wrong;
    gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
    desc.backend = GPUMEM_BACKEND_HOST;
    desc.host = &host;
    gpumem_instance none = nullptr;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_instance_open(&desc, &none, why())) << wrong;
  }
}

TEST_F(Vmm, vmm_1_bad_questions) {
  uint64_t minimum = 77;
  uint64_t recommended = 78;
  gpumem_physical_desc desc = physical_desc(0, GPUMEM_LOCATION_HOST_NUMA_CURRENT);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_physical_get_granularity(device_, &desc, &minimum, &recommended, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_physical_get_granularity(device_, nullptr, &minimum, &recommended, why()));
  desc = physical_desc(0, GPUMEM_LOCATION_HOST, GPUMEM_HANDLE_TYPE_POSIX_FD);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_physical_get_granularity(device_, &desc, &minimum, &recommended, why()));
  desc = physical_desc(0);
  desc.require = UINT64_C(1) << 40;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_physical_get_granularity(device_, &desc, &minimum, &recommended, why()));
  EXPECT_EQ(minimum, 77u);
  EXPECT_EQ(recommended, 78u);
}

TEST_F(Vmm, vmm_2_sizes) {
  for (const uint64_t units : {1u, 2u, 7u}) {
    const Physical one = block(units);
    EXPECT_EQ(one.info().size, units * unit_);
  }
  for (const uint64_t size :
       {uint64_t{0}, uint64_t{1}, unit_ - 1, unit_ + 1, unit_ / 2, unit_ + page_size() / 2, uint64_t{1} << 63,
        UINT64_MAX, UINT64_MAX - unit_ + 1}) {
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, try_create(physical_desc(size))) << size;
  }
  uint64_t total = 0;
  ASSERT_OK(gpumem_device_get_memory(device_, nullptr, &total, why()));
  for (const uint64_t size : {(total / unit_ + 1) * unit_, uint64_t{1} << 62})
    EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, try_create(physical_desc(size))) << size;
  // One more than the machine has is refused too: what is made does not have its pages yet with every driver.
  const auto machine = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * page_size();
  for (const auto& [capability, location] :
       {std::pair{GPUMEM_CAPABILITY_VMM_HOST, GPUMEM_LOCATION_HOST},
        std::pair{GPUMEM_CAPABILITY_VMM_HOST_NUMA, GPUMEM_LOCATION_HOST_NUMA}}) {
    if (!has(capability)) continue;
    for (const uint64_t size : {(machine / unit_ + 1) * unit_, uint64_t{1} << 62}) {
      const gpumem_physical_desc desc = physical_desc(size, location);
      EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, try_create(desc)) << size;
      gpumem_physical none = nullptr;
      EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, gpumem_physical_create(device_, &desc, &none, why()));
      EXPECT_NE(std::strstr(last_error().message, "bytes do not fit into the host's memory"), nullptr)
          << last_error().message;
    }
  }
  gpumem_physical none = nullptr;
  const gpumem_physical_desc desc = physical_desc(unit_);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_physical_create(device_, nullptr, &none, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_physical_create(device_, &desc, nullptr, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_physical_create(nullptr, &desc, &none, why()));
  EXPECT_EQ(none, nullptr);
}

TEST_F(Vmm, vmm_2_charges_the_device) {
  if (!Faults::available()) SKIP_RULE("on a real GPU others change the free memory");
  const uint64_t before = free_bytes();
  Physical one = block(8);
  EXPECT_EQ(free_bytes(), before - 8 * unit_);
  one.destroy();
  EXPECT_EQ(free_bytes(), before);
  std::vector<Physical> all;
  const gpumem_physical_desc desc = physical_desc(before / 4 / unit_ * unit_);
  gpumem_status status = GPUMEM_SUCCESS;
  while (status == GPUMEM_SUCCESS && all.size() < 6) {
    gpumem_physical physical = nullptr;
    status = gpumem_physical_create(device_, &desc, &physical, nullptr);
    if (status == GPUMEM_SUCCESS) all.emplace_back(physical);
  }
  EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, status);
  EXPECT_EQ(all.size(), 4u);
}

CHILD(vmm_2_without_the_capability) {
  const Instance instance = open_instance();
  const gpumem_device device = instance.device();
  EXPECT_EQ(capability(device, GPUMEM_CAPABILITY_VMM_DEVICE).value, uint64_t{GPUMEM_ANSWER_NO});
  const gpumem_physical_desc desc = physical_desc(2 * kMiB);
  gpumem_physical none = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_physical_create(device, &desc, &none, why()));
  EXPECT_NE(std::strstr(last_error().message, "vmm.device"), nullptr) << last_error().message;
  uint64_t unit = 77;
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED,
                gpumem_physical_get_granularity(device, &desc, &unit, nullptr, why()));
  EXPECT_EQ(unit, 77u);
  gpumem_range no_range = nullptr;
  const gpumem_range_desc wanted = range_desc(2 * kMiB);
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_range_reserve(instance, &wanted, &no_range, why()));
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(no_range, nullptr);
}

TEST_F(Conformance, vmm_2_without_the_capability) {
  if (!on_fake_cuda()) SKIP_RULE("every emulated and most real devices have virtual memory management");
  EXPECT_CHILD_OK(run_child("vmm_2_without_the_capability", {"FAKE_CUDA_ATTRIBUTE_102=0"}));
}

TEST_F(Vmm, vmm_3_locations) {
  const auto expect = [&](const gpumem_physical_desc& desc, gpumem_location location, int32_t id) {
    const gpumem_physical_info info = create_physical(device_, desc).info();
    EXPECT_EQ(info.location, location);
    EXPECT_EQ(info.location_id, id);
    EXPECT_EQ(info.device, device_);
    EXPECT_EQ(info.device_ordinal, 0u);
  };
  expect(physical_desc(unit_), GPUMEM_LOCATION_DEVICE, 0);
  expect(physical_desc(unit_, 0), GPUMEM_LOCATION_DEVICE, 0);
  const std::pair<gpumem_capability, gpumem_location> on_the_host[] = {
      {GPUMEM_CAPABILITY_VMM_HOST, GPUMEM_LOCATION_HOST},
      {GPUMEM_CAPABILITY_VMM_HOST_NUMA, GPUMEM_LOCATION_HOST_NUMA}};
  for (const auto& [what, location] : on_the_host) {
    if (has(what)) {
      expect(physical_desc(unit_, location), location, location == GPUMEM_LOCATION_HOST ? -1 : 0);
    } else {
      EXPECT_STATUS(capability(device_, what).status, try_create(physical_desc(unit_, location)));
    }
  }
  for (const gpumem_location wrong : {GPUMEM_LOCATION_HOST_NUMA_CURRENT, 5, -1, INT32_MAX})
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, try_create(physical_desc(unit_, wrong))) << wrong;
  gpumem_physical_desc desc = physical_desc(unit_, GPUMEM_LOCATION_HOST_NUMA);
  for (const int32_t wrong : {-1, 1023, INT32_MAX, INT32_MIN}) {
    if (!has(GPUMEM_CAPABILITY_VMM_HOST_NUMA)) break;
    desc.location_id = wrong;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, try_create(desc)) << wrong;
  }
}

TEST_F(Vmm, vmm_3_every_device) {
  for (uint32_t ordinal = 0; ordinal < instance_.device_count(); ++ordinal) {
    const gpumem_device device = instance_.device(ordinal);
    const gpumem_physical_info info = create_physical(device, physical_desc(unit_)).info();
    EXPECT_EQ(info.location_id, static_cast<int32_t>(ordinal));
    EXPECT_EQ(info.device, device);
    EXPECT_EQ(info.device_ordinal, ordinal);
  }
}

TEST_F(Vmm, vmm_3_pretended_nodes) {
  if (!on_host()) SKIP_RULE("nodes can be pretended on host only");
  const Instance instance =
      open_small_units([](gpumem_instance_desc&, gpumem_host_options& host) { host.numa_nodes = 3; });
  gpumem_physical_desc desc = physical_desc(64 * kKiB, GPUMEM_LOCATION_HOST_NUMA);
  for (const int32_t node : {0, 1, 2}) {
    desc.location_id = node;
    EXPECT_EQ(create_physical(instance.device(), desc).info().location_id, node);
  }
  desc.location_id = 3;
  gpumem_physical none = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_physical_create(instance.device(), &desc, &none, why()));
}

TEST_F(Vmm, vmm_4_handle_types) {
  const std::pair<gpumem_capability, gpumem_handle_types> types[] = {
      {GPUMEM_CAPABILITY_VMM_HANDLE_POSIX_FD, GPUMEM_HANDLE_TYPE_POSIX_FD},
      {GPUMEM_CAPABILITY_VMM_HANDLE_FABRIC, GPUMEM_HANDLE_TYPE_FABRIC}};
  for (const auto& [what, type] : types) {
    SCOPED_TRACE(type);
    const gpumem_physical_desc desc = physical_desc(unit_, GPUMEM_LOCATION_DEVICE, type);
    if (has(what)) {
      EXPECT_EQ(create_physical(device_, desc).info().handle_types, type);
    } else {
      EXPECT_STATUS(capability(device_, what).status, try_create(desc));
      EXPECT_STATUS(
          capability(device_, what).status,
          try_create(physical_desc(unit_, GPUMEM_LOCATION_DEVICE, GPUMEM_HANDLE_TYPE_POSIX_FD | type)));
    }
  }
  EXPECT_EQ(block().info().handle_types, 0u);
  for (const gpumem_handle_types unknown : {UINT64_C(2), UINT64_C(4), UINT64_C(0x10), UINT64_C(1) << 63})
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  try_create(physical_desc(unit_, GPUMEM_LOCATION_DEVICE, unknown)));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                try_create(physical_desc(unit_, GPUMEM_LOCATION_HOST, GPUMEM_HANDLE_TYPE_POSIX_FD)));
}

TEST_F(Vmm, vmm_5_properties_read_back) {
  gpumem_physical_desc desc = physical_desc(3 * unit_);
  desc.name = "weights";
  const Physical first = create_physical(device_, desc);
  const gpumem_physical_info info = first.info();
  EXPECT_STREQ(info.name, "weights");
  EXPECT_EQ(info.size, 3 * unit_);
  EXPECT_EQ(info.granularity, unit_of(device_, desc));
  EXPECT_EQ(info.imported, 0u);
  EXPECT_EQ(info.granted_flags, 0u);
  EXPECT_NE(info.block_id, 0u);
  std::set<uint64_t> ids = {info.block_id};
  for (int i = 0; i < 10; ++i)
    EXPECT_TRUE(ids.insert(block().info().block_id).second) << "another block, another id";

  gpumem_physical_info sized = GPUMEM_PHYSICAL_INFO_INIT;
  sized.struct_size = 1;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_physical_get_info(first, &sized, why()));
  EXPECT_EQ(sized.size, 0u);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_physical_get_info(first, nullptr, why()));
  desc.name = "a\nb";
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, try_create(desc));
}

TEST_F(Vmm, vmm_5_of_imported_memory) {
  if (!has(GPUMEM_CAPABILITY_VMM_HANDLE_POSIX_FD)) SKIP_RULE("nothing can be exported here");
  for (const gpumem_location location : {GPUMEM_LOCATION_DEVICE, GPUMEM_LOCATION_HOST_NUMA}) {
    if (location == GPUMEM_LOCATION_HOST_NUMA && !has(GPUMEM_CAPABILITY_VMM_HOST_NUMA)) continue;
    SCOPED_TRACE(location);
    const gpumem_physical_desc desc = physical_desc(2 * unit_, location, GPUMEM_HANDLE_TYPE_POSIX_FD);
    const Physical made = create_physical(device_, desc);
    const Physical imported = import_fd(device_, desc, export_fd(made));
    const gpumem_physical_info info = imported.info();
    EXPECT_EQ(info.imported, 1u);
    EXPECT_EQ(info.location, location);
    EXPECT_EQ(info.location_id, 0);
    EXPECT_EQ(info.size, 2 * unit_);
    EXPECT_EQ(info.granted_flags, made.info().granted_flags);
    // It tells whether it can be exported again.
    int32_t file = -7;
    const gpumem_status status = gpumem_physical_export_fd(imported, &file, why());
    const bool again = info.handle_types == GPUMEM_HANDLE_TYPE_POSIX_FD;
    EXPECT_STATUS(again ? GPUMEM_SUCCESS : GPUMEM_ERROR_UNSUPPORTED, status);
    EXPECT_EQ(file == -7, !again);
    EXPECT_TRUE(again || info.handle_types == 0);
    if (again) close(file);
  }
}

TEST_F(Vmm, vmm_5_no_native_handle_on_host) {
  if (!on_host()) SKIP_RULE("cuda has native handles");
  EXPECT_EQ(block().info().native_handle, 0u);
}

#ifdef HAVE_CUDA_HEADERS
// Addresses of the driver that a block is mapped at by other code.
class RawMapping {
 public:
  RawMapping(CUmemGenericAllocationHandle handle, uint64_t size) : size_(size) {
    EXPECT_EQ(raw().cuMemAddressReserve(&base_, size, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(raw().cuMemMap(base_, size, 0, handle, 0), CUDA_SUCCESS);
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    EXPECT_EQ(raw().cuMemSetAccess(base_, size, &access, 1), CUDA_SUCCESS);
  }
  RawMapping(const RawMapping&) = delete;
  RawMapping& operator=(const RawMapping&) = delete;
  ~RawMapping() {
    EXPECT_EQ(raw().cuMemUnmap(base_, size_), CUDA_SUCCESS);
    EXPECT_EQ(raw().cuMemAddressFree(base_, size_), CUDA_SUCCESS);
  }
  CUdeviceptr base() const { return base_; }

 private:
  CUdeviceptr base_ = 0;
  const uint64_t size_;
};

TEST_F(Vmm, vmm_5_the_native_handle_is_the_drivers) {
  if (!on_cuda()) SKIP_RULE("there is no driver to agree with");
  const bool shareable = has(GPUMEM_CAPABILITY_VMM_HANDLE_POSIX_FD);
  const gpumem_handle_types types = shareable ? GPUMEM_HANDLE_TYPE_POSIX_FD : gpumem_handle_types{0};
  const PrimaryContext context(0);
  Physical one = block(2, GPUMEM_LOCATION_DEVICE, types);
  const CUmemGenericAllocationHandle native = one.info().native_handle;
  ASSERT_NE(native, 0u);
  EXPECT_NE(native, block().info().native_handle) << "another block";
  CUmemAllocationProp made = {};
  ASSERT_EQ(raw().cuMemGetAllocationPropertiesFromHandle(&made, native), CUDA_SUCCESS);
  EXPECT_EQ(made.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(made.location.id, 0);
  EXPECT_EQ((made.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0, shareable);

  // Other code maps the same bytes.
  Range range = mapped({one}, 2);
  put_pattern(instance_, range.base(), 2 * unit_, 5);
  std::vector<uint8_t> seen(2 * unit_);
  const RawMapping elsewhere(native, 2 * unit_);
  ASSERT_EQ(raw().cuMemcpyDtoH(seen.data(), elsewhere.base(), seen.size()), CUDA_SUCCESS);
  EXPECT_TRUE(has_pattern(seen.data(), seen.size(), 5));

  // Another handle of the block has one that is as good.
  gpumem_physical more = nullptr;
  ASSERT_OK(gpumem_physical_retain(instance_, range.base(), &more, why()));
  const Physical retained(more);
  one.destroy();
  range.clear();
  range.destroy();
  seen.assign(seen.size(), 0);
  const RawMapping again(retained.info().native_handle, 2 * unit_);
  ASSERT_EQ(raw().cuMemcpyDtoH(seen.data(), again.base(), seen.size()), CUDA_SUCCESS);
  EXPECT_TRUE(has_pattern(seen.data(), seen.size(), 5));

  if (!shareable) return;
  const gpumem_physical_desc desc = physical_desc(2 * unit_, GPUMEM_LOCATION_DEVICE, types);
  const Physical imported = import_fd(device_, desc, export_fd(retained));
  const RawMapping third(imported.info().native_handle, 2 * unit_);
  seen.assign(seen.size(), 0);
  ASSERT_EQ(raw().cuMemcpyDtoH(seen.data(), third.base(), seen.size()), CUDA_SUCCESS);
  EXPECT_TRUE(has_pattern(seen.data(), seen.size(), 5));
}
#endif

TEST_F(Vmm, vmm_6_compressible) {
  gpumem_physical_desc preferred = physical_desc(unit_);
  preferred.prefer = GPUMEM_PHYSICAL_COMPRESSIBLE;
  gpumem_physical_desc required = physical_desc(unit_);
  required.require = GPUMEM_PHYSICAL_COMPRESSIBLE;
  const bool can = has(GPUMEM_CAPABILITY_VMM_COMPRESSIBLE);
  const Physical one = create_physical(device_, preferred);
  if (!can) {
    EXPECT_EQ(one.info().granted_flags, 0u);
    EXPECT_STATUS(capability(device_, GPUMEM_CAPABILITY_VMM_COMPRESSIBLE).status, try_create(required));
  } else {
    const Physical other = create_physical(device_, required);
    EXPECT_EQ(other.info().granted_flags & GPUMEM_PHYSICAL_COMPRESSIBLE,
              gpumem_physical_flags{GPUMEM_PHYSICAL_COMPRESSIBLE});
    const Range range = mapped({other, one}, 2);
    put_pattern(instance_, range.base(), 2 * unit_, 3);
    EXPECT_TRUE(holds_pattern(instance_, range.base(), 2 * unit_, 3));
  }
  EXPECT_EQ(block().info().granted_flags, 0u) << "what nobody asked for";
  gpumem_physical_desc unknown = physical_desc(unit_);
  unknown.require = UINT64_C(1) << 63;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, try_create(unknown));
  unknown = physical_desc(unit_);
  unknown.prefer = UINT64_C(1) << 62;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, try_create(unknown));
}

TEST_F(Vmm, vmm_6_for_a_decompression_engine) {
  gpumem_physical_desc desc = physical_desc(unit_);
  desc.prefer = GPUMEM_PHYSICAL_HW_DECOMPRESS;
  const bool can = has(GPUMEM_CAPABILITY_VMM_HW_DECOMPRESS);
  const Physical preferring = create_physical(device_, desc);
  EXPECT_EQ(preferring.info().granted_flags,
            can ? gpumem_physical_flags{GPUMEM_PHYSICAL_HW_DECOMPRESS} : gpumem_physical_flags{0});
  desc.require = GPUMEM_PHYSICAL_HW_DECOMPRESS;
  if (!can) {
    EXPECT_STATUS(capability(device_, GPUMEM_CAPABILITY_VMM_HW_DECOMPRESS).status, try_create(desc));
  } else {
    const Physical other = create_physical(device_, desc);
    const Range range = mapped({other, preferring}, 2);
    put_pattern(instance_, range.base(), 2 * unit_, 3);
    EXPECT_TRUE(holds_pattern(instance_, range.base(), 2 * unit_, 3));
  }
  desc.location = GPUMEM_LOCATION_HOST;
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, try_create(desc)) << "memory of the host";
}

#ifdef HAVE_CUDA_HEADERS
TEST_F(Vmm, vmm_6_on_a_device_with_a_decompression_engine) {
  if (!on_fake_cuda()) SKIP_RULE("only the fake driver can be told what to answer");
  constexpr int kAlgorithms = CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK;
  set_fake_attribute(kAlgorithms, 1);
  const Instance instance = open_instance();
  EXPECT_EQ(capability(instance.device(), GPUMEM_CAPABILITY_VMM_HW_DECOMPRESS).value,
            uint64_t{GPUMEM_ANSWER_YES});
  set_fake_attribute(kAlgorithms, 0);  // the answer is kept
  for (const bool wanted : {false, true}) {
    gpumem_physical_desc desc = physical_desc(unit_);
    desc.require = wanted ? GPUMEM_PHYSICAL_HW_DECOMPRESS : 0;
    const Physical block = create_physical(instance.device(), desc);
    EXPECT_EQ(block.info().granted_flags, desc.require);
    const RawMapping mapping(block.info().native_handle, unit_);
    int capable = -1;
    EXPECT_EQ(
        raw().cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE, mapping.base()),
        CUDA_SUCCESS);
    EXPECT_EQ(capable, wanted);
  }
}
#endif

TEST_F(Vmm, vmm_6_either_outcome_on_host) {
  if (!on_host()) SKIP_RULE("the outcome can be chosen on host only");
  EXPECT_EQ(capability(device_, GPUMEM_CAPABILITY_VMM_COMPRESSIBLE).value, uint64_t{GPUMEM_ANSWER_EMULATED});
  const Instance without = open_small_units(
      [](gpumem_instance_desc&, gpumem_host_options& host) { host.compressible = GPUMEM_TOGGLE_OFF; });
  gpumem_physical_desc desc = physical_desc(64 * kKiB);
  desc.prefer = GPUMEM_PHYSICAL_COMPRESSIBLE | GPUMEM_PHYSICAL_RDMA;
  EXPECT_EQ(create_physical(without.device(), desc).info().granted_flags, 0u);
  desc.require = GPUMEM_PHYSICAL_COMPRESSIBLE;
  gpumem_physical none = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_physical_create(without.device(), &desc, &none, why()));
  EXPECT_NE(std::strstr(last_error().message, "vmm.compressible"), nullptr) << last_error().message;
  desc.require = GPUMEM_PHYSICAL_RDMA;
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_physical_create(without.device(), &desc, &none, why()));
  EXPECT_EQ(none, nullptr);
}

// ---- reservations ----

TEST_F(Vmm, vmm_7_reservations) {
  const Range small = range(1);
  const gpumem_range_info info = small.info();
  EXPECT_NE(info.base, nullptr);
  EXPECT_EQ(info.size, unit_);
  EXPECT_EQ(info.mapped_size, 0u);
  EXPECT_EQ(info.mapping_count, 0u);
  EXPECT_EQ(info.granularity, unit_);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(info.base) % unit_, 0u);
  EXPECT_NE(info.buffer_id, 0u);

  // Far more than there is memory. A sanitizer leaves less room.
  const uint64_t before = free_bytes();
  gpumem_range_desc desc = range_desc(kSanitized ? 64 * kGiB : 16 * 1024 * kGiB);
  desc.name = "cache";
  const Range huge = reserve(instance_, desc);
  EXPECT_EQ(huge.info().size, desc.size);
  EXPECT_STREQ(huge.info().name, "cache");
  if (Faults::available()) {
    EXPECT_EQ(free_bytes(), before);
  }

  for (const uint64_t size : {uint64_t{0}, uint64_t{1}, unit_ / 2, unit_ + 1, unit_ + page_size() / 2,
                              uint64_t{1} << 63, UINT64_MAX, UINT64_MAX - unit_ + 1}) {
    EXPECT_EQ(try_reserve(range_desc(size)), GPUMEM_ERROR_INVALID_ARGUMENT) << size;
  }
  EXPECT_EQ(try_reserve(range_desc(uint64_t{1} << 62)), GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE);
  gpumem_range none = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_range_reserve(instance_, nullptr, &none, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_range_reserve(instance_, &desc, nullptr, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_range_reserve(nullptr, &desc, &none, why()));
  EXPECT_EQ(none, nullptr);
}

// Addresses that nobody uses, aligned to `alignment`. They are at the lower end of a large hole, and the
// system fills holes from above.
void* unused_addresses(uint64_t size, uint64_t alignment) {
  const uint64_t hole = size + alignment + kGiB;
  auto* const base = static_cast<uint8_t*>(
      mmap(nullptr, hole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  EXPECT_NE(static_cast<void*>(base), MAP_FAILED);
  EXPECT_EQ(munmap(base, hole), 0);
  const auto number = reinterpret_cast<uintptr_t>(base);
  return base + ((number + alignment - 1) / alignment * alignment - number);
}

TEST_F(Vmm, vmm_8_alignment) {
  for (const uint64_t alignment : {uint64_t{1}, uint64_t{64}, unit_, 2 * unit_, 64 * unit_, kGiB}) {
    gpumem_range_desc desc = range_desc(3 * unit_);
    desc.alignment = alignment;
    const Range range = reserve(instance_, desc);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(range.base()) % std::max(alignment, unit_), 0u) << alignment;
    EXPECT_EQ(range.info().size, 3 * unit_);
  }
  for (const uint64_t wrong : {uint64_t{3}, 3 * unit_, unit_ + 1, uint64_t{1} << 63, UINT64_MAX}) {
    gpumem_range_desc desc = range_desc(unit_);
    desc.alignment = wrong;
    EXPECT_EQ(try_reserve(desc), GPUMEM_ERROR_INVALID_ARGUMENT) << wrong;
  }
  gpumem_range_desc desc = range_desc(unit_);
  desc.alignment = uint64_t{1} << 62;
  const gpumem_status status = try_reserve(desc);
  EXPECT_TRUE(status == GPUMEM_ERROR_UNSUPPORTED || status == GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE)
      << gpumem_status_name(status);
}

TEST_F(Vmm, vmm_8_a_hint_is_a_preference) {
  const Range occupied = range(4);
  gpumem_range_desc desc = range_desc(2 * unit_);
  desc.address = occupied.base();
  const Range elsewhere = reserve(instance_, desc);
  EXPECT_NE(elsewhere.base(), occupied.base());
  desc.address = occupied.base() + 1;
  EXPECT_EQ(try_reserve(desc), GPUMEM_ERROR_INVALID_ARGUMENT);
  desc.address = occupied.base() + unit_;
  desc.alignment = 1024 * unit_;
  if (reinterpret_cast<uintptr_t>(desc.address) % desc.alignment != 0) {
    EXPECT_EQ(try_reserve(desc), GPUMEM_ERROR_INVALID_ARGUMENT);
  }
}

TEST_F(Vmm, vmm_8_fixed) {
  gpumem_range_desc desc = range_desc(4 * unit_);
  desc.flags = GPUMEM_RANGE_FIXED;
  EXPECT_EQ(try_reserve(desc), GPUMEM_ERROR_INVALID_ARGUMENT) << "no address";
  if (on_host()) {
    desc.address = unused_addresses(4 * unit_, unit_);
  } else {
    desc.address = range(4).base();
  }
  {
    const Range there = reserve(instance_, desc);
    EXPECT_EQ(there.base(), desc.address);
    // Occupied: by itself, in part, and by ordinary memory.
    EXPECT_EQ(try_reserve(desc), GPUMEM_ERROR_ALREADY_EXISTS);
    gpumem_range_desc partly = desc;
    partly.address = there.base() + 2 * unit_;
    EXPECT_EQ(try_reserve(partly), GPUMEM_ERROR_ALREADY_EXISTS);
    partly.address = there.base() + unit_ / 2;
    EXPECT_EQ(try_reserve(partly), GPUMEM_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(there.info().mapping_count, 0u);
  }
  Pages pages(4 * unit_);
  const auto number = reinterpret_cast<uintptr_t>(pages.get());
  desc.address = pages.get() + ((number + unit_ - 1) / unit_ * unit_ - number);
  desc.size = unit_;
  fill_pattern(pages.get(), pages.size(), 1);
  EXPECT_EQ(try_reserve(desc), GPUMEM_ERROR_ALREADY_EXISTS);
  EXPECT_TRUE(has_pattern(pages.get(), pages.size(), 1));
  desc.flags = UINT64_C(2);
  EXPECT_EQ(try_reserve(desc), GPUMEM_ERROR_INVALID_ARGUMENT);
}

TEST_F(Vmm, vmm_9_reserved_addresses_are_inaccessible) {
  const Range range = this->range(3);
  const Physical middle = block();
  ASSERT_OK(range.map(unit_, {middle}));
  ASSERT_OK(range.set_access(unit_, unit_, {device_rights(0)}));
  const Stream stream = create_stream(device_);
  std::vector<uint8_t> bytes(unit_, 5);
  for (uint8_t* const address : {range.base(), range.base() + 2 * unit_}) {
    EXPECT_TRUE(read_faults(address));
    EXPECT_TRUE(write_faults(address + unit_ - 1));
    expect_no_access(address);
    for (const gpumem_stream order : {gpumem_stream{nullptr}, stream.get()}) {
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, copy(bytes.data(), address, 64, order));
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, copy(address, bytes.data(), 64, order));
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, fill(address, 64, 1, order));
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE,
                    fill_2d_on(instance_, order, address, 64, 16, 3, 1, 1, why()));
    }
  }
  EXPECT_EQ(bytes[0], 5);
  EXPECT_OK(gpumem_stream_query(stream, why()));
}

// ---- mapping ----

TEST_F(Vmm, vmm_10_whole_blocks) {
  const Range range = this->range(8);
  const Physical one = block();
  const Physical three = block(3);
  ASSERT_OK(range.map(2 * unit_, {three, one}));
  const gpumem_range_info info = range.info();
  EXPECT_EQ(info.mapped_size, 4 * unit_);
  EXPECT_EQ(info.mapping_count, 2u);
  for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, 3 * unit_ - 1}) {
    const gpumem_mapping_info mapping = mapping_at(instance_, range.base() + 2 * unit_ + offset);
    EXPECT_EQ(mapping.range, range.get());
    EXPECT_EQ(mapping.base, range.base() + 2 * unit_);
    EXPECT_EQ(mapping.size, 3 * unit_);
    EXPECT_EQ(mapping.block_id, three.info().block_id);
    EXPECT_EQ(mapping.location, GPUMEM_LOCATION_DEVICE);
    EXPECT_EQ(mapping.location_id, 0);
  }
  EXPECT_EQ(mapping_at(instance_, range.base() + 5 * unit_).block_id, one.info().block_id);
}

TEST_F(Vmm, vmm_10_bad_places) {
  const Range range = this->range(4);
  const Physical one = block();
  const Physical two = block(2);
  const auto expect = [&](gpumem_status status, uint64_t offset,
                          std::initializer_list<gpumem_physical> blocks) {
    EXPECT_STATUS(status, range.map(offset, blocks)) << offset;
    EXPECT_TRUE(layout_of(range) == (Layout{0, 0}));
  };
  for (const uint64_t offset : {uint64_t{1}, unit_ / 2, unit_ - 1, unit_ + page_size() / 2})
    expect(GPUMEM_ERROR_INVALID_ARGUMENT, offset, {one});
  for (const uint64_t offset : {4 * unit_, 5 * unit_, uint64_t{1} << 62, UINT64_MAX - unit_ + 1})
    expect(GPUMEM_ERROR_INVALID_ARGUMENT, offset, {one});
  expect(GPUMEM_ERROR_INVALID_ARGUMENT, 3 * unit_, {two});
  expect(GPUMEM_ERROR_INVALID_ARGUMENT, 0, {two, two, one});
  expect(GPUMEM_ERROR_INVALID_ARGUMENT, 0, {});
  expect(GPUMEM_ERROR_INVALID_ARGUMENT, 0, {one, nullptr});
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_range_map(range, 0, nullptr, 1, why()));
  const gpumem_physical one_handle = one;
  for (const uint64_t count : {UINT64_MAX, uint64_t{1} << 61})
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_range_map(range, 0, &one_handle, count, why()));
  EXPECT_TRUE(layout_of(range) == (Layout{0, 0}));
}

TEST_F(Vmm, vmm_10_handles_that_are_not_blocks_of_the_instance) {
  const Range range = this->range(4);
  const Physical one = block();
  const auto expect = [&](gpumem_status status, gpumem_physical wrong) {
    EXPECT_STATUS(status, range.map(0, {one, wrong}));
    EXPECT_STATUS(status, range.map(0, {wrong}));
    EXPECT_TRUE(layout_of(range) == (Layout{0, 0}));
  };
  Physical gone = block();
  const gpumem_physical stale = gone;
  gone.destroy();
  expect(GPUMEM_ERROR_STALE_HANDLE, stale);
  const Memory memory = alloc_device(device_, 4096);
  expect(GPUMEM_ERROR_INVALID_ARGUMENT, reinterpret_cast<gpumem_physical>(range.get()));
  expect(GPUMEM_ERROR_INVALID_ARGUMENT, reinterpret_cast<gpumem_physical>(memory.get()));
  expect(GPUMEM_ERROR_INVALID_ARGUMENT, reinterpret_cast<gpumem_physical>(uintptr_t{0x1234}));
  const Instance other = on_host() ? open_small_units() : open_instance();
  const Physical theirs = create_physical(other.device(), physical_desc(unit_));
  expect(GPUMEM_ERROR_INVALID_ARGUMENT, theirs);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_range_unmap(reinterpret_cast<gpumem_range>(one.get()), 0, unit_, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_physical_release(reinterpret_cast<gpumem_physical>(range.get()), why()));
}

TEST_F(Vmm, vmm_11_nothing_over_a_mapping) {
  const Physical one = block();
  const Physical two = block(2);
  const Physical other = block();
  const Range range = this->range(6);
  ASSERT_OK(range.map(2 * unit_, {two}));
  ASSERT_OK(range.set_access(2 * unit_, 2 * unit_, {device_rights(0)}));
  put_pattern(instance_, range.base() + 2 * unit_, 2 * unit_, 1);
  const Layout before = layout_of(range);
  EXPECT_STATUS(GPUMEM_ERROR_ALREADY_EXISTS, range.map(2 * unit_, {two}));
  EXPECT_STATUS(GPUMEM_ERROR_ALREADY_EXISTS, range.map(2 * unit_, {other}));
  EXPECT_STATUS(GPUMEM_ERROR_ALREADY_EXISTS, range.map(3 * unit_, {other}));
  EXPECT_STATUS(GPUMEM_ERROR_ALREADY_EXISTS, range.map(unit_, {two}));
  EXPECT_STATUS(GPUMEM_ERROR_ALREADY_EXISTS, range.map(3 * unit_, {two}));
  EXPECT_STATUS(GPUMEM_ERROR_ALREADY_EXISTS, range.map(0, {one, other, one, other}));
  EXPECT_TRUE(layout_of(range) == before);
  EXPECT_TRUE(holds_pattern(instance_, range.base() + 2 * unit_, 2 * unit_, 1));
  EXPECT_EQ(device_access(instance_, range.base() + 3 * unit_, 0), GPUMEM_ACCESS_READWRITE);
  EXPECT_OK(range.map(0, {one, other}));
  EXPECT_OK(range.map(4 * unit_, {two}));
}

TEST_F(Vmm, vmm_12_a_fresh_mapping_has_no_access) {
  const Physical one = block();
  const Physical neighbour = block();
  const Range range = mapped({neighbour}, 2);
  std::vector<uint8_t> bytes(64, 5);
  const Stream stream = create_stream(device_);
  uint8_t* const fresh = range.base() + unit_;
  for (int round = 0; round < 2; ++round) {
    ASSERT_OK(range.map(unit_, {one}));
    expect_no_access(fresh);
    expect_no_access(fresh + unit_ - 1);
    EXPECT_TRUE(read_faults(fresh));
    for (const gpumem_stream order : {gpumem_stream{nullptr}, stream.get()}) {
      EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, copy(bytes.data(), fresh, 64, order));
      EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, copy(fresh, bytes.data(), 64, order));
      EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, fill(fresh, 64, 1, order));
    }
    EXPECT_EQ(device_access(instance_, range.base(), 0), GPUMEM_ACCESS_READWRITE);
    ASSERT_OK(range.set_access(unit_, unit_, {device_rights(0)}));
    EXPECT_OK(fill(fresh, unit_));
    ASSERT_OK(range.unmap(unit_, unit_));
  }
  EXPECT_EQ(bytes[0], 5);
}

// ---- access ----

TEST_F(Vmm, vmm_13_access_of_several_processors) {
  const bool host = has(GPUMEM_CAPABILITY_VMM_HOST);
  const Physical one = block(1, host ? GPUMEM_LOCATION_HOST : GPUMEM_LOCATION_DEVICE);
  const Range range = this->range(1);
  ASSERT_OK(range.map(0, {one}));
  const auto now = [&](uint32_t ordinal) { return device_access(instance_, range.base(), ordinal); };
  ASSERT_OK(range.set_access(0, unit_, {device_rights(0, GPUMEM_ACCESS_READ)}));
  EXPECT_EQ(now(0), GPUMEM_ACCESS_READ);
  ASSERT_OK(range.set_access(0, unit_, {device_rights(0)}));
  EXPECT_EQ(now(0), GPUMEM_ACCESS_READWRITE);
  ASSERT_OK(range.set_access(0, unit_, {device_rights(0, GPUMEM_ACCESS_NONE)}));
  EXPECT_EQ(now(0), GPUMEM_ACCESS_NONE);
  if (second_device() == nullptr || !host) return;
  ASSERT_OK(range.set_access(
      0, unit_, {device_rights(0), cpu_rights(GPUMEM_ACCESS_READ), device_rights(1, GPUMEM_ACCESS_READ)}));
  EXPECT_EQ(now(0), GPUMEM_ACCESS_READWRITE);
  EXPECT_EQ(now(1), GPUMEM_ACCESS_READ);
  EXPECT_EQ(cpu_access(instance_, range.base()), GPUMEM_ACCESS_READ);
  // Who is not named keeps what it has.
  ASSERT_OK(range.set_access(0, unit_, {device_rights(1, GPUMEM_ACCESS_NONE)}));
  EXPECT_EQ(now(0), GPUMEM_ACCESS_READWRITE);
  EXPECT_EQ(now(1), GPUMEM_ACCESS_NONE);
  EXPECT_EQ(cpu_access(instance_, range.base()), GPUMEM_ACCESS_READ);
}

TEST_F(Vmm, vmm_13_all_or_nothing) {
  const Physical one = block();
  const Range range = mapped({one}, 1, GPUMEM_ACCESS_READ);
  const gpumem_access_desc good = device_rights(0);
  const auto refused = [&](const gpumem_access_desc& wrong) {
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, range.set_access(0, unit_, {wrong}));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, range.set_access(0, unit_, {good, wrong}));
    EXPECT_EQ(device_access(instance_, range.base(), 0), GPUMEM_ACCESS_READ);
  };
  for (const gpumem_access access : {2, GPUMEM_ACCESS_UNKNOWN, 7, -1, INT32_MAX})
    refused(device_rights(0, access));
  for (const uint32_t ordinal : {instance_.device_count(), 63u, UINT32_MAX})
    refused(device_rights(ordinal));
  gpumem_access_desc wrong = device_rights(0);
  for (const gpumem_location location :
       {GPUMEM_LOCATION_NONE, GPUMEM_LOCATION_HOST_NUMA, GPUMEM_LOCATION_HOST_NUMA_CURRENT, 9, -1}) {
    wrong.location = location;
    refused(wrong);
  }
  wrong = device_rights(0);
  wrong.reserved = 1;
  refused(wrong);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, range.set_access(0, unit_, {good, good}));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, range.set_access(0, unit_, {}));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_range_set_access(range, 0, unit_, nullptr, 1, why()));
  for (const size_t size : {size_t{0}, size_t{1}, sizeof(gpumem_access_desc) - 1, SIZE_MAX}) {
    wrong = device_rights(0);
    wrong.struct_size = size;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, range.set_access(0, unit_, {wrong}));
  }
  for (const uint64_t count : {UINT64_MAX, uint64_t{1} << 61})
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_range_set_access(range, 0, unit_, &good, count, why()));
  EXPECT_EQ(device_access(instance_, range.base(), 0), GPUMEM_ACCESS_READ);
}

TEST_F(Vmm, vmm_13_a_larger_struct_of_a_newer_caller) {
  struct Newer {
    gpumem_access_desc known;
    uint64_t unknown;
  };
  const Physical one =
      block(1, has(GPUMEM_CAPABILITY_VMM_HOST) ? GPUMEM_LOCATION_HOST : GPUMEM_LOCATION_DEVICE);
  const Range range = this->range(1);
  ASSERT_OK(range.map(0, {one}));
  std::vector<Newer> both = {{device_rights(0, GPUMEM_ACCESS_READ), 0}};
  if (has(GPUMEM_CAPABILITY_VMM_HOST)) both.push_back({cpu_rights(), 0});
  for (Newer& each : both)
    each.known.struct_size = sizeof each;
  EXPECT_OK(gpumem_range_set_access(range, 0, unit_, &both[0].known, both.size(), why()));
  EXPECT_EQ(device_access(instance_, range.base(), 0), GPUMEM_ACCESS_READ);
  // A size at which the next entry would not be aligned.
  both[0].known.struct_size = sizeof(gpumem_access_desc) + 1;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_range_set_access(range, 0, unit_, &both[0].known, 1, why()));
  EXPECT_NE(std::strstr(last_error().message, "odd"), nullptr) << last_error().message;
  both[0].known.struct_size = sizeof(Newer);
  both.back().unknown = 1;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_range_set_access(range, 0, unit_, &both[0].known, both.size(), why()));
}

TEST_F(Vmm, vmm_13_undone_when_a_step_fails) {
  if (!Faults::available()) SKIP_RULE("driver calls of a real GPU cannot be made to fail");
  const Physical one = block(1, GPUMEM_LOCATION_HOST);
  const Physical two = block(2, GPUMEM_LOCATION_HOST);
  const Range range = this->range(3);
  ASSERT_OK(range.map(0, {one, two}));
  ASSERT_OK(range.set_access(0, 3 * unit_, {device_rights(0, GPUMEM_ACCESS_READ)}));
  int failures = 0;
  for (uint64_t k = 1; k <= 20; ++k) {
    SCOPED_TRACE(k);
    Faults faults(instance_);
    faults.fail_step(k);
    const gpumem_status status = range.set_access(0, 3 * unit_, {device_rights(0), cpu_rights()});
    faults.off();
    const bool done = status == GPUMEM_SUCCESS;
    failures += done ? 0 : 1;
    for (const uint64_t offset : {uint64_t{0}, unit_, 3 * unit_ - 1}) {
      EXPECT_EQ(device_access(instance_, range.base() + offset, 0),
                done ? GPUMEM_ACCESS_READWRITE : GPUMEM_ACCESS_READ);
      EXPECT_EQ(cpu_access(instance_, range.base() + offset),
                done ? GPUMEM_ACCESS_READWRITE : GPUMEM_ACCESS_NONE);
      EXPECT_EQ(read_faults(range.base() + offset), !done);
    }
    if (done) {
      ASSERT_OK(range.set_access(0, 3 * unit_,
                                 {device_rights(0, GPUMEM_ACCESS_READ), cpu_rights(GPUMEM_ACCESS_NONE)}));
    }
  }
  EXPECT_GE(failures, 1);
}

// A busy driver is asked 100 times.
constexpr int kNotReady = 600;
constexpr uint64_t kTries = 100;

TEST_F(Vmm, vmm_13_a_busy_driver) {
  if (!on_fake_cuda()) SKIP_RULE("only the fake driver can be told to be busy");
  const Physical one = block();
  const Range range = this->range(1);
  ASSERT_OK(range.map(0, {one}));
  Faults faults(instance_);
  for (const uint64_t refusals : {uint64_t{1}, kTries - 1}) {
    SCOPED_TRACE(refusals);
    Faults::fail_driver_calls("cuMemSetAccess", kNotReady, 1, refusals);
    EXPECT_OK(range.set_access(0, unit_, {device_rights(0)}));
    EXPECT_EQ(device_access(instance_, range.base(), 0), GPUMEM_ACCESS_READWRITE);
    EXPECT_OK(fill(range.base(), unit_));
    faults.off();
    ASSERT_OK(range.set_access(0, unit_, {device_rights(0, GPUMEM_ACCESS_NONE)}));
  }
  Faults::fail_driver_calls("cuMemSetAccess", kNotReady, 1, kTries);
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, range.set_access(0, unit_, {device_rights(0)}));
  EXPECT_EQ(last_error().native_code, kNotReady);
  EXPECT_EQ(device_access(instance_, range.base(), 0), GPUMEM_ACCESS_NONE);
  EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, fill(range.base(), unit_));
  faults.off();
  EXPECT_OK(range.set_access(0, unit_, {device_rights(0)}));
}

// What a call has done before the driver got busy is undone.
TEST_F(Vmm, vmm_13_a_driver_that_gets_busy) {
  if (!on_fake_cuda()) SKIP_RULE("only the fake driver can be told to be busy");
  // The CPU's rights to memory of different locations take a call each.
  const Physical one = block(1, GPUMEM_LOCATION_HOST);
  const Physical two = block(1, GPUMEM_LOCATION_HOST_NUMA);
  const Range range = this->range(2);
  ASSERT_OK(range.map(0, {one, two}));
  ASSERT_OK(range.set_access(0, 2 * unit_, {device_rights(0, GPUMEM_ACCESS_READ)}));
  Faults faults(instance_);
  Faults::fail_driver_calls("cuMemSetAccess", kNotReady, 2, kTries);
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, range.set_access(0, 2 * unit_, {device_rights(0), cpu_rights()}));
  faults.off();
  for (const uint64_t offset : {uint64_t{0}, unit_}) {
    EXPECT_EQ(device_access(instance_, range.base() + offset, 0), GPUMEM_ACCESS_READ);
    EXPECT_EQ(cpu_access(instance_, range.base() + offset), GPUMEM_ACCESS_NONE);
    EXPECT_TRUE(read_faults(range.base() + offset));
  }
  EXPECT_OK(range.set_access(0, 2 * unit_, {device_rights(0), cpu_rights()}));
  EXPECT_FALSE(read_faults(range.base() + unit_));
}

TEST_F(Vmm, vmm_14_whole_mappings) {
  const Physical one = block();
  const Physical two = block(2);
  const Range range = this->range(8);
  ASSERT_OK(range.map(0, {two, one, two}));  // 0-2, 2-3, 3-5; 5-8 is free
  ASSERT_OK(range.map(6 * unit_, {one}));
  const auto refused = [&](gpumem_status status, uint64_t offset, uint64_t size) {
    SCOPED_TRACE(testing::Message() << offset << ", " << size);
    EXPECT_STATUS(status, range.set_access(offset, size, {device_rights(0)}));
    for (uint64_t i = 0; i < 8; ++i)
      EXPECT_EQ(device_access(instance_, range.base() + i * unit_, 0), GPUMEM_ACCESS_NONE);
  };
  refused(GPUMEM_ERROR_INVALID_ARGUMENT, 0, unit_);
  refused(GPUMEM_ERROR_INVALID_ARGUMENT, unit_, unit_);
  refused(GPUMEM_ERROR_INVALID_ARGUMENT, unit_, 2 * unit_);
  refused(GPUMEM_ERROR_INVALID_ARGUMENT, 2 * unit_, 2 * unit_);
  refused(GPUMEM_ERROR_INVALID_ARGUMENT, 0, 2 * unit_ - 1);
  refused(GPUMEM_ERROR_INVALID_ARGUMENT, 1, unit_);
  refused(GPUMEM_ERROR_INVALID_ARGUMENT, 0, 0);
  refused(GPUMEM_ERROR_INVALID_ARGUMENT, 6 * unit_, 3 * unit_);
  refused(GPUMEM_ERROR_INVALID_ARGUMENT, UINT64_MAX - unit_ + 1, 2 * unit_);
  refused(GPUMEM_ERROR_INVALID_ARGUMENT, 9 * unit_, unit_);
  refused(GPUMEM_ERROR_INVALID_STATE, 5 * unit_, unit_);
  refused(GPUMEM_ERROR_INVALID_STATE, 3 * unit_, 3 * unit_);
  refused(GPUMEM_ERROR_INVALID_STATE, 3 * unit_, 4 * unit_);
  refused(GPUMEM_ERROR_INVALID_STATE, 5 * unit_, 2 * unit_);
  EXPECT_OK(range.set_access(2 * unit_, unit_, {device_rights(0, GPUMEM_ACCESS_READ)}));
  EXPECT_OK(range.set_access(0, 5 * unit_, {device_rights(0)}));
  for (uint64_t i = 0; i < 5; ++i)
    EXPECT_EQ(device_access(instance_, range.base() + i * unit_, 0), GPUMEM_ACCESS_READWRITE);
}

TEST_F(Vmm, vmm_15_operations_need_rights) {
  const Physical one = block();
  const Range range = mapped({one}, 1);
  put_pattern(instance_, range.base(), unit_, 1);
  ASSERT_OK(range.set_access(0, unit_, {device_rights(0, GPUMEM_ACCESS_READ)}));
  const Memory pinned = alloc_pinned(device_, unit_);
  const Memory other = alloc_device(device_, unit_);
  const Stream stream = create_stream(device_);
  for (const gpumem_stream order : {gpumem_stream{nullptr}, stream.get()}) {
    EXPECT_OK(copy(pinned.host(), range.base(), unit_, order));
    EXPECT_OK(copy(other.device(), range.base(), unit_, order));
    EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, copy(range.base(), other.device(), unit_, order));
    EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, copy(range.base() + 100, pinned.host(), 100, order));
    EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, fill(range.base(), 100, 1, order));
    EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS,
                  fill_2d_on(instance_, order, range.base(), 100, 50, 10, 0, 1, why()));
    EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, copy_2d_on(instance_, order, range.base(), 100, other.device(), 100,
                                                     50, 10, nullptr, why()));
    gpumem_copy_region region = GPUMEM_COPY_REGION_INIT;
    region.destination.pointer = range.base();
    region.source.pointer = other.device();
    region.width = 100;
    uint64_t failed = 77;
    EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, copy_regions_on(instance_, order, &region, 1, &failed, why()));
    EXPECT_EQ(failed, 0u);
  }
  stream.synchronize();
  EXPECT_TRUE(has_pattern(pinned.host(), unit_, 1));
  EXPECT_TRUE(holds_pattern(instance_, other.device(), unit_, 1));
  EXPECT_TRUE(holds_pattern(instance_, range.base(), unit_, 1));

  if (second_device() == nullptr) return;
  // It is the device of the stream that needs them.
  const Stream theirs = create_stream(second_device());
  EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, copy(pinned.host(), range.base(), unit_, theirs));
  ASSERT_OK(range.set_access(0, unit_, {device_rights(0, GPUMEM_ACCESS_NONE)}));
  EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, copy(pinned.host(), range.base(), unit_, stream));
}

TEST_F(Vmm, vmm_15_reserved_addresses_have_no_memory) {
  const Physical one = block();
  const Range range = mapped({one}, 2);
  uint8_t* const hole = range.base() + unit_;
  const Memory pinned = alloc_pinned(device_, unit_);
  const Stream stream = create_stream(device_);
  char said[64];
  std::snprintf(said, sizeof said, "nothing is mapped at %p, offset %llu of its range",
                static_cast<void*>(hole), static_cast<unsigned long long>(unit_));
  const auto expect_said = [&](gpumem_status expected, gpumem_status status) {
    EXPECT_STATUS(expected, status);
    const std::string message = last_error().message;
    EXPECT_NE(message.find(said), std::string::npos) << message;
    EXPECT_NE(message.find("gpumem_range_map()"), std::string::npos) << message;
  };
  constexpr gpumem_status kNone = GPUMEM_ERROR_INVALID_STATE;
  expect_said(kNone, copy(hole, pinned.host(), unit_));
  expect_said(kNone, copy(pinned.host(), hole, unit_, stream));
  expect_said(kNone, fill(hole, unit_));
  expect_said(kNone, range.unmap(unit_, unit_));
  expect_said(kNone, range.set_access(unit_, unit_, {device_rights(0)}));
  gpumem_mapping_info info = GPUMEM_MAPPING_INFO_INIT;
  expect_said(kNone, gpumem_range_get_mapping(instance_, hole, &info, why()));
  void* pointer = nullptr;
  expect_said(GPUMEM_ERROR_NOT_FOUND, gpumem_pointer_get_device_pointer(device_, hole, &pointer, why()));
  gpumem_share_handle handle{};
  expect_said(kNone, gpumem_share_export(instance_, hole, nullptr, &handle, why()));
  int32_t descriptor = -1;
  expect_said(kNone, gpumem_share_export_dma_buf(instance_, hole, unit_, 0, &descriptor, why()));
  if (capability(device_, GPUMEM_CAPABILITY_STREAM_VALUE32).value != GPUMEM_ANSWER_NO)
    expect_said(kNone, gpumem_stream_write_value(stream, hole, 1, 4, why()));
}

// A stand-in for a kernel that opens a view of one byte and adds 1 to it if it may write.
struct Touch {
  uint8_t* address;
  gpumem_access access;
  gpumem_status status = GPUMEM_SUCCESS;
  std::atomic<bool> ran{false};

  static void run(gpumem_host_kernel kernel, void* user_data) {
    auto& self = *static_cast<Touch*>(user_data);
    void* view = nullptr;
    self.status = gpumem_host_kernel_view(kernel, self.address, 1, self.access, &view, nullptr);
    if (self.status == GPUMEM_SUCCESS && self.access == GPUMEM_ACCESS_READWRITE)
      ++*static_cast<uint8_t*>(view);
    self.ran = true;
    self.ran.notify_all();
  }
};

TEST_F(Vmm, vmm_15_kernels) {
  if (!on_host()) SKIP_RULE("the library starts no kernels on cuda");
  struct Case {
    uint64_t units;  // where, in a range whose first unit is mapped
    gpumem_access granted;
    gpumem_access wanted;
    bool good;
  };
  for (const Case& each : {Case{0, GPUMEM_ACCESS_READWRITE, GPUMEM_ACCESS_READWRITE, true},
                           Case{0, GPUMEM_ACCESS_READ, GPUMEM_ACCESS_READ, true},
                           Case{0, GPUMEM_ACCESS_READ, GPUMEM_ACCESS_READWRITE, false},
                           Case{0, GPUMEM_ACCESS_NONE, GPUMEM_ACCESS_READ, false},
                           Case{1, GPUMEM_ACCESS_READWRITE, GPUMEM_ACCESS_READ, false}}) {
    SCOPED_TRACE(testing::Message() << each.granted << " is granted, " << each.wanted << " wanted");
    const Instance instance = open_small_units();
    const gpumem_device device = instance.device();
    const Physical one = create_physical(device, physical_desc(unit_));
    const Range range = reserve(instance, range_desc(2 * unit_));
    ASSERT_OK(range.map(0, {one}));
    ASSERT_OK(range.set_access(0, unit_, {device_rights(0)}));
    ASSERT_OK(gpumem_fill(instance, range.base(), unit_, 4, 1, why()));
    ASSERT_OK(range.set_access(0, unit_, {device_rights(0, each.granted)}));
    const Stream stream = create_stream(device);
    Touch touch{range.base() + each.units * unit_ + 9, each.wanted};
    ASSERT_OK(gpumem_host_launch(stream, Touch::run, &touch, why()));
    EXPECT_STATUS(each.good ? GPUMEM_SUCCESS : GPUMEM_ERROR_DEVICE_LOST,
                  gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()));
    touch.ran.wait(false);  // the kernel of a lost device is not waited for
    EXPECT_EQ(touch.status, each.good ? GPUMEM_SUCCESS : GPUMEM_ERROR_DEVICE_LOST);
    if (each.good) {
      uint8_t byte = 0;
      EXPECT_OK(gpumem_copy(instance, &byte, touch.address, 1, nullptr, why()));
      EXPECT_EQ(byte, each.wanted == GPUMEM_ACCESS_READWRITE ? 5 : 4);
    }
  }
}

TEST_F(Vmm, vmm_16_access_reads_back) {
  const Physical one = block();
  const Physical two = block(2);
  const Range range = this->range(4);
  ASSERT_OK(range.map(0, {one, two}));
  ASSERT_OK(range.set_access(0, unit_, {device_rights(0, GPUMEM_ACCESS_READ)}));
  ASSERT_OK(range.set_access(unit_, 2 * unit_, {device_rights(0)}));
  for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, unit_ - 1})
    EXPECT_EQ(device_access(instance_, range.base() + offset, 0), GPUMEM_ACCESS_READ);
  for (const uint64_t offset : {unit_, unit_ + 77, 3 * unit_ - 1})
    EXPECT_EQ(device_access(instance_, range.base() + offset, 0), GPUMEM_ACCESS_READWRITE);
  for (uint32_t ordinal = 1; ordinal < instance_.device_count(); ++ordinal)
    EXPECT_EQ(device_access(instance_, range.base() + unit_, ordinal), GPUMEM_ACCESS_NONE);
  EXPECT_EQ(cpu_access(instance_, range.base()), GPUMEM_ACCESS_NONE);
  expect_no_access(range.base() + 3 * unit_);

  gpumem_mapping_info info = GPUMEM_MAPPING_INFO_INIT;
  info.size = 77;
  const auto get = [&](const void* pointer) {
    return gpumem_range_get_mapping(instance_, pointer, &info, why());
  };
  const Memory memory = alloc_device(device_, 100);
  uint8_t heap = 0;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, get(range.base() + 3 * unit_));
  EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, get(memory.device()));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, get(&heap));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, get(nullptr));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_range_get_mapping(instance_, range.base(), nullptr, why()));
  EXPECT_EQ(info.size, 77u);
  info.struct_size = 3;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, get(range.base()));
}

TEST_F(Vmm, vmm_17_access_of_another_device) {
  const gpumem_device peer = second_device();
  if (peer == nullptr) SKIP_RULE("there is one device only");
  if (capability(peer, GPUMEM_CAPABILITY_PEER_ACCESS, device_).value == GPUMEM_ANSWER_NO)
    SKIP_RULE("there is no link between the first two devices");
  const Physical one = block();
  const Range range = mapped({one}, 1);
  // Peer access of DEV-7 is something else.
  ASSERT_OK(gpumem_device_enable_peer_access(peer, device_, why()));
  EXPECT_EQ(device_access(instance_, range.base(), 1), GPUMEM_ACCESS_NONE);
  ASSERT_OK(gpumem_device_disable_peer_access(peer, device_, why()));
  ASSERT_OK(range.set_access(0, unit_, {device_rights(1)}));
  EXPECT_EQ(device_access(instance_, range.base(), 1), GPUMEM_ACCESS_READWRITE);
  const Memory result = alloc_pinned(peer, unit_);
  const Stream theirs = create_stream(peer);
  EXPECT_OK(fill(range.base(), unit_, 0x3C, theirs));
  EXPECT_OK(copy(result.host(), range.base(), unit_, theirs));
  theirs.synchronize();
  EXPECT_EQ(std::count(result.host(), result.host() + unit_, 0x3C), static_cast<std::ptrdiff_t>(unit_));
  ASSERT_OK(gpumem_device_enable_peer_access(peer, device_, why()));
  ASSERT_OK(gpumem_device_disable_peer_access(peer, device_, why()));
  EXPECT_EQ(device_access(instance_, range.base(), 1), GPUMEM_ACCESS_READWRITE);
}

void check_no_link(const Instance& instance) {
  const uint64_t unit = common_unit(instance);
  const Physical one = create_physical(instance.device(0), physical_desc(unit));
  const Range range = reserve(instance, range_desc(unit));
  ASSERT_OK(range.map(0, {one}));
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, range.set_access(0, unit, {device_rights(1)}));
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, range.set_access(0, unit, {device_rights(0), device_rights(1)}));
  EXPECT_EQ(device_access(instance, range.base(), 0), GPUMEM_ACCESS_NONE) << "all or nothing";
  EXPECT_EQ(device_access(instance, range.base(), 1), GPUMEM_ACCESS_NONE);
  EXPECT_OK(range.set_access(0, unit, {device_rights(0)}));
}

CHILD(vmm_17_no_link) { check_no_link(open_instance()); }

TEST_F(Vmm, vmm_17_no_link) {
  if (on_host()) {
    const auto open_two = [](const char* peers) {
      return open_small_units([=](gpumem_instance_desc&, gpumem_host_options& host) {
        host.device_count = 2;
        host.peers = peers;
      });
    };
    check_no_link(open_two("none"));
    // One way only: device 0 may use the memory of device 1, and not the other way.
    const Instance one_way = open_two("0>1");
    check_no_link(one_way);
    const Physical theirs = create_physical(one_way.device(1), physical_desc(unit_));
    const Range range = reserve(one_way, range_desc(unit_));
    ASSERT_OK(range.map(0, {theirs}));
    EXPECT_OK(range.set_access(0, unit_, {device_rights(0)}));
  } else if (on_fake_cuda()) {
    EXPECT_CHILD_OK(run_child("vmm_17_no_link", {"FAKE_CUDA_DEVICES=2", "FAKE_CUDA_PEERS=none"}));
  } else {
    SKIP_RULE("the links of real GPUs cannot be chosen");
  }
}

TEST_F(Vmm, vmm_18_the_cpu_is_a_processor) {
  for (const gpumem_location location : {GPUMEM_LOCATION_HOST, GPUMEM_LOCATION_HOST_NUMA}) {
    SCOPED_TRACE(location);
    const gpumem_capability what =
        location == GPUMEM_LOCATION_HOST ? GPUMEM_CAPABILITY_VMM_HOST : GPUMEM_CAPABILITY_VMM_HOST_NUMA;
    if (!has(what)) continue;
    const Physical one = block(2, location);
    const Range range = this->range(3);
    ASSERT_OK(range.map(unit_, {one}));
    uint8_t* const base = range.base() + unit_;
    ASSERT_OK(range.set_access(unit_, 2 * unit_, {device_rights(0)}));
    put_pattern(instance_, base, 2 * unit_, 1);
    EXPECT_TRUE(read_faults(base));
    EXPECT_EQ(pointer_info(instance_, base).host_pointer, nullptr);
    ASSERT_OK(range.set_access(unit_, 2 * unit_, {cpu_rights(GPUMEM_ACCESS_READ)}));
    EXPECT_FALSE(read_faults(base));
    EXPECT_TRUE(write_faults(base + 2 * unit_ - 1));
    EXPECT_TRUE(has_pattern(base, 2 * unit_, 1));
    EXPECT_EQ(pointer_info(instance_, base + 9).host_pointer, base + 9);
    ASSERT_OK(range.set_access(unit_, 2 * unit_, {cpu_rights()}));
    fill_pattern(base, 2 * unit_, 2);
    EXPECT_TRUE(holds_pattern(instance_, base, 2 * unit_, 2));
    EXPECT_TRUE(read_faults(base - 1));
    ASSERT_OK(range.set_access(unit_, 2 * unit_, {cpu_rights(GPUMEM_ACCESS_NONE)}));
    EXPECT_TRUE(read_faults(base));
    EXPECT_TRUE(holds_pattern(instance_, base, 2 * unit_, 2));
    ASSERT_OK(range.set_access(unit_, 2 * unit_, {cpu_rights()}));
    ASSERT_OK(range.unmap(unit_, 2 * unit_));
    EXPECT_TRUE(read_faults(base));
  }
}

TEST_F(Vmm, vmm_18_not_memory_of_a_device) {
  const Physical one = block();
  const Range range = mapped({one}, 1);
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, range.set_access(0, unit_, {cpu_rights()}));
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED,
                range.set_access(0, unit_, {device_rights(0, GPUMEM_ACCESS_READ), cpu_rights()}));
  EXPECT_EQ(device_access(instance_, range.base(), 0), GPUMEM_ACCESS_READWRITE);
  EXPECT_EQ(cpu_access(instance_, range.base()), GPUMEM_ACCESS_NONE);
  EXPECT_TRUE(read_faults(range.base()));
  EXPECT_TRUE(write_faults(range.base() + unit_ - 1));
  EXPECT_EQ(pointer_info(instance_, range.base()).host_pointer, nullptr);
}

// ---- unmapping ----

TEST_F(Vmm, vmm_19_whole_mappings) {
  const Physical one = block();
  const Physical two = block(2);
  const Range range = this->range(8);
  ASSERT_OK(range.map(0, {two, one, two}));  // 0-2, 2-3, 3-5
  ASSERT_OK(range.map(6 * unit_, {one}));
  const Layout before = layout_of(range);
  const auto refused = [&](gpumem_status status, uint64_t offset, uint64_t size) {
    EXPECT_STATUS(status, range.unmap(offset, size)) << offset << ", " << size;
    EXPECT_TRUE(layout_of(range) == before);
  };
  refused(GPUMEM_ERROR_INVALID_ARGUMENT, 0, unit_);
  refused(GPUMEM_ERROR_INVALID_ARGUMENT, unit_, unit_);
  refused(GPUMEM_ERROR_INVALID_ARGUMENT, 2 * unit_, 2 * unit_);
  refused(GPUMEM_ERROR_INVALID_ARGUMENT, 0, 2 * unit_ + 1);
  refused(GPUMEM_ERROR_INVALID_ARGUMENT, 0, 0);
  refused(GPUMEM_ERROR_INVALID_ARGUMENT, 6 * unit_, 3 * unit_);
  refused(GPUMEM_ERROR_INVALID_ARGUMENT, 0, UINT64_MAX - 1);
  refused(GPUMEM_ERROR_INVALID_ARGUMENT, 2 * unit_, GPUMEM_WHOLE_RANGE);
  refused(GPUMEM_ERROR_INVALID_ARGUMENT, UINT64_MAX - unit_ + 1, 2 * unit_);
  refused(GPUMEM_ERROR_INVALID_STATE, 5 * unit_, unit_);
  refused(GPUMEM_ERROR_INVALID_STATE, 7 * unit_, unit_);
  refused(GPUMEM_ERROR_INVALID_STATE, 0, 6 * unit_);
  refused(GPUMEM_ERROR_INVALID_STATE, 3 * unit_, 4 * unit_);
  EXPECT_OK(range.unmap(2 * unit_, 3 * unit_));
  EXPECT_TRUE(layout_of(range) == (Layout{3 * unit_, 2}));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, range.unmap(2 * unit_, 3 * unit_));
  EXPECT_TRUE(read_faults(range.base() + 2 * unit_));
  EXPECT_EQ(pointer_info(instance_, range.base() + 2 * unit_).location, GPUMEM_LOCATION_NONE);
  // It is a reservation again.
  EXPECT_OK(range.map(3 * unit_, {two, one}));
  EXPECT_OK(range.unmap(3 * unit_, 4 * unit_));
  EXPECT_OK(range.map(3 * unit_, {two, one}));
  // All of it, with holes, and then nothing.
  for (int i = 0; i < 2; ++i) {
    EXPECT_OK(range.unmap(0, GPUMEM_WHOLE_RANGE));
    EXPECT_TRUE(layout_of(range) == (Layout{0, 0}));
  }
}

TEST_F(Vmm, vmm_19_many_at_once) {
  const Physical one = block();
  const Range range = this->range(64);
  const std::vector<gpumem_physical> blocks(64, one);
  ASSERT_OK(gpumem_range_map(range, 0, blocks.data(), blocks.size(), why()));
  EXPECT_TRUE(layout_of(range) == (Layout{64 * unit_, 64}));
  ASSERT_OK(range.set_access(0, 64 * unit_, {device_rights(0)}));
  EXPECT_OK(range.unmap(0, 64 * unit_));
  EXPECT_TRUE(layout_of(range) == (Layout{0, 0}));
}

TEST_F(Vmm, vmm_20_work_must_have_been_observed) {
  const Physical one = block();
  const Physical two = block();
  const Range range = mapped({one, two}, 2);
  GatedStream stream(device_);
  ASSERT_OK(fill(range.base(), unit_, 0x31, stream));
  if (on_host()) {
    EXPECT_STATUS(GPUMEM_ERROR_BUSY, range.unmap(0, unit_));
    EXPECT_STATUS(GPUMEM_ERROR_BUSY, range.unmap(0, 2 * unit_));
    EXPECT_STATUS(GPUMEM_ERROR_BUSY, range.set_access(0, unit_, {device_rights(0, GPUMEM_ACCESS_READ)}));
    EXPECT_STATUS(GPUMEM_ERROR_BUSY, range.set_access(0, unit_, {device_rights(0, GPUMEM_ACCESS_NONE)}));
    EXPECT_TRUE(layout_of(range) == (Layout{2 * unit_, 2}));
    EXPECT_EQ(device_access(instance_, range.base(), 0), GPUMEM_ACCESS_READWRITE);
    // What nothing uses can go.
    EXPECT_OK(range.unmap(unit_, unit_));
    ASSERT_OK(range.map(unit_, {two}));
    if (second_device() != nullptr) {
      EXPECT_OK(range.set_access(0, unit_, {device_rights(1)}));
    }
  }
  stream.finish();
  EXPECT_OK(range.set_access(0, unit_, {device_rights(0, GPUMEM_ACCESS_READ)}));
  uint8_t byte = 0;
  EXPECT_OK(copy(&byte, range.base() + unit_ - 1, 1));
  EXPECT_EQ(byte, 0x31);
  EXPECT_OK(range.unmap(0, 2 * unit_));
}

TEST_F(Vmm, vmm_20_a_wait_of_a_stream_is_no_observation) {
  if (!on_host()) SKIP_RULE("not detected on cuda");
  const Physical one = block();
  const Range range = mapped({one}, 1);
  const Stream waiting = create_stream(device_);
  const Event event = create_event(device_);
  GatedStream stream(device_);
  ASSERT_OK(fill(range.base(), unit_, 1, stream));
  ASSERT_OK(gpumem_event_record(event, stream, why()));
  ASSERT_OK(gpumem_stream_wait_event(waiting, event, why()));
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, range.unmap(0, unit_));
  stream.open();
  // A synchronize of the stream that waits is one.
  waiting.synchronize();
  EXPECT_OK(range.unmap(0, unit_));
}

// ---- the life of blocks ----

TEST_F(Vmm, vmm_21_release_ends_the_handle_only) {
  const uint64_t before = free_bytes();
  Physical one = block(4);
  const gpumem_physical handle = one;
  const uint64_t id = one.info().block_id;
  const Range range = mapped({one}, 8);
  put_pattern(instance_, range.base(), 4 * unit_, 1);
  one.destroy();
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_physical_release(handle, why()));
  EXPECT_NE(std::string(last_error().message).find("was released"), std::string::npos);
  gpumem_physical_info info = GPUMEM_PHYSICAL_INFO_INIT;
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_physical_get_info(handle, &info, why()));
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, range.map(4 * unit_, {handle}));
  EXPECT_EQ(info.size, 0u);
  // The mapping goes on working.
  EXPECT_TRUE(holds_pattern(instance_, range.base(), 4 * unit_, 1));
  EXPECT_EQ(mapping_at(instance_, range.base()).block_id, id);
  EXPECT_OK(fill(range.base(), 4 * unit_));
  ASSERT_OK(range.set_access(0, 4 * unit_, {device_rights(0, GPUMEM_ACCESS_READ)}));
  if (Faults::available()) {
    EXPECT_EQ(free_bytes(), before - 4 * unit_);
  }
  ASSERT_OK(range.unmap(0, 4 * unit_));
  if (Faults::available()) {
    EXPECT_EQ(free_bytes(), before);
  }
  EXPECT_OK(gpumem_physical_release(nullptr, why()));
}

TEST_F(Vmm, vmm_21_freed_with_the_last_reference) {
  if (!Faults::available()) SKIP_RULE("on a real GPU others change the free memory");
  const uint64_t before = free_bytes();
  Physical one = block(4);
  const Range range = mapped({one, one}, 8);
  gpumem_physical retained = nullptr;
  ASSERT_OK(gpumem_physical_retain(instance_, range.base(), &retained, why()));
  Physical again(retained);
  one.destroy();
  ASSERT_OK(range.unmap(0, 4 * unit_));
  EXPECT_EQ(free_bytes(), before - 4 * unit_);
  ASSERT_OK(range.unmap(4 * unit_, 4 * unit_));
  EXPECT_EQ(free_bytes(), before - 4 * unit_) << "a handle is left";
  again.destroy();
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(Vmm, vmm_22_retain) {
  Physical one = block(2);
  const Physical other = block();
  const gpumem_physical_info before = one.info();
  const Range range = mapped({one, other}, 4);
  put_pattern(instance_, range.base(), 2 * unit_, 1);
  gpumem_physical handle = nullptr;
  ASSERT_OK(gpumem_physical_retain(instance_, range.base() + 2 * unit_ - 1, &handle, why()));
  Physical retained(handle);
  EXPECT_NE(retained.get(), one.get());
  const gpumem_physical_info info = retained.info();
  EXPECT_EQ(info.block_id, before.block_id);
  EXPECT_EQ(info.size, before.size);
  EXPECT_EQ(info.location, before.location);
  EXPECT_EQ(info.handle_types, before.handle_types);
  EXPECT_NE(info.block_id, other.info().block_id);
  one.destroy();
  ASSERT_OK(range.unmap(0, 2 * unit_));
  // The bytes live on, and can be mapped elsewhere.
  const Range again = mapped({retained}, 2);
  EXPECT_TRUE(holds_pattern(instance_, again.base(), 2 * unit_, 1));

  handle = nullptr;
  const Memory memory = alloc_device(device_, 100);
  uint8_t heap = 0;
  const auto retain = [&](const void* pointer) {
    return gpumem_physical_retain(instance_, pointer, &handle, why());
  };
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, retain(range.base()));
  EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, retain(memory.device()));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, retain(&heap));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, retain(nullptr));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_physical_retain(instance_, again.base(), nullptr, why()));
  EXPECT_EQ(handle, nullptr);
}

TEST_F(Vmm, vmm_23_release_of_a_range) {
  const Physical one = block();
  Range range = this->range(3);
  const gpumem_range handle = range;
  uint8_t* const base = range.base();
  ASSERT_OK(range.map(unit_, {one}));
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_range_release(handle, why()));
  EXPECT_TRUE(layout_of(range) == (Layout{unit_, 1}));
  EXPECT_EQ(mapping_at(instance_, base + unit_).base, base + unit_);
  ASSERT_OK(range.unmap(unit_, unit_));
  range.destroy();
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_range_release(handle, why()));
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_range_unmap(handle, 0, unit_, why()));
  gpumem_range_info info = GPUMEM_RANGE_INFO_INIT;
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_range_get_info(handle, &info, why()));
  EXPECT_EQ(info.size, 0u);
  EXPECT_EQ(pointer_info(instance_, base + unit_).kind, GPUMEM_KIND_UNKNOWN);
  EXPECT_OK(gpumem_range_release(nullptr, why()));
}

TEST_F(Vmm, com_12_a_range_is_not_freed_by_its_address) {
  const Physical one = block();
  const Range range = mapped({one}, 2);
  EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, gpumem_free(instance_, range.base(), why()));
  EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, gpumem_free(instance_, range.base() + unit_, why()));
  EXPECT_EQ(pointer_info(instance_, range.base()).kind, GPUMEM_KIND_VIRTUAL);
}

TEST_F(Vmm, pin_13_a_range_cannot_be_registered) {
  const bool host = has(GPUMEM_CAPABILITY_VMM_HOST);
  const Physical one = block(1, host ? GPUMEM_LOCATION_HOST : GPUMEM_LOCATION_DEVICE);
  const Range range = mapped({one}, 2);
  if (host) {
    ASSERT_OK(range.set_access(0, unit_, {cpu_rights()}));
  }
  for (uint8_t* const address : {range.base(), range.base() + unit_}) {
    EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, gpumem_register(device_, address, page_size(), 0, why()));
    const gpumem_register_desc desc = register_desc(address, page_size());
    gpumem_memory none = nullptr;
    EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, gpumem_memory_register(device_, &desc, &none, why()));
    EXPECT_EQ(none, nullptr);
  }
}

TEST_F(Vmm, vmm_24_aliases) {
  const Physical one = block(2);
  const Range range = mapped({one, one}, 4);
  uint8_t* const first = range.base();
  uint8_t* const second = range.base() + 2 * unit_;
  EXPECT_EQ(mapping_at(instance_, first).block_id, mapping_at(instance_, second).block_id);
  put_pattern(instance_, first, 2 * unit_, 1);
  EXPECT_TRUE(holds_pattern(instance_, second, 2 * unit_, 1));
  const Memory pinned = alloc_pinned(device_, unit_);
  const Stream stream = create_stream(device_);
  EXPECT_OK(fill(second, unit_, 0x44, stream));
  EXPECT_OK(copy(pinned.host(), first, unit_, stream));
  stream.synchronize();
  EXPECT_EQ(std::count(pinned.host(), pinned.host() + unit_, 0x44), static_cast<std::ptrdiff_t>(unit_));
  // Each has its own access.
  ASSERT_OK(range.set_access(2 * unit_, 2 * unit_, {device_rights(0, GPUMEM_ACCESS_READ)}));
  EXPECT_EQ(device_access(instance_, first, 0), GPUMEM_ACCESS_READWRITE);
  EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, fill(second, unit_));
  EXPECT_OK(fill(first, unit_));
  // One goes, the other stays.
  ASSERT_OK(range.unmap(0, 2 * unit_));
  uint8_t byte = 0;
  EXPECT_OK(copy(&byte, second, 1));
  EXPECT_EQ(byte, 7);
}

// ---- sharing ----

// A block of two units with a pattern in it, exported.
struct Exported {
  Physical physical;
  File file;
};
Exported make_exported(const Instance& instance, gpumem_device device, const gpumem_physical_desc& desc,
                       uint32_t seed) {
  Physical physical = create_physical(device, desc);
  const Range range = reserve(instance, range_desc(desc.size));
  EXPECT_OK(range.map(0, {physical}));
  EXPECT_OK(range.set_access(0, desc.size, {device_rights(ordinal_of(device))}));
  put_pattern(instance, range.base(), desc.size, seed);
  File file = export_fd(physical);
  return {std::move(physical), std::move(file)};
}

void expect_pattern_in(const Instance& instance, gpumem_physical physical, uint64_t size, uint32_t seed) {
  const Range range = reserve(instance, range_desc(size));
  ASSERT_OK(range.map(0, {physical}));
  for (uint32_t ordinal = 0; ordinal < instance.device_count(); ++ordinal)
    EXPECT_EQ(device_access(instance, range.base(), ordinal), GPUMEM_ACCESS_NONE);
  ASSERT_OK(range.set_access(0, size, {device_rights(0)}));
  EXPECT_TRUE(holds_pattern(instance, range.base(), size, seed));
}

#define REQUIRE_DESCRIPTORS()                                    \
  if (!has(GPUMEM_CAPABILITY_VMM_HANDLE_POSIX_FD)) {             \
    SKIP_RULE("physical memory cannot be shared by descriptor"); \
  }

TEST_F(Vmm, vmm_25_export_and_import) {
  REQUIRE_DESCRIPTORS();
  for (const gpumem_location location : {GPUMEM_LOCATION_DEVICE, GPUMEM_LOCATION_HOST_NUMA}) {
    if (location == GPUMEM_LOCATION_HOST_NUMA && !has(GPUMEM_CAPABILITY_VMM_HOST_NUMA)) continue;
    SCOPED_TRACE(location);
    const gpumem_physical_desc desc = physical_desc(2 * unit_, location, GPUMEM_HANDLE_TYPE_POSIX_FD);
    Exported exported = make_exported(instance_, device_, desc, 1);
    EXPECT_NE(fcntl(exported.file, F_GETFD) & FD_CLOEXEC, 0) << "closed on exec";
    const Physical imported = import_fd(device_, desc, exported.file);
    EXPECT_GE(fcntl(exported.file, F_GETFD), 0) << "it stays the caller's";
    expect_pattern_in(instance_, imported, 2 * unit_, 1);
    // The memory outlives the handle and the descriptor that it came from.
    exported.physical.destroy();
    expect_pattern_in(instance_, imported, 2 * unit_, 1);
    const Physical late = import_fd(device_, desc, exported.file);
    expect_pattern_in(instance_, late, 2 * unit_, 1);
  }
  int32_t file = -7;
  const Physical undeclared = block();
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_physical_export_fd(undeclared, &file, why()));
  EXPECT_EQ(file, -7);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_physical_export_fd(undeclared, nullptr, why()));
}

TEST_F(Vmm, vmm_25_not_declared) {
  const Physical plain = block();
  int32_t file = -7;
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_physical_export_fd(plain, &file, why()));
  EXPECT_EQ(file, -7);
}

TEST_F(Vmm, vmm_25_descriptors_of_something_else) {
  const gpumem_physical_desc desc = physical_desc(unit_, GPUMEM_LOCATION_DEVICE, GPUMEM_HANDLE_TYPE_POSIX_FD);
  gpumem_physical none = nullptr;
  if (!has(GPUMEM_CAPABILITY_VMM_HANDLE_POSIX_FD)) {
    EXPECT_STATUS(capability(device_, GPUMEM_CAPABILITY_VMM_HANDLE_POSIX_FD).status,
                  gpumem_physical_import_fd(device_, &desc, 0, &none, why()));
    return;
  }
  const Counters before = counters(instance_);
  const auto refused = [&](const char* what, int file) {
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_physical_import_fd(device_, &desc, file, &none, why()))
        << what;
    EXPECT_EQ(none, nullptr) << what;
    EXPECT_TRUE(counters(instance_) == before) << what;
  };
  refused("negative", -1);
  refused("out of range", INT32_MAX);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  refused("pipe", ends[0]);
  close(ends[0]);
  close(ends[1]);
  refused("closed", ends[0]);
  const File directory(open("/proc/self", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  refused("directory", directory);
  const File ordinary(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  refused("ordinary file", ordinary);
  const File null(open("/dev/null", O_RDWR | O_CLOEXEC));
  refused("/dev/null", null);
  const File other(memfd_create("other", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(other, static_cast<off_t>(unit_ / 2)), 0);
  refused("memfd of another size", other);
}

TEST_F(Vmm, vmm_25_bad_imports) {
  REQUIRE_DESCRIPTORS();
  const gpumem_physical_desc good =
      physical_desc(2 * unit_, GPUMEM_LOCATION_DEVICE, GPUMEM_HANDLE_TYPE_POSIX_FD);
  const Exported exported = make_exported(instance_, device_, good, 1);
  gpumem_physical none = nullptr;
  const auto refused = [&](const gpumem_physical_desc& desc) {
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_physical_import_fd(device_, &desc, exported.file, &none, why()));
    EXPECT_EQ(none, nullptr);
  };
  for (const uint64_t size : {uint64_t{0}, unit_ + 1, uint64_t{1} << 63}) {
    gpumem_physical_desc desc = good;
    desc.size = size;
    refused(desc);
  }
  gpumem_physical_desc desc = good;
  desc.require = GPUMEM_PHYSICAL_COMPRESSIBLE;
  refused(desc);
  desc = good;
  desc.prefer = GPUMEM_PHYSICAL_RDMA;
  refused(desc);
  desc = good;
  desc.location = GPUMEM_LOCATION_HOST;
  refused(desc);
  desc.location = 17;
  refused(desc);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_physical_import_fd(device_, nullptr, exported.file, &none, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_physical_import_fd(device_, &good, exported.file, nullptr, why()));
  // Another size than that of the memory: seen at once, or when it is mapped.
  for (const uint64_t units : {1u, 4u}) {
    desc = good;
    desc.size = units * unit_;
    const gpumem_status status = gpumem_physical_import_fd(device_, &desc, exported.file, &none, why());
    EXPECT_STATUS_IN(status, GPUMEM_SUCCESS, GPUMEM_ERROR_INVALID_ARGUMENT);
    if (status != GPUMEM_SUCCESS) continue;
    EXPECT_FALSE(on_host());
    const Physical wrong(std::exchange(none, nullptr));
    const Range range = this->range(4);
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, range.map(0, {wrong}));
    EXPECT_TRUE(layout_of(range) == (Layout{0, 0}));
  }
}

CHILD(vmm_25_importer) {
  const Instance instance = on_host() ? open_small_units() : open_instance();
  const int file = std::stoi(child_arguments().at(0));
  const uint64_t size = std::stoull(child_arguments().at(1));
  const gpumem_physical_desc desc = physical_desc(size, GPUMEM_LOCATION_DEVICE, GPUMEM_HANDLE_TYPE_POSIX_FD);
  const Physical imported = import_fd(instance.device(), desc, file);
  ASSERT_EQ(close(file), 0);
  EXPECT_EQ(imported.info().imported, 1u);
  const Range range = reserve(instance, range_desc(size));
  ASSERT_OK(range.map(0, {imported}));
  ASSERT_OK(range.set_access(0, size, {device_rights(0)}));
  EXPECT_TRUE(holds_pattern(instance, range.base(), size, 1));
  put_pattern(instance, range.base(), size, 2);
}

TEST_F(Vmm, vmm_25_another_process) {
  REQUIRE_DESCRIPTORS();
  const gpumem_physical_desc desc =
      physical_desc(2 * unit_, GPUMEM_LOCATION_DEVICE, GPUMEM_HANDLE_TYPE_POSIX_FD);
  const Exported exported = make_exported(instance_, device_, desc, 1);
  const File inherited(dup(exported.file));  // not closed on exec
  EXPECT_CHILD_OK(run_child("vmm_25_importer", {}, {std::to_string(inherited), std::to_string(2 * unit_)}));
  // And what it wrote is here.
  expect_pattern_in(instance_, exported.physical, 2 * unit_, 2);
}

TEST_F(Vmm, vmm_26_imports_are_counted) {
  REQUIRE_DESCRIPTORS();
  const gpumem_physical_desc desc =
      physical_desc(2 * unit_, GPUMEM_LOCATION_DEVICE, GPUMEM_HANDLE_TYPE_POSIX_FD);
  const Exported exported = make_exported(instance_, device_, desc, 1);
  Physical first = import_fd(device_, desc, exported.file);
  Physical second = import_fd(device_, desc, exported.file);
  EXPECT_NE(first.get(), second.get());
  first.destroy();
  expect_pattern_in(instance_, second, 2 * unit_, 1);
  int32_t file = -7;
  const gpumem_status status = gpumem_physical_export_fd(second, &file, why());
  EXPECT_STATUS_IN(status, GPUMEM_SUCCESS, GPUMEM_ERROR_UNSUPPORTED);
  EXPECT_EQ(file == -7, status != GPUMEM_SUCCESS);
  if (status == GPUMEM_SUCCESS) {
    const File again(file);
    const Physical third = import_fd(device_, desc, again);
    expect_pattern_in(instance_, third, 2 * unit_, 1);
  }
  EXPECT_TRUE(!on_host() || status == GPUMEM_SUCCESS);
}

constexpr const char* kNoFabric = "physical memory cannot be shared over the fabric";

Physical import_fabric(gpumem_device device, const gpumem_physical_desc& desc,
                       const gpumem_fabric_handle& handle) {
  gpumem_physical physical = nullptr;
  EXPECT_OK(gpumem_physical_import_fabric(device, &desc, &handle, &physical, why()));
  return Physical(physical);
}

std::string to_text(const gpumem_fabric_handle& handle) {
  std::string text;
  for (const uint8_t byte : handle.bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

gpumem_fabric_handle to_handle(const std::string& text) {
  gpumem_fabric_handle handle = {};
  for (size_t i = 0; i < sizeof handle.bytes; ++i)
    handle.bytes[i] = static_cast<uint8_t>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return handle;
}

TEST_F(Vmm, vmm_25_without_a_fabric) {
  if (has(GPUMEM_CAPABILITY_VMM_HANDLE_FABRIC)) SKIP_RULE("there is a fabric");
  const gpumem_status missing = capability(device_, GPUMEM_CAPABILITY_VMM_HANDLE_FABRIC).status;
  EXPECT_TRUE(!on_host() || missing == GPUMEM_ERROR_UNSUPPORTED);
  gpumem_fabric_handle handle;
  std::memset(&handle, 0xA5, sizeof handle);
  const gpumem_fabric_handle before = handle;
  const Physical plain = block();
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_physical_export_fabric(plain, &handle, why()));
  EXPECT_EQ(std::memcmp(&handle, &before, sizeof handle), 0);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_physical_export_fabric(plain, nullptr, why()));
  if (has(GPUMEM_CAPABILITY_VMM_HANDLE_POSIX_FD)) {
    const Physical shareable = block(1, GPUMEM_LOCATION_DEVICE, GPUMEM_HANDLE_TYPE_POSIX_FD);
    EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_physical_export_fabric(shareable, &handle, why()));
  }
  gpumem_physical none = nullptr;
  for (const gpumem_handle_types types : {UINT64_C(0), GPUMEM_HANDLE_TYPE_FABRIC}) {
    const gpumem_physical_desc desc = physical_desc(unit_, GPUMEM_LOCATION_DEVICE, types);
    EXPECT_STATUS(missing, gpumem_physical_import_fabric(device_, &desc, &handle, &none, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_physical_import_fabric(device_, &desc, nullptr, &none, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_physical_import_fabric(device_, &desc, &handle, nullptr, why()));
  }
  EXPECT_EQ(none, nullptr);
}

CHILD(vmm_25_fabric_importer) {
  const Instance instance = open_instance();
  const gpumem_fabric_handle handle = to_handle(child_arguments().at(0));
  const uint64_t size = std::stoull(child_arguments().at(1));
  const gpumem_physical_desc desc = physical_desc(size, GPUMEM_LOCATION_DEVICE, GPUMEM_HANDLE_TYPE_FABRIC);
  const Physical imported = import_fabric(instance.device(), desc, handle);
  EXPECT_EQ(imported.info().imported, 1u);
  const Range range = reserve(instance, range_desc(size));
  ASSERT_OK(range.map(0, {imported}));
  ASSERT_OK(range.set_access(0, size, {device_rights(0)}));
  EXPECT_TRUE(holds_pattern(instance, range.base(), size, 1));
  put_pattern(instance, range.base(), size, 2);
}

CHILD(vmm_25_fabric) {
  const Instance instance = open_instance();
  const gpumem_device device = instance.device();
  if (capability(device, GPUMEM_CAPABILITY_VMM_HANDLE_FABRIC).value == GPUMEM_ANSWER_NO)
    skip_child(kNoFabric);
  const uint64_t size = 2 * common_unit(instance);
  const gpumem_physical_desc desc = physical_desc(size, GPUMEM_LOCATION_DEVICE, GPUMEM_HANDLE_TYPE_FABRIC);
  Physical made = create_physical(device, desc);
  EXPECT_EQ(made.info().handle_types, GPUMEM_HANDLE_TYPE_FABRIC);
  {
    const Range range = reserve(instance, range_desc(size));
    ASSERT_OK(range.map(0, {made}));
    ASSERT_OK(range.set_access(0, size, {device_rights(0)}));
    put_pattern(instance, range.base(), size, 1);
  }
  gpumem_fabric_handle handle = {};
  ASSERT_OK(gpumem_physical_export_fabric(made, &handle, why()));
  int32_t file = -7;
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_physical_export_fd(made, &file, why()));
  EXPECT_EQ(file, -7);

  const Physical first = import_fabric(device, desc, handle);
  const Physical second = import_fabric(device, desc, handle);
  EXPECT_NE(first.get(), second.get());
  EXPECT_EQ(first.info().imported, 1u);
  EXPECT_EQ(first.info().size, size);
  expect_pattern_in(instance, first, size, 1);
  expect_pattern_in(instance, second, size, 1);
  const ProcessResult other =
      run_child("vmm_25_fabric_importer", {}, {to_text(handle), std::to_string(size)});
  EXPECT_TRUE(other.ok()) << other;
  expect_pattern_in(instance, made, size, 2);
  // An import may be exported again if the driver allows it.
  gpumem_fabric_handle again = {};
  EXPECT_STATUS_IN(gpumem_physical_export_fabric(first, &again, why()), GPUMEM_SUCCESS,
                   GPUMEM_ERROR_UNSUPPORTED);
  // The memory outlives the handle that it came from.
  made.destroy();
  expect_pattern_in(instance, first, size, 2);

  const Counters before = counters(instance);
  gpumem_physical none = nullptr;
  const gpumem_fabric_handle zeros = {};
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_physical_import_fabric(device, &desc, &zeros, &none, why()));
  gpumem_fabric_handle damaged = handle;
  damaged.bytes[0] ^= 0xFF;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_physical_import_fabric(device, &desc, &damaged, &none, why()));
  gpumem_physical_desc bad = desc;
  bad.require = GPUMEM_PHYSICAL_COMPRESSIBLE;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_physical_import_fabric(device, &bad, &handle, &none, why()));
  bad = desc;
  bad.size += 1;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_physical_import_fabric(device, &bad, &handle, &none, why()));
  EXPECT_EQ(none, nullptr);
  EXPECT_TRUE(counters(instance) == before);
}

TEST_F(Vmm, vmm_25_over_the_fabric) {
  if (on_host()) SKIP_RULE("emulated devices are on no fabric");
  EXPECT_CHILD_OK(run_child("vmm_25_fabric", {"FAKE_CUDA_IMEX=1"}));
}

CHILD(vmm_25_fabric_and_descriptor) {
  const Instance instance = open_instance();
  const gpumem_device device = instance.device();
  const auto can = [&](gpumem_capability what) { return capability(device, what).value != GPUMEM_ANSWER_NO; };
  if (!can(GPUMEM_CAPABILITY_VMM_HANDLE_FABRIC) || !can(GPUMEM_CAPABILITY_VMM_HANDLE_POSIX_FD))
    skip_child(kNoFabric);
  const uint64_t size = common_unit(instance);
  gpumem_physical_desc desc =
      physical_desc(size, GPUMEM_LOCATION_DEVICE, GPUMEM_HANDLE_TYPE_FABRIC | GPUMEM_HANDLE_TYPE_POSIX_FD);
  const Exported exported = make_exported(instance, device, desc, 3);
  gpumem_fabric_handle handle = {};
  ASSERT_OK(gpumem_physical_export_fabric(exported.physical, &handle, why()));
  expect_pattern_in(instance, import_fabric(device, desc, handle), size, 3);
  expect_pattern_in(instance, import_fd(device, desc, exported.file), size, 3);
  if (!can(GPUMEM_CAPABILITY_VMM_HOST_NUMA)) return;
  desc.location = GPUMEM_LOCATION_HOST_NUMA;
  gpumem_physical none = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_physical_import_fabric(device, &desc, &handle, &none, why()));
  EXPECT_EQ(none, nullptr);
}

TEST_F(Vmm, vmm_25_fabric_handles_and_descriptors) {
  if (on_host()) SKIP_RULE("emulated devices are on no fabric");
  EXPECT_CHILD_OK(run_child("vmm_25_fabric_and_descriptor", {"FAKE_CUDA_IMEX=1"}));
}

// The right may be gone although it was there at the trial.
CHILD(vmm_25_fabric_codes) {
  const Instance instance = open_instance();
  const gpumem_device device = instance.device();
  if (capability(device, GPUMEM_CAPABILITY_VMM_HANDLE_FABRIC).value == GPUMEM_ANSWER_NO)
    skip_child(kNoFabric);
  const uint64_t size = common_unit(instance);
  const gpumem_physical_desc desc = physical_desc(size, GPUMEM_LOCATION_DEVICE, GPUMEM_HANDLE_TYPE_FABRIC);
  const Physical made = create_physical(device, desc);
  gpumem_fabric_handle handle = {};
  ASSERT_OK(gpumem_physical_export_fabric(made, &handle, why()));
  const gpumem_fabric_handle before = handle;
  gpumem_physical none = nullptr;
  Faults faults(instance);
  const std::pair<int, gpumem_status> codes[] = {
      {800, GPUMEM_ERROR_PERMISSION_DENIED}, {801, GPUMEM_ERROR_UNSUPPORTED}, {600, GPUMEM_ERROR_BUSY}};
  for (const auto& [code, status] : codes) {
    SCOPED_TRACE(code);
    Faults::fail_driver_call("cuMemExportToShareableHandle", code, true);
    EXPECT_STATUS(status, gpumem_physical_export_fabric(made, &handle, why()));
    EXPECT_EQ(last_error().native_code, code);
    Faults::fail_driver_call("cuMemImportFromShareableHandle", code, true);
    EXPECT_STATUS(status, gpumem_physical_import_fabric(device, &desc, &handle, &none, why()));
    EXPECT_EQ(last_error().native_code, code);
    faults.off();
  }
  EXPECT_EQ(std::memcmp(&handle, &before, sizeof handle), 0);
  EXPECT_EQ(none, nullptr);
  for (const int code : {1, 400, 999}) {
    Faults::fail_driver_call("cuMemImportFromShareableHandle", code);
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_physical_import_fabric(device, &desc, &handle, &none, why()));
  }
  import_fabric(device, desc, handle).destroy();
}

TEST_F(Vmm, vmm_25_codes_about_the_fabric) {
  if (!on_fake_cuda()) SKIP_RULE("only the fake driver can be told what to answer");
  EXPECT_CHILD_OK(run_child("vmm_25_fabric_codes", {"FAKE_CUDA_IMEX=1"}));
}

// ---- ranges of several blocks ----

TEST_F(Vmm, vmm_27_devices_and_the_host_side_by_side) {
  std::vector<Physical> blocks;
  blocks.push_back(block());
  if (has(GPUMEM_CAPABILITY_VMM_HOST)) blocks.push_back(block(1, GPUMEM_LOCATION_HOST));
  const bool linked =
      second_device() != nullptr &&
      capability(device_, GPUMEM_CAPABILITY_PEER_ACCESS, second_device()).value != GPUMEM_ANSWER_NO;
  if (linked) blocks.push_back(create_physical(second_device(), physical_desc(unit_)));
  blocks.push_back(block());
  const std::vector<gpumem_physical> handles(blocks.begin(), blocks.end());
  const uint64_t size = handles.size() * unit_;
  const Range range = reserve(instance_, range_desc(size));
  ASSERT_OK(gpumem_range_map(range, 0, handles.data(), handles.size(), why()));
  ASSERT_OK(range.set_access(0, size, {device_rights(0)}));
  for (size_t i = 0; i < blocks.size(); ++i) {
    const gpumem_physical_info expected = blocks[i].info();
    const gpumem_mapping_info mapping = mapping_at(instance_, range.base() + i * unit_ + 5);
    EXPECT_EQ(mapping.location, expected.location);
    EXPECT_EQ(mapping.location_id, expected.location_id);
    EXPECT_EQ(mapping.block_id, expected.block_id);
  }
  // Copies and fills across every seam.
  const uint64_t inside = size - 200;
  uint8_t* const at = range.base() + 100;
  const Memory pinned = alloc_pinned(device_, size);
  const Memory other = alloc_device(device_, size);
  const Stream stream = create_stream(device_);
  for (const gpumem_stream order : {gpumem_stream{nullptr}, stream.get()}) {
    EXPECT_OK(fill(range.base(), size, 9, order));
    fill_pattern(pinned.host(), inside, 1);
    EXPECT_OK(copy(at, pinned.host(), inside, order));
    EXPECT_OK(copy(other.device(), at, inside, order));
    EXPECT_OK(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()));
    EXPECT_TRUE(holds_pattern(instance_, other.device(), inside, 1));
    EXPECT_TRUE(holds_pattern(instance_, at, inside, 1));
    EXPECT_OK(copy(at, other.device(), inside, order));
    EXPECT_OK(copy(pinned.host(), range.base(), size, order));
    EXPECT_OK(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()));
    EXPECT_TRUE(has_pattern(pinned.host() + 100, inside, 1));
    EXPECT_EQ(pinned.host()[99], 9);
    EXPECT_EQ(pinned.host()[size - 1], 9);
  }
}

TEST_F(Vmm, vmm_27_rows_across_seams) {
  const Physical one = block();
  const Physical two = block();
  const Range range = mapped({one, two}, 2);
  // Rows of 1000 bytes, one of which lies on both sides of the seam.
  constexpr uint64_t kPitch = 1536;
  constexpr uint64_t kWidth = 1000;
  constexpr uint64_t kHeight = 20;
  uint8_t* const first = range.base() + unit_ - 10 * kPitch - 500;
  const uint64_t span = kPitch * kHeight;
  put_pattern(instance_, first, span, 1);
  std::vector<uint8_t> rows(kWidth * kHeight);
  ASSERT_OK(gpumem_copy_2d(instance_, rows.data(), kWidth, first, kPitch, kWidth, kHeight, nullptr, why()));
  const std::vector<uint8_t> source = pattern(span, 1);
  for (uint64_t row = 0; row < kHeight; ++row)
    EXPECT_EQ(std::memcmp(&rows[row * kWidth], &source[row * kPitch], kWidth), 0) << row;
  ASSERT_OK(gpumem_fill_2d(instance_, first, kPitch, kWidth, kHeight, 0x2B, 1, why()));
  std::vector<uint8_t> all(span);
  ASSERT_OK(copy(all.data(), first, span));
  for (uint64_t i = 0; i < span; ++i)
    ASSERT_EQ(all[i], i % kPitch < kWidth ? 0x2B : source[i]) << i;
  ASSERT_OK(gpumem_copy_2d(instance_, first, kPitch, rows.data(), kWidth, kWidth, kHeight, nullptr, why()));
  EXPECT_TRUE(holds_pattern(instance_, first, span, 1));
}

TEST_F(Vmm, vmm_28_a_range_is_shared_as_its_blocks) {
  REQUIRE_DESCRIPTORS();
  std::vector<Exported> sent;
  for (const uint64_t units : {1u, 3u, 2u}) {
    const gpumem_physical_desc desc =
        physical_desc(units * unit_, GPUMEM_LOCATION_DEVICE, GPUMEM_HANDLE_TYPE_POSIX_FD);
    sent.push_back(make_exported(instance_, device_, desc, static_cast<uint32_t>(units)));
  }
  std::vector<Physical> received;
  std::vector<gpumem_physical> handles;
  for (const Exported& each : sent) {
    gpumem_physical_desc desc = physical_desc(each.physical.info().size);
    desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
    received.push_back(import_fd(device_, desc, each.file));
    handles.push_back(received.back());
  }
  const Range range = this->range(6);
  ASSERT_OK(gpumem_range_map(range, 0, handles.data(), handles.size(), why()));
  EXPECT_EQ(range.info().mapped_size, range.info().size) << "no more is reserved than mapped";
  ASSERT_OK(range.set_access(0, 6 * unit_, {device_rights(0)}));
  EXPECT_TRUE(holds_pattern(instance_, range.base(), unit_, 1));
  EXPECT_TRUE(holds_pattern(instance_, range.base() + unit_, 3 * unit_, 3));
  EXPECT_TRUE(holds_pattern(instance_, range.base() + 4 * unit_, 2 * unit_, 2));
}

TEST_F(Vmm, vmm_29_growth_leaves_the_old_part_alone) {
  const Physical old = block(2);
  const Physical next = block(2);
  const Memory pinned = alloc_pinned(device_, 2 * unit_);
  fill_pattern(pinned.host(), 2 * unit_, 1);
  const Range range = mapped({old}, 4);
  const gpumem_range_info before = range.info();
  GatedStream stream(device_);
  ASSERT_OK(copy(range.base(), pinned.host(), 2 * unit_, stream));
  ASSERT_OK(range.map(2 * unit_, {next}));
  ASSERT_OK(range.set_access(2 * unit_, 2 * unit_, {device_rights(0)}));
  EXPECT_EQ(range.base(), before.base);
  EXPECT_EQ(device_access(instance_, range.base(), 0), GPUMEM_ACCESS_READWRITE);
  stream.finish();
  EXPECT_TRUE(holds_pattern(instance_, range.base(), 2 * unit_, 1));
  const Stream both = create_stream(device_);
  EXPECT_OK(fill(range.base(), 4 * unit_, 3, both));
  both.synchronize();
  const gpumem_range_info after = range.info();
  EXPECT_EQ(after.base, before.base);
  EXPECT_EQ(after.buffer_id, before.buffer_id);
  EXPECT_EQ(after.mapped_size, 4 * unit_);
}

TEST_F(Vmm, vmm_30_a_failure_in_the_middle) {
  if (!Faults::available()) SKIP_RULE("driver calls of a real GPU cannot be made to fail");
  const Physical old = block();
  const Physical one = block();
  const Physical two = block(2);
  const Range range = mapped({old}, 6);
  put_pattern(instance_, range.base(), unit_, 1);
  // Once, and from then on, which also hits the steps that undo the call.
  for (const bool repeat : {false, true}) {
    int failures = 0;
    for (uint64_t k = 1; k <= 20; ++k) {
      SCOPED_TRACE(testing::Message() << "step " << k << (repeat ? " and all later ones" : ""));
      Faults faults(instance_);
      faults.fail_step(k, repeat);
      const gpumem_status status = range.map(unit_, {one, two, one});
      faults.off();
      if (status == GPUMEM_SUCCESS) {
        EXPECT_TRUE(layout_of(range) == (Layout{5 * unit_, 4}));
        ASSERT_OK(range.unmap(unit_, 4 * unit_));
        continue;
      }
      ++failures;
      EXPECT_TRUE(layout_of(range) == (Layout{unit_, 1}));
      EXPECT_EQ(pointer_info(instance_, range.base() + unit_).location, GPUMEM_LOCATION_NONE);
      EXPECT_TRUE(holds_pattern(instance_, range.base(), unit_, 1));
    }
    EXPECT_GE(failures, 3) << "one for each block at least";
  }
}

TEST_F(Vmm, vmm_30_a_busy_driver) {
  if (!on_fake_cuda()) SKIP_RULE("only the fake driver can be told to be busy");
  const Physical one = block();
  const Physical two = block(2);
  const Range range = this->range(3);
  Faults faults(instance_);
  Faults::fail_driver_calls("cuMemMap", kNotReady, 2, kTries);
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, range.map(0, {one, two}));
  faults.off();
  EXPECT_TRUE(layout_of(range) == (Layout{0, 0}));
  Faults::fail_driver_calls("cuMemMap", kNotReady, 2, kTries - 1);
  EXPECT_OK(range.map(0, {one, two}));
  EXPECT_TRUE(layout_of(range) == (Layout{3 * unit_, 2}));
}

TEST_F(Vmm, vmm_30_a_bad_block_in_the_middle) {
  const Physical old = block();
  const Physical one = block();
  const Range range = this->range(6);
  ASSERT_OK(range.map(3 * unit_, {old}));
  EXPECT_STATUS(GPUMEM_ERROR_ALREADY_EXISTS, range.map(unit_, {one, one, one}));
  EXPECT_TRUE(layout_of(range) == (Layout{unit_, 1}));
  EXPECT_EQ(pointer_info(instance_, range.base() + unit_).location, GPUMEM_LOCATION_NONE);
  EXPECT_OK(range.map(unit_, {one, one}));
}

// ---- queries ----

TEST_F(Vmm, uva_5_virtual_unmapped) {
  const Physical one = block();
  const Range range = this->range(3);
  ASSERT_OK(range.map(unit_, {one}));
  for (const uint64_t offset : {uint64_t{0}, unit_ - 1, 2 * unit_, 3 * unit_ - 1}) {
    SCOPED_TRACE(offset);
    const gpumem_pointer_info info = pointer_info(instance_, range.base() + offset);
    EXPECT_EQ(info.kind, GPUMEM_KIND_VIRTUAL);
    EXPECT_EQ(info.location, GPUMEM_LOCATION_NONE);
    EXPECT_EQ(info.location_id, -1);
    EXPECT_EQ(info.device_ordinal, -1);
    EXPECT_EQ(info.host_pointer, nullptr);
    EXPECT_EQ(info.device_pointer, nullptr);
    EXPECT_EQ(info.base, range.base());
    EXPECT_EQ(info.size, 3 * unit_);
    EXPECT_EQ(info.buffer_id, range.info().buffer_id);
    EXPECT_EQ(info.memory, nullptr);
    expect_no_access(range.base() + offset);
  }
  EXPECT_NE(pointer_info(instance_, range.base() + 3 * unit_).buffer_id, range.info().buffer_id);
  EXPECT_NE(pointer_info(instance_, range.base() - 1).buffer_id, range.info().buffer_id);
}

TEST_F(Vmm, uva_5_virtual_mapped) {
  std::vector<Physical> blocks;
  for (uint32_t ordinal = 0; ordinal < instance_.device_count(); ++ordinal)
    blocks.push_back(create_physical(instance_.device(ordinal), physical_desc(unit_)));
  if (has(GPUMEM_CAPABILITY_VMM_HOST)) blocks.push_back(block(1, GPUMEM_LOCATION_HOST));
  if (has(GPUMEM_CAPABILITY_VMM_HOST_NUMA)) blocks.push_back(block(1, GPUMEM_LOCATION_HOST_NUMA));
  const std::vector<gpumem_physical> handles(blocks.begin(), blocks.end());
  const Range range = reserve(instance_, range_desc(handles.size() * unit_));
  ASSERT_OK(gpumem_range_map(range, 0, handles.data(), handles.size(), why()));
  for (size_t i = 0; i < blocks.size(); ++i) {
    const gpumem_physical_info expected = blocks[i].info();
    const bool on_device = expected.location == GPUMEM_LOCATION_DEVICE;
    SCOPED_TRACE(testing::Message() << "location " << expected.location << ' ' << expected.location_id);
    if (!on_device) {
      ASSERT_OK(range.set_access(i * unit_, unit_, {cpu_rights()}));
    } else {
      ASSERT_OK(range.set_access(i * unit_, unit_, {device_rights(expected.device_ordinal)}));
    }
    for (const uint64_t offset : {uint64_t{0}, unit_ / 2, unit_ - 1}) {
      uint8_t* const address = range.base() + i * unit_ + offset;
      const gpumem_pointer_info info = pointer_info(instance_, address);
      EXPECT_EQ(info.kind, GPUMEM_KIND_VIRTUAL);
      EXPECT_EQ(info.location, expected.location);
      EXPECT_EQ(info.location_id, expected.location_id);
      EXPECT_EQ(info.device_ordinal, static_cast<int32_t>(expected.device_ordinal));
      EXPECT_EQ(info.host_pointer, on_device ? nullptr : address);
      EXPECT_EQ(info.device_pointer, address);
      EXPECT_EQ(info.base, range.base());
      EXPECT_EQ(info.size, handles.size() * unit_);
      EXPECT_EQ(info.buffer_id, range.info().buffer_id);
      EXPECT_EQ(info.memory, nullptr);
      for (uint32_t ordinal = 0; ordinal < instance_.device_count(); ++ordinal) {
        const bool may = on_device && ordinal == expected.device_ordinal;
        EXPECT_EQ(device_access(instance_, address, ordinal),
                  may ? GPUMEM_ACCESS_READWRITE : GPUMEM_ACCESS_NONE);
      }
      EXPECT_EQ(cpu_access(instance_, address), on_device ? GPUMEM_ACCESS_NONE : GPUMEM_ACCESS_READWRITE);
    }
  }
}

TEST_F(Vmm, uva_1_ranges_overlap_nothing) {
  struct Part {
    uintptr_t begin;
    uintptr_t end;
  };
  std::vector<Part> parts;
  std::vector<Range> ranges;
  std::vector<Memory> memories;
  for (uint64_t i = 1; i <= 8; ++i) {
    ranges.push_back(range(i));
    const auto base = reinterpret_cast<uintptr_t>(ranges.back().base());
    parts.push_back({base, base + i * unit_});
    memories.push_back(alloc_device(device_, i * 3777));
    const auto address = reinterpret_cast<uintptr_t>(memories.back().device());
    parts.push_back({address, address + i * 3777});
  }
  std::sort(parts.begin(), parts.end(),
            [](const Part& left, const Part& right) { return left.begin < right.begin; });
  for (size_t i = 1; i < parts.size(); ++i)
    EXPECT_LE(parts[i - 1].end, parts[i].begin);
}

TEST_F(Vmm, uva_4_ids_of_ranges) {
  std::set<uint64_t> ids;
  for (int i = 0; i < 50; ++i) {
    EXPECT_TRUE(ids.insert(range(1).info().buffer_id).second);
    EXPECT_TRUE(ids.insert(alloc_device(device_, 100).info().buffer_id).second);
  }
}

TEST_F(Vmm, uva_6_without_the_driver) {
  if (!Faults::available()) SKIP_RULE("driver calls of a real GPU cannot be made to fail");
  const Physical one = block();
  const Range range = mapped({one}, 2);
  uint8_t* const base = range.base();
  Faults faults(instance_);
  faults.fail_step(1, true);
  EXPECT_EQ(pointer_info(instance_, base).kind, GPUMEM_KIND_VIRTUAL);
  EXPECT_EQ(pointer_info(instance_, base + unit_).location, GPUMEM_LOCATION_NONE);
  EXPECT_EQ(device_access(instance_, base, 0), GPUMEM_ACCESS_READWRITE);
  EXPECT_EQ(mapping_at(instance_, base + 5).base, base);
  EXPECT_EQ(range.info().mapping_count, 1u);
  EXPECT_EQ(one.info().size, unit_);
}

// ---- copies ----

TEST_F(Vmm, uva_8_across_mappings_and_holes) {
  const Physical one = block();
  const Physical two = block();
  const Range range = this->range(4);
  ASSERT_OK(range.map(0, {one, two}));
  ASSERT_OK(range.map(3 * unit_, {one}));
  ASSERT_OK(range.set_access(0, 2 * unit_, {device_rights(0)}));
  ASSERT_OK(range.set_access(3 * unit_, unit_, {device_rights(0)}));
  std::vector<uint8_t> bytes(5 * unit_, 7);
  put_pattern(instance_, range.base() + 5, 2 * unit_ - 10, 1);
  EXPECT_TRUE(holds_pattern(instance_, range.base() + 5, 2 * unit_ - 10, 1));
  const Stream stream = create_stream(device_);
  for (const gpumem_stream order : {gpumem_stream{nullptr}, stream.get()}) {
    // Into, over and out of the hole.
    for (const auto& [begin, size] :
         {std::pair{unit_, 2 * unit_}, std::pair{unit_, 3 * unit_}, std::pair{2 * unit_ + 9, unit_},
          std::pair{2 * unit_ - 1, uint64_t{2}}}) {
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, copy(bytes.data(), range.base() + begin, size, order));
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, copy(range.base() + begin, bytes.data(), size, order));
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, fill(range.base() + begin, size, 1, order));
    }
    // Past the end of the range, which comes before the hole.
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  copy(bytes.data(), range.base() + 3 * unit_, unit_ + 1, order));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, fill(range.base(), 4 * unit_ + 1, 1, order));
    // Access to a part only.
    ASSERT_OK(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()));
    ASSERT_OK(range.set_access(unit_, unit_, {device_rights(0, GPUMEM_ACCESS_READ)}));
    EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, fill(range.base(), 2 * unit_, 1, order));
    EXPECT_OK(copy(bytes.data(), range.base(), 2 * unit_, order));
    ASSERT_OK(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()));
    ASSERT_OK(range.set_access(unit_, unit_, {device_rights(0, GPUMEM_ACCESS_NONE)}));
    EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, copy(bytes.data(), range.base(), 2 * unit_, order));
    ASSERT_OK(range.set_access(unit_, unit_, {device_rights(0)}));
  }
  EXPECT_TRUE(has_pattern(bytes.data() + 5, 2 * unit_ - 10, 1));
  EXPECT_TRUE(holds_pattern(instance_, range.base() + 5, 2 * unit_ - 10, 1));
  EXPECT_EQ(bytes[2 * unit_], 7);
}

TEST_F(Vmm, uva_8_every_kind_to_and_from_a_range) {
  constexpr uint64_t kSize = 70'001;
  const Physical one = block();
  const Physical two = block(2);
  const Range range = mapped({one, two}, 3);
  uint8_t* const at = range.base() + unit_ - kSize / 3;
  const Operands operands(device_, second_device(), kSize);
  const Stream stream = create_stream(device_);
  for (const Operand& operand : operands.all()) {
    SCOPED_TRACE(operand.name);
    for (const gpumem_stream order : {gpumem_stream{nullptr}, stream.get()}) {
      prepare(instance_, operand, kSize, 1);
      EXPECT_OK(copy(at, operand.address, kSize, order));
      stream.synchronize();
      EXPECT_TRUE(holds_pattern(instance_, at, kSize, 1));
      if (!operand.writable) continue;
      prepare(instance_, operand, kSize, 2);
      EXPECT_OK(copy(operand.address, at, kSize, order));
      stream.synchronize();
      EXPECT_TRUE(same_bytes(pattern(kSize, 1), bytes_of(instance_, operand, kSize)));
    }
  }
}

TEST_F(Vmm, uva_9_addresses_and_aliases) {
  const Physical one = block(2);
  const Physical two = block();
  const Range range = mapped({one, two, one}, 5);  // 0-2, 2-3, 3-5; the first and the last are the same bytes
  const Range elsewhere = mapped({two}, 1);
  uint8_t* const first = range.base();
  uint8_t* const alias = range.base() + 3 * unit_;
  put_pattern(instance_, first, 3 * unit_, 1);
  const Stream stream = create_stream(device_);
  for (const gpumem_stream order : {gpumem_stream{nullptr}, stream.get()}) {
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, copy(first, first, 100, order));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, copy(first + 99, first, 100, order));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, copy(first + unit_, first, 2 * unit_, order));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, copy(alias, first, 100, order));
    EXPECT_NE(std::string(last_error().message).find("mappings of one block"), std::string::npos);
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, copy(first + 99, alias, 100, order));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, copy(alias, first, 2 * unit_, order));
    // Across a seam, with an alias behind it.
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  copy(elsewhere.base() + 9, first + 2 * unit_ - 50, 100, order));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  copy_2d_on(instance_, order, alias + 31, 64, first, 64, 32, 10, nullptr, why()));
  }
  EXPECT_TRUE(holds_pattern(instance_, first, 3 * unit_, 1));
  // What shares a block, but no byte.
  EXPECT_OK(copy(alias + 100, first, 100));
  EXPECT_OK(copy(elsewhere.base() + 60, first + 2 * unit_ - 50, 100));
  std::vector<uint8_t> bytes(3 * unit_);
  ASSERT_OK(copy(bytes.data(), first, 3 * unit_));
  std::vector<uint8_t> expected = pattern(3 * unit_, 1);
  std::memcpy(&expected[100], &expected[0], 100);
  std::memcpy(&expected[2 * unit_ + 60],
              std::vector<uint8_t>(&expected[2 * unit_ - 50], &expected[2 * unit_ + 50]).data(), 100);
  EXPECT_TRUE(same_bytes(expected, bytes));
}

TEST_F(Vmm, uva_11_the_device_of_the_stream) {
  const gpumem_device second = second_device();
  if (second == nullptr) SKIP_RULE("there is one device only");
  const Physical one = block();
  const Range range = mapped({one}, 1);
  const Stream theirs = create_stream(second);
  const Memory memory = alloc_device(second, unit_);
  EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, copy(memory.device(), range.base(), unit_, theirs));
  EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, fill(range.base(), unit_, 1, theirs));
  EXPECT_OK(gpumem_stream_query(theirs, why()));
  const Stream own = create_stream(device_);
  EXPECT_OK(copy(memory.device(), range.base(), unit_, own));
  own.synchronize();
}

// ---- what common rules say of them ----

TEST_F(Vmm, com_23_counts) {
  const Counters before = counters(instance_);
  const uint64_t live = stats(instance_).live_count;
  {
    const Physical one = block();
    const Range range = mapped({one}, 2);
    EXPECT_GT(stats(instance_).live_count, live);
    EXPECT_STATUS(GPUMEM_ERROR_ALREADY_EXISTS, range.map(0, {one}));
    const Counters now = counters(instance_);
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, range.map(5 * unit_, {one}));
    EXPECT_TRUE(counters(instance_) == now);
  }
  EXPECT_EQ(stats(instance_).peak_bytes, unit_);
  EXPECT_OK(gpumem_stats_reset_peaks(instance_, why()));
  const Counters after = counters(instance_);
  EXPECT_EQ(std::memcmp(&before.all, &after.all, sizeof before.all), 0);
}

TEST_F(Vmm, com_23_a_block_counts_once_and_addresses_apart) {
  const auto expect_counts = [&](uint64_t memory, uint64_t addresses) {
    EXPECT_EQ(stats(instance_).live_bytes, memory * unit_);
    EXPECT_EQ(stats(instance_).reserved_bytes, addresses * unit_);
    EXPECT_EQ(kind_stats(instance_, GPUMEM_KIND_VIRTUAL).live_bytes, addresses * unit_);
  };
  expect_counts(0, 0);
  Range range = this->range(8);
  expect_counts(0, 8);
  Physical one = block(2);
  Physical other = block();
  expect_counts(3, 8);
  ASSERT_OK(range.map(0, {one, one, other}));
  expect_counts(3, 8);
  // A failed call counts nothing.
  EXPECT_STATUS(GPUMEM_ERROR_ALREADY_EXISTS, range.map(0, {one}));
  gpumem_physical retained = nullptr;
  ASSERT_OK(gpumem_physical_retain(instance_, range.base(), &retained, why()));
  Physical again(retained);
  expect_counts(3, 8);
  // Mappings keep it without a handle, and a handle without mappings.
  one.destroy();
  other.destroy();
  expect_counts(3, 8);
  ASSERT_OK(range.unmap(2 * unit_, 3 * unit_));
  expect_counts(2, 8);
  ASSERT_OK(range.unmap(0, 2 * unit_));
  expect_counts(2, 8);
  again.destroy();
  expect_counts(0, 8);
  range.destroy();
  expect_counts(0, 0);
}

TEST_F(Vmm, com_23_imported_blocks_count_for_the_importer) {
  REQUIRE_DESCRIPTORS();
  const gpumem_physical_desc desc =
      physical_desc(2 * unit_, GPUMEM_LOCATION_DEVICE, GPUMEM_HANDLE_TYPE_POSIX_FD);
  Exported exported = make_exported(instance_, device_, desc, 1);
  Instance importer =
      open_instance([&](gpumem_instance_desc&, gpumem_host_options& host) { host.vmm_granularity = unit_; });
  Physical imported = import_fd(importer.device(), desc, exported.file);
  EXPECT_EQ(stats(importer).live_bytes, 2 * unit_);
  EXPECT_EQ(kind_stats(importer, GPUMEM_KIND_IMPORTED).live_bytes, 0u) << "it has no address";
  EXPECT_EQ(stats(instance_).live_bytes, 2 * unit_);
  exported.physical.destroy();
  EXPECT_EQ(stats(instance_).live_bytes, 0u);
  EXPECT_EQ(stats(importer).live_bytes, 2 * unit_);
  imported.destroy();
  EXPECT_EQ(stats(importer).live_bytes, 0u);
  // Two handles count once if they tell that they are of one block.
  const Physical first = import_fd(device_, desc, exported.file);
  const Physical second = import_fd(device_, desc, exported.file);
  const uint64_t blocks = first.info().block_id == second.info().block_id ? 1 : 2;
  EXPECT_EQ(stats(instance_).live_bytes, blocks * 2 * unit_);
}

TEST_F(Vmm, com_24_close) {
  Instance own = on_host() ? open_small_units() : open_instance();
  const gpumem_device device = own.device();
  const gpumem_physical physical = create_physical(device, physical_desc(unit_)).release();
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_instance_close(own, GPUMEM_CLOSE_CHECK, nullptr, why()));
  Range range = reserve(own, range_desc(2 * unit_));
  ASSERT_OK(range.map(0, {physical}));
  ASSERT_OK(range.set_access(0, unit_, {device_rights(0)}));
  ASSERT_OK(gpumem_fill(own, range.base(), unit_, 1, 1, why()));
  ASSERT_OK(gpumem_physical_release(physical, why()));
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_instance_close(own, GPUMEM_CLOSE_CHECK, nullptr, why()));
  const gpumem_physical another = create_physical(device, physical_desc(unit_)).release();
  const gpumem_range handle = range.release();
  uint64_t destroyed = 0;
  EXPECT_OK(gpumem_instance_close(own.release(), GPUMEM_CLOSE_FORCE, &destroyed, why()));
  EXPECT_GE(destroyed, 2u);
  gpumem_range_info info = GPUMEM_RANGE_INFO_INIT;
  EXPECT_STATUS_IN(gpumem_range_get_info(handle, &info, why()), GPUMEM_ERROR_CLOSED,
                   GPUMEM_ERROR_STALE_HANDLE);
  EXPECT_STATUS_IN(gpumem_physical_release(another, why()), GPUMEM_ERROR_CLOSED, GPUMEM_ERROR_STALE_HANDLE);
}

CHILD(com_18_ranges) {
  const Instance instance = on_host() ? open_small_units() : open_instance();
  if (!can_lose()) skip_child("a real GPU cannot be lost without a faulting kernel");
  const gpumem_device device = instance.device();
  if (!has_vmm(device)) skip_child("the device has no virtual memory management");
  const uint64_t unit = common_unit(instance);
  const gpumem_physical_desc desc = physical_desc(unit);
  Physical one = create_physical(device, desc);
  Range range = reserve(instance, range_desc(2 * unit));
  ASSERT_OK(range.map(0, {one}));
  ASSERT_OK(range.set_access(0, unit, {device_rights(0)}));
  uint8_t* const base = range.base();
  lose(device);
  gpumem_stream stream = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_DEVICE_LOST, gpumem_stream_create(device, nullptr, &stream, why()));
  gpumem_physical none = nullptr;
  uint64_t number = 0;
  EXPECT_STATUS(GPUMEM_ERROR_DEVICE_LOST, gpumem_physical_create(device, &desc, &none, why()));
  EXPECT_STATUS(GPUMEM_ERROR_DEVICE_LOST,
                gpumem_physical_get_granularity(device, &desc, &number, nullptr, why()));
  EXPECT_STATUS(GPUMEM_ERROR_DEVICE_LOST, gpumem_physical_retain(instance, base, &none, why()));
  EXPECT_STATUS(GPUMEM_ERROR_DEVICE_LOST, range.map(unit, {one}));
  EXPECT_STATUS(GPUMEM_ERROR_DEVICE_LOST, range.set_access(0, unit, {device_rights(0)}));
  EXPECT_EQ(none, nullptr);
  // The registry still answers, and all can be given back.
  EXPECT_EQ(one.info().size, unit);
  EXPECT_EQ(mapping_at(instance, base).base, base);
  EXPECT_EQ(pointer_info(instance, base).kind, GPUMEM_KIND_VIRTUAL);
  EXPECT_EQ(range.info().mapping_count, 1u);
  EXPECT_OK(range.unmap(0, unit));
  range.destroy();
  one.destroy();
}

TEST_F(Vmm, com_18_ranges_of_a_lost_device) { EXPECT_CHILD_OK(run_child("com_18_ranges")); }

TEST_F(Vmm, vmm_15_the_cpu_may_only_read) {
  if (!has(GPUMEM_CAPABILITY_VMM_HOST)) SKIP_RULE("no physical memory of the host");
  const Physical one = block(1, GPUMEM_LOCATION_HOST);
  const Range range = mapped({one}, 1);
  ASSERT_OK(range.set_access(0, unit_, {cpu_rights(GPUMEM_ACCESS_READ)}));
  const Memory source = create_memory(device_, memory_desc(GPUMEM_KIND_PINNED, unit_));
  std::memset(source.host(), 0x35, unit_);
  const gpumem_status status = copy(range.base(), source.host(), unit_);
  if (on_cuda()) {
    // The driver would write by the CPU, and end the process.
    EXPECT_STATUS(status, GPUMEM_ERROR_NO_ACCESS);
    ASSERT_OK(range.set_access(0, unit_, {cpu_rights(GPUMEM_ACCESS_NONE)}));
    EXPECT_OK(copy(range.base(), source.host(), unit_));
    ASSERT_OK(range.set_access(0, unit_, {cpu_rights(GPUMEM_ACCESS_READ)}));
  } else {
    EXPECT_OK(status);
  }
  EXPECT_EQ(range.base()[unit_ - 1], 0x35);
  // From a device, and by a fill, everywhere.
  EXPECT_OK(fill(range.base(), unit_, 0x36));
  EXPECT_EQ(range.base()[unit_ - 1], 0x36);
  const Memory on_device = create_memory(device_, memory_desc(GPUMEM_KIND_DEVICE, unit_));
  EXPECT_OK(fill(on_device.device(), unit_, 0x37));
  EXPECT_OK(copy(range.base(), on_device.device(), unit_));
  EXPECT_EQ(range.base()[unit_ - 1], 0x37);
}

TEST_F(Vmm, com_25_a_forked_child) {
  if (kSanitized) SKIP_RULE("a sanitizer does not survive the fault of a child");
  const bool host = has(GPUMEM_CAPABILITY_VMM_HOST);
  const Physical one = block(1, host ? GPUMEM_LOCATION_HOST : GPUMEM_LOCATION_DEVICE);
  const Range range = mapped({one}, 2);
  if (host) {
    ASSERT_OK(range.set_access(0, unit_, {cpu_rights()}));
  }
  uint8_t* const base = range.base();
  const ProcessResult result = in_forked_child([&] {
    EXPECT_TRUE(read_faults(base));
    EXPECT_TRUE(read_faults(base + unit_));
    EXPECT_STATUS(GPUMEM_ERROR_FORKED, range.map(unit_, {one}));
    EXPECT_STATUS(GPUMEM_ERROR_FORKED, range.unmap(0, unit_));
    EXPECT_STATUS(GPUMEM_ERROR_FORKED, gpumem_range_release(range, why()));
    EXPECT_STATUS(GPUMEM_ERROR_FORKED, gpumem_physical_release(one, why()));
  });
  EXPECT_TRUE(result.ok()) << result;
  if (host) {
    EXPECT_FALSE(read_faults(base));
  }
}

TEST_F(Vmm, com_27_host_functions) {
  struct Calls {
    Vmm* test;
    gpumem_physical physical;
    gpumem_range range;
    uint8_t* base;
    uint64_t unit;
    gpumem_device device;
    gpumem_instance instance;
    std::atomic<bool> done{false};
  };
  const Physical one = block();
  const Range range = mapped({one}, 2);
  Calls calls{this, one, range, range.base(), unit_, device_, instance_};
  const auto run = [](void* user_data) {
    auto& self = *static_cast<Calls*>(user_data);
    const gpumem_physical_desc desc = physical_desc(self.unit);
    const gpumem_range_desc wanted = range_desc(self.unit);
    const gpumem_access_desc rights = device_rights(0);
    gpumem_physical physical = nullptr;
    gpumem_range other = nullptr;
    uint64_t number = 0;
    int32_t file = -1;
    const auto refused = [](gpumem_status status) { EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, status); };
    refused(gpumem_physical_get_granularity(self.device, &desc, &number, nullptr, why()));
    refused(gpumem_physical_create(self.device, &desc, &physical, why()));
    refused(gpumem_physical_release(self.physical, why()));
    refused(gpumem_physical_retain(self.instance, self.base, &physical, why()));
    refused(gpumem_physical_export_fd(self.physical, &file, why()));
    refused(gpumem_physical_import_fd(self.device, &desc, 0, &physical, why()));
    refused(gpumem_range_reserve(self.instance, &wanted, &other, why()));
    refused(gpumem_range_release(self.range, why()));
    refused(gpumem_range_map(self.range, self.unit, &self.physical, 1, why()));
    refused(gpumem_range_unmap(self.range, 0, self.unit, why()));
    refused(gpumem_range_unmap(self.range, 0, GPUMEM_WHOLE_RANGE, why()));
    refused(gpumem_range_set_access(self.range, 0, self.unit, &rights, 1, why()));
    gpumem_physical_info physical_info = GPUMEM_PHYSICAL_INFO_INIT;
    gpumem_range_info range_info = GPUMEM_RANGE_INFO_INIT;
    gpumem_mapping_info mapping = GPUMEM_MAPPING_INFO_INIT;
    EXPECT_OK(gpumem_physical_get_info(self.physical, &physical_info, why()));
    EXPECT_OK(gpumem_range_get_info(self.range, &range_info, why()));
    EXPECT_OK(gpumem_range_get_mapping(self.instance, self.base, &mapping, why()));
    self.done = true;
  };
  const Stream stream = create_stream(device_);
  ASSERT_OK(gpumem_stream_launch_host_function(stream, run, &calls, why()));
  stream.synchronize();
  EXPECT_TRUE(calls.done);
  EXPECT_TRUE(layout_of(range) == (Layout{unit_, 1}));
}

// ---- threads ----

TEST_F(Vmm, com_10_threads_at_one_range) {
  const Physical fixed = block();
  const Physical moving[] = {block(), block()};
  const Range range = mapped({fixed}, 4);
  put_pattern(instance_, range.base(), unit_, 1);
  uint8_t* const base = range.base();
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> answered{0};
  // Each mapper has a block and a place of its own; the reader asks about all.
  const auto map_and_unmap = [&](uint64_t place) {
    const uint64_t offset = place * unit_;
    for (int round = 0; round < 200; ++round) {
      EXPECT_OK(range.map(offset, {moving[place - 1]}));
      EXPECT_OK(range.set_access(offset, unit_, {device_rights(0)}));
      EXPECT_OK(gpumem_fill(instance_, base + offset, 64, 5, 1, why()));
      EXPECT_OK(range.unmap(offset, unit_));
    }
  };
  std::thread asker([&] {
    while (!stop) {
      for (uint64_t place = 0; place < 4; ++place) {
        const gpumem_pointer_info info = pointer_info(instance_, base + place * unit_ + 7);
        EXPECT_EQ(info.kind, GPUMEM_KIND_VIRTUAL);
        EXPECT_EQ(info.location == GPUMEM_LOCATION_NONE, info.device_ordinal == -1);
        gpumem_mapping_info mapping = GPUMEM_MAPPING_INFO_INIT;
        const gpumem_status status =
            gpumem_range_get_mapping(instance_, base + place * unit_ + 7, &mapping, nullptr);
        EXPECT_TRUE(status == GPUMEM_SUCCESS || (status == GPUMEM_ERROR_INVALID_STATE && place != 0));
        if (status == GPUMEM_SUCCESS) {
          EXPECT_EQ(mapping.base, base + place * unit_);
        }
        (void)device_access(instance_, base + place * unit_, 0);
      }
      const gpumem_range_info info = range.info();
      EXPECT_EQ(info.mapped_size, info.mapping_count * unit_);
      ++answered;
    }
  });
  std::thread copier([&] {
    const Stream stream = create_stream(device_);
    const Memory pinned = alloc_pinned(device_, unit_);
    while (!stop) {
      EXPECT_OK(gpumem_copy_async(stream, pinned.host(), base, unit_, nullptr, why()));
      stream.synchronize();
      EXPECT_TRUE(has_pattern(pinned.host(), unit_, 1));
      uint8_t byte = 0;
      EXPECT_STATUS_IN(gpumem_copy(instance_, &byte, base + 3 * unit_, 1, nullptr, why()),
                       GPUMEM_ERROR_INVALID_STATE);
    }
  });
  std::thread first([&] { map_and_unmap(1); });
  map_and_unmap(2);
  first.join();
  while (answered == 0)
    std::this_thread::yield();
  stop = true;
  asker.join();
  copier.join();
  EXPECT_TRUE(layout_of(range) == (Layout{unit_, 1}));
}

TEST_F(Vmm, com_10_two_map_at_one_place) {
  const Physical one = block();
  const Range range = this->range(1);
  for (int round = 0; round < 200; ++round) {
    gpumem_status first = GPUMEM_SUCCESS;
    gpumem_status second = GPUMEM_SUCCESS;
    const gpumem_physical handle = one;
    std::thread other([&] { first = gpumem_range_map(range, 0, &handle, 1, nullptr); });
    second = gpumem_range_map(range, 0, &handle, 1, nullptr);
    other.join();
    EXPECT_EQ(first + second, GPUMEM_SUCCESS + GPUMEM_ERROR_ALREADY_EXISTS) << first << " and " << second;
    std::thread unmapper([&] { first = gpumem_range_unmap(range, 0, unit_, nullptr); });
    second = gpumem_range_unmap(range, 0, unit_, nullptr);
    unmapper.join();
    EXPECT_EQ(first + second, GPUMEM_SUCCESS + GPUMEM_ERROR_INVALID_STATE) << first << " and " << second;
  }
}

TEST_F(Vmm, com_10_a_release_meets_other_calls) {
  const Physical one = block();
  for (int round = 0; round < 100; ++round) {
    const gpumem_range shared = range(2).release();
    const gpumem_physical handle = block().release();
    std::atomic<int> ready{0};
    const auto meet = [&] {
      for (++ready; ready < 2;)
        std::this_thread::yield();
    };
    std::thread other([&] {
      meet();
      gpumem_range_info info = GPUMEM_RANGE_INFO_INIT;
      EXPECT_STATUS_IN(gpumem_range_get_info(shared, &info, why()), GPUMEM_SUCCESS,
                       GPUMEM_ERROR_STALE_HANDLE);
      const gpumem_status status = gpumem_range_map(shared, 0, &handle, 1, nullptr);
      EXPECT_TRUE(status == GPUMEM_SUCCESS || status == GPUMEM_ERROR_STALE_HANDLE) << status;
      if (status == GPUMEM_SUCCESS) {
        const gpumem_status undone = gpumem_range_unmap(shared, 0, unit_, nullptr);
        EXPECT_EQ(undone, GPUMEM_SUCCESS) << gpumem_status_name(undone);
      }
    });
    meet();
    EXPECT_OK(gpumem_physical_release(handle, why()));
    gpumem_status status = GPUMEM_ERROR_BUSY;
    while (status == GPUMEM_ERROR_BUSY)
      status = gpumem_range_release(shared, nullptr);
    EXPECT_EQ(status, GPUMEM_SUCCESS);
    other.join();
  }
}

}  // namespace
}  // namespace conformance
