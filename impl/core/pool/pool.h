// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Pools: what their handles point to.
#pragma once

#include <memory>

#include "core/object/handles.h"
#include "core/object/object.h"
#include "core/pool/core.h"

namespace gpumem::core {

class Pool final : public Object {
 public:
  static constexpr Type kType = Type::kPool;
  Pool(std::shared_ptr<Context> context, std::shared_ptr<PoolCore> core)
      : Object(kType, std::move(context)), core_(std::move(core)) {}
  Line describe() const override;
  void list(Fields& fields) const noexcept override;
  Result<void> release() override;

  PoolCore& core() const { return *core_; }
  const std::shared_ptr<PoolCore>& shared_core() const { return core_; }

 private:
  const std::shared_ptr<PoolCore> core_;
};

Result<uint64_t> create_pool(DeviceObject& device, PoolRequest request);
Result<void> destroy_pool(Ref<Pool> pool);
// By pointer alone.
Result<void> free_pool_block(Context& context, const PoolStream& stream, const void* pointer);
// Tries again to release the memory of destroyed pools without blocks. `wait`: for the work before the frees.
void end_left_pools(Context& context, bool wait) noexcept;
// False if no pool has a live block there.
bool find_pool_block(Context& context, const void* pointer, gpumem_pool_block_info* out);

PoolStream pool_stream(const Stream& stream);
// The same with the capture that it may be part of, for a free.
PoolStream captured_pool_stream(const Stream& stream);
// INVALID_STATE if a capture of the stream has failed. A stream that the driver cannot tell from others
// (COM-29) is not recorded: returns none, and a free first waits for its work.
Result<PoolStream> native_pool_stream(const PoolCore& core, void* native, bool frees);

}  // namespace gpumem::core
