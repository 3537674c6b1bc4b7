// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The threads that copy ordinary memory, over the fake driver, with settings that no caller can choose:
// pieces of a page, threads that end soon.
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/device/transfer.h"
#include "core/instance/instance.h"
#include "cuda_fake.h"
#include "process_support.h"

namespace gpumem::cuda {
namespace {

using core::Transfer;
using core::TransferBox;
using core::TransferOptions;
using core::TransferTuning;

constexpr uint64_t kSize = 1'000'003;

class CudaTransfer : public CudaFake {
 protected:
  void start(const TransferOptions& options = {3, 0}, uint64_t pin_budget = 0) {
    if (!instance_) {
      open();
      core::OpenRequest request;
      request.pin_budget = pin_budget;
      instance_.emplace(request, std::move(backend_), core::Fallback());
      backend::MemoryRequest wanted;
      wanted.sort = backend::MemorySort::kDevice;
      wanted.size = kSize;
      auto made = device().create_memory(wanted);
      ASSERT_TRUE(made.ok());
      memory_ = std::move(*made);
    }
    transfer_.reset();
    transfer_.emplace(*instance_, device(), options, tuning_);
  }
  void TearDown() override {
    transfer_.reset();
    if (memory_ != nullptr) EXPECT_DONE(memory_->release());
    memory_.reset();
    instance_.reset();
    CudaFake::TearDown();
  }
  backend::Device& device() { return instance_->devices()[0].backend(); }

  Result<bool> copy(bool to_device, std::vector<uint8_t>& host) {
    TransferBox box;
    backend::Span& there = to_device ? box.destination : box.source;
    backend::Span& here = to_device ? box.source : box.destination;
    there.memory = memory_.get();
    there.address = memory_->facts().device_pointer;
    there.on_device = true;
    here.address = host.data();
    here.pageable = true;
    box.width = host.size();
    return transfer_->copy(box);
  }
  static std::vector<uint8_t> pattern(uint32_t seed) {
    std::vector<uint8_t> bytes(kSize);
    for (uint8_t& byte : bytes)
      byte = static_cast<uint8_t>((seed = seed * 1664525 + 1013904223) >> 24);
    return bytes;
  }
  // There and back by the threads.
  void round_trip(uint32_t seed) {
    std::vector<uint8_t> sent = pattern(seed);
    std::vector<uint8_t> back(kSize);
    auto done = copy(true, sent);
    ASSERT_TRUE(done.ok()) << done.error().message;
    ASSERT_TRUE(*done);
    done = copy(false, back);
    ASSERT_TRUE(done.ok()) << done.error().message;
    ASSERT_TRUE(*done);
    EXPECT_TRUE(sent == back);
  }
  static bool becomes(const std::function<bool()>& condition) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (std::chrono::steady_clock::now() < limit) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  TransferTuning tuning_;
  std::optional<core::Instance> instance_;
  std::unique_ptr<backend::Memory> memory_;
  std::optional<Transfer> transfer_;
};

TEST_F(CudaTransfer, ManySmallPieces) {
  for (const uint32_t slots : {1U, 2U, 4U}) {
    for (const uint32_t streams : {1U, 8U}) {
      tuning_.slots = slots;
      tuning_.streams = streams;
      tuning_.piece = 512;
      tuning_.slot = 4096;
      start();
      for (uint32_t seed = 1; seed < 4; ++seed)
        round_trip(seed);
      EXPECT_EQ(transfer_->copied_bytes(), 6 * kSize);
    }
  }
}

TEST_F(CudaTransfer, IdleThreadsEndAndFreeTheirMemory) {
  tuning_.idle = std::chrono::milliseconds(30);
  start();
  const uint64_t alive = live(FAKE_CUDA_ANY);
  const uint64_t before = test::threads();
  for (uint32_t round = 0; round < 3; ++round) {
    round_trip(round);
    EXPECT_TRUE(becomes([&] { return transfer_->running_threads() == 0 && transfer_->locked_bytes() == 0; }));
    EXPECT_TRUE(becomes([&] { return live(FAKE_CUDA_ANY) == alive; }));
    EXPECT_LE(test::threads_at_most(before + 4), before + 4) << "those of the fake driver may stay";
  }
}

TEST_F(CudaTransfer, ThreadsStayWhileCopiesCome) {
  start();
  round_trip(1);
  EXPECT_GT(transfer_->running_threads(), 0u);
  EXPECT_GT(transfer_->locked_bytes(), 0u);
  const uint64_t made = calls("cuMemHostRegister");
  for (uint32_t round = 0; round < 5; ++round)
    round_trip(round);
  EXPECT_GT(made, 0u);
  EXPECT_LE(calls("cuMemHostRegister"), 3u);
}

TEST_F(CudaTransfer, FlushFreesWhatIsIdle) {
  start();
  EXPECT_FALSE(transfer_->flush()) << "nothing is there";
  round_trip(1);
  EXPECT_TRUE(becomes([&] { return transfer_->flush(); }));
  EXPECT_EQ(transfer_->locked_bytes(), 0u);
  round_trip(2);
}

TEST_F(CudaTransfer, WithoutPinnedMemoryNothingIsDone) {
  start();
  std::vector<uint8_t> bytes = pattern(1);
  configure("FAKE_CUDA_FAIL", "cuMemHostRegister:1:always:2");
  for (int round = 0; round < 3; ++round) {
    const auto done = copy(true, bytes);
    ASSERT_TRUE(done.ok()) << done.error().message;
    EXPECT_FALSE(*done);
    EXPECT_EQ(transfer_->locked_bytes(), 0u);
  }
  configure("FAKE_CUDA_FAIL", "");
  // After a pause it is tried again.
  EXPECT_TRUE(becomes([&] {
    const auto done = copy(true, bytes);
    return done.ok() && *done;
  }));
  round_trip(3);
}

// The limits of a control group, below a made-up root.
TEST_F(CudaTransfer, SlotsThatTheControlGroupHasNoRoomForAreNotMade) {
  std::string root = std::filesystem::temp_directory_path() / "gpumem_limits_XXXXXX";
  ASSERT_NE(mkdtemp(root.data()), nullptr);
  const auto write = [&](const std::string& path, uint64_t value) {
    std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
    std::ofstream(root + path) << value;
  };
  std::filesystem::create_directories(root + "/proc/self");
  std::ofstream(root + "/proc/self/cgroup") << "0::/job\n";
  const uint64_t ring = 3 * tuning_.slots * tuning_.slot;
  write("/sys/fs/cgroup/job/memory.current", 1000);
  write("/sys/fs/cgroup/job/memory.max", 1000 + ring - 1);
  tuning_.limits_root = root.c_str();
  tuning_.few = 3;
  start();
  std::vector<uint8_t> bytes = pattern(1);
  for (const bool to_device : {true, false}) {
    const auto done = copy(to_device, bytes);
    ASSERT_TRUE(done.ok()) << done.error().message;
    EXPECT_FALSE(*done) << "it is the driver's";
  }
  EXPECT_EQ(transfer_->locked_bytes(), 0u);
  EXPECT_EQ(transfer_->running_threads(), 0u);
  EXPECT_EQ(calls("cuMemHostRegister"), 0u);
  write("/sys/fs/cgroup/job/memory.max", 1000 + ring);
  round_trip(1);
  transfer_.reset();
  std::filesystem::remove_all(root);
}

TEST_F(CudaTransfer, AFailedCopyLeavesNothingRunning) {
  start();
  round_trip(1);
  std::vector<uint8_t> bytes = pattern(1);
  for (const bool to_device : {true, false}) {
    for (const char* const call :
         {"cuMemcpyAsync:2:once:1", "cuEventRecord:2:once:1", "cuEventSynchronize:1:once:1"}) {
      SCOPED_TRACE(call);
      configure("FAKE_CUDA_FAIL", call);
      const auto done = copy(to_device, bytes);
      configure("FAKE_CUDA_FAIL", "");
      EXPECT_FALSE(done.ok());
      round_trip(2);
    }
  }
}

TEST_F(CudaTransfer, ALostDeviceEndsTheCopy) {
  start();
  round_trip(1);
  std::vector<uint8_t> bytes = pattern(1);
  FAKE(fake_cuda_set_sticky)(-1, CUDA_ERROR_ILLEGAL_ADDRESS);
  for (const bool to_device : {true, false}) {
    const auto done = copy(to_device, bytes);
    // Once the slots are gone, nothing is done.
    if (done.ok()) {
      EXPECT_FALSE(*done);
    } else {
      EXPECT_EQ(done.error().status, GPUMEM_ERROR_DEVICE_LOST);
    }
  }
  FAKE(fake_cuda_set_sticky)(-1, 0);
}

TEST_F(CudaTransfer, ItStartsWhenMuchHasBeenCopied) {
  tuning_.least_to_start = 3 * kSize;
  tuning_.least_threads_to_device = tuning_.least_threads_to_host = 1;
  start({0, 0});
  std::vector<uint8_t> bytes = pattern(1);
  for (const bool expected : {false, false, true, true}) {
    const auto done = copy(true, bytes);
    ASSERT_TRUE(done.ok());
    EXPECT_EQ(*done, expected);
  }
}

TEST_F(CudaTransfer, WhatItWants) {
  start({TransferOptions::kOff, 0});
  EXPECT_FALSE(transfer_->wants(uint64_t{1} << 40, true));
  start({4, 0});
  EXPECT_TRUE(transfer_->wants(tuning_.least_to_device, true));
  EXPECT_FALSE(transfer_->wants(tuning_.least_to_device - 1, true));
  EXPECT_TRUE(transfer_->wants(tuning_.least_to_host, false));
  EXPECT_FALSE(transfer_->wants(tuning_.least_to_host - 1, false));
  start({4, 1000});
  EXPECT_FALSE(transfer_->wants(uint64_t{1} << 40, true)) << "no slot fits";
}

TEST_F(CudaTransfer, NoMoreMemoryThanAllowed) {
  constexpr uint64_t kMost = uint64_t{3} << 20;
  start({8, kMost});
  for (uint32_t round = 0; round < 5; ++round) {
    round_trip(round);
    EXPECT_LE(transfer_->locked_bytes(), kMost);
  }
}

}  // namespace
}  // namespace gpumem::cuda
