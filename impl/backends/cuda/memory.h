// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Device, pinned and registered memory.
#pragma once

#include "backends/cuda/device.h"

namespace gpumem::cuda {

// Larger requests fail without searching for an address range.
inline constexpr uint64_t kAlignmentMax = uint64_t{1} << 40;

class Memory : public backend::Memory {
 public:
  explicit Memory(Device& device) : device_(device) {}

  Device& device() const { return device_; }

  // Whether a device can use the device pointer.
  virtual bool reachable_from(const Device&) const { return facts_.device_pointer != nullptr; }
  // Address of the allocation of cuMemAlloc; 0 if there is none.
  virtual CUdeviceptr linear_base() const { return 0; }
  // Whether it lies in mapped blocks, as what is in a range does.
  bool in_blocks() const { return in_blocks_; }
  // The context that has the address of memory that lies on another device; else null.
  CUcontext owner() const { return owner_; }

 protected:
  Device& device_;
  bool in_blocks_ = false;
  CUcontext owner_ = nullptr;
};

// The driver gives an allocation of a multiple of it blocks of its own, which begin at a multiple of it.
inline constexpr uint64_t kBlock = uint64_t{2} << 20;

// Registers a range of host memory in pieces, all or nothing. Pieces end at whole pages, so only the first
// and the last page of a range can be shared with a neighbour; the driver accepts that as long as no byte is.
class LockedRange {
 public:
  LockedRange(Device& device, void* base, uint64_t size, unsigned flags, uint64_t piece);

  Result<void> lock();
  Result<void> unlock();
  bool was_locked() const { return was_locked_; }  // at any time, in part or whole
  uint64_t contiguous(uint64_t offset) const { return piece_end(piece_of(offset)) - (base_ + offset); }

 private:
  uint64_t piece_of(uint64_t offset) const { return (base_ + offset - first_page_) / piece_; }
  uint64_t piece_begin(uint64_t index) const;
  uint64_t piece_end(uint64_t index) const;
  Error refusal(Outcome outcome);

  Device& device_;
  const uint64_t base_;
  const uint64_t size_;
  const uint64_t first_page_;
  const unsigned flags_;
  const uint64_t piece_;
  uint64_t locked_ = 0;  // pieces
  bool was_locked_ = false;
};

// Largest range that driver 580 registers in one call (PIN-15).
uint64_t largest_registration(const Driver& cu);
// Maximum number of live registrations in a process (PIN-16).
inline constexpr uint64_t kRegistrationsMax = 65500;

}  // namespace gpumem::cuda
