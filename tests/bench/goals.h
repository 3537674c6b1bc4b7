// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What the project wants to reach beside the driver on a GPU, or beside the system. Nothing is judged by it;
// the report shows it.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

namespace bench {

// A time is to be at most `ratio` times that of the raw side plus `seconds`; a rate at least `ratio` times
// that, or `rate` bytes a second. A name that ends with a slash is of all rows whose names begin so; a row
// gets the first that fits.
struct Goal {
  const char* name;
  double ratio;
  double seconds;
  double rate = 0;
};

inline constexpr Goal kGoals[] = {
    {"pool/device/pair_4KiB/threads_1", 0, 20e-9},
    {"pool/device/pair_4KiB/threads_16", 0, 30e-9},
    {"pool/pinned/pair_4KiB/threads_1", 0, 25e-9},
    {"pool/pinned/pair_4KiB/threads_16", 0, 35e-9},
    {"pool/pageable/pair_64B/threads_1", 1, 0},
    {"pool/pageable/pair_64B/threads_2", 1, 0},
    {"pool/pageable/pair_4KiB/threads_1", 1, 0},
    {"pool/pageable/pair_4KiB/threads_2", 1, 0},
    {"pool/device/random_replace", 0, 60e-9},
    {"pool/device/freed_by_another_thread", 0, 60e-9},
    {"pool/device/freed_in_another_stream", 0, 100e-9},
    {"pool/device/pointer_query_of_1000000/threads_1", 0, 8e-9},
    {"pool/device/pointer_query_of_1000000/threads_16", 0, 10e-9},
    {"live_1/threads_1/pointer_get_info", 0, 8e-9},
    {"live_1/threads_16/pointer_get_info", 0, 10e-9},
    {"live_10000/threads_1/pointer_get_info", 0, 8e-9},
    {"live_10000/threads_16/pointer_get_info", 0, 10e-9},
    {"live_1000000/threads_1/pointer_get_info", 0, 8e-9},
    {"live_1000000/threads_16/pointer_get_info", 0, 10e-9},
    {"pieces/to_device/1000x1KiB", 1.0 / 3, 0},
    {"pieces/to_device/1000x4KiB", 1.0 / 3, 0},
    {"pieces/to_host/1000x1KiB", 1.0 / 3, 0},
    {"pieces/to_host/1000x4KiB", 1.0 / 3, 0},
    {"pieces/on_device/1000x1KiB", 1.0 / 3, 0},
    {"pieces/on_device/1000x4KiB", 1.0 / 3, 0},
    {"pieces/", 1, 0},  // beside the driver's batch, and the loop of larger ones
    {"pageable/to_device/beside_pinned/256MiB", 0.95, 0},
    {"pageable/to_device/beside_pinned/512MiB", 0.95, 0},
    {"pageable/to_device/beside_pinned/1GiB", 0.95, 0},
    {"pageable/to_host/beside_pinned/256MiB", 0.95, 0},
    {"pageable/to_host/beside_pinned/512MiB", 0.95, 0},
    {"pageable/to_host/beside_pinned/1GiB", 0.95, 0},
    {"pageable/to_device/sync/", 0.97, 0},
    {"pageable/to_device/async/", 0.97, 0},
    {"pageable/to_host/sync/", 0.97, 0},
    {"pageable/to_host/async/", 0.97, 0},
    {"pageable_setting/to_device/threads_8", 0.85, 0},
    {"pageable_setting/to_host/threads_8", 0.85, 0},
    {"copy/pageable_to_device/", 0.97, 0},
    {"copy/device_to_pageable/", 0.97, 0},
    {"copy/pinned_to_pinned/", 0.97, 0},
    {"copy/pageable_to_pinned/", 0.97, 0},
    {"copy/pageable_to_pageable/", 0.97, 0},
    // Beside the smaller of the two: the link where the file is in the page cache, else the disk.
    {"file/to_device/warm/beside_pinned/8GiB", 0.9, 0},
    {"file/to_device/cold/beside_read_alone/8GiB", 0.9, 0},
    {"pin_alloc/4GiB", 1.0 / 8, 0},
    {"pin_free/4GiB", 1.0 / 4, 0},
    {"group/sleep/cold/64x128MiB", 0, 0, 30e9},
    {"group/wake/cold/64x128MiB", 0, 0, 45e9},
    {"create_destroy/managed/1GiB", 1.1, 0},
    {"threads_1/fence_mark", 2, 0},
    {"threads_1/device_get", 0, 5e-9},
    {"threads_1/copy_4KiB_async", 1.05, 0},
    {"threads_16/copy_4KiB_async", 1.05, 0},
    {"threads_1/fill_4KiB_async", 1.05, 0},
    {"threads_16/fill_4KiB_async", 1.05, 0},
    {"threads_1/event_record", 1.1, 0},
    {"threads_16/event_record", 1.05, 0},
    {"threads_1/event_query", 1.25, 0},
    {"threads_16/event_query", 1.05, 0},
    {"threads_1/stream_query", 1.2, 0},
    {"threads_16/stream_query", 1.05, 0},
    {"share: import 64 MiB by a handle of the driver, end it", 1.1, 50e-6},
    {"share: import 64 MiB by a descriptor, end it", 1.1, 50e-6},
    {"share: fetch by name, import 64 MiB by a handle of the driver, end it", 1, 60e-6},
    {"share: import what is imported", 0, 100e-9},
    {"share: export again", 0, 5e-6},
    {"share: copy 64 MiB through an import", 0.98, 0},
    {"share: ring of 1 slot, hand over and take back, in streams", 1.2, 0},
    {"share: ring of 8 slots, hand over", 0, 10e-6},
    {"buffer/grow/2MiB", 1.1, 0},
    {"buffer/grow/1GiB", 1.1, 0},
    {"buffer/grow/8GiB", 1.1, 0},
    {"buffer/grow_ahead/2MiB", 0, 1e-6},
};

// On the host backend.
inline constexpr Goal kHostGoals[] = {
    {"create_destroy/device_by_default/1MiB/beside_touch", 1.5, 0},
};

inline const Goal* goal_of(const std::string& name, bool host) {
  const auto fits = [&](const Goal& goal) {
    const std::string_view wanted = goal.name;
    return name == wanted || (wanted.ends_with('/') && name.starts_with(wanted));
  };
  const std::span<const Goal> goals =
      host ? std::span<const Goal>(kHostGoals) : std::span<const Goal>(kGoals);
  const auto found = std::find_if(goals.begin(), goals.end(), fits);
  return found == goals.end() ? nullptr : &*found;
}

}  // namespace bench
