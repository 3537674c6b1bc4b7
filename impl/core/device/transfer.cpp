// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/device/transfer.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstring>
#include <exception>
#include <new>

#include "base/arithmetic.h"
#include "base/caught.h"
#include "core/object/context.h"
#include "core/object/log.h"
#include "platform/host_budget.h"
#include "platform/numa.h"
#include "platform/pages.h"
#include "platform/thread.h"

namespace gpumem::core {

namespace {

constexpr uint32_t kMostSlots = 4;
constexpr uint32_t kMostWorkers = 63;
constexpr auto kRetryPause = std::chrono::seconds(1);  // before something that failed is tried again
constexpr auto kSpin = std::chrono::microseconds(50);  // of a caller for the last piece, before it sleeps

}  // namespace

Result<void> check_rows(const void* first, uint64_t pitch, uint64_t width, uint64_t height, bool write) {
  const void* const denied = platform::find_denied_row(first, pitch, width, height, write);
  if (denied == nullptr) return {};
  return make_error(GPUMEM_ERROR_INVALID_STATE,
                    "a page of the %" PRIu64 " bytes of ordinary memory at %p cannot be %s", width, denied,
                    write ? "written" : "read");
}

// ---- what a copy is made of ----

struct Transfer::Slot {
  backend::Span span;
  std::shared_ptr<backend::Event> passed;  // recorded behind the slot's copy
  bool busy = false;                       // the device may use it
  uint64_t piece = 0;
};

struct Transfer::Lane {
  std::unique_ptr<backend::Memory> memory;
  std::shared_ptr<backend::Stream> stream;
  std::array<Slot, kMostSlots> slots;
  uint64_t charged = 0;
  bool open = false;
};

struct Transfer::Worker {
  std::thread thread;
  Lane lane;
  bool running = false;
  bool busy = false;
};

// Rows of the box, or a part of one row.
struct Piece {
  uint64_t slice;
  uint64_t row;
  uint64_t column;
  uint64_t width;
  uint64_t rows;

  backend::Span of(const backend::Span& span, uint64_t pitch, uint64_t slice_pitch) const {
    return span.after(slice * slice_pitch + row * pitch + column);
  }
};

struct Transfer::Job {
  Job(const TransferBox& of, uint64_t most, const FileBox* file_box = nullptr)
      : box(of),
        file(file_box),
        to_device(file_box != nullptr ? file_box->to_memory : of.destination.on_device),
        caller(std::this_thread::get_id()) {
    if (box.width >= most) {
      columns = (box.width + most - 1) / most;
      column_width = most;
      of_slice = columns * box.height;
    } else {
      rows = std::min(box.height, most / box.width);
      of_slice = (box.height + rows - 1) / rows;
    }
    pieces = of_slice * box.depth;
    if (file != nullptr) landed.resize(pieces);
  }

  // False if none is left.
  bool take(uint64_t* number) {
    if (failed.load(std::memory_order_relaxed)) return false;
    *number = next.fetch_add(1, std::memory_order_relaxed);
    return *number < pieces;
  }
  bool is_taken() const {
    return next.load(std::memory_order_relaxed) >= pieces || failed.load(std::memory_order_relaxed);
  }
  Piece piece(uint64_t number) const {
    const uint64_t slice = number / of_slice;
    const uint64_t within = number % of_slice;
    if (columns > 1) {
      const uint64_t column = within % columns * column_width;
      return {slice, within / columns, column, std::min(column_width, box.width - column), 1};
    }
    const uint64_t row = within * rows;
    return {slice, row, 0, box.width, std::min(rows, box.height - row)};
  }
  void fail(const Error& error) {
    const std::lock_guard lock(failure_mutex);
    if (!failure) failure.emplace(error);
    failed.store(true, std::memory_order_relaxed);
  }

  // Reports progress; only on the caller's thread. A failure ends the copy, but not the pieces in flight.
  void tell_if_due() {
    if (file == nullptr || std::this_thread::get_id() != caller) return;
    if (failed.load(std::memory_order_relaxed) || !file->progress->due()) return;
    Result<void> told;
    try {
      told = file->progress->tell();
    } catch (...) {
      told = caught_failure();
    }
    if (!told) fail(told.error());
  }
  bool in_place() const { return file != nullptr && file->view != nullptr; }
  bool is_to_tell() const {
    return file != nullptr && !failed.load(std::memory_order_relaxed) && file->progress->due();
  }
  Result<void> read(const Piece& piece, void* to, uint64_t room) const {
    return file->file->read(file->offset + piece.column, to, piece.width, room);
  }
  Result<void> write(const Piece& piece, const void* from) const {
    return file->file->write(file->offset + piece.column, from, piece.width);
  }
  uint64_t copied() const {
    uint64_t bytes = 0;
    for (uint64_t number = 0; number < pieces && landed[number] != 0; ++number)
      bytes += piece(number).width;
    return bytes;
  }

  const TransferBox& box;
  const FileBox* const file;  // instead of ordinary memory; the box is then a row
  const bool to_device;
  const std::thread::id caller;
  std::vector<uint8_t> landed;  // of a file: which pieces were copied
  uint64_t columns = 1;         // of a row that is several pieces
  uint64_t column_width = 0;
  uint64_t rows = 1;  // of a piece that is several rows
  uint64_t of_slice = 0;
  uint64_t pieces = 0;
  std::atomic<uint64_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex failure_mutex;
  std::optional<Error> failure;
  // Guarded by the mutex of the whole; the number of those at work can be read without.
  uint32_t wanted = 0;  // workers that may still join
  std::atomic<uint32_t> working{0};
  Job* behind = nullptr;
};

// ---- the copying threads ----

Result<void> Transfer::open(Lane& lane) {
  const uint64_t size = tuning_.slot * tuning_.slots;
  GPUMEM_TRY(context_.charge_pinned(size));
  lane.charged = size;
  backend::MemoryRequest request;
  request.sort = backend::MemorySort::kPinned;
  request.size = size;
  auto memory = device_.create_memory(request);
  if (!memory) return memory.error();
  lane.memory = std::move(*memory);
  {
    const std::lock_guard lock(mutex_);
    const size_t number = open_lanes_ % tuning_.streams;
    if (streams_.size() <= number) {
      streams_.reserve(number + 1);
      auto stream = device_.create_stream(0);
      if (!stream) return stream.error();
      streams_.push_back(std::move(*stream));
    }
    lane.stream = streams_[std::min(number, streams_.size() - 1)];
    ++open_lanes_;
    lane.open = true;
  }
  for (uint32_t i = 0; i < tuning_.slots; ++i) {
    Slot& slot = lane.slots.at(i);
    auto event = device_.create_event(GPUMEM_EVENT_DISABLE_TIMING);
    if (!event) return event.error();
    slot.passed = std::move(*event);
    slot.busy = false;
    slot.span = {};
    slot.span.memory = lane.memory.get();
    slot.span.offset = i * tuning_.slot;
    slot.span.address = pointer_to(address_of(lane.memory->facts().host_pointer) + i * tuning_.slot);
  }
  return {};
}

// Needs the lock.
void Transfer::close(Lane& lane) noexcept {
  const auto note = [](const Result<void>& done) {
    if (!done) log(GPUMEM_LOG_ERROR, "memory for copies could not be freed: %s", done.error().message);
  };
  for (Slot& slot : lane.slots) {
    if (slot.passed != nullptr) note(slot.passed->release());
    slot = {};
  }
  if (lane.memory != nullptr) note(lane.memory->release());
  lane.memory.reset();
  lane.stream.reset();
  context_.refund_pinned(lane.charged);
  lane.charged = 0;
  if (lane.open) --open_lanes_;
  lane.open = false;
  if (open_lanes_ != 0) return;
  for (const auto& stream : streams_)
    note(stream->release());
  streams_.clear();
}

namespace {

void move_rows(bool to_slot, void* slot, const backend::Span& ordinary, uint64_t pitch, const Piece& piece) {
  const bool one = piece.rows == 1 || pitch == piece.width;
  const uint64_t width = one ? piece.width * piece.rows : piece.width;
  for (uint64_t row = 0; row < (one ? 1 : piece.rows); ++row) {
    void* const here = pointer_to(address_of(slot) + row * width);
    void* const there = ordinary.after(row * pitch).address;
    std::memcpy(to_slot ? here : there, to_slot ? there : here, width);
  }
}

// The device's part of a piece: between its memory and a slot.
backend::CopySegment segment_of(bool to_device, const backend::Span& slot, const backend::Span& on_device,
                                uint64_t pitch, const Piece& piece) {
  const bool one = piece.rows == 1 || pitch == piece.width;
  backend::CopySegment segment;
  segment.destination = to_device ? on_device : slot;
  segment.source = to_device ? slot : on_device;
  segment.width = one ? piece.width * piece.rows : piece.width;
  segment.height = one ? 1 : piece.rows;
  segment.destination_pitch = to_device ? pitch : piece.width;
  segment.source_pitch = to_device ? piece.width : pitch;
  return segment;
}

// Waits until the device has passed the slot, so that it can be used again.
Result<void> wait_for(backend::Event& passed) {
  auto waited = passed.synchronize(GPUMEM_TIMEOUT_INFINITE);
  if (!waited) return waited.error();
  return {};
}

}  // namespace

// Needs no lock. If progress is due, wakes the caller, who may be waiting for other threads.
void Transfer::landed(Job& job, uint64_t number) {
  if (job.file == nullptr) return;
  job.landed[number] = 1;
  if (!job.file->progress->add(job.piece(number).width)) return;
  const std::lock_guard lock(mutex_);
  done_.notify_all();
}

Result<void> Transfer::move_to_device(Job& job, Lane& lane) {
  const TransferBox& box = job.box;
  uint64_t number = 0;
  const auto pass = [&](Slot& slot) -> Result<void> {
    if (!slot.busy) return {};
    GPUMEM_TRY(wait_for(*slot.passed));
    slot.busy = false;
    landed(job, slot.piece);
    return {};
  };
  for (uint32_t turn = 0; job.take(&number); turn = (turn + 1) % tuning_.slots) {
    Slot& slot = lane.slots.at(turn);
    GPUMEM_TRY(pass(slot));
    const Piece piece = job.piece(number);
    const backend::Span to = piece.of(box.destination, box.destination_pitch, box.destination_slice);
    if (job.file != nullptr) {
      GPUMEM_TRY(job.read(piece, slot.span.address, tuning_.slot));
    } else {
      const backend::Span from = piece.of(box.source, box.source_pitch, box.source_slice);
      GPUMEM_TRY(check_rows(from.address, box.source_pitch, piece.width, piece.rows, false));
      move_rows(true, slot.span.address, from, box.source_pitch, piece);
    }
    const backend::CopySegment segment = segment_of(true, slot.span, to, box.destination_pitch, piece);
    slot.piece = number;
    slot.busy = true;
    GPUMEM_TRY(job.file != nullptr ? job.file->enqueue(*lane.stream, segment) : lane.stream->copy(segment));
    GPUMEM_TRY(slot.passed->record(*lane.stream));
    job.tell_if_due();
  }
  for (Slot& slot : lane.slots)
    GPUMEM_TRY(pass(slot));
  return {};
}

// Where the CPU has the memory, the system copies.
Result<void> Transfer::move_in_place(Job& job) {
  uint64_t number = 0;
  while (job.take(&number)) {
    const Piece piece = job.piece(number);
    void* const bytes = pointer_to(address_of(job.file->view) + piece.column);
    GPUMEM_TRY(job.to_device ? job.read(piece, bytes, piece.width) : job.write(piece, bytes));
    landed(job, number);
    job.tell_if_due();
  }
  return {};
}

Result<void> Transfer::move_to_host(Job& job, Lane& lane) {
  const TransferBox& box = job.box;
  uint64_t number = 0;
  uint32_t used = 0;
  // The oldest slot is emptied, and filled again at once.
  const auto fill = [&](Slot& slot) -> Result<bool> {
    if (!job.take(&number)) return false;
    const Piece piece = job.piece(number);
    const backend::Span from = piece.of(box.source, box.source_pitch, box.source_slice);
    slot.piece = number;
    slot.busy = true;
    ++used;
    const backend::CopySegment segment = segment_of(false, slot.span, from, box.source_pitch, piece);
    GPUMEM_TRY(job.file != nullptr ? job.file->enqueue(*lane.stream, segment) : lane.stream->copy(segment));
    GPUMEM_TRY(slot.passed->record(*lane.stream));
    return true;
  };
  for (uint32_t i = 0; i < tuning_.slots; ++i) {
    auto filled = fill(lane.slots.at(i));
    if (!filled) return filled.error();
    if (!*filled) break;
  }
  for (uint32_t turn = 0; used > 0; turn = (turn + 1) % tuning_.slots) {
    Slot& slot = lane.slots.at(turn);
    if (!slot.busy) continue;
    const Piece piece = job.piece(slot.piece);
    const backend::Span to = piece.of(box.destination, box.destination_pitch, box.destination_slice);
    if (job.file == nullptr)
      GPUMEM_TRY(check_rows(to.address, box.destination_pitch, piece.width, piece.rows, true));
    GPUMEM_TRY(wait_for(*slot.passed));
    slot.busy = false;
    --used;
    if (job.file != nullptr) {
      GPUMEM_TRY(job.write(piece, slot.span.address));
      landed(job, slot.piece);
      job.tell_if_due();
    } else {
      move_rows(false, slot.span.address, to, box.destination_pitch, piece);
    }
    auto filled = fill(slot);
    if (!filled) return filled.error();
  }
  return {};
}

bool Transfer::prepare(Lane& lane) {
  if (lane.open) return true;
  Result<void> opened;
  try {
    opened = open(lane);
  } catch (const std::bad_alloc&) {
    opened = make_error(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, "no memory for the records");
  }
  if (opened) return true;
  log(GPUMEM_LOG_DEBUG, "a thread has no page-locked memory to copy with: %s", opened.error().message);
  const std::lock_guard lock(mutex_);
  close(lane);
  next_try_ = Clock::now() + kRetryPause;
  return false;
}

bool Transfer::take_part(Job& job, Lane& lane) {
  if (!job.in_place() && !prepare(lane)) return false;
  Result<void> done;
  try {
    done = job.in_place()  ? move_in_place(job)
           : job.to_device ? move_to_device(job, lane)
                           : move_to_host(job, lane);
  } catch (const std::bad_alloc&) {
    done = make_error(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, "no memory to enqueue the copy");
  }
  if (done) return true;
  job.fail(done.error());
  // The device may still use the slots: wait before they are used again.
  auto idle = lane.stream != nullptr ? lane.stream->synchronize(GPUMEM_TIMEOUT_INFINITE) : Result<bool>(true);
  if (!idle) idle = lane.stream->synchronize(GPUMEM_TIMEOUT_INFINITE);
  if (idle) {
    for (Slot& slot : lane.slots)
      slot.busy = false;
  } else {
    const std::lock_guard lock(mutex_);
    close(lane);
  }
  return true;
}

// Needs the lock.
Transfer::Job* Transfer::find_job() {
  for (Job* job = first_; job != nullptr; job = job->behind) {
    if (job->wanted > 0 && !job->is_taken()) return job;
  }
  return nullptr;
}

// Each woken thread wakes two more, because one thread would need longer to wake all than some copies last.
void Transfer::wake_two(const Job& job) {
  for (uint32_t i = 0; i < std::min(job.wanted, 2U); ++i)
    wake_.notify_one();
}

void Transfer::run(Worker& worker) {
  platform::stay_on_node(device_.facts().numa_node);
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    Job* const job = find_job();
    if (job == nullptr) {
      const Clock::time_point end = last_use_ + tuning_.idle;
      if (first_ == nullptr && Clock::now() >= end) break;
      wake_.wait_until(lock, first_ == nullptr ? end : Clock::now() + tuning_.idle);
      continue;
    }
    --job->wanted;
    wake_two(*job);
    job->working.fetch_add(1, std::memory_order_relaxed);
    worker.busy = true;
    lock.unlock();
    const bool could = take_part(*job, worker.lane);
    lock.lock();
    worker.busy = false;
    last_use_ = Clock::now();
    if (!could) {
      ++job->wanted;  // for another one
      wake_.notify_all();
    }
    if (job->working.fetch_sub(1, std::memory_order_release) == 1) done_.notify_all();
    if (!could) break;
  }
  close(worker.lane);
  worker.running = false;
  --alive_;
  if (alive_ == 0 && !callers_taken_) close(*callers_);
  done_.notify_all();
}

// ---- starting and ending ----

Transfer::Transfer(Context& context, backend::Device& device, const TransferOptions& options,
                   const TransferTuning& tuning)
    : context_(context),
      device_(device),
      tuning_([&] {
        TransferTuning fitting = tuning;
        const uint64_t threads = options.threads != 0 ? options.threads : TransferTuning::kMostThreads;
        if (options.bytes != 0) {
          const uint64_t each = round_down(options.bytes / threads / tuning.slots, platform::page_size());
          fitting.slot = std::clamp(each, std::min(tuning.piece, tuning.slot), tuning.slot);
        }
        return fitting;
      }()),
      at_once_(options.threads != 0),
      least_to_device_(tuning.least_to_device),
      least_to_host_(tuning.least_to_host) {
  const bool stages = device.facts().stages_ordinary;
  if (options.threads != TransferOptions::kOff) {
    const uint32_t most = std::min(kMostWorkers, TransferTuning::kMostThreads);
    threads_ = at_once_ ? std::min(options.threads, kMostWorkers)
                        : std::min(most, platform::allowed_processors(device.facts().numa_node));
    if (options.bytes != 0) {
      const uint64_t lanes = options.bytes / (tuning_.slot * tuning_.slots);
      threads_ = static_cast<uint32_t>(std::min<uint64_t>(threads_, lanes));
    }
  }
  if (!stages || threads_ == 0 || (!at_once_ && threads_ < tuning.least_threads_to_device))
    least_to_device_ = UINT64_MAX;
  if (!stages || threads_ == 0 || (!at_once_ && threads_ < tuning.least_threads_to_host))
    least_to_host_ = UINT64_MAX;
}

Transfer::~Transfer() { stop(); }

// Needs the lock, as all that follows.
bool Transfer::prepare() {
  if (prepared_) return true;
  try {
    callers_ = std::make_unique<Lane>();
    const uint32_t workers = std::max(threads_ - 1, 1U);
    workers_.reserve(workers);
    while (workers_.size() < workers)
      workers_.push_back(std::make_unique<Worker>());
  } catch (const std::bad_alloc&) {
    workers_.clear();
    return false;
  }
  return prepared_ = true;
}

// A program that copies little needs neither the threads nor the memory.
bool Transfer::worth_starting(uint64_t bytes) {
  if (at_once_ || alive_ != 0) return true;
  return seen_.fetch_add(bytes, std::memory_order_relaxed) + bytes >= tuning_.least_to_start;
}

void Transfer::start_workers(uint32_t count) {
  for (const auto& worker : workers_) {
    if (count == 0) return;
    --count;
    if (worker->running) continue;
    if (Clock::now() < next_try_) return;
    if (worker->thread.joinable()) worker->thread.join();
    try {
      worker->running = true;
      ++alive_;
      worker->thread = platform::start_thread([this, each = worker.get()] { run(*each); });
    } catch (const std::exception&) {
      worker->running = false;
      --alive_;
      next_try_ = Clock::now() + kRetryPause;
      return;
    }
  }
}

uint64_t Transfer::most_of(uint64_t bytes) const {
  const uint64_t share = bytes / (uint64_t{2} * threads_) + 1;
  return std::min(std::max(tuning_.piece, round_up(share, platform::page_size())), tuning_.slot);
}

Result<bool> Transfer::copy(const TransferBox& box) {
  const uint64_t bytes = box.bytes();
  Job job(box, most_of(bytes));
  return run_job(job, bytes);
}

Result<bool> Transfer::copy_file(const FileBox& box, uint64_t* copied) {
  TransferBox row;
  (box.to_memory ? row.destination : row.source) = box.memory;
  row.width = box.size;
  Job job(row, most_of(box.size), &box);
  auto done = run_job(job, box.size);
  *copied = job.copied();
  return done;
}

// Pages that a control group has no room for get the process killed.
bool Transfer::has_room(uint32_t lanes) {
  if (lanes <= open_lanes_) return true;
  const uint64_t size = (lanes - open_lanes_) * tuning_.slot * tuning_.slots;
  Result<void> fits;
  try {
    fits = platform::check_host_budget(size, tuning_.limits_root);
  } catch (const std::bad_alloc&) {
    fits = make_error(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, "no memory to read the limits");
  }
  if (!fits) log(GPUMEM_LOG_DEBUG, "no page-locked memory to copy with: %s", fits.error().message);
  return fits.ok();
}

Result<bool> Transfer::run_job(Job& job, uint64_t bytes) {
  std::unique_lock lock(mutex_);
  if (stopping_ || !prepare() || !worth_starting(bytes)) return false;
  const bool alone = threads_ == 1;
  const uint64_t worth = std::max<uint64_t>(tuning_.few, bytes / tuning_.each);
  const auto wanted = static_cast<uint32_t>(std::min({uint64_t{threads_}, worth, job.pieces}));
  if (!job.in_place() && !has_room(wanted)) return false;
  const bool own = !alone && !callers_taken_;
  last_use_ = Clock::now();
  start_workers(std::max(own ? wanted - 1 : wanted, 1U));
  if (alive_ == 0) return false;  // one thread is no faster than the driver
  callers_taken_ = callers_taken_ || own;
  job.wanted = own ? wanted - 1 : wanted;
  Job** last = &first_;
  while (*last != nullptr)
    last = &(*last)->behind;
  *last = &job;
  wake_two(job);
  if (own) {
    lock.unlock();
    const bool could = take_part(job, *callers_);
    const auto limit = Clock::now() + kSpin;
    while (job.working.load(std::memory_order_acquire) != 0 && Clock::now() < limit)
      platform::pause_briefly();
    lock.lock();
    callers_taken_ = false;
    if (!could) {
      ++job.wanted;
      wake_.notify_all();
    }
  }
  const auto is_over = [&] {
    return job.working.load(std::memory_order_acquire) == 0 && (job.is_taken() || alive_ == 0);
  };
  for (;;) {
    done_.wait(lock, [&] { return is_over() || job.is_to_tell(); });
    if (is_over()) break;
    lock.unlock();
    job.tell_if_due();
    lock.lock();
  }
  for (Job** link = &first_; *link != nullptr; link = &(*link)->behind) {
    if (*link != &job) continue;
    *link = job.behind;
    break;
  }
  last_use_ = Clock::now();
  if (alive_ == 0 && !callers_taken_) close(*callers_);
  if (job.failure) return *job.failure;
  if (!job.is_taken()) return false;  // nobody had slots
  copied_.fetch_add(bytes, std::memory_order_relaxed);
  return true;
}

bool Transfer::close_all() noexcept {
  const bool any = open_lanes_ != 0;
  for (const auto& worker : workers_)
    close(worker->lane);
  if (callers_ != nullptr) close(*callers_);
  return any;
}

bool Transfer::flush() noexcept {
  const std::lock_guard lock(mutex_);
  const bool busy =
      first_ != nullptr || callers_taken_ ||
      std::any_of(workers_.begin(), workers_.end(), [](const auto& each) { return each->busy; });
  return !busy && close_all();
}

void Transfer::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_all();
  }
  for (const auto& worker : workers_) {
    if (worker->thread.joinable()) worker->thread.join();
  }
  const std::lock_guard lock(mutex_);
  (void)close_all();
}

uint32_t Transfer::running_threads() {
  const std::lock_guard lock(mutex_);
  return alive_;
}

uint64_t Transfer::locked_bytes() {
  const std::lock_guard lock(mutex_);
  return open_lanes_ * tuning_.slot * tuning_.slots;
}

}  // namespace gpumem::core
