// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The part of an event that several processes have: pages of a memory file that say which record is the
// latest, and which records are complete. What is in them may be wrong in any way: it is compared, and
// nothing else.
//
// Each instance that records the event takes one of the recorders in it, and numbers its records. A recorder
// is taken by a lock on a byte of the file, which the system gives back when its process ends: then those of
// its records that are not complete never will be. Each record that is not complete locks a byte of its own:
// whatever somebody else writes, nobody waits for a record that is complete, or that nobody made.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "backends/host/range.h"
#include "backends/host/steps.h"
#include "base/result.h"
#include "platform/descriptor.h"

namespace gpumem::host {

using DeviceUuid = std::array<uint8_t, 16>;

class SharedEvent : public std::enable_shared_from_this<SharedEvent> {
 public:
  // `recorded_here`: nobody else can write its page (from Linux 5.1 on).
  static Result<std::shared_ptr<SharedEvent>> create(Steps& steps, const DeviceUuid& device,
                                                     bool recorded_here = false);
  // INVALID_ARGUMENT unless the descriptor is of an event of this device. It stays the caller's.
  static Result<std::shared_ptr<SharedEvent>> open(Steps& steps, const DeviceUuid& device,
                                                   int file_descriptor);
  // The public ones are create() and open().
  SharedEvent(platform::Descriptor file, Range view, bool writable);
  SharedEvent(const SharedEvent&) = delete;
  SharedEvent& operator=(const SharedEvent&) = delete;

  // For another process. It shares no locks with this one.
  Result<platform::Descriptor> open_file() const { return platform::reopen(file_.get(), true); }

  // A record of this instance. It is complete when its last owner is gone, whether it ran or not.
  class Record {
   public:
    Record(std::shared_ptr<SharedEvent> event, uint64_t number) : event_(std::move(event)), number_(number) {}
    Record(const Record&) = delete;
    Record& operator=(const Record&) = delete;
    ~Record() { event_->complete(number_); }
    // Makes it the latest.
    void publish() const { event_->publish(number_); }

   private:
    const std::shared_ptr<SharedEvent> event_;
    const uint64_t number_;
  };
  // LIMIT_EXCEEDED if too many instances record the event, NO_ACCESS if only another one does.
  Result<std::shared_ptr<Record>> record();

  // A record, in whichever process.
  struct Point {
    uint32_t recorder = 0;
    uint64_t number = 0;  // 0: the event was never recorded
  };
  Point latest() const;
  bool is_own(const Point& point) const { return recorder_.load() == static_cast<int32_t>(point.recorder); }

  // How often a waiter looks whether the recording process lives.
  static constexpr std::chrono::milliseconds kLookEvery{100};
  // Waits for a record of another instance.
  class Wait {
   public:
    Wait(std::shared_ptr<const SharedEvent> event, const Point& point)
        : event_(std::move(event)), point_(point), looked_(std::chrono::steady_clock::now()) {}
    bool is_complete() const { return event_->reached(point_); }
    // Nothing more is to come.
    bool is_over() const { return is_complete() || !event_->awaited(point_); }
    // Once it is over: PEER_GONE if the recording process ended before. One that lives and has no record
    // pending never made this one.
    Result<void> outcome() const;
    // Blocks for at most that time, and may return early.
    bool over_within(std::chrono::nanoseconds longest);

   private:
    std::shared_ptr<const SharedEvent> event_;
    Point point_;
    std::chrono::steady_clock::time_point looked_;
  };

 private:
  static constexpr uint32_t kRecorders = 63;
  static constexpr uint64_t kLanes = 12;
  static constexpr uint32_t kRecorderBits = 6;
  static constexpr uint32_t kNoRecorder = 63;  // a value of the bits that names none
  // A word is an offset in the file.
  static constexpr uint64_t kNumberMask = INT64_MAX >> kRecorderBits;

  struct Recorder {
    // The process that has it: with these, its end is seen even if a forked child keeps the lock.
    std::atomic<uint64_t> process_namespace;
    std::atomic<uint64_t> process;
    std::atomic<uint64_t> start_time;
    std::atomic<uint64_t> recorded;  // no record has a higher number
    // Record n is complete if lane n % kLanes is at least n: streams complete their records in any order.
    std::array<std::atomic<uint64_t>, kLanes> lanes;
  };
  struct ThisProcess {
    uint64_t process_namespace = 0;
    uint64_t number = 0;
    uint64_t start_time = 0;
  };
  // Zeros are an event that was never recorded.
  struct Page {
    std::atomic<uint64_t> latest;   // the word of the record
    std::atomic<uint32_t> changes;  // for waiters: a record is complete
    alignas(128) std::array<Recorder, kRecorders> recorders;
  };

  // As the latest record is written. It is also the byte that is locked while the record is pending; those
  // below are of the recorders, since numbers begin with 1.
  static uint64_t word_of(uint32_t recorder, uint64_t number) { return number << kRecorderBits | recorder; }
  uint64_t own_word(uint64_t number) const {
    return word_of(static_cast<uint32_t>(recorder_.load()), number);
  }
  static uint64_t file_size();
  static Result<std::shared_ptr<SharedEvent>> map(Steps& steps, platform::Descriptor file);
  Result<void> take_recorder(const std::lock_guard<std::mutex>& held);
  void tell_process() noexcept;
  // Once it has been taken.
  Recorder& own() { return page_.recorders.at(static_cast<size_t>(recorder_.load())); }
  void publish(uint64_t number);
  void complete(uint64_t number) noexcept;
  void tell_complete(uint64_t lane) noexcept;
  bool reached(const Point& point) const;
  bool lives(const Point& point) const;
  // Whether its recorder lives, and has not said by the lock that it is complete.
  bool awaited(const Point& point) const;
  bool all_complete(const Recorder& recorder) const;

  const platform::OwnDescriptor file_;  // shared with nobody, for the sake of the locks
  const Range view_;
  const bool writable_;  // else another instance alone records it
  Page& page_;
  std::atomic<int32_t> recorder_{-1};  // of this instance, once it has recorded

  std::mutex mutex_;               // guards the rest
  ThisProcess process_;            // once it has a recorder
  uint64_t first_ = 0;             // all up to here were the records of whoever had the recorder before
  uint64_t last_ = 0;              // the highest number of a record
  std::vector<uint64_t> pending_;  // records that are not complete
};

}  // namespace gpumem::host
