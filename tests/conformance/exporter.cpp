// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "exporter.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <variant>

#include "buffers.h"
#include "pools.h"

namespace conformance {

namespace {

enum Do : int32_t {
  kAlloc,
  kBuffer,
  kPoolBlock,
  kTrimPool,
  kEvent,
  kDestroy,
  kResize,
  kPut,
  kHolds,
  kShare,
  kRevoke,
  kSend,
  kImport,
  kRecord,
  kLetGo,
  kOpenHub,
  kPublish,
  kWithdraw,
  kCloseHub,
  kUseUp,
  kDeposit,
  kEnd,
};

void limit_descriptors(rlim_t most) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min(limit.rlim_max, most);
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

struct Exporter::Order {
  int32_t what = kEnd;
  int32_t access = 0;
  uint64_t number = 0;
  uint64_t offset = 0;
  uint64_t size = 0;
  uint64_t value = 0;
  uint64_t flags = 0;
  gpumem_share_handle handle{};
  char text[128] = "";
  char more[64] = "";
};

struct Exporter::Answer {
  gpumem_status status = GPUMEM_ERROR_INTERNAL;
  uint64_t value = 0;
  gpumem_share_handle handle{};
};

namespace {

using Order = Exporter::Order;
using Answer = Exporter::Answer;

// The other process.
class Side {
 public:
  void run() {
    Order order;
    while (receive_bytes(Peer::other_side(), &order, sizeof order)) {
      const Answer answer = obey(order);
      if (!send_bytes(Peer::other_side(), &answer, sizeof answer) || order.what == kEnd) break;
    }
    gpumem_link_close(link_, nullptr);
    gpumem_hub_close(hub_, nullptr);
    bool held = false;
    for (auto& [number, made] : made_)
      held = release(made) == GPUMEM_ERROR_BUSY || held;
    if (held) instance_.release();  // by an importer, who is told when this process ends
  }

 private:
  struct Made {
    gpumem_memory memory = nullptr;
    gpumem_buffer buffer = nullptr;
    gpumem_event event = nullptr;
    gpumem_pool pool = nullptr;  // of the block at `base`
    uint8_t* base = nullptr;
  };

  static gpumem_status release(const Made& made) {
    if (made.pool != nullptr) return gpumem_pool_free(made.pool, made.base, nullptr, nullptr);
    if (made.memory != nullptr) return gpumem_memory_destroy(made.memory, nullptr);
    if (made.buffer != nullptr) return gpumem_buffer_destroy(made.buffer, nullptr);
    return gpumem_event_destroy(made.event, nullptr);
  }

  Answer obey(const Order& order) {
    Answer answer;
    answer.status = GPUMEM_SUCCESS;
    const auto known = made_.find(order.number);
    Made made = known != made_.end() ? known->second : Made();
    switch (order.what) {
      case kAlloc: {
        const gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_DEVICE, order.size, order.flags);
        answer.status = gpumem_memory_create(device_, &desc, &made.memory, why());
        if (made.memory != nullptr) made.base = pointer_of(made.memory);
        answer.value = keep(made);
        break;
      }
      case kBuffer: {
        gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
        desc.size = order.size;
        desc.reserve = uint64_t{64} << 20;
        desc.location = static_cast<gpumem_location>(order.value);
        desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
        answer.status = gpumem_buffer_create(device_, &desc, &made.buffer, why());
        if (made.buffer != nullptr) made.base = base_of(made.buffer);
        answer.value = keep(made);
        break;
      }
      case kPoolBlock: {
        if (!pool_) {
          gpumem_pool_desc desc = pool_desc();
          desc.memory_flags = order.flags;
          if (order.flags == 0) desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
          pool_ = create_pool(device_, desc);
        }
        made.pool = pool_;
        void* block = nullptr;
        answer.status = gpumem_pool_alloc(pool_, order.size, nullptr, &block, why());
        made.base = static_cast<uint8_t*>(block);
        answer.value = keep(made);
        break;
      }
      case kTrimPool:
        answer.status = gpumem_pool_trim(pool_, 0, nullptr, why());
        answer.value = info_of(pool_).reserved_bytes;
        break;
      case kEvent: {
        gpumem_event_desc desc = GPUMEM_EVENT_DESC_INIT;
        desc.flags = GPUMEM_EVENT_INTERPROCESS | GPUMEM_EVENT_DISABLE_TIMING;
        answer.status = gpumem_event_create(device_, &desc, &made.event, why());
        answer.value = keep(made);
        break;
      }
      case kDestroy:
        answer.status = release(made);
        if (answer.status == GPUMEM_SUCCESS) made_.erase(order.number);
        break;
      case kResize:
        answer.status = gpumem_buffer_resize(made.buffer, order.size, why());
        break;
      case kPut:
        put_pattern(instance_, made.base + order.offset, order.size, static_cast<uint32_t>(order.value));
        break;
      case kHolds:
        answer.value =
            holds_pattern(instance_, made.base + order.offset, order.size, static_cast<uint32_t>(order.value))
                ? 1
                : 0;
        break;
      case kShare:
        if (made.event != nullptr) {
          answer.status = gpumem_event_export(made.event, &answer.handle, why());
        } else {
          gpumem_export_desc desc = GPUMEM_EXPORT_DESC_INIT;
          desc.way = static_cast<gpumem_share_way>(order.value);
          desc.access = order.access;
          desc.flags = order.flags;
          answer.status =
              gpumem_share_export(instance_, made.base + order.offset, &desc, &answer.handle, why());
        }
        break;
      case kRevoke:
        answer.status = gpumem_share_revoke(instance_, &order.handle, why());
        break;
      case kSend: {
        gpumem_send_desc desc = GPUMEM_SEND_DESC_INIT;
        desc.lease_ns = order.value;
        answer.status = gpumem_share_send(instance_, &order.handle, Peer::other_side(), &desc, why());
        break;
      }
      case kImport: {
        gpumem_memory memory = nullptr;
        answer.status =
            gpumem_share_import(instance_, &order.handle, nullptr, 0, nullptr, nullptr, &memory, why());
        made.memory = memory;
        if (memory != nullptr) keep(made);
        break;
      }
      case kRecord:
        if (order.flags != 0) gate_.emplace().hold(stream_);
        answer.status = gpumem_event_record(made.event, stream_, why());
        break;
      case kLetGo:
        gate_.reset();
        stream_.synchronize();
        break;
      case kOpenHub: {
        gpumem_hub_desc desc = GPUMEM_HUB_DESC_INIT;
        desc.path = order.text;
        desc.token = order.more[0] != '\0' ? order.more : nullptr;
        desc.token_size = static_cast<uint32_t>(std::strlen(order.more));
        desc.flags = order.flags;
        desc.names_max = static_cast<uint32_t>(order.value);
        answer.status = gpumem_hub_open(instance_, &desc, &hub_, why());
        break;
      }
      case kEnd:
        // UndefinedBehaviorSanitizer needs some to look at an object of a type that it has not seen yet.
        limit_descriptors(RLIM_INFINITY);
        break;
      case kUseUp: {
        limit_descriptors(256);
        while (dup(Peer::other_side()) >= 0) {
        }
        answer.status = errno == EMFILE ? GPUMEM_SUCCESS : GPUMEM_ERROR_INTERNAL;
        break;
      }
      case kPublish: {
        gpumem_publish_desc desc = GPUMEM_PUBLISH_DESC_INIT;
        desc.version = order.value;
        desc.keep = static_cast<uint32_t>(order.size);
        desc.access = order.access;
        desc.fingerprint[0] = static_cast<uint8_t>(order.flags);
        answer.status = gpumem_hub_publish(hub_, order.text, &order.handle, &desc, &answer.value, why());
        break;
      }
      case kWithdraw:
        answer.status = gpumem_hub_withdraw(hub_, order.text, order.value, why());
        break;
      case kCloseHub:
        answer.status = gpumem_hub_close(std::exchange(hub_, nullptr), why());
        break;
      case kDeposit: {
        gpumem_link_desc desc = GPUMEM_LINK_DESC_INIT;
        desc.path = order.text;
        answer.status = gpumem_link_connect(instance_, &desc, &link_, why());
        if (answer.status == GPUMEM_SUCCESS)
          answer.status =
              gpumem_link_publish(link_, order.more, &order.handle, nullptr, &answer.value, why());
        break;
      }
      default:
        break;
    }
    return answer;
  }

  uint64_t keep(const Made& made) {
    made_.emplace(++last_, made);
    return last_;
  }
  static uint8_t* pointer_of(gpumem_memory memory) {
    gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
    EXPECT_OK(gpumem_memory_get_info(memory, &info, why()));
    return static_cast<uint8_t*>(info.device_pointer);
  }
  static uint8_t* base_of(gpumem_buffer buffer) {
    gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
    EXPECT_OK(gpumem_buffer_get_info(buffer, &info, why()));
    return static_cast<uint8_t*>(info.base);
  }

  Instance instance_ = open_instance([](gpumem_instance_desc&, gpumem_host_options& options) {
    options.peers = child_arguments().at(0).c_str();
    if (!child_arguments().at(1).empty()) options.masked = child_arguments().at(1).c_str();
  });
  gpumem_device device_ = instance_.device();
  Stream stream_ = create_stream(device_);
  std::optional<Gate> gate_;
  Pool pool_;
  std::map<uint64_t, Made> made_;
  uint64_t last_ = 0;
  gpumem_hub hub_ = nullptr;
  gpumem_link link_ = nullptr;
};

}  // namespace

CHILD(exporter) { Side().run(); }

Answer Exporter::ask(const Order& order) {
  EXPECT_TRUE(send_bytes(peer_.socket(), &order, sizeof order)) << "the exporter has ended";
  return hear();
}

Answer Exporter::hear() {
  Answer answer;
  EXPECT_TRUE(receive_bytes(peer_.socket(), &answer, sizeof answer)) << "the exporter has ended";
  return answer;
}

uint64_t Exporter::alloc(uint64_t size, gpumem_memory_flags require) {
  Order order;
  order.what = kAlloc;
  order.size = size;
  order.flags = require;
  const Answer answer = ask(order);
  EXPECT_EQ(answer.status, GPUMEM_SUCCESS);
  return answer.value;
}

uint64_t Exporter::buffer(uint64_t size, gpumem_location location) {
  Order order;
  order.what = kBuffer;
  order.size = size;
  order.value = static_cast<uint64_t>(location);
  const Answer answer = ask(order);
  EXPECT_EQ(answer.status, GPUMEM_SUCCESS);
  return answer.value;
}

uint64_t Exporter::pool_block(uint64_t size, gpumem_memory_flags flags) {
  Order order;
  order.what = kPoolBlock;
  order.size = size;
  order.flags = flags;
  const Answer answer = ask(order);
  EXPECT_EQ(answer.status, GPUMEM_SUCCESS);
  return answer.value;
}

uint64_t Exporter::trim_pool() {
  Order order;
  order.what = kTrimPool;
  const Answer answer = ask(order);
  EXPECT_EQ(answer.status, GPUMEM_SUCCESS);
  return answer.value;
}

uint64_t Exporter::event() {
  Order order;
  order.what = kEvent;
  const Answer answer = ask(order);
  EXPECT_EQ(answer.status, GPUMEM_SUCCESS);
  return answer.value;
}

gpumem_status Exporter::destroy(uint64_t number) {
  Order order;
  order.what = kDestroy;
  order.number = number;
  return ask(order).status;
}

gpumem_status Exporter::resize(uint64_t number, uint64_t size) {
  Order order;
  order.what = kResize;
  order.number = number;
  order.size = size;
  return ask(order).status;
}

void Exporter::put(uint64_t number, uint64_t offset, uint64_t size, uint32_t seed) {
  Order order;
  order.what = kPut;
  order.number = number;
  order.offset = offset;
  order.size = size;
  order.value = seed;
  ask(order);
}

bool Exporter::holds(uint64_t number, uint64_t offset, uint64_t size, uint32_t seed) {
  Order order;
  order.what = kHolds;
  order.number = number;
  order.offset = offset;
  order.size = size;
  order.value = seed;
  return ask(order).value == 1;
}

Exporter::Shared Exporter::try_share(uint64_t number, uint64_t offset, const gpumem_export_desc& desc) {
  Order order;
  order.what = kShare;
  order.number = number;
  order.offset = offset;
  order.value = static_cast<uint64_t>(desc.way);
  order.access = desc.access;
  order.flags = desc.flags;
  const Answer answer = ask(order);
  return {answer.status, answer.handle};
}

gpumem_share_handle Exporter::share(uint64_t number, uint64_t offset, gpumem_access access,
                                    gpumem_export_flags flags) {
  gpumem_export_desc desc = GPUMEM_EXPORT_DESC_INIT;
  desc.access = access;
  desc.flags = flags;
  const Shared shared = try_share(number, offset, desc);
  EXPECT_EQ(shared.status, GPUMEM_SUCCESS);
  return shared.handle;
}

gpumem_status Exporter::revoke(const gpumem_share_handle& handle) {
  Order order;
  order.what = kRevoke;
  order.handle = handle;
  return ask(order).status;
}

void Exporter::send(const gpumem_share_handle& handle, uint64_t lease_ns) {
  Order order;
  order.what = kSend;
  order.handle = handle;
  order.value = lease_ns;
  EXPECT_TRUE(send_bytes(peer_.socket(), &order, sizeof order));
}

gpumem_status Exporter::sent() { return hear().status; }

gpumem_status Exporter::import(const gpumem_share_handle& handle) {
  Order order;
  order.what = kImport;
  order.handle = handle;
  return ask(order).status;
}

void Exporter::record(uint64_t number, bool held) {
  Order order;
  order.what = kRecord;
  order.number = number;
  order.flags = held ? 1 : 0;
  EXPECT_EQ(ask(order).status, GPUMEM_SUCCESS);
}

void Exporter::let_go() {
  Order order;
  order.what = kLetGo;
  ask(order);
}

gpumem_status Exporter::open_hub(const std::string& path, const std::string& token, gpumem_hub_flags flags,
                                 uint32_t names_max) {
  Order order;
  order.what = kOpenHub;
  order.flags = flags;
  order.value = names_max;
  std::snprintf(order.text, sizeof order.text, "%s", path.c_str());
  std::snprintf(order.more, sizeof order.more, "%s", token.c_str());
  return ask(order).status;
}

void Exporter::use_up_descriptors() {
  Order order;
  order.what = kUseUp;
  EXPECT_EQ(ask(order).status, GPUMEM_SUCCESS);
}

gpumem_status Exporter::publish(const std::string& name, const gpumem_share_handle& handle, uint64_t version,
                                uint32_t keep, gpumem_access access, uint8_t fingerprint) {
  Order order;
  order.what = kPublish;
  order.handle = handle;
  order.value = version;
  order.size = keep;
  order.access = access;
  order.flags = fingerprint;
  std::snprintf(order.text, sizeof order.text, "%s", name.c_str());
  return ask(order).status;
}

gpumem_status Exporter::withdraw(const std::string& name, uint64_t version) {
  Order order;
  order.what = kWithdraw;
  order.value = version;
  std::snprintf(order.text, sizeof order.text, "%s", name.c_str());
  return ask(order).status;
}

gpumem_status Exporter::close_hub() {
  Order order;
  order.what = kCloseHub;
  return ask(order).status;
}

gpumem_status Exporter::deposit(const std::string& path, const std::string& name,
                                const gpumem_share_handle& handle) {
  Order order;
  order.what = kDeposit;
  order.handle = handle;
  std::snprintf(order.text, sizeof order.text, "%s", path.c_str());
  std::snprintf(order.more, sizeof order.more, "%s", name.c_str());
  return ask(order).status;
}

void Exporter::end() {
  const ProcessResult result = peer_.end();
  EXPECT_TRUE(result.ok()) << result;
}

}  // namespace conformance
