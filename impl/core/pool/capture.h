// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The parts of a pool that belong to captures of streams into graphs. The functions are PoolCore's, in
// core_capture.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "contract/stream.h"
#include "core/memory/pool_blocks.h"
#include "core/pool/order.h"

namespace gpumem::core {

// One capture's part of a pool: blocks freed in its streams and blocks that wait for the part's release. Each
// stream has its own order, in which no free completes before that release.
struct PoolPart {
  struct Held {
    uint64_t address = 0;
    PoolRun* run = nullptr;
    std::shared_ptr<PoolOrder> order;                                    // of the free, outside of captures
    std::vector<uint64_t> captures;                                      // all that it waits for
    std::vector<std::pair<std::shared_ptr<PoolOrder>, uint64_t>> needs;  // then: order and epoch
  };
  uint64_t id = 0;
  std::map<uint64_t, std::shared_ptr<PoolOrder>> lines;  // by Capture::line
  std::vector<Held> held;
  // Once the part is released: the work that it waits for.
  std::shared_ptr<PoolOrder> after;
  uint64_t epoch = 0;
};

// A live block that captures use: its state is PoolRun::kCaptured.
struct PoolCaptured {
  uint64_t part = 0;  // 0: an ordinary block
  std::vector<backend::Capture> uses;
};

// Guarded by the pool's lock.
struct PoolCaptures {
  std::map<uint64_t, std::shared_ptr<PoolPart>> parts;  // by capture
  std::vector<std::shared_ptr<PoolPart>> ending;        // released, but their work may run
  std::map<uint64_t, PoolCaptured> blocks;              // by address

  PoolPart* find(uint64_t id) const {
    const auto found = parts.find(id);
    if (found != parts.end()) return found->second.get();
    for (const auto& part : ending) {
      if (part->id == id) return part.get();
    }
    return nullptr;
  }
};

}  // namespace gpumem::core
