// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The host backend's counterpart: memory files, mmap, mlock and memcpy.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "raw.h"

namespace bench {
namespace {

void check(bool good, const char* what) {
  if (!good) fail(std::string(what) + ": " + std::strerror(errno));
}

// Blocks are memory files, and what is not mapped stays reserved.
class RawHostRange : public RawRange {
 public:
  RawHostRange(uint64_t size, int blocks) : size_(size), files_(static_cast<size_t>(blocks), -1) {
    base_ = static_cast<uint8_t*>(
        mmap(nullptr, size * files_.size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    check(base_ != MAP_FAILED, "mmap");
  }
  RawHostRange(const RawHostRange&) = delete;
  RawHostRange& operator=(const RawHostRange&) = delete;
  ~RawHostRange() override { munmap(base_, size_ * files_.size()); }

  void create(int index) override {
    file(index) = memfd_create("raw", MFD_CLOEXEC);
    check(file(index) >= 0, "memfd_create");
    check(ftruncate(file(index), static_cast<off_t>(size_)) == 0, "ftruncate");
  }
  void map(int index) override {
    check(mmap(at(index), size_, PROT_NONE, MAP_SHARED | MAP_FIXED, file(index), 0) != MAP_FAILED, "mmap");
    check(mprotect(at(index), size_, PROT_READ | PROT_WRITE) == 0, "mprotect");
  }
  void unmap(int index) override {
    constexpr int kReserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    check(mmap(at(index), size_, PROT_NONE, kReserved, -1, 0) != MAP_FAILED, "mmap");
  }
  void release(int index) override { close(file(index)); }

 private:
  int& file(int index) { return files_[static_cast<size_t>(index)]; }
  uint8_t* at(int index) { return base_ + static_cast<uint64_t>(index) * size_; }

  uint64_t size_;
  std::vector<int> files_;
  uint8_t* base_;
};

class RawHost : public Raw {
 public:
  std::string name() const override { return "memfd, mmap, mlock, memcpy"; }

  void* allocate(gpumem_kind kind, gpumem_memory_flags, uint64_t size) override {
    const int file = memfd_create("raw", MFD_CLOEXEC);
    check(file >= 0, "memfd_create");
    check(ftruncate(file, static_cast<off_t>(size)) == 0, "ftruncate");
    void* const pointer = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    check(pointer != MAP_FAILED, "mmap");
    close(file);
    if (kind == GPUMEM_KIND_PINNED) {
      check(madvise(pointer, size, MADV_POPULATE_WRITE) == 0, "madvise");
      pin(pointer, size);
    }
    return pointer;
  }
  void free(gpumem_kind, void* pointer, uint64_t size) override {
    check(munmap(pointer, size) == 0, "munmap");
  }
  Call touched(uint64_t size) override {
    return [size] {
      void* const pointer = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      check(pointer != MAP_FAILED, "mmap");
      const auto page = static_cast<uint64_t>(getpagesize());
      for (uint64_t at = 0; at < size; at += page)
        static_cast<volatile uint8_t*>(pointer)[at] = 1;
      check(munmap(pointer, size) == 0, "munmap");
    };
  }
  void pin(void* pointer, uint64_t size) override { check(mlock(pointer, size) == 0, "mlock"); }
  void unpin(void* pointer, uint64_t size) override { check(munlock(pointer, size) == 0, "munlock"); }

  std::unique_ptr<RawRange> reserve(uint64_t block_size, int blocks) override {
    return std::make_unique<RawHostRange>(block_size, blocks);
  }

  void copy(void* destination, const void* source, uint64_t size) override {
    std::memcpy(destination, source, size);
  }
  void enqueue_copy(void* destination, const void* source, uint64_t size) override {
    std::memcpy(destination, source, size);
  }
  void synchronize() override {}

  Call small_call(SmallCall, void*) override { return {}; }
};

}  // namespace

std::unique_ptr<Raw> open_raw_host() { return std::make_unique<RawHost>(); }

}  // namespace bench
