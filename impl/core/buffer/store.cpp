// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/buffer/store.h"

#include <algorithm>
#include <utility>

#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "core/memory/memory.h"
#include "core/object/held.h"
#include "platform/file.h"
#include "platform/host_budget.h"
#include "platform/pages.h"

namespace gpumem::core {

Store::~Store() {
  for (const Piece& piece : pieces_) {
    if (piece.memory == 0) platform::unmap(piece.bytes, piece.size);
  }
  if (file_ >= 0) platform::close_file(file_);
}

bool Store::fits(const StoreRequest& request, uint64_t bytes) const {
  if (!request.keeps()) return capacity_ == 0;
  return request == request_ && capacity_ >= bytes;
}

Result<void> Store::set_request(const StoreRequest& request) {
  if (request == request_ && request.keeps()) return {};
  GPUMEM_TRY(trim(0));
  request_ = request;
  return {};
}

uint64_t Store::missing(uint64_t bytes) const {
  const uint64_t wanted = request_.keeps() ? round_up(bytes, platform::page_size()) : 0;
  return wanted - std::min(wanted, capacity_);
}

Result<void> Store::provide(const StoreRequest& request, uint64_t bytes, uint64_t most) {
  GPUMEM_TRY(set_request(request));
  const uint64_t wanted = capacity_ + std::min(missing(bytes), most);
  if (request.content == GPUMEM_CONTENT_FILE)
    return wanted > capacity_ ? set_file_size(wanted) : Result<void>();
  // Provide all or nothing, so that a failure does not grow the store.
  const uint64_t before = capacity_;
  Cleanup undo([&] { (void)trim(before); });
  while (capacity_ < wanted) {
    reserve_pieces(1);
    auto made = make_piece(std::min(wanted - capacity_, kPiece));
    if (!made) return made.error();
    add(*made);
  }
  undo.dismiss();
  return {};
}

Result<void> Store::trim(uint64_t keep) {
  if (file_ >= 0) {
    if (keep >= capacity_) return {};
    if (keep != 0) return set_file_size(keep);
    platform::close_file(std::exchange(file_, -1));
    capacity_ = 0;
    return {};
  }
  while (!pieces_.empty() && capacity_ - pieces_.back().size >= keep)
    GPUMEM_TRY(drop_piece());
  return {};
}

Result<Store::Piece> Store::make_piece(uint64_t size) const {
  Piece piece;
  piece.size = round_up(size, platform::page_size());
  if (request_.content == GPUMEM_CONTENT_PINNED) {
    auto root = held<DeviceObject>(device_.handle());
    if (!root) return root.error();
    backend::MemoryRequest request;
    request.size = piece.size;
    auto made = create_memory(**root, kinds::pinned, request, name_);
    if (!made) return made.error();
    if (auto memory = held<Memory>(made->handle)) (*memory)->set_owned();
    piece.memory = made->handle;
    piece.bytes = made->pointer;
  } else {
    GPUMEM_TRY(platform::check_host_budget(piece.size));
    auto made = platform::map_anonymous(piece.size, platform::page_size());
    if (!made) return made.error();
    piece.bytes = *made;
    Cleanup undo([&] { platform::unmap(piece.bytes, piece.size); });
    GPUMEM_TRY(platform::populate(piece.bytes, piece.size, 4));
    undo.dismiss();
  }
  return piece;
}

void Store::add(const Piece& piece) noexcept {
  pieces_.push_back(piece);
  capacity_ += piece.size;
}

Result<void> Store::drop_piece() {
  const Piece& last = pieces_.back();
  if (last.memory != 0) {
    GPUMEM_TRY(give_back<Memory>(last.memory, destroy_memory));
  } else {
    platform::unmap(last.bytes, last.size);
  }
  capacity_ -= last.size;
  pieces_.pop_back();
  return {};
}

Result<void> Store::set_file_size(uint64_t size) {
  const bool is_new = file_ < 0;
  if (is_new) {
    auto file = platform::unnamed_file(request_.directory);
    if (!file) return file.error();
    file_ = *file;
  }
  Cleanup undo([&] {
    if (is_new) platform::close_file(std::exchange(file_, -1));
  });
  GPUMEM_TRY(platform::set_file_size(file_, size));
  undo.dismiss();
  capacity_ = size;
  return {};
}

Result<void> Store::write(uint64_t offset, const void* bytes, uint64_t size) {
  return platform::write_file(file_, offset, bytes, size);
}

Result<void> Store::read(uint64_t offset, void* bytes, uint64_t size) {
  return platform::read_file(file_, offset, bytes, size);
}

}  // namespace gpumem::core
