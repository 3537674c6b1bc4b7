// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The base of everything that owns addresses.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "contract/memory.h"
#include "core/device/device.h"
#include "core/memory/kind.h"
#include "core/memory/managed_state.h"
#include "core/memory/page_map.h"
#include "core/memory/pool_blocks.h"
#include "core/object/object.h"
#include "core/object/sharing.h"
#include "platform/thread_record.h"

namespace gpumem::core {

// Whether objects of a type are regions.
constexpr bool is_region(Type type) { return type == Type::kMemory || type == Type::kRange; }

class Region : public Object, public RegionState {
 public:
  gpumem_kind kind() const { return traits().kind; }
  Device& device() const { return device_; }
  uint64_t size() const { return size_; }
  // Of the first byte: by the host address if there is one.
  uint64_t address() const { return address_; }
  uint64_t buffer_id() const { return buffer_id_; }
  const std::string& name() const { return name_; }
  // Whether it is a Range. Beside what a pointer query reads.
  bool in_parts() const { return in_parts_; }

  // The blocks of a pool's region, which answer queries; else null. By the addresses that address() begins.
  const PoolBlocks* pool_blocks() const { return pool_blocks_.load(std::memory_order_acquire); }
  void set_pool_blocks(const PoolBlocks* blocks) noexcept {
    pool_blocks_.store(blocks, std::memory_order_release);
  }

  backend::Memory& backend() const { return *backend_; }
  const backend::MemoryFacts& facts() const { return backend_->facts(); }
  bool has(gpumem_memory_flags flag) const { return (facts().granted & flag) != 0; }

  // The buffer that lies here; 0 if none does, or it is still being made (UVA-5, UVA-6).
  uint64_t buffer() const { return buffer_.load(std::memory_order_acquire); }
  void set_buffer(uint64_t handle) noexcept { buffer_.store(handle, std::memory_order_release); }

  // Whether only the owning buffer may use the content: while that sleeps, or is being put to sleep, woken or
  // moved by copying. Closing a region waits for its uses.
  bool closed() const { return closed_.load(std::memory_order_acquire); }
  void set_closed(bool closed) noexcept { closed_.store(closed, std::memory_order_release); }

  // Whether work of a device may read, or write, this region in place, that is by its device pointer.
  Result<void> reachable_by(const Device& device, bool write) const;
  // The same as an answer to questions (UVA-5).
  gpumem_access access_of(const Device& device) const;

  void handle_ended() noexcept override { set_state(State::kLeaving); }
  void handle_revived() noexcept override { set_state(State::kLive); }

  // The answer of gpumem_pointer_get_info() for its first byte.
  const gpumem_pointer_info& info() const { return info_; }
  // The process on which the memory depends; null if there is none.
  void set_peer(std::shared_ptr<const OtherProcess> peer) { peer_ = std::move(peer); }
  // PEER_GONE if that has ended (IPC-17).
  Result<void> check_peer() const {
    if (peer_ == nullptr) [[likely]]
      return {};
    return peer_gone();
  }
  // Null if it is not managed memory.
  ManagedState* managed() const { return managed_.get(); }

  // From a pool of the driver: no other process reaches it.
  bool from_driver() const { return from_driver_; }

 protected:
  Region(Type type, std::shared_ptr<Context> context, Device& device, const KindTraits& traits, uint64_t size,
         std::string name);

  // Enters a range whose address is known before the backend is called. Null if it was free, else the range
  // in the way.
  const RegionRange* reserve_range(PageMap& map, const void* pointer) noexcept;
  void cancel_range(PageMap& map) noexcept;
  // The answer before it is shown to anyone.
  gpumem_pointer_info& unfinished_info() { return info_; }
  // Takes what the backend has made, and enters its ranges into the map, where room is reserved for two.
  void record(PageMap& map, std::unique_ptr<backend::Memory> made) noexcept;
  void erase(PageMap& map) noexcept;
  std::unique_ptr<backend::Memory> take_backend() noexcept { return std::move(backend_); }
  // What a report says of memory of a pool.
  const char* pool_note() const;
  // `users` has the bits of the ordinals of other devices that reach device memory.
  void set_from_driver(uint64_t users) noexcept {
    from_driver_ = true;
    users_ = users;
  }
  void make_managed(bool to_host) { managed_ = std::make_unique<ManagedState>(to_host); }

 private:
  Result<void> peer_gone() const;

  // A pointer query reads these.
  RegionRange host_range_;
  RegionRange device_range_;  // where devices use other addresses
  std::atomic<bool> closed_{false};
  const bool in_parts_;
  std::atomic<uint64_t> buffer_{0};
  std::atomic<const PoolBlocks*> pool_blocks_{nullptr};
  const uint64_t size_;
  uint64_t address_ = 0;
  gpumem_pointer_info info_ = GPUMEM_POINTER_INFO_INIT;

  Device& device_;
  const uint64_t buffer_id_;
  const std::string name_;
  std::unique_ptr<backend::Memory> backend_;
  bool from_driver_ = false;
  uint64_t users_ = 0;
  std::unique_ptr<ManagedState> managed_;
  std::shared_ptr<const OtherProcess> peer_;
};

// The region of a range that the map has found.
inline Region& region_of(const RegionRange& range) { return static_cast<Region&>(*range.owner); }

// BUSY if `ask` says that work which was left to a stream uses the region. Calls that use it only until they
// return are waited for before it is released, and do not count; where one may be the reason, the release
// decides. None uses a closed region.
template <class Ask>
Result<void> check_unused(const Region& region, Ask ask) {
  Result<void> unused = ask();
  if (unused || region.closed()) return unused;
  const platform::PassingUses before = platform::passing_uses(&region);
  unused = ask();
  const platform::PassingUses after = platform::passing_uses(&region);
  if (unused || before.any_of || after.begun != before.begun) return {};
  return unused;
}

}  // namespace gpumem::core
