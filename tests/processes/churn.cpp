// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Calls without end, for a process that is to be killed in the middle of them.
#include <unistd.h>

#include <iterator>
#include <memory>
#include <random>

#include "scene.h"

namespace processes {
namespace {

class Churn {
 public:
  Churn(gpumem_backend backend, uint32_t seed) : backend_(backend), random_(seed) {}

  [[noreturn]] void run() {
    open();
    for (;;)
      step();
  }

 private:
  struct Block {
    gpumem_memory memory;
    void* address;  // for copies
    std::unique_ptr<std::vector<unsigned char>> lent;
  };

  void done(gpumem_status status, const char* what) {
    expect_status(GPUMEM_SUCCESS, status, what);
    const char byte = failed() ? '!' : '.';
    expect(write(STDOUT_FILENO, &byte, 1) == 1, "write to the pipe");
  }

  void open() {
    gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
    desc.backend = backend_;
    done(api.gpumem_instance_open(&desc, &instance_, nullptr), "instance_open");
    done(api.gpumem_device_get(instance_, 0, &device_, nullptr), "device_get");
    done(api.gpumem_stream_create(device_, nullptr, &stream_, nullptr), "stream_create");
    done(api.gpumem_event_create(device_, nullptr, &event_, nullptr), "event_create");
  }

  void close() {
    done(api.gpumem_instance_close(instance_, GPUMEM_CLOSE_FORCE, nullptr, nullptr), "instance_close");
    blocks_.clear();
  }

  uint32_t below(size_t count) { return static_cast<uint32_t>(random_() % count); }

  void step() {
    switch (below(16)) {
      case 0:
        return create(GPUMEM_KIND_DEVICE);
      case 1:
        return create(GPUMEM_KIND_PINNED);
      case 2:
        return create(GPUMEM_KIND_REGISTERED);
      case 3:
      case 4:
        return destroy();
      case 5:
        return done(api.gpumem_event_record(event_, stream_, nullptr), "event_record");
      case 6:
        return done(api.gpumem_event_synchronize(event_, GPUMEM_TIMEOUT_INFINITE, nullptr),
                    "event_synchronize");
      case 7:
        return launch();
      case 8:
        return fill(nullptr);
      case 9:
        return query();
      case 10:
        if (below(8) == 0) {
          close();
          open();
        }
        return;
      default:
        return below(2) == 0 ? fill(stream_) : copy();
    }
  }

  void create(gpumem_kind kind) {
    if (blocks_.size() >= 24) return destroy();
    Block block{};
    if (kind == GPUMEM_KIND_REGISTERED) {
      block.lent = std::make_unique<std::vector<unsigned char>>(kSize);
      gpumem_register_desc desc = GPUMEM_REGISTER_DESC_INIT;
      desc.pointer = block.lent->data();
      desc.size = kSize;
      done(api.gpumem_memory_register(device_, &desc, &block.memory, nullptr), "memory_register");
    } else {
      gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
      desc.kind = kind;
      desc.size = kSize;
      done(api.gpumem_memory_create(device_, &desc, &block.memory, nullptr), "memory_create");
    }
    gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
    done(api.gpumem_memory_get_info(block.memory, &info, nullptr), "memory_get_info");
    block.address = info.host_pointer != nullptr ? info.host_pointer : info.device_pointer;
    blocks_.push_back(std::move(block));
  }

  void destroy() {
    if (blocks_.empty()) return;
    synchronize();
    const auto chosen = std::next(blocks_.begin(), below(blocks_.size()));
    done(api.gpumem_memory_destroy(chosen->memory, nullptr), "memory_destroy");
    blocks_.erase(chosen);
  }

  void fill(gpumem_stream stream) {
    if (blocks_.empty()) return;
    void* const address = blocks_[below(blocks_.size())].address;
    if (stream != nullptr) {
      done(api.gpumem_fill_async(stream, address, kSize, 7, 1, nullptr), "fill_async");
      return;
    }
    synchronize();  // a fill beside the stream's work on the same bytes is a race
    done(api.gpumem_fill(instance_, address, kSize, 7, 1, nullptr), "fill");
  }

  void copy() {
    if (blocks_.size() < 2) return;
    const uint32_t from = below(blocks_.size());
    const uint32_t to = (from + 1) % static_cast<uint32_t>(blocks_.size());
    done(api.gpumem_copy_async(stream_, blocks_[to].address, blocks_[from].address, kSize, nullptr, nullptr),
         "copy");
  }

  void synchronize() {
    done(api.gpumem_stream_synchronize(stream_, GPUMEM_TIMEOUT_INFINITE, nullptr), "stream_synchronize");
  }

  void query() {
    if (blocks_.empty()) return;
    gpumem_pointer_info info = GPUMEM_POINTER_INFO_INIT;
    done(api.gpumem_pointer_get_info(instance_, blocks_[below(blocks_.size())].address, &info, nullptr),
         "pointer_get_info");
  }

  void launch() {
    const auto nothing = [](void*) {};
    done(api.gpumem_stream_launch_host_function(stream_, nothing, nullptr, nullptr), "launch_host_function");
  }

  static constexpr uint64_t kSize = uint64_t{32} << 10;

  gpumem_backend backend_;
  std::mt19937 random_;
  gpumem_instance instance_ = nullptr;
  gpumem_device device_ = nullptr;
  gpumem_stream stream_ = nullptr;
  gpumem_event event_ = nullptr;
  std::vector<Block> blocks_;
};

}  // namespace

void churn(gpumem_backend backend, uint32_t seed) { (new Churn(backend, seed))->run(); }

}  // namespace processes
