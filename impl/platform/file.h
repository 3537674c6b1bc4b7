// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Files without a name, which are gone with the process, and files of the program's that bytes are copied
// from and to.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "platform/descriptor.h"

namespace gpumem::platform {

// LIMIT_EXCEEDED if a file of that size is beyond RLIMIT_FSIZE: then the kernel sends SIGXFSZ, which ends the
// process. `what` names the file in the message.
Result<void> check_file_size(uint64_t size, const char* what);

// In a directory; close-on-exec.
Result<int> unnamed_file(const std::string& directory);
// Gives the file room on the disk for so many bytes, whatever it had before. LIMIT_EXCEEDED if there is none.
Result<void> set_file_size(int file_descriptor, uint64_t size);
// Both transfer everything or fail. Reading behind the end is CONTENT_LOST.
Result<void> write_file(int file_descriptor, uint64_t offset, const void* bytes, uint64_t size);
Result<void> read_file(int file_descriptor, uint64_t offset, void* bytes, uint64_t size);

// A file that the program named by a descriptor, which stays open meanwhile. Several threads may read or
// write it at once; where the descriptor stands does not change. It is used itself: to close any other of the
// same file would drop the process's record locks on it (fcntl(2)).
class ProgramFile {
 public:
  static constexpr uint64_t kUnit = 4096;  // of direct transfers: of memory, offset and size

  // INVALID_ARGUMENT if the descriptor is not open, or of something that has no offsets; NO_ACCESS if it was
  // not opened for this.
  Result<void> open(int file_descriptor, bool write);
  // Lets what is aligned pass by the page cache from now on, where the file system can do that. Opens the
  // file anew, unless the descriptor has the flag already.
  void prefer_direct();
  bool is_direct() const { return try_direct_.load(std::memory_order_relaxed); }
  // Bytes of a file; UINT64_MAX if it is a device.
  uint64_t size() const { return size_; }
  // That passed by the page cache; all bytes if the program opened the file with O_DIRECT.
  uint64_t direct_bytes() const { return direct_bytes_.load(std::memory_order_relaxed); }

  // All or a failure; INVALID_STATE if the program has closed the descriptor. `room` is how much may be
  // written to at `bytes`, at least `size`.
  Result<void> read(uint64_t offset, void* bytes, uint64_t size, uint64_t room);
  Result<void> write(uint64_t offset, const void* bytes, uint64_t size);

 private:
  // INVALID_STATE if the descriptor was closed, and is nothing or another file by now. The check is not
  // atomic with what follows; but without it the next file that the library opens could be taken for the
  // program's.
  Result<void> check_open(uint64_t offset) const;
  Error transfer_error(int error, uint64_t offset) const;

  int file_ = -1;
  FileId id_;
  int direct_ = -1;      // for direct transfers
  Descriptor reopened_;  // the flag would be the program's descriptor's too
  bool write_ = false;
  bool always_direct_ = false;  // the program opened it with O_DIRECT
  uint64_t size_ = 0;
  std::atomic<bool> try_direct_{false};
  std::atomic<uint64_t> direct_bytes_{0};
};

}  // namespace gpumem::platform
