// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Steps on instances and devices, on what the library says of itself, and on what only the host backend has.
#include <atomic>

#include "player.h"

namespace sequences {
namespace {

constexpr uint64_t kDeviceBytes = 1 << 20;
constexpr uint64_t kGranularity = 1 << 16;

void count_line(void* user_data, gpumem_log_level, const char*) {
  static_cast<std::atomic<uint64_t>*>(user_data)->fetch_add(1);
}
std::atomic<uint64_t> logged_lines{0};

// How many entries a list of the library has.
template <class T>
uint32_t length_of(gpumem_status (*enumerate)(uint32_t, T*, gpumem_error*)) {
  uint32_t count = 0;
  T entry{};
  while (enumerate(count, &entry, nullptr) == GPUMEM_SUCCESS)
    ++count;
  return count;
}

// What can be wrong with the options of an open call, and who looks at it.
enum class Reader { kLibrary, kHost, kCuda };
struct OpenArguments {
  gpumem_instance_desc& desc;
  gpumem_host_options& host;
  gpumem_cuda_options& cuda;
};
struct BadOption {
  Reader reader;
  void (*spoil)(OpenArguments given);
};

void* const kNoContexts[1] = {nullptr};

#define SEQUENCES_HOST(field, value)                                     \
  {                                                                      \
    Reader::kHost, [](OpenArguments given) { given.host.field = value; } \
  }
constexpr BadOption kBadOptions[] = {
    {Reader::kLibrary, [](OpenArguments given) { given.desc.backend = 3; }},
    {Reader::kLibrary, [](OpenArguments given) { given.desc.backend = -1; }},
    {Reader::kLibrary,
     [](OpenArguments given) {
       given.desc.name = "a name of an instance that takes 64 bytes, which is one too many";
     }},
    // ANY may open either backend, so it looks at the options of both.
    {Reader::kLibrary,
     [](OpenArguments given) {
       given.desc.backend = GPUMEM_BACKEND_ANY;
       given.host.struct_size = SIZE_MAX;
     }},
    {Reader::kLibrary,
     [](OpenArguments given) {
       given.desc.backend = GPUMEM_BACKEND_ANY;
       given.cuda.struct_size = SIZE_MAX;
     }},
    {Reader::kCuda, [](OpenArguments given) { given.cuda.context_count = 1; }},
    {Reader::kCuda, [](OpenArguments given) { given.cuda.contexts = kNoContexts; }},
    {Reader::kCuda,
     [](OpenArguments given) {
       given.cuda.contexts = kNoContexts;
       given.cuda.context_count = 65;
     }},
    {Reader::kCuda,
     [](OpenArguments given) {
       given.cuda.contexts = kNoContexts;
       given.cuda.context_count = UINT64_MAX;
     }},
    SEQUENCES_HOST(device_count, 65),
    SEQUENCES_HOST(strict, 3),
    SEQUENCES_HOST(pageable, -1),
    SEQUENCES_HOST(same_pointer, 9),
    SEQUENCES_HOST(fill, 3),
    SEQUENCES_HOST(concurrent, 3),
    SEQUENCES_HOST(device_bytes, 4096),  // below a granule
    SEQUENCES_HOST(device_bytes, uint64_t{1} << 63),
    SEQUENCES_HOST(granularity, 3),
    SEQUENCES_HOST(granularity, 256),
    SEQUENCES_HOST(granularity, 3 << 20),
    SEQUENCES_HOST(granularity, uint64_t{2} << 30),
    SEQUENCES_HOST(lock_mode, 4),
    SEQUENCES_HOST(lock_mode, -1),
    SEQUENCES_HOST(numa_nodes, 65),
    SEQUENCES_HOST(compressible, 3),
    SEQUENCES_HOST(vmm_granularity, 100),
    SEQUENCES_HOST(vmm_granularity, uint64_t{2} << 30),
    SEQUENCES_HOST(lock_piece, 100),
    SEQUENCES_HOST(peers, "some"),
    SEQUENCES_HOST(peers, "0>9"),
    SEQUENCES_HOST(peers, "1>1"),
    SEQUENCES_HOST(peers, "0>1,0>"),
    SEQUENCES_HOST(masked, "no_such_thing"),
};
#undef SEQUENCES_HOST

}  // namespace

// ---- instances ----

// How a byte sets up an instance of the host backend.
int Player::open(Choice& choice, uint8_t setup, bool must) {
  constexpr const char* kMasks[] = {
      "launch_host_function", "write_value", "wait_value", "register", "copy_2d", "fill_2d", "peer_access"};
  Call call(*this, choice, "gpumem_instance_open");
  Out<gpumem_instance> out(choice);
  Sized<gpumem_instance_desc> desc(choice, GPUMEM_INSTANCE_DESC_INIT,
                                   Sized<gpumem_instance_desc>::Null::kGood);
  Sized<gpumem_host_options> host(choice, GPUMEM_HOST_OPTIONS_INIT, Sized<gpumem_host_options>::Null::kGood);
  Sized<gpumem_cuda_options> cuda(choice, GPUMEM_CUDA_OPTIONS_INIT, Sized<gpumem_cuda_options>::Null::kGood);
  const uint8_t wrong = choice.byte();
  desc->backend = model_.on_host ? GPUMEM_BACKEND_HOST : GPUMEM_BACKEND_CUDA;
  desc->name = "a sequence";
  desc->pin_budget = setup % 8 == 7 ? 150'000 : 0;
  if (model_.large) {
    constexpr uint32_t kThreads[] = {3, 2, 3, 1, 0, 3, GPUMEM_TRANSFER_OFF};
    desc->transfer_threads = kThreads[setup % std::size(kThreads)];
    desc->transfer_bytes = setup % 3 == 0 ? uint64_t{2} << 20 : 0;
  }
  host->device_count = setup % 5 == 4 ? 3 : 2;
  host->device_bytes = kDeviceBytes;
  host->granularity = kGranularity;
  host->vmm_granularity = Model::kHostVmmUnit;
  host->strict = setup % 4 == 3 ? GPUMEM_TOGGLE_OFF : GPUMEM_TOGGLE_ON;
  host->same_pointer = setup % 3 == 1 ? GPUMEM_TOGGLE_ON : GPUMEM_TOGGLE_DEFAULT;
  host->lock_mode = setup % 11 == 10 ? GPUMEM_HOST_LOCK_OFF : GPUMEM_HOST_LOCK_DEFAULT;
  host->register_count_max = setup % 13 == 12 ? 2 : 0;
  host->peers = setup % 7 == 6 ? "none" : nullptr;
  host->masked = setup >= 240 ? kMasks[setup % std::size(kMasks)] : nullptr;
  desc->host = host.pointer();
  desc->cuda = cuda.pointer();
  // Options of a backend that is not opened are not looked at.
  bool good = model_.on_host ? host.good() : cuda.good();
  if (desc.is_null()) {
    good = true;
  } else if (!must && wrong >= kWrong) {
    const BadOption& bad = kBadOptions[(wrong - kWrong) % std::size(kBadOptions)];
    bad.spoil({*desc.operator->(), *host.operator->(), *cuda.operator->()});
    const bool looked_at = bad.reader == Reader::kHost   ? model_.on_host && !host.is_null()
                           : bad.reader == Reader::kCuda ? !model_.on_host && !cuda.is_null()
                                                         : true;
    if (desc->backend == GPUMEM_BACKEND_ANY && (host.is_null() || cuda.is_null())) return -1;
    good = good && !looked_at;
  }
  if (host.is_null()) *host.operator->() = GPUMEM_HOST_OPTIONS_INIT;
  call.text("&%s{setup %u, wrong choice %u, host %s, cuda %s}, %s", desc.text().c_str(), setup, wrong,
            host.text().c_str(), cuda.text().c_str(), out.text());
  const gpumem_status status = call.check(
      out.good() && desc.good() && good ? Expect{GPUMEM_SUCCESS} : Expect{GPUMEM_ERROR_INVALID_ARGUMENT},
      gpumem_instance_open(desc.pointer(), out.pointer(), call.error()), out);
  if (status != GPUMEM_SUCCESS) return -1;
  if (desc.is_null()) {
    // It may be of another backend; the sequences are about one.
    require(gpumem_instance_close(out.get(), GPUMEM_CLOSE_CHECK, nullptr, nullptr) == GPUMEM_SUCCESS,
            "an instance without a descriptor cannot be closed");
    return -1;
  }
  adopt_instance(value_of(out.get()), host.get(), desc.get(), false);
  return static_cast<int>(model_.instances.size()) - 1;
}

void Player::adopt_instance(uint64_t handle, const gpumem_host_options& host,
                            const gpumem_instance_desc& desc, bool is_default) {
  gpumem_instance_info info = GPUMEM_INSTANCE_INFO_INIT;
  require(gpumem_instance_get_info(as<gpumem_instance>(handle), &info, nullptr) == GPUMEM_SUCCESS,
          "an instance tells nothing");
  Instance opened;
  opened.handle = handle;
  opened.instance = static_cast<int>(model_.instances.size());
  opened.host = info.backend == GPUMEM_BACKEND_HOST;
  opened.strict = info.strict != 0;
  opened.is_default = is_default;
  opened.same_pointer = !opened.host || host.same_pointer == GPUMEM_TOGGLE_ON;
  opened.pin_budget = desc.pin_budget;
  opened.lock_off = opened.host && host.lock_mode == GPUMEM_HOST_LOCK_OFF;
  if (opened.host && host.vmm_granularity != 0) opened.vmm_unit = host.vmm_granularity;
  opened.linked = !opened.host || host.peers == nullptr;
  if (opened.host && host.register_count_max != 0) opened.registrations_max = host.register_count_max;
  if (opened.host && host.masked != nullptr) opened.masked = host.masked;
  opened.name = info.name;
  require(opened.host == model_.on_host, "another backend was opened");
  require(!model_.on_host || is_default || opened.strict == (host.strict != GPUMEM_TOGGLE_OFF),
          "strict is not as it was asked for");
  require(is_default || (info.fallback_status == GPUMEM_SUCCESS && info.fallback_reason[0] == '\0'),
          "a backend that was named is told to be a fallback");
  require(opened.stats.read(as<gpumem_instance>(handle)), "a new instance has no counts");
  require(opened.stats.live() == 0, "something lives in a new instance");
  for (uint32_t ordinal = 0; ordinal < info.device_count; ++ordinal) {
    gpumem_device found = nullptr;
    gpumem_device_info facts = GPUMEM_DEVICE_INFO_INIT;
    require(gpumem_device_get(as<gpumem_instance>(handle), ordinal, &found, nullptr) == GPUMEM_SUCCESS &&
                gpumem_device_get_info(found, &facts, nullptr) == GPUMEM_SUCCESS && facts.ordinal == ordinal,
            "a device cannot be had");
    Device made;
    made.handle = value_of(found);
    made.instance = opened.instance;
    made.ordinal = ordinal;
    made.total = facts.total_bytes;
    made.granularity = opened.host && host.granularity != 0 ? host.granularity : 512;
    if (!opened.host) made.granularity = 1;
    opened.devices.push_back(static_cast<int>(model_.devices.size()));
    model_.devices.push_back(made);
    ++model_.objects_made;
  }
  gpumem_capability_info shares = GPUMEM_CAPABILITY_INFO_INIT;
  require(gpumem_device_get_capability(as<gpumem_device>(device(opened.devices.front()).handle),
                                       GPUMEM_CAPABILITY_VMM_HANDLE_POSIX_FD, nullptr, &shares,
                                       nullptr) == GPUMEM_SUCCESS,
          "a capability cannot be queried");
  model_.shares_descriptors = shares.value != GPUMEM_ANSWER_NO;
  ++model_.objects_made;
  model_.instances.push_back(opened);
}

void Player::step_instance_open(Choice& choice) {
  constexpr size_t kInstances = 8;
  if (model_.instances.size() >= kInstances) return;
  const uint8_t setup = choice.byte();
  open(choice, setup, false);
}

void Player::step_instance_default(Choice& choice) {
  Call call(*this, choice, "gpumem_instance_default");
  Out<gpumem_instance> out(choice);
  call.text("%s", out.text());
  const gpumem_status status = call.check({out.good() ? GPUMEM_SUCCESS : GPUMEM_ERROR_INVALID_ARGUMENT},
                                          gpumem_instance_default(out.pointer(), call.error()), out);
  if (status != GPUMEM_SUCCESS) return;
  if (default_instance_ >= 0) {
    require(instance(default_instance_).handle == value_of(out.get()), "there is a second default instance");
    return;
  }
  default_instance_ = static_cast<int>(model_.instances.size());
  adopt_instance(value_of(out.get()), GPUMEM_HOST_OPTIONS_INIT, GPUMEM_INSTANCE_DESC_INIT, true);
}

// Does what the caller has to do before a close; false if that is not possible now.
bool Player::ready_to_close(int index, bool force) {
  open_gates();
  const auto has_native = [&](const Line& queue) {
    return queue.native && !queue.retired && device(queue.device).instance == index;
  };
  if (std::any_of(model_.lines.begin(), model_.lines.end(), has_native)) return false;
  for (const Memory& foreign : model_.foreigns) {
    if (foreign.instance == index && foreign.life == Life::kLive) return false;
  }
  if (!force) return true;
  for (const Memory& ending : model_.memories) {
    if (ending.instance != index || ending.life != Life::kLive) continue;
    const std::vector<Access> accesses = region(ending.region).accesses;
    for (const Access& access : accesses) {
      if (model_.is_observed(access.line, access.number)) continue;
      // Other instances' work, and on cuda work of streams that nobody can wait for any more.
      if (device(line(access.line).device).instance != index && !wait_for(access.line)) return false;
    }
  }
  return true;
}

void Player::step_instance_close(Choice& choice) {
  Call call(*this, choice, "gpumem_instance_close");
  const Picked chosen = pick_instance(choice);
  constexpr gpumem_close_mode kModes[] = {GPUMEM_CLOSE_CHECK, GPUMEM_CLOSE_CHECK, GPUMEM_CLOSE_FORCE};
  constexpr gpumem_close_mode kNoModes[] = {2, -1};
  const gpumem_close_mode mode = choice.value(kModes, kNoModes);
  Out<uint64_t> destroyed(choice, Out<uint64_t>::Null::kGood);
  call.text("%s, %d, %s", chosen.text.c_str(), mode, destroyed.text());
  Verdict verdict;
  verdict.require(mode == GPUMEM_CLOSE_CHECK || mode == GPUMEM_CLOSE_FORCE);
  if (chosen.value != 0) verdict.handle(chosen.wrong);
  Expect expect = verdict.done();
  const bool force = mode == GPUMEM_CLOSE_FORCE;
  uint64_t live = 0;
  if (expect.empty() && chosen.value == 0) {
    const gpumem_status status =
        call.check({GPUMEM_SUCCESS}, gpumem_instance_close(nullptr, mode, destroyed.pointer(), call.error()));
    if (status == GPUMEM_SUCCESS) require(destroyed.untouched(), "closing NULL destroyed something");
    return;
  }
  if (expect.empty()) {
    const Instance& closing = instance(chosen.index);
    live = closing.stats.live();
    // Memory of pools that are gone may go back now.
    if (!force && live != 0 && live == closing.pool_rest.count()) return;
    if (closing.is_default) {
      expect = {GPUMEM_ERROR_INVALID_STATE};
    } else if (!force && live != 0) {
      expect = {GPUMEM_ERROR_BUSY};
    } else {
      // One instance stays for the rest of the sequence.
      const auto open_now =
          std::count_if(model_.instances.begin(), model_.instances.end(),
                        [](const Instance& each) { return each.life == Life::kLive && !each.is_default; });
      if (open_now < 2 || !ready_to_close(chosen.index, force)) return;
      expect = {GPUMEM_SUCCESS};
    }
  }
  const gpumem_status status = call.check(
      expect,
      gpumem_instance_close(as<gpumem_instance>(chosen.value), mode, destroyed.pointer(), call.error()),
      destroyed);
  if (status == GPUMEM_ERROR_BUSY) follow_pools(chosen.index);
  if (status != GPUMEM_SUCCESS) return;
  require(destroyed.is_null() || destroyed.get() == live, "the close destroyed another number of objects");
  model_.close(chosen.index);
}

void Player::step_instance_get_info(Choice& choice) {
  const auto told =
      ask_info(choice, "gpumem_instance_get_info", &Player::pick_instance, gpumem_instance_get_info);
  if (!told) return;
  const auto& [index, info] = *told;
  const Instance& known = instance(index);
  require(info.device_count == known.devices.size() && info.name == known.name &&
              info.pin_budget == known.pin_budget && (info.strict != 0) == known.strict,
          "an instance tells something else than before");
}

void Player::step_instance_probe(Choice& choice) {
  Call call(*this, choice, "gpumem_instance_probe");
  const gpumem_backend own = model_.on_host ? GPUMEM_BACKEND_HOST : GPUMEM_BACKEND_CUDA;
  const uint8_t byte = choice.byte();
  constexpr gpumem_backend kNoBackends[] = {3, 4, -1, INT32_MIN};
  const gpumem_backend backend = byte < kWrong ? own : kNoBackends[byte % std::size(kNoBackends)];
  Answer<gpumem_probe_info> info(choice);
  call.text("%d, %s", backend, info.text().c_str());
  const bool right = backend == own && (info.good() || info.is_null());
  const gpumem_status status = call.check({right ? GPUMEM_SUCCESS : GPUMEM_ERROR_INVALID_ARGUMENT},
                                          gpumem_instance_probe(backend, info.pointer(), call.error()), info);
  if (status == GPUMEM_SUCCESS && !info.is_null())
    require(info->backend == own, "another backend was probed");
}

// ---- devices ----

void Player::step_device_get(Choice& choice) {
  Call call(*this, choice, "gpumem_device_get");
  const Picked chosen = pick_instance(choice);
  const uint8_t byte = choice.byte();
  const bool live = chosen.wrong.empty();
  const uint32_t count = live ? static_cast<uint32_t>(instance(chosen.index).devices.size()) : 1;
  const uint32_t ordinal = byte < kWrong ? byte % count : (byte % 2 == 0 ? count : UINT32_MAX);
  Out<gpumem_device> out(choice);
  call.text("%s, %u, %s", chosen.text.c_str(), ordinal, out.text());
  // How many devices there are is known of an open instance only.
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(out.good());
  if (live) verdict.require(ordinal < count);
  Expect expect = verdict.done();
  if (expect.empty()) expect = {GPUMEM_SUCCESS};
  const gpumem_status status = call.check(
      expect, gpumem_device_get(as<gpumem_instance>(chosen.value), ordinal, out.pointer(), call.error()),
      out);
  if (status != GPUMEM_SUCCESS) return;
  const int index = instance(chosen.index).devices[ordinal];
  require(value_of(out.get()) == device(index).handle, "a device has a second handle");
}

void Player::step_device_get_info(Choice& choice) {
  const auto told = ask_info(choice, "gpumem_device_get_info", &Player::pick_device, gpumem_device_get_info);
  if (!told) return;
  const auto& [index, info] = *told;
  const Device& known = device(index);
  require(info.ordinal == known.ordinal && info.total_bytes == known.total && (info.lost != 0) == known.lost,
          "a device tells something else than before");
}

void Player::step_device_trim_graphs(Choice& choice) {
  Call call(*this, choice, "gpumem_device_trim_graphs");
  const Picked chosen = pick_device(choice);
  Out<uint64_t> released(choice, Out<uint64_t>::Null::kGood);
  call.text("%s, %s", chosen.text.c_str(), released.text());
  Expect expect = chosen.wrong;
  if (expect.empty()) expect = {model_.lost(chosen.index) ? GPUMEM_ERROR_DEVICE_LOST : GPUMEM_SUCCESS};
  const gpumem_status status = call.check(
      expect, gpumem_device_trim_graphs(as<gpumem_device>(chosen.value), released.pointer(), call.error()),
      released);
  require(status != GPUMEM_SUCCESS || released.is_null() || released.get() == 0, "no graph allocated");
}

void Player::step_device_get_memory(Choice& choice) {
  Call call(*this, choice, "gpumem_device_get_memory");
  const Picked chosen = pick_device(choice);
  Out<uint64_t> free_bytes(choice, Out<uint64_t>::Null::kGood);
  Out<uint64_t> total(choice, Out<uint64_t>::Null::kGood);
  call.text("%s, %s, %s", chosen.text.c_str(), free_bytes.text(), total.text());
  Expect expect = chosen.wrong;
  if (expect.empty()) expect = {model_.lost(chosen.index) ? GPUMEM_ERROR_DEVICE_LOST : GPUMEM_SUCCESS};
  const gpumem_status status =
      call.check(expect,
                 gpumem_device_get_memory(as<gpumem_device>(chosen.value), free_bytes.pointer(),
                                          total.pointer(), call.error()),
                 free_bytes, total);
  if (status != GPUMEM_SUCCESS) return;
  const Device& known = device(chosen.index);
  require(total.is_null() || total.get() == known.total, "the device has another size");
  require(free_bytes.is_null() || free_bytes.get() <= known.total, "more is free than there is");
  if (!model_.on_host || !known.exact || free_bytes.is_null()) return;
  require(free_bytes.get() == known.total - known.used, "free are " + std::to_string(free_bytes.get()) +
                                                            " bytes; expected " +
                                                            std::to_string(known.total - known.used));
}

void Player::step_device_can_access_peer(Choice& choice) {
  Call call(*this, choice, "gpumem_device_can_access_peer");
  auto [first, second, verdict] = pick_pair(choice);
  Out<uint32_t> out(choice);
  call.text("%s, %s, %s", first.text.c_str(), second.text.c_str(), out.text());
  verdict.require(out.good());
  Expect expect = verdict.done();
  if (expect.empty()) expect = {GPUMEM_SUCCESS};
  const gpumem_status status =
      call.check(expect,
                 gpumem_device_can_access_peer(as<gpumem_device>(first.value),
                                               as<gpumem_device>(second.value), out.pointer(), call.error()),
                 out);
  if (status == GPUMEM_SUCCESS) {
    require((out.get() != 0) == instance(device(first.index).instance).linked,
            "the link is not as configured");
  }
}

void Player::step_device_enable_peer_access(Choice& choice) {
  Call call(*this, choice, "gpumem_device_enable_peer_access");
  const auto [first, second, verdict] = pick_pair(choice);
  call.text("%s, %s", first.text.c_str(), second.text.c_str());
  Expect expect = verdict.done();
  if (expect.empty()) {
    const Instance& owner = instance(device(first.index).instance);
    expect = {GPUMEM_SUCCESS};
    if (device(first.index).peers[second.index] == 0) {
      if (owner.lacks("peer_access")) expect = {GPUMEM_ERROR_SYMBOL_MISSING};
      if (!owner.linked) expect = {GPUMEM_ERROR_UNSUPPORTED};
    }
    expect = with_faults(expect, device(first.index).instance);
    if (model_.lost(first.index) || model_.lost(second.index)) expect = {GPUMEM_ERROR_DEVICE_LOST};
    if (!model_.on_host) open_gates();
  }
  const gpumem_status status =
      call.check(expect, gpumem_device_enable_peer_access(as<gpumem_device>(first.value),
                                                          as<gpumem_device>(second.value), call.error()));
  if (status == GPUMEM_SUCCESS) ++device(first.index).peers[second.index];
}

void Player::step_device_disable_peer_access(Choice& choice) {
  Call call(*this, choice, "gpumem_device_disable_peer_access");
  const auto [first, second, verdict] = pick_pair(choice);
  call.text("%s, %s", first.text.c_str(), second.text.c_str());
  Expect expect = verdict.done();
  if (expect.empty()) {
    const bool enabled = device(first.index).peers[second.index] > 0;
    expect = {enabled ? GPUMEM_SUCCESS : GPUMEM_ERROR_INVALID_STATE};
    if (enabled) {
      // Work that uses the access must be over.
      for (size_t i = 0; i < model_.lines.size(); ++i) {
        const bool own = model_.lines[i].device == first.index;
        if (own && !model_.is_observed(model_.mark(static_cast<int>(i))) && !wait_for(static_cast<int>(i)))
          return;
      }
    }
  }
  const gpumem_status status =
      call.check(expect, gpumem_device_disable_peer_access(as<gpumem_device>(first.value),
                                                           as<gpumem_device>(second.value), call.error()));
  if (status == GPUMEM_SUCCESS) --device(first.index).peers[second.index];
}

void Player::step_device_get_capability(Choice& choice) {
  Call call(*this, choice, "gpumem_device_get_capability");
  const Picked first = pick_device(choice);
  constexpr gpumem_capability kAll[] = {1,  2,  3,  4,  10, 11, 12, 13, 14, 15, 16, 17,
                                        18, 19, 20, 30, 31, 40, 41, 42, 50, 51, 60, 61};
  constexpr gpumem_capability kNone[] = {0, 5, -1, 62, 9999, INT32_MAX};
  const gpumem_capability capability = choice.value(kAll, kNone);
  const bool known = std::find(std::begin(kAll), std::end(kAll), capability) != std::end(kAll);
  const bool of_pair =
      capability == GPUMEM_CAPABILITY_PEER_ACCESS || capability == GPUMEM_CAPABILITY_PEER_ATOMICS;
  Picked second = pick_device(choice);
  // One device is asked of most; a second one is a mistake.
  const bool stray = choice.byte() >= kWrong;
  if (!of_pair && second.wrong.empty() && !stray) second = Picked{};
  Answer<gpumem_capability_info> info(choice);
  call.text("%s, %d, %s, %s", first.text.c_str(), capability, second.text.c_str(), info.text().c_str());
  Verdict verdict;
  verdict.handle(first.wrong);
  verdict.require(known && info.good());
  if (of_pair) {
    verdict.handle(second.wrong);
    if (first.wrong.empty() && second.wrong.empty()) {
      verdict.require(first.index != second.index &&
                      device(first.index).instance == device(second.index).instance);
    }
  } else if (known) {
    verdict.require(second.value == 0);
  }
  Expect expect = verdict.done();
  if (expect.empty()) expect = {GPUMEM_SUCCESS};
  const gpumem_status status =
      call.check(expect,
                 gpumem_device_get_capability(as<gpumem_device>(first.value), capability,
                                              as<gpumem_device>(second.value), info.pointer(), call.error()),
                 info);
  if (status != GPUMEM_SUCCESS) return;
  const bool tri = info->type == GPUMEM_ANSWER_TYPE_TRI;
  require((tri && info->value == GPUMEM_ANSWER_NO) == GPUMEM_FAILED(info->status),
          "a NO comes with a status, and nothing else");
  if (device(first.index).lost) {
    require(!tri || info->value == GPUMEM_ANSWER_NO, "a lost device can do something");
    return;
  }
  const auto [before, fresh] =
      device(first.index).capabilities.try_emplace({capability, second.index}, info.get());
  require(fresh || (before->second.value == info->value && before->second.status == info->status),
          "a capability has changed");
  if (capability == GPUMEM_CAPABILITY_DEVICE_BYTES)
    require(info->value == device(first.index).total, "the device has another size");
  if (capability == GPUMEM_CAPABILITY_PEER_ACCESS &&
      !instance(device(first.index).instance).lacks("peer_access")) {
    const bool linked = instance(device(first.index).instance).linked;
    require((info->value != GPUMEM_ANSWER_NO) == linked, "the link is not as configured");
  }
}

// A list that is read by position.
template <class T>
void Player::enumerate(Choice& choice, const char* name,
                       gpumem_status (*function)(uint32_t, T*, gpumem_error*)) {
  Call call(*this, choice, name);
  const uint8_t byte = choice.byte();
  const uint32_t length = length_of<T>(function);
  const uint32_t index = byte < kWrong ? byte % length : (byte % 2 == 0 ? length : UINT32_MAX);
  Out<T> out(choice);
  call.text("%u, %s", index, out.text());
  Expect expect = {index < length ? GPUMEM_SUCCESS : GPUMEM_ERROR_NOT_FOUND};
  if (!out.good()) expect = {GPUMEM_ERROR_INVALID_ARGUMENT};
  call.check(expect, function(index, out.pointer(), call.error()), out);
}

void Player::step_capability_enumerate(Choice& choice) {
  enumerate<gpumem_capability>(choice, "gpumem_capability_enumerate", gpumem_capability_enumerate);
}

// ---- counts and messages ----

void Player::step_stats_get(Choice& choice) {
  Call call(*this, choice, "gpumem_stats_get");
  const Picked chosen = pick_instance(choice);
  Answer<gpumem_stats> stats(choice);
  call.text("%s, %s", chosen.text.c_str(), stats.text().c_str());
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(stats.good());
  Expect expect = verdict.done();
  if (expect.empty()) expect = {GPUMEM_SUCCESS};
  call.check(expect, gpumem_stats_get(as<gpumem_instance>(chosen.value), stats.pointer(), call.error()),
             stats);
}

void Player::step_stats_get_kind(Choice& choice) {
  Call call(*this, choice, "gpumem_stats_get_kind");
  const Picked chosen = pick_instance(choice);
  constexpr gpumem_kind kKinds[] = {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED, GPUMEM_KIND_REGISTERED,
                                    GPUMEM_KIND_MANAGED, GPUMEM_KIND_VIRTUAL};
  constexpr gpumem_kind kNoKinds[] = {
      GPUMEM_KIND_UNKNOWN, GPUMEM_KIND_PAGEABLE, GPUMEM_KIND_FOREIGN, 6, 100, -1};
  const gpumem_kind kind = choice.value(kKinds, kNoKinds);
  Answer<gpumem_kind_stats> stats(choice);
  call.text("%s, %d, %s", chosen.text.c_str(), kind, stats.text().c_str());
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(stats.good());
  verdict.require(std::find(std::begin(kKinds), std::end(kKinds), kind) != std::end(kKinds));
  Expect expect = verdict.done();
  if (expect.empty()) expect = {GPUMEM_SUCCESS};
  const gpumem_status status = call.check(
      expect, gpumem_stats_get_kind(as<gpumem_instance>(chosen.value), kind, stats.pointer(), call.error()),
      stats);
  if (status != GPUMEM_SUCCESS) return;
  const Tally& known = instance(chosen.index).stats;
  gpumem_kind_stats expected = kind == GPUMEM_KIND_VIRTUAL ? known.reserved : known.registered;
  if (kind == GPUMEM_KIND_DEVICE) expected = known.device;
  if (kind == GPUMEM_KIND_PINNED) expected = known.pinned;
  if (kind == GPUMEM_KIND_MANAGED) expected = known.managed;
  expected.struct_size = stats->struct_size;  // of a newer caller, perhaps
  require(std::memcmp(&expected, &stats.get(), sizeof expected) == 0, "the counts of a kind are others");
}

void Player::step_stats_reset_peaks(Choice& choice) {
  Call call(*this, choice, "gpumem_stats_reset_peaks");
  const Picked chosen = pick_instance(choice);
  call.text("%s", chosen.text.c_str());
  Expect expect = chosen.wrong;
  if (expect.empty()) expect = {GPUMEM_SUCCESS};
  const gpumem_status status =
      call.check(expect, gpumem_stats_reset_peaks(as<gpumem_instance>(chosen.value), call.error()));
  if (status != GPUMEM_SUCCESS) return;
  Tally& stats = instance(chosen.index).stats;
  for (gpumem_kind_stats* kind :
       {&stats.device, &stats.pinned, &stats.registered, &stats.managed, &stats.reserved}) {
    kind->peak_count = kind->live_count;
    kind->peak_bytes = kind->live_bytes;
  }
}

std::optional<Player::Written> Player::write_text(Choice& choice, const char* name, TextFunction* function) {
  Call call(*this, choice, name);
  const Picked chosen = pick_instance(choice);
  constexpr uint64_t kCapacities[] = {65536, 0, 1, 12, 300};
  const uint64_t capacity = choice.one_of(kCapacities);
  const bool null = choice.byte() >= kWrong;
  Out<uint64_t> needed(choice, Out<uint64_t>::Null::kGood);
  std::string buffer(65536, 'x');
  call.text("%s, %s, %llu, %s", chosen.text.c_str(), null ? "NULL" : "buffer",
            static_cast<unsigned long long>(capacity), needed.text());
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(!null || capacity == 0);
  Expect expect = verdict.done();
  if (expect.empty()) expect = {GPUMEM_SUCCESS};
  const gpumem_status status =
      call.check(expect,
                 function(as<gpumem_instance>(chosen.value), null ? nullptr : buffer.data(), capacity,
                          needed.pointer(), call.error()),
                 needed);
  if (status != GPUMEM_SUCCESS) {
    require(buffer == std::string(buffer.size(), 'x'), "the buffer of a failed call was written");
    return std::nullopt;
  }
  if (capacity == 0) return std::nullopt;
  const size_t length = std::strlen(buffer.c_str());
  require(length < capacity && buffer[capacity == buffer.size() ? length : capacity] != '\1',
          "the text has no end");
  if (needed.is_null() || needed.get() > capacity) return std::nullopt;
  require(needed.get() == length + 1, "the text has another length than it tells");
  buffer.resize(length);
  return Written{chosen.index, std::move(buffer)};
}

void Player::step_stats_report(Choice& choice) {
  const auto written = write_text(choice, "gpumem_stats_report", gpumem_stats_report);
  if (!written) return;
  // A pool has one for all its memory (POOL-13); so has a destroyed one, of memory that is no object, with
  // live blocks.
  const uint64_t live = instance(written->index).stats.live() - memory_of_pools(written->index) +
                        destroyed_pools_without_objects(written->index);
  const std::string& report = written->text;
  const auto lines = std::count(report.begin(), report.end(), '\n') + 1;
  require(static_cast<uint64_t>(lines) == std::max<uint64_t>(live, 1),
          "the report has a line for each object");
  require((live == 0) == (report == "nothing lives"), "nothing lives, or something does");
}

void Player::step_stats_snapshot(Choice& choice) {
  const auto written = write_text(choice, "gpumem_stats_snapshot", gpumem_stats_snapshot);
  if (!written) return;
  const std::string& snapshot = written->text;
  uint64_t objects = 0;
  for (size_t at = 0; (at = snapshot.find("{\"type\":", at)) != std::string::npos; ++at)
    ++objects;
  require(objects == instance(written->index).stats.live() + destroyed_pools_without_objects(written->index),
          "the snapshot has each object");
  require(
      std::count(snapshot.begin(), snapshot.end(), '{') == std::count(snapshot.begin(), snapshot.end(), '}'),
      "the snapshot has brackets in pairs");
}

void Player::step_log_set_function(Choice& choice) {
  Call call(*this, choice, "gpumem_log_set_function");
  const uint8_t byte = choice.byte();
  const gpumem_log_function function = byte % 3 == 0 ? nullptr : count_line;
  const gpumem_log_level level = byte < kWrong ? 1 + byte % 4 : 5 - byte % 2 * 6;
  call.text("%s, %d", function == nullptr ? "NULL" : "count_line", level);
  const bool right = function == nullptr || byte < kWrong;
  call.check({right ? GPUMEM_SUCCESS : GPUMEM_ERROR_INVALID_ARGUMENT},
             gpumem_log_set_function(function, &logged_lines, level, call.error()));
}

void Player::step_status_get_info(Choice& choice) {
  Call call(*this, choice, "gpumem_status_get_info");
  constexpr gpumem_status kKnown[] = {0, 1, 2, -101, -105, -201, -207, -301, -304, -401, -406, -901};
  constexpr gpumem_status kUnknown[] = {3, -1, -100, -999, INT32_MIN};
  const gpumem_status asked = choice.value(kKnown, kUnknown);
  Answer<gpumem_status_info> info(choice);
  call.text("%d, %s", asked, info.text().c_str());
  const bool known = std::find(std::begin(kKnown), std::end(kKnown), asked) != std::end(kKnown);
  Expect expect = {known ? GPUMEM_SUCCESS : GPUMEM_ERROR_NOT_FOUND};
  if (!info.good()) expect = {GPUMEM_ERROR_INVALID_ARGUMENT};
  const gpumem_status status =
      call.check(expect, gpumem_status_get_info(asked, info.pointer(), call.error()), info);
  if (status == GPUMEM_SUCCESS) {
    require(info->status == asked && std::strcmp(info->name, gpumem_status_name(asked)) == 0,
            "another status is told of");
  }
}

void Player::step_status_enumerate(Choice& choice) {
  enumerate<gpumem_status>(choice, "gpumem_status_enumerate", gpumem_status_enumerate);
}

void Player::step_table_get(Choice& choice) {
  Call call(*this, choice, "gpumem_table_get");
  const uint8_t byte = choice.byte();
  const uint32_t version =
      byte < kWrong ? GPUMEM_VERSION : GPUMEM_MAKE_VERSION(GPUMEM_VERSION_MAJOR + 1 + byte % 3, 0, 0);
  Answer<gpumem_table> table(choice);
  call.text("0x%x, %s", version, table.text().c_str());
  // A newer caller gets NULL for what this version lacks, whatever stood there.
  const bool good = table.good() || (!table.is_null() && table.is_newer());
  Expect expect = {byte < kWrong ? GPUMEM_SUCCESS : GPUMEM_ERROR_UNSUPPORTED};
  if (!good) expect = {GPUMEM_ERROR_INVALID_ARGUMENT};
  const gpumem_status status =
      call.check(expect, gpumem_table_get(version, table.pointer(), call.error()), table);
  if (status != GPUMEM_SUCCESS) return;
  require(table->gpumem_copy == gpumem_copy, "the table has another function");
  const auto& unknown = table.whole().unknown;
  require(std::all_of(std::begin(unknown), std::end(unknown), [](unsigned char each) { return each == 0; }),
          "a function of a newer version is not NULL");
}

void Player::step_texts(Choice& choice) {
  const auto did = [&](const char* function, bool right) {
    coverage_.count(function, true);
    require(right, std::string(function) + " answers something else");
  };
  switch (choice.byte() % 4) {
    case 0:
      return did("gpumem_version", gpumem_version() == GPUMEM_VERSION);
    case 1:
      return did("gpumem_version_text", gpumem_version_text() != nullptr && gpumem_version_text()[0] != '\0');
    case 2:
      return did("gpumem_feature_supported", gpumem_feature_supported(GPUMEM_FEATURE_BACKEND_HOST) == 1 &&
                                                 gpumem_feature_supported(-1) == 0);
    default:
      return did("gpumem_status_name", std::strcmp(gpumem_status_name(-203), "GPUMEM_ERROR_BUSY") == 0 &&
                                           std::strcmp(gpumem_status_name(77), "GPUMEM_ERROR_?") == 0);
  }
}

// ---- the host backend's own ----

void Player::step_host_native_stream_create(Choice& choice) {
  Call call(*this, choice, "gpumem_host_native_stream_create");
  const Picked home = pick_device(choice);
  Out<void*> out(choice);
  call.text("%s, %s", home.text.c_str(), out.text());
  Verdict verdict;
  verdict.handle(home.wrong);
  verdict.require(out.good());
  Expect expect = verdict.done();
  if (expect.empty()) {
    expect = with_faults({GPUMEM_SUCCESS}, device(home.index).instance);
    if (model_.lost(home.index)) expect = {GPUMEM_ERROR_DEVICE_LOST};
    if (!model_.on_host) expect = {GPUMEM_ERROR_UNSUPPORTED};
  }
  const gpumem_status status = call.check(
      expect, gpumem_host_native_stream_create(as<gpumem_device>(home.value), out.pointer(), call.error()),
      out);
  if (status != GPUMEM_SUCCESS) return;
  Line queue;
  queue.device = home.index;
  queue.native = true;
  queue.pointer = out.get();
  model_.lines.push_back(queue);
}

void Player::step_host_native_stream_destroy(Choice& choice) {
  Call call(*this, choice, "gpumem_host_native_stream_destroy");
  const Picked home = pick_device(choice);
  const uint8_t byte = choice.byte();
  int index = -1;
  for (size_t i = 0; i < model_.lines.size(); ++i) {
    if (model_.lines[i].native && !model_.lines[i].retired) index = static_cast<int>(i);
  }
  void* native = nullptr;
  if (byte < kWrong && index >= 0) native = line(index).pointer;
  if (byte >= kWrong || (index < 0 && byte % 2 == 0)) native = as<void*>(0x4321), index = -1;
  call.text("%s, %s", home.text.c_str(),
            native == nullptr ? "NULL" : (index < 0 ? "(void*)0x4321" : "native"));
  Expect expect = home.wrong;
  if (expect.empty() && !model_.on_host) expect = {GPUMEM_ERROR_UNSUPPORTED};
  if (expect.empty()) {
    expect = {GPUMEM_SUCCESS};
    if (native != nullptr) {
      const bool found = index >= 0 && line(index).device == home.index;
      if (!found) expect = {GPUMEM_ERROR_NOT_FOUND};
      if (found && line(index).handles > 0) expect = {GPUMEM_ERROR_BUSY};
      // A pool keeps the native streams that it has served.
      const auto keeps = [&](const Pool& each) {
        return each.native && each.instance == device(home.index).instance;
      };
      const bool kept = std::any_of(model_.pools.begin(), model_.pools.end(), keeps);
      if (expect.front() == GPUMEM_SUCCESS && kept) expect.push_back(GPUMEM_ERROR_BUSY);
    }
  }
  const gpumem_status status = call.check(
      expect, gpumem_host_native_stream_destroy(as<gpumem_device>(home.value), native, call.error()));
  if (status == GPUMEM_SUCCESS && native != nullptr) line(index).retired = true;
}

void Player::step_host_stream_set_capturing(Choice& choice) {
  Call call(*this, choice, "gpumem_host_stream_set_capturing");
  const Picked chosen = pick_stream(choice);
  constexpr uint32_t kRight[] = {0, 1, 0};
  constexpr uint32_t kNone[] = {2, UINT32_MAX};
  const uint32_t capturing = choice.value(kRight, kNone);
  call.text("%s, %u", chosen.text.c_str(), capturing);
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(capturing <= 1);
  Expect expect = verdict.done();
  if (expect.empty()) {
    expect = {model_.on_host ? GPUMEM_SUCCESS : GPUMEM_ERROR_UNSUPPORTED};
    if (instance(stream(chosen.index).instance).is_default) return;  // it outlives the sequence
  }
  const gpumem_status status = call.check(
      expect, gpumem_host_stream_set_capturing(as<gpumem_stream>(chosen.value), capturing, call.error()));
  if (status == GPUMEM_SUCCESS) line(stream(chosen.index).line).capturing = capturing == 1;
}

void Player::step_host_device_lose(Choice& choice) {
  Call call(*this, choice, "gpumem_host_device_lose");
  const Picked home = pick_device(choice);
  call.text("%s", home.text.c_str());
  Expect expect = home.wrong;
  if (expect.empty()) {
    if (model_.on_host && instance(device(home.index).instance).is_default) return;
    expect = {model_.on_host ? GPUMEM_SUCCESS : GPUMEM_ERROR_UNSUPPORTED};
    open_gates();
  }
  const gpumem_status status =
      call.check(expect, gpumem_host_device_lose(as<gpumem_device>(home.value), call.error()));
  if (status == GPUMEM_SUCCESS) model_.lose(home.index);
}

void Player::step_host_fail_step(Choice& choice) {
  Call call(*this, choice, "gpumem_host_fail_step");
  const Picked chosen = pick_instance(choice);
  const uint64_t step = choice.byte() % 8;
  constexpr uint32_t kRight[] = {0, 1};
  constexpr uint32_t kNone[] = {2, UINT32_MAX};
  const uint32_t repeat = choice.value(kRight, kNone);
  call.text("%s, %llu, %u", chosen.text.c_str(), static_cast<unsigned long long>(step), repeat);
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(repeat <= 1);
  Expect expect = verdict.done();
  if (expect.empty()) expect = {model_.on_host ? GPUMEM_SUCCESS : GPUMEM_ERROR_UNSUPPORTED};
  const gpumem_status status = call.check(
      expect, gpumem_host_fail_step(as<gpumem_instance>(chosen.value), step, repeat, call.error()));
  if (status != GPUMEM_SUCCESS) return;
  instance(chosen.index).armed = step != 0;
  instance(chosen.index).armed_for_good = step != 0 && repeat != 0;
}

void Player::step_host_foreign_alloc(Choice& choice) {
  Call call(*this, choice, "gpumem_host_foreign_alloc");
  const Picked home = pick_device(choice);
  constexpr gpumem_kind kKinds[] = {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED};
  constexpr gpumem_kind kNoKinds[] = {GPUMEM_KIND_REGISTERED, 0};
  constexpr uint64_t kSizes[] = {256, 1000, 8192};
  constexpr uint64_t kNoSizes[] = {0, UINT64_MAX, uint64_t{1} << 63, uint64_t{1} << 50};
  const gpumem_kind kind = choice.value(kKinds, kNoKinds);
  const uint64_t size = choice.value(kSizes, kNoSizes);
  Out<void*> out(choice);
  call.text("%s, %d, %llu, %s", home.text.c_str(), kind, static_cast<unsigned long long>(size), out.text());
  Verdict verdict;
  verdict.handle(home.wrong);
  verdict.require(out.good() && size != 0 && size < uint64_t{1} << 63 &&
                  (kind == GPUMEM_KIND_DEVICE || kind == GPUMEM_KIND_PINNED));
  Expect expect = verdict.done();
  uint64_t charged = 0;
  if (expect.empty() && !model_.on_host) expect = {GPUMEM_ERROR_UNSUPPORTED};
  if (expect.empty()) {
    const Device& owner = device(home.index);
    if (kind == GPUMEM_KIND_DEVICE)
      charged = (size + owner.granularity - 1) / owner.granularity * owner.granularity;
    const bool fits =
        kind == GPUMEM_KIND_PINNED ? size < uint64_t{1} << 40 : charged <= owner.total - owner.used;
    const gpumem_status full =
        kind == GPUMEM_KIND_PINNED ? GPUMEM_ERROR_OUT_OF_HOST_MEMORY : GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY;
    expect = {fits ? GPUMEM_SUCCESS : full};
    if (fits && !owner.exact && charged != 0) expect.push_back(full);
    expect = with_faults(expect, owner.instance);
    if (owner.lost) expect = {GPUMEM_ERROR_DEVICE_LOST};
  }
  const gpumem_status status = call.check(
      expect,
      gpumem_host_foreign_alloc(as<gpumem_device>(home.value), kind, size, out.pointer(), call.error()), out);
  if (status != GPUMEM_SUCCESS) return;
  Memory made;
  made.foreign = true;
  made.instance = device(home.index).instance;
  made.device = home.index;
  made.kind = kind;
  made.size = size;
  made.charged = charged;
  made.address = static_cast<uint8_t*>(out.get());
  made.region = model_.add_region(kind == GPUMEM_KIND_PINNED ? made.address : nullptr, size);
  device(home.index).used += charged;
  model_.foreigns.push_back(made);
}

void Player::step_host_foreign_free(Choice& choice) {
  Call call(*this, choice, "gpumem_host_foreign_free");
  const Picked home = pick_device(choice);
  const uint8_t byte = choice.byte();
  std::vector<int> live;
  for (size_t i = 0; i < model_.foreigns.size(); ++i) {
    const Memory& candidate = model_.foreigns[i];
    if (candidate.life == Life::kLive && (candidate.device == home.index || byte % 8 == 7))
      live.push_back(static_cast<int>(i));
  }
  int index = live.empty() || byte >= kWrong ? -1 : live[byte % live.size()];
  uint8_t* pointer = index >= 0 ? model_.foreigns[static_cast<size_t>(index)].address : nullptr;
  if (byte >= 225) pointer = model_.arena.writable();
  call.text("%s, %s", home.text.c_str(),
            pointer == nullptr ? "NULL" : (index < 0 ? "heap" : ("foreign" + std::to_string(index)).c_str()));
  Expect expect = home.wrong;
  if (expect.empty() && !model_.on_host) expect = {GPUMEM_ERROR_UNSUPPORTED};
  if (expect.empty()) {
    expect = {GPUMEM_SUCCESS};
    const bool found = index >= 0 && model_.foreigns[static_cast<size_t>(index)].device == home.index;
    if (found) {
      if (!settle(model_.foreigns[static_cast<size_t>(index)])) return;
      expect = model_.destroyed(model_.foreigns[static_cast<size_t>(index)]);
    } else if (pointer != nullptr) {
      expect = {GPUMEM_ERROR_NOT_FOUND};
    }
  }
  const gpumem_status status =
      call.check(expect, gpumem_host_foreign_free(as<gpumem_device>(home.value), pointer, call.error()));
  if (status != GPUMEM_SUCCESS || index < 0) return;
  Memory& freed = model_.foreigns[static_cast<size_t>(index)];
  device(freed.device).used -= freed.charged;
  model_.end(freed, Life::kDestroyed);
}

void Player::step_host_foreign_peer_access(Choice& choice) {
  Call call(*this, choice, "gpumem_host_foreign_peer_access");
  auto [first, second, verdict] = pick_pair(choice);
  constexpr uint32_t kRight[] = {1, 0};
  constexpr uint32_t kNone[] = {2, UINT32_MAX};
  const uint32_t enabled = choice.value(kRight, kNone);
  call.text("%s, %s, %u", first.text.c_str(), second.text.c_str(), enabled);
  verdict.require(enabled <= 1);
  Expect expect = verdict.done();
  if (expect.empty()) {
    const Instance& owner = instance(device(first.index).instance);
    if (owner.is_default) return;  // it outlives the sequence
    expect = {model_.on_host && owner.linked ? GPUMEM_SUCCESS : GPUMEM_ERROR_UNSUPPORTED};
    // Running kernels would or would not be let.
    open_gates();
    for (size_t i = 0; i < model_.lines.size(); ++i) {
      const bool own = model_.lines[i].device == first.index;
      if (own && !model_.is_observed(model_.mark(static_cast<int>(i))) && !wait_for(static_cast<int>(i)))
        return;
    }
  }
  const gpumem_status status = call.check(
      expect, gpumem_host_foreign_peer_access(as<gpumem_device>(first.value), as<gpumem_device>(second.value),
                                              enabled, call.error()));
  if (status == GPUMEM_SUCCESS) device(first.index).foreign_peers[second.index] = enabled == 1;
}

void Player::step_host_set_current_device(Choice& choice) {
  Call call(*this, choice, "gpumem_host_set_current_device");
  const uint8_t byte = choice.byte();
  const int32_t ordinal = byte < kWrong ? byte % 65 - 1 : (byte % 2 == 0 ? 64 : -2);
  Out<int32_t> previous(choice, Out<int32_t>::Null::kGood);
  call.text("%d, %s", ordinal, previous.text());
  const gpumem_status status =
      call.check({byte < kWrong ? GPUMEM_SUCCESS : GPUMEM_ERROR_INVALID_ARGUMENT},
                 gpumem_host_set_current_device(ordinal, previous.pointer(), call.error()), previous);
  if (status != GPUMEM_SUCCESS) return;
  require(previous.is_null() || previous.get() == current_device_, "another device was current before");
  current_device_ = ordinal;
}

}  // namespace sequences
