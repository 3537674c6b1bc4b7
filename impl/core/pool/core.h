// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The core of a pool, apart from its handle. It outlives the handle while blocks live.
//
// The lock guards everything but the caches of threads. It is held during the driver calls that take or
// release memory, but never during callbacks or calls into other pools.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/memory/pool_blocks.h"
#include "core/memory/pool_classes.h"
#include "core/pool/cache.h"
#include "core/pool/capture.h"
#include "core/pool/order.h"
#include "core/pool/source.h"
#include "core/pool/space.h"
#include "gpumem/pool.h"

namespace gpumem::core {

class PoolCore;
class Stream;

// The other pools of the instance, as one of them knows these.
class PoolNeighbors {
 public:
  // Bytes that they have released.
  virtual uint64_t trim_others(const PoolCore& core) = 0;

 protected:
  ~PoolNeighbors() = default;
};

struct PoolRequest {
  PoolMemory memory;
  gpumem_pool_flags flags = 0;
  uint64_t limit = 0;
  uint64_t release_threshold = 0;
  uint64_t low_water = 0;  // 0: the threshold
  uint64_t initial_size = 0;
  uint64_t segment_size = 0;
};

class PoolCore final : public PoolCacheOwner {
 public:
  PoolCore(std::shared_ptr<Context> context, Device& device, PoolRequest request, PoolNeighbors& neighbors);
  PoolCore(const PoolCore&) = delete;
  PoolCore& operator=(const PoolCore&) = delete;
  ~PoolCore();
  Result<void> open();

  Device& device() const { return device_; }
  bool lost() const { return backend_.lost(); }
  static constexpr uint64_t kNoKey = UINT64_MAX;
  // The key of a native stream of a pool that trusts handles, else kNoKey. Not of CU_STREAM_PER_THREAD, which
  // is another stream in each thread.
  uint64_t key_of_native(const void* native) const {
    constexpr uint64_t kPerThread = 2;
    const auto handle = reinterpret_cast<uintptr_t>(native);
    if ((request_.flags & GPUMEM_POOL_TRUST_NATIVE_STREAMS) == 0 || handle == kPerThread) return kNoKey;
    return PoolStream::kByHandle | handle;
  }
  const PoolRequest& request() const { return request_; }
  const PoolBlocks& blocks() const { return blocks_; }
  bool on_host() const { return !request_.memory.kind->on_device && !request_.memory.kind->managed; }

  // ---- the warm path, inside a Look: null or false if the pool must see to it ----
  // Only for threads with an attachment.
  [[gnu::always_inline]] void* take_small(const platform::ThreadRecord& record, uint64_t key,
                                          uint64_t size) const noexcept {
    PoolCache* const cache = PoolCache::attached(record, seat_, number_);
    return cache != nullptr ? cache->take(key, classes_.index_of(size)) : nullptr;
  }
  void* take_large(const platform::ThreadRecord& record, uint64_t key, uint64_t size) const noexcept {
    PoolCache* const cache = PoolCache::attached(record, seat_, number_);
    if (cache == nullptr || size - 1 >= PoolShelf::kLargeSize) return nullptr;
    return cache->take_large(key, round_up(size, PoolClasses::kPage));
  }
  // Not in a callback, whose call may use the block.
  [[gnu::always_inline]] bool put_small(const platform::ThreadRecord& record, uint64_t key,
                                        const void* pointer) const noexcept {
    PoolCache* const cache = PoolCache::attached(record, seat_, number_);
    if (cache == nullptr) [[unlikely]]
      return false;
    const PoolRun* const run = blocks_.run_at(address_of(pointer));
    return run != nullptr && cache->put(key, *run, address_of(pointer));
  }
  bool put_large(const platform::ThreadRecord& record, uint64_t key, const void* pointer) const noexcept {
    PoolCache* const cache = PoolCache::attached(record, seat_, number_);
    const PoolRun* const run = blocks_.run_at(address_of(pointer));
    return cache != nullptr && run != nullptr && cache->put_large(key, *run, address_of(pointer));
  }

  // ---- the rest ----
  // With `attempt` it neither waits nor calls the driver, and is NOT_READY if no block is free, or another
  // thread has the pool; `attempt` then says what would help.
  Result<void*> allocate(const PoolStream& stream, uint64_t size, uint64_t alignment,
                         gpumem_pool_attempt* attempt = nullptr);
  // Blocks that are free, but could not be put into their order yet.
  struct GivenBack {
    std::shared_ptr<PoolOrder> order;
    std::vector<void*> blocks;  // NULL counts for nothing
  };
  // Takes back the blocks of the only element, which were allocated for `stream` and which nobody has used.
  // Needs no memory.
  void give_back(const PoolStream& stream, std::list<GivenBack>& blocks) noexcept;
  // `size` is 0 if unknown.
  Result<void> free(const PoolStream& stream, const void* pointer, uint64_t size);
  Result<void> record_use(const PoolStream& stream, const void* pointer);
  Result<uint64_t> trim(uint64_t keep_bytes);
  // Trims for another pool's growth; returns 0 if this pool is busy.
  uint64_t trim_for_other() noexcept;
  void set_limit(uint64_t bytes);
  void set_release_threshold(uint64_t bytes);
  gpumem_pool_info info();
  Result<gpumem_pool_class_info> class_info(uint32_t index);
  // What the pool takes for blocks of these sizes at the same time.
  Result<uint64_t> capacity_for(std::span<const uint64_t> sizes) const;
  void reset_peaks();
  // ---- captures: core_capture.cpp ----
  // NOT_FOUND if the capture has no part.
  Result<void> release_capture(const PoolStream& stream, uint64_t id);

  // False if the pool has no live block there.
  bool block_info(const void* pointer, gpumem_pool_block_info* out);
  Result<void> set_callback(gpumem_pool_callback callback, void* user_data);
  bool in_callback() const;

  // Call when a stream ends, while it can still be marked.
  void end_stream(uint64_t key) noexcept;
  void end_cache(PoolCache* cache) noexcept override;

  // Call when the handle has ended or was restored.
  void set_handle(uint64_t handle) {
    handle_ = handle;
    blocks_.set_listed(handle != 0);
  }
  uint64_t handle() const { return handle_; }
  // Takes all blocks back from the threads, for good.
  void retire() noexcept;
  bool retired() const { return retired_; }
  void revive() noexcept;
  // Releases everything if no block lives; answers whether. Needs retire(). `wait`: for the work before the
  // frees; otherwise it is left while that runs.
  Result<bool> release_if_empty(bool wait);
  // The pool is destroyed and no block lives, but its memory could not be released yet.
  bool left() const { return handle_ == 0 && blocks_.empty(); }
  // Logs the blocks of a debug pool that live.
  void log_blocks() noexcept;
  // Call when the instance closes and releases the memory itself.
  void forget() noexcept;
  // After a release that failed, of a pool that never had a handle.
  void abandon() noexcept { source_.abandon(); }
  // For reports.
  struct Totals {
    uint64_t count = 0;
    uint64_t bytes = 0;
    uint64_t reserved = 0;
  };
  Totals live() noexcept;
  // Like live(), without waiting: zeros while another thread holds the lock.
  Totals try_live() noexcept;
  // Of streams and without; for tests.
  size_t order_count() {
    const Lock lock(mutex_);
    return orders_.size();
  }
  // The report's line of the pool, and its members in a snapshot.
  Line describe() noexcept;
  void list(Fields& fields) noexcept;

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Order = PoolOrder;
  static constexpr uint64_t kGuard = 256;

  // Blocks whose free waits for other streams too.
  struct Waiting {
    PoolFree block;
    PoolRun* run = nullptr;
    std::shared_ptr<Order> order;
    std::vector<std::pair<std::shared_ptr<Order>, uint64_t>> needs;  // order and epoch
  };
  struct DebugBlock {
    uint64_t base = 0;
    uint64_t requested = 0;
    bool guarded = false;
  };
  struct Quarantined {
    uint64_t base = 0;
    std::shared_ptr<Order> order;
  };

  // Unit of what the pool takes.
  uint64_t piece() const { return source_.in_range() ? source_.granularity() : PoolClasses::kPage; }
  bool debug() const { return (request_.flags & GPUMEM_POOL_DEBUG) != 0; }
  bool reached_by_cpu() const;

  // Whether the stream's device may use the memory (STR-18).
  bool lets(const PoolStream& stream) const;
  std::shared_ptr<Order> order_of(const PoolStream& stream);
  Order& no_order() { return *orders_.at(PoolStream::kNone); }
  PoolCache* cache_of_thread();
  // Null if the thread is to keep nothing of it.
  PoolShelf* shelf_of(PoolCache& cache, Order& order);
  // False if out of memory; the shelf is then unchanged.
  bool spill(PoolShelf& shelf, uint32_t index, uint32_t keep) noexcept;
  bool spill_large(PoolCache& cache, PoolShelf& shelf, uint32_t keep) noexcept;
  // Spills the larger blocks that the calling thread keeps, for any stream.
  void spill_large() noexcept;
  // The same for small blocks; whether there were any.
  bool spill_small() noexcept;
  bool empty_shelf(PoolCache& cache, std::unique_ptr<PoolShelf>& shelf) noexcept;
  bool drain(PoolCache& cache) noexcept;
  bool is_kept(const Order& order) const noexcept;
  void count_back(PoolCache& cache) noexcept;
  // False if out of memory; a thread then keeps some still.
  bool drain_all() noexcept;

  // Whether no call may come for an order any more, and nothing is left to be freed in it.
  bool may_end(const std::shared_ptr<Order>& order) const noexcept;
  // Takes notice of marks that have passed, and drops orders that may end.
  void poll_orders();
  // Sees to what waited for them, too.
  void poll();
  void poll(Order& order);
  // Call when the work of an order is complete up to an epoch.
  void pass(PoolSpace::Order number, uint64_t epoch);
  void settle_waiting();
  // Marks an order whose stream no call has named, so that its frees can be seen to pass.
  void mark(Order& order);
  void mark_all();
  // Whether the work before all frees is complete.
  bool settled() const;
  // Whether a freed block will become free without another call.
  bool worth_waiting() const;
  // Marks all orders; with `wait`, waits briefly for work that is almost complete.
  void observe(bool wait = true);
  void put_back(const PoolFree& block);
  void settle_given_back();
  void end_quarantine(size_t keep);
  // Takes notice of work that is complete, or almost unless the pool may grow by `size`, and sweeps.
  void await_free(Order& own, uint64_t size);
  // Returns blocks that no order and no thread needs to their chunks.
  void sweep();

  size_t gather(Order& order, uint32_t index, PoolFree* out, size_t count);
  size_t gather_from_others(Order& order, uint32_t index, PoolFree* out, size_t count);
  size_t gather_from_chunks(uint32_t index, PoolFree* out, size_t count);
  bool wait_for_other(Order& order, uint32_t index);
  void end_chunk(PoolRun& run, PoolPassing passing) noexcept;
  void end_chunks(Order& order);
  // Those that put_back() could not end for a lack of memory.
  void end_free_chunks();
  bool make_chunk(Order& order, uint32_t index, uint64_t size);
  void enlist(PoolRun& run);
  void unlist(PoolRun& run);

  // The class of a block; no value if it is large.
  std::optional<uint32_t> class_of(uint64_t size, uint64_t alignment) const;
  // `least`: small blocks from a chunk as small as can be.
  Result<void*> try_allocate(Order& order, uint64_t size, uint64_t alignment, bool least = false);
  // Another order whose free memory would do if its work were complete, or null.
  Order* order_in_the_way(const Order& order, uint64_t size, uint64_t alignment) const;
  // What keeps the pool from giving a block at once. Marks the stream that has the memory.
  gpumem_pool_attempt obstacle(const Order& order, uint64_t size, uint64_t alignment);
  Result<void*> try_small(Order& order, uint32_t index, bool least_chunk);
  Result<void*> try_large(Order& order, uint64_t size, uint64_t alignment);
  // With memory of the driver's pool it only notes how much, for take_from_driver(), and is NOT_READY.
  Result<void> grow(Order& order, uint64_t size, uint64_t alignment);
  // What grow() has noted. The driver may wait for work that depends on another thread's next call, so the
  // lock is not held meanwhile.
  // False if it has waited for another thread that did so.
  Result<bool> take_from_driver(Lock& lock);
  Result<uint64_t> size_of_piece(uint64_t least);
  Result<PoolSource::Pieces::node_type> make_piece(uint64_t wanted, uint64_t least) const;
  Result<void> enter(PoolSource::Pieces::node_type made);
  // try_allocate() with that.
  Result<void*> try_allocate(Lock& lock, Order& order, uint64_t size, uint64_t alignment);
  bool exceeds_device(uint64_t bytes) const {
    const KindTraits& kind = *request_.memory.kind;
    return kind.on_device && !kind.managed && bytes > device_.facts().total_bytes;
  }
  Result<void> check_room(uint64_t bytes);
  // Bytes that the pool takes before it moves what it has, if this much is needed.
  static uint64_t ample(uint64_t needed);
  // Whether it may grow by as much, counting what it can move, before work is complete that still runs.
  bool may_grow(const Order& order, uint64_t size);
  Result<void> grow_range(Order& order, uint64_t size);
  // Pieces that are taken out of the space, to be mapped elsewhere.
  struct Moving {
    uint64_t base = 0;
    uint64_t size = 0;
    PoolPassing passing;
  };
  // Takes out pieces of at least `wanted` bytes that can move for an order, if there are as many. Returns
  // their bytes.
  uint64_t take_out(const Order& order, uint64_t wanted, std::vector<Moving>& out);
  // Takes back all that is free: what threads keep, what is kept back, and what work has passed.
  void collect();
  uint64_t release_free(uint64_t wanted);
  void settle_orders() noexcept;
  void unmap_old() noexcept;
  template <class F>
  uint64_t take_free(PoolSpace::Order order, uint64_t wanted, F take);
  template <class F>
  uint64_t take_movable(const Order& order, uint64_t wanted, F take);
  // What to wait for if the stream of an order cannot be marked: a stream behind its work, or, if null, the
  // device.
  static Result<std::shared_ptr<backend::Stream>> stream_behind(const Order& order);
  static Result<void> wait_for_work(backend::Device& device, backend::Stream* stream);
  // More than the limit, so that giving back what is free would not help.
  bool never_fits(uint64_t size) const { return limit_ != 0 && size > std::max(limit_, source_.bytes()); }
  Error over_limit(uint64_t piece, uint64_t more) const;
  void keep_threshold();
  void note_peaks();
  // Whether to try again; nothing if it was not asked.
  std::optional<bool> ask_callback(Lock& lock, uint64_t size);
  // `stage`: where the search ended.
  Error lacking(const Error& last, const char* stage, Order& order, uint64_t size);

  Result<void*> allocate_block(Lock& lock, Order& order, uint64_t size, uint64_t alignment);
  Result<void*> allocate_debug(Order& order, uint64_t size, uint64_t alignment,
                               const std::function<Result<void*>(uint64_t)>& take);
  static Result<void> check_unused(uint64_t base, uint64_t size);
  Result<void> free_debug(const PoolStream& stream, uint64_t address, uint64_t size);
  // Frees a block whose state is already free.
  void free_block(Order& order, PoolRun& run, uint64_t address);
  Result<void> free_in(const PoolStream& stream, uint64_t address, uint64_t size);
  // The size of the largest block that threads keep.
  uint64_t largest_kept() const { return release_threshold_ == 0 ? PoolShelf::kLargeSize : 0; }
  void mark_if_due(Order& order, const PoolStream& stream, bool large);
  PoolShelf::Bin& bin_of(PoolShelf& shelf, uint32_t index);
  void await_recorded(const std::shared_ptr<Order>& order, PoolRun& run, uint64_t address);
  // Whether the CPU may write to a block that was just allocated: no earlier work of its order still does.
  bool may_guard(Order& order) noexcept;
  void release_debug(const std::shared_ptr<Order>& order, uint64_t base);
  // Counts the free of a block that no thread keeps, once nothing can fail.
  void count_free(PoolRun& run, uint64_t base) noexcept;
  Error not_found(uint64_t address) const;

  // The order of a stream for which blocks were allocated.
  std::shared_ptr<Order> known_order(const PoolStream& stream) noexcept;
  PoolPart& part_of(uint64_t id);
  std::shared_ptr<Order> order_of(const backend::Capture& capture);
  void end_line(Order& line);
  Result<void*> allocate_for(Lock& lock, const PoolStream& stream, const std::shared_ptr<Order>& order,
                             uint64_t size, uint64_t alignment);
  void free_captured(const PoolStream& stream, PoolRun& run, uint64_t address);
  void record_captured_use(const backend::Capture& capture, PoolRun& run, uint64_t address);
  void forget_capture(uint64_t id) noexcept;
  void end_part(PoolPart& part);
  void settle_captures();
  void end_captures();
  uint64_t captured_bytes() const;
  bool empty() const;
  Totals totals() const noexcept;
  // Blocks of a class. Threads may allocate and free meanwhile.
  struct Counts {
    uint64_t allocated = 0;
    uint64_t live = 0;
  };
  Counts counts_of(uint32_t index) const noexcept;

  const std::shared_ptr<Context> context_;
  PoolNeighbors& neighbors_;
  Device& device_;
  const backend::Device& backend_;
  const PoolRequest request_;
  const PoolClasses classes_;
  uint64_t number_;
  uint32_t seat_ = PoolCache::kSeats;
  PoolBlocks blocks_;

  std::mutex mutex_;
  std::condition_variable taken_;  // `taking_` has ended
  std::atomic<uint64_t> handle_{0};
  bool retired_ = false;
  bool at_once_ = false;  // what has the lock neither waits nor calls the driver
  PoolSource source_;
  PoolSpace space_;
  std::map<uint64_t, std::shared_ptr<Order>> orders_;  // by key
  PoolSpace::Order last_order_ = 0;
  uint64_t unheard_ = 0;  // orders whose stream may have ended
  static constexpr uint64_t kUnheardMost = 32;
  uint64_t poll_unheard_at_ = kUnheardMost;  // so many
  PoolCache* caches_ = nullptr;
  std::array<std::vector<PoolRun*>, PoolClasses::kCountMax> chunks_;  // with free blocks
  std::array<uint64_t, PoolClasses::kCountMax> block_counts_{};
  std::array<uint64_t, PoolClasses::kCountMax> cut_counts_{};         // never goes down
  std::map<uint64_t, std::vector<std::shared_ptr<Order>>> recorded_;  // by block
  std::vector<Waiting> waiting_;
  PoolCaptures captures_;
  std::map<uint64_t, DebugBlock> debug_blocks_;  // by the pointer that the caller has
  std::deque<Quarantined> quarantine_;
  std::list<GivenBack> given_back_;

  uint64_t limit_;
  uint64_t release_threshold_;
  uint64_t large_count_ = 0;
  uint64_t large_bytes_ = 0;
  uint64_t large_total_ = 0;
  uint64_t large_total_bytes_ = 0;
  uint64_t large_cut_ = 0;  // without those that a thread took from its shelf
  // Counts of ended caches, and of blocks allocated without a cache.
  std::array<uint64_t, PoolClasses::kCountMax> allocated_{};
  std::array<uint64_t, PoolClasses::kCountMax> freed_{};
  uint64_t lacking_ = 0;      // bytes that the driver's pool is to be asked for
  bool taking_ = false;       // a thread is asking it, without the lock
  uint64_t most_needed_ = 0;  // largest `taken_bytes` of the space
  uint64_t out_count_ = 0;    // small blocks that live, or that a thread keeps
  uint64_t out_bytes_ = 0;
  uint64_t peak_count_ = 0;  // of the two above, with large blocks
  uint64_t peak_bytes_ = 0;
  uint64_t peak_reserved_ = 0;
  uint64_t cross_stream_ = 0;
  uint64_t waits_ = 0;
  uint64_t marks_ = 0;
  uint64_t grows_ = 0;
  uint64_t releases_ = 0;

  std::mutex callback_mutex_;  // held while it runs
  std::atomic<const void*> callback_thread_{nullptr};
  gpumem_pool_callback callback_ = nullptr;
  void* callback_data_ = nullptr;
};

}  // namespace gpumem::core
