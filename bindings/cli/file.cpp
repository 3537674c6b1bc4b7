// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

#include "interrupt.h"
#include "output.h"

namespace gpumem::cli {

namespace {
constexpr uint64_t kPiece = uint64_t{8} << 20;  // so that an interrupt is noticed soon
}

InputFile::InputFile(const std::string& name) : name_(name) {
  // Without O_NONBLOCK the opening of a pipe would wait for a writer.
  descriptor_ = open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) fail(std::string("cannot be opened: ") + std::strerror(errno));
  try {
    struct stat status = {};
    if (fstat(descriptor_, &status) != 0) fail(std::string("cannot be examined: ") + std::strerror(errno));
    if (S_ISDIR(status.st_mode)) fail("is a directory");
    if (!S_ISREG(status.st_mode)) fail("is not a regular file");
    if (status.st_size == 0)
      throw std::runtime_error("the file " + shown(name_) +
                               " is empty, or does not know its size: give one with at least one byte");
    size_ = static_cast<uint64_t>(status.st_size);
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

InputFile::~InputFile() { close(descriptor_); }

void InputFile::read(std::byte* bytes, uint64_t size) {
  while (size > 0) {
    stop_if_interrupted();
    const ssize_t count = ::read(descriptor_, bytes, std::min(size, kPiece));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(std::string("cannot be read: ") + std::strerror(errno));
    if (count == 0) {
      fail("has shrunk while it was read: it had " + std::to_string(size_) + " bytes, and ends after " +
           std::to_string(done_));
    }
    bytes += count;
    size -= static_cast<uint64_t>(count);
    done_ += static_cast<uint64_t>(count);
  }
}

void InputFile::fail(const std::string& what) const { throw std::runtime_error(shown(name_) + " " + what); }

OutputFile::OutputFile(const std::string& name) : name_(name) {
  while (descriptor_ < 0) {
    stop_if_interrupted();
    descriptor_ = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    is_new_ = descriptor_ >= 0;
    if (descriptor_ < 0 && errno == EEXIST)
      descriptor_ = open(name.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && errno != EINTR) fail(std::string("cannot be opened: ") + std::strerror(errno));
  }
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (is_new_ && !begun_) unlink(name_.c_str());
}

void OutputFile::write(const std::byte* bytes, uint64_t size) {
  // A pipe or a device has nothing to empty, and says EINVAL.
  if (!begun_ && ftruncate(descriptor_, 0) != 0 && errno != EINVAL)
    fail(std::string("cannot be written: ") + std::strerror(errno));
  begun_ = true;
  while (size > 0) {
    stop_if_interrupted();
    const ssize_t count = ::write(descriptor_, bytes, std::min(size, kPiece));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(std::string("cannot be written: ") + std::strerror(errno));
    bytes += count;
    size -= static_cast<uint64_t>(count);
  }
}

void OutputFile::finish() {
  if (close(std::exchange(descriptor_, -1)) != 0)
    fail(std::string("cannot be written: ") + std::strerror(errno));
}

void OutputFile::fail(const std::string& what) const { throw std::runtime_error(shown(name_) + " " + what); }

std::string read_token(const std::string& name) {
  constexpr uint64_t kMost = 256;
  InputFile file(name);
  const std::string problem = "the file " + shown(name) + " holds no token: that has 1 to 256 bytes";
  if (file.size() > kMost + 1) throw std::runtime_error(problem);
  std::string token(file.size(), '\0');
  file.read(reinterpret_cast<std::byte*>(token.data()), token.size());
  if (token.back() == '\n') token.pop_back();
  if (token.empty() || token.size() > kMost) throw std::runtime_error(problem);
  return token;
}

Hash::Hash() : state_(XXH3_createState(), XXH3_freeState) {
  if (!state_) throw std::bad_alloc();
  XXH3_128bits_reset(state_.get());
}

void Hash::add(const std::byte* bytes, uint64_t size) { XXH3_128bits_update(state_.get(), bytes, size); }

Hash::Bytes Hash::bytes() const {
  XXH128_canonical_t canonical{};
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_.get()));
  Bytes bytes{};
  std::copy(std::begin(canonical.digest), std::end(canonical.digest), bytes.begin());
  return bytes;
}

std::string Hash::text() const {
  const Bytes value = bytes();
  return hex(value.data(), value.size());
}

std::string hex(const uint8_t* bytes, size_t count) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

}  // namespace gpumem::cli
