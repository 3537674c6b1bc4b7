// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/instance/instance.h"

#include "call.h"
#include "gpumem/cuda.h"
#include "gpumem/host.h"
#include "gpumem/instance.h"

using namespace gpumem;

namespace {

void require_backend(capi::Decoder& decode, gpumem_backend backend) {
  if (backend < GPUMEM_BACKEND_ANY || backend > GPUMEM_BACKEND_HOST) {
    decode.not_a_value("the backend", "GPUMEM_BACKEND_", backend);
  }
}

// Backend options are read if that backend is opened or tried.
bool may_open(gpumem_backend asked, gpumem_backend backend) {
  return asked == backend || asked == GPUMEM_BACKEND_ANY;
}

std::vector<void*> decode_cuda_options(capi::Decoder& decode, const gpumem_cuda_options* given) {
  const gpumem_cuda_options options = decode.optional_input(given, "desc->cuda");
  const bool fits = (options.contexts != nullptr) == (options.context_count != 0);
  if (!fits) decode.refuse("desc->cuda: contexts is NULL but context_count is not 0, or the reverse");
  if (options.context_count > 64) decode.refuse("desc->cuda: context_count exceeds 64");
  if (!fits || options.context_count > 64) return {};
  return {options.contexts, options.contexts + options.context_count};
}

backend::HostOptions decode_host_options(capi::Decoder& decode, const gpumem_host_options* given) {
  const gpumem_host_options options = decode.optional_input(given, "desc->host");
  backend::HostOptions result;
  result.device_count = options.device_count;
  result.strict = options.strict;
  result.device_bytes = options.device_bytes;
  result.granularity = options.granularity;
  result.pageable = options.pageable;
  result.same_pointer = options.same_pointer;
  result.lock_mode = options.lock_mode;
  result.numa_nodes = options.numa_nodes;
  result.register_count_max = options.register_count_max;
  result.lock_piece = options.lock_piece;
  result.quarantine = options.quarantine;
  result.fill = options.fill;
  result.compressible = options.compressible;
  result.vmm_granularity = options.vmm_granularity;
  if (options.peers != nullptr) result.peers = options.peers;
  if (options.masked != nullptr) result.masked = options.masked;
  result.concurrent = options.concurrent;
  return result;
}

}  // namespace

gpumem_status gpumem_instance_probe(gpumem_backend backend, gpumem_probe_info* out_info,
                                    gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    require_backend(decode, backend);
    if (out_info != nullptr) decode.output(out_info, "out_info");
    GPUMEM_TRY(decode.done());
    core::Fallback fallback;
    auto facts = core::probe_backend(backend, &fallback);
    if (!facts) return facts.error();
    if (out_info != nullptr) {
      gpumem_probe_info info = GPUMEM_PROBE_INFO_INIT;
      info.backend = facts->backend;
      info.driver_version = facts->driver_version;
      info.device_count = facts->device_count;
      info.fallback_status = fallback.status;
      capi::copy_text(info.name, facts->name.c_str());
      capi::copy_text(info.fallback_reason, fallback.reason.c_str());
      capi::answer(out_info, info);
    }
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_instance_open(const gpumem_instance_desc* desc, gpumem_instance* out_instance,
                                   gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    decode.not_null(out_instance, "out_instance");
    const gpumem_instance_desc given = decode.optional_input(desc, "desc");
    core::OpenRequest request;
    request.backend = given.backend;
    request.name = decode.name(given.name);
    request.pin_budget = given.pin_budget;
    require_backend(decode, given.backend);
    request.transfer = {given.transfer_threads, given.transfer_bytes};
    if (may_open(given.backend, GPUMEM_BACKEND_HOST)) {
      request.options.host = decode_host_options(decode, given.host);
    }
    if (may_open(given.backend, GPUMEM_BACKEND_CUDA)) {
      request.options.cuda_contexts = decode_cuda_options(decode, given.cuda);
    }
    GPUMEM_TRY(decode.done());
    auto handle = core::Instance::open(request);
    if (!handle) return handle.error();
    *out_instance = capi::make_handle<gpumem_instance>(*handle);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_instance_close(gpumem_instance instance, gpumem_close_mode mode, uint64_t* out_destroyed,
                                    gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    if (mode != GPUMEM_CLOSE_CHECK && mode != GPUMEM_CLOSE_FORCE) {
      decode.not_a_value("mode", "GPUMEM_CLOSE_", mode);
    }
    if (instance == nullptr) {
      GPUMEM_TRY(decode.done());
      return GPUMEM_SUCCESS;
    }
    auto object = decode.object<core::InstanceObject>(instance);
    GPUMEM_TRY(decode.done());
    auto destroyed = core::close_instance(std::move(object), mode);
    if (!destroyed) return destroyed.error();
    if (out_destroyed != nullptr) *out_destroyed = *destroyed;
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_instance_default(gpumem_instance* out_instance, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    decode.not_null(out_instance, "out_instance");
    GPUMEM_TRY(decode.done());
    auto handle = core::Instance::open_default();
    if (!handle) return handle.error();
    *out_instance = capi::make_handle<gpumem_instance>(*handle);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_instance_get_info(gpumem_instance instance, gpumem_instance_info* out_info,
                                       gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    decode.output(out_info, "out_info");
    GPUMEM_TRY(decode.done());
    core::Instance& opened = core::Instance::of(object->context());
    gpumem_instance_info info = GPUMEM_INSTANCE_INFO_INIT;
    info.backend = opened.backend().kind();
    info.driver_version = opened.backend().driver_version();
    info.device_count = static_cast<uint32_t>(opened.devices().size());
    info.strict = opened.backend().strict() ? 1 : 0;
    info.pin_budget = opened.pin_budget();
    info.fallback_status = opened.fallback().status;
    capi::copy_text(info.name, opened.name().c_str());
    capi::copy_text(info.fallback_reason, opened.fallback().reason.c_str());
    capi::answer(out_info, info);
    return GPUMEM_SUCCESS;
  });
}
