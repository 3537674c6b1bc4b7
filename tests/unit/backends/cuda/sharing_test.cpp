// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Sharing between processes by the cuda backend over the fake driver. The exporter is this program, run
// again.
#include "backends/cuda/sharing.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

#include "backends/cuda/stream.h"
#include "backends/cuda/vmm.h"
#include "base/arithmetic.h"
#include "cuda_fake.h"
#include "host_support.h"
#include "platform/descriptor.h"
#include "platform/pages.h"
#include "process_support.h"

namespace gpumem::cuda {
namespace {

using test::Gate;
using test::open_files;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr const char* kSocketVariable = "GPUMEM_TEST_EXPORTER_SOCKET";
constexpr size_t kBlocksMax = 8;

// ---- what the two processes say to each other ----

enum class Ask : uint32_t {
  kMemory,      // makes memory, filled with a byte
  kFree,        // frees it
  kFirstByte,   // of it
  kBlocks,      // makes blocks, filled with bytes that count up
  kEvent,       // makes an event
  kRecord,      // records it
  kDestroy,     // destroys it
  kIsComplete,  // asks whether the event is complete
};

struct Question {
  Ask ask = Ask::kMemory;
  uint64_t size = 0;
  gpumem_memory_flags flags = 0;
  uint32_t device = 0;
  uint32_t byte = 0;
  gpumem_location location = GPUMEM_LOCATION_DEVICE;
  uint64_t sizes[kBlocksMax] = {};
  uint32_t count = 0;
};

struct Answer {
  backend::Ticket ticket;
  uint64_t value = 0;
};

void send_all(int socket, const void* bytes, size_t size) {
  if (send(socket, bytes, size, MSG_NOSIGNAL) != static_cast<ssize_t>(size))
    ADD_FAILURE() << "the other process has gone";
}

bool receive_all(int socket, void* bytes, size_t size) {
  return recv(socket, bytes, size, MSG_WAITALL) == static_cast<ssize_t>(size);
}

union Control {
  cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
};

void send_descriptor(int socket, int descriptor) {
  char byte = 0;
  iovec content{&byte, 1};
  Control control{};
  msghdr message{};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  message.msg_control = &control;
  message.msg_controllen = sizeof control;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof descriptor);
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  ASSERT_EQ(sendmsg(socket, &message, MSG_NOSIGNAL), 1);
}

platform::Descriptor receive_descriptor(int socket) {
  char byte = 0;
  iovec content{&byte, 1};
  Control control{};
  msghdr message{};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  message.msg_control = &control;
  message.msg_controllen = sizeof control;
  int descriptor = -1;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&message) != nullptr)
    std::memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
  EXPECT_GE(descriptor, 0);
  return platform::Descriptor(descriptor);
}

// ---- what both do ----

class CudaSharing : public CudaFake {
 protected:
  void TearDown() override {
    CudaFake::TearDown();
    Gate::forget();
  }

  static std::shared_ptr<backend::Stream> stream_on(Device& device) {
    auto made = device.create_stream(0);
    EXPECT_TRUE(made.ok());
    return *made;
  }

  static backend::Span span_of(backend::Memory& memory, uint64_t offset = 0) {
    backend::Span span;
    span.memory = &memory;
    span.offset = offset;
    span.address = pointer_to(address_of(memory.facts().device_pointer) + offset);
    span.on_device = memory.facts().host_pointer == nullptr;
    return span;
  }

  static void fill(Device& device, backend::Memory& memory, uint64_t offset, uint64_t size, uint32_t byte) {
    auto stream = stream_on(device);
    EXPECT_DONE(stream->fill(fill_of(span_of(memory, offset), size, byte)));
    EXPECT_DONE(stream->synchronize(GPUMEM_TIMEOUT_INFINITE));
    EXPECT_DONE(stream->release());
  }

  static int byte_at(Device& device, backend::Memory& memory, uint64_t offset) {
    unsigned char byte = 0;
    auto stream = stream_on(device);
    EXPECT_DONE(stream->copy(copy_of(pageable(&byte), span_of(memory, offset), 1)));
    EXPECT_DONE(stream->synchronize(GPUMEM_TIMEOUT_INFINITE));
    EXPECT_DONE(stream->release());
    return byte;
  }

  backend::Sharing& sharing(size_t ordinal = 0) { return *device(ordinal).sharing(); }
};

// ---- the exporter ----

class CudaExporter : public CudaSharing {
 protected:
  void answer(int socket, const Question& question) {
    Answer reply;
    switch (question.ask) {
      case Ask::kMemory: {
        auto made =
            create_memory(device(question.device), request(Sort::kDevice, question.size, question.flags));
        ASSERT_TRUE(made.ok()) << made.error().message;
        memory_ = *made;
        home_ = question.device;
        fill(device(home_), *memory_, 0, question.size, question.byte);
        auto ticket = sharing(home_).export_memory(*memory_);
        ASSERT_TRUE(ticket.ok()) << ticket.error().message;
        reply.ticket = *ticket;
        reply.value = address_of(memory_->facts().device_pointer);
        break;
      }
      case Ask::kFree:
        EXPECT_DONE(memory_->release());
        memory_ = nullptr;
        break;
      case Ask::kFirstByte:
        reply.value = static_cast<uint64_t>(byte_at(device(home_), *memory_, 0));
        break;
      case Ask::kBlocks:
        make_blocks(socket, question);
        break;
      case Ask::kEvent: {
        auto made = device().create_event(GPUMEM_EVENT_INTERPROCESS | GPUMEM_EVENT_DISABLE_TIMING);
        ASSERT_TRUE(made.ok()) << made.error().message;
        event_ = *made;
        auto ticket = sharing().export_event(*event_);
        ASSERT_TRUE(ticket.ok()) << ticket.error().message;
        reply.ticket = *ticket;
        break;
      }
      case Ask::kRecord: {
        auto stream = stream_on(device());
        EXPECT_DONE(event_->record(*stream));
        EXPECT_DONE(stream->synchronize(GPUMEM_TIMEOUT_INFINITE));
        EXPECT_DONE(stream->release());
        break;
      }
      case Ask::kDestroy:
        EXPECT_DONE(event_->release());
        event_ = nullptr;
        break;
      case Ask::kIsComplete: {
        auto complete = event_->query();
        EXPECT_TRUE(complete.ok());
        reply.value = complete && *complete ? 1 : 0;
        break;
      }
    }
    send_all(socket, &reply, sizeof reply);
  }

  // The importers keep the memory of blocks without its maker.
  void make_blocks(int socket, const Question& question) {
    Device& home = device(question.device);
    for (uint32_t index = 0; index < question.count; ++index) {
      backend::PhysicalRequest one;
      one.location = question.location;
      one.numa_node = 0;
      one.size = question.sizes[index];
      one.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
      auto block = home.vmm()->create(one);
      ASSERT_TRUE(block.ok()) << block.error().message;
      backend::Physical* const plain = block->get();
      backend::ReservationRequest addresses;
      addresses.size = one.size;
      addresses.alignment = plain->facts().granularity;
      auto range = home.vmm()->reserve(addresses);
      ASSERT_TRUE(range.ok());
      EXPECT_DONE((*range)->map(0, {&plain, 1}));
      gpumem_access none = GPUMEM_ACCESS_NONE;
      const backend::AccessPart part{0, one.size, one.location, &none};
      const backend::AccessChange change{&home, GPUMEM_ACCESS_READWRITE};
      EXPECT_DONE((*range)->set_access({&part, 1}, {&change, 1}));
      auto stream = stream_on(home);
      backend::Span span;
      span.memory = range->get();
      span.address = (*range)->facts().device_pointer;
      span.in_range = true;
      span.home = question.location == GPUMEM_LOCATION_DEVICE ? &home : nullptr;
      EXPECT_DONE(stream->fill(fill_of(span, one.size, question.byte + index)));
      EXPECT_DONE(stream->synchronize(GPUMEM_TIMEOUT_INFINITE));
      EXPECT_DONE(stream->release());
      auto descriptor = plain->export_fd();
      ASSERT_TRUE(descriptor.ok()) << descriptor.error().message;
      send_descriptor(socket, *descriptor);
      platform::close_descriptor(*descriptor);
      EXPECT_DONE((*range)->unmap(0, one.size, home));
      EXPECT_DONE((*range)->release());
      EXPECT_DONE((*block)->release());
    }
  }

  std::shared_ptr<backend::Memory> memory_;
  std::shared_ptr<backend::Event> event_;
  uint32_t home_ = 0;
};

TEST_F(CudaExporter, DISABLED_AnswersUntilItsSocketEnds) {
  const char* const number = std::getenv(kSocketVariable);
  if (number == nullptr) GTEST_SKIP() << "another test runs this one";
  const int socket = std::atoi(number);
  open();
  Question question;
  while (!HasFatalFailure() && receive_all(socket, &question, sizeof question))
    answer(socket, question);
  if (memory_ != nullptr) EXPECT_DONE(memory_->release());
  if (event_ != nullptr) EXPECT_DONE(event_->release());
}

// The other process, seen from here.
class Exporter {
 public:
  explicit Exporter(const char* devices = "1") {
    int ends[2] = {-1, -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) abort();
    socket_ = platform::Descriptor(ends[0]);
    const platform::Descriptor theirs(ends[1]);
    const std::string number = std::to_string(ends[1]);
    child_ = test::quiet_fork();
    if (child_ == 0) {
      fcntl(ends[1], F_SETFD, 0);
      setenv(kSocketVariable, number.c_str(), 1);
      setenv("FAKE_CUDA_DEVICES", devices, 1);
      unsetenv("GTEST_OUTPUT");
      unsetenv("XML_OUTPUT_FILE");
      execl("/proc/self/exe", "exporter", "--gtest_filter=CudaExporter.*", "--gtest_also_run_disabled_tests",
            "--gtest_brief=1", nullptr);
      _exit(127);
    }
    EXPECT_GT(child_, 0) << "fork";
  }
  ~Exporter() { end(); }

  Answer ask(const Question& question) {
    Answer answer;
    send_all(socket_.get(), &question, sizeof question);
    EXPECT_TRUE(receive_all(socket_.get(), &answer, sizeof answer));
    return answer;
  }

  Answer memory(uint64_t size, gpumem_memory_flags flags, uint32_t byte = 0x61, uint32_t device = 0) {
    Question question;
    question.ask = Ask::kMemory;
    question.size = size;
    question.flags = flags;
    question.byte = byte;
    question.device = device;
    return ask(question);
  }

  Answer simply(Ask what) {
    Question question;
    question.ask = what;
    return ask(question);
  }

  platform::Descriptors blocks(const std::vector<uint64_t>& sizes, uint32_t device = 0,
                               gpumem_location location = GPUMEM_LOCATION_DEVICE) {
    Question question;
    question.ask = Ask::kBlocks;
    question.byte = 0x41;
    question.device = device;
    question.location = location;
    question.count = static_cast<uint32_t>(sizes.size());
    std::copy(sizes.begin(), sizes.end(), question.sizes);
    send_all(socket_.get(), &question, sizeof question);
    platform::Descriptors descriptors;
    for (size_t index = 0; index < sizes.size(); ++index)
      descriptors.push_back(receive_descriptor(socket_.get()));
    Answer answer;
    EXPECT_TRUE(receive_all(socket_.get(), &answer, sizeof answer));
    return descriptors;
  }

  // It releases what it has, and ends.
  void end() {
    if (child_ <= 0) return;
    socket_ = platform::Descriptor();
    int status = 0;
    EXPECT_EQ(waitpid(child_, &status, 0), child_);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the exporter failed: " << status;
    child_ = 0;
  }

  void kill() {
    ASSERT_GT(child_, 0) << "there is no process to kill";
    ::kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = 0;
  }

 private:
  platform::Descriptor socket_;
  pid_t child_ = 0;
};

// Blocks as they came, and the request for them.
struct Blocks {
  Blocks(platform::Descriptors given, std::vector<uint64_t> their_sizes)
      : descriptors(std::move(given)), sizes(std::move(their_sizes)) {
    for (const platform::Descriptor& one : descriptors)
      numbers.push_back(one.get());
    request.file_descriptors = numbers;
    request.sizes = sizes;
  }
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;

  platform::Descriptors descriptors;
  std::vector<int> numbers;
  std::vector<uint64_t> sizes;
  backend::BlocksRequest request;
};

// ---- memory that can be shared ----

TEST_F(CudaSharing, ShareableMemoryHasBlocksOfItsOwn) {
  open();
  for (const uint64_t size : {uint64_t{1}, uint64_t{1000}, 2 * kMiB, 2 * kMiB + 1, 5 * kMiB}) {
    auto memory = create_memory(device(), request(Sort::kDevice, size, GPUMEM_MEMORY_SHAREABLE));
    ASSERT_TRUE(memory.ok()) << memory.error().message;
    auto neighbour = create_memory(device(), request(Sort::kDevice, 1000));
    ASSERT_TRUE(neighbour.ok());
    const backend::MemoryFacts& facts = (*memory)->facts();
    EXPECT_EQ(facts.granted, GPUMEM_MEMORY_SHAREABLE);
    EXPECT_EQ(facts.granted_size, round_up(size, 2 * kMiB));
    EXPECT_EQ(address_of(facts.device_pointer) % (2 * kMiB), 0u);
    EXPECT_EQ(facts.allocation, facts.device_pointer);
    EXPECT_EQ(facts.allocation_size, facts.granted_size);
    const uint64_t distance =
        address_of((*neighbour)->facts().device_pointer) - address_of(facts.device_pointer);
    EXPECT_GE(distance, facts.granted_size);
    EXPECT_TRUE(sharing().is_alone(**memory));
    EXPECT_FALSE(sharing().is_alone(**neighbour));
    EXPECT_DONE((*neighbour)->release());
    EXPECT_DONE((*memory)->release());
  }
  auto whole = create_memory(device(), request(Sort::kDevice, 4 * kMiB));
  ASSERT_TRUE(whole.ok());
  EXPECT_TRUE(sharing().is_alone(**whole));
  EXPECT_EQ((*whole)->facts().granted, 0u);
  EXPECT_DONE((*whole)->release());
}

TEST_F(CudaSharing, ShareableMemoryIsAlignedToABlockAtMost) {
  open();
  Request wanted = request(Sort::kDevice, 1000, GPUMEM_MEMORY_SHAREABLE);
  wanted.alignment = 2 * kMiB;
  auto memory = create_memory(device(), wanted);
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  EXPECT_EQ(address_of((*memory)->facts().device_pointer) % wanted.alignment, 0u);
  EXPECT_EQ((*memory)->facts().granted_size, 2 * kMiB);
  EXPECT_DONE((*memory)->release());
  wanted.alignment = 4 * kMiB;
  EXPECT_FAILS(GPUMEM_ERROR_UNSUPPORTED, create_memory(device(), wanted));
  wanted.prefer = std::exchange(wanted.require, 0);
  memory = create_memory(device(), wanted);
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  EXPECT_EQ((*memory)->facts().granted, 0u);
  EXPECT_EQ(address_of((*memory)->facts().device_pointer) % wanted.alignment, 0u);
  EXPECT_FAILS(GPUMEM_ERROR_UNSUPPORTED, sharing().export_memory(**memory));
  EXPECT_DONE((*memory)->release());
}

// An importer finds the memory at the beginning of the driver's allocation.
TEST_F(CudaSharing, MemoryInsideItsAllocationIsNotExported) {
  open();
  auto first = create_memory(device(), request(Sort::kDevice, 256));
  Request wanted = request(Sort::kDevice, 1000);
  wanted.alignment = 64 * 1024;
  auto memory = create_memory(device(), wanted);
  ASSERT_TRUE(first.ok() && memory.ok());
  ASSERT_NE((*memory)->facts().device_pointer, (*memory)->facts().allocation);
  EXPECT_FAILS(GPUMEM_ERROR_UNSUPPORTED, sharing().export_memory(**memory));
  EXPECT_DONE((*memory)->release());
  EXPECT_DONE((*first)->release());
}

TEST_F(CudaSharing, AnExportRepeatsItself) {
  open();
  auto memory = create_memory(device(), request(Sort::kDevice, 1000, GPUMEM_MEMORY_SHAREABLE));
  ASSERT_TRUE(memory.ok());
  auto first = sharing().export_memory(**memory);
  auto second = sharing().export_memory(**memory);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->bytes, second->bytes);
  EXPECT_EQ(first->file_descriptor, -1);
  EXPECT_FAILS(GPUMEM_ERROR_INVALID_STATE, sharing().import_memory({*first, 1000}));
  FAKE(fake_cuda_fail)("cuIpcGetMemHandle", 1, 0, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_FAILS(GPUMEM_ERROR_UNSUPPORTED, sharing().export_memory(**memory));
  EXPECT_DONE((*memory)->release());
}

// ---- imports by handle ----

TEST_F(CudaSharing, AnImportShowsTheExportersBytes) {
  Exporter exporter;
  open();
  const Answer made = exporter.memory(3 * kMiB, GPUMEM_MEMORY_SHAREABLE);
  auto memory = sharing().import_memory({made.ticket, 3 * kMiB});
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  const backend::MemoryFacts& facts = (*memory)->facts();
  EXPECT_NE(facts.device_pointer, nullptr);
  EXPECT_EQ(facts.host_pointer, nullptr);
  EXPECT_EQ(facts.granted_size, 3 * kMiB);
  EXPECT_EQ(live(FAKE_CUDA_IMPORT), 1u);
  EXPECT_EQ(byte_at(device(), **memory, 0), 0x61);
  EXPECT_EQ(byte_at(device(), **memory, 3 * kMiB - 1), 0x61);
  fill(device(), **memory, 0, 100, 0x62);
  EXPECT_EQ(exporter.simply(Ask::kFirstByte).value, 0x62u);
  EXPECT_DONE((*memory)->release());
  EXPECT_EQ(live(FAKE_CUDA_IMPORT), 0u);
  EXPECT_DONE((*memory)->release());
  exporter.end();
}

// The driver counts how often it is open, so each instance closes for itself.
TEST_F(CudaSharing, TwoInstancesImportTheSame) {
  Exporter exporter;
  open();
  const Answer made = exporter.memory(1000, GPUMEM_MEMORY_SHAREABLE);
  auto other = cuda::open({});
  ASSERT_TRUE(other.ok());
  auto& second_device = static_cast<Device&>(*(*other)->devices()[0]);
  auto first = sharing().import_memory({made.ticket, 1000});
  auto second = second_device.sharing()->import_memory({made.ticket, 1000});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ((*first)->facts().device_pointer, (*second)->facts().device_pointer);
  EXPECT_DONE((*first)->release());
  EXPECT_EQ(live(FAKE_CUDA_IMPORT), 1u);
  EXPECT_EQ(byte_at(second_device, **second, 999), 0x61);
  EXPECT_DONE((*second)->release());
}

// The driver opens an allocation in one context of a device only (IPC-6).
TEST_F(CudaSharing, ImportsLieInThePrimaryContext) {
  open();
  const auto create = reinterpret_cast<PFN_cuCtxCreate_v3020>(dlsym(fake_library(), "cuCtxCreate_v2"));
  const auto destroy = reinterpret_cast<PFN_cuCtxDestroy_v4000>(dlsym(fake_library(), "cuCtxDestroy_v2"));
  const auto active = reinterpret_cast<PFN_cuDevicePrimaryCtxGetState_v7000>(
      dlsym(fake_library(), "cuDevicePrimaryCtxGetState"));
  ASSERT_TRUE(create != nullptr && destroy != nullptr && active != nullptr);
  CUcontext own = nullptr;
  ASSERT_EQ(create(&own, 0, 0), CUDA_SUCCESS);
  CUcontext popped = nullptr;
  ASSERT_TRUE(cu().CtxPopCurrent(&popped).ok());
  open({own});
  const auto primary_is_active = [&] {
    unsigned flags = 0;
    int value = 0;
    EXPECT_EQ(active(0, &flags, &value), CUDA_SUCCESS);
    return value != 0;
  };
  EXPECT_FALSE(primary_is_active());
  {
    Exporter exporter;
    const Answer made = exporter.memory(1000, GPUMEM_MEMORY_SHAREABLE);
    for (int round = 0; round < 2; ++round) {
      auto memory = sharing().import_memory({made.ticket, 1000});
      ASSERT_TRUE(memory.ok()) << memory.error().message;
      EXPECT_TRUE(primary_is_active());
      // Each of the two steps of its release may be told of an earlier error, or be turned down.
      const char* const step = round == 0 ? "cuIpcCloseMemHandle" : "cuDevicePrimaryCtxRelease";
      FAKE(fake_cuda_fail)(step, 1, 0, CUDA_ERROR_NOT_PERMITTED);
      EXPECT_FAILS(GPUMEM_ERROR_PERMISSION_DENIED, (*memory)->release());
      EXPECT_TRUE(primary_is_active());
      FAKE(fake_cuda_fail)(step, 1, 0, CUDA_ERROR_UNKNOWN);
      EXPECT_FAILS(GPUMEM_ERROR_INTERNAL, (*memory)->release());
      EXPECT_FALSE(primary_is_active());
      EXPECT_DONE((*memory)->release());
    }
    EXPECT_FAILS(GPUMEM_ERROR_STALE_HANDLE, sharing().import_memory({made.ticket, 4 * kMiB}));
    EXPECT_FALSE(primary_is_active());
  }
  backend_.reset();
  ASSERT_EQ(destroy(own), CUDA_SUCCESS);
}

TEST_F(CudaSharing, AnImportMayLieOnAnotherDevice) {
  configure("FAKE_CUDA_DEVICES", "2");
  open();
  Exporter exporter("2");
  const Answer made = exporter.memory(1000, GPUMEM_MEMORY_SHAREABLE, 0x63, 1);
  auto memory = sharing(0).import_memory({made.ticket, 1000, true});
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  EXPECT_EQ(byte_at(device(0), **memory, 999), 0x63);
  EXPECT_DONE((*memory)->release());
  configure("FAKE_CUDA_PEERS", "none");
  EXPECT_FAILS(GPUMEM_ERROR_UNSUPPORTED, sharing(0).import_memory({made.ticket, 1000, true}));
}

TEST_F(CudaSharing, NeighboursAreOpenedByThemselves) {
  Exporter exporter;
  open();
  const Answer first = exporter.memory(1000, 0, 0x31);
  const Answer second = exporter.memory(1000, 0, 0x32);  // the first is forgotten there, and lives on
  ASSERT_EQ(round_down(first.value, 2 * kMiB), round_down(second.value, 2 * kMiB));
  auto one = sharing().import_memory({first.ticket, 1000});
  auto two = sharing().import_memory({second.ticket, 1000});
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(byte_at(device(), **one, 999), 0x31);
  EXPECT_EQ(byte_at(device(), **two, 0), 0x32);
  EXPECT_DONE((*one)->release());
  EXPECT_EQ(byte_at(device(), **two, 999), 0x32);
  EXPECT_DONE((*two)->release());
  EXPECT_EQ(live(FAKE_CUDA_IMPORT), 0u);
  exporter.kill();
}

TEST_F(CudaSharing, AHandleOfWhatIsGoneIsStale) {
  open();
  Exporter exporter;
  const Answer made = exporter.memory(1000, GPUMEM_MEMORY_SHAREABLE);
  const uint64_t alive = live(FAKE_CUDA_ANY);
  EXPECT_FAILS(GPUMEM_ERROR_STALE_HANDLE, sharing().import_memory({made.ticket, 2 * kMiB + 1}));
  exporter.simply(Ask::kFree);
  EXPECT_FAILS(GPUMEM_ERROR_STALE_HANDLE, sharing().import_memory({made.ticket, 1000}));
  exporter.end();
  EXPECT_FAILS(GPUMEM_ERROR_STALE_HANDLE, sharing().import_memory({made.ticket, 1000}));
  EXPECT_FAILS(GPUMEM_ERROR_STALE_HANDLE, sharing().import_memory({backend::Ticket(), 1000}));
  EXPECT_EQ(live(FAKE_CUDA_ANY), alive);
}

TEST_F(CudaSharing, EachCodeOfOpeningHasAStatus) {
  Exporter exporter;
  open();
  const Answer memory = exporter.memory(1000, GPUMEM_MEMORY_SHAREABLE);
  const Answer event = exporter.simply(Ask::kEvent);
  const std::pair<CUresult, Status> codes[] = {{CUDA_ERROR_INVALID_VALUE, GPUMEM_ERROR_STALE_HANDLE},
                                               {CUDA_ERROR_MAP_FAILED, GPUMEM_ERROR_STALE_HANDLE},
                                               {CUDA_ERROR_INVALID_HANDLE, GPUMEM_ERROR_STALE_HANDLE},
                                               {CUDA_ERROR_INVALID_CONTEXT, GPUMEM_ERROR_INVALID_STATE},
                                               {CUDA_ERROR_ALREADY_MAPPED, GPUMEM_ERROR_BUSY},
                                               {CUDA_ERROR_TOO_MANY_PEERS, GPUMEM_ERROR_LIMIT_EXCEEDED},
                                               {CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, GPUMEM_ERROR_UNSUPPORTED},
                                               {CUDA_ERROR_OUT_OF_MEMORY, GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY},
                                               {CUDA_ERROR_UNKNOWN, GPUMEM_ERROR_INTERNAL}};
  for (const auto& [code, status] : codes) {
    SCOPED_TRACE(name_of(code));
    FAKE(fake_cuda_fail)("cuIpcOpenMemHandle", 1, 0, code);
    EXPECT_FAILS(status, sharing().import_memory({memory.ticket, 1000}));
    FAKE(fake_cuda_fail)("cuIpcOpenEventHandle", 1, 0, code);
    EXPECT_FAILS(status, sharing().import_event(event.ticket));
    EXPECT_FALSE(device().lost());
  }
  EXPECT_EQ(live(FAKE_CUDA_IMPORT), 0u);
  EXPECT_EQ(live(FAKE_CUDA_EVENT), 0u);
  FAKE(fake_cuda_fail)("cuIpcOpenMemHandle", 1, 0, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_FAILS(GPUMEM_ERROR_DEVICE_LOST, sharing().import_memory({memory.ticket, 1000}));
  EXPECT_TRUE(device().lost());
}

TEST_F(CudaSharing, AReleaseIsAskedOfTheDriverOnce) {
  Exporter exporter;
  open();
  const Answer made = exporter.memory(1000, GPUMEM_MEMORY_SHAREABLE);
  auto memory = sharing().import_memory({made.ticket, 1000});
  ASSERT_TRUE(memory.ok());
  FAKE(fake_cuda_fail)("cuIpcCloseMemHandle", 1, 0, CUDA_ERROR_NOT_PERMITTED);
  EXPECT_FAILS(GPUMEM_ERROR_PERMISSION_DENIED, (*memory)->release());
  EXPECT_EQ(live(FAKE_CUDA_IMPORT), 1u);
  FAKE(fake_cuda_fail)("cuIpcCloseMemHandle", 1, 0, CUDA_ERROR_UNKNOWN);
  EXPECT_FAILS(GPUMEM_ERROR_INTERNAL, (*memory)->release());
  EXPECT_EQ(live(FAKE_CUDA_IMPORT), 0u);
  const uint64_t before = calls("cuIpcCloseMemHandle");
  EXPECT_DONE((*memory)->release());
  EXPECT_EQ(calls("cuIpcCloseMemHandle"), before);
  // On a lost device it always succeeds.
  memory = sharing().import_memory({made.ticket, 1000});
  ASSERT_TRUE(memory.ok());
  FAKE(fake_cuda_set_sticky)(0, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_DONE((*memory)->release());
}

// ---- blocks ----

TEST_F(CudaSharing, BlocksAreMappedOneBehindTheOther) {
  Exporter exporter;
  open();
  Blocks blocks(exporter.blocks({2 * kMiB, 4 * kMiB, 2 * kMiB}), {2 * kMiB, 4 * kMiB, 2 * kMiB});
  exporter.end();  // the descriptors keep the memory
  auto memory = sharing().import_blocks(blocks.request);
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  EXPECT_EQ((*memory)->facts().granted_size, 8 * kMiB);
  EXPECT_EQ((*memory)->facts().granted, 0u);
  EXPECT_EQ((*memory)->facts().host_pointer, nullptr);
  EXPECT_EQ(live(FAKE_CUDA_MAPPING), 3u);
  EXPECT_EQ(live(FAKE_CUDA_RESERVATION), 1u);
  EXPECT_EQ(calls("cuMemSetAccess"), 1u);
  EXPECT_EQ(calls("cuMemRelease"), 3u) << "the mappings keep the memory";
  EXPECT_EQ(byte_at(device(), **memory, 0), 0x41);
  EXPECT_EQ(byte_at(device(), **memory, 2 * kMiB), 0x42);
  EXPECT_EQ(byte_at(device(), **memory, 6 * kMiB - 1), 0x42);
  EXPECT_EQ(byte_at(device(), **memory, 8 * kMiB - 1), 0x43);
  EXPECT_EQ((*memory)->contiguous(0), 2 * kMiB);
  EXPECT_EQ((*memory)->contiguous(2 * kMiB - 1), 1u);
  EXPECT_EQ((*memory)->contiguous(2 * kMiB), 4 * kMiB);
  EXPECT_EQ((*memory)->contiguous(8 * kMiB - 5), 5u);
  fill(device(), **memory, 0, 100, 0x50);
  auto again = sharing().import_blocks(blocks.request);
  ASSERT_TRUE(again.ok());
  EXPECT_NE((*again)->facts().device_pointer, (*memory)->facts().device_pointer);
  EXPECT_EQ(byte_at(device(), **again, 99), 0x50);
  EXPECT_DONE((*again)->release());
  EXPECT_DONE((*memory)->release());
  EXPECT_EQ(live(FAKE_CUDA_BLOCK), 0u);
  EXPECT_EQ(live(FAKE_CUDA_RESERVATION), 0u);
  for (const int number : blocks.numbers)
    EXPECT_TRUE(platform::describe(number).open) << "they stay the caller's";
}

TEST_F(CudaSharing, BlocksMayBeOnlyForReading) {
  Exporter exporter;
  open();
  Blocks blocks(exporter.blocks({2 * kMiB}), {2 * kMiB});
  blocks.request.access = GPUMEM_ACCESS_READ;
  auto memory = sharing().import_blocks(blocks.request);
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  EXPECT_EQ((*memory)->facts().granted, GPUMEM_MEMORY_READ_ONLY);
  EXPECT_EQ(byte_at(device(), **memory, 0), 0x41);
  auto stream = stream_on(device());
  EXPECT_FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, stream->fill(fill_of(span_of(**memory), 100, 1)));
  FAKE(fake_cuda_clear_violations)();
  EXPECT_DONE(stream->release());
  EXPECT_DONE((*memory)->release());
}

TEST_F(CudaSharing, BlocksOfTheHostAreTheCpusToo) {
  open();
  if (device().capability(GPUMEM_CAPABILITY_VMM_HOST_NUMA, nullptr).value != GPUMEM_ANSWER_YES)
    GTEST_SKIP() << "this version of the driver has no memory of NUMA nodes";
  Exporter exporter;
  Blocks blocks(exporter.blocks({2 * kMiB, 2 * kMiB}, 0, GPUMEM_LOCATION_HOST_NUMA), {2 * kMiB, 2 * kMiB});
  blocks.request.location = GPUMEM_LOCATION_HOST_NUMA;
  blocks.request.numa_node = 0;
  auto memory = sharing().import_blocks(blocks.request);
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  auto* const bytes = static_cast<unsigned char*>((*memory)->facts().host_pointer);
  ASSERT_NE(bytes, nullptr);
  EXPECT_EQ(bytes, (*memory)->facts().device_pointer);
  EXPECT_EQ((*memory)->facts().numa_node, 0);
  EXPECT_EQ(bytes[0], 0x41);
  EXPECT_EQ(bytes[4 * kMiB - 1], 0x42);
  bytes[1] = 0x55;
  EXPECT_TRUE(test::has_flag(bytes, "dc")) << "no forked child has it";
  EXPECT_DONE((*memory)->release());
  blocks.request.location = GPUMEM_LOCATION_DEVICE;
  EXPECT_FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, sharing().import_blocks(blocks.request));
}

TEST_F(CudaSharing, BlocksOfAnotherDeviceAreToldByTheirHome) {
  configure("FAKE_CUDA_DEVICES", "2");
  open();
  Exporter exporter("2");
  Blocks blocks(exporter.blocks({2 * kMiB}, 1), {2 * kMiB});
  EXPECT_FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, sharing(0).import_blocks(blocks.request));
  blocks.request.home = &device(1);
  auto memory = sharing(0).import_blocks(blocks.request);
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  EXPECT_EQ(byte_at(device(0), **memory, 5), 0x41);
  const auto& mapped = static_cast<const Memory&>(**memory);
  EXPECT_TRUE(mapped.reachable_from(device(0)));
  EXPECT_FALSE(mapped.reachable_from(device(1)));
  EXPECT_DONE((*memory)->release());
}

TEST_F(CudaSharing, BlocksLieWhereTheyAreWanted) {
  Exporter exporter;
  open();
  Blocks blocks(exporter.blocks({2 * kMiB, 2 * kMiB}), {2 * kMiB, 2 * kMiB});
  auto memory = sharing().import_blocks(blocks.request);
  ASSERT_TRUE(memory.ok());
  blocks.request.address = (*memory)->facts().device_pointer;
  EXPECT_FAILS(GPUMEM_ERROR_ALREADY_EXISTS, sharing().import_blocks(blocks.request));
  EXPECT_EQ(live(FAKE_CUDA_RESERVATION), 1u);
  EXPECT_DONE((*memory)->release());
  memory = sharing().import_blocks(blocks.request);
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  EXPECT_EQ((*memory)->facts().device_pointer, blocks.request.address);
  EXPECT_EQ(byte_at(device(), **memory, 2 * kMiB), 0x42);
  EXPECT_DONE((*memory)->release());
}

TEST_F(CudaSharing, WhatIsNoBlockIsRefused) {
  Exporter exporter;
  open();
  const platform::Descriptors good = exporter.blocks({4 * kMiB});
  int ends[2] = {-1, -1};
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const platform::Descriptor reading(ends[0]);
  const platform::Descriptor writing(ends[1]);
  auto file = platform::memory_file(2 * kMiB);
  ASSERT_TRUE(file.ok());
  const platform::Descriptor plain(*file);
  struct Case {
    const char* what;
    int number;
    uint64_t size;
  };
  const Case cases[] = {{"a pipe", reading.get(), 2 * kMiB},
                        {"a socket's number that is closed", 987, 2 * kMiB},
                        {"a file", plain.get(), 2 * kMiB},
                        {"no number", -1, 2 * kMiB},
                        {"too small", good[0].get(), 2 * kMiB},
                        {"too large", good[0].get(), 6 * kMiB},
                        {"not whole", good[0].get(), 4 * kMiB - 1},
                        {"nothing", good[0].get(), 0},
                        {"huge", good[0].get(), UINT64_MAX - 2 * kMiB + 1}};
  const uint64_t alive = live(FAKE_CUDA_ANY);
  const uint64_t files = open_files();
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    // Behind a good one, so that there is something to undo.
    const int numbers[] = {good[0].get(), one.number};
    const uint64_t sizes[] = {4 * kMiB, one.size};
    backend::BlocksRequest request;
    request.file_descriptors = numbers;
    request.sizes = sizes;
    EXPECT_FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, sharing().import_blocks(request));
    EXPECT_EQ(live(FAKE_CUDA_ANY), alive);
    EXPECT_EQ(open_files(), files);
  }
}

// ---- events ----

TEST_F(CudaSharing, EventsAreSharedBothWays) {
  open();
  Exporter exporter;
  const Answer made = exporter.simply(Ask::kEvent);
  auto event = sharing().import_event(made.ticket);
  ASSERT_TRUE(event.ok()) << event.error().message;
  EXPECT_TRUE(*(*event)->query()) << "never recorded";
  exporter.simply(Ask::kRecord);
  EXPECT_TRUE(*(*event)->synchronize(GPUMEM_TIMEOUT_INFINITE));
  auto stream = stream_on(device());
  Gate gate;
  EXPECT_DONE(gate.hold(*stream));
  EXPECT_DONE((*event)->record(*stream));
  EXPECT_EQ(exporter.simply(Ask::kIsComplete).value, 0u) << "what is recorded here has not passed";
  EXPECT_FALSE(*(*event)->query());
  gate.open();
  EXPECT_TRUE(*(*event)->synchronize(GPUMEM_TIMEOUT_INFINITE));
  EXPECT_EQ(exporter.simply(Ask::kIsComplete).value, 1u);
  EXPECT_FAILS(GPUMEM_ERROR_INVALID_STATE, (*event)->elapsed_since(**event));
  EXPECT_FAILS(GPUMEM_ERROR_UNSUPPORTED, sharing().export_event(**event));
  EXPECT_EQ(live(FAKE_CUDA_EVENT), 1u);
  EXPECT_DONE((*event)->release());
  EXPECT_EQ(live(FAKE_CUDA_EVENT), 0u);
  EXPECT_DONE(stream->synchronize(GPUMEM_TIMEOUT_INFINITE));
  EXPECT_DONE(stream->release());
  exporter.simply(Ask::kDestroy);
  EXPECT_FAILS(GPUMEM_ERROR_STALE_HANDLE, sharing().import_event(made.ticket));
  exporter.end();
  EXPECT_FAILS(GPUMEM_ERROR_STALE_HANDLE, sharing().import_event(made.ticket));
}

TEST_F(CudaSharing, OnlyInterprocessEventsAreExported) {
  open();
  auto ordinary = device().create_event(GPUMEM_EVENT_DISABLE_TIMING);
  auto shared = device().create_event(GPUMEM_EVENT_DISABLE_TIMING | GPUMEM_EVENT_INTERPROCESS);
  ASSERT_TRUE(ordinary.ok() && shared.ok());
  EXPECT_FAILS(GPUMEM_ERROR_UNSUPPORTED, sharing().export_event(**ordinary));
  auto ticket = sharing().export_event(**shared);
  ASSERT_TRUE(ticket.ok()) << ticket.error().message;
  EXPECT_FAILS(GPUMEM_ERROR_INVALID_STATE, sharing().import_event(*ticket));
  EXPECT_DONE((*ordinary)->release());
  EXPECT_DONE((*shared)->release());
}

// ---- dma-bufs ----

// The process has no free descriptor while it lives.
class NoFreeDescriptor {
 public:
  NoFreeDescriptor() {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit lower = before_;
    lower.rlim_cur = std::min<rlim_t>(before_.rlim_cur, 256);
    setrlimit(RLIMIT_NOFILE, &lower);
    for (auto copy = platform::duplicate(STDERR_FILENO); copy; copy = platform::duplicate(STDERR_FILENO))
      taken_.push_back(std::move(*copy));
  }
  ~NoFreeDescriptor() { setrlimit(RLIMIT_NOFILE, &before_); }
  NoFreeDescriptor(const NoFreeDescriptor&) = delete;
  NoFreeDescriptor& operator=(const NoFreeDescriptor&) = delete;

 private:
  rlimit before_{};
  platform::Descriptors taken_;
};

TEST_F(CudaSharing, ADmaBufIsPlainWherePcieIsDenied) {
  open();
  if (cu().MemGetHandleForAddressRange.function == nullptr) {
    EXPECT_FAILS(GPUMEM_ERROR_SYMBOL_MISSING, sharing().export_dma_buf(&backend_, 4096, true));
    return;
  }
  auto memory = create_memory(device(), request(Sort::kDevice, 4 * kMiB));
  ASSERT_TRUE(memory.ok());
  const auto* const base = static_cast<const char*>((*memory)->facts().device_pointer);
  const char* const call = "cuMemGetHandleForAddressRange";
  for (const bool pcie : {false, true}) {
    const uint64_t before = calls(call);
    auto made = sharing().export_dma_buf(base + kMiB, kMiB, pcie);
    ASSERT_TRUE(made.ok()) << made.error().message;
    const platform::Descriptor descriptor(*made);
    EXPECT_EQ(platform::describe(*made).size, kMiB);
    EXPECT_EQ(fcntl(*made, F_GETFD), FD_CLOEXEC);
    EXPECT_EQ(calls(call) - before, pcie ? 2u : 1u);
  }
  {
    const NoFreeDescriptor full;
    EXPECT_FAILS(GPUMEM_ERROR_LIMIT_EXCEEDED, sharing().export_dma_buf(base, kMiB, true));
    EXPECT_FAILS(GPUMEM_ERROR_LIMIT_EXCEEDED, platform::try_passing());
  }
  EXPECT_FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, sharing().export_dma_buf(base + 100, 4096, true));
  EXPECT_FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, sharing().export_dma_buf(base, 0, false));
  FAKE(fake_cuda_set_attribute)(0, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 0);
  EXPECT_FAILS(GPUMEM_ERROR_UNSUPPORTED, sharing().export_dma_buf(base, kMiB, true));
  FAKE(fake_cuda_set_attribute)(0, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 1);
  EXPECT_DONE((*memory)->release());
}

// ---- faults ----

// Makes the k-th call of a function fail while `make` runs, for each k until none fails. What is made then is
// released.
template <class Make>
void fail_each_call(const char* function, CUresult code, Make make) {
  const uint64_t alive = FAKE(fake_cuda_live)(FAKE_CUDA_ANY);
  const uint64_t files = open_files();
  bool through = false;
  for (uint64_t k = 1; k < 100 && !through; ++k) {
    SCOPED_TRACE(testing::Message() << "call " << k << " of " << function << ", " << name_of(code));
    const uint64_t failures = FAKE(fake_cuda_failures)();
    FAKE(fake_cuda_fail)(function, k, 0, code);
    FAKE(fake_cuda_section_begin)();
    auto made = make();
    FAKE(fake_cuda_section_end)(function);
    const bool failed = FAKE(fake_cuda_failures)() != failures;
    FAKE(fake_cuda_configure)("FAKE_CUDA_FAIL", "");
    through = !failed;
    if (made) {
      EXPECT_DONE((*made)->release());
    } else {
      EXPECT_TRUE(failed) << made.error().message;
      EXPECT_NE(made.error().message[0], '\0');
    }
    EXPECT_EQ(FAKE(fake_cuda_live)(FAKE_CUDA_ANY), alive);
    EXPECT_EQ(open_files(), files);
  }
  EXPECT_TRUE(through);
}

template <class Make>
void fail_each_call(const char* name, Make make) {
  SCOPED_TRACE(name);
  for (const CUresult code : {CUDA_ERROR_UNKNOWN, CUDA_ERROR_OUT_OF_MEMORY})
    fail_each_call("*", code, make);
  // What is turned down has not happened, and is tried again.
  for (const char* function :
       {"cuIpcOpenMemHandle", "cuIpcOpenEventHandle", "cuMemGetAddressRange", "cuMemAlloc",
        "cuMemImportFromShareableHandle", "cuMemGetAllocationPropertiesFromHandle", "cuMemAddressReserve",
        "cuMemMap", "cuMemSetAccess", "cuMemRelease"})
    fail_each_call(function, CUDA_ERROR_NOT_PERMITTED, make);
}

TEST_F(CudaSharing, NothingIsLeftOfAnImportThatFails) {
  Exporter exporter;
  open();
  const Answer memory = exporter.memory(1000, GPUMEM_MEMORY_SHAREABLE);
  fail_each_call("memory", [&] { return sharing().import_memory({memory.ticket, 1000}); });
  const Answer event = exporter.simply(Ask::kEvent);
  fail_each_call("event", [&] { return sharing().import_event(event.ticket); });
  Blocks blocks(exporter.blocks({2 * kMiB, 4 * kMiB}), {2 * kMiB, 4 * kMiB});
  fail_each_call("blocks", [&] { return sharing().import_blocks(blocks.request); });
  fail_each_call("shareable", [&] {
    return create_memory(device(), request(Sort::kDevice, 1000, GPUMEM_MEMORY_SHAREABLE));
  });
  exporter.end();
}

TEST_F(CudaSharing, WhatTheDriverLacksIsNamed) {
  Exporter exporter;
  open();
  const Answer memory = exporter.memory(1000, GPUMEM_MEMORY_SHAREABLE);
  const Answer event = exporter.simply(Ask::kEvent);
  auto own = create_memory(device(), request(Sort::kDevice, 2 * kMiB));
  auto own_event = device().create_event(GPUMEM_EVENT_DISABLE_TIMING | GPUMEM_EVENT_INTERPROCESS);
  ASSERT_TRUE(own.ok() && own_event.ok());
  Driver lacking = cu();
  const auto with = [&](auto use) {
    auto opened = Device::open(lacking, device().all(), 0, nullptr);
    ASSERT_TRUE(opened.ok());
    use(*(*opened)->sharing(), **opened);
    lacking = cu();
  };
  lacking.IpcGetMemHandle.function = nullptr;
  with([&](backend::Sharing& facet, Device& device) {
    EXPECT_FAILS(GPUMEM_ERROR_SYMBOL_MISSING, facet.export_memory(**own));
    const backend::Capability answer = device.capability(GPUMEM_CAPABILITY_SHARE_LEGACY, nullptr);
    EXPECT_EQ(answer.value, GPUMEM_ANSWER_NO);
    EXPECT_EQ(answer.status, GPUMEM_ERROR_SYMBOL_MISSING);
  });
  lacking.IpcOpenMemHandle.function = nullptr;
  with([&](backend::Sharing& facet, Device&) {
    EXPECT_FAILS(GPUMEM_ERROR_SYMBOL_MISSING, facet.import_memory({memory.ticket, 1000}));
  });
  lacking.MemGetAddressRange.function = nullptr;
  with([&](backend::Sharing& facet, Device&) {
    EXPECT_FAILS(GPUMEM_ERROR_SYMBOL_MISSING, facet.import_memory({memory.ticket, 1000}));
  });
  lacking.IpcGetEventHandle.function = nullptr;
  with([&](backend::Sharing& facet, Device& device) {
    EXPECT_FAILS(GPUMEM_ERROR_SYMBOL_MISSING, facet.export_event(**own_event));
    EXPECT_EQ(device.capability(GPUMEM_CAPABILITY_SHARE_EVENTS, nullptr).status, GPUMEM_ERROR_SYMBOL_MISSING);
  });
  lacking.IpcOpenEventHandle.function = nullptr;
  with([&](backend::Sharing& facet, Device&) {
    EXPECT_FAILS(GPUMEM_ERROR_SYMBOL_MISSING, facet.import_event(event.ticket));
  });
  lacking.MemGetHandleForAddressRange.function = nullptr;
  with([&](backend::Sharing& facet, Device& device) {
    EXPECT_FAILS(GPUMEM_ERROR_SYMBOL_MISSING,
                 facet.export_dma_buf((*own)->facts().device_pointer, 2 * kMiB, true));
    for (const gpumem_capability capability :
         {GPUMEM_CAPABILITY_SHARE_DMA_BUF, GPUMEM_CAPABILITY_SHARE_DMA_BUF_PCIE})
      EXPECT_EQ(device.capability(capability, nullptr).status, GPUMEM_ERROR_SYMBOL_MISSING);
  });
  EXPECT_DONE((*own_event)->release());
  EXPECT_DONE((*own)->release());
  EXPECT_EQ(live(FAKE_CUDA_IMPORT), 0u);
}

TEST_F(CudaSharing, ACaptureElsewhereIsNotSpoiled) {
  Exporter exporter;
  open();
  const Answer made = exporter.memory(1000, GPUMEM_MEMORY_SHAREABLE);
  const Answer event = exporter.simply(Ask::kEvent);
  Blocks blocks(exporter.blocks({2 * kMiB}), {2 * kMiB});
  const auto begin =
      reinterpret_cast<PFN_cuStreamBeginCapture_v10010>(dlsym(fake_library(), "cuStreamBeginCapture_v2"));
  const auto end =
      reinterpret_cast<PFN_cuStreamEndCapture_v10000>(dlsym(fake_library(), "cuStreamEndCapture"));
  const auto destroy = reinterpret_cast<PFN_cuGraphDestroy_v10000>(dlsym(fake_library(), "cuGraphDestroy"));
  auto stream = stream_on(device());
  stream->expose();
  {
    Scope scope(device());
    ASSERT_EQ(begin(static_cast<CUstream>(stream->native()), CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    const auto use = [](auto imported) {
      ASSERT_TRUE(imported.ok()) << imported.error().message;
      EXPECT_DONE((*imported)->release());
    };
    use(sharing().import_memory({made.ticket, 1000}));
    use(sharing().import_blocks(blocks.request));
    use(sharing().import_event(event.ticket));
    auto own = create_memory(device(), request(Sort::kDevice, 1000, GPUMEM_MEMORY_SHAREABLE));
    ASSERT_TRUE(own.ok());
    EXPECT_DONE(sharing().export_memory(**own));
    EXPECT_DONE((*own)->release());
    CUgraph graph = nullptr;
    EXPECT_EQ(end(static_cast<CUstream>(stream->native()), &graph), CUDA_SUCCESS);
    EXPECT_EQ(destroy(graph), CUDA_SUCCESS);
  }
  EXPECT_DONE(stream->release());
}

// ---- capabilities ----

TEST_F(CudaSharing, CapabilitiesAreTried) {
  open();
  const uint64_t alive = live(FAKE_CUDA_ANY);
  const uint64_t files = open_files();
  const auto ask = [&](gpumem_capability capability) { return device().capability(capability, nullptr); };
  for (const gpumem_capability capability :
       {GPUMEM_CAPABILITY_SHARE_LEGACY, GPUMEM_CAPABILITY_SHARE_EVENTS, GPUMEM_CAPABILITY_SHARE_CHANNEL}) {
    const backend::Capability answer = ask(capability);
    EXPECT_EQ(answer.value, GPUMEM_ANSWER_YES) << answer.reason;
    EXPECT_EQ(answer.source, GPUMEM_ANSWER_FROM_TRIAL);
  }
  if (cu().MemGetHandleForAddressRange.function != nullptr) {
    EXPECT_EQ(ask(GPUMEM_CAPABILITY_SHARE_DMA_BUF).value, GPUMEM_ANSWER_YES);
    const backend::Capability pcie = ask(GPUMEM_CAPABILITY_SHARE_DMA_BUF_PCIE);
    EXPECT_EQ(pcie.value, GPUMEM_ANSWER_NO) << "as on an H200";
    EXPECT_EQ(pcie.status, GPUMEM_ERROR_UNSUPPORTED);
    EXPECT_EQ(pcie.source, GPUMEM_ANSWER_FROM_TRIAL);
    FAKE(fake_cuda_fail)("cuMemGetHandleForAddressRange", 1, 0, CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(ask(GPUMEM_CAPABILITY_SHARE_DMA_BUF_PCIE).status, GPUMEM_ERROR_UNSUPPORTED);
    FAKE(fake_cuda_set_attribute)(0, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 0);
    const backend::Capability denied = ask(GPUMEM_CAPABILITY_SHARE_DMA_BUF);
    EXPECT_EQ(denied.status, GPUMEM_ERROR_UNSUPPORTED);
    EXPECT_EQ(denied.source, GPUMEM_ANSWER_FROM_ATTRIBUTE);
  }
  if (cu().version >= 12020) {
    FAKE(fake_cuda_set_attribute)(0, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 0);
    EXPECT_EQ(ask(GPUMEM_CAPABILITY_SHARE_EVENTS).source, GPUMEM_ANSWER_FROM_ATTRIBUTE);
    EXPECT_EQ(ask(GPUMEM_CAPABILITY_SHARE_EVENTS).status, GPUMEM_ERROR_UNSUPPORTED);
    FAKE(fake_cuda_set_attribute)(0, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1);
  }
  FAKE(fake_cuda_fail)("cuIpcGetEventHandle", 1, 0, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_SHARE_EVENTS).status, GPUMEM_ERROR_UNSUPPORTED);
  FAKE(fake_cuda_fail)("cuIpcGetMemHandle", 1, 0, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_SHARE_LEGACY).status, GPUMEM_ERROR_UNSUPPORTED);
  EXPECT_EQ(live(FAKE_CUDA_ANY), alive);
  EXPECT_EQ(open_files(), files);
}

// The descriptor arrives, and nothing is left open.
TEST(PassingDescriptors, IsTried) {
  const uint64_t files = open_files();
  EXPECT_DONE(platform::try_passing());
  EXPECT_EQ(open_files(), files);
  EXPECT_EQ(test::exit_code_of([] {
              if (!test::refuse_system_call(SYS_sendmsg, EPERM)) return 2;
              const auto tried = platform::try_passing();
              return !tried && tried.error().status == GPUMEM_ERROR_PERMISSION_DENIED ? 0 : 1;
            }),
            0);
}

}  // namespace
}  // namespace gpumem::cuda
