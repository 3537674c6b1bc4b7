// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Steps that make streams and events, and that enqueue and wait for work.
#include <sys/mman.h>
#include <unistd.h>

#include "player.h"

namespace sequences {
namespace {

constexpr uint64_t kTooLarge = uint64_t{1} << 63;
constexpr size_t kGatesAtOnce = 2;
constexpr uint64_t kLongestRow = 1 << 16;

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

void Player::adopt_stream(int home, gpumem_stream handle, int index, bool wrapped, const std::string& name) {
  Stream made;
  made.handle = value_of(handle);
  made.device = home;
  made.instance = device(home).instance;
  made.line = index;
  made.wrapped = wrapped;
  made.name = name;
  ++line(index).handles;
  model_.streams.push_back(made);
  ++model_.objects_made;
  ++instance(made.instance).stats.streams;
}

// What a call that makes a stream or event on a device is answered.
Expect Player::expect_made(const Picked& home, bool good) const {
  Verdict verdict;
  verdict.handle(home.wrong);
  verdict.require(good);
  if (!verdict.done().empty()) return verdict.done();
  const gpumem_status status = model_.lost(home.index) ? GPUMEM_ERROR_DEVICE_LOST : GPUMEM_SUCCESS;
  return with_faults({status}, model_.devices[static_cast<size_t>(home.index)].instance);
}

void Player::step_stream_create(Choice& choice) {
  Call call(*this, choice, "gpumem_stream_create");
  const Picked home = pick_device(choice);
  Sized<gpumem_stream_desc> desc(choice, GPUMEM_STREAM_DESC_INIT, Sized<gpumem_stream_desc>::Null::kGood);
  Out<gpumem_stream> out(choice);
  const Name name(choice);
  const uint8_t extra = choice.byte();
  desc->priority = extra % 8 - 4;
  desc->reserved = extra >= kWrong ? 1 : 0;
  desc->name = name.pointer();
  call.text("%s, &%s{priority %d, reserved %u}, %s", home.text.c_str(), desc.text().c_str(), desc->priority,
            desc->reserved, out.text());
  const Expect expect = expect_made(
      home, desc.good() && out.good() && (desc.is_null() || (desc->reserved == 0 && name.good())));
  const gpumem_status status = call.check(
      expect,
      gpumem_stream_create(as<gpumem_device>(home.value), desc.pointer(), out.pointer(), call.error()), out);
  if (status != GPUMEM_SUCCESS) return;
  gpumem_stream_info info = GPUMEM_STREAM_INFO_INIT;
  require(gpumem_stream_get_info(out.get(), &info, nullptr) == GPUMEM_SUCCESS, "a new stream tells nothing");
  Line queue;
  queue.device = home.index;
  queue.pointer = info.native_stream;
  model_.lines.push_back(queue);
  adopt_stream(home.index, out.get(), static_cast<int>(model_.lines.size()) - 1, false,
               desc.is_null() ? "" : name.text());
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
  adopt_stream(home.index, out.get(), index, true, "");
}

bool Player::is_default_line(int index) const {
  return std::find(default_lines_.begin(), default_lines_.end(), index) != default_lines_.end();
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
    // A pool sets a mark at the end, and nobody but the driver could wait for that in a default stream.
    const bool pooled = std::any_of(model_.pools.begin(), model_.pools.end(), [&](const Pool& each) {
      return each.instance == ending.instance && (each.native || line(ending.line).marked);
    });
    if (!model_.on_host && last && is_default_line(ending.line) && pooled) return;
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
  note_polls(ended.instance);
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

void Player::step_stream_get_capture_id(Choice& choice) {
  Call call(*this, choice, "gpumem_stream_get_capture_id");
  const Picked chosen = pick_stream(choice);
  Out<uint64_t> number(choice);
  call.text("%s, %s", chosen.text.c_str(), number.text());
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(number.good());
  Expect expect = verdict.done();
  if (expect.empty() && model_.lost(stream(chosen.index).device)) expect = {GPUMEM_ERROR_DEVICE_LOST};
  if (expect.empty()) expect = {GPUMEM_SUCCESS};
  const gpumem_status status = call.check(
      expect, gpumem_stream_get_capture_id(as<gpumem_stream>(chosen.value), number.pointer(), call.error()),
      number);
  if (status != GPUMEM_SUCCESS) return;
  require((number.get() != 0) == line(stream(chosen.index).line).capturing,
          "a stream is in another capture than it was put in");
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
    if (model_.captured(to)) return;
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
    if (model_.captured(to)) return;
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
  constexpr uint32_t kNoSizes[] = {0, 1, 2, 3, 16, UINT32_MAX};
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
  const bool word = found.memory >= 0 && found.kind != GPUMEM_KIND_FOREIGN &&
                    found.kind != GPUMEM_KIND_MANAGED && memory(found.memory).address != nullptr;
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
    if (found.avoid || model_.captured(to)) return;
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
    if (found.avoid || model_.captured(to)) return;
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

void Player::adopt_event(int home, gpumem_event handle, gpumem_event_flags flags, bool wrapped) {
  Event made;
  made.handle = value_of(handle);
  made.device = home;
  made.instance = device(home).instance;
  made.flags = flags;
  made.wrapped = wrapped;
  model_.events.push_back(made);
  ++model_.objects_made;
  ++instance(made.instance).stats.events;
}

void Player::step_event_create(Choice& choice) {
  Call call(*this, choice, "gpumem_event_create");
  const Picked home = pick_device(choice);
  Sized<gpumem_event_desc> desc(choice, GPUMEM_EVENT_DESC_INIT, Sized<gpumem_event_desc>::Null::kGood);
  Out<gpumem_event> out(choice);
  constexpr gpumem_event_flags kFlags[] = {0, GPUMEM_EVENT_BLOCKING_SYNC, GPUMEM_EVENT_DISABLE_TIMING, 3, 0};
  constexpr gpumem_event_flags kNoFlags[] = {4, UINT32_MAX, 0x80000000u, UINT64_C(1) << 32, UINT64_MAX};
  desc->flags = choice.value(kFlags, kNoFlags);
  call.text("%s, &%s{flags 0x%llx}, %s", home.text.c_str(), desc.text().c_str(),
            static_cast<unsigned long long>(desc->flags), out.text());
  const Expect expect = expect_made(home, desc.good() && out.good() && (desc.is_null() || desc->flags < 4));
  const gpumem_status status = call.check(
      expect, gpumem_event_create(as<gpumem_device>(home.value), desc.pointer(), out.pointer(), call.error()),
      out);
  if (status != GPUMEM_SUCCESS) return;
  adopt_event(home.index, out.get(), desc.is_null() ? 0 : desc->flags, false);
}

void Player::step_event_wrap(Choice& choice) {
  Call call(*this, choice, "gpumem_event_wrap");
  const Picked home = pick_device(choice);
  Out<gpumem_event> out(choice);
  const uint8_t byte = choice.byte();
  constexpr gpumem_event_flags kFlags[] = {0, 2, 1};
  constexpr gpumem_event_flags kNoFlags[] = {4, 0x80, UINT64_C(1) << 63};
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
  call.text("%s, %s, 0x%llx, %s", home.text.c_str(), native == nullptr ? "NULL" : "native",
            static_cast<unsigned long long>(flags), out.text());
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
  adopt_event(home.index, out.get(), flags, true);
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
              info.device_ordinal == device(known.device).ordinal,
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
    if (event(recorded.index).wrapped || model_.captured(stream(place.index))) return;
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
  Out<int64_t> out(choice);
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
  uint64_t slice = 0;
  uint64_t size = 0;
  if (__builtin_mul_overflow(pitch, height - 1, &slice) || __builtin_add_overflow(slice, width, &slice) ||
      __builtin_mul_overflow(slice_pitch, depth - 1, &size) || __builtin_add_overflow(size, slice, &size)) {
    return false;
  }
  *out = size;
  const auto address = reinterpret_cast<uintptr_t>(first);
  return size < kTooLarge && address + size >= address && pitch >= width &&
         (depth == 1 || slice_pitch >= slice);
}

std::vector<uint64_t> Player::Rows::starts() const {
  std::vector<uint64_t> list;
  for (uint64_t slice = 0; slice < depth; ++slice) {
    for (uint64_t row = 0; row < height; ++row)
      list.push_back(slice * slice_pitch + row * pitch);
  }
  return list;
}

Player::Place Player::pick_place(Choice& choice, bool async) {
  Place place;
  place.picked = async ? pick_stream(choice) : pick_instance(choice);
  place.wrong = place.picked.wrong;
  if (!place.wrong.empty()) return place;
  if (async) {
    place.stream = place.picked.index;
    place.line = stream(place.stream).line;
    place.instance = stream(place.stream).instance;
  } else {
    place.instance = place.picked.index;
  }
  return place;
}

bool Player::share_bytes(const Found& left, const Rows& left_rows, const Found& right,
                         const Rows& right_rows) {
  if (left.region != right.region) return false;
  for (const uint64_t row : left_rows.starts()) {
    for (const uint64_t other : right_rows.starts()) {
      const uint64_t first = left.at + row;
      const uint64_t second = right.at + other;
      if (first < second + right_rows.width && second < first + left_rows.width) return true;
    }
  }
  return false;
}

bool Player::depend(const Copy& one, const Copy& other) {
  return share_bytes(one.destination, one.target, other.destination, other.target) ||
         share_bytes(one.destination, one.target, other.source, other.origin) ||
         share_bytes(one.source, one.origin, other.destination, other.target);
}

Expect Player::predict_copy(const Place& place, const Copy& copy) {
  const Found& destination = copy.destination;
  const Found& source = copy.source;
  const Expect nothing = {GPUMEM_ERROR_NOT_FOUND};
  if (destination.wrong == nothing || source.wrong == nothing) return nothing;
  if (!destination.wrong.empty() || !source.wrong.empty()) return {GPUMEM_ERROR_INVALID_ARGUMENT};
  if (share_bytes(destination, copy.target, source, copy.origin)) return {GPUMEM_ERROR_INVALID_ARGUMENT};
  const bool to_device = copy.direction == GPUMEM_DIRECTION_HOST_TO_DEVICE ||
                         copy.direction == GPUMEM_DIRECTION_DEVICE_TO_DEVICE;
  const bool from_device = copy.direction == GPUMEM_DIRECTION_DEVICE_TO_HOST ||
                           copy.direction == GPUMEM_DIRECTION_DEVICE_TO_DEVICE;
  // Managed memory is on either side.
  const auto fits = [](const Found& found, bool device_side) {
    return found.kind == GPUMEM_KIND_MANAGED || found.on_device == device_side;
  };
  if (copy.direction != GPUMEM_DIRECTION_INFER &&
      !(fits(destination, to_device) && fits(source, from_device))) {
    return {GPUMEM_ERROR_INVALID_ARGUMENT};
  }
  bool read_on_device = source.on_device;
  if (source.kind == GPUMEM_KIND_MANAGED) {
    read_on_device =
        copy.direction == GPUMEM_DIRECTION_INFER ? !prefers_host(source, copy.from_extent) : from_device;
  }
  const auto lost = [&](const Found& found) {
    return found.memory >= 0 && model_.lost(memory_of(found).device);
  };
  if (copy.source_order == GPUMEM_SOURCE_ORDER_ANY) {
    // A lost device does not say any more where its managed memory is preferred.
    const bool unknown = source.kind == GPUMEM_KIND_MANAGED && copy.direction == GPUMEM_DIRECTION_INFER &&
                         lost(source) && !read_on_device;
    if (unknown) return {GPUMEM_ERROR_DEVICE_LOST, GPUMEM_ERROR_INVALID_ARGUMENT};
    if (read_on_device) return {GPUMEM_ERROR_INVALID_ARGUMENT};
  }
  if (lost(destination) || lost(source)) return {GPUMEM_ERROR_DEVICE_LOST};
  if (place.stream >= 0) {
    const Expect unusable = model_.usable(stream(place.stream));
    if (!unusable.empty()) return unusable;
  } else if (destination.memory < 0 && source.memory < 0 &&
             model_.lost(instance(place.instance).devices.front())) {
    return {GPUMEM_ERROR_DEVICE_LOST};  // ordinary memory is copied by the first device
  }
  if (!destination.writable) return {GPUMEM_ERROR_NO_ACCESS};
  return {};
}

bool Player::order_copy(int queue, const Copy& copy) {
  if (!model_.on_host) open_gates();  // the driver may wait
  const Found& destination = copy.destination;
  const Found& source = copy.source;
  const int reader = copy.source_order == GPUMEM_SOURCE_ORDER_STREAM ? queue : -1;
  if (!order(queue, destination.region, destination.at, destination.at + copy.to_extent, true)) return false;
  // Read before its turn: nothing pending may write it.
  if (reader < 0 && queue >= 0) {
    const auto accesses = region(source.region).accesses;
    for (const Access& access : accesses) {
      if (access.write && !model_.is_observed(access.line, access.number) && !wait_for(access.line))
        return false;
    }
  }
  return order(reader, source.region, source.at, source.at + copy.from_extent, false);
}

void Player::did_copy(int queue, const Copy& copy) {
  if (queue >= 0) {
    model_.enqueue(queue);
    enqueue_access(queue, copy.destination, copy.to_extent, true);
    const bool read_already = copy.source_order == GPUMEM_SOURCE_ORDER_DURING_CALL;
    if (!read_already) enqueue_access(queue, copy.source, copy.from_extent, false);
  }
  const std::vector<uint64_t> to = copy.target.starts();
  const std::vector<uint64_t> from = copy.origin.starts();
  const Region& read = region(copy.source.region);
  Region& written = region(copy.destination.region);
  for (size_t row = 0; row < to.size(); ++row) {
    const uint64_t into = copy.destination.at + to[row];
    const uint64_t at = copy.source.at + from[row];
    std::memcpy(written.bytes.data() + into, read.bytes.data() + at, copy.target.width);
    std::memcpy(written.known.data() + into, read.known.data() + at, copy.target.width);
  }
}

void Player::do_copy(Choice& choice, bool plane, bool async) {
  constexpr const char* kNames[] = {"gpumem_copy", "gpumem_copy_async", "gpumem_copy_2d",
                                    "gpumem_copy_2d_async"};
  Call call(*this, choice, kNames[2 * plane + async]);
  const Place place = pick_place(choice, async);
  if (place.stream >= 0 && model_.captured(stream(place.stream))) return;
  const int home = std::max(place.instance, 0);
  const Address to = pick_address(choice, home);
  const Address from = pick_other_end(choice, home, to);
  Copy copy;
  Rows& target = copy.target;
  Rows& origin = copy.origin;
  target.width = pick_length(choice, std::min(to.left, from.left));
  const uint8_t shape = choice.byte();
  const uint8_t more = choice.byte();
  Sized<gpumem_copy_options> copying(choice, GPUMEM_COPY_OPTIONS_INIT,
                                     Sized<gpumem_copy_options>::Null::kGood);
  origin = target;
  if (plane) {
    constexpr uint64_t kGaps[] = {0, 1, 8, 24, 56};
    constexpr uint64_t kHeights[] = {0, uint64_t{1} << 62, UINT64_MAX};
    origin.height = target.height = shape < kWrong ? 1 + shape % 4 : kHeights[shape % std::size(kHeights)];
    if ((target.width <= kLongestRow || model_.large) && more < kWrong)
      target.width = origin.width = std::max<uint64_t>(target.width / 4, target.width != 0);
    target.pitch = target.width + kGaps[more % std::size(kGaps)];
    origin.pitch = origin.width + kGaps[more / 5 % std::size(kGaps)];
    const uint64_t pitches[] = {target.width - 1, uint64_t{1} << 40, kTooLarge};
    if (more >= kWrong) (more % 2 == 0 ? target : origin).pitch = pitches[more / 2 % std::size(pitches)];
  } else {
    target.pitch = origin.pitch = target.width;
  }
  constexpr gpumem_direction kNoDirections[] = {5, -1, INT32_MAX};
  constexpr gpumem_source_order kNoOrders[] = {3, -1, INT32_MIN};
  const uint8_t direction = choice.byte();
  const uint8_t order = choice.byte();
  copying->direction =
      direction >= kWrong ? kNoDirections[direction % 3] : (direction % 16 == 15 ? shape % 5 : 0);
  copying->source_order = order >= kWrong ? kNoOrders[order % 3] : (order % 8 == 7 ? 1 + more % 2 : 0);
  if (!copying.is_null()) {
    copy.direction = copying->direction;
    copy.source_order = copying->source_order;
  }

  Verdict verdict;
  verdict.handle(place.wrong);
  const bool fits =
      target.extent(to.pointer, &copy.to_extent) && origin.extent(from.pointer, &copy.from_extent);
  verdict.require(copying.good() && copy.direction >= 0 && copy.direction <= 4 && copy.source_order >= 0 &&
                  copy.source_order <= 2);
  verdict.require(fits && (target.empty() || (to.pointer != nullptr && from.pointer != nullptr)));
  Expect expect = verdict.done();
  if (expect.empty() && target.empty()) expect = {GPUMEM_SUCCESS};
  const bool works = expect.empty();
  if (works) {
    copy.destination = model_.find(place.instance, to.pointer, copy.to_extent);
    copy.source = model_.find(place.instance, from.pointer, copy.from_extent);
    if (copy.destination.avoid || copy.source.avoid) return;
    expect = predict_copy(place, copy);
    // Ordinary memory is copied to ordinary memory without the backend when the call waits.
    const bool by_backend = async || copy.destination.memory >= 0 || copy.source.memory >= 0;
    if (expect.empty() && plane && by_backend && instance(place.instance).lacks("copy_2d")) {
      // Rows without gaps, or a single one, may or may not need the missing entry point.
      expect = {GPUMEM_ERROR_SYMBOL_MISSING};
      if (target.height == 1 || (target.pitch == target.width && origin.pitch == origin.width))
        expect = {GPUMEM_SUCCESS, GPUMEM_ERROR_SYMBOL_MISSING};
    }
    if (expect.empty() || expect.front() == GPUMEM_SUCCESS) {
      if (!order_copy(place.line, copy)) return;
      if (expect.empty()) expect = {GPUMEM_SUCCESS};
    }
    expect = with_faults(expect, place.instance);
  }
  call.text("%s, %s, %s, %llu x %llu, pitches %llu and %llu, %s{direction %d, order %d}",
            place.picked.text.c_str(), to.text.c_str(), from.text.c_str(),
            static_cast<unsigned long long>(target.width), static_cast<unsigned long long>(target.height),
            static_cast<unsigned long long>(target.pitch), static_cast<unsigned long long>(origin.pitch),
            copying.text().c_str(), copy.direction, copy.source_order);
  const auto owner = as<gpumem_instance>(place.picked.value);
  const auto in = as<gpumem_stream>(place.picked.value);
  const auto run = [&] {
    if (plane && async) {
      return gpumem_copy_2d_async(in, to.pointer, target.pitch, from.pointer, origin.pitch, target.width,
                                  target.height, copying.pointer(), call.error());
    }
    if (plane) {
      return gpumem_copy_2d(owner, to.pointer, target.pitch, from.pointer, origin.pitch, target.width,
                            target.height, copying.pointer(), call.error());
    }
    return async
               ? gpumem_copy_async(in, to.pointer, from.pointer, target.width, copying.pointer(),
                                   call.error())
               : gpumem_copy(owner, to.pointer, from.pointer, target.width, copying.pointer(), call.error());
  };
  const gpumem_status status = call.check(expect, run());
  if (status == GPUMEM_SUCCESS && works) did_copy(place.line, copy);
}

void Player::step_copy(Choice& choice) { do_copy(choice, false, false); }
void Player::step_copy_async(Choice& choice) { do_copy(choice, false, true); }
void Player::step_copy_2d(Choice& choice) { do_copy(choice, true, false); }
void Player::step_copy_2d_async(Choice& choice) { do_copy(choice, true, true); }

// ---- batches ----

// What can be wrong with one entry besides its boxes.
void Player::spoil_entry(Entry& entry, uint8_t way, const Place& place, bool first, Verdict& verdict) {
  if (!verdict.done().empty()) return;  // one mistake is enough
  gpumem_copy_region& region = entry.region;
  const bool empty = region.width == 0;  // then only the choices count
  const auto memory_of_source = [&](uint64_t handle) {
    region.source = {};
    region.source.memory = as<gpumem_memory>(handle);
  };
  const auto any = [&](const auto& list, auto fits) -> uint64_t {
    for (const auto& object : list)
      if (fits(object)) return object.handle;
    return 0;
  };
  const auto is_gone = [&](const Memory& each) { return !model_.gone(each).empty(); };
  const auto is_theirs = [&](const Memory& each) {
    return each.life == Life::kLive && each.instance != place.instance;
  };
  bool wrong = !empty;
  switch (way % 13) {
    case 0:
      region.destination.memory = nullptr;
      region.destination.pointer = nullptr;
      break;
    case 1:
      memory_of_source(0);
      break;
    case 2:
      region.destination.memory = as<gpumem_memory>(1);
      region.destination.pointer = model_.arena.writable();
      break;
    case 3:
      memory_of_source(0x1234);
      break;
    case 4:
      memory_of_source(handle_of_another_type("memory", way));
      break;
    case 5:
      memory_of_source(0);
      region.source.pointer = model_.arena.writable();
      region.source.offset = 1;
      break;
    case 6: {
      const auto gone = std::find_if(model_.memories.begin(), model_.memories.end(), is_gone);
      if (gone == model_.memories.end()) return;
      memory_of_source(gone->handle);
      if (!empty) verdict.handle(model_.gone(*gone));
      return;
    }
    case 7: {
      const uint64_t theirs = any(model_.memories, is_theirs);
      if (theirs == 0) return;
      memory_of_source(theirs);
      wrong = wrong && place.wrong.empty();
      break;
    }
    case 8:
      if (region.source.memory == nullptr) return;
      region.source.offset = way % 2 == 0 ? UINT64_MAX : uint64_t{1} << 40;
      entry.beyond = !empty;
      return;
    case 9:
      region.direction = way % 2 == 0 ? 5 : -1;
      wrong = true;
      break;
    case 10:
      region.source_order = way % 2 == 0 ? 3 : -1;
      wrong = true;
      break;
    case 11:
      if (first) return;  // what it has is the distance between all
      region.struct_size -= 8;
      wrong = true;
      break;
    default:
      region.height = UINT64_MAX;
      break;
  }
  verdict.require(!wrong);
}

// A box, each side by its pointer or by its memory and an offset.
Player::Entry Player::pick_entry(Choice& choice, const Place& place, bool first) {
  const int home = std::max(place.instance, 0);
  const Address to = pick_address(choice, home);
  const Address from = pick_other_end(choice, home, to);
  const uint64_t length = pick_length(choice, std::min(to.left, from.left));
  const uint8_t shape = choice.byte();
  const uint8_t sides = choice.byte();
  Entry entry;
  Copy& copy = entry.copy;
  copy.target.width = length;
  if ((length <= kLongestRow || model_.large) && shape >= 60)
    copy.target.width = std::max<uint64_t>(length / 8, length != 0);
  const uint64_t height = shape < 60 ? 0 : shape % 4;
  const uint64_t depth = shape < 60 ? 0 : shape / 4 % 3;
  copy.target.height = std::max<uint64_t>(height, 1);
  copy.target.depth = std::max<uint64_t>(depth, 1);
  copy.origin = copy.target;
  constexpr uint64_t kGaps[] = {0, 0, 1, 8, 24};
  gpumem_copy_region& region = entry.region;
  region = GPUMEM_COPY_REGION_INIT;
  region.width = copy.target.width;
  region.height = height;
  region.depth = depth;
  region.source_order = copy.source_order = sides < kWrong ? sides / 32 % 3 : 0;
  bool fits = true;
  const auto set_up = [&](gpumem_copy_operand& operand, Rows& rows, const Address& at, uint8_t bits,
                          uint64_t* extent) {
    // Pitches that are left out are packed.
    const uint64_t gap = kGaps[bits % std::size(kGaps)];
    rows.pitch = rows.width + gap;
    operand.row_pitch = gap == 0 ? 0 : rows.pitch;
    uint64_t slice = 0;
    if (__builtin_mul_overflow(rows.pitch, rows.height, &slice)) slice = UINT64_MAX;
    rows.slice_pitch = slice == UINT64_MAX ? slice : slice + gap;
    operand.slice_pitch = gap == 0 ? 0 : rows.slice_pitch;
    if (shape >= kWrong && rows.width > 1) {
      // Below a row or a slice, or beyond all memory.
      uint64_t& pitch = shape % 2 == 0 ? rows.pitch : rows.slice_pitch;
      pitch = shape % 3 == 0 ? kTooLarge : rows.width - 1;
      operand.row_pitch = rows.pitch;
      operand.slice_pitch = rows.slice_pitch;
    }
    operand.pointer = at.pointer;
    fits = rows.extent(at.pointer, extent) && fits && at.pointer != nullptr;
    if (!place.wrong.empty() || bits % 2 == 0 || at.pointer == nullptr) return;
    // By the memory, where one is there.
    const Found found = model_.find(place.instance, at.pointer, 1);
    if (found.memory < 0 || found.kind == GPUMEM_KIND_FOREIGN || found.avoid || !found.wrong.empty()) return;
    operand.pointer = nullptr;
    operand.memory = as<gpumem_memory>(memory(found.memory).handle);
    operand.offset = found.offset;
  };
  set_up(region.destination, copy.target, to, sides, &copy.to_extent);
  set_up(region.source, copy.origin, from, static_cast<uint8_t>(sides >> 3 | sides << 5), &copy.from_extent);
  Verdict verdict;
  verdict.require(fits || !entry.has_bytes());
  if (sides >= kWrong) spoil_entry(entry, static_cast<uint8_t>(sides - kWrong), place, first, verdict);
  entry.wrong = verdict.done();
  entry.text = " {" + to.text + ", " + from.text + ", " + std::to_string(region.width) + " x " +
               std::to_string(height) + " x " + std::to_string(depth) + ", sides " + std::to_string(sides) +
               "}";
  if (entry.has_bytes() && entry.wrong.empty() && place.wrong.empty()) {
    copy.destination = model_.find(place.instance, to.pointer, copy.to_extent);
    copy.source = model_.find(place.instance, from.pointer, copy.from_extent);
    if (entry.beyond) copy.source.wrong = {GPUMEM_ERROR_INVALID_ARGUMENT};
  }
  return entry;
}

void Player::do_copy_regions(Choice& choice, bool async) {
  Call call(*this, choice, async ? "gpumem_copy_regions_async" : "gpumem_copy_regions");
  const Place place = pick_place(choice, async);
  if (place.stream >= 0 && model_.captured(stream(place.stream))) return;
  const uint8_t how = choice.byte();
  constexpr uint64_t kCounts[] = {0, UINT64_MAX, UINT64_MAX / 2};
  const uint64_t count = how < kWrong ? 1 + how % 4 : kCounts[how % std::size(kCounts)];
  // The struct_size of the first is the distance between them.
  Sized<gpumem_copy_region> model(
      choice, GPUMEM_COPY_REGION_INIT,
      count == 0 ? Sized<gpumem_copy_region>::Null::kGood : Sized<gpumem_copy_region>::Null::kBad);
  // A distance that no caller has is refused with the first of them.
  uint64_t whole = 0;
  const bool wraps =
      model->struct_size <= sizeof model.whole() &&
      (__builtin_mul_overflow(model->struct_size, count, &whole) || whole > UINT64_MAX / 2 + 1);
  const bool on_default = place.line >= 0 && std::find(default_lines_.begin(), default_lines_.end(),
                                                       place.line) != default_lines_.end();
  Verdict verdict;
  verdict.handle(place.wrong);
  if (count > 0) verdict.require(!model.is_null() && !wraps && !on_default);
  const bool good_call = verdict.done().empty();
  const size_t stride = model.is_newer() ? sizeof model.whole() : sizeof(gpumem_copy_region);
  uint64_t failing = UINT64_MAX;  // the entry that is expected to be named
  std::vector<Entry> entries;
  std::vector<uint8_t> array;
  std::string text;
  for (uint64_t index = 0; index < (how < kWrong || count == 0 ? count : 1); ++index) {
    const bool first = index == 0;
    Entry entry = pick_entry(choice, place, first);
    text += entry.text;
    if (first && !model.good() && !model.is_null()) entry.wrong = {GPUMEM_ERROR_INVALID_ARGUMENT};
    // Of a call that is wrong in itself, the first entry is looked at.
    const bool looked_at = good_call ? failing == UINT64_MAX : first && !model.is_null();
    if (!entry.wrong.empty() && looked_at) {
      verdict.handle(entry.wrong);
      if (good_call) failing = index;
    }
    if (entry.copy.destination.avoid || entry.copy.source.avoid) return;
    const auto append = [&](const void* bytes, size_t size) {
      array.insert(array.end(), static_cast<const uint8_t*>(bytes),
                   static_cast<const uint8_t*>(bytes) + size);
    };
    if (first || entry.region.struct_size == sizeof entry.region)
      entry.region.struct_size = model->struct_size;
    append(&entry.region, sizeof entry.region);
    if (stride > sizeof entry.region) append(&model.whole().unknown, stride - sizeof entry.region);
    entries.push_back(std::move(entry));
  }
  Expect expect = verdict.done();
  const bool works = expect.empty();
  if (works) {
    for (uint64_t index = 0; index < count && expect.empty(); ++index) {
      if (!entries[index].has_bytes()) continue;
      expect = predict_copy(place, entries[index].copy);
      if (!expect.empty()) failing = index;
    }
    // The entries have no order among themselves, so none may write what another touches.
    for (uint64_t index = 1; index < count && expect.empty(); ++index) {
      for (uint64_t before = 0; before < index && expect.empty(); ++before) {
        if (!entries[index].has_bytes() || !entries[before].has_bytes()) continue;
        if (!depend(entries[index].copy, entries[before].copy)) continue;
        expect = {GPUMEM_ERROR_INVALID_ARGUMENT};
        failing = index;
      }
    }
    if (expect.empty()) {
      // Whether rows without gaps need the missing entry point is open.
      if (instance(place.instance).lacks("copy_2d")) return;
      for (const Entry& entry : entries) {
        if (entry.has_bytes() && !order_copy(place.line, entry.copy)) return;
      }
      // What waiting has changed cannot make the copies fail.
      expect = {GPUMEM_SUCCESS};
      if (std::any_of(entries.begin(), entries.end(), [](const Entry& entry) { return entry.has_bytes(); }))
        expect = with_faults(expect, place.instance);
    }
  }
  Out<uint64_t> failed(choice, Out<uint64_t>::Null::kGood);
  call.text("%s, %s, %llu, %s%s", place.picked.text.c_str(), model.text().c_str(),
            static_cast<unsigned long long>(count), failed.text(), text.c_str());
  const auto* const given =
      model.is_null() ? nullptr : reinterpret_cast<const gpumem_copy_region*>(array.data());
  const gpumem_status status =
      call.check(expect, async ? gpumem_copy_regions_async(as<gpumem_stream>(place.picked.value), given,
                                                           count, failed.pointer(), call.error())
                               : gpumem_copy_regions(as<gpumem_instance>(place.picked.value), given, count,
                                                     failed.pointer(), call.error()));
  const bool by_fault = works && failing == UINT64_MAX && status != GPUMEM_SUCCESS;
  if (!failed.is_null() && !call.refused_error()) {
    if (failing != UINT64_MAX) {
      require(!failed.untouched() && failed.get() == failing, "another region is named as the failing one");
    } else if (by_fault) {
      require(!failed.untouched() && failed.get() < count, "no region is named as the failing one");
    } else {
      require(failed.untouched(), "a region is named as failing, but none has");
    }
  }
  if (!works || call.refused_error()) return;
  if (status != GPUMEM_SUCCESS && !by_fault) return;
  // Which ones were done is not known if nobody asked.
  const uint64_t done = status == GPUMEM_SUCCESS ? count : (failed.is_null() ? 0 : failed.get());
  for (uint64_t entry = 0; entry < count; ++entry) {
    if (!entries[entry].has_bytes()) continue;
    if (entry > done && !failed.is_null()) break;
    if (entry < done) {
      did_copy(place.line, entries[entry].copy);
      continue;
    }
    // It may have been done in part.
    const Copy& partial = entries[entry].copy;
    Region& written = region(partial.destination.region);
    for (uint64_t i = 0; i < partial.to_extent; ++i)
      written.known[partial.destination.at + i] = false;
    if (place.line < 0) continue;
    // Where some of its parts were enqueued, the stream was waited for.
    const uint64_t number = model_.enqueue(place.line);
    model_.lines[static_cast<size_t>(place.line)].polled = number;
    const auto touched = [&](const Found& found, uint64_t extent, bool write) {
      model_.add_access(found.region, {place.line, number, found.at, found.at + extent, write});
      if (found.memory >= 0) memory_of(found).uses.push_back({place.line, number, false});
    };
    touched(partial.destination, partial.to_extent, true);
    touched(partial.source, partial.from_extent, false);
  }
}

void Player::step_copy_regions(Choice& choice) { do_copy_regions(choice, false); }
void Player::step_copy_regions_async(Choice& choice) { do_copy_regions(choice, true); }

void Player::do_fill(Choice& choice, bool plane, bool async) {
  constexpr const char* kNames[] = {"gpumem_fill", "gpumem_fill_async", "gpumem_fill_2d",
                                    "gpumem_fill_2d_async"};
  Call call(*this, choice, kNames[2 * plane + async]);
  const Place place = pick_place(choice, async);
  if (place.stream >= 0 && model_.captured(stream(place.stream))) return;
  const Address to = pick_address(choice, std::max(place.instance, 0));
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
    constexpr uint64_t kHeights[] = {0, uint64_t{1} << 62, UINT64_MAX};
    target.height = shape < kWrong ? 1 + shape % 4 : kHeights[shape % std::size(kHeights)];
    if (target.width <= kLongestRow && more < kWrong)
      target.width = std::max<uint64_t>(target.width / 16 * 4, target.width != 0);
    target.pitch = target.width + kGaps[more % std::size(kGaps)];
    const uint64_t pitches[] = {target.width - 1, uint64_t{1} << 40, kTooLarge, target.width + 2};
    if (more >= kWrong) target.pitch = pitches[more % std::size(pitches)];
  } else {
    target.pitch = target.width;
  }
  Verdict verdict;
  verdict.handle(place.wrong);
  const bool known_unit = unit == 1 || unit == 2 || unit == 4;
  verdict.require(known_unit);
  uint64_t extent = 0;
  verdict.require(target.extent(to.pointer, &extent));
  if (!target.empty()) {
    verdict.require(to.pointer != nullptr);
    if (known_unit) {
      verdict.require(reinterpret_cast<uintptr_t>(to.pointer) % unit == 0 && target.width % unit == 0 &&
                      target.pitch % unit == 0);
    }
  }
  Expect expect = verdict.done();
  if (expect.empty() && target.empty()) expect = {GPUMEM_SUCCESS};
  const bool works = expect.empty();
  Found destination;
  if (works) {
    destination = model_.find(place.instance, to.pointer, extent);
    if (destination.avoid) return;
    expect = destination.wrong;
    const bool lost = destination.memory >= 0 && model_.lost(memory_of(destination).device);
    if (expect.empty() && lost) expect = {GPUMEM_ERROR_DEVICE_LOST};
    if (expect.empty() && place.stream >= 0) expect = model_.usable(stream(place.stream));
    if (expect.empty() && place.stream < 0 && destination.memory < 0 &&
        model_.lost(instance(place.instance).devices.front())) {
      expect = {GPUMEM_ERROR_DEVICE_LOST};
    }
    if (expect.empty() && !destination.writable) expect = {GPUMEM_ERROR_NO_ACCESS};
    if (expect.empty() && plane && instance(place.instance).lacks("fill_2d")) {
      expect = {GPUMEM_ERROR_SYMBOL_MISSING};
      if (target.height == 1 || target.pitch == target.width)
        expect = {GPUMEM_SUCCESS, GPUMEM_ERROR_SYMBOL_MISSING};
    }
    if (expect.empty() || expect.front() == GPUMEM_SUCCESS) {
      if (!model_.on_host) open_gates();  // pageable memory is filled after a wait
      if (!order(place.line, destination.region, destination.at, destination.at + extent, true)) return;
      if (expect.empty()) expect = {GPUMEM_SUCCESS};
    }
    expect = with_faults(expect, place.instance);
  }
  call.text("%s, %s, pitch %llu, %llu x %llu, 0x%x, %u", place.picked.text.c_str(), to.text.c_str(),
            static_cast<unsigned long long>(target.pitch), static_cast<unsigned long long>(target.width),
            static_cast<unsigned long long>(target.height), value, unit);
  const auto owner = as<gpumem_instance>(place.picked.value);
  const auto in = as<gpumem_stream>(place.picked.value);
  const auto run = [&] {
    if (plane && async) {
      return gpumem_fill_2d_async(in, to.pointer, target.pitch, target.width, target.height, value, unit,
                                  call.error());
    }
    if (plane) {
      return gpumem_fill_2d(owner, to.pointer, target.pitch, target.width, target.height, value, unit,
                            call.error());
    }
    return async ? gpumem_fill_async(in, to.pointer, target.width, value, unit, call.error())
                 : gpumem_fill(owner, to.pointer, target.width, value, unit, call.error());
  };
  const gpumem_status status = call.check(expect, run());
  if (status != GPUMEM_SUCCESS || !works) return;
  if (place.line >= 0) {
    model_.enqueue(place.line);
    enqueue_access(place.line, destination, extent, true);
  }
  Region& written = region(destination.region);
  for (uint64_t row = 0; row < target.height; ++row) {
    uint8_t* const bytes = written.bytes.data() + destination.at + row * target.pitch;
    for (uint64_t i = 0; i < target.width; ++i)
      bytes[i] = static_cast<uint8_t>(value >> 8 * (i % unit));
    std::memset(written.known.data() + destination.at + row * target.pitch, 1, target.width);
  }
}

void Player::step_fill(Choice& choice) { do_fill(choice, false, false); }
void Player::step_fill_async(Choice& choice) { do_fill(choice, false, true); }
void Player::step_fill_2d(Choice& choice) { do_fill(choice, true, false); }
void Player::step_fill_2d_async(Choice& choice) { do_fill(choice, true, true); }

// ---- files ----

namespace {

constexpr uint64_t kMarked = uint64_t{1} << 20;  // bytes of the file that are no zeros
constexpr uint8_t kMark = 0x5A;

// Longer than all memory, and mostly holes.
int long_file() {
  static const int file = [] {
    const int made = memfd_create("sequences", MFD_CLOEXEC);
    const std::vector<uint8_t> marks(kMarked, kMark);
    const bool good = ftruncate(made, off_t{1} << 40) == 0 &&
                      pwrite(made, marks.data(), kMarked, 0) == static_cast<ssize_t>(kMarked);
    return good ? made : -1;
  }();
  return file;
}
// For what is written.
int other_file() {
  static const int file = memfd_create("sequences", MFD_CLOEXEC);
  return file;
}

}  // namespace

void Player::step_copy_file(Choice& choice) {
  Call call(*this, choice, "gpumem_copy_file");
  const Place place = pick_place(choice, false);
  const Address at = pick_address(choice, std::max(place.instance, 0));
  const uint64_t size = pick_length(choice, at.left);
  const uint8_t offset = choice.byte();
  const uint8_t way = choice.byte();
  const uint8_t how = choice.byte();
  const bool writes_file = way % 4 == 3;
  constexpr uint64_t kOffsets[] = {0, 1, 4096, 5000, kMarked - 3};
  constexpr uint64_t kNoOffsets[] = {UINT64_MAX, (uint64_t{1} << 63) - 1, uint64_t{1} << 63};
  Sized<gpumem_copy_file_desc> desc(choice, GPUMEM_COPY_FILE_DESC_INIT,
                                    Sized<gpumem_copy_file_desc>::Null::kBad);
  Sized<gpumem_copy_file_info> info(choice, GPUMEM_COPY_FILE_INFO_INIT,
                                    Sized<gpumem_copy_file_info>::Null::kGood, kAnswer);
  desc->file_descriptor = how < kWrong ? (writes_file ? other_file() : long_file()) : -1;
  desc->direction =
      way >= kWrong ? 2 : (writes_file ? GPUMEM_FILE_DIRECTION_FROM_MEMORY : GPUMEM_FILE_DIRECTION_TO_MEMORY);
  desc->file_offset =
      offset < kWrong ? kOffsets[offset % std::size(kOffsets)] : kNoOffsets[offset % std::size(kNoOffsets)];
  desc->pointer = at.pointer;
  desc->size = size;
  desc->prefer = how % 16 == 15 ? uint64_t{4} : how % 2 == 1 ? GPUMEM_FILE_DIRECT : 0;
  Rows rows;
  rows.width = rows.pitch = size;
  uint64_t extent = 0;
  Verdict verdict;
  verdict.handle(place.wrong);
  verdict.require(desc.good() && info.good() && way < kWrong && desc->prefer != 4);
  verdict.require(rows.extent(at.pointer, &extent) && (size == 0 || at.pointer != nullptr));
  constexpr uint64_t kMost = (uint64_t{1} << 63) - 1;
  verdict.require(size > kMost || desc->file_offset <= kMost - size);
  Expect expect = verdict.done();
  if (expect.empty() && size == 0) expect = {GPUMEM_SUCCESS};
  if (expect.empty() && how >= kWrong) expect = {GPUMEM_ERROR_INVALID_ARGUMENT};
  const bool works = expect.empty();
  Found memory;
  if (works) {
    memory = model_.find(place.instance, at.pointer, extent);
    // Which side accesses managed memory is what the copies are asked.
    if (memory.avoid || memory.kind == GPUMEM_KIND_MANAGED) return;
    expect = memory.wrong;
    const bool lost = memory.memory >= 0 ? model_.lost(memory_of(memory).device)
                                         : model_.lost(instance(place.instance).devices.front());
    if (expect.empty() && lost) expect = {GPUMEM_ERROR_DEVICE_LOST};
    if (expect.empty() && !writes_file && !memory.writable) expect = {GPUMEM_ERROR_NO_ACCESS};
    if (expect.empty()) {
      if (!model_.on_host) open_gates();
      if (!order(place.line, memory.region, memory.at, memory.at + extent, !writes_file)) return;
      expect = {GPUMEM_SUCCESS};
    }
    expect = with_faults(expect, place.instance);
  }
  call.text("%s, %s, %llu bytes at %llu, %s, %s{direction %d, descriptor %d, prefer %llu}",
            place.picked.text.c_str(), at.text.c_str(), static_cast<unsigned long long>(size),
            static_cast<unsigned long long>(desc->file_offset), info.text().c_str(), desc.text().c_str(),
            desc->direction, desc->file_descriptor, static_cast<unsigned long long>(desc->prefer));
  const gpumem_status status =
      call.check(expect, gpumem_copy_file(as<gpumem_instance>(place.picked.value), desc.pointer(),
                                          info.pointer(), call.error()));
  const bool done = status == GPUMEM_SUCCESS && !call.refused_error();
  if (!works && !done) require(info.untouched(), "a refused call has written its answer");
  if (done && !info.is_null())
    require(info->copied == size && info->direct <= size, "it tells of other bytes");
  if (!works || writes_file || memory.region < 0 || call.refused_error()) return;
  if (status != GPUMEM_SUCCESS && std::find(expect.begin(), expect.end(), GPUMEM_SUCCESS) == expect.end())
    return;
  Region& written = region(memory.region);
  const uint64_t marked = std::min(size, kMarked - std::min(kMarked, desc->file_offset));
  std::memset(written.bytes.data() + memory.at, kMark, marked);
  std::memset(written.bytes.data() + memory.at + marked, 0, size - marked);
  // A failure may come midway.
  std::memset(written.known.data() + memory.at, status == GPUMEM_SUCCESS ? 1 : 0, size);
}

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
    // The device is lost when the kernel has returned, not when it hears of it.
    const gpumem_status end =
        gpumem_stream_synchronize(as<gpumem_stream>(chosen.value), GPUMEM_TIMEOUT_INFINITE, nullptr);
    require(end == GPUMEM_ERROR_DEVICE_LOST,
            std::string("gpumem_stream_synchronize: expected GPUMEM_ERROR_DEVICE_LOST, got ") +
                gpumem_status_name(end));
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
