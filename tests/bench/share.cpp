// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "share.h"

#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

extern char** environ;

namespace bench {
namespace {

constexpr const char* kHub = "@gpumem-bench";
constexpr uint64_t kMiB = uint64_t{1} << 20;

// Everything about what the second process has made.
struct Offer {
  gpumem_share_handle whole;   // of device memory
  gpumem_share_handle blocks;  // of a buffer
  RawShare raw;
};

// What the second process is to make. On the host backend its device must be like the first one's.
struct Wish {
  uint64_t size = 0;
  uint64_t device_bytes = 0;
};

class Peer {
 public:
  Peer(gpumem_backend backend, Wish wish) : process_("--share-peer", backend) {
    transfer(process_.socket(), &wish, sizeof wish, true);
    transfer(process_.socket(), &offer, sizeof offer, false);
    offer.raw.descriptor = receive_descriptor(process_.socket());
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer() {
    if (offer.raw.descriptor >= 0) close(offer.raw.descriptor);
  }
  Offer offer{};

 private:
  SecondProcess process_;
};

void import_and_end(const Scene& scene, const gpumem_share_handle& handle) {
  gpumem_memory memory = nullptr;
  MUST(gpumem_share_import(scene.instance, &handle, nullptr, 0, nullptr, nullptr, &memory, &error));
  MUST(gpumem_memory_destroy(memory, &error));
}

}  // namespace

SecondProcess::SecondProcess(const char* word, gpumem_backend backend) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) fail("no socket");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], kPeerSocket);
  std::string words[] = {"gpumem_bench", word, backend == GPUMEM_BACKEND_CUDA ? "cuda" : "host"};
  char* const list[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  const int problem = posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, list, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (problem != 0) fail("cannot start the second process");
  socket_ = ends[0];
}

SecondProcess::~SecondProcess() {
  close(socket_);
  int status = 0;
  waitpid(pid_, &status, 0);
}

void transfer(int socket, void* bytes, size_t size, bool out) {
  char* at = static_cast<char*>(bytes);
  while (size != 0) {
    const ssize_t moved = out ? write(socket, at, size) : read(socket, at, size);
    if (moved <= 0) fail("the second process has ended");
    at += moved;
    size -= static_cast<size_t>(moved);
  }
}

void send_descriptor(int socket, int descriptor) {
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  if (sendmsg(socket, &message, 0) != 1) fail("cannot send a descriptor");
}

int receive_descriptor(int socket) {
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) fail("the second process has ended");
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr) return -1;
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
  return descriptor;
}

void must(gpumem_status status, const gpumem_error& error) {
  if (GPUMEM_FAILED(status)) fail(std::string(error.function) + ": " + error.message);
}
namespace {

// To memory of a second device, if there is one: through an import, and from memory of this process.
void copy_between_devices(const Scene& scene, const gpumem_share_handle& handle, void* own, uint64_t size,
                          const std::string& mib) {
  gpumem_device other = nullptr;
  if (gpumem_device_get(scene.instance, 1, &other, nullptr) != GPUMEM_SUCCESS) return;
  gpumem_import_desc desc = GPUMEM_IMPORT_DESC_INIT;
  desc.device = other;
  gpumem_memory import = nullptr;
  void* pointer = nullptr;
  MUST(gpumem_share_import(scene.instance, &handle, nullptr, 0, &desc, &pointer, &import, &error));
  gpumem_memory_desc wanted = GPUMEM_MEMORY_DESC_INIT;
  wanted.kind = GPUMEM_KIND_DEVICE;
  wanted.size = size;
  gpumem_memory target = nullptr;
  MUST(gpumem_memory_create(other, &wanted, &target, &error));
  gpumem_memory_info to = GPUMEM_MEMORY_INFO_INIT;
  MUST(gpumem_memory_get_info(target, &to, &error));
  // Without it the driver takes such a copy over the host.
  MUST(gpumem_device_enable_peer_access(other, scene.device, &error));
  scene.runner.rate(
      "share: copy " + mib + " through an import to another device", size,
      [&] { MUST(gpumem_copy(scene.instance, to.device_pointer, pointer, size, nullptr, &error)); },
      [&] { MUST(gpumem_copy(scene.instance, to.device_pointer, own, size, nullptr, &error)); });
  MUST(gpumem_device_disable_peer_access(other, scene.device, &error));
  MUST(gpumem_memory_destroy(target, &error));
  MUST(gpumem_memory_destroy(import, &error));
}

}  // namespace

void share(const Scene& scene) {
  if (!scene.runner.any_wanted("share")) return;
  const uint64_t size = scene.runner.smoke() ? 2 * kMiB : 64 * kMiB;
  gpumem_device_info device = GPUMEM_DEVICE_INFO_INIT;
  MUST(gpumem_device_get_info(scene.device, &device, &error));
  const Peer peer(scene.runner.backend(), {size, device.total_bytes});
  const Offer& offer = peer.offer;
  const std::string mib = std::to_string(size / kMiB) + " MiB";

  // Cold: nothing of it is mapped before.
  const RawShare& raw = offer.raw;
  const Call raw_whole = raw.whole ? Call([&] { scene.raw.open_and_close(raw); }) : Call();
  const Call raw_block =
      raw.descriptor >= 0 ? Call([&] { scene.raw.map_and_unmap(raw.descriptor, size); }) : Call();
  scene.runner.time(
      "share: import " + mib + " by a handle of the driver, end it",
      [&] { import_and_end(scene, offer.whole); }, raw_whole);
  scene.runner.time(
      "share: import " + mib + " by a descriptor, end it", [&] { import_and_end(scene, offer.blocks); },
      raw_block);
  gpumem_link link = nullptr;
  gpumem_link_desc desc = GPUMEM_LINK_DESC_INIT;
  desc.path = kHub;
  MUST(gpumem_link_connect(scene.instance, &desc, &link, &error));
  scene.runner.time(
      "share: fetch by name, import " + mib + " by a handle of the driver, end it",
      [&] {
        gpumem_share_handle handle;
        MUST(gpumem_link_fetch(link, "whole", nullptr, &handle, &error));
        import_and_end(scene, handle);
      },
      raw_whole);
  MUST(gpumem_link_close(link, &error));

  gpumem_memory memory = nullptr;
  void* pointer = nullptr;
  MUST(gpumem_share_import(scene.instance, &offer.whole, nullptr, 0, nullptr, &pointer, &memory, &error));
  uint64_t more = 0;
  scene.runner.time(
      "share: import what is imported",
      [&] {
        gpumem_memory same = nullptr;
        MUST(gpumem_share_import(scene.instance, &offer.whole, nullptr, 0, nullptr, nullptr, &same, &error));
        ++more;
      },
      {});
  while (more-- != 0)
    MUST(gpumem_memory_destroy(memory, &error));
  scene.runner.time("share: import what is imported, count it down",
                    [&] { import_and_end(scene, offer.whole); }, {});
  {
    gpumem_memory_desc own = GPUMEM_MEMORY_DESC_INIT;
    own.kind = GPUMEM_KIND_DEVICE;
    own.size = size;
    own.require = GPUMEM_MEMORY_SHAREABLE;
    gpumem_memory target = nullptr;
    gpumem_memory source = nullptr;
    MUST(gpumem_memory_create(scene.device, &own, &target, &error));
    MUST(gpumem_memory_create(scene.device, &own, &source, &error));
    gpumem_memory_info to = GPUMEM_MEMORY_INFO_INIT;
    gpumem_memory_info from = GPUMEM_MEMORY_INFO_INIT;
    MUST(gpumem_memory_get_info(target, &to, &error));
    MUST(gpumem_memory_get_info(source, &from, &error));
    gpumem_share_handle handle;
    scene.runner.time(
        "share: export again",
        [&] { MUST(gpumem_share_export(scene.instance, from.device_pointer, nullptr, &handle, &error)); },
        {});
    // Beside the same copy within this process.
    scene.runner.rate(
        "share: copy " + mib + " through an import", size,
        [&] { MUST(gpumem_copy(scene.instance, to.device_pointer, pointer, size, nullptr, &error)); },
        [&] {
          MUST(gpumem_copy(scene.instance, to.device_pointer, from.device_pointer, size, nullptr, &error));
        });
    // A kernel reads the import, and writes it, beside the same on memory of this process.
    for (const bool write : {false, true}) {
      if (!scene.raw.has_kernels()) break;
      scene.runner.rate(
          std::string("share: ") + (write ? "write " : "read ") + mib + " of an import by a kernel", size,
          [&] { scene.raw.run_kernel(pointer, size, write); },
          [&] { scene.raw.run_kernel(from.device_pointer, size, write); });
    }
    copy_between_devices(scene, offer.whole, from.device_pointer, size, mib);
    MUST(gpumem_memory_destroy(target, &error));
    MUST(gpumem_memory_destroy(source, &error));
  }
  MUST(gpumem_memory_destroy(memory, &error));
}

int share_peer(gpumem_backend backend) {
  Wish wish;
  transfer(kPeerSocket, &wish, sizeof wish, false);
  const uint64_t size = wish.size;
  gpumem_host_options host = GPUMEM_HOST_OPTIONS_INIT;
  host.strict = host.fill = GPUMEM_TOGGLE_OFF;  // as the first process has it
  host.device_bytes = wish.device_bytes;
  gpumem_instance_desc open = GPUMEM_INSTANCE_DESC_INIT;
  open.backend = backend;
  open.host = &host;
  gpumem_instance instance = nullptr;
  MUST(gpumem_instance_open(&open, &instance, &error));
  gpumem_device device = nullptr;
  MUST(gpumem_device_get(instance, 0, &device, &error));
  gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
  desc.kind = GPUMEM_KIND_DEVICE;
  desc.size = size;
  desc.require = GPUMEM_MEMORY_SHAREABLE;
  gpumem_memory memory = nullptr;
  MUST(gpumem_memory_create(device, &desc, &memory, &error));
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  MUST(gpumem_memory_get_info(memory, &info, &error));
  gpumem_buffer_desc of_buffer = GPUMEM_BUFFER_DESC_INIT;
  of_buffer.size = size;
  of_buffer.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
  gpumem_buffer buffer = nullptr;
  MUST(gpumem_buffer_create(device, &of_buffer, &buffer, &error));
  gpumem_buffer_info buffer_info = GPUMEM_BUFFER_INFO_INIT;
  MUST(gpumem_buffer_get_info(buffer, &buffer_info, &error));

  Offer offer{};
  MUST(gpumem_share_export(instance, info.device_pointer, nullptr, &offer.whole, &error));
  MUST(gpumem_share_export(instance, buffer_info.base, nullptr, &offer.blocks, &error));
  gpumem_hub_desc of_hub = GPUMEM_HUB_DESC_INIT;
  of_hub.path = kHub;
  gpumem_hub hub = nullptr;
  MUST(gpumem_hub_open(instance, &of_hub, &hub, &error));
  MUST(gpumem_hub_publish(hub, "whole", &offer.whole, nullptr, nullptr, &error));
  {
    const auto raw = backend == GPUMEM_BACKEND_CUDA ? open_raw_cuda() : open_raw_host();
    raw->share(size, &offer.raw);
    const int descriptor = offer.raw.descriptor;
    transfer(kPeerSocket, &offer, sizeof offer, true);
    send_descriptor(kPeerSocket, descriptor);
    char byte = 0;
    (void)!read(kPeerSocket, &byte, 1);  // until the other process has what it wants
  }
  MUST(gpumem_instance_close(instance, GPUMEM_CLOSE_FORCE, nullptr, &error));
  return 0;
}

}  // namespace bench
