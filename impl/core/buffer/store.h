// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Room on the host for the content of a buffer that sleeps: pinned memory, ordinary memory, or a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/device/device.h"
#include "gpumem/buffer.h"

namespace gpumem::core {

struct StoreRequest {
  gpumem_content content = GPUMEM_CONTENT_PINNED;
  std::string directory;  // of the file

  // Whether content is kept at all.
  bool keeps() const { return content != GPUMEM_CONTENT_ZERO && content != GPUMEM_CONTENT_DROP; }
  bool operator==(const StoreRequest& other) const {
    return content == other.content && directory == other.directory;
  }
};

// Not safe for several threads, but for make_piece(): its buffer locks.
class Store {
 public:
  // Memory is made in pieces of at most this size, so that it can be made at a pace and given back in part.
  static constexpr uint64_t kPiece = uint64_t{64} << 20;

  // A part of the room that lies in memory, for copies.
  struct Piece {
    uint64_t memory = 0;  // handle of pinned memory, or 0
    void* bytes = nullptr;
    uint64_t size = 0;
  };

  Store(Device& device, std::string name) : device_(device), name_(std::move(name)) {}
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  // Leaves pieces with a handle to the instance, which destroys them when it closes.
  ~Store();

  gpumem_content content() const { return request_.content; }
  uint64_t capacity() const { return capacity_; }
  const std::vector<Piece>& pieces() const { return pieces_; }
  bool in_file() const { return file_ >= 0; }

  // Whether there is room for so many bytes, kept as requested. If nothing is kept, there must be none.
  bool fits(const StoreRequest& request, uint64_t bytes) const;
  // Gives back a store of another sort.
  Result<void> set_request(const StoreRequest& request);
  // Sets the request, and makes room, at most `most` bytes in this call.
  Result<void> provide(const StoreRequest& request, uint64_t bytes, uint64_t most = UINT64_MAX);
  // The bytes that are missing of so many, in whole pages.
  uint64_t missing(uint64_t bytes) const;
  // Piece by piece, in place of provide(): make_piece() on any thread, while the request stays as it is;
  // add() takes what it made, into room that was reserved.
  void reserve_pieces(size_t more) { pieces_.reserve(pieces_.size() + more); }
  Result<Piece> make_piece(uint64_t size) const;
  void add(const Piece& piece) noexcept;
  // Releases what lies behind so many bytes, in whole pieces.
  Result<void> trim(uint64_t keep);

  // A file's.
  Result<void> write(uint64_t offset, const void* bytes, uint64_t size);
  Result<void> read(uint64_t offset, void* bytes, uint64_t size);

 private:
  Result<void> drop_piece();
  Result<void> set_file_size(uint64_t size);

  Device& device_;
  const std::string name_;
  StoreRequest request_;
  std::vector<Piece> pieces_;
  int file_ = -1;
  uint64_t capacity_ = 0;
};

}  // namespace gpumem::core
