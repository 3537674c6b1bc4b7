// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// File descriptors that come from the program or go to it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/result.h"
#include "platform/fork.h"

namespace gpumem::platform {

void close_descriptor(int file_descriptor) noexcept;
// As close_descriptor(), and hangs up. Does not wait, however a socket that came from another process is set,
// and whatever lies in it unread.
void close_foreign(int file_descriptor) noexcept;

// While one lives, close_foreign() on its thread keeps those descriptors open whose closing may take long,
// and they are closed together: by close(), by its end, or when there are many. Each such closing takes a
// thread.
class ClosingTogether {
 public:
  ClosingTogether() noexcept;
  ClosingTogether(const ClosingTogether&) = delete;
  ClosingTogether& operator=(const ClosingTogether&) = delete;
  ~ClosingTogether();
  // Whether there were any.
  bool close() noexcept;

 private:
  friend void close_foreign(int file_descriptor) noexcept;
  static constexpr size_t kMost = 32;
  std::array<int, kMost> waiting_{};
  size_t count_ = 0;
};

// A file descriptor that is closed with it.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int file_descriptor) : value_(file_descriptor) {}
  // One that another process has sent, or a connection over which it sends.
  static Descriptor foreign(int file_descriptor) {
    Descriptor made(file_descriptor);
    made.foreign_ = true;
    return made;
  }
  Descriptor(Descriptor&& other) noexcept
      : value_(std::exchange(other.value_, -1)), foreign_(other.foreign_) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    std::swap(foreign_, other.foreign_);
    return *this;
  }
  ~Descriptor() {
    if (value_ >= 0) (foreign_ ? close_foreign : close_descriptor)(value_);
  }

  int get() const { return value_; }
  int release() { return std::exchange(value_, -1); }
  explicit operator bool() const { return value_ >= 0; }

 private:
  int value_ = -1;
  bool foreign_ = false;
};
using Descriptors = std::vector<Descriptor>;

// One that a forked child loses at once: a copy there would keep an address, a connection or a lock alive
// when this process has ended.
class OwnDescriptor {
 public:
  OwnDescriptor() = default;
  explicit OwnDescriptor(Descriptor descriptor) : value_(std::move(descriptor)) {
    if (value_) close_in_children(value_.get());
  }
  OwnDescriptor(OwnDescriptor&&) = default;
  OwnDescriptor& operator=(OwnDescriptor&&) = default;
  ~OwnDescriptor() {
    if (value_) forget_for_children(value_.get());
  }

  int get() const { return value_.get(); }
  explicit operator bool() const { return static_cast<bool>(value_); }

 private:
  Descriptor value_;
};

// Closed with the last who has them, so that many can send the same ones without any of their own.
using SharedDescriptors = std::shared_ptr<const Descriptors>;
SharedDescriptors share(Descriptors descriptors);
std::vector<int> numbers_of(const Descriptors& descriptors);

// What a descriptor refers to.
struct DescriptorFacts {
  bool open = false;
  bool shareable = false;  // neither a pipe, a socket, a directory nor a link
  bool regular = false;    // a file, not a device
  bool sealed = false;     // a memory file whose size cannot change
  uint64_t size = 0;
  uint64_t device = 0;  // with `inode` the same for two descriptors of one file
  uint64_t inode = 0;
  char name[128] = "";  // of a memory file; empty if the system does not tell
};
DescriptorFacts describe(int file_descriptor);

// Which file it is of, as in DescriptorFacts; zeros if it is not open.
struct FileId {
  uint64_t device = 0;
  uint64_t inode = 0;
  bool operator==(const FileId&) const = default;
};
FileId file_of(int file_descriptor);

// The failure of a call because the process (EMFILE) or the system (ENFILE) has no free descriptor.
Error no_descriptor(int error, const char* entry_point);
// Another descriptor of the same file, closed on exec. LIMIT_EXCEEDED if the process has no free one.
Result<Descriptor> duplicate(int file_descriptor);
Result<Descriptors> duplicate_all(const Descriptors& descriptors);
// A descriptor of the same memory file that shares nothing with the first: neither locks nor rights.
Result<Descriptor> reopen(int file_descriptor, bool writable);
void close_on_exec(int file_descriptor);
bool out_of_descriptors();
// How many the process may have (RLIMIT_NOFILE).
uint64_t descriptor_limit();
// The same, but no more than it is unless somebody raises it: for what many processes have a part in.
uint64_t usual_descriptor_limit();
// Sends one over a Unix socket to itself: whether processes can share here at all.
Result<void> try_passing();

// Locks a byte of a file until all copies of the descriptor are closed, as at the end of their processes.
// False if another descriptor holds the lock.
Result<bool> lock_byte(int file_descriptor, uint64_t offset);
void unlock_byte(int file_descriptor, uint64_t offset) noexcept;
// Whether another descriptor holds it, in whatever process; this one's own locks do not count. True in doubt.
bool is_byte_locked(int file_descriptor, uint64_t offset);

}  // namespace gpumem::platform
