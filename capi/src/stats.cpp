// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "gpumem/stats.h"

#include "call.h"
#include "core/instance/instance.h"

using namespace gpumem;

namespace {

// What `make` makes of an instance, as much of it as fits.
template <class Make>
gpumem_status write_text(const char* function, gpumem_instance instance, char* buffer, uint64_t capacity,
                         uint64_t* out_required, gpumem_error* error, Make make) {
  return capi::call(function, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    if (buffer == nullptr && capacity != 0) decode.refuse("buffer is NULL, but capacity is not 0");
    GPUMEM_TRY(decode.done());
    const std::string text = make(core::Instance::of(object->context()));
    if (capacity != 0) {
      const uint64_t length =
          text.size() < capacity ? text.size() : whole_characters(text.data(), capacity - 1);
      std::memcpy(buffer, text.data(), length);
      buffer[length] = '\0';
    }
    if (out_required != nullptr) *out_required = text.size() + 1;
    return GPUMEM_SUCCESS;
  });
}

}  // namespace

gpumem_status gpumem_stats_get(gpumem_instance instance, gpumem_stats* out_stats, gpumem_error* error) {
  const bool answered = capi::look(error, [&](uint32_t process) {
    const core::InstanceObject* const known = capi::peek<core::InstanceObject>(instance, process);
    return known != nullptr && capi::has_own_size(out_stats) && known->context().statistics().look(out_stats);
  });
  if (answered) return GPUMEM_SUCCESS;
  return capi::call(__func__, error, [=](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    decode.output(out_stats, "out_stats");
    GPUMEM_TRY(decode.done());
    capi::answer(out_stats, object->context().statistics().read());
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_stats_get_kind(gpumem_instance instance, gpumem_kind kind, gpumem_kind_stats* out_stats,
                                    gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    decode.output(out_stats, "out_stats");
    const core::KindTraits* const traits = core::find_kind(kind);
    if (traits == nullptr || traits->counters == core::kNotCounted) {
      decode.not_a_value("the kind", "GPUMEM_KIND_", kind,
                         "one that has statistics: GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED, "
                         "GPUMEM_KIND_REGISTERED, GPUMEM_KIND_MANAGED, GPUMEM_KIND_VIRTUAL or "
                         "GPUMEM_KIND_IMPORTED");
    }
    GPUMEM_TRY(decode.done());
    capi::answer(out_stats, object->context().statistics().read_kind(*traits));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_stats_reset_peaks(gpumem_instance instance, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    GPUMEM_TRY(decode.done());
    object->context().statistics().reset_peaks();
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_stats_report(gpumem_instance instance, char* buffer, uint64_t capacity,
                                  uint64_t* out_required, gpumem_error* error) {
  return write_text(__func__, instance, buffer, capacity, out_required, error,
                    [](const core::Instance& found) { return found.report(UINT64_MAX); });
}

gpumem_status gpumem_stats_snapshot(gpumem_instance instance, char* buffer, uint64_t capacity,
                                    uint64_t* out_required, gpumem_error* error) {
  return write_text(__func__, instance, buffer, capacity, out_required, error,
                    [](const core::Instance& found) { return found.snapshot(); });
}
