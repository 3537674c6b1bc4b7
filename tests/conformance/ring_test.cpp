// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The rules of rings (RING), between real processes.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <ctime>
#include <optional>
#include <thread>
#include <vector>

#include "../processes/asleep.h"
#include "harness.h"

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
    if (gpumem_ring_destroy(ring_, nullptr) == GPUMEM_ERROR_BUSY) instance_.release();
  }

 private:
  gpumem_stream stream_for(const Order& order) { return order.streams != 0 ? stream_.get() : nullptr; }

  Answer obey(const Order& order) {
    Answer answer;
    gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
    switch (order.what) {
      case kCreate: {
        const gpumem_ring_desc desc = ring_desc(static_cast<uint32_t>(order.count));
        answer.status = gpumem_ring_create(device_, &desc, &ring_, why());
        if (answer.status == GPUMEM_SUCCESS) answer.status = gpumem_ring_export(ring_, &answer.handle, why());
        break;
      }
      case kOpen:
        answer.status = gpumem_ring_open(instance_, &order.handle, nullptr, &ring_, why());
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
  int socket() const { return peer_.socket(); }

 private:
  Peer peer_{"ring_side"};
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
  EXPECT_EQ(kind_stats(instance_, GPUMEM_KIND_DEVICE).live_count, 1u);
  ring.destroy();
  EXPECT_EQ(kind_stats(instance_, GPUMEM_KIND_DEVICE).live_count, 0u);
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
  EXPECT_OK(acquire(ring, &slot));
  EXPECT_EQ(one.ask(kClose).status, GPUMEM_SUCCESS);
  EXPECT_TRUE(eventually([&] { return two.open(handle_of(ring)) == GPUMEM_SUCCESS; }));
  EXPECT_EQ(two.ask(kClose).status, GPUMEM_SUCCESS);
  EXPECT_OK(gpumem_ring_finish(ring, kLong, why()));
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

TEST_F(Rings, ring_10) {
  // Without the producer, a consumer that waits is told, and so is one that asks.
  std::optional<Other> producer(std::in_place);
  const gpumem_share_handle shared = producer->create(2);
  gpumem_ring opened = nullptr;
  ASSERT_OK(gpumem_ring_open(instance_, &shared, nullptr, &opened, why()));
  Ring ring(opened);
  gpumem_status waited = GPUMEM_SUCCESS;
  std::atomic<pid_t> waiter{0};
  std::thread waiting([&] {
    waiter = gettid();
    gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
    waited = gpumem_ring_wait(opened, nullptr, GPUMEM_TIMEOUT_INFINITE, &slot, nullptr);
  });
  while (waiter == 0)
    std::this_thread::yield();
  processes::wait_until_asleep(waiter);
  producer->kill();
  waiting.join();
  EXPECT_EQ(waited, GPUMEM_ERROR_PEER_GONE);
  gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
  EXPECT_STATUS(GPUMEM_ERROR_PEER_GONE, gpumem_ring_wait(ring, nullptr, 0, &slot, why()));
  ring.destroy();
  EXPECT_STATUS_IN(gpumem_ring_open(instance_, &shared, nullptr, &opened, why()), GPUMEM_ERROR_PEER_GONE);
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
