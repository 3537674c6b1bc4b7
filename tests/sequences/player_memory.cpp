// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Steps that make, destroy and ask about memory.
#include <cstring>

#include "player.h"

namespace sequences {
namespace {

constexpr uint64_t kTooLarge = uint64_t{1} << 63;
constexpr gpumem_memory_flags kAllFlags =
    GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_WRITE_COMBINED | GPUMEM_MEMORY_READ_ONLY |
    GPUMEM_MEMORY_IOMEMORY | GPUMEM_MEMORY_PAGE_LOCKED | GPUMEM_MEMORY_NUMA_NODE | GPUMEM_MEMORY_ATTACH_HOST |
    GPUMEM_MEMORY_OVERSUBSCRIBE;
constexpr gpumem_memory_flags kManagedFlags = GPUMEM_MEMORY_ATTACH_HOST | GPUMEM_MEMORY_OVERSUBSCRIBE;

uint64_t pick_size(Choice& choice, bool large) {
  constexpr uint64_t kRight[] = {256, 1, 64, 100, 1000, 4096, 5000, 8192, 40000, 65536};
  constexpr uint64_t kWrongSizes[] = {0,       kTooLarge,      UINT64_MAX,        kTooLarge - 1,
                                      2 << 20, UINT64_MAX - 1, uint64_t{1} << 50, kTooLarge + 4096};
  const uint64_t size = choice.value(kRight, kWrongSizes);
  return large && size == 65536 ? Model::kLargeBytes : size;
}

constexpr gpumem_kind kKinds[] = {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED, GPUMEM_KIND_MANAGED};
constexpr gpumem_kind kNoKinds[] = {GPUMEM_KIND_REGISTERED,
                                    GPUMEM_KIND_PAGEABLE,
                                    GPUMEM_KIND_FOREIGN,
                                    GPUMEM_KIND_UNKNOWN,
                                    6,
                                    7,
                                    8,
                                    77,
                                    100,
                                    -1,
                                    INT32_MIN};

bool is_huge(uint64_t size) { return size >= uint64_t{1} << 40; }

gpumem_memory_flags flags_of(gpumem_kind kind) {
  switch (kind) {
    case GPUMEM_KIND_PINNED:
      return kAllFlags &
             ~gpumem_memory_flags{GPUMEM_MEMORY_READ_ONLY | GPUMEM_MEMORY_IOMEMORY | kManagedFlags};
    case GPUMEM_KIND_REGISTERED:
      return kAllFlags &
             ~gpumem_memory_flags{GPUMEM_MEMORY_WRITE_COMBINED | GPUMEM_MEMORY_NUMA_NODE | kManagedFlags};
    case GPUMEM_KIND_MANAGED:
      return kManagedFlags;
    default:
      return 0;
  }
}

gpumem_memory_flags pick_flags(Choice& choice) {
  const uint8_t byte = choice.byte();
  constexpr gpumem_memory_flags kRight[] = {
      0, GPUMEM_MEMORY_MAPPED,     GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED, GPUMEM_MEMORY_PORTABLE,
      0, GPUMEM_MEMORY_PAGE_LOCKED};
  if (byte < 150) return kRight[byte % std::size(kRight)];
  if (byte < kWrong) return gpumem_memory_flags{1} << byte % 9;
  constexpr int kUnknown[] = {11, 12, 31, 32, 63};  // the model does not know 9, SHAREABLE, and 10, IN_PIECES
  const size_t way = byte % (std::size(kUnknown) + 1);
  return way == std::size(kUnknown) ? UINT64_MAX : uint64_t{1} << kUnknown[way];
}

bool overlaps(uint64_t begin, uint64_t size, const uint8_t* base, uint64_t other) {
  const auto first = reinterpret_cast<uintptr_t>(base);
  return base != nullptr && begin < first + other && first < begin + size;
}

}  // namespace

bool Player::valid_request(const Request& request) {
  const bool registers = request.kind == GPUMEM_KIND_REGISTERED;
  const gpumem_memory_flags flags = request.require | request.prefer;
  const auto address = reinterpret_cast<uintptr_t>(request.pointer);
  const bool known_kind = registers || std::count(kKinds, std::end(kKinds), request.kind) == 1;
  const bool power_of_two = (request.alignment & (request.alignment - 1)) == 0;
  if (!known_kind || request.size == 0 || request.size >= kTooLarge || !power_of_two) return false;
  if ((flags & ~flags_of(request.kind)) != 0) return false;
  if ((flags & GPUMEM_MEMORY_NUMA_NODE) == 0 && request.numa_node != 0) return false;
  if (registers) {
    constexpr uint64_t kAddresses = uint64_t{1} << 56;  // no program has memory beyond
    return request.pointer != nullptr && request.alignment == 0 && request.size <= kAddresses &&
           address <= kAddresses - request.size;
  }
  return request.pointer == nullptr && request.alignment < kTooLarge &&
         request.size + request.alignment < kTooLarge;
}

// Requests whose outcome the interface leaves open, or that would disturb the machine.
bool Player::avoided(const Device& home, const Request& request) {
  const bool registers = request.kind == GPUMEM_KIND_REGISTERED;
  const gpumem_memory_flags flags = request.require | request.prefer;
  if (!valid_request(request)) return false;
  // The machine's NUMA nodes are another test's matter.
  if ((flags & GPUMEM_MEMORY_NUMA_NODE) != 0) return true;
  if (!model_.on_host && (flags & GPUMEM_MEMORY_IOMEMORY) != 0) return true;  // known only at the use
  if (!registers) return false;
  if (is_huge(request.size)) return true;
  const Found found = model_.find(home.instance, request.pointer, 1);
  const auto begin = reinterpret_cast<uintptr_t>(request.pointer);
  if (found.avoid) return true;
  const auto forbidden = reinterpret_cast<uintptr_t>(model_.arena.forbidden());
  if (begin + request.size > forbidden + model_.arena.page() && begin < forbidden) return true;
  // A range that lies behind what is asked for.
  for (const Range& other : model_.ranges)
    if (other.life == Life::kLive && overlaps(begin, request.size, other.base, other.size)) return true;
  for (const Buffer& other : model_.buffers)
    if (other.life == Life::kLive && overlaps(begin, request.size, other.base, other.reserved)) return true;
  for (const std::vector<Memory>* list : {&model_.memories, &model_.foreigns}) {
    for (const Memory& other : *list) {
      if (other.life != Life::kLive || (other.instance == home.instance && !other.foreign)) continue;
      for (const uint8_t* base : {other.host, other.address}) {
        // Two instances may register one range on host; the driver has one list for all.
        const bool fine = model_.on_host && base == other.host && other.kind == GPUMEM_KIND_REGISTERED;
        if (!fine && overlaps(begin, request.size, base, other.size)) return true;
      }
    }
  }
  return false;
}

// What stands against a request that is right by its values.
Expect Player::predict_create(const Device& home, const Request& request) {
  const Instance& owner = instance(home.instance);
  const gpumem_memory_flags flags = request.require | request.prefer;
  const bool registers = request.kind == GPUMEM_KIND_REGISTERED;
  const auto begin = reinterpret_cast<uintptr_t>(request.pointer);
  bool already = false;
  if (registers) {
    for (const Memory& other : model_.memories) {
      if (other.life != Life::kLive || other.instance != home.instance) continue;
      if (!overlaps(begin, request.size, other.host, other.size) &&
          !overlaps(begin, request.size, other.address, other.size)) {
        continue;
      }
      if (!other.pinned()) return {GPUMEM_ERROR_WRONG_KIND};
      already = true;
    }
  }
  if (home.lost) return {GPUMEM_ERROR_DEVICE_LOST};
  if (already) return {GPUMEM_ERROR_ALREADY_EXISTS};

  // The order of these is not laid down: whichever the library finds first.
  Expect refusals;
  if (registers) {
    const auto last = begin + request.size - 1;
    const auto within = [&](const uint8_t* base, uint64_t size) {
      return begin - reinterpret_cast<uintptr_t>(base) < size &&
             last - reinterpret_cast<uintptr_t>(base) < size;
    };
    const bool read_only = within(model_.arena.read_only(), model_.arena.page());
    if (!read_only && !within(model_.arena.writable(), model_.arena.size())) {
      refusals.push_back(GPUMEM_ERROR_INVALID_ARGUMENT);
    }
    if (owner.lacks("register")) refusals.push_back(GPUMEM_ERROR_SYMBOL_MISSING);
    if ((request.require & GPUMEM_MEMORY_IOMEMORY) != 0) refusals.push_back(GPUMEM_ERROR_UNSUPPORTED);
    if (read_only && (flags & GPUMEM_MEMORY_READ_ONLY) == 0) {
      refusals.push_back(GPUMEM_ERROR_PERMISSION_DENIED);
    }
  }
  if (owner.lock_off && (request.require & GPUMEM_MEMORY_PAGE_LOCKED) != 0) {
    refusals.push_back(GPUMEM_ERROR_UNSUPPORTED);
  }
  constexpr uint64_t kAlignmentMax = uint64_t{1} << 40;
  if (request.alignment > kAlignmentMax) refusals.push_back(GPUMEM_ERROR_UNSUPPORTED);
  const bool over_budget =
      owner.pin_budget != 0 && (registers || request.kind == GPUMEM_KIND_PINNED) &&
      (owner.pinned > owner.pin_budget || request.size > owner.pin_budget - owner.pinned);
  // What is charged for managed memory depends on pages.
  const uint64_t most = owner.stats.managed.live_bytes + request.size +
                        (owner.stats.managed.live_count + 1) * std::max<uint64_t>(home.granularity, 2 << 20);
  const bool over_managed =
      request.kind == GPUMEM_KIND_MANAGED && (flags & GPUMEM_MEMORY_OVERSUBSCRIBE) == 0 && most > home.total;
  if (over_managed && !refusals.empty()) refusals.push_back(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY);
  const bool over_count = registers && owner.registrations >= owner.registrations_max;
  if (over_budget || over_count) refusals.push_back(GPUMEM_ERROR_LIMIT_EXCEEDED);
  if (!refusals.empty()) return refusals;

  if (request.kind == GPUMEM_KIND_DEVICE) {
    const uint64_t charged = (request.size + home.granularity - 1) / home.granularity * home.granularity;
    if (charged > home.total - std::min(home.total, home.used)) {
      if (home.exact) return {GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY};
      return {GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, GPUMEM_SUCCESS};
    }
    if (!home.exact) return {GPUMEM_SUCCESS, GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY};
  } else if (request.kind == GPUMEM_KIND_MANAGED) {
    if (is_huge(request.size)) return {GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, GPUMEM_ERROR_OUT_OF_HOST_MEMORY};
    if (over_managed) return {GPUMEM_SUCCESS, GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY};
  } else if (is_huge(request.size)) {
    return {GPUMEM_ERROR_OUT_OF_HOST_MEMORY};
  }
  return {GPUMEM_SUCCESS};
}

// Takes a new memory into the model, after a look at what it says of itself.
void Player::adopt_memory(int home, const Request& request, uint64_t handle, const std::string& name) {
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  require(gpumem_memory_get_info(as<gpumem_memory>(handle), &info, nullptr) == GPUMEM_SUCCESS,
          "a new memory tells nothing");
  const gpumem_memory_flags asked = request.require | request.prefer;
  gpumem_memory_flags possible = asked;
  if (request.kind != GPUMEM_KIND_MANAGED) possible |= GPUMEM_MEMORY_PAGE_LOCKED;
  if (request.kind == GPUMEM_KIND_PINNED) possible |= GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED;
  require(info.kind == request.kind && info.size == request.size && info.alignment == request.alignment,
          "a new memory has another kind, size or alignment");
  require(info.requested_flags == asked, "the requested flags are not kept");
  require((info.granted_flags & request.require) == request.require && (info.granted_flags & ~possible) == 0,
          "the granted flags lack a required one, or have one that nobody asked for");
  require(info.device == as<gpumem_device>(device(home).handle) && name == info.name,
          "a new memory has another device or name");
  require(info.buffer_id > last_buffer_id_, "a buffer id was used before");
  last_buffer_id_ = info.buffer_id;
  const uint64_t alignment = std::max<uint64_t>(request.alignment, 256);
  for (const void* base : {info.host_pointer, info.device_pointer}) {
    require(request.kind == GPUMEM_KIND_REGISTERED || reinterpret_cast<uintptr_t>(base) % alignment == 0,
            "a new memory is not aligned");
  }
  const uint64_t granularity = device(home).granularity;
  require(info.granted_size >= info.size &&
              info.granted_size - info.size <= std::max<uint64_t>({granularity, 2 << 20, info.size / 8}),
          "more is charged than the contract allows");

  Memory made;
  made.handle = handle;
  made.instance = device(home).instance;
  made.device = home;
  made.kind = request.kind;
  made.size = request.size;
  made.alignment = request.alignment;
  made.requested = asked;
  made.granted = info.granted_flags;
  made.host = static_cast<uint8_t*>(info.host_pointer);
  made.address = static_cast<uint8_t*>(info.device_pointer);
  made.buffer_id = info.buffer_id;
  made.name = name;
  if (request.kind == GPUMEM_KIND_REGISTERED) {
    require(info.host_pointer == request.pointer, "registered memory has another address");
    const bool read_only = request.pointer >= model_.arena.read_only();
    made.region = read_only ? Model::kReadOnlyRegion : Model::kArenaRegion;
    made.at = static_cast<uint64_t>(request.pointer -
                                    (read_only ? model_.arena.read_only() : model_.arena.writable()));
    require((made.address != nullptr) == made.has(GPUMEM_MEMORY_MAPPED),
            "registered memory has a device pointer exactly if it is mapped");
    require(!instance(made.instance).same_pointer || made.address == nullptr || made.address == made.host,
            "registered memory has a device address of its own");
  } else {
    made.region = model_.add_region(made.host, made.size);
    if (request.kind == GPUMEM_KIND_DEVICE) {
      made.charged = (request.size + granularity - 1) / granularity * granularity;
      require(made.host == nullptr && made.address != nullptr,
              "device memory has an address for devices only");
    } else {
      require(made.host != nullptr && made.address != nullptr, "memory of the host has both addresses");
      require(made.has(GPUMEM_MEMORY_WRITE_COMBINED) || made.host == made.address,
              "memory of the host has another address for devices");
      const uint64_t shift = reinterpret_cast<uintptr_t>(made.host) % model_.arena.page();
      if (request.kind == GPUMEM_KIND_MANAGED)
        made.pages.resize((shift + made.size) / model_.arena.page() + 1);
    }
  }
  ++model_.objects_made;
  model_.add_memory(made);
}

// The same for memory that was made by its pointer.
void Player::created_memory(int home, const Request& request, void* pointer) {
  gpumem_pointer_info info = GPUMEM_POINTER_INFO_INIT;
  require(gpumem_pointer_get_info(as<gpumem_instance>(instance(device(home).instance).handle), pointer, &info,
                                  nullptr) == GPUMEM_SUCCESS &&
              info.memory != nullptr && info.base == pointer,
          "the pointer of new memory is not known");
  adopt_memory(home, request, value_of(info.memory), "");
}

// Flags that are only preferred.
gpumem_memory_flags Player::pick_preferred(Choice& choice, const Request& request) {
  const uint8_t byte = choice.byte();
  constexpr int kUnknown[] = {11, 31, 32, 63};
  if (byte >= kWrong) return uint64_t{1} << kUnknown[byte % std::size(kUnknown)];
  if (!model_.on_host || byte % 16 != 15) return 0;
  if (request.kind == GPUMEM_KIND_PINNED) return GPUMEM_MEMORY_WRITE_COMBINED;
  return request.kind == GPUMEM_KIND_REGISTERED ? GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED : 0;
}

void Player::step_memory_create(Choice& choice) {
  Call call(*this, choice, "gpumem_memory_create");
  const Picked home = pick_device(choice);
  Request request;
  request.kind = choice.value(kKinds, kNoKinds);
  request.size = pick_size(choice, model_.large);
  request.require = pick_flags(choice);
  if (request.require <= kAllFlags && choice.byte() < 180) request.require &= flags_of(request.kind);
  constexpr uint64_t kAlignments[] = {0, 256, 4096, 65536, uint64_t{1} << 21, 1};
  constexpr uint64_t kNoAlignments[] = {3, kTooLarge, uint64_t{1} << 41, 4097, 384, UINT64_MAX};
  request.alignment = choice.value(kAlignments, kNoAlignments);
  request.prefer = pick_preferred(choice, request);
  request.numa_node = choice.byte() < kWrong ? 0 : 1;
  // Driver memory with a large alignment and write combining is refused on cuda, which no capability tells.
  if (!model_.on_host && (request.require & GPUMEM_MEMORY_WRITE_COMBINED) != 0) request.alignment = 0;
  const Name name(choice);
  Out<gpumem_memory> out(choice);
  Sized<gpumem_memory_desc> desc(choice, GPUMEM_MEMORY_DESC_INIT, Sized<gpumem_memory_desc>::Null::kBad);
  desc->kind = request.kind;
  desc->size = request.size;
  desc->alignment = request.alignment;
  desc->require = request.require;
  desc->prefer = request.prefer;
  desc->numa_node = request.numa_node;
  desc->name = name.pointer();
  const bool valid = request.kind != GPUMEM_KIND_REGISTERED && valid_request(request);
  call.text("%s, &%s{kind %d, alignment %llu, node %d, %s}, %s", home.text.c_str(), desc.text().c_str(),
            request.kind, static_cast<unsigned long long>(request.alignment), request.numa_node,
            text_of(request, name).c_str(), out.text());
  do_create(call, home, request, valid && name.good(), desc, out, name, gpumem_memory_create);
}

std::string Player::text_of(const Request& request, const Name& name) {
  char text[160];
  std::snprintf(text, sizeof text, "size %llu, require 0x%llx, prefer 0x%llx, name of %zu bytes",
                static_cast<unsigned long long>(request.size),
                static_cast<unsigned long long>(request.require),
                static_cast<unsigned long long>(request.prefer), name.text().size());
  return text;
}

// What is to be answered to a request; nothing if it is to be left out.
std::optional<Expect> Player::expect_create(const Picked& home, const Request& request, bool good) {
  if (home.wrong.empty() && good && avoided(device(home.index), request)) return std::nullopt;
  Verdict verdict;
  verdict.handle(home.wrong);
  verdict.require(good);
  if (!verdict.done().empty()) return verdict.done();
  if (!model_.on_host) open_gates();  // the driver may wait for the device
  return with_faults(predict_create(device(home.index), request), device(home.index).instance);
}

template <class Desc>
void Player::do_create(Call& call, const Picked& home, const Request& request, bool good, Sized<Desc>& desc,
                       Out<gpumem_memory>& out, const Name& name,
                       gpumem_status (*make)(gpumem_device, const Desc*, gpumem_memory*, gpumem_error*)) {
  const std::optional<Expect> expect = expect_create(home, request, good && out.good() && desc.good());
  if (!expect) return;
  const gpumem_status status = call.check(
      *expect, make(as<gpumem_device>(home.value), desc.pointer(), out.pointer(), call.error()), out);
  if (status == GPUMEM_SUCCESS) adopt_memory(home.index, request, value_of(out.get()), name.text());
}

// A range to be registered, mostly inside its object.
Player::Request Player::pick_registration(Choice& choice, const Address& at) {
  Request request;
  request.kind = GPUMEM_KIND_REGISTERED;
  request.pointer = at.pointer;
  request.size = pick_size(choice, model_.large);
  if (request.size > at.left && request.size <= 65536 && at.left > 0) request.size = at.left;
  request.require = pick_flags(choice);
  return request;
}

void Player::step_memory_register(Choice& choice) {
  Call call(*this, choice, "gpumem_memory_register");
  const Picked home = pick_device(choice);
  const Address at = pick_address(choice, home.index < 0 ? 0 : device(home.index).instance);
  Request request = pick_registration(choice, at);
  if (request.require <= kAllFlags && choice.byte() < 180) request.require &= flags_of(request.kind);
  request.prefer = pick_preferred(choice, request);
  const Name name(choice);
  Out<gpumem_memory> out(choice);
  Sized<gpumem_register_desc> desc(choice, GPUMEM_REGISTER_DESC_INIT,
                                   Sized<gpumem_register_desc>::Null::kBad);
  desc->pointer = request.pointer;
  desc->size = request.size;
  desc->require = request.require;
  desc->prefer = request.prefer;
  desc->name = name.pointer();
  call.text("%s, &%s{at %s, %s}, %s", home.text.c_str(), desc.text().c_str(), at.text.c_str(),
            text_of(request, name).c_str(), out.text());
  do_create(call, home, request, valid_request(request) && name.good(), desc, out, name,
            gpumem_memory_register);
}

void Player::step_malloc(Choice& choice) {
  Call call(*this, choice, "gpumem_malloc");
  const Picked home = pick_device(choice);
  Request request;
  request.kind = choice.value(kKinds, kNoKinds);
  request.size = pick_size(choice, model_.large);
  Out<void*> out(choice);
  call.text("%s, %d, %llu, %s", home.text.c_str(), request.kind,
            static_cast<unsigned long long>(request.size), out.text());
  const std::optional<Expect> expect = expect_create(
      home, request, out.good() && valid_request(request) && request.kind != GPUMEM_KIND_REGISTERED);
  if (!expect) return;
  const gpumem_status status = call.check(
      *expect,
      gpumem_malloc(as<gpumem_device>(home.value), request.kind, request.size, out.pointer(), call.error()),
      out);
  if (status == GPUMEM_SUCCESS) created_memory(home.index, request, out.get());
}

void Player::step_register(Choice& choice) {
  Call call(*this, choice, "gpumem_register");
  const Picked home = pick_device(choice);
  const Address at = pick_address(choice, home.index < 0 ? 0 : device(home.index).instance);
  const Request request = pick_registration(choice, at);
  call.text("%s, %s, %llu, 0x%llx", home.text.c_str(), at.text.c_str(),
            static_cast<unsigned long long>(request.size), static_cast<unsigned long long>(request.require));
  const std::optional<Expect> expect = expect_create(home, request, valid_request(request));
  if (!expect) return;
  const gpumem_status status =
      call.check(*expect, gpumem_register(as<gpumem_device>(home.value), at.pointer, request.size,
                                          request.require, call.error()));
  if (status == GPUMEM_SUCCESS) created_memory(home.index, request, at.pointer);
}

// Makes sure that freeing a memory is no mistake that the library cannot see.
bool Player::settle(const Memory& memory) {
  const uint64_t end = memory.at + memory.size;
  const Instance& owner = instance(memory.instance);
  if (model_.on_host && model_.lost(memory.device)) {
    // Freed whoever uses it, so what another device does with it must be over.
    const std::vector<Use> uses = memory.uses;
    return std::all_of(uses.begin(), uses.end(), [&](const Use& use) {
      return model_.is_observed(use.line, use.number) || model_.lost(line(use.line).device) ||
             wait_for(use.line);
    });
  }
  if (!model_.on_host || !owner.strict) {
    if (!model_.on_host) open_gates();
    // Hints touch no byte, but they use the memory.
    const std::vector<Use> uses = memory.uses;
    for (const Use& use : uses) {
      const bool hint = !use.certain && !model_.is_observed(use.line, use.number);
      if (hint && !model_.lost(line(use.line).device) && !wait_for(use.line)) return false;
    }
    return order(-1, memory.region, memory.at, end, true);
  }
  // Work of another instance is not known to this one, nor is that of a kernel before it runs.
  const std::vector<Access> accesses = region(memory.region).accesses;
  for (const Access& access : accesses) {
    if (access.end <= memory.at || access.begin >= end || model_.is_observed(access.line, access.number))
      continue;
    if (device(line(access.line).device).instance != memory.instance && !wait_for(access.line)) return false;
  }
  const std::vector<Use> uses = memory.uses;
  for (const Use& use : uses) {
    if (use.certain || model_.is_observed(use.line, use.number) || model_.lost(line(use.line).device))
      continue;
    if (!wait_for(use.line)) return false;
  }
  return true;
}

void Player::forget_memory(Memory& gone) {
  if (gone.kind != GPUMEM_KIND_REGISTERED) keep_freed(gone.address, gone.instance);
  model_.remove_memory(gone);
}

// Notes memory that was freed, if its instance keeps the address from everybody for a while.
void Player::keep_freed(uint8_t* address, int owner) {
  constexpr size_t kQuarantined = 32;  // half of what the host backend keeps inaccessible
  if (!model_.on_host || !instance(owner).strict) return;
  model_.freed.push_back({address, owner});
  if (model_.freed.size() > kQuarantined) model_.freed.erase(model_.freed.begin());
}

void Player::step_memory_destroy(Choice& choice) {
  Call call(*this, choice, "gpumem_memory_destroy");
  const Picked chosen = pick_memory(choice);
  Expect expect = chosen.wrong;
  if (chosen.value == 0) expect = {GPUMEM_SUCCESS};
  if (expect.empty()) {
    if (!settle(memory(chosen.index))) return;
    expect = model_.destroyed(memory(chosen.index));
  }
  call.text("%s", chosen.text.c_str());
  const gpumem_status status =
      call.check(expect, gpumem_memory_destroy(as<gpumem_memory>(chosen.value), call.error()));
  if (status == GPUMEM_SUCCESS && chosen.index >= 0) forget_memory(memory(chosen.index));
}

void Player::do_free(Choice& choice, bool registered) {
  Call call(*this, choice, registered ? "gpumem_unregister" : "gpumem_free");
  const Picked owner = pick_instance(choice);
  const Address at = pick_base(choice, std::max(owner.index, 0));
  call.text("%s, %s", owner.text.c_str(), at.text.c_str());
  Verdict verdict;
  verdict.handle(owner.wrong);
  if (registered) verdict.require(at.pointer != nullptr);
  Expect expect = verdict.done();
  int found = -1;
  if (expect.empty() && at.pointer == nullptr) expect = {GPUMEM_SUCCESS};
  if (expect.empty()) {
    for (size_t i = 0; i < model_.memories.size(); ++i) {
      const Memory& candidate = model_.memories[i];
      if (candidate.life != Life::kLive || candidate.instance != owner.index) continue;
      const bool by_host = candidate.holds(candidate.host, at.pointer);
      if (!by_host && !candidate.holds(candidate.address, at.pointer)) continue;
      found = static_cast<int>(i);
      const bool at_start = at.pointer == candidate.host || (!registered && at.pointer == candidate.address);
      if ((candidate.kind == GPUMEM_KIND_REGISTERED) != registered) {
        expect = {GPUMEM_ERROR_WRONG_KIND};
      } else if (!at_start) {
        expect = {GPUMEM_ERROR_INVALID_ARGUMENT};
      }
    }
    if (found < 0) expect = {GPUMEM_ERROR_NOT_FOUND};
    if (expect.empty()) {
      if (!settle(memory(found))) return;
      expect = model_.destroyed(memory(found));
    }
  }
  const auto handle = as<gpumem_instance>(owner.value);
  const gpumem_status status =
      call.check(expect, registered ? gpumem_unregister(handle, at.pointer, call.error())
                                    : gpumem_free(handle, at.pointer, call.error()));
  if (status == GPUMEM_SUCCESS && found >= 0) forget_memory(memory(found));
}

void Player::step_free(Choice& choice) { do_free(choice, false); }
void Player::step_unregister(Choice& choice) { do_free(choice, true); }

void Player::step_memory_get_info(Choice& choice) {
  const auto told = ask_info(choice, "gpumem_memory_get_info", &Player::pick_memory, gpumem_memory_get_info);
  if (!told) return;
  const auto& [index, info] = *told;
  const Memory& known = memory(index);
  require(info.kind == known.kind && info.size == known.size && info.host_pointer == known.host &&
              info.device_pointer == known.address && info.granted_flags == known.granted &&
              info.requested_flags == known.requested && info.buffer_id == known.buffer_id &&
              info.alignment == known.alignment && info.reserved == 0 && info.name == known.name &&
              info.device_ordinal == device(known.device).ordinal,
          "a memory tells something else than before");
}

Expect Player::reachable(const Memory& memory, int home, bool write) const {
  if (memory.kind != GPUMEM_KIND_REGISTERED) return {};
  const bool portable = memory.device == home || memory.has(GPUMEM_MEMORY_PORTABLE);
  const bool writable = !write || !memory.has(GPUMEM_MEMORY_READ_ONLY);
  if (memory.has(GPUMEM_MEMORY_MAPPED) && portable && writable) return {};
  return {GPUMEM_ERROR_NO_ACCESS};
}

void Player::step_pointer_get_info(Choice& choice) {
  Call call(*this, choice, "gpumem_pointer_get_info");
  const Picked owner = pick_instance(choice);
  const Address at = pick_address(choice, std::max(owner.index, 0));
  Answer<gpumem_pointer_info> info(choice);
  call.text("%s, %s, %s", owner.text.c_str(), at.text.c_str(), info.text().c_str());
  Verdict verdict;
  verdict.handle(owner.wrong);
  verdict.require(at.pointer != nullptr && info.good());
  Expect expect = verdict.done();
  Found found;
  if (expect.empty()) {
    expect = {GPUMEM_SUCCESS};
    found = model_.find(owner.index, at.pointer, 1);
    if (found.avoid) return;
  }
  const gpumem_status status = call.check(
      expect,
      gpumem_pointer_get_info(as<gpumem_instance>(owner.value), at.pointer, info.pointer(), call.error()),
      info);
  if (status != GPUMEM_SUCCESS) return;
  if (!found.wrong.empty()) {
    require(info->kind == GPUMEM_KIND_UNKNOWN && info->memory == nullptr,
            "nothing is there, but something is told");
    return;
  }
  require(info->kind == found.kind, "the address is of another kind: " + std::to_string(info->kind));
  if (found.memory < 0) {
    require(info->location == GPUMEM_LOCATION_HOST && info->location_id == -1 && info->device_ordinal == -1 &&
                info->host_pointer == at.pointer && info->device_pointer == nullptr &&
                info->base == nullptr && info->size == 0 && info->buffer_id == 0 && info->memory == nullptr &&
                info->buffer == nullptr,
            "ordinary memory is told something else of");
    return;
  }
  const Memory& known = memory_of(found);
  require(info->base == found.base && info->size == known.size, "the address has another base or size");
  require(info->device_ordinal == static_cast<int32_t>(device(known.device).ordinal),
          "the address has another device");
  require((info->location == GPUMEM_LOCATION_DEVICE) == (known.kind == GPUMEM_KIND_DEVICE),
          "the address has another location");
  if (known.foreign) {
    require(info->memory == nullptr && info->buffer == nullptr, "foreign memory is told too much of");
    return;
  }
  const auto shifted = [&](uint8_t* base) { return base == nullptr ? nullptr : base + found.offset; };
  require(info->host_pointer == shifted(known.host) && info->device_pointer == shifted(known.address),
          "the byte has other addresses");
  require(info->buffer_id == known.buffer_id && info->granted_flags == known.granted &&
              value_of(info->memory) == known.handle && info->buffer == nullptr,
          "the address belongs to another memory");
}

// What a device, or the CPU if it is -1, may do at an address that is nobody's mistake.
gpumem_access Player::access_of(const Found& found, int home) {
  if (!found.wrong.empty()) return GPUMEM_ACCESS_NONE;
  if (found.kind == GPUMEM_KIND_FOREIGN) return GPUMEM_ACCESS_UNKNOWN;
  const bool by_cpu = home < 0;
  if (found.memory < 0) {
    if (!by_cpu) return GPUMEM_ACCESS_NONE;
    return found.writable ? GPUMEM_ACCESS_READWRITE : GPUMEM_ACCESS_READ;
  }
  const Memory& known = memory(found.memory);
  bool reads = true;
  bool writes = true;
  if (by_cpu) {
    writes = known.region != Model::kReadOnlyRegion;
    if (known.kind == GPUMEM_KIND_DEVICE) {
      reads = writes = model_.on_host && !instance(known.instance).strict && !model_.lost(known.device);
    }
  } else if (known.kind == GPUMEM_KIND_DEVICE) {
    const auto peer = device(home).peers.find(known.device);
    reads = writes = home == known.device || (peer != device(home).peers.end() && peer->second > 0);
  } else {
    reads = reachable(known, home, false).empty();
    writes = reachable(known, home, true).empty();
  }
  if (writes) return GPUMEM_ACCESS_READWRITE;
  return reads ? GPUMEM_ACCESS_READ : GPUMEM_ACCESS_NONE;
}

void Player::step_pointer_get_access(Choice& choice) {
  Call call(*this, choice, "gpumem_pointer_get_access");
  const Picked owner = pick_instance(choice);
  const Address at = pick_address(choice, std::max(owner.index, 0));
  const bool live = owner.wrong.empty();
  const size_t count = live ? instance(owner.index).devices.size() : 1;
  const uint8_t byte = choice.byte();
  gpumem_location location = byte % 3 == 0 ? GPUMEM_LOCATION_HOST : GPUMEM_LOCATION_DEVICE;
  const bool by_cpu = location == GPUMEM_LOCATION_HOST;
  int32_t id = by_cpu ? -(byte % 2) : static_cast<int32_t>(byte % count);
  bool good = true;
  if (byte >= kWrong) {
    good = false;
    if (byte % 4 == 0) location = GPUMEM_LOCATION_HOST_NUMA, id = 0;
    if (byte % 4 == 1) location = GPUMEM_LOCATION_NONE;
    if (byte % 4 == 2) id = by_cpu ? 1 : -1;
    // How many devices there are is known of an open instance only.
    if (byte % 4 == 3) id = by_cpu ? -2 : static_cast<int32_t>(count), good = !by_cpu && !live;
  }
  Out<gpumem_access> out(choice);
  call.text("%s, %s, %d, %d, %s", owner.text.c_str(), at.text.c_str(), location, id, out.text());
  Verdict verdict;
  verdict.handle(owner.wrong);
  // Of no open instance, an ordinal below zero is not looked at.
  if (byte >= kWrong && byte % 4 == 2 && !by_cpu && !live) good = true;
  verdict.require(at.pointer != nullptr && out.good() && good);
  Expect expect = verdict.done();
  Found found;
  if (expect.empty()) {
    expect = {GPUMEM_SUCCESS};
    found = model_.find(owner.index, at.pointer, 1);
    if (found.avoid) return;
  }
  const gpumem_status status =
      call.check(expect,
                 gpumem_pointer_get_access(as<gpumem_instance>(owner.value), at.pointer, location, id,
                                           out.pointer(), call.error()),
                 out);
  if (status != GPUMEM_SUCCESS) return;
  const int home = by_cpu ? -1 : instance(owner.index).devices[static_cast<size_t>(id)];
  const gpumem_access expected = access_of(found, home);
  require(out.get() == expected,
          "the access is " + std::to_string(out.get()) + "; expected " + std::to_string(expected));
}

void Player::step_pointer_get_device_pointer(Choice& choice) {
  Call call(*this, choice, "gpumem_pointer_get_device_pointer");
  const Picked home = pick_device(choice);
  const Address at = pick_address(choice, home.index < 0 ? 0 : device(home.index).instance);
  Out<void*> out(choice);
  call.text("%s, %s, %s", home.text.c_str(), at.text.c_str(), out.text());
  Verdict verdict;
  verdict.handle(home.wrong);
  verdict.require(at.pointer != nullptr && out.good());
  Expect expect = verdict.done();
  const void* expected = nullptr;
  if (expect.empty()) {
    const Found found = model_.find(device(home.index).instance, at.pointer, 1);
    if (found.avoid) return;
    expect = found.wrong;
    if (expect.empty() && found.memory < 0) {
      expect = {model_.lost(home.index) ? GPUMEM_ERROR_DEVICE_LOST : GPUMEM_ERROR_UNSUPPORTED};
    } else if (expect.empty() && found.kind == GPUMEM_KIND_FOREIGN) {
      expected = at.pointer;
      expect = {model_.lost(home.index) ? GPUMEM_ERROR_DEVICE_LOST : GPUMEM_SUCCESS};
    } else if (expect.empty()) {
      expect = reachable(memory(found.memory), home.index, false);
      uint8_t* const base = memory(found.memory).address;
      expected = base == nullptr ? nullptr : base + found.offset;
    }
    if (expect.empty()) expect = {GPUMEM_SUCCESS};
  }
  const gpumem_status status =
      call.check(expect,
                 gpumem_pointer_get_device_pointer(as<gpumem_device>(home.value), at.pointer, out.pointer(),
                                                   call.error()),
                 out);
  if (status == GPUMEM_SUCCESS) require(out.get() == expected, "the byte has another address for devices");
}

}  // namespace sequences
