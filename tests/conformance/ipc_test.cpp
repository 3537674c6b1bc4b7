// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The rules IPC-1 to IPC-25 and HUB, and those of VMM about sharing. The test imports what a second
// process exports.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <set>
#include <thread>

#include "../asleep.h"
#include "buffers.h"
#include "exporter.h"
#include "pools.h"

namespace conformance {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kSize = 4 * kMiB;

class Ipc : public Conformance {
 protected:
  struct Import {
    Memory memory;
    uint8_t* pointer = nullptr;
  };

  gpumem_status try_import(const gpumem_share_handle& handle, Import* out, gpumem_access access = 0,
                           gpumem_device device = nullptr, gpumem_import_flags flags = 0) {
    gpumem_import_desc desc = GPUMEM_IMPORT_DESC_INIT;
    desc.access = access;
    desc.device = device;
    desc.flags = flags;
    gpumem_memory memory = nullptr;
    void* pointer = nullptr;
    const gpumem_status status =
        gpumem_share_import(instance_, &handle, nullptr, 0, &desc, &pointer, &memory, why());
    if (status == GPUMEM_SUCCESS) {
      out->memory = Memory(memory);
      out->pointer = static_cast<uint8_t*>(pointer);
    } else {
      EXPECT_EQ(memory, nullptr);
      EXPECT_EQ(pointer, nullptr);
    }
    return status;
  }
  Import import(const gpumem_share_handle& handle, gpumem_access access = 0) {
    Import made;
    EXPECT_OK(try_import(handle, &made, access));
    return made;
  }
  gpumem_status import_status(const gpumem_share_handle& handle) {
    Import made;
    return try_import(handle, &made);
  }
  gpumem_import_info info_of(gpumem_memory memory) {
    gpumem_import_info info = GPUMEM_IMPORT_INFO_INIT;
    EXPECT_OK(gpumem_memory_get_import_info(memory, &info, why()));
    return info;
  }
  // What another process does is seen a little later.
  template <class Ask>
  static bool eventually(Ask ask) {
    for (const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(2);
         std::chrono::steady_clock::now() < limit;) {
      if (ask()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return ask();
  }
  bool has_state(gpumem_memory memory, gpumem_import_state state) {
    return eventually([&] { return info_of(memory).state == state; });
  }
  // Memory of this instance that can be exported.
  Memory shareable(uint64_t size = kMiB) {
    return create_memory(device_, memory_desc(GPUMEM_KIND_DEVICE, size, GPUMEM_MEMORY_SHAREABLE));
  }
  gpumem_status export_status(const void* pointer, const gpumem_export_desc* desc = nullptr) {
    gpumem_share_handle handle{};
    return gpumem_share_export(instance_, pointer, desc, &handle, why());
  }
};

gpumem_share_info share_info(const gpumem_share_handle& handle) {
  gpumem_share_info info = GPUMEM_SHARE_INFO_INIT;
  EXPECT_OK(gpumem_share_get_info(&handle, &info, why()));
  return info;
}

// ---- handles ----

TEST_F(Ipc, ipc_1) {
  const Memory memory = shareable();
  gpumem_share_handle handle{};
  ASSERT_OK(gpumem_share_export(instance_, memory.device() + 12'345, nullptr, &handle, why()));
  const gpumem_share_info info = share_info(handle);
  EXPECT_EQ(info.type, GPUMEM_SHARE_TYPE_MEMORY);
  EXPECT_EQ(info.way, GPUMEM_SHARE_WAY_LEGACY);
  EXPECT_EQ(info.backend, backend());
  EXPECT_EQ(info.access, GPUMEM_ACCESS_READWRITE);
  EXPECT_EQ(info.location, GPUMEM_LOCATION_DEVICE);
  EXPECT_EQ(info.exporter_pid, getpid());
  EXPECT_EQ(info.size, kMiB);
  EXPECT_EQ(info.offset, 12'345u);
  EXPECT_EQ(info.buffer_id, memory.info().buffer_id);
  gpumem_device_info device = GPUMEM_DEVICE_INFO_INIT;
  EXPECT_OK(gpumem_device_get_info(device_, &device, why()));
  EXPECT_EQ(std::memcmp(info.device_uuid, device.uuid, sizeof info.device_uuid), 0);

  // No address is in it, but for what the driver may have in its own.
  const uint64_t address = reinterpret_cast<uint64_t>(memory.device());
  for (size_t at = 0; on_host() && at + sizeof address <= sizeof handle.bytes; ++at)
    EXPECT_NE(std::memcmp(handle.bytes + at, &address, sizeof address), 0) << at;

  for (size_t at = 0; at < sizeof handle.bytes; ++at) {
    gpumem_share_handle damaged = handle;
    damaged.bytes[at] ^= 0x10;
    gpumem_share_info unread = GPUMEM_SHARE_INFO_INIT;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_share_get_info(&damaged, &unread, why())) << at;
    EXPECT_EQ(unread.size, 0u);
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, import_status(damaged)) << at;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_share_revoke(instance_, &damaged, why())) << at;
  }
}

TEST_F(Ipc, ipc_1_of_another_backend) {
  if (on_host()) SKIP_RULE("the cuda backend's run does it, for both backends are here then");
  const Instance host = open_backend(GPUMEM_BACKEND_HOST);
  const Memory memory =
      create_memory(host.device(), memory_desc(GPUMEM_KIND_DEVICE, kMiB, GPUMEM_MEMORY_SHAREABLE));
  gpumem_share_handle handle{};
  ASSERT_OK(gpumem_share_export(host, memory.device(), nullptr, &handle, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, import_status(handle));
}

TEST_F(Ipc, ipc_2) {
  Pages pages(page_size());
  const Memory pinned = alloc_pinned(device_, kKiB);
  const Memory registered = register_memory(device_, pages.get(), page_size());
  const Counters before = counters(instance_);
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, export_status(pinned.host()));
  EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, export_status(registered.host()));
  int ordinary = 0;
  EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, export_status(&ordinary));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, export_status(reinterpret_cast<void*>(uintptr_t{4096})));
  if (capability(device_, GPUMEM_CAPABILITY_MANAGED).value != GPUMEM_ANSWER_NO) {
    const Memory managed = create_memory(device_, memory_desc(GPUMEM_KIND_MANAGED, kKiB));
    EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, export_status(managed.host()));
  }
  const Memory memory = shareable();
  gpumem_export_desc desc = GPUMEM_EXPORT_DESC_INIT;
  for (const gpumem_share_way way : {GPUMEM_SHARE_WAY_POSIX_FD, GPUMEM_SHARE_WAY_FABRIC}) {
    desc.way = way;
    EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, export_status(memory.device(), &desc));
    // There are descriptors for other memory, and the message says for which.
    const bool names_buffers = std::strstr(last_error().message, "gpumem_buffer") != nullptr;
    EXPECT_EQ(names_buffers, way == GPUMEM_SHARE_WAY_POSIX_FD) << last_error().message;
    const bool names_legacy = std::strstr(last_error().message, "GPUMEM_SHARE_WAY_LEGACY") != nullptr;
    EXPECT_EQ(names_legacy, way == GPUMEM_SHARE_WAY_POSIX_FD) << last_error().message;
  }
  desc.way = GPUMEM_SHARE_WAY_DMA_BUF;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, export_status(memory.device(), &desc));
  desc = GPUMEM_EXPORT_DESC_INIT;
  desc.access = GPUMEM_ACCESS_READ;
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, export_status(memory.device(), &desc));
  EXPECT_EQ(counters(instance_).all.live_count, before.all.live_count + 1);  // the memory of this test
}

TEST_F(Ipc, ipc_2_physical_memory_without_a_handle_type) {
  if (!has_vmm(device_)) SKIP_RULE("the device has no virtual memory management");
  gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
  desc.size = kMiB;
  desc.reserve = kSize;
  gpumem_buffer plain = nullptr;
  ASSERT_OK(gpumem_buffer_create(device_, &desc, &plain, why()));
  gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
  EXPECT_OK(gpumem_buffer_get_info(plain, &info, why()));
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, export_status(info.base));
  // Behind what is mapped.
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE,
                export_status(static_cast<uint8_t*>(info.base) + info.reserved_size - 1));
  EXPECT_OK(gpumem_buffer_destroy(plain, why()));
}

TEST_F(Ipc, ipc_3) {
  Exporter exporter;
  const uint64_t number = exporter.alloc(kSize);
  exporter.put(number, 0, kSize, 1);
  const Import inside = import(exporter.share(number, 1'000'001));
  EXPECT_EQ(inside.memory.info().kind, GPUMEM_KIND_IMPORTED);
  EXPECT_EQ(inside.memory.info().size, kSize);
  EXPECT_EQ(inside.pointer, inside.memory.device() + 1'000'001);
  EXPECT_TRUE(holds_pattern(instance_, inside.memory.device(), kSize, 1));
  // What is written here is there.
  put_pattern(instance_, inside.memory.device(), kSize, 2);
  EXPECT_TRUE(exporter.holds(number, 0, kSize, 2));
}

TEST_F(Ipc, ipc_4) {
  Exporter exporter;
  const uint64_t number = exporter.alloc(kSize);
  const gpumem_share_handle first = exporter.share(number);
  const gpumem_share_handle again = exporter.share(number);
  EXPECT_EQ(std::memcmp(&first, &again, sizeof first), 0);
  EXPECT_EQ(exporter.destroy(number), GPUMEM_SUCCESS);
  const uint64_t next = exporter.alloc(kSize);  // on cuda often at the same address
  const gpumem_share_handle other = exporter.share(next);
  EXPECT_NE(std::memcmp(&first, &other, sizeof first), 0);
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, import_status(first));
  EXPECT_STATUS(GPUMEM_SUCCESS, import_status(other));
}

TEST_F(Ipc, ipc_5) {
  const Memory memory = shareable();
  gpumem_share_handle handle{};
  ASSERT_OK(gpumem_share_export(instance_, memory.device(), nullptr, &handle, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, import_status(handle));
  const Instance other = open_instance();
  gpumem_memory unused = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE,
                gpumem_share_import(other, &handle, nullptr, 0, nullptr, nullptr, &unused, why()));
  const Event event = create_event(device_, GPUMEM_EVENT_INTERPROCESS | GPUMEM_EVENT_DISABLE_TIMING);
  ASSERT_OK(gpumem_event_export(event, &handle, why()));
  gpumem_event none = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_event_import(device_, &handle, nullptr, 0, &none, why()));
}

TEST_F(Ipc, ipc_6) {
  Exporter exporter;
  const uint64_t number = exporter.alloc(kSize);
  exporter.put(number, 0, kSize, 3);
  const gpumem_share_handle handle = exporter.share(number);
  Import first = import(handle);
  Import second = import(exporter.share(number, 4096));
  EXPECT_EQ(first.memory.get(), second.memory.get());
  EXPECT_EQ(second.pointer, first.pointer + 4096);
  EXPECT_EQ(info_of(first.memory).count, 2u);
  EXPECT_EQ(kind_stats(instance_, GPUMEM_KIND_IMPORTED).live_count, 1u);
  first.memory.destroy();
  EXPECT_EQ(info_of(second.memory).count, 1u);
  EXPECT_TRUE(holds_pattern(instance_, second.memory.device(), kSize, 3));
  EXPECT_EQ(exporter.destroy(number), GPUMEM_ERROR_BUSY);
  const gpumem_memory last = second.memory.get();
  second.memory.destroy();
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_memory_destroy(last, why()));
  EXPECT_TRUE(eventually([&] { return exporter.destroy(number) == GPUMEM_SUCCESS; }));
}

// By bytes that were imported before: the same checks hold for them each time.
TEST_F(Ipc, ipc_6_again_and_again) {
  std::optional<Exporter> exporter(std::in_place);
  const uint64_t number = exporter->alloc(kSize);
  exporter->put(number, 0, kSize, 8);
  const gpumem_share_handle handle = exporter->share(number);
  for (int round = 0; round < 3; ++round) {
    std::vector<Import> imports;
    for (int i = 0; i < 4; ++i)
      imports.push_back(import(handle));
    EXPECT_EQ(imports.back().pointer, imports.front().pointer);
    EXPECT_EQ(info_of(imports.front().memory).count, 4u);
    EXPECT_TRUE(holds_pattern(instance_, imports.back().pointer, kSize, 8));
  }
  EXPECT_EQ(kind_stats(instance_, GPUMEM_KIND_IMPORTED).live_count, 0u);
  const Import first = import(handle);
  const Import second = import(handle);
  exporter.reset();
  EXPECT_TRUE(eventually([&] { return info_of(first.memory).state == GPUMEM_IMPORT_PEER_GONE; }));
  EXPECT_STATUS(GPUMEM_ERROR_PEER_GONE, import_status(handle));
  gpumem_share_handle damaged = handle;
  reinterpret_cast<char*>(&damaged)[100] ^= 1;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, import_status(damaged));
}

TEST_F(Ipc, ipc_6_from_threads) {
  Exporter exporter;
  const gpumem_share_handle handle = exporter.share(exporter.alloc(kSize));
  std::vector<std::thread> threads;
  for (int index = 0; index < 4; ++index) {
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        gpumem_memory memory = nullptr;
        void* pointer = nullptr;
        gpumem_status status =
            gpumem_share_import(instance_, &handle, nullptr, 0, nullptr, &pointer, &memory, nullptr);
        EXPECT_EQ(status, GPUMEM_SUCCESS);
        uint8_t byte = 0;
        EXPECT_EQ(gpumem_copy(instance_, &byte, pointer, 1, nullptr, nullptr), GPUMEM_SUCCESS);
        status = gpumem_memory_destroy(memory, nullptr);
        EXPECT_EQ(status, GPUMEM_SUCCESS);
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(kind_stats(instance_, GPUMEM_KIND_IMPORTED).live_count, 0u);
}

TEST_F(Ipc, ipc_7) {
  Exporter exporter;
  const uint64_t number = exporter.alloc(kSize);
  const Import made = import(exporter.share(number));
  const gpumem_pointer_info info = pointer_info(instance_, made.pointer + 99);
  EXPECT_EQ(info.kind, GPUMEM_KIND_IMPORTED);
  EXPECT_EQ(info.location, GPUMEM_LOCATION_DEVICE);
  EXPECT_EQ(info.base, made.memory.device());
  EXPECT_EQ(info.size, kSize);
  EXPECT_EQ(info.memory, made.memory.get());
  EXPECT_EQ(device_access(instance_, made.pointer, 0), GPUMEM_ACCESS_READWRITE);
  if (const gpumem_device second = second_device()) {
    EXPECT_EQ(device_access(instance_, made.pointer, 1), GPUMEM_ACCESS_NONE);
    const Stream stream = create_stream(second);
    EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS,
                  gpumem_stream_write_value(stream, made.memory.device(), 1, 4, why()));
  }
  if (on_host()) {
    EXPECT_TRUE(read_faults(made.pointer));
  }
}

// It is memory of its own here, whose growth it does not follow; also where the buffer is of the same
// process.
TEST_F(Ipc, uva_5_an_import_of_a_buffer) {
  if (!has_vmm(device_)) SKIP_RULE("the device has no virtual memory management");
  const auto expect_none = [&](const Import& made) {
    const gpumem_pointer_info info = pointer_info(instance_, made.pointer);
    EXPECT_EQ(info.kind, GPUMEM_KIND_IMPORTED);
    EXPECT_EQ(info.memory, made.memory.get());
    EXPECT_EQ(info.buffer, nullptr);
  };
  Exporter exporter;
  expect_none(import(exporter.share(exporter.buffer(kSize))));

  const Instance other = open_instance();
  gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
  desc.size = kSize;
  desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
  gpumem_buffer buffer = nullptr;
  ASSERT_OK(gpumem_buffer_create(other.device(), &desc, &buffer, why()));
  gpumem_buffer_info known = GPUMEM_BUFFER_INFO_INIT;
  EXPECT_OK(gpumem_buffer_get_info(buffer, &known, why()));
  gpumem_share_handle handle{};
  ASSERT_OK(gpumem_share_export(other, known.base, nullptr, &handle, why()));
  expect_none(import(handle));
  EXPECT_EQ(pointer_info(other, known.base).buffer, buffer);
  EXPECT_OK(gpumem_buffer_destroy(buffer, why()));
}

TEST_F(Ipc, ipc_8) {
  Exporter exporter;
  Exporter other;
  const uint64_t number = exporter.alloc(kSize);
  exporter.put(number, 0, kSize, 4);
  const gpumem_share_handle handle = exporter.share(number);
  Import made = import(handle);
  EXPECT_EQ(other.import(handle), GPUMEM_SUCCESS);
  EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, gpumem_free(instance_, made.pointer, why()));
  EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, gpumem_unregister(instance_, made.pointer, why()));
  EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, export_status(made.pointer));
  EXPECT_NE(std::strstr(last_error().message, "the handle that it came with"), nullptr)
      << last_error().message;
  const Memory own = shareable();
  gpumem_import_info info = GPUMEM_IMPORT_INFO_INIT;
  EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, gpumem_memory_get_import_info(own, &info, why()));
  made.memory.destroy();
  EXPECT_TRUE(exporter.holds(number, 0, kSize, 4));
  EXPECT_EQ(exporter.destroy(number), GPUMEM_ERROR_BUSY);  // the other importer's
  other.end();
  EXPECT_TRUE(eventually([&] { return exporter.destroy(number) == GPUMEM_SUCCESS; }));
}

TEST_F(Ipc, ipc_9) {
  Exporter exporter;
  const uint64_t number = exporter.alloc(kSize);
  const gpumem_share_handle handle = exporter.share(number);
  Import made = import(handle);
  EXPECT_EQ(exporter.destroy(number), GPUMEM_ERROR_BUSY);
  // Revoking lets nobody else in, and those who are in stay.
  EXPECT_EQ(exporter.revoke(handle), GPUMEM_SUCCESS);
  EXPECT_EQ(exporter.revoke(handle), GPUMEM_ERROR_NOT_FOUND);
  EXPECT_EQ(exporter.destroy(number), GPUMEM_ERROR_BUSY);
  EXPECT_TRUE(has_state(made.memory, GPUMEM_IMPORT_WITHDRAWN));
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, import_status(handle));
  made.memory.destroy();
  EXPECT_TRUE(eventually([&] { return exporter.destroy(number) == GPUMEM_SUCCESS; }));
}

TEST_F(Ipc, com_23_the_snapshot_says_who_has_what_is_shared) {
  const auto has = [&](const std::string& part) {
    return text_of(instance_, gpumem_stats_snapshot).find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(R"("exports":[],"imports":[],"kept_imports":{"count":0,"bytes":0})"))
      << text_of(instance_, gpumem_stats_snapshot);
  std::optional<Exporter> exporter(std::in_place);
  const std::string peer = std::to_string(exporter->pid());
  const Memory own = shareable();
  gpumem_share_handle handle{};
  ASSERT_OK(gpumem_share_export(instance_, own.device(), nullptr, &handle, why()));
  EXPECT_TRUE(has(R"("claims":0,"holders":[]})")) << text_of(instance_, gpumem_stats_snapshot);
  ASSERT_EQ(exporter->import(handle), GPUMEM_SUCCESS);
  EXPECT_TRUE(has(R"("claims":1,"holders":[)" + peer + "]}")) << text_of(instance_, gpumem_stats_snapshot);
  ASSERT_OK(gpumem_share_revoke(instance_, &handle, why()));
  EXPECT_TRUE(has(R"("holders":[)" + peer + R"(],"revoked":true})"))
      << text_of(instance_, gpumem_stats_snapshot);

  const uint64_t number = exporter->buffer(kSize);
  gpumem_import_cache_desc cache = GPUMEM_IMPORT_CACHE_DESC_INIT;
  cache.idle_ns = UINT64_C(60'000'000'000);
  EXPECT_OK(gpumem_share_set_cache(instance_, &cache, why()));
  {
    const Import made = import(exporter->share(number));
    EXPECT_TRUE(has("\"size\":" + std::to_string(made.memory.info().size) +
                    R"(,"count":1,"state":"live","exporter":)" + peer + R"(,"exporter_start_time":)"))
        << text_of(instance_, gpumem_stats_snapshot);
    EXPECT_TRUE(has(R"("granter":)" + peer + '}')) << text_of(instance_, gpumem_stats_snapshot);
  }
  EXPECT_TRUE(has(R"("imports":[],"kept_imports":{"count":1,"bytes":)" + std::to_string(kSize) + '}'))
      << text_of(instance_, gpumem_stats_snapshot);
  EXPECT_OK(gpumem_share_set_cache(instance_, nullptr, why()));
  EXPECT_TRUE(has(R"("kept_imports":{"count":0,"bytes":0})")) << text_of(instance_, gpumem_stats_snapshot);
  exporter.reset();
  EXPECT_TRUE(eventually([&] { return has(R"("exports":[])"); }))
      << text_of(instance_, gpumem_stats_snapshot);
}

TEST_F(Ipc, ipc_10) {
  std::optional<Exporter> exporter(std::in_place);
  const uint64_t number = exporter->alloc(kSize);
  const gpumem_share_handle freed = exporter->share(number);
  EXPECT_EQ(exporter->destroy(number), GPUMEM_SUCCESS);
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, import_status(freed));
  const gpumem_share_handle handle = exporter->share(exporter->alloc(kSize));
  exporter.reset();
  EXPECT_STATUS(GPUMEM_ERROR_PEER_GONE, import_status(handle));
  EXPECT_STATUS(GPUMEM_ERROR_PEER_GONE, import_status(freed));
}

// Such memory does not need its exporter.
TEST_F(Ipc, ipc_10_memory_by_descriptors_is_imported_again) {
  Exporter exporter;
  const uint64_t number = exporter.buffer(kSize);
  exporter.put(number, 0, kSize, 28);
  const gpumem_share_handle handle = exporter.share(number);
  {
    const Import made = import(handle);
    exporter.kill();
    EXPECT_TRUE(has_state(made.memory, GPUMEM_IMPORT_PEER_GONE));
    const Import again = import(handle);
    EXPECT_EQ(again.pointer, made.pointer);
    EXPECT_TRUE(holds_pattern(instance_, again.pointer, kSize, 28));
  }
  EXPECT_STATUS(GPUMEM_ERROR_PEER_GONE, import_status(handle));
}

TEST_F(Ipc, ipc_11) {
  const gpumem_device second = second_device();
  if (second == nullptr) SKIP_RULE("there is no second device");
  Exporter exporter;
  const uint64_t number = exporter.alloc(kSize);
  exporter.put(number, 0, kSize, 5);
  const gpumem_share_handle handle = exporter.share(number);
  Import made;
  const bool linked = capability(second, GPUMEM_CAPABILITY_PEER_ACCESS, device_).value == GPUMEM_ANSWER_YES;
  if (!linked) {
    EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, try_import(handle, &made, 0, second));
    return;
  }
  ASSERT_OK(try_import(handle, &made, 0, second));
  EXPECT_EQ(made.memory.info().device_ordinal, 1u);
  EXPECT_EQ(device_access(instance_, made.pointer, 1), GPUMEM_ACCESS_READWRITE);
  EXPECT_TRUE(holds_pattern(instance_, made.pointer, kSize, 5));
  // Filled there, by a stream of either device.
  const std::vector<uint8_t> sevens(kMiB, 7);
  std::vector<uint8_t> seen(kMiB);
  for (const gpumem_device filling : {second, device_}) {
    put_pattern(instance_, made.pointer, kMiB, 6);
    const Stream stream = create_stream(filling);
    EXPECT_OK(gpumem_fill_async(stream, made.pointer, kMiB, 7, 1, why()));
    stream.synchronize();
    EXPECT_OK(gpumem_copy(instance_, seen.data(), made.pointer, kMiB, nullptr, why()));
    EXPECT_TRUE(seen == sevens);
  }
}

TEST_F(Ipc, ipc_11_no_link) {
  if (!on_host()) SKIP_RULE("the links of cuda devices cannot be chosen");
  const Instance apart =
      open_instance([](gpumem_instance_desc&, gpumem_host_options& options) { options.peers = "none"; });
  Exporter exporter("none");
  const gpumem_share_handle handle = exporter.share(exporter.alloc(kSize));
  gpumem_import_desc desc = GPUMEM_IMPORT_DESC_INIT;
  desc.device = apart.device(1);
  gpumem_memory memory = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED,
                gpumem_share_import(apart, &handle, nullptr, 0, &desc, nullptr, &memory, why()));
  desc.device = device_;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_share_import(apart, &handle, nullptr, 0, &desc, nullptr, &memory, why()));
  // Devices of another configuration are others.
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, import_status(handle));
  EXPECT_NE(std::strstr(last_error().message, "the same GPUMEM_HOST_DEVICES"), nullptr)
      << last_error().message;
}

// ---- transport ----

TEST_F(Ipc, ipc_12) {
  Exporter exporter;
  const uint64_t number = exporter.buffer(3 * kMiB);
  exporter.put(number, 0, 3 * kMiB, 6);
  const gpumem_share_handle handle = exporter.share(number);
  exporter.send(handle);
  gpumem_share_handle received{};
  ASSERT_OK(gpumem_share_receive(instance_, exporter.socket(), GPUMEM_TIMEOUT_INFINITE, &received, why()));
  ASSERT_EQ(exporter.sent(), GPUMEM_SUCCESS);
  const gpumem_share_info sent = share_info(handle);
  const gpumem_share_info came = share_info(received);
  EXPECT_EQ(came.size, sent.size);
  EXPECT_EQ(came.buffer_id, sent.buffer_id);
  EXPECT_EQ(came.exporter_pid, sent.exporter_pid);
  const Import made = import(received, GPUMEM_ACCESS_READWRITE);
  EXPECT_TRUE(holds_pattern(instance_, made.pointer, 3 * kMiB, 6));
  EXPECT_EQ(info_of(made.memory).state, GPUMEM_IMPORT_LIVE);
}

// A handle that comes twice holds nothing that one does not, and one that cannot be imported can be tried
// again.
TEST_F(Ipc, ipc_12_received_again) {
  Exporter exporter;
  const uint64_t number = exporter.alloc(kSize);
  const gpumem_share_handle handle = exporter.share(number);
  std::vector<Import> imports(2);
  for (Import& made : imports) {
    exporter.send(handle);
    gpumem_share_handle received{};
    ASSERT_OK(gpumem_share_receive(instance_, exporter.socket(), GPUMEM_TIMEOUT_INFINITE, &received, why()));
    ASSERT_EQ(exporter.sent(), GPUMEM_SUCCESS);
    Import refused;
    EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, try_import(received, &refused, GPUMEM_ACCESS_READ));
    ASSERT_OK(try_import(received, &made));
  }
  EXPECT_EQ(info_of(imports[0].memory).count, 2u);
  EXPECT_EQ(exporter.destroy(number), GPUMEM_ERROR_BUSY);
  imports.clear();
  EXPECT_TRUE(eventually([&] { return exporter.destroy(number) == GPUMEM_SUCCESS; }));
}

TEST_F(Ipc, ipc_12_bad_messages) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  gpumem_share_handle handle{};
  EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_share_receive(instance_, ends[0], 1'000'000, &handle, why()));
  const Snapshot before = Snapshot::take();
  for (const size_t size : {size_t{1}, size_t{16}, size_t{300}, size_t{4000}}) {
    // Surplus descriptors of what is no message.
    std::vector<uint8_t> bytes(size, 0x5A);
    iovec part{bytes.data(), bytes.size()};
    constexpr int kCount = 3;
    alignas(cmsghdr) char control[CMSG_SPACE(kCount * sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(kCount * sizeof(int));
    const int sent[kCount] = {0, 1, 2};
    std::memcpy(CMSG_DATA(header), sent, sizeof sent);
    ASSERT_EQ(sendmsg(ends[1], &message, 0), static_cast<ssize_t>(size));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_share_receive(instance_, ends[0], 1'000'000'000, &handle, why()));
  }
  EXPECT_TRUE(nothing_left_since(before));
  close(ends[1]);
  EXPECT_STATUS(GPUMEM_ERROR_PEER_GONE,
                gpumem_share_receive(instance_, ends[0], GPUMEM_TIMEOUT_INFINITE, &handle, why()));
  EXPECT_NE(std::strstr(last_error().message, "connect again"), nullptr) << last_error().message;
  close(ends[0]);
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_share_receive(instance_, pipe_ends[0], 1'000'000, &handle, why()));
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

TEST_F(Ipc, ipc_12_taken_back) {
  const Memory memory = shareable();
  gpumem_share_handle handle{};
  ASSERT_OK(gpumem_share_export(instance_, memory.device(), nullptr, &handle, why()));
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  gpumem_send_desc desc = GPUMEM_SEND_DESC_INIT;
  desc.lease_ns = 50'000'000;
  EXPECT_OK(gpumem_share_send(instance_, &handle, ends[0], &desc, why()));
  // Held until the lease ends; and when the receiver hangs up.
  Memory again = shareable();
  gpumem_share_handle other{};
  ASSERT_OK(gpumem_share_export(instance_, again.device(), nullptr, &other, why()));
  EXPECT_OK(gpumem_share_send(instance_, &other, ends[0], nullptr, why()));
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_memory_destroy(again, why()));
  close(ends[1]);
  const gpumem_memory waiting = again.release();
  EXPECT_TRUE(eventually([&] { return gpumem_memory_destroy(waiting, nullptr) == GPUMEM_SUCCESS; }));
  EXPECT_STATUS(GPUMEM_ERROR_PEER_GONE, gpumem_share_send(instance_, &handle, ends[0], nullptr, why()));
  close(ends[0]);
}

TEST_F(Ipc, ipc_12_the_lease) {
  Memory memory = shareable();
  gpumem_share_handle handle{};
  ASSERT_OK(gpumem_share_export(instance_, memory.device(), nullptr, &handle, why()));
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  gpumem_send_desc desc = GPUMEM_SEND_DESC_INIT;
  desc.lease_ns = 100'000'000;
  EXPECT_OK(gpumem_share_send(instance_, &handle, ends[0], &desc, why()));
  const gpumem_memory waiting = memory.release();
  EXPECT_TRUE(eventually([&] { return gpumem_memory_destroy(waiting, nullptr) == GPUMEM_SUCCESS; }));
  close(ends[0]);
  close(ends[1]);
}

TEST_F(Ipc, ipc_13) {
  gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
  desc.size = kSize;
  desc.reserve = 16 * kMiB;
  desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
  gpumem_buffer buffer = nullptr;
  ASSERT_OK(gpumem_buffer_create(device_, &desc, &buffer, why()));
  gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
  EXPECT_OK(gpumem_buffer_get_info(buffer, &info, why()));
  gpumem_share_handle handle{};
  ASSERT_OK(gpumem_share_export(instance_, info.base, nullptr, &handle, why()));
  uint32_t count = 0;
  EXPECT_OK(gpumem_share_get_fds(instance_, &handle, nullptr, 0, &count, why()));
  ASSERT_EQ(count, share_info(handle).fd_count);
  ASSERT_GT(count, 0u);
  put_pattern(instance_, info.base, kSize, 7);
  {
    const Snapshot before = Snapshot::take();
    std::vector<int32_t> fds(count, -1);
    EXPECT_OK(gpumem_share_get_fds(instance_, &handle, fds.data(), count, &count, why()));
    for (const int32_t fd : fds)
      EXPECT_EQ(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    // Another instance of this process imports them, and leaves them open.
    {
      const Instance other = open_instance();
      gpumem_memory memory = nullptr;
      void* pointer = nullptr;
      std::vector<int32_t> too_many = fds;
      too_many.push_back(fds.front());
      EXPECT_STATUS(
          GPUMEM_ERROR_INVALID_ARGUMENT,
          gpumem_share_import(other, &handle, too_many.data(), count + 1, nullptr, &pointer, &memory, why()));
      ASSERT_OK(gpumem_share_import(other, &handle, fds.data(), count, nullptr, &pointer, &memory, why()));
      EXPECT_TRUE(holds_pattern(other, pointer, kSize, 7));
      gpumem_import_info imported = GPUMEM_IMPORT_INFO_INIT;
      EXPECT_OK(gpumem_memory_get_import_info(memory, &imported, why()));
      EXPECT_EQ(imported.state, GPUMEM_IMPORT_UNKNOWN);
      gpumem_memory again = nullptr;
      ASSERT_OK(gpumem_share_import(other, &handle, fds.data(), count, nullptr, &pointer, &again, why()));
      EXPECT_NE(again, memory) << "nobody says that it is the same";
      EXPECT_TRUE(holds_pattern(other, pointer, kSize, 7));
      EXPECT_OK(gpumem_memory_destroy(again, why()));
      EXPECT_OK(gpumem_memory_destroy(memory, why()));
    }
    for (const int32_t fd : fds) {
      EXPECT_GE(fcntl(fd, F_GETFD), 0);
      close(fd);
    }
    EXPECT_TRUE(nothing_left_since(before));
  }
  EXPECT_OK(gpumem_buffer_destroy(buffer, why()));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_share_get_fds(instance_, &handle, nullptr, 0, &count, why()));
}

// What does not belong to a handle is refused, whether it is needed or not.
TEST_F(Ipc, ipc_13_descriptors_of_something_else) {
  Exporter exporter;
  const uint64_t number = exporter.alloc(kSize);
  const gpumem_share_handle memory_handle = exporter.share(number);
  const gpumem_share_handle event_handle = exporter.share(exporter.event());
  const gpumem_share_handle buffer_handle = exporter.share(exporter.buffer(2 * kMiB));
  const int file = memfd_create("a file", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(file, kSize), 0);
  const auto refused = [&](const gpumem_share_handle& handle, int32_t wrong) {
    gpumem_memory memory = nullptr;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_share_import(instance_, &handle, &wrong, 1, nullptr, nullptr, &memory, why()));
  };
  for (const int32_t wrong : {file, -1, 100'000}) {
    refused(memory_handle, wrong);
    gpumem_event event = nullptr;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_event_import(device_, &event_handle, &wrong, 1, &event, why()));
  }
  // Also once it is imported, when nobody needs them.
  const Import made = import(memory_handle);
  const Import buffer = import(buffer_handle);
  refused(memory_handle, file);
  refused(buffer_handle, file);
  EXPECT_EQ(info_of(made.memory).count, 1u);
  EXPECT_EQ(info_of(buffer.memory).count, 1u);
  close(file);
}

// Neither size nor number tells them apart, and nobody is asked.
TEST_F(Ipc, ipc_13_descriptors_of_memory_of_the_same_size) {
  gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
  desc.size = 2 * kMiB;
  desc.reserve = 16 * kMiB;
  desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
  gpumem_buffer buffer = nullptr;
  ASSERT_OK(gpumem_buffer_create(device_, &desc, &buffer, why()));
  EXPECT_OK(gpumem_buffer_resize(buffer, 4 * kMiB, why()));
  gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
  EXPECT_OK(gpumem_buffer_get_info(buffer, &info, why()));
  put_pattern(instance_, info.base, 4 * kMiB, 3);
  gpumem_share_handle handle{};
  ASSERT_OK(gpumem_share_export(instance_, info.base, nullptr, &handle, why()));
  int32_t fds[2] = {-1, -1};
  uint32_t count = 0;
  ASSERT_OK(gpumem_share_get_fds(instance_, &handle, fds, 2, &count, why()));
  ASSERT_EQ(count, 2u);
  struct stat first {};
  struct stat second {};
  ASSERT_EQ(fstat(fds[0], &first), 0);
  ASSERT_EQ(fstat(fds[1], &second), 0);
  {
    const Instance other = open_instance();
    gpumem_memory memory = nullptr;
    void* pointer = nullptr;
    const auto import_with = [&](std::array<int32_t, 2> given) {
      return gpumem_share_import(other, &handle, given.data(), 2, nullptr, &pointer, &memory, why());
    };
    if (first.st_ino != second.st_ino || first.st_dev != second.st_dev) {
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, import_with({fds[1], fds[0]}));
      EXPECT_NE(std::string(last_error().message).find("in order"), std::string::npos)
          << last_error().message;
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, import_with({fds[0], fds[0]}));
      EXPECT_EQ(memory, nullptr);
    }
    ASSERT_OK(import_with({fds[0], fds[1]}));
    EXPECT_TRUE(holds_pattern(other, pointer, 4 * kMiB, 3));
    EXPECT_OK(gpumem_memory_destroy(memory, why()));
  }
  for (const int32_t fd : fds)
    close(fd);
  EXPECT_OK(gpumem_buffer_destroy(buffer, why()));
}

TEST_F(Ipc, ipc_13_at_an_address) {
  if (!has_vmm(device_)) SKIP_RULE("the device has no virtual memory management");
  Exporter exporter;
  const uint64_t number = exporter.buffer(kSize);
  exporter.put(number, 0, kSize, 18);
  const gpumem_share_handle handle = exporter.share(number);
  gpumem_memory memory = nullptr;
  const auto import_at = [&](const void* address) {
    gpumem_import_desc desc = GPUMEM_IMPORT_DESC_INIT;
    desc.address = address;
    return gpumem_share_import(instance_, &handle, nullptr, 0, &desc, nullptr, &memory, why());
  };
  gpumem_range_desc range_desc = GPUMEM_RANGE_DESC_INIT;
  range_desc.size = 4 * kSize;
  gpumem_range range = nullptr;
  ASSERT_OK(gpumem_range_reserve(instance_, &range_desc, &range, why()));
  gpumem_range_info info = GPUMEM_RANGE_INFO_INIT;
  EXPECT_OK(gpumem_range_get_info(range, &info, why()));
  auto* base = static_cast<uint8_t*>(info.base);
  const uint64_t unit = info.granularity;
  EXPECT_STATUS(GPUMEM_ERROR_ALREADY_EXISTS, import_at(info.base));
  EXPECT_OK(gpumem_range_release(range, why()));
  // The driver of an H200 (580) grants what it reserved a moment ago, but not what it never had. Elsewhere
  // the system gives addresses away, but puts new mappings at the ends of free ones, not into the middle of
  // so many.
  if (on_host() || on_fake_cuda()) {
    constexpr uint64_t kMany = 64 * 1024 * kMiB;
    void* const free = mmap(nullptr, kMany, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ASSERT_NE(free, MAP_FAILED) << strerror(errno);
    const uint64_t middle = reinterpret_cast<uintptr_t>(free) + kMany / 2;
    base = reinterpret_cast<uint8_t*>(middle / info.granularity * info.granularity);
    ASSERT_EQ(munmap(free, kMany), 0);
  }
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, import_at(base + 1));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, import_at(base + unit / 2));
  EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE, import_at(reinterpret_cast<void*>(-unit)));
  EXPECT_EQ(memory, nullptr);
  gpumem_import_cache_desc cache = GPUMEM_IMPORT_CACHE_DESC_INIT;
  cache.idle_ns = UINT64_C(60'000'000'000);
  EXPECT_OK(gpumem_share_set_cache(instance_, &cache, why()));
  // There, again there, kept there in between, and elsewhere when it was kept there.
  for (uint8_t* const address : {base, base, base + kSize}) {
    ASSERT_OK(import_at(address));
    EXPECT_TRUE(holds_pattern(instance_, address, kSize, 18));
    EXPECT_STATUS(GPUMEM_ERROR_ALREADY_EXISTS, import_at(address + kSize));
    EXPECT_OK(import_at(address));
    EXPECT_OK(gpumem_memory_destroy(memory, why()));
    EXPECT_OK(gpumem_memory_destroy(memory, why()));
  }
  EXPECT_OK(gpumem_share_set_cache(instance_, nullptr, why()));
}

// ---- rights ----

TEST_F(Ipc, ipc_15) {
  Exporter exporter;
  const uint64_t number = exporter.buffer(kSize);
  exporter.put(number, 0, kSize, 8);
  const Import plain[] = {import(exporter.share(number)), import(exporter.share(number))};
  EXPECT_EQ(info_of(plain[0].memory).access, GPUMEM_ACCESS_READWRITE);
  const Import reader = import(exporter.share(number), GPUMEM_ACCESS_READ);
  EXPECT_EQ(reader.memory.info().granted_flags & GPUMEM_MEMORY_READ_ONLY, GPUMEM_MEMORY_READ_ONLY);
  EXPECT_EQ(info_of(reader.memory).access, GPUMEM_ACCESS_READ);
  EXPECT_EQ(device_access(instance_, reader.pointer, 0), GPUMEM_ACCESS_READ);
  EXPECT_TRUE(holds_pattern(instance_, reader.pointer, kSize, 8));
  const Stream stream = create_stream(device_);
  EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, gpumem_fill_async(stream, reader.pointer, kSize, 1, 1, why()));
  EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS,
                gpumem_copy(instance_, reader.pointer, reader.pointer + kMiB, kKiB, nullptr, why()));
  stream.synchronize();
  EXPECT_TRUE(exporter.holds(number, 0, kSize, 8));
  // The same memory once more, to be written.
  const Import writer = import(exporter.share(number), GPUMEM_ACCESS_READWRITE);
  EXPECT_NE(writer.memory.get(), reader.memory.get());
  EXPECT_EQ(writer.memory.get(), plain[1].memory.get());
  put_pattern(instance_, writer.pointer, kSize, 9);
  EXPECT_TRUE(holds_pattern(instance_, reader.pointer, kSize, 9));
}

TEST_F(Ipc, ipc_15_what_the_exporter_allows) {
  Exporter exporter;
  const uint64_t number = exporter.buffer(kSize);
  const gpumem_share_handle handle = exporter.share(number, 0, GPUMEM_ACCESS_READ);
  Import made;
  EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, try_import(handle, &made, GPUMEM_ACCESS_READWRITE));
  EXPECT_OK(try_import(handle, &made));
  EXPECT_EQ(info_of(made.memory).access, GPUMEM_ACCESS_READ);
  const gpumem_share_handle whole = exporter.share(exporter.alloc(kSize));
  const auto refuses = [&] {
    Import none;
    EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, try_import(whole, &none, GPUMEM_ACCESS_READ));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, try_import(whole, &none, 2));
    const Instance other = open_instance();
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, try_import(whole, &none, 0, other.device()));
  };
  refuses();
  const Import legacy[] = {import(whole), import(whole)};
  EXPECT_EQ(legacy[0].memory.get(), legacy[1].memory.get());
  refuses();  // a handle that was seen before is looked at no less
}

// ---- how it ends ----

TEST_F(Ipc, ipc_16) {
  for (const bool killed : {false, true}) {
    SCOPED_TRACE(killed);
    Exporter exporter;
    const uint64_t number = exporter.buffer(kSize);
    exporter.put(number, 0, kSize, 10);
    const Import made = import(exporter.share(number));
    EXPECT_EQ(exporter.destroy(number), GPUMEM_SUCCESS);
    EXPECT_TRUE(has_state(made.memory, GPUMEM_IMPORT_WITHDRAWN));
    EXPECT_TRUE(holds_pattern(instance_, made.pointer, kSize, 10));
    if (killed) {
      exporter.kill();
    } else {
      exporter.end();
    }
    EXPECT_TRUE(has_state(made.memory, GPUMEM_IMPORT_PEER_GONE));
    EXPECT_TRUE(holds_pattern(instance_, made.pointer, kSize, 10));
    put_pattern(instance_, made.pointer, kSize, 11);
    EXPECT_TRUE(holds_pattern(instance_, made.pointer, kSize, 11));
  }
}

TEST_F(Ipc, ipc_17) {
  for (const bool killed : {false, true}) {
    SCOPED_TRACE(killed);
    Exporter exporter;
    Import made = import(exporter.share(exporter.alloc(kSize)));
    const gpumem_share_handle handle = exporter.share(exporter.event());
    gpumem_event imported = nullptr;
    ASSERT_OK(gpumem_event_import(device_, &handle, nullptr, 0, &imported, why()));
    Event event(imported);
    if (killed) {
      exporter.kill();
    } else {
      exporter.end();
    }
    EXPECT_TRUE(has_state(made.memory, GPUMEM_IMPORT_PEER_GONE));
    uint8_t byte = 0;
    EXPECT_STATUS(GPUMEM_ERROR_PEER_GONE, gpumem_copy(instance_, &byte, made.pointer, 1, nullptr, why()));
    EXPECT_STATUS(GPUMEM_ERROR_PEER_GONE, gpumem_fill(instance_, made.pointer, 1, 0, 1, why()));
    EXPECT_STATUS(GPUMEM_ERROR_PEER_GONE, gpumem_event_query(event, why()));
    const Stream stream = create_stream(device_);
    EXPECT_STATUS(GPUMEM_ERROR_PEER_GONE, gpumem_event_record(event, stream, why()));
    EXPECT_STATUS(GPUMEM_ERROR_PEER_GONE, gpumem_stream_wait_event(stream, event, why()));
    event.destroy();
    made.memory.destroy();
  }
}

TEST_F(Ipc, ipc_18) {
  Memory memory = shareable();
  gpumem_share_handle handle{};
  ASSERT_OK(gpumem_share_export(instance_, memory.device(), nullptr, &handle, why()));
  Exporter importer;
  EXPECT_EQ(importer.import(handle), GPUMEM_SUCCESS);
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_memory_destroy(memory, why()));
  importer.kill();
  const gpumem_memory waiting = memory.release();
  EXPECT_TRUE(eventually([&] { return gpumem_memory_destroy(waiting, nullptr) == GPUMEM_SUCCESS; }));
}

// ---- events ----

TEST_F(Ipc, ipc_19) {
  gpumem_event_desc desc = GPUMEM_EVENT_DESC_INIT;
  desc.flags = GPUMEM_EVENT_INTERPROCESS;
  gpumem_event event = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_event_create(device_, &desc, &event, why()));
  const Event plain = create_event(device_, GPUMEM_EVENT_DISABLE_TIMING);
  gpumem_share_handle handle{};
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_event_export(plain, &handle, why()));
  const Event shared = create_event(device_, GPUMEM_EVENT_DISABLE_TIMING | GPUMEM_EVENT_INTERPROCESS);
  EXPECT_OK(gpumem_event_export(shared, &handle, why()));
  EXPECT_EQ(share_info(handle).type, GPUMEM_SHARE_TYPE_EVENT);
  EXPECT_EQ(share_info(handle).size, 0u);
  Import none;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, try_import(handle, &none));
}

TEST_F(Ipc, ipc_20) {
  Exporter exporter;
  const uint64_t number = exporter.event();
  const gpumem_share_handle handle = exporter.share(number);
  gpumem_event imported = nullptr;
  ASSERT_OK(gpumem_event_import(device_, &handle, nullptr, 0, &imported, why()));
  const Event event(imported);
  EXPECT_OK(gpumem_event_query(event, why()));  // never recorded
  // Recorded there, waited for here.
  exporter.record(number, true);
  EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_event_query(event, why()));
  EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_event_synchronize(event, 1'000'000, why()));
  const Stream stream = create_stream(device_);
  EXPECT_OK(gpumem_stream_wait_event(stream, event, why()));
  EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_stream_query(stream, why()));
  exporter.let_go();
  stream.synchronize();
  EXPECT_OK(gpumem_event_synchronize(event, GPUMEM_TIMEOUT_INFINITE, why()));
  // Recorded here.
  EXPECT_OK(gpumem_event_record(event, stream, why()));
  EXPECT_OK(gpumem_event_synchronize(event, GPUMEM_TIMEOUT_INFINITE, why()));
  int64_t time = 0;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_event_get_elapsed_time(event, event, &time, why()));
  gpumem_share_handle again{};
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_event_export(event, &again, why()));
}

// A process that has been stopped does not keep another one from closing, nor does what it recorded count.
TEST_F(Ipc, ipc_20_the_recorder_does_not_go_on) {
  if (!on_host()) SKIP_RULE("a driver waits for the work of another process as long as that lives");
  Exporter exporter;
  const uint64_t number = exporter.event();
  const gpumem_share_handle handle = exporter.share(number);
  exporter.record(number, true);
  {
    Instance other = open_instance();
    gpumem_event imported = nullptr;
    ASSERT_OK(gpumem_event_import(other.device(), &handle, nullptr, 0, &imported, why()));
    gpumem_stream stream = nullptr;
    ASSERT_OK(gpumem_stream_create(other.device(), nullptr, &stream, why()));
    EXPECT_OK(gpumem_stream_wait_event(stream, imported, why()));
    gpumem_status waited = GPUMEM_SUCCESS;
    std::atomic<pid_t> id{0};
    std::thread waiter([&] {
      id = gettid();
      waited = gpumem_event_synchronize(imported, GPUMEM_TIMEOUT_INFINITE, nullptr);
    });
    EXPECT_TRUE(exporter.signal(SIGSTOP));
    while (id == 0)
      std::this_thread::yield();
    gpumem::test::wait_until_asleep(id);
    // Nor does one that waits for the thread that waits, in the middle of destroying something.
    gpumem_status ended = GPUMEM_ERROR_INTERNAL;
    id = 0;
    std::thread ending([&] {
      id = gettid();
      ended = gpumem_event_destroy(imported, nullptr);
    });
    while (id == 0)
      std::this_thread::yield();
    gpumem::test::wait_until_asleep(id);
    EXPECT_OK(gpumem_instance_close(other.release(), GPUMEM_CLOSE_FORCE, nullptr, why()));
    waiter.join();
    ending.join();
    EXPECT_EQ(waited, GPUMEM_ERROR_CLOSED);
    EXPECT_EQ(ended, GPUMEM_SUCCESS);
    ASSERT_TRUE(exporter.signal(SIGCONT));
  }
  gpumem_event imported = nullptr;
  ASSERT_OK(gpumem_event_import(device_, &handle, nullptr, 0, &imported, why()));
  const Event event(imported);
  const Stream stream = create_stream(device_);
  EXPECT_OK(gpumem_stream_wait_event(stream, event, why()));
  EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_event_query(event, why()));
  exporter.kill();
  EXPECT_STATUS(GPUMEM_ERROR_PEER_GONE, gpumem_event_synchronize(event, GPUMEM_TIMEOUT_INFINITE, why()));
  EXPECT_STATUS(GPUMEM_ERROR_PEER_GONE, gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()));
  EXPECT_OK(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()));  // reported once
}

// What the event orders is seen in the bytes.
TEST_F(Ipc, ipc_20_order_by_content) {
  Exporter exporter;
  const uint64_t memory = exporter.alloc(kSize);
  const uint64_t number = exporter.event();
  const Import made = import(exporter.share(memory));
  const gpumem_share_handle handle = exporter.share(number);
  gpumem_event imported = nullptr;
  ASSERT_OK(gpumem_event_import(device_, &handle, nullptr, 0, &imported, why()));
  const Event event(imported);
  std::vector<uint8_t> bytes(kSize);
  const Memory copy = alloc_device(device_, kSize);
  const Stream stream = create_stream(device_);
  for (uint32_t round = 1; round <= 5; ++round) {
    exporter.record(number, true);
    EXPECT_OK(gpumem_stream_wait_event(stream, event, why()));
    EXPECT_OK(gpumem_copy_async(stream, copy.device(), made.pointer, kSize, nullptr, why()));
    exporter.put(memory, 0, kSize, round);
    exporter.let_go();
    stream.synchronize();
    EXPECT_TRUE(holds_pattern(instance_, copy.device(), kSize, round));
  }
}

TEST_F(Ipc, ipc_21) {
  Exporter exporter;
  const uint64_t number = exporter.event();
  const gpumem_share_handle handle = exporter.share(number);
  gpumem_event imported = nullptr;
  ASSERT_OK(gpumem_event_import(device_, &handle, nullptr, 0, &imported, why()));
  Event event(imported);
  EXPECT_EQ(exporter.destroy(number), GPUMEM_ERROR_BUSY);
  event.destroy();
  EXPECT_TRUE(eventually([&] { return exporter.destroy(number) == GPUMEM_SUCCESS; }));
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE,
                gpumem_event_import(device_, &handle, nullptr, 0, &imported, why()));
}

// ---- blocks of pools ----

TEST_F(Ipc, ipc_22) {
  Exporter exporter;
  const uint64_t first = exporter.pool_block(4 * kKiB);
  const uint64_t second = exporter.pool_block(4 * kKiB);
  exporter.put(first, 0, 4 * kKiB, 31);
  exporter.put(second, 0, 4 * kKiB, 32);
  const Import one = import(exporter.share(first, 0, 0, GPUMEM_EXPORT_NEIGHBOURS));
  const Import other = import(exporter.share(second, kKiB, 0, GPUMEM_EXPORT_NEIGHBOURS));
  EXPECT_TRUE(holds_pattern(instance_, one.pointer, 4 * kKiB, 31));
  EXPECT_TRUE(holds_pattern(instance_, other.pointer - kKiB, 4 * kKiB, 32)) << "an address inside";
  // Blocks of one piece are one import to the driver.
  EXPECT_EQ(one.memory.get(), other.memory.get());
  EXPECT_EQ(info_of(one.memory).count, 2u);
  put_pattern(instance_, one.pointer, 4 * kKiB, 33);
  EXPECT_TRUE(exporter.holds(first, 0, 4 * kKiB, 33));
  // What is free does not wait for importers; another block of the piece stays exported.
  EXPECT_EQ(exporter.destroy(first), GPUMEM_SUCCESS);
  EXPECT_EQ(info_of(one.memory).state, GPUMEM_IMPORT_LIVE);
  const gpumem_share_handle last = exporter.share(second, 0, 0, GPUMEM_EXPORT_NEIGHBOURS);
  EXPECT_EQ(exporter.destroy(second), GPUMEM_SUCCESS);
  EXPECT_EQ(exporter.trim_pool(), 0u);
  EXPECT_TRUE(has_state(one.memory, GPUMEM_IMPORT_WITHDRAWN));
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, import_status(last));
  EXPECT_TRUE(holds_pattern(instance_, one.pointer, 4 * kKiB, 33))
      << "importers keep a piece that is given back";
}

TEST_F(Ipc, ipc_22_only_the_pieces_of_a_block) {
  gpumem_physical_desc piece = GPUMEM_PHYSICAL_DESC_INIT;
  uint64_t unit = 0;
  ASSERT_OK(gpumem_physical_get_granularity(device_, &piece, nullptr, &unit, why()));
  const uint64_t size = 4 * unit;
  Exporter exporter;
  std::vector<uint64_t> blocks;
  for (uint32_t i = 0; i < 3; ++i) {
    blocks.push_back(exporter.pool_block(size));
    exporter.put(blocks[i], 0, size, 40 + i);
  }
  std::vector<Import> imports;
  for (uint32_t i = 0; i < 3; ++i) {
    const gpumem_share_handle handle =
        exporter.share(blocks[i], unit, GPUMEM_ACCESS_READ, GPUMEM_EXPORT_NEIGHBOURS);
    EXPECT_EQ(share_info(handle).size, size) << "of the others nothing";
    imports.push_back(import(handle));
    EXPECT_TRUE(holds_pattern(instance_, imports[i].pointer - unit, size, 40 + i));
    EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, gpumem_fill(instance_, imports[i].pointer, 1, 0, 1, why()));
  }
  EXPECT_NE(imports[0].memory.get(), imports[1].memory.get());
  exporter.kill();
  EXPECT_TRUE(has_state(imports[2].memory, GPUMEM_IMPORT_PEER_GONE));
}

TEST_F(Ipc, ipc_22_by_handles_of_the_driver) {
  Exporter exporter;
  const uint64_t block = exporter.pool_block(kKiB, GPUMEM_MEMORY_SHAREABLE);
  exporter.put(block, 0, kKiB, 34);
  {
    const Import made = import(exporter.share(block, 0, 0, GPUMEM_EXPORT_NEIGHBOURS));
    EXPECT_TRUE(holds_pattern(instance_, made.pointer, kKiB, 34));
    EXPECT_EQ(exporter.destroy(block), GPUMEM_SUCCESS);
    EXPECT_GT(exporter.trim_pool(), 0u) << "what others hold stays";
    EXPECT_TRUE(holds_pattern(instance_, made.pointer, kKiB, 34));
  }
  EXPECT_TRUE(eventually([&] { return exporter.trim_pool() == 0; }));
}

TEST_F(Ipc, ipc_22_neighbours_are_seen_only_if_asked_for) {
  const Instance open =
      open_instance([](gpumem_instance_desc&, gpumem_host_options& host) { host.strict = 0; });
  gpumem_pool_desc desc = pool_desc();
  desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
  gpumem_export_desc all = GPUMEM_EXPORT_DESC_INIT;
  all.flags = GPUMEM_EXPORT_NEIGHBOURS;
  for (const gpumem_instance instance : {instance_.get(), open.get()}) {
    const Pool pool = create_pool(instance == instance_ ? device_ : open.device(), desc);
    EXPECT_EQ(conformance::info_of(pool).handle_types, GPUMEM_HANDLE_TYPE_POSIX_FD);
    const auto status = [&](const void* pointer, const gpumem_export_desc* how) {
      gpumem_share_handle handle{};
      return gpumem_share_export(instance, pointer, how, &handle, why());
    };
    void* const block = take(pool, kKiB);
    EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, status(block, nullptr));
    EXPECT_NE(std::strstr(last_error().message, "NEIGHBOURS"), nullptr) << last_error().message;
    EXPECT_STATUS(GPUMEM_SUCCESS, status(block, &all));
    gpumem_export_desc legacy = all;
    legacy.way = GPUMEM_SHARE_WAY_LEGACY;
    EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, status(block, &legacy));
    // Nor without it a block that is as large as its pieces: it is cut to others when it is free.
    void* const large = take(pool, 32 * kMiB);
    EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, status(large, nullptr));
    give(pool, large);
    give(pool, block);
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, status(block, &all));
    EXPECT_NE(std::strstr(last_error().message, "no live block"), nullptr) << last_error().message;
  }
}

// A program that frees what it exports: a status, and the pool's later exports are right.
void export_while_it_is_freed(const Instance& instance) {
  gpumem_pool_desc desc = pool_desc();
  desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
  const Pool pool = create_pool(instance.device(), desc);
  gpumem_export_desc all = GPUMEM_EXPORT_DESC_INIT;
  all.flags = GPUMEM_EXPORT_NEIGHBOURS;
  std::atomic<void*> block{nullptr};
  std::atomic<bool> ends{false};
  std::thread exporter([&] {
    while (!ends) {
      gpumem_share_handle handle{};
      void* const pointer = block.load();
      if (pointer == nullptr) continue;
      gpumem_error detail = GPUMEM_ERROR_INIT;
      const gpumem_status status = gpumem_share_export(instance, pointer, &all, &handle, &detail);
      EXPECT_TRUE(status == GPUMEM_SUCCESS || status == GPUMEM_ERROR_NOT_FOUND) << detail.message;
    }
  });
  const int rounds = kSanitized ? 30 : 100;
  for (int round = 0; round < rounds; ++round) {
    block = take(pool, 4 * kMiB);
    std::this_thread::sleep_for(std::chrono::microseconds(round * 10));
    give(pool, block.load());
    trim(pool);
  }
  ends = true;
  exporter.join();
  // What is exported now is what is there now.
  void* const last = take(pool, 4 * kMiB);
  put_pattern(instance, last, 4 * kMiB, 36);
  gpumem_share_handle handle{};
  ASSERT_OK(gpumem_share_export(instance, last, &all, &handle, why()));
  {
    void* pointer = nullptr;
    gpumem_memory made = nullptr;
    ASSERT_OK(gpumem_share_import(instance, &handle, nullptr, 0, nullptr, &pointer, &made, why()));
    const Memory memory(made);
    EXPECT_TRUE(holds_pattern(instance, pointer, 4 * kMiB, 36));
  }
  give(pool, last);
}

CHILD(ipc_22_fake_delays) { export_while_it_is_freed(open_instance()); }

TEST_F(Ipc, ipc_22_freed_during_the_export) {
  export_while_it_is_freed(instance_);
  // The driver does not survive a call for a handle while it unmaps the block.
  if (on_fake_cuda()) {
    EXPECT_CHILD_OK(run_child("ipc_22_fake_delays", {"FAKE_CUDA_POINTER_DELAY_US=300"}));
  }
}

TEST_F(Ipc, ipc_22_memory_that_cannot_be_shared) {
  const Pool plain = create_pool(device_);
  void* const block = take(plain, kKiB);
  gpumem_export_desc all = GPUMEM_EXPORT_DESC_INIT;
  all.flags = GPUMEM_EXPORT_NEIGHBOURS;
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, export_status(block, &all));
  EXPECT_NE(std::strstr(last_error().message, "pool"), nullptr) << last_error().message;
  give(plain, block);
  gpumem_pool none = nullptr;
  const auto refused = [&](gpumem_status status, const gpumem_pool_desc& desc) {
    EXPECT_STATUS(status, gpumem_pool_create(device_, &desc, &none, why()));
    EXPECT_EQ(none, nullptr);
  };
  gpumem_pool_desc desc = pool_desc(GPUMEM_KIND_PINNED);
  desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
  refused(GPUMEM_ERROR_INVALID_ARGUMENT, desc);
  desc = pool_desc();
  for (const gpumem_handle_types other : {gpumem_handle_types{0x40}, GPUMEM_HANDLE_TYPE_FABRIC}) {
    desc.handle_types = other;
    refused(GPUMEM_ERROR_INVALID_ARGUMENT, desc);
  }
  desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
  desc.memory_flags = GPUMEM_MEMORY_SHAREABLE;
  refused(GPUMEM_ERROR_UNSUPPORTED, desc);
  // Such a pool's memory goes by handles of the driver, with all that is in it.
  desc.handle_types = 0;
  const Pool legacy = create_pool(device_, desc);
  void* const own = take(legacy, kKiB);
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, export_status(own));
  EXPECT_OK(export_status(own, &all));
  give(legacy, own);
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, export_status(own, &all));
}

// ---- other forms, and what can be ----

TEST_F(Ipc, ipc_23) {
  const Memory memory = shareable(2 * kMiB);
  int32_t fd = -1;
  const gpumem_capability_info can = capability(device_, GPUMEM_CAPABILITY_SHARE_DMA_BUF);
  if (can.value != GPUMEM_ANSWER_YES) {
    EXPECT_STATUS(can.status, gpumem_share_export_dma_buf(instance_, memory.device(), kMiB, 0, &fd, why()));
    EXPECT_EQ(fd, -1);
    return;
  }
  for (const gpumem_dma_buf_flags flags : {gpumem_dma_buf_flags{0}, GPUMEM_DMA_BUF_PREFER_PCIE}) {
    ASSERT_OK(gpumem_share_export_dma_buf(instance_, memory.device() + page_size(), kMiB, flags, &fd, why()));
    EXPECT_EQ(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    close(fd);
  }
  const auto status = [&](const uint8_t* pointer, uint64_t size) {
    int32_t none = -1;
    return gpumem_share_export_dma_buf(instance_, pointer, size, 0, &none, why());
  };
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, status(memory.device() + 1, kMiB));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, status(memory.device(), 1));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, status(memory.device(), 0));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, status(memory.device(), 3 * kMiB));
  const Memory pinned = alloc_pinned(device_, kMiB);
  EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, status(pinned.host(), kMiB));
  const Pages ordinary(page_size());
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, status(ordinary.get(), page_size()));
}

TEST_F(Ipc, ipc_24) {
  const Memory alone = shareable();
  const Memory pinned = alloc_pinned(device_, kKiB);
  const Memory small = alloc_device(device_, kKiB);
  const Memory large = alloc_device(device_, kSize);
  int ordinary = 0;
  const void* const pointers[] = {alone.device(), pinned.host(), small.device(),
                                  large.device(), &ordinary,     reinterpret_cast<void*>(uintptr_t{4096})};
  for (const void* pointer : pointers) {
    for (gpumem_share_way way = GPUMEM_SHARE_WAY_LEGACY; way <= GPUMEM_SHARE_WAY_FABRIC; ++way) {
      SCOPED_TRACE(way);
      gpumem_way_info info = GPUMEM_WAY_INFO_INIT;
      EXPECT_OK(gpumem_share_get_way(instance_, pointer, way, GPUMEM_PEER_OTHER_PROCESS, &info, why()));
      gpumem_export_desc desc = GPUMEM_EXPORT_DESC_INIT;
      desc.way = way;
      gpumem_share_handle handle{};
      EXPECT_STATUS(info.status, gpumem_share_export(instance_, pointer, &desc, &handle, why()));
      if (info.status == GPUMEM_SUCCESS) {
        EXPECT_EQ(info.fd_count, share_info(handle).fd_count);
      } else {
        EXPECT_NE(info.message[0], '\0');
      }
    }
  }
  gpumem_way_info info = GPUMEM_WAY_INFO_INIT;
  EXPECT_OK(gpumem_share_get_way(instance_, alone.device(), GPUMEM_SHARE_WAY_LEGACY, GPUMEM_PEER_SAME_PROCESS,
                                 &info, why()));
  EXPECT_EQ(info.status, GPUMEM_ERROR_INVALID_STATE);
  // A dma-buf goes over no socket of the library.
  EXPECT_OK(gpumem_share_get_way(instance_, alone.device(), GPUMEM_SHARE_WAY_DMA_BUF,
                                 GPUMEM_PEER_OTHER_PROCESS, &info, why()));
  if (info.status == GPUMEM_SUCCESS) {
    EXPECT_NE(std::strstr(info.message, "gpumem_share_export_dma_buf()"), nullptr) << info.message;
  }
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_share_get_way(instance_, alone.device(), 0, GPUMEM_PEER_OTHER_PROCESS, &info, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_share_get_way(instance_, alone.device(), 1, 77, &info, why()));
}

TEST_F(Ipc, ipc_25) {
  Exporter exporter;
  const uint64_t small = exporter.alloc(kKiB, 0);
  gpumem_export_desc desc = GPUMEM_EXPORT_DESC_INIT;
  EXPECT_EQ(exporter.try_share(small, 0, desc).status, GPUMEM_ERROR_UNSUPPORTED);
  // The remedies that are named help.
  const Memory own = alloc_device(device_, kKiB);
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, export_status(own.device()));
  EXPECT_EQ(std::strstr(last_error().message, "NEIGHBOURS") == nullptr, on_host()) << last_error().message;
  gpumem_export_desc by_descriptor = GPUMEM_EXPORT_DESC_INIT;
  by_descriptor.way = GPUMEM_SHARE_WAY_POSIX_FD;
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, export_status(own.device(), &by_descriptor));
  EXPECT_EQ(std::strstr(last_error().message, "WAY_LEGACY"), nullptr) << last_error().message;
  desc.flags = GPUMEM_EXPORT_NEIGHBOURS;
  const Exporter::Shared open = exporter.try_share(small, 0, desc);
  EXPECT_EQ(open.status, on_host() ? GPUMEM_ERROR_UNSUPPORTED : GPUMEM_SUCCESS);
  if (open.status == GPUMEM_SUCCESS) {
    exporter.put(small, 0, kKiB, 12);
    const Import made = import(open.handle);
    EXPECT_EQ(made.memory.info().size, kKiB);
    EXPECT_TRUE(holds_pattern(instance_, made.pointer, kKiB, 12));
  }

  const Memory alone = shareable(kKiB);
  EXPECT_EQ(alone.info().granted_flags & GPUMEM_MEMORY_SHAREABLE, GPUMEM_MEMORY_SHAREABLE);
  EXPECT_EQ(alone.info().size, kKiB);
  EXPECT_GE(alone.info().granted_size, page_size());
  EXPECT_EQ(alone.info().granted_size % page_size(), 0u);
}

// Whether bytes of the exporter's pattern are anywhere in the address space of this process.
bool finds_pattern(uint32_t seed) {
  constexpr uint64_t kPart = uint64_t{1} << 20;
  const int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
  // Shared, so that it can be left out: what has been read is no find.
  void* const shared = mmap(nullptr, kPart, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* const part = static_cast<uint8_t*>(shared);
  std::array<uint8_t, 64> wanted{};
  bool found = false;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line) && !found;) {
    unsigned long long begin = 0;
    unsigned long long end = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &begin, &end) != 2) continue;
    const auto own = reinterpret_cast<unsigned long long>(part);
    // Only what is shared can be another process's.
    const bool is_shared = line.find("-p ") == std::string::npos && line.find("s ") != std::string::npos;
    if (!is_shared || (begin <= own && own < end)) continue;
    for (unsigned long long at = begin; at < end && !found; at += kPart) {
      const ssize_t got = pread(memory, part, std::min<uint64_t>(kPart, end - at), static_cast<off_t>(at));
      for (ssize_t i = 0; i + static_cast<ssize_t>(wanted.size()) <= got && !found; i += 256) {
        bool equal = true;
        for (size_t k = 0; k < wanted.size() && equal; ++k)
          equal = part[i + static_cast<ssize_t>(k)] == pattern_byte(seed, k);
        found = equal;
      }
    }
  }
  munmap(shared, kPart);
  close(memory);
  return found;
}

// The importer looks for what else the exporter has: beside what it was given, and behind its descriptors.
TEST_F(Ipc, ipc_25_nothing_else_is_seen) {
  constexpr uint32_t kSecret = 77;
  constexpr uint32_t kGiven = 78;
  Exporter exporter;
  std::vector<uint64_t> secrets;
  // Before, between and behind what is shared.
  const auto hide = [&] {
    secrets.push_back(exporter.alloc(kKiB, 0));
    secrets.push_back(exporter.alloc(kKiB));
    secrets.push_back(exporter.buffer(2 * kMiB));
    for (size_t i = secrets.size() - 3; i < secrets.size(); ++i)
      exporter.put(secrets[i], 0, kKiB, kSecret);
  };
  hide();
  const uint64_t memory = exporter.alloc(kKiB);
  hide();
  const uint64_t buffer = exporter.buffer(2 * kMiB);
  hide();
  exporter.put(memory, 0, kKiB, kGiven);
  exporter.put(buffer, 0, kKiB, kGiven);
  const Import whole = import(exporter.share(memory));
  const Import blocks = import(exporter.share(buffer));
  EXPECT_TRUE(holds_pattern(instance_, whole.pointer, kKiB, kGiven));
  EXPECT_TRUE(holds_pattern(instance_, blocks.pointer, kKiB, kGiven));
  // No copy reaches beyond the memory that was shared.
  std::vector<uint8_t> bytes(2 * kMiB);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_copy(instance_, bytes.data(), whole.pointer, kKiB + 1, nullptr, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_copy(instance_, bytes.data(), blocks.pointer + kKiB, 2 * kMiB, nullptr, why()));
  // Nor does the CPU, where device memory has addresses for it.
  if (on_host() || on_fake_cuda()) {
    EXPECT_TRUE(finds_pattern(kGiven)) << "this test does not look where the memory is";
    EXPECT_FALSE(finds_pattern(kSecret));
  }
}

// ---- physical memory ----

// Sizes and borders of the pieces are those of the exporter, whose order they have.
TEST_F(Ipc, vmm_28) {
  Exporter exporter;
  const uint64_t number = exporter.buffer(2 * kMiB);
  exporter.put(number, 0, 2 * kMiB, 13);
  const gpumem_share_handle before = exporter.share(number);
  const Import early = import(before);
  for (uint64_t size : {6 * kMiB, 8 * kMiB, 16 * kMiB})
    EXPECT_EQ(exporter.resize(number, size), GPUMEM_SUCCESS);
  exporter.put(number, 0, 16 * kMiB, 14);
  const gpumem_share_handle after = exporter.share(number, 5 * kMiB);
  EXPECT_NE(std::memcmp(&before, &after, sizeof before), 0);
  EXPECT_EQ(share_info(after).size, 16 * kMiB);
  EXPECT_EQ(share_info(after).fd_count, 4u);
  const Import whole = import(after);
  EXPECT_EQ(whole.pointer, whole.memory.device() + 5 * kMiB);
  EXPECT_TRUE(holds_pattern(instance_, whole.memory.device(), 16 * kMiB, 14));
  EXPECT_TRUE(holds_pattern(instance_, early.pointer, 2 * kMiB, 14));
  // One copy over all pieces.
  const Memory copy = alloc_device(device_, 16 * kMiB);
  EXPECT_OK(gpumem_copy(instance_, copy.device(), whole.memory.device(), 16 * kMiB, nullptr, why()));
  EXPECT_TRUE(holds_pattern(instance_, copy.device(), 16 * kMiB, 14));
  // What a buffer gives back is not exported any more, and importers keep it.
  EXPECT_EQ(exporter.resize(number, 2 * kMiB), GPUMEM_SUCCESS);
  EXPECT_TRUE(has_state(whole.memory, GPUMEM_IMPORT_WITHDRAWN));
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, import_status(after));
  EXPECT_TRUE(holds_pattern(instance_, whole.memory.device(), 16 * kMiB, 14));
}

TEST_F(Ipc, vmm_28_more_pieces_than_a_handle_holds) {
  Exporter exporter;
  const uint64_t number = exporter.buffer(2 * kMiB);
  uint64_t size = 2 * kMiB;
  for (uint64_t piece = 1; piece <= 10; ++piece) {
    size += piece % 2 == 0 ? 2 * kMiB : 4 * kMiB;
    EXPECT_EQ(exporter.resize(number, size), GPUMEM_SUCCESS);
  }
  exporter.put(number, 0, size, 15);
  const gpumem_share_handle handle = exporter.share(number);
  EXPECT_EQ(share_info(handle).fd_count, 12u);  // of eleven pieces, and of the list of their sizes
  const Import made = import(handle);
  EXPECT_TRUE(holds_pattern(instance_, made.pointer, size, 15));
}

TEST_F(Ipc, vmm_28_of_the_host) {
  if (capability(device_, GPUMEM_CAPABILITY_VMM_HOST_NUMA).value == GPUMEM_ANSWER_NO)
    SKIP_RULE("host memory cannot be mapped here");
  Exporter exporter;
  const uint64_t number = exporter.buffer(2 * kMiB, GPUMEM_LOCATION_HOST_NUMA);
  exporter.put(number, 0, 2 * kMiB, 16);
  const Import made = import(exporter.share(number));
  EXPECT_TRUE(holds_pattern(instance_, made.pointer, 2 * kMiB, 16));
  EXPECT_TRUE(has_pattern(made.pointer, 2 * kMiB, 16));  // the CPU reads it in place
}

TEST_F(Ipc, vmm_25_descriptors_of_something_else) {
  Exporter exporter;
  const gpumem_share_handle handle = exporter.share(exporter.buffer(2 * kMiB));
  ASSERT_EQ(share_info(handle).fd_count, 1u);
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  const int file = memfd_create("a file", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(file, 2 * kMiB), 0);
  for (const int32_t wrong : {pipe_ends[0], file}) {
    gpumem_memory memory = nullptr;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_share_import(instance_, &handle, &wrong, 1, nullptr, nullptr, &memory, why()));
    EXPECT_EQ(memory, nullptr);
  }
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  close(file);
}

// ---- limits ----

TEST_F(Ipc, ipc_12_no_free_descriptor) {
  Exporter exporter;
  const Import connected = import(exporter.share(exporter.alloc(kMiB)));
  const uint64_t number = exporter.alloc(kSize);
  exporter.put(number, 0, kSize, 19);
  const gpumem_share_handle memory = exporter.share(number);
  const gpumem_share_handle buffer = exporter.share(exporter.buffer(kSize));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  for (const gpumem_share_handle& handle : {memory, buffer}) {
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    const gpumem_status status = import_status(handle);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_EQ(status, GPUMEM_ERROR_LIMIT_EXCEEDED) << last_error().message;
    EXPECT_NE(std::strstr(last_error().message, "ulimit -n"), nullptr) << last_error().message;
    EXPECT_STATUS(GPUMEM_SUCCESS, import_status(handle));
  }
}

// ---- the cache ----

TEST_F(Ipc, ipc_6_kept_for_a_while) {
  Exporter exporter;
  const uint64_t number = exporter.buffer(kSize);
  exporter.put(number, 0, kSize, 17);
  const gpumem_share_handle handle = exporter.share(number);
  gpumem_import_cache_desc cache = GPUMEM_IMPORT_CACHE_DESC_INIT;
  cache.idle_ns = UINT64_C(60'000'000'000);
  EXPECT_OK(gpumem_share_set_cache(instance_, &cache, why()));
  const uint8_t* address = nullptr;
  {
    const Import made = import(handle);
    address = made.pointer;
  }
  EXPECT_EQ(kind_stats(instance_, GPUMEM_KIND_IMPORTED).live_count, 0u);
  EXPECT_NE(pointer_info(instance_, address).kind, GPUMEM_KIND_IMPORTED);
  {
    const Import again = import(handle);
    EXPECT_EQ(again.pointer, address);
    EXPECT_TRUE(holds_pattern(instance_, again.pointer, kSize, 17));
  }
  EXPECT_OK(gpumem_share_flush_cache(instance_, why()));
  EXPECT_OK(gpumem_share_flush_cache(instance_, why()));
  const Import fresh = import(handle);
  EXPECT_TRUE(holds_pattern(instance_, fresh.pointer, kSize, 17));
  EXPECT_OK(gpumem_share_set_cache(instance_, nullptr, why()));
}

// ---- hubs ----

class Hub : public Ipc {
 protected:
  static std::string path() { return "@gpumem-test-" + std::to_string(getpid()); }
  using Link = Owned<gpumem_link, gpumem_link_close>;

  gpumem_status connect(const std::string& where, const std::string& token, gpumem_link* out) {
    gpumem_link_desc desc = GPUMEM_LINK_DESC_INIT;
    desc.path = where.c_str();
    desc.token = token.empty() ? nullptr : token.data();
    desc.token_size = static_cast<uint32_t>(token.size());
    return gpumem_link_connect(instance_, &desc, out, why());
  }
  Link connect(const std::string& where = path()) {
    gpumem_link link = nullptr;
    EXPECT_OK(connect(where, {}, &link));
    return Link(link);
  }
  gpumem_share_handle fetch(gpumem_link link, const std::string& name, uint64_t version = 0) {
    gpumem_fetch_desc desc = GPUMEM_FETCH_DESC_INIT;
    desc.version = version;
    gpumem_share_handle handle{};
    EXPECT_OK(gpumem_link_fetch(link, name.c_str(), &desc, &handle, why()));
    return handle;
  }
  gpumem_status fetch_status(gpumem_link link, const std::string& name, uint64_t version = 0) {
    gpumem_fetch_desc desc = GPUMEM_FETCH_DESC_INIT;
    desc.version = version;
    gpumem_share_handle handle{};
    return gpumem_link_fetch(link, name.c_str(), &desc, &handle, why());
  }
};

TEST_F(Hub, hub_1_names_and_versions) {
  Exporter exporter;
  ASSERT_EQ(exporter.open_hub(path()), GPUMEM_SUCCESS);
  EXPECT_EQ(exporter.open_hub(path()), GPUMEM_ERROR_ALREADY_EXISTS);
  const Link link = connect();
  gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_link_enumerate(link, 0, &entry, why()));
  EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_link_wait(link, "weights", 0, 10'000'000, &entry, why()));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, fetch_status(link, "weights"));
  const uint64_t first = exporter.buffer(kSize);
  const uint64_t second = exporter.buffer(kSize);
  exporter.put(first, 0, kSize, 20);
  exporter.put(second, 0, kSize, 21);
  const gpumem_share_handle one = exporter.share(first);
  const gpumem_share_handle two = exporter.share(second);
  EXPECT_EQ(exporter.publish("weights", one, 5), GPUMEM_SUCCESS);
  ASSERT_OK(gpumem_link_wait(link, "weights", 0, GPUMEM_TIMEOUT_INFINITE, &entry, why()));
  EXPECT_STREQ(entry.name, "weights");
  EXPECT_EQ(entry.version, 5u);
  EXPECT_EQ(entry.size, kSize);
  EXPECT_EQ(entry.access, GPUMEM_ACCESS_READ);
  EXPECT_EQ(entry.publisher_pid, exporter.pid());
  const Import old = import(fetch(link, "weights"));
  // The next version is there at once, and who reads the last one keeps it.
  EXPECT_EQ(exporter.publish("weights", two, 5), GPUMEM_ERROR_ALREADY_EXISTS);
  EXPECT_EQ(exporter.publish("weights", two, 4), GPUMEM_ERROR_ALREADY_EXISTS);
  EXPECT_EQ(exporter.publish("weights", two), GPUMEM_SUCCESS);
  ASSERT_OK(gpumem_link_wait(link, "weights", 5, GPUMEM_TIMEOUT_INFINITE, &entry, why()));
  EXPECT_EQ(entry.version, 6u);
  const Import fresh = import(fetch(link, "weights"));
  EXPECT_TRUE(holds_pattern(instance_, old.pointer, kSize, 20));
  EXPECT_TRUE(holds_pattern(instance_, fresh.pointer, kSize, 21));
  EXPECT_EQ(info_of(fresh.memory).access, GPUMEM_ACCESS_READ);
  EXPECT_STATUS(GPUMEM_SUCCESS, fetch_status(link, "weights", 5));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, fetch_status(link, "weights", 7));
  // Withdrawn: nobody else gets it.
  EXPECT_EQ(exporter.withdraw("weights", 5), GPUMEM_SUCCESS);
  EXPECT_TRUE(has_state(old.memory, GPUMEM_IMPORT_WITHDRAWN));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, fetch_status(link, "weights", 5));
  EXPECT_EQ(exporter.withdraw("weights"), GPUMEM_SUCCESS);
  EXPECT_EQ(exporter.withdraw("weights"), GPUMEM_ERROR_NOT_FOUND);
  EXPECT_TRUE(holds_pattern(instance_, fresh.pointer, kSize, 21));
  // Numbers do not run backwards, also when a name comes again. But it is not there.
  EXPECT_EQ(exporter.publish("weights", one, 6), GPUMEM_ERROR_INVALID_STATE);
  EXPECT_EQ(exporter.close_hub(), GPUMEM_SUCCESS);
  EXPECT_TRUE(eventually([&] {
    gpumem_link_info info = GPUMEM_LINK_INFO_INIT;
    EXPECT_OK(gpumem_link_get_info(link, &info, why()));
    return info.connected == 0;
  }));
  EXPECT_STATUS(GPUMEM_ERROR_PEER_GONE, gpumem_link_enumerate(link, 0, &entry, why()));
  gpumem_link none = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, connect(path(), {}, &none));
}

TEST_F(Hub, hub_3_the_next_version_is_imported) {
  Exporter exporter;
  ASSERT_EQ(exporter.open_hub(path()), GPUMEM_SUCCESS);
  const Link link = connect();
  const uint64_t number = exporter.buffer(kSize);
  exporter.put(number, 0, kSize, 30);
  const gpumem_share_handle handle = exporter.share(number, 4096);
  gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
  void* pointer = this;
  gpumem_memory memory = nullptr;
  gpumem_import_desc desc = GPUMEM_IMPORT_DESC_INIT;
  const auto next = [&](uint64_t after, uint64_t timeout_ns, const char* name = "weights") {
    return gpumem_link_import_next(link, name, after, timeout_ns, &desc, &entry, &pointer, &memory, why());
  };
  EXPECT_STATUS(GPUMEM_NOT_READY, next(0, 0));
  EXPECT_STATUS(GPUMEM_NOT_READY, next(0, 10'000'000));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, next(0, 0, nullptr));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, next(0, 0, "a/b"));
  desc.access = 77;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, next(0, 0));
  desc.access = 0;
  desc.flags = 1 << 9;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, next(0, 0));
  desc.flags = 0;
  {
    const Instance another = open_instance();
    desc.device = another.device();
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, next(0, 0));
    desc.device = nullptr;
  }
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_link_import_next(link, "weights", 0, 0, nullptr, nullptr, nullptr, nullptr, why()));
  entry.struct_size = 1;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, next(0, 0));
  entry = GPUMEM_ENTRY_INFO_INIT;
  EXPECT_EQ(pointer, this);
  EXPECT_EQ(memory, nullptr);
  EXPECT_EQ(entry.version, 0u);

  gpumem_status waited = GPUMEM_ERROR_INTERNAL;
  std::thread waiter([&] { waited = next(0, GPUMEM_TIMEOUT_INFINITE); });
  EXPECT_EQ(exporter.publish("weights", handle), GPUMEM_SUCCESS);
  waiter.join();
  ASSERT_STATUS(GPUMEM_SUCCESS, waited);
  const Memory first(memory);
  EXPECT_STREQ(entry.name, "weights");
  EXPECT_EQ(entry.version, 1u);
  EXPECT_EQ(info_of(first).access, GPUMEM_ACCESS_READ);
  EXPECT_TRUE(holds_pattern(instance_, static_cast<uint8_t*>(pointer) - 4096, kSize, 30))
      << "an inner byte was published";
  // The same memory again, as the import of it counts.
  EXPECT_EQ(exporter.publish("weights", handle), GPUMEM_SUCCESS);
  desc.name = "second";
  ASSERT_STATUS(GPUMEM_SUCCESS, next(1, GPUMEM_TIMEOUT_INFINITE));
  const Memory second(memory);
  EXPECT_EQ(entry.version, 2u);
  EXPECT_EQ(second.get(), first.get());
  desc.access = GPUMEM_ACCESS_READWRITE;
  EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, next(1, 0));
  desc.access = 0;
  EXPECT_EQ(exporter.close_hub(), GPUMEM_SUCCESS);
  EXPECT_STATUS(GPUMEM_ERROR_PEER_GONE, next(2, GPUMEM_TIMEOUT_INFINITE));
  EXPECT_EQ(entry.version, 2u);
}

TEST_F(Hub, hub_1_published_again) {
  Exporter exporter;
  ASSERT_EQ(exporter.open_hub(path()), GPUMEM_SUCCESS);
  const Link link = connect();
  const uint64_t number = exporter.buffer(kSize);
  exporter.put(number, 0, kSize, 25);
  const gpumem_share_handle handle = exporter.share(number);
  ASSERT_EQ(exporter.publish("weights", handle), GPUMEM_SUCCESS);
  const Import before = import(fetch(link, "weights"));
  ASSERT_EQ(exporter.withdraw("weights"), GPUMEM_SUCCESS);
  EXPECT_TRUE(has_state(before.memory, GPUMEM_IMPORT_WITHDRAWN));
  ASSERT_EQ(exporter.publish("weights", handle), GPUMEM_SUCCESS);
  // The mapping is the same, and it is not withdrawn any more.
  const Import after = import(fetch(link, "weights"));
  EXPECT_EQ(after.pointer, before.pointer);
  EXPECT_EQ(info_of(after.memory).state, GPUMEM_IMPORT_LIVE);
  const Link another = connect();
  ASSERT_EQ(exporter.withdraw("weights"), GPUMEM_SUCCESS);
  EXPECT_TRUE(has_state(after.memory, GPUMEM_IMPORT_WITHDRAWN));
  ASSERT_EQ(exporter.publish("weights", handle), GPUMEM_SUCCESS);
  const Import last = import(fetch(another, "weights"));
  EXPECT_EQ(info_of(last.memory).state, GPUMEM_IMPORT_LIVE);
  EXPECT_TRUE(holds_pattern(instance_, last.pointer, kSize, 25));
}

TEST_F(Hub, hub_2_by_fingerprint) {
  Exporter exporter;
  ASSERT_EQ(exporter.open_hub(path()), GPUMEM_SUCCESS);
  const Link link = connect();
  const gpumem_share_handle handle = exporter.share(exporter.buffer(kSize));
  for (const uint8_t mark : std::array<uint8_t, 4>{1, 2, 1, 3})
    EXPECT_EQ(exporter.publish("model", handle, 0, 10, 0, mark), GPUMEM_SUCCESS);
  gpumem_fetch_desc desc = GPUMEM_FETCH_DESC_INIT;
  gpumem_share_handle fetched{};
  desc.fingerprint[0] = 1;
  EXPECT_OK(gpumem_link_fetch(link, "model", &desc, &fetched, why()));
  desc.fingerprint[0] = 9;
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_link_fetch(link, "model", &desc, &fetched, why()));
  uint32_t count = 0;
  gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
  while (gpumem_link_enumerate(link, count, &entry, why()) == GPUMEM_SUCCESS)
    ++count;
  EXPECT_EQ(count, 4u);
}

TEST_F(Hub, ipc_14_the_token) {
  Exporter exporter;
  ASSERT_EQ(exporter.open_hub(path(), "open sesame"), GPUMEM_SUCCESS);
  gpumem_link link = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_PERMISSION_DENIED, connect(path(), {}, &link));
  EXPECT_NE(std::strstr(last_error().message, "asks for a token"), nullptr) << last_error().message;
  EXPECT_STATUS(GPUMEM_ERROR_PERMISSION_DENIED, connect(path(), "open sesamf", &link));
  EXPECT_NE(std::strstr(last_error().message, "not that of the hub"), nullptr) << last_error().message;
  EXPECT_STATUS(GPUMEM_ERROR_PERMISSION_DENIED, connect(path(), "open sesame ", &link));
  EXPECT_OK(connect(path(), "open sesame", &link));
  EXPECT_OK(gpumem_link_close(link, why()));
}

TEST_F(Hub, hub_4_limits_and_names) {
  Exporter exporter;
  ASSERT_EQ(exporter.open_hub(path(), {}, 0, 2), GPUMEM_SUCCESS);
  const gpumem_share_handle handle = exporter.share(exporter.buffer(2 * kMiB));
  EXPECT_EQ(exporter.publish("one", handle), GPUMEM_SUCCESS);
  EXPECT_EQ(exporter.publish("two", handle), GPUMEM_SUCCESS);
  EXPECT_EQ(exporter.publish("three", handle), GPUMEM_ERROR_LIMIT_EXCEEDED);
  EXPECT_EQ(exporter.publish("one", handle), GPUMEM_SUCCESS);
  for (const char* name : {"", "a/b", "line\nbreak", "\xff\xfe"})
    EXPECT_EQ(exporter.publish(name, handle), GPUMEM_ERROR_INVALID_ARGUMENT) << name;
  const gpumem_share_handle whole = exporter.share(exporter.alloc(kMiB));
  EXPECT_EQ(exporter.publish("one", whole, 0, 0, GPUMEM_ACCESS_READ), GPUMEM_ERROR_INVALID_ARGUMENT);
}

TEST_F(Hub, hub_5_a_file) {
  char folder[] = "/tmp/gpumem-test-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string file = std::string(folder) + "/hub";
  Exporter exporter;
  ASSERT_EQ(exporter.open_hub(file), GPUMEM_SUCCESS);
  { const Link link = connect(file); }
  exporter.kill();
  // What a dead process has left is replaced.
  gpumem_link none = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, connect(file, {}, &none));
  EXPECT_NE(std::strstr(last_error().message, "XDG_RUNTIME_DIR"), nullptr) << last_error().message;
  Exporter next;
  ASSERT_EQ(next.open_hub(file), GPUMEM_SUCCESS);
  { const Link link = connect(file); }
  EXPECT_EQ(next.close_hub(), GPUMEM_SUCCESS);
  EXPECT_NE(access(file.c_str(), F_OK), 0);
  EXPECT_EQ(rmdir(folder), 0);
}

TEST_F(Hub, hub_6_the_publisher_dies) {
  Exporter exporter;
  ASSERT_EQ(exporter.open_hub(path()), GPUMEM_SUCCESS);
  const uint64_t number = exporter.buffer(kSize);
  exporter.put(number, 0, kSize, 22);
  EXPECT_EQ(exporter.publish("weights", exporter.share(number)), GPUMEM_SUCCESS);
  const Link link = connect();
  const Import made = import(fetch(link, "weights"));
  const gpumem_share_handle later = fetch(link, "weights");
  gpumem_status waited = GPUMEM_SUCCESS;
  std::thread waiter(
      [&] { waited = gpumem_link_wait(link, "another", 0, GPUMEM_TIMEOUT_INFINITE, nullptr, nullptr); });
  exporter.kill();
  waiter.join();
  EXPECT_EQ(waited, GPUMEM_ERROR_PEER_GONE);
  EXPECT_TRUE(has_state(made.memory, GPUMEM_IMPORT_PEER_GONE));
  EXPECT_TRUE(holds_pattern(instance_, made.pointer, kSize, 22));
  // What was fetched has its descriptors, also when more is fetched.
  Exporter next;
  ASSERT_EQ(next.open_hub(path()), GPUMEM_SUCCESS);
  EXPECT_EQ(next.publish("weights", next.share(next.buffer(kSize))), GPUMEM_SUCCESS);
  const Link other = connect();
  const Import of_next = import(fetch(other, "weights"));
  const Import late = import(later);
  EXPECT_TRUE(holds_pattern(instance_, late.pointer, kSize, 22));
}

// Where /proc shows nothing, nothing says whether the exporter lives.
CHILD(without_proc) {
  const uid_t user = geteuid();
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
    skip_child("the system does not let this user make namespaces");
  std::ofstream("/proc/self/uid_map") << user << ' ' << user << " 1";
  ASSERT_EQ(mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0) << strerror(errno);
  ASSERT_EQ(mount("none", "/proc", "tmpfs", 0, nullptr), 0) << strerror(errno);
  const Instance instance = open_instance();
  gpumem_share_handle handle{};
  std::ifstream file(child_arguments().front(), std::ios::binary);
  ASSERT_TRUE(file.read(reinterpret_cast<char*>(&handle), sizeof handle));
  gpumem_memory memory = nullptr;
  void* pointer = nullptr;
  gpumem_error error = GPUMEM_ERROR_INIT;
  EXPECT_EQ(gpumem_share_import(instance, &handle, nullptr, 0, nullptr, &pointer, &memory, &error),
            GPUMEM_ERROR_UNSUPPORTED);
  EXPECT_NE(std::strstr(error.message, "/proc"), nullptr) << error.message;
}

TEST_F(Hub, ipc_10_without_proc) {
  if (!on_host()) SKIP_RULE("a driver itself needs /proc");
  char folder[] = "/tmp/gpumem-test-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string name = std::string(folder) + "/handle";
  Exporter exporter;
  const gpumem_share_handle handle = exporter.share(exporter.buffer(kSize));
  std::ofstream(name, std::ios::binary).write(reinterpret_cast<const char*>(&handle), sizeof handle);
  // A leak checker needs /proc.
  const ProcessResult result = run_child("without_proc", {"LSAN_OPTIONS=detect_leaks=0"}, {name});
  EXPECT_EQ(unlink(name.c_str()), 0);
  EXPECT_EQ(rmdir(folder), 0);
  if (result.exit_code == kChildSkipped) GTEST_SKIP() << result.out;
  EXPECT_TRUE(result.ok()) << result;
}

// In user, process, mount and network namespaces of its own, without a right to inspect processes outside.
CHILD(container) {
  const std::string user = "0 " + std::to_string(geteuid()) + " 1";
  if (unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET) != 0)
    skip_child("the system does not let this user make namespaces");
  std::ofstream("/proc/self/uid_map") << user;
  // The first process of the new namespace.
  const pid_t first = fork();
  ASSERT_GE(first, 0) << strerror(errno);
  if (first != 0) {
    int status = -1;
    ASSERT_EQ(waitpid(first, &status, 0), first);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  // The driver looks for itself there.
  ASSERT_EQ(mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0) << strerror(errno);
  (void)!mount("proc", "/proc", "proc", 0,
               nullptr);  // refused in some containers; the host backend needs none
  prctl(PR_SET_DUMPABLE, 0);
  const std::string& file = child_arguments().front();
  const Instance instance = open_instance();
  gpumem_link_desc desc = GPUMEM_LINK_DESC_INIT;
  desc.path = file.c_str();
  gpumem_link link = nullptr;
  EXPECT_OK(gpumem_link_connect(instance, &desc, &link, why()));
  gpumem_share_handle handle{};
  EXPECT_OK(gpumem_link_fetch(link, "weights", nullptr, &handle, why()));
  gpumem_memory memory = nullptr;
  void* pointer = nullptr;
  EXPECT_OK(gpumem_share_import(instance, &handle, nullptr, 0, nullptr, &pointer, &memory, why()));
  EXPECT_TRUE(holds_pattern(instance, pointer, kSize, 24));
  EXPECT_OK(gpumem_memory_destroy(memory, why()));
  EXPECT_OK(gpumem_link_close(link, why()));
}

TEST_F(Hub, ipc_12_from_a_container) {
  char folder[] = "/tmp/gpumem-test-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string file = std::string(folder) + "/hub";
  {
    Exporter exporter;
    ASSERT_EQ(exporter.open_hub(file), GPUMEM_SUCCESS);
    const uint64_t number = exporter.buffer(kSize);
    exporter.put(number, 0, kSize, 24);
    ASSERT_EQ(exporter.publish("weights", exporter.share(number)), GPUMEM_SUCCESS);
    const ProcessResult result = run_child("container", {}, {file});
    EXPECT_EQ(exporter.close_hub(), GPUMEM_SUCCESS);
    EXPECT_EQ(rmdir(folder), 0);
    if (result.exit_code == kChildSkipped) GTEST_SKIP() << result.out;
    EXPECT_TRUE(result.ok()) << result;
  }
}

TEST_F(Hub, hub_7_a_keeper_outlives_its_publishers) {
  Exporter keeper;
  ASSERT_EQ(keeper.open_hub(path(), {}, GPUMEM_HUB_KEEPER), GPUMEM_SUCCESS);
  {
    Exporter publisher;
    const uint64_t number = publisher.buffer(kSize);
    publisher.put(number, 0, kSize, 23);
    ASSERT_EQ(publisher.deposit(path(), "state", publisher.share(number)), GPUMEM_SUCCESS);
    // No memory of the driver's own handles.
    EXPECT_EQ(publisher.deposit(path(), "other", publisher.share(publisher.alloc(kMiB))),
              GPUMEM_ERROR_UNSUPPORTED);
    publisher.kill();
  }
  const Link link = connect();
  gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
  EXPECT_TRUE(eventually([&] {
    EXPECT_OK(gpumem_link_enumerate(link, 0, &entry, why()));
    return entry.publisher_gone == 1;
  }));
  EXPECT_STREQ(entry.name, "state");
  const gpumem_share_handle fetched = fetch(link, "state");
  const Import made = import(fetched);
  EXPECT_TRUE(holds_pattern(instance_, made.pointer, kSize, 23));
  // It is there already.
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND,
                gpumem_link_publish(link, "state", &fetched, nullptr, nullptr, why()));
  EXPECT_NE(std::strstr(last_error().message, "held there already"), nullptr) << last_error().message;
  EXPECT_OK(gpumem_link_withdraw(link, "state", 0, why()));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, fetch_status(link, "state"));
}

TEST_F(Hub, hub_7_a_keeper_keeps_what_its_publisher_frees) {
  Exporter keeper;
  ASSERT_EQ(keeper.open_hub(path(), {}, GPUMEM_HUB_KEEPER), GPUMEM_SUCCESS);
  Exporter publisher;
  const uint64_t number = publisher.buffer(kSize);
  publisher.put(number, 0, kSize, 24);
  const gpumem_share_handle handle = publisher.share(number);
  ASSERT_EQ(publisher.deposit(path(), "state", handle), GPUMEM_SUCCESS);
  EXPECT_EQ(publisher.revoke(handle), GPUMEM_SUCCESS);
  EXPECT_EQ(publisher.destroy(number), GPUMEM_SUCCESS);
  const Link link = connect();
  const Import made = import(fetch(link, "state"));
  EXPECT_TRUE(holds_pattern(instance_, made.pointer, kSize, 24));
  EXPECT_OK(gpumem_link_withdraw(link, "state", 0, why()));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, fetch_status(link, "state"));
}

// One process grants it, over whichever connection.
TEST_F(Hub, hub_9) {
  Exporter exporter;
  ASSERT_EQ(exporter.open_hub(path()), GPUMEM_SUCCESS);
  const Link link = connect();
  for (const bool blocks : {false, true}) {
    const uint64_t number = blocks ? exporter.buffer(kSize) : exporter.alloc(kSize);
    exporter.put(number, 0, kSize, 26);
    const gpumem_share_handle handle = exporter.share(number);
    ASSERT_EQ(exporter.publish("it", handle, 0, 0, GPUMEM_ACCESS_READWRITE), GPUMEM_SUCCESS);
    exporter.send(handle);
    gpumem_share_handle received{};
    ASSERT_OK(gpumem_share_receive(instance_, exporter.socket(), GPUMEM_TIMEOUT_INFINITE, &received, why()));
    ASSERT_EQ(exporter.sent(), GPUMEM_SUCCESS);
    std::vector<Import> imports;
    for (const gpumem_share_handle& one : {fetch(link, "it"), received, handle, received, handle})
      imports.push_back(import(one));
    for (const Import& made : imports)
      EXPECT_EQ(made.memory.get(), imports.front().memory.get());
    EXPECT_EQ(info_of(imports.front().memory).count, imports.size());
    EXPECT_TRUE(holds_pattern(instance_, imports.front().pointer, kSize, 26));
    imports.clear();
    EXPECT_TRUE(eventually([&] { return exporter.destroy(number) == GPUMEM_SUCCESS; }));
  }
}

// Another process with the same memory: what it grants is an import of its own.
TEST_F(Hub, hub_9_from_a_keeper) {
  Exporter keeper;
  ASSERT_EQ(keeper.open_hub(path(), {}, GPUMEM_HUB_KEEPER), GPUMEM_SUCCESS);
  Exporter publisher;
  const uint64_t number = publisher.buffer(kSize);
  publisher.put(number, 0, kSize, 27);
  const gpumem_share_handle handle = publisher.share(number, 0, GPUMEM_ACCESS_READ);
  ASSERT_EQ(publisher.deposit(path(), "state", handle), GPUMEM_SUCCESS);
  const Import kept = import(fetch(connect(), "state"));
  const Import made = import(handle);
  EXPECT_NE(kept.memory.get(), made.memory.get());
  EXPECT_EQ(info_of(kept.memory).count, 1u);
  publisher.kill();
  EXPECT_TRUE(has_state(made.memory, GPUMEM_IMPORT_PEER_GONE));
  EXPECT_EQ(info_of(kept.memory).state, GPUMEM_IMPORT_LIVE);
  EXPECT_TRUE(holds_pattern(instance_, kept.pointer, kSize, 27));
  EXPECT_TRUE(holds_pattern(instance_, made.pointer, kSize, 27));
}

// Another keeper that has the same export stands for one that began again with its store.
TEST_F(Hub, hub_7_an_import_outlives_a_keeper_that_began_again) {
  auto keeper = std::make_unique<Exporter>();
  Exporter publisher;
  const uint64_t number = publisher.buffer(kSize);
  publisher.put(number, 0, kSize, 25);
  const gpumem_share_handle handle = publisher.share(number);
  const auto import_of_state = [&] {
    EXPECT_EQ(publisher.deposit(path(), "state", handle), GPUMEM_SUCCESS);
    return import(fetch(connect(), "state"));
  };
  const auto state_of = [&](const Import& made) { return info_of(made.memory.get()).state; };
  const auto begin_again = [&](const Import& made) {
    keeper->kill();
    EXPECT_TRUE(eventually([&] { return state_of(made) == GPUMEM_IMPORT_PEER_GONE; }));
    keeper = std::make_unique<Exporter>();
    ASSERT_EQ(keeper->open_hub(path(), {}, GPUMEM_HUB_KEEPER), GPUMEM_SUCCESS);
  };
  ASSERT_EQ(keeper->open_hub(path(), {}, GPUMEM_HUB_KEEPER), GPUMEM_SUCCESS);
  Import first = import_of_state();
  EXPECT_EQ(state_of(first), GPUMEM_IMPORT_LIVE);
  begin_again(first);
  const Import second = import_of_state();
  EXPECT_EQ(state_of(second), GPUMEM_IMPORT_LIVE);
  EXPECT_EQ(state_of(first), GPUMEM_IMPORT_PEER_GONE) << "that was another process";
  publisher.put(number, 0, kSize, 26);
  EXPECT_TRUE(holds_pattern(instance_, second.pointer, kSize, 26)) << "the memory is the same";
  first.memory.destroy();
  EXPECT_TRUE(holds_pattern(instance_, second.pointer, kSize, 26));
  publisher.kill();  // it has links to keepers that are gone
}

TEST_F(Ipc, ipc_12_no_room_for_another_handle) {
  constexpr int kMost = 1024;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // Each has two, and all together three eighths of the process's.
  if (before.rlim_max < 6 * kMost) SKIP_RULE("the process may not have so many descriptors");
  const rlimit enough{std::max<rlim_t>(before.rlim_cur, 6 * kMost), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &enough), 0);
  constexpr uint64_t kHour = 3600 * uint64_t{1'000'000'000};  // so that none is given up meanwhile
  Exporter exporter;
  const uint64_t number = exporter.buffer(kSize);
  const uint64_t another = exporter.buffer(kSize);
  exporter.put(another, 0, kSize, 25);
  gpumem_share_handle last{};
  gpumem_share_handle received{};
  for (int i = 0; i < kMost; ++i) {
    if (i != 0) {
      EXPECT_EQ(exporter.revoke(last), GPUMEM_SUCCESS);
    }
    last = exporter.share(number);
    exporter.send(last, kHour);
    ASSERT_OK(gpumem_share_receive(instance_, exporter.socket(), kHour, &received, why()));
    ASSERT_EQ(exporter.sent(), GPUMEM_SUCCESS);
  }
  // There is no room, so it stays in the socket until there is.
  exporter.send(exporter.share(another), kHour);
  gpumem_share_handle passed{};
  EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED,
                gpumem_share_receive(instance_, exporter.socket(), kHour, &passed, why()));
  EXPECT_EQ(import_status(received), GPUMEM_SUCCESS);
  ASSERT_OK(gpumem_share_receive(instance_, exporter.socket(), kHour, &received, why()));
  const Import made = import(received);
  EXPECT_TRUE(holds_pattern(instance_, made.pointer, kSize, 25));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

// What a process with a hub says about a way to it.
class Ways : public Hub {
 protected:
  static gpumem_buffer_desc of_buffer(gpumem_location location) {
    gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
    desc.size = desc.reserve = kSize;
    desc.location = location;
    desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
    return desc;
  }
  Buffer make_buffer(gpumem_location location = GPUMEM_LOCATION_DEVICE) {
    const gpumem_buffer_desc desc = of_buffer(location);
    gpumem_buffer made = nullptr;
    EXPECT_OK(gpumem_buffer_create(device_, &desc, &made, why()));
    return Buffer(made);
  }
  // Without a link: as it looks from here.
  gpumem_way_info way_to(gpumem_link link, const void* pointer, gpumem_share_way way,
                         gpumem_share_peer peer = GPUMEM_PEER_OTHER_PROCESS) {
    gpumem_way_info info = GPUMEM_WAY_INFO_INIT;
    EXPECT_OK(link == nullptr ? gpumem_share_get_way(instance_, pointer, way, peer, &info, why())
                              : gpumem_link_get_way(link, pointer, way, peer, &info, why()));
    return info;
  }
};

TEST_F(Ways, ipc_24_a_trial_at_both_ends) {
  const Memory memory = shareable();
  const Buffer buffer = make_buffer();
  Exporter peer;
  ASSERT_EQ(peer.open_hub(path()), GPUMEM_SUCCESS);
  const Link link = connect();
  const auto before = live(instance_);
  const gpumem_way_info whole = way_to(link, memory.device(), GPUMEM_SHARE_WAY_LEGACY);
  EXPECT_EQ(whole.status, GPUMEM_SUCCESS) << whole.message;
  EXPECT_EQ(whole.slow, 0U) << whole.message;
  EXPECT_EQ(whole.fd_count, on_host() ? 1U : 0U);
  const gpumem_way_info blocks = way_to(link, buffer.base(), GPUMEM_SHARE_WAY_POSIX_FD);
  EXPECT_EQ(blocks.status, GPUMEM_SUCCESS) << blocks.message;
  EXPECT_EQ(blocks.slow, 0U) << blocks.message;
  EXPECT_EQ(live(instance_), before) << "a trial leaves something";
  // What no export would give needs no trial; nobody opens a dma-buf.
  EXPECT_EQ(way_to(link, memory.device(), GPUMEM_SHARE_WAY_POSIX_FD).status, GPUMEM_ERROR_UNSUPPORTED);
  EXPECT_EQ(way_to(link, memory.device(), GPUMEM_SHARE_WAY_DMA_BUF).status, GPUMEM_ERROR_UNSUPPORTED);
  // It is kept: nobody has to answer.
  ASSERT_TRUE(peer.signal(SIGSTOP));
  EXPECT_EQ(way_to(link, memory.device(), GPUMEM_SHARE_WAY_LEGACY).status, GPUMEM_SUCCESS);
  ASSERT_TRUE(peer.signal(SIGCONT));
  // Memory of another instance is not the link's.
  const Instance other = open_instance();
  gpumem_link_desc desc = GPUMEM_LINK_DESC_INIT;
  const std::string address = path();
  desc.path = address.c_str();
  gpumem_link made = nullptr;
  ASSERT_OK(gpumem_link_connect(other, &desc, &made, why()));
  EXPECT_EQ(way_to(Link(made), memory.device(), GPUMEM_SHARE_WAY_LEGACY).status, GPUMEM_ERROR_NOT_FOUND);
}

// A block that could not be freed goes with the next call that makes something, or when the instance is
// closed.
TEST_F(Ways, ipc_24_a_block_that_is_not_freed_at_once) {
  if (!Faults::available()) SKIP_RULE("no step of a real driver can be made to fail");
  const Memory memory = shareable();
  const Buffer buffer = make_buffer();
  Exporter peer;
  ASSERT_EQ(peer.open_hub(path()), GPUMEM_SUCCESS);
  const auto before = live(instance_);
  Faults faults(instance_);
  const auto stays = [&](const void* pointer, gpumem_share_way way, auto fail) {
    const Link link = connect();
    const auto with_link = live(instance_);
    fail();
    (void)way_to(link, pointer, way);
    faults.off();
    return live(instance_) != with_link;
  };
  if (on_host()) {  // it frees other memory without fail
    bool stayed = false;
    for (uint64_t step = 1; step < 60; ++step)
      stayed |= stays(buffer.base(), GPUMEM_SHARE_WAY_POSIX_FD, [&] { faults.fail_step(step, true); });
    EXPECT_TRUE(stayed);
  } else {
    constexpr int kNotPermitted = 800;
    const auto refuse = [](const char* call) { Faults::fail_driver_call(call, kNotPermitted, true); };
    EXPECT_TRUE(stays(memory.device(), GPUMEM_SHARE_WAY_LEGACY, [&] { refuse("cuMemFree"); }));
    EXPECT_TRUE(stays(buffer.base(), GPUMEM_SHARE_WAY_POSIX_FD, [&] { refuse("cuMemUnmap"); }));
  }
  { const Buffer next = make_buffer(); }
  EXPECT_EQ(live(instance_), before);
}

TEST_F(Ways, ipc_24_a_trial_leaves_nothing_in_the_process_of_the_hub) {
  if (!on_fake_cuda()) SKIP_RULE("only the fake driver can be made to turn down a release");
  constexpr int kNotPermitted = 800;
  gpumem_hub_desc desc = GPUMEM_HUB_DESC_INIT;
  const std::string address = path();
  desc.path = address.c_str();
  Instance other = open_instance();
  gpumem_hub hub = nullptr;
  ASSERT_OK(gpumem_hub_open(other, &desc, &hub, why()));
  const Buffer buffer = make_buffer();
  const auto before = live(other);
  {
    const Link link = connect();
    // The trial unmaps first, the block is freed afterwards.
    Faults faults(instance_);
    Faults::fail_driver_call("cuMemUnmap", kNotPermitted);
    const gpumem_way_info info = way_to(link, buffer.base(), GPUMEM_SHARE_WAY_POSIX_FD);
    EXPECT_EQ(info.status, GPUMEM_SUCCESS) << info.message;
  }
  EXPECT_EQ(live(other), before);
  EXPECT_OK(gpumem_hub_close(hub, why()));
  EXPECT_OK(gpumem_instance_close(other.release(), GPUMEM_CLOSE_CHECK, nullptr, why()));
}

TEST_F(Ways, ipc_24_what_a_link_cannot_be_asked) {
  const Memory memory = shareable();
  Exporter peer;
  ASSERT_EQ(peer.open_hub(path()), GPUMEM_SUCCESS);
  Link link = connect();
  gpumem_way_info info = GPUMEM_WAY_INFO_INIT;
  const auto ask = [&](const void* pointer, gpumem_share_way way, gpumem_share_peer whom,
                       gpumem_way_info* out) {
    return gpumem_link_get_way(link, pointer, way, whom, out, why());
  };
  const gpumem_share_way legacy = GPUMEM_SHARE_WAY_LEGACY;
  const gpumem_share_peer process = GPUMEM_PEER_OTHER_PROCESS;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, ask(nullptr, legacy, process, &info));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, ask(memory.device(), GPUMEM_SHARE_WAY_ANY, process, &info));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, ask(memory.device(), 77, process, &info));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, ask(memory.device(), legacy, 77, &info));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, ask(memory.device(), legacy, process, nullptr));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_link_get_way(nullptr, memory.device(), legacy, process, &info, why()));
  struct Call {
    const void* pointer;
    gpumem_instance instance;
    gpumem_link link;
    gpumem_way_info* info;
    bool done = false;
  };
  Call call{memory.device(), instance_, link, &info};
  const auto run = [](void* user_data) {
    auto& self = *static_cast<Call*>(user_data);
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE,
                  gpumem_link_get_way(self.link, self.pointer, GPUMEM_SHARE_WAY_LEGACY,
                                      GPUMEM_PEER_OTHER_PROCESS, self.info, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE,
                  gpumem_share_get_way(self.instance, self.pointer, GPUMEM_SHARE_WAY_LEGACY,
                                       GPUMEM_PEER_OTHER_PROCESS, self.info, why()));
    self.done = true;
  };
  const Stream stream = create_stream(device_);
  ASSERT_OK(gpumem_stream_launch_host_function(stream, run, &call, why()));
  stream.synchronize();
  EXPECT_TRUE(call.done);
  EXPECT_EQ(info.status, GPUMEM_SUCCESS);
  EXPECT_EQ(info.message[0], '\0') << "a failure has written an answer";
  const gpumem_link closed = link.get();
  link.destroy();
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE,
                gpumem_link_get_way(closed, memory.device(), legacy, process, &info, why()));
}

TEST_F(Ways, ipc_24_what_is_slow_is_said) {
  if (capability(device_, GPUMEM_CAPABILITY_VMM_HOST_NUMA).value == GPUMEM_ANSWER_NO)
    SKIP_RULE("host memory cannot be mapped here");
  const Buffer near = make_buffer();
  const Buffer far = make_buffer(GPUMEM_LOCATION_HOST_NUMA);
  Exporter peer;
  ASSERT_EQ(peer.open_hub(path()), GPUMEM_SUCCESS);
  const Link link = connect();
  for (const gpumem_link by : {gpumem_link{nullptr}, link.get()}) {
    SCOPED_TRACE(by != nullptr ? "by a trial" : "from here");
    const gpumem_way_info host = way_to(by, far.base(), GPUMEM_SHARE_WAY_POSIX_FD);
    EXPECT_EQ(host.status, GPUMEM_SUCCESS) << host.message;
    EXPECT_EQ(host.slow, 1U);
    EXPECT_NE(std::string(host.message).find("on the host"), std::string::npos) << host.message;
    const gpumem_way_info elsewhere =
        way_to(by, far.base(), GPUMEM_SHARE_WAY_POSIX_FD, GPUMEM_PEER_OTHER_DEVICE);
    if (instance_.device_count() < 2) {
      EXPECT_EQ(elsewhere.status, GPUMEM_ERROR_UNSUPPORTED) << elsewhere.message;
      continue;
    }
    EXPECT_EQ(elsewhere.status, GPUMEM_SUCCESS) << elsewhere.message;
    EXPECT_EQ(elsewhere.slow, 1U);
    const gpumem_way_info across =
        way_to(by, near.base(), GPUMEM_SHARE_WAY_POSIX_FD, GPUMEM_PEER_OTHER_DEVICE);
    EXPECT_EQ(across.status, GPUMEM_SUCCESS) << across.message;
    EXPECT_EQ(across.slow, 1U);
    EXPECT_NE(std::string(across.message).find("another device"), std::string::npos) << across.message;
  }
}

TEST_F(Ways, ipc_24_a_peer_that_cannot) {
  const Memory memory = shareable();
  const Buffer buffer = make_buffer();
  {
    Exporter keeper;
    ASSERT_EQ(keeper.open_hub(path(), {}, GPUMEM_HUB_KEEPER), GPUMEM_SUCCESS);
    const gpumem_way_info info = way_to(connect(), buffer.base(), GPUMEM_SHARE_WAY_POSIX_FD);
    EXPECT_EQ(info.status, GPUMEM_ERROR_UNSUPPORTED);
    EXPECT_NE(std::string(info.message).find("keeper"), std::string::npos) << info.message;
  }
  if (on_host()) {
    // Devices of another configuration are others, which shows only there.
    Exporter elsewhere("none");
    ASSERT_EQ(elsewhere.open_hub(path()), GPUMEM_SUCCESS);
    const Link link = connect();
    for (const auto& [pointer, way] :
         {std::pair<void*, gpumem_share_way>(memory.device(), GPUMEM_SHARE_WAY_LEGACY),
          std::pair<void*, gpumem_share_way>(buffer.base(), GPUMEM_SHARE_WAY_POSIX_FD)}) {
      EXPECT_EQ(way_to(nullptr, pointer, way).status, GPUMEM_SUCCESS) << "it can be exported";
      const gpumem_way_info info = way_to(link, pointer, way);
      EXPECT_EQ(info.status, GPUMEM_ERROR_NOT_FOUND);
      EXPECT_NE(std::strstr(info.message, "the same GPUMEM_HOST_DEVICES"), nullptr) << info.message;
      EXPECT_EQ(info.fd_count, 0U);
    }
  }
}

TEST_F(Ways, ipc_24_a_peer_that_dies_in_the_trial) {
  const Memory memory = shareable();
  const Buffer buffer = make_buffer();
  const auto before = live(instance_);
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(round);
    Exporter peer;
    ASSERT_EQ(peer.open_hub(path()), GPUMEM_SUCCESS);
    const Link link = connect();
    // First one that has not begun.
    if (round == 0) {
      ASSERT_TRUE(peer.signal(SIGSTOP));
    }
    std::thread killer([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(round == 0 ? 50'000 : 150 * round));
      (void)peer.signal(SIGKILL);
    });
    const bool whole = round % 2 == 0;
    const gpumem_way_info info = way_to(link, whole ? memory.device() : buffer.base(),
                                        whole ? GPUMEM_SHARE_WAY_LEGACY : GPUMEM_SHARE_WAY_POSIX_FD);
    killer.join();
    EXPECT_TRUE(info.status == GPUMEM_ERROR_PEER_GONE || (round != 0 && info.status == GPUMEM_SUCCESS))
        << info.status << ": " << info.message;
    EXPECT_EQ(live(instance_), before) << "a trial leaves something";
    peer.kill();
  }
}

// Counts what a keeper of this process puts into the store of a service manager, and what it takes out.
class Manager {
 public:
  explicit Manager(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof address.sun_path, "%s", path.c_str());
    socket_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(unsetenv("LISTEN_FDS"), 0);
    EXPECT_EQ(setenv("NOTIFY_SOCKET", path.c_str(), 1), 0);
  }
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;
  ~Manager() {
    (void)unsetenv("NOTIFY_SOCKET");
    close(socket_);
  }

  // The names that are stored.
  const std::set<std::string>& stored() {
    char text[256];
    for (;;) {
      const ssize_t size = recv(socket_, text, sizeof text - 1, 0);
      if (size < 0) return names_;
      text[size] = '\0';
      const std::string said = text;
      const std::string name = said.substr(said.find("FDNAME=") + 7);
      if (said.starts_with("FDSTORE=1\n")) {
        EXPECT_TRUE(names_.insert(name).second) << name << " is stored twice";
        known_.insert(name);
      } else {
        EXPECT_TRUE(said.starts_with("FDSTOREREMOVE=1\n")) << said;
        // Others were stored before this manager listened.
        EXPECT_TRUE(names_.erase(name) == 1 || !known_.contains(name)) << name << " is not stored";
      }
    }
  }

 private:
  int socket_ = -1;
  std::set<std::string> names_;
  std::set<std::string> known_;
};

TEST_F(Hub, hub_8_a_file_is_stored_once_and_as_long_as_a_version_has_it) {
  char folder[] = "/tmp/gpumem-test-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string socket = std::string(folder) + "/notify";
  {
    gpumem_hub_desc desc = GPUMEM_HUB_DESC_INIT;
    const std::string address = path();
    desc.path = address.c_str();
    desc.flags = GPUMEM_HUB_STORE;
    gpumem_hub keeper = nullptr;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_hub_open(instance_, &desc, &keeper, why()));
    desc.flags |= GPUMEM_HUB_KEEPER;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_hub_open(instance_, &desc, &keeper, why()));
    Manager manager(socket);
    ASSERT_OK(gpumem_hub_open(instance_, &desc, &keeper, why()));
    gpumem_hub_desc second = desc;
    second.path = "@gpumem-test-second-keeper";
    gpumem_hub none = nullptr;
    EXPECT_STATUS(GPUMEM_ERROR_ALREADY_EXISTS, gpumem_hub_open(instance_, &second, &none, why()));
    EXPECT_TRUE(manager.stored().empty());
    gpumem_buffer_desc wanted = GPUMEM_BUFFER_DESC_INIT;
    wanted.size = kSize;
    wanted.reserve = 4 * kSize;
    wanted.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
    gpumem_buffer made = nullptr;
    ASSERT_OK(gpumem_buffer_create(device_, &wanted, &made, why()));
    const Buffer buffer(made);
    Link link = connect();
    const auto deposit = [&](const char* name) {
      gpumem_share_handle handle{};
      EXPECT_OK(gpumem_share_export(instance_, buffer.base(), nullptr, &handle, why()));
      EXPECT_OK(gpumem_link_publish(link, name, &handle, nullptr, nullptr, why()));
      return manager.stored().size();
    };
    const size_t one = deposit("a");
    EXPECT_GE(one, 2U);
    EXPECT_EQ(deposit("b"), one + 1) << "the same memory";
    // What it has grown by is new, the rest is not.
    EXPECT_OK(buffer.resize(2 * kSize));
    const size_t grown = deposit("c");
    EXPECT_GE(grown, one + 3);
    const auto withdraw = [&](const char* name) {
      EXPECT_OK(gpumem_link_withdraw(link, name, 0, why()));
      return manager.stored().size();
    };
    EXPECT_EQ(withdraw("a"), grown - 1);
    EXPECT_EQ(withdraw("b"), grown - 2);
    EXPECT_EQ(withdraw("c"), 0U);
    const size_t left = deposit("d");
    EXPECT_EQ(left, grown - 2);
    link.destroy();
    EXPECT_OK(gpumem_hub_close(keeper, why()));
    EXPECT_EQ(manager.stored().size(), left) << "closing is no withdrawal";
    ASSERT_OK(gpumem_hub_open(instance_, &desc, &keeper, why())) << "the store is free again";
    link = connect();
    EXPECT_EQ(withdraw("d"), 0U) << "the next one of the process has taken it back";
    link.destroy();
    EXPECT_OK(gpumem_hub_close(keeper, why()));
  }
  EXPECT_EQ(unlink(socket.c_str()), 0);
  EXPECT_EQ(rmdir(folder), 0);
}

TEST_F(Hub, hub_8_a_keeper_that_closes_at_once_has_said_what_is_amiss) {
  char folder[] = "/tmp/gpumem-test-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string socket = std::string(folder) + "/notify";
  {
    const Manager manager(socket);  // one that does not say how much it stores
    ASSERT_EQ(unsetenv("FDSTORE"), 0);
    std::atomic<int> said{0};
    const auto listen = [](void* count, gpumem_log_level, const char* message) {
      if (std::strstr(message, "$FDSTORE") != nullptr) ++*static_cast<std::atomic<int>*>(count);
    };
    ASSERT_OK(gpumem_log_set_function(listen, &said, GPUMEM_LOG_WARNING, why()));
    const std::string address = path();
    const int rounds = kSanitized ? 20 : 100;
    for (int round = 0; round < rounds; ++round) {
      const Instance own = open_instance();
      gpumem_hub_desc desc = GPUMEM_HUB_DESC_INIT;
      desc.path = address.c_str();
      desc.flags = GPUMEM_HUB_KEEPER | GPUMEM_HUB_STORE;
      gpumem_hub keeper = nullptr;
      ASSERT_OK(gpumem_hub_open(own, &desc, &keeper, why()));
      ASSERT_OK(gpumem_hub_close(keeper, why()));
    }
    ASSERT_OK(gpumem_log_set_function(nullptr, nullptr, 0, why()));
    EXPECT_EQ(said, rounds);
  }
  EXPECT_EQ(unlink(socket.c_str()), 0);
  EXPECT_EQ(rmdir(folder), 0);
}

TEST_F(Hub, hub_8_the_next_keeper_of_the_process_has_what_the_first_one_had) {
  char folder[] = "/tmp/gpumem-test-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string socket = std::string(folder) + "/notify";
  {
    Manager manager(socket);
    const std::string address = path();
    const auto open = [&](gpumem_instance instance, uint32_t names_max) {
      gpumem_hub_desc desc = GPUMEM_HUB_DESC_INIT;
      desc.path = address.c_str();
      desc.flags = GPUMEM_HUB_KEEPER | GPUMEM_HUB_STORE;
      desc.names_max = names_max;
      gpumem_hub keeper = nullptr;
      EXPECT_OK(gpumem_hub_open(instance, &desc, &keeper, why()));
      return keeper;
    };
    const auto versions = [&](gpumem_hub keeper) {
      gpumem_hub_info info = GPUMEM_HUB_INFO_INIT;
      EXPECT_OK(gpumem_hub_get_info(keeper, &info, why()));
      return info.version_count;
    };
    std::vector<Buffer> buffers;
    const auto deposit = [&](const Link& link, const char* name, uint64_t* version) {
      gpumem_buffer_desc wanted = GPUMEM_BUFFER_DESC_INIT;
      wanted.size = kSize;
      wanted.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
      gpumem_buffer made = nullptr;
      EXPECT_OK(gpumem_buffer_create(device_, &wanted, &made, why()));
      buffers.emplace_back(made);
      gpumem_share_handle handle{};
      EXPECT_OK(gpumem_share_export(instance_, buffers.back().base(), nullptr, &handle, why()));
      return gpumem_link_publish(link, name, &handle, nullptr, version, why());
    };
    gpumem_hub keeper = open(instance_, 0);
    uint64_t version = 0;
    {
      const Link link = connect();
      EXPECT_OK(deposit(link, "a", &version));
      EXPECT_OK(deposit(link, "b", &version));
    }
    const std::set<std::string> stored = manager.stored();
    EXPECT_OK(gpumem_hub_close(keeper, why()));
    keeper = open(instance_, 0);
    EXPECT_EQ(versions(keeper), 2U);
    {
      const Link link = connect();
      EXPECT_OK(deposit(link, "a", &version));
      EXPECT_EQ(version, 2U) << "its number is used twice";
      EXPECT_OK(gpumem_link_withdraw(link, "a", 2, why()));
    }
    EXPECT_EQ(manager.stored(), stored);
    EXPECT_OK(gpumem_hub_close(keeper, why()));
    // One that has room for one name leaves the other alone, and nobody publishes over it.
    for (int round = 0; round < 2; ++round) {
      keeper = open(instance_, 1);
      EXPECT_EQ(versions(keeper), 1U);
      EXPECT_EQ(manager.stored(), stored) << "what it refuses is no longer stored";
      EXPECT_OK(gpumem_hub_close(keeper, why()));
    }
    keeper = open(instance_, 1);
    {
      const Link link = connect();
      EXPECT_OK(gpumem_link_withdraw(link, "a", 0, why()));
      EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, deposit(link, "b", &version));
      EXPECT_OK(deposit(link, "c", &version));
    }
    EXPECT_OK(gpumem_hub_close(keeper, why()));
    keeper = open(instance_, 2);
    EXPECT_EQ(versions(keeper), 2U);
    EXPECT_OK(gpumem_hub_close(keeper, why()));
    keeper = open(instance_, 1);
    {
      const Link link = connect();
      EXPECT_OK(gpumem_link_withdraw(link, "b", 0, why()));
      EXPECT_OK(gpumem_link_withdraw(link, "c", 0, why())) << "what it had no room for cannot be withdrawn";
      EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_link_withdraw(link, "c", 0, why()));
    }
    EXPECT_TRUE(manager.stored().empty());
    EXPECT_OK(gpumem_hub_close(keeper, why()));
    // So it is with an instance that is closed by force.
    gpumem_instance other = nullptr;
    gpumem_instance_desc wanted = GPUMEM_INSTANCE_DESC_INIT;
    wanted.backend = GPUMEM_BACKEND_HOST;
    ASSERT_OK(gpumem_instance_open(&wanted, &other, why()));
    (void)open(other, 0);
    {
      const Link link = connect();
      EXPECT_OK(deposit(link, "e", &version));
    }
    EXPECT_OK(gpumem_instance_close(other, GPUMEM_CLOSE_FORCE, nullptr, why()));
    EXPECT_FALSE(manager.stored().empty());
    keeper = open(instance_, 0);
    EXPECT_EQ(versions(keeper), 1U);
    {
      const Link link = connect();
      EXPECT_OK(gpumem_link_withdraw(link, "e", 1, why()));
    }
    EXPECT_OK(gpumem_hub_close(keeper, why()));
    EXPECT_TRUE(manager.stored().empty());
  }
  EXPECT_EQ(unlink(socket.c_str()), 0);
  EXPECT_EQ(rmdir(folder), 0);
}

TEST_F(Hub, hub_8_a_slow_service_manager_has_one_second_for_a_version) {
  int room = 0;
  std::ifstream("/proc/sys/net/unix/max_dgram_qlen") >> room;
  constexpr uint64_t kBlocks = 15;
  if (room > 12) GTEST_SKIP() << "the socket has room for " << room << " packets";
  char folder[] = "/tmp/gpumem-test-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path_of_socket = std::string(folder) + "/notify";
  sockaddr_un place{};
  place.sun_family = AF_UNIX;
  std::snprintf(place.sun_path, sizeof place.sun_path, "%s", path_of_socket.c_str());
  const int receiver = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  ASSERT_EQ(bind(receiver, reinterpret_cast<sockaddr*>(&place), sizeof place), 0);
  ASSERT_EQ(setenv("NOTIFY_SOCKET", path_of_socket.c_str(), 1), 0);
  {
    gpumem_hub_desc desc = GPUMEM_HUB_DESC_INIT;
    const std::string address = path();
    desc.path = address.c_str();
    desc.flags = GPUMEM_HUB_KEEPER | GPUMEM_HUB_STORE;
    gpumem_hub keeper = nullptr;
    ASSERT_OK(gpumem_hub_open(instance_, &desc, &keeper, why()));
    gpumem_buffer_desc wanted = GPUMEM_BUFFER_DESC_INIT;
    wanted.size = kSize;
    wanted.reserve = kBlocks * kSize;
    wanted.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
    gpumem_buffer made = nullptr;
    ASSERT_OK(gpumem_buffer_create(device_, &wanted, &made, why()));
    const Buffer buffer(made);
    for (uint64_t blocks = 2; blocks <= kBlocks; ++blocks)
      ASSERT_OK(buffer.resize(blocks * kSize));
    gpumem_share_handle handle{};
    ASSERT_OK(gpumem_share_export(instance_, buffer.base(), nullptr, &handle, why()));
    Link link = connect();
    // Each packet is taken in time, all of them are not.
    std::atomic<bool> slow{true};
    std::atomic<bool> ends{false};
    std::thread reader([&] {
      char text[256];
      while (!ends) {
        (void)!recv(receiver, text, sizeof text, 0);
        std::this_thread::sleep_for(std::chrono::milliseconds(slow ? 700 : 1));
      }
    });
    EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_link_publish(link, "n", &handle, nullptr, nullptr, why()));
    slow = false;
    gpumem_status later = GPUMEM_ERROR_BUSY;
    for (int i = 0; i < 100 && later == GPUMEM_ERROR_BUSY; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      later = gpumem_link_publish(link, "n", &handle, nullptr, nullptr, why());
    }
    EXPECT_EQ(later, GPUMEM_SUCCESS) << "it goes on when the manager does";
    for (int i = 0; i < 2; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      (void)gpumem_link_withdraw(link, "n", 0, why());
    }
    link.destroy();
    EXPECT_OK(gpumem_hub_close(keeper, why()));
    ends = true;
    reader.join();
  }
  close(receiver);
  (void)unsetenv("NOTIFY_SOCKET");
  EXPECT_EQ(unlink(path_of_socket.c_str()), 0);
  EXPECT_EQ(rmdir(folder), 0);
}

TEST_F(Hub, hub_7_a_keeper_without_a_free_descriptor) {
  // It can be withdrawn from, by one link at a time.
  Exporter keeper;
  ASSERT_EQ(keeper.open_hub(path(), {}, GPUMEM_HUB_KEEPER), GPUMEM_SUCCESS);
  Exporter publisher;
  for (const char* const name : {"one", "two", "three"})
    ASSERT_EQ(publisher.deposit(path(), name, publisher.share(publisher.buffer(kSize))), GPUMEM_SUCCESS);
  publisher.kill();
  Link link = connect();
  gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
  EXPECT_TRUE(eventually([&] {
    EXPECT_OK(gpumem_link_enumerate(link, 0, &entry, why()));
    return entry.publisher_gone == 1;
  }));
  link.destroy();
  keeper.use_up_descriptors();
  for (const char* const name : {"one", "two"}) {  // then one is free, which is not enough
    link = connect();
    ASSERT_NE(link.get(), nullptr);
    EXPECT_OK(gpumem_link_withdraw(link, name, 0, why()));
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, fetch_status(link, name));
    link.destroy();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // until the keeper knows
  }
  keeper.use_up_descriptors();
  // One that does nothing keeps others away for a while.
  link = connect();
  Link next;
  const std::string where = path();
  gpumem_link_desc desc = GPUMEM_LINK_DESC_INIT;
  desc.path = where.c_str();
  desc.timeout_ns = 1'000'000'000;
  for (int tries = 0; tries < 20 && next.get() == nullptr; ++tries) {
    gpumem_link connected = nullptr;
    if (gpumem_link_connect(instance_, &desc, &connected, why()) == GPUMEM_SUCCESS) next = Link(connected);
  }
  ASSERT_NE(next.get(), nullptr);
  EXPECT_STATUS(GPUMEM_ERROR_PEER_GONE, gpumem_link_enumerate(link, 0, &entry, why()));
  EXPECT_OK(gpumem_link_withdraw(next, "three", 0, why()));
}

TEST_F(Hub, hub_7_no_keeper) {
  Exporter exporter;
  ASSERT_EQ(exporter.open_hub(path()), GPUMEM_SUCCESS);
  Exporter other;
  EXPECT_EQ(other.deposit(path(), "state", other.share(other.buffer(2 * kMiB))), GPUMEM_ERROR_UNSUPPORTED);
}

TEST_F(Hub, hub_3_a_waiting_link_is_closed) {
  Exporter exporter;
  ASSERT_EQ(exporter.open_hub(path()), GPUMEM_SUCCESS);
  Link link = connect();
  gpumem_status waited = GPUMEM_SUCCESS;
  gpumem::test::Sleeper waiter([&, handle = link.get()] {
    waited = gpumem_link_wait(handle, "never", 0, GPUMEM_TIMEOUT_INFINITE, nullptr, nullptr);
  });
  link.destroy();
  waiter.join();
  EXPECT_EQ(waited, GPUMEM_ERROR_STALE_HANDLE);
}

}  // namespace
}  // namespace conformance
