// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "fence.h"

#include <utility>

#include "backends/host/host_backend.h"
#include "contract/backend.h"
#include "contract/fence.h"
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

Result<std::unique_ptr<backend::Backend>> open_backend(bool cuda) {
  backend::OpenRequest request;
  request.host.device_count = 1;
  request.host.strict = GPUMEM_TOGGLE_OFF;
  if (!cuda) return host::open(request);
#if GPUMEM_HAVE_CUDA
  return cuda::open(request);
#else
  fail("built without the CUDA headers");
#endif
}

class Work final : public FenceBench {
 public:
  explicit Work(bool cuda) : backend_(must(open_backend(cuda))) {}

  FenceWork thread_work() override {
    struct Own {
      explicit Own(backend::Device& device)
          : stream(must(device.create_stream(0))), fence(must(stream->fence())) {}
      Own(const Own&) = delete;
      Own& operator=(const Own&) = delete;
      ~Own() {
        (void)stream->drain();
        (void)stream->release();
      }
      std::shared_ptr<backend::Stream> stream;
      std::shared_ptr<backend::Fence> fence;
      uint64_t last = 0;
    };
    const auto own = std::make_shared<Own>(*backend_->devices().front());
    return {[own] { own->last = must(own->fence->mark(*own->stream)); },
            [own] {
              if (GPUMEM_FAILED(own->fence->poll(own->last))) fail("a mark failed");
            },
            [own] {
              if (auto done = own->stream->drain(); !done) fail(done.error().message);
            }};
  }

 private:
  std::unique_ptr<backend::Backend> backend_;
};

}  // namespace

}  // namespace bench

extern "C" __attribute__((visibility("default"))) bench::FenceBench* gpumem_bench_open_fence(bool cuda) {
  return new bench::Work(cuda);
}
