// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The rules of rings (RING), between real processes.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <thread>
#include <vector>

#include "../asleep.h"
#include "harness.h"

namespace {
std::atomic<uint64_t> stop_after{0};  // messages that this process still receives before it stops; 0: never
}

// The library's, so that a process can be stopped in the middle of a call.
extern "C" __attribute__((visibility("default"))) ssize_t recvmsg(int socket, msghdr* message, int flags) {
  const long got = syscall(SYS_recvmsg, socket, message, flags);
  if (got > 0 && stop_after != 0 && --stop_after == 0) raise(SIGSTOP);
  return got;
}

namespace conformance {
namespace {

constexpr uint64_t kSize = 10'000;
constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kLong = 60 * kSecond;

using Ring = Owned<gpumem_ring, gpumem_ring_destroy>;

gpumem_ring_desc ring_desc(uint32_t slots = 4, uint32_t consumers = 2, uint32_t first = 0) {
  gpumem_ring_desc desc = GPUMEM_RING_DESC_INIT;
  desc.slot_size = kSize;
  desc.slot_count = slots;
  desc.consumers_max = consumers;
  desc.consumers_first = first;
  return desc;
}

gpumem_ring_info info_of(gpumem_ring ring) {
  gpumem_ring_info info = GPUMEM_RING_INFO_INIT;
  EXPECT_OK(gpumem_ring_get_info(ring, &info, why()));
  return info;
}

// What message `number` is made of: bytes that depend on it, and a size and tag that do.
uint64_t size_of(uint64_t number) { return kSize - number % 100; }
uint64_t tag_of(uint64_t number) { return number * 1'000'003 + 7; }

// By device work, or, without a stream, before it returns.
void fill_slot(gpumem_instance instance, gpumem_stream stream, const gpumem_ring_slot& slot,
               std::vector<uint8_t>& bytes) {
  bytes.resize(size_of(slot.number));
  fill_pattern(bytes.data(), bytes.size(), static_cast<uint32_t>(slot.number));
  EXPECT_OK(copy_on(instance, stream, slot.pointer, bytes.data(), bytes.size(), nullptr, why()));
}

::testing::AssertionResult is_message(gpumem_instance instance, const gpumem_ring_slot& slot,
                                      gpumem_stream stream) {
  if (slot.size != size_of(slot.number) || slot.tag != tag_of(slot.number))
    return ::testing::AssertionFailure() << "message " << slot.number << " has another size or tag";
  std::vector<uint8_t> bytes(slot.size);
  EXPECT_OK(copy_on(instance, stream, bytes.data(), slot.pointer, slot.size, nullptr, why()));
  if (stream != nullptr) {
    EXPECT_OK(gpumem_stream_synchronize(stream, kLong, why()));
  }
  return has_pattern(bytes.data(), bytes.size(), static_cast<uint32_t>(slot.number));
}

template <class Ask>
bool eventually(Ask ask) {
  for (const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(2);
       std::chrono::steady_clock::now() < limit;) {
    if (ask()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return ask();
}

// ---- the other process ----

enum Do : int32_t {
  kHold,
  kCreate,
  kOpen,
  kReceive,
  kFetch,
  kProduce,
  kConsume,
  kTake,
  kRelease,
  kFinish,
  kInfo,
  kScribble,
  kScribbleAsProducer,
  kOverwrite,
  kClose,
  kEnd
};

struct Order {
  int32_t what = kEnd;
  int32_t streams = 0;  // 1: by device work
  uint64_t count = 0;
  uint64_t value = 0;
  gpumem_share_handle handle{};
  char path[64] = "";
};
struct Answer {
  gpumem_status status = GPUMEM_ERROR_INTERNAL;
  uint64_t value = 0;
  uint64_t tag = 0;
  gpumem_share_handle handle{};
};

class Side {
 public:
  void run() {
    Order order;
    while (receive_bytes(Peer::other_side(), &order, sizeof order)) {
      const Answer answer = obey(order);
      if (!send_bytes(Peer::other_side(), &answer, sizeof answer) || order.what == kEnd) break;
    }
    stream_.synchronize();
    if (gpumem_ring_destroy(ring_, nullptr) != GPUMEM_ERROR_BUSY) return;
    gpumem_instance const left = instance_.release();
    if (order.count == 0) return;
    stream_.destroy();
    EXPECT_OK(gpumem_instance_close(left, GPUMEM_CLOSE_FORCE, nullptr, why()));
  }

 private:
  gpumem_stream stream_for(const Order& order) { return order.streams != 0 ? stream_.get() : nullptr; }

  Answer obey(const Order& order) {
    Answer answer;
    gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
    switch (order.what) {
      case kHold:
        gate_.emplace().hold(stream_);
        answer.status = GPUMEM_SUCCESS;
        break;
      case kCreate: {
        const gpumem_ring_desc desc = ring_desc(static_cast<uint32_t>(order.count));
        answer.status = gpumem_ring_create(device_, &desc, &ring_, why());
        if (answer.status == GPUMEM_SUCCESS) answer.status = gpumem_ring_export(ring_, &answer.handle, why());
        break;
      }
      case kOpen:
        stop_after = order.value;
        answer.status = gpumem_ring_open(instance_, &order.handle, nullptr, &ring_, why());
        stop_after = 0;
        break;
      case kReceive: {
        gpumem_share_handle handle{};
        answer.status = gpumem_share_receive(instance_, Peer::other_side(), kLong, &handle, why());
        if (answer.status == GPUMEM_SUCCESS)
          answer.status = gpumem_ring_open(instance_, &handle, nullptr, &ring_, why());
        break;
      }
      case kFetch: {
        gpumem_link_desc desc = GPUMEM_LINK_DESC_INIT;
        desc.path = order.path;
        gpumem_link link = nullptr;
        gpumem_share_handle handle{};
        answer.status = gpumem_link_connect(instance_, &desc, &link, why());
        if (answer.status == GPUMEM_SUCCESS)
          answer.status = gpumem_link_fetch(link, "batches", nullptr, &handle, why());
        if (answer.status == GPUMEM_SUCCESS)
          answer.status = gpumem_ring_open(instance_, &handle, nullptr, &ring_, why());
        EXPECT_OK(gpumem_link_close(link, why()));
        break;
      }
      case kProduce:
        answer.status = GPUMEM_SUCCESS;
        for (uint64_t i = 0; i < order.count && answer.status == GPUMEM_SUCCESS; ++i) {
          answer.status = gpumem_ring_acquire(ring_, stream_for(order), kLong, &slot, why());
          if (answer.status != GPUMEM_SUCCESS) break;
          fill_slot(instance_, stream_for(order), slot, bytes_.emplace_back());
          answer.status =
              gpumem_ring_publish(ring_, stream_for(order), size_of(slot.number), tag_of(slot.number), why());
        }
        break;
      case kConsume:
        consume(order, &answer);
        break;
      case kTake:
        answer.status = gpumem_ring_wait(ring_, stream_for(order), order.value, &slot, why());
        answer.value = slot.number;
        answer.tag = slot.tag;
        break;
      case kRelease:
        answer.status = gpumem_ring_release(ring_, stream_for(order), order.value, why());
        break;
      case kFinish:
        answer.status = gpumem_ring_finish(ring_, order.value, why());
        break;
      case kInfo:
        answer.status = GPUMEM_SUCCESS;
        answer.value = info_of(ring_).consumer_count;
        break;
      case kScribble:
        answer.status = scribble(order, "gpumem-ring-consumers") ? GPUMEM_SUCCESS : GPUMEM_ERROR_INTERNAL;
        break;
      case kScribbleAsProducer:
        answer.status = scribble(order, "gpumem-ring (") ? GPUMEM_SUCCESS : GPUMEM_ERROR_INTERNAL;
        break;
      case kOverwrite:
        answer.status = GPUMEM_SUCCESS;
        answer.value = overwrite(static_cast<int>(order.value));
        break;
      case kClose:
        stream_.synchronize();
        answer.status = gpumem_ring_destroy(ring_, why());
        if (answer.status == GPUMEM_SUCCESS) ring_ = nullptr;
        break;
      default:
        answer.status = GPUMEM_SUCCESS;
        break;
    }
    return answer;
  }

  // Writes `value` at the offset `count` of what consumers can write, or of what producers can.
  static bool scribble(const Order& order, const char* file) {
    bool found = false;
    for_each_mapping(file, [&](unsigned char* first, size_t /*size*/) {
      std::memcpy(first + order.count, &order.value, sizeof order.value);
      found = true;
    });
    return found;
  }

  // Fills what it can write of the ring and its events with that byte. Answers how many files it could not
  // write, by no means.
  static uint64_t overwrite(int byte) {
    uint64_t kept = 0;
    for (const char* const name : {"gpumem-ring", "gpumem-event"}) {
      for_each_mapping(name, [&](unsigned char* first, size_t size) {
        if (mprotect(first, size, PROT_READ | PROT_WRITE) != 0) {
          EXPECT_EQ(remap_writable(first, size), MAP_FAILED);
          ++kept;
        } else {
          std::memset(first, byte, size);
        }
      });
    }
    return kept;
  }

  // Of the file that is mapped there, which the system opens for root.
  static void* remap_writable(const unsigned char* first, size_t size) {
    char path[96];
    std::snprintf(path, sizeof path, "/proc/self/map_files/%zx-%zx", reinterpret_cast<size_t>(first),
                  reinterpret_cast<size_t>(first + size));
    const int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return MAP_FAILED;
    void* const view = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return view;
  }

  template <class Use>
  static void for_each_mapping(const char* name, Use use) {
    std::ifstream maps("/proc/self/maps");
    std::string line;
    while (std::getline(maps, line)) {
      if (line.find(name) == std::string::npos) continue;
      char* end = nullptr;
      auto* const first = reinterpret_cast<unsigned char*>(std::strtoull(line.c_str(), &end, 16));
      auto* const last = reinterpret_cast<unsigned char*>(std::strtoull(end + 1, nullptr, 16));
      use(first, static_cast<size_t>(last - first));
    }
  }

  // So many messages, or until it fails. Answers how many there were, and looks at the bytes of each.
  void consume(const Order& order, Answer* answer) {
    answer->status = GPUMEM_SUCCESS;
    uint64_t expected = UINT64_MAX;
    while (answer->value < order.count) {
      gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
      answer->status = gpumem_ring_wait(ring_, stream_for(order), kLong, &slot, why());
      if (answer->status != GPUMEM_SUCCESS) return;
      EXPECT_TRUE(expected == UINT64_MAX || slot.number == expected) << slot.number;
      expected = slot.number + 1;
      EXPECT_TRUE(is_message(instance_, slot, stream_for(order)));
      EXPECT_OK(gpumem_ring_release(ring_, stream_for(order), slot.number, why()));
      ++answer->value;
    }
  }

  Instance instance_ = open_instance();
  gpumem_device device_ = instance_.device();
  Stream stream_ = create_stream(device_);
  std::optional<Gate> gate_;
  std::vector<std::vector<uint8_t>> bytes_;  // of messages that the stream may still be copying
  gpumem_ring ring_ = nullptr;
};

CHILD(ring_side) { Side().run(); }

class Other {
 public:
  Answer ask(const Order& order) {
    say(order);
    return hear();
  }
  void say(const Order& order) { EXPECT_TRUE(send_bytes(peer_.socket(), &order, sizeof order)); }
  Answer hear() {
    Answer answer;
    EXPECT_TRUE(receive_bytes(peer_.socket(), &answer, sizeof answer)) << "the other process has ended";
    return answer;
  }
  Answer ask(Do what, uint64_t count = 0, bool streams = false, uint64_t value = 0) {
    return ask(Order{what, streams ? 1 : 0, count, value, {}, {}});
  }
  void say(Do what, uint64_t count = 0, bool streams = false, uint64_t value = 0) {
    say(Order{what, streams ? 1 : 0, count, value, {}, {}});
  }
  gpumem_status open(const gpumem_share_handle& handle) {
    Order order;
    order.what = kOpen;
    order.handle = handle;
    return ask(order).status;
  }
  gpumem_share_handle create(uint32_t slots = 4) {
    const Answer answer = ask(kCreate, slots);
    EXPECT_EQ(answer.status, GPUMEM_SUCCESS);
    return answer.handle;
  }
  void kill() { peer_.kill(); }
  bool is_stopped() const {
    std::ifstream status("/proc/" + std::to_string(peer_.pid()) + "/stat");
    std::string text;
    std::getline(status, text);
    return text.find(") T ") != std::string::npos;
  }
  int socket() const { return peer_.socket(); }

 private:
  Peer peer_{"ring_side"};
};

// As a process that was let in can: takes all recorders that are free in the pages of the events which this
// process has open, and says in each page that a record of its own, which is never complete, is the latest.
class Impostor {
 public:
  Impostor() {
    std::vector<std::string> events;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const std::string file = std::filesystem::read_symlink(entry.path(), gone).string();
      if (file.find("/memfd:gpumem-event-") == 0) events.push_back(entry.path());
    }
    EXPECT_FALSE(events.empty());
    for (const std::string& path : events) {
      files_.push_back(open(path.c_str(), O_RDWR | O_CLOEXEC));
      EXPECT_GE(files_.back(), 0);
      for (uint64_t byte = 0; byte <= kRecorder; ++byte)
        lock(byte);
      lock(kWord);
      void* const page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, files_.back(), 0);
      if (page != MAP_FAILED) pages_.push_back(static_cast<std::atomic<uint64_t>*>(page));
    }
    say();
  }
  Impostor(const Impostor&) = delete;
  Impostor& operator=(const Impostor&) = delete;
  ~Impostor() {
    for (std::atomic<uint64_t>* const page : pages_)
      munmap(page, kPage);
    for (const int file : files_)
      close(file);
  }
  void say() {
    for (std::atomic<uint64_t>* const page : pages_) {
      page[(128 * (1 + kRecorder) + 24) / sizeof(uint64_t)] = kNumber;
      page[0] = kWord;
    }
  }

 private:
  static constexpr size_t kPage = 8192;
  static constexpr uint64_t kRecorder = 62;
  static constexpr uint64_t kNumber = 12345;
  static constexpr uint64_t kWord = kNumber << 6 | kRecorder;
  void lock(uint64_t byte) {
    struct flock place {};
    place.l_type = F_WRLCK;
    place.l_whence = SEEK_SET;
    place.l_start = static_cast<off_t>(byte);
    place.l_len = 1;
    (void)fcntl(files_.back(), F_OFD_SETLK, &place);
  }

  std::vector<int> files_;
  std::vector<std::atomic<uint64_t>*> pages_;
};

class Rings : public Conformance {
 protected:
  Ring create(const gpumem_ring_desc& desc) {
    gpumem_ring ring = nullptr;
    EXPECT_OK(gpumem_ring_create(device_, &desc, &ring, why()));
    return Ring(ring);
  }
  gpumem_share_handle handle_of(gpumem_ring ring) {
    gpumem_share_handle handle{};
    EXPECT_OK(gpumem_ring_export(ring, &handle, why()));
    return handle;
  }
  gpumem_status acquire(gpumem_ring ring, gpumem_ring_slot* slot, uint64_t timeout_ns = kLong,
                        gpumem_stream stream = nullptr) {
    return gpumem_ring_acquire(ring, stream, timeout_ns, slot, why());
  }
  // After it has received so many messages. False if it needs no more to open the ring.
  bool stop_while_opening(Other& opener, gpumem_ring ring, uint64_t messages) {
    Order order;
    order.what = kOpen;
    order.value = messages;
    order.handle = handle_of(ring);
    opener.say(order);
    char answer = 0;
    const auto answered = [&] {
      return recv(opener.socket(), &answer, sizeof answer, MSG_PEEK | MSG_DONTWAIT) > 0;
    };
    EXPECT_TRUE(eventually([&] { return opener.is_stopped() || answered(); }));
    return opener.is_stopped();
  }
  void produce(gpumem_ring ring, uint64_t count, gpumem_stream stream = nullptr) {
    for (uint64_t i = 0; i < count; ++i) {
      gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
      ASSERT_OK(acquire(ring, &slot, kLong, stream));
      fill_slot(instance_, stream, slot, bytes_.emplace_back());
      ASSERT_OK(gpumem_ring_publish(ring, stream, size_of(slot.number), tag_of(slot.number), why()));
    }
  }

  std::vector<std::vector<uint8_t>> bytes_;  // of messages that a stream may still be copying
};

// ---- what it hands over ----

TEST_F(Rings, ring_1) {
  for (const bool streams : {false, true}) {
    const Stream stream = create_stream(device_);
    const gpumem_stream order = streams ? stream.get() : nullptr;
    Ring ring = create(ring_desc(3, 2, 2));
    Other one;
    Other two;
    ASSERT_EQ(one.open(handle_of(ring)), GPUMEM_SUCCESS);
    ASSERT_EQ(two.open(handle_of(ring)), GPUMEM_SUCCESS);
    one.say(kConsume, 200, streams);
    two.say(kConsume, 200, !streams);  // either side may do without a stream
    produce(ring, 200, order);
    for (Other* other : {&one, &two}) {
      const Answer answer = other->hear();
      EXPECT_EQ(answer.status, GPUMEM_SUCCESS);
      EXPECT_EQ(answer.value, 200u);
      EXPECT_EQ(other->ask(kClose).status, GPUMEM_SUCCESS);
    }
    EXPECT_OK(gpumem_stream_synchronize(stream, kLong, why()));
    EXPECT_EQ(info_of(ring).published, 200u);
    EXPECT_OK(gpumem_ring_finish(ring, kLong, why()));
  }
}

TEST_F(Rings, ring_2) {
  // Who comes later sees what is published from then on, and nothing before.
  Ring ring = create(ring_desc(4, 2));
  produce(ring, 10);
  Other late;
  ASSERT_EQ(late.open(handle_of(ring)), GPUMEM_SUCCESS);
  EXPECT_EQ(late.ask(kTake, 0, false, 0).status, GPUMEM_NOT_READY);
  produce(ring, 2);
  for (const uint64_t number : {10u, 11u}) {
    const Answer taken = late.ask(kTake, 0, false, kLong);
    EXPECT_EQ(taken.status, GPUMEM_SUCCESS);
    EXPECT_EQ(taken.value, number);
    EXPECT_EQ(taken.tag, tag_of(number));
  }
  EXPECT_EQ(late.ask(kClose).status, GPUMEM_SUCCESS);
  EXPECT_OK(gpumem_ring_finish(ring, kLong, why()));
}

TEST_F(Rings, ring_2_while_one_joins) {
  // Which message is its first one is not known yet, so no slot is filled meanwhile.
  constexpr uint64_t kFirstPlace = 128;
  constexpr uint64_t kJoining = 0x1234'02;
  Ring ring = create(ring_desc(2, 1));
  Other other;
  ASSERT_EQ(other.open(handle_of(ring)), GPUMEM_SUCCESS);
  ASSERT_EQ(other.ask(kScribble, kFirstPlace, false, kJoining).status, GPUMEM_SUCCESS);
  gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
  EXPECT_STATUS(GPUMEM_NOT_READY, acquire(ring, &slot, 20'000'000));
  other.kill();
  EXPECT_OK(acquire(ring, &slot));
}

TEST_F(Rings, ring_3) {
  // The slowest one sets the pace.
  Ring ring = create(ring_desc(2, 2));
  Other fast;
  Other slow;
  ASSERT_EQ(fast.open(handle_of(ring)), GPUMEM_SUCCESS);
  ASSERT_EQ(slow.open(handle_of(ring)), GPUMEM_SUCCESS);
  produce(ring, 2);
  EXPECT_EQ(fast.ask(kConsume, 2).value, 2u);
  gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
  EXPECT_STATUS(GPUMEM_NOT_READY, acquire(ring, &slot, 0));
  EXPECT_STATUS(GPUMEM_NOT_READY, acquire(ring, &slot, 20'000'000));
  EXPECT_EQ(slot.pointer, nullptr);
  EXPECT_EQ(slow.ask(kTake, 0, false, kLong).status, GPUMEM_SUCCESS);
  EXPECT_STATUS(GPUMEM_NOT_READY, acquire(ring, &slot, 0));
  EXPECT_EQ(slow.ask(kRelease, 0, false, 0).status, GPUMEM_SUCCESS);
  EXPECT_OK(acquire(ring, &slot));
  EXPECT_EQ(slot.number, 2u);
  EXPECT_EQ(info_of(ring).released, 1u);
  EXPECT_EQ(slow.ask(kClose).status, GPUMEM_SUCCESS);
  EXPECT_EQ(fast.ask(kClose).status, GPUMEM_SUCCESS);
  EXPECT_OK(gpumem_ring_finish(ring, kLong, why()));
}

TEST_F(Rings, ring_3_a_message_that_nobody_took) {
  // The producer's own work on the slot is waited for as well, in whatever way it acquires the slot again.
  Ring ring = create(ring_desc(1, 1));
  const Stream other = create_stream(device_);
  gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
  for (const gpumem_stream next : {gpumem_stream{nullptr}, other.get()}) {
    GatedStream held(device_);
    ASSERT_OK(acquire(ring, &slot, kLong, held));
    ASSERT_OK(gpumem_fill_async(held, slot.pointer, slot.size, 1, 1, why()));
    ASSERT_OK(gpumem_ring_publish(ring, held, slot.size, 1, why()));
    if (next == nullptr) {
      EXPECT_STATUS(GPUMEM_NOT_READY, acquire(ring, &slot, 0));
      EXPECT_STATUS(GPUMEM_NOT_READY, acquire(ring, &slot, 20'000'000));
      held.open();
    }
    ASSERT_OK(acquire(ring, &slot, kLong, next));
    if (next == nullptr) {
      ASSERT_OK(gpumem_fill(instance_, slot.pointer, slot.size, 2, 1, why()));
    } else {
      ASSERT_OK(gpumem_fill_async(next, slot.pointer, slot.size, 2, 1, why()));
      EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_stream_synchronize(next, 20'000'000, why()));
    }
    held.finish();
    ASSERT_OK(gpumem_ring_publish(ring, next, slot.size, 2, why()));
    EXPECT_OK(gpumem_stream_synchronize(other, kLong, why()));
    uint8_t byte = 0;
    ASSERT_OK(gpumem_copy(instance_, &byte, slot.pointer, 1, nullptr, why()));
    EXPECT_EQ(byte, 2);
  }
  // In the same stream, which is in order, acquiring enqueues nothing and waits for nothing.
  GatedStream held(device_);
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_OK(acquire(ring, &slot, 0, held));
    ASSERT_OK(gpumem_ring_publish(ring, held, 0, 0, why()));
  }
  held.finish();
}

TEST_F(Rings, ring_4) {
  // A stream is ordered, and nobody waits on the CPU.
  Ring ring = create(ring_desc(1, 1));
  Other other;
  ASSERT_EQ(other.open(handle_of(ring)), GPUMEM_SUCCESS);
  std::vector<uint8_t> bytes;
  GatedStream held(device_);
  gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
  ASSERT_OK(acquire(ring, &slot, kLong, held));
  fill_slot(instance_, held, slot, bytes);
  ASSERT_OK(gpumem_ring_publish(ring, held, size_of(0), tag_of(0), why()));
  // Without a stream, the call waits for the work; with one, it does not.
  EXPECT_EQ(other.ask(kTake, 0, false, 20'000'000).status, GPUMEM_NOT_READY);
  other.say(kConsume, 1, true);
  held.finish();
  EXPECT_EQ(other.hear().value, 1u);
  EXPECT_OK(acquire(ring, &slot, kLong));  // no matter how far the other one's stream is
  EXPECT_OK(gpumem_ring_publish(ring, nullptr, 0, 0, why()));
  EXPECT_EQ(other.ask(kClose).status, GPUMEM_SUCCESS);
  EXPECT_OK(gpumem_ring_finish(ring, kLong, why()));
}

TEST_F(Rings, ring_4_released_in_a_stream) {
  Other producer;
  gpumem_ring handle = nullptr;
  const gpumem_share_handle shared = producer.create(1);
  ASSERT_OK(gpumem_ring_open(instance_, &shared, nullptr, &handle, why()));
  Ring ring(handle);
  EXPECT_EQ(producer.ask(kProduce, 1, true).status, GPUMEM_SUCCESS);
  const Memory copy = alloc_pinned(device_, kSize);
  GatedStream held(device_);
  gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
  ASSERT_OK(gpumem_ring_wait(ring, held, kLong, &slot, why()));
  ASSERT_OK(copy_on(instance_, held, copy.host(), slot.pointer, slot.size, nullptr, why()));
  ASSERT_OK(gpumem_ring_release(ring, held, slot.number, why()));
  // The producer goes on, and its work on the slot comes after the copy.
  producer.say(kProduce, 1, true);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  held.finish();
  EXPECT_EQ(producer.hear().status, GPUMEM_SUCCESS);
  EXPECT_TRUE(has_pattern(copy.host(), slot.size, 0));
  ASSERT_OK(gpumem_ring_wait(ring, nullptr, kLong, &slot, why()));
  EXPECT_TRUE(is_message(instance_, slot, nullptr));
  EXPECT_OK(gpumem_ring_release(ring, nullptr, slot.number, why()));
}

TEST_F(Rings, ring_5) {
  Ring ring = create(ring_desc(2, 1));
  const gpumem_share_handle handle = handle_of(ring);
  const gpumem_share_handle again = handle_of(ring);
  EXPECT_EQ(std::memcmp(&handle, &again, sizeof handle), 0);
  gpumem_share_info shared = GPUMEM_SHARE_INFO_INIT;
  EXPECT_OK(gpumem_share_get_info(&handle, &shared, why()));
  EXPECT_EQ(shared.type, GPUMEM_SHARE_TYPE_RING);
  const gpumem_ring_info info = info_of(ring);
  EXPECT_EQ(shared.size, info.slot_stride * 2);
  EXPECT_EQ(info.is_producer, 1u);
  EXPECT_EQ(info.slot_size, kSize);
  EXPECT_EQ(info.slot_stride % 512, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(info.base) % 512, 0u);
  // It is opened as what it is.
  gpumem_memory memory = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_share_import(instance_, &handle, nullptr, 0, nullptr, nullptr, &memory, why()));
  gpumem_ring own = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_ring_open(instance_, &handle, nullptr, &own, why()));
  EXPECT_STREQ(
      last_error().message,
      "this process made the ring, and the two ends of a ring are in two processes; open it in another one");
  // By any channel, over a socket, and by the name of a hub.
  Other other;
  other.say(kReceive);
  EXPECT_OK(gpumem_share_send(instance_, &handle, other.socket(), nullptr, why()));
  EXPECT_EQ(other.hear().status, GPUMEM_SUCCESS);
  produce(ring, 1);
  EXPECT_EQ(other.ask(kConsume, 1).value, 1u);
  EXPECT_EQ(other.ask(kClose).status, GPUMEM_SUCCESS);
  Order fetch;
  fetch.what = kFetch;
  std::snprintf(fetch.path, sizeof fetch.path, "@gpumem-ring-test-%d", static_cast<int>(getpid()));
  gpumem_hub_desc desc = GPUMEM_HUB_DESC_INIT;
  desc.path = fetch.path;
  gpumem_hub hub = nullptr;
  ASSERT_OK(gpumem_hub_open(instance_, &desc, &hub, why()));
  EXPECT_OK(gpumem_hub_publish(hub, "batches", &handle, nullptr, nullptr, why()));
  EXPECT_TRUE(eventually([&] { return other.ask(fetch).status == GPUMEM_SUCCESS; }));
  EXPECT_OK(gpumem_hub_close(hub, why()));
  produce(ring, 1);
  EXPECT_EQ(other.ask(kConsume, 1).value, 1u);
  EXPECT_EQ(other.ask(kClose).status, GPUMEM_SUCCESS);
  EXPECT_OK(gpumem_ring_finish(ring, kLong, why()));
}

TEST_F(Rings, ring_5_memory) {
  // The memory is the ring's.
  Ring ring = create(ring_desc());
  void* const base = info_of(ring).base;
  const gpumem_pointer_info info = pointer_info(instance_, base);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_memory_destroy(info.memory, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_free(instance_, base, why()));
  gpumem_share_handle handle{};
  gpumem_export_desc desc = GPUMEM_EXPORT_DESC_INIT;
  for (const gpumem_export_flags flags : {gpumem_export_flags{0}, GPUMEM_EXPORT_NEIGHBOURS}) {
    desc.flags = flags;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_share_export(instance_, base, &desc, &handle, why()));
  }
  EXPECT_EQ(kind_stats(instance_, GPUMEM_KIND_DEVICE).live_count, 1u);
  ring.destroy();
  EXPECT_EQ(kind_stats(instance_, GPUMEM_KIND_DEVICE).live_count, 0u);
}

TEST_F(Rings, ring_5_descriptors) {
  if (!on_host()) SKIP_RULE("events of the driver take no descriptors");
  gpumem_ring_desc desc = ring_desc();
  desc.slot_count = 3;
  desc.consumers_max = 2;
  { const Ring first = create(desc); }  // it starts the sharing thread, which keeps some
  const auto open_files = [] {
    const std::filesystem::directory_iterator files("/proc/self/fd");
    return std::distance(begin(files), end(files));
  };
  const auto before = open_files();
  {
    const Ring ring = create(desc);
    EXPECT_EQ(open_files() - before, 2 * 3 * (2 + 1) + 4);
  }
  EXPECT_EQ(open_files(), before);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit few{static_cast<rlim_t>(before) + 12, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  gpumem_ring ring = nullptr;
  const gpumem_status status = gpumem_ring_create(device_, &desc, &ring, why());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(status, GPUMEM_ERROR_LIMIT_EXCEEDED);
  EXPECT_NE(std::strstr(last_error().message, "takes 22 file descriptors"), nullptr) << last_error().message;
  const std::string most = "may have " + std::to_string(few.rlim_cur) + " (RLIMIT_NOFILE)";
  EXPECT_EQ(std::strstr(last_error().message, most.c_str()) != nullptr, on_host()) << last_error().message;
  EXPECT_NE(std::strstr(last_error().message, "ulimit -n"), nullptr) << last_error().message;
  EXPECT_EQ(open_files(), before);
}

// ---- who may do what ----

TEST_F(Rings, ring_6) {
  Other producer;
  const gpumem_share_handle shared = producer.create(2);
  gpumem_ring opened = nullptr;
  ASSERT_OK(gpumem_ring_open(instance_, &shared, nullptr, &opened, why()));
  Ring consumer(opened);
  Ring ring = create(ring_desc(2, 1));
  gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
  // The wrong side.
  gpumem_share_handle handle{};
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_ring_export(consumer, &handle, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, acquire(consumer, &slot, 0));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_ring_publish(consumer, nullptr, 0, 0, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_ring_finish(consumer, 0, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_ring_wait(ring, nullptr, 0, &slot, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_ring_release(ring, nullptr, 0, why()));
  // The wrong order.
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_ring_publish(ring, nullptr, 0, 0, why()));
  ASSERT_OK(acquire(ring, &slot));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, acquire(ring, &slot, 0));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_ring_publish(ring, nullptr, kSize + 1, 0, why()));
  EXPECT_EQ(info_of(ring).held_count, 1u);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_ring_release(consumer, nullptr, 0, why()));
  EXPECT_EQ(producer.ask(kProduce, 2).status, GPUMEM_SUCCESS);
  for (uint64_t number = 0; number < 2; ++number)
    ASSERT_OK(gpumem_ring_wait(consumer, nullptr, kLong, &slot, why()));
  EXPECT_EQ(info_of(consumer).held_count, 2u);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_ring_wait(consumer, nullptr, 0, &slot, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_ring_release(consumer, nullptr, 1, why()));
  EXPECT_OK(gpumem_ring_release(consumer, nullptr, 0, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_ring_release(consumer, nullptr, 0, why()));
  EXPECT_OK(gpumem_ring_release(consumer, nullptr, 1, why()));
  // The wrong stream.
  const Instance elsewhere = open_instance();
  const Stream foreign = create_stream(elsewhere.device());
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_ring_wait(consumer, foreign, 0, &slot, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_ring_publish(ring, foreign, 0, 0, why()));
}

TEST_F(Rings, ring_6_arguments) {
  gpumem_ring ring = nullptr;
  const auto refused = [&](auto change) {
    gpumem_ring_desc desc = ring_desc();
    change(desc);
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_ring_create(device_, &desc, &ring, why()));
  };
  refused([](gpumem_ring_desc& desc) { desc.slot_size = 0; });
  refused([](gpumem_ring_desc& desc) { desc.slot_size = UINT64_MAX; });
  refused([](gpumem_ring_desc& desc) { desc.slot_size = uint64_t{1} << 60; });
  refused([](gpumem_ring_desc& desc) { desc.slot_count = 257; });
  refused([](gpumem_ring_desc& desc) { desc.consumers_max = 65; });
  refused([](gpumem_ring_desc& desc) { desc.consumers_first = 3; });
  refused([](gpumem_ring_desc& desc) { desc.reserved = 1; });
  EXPECT_EQ(ring, nullptr);
  EXPECT_OK(gpumem_ring_destroy(nullptr, why()));
  gpumem_share_handle nothing{};
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_ring_open(instance_, &nothing, nullptr, &ring, why()));
}

TEST_F(Rings, ring_7) {
  // As many consumers as it was created for; and the first slot waits for them, if that is wanted.
  Ring ring = create(ring_desc(2, 1, 1));
  gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
  EXPECT_STATUS(GPUMEM_NOT_READY, acquire(ring, &slot, 0));
  Other one;
  Other two;
  ASSERT_EQ(one.open(handle_of(ring)), GPUMEM_SUCCESS);
  EXPECT_EQ(two.open(handle_of(ring)), GPUMEM_ERROR_LIMIT_EXCEEDED);
  EXPECT_EQ(info_of(ring).consumer_count, 1u);
  EXPECT_EQ(one.ask(kInfo).value, 1u);
  EXPECT_OK(acquire(ring, &slot));
  EXPECT_EQ(one.ask(kClose).status, GPUMEM_SUCCESS);
  EXPECT_TRUE(eventually([&] { return two.open(handle_of(ring)) == GPUMEM_SUCCESS; }));
  EXPECT_EQ(two.ask(kClose).status, GPUMEM_SUCCESS);
  EXPECT_OK(gpumem_ring_finish(ring, kLong, why()));
}

TEST_F(Rings, ring_7_one_after_the_other) {
  // Who has left is no longer there for the next one.
  Ring ring = create(ring_desc(2, 1));
  Other sides[2];
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(sides[i % 2].open(handle_of(ring)), GPUMEM_SUCCESS) << i;
    ASSERT_EQ(sides[i % 2].ask(kClose).status, GPUMEM_SUCCESS);
  }
  EXPECT_OK(gpumem_ring_finish(ring, kLong, why()));
}

TEST_F(Rings, ring_9_while_another_one_opens_it) {
  // A process that stands still in the middle of opening the ring has to do with no consumer but itself.
  Ring ring = create(ring_desc(2, 2));
  uint64_t stops = 0;
  for (uint64_t messages = 1; messages < 40; ++messages) {
    Other opener;
    if (!stop_while_opening(opener, ring, messages)) {
      EXPECT_EQ(opener.hear().status, GPUMEM_SUCCESS);
      break;
    }
    ++stops;
    Other victim;
    ASSERT_EQ(victim.open(handle_of(ring)), GPUMEM_SUCCESS);
    produce(ring, 2);
    victim.kill();
    gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
    ASSERT_OK(acquire(ring, &slot, 5 * kSecond)) << "after " << messages << " messages";
    ASSERT_OK(gpumem_ring_publish(ring, nullptr, 0, 0, why()));
    opener.kill();
  }
  EXPECT_GT(stops, 3u);
  EXPECT_OK(gpumem_ring_finish(ring, kLong, why()));
}

TEST_F(Rings, ring_11_who_sleeps_is_woken) {
  // By who joins, publishes or releases; without that, a round takes one second more for each. The fastest
  // tells, because a busy machine makes some of them slow.
  constexpr int kTimes = 10;
  auto fastest = std::chrono::steady_clock::duration::max();
  for (int i = 0; i < kTimes; ++i) {
    Ring ring = create(ring_desc(1, 1, 1));
    Other other;
    const auto before = std::chrono::steady_clock::now();
    gpumem_status acquired = GPUMEM_ERROR_INTERNAL;
    gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
    const auto acquire_meanwhile = [&](auto act) {
      std::thread waiting([&] { acquired = gpumem_ring_acquire(ring, nullptr, kLong, &slot, nullptr); });
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      act();
      waiting.join();
      EXPECT_EQ(acquired, GPUMEM_SUCCESS);
    };
    acquire_meanwhile([&] { EXPECT_EQ(other.open(handle_of(ring)), GPUMEM_SUCCESS); });
    other.say(kTake, 0, false, kLong);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_OK(gpumem_ring_publish(ring, nullptr, 0, 0, why()));
    EXPECT_EQ(other.hear().status, GPUMEM_SUCCESS);
    acquire_meanwhile([&] { EXPECT_EQ(other.ask(kRelease).status, GPUMEM_SUCCESS); });
    fastest = std::min(fastest, std::chrono::steady_clock::now() - before);
    EXPECT_EQ(other.ask(kClose).status, GPUMEM_SUCCESS);
    EXPECT_OK(gpumem_ring_finish(ring, kLong, why()));
  }
  EXPECT_LT(fastest, std::chrono::milliseconds(900));
}

TEST_F(Rings, ring_11_what_a_consumer_wrote) {
  // When it has ended, nothing of what it wrote holds anybody up.
  struct Written {
    uint64_t at;
    uint64_t value;
  };
  constexpr uint64_t kFirstPlace = 128;
  constexpr uint64_t kPlace = kFirstPlace + 128;
  constexpr uint64_t kJoining = 0x1234'02;
  constexpr uint64_t kActive = 0x1234'03;
  for (const Written written :
       {Written{kPlace, kActive}, Written{kPlace, kJoining}, Written{kFirstPlace, kJoining}}) {
    // Who says of itself that it has not joined does not count as one that has.
    Ring ring = create(ring_desc(4, 2, written.at == kFirstPlace ? 0 : 1));
    Other other;
    ASSERT_EQ(other.open(handle_of(ring)), GPUMEM_SUCCESS);
    ASSERT_EQ(other.ask(kScribble, written.at, false, written.value).status, GPUMEM_SUCCESS);
    other.kill();
    produce(ring, 6);
    EXPECT_EQ(info_of(ring).published, 6u);
    EXPECT_TRUE(eventually([&] { return info_of(ring).consumer_count == 0; }));
    EXPECT_EQ(info_of(ring).finished, 0u);
    EXPECT_OK(gpumem_ring_finish(ring, kLong, why()));
    ring.destroy();
  }
  // A place that somebody wrote in while nobody had it can be taken.
  Ring ring = create(ring_desc(4, 2));
  for (int i = 0; i < 2; ++i) {
    Other hostile;
    ASSERT_EQ(hostile.open(handle_of(ring)), GPUMEM_SUCCESS);
    ASSERT_EQ(hostile.ask(kScribble, kPlace, false, kActive).status, GPUMEM_SUCCESS);
    produce(ring, 3);
  }
  Other one;
  Other two;
  EXPECT_EQ(one.open(handle_of(ring)), GPUMEM_SUCCESS);
  EXPECT_EQ(two.open(handle_of(ring)), GPUMEM_SUCCESS);
  EXPECT_EQ(one.ask(kClose).status, GPUMEM_SUCCESS);
  EXPECT_EQ(two.ask(kClose).status, GPUMEM_SUCCESS);
  EXPECT_OK(gpumem_ring_finish(ring, kLong, why()));
}

TEST_F(Rings, ring_11_all_that_a_consumer_can_write) {
  // Neither while it lives nor afterwards does it keep another one from the messages that come then.
  const Stream stream = create_stream(device_);
  const gpumem_ring_desc desc = ring_desc(3, 3, 1);
  for (const int byte : {0, 3, 255}) {  // 3: as if all places had an active consumer
    SCOPED_TRACE(byte);
    Ring ring = create(desc);
    std::optional<Other> hostile(std::in_place);
    ASSERT_EQ(hostile->open(handle_of(ring)), GPUMEM_SUCCESS);
    for (int i = 0; i < 3; ++i) {  // so that each slot's event is recorded
      produce(ring, 2, stream);
      EXPECT_EQ(hostile->ask(kConsume, 2, true).value, 2u);
    }
    EXPECT_OK(gpumem_stream_synchronize(stream, kLong, why()));
    const Answer wrote = hostile->ask(kOverwrite, 0, false, static_cast<uint64_t>(byte));
    EXPECT_EQ(wrote.value, 1 + (on_host() ? desc.slot_count : 0)) << "what the producer says is not written";
    const auto deliver = [&](bool streams) {
      Other later;
      ASSERT_EQ(later.open(handle_of(ring)), GPUMEM_SUCCESS);
      later.say(kConsume, 8, streams);
      produce(ring, 8, streams ? stream.get() : nullptr);
      const Answer all = later.hear();
      EXPECT_EQ(all.status, GPUMEM_SUCCESS);
      EXPECT_EQ(all.value, 8u);
      EXPECT_EQ(later.ask(kClose).status, GPUMEM_SUCCESS);
    };
    gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
    {
      // What is not complete does not look so.
      Other later;
      ASSERT_EQ(later.open(handle_of(ring)), GPUMEM_SUCCESS);
      GatedStream held(device_);
      ASSERT_OK(acquire(ring, &slot, kLong, held));
      ASSERT_OK(gpumem_ring_publish(ring, held, 0, 0, why()));
      EXPECT_EQ(later.ask(kTake, 0, false, 20'000'000).status, GPUMEM_NOT_READY);
      held.finish();
      EXPECT_EQ(later.ask(kTake, 0, false, kLong).status, GPUMEM_SUCCESS);
      EXPECT_EQ(later.ask(kClose).status, GPUMEM_SUCCESS);
    }
    deliver(true);
    deliver(false);
    hostile->kill();
    if (on_host() || on_fake_cuda()) {
      // Nor does what one in its place has not finished. Not with a real driver: a stream of its waits for
      // ever for an event behind a host function of a killed process.
      Other later;
      ASSERT_EQ(later.open(handle_of(ring)), GPUMEM_SUCCESS);
      const uint64_t first = info_of(ring).published;
      produce(ring, 3);
      EXPECT_EQ(later.ask(kHold).status, GPUMEM_SUCCESS);
      EXPECT_EQ(later.ask(kTake, 0, true, kLong).value, first);
      EXPECT_EQ(later.ask(kRelease, 0, true, first).status, GPUMEM_SUCCESS);
      EXPECT_STATUS(GPUMEM_NOT_READY, acquire(ring, &slot, 20'000'000));
      later.kill();
    }
    deliver(true);
    EXPECT_EQ(info_of(ring).finished, 0u);
    EXPECT_OK(gpumem_ring_finish(ring, kLong, why()));
    EXPECT_OK(gpumem_stream_synchronize(stream, kLong, why()));
  }
}

TEST_F(Rings, ring_11_that_a_record_of_its_own_is_the_latest) {
  // Neither the producer nor who takes what that made waits for one that a consumer only claims.
  if (!on_host()) SKIP_RULE("an event of the driver keeps the last record of any process");
  const Stream stream = create_stream(device_);
  for (const bool lives : {true, false}) {
    SCOPED_TRACE(lives);
    Ring ring = create(ring_desc(2, 1));
    std::optional<Impostor> impostor(std::in_place);
    Other other;
    ASSERT_EQ(other.open(handle_of(ring)), GPUMEM_SUCCESS);
    for (uint64_t number = 0; number < 6; ++number) {
      gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
      ASSERT_OK(acquire(ring, &slot, 10 * kSecond));
      fill_slot(instance_, stream, slot, bytes_.emplace_back());
      ASSERT_OK(gpumem_ring_publish(ring, stream, size_of(number), tag_of(number), why()));
      if (impostor) impostor->say();
      if (!lives) impostor.reset();
      EXPECT_EQ(other.ask(kTake, 0, number % 2 != 0, 10 * kSecond).status, GPUMEM_SUCCESS);
      EXPECT_EQ(other.ask(kRelease, 0, false, number).status, GPUMEM_SUCCESS);
    }
    EXPECT_EQ(other.ask(kClose).status, GPUMEM_SUCCESS);
    EXPECT_OK(gpumem_ring_finish(ring, kLong, why()));
    EXPECT_OK(gpumem_stream_synchronize(stream, kLong, why()));
  }
}

TEST_F(Rings, ring_11_where_another_one_opens_it) {
  // As if the one that stands still in the middle of opening the ring were about to join.
  constexpr uint64_t kSecondPlace = 256;
  constexpr uint64_t kJoining = 0x1234'02;
  uint64_t stops = 0;
  for (bool stopped = true; stopped; ++stops) {
    Ring ring = create(ring_desc(2, 2));
    Other hostile;
    ASSERT_EQ(hostile.open(handle_of(ring)), GPUMEM_SUCCESS);
    ASSERT_EQ(hostile.ask(kScribble, kSecondPlace, false, kJoining).status, GPUMEM_SUCCESS);
    Other opener;
    stopped = stop_while_opening(opener, ring, stops + 1);
    hostile.kill();
    gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
    EXPECT_OK(acquire(ring, &slot, 5 * kSecond)) << "after " << stops + 1 << " messages";
    opener.kill();
    EXPECT_OK(gpumem_ring_finish(ring, kLong, why()));
  }
  EXPECT_GT(stops, 3u);
}

TEST_F(Rings, ring_11_who_says_that_it_leaves_and_stays) {
  // Whoever waits for its place does so until its own instance is closed, and no longer.
  constexpr uint64_t kFirstPlace = 128;
  constexpr uint64_t kPlaceSize = 128;
  constexpr uint64_t kLeft = 0x1234'05;
  Other producer;
  const gpumem_share_handle shared = producer.create();  // for two consumers
  Other hostile[2];
  for (uint64_t i = 0; i < 2; ++i) {
    ASSERT_EQ(hostile[i].open(shared), GPUMEM_SUCCESS);
    ASSERT_EQ(hostile[i].ask(kScribble, kFirstPlace + i * kPlaceSize, false, kLeft).status, GPUMEM_SUCCESS);
  }
  gpumem_instance const instance = instance_.release();
  gpumem::test::Sleeper opening([&] {
    gpumem_ring_open_desc desc = GPUMEM_RING_OPEN_DESC_INIT;
    desc.timeout_ns = GPUMEM_TIMEOUT_INFINITE;
    gpumem_ring ring = nullptr;
    EXPECT_EQ(gpumem_ring_open(instance, &shared, &desc, &ring, nullptr), GPUMEM_ERROR_CLOSED);
  });
  EXPECT_OK(gpumem_instance_close(instance, GPUMEM_CLOSE_FORCE, nullptr, why()));
  opening.join();
  instance_ = open_instance();
  device_ = instance_.device();
}

TEST_F(Rings, ring_11_what_cannot_be_released) {
  // Who says that is dropped, and holds up nobody.
  constexpr uint64_t kReleased = 128 + 8;
  for (const uint64_t released : {UINT64_MAX, uint64_t{0}}) {
    Ring ring = create(ring_desc(2, 1));
    produce(ring, 5);
    Other hostile;
    ASSERT_EQ(hostile.open(handle_of(ring)), GPUMEM_SUCCESS);
    ASSERT_EQ(hostile.ask(kScribble, kReleased, false, released).status, GPUMEM_SUCCESS);
    produce(ring, 3);
    EXPECT_EQ(info_of(ring).consumer_count, 0u);
    EXPECT_EQ(hostile.ask(kTake, 0, false, kLong).status, GPUMEM_ERROR_INVALID_STATE);
    EXPECT_EQ(hostile.ask(kClose).status, GPUMEM_SUCCESS);
    EXPECT_OK(gpumem_ring_finish(ring, kLong, why()));
  }
}

TEST_F(Rings, ring_11_by_whom_a_consumer_is_dropped) {
  constexpr uint64_t kWord = 128;  // of the first place
  constexpr uint64_t kReleased = kWord + 8;
  constexpr uint64_t kActive = 0x1234'03;
  for (const bool overwritten : {true, false}) {
    SCOPED_TRACE(overwritten);
    Other producer;
    const gpumem_share_handle shared = producer.create(2);
    gpumem_ring opened = nullptr;
    ASSERT_OK(gpumem_ring_open(instance_, &shared, nullptr, &opened, why()));
    const Ring ring(opened);
    Other hostile;
    ASSERT_EQ(hostile.open(shared), GPUMEM_SUCCESS);
    const uint64_t at = overwritten ? kWord : kReleased;
    const uint64_t value = overwritten ? kActive : UINT64_MAX;
    ASSERT_EQ(hostile.ask(kScribble, at, false, value).status, GPUMEM_SUCCESS);
    ASSERT_EQ(producer.ask(kProduce, 1).status, GPUMEM_SUCCESS);
    gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_ring_wait(ring, nullptr, kLong, &slot, why()));
    const char* const said = overwritten ? "another consumer has overwritten this one's place"
                                         : "the producer has dropped this consumer";
    EXPECT_NE(std::strstr(last_error().message, said), nullptr) << last_error().message;
  }
}

TEST_F(Rings, ring_11_what_is_logged) {
  // Whoever is dropped again and again fills no log: of 10 seconds 8 lines are told, and of the rest the
  // number.
  struct Heard {
    uint64_t lines = 0;
    uint64_t left_out = 0;
  } heard;
  const auto hear = [](void* user_data, gpumem_log_level, const char* line) {
    auto* const told = static_cast<Heard*>(user_data);
    const std::string text = line;
    const std::string cause = "dropped a consumer of a ring: ";
    ASSERT_EQ(text.find(cause), 0u) << text;
    if (text.find(" times more") == std::string::npos) {
      ++told->lines;
    } else {
      told->left_out += std::stoull(text.substr(cause.size()));
    }
  };
  constexpr uint64_t kReleased = 128 + 8;
  constexpr uint64_t kTimes = 20;
  const auto began = std::chrono::steady_clock::now();
  {
    instance_ = open_instance();
    device_ = instance_.device();
    Ring ring = create(ring_desc(2, 2));
    Other hostile;
    ASSERT_OK(gpumem_log_set_function(hear, &heard, GPUMEM_LOG_WARNING, why()));
    for (uint64_t i = 0; i < kTimes; ++i) {
      ASSERT_EQ(hostile.open(handle_of(ring)), GPUMEM_SUCCESS);
      ASSERT_EQ(hostile.ask(kScribble, kReleased, false, UINT64_MAX).status, GPUMEM_SUCCESS);
      produce(ring, 3);
      EXPECT_EQ(hostile.ask(kTake, 0, false, kLong).status, GPUMEM_ERROR_INVALID_STATE);
      EXPECT_EQ(hostile.ask(kClose).status, GPUMEM_SUCCESS);
    }
    EXPECT_OK(gpumem_ring_finish(ring, kLong, why()));
  }
  instance_.close();
  EXPECT_OK(gpumem_log_set_function(nullptr, nullptr, 0, why()));
  const auto periods = 1 + (std::chrono::steady_clock::now() - began) / std::chrono::seconds(10);
  EXPECT_LE(heard.lines, 8 * static_cast<uint64_t>(periods));
  EXPECT_EQ(heard.lines + heard.left_out, kTimes);
}

TEST_F(Rings, ring_11_that_nobody_sleeps) {
  // What a consumer wrote about the sleep of others delays a message, and no more.
  constexpr uint64_t kSleepers = 16;
  Ring ring = create(ring_desc(1, 2));
  Other hostile;
  Other other;
  ASSERT_EQ(hostile.open(handle_of(ring)), GPUMEM_SUCCESS);
  ASSERT_EQ(other.open(handle_of(ring)), GPUMEM_SUCCESS);
  other.say(kTake, 0, false, kLong);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ASSERT_EQ(hostile.ask(kScribble, kSleepers, false, 0).status, GPUMEM_SUCCESS);
  produce(ring, 1);
  EXPECT_EQ(other.hear().status, GPUMEM_SUCCESS);
  EXPECT_EQ(hostile.ask(kClose).status, GPUMEM_SUCCESS);
  EXPECT_EQ(other.ask(kClose).status, GPUMEM_SUCCESS);
  EXPECT_OK(gpumem_ring_finish(ring, kLong, why()));
}

TEST_F(Rings, ring_11_what_a_producer_wrote) {
  // It is checked when the ring is opened, and with each message.
  struct Written {
    uint64_t at;
    uint64_t value;
    gpumem_status opened;
    gpumem_status waited;
  };
  constexpr uint64_t kVersion = 8;  // and the number of slots; that of consumers is behind it
  constexpr uint64_t kPublished = 128;
  constexpr uint64_t kMessageSize = 384;
  constexpr uint64_t kHandles = 512;  // of a ring of 2 slots: the memory's, then those of the slots
  constexpr uint64_t kTwo = uint64_t{2} << 32;
  for (const Written& written : {
           Written{0, 1, GPUMEM_ERROR_INVALID_ARGUMENT, 0},
           Written{kVersion, 3 | kTwo, GPUMEM_ERROR_UNSUPPORTED, 0},
           Written{kVersion, 1 | kTwo, GPUMEM_ERROR_INVALID_ARGUMENT, 0},
           Written{kVersion, 2 | kTwo << 6, GPUMEM_ERROR_INVALID_ARGUMENT, 0},
           Written{16, 60, GPUMEM_ERROR_INVALID_ARGUMENT, 0},
           Written{24, kSize * 100, GPUMEM_ERROR_INVALID_STATE, 0},
           Written{kHandles + 64, 1, GPUMEM_ERROR_INVALID_STATE, 0},
           Written{kHandles + 256 + 64, 1, GPUMEM_ERROR_INVALID_STATE, 0},
           Written{kPublished, 1000, GPUMEM_SUCCESS, GPUMEM_ERROR_INVALID_STATE},
           Written{kMessageSize, kSize + 1, GPUMEM_SUCCESS, GPUMEM_ERROR_INVALID_STATE},
       }) {
    SCOPED_TRACE(written.at);
    Other producer;
    const gpumem_share_handle shared = producer.create(2);
    const auto write = [&] {
      ASSERT_EQ(producer.ask(kScribbleAsProducer, written.at, false, written.value).status, GPUMEM_SUCCESS);
    };
    if (written.opened != GPUMEM_SUCCESS) write();
    gpumem_ring opened = nullptr;
    const gpumem_status status = gpumem_ring_open(instance_, &shared, nullptr, &opened, why());
    EXPECT_EQ(status, written.opened) << last_error().message;
    const Ring ring(opened);
    if (status != GPUMEM_SUCCESS || written.opened != GPUMEM_SUCCESS) continue;
    EXPECT_EQ(producer.ask(kProduce, 1).status, GPUMEM_SUCCESS);
    write();
    gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
    EXPECT_STATUS(written.waited, gpumem_ring_wait(ring, nullptr, kLong, &slot, why()));
  }
}

// ---- how it ends ----

TEST_F(Rings, ring_8) {
  Ring ring = create(ring_desc(4, 2));
  Other other;
  Other late;
  ASSERT_EQ(other.open(handle_of(ring)), GPUMEM_SUCCESS);
  produce(ring, 3);
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_ring_destroy(ring, why()));
  EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_ring_finish(ring, 0, why()));
  // What is published is taken, and then there is no more.
  const Answer all = other.ask(kConsume, 100);
  EXPECT_EQ(all.status, GPUMEM_ERROR_CLOSED);
  EXPECT_EQ(all.value, 3u);
  EXPECT_EQ(late.open(handle_of(ring)), GPUMEM_ERROR_CLOSED);
  gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, acquire(ring, &slot));
  EXPECT_EQ(info_of(ring).finished, 1u);
  EXPECT_EQ(other.ask(kClose).status, GPUMEM_SUCCESS);
  EXPECT_OK(gpumem_ring_finish(ring, kLong, why()));
  const gpumem_ring gone = ring.get();
  ring.destroy();
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_ring_finish(gone, 0, why()));
}

TEST_F(Rings, ring_8_sent_and_not_opened) {
  Ring ring = create(ring_desc(1, 1));
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  const gpumem_share_handle handle = handle_of(ring);
  EXPECT_OK(gpumem_share_send(instance_, &handle, sockets[0], nullptr, why()));
  // Before the end, it may still be opened.
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_ring_destroy(ring, why()));
  EXPECT_OK(gpumem_ring_finish(ring, 0, why()));
  EXPECT_OK(gpumem_share_send(instance_, &handle, sockets[0], nullptr, why()));
  ring.destroy();
  close(sockets[0]);
  close(sockets[1]);
}

TEST_F(Rings, ring_8_while_one_opens_it) {
  // If finishing says that nobody has the ring, nobody has.
  for (uint64_t messages = 1; messages < 5; ++messages) {
    Ring ring = create(ring_desc(1, 1));
    Other opener;
    ASSERT_TRUE(stop_while_opening(opener, ring, messages));
    const gpumem_status finished = gpumem_ring_finish(ring, 0, why());
    if (finished == GPUMEM_NOT_READY) {
      EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_ring_destroy(ring, why()));
      opener.kill();
      EXPECT_OK(gpumem_ring_finish(ring, kLong, why()));
      ring.destroy();
    } else {
      ring.destroy();  // BUSY if somebody has it
      opener.kill();
    }
  }
}

TEST_F(Rings, ring_8_what_is_destroyed_in_part) {
  // It is opened by nobody more, and can only be destroyed.
  if (!on_fake_cuda()) SKIP_RULE("only the fake driver can be made to turn down a release");
  constexpr int kNotPermitted = 800;
  const gpumem_ring ring = create(ring_desc(2, 1)).release();
  Other other;
  {
    Faults faults(instance_);
    Faults::fail_driver_call("cuMemFree", kNotPermitted, true);
    EXPECT_STATUS(GPUMEM_ERROR_PERMISSION_DENIED, gpumem_ring_destroy(ring, why()));
    // It is greeted and refused; a third message would bring a part of the ring.
    const bool granted = stop_while_opening(other, ring, 3);
    if (granted) other.kill();
    ASSERT_FALSE(granted);
    EXPECT_EQ(other.hear().status, GPUMEM_ERROR_STALE_HANDLE);
    gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
    EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, acquire(ring, &slot, 0));
  }
  EXPECT_OK(gpumem_ring_destroy(ring, why()));
}

TEST_F(Rings, ring_8_with_work_of_its_own) {
  // A consumer leaves when its work on what it has released is complete.
  Other producer;
  const gpumem_share_handle shared = producer.create(1);
  gpumem_ring ring = nullptr;
  ASSERT_OK(gpumem_ring_open(instance_, &shared, nullptr, &ring, why()));
  EXPECT_EQ(producer.ask(kProduce, 1).status, GPUMEM_SUCCESS);
  GatedStream held(device_);
  gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
  ASSERT_OK(gpumem_ring_wait(ring, held, kLong, &slot, why()));
  ASSERT_OK(gpumem_ring_release(ring, held, slot.number, why()));
  std::atomic<bool> has_left{false};
  gpumem_status left = GPUMEM_ERROR_INTERNAL;
  gpumem::test::Sleeper leaving([&] {
    left = gpumem_ring_destroy(ring, nullptr);
    has_left = true;
  });
  EXPECT_FALSE(has_left);
  held.finish();
  leaving.join();
  EXPECT_EQ(left, GPUMEM_SUCCESS);
}

TEST_F(Rings, ring_8_whatever_others_say_of_its_work) {
  if (!on_host()) SKIP_RULE("an event of the driver keeps the last record of any process");
  for (const bool lives : {true, false}) {
    SCOPED_TRACE(lives);
    Other producer;
    const gpumem_share_handle shared = producer.create(2);
    gpumem_ring ring = nullptr;
    ASSERT_OK(gpumem_ring_open(instance_, &shared, nullptr, &ring, why()));
    EXPECT_EQ(producer.ask(kProduce, 1).status, GPUMEM_SUCCESS);
    const Stream stream = create_stream(device_);
    gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
    ASSERT_OK(gpumem_ring_wait(ring, stream, kLong, &slot, why()));
    ASSERT_OK(gpumem_ring_release(ring, stream, slot.number, why()));
    EXPECT_OK(gpumem_stream_synchronize(stream, kLong, why()));
    std::optional<Impostor> impostor(std::in_place);
    if (!lives) impostor.reset();
    std::atomic<bool> has_left{false};
    gpumem_status left = GPUMEM_ERROR_INTERNAL;
    std::thread leaving([&] {
      left = gpumem_ring_destroy(ring, nullptr);
      has_left = true;
    });
    EXPECT_TRUE(eventually([&] { return has_left.load(); }));
    impostor.reset();
    leaving.join();
    EXPECT_EQ(left, GPUMEM_SUCCESS);
  }
}

TEST_F(Rings, ring_8_while_its_instance_is_closed) {
  // Who leaves waits for its work until then.
  Other producer;
  const gpumem_share_handle shared = producer.create(1);
  gpumem_ring ring = nullptr;
  ASSERT_OK(gpumem_ring_open(instance_, &shared, nullptr, &ring, why()));
  EXPECT_EQ(producer.ask(kProduce, 1).status, GPUMEM_SUCCESS);
  Stream stream = create_stream(device_);
  Gate gate;
  gate.hold(stream);
  gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
  ASSERT_OK(gpumem_ring_wait(ring, stream, kLong, &slot, why()));
  ASSERT_OK(gpumem_ring_release(ring, stream, slot.number, why()));
  std::atomic<bool> has_left{false};
  gpumem_status left = GPUMEM_ERROR_INTERNAL;
  gpumem::test::Sleeper leaving([&] {
    left = gpumem_ring_destroy(ring, nullptr);
    has_left = true;
  });
  EXPECT_FALSE(has_left);
  gpumem_instance const instance = instance_.release();
  std::thread closing(
      [&] { EXPECT_OK(gpumem_instance_close(instance, GPUMEM_CLOSE_FORCE, nullptr, why())); });
  EXPECT_TRUE(eventually([&] { return has_left.load(); }));
  gate.open();
  leaving.join();
  closing.join();
  EXPECT_EQ(left, GPUMEM_ERROR_CLOSED);
  stream.release();
  instance_ = open_instance();
  device_ = instance_.device();
}

TEST_F(Rings, ring_8_twice_in_a_process) {
  // They have one import of the memory. Who leaves has nothing to do with the work of the other one.
  Other producer;
  const gpumem_share_handle shared = producer.create(2);
  gpumem_ring handles[2] = {};
  for (gpumem_ring& handle : handles)
    ASSERT_OK(gpumem_ring_open(instance_, &shared, nullptr, &handle, why()));
  Ring leaving(handles[0]);
  Ring staying(handles[1]);
  EXPECT_EQ(info_of(leaving).base, info_of(staying).base);
  EXPECT_EQ(producer.ask(kProduce, 1).status, GPUMEM_SUCCESS);
  const Memory copy = alloc_pinned(device_, kSize);
  GatedStream held(device_);
  gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
  ASSERT_OK(gpumem_ring_wait(staying, held, kLong, &slot, why()));
  ASSERT_OK(copy_on(instance_, held, copy.host(), slot.pointer, slot.size, nullptr, why()));
  EXPECT_OK(gpumem_ring_destroy(leaving.release(), why()));
  // Its own work holds it up, and nothing is lost by asking. The driver waits instead.
  if (on_host()) {
    EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_ring_destroy(staying, why()));
  }
  held.finish();
  EXPECT_TRUE(has_pattern(copy.host(), slot.size, 0));
  EXPECT_OK(gpumem_ring_release(staying, nullptr, slot.number, why()));
  EXPECT_EQ(producer.ask(kProduce, 2).status, GPUMEM_SUCCESS);
  ASSERT_OK(gpumem_ring_wait(staying, nullptr, kLong, &slot, why()));
  EXPECT_TRUE(is_message(instance_, slot, nullptr));
}

TEST_F(Rings, ring_8_by_another_thread) {
  Ring ring = create(ring_desc(1, 1, 1));
  const gpumem_ring handle = ring.get();
  gpumem_status waited = GPUMEM_SUCCESS;
  std::thread waiting([&] {
    gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
    do {
      waited = gpumem_ring_acquire(handle, nullptr, GPUMEM_TIMEOUT_INFINITE, &slot, nullptr);
    } while (waited == GPUMEM_ERROR_BUSY);  // it met the call below
  });
  // A call that overlaps is refused.
  gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
  EXPECT_TRUE(eventually([&] { return acquire(ring, &slot, 0) == GPUMEM_ERROR_BUSY; }));
  ring.destroy();
  waiting.join();
  EXPECT_EQ(waited, GPUMEM_ERROR_STALE_HANDLE);
}

TEST_F(Rings, ring_9) {
  // A consumer that is killed holds up nobody, wherever it was.
  const Snapshot before = Snapshot::take();
  Ring ring = create(ring_desc(1, 2));
  for (const bool holds : {true, false}) {
    std::optional<Other> victim(std::in_place);
    Other other;
    ASSERT_EQ(victim->open(handle_of(ring)), GPUMEM_SUCCESS);
    ASSERT_EQ(other.open(handle_of(ring)), GPUMEM_SUCCESS);
    const uint64_t first = info_of(ring).published;
    produce(ring, 1);
    if (holds) {
      EXPECT_EQ(victim->ask(kTake, 0, false, kLong).status, GPUMEM_SUCCESS);
    }
    EXPECT_EQ(other.ask(kConsume, 1).value, 1u);
    gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
    EXPECT_STATUS(GPUMEM_NOT_READY, acquire(ring, &slot, 0));
    victim->kill();
    produce(ring, 1);
    EXPECT_EQ(info_of(ring).published, first + 2);
    EXPECT_EQ(other.ask(kConsume, 1).value, 1u);
    EXPECT_EQ(other.ask(kClose).status, GPUMEM_SUCCESS);
    EXPECT_TRUE(eventually([&] { return info_of(ring).consumer_count == 0; }));
  }
  EXPECT_OK(gpumem_ring_finish(ring, kLong, why()));
  ring.destroy();
  instance_.close();
  EXPECT_TRUE(nothing_left_since(before));
  instance_ = open_instance();
}

// What a consumer had in its stream when it was killed is waited for by nobody.
class UnendingWork : public Rings, public ::testing::WithParamInterface<bool> {};

TEST_P(UnendingWork, ring_9_with_work_that_never_ends) {
  const bool streams = GetParam();
  if (streams && !on_host() && !on_fake_cuda())
    SKIP_RULE(
        "a stream of the driver waits for ever for an event behind a host function of a killed process");
  Ring ring = create(ring_desc(1, 1));
  const Stream stream = create_stream(device_);
  for (const bool while_it_waits : {false, true}) {
    std::optional<Other> victim(std::in_place);
    ASSERT_EQ(victim->open(handle_of(ring)), GPUMEM_SUCCESS);
    produce(ring, 1);
    EXPECT_EQ(victim->ask(kHold).status, GPUMEM_SUCCESS);
    const uint64_t number = info_of(ring).published - 1;
    EXPECT_EQ(victim->ask(kTake, 0, true, kLong).status, GPUMEM_SUCCESS);
    EXPECT_EQ(victim->ask(kRelease, 0, true, number).status, GPUMEM_SUCCESS);
    gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
    EXPECT_STATUS(GPUMEM_NOT_READY, acquire(ring, &slot, 20'000'000));
    std::thread killing([&] {
      if (while_it_waits) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      victim->kill();
    });
    if (!while_it_waits) killing.join();
    produce(ring, 1, streams ? stream.get() : nullptr);
    if (while_it_waits) killing.join();
    // The work of the stream is this process's own, and nothing of it failed.
    EXPECT_OK(gpumem_stream_synchronize(stream, kLong, why()));
    // Nor has who gets the place to do with it.
    Other next;
    EXPECT_TRUE(eventually([&] { return next.open(handle_of(ring)) == GPUMEM_SUCCESS; }));
    EXPECT_EQ(next.ask(kClose).status, GPUMEM_SUCCESS);
  }
  EXPECT_OK(gpumem_ring_finish(ring, kLong, why()));
}

INSTANTIATE_TEST_SUITE_P(Producers, UnendingWork, ::testing::Bool(), [](const auto& tested) {
  return tested.param ? "with_a_stream" : "without_a_stream";
});

TEST_F(Rings, ring_10) {
  // Without the producer, a consumer that waits is told, and so is one that asks.
  enum class End { kKilled, kEnded, kClosedByForce };
  for (const End end : {End::kKilled, End::kEnded, End::kClosedByForce}) {
    // A driver does not allow what that does: it frees memory that others have open.
    if (end == End::kClosedByForce && on_cuda()) continue;
    std::optional<Other> producer(std::in_place);
    const gpumem_share_handle shared = producer->create(2);
    gpumem_ring opened = nullptr;
    ASSERT_OK(gpumem_ring_open(instance_, &shared, nullptr, &opened, why()));
    Ring ring(opened);
    gpumem_status waited = GPUMEM_SUCCESS;
    gpumem::test::Sleeper waiting([&] {
      gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
      waited = gpumem_ring_wait(opened, nullptr, GPUMEM_TIMEOUT_INFINITE, &slot, nullptr);
    });
    if (end == End::kKilled) {
      producer->kill();
    } else {
      producer->say(kEnd, end == End::kClosedByForce ? 1 : 0);
    }
    waiting.join();
    EXPECT_EQ(waited, GPUMEM_ERROR_PEER_GONE);
    gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
    EXPECT_STATUS(GPUMEM_ERROR_PEER_GONE, gpumem_ring_wait(ring, nullptr, 0, &slot, why()));
    producer.reset();
    ring.destroy();
    EXPECT_STATUS_IN(gpumem_ring_open(instance_, &shared, nullptr, &opened, why()), GPUMEM_ERROR_PEER_GONE);
  }
}

TEST_F(Rings, ring_11) {
  // Who waits uses no CPU.
  Ring ring = create(ring_desc(1, 1, 1));
  // Of this thread alone, since others of the process may work meanwhile.
  const auto on = [](clockid_t clock) {
    timespec time{};
    clock_gettime(clock, &time);
    return time.tv_sec * 1'000'000 + time.tv_nsec / 1'000;
  };
  gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
  EXPECT_STATUS(GPUMEM_NOT_READY, acquire(ring, &slot, 1'000'000));
  const long begun = on(CLOCK_MONOTONIC);
  const long before = on(CLOCK_THREAD_CPUTIME_ID);
  EXPECT_STATUS(GPUMEM_NOT_READY, acquire(ring, &slot, 300'000'000));
  const long used = on(CLOCK_THREAD_CPUTIME_ID) - before;
  const long passed = on(CLOCK_MONOTONIC) - begun;
  EXPECT_LT(used, passed / 15) << "microseconds, of " << passed;
}

}  // namespace
}  // namespace conformance
