// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/buffer/file_copy.h"

#include <algorithm>
#include <cinttypes>
#include <vector>

#include "base/arithmetic.h"
#include "core/copy/copy.h"
#include "core/device/transfer.h"
#include "core/object/callback.h"
#include "core/object/context.h"
#include "platform/file.h"

namespace gpumem::core {
namespace {

constexpr uint64_t kStaging = uint64_t{4} << 20;  // of a caller who copies alone

// Tells the caller how far the call is.
class FileCounter : public FileProgress {
 public:
  FileCounter(const Progress& progress, uint64_t total) : progress_(progress), total_(total) {}

  Result<void> tell() override {
    const uint64_t done = done_.load();
    const bool heard = done != 0 && told_.exchange(done) == done;
    if (progress_.function == nullptr || heard) return {};
    const int32_t answer = [&] {
      const Callback mark;
      return progress_.function(progress_.user_data, done, total_);
    }();
    if (answer == 0 || done == total_) return {};
    return make_error(GPUMEM_ERROR_CANCELLED, "the progress function ended the call");
  }

 private:
  const Progress& progress_;
  const uint64_t total_;
};

// The bytes must be in the file, or the file may grow to them.
Result<void> check_extent(const platform::ProgramFile& file, const FileCopyRequest& request) {
  if (!request.to_memory) return platform::check_file_size(request.offset + request.size, "a file");
  if (request.offset <= file.size() && request.size <= file.size() - request.offset) return {};
  const uint64_t there = file.size() - std::min(request.offset, file.size());
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                    "the file has %" PRIu64 " bytes, of which %" PRIu64 " lie behind offset %" PRIu64
                    "; %" PRIu64 " were asked for",
                    file.size(), there, request.offset, request.size);
}

class FileCopy {
 public:
  FileCopy(Context& context, const FileCopyRequest& request, platform::ProgramFile& file,
           const FileMemory& memory)
      : context_(context),
        request_(request),
        file_(file),
        memory_(memory),
        view_(view_of(memory.found.span)),
        counter_(request.progress, request.size),
        used_(address_of(request.pointer), request.size) {}

  Result<void> run(uint64_t* copied) {
    GPUMEM_TRY(counter_.tell());
    // So that the pieces behind it are aligned in the file.
    if (file_.is_direct() && request_.offset % platform::ProgramFile::kUnit != 0) {
      const uint64_t head = platform::ProgramFile::kUnit - request_.offset % platform::ProgramFile::kUnit;
      GPUMEM_TRY(copy_alone(std::min(head, request_.size), copied));
    }
    if (*copied < request_.size) GPUMEM_TRY(copy_rest(copied));
    return counter_.tell();
  }

 private:
  Result<void> copy_rest(uint64_t* copied) {
    Transfer& transfer = memory_.device->transfer();
    const backend::Span& span = memory_.found.span;
    const uint64_t size = request_.size - *copied;
    // Managed memory is looked at with each copy of it.
    if (!span.managed && transfer.wants_file(request_.size)) {
      FileBox box;
      box.file = &file_;
      box.offset = request_.offset + *copied;
      box.to_memory = request_.to_memory;
      box.memory = span.after(*copied);
      box.view = is_in_place() ? view_at(*copied) : nullptr;
      box.size = size;
      box.progress = &counter_;
      box.enqueue = enqueue_file_piece;
      uint64_t more = 0;
      auto done = transfer.copy_file(box, &more);
      if (!done || *done) *copied += more;
      if (!done) return done.error();
      if (*done) return {};
    }
    return copy_alone(request_.size, copied);
  }

  // Up to an end, by the caller's thread.
  Result<void> copy_alone(uint64_t end, uint64_t* copied) {
    constexpr uint64_t kUnit = platform::ProgramFile::kUnit;
    const uint64_t most = std::min(kStaging, end - *copied);
    std::vector<unsigned char> room;
    if (!is_in_place()) room.resize(round_up(most, kUnit) + kUnit);
    unsigned char* const staging = pointer_to_aligned(room);
    while (*copied < end) {
      const uint64_t bytes = std::min(most, end - *copied);
      GPUMEM_TRY(copy_piece(*copied, bytes, staging));
      *copied += bytes;
      counter_.add(bytes);
      if (counter_.due() && *copied < request_.size) GPUMEM_TRY(counter_.tell());
    }
    return {};
  }

  Result<void> copy_piece(uint64_t done, uint64_t bytes, unsigned char* staging) {
    const uint64_t offset = request_.offset + done;
    void* const there = at(done);
    void* const here = is_in_place() ? view_at(done) : staging;
    if (request_.to_memory) {
      if (is_in_place()) return file_.read(offset, here, bytes, bytes);
      GPUMEM_TRY(file_.read(offset, here, bytes, round_up(bytes, platform::ProgramFile::kUnit)));
      return copy(context_, nullptr, copy_of_bytes(there, here, bytes, true));
    }
    if (!is_in_place()) GPUMEM_TRY(copy(context_, nullptr, copy_of_bytes(here, there, bytes, true)));
    return file_.write(offset, here, bytes);
  }

  static unsigned char* pointer_to_aligned(std::vector<unsigned char>& room) {
    if (room.empty()) return nullptr;
    const uint64_t first = address_of(room.data());
    return static_cast<unsigned char*>(pointer_to(round_up(first, platform::ProgramFile::kUnit)));
  }

  // Where the system may read and write the memory by itself; null if only copies may.
  static void* view_of(const backend::Span& span) {
    if (span.pageable) return span.address;
    if (span.memory == nullptr || span.on_device || span.in_range || span.managed) return nullptr;
    void* const first = span.memory->facts().host_pointer;
    return first != nullptr ? pointer_to(address_of(first) + span.offset) : nullptr;
  }
  bool is_in_place() const { return view_ != nullptr; }
  void* view_at(uint64_t offset) const { return pointer_to(address_of(view_) + offset); }
  void* at(uint64_t offset) const { return pointer_to(address_of(request_.pointer) + offset); }

  Context& context_;
  const FileCopyRequest& request_;
  platform::ProgramFile& file_;
  const FileMemory& memory_;
  void* const view_;
  FileCounter counter_;
  const UsedInCallbacks used_;
};

}  // namespace

Result<void> copy_file(Context& context, const FileCopyRequest& request, FileCopyAnswer* answer) {
  platform::ProgramFile file;
  const Result<void> opened = file.open(request.file_descriptor, !request.to_memory);
  const Result<void> extent = opened ? check_extent(file, request) : Result<void>();
  FileMemory memory;
  GPUMEM_TRY(
      check_file_memory(context, request.pointer, request.size, request.to_memory, opened, extent, &memory));
  if (request.direct) file.prefer_direct();
  answer->begun = true;
  FileCopy work(context, request, file, memory);
  auto done = work.run(&answer->copied);
  answer->direct = file.direct_bytes();
  if (done || done.error().status != GPUMEM_ERROR_CANCELLED) return done;
  // Threads may have copied more since the function was called.
  return make_error(GPUMEM_ERROR_CANCELLED,
                    "the progress function ended the call at %" PRIu64 " of %" PRIu64 " bytes",
                    answer->copied, request.size);
}

}  // namespace gpumem::core
