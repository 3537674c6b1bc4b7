// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The host backend's counterpart: memory files, mmap, mlock and memcpy.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "raw.h"

namespace bench {
namespace {

void check(bool good, const char* what) {
  if (!good) fail(std::string(what) + ": " + std::strerror(errno));
}

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
  void pin(void* pointer, uint64_t size) override { check(mlock(pointer, size) == 0, "mlock"); }
  void unpin(void* pointer, uint64_t size) override { check(munlock(pointer, size) == 0, "munlock"); }

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
