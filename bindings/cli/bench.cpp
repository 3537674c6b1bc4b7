// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// gpumem bench: runs the benchmark program that is installed with this one, and makes a report of its
// results.
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include "commands.h"
#include "file.h"
#include "interrupt.h"
#include "output.h"
#include "report.h"

extern char** environ;

namespace gpumem::cli {

namespace {

namespace fs = std::filesystem;

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  int get() const { return number_; }

 private:
  int number_;
};

// Found from where this program lies, so that a tree can be moved as a whole.
std::string benchmark_program() {
  // GPUMEM_BENCH | a file | that installed with `gpumem` | the benchmark program of
  // [gpumem bench](performance.md)
  if (const char* named = std::getenv("GPUMEM_BENCH"); named != nullptr && *named != 0) return named;
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  const fs::path from_here = fs::path(GPUMEM_LIBEXECDIR).lexically_relative(GPUMEM_BINDIR);
  const fs::path program = (self.parent_path() / from_here / "gpumem_bench").lexically_normal();
  if (error || access(program.c_str(), X_OK) != 0) {
    throw std::runtime_error("the benchmarks are not installed: there is no " + program.string() +
                             ". Build gpumem with -Dbench=true, or let GPUMEM_BENCH name the program");
  }
  return program;
}

std::vector<std::string> command_line(const BenchOptions& options, const std::string& program) {
  std::vector<std::string> words = {program};
  const auto add = [&](const char* option, const std::string& value) {
    words.insert(words.end(), {option, value});
  };
  const char* const named = std::getenv("GPUMEM_BACKEND");
  add("--backend", !options.backend.empty()          ? options.backend
                   : named != nullptr && *named != 0 ? named
                                                     : "any");
  for (const std::string& group : options.groups)
    add("--group", group);
  if (options.repeat != 0) add("--repeat", std::to_string(options.repeat));
  if (options.quick) words.emplace_back("--quick");
  if (options.traces) add("--traces", *options.traces);
  return words;
}

Descriptor memory_file() {
  const int file = memfd_create("results", MFD_CLOEXEC);
  if (file < 0) throw std::system_error(errno, std::generic_category(), "memfd_create");
  return Descriptor(file);
}

// The benchmark program while it runs. It inherits two descriptors: of its results, and of a pipe that ends
// with it.
class Benchmark {
 public:
  Benchmark(std::vector<std::string> words, int results, int output) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "no pipe");
    pipe_.emplace(ends[0]);
    const Descriptor held(ends[1]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    // The same number twice: it is inherited.
    posix_spawn_file_actions_adddup2(&actions, held.get(), held.get());
    posix_spawn_file_actions_adddup2(&actions, results, results);
    posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    std::vector<char*> list;
    for (std::string& word : words)
      list.push_back(word.data());
    list.push_back(nullptr);
    const int problem = posix_spawn(&child_, list.front(), &actions, nullptr, list.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (problem != 0)
      throw std::runtime_error(shown(words.front()) + " cannot be started: " + std::strerror(problem));
  }
  Benchmark(const Benchmark&) = delete;
  Benchmark& operator=(const Benchmark&) = delete;
  // Only an interrupt leaves it running.
  ~Benchmark() {
    if (child_ > 0 && !ended_) {
      kill(child_, SIGTERM);
      wait();
    }
  }

  // Its exit status. It has said what went wrong.
  int finish() {
    wait_for_interrupt(pipe_->get());
    stop_if_interrupted();
    const int status = wait();
    if (WIFSIGNALED(status)) {
      throw std::runtime_error("the benchmark program was ended by signal " +
                               std::to_string(WTERMSIG(status)) + " (" + strsignal(WTERMSIG(status)) + ")");
    }
    return WEXITSTATUS(status);
  }

 private:
  int wait() {
    int status = 0;
    while (waitpid(child_, &status, 0) < 0 && errno == EINTR) {
    }
    ended_ = true;
    return status;
  }

  std::optional<Descriptor> pipe_;
  pid_t child_ = -1;
  bool ended_ = false;
};

Json parsed(const std::string& text, const std::string& source) {
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) throw std::runtime_error(shown(source) + " is no JSON");
  return json;
}

std::string content(int descriptor) {
  const off_t size = lseek(descriptor, 0, SEEK_END);
  std::string text(static_cast<size_t>(std::max<off_t>(size, 0)), '\0');
  if (pread(descriptor, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
    throw std::system_error(errno, std::generic_category(), "the results cannot be read");
  return text;
}

Json read_json(const std::string& name) {
  InputFile file(name);
  std::string text(file.size(), '\0');
  file.read(reinterpret_cast<std::byte*>(text.data()), text.size());
  return parsed(text, name);
}

void write(OutputFile* file, const std::string& text) {
  file->write(reinterpret_cast<const std::byte*>(text.data()), text.size());
  file->finish();
}

void add_peers(Json* results, const std::vector<std::string>& files) {
  for (const std::string& name : files) {
    const Json peers = read_json(name);
    check_peers(peers, name);
    for (const char* key : {"peers", "missing"}) {
      if (!results->contains(key)) (*results)[key] = Json::array();
      for (const Json& one : peers.at(key))
        (*results)[key].push_back(one);
    }
  }
}

// The table that the benchmark program prints, of a name and a text, as wide as the terminal.
int list_groups() {
  const Descriptor printed = memory_file();
  const int status = Benchmark({benchmark_program(), "--list"}, printed.get(), printed.get()).finish();
  Table table({}, {}, "");
  std::istringstream lines(content(printed.get()));
  for (std::string line; std::getline(lines, line);) {
    const size_t end = std::min(line.find(' '), line.size());
    table.add({line.substr(0, end), line.substr(std::min(line.find_first_not_of(' ', end), line.size()))});
  }
  std::cout << table.text();
  return status;
}

}  // namespace

int bench(const BenchOptions& options) {
  watch_signals();
  if (options.list) return list_groups();
  const bool to_output = options.json == "-";
  // What cannot be written, and what cannot be read, is said before minutes are spent. What an earlier run
  // has written stays until there is something in its place.
  std::optional<OutputFile> json;
  std::optional<OutputFile> html;
  Json peers = Json::object();
  add_peers(&peers, options.with);
  Json results;
  if (options.from) {
    results = read_json(*options.from);
    check_results(results, *options.from);
  }
  if (options.svg) fs::create_directories(*options.svg);
  if (options.json && !to_output) json.emplace(*options.json);
  if (options.html) html.emplace(*options.html);

  int status = kExitSuccess;
  if (!options.from) {
    const Descriptor file = memory_file();
    const Descriptor nothing(open("/dev/null", O_WRONLY | O_CLOEXEC));
    std::vector<std::string> words = command_line(options, benchmark_program());
    words.insert(words.end(), {"--json", "/proc/self/fd/" + std::to_string(file.get())});
    flush_output();
    status = Benchmark(std::move(words), file.get(), to_output ? nothing.get() : STDOUT_FILENO).finish();
    // One group may have failed, and the others have results.
    const std::string answer = content(file.get());
    if (answer.empty()) return status;
    results = parsed(answer, "the benchmark program's answer");
    check_results(results, "the benchmark program's answer");
  }
  for (const auto& [key, list] : peers.items()) {
    if (!results.contains(key)) results[key] = Json::array();
    results[key].insert(results[key].end(), list.begin(), list.end());
  }

  if (to_output) print_json(results);
  if (json) write(&*json, results.dump(1, ' ', false, Json::error_handler_t::replace) + '\n');
  if (html) write(&*html, html_report(results));
  if (options.svg) {
    for (const Plot& plot : plots_of(results)) {
      OutputFile file((fs::path(*options.svg) / (plot.id + ".svg")).string());
      write(&file, svg(plot, true));
    }
  }
  return status;
}

}  // namespace gpumem::cli
