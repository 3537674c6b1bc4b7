// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Steps that make streams and events, and that enqueue and wait for work.
#include "player.h"

namespace sequences {
namespace {

constexpr uint64_t kTooLarge = uint64_t{1} << 63;
constexpr size_t kGatesAtOnce = 2;
constexpr uint64_t kLongestRow = 1 << 16;

// First byte after the last one of two ranges, or whether it cannot be told.
bool shares_byte(uint64_t to, uint64_t to_pitch, uint64_t from, uint64_t from_pitch, uint64_t width,
                 uint64_t height) {
  for (uint64_t i = 0; i < height; ++i) {
    for (uint64_t j = 0; j < height; ++j) {
      const uint64_t left = to + i * to_pitch;
      const uint64_t right = from + j * from_pitch;
      if (left < right + width && right < left + width) return true;
    }
  }
  return false;
}

// Runs in a stream: everything but information is refused there.
void run_probe(void* user_data) {
  auto* job = static_cast<Job*>(user_data);
  uint64_t free_bytes = 0;
  job->status = gpumem_device_get_memory(job->device, &free_bytes, nullptr, nullptr);
  if (gpumem_status_name(GPUMEM_SUCCESS) == nullptr) job->status = GPUMEM_SUCCESS;
  job->ran = true;
  job->ran.notify_all();
}

void run_gate(void* user_data) { static_cast<Gate*>(user_data)->open.wait(false); }

void run_kernel(gpumem_host_kernel kernel, void* user_data) {
  auto* job = static_cast<Job*>(user_data);
  void* view = nullptr;
  job->status = gpumem_host_kernel_view(kernel, job->address, job->size, job->access, &view, nullptr);
  if (job->status == GPUMEM_SUCCESS && job->access == GPUMEM_ACCESS_READWRITE) {
    std::memset(view, job->value, job->size);
  }
  job->ran = true;
  job->ran.notify_all();
}

}  // namespace

// ---- streams ----

void Player::step_stream_create(Choice& choice) {
  Call call(*this, choice, "gpumem_stream_create");
  const Picked home = pick_device(choice);
  Sized<gpumem_stream_desc> desc(choice, GPUMEM_STREAM_DESC_INIT, Sized<gpumem_stream_desc>::Null::kGood);
  Out<gpumem_stream> out(choice);
  const uint8_t extra = choice.byte();
  desc->priority = extra % 8 - 4;
  desc->reserved = extra >= 240 ? 1 : 0;
  desc->name = extra % 2 == 1 ? "work" : nullptr;
  call.text("%s, &%s{priority %d, reserved %u}, %s", home.text.c_str(), desc.text().c_str(), desc->priority,
            desc->reserved, out.text());
  Verdict verdict;
  verdict.handle(home.wrong);
  verdict.require(desc.good() && out.good() && (desc.is_null() || desc->reserved == 0));
  Expect expect = verdict.done();
  if (expect.empty()) {
    expect = {model_.lost(home.index) ? GPUMEM_ERROR_DEVICE_LOST : GPUMEM_SUCCESS};
    expect = with_faults(expect, device(home.index).instance);
  }
  const gpumem_status status = call.check(
      expect,
      gpumem_stream_create(as<gpumem_device>(home.value), desc.pointer(), out.pointer(), call.error()), out);
  if (status != GPUMEM_SUCCESS) return;
  gpumem_stream_info info = GPUMEM_STREAM_INFO_INIT;
  require(gpumem_stream_get_info(out.get(), &info, nullptr) == GPUMEM_SUCCESS, "a new stream tells nothing");
  Line queue;
  queue.device = home.index;
  queue.handles = 1;
  queue.pointer = info.native_stream;
  model_.lines.push_back(queue);
  Stream made;
  made.handle = value_of(out.get());
  made.device = home.index;
  made.instance = device(home.index).instance;
  made.line = static_cast<int>(model_.lines.size()) - 1;
  made.name = !desc.is_null() && desc->name != nullptr ? desc->name : "";
  model_.streams.push_back(made);
  ++model_.objects_made;
  ++instance(made.instance).stats.streams;
}

// Whether another instance has wrapped the driver's default stream of the same device: two lines of the model
// would be one there.
bool Player::shares_default_stream(int home) {
  if (model_.on_host) return false;
  for (size_t i = 0; i < default_lines_.size(); ++i) {
    const int other = static_cast<int>(i);
    if (other != home && default_lines_[i] >= 0 && device(other).ordinal == device(home).ordinal) return true;
  }
  return false;
}

void Player::step_stream_wrap(Choice& choice) {
  Call call(*this, choice, "gpumem_stream_wrap");
  const Picked home = pick_device(choice);
  Out<gpumem_stream> out(choice);
  const uint8_t byte = choice.byte();
  std::vector<int> lines;
  for (size_t i = 0; i < model_.lines.size(); ++i) {
    const Line& candidate = model_.lines[i];
    const bool same_instance =
        home.index >= 0 && device(candidate.device).instance == device(home.index).instance;
    const bool own = home.index >= 0 && candidate.device == home.index;
    if (!candidate.retired && candidate.pointer != nullptr && (own || (byte >= 190 && same_instance))) {
      lines.push_back(static_cast<int>(i));
    }
  }
  int index = -1;
  void* native = nullptr;
  if (byte >= kWrong && model_.on_host && byte % 2 == 0) {
    native = as<void*>(0x1230);
  } else if (byte >= 60 && !lines.empty()) {
    index = lines[byte % lines.size()];
    native = line(index).pointer;
  }
  call.text(
      "%s, %s, %s", home.text.c_str(),
      native == nullptr ? "NULL" : (index < 0 ? "(void*)0x1230" : ("line" + std::to_string(index)).c_str()),
      out.text());
  Verdict verdict;
  verdict.handle(home.wrong);
  verdict.require(out.good());
  Expect expect = verdict.done();
  if (expect.empty()) {
    const bool fits = native == nullptr || (index >= 0 && line(index).device == home.index);
    expect = {fits ? GPUMEM_SUCCESS : GPUMEM_ERROR_INVALID_ARGUMENT};
    if (model_.lost(home.index)) expect = {GPUMEM_ERROR_DEVICE_LOST};
    expect = with_faults(expect, device(home.index).instance);
    if (native == nullptr && shares_default_stream(home.index)) return;
  }
  const gpumem_status status = call.check(
      expect, gpumem_stream_wrap(as<gpumem_device>(home.value), native, out.pointer(), call.error()), out);
  if (status != GPUMEM_SUCCESS) return;
  if (native == nullptr) {
    default_lines_.resize(model_.devices.size(), -1);
    int& known = default_lines_[static_cast<size_t>(home.index)];
    if (known < 0) {
      Line queue;
      queue.device = home.index;
      model_.lines.push_back(queue);
      known = static_cast<int>(model_.lines.size()) - 1;
    }
    index = known;
  }
  ++line(index).handles;
  Stream made;
  made.handle = value_of(out.get());
  made.device = home.index;
  made.instance = device(home.index).instance;
  made.line = index;
  made.wrapped = true;
  model_.streams.push_back(made);
  ++model_.objects_made;
  ++instance(made.instance).stats.streams;
}

void Player::step_stream_destroy(Choice& choice) {
  Call call(*this, choice, "gpumem_stream_destroy");
  const Picked chosen = pick_stream(choice);
  const uint8_t patience = choice.byte();
  Expect expect = chosen.wrong;
  if (chosen.value == 0) expect = {GPUMEM_SUCCESS};
  if (expect.empty()) {
    const Stream& ending = stream(chosen.index);
    // Who adopted a stream relies on its maker to keep it.
    if (!ending.wrapped && line(ending.line).handles > 1) return;
    const bool last = line(ending.line).handles == 1;
    const bool pending = !model_.is_observed(model_.mark(ending.line));
    // Closing by force does not know of work in an adopted stream that was let go of before.
    const bool must_wait =
        !model_.on_host || ending.wrapped || patience % 2 == 0 || instance(ending.instance).is_default;
    const bool hopeless = model_.lost(ending.device) || line(ending.line).capturing;
    if (last && pending && !hopeless && must_wait && !wait_for(ending.line)) return;
    if (last && pending && line(ending.line).capturing) return;
    expect = {GPUMEM_SUCCESS};
  }
  call.text("%s", chosen.text.c_str());
  const gpumem_status status =
      call.check(expect, gpumem_stream_destroy(as<gpumem_stream>(chosen.value), call.error()));
  if (status != GPUMEM_SUCCESS || chosen.index < 0) return;
  Stream& ended = stream(chosen.index);
  Line& queue = line(ended.line);
  --queue.handles;
  if (!ended.wrapped) queue.retired = true;
  model_.end(ended, Life::kDestroyed);
  --instance(ended.instance).stats.streams;
}

void Player::step_stream_get_info(Choice& choice) {
  const auto told = ask_info(choice, "gpumem_stream_get_info", &Player::pick_stream, gpumem_stream_get_info);
  if (!told) return;
  const auto& [index, info] = *told;
  const Stream& known = stream(index);
  require(value_of(info.device) == device(known.device).handle && info.name == known.name &&
              info.wrapped == (known.wrapped ? 1u : 0u) && info.native_stream == line(known.line).pointer &&
              info.device_ordinal == device(known.device).ordinal && info.reserved == 0,
          "a stream tells something else than before");
}

void Player::step_stream_query(Choice& choice) {
  Call call(*this, choice, "gpumem_stream_query");
  const Picked chosen = pick_stream(choice);
  call.text("%s", chosen.text.c_str());
  Expect expect = chosen.wrong;
  if (expect.empty()) expect = model_.usable(stream(chosen.index));
  if (expect.empty()) expect = complete(model_.mark(stream(chosen.index).line));
  const gpumem_status status =
      call.check(expect, gpumem_stream_query(as<gpumem_stream>(chosen.value), call.error()));
  if (status == GPUMEM_SUCCESS) model_.observe(model_.mark(stream(chosen.index).line));
}

void Player::step_stream_synchronize(Choice& choice) {
  Call call(*this, choice, "gpumem_stream_synchronize");
  const Picked chosen = pick_stream(choice);
  constexpr uint64_t kTimes[] = {GPUMEM_TIMEOUT_INFINITE, 0, 1000, GPUMEM_TIMEOUT_INFINITE - 1, 200'000};
  const uint64_t timeout = choice.one_of(kTimes);
  const bool patient = timeout >= kTooLarge;
  Expect expect = chosen.wrong;
  if (expect.empty()) expect = model_.usable(stream(chosen.index));
  if (expect.empty()) {
    if (patient) open_gates();
    expect = patient ? Expect{GPUMEM_SUCCESS} : complete(model_.mark(stream(chosen.index).line));
  }
  call.text("%s, %llu", chosen.text.c_str(), static_cast<unsigned long long>(timeout));
  const gpumem_status status =
      call.check(expect, gpumem_stream_synchronize(as<gpumem_stream>(chosen.value), timeout, call.error()));
  if (status == GPUMEM_SUCCESS) model_.observe(model_.mark(stream(chosen.index).line));
}

void Player::step_stream_wait_event(Choice& choice) {
  Call call(*this, choice, "gpumem_stream_wait_event");
  const Picked waiter = pick_stream(choice);
  const Picked awaited = pick_event(choice);
  call.text("%s, %s", waiter.text.c_str(), awaited.text.c_str());
  Verdict verdict;
  verdict.handle(waiter.wrong);
  verdict.handle(awaited.wrong);
  Expect expect = verdict.done();
  if (expect.empty()) {
    const Stream& to = stream(waiter.index);
    const Event& from = event(awaited.index);
    if (from.wrapped) return;  // what its maker does with it is not known
    if (to.instance != from.instance) {
      expect = {GPUMEM_ERROR_INVALID_ARGUMENT};
    } else if (model_.lost(from.device)) {
      expect = {GPUMEM_ERROR_DEVICE_LOST};
    } else {
      expect = model_.usable(to);
      if (expect.empty()) expect = with_faults({GPUMEM_SUCCESS}, to.instance);
    }
  }
  const gpumem_status status =
      call.check(expect, gpumem_stream_wait_event(as<gpumem_stream>(waiter.value),
                                                  as<gpumem_event>(awaited.value), call.error()));
  if (status != GPUMEM_SUCCESS) return;
  Line& queue = line(stream(waiter.index).line);
  for (const auto& [other, number] : event(awaited.index).mark) {
    if (other == stream(waiter.index).line) continue;
    queue.before[other] = std::max(queue.before[other], number);
  }
  model_.enqueue(stream(waiter.index).line);
}

void Player::step_stream_launch_host_function(Choice& choice) {
  Call call(*this, choice, "gpumem_stream_launch_host_function");
  const Picked chosen = pick_stream(choice);
  const uint8_t byte = choice.byte();
  const auto closed =
      std::count_if(gates_.begin(), gates_.end(), [](const Gate& gate) { return !gate.open; });
  const bool gate = byte < 100 && static_cast<size_t>(closed) < kGatesAtOnce;
  const bool null = byte >= kWrong;
  call.text("%s, %s", chosen.text.c_str(),
            null ? "NULL, NULL" : (gate ? "wait_for_gate, &gate" : "probe, &job"));
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(!null);
  Expect expect = verdict.done();
  if (expect.empty()) {
    const Stream& to = stream(chosen.index);
    expect = model_.usable(to);
    if (expect.empty()) {
      const bool missing = instance(to.instance).lacks("launch_host_function");
      expect = with_faults({missing ? GPUMEM_ERROR_SYMBOL_MISSING : GPUMEM_SUCCESS}, to.instance);
    }
  }
  void* data = nullptr;
  if (gate) {
    data = &gates_.emplace_back();
  } else if (!null && chosen.index >= 0) {
    Job& job = jobs_.emplace_back();
    job.device = as<gpumem_device>(device(stream(chosen.index).device).handle);
    job.expected = GPUMEM_ERROR_INVALID_STATE;
    data = &job;
  }
  const gpumem_host_function function = null ? nullptr : (gate ? run_gate : run_probe);
  const gpumem_status status = call.check(
      expect,
      gpumem_stream_launch_host_function(as<gpumem_stream>(chosen.value), function, data, call.error()));
  if (status != GPUMEM_SUCCESS) {
    if (gate) gates_.back().open = true;
    return;
  }
  const uint64_t number = model_.enqueue(stream(chosen.index).line);
  if (gate) line(stream(chosen.index).line).gates.push_back(number);
}

namespace {

struct Word {
  uint32_t size = 4;
  uint64_t value = 0;
};

uint32_t pick_word_size(Choice& choice) {
  constexpr uint32_t kSizes[] = {4, 8};
  constexpr uint32_t kNoSizes[] = {0, 1, 2, 16, UINT32_MAX};
  return choice.value(kSizes, kNoSizes);
}

bool aligned(const uint8_t* address, uint32_t size) {
  return address != nullptr && (size == 4 || size == 8) && reinterpret_cast<uintptr_t>(address) % size == 0;
}

uint64_t load(const Region& region, uint64_t at, uint32_t size, bool* known) {
  uint64_t value = 0;
  *known = true;
  for (uint32_t i = size; i-- > 0;) {
    value = value << 8 | region.bytes[at + i];
    *known = *known && region.known[at + i];
  }
  return value;
}

bool lets_go(uint64_t word, uint64_t value, uint32_t size, gpumem_wait_condition condition) {
  const int shift = size == 4 ? 32 : 0;
  switch (condition) {
    case GPUMEM_WAIT_GEQ:
      return static_cast<int64_t>((word - value) << shift) >= 0;
    case GPUMEM_WAIT_EQ:
      return word << shift == value << shift;
    case GPUMEM_WAIT_AND:
      return (word & value) << shift != 0;
    default:
      return ~(word | value) << shift != 0;
  }
}

}  // namespace

// Why a value write or wait is refused, in the order in which errors rank; empty if it is not.
Expect Player::word_refused(const Stream& to, const Found& found, bool write) {
  const bool word =
      found.memory >= 0 && found.kind != GPUMEM_KIND_FOREIGN && memory(found.memory).address != nullptr;
  if (found.wrong == Expect{GPUMEM_ERROR_NOT_FOUND}) return found.wrong;
  if (!word) return {GPUMEM_ERROR_WRONG_KIND};
  if (!found.wrong.empty()) return found.wrong;
  const Memory& target = memory(found.memory);
  if (found.on_device && model_.lost(target.device)) return {GPUMEM_ERROR_DEVICE_LOST};
  const Expect usable = model_.usable(to);
  if (!usable.empty()) return usable;
  const auto peer = device(to.device).peers.find(target.device);
  const bool enabled = peer != device(to.device).peers.end() && peer->second > 0;
  if (found.on_device && target.device != to.device && !enabled) return {GPUMEM_ERROR_NO_ACCESS};
  const Expect unreachable = reachable(target, to.device, write);
  if (!unreachable.empty()) return unreachable;
  const bool masked = instance(to.instance).lacks("write_value") || instance(to.instance).lacks("wait_value");
  return masked ? Expect{GPUMEM_ERROR_SYMBOL_MISSING} : Expect{};
}

void Player::step_stream_write_value(Choice& choice) {
  Call call(*this, choice, "gpumem_stream_write_value");
  const Picked chosen = pick_stream(choice);
  const Address at = pick_address(choice, chosen.index < 0 ? 0 : stream(chosen.index).instance);
  const uint32_t size = pick_word_size(choice);
  const uint64_t value = 0x0123456789abcdefu * (choice.byte() + 1u);
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(aligned(at.pointer, size));
  Expect expect = verdict.done();
  Found found;
  if (expect.empty()) {
    const Stream& to = stream(chosen.index);
    found = model_.find(to.instance, at.pointer, size);
    if (found.avoid) return;
    expect = word_refused(to, found, true);
    if (expect.empty()) {
      if (!order(to.line, found.region, found.at, found.at + size, true)) return;
      expect = with_faults({GPUMEM_SUCCESS}, to.instance);
    }
  }
  call.text("%s, %s, 0x%llx, %u", chosen.text.c_str(), at.text.c_str(),
            static_cast<unsigned long long>(value), size);
  const gpumem_status status = call.check(
      expect,
      gpumem_stream_write_value(as<gpumem_stream>(chosen.value), at.pointer, value, size, call.error()));
  if (status != GPUMEM_SUCCESS) return;
  const int queue = stream(chosen.index).line;
  model_.enqueue(queue);
  enqueue_access(queue, found, size, true);
  Region& written = region(found.region);
  for (uint32_t i = 0; i < size; ++i) {
    written.bytes[found.at + i] = static_cast<uint8_t>(value >> 8 * i);
    written.known[found.at + i] = true;
  }
}

void Player::step_stream_wait_value(Choice& choice) {
  Call call(*this, choice, "gpumem_stream_wait_value");
  const Picked chosen = pick_stream(choice);
  const Address at = pick_address(choice, chosen.index < 0 ? 0 : stream(chosen.index).instance);
  const uint32_t size = pick_word_size(choice);
  constexpr gpumem_wait_condition kConditions[] = {GPUMEM_WAIT_GEQ, GPUMEM_WAIT_EQ, GPUMEM_WAIT_AND,
                                                   GPUMEM_WAIT_NOR};
  constexpr gpumem_wait_condition kNoConditions[] = {4, -1, INT32_MAX};
  const gpumem_wait_condition condition = choice.value(kConditions, kNoConditions);
  uint64_t value = 0;
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(aligned(at.pointer, size) && condition >= 0 && condition <= GPUMEM_WAIT_NOR);
  Expect expect = verdict.done();
  Found found;
  if (expect.empty()) {
    const Stream& to = stream(chosen.index);
    found = model_.find(to.instance, at.pointer, size);
    if (found.avoid) return;
    expect = word_refused(to, found, false);
    if (expect.empty()) {
      if (!order(to.line, found.region, found.at, found.at + size, false)) return;
      // Only waits that end: the word has a value that is known when the stream comes to it.
      bool known = false;
      const uint64_t now = load(region(found.region), found.at, size, &known);
      value = condition == GPUMEM_WAIT_NOR ? 0 : now;
      if (!known || !lets_go(now, value, size, condition)) return;
      expect = with_faults({GPUMEM_SUCCESS}, to.instance);
    }
  }
  call.text("%s, %s, 0x%llx, %u, %d", chosen.text.c_str(), at.text.c_str(),
            static_cast<unsigned long long>(value), size, condition);
  const gpumem_status status =
      call.check(expect, gpumem_stream_wait_value(as<gpumem_stream>(chosen.value), at.pointer, value, size,
                                                  condition, call.error()));
  if (status != GPUMEM_SUCCESS) return;
  model_.enqueue(stream(chosen.index).line);
  enqueue_access(stream(chosen.index).line, found, size, false);
}

// ---- events ----

void Player::step_event_create(Choice& choice) {
  Call call(*this, choice, "gpumem_event_create");
  const Picked home = pick_device(choice);
  Sized<gpumem_event_desc> desc(choice, GPUMEM_EVENT_DESC_INIT, Sized<gpumem_event_desc>::Null::kGood);
  Out<gpumem_event> out(choice);
  constexpr gpumem_event_flags kFlags[] = {0, GPUMEM_EVENT_BLOCKING_SYNC, GPUMEM_EVENT_DISABLE_TIMING, 3, 0};
  constexpr gpumem_event_flags kNoFlags[] = {4, UINT32_MAX, 0x80000000u};
  desc->flags = choice.value(kFlags, kNoFlags);
  desc->reserved = choice.byte() >= 240 ? 1 : 0;
  call.text("%s, &%s{flags 0x%x, reserved %u}, %s", home.text.c_str(), desc.text().c_str(), desc->flags,
            desc->reserved, out.text());
  Verdict verdict;
  verdict.handle(home.wrong);
  verdict.require(desc.good() && out.good());
  verdict.require(desc.is_null() || (desc->flags < 4 && desc->reserved == 0));
  Expect expect = verdict.done();
  if (expect.empty()) {
    expect = {model_.lost(home.index) ? GPUMEM_ERROR_DEVICE_LOST : GPUMEM_SUCCESS};
    expect = with_faults(expect, device(home.index).instance);
  }
  const gpumem_status status = call.check(
      expect, gpumem_event_create(as<gpumem_device>(home.value), desc.pointer(), out.pointer(), call.error()),
      out);
  if (status != GPUMEM_SUCCESS) return;
  Event made;
  made.handle = value_of(out.get());
  made.device = home.index;
  made.instance = device(home.index).instance;
  made.flags = desc.is_null() ? 0 : desc->flags;
  model_.events.push_back(made);
  ++model_.objects_made;
  ++instance(made.instance).stats.events;
}

void Player::step_event_wrap(Choice& choice) {
  Call call(*this, choice, "gpumem_event_wrap");
  const Picked home = pick_device(choice);
  Out<gpumem_event> out(choice);
  const uint8_t byte = choice.byte();
  constexpr gpumem_event_flags kFlags[] = {0, 2, 1};
  constexpr gpumem_event_flags kNoFlags[] = {4, 0x100};
  const gpumem_event_flags flags = choice.value(kFlags, kNoFlags);
  void* native = nullptr;
  if (byte < kWrong && model_.on_host) native = as<void*>(0x1000);  // never looked at
  if (byte < kWrong && !model_.on_host) {
    for (const Event& candidate : model_.events) {
      if (candidate.life != Life::kLive || candidate.device != home.index || candidate.wrapped) continue;
      gpumem_event_info info = GPUMEM_EVENT_INFO_INIT;
      require(gpumem_event_get_info(as<gpumem_event>(candidate.handle), &info, nullptr) == GPUMEM_SUCCESS,
              "an event tells nothing");
      native = info.native_event;
    }
  }
  call.text("%s, %s, 0x%x, %s", home.text.c_str(), native == nullptr ? "NULL" : "native", flags, out.text());
  Verdict verdict;
  verdict.handle(home.wrong);
  verdict.require(out.good() && native != nullptr && flags < 4);
  Expect expect = verdict.done();
  if (expect.empty()) {
    expect = {model_.on_host ? GPUMEM_ERROR_UNSUPPORTED : GPUMEM_SUCCESS};
    if (model_.lost(home.index)) expect = {GPUMEM_ERROR_DEVICE_LOST};
  }
  const gpumem_status status = call.check(
      expect, gpumem_event_wrap(as<gpumem_device>(home.value), native, flags, out.pointer(), call.error()),
      out);
  if (status != GPUMEM_SUCCESS) return;
  Event made;
  made.handle = value_of(out.get());
  made.device = home.index;
  made.instance = device(home.index).instance;
  made.flags = flags;
  made.wrapped = true;
  model_.events.push_back(made);
  ++model_.objects_made;
  ++instance(made.instance).stats.events;
}

void Player::step_event_destroy(Choice& choice) {
  Call call(*this, choice, "gpumem_event_destroy");
  const Picked chosen = pick_event(choice);
  call.text("%s", chosen.text.c_str());
  Expect expect = chosen.wrong;
  if (chosen.value == 0 || expect.empty()) expect = {GPUMEM_SUCCESS};
  const gpumem_status status =
      call.check(expect, gpumem_event_destroy(as<gpumem_event>(chosen.value), call.error()));
  if (status != GPUMEM_SUCCESS || chosen.index < 0) return;
  model_.end(event(chosen.index), Life::kDestroyed);
  --instance(event(chosen.index).instance).stats.events;
}

void Player::step_event_get_info(Choice& choice) {
  const auto told = ask_info(choice, "gpumem_event_get_info", &Player::pick_event, gpumem_event_get_info);
  if (!told) return;
  const auto& [index, info] = *told;
  const Event& known = event(index);
  require(value_of(info.device) == device(known.device).handle && info.flags == known.flags &&
              info.wrapped == (known.wrapped ? 1u : 0u) && (info.native_event == nullptr) == model_.on_host &&
              info.device_ordinal == device(known.device).ordinal && info.reserved == 0,
          "an event tells something else than before");
}

void Player::step_event_record(Choice& choice) {
  Call call(*this, choice, "gpumem_event_record");
  const Picked recorded = pick_event(choice);
  const Picked place = pick_stream(choice);
  call.text("%s, %s", recorded.text.c_str(), place.text.c_str());
  Verdict verdict;
  verdict.handle(recorded.wrong);
  verdict.handle(place.wrong);
  Expect expect = verdict.done();
  if (expect.empty()) {
    if (event(recorded.index).wrapped) return;
    if (event(recorded.index).device != stream(place.index).device) {
      expect = {GPUMEM_ERROR_INVALID_ARGUMENT};
    } else {
      expect = model_.usable(stream(place.index));
      if (expect.empty()) expect = with_faults({GPUMEM_SUCCESS}, stream(place.index).instance);
    }
  }
  const gpumem_status status = call.check(
      expect,
      gpumem_event_record(as<gpumem_event>(recorded.value), as<gpumem_stream>(place.value), call.error()));
  if (status != GPUMEM_SUCCESS) return;
  model_.enqueue(stream(place.index).line);
  event(recorded.index).recorded = true;
  event(recorded.index).line = stream(place.index).line;
  event(recorded.index).mark = model_.mark(stream(place.index).line);
}

void Player::step_event_query(Choice& choice) {
  Call call(*this, choice, "gpumem_event_query");
  const Picked chosen = pick_event(choice);
  call.text("%s", chosen.text.c_str());
  Expect expect = chosen.wrong;
  if (expect.empty()) {
    const Event& asked = event(chosen.index);
    if (asked.wrapped) return;
    expect = model_.lost(asked.device) ? Expect{GPUMEM_ERROR_DEVICE_LOST} : complete(asked.mark);
  }
  const gpumem_status status =
      call.check(expect, gpumem_event_query(as<gpumem_event>(chosen.value), call.error()));
  if (status == GPUMEM_SUCCESS) model_.observe(event(chosen.index).mark);
}

void Player::step_event_synchronize(Choice& choice) {
  Call call(*this, choice, "gpumem_event_synchronize");
  const Picked chosen = pick_event(choice);
  constexpr uint64_t kTimes[] = {GPUMEM_TIMEOUT_INFINITE, 0, 1000, uint64_t{1} << 63, 200'000};
  const uint64_t timeout = choice.one_of(kTimes);
  const bool patient = timeout >= kTooLarge;
  Expect expect = chosen.wrong;
  if (expect.empty()) {
    const Event& asked = event(chosen.index);
    if (asked.wrapped) return;
    if (patient) open_gates();
    expect = patient ? Expect{GPUMEM_SUCCESS} : complete(asked.mark);
    if (model_.lost(asked.device)) expect = {GPUMEM_ERROR_DEVICE_LOST};
  }
  call.text("%s, %llu", chosen.text.c_str(), static_cast<unsigned long long>(timeout));
  const gpumem_status status =
      call.check(expect, gpumem_event_synchronize(as<gpumem_event>(chosen.value), timeout, call.error()));
  if (status == GPUMEM_SUCCESS) model_.observe(event(chosen.index).mark);
}

void Player::step_event_get_elapsed_time(Choice& choice) {
  Call call(*this, choice, "gpumem_event_get_elapsed_time");
  const Picked first = pick_event(choice);
  const Picked second = pick_event(choice);
  Out<float> out(choice);
  call.text("%s, %s, %s", first.text.c_str(), second.text.c_str(), out.text());
  Verdict verdict;
  verdict.handle(first.wrong);
  verdict.handle(second.wrong);
  verdict.require(out.good());
  Expect expect = verdict.done();
  if (expect.empty()) {
    const Event& start = event(first.index);
    const Event& end = event(second.index);
    if (start.wrapped || end.wrapped) return;
    if (start.device != end.device) {
      expect = {GPUMEM_ERROR_INVALID_ARGUMENT};
    } else if (model_.lost(start.device)) {
      expect = {GPUMEM_ERROR_DEVICE_LOST};
    } else if (((start.flags | end.flags) & GPUMEM_EVENT_DISABLE_TIMING) != 0 || !start.recorded ||
               !end.recorded) {
      expect = {GPUMEM_ERROR_INVALID_STATE};
    } else {
      Clock both = start.mark;
      for (const auto& [other, number] : end.mark)
        both[other] = std::max(both[other], number);
      expect = complete(both);
    }
  }
  const gpumem_status status =
      call.check(expect,
                 gpumem_event_get_elapsed_time(as<gpumem_event>(first.value), as<gpumem_event>(second.value),
                                               out.pointer(), call.error()),
                 out);
  if (status != GPUMEM_SUCCESS) return;
  const Event& start = event(first.index);
  const Event& end = event(second.index);
  const auto after = end.mark.find(start.line);
  const bool ordered = after != end.mark.end() && after->second >= start.mark.at(start.line);
  require(!ordered || out.get() >= 0, "a later event was earlier");
}

// ---- copies and fills ----

bool Player::Rows::extent(const uint8_t* first, uint64_t* out) const {
  *out = 0;
  if (empty()) return true;
  uint64_t size = 0;
  if (__builtin_mul_overflow(pitch, height - 1, &size) || __builtin_add_overflow(size, width, &size))
    return false;
  *out = size;
  const auto address = reinterpret_cast<uintptr_t>(first);
  return size < kTooLarge && address + size >= address && (height == 1 || pitch >= width);
}

void Player::do_copy(Choice& choice, bool plane) {
  Call call(*this, choice, plane ? "gpumem_copy_2d" : "gpumem_copy");
  const Picked owner = pick_instance(choice);
  const Picked place = pick_stream_or_null(choice);
  const int home = std::max(owner.index, 0);
  const Address to = pick_address(choice, home);
  const Address from = pick_address(choice, home);
  Rows target;
  target.width = pick_length(choice, std::min(to.left, from.left));
  const uint8_t shape = choice.byte();
  const uint8_t more = choice.byte();
  Sized<gpumem_copy_options> copying(choice, GPUMEM_COPY_OPTIONS_INIT,
                                     Sized<gpumem_copy_options>::Null::kGood);
  Rows origin = target;
  if (plane) {
    constexpr uint64_t kGaps[] = {0, 1, 8, 24, 56};
    origin.height = target.height = shape < kWrong ? 1 + shape % 4 : (shape % 2 == 0 ? 0 : uint64_t{1} << 62);
    if (target.width <= kLongestRow && more < kWrong)
      target.width = origin.width = std::max<uint64_t>(target.width / 4, target.width != 0);
    target.pitch = target.width + kGaps[more % std::size(kGaps)];
    origin.pitch = origin.width + kGaps[more / 5 % std::size(kGaps)];
    if (more >= kWrong) target.pitch = more % 2 == 0 ? target.width - 1 : uint64_t{1} << 40;
  } else {
    target.pitch = origin.pitch = target.width;
  }
  copying->direction = more % 16 == 0 ? shape % 5 : 0;
  copying->source_order = shape % 8 == 0 ? 1 + more % 2 : 0;
  if (more == 254) copying->direction = 5;
  if (more == 255) copying->source_order = -1;
  const bool given = !copying.is_null();
  const gpumem_direction direction = given ? copying->direction : 0;
  const gpumem_source_order source_order = given ? copying->source_order : 0;

  Verdict verdict;
  verdict.handle(owner.wrong);
  verdict.handle(place.wrong);
  verdict.require(owner.index < 0 || place.index < 0 || !place.wrong.empty() || !owner.wrong.empty() ||
                  stream(place.index).instance == owner.index);
  uint64_t to_extent = 0;
  uint64_t from_extent = 0;
  const bool fits = target.extent(to.pointer, &to_extent) && origin.extent(from.pointer, &from_extent);
  verdict.require(copying.good() && direction >= 0 && direction <= 4 && source_order >= 0 &&
                  source_order <= 2);
  verdict.require(fits && (target.empty() || (to.pointer != nullptr && from.pointer != nullptr)));
  Expect expect = verdict.done();
  if (expect.empty() && target.empty()) expect = {GPUMEM_SUCCESS};
  const bool works = expect.empty();
  Found destination;
  Found source;
  const int queue = place.index >= 0 ? stream(place.index).line : -1;
  if (works) {
    destination = model_.find(owner.index, to.pointer, to_extent);
    source = model_.find(owner.index, from.pointer, from_extent);
    if (destination.avoid || source.avoid) return;
    const Expect nothing = {GPUMEM_ERROR_NOT_FOUND};
    const auto lost = [&](const Found& found) {
      return found.memory >= 0 && model_.lost(memory_of(found).device);
    };
    const bool to_device =
        direction == GPUMEM_DIRECTION_HOST_TO_DEVICE || direction == GPUMEM_DIRECTION_DEVICE_TO_DEVICE;
    const bool from_device =
        direction == GPUMEM_DIRECTION_DEVICE_TO_HOST || direction == GPUMEM_DIRECTION_DEVICE_TO_DEVICE;
    if (destination.wrong == nothing || source.wrong == nothing) {
      expect = nothing;
    } else if (!destination.wrong.empty() || !source.wrong.empty()) {
      expect = {GPUMEM_ERROR_INVALID_ARGUMENT};
    } else if (destination.region == source.region &&
               shares_byte(destination.at, target.pitch, source.at, origin.pitch, target.width,
                           target.height)) {
      expect = {GPUMEM_ERROR_INVALID_ARGUMENT};
    } else if (direction != GPUMEM_DIRECTION_INFER &&
               (destination.on_device != to_device || source.on_device != from_device)) {
      expect = {GPUMEM_ERROR_INVALID_ARGUMENT};
    } else if (lost(destination) || lost(source)) {
      expect = {GPUMEM_ERROR_DEVICE_LOST};
    } else if (place.index >= 0) {
      expect = model_.usable(stream(place.index));
    } else if (destination.memory < 0 && source.memory < 0 &&
               model_.lost(instance(owner.index).devices.front())) {
      expect = {GPUMEM_ERROR_DEVICE_LOST};  // ordinary memory is copied by the first device
    }
    if (expect.empty() && !destination.writable) expect = {GPUMEM_ERROR_NO_ACCESS};
    if (expect.empty() && plane && instance(owner.index).lacks("copy_2d")) {
      // Rows without gaps, or a single one, may or may not need the missing entry point.
      expect = {GPUMEM_ERROR_SYMBOL_MISSING};
      if (target.height == 1 || (target.pitch == target.width && origin.pitch == origin.width))
        expect = {GPUMEM_SUCCESS, GPUMEM_ERROR_SYMBOL_MISSING};
    }
    if (expect.empty() || expect.front() == GPUMEM_SUCCESS) {
      if (!model_.on_host) open_gates();  // the driver may wait
      const int reader = source_order == GPUMEM_SOURCE_ORDER_STREAM ? queue : -1;
      if (!order(queue, destination.region, destination.at, destination.at + to_extent, true)) return;
      // Read before its turn: nothing pending may write it.
      if (reader < 0 && queue >= 0) {
        const auto accesses = region(source.region).accesses;
        for (const Access& access : accesses) {
          if (access.write && !model_.is_observed(access.line, access.number) && !wait_for(access.line))
            return;
        }
      }
      if (!order(reader, source.region, source.at, source.at + from_extent, false)) return;
      if (expect.empty()) expect = {GPUMEM_SUCCESS};
    }
    expect = with_faults(expect, owner.index);
  }
  call.text("%s, %s, %s, %s, %llu, %llu x %llu, pitches %llu and %llu, %s{direction %d, order %d}",
            owner.text.c_str(), place.text.c_str(), to.text.c_str(), from.text.c_str(),
            static_cast<unsigned long long>(target.width), static_cast<unsigned long long>(target.width),
            static_cast<unsigned long long>(target.height), static_cast<unsigned long long>(target.pitch),
            static_cast<unsigned long long>(origin.pitch), copying.text().c_str(), direction, source_order);
  const auto handle = as<gpumem_instance>(owner.value);
  const auto in = as<gpumem_stream>(place.value);
  const gpumem_status status = call.check(
      expect, plane ? gpumem_copy_2d(handle, in, to.pointer, target.pitch, from.pointer, origin.pitch,
                                     target.width, target.height, copying.pointer(), call.error())
                    : gpumem_copy(handle, in, to.pointer, from.pointer, target.width, copying.pointer(),
                                  call.error()));
  if (status != GPUMEM_SUCCESS || !works) return;
  if (queue >= 0) {
    model_.enqueue(queue);
    enqueue_access(queue, destination, to_extent, true);
    const bool read_already = source_order == GPUMEM_SOURCE_ORDER_DURING_CALL;
    if (!read_already) enqueue_access(queue, source, from_extent, false);
  }
  for (uint64_t row = 0; row < target.height; ++row) {
    for (uint64_t i = 0; i < target.width; ++i) {
      const Region& read = region(source.region);
      const uint64_t at = source.at + row * origin.pitch + i;
      const uint8_t byte = read.bytes[at];
      const bool known = read.known[at];
      Region& written = region(destination.region);
      written.bytes[destination.at + row * target.pitch + i] = byte;
      written.known[destination.at + row * target.pitch + i] = known;
    }
  }
}

void Player::step_copy(Choice& choice) { do_copy(choice, false); }
void Player::step_copy_2d(Choice& choice) { do_copy(choice, true); }

void Player::do_fill(Choice& choice, bool plane) {
  Call call(*this, choice, plane ? "gpumem_fill_2d" : "gpumem_fill");
  const Picked owner = pick_instance(choice);
  const Picked place = pick_stream_or_null(choice);
  const Address to = pick_address(choice, std::max(owner.index, 0));
  Rows target;
  target.width = pick_length(choice, to.left);
  constexpr uint32_t kUnits[] = {1, 2, 4};
  constexpr uint32_t kNoUnits[] = {0, 3, 8, UINT32_MAX};
  const uint32_t unit = choice.value(kUnits, kNoUnits);
  const uint8_t shape = choice.byte();
  const uint8_t more = choice.byte();
  const uint32_t value = 0x01020408u * (more + 1u);
  if (plane) {
    constexpr uint64_t kGaps[] = {0, 4, 8, 24, 56};
    target.height = shape < kWrong ? 1 + shape % 4 : (shape % 2 == 0 ? 0 : uint64_t{1} << 62);
    if (target.width <= kLongestRow && more < kWrong)
      target.width = std::max<uint64_t>(target.width / 16 * 4, target.width != 0);
    target.pitch = target.width + kGaps[more % std::size(kGaps)];
    if (more >= kWrong) target.pitch = more % 2 == 0 ? target.width - 1 : uint64_t{1} << 40;
  } else {
    target.pitch = target.width;
  }
  Verdict verdict;
  verdict.handle(owner.wrong);
  verdict.handle(place.wrong);
  verdict.require(owner.index < 0 || place.index < 0 || !place.wrong.empty() || !owner.wrong.empty() ||
                  stream(place.index).instance == owner.index);
  const bool known_unit = unit == 1 || unit == 2 || unit == 4;
  verdict.require(known_unit);
  uint64_t extent = 0;
  verdict.require(target.extent(to.pointer, &extent));
  if (!target.empty()) {
    verdict.require(to.pointer != nullptr);
    if (known_unit) {
      verdict.require(reinterpret_cast<uintptr_t>(to.pointer) % unit == 0 && target.width % unit == 0 &&
                      (target.height == 1 || target.pitch % unit == 0));
    }
  }
  Expect expect = verdict.done();
  if (expect.empty() && target.empty()) expect = {GPUMEM_SUCCESS};
  const bool works = expect.empty();
  Found destination;
  const int queue = place.index >= 0 ? stream(place.index).line : -1;
  if (works) {
    destination = model_.find(owner.index, to.pointer, extent);
    if (destination.avoid) return;
    expect = destination.wrong;
    const bool lost = destination.memory >= 0 && model_.lost(memory_of(destination).device);
    if (expect.empty() && lost) expect = {GPUMEM_ERROR_DEVICE_LOST};
    if (expect.empty() && place.index >= 0) expect = model_.usable(stream(place.index));
    if (expect.empty() && place.index < 0 && destination.memory < 0 &&
        model_.lost(instance(owner.index).devices.front())) {
      expect = {GPUMEM_ERROR_DEVICE_LOST};
    }
    if (expect.empty() && !destination.writable) expect = {GPUMEM_ERROR_NO_ACCESS};
    if (expect.empty() && plane && instance(owner.index).lacks("fill_2d")) {
      expect = {GPUMEM_ERROR_SYMBOL_MISSING};
      if (target.height == 1 || target.pitch == target.width)
        expect = {GPUMEM_SUCCESS, GPUMEM_ERROR_SYMBOL_MISSING};
    }
    if (expect.empty() || expect.front() == GPUMEM_SUCCESS) {
      if (!model_.on_host) open_gates();  // pageable memory is filled after a wait
      if (!order(queue, destination.region, destination.at, destination.at + extent, true)) return;
      if (expect.empty()) expect = {GPUMEM_SUCCESS};
    }
    expect = with_faults(expect, owner.index);
  }
  call.text("%s, %s, %s, pitch %llu, %llu x %llu, 0x%x, %u", owner.text.c_str(), place.text.c_str(),
            to.text.c_str(), static_cast<unsigned long long>(target.pitch),
            static_cast<unsigned long long>(target.width), static_cast<unsigned long long>(target.height),
            value, unit);
  const auto handle = as<gpumem_instance>(owner.value);
  const auto in = as<gpumem_stream>(place.value);
  const gpumem_status status = call.check(
      expect, plane ? gpumem_fill_2d(handle, in, to.pointer, target.pitch, target.width, target.height, value,
                                     unit, call.error())
                    : gpumem_fill(handle, in, to.pointer, target.width, value, unit, call.error()));
  if (status != GPUMEM_SUCCESS || !works) return;
  if (queue >= 0) {
    model_.enqueue(queue);
    enqueue_access(queue, destination, extent, true);
  }
  Region& written = region(destination.region);
  for (uint64_t row = 0; row < target.height; ++row) {
    for (uint64_t i = 0; i < target.width; ++i) {
      const uint64_t at = destination.at + row * target.pitch + i;
      written.bytes[at] = static_cast<uint8_t>(value >> 8 * (i % unit));
      written.known[at] = true;
    }
  }
}

void Player::step_fill(Choice& choice) { do_fill(choice, false); }
void Player::step_fill_2d(Choice& choice) { do_fill(choice, true); }

// ---- kernels of the host backend ----

void Player::step_host_launch(Choice& choice) {
  Call call(*this, choice, "gpumem_host_launch");
  const Picked chosen = pick_stream(choice);
  const Address at = pick_address(choice, chosen.index < 0 ? 0 : stream(chosen.index).instance);
  const uint64_t size = pick_length(choice, at.left);
  const uint8_t byte = choice.byte();
  const uint8_t courage = choice.byte();
  const bool null = byte >= kWrong;
  const bool write = byte % 2 == 0;
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(!null);
  Expect expect = verdict.done();
  Found found;
  bool faults = false;
  if (expect.empty() && !model_.on_host) expect = {GPUMEM_ERROR_UNSUPPORTED};
  if (expect.empty()) expect = model_.usable(stream(chosen.index));
  if (expect.empty()) {
    const Stream& to = stream(chosen.index);
    if (at.pointer == nullptr || size == 0 || size > 1 << 20) return;
    if (UINTPTR_MAX - reinterpret_cast<uintptr_t>(at.pointer) < size) return;  // never asks the device
    found = model_.find(to.instance, at.pointer, size);
    if (found.avoid) return;
    const bool by_device = found.memory >= 0 && memory_of(found).holds(memory_of(found).address, at.pointer);
    faults = !found.wrong.empty() || !by_device;
    if (!faults) {
      const Memory& target = memory_of(found);
      const auto enabled = [&](const auto& peers) {
        const auto peer = peers.find(target.device);
        return peer != peers.end() && peer->second;
      };
      faults = !reachable(target, to.device, write).empty();
      if (target.kind == GPUMEM_KIND_DEVICE && target.device != to.device &&
          !enabled(device(to.device).peers) && !enabled(device(to.device).foreign_peers)) {
        faults = true;
      }
      if (model_.lost(target.device)) return;
    }
    // A kernel that faults takes the device with it.
    if (faults && (courage < kWrong || instance(to.instance).is_default || instance(to.instance).armed))
      return;
    if (!faults && !order(to.line, found.region, found.at, found.at + size, write)) return;
    expect = with_faults({GPUMEM_SUCCESS}, to.instance);
  }
  Job& job = jobs_.emplace_back();
  job.address = at.pointer;
  job.size = size;
  job.access = write ? GPUMEM_ACCESS_READWRITE : GPUMEM_ACCESS_READ;
  job.value = byte;
  job.expected = faults ? GPUMEM_ERROR_DEVICE_LOST : GPUMEM_SUCCESS;
  call.text("%s, %s, {%s, %llu, %s}", chosen.text.c_str(), null ? "NULL" : "kernel", at.text.c_str(),
            static_cast<unsigned long long>(size), write ? "write" : "read");
  if (faults) open_gates();
  const gpumem_status status = call.check(
      expect,
      gpumem_host_launch(as<gpumem_stream>(chosen.value), null ? nullptr : run_kernel, &job, call.error()));
  if (status != GPUMEM_SUCCESS) return;
  const int queue = stream(chosen.index).line;
  const uint64_t number = model_.enqueue(queue);
  if (faults) {
    job.ran.wait(false);
    require(job.status == GPUMEM_ERROR_DEVICE_LOST,
            std::string("gpumem_host_kernel_view: expected GPUMEM_ERROR_DEVICE_LOST, got ") +
                gpumem_status_name(job.status));
    coverage_.count("gpumem_host_kernel_view", false);
    model_.lose(stream(chosen.index).device);
    return;
  }
  coverage_.count("gpumem_host_kernel_view", true);
  model_.add_access(found.region, {queue, number, found.at, found.at + size, write});
  memory_of(found).uses.push_back({queue, number, false});
  if (!write) return;
  Region& written = region(found.region);
  for (uint64_t i = 0; i < size; ++i) {
    written.bytes[found.at + i] = byte;
    written.known[found.at + i] = true;
  }
}

void Player::step_host_kernel_view(Choice& choice) {
  Call call(*this, choice, "gpumem_host_kernel_view");
  const Address at = pick_address(choice, 0);
  Out<void*> out(choice);
  // No kernel runs on this thread, so no value is one.
  const auto kernel = as<gpumem_host_kernel>(choice.byte() < kWrong ? 0 : 0x1000);
  call.text("kernel, %s, 8, GPUMEM_ACCESS_READ, %s", at.text.c_str(), out.text());
  call.check({GPUMEM_ERROR_INVALID_ARGUMENT},
             gpumem_host_kernel_view(kernel, at.pointer, 8, GPUMEM_ACCESS_READ, out.pointer(), call.error()),
             out);
}

}  // namespace sequences
