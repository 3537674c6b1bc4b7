// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Whether the driver survives being asked about a pointer while another thread gives memory back, and whether
// it clears memory. Every answer can differ from run to run: surviving two seconds proves nothing, a signal
// or a timeout does.
#include "facts.hpp"

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace facts {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kTime = std::chrono::seconds(2);
constexpr int kTimeout = 8;

// What one thread makes and gives back all the time.
enum Memory { kSmall, kLarge, kPinned, kRegistered };
// What the other asks about: the latest address, one inside that memory, just behind it, or memory that
// stays.
enum Asked { kBase, kInside, kBehind, kOther };
// kApart: nobody asks while memory is given back. It may still be made meanwhile.
enum Manner { kFree, kApart };

constexpr int race(Memory memory, Asked asked, Manner manner) { return memory | asked << 4 | manner << 8; }

std::size_t size_of(Memory memory) {
  return memory == kSmall ? 4 * kKiB : memory == kLarge ? 64 * kMiB : 64 * kKiB;
}

CUdeviceptr make(Memory memory, std::uint8_t* pages) {
  if (memory == kPinned) return as_device(pinned_memory(size_of(memory)));
  if (memory != kRegistered) return device_memory(size_of(memory));
  must(cu.MemHostRegister(pages, size_of(memory), CU_MEMHOSTREGISTER_PORTABLE), "cuMemHostRegister");
  return as_device(pages);
}

void give_back(Memory memory, CUdeviceptr address) {
  if (memory == kPinned) {
    must(cu.MemFreeHost(as_host(address)), "cuMemFreeHost");
  } else if (memory == kRegistered) {
    must(cu.MemHostUnregister(as_host(address)), "cuMemHostUnregister");
  } else {
    must(cu.MemFree(address), "cuMemFree");
  }
}

void ask(CUdeviceptr address) {
  CUmemorytype type{};
  unsigned long long id = 0;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_BUFFER_ID};
  void* values[] = {&type, &id};
  (void)cu.PointerGetAttributes(2, attributes, values, address);
}

void ask_while_freed(int which) {
  const auto memory = static_cast<Memory>(which & 15);
  const auto asked = static_cast<Asked>(which >> 4 & 15);
  const bool apart = which >> 8 == kApart;
  std::uint8_t* const pages = cpu_memory(kMiB);
  const CUdeviceptr other = device_memory(4 * kKiB);
  std::atomic<CUdeviceptr> latest{0};
  std::atomic<bool> done{false};
  std::mutex gate;
  long long made = 0;
  long long asked_times = 0;
  std::thread maker([&] {
    must(cu.CtxSetCurrent(context()), "cuCtxSetCurrent");
    for (const auto end = Clock::now() + kTime; Clock::now() < end; ++made) {
      const CUdeviceptr address = make(memory, pages);
      latest = address;
      std::unique_lock lock(gate, std::defer_lock);
      if (apart) lock.lock();
      give_back(memory, address);
    }
    done = true;
  });
  for (; !done; ++asked_times) {
    const CUdeviceptr address = latest;
    if (address == 0) continue;
    std::unique_lock lock(gate, std::defer_lock);
    if (apart) lock.lock();
    const CUdeviceptr at = asked == kInside ? address + size_of(memory) / 2 : address + size_of(memory);
    ask(asked == kBase ? address : asked == kOther ? other : at);
  }
  maker.join();
  say_machine("survived", std::to_string(made) + " frees and " + std::to_string(asked_times) + " questions");
}

constexpr Fact fact(const char* name, int which) {
  return {.name = name, .run = ask_while_freed, .arg = which, .timeout_s = kTimeout};
}

// ---- whether memory shows what was there before ----

constexpr std::size_t kPiece = 512 * kMiB;
constexpr std::size_t kLeft = 4096 * kMiB;  // of the device, for others
constexpr std::uint8_t kOld = 0xA5;

CUdeviceptr physical_memory() {
  CUmemAllocationProp what{};
  what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  what.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle handle = 0;
  if (cu.MemCreate(&handle, kPiece, &what, 0) != CUDA_SUCCESS) return 0;
  CUdeviceptr p = 0;
  must(cu.MemAddressReserve(&p, kPiece, 0, 0, 0), "cuMemAddressReserve");
  must(cu.MemMap(p, kPiece, 0, handle, 0), "cuMemMap");
  const CUmemAccessDesc access{what.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  must(cu.MemSetAccess(p, kPiece, &access, 1), "cuMemSetAccess");
  return p;
}

CUdeviceptr allocated_memory() {
  CUdeviceptr p = 0;
  return cu.MemAlloc(&p, kPiece) == CUDA_SUCCESS ? p : 0;
}

std::vector<CUdeviceptr> all_memory(CUdeviceptr (*get)()) {
  std::vector<CUdeviceptr> all;
  std::size_t free = 0;
  std::size_t total = 0;
  while (cu.MemGetInfo(&free, &total) == CUDA_SUCCESS && free >= kLeft) {
    const CUdeviceptr p = get();
    if (p == 0) break;
    all.push_back(p);
  }
  return all;
}

// The percentage of pages of 4 KiB that begin with an old byte; 1 if there is any.
int old_pages(const std::vector<CUdeviceptr>& pieces) {
  if (pieces.empty()) give_up("the device has too little free memory");
  std::vector<std::uint8_t> copy(kPiece);
  std::uint64_t old = 0;
  for (const CUdeviceptr p : pieces) {
    must(cu.MemcpyDtoH(copy.data(), p, kPiece), "cuMemcpyDtoH");
    for (std::size_t at = 0; at < kPiece; at += 4 * kKiB)
      if (copy[at] == kOld) ++old;
  }
  const std::uint64_t percent = old * 100 / (pieces.size() * (kPiece / (4 * kKiB)));
  return static_cast<int>(old != 0 && percent == 0 ? 1 : percent);
}

int in_context(const std::function<int()>& action) {
  CUdevice device = 0;
  CUcontext made = nullptr;
  must(cu.Init(0), "cuInit");
  must(cu.DeviceGet(&device, 0), "cuDeviceGet");
  must(cu.DevicePrimaryCtxRetain(&made, device), "cuDevicePrimaryCtxRetain");
  must(cu.CtxSetCurrent(made), "cuCtxSetCurrent");
  return action();
}

// One process fills nearly all memory of the device and ends. What does the next one find? "exit N": N
// percent of the pages are as they were.
void memory_of_an_ended_process(int) {
  for (const auto& [name, get] :
       {std::pair("cuMemAlloc", &allocated_memory), std::pair("cuMemCreate", &physical_memory)}) {
    say(std::string(name) + "_fill", in_fork([get = get] {
          return in_context([&] {
            for (const CUdeviceptr p : all_memory(get))
              must(cu.MemsetD8(p, kOld, kPiece), "cuMemsetD8");
            return cu.CtxSynchronize() == CUDA_SUCCESS ? 0 : 101;
          });
        }));
    say(std::string(name) + "_then",
        in_fork([get = get] { return in_context([&] { return old_pages(all_memory(get)); }); }));
  }
}

// The same within a process.
void memory_freed_before(int) {
  const std::vector<CUdeviceptr> first = all_memory(allocated_memory);
  for (const CUdeviceptr p : first)
    must(cu.MemsetD8(p, kOld, kPiece), "cuMemsetD8");
  must(cu.CtxSynchronize(), "cuCtxSynchronize");
  for (const CUdeviceptr p : first)
    must(cu.MemFree(p), "cuMemFree");
  say("percent_of_pages", std::to_string(old_pages(all_memory(allocated_memory))));
}

constexpr Fact kFacts[] = {
    fact("race.small_device_memory", race(kSmall, kBase, kFree)),
    fact("race.small_device_memory_apart", race(kSmall, kBase, kApart)),
    fact("race.small_device_memory_inside", race(kSmall, kInside, kFree)),
    fact("race.small_device_memory_behind", race(kSmall, kBehind, kFree)),
    fact("race.small_device_memory_other", race(kSmall, kOther, kFree)),
    fact("race.large_device_memory", race(kLarge, kBase, kFree)),
    fact("race.large_device_memory_apart", race(kLarge, kBase, kApart)),
    fact("race.large_device_memory_inside", race(kLarge, kInside, kFree)),
    fact("race.large_device_memory_behind", race(kLarge, kBehind, kFree)),
    fact("race.large_device_memory_other", race(kLarge, kOther, kFree)),
    fact("race.pinned_memory", race(kPinned, kBase, kFree)),
    fact("race.pinned_memory_apart", race(kPinned, kBase, kApart)),
    fact("race.pinned_memory_behind", race(kPinned, kBehind, kFree)),
    fact("race.registered_memory", race(kRegistered, kBase, kFree)),
    fact("race.registered_memory_apart", race(kRegistered, kBase, kApart)),
    fact("race.registered_memory_behind", race(kRegistered, kBehind, kFree)),
    {.name = "race.memory_of_an_ended_process",
     .run = memory_of_an_ended_process,
     .needs = Needs::kSymbols,
     .timeout_s = 400},
    {.name = "race.memory_freed_before", .run = memory_freed_before, .timeout_s = 200},
};

}  // namespace

std::span<const Fact> race_facts() { return kFacts; }

}  // namespace facts
