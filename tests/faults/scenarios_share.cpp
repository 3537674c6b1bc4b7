// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Scenarios of sharing: with a second instance of this process, and with a process that exports.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <thread>

#include "core/share/wire/handle.h"
#include "platform/identity.h"
#include "scenario.h"

namespace faults {
namespace {

// Small on host, so that the loops do not spend their time on clearing memory.
constexpr uint64_t kHostUnit = 64 * 1024;
uint64_t unit(const World& w) { return w.backend == GPUMEM_BACKEND_HOST ? kHostUnit : 2 * kMiB; }
void small_units(gpumem_instance_desc&, gpumem_host_options& host) { host.vmm_granularity = kHostUnit; }

// A sharing thread has its poll, two events and its listener.
constexpr uint32_t kThreadFiles = 4;

gpumem_status open_instance(gpumem_backend backend, gpumem_instance* out, gpumem_error* error) {
  gpumem_host_options host = GPUMEM_HOST_OPTIONS_INIT;
  host.device_count = 2;
  host.quarantine = 1;
  host.vmm_granularity = kHostUnit;
  gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
  desc.backend = backend;
  desc.host = &host;
  return gpumem_instance_open(&desc, out, error);
}

// ---- the other process ----

struct Exported {
  gpumem_share_handle memory;
  gpumem_share_handle event;
  gpumem_share_handle ring;
};

class PeerProcess {
 public:
  explicit PeerProcess(gpumem_backend backend) {
    int in[2];
    int out[2];
    EXPECT_EQ(pipe2(in, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    std::string words[] = {"gpumem_faults", "--peer", backend == GPUMEM_BACKEND_HOST ? "host" : "cuda"};
    char* arguments[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
    const int problem = posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, arguments, environ);
    if (problem != 0) pid_ = -1;
    EXPECT_EQ(problem, 0) << "the peer does not start";
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    EXPECT_EQ(read(out[0], &exported_, sizeof exported_), static_cast<ssize_t>(sizeof exported_))
        << "the peer could not export";
    close(out[0]);
    input_ = in[1];
  }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;
  ~PeerProcess() {
    close(input_);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
  }
  const Exported& exported() const { return exported_; }

  // One for each backend, for all attempts.
  static const Exported& of(gpumem_backend backend) {
    static std::array<std::unique_ptr<PeerProcess>, 2> all;
    auto& one = all.at(backend == GPUMEM_BACKEND_HOST ? 0 : 1);
    if (one == nullptr) one = std::make_unique<PeerProcess>(backend);
    return one->exported();
  }

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  Exported exported_{};
};

// ---- steps ----

Step open_other() {
  return {"gpumem_instance_open", [](World& w) { return open_instance(w.backend, &w.out.other, &w.error); }};
}

Step shareable(size_t slot) { return create(slot, GPUMEM_KIND_DEVICE, 1000, GPUMEM_MEMORY_SHAREABLE); }
Step memory_info(size_t slot) { return CALL(gpumem_memory_get_info, w.out.memory[slot], &w.out.memory_info); }
Step make_buffer(uint64_t units = 2) {
  return {"gpumem_buffer_create", [=](World& w) {
            gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
            desc.size = units * unit(w);
            desc.reserve = 2 * units * unit(w);
            desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
            return gpumem_buffer_create(w.out.device[0], &desc, &w.out.buffer[0], &w.error);
          }};
}
Step buffer_info() { return CALL(gpumem_buffer_get_info, w.out.buffer[0], &w.out.buffer_info); }

Step of_many(Step step, gpumem_status exhausted = GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY) {
  step.exhausted = exhausted;
  step.of_many = true;
  return step;
}

Step export_memory(size_t slot = 0) {
  return of_many(CALL(gpumem_share_export, w.out.instance, w.out.memory_info.device_pointer, nullptr,
                      &w.out.share[slot]));
}
Step export_buffer(gpumem_access access = 0) {
  return of_many({"gpumem_share_export", [=](World& w) {
                    gpumem_export_desc desc = GPUMEM_EXPORT_DESC_INIT;
                    desc.access = access;
                    return gpumem_share_export(w.out.instance, w.out.buffer_info.base, &desc, &w.out.share[0],
                                               &w.error);
                  }});
}
// A pool of device memory that can be shared; its blocks go to Out::block.
Step make_pool() {
  return of_many({"gpumem_pool_create", [](World& w) {
                    gpumem_pool_desc desc = GPUMEM_POOL_DESC_INIT;
                    desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
                    return gpumem_pool_create(w.out.device[0], &desc, &w.out.pool[0], &w.error);
                  }});
}
Step take_block() { return of_many(CALL(gpumem_pool_alloc, w.out.pool[0], 3000, nullptr, &w.out.block[0])); }
Step give_block() {
  return of_many({"gpumem_pool_free", [](World& w) {
                    const gpumem_status status =
                        gpumem_pool_free(w.out.pool[0], w.out.block[0], nullptr, &w.error);
                    if (status == GPUMEM_SUCCESS) unset(w.out.block[0]);
                    return status;
                  }});
}
Step trim() { return of_many(CALL(gpumem_pool_trim, w.out.pool[0], 0, &w.out.number[0])); }
Step export_block() {
  return of_many({"gpumem_share_export", [](World& w) {
                    gpumem_export_desc desc = GPUMEM_EXPORT_DESC_INIT;
                    desc.flags = GPUMEM_EXPORT_NEIGHBOURS;
                    return gpumem_share_export(w.out.instance, w.out.block[0], &desc, &w.out.share[0],
                                               &w.error);
                  }});
}
Step revoke() { return CALL(gpumem_share_revoke, w.out.instance, &w.out.share[0]); }
Step share_info() { return CALL(gpumem_share_get_info, &w.out.share[0], &w.out.share_info); }
Step get_files() {
  return CALL(gpumem_share_get_fds, w.out.instance, &w.out.share[0], w.out.files, 2, &w.out.word);
}

// Into the second instance; imports come after what they are of, as they are destroyed the other way round.
Step import(size_t slot = 3, bool with_files = false) {
  return of_many({"gpumem_share_import",
                  [=](World& w) {
                    return gpumem_share_import(w.out.other, &w.out.share[0],
                                               with_files ? w.out.files : nullptr,
                                               with_files ? w.out.word : 0, nullptr, &w.out.address[0],
                                               &w.out.memory[slot], &w.error);
                  }},
                 GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE);
}
Step import_foreign(size_t slot) {
  return of_many({"gpumem_share_import",
                  [=](World& w) {
                    return gpumem_share_import(w.out.instance, &PeerProcess::of(w.backend).memory, nullptr, 0,
                                               nullptr, &w.out.address[0], &w.out.memory[slot], &w.error);
                  }},
                 GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE);
}
Step import_info(size_t slot) {
  return CALL(gpumem_memory_get_import_info, w.out.memory[slot], &w.out.import_info);
}
Step destroy(size_t slot) { return ENDING_CALL(gpumem_memory_destroy, w.out.memory[slot]); }

// What sends and receives is waited for by nobody, so it may be there twice.
Step connect_pair(int type) {
  return {"socketpair", [=](World& w) {
            const int made = socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, w.out.pair);
            return made == 0 ? GPUMEM_SUCCESS : GPUMEM_ERROR_INTERNAL;
          }};
}
Step send() { return CALL(gpumem_share_send, w.out.instance, &w.out.share[0], w.out.pair[0], nullptr); }
Step receive() {
  return {"gpumem_share_receive", [](World& w) {
            // A call that failed may have taken the message.
            pollfd waiting{w.out.pair[1], POLLIN, 0};
            if (poll(&waiting, 1, 0) == 0) {
              EXPECT_EQ(gpumem_share_send(w.out.instance, &w.out.share[0], w.out.pair[0], nullptr, nullptr),
                        GPUMEM_SUCCESS);
            }
            return gpumem_share_receive(w.out.other, w.out.pair[1], uint64_t{5'000'000'000}, &w.out.share[1],
                                        &w.error);
          }};
}

Step set_cache(uint64_t idle_ns) {
  return {"gpumem_share_set_cache", [=](World& w) {
            gpumem_import_cache_desc desc = GPUMEM_IMPORT_CACHE_DESC_INIT;
            desc.idle_ns = idle_ns;
            return gpumem_share_set_cache(w.out.other, &desc, &w.error);
          }};
}

Step create_shared_event() {
  return {"gpumem_event_create", [](World& w) {
            gpumem_event_desc desc = GPUMEM_EVENT_DESC_INIT;
            desc.flags = GPUMEM_EVENT_INTERPROCESS | GPUMEM_EVENT_DISABLE_TIMING;
            return gpumem_event_create(w.out.device[0], &desc, &w.out.event[0], &w.error);
          }};
}

Step create_ring() {
  return of_many({"gpumem_ring_create", [](World& w) {
                    gpumem_ring_desc desc = GPUMEM_RING_DESC_INIT;
                    desc.slot_size = 1000;
                    desc.slot_count = 1;
                    desc.consumers_max = 1;
                    desc.name = "a name that is longer than a short string";
                    return gpumem_ring_create(w.out.device[0], &desc, &w.out.ring[0], &w.error);
                  }});
}
Step open_ring() {
  return of_many({"gpumem_ring_open",
                  [](World& w) {
                    return gpumem_ring_open(w.out.instance, &PeerProcess::of(w.backend).ring, nullptr,
                                            &w.out.ring[0], &w.error);
                  }},
                 GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE);
}
// Asked before, as the answer is kept whatever it is.
Step ask_capability(gpumem_capability capability) {
  return CALL(gpumem_device_get_capability, w.out.device[0], capability, nullptr, &w.out.capability_info);
}
Step ring_info() { return CALL(gpumem_ring_get_info, w.out.ring[0], &w.out.ring_info); }
Step destroy_ring() { return ENDING_CALL(gpumem_ring_destroy, w.out.ring[0]); }

// A folder for sockets, which is gone at the end.
const std::string& folder() {
  static const struct Folder {
    Folder() : path("/tmp/gpumem_faults_XXXXXX"), owner(getpid()) {
      EXPECT_NE(mkdtemp(path.data()), nullptr);
      setenv("XDG_RUNTIME_DIR", path.c_str(), 1);
      umask(022);
    }
    ~Folder() {
      if (getpid() == owner) std::filesystem::remove_all(path);
    }
    std::string path;
    pid_t owner;
  } made;
  return made.path;
}

std::string abstract() { return "@gpumem-faults-" + std::to_string(getpid()); }

Step open_hub(const std::string& path, gpumem_hub_flags flags = 0, uint32_t mode = 0) {
  return {"gpumem_hub_open", [=](World& w) {
            gpumem_hub_desc desc = GPUMEM_HUB_DESC_INIT;
            desc.path = path.c_str();
            desc.mode = mode;
            desc.flags = flags;
            desc.token = "a token that is longer than a short string";
            desc.token_size = 42;
            desc.name = "a name that is longer than a short string";
            return gpumem_hub_open(w.out.instance, &desc, &w.out.hub[0], &w.error);
          }};
}
Step close_hub() { return ENDING_CALL(gpumem_hub_close, w.out.hub[0]); }
Step hub_info() { return CALL(gpumem_hub_get_info, w.out.hub[0], &w.out.hub_info); }
constexpr const char* kName = "a name that is longer than a short string";
Step publish() {
  return CALL(gpumem_hub_publish, w.out.hub[0], kName, &w.out.share[0], nullptr, &w.out.number[0]);
}
Step withdraw() { return CALL(gpumem_hub_withdraw, w.out.hub[0], kName, 0); }

Step connect(size_t slot, const std::string& path, bool by_other = true) {
  return {"gpumem_link_connect", [=](World& w) {
            gpumem_link_desc desc = GPUMEM_LINK_DESC_INIT;
            desc.path = path.c_str();
            desc.token = "a token that is longer than a short string";
            desc.token_size = 42;
            return gpumem_link_connect(by_other ? w.out.other : w.out.instance, &desc, &w.out.link[slot],
                                       &w.error);
          }};
}
Step close_link(size_t slot) { return ENDING_CALL(gpumem_link_close, w.out.link[slot]); }
Step link_info() { return CALL(gpumem_link_get_info, w.out.link[0], &w.out.link_info); }
Step enumerate() { return CALL(gpumem_link_enumerate, w.out.link[0], 0, &w.out.entry_info); }
Step wait() { return CALL(gpumem_link_wait, w.out.link[0], kName, 0, 0, &w.out.entry_info); }
Step import_next() {
  return of_many(CALL(gpumem_link_import_next, w.out.link[0], kName, 0, 0, nullptr, &w.out.entry_info,
                      &w.out.address[0], &w.out.memory[3]),
                 GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE);
}
Step fetch() { return CALL(gpumem_link_fetch, w.out.link[0], kName, nullptr, &w.out.share[0]); }

// Another connection to a hub is needed once a call over it has failed in the middle.
Step again(Step step, const std::string& path, size_t slot = 0, bool by_other = true) {
  const Step reconnect = connect(slot, path, by_other);
  step.call = [call = step.call, reconnect, slot](World& w) {
    gpumem_link_info info = GPUMEM_LINK_INFO_INIT;
    EXPECT_EQ(gpumem_link_get_info(w.out.link[slot], &info, nullptr), GPUMEM_SUCCESS);
    if (info.connected == 0) {
      EXPECT_EQ(gpumem_link_close(w.out.link[slot], nullptr), GPUMEM_SUCCESS);
      EXPECT_EQ(reconnect.call(w), GPUMEM_SUCCESS) << w.error.message;
    }
    return call(w);
  };
  return step;
}

}  // namespace

bool names_this_process(const gpumem_share_handle& handle) {
  auto known = gpumem::core::decode(handle);
  const auto boot = gpumem::platform::boot_id();
  const auto began = gpumem::platform::own_start_time();
  return known && boot && began && known->exporter.boot == *boot && known->exporter.start_time == *began &&
         *boot != gpumem::platform::Id{} && *began != 0;
}

std::vector<Scenario> share_scenarios() {
  std::vector<Scenario> all;
  const auto add = [&](const char* name, std::vector<Step> before, std::vector<Step> steps,
                       std::function<void(World&)> verify = nullptr) -> Scenario& {
    Scenario scenario{name, kBoth, std::move(before), std::move(steps), std::move(verify)};
    scenario.options = small_units;
    scenario.idle_streams = 3;  // the sharing threads of two instances, and one that drops what is kept
    scenario.idle_files = 2 * kThreadFiles;
    all.push_back(std::move(scenario));
    return all.back();
  };
  const auto fresh = [](const World& w) { EXPECT_EQ(w.out.import_info.count, 1u); };
  const auto answered = [](const World& w) {
    // A fault can be the reason why not.
    const gpumem_way_info& info = w.out.way_info;
    EXPECT_TRUE(info.status == GPUMEM_SUCCESS || (info.fd_count == 0 && info.message[0] != '\0'));
  };

  const auto answered_no = [](const World& w) {
    const gpumem_way_info& info = w.out.way_info;
    EXPECT_TRUE(info.status != GPUMEM_SUCCESS && info.fd_count == 0 && info.message[0] != '\0');
  };

  add("a block of a pool is exported", {make_pool(), take_block(), give_block(), trim()},
      {take_block(), export_block(), share_info(), revoke(), export_block(), give_block(), trim()});
  add("memory is exported", {shareable(0), memory_info(0)},
      {export_memory(), export_memory(), share_info(), revoke(), export_memory()}, [](World& w) {
        gpumem_share_info info = GPUMEM_SHARE_INFO_INIT;
        EXPECT_EQ(gpumem_share_get_info(&w.out.share[0], &info, nullptr), GPUMEM_SUCCESS);
        EXPECT_EQ(info.size, 1000u);
        EXPECT_EQ(info.exporter_pid, getpid());
        EXPECT_TRUE(names_this_process(w.out.share[0]));
      });
  add("a buffer is exported", {make_buffer(), buffer_info()},
      {export_buffer(), get_files(), export_buffer(GPUMEM_ACCESS_READ), revoke()});
  add("the ways of memory", {shareable(0), memory_info(0)},
      {CALL(gpumem_share_get_way, w.out.instance, w.out.memory_info.device_pointer, GPUMEM_SHARE_WAY_LEGACY,
            GPUMEM_PEER_OTHER_PROCESS, &w.out.way_info)},
      answered);
  add("a buffer is imported", {open_other(), make_buffer(), buffer_info(), export_buffer()},
      {import(), import_info(3), destroy(3)}, fresh);
  add("a buffer is imported by descriptors",
      {open_other(), make_buffer(1), buffer_info(), export_buffer(), get_files()},
      {import(3, true), import_info(3), import(2), destroy(3)}, fresh);
  add("imports are kept", {open_other(), make_buffer(), buffer_info(), export_buffer()},
      {set_cache(UINT64_C(1'000'000'000'000)), import(), destroy(3), import(), destroy(3),
       CALL(gpumem_share_flush_cache, w.out.other), set_cache(0)});
  add("memory is imported from another process", {}, {import_foreign(0), import_info(0), destroy(0)},
      [](World& w) {
        EXPECT_EQ(w.out.import_info.count, 1u);
        EXPECT_NE(w.out.import_info.exporter_pid, getpid());
      });
  add("imports of another process are used", {import_foreign(0), create(1, GPUMEM_KIND_DEVICE, 1000)},
      {of_many(CALL(gpumem_fill, w.out.instance, w.out.address[0], 1000, 1, 1)), destroy(0)});

  add("an event is exported", {create_shared_event()},
      {of_many(CALL(gpumem_event_export, w.out.event[0], &w.out.share[0])), share_info(), revoke()},
      [](World& w) { EXPECT_EQ(w.out.share_info.type, GPUMEM_SHARE_TYPE_EVENT); });
  add("an event is imported from another process", {create_stream(0)},
      {of_many({"gpumem_event_import",
                [](World& w) {
                  return gpumem_event_import(w.out.device[0], &PeerProcess::of(w.backend).event, nullptr, 0,
                                             &w.out.event[0], &w.error);
                }}),
       DEVICE_CALL(gpumem_event_record, w.out.event[0], w.out.stream[0]),
       DEVICE_CALL(gpumem_stream_wait_event, w.out.stream[0], w.out.event[0]), synchronize(0),
       ENDING_CALL(gpumem_event_destroy, w.out.event[0])});

  constexpr uint64_t kLong = 60'000'000'000;
  const std::vector<Step> asked = {create_stream(0), ask_capability(GPUMEM_CAPABILITY_SHARE_LEGACY),
                                   ask_capability(GPUMEM_CAPABILITY_SHARE_EVENTS)};
  add("a ring is created", asked,
      {create_ring(), CALL(gpumem_ring_export, w.out.ring[0], &w.out.share[0]), ring_info(),
       DEVICE_CALL(gpumem_ring_acquire, w.out.ring[0], w.out.stream[0], 0, &w.out.ring_slot),
       DEVICE_CALL(gpumem_ring_publish, w.out.ring[0], w.out.stream[0], 1, 2), synchronize(0),
       CALL(gpumem_ring_finish, w.out.ring[0], 0), destroy_ring()},
      [](World& w) { EXPECT_EQ(w.out.ring_info.slot_size, 1000u); });
  add("a ring of another process is used", {create_stream(0)},
      {open_ring(), ring_info(),
       DEVICE_CALL(gpumem_ring_wait, w.out.ring[0], w.out.stream[0], kLong, &w.out.ring_slot),
       DEVICE_CALL(gpumem_ring_release, w.out.ring[0], w.out.stream[0], w.out.ring_slot.number),
       CALL(gpumem_ring_wait, w.out.ring[0], nullptr, kLong, &w.out.ring_slot),
       CALL(gpumem_ring_release, w.out.ring[0], nullptr, w.out.ring_slot.number), synchronize(0),
       destroy_ring()},
      [](World& w) { EXPECT_EQ(w.out.ring_slot.tag, w.out.ring_slot.number); })
      .helpless = true;  // it has events of others, which such a driver does not close

  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    add(type == SOCK_STREAM ? "a handle is sent over a stream" : "a handle is sent in packets",
        {open_other(), make_buffer(), buffer_info(), export_buffer(), connect_pair(type)}, {send()});
  }
  add("a handle is received",
      {open_other(), make_buffer(), buffer_info(), export_buffer(), connect_pair(SOCK_SEQPACKET), send()},
      {receive(), import(), import_info(3), destroy(3)}, fresh);

  const auto dma_buf = [](gpumem_status expected) {
    Step step = of_many({"gpumem_share_export_dma_buf", [](World& w) {
                           return gpumem_share_export_dma_buf(w.out.instance, w.out.buffer_info.base, unit(w),
                                                              0, &w.out.files[0], &w.error);
                         }});
    step.expected = expected;
    return step;
  };
  add("a dma-buf", {make_buffer(), buffer_info()}, {dma_buf(GPUMEM_SUCCESS)}).backends = kCuda;
  add("no dma-buf", {make_buffer(), buffer_info()}, {dma_buf(GPUMEM_ERROR_UNSUPPORTED)}).backends = kHost;

  const std::string file = folder() + "/hub";
  add("a hub at an abstract address", {}, {open_hub(abstract()), hub_info(), close_hub()});
  add("a hub with a file", {}, {open_hub(file, 0, 0666), close_hub()});
  add("a hub with a name", {}, {open_hub("faults"), close_hub()}, [](World&) {
    EXPECT_FALSE(std::filesystem::exists(folder() + "/gpumem/faults")) << "the file is still there";
  });
  add("publishing", {make_buffer(), buffer_info(), export_buffer(), open_hub(abstract())},
      {publish(), publish(), withdraw(), publish(), close_hub()});
  const std::vector<Step> published = {open_other(),    make_buffer(),        buffer_info(),
                                       export_buffer(), open_hub(abstract()), publish()};
  add("a link", published, {connect(0, abstract()), link_info(), close_link(0)});
  std::vector<Step> linked = published;
  linked.push_back(connect(0, abstract()));
  add("a link is asked", linked, {again(enumerate(), abstract()), again(wait(), abstract())},
      [](World& w) { EXPECT_STREQ(w.out.entry_info.name, kName); });
  add("following", linked, {again(import_next(), abstract()), import_info(3), destroy(3), close_link(0)},
      fresh);
  add("fetching", linked, {again(fetch(), abstract()), import(), import_info(3), destroy(3), close_link(0)},
      fresh);
  add("a keeper",
      {make_buffer(), buffer_info(), export_buffer(), open_hub(abstract(), GPUMEM_HUB_KEEPER),
       connect(1, abstract(), false)},
      {again(CALL(gpumem_link_publish, w.out.link[1], kName, &w.out.share[0], nullptr, &w.out.number[0]),
             abstract(), 1, false),
       again(CALL(gpumem_link_withdraw, w.out.link[1], kName, 0), abstract(), 1, false), close_link(1)});
  // A keeper opens nothing. A block that a driver does not free is freed with the instance, which the loops
  // take for a leak.
  add("a way is tried over a link",
      {make_buffer(), buffer_info(), open_hub(abstract(), GPUMEM_HUB_KEEPER), connect(1, abstract(), false)},
      {of_many(CALL(gpumem_link_get_way, w.out.link[1], w.out.buffer_info.base, GPUMEM_SHARE_WAY_POSIX_FD,
                    GPUMEM_PEER_OTHER_PROCESS, &w.out.way_info))},
      answered_no)
      .backends = kHost;
  return all;
}

namespace {

// Passes messages while somebody takes them.
[[noreturn]] void produce(gpumem_ring ring, gpumem_device device) {
  gpumem_stream stream = nullptr;
  gpumem_error error = GPUMEM_ERROR_INIT;
  gpumem_stream_create(device, nullptr, &stream, &error);
  for (;;) {
    gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
    gpumem_ring_info info = GPUMEM_RING_INFO_INIT;
    gpumem_ring_get_info(ring, &info, &error);
    if (info.consumer_count == 0 ||
        gpumem_ring_acquire(ring, stream, 10'000'000, &slot, &error) != GPUMEM_SUCCESS) {
      usleep(500);
    } else if (gpumem_ring_publish(ring, stream, 1, slot.number, &error) != GPUMEM_SUCCESS) {
      std::fprintf(stderr, "the peer of the fault loops: %s: %s\n", error.function, error.message);
      _exit(1);
    }
  }
}

}  // namespace

int run_peer(const char* backend) {
  const gpumem_backend kind = std::strcmp(backend, "host") == 0 ? GPUMEM_BACKEND_HOST : GPUMEM_BACKEND_CUDA;
  gpumem_instance instance = nullptr;
  gpumem_device device = nullptr;
  gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
  desc.kind = GPUMEM_KIND_DEVICE;
  desc.size = 1000;
  desc.require = GPUMEM_MEMORY_SHAREABLE;
  gpumem_event_desc event_desc = GPUMEM_EVENT_DESC_INIT;
  event_desc.flags = GPUMEM_EVENT_INTERPROCESS | GPUMEM_EVENT_DISABLE_TIMING;
  gpumem_memory memory = nullptr;
  gpumem_event event = nullptr;
  gpumem_ring_desc ring_desc = GPUMEM_RING_DESC_INIT;
  ring_desc.slot_size = 1000;
  ring_desc.slot_count = 2;
  ring_desc.consumers_max = 2;  // one may just be leaving
  gpumem_ring ring = nullptr;
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  Exported exported{};
  gpumem_error error = GPUMEM_ERROR_INIT;
  if (open_instance(kind, &instance, &error) != GPUMEM_SUCCESS ||
      gpumem_device_get(instance, 0, &device, &error) != GPUMEM_SUCCESS ||
      gpumem_memory_create(device, &desc, &memory, &error) != GPUMEM_SUCCESS ||
      gpumem_memory_get_info(memory, &info, &error) != GPUMEM_SUCCESS ||
      gpumem_share_export(instance, info.device_pointer, nullptr, &exported.memory, &error) !=
          GPUMEM_SUCCESS ||
      gpumem_event_create(device, &event_desc, &event, &error) != GPUMEM_SUCCESS ||
      gpumem_event_export(event, &exported.event, &error) != GPUMEM_SUCCESS ||
      gpumem_ring_create(device, &ring_desc, &ring, &error) != GPUMEM_SUCCESS ||
      gpumem_ring_export(ring, &exported.ring, &error) != GPUMEM_SUCCESS) {
    std::fprintf(stderr, "the peer of the fault loops: %s: %s\n", error.function, error.message);
    return 1;
  }
  if (write(STDOUT_FILENO, &exported, sizeof exported) != static_cast<ssize_t>(sizeof exported)) return 1;
  std::thread([=] { produce(ring, device); }).detach();
  char byte = 0;
  (void)!read(STDIN_FILENO, &byte, 1);
  _exit(0);  // a thread is in the library
}

}  // namespace faults
