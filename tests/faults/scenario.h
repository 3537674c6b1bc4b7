// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What a fault loop runs: public calls one after the other, what they need before, and what must be true at
// the end.
#pragma once

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "gpumem/gpumem.h"

namespace faults {

// Everything that calls write to. After a call that failed it must be the same to the last byte.
struct Out {
  gpumem_instance instance;
  gpumem_instance other;  // a second one beside it
  gpumem_device device[2];
  gpumem_memory memory[4];
  gpumem_physical physical[4];
  gpumem_range range[2];
  gpumem_group group[1];
  gpumem_buffer buffer[15];  // more than a thread uses without memory
  void* pointer[4];          // of gpumem_malloc()
  void* registered[2];       // of gpumem_register(); set by the scenario
  void* foreign[1];          // of gpumem_host_foreign_alloc()
  void* address[2];          // other addresses, that nobody owns
  void* native[1];           // of gpumem_host_native_stream_create()
  gpumem_stream stream[3];
  gpumem_event event[3];
  gpumem_hub hub[1];
  gpumem_link link[2];
  gpumem_pool pool[2];
  void* block[3];        // of the pools
  void* some_blocks[2];  // of a batch
  gpumem_ring ring[1];
  gpumem_share_handle share[2];
  int32_t files[4];  // descriptors of a handle, and a dma-buf
  int32_t pair[2];   // connected sockets; made by the scenario
  uint64_t number[2];
  uint32_t word;
  int32_t ordinal;
  gpumem_fabric_handle fabric_handle;
  int32_t file;  // of gpumem_physical_export_fd()
  gpumem_fabric_handle fabric;
  int64_t nanoseconds;
  gpumem_access access;
  gpumem_status status;
  gpumem_capability capability;
  gpumem_probe_info probe;
  gpumem_instance_info instance_info;
  gpumem_device_info device_info;
  gpumem_capability_info capability_info;
  gpumem_memory_info memory_info;
  gpumem_physical_info physical_info;
  gpumem_range_info range_info;
  gpumem_buffer_info buffer_info;
  gpumem_group_info group_info;
  gpumem_mapping_info mapping_info;
  gpumem_pointer_info pointer_info;
  gpumem_managed_info managed_info;
  gpumem_stream_info stream_info;
  gpumem_event_info event_info;
  gpumem_share_info share_info;
  gpumem_import_info import_info;
  gpumem_way_info way_info;
  gpumem_hub_info hub_info;
  gpumem_link_info link_info;
  gpumem_entry_info entry_info;
  gpumem_ring_slot ring_slot;
  gpumem_ring_info ring_info;
  gpumem_pool_info pool_info;
  gpumem_pool_class_info pool_class_info;
  gpumem_pool_block_info pool_block_info;
  gpumem_status_info status_info;
  gpumem_stats stats;
  gpumem_kind_stats kind_stats;
  gpumem_table table;
  char text[1024];
};

constexpr size_t kPage = 4096;
constexpr size_t kHostBytes = 64 * kPage;
constexpr uint64_t kMiB = uint64_t{1} << 20;

struct World {
  gpumem_backend backend;
  int64_t mapped_before;
  Out out;
  gpumem_error error;
  unsigned char* host[2];  // kHostBytes each of ordinary memory, aligned to a page
};

// Whether a place of Out was written to.
bool is_set(const void* value);
// Marks a place as not written, for a call that ended the object there.
template <class T>
void unset(T& place) {
  std::memset(static_cast<void*>(&place), 0xA5, sizeof place);
}

// One public call.
struct Step {
  const char* function;
  std::function<gpumem_status(World&)> call;
  // What a lack of memory is called where it is not the host's.
  gpumem_status exhausted = GPUMEM_ERROR_OUT_OF_HOST_MEMORY;
  gpumem_status expected = GPUMEM_SUCCESS;
  bool of_many = false;  // made of several steps: of which memory there is a lack depends on the step
};

// A call with a status, whose arguments use the world `w`.
#define CALL(function_, ...)                                                                         \
  faults::Step {                                                                                     \
#function_, [=](faults::World & w) -> gpumem_status { return function_(__VA_ARGS__, &w.error); } \
  }
// The same, for work or memory of a device.
#define DEVICE_CALL(function_, ...)                                                                          \
  faults::Step {                                                                                             \
#function_,                                                                                              \
        [=](faults::World &                                                                                  \
            w) -> gpumem_status { return function_(__VA_ARGS__, &w.error); },                                \
                                                                           GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY \
  }
// A call that ends the object in `place`.
#define ENDING_CALL(function_, place)                   \
  faults::Step {                                        \
#function_, [=](faults::World & w) -> gpumem_status { \
      const gpumem_status status = function_(place, &w.error); \
      if (status == GPUMEM_SUCCESS) faults::unset(place); \
      return status; \
    } \
  }
// A function without a status; `holds` calls it and says whether the answer is right.
#define PLAIN_CALL(function_, holds)                    \
  faults::Step {                                        \
#function_, [=](faults::World & w) -> gpumem_status { \
      (void)w; \
      return (holds) ? GPUMEM_SUCCESS : GPUMEM_ERROR_INTERNAL; \
    } \
  }

enum Backends : unsigned { kHost = 1, kCuda = 2, kBoth = 3 };

struct Scenario {
  std::string name;
  unsigned backends = kBoth;
  std::vector<Step> before;                      // must succeed; after opening an instance, unless `opens`
  std::vector<Step> steps;                       // under faults
  std::function<void(World&)> verify = nullptr;  // once all steps have succeeded, faults absorbed or not
  std::vector<Step> after = {};  // must succeed; handles and pointers in Out are given back anyway
  std::function<void(gpumem_instance_desc&, gpumem_host_options&)> options = nullptr;
  bool opens = false;  // the steps open and close instances themselves
  bool keeps = false;  // something stays for the life of the process, such as the default instance
  // A driver that fails for ever can here neither be asked to give back what lives nor to wait for what runs.
  bool helpless = false;
  bool trims = false;   // a step that fails may have released what pools had free
  bool costly = false;  // much memory: each call fails once, in one way; with a sanitizer every third
  // Streams that the library makes for itself and keeps until the instance is closed.
  uint32_t idle_streams = 0;
  // Descriptors of the sharing thread, which stay until then too; the thread counts as a stream.
  uint32_t idle_files = 0;
  // Kilobytes that may stay page-locked until then. How many do depends on which threads came in time.
  long idle_locked = 0;
  bool vmm = true;  // else the fake driver has no virtual memory management
  // The fake driver's, for physical memory. Clearing blocks takes most of the time if it is large, and calls
  // for many of them if it is small.
  uint64_t granularity = 64 * 1024;
};

// ---- steps that many scenarios have ----

// Creates or registers memory in a slot of Out::memory. Registered memory is the first host buffer from byte
// 100 on.
Step create(size_t slot, gpumem_kind kind, uint64_t size, gpumem_memory_flags require = 0,
            gpumem_memory_flags prefer = 0, uint64_t alignment = 0, uint32_t device = 0);
Step create_stream(size_t slot, uint32_t device = 0);
Step create_event(size_t slot, uint32_t device = 0);
Step synchronize(size_t slot);

std::vector<Scenario> instance_scenarios();
std::vector<Scenario> memory_scenarios();
std::vector<Scenario> vmm_scenarios();
std::vector<Scenario> buffer_scenarios();
std::vector<Scenario> managed_scenarios();
std::vector<Scenario> pool_scenarios();
std::vector<Scenario> stream_scenarios();
std::vector<Scenario> copy_scenarios();
std::vector<Scenario> share_scenarios();
std::vector<Scenario> host_scenarios();
// Whether a handle says which process of which boot made it.
bool names_this_process(const gpumem_share_handle& handle);
// Those that meet what the library sets up once in a process; each attempt is a process of its own.
std::vector<Scenario> first_scenarios();
std::vector<Scenario> first_buffer_scenarios();

// The other process of share_scenarios(): exports memory and an event, and waits for the end of its input.
int run_peer(const char* backend);

}  // namespace faults
