// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Buffers: a range that memory is mapped into block by block, and taken out of to sleep.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/handles.h"
#include "core/object.h"
#include "core/range.h"
#include "gpumem/buffer.h"

namespace gpumem::core {

struct BufferRequest {
  uint64_t size = 0;
  uint64_t reserve = 0;               // 0: as much as there is memory
  backend::PhysicalRequest physical;  // of each block; the size is the block's
  gpumem_buffer_flags flags = 0;
  std::vector<AccessRequest> accesses;
};

class Buffer final : public Object {
 public:
  static constexpr Type kType = Type::kBuffer;
  Buffer(std::shared_ptr<Instance> instance, Device& device, const BufferRequest& request, std::string name);
  ~Buffer() override;

  const std::string& name() const { return name_; }
  Device& device() const { return device_; }

  // Each takes the lock of the buffer, during the driver's calls too.
  gpumem_buffer_info info() const;
  Result<void> resize(uint64_t size);
  Result<void> set_capacity(uint64_t capacity);
  Result<void> set_access(const std::vector<AccessRequest>& changes);
  Result<void> sleep(gpumem_content content);
  Result<void> wake();
  // Gives everything back. On failure the buffer is as it was.
  Result<void> clear();

 private:
  friend Result<uint64_t> create_buffer(DeviceObject& device, BufferRequest request, std::string name);

  // Where a buffer lies. The handle is the buffer's own: nobody else may change the range.
  struct Place {
    uint64_t range = 0;
    void* base = nullptr;
    uint64_t size = 0;  // reserved
    uint64_t buffer_id = 0;
  };
  // The content of a buffer that sleeps.
  struct Store {
    gpumem_content content = GPUMEM_CONTENT_DROP;
    uint64_t memory = 0;  // handle of pinned memory
    void* bytes = nullptr;
    uint64_t size = 0;  // 0: nothing is kept
  };

  Result<void> open();
  Result<Place> reserve(uint64_t wanted, uint64_t least);
  Result<void> release(const Place& place);
  Result<void> check_awake() const;
  Result<void> check_accesses(const std::vector<AccessRequest>& changes) const;
  Result<void> map_block(const Place& place, uint64_t offset, uint64_t size,
                         const std::vector<AccessRequest>& accesses);
  Result<void> unmap(const Place& place, uint64_t offset, uint64_t size);
  Result<void> grant(const Place& place, uint64_t offset, uint64_t size,
                     const std::vector<AccessRequest>& changes);
  Result<void> provide(uint64_t capacity);
  Result<void> take_back(uint64_t size);
  Result<void> move(uint64_t capacity);
  Result<void> alias(const Place& place);
  Result<void> restore_blocks();
  Result<Store> save(gpumem_content content);
  Result<void> load();
  Result<void> discard(Store& store);
  Result<void> copy(void* destination, void* source, uint64_t bytes);

  Device& device_;
  const BufferRequest request_;
  const std::string name_;
  uint64_t unit_ = 0;          // blocks are multiples of this
  uint64_t reserve_unit_ = 0;  // and reservations of this

  mutable std::mutex mutex_;  // guards everything below
  Place place_;
  uint64_t size_ = 0;
  uint64_t capacity_ = 0;
  std::vector<uint64_t> blocks_;  // their sizes, in order
  std::vector<AccessRequest> accesses_;
  backend::PhysicalFacts facts_;  // of the first block; of a buffer that never had one, as requested
  uint64_t generation_ = 0;
  bool asleep_ = false;
  Store store_;
  bool cleared_ = false;
};

Result<uint64_t> create_buffer(DeviceObject& device, BufferRequest request, std::string name);
Result<void> destroy_buffer(Ref<Buffer> buffer);

}  // namespace gpumem::core
