// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/host/shared_event.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "backends/host/options.h"
#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "platform/identity.h"
#include "platform/pages.h"
#include "platform/shared_word.h"

namespace gpumem::host {

namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free, "processes share no locks");

struct FileName {
  char text[64];
};

FileName file_name(const DeviceUuid& device) {
  FileName name;
  std::snprintf(name.text, sizeof name.text, "gpumem-event-%s", text_of(device).data());
  return name;
}

Error not_an_event(int file_descriptor, const char* why) {
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                    "file descriptor %d %s; pass the one that belongs to the share handle", file_descriptor,
                    why);
}

}  // namespace

uint64_t SharedEvent::file_size() {
  static_assert(sizeof(Recorder) == 128);
  return round_up(sizeof(Page), platform::page_size());
}

SharedEvent::SharedEvent(platform::Descriptor file, Range view, bool writable)
    : file_(std::move(file)),
      view_(std::move(view)),
      writable_(writable),
      page_(*static_cast<Page*>(view_.address())) {}

Result<std::shared_ptr<SharedEvent>> SharedEvent::map(Steps& steps, platform::Descriptor file) {
  GPUMEM_TRY(steps.take("mmap"));
  auto view = platform::map_file(file.get(), file_size(), nullptr);
  const bool writable = view || view.error().status != GPUMEM_ERROR_NO_ACCESS;
  if (!writable) view = platform::map_file(file.get(), file_size(), nullptr, platform::Protection::kRead);
  if (!view) return view.error();
  Range range(*view, file_size());
  return std::make_shared<SharedEvent>(std::move(file), std::move(range), writable);
}

Result<std::shared_ptr<SharedEvent>> SharedEvent::create(Steps& steps, const DeviceUuid& device,
                                                         bool recorded_here) {
  GPUMEM_TRY(steps.take("memfd_create"));
  if (recorded_here) {
    GPUMEM_TRY(steps.take("mmap"));
    auto made = platform::published_file(file_size(), file_name(device).text);
    if (!made) return made.error();
    const platform::Descriptor published(made->file_descriptor);
    Range view(made->view, file_size());
    auto file = platform::reopen(published.get(), true);  // for the locks
    if (!file) return file.error();
    auto event = std::make_shared<SharedEvent>(std::move(*file), std::move(view), true);
    // Before anybody else can take all. Where this fails, recording will say why.
    (void)event->take_recorder(std::lock_guard(event->mutex_));
    return event;
  }
  auto file = platform::memory_file(file_size(), file_name(device).text);
  if (!file) return file.error();
  return map(steps, platform::Descriptor(*file));
}

Result<std::shared_ptr<SharedEvent>> SharedEvent::open(Steps& steps, const DeviceUuid& device,
                                                       int file_descriptor) {
  const platform::DescriptorFacts known = platform::describe(file_descriptor);
  if (!known.open) return not_an_event(file_descriptor, "is not open");
  if (!known.sealed || known.size != file_size() || std::strncmp(known.name, "gpumem-event-", 13) != 0)
    return not_an_event(file_descriptor, "is not of an event");
  if (std::strcmp(known.name, file_name(device).text) != 0)
    return not_an_event(file_descriptor, "is of an event of another device");
  GPUMEM_TRY(steps.take("open"));
  auto file = platform::reopen(file_descriptor, true);
  if (!file) return file.error();
  return map(steps, std::move(*file));
}

// ---- records of this instance ----

// What was recorded is complete.
bool SharedEvent::all_complete(const Recorder& recorder) const {
  const uint64_t recorded = recorder.recorded & kNumberMask;
  const uint64_t first = recorded - std::min(recorded, kLanes);
  for (uint64_t number = first + 1; number <= recorded; ++number) {
    if (recorder.lanes.at(number % kLanes) < number) return false;
  }
  return true;
}

// The lock is the claim; whoever had it before has ended, or has no record pending.
Result<void> SharedEvent::take_recorder(const std::lock_guard<std::mutex>& /*held*/) {
  if (recorder_.load() >= 0) return {};
  if (!writable_)
    return make_error(GPUMEM_ERROR_NO_ACCESS, "only the process that made the event records it");
  auto began = platform::own_start_time();
  if (!began) return began.error();
  process_ = {platform::process_namespace(), static_cast<uint64_t>(platform::process_id()), *began};
  uint32_t index = kRecorders;
  // One with records that never completed shows that to those who wait, so it is taken last.
  for (uint32_t place = 0; place < 2 * kRecorders && index == kRecorders; ++place) {
    const uint32_t candidate = place % kRecorders;
    if (place < kRecorders && !all_complete(page_.recorders.at(candidate))) continue;
    auto locked = platform::lock_byte(file_.get(), candidate);
    if (!locked) return locked.error();
    if (*locked) index = candidate;
  }
  if (index == kRecorders) {
    return make_error(GPUMEM_ERROR_LIMIT_EXCEEDED,
                      "%u instances record the event already; use an event for each, and wait for all",
                      kRecorders);
  }
  Recorder& recorder = page_.recorders.at(index);
  first_ = last_ = recorder.recorded & (kNumberMask >> 1);  // whatever it is, as many again are left
  for (std::atomic<uint64_t>& lane : recorder.lanes)
    lane = last_;
  recorder_ = static_cast<int32_t>(index);
  tell_process();
  ++page_.changes;
  platform::wake_all(page_.changes);
  return {};
}

void SharedEvent::tell_process() noexcept {
  Recorder& recorder = own();
  recorder.process_namespace.store(process_.process_namespace, std::memory_order_relaxed);
  recorder.process.store(process_.number, std::memory_order_relaxed);
  recorder.start_time.store(process_.start_time, std::memory_order_relaxed);
}

Result<std::shared_ptr<SharedEvent::Record>> SharedEvent::record() {
  const std::lock_guard lock(mutex_);
  GPUMEM_TRY(take_recorder(lock));
  pending_.reserve(pending_.size() + 1);  // completing a record must not fail
  const uint64_t word = own_word(last_ + 1);
  // Somebody else who has it says the same.
  if (auto locked = platform::lock_byte(file_.get(), word); !locked) return locked.error();
  Cleanup unlock([&] { platform::unlock_byte(file_.get(), word); });
  auto record = std::make_shared<Record>(shared_from_this(), last_ + 1);
  unlock.dismiss();
  pending_.push_back(++last_);
  tell_process();  // another one may have written that it has ended
  own().recorded = last_;
  return record;
}

void SharedEvent::publish(uint64_t number) {
  // Only another process can have written that it is complete.
  if (own().lanes.at(number % kLanes) >= number) [[unlikely]] {
    const std::lock_guard lock(mutex_);
    tell_complete(number % kLanes);
  }
  page_.latest = own_word(number);
}

void SharedEvent::complete(uint64_t number) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase(pending_, number);
  tell_complete(number % kLanes);
  // Another process may have written more.
  own().recorded = last_;
  platform::unlock_byte(file_.get(), own_word(number));
  ++page_.changes;
  platform::wake_all(page_.changes);
}

// How far the records of the lane are complete. Requires mutex_.
void SharedEvent::tell_complete(uint64_t lane) noexcept {
  uint64_t complete = last_ - (last_ - lane) % kLanes;  // the highest number of the lane
  for (const uint64_t other : pending_) {
    if (other % kLanes == lane) complete = std::min(complete, other - std::min(other, kLanes));
  }
  own().lanes.at(lane) = std::max(complete, first_);
}

// ---- records of others ----

SharedEvent::Point SharedEvent::latest() const {
  const uint64_t word = page_.latest;
  Point point{static_cast<uint32_t>(word & kNoRecorder), word >> kRecorderBits & kNumberMask};
  if (point.recorder == kNoRecorder) return {};
  // A record that nobody made would never be complete.
  point.number = std::min<uint64_t>(point.number, page_.recorders.at(point.recorder).recorded);
  return point;
}

bool SharedEvent::reached(const Point& point) const {
  return page_.recorders.at(point.recorder).lanes.at(point.number % kLanes) >= point.number;
}

bool SharedEvent::lives(const Point& point) const {
  if (!platform::is_byte_locked(file_.get(), point.recorder)) return false;
  const Recorder& recorder = page_.recorders.at(point.recorder);
  // Another namespace counts differently.
  const uint64_t own_namespace = platform::process_namespace();
  if (own_namespace == 0 || recorder.process_namespace != own_namespace) return true;
  return platform::process_lives(static_cast<int32_t>(recorder.process.load()), recorder.start_time);
}

bool SharedEvent::awaited(const Point& point) const {
  return lives(point) && platform::is_byte_locked(file_.get(), word_of(point.recorder, point.number));
}

Result<void> SharedEvent::Wait::outcome() const {
  if (is_complete() || event_->lives(point_)) return {};
  return make_error(GPUMEM_ERROR_PEER_GONE,
                    "the process that recorded the event ended before the work was complete; destroy the "
                    "event, or record it again");
}

bool SharedEvent::Wait::over_within(std::chrono::nanoseconds longest) {
  const Page& page = event_->page_;
  const uint32_t seen = page.changes;
  if (event_->reached(point_)) return true;
  // Before the wait: the recorder may have ended while this was queued behind other waits for it.
  const auto now = std::chrono::steady_clock::now();
  if (now - looked_ >= kLookEvery) {
    looked_ = now;
    if (!event_->awaited(point_)) return true;
  }
  platform::wait_for_change(page.changes, seen, std::min<std::chrono::nanoseconds>(longest, kLookEvery));
  return event_->reached(point_);
}

}  // namespace gpumem::host
