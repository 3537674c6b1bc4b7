// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Files, and the hash by which their bytes are compared.
#pragma once

#include <xxhash.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace gpumem::cli {

// A regular file that is not empty.
class InputFile {
 public:
  explicit InputFile(const std::string& name);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  uint64_t size() const { return size_; }

  // Reads exactly the next `size` bytes.
  void read(std::byte* bytes, uint64_t size);

 private:
  [[noreturn]] void fail(const std::string& what) const;

  std::string name_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
  uint64_t done_ = 0;
};

// A file that is replaced by what is written. If nothing is, it stays as it was, or is not there.
class OutputFile {
 public:
  // Reports what cannot be written.
  explicit OutputFile(const std::string& name);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const std::byte* bytes, uint64_t size);
  // Reports what the disk could not take.
  void finish();

 private:
  [[noreturn]] void fail(const std::string& what) const;

  std::string name_;
  int descriptor_ = -1;
  bool is_new_ = false;
  bool begun_ = false;
};

// The bytes of a file that holds a token, without a newline at its end. At least one, and at most 256.
std::string read_token(const std::string& name);

// XXH3 with 128 bits, over bytes that come piece by piece.
class Hash {
 public:
  using Bytes = std::array<uint8_t, 16>;

  Hash();
  void add(const std::byte* bytes, uint64_t size);

  // Of all bytes so far, in the order in which text() shows them.
  Bytes bytes() const;
  std::string text() const;

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

// Two hexadecimal digits for each byte.
std::string hex(const uint8_t* bytes, size_t count);

}  // namespace gpumem::cli
