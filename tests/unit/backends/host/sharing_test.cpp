// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Sharing between processes: what an instance exports another one imports, and what is no such thing is
// refused.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "asleep.h"
#include "backends/host/backend.h"
#include "backends/host/event.h"
#include "backends/host/shared_event.h"
#include "backends/host/stream.h"
#include "contract/sharing.h"
#include "contract/vmm.h"
#include "host_support.h"
#include "platform/descriptor.h"
#include "process_support.h"

namespace gpumem::test {
namespace {

using backend::Ticket;
using host::SharedEvent;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr uint64_t kPage = 4096;
constexpr uint64_t kGranularity = 64 * kKiB;
constexpr uint64_t kShort = 20'000'000;  // nanoseconds

// A ticket whose descriptor is closed with it.
struct OwnTicket : Ticket {
  explicit OwnTicket(const Ticket& ticket) : Ticket(ticket), owner(ticket.file_descriptor) {}
  platform::Descriptor owner;
};

// Two instances with the same options. The second imports.
class HostSharingTest : public Host {
 protected:
  HostSharingTest() { options_.vmm_granularity = kGranularity; }
  void SetUp() override { open_both(); }
  void TearDown() override {
    importer_.reset();
    close();
  }

  void open_both() {
    importer_.reset();
    open();
    importer_ = open_another(options_);
  }
  static std::unique_ptr<backend::Backend> open_another(const backend::HostOptions& options) {
    backend::OpenRequest request;
    request.host = options;
    auto opened = host::open(request);
    EXPECT_TRUE(opened) << opened.error().message;
    return std::move(*opened);
  }

  backend::Device& there(size_t ordinal = 0) { return *importer_->devices().at(ordinal); }
  backend::Sharing& sharing(size_t ordinal = 0) { return *dev(ordinal).sharing(); }
  backend::Sharing& importing(size_t ordinal = 0) { return *there(ordinal).sharing(); }

  MemoryPointer make_shareable(uint64_t size) {
    Request request = device_request(size);
    request.require = GPUMEM_MEMORY_SHAREABLE;
    return make(request);
  }
  OwnTicket ticket_of(const MemoryPointer& memory) {
    auto ticket = sharing().export_memory(*memory);
    EXPECT_TRUE(ticket) << ticket.error().message;
    return OwnTicket(*ticket);
  }
  MemoryPointer import(const Ticket& ticket, uint64_t size, size_t ordinal = 0, bool peer = false) {
    auto memory = importing(ordinal).import_memory({ticket, size, peer});
    EXPECT_TRUE(memory) << memory.error().message;
    return memory ? MemoryPointer(std::move(*memory)) : nullptr;
  }
  Status import_status(const Ticket& ticket, uint64_t size, size_t ordinal = 0, bool peer = false) {
    return status_of(importing(ordinal).import_memory({ticket, size, peer}));
  }

  // As write() and read(), by a device of the importer.
  StreamPointer stream_there(size_t ordinal = 0) {
    auto stream = there(ordinal).create_stream(0);
    EXPECT_TRUE(stream);
    return *stream;
  }
  void write_there(const Span& destination, const std::vector<unsigned char>& bytes) {
    const StreamPointer stream = stream_there();
    EXPECT_OK(stream->copy(copy_of(destination, pageable(bytes.data()), bytes.size())));
    finish(*stream);
  }
  std::vector<unsigned char> read_there(const Span& source, uint64_t size) {
    std::vector<unsigned char> bytes(size);
    const StreamPointer stream = stream_there();
    EXPECT_OK(stream->copy(copy_of(pageable(bytes.data()), source, size)));
    finish(*stream);
    return bytes;
  }
  // What a kernel of the importer sees at an address; null if it may not.
  void* view_there(const void* address, uint64_t size, gpumem_access access, size_t ordinal = 0) {
    struct Work {
      const void* address;
      uint64_t size;
      gpumem_access access;
      void* view;
    } work{address, size, access, nullptr};
    const StreamPointer stream = stream_there(ordinal);
    EXPECT_OK(importer_->simulation()->launch(
        *stream,
        [](gpumem_host_kernel, void* data) {
          auto* const asked = static_cast<Work*>(data);
          auto view = host::current_kernel()->view(asked->address, asked->size, asked->access);
          asked->view = view ? *view : nullptr;
        },
        &work));
    (void)stream->synchronize(kForever);
    return work.view;
  }

  std::unique_ptr<backend::Backend> importer_;
};

// ---- memory ----

TEST_F(HostSharingTest, ShareableMemoryHasItsOwnFile) {
  const uint64_t before = open_files();
  const uint64_t free = free_bytes();
  const auto memory = make_shareable(100);
  EXPECT_EQ(open_files(), before + 1);
  EXPECT_EQ(memory->facts().granted & GPUMEM_MEMORY_SHAREABLE, GPUMEM_MEMORY_SHAREABLE);
  EXPECT_EQ(memory->facts().granted_size % kPage, 0U);
  EXPECT_EQ(free_bytes(), free - memory->facts().granted_size);
  EXPECT_TRUE(sharing().is_alone(*memory));
  EXPECT_OK(memory->release());
  EXPECT_EQ(open_files(), before);
  EXPECT_EQ(free_bytes(), free);
}

TEST_F(HostSharingTest, OtherMemoryIsNeverAlone) {
  const auto small = make_device(100);
  const auto large = make_device(200 * kKiB);
  EXPECT_FALSE(sharing().is_alone(*small));
  EXPECT_FALSE(sharing().is_alone(*large));
  EXPECT_EQ(status_of(sharing().export_memory(*small)), GPUMEM_ERROR_UNSUPPORTED);
  EXPECT_EQ(status_of(sharing().export_memory(*large)), GPUMEM_ERROR_UNSUPPORTED);
  EXPECT_OK(small->release());
  EXPECT_OK(large->release());
}

TEST_F(HostSharingTest, AnImportShowsTheSameBytes) {
  constexpr uint64_t kSize = 3 * kPage + 5;
  const auto memory = make_shareable(kSize);
  const auto bytes = pattern(kSize);
  write(device(memory), bytes);
  const OwnTicket ticket = ticket_of(memory);
  const uint64_t free_there = there().memory_available()->free_bytes;
  const auto imported = import(ticket, kSize);
  ASSERT_NE(imported, nullptr);
  EXPECT_NE(imported->facts().device_pointer, memory->facts().device_pointer);
  EXPECT_NE(address_of(imported->facts().device_pointer) >> 21 & 1,
            address_of(memory->facts().device_pointer) >> 21 & 1);
  EXPECT_EQ(imported->facts().host_pointer, nullptr);
  EXPECT_EQ(there().memory_available()->free_bytes, free_there) << "the exporter is charged";
  EXPECT_EQ(read_there(device(imported), kSize), bytes);
  EXPECT_TRUE(faults(imported->facts().device_pointer, false));

  const auto others = pattern(kSize, 7);
  write_there(device(imported), others);
  EXPECT_EQ(read(device(memory), kSize), others);
  void* const view = view_there(imported->facts().device_pointer, kSize, GPUMEM_ACCESS_READWRITE);
  EXPECT_NE(view, nullptr);

  EXPECT_OK(memory->release());
  EXPECT_EQ(read_there(device(imported), kSize), others) << "the exporter's end does not matter";
  void* const address = imported->facts().device_pointer;
  EXPECT_OK(imported->release());
  EXPECT_EQ(mapping_flags(address), "");
}

TEST_F(HostSharingTest, AnImportThatIsNotStrictIsVisible) {
  options_.strict = GPUMEM_TOGGLE_OFF;
  open_both();
  const auto memory = make_shareable(kPage);
  const auto bytes = pattern(kPage);
  write(device(memory), bytes);
  const auto imported = import(ticket_of(memory), kPage);
  EXPECT_EQ(std::memcmp(imported->facts().device_pointer, bytes.data(), kPage), 0);
  EXPECT_TRUE(has_flag(imported->facts().device_pointer, "dc"));
  EXPECT_OK(imported->release());
  EXPECT_OK(memory->release());
}

TEST_F(HostSharingTest, AnImportIsFreeOnlyWhenItsWorkWasObserved) {
  const auto memory = make_shareable(kPage);
  const auto imported = import(ticket_of(memory), kPage);
  const StreamPointer stream = stream_there();
  Gate gate;
  EXPECT_OK(gate.hold(*stream));
  EXPECT_OK(stream->fill(fill_of(device(imported), kPage, 1)));
  EXPECT_EQ(status_of(imported->release()), GPUMEM_ERROR_BUSY);
  gate.open();
  finish(*stream);
  EXPECT_OK(imported->release());
  EXPECT_OK(memory->release());
}

TEST_F(HostSharingTest, AnotherDeviceNeedsALink) {
  options_.peers = "1>0";
  options_.device_count = 3;
  open_both();
  const auto memory = make_shareable(kPage);
  const OwnTicket ticket = ticket_of(memory);
  EXPECT_EQ(import_status(ticket, kPage, 1, false), GPUMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(import_status(ticket, kPage, 2, true), GPUMEM_ERROR_UNSUPPORTED);
  const auto imported = import(ticket, kPage, 1, true);
  ASSERT_NE(imported, nullptr);
  EXPECT_NE(view_there(imported->facts().device_pointer, kPage, GPUMEM_ACCESS_READWRITE, 1), nullptr);
  EXPECT_FALSE(there(1).lost());
  // Device 2 reaches neither of the two.
  EXPECT_EQ(view_there(imported->facts().device_pointer, kPage, GPUMEM_ACCESS_READ, 2), nullptr);
  EXPECT_TRUE(there(2).lost());
  EXPECT_OK(imported->release());

  backend::HostOptions others = options_;
  others.device_bytes = 32 * kMiB;
  importer_ = open_another(others);
  EXPECT_EQ(import_status(ticket, kPage, 0, true), GPUMEM_ERROR_NOT_FOUND);
  EXPECT_OK(memory->release());
}

TEST_F(HostSharingTest, WrongDescriptorsOfMemoryAreRefused) {
  const auto memory = make_shareable(2 * kPage);
  const auto other = make_shareable(2 * kPage);
  const OwnTicket ticket = ticket_of(memory);
  const uint64_t before = open_files();

  EXPECT_EQ(import_status(ticket, 2 * kPage + 1), GPUMEM_ERROR_INVALID_ARGUMENT) << "too large";
  EXPECT_EQ(import_status(ticket, UINT64_MAX), GPUMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(import_status(ticket, 0), GPUMEM_ERROR_INVALID_ARGUMENT);

  const auto with = [&](int file_descriptor) {
    Ticket wrong = ticket;
    wrong.file_descriptor = file_descriptor;
    return import_status(wrong, 2 * kPage);
  };
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  EXPECT_EQ(with(ends[0]), GPUMEM_ERROR_INVALID_ARGUMENT);
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_EQ(with(ends[0]), GPUMEM_ERROR_INVALID_ARGUMENT) << "closed";
  EXPECT_EQ(with(-1), GPUMEM_ERROR_INVALID_ARGUMENT);
  {
    const OwnTicket others = ticket_of(other);
    EXPECT_EQ(with(others.file_descriptor), GPUMEM_ERROR_INVALID_ARGUMENT);
  }
  const platform::Descriptor file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(with(file.get()), GPUMEM_ERROR_INVALID_ARGUMENT);

  // Bytes that fit a file that is no memory of a device, or one that can shrink.
  const auto named = [&](const platform::Descriptor& wrong) {
    const platform::DescriptorFacts facts = platform::describe(wrong.get());
    Ticket forged = ticket;
    std::memcpy(&forged.bytes[8], &facts.device, 8);
    std::memcpy(&forged.bytes[16], &facts.inode, 8);
    std::memcpy(&forged.bytes[24], &facts.size, 8);
    forged.file_descriptor = wrong.get();
    return import_status(forged, 2 * kPage);
  };
  const platform::Descriptor nameless(*platform::memory_file(2 * kPage));
  EXPECT_EQ(named(nameless), GPUMEM_ERROR_INVALID_ARGUMENT);
  const std::string name = platform::describe(ticket.file_descriptor).name;
  EXPECT_EQ(name.rfind("gpumem-memory-", 0), 0U) << name;
  const platform::Descriptor shrinks(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(shrinks.get(), 2 * kPage), 0);
  EXPECT_EQ(named(shrinks), GPUMEM_ERROR_INVALID_ARGUMENT);
  ASSERT_EQ(fcntl(shrinks.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_EQ(named(shrinks), GPUMEM_ERROR_INVALID_ARGUMENT) << "it can still grow";
  const platform::Descriptor huge(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (huge && ftruncate(huge.get(), 2 * kMiB) == 0 &&
      fcntl(huge.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0) {
    EXPECT_EQ(named(huge), GPUMEM_ERROR_INVALID_ARGUMENT) << "no page may be there to be touched";
  }

  for (const size_t byte : {0U, 8U, 16U, 24U, 32U, 47U}) {
    Ticket damaged = ticket;
    damaged.bytes.at(byte) ^= 0x40;
    EXPECT_EQ(import_status(damaged, 2 * kPage), GPUMEM_ERROR_INVALID_ARGUMENT) << byte;
  }
  EXPECT_OK(memory->release());
  EXPECT_OK(other->release());
  const uint64_t own = huge ? 4 : 3;
  EXPECT_EQ(open_files(), before - 2 + own) << "two memories are gone, and this test has files of its own";
}

TEST_F(HostSharingTest, EachFailingStepLeavesNothing) {
  const auto memory = make_shareable(kPage);
  const OwnTicket ticket = ticket_of(memory);
  const auto failing = [&](const std::function<Status()>& call) {
    const uint64_t files = open_files();
    uint64_t step = 0;
    Status status = GPUMEM_ERROR_OUT_OF_HOST_MEMORY;
    while (status != GPUMEM_SUCCESS && step < 50) {
      importer_->simulation()->fail_step(++step, false);
      simulation().fail_step(step, false);
      status = call();
      importer_->simulation()->fail_step(0, false);
      simulation().fail_step(0, false);
      EXPECT_EQ(open_files(), files) << step;
    }
    return step - 1;
  };
  EXPECT_GE(failing([&] { return import_status(ticket, kPage); }), 3U);
  EXPECT_EQ(failing([&] {
              auto again = sharing().export_memory(*memory);
              if (again) platform::close_descriptor(again->file_descriptor);
              return status_of(again);
            }),
            1U);
  EXPECT_EQ(failing([&] { return status_of(dev().create_event(GPUMEM_EVENT_INTERPROCESS)); }), 3U);
  EXPECT_OK(memory->release());
}

TEST_F(HostSharingTest, TheFacetCanBeMasked) {
  options_.masked = "sharing";
  open_both();
  EXPECT_EQ(dev().sharing(), nullptr);
  Request request = device_request(kPage);
  request.require = GPUMEM_MEMORY_SHAREABLE;
  EXPECT_EQ(status_of(create_memory(dev(), request)), GPUMEM_ERROR_UNSUPPORTED);
  request.require = 0;
  request.prefer = GPUMEM_MEMORY_SHAREABLE;
  const auto memory = make(request);
  EXPECT_EQ(memory->facts().granted & GPUMEM_MEMORY_SHAREABLE, 0U);
  EXPECT_OK(memory->release());
  EXPECT_EQ(status_of(dev().create_event(GPUMEM_EVENT_INTERPROCESS)), GPUMEM_ERROR_UNSUPPORTED);
  for (gpumem_capability capability = GPUMEM_CAPABILITY_SHARE_LEGACY;
       capability <= GPUMEM_CAPABILITY_SHARE_DMA_BUF_PCIE; ++capability) {
    EXPECT_EQ(dev().capability(capability, nullptr).value, GPUMEM_ANSWER_NO) << capability;
  }
}

TEST_F(HostSharingTest, Capabilities) {
  const auto ask = [&](gpumem_capability capability) { return dev().capability(capability, nullptr); };
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_SHARE_LEGACY).value, GPUMEM_ANSWER_YES);
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_SHARE_EVENTS).value, GPUMEM_ANSWER_YES);
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_SHARE_EVENTS).source, GPUMEM_ANSWER_FROM_TRIAL);
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_SHARE_CHANNEL).value, GPUMEM_ANSWER_YES);
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_SHARE_CHANNEL).source, GPUMEM_ANSWER_FROM_TRIAL);
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_SHARE_DMA_BUF).status, GPUMEM_ERROR_UNSUPPORTED);
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_SHARE_DMA_BUF_PCIE).status, GPUMEM_ERROR_UNSUPPORTED);
  EXPECT_EQ(status_of(sharing().export_dma_buf(nullptr, kPage, false)), GPUMEM_ERROR_UNSUPPORTED);
}

// ---- blocks ----

class HostBlocks : public HostSharingTest {
 protected:
  void TearDown() override {
    blocks_.clear();
    HostSharingTest::TearDown();
  }

  struct Block {
    std::unique_ptr<backend::Physical> physical;
    platform::Descriptor file;
  };
  Block make_block(uint64_t size, gpumem_location location = GPUMEM_LOCATION_DEVICE,
                   gpumem_handle_types types = GPUMEM_HANDLE_TYPE_POSIX_FD) {
    backend::PhysicalRequest request;
    request.location = location;
    if (location == GPUMEM_LOCATION_HOST_NUMA) request.numa_node = dev().facts().numa_node;
    request.size = size;
    request.handle_types = types;
    auto made = dev().vmm()->create(request);
    EXPECT_TRUE(made) << made.error().message;
    Block block{std::move(*made), {}};
    if (types != 0) block.file = platform::Descriptor(*block.physical->export_fd());
    return block;
  }
  // Two, of one and of two units.
  void make_two(gpumem_location location = GPUMEM_LOCATION_DEVICE) {
    blocks_.push_back(make_block(kGranularity, location));
    blocks_.push_back(make_block(2 * kGranularity, location));
    files_ = {blocks_[0].file.get(), blocks_[1].file.get()};
    sizes_ = {kGranularity, 2 * kGranularity};
    request_.file_descriptors = files_;
    request_.sizes = sizes_;
    request_.location = location;
    if (location == GPUMEM_LOCATION_HOST_NUMA) request_.numa_node = dev().facts().numa_node;
  }
  // Through the files, as their maker would.
  void write_blocks(const std::vector<unsigned char>& bytes) {
    ASSERT_EQ(pwrite(files_[0], bytes.data(), kGranularity, 0), static_cast<ssize_t>(kGranularity));
    ASSERT_EQ(pwrite(files_[1], bytes.data() + kGranularity, 2 * kGranularity, 0),
              static_cast<ssize_t>(2 * kGranularity));
  }
  MemoryPointer import_all() {
    auto memory = importing().import_blocks(request_);
    EXPECT_TRUE(memory) << memory.error().message;
    return memory ? MemoryPointer(std::move(*memory)) : nullptr;
  }
  Status status() { return status_of(importing().import_blocks(request_)); }

  static constexpr uint64_t kAll = 3 * kGranularity;
  std::vector<Block> blocks_;
  std::vector<int> files_;
  std::vector<uint64_t> sizes_;
  backend::BlocksRequest request_;
};

TEST_F(HostBlocks, LieOneBehindTheOther) {
  make_two();
  const auto bytes = pattern(kAll);
  write_blocks(bytes);
  const uint64_t before = open_files();
  const auto memory = import_all();
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(open_files(), before);
  EXPECT_EQ(memory->facts().granted_size, kAll);
  EXPECT_EQ(memory->facts().granted, 0U);
  EXPECT_EQ(read_there(device(memory), kAll), bytes);
  EXPECT_TRUE(faults(memory->facts().device_pointer, false));
  // Across the border, and with the right of this device alone.
  auto* const border = static_cast<std::byte*>(memory->facts().device_pointer) + kGranularity - 8;
  EXPECT_NE(view_there(border, 16, GPUMEM_ACCESS_READWRITE), nullptr);
  blocks_.clear();
  EXPECT_EQ(read_there(device(memory), kAll), bytes) << "the exporter's end does not matter";
  EXPECT_OK(there(1).enable_peer_access(there(0)));
  EXPECT_EQ(view_there(border, 16, GPUMEM_ACCESS_READ, 1), nullptr);
  EXPECT_OK(memory->release());
}

TEST_F(HostBlocks, CanBeAtAnAddress) {
  make_two();
  request_.address = *platform::reserve(kAll, kGranularity);
  EXPECT_EQ(status(), GPUMEM_ERROR_ALREADY_EXISTS);
  platform::unmap(request_.address, kAll);
  for (int round = 0; round < 2; ++round) {
    const auto memory = import_all();
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(memory->facts().device_pointer, request_.address);
    EXPECT_OK(memory->release());
  }
}

TEST_F(HostBlocks, CanBeImportedForReading) {
  make_two();
  const auto bytes = pattern(kAll);
  write_blocks(bytes);
  request_.access = GPUMEM_ACCESS_READ;
  const auto memory = import_all();
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(memory->facts().granted, GPUMEM_MEMORY_READ_ONLY);
  EXPECT_EQ(read_there(device(memory), kAll), bytes);
  const StreamPointer stream = stream_there();
  EXPECT_EQ(status_of(stream->copy(copy_of(device(memory), pageable(bytes.data()), 8))),
            GPUMEM_ERROR_NO_ACCESS);
  EXPECT_EQ(status_of(stream->fill(fill_of(device(memory), 8, 0))), GPUMEM_ERROR_NO_ACCESS);
  EXPECT_EQ(status_of(stream->write_value(device(memory), 0, 4)), GPUMEM_ERROR_NO_ACCESS);
  void* const view = view_there(memory->facts().device_pointer, kAll, GPUMEM_ACCESS_READ);
  ASSERT_NE(view, nullptr);
  EXPECT_NE(mprotect(view, kPage, PROT_READ | PROT_WRITE), 0) << "the file is open for reading only";
  EXPECT_EQ(errno, EACCES);
  EXPECT_EQ(view_there(memory->facts().device_pointer, 8, GPUMEM_ACCESS_READWRITE), nullptr);
  EXPECT_TRUE(there().lost());
  EXPECT_OK(memory->release());
}

TEST_F(HostBlocks, OfTheHostAreForTheCpuToo) {
  for (const gpumem_location location : {GPUMEM_LOCATION_HOST_NUMA, GPUMEM_LOCATION_HOST}) {
    make_two(location);
    const auto bytes = pattern(kAll, 3);
    write_blocks(bytes);
    const auto memory = import_all();
    ASSERT_NE(memory, nullptr);
    ASSERT_EQ(memory->facts().host_pointer, memory->facts().device_pointer);
    EXPECT_EQ(std::memcmp(memory->facts().host_pointer, bytes.data(), kAll), 0);
    EXPECT_FALSE(faults(memory->facts().host_pointer, true));
    EXPECT_TRUE(has_flag(memory->facts().host_pointer, "dc"));
    request_.access = GPUMEM_ACCESS_READ;
    const auto reading = import_all();
    ASSERT_NE(reading, nullptr);
    EXPECT_FALSE(faults(reading->facts().host_pointer, false));
    EXPECT_TRUE(faults(reading->facts().host_pointer, true));
    EXPECT_OK(memory->release());
    EXPECT_OK(reading->release());
    request_.access = GPUMEM_ACCESS_READWRITE;
    blocks_.clear();
  }
}

TEST_F(HostBlocks, OfAnotherDeviceNeedALink) {
  options_.peers = "1>0";
  options_.device_count = 3;
  open_both();
  make_two();
  EXPECT_EQ(status_of(importing(1).import_blocks(request_)), GPUMEM_ERROR_INVALID_ARGUMENT);
  request_.home = &there(0);
  EXPECT_EQ(status_of(importing(2).import_blocks(request_)), GPUMEM_ERROR_UNSUPPORTED);
  auto memory = importing(1).import_blocks(request_);
  ASSERT_TRUE(memory) << memory.error().message;
  EXPECT_NE(view_there((*memory)->facts().device_pointer, kAll, GPUMEM_ACCESS_READWRITE, 1), nullptr);
  EXPECT_OK((*memory)->release());
}

TEST_F(HostBlocks, WrongOnesAreRefused) {
  make_two();
  const uint64_t before = open_files();
  std::swap(sizes_[0], sizes_[1]);
  EXPECT_EQ(status(), GPUMEM_ERROR_INVALID_ARGUMENT) << "other sizes";
  std::swap(sizes_[0], sizes_[1]);
  request_.sizes = std::span(sizes_).first(1);
  EXPECT_EQ(status(), GPUMEM_ERROR_INVALID_ARGUMENT) << "fewer sizes";
  request_.sizes = sizes_;
  request_.location = GPUMEM_LOCATION_HOST;
  EXPECT_EQ(status(), GPUMEM_ERROR_INVALID_ARGUMENT) << "another place";
  request_.location = GPUMEM_LOCATION_DEVICE;

  const auto with = [&](int file_descriptor) {
    files_[1] = file_descriptor;
    return status();
  };
  const auto memory = make_shareable(2 * kGranularity);
  {
    const OwnTicket ticket = ticket_of(memory);
    EXPECT_EQ(with(ticket.file_descriptor), GPUMEM_ERROR_INVALID_ARGUMENT) << "memory, but no block";
  }
  EXPECT_OK(memory->release());
  EXPECT_EQ(with(-1), GPUMEM_ERROR_INVALID_ARGUMENT);
  {
    auto reopened = platform::reopen(blocks_[1].file.get(), false);
    const platform::Descriptor reading(std::move(*reopened));
    EXPECT_EQ(with(reading.get()), GPUMEM_ERROR_NO_ACCESS) << "it does not let anybody write";
    const platform::DescriptorFacts facts = platform::describe(blocks_[1].file.get());
    const platform::Descriptor shrinks(memfd_create(facts.name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(ftruncate(shrinks.get(), 2 * kGranularity), 0);
    EXPECT_EQ(with(shrinks.get()), GPUMEM_ERROR_INVALID_ARGUMENT);
  }
  EXPECT_EQ(open_files(), before);
}

// The system breaks one after 45 seconds.
TEST_F(HostBlocks, ALeaseOnAFileIsNotWaitedFor) {
  make_two();
  const platform::DescriptorFacts facts = platform::describe(blocks_[1].file.get());
  platform::Descriptor file(memfd_create(facts.name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(file.get(), 2 * kGranularity), 0);
  ASSERT_EQ(fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  auto leased = platform::reopen(file.get(), true);
  ASSERT_TRUE(leased);
  file = {};                                             // or there is no lease
  ASSERT_EQ(fcntl(leased->get(), F_SETSIG, SIGURG), 0);  // which is ignored
  ASSERT_EQ(fcntl(leased->get(), F_SETLEASE, F_WRLCK), 0);
  files_[1] = leased->get();
  request_.access = GPUMEM_ACCESS_READ;
  EXPECT_EQ(status(), GPUMEM_ERROR_INVALID_ARGUMENT);
}

// ---- events ----

class HostSharedEvents : public HostSharingTest {
 protected:
  void SetUp() override {
    HostSharingTest::SetUp();
    event_ = make_shared_event();
    event_there_ = import_event(event_);
  }
  void TearDown() override {
    event_.reset();
    event_there_.reset();
    HostSharingTest::TearDown();
  }

  EventPointer make_shared_event() {
    auto event = dev().create_event(GPUMEM_EVENT_INTERPROCESS | GPUMEM_EVENT_DISABLE_TIMING);
    EXPECT_TRUE(event) << event.error().message;
    return *event;
  }
  EventPointer import_event(const EventPointer& event) {
    const OwnTicket ticket(*sharing().export_event(*event));
    auto imported = importing().import_event(ticket);
    EXPECT_TRUE(imported) << imported.error().message;
    return *imported;
  }
  static bool complete(const EventPointer& event) {
    auto done = event->query();
    EXPECT_TRUE(done) << done.error().message;
    return done && *done;
  }
  static bool completes(const EventPointer& event, uint64_t timeout_ns = kForever) {
    auto done = event->synchronize(timeout_ns);
    EXPECT_TRUE(done) << done.error().message;
    return done && *done;
  }

  EventPointer event_;
  EventPointer event_there_;
};

TEST_F(HostSharedEvents, AreCompleteUntilTheyAreRecorded) {
  EXPECT_TRUE(complete(event_));
  EXPECT_TRUE(complete(event_there_));
  const StreamPointer stream = stream_there();
  EXPECT_OK(stream->wait_event(*event_there_));
  finish(*stream);
  EXPECT_FALSE(dev().sharing()->export_event(*make_event())) << "without the flag";
}

TEST_F(HostSharedEvents, CanBeRecordedOnEitherSide) {
  const StreamPointer here = make_stream();
  const StreamPointer there = stream_there();
  for (const bool back : {false, true, false, true}) {
    const EventPointer& recorded = back ? event_there_ : event_;
    const EventPointer& seen = back ? event_ : event_there_;
    const StreamPointer& recording = back ? there : here;
    const StreamPointer& waiting = back ? here : there;
    Gate gate;
    EXPECT_OK(gate.hold(*recording));
    EXPECT_OK(recorded->record(*recording));
    EXPECT_FALSE(complete(recorded));
    EXPECT_FALSE(complete(seen));
    EXPECT_FALSE(completes(seen, kShort));
    EXPECT_OK(waiting->wait_event(*seen));
    EXPECT_FALSE(*waiting->synchronize(kShort));
    gate.open();
    EXPECT_TRUE(completes(seen));
    EXPECT_TRUE(completes(recorded));
    finish(*waiting);
  }
}

// Whoever sees a record complete first, all others see it complete too.
TEST_F(HostSharedEvents, AreCompleteForAllOrForNobody) {
  const StreamPointer stream = make_stream();
  const StreamPointer other = make_stream();
  // So that the worker often waits for the lock, and what it does before and after that is seen apart.
  std::atomic<bool> over{false};
  std::vector<std::thread> asking;
  for (int count = 0; count < 2; ++count)
    asking.emplace_back([&] {
      while (!over)
        (void)other->query();
    });
  for (int round = 0; round < 2000 && !HasFailure(); ++round) {
    const bool there_first = round % 4 != 0;
    EXPECT_OK(event_->record(*stream));
    while (!complete(there_first ? event_there_ : event_)) {
    }
    EXPECT_TRUE(complete(there_first ? event_ : event_there_)) << "round " << round;
  }
  over = true;
  for (std::thread& thread : asking)
    thread.join();
}

// The same, with the worker stopped where it has run the operation and cannot complete it yet.
TEST_F(HostSharedEvents, AreNotCompleteBeforeTheirOperation) {
  host::SharedEvent& page = *static_cast<host::HostEvent&>(*event_).page();
  const StreamPointer stream = make_stream();
  const StreamPointer other = make_stream();
  auto record = *page.record();
  record->publish();
  std::atomic<pid_t> worker{0};
  std::atomic<bool> locked{false};
  std::atomic<bool> over{false};
  EXPECT_OK(static_cast<host::HostStream&>(*stream).queue().enqueue({.run = [&]() -> Result<void> {
                                                                       worker = gettid();
                                                                       while (!locked)
                                                                         std::this_thread::yield();
                                                                       return {};
                                                                     },
                                                                     .shown = std::move(record)},
                                                                    {}));
  while (worker == 0)
    std::this_thread::yield();
  host::Queue& holding = static_cast<host::HostStream&>(*other).queue();
  EXPECT_OK(holding.enqueue({.run = [&]() -> Result<void> {
                              holding.hold_until([&] {  // which runs under the lock
                                locked = true;
                                while (!over)
                                  std::this_thread::yield();
                                return true;
                              });
                              return {};
                            }},
                            {}));
  while (!locked)
    std::this_thread::yield();
  gpumem::test::wait_until_asleep(worker);
  EXPECT_FALSE(complete(event_there_));
  over = true;
  finish(*stream);
  EXPECT_TRUE(complete(event_there_));
  finish(*other);
}

TEST_F(HostSharedEvents, AWaitIsForTheRecordOfItsCall) {
  const StreamPointer slow = make_stream();
  const StreamPointer fast = make_stream();
  const StreamPointer waiting = stream_there();
  Gate gate;
  EXPECT_OK(gate.hold(*slow));
  EXPECT_OK(event_->record(*slow));
  EXPECT_OK(waiting->wait_event(*event_there_));
  EXPECT_OK(event_->record(*fast));
  finish(*fast);
  EXPECT_TRUE(completes(event_there_)) << "the latest record counts";
  EXPECT_FALSE(*waiting->synchronize(kShort)) << "the earlier one is waited for";
  gate.open();
  finish(*waiting);
}

TEST_F(HostSharedEvents, ManyRecordsCanBePending) {
  const StreamPointer stream = make_stream();
  Gate gate;
  EXPECT_OK(gate.hold(*stream));
  std::vector<StreamPointer> waiting;
  for (int record = 0; record < 40; ++record) {
    EXPECT_OK(event_->record(*stream));
    waiting.push_back(stream_there());
    EXPECT_OK(waiting.back()->wait_event(*event_there_));
  }
  for (const StreamPointer& each : waiting)
    EXPECT_FALSE(*each->query());
  gate.open();
  for (const StreamPointer& each : waiting)
    finish(*each);
}

TEST_F(HostSharedEvents, CarryTheOrderOfMemory) {
  constexpr uint64_t kSize = 64 * kKiB;
  const auto memory = make_shareable(kSize);
  const auto imported = import(ticket_of(memory), kSize);
  const EventPointer back = make_shared_event();
  const EventPointer back_there = import_event(back);
  const StreamPointer here = make_stream();
  const StreamPointer there = stream_there();
  std::vector<std::vector<unsigned char>> seen(50, std::vector<unsigned char>(kSize));
  for (size_t round = 0; round < seen.size(); ++round) {
    EXPECT_OK(here->wait_event(*back));
    EXPECT_OK(here->fill(fill_of(device(memory), kSize, static_cast<uint32_t>(round))));
    EXPECT_OK(event_->record(*here));
    EXPECT_OK(there->wait_event(*event_there_));
    EXPECT_OK(there->copy(copy_of(pageable(seen[round].data()), device(imported), kSize)));
    EXPECT_OK(back_there->record(*there));
  }
  finish(*there);
  finish(*here);
  for (size_t round = 0; round < seen.size(); ++round)
    EXPECT_EQ(seen[round], std::vector<unsigned char>(kSize, static_cast<unsigned char>(round)));
  EXPECT_OK(imported->release());
  EXPECT_OK(memory->release());
}

TEST_F(HostSharedEvents, OfALostDeviceAreComplete) {
  const StreamPointer stream = make_stream();
  Gate gate;
  EXPECT_OK(gate.hold(*stream));
  EXPECT_OK(event_->record(*stream));
  EXPECT_FALSE(complete(event_there_));
  simulation().lose(dev());
  gate.open();
  EXPECT_TRUE(completes(event_there_));
  EXPECT_EQ(status_of(event_->query()), GPUMEM_ERROR_DEVICE_LOST);
}

TEST_F(HostSharedEvents, AWaitEndsWithItsDevice) {
  const StreamPointer stream = make_stream();
  const StreamPointer waiting = stream_there();
  Gate gate;
  EXPECT_OK(gate.hold(*stream));
  EXPECT_OK(event_->record(*stream));
  EXPECT_OK(waiting->wait_event(*event_there_));
  std::thread losing([&] {
    std::this_thread::sleep_for(milliseconds(20));
    importer_->simulation()->lose(there());
  });
  EXPECT_EQ(status_of(event_there_->synchronize(kForever)), GPUMEM_ERROR_DEVICE_LOST);
  losing.join();
  EXPECT_EQ(status_of(waiting->synchronize(kForever)), GPUMEM_ERROR_DEVICE_LOST);
}

TEST_F(HostSharedEvents, AWaitDoesNotKeepABackendOpen) {
  const StreamPointer stream = make_stream();
  StreamPointer waiting = stream_there();
  Gate gate;
  EXPECT_OK(gate.hold(*stream));
  EXPECT_OK(event_->record(*stream));
  EXPECT_OK(waiting->wait_event(*event_there_));
  EXPECT_OK(waiting->release());
  waiting.reset();
  event_there_.reset();
  importer_.reset();  // would never return if it waited for the gate
  EXPECT_FALSE(complete(event_));
}

// The recorder is a process that lives and does not go on, as one that was stopped.
TEST_F(HostSharedEvents, AClosingBackendSoonStopsWaitingForOthers) {
  const StreamPointer stream = make_stream();
  const StreamPointer waiting = stream_there();
  Gate gate;
  EXPECT_OK(gate.hold(*stream));
  EXPECT_OK(event_->record(*stream));
  EXPECT_OK(waiting->wait_event(*event_there_));
  std::vector<unsigned char> bytes(4096, 7);
  EXPECT_OK(waiting->launch_host_function([](void* byte) { *static_cast<unsigned char*>(byte) = 8; },
                                          bytes.data(), true));
  importer_->stop_waiting_for_others();
  EXPECT_EQ(status_of(event_there_->synchronize(kForever)), GPUMEM_ERROR_CLOSED);
  EXPECT_EQ(status_of(waiting->synchronize(kForever)), GPUMEM_ERROR_BUSY);
  EXPECT_EQ(bytes[0], 7) << "what waited does not run";
}

TEST_F(HostSharedEvents, AWaitForACompleteRecordQueuesNothing) {
  const StreamPointer stream = make_stream();
  const StreamPointer there = stream_there();
  const StreamPointer other = make_stream();
  EXPECT_OK(event_->record(*stream));
  EXPECT_TRUE(completes(event_there_));
  EXPECT_OK(stream->synchronize(kForever));  // others may see the end of a record before this process
  simulation().fail_step(1, true);
  importer_->simulation()->fail_step(1, true);
  EXPECT_OK(there->wait_event(*event_there_));
  EXPECT_OK(other->wait_event(*event_));
  simulation().fail_step(0, false);
  importer_->simulation()->fail_step(0, false);
}

TEST_F(HostSharedEvents, WrongDescriptorsAreRefused) {
  const OwnTicket ticket(*sharing().export_event(*event_));
  const auto memory = make_shareable(8192);
  const uint64_t before = open_files();
  EXPECT_EQ(status_of(importing(1).import_event(ticket)), GPUMEM_ERROR_INVALID_ARGUMENT) << "another device";
  {
    const OwnTicket of_memory = ticket_of(memory);
    EXPECT_EQ(status_of(importing().import_event(of_memory)), GPUMEM_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(status_of(importing().import_memory({ticket, 8192, false})), GPUMEM_ERROR_INVALID_ARGUMENT);
    Ticket mixed = ticket;
    mixed.file_descriptor = of_memory.file_descriptor;
    EXPECT_EQ(status_of(importing().import_event(mixed)), GPUMEM_ERROR_INVALID_ARGUMENT);
    Ticket forged = of_memory;
    forged.bytes[0] = ticket.bytes[0];
    EXPECT_EQ(status_of(importing().import_event(forged)), GPUMEM_ERROR_INVALID_ARGUMENT);
  }
  EXPECT_EQ(open_files(), before);
  EXPECT_OK(memory->release());
}

// Whatever an importer writes into the pages, it does no more than to complete a wait, to prolong it, or to
// make it fail.
TEST_F(HostSharedEvents, PagesMayHoldAnything) {
  const OwnTicket ticket(*sharing().export_event(*event_));
  const uint64_t size = platform::describe(ticket.file_descriptor).size;
  auto* const page = static_cast<unsigned char*>(
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, ticket.file_descriptor, 0));
  ASSERT_NE(page, MAP_FAILED);
  const StreamPointer stream = make_stream();
  const StreamPointer waiting = stream_there();
  const auto ask = [](const EventPointer& event) {
    auto done = event->query();
    EXPECT_TRUE(done || done.error().status == GPUMEM_ERROR_PEER_GONE) << done.error().message;
  };
  EXPECT_OK(event_->record(*stream));
  for (unsigned seed = 0; seed < 200; ++seed) {
    const auto noise = pattern(size, seed * 77);
    std::memcpy(page, noise.data(), size);
    if (seed % 3 == 0) std::memset(page, 0xff, size);
    ask(event_);
    ask(event_there_);
    (void)event_there_->synchronize(1000);
    EXPECT_OK(event_->record(*stream));
    EXPECT_OK(event_there_->record(*waiting));
  }
  std::memset(page, 0, size);
  munmap(page, size);
  finish(*stream);
  finish(*waiting);
  EXPECT_TRUE(completes(event_));
}

// ---- recorders ----

class SharedEventTest : public testing::Test {
 protected:
  SharedEventTest() {
    event_ = *SharedEvent::create(steps_, uuid_);
    file_ = std::move(*event_->open_file());
  }
  std::shared_ptr<SharedEvent> another() {
    auto opened = SharedEvent::open(steps_, uuid_, file_.get());
    EXPECT_TRUE(opened) << opened.error().message;
    return *opened;
  }
  ~SharedEventTest() override {
    kill_child();
    bury_child();
  }
  // Records it, without an end, in a child that then runs `more`.
  void start_recording_child(const std::function<void()>& more = [] {}) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const pid_t child = quiet_fork();
    ASSERT_GE(child, 0) << strerror(errno);
    if (child == 0) {
      auto opened = SharedEvent::open(steps_, uuid_, file_.get());
      if (!opened) _exit(1);
      auto record = (*opened)->record();
      if (!record) _exit(2);
      (*record)->publish();
      more();
      if (write(ends[1], "x", 1) != 1) _exit(3);
      for (;;)
        pause();
    }
    child_ = child;
    ::close(ends[1]);
    char byte = 0;
    EXPECT_EQ(::read(ends[0], &byte, 1), 1);
    ::close(ends[0]);
  }
  // What its parent has not waited for keeps its number.
  void kill_child() const {
    if (child_ > 0) kill(child_, SIGKILL);
  }
  void bury_child() {
    if (child_ > 0) waitpid(std::exchange(child_, -1), nullptr, 0);
  }
  bool pending() const { return !SharedEvent::Wait(event_, event_->latest()).is_over(); }
  // Whether a wait ends by itself.
  bool ends() const {
    SharedEvent::Wait wait(event_, event_->latest());
    const auto limit = steady_clock::now() + std::chrono::minutes(2);
    while (!wait.over_within(limit - steady_clock::now())) {
      if (steady_clock::now() > limit) return false;
    }
    return true;
  }

  host::Steps steps_;
  host::DeviceUuid uuid_{1, 2, 3};
  std::shared_ptr<SharedEvent> event_;
  platform::Descriptor file_;
  pid_t child_ = -1;
};

TEST_F(SharedEventTest, ARecordIsCompleteWhenItIsGone) {
  auto recorder = another();
  auto record = *recorder->record();
  EXPECT_EQ(event_->latest().number, 0U) << "it is not published";
  record->publish();
  EXPECT_TRUE(pending());
  record.reset();
  EXPECT_FALSE(pending());
}

TEST_F(SharedEventTest, RecordsCompleteInAnyOrder) {
  auto recorder = another();
  std::vector<std::shared_ptr<SharedEvent::Record>> records;
  std::vector<SharedEvent::Wait> waits;
  for (int number = 0; number < 10; ++number) {
    records.push_back(*recorder->record());
    records.back()->publish();
    waits.emplace_back(event_, event_->latest());
  }
  for (const size_t number : {7U, 0U, 9U, 3U}) {
    EXPECT_FALSE(waits[number].is_over()) << number;
    records[number].reset();
    EXPECT_TRUE(waits[number].is_over()) << number;
  }
  for (const size_t number : {1U, 2U, 4U, 5U, 6U, 8U})
    EXPECT_FALSE(waits[number].is_over()) << number;
}

// RING-9: who has a queue of waits does not sleep in each.
TEST_F(SharedEventTest, WaitsForOneThatHasEndedDoNotSleep) {
  start_recording_child();
  std::vector<SharedEvent::Wait> waits(100, SharedEvent::Wait(event_, event_->latest()));
  kill_child();
  bury_child();
  std::this_thread::sleep_for(SharedEvent::kLookEvery);
  const auto times_asleep = [] {
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
  };
  const auto before = times_asleep();
  for (SharedEvent::Wait& wait : waits) {
    EXPECT_TRUE(wait.over_within(std::chrono::minutes(2)));
    EXPECT_EQ(status_of(wait.outcome()), GPUMEM_ERROR_PEER_GONE);
  }
  EXPECT_LT(times_asleep() - before, static_cast<long>(waits.size()));
}

TEST_F(SharedEventTest, RecordersAreLimitedAndComeBack) {
  std::vector<std::shared_ptr<SharedEvent>> recorders;
  for (int count = 0; count < 63; ++count) {
    recorders.push_back(another());
    EXPECT_TRUE(recorders.back()->record());
  }
  EXPECT_EQ(status_of(another()->record()), GPUMEM_ERROR_LIMIT_EXCEEDED);
  (*recorders.back()->record())->publish();
  const SharedEvent::Wait old(event_, event_->latest());
  recorders.pop_back();
  auto next = another();
  auto record = *next->record();
  EXPECT_TRUE(old.is_over());
  record->publish();
  EXPECT_TRUE(pending()) << "the numbers go on";
  EXPECT_TRUE(old.is_over());
}

// RING-11: others only wait for it, and cannot keep it from being recorded.
TEST_F(SharedEventTest, OneThatIsRecordedHereIsWrittenByNobodyElse) {
  event_ = *SharedEvent::create(steps_, uuid_, true);
  file_ = std::move(*event_->open_file());
  const uint64_t size = platform::describe(file_.get()).size;
  EXPECT_EQ(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0), MAP_FAILED);
  for (uint64_t recorder = 0; recorder < 63; ++recorder)
    EXPECT_EQ(*platform::lock_byte(file_.get(), recorder), recorder != 0) << "the first one is taken";
  auto other = another();
  EXPECT_EQ(status_of(other->record()), GPUMEM_ERROR_NO_ACCESS);
  auto record = event_->record();
  ASSERT_TRUE(record) << record.error().message;
  (*record)->publish();
  const SharedEvent::Wait wait(other, other->latest());
  EXPECT_FALSE(wait.is_over());
  record->reset();
  EXPECT_TRUE(wait.is_complete());
}

// What another process can write must not make others wait for a record that nobody made.
TEST_F(SharedEventTest, ARecordThatNobodyMadeIsNotWaitedFor) {
  constexpr uint64_t kFar = uint64_t{1} << 40;
  const uint64_t size = platform::describe(file_.get()).size;
  void* const mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto& latest = *static_cast<std::atomic<uint64_t>*>(mapped);
  auto& recorded = static_cast<std::atomic<uint64_t>*>(mapped)[(128 + 24) / sizeof(uint64_t)];
  auto recorder = another();
  auto record = *recorder->record();
  record->publish();
  EXPECT_EQ(recorded, 1U) << "the first recorder";
  latest = kFar << 6;
  EXPECT_TRUE(pending()) << "the record that was made";
  recorded = kFar;
  record.reset();
  EXPECT_FALSE(pending()) << "its recorder has repaired the count";
  // Both counts, while the recorder lives and records nothing.
  recorded = kFar;
  latest = kFar << 6;
  EXPECT_EQ(event_->latest().number, kFar);
  EXPECT_FALSE(pending());
  EXPECT_TRUE(ends());
  EXPECT_TRUE(SharedEvent::Wait(event_, event_->latest()).outcome());
  EXPECT_TRUE(SharedEvent::Wait(event_, event_->latest()).is_over());
  // Nor once it goes on.
  record = *recorder->record();
  record->publish();
  EXPECT_TRUE(pending());
  record.reset();
  EXPECT_FALSE(pending());
  latest = kFar << 6 | 5;
  EXPECT_EQ(event_->latest().number, 0U) << "of a recorder that nobody took";
  munmap(mapped, size);
}

// Another process may have written that a complete record is not, and its recorder may wait for whoever
// waits.
TEST_F(SharedEventTest, ACompleteRecordIsNotWaitedForWhileALaterOneIsPending) {
  const uint64_t size = platform::describe(file_.get()).size;
  void* const mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* const lanes = static_cast<std::atomic<uint64_t>*>(mapped) + (128 + 32) / sizeof(uint64_t);
  auto recorder = another();
  auto record = *recorder->record();
  record->publish();
  const SharedEvent::Wait first(event_, event_->latest());
  auto later = *recorder->record();
  EXPECT_FALSE(first.is_over());
  record.reset();
  EXPECT_EQ(lanes[1].exchange(0), 1U) << "the record's lane";
  EXPECT_FALSE(first.is_complete());
  EXPECT_TRUE(first.is_over());
  EXPECT_TRUE(ends());
  EXPECT_OK(first.outcome());
  later->publish();
  EXPECT_TRUE(pending());
  later.reset();
  EXPECT_FALSE(pending());
  EXPECT_EQ(munmap(mapped, size), 0);
}

// Another process may have written that the recorder has ended, or is of another namespace.
TEST_F(SharedEventTest, ARecordSaysAnewWhoMadeIt) {
  const uint64_t size = platform::describe(file_.get()).size;
  void* const mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* const first_recorder = static_cast<std::atomic<uint64_t>*>(mapped) + 128 / sizeof(uint64_t);
  auto recorder = another();
  ASSERT_TRUE(recorder->record());
  for (const size_t word : {0U, 1U, 2U}) {
    const uint64_t said = first_recorder[word].exchange(1);
    auto record = *recorder->record();
    record->publish();
    EXPECT_EQ(first_recorder[word], said) << word;
    EXPECT_TRUE(pending()) << word;
  }
  EXPECT_EQ(munmap(mapped, size), 0);
}

TEST_F(SharedEventTest, TheRecordOfAKilledProcessIsNeverComplete) {
  start_recording_child();
  EXPECT_TRUE(pending());
  kill_child();
  EXPECT_TRUE(ends()) << "nobody has waited for the zombie";
  bury_child();
  const SharedEvent::Wait wait(event_, event_->latest());
  EXPECT_TRUE(wait.is_over());
  EXPECT_EQ(status_of(wait.outcome()), GPUMEM_ERROR_PEER_GONE);
  // The next process that records it leaves that to be seen.
  auto recorder = another();
  auto record = *recorder->record();
  record->publish();
  EXPECT_EQ(status_of(wait.outcome()), GPUMEM_ERROR_PEER_GONE);
  EXPECT_TRUE(pending());
  record.reset();
  const SharedEvent::Wait next(event_, event_->latest());
  EXPECT_OK(next.outcome());
}

TEST_F(SharedEventTest, AForkedChildDoesNotKeepARecordPending) {
  int said[2];  // the grandchild has the second end as long as it lives
  int hold[2];  // it lives until this is closed
  ASSERT_EQ(pipe2(said, O_CLOEXEC | O_NONBLOCK), 0);
  ASSERT_EQ(pipe2(hold, O_CLOEXEC), 0);
  start_recording_child([&] {
    const pid_t grandchild = fork();
    if (grandchild < 0) _exit(4);
    if (grandchild > 0) return;
    ::close(hold[1]);
    char byte = 0;
    while (::read(hold[0], &byte, 1) < 0) {
    }
    _exit(0);
  });
  ::close(said[1]);
  ::close(hold[0]);
  EXPECT_TRUE(pending());
  kill_child();
  bury_child();
  EXPECT_TRUE(ends());
  char byte = 0;
  EXPECT_EQ(::read(said[0], &byte, 1), -1) << "it still has the descriptors";
  ::close(hold[1]);
  ::close(said[0]);
}

TEST_F(SharedEventTest, RecordsOfAnotherProcessNamespaceStayPending) {
  int said[2];
  int hold[2];  // the recording process lives until this is closed
  ASSERT_EQ(pipe2(said, O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(hold, O_CLOEXEC), 0);
  const pid_t child = quiet_fork();
  ASSERT_GE(child, 0) << strerror(errno);
  if (child == 0) {
    ::close(hold[1]);
    if (unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) _exit(10);
    if (fork() != 0) _exit(0);  // the first process of the namespace goes on
    auto opened = SharedEvent::open(steps_, uuid_, file_.get());
    if (!opened) _exit(1);
    auto record = (*opened)->record();
    if (!record) _exit(2);
    (*record)->publish();
    const pid_t own = getpid();
    if (write(said[1], &own, sizeof own) != sizeof own) _exit(3);
    char byte = 0;
    _exit(::read(hold[0], &byte, 1) == 0 ? 0 : 4);
  }
  ::close(said[1]);
  ::close(hold[0]);
  pid_t own = 0;
  const ssize_t length = ::read(said[0], &own, sizeof own);
  ::close(said[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (length == static_cast<ssize_t>(sizeof own)) {
    EXPECT_EQ(own, 1);
    EXPECT_TRUE(pending()) << "its number means another process here";
  }
  ::close(hold[1]);
  if (WEXITSTATUS(status) == 10)
    GTEST_SKIP() << "unshare() refuses a process namespace: no right, or a thread of ThreadSanitizer";
  EXPECT_EQ(length, static_cast<ssize_t>(sizeof own));
  EXPECT_TRUE(ends());
}

}  // namespace
}  // namespace gpumem::test
