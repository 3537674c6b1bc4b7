// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Copies content in pieces, several at a time, while releasing the memory of finished buffers or creating
// that of later ones.
#include "core/buffer/sleep.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <optional>
#include <utility>

#include "base/arithmetic.h"
#include "base/caught.h"
#include "base/cleanup.h"
#include "core/buffer/piece_maker.h"
#include "core/copy/copy.h"
#include "core/device/borrowed_streams.h"
#include "core/memory/memory.h"
#include "core/object/abandoned.h"
#include "core/object/background.h"
#include "core/object/callback.h"
#include "core/object/context.h"
#include "core/object/held.h"
#include "platform/pages.h"

namespace gpumem::core {
namespace {

// Turns an exception into a status, so that its caller can undo what was done.
template <class Work>
Result<void> without_exceptions(Work work) {
  try {
    return work();
  } catch (...) {
    return caught_failure();
  }
}

// The failure of one buffer of many.
Error in_buffer(const Buffer& buffer, const Error& failure) {
  if (buffer.name().empty() && buffer.tag().empty()) return failure;
  return reworded(failure, "buffer %s%s%s: %s", buffer.name().c_str(),
                  buffer.name().empty() || buffer.tag().empty() ? "" : ", ", buffer.tag().c_str(),
                  failure.message);
}
Result<void> in_buffer(const Buffer& buffer, const Result<void>& done) {
  return done ? done : Result<void>(in_buffer(buffer, done.error()));
}

Result<void> all_usable(const std::vector<Device*>& devices) {
  for (const Device* const device : devices)
    GPUMEM_TRY(device->usable());
  return {};
}

// The buffers of one call, and who may change them meanwhile: only this call.
class Members {
 public:
  // Of many, only those that are asleep, or not, as `wanted` says; with `holders` also those that hold their
  // memory asleep.
  Result<void> take(const std::vector<Ref<Buffer>>& buffers, bool many, bool wanted, bool holders = false) {
    changes_.reserve(buffers.size());
    buffers_.reserve(buffers.size());
    for (const Ref<Buffer>& buffer : buffers) {
      auto change = buffer->begin_change();
      if (!change) {
        if (many && change.error().status == GPUMEM_ERROR_STALE_HANDLE) continue;  // destroyed meanwhile
        return change.error();
      }
      const bool fits = buffer->asleep() == wanted || (holders && buffer->holds_memory());
      if (many && !fits) continue;
      GPUMEM_TRY(all_usable(buffer->users()));
      if (!fits) {
        return make_error(GPUMEM_ERROR_INVALID_STATE,
                          wanted ? "the buffer is awake already; use it as it is"
                                 : "the buffer is asleep; call gpumem_buffer_wake() first");
      }
      changes_.push_back(std::move(*change));
      buffers_.push_back(buffer.get());
    }
    return {};
  }
  const std::vector<Buffer*>& buffers() const { return buffers_; }

 private:
  std::vector<Buffer::Change> changes_;
  std::vector<Buffer*> buffers_;
};

// Tells the caller how far the call is.
class Counter {
 public:
  Counter(const Progress& progress, const std::vector<Buffer*>& buffers) : progress_(progress) {
    for (const Buffer* const buffer : buffers)
      total_ += buffer->size();
  }
  // CANCELLED if the caller wants that; not once all is done.
  Result<void> add(uint64_t bytes) {
    done_ += bytes;
    if (progress_.function == nullptr || total_ == 0) return {};
    const int32_t answer = [&] {
      const Callback mark;
      return progress_.function(progress_.user_data, done_, total_);
    }();
    if (answer == 0 || (done_ == total_ && bytes != 0)) return {};
    return make_error(GPUMEM_ERROR_CANCELLED,
                      "the progress function ended the call at %" PRIu64 " of %" PRIu64 " bytes", done_,
                      total_);
  }

 private:
  const Progress& progress_;
  uint64_t done_ = 0;
  uint64_t total_ = 0;
};

// Carries pieces of content between buffers and their stores.
class Mover {
 public:
  enum class Way { kSave, kLoad };
  // Of stores that are short of pieces, the maker has them in the order in which they are carried.
  Mover(Context& context, Way way, PieceMaker* maker = nullptr)
      : context_(context), way_(way), maker_(maker) {}
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;
  ~Mover() { drop_staging(); }

  // Calls `passed` with the bytes of each piece, in order, once they have arrived: those of this buffer and
  // of earlier ones.
  template <class F>
  Result<void> carry(Buffer& buffer, F passed) {
    Store& store = buffer.store();
    if (store.in_file()) return carry_file(buffer, passed);
    uint64_t offset = 0;
    for (size_t i = 0; offset < buffer.size(); ++i) {
      if (maker_ != nullptr && i == store.pieces().size())
        GPUMEM_TRY(in_buffer(buffer, maker_->add_to(store)));
      const Store::Piece piece = store.pieces().at(i);
      const uint64_t bytes = std::min(piece.size, buffer.size() - offset);
      if (in_flight_ == kLanes) GPUMEM_TRY(land(passed));
      void* const there = pointer_behind(buffer.base(), offset);
      const size_t place = (first_ + in_flight_++) % kLanes;
      BorrowedStreams& lane = lanes_.at(place);
      flights_.at(place) = {&buffer, bytes, offset + bytes == buffer.size()};
      GPUMEM_TRY(copy_later(context_, lane,
                            way_ == Way::kSave ? copy_of_bytes(piece.bytes, there, bytes, true)
                                               : copy_of_bytes(there, piece.bytes, bytes, true)));
      offset += bytes;
    }
    return {};
  }

  template <class F>
  Result<void> finish(F passed) {
    while (in_flight_ != 0)
      GPUMEM_TRY(land(passed));
    return {};
  }

  Result<void> wait_for_all() {
    in_flight_ = 0;
    Result<void> result;
    for (BorrowedStreams& lane : lanes_) {
      auto complete = lane.synchronize();
      if (!complete && result) result = complete;
    }
    return result;
  }

 private:
  static constexpr size_t kLanes = 4;
  static constexpr uint64_t kStaging = uint64_t{16} << 20;

  // A piece whose copy was enqueued.
  struct Flight {
    Buffer* buffer = nullptr;
    uint64_t bytes = 0;
    bool last = false;  // of the buffer
  };

  template <class F>
  Result<void> land(F passed) {
    const size_t place = first_;
    first_ = (first_ + 1) % kLanes;
    --in_flight_;
    GPUMEM_TRY(lanes_.at(place).synchronize());
    const Flight& landed = flights_.at(place);
    return passed(*landed.buffer, landed.bytes, landed.last);
  }

  template <class F>
  Result<void> carry_file(Buffer& buffer, F passed) {
    GPUMEM_TRY(finish(passed));
    GPUMEM_TRY(make_staging(buffer));
    for (uint64_t offset = 0; offset < buffer.size();) {
      const uint64_t bytes = std::min(staging_size_, buffer.size() - offset);
      void* const there = pointer_behind(buffer.base(), offset);
      if (way_ == Way::kSave) {
        GPUMEM_TRY(copy(context_, nullptr, copy_of_bytes(staging_bytes_, there, bytes, true)));
        GPUMEM_TRY(in_buffer(buffer, buffer.store().write(offset, staging_bytes_, bytes)));
      } else {
        GPUMEM_TRY(in_buffer(buffer, buffer.store().read(offset, staging_bytes_, bytes)));
        GPUMEM_TRY(copy(context_, nullptr, copy_of_bytes(there, staging_bytes_, bytes, true)));
      }
      offset += bytes;
      GPUMEM_TRY(passed(buffer, bytes, offset == buffer.size()));
    }
    return {};
  }

  Result<void> make_staging(const Buffer& buffer) {
    const uint64_t size = std::min(round_up(buffer.size(), platform::page_size()), kStaging);
    if (size <= staging_size_) return {};
    drop_staging();
    auto root = held<DeviceObject>(buffer.device().handle());
    if (!root) return root.error();
    backend::MemoryRequest request;
    request.size = size;
    request.require = GPUMEM_MEMORY_PORTABLE;
    auto made = create_memory(**root, kinds::pinned, request, "staging");
    if (!made) return made.error();
    staging_ = made->handle;
    staging_bytes_ = made->pointer;
    staging_size_ = size;
    return {};
  }

  void drop_staging() {
    if (staging_ != 0) abandon(context_, staging_);
    staging_ = staging_size_ = 0;
  }

  Context& context_;
  const Way way_;
  PieceMaker* const maker_;
  std::array<BorrowedStreams, kLanes> lanes_;
  std::array<Flight, kLanes> flights_;  // of the lanes: a ring
  size_t first_ = 0;
  size_t in_flight_ = 0;
  uint64_t staging_ = 0;
  uint64_t staging_size_ = 0;
  void* staging_bytes_ = nullptr;
};

// Copies the content back, or makes it what it is after waking.
template <class F>
Result<void> load(Context& context, Mover& mover, Buffer& buffer, F passed) {
  const gpumem_content content = buffer.store().content();
  if (buffer.size() == 0) return passed(buffer, 0, true);
  if (buffer.holds_memory()) return passed(buffer, buffer.size(), true);
  if (content == GPUMEM_CONTENT_ZERO) {
    FillArguments zeros;
    zeros.destination = buffer.base();
    zeros.pitch = zeros.extent = zeros.width = buffer.size();
    zeros.admitted = true;
    GPUMEM_TRY(fill(context, nullptr, zeros));
  }
  if (content == GPUMEM_CONTENT_ZERO || content == GPUMEM_CONTENT_DROP)
    return passed(buffer, buffer.size(), true);
  return mover.carry(buffer, passed);
}

// Makes a file at once, and orders memory.
Result<void> order_store(Buffer& buffer, const StoreRequest& request, PieceMaker& maker) {
  Store& store = buffer.store();
  auto ordered = request.content == GPUMEM_CONTENT_FILE ? store.provide(request, buffer.size())
                                                        : maker.order(store, request, buffer.size());
  buffer.show_store();
  return ordered;
}

Result<void> go_on(Buffer& /*buffer*/, uint64_t /*bytes*/, bool /*last*/) { return {}; }

// ---- sleep ----

class Sleep {
 public:
  Sleep(Context& context, const SleepRequest& request) : context_(context), request_(request) {}

  Result<void> run(const std::vector<Ref<Buffer>>& buffers, bool many) {
    GPUMEM_TRY(members_.take(buffers, many, false, many));
    asleep_.reserve(members_.buffers().size());
    rooms_.reserve(members_.buffers().size());
    auto slept = without_exceptions([&]() -> Result<void> {
      GPUMEM_TRY(wake_holders());
      GPUMEM_TRY(ask());
      GPUMEM_TRY(Buffer::close(members_.buffers()));
      GPUMEM_TRY(wait());
      for (Buffer* const buffer : members_.buffers())
        GPUMEM_TRY(buffer->check_unused());
      for (Buffer* const buffer : members_.buffers())
        GPUMEM_TRY(buffer->refuse_registrations());
      PieceMaker maker(context_);
      for (Buffer* const buffer : members_.buffers())
        GPUMEM_TRY(provide_store(*buffer, maker));
      maker.start();
      return save(maker);
    });
    if (!slept) slept = undo(slept.error());
    for (Buffer* const buffer : members_.buffers())
      buffer->accept_registrations();
    if (slept) {
      for (Buffer* const buffer : members_.buffers()) {
        buffer->show_store();
        buffer->set_asleep();
      }
      return {};
    }
    for (Buffer* const buffer : members_.buffers()) {
      if (!buffer->asleep()) buffer->reopen();
    }
    for (size_t i = 0; i < told_; ++i) {
      const Buffer& buffer = *members_.buffers()[i];
      if (!buffer.asleep()) buffer.after_wake();
    }
    return slept;
  }

 private:
  // Wakes the buffers that an earlier sleep failed to wake. They are told, since they were asked then.
  Result<void> wake_holders() {
    Mover mover(context_, Mover::Way::kLoad);
    for (Buffer* const buffer : members_.buffers()) {
      if (!buffer->asleep()) continue;
      GPUMEM_TRY(in_buffer(*buffer, wake_again(mover, *buffer)));
      buffer->reopen();
      buffer->after_wake();
    }
    return {};
  }

  Result<void> ask() {
    for (Buffer* const buffer : members_.buffers()) {
      GPUMEM_TRY(buffer->before_sleep());
      ++told_;
    }
    return {};
  }

  Result<void> wait() const {
    if (request_.idle) return {};
    if (request_.stream != nullptr) {
      auto complete = synchronize_stream(*request_.stream, GPUMEM_TIMEOUT_INFINITE);
      if (!complete) return complete.error();
    }
    if (request_.event != nullptr) {
      if (!request_.event->recorded())
        return make_error(GPUMEM_ERROR_INVALID_STATE,
                          "the event was never recorded; there is nothing to wait for");
      auto complete = synchronize_event(*request_.event, GPUMEM_TIMEOUT_INFINITE);
      if (!complete) return complete.error();
    }
    if (request_.stream != nullptr || request_.event != nullptr) return {};
    return Buffer::finish_work(members_.buffers());
  }

  Result<void> provide_store(Buffer& buffer, PieceMaker& maker) {
    (void)buffer.begin_preparing();
    rooms_.push_back(buffer.store().fits(request_.store, 0) ? buffer.store().capacity() : 0);
    return in_buffer(buffer, order_store(buffer, request_.store, maker));
  }

  Result<void> save(PieceMaker& maker) {
    Counter counter(request_.progress, members_.buffers());
    GPUMEM_TRY(counter.add(0));
    Mover mover(context_, Mover::Way::kSave, &maker);
    std::vector<Buffer*> saved_early;
    saved_early.reserve(members_.buffers().size());
    const auto passed = [&](Buffer& buffer, uint64_t bytes, bool last) -> Result<void> {
      if (last) saved_early.push_back(&buffer);
      // Not before all room is there, so that a lack of it finds all buffers with their memory.
      if (maker.done()) {
        for (Buffer* const saved : saved_early)
          GPUMEM_TRY(drop(*saved));
        saved_early.clear();
      }
      return counter.add(bytes);
    };
    auto saved = [&]() -> Result<void> {
      for (Buffer* const buffer : members_.buffers())
        GPUMEM_TRY(keeps(*buffer) ? mover.carry(*buffer, passed) : counter.add(buffer->size()));
      GPUMEM_TRY(mover.finish(passed));
      return drop_unkept();
    }();
    if (!saved) (void)mover.wait_for_all();
    return saved;
  }

  // Runs after the last chance to cancel, because a dropped ordinary allocation cannot be restored.
  Result<void> drop_unkept() {
    const auto for_each_unkept = [&](auto step) -> Result<void> {
      for (Buffer* const buffer : members_.buffers()) {
        if (!keeps(*buffer)) GPUMEM_TRY(in_buffer(*buffer, step(*buffer)));
      }
      return {};
    };
    GPUMEM_TRY(for_each_unkept([](Buffer& buffer) { return buffer.hold_memory(); }));
    return for_each_unkept([&](Buffer& buffer) { return drop(buffer); });
  }

  bool keeps(const Buffer& buffer) const { return request_.store.keeps() && buffer.size() != 0; }

  Result<void> drop(Buffer& buffer) {
    auto dropped = buffer.drop_memory();
    if (dropped || !buffer.has_memory()) asleep_.push_back(&buffer);
    return dropped;
  }

  // Wakes what has lost its memory.
  Error undo(const Error& failure) {
    uint64_t failed = 0;
    uint64_t emptied = 0;
    bool lost = false;
    Mover mover(context_, Mover::Way::kLoad);
    for (Buffer* const buffer : asleep_) {
      const bool empty = !request_.store.keeps() && !buffer->holds_memory() && buffer->size() != 0;
      emptied += empty ? 1 : 0;
      auto woken = without_exceptions([&] { return wake_again(mover, *buffer); });
      if (woken) continue;
      ++failed;
      lost = lost || woken.error().status == GPUMEM_ERROR_CONTENT_LOST;
      buffer->set_failed();
    }
    for (size_t i = 0; i < members_.buffers().size(); ++i) {
      Buffer& buffer = *members_.buffers()[i];
      if (buffer.asleep()) continue;
      buffer.release_held();
      if (i >= rooms_.size()) continue;
      // Trim stores to their previous size, or to their content.
      (void)without_exceptions([&] { return buffer.store().trim(rooms_[i]); });
      buffer.show_store();
    }
    if (failed == 0 && emptied == 0) return failure;
    char woken_not[192] = "";
    if (failed != 0)
      std::snprintf(woken_not, sizeof woken_not,
                    "; and %" PRIu64
                    " of %zu buffers could not be woken again, which sleep until gpumem_buffer_wake()%s",
                    failed, members_.buffers().size(),
                    lost           ? "; content of some is lost"
                    : emptied == 0 ? ", with their content"
                                   : "");
    char gone[96] = "";
    if (emptied != 0)
      std::snprintf(gone, sizeof gone, "; the content of %" PRIu64 " is gone, as it was not to be kept",
                    emptied);
    Error told = reworded(failure, "%s%s%s", failure.message, woken_not, gone);
    if (lost) told.status = GPUMEM_ERROR_CONTENT_LOST;
    return told;
  }

  Result<void> wake_again(Mover& mover, Buffer& buffer) {
    GPUMEM_TRY(buffer.take_memory());
    auto loaded = load(context_, mover, buffer, go_on);
    if (auto complete = mover.wait_for_all(); loaded) loaded = complete;
    if (loaded) loaded = buffer.share_memory();
    if (!loaded) {
      (void)buffer.drop_memory();
      return loaded;
    }
    buffer.set_awake();
    return {};
  }

  Context& context_;
  const SleepRequest& request_;
  Members members_;
  size_t told_ = 0;              // how many have been asked, and agreed
  std::vector<uint64_t> rooms_;  // of the stores, as they were
  std::vector<Buffer*> asleep_;  // whose memory is gone
};

// ---- wake ----

class Wake {
 public:
  Wake(Context& context, const WakeRequest& request) : context_(context), request_(request) {}

  Result<void> run(const std::vector<Ref<Buffer>>& buffers, bool many) {
    GPUMEM_TRY(members_.take(buffers, many, true));
    mapped_.reserve(members_.buffers().size());
    if (auto loaded = without_exceptions([&] { return load_all(); }); !loaded) {
      for (Buffer* const buffer : mapped_)
        (void)buffer->drop_memory();
      return loaded;
    }
    for (Buffer* const buffer : members_.buffers()) {
      buffer->set_awake();
      buffer->reopen();
      // What cannot be released now is released when the buffer is destroyed.
      (void)without_exceptions([&] { return buffer->store().trim(request_.keep); });
      buffer->show_store();
    }
    for (Buffer* const buffer : members_.buffers()) {
      buffer->after_wake();
      buffer->look_ahead();
    }
    return {};
  }

 private:
  Result<void> load_all() {
    Counter counter(request_.progress, members_.buffers());
    GPUMEM_TRY(counter.add(0));
    Mover mover(context_, Mover::Way::kLoad);
    const auto passed = [&](Buffer& /*buffer*/, uint64_t bytes, bool /*last*/) { return counter.add(bytes); };
    auto loaded = [&]() -> Result<void> {
      for (Buffer* const buffer : members_.buffers()) {
        GPUMEM_TRY(in_buffer(*buffer, buffer->take_memory()));
        mapped_.push_back(buffer);
        GPUMEM_TRY(load(context_, mover, *buffer, passed));
      }
      return mover.finish(passed);
    }();
    auto complete = mover.wait_for_all();
    if (!loaded) return loaded;
    GPUMEM_TRY(complete);
    for (Buffer* const buffer : members_.buffers())
      GPUMEM_TRY(buffer->share_memory());
    return {};
  }

  Context& context_;
  const WakeRequest& request_;
  Members members_;
  std::vector<Buffer*> mapped_;
};

// ---- prepare ----

// A buffer that is prepared in the background until it sleeps, or is prepared otherwise.
struct Prepared {
  uint64_t handle = 0;
  uint64_t number = 0;
};

// Prepares the first buffer that is not ready, by one piece. Answers how long to wait before the next;
// nothing once all are ready, or one cannot be made so.
std::optional<std::chrono::nanoseconds> prepare_piece(const std::vector<Prepared>& buffers,
                                                      const StoreRequest& request,
                                                      uint64_t bytes_per_second) {
  constexpr uint64_t kLeast = uint64_t{2} << 20;
  const uint64_t step = std::clamp(bytes_per_second / 8, kLeast, Store::kPiece);
  for (const Prepared& wanted : buffers) {
    const auto buffer = acquire<Buffer>(platform::thread_record(), wanted.handle);
    if (!buffer) continue;
    const auto change = buffer->begin_change();
    if (!change || buffer->preparing() != wanted.number) continue;
    Store& store = buffer->store();
    if (store.fits(request, buffer->size())) continue;
    const uint64_t before = store.capacity();
    auto provided = store.provide(request, buffer->size(), step);
    buffer->show_store();
    if (!provided) {
      log(GPUMEM_LOG_WARNING, "buffer %s could not be prepared: %s", shown(buffer->name()),
          provided.error().message);
      return {};
    }
    const uint64_t made = store.capacity() > before ? store.capacity() - before : step;
    return std::chrono::nanoseconds(
        static_cast<int64_t>(static_cast<double>(made) * 1e9 / static_cast<double>(bytes_per_second)));
  }
  return {};
}

}  // namespace

Result<void> sleep_buffers(Context& context, const std::vector<Ref<Buffer>>& buffers, bool many,
                           const SleepRequest& request) {
  return Sleep(context, request).run(buffers, many);
}

Result<void> wake_buffers(Context& context, const std::vector<Ref<Buffer>>& buffers, bool many,
                          const WakeRequest& request) {
  return Wake(context, request).run(buffers, many);
}

Result<void> prepare_buffers(Context& context, const std::vector<Ref<Buffer>>& buffers, bool many,
                             const StoreRequest& request, uint64_t bytes_per_second) {
  Members members;
  GPUMEM_TRY(members.take(buffers, many, false));
  if (bytes_per_second == 0) {
    PieceMaker maker(context);
    for (Buffer* const buffer : members.buffers()) {
      (void)buffer->begin_preparing();
      GPUMEM_TRY(order_store(*buffer, request, maker));
    }
    maker.start();
    for (Buffer* const buffer : members.buffers()) {
      Store& store = buffer->store();
      const uint64_t before = store.capacity();
      Result<void> made;
      while (made && store.missing(buffer->size()) != 0)
        made = maker.add_to(store);
      if (!made) (void)store.trim(before);
      buffer->show_store();
      GPUMEM_TRY(made);
    }
    return {};
  }
  std::vector<Prepared> prepared;
  prepared.reserve(members.buffers().size());
  context.background().start();
  for (Buffer* const buffer : members.buffers())
    prepared.push_back({buffer->handle(), buffer->begin_preparing()});
  context.background().add([prepared = std::move(prepared), request, bytes_per_second] {
    return prepare_piece(prepared, request, bytes_per_second);
  });
  return {};
}

}  // namespace gpumem::core
