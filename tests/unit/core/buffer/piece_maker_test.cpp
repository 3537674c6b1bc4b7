// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// How many pieces of stores are made at once, and what becomes of those that no store took, over a backend
// that makes pinned memory when the test lets it.
#include "core/buffer/piece_maker.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "asleep.h"
#include "core/instance/instance.h"
#include "core/object/abandoned.h"
#include "platform/pages.h"
#include "stub_stream.h"

namespace gpumem::core {
namespace {

using test::unused;

constexpr uint64_t kPiece = Store::kPiece;

// Counts who makes memory, and holds them up.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    most_ = std::max(most_, ++inside_);
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
    --inside_;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void await(uint32_t inside) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return inside_ >= inside; });
  }
  // So many have been inside at once.
  uint32_t most() {
    const std::lock_guard lock(mutex_);
    return most_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint32_t inside_ = 0;
  uint32_t most_ = 0;
  bool open_ = false;
};

struct Counts {
  std::atomic<bool> refuses{false};  // to release
  std::atomic<uint32_t> made{0};
  std::atomic<uint32_t> tries{0};
  std::atomic<uint32_t> released{0};
};

// Addresses without memory.
class Addresses final : public backend::Memory {
 public:
  Addresses(Counts& counts, void* base, uint64_t size) : counts_(counts) {
    facts_.host_pointer = base;
    facts_.granted_size = size;
  }
  Result<void> release() override {
    ++counts_.tries;
    if (counts_.refuses) return make_error(GPUMEM_ERROR_BUSY, "as the test wants");
    platform::unmap(facts_.host_pointer, facts_.granted_size);
    ++counts_.released;
    return {};
  }

 private:
  Counts& counts_;
};

class GatedDevice final : public backend::Device {
 public:
  GatedDevice(Gate& gate, Counts& counts) : gate_(gate), counts_(counts) {}

  Result<std::unique_ptr<backend::Memory>> create_memory(const backend::MemoryRequest& request) override {
    gate_.pass();
    auto base = platform::reserve(request.size, platform::page_size());
    if (!base) return base.error();
    ++counts_.made;
    return {std::make_unique<Addresses>(counts_, *base, request.size)};
  }
  Result<backend::MemoryAvailable> memory_available() override { return unused(); }
  Result<void> synchronize() override { return unused(); }
  Result<std::unique_ptr<backend::Memory>> register_memory(const backend::RegistrationRequest&) override {
    return unused();
  }
  Result<std::shared_ptr<backend::Stream>> create_stream(int32_t) override { return unused(); }
  Result<std::shared_ptr<backend::Stream>> wrap_stream(void*) override { return unused(); }
  Result<void> await_released_streams() override { return {}; }
  Result<std::shared_ptr<backend::Event>> create_event(gpumem_event_flags) override { return unused(); }
  Result<std::shared_ptr<backend::Event>> wrap_event(void*, gpumem_event_flags) override { return unused(); }
  Result<void*> foreign_device_pointer(const void*) override { return unused(); }
  Result<bool> can_access_peer(backend::Device&) override { return unused(); }
  Result<bool> enable_peer_access(backend::Device&) override { return unused(); }
  Result<void> disable_peer_access(backend::Device&) override { return unused(); }
  backend::Capability capability(gpumem_capability, backend::Device*) override { return {}; }

 private:
  Gate& gate_;
  Counts& counts_;
};

class GatedBackend final : public backend::Backend {
 public:
  GatedBackend(Gate& gate, Counts& counts) {
    devices_.push_back(std::make_unique<GatedDevice>(gate, counts));
  }
  gpumem_backend kind() const override { return GPUMEM_BACKEND_HOST; }
  int32_t driver_version() const override { return 0; }
  bool strict() const override { return false; }
  const std::vector<std::unique_ptr<backend::Device>>& devices() const override { return devices_; }
  bool has_numa_node(int32_t) const override { return false; }
  Result<backend::PointerFacts> pointer_facts(const void*) override { return unused(); }

 private:
  std::vector<std::unique_ptr<backend::Device>> devices_;
};

// The threads of this process that make pieces.
std::vector<pid_t> makers() {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(entry.path() / "comm");
    std::string name;
    if (std::getline(file, name) && name == "gpumem-store")
      found.push_back(static_cast<pid_t>(std::stoi(entry.path().filename())));
  }
  return found;
}

class PieceMakerTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::temp_directory_path() / "gpumem_pieces_XXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
    std::filesystem::create_directories(root_ + "/proc/self");
    std::filesystem::create_directories(root_ + "/sys/fs/cgroup/job");
    std::ofstream(root_ + "/proc/self/cgroup") << "0::/job\n";
    std::ofstream(root_ + "/sys/fs/cgroup/job/memory.current") << "1000\n";
    instance_ =
        std::make_shared<Instance>(OpenRequest(), std::make_unique<GatedBackend>(gate_, counts_), Fallback());
    ASSERT_TRUE(instance_->page_map().open());
    ASSERT_TRUE(instance_->devices().make_objects(instance_));
    instance_->devices().publish_objects();
    store_.emplace(instance_->devices()[0], "store");
  }
  void TearDown() override {
    EXPECT_TRUE(store_->trim(0));
    store_.reset();
    EXPECT_EQ(counts_.released, counts_.made);
    instance_->devices().end_handles();
    instance_->devices().await_uses();
    instance_->devices().clear();
    std::filesystem::remove_all(root_);
  }

  // So much is left in the control group.
  void leave(uint64_t bytes) {
    std::ofstream(root_ + "/sys/fs/cgroup/job/memory.max") << 1000 + bytes << "\n";
  }
  void take_all(PieceMaker& maker) {
    while (!maker.done()) {
      const Result<void> added = maker.add_to(*store_);
      ASSERT_TRUE(added) << added.error().message;
    }
  }

  Gate gate_;
  Counts counts_;
  std::string root_;
  std::shared_ptr<Instance> instance_;
  std::optional<Store> store_;
};

TEST_F(PieceMakerTest, AsManyAtOnceAsTheControlGroupHasRoomFor) {
  leave(2 * kPiece);
  PieceMaker maker(*instance_, root_.c_str());
  ASSERT_TRUE(maker.order(*store_, {}, 4 * kPiece));
  maker.start();
  gate_.await(2);
  gate_.open();
  take_all(maker);
  EXPECT_EQ(gate_.most(), 2U);
  EXPECT_EQ(store_->capacity(), 4 * kPiece);
}

TEST_F(PieceMakerTest, OneAfterTheOtherWhereThereIsNoRoomForTwo) {
  leave(2 * kPiece - 1);
  PieceMaker maker(*instance_, root_.c_str());
  ASSERT_TRUE(maker.order(*store_, {}, 4 * kPiece));
  maker.start();
  gate_.await(1);
  while (makers().size() < 2)
    std::this_thread::yield();
  for (const pid_t thread : makers())
    test::wait_until_asleep(thread);
  gate_.open();
  take_all(maker);
  EXPECT_EQ(gate_.most(), 1U);
  EXPECT_EQ(store_->capacity(), 4 * kPiece);
}

TEST_F(PieceMakerTest, PiecesThatNoStoreTookAreReleasedLaterWhereTheBackendRefuses) {
  leave(2 * kPiece);
  {
    PieceMaker maker(*instance_, root_.c_str());
    ASSERT_TRUE(maker.order(*store_, {}, 2 * kPiece));
    maker.start();
    gate_.await(2);
    counts_.refuses = true;
    gate_.open();
  }
  EXPECT_EQ(counts_.tries, 2U);
  EXPECT_EQ(counts_.released, 0U);
  EXPECT_TRUE(instance_->has_abandoned());
  end_abandoned(*instance_);
  EXPECT_EQ(counts_.tries, 4U);
  EXPECT_TRUE(instance_->has_abandoned());
  counts_.refuses = false;
  end_abandoned(*instance_);
  EXPECT_EQ(counts_.released, 2U);
  EXPECT_FALSE(instance_->has_abandoned());
}

}  // namespace
}  // namespace gpumem::core
