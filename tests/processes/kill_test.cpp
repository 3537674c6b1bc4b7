// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Processes that are killed in the middle of calls: no file, socket, shared memory or lock stays behind.
#include <gtest/gtest-spi.h>
#include <sys/shm.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <sstream>

#include "process.h"

namespace processes {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);)
    lines.push_back(line);
  return lines;
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream text(line);
  return {std::istream_iterator<std::string>(text), {}};
}

// A folder for one process to work in, to call its home and to put temporary files in.
class Folder {
 public:
  Folder() : path_(testing::TempDir() + "processes_XXXXXX") { EXPECT_NE(mkdtemp(path_.data()), nullptr); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { fs::remove_all(path_); }
  const std::string& path() const { return path_; }
  // A driver keeps no cache of compiled code there, which would be its own and no litter.
  std::vector<std::string> environment() const {
    return {"HOME=" + path_, "TMPDIR=" + path_, "XDG_RUNTIME_DIR=" + path_, "XDG_CACHE_HOME=" + path_,
            "CUDA_CACHE_DISABLE=1"};
  }

 private:
  std::string path_;
};

// What this user has in places that all processes share.
std::set<std::string> shared_entries() {
  std::set<std::string> found;
  for (const char* folder : {"/dev/shm", "/tmp", "/run", "/var/tmp", "/dev/mqueue"}) {
    std::error_code problem;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, problem)) {
      struct stat status {};
      if (lstat(entry.path().c_str(), &status) == 0 && status.st_uid == geteuid())
        found.insert(entry.path().string());
    }
  }
  return found;
}

// What one process has while it lives and nobody may have afterwards, or what names it.
class Traces {
 public:
  explicit Traces(pid_t pid) : pid_(std::to_string(pid)) {
    std::error_code problem;
    for (const fs::directory_entry& entry : fs::directory_iterator("/proc/" + pid_ + "/fd", problem)) {
      const std::string target = fs::read_symlink(entry.path(), problem).string();
      if (target.rfind("socket:[", 0) == 0) sockets_.insert(target.substr(8, target.size() - 9));
      if (target.rfind("/", 0) == 0 && is_written(entry.path().filename().string())) files_.insert(target);
    }
  }

  std::vector<std::string> left(const std::string& folder) const {
    std::vector<std::string> left;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder))
      left.push_back("file " + entry.path().string());
    for (const std::string& line : lines_of("/proc/net/unix")) {
      const std::vector<std::string> words = words_of(line);
      const bool names_folder = line.find(folder) != std::string::npos;
      if (words.size() > 6 && (sockets_.count(words[6]) != 0 || names_folder))
        left.push_back("socket " + line);
    }
    for (const std::string& line : lines_of("/proc/locks")) {
      const std::vector<std::string> words = words_of(line);
      if (words.size() > 4 && words[4] == pid_) left.push_back("lock " + line);
    }
    for (const std::string& line : lines_of("/proc/sysvipc/shm")) {
      const std::vector<std::string> words = words_of(line);
      if (words.size() > 4 && words[4] == pid_) left.push_back("segment " + line);
    }
    for (const std::string& file : files_) {
      if ((file.rfind("/dev/shm/", 0) == 0 || file.rfind("/tmp/", 0) == 0) && fs::exists(file))
        left.push_back("open file " + file);
    }
    return left;
  }

 private:
  // A file that is only read, as a library while it is loaded, was there before.
  bool is_written(const std::string& descriptor) const {
    for (const std::string& line : lines_of("/proc/" + pid_ + "/fdinfo/" + descriptor)) {
      if (line.rfind("flags:", 0) == 0)
        return (std::stoul(line.substr(6), nullptr, 8) & O_ACCMODE) != O_RDONLY;
    }
    return false;
  }

  std::string pid_;
  std::set<std::string> sockets_;  // by inode
  std::set<std::string> files_;    // by path
};

// Kills a process and says what it left in places of its own.
std::vector<std::string> kill_and_look(Process& process, const std::string& folder) {
  const Traces traces(process.pid());
  EXPECT_TRUE(process.signal(SIGKILL));
  const Ending ending = process.wait();
  EXPECT_EQ(ending.wait_status, SIGKILL) << ending;
  EXPECT_EQ(ending.err, "");
  return traces.left(folder);
}

// Whether `entry` has `name` with no digit after it: a process has the id 12, another one has 123.
bool mentions(const std::string& entry, const std::string& name) {
  for (size_t at = entry.find(name); at != std::string::npos; at = entry.find(name, at + 1)) {
    const size_t after = at + name.size();
    if (after == entry.size() || std::isdigit(static_cast<unsigned char>(entry[after])) == 0) return true;
  }
  return false;
}

// New entries in shared places that mention one of the names. Other programs may make entries at the same
// time, and those that build and test the library often name theirs after it, but only in /tmp.
std::vector<std::string> new_entries(const std::set<std::string>& before,
                                     const std::set<std::string>& names) {
  std::vector<std::string> left;
  for (const std::string& entry : shared_entries()) {
    const bool named = std::any_of(names.begin(), names.end(),
                                   [&](const std::string& name) { return mentions(entry, name); });
    const bool of_library = entry.find("gpumem") != std::string::npos && entry.rfind("/tmp/", 0) != 0;
    if ((named || of_library) && before.count(entry) == 0) left.push_back(entry);
  }
  return left;
}

TEST(Kill, in_the_middle_of_anything_leaves_nothing) {
  constexpr uint32_t kKills = 60;
  constexpr uint32_t kLongest = 600;
  const std::set<std::string> before = shared_entries();
  std::set<std::string> names;
  std::mt19937 random(20);
  for (uint32_t seed = 0; seed < kKills; ++seed) {
    const Folder folder;
    // The first ones are killed early, where an instance opens.
    const size_t calls = seed < 10 ? seed : random() % kLongest;
    Process process({"churn", std::to_string(seed)}, folder.environment(), folder.path());
    ASSERT_GT(process.pid(), 0);
    for (const char* separator : {".", "-", "_"})
      names.insert(separator + std::to_string(process.pid()));
    const std::string said = process.read_out(calls);
    EXPECT_EQ(said, std::string(calls, '.')) << "seed " << seed << ": a call failed, or the process ended";
    EXPECT_EQ(kill_and_look(process, folder.path()), std::vector<std::string>()) << "seed " << seed;
  }
  EXPECT_EQ(new_entries(before, names), std::vector<std::string>());
}

// Its number would be -1, which stands for every process of the machine.
TEST(Kill, what_did_not_start_is_sent_no_signal) {
  EXPECT_NONFATAL_FAILURE(
      {
        Process process({"litter", "none"}, {}, "/no/such/folder");
        EXPECT_FALSE(process.signal(0));
        EXPECT_EQ(process.wait().wait_status, -1);
      },
      "cannot start");
}

// The same eyes see what a process does leave behind.
TEST(Kill, litter_is_found) {
  const Folder folder;
  const std::set<std::string> before = shared_entries();
  const std::string name = "processes-litter-" + std::to_string(getpid());
  Process process({"litter", name}, folder.environment(), folder.path());
  ASSERT_GT(process.pid(), 0);
  const std::string pid = std::to_string(process.pid());
  ASSERT_EQ(process.read_out(1), ".");
  const std::vector<std::string> left = kill_and_look(process, folder.path());
  const auto has = [&](const std::string& text) {
    return std::any_of(left.begin(), left.end(),
                       [&](const std::string& line) { return line.find(text) != std::string::npos; });
  };
  EXPECT_TRUE(has("file " + folder.path() + "/" + name));
  EXPECT_TRUE(has("open file /dev/shm/" + name));
  EXPECT_TRUE(has("segment "));
  EXPECT_EQ(new_entries(before, {name}), std::vector<std::string>{"/dev/shm/" + name});
  shm_unlink(("/" + name).c_str());
  for (const std::string& line : lines_of("/proc/sysvipc/shm")) {
    const std::vector<std::string> words = words_of(line);
    if (words.size() > 4 && words[4] == pid) shmctl(std::stoi(words[1]), IPC_RMID, nullptr);
  }
}

}  // namespace
}  // namespace processes
