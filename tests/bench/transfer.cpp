// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/device/transfer.h"
#include "backends/host/host_backend.h"
#include "core/instance/instance.h"
#include "pageable.h"
#if GPUMEM_HAVE_CUDA
#include "backends/cuda/cuda_backend.h"
#endif

namespace bench {
namespace {

using namespace gpumem;

template <class T>
T must(Result<T> result) {
  if (!result) fail(result.error().message);
  return std::move(*result);
}

std::unique_ptr<backend::Backend> open_cuda() {
#if GPUMEM_HAVE_CUDA
  return must(cuda::open({}));
#else
  fail("built without the CUDA headers");
#endif
}

class Work final : public TransferBench {
 public:
  explicit Work(uint64_t most) : instance_(core::OpenRequest(), open_cuda(), core::Fallback()) {
    backend::MemoryRequest request;
    request.sort = backend::MemorySort::kDevice;
    request.size = most;
    memory_ = must(device().create_memory(request));
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  ~Work() override {
    transfer_.reset();
    (void)memory_->release();
  }

  void set(const Setting& setting) override {
    core::TransferTuning tuning;
    tuning.slot = setting.slot;
    tuning.slots = setting.slots;
    tuning.piece = setting.piece;
    tuning.streams = setting.streams;
    tuning.each = setting.each;
    transfer_.reset();
    transfer_.emplace(instance_, device(), core::TransferOptions{setting.threads, 0}, tuning);
  }
  void copy(bool to_device, void* host, uint64_t size) override {
    core::TransferBox box;
    backend::Span& there = to_device ? box.destination : box.source;
    backend::Span& here = to_device ? box.source : box.destination;
    there.memory = memory_.get();
    there.address = memory_->facts().device_pointer;
    there.on_device = true;
    here.address = host;
    here.pageable = true;
    box.width = size;
    if (!must(transfer_->copy(box))) fail("no thread could copy");
  }

 private:
  backend::Device& device() { return instance_.devices()[0].backend(); }

  core::Instance instance_;
  std::unique_ptr<backend::Memory> memory_;
  std::optional<core::Transfer> transfer_;
};

}  // namespace

}  // namespace bench

extern "C" __attribute__((visibility("default"))) bench::TransferBench* gpumem_bench_open_transfer(
    uint64_t most) {
  return new bench::Work(most);
}
