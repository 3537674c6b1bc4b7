// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What rooms below share/ know of sharing, which share/ does.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace gpumem::core {

class Object;

// What becomes of the exports of an object that ends.
class Sharing {
 public:
  virtual ~Sharing() = default;

  // Refuses new importers until end() or cancel_end(). BUSY while one holds the object by LEGACY.
  virtual Result<void> begin_end(const Object& object) = 0;
  virtual void cancel_end(const Object& object) noexcept = 0;
  virtual void end(const Object& object) noexcept = 0;
  // The blocks that were mapped there in the range are unmapped.
  virtual void end_blocks(const Object& range, uint64_t offset, uint64_t size) noexcept = 0;
};

// A process that something of this one depends on.
class OtherProcess {
 public:
  virtual ~OtherProcess() = default;
  // Whether it has ended, as far as is known without asking.
  virtual bool gone() const noexcept = 0;
};

}  // namespace gpumem::core
