// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/copy/copy.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <optional>
#include <utility>

#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "core/copy/batch.h"
#include "core/device/borrowed_streams.h"
#include "core/device/host_function.h"
#include "core/device/transfer.h"
#include "core/memory/range.h"
#include "core/memory/span.h"
#include "core/object/context.h"
#include "core/object/host_function_guard.h"
#include "core/object/log.h"
#include "core/object/precedence.h"
#include "core/stream/managed.h"
#include "platform/pages.h"
#include "platform/thread.h"

namespace gpumem::core {
namespace {

// ---- checks ----

// Whether a row of one side of a copy, which begins at `base`, has a byte in [first, first + size).
bool has_row_in(const CopyArguments& box, const CopySide& side, uint64_t base, uint64_t first,
                uint64_t size) {
  // Only the first slice, and in it the first row, that ends behind `first` may reach in.
  const uint64_t slice_extent = (box.height - 1) * side.pitch + box.width;
  const bool behind = first >= base + slice_extent;
  if (behind && box.depth == 1) return false;  // then there is no slice pitch
  const uint64_t slice = behind ? (first - base - slice_extent) / side.slice_pitch + 1 : 0;
  if (slice >= box.depth) return false;
  const uint64_t start = base + slice * side.slice_pitch;
  const uint64_t row = first < start + box.width ? 0 : (first - start - box.width) / side.pitch + 1;
  return start + row * side.pitch < first + size;
}

// Whether a row of the destination and one of the source have a byte in common: boxes may lie in one
// another's gaps.
bool rows_meet(const CopyArguments& box, uint64_t to, uint64_t from) {
  for (uint64_t slice = 0; slice < box.depth; ++slice) {
    for (uint64_t row = 0; row < box.height; ++row) {
      const uint64_t first = to + slice * box.destination.slice_pitch + row * box.destination.pitch;
      if (has_row_in(box, box.source, from, first, box.width)) return true;
    }
  }
  return false;
}

// Whether the ranges have a byte in common, as addresses or under two addresses of one memory (UVA-9).
bool overlap(const CopyArguments& arguments, const FoundSpan& destination, const FoundSpan& source) {
  if (destination.span.memory != source.span.memory) return false;
  const bool own = destination.span.memory != nullptr;
  const uint64_t to = own ? destination.span.offset : address_of(destination.span.address);
  const uint64_t from = own ? source.span.offset : address_of(source.span.address);
  const uint64_t distance = to > from ? to - from : from - to;
  if (distance >= (to > from ? arguments.source.extent : arguments.destination.extent)) return false;
  return rows_meet(arguments, to, from);
}

// An operand that is null is not looked at.
Result<void> check_stated_direction(gpumem_direction direction, const FoundSpan* destination,
                                    const FoundSpan* source) {
  if (direction == GPUMEM_DIRECTION_INFER) return {};
  const bool to_device =
      direction == GPUMEM_DIRECTION_HOST_TO_DEVICE || direction == GPUMEM_DIRECTION_DEVICE_TO_DEVICE;
  const bool from_device =
      direction == GPUMEM_DIRECTION_DEVICE_TO_HOST || direction == GPUMEM_DIRECTION_DEVICE_TO_DEVICE;
  const auto contradicts = [](const char* what, const FoundSpan& found) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "the %s is %s memory, which contradicts the direction; pass GPUMEM_DIRECTION_INFER",
                      what, found.kind->name);
  };
  const auto differs = [](const FoundSpan* found, bool on_device) {
    return found != nullptr && !found->span.managed && found->span.on_device != on_device;
  };
  if (differs(destination, to_device)) return contradicts("destination", *destination);
  if (differs(source, from_device)) return contradicts("source", *source);
  return {};
}

// Drivers are reported to read device memory before it is written, when any order is allowed (STR-21).
Result<void> check_source_order(gpumem_source_order order, const FoundSpan& source) {
  if (order != GPUMEM_SOURCE_ORDER_ANY || !source.span.on_device) return {};
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                    "the source is %s memory, which cannot be read in any order; pass "
                    "GPUMEM_SOURCE_ORDER_STREAM",
                    source.kind->name);
}

Result<void> check_writable(const FoundSpan& destination) {
  if (!destination.read_only) return {};
  if (destination.kind->registered) {
    return make_error(GPUMEM_ERROR_NO_ACCESS, "the destination was registered with GPUMEM_MEMORY_READ_ONLY");
  }
  if (destination.kind->imported) {
    return make_error(GPUMEM_ERROR_NO_ACCESS, "the destination was imported with GPUMEM_ACCESS_READ");
  }
  return make_error(GPUMEM_ERROR_NO_ACCESS, "the destination at %p is read-only memory",
                    destination.span.address);
}

// The device of a span must not be lost, whichever device does the work.
Result<void> check_device(const FoundSpan& found) {
  if (found.device == nullptr) return {};
  if (found.kind->imported) GPUMEM_TRY(found.owner->check_peer());
  return found.device->usable();
}

Result<void> check_pitch(const Device& device, const CopyArguments& arguments) {
  const uint64_t pitch = std::max(arguments.destination.pitch, arguments.source.pitch);
  const uint64_t largest = device.facts().pitch_max;
  if (pitch <= largest) return {};
  return make_error(GPUMEM_ERROR_UNSUPPORTED,
                    "a pitch of %" PRIu64 " bytes is above the %" PRIu64
                    " that the device can do: copy row by row",
                    pitch, largest);
}

// Where work without a stream runs: at the memory it writes, else at the memory it reads.
Device& choose_device(Context& context, const FoundSpan& destination, const FoundSpan* source) {
  if (destination.span.on_device) return *destination.device;
  if (source != nullptr && source->span.on_device) return *source->device;
  if (destination.device != nullptr) return *destination.device;
  if (source != nullptr && source->device != nullptr) return *source->device;
  return Devices::of(context)[0];
}

// Which sides access managed operands (MAN-32). Notes what is wrong with that.
[[gnu::noinline]] void settle_sides(Device& device, const Stream* stream, const CopyArguments& arguments,
                                    FoundSpan* destination, FoundSpan* source, Verdict* verdict) {
  const gpumem_direction direction = arguments.direction;
  const auto side = [&](bool is_device) {
    if (direction == GPUMEM_DIRECTION_INFER) return ManagedSide::kInfer;
    return is_device ? ManagedSide::kDevice : ManagedSide::kHost;
  };
  if (destination->span.managed) {
    const bool to_device =
        direction == GPUMEM_DIRECTION_HOST_TO_DEVICE || direction == GPUMEM_DIRECTION_DEVICE_TO_DEVICE;
    verdict->note(settle_side(device, stream, side(to_device), arguments.destination.extent, destination));
  }
  if (source->span.managed) {
    const bool from_device =
        direction == GPUMEM_DIRECTION_DEVICE_TO_HOST || direction == GPUMEM_DIRECTION_DEVICE_TO_DEVICE;
    verdict->note(settle_side(device, stream, side(from_device), arguments.source.extent, source));
  }
}

// ---- operands in ranges ----

// Bytes of a range that an operand touches. `box` has the rows of both sides.
struct RangeSide {
  const CopyArguments& box;
  const CopySide& side;
  const FoundSpan& found;
  Use use;

  const Range& range() const { return static_cast<const Range&>(*found.owner); }
  uint64_t begin() const { return found.span.offset; }
  uint64_t end() const { return begin() + side.extent; }

  // Calls `see(mapping, begin, end)` for each part of the range in which a row has a byte, in order, until it
  // answers false: with a mapping that is there, or null for a unit with none.
  template <class See>
  void for_each_part(See see) const {
    const Mappings& mappings = range().mappings();
    for (uint64_t at = begin(); at < end();) {
      const Mapping* const mapping = mappings.find(at);
      const uint64_t stop = std::min(end(), at + mappings.contiguous(at));
      if (has_row_in(box, side, begin(), at, stop - at) && !see(mapping, at, stop)) return;
      at = stop;
    }
  }

  // The device that has the first byte; null: the host, or nobody.
  Device* home() const {
    const Mapping* const mapping = range().mappings().find(begin());
    return mapping != nullptr ? mapping->home() : nullptr;
  }

  bool lets(const Mapping& mapping, const Device& device) const {
    const gpumem_access needed = use == Use::kWrites ? GPUMEM_ACCESS_READWRITE : GPUMEM_ACCESS_READ;
    return (mapping.access_of(&device) & needed) == needed;
  }
  // Whether a device may do its part of the work everywhere.
  bool lets(const Device& device) const {
    bool all = true;
    for_each_part([&](const Mapping* mapping, uint64_t, uint64_t) {
      return all = mapping != nullptr && lets(*mapping, device);
    });
    return all;
  }

  // Each byte must be mapped, on a device that is not lost, and accessible by the device that does the work
  // (VMM-15, UVA-8).
  void check(const Device& device, Verdict* verdict) const {
    const char* const name = use == Use::kWrites ? "the destination" : "the source";
    if (!box.admitted) verdict->note(check_open(found, name));
    for_each_part([&](const Mapping* mapping, uint64_t at, uint64_t) {
      if (mapping == nullptr || mapping->leaving()) {
        verdict->note(not_mapped(range(), at, name));
        return true;
      }
      if (Device* const home = mapping->home()) verdict->note(home->usable());
      if (!lets(*mapping, device)) {
        verdict->note(make_error(GPUMEM_ERROR_NO_ACCESS,
                                 "device %u may not %s the %s at offset %" PRIu64
                                 " of its range; see gpumem_range_set_access()",
                                 device.ordinal(), use == Use::kWrites ? "write" : "read", what(), at));
      }
      return true;
    });
  }

  // Refuse where the driver would write with the CPU, which may only read: that would end the process.
  void check_cpu(const Device& device, Verdict* verdict) const {
    if (!device.facts().copies_by_cpu) return;
    for_each_part([&](const Mapping* mapping, uint64_t at, uint64_t) {
      if (mapping == nullptr || mapping->facts.on_device() ||
          mapping->access_of(nullptr) != GPUMEM_ACCESS_READ)
        return true;
      verdict->note(make_error(GPUMEM_ERROR_NO_ACCESS,
                               "this driver copies from host memory by the CPU, which may only read the "
                               "destination at offset %" PRIu64
                               " of its range; give it GPUMEM_ACCESS_NONE or GPUMEM_ACCESS_READWRITE",
                               at));
      return false;
    });
  }
  bool any_on_host() const {
    bool any = false;
    for_each_part([&](const Mapping* mapping, uint64_t, uint64_t) {
      any = any || (mapping != nullptr && !mapping->facts.on_device());
      return !any;
    });
    return any;
  }

  const char* what() const { return use == Use::kWrites ? "destination" : "source"; }
};

// Whether the two sides have a physical byte in common, under whatever addresses (UVA-9).
[[gnu::cold]] bool alias(const RangeSide& destination, const RangeSide& source) {
  std::multimap<uint64_t, const Mapping*> read;
  source.for_each_part([&](const Mapping* mapping, uint64_t, uint64_t) {
    if (mapping != nullptr) read.emplace(mapping->facts.block_id, mapping);
    return true;
  });
  const CopyArguments& box = destination.box;
  bool any = false;
  destination.for_each_part([&](const Mapping* written, uint64_t begin, uint64_t end) {
    if (written == nullptr) return true;
    const auto [first, last] = read.equal_range(written->facts.block_id);
    for (auto other = first; other != last && !any; ++other) {
      const Mapping& mapping = *other->second;
      // Each row of the destination in this mapping, seen through the other one.
      for (uint64_t slice = 0; slice < box.depth && !any; ++slice) {
        for (uint64_t row = 0; row < box.height && !any; ++row) {
          const uint64_t start =
              destination.begin() + slice * destination.side.slice_pitch + row * destination.side.pitch;
          const uint64_t from = std::max(start, begin);
          const uint64_t to = std::min(start + box.width, end);
          if (from >= to) continue;
          any = has_row_in(box, source.side, source.begin(), from - written->offset + mapping.offset,
                           to - from);
        }
      }
    }
    return !any;
  });
  return any;
}

Result<void> check_direction_in(const CopyArguments& arguments, const RangeSide& side) {
  if (arguments.direction == GPUMEM_DIRECTION_INFER) return {};
  const bool to_device = arguments.direction == GPUMEM_DIRECTION_HOST_TO_DEVICE ||
                         arguments.direction == GPUMEM_DIRECTION_DEVICE_TO_DEVICE;
  const bool from_device = arguments.direction == GPUMEM_DIRECTION_DEVICE_TO_HOST ||
                           arguments.direction == GPUMEM_DIRECTION_DEVICE_TO_DEVICE;
  const bool stated = side.use == Use::kWrites ? to_device : from_device;
  bool fits = true;
  side.for_each_part([&](const Mapping* mapping, uint64_t, uint64_t) {
    return fits = mapping == nullptr || mapping->facts.on_device() == stated;
  });
  if (fits) return {};
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                    "the %s has mappings %s, which contradicts the direction; pass GPUMEM_DIRECTION_INFER",
                    side.what(), stated ? "of host memory" : "of device memory");
}

Result<void> check_source_order_in(gpumem_source_order order, const RangeSide& source) {
  if (order != GPUMEM_SOURCE_ORDER_ANY) return {};
  bool on_host = true;
  source.for_each_part([&](const Mapping* mapping, uint64_t, uint64_t) {
    return on_host = mapping == nullptr || !mapping->facts.on_device();
  });
  if (on_host) return {};
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                    "the source has mappings of device memory, which cannot be read in any order; pass "
                    "GPUMEM_SOURCE_ORDER_STREAM");
}

// The device of work without a stream: as choose_device(), if it has the access that the ranges need, else
// the first one that has.
Device& choose_device_for(Context& context, const std::optional<RangeSide>& destination,
                          const FoundSpan& written, const std::optional<RangeSide>& source,
                          const FoundSpan* read) {
  const auto may = [&](const Device& device) {
    return device.usable() && (!destination || destination->lets(device)) &&
           (!source || source->lets(device));
  };
  const auto home_of = [](const std::optional<RangeSide>& side, const FoundSpan* found) -> Device* {
    if (side) return side->home();
    return found != nullptr ? found->device : nullptr;
  };
  Device* first = home_of(destination, &written);
  if (first == nullptr || (!destination && !written.span.on_device)) {
    if (Device* const reads = home_of(source, read)) first = reads;
  }
  if (first == nullptr) first = &Devices::of(context)[0];
  if (may(*first)) return *first;
  for (const auto& device : Devices::of(context)) {
    if (may(*device)) return *device;
  }
  return *first;
}

// The stream of a call, which may make many checks on it.
struct Order {
  Order() = default;
  explicit Order(Stream* of) : stream(of) {
    if (stream != nullptr) usable = stream->accepts_work(&captured);
  }

  Stream* stream = nullptr;  // null for calls that wait
  Result<void> usable;
  bool captured = false;  // what is enqueued becomes a node of a graph
};

// A copy that has been checked.
struct CheckedCopy {
  const CopyArguments* arguments = nullptr;
  FoundSpan destination;
  FoundSpan source;
  Device* device = nullptr;
  bool captured = false;
  uint64_t index = 0;  // among the entries of the call
};

Result<void> find_side(Context& context, const CopySide& side, const char* what, Use use, bool passing,
                       FoundSpan* out) {
  SpanRequest request;
  request.address = side.address;
  request.region = side.memory;
  request.offset = side.offset;
  request.size = side.extent;
  request.what = what;
  request.use = use;
  request.passing = passing;
  return find_span(context, request, out);
}

Error overlapping() {
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                    "source and destination overlap; copy through a separate buffer");
}

// A graph reads the source of a copy at each launch (STR-20).
Result<void> check_order_in_capture(gpumem_source_order order) {
  if (order != GPUMEM_SOURCE_ORDER_DURING_CALL) return {};
  return make_error(
      GPUMEM_ERROR_INVALID_STATE,
      "the stream is being captured into a graph, which reads the source at each launch and not "
      "during this call; pass GPUMEM_SOURCE_ORDER_STREAM, and keep the source");
}

// The checks of a copy with an operand in a range, once both are found.
[[gnu::noinline]] Result<void> check_copy_in_ranges(Context& context, const Order& order,
                                                    const CopyArguments& arguments, CheckedCopy* out) {
  Stream* const stream = order.stream;
  CheckedCopy& checked = *out;
  std::optional<RangeSide> destination;
  std::optional<RangeSide> source;
  if (checked.destination.span.in_range)
    destination.emplace(RangeSide{arguments, arguments.destination, checked.destination, Use::kWrites});
  if (checked.source.span.in_range)
    source.emplace(RangeSide{arguments, arguments.source, checked.source, Use::kReads});

  Verdict verdict;
  if (overlap(arguments, checked.destination, checked.source)) {
    verdict.note(overlapping());
  } else if (destination && source && alias(*destination, *source)) {
    verdict.note(make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                            "source and destination overlap, since they are mappings of one block; copy "
                            "through a separate buffer"));
  }
  const CopyArguments& box = arguments;
  if (destination) {
    verdict.note(check_direction_in(box, *destination));
  } else {
    verdict.note(check_device(checked.destination));
    verdict.note(check_writable(checked.destination));
    if (!box.admitted) verdict.note(check_open(checked.destination, "the destination"));
  }
  if (source) {
    verdict.note(check_direction_in(box, *source));
    verdict.note(check_source_order_in(box.source_order, *source));
  } else {
    verdict.note(check_device(checked.source));
    if (!box.admitted) verdict.note(check_open(checked.source, "the source"));
  }
  verdict.note(check_stated_direction(box.direction, destination ? nullptr : &checked.destination,
                                      source ? nullptr : &checked.source));
  checked.device = stream != nullptr ? &stream->device()
                                     : &choose_device_for(context, destination, checked.destination, source,
                                                          &checked.source);
  if (checked.destination.span.managed || checked.source.span.managed)
    settle_sides(*checked.device, stream, arguments, &checked.destination, &checked.source, &verdict);
  if (!source) verdict.note(check_source_order(box.source_order, checked.source));
  verdict.note(order.usable);
  if (order.captured) verdict.note(check_order_in_capture(box.source_order));
  if (stream == nullptr) verdict.note(checked.device->usable());
  if (destination) destination->check(*checked.device, &verdict);
  if (source) source->check(*checked.device, &verdict);
  const bool from_host = source ? source->any_on_host() : !checked.source.span.on_device;
  if (destination && from_host) destination->check_cpu(*checked.device, &verdict);
  if (box.height > 1) verdict.note(check_pitch(*checked.device, box));
  if (!verdict) return verdict.error();
  return {};
}

// The checks once both sides are found. Inlined into the way of every copy.
[[gnu::always_inline]] inline Result<void> check_found(Context& context, const Order& order,
                                                       const CopyArguments& arguments, CheckedCopy* out) {
  CheckedCopy& checked = *out;
  Stream* const stream = order.stream;
  checked.captured = order.captured;
  if (checked.destination.span.in_range || checked.source.span.in_range) [[unlikely]]
    return check_copy_in_ranges(context, order, arguments, out);

  Verdict verdict;
  if (overlap(arguments, checked.destination, checked.source)) {
    verdict.note(overlapping());
  }
  verdict.note(check_stated_direction(arguments.direction, &checked.destination, &checked.source));
  checked.device =
      stream != nullptr ? &stream->device() : &choose_device(context, checked.destination, &checked.source);
  if (checked.destination.span.managed || checked.source.span.managed) [[unlikely]]
    settle_sides(*checked.device, stream, arguments, &checked.destination, &checked.source, &verdict);
  verdict.note(check_source_order(arguments.source_order, checked.source));
  verdict.note(check_device(checked.destination));
  verdict.note(check_device(checked.source));
  if (!arguments.admitted) {
    verdict.note(check_open(checked.destination, "the destination"));
    verdict.note(check_open(checked.source, "the source"));
  }
  verdict.note(order.usable);
  if (order.captured) [[unlikely]]
    verdict.note(check_order_in_capture(arguments.source_order));
  if (stream == nullptr) verdict.note(checked.device->usable());
  verdict.note(check_writable(checked.destination));
  if (arguments.height > 1) verdict.note(check_pitch(*checked.device, arguments));
  if (!verdict) return verdict.error();
  return {};
}

Result<void> check_copy(Context& context, const Order& order, const CopyArguments& arguments,
                        CheckedCopy* out) {
  const bool passing = order.stream == nullptr;
  CheckedCopy& checked = *out;
  checked.arguments = &arguments;
  Verdict verdict;
  verdict.note(find_side(context, arguments.destination, "the destination", Use::kWrites, passing,
                         &checked.destination),
               Found::kByBounds);
  verdict.note(find_side(context, arguments.source, "the source", Use::kReads, passing, &checked.source),
               Found::kByBounds);
  if (!verdict) return verdict.error();
  return check_found(context, order, arguments, out);
}

// Stands for the file in a copy between memory and a file: ordinary memory without an address.
CopySide nowhere(const CopySide& side) {
  CopySide result;
  result.address = pointer_to(address_of(side.address) + side.extent);  // does not overlap
  result.pitch = result.extent = side.extent;
  return result;
}

// Where the bytes of a span lie, whichever of its addresses named them (UVA-9).
Box box_of(const CopyArguments& arguments, const CopySide& side, const FoundSpan& found) {
  const backend::Span& span = found.span;
  const uint64_t first = span.memory != nullptr ? span.offset : address_of(span.address);
  return {span.memory,      first,           side.pitch, side.slice_pitch, arguments.width,
          arguments.height, arguments.depth, side.extent};
}

// The same for an operand in a range: boxes of physical memory, one for each row in each mapping, or a single
// one where a mapping has all rows.
[[gnu::cold]] void add_boxes_of(const RangeSide& side, std::vector<Box>* out) {
  const CopyArguments& box = side.box;
  side.for_each_part([&](const Mapping* mapping, uint64_t begin, uint64_t end) {
    const void* const block = pointer_to(mapping->facts.block_id);
    if (begin == side.begin() && end == side.end()) {
      out->push_back({block, begin - mapping->offset, side.side.pitch, side.side.slice_pitch, box.width,
                      box.height, box.depth, side.side.extent});
      return true;
    }
    for (uint64_t slice = 0; slice < box.depth; ++slice) {
      for (uint64_t row = 0; row < box.height; ++row) {
        const uint64_t start = side.begin() + slice * side.side.slice_pitch + row * side.side.pitch;
        const uint64_t from = std::max(start, begin);
        const uint64_t to = std::min(start + box.width, end);
        if (from >= to) continue;
        const uint64_t bytes = to - from;
        out->push_back({block, from - mapping->offset, bytes, bytes, bytes, 1, 1, bytes});
      }
    }
    return true;
  });
}

// Adds the pairs of boxes of an entry. A side with more boxes than the other is paired with empty ones.
[[gnu::cold]] void add_pairs_of(const CheckedCopy& entry, std::vector<BoxPair>* out) {
  const CopyArguments& arguments = *entry.arguments;
  const auto boxes = [&](const CopySide& side, const FoundSpan& found, Use use) {
    std::vector<Box> result;
    if (found.span.in_range) {
      add_boxes_of({arguments, side, found, use}, &result);
    } else {
      result.push_back(box_of(arguments, side, found));
    }
    return result;
  };
  const std::vector<Box> written = boxes(arguments.destination, entry.destination, Use::kWrites);
  const std::vector<Box> read = boxes(arguments.source, entry.source, Use::kReads);
  for (size_t index = 0; index < std::max(written.size(), read.size()); ++index) {
    out->push_back(
        {index < written.size() ? written[index] : Box(), index < read.size() ? read[index] : Box()});
  }
}

// The entries of a batch have no order, so none may write what another one touches (STR-19).
Result<void> check_independent(const std::vector<CheckedCopy>& entries, uint64_t* index) {
  if (entries.size() < 2) return {};
  std::vector<BoxPair> pairs;
  pairs.reserve(entries.size());
  std::vector<size_t> owners;  // of the pairs, if an entry has several
  for (const CheckedCopy& entry : entries) {
    const CopyArguments& arguments = *entry.arguments;
    if (entry.destination.span.in_range || entry.source.span.in_range) [[unlikely]] {
      while (owners.size() < pairs.size())
        owners.push_back(owners.size());
      add_pairs_of(entry, &pairs);
      owners.resize(pairs.size(), static_cast<size_t>(&entry - entries.data()));
      continue;
    }
    pairs.push_back({box_of(arguments, arguments.destination, entry.destination),
                     box_of(arguments, arguments.source, entry.source)});
    if (!owners.empty()) owners.push_back(static_cast<size_t>(&entry - entries.data()));
  }
  auto found = find_dependence(pairs);
  if (!found) return {};
  if (!owners.empty()) found = Dependence{owners[found->later], owners[found->earlier]};
  *index = entries[found->later].index;
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                    "regions[%" PRIu64 "] and regions[%" PRIu64
                    "] depend on each other: one writes bytes that the other reads or writes; copy them in "
                    "separate calls",
                    entries[found->earlier].index, *index);
}

// ---- segments ----

// Rows of a rectangle: `rows` rows of `width` bytes, from (`row`, `column`) on.
struct Part {
  uint64_t row;
  uint64_t column;
  uint64_t width;
  uint64_t rows;

  uint64_t offset(uint64_t pitch) const { return row * pitch + column; }
};

// One operand of a rectangle.
struct Side {
  const backend::Span& span;
  uint64_t pitch;

  // Bytes from an offset up to the next border, which no segment crosses (PIN-15).
  uint64_t contiguous(uint64_t at) const {
    return span.memory == nullptr ? UINT64_MAX : span.memory->contiguous(span.offset + at);
  }
  // Whether no border is in the way, as mostly.
  bool is_one_part(uint64_t width, uint64_t height) const {
    return contiguous(0) >= (height - 1) * pitch + width;
  }
};

// Yields as many whole rows at once as fit, and rows that cross a border in separate parts.
template <size_t N, class Enqueue>
Result<void> for_each_part(const std::array<Side, N>& sides, uint64_t width, uint64_t height,
                           Enqueue enqueue) {
  for (uint64_t row = 0; row < height;) {
    uint64_t rows = height - row;
    for (const Side& side : sides) {
      const uint64_t room = side.contiguous(row * side.pitch);
      if (room < width) {
        rows = 0;
      } else if (rows > 1) {
        rows = std::min(rows, (room - width) / side.pitch + 1);
      }
    }
    if (rows > 0) {
      GPUMEM_TRY(enqueue(Part{row, 0, width, rows}));
      row += rows;
      continue;
    }
    for (uint64_t column = 0; column < width;) {
      uint64_t bytes = width - column;
      for (const Side& side : sides)
        bytes = std::min(bytes, side.contiguous(row * side.pitch + column));
      GPUMEM_TRY(enqueue(Part{row, column, bytes, 1}));
      column += bytes;
    }
    ++row;
  }
  return {};
}

// A rectangle of a copy: one segment where no border is in the way.
using Rectangle = backend::CopySegment;

// A segment for each part of a rectangle. `any` becomes true once something is enqueued.
[[gnu::noinline]] Result<void> enqueue_parts(backend::Stream& stream, const Rectangle& rectangle, bool* any) {
  const std::array sides{Side{rectangle.destination, rectangle.destination_pitch},
                         Side{rectangle.source, rectangle.source_pitch}};
  return for_each_part(sides, rectangle.width, rectangle.height, [&](const Part& part) -> Result<void> {
    backend::CopySegment segment = rectangle;
    segment.destination = rectangle.destination.after(part.offset(rectangle.destination_pitch));
    segment.source = rectangle.source.after(part.offset(rectangle.source_pitch));
    segment.width = part.width;
    segment.height = part.rows;
    GPUMEM_TRY(stream.copy(segment));
    *any = true;
    return {};
  });
}

// A span in a range, at the mapping that it lies in.
backend::Span settled(backend::Span span) {
  if (!span.in_range) return span;
  const auto& layout = static_cast<const backend::Reservation&>(*span.memory).layout();
  const Mapping* const mapping = static_cast<const Mappings&>(layout).find(span.offset);
  span.on_device = mapping->facts.on_device();
  span.home = span.on_device ? &mapping->device.backend() : nullptr;
  return span;
}

// Splits a rectangle with an operand in a range at the borders of mappings: nothing there is of one object.
template <class F>
[[gnu::noinline]] Result<void> for_each_mapped_part(const Rectangle& rectangle, F function) {
  const std::array sides{Side{rectangle.destination, rectangle.destination_pitch},
                         Side{rectangle.source, rectangle.source_pitch}};
  return for_each_part(sides, rectangle.width, rectangle.height, [&](const Part& part) -> Result<void> {
    Rectangle piece = rectangle;
    piece.destination = settled(rectangle.destination.after(part.offset(rectangle.destination_pitch)));
    piece.source = settled(rectangle.source.after(part.offset(rectangle.source_pitch)));
    piece.width = part.width;
    piece.height = part.rows;
    return function(piece);
  });
}

// The same for any rectangle.
Result<void> enqueue_rectangle(backend::Stream& stream, const Rectangle& rectangle, bool* any) {
  const auto one_part = [&](const backend::Span& span, uint64_t pitch) {
    return Side{span, pitch}.is_one_part(rectangle.width, rectangle.height);
  };
  if (!one_part(rectangle.destination, rectangle.destination_pitch) ||
      !one_part(rectangle.source, rectangle.source_pitch)) [[unlikely]] {
    return enqueue_parts(stream, rectangle, any);
  }
  GPUMEM_TRY(stream.copy(rectangle));
  *any = true;
  return {};
}

// Calls `function` for each rectangle of a copy: one for each slice, or a single row where nothing lies
// between.
template <class F>
Result<void> for_each_rectangle(const CheckedCopy& copy, F function) {
  const CopyArguments& box = *copy.arguments;
  const CopySide& to = box.destination;
  const CopySide& from = box.source;
  Rectangle rectangle{
      copy.destination.span, copy.source.span, to.pitch, from.pitch, box.width, box.height, {}};
  uint64_t left = box.depth;
  if (to.extent == box.width * box.height * box.depth && from.extent == to.extent) {
    rectangle.width = to.extent;
    rectangle.height = 1;
    left = 1;
  }
  for (;; --left) {
    GPUMEM_TRY(function(rectangle));
    if (left == 1) return {};
    rectangle.destination = rectangle.destination.after(to.slice_pitch);
    rectangle.source = rectangle.source.after(from.slice_pitch);
  }
}

// ---- copies ----

// Memory of the caller can be unmapped at any time. Only the rows need be there.
Result<void> check_readable(const Rectangle& rectangle) {
  const backend::Span& source = rectangle.source;
  if (!source.pageable && !source.registered) return {};
  for (uint64_t row = 0; row < rectangle.height; ++row) {
    const void* const first = source.after(row * rectangle.source_pitch).address;
    if (platform::readable(first, rectangle.width)) continue;
    return make_error(GPUMEM_ERROR_INVALID_STATE, "the %s memory at %p is no longer mapped",
                      source.pageable ? "pageable" : "registered", first);
  }
  return {};
}

// Waits for what a call has enqueued unless it succeeds: a failed call must not leave work behind. Nodes of a
// graph are no work yet, and to wait would end the capture.
class EnqueuedWork {
 public:
  EnqueuedWork(backend::Stream& stream, bool captured) : stream_(stream), stays_(captured) {}
  EnqueuedWork(const EnqueuedWork&) = delete;
  EnqueuedWork& operator=(const EnqueuedWork&) = delete;
  ~EnqueuedWork() {
    if (!any || stays_) return;
    const platform::CancellationHeld held;
    (void)stream_.observe(GPUMEM_TIMEOUT_INFINITE);
  }
  void stay() { stays_ = true; }

  bool any = false;

 private:
  backend::Stream& stream_;
  bool stays_;
};

// Reads the source now, at `view`, into a block that the stream keeps until it has passed the copy.
[[gnu::noinline]] Result<void> enqueue_staged(backend::Stream& stream, const Rectangle& rectangle,
                                              const void* view) {
  GPUMEM_TRY(check_readable(rectangle));
  const auto bytes = std::make_shared_for_overwrite<unsigned char[]>(rectangle.width * rectangle.height);
  const std::shared_ptr<void> block = bytes;
  for (uint64_t row = 0; row < rectangle.height; ++row) {
    std::memcpy(&bytes[static_cast<ptrdiff_t>(row * rectangle.width)],
                static_cast<const unsigned char*>(view) + row * rectangle.source_pitch, rectangle.width);
  }
  Rectangle staged = rectangle;
  staged.source = {};
  staged.source.address = block.get();
  staged.source.pageable = true;
  staged.source_pitch = rectangle.width;
  staged.keep = &block;
  EnqueuedWork work(stream, false);  // ends before the block
  GPUMEM_TRY(enqueue_rectangle(stream, staged, &work.any));
  work.stay();
  return {};
}

// A driver may wait before it takes ordinary memory.
bool may_wait(const backend::Span& span) {
  return span.pageable || span.registered || (span.managed && !span.on_device);
}

// Where threads of the library may copy: between ordinary memory and a device.
bool is_for_transfer(const backend::Span& destination, const backend::Span& source) {
  const backend::Span& other = destination.pageable ? source : destination;
  return destination.pageable != source.pageable && other.on_device && !other.managed;
}

// True if the box was copied, which ends before it returns. Earlier work of the caller's stream is waited for
// first, as the driver does for what it cannot hold: threads that wait for one stream would hold up copies of
// others.
Result<bool> transfer(Device& device, backend::Stream* order, const TransferBox& box) {
  const bool to_device = box.source.pageable;
  const backend::Span& there = to_device ? box.destination : box.source;
  const uint64_t pitch = to_device ? box.destination_pitch : box.source_pitch;
  const uint64_t slice = to_device ? box.destination_slice : box.source_slice;
  const uint64_t extent =
      (box.depth - 1) * slice + (box.height > 1 ? (box.height - 1) * pitch : 0) + box.width;
  if (Side{there, pitch}.contiguous(0) < extent) return false;
  if (order != nullptr) {
    auto complete = order->synchronize(GPUMEM_TIMEOUT_INFINITE);
    if (!complete) return complete.error();
  }
  return device.transfer().copy(box);
}

[[gnu::noinline]] Result<bool> transfer_all(backend::Stream* order, const CheckedCopy& copy) {
  const CopyArguments& arguments = *copy.arguments;
  const CopySide& to = arguments.destination;
  const CopySide& from = arguments.source;
  TransferBox box{copy.destination.span, copy.source.span, to.pitch,         from.pitch,     to.slice_pitch,
                  from.slice_pitch,      arguments.width,  arguments.height, arguments.depth};
  if (to.extent == box.bytes() && from.extent == to.extent) {
    box.width = to.extent;
    box.height = box.depth = 1;
  }
  return transfer(*copy.device, order, box);
}

[[gnu::noinline]] Result<bool> transfer_rectangle(Device& device, backend::Stream* order,
                                                  const Rectangle& rectangle) {
  return transfer(device, order,
                  {rectangle.destination, rectangle.source, rectangle.destination_pitch,
                   rectangle.source_pitch, 0, 0, rectangle.width, rectangle.height, 1});
}

// `order` is the stream if earlier work in it matters, or null.
Result<void> enqueue_copy(backend::Stream& stream, const CheckedCopy& copy, backend::Stream* order) {
  std::optional<platform::CancellationHeld> held;
  const bool now = copy.arguments->source_order == GPUMEM_SOURCE_ORDER_DURING_CALL;
  if (now || may_wait(copy.destination.span) || may_wait(copy.source.span)) held.emplace();
  const CopyArguments& arguments = *copy.arguments;
  const bool in_range = copy.destination.span.in_range || copy.source.span.in_range;
  // In a range each mapping decides, so it is looked at below.
  const bool large = !copy.captured && copy.destination.span.pageable != copy.source.span.pageable &&
                     copy.device->transfer().wants(arguments.width * arguments.height * arguments.depth,
                                                   copy.source.span.pageable);
  if (large && !in_range && is_for_transfer(copy.destination.span, copy.source.span)) [[unlikely]] {
    auto done = transfer_all(order, copy);
    if (!done) return done.error();
    if (*done) return {};
  }
  bool observe = false;
  EnqueuedWork work(stream, copy.captured);
  const auto enqueue = [&](const Rectangle& rectangle) -> Result<void> {
    if (copy.arguments->source_order != GPUMEM_SOURCE_ORDER_STREAM)
      GPUMEM_TRY(stream.require_final_source(rectangle));
    if (large && in_range && is_for_transfer(rectangle.destination, rectangle.source) &&
        copy.device->transfer().wants(rectangle.width * rectangle.height, rectangle.source.pageable)) {
      auto done = transfer_rectangle(*copy.device, order, rectangle);
      if (!done) return done.error();
      if (*done) return {};
    }
    const void* const view = now ? stream.cpu_view(rectangle.source) : nullptr;
    if (view == nullptr) {
      observe = now;
      return enqueue_rectangle(stream, rectangle, &work.any);
    }
    GPUMEM_TRY(enqueue_staged(stream, rectangle, view));
    work.any = true;
    return {};
  };
  if (in_range) [[unlikely]] {
    GPUMEM_TRY(for_each_rectangle(
        copy, [&](const Rectangle& rectangle) { return for_each_mapped_part(rectangle, enqueue); }));
  } else {
    GPUMEM_TRY(for_each_rectangle(copy, enqueue));
  }
  work.stay();
  if (!observe) return {};
  // Only a device can read the source, so the call ends when it has.
  auto complete = stream.synchronize(GPUMEM_TIMEOUT_INFINITE);
  if (!complete) return complete.error();
  return {};
}

// No device need take part when ordinary memory is copied to ordinary memory before the call returns.
bool is_for_cpu(const CheckedCopy& copy) {
  return copy.destination.span.pageable && copy.source.span.pageable;
}

// What lies between the ends of an operand has not been looked at.
Result<void> check_operand(const backend::Span& span, uint64_t pitch, uint64_t width, uint64_t height,
                           bool write) {
  const uint64_t extent = (height - 1) * pitch + width;
  if (extent <= platform::page_size()) return {};
  return check_rows(span.address, pitch, width, height, write);
}

Result<void> copy_by_cpu(const CheckedCopy& copy) {
  return for_each_rectangle(copy, [](const Rectangle& rectangle) -> Result<void> {
    const auto [width, height] = std::pair(rectangle.width, rectangle.height);
    GPUMEM_TRY(check_operand(rectangle.source, rectangle.source_pitch, width, height, false));
    GPUMEM_TRY(check_operand(rectangle.destination, rectangle.destination_pitch, width, height, true));
    for (uint64_t row = 0; row < rectangle.height; ++row) {
      std::memcpy(rectangle.destination.after(row * rectangle.destination_pitch).address,
                  rectangle.source.after(row * rectangle.source_pitch).address, rectangle.width);
    }
    return {};
  });
}

// Copies before it returns.
[[gnu::noinline]] Result<void> complete_copy(const CheckedCopy& checked) {
  if (is_for_cpu(checked)) return copy_by_cpu(checked);
  BorrowedStreams streams;
  auto own = streams.of(*checked.device);
  if (!own) return own.error();
  auto enqueued = enqueue_copy(**own, checked, nullptr);
  auto complete = streams.synchronize();
  return enqueued ? complete : enqueued;
}

// ---- fills ----

Result<void> check_mapped(const backend::FillSegment& segment) {
  return check_operand(segment.destination, segment.pitch, segment.width, segment.height, true);
}

void fill_by_cpu(const backend::FillSegment& segment) {
  auto* row = static_cast<unsigned char*>(segment.destination.address);
  for (uint64_t left = segment.height; left > 0; --left) {
    // Each filled part is the pattern for the next one, of twice its length.
    std::memcpy(row, &segment.value, segment.value_size);
    for (uint64_t filled = segment.value_size; filled < segment.width; filled *= 2) {
      std::memcpy(row + filled, row, std::min(filled, segment.width - filled));
    }
    if (left > 1) row += segment.pitch;
  }
}

[[gnu::noinline]] Result<void> enqueue_fill_parts(backend::Stream& stream, bool captured,
                                                  const backend::FillSegment& whole) {
  const std::array sides{Side{whole.destination, whole.pitch}};
  EnqueuedWork work(stream, captured);
  auto filled = for_each_part(sides, whole.width, whole.height, [&](const Part& part) -> Result<void> {
    backend::FillSegment segment = whole;
    segment.destination = whole.destination.after(part.offset(whole.pitch));
    segment.width = part.width;
    segment.height = part.rows;
    GPUMEM_TRY(stream.fill(segment));
    work.any = true;
    return {};
  });
  if (!filled) return filled;
  work.stay();
  return {};
}

Result<void> enqueue_fill(backend::Stream& stream, bool captured, const backend::FillSegment& whole) {
  if (!Side{whole.destination, whole.pitch}.is_one_part(whole.width, whole.height)) [[unlikely]]
    return enqueue_fill_parts(stream, captured, whole);
  return stream.fill(whole);
}

// Not even a stream of another device that joins the capture: it would have to outlive it.
Error fill_in_capture(backend::FillWay way) {
  return make_error(GPUMEM_ERROR_INVALID_STATE,
                    "the stream is being captured into a graph, which cannot hold this fill; %s",
                    way == backend::FillWay::kAtHome ? "use a stream of the device that has the memory"
                                                     : "only the CPU reaches the memory: pin or map it");
}

// A stream of the memory's own device does it, between two events that put it into the order of the given
// one.
[[gnu::cold, gnu::noinline]] Result<void> fill_at_home(Device& device, backend::Stream& stream, Device& home,
                                                       const backend::FillSegment& segment) {
  auto there = home.backend().create_stream(0);
  if (!there) return there.error();
  const Cleanup release_stream([&] { (void)(*there)->release(); });
  auto before = device.backend().create_event(GPUMEM_EVENT_DISABLE_TIMING);
  if (!before) return before.error();
  const Cleanup release_before([&] { (void)(*before)->release(); });
  auto after = home.backend().create_event(GPUMEM_EVENT_DISABLE_TIMING);
  if (!after) return after.error();
  const Cleanup release_after([&] { (void)(*after)->release(); });

  GPUMEM_TRY((*before)->record(stream));
  GPUMEM_TRY((*there)->wait_event(**before));
  GPUMEM_TRY(enqueue_fill(**there, false, segment));
  auto ordered = (*after)->record(**there);
  if (ordered) ordered = stream.wait_event(**after);
  // Work that the stream does not wait for must not outlive the call.
  if (!ordered) (void)(*there)->synchronize(GPUMEM_TIMEOUT_INFINITE);
  return ordered;
}

[[gnu::cold, gnu::noinline]] Result<void> fill_otherwise(backend::FillWay way, Device& device,
                                                         backend::Stream& stream,
                                                         const FoundSpan& destination,
                                                         const backend::FillSegment& segment) {
  const platform::CancellationHeld held;
  const bool pageable = !destination.region;  // which the program may have unmapped
  switch (way) {
    case backend::FillWay::kEnqueue:
      break;
    case backend::FillWay::kAtHome:
      return fill_at_home(device, stream, destination.region->device(), segment);
    case backend::FillWay::kCpuInStream:
      if (pageable) GPUMEM_TRY(check_mapped(segment));
      return launch_internal(device, stream, destination.region.get(), [segment] { fill_by_cpu(segment); });
    case backend::FillWay::kCpuAfterStream:
      break;
  }
  auto complete = stream.synchronize(GPUMEM_TIMEOUT_INFINITE);
  if (!complete) return complete.error();
  if (pageable) GPUMEM_TRY(check_mapped(segment));
  fill_by_cpu(segment);
  return {};
}

Result<void> route_fill(Device& device, backend::Stream& stream, bool captured, const FoundSpan& destination,
                        const backend::FillSegment& segment) {
  const backend::FillWay way = stream.way_of_fill(segment.destination);
  if (way == backend::FillWay::kEnqueue) return enqueue_fill(stream, captured, segment);
  if (captured) return fill_in_capture(way);
  return fill_otherwise(way, device, stream, destination, segment);
}

// A fill inside one mapping. The device that has the memory does it where the backend wants that and the
// device may.
Result<void> fill_mapped(Device& device, backend::Stream& stream, bool captured, const FoundSpan& destination,
                         const backend::FillSegment& segment) {
  const backend::FillWay way = stream.way_of_fill(segment.destination);
  if (way == backend::FillWay::kAtHome) {
    if (captured) return fill_in_capture(way);
    const platform::CancellationHeld held;
    const auto& range = static_cast<const Range&>(*destination.region);
    Device& home = range.mappings().find(segment.destination.offset)->device;
    const gpumem_access access = range.mappings().find(segment.destination.offset)->access_of(&home);
    if (access == GPUMEM_ACCESS_READWRITE) return fill_at_home(device, stream, home, segment);
  }
  return stream.fill(segment);
}

// Fills before it returns.
[[gnu::noinline]] Result<void> complete_fill(Device& device, const FoundSpan& destination,
                                             const backend::FillSegment& segment) {
  BorrowedStreams streams;
  auto own = streams.of(device);
  if (!own) return own.error();
  auto enqueued = route_fill(device, **own, false, destination, segment);
  auto complete = streams.synchronize();
  return enqueued ? complete : enqueued;
}

// A fill in a range: each mapping is filled as its place demands.
[[gnu::noinline]] Result<void> fill_in_range(Context& context, Stream* stream, const FillArguments& arguments,
                                             const FoundSpan& destination) {
  const Order order(stream);
  CopyArguments box;
  box.destination.pitch = arguments.pitch;
  box.destination.extent = arguments.extent;
  box.width = arguments.width;
  box.height = arguments.height;
  box.admitted = arguments.admitted;
  const std::optional<RangeSide> side(std::in_place,
                                      RangeSide{box, box.destination, destination, Use::kWrites});
  Device& device = stream != nullptr ? stream->device()
                                     : choose_device_for(context, side, destination, std::nullopt, nullptr);
  Verdict verdict;
  verdict.note(stream != nullptr ? order.usable : device.usable());
  side->check(device, &verdict);
  if (!verdict) return verdict.error();

  BorrowedStreams streams;
  backend::Stream* target = stream != nullptr ? &stream->backend() : nullptr;
  if (target == nullptr) {
    auto own = streams.of(device);
    if (!own) return own.error();
    target = *own;
  }
  const std::array sides{Side{destination.span, arguments.pitch}};
  auto filled = [&]() -> Result<void> {
    EnqueuedWork work(*target, order.captured);
    const auto fill_part = [&](const Part& part) -> Result<void> {
      backend::FillSegment segment;
      segment.destination = settled(destination.span.after(part.offset(arguments.pitch)));
      segment.pitch = arguments.pitch;
      segment.width = part.width;
      segment.height = part.rows;
      segment.value = arguments.value;
      segment.value_size = arguments.value_size;
      GPUMEM_TRY(fill_mapped(device, *target, order.captured, destination, segment));
      work.any = true;
      return {};
    };
    GPUMEM_TRY(for_each_part(sides, arguments.width, arguments.height, fill_part));
    work.stay();
    return {};
  }();
  auto complete = streams.synchronize();
  return filled ? complete : filled;
}

// Whether the bytes of `next` lie behind the first `width` ones of `entry` in the same object, on both sides.
bool goes_on(const CheckedCopy& entry, uint64_t width, const CheckedCopy& next) {
  const auto one_row = [](const CopyArguments& arguments) { return arguments.height * arguments.depth == 1; };
  const auto behind = [&](const backend::Span& first, const backend::Span& second) {
    const bool same = first.memory == second.memory && first.pageable == second.pageable &&
                      (first.memory != nullptr || first.pageable) && !first.in_range && !first.managed;
    return same && address_of(second.address) == address_of(first.address) + width;
  };
  return one_row(*entry.arguments) && one_row(*next.arguments) && entry.device == next.device &&
         entry.arguments->source_order == next.arguments->source_order &&
         behind(entry.destination.span, next.destination.span) && behind(entry.source.span, next.source.span);
}

// A small copy of a batch, for a backend that carries out many together. Nothing if it goes its own way.
std::optional<backend::Piece> piece_of(backend::Stream& stream, const CheckedCopy& copy) {
  const CopyArguments& box = *copy.arguments;
  if (box.width > stream.largest_piece() || box.height * box.depth != 1 ||
      box.source_order == GPUMEM_SOURCE_ORDER_DURING_CALL || copy.destination.span.pageable ||
      copy.source.span.pageable)
    return std::nullopt;
  Rectangle row;
  row.destination = settled(copy.destination.span);
  row.source = settled(copy.source.span);
  row.width = box.width;
  const auto one_part = [&](const backend::Span& span) { return Side{span, 0}.is_one_part(row.width, 1); };
  if (!one_part(row.destination) || !one_part(row.source)) return std::nullopt;
  return stream.piece_of(row);
}

// The pieces of a batch that are to be copied together, in one stream.
class PieceList {
 public:
  explicit PieceList(size_t most) {
    pieces_.reserve(most);
    indices_.reserve(most);
  }
  bool is_for(const backend::Stream& stream) const { return stream_ == &stream; }
  void add(backend::Stream& stream, const backend::Piece& piece, uint64_t index) {
    stream_ = &stream;
    pieces_.push_back(piece);
    indices_.push_back(index);
  }
  // Sets `index` to the entry that could not be enqueued.
  Result<void> enqueue(uint64_t* index) {
    if (pieces_.empty()) return {};
    size_t done = 0;
    auto enqueued = stream_->copy_pieces(pieces_, &done);
    if (!enqueued) *index = indices_[done];
    pieces_.clear();
    indices_.clear();
    return enqueued;
  }

 private:
  backend::Stream* stream_ = nullptr;
  std::vector<backend::Piece> pieces_;
  std::vector<uint64_t> indices_;  // of their entries
};

// Most entries of a batch are in the same objects: one use of each is enough. `held` is the last one.
void hold_once(FoundSpan& found, const Region** held) {
  if (!found.region) return;
  if (found.region.get() == *held) {
    found.region = {};
  } else {
    *held = found.region.get();
  }
}

// The failure of one region of a batch.
Error in_region(uint64_t index, const Error& failure) {
  return reworded(failure, "regions[%" PRIu64 "]: %s", index, failure.message);
}

}  // namespace

// Flattened: without, the calls between these small functions are a third of the time.
[[gnu::flatten]] Result<void> copy(Context& context, Stream* stream, const CopyArguments& arguments) {
  GPUMEM_TRY(outside_host_function());
  CheckedCopy checked;
  GPUMEM_TRY(check_copy(context, Order(stream), arguments, &checked));
  return stream != nullptr ? enqueue_copy(stream->backend(), checked, &stream->backend())
                           : complete_copy(checked);
}

Result<void> copy_later(Context& context, BorrowedStreams& streams, const CopyArguments& arguments) {
  GPUMEM_TRY(outside_host_function());
  CheckedCopy checked;
  GPUMEM_TRY(check_copy(context, Order(), arguments, &checked));
  if (is_for_cpu(checked)) return copy_by_cpu(checked);
  auto stream = streams.of(*checked.device);
  if (!stream) return stream.error();
  return enqueue_copy(**stream, checked, nullptr);
}

[[gnu::cold]] Result<void> check_file_memory(Context& context, void* first, uint64_t size, bool to_memory,
                                             const Result<void>& file, const Result<void>& extent,
                                             FileMemory* out) {
  GPUMEM_TRY(outside_host_function());
  CopyArguments arguments = copy_of_bytes(first, first, size);
  (to_memory ? arguments.source : arguments.destination) = nowhere(arguments.source);
  CheckedCopy checked;
  checked.arguments = &arguments;
  FoundSpan& own = to_memory ? checked.destination : checked.source;
  FoundSpan& other = to_memory ? checked.source : checked.destination;
  const Result<void> found =
      to_memory ? find_side(context, arguments.destination, "the destination", Use::kWrites, true, &own)
                : find_side(context, arguments.source, "the source", Use::kReads, true, &own);
  Verdict verdict;
  verdict.note(file);
  verdict.note(extent, Found::kByBounds);
  verdict.note(found, Found::kByBounds);
  if (found) {
    other.span.pageable = true;
    other.span.address = to_memory ? arguments.source.address : arguments.destination.address;
    verdict.note(check_found(context, Order(), arguments, &checked));
  }
  if (!verdict) return verdict.error();
  out->found = std::move(own);
  out->device = checked.device;
  return {};
}

Result<void> enqueue_file_piece(backend::Stream& stream, const backend::CopySegment& segment) {
  EnqueuedWork work(stream, false);
  const auto enqueue = [&](const Rectangle& rectangle) {
    return enqueue_rectangle(stream, rectangle, &work.any);
  };
  if (segment.destination.in_range || segment.source.in_range) {
    GPUMEM_TRY(for_each_mapped_part(segment, enqueue));
  } else {
    GPUMEM_TRY(enqueue(segment));
  }
  work.stay();
  return {};
}

Result<void> copy_all(Context& context, Stream* stream, const std::vector<CopyArguments>& entries,
                      uint64_t* index) {
  const uint64_t count = entries.size();
  *index = count;
  GPUMEM_TRY(outside_host_function());
  const Order order(stream);
  std::vector<CheckedCopy> checked;
  checked.reserve(count);
  const Region* destination = nullptr;
  const Region* source = nullptr;
  for (*index = 0; *index < count; ++*index) {
    if (entries[*index].width == 0) continue;
    CheckedCopy& entry = checked.emplace_back();
    if (auto good = check_copy(context, order, entries[*index], &entry); !good)
      return in_region(*index, good.error());
    entry.index = *index;
    hold_once(entry.destination, &destination);
    hold_once(entry.source, &source);
  }
  GPUMEM_TRY(check_independent(checked, index));

  BorrowedStreams streams;
  PieceList pieces(checked.size());
  // One entry, behind those that came before it.
  const auto enqueue = [&](const CheckedCopy& entry) -> Result<void> {
    if (stream == nullptr && is_for_cpu(entry)) {
      GPUMEM_TRY(pieces.enqueue(index));
      *index = entry.index;
      return copy_by_cpu(entry);
    }
    auto target = stream != nullptr ? &stream->backend() : streams.of(*entry.device);
    const auto piece = target ? piece_of(**target, entry) : std::nullopt;
    if (!piece || !pieces.is_for(**target)) GPUMEM_TRY(pieces.enqueue(index));
    *index = entry.index;
    if (!target) return target.error();
    if (!piece) return enqueue_copy(**target, entry, stream != nullptr ? *target : nullptr);
    pieces.add(**target, *piece, entry.index);
    return {};
  };
  Result<void> enqueued;
  for (size_t next = 0; next < checked.size();) {
    CheckedCopy& entry = checked[next++];
    *index = entry.index;
    // Entries that go on where the last one ended, on both sides, are one copy with it.
    CopyArguments joined = *entry.arguments;
    for (; next < checked.size() && goes_on(entry, joined.width, checked[next]); ++next)
      joined.width += checked[next].arguments->width;
    if (joined.width != entry.arguments->width) {
      joined.destination.extent = joined.source.extent = joined.width;
      entry.arguments = &joined;
    }
    enqueued = enqueue(entry);
    if (!enqueued) break;
  }
  if (enqueued) enqueued = pieces.enqueue(index);
  if (!enqueued) {
    enqueued = in_region(*index, enqueued.error());
  } else {
    *index = count;
  }
  auto complete = streams.synchronize();
  return enqueued ? complete : enqueued;
}

[[gnu::flatten]] Result<void> fill(Context& context, Stream* stream, const FillArguments& arguments) {
  GPUMEM_TRY(outside_host_function());
  SpanRequest request;
  request.address = arguments.destination;
  request.size = arguments.extent;
  request.what = "the destination";
  request.use = Use::kWrites;
  request.passing = stream == nullptr;
  FoundSpan destination;
  GPUMEM_TRY(find_span(context, request, &destination));
  if (destination.span.in_range) [[unlikely]]
    return fill_in_range(context, stream, arguments, destination);
  Device& device = stream != nullptr ? stream->device() : choose_device(context, destination, nullptr);
  Verdict verdict;
  verdict.note(check_device(destination));
  const Order order(stream);
  verdict.note(stream != nullptr ? order.usable : device.usable());
  verdict.note(check_writable(destination));
  if (!arguments.admitted) verdict.note(check_open(destination, "the destination"));
  if (destination.span.managed) [[unlikely]]
    verdict.note(settle_side(device, stream, ManagedSide::kDevice, arguments.extent, &destination));
  if (!verdict) return verdict.error();

  backend::FillSegment segment;
  segment.destination = destination.span;
  segment.value = arguments.value;
  segment.value_size = arguments.value_size;
  if (arguments.pitch == arguments.width) {
    segment.width = arguments.extent;  // rows without gaps are one row
  } else {
    segment.pitch = arguments.pitch;
    segment.width = arguments.width;
    segment.height = arguments.height;
  }
  return stream != nullptr ? route_fill(device, stream->backend(), order.captured, destination, segment)
                           : complete_fill(device, destination, segment);
}

}  // namespace gpumem::core
