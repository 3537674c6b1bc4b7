// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/share/ring/ring.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "base/cleanup.h"
#include "core/memory/memory.h"
#include "core/object/abandoned.h"
#include "core/object/context.h"
#include "core/object/held.h"
#include "core/object/host_function_guard.h"
#include "core/object/log.h"
#include "core/share/link/imports.h"
#include "core/share/peer/client.h"
#include "core/share/peer/exports.h"
#include "core/share/peer/server.h"
#include "core/stream/event.h"
#include "core/stream/stream.h"
#include "platform/descriptor.h"
#include "platform/identity.h"
#include "platform/shared_word.h"
#include "platform/thread.h"

namespace gpumem::core {
namespace {

using State = RingControl::State;
using platform::Deadline;

constexpr gpumem_event_flags kEventFlags = GPUMEM_EVENT_INTERPROCESS | GPUMEM_EVENT_DISABLE_TIMING;
// Polls before a thread sleeps: some microseconds.
constexpr int kSpins = 300;
// A sleeping thread looks again after this time, because a consumer may overwrite the sleepers' words.
constexpr auto kLongestSleep = std::chrono::seconds(1);
// How long a thread waits for an event before it checks that the other process lives.
constexpr uint64_t kLookEvery = 20'000'000;
// Between polls for what another process is about to do.
constexpr auto kPause = std::chrono::milliseconds(1);
// How long a process that is ending may take to hang up.
constexpr auto kEndTime = std::chrono::seconds(1);

Error nonsense(const char* what) {
  return make_error(GPUMEM_ERROR_INVALID_STATE,
                    "the ring is damaged: %s; destroy it, and do not trust the other process", what);
}

Error destroyed() { return ended_meanwhile(Type::kRing); }

Error producer_gone() {
  return make_error(GPUMEM_ERROR_PEER_GONE, "the producer of the ring has ended; destroy the ring");
}

}  // namespace

// The holders of the ring, of its places and of its memory, as this process counts them, because any consumer
// may write into an unclaimed place.
class Ring::Places final : public ExportWatcher {
 public:
  explicit Places(std::shared_ptr<RingControl> control) : control_(std::move(control)) {}
  // The number of holders, those included that are about to be.
  void held(uint64_t claims) noexcept override {
    claims_.store(claims);
    if (claims == 0) control_->wake_producer();
  }
  void memory_held(uint64_t claims) noexcept {
    memory_claims_.store(claims);
    if (claims == 0) control_->wake_producer();
  }
  void place_held(uint32_t place, bool held) noexcept {
    const uint64_t bit = uint64_t{1} << place;
    const bool had_joined = has_joined(place);
    if (!held) held_.fetch_and(~bit);
    for (uint32_t other = 0; other < control_->shape().place_count; ++other) {
      if (!is_held(other)) control_->place(other).word.store(0);
    }
    if (held) held_.fetch_or(bit);
    control_->facts().held.store(held_.load());
    if (held) return;
    if (had_joined) ++gone_;
    control_->wake_consumers();  // a consumer may have written that none sleeps
    control_->wake_producer();
  }
  bool is_held(uint32_t place) const { return (held_.load() >> place & 1) != 0; }
  bool has_joined(uint32_t place) const {
    return is_held(place) && RingControl::state_of(control_->place(place).word.load()) >= State::kActive;
  }
  uint32_t gone() const { return gone_.load(); }  // consumers that had joined
  bool any() const { return claims_.load() != 0 || held_.load() != 0 || memory_claims_.load() != 0; }

 private:
  const std::shared_ptr<RingControl> control_;
  std::atomic<uint64_t> claims_{0};
  std::atomic<uint64_t> memory_claims_{0};
  std::atomic<uint64_t> held_{0};  // a bit for each place
  std::atomic<uint32_t> gone_{0};
};

// Frees the place of a consumer that has ended, in whatever way.
class Ring::PlaceWatcher final : public ExportWatcher {
 public:
  PlaceWatcher(std::shared_ptr<Places> places, uint32_t place) : places_(std::move(places)), place_(place) {}
  void held(uint64_t claims) noexcept override { places_->place_held(place_, claims != 0); }

 private:
  const std::shared_ptr<Places> places_;
  const uint32_t place_;
};

// A consumer may still have the memory when it has given back all the rest.
class Ring::MemoryWatcher final : public ExportWatcher {
 public:
  explicit MemoryWatcher(std::shared_ptr<Places> places) : places_(std::move(places)) {}
  void held(uint64_t claims) noexcept override { places_->memory_held(claims); }

 private:
  const std::shared_ptr<Places> places_;
};

// Makes the calling thread the only one in a call.
class Ring::Turn {
 public:
  explicit Turn(Ring& ring) : ring_(ring), taken_(!ring.busy_.exchange(true, std::memory_order_acquire)) {}
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() {
    if (taken_) ring_.busy_.store(false, std::memory_order_release);
  }
  Result<void> taken() const {
    if (ring_.stopped_.load(std::memory_order_relaxed)) [[unlikely]]
      return destroyed();
    if (taken_) [[likely]]
      return {};
    return make_error(GPUMEM_ERROR_BUSY,
                      "another thread is in a call of this ring; let one thread at a time use it");
  }

 private:
  Ring& ring_;
  const bool taken_;
};

Ring::Ring(std::shared_ptr<Context> context, Device& device, bool producer, std::string name)
    : Object(kType, std::move(context)), device_(device), producer_(producer), name_(std::move(name)) {}

Ring::~Ring() { close(); }

// ---- making one ----

Result<void> Ring::create(DeviceObject& device, const RingRequest& request) {
  GPUMEM_TRY(device_.need(GPUMEM_CAPABILITY_SHARE_LEGACY));
  GPUMEM_TRY(device_.need(GPUMEM_CAPABILITY_SHARE_EVENTS));
  auto facet = device_.sharing();
  if (!facet) return facet.error();
  const RingShape& shape = request.shape;
  PartRequest whole;
  auto made = RingControl::create(shape, &whole.files);
  if (!made) return made.error();
  slot_count_ = shape.slot_count;
  consumers_first_ = request.consumers_first;
  Exports& exports = Exports::of(context());
  GPUMEM_TRY(ShareServer::of(context()).start());
  ShareServer::of(context()).loop().sleepers().add((*made)->signals().released);
  control_ = std::move(*made);

  watcher_ = std::make_shared<Places>(control_);
  whole.type = GPUMEM_SHARE_TYPE_RING;
  whole.size = shape.bytes();
  whole.watcher = watcher_;
  auto exported = exports.export_part(*this, device_, std::move(whole));
  if (!exported) return exported.error();
  exported_ = *exported;

  backend::MemoryRequest wanted;
  wanted.size = shape.bytes();
  wanted.require = GPUMEM_MEMORY_SHAREABLE;
  auto memory = create_memory(device, kinds::device, wanted, name_);
  if (!memory) return memory.error();
  memory_ = memory->handle;
  base_ = memory->pointer;
  {
    auto object = held<Memory>(memory_);
    if (!object) return object.error();
    (*object)->set_owned();
  }
  auto shared = exports.export_memory(base_, {});
  if (!shared) return shared.error();
  exports.set_whole(shared->token, exported_.token, std::make_shared<MemoryWatcher>(watcher_));
  control_->memory_handle() = encode(*shared);

  const auto add = [&](Events& events, gpumem_event_flags flags, std::shared_ptr<ExportWatcher> watcher,
                       gpumem_share_handle& place) -> Result<void> {
    auto event = device_.backend().create_event(kEventFlags | flags);
    if (!event) return event.error();
    events.push_back(std::move(*event));
    auto ticket = (*facet)->export_event(*events.back());
    if (!ticket) return ticket.error();
    PartRequest part;
    part.ticket = *ticket;
    part.whole = exported_.token;
    part.exclusive = watcher != nullptr;
    part.watcher = std::move(watcher);
    auto handle = exports.export_part(*this, device_, std::move(part));
    if (!handle) return handle.error();
    place = encode(*handle);
    return {};
  };
  recorded_in_.resize(shape.slot_count);
  slot_events_.reserve(shape.slot_count);
  release_events_.reserve(size_t{shape.slot_count} * shape.place_count);
  for (uint32_t slot = 0; slot < shape.slot_count; ++slot)
    GPUMEM_TRY(add(slot_events_, backend::kRecordedHere, nullptr, control_->slot_handle(slot)));
  for (uint32_t place = 0; place < shape.place_count; ++place) {
    for (uint32_t slot = 0; slot < shape.slot_count; ++slot) {
      std::shared_ptr<ExportWatcher> watcher;
      if (slot == 0) watcher = std::make_shared<PlaceWatcher>(watcher_, place);
      GPUMEM_TRY(add(release_events_, 0, std::move(watcher), control_->release_handle(place, slot)));
    }
  }
  return {};
}

namespace {

// On host the producer has one descriptor of each event and of the memory, and one of its export; on cuda, of
// neither. The ring has one of each of its own files.
Error explain_limit(Context& context, const RingShape& shape, const Error& error) {
  const bool on_host = context.backend().kind() == GPUMEM_BACKEND_HOST;
  if (!on_host || error.status != GPUMEM_ERROR_LIMIT_EXCEEDED || !platform::out_of_descriptors())
    return error;
  const uint32_t count = 2 * shape.slot_count * (shape.place_count + 1) + 4;
  return make_error(error.status,
                    "a ring with %u slots for %u consumers takes %u file descriptors, and the process, which "
                    "may have %" PRIu64
                    " (RLIMIT_NOFILE), has not so many left; close some, raise `ulimit -n`, or ask for fewer",
                    shape.slot_count, shape.place_count, count, platform::descriptor_limit())
      .from_native(error.native_domain, error.native_code, error.native_name, error.entry_point);
}

}  // namespace

Result<uint64_t> create_ring(DeviceObject& device, RingRequest request) {
  Context& context = device.context();
  GPUMEM_TRY(device.device().usable());
  GPUMEM_TRY(outside_host_function());
  const auto open = context.stay_open();
  if (!open) return open.error();
  end_abandoned(context);
  auto ring = std::make_unique<Ring>(device.shared_context(), device.device(), true, request.name);
  auto handle = handles::reserve(*ring);
  if (!handle) return handle.error();
  Cleanup undo([&] {
    handles::cancel(*ring);
    ring->close();
    abandon(context, ring->memory_);
  });
  if (const auto made = ring->create(device, request); !made)
    return explain_limit(context, request.shape, made.error());
  undo.dismiss();
  context.add_object(*ring);
  handles::publish(ring.release());
  return *handle;
}

// ---- opening one ----

// A handle that the producer has written.
Result<ShareHandle> Ring::read_handle(const gpumem_share_handle& bytes, gpumem_share_type type) const {
  const gpumem_share_handle copy = bytes;
  auto handle = decode(copy);
  if (!handle || handle->type != type || handle->offset != 0 ||
      handle->exporter.instance != exported_.exporter.instance ||
      handle->device_uuid != exported_.device_uuid)
    return nonsense("it has a handle of something else");
  handle->origin = peer_->origin();
  return handle;
}

Result<void> Ring::import_event(const gpumem_share_handle& bytes, Deadline deadline, Events& events,
                                std::vector<Claim>& claims) {
  auto handle = read_handle(bytes, GPUMEM_SHARE_TYPE_EVENT);
  if (!handle) return handle.error();
  events.reserve(slot_count_);
  claims.reserve(slot_count_);
  ImportRequest request;
  request.handle = *handle;
  request.timeout_ns = time_until(deadline);
  request.peer = peer_;
  return Imports::of(context()).claim(
      request, GPUMEM_SHARE_TYPE_EVENT, [&](ImportSource source) -> Result<void> {
        auto event = device_.backend().sharing()->import_event(source.ticket());
        if (!event) return event.error();
        events.push_back(std::move(*event));
        claims.push_back(std::move(source.claim));
        return {};
      });
}

// Its first event, which one consumer at a time can claim, is claimed before it is taken: see PlaceWatcher.
Result<void> Ring::take_place(Deadline deadline) {
  for (;;) {
    auto taken = take_free_place(deadline);
    if (!taken) return taken.error();
    if (*taken) return {};
    // The producer is about to free the place of one that has left, or has just done so.
    bool leaving = false;
    for (uint32_t place = 0; place < control_->shape().place_count; ++place) {
      const State state = RingControl::state_of(control_->place(place).word.load());
      leaving = leaving || state == State::kLeft || !is_held(place);
    }
    if (!leaving || std::chrono::steady_clock::now() >= deadline) break;
    GPUMEM_TRY(check_running());
    GPUMEM_TRY(check_peer());
    std::this_thread::sleep_for(kPause);
  }
  return make_error(GPUMEM_ERROR_LIMIT_EXCEEDED,
                    "the ring has %u consumers, as many as consumers_max says; create it with more",
                    control_->shape().place_count);
}

Result<bool> Ring::take_free_place(Deadline deadline) {
  const platform::Id random = platform::random_id();
  uint64_t owner = 0;
  std::memcpy(&owner, random.data(), sizeof owner);
  const uint64_t wanted = RingControl::make_word(State::kOpening, owner | 1);
  for (uint32_t place = 0; place < control_->shape().place_count; ++place) {
    if (is_held(place)) continue;
    auto claimed =
        import_event(control_->release_handle(place, 0), deadline, release_events_, release_claims_);
    if (!claimed && claimed.error().status == GPUMEM_ERROR_ALREADY_EXISTS) continue;
    if (!claimed) return claimed.error();
    control_->place(place).word.store(wanted);  // over what another consumer may have written
    place_ = place;
    word_ = wanted;
    return true;
  }
  return false;
}

Result<void> Ring::join() {
  RingControl::Place& place = control_->place(place_);
  const auto advance = [&](State state) -> Result<void> {
    const uint64_t next = RingControl::with_state(word_, state);
    if (!place.word.compare_exchange_strong(word_, next)) {
      word_ = 0;
      return make_error(
          GPUMEM_ERROR_BUSY,
          "the connection to the producer broke, or another consumer has overwritten this one's "
          "place; open the ring again");
    }
    word_ = next;
    return {};
  };
  for (uint32_t slot = 0; slot < slot_count_; ++slot)
    control_->recorded(place_, slot).store(0);
  GPUMEM_TRY(advance(State::kJoining));
  // From here on, the producer refills no slot that holds this message or a later one.
  const uint64_t first = control_->published().load();
  place.released.store(first);
  taken_ = first;
  released_ = first;
  GPUMEM_TRY(advance(State::kActive));
  control_->wake_producer();
  return {};
}

Result<void> Ring::open(ImportSource source, DeviceObject& device, Deadline deadline) {
  peer_ = source.claim.peer();
  claim_ = std::move(source.claim);
  exported_ = source.recorded;
  auto control = RingControl::open(source.descriptors);
  if (!control) return control.error();
  ShareServer::of(context()).loop().sleepers().add((*control)->signals().published);
  control_ = std::move(*control);
  slot_count_ = control_->shape().slot_count;
  const auto check_open = [&]() -> Result<void> {
    if (control_->facts().finished.load() == 0) return {};
    return make_error(GPUMEM_ERROR_CLOSED, "the producer has finished the ring");
  };
  GPUMEM_TRY(check_open());
  GPUMEM_TRY(take_place(deadline));
  for (uint32_t slot = 1; slot < slot_count_; ++slot)
    GPUMEM_TRY(
        import_event(control_->release_handle(place_, slot), deadline, release_events_, release_claims_));
  for (uint32_t slot = 0; slot < slot_count_; ++slot)
    GPUMEM_TRY(import_event(control_->slot_handle(slot), deadline, slot_events_, slot_claims_));

  auto handle = read_handle(control_->memory_handle(), GPUMEM_SHARE_TYPE_MEMORY);
  if (!handle) return handle.error();
  ImportRequest request;
  request.handle = *handle;
  request.device = &device;
  request.timeout_ns = time_until(deadline);
  request.name = name_;
  request.peer = peer_;
  request.for_ring = true;
  auto memory = Imports::of(context()).import_memory(request, nullptr);
  if (!memory) return memory.error();
  memory_ = memory->handle;
  base_ = memory->pointer;
  {
    auto object = held<Memory>(memory_);
    if (!object) return object.error();
    if ((*object)->size() < control_->shape().bytes()) return nonsense("its memory is too small");
    (*object)->set_owned();
  }
  GPUMEM_TRY(join());
  // A consumer that has joined may take what was published since, even if the ring has finished.
  auto open = check_open();
  if (!open && control_->published().load() != taken_) return {};
  return open;
}

// Why it could not be opened. What is claimed is not destroyed: if the driver says that it is no more, its
// process is ending, and the connection is about to break.
Error Ring::explain(const Error& error) const {
  if (error.status != GPUMEM_ERROR_STALE_HANDLE || peer_ == nullptr) return error;
  const Deadline deadline = std::chrono::steady_clock::now() + kEndTime;
  for (;;) {
    if (auto running = check_running(); !running) return running.error();
    if (auto lives = check_peer(); !lives) return lives.error();
    if (std::chrono::steady_clock::now() >= deadline) return error;
    std::this_thread::sleep_for(kPause);
  }
}

Result<uint64_t> Ring::open_claimed(const std::shared_ptr<Context>& context, ImportSource source,
                                    std::string name, Deadline deadline) {
  auto device = Imports::of(*context).device_of(source.recorded);
  if (!device) return device.error();
  GPUMEM_TRY((*device)->device().usable());
  if (auto facet = (*device)->device().sharing(); !facet) return facet.error();
  auto ring = std::make_unique<Ring>(context, (*device)->device(), false, std::move(name));
  Cleanup undo([&] {
    abandon(*context, ring->memory_);  // first, because closing says that it has left
    ring->close();
  });
  // Opening waits for another process, so do not block closing meanwhile.
  if (auto opened = ring->open(std::move(source), **device, deadline); !opened)
    return ring->explain(opened.error());
  const auto open = context->stay_open();
  if (!open) return open.error();
  auto reserved = handles::reserve(*ring);
  if (!reserved) return reserved.error();
  undo.dismiss();
  context->add_object(*ring);
  handles::publish(ring.release());
  return *reserved;
}

Result<uint64_t> open_ring(const std::shared_ptr<Context>& context, const ShareHandle& handle,
                           uint64_t timeout_ns, std::string name) {
  GPUMEM_TRY(outside_host_function());
  end_abandoned(*context);
  const Deadline deadline = answer_deadline(timeout_ns);
  ImportRequest request;
  request.handle = handle;
  request.timeout_ns = timeout_ns;
  uint64_t handle_of_ring = 0;
  const auto open = [&](ImportSource source) -> Result<void> {
    auto opened = Ring::open_claimed(context, std::move(source), std::move(name), deadline);
    if (!opened) return opened.error();
    handle_of_ring = *opened;
    return {};
  };
  GPUMEM_TRY(Imports::of(*context).claim(request, GPUMEM_SHARE_TYPE_RING, open));
  return handle_of_ring;
}

// ---- ending ----

// After a failure, the next call releases the rest.
Result<void> Ring::release_events() noexcept {
  for (Events* events : {&slot_events_, &release_events_}) {
    for (; !events->empty(); events->pop_back())
      GPUMEM_TRY(events->back()->release());
  }
  return {};
}

// Only the ring; its memory has its own line.
Line Ring::describe() const {
  return line_of("ring %s: device %u, %u slots, %s", shown(name()), device().ordinal(), slot_count_,
                 producer_ ? "producer" : "consumer");
}

void Ring::list(Fields& fields) const noexcept {
  fields.add("name", name());
  fields.add("device", uint64_t{device().ordinal()});
  fields.add("role", producer_ ? "producer" : "consumer");
  fields.add("slots", uint64_t{slot_count_});
}

Result<void> Ring::release() {
  close();
  return {};
}

void Ring::close() noexcept {
  if (control_ == nullptr) return;
  RingControl::Signals& signals = control_->signals();
  ShareServer::of(context()).loop().sleepers().remove(producer_ ? signals.released : signals.published);
  auto released = release_events();
  if (!released) released = release_events();  // the first call may report an earlier failure
  if (!released)
    log(GPUMEM_LOG_WARNING, "could not destroy an event of a ring: %s", released.error().message);
  if (producer_) {
    Exports::of(context()).end(*this);
  } else {
    if (word_ != 0) {
      control_->place(place_).word.compare_exchange_strong(word_,
                                                           RingControl::with_state(word_, State::kLeft));
      control_->wake_producer();
    }
    // The place is free with the last of them.
    slot_claims_.clear();
    claim_ = Claim();
    while (!release_claims_.empty())
      release_claims_.pop_back();
    peer_.reset();
  }
  control_.reset();
}

// Waits until this side's work on released slots is complete.
Result<void> Ring::synchronize() noexcept {
  if (producer_) return {};
  for (uint32_t slot = 0; slot < release_events_.size(); ++slot) {
    // Skip events not recorded here: their last record is of an earlier consumer.
    for (bool complete = !recorded_[slot]; !complete && !peer_->gone();) {
      GPUMEM_TRY(check_running());
      auto waited = release_events_[slot]->synchronize_own(kLookEvery);
      if (!waited) return waited.error();
      complete = *waited;
    }
  }
  return {};
}

// BUSY while work uses the memory. If another ring of this process has the same import, that is its concern.
Result<void> Ring::check_unused() {
  if (memory_ == 0) return {};
  auto memory = held<Memory>(memory_);
  if (!memory) return memory.error();
  if (!producer_) {
    auto import = Imports::of(context()).info(**memory);
    if (import && import->count > 1) return {};
  }
  return core::check_unused(**memory, [&] { return (*memory)->backend().check_unused(); });
}

Result<void> Ring::close_memory() {
  if (memory_ == 0) return {};
  auto closed = give_back<Memory>(memory_, destroy_memory);
  if (!closed) return closed;
  memory_ = 0;
  return {};
}

Result<void> destroy_ring(Ref<Ring> ring) {
  GPUMEM_TRY(outside_host_function());
  Context& context = ring->context();
  const auto open = context.stay_open();
  if (!open) return open.error();
  GPUMEM_TRY(uses_will_end(*ring));
  Exports& exports = Exports::of(context);
  if (ring->producer_) {
    if (ring->finished_) ShareServer::of(context).end_leases(ring->exported_.token);
    if (auto begun = exports.begin_end(*ring); !begun) {
      return reworded(
          begun.error(),
          "consumers have the ring; call gpumem_ring_finish(), and destroy it when they have left");
    }
  }
  Cleanup still_shared([&, object = ring.get()] { exports.cancel_end(*object); });
  if (!handles::end(*ring, End::kDestroyed)) {
    still_shared.dismiss();  // the call that destroys it decides that
    return destroyed();
  }
  bool complete = !ring->stopped_.exchange(true);  // else an earlier call could not destroy all
  RingControl::Signals& signals = ring->control_->signals();
  RingControl::Word& signal = ring->producer_ ? signals.released : signals.published;
  ++signal;
  platform::wake_all(signal);
  platform::fence_all_threads();
  Result<void> released = wait_for_uses(*ring);
  if (released && complete) {
    released = ring->synchronize();
    if (released || ring->device_.backend().lost()) released = ring->check_unused();
  }
  if (released) {
    complete = false;
    released = ring->release_events();
    if (released) released = ring->close_memory();
  }
  if (!released) {
    // Else the ring can now only be destroyed, and nobody opens it.
    if (!complete) still_shared.dismiss();
    ring->stopped_ = !complete;
    handles::revive(*ring);
    return released;
  }
  still_shared.dismiss();
  (void)ring->release();  // does not fail
  context.remove_object(*ring);
  Ring* const gone = ring.get();
  ring = {};
  handles::remove(gone);
  return {};
}

// ---- using one ----

Result<ShareHandle> Ring::exported() const {
  GPUMEM_TRY(check_side(true));
  GPUMEM_TRY(outside_host_function());
  return exported_;
}

Result<void> Ring::check_side(bool producer) const {
  if (producer_ == producer) [[likely]]
    return {};
  return make_error(GPUMEM_ERROR_INVALID_STATE, "this is %s, and only %s can do that",
                    producer_ ? "the producer" : "a consumer", producer ? "the producer" : "consumers");
}

Result<void> Ring::check_stream(const Stream* stream) const {
  if (stream == nullptr) {
    GPUMEM_TRY(device_.usable());
    return outside_host_function();
  }
  if (&stream->device() != &device_) [[unlikely]] {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "the stream is not of the ring's device, %u of its instance; use one that is",
                      device_.ordinal());
  }
  return stream->usable();
}

Result<void> Ring::check_running() const {
  if (ShareServer::of(context()).loop().is_running()) [[likely]]
    return {};
  return instance_closed();
}

Result<void> Ring::check_peer() const {
  if (!peer_->gone()) [[likely]]
    return {};
  return producer_gone();
}

Result<void> Ring::check_waiting() const {
  if (stopped_.load(std::memory_order_relaxed)) [[unlikely]]
    return destroyed();
  GPUMEM_TRY(check_running());
  if (producer_) return {};
  GPUMEM_TRY(check_peer());
  const uint64_t word = control_->place(place_).word.load(std::memory_order_acquire);
  if (word != word_) [[unlikely]] {
    if (peer_->has_hung_up()) return producer_gone();
    const bool dropped = word == RingControl::with_state(word_, State::kDropped);
    return make_error(GPUMEM_ERROR_INVALID_STATE, "%s; destroy the ring, and open it again",
                      dropped ? "the producer has dropped this consumer"
                              : "another consumer has overwritten this one's place, or the connection to the "
                                "producer broke");
  }
  repair_released();
  return {};
}

// Restores this place's count. If another consumer lowered it, the producer would wait for a release.
void Ring::repair_released() const {
  RingControl::Number& said = control_->place(place_).released;
  const uint64_t released = released_.load(std::memory_order_relaxed);
  if (said.load(std::memory_order_relaxed) == released) [[likely]]
    return;
  said.store(released);
  control_->tell_producer();
}

// Spins, then sleeps until `ready()` returns true or fails; false after the deadline.
template <class Ready>
Result<bool> Ring::await(RingControl::Word& signal, Deadline deadline, Ready ready) {
  for (int i = 0; i < kSpins; ++i) {
    auto done = ready();
    if (!done || *done) return done;
    platform::pause_briefly();
  }
  RingControl::Signals& signals = control_->signals();
  for (;;) {
    const uint32_t seen = signal.load();
    if (producer_) {
      signals.producer_sleeps.store(1);
    } else {
      signals.sleepers.fetch_or(uint64_t{1} << place_);
    }
    auto done = ready();
    if (!done || *done) return done;
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline) return false;
    platform::wait_for_change(signal, seen, std::min<Deadline::duration>(deadline - now, kLongestSleep));
  }
}

// Makes the calling thread wait, until `ended()`; false after the deadline.
template <class Ended>
Result<bool> Ring::wait_for(backend::Event& event, Deadline deadline, Ended ended) {
  for (;;) {
    const auto now = std::chrono::steady_clock::now();
    const auto left = static_cast<uint64_t>(std::max<int64_t>((deadline - now).count(), 0));
    auto complete = left == 0 ? event.query() : event.synchronize(std::min(left, kLookEvery));
    if (!complete || *complete) return complete;
    GPUMEM_TRY(check_waiting());
    if (ended()) return true;
    if (left == 0) return false;
  }
}

// Waits for the work of the place's consumer, unless it has ended: then what it reads no longer matters.
Result<bool> Ring::wait_for_consumer(uint32_t place, uint32_t slot, Stream* stream, Deadline deadline) {
  RingControl::Number& word = control_->place(place).word;
  const uint64_t consumer = word.load();
  // The count with which the slot's previous message is released.
  const uint64_t released = published_.load(std::memory_order_relaxed) - slot_count_ + 1;
  if (!watcher_->is_held(place) || RingControl::state_of(consumer) != State::kActive) return true;
  if (control_->recorded(place, slot).load(std::memory_order_acquire) != released) return true;
  backend::Event& event = release_event(place, slot);
  if (stream != nullptr) {
    GPUMEM_TRY(stream->backend().wait_event_or_end(event));
    return true;
  }
  const auto has_left = [&] { return word.load() != consumer; };
  auto waited = wait_for(event, deadline, has_left);
  if (!waited && waited.error().status == GPUMEM_ERROR_PEER_GONE) return true;
  return waited;
}

// Waits for the producer's own last fill of the slot too, because no consumer may have taken that message.
Result<bool> Ring::wait_for_last_fill(uint32_t slot, Stream* stream, Deadline deadline) {
  if (!recorded_[slot]) return true;
  backend::Event& event = *slot_events_[slot];
  if (stream != nullptr) {
    const uint64_t identity = stream->backend().identity();
    if (identity == 0 || identity != recorded_in_[slot]) GPUMEM_TRY(stream->backend().wait_event(event));
    return true;
  }
  auto complete = wait_for(event, deadline, [] { return false; });
  if (complete && *complete) recorded_.reset(slot);
  return complete;
}

RingSlot Ring::slot(uint64_t number) const {
  RingSlot slot;
  slot.index = slot_of(number);
  slot.pointer = static_cast<char*>(base_) + slot.index * control_->shape().stride();
  slot.size = control_->shape().slot_size;
  slot.number = number;
  return slot;
}

// Whether a consumer holds the place, by the producer's own count.
bool Ring::is_held(uint32_t place) const {
  return producer_ ? watcher_->is_held(place) : (control_->facts().held.load() >> place & 1) != 0;
}

void Ring::drop(uint32_t place, uint64_t word) noexcept {
  const uint64_t dropped = RingControl::with_state(word, State::kDropped);
  if (!control_->place(place).word.compare_exchange_strong(word, dropped)) return;
  control_->wake_consumers();
  // Name no process, because any consumer may have written it.
  ShareServer::of(context()).loop().warn("dropped a consumer of a ring", 0, Warnings::kUnknown,
                                         "it says that it released what it cannot have");
}

// Whether all consumers have released the next slot.
Result<bool> Ring::is_free() {
  const uint64_t next = published_.load(std::memory_order_relaxed);
  if (next < free_until_) return true;
  GPUMEM_TRY(check_waiting());
  uint64_t oldest = next;
  uint32_t joined = watcher_->gone();
  for (uint32_t place = 0; place < control_->shape().place_count; ++place) {
    if (!watcher_->is_held(place)) continue;
    const uint64_t word = control_->place(place).word.load();
    const State state = RingControl::state_of(word);
    if (state == State::kJoining) return false;
    if (state >= State::kActive) ++joined;
    if (state != State::kActive) continue;
    const uint64_t released = control_->place(place).released.load(std::memory_order_acquire);
    if (released > next || next - released > slot_count_) {
      drop(place, word);
      continue;
    }
    oldest = std::min(oldest, released);
  }
  if (next == 0 && joined < consumers_first_) return false;
  if (next - oldest >= slot_count_) return false;
  // A consumer that joins from now on begins with a message that is not published yet.
  free_until_ = oldest + slot_count_;
  return true;
}

Result<Status> Ring::acquire(Stream* stream, uint64_t timeout_ns, RingSlot* out) {
  GPUMEM_TRY(check_stream(stream));
  GPUMEM_TRY(check_side(true));
  const Turn turn(*this);
  GPUMEM_TRY(turn.taken());
  if (acquired_.load(std::memory_order_relaxed))
    return make_error(GPUMEM_ERROR_INVALID_STATE, "a slot is acquired already; publish it first");
  if (finished_.load(std::memory_order_relaxed))
    return make_error(GPUMEM_ERROR_INVALID_STATE, "the ring is finished");
  const uint64_t next = published_.load(std::memory_order_relaxed);
  Deadline deadline{};
  if (next >= free_until_ || stream == nullptr) {
    deadline = platform::deadline_after(timeout_ns);
    auto free = await(control_->signals().released, deadline, [&] { return is_free(); });
    if (!free) return free.error();
    if (!*free) return GPUMEM_NOT_READY;
  }
  if (next >= slot_count_) {
    const uint32_t slot = slot_of(next);
    auto filled = wait_for_last_fill(slot, stream, deadline);
    if (!filled) return filled.error();
    if (!*filled) return GPUMEM_NOT_READY;
    for (uint32_t place = 0; place < control_->shape().place_count; ++place) {
      auto waited = wait_for_consumer(place, slot, stream, deadline);
      if (!waited) return waited.error();
      if (!*waited) return GPUMEM_NOT_READY;
    }
  }
  acquired_.store(true, std::memory_order_relaxed);
  *out = slot(next);
  return GPUMEM_SUCCESS;
}

Result<void> Ring::publish(Stream* stream, uint64_t size, uint64_t tag) {
  if (size > control_->shape().slot_size) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "the message has %" PRIu64 " bytes, and a slot has %" PRIu64, size,
                      control_->shape().slot_size);
  }
  GPUMEM_TRY(check_stream(stream));
  GPUMEM_TRY(check_side(true));
  const Turn turn(*this);
  GPUMEM_TRY(turn.taken());
  if (!acquired_.load(std::memory_order_relaxed))
    return make_error(GPUMEM_ERROR_INVALID_STATE, "no slot is acquired; call gpumem_ring_acquire() first");
  const uint64_t next = published_.load(std::memory_order_relaxed);
  const uint32_t slot = slot_of(next);
  if (stream != nullptr) {
    GPUMEM_TRY(slot_events_[slot]->record(stream->backend()));
    recorded_.set(slot);
    recorded_in_[slot] = stream->backend().identity();
  }
  RingControl::Message& message = control_->message(slot);
  message.size.store(size, std::memory_order_relaxed);
  message.tag.store(tag, std::memory_order_relaxed);
  message.recorded.store(stream != nullptr ? 1 : 0, std::memory_order_relaxed);
  acquired_.store(false, std::memory_order_relaxed);
  published_.store(next + 1, std::memory_order_relaxed);
  control_->published().store(next + 1);
  control_->tell_consumers();
  return {};
}

Result<Status> Ring::wait(Stream* stream, uint64_t timeout_ns, RingSlot* out) {
  GPUMEM_TRY(check_stream(stream));
  GPUMEM_TRY(check_side(false));
  const Turn turn(*this);
  GPUMEM_TRY(turn.taken());
  const uint64_t number = taken_.load(std::memory_order_relaxed);
  const uint64_t released = released_.load(std::memory_order_relaxed);
  if (number - released >= slot_count_) {
    return make_error(GPUMEM_ERROR_INVALID_STATE, "all %u slots are held; release a message first",
                      slot_count_);
  }
  const auto is_published = [&]() -> Result<bool> {
    GPUMEM_TRY(check_waiting());
    const bool finished = control_->facts().finished.load(std::memory_order_acquire) != 0;
    const uint64_t count = control_->published().load();
    if (count == number) {
      if (!finished) return false;
      return make_error(GPUMEM_ERROR_CLOSED, "the producer has finished the ring, and this was all");
    }
    if (count < number || count - released > slot_count_)
      return nonsense("the producer says that it published what it cannot have");
    return true;
  };
  Deadline deadline{};
  auto published = is_published();
  if (!published) return published.error();
  if (!*published || stream == nullptr) deadline = platform::deadline_after(timeout_ns);
  if (!*published) published = await(control_->signals().published, deadline, is_published);
  if (!published) return published.error();
  if (!*published) return GPUMEM_NOT_READY;
  RingSlot found = slot(number);
  RingControl::Message& message = control_->message(found.index);
  found.size = message.size.load(std::memory_order_relaxed);
  found.tag = message.tag.load(std::memory_order_relaxed);
  if (found.size > control_->shape().slot_size) return nonsense("a message is larger than its slot");
  if (message.recorded.load(std::memory_order_relaxed) != 0) {
    backend::Event& event = *slot_events_[found.index];
    Result<bool> waited = true;
    if (stream != nullptr) {
      GPUMEM_TRY(stream->backend().wait_event(event));
    } else {
      waited = wait_for(event, deadline, [] { return false; });
    }
    if (!waited) return waited.error();
    if (!*waited) return GPUMEM_NOT_READY;
  }
  taken_.store(number + 1, std::memory_order_relaxed);
  *out = found;
  return GPUMEM_SUCCESS;
}

Result<void> Ring::release(Stream* stream, uint64_t number) {
  GPUMEM_TRY(check_stream(stream));
  GPUMEM_TRY(check_side(false));
  const Turn turn(*this);
  GPUMEM_TRY(turn.taken());
  const uint64_t oldest = released_.load(std::memory_order_relaxed);
  if (number != oldest || number >= taken_.load(std::memory_order_relaxed)) {
    return make_error(GPUMEM_ERROR_INVALID_STATE,
                      "message %" PRIu64 " is not the oldest one that is held; release them in their order",
                      number);
  }
  GPUMEM_TRY(check_waiting());
  if (stream != nullptr) {
    const uint32_t slot = slot_of(number);
    GPUMEM_TRY(release_events_[slot]->record(stream->backend()));
    recorded_.set(slot);
    control_->recorded(place_, slot).store(number + 1, std::memory_order_relaxed);
  }
  released_.store(number + 1, std::memory_order_relaxed);
  control_->place(place_).released.store(number + 1);
  control_->tell_producer();
  return {};
}

Result<Status> Ring::finish(uint64_t timeout_ns) {
  GPUMEM_TRY(outside_host_function());
  GPUMEM_TRY(check_side(true));
  const Turn turn(*this);
  GPUMEM_TRY(turn.taken());
  acquired_.store(false, std::memory_order_relaxed);
  finished_.store(true, std::memory_order_relaxed);
  control_->facts().finished.store(1);
  control_->wake_consumers();
  // End leases: processes that have not opened the handle by now no longer can.
  ShareServer::of(context()).end_leases(exported_.token);
  const auto have_left = [&]() -> Result<bool> {
    GPUMEM_TRY(check_waiting());
    return !watcher_->any();
  };
  auto done = await(control_->signals().released, platform::deadline_after(timeout_ns), have_left);
  return ready(done);
}

gpumem_ring_info Ring::info() const {
  gpumem_ring_info info = GPUMEM_RING_INFO_INIT;
  const RingShape& shape = control_->shape();
  info.device = reinterpret_cast<gpumem_device>(pointer_to(device_.handle()));
  info.device_ordinal = device_.ordinal();
  info.is_producer = producer_ ? 1 : 0;
  info.base = base_;
  info.slot_size = shape.slot_size;
  info.slot_stride = shape.stride();
  info.slot_count = shape.slot_count;
  info.consumers_max = shape.place_count;
  info.published = producer_ ? published_.load() : control_->published().load();
  info.released = producer_ ? info.published : released_.load();
  for (uint32_t place = 0; place < shape.place_count; ++place) {
    if (!is_held(place)) continue;
    if (RingControl::state_of(control_->place(place).word.load()) != State::kActive) continue;
    ++info.consumer_count;
    if (producer_) info.released = std::min(info.released, control_->place(place).released.load());
  }
  info.held_count = producer_ ? (acquired_.load() ? 1 : 0) : static_cast<uint32_t>(taken_ - released_);
  const bool finished = producer_ ? finished_.load() : control_->facts().finished.load() != 0;
  info.finished = finished ? 1 : 0;
  std::snprintf(info.name, sizeof info.name, "%s", name_.c_str());
  return info;
}

}  // namespace gpumem::core
