// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/instance/backends.h"

#include "backends/host/host_backend.h"
#include "core/object/host_function_guard.h"
#include "core/object/log.h"
#if GPUMEM_HAVE_CUDA
#include "backends/cuda/cuda_backend.h"
#endif

namespace gpumem::core {
namespace {

#if GPUMEM_HAVE_CUDA
constexpr bool kHaveCuda = true;
#else
constexpr bool kHaveCuda = false;
// Stands in for the backend in a build without it, so that the callers below read the same.
namespace cuda {
Error absent() {
  return make_error(
      GPUMEM_ERROR_UNSUPPORTED,
      "this build of gpumem has no cuda backend; build it with the CUDA Toolkit's headers (-Dcuda=enabled)");
}
Result<backend::ProbeFacts> probe() { return absent(); }
Result<std::unique_ptr<backend::Backend>> open(const backend::OpenRequest&) { return absent(); }
}  // namespace cuda
#endif

}  // namespace

bool has_backend(gpumem_backend backend) {
  return backend == GPUMEM_BACKEND_HOST || (backend == GPUMEM_BACKEND_CUDA && kHaveCuda);
}

Result<backend::ProbeFacts> probe_backend(gpumem_backend backend, Fallback* fallback) {
  GPUMEM_TRY(outside_host_function());
  if (backend == GPUMEM_BACKEND_HOST) return host::probe();
  auto found = cuda::probe();
  if (found || backend != GPUMEM_BACKEND_ANY) return found;
  *fallback = {found.error().status, found.error().message};
  return host::probe();
}

Result<std::unique_ptr<backend::Backend>> open_backend(gpumem_backend backend,
                                                       const backend::OpenRequest& request,
                                                       Fallback* fallback) {
  if (backend == GPUMEM_BACKEND_HOST) return host::open(request);
  auto opened = cuda::open(request);
  if (opened || backend != GPUMEM_BACKEND_ANY) return opened;
  *fallback = {opened.error().status, opened.error().message};
  log(GPUMEM_LOG_WARNING, "using the host backend, because the cuda backend cannot be used: %s",
      fallback->reason.c_str());
  return host::open(request);
}

int32_t set_host_current_device(int32_t ordinal) { return host::set_current_device(ordinal); }

backend::Kernel* current_host_kernel() { return host::current_kernel(); }

}  // namespace gpumem::core
