// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Pages of the process: what the kernel says about them afterwards.
#include "platform/pages.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/arithmetic.h"
#include "hole.h"
#include "platform/descriptor.h"
#include "platform/text_file.h"
#include "process_support.h"

namespace gpumem::platform {
namespace {

using test::exit_code_of;
using test::faults;
using test::has_flag;
using test::mapping_flags;

const uint64_t kPage = page_size();
constexpr uint64_t kMiB = uint64_t{1} << 20;

void* at(void* base, uint64_t offset) { return static_cast<char*>(base) + offset; }

// Three pages of the process with the given rights, unmapped at the end.
class ThreePages {
 public:
  ThreePages(int first, int second, int third) : address_(test::map_below_gap(3 * kPage)) {
    std::fill_n(static_cast<char*>(address_), 3 * kPage, 'x');
    int page = 0;
    for (const int rights : {first, second, third}) {
      mprotect(at(address_, static_cast<uint64_t>(page++) * kPage), kPage, rights);
    }
  }
  ~ThreePages() { munmap(address_, 3 * kPage); }
  void* address() const { return address_; }

 private:
  void* address_;
};

constexpr int kBoth = PROT_READ | PROT_WRITE;

TEST(Pages, SystemErrorNamesTheCause) {
  const Error error = system_error(GPUMEM_ERROR_LIMIT_EXCEEDED, EMFILE, "memfd_create", "no file");
  EXPECT_EQ(error.status, GPUMEM_ERROR_LIMIT_EXCEEDED);
  EXPECT_EQ(error.native_domain, GPUMEM_NATIVE_ERRNO);
  EXPECT_EQ(error.native_code, EMFILE);
  EXPECT_STREQ(error.native_name, "EMFILE");
  EXPECT_STREQ(error.entry_point, "memfd_create");
  EXPECT_STREQ(error.message, "no file: Too many open files");
  EXPECT_STREQ(system_error(GPUMEM_ERROR_INTERNAL, 99999, "x", "y").message, "y: unknown error");
}

TEST(Descriptors, TheirLackNamesTheLimit) {
  const Error process = no_descriptor(EMFILE, "open");
  EXPECT_EQ(process.status, GPUMEM_ERROR_LIMIT_EXCEEDED);
  EXPECT_STREQ(process.native_name, "EMFILE");
  const std::string limit =
      "of the " + std::to_string(descriptor_limit()) + " that it may have (RLIMIT_NOFILE)";
  EXPECT_NE(std::strstr(process.message, limit.c_str()), nullptr) << process.message;
  EXPECT_NE(std::strstr(process.message, "raise `ulimit -n`"), nullptr) << process.message;
  const Error system = no_descriptor(ENFILE, "open");
  EXPECT_EQ(system.status, GPUMEM_ERROR_LIMIT_EXCEEDED);
  EXPECT_NE(std::strstr(system.message, "(sysctl fs.file-max)"), nullptr) << system.message;
  EXPECT_EQ(std::strstr(system.message, "ulimit"), nullptr) << system.message;
}

TEST(Pages, MemoryFileHasItsSizeAndKeepsIt) {
  auto file = memory_file(2 * kPage);
  ASSERT_TRUE(file);
  EXPECT_EQ(lseek(*file, 0, SEEK_END), static_cast<off_t>(2 * kPage));
  EXPECT_EQ(ftruncate(*file, static_cast<off_t>(kPage)), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(*file, static_cast<off_t>(3 * kPage)), -1);
  EXPECT_EQ(fcntl(*file, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  close_file(*file);
  EXPECT_EQ(fcntl(*file, F_GETFD), -1);
}

TEST(Pages, MemoryFileOfImpossibleSizeLeavesNoFile) {
  const uint64_t before = test::open_files();
  const auto file = memory_file(kSizeMax + 1);
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().status, GPUMEM_ERROR_OUT_OF_HOST_MEMORY);
  EXPECT_EQ(test::open_files(), before);
}

TEST(Pages, MemoryFileBeyondTheLimitOfFilesIsRefused) {
  // Without a check the child would end by SIGXFSZ.
  EXPECT_EQ(test::exit_code_of([] {
              const rlimit limit{2 * kPage, 2 * kPage};
              if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
              const auto refused = memory_file(3 * kPage);
              if (refused || refused.error().status != GPUMEM_ERROR_LIMIT_EXCEEDED) return 2;
              if (std::strstr(refused.error().message, "RLIMIT_FSIZE") == nullptr) return 3;
              return memory_file(2 * kPage) ? 0 : 4;
            }),
            0);
}

TEST(Pages, ARefusedMemoryFileNamesTheCallAndTheFilter) {
  for (const int code : {EPERM, EACCES, ENOSYS}) {
    const int result = test::exit_code_of([code] {
      if (!test::refuse_system_call(SYS_memfd_create, static_cast<uint32_t>(code))) return 77;
      const auto refused = memory_file(kPage);
      if (refused || refused.error().status != GPUMEM_ERROR_PERMISSION_DENIED) return 1;
      if (refused.error().native_code != code) return 2;
      return std::strstr(refused.error().message, "memfd_create") != nullptr &&
                     std::strstr(refused.error().message, "seccomp") != nullptr
                 ? 0
                 : 3;
    });
    if (result == 77) GTEST_SKIP() << "this system takes no filter of system calls";
    EXPECT_EQ(result, 0) << strerrorname_np(code);
  }
}

TEST(Pages, DiscardedPagesAreGone) {
  auto file = memory_file(2 * kPage);
  ASSERT_TRUE(file);
  auto view = map_file(*file, 2 * kPage, nullptr);
  ASSERT_TRUE(view);
  std::fill_n(static_cast<char*>(*view), 2 * kPage, 'x');
  ASSERT_TRUE(discard(*view, kPage));
  EXPECT_EQ(*static_cast<char*>(*view), 0);
  EXPECT_EQ(*static_cast<char*>(at(*view, kPage)), 'x');
  unmap(*view, 2 * kPage);
  close_file(*file);
}

// As in qemu-user. Here a filter answers for the system.
TEST(Pages, AdviceThatIsIgnoredIsNotBelieved) {
  constexpr int kNoFilter = 7;
  const auto range = reserve(2 * kPage, kPage);
  ASSERT_TRUE(range);
  EXPECT_EQ(advise(*range, kPage, MADV_NORMAL), 0);
  EXPECT_EQ(advise(*range, kPage, -1), EINVAL);
  const int code = exit_code_of([&] {
    if (!test::refuse_system_call(SYS_madvise, 0)) return kNoFilter;
    if (advise(*range, kPage, MADV_WIPEONFORK) != EINVAL) return 1;
    if (readable(*range, 2 * kPage)) return 2;
    if (populate(*range, 2 * kPage, 1)) return 3;
    return discard(*range, kPage) ? 4 : 5;
  });
  unmap(*range, 2 * kPage);
  if (code == kNoFilter) GTEST_SKIP() << "this system takes no filter of system calls";
  EXPECT_EQ(code, 5);
}

TEST(Pages, ReserveIsAlignedInaccessibleAndNotInherited) {
  for (const uint64_t alignment : {kPage, 2 * kMiB, 1024 * kMiB}) {
    auto range = reserve(3 * kPage, alignment);
    ASSERT_TRUE(range) << range.error().message;
    EXPECT_EQ(address_of(*range) % alignment, 0U);
    for (uint64_t page = 0; page < 3; ++page) {
      EXPECT_TRUE(faults(at(*range, page * kPage), false));
      EXPECT_TRUE(has_flag(at(*range, page * kPage), "dc")) << mapping_flags(at(*range, page * kPage));
    }
    unmap(*range, 3 * kPage);
    EXPECT_FALSE(readable(*range, 1));
  }
}

TEST(Pages, ReserveBeyondTheAddressSpaceIsRefused) {
  for (const uint64_t alignment : {kPage, uint64_t{1} << 62}) {
    const auto range = reserve(uint64_t{1} << 62, alignment);
    ASSERT_FALSE(range);
    EXPECT_EQ(range.error().status, GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE);
    EXPECT_EQ(range.error().native_code, ENOMEM);
  }
}

TEST(Pages, AnonymousMemoryIsAlignedZeroAndNotInherited) {
  auto memory = map_anonymous(2 * kPage, 2 * kMiB);
  ASSERT_TRUE(memory);
  EXPECT_EQ(address_of(*memory) % (2 * kMiB), 0U);
  EXPECT_EQ(*static_cast<char*>(*memory), 0);
  EXPECT_FALSE(faults(at(*memory, 2 * kPage - 1), true));
  EXPECT_TRUE(has_flag(*memory, "dc"));
  unmap(*memory, 2 * kPage);
}

TEST(Pages, TwoViewsOfAFileAreTheSameBytes) {
  auto file = memory_file(2 * kPage);
  ASSERT_TRUE(file);
  auto view = map_file(*file, 2 * kPage, nullptr);
  ASSERT_TRUE(view);
  auto range = reserve(2 * kPage, kPage);
  ASSERT_TRUE(range);
  auto alias = map_file(*file, 2 * kPage, *range);
  ASSERT_TRUE(alias);
  close_file(*file);
  EXPECT_EQ(*alias, *range);
  static_cast<char*>(*view)[kPage] = 'a';
  EXPECT_EQ(static_cast<char*>(*alias)[kPage], 'a');
  EXPECT_TRUE(has_flag(*view, "dc"));
  EXPECT_TRUE(has_flag(*alias, "dc"));

  ASSERT_TRUE(make_inaccessible(*alias, 2 * kPage));
  EXPECT_TRUE(faults(*alias, false));
  EXPECT_EQ(static_cast<char*>(*view)[kPage], 'a');
  unmap(*alias, 2 * kPage);
  unmap(*view, 2 * kPage);
}

TEST(Pages, AnotherViewIsAsTheFirst) {
  auto file = memory_file(2 * kPage);
  ASSERT_TRUE(file);
  auto view = map_file(*file, 2 * kPage, nullptr);
  ASSERT_TRUE(view);
  close_file(*file);
  auto range = reserve(4 * kPage, kPage);
  ASSERT_TRUE(range);
  ASSERT_TRUE(map_again(*view, 2 * kPage, at(*range, kPage)));
  static_cast<char*>(*view)[kPage] = 'a';
  EXPECT_EQ(*static_cast<char*>(at(*range, 2 * kPage)), 'a');
  EXPECT_FALSE(faults(at(*range, kPage), true));
  EXPECT_TRUE(has_flag(at(*range, kPage), "dc")) << "not inherited";
  for (const uint64_t page : {uint64_t{0}, uint64_t{3}})
    EXPECT_TRUE(faults(at(*range, page * kPage), false)) << page;
  ASSERT_TRUE(protect(at(*range, kPage), 2 * kPage, Protection::kRead));
  EXPECT_TRUE(faults(at(*range, kPage), true));
  EXPECT_FALSE(faults(at(*range, kPage), false));
  unmap(*range, 4 * kPage);
  EXPECT_EQ(static_cast<char*>(*view)[kPage], 'a');
  unmap(*view, 2 * kPage);
}

TEST(Pages, AChildCannotUseWhatWasMadeInaccessible) {
  auto used = map_anonymous(kPage, kPage);
  ASSERT_TRUE(used);
  std::memset(*used, 'x', kPage);
  ASSERT_TRUE(make_inaccessible(*used, kPage));
  EXPECT_EQ(test::exit_code_of([&] {
              const bool kept = !mapping_flags(*used).empty();
              return kept && !has_flag(*used, "rd") && !has_flag(*used, "wr") ? 7 : 1;
            }),
            7);
  unmap(*used, kPage);
}

TEST(Pages, ProbeTellsTheLeastOfAllPages) {
  struct {
    int first, second, third;
    Mapping expected;
  } const cases[] = {
      {kBoth, kBoth, kBoth, Mapping::kWritable},
      {kBoth, PROT_READ, kBoth, Mapping::kReadOnly},
      {kBoth, kBoth, PROT_READ, Mapping::kReadOnly},
      {PROT_READ, PROT_NONE, kBoth, Mapping::kNone},
      {PROT_READ, PROT_READ, PROT_READ, Mapping::kReadOnly},
      {PROT_NONE, kBoth, kBoth, Mapping::kNone},
  };
  for (const auto& rights : cases) {
    const ThreePages pages(rights.first, rights.second, rights.third);
    EXPECT_EQ(probe(pages.address(), 3 * kPage), rights.expected);
    EXPECT_EQ(probe(at(pages.address(), 1), 2 * kPage), rights.expected);
  }
  const ThreePages pages(kBoth, PROT_READ, PROT_NONE);
  EXPECT_EQ(probe(pages.address(), kPage), Mapping::kWritable);
  EXPECT_EQ(probe(at(pages.address(), kPage - 1), 1), Mapping::kWritable);
  EXPECT_EQ(probe(at(pages.address(), kPage - 1), 2), Mapping::kReadOnly);
  EXPECT_EQ(probe(at(pages.address(), 2 * kPage - 1), 1), Mapping::kReadOnly);
  EXPECT_EQ(probe(at(pages.address(), 2 * kPage), 1), Mapping::kNone);
}

TEST(Pages, ProbeFindsAHoleAndChangesNothing) {
  const ThreePages pages(kBoth, kBoth, kBoth);
  ASSERT_EQ(probe(pages.address(), 3 * kPage), Mapping::kWritable);
  const std::string bytes(static_cast<char*>(pages.address()), 3 * kPage);
  EXPECT_EQ(bytes, std::string(3 * kPage, 'x'));
  munmap(at(pages.address(), kPage), kPage);
  EXPECT_EQ(probe(pages.address(), 3 * kPage), Mapping::kNone);
  EXPECT_FALSE(readable(pages.address(), 3 * kPage));
  EXPECT_FALSE(writable(pages.address(), 3 * kPage));
  EXPECT_TRUE(writable(pages.address(), kPage));
}

TEST(Pages, MappedLooksAtNoRights) {
  const ThreePages pages(kBoth, PROT_NONE, PROT_READ);
  EXPECT_TRUE(mapped(pages.address(), 3 * kPage));
  munmap(at(pages.address(), 2 * kPage), kPage);
  EXPECT_TRUE(mapped(pages.address(), 2 * kPage));
  EXPECT_FALSE(mapped(pages.address(), 2 * kPage + 1));
  EXPECT_FALSE(mapped(at(pages.address(), 2 * kPage), 1));
  EXPECT_FALSE(mapped(nullptr, 1));
}

TEST(Pages, MappedOfALargeRange) {
  const uint64_t size = 5000 * kPage;  // more than is asked for at once
  void* const range = test::map_below_gap(size, PROT_NONE);
  ASSERT_NE(range, MAP_FAILED);
  EXPECT_TRUE(mapped(range, size));
  munmap(at(range, 4500 * kPage), kPage);
  EXPECT_FALSE(mapped(range, size));
  munmap(range, size);
}

TEST(Pages, ProbeOfAddressesThatNobodyMapped) {
  for (const uint64_t address : {uint64_t{0}, uint64_t{8}, uint64_t{1} << 63, UINT64_MAX}) {
    EXPECT_EQ(probe(pointer_to(address), 1), Mapping::kNone);
  }
}

TEST(Pages, ProbePastTheEndOfAFileIsNoMapping) {
  const int file = memfd_create("short", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(file, static_cast<off_t>(kPage)), 0);
  void* const view = mmap(nullptr, 2 * kPage, kBoth, MAP_SHARED, file, 0);
  ASSERT_NE(view, MAP_FAILED);
  EXPECT_EQ(probe(view, kPage), Mapping::kWritable);
  EXPECT_EQ(probe(view, 2 * kPage), Mapping::kNone);
  EXPECT_EQ(probe(at(view, kPage), 1), Mapping::kNone);
  munmap(view, 2 * kPage);
  close(file);
}

TEST(Pages, ProbeOfACopyOnWriteFileLeavesTheFileAlone) {
  auto file = memory_file(2 * kPage);
  ASSERT_TRUE(file);
  void* const view = mmap(nullptr, 2 * kPage, kBoth, MAP_PRIVATE, *file, 0);
  ASSERT_NE(view, MAP_FAILED);
  EXPECT_EQ(probe(view, 2 * kPage), Mapping::kWritable);
  ASSERT_EQ(pwrite(*file, "late", 4, 0), 4);
  EXPECT_EQ(*static_cast<char*>(view), 0) << "the page was the process's own by then";
  munmap(view, 2 * kPage);
  close_file(*file);
}

TEST(Pages, PopulateBringsAllPagesAndChangesNone) {
  const uint64_t size = 100 * kMiB;
  auto memory = map_anonymous(size, kPage);
  ASSERT_TRUE(memory);
  static_cast<char*>(*memory)[70 * kMiB] = 'k';
  ASSERT_TRUE(populate(*memory, size, 3));
  std::vector<unsigned char> present(size / kPage);
  ASSERT_EQ(mincore(*memory, size, present.data()), 0);
  EXPECT_TRUE(
      std::all_of(present.begin(), present.end(), [](unsigned char page) { return (page & 1) != 0; }));
  EXPECT_EQ(static_cast<char*>(*memory)[70 * kMiB], 'k');
  unmap(*memory, size);
}

TEST(Pages, PopulateOfAHoleFails) {
  const ThreePages pages(kBoth, PROT_NONE, kBoth);
  const auto populated = populate(pages.address(), 3 * kPage, 1);
  ASSERT_FALSE(populated);
  EXPECT_EQ(populated.error().status, GPUMEM_ERROR_OUT_OF_HOST_MEMORY);
}

TEST(Pages, TouchBringsAllPagesOfFreshMemory) {
  for (const uint64_t size : {uint64_t{1}, kPage + 1, 2 * kMiB, 37 * kMiB + 5 * kPage}) {
    SCOPED_TRACE(size);
    const uint64_t whole = round_up(size, kPage);
    auto memory = map_anonymous(whole, kPage);
    ASSERT_TRUE(memory);
    ASSERT_EQ(madvise(*memory, whole, MADV_NOHUGEPAGE), 0);  // else one touch brings its neighbours
    touch_fresh(*memory, size, 5);
    std::vector<unsigned char> present(whole / kPage);
    ASSERT_EQ(mincore(*memory, whole, present.data()), 0);
    EXPECT_TRUE(
        std::all_of(present.begin(), present.end(), [](unsigned char page) { return (page & 1) != 0; }));
    unmap(*memory, whole);
  }
}

TEST(Pages, AbsentBytesAreEstimated) {
  const uint64_t size = 640 * kPage;
  auto memory = map_anonymous(size, kPage);
  ASSERT_TRUE(memory);
  ASSERT_EQ(madvise(*memory, size, MADV_NOHUGEPAGE), 0);
  EXPECT_EQ(absent_bytes(*memory, size), size);
  EXPECT_EQ(absent_bytes(at(*memory, 100), kPage), kPage) << "on two pages";
  ASSERT_TRUE(populate(*memory, size / 2, 1));
  EXPECT_EQ(absent_bytes(*memory, size), size / 2);
  EXPECT_EQ(absent_bytes(*memory, size / 2), 0u);
  ASSERT_TRUE(populate(*memory, size, 1));
  EXPECT_EQ(absent_bytes(*memory, size), 0u);
  unmap(*memory, size);
  EXPECT_EQ(absent_bytes(*memory, size), 0u) << "nothing there that could be populated";
}

TEST(Pages, LockAndUnlock) {
  SKIP_IF_LOCKING_IS_FORBIDDEN();
  const ThreePages pages(kBoth, kBoth, kBoth);
  const uint64_t before = test::locked_bytes();
  ASSERT_TRUE(lock(pages.address(), 2 * kPage));
  EXPECT_EQ(test::locked_bytes(), before + 2 * kPage);
  EXPECT_TRUE(has_flag(pages.address(), "lo"));
  EXPECT_FALSE(has_flag(at(pages.address(), 2 * kPage), "lo"));
  unlock(pages.address(), 2 * kPage);
  EXPECT_EQ(test::locked_bytes(), before);
}

TEST(Pages, TheLockLimitIsALimit) {
  SKIP_IF_LOCKING_IS_FORBIDDEN();
  const ThreePages pages(kBoth, kBoth, kBoth);
  const uint64_t before = test::locked_bytes();
  const test::LockLimit limit(before + kPage);
  const auto locked = lock(pages.address(), 3 * kPage);
  ASSERT_FALSE(locked);
  EXPECT_EQ(locked.error().status, GPUMEM_ERROR_LIMIT_EXCEEDED);
  EXPECT_STREQ(locked.error().entry_point, "mlock");
  EXPECT_EQ(test::locked_bytes(), before);
  ASSERT_TRUE(lock(pages.address(), kPage));
  unlock(pages.address(), kPage);
}

// Of a process that has memory left for a stream, but none for a buffer of that.
int read_a_limit_without_memory() {
  const char* const path = "/proc/sys/vm/max_map_count";
  const uint64_t limit = number_in(path, "");  // its stream is given back, and used again
  const rlimit none{0, 0};
  if (setrlimit(RLIMIT_AS, &none) != 0) return 2;
  for (size_t size = size_t{1} << 20; size > 600; size -= size > 4096 ? size / 16 : 16) {
    while (std::malloc(size) != nullptr) {
    }
  }
  const uint64_t again = number_in(path, "");
  return again == limit ? 0 : 1;
}

TEST(TextFile, ANumberIsReadAsAWholeWithoutMemory) {
  if (test::kAddressSanitizer || test::kThreadSanitizer)
    GTEST_SKIP() << "a sanitizer ends a process that gets no memory";
  EXPECT_EQ(test::exit_code_of(read_a_limit_without_memory), 0);
}

}  // namespace
}  // namespace gpumem::platform
