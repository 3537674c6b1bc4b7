// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Producers and consumers of rings that are killed at random moments: the other side goes on, sees whole
// messages only, and keeps nothing of theirs. GPUMEM_KILL_ROUNDS says how often.
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "killing.h"

namespace processes {
namespace {

using namespace conformance;
using namespace std::chrono_literals;

constexpr uint64_t kSize = uint64_t{64} << 10;
constexpr uint32_t kSlots = 3;
constexpr uint64_t kMessages = 40;  // of a ring, before its producer makes another one
constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kLong = 20 * kSecond;  // no process is so slow
constexpr int kExtraWork = 10;            // so that streams are behind when their process ends

// Over the socket that a process calls in with.
struct Said {
  enum What : int32_t { kRing, kTook, kWrong };
  int32_t what = kTook;
  gpumem_status status = GPUMEM_SUCCESS;
  uint64_t count = 0;
  char text[128] = "";
  gpumem_share_handle handle{};
};

void say(int socket, const Said& said, int flags = 0) {
  (void)send(socket, &said, sizeof said, MSG_NOSIGNAL | flags);
}

// ---- messages ----

uint64_t size_of(uint64_t number) { return kSize - number * 509 % 5000; }

// The bytes of each message follow from its tag, which has a part of its number, and says who made it.
constexpr uint64_t kByStream = uint64_t{1} << 32;
uint64_t tag_of(uint64_t number, uint32_t salt, bool by_stream) {
  return (number & 255) | uint64_t{salt & 0xffffff} << 8 | (by_stream ? kByStream : 0);
}

bool is_message(const gpumem_ring_slot& slot, const std::vector<uint8_t>& bytes) {
  return slot.size == size_of(slot.number) && (slot.tag & 255) == (slot.number & 255) &&
         has_pattern(bytes.data(), slot.size, static_cast<uint32_t>(slot.tag));
}

class Producer {
 public:
  explicit Producer(gpumem_instance instance, uint32_t salt)
      : instance_(instance), stream_(create_stream(device())), salt_(salt) {
    for (auto& bytes : bytes_)
      bytes.resize(kSize);
  }
  gpumem_device device() const {
    gpumem_device device = nullptr;
    gpumem_device_get(instance_, 0, &device, nullptr);
    return device;
  }
  gpumem_ring create(uint32_t consumers, uint32_t first) const {
    gpumem_ring_desc desc = GPUMEM_RING_DESC_INIT;
    desc.slot_size = kSize;
    desc.slot_count = kSlots;
    desc.consumers_max = consumers;
    desc.consumers_first = first;
    gpumem_ring ring = nullptr;
    EXPECT_OK(gpumem_ring_create(device(), &desc, &ring, why()));
    return ring;
  }
  // One message, by device work or by this thread.
  gpumem_status produce(gpumem_ring ring, bool by_stream) {
    gpumem_stream const stream = by_stream ? stream_.get() : nullptr;
    gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
    // On a real driver a stream can wait for ever for what a killed consumer had still to do (ring.h).
    gpumem_stream const waits = on_host() || on_fake_cuda() ? stream : nullptr;
    if (const gpumem_status status = gpumem_ring_acquire(ring, waits, kLong, &slot, why()); status != 0)
      return status;
    // The stream may still read what it was given for the slot before.
    if (by_stream) {
      if (const gpumem_status status = synchronize(); status != 0) return status;
      for (int i = 0; i < kExtraWork; ++i)
        gpumem_fill_async(stream, slot.pointer, kSize, 0xdead, 4, nullptr);
    }
    std::vector<uint8_t>& bytes = bytes_.at(slot.index);
    const uint64_t tag = tag_of(slot.number, salt_, by_stream);
    fill_pattern(bytes.data(), size_of(slot.number), static_cast<uint32_t>(tag));
    gpumem_status status =
        copy_on(instance_, stream, slot.pointer, bytes.data(), size_of(slot.number), nullptr, why());
    if (status == GPUMEM_SUCCESS)
      status = gpumem_ring_publish(ring, stream, size_of(slot.number), tag, why());
    return status;
  }
  gpumem_status synchronize() const { return gpumem_stream_synchronize(stream_, kLong, why()); }

 private:
  gpumem_instance instance_;
  Stream stream_;
  uint32_t salt_;
  std::array<std::vector<uint8_t>, kSlots> bytes_;  // that the stream may still copy
};

// Takes messages, in turns by the thread, by a stream, and by a stream that is behind when it releases.
class Consumer {
 public:
  // How it ended, and what it saw.
  struct Taken {
    gpumem_status status = GPUMEM_SUCCESS;
    const char* call = "";
    uint64_t count = 0;
    uint64_t first = 0;
    uint64_t next = 0;
    std::string wrong;
  };

  explicit Consumer(gpumem_instance instance) : instance_(instance) {
    gpumem_device_get(instance, 0, &device_, nullptr);
    bytes_.resize(kSize);
  }

  // So many messages, or until a call does not succeed. Holds up to that many at once.
  Taken take(const gpumem_share_handle& handle, uint64_t count, size_t hold,
             const std::function<void()>& took = {}) {
    Taken taken;
    taken_ = &taken;
    handle_ = &handle;
    if (!succeeds("open", gpumem_ring_open(instance_, &handle, nullptr, &ring_, why()))) return taken;
    {
      const Stream stream = create_stream(device_);
      stream_ = stream;
      held_.clear();
      while (taken.count < count && take_one(taken.count % 3, hold)) {
        ++taken.count;
        if (took) took();
      }
      // What is left in the stream failed with its producer, if it did.
      const gpumem_status last = gpumem_stream_synchronize(stream, kLong, why());
      if (last != GPUMEM_SUCCESS && last != GPUMEM_ERROR_PEER_GONE)
        complain("the last synchronization", last);
    }
    gpumem_ring_info info = GPUMEM_RING_INFO_INIT;
    if (gpumem_ring_get_info(ring_, &info, why()); gone() && info.held_count < kSlots) {
      const gpumem_status again = gpumem_ring_wait(ring_, nullptr, 0, &slot_, why());
      if (again != GPUMEM_ERROR_PEER_GONE) complain("waiting once more", again);
    }
    if (const gpumem_status ended = gpumem_ring_destroy(ring_, why()); ended != GPUMEM_SUCCESS)
      complain("destroying the ring", ended);
    return taken;
  }

 private:
  bool gone() const { return taken_->status == GPUMEM_ERROR_PEER_GONE; }
  bool succeeds(const char* call, gpumem_status status) {
    if (status == GPUMEM_SUCCESS) return true;
    taken_->status = status;
    taken_->call = call;
    return false;
  }
  void complain(const std::string& what, gpumem_status status) {
    if (taken_->wrong.empty())
      taken_->wrong = what + ": " + gpumem_status_name(status) + ": " + last_error().message;
  }
  bool release(gpumem_stream stream, uint64_t number) {
    return succeeds("release", gpumem_ring_release(ring_, stream, number, why()));
  }
  bool release_until(size_t left) {
    for (; held_.size() > left; held_.pop_front()) {
      if (!release(nullptr, held_.front())) return false;
    }
    return true;
  }

  // Whether the producer has, or is told to have a moment later.
  bool has_ended() const {
    return eventually([&] {
      gpumem_ring ring = nullptr;
      const gpumem_status status = gpumem_ring_open(instance_, handle_, nullptr, &ring, why());
      if (status == GPUMEM_SUCCESS) gpumem_ring_destroy(ring, nullptr);
      return status == GPUMEM_ERROR_PEER_GONE;
    });
  }

  bool take_one(uint64_t way, size_t hold) {
    gpumem_stream const stream = way != 0 ? stream_ : nullptr;
    slot_ = GPUMEM_RING_SLOT_INIT;
    if (!succeeds("wait", gpumem_ring_wait(ring_, stream, kLong, &slot_, why()))) return false;
    if (taken_->count == 0) taken_->first = taken_->next = slot_.number;
    if (slot_.number != taken_->next) {
      taken_->wrong =
          "message " + std::to_string(slot_.number) + " came instead of " + std::to_string(taken_->next);
      return false;
    }
    ++taken_->next;
    for (int i = 0; i < (stream != nullptr ? kExtraWork : 1); ++i) {
      if (!succeeds("copy",
                    copy_on(instance_, stream, bytes_.data(), slot_.pointer, slot_.size, nullptr, why())))
        return false;
    }
    const bool behind = way == 2;
    if (behind && (!release_until(0) || !release(stream, slot_.number))) return false;
    if (stream != nullptr && !succeeds("synchronize", gpumem_stream_synchronize(stream, kLong, why())))
      return false;
    if (!is_message(slot_, bytes_)) {
      // A driver may count what its producer left unfinished in a stream as complete (RING-10).
      if (on_cuda() && (slot_.tag & kByStream) != 0 && has_ended()) {
        taken_->status = GPUMEM_ERROR_PEER_GONE;
        taken_->call = "unfinished";
        return false;
      }
      taken_->wrong = "message " + std::to_string(slot_.number) + " of " + std::to_string(slot_.size) +
                      " bytes is not what was published";
      return false;
    }
    if (!behind) held_.push_back(slot_.number);
    return release_until(hold - 1);
  }

  gpumem_instance instance_;
  gpumem_device device_ = nullptr;
  gpumem_stream stream_ = nullptr;
  const gpumem_share_handle* handle_ = nullptr;
  gpumem_ring ring_ = nullptr;
  gpumem_ring_slot slot_ = GPUMEM_RING_SLOT_INIT;
  std::vector<uint8_t> bytes_;
  std::deque<uint64_t> held_;
  Taken* taken_ = nullptr;
};

// ---- who is killed ----

[[noreturn]] void complain_and_end(int socket, const char* what, gpumem_status status) {
  Said said;
  said.what = Said::kWrong;
  said.status = status;
  std::snprintf(said.text, sizeof said.text, "%s: %.90s", what, last_error().message);
  say(socket, said);
  for (;;)
    pause();
}

[[noreturn]] void produce_for_ever(const Order& order) {
  const Instance instance = open_instance();
  const int socket = call_in(order);
  std::mt19937 random(order.seed);
  for (;;) {
    Producer producer(instance, static_cast<uint32_t>(random()));
    gpumem_ring const ring = producer.create(1 + random() % 2, 1);
    Said said;
    said.what = Said::kRing;
    if (const gpumem_status status = gpumem_ring_export(ring, &said.handle, why()); status != GPUMEM_SUCCESS)
      complain_and_end(socket, "export", status);
    say(socket, said);
    for (uint64_t i = 0; i < kMessages; ++i) {
      gpumem_status status = GPUMEM_NOT_READY;
      while (status == GPUMEM_NOT_READY)
        status = producer.produce(ring, random() % 2 == 0);
      if (status != GPUMEM_SUCCESS) complain_and_end(socket, "produce", status);
    }
    if (const gpumem_status status = gpumem_ring_finish(ring, GPUMEM_TIMEOUT_INFINITE, why()); status != 0)
      complain_and_end(socket, "finish", status);
    if (const gpumem_status status = producer.synchronize(); status != GPUMEM_SUCCESS)
      complain_and_end(socket, "synchronize", status);
    if (const gpumem_status status = gpumem_ring_destroy(ring, why()); status != GPUMEM_SUCCESS)
      complain_and_end(socket, "destroy", status);
  }
}

// Until the producer finishes, or for ever.
void consume(const Order& order) {
  Instance instance = open_instance();
  const int socket = call_in(order);
  std::mt19937 random(order.seed);
  Said said;
  if (!receive_bytes(socket, &said, sizeof said)) _exit(1);
  const gpumem_share_handle handle = said.handle;
  Consumer consumer(instance);
  const bool survives = order.role == 's';
  Consumer::Taken taken;
  do {
    const uint64_t count = survives ? UINT64_MAX : random() % 20;
    const size_t hold = survives ? 1 : 1 + random() % kSlots;
    taken = consumer.take(handle, count, hold, [&] { say(socket, Said(), MSG_DONTWAIT); });
    if (!taken.wrong.empty()) complain_and_end(socket, taken.wrong.c_str(), taken.status);
  } while (taken.status == GPUMEM_SUCCESS);
  if (!survives || taken.status != GPUMEM_ERROR_CLOSED) complain_and_end(socket, taken.call, taken.status);
  instance.close();
  said.what = Said::kRing;
  said.count = taken.count;
  say(socket, said);
  _exit(testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 1 : 0);
}

// p: produces; c: consumes; s: consumes, and survives.
CHILD(ring_nursery) {
  nurse([](const Order& order) {
    if (order.role == 'p') produce_for_ever(order);
    consume(order);
  });
}

// ---- who goes on ----

class RingKill : public Killing {
 protected:
  static int rounds() { return kill_rounds(100); }

  // The next thing that a process has said, without waiting. Reports what went wrong there.
  static std::optional<Said> hear(int socket) {
    Said said;
    if (socket < 0 || recv(socket, &said, sizeof said, MSG_DONTWAIT) != static_cast<ssize_t>(sizeof said))
      return std::nullopt;
    EXPECT_NE(said.what, Said::kWrong) << said.text << " (" << gpumem_status_name(said.status) << ")";
    return said;
  }
};

TEST_F(RingKill, a_consumer_keeps_nothing_of_a_producer) {
  const Instance instance = open_instance();
  const Nursery nursery("ring_nursery");
  Consumer consumer(instance);
  time_start(nursery, 'p');
  std::optional<Kept> before;
  std::map<std::string, int> endings;
  uint64_t messages = 0;
  for (int round = 0; round < rounds() && !HasFailure(); ++round) {
    const uint64_t messages_before = messages;
    ASSERT_TRUE(nursery.start(order('p')));
    std::atomic<bool> ended{false};
    std::thread burial([&, killer = kill_later(nursery)]() mutable {
      killer.join();
      ended = true;
    });
    int socket = -1;
    // Looks once more after the end, for a ring that was exported just before.
    for (bool last = false; !last && !HasFailure();) {
      last = ended;
      if (socket < 0) socket = accept_one();
      const std::optional<Said> said = hear(socket);
      if (!said) {
        if (!last) std::this_thread::sleep_for(50us);
        continue;
      }
      if (said->what != Said::kRing) break;
      last = false;
      const Consumer::Taken taken =
          consumer.take(said->handle, UINT64_MAX, 1 + static_cast<size_t>(round) % kSlots);
      EXPECT_EQ(taken.wrong, "") << "round " << round;
      EXPECT_TRUE(taken.status == GPUMEM_ERROR_PEER_GONE || taken.status == GPUMEM_ERROR_CLOSED)
          << "round " << round << ": " << taken.call << ": " << gpumem_status_name(taken.status) << ": "
          << last_error().message;
      // The first slot was acquired for this consumer, and no message is left out.
      EXPECT_EQ(taken.first, 0u);
      if (taken.status == GPUMEM_ERROR_CLOSED) {
        EXPECT_EQ(taken.count, kMessages);
      }
      messages += taken.count;
      ++endings[std::string(taken.call) + " " + gpumem_status_name(taken.status)];
    }
    burial.join();
    learn(messages != messages_before);
    if (socket >= 0) close(socket);
    if (messages == 0) continue;
    // What a process sets up for good is there after the first ring.
    if (!before) {
      std::this_thread::sleep_for(1100ms);  // the connection is kept for a second
      before = Kept::now();
    }
    Kept now;
    EXPECT_TRUE(eventually([&] { return (now = Kept::now()) <= *before; }))
        << "round " << round << ": " << now << "; before " << *before;
  }
  EXPECT_GT(messages, 0u) << "all were killed too early to try anything";
  for (const auto& [ending, count] : endings)
    RecordProperty(ending, count);
  if (std::getenv("GPUMEM_KILL_ROUNDS") != nullptr) {
    for (const auto& [ending, count] : endings)
      std::cout << ending << ": " << count << "\n";
    std::cout << messages << " messages\n";
  }
  const gpumem_kind_stats stats = kind_stats(instance, GPUMEM_KIND_IMPORTED);
  EXPECT_EQ(stats.live_count, 0u);
}

TEST_F(RingKill, a_producer_keeps_nothing_of_a_consumer) {
  constexpr uint32_t kVictims = 2;
  const Instance instance = open_instance();
  const Nursery nurseries[kVictims + 1] = {Nursery("ring_nursery"), Nursery("ring_nursery"),
                                           Nursery("ring_nursery")};
  Producer producer(instance, 7);
  gpumem_ring const ring = producer.create(kVictims + 1, 1);
  Said handle;
  ASSERT_OK(gpumem_ring_export(ring, &handle.handle, why()));
  const auto info = [&] {
    gpumem_ring_info found = GPUMEM_RING_INFO_INIT;
    EXPECT_OK(gpumem_ring_get_info(ring, &found, why()));
    return found;
  };
  time_start(nurseries[0], 'c');

  // One consumer sees everything, whatever becomes of the others.
  ASSERT_TRUE(nurseries[kVictims].start(order('s')));
  int survivor = -1;
  ASSERT_TRUE(eventually([&] { return (survivor = accept_one()) >= 0; }));
  say(survivor, handle);
  uint64_t published = 0;
  const auto produce = [&] {
    EXPECT_EQ(producer.produce(ring, published % 3 != 0), GPUMEM_SUCCESS) << last_error().message;
    ++published;
    while (hear(survivor)) {
    }
  };
  produce();

  std::optional<Kept> before;
  uint64_t taken = 0;
  for (int round = 0; round < rounds() && !HasFailure(); ++round) {
    std::atomic<uint32_t> ended{0};
    std::vector<std::thread> burials;
    for (uint32_t i = 0; i < kVictims; ++i) {
      if (!nurseries[i].start(order('c'))) continue;
      burials.emplace_back([&ended, killer = kill_later(nurseries[i])]() mutable {
        killer.join();
        ++ended;
      });
    }
    const uint64_t taken_before = taken;
    std::vector<int> sockets;
    while (ended < kVictims && !HasFailure()) {
      if (const int socket = accept_one(); socket >= 0) {
        sockets.push_back(socket);
        say(socket, handle);
      }
      produce();
      for (const int socket : sockets) {
        while (hear(socket))
          ++taken;
      }
    }
    for (std::thread& burial : burials)
      burial.join();
    for (const int socket : sockets) {
      while (hear(socket))
        ++taken;
      close(socket);
    }
    learn(taken != taken_before);
    // Those who come late are not taken for the next ones.
    for (int socket = accept_one(); socket >= 0; socket = accept_one())
      close(socket);
    // Nobody is left who could hold it up.
    for (uint32_t i = 0; i < 2 * kSlots && !HasFailure(); ++i)
      produce();
    EXPECT_OK(producer.synchronize());
    EXPECT_TRUE(eventually([&] { return info().consumer_count == 1; }))
        << "round " << round << ": " << info().consumer_count << " consumers";
    if (!before) {
      std::this_thread::sleep_for(20ms);
      before = Kept::now();
    }
    Kept now;
    EXPECT_TRUE(eventually([&] { return (now = Kept::now()) <= *before; }))
        << "round " << round << ": " << now << "; before " << *before;
  }
  EXPECT_GT(taken, 0u) << "all were killed too early to try anything";
  if (std::getenv("GPUMEM_KILL_ROUNDS") != nullptr)
    std::cout << published << " messages, " << taken << " taken by those who were killed\n";

  EXPECT_OK(gpumem_ring_finish(ring, kLong, why()));
  EXPECT_OK(gpumem_ring_destroy(ring, why()));
  std::optional<Said> last;
  EXPECT_TRUE(eventually([&] {
    const std::optional<Said> said = hear(survivor);
    if (said) last = said;
    return last && last->what == Said::kRing;
  })) << "the survivor did not see the end";
  if (last) {
    EXPECT_EQ(last->count, published);
  }
  // It stays where it has complained of something.
  if (HasFailure()) {
    nurseries[kVictims].kill_it();
  } else {
    EXPECT_EQ(nurseries[kVictims].wait(), 0);
  }
  close(survivor);
}

}  // namespace
}  // namespace processes
