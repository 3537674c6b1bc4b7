// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One process of a walk: does as it is told, and says what became of it.
#include "walker.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <map>
#include <utility>
#include <vector>

#include "../conformance/harness.h"

namespace processes::walk {
namespace {

using namespace conformance;

bool receive_order(int socket, Order* order, int* passed) {
  *passed = -1;
  iovec part{order, sizeof *order};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof room;
  ssize_t got = 0;
  do {
    got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got != static_cast<ssize_t>(sizeof *order)) return false;
  if (const cmsghdr* const control = CMSG_FIRSTHDR(&message))
    std::memcpy(passed, CMSG_DATA(control), sizeof *passed);
  return true;
}

class Walker {
 public:
  explicit Walker(int socket) : socket_(socket) {}

  void run() {
    const Snapshot before = Snapshot::take();
    instance_ = open_instance();
    device_ = instance_.device();
    Order order;
    int passed = -1;
    bool goes_on = true;
    while (goes_on && receive_order(socket_, &order, &passed)) {
      Answer answer;
      gpumem_error error = GPUMEM_ERROR_INIT;
      goes_on = order.what != kEnd;
      answer.status = goes_on ? obey(order, passed, answer, &error) : end(before, answer);
      if (goes_on) std::snprintf(answer.text, sizeof answer.text, "%s", error.message);
      if (passed >= 0) close(passed);
      if (send(socket_, &answer, sizeof answer, MSG_NOSIGNAL) < 0) break;
    }
  }

 private:
  struct Made {
    gpumem_memory memory = nullptr;
    gpumem_buffer buffer = nullptr;
    void* base = nullptr;
  };

  static gpumem_memory imported(const Order& order) {
    gpumem_memory memory = nullptr;
    std::memcpy(&memory, &order.number, sizeof memory);
    return memory;
  }

  gpumem_status obey(const Order& order, int passed, Answer& answer, gpumem_error* error) {
    gpumem_link& link = links_.at(static_cast<size_t>(order.hub));
    switch (order.what) {
      case kMake:
        return make(order, answer, error);
      case kFill: {
        std::vector<uint8_t> bytes(kLooked);
        fill_pattern(bytes.data(), kLooked, order.seed);
        return gpumem_copy(instance_, made_[order.number].base, bytes.data(), kLooked, nullptr, error);
      }
      case kExport: {
        gpumem_export_desc desc = GPUMEM_EXPORT_DESC_INIT;
        desc.access = order.access;
        return gpumem_share_export(instance_, made_[order.number].base, &desc, &answer.handle, error);
      }
      case kRevoke:
        return gpumem_share_revoke(instance_, &order.handle, error);
      case kDestroy: {
        const Made made = made_[order.number];
        const gpumem_status status = made.buffer != nullptr ? gpumem_buffer_destroy(made.buffer, error)
                                                            : gpumem_memory_destroy(made.memory, error);
        if (status == GPUMEM_SUCCESS) made_.erase(order.number);
        return status;
      }
      case kImport: {
        gpumem_import_desc desc = GPUMEM_IMPORT_DESC_INIT;
        desc.access = order.access;
        gpumem_memory memory = nullptr;
        void* pointer = nullptr;
        const gpumem_status status =
            gpumem_share_import(instance_, &order.handle, nullptr, 0, &desc, &pointer, &memory, error);
        if (status != GPUMEM_SUCCESS) return status;
        std::memcpy(&answer.number, &memory, sizeof memory);
        ++imports_[answer.number].second;
        imports_[answer.number].first = pointer;
        return status;
      }
      case kDrop: {
        const gpumem_status status = gpumem_memory_destroy(imported(order), error);
        if (--imports_[order.number].second == 0) imports_.erase(order.number);
        return status;
      }
      case kLook: {
        gpumem_import_info info = GPUMEM_IMPORT_INFO_INIT;
        const gpumem_status known = gpumem_memory_get_import_info(imported(order), &info, error);
        if (known != GPUMEM_SUCCESS) return known;
        answer.state = info.state;
        answer.count = info.count;
        std::vector<uint8_t> bytes(kLooked);
        const gpumem_status status =
            gpumem_copy(instance_, bytes.data(), imports_[order.number].first, kLooked, nullptr, error);
        answer.equal = has_pattern(bytes.data(), kLooked, order.seed) ? 1 : 0;
        return status;
      }
      case kWrite: {
        std::vector<uint8_t> bytes(kLooked);
        fill_pattern(bytes.data(), kLooked, order.seed);
        return gpumem_copy(instance_, imports_[order.number].first, bytes.data(), kLooked, nullptr, error);
      }
      case kSend:
        return gpumem_share_send(instance_, &order.handle, passed, nullptr, error);
      case kReceive:
        return gpumem_share_receive(instance_, passed, 10'000'000'000, &answer.handle, error);
      case kOpenHub: {
        gpumem_hub_desc desc = GPUMEM_HUB_DESC_INIT;
        desc.path = order.text;
        desc.flags = order.value;
        desc.names_max = kNamesMax;
        return gpumem_hub_open(instance_, &desc, &hub_, error);
      }
      case kCloseHub:
        return gpumem_hub_close(std::exchange(hub_, nullptr), error);
      case kPublish:
      case kLinkPublish: {
        gpumem_publish_desc desc = GPUMEM_PUBLISH_DESC_INIT;
        desc.version = order.value;
        desc.keep = order.keep;
        desc.access = order.access;
        desc.fingerprint[0] = order.fingerprint;
        return order.what == kPublish
                   ? gpumem_hub_publish(hub_, order.text, &order.handle, &desc, &answer.number, error)
                   : gpumem_link_publish(link, order.text, &order.handle, &desc, &answer.number, error);
      }
      case kWithdraw:
        return gpumem_hub_withdraw(hub_, order.text, order.value, error);
      case kLinkWithdraw:
        return gpumem_link_withdraw(link, order.text, order.value, error);
      case kHubInfo: {
        gpumem_hub_info info = GPUMEM_HUB_INFO_INIT;
        const gpumem_status status = gpumem_hub_get_info(hub_, &info, error);
        answer.count = info.link_count;
        answer.number = info.version_count;
        return status;
      }
      case kConnect: {
        gpumem_link_desc desc = GPUMEM_LINK_DESC_INIT;
        desc.path = order.text;
        return gpumem_link_connect(instance_, &desc, &link, error);
      }
      case kCloseLink:
        return gpumem_link_close(std::exchange(link, nullptr), error);
      case kFetch: {
        gpumem_fetch_desc desc = GPUMEM_FETCH_DESC_INIT;
        desc.version = order.value;
        desc.fingerprint[0] = order.fingerprint;
        return gpumem_link_fetch(link, order.text, &desc, &answer.handle, error);
      }
      case kWait:
        return gpumem_link_wait(link, order.text, order.value, order.timeout_ns, &answer.entry, error);
      case kEntry:
        return gpumem_link_enumerate(link, static_cast<uint32_t>(order.value), &answer.entry, error);
      default:
        return GPUMEM_ERROR_INTERNAL;
    }
  }

  gpumem_status make(const Order& order, Answer& answer, gpumem_error* error) {
    Made made;
    if (order.value != 0) {
      gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
      desc.size = kSize;
      desc.reserve = kSize;
      desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
      const gpumem_status status = gpumem_buffer_create(device_, &desc, &made.buffer, error);
      if (status != GPUMEM_SUCCESS) return status;
      gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
      gpumem_buffer_get_info(made.buffer, &info, nullptr);
      made.base = info.base;
    } else {
      const gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_DEVICE, kSize, GPUMEM_MEMORY_SHAREABLE);
      const gpumem_status status = gpumem_memory_create(device_, &desc, &made.memory, error);
      if (status != GPUMEM_SUCCESS) return status;
      gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
      gpumem_memory_get_info(made.memory, &info, nullptr);
      made.base = info.device_pointer;
    }
    answer.number = ++last_;
    made_.emplace(last_, made);
    Order fill = order;
    fill.what = kFill;
    fill.number = last_;
    return obey(fill, -1, answer, error);
  }

  // Releases everything, and looks for what is still there.
  gpumem_status end(const Snapshot& before, Answer& answer) {
    gpumem_status worst = GPUMEM_SUCCESS;
    const auto note = [&](gpumem_status status) { worst = std::min(worst, status); };
    for (const auto& [number, import] : imports_) {
      gpumem_memory memory = nullptr;
      std::memcpy(&memory, &number, sizeof memory);
      for (int i = 0; i < import.second; ++i)
        note(gpumem_memory_destroy(memory, nullptr));
    }
    for (gpumem_link& link : links_)
      note(gpumem_link_close(link, nullptr));
    note(gpumem_hub_close(hub_, nullptr));
    for (const auto& [number, made] : made_) {
      note(made.buffer != nullptr ? gpumem_buffer_destroy(made.buffer, nullptr)
                                  : gpumem_memory_destroy(made.memory, nullptr));
    }
    gpumem_error error = GPUMEM_ERROR_INIT;
    note(gpumem_instance_close(instance_.release(), GPUMEM_CLOSE_CHECK, nullptr, &error));
    Snapshot allowed = before;
    if (kThreadSanitizer) ++allowed.threads;  // in a forked child it starts its own when it likes
    const testing::AssertionResult left = nothing_left_since(allowed);
    answer.equal = left ? 1 : 0;
    std::snprintf(answer.text, sizeof answer.text, "%s %.500s", error.message, left.message());
    return worst;
  }

  const int socket_;
  Instance instance_;
  gpumem_device device_ = nullptr;
  std::map<uint64_t, Made> made_;
  std::map<uint64_t, std::pair<void*, int>> imports_;
  std::array<gpumem_link, 2> links_{};
  gpumem_hub hub_ = nullptr;
  uint64_t last_ = 0;
};

// Makes processes that have loaded the library and not used it.
CHILD(walkers) {
  Errand errand;
  while (receive_bytes(Peer::other_side(), &errand, sizeof errand)) {
    int32_t answer = 0;
    if (errand.bury > 0) {
      if (errand.kill != 0) kill(errand.bury, SIGKILL);
      while (waitpid(errand.bury, &answer, 0) < 0 && errno == EINTR) {
      }
    } else if ((answer = fork()) == 0) {
      close(Peer::other_side());
      const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
      socklen_t size = 0;
      const sockaddr_un address = abstract(errand.address, &size);
      if (connect(socket, reinterpret_cast<const sockaddr*>(&address), size) != 0) _exit(1);
      Walker(socket).run();
      _exit(0);
    }
    send_bytes(Peer::other_side(), &answer, sizeof answer);
  }
}

}  // namespace
}  // namespace processes::walk
