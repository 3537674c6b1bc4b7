// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Buffers: a range that memory is mapped into block by block, and taken out of to sleep. Or, where a device
// has no virtual memory management, one ordinary allocation that is replaced.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/buffer/store.h"
#include "core/device/device.h"
#include "core/memory/range.h"
#include "core/object/exclusive.h"
#include "core/object/handles.h"
#include "core/object/object.h"
#include "gpumem/buffer.h"

namespace gpumem::core {

class Buffer;

// The members of a group, which lives as long as it has any. They enter when they are created and leave when
// they are destroyed.
class GroupMembers {
 public:
  virtual uint64_t group() const = 0;  // its handle
  virtual void reserve_place() = 0;
  virtual void cancel_place() noexcept = 0;
  virtual void enter(Buffer& buffer) noexcept = 0;
  virtual void leave(const Buffer& buffer) noexcept = 0;

 protected:
  ~GroupMembers() = default;
};

struct BufferRequest {
  uint64_t size = 0;
  uint64_t reserve = 0;               // 0: as much as there is memory
  backend::PhysicalRequest physical;  // of each block; the size is the block's
  gpumem_buffer_flags flags = 0;
  std::vector<AccessRequest> accesses;
  std::string name;
  std::string tag;
};

// What is called when a buffer sleeps and wakes.
struct BufferCallbacks {
  gpumem_before_sleep_function before_sleep = nullptr;
  gpumem_after_wake_function after_wake = nullptr;
  void* user_data = nullptr;
};

class Buffer final : public Object {
 public:
  static constexpr Type kType = Type::kBuffer;
  Buffer(std::shared_ptr<Context> context, Device& device, BufferRequest request);
  Line describe() const override;
  void list(Fields& fields) const noexcept override;
  Result<void> release() override;
  Discard discard() const noexcept override;

  const std::string& name() const { return request_.name; }
  const std::string& tag() const { return request_.tag; }
  Device& device() const { return device_; }

  // Waits for no call that changes the buffer.
  gpumem_buffer_info info() const;
  Result<void> resize(uint64_t size);
  Result<void> set_capacity(uint64_t capacity);
  Result<void> set_access(const std::vector<AccessRequest>& changes);
  Result<void> set_ahead(uint64_t bytes);
  Result<void> set_callbacks(const BufferCallbacks& callbacks);
  Result<uint64_t> note_registration(std::string holder);
  Result<void> forget_registration(uint64_t number);
  // Releases everything. After a failure, the next call continues.
  Result<void> clear();
  // Provides what set_ahead() requests, on a thread of the library.
  void grow_ahead();
  // Has that thread look whether there is enough.
  void look_ahead() noexcept;

  // The steps of sleeping, waking and preparing, in the order in which sleep.cpp takes them. All but the
  // first need what that answers. While it is held, no other thread changes the buffer.
  class Change {
   public:
    Change(Buffer& buffer, Exclusive::Held held);
    Change(Change&& other) noexcept
        : held_(std::move(other.held_)), buffer_(std::exchange(other.buffer_, nullptr)) {}
    ~Change();

   private:
    Exclusive::Held held_;
    Buffer* buffer_;
  };
  // STALE_HANDLE for a buffer that another thread has destroyed meanwhile; INVALID_STATE in its callbacks.
  Result<Change> begin_change();
  bool asleep() const { return state_ != GPUMEM_BUFFER_STATE_AWAKE; }
  uint64_t size() const { return size_; }
  void* base() const { return place_.base; }
  Store& store() { return store_; }
  // Ends earlier background preparation. The returned number identifies the new one.
  uint64_t begin_preparing() { return ++preparing_; }
  uint64_t preparing() const { return preparing_; }
  // The devices that may use it, its own among them.
  std::vector<Device*> users() const;
  Result<void> before_sleep();
  void after_wake() const;
  // Refuses other calls' copies, fills and value operations on the buffers until reopen(), and waits for
  // running ones or fails: see wait_for_uses().
  static Result<void> close(const std::vector<Buffer*>& buffers);
  // Waits for all work of the devices that may use them.
  static Result<void> finish_work(const std::vector<Buffer*>& buffers);
  void reopen() noexcept { set_closed(place_, false); }
  // Refuses new registrations. BUSY if there are any, naming them.
  Result<void> refuse_registrations();
  void accept_registrations();
  // BUSY if the backend knows of unobserved work. It is closed.
  Result<void> check_unused();
  // Keeps the blocks when drop_memory() unmaps them, so that take_memory() can map the same again, until the
  // buffer is awake or asleep. Has no effect on an ordinary allocation.
  Result<void> hold_memory();
  bool holds_memory() const { return !held_.empty(); }
  void release_held() noexcept { abandon(held_); }
  Result<void> drop_memory();
  // Whether it has all of its memory, also after drop_memory() has failed.
  bool has_memory() const;
  // Blocks of the same sizes again, for the device alone, which restores the content; share_memory() gives
  // access to everyone else. It fails with the buffer as it was.
  Result<void> take_memory();
  Result<void> share_memory();
  void set_awake();   // with new memory
  void set_asleep();  // with what is in the store
  void set_failed();  // with the content in the store or in held memory
  // After the store has changed.
  void show_store();

 private:
  friend Result<uint64_t> create_buffer(DeviceObject& device, BufferRequest request, GroupMembers* members);
  friend Result<void> destroy_buffer(Ref<Buffer> buffer);

  // Where a buffer lies. The handles are the buffer's own: nobody else may change what they are of.
  struct Place {
    uint64_t range = 0;
    uint64_t memory = 0;  // instead of a range, of an ordinary buffer that has any
    void* base = nullptr;
    uint64_t size = 0;  // reserved
    uint64_t buffer_id = 0;
  };

  Result<void> open();
  Result<void> open_ordinary();
  Result<Place> reserve(uint64_t wanted, uint64_t least);
  static void name_at(const Place& place, uint64_t buffer) noexcept;
  void show_place() const noexcept;
  Result<void> release(const Place& place);
  void abandon(const Place& place) noexcept;
  Result<void> check_awake() const;
  Result<void> check_accesses(const std::vector<AccessRequest>& changes) const;
  bool resize_within(uint64_t size);
  Result<void> provide(uint64_t capacity);
  Result<void> grow(uint64_t capacity);
  Result<void> take_back(uint64_t size);
  void set_size(uint64_t size);
  bool begins_to_grow() noexcept;
  void notice_growth() noexcept;

  Result<void> map_block(const Place& place, uint64_t offset, uint64_t size,
                         const std::vector<AccessRequest>& accesses);
  Result<void> unmap(const Place& place, uint64_t offset, uint64_t size);
  Result<void> unmap_rest(const Place& place, uint64_t known);
  Result<void> grant(const Place& place, uint64_t offset, uint64_t size,
                     const std::vector<AccessRequest>& changes);
  Result<void> move(uint64_t capacity);
  Result<void> retain(std::vector<uint64_t>& handles) const;
  void abandon(std::vector<uint64_t>& handles) noexcept;
  Result<void> map_retained(const Place& place, const std::vector<uint64_t>& handles,
                            const std::vector<AccessRequest>& accesses);
  Result<void> alias(const Place& place);
  bool device_shares() const;
  template <class F>
  static void with_region(const Place& place, F use) noexcept;
  static void set_closed(const Place& place, bool closed) noexcept;

  // Its memory is closed.
  Result<Place> allocate(uint64_t capacity);
  Result<void> reallocate(uint64_t capacity);

  Device& device_;
  const BufferRequest request_;
  GroupMembers* members_ = nullptr;  // of its group
  bool ordinary_ = false;            // without a range
  uint64_t unit_ = 0;                // blocks are multiples of this
  uint64_t reserve_unit_ = 0;        // and reservations of this

  Exclusive changes_;  // held by a call that changes the buffer, during its work
  // Guarded by changes_:
  std::vector<AccessRequest> accesses_;
  BufferCallbacks callbacks_;
  Store store_;
  uint64_t preparing_ = 0;
  std::vector<uint64_t> held_;  // handles of its blocks, see hold_memory()

  mutable std::mutex records_;
  // Written with changes_ and records_ held, so that either suffices to read. The size alone may grow with
  // records_ only, up to the capacity, unless `changing_`.
  Place place_;
  uint64_t size_ = 0;
  uint64_t capacity_ = 0;
  std::vector<uint64_t> blocks_;  // their sizes, in order
  uint64_t generation_ = 0;
  gpumem_buffer_state state_ = GPUMEM_BUFFER_STATE_AWAKE;
  uint64_t stored_size_ = 0;
  uint64_t store_capacity_ = 0;
  uint64_t ahead_ = 0;
  bool cleared_ = false;
  // Guarded by records_:
  bool published_ = false;  // before that, pointer queries must not name it
  bool changing_ = false;
  bool growing_ = false;  // ahead, or soon
  bool refuses_registrations_ = false;
  std::vector<std::pair<uint64_t, std::string>> registrations_;
};

// The group of `members` stays alive during the call; null for none.
Result<uint64_t> create_buffer(DeviceObject& device, BufferRequest request, GroupMembers* members);
Result<void> destroy_buffer(Ref<Buffer> buffer);

}  // namespace gpumem::core
