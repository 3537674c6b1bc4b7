// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// gpumem_fuzz_peers: peers that speak wrongly to the sharing thread of a living instance, at its own address,
// at a hub and at a keeper. Afterwards it answers one that speaks rightly, and holds nothing of the others.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>

#include "core/share/peer/client.h"
#include "core/share/wire/channel.h"
#include "gpumem/gpumem.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using namespace gpumem;
using namespace gpumem::core;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();  // tells the fuzzer to keep the input
}

platform::Deadline soon() { return std::chrono::steady_clock::now() + std::chrono::minutes(2); }

// What the sharing thread does is seen a little later.
template <class Ask>
void eventually(Ask ask, const char* what) {
  const platform::Deadline deadline = soon();
  while (!ask()) {
    require(std::chrono::steady_clock::now() < deadline, what);
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

// Of what the library opens, and what it is sent; the fuzzer has files of its own.
size_t open_files() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    const bool counts = target.rfind("socket:", 0) == 0 || target.find("memfd:") != std::string::npos ||
                        target.rfind("anon_inode:", 0) == 0 || target == "/dev/null";
    if (counts) ++count;
  }
  return count;
}

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : left_(data, size) {}
  bool empty() const { return left_.empty(); }
  uint8_t byte() {
    if (left_.empty()) return 0;
    const uint8_t first = left_.front();
    left_ = left_.subspan(1);
    return first;
  }
  std::span<const uint8_t> some(size_t most) {
    const auto taken = left_.first(std::min(most, left_.size()));
    left_ = left_.subspan(taken.size());
    return taken;
  }

 private:
  std::span<const uint8_t> left_;
};

// An instance that exports a buffer, with a hub and a keeper.
struct Target {
  Target() {
    gpumem_host_options host = GPUMEM_HOST_OPTIONS_INIT;
    host.device_count = 1;
    host.vmm_granularity = 64 * 1024;
    gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
    desc.backend = GPUMEM_BACKEND_HOST;
    desc.host = &host;
    gpumem_device device = nullptr;
    gpumem_buffer_desc buffer_desc = GPUMEM_BUFFER_DESC_INIT;
    buffer_desc.size = buffer_desc.reserve = host.vmm_granularity;
    buffer_desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
    gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
    const bool made = gpumem_log_set_function(nullptr, nullptr, 0, nullptr) == GPUMEM_SUCCESS &&
                      gpumem_instance_open(&desc, &instance, nullptr) == GPUMEM_SUCCESS &&
                      gpumem_device_get(instance, 0, &device, nullptr) == GPUMEM_SUCCESS &&
                      gpumem_buffer_create(device, &buffer_desc, &buffer, nullptr) == GPUMEM_SUCCESS &&
                      gpumem_buffer_get_info(buffer, &info, nullptr) == GPUMEM_SUCCESS &&
                      gpumem_share_export(instance, info.base, nullptr, &bytes, nullptr) == GPUMEM_SUCCESS;
    require(made, "nothing can be exported");
    exported = *decode(bytes);
    addresses[0] = abstract_address(exported.exporter.instance);
    const std::string name = "@gpumem-fuzz-" + std::to_string(getpid());
    for (size_t i = 0; i < 2; ++i) {
      addresses[i + 1] = name + (i == 0 ? "-hub" : "-keeper");
      gpumem_hub_desc hub_desc = GPUMEM_HUB_DESC_INIT;
      hub_desc.path = addresses[i + 1].c_str();
      hub_desc.flags = i == 0 ? 0 : GPUMEM_HUB_KEEPER;
      hub_desc.links_max = 16;
      hub_desc.names_max = 8;
      hub_desc.fds_max = 64;
      hub_desc.timeout_ns = 50'000'000;
      require(gpumem_hub_open(instance, &hub_desc, &hubs[i], nullptr) == GPUMEM_SUCCESS,
              "no hub can be opened");
    }
    require(gpumem_hub_publish(hubs[0], "a", &bytes, nullptr, nullptr, nullptr) == GPUMEM_SUCCESS,
            "nothing can be published");
    files = open_files();
  }

  gpumem_instance instance = nullptr;
  gpumem_buffer buffer = nullptr;
  gpumem_share_handle bytes{};
  ShareHandle exported;
  std::string addresses[3];
  gpumem_hub hubs[2] = {};
  size_t files = 0;
};

Target& target() {
  static Target made;
  return made;
}

// Whoever speaks wrongly.
class Peer {
 public:
  explicit Peer(const std::string& address) {
    auto made = platform::connect_to(address, soon());
    if (made) socket_ = std::move(*made);
  }

  void say(std::span<const uint8_t> bytes, size_t descriptors) const {
    platform::Descriptors sent;
    for (size_t i = 0; i < descriptors; ++i)
      sent.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (socket_) (void)platform::send_some(socket_.get(), bytes, sent);
  }
  // Whatever has been answered by now.
  void hear() const {
    std::array<uint8_t, kPacketMax> room;
    while (socket_) {
      auto got = platform::receive_some(socket_.get(), room);
      if (!got || got->state != platform::Received::State::kBytes) return;
    }
  }
  void stop_writing() const {
    if (socket_) shutdown(socket_.get(), SHUT_WR);
  }

 private:
  platform::Descriptor socket_;
};

// A message that would be right, somewhere.
Message message_from(Bytes& bytes, uint64_t number) {
  constexpr MessageType kTypes[] = {
      MessageType::kHello,     MessageType::kClaim,   MessageType::kRelease, MessageType::kEnumerate,
      MessageType::kWait,      MessageType::kCancel,  MessageType::kFetch,   MessageType::kPublish,
      MessageType::kWithdraw,  MessageType::kWelcome, MessageType::kGranted, MessageType::kEntry,
      MessageType::kPublished, MessageType::kDone,    MessageType::kRefused, MessageType::kWithdrawn,
      MessageType::kPass,      MessageType::kMore,    MessageType::kTrial,   MessageType::kTried};
  constexpr const char* kNames[] = {"a", "b", "batch", "\xc3\xa4"};
  Message message;
  message.type = kTypes[bytes.byte() % std::size(kTypes)];
  const uint8_t choice = bytes.byte();
  message.number = choice % 4 == 3 ? choice : number;
  const bool known = choice % 8 < 6;
  message.handle = target().exported;
  if (message.type == MessageType::kHello) {
    if (known && choice % 16 < 8) message.token = target().exported.exporter.instance;
  } else if (known) {
    message.token = target().exported.token;
  }
  if (!known) message.handle.token.fill(choice);
  message.name = kNames[choice / 16 % std::size(kNames)];
  message.version = bytes.byte() % 4;
  message.once = choice % 2 == 0;
  message.index = choice % 3;
  message.access = choice % 3 == 0 ? 0 : GPUMEM_ACCESS_READ;
  message.keep = choice % 5;
  message.entry.name = message.name;
  message.descriptor_count = bytes.byte() % 8;
  if (message.type == MessageType::kPublish) message.handle.fd_count = message.descriptor_count;
  if (message.type == MessageType::kTrial) {
    message.handle.fd_count = choice % 2;
    message.descriptor_count = 1 + choice % 2;
  }
  message.packet_count = message.descriptor_count;
  return message;
}

void act(Bytes bytes) {
  constexpr size_t kPeers = 12;
  std::vector<Peer> peers;
  std::vector<uint8_t> last;
  uint64_t number = 0;
  while (!bytes.empty()) {
    const uint8_t what = bytes.byte();
    const uint8_t who = bytes.byte();
    if (peers.empty() || (what % 16 == 0 && peers.size() < kPeers)) {
      peers.emplace_back(target().addresses[who % 3]);
      // Most begin as they should.
      if (what < 224) {
        Message hello;
        hello.type = MessageType::kHello;
        hello.number = ++number;
        if (who % 3 == 0) hello.token = target().exported.exporter.instance;
        peers.back().say(encode_message(hello), 0);
      }
      continue;
    }
    const size_t index = who % peers.size();
    const Peer& peer = peers[index];
    switch (what % 16) {
      case 1:
        peers.erase(peers.begin() + static_cast<ptrdiff_t>(index));
        break;
      case 2:
        peer.stop_writing();
        break;
      case 3:
        peer.hear();
        break;
      case 4:  // bytes as they come
        peer.say(bytes.some(bytes.byte()), what / 16);
        break;
      case 5:  // too long
        peer.say(std::vector<uint8_t>(kPacketMax + 1 + who, what), 0);
        break;
      case 6:  // once more
        peer.say(last, what / 16 % 4);
        break;
      case 7:  // many descriptors
        peer.say(last, platform::kDescriptorsPerPacket - who % 4);
        break;
      default: {
        const Message message = message_from(bytes, ++number);
        last = encode_message(message);
        if (what % 16 == 8) last.resize(last.size() - std::min<size_t>(last.size(), who));
        if (what % 16 == 9 && !last.empty()) last[bytes.byte() % last.size()] ^= bytes.byte();
        peer.say(last, what % 32 < 16 ? message.descriptor_count : what / 32);
        if (what % 16 == 15) peer.hear();
        break;
      }
    }
  }
}

// One who speaks rightly is answered.
void check_answers() {
  gpumem_link_desc desc = GPUMEM_LINK_DESC_INIT;
  static gpumem_instance const other = [] {
    gpumem_instance_desc wanted = GPUMEM_INSTANCE_DESC_INIT;
    wanted.backend = GPUMEM_BACKEND_HOST;
    gpumem_instance opened = nullptr;
    require(gpumem_instance_open(&wanted, &opened, nullptr) == GPUMEM_SUCCESS, "no second instance");
    return opened;
  }();
  static bool first = true;
  desc.path = target().addresses[1].c_str();
  gpumem_link link = nullptr;
  gpumem_entry_info info = GPUMEM_ENTRY_INFO_INIT;
  gpumem_error error = GPUMEM_ERROR_INIT;
  require(gpumem_link_connect(other, &desc, &link, &error) == GPUMEM_SUCCESS, error.message);
  require(gpumem_link_enumerate(link, 0, &info, &error) == GPUMEM_SUCCESS && std::strcmp(info.name, "a") == 0,
          "the hub has lost what was published");
  require(gpumem_link_close(link, nullptr) == GPUMEM_SUCCESS, "the link is not closed");
  // Nobody but its own process changed what the hub has.
  gpumem_hub_info hub = GPUMEM_HUB_INFO_INIT;
  eventually(
      [&] {
        return gpumem_hub_get_info(target().hubs[0], &hub, nullptr) == GPUMEM_SUCCESS && hub.link_count == 0;
      },
      "the hub still has links");
  require(hub.version_count == 1, "a link has published in a hub that is no keeper");
  // A keeper keeps what it was given, until it is withdrawn.
  eventually(
      [&] {
        return gpumem_hub_get_info(target().hubs[1], &hub, nullptr) == GPUMEM_SUCCESS && hub.link_count == 0;
      },
      "the keeper still has links");
  require(hub.fd_count <= 64 && hub.name_count <= 8, "the keeper has more than its limits");
  for (const char* name : {"a", "b", "batch", "\xc3\xa4"})
    (void)gpumem_hub_withdraw(target().hubs[1], name, 0, nullptr);
  if (std::exchange(first, false)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    target().files = open_files();
  }
  eventually([] { return open_files() <= target().files; }, "descriptors stayed open");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool ready = (act(Bytes(nullptr, 0)), check_answers(), true);
  (void)ready;
  act(Bytes(data, size));
  check_answers();
  return 0;
}
