// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Playing: the loop, the check of each call, the choice of addresses, and the order of work.
#include "player.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <set>

namespace sequences {

// ---- one call ----

Call::Call(Player& player, Choice& choice, const char* function)
    : player_(player), choice_(choice), function_(function) {
  const uint8_t byte = choice.byte();
  const char* fault = nullptr;
  size_t size = sizeof(gpumem_error);
  if (byte >= kWrong) {
    constexpr size_t kSizes[] = {0, 8, sizeof(gpumem_error) - 1, SIZE_MAX, sizeof error_};
    constexpr const char* kFaults[] = {"size 0", "small", "small", "huge", "newer", "NULL"};
    const size_t way = byte % std::size(kFaults);
    fault = kFaults[way];
    is_null_ = way == std::size(kSizes);
    if (!is_null_) size = kSizes[way];
    bad_error_ = way < 4;
  }
  choice.argument(kError, fault);
  std::memset(static_cast<void*>(&error_), kUntouched, sizeof error_);
  error_.known.struct_size = size;
  before_ = error_;
}

void Call::text(const char* format, ...) {
  if (!player_.tracing_) return;
  char buffer[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  text_ = buffer;
}

gpumem_status Call::check(Expect expect, gpumem_status got) {
  // Nothing comes before an error argument that cannot be written to.
  if (bad_error_) expect = {GPUMEM_ERROR_INVALID_ARGUMENT};
  const bool lies = player_.options_.planted && function_ == std::string_view("gpumem_event_record");
  if (lies && expect == Expect{GPUMEM_SUCCESS}) expect = {GPUMEM_ERROR_BUSY};
  player_.coverage_.count(function_, !GPUMEM_FAILED(got));
  player_.coverage_.fault(function_, choice_.only_fault());
  player_.latest_.called = true;
  player_.latest_.status = got;
  const bool expected = std::find(expect.begin(), expect.end(), got) != expect.end();
  const bool has_detail = !is_null_ && !bad_error_;
  player_.say("%s(%s%s%s) = %s", function_, text_.c_str(), text_.empty() ? "" : ", ",
              has_detail ? "&error" : (is_null_ ? "NULL" : "&error {wrong size}"), gpumem_status_name(got));
  if (!expected) {
    player_.fail(std::string(function_) + ": expected " + text_of(expect) + ", got " +
                 gpumem_status_name(got) +
                 (has_detail && GPUMEM_FAILED(got) ? std::string(": ") + error_.known.message : ""));
  }
  if (!is_null_) check_detail(got);
  return got;
}

void Call::check_detail(gpumem_status got) const {
  const gpumem_error& detail = error_.known;
  const auto require = [&](bool holds, const char* what) {
    player_.require(holds, std::string(function_) + ": the error detail " + what);
  };
  if (bad_error_)
    return require(std::memcmp(&error_, &before_, sizeof error_) == 0, "of a wrong size was written");
  require(detail.struct_size == before_.known.struct_size && error_.unknown == before_.unknown,
          "has another size, or bytes behind it were written");
  require(detail.status == got, "has another status");
  const std::string_view message(detail.message);
  require(!message.empty() == GPUMEM_FAILED(got), "has a message exactly if the call failed");
  require(std::all_of(message.begin(), message.end(), [](unsigned char each) { return each >= ' '; }),
          "is not one line of text");
  require(!GPUMEM_FAILED(got) || std::string_view(detail.function) == function_, "names another function");
}

// ---- a sequence ----

Player::Player(const Options& options, Coverage& coverage, bool tracing)
    : options_(options), coverage_(coverage), tracing_(tracing), model_(options.on_host) {}

// After a difference the model knows nothing for certain: everything is forced to its end.
Player::~Player() {
  open_gates();
  for (size_t i = 0; i < model_.instances.size(); ++i) {
    const Instance& opened = model_.instances[i];
    if (opened.life != Life::kLive) continue;
    const auto handle = as<gpumem_instance>(opened.handle);
    if (opened.host) gpumem_host_fail_step(handle, 0, 0, nullptr);
    if (opened.is_default) {
      (void)empty_default(static_cast<int>(i));
    } else {
      gpumem_instance_close(handle, GPUMEM_CLOSE_FORCE, nullptr, nullptr);
    }
  }
  gpumem_log_set_function(nullptr, nullptr, 0, nullptr);
  gpumem_host_set_current_device(-1, nullptr, nullptr);
}

void Player::say(const char* format, ...) {
  if (!tracing_) return;
  char buffer[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  trace_.emplace_back(buffer);
}

std::optional<Difference> Player::play(const Sequence& sequence) {
  size_t at = 0;
  try {
    const Step first{};
    Choice choice(first);
    constexpr uint8_t kOneIn = 17;
    // A planted difference is to be shown with the steps that it needs alone.
    if (sequence.setup % kOneIn == kOneIn / 2 && !options_.planted) model_.enlarge();
    open(choice, sequence.setup, true);
    if (model_.large) make_large();
    // With several threads, the first half makes what they share.
    const size_t alone = options_.threads > 1 ? (sequence.steps.size() + 1) / 2 : sequence.steps.size();
    for (; at < alone; ++at) {
      play_step(sequence.steps[at]);
      check_all();
    }
    at = SIZE_MAX;
    if (options_.threads > 1) play_together(sequence, alone);
    finish();
  } catch (const Failed& failed) {
    return Difference{at, failed.what};
  }
  return std::nullopt;
}

// A memory for each thread that large copies are made with, and a stream.
void Player::make_large() {
  constexpr uint8_t kSizeOfLarge = 9;  // see pick_size()
  Step create{};
  create.kind = Kind::k_memory_create;
  create.values = {0, 0, static_cast<uint8_t>(model_.on_host ? 1 : 0), kSizeOfLarge};
  for (uint32_t i = 0; i < options_.threads; ++i)
    play_step(create);
  create.kind = Kind::k_stream_create;
  create.values = {};
  play_step(create);
}

namespace {

// Calls that a driver answers at once, whatever stands in its streams.
bool never_waits(Kind kind) {
  switch (kind) {
    case Kind::k_stream_query:
    case Kind::k_stream_synchronize:
    case Kind::k_stream_wait_event:
    case Kind::k_stream_launch_host_function:
    case Kind::k_event_query:
    case Kind::k_event_synchronize:
    case Kind::k_event_record:
    case Kind::k_event_get_elapsed_time:
      return true;
    default:
      return false;
  }
}

}  // namespace

void Player::play_step(const Step& step) {
  Choice choice(step);
  latest_ = {};
  if (!model_.on_host && !never_waits(step.kind)) open_gates();
  switch (step.kind) {
#define SEQUENCES_CASE(name, weight) \
  case Kind::k_##name:               \
    step_##name(choice);             \
    break;
    SEQUENCES_STEPS(SEQUENCES_CASE)
#undef SEQUENCES_CASE
  }
  latest_.bytes = choice.used();
}

// What holds after every call: the counts, and the thread's current device.
void Player::check_all() {
  for (size_t i = 0; i < model_.instances.size(); ++i) {
    if (model_.instances[i].life == Life::kLive) check_stats(static_cast<int>(i));
  }
  int32_t previous = 0;
  gpumem_host_set_current_device(current_device_, &previous, nullptr);
  require(previous == current_device_, "the call left another current device");
}

// Physical memory that an instance has.
uint64_t Player::physical_bytes(int index) const {
  const auto of_it = [&](const Object& object) {
    return object.instance == index && object.life == Life::kLive;
  };
  uint64_t bytes = model_.instances[static_cast<size_t>(index)].pool_rest.physical_bytes;
  for (const Block& each : model_.blocks) {
    if (each.references != 0 && model_.devices[static_cast<size_t>(each.device)].instance == index)
      bytes += each.size;
  }
  for (const Buffer& each : model_.buffers)
    if (of_it(each) && !each.asleep) bytes += each.capacity();
  for (const Pool& each : model_.pools)
    if (of_it(each) && each.in_range()) bytes += each.reserved;
  return bytes;
}

void Player::check_stats(int index) {
  Tally now;
  now.physicals = instance(index).stats.physicals;
  now.buffers = instance(index).stats.buffers;
  now.groups = instance(index).stats.groups;
  now.pools = instance(index).stats.pools;
  Tally expected = instance(index).stats;
  expected.physical_bytes = physical_bytes(index);
  require(now.read(as<gpumem_instance>(instance(index).handle)),
          "the counts cannot be read, or the totals are not their sums");
  if (std::memcmp(&now, &expected, sizeof now) == 0) return;
  const auto text = [](const Tally& stats) {
    std::string line;
    for (const gpumem_kind_stats* kind :
         {&stats.device, &stats.pinned, &stats.registered, &stats.managed, &stats.reserved}) {
      for (const uint64_t number : {kind->live_count, kind->live_bytes, kind->peak_count, kind->peak_bytes,
                                    kind->total_count, kind->total_bytes}) {
        line += std::to_string(number) + " ";
      }
      line += "/ ";
    }
    return line + std::to_string(stats.physical_bytes) + " bytes of blocks, " +
           std::to_string(stats.streams) + " streams, " + std::to_string(stats.events) + " events";
  };
  fail("the counts of instance" + std::to_string(index) + " are " + text(now) + "; expected " +
       text(expected));
}

void Player::finish() {
  open_gates();
  for (size_t i = 0; i < model_.memories.size(); ++i) {
    if (model_.memories[i].life == Life::kLive) check_bytes(model_.memories[i]);
  }
  for (size_t i = 0; i < model_.buffers.size(); ++i)
    if (model_.buffers[i].life == Life::kLive) check_content(static_cast<int>(i));
  for (size_t i = 0; i < model_.pools.size(); ++i)
    check_blocks(static_cast<int>(i));
  for (size_t i = 0; i < model_.instances.size(); ++i) {
    Instance& opened = model_.instances[i];
    if (opened.life != Life::kLive) continue;
    const auto handle = as<gpumem_instance>(opened.handle);
    disarm(static_cast<int>(i));
    if (opened.is_default) {
      require(empty_default(static_cast<int>(i)), "an object of the default instance cannot be destroyed");
      check_stats(static_cast<int>(i));
      model_.close(static_cast<int>(i));
      continue;
    }
    uint64_t destroyed = 0;
    const uint64_t expected = opened.stats.live();
    const gpumem_status status = gpumem_instance_close(handle, GPUMEM_CLOSE_FORCE, &destroyed, nullptr);
    require(status == GPUMEM_SUCCESS,
            std::string("the close at the end answers ") + gpumem_status_name(status));
    model_.close(static_cast<int>(i));
    require(destroyed == expected, "the close at the end destroyed " + std::to_string(destroyed) +
                                       " objects; expected " + std::to_string(expected));
  }
  check_region(Model::kArenaRegion, 0, model_.arena.size());
  check_jobs();
}

// The default instance stays for the process: what was made through it goes one by one.
bool Player::empty_default(int index) {
  const auto of_it = [&](const Object& object) {
    return object.instance == index && object.life == Life::kLive;
  };
  bool all = true;
  for (const Stream& made : model_.streams) {
    if (of_it(made)) {
      all &= gpumem_stream_synchronize(as<gpumem_stream>(made.handle), GPUMEM_TIMEOUT_INFINITE, nullptr) == 0;
    }
  }
  for (const Memory& made : model_.foreigns) {
    if (!of_it(made)) continue;
    all &=
        gpumem_host_foreign_free(as<gpumem_device>(device(made.device).handle), made.address, nullptr) == 0;
  }
  for (Memory& made : model_.memories) {
    if (!of_it(made)) continue;
    all &= gpumem_memory_destroy(as<gpumem_memory>(made.handle), nullptr) == GPUMEM_SUCCESS;
    model_.remove_memory(made);
  }
  for (const Event& made : model_.events) {
    if (of_it(made)) all &= gpumem_event_destroy(as<gpumem_event>(made.handle), nullptr) == GPUMEM_SUCCESS;
  }
  for (const Stream& made : model_.streams) {
    if (of_it(made)) all &= gpumem_stream_destroy(as<gpumem_stream>(made.handle), nullptr) == GPUMEM_SUCCESS;
  }
  for (const Line& queue : model_.lines) {
    const Device& home = device(queue.device);
    if (!queue.native || queue.retired || home.instance != index) continue;
    all &= gpumem_host_native_stream_destroy(as<gpumem_device>(home.handle), queue.pointer, nullptr) == 0;
  }
  for (const int each : instance(index).devices) {
    for (const auto& [peer, count] : device(each).peers) {
      for (uint64_t i = 0; i < count; ++i) {
        all &= gpumem_device_disable_peer_access(as<gpumem_device>(device(each).handle),
                                                 as<gpumem_device>(device(peer).handle), nullptr) == 0;
      }
    }
  }
  for (size_t i = 0; i < model_.buffers.size(); ++i) {
    Buffer& made = buffer(static_cast<int>(i));
    if (!of_it(made)) continue;
    all &= gpumem_buffer_destroy(as<gpumem_buffer>(made.handle), nullptr) == GPUMEM_SUCCESS;
    forget_buffer(made);
  }
  for (const Group& made : model_.groups) {
    if (!of_it(made)) continue;
    all &= gpumem_group_destroy(as<gpumem_group>(made.handle), nullptr) == GPUMEM_SUCCESS;
  }
  instance(index).stats.groups = 0;
  for (Range& made : model_.ranges) {
    if (!of_it(made)) continue;
    for (const auto& [begin, mapping] : made.mappings) {
      all &= gpumem_range_unmap(as<gpumem_range>(made.handle), begin, block(mapping.block).size, nullptr) ==
             GPUMEM_SUCCESS;
      drop_reference(mapping.block);
    }
    all &= gpumem_range_release(as<gpumem_range>(made.handle), nullptr) == GPUMEM_SUCCESS;
    Tally::remove(instance(index).stats.reserved, made.size);
  }
  for (const Physical& made : model_.physicals) {
    if (!of_it(made)) continue;
    all &= gpumem_physical_release(as<gpumem_physical>(made.handle), nullptr) == GPUMEM_SUCCESS;
    drop_reference(made.block);
  }
  instance(index).stats.streams = instance(index).stats.events = instance(index).stats.physicals = 0;
  return all;
}

void Player::check_jobs() {
  for (const Job& job : jobs_) {
    // A device that was lost, or an instance that was being closed, comes first.
    const bool ended = job.status == GPUMEM_ERROR_DEVICE_LOST || job.status == GPUMEM_ERROR_CLOSED;
    if (job.ran && job.status != job.expected && !ended) {
      fail(std::string("a function in a stream was answered ") + gpumem_status_name(job.status) +
           "; expected " + gpumem_status_name(job.expected));
    }
  }
}

// ---- choosing ----

uint64_t Player::handle_of_another_type(std::string_view noun, size_t number) const {
  std::vector<uint64_t> others;
  const auto add = [&](const char* what, const auto& objects) {
    if (noun != what && !objects.empty()) others.push_back(objects.back().handle);
  };
  add("instance", model_.instances);
  add("device", model_.devices);
  add("memory", model_.memories);
  add("physical", model_.physicals);
  add("range", model_.ranges);
  add("buffer", model_.buffers);
  add("group", model_.groups);
  add("pool", model_.pools);
  add("stream", model_.streams);
  add("event", model_.events);
  return others.empty() ? 0 : others[number % others.size()];
}

Player::Pair Player::pick_pair(Choice& choice) {
  Pair pair{pick_device(choice), pick_device(choice), {}};
  pair.verdict.handle(pair.first.wrong);
  pair.verdict.handle(pair.second.wrong);
  if (pair.first.wrong.empty() && pair.second.wrong.empty()) {
    pair.verdict.require(pair.first.index != pair.second.index &&
                         device(pair.first.index).instance == device(pair.second.index).instance);
  }
  return pair;
}

Player::Address Player::pick_address(Choice& choice, int instance) {
  const uint8_t byte = choice.byte();
  const uint8_t place = choice.byte();
  const auto within = [&](uint8_t* base, uint64_t size, const std::string& name) {
    // Mostly aligned places; the last bytes and the end are reached by wrong choices.
    if (model_.large && place < kWrong && place % 4 != 0) {
      const uint64_t small = std::min(uint64_t{4} * place, size);  // so that much is left
      return Address{base + small, size - small, name + "+" + std::to_string(small)};
    }
    uint64_t offset =
        place < kWrong ? place * (size / kWrong) / 8 * 8 : size - static_cast<uint64_t>(place - kWrong) % 10;
    if (offset > size) offset = 0;
    return Address{base + offset, size - offset, name + "+" + std::to_string(offset)};
  };
  if (byte < (model_.large ? 90 : 120)) {
    std::vector<size_t> live;
    for (size_t i = 0; i < model_.memories.size(); ++i) {
      const Memory& candidate = model_.memories[i];
      if (candidate.life == Life::kLive && (candidate.instance == instance || byte % 16 == 15))
        live.push_back(i);
    }
    if (!live.empty()) {
      const size_t index = model_.large && byte % 2 == 0 ? live.front() : live[byte % live.size()];
      const Memory& chosen = model_.memories[index];
      const bool by_device = chosen.host == nullptr || (chosen.address != nullptr && place % 2 == 1);
      return within(by_device ? chosen.address : chosen.host, chosen.size,
                    "memory" + std::to_string(index) + (by_device ? ".device" : ".host"));
    }
  }
  if (byte >= 180 && byte < kWrong) {
    std::vector<size_t> live;
    for (size_t i = 0; i < model_.foreigns.size(); ++i) {
      if (model_.foreigns[i].life == Life::kLive) live.push_back(i);
    }
    if (!live.empty()) {
      const size_t index = live[byte % live.size()];
      return within(model_.foreigns[index].address, model_.foreigns[index].size,
                    "foreign" + std::to_string(index));
    }
  }
  if (byte < kWrong) return within(model_.arena.writable(), model_.arena.size(), "heap");
  switch (byte % 6) {
    case 0:
      return {nullptr, 64, "NULL"};
    case 1:
      return {model_.arena.forbidden() + place, 64, "forbidden"};
    case 2:
      return within(model_.arena.read_only(), model_.arena.page(), "read_only");
    case 3:
      return {as<uint8_t*>(UINT64_MAX - 7), 64, "(void*)-8"};
    case 4:
      if (!model_.freed.empty()) {
        const size_t index = place % model_.freed.size();
        return {model_.freed[index].address, 64, "freed" + std::to_string(index)};
      }
      return {as<uint8_t*>(0x10), 64, "(void*)16"};
    default:
      return {as<uint8_t*>(0x10), 64, "(void*)16"};
  }
}

// Where a copy to an address is from. A large one is mostly between ordinary memory and other memory.
Player::Address Player::pick_other_end(Choice& choice, int instance, const Address& end) {
  Address picked = pick_address(choice, instance);
  const Arena& arena = model_.arena;
  const auto in_heap = [&](const Address& each) {
    return reinterpret_cast<uintptr_t>(each.pointer) - reinterpret_cast<uintptr_t>(arena.writable()) <
           arena.size();
  };
  if (!model_.large || in_heap(end) != in_heap(picked)) return picked;
  const uint64_t offset = picked.left % 1024;
  if (!in_heap(end)) {
    if (end.left < Model::kLeastOfThreads) return picked;
    return {arena.writable() + offset, arena.size() - offset, "heap+" + std::to_string(offset)};
  }
  for (size_t i = 0; i < model_.memories.size(); ++i) {
    const Memory& each = model_.memories[i];
    if (each.life != Life::kLive || each.instance != instance || each.size < Model::kLargeBytes) continue;
    return {each.address + offset, each.size - offset,
            "memory" + std::to_string(i) + "+" + std::to_string(offset)};
  }
  return picked;
}

// An address to be freed: mostly the first byte of a memory.
Player::Address Player::pick_base(Choice& choice, int instance) {
  const uint8_t byte = choice.byte();
  std::vector<size_t> live;
  for (size_t i = 0; i < model_.memories.size(); ++i) {
    const Memory& candidate = model_.memories[i];
    if (candidate.life == Life::kLive && candidate.instance == instance) live.push_back(i);
  }
  if (byte >= kWrong || live.empty()) return pick_address(choice, instance);
  const size_t index = live[byte % live.size()];
  const Memory& chosen = model_.memories[index];
  const bool by_device = chosen.host == nullptr || (byte % 8 == 7 && chosen.address != nullptr);
  return {by_device ? chosen.address : chosen.host, chosen.size,
          "memory" + std::to_string(index) + (by_device ? ".device" : ".host")};
}

uint64_t Player::pick_length(Choice& choice, uint64_t left) {
  const uint8_t byte = choice.byte();
  constexpr uint64_t kShort[] = {8, 1, 4, 16, 2, 64, 200, 7, 512, 32};
  if (model_.large && byte < 160 && byte % 3 != 0) return left;
  if (byte < 160) return std::min(kShort[byte % std::size(kShort)], std::max<uint64_t>(left, 1));
  if (byte < 190) return left;
  if (byte < kWrong) return 0;
  const uint64_t wrong[] = {left + 1,   left + 8,        uint64_t{1} << 63,
                            UINT64_MAX, UINT64_MAX - 15, (uint64_t{1} << 63) - 1};
  return wrong[byte % std::size(wrong)];
}

// ---- order ----

void Player::open_gates() {
  for (Gate& gate : gates_) {
    gate.open = true;
    gate.open.notify_all();
  }
  for (Line& queue : model_.lines)
    queue.gates.clear();
}

bool Player::wait_for(int index) {
  open_gates();
  const Line& queue = line(index);
  if (queue.capturing || model_.lost(queue.device)) return false;
  for (size_t i = 0; i < model_.streams.size(); ++i) {
    const Stream& candidate = model_.streams[i];
    if (candidate.line != index || candidate.life != Life::kLive) continue;
    const gpumem_status status =
        gpumem_stream_synchronize(as<gpumem_stream>(candidate.handle), GPUMEM_TIMEOUT_INFINITE, nullptr);
    say("gpumem_stream_synchronize(stream%zu, GPUMEM_TIMEOUT_INFINITE, NULL) = %s  /* to order the next */",
        i, gpumem_status_name(status));
    require(
        status == GPUMEM_SUCCESS,
        std::string("gpumem_stream_synchronize: expected GPUMEM_SUCCESS, got ") + gpumem_status_name(status));
    model_.observe(model_.mark(index));
    return true;
  }
  return false;
}

bool Player::order(int index, int region_index, uint64_t begin, uint64_t end, bool write) {
  if (region(region_index).tainted_by >= 0) return false;
  while (const Access* access = model_.conflict(index, region_index, begin, end, write)) {
    const int other = access->line;
    const uint64_t number = access->number;
    if (!wait_for(other) || !model_.is_observed(other, number)) return false;
  }
  return true;
}

void Player::enqueue_access(int index, const Found& found, uint64_t extent, bool write) {
  const uint64_t number = line(index).enqueued;
  model_.add_access(found.region, {index, number, found.at, found.at + extent, write});
  if (found.memory >= 0) memory_of(found).uses.push_back({index, number, true});
}

Expect Player::complete(const Clock& clock) const {
  const bool marked = std::any_of(clock.begin(), clock.end(), [&](const auto& entry) {
    return model_.lines[static_cast<size_t>(entry.first)].marked;
  });
  if (model_.is_observed(clock) && marked) return {GPUMEM_SUCCESS, GPUMEM_NOT_READY};
  if (model_.is_observed(clock)) return {GPUMEM_SUCCESS};
  if (model_.is_held(clock)) return {GPUMEM_NOT_READY};
  return {GPUMEM_SUCCESS, GPUMEM_NOT_READY};
}

Expect Player::with_faults(Expect expect, int index) const {
  const bool armed = index >= 0 && model_.instances[static_cast<size_t>(index)].armed;
  // A call that ends at an entry point the driver lacks may have taken other steps before.
  const bool asks_backend = std::any_of(expect.begin(), expect.end(), [](gpumem_status status) {
    return status == GPUMEM_SUCCESS || status == GPUMEM_ERROR_SYMBOL_MISSING;
  });
  if (armed && asks_backend) expect.push_back(GPUMEM_ERROR_OUT_OF_HOST_MEMORY);
  return expect;
}

void Player::disarm(int index) {
  if (!instance(index).armed) return;
  require(gpumem_host_fail_step(as<gpumem_instance>(instance(index).handle), 0, 0, nullptr) == GPUMEM_SUCCESS,
          "the failing step cannot be switched off");
  say("gpumem_host_fail_step(instance%d, 0, 0, NULL) = GPUMEM_SUCCESS", index);
  instance(index).armed = instance(index).armed_for_good = false;
}

// ---- bytes ----

namespace {

// The first byte that is known to be another one, or `end`. What is equal is passed in large steps, as there
// are many bytes and hardly ever a difference.
uint64_t first_difference(const uint8_t* found, const Region& expected, uint64_t begin, uint64_t end) {
  constexpr uint64_t kStep = 512;
  for (uint64_t at = begin; at < end; at += kStep) {
    const uint64_t stop = std::min(at + kStep, end);
    if (std::memcmp(found + at, expected.bytes.data() + at, stop - at) == 0) continue;
    for (uint64_t i = at; i < stop; ++i) {
      if (found[i] != expected.bytes[i] && expected.known[i]) return i;
    }
  }
  return end;
}

}  // namespace

void Player::check_region(int index, uint64_t begin, uint64_t end) {
  if (!order(-1, index, begin, end, false)) return;
  const Region& checked = region(index);
  if (const uint64_t i = first_difference(checked.cpu, checked, begin, end); i != end) {
    fail("byte " + std::to_string(i) + " of region " + std::to_string(index) + " is " +
         std::to_string(checked.cpu[i]) + "; expected " + std::to_string(checked.bytes[i]));
  }
}

void Player::read_back(const Memory& memory, std::vector<uint8_t>& bytes) {
  const gpumem_status status = gpumem_copy(as<gpumem_instance>(instance(memory.instance).handle),
                                           bytes.data(), memory.address, bytes.size(), nullptr, nullptr);
  require(status == GPUMEM_SUCCESS,
          std::string("device memory cannot be read back: ") + gpumem_status_name(status));
}

void Player::check_bytes(const Memory& checked) {
  if (checked.kind != GPUMEM_KIND_DEVICE) {
    check_region(checked.region, checked.at, checked.at + checked.size);
    return;
  }
  if (model_.lost(checked.device)) return;
  disarm(checked.instance);
  if (!order(-1, checked.region, 0, checked.size, false)) return;
  std::vector<uint8_t> bytes(checked.size);
  read_back(checked, bytes);
  const Region& expected = region(checked.region);
  const uint64_t size = bytes.size();
  if (const uint64_t i = first_difference(bytes.data(), expected, 0, size); i != size) {
    fail("byte " + std::to_string(i) + " of device memory is " + std::to_string(bytes[i]) + "; expected " +
         std::to_string(expected.bytes[i]));
  }
}

void Player::step_cpu_write(Choice& choice) {
  const uint8_t byte = choice.byte();
  std::vector<const Memory*> pinned;
  for (const Memory& candidate : model_.memories) {
    if (candidate.life == Life::kLive &&
        (candidate.kind == GPUMEM_KIND_PINNED || candidate.kind == GPUMEM_KIND_MANAGED))
      pinned.push_back(&candidate);
  }
  const bool arena = pinned.empty() || byte % 2 == 0;
  const Memory* chosen = arena ? nullptr : pinned[byte / 2 % pinned.size()];
  const int index = arena ? Model::kArenaRegion : chosen->region;
  const uint64_t size = arena ? model_.arena.size() : chosen->size;
  const uint64_t begin = choice.byte() * (size / 256);
  const uint64_t end = std::min(size, begin + 1 + choice.byte() * uint64_t{4});
  const uint8_t value = choice.byte();
  if (!order(-1, index, begin, end, true)) return;
  Region& written = region(index);
  for (uint64_t i = begin; i < end; ++i) {
    written.cpu[i] = written.bytes[i] = static_cast<uint8_t>(value + i * 7);
    written.known[i] = true;
  }
  say("/* the CPU writes bytes %llu to %llu of region %d */", static_cast<unsigned long long>(begin),
      static_cast<unsigned long long>(end), index);
}

void Player::step_cpu_check(Choice& choice) {
  const Picked chosen = pick_memory(choice);
  if (chosen.index < 0 || memory(chosen.index).life != Life::kLive) {
    check_region(Model::kArenaRegion, 0, model_.arena.size());
  } else {
    check_bytes(memory(chosen.index));
  }
}

}  // namespace sequences
