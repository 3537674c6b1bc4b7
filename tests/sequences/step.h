// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One step of a sequence: which function is called, and bytes that choose its arguments. Every string of
// bytes is a sequence and every part of a sequence is one, so that a fuzzer can make them and a shrinker cut
// them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sequences {

// Every step, with how often it comes; the name is that of the function without its prefix. The last five
// stand for groups of functions and for what the program does itself.
#define SEQUENCES_STEPS(X)                 \
  X(instance_open, 4)                      \
  X(instance_close, 4)                     \
  X(instance_default, 1)                   \
  X(instance_get_info, 2)                  \
  X(instance_probe, 1)                     \
  X(device_get, 2)                         \
  X(device_get_info, 2)                    \
  X(device_get_memory, 3)                  \
  X(device_trim_graphs, 1)                 \
  X(device_can_access_peer, 2)             \
  X(device_enable_peer_access, 4)          \
  X(device_disable_peer_access, 3)         \
  X(device_get_capability, 2)              \
  X(capability_enumerate, 1)               \
  X(memory_create, 24)                     \
  X(memory_register, 12)                   \
  X(memory_destroy, 16)                    \
  X(memory_get_info, 5)                    \
  X(malloc, 8)                             \
  X(free, 8)                               \
  X(register, 8)                           \
  X(unregister, 6)                         \
  X(pointer_get_info, 10)                  \
  X(pointer_get_access, 8)                 \
  X(pointer_get_device_pointer, 6)         \
  X(physical_get_granularity, 1)           \
  X(physical_create, 6)                    \
  X(physical_release, 4)                   \
  X(physical_get_info, 1)                  \
  X(physical_retain, 2)                    \
  X(physical_export_fd, 1)                 \
  X(physical_import_fd, 2)                 \
  X(range_reserve, 4)                      \
  X(range_release, 2)                      \
  X(range_get_info, 1)                     \
  X(range_map, 8)                          \
  X(range_unmap, 4)                        \
  X(range_set_access, 5)                   \
  X(range_get_mapping, 4)                  \
  X(buffer_create, 16)                     \
  X(buffer_destroy, 2)                     \
  X(buffer_get_info, 2)                    \
  X(buffer_resize, 8)                      \
  X(buffer_set_capacity, 4)                \
  X(buffer_set_access, 4)                  \
  X(buffer_sleep, 6)                       \
  X(buffer_wake, 6)                        \
  X(stream_create, 8)                      \
  X(stream_wrap, 5)                        \
  X(stream_destroy, 6)                     \
  X(stream_get_info, 2)                    \
  X(stream_get_capture_id, 2)              \
  X(stream_query, 6)                       \
  X(stream_synchronize, 10)                \
  X(stream_wait_event, 8)                  \
  X(stream_launch_host_function, 8)        \
  X(stream_write_value, 7)                 \
  X(stream_wait_value, 7)                  \
  X(event_create, 8)                       \
  X(event_wrap, 2)                         \
  X(event_destroy, 5)                      \
  X(event_get_info, 2)                     \
  X(event_record, 10)                      \
  X(event_query, 5)                        \
  X(event_synchronize, 6)                  \
  X(event_get_elapsed_time, 6)             \
  X(copy, 12)                              \
  X(copy_async, 18)                        \
  X(copy_2d, 6)                            \
  X(copy_2d_async, 8)                      \
  X(copy_regions, 8)                       \
  X(copy_regions_async, 10)                \
  X(copy_file, 8)                          \
  X(fill, 8)                               \
  X(fill_async, 12)                        \
  X(fill_2d, 4)                            \
  X(fill_2d_async, 6)                      \
  X(managed_attach, 8)                     \
  X(managed_advise, 12)                    \
  X(managed_prefetch, 10)                  \
  X(managed_prefetch_batch, 8)             \
  X(managed_discard_batch, 4)              \
  X(managed_discard_and_prefetch_batch, 5) \
  X(managed_get_info, 10)                  \
  X(managed_begin_host_access, 3)          \
  X(managed_end_host_access, 3)            \
  X(stats_get, 2)                          \
  X(stats_get_kind, 2)                     \
  X(stats_reset_peaks, 2)                  \
  X(stats_report, 2)                       \
  X(stats_snapshot, 1)                     \
  X(log_set_function, 1)                   \
  X(status_get_info, 1)                    \
  X(status_enumerate, 1)                   \
  X(table_get, 1)                          \
  X(host_launch, 8)                        \
  X(host_kernel_view, 1)                   \
  X(host_native_stream_create, 4)          \
  X(host_native_stream_destroy, 3)         \
  X(host_stream_set_capturing, 3)          \
  X(host_device_lose, 1)                   \
  X(host_fail_step, 2)                     \
  X(host_foreign_alloc, 4)                 \
  X(host_foreign_free, 3)                  \
  X(host_foreign_peer_access, 2)           \
  X(host_set_current_device, 2)            \
  X(physical_export_fabric, 1)             \
  X(physical_import_fabric, 1)             \
  X(buffer_prepare, 4)                     \
  X(buffer_set_ahead, 3)                   \
  X(buffer_note_registration, 3)           \
  X(buffer_forget_registration, 3)         \
  X(buffer_set_callbacks, 2)               \
  X(group_create, 4)                       \
  X(group_destroy, 2)                      \
  X(group_get_info, 2)                     \
  X(group_sleep, 5)                        \
  X(group_wake, 5)                         \
  X(group_prepare, 2)                      \
  X(pool_create, 9)                        \
  X(pool_destroy, 3)                       \
  X(pool_alloc, 14)                        \
  X(pool_alloc_aligned, 4)                 \
  X(pool_try_alloc, 5)                     \
  X(pool_alloc_batch, 4)                   \
  X(pool_alloc_native, 3)                  \
  X(pool_free, 10)                         \
  X(pool_free_sized, 4)                    \
  X(pool_free_batch, 4)                    \
  X(pool_free_native, 3)                   \
  X(pool_free_pointer, 4)                  \
  X(pool_record_use, 4)                    \
  X(pool_release_capture, 2)               \
  X(pool_trim, 5)                          \
  X(pool_capacity_for, 2)                  \
  X(pool_set_limit, 2)                     \
  X(pool_set_release_threshold, 2)         \
  X(pool_get_info, 1)                      \
  X(pool_get_class_info, 2)                \
  X(pool_reset_peaks, 2)                   \
  X(pool_get_block_info, 4)                \
  X(pool_set_callback, 2)                  \
  X(texts, 2)                              \
  X(cpu_write, 8)                          \
  X(cpu_check, 8)                          \
  X(buffer_use, 16)                        \
  X(pool_use, 10)

enum class Kind : uint8_t {
#define SEQUENCES_NAME(name, weight) k_##name,
  SEQUENCES_STEPS(SEQUENCES_NAME)
#undef SEQUENCES_NAME
};

const char* name_of(Kind kind);

inline constexpr size_t kValues = 32;
inline constexpr size_t kStepBytes = 2 + 1 + kValues;  // kind, thread, values

struct Step {
  Kind kind{};
  uint8_t thread = 0;
  // 0 is always the simplest choice; from 200 on they ask for something wrong where that makes sense.
  std::array<uint8_t, kValues> values{};
};

// A first byte that configures the first instance, then the steps.
struct Sequence {
  uint8_t setup = 0;
  std::vector<Step> steps;
};

Sequence decode(std::span<const uint8_t> bytes);
// Bytes of a sequence, the same for a seed everywhere and for ever. Most choices are right ones.
std::vector<uint8_t> random_bytes(uint64_t seed, size_t steps);

}  // namespace sequences
