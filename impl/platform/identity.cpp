// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "platform/identity.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "platform/descriptor.h"
#include "platform/pages.h"

namespace gpumem::platform {

namespace {

// Reads a small file as far as it fits, 0-terminated; empty if unreadable. False if only a descriptor was
// missing.
template <size_t N>
bool read_small_file(const char* path, char (&text)[N]) {
  text[0] = '\0';
  const Descriptor file(open(path, O_RDONLY | O_CLOEXEC));
  if (!file) return errno != EMFILE && errno != ENFILE;
  const ssize_t length = read(file.get(), text, N - 1);
  text[length > 0 ? length : 0] = '\0';
  return true;
}

}  // namespace

Id random_id() {
  Id id{};
  size_t done = 0;
  while (done < id.size()) {
    const ssize_t got = getrandom(id.data() + done, id.size() - done, 0);
    if (got < 0 && errno != EINTR) break;
    if (got > 0) done += static_cast<size_t>(got);
  }
  return id;
}

Result<Id> boot_id() {
  // Without a lock, which a forked child could find taken. Neither word of a random id is 0.
  static constinit std::array<std::atomic<uint64_t>, 2> known{};
  std::array<uint64_t, 2> words{known[0].load(), known[1].load()};
  if (words[0] != 0 && words[1] != 0) return std::bit_cast<Id>(words);
  char text[64];
  if (!read_small_file("/proc/sys/kernel/random/boot_id", text)) return no_descriptor(errno, "open");
  Id found{};
  size_t digits = 0;
  for (const char* at = text; *at != '\0' && digits < 2 * found.size(); ++at) {
    const char digit[2] = {*at, '\0'};
    char* end = nullptr;
    const auto value = static_cast<uint8_t>(std::strtoul(digit, &end, 16));
    if (end == digit) continue;
    found[digits / 2] = static_cast<uint8_t>(found[digits / 2] << 4 | value);
    ++digits;
  }
  words = std::bit_cast<std::array<uint64_t, 2>>(found);
  for (size_t i = 0; i < words.size(); ++i)
    known[i] = words[i];
  return found;
}

int32_t process_id() { return static_cast<int32_t>(getpid()); }

namespace {

// PF_EXITING, a flag of a process that is releasing its files, its network and the rest one by one.
constexpr unsigned long kExiting = 4;

struct ProcessFacts {
  bool asked = false;  // false if there was no free descriptor
  char state = '\0';   // as the system writes it; 0 if it shows no such process
  bool exiting = false;
  uint64_t start_time = 0;
};

ProcessFacts facts_of(int32_t process) {
  char path[32];
  char text[1024];
  std::snprintf(path, sizeof path, "/proc/%d/stat", process);
  ProcessFacts facts;
  facts.asked = read_small_file(path, text);
  // The name in parentheses may hold anything; the state follows, 6 fields after it the flags, and 19 the
  // time.
  const char* at = std::strrchr(text, ')');
  if (at == nullptr || at[1] != ' ') return facts;
  facts.state = at[2];
  for (int field = 0; at != nullptr && field < 20; ++field) {
    at = std::strchr(at + 1, ' ');
    if (at != nullptr && field == 6) facts.exiting = (std::strtoul(at, nullptr, 10) & kExiting) != 0;
  }
  if (at != nullptr) facts.start_time = std::strtoull(at, nullptr, 10);
  return facts;
}

}  // namespace

Result<uint64_t> start_time_of(int32_t process) {
  const ProcessFacts facts = facts_of(process);
  if (!facts.asked) return no_descriptor(errno, "open");
  return facts.start_time;
}

Result<uint64_t> own_start_time() { return start_time_of(process_id()); }

uint64_t process_namespace() {
  struct stat status {};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

bool process_lives(int32_t process, uint64_t start_time) {
  const ProcessFacts facts = facts_of(process);
  // A zombie has ended, although no one has waited for it yet.
  if (facts.state != '\0') {
    return facts.start_time == start_time && facts.state != 'Z' && facts.state != 'X';
  }
  return process > 0 && (kill(process, 0) == 0 || errno != ESRCH);
}

Result<Whereabouts> whereabouts_of(int32_t process, uint64_t start_time) {
  const ProcessFacts found = facts_of(process);
  if (!found.asked) return no_descriptor(errno, "open");
  if (found.start_time == 0 || found.start_time != start_time || found.exiting || found.state == 'Z' ||
      found.state == 'X')
    return Whereabouts::kEnded;
  char path[40];
  char own[64];
  char others[64];
  std::snprintf(path, sizeof path, "/proc/%d/ns/net", process);
  const ssize_t own_length = readlink("/proc/self/ns/net", own, sizeof own);
  const ssize_t length = readlink(path, others, sizeof others);
  if (length < 0 && errno == ENOENT) return Whereabouts::kEnded;  // it ended just now
  const bool same =
      length > 0 && length == own_length && std::memcmp(own, others, static_cast<size_t>(length)) == 0;
  return same ? Whereabouts::kSameNetwork : Whereabouts::kOtherNetwork;
}

}  // namespace gpumem::platform
