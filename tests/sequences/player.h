// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Plays a sequence on the library and on the model at once, and stops at the first difference.
#pragma once

#include <atomic>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "coverage.h"
#include "model.h"

namespace sequences {

struct Options {
  bool on_host = true;
  uint32_t threads = 1;
  // The model tells a lie about one status, so that a test sees what becomes of a difference.
  bool planted = false;
};

// The latest step of a sequence: what its call answered, if it made one, and the bytes that chose it.
struct Latest {
  bool called = false;
  gpumem_status status = GPUMEM_SUCCESS;
  size_t bytes = 0;
};

struct Difference {
  size_t step = 0;  // SIZE_MAX: after the last one
  std::string what;
};

// A function of the caller that stands in a stream until the gate opens.
struct Gate {
  std::atomic<bool> open{false};
};

// What a host function or kernel was to do, and what came of it.
struct Job {
  gpumem_device device = nullptr;
  gpumem_stream stream = nullptr;
  uint8_t* address = nullptr;
  uint64_t size = 0;
  gpumem_access access = GPUMEM_ACCESS_NONE;
  uint8_t value = 0;
  gpumem_status expected = GPUMEM_SUCCESS;
  std::atomic<bool> ran{false};
  gpumem_status status = GPUMEM_SUCCESS;
};

class Call;

class Player {
 public:
  Player(const Options& options, Coverage& coverage, bool tracing);
  Player(const Player&) = delete;
  Player& operator=(const Player&) = delete;
  ~Player();

  std::optional<Difference> play(const Sequence& sequence);
  const Latest& latest() const { return latest_; }
  // What was called, a line for each call, if tracing.
  const std::vector<std::string>& trace() const { return trace_; }
  bool on_host() const { return model_.on_host; }

 private:
  struct Failed {
    std::string what;
  };
  friend class Call;
  friend class Crew;

  // A handle argument: the object behind it, or why there is none.
  struct Picked {
    int index = -1;
    uint64_t value = 0;
    Expect wrong;
    std::string text;
  };
  // An address argument.
  struct Address {
    uint8_t* pointer = nullptr;
    uint64_t left = 64;  // bytes up to the end of its object
    std::string text;
  };
  // Where a prefetch goes, or advice points to.
  struct Target {
    gpumem_location location = 0;
    int32_t id = 0;
    bool good = true;
    bool lost = false;  // a device that is
    std::string text;
  };
  // What is to be allocated or registered.
  struct Request {
    gpumem_kind kind = GPUMEM_KIND_UNKNOWN;
    uint64_t size = 0;
    uint64_t alignment = 0;
    gpumem_memory_flags require = 0;
    gpumem_memory_flags prefer = 0;
    int32_t numa_node = 0;
    uint8_t* pointer = nullptr;
  };
  // The box of one side of a copy or fill.
  struct Rows {
    uint64_t pitch = 0;
    uint64_t width = 0;
    uint64_t height = 1;
    uint64_t slice_pitch = 0;
    uint64_t depth = 1;

    bool empty() const { return width == 0 || height == 0; }
    // First bytes of the rows, counted from the first one.
    std::vector<uint64_t> starts() const;
    // False if it is larger than any object can be, or wraps.
    bool extent(const uint8_t* first, uint64_t* out) const;
  };

  // Properties of physical memory.
  struct Properties {
    gpumem_physical_desc desc = GPUMEM_PHYSICAL_DESC_INIT;
    bool good = true;
    bool on_device = true;
  };
  // Who shall have access to what: one entry, or two.
  struct Rights {
    explicit Rights(Choice& choice)
        : first(choice, GPUMEM_ACCESS_DESC_INIT, Sized<gpumem_access_desc>::Null::kBad) {}

    Sized<gpumem_access_desc> first;
    gpumem_access_desc both[2]{};
    uint64_t count = 0;
    bool two = false;
    bool good = true;
    bool avoid = false;
    std::string text;

    const gpumem_access_desc* pointer() { return two ? both : first.pointer(); }
    std::span<const gpumem_access_desc> entries() const { return std::span(both).first(two ? 2 : 1); }
  };
  // How to sleep, wake or prepare, for one buffer or a group.
  template <class Desc>
  struct Wish {
    explicit Wish(Choice& choice, const Desc& initial) : desc(choice, initial, Sized<Desc>::Null::kGood) {}

    Sized<Desc> desc;
    gpumem_content content = GPUMEM_CONTENT_PINNED;
    bool idle = false;
    uint64_t keep = 0;
    std::string tag;
    bool good = true;
    std::string text;
  };
  // An address in a range: what is there, or why there is nothing.
  struct RangePlace {
    uint8_t* pointer = nullptr;
    int range = -1;
    uint64_t begin = 0;  // of the mapping
    const Mapping* mapping = nullptr;
    Expect wrong;
    bool avoid = false;
    std::string text;
  };

#define SEQUENCES_METHOD(name, weight) void step_##name(Choice& choice);
  SEQUENCES_STEPS(SEQUENCES_METHOD)
#undef SEQUENCES_METHOD

  void play_step(const Step& step);
  void make_large();
  void check_all();
  uint64_t physical_bytes(int instance) const;
  void check_stats(int instance);
  void play_together(const Sequence& sequence, size_t first);
  void finish();
  bool empty_default(int index);
  void check_jobs();
  [[noreturn]] void fail(const std::string& what) const { throw Failed{what}; }
  void require(bool holds, const std::string& what) const {
    if (!holds) fail(what);
  }
  [[gnu::format(printf, 2, 3)]] void say(const char* format, ...);

  // ---- choosing ----
  template <class T>
  Picked pick(Choice& choice, const std::vector<T>& objects, const char* noun);
  uint64_t handle_of_another_type(std::string_view noun, size_t number) const;
  Picked pick_instance(Choice& choice) { return pick(choice, model_.instances, "instance"); }
  Picked pick_device(Choice& choice) { return pick(choice, model_.devices, "device"); }
  Picked pick_memory(Choice& choice) { return pick(choice, model_.memories, "memory"); }
  Picked pick_physical(Choice& choice) { return pick(choice, model_.physicals, "physical"); }
  Picked pick_range(Choice& choice) { return pick(choice, model_.ranges, "range"); }
  Picked pick_buffer(Choice& choice) { return pick(choice, model_.buffers, "buffer"); }
  Picked pick_pool(Choice& choice) { return pick(choice, model_.pools, "pool"); }
  Picked pick_group(Choice& choice) { return pick(choice, model_.groups, "group"); }
  Picked pick_stream(Choice& choice) { return pick(choice, model_.streams, "stream"); }
  Picked pick_event(Choice& choice) { return pick(choice, model_.events, "event"); }
  // Two devices, and what is wrong with them as the ends of a peer link.
  struct Pair {
    Picked first;
    Picked second;
    Verdict verdict;
  };
  Pair pick_pair(Choice& choice);
  // Where a copy or fill is done: in a stream, or without one.
  struct Place {
    Picked picked;
    int instance = -1;
    int stream = -1;  // -1: without one
    int line = -1;
    Expect wrong;
  };
  Place pick_place(Choice& choice, bool async);
  // One copy, right by its values.
  struct Copy {
    Rows target;
    Rows origin;
    gpumem_direction direction = GPUMEM_DIRECTION_INFER;
    gpumem_source_order source_order = GPUMEM_SOURCE_ORDER_STREAM;
    uint64_t to_extent = 0;
    uint64_t from_extent = 0;
    Found destination;
    Found source;
  };
  // An entry of a batch as it is passed, and the copy that it is.
  struct Entry {
    gpumem_copy_region region;
    Copy copy;
    Expect wrong;         // by its values
    bool beyond = false;  // an offset past the end
    std::string text;
    bool has_bytes() const { return copy.target.width != 0; }
  };
  Entry pick_entry(Choice& choice, const Place& place, bool first);
  void spoil_entry(Entry& entry, uint8_t way, const Place& place, bool first, Verdict& verdict);
  Expect predict_copy(const Place& place, const Copy& copy);
  static bool share_bytes(const Found& left, const Rows& left_rows, const Found& right,
                          const Rows& right_rows);
  // Whether one of them writes bytes that the other touches.
  static bool depend(const Copy& one, const Copy& other);
  // Makes sure that a copy races with nothing; false if it cannot be made.
  bool order_copy(int line, const Copy& copy);
  void did_copy(int line, const Copy& copy);
  Request pick_registration(Choice& choice, const Address& at);
  gpumem_memory_flags pick_preferred(Choice& choice, const Request& request);
  static std::string text_of(const Request& request, const Name& name);
  std::optional<Expect> expect_create(const Picked& home, const Request& request, bool good);
  template <class Desc>
  void do_create(Call& call, const Picked& home, const Request& request, bool good, Sized<Desc>& desc,
                 Out<gpumem_memory>& out, const Name& name,
                 gpumem_status (*make)(gpumem_device, const Desc*, gpumem_memory*, gpumem_error*));

  // A function that tells what is known about an object: the object's index and the answer, if it succeeded.
  template <class Handle, class Info>
  std::optional<std::pair<int, Info>> ask_info(Choice& choice, const char* name,
                                               Picked (Player::*choose)(Choice&),
                                               gpumem_status (*get_info)(Handle, Info*, gpumem_error*));
  Address pick_address(Choice& choice, int instance);
  Address pick_other_end(Choice& choice, int instance, const Address& end);
  Address pick_base(Choice& choice, int instance);
  uint64_t pick_length(Choice& choice, uint64_t left);
  Address pick_managed(Choice& choice, int owner);
  Target pick_location(Choice& choice, int owner);

  // ---- the model's state, by index ----
  Instance& instance(int index) { return model_.instances[static_cast<size_t>(index)]; }
  Device& device(int index) { return model_.devices[static_cast<size_t>(index)]; }
  Memory& memory(int index) { return model_.memories[static_cast<size_t>(index)]; }
  Block& block(int index) { return model_.blocks[static_cast<size_t>(index)]; }
  Physical& physical(int index) { return model_.physicals[static_cast<size_t>(index)]; }
  Range& range(int index) { return model_.ranges[static_cast<size_t>(index)]; }
  Buffer& buffer(int index) { return model_.buffers[static_cast<size_t>(index)]; }
  Pool& pool(int index) { return model_.pools[static_cast<size_t>(index)]; }
  Group& group(int index) { return model_.groups[static_cast<size_t>(index)]; }
  Stream& stream(int index) { return model_.streams[static_cast<size_t>(index)]; }
  Event& event(int index) { return model_.events[static_cast<size_t>(index)]; }
  Line& line(int index) { return model_.lines[static_cast<size_t>(index)]; }
  Region& region(int index) { return model_.regions[static_cast<size_t>(index)]; }
  Memory& memory_of(const Found& found) {
    return found.kind == GPUMEM_KIND_FOREIGN ? model_.foreigns[static_cast<size_t>(found.memory)]
                                             : memory(found.memory);
  }

  // ---- physical memory and ranges ----
  Properties pick_properties(Choice& choice, uint64_t unit, bool with_size);
  static std::string text_of(const Properties& wanted);
  uint64_t unit_of(int owner) const { return model_.instances[static_cast<size_t>(owner)].vmm_unit; }
  uint64_t pick_offset(Choice& choice, const Picked& chosen);
  uint64_t pick_extent(Choice& choice, const Picked& chosen, uint64_t offset);
  RangePlace pick_range_address(Choice& choice, int owner);
  Expect expect_whole(const Range& of, uint64_t offset, uint64_t size, std::vector<uint64_t>& begins);
  bool any_lost(int owner) const;
  Expect if_lost(Expect expect, int owner) const;
  void adopt_physical(int home, const Properties& wanted, uint64_t handle, int index, bool imported,
                      const std::string& name);
  void drop_reference(int index);
  Rights pick_rights(Choice& choice, const std::vector<int>& devices);
  Expect room_for(int home, uint64_t bytes) const;
  void check_range_address(const Picked& owner, const RangePlace& at);

  // ---- pools ----
  // The stream of a call on a pool: one, none, or what is wrong with it.
  struct PoolOrder {
    Picked picked;
    int stream = -1;
    int line = -1;
    bool is_native = false;
    void* native = nullptr;
    bool avoid = false;  // it is being captured
    Expect wrong;        // of a native stream
    std::string text;
  };
  PoolOrder pick_order(Choice& choice, bool native, const Picked& of);
  // An address to be freed or asked about, and the block that it is of.
  struct PoolPlace {
    uint8_t* pointer = nullptr;
    int pool = -1;
    uint8_t* base = nullptr;  // null: no live block has it
    std::string text;
  };
  PoolPlace pick_block(Choice& choice, int in_pool, int owner);
  PoolPlace place_of(int in_pool, int owner, uint8_t* pointer) const;
  Expect or_fault(Expect expect, int owner) const;
  Expect expect_growth(int home, gpumem_kind kind, gpumem_memory_flags flags, uint64_t limit,
                       uint64_t reserved, uint64_t least, uint64_t most);
  Expect expect_block(const Pool& from, uint64_t size, uint64_t alignment);
  Expect expect_served(const Picked& chosen, const PoolOrder& order, uint64_t size, uint64_t alignment);
  Expect expect_freed(const Picked& chosen, const PoolOrder& order, const PoolPlace& at) const;
  void took_block(int index, const PoolOrder& order, void* pointer, uint64_t size, uint64_t alignment);
  void check_waits(int index, const PoolOrder& order);
  void write_block(int index, uint8_t* base, int in_stream, uint8_t value);
  void check_block(int index, uint8_t* base);
  void check_blocks(int index);
  // Makes sure that a free is no mistake that the library cannot see.
  bool may_free(int index, const PoolBlock& freed, int line);
  void freed_block(int index, uint8_t* base, int line);
  void follow_pools(int owner);
  void follow_pool(int index, bool failed);
  uint64_t memory_of_pools(int owner) const;
  uint64_t destroyed_pools_without_objects(int owner) const;
  // What a function has written of an instance, if it is whole.
  struct Written {
    int index = 0;
    std::string text;
  };
  using TextFunction = decltype(gpumem_stats_report);
  std::optional<Written> write_text(Choice& choice, const char* name, TextFunction* function);
  void end_pool(int index);
  void share_pool(int owner, uint8_t number);
  void adopt_pool(Pool made);
  void note_polls(int owner);
  bool settle_lines(int owner);
  void do_pool_alloc(Choice& choice, const char* name, bool aligned, bool native, bool tries = false);
  void do_pool_free(Choice& choice, const char* name, bool sized, bool native, bool by_pointer);
  void do_pool_number(Choice& choice, const char* name, uint64_t Pool::*field,
                      gpumem_status (*set)(gpumem_pool, uint64_t, gpumem_error*));
  void play_held(int index, int in_stream, uint64_t size, bool records);
  void play_capture(int index, int in_stream);

  // ---- buffers ----
  // What stands against a change of a buffer, whatever the change is.
  Expect refused_change(const Buffer& changed, bool asleep) const;
  Expect expect_capacity(const Buffer& changed, uint64_t capacity);
  bool beyond_addresses(const Buffer& changed, uint64_t capacity) const;
  std::optional<Expect> expect_taken(const Buffer& changed, uint64_t kept);
  bool can_have(int home, bool on_device, std::span<const gpumem_access_desc> entries) const;
  int processor_of(int owner, const gpumem_access_desc& entry) const;
  void do_change_capacity(Choice& choice, bool resizes);
  void took_back(Buffer& changed, uint64_t size);
  void provided(Buffer& changed, uint64_t capacity);
  void take_peaks(int owner);
  void drop_store(Buffer& changed, uint64_t keep);
  void make_store(Buffer& changed, gpumem_content content);
  bool over_budget(const Buffer& changed, gpumem_content content, uint64_t* reserved);
  void forget_store(Buffer& changed);
  template <class Desc>
  void pick_content(Choice& choice, Wish<Desc>& wish, int owner, bool of_group);
  template <class Desc>
  void pick_tag(Choice& choice, Wish<Desc>& wish, bool of_group);
  Wish<gpumem_sleep_desc> pick_sleep(Choice& choice, int owner, bool of_group);
  Wish<gpumem_wake_desc> pick_wake(Choice& choice, bool of_group);
  Wish<gpumem_prepare_desc> pick_prepare(Choice& choice, int owner, bool of_group);
  std::optional<Expect> expect_sleep(const Buffer& changed, const Wish<gpumem_sleep_desc>& wish,
                                     uint64_t* reserved);
  void fell_asleep(Buffer& changed, gpumem_content content);
  void woke_up(Buffer& changed, uint64_t keep);
  std::vector<int> members_of(int group, const std::string& tag);
  bool any_user_lost(const Buffer& used) const;
  void follow_failure(Buffer& changed, gpumem_content content);
  void forget_buffer(Buffer& gone);
  void check_buffer(int index);
  void check_content(int index);
  bool wait_for_work(const Buffer& used, int except);
  bool let_devices_finish(const Buffer& sleeping);

  template <class T>
  void enumerate(Choice& choice, const char* name, gpumem_status (*function)(uint32_t, T*, gpumem_error*));

  // ---- predictions ----
  Expect predict_create(const Device& device, const Request& request);
  Expect reachable(const Memory& memory, int device, bool write) const;
  gpumem_access access_of(const Found& found, int device);
  bool shares_default_stream(int home);
  bool is_default_line(int line) const;
  Expect expect_made(const Picked& home, bool good) const;
  Expect word_refused(const Stream& to, const Found& found, bool write);
  // What a call by this instance may answer besides while steps are made to fail.
  Expect with_faults(Expect expect, int instance) const;
  static bool valid_request(const Request& request);
  bool avoided(const Device& device, const Request& request);

  std::optional<Expect> refused_range(int owner, const void* pointer, uint64_t size, Found* out);
  std::span<ManagedPage> pages_of(const Found& found, uint64_t size);
  // Whether a copy that infers its direction accesses managed bytes on the host (MAN-32).
  bool prefers_host(const Found& found, uint64_t extent);
  gpumem_status status_if_any_lost(int owner) const;

  // ---- calls that follow from others ----
  void open_gates();
  // Waits until the work of a line is over, by a call of the interface; false if there is no way.
  bool wait_for(int line);
  // Makes sure that an access races with nothing; false if it cannot be made.
  bool order(int line, int region, uint64_t begin, uint64_t end, bool write);
  bool settle(const Memory& memory);
  void adopt_memory(int device, const Request& request, uint64_t handle, const std::string& name);
  void created_memory(int device, const Request& request, void* pointer);
  void forget_memory(Memory& memory);
  void keep_freed(uint8_t* address, int owner);
  void disarm(int instance);
  void enqueue_access(int line, const Found& found, uint64_t extent, bool write);
  void adopt_stream(int home, gpumem_stream handle, int line, bool wrapped, const std::string& name);
  void adopt_event(int home, gpumem_event handle, gpumem_event_flags flags, bool wrapped);
  void do_copy(Choice& choice, bool plane, bool async);
  void do_copy_regions(Choice& choice, bool async);
  void do_fill(Choice& choice, bool plane, bool async);
  void do_free(Choice& choice, bool registered);
  void do_managed_batch(Choice& choice, const char* name, bool discards, bool prefetches,
                        gpumem_status (*run)(gpumem_stream, const gpumem_managed_range*, uint64_t,
                                             gpumem_error*));
  void do_host_access(Choice& choice, const char* name,
                      gpumem_status (*run)(gpumem_instance, const void*, gpumem_error*));
  void enqueue_hint(int queue, const Found& found);
  void check_region(int region, uint64_t begin, uint64_t end);
  void read_back(const Memory& memory, std::vector<uint8_t>& bytes);
  int open(Choice& choice, uint8_t setup, bool must);
  void adopt_instance(uint64_t handle, const gpumem_host_options& host, const gpumem_instance_desc& desc,
                      bool is_default);
  bool ready_to_close(int instance, bool force);
  void check_bytes(const Memory& memory);
  Expect complete(const Clock& clock) const;

  const Options options_;
  Coverage& coverage_;
  const bool tracing_;
  Latest latest_;
  Model model_;
  std::vector<std::string> trace_;
  std::deque<Gate> gates_;  // kept until all threads of the library have ended
  std::deque<Job> jobs_;
  std::vector<int> default_lines_;  // by device; -1: not there yet
  int32_t current_device_ = -1;
  uint64_t last_buffer_id_ = 0;
  uint64_t last_registration_ = 0;
  std::atomic<uint64_t> callbacks_{0};  // of pools
  std::deque<uint8_t*> pool_freed_;     // some blocks
  int default_instance_ = -1;
};

// One call: its error argument, its text, and the check of its answer.
class Call {
 public:
  Call(Player& player, Choice& choice, const char* function);

  gpumem_error* error() { return is_null_ ? nullptr : &error_.known; }
  // The error argument is one that the call refuses before everything else.
  bool refused_error() const { return bad_error_; }
  [[gnu::format(printf, 2, 3)]] void text(const char* format, ...);
  // Fails unless the status is expected, the detail agrees with it, and a failure left the outputs alone.
  gpumem_status check(Expect expect, gpumem_status got);
  template <class... Outputs>
  gpumem_status check(const Expect& expect, gpumem_status got, const Outputs&... outputs) {
    check(expect, got);
    if (got != GPUMEM_SUCCESS && !(outputs.untouched() && ...)) player_.fail("an output was written");
    return got;
  }

 private:
  void check_detail(gpumem_status got) const;

  Player& player_;
  Choice& choice_;
  const char* function_;
  std::string text_;
  struct Detail {
    gpumem_error known;
    uint64_t unknown;  // to this version of the library
  };
  Detail error_;
  Detail before_;
  bool is_null_ = false;
  bool bad_error_ = false;
};

template <class T>
Player::Picked Player::pick(Choice& choice, const std::vector<T>& objects, const char* noun) {
  const uint8_t byte = choice.byte();
  std::vector<int> candidates;
  const auto gather = [&](bool live) {
    candidates.clear();
    for (size_t i = 0; i < objects.size(); ++i) {
      if ((objects[i].life == Life::kLive) == live) candidates.push_back(static_cast<int>(i));
    }
    return !candidates.empty();
  };
  const auto chosen = [&](uint8_t number) {
    const int index = candidates[number % candidates.size()];
    const auto& object = objects[static_cast<size_t>(index)];
    Expect wrong = model_.gone(object);
    return Picked{index, object.handle, wrong,
                  noun + std::to_string(index) + (wrong.empty() ? "" : " (gone)")};
  };
  if (byte < kWrong && gather(true)) {
    choice.argument(noun, nullptr);
    return chosen(byte);
  }
  if (byte >= 220 && gather(false)) {
    choice.argument(noun, "gone");
    return chosen(byte);
  }
  const uint64_t forged[] = {0x1234, UINT64_MAX, 0x0000000100000000u, reinterpret_cast<uintptr_t>(this)};
  Picked picked;
  picked.wrong = {GPUMEM_ERROR_INVALID_ARGUMENT};
  const char* fault = "NULL";
  if (byte >= 205 && byte % 3 == 1) {
    fault = "forged";
    picked.value = forged[byte % 4];
  } else if (byte >= 205 && byte % 3 == 2) {
    fault = "of another type";
    picked.value = handle_of_another_type(noun, byte / 3);
  }
  choice.argument(noun, fault);
  picked.text = fault;
  return picked;
}

template <class Handle>
Handle as(uint64_t value) {
  return reinterpret_cast<Handle>(static_cast<uintptr_t>(value));
}
template <class Handle>
uint64_t value_of(Handle handle) {
  return reinterpret_cast<uintptr_t>(handle);
}

template <class Handle, class Info>
std::optional<std::pair<int, Info>> Player::ask_info(Choice& choice, const char* name,
                                                     Picked (Player::*choose)(Choice&),
                                                     gpumem_status (*get_info)(Handle, Info*,
                                                                               gpumem_error*)) {
  Call call(*this, choice, name);
  const Picked chosen = (this->*choose)(choice);
  Answer<Info> info(choice);
  call.text("%s, %s", chosen.text.c_str(), info.text().c_str());
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(info.good());
  Expect expect = verdict.done();
  if (expect.empty()) expect = {GPUMEM_SUCCESS};
  const gpumem_status status =
      call.check(expect, get_info(as<Handle>(chosen.value), info.pointer(), call.error()), info);
  if (status != GPUMEM_SUCCESS) return std::nullopt;
  return std::pair(chosen.index, info.get());
}

}  // namespace sequences
