// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// gpumem trace record and show: runs a program with the library that writes its calls, and sums up what was
// written. docs/where-memory.md describes both.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>
#include <set>
#include <stdexcept>
#include <system_error>

#include "../commands.h"
#include "../output.h"
#include "history.h"

namespace gpumem::cli {

namespace {

namespace fs = std::filesystem;
using enum Table::Align;

constexpr const char* kShim = "libgpumem-trace.so";
constexpr size_t kMostRows = 10;
// As a shell and env have them.
constexpr int kExitNotFound = 127;
constexpr int kExitNotStarted = 126;
constexpr int kExitSignal = 128;

// Found from where this program lies, so that a tree can be moved as a whole.
std::string shim_path() {
  // GPUMEM_TRACE_SHIM | a file | that installed with `gpumem` | the library that
  // [gpumem trace record](where-memory.md#gpumem-trace) puts before that of gpumem
  const char* const named = std::getenv("GPUMEM_TRACE_SHIM");
  fs::path shim;
  if (named != nullptr && *named != 0) {
    shim = fs::absolute(named);
  } else {
    const fs::path from_here = fs::path(GPUMEM_LIBDIR).lexically_relative(GPUMEM_BINDIR);
    shim =
        (fs::read_symlink("/proc/self/exe").parent_path() / from_here / "gpumem" / kShim).lexically_normal();
  }
  if (access(shim.c_str(), R_OK) != 0) {
    throw std::runtime_error("the library that records is not installed: there is no " + shim.string() +
                             ". Let GPUMEM_TRACE_SHIM name it");
  }
  if (shim.string().find_first_of(" :") != std::string::npos) {
    throw std::runtime_error("the path of the library that records, " + shown(shim.string()) +
                             ", has a space or a colon, which LD_PRELOAD cannot have. Let GPUMEM_TRACE_SHIM "
                             "name a copy elsewhere");
  }
  return shim;
}

// The library that the program would use: the one that is named, or this program's own.
std::string library_path() {
  if (const char* named = std::getenv("GPUMEM_LIBRARY"); named != nullptr && *named != 0) return named;
  Dl_info info{};
  void* const function = dlsym(RTLD_DEFAULT, "gpumem_version");
  if (function == nullptr || dladdr(function, &info) == 0) return "libgpumem.so.0";
  std::error_code error;
  const fs::path path = fs::canonical(info.dli_fname, error);
  return error ? info.dli_fname : path.string();
}

// A new file: what another program may still write into is not shortened under it. One of that name waits
// beside it, and comes back unless the new one is kept.
class NewFile {
 public:
  explicit NewFile(const std::string& name) : name_(name) {
    struct stat status {};
    if (stat(name.c_str(), &status) == 0) {
      if (!S_ISREG(status.st_mode))
        throw std::runtime_error(shown(name) + " is no regular file: name one with -o");
      set_aside();
    }
    const int descriptor = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    const int problem = errno;
    if (descriptor < 0) {
      put_back();
      fail(problem);
    }
    close(descriptor);
    path_ = fs::canonical(name);
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    if (kept_) return;
    unlink(name_.c_str());
    put_back();
  }

  const std::string& path() const { return path_; }
  void keep() {
    kept_ = true;
    if (!before_.empty()) unlink(before_.c_str());
  }

 private:
  [[noreturn]] void fail(int problem) const {
    throw std::runtime_error("the file " + shown(name_) + " cannot be written: " + std::strerror(problem));
  }
  void set_aside() {
    std::string beside = name_ + ".before-XXXXXX";
    const int descriptor = mkostemp(beside.data(), O_CLOEXEC);
    if (descriptor < 0) fail(errno);
    close(descriptor);
    if (rename(name_.c_str(), beside.c_str()) != 0) {
      const int problem = errno;
      unlink(beside.c_str());
      fail(problem);
    }
    before_ = beside;
  }
  void put_back() const {
    if (!before_.empty()) rename(before_.c_str(), name_.c_str());
  }

  std::string name_;
  std::string path_;
  std::string before_;
  bool kept_ = false;
};

// Those of other processes.
std::set<std::string> files_beside(const std::string& file) {
  std::set<std::string> found;
  std::error_code error;
  const std::string prefix = fs::path(file).filename().string() + '.';
  for (const fs::directory_entry& entry : fs::directory_iterator(fs::path(file).parent_path(), error)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind(prefix, 0) == 0 &&
        name.find_first_not_of("0123456789.", prefix.size()) == std::string::npos)
      found.insert(entry.path().string());
  }
  return found;
}

[[noreturn]] void become(const TraceOptions& options, const std::string& file, const std::string& shim) {
  // LD_PRELOAD | a list of files | none | goes on to the program that is recorded, behind that library
  const char* const before = std::getenv("LD_PRELOAD");
  setenv("LD_PRELOAD", (before == nullptr || *before == 0 ? shim : shim + ':' + before).c_str(), 1);
  setenv("GPUMEM_TRACE_LIBRARY", library_path().c_str(), 1);
  setenv("GPUMEM_LIBRARY", shim.c_str(), 1);
  setenv("GPUMEM_TRACE_FILE", file.c_str(), 1);
  std::vector<char*> words;
  for (const std::string& word : options.program)
    words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  execvp(words.front(), words.data());
  const int problem = errno;
  complain(shown(options.program.front()) + " cannot be started: " + std::strerror(problem));
  _exit(problem == ENOENT ? kExitNotFound : kExitNotStarted);
}

pid_t child = -1;

int run_program(const TraceOptions& options, const std::string& file, const std::string& shim) {
  // What a terminal sends goes to the program too, and what somebody sends to this one is passed on.
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, &before);
  child = fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "no process");
  if (child == 0) {
    sigprocmask(SIG_SETMASK, &before, nullptr);
    become(options, file, shim);
  }
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  for (const int number : {SIGINT, SIGQUIT})
    sigaction(number, &ignore, nullptr);
  struct sigaction pass_on {};
  pass_on.sa_handler = [](int number) { kill(child, number); };
  for (const int number : {SIGTERM, SIGHUP, SIGUSR1, SIGUSR2})
    sigaction(number, &pass_on, nullptr);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

void print_notes(std::ostream& out, const Trace& trace) {
  if (trace.cut_off != 0) {
    out << wrapped(counted(trace.cut_off, "line ends", "lines end") +
                   " in the middle, as when the program is killed; " +
                   (trace.cut_off == 1 ? "it is" : "they are") + " left out.");
  }
  if (trace.lost != 0) {
    out << wrapped(counted(trace.lost, "call is", "calls are") +
                   " missing at the end: the disk was full, or the file had "
                   "reached the limit of the process.");
  }
}

// By how much or how long, the largest first.
template <typename T, typename Measure>
std::vector<const T*> largest(const std::vector<T>& all, Measure measure) {
  std::vector<const T*> list;
  for (const T& one : all) {
    if (measure(one) != 0) list.push_back(&one);
  }
  std::stable_sort(list.begin(), list.end(),
                   [&](const T* one, const T* other) { return measure(*one) > measure(*other); });
  return list;
}

void print_rest(std::ostream& out, size_t count, const char* what) {
  if (count > kMostRows) out << "  and " << count - kMostRows << ' ' << what << '\n';
}

void print_calls(std::ostream& out, const Trace& trace) {
  struct Sum {
    uint64_t count = 0;
    uint64_t failed = 0;
    uint64_t total = 0;
    uint64_t longest = 0;
  };
  std::map<std::string, Sum> sums;
  for (const TraceCall& call : trace.calls) {
    if (!call.first()) continue;
    Sum& sum = sums[call.call];
    ++sum.count;
    if (call.status < 0) ++sum.failed;
    sum.total += call.ns;
    sum.longest = std::max(sum.longest, call.ns);
  }
  Table table({"COUNT", "FAILED", "TOTAL", "LONGEST", "CALL"}, {kRight, kRight, kRight, kRight});
  for (const auto& [name, sum] : sums) {
    table.add({std::to_string(sum.count), std::to_string(sum.failed), time_text(sum.total),
               time_text(sum.longest), "gpumem_" + name});
  }
  out << "\nCalls\n" << table.text();
}

void print_memory(std::ostream& out, const Trace& trace, const History& history) {
  if (!history.kinds.empty()) {
    Table table({"LIVE", "TAKEN", "KIND"}, {kRight, kRight});
    for (const auto& [kind, usage] : history.kinds)
      table.add({size_text(usage.peak_live), size_text(usage.peak_taken), shown(kind)});
    out << "\nMost memory at a time\n" << table.text();
  }
  const auto left =
      largest(history.lives, [](const Life& life) { return life.end == kStillLives ? life.size : 0; });
  if (left.empty()) return;
  Table table({"BYTES", "NAME", "DEVICE", "MADE AT", "THREAD", "WHAT"},
              {kRight, kLeft, kRight, kRight, kRight});
  for (size_t i = 0; i < std::min(left.size(), kMostRows); ++i) {
    const Life& life = *left[i];
    table.add({size_text(life.size), life.name.empty() ? "(no name)" : shown(life.name),
               std::to_string(life.device), time_text(life.begin), std::to_string(life.thread),
               shown(life.kind) + ' ' + life.what});
  }
  out << "\nNever freed\n" << table.text();
  print_rest(out, left.size(), "smaller");
  uint64_t closed = 0;
  for (const TraceCall& call : trace.calls)
    closed += call[TraceField::kDestroyed];
  if (closed != 0)
    out << wrapped("gpumem_instance_close() destroyed " +
                       counted(closed, "object that was left", "objects that were left") + ".",
                   "  ");
}

void print_longest(std::ostream& out, const Trace& trace) {
  const auto longest = largest(trace.calls, [](const TraceCall& call) { return call.first() ? call.ns : 0; });
  Table table({"TIME", "BEGUN AT", "THREAD", "CALL"}, {kRight, kRight, kRight});
  for (size_t i = 0; i < std::min(longest.size(), kMostRows); ++i) {
    const TraceCall& call = *longest[i];
    const uint64_t size = call[TraceField::kSize];
    table.add({time_text(call.ns), time_text(call.start), std::to_string(call.thread),
               "gpumem_" + call.call + (size == 0 ? "" : ", " + size_text(size))});
  }
  if (!longest.empty()) out << "\nThe longest calls\n" << table.text();
}

}  // namespace

int trace_record(const TraceOptions& options) {
  const std::string shim = shim_path();
  NewFile made(options.output);
  const std::string& file = made.path();
  const std::set<std::string> before = files_beside(file);
  const int status = run_program(options, file, shim);
  const int result = WIFSIGNALED(status) ? kExitSignal + WTERMSIG(status) : WEXITSTATUS(status);
  if (WIFSIGNALED(status))
    complain("the program was ended by signal " + std::to_string(WTERMSIG(status)) + " (" +
             strsignal(WTERMSIG(status)) + ")");
  std::set<std::string> others = files_beside(file);
  for (const std::string& old : before)
    others.erase(old);
  struct stat written {};
  // The library that records removes a file that it cannot write, and has said why.
  if (stat(file.c_str(), &written) != 0) return result == kExitSuccess ? kExitFailure : result;
  if (written.st_size == 0) {
    if (result == kExitNotFound || result == kExitNotStarted) return result;
    complain(
        "nothing was recorded: the program made or freed no memory by gpumem, is linked statically, has "
        "raised privileges, or loads the library by a way of its own");
    return result;
  }
  made.keep();
  try {
    const Trace head = read_trace(file, true);
    complain("the calls of process " + std::to_string(head.process) + " are in " + shown(options.output) +
             (head.lost == 0 ? ""
                             : "; " + std::to_string(head.lost) +
                                   " of them had no room: the disk is full, or the file has reached the "
                                   "limit of the process"));
  } catch (const std::exception& problem) {
    complain(problem.what());  // the status is still the program's
  }
  for (const std::string& other : others)
    complain("the calls of another process are in " + shown(other));
  return result;
}

int trace_show(const TraceOptions& options) {
  const Trace trace = read_trace(options.file);
  const History history = history_of(trace);
  std::set<uint64_t> threads;
  for (const TraceCall& call : trace.calls)
    threads.insert(call.thread);
  const auto calls = std::count_if(trace.calls.begin(), trace.calls.end(),
                                   [](const TraceCall& call) { return call.first(); });
  std::cout << filled({"Process " + std::to_string(trace.process) + ",", shown(trace.command) + ",",
                       "gpumem " + shown(trace.version) + ",", date_text(trace.date)})
            << wrapped(counted(static_cast<uint64_t>(calls), "call", "calls") + " of " +
                       counted(threads.size(), "thread", "threads") + " in " + time_text(trace.length()));
  print_notes(std::cout, trace);
  print_calls(std::cout, trace);
  print_memory(std::cout, trace, history);
  print_longest(std::cout, trace);
  return kExitSuccess;
}

}  // namespace gpumem::cli
