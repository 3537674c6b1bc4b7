// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/memory/pool_blocks.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/cleanup.h"
#include "platform/pages.h"

namespace gpumem::core {
namespace {

// Zero pages, which take memory only where written. Null on failure.
void* zero_pages(uint64_t bytes) {
  void* const pages =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return pages == MAP_FAILED ? nullptr : pages;
}

Error no_memory() {
  return platform::system_error(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, errno, "mmap",
                                "no memory for the records of a pool");
}

}  // namespace

PoolRun::PoolRun(uint32_t index, uint64_t block_size, uint32_t blocks)
    : block_size_(block_size),
      reciprocal_(index == kLarge ? 0 : UINT64_MAX / block_size + 1),
      class_index(index),
      count(blocks) {
  for (uint32_t i = 0; i < blocks; ++i)
    new (&state(i)) std::atomic<uint8_t>(kFree);
  if (index != kLarge) free.reserve(blocks);
}

std::unique_ptr<PoolRun> PoolRun::make(uint32_t index, uint64_t block_size, uint32_t blocks) {
  void* const room = ::operator new(sizeof(PoolRun) + blocks, std::align_val_t(alignof(PoolRun)));
  Cleanup undo([&] { operator delete(room); });
  std::unique_ptr<PoolRun> run(::new (room) PoolRun(index, block_size, blocks));
  undo.dismiss();
  return run;
}

PoolBlocks::~PoolBlocks() {
  if (root_ == nullptr) return;
  for (uint64_t i = first_leaf_; i < end_of_leaves_; ++i) {
    if (Leaf* const leaf = root_[i].load(std::memory_order_relaxed))
      munmap(leaf, kLeafEntries * sizeof(Leaf));
  }
  munmap(root_, kRootEntries * sizeof *root_);
}

Result<void> PoolBlocks::open() {
  root_ = static_cast<std::atomic<Leaf*>*>(zero_pages(kRootEntries * sizeof *root_));
  if (root_ == nullptr) return no_memory();
  return {};
}

Result<void> PoolBlocks::reserve(uint64_t base, uint64_t size) {
  if (base >= kEnd || size > kEnd - base)
    return make_error(GPUMEM_ERROR_UNSUPPORTED, "a pool cannot use memory at such high addresses");
  for (uint64_t i = base >> kRootShift; i <= (base + size - 1) >> kRootShift; ++i) {
    if (root_[i].load(std::memory_order_relaxed) != nullptr) continue;
    auto* const leaf = static_cast<Leaf*>(zero_pages(kLeafEntries * sizeof(Leaf)));
    if (leaf == nullptr) return no_memory();
    root_[i].store(leaf, std::memory_order_release);
    first_leaf_ = std::min(first_leaf_, i);
    end_of_leaves_ = std::max(end_of_leaves_, i + 1);
  }
  return {};
}

void PoolBlocks::set(uint64_t base, uint64_t size, PoolRun* run) noexcept {
  for (uint64_t address = base; address < base + size; address += PoolClasses::kPage) {
    Leaf* const leaf = root_[address >> kRootShift].load(std::memory_order_relaxed);
    leaf[address >> kPageShift & (kLeafEntries - 1)].store(run, std::memory_order_release);
  }
}

PoolRun* PoolBlocks::make_run(uint32_t class_index, uint64_t block_size, uint32_t count) {
  auto& unused = class_index == PoolRun::kLarge ? unused_large_ : unused_[class_index];
  const auto fits = std::find_if(unused.rbegin(), unused.rend(),
                                 [count](const PoolRun* run) { return run->count == count; });
  if (fits != unused.rend()) {
    PoolRun* const run = std::exchange(*fits, unused.back());
    unused.pop_back();
    return run;
  }
  // So that recycling needs no memory.
  unused.reserve(runs_.size() + 1);
  runs_.push_back(PoolRun::make(class_index, block_size, count));
  return runs_.back().get();
}

void PoolBlocks::recycle(PoolRun* run) noexcept {
  for (uint32_t i = 0; i < run->count; ++i)
    run->state(i).store(PoolRun::kFree, std::memory_order_relaxed);
  (run->class_index == PoolRun::kLarge ? unused_large_ : unused_[run->class_index]).push_back(run);
}

}  // namespace gpumem::core
