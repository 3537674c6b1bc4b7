// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Facts about managed memory: what is refused, and what the range queries answer. A few MiB at most.
#include "facts.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace facts {
namespace {

constexpr std::size_t kSize = 4 * kMiB;
constexpr CUmemLocation kHost = {CU_MEM_LOCATION_TYPE_HOST, 0};
constexpr CUmemLocation kDevice0 = {CU_MEM_LOCATION_TYPE_DEVICE, 0};

std::string location_type(int type) {
  switch (type) {
    case CU_MEM_LOCATION_TYPE_INVALID:
      return "none";
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return "device";
    case CU_MEM_LOCATION_TYPE_HOST:
      return "host";
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      return "host_numa";
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return "host_numa_current";
    default:
      return std::to_string(type);
  }
}

std::string ask_number(CUmem_range_attribute attribute, CUdeviceptr p, std::size_t size,
                       bool is_type = false) {
  int value = -99;
  const CUresult code = cu.MemRangeGetAttribute(&value, sizeof value, attribute, p, size);
  if (code != CUDA_SUCCESS) return text(code);
  return is_type ? location_type(value) : std::to_string(value);
}

std::string ask_accessed_by(CUdeviceptr p, std::size_t size, std::size_t slots = 4) {
  std::vector<int> values(slots, -99);
  const CUresult code = cu.MemRangeGetAttribute(values.data(), slots * sizeof(int),
                                                CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, p, size);
  if (code != CUDA_SUCCESS) return text(code);
  std::string all;
  for (int value : values)
    all += (all.empty() ? "" : " ") + std::to_string(value);
  return all;
}

// All range attributes in one line.
std::string range(CUdeviceptr p, std::size_t size) {
  return "read_mostly " + ask_number(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, size) + ", preferred " +
         ask_number(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, p, size) + " = " +
         ask_number(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, p, size, true) + " " +
         ask_number(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID, p, size) + ", accessed_by " +
         ask_accessed_by(p, size) + ", last_prefetch " +
         ask_number(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, p, size) + " = " +
         ask_number(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE, p, size, true) + " " +
         ask_number(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID, p, size);
}

void alloc(int) {
  const auto attempt = [](const char* detail, std::size_t size, unsigned flags) {
    CUdeviceptr p = 42;
    const CUresult code = cu.MemAllocManaged(&p, size, flags);
    say(detail, code);
    say(std::string(detail) + "_pointer", p == 42 ? "unchanged" : p ? "some" : "null");
    if (code == CUDA_SUCCESS) (void)cu.MemFree(p);
  };
  attempt("size_0", 0, CU_MEM_ATTACH_GLOBAL);
  attempt("flags_0", kMiB, 0);
  attempt("flags_single", kMiB, CU_MEM_ATTACH_SINGLE);
  attempt("flags_global_and_host", kMiB, CU_MEM_ATTACH_GLOBAL | CU_MEM_ATTACH_HOST);
  attempt("flags_8", kMiB, 8);
  attempt("flags_global_and_8", kMiB, 9);
  attempt("host", kMiB, CU_MEM_ATTACH_HOST);
  say("null_out", cu.MemAllocManaged(nullptr, kMiB, CU_MEM_ATTACH_GLOBAL));
}

void fresh(int) {
  const CUdeviceptr p = managed_memory(kSize);
  say("range", range(p, kSize));
  say("range_attach_host", range(managed_memory(kSize, CU_MEM_ATTACH_HOST), kSize));
  say_yes("fresh_reads_zero", all_bytes(as_host(managed_memory(kSize)), kSize, 0));
}

void preferred_location(int) {
  struct Case {
    const char* name;
    CUmemLocation location;
  };
  constexpr Case kCases[] = {{"device", kDevice0},
                             {"host", kHost},
                             {"host_id_7", {CU_MEM_LOCATION_TYPE_HOST, 7}},
                             {"host_numa_0", {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}},
                             {"host_numa_99", {CU_MEM_LOCATION_TYPE_HOST_NUMA, 99}},
                             {"host_numa_minus_1", {CU_MEM_LOCATION_TYPE_HOST_NUMA, -1}},
                             {"host_numa_current", {CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0}},
                             {"none", {CU_MEM_LOCATION_TYPE_INVALID, 0}},
                             {"device_99", {CU_MEM_LOCATION_TYPE_DEVICE, 99}},
                             {"device_minus_1", {CU_MEM_LOCATION_TYPE_DEVICE, -1}}};
  for (const Case& test : kCases) {
    const CUdeviceptr p = managed_memory(kSize);
    const std::string detail = test.name;
    say(detail + ".preferred", cu.MemAdvise(p, kSize, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, test.location));
    say(detail + ".accessed_by", cu.MemAdvise(p, kSize, CU_MEM_ADVISE_SET_ACCESSED_BY, test.location));
    say(detail + ".read_mostly", cu.MemAdvise(p, kSize, CU_MEM_ADVISE_SET_READ_MOSTLY, test.location));
    say(detail + ".prefetch", cu.MemPrefetchAsync(p, kSize, test.location, 0, nullptr));
    say(detail + ".range_at_once", range(p, kSize));
    (void)cu.CtxSynchronize();
    say(detail + ".range", range(p, kSize));
    say(detail + ".unset_accessed_by",
        cu.MemAdvise(p, kSize, CU_MEM_ADVISE_UNSET_ACCESSED_BY, test.location));
    say(detail + ".unset_preferred",
        cu.MemAdvise(p, kSize, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, test.location));
    say(detail + ".unset_read_mostly",
        cu.MemAdvise(p, kSize, CU_MEM_ADVISE_UNSET_READ_MOSTLY, test.location));
    say(detail + ".range_after_unset", range(p, kSize));
  }
}

void read_mostly_with_others(int) {
  CUdeviceptr p = managed_memory(kSize);
  must(cu.MemAdvise(p, kSize, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, kDevice0), "cuMemAdvise");
  must(cu.MemAdvise(p, kSize, CU_MEM_ADVISE_SET_ACCESSED_BY, kHost), "cuMemAdvise");
  say("before", range(p, kSize));
  say("set", cu.MemAdvise(p, kSize, CU_MEM_ADVISE_SET_READ_MOSTLY, kDevice0));
  say("while", range(p, kSize));
  say("unset", cu.MemAdvise(p, kSize, CU_MEM_ADVISE_UNSET_READ_MOSTLY, kDevice0));
  say("after", range(p, kSize));
  p = managed_memory(kSize);
  must(cu.MemAdvise(p, kSize, CU_MEM_ADVISE_SET_READ_MOSTLY, kDevice0), "cuMemAdvise");
  say("then_preferred", cu.MemAdvise(p, kSize, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, kDevice0));
  say("then_accessed_by", cu.MemAdvise(p, kSize, CU_MEM_ADVISE_SET_ACCESSED_BY, kDevice0));
  say("then", range(p, kSize));
  say("unset_of_nothing", cu.MemAdvise(managed_memory(kSize), 4096, CU_MEM_ADVISE_UNSET_READ_MOSTLY, kHost));
}

void accessed_by(int) {
  const CUdeviceptr p = managed_memory(kSize);
  say("set_device", cu.MemAdvise(p, kSize, CU_MEM_ADVISE_SET_ACCESSED_BY, kDevice0));
  say("set_host", cu.MemAdvise(p, kSize, CU_MEM_ADVISE_SET_ACCESSED_BY, kHost));
  say("four_slots", ask_accessed_by(p, kSize));
  say("one_slot", ask_accessed_by(p, kSize, 1));
  say("no_slot", ask_accessed_by(p, kSize, 0));
  int values[2] = {};
  say("size_not_multiple_of_4",
      cu.MemRangeGetAttribute(values, 5, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, p, kSize));
  say("half_unset", cu.MemAdvise(p, kSize / 2, CU_MEM_ADVISE_UNSET_ACCESSED_BY, kDevice0));
  say("whole_then", ask_accessed_by(p, kSize));
  say("upper_half_then", ask_accessed_by(p + kSize / 2, kSize / 2));
}

// What unaligned bounds cover: advice on a part, then queries around it.
void unaligned(int) {
  const auto mostly = [](CUdeviceptr p, std::size_t size) {
    return ask_number(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, size);
  };
  const CUdeviceptr p = managed_memory(kSize);
  const CUdeviceptr inner = p + 5 * kPage;
  say("advise_100_bytes", cu.MemAdvise(inner + 100, 100, CU_MEM_ADVISE_SET_READ_MOSTLY, kHost));
  say("same_bytes", mostly(inner + 100, 100));
  say("one_byte_before", mostly(inner + 99, 1));
  say("its_page", mostly(inner, kPage));
  say("last_byte_of_page", mostly(inner + kPage - 1, 1));
  say("page_before", mostly(inner - kPage, kPage));
  say("page_after", mostly(inner + kPage, kPage));
  say("page_and_one_byte", mostly(inner, kPage + 1));
  say("first_64KiB", mostly(p, 64 * kKiB));
  const CUdeviceptr second = p + 2 * kMiB;
  say("advise_across_pages", cu.MemAdvise(second + 4000, 200, CU_MEM_ADVISE_SET_READ_MOSTLY, kHost));
  say("first_page", mostly(second, kPage));
  say("second_page", mostly(second + kPage, kPage));
  say("third_page", mostly(second + 2 * kPage, kPage));
  say("unaligned_prefetch", cu.MemPrefetchAsync(second + 100, 100, kDevice0, 0, nullptr));
  (void)cu.CtxSynchronize();
  say("prefetch_of_page",
      ask_number(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE, second, kPage, true));
  say("prefetch_of_next",
      ask_number(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE, second + kPage, kPage, true));
  say("advise_to_end_unaligned", cu.MemAdvise(p + 1, kSize - 1, CU_MEM_ADVISE_SET_READ_MOSTLY, kHost));
  say("whole_then", mostly(p, kSize));
  const CUdeviceptr odd = managed_memory(1000);
  say("odd_size_asked", mostly(odd, 1000));
  say("odd_size_whole_page", mostly(odd, kPage));
  say("odd_size_beyond_page", mostly(odd, 2 * kPage));
  say("odd_size_beyond_64KiB", mostly(odd, 128 * kKiB));
  say("odd_size_beyond_2MiB", mostly(odd, 4 * kMiB));
}

void two_allocations(int) {
  std::vector<CUdeviceptr> all;
  for (int i = 0; i < 16; ++i)
    all.push_back(managed_memory(2 * kMiB));
  std::sort(all.begin(), all.end());
  CUdeviceptr low = 0;
  for (std::size_t i = 0; i + 1 < all.size() && !low; ++i) {
    if (all[i + 1] == all[i] + 2 * kMiB) low = all[i];
  }
  say("neighbours", low ? "found" : "none");
  if (low) {
    const CUdeviceptr across = low + kMiB;
    say("query_across", ask_number(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, across, 2 * kMiB));
    say("advise_across", cu.MemAdvise(across, 2 * kMiB, CU_MEM_ADVISE_SET_READ_MOSTLY, kHost));
    say("lower_then", ask_number(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, across, kMiB));
    say("upper_then", ask_number(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, low + 2 * kMiB, kMiB));
    say("prefetch_across", cu.MemPrefetchAsync(across, 2 * kMiB, kDevice0, 0, nullptr));
    (void)cu.CtxSynchronize();
    say("range_across_then", range(across, 2 * kMiB));
    say("memset_across", cu.MemsetD8(across, 1, 2 * kMiB));
    say("context_then", cu.CtxSynchronize());
  }
  const CUdeviceptr alone = managed_memory(kSize);
  say("query_beyond_end", ask_number(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, alone, kGiB));
  say("advise_beyond_end", cu.MemAdvise(alone, kGiB, CU_MEM_ADVISE_SET_READ_MOSTLY, kHost));
  say("prefetch_beyond_end", cu.MemPrefetchAsync(alone, kGiB, kDevice0, 0, nullptr));
}

void misuse(int) {
  const CUdeviceptr p = managed_memory(kSize);
  CUstream stream = new_stream();
  say("advise_size_0", cu.MemAdvise(p, 0, CU_MEM_ADVISE_SET_READ_MOSTLY, kHost));
  say("advise_0", cu.MemAdvise(p, kSize, stray<CUmem_advise>(0), kHost));
  say("advise_7", cu.MemAdvise(p, kSize, stray<CUmem_advise>(7), kHost));
  say("advise_null", cu.MemAdvise(0, kSize, CU_MEM_ADVISE_SET_READ_MOSTLY, kHost));
  say("prefetch_size_0", cu.MemPrefetchAsync(p, 0, kDevice0, 0, stream));
  say("prefetch_flags_1", cu.MemPrefetchAsync(p, kSize, kDevice0, 1, stream));
  say("prefetch_null", cu.MemPrefetchAsync(0, kSize, kDevice0, 0, stream));
  int value = 0;
  say("query_size_0", cu.MemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, 0));
  say("query_data_size_8", cu.MemRangeGetAttribute(&value, 8, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, kSize));
  say("query_attribute_0", cu.MemRangeGetAttribute(&value, 4, stray<CUmem_range_attribute>(0), p, kSize));
  say("query_attribute_9", cu.MemRangeGetAttribute(&value, 4, stray<CUmem_range_attribute>(9), p, kSize));
  say("query_null_data", cu.MemRangeGetAttribute(nullptr, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, kSize));

  struct Stranger {
    const char* name;
    CUdeviceptr p;
  };
  for (const Stranger& stranger :
       {Stranger{"device", device_memory(kSize)}, Stranger{"pinned", as_device(pinned_memory(kSize))},
        Stranger{"registered", as_device(registered_memory(kSize))},
        Stranger{"pageable", as_device(cpu_memory(kSize))},
        Stranger{"unmapped", as_device(unmapped_address(kSize))}}) {
    const std::string detail = stranger.name;
    say(detail + ".query", ask_number(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, stranger.p, kSize));
    say(detail + ".advise", cu.MemAdvise(stranger.p, kSize, CU_MEM_ADVISE_SET_READ_MOSTLY, kHost));
    say(detail + ".prefetch", cu.MemPrefetchAsync(stranger.p, kSize, kDevice0, 0, stream));
    say(detail + ".attach", cu.StreamAttachMemAsync(stream, stranger.p, kSize, CU_MEM_ATTACH_GLOBAL));
    say(detail + ".attach_length_0", cu.StreamAttachMemAsync(stream, stranger.p, 0, CU_MEM_ATTACH_GLOBAL));
  }
  say("context_then", cu.CtxSynchronize());
}

void attach(int) {
  const CUdeviceptr p = managed_memory(kSize);
  CUstream stream = new_stream();
  say("single", cu.StreamAttachMemAsync(stream, p, 0, CU_MEM_ATTACH_SINGLE));
  say("single_full_length", cu.StreamAttachMemAsync(stream, p, kSize, CU_MEM_ATTACH_SINGLE));
  say("single_half_length", cu.StreamAttachMemAsync(stream, p, kSize / 2, CU_MEM_ATTACH_SINGLE));
  say("single_longer", cu.StreamAttachMemAsync(stream, p, 2 * kSize, CU_MEM_ATTACH_SINGLE));
  say("single_interior", cu.StreamAttachMemAsync(stream, p + kPage, 0, CU_MEM_ATTACH_SINGLE));
  say("single_default_stream", cu.StreamAttachMemAsync(nullptr, p, 0, CU_MEM_ATTACH_SINGLE));
  say("host", cu.StreamAttachMemAsync(stream, p, 0, CU_MEM_ATTACH_HOST));
  say("global", cu.StreamAttachMemAsync(stream, p, 0, CU_MEM_ATTACH_GLOBAL));
  say("global_default_stream", cu.StreamAttachMemAsync(nullptr, p, 0, CU_MEM_ATTACH_GLOBAL));
  say("flags_0", cu.StreamAttachMemAsync(stream, p, 0, 0));
  say("flags_3", cu.StreamAttachMemAsync(stream, p, 0, 3));
  say("null", cu.StreamAttachMemAsync(stream, 0, 0, CU_MEM_ATTACH_GLOBAL));
  say("stream_then", settle(stream));
  must(cu.StreamAttachMemAsync(stream, p, 0, CU_MEM_ATTACH_SINGLE), "cuStreamAttachMemAsync");
  must(cu.StreamSynchronize(stream), "cuStreamSynchronize");
  CUstream other = new_stream();
  say("memset_on_other_stream_of_single", cu.MemsetD8Async(p, 1, kSize, other));
  say("other_stream_then", settle(other));
  const CUdeviceptr host_only = managed_memory(kSize, CU_MEM_ATTACH_HOST);
  say("memset_of_host_attached", cu.MemsetD8Async(host_only, 1, kSize, other));
  say("other_stream_then_too", settle(other));
}

void batch_prefetch(int) {
  CUstream stream = new_stream();
  CUdeviceptr p = managed_memory(kSize);
  CUdeviceptr q = managed_memory(kSize);
  std::memset(as_host(p), 1, kSize);
  std::memset(as_host(q), 1, kSize);
  CUdeviceptr pointers[] = {p, q};
  std::size_t sizes[] = {kSize, kSize};
  CUmemLocation locations[] = {kDevice0, kHost};
  std::size_t indices[] = {0, 1};
  const auto batch = [&](std::size_t count, std::size_t location_count, unsigned long long flags,
                         CUstream on) {
    return cu.MemPrefetchBatchAsync(pointers, sizes, count, locations, indices, location_count, flags, on);
  };
  say("two_locations", batch(2, 2, 0, stream));
  say("range_of_first_at_once", range(p, kSize));
  say("stream_then", settle(stream));
  say("range_of_first", range(p, kSize));
  say("range_of_second", range(q, kSize));
  say("one_location", batch(2, 1, 0, stream));
  say("stream_then_too", settle(stream));
  say("range_of_second_then", range(q, kSize));
  say("count_0", batch(0, 1, 0, stream));
  say("locations_0", batch(2, 0, 0, stream));
  say("more_locations_than_ranges", batch(1, 2, 0, stream));
  say("flags_1", batch(2, 2, 1, stream));
  say("default_stream", batch(2, 2, 0, nullptr));
  indices[0] = 1;
  say("first_index_1", batch(2, 1, 0, stream));
  indices[0] = 0;
  indices[1] = 0;
  say("indices_not_increasing", batch(2, 2, 0, stream));
  indices[1] = 2;
  say("index_beyond_count", batch(2, 2, 0, stream));
  indices[1] = 1;
  sizes[1] = 0;
  say("one_size_0", batch(2, 2, 0, stream));
  sizes[1] = kSize;
  pointers[1] = device_memory(kSize);
  say("one_not_managed", batch(2, 2, 0, stream));
  say("context_then", cu.CtxSynchronize());
}

// Every other piece is prefetched to the device, then the whole to the host.
void prefetch_over_pieces(int) {
  constexpr std::size_t kPieces = 9;
  for (const std::size_t piece : {16 * kPage, 2 * kMiB}) {
    for (const bool batch : {false, true}) {
      CUstream stream = new_stream();
      CUdeviceptr p = managed_memory(kPieces * piece);
      for (std::size_t i = 1; i < kPieces; i += 2)
        must(cu.MemPrefetchAsync(p + i * piece, piece, kDevice0, 0, stream), "cuMemPrefetchAsync");
      must(cu.StreamSynchronize(stream), "cuStreamSynchronize");
      std::size_t size = kPieces * piece;
      std::size_t index = 0;
      CUmemLocation host = kHost;
      must(batch ? cu.MemPrefetchBatchAsync(&p, &size, 1, &host, &index, 1, 0, stream)
                 : cu.MemPrefetchAsync(p, size, kHost, 0, stream),
           "cuMemPrefetch");
      must(cu.StreamSynchronize(stream), "cuStreamSynchronize");
      std::string pieces;
      for (std::size_t i = 0; i < kPieces; ++i)
        pieces += (i ? " " : "") +
                  ask_number(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE, p + i * piece, piece, true);
      say(std::to_string(piece >> 10) + (batch ? "_KiB_batch" : "_KiB_single"), pieces);
    }
  }
}

void discard(int) {
  CUstream stream = new_stream();
  CUdeviceptr p = managed_memory(kSize);
  std::memset(as_host(p), 7, kSize);
  must(cu.MemAdvise(p, kSize, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, kDevice0), "cuMemAdvise");
  must(cu.MemAdvise(p, kSize, CU_MEM_ADVISE_SET_ACCESSED_BY, kHost), "cuMemAdvise");
  must(cu.MemPrefetchAsync(p, kSize, kDevice0, 0, stream), "cuMemPrefetchAsync");
  must(cu.StreamSynchronize(stream), "cuStreamSynchronize");
  say("before", range(p, kSize));
  std::size_t size = kSize;
  const auto discard_range = [&](std::size_t count, unsigned long long flags, CUstream on) {
    return cu.MemDiscardBatchAsync(&p, &size, count, flags, on);
  };
  say("code", discard_range(1, 0, stream));
  say("stream_then", settle(stream));
  say("after", range(p, kSize));
  say("cpu_read_then", touch_read(as_host(p)));
  say("memset_then", cu.MemsetD8Async(p, 3, kSize, stream));
  say("stream_then_too", settle(stream));
  say_yes("bytes_are_kept_after_write", device_bytes(p, kSize, 3));
  must(cu.MemAdvise(p, kSize, CU_MEM_ADVISE_SET_READ_MOSTLY, kDevice0), "cuMemAdvise");
  say("with_read_mostly", discard_range(1, 0, stream));
  say("with_read_mostly_stream", settle(stream));
  say("with_read_mostly_after", range(p, kSize));
  say("count_0", discard_range(0, 0, stream));
  say("flags_1", discard_range(1, 1, stream));
  say("default_stream", discard_range(1, 0, nullptr));
  size = 100;
  say("hundred_bytes", discard_range(1, 0, stream));
  size = 0;
  say("size_0", discard_range(1, 0, stream));
  size = kSize;
  p = device_memory(kSize);
  say("device_memory", discard_range(1, 0, stream));
  say("context_then", cu.CtxSynchronize());
}

constexpr Fact kFacts[] = {
    {.name = "man.alloc", .run = alloc},
    {.name = "man.fresh", .run = fresh},
    {.name = "man.locations", .run = preferred_location},
    {.name = "man.read_mostly_with_others", .run = read_mostly_with_others},
    {.name = "man.accessed_by", .run = accessed_by},
    {.name = "man.unaligned", .run = unaligned},
    {.name = "man.two_allocations", .run = two_allocations},
    {.name = "man.misuse", .run = misuse},
    {.name = "man.attach", .run = attach},
    {.name = "man.batch_prefetch", .run = batch_prefetch},
    {.name = "man.prefetch_over_pieces", .run = prefetch_over_pieces},
    {.name = "man.discard", .run = discard},
};

}  // namespace

std::span<const Fact> managed_facts() { return kFacts; }

}  // namespace facts
