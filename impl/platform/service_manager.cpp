// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "platform/service_manager.h"

#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "platform/environment.h"
#include "platform/identity.h"

namespace gpumem::platform {
namespace {

constexpr int kFirstInherited = 3;
constexpr int kInheritedMax = 65536;
constexpr auto kAnswerPause = std::chrono::milliseconds(2);

std::optional<int> number_of(const char* name) {
  const char* const text = environment(name);
  if (text == nullptr) return std::nullopt;
  int number = 0;
  const char* const end = text + std::strlen(text);
  const auto read = std::from_chars(text, end, number);
  if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return number;
}

}  // namespace

Result<Notifier> Notifier::open() {
  // NOTIFY_SOCKET | a path, or `@` and a name | none | set by the service manager: the socket on which a
  // keeper says that it is ready, and stores its descriptors
  const char* const address = environment("NOTIFY_SOCKET");
  if (address == nullptr) {
    return make_error(GPUMEM_ERROR_INVALID_STATE,
                      "NOTIFY_SOCKET is not set, so no service manager stores descriptors; start this as a "
                      "service with FileDescriptorStoreMax= and NotifyAccess=main");
  }
  if (address[0] != '/' && address[0] != '@') {
    return make_error(GPUMEM_ERROR_UNSUPPORTED,
                      "NOTIFY_SOCKET is no address of a Unix socket: a path, or `@` and a name");
  }
  auto socket = connect_for_datagrams(address);
  if (!socket) return socket.error();
  Notifier notifier;
  notifier.socket_ = std::move(*socket);
  return notifier;
}

Result<void> Notifier::send(const std::string& text, int file_descriptor, Deadline deadline) const {
  Descriptors descriptors;
  if (file_descriptor >= 0) {
    auto copy = duplicate(file_descriptor);
    if (!copy) return copy.error();
    descriptors.push_back(std::move(*copy));
  }
  const auto* const bytes = reinterpret_cast<const uint8_t*>(text.data());
  for (;;) {
    auto sent = send_some(socket_.get(), {bytes, text.size()}, descriptors);
    if (!sent) return sent.error();
    if (sent->state == Sending::kDone) return {};
    const bool late = std::chrono::steady_clock::now() >= deadline;
    if (!late && sent->state == Sending::kLater) {
      std::this_thread::sleep_for(kAnswerPause);
      continue;
    }
    auto waited = late ? Waited::kTimeout : wait_for(socket_.get(), true, deadline);
    if (!waited) return waited.error();
    if (*waited == Waited::kTimeout)
      return make_error(GPUMEM_ERROR_BUSY,
                        "the service manager does not read $NOTIFY_SOCKET; try again later");
  }
}

std::vector<NamedDescriptor> inherited_descriptors() {
  std::vector<NamedDescriptor> all;
  // LISTEN_PID | a number | none | set by the service manager: the process that the next two are for
  const auto process = number_of("LISTEN_PID");
  // LISTEN_FDS | a number | 0 | set by the service manager: how many descriptors a keeper begins with
  const auto count = number_of("LISTEN_FDS");
  // LISTEN_FDNAMES | a list, with `:` between | none | set by the service manager: their names
  const char* const names = environment("LISTEN_FDNAMES");
  if (process != process_id() || !count || *count < 0 || *count > kInheritedMax) return all;
  std::string_view left = names != nullptr ? names : "";
  for (int i = 0; i < *count; ++i) {
    const std::string_view name = left.substr(0, left.find(':'));
    all.push_back({kFirstInherited + i, std::string(name)});
    left.remove_prefix(std::min(left.size(), name.size() + 1));
  }
  return all;
}

std::optional<size_t> store_size() {
  // FDSTORE | a number | not known | set by systemd 254 and newer: how many descriptors it stores for a
  // keeper
  const auto size = number_of("FDSTORE");
  if (!size || *size < 0) return std::nullopt;
  return static_cast<size_t>(*size);
}

bool opened_before(int a, int b) {
  const int process = process_id();
  const long order = syscall(SYS_kcmp, process, process, KCMP_FILE, a, b);
  return order < 0 || order > 2 ? a < b : order == 1;
}

}  // namespace gpumem::platform
