// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "platform/pages.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "base/errno_texts.h"
#include "platform/descriptor.h"
#include "platform/file.h"
#include "platform/text_file.h"
#include "platform/thread.h"

// Missing in older C libraries.
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLD
#define MADV_COLD 20
#endif

namespace gpumem::platform {

namespace {

constexpr uint64_t kWordSize = 8;

// The kernel reads the signal set before it rejects the unknown operation, so a fault becomes an error.
// Address 0 would mean "no signal set", so its neighbour is probed instead.
bool word_readable(uint64_t address) {
  constexpr int kUnknownOperation = -1;
  const uint64_t word = std::max(round_down(address, kWordSize), kWordSize);
  return syscall(SYS_rt_sigprocmask, kUnknownOperation, pointer_to(word), nullptr, kWordSize) != 0 &&
         errno != EFAULT;
}

// Makes the kernel write a word back atomically with its own value. At worst a thread that waits on this word
// gets a spurious wake-up.
bool word_writable(uint64_t address) {
  constexpr uint32_t kOrWithZero = FUTEX_OP(FUTEX_OP_OR, 0, FUTEX_OP_CMP_EQ, 0x555);
  uint32_t nobody = 0;
  return syscall(SYS_futex, &nobody, FUTEX_WAKE_OP | FUTEX_PRIVATE_FLAG, 0, 0L,
                 pointer_to(round_down(address, kWordSize)), kOrWithZero) >= 0;
}

// One call for the whole range if the kernel (5.14) and the mapping allow it, otherwise page by page.
template <class F>
bool every_page(const void* address, uint64_t size, int populate_advice, F allowed) {
  const uint64_t page = page_size();
  const uint64_t begin = round_down(address_of(address), page);
  const uint64_t last = round_down(address_of(address) + size - 1, page);
  if (begin != last && advise(pointer_to(begin), last - begin + page, populate_advice) == 0) return true;
  for (uint64_t at = begin;; at += page) {
    if (!allowed(at)) return false;
    if (at == last) return true;
  }
}

// Whether the process has about as many maps as the system allows; the kernel answers ENOMEM then too.
bool out_of_maps(uint64_t limit) {
  constexpr uint64_t kNear = 16;
  TextFile file("/proc/self/maps");
  uint64_t maps = 0;
  char text[4096];
  while (file.next(text)) {
    if (std::strchr(text, '\n') != nullptr) ++maps;
  }
  return maps != 0 && maps + kNear >= limit;
}

// Error of a call that makes or splits a map.
Error map_error(Status status, int error_number, const char* entry_point, const char* what) {
  if (error_number == ENOMEM) {
    const uint64_t limit = number_in("/proc/sys/vm/max_map_count", "");
    if (limit != UINT64_MAX && out_of_maps(limit)) {
      char text[160];
      std::snprintf(text, sizeof text,
                    "the process has as many memory maps as vm.max_map_count allows (%" PRIu64
                    "); free some memory, or raise it with sysctl",
                    limit);
      return system_error(GPUMEM_ERROR_LIMIT_EXCEEDED, error_number, entry_point, text);
    }
  }
  return system_error(status, error_number, entry_point, what);
}

Result<void*> map(uint64_t size, uint64_t alignment, int protection, int flags, Status status,
                  const char* what) {
  // Reserves too much, then trims to the aligned part.
  const uint64_t slack = alignment > page_size() ? alignment - page_size() : 0;
  void* const start = add_wraps(size, slack) ? (errno = ENOMEM, MAP_FAILED)
                                             : mmap(nullptr, size + slack, protection,
                                                    MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (start == MAP_FAILED) return map_error(status, errno, "mmap", what);
  const uint64_t begin = round_up(address_of(start), alignment);
  const uint64_t head = begin - address_of(start);
  if (head != 0) munmap(start, head);
  if (slack != head) munmap(pointer_to(begin + size), slack - head);
  if (madvise(pointer_to(begin), size, MADV_DONTFORK) != 0) {
    const int error = errno;
    const Error failure = map_error(status, error, "madvise", what);
    munmap(pointer_to(begin), size);
    return failure;
  }
  return pointer_to(begin);
}

}  // namespace

uint64_t page_size() {
  static constinit std::atomic<uint64_t> known{0};  // as numa_node_count()
  uint64_t size = known.load(std::memory_order_relaxed);
  if (size != 0) return size;
  size = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  known.store(size, std::memory_order_relaxed);
  return size;
}

int advise(void* address, uint64_t size, int advice) {
  constexpr int kUnknownAdvice = -1;
  if (madvise(address, size, advice) != 0) return errno;
  return madvise(nullptr, 0, kUnknownAdvice) == 0 ? EINVAL : 0;
}

Error system_error(Status status, int error_number, const char* entry_point, const char* what) {
  std::array<char, 128> buffer;
  return make_error(status, "%s: %s", what, errno_text(error_number, buffer))
      .from_native(GPUMEM_NATIVE_ERRNO, error_number, errno_name(error_number), entry_point);
}

namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

Result<int> file_with_seals(uint64_t size, const char* name, int seals) {
  constexpr const char* kWhat = "cannot create an anonymous memory file";
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  GPUMEM_TRY(check_file_size(size, "a memory file"));
  int file = memfd_create(name, kFlags | MFD_NOEXEC_SEAL);
  if (file < 0 && errno == EINVAL) file = memfd_create(name, kFlags);  // before Linux 6.3
  if (file < 0) {
    if (errno == EPERM || errno == EACCES || errno == ENOSYS) {
      return system_error(
          GPUMEM_ERROR_PERMISSION_DENIED, errno, "memfd_create",
          "the system refuses memfd_create; if this is a sandbox, allow the call in its seccomp "
          "profile");
    }
    if (errno == EMFILE || errno == ENFILE) return no_descriptor(errno, "memfd_create");
    return system_error(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, errno, "memfd_create", kWhat);
  }
  const char* failed = nullptr;
  if (size > kSizeMax) {
    errno = EFBIG;
    failed = "ftruncate";
  } else if (ftruncate(file, static_cast<off_t>(size)) != 0) {
    failed = "ftruncate";
  } else if (fcntl(file, F_ADD_SEALS, seals) != 0) {
    failed = "fcntl";
  }
  if (failed == nullptr) return file;
  const int error = errno;
  close(file);
  return system_error(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, error, failed, kWhat);
}

}  // namespace

Result<int> memory_file(uint64_t size, const char* name) {
  return file_with_seals(size, name, kSizeSeals | F_SEAL_SEAL);
}

Result<PublishedFile> published_file(uint64_t size, const char* name) {
  auto made = file_with_seals(size, name, kSizeSeals);
  if (!made) return made.error();
  Descriptor file(*made);
  auto view = map_file(file.get(), size, nullptr);
  if (!view) return view.error();
  Cleanup undo([&] { unmap(*view, size); });
  if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
    // Before Linux 5.1: a descriptor without the right, which its own user can reopen with it.
    auto read_only = reopen(file.get(), false);
    if (!read_only) return read_only.error();
    file = std::move(*read_only);
  }
  undo.dismiss();
  return PublishedFile{file.release(), *view};
}

void close_file(int file_descriptor) { close(file_descriptor); }

Result<void*> reserve(uint64_t size, uint64_t alignment) {
  char text[96];
  std::snprintf(text, sizeof text, "no free address range has %" PRIu64 " bytes; reserve less", size);
  return map(size, alignment, PROT_NONE, MAP_NORESERVE, GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE, text);
}

Result<void*> reserve_at(void* address, uint64_t size) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
  void* const there = mmap(address, size, PROT_NONE, kFlags, -1, 0);
  if (there == MAP_FAILED) {
    const int error = errno;
    if (error == EEXIST) {
      return system_error(GPUMEM_ERROR_ALREADY_EXISTS, error, "mmap",
                          "the addresses are in use; pass others, or NULL for any");
    }
    return map_error(GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE, error, "mmap", "the addresses cannot be reserved");
  }
  if (there != address) {  // before Linux 4.17 it is only a hint
    munmap(there, size);
    return system_error(GPUMEM_ERROR_ALREADY_EXISTS, EEXIST, "mmap",
                        "the addresses are in use; pass others, or NULL for any");
  }
  if (madvise(there, size, MADV_DONTFORK) == 0) return there;
  const Error failure =
      map_error(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, errno, "madvise", "the addresses cannot be reserved");
  munmap(there, size);
  return failure;
}

Result<void*> map_anonymous(uint64_t size, uint64_t alignment) {
  return map(size, alignment, PROT_READ | PROT_WRITE, 0, GPUMEM_ERROR_OUT_OF_HOST_MEMORY,
             "the system does not have enough memory");
}

Result<void*> map_lazily(uint64_t size) {
  return map(size, page_size(), PROT_READ | PROT_WRITE, MAP_NORESERVE, GPUMEM_ERROR_OUT_OF_HOST_MEMORY,
             "the system has not enough memory for the library's records");
}

namespace {

int bits_of(Protection protection) {
  if (protection == Protection::kNone) return PROT_NONE;
  return protection == Protection::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
}

}  // namespace

Result<void*> map_file(int file_descriptor, uint64_t size, void* address, Protection protection) {
  constexpr const char* kWhat = "cannot map the memory";
  void* const view = mmap(address, size, bits_of(protection),
                          MAP_SHARED | (address == nullptr ? 0 : MAP_FIXED), file_descriptor, 0);
  if (view == MAP_FAILED && (errno == EACCES || errno == EPERM)) {
    return system_error(GPUMEM_ERROR_NO_ACCESS, errno, "mmap",
                        "the file descriptor does not allow this access; ask for GPUMEM_ACCESS_READ");
  }
  if (view == MAP_FAILED) return map_error(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, errno, "mmap", kWhat);
  if (madvise(view, size, MADV_DONTFORK) == 0) return view;
  const Error failure = map_error(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, errno, "madvise", kWhat);
  if (address == nullptr) {
    munmap(view, size);
  } else {
    (void)make_inaccessible(view, size);
  }
  return failure;
}

Result<void> protect(void* address, uint64_t size, Protection protection) {
  if (mprotect(address, size, bits_of(protection)) == 0) return {};
  return map_error(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, errno, "mprotect", "cannot change the protection");
}

// A size of 0 leaves the view where it is.
Result<void> map_again(void* view, uint64_t size, void* address) {
  if (mremap(view, 0, size, MREMAP_MAYMOVE | MREMAP_FIXED, address) != MAP_FAILED) return {};
  const Error failure = map_error(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, errno, "mremap", "cannot map the memory");
  (void)make_inaccessible(address, size);  // the addresses may be unmapped now
  return failure;
}

Result<void> make_inaccessible(void* address, uint64_t size) {
  constexpr const char* kWhat = "cannot make the address range inaccessible";
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  // No MADV_DONTFORK, because a child cannot use the range either.
  if (mmap(address, size, PROT_NONE, kFlags, -1, 0) != MAP_FAILED) return {};
  return system_error(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, errno, "mmap", kWhat);
}

void keep_from_children(void* address, uint64_t size) { (void)madvise(address, size, MADV_DONTFORK); }

void give_to_children(void* address, uint64_t size) { (void)madvise(address, size, MADV_DOFORK); }

void unmap(void* address, uint64_t size) { munmap(address, size); }

bool set_accessible(void* address, uint64_t size, bool accessible) {
  return mprotect(address, size, accessible ? PROT_READ | PROT_WRITE : PROT_NONE) == 0;
}

bool discard(void* address, uint64_t size) { return advise(address, size, MADV_REMOVE) == 0; }

namespace {

// Processors that the calling thread may run on.
uint32_t processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return std::max(1U, std::thread::hardware_concurrency());
  return static_cast<uint32_t>(std::max(1, CPU_COUNT(&set)));
}

// Calls `work` for the parts of a range, on this thread and helpers that are gone at the end, as many as
// there are processors for. Parts begin at whole huge pages of an aligned range, and are small enough that no
// thread is left alone with the last one.
template <class F>
void in_parallel(uint64_t size, uint32_t threads_max, F work) {
  const uint32_t threads = std::clamp(threads_max, 1U, processors());
  constexpr uint64_t kHugePage = uint64_t{2} << 20;
  constexpr uint64_t kPartMax = uint64_t{32} << 20;
  constexpr uint64_t kPartsOfThread = 4;
  const uint64_t part =
      std::clamp(round_up(size / (threads * kPartsOfThread), kHugePage), kHugePage, kPartMax);
  std::atomic<uint64_t> next{0};
  const auto run = [&] {
    for (uint64_t offset = next.fetch_add(part); offset < size; offset = next.fetch_add(part))
      work(offset, std::min(part, size - offset));
  };
  const uint64_t helpful = std::min<uint64_t>(threads, (size + part - 1) / part);
  std::vector<std::thread> helpers;
  try {
    helpers.reserve(helpful);
    while (helpers.size() + 1 < helpful) {
      helpers.push_back(start_thread([&] {
        pthread_setname_np(pthread_self(), "gpumem-pages");
        run();
      }));
    }
  } catch (const std::exception&) {
    // Without another thread, go on with fewer: those that run must be joined.
  }
  run();
  for (std::thread& helper : helpers)
    helper.join();
}

}  // namespace

Result<void> populate(void* address, uint64_t size, uint32_t threads) {
  std::atomic<int> error{0};
  in_parallel(size, threads, [&](uint64_t offset, uint64_t length) {
    if (error != 0) return;
    void* const part = pointer_to(address_of(address) + offset);
    const int reason = advise(part, length, MADV_POPULATE_WRITE);
    if (reason == 0) return;
    // Older kernels lack the advice; the probe writes without changing bytes.
    if (reason != EINVAL || !writable(part, length)) error = reason;
  });
  if (error == 0) return {};
  return system_error(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, error, "madvise", "cannot populate the pages");
}

Result<void> fill_memory_file(int file_descriptor, uint64_t size, int byte) {
  const std::vector<char> bytes(std::min(size, uint64_t{64} << 10), static_cast<char>(byte));
  for (uint64_t done = 0; done < size; done += bytes.size()) {
    auto written =
        write_file(file_descriptor, done, bytes.data(), std::min<uint64_t>(size - done, bytes.size()));
    if (written) continue;
    Error lack = reworded(written.error(), "the system does not have enough memory");
    lack.status = GPUMEM_ERROR_OUT_OF_HOST_MEMORY;
    return lack;
  }
  return {};
}

void touch_fresh(void* address, uint64_t size, uint32_t threads) {
  const uint64_t page = page_size();
  in_parallel(size, threads, [&](uint64_t offset, uint64_t length) {
    auto* const part = static_cast<volatile char*>(address) + offset;
    for (uint64_t at = 0; at < length; at += page)
      part[at] = 0;
  });
}

uint64_t absent_bytes(const void* address, uint64_t size) {
  constexpr uint64_t kSamples = 64;
  const uint64_t page = page_size();
  const uint64_t begin = round_down(address_of(address), page);
  const uint64_t pages = (round_up(address_of(address) + size, page) - begin) / page;
  const uint64_t samples = std::min(pages, kSamples);
  uint64_t absent = 0;
  for (uint64_t i = 0; i < samples; ++i) {
    unsigned char present = 1;
    if (mincore(pointer_to(begin + pages / samples * i * page), page, &present) != 0) return 0;
    if ((present & 1) == 0) ++absent;
  }
  return size / samples * absent;
}

// By number, because sanitizers replace the C library's functions with no-ops.
Result<void> lock(void* address, uint64_t size) {
  if (syscall(SYS_mlock, address, size) == 0) return {};
  const int error = errno;
  if (error == ENOMEM || error == EPERM) {
    rlimit limit{};
    (void)getrlimit(RLIMIT_MEMLOCK, &limit);
    char text[128];
    std::snprintf(text, sizeof text,
                  "the pages do not fit within RLIMIT_MEMLOCK, which is %" PRIu64
                  " bytes; raise `ulimit -l`, or lock less",
                  uint64_t{limit.rlim_cur});
    return system_error(GPUMEM_ERROR_LIMIT_EXCEEDED, error, "mlock", text);
  }
  return system_error(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, error, "mlock", "cannot lock the pages");
}

void unlock(void* address, uint64_t size) { syscall(SYS_munlock, address, size); }

// The kernel refuses this hint for locked pages, and it changes no byte.
bool any_locked(const void* address, uint64_t size) {
  void* const first = const_cast<void*>(address);
  if (madvise(first, size, MADV_COLD) == 0 || errno != EINVAL) return false;
  return madvise(first, 0, MADV_COLD) == 0;  // the kernel knows the hint
}

void use_huge_pages(void* address, uint64_t size) { madvise(address, size, MADV_HUGEPAGE); }

bool readable(const void* address, uint64_t size) {
  return every_page(address, size, MADV_POPULATE_READ, word_readable);
}

bool writable(const void* address, uint64_t size) {
  return every_page(address, size, MADV_POPULATE_WRITE, word_writable);
}

const void* find_denied_row(const void* first, uint64_t pitch, uint64_t width, uint64_t height, bool write) {
  const auto allowed = write ? writable : readable;
  // The kernel provides the pages that it is asked about, so leave out those that no row touches.
  const bool gapless = height == 1 || pitch - width < page_size();
  if (gapless && allowed(first, (height - 1) * pitch + width)) return nullptr;
  for (uint64_t row = 0; row < height; ++row) {
    const void* const start = pointer_to(address_of(first) + row * pitch);
    if (!allowed(start, width)) return start;
  }
  return nullptr;
}

bool mapped(const void* address, uint64_t size) {
  const uint64_t page = page_size();
  const uint64_t end = round_up(address_of(address) + size, page);
  unsigned char present[4096];
  uint64_t step = 0;
  for (uint64_t at = round_down(address_of(address), page); at < end; at += step) {
    step = std::min(end - at, sizeof present * page);
    // The kernel may lack memory to answer; then using the pages reports it.
    if (mincore(pointer_to(at), step, present) != 0 && errno != EAGAIN) return false;
  }
  return true;
}

Mapping probe(const void* address, uint64_t size) {
  if (writable(address, size)) return Mapping::kWritable;
  return readable(address, size) ? Mapping::kReadOnly : Mapping::kNone;
}

}  // namespace gpumem::platform
