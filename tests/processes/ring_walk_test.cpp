// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A ring of which one consumer stands at each step of the protocol, while another one or the producer dies,
// or writes anything anywhere that it can and dies then. A model says what the others must still be able to
// do. GPUMEM_RING_WALK chooses the cases where not all are played.
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <string>
#include <vector>

#include "killing.h"

namespace {
std::atomic<uint64_t> receives_left{0};  // before this process stands still; 0: it does not
int test_socket = -1;

// Until the test lets it go on.
void stand_still();
}  // namespace

// The library's, so that a process can stand still in the middle of a call.
extern "C" __attribute__((visibility("default"))) ssize_t recvmsg(int socket, msghdr* message, int flags) {
  const long got = syscall(SYS_recvmsg, socket, message, flags);
  if (got > 0 && receives_left != 0 && --receives_left == 0) stand_still();
  return got;
}

namespace processes {
namespace {

using namespace conformance;

constexpr uint64_t kSize = 4096;
constexpr uint32_t kSlots = 2;
constexpr uint32_t kPlaces = 3;
constexpr uint64_t kLong = 300'000'000'000;  // a watchdog, also where the machine is busy

gpumem_ring_desc ring_desc() {
  gpumem_ring_desc desc = GPUMEM_RING_DESC_INIT;
  desc.slot_size = kSize;
  desc.slot_count = kSlots;
  desc.consumers_max = kPlaces;
  return desc;
}

// Where a consumer stands.
enum class Step : int32_t { kOpening, kJoined, kWaiting, kHoldsOne, kHoldsAll, kReleased };
constexpr Step kSteps[] = {Step::kOpening,  Step::kJoined,   Step::kWaiting,
                           Step::kHoldsOne, Step::kHoldsAll, Step::kReleased};
const char* name_of(Step step) {
  constexpr const char* kNames[] = {"opening", "joined", "waiting", "holds_one", "holds_all", "released"};
  return kNames[static_cast<int>(step)];
}

// What a hostile consumer writes, or a hostile producer.
enum class Into : int32_t { kNothing, kControl, kEvents, kProducers };
struct Written {
  Into into = Into::kNothing;
  uint64_t at = 0;
  uint64_t value = 0;
};

// The parts of what consumers can write, as ring_control.cpp lays them out.
constexpr uint64_t kLine = 128;
constexpr uint64_t kFirstPlace = kLine;
constexpr uint64_t kFirstRecorded = kFirstPlace + kPlaces * kLine;

std::vector<Written> all_writes() {
  std::vector<Written> all;
  std::vector<uint64_t> offsets = {0, 8, 16};
  for (uint64_t place = 0; place < kPlaces; ++place) {
    for (const uint64_t line : {kFirstPlace, kFirstRecorded}) {
      for (const uint64_t word : {uint64_t{0}, uint64_t{8}})
        offsets.push_back(line + place * kLine + word);
    }
  }
  // Numbers of messages, and words of places: of one that is about to join, that is active, that was dropped.
  for (const uint64_t at : offsets) {
    for (const uint64_t value :
         {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{4}, uint64_t{5}, uint64_t{0x1234'02},
          uint64_t{0x1234'03}, uint64_t{0x1234'04}, uint64_t{1} << 40, UINT64_MAX})
      all.push_back({Into::kControl, at, value});
  }
  if (!on_host()) return all;
  // The latest record, the word to sleep on, and the first recorder: who it is, how many it made, two lanes.
  constexpr uint64_t kWords[] = {0, 8, 128, 136, 144, 152, 160, 168};
  for (const uint64_t at : kWords) {
    for (const uint64_t value :
         {uint64_t{0}, uint64_t{1}, uint64_t{1} << 6, uint64_t{1} << 46, (uint64_t{1} << 46) + 3, UINT64_MAX})
      all.push_back({Into::kEvents, at, value});
  }
  return all;
}

// The same of what the producer says, for a ring of two slots.
std::vector<Written> all_writes_of_producers() {
  constexpr uint64_t kHead = 0;  // what it is, its version and shape
  constexpr uint64_t kPublished = kLine;
  constexpr uint64_t kHeld = 2 * kLine;
  constexpr uint64_t kFinished = kHeld + 8;
  constexpr uint64_t kMessages = 3 * kLine;  // of each slot a size, a tag, and whether its event is recorded
  constexpr uint64_t kHandles = 4 * kLine;   // of the memory, the slots, and the places
  std::vector<uint64_t> offsets = {kHead, kHead + 8, kHead + 16, kHead + 24, kPublished, kHeld, kFinished};
  for (uint64_t slot = 0; slot < kSlots; ++slot) {
    for (uint64_t word = 0; word <= 16; word += 8)
      offsets.push_back(kMessages + slot * 32 + word);
  }
  for (uint64_t handle = 0; handle < 1 + kSlots + kPlaces * kSlots; handle += 2) {
    for (const uint64_t word : {uint64_t{0}, uint64_t{24}, uint64_t{136}, uint64_t{248}})
      offsets.push_back(kHandles + handle * sizeof(gpumem_share_handle) + word);
  }
  std::vector<Written> all;
  for (const uint64_t at : offsets) {
    for (const uint64_t value : {uint64_t{0}, uint64_t{1}, uint64_t{3}, uint64_t{5}, uint64_t{2} << 32 | 2,
                                 uint64_t{1} << 40, UINT64_MAX})
      all.push_back({Into::kProducers, at, value});
  }
  return all;
}

// ---- another process ----

struct Act {
  enum What : int32_t { kOpen, kGoOn, kHold, kRelease, kConsume, kUse, kMake, kPublish, kWrite };
  int32_t what = kGoOn;
  uint64_t count = 0;
  Written written;
  gpumem_share_handle handle{};
};
struct Told {
  int32_t stands_still = 0;
  gpumem_status status = GPUMEM_SUCCESS;
  uint64_t count = 0;    // messages that it took
  uint64_t next = 0;     // the number behind the last one
  uint64_t dropped = 0;  // times that it had to open the ring again
  gpumem_share_handle handle{};
  char wrong[160] = "";
};

class Party {
 public:
  explicit Party(int socket) : socket_(socket), stream_(create_stream(instance_.device())) {}

  void run() {
    Act act;
    while (recv(socket_, &act, sizeof act, 0) == static_cast<ssize_t>(sizeof act)) {
      Told told;
      told_ = &told;
      told.status = obey(act);
      if (send(socket_, &told, sizeof told, MSG_NOSIGNAL) < 0) break;
    }
  }

 private:
  gpumem_status obey(const Act& act) {
    switch (act.what) {
      case Act::kOpen: {
        handle_ = act.handle;
        receives_left = act.count;
        const gpumem_status status = open();
        receives_left = 0;
        if (status == GPUMEM_ERROR_BUSY) ++dropped_;
        return status;
      }
      case Act::kHold:
        for (uint64_t i = 0; i < act.count; ++i) {
          if (const gpumem_status status = take(); status != GPUMEM_SUCCESS) return status;
        }
        return GPUMEM_SUCCESS;
      case Act::kRelease: {
        const gpumem_status status = gpumem_ring_release(ring_, stream_, held_.front(), why());
        held_.pop_front();
        return status;
      }
      case Act::kConsume:
        trusts_ = act.count == 0;
        return consume();
      case Act::kUse:
        trusts_ = false;
        producer_dies_ = true;
        return use(act.count);
      case Act::kMake:
        return make();
      case Act::kPublish:
        return publish(act.count);
      case Act::kWrite:
        return write(act.written) ? GPUMEM_SUCCESS : GPUMEM_ERROR_NOT_FOUND;
      default:
        return GPUMEM_ERROR_INTERNAL;
    }
  }

  gpumem_status open() {
    gpumem_ring_open_desc desc = GPUMEM_RING_OPEN_DESC_INIT;
    desc.timeout_ns = kLong;
    return gpumem_ring_open(instance_, &handle_, &desc, &ring_, why());
  }

  gpumem_status make() {
    const gpumem_ring_desc desc = ring_desc();
    const gpumem_status status = gpumem_ring_create(instance_.device(), &desc, &ring_, why());
    return status != GPUMEM_SUCCESS ? status : gpumem_ring_export(ring_, &told_->handle, why());
  }

  gpumem_status publish(uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
      gpumem_status status = gpumem_ring_acquire(ring_, nullptr, 0, &slot, why());
      if (status == GPUMEM_SUCCESS) status = gpumem_ring_publish(ring_, nullptr, kSize, slot.number, why());
      if (status != GPUMEM_SUCCESS) return status;
    }
    return GPUMEM_SUCCESS;
  }

  // Takes and releases up to so many messages, and leaves the ring.
  gpumem_status use(uint64_t count) {
    gpumem_status status = ring_ != nullptr ? GPUMEM_SUCCESS : GPUMEM_ERROR_NOT_FOUND;
    while (status == GPUMEM_SUCCESS && count != 0) {
      if (held_.empty()) {
        status = take();
        --count;
      } else {
        status = gpumem_ring_release(ring_, nullptr, held_.front(), why());
        held_.pop_front();
      }
    }
    if (gpumem_ring_destroy(ring_, why()) != GPUMEM_SUCCESS) complain("the ring stays", told_next_);
    ring_ = nullptr;
    held_.clear();
    any_ = false;
    trusts_ = true;
    producer_dies_ = false;
    return status;
  }

  gpumem_status take() {
    gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
    const gpumem_status status = gpumem_ring_wait(ring_, nullptr, kLong, &slot, why());
    if (status != GPUMEM_SUCCESS) return status;
    if (any_ && slot.number != told_next_) complain("it came out of order", slot.number);
    std::vector<uint8_t> bytes(kSize);
    const gpumem_status copied = gpumem_copy(instance_, bytes.data(), slot.pointer, kSize, nullptr, why());
    if (slot.size > kSize) complain("it is larger than a slot", slot.number);
    const bool producer_died = producer_dies_ && copied == GPUMEM_ERROR_PEER_GONE;
    if ((copied != GPUMEM_SUCCESS && !producer_died) ||
        (trusts_ &&
         (slot.tag != slot.number || !has_pattern(bytes.data(), kSize, static_cast<uint32_t>(slot.number)))))
      complain("it is not what was published", slot.number);
    any_ = true;
    told_next_ = slot.number + 1;
    held_.push_back(slot.number);
    ++count_;
    return status;
  }

  // Until the producer has finished. Who was dropped opens the ring again.
  gpumem_status consume() {
    for (;;) {
      gpumem_status status = GPUMEM_SUCCESS;
      if (ring_ == nullptr) {
        status = open();
      } else if (!held_.empty()) {
        status = gpumem_ring_release(ring_, nullptr, held_.front(), why());
        held_.pop_front();
      } else {
        status = take();
      }
      if (status == GPUMEM_SUCCESS) continue;
      const bool again = status == GPUMEM_ERROR_INVALID_STATE || status == GPUMEM_ERROR_PEER_GONE ||
                         (status == GPUMEM_ERROR_BUSY && ring_ == nullptr);
      told_->dropped = dropped_ += again ? 1 : 0;
      told_->count = count_;
      told_->next = told_next_;
      if (ring_ != nullptr) {
        if (const gpumem_status ended = gpumem_ring_destroy(ring_, why()); ended != GPUMEM_SUCCESS)
          return ended;
      }
      if (!again) return status;
      ring_ = nullptr;
      held_.clear();
      any_ = false;
      trusts_ = true;
    }
  }

  void complain(const char* what, uint64_t number) {
    std::snprintf(told_->wrong, sizeof told_->wrong, "message %llu: %s",
                  static_cast<unsigned long long>(number), what);
  }

  static bool write(const Written& written) {
    const char* const name = written.into == Into::kControl     ? "gpumem-ring-consumers"
                             : written.into == Into::kProducers ? "gpumem-ring (deleted)"
                                                                : "gpumem-event";
    std::ifstream maps("/proc/self/maps");
    bool found = false;
    for (std::string line; std::getline(maps, line);) {
      if (line.find(name) == std::string::npos) continue;
      if (line.find(" rw-s ") == std::string::npos) continue;  // it cannot write the producer's events
      auto* const first = reinterpret_cast<unsigned char*>(std::strtoull(line.c_str(), nullptr, 16));
      std::memcpy(first + written.at, &written.value, sizeof written.value);
      found = true;
    }
    return found;
  }

  const int socket_;
  Instance instance_ = open_instance();
  Stream stream_;
  gpumem_share_handle handle_{};
  gpumem_ring ring_ = nullptr;
  std::deque<uint64_t> held_;
  Told* told_ = nullptr;
  uint64_t count_ = 0;
  uint64_t dropped_ = 0;
  uint64_t told_next_ = 0;
  bool any_ = false;            // a message since it opened the ring
  bool producer_dies_ = false;  // at any moment
  bool trusts_ = true;          // nobody has written where it says what it has released
};

CHILD(ring_parties) {
  nurse([](const Order& order) {
    test_socket = call_in(order);
    Party(test_socket).run();
    _exit(0);
  });
}

// ---- who sees how it goes on ----

// What the others can rely on after something was written.
struct Model {
  // The consumer may be told to open the ring again: somebody else wrote what it says of itself, or that a
  // message which it waits for is never complete.
  bool drops = false;

  Model(const Written& written, uint64_t place) {
    const uint64_t own = kFirstPlace + place * kLine;
    drops = written.into == Into::kEvents ||
            (written.into == Into::kControl && written.at >= own && written.at < own + kLine);
  }
};

class RingWalk : public Killing {
 protected:
  // One process of a nursery, as the test speaks with it.
  class Seat {
   public:
    Seat(RingWalk& walk, const Nursery& nursery) : nursery_(nursery) {
      EXPECT_TRUE(nursery.start(walk.order('w')));
      EXPECT_TRUE(eventually([&] { return (socket_ = walk.accept_one()) >= 0; })) << "it never called";
    }
    Seat(const Seat&) = delete;
    Seat& operator=(const Seat&) = delete;
    ~Seat() {
      close(socket_);
      if (!ended_) {
        EXPECT_EQ(nursery_.wait(), 0);
      }
    }
    void say(const Act& act) const {
      EXPECT_EQ(send(socket_, &act, sizeof act, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof act));
    }
    Told hear() const {
      Told told;
      pollfd readable{socket_, POLLIN, 0};
      EXPECT_EQ(poll(&readable, 1, 600'000), 1) << "it does not answer";
      if (recv(socket_, &told, sizeof told, MSG_DONTWAIT) != static_cast<ssize_t>(sizeof told))
        told.status = GPUMEM_ERROR_INTERNAL;
      return told;
    }
    Told ask(const Act& act) const {
      say(act);
      return hear();
    }
    void kill() {
      nursery_.kill_it();
      ended_ = true;
    }

   private:
    const Nursery& nursery_;
    int socket_ = -1;
    bool ended_ = false;
  };

  void make_ring() {
    const gpumem_ring_desc desc = ring_desc();
    gpumem_ring ring = nullptr;
    ASSERT_OK(gpumem_ring_create(instance_.device(), &desc, &ring, why()));
    ring_ = ring;
    ASSERT_OK(gpumem_ring_export(ring, &handle_, why()));
    published_ = 0;
    // So that a number that is too low by a whole ring is one that a consumer can have released.
    for (uint32_t i = 0; i < kSlots; ++i)
      ASSERT_OK(produce());
  }
  gpumem_status produce(uint64_t timeout_ns = kLong) {
    gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
    const gpumem_status status = gpumem_ring_acquire(ring_, nullptr, timeout_ns, &slot, why());
    if (status != GPUMEM_SUCCESS) return status;
    EXPECT_EQ(slot.number, published_);
    fill_pattern(bytes_.data(), kSize, static_cast<uint32_t>(slot.number));
    gpumem_stream const stream = slot.number % 2 != 0 ? stream_.get() : nullptr;
    EXPECT_OK(copy_on(instance_, stream, slot.pointer, bytes_.data(), kSize, nullptr, why()));
    EXPECT_OK(gpumem_ring_publish(ring_, stream, kSize, slot.number, why()));
    EXPECT_OK(gpumem_stream_synchronize(stream_, kLong, why()));
    ++published_;
    return status;
  }
  Act act(Act::What what, uint64_t count = 0) const {
    Act made;
    made.what = what;
    made.count = count;
    made.handle = handle_;
    return made;
  }

  // The bytes of a message can be spoilt where the producer is told too early that it was released.
  Act consume(const Model& model) const { return act(Act::kConsume, model.drops ? 1 : 0); }

  // Brings a consumer there. False if it has opened the ring before it could stand still.
  bool bring(const Seat& seat, Step step, uint64_t receives, const Model& model) {
    const Told opened = seat.ask(act(Act::kOpen, step == Step::kOpening ? receives : 0));
    EXPECT_EQ(opened.status, GPUMEM_SUCCESS);
    if (step == Step::kOpening) return opened.stands_still != 0;
    if (step == Step::kWaiting) seat.say(consume(model));
    if (step < Step::kHoldsOne) return true;
    for (uint32_t i = 0; i < kSlots; ++i)
      EXPECT_OK(produce());
    const Told held = seat.ask(act(Act::kHold, step == Step::kHoldsAll ? kSlots : 1));
    EXPECT_EQ(held.status, GPUMEM_SUCCESS);
    EXPECT_STREQ(held.wrong, "");
    if (step == Step::kReleased) {
      EXPECT_EQ(seat.ask(act(Act::kRelease)).status, GPUMEM_SUCCESS);
    }
    return true;
  }

  // Everybody but whoever was killed. `seat` is told to consume.
  void go_on(const Seat& seat, const Model& model) {
    for (uint32_t i = 0; i < 2 * kSlots + 1 && !HasFailure(); ++i)
      EXPECT_OK(produce()) << "the producer is held up";
    const uint64_t before = published_;
    const Seat late(*this, nurseries_[1]);
    EXPECT_EQ(late.ask(act(Act::kOpen)).status, GPUMEM_SUCCESS);
    late.say(act(Act::kConsume));
    for (uint32_t i = 0; i < kSlots + 1 && !HasFailure(); ++i)
      EXPECT_OK(produce());
    EXPECT_OK(gpumem_ring_finish(ring_, kLong, why()));
    const Told told_late = late.hear();
    expect_end(told_late, false);
    EXPECT_EQ(told_late.count, published_ - before);
    expect_end(seat.hear(), model.drops);
    EXPECT_OK(gpumem_ring_destroy(ring_, why()));
  }
  void expect_end(const Told& told, bool may_be_dropped) const {
    EXPECT_EQ(told.status, GPUMEM_ERROR_CLOSED);
    EXPECT_STREQ(told.wrong, "");
    if (told.dropped == 0) {
      EXPECT_EQ(told.next, published_);
    } else {
      EXPECT_TRUE(may_be_dropped) << "it had to open the ring again";
    }
  }

  // One consumer stands there; another one writes that, and dies.
  void play(Step step, uint64_t receives, const Written& written) {
    make_ring();
    const Seat seat(*this, nurseries_[0]);
    Seat hostile(*this, nurseries_[1]);
    const bool opens_late = step == Step::kOpening;
    if (opens_late) {
      EXPECT_EQ(hostile.ask(act(Act::kOpen)).status, GPUMEM_SUCCESS);
    }
    const Model model(written, opens_late ? 1 : 0);
    const bool stands = bring(seat, step, receives, model);
    if (!opens_late) {
      EXPECT_EQ(hostile.ask(act(Act::kOpen)).status, GPUMEM_SUCCESS);
    }
    Act write = act(Act::kWrite);
    write.written = written;
    EXPECT_EQ(hostile.ask(write).status, GPUMEM_SUCCESS);
    EXPECT_STATUS_IN(produce(0), GPUMEM_SUCCESS, GPUMEM_NOT_READY);
    hostile.kill();
    if (opens_late && stands) {
      const gpumem_status opened = seat.ask(act(Act::kGoOn)).status;
      EXPECT_TRUE(opened == GPUMEM_SUCCESS || (opened == GPUMEM_ERROR_BUSY && model.drops)) << opened;
    }
    if (step != Step::kWaiting) seat.say(consume(model));
    go_on(seat, model);
  }
  // One consumer waits; another one dies where it stands. False if it has no such step.
  bool die(Step step, uint64_t receives) {
    make_ring();
    const Seat seat(*this, nurseries_[0]);
    const Model model({}, 0);
    bring(seat, Step::kWaiting, 0, model);
    Seat victim(*this, nurseries_[1]);
    const bool stands = bring(victim, step, receives, model);
    victim.kill();
    go_on(seat, model);
    return stands;
  }

  // One consumer stands there; the producer writes that, goes on, and dies.
  void play_hostile_producer(Step step, uint64_t receives, const Written& written) {
    Seat producer(*this, nurseries_[0]);
    const Told made = producer.ask(act(Act::kMake));
    ASSERT_EQ(made.status, GPUMEM_SUCCESS);
    handle_ = made.handle;
    const Seat seat(*this, nurseries_[1]);
    const Told opened = seat.ask(act(Act::kOpen, step == Step::kOpening ? receives : 0));
    EXPECT_EQ(opened.status, GPUMEM_SUCCESS);
    constexpr uint64_t kMost = 8;
    if (step == Step::kWaiting) seat.say(act(Act::kUse, kMost));
    if (step >= Step::kHoldsOne) {
      EXPECT_EQ(producer.ask(act(Act::kPublish, kSlots)).status, GPUMEM_SUCCESS);
      EXPECT_EQ(seat.ask(act(Act::kHold, step == Step::kHoldsAll ? kSlots : 1)).status, GPUMEM_SUCCESS);
      if (step == Step::kReleased) {
        EXPECT_EQ(seat.ask(act(Act::kRelease)).status, GPUMEM_SUCCESS);
      }
    }
    Act write = act(Act::kWrite);
    write.written = written;
    EXPECT_EQ(producer.ask(write).status, GPUMEM_SUCCESS);
    producer.ask(act(Act::kPublish, 1));
    if (opened.stands_still != 0) {
      EXPECT_NE(seat.ask(act(Act::kGoOn)).status, GPUMEM_ERROR_INTERNAL) << "it has ended";
    }
    if (step != Step::kWaiting) seat.say(act(Act::kUse, kMost));
    producer.kill();
    const Told used = seat.hear();
    EXPECT_NE(used.status, GPUMEM_ERROR_INTERNAL) << "it has ended";
    EXPECT_STREQ(used.wrong, "");
    // Nothing of that is left in the next ring.
    make_ring();
    EXPECT_EQ(seat.ask(act(Act::kOpen)).status, GPUMEM_SUCCESS);
    seat.say(act(Act::kConsume));
    for (uint32_t i = 0; i < kSlots + 1 && !HasFailure(); ++i)
      EXPECT_OK(produce());
    EXPECT_OK(gpumem_ring_finish(ring_, kLong, why()));
    expect_end(seat.hear(), false);
    EXPECT_OK(gpumem_ring_destroy(ring_, why()));
  }

  // Calls `play` with what is to be written, where not all of it can be.
  template <class Play>
  void for_some(const std::vector<Written>& all, Play play) {
    const size_t stride = kSanitized ? 16 : on_host() ? 1 : 8;
    for (size_t i = setting("GPUMEM_RING_WALK") % stride; i < all.size() && !HasFailure(); i += stride) {
      const Written& written = all[i];
      SCOPED_TRACE("case " + std::to_string(i) + ": " + std::to_string(written.value) + " at " +
                   std::to_string(written.at) + (written.into == Into::kEvents ? " of its events" : ""));
      play(1 + i % 8, written);
    }
  }

  static uint64_t setting(const char* name) {
    const char* const value = std::getenv(name);
    return value != nullptr ? std::strtoull(value, nullptr, 10) : 0;
  }

 private:
  const Instance instance_ = open_instance();
  const Stream stream_ = create_stream(instance_.device());
  const Nursery nurseries_[2] = {Nursery("ring_parties"), Nursery("ring_parties")};
  std::vector<uint8_t> bytes_ = std::vector<uint8_t>(kSize);
  gpumem_ring ring_ = nullptr;
  gpumem_share_handle handle_{};
  uint64_t published_ = 0;
};

// More than it receives while it opens a ring.
constexpr uint64_t kReceivesMax = 64;

TEST_F(RingWalk, a_consumer_that_dies_at_any_step_holds_up_nobody) {
  uint64_t receives = 1;
  while (receives < kReceivesMax && !HasFailure() && die(Step::kOpening, receives))
    ++receives;
  EXPECT_GT(receives, 4u) << "steps of opening";
  EXPECT_LT(receives, kReceivesMax);
  for (const Step step : kSteps) {
    SCOPED_TRACE(name_of(step));
    if (step != Step::kOpening && !HasFailure()) die(step, 0);
  }
}

class RingWalkFrom : public RingWalk, public testing::WithParamInterface<Step> {};

TEST_P(RingWalkFrom, a_consumer_that_wrote_anything_holds_up_nobody_once_it_died) {
  for_some(all_writes(),
           [&](uint64_t receives, const Written& written) { play(GetParam(), receives, written); });
}
TEST_P(RingWalkFrom, a_producer_that_wrote_anything_spoils_its_own_ring_only) {
  for_some(all_writes_of_producers(), [&](uint64_t receives, const Written& written) {
    play_hostile_producer(GetParam(), receives, written);
  });
}
INSTANTIATE_TEST_SUITE_P(Steps, RingWalkFrom, testing::ValuesIn(kSteps),
                         [](const auto& tested) { return name_of(tested.param); });

}  // namespace
}  // namespace processes

namespace {
void stand_still() {
  processes::Told told;
  told.stands_still = 1;
  processes::Act act;
  if (send(test_socket, &told, sizeof told, MSG_NOSIGNAL) < 0) _exit(1);
  if (recv(test_socket, &act, sizeof act, 0) != static_cast<ssize_t>(sizeof act)) _exit(1);
}
}  // namespace
