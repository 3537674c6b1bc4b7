// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/stream/stream.h"

#include <cstdio>

#include "base/arithmetic.h"
#include "core/device/host_function.h"
#include "core/memory/range.h"
#include "core/memory/span.h"
#include "core/object/context.h"
#include "core/object/precedence.h"
#include "core/stream/stream_end.h"

namespace gpumem::core {
Error Stream::captured_error() {
  return make_error(
      GPUMEM_ERROR_INVALID_STATE,
      "the stream is being captured into a graph, which cannot hold this; end the capture or use "
      "another stream");
}

Result<backend::Capture> Stream::current_capture(backend::Stream& stream) {
  auto capture = stream.capture();
  if (capture && capture->id == 0) {
    return make_error(
        GPUMEM_ERROR_INVALID_STATE,
        "the capture of the stream has failed, and no graph comes of it; end the capture first");
  }
  return capture;
}

Line Stream::describe() const {
  return line_of("stream %s: device %u%s", shown(name_), device_.ordinal(), wrapped_ ? ", wrapped" : "");
}

void Stream::list(Fields& fields) const noexcept {
  fields.add("name", name_);
  fields.add("device", uint64_t{device_.ordinal()});
  if (wrapped_) fields.add_true("wrapped");
}

Result<void> Stream::release() {
  // A stream goes on without a handle that wraps it.
  StreamEnd end(context(), backend(), wrapped() ? 0 : order_key());
  context().end_stream(order_key(), backend().native());
  GPUMEM_TRY(backend().release());
  end.finish();
  return {};
}

Result<Status> synchronize_stream(Stream& stream, uint64_t timeout_ns) {
  GPUMEM_TRY(stream.usable());
  return ready(timeout_ns == 0 ? stream.backend().query() : stream.backend().synchronize(timeout_ns));
}

Result<void> launch_host_function(Stream& stream, gpumem_host_function function, void* user_data) {
  bool captured = false;
  GPUMEM_TRY(stream.accepts_work(&captured));
  if (captured) return capture_for_user(stream.backend(), function, user_data);
  return launch_for_user(stream.context(), stream.backend(), function, user_data);
}

namespace {

// Refuses memory that cannot hold a word. A pool of the driver never can (measured).
Result<void> check_kind(const FoundSpan& found) {
  if (found.kind->managed) {
    return make_error(GPUMEM_ERROR_WRONG_KIND,
                      "the word is in managed memory; use pinned, device or mapped registered memory");
  }
  if (found.region && found.region->from_driver()) {
    return make_error(GPUMEM_ERROR_UNSUPPORTED,
                      "the word is in memory of a pool of the driver, which takes no value operations; use "
                      "memory that is not of GPUMEM_POOL_FROM_DRIVER");
  }
  if (found.region && found.region->facts().device_pointer != nullptr) return {};
  return make_error(GPUMEM_ERROR_WRONG_KIND,
                    "the word is in %s memory, which has no device pointer in this instance; use pinned, "
                    "device or mapped registered memory",
                    found.kind->name);
}

Result<void> check_access(const Device& device, const Region& region, bool write) {
  GPUMEM_TRY(region.reachable_by(device, write));
  if (region.access_of(device) != GPUMEM_ACCESS_NONE) return {};
  return make_error(GPUMEM_ERROR_NO_ACCESS,
                    "device %u has no access to the memory of device %u; call "
                    "gpumem_device_enable_peer_access() first",
                    device.ordinal(), region.device().ordinal());
}

// The same in a range, where that depends on the mapping.
void check_access_in_range(const Device& device, const FoundSpan& word, bool write, Verdict* verdict) {
  const auto& range = static_cast<const Range&>(*word.region);
  const Mapping* const mapping = range.mappings().find(word.span.offset);
  if (mapping == nullptr || mapping->leaving()) {
    verdict->note(not_mapped(range, word.span.offset, "the word"));
    return;
  }
  if (Device* const home = mapping->home()) verdict->note(home->usable());
  const gpumem_access needed = write ? GPUMEM_ACCESS_READWRITE : GPUMEM_ACCESS_READ;
  if ((mapping->access_of(&device) & needed) == needed) return;
  verdict->note(make_error(GPUMEM_ERROR_NO_ACCESS,
                           "device %u may not %s the word at %p; see gpumem_range_set_access()",
                           device.ordinal(), write ? "write" : "read", word.span.address));
}

// The word that a value write or wait acts on (STR-17).
Result<void> find_word(Stream& stream, void* address, uint32_t value_size, Use use, FoundSpan* out) {
  SpanRequest request;
  request.address = address;
  request.size = value_size;
  request.what = "the word";
  if (auto found = find_span(stream.context(), request, out); !found) {
    // Find one byte first: WRONG_KIND ranks before a word that leaves the memory (COM-17).
    request.size = 1;
    FoundSpan first;
    if (find_span(stream.context(), request, &first)) GPUMEM_TRY(check_kind(first));
    return found;
  }
  GPUMEM_TRY(check_kind(*out));
  Verdict verdict;
  if (out->span.on_device) verdict.note(out->region->device().usable());
  bool captured = false;
  verdict.note(stream.accepts_work(&captured));
  verdict.note(check_open(*out, "the word"));
  if (out->span.in_range) {
    check_access_in_range(stream.device(), *out, use == Use::kWrites, &verdict);
  } else {
    verdict.note(check_access(stream.device(), *out->region, use == Use::kWrites));
  }
  if (!verdict) return verdict.error();
  return stream.device().need(value_size == 4 ? GPUMEM_CAPABILITY_STREAM_VALUE32
                                              : GPUMEM_CAPABILITY_STREAM_VALUE64);
}

}  // namespace

Result<void> write_value(Stream& stream, void* address, uint64_t value, uint32_t value_size) {
  FoundSpan word;
  GPUMEM_TRY(find_word(stream, address, value_size, Use::kWrites, &word));
  return stream.backend().write_value(word.span, value, value_size);
}

Result<void> wait_value(Stream& stream, void* address, uint64_t value, uint32_t value_size,
                        gpumem_wait_condition condition) {
  FoundSpan word;
  GPUMEM_TRY(find_word(stream, address, value_size, Use::kReads, &word));
  if (condition == GPUMEM_WAIT_NOR) GPUMEM_TRY(stream.device().need(GPUMEM_CAPABILITY_STREAM_VALUE_NOR));
  return stream.backend().wait_value(word.span, value, value_size, condition);
}

}  // namespace gpumem::core
