// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Buffers that sleep, and groups of them: the rules BUF-8 to BUF-26.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <future>
#include <thread>

#include "../asleep.h"
#include "buffers.h"
#include "progress.h"

namespace conformance {
namespace {

using namespace std::chrono_literals;

constexpr gpumem_content kKept[] = {GPUMEM_CONTENT_PINNED, GPUMEM_CONTENT_PAGEABLE, GPUMEM_CONTENT_FILE};

class Group : public Owned<gpumem_group, gpumem_group_destroy> {
 public:
  using Owned::Owned;
  gpumem_group_info info(const char* tag = nullptr) const {
    gpumem_group_info info = GPUMEM_GROUP_INFO_INIT;
    EXPECT_OK(gpumem_group_get_info(get(), tag, &info, why()));
    return info;
  }
  gpumem_status sleep(const gpumem_sleep_desc& desc) const { return gpumem_group_sleep(get(), &desc, why()); }
  gpumem_status sleep(gpumem_content content = GPUMEM_CONTENT_PINNED, const char* tag = nullptr) const {
    gpumem_sleep_desc desc = sleep_desc(content);
    desc.tag = tag;
    return sleep(desc);
  }
  gpumem_status wake(const char* tag = nullptr, uint64_t keep = 0) const {
    gpumem_wake_desc desc = wake_desc(keep);
    desc.tag = tag;
    return gpumem_group_wake(get(), &desc, why());
  }
};

// An empty folder that goes with everything in it.
class Folder {
 public:
  explicit Folder(const std::string& parent = std::filesystem::temp_directory_path()) {
    std::string path = parent + "/gpumem-XXXXXX";
    EXPECT_NE(mkdtemp(path.data()), nullptr) << path;
    path_ = path;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }
  const char* path() const { return path_.c_str(); }
  bool empty() const { return std::filesystem::is_empty(path_); }
  // Descriptors of this process for files in it, nameless ones included.
  std::vector<int> open_files() const {
    std::vector<int> files;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const std::string target = std::filesystem::read_symlink(entry.path(), gone);
      if (!gone && target.starts_with(path_ + "/")) files.push_back(std::stoi(entry.path().filename()));
    }
    return files;
  }

 private:
  std::string path_;
};

// As it was, but for what tells that it got new memory.
void expect_undone(const gpumem_buffer_info& now, gpumem_buffer_info before) {
  EXPECT_GE(now.generation, before.generation);
  EXPECT_EQ(now.state, before.state);
  EXPECT_EQ(now.store_capacity, before.store_capacity);
  EXPECT_EQ(now.stored_size, before.stored_size);
  before.generation = now.generation;
  expect_same(now, before);
}

bool until(const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + 2min;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

Event recorded(gpumem_device device, gpumem_stream stream) {
  Event event = create_event(device);
  EXPECT_OK(gpumem_event_record(event, stream, why()));
  return event;
}

class Sleep : public Buf {
 protected:
  Group make_group(const char* name = nullptr) const {
    gpumem_group_desc wanted = GPUMEM_GROUP_DESC_INIT;
    wanted.name = name;
    gpumem_group group = nullptr;
    EXPECT_OK(gpumem_group_create(instance_, &wanted, &group, why()));
    return Group(group);
  }
  Buffer member(const Group& group, uint64_t units, const char* tag = nullptr) const {
    gpumem_buffer_desc wanted = desc(units * unit_, 4 * units * unit_);
    wanted.group = group;
    wanted.tag = tag;
    return make(wanted);
  }
  // Buffers of two blocks each, with patterns of their own.
  std::vector<Buffer> members(const Group& group, uint32_t count) const {
    std::vector<Buffer> made;
    for (uint32_t i = 0; i < count; ++i) {
      made.push_back(member(group, 1));
      EXPECT_OK(made.back().resize(2 * unit_));
      write(made.back(), i);
    }
    return made;
  }
  void write(const Buffer& buffer, uint32_t seed) const {
    const gpumem_buffer_info info = buffer.info();
    put_pattern(instance_, info.base, info.size, seed);
  }
  void expect_kept(const Buffer& buffer, uint32_t seed) const {
    const gpumem_buffer_info info = buffer.info();
    ASSERT_EQ(info.state, GPUMEM_BUFFER_STATE_AWAKE);
    EXPECT_TRUE(holds_pattern(instance_, info.base, info.size, seed));
  }
  void expect_kept(const std::vector<Buffer>& buffers) const {
    for (uint32_t i = 0; i < buffers.size(); ++i)
      expect_kept(buffers[i], i);
  }
  static std::vector<gpumem_buffer_info> infos(const std::vector<Buffer>& buffers) {
    std::vector<gpumem_buffer_info> all;
    for (const Buffer& buffer : buffers)
      all.push_back(buffer.info());
    return all;
  }
  static void expect_undone(const std::vector<Buffer>& buffers,
                            const std::vector<gpumem_buffer_info>& before) {
    for (size_t i = 0; i < buffers.size(); ++i) {
      SCOPED_TRACE(i);
      conformance::expect_undone(buffers[i].info(), before[i]);
    }
  }
  gpumem_sleep_desc sleep_in(gpumem_content content) const {
    gpumem_sleep_desc desc = sleep_desc(content);
    if (content == GPUMEM_CONTENT_FILE) desc.directory = folder_.path();
    return desc;
  }
  uint64_t pinned_ever() const { return kind_stats(instance_, GPUMEM_KIND_PINNED).total_count; }

  const Folder folder_;
};

// ---- BUF-8: what comes back ----

TEST_F(Sleep, buf_8_every_content) {
  gpumem_buffer_desc named = desc(2 * unit_, 8 * unit_);
  named.name = "weights";
  const Buffer buffer = make(named);
  EXPECT_OK(buffer.resize(4 * unit_ + 5));
  for (const gpumem_content content : {GPUMEM_CONTENT_PINNED, GPUMEM_CONTENT_PAGEABLE, GPUMEM_CONTENT_FILE,
                                       GPUMEM_CONTENT_ZERO, GPUMEM_CONTENT_DROP}) {
    SCOPED_TRACE(content);
    const bool kept = std::count(std::begin(kKept), std::end(kKept), content) != 0;
    write(buffer, static_cast<uint32_t>(content));
    gpumem_buffer_info expected = buffer.info();
    EXPECT_OK(buffer.sleep(sleep_in(content)));
    expected.state = GPUMEM_BUFFER_STATE_ASLEEP;
    expected.stored_size = kept ? expected.size : 0;
    expected.store_capacity = buffer.info().store_capacity;
    expect_same(buffer.info(), expected);
    EXPECT_GE(expected.store_capacity, expected.stored_size);
    EXPECT_TRUE(kept || expected.store_capacity == 0) << expected.store_capacity;
    gpumem_mapping_info mapping = GPUMEM_MAPPING_INFO_INIT;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE,
                  gpumem_range_get_mapping(instance_, expected.base, &mapping, why()));
    EXPECT_OK(buffer.wake());
    expected.state = GPUMEM_BUFFER_STATE_AWAKE;
    expected.stored_size = expected.store_capacity = 0;
    ++expected.generation;
    expect_same(buffer.info(), expected);
    if (kept) expect_kept(buffer, static_cast<uint32_t>(content));
    if (content == GPUMEM_CONTENT_ZERO) expect(buffer, 0, expected.size, 0);
  }
}

TEST_F(Sleep, buf_8_properties_of_its_memory) {
  gpumem_buffer_desc wanted = desc(unit_, 4 * unit_);
  if (capability(device_, GPUMEM_CAPABILITY_VMM_HANDLE_POSIX_FD).value != GPUMEM_ANSWER_NO)
    wanted.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
  if (capability(device_, GPUMEM_CAPABILITY_VMM_COMPRESSIBLE).value != GPUMEM_ANSWER_NO)
    wanted.require = GPUMEM_PHYSICAL_COMPRESSIBLE;
  if (wanted.handle_types == 0 && wanted.require == 0)
    SKIP_RULE("physical memory can be neither shared nor compressible");
  const Buffer buffer = make(wanted);
  EXPECT_OK(buffer.resize(3 * unit_));
  const auto expect_granted = [&] {
    for (const uint64_t offset : {uint64_t{0}, unit_}) {
      gpumem_physical handle = nullptr;
      EXPECT_OK(gpumem_physical_retain(instance_, buffer.base() + offset, &handle, why()));
      const gpumem_physical_info block = Physical(handle).info();
      EXPECT_EQ(block.handle_types, wanted.handle_types);
      EXPECT_EQ(block.granted_flags & wanted.require, wanted.require);
    }
  };
  expect_granted();
  EXPECT_OK(buffer.sleep(GPUMEM_CONTENT_DROP));
  EXPECT_OK(buffer.wake());
  expect_granted();
}

TEST_F(Sleep, buf_8_access_of_each_device) {
  const gpumem_device second = instance_.device_count() > 1 ? instance_.device(1) : nullptr;
  if (second == nullptr) SKIP_RULE("there is no second device");
  if (capability(device_, GPUMEM_CAPABILITY_PEER_ACCESS, second).value == GPUMEM_ANSWER_NO)
    SKIP_RULE("the devices have no link");
  const Buffer buffer = make(2 * unit_, 4 * unit_);
  const gpumem_access_desc reads = device_rights(1, GPUMEM_ACCESS_READ);
  EXPECT_OK(gpumem_buffer_set_access(buffer, &reads, 1, why()));
  EXPECT_OK(buffer.sleep(GPUMEM_CONTENT_ZERO));
  EXPECT_EQ(device_access(instance_, buffer.base(), 1), GPUMEM_ACCESS_NONE);
  EXPECT_OK(buffer.wake());
  for (const uint64_t offset : {uint64_t{0}, 2 * unit_ - 1}) {
    EXPECT_EQ(device_access(instance_, buffer.base() + offset, 0), GPUMEM_ACCESS_READWRITE);
    EXPECT_EQ(device_access(instance_, buffer.base() + offset, 1), GPUMEM_ACCESS_READ);
  }
}

TEST_F(Sleep, com_23_the_snapshot_says_that_a_buffer_sleeps) {
  const Buffer buffer = make(2 * unit_, 4 * unit_);
  const auto has = [&](const std::string& part) {
    return text_of(instance_, gpumem_stats_snapshot).find(part) != std::string::npos;
  };
  const std::string size = "\"size\":" + std::to_string(2 * unit_);
  EXPECT_TRUE(has(size + R"(,"state":"awake"})")) << text_of(instance_, gpumem_stats_snapshot);
  EXPECT_OK(buffer.sleep(GPUMEM_CONTENT_PAGEABLE));
  EXPECT_TRUE(
      has(size + R"(,"state":"asleep","store_bytes":)" + std::to_string(buffer.info().store_capacity) + '}'))
      << text_of(instance_, gpumem_stats_snapshot);
  EXPECT_OK(buffer.wake());
}

TEST_F(Sleep, buf_8_an_empty_buffer) {
  const Buffer buffer = make(0, 4 * unit_);
  for (const gpumem_content content : kKept) {
    EXPECT_OK(buffer.sleep(sleep_in(content)));
    EXPECT_EQ(buffer.info().state, GPUMEM_BUFFER_STATE_ASLEEP);
    EXPECT_OK(buffer.wake());
  }
  EXPECT_OK(buffer.resize(unit_));
  EXPECT_EQ(buffer.info().generation, 3u);
}

TEST_F(Sleep, buf_8_memory_of_the_host) {
  if (capability(device_, GPUMEM_CAPABILITY_VMM_HOST).value == GPUMEM_ANSWER_NO)
    SKIP_RULE("no physical memory of the host");
  gpumem_buffer_desc wanted = desc(2 * unit_, 4 * unit_);
  wanted.location = GPUMEM_LOCATION_HOST;
  const Buffer buffer = make(wanted);
  for (const gpumem_content content : kKept) {
    fill_pattern(buffer.base(), 2 * unit_, static_cast<uint32_t>(content));
    EXPECT_OK(buffer.sleep(sleep_in(content)));
    EXPECT_OK(buffer.wake());
    EXPECT_TRUE(has_pattern(buffer.base(), 2 * unit_, static_cast<uint32_t>(content)));
  }
}

TEST_F(Sleep, buf_8_a_device_that_may_not_read_cannot_save) {
  const Buffer buffer = make(unit_, 4 * unit_);
  write(buffer, 1);
  const gpumem_access_desc none = device_rights(0, GPUMEM_ACCESS_NONE);
  EXPECT_OK(gpumem_buffer_set_access(buffer, &none, 1, why()));
  const gpumem_buffer_info before = buffer.info();
  EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, buffer.sleep(GPUMEM_CONTENT_PINNED));
  expect_same(buffer.info(), before);
  const gpumem_access_desc reads = device_rights(0, GPUMEM_ACCESS_READ);
  EXPECT_OK(gpumem_buffer_set_access(buffer, &reads, 1, why()));
  expect_kept(buffer, 1);
}

// ---- BUF-10: bad input ----

TEST_F(Sleep, buf_10_bad_options_of_sleep_and_prepare) {
  const Group group = make_group();
  const Buffer buffer = member(group, 1);
  const Stream stream = create_stream(device_);
  const Event event = recorded(device_, stream);
  stream.synchronize();
  const Instance other = open_instance();
  const Stream foreign_stream = create_stream(other.device());
  const Event foreign_event = recorded(other.device(), foreign_stream);
  foreign_stream.synchronize();
  const std::string too_long(64, 'x');
  write(buffer, 1);
  const gpumem_buffer_info before = buffer.info();
  const auto refused = [&](const std::function<void(gpumem_sleep_desc&)>& change, bool of_group = true) {
    gpumem_sleep_desc desc = GPUMEM_SLEEP_DESC_INIT;
    change(desc);
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, buffer.sleep(desc));
    if (of_group) {
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, group.sleep(desc));
    }
    expect_same(buffer.info(), before);
  };
  for (const gpumem_content content : {-1, 5, INT32_MAX})
    refused([&](gpumem_sleep_desc& desc) { desc.content = content; });
  refused([](gpumem_sleep_desc& desc) { desc.struct_size = 7; });
  refused([](gpumem_sleep_desc& desc) { desc.reserved = 1; });
  refused([](gpumem_sleep_desc& desc) { desc.flags = 2; });
  refused([](gpumem_sleep_desc& desc) { desc.content = GPUMEM_CONTENT_FILE; });
  refused([](gpumem_sleep_desc& desc) {
    desc.content = GPUMEM_CONTENT_FILE;
    desc.directory = "";
  });
  refused([&](gpumem_sleep_desc& desc) { desc.directory = folder_.path(); });
  refused([](gpumem_sleep_desc& desc) { desc.tag = "weights"; }, false);
  refused([&](gpumem_sleep_desc& desc) { desc.tag = too_long.c_str(); });
  refused([](gpumem_sleep_desc& desc) { desc.tag = "two\nlines"; });
  refused([&](gpumem_sleep_desc& desc) { desc.stream = foreign_stream; });
  refused([&](gpumem_sleep_desc& desc) { desc.event = foreign_event; });
  refused([&](gpumem_sleep_desc& desc) {
    desc.flags = GPUMEM_SLEEP_IDLE;
    desc.stream = stream;
  });
  refused([&](gpumem_sleep_desc& desc) {
    desc.flags = GPUMEM_SLEEP_IDLE;
    desc.event = event;
  });

  const auto unprepared = [&](const std::function<void(gpumem_prepare_desc&)>& change, bool of_group = true) {
    gpumem_prepare_desc desc = GPUMEM_PREPARE_DESC_INIT;
    change(desc);
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_buffer_prepare(buffer, &desc, why()));
    if (of_group) {
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_group_prepare(group, &desc, why()));
    }
    expect_same(buffer.info(), before);
  };
  unprepared([](gpumem_prepare_desc& desc) { desc.content = 5; });
  unprepared([](gpumem_prepare_desc& desc) { desc.reserved = 1; });
  unprepared([](gpumem_prepare_desc& desc) { desc.struct_size = 7; });
  unprepared([](gpumem_prepare_desc& desc) { desc.content = GPUMEM_CONTENT_FILE; });
  unprepared([&](gpumem_prepare_desc& desc) { desc.directory = folder_.path(); });
  unprepared([](gpumem_prepare_desc& desc) { desc.tag = "weights"; }, false);
  unprepared([&](gpumem_prepare_desc& desc) { desc.tag = too_long.c_str(); });
  expect_kept(buffer, 1);
}

TEST_F(Sleep, buf_10_bad_options_of_waking_and_others) {
  const Group group = make_group();
  const Buffer buffer = member(group, 1);
  EXPECT_OK(group.sleep());
  const gpumem_buffer_info before = buffer.info();
  gpumem_wake_desc wake = GPUMEM_WAKE_DESC_INIT;
  wake.tag = "weights";
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_buffer_wake(buffer, &wake, why()));
  const std::string too_long(64, 'x');
  wake.tag = too_long.c_str();
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_group_wake(group, &wake, why()));
  wake = GPUMEM_WAKE_DESC_INIT;
  wake.struct_size = 7;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_buffer_wake(buffer, &wake, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_group_wake(group, &wake, why()));
  expect_same(buffer.info(), before);
  EXPECT_OK(group.wake());

  gpumem_buffer_callbacks callbacks = GPUMEM_BUFFER_CALLBACKS_INIT;
  callbacks.struct_size = 7;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_buffer_set_callbacks(buffer, &callbacks, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_buffer_set_ahead(buffer, uint64_t{1} << 63, why()));
  gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
  info.struct_size = 7;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_buffer_get_info(buffer, &info, why()));
  gpumem_group_info of_group = GPUMEM_GROUP_INFO_INIT;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_group_get_info(group, nullptr, nullptr, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_group_get_info(group, too_long.c_str(), &of_group, why()));
}

TEST_F(Sleep, buf_10_while_asleep) {
  const Buffer buffer = make(unit_, 4 * unit_);
  EXPECT_OK(buffer.sleep(GPUMEM_CONTENT_PINNED));
  const gpumem_buffer_info before = buffer.info();
  uint64_t registration = 0;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_buffer_prepare(buffer, nullptr, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE,
                gpumem_buffer_note_registration(buffer, "card", &registration, why()));
  EXPECT_EQ(registration, 0u);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, buffer.sleep(GPUMEM_CONTENT_DROP));
  expect_same(buffer.info(), before);
}

// ---- BUF-13: what sleep waits for ----

// Sleeps on another thread, and is expected to wait until the stream is opened.
template <class Sleeping>
void expect_to_wait(GatedStream& stream, Sleeping sleep) {
  std::future<gpumem_status> asleep = std::async(std::launch::async, sleep);
  EXPECT_EQ(asleep.wait_for(30ms), std::future_status::timeout) << "it did not wait";
  stream.open();
  EXPECT_EQ(asleep.get(), GPUMEM_SUCCESS);
}

TEST_F(Sleep, buf_13_waits_for_the_device) {
  const Buffer buffer = make(2 * unit_, 4 * unit_);
  GatedStream stream(device_);
  EXPECT_OK(gpumem_fill_async(stream, buffer.base(), 2 * unit_, 0x41, 1, why()));
  expect_to_wait(stream, [&] { return buffer.sleep(GPUMEM_CONTENT_PINNED); });
  EXPECT_OK(buffer.wake());
  expect(buffer, 0, 2 * unit_, 0x41);
  stream.finish();
}

TEST_F(Sleep, buf_13_waits_for_other_devices_with_access) {
  const gpumem_device second = instance_.device_count() > 1 ? instance_.device(1) : nullptr;
  if (second == nullptr) SKIP_RULE("there is no second device");
  if (capability(device_, GPUMEM_CAPABILITY_PEER_ACCESS, second).value == GPUMEM_ANSWER_NO)
    SKIP_RULE("the devices have no link");
  const Buffer buffer = make(unit_, 4 * unit_);
  const gpumem_access_desc writes = device_rights(1);
  EXPECT_OK(gpumem_buffer_set_access(buffer, &writes, 1, why()));
  GatedStream stream(second);
  EXPECT_OK(gpumem_fill_async(stream, buffer.base(), unit_, 0x42, 1, why()));
  expect_to_wait(stream, [&] { return buffer.sleep(GPUMEM_CONTENT_PAGEABLE); });
  EXPECT_OK(buffer.wake());
  expect(buffer, 0, unit_, 0x42);
  stream.finish();
}

TEST_F(Sleep, buf_13_waits_for_a_stream) {
  const Buffer buffer = make(unit_, 4 * unit_);
  GatedStream stream(device_);
  EXPECT_OK(gpumem_fill_async(stream, buffer.base(), unit_, 0x43, 1, why()));
  gpumem_sleep_desc desc = sleep_desc(GPUMEM_CONTENT_PINNED);
  desc.stream = stream;
  expect_to_wait(stream, [&] { return buffer.sleep(desc); });
  EXPECT_OK(buffer.wake());
  expect(buffer, 0, unit_, 0x43);
}

// Not on a GPU, where giving memory back may wait for the whole device.
TEST_F(Sleep, buf_13_waits_for_nothing_else) {
  if (!on_host() && !on_fake_cuda()) SKIP_RULE("a driver may wait for the device when it unmaps");
  const Memory memory = alloc_device(device_, 4096);
  const Buffer buffer = make(unit_, 4 * unit_);
  {
    // The event, and not what its stream does afterwards.
    GatedStream blocked(device_);
    const Stream stream = create_stream(device_);
    EXPECT_OK(gpumem_fill_async(stream, buffer.base(), unit_, 0x44, 1, why()));
    const Event event = recorded(device_, stream);
    const Event opened = recorded(device_, blocked);
    EXPECT_OK(gpumem_stream_wait_event(stream, opened, why()));
    gpumem_sleep_desc desc = sleep_desc(GPUMEM_CONTENT_PINNED);
    desc.event = event;
    EXPECT_OK(buffer.sleep(desc));
    EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_stream_query(stream, why()));
    EXPECT_OK(buffer.wake(UINT64_MAX));  // a driver waits for its devices when pinned memory is freed
    blocked.open();
    blocked.finish();
    stream.synchronize();
    expect(buffer, 0, unit_, 0x44);
  }
  GatedStream busy(device_);
  EXPECT_OK(gpumem_fill_async(busy, memory.device(), 4096, 1, 1, why()));
  const Stream stream = create_stream(device_);
  EXPECT_OK(gpumem_fill_async(stream, buffer.base(), unit_, 0x45, 1, why()));
  gpumem_sleep_desc desc = sleep_desc(GPUMEM_CONTENT_PINNED);
  desc.stream = stream;
  EXPECT_OK(buffer.sleep(desc));
  EXPECT_OK(buffer.wake(UINT64_MAX));
  EXPECT_OK(buffer.sleep(GPUMEM_CONTENT_PINNED, GPUMEM_SLEEP_IDLE));
  EXPECT_OK(buffer.wake(UINT64_MAX));
  expect(buffer, 0, unit_, 0x45);
  EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_stream_query(busy, why()));
  busy.finish();
}

TEST_F(Sleep, buf_13_a_group_waits_too) {
  const Group group = make_group();
  const Buffer first = member(group, 1);
  const Buffer second = member(group, 1);
  GatedStream stream(device_);
  EXPECT_OK(gpumem_fill_async(stream, second.base(), unit_, 0x46, 1, why()));
  expect_to_wait(stream, [&] { return group.sleep(); });
  EXPECT_OK(group.wake());
  expect(second, 0, unit_, 0x46);
}

TEST_F(Sleep, buf_13_events_and_captures_that_cannot_be_waited_for) {
  const Buffer buffer = make(unit_, 4 * unit_);
  write(buffer, 1);
  const gpumem_buffer_info before = buffer.info();
  const Event event = create_event(device_);
  gpumem_sleep_desc desc = sleep_desc(GPUMEM_CONTENT_PINNED);
  desc.event = event;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, buffer.sleep(desc));
  expect_same(buffer.info(), before);
  if (!no_foreign_reason().empty()) return;
  NativeStream native(device_);
  gpumem_stream handle = nullptr;
  EXPECT_OK(gpumem_stream_wrap(device_, native.get(), &handle, why()));
  const Stream stream(handle);
  native.begin_capture(stream);
  desc = sleep_desc(GPUMEM_CONTENT_PINNED);
  desc.stream = stream;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, buffer.sleep(desc));
  if (on_host()) {  // a driver's capture would be lost
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, buffer.sleep(GPUMEM_CONTENT_PINNED));
  }
  expect_same(buffer.info(), before);
  native.end_capture(stream);
  expect_kept(buffer, 1);
}

TEST_F(Sleep, buf_11_work_of_every_sort_keeps_its_memory) {
  if (!on_host()) SKIP_RULE("a driver does not say what work uses");
  const Group group = make_group();
  const std::vector<Buffer> buffers = members(group, 2);
  const Memory pinned = alloc_pinned(device_, unit_);
  const Stream idle = create_stream(device_);
  const std::vector<std::function<gpumem_status(gpumem_stream)>> sorts = {
      [&](gpumem_stream stream) {
        return gpumem_copy_async(stream, pinned.host(), buffers[1].base(), unit_, nullptr, why());
      },
      [&](gpumem_stream stream) {
        return gpumem_copy_async(stream, buffers[1].base() + unit_, buffers[0].base(), unit_, nullptr, why());
      },
      [&](gpumem_stream stream) { return gpumem_stream_write_value(stream, buffers[1].base(), 7, 4, why()); },
  };
  for (const auto& enqueue : sorts) {
    GatedStream stream(device_);
    EXPECT_OK(enqueue(stream));
    const auto before = infos(buffers);
    gpumem_sleep_desc desc = sleep_desc(GPUMEM_CONTENT_PINNED, GPUMEM_SLEEP_IDLE);
    EXPECT_STATUS(GPUMEM_ERROR_BUSY, buffers[1].sleep(desc));
    EXPECT_STATUS(GPUMEM_ERROR_BUSY, group.sleep(desc));
    // The wrong stream proves nothing of this one.
    desc = sleep_desc(GPUMEM_CONTENT_PINNED);
    desc.stream = idle;
    EXPECT_STATUS(GPUMEM_ERROR_BUSY, group.sleep(desc));
    expect_undone(buffers, before);
    stream.open();
    stream.finish();
    EXPECT_OK(group.sleep(sleep_desc(GPUMEM_CONTENT_PINNED, GPUMEM_SLEEP_IDLE)));
    EXPECT_OK(group.wake());
  }
  expect_kept(buffers[0], 0);
}

TEST_F(Sleep, buf_11_calls_of_others_hide_no_work) {
  if (!on_host()) SKIP_RULE("a driver does not say what work uses");
  const Buffer buffer = make(unit_, 4 * unit_);
  GatedStream stream(device_);
  EXPECT_OK(gpumem_fill_async(stream, buffer.base(), unit_, 7, 1, why()));
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> copies{0};
  std::thread other([&] {
    const Memory memory = alloc_pinned(device_, 64);
    for (; !stop; ++copies)
      EXPECT_OK(gpumem_copy(instance_, memory.host(), memory.host() + 32, 32, nullptr, why()));
  });
  Progress progress;
  const gpumem_sleep_desc idle = progress.in(sleep_desc(GPUMEM_CONTENT_PINNED, GPUMEM_SLEEP_IDLE));
  for (int round = 0; round < 200 && !::testing::Test::HasFailure(); ++round) {
    const uint64_t before = copies;
    EXPECT_TRUE(until([&] { return copies != before; }));
    EXPECT_STATUS(buffer.sleep(idle), GPUMEM_ERROR_BUSY);
    EXPECT_TRUE(progress.told.empty()) << "content was saved that a stream still writes";
  }
  stop = true;
  other.join();
}

// ---- BUF-14: stores ----

// What others keep is not freed, and is not the buffer's any more.
TEST_F(Sleep, buf_14_memory_that_others_keep) {
  const Buffer buffer = make(unit_, 4 * unit_);
  write(buffer, 1);
  gpumem_physical handle = nullptr;
  ASSERT_OK(gpumem_physical_retain(instance_, buffer.base(), &handle, why()));
  Physical block(handle);
  const Range range = reserve(instance_, range_desc(unit_));
  ASSERT_OK(range.map(0, {block}));
  ASSERT_OK(range.set_access(0, unit_, {device_rights(0)}));
  EXPECT_OK(buffer.sleep(GPUMEM_CONTENT_PAGEABLE));
  EXPECT_TRUE(holds_pattern(instance_, range.base(), unit_, 1)) << "a mapping keeps the memory";
  put_pattern(instance_, range.base(), unit_, 2);
  EXPECT_OK(buffer.wake());
  expect_kept(buffer, 1);
  EXPECT_TRUE(holds_pattern(instance_, range.base(), unit_, 2));
  put_pattern(instance_, range.base(), unit_, 3);
  expect_kept(buffer, 1);
}

TEST_F(Sleep, buf_14_a_store_is_kept_as_asked) {
  const Buffer buffer = make(2 * unit_, 8 * unit_);
  write(buffer, 3);
  for (const gpumem_content content : kKept) {
    SCOPED_TRACE(content);
    const auto counted = live(instance_);
    EXPECT_OK(buffer.sleep(sleep_in(content)));
    EXPECT_OK(buffer.wake(UINT64_MAX));
    const uint64_t capacity = buffer.info().store_capacity;
    EXPECT_GE(capacity, 2 * unit_);
    EXPECT_EQ(buffer.info().stored_size, 0u);
    const uint64_t made = pinned_ever();
    EXPECT_OK(buffer.sleep(sleep_in(content)));
    EXPECT_EQ(buffer.info().store_capacity, capacity);
    EXPECT_OK(buffer.wake(1));
    if (content == GPUMEM_CONTENT_PINNED) {
      EXPECT_EQ(pinned_ever(), made) << "the store was there";
    }
    EXPECT_GT(buffer.info().store_capacity, 0u);
    EXPECT_LE(buffer.info().store_capacity, capacity);
    EXPECT_OK(buffer.sleep(sleep_in(content)));
    EXPECT_OK(buffer.wake(0));
    EXPECT_EQ(buffer.info().store_capacity, 0u);
    EXPECT_EQ(live(instance_), counted);
    expect_kept(buffer, 3);
  }
}

TEST_F(Sleep, buf_14_a_store_of_another_sort_is_replaced) {
  const Buffer buffer = make(2 * unit_, 8 * unit_);
  write(buffer, 4);
  const auto counted = live(instance_);
  const Folder second;
  gpumem_sleep_desc there = sleep_in(GPUMEM_CONTENT_FILE);
  there.directory = second.path();
  for (const gpumem_sleep_desc& desc :
       {sleep_in(GPUMEM_CONTENT_PINNED), sleep_in(GPUMEM_CONTENT_PAGEABLE), sleep_in(GPUMEM_CONTENT_FILE),
        there, sleep_in(GPUMEM_CONTENT_PINNED)}) {
    EXPECT_OK(buffer.sleep(desc));
    EXPECT_EQ(folder_.open_files().size() + second.open_files().size(),
              desc.content == GPUMEM_CONTENT_FILE ? 1u : 0u);
    EXPECT_OK(buffer.wake(UINT64_MAX));
    EXPECT_GE(buffer.info().store_capacity, 2 * unit_);
    expect_kept(buffer, 4);
  }
  EXPECT_OK(buffer.sleep(GPUMEM_CONTENT_ZERO));
  EXPECT_EQ(buffer.info().store_capacity, 0u);
  EXPECT_EQ(stats(instance_).live_bytes, 0u);
  EXPECT_OK(buffer.wake(UINT64_MAX));
  EXPECT_EQ(buffer.info().store_capacity, 0u);
  EXPECT_EQ(live(instance_), counted);
}

TEST_F(Sleep, buf_14_a_store_grows_with_its_buffer) {
  const Buffer buffer = make(unit_, 8 * unit_);
  for (const gpumem_content content : kKept) {
    EXPECT_OK(buffer.resize(unit_));
    EXPECT_OK(buffer.sleep(sleep_in(content)));
    EXPECT_OK(buffer.wake(UINT64_MAX));
    EXPECT_OK(buffer.resize(3 * unit_ + 1));
    write(buffer, 5);
    EXPECT_OK(buffer.sleep(sleep_in(content)));
    EXPECT_GE(buffer.info().store_capacity, 3 * unit_ + 1);
    EXPECT_OK(buffer.wake());
    expect_kept(buffer, 5);
  }
}

TEST_F(Sleep, buf_14_the_pin_budget) {
  const auto open = [&](uint64_t budget) {
    return open_instance([&](gpumem_instance_desc& desc, gpumem_host_options& host) {
      desc.pin_budget = budget;
      host.vmm_granularity = kHostUnit;
    });
  };
  const Instance instance = open(unit_);
  gpumem_buffer_desc wanted = desc(2 * unit_, 2 * unit_);
  gpumem_buffer handle = nullptr;
  ASSERT_OK(gpumem_buffer_create(instance.device(), &wanted, &handle, why()));
  const Buffer buffer(handle);
  put_pattern(instance, buffer.base(), 2 * unit_, 6);
  const gpumem_buffer_info before = buffer.info();
  EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, buffer.sleep(GPUMEM_CONTENT_PINNED));
  EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, gpumem_buffer_prepare(buffer, nullptr, why()));
  expect_same(buffer.info(), before);
  EXPECT_OK(buffer.sleep(GPUMEM_CONTENT_PAGEABLE));
  EXPECT_OK(buffer.wake());
  EXPECT_TRUE(holds_pattern(instance, buffer.base(), 2 * unit_, 6));
}

// Of several stores that are made on other threads while content is copied already.
TEST_F(Sleep, buf_9_the_last_of_several_stores_fails) {
  constexpr uint64_t kSize = uint64_t{10} << 20;
  constexpr uint32_t kCount = 8;  // more than are copied at once
  const auto open = [&](uint64_t budget) {
    return open_instance([&](gpumem_instance_desc& desc, gpumem_host_options& host) {
      desc.pin_budget = budget;
      host.vmm_granularity = kHostUnit;
      host.device_bytes = 2 * kSize * kCount;
    });
  };
  for (const bool enough : {false, true}) {
    SCOPED_TRACE(enough);
    const Instance instance = open(enough ? 0 : kSize * kCount - 1);
    gpumem_group_desc group_desc = GPUMEM_GROUP_DESC_INIT;
    gpumem_group made = nullptr;
    ASSERT_OK(gpumem_group_create(instance, &group_desc, &made, why()));
    const Group group(made);
    std::vector<Buffer> buffers;
    for (uint32_t i = 0; i < kCount; ++i) {
      gpumem_buffer_desc wanted = desc(kSize, kSize);
      wanted.group = group;
      gpumem_buffer handle = nullptr;
      ASSERT_OK(gpumem_buffer_create(instance.device(), &wanted, &handle, why()));
      buffers.emplace_back(handle);
      put_pattern(instance, buffers[i].base(), kSize, i);
    }
    const auto expect_content = [&] {
      for (uint32_t i = 0; i < kCount; ++i)
        EXPECT_TRUE(holds_pattern(instance, buffers[i].base(), kSize, i)) << i;
    };
    const auto before = infos(buffers);
    const auto counted = live(instance);
    if (!enough) {
      EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, group.sleep());
      for (uint32_t i = 0; i < kCount; ++i)
        expect_same(buffers[i].info(), before[i]);
      EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, gpumem_group_prepare(group, nullptr, why()));
      EXPECT_EQ(buffers[0].info().store_capacity, kSize);
      EXPECT_EQ(buffers[kCount - 1].info().store_capacity, 0u);
      gpumem_prepare_desc none = GPUMEM_PREPARE_DESC_INIT;
      none.content = GPUMEM_CONTENT_DROP;
      EXPECT_OK(gpumem_group_prepare(group, &none, why()));
    } else {
      gpumem_sleep_desc cancelled = sleep_desc(GPUMEM_CONTENT_PINNED);
      cancelled.progress = [](void*, uint64_t done, uint64_t) -> int32_t { return done != 0 ? 1 : 0; };
      EXPECT_STATUS(GPUMEM_ERROR_CANCELLED, group.sleep(cancelled));
      expect_undone(buffers, before);
      EXPECT_EQ(live(instance), counted);
      EXPECT_OK(gpumem_group_prepare(group, nullptr, why()));
      EXPECT_OK(group.sleep());
      EXPECT_OK(group.wake());
      if (on_host()) {
        Faults faults(instance);
        uint64_t failures = 0;
        for (uint64_t step = 1; step < 60; step += kSanitized ? 13 : 3) {
          SCOPED_TRACE(step);
          const auto awake = infos(buffers);
          faults.fail_step(step);
          const gpumem_status status = group.sleep();
          faults.off();
          if (status == GPUMEM_SUCCESS) {
            EXPECT_OK(group.wake());
          } else {
            expect_undone(buffers, awake);
            ++failures;
          }
          EXPECT_EQ(live(instance), counted);
        }
        EXPECT_GE(failures, 3u);
      }
    }
    EXPECT_EQ(live(instance), counted);
    expect_content();
    for (const gpumem_content content : {GPUMEM_CONTENT_PAGEABLE, GPUMEM_CONTENT_PINNED}) {
      if (!enough && content == GPUMEM_CONTENT_PINNED) continue;
      EXPECT_OK(group.sleep(content));
      EXPECT_EQ(buffers[kCount - 1].info().store_capacity, kSize);
      EXPECT_OK(group.wake());
      expect_content();
    }
    EXPECT_EQ(live(instance), counted);
  }
}

// ---- BUF-15: preparing ----

TEST_F(Sleep, buf_15_prepares_at_once) {
  const Buffer buffer = make(2 * unit_, 8 * unit_);
  write(buffer, 7);
  for (const gpumem_content content : kKept) {
    SCOPED_TRACE(content);
    gpumem_prepare_desc prepare = GPUMEM_PREPARE_DESC_INIT;
    prepare.content = content;
    prepare.directory = sleep_in(content).directory;
    EXPECT_OK(gpumem_buffer_prepare(buffer, &prepare, why()));
    const gpumem_buffer_info prepared = buffer.info();
    EXPECT_GE(prepared.store_capacity, 2 * unit_);
    EXPECT_EQ(prepared.stored_size, 0u);
    EXPECT_EQ(prepared.state, GPUMEM_BUFFER_STATE_AWAKE);
    const uint64_t made = pinned_ever();
    EXPECT_OK(gpumem_buffer_prepare(buffer, &prepare, why()));
    EXPECT_OK(buffer.sleep(sleep_in(content)));
    EXPECT_EQ(buffer.info().store_capacity, prepared.store_capacity);
    if (content == GPUMEM_CONTENT_PINNED) {
      EXPECT_EQ(pinned_ever(), made) << "the store was there";
    }
    EXPECT_OK(buffer.wake(UINT64_MAX));
    expect_kept(buffer, 7);
  }
  gpumem_prepare_desc none = GPUMEM_PREPARE_DESC_INIT;
  none.content = GPUMEM_CONTENT_DROP;
  EXPECT_OK(gpumem_buffer_prepare(buffer, &none, why()));
  EXPECT_EQ(buffer.info().store_capacity, 0u);
}

TEST_F(Sleep, buf_15_prepares_at_a_pace) {
  const Group group = make_group();
  std::vector<Buffer> buffers = members(group, 2);
  const uint64_t bytes = 4 * unit_;
  gpumem_prepare_desc prepare = GPUMEM_PREPARE_DESC_INIT;
  prepare.bytes_per_second = 5 * bytes;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_OK(gpumem_group_prepare(group, &prepare, why()));
  EXPECT_TRUE(until([&] { return group.info().store_capacity >= bytes; }));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 80ms) << "faster than the pace";
  const uint64_t made = pinned_ever();
  EXPECT_OK(group.sleep());
  EXPECT_EQ(pinned_ever(), made) << "the stores were there";
  EXPECT_OK(group.wake());
  expect_kept(buffers);
  // Not finished when the sleep comes, or the end.
  prepare.bytes_per_second = 1;
  EXPECT_OK(gpumem_group_prepare(group, &prepare, why()));
  EXPECT_OK(group.sleep());
  EXPECT_OK(group.wake());
  expect_kept(buffers);
  EXPECT_OK(gpumem_buffer_prepare(buffers[0], &prepare, why()));
  buffers[0].destroy();
  EXPECT_OK(gpumem_buffer_prepare(buffers[1], &prepare, why()));
}

// What the thread of the library has not made yet is no longer wanted.
TEST_F(Sleep, buf_15_what_comes_later_ends_preparing) {
  // Larger than what is made at once, at this pace in two parts a tenth of a second apart.
  const uint64_t size = uint64_t{3} << 20;
  const Buffer buffer = make(size, size);
  write(buffer, 11);
  gpumem_prepare_desc paced = GPUMEM_PREPARE_DESC_INIT;
  paced.bytes_per_second = 10 * size;
  const auto begin = [&](gpumem_content content) {
    paced.content = content;
    EXPECT_OK(gpumem_buffer_prepare(buffer, &paced, why()));
    EXPECT_TRUE(until([&] { return buffer.info().store_capacity != 0; }));
  };
  const auto expect_still = [&](uint64_t capacity) {
    std::this_thread::sleep_for(250ms);
    EXPECT_EQ(buffer.info().store_capacity, capacity);
  };
  begin(GPUMEM_CONTENT_PAGEABLE);
  gpumem_prepare_desc none = GPUMEM_PREPARE_DESC_INIT;
  none.content = GPUMEM_CONTENT_DROP;
  EXPECT_OK(gpumem_buffer_prepare(buffer, &none, why()));
  expect_still(0);
  begin(GPUMEM_CONTENT_PAGEABLE);
  EXPECT_OK(buffer.sleep(GPUMEM_CONTENT_PAGEABLE));
  EXPECT_OK(buffer.wake());
  expect_still(0);
  begin(GPUMEM_CONTENT_PAGEABLE);
  paced.content = GPUMEM_CONTENT_PINNED;
  EXPECT_OK(gpumem_buffer_prepare(buffer, &paced, why()));
  expect_still(size);
  const uint64_t made = pinned_ever();
  expect_still(size);
  EXPECT_EQ(pinned_ever(), made) << "two that prepare take turns for ever";
  EXPECT_OK(buffer.sleep(GPUMEM_CONTENT_PINNED));
  EXPECT_OK(buffer.wake());
  expect_kept(buffer, 11);
}

TEST_F(Sleep, buf_15_a_group_prepares_who_is_awake) {
  const Group group = make_group();
  const Buffer tagged = member(group, 1, "cache");
  const Buffer asleep = member(group, 1);
  const Buffer other = member(group, 2);
  EXPECT_OK(asleep.sleep(GPUMEM_CONTENT_DROP));
  gpumem_prepare_desc prepare = GPUMEM_PREPARE_DESC_INIT;
  prepare.tag = "cache";
  EXPECT_OK(gpumem_group_prepare(group, &prepare, why()));
  EXPECT_GE(tagged.info().store_capacity, unit_);
  EXPECT_EQ(other.info().store_capacity, 0u);
  EXPECT_OK(gpumem_group_prepare(group, nullptr, why()));
  EXPECT_EQ(asleep.info().store_capacity, 0u);
  EXPECT_GE(other.info().store_capacity, 2 * unit_);
  EXPECT_EQ(group.info().store_capacity, tagged.info().store_capacity + other.info().store_capacity);
  EXPECT_EQ(group.info("cache").store_capacity, tagged.info().store_capacity);
}

// ---- BUF-16: files ----

TEST_F(Sleep, buf_16_the_file_has_no_name) {
  const Buffer buffer = make(2 * unit_, 4 * unit_);
  write(buffer, 8);
  EXPECT_OK(buffer.sleep(sleep_in(GPUMEM_CONTENT_FILE)));
  EXPECT_TRUE(folder_.empty());
  EXPECT_EQ(folder_.open_files().size(), 1u);
  EXPECT_OK(buffer.wake());
  EXPECT_EQ(folder_.open_files().size(), 0u);
  expect_kept(buffer, 8);
}

TEST_F(Sleep, buf_16_a_directory_that_cannot_be_used) {
  const Buffer buffer = make(unit_, 4 * unit_);
  write(buffer, 9);
  const gpumem_buffer_info before = buffer.info();
  gpumem_sleep_desc desc = sleep_desc(GPUMEM_CONTENT_FILE);
  const auto refused = [&](gpumem_status status, const std::string& directory) {
    desc.directory = directory.c_str();
    EXPECT_STATUS(status, buffer.sleep(desc)) << directory;
    gpumem_prepare_desc prepare = GPUMEM_PREPARE_DESC_INIT;
    prepare.content = GPUMEM_CONTENT_FILE;
    prepare.directory = directory.c_str();
    EXPECT_STATUS(status, gpumem_buffer_prepare(buffer, &prepare, why())) << directory;
    expect_same(buffer.info(), before);
  };
  const std::string folder = folder_.path();
  const std::string file = folder + "/file";
  const int descriptor = open(file.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  ASSERT_GE(descriptor, 0);
  close(descriptor);
  refused(GPUMEM_ERROR_NOT_FOUND, folder + "/missing");
  refused(GPUMEM_ERROR_INVALID_ARGUMENT, file);
  refused(GPUMEM_ERROR_INVALID_ARGUMENT, file + "/below");
  expect_kept(buffer, 9);
}

// A buffer of its own instance, for children.
struct Own {
  explicit Own(uint64_t units)
      : instance(open_instance(
            [](gpumem_instance_desc&, gpumem_host_options& host) { host.vmm_granularity = 64 * 1024; })) {
    if (!has_vmm(instance.device())) skip_child("the device has no virtual memory management");
    unit = unit_of(instance.device(), physical_desc(0));
    gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
    desc.size = desc.reserve = units * unit;
    gpumem_buffer handle = nullptr;
    EXPECT_OK(gpumem_buffer_create(instance.device(), &desc, &handle, why()));
    buffer = Buffer(handle);
    put_pattern(instance, buffer.base(), desc.size, 10);
  }
  void expect_kept() const {
    const gpumem_buffer_info info = buffer.info();
    EXPECT_EQ(info.state, GPUMEM_BUFFER_STATE_AWAKE);
    EXPECT_TRUE(holds_pattern(instance, info.base, info.size, 10));
  }

  Instance instance;
  uint64_t unit = 0;
  Buffer buffer;
};

CHILD(buf_16_no_permission) {
  constexpr uid_t kNobody = 65534;
  const Folder folder;
  const Own own(1);
  ASSERT_EQ(chmod(folder.path(), 0500), 0);
  const bool root = geteuid() == 0;
  if (root && seteuid(kNobody) != 0) skip_child("root cannot become another user here");
  gpumem_sleep_desc desc = sleep_desc(GPUMEM_CONTENT_FILE);
  desc.directory = folder.path();
  EXPECT_STATUS(GPUMEM_ERROR_PERMISSION_DENIED, own.buffer.sleep(desc));
  if (root) {
    ASSERT_EQ(seteuid(0), 0);
  }
  own.expect_kept();
  ASSERT_EQ(chmod(folder.path(), 0700), 0);
  EXPECT_OK(own.buffer.sleep(desc));
  EXPECT_OK(own.buffer.wake());
  own.expect_kept();
}

TEST_F(Sleep, buf_16_no_permission) { EXPECT_CHILD_OK(run_child("buf_16_no_permission")); }

// The first file that is opened has the number 0 then.
CHILD(buf_16_without_standard_input) {
  const Folder folder;
  const Own own(1);
  ASSERT_EQ(close(STDIN_FILENO), 0);
  gpumem_sleep_desc desc = sleep_desc(GPUMEM_CONTENT_FILE);
  desc.directory = folder.path();
  EXPECT_OK(own.buffer.sleep(desc));
  EXPECT_EQ(folder.open_files().size(), 1u);
  EXPECT_OK(own.buffer.wake());
  own.expect_kept();
  EXPECT_TRUE(folder.open_files().empty());
}

TEST_F(Sleep, buf_16_without_standard_input) { EXPECT_CHILD_OK(run_child("buf_16_without_standard_input")); }

CHILD(buf_16_a_limit_of_file_sizes) {
  const Folder folder;
  const Own own(4);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit before = limit;
  limit.rlim_cur = own.unit;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  gpumem_sleep_desc desc = sleep_desc(GPUMEM_CONTENT_FILE);
  desc.directory = folder.path();
  EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, own.buffer.sleep(desc));
  own.expect_kept();
  EXPECT_TRUE(folder.open_files().empty());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_OK(own.buffer.sleep(desc));
  EXPECT_OK(own.buffer.wake());
  own.expect_kept();
}

TEST_F(Sleep, buf_16_a_limit_of_file_sizes) { EXPECT_CHILD_OK(run_child("buf_16_a_limit_of_file_sizes")); }

// In a mount namespace of this process, so that nobody else sees the small disk.
CHILD(buf_16_a_full_disk) {
  const Folder folder;
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("small", folder.path(), "tmpfs", 0, "size=96k") != 0) {
    skip_child("this user cannot mount a small disk");
  }
  {
    const Own own(4);
    const Folder on_it(folder.path());
    gpumem_sleep_desc desc = sleep_desc(GPUMEM_CONTENT_FILE);
    desc.directory = on_it.path();
    for (int attempt = 0; attempt < 2; ++attempt) {
      EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, own.buffer.sleep(desc));
      EXPECT_NE(std::strstr(last_error().message, "free space on its disk"), nullptr) << last_error().message;
      own.expect_kept();
      EXPECT_TRUE(on_it.open_files().empty());
    }
  }
  EXPECT_EQ(umount(folder.path()), 0);
}

TEST_F(Sleep, buf_16_a_full_disk) { EXPECT_CHILD_OK(run_child("buf_16_a_full_disk")); }

TEST_F(Sleep, buf_16_a_file_that_was_cut_short) {
  for (const bool whole : {true, false}) {
    const Group group = make_group();
    std::vector<Buffer> buffers = members(group, 2);
    EXPECT_OK(buffers[0].sleep(GPUMEM_CONTENT_PAGEABLE));
    EXPECT_OK(buffers[1].sleep(sleep_in(GPUMEM_CONTENT_FILE)));
    const std::vector<int> files = folder_.open_files();
    ASSERT_EQ(files.size(), 1u);
    ASSERT_EQ(ftruncate(files[0], whole ? 0 : static_cast<off_t>(unit_ + 1)), 0);
    EXPECT_STATUS(GPUMEM_ERROR_CONTENT_LOST, group.wake());
    EXPECT_NE(buffers[1].info().state, GPUMEM_BUFFER_STATE_AWAKE);
    EXPECT_STATUS(GPUMEM_ERROR_CONTENT_LOST, buffers[1].wake());
    EXPECT_NE(buffers[1].info().state, GPUMEM_BUFFER_STATE_AWAKE);
    // The other one has lost nothing.
    EXPECT_OK(buffers[0].wake());
    expect_kept(buffers[0], 0);
    buffers[1].destroy();
    EXPECT_TRUE(folder_.open_files().empty());
  }
}

// ---- BUF-17: progress and cancellation ----

TEST_F(Sleep, buf_17_progress) {
  const Group group = make_group();
  const std::vector<Buffer> buffers = members(group, 3);
  for (const gpumem_content content : kKept) {
    SCOPED_TRACE(content);
    Progress down;
    EXPECT_OK(group.sleep(down.in(sleep_in(content))));
    down.expect_complete(6 * unit_);
    EXPECT_GE(down.told.size(), 4u) << "each buffer is a piece at least";
    Progress up;
    const gpumem_wake_desc wake = up.in(wake_desc(0));
    EXPECT_OK(gpumem_group_wake(group, &wake, why()));
    up.expect_complete(6 * unit_);
  }
  expect_kept(buffers);
}

// Once all is done it is too late.
TEST_F(Sleep, buf_17_no_cancelling_at_the_end) {
  const Buffer buffer = make(unit_, 4 * unit_);
  write(buffer, 1);
  Progress count;
  EXPECT_OK(buffer.sleep(count.in(sleep_desc(GPUMEM_CONTENT_PINNED))));
  count.expect_complete(unit_);
  EXPECT_OK(buffer.wake());
  Progress last;
  last.cancel_at = count.told.size() - 1;
  EXPECT_OK(buffer.sleep(last.in(sleep_desc(GPUMEM_CONTENT_PINNED))));
  Progress up;
  up.cancel_at = count.told.size() - 1;
  const gpumem_wake_desc wake = up.in(wake_desc(0));
  EXPECT_OK(gpumem_buffer_wake(buffer, &wake, why()));
  expect_kept(buffer, 1);
}

TEST_F(Sleep, buf_17_cancelled_at_each_piece) {
  const Group group = make_group();
  const std::vector<Buffer> buffers = members(group, 3);
  for (const gpumem_content content : kKept) {
    SCOPED_TRACE(content);
    size_t pieces = 0;
    for (size_t piece = 0;; ++piece) {
      SCOPED_TRACE(piece);
      const auto before = infos(buffers);
      const auto counted = live(instance_);
      Progress down;
      down.cancel_at = piece;
      const gpumem_status status = group.sleep(down.in(sleep_in(content)));
      if (status == GPUMEM_SUCCESS) break;
      EXPECT_EQ(status, GPUMEM_ERROR_CANCELLED) << last_error().message;
      EXPECT_EQ(down.told.size(), piece + 1) << "called again";
      expect_undone(buffers, before);
      EXPECT_EQ(live(instance_), counted);
      expect_kept(buffers);
      ++pieces;
      ASSERT_LT(piece, 100u);
    }
    EXPECT_GE(pieces, 3u);
    for (size_t piece = 0;; ++piece) {
      SCOPED_TRACE(piece);
      const auto before = infos(buffers);
      const auto counted = live(instance_);
      Progress up;
      up.cancel_at = piece;
      const gpumem_wake_desc wake = up.in(wake_desc(0));
      const gpumem_status status = gpumem_group_wake(group, &wake, why());
      if (status == GPUMEM_SUCCESS) break;
      EXPECT_EQ(status, GPUMEM_ERROR_CANCELLED) << last_error().message;
      expect_undone(buffers, before);
      EXPECT_EQ(live(instance_), counted);
      ASSERT_LT(piece, 100u);
    }
    expect_kept(buffers);
  }
}

// Content that is not kept is lost when the sleep has succeeded, not before.
TEST_F(Sleep, buf_17_cancelled_before_content_is_dropped) {
  const Group group = make_group();
  const std::vector<Buffer> buffers = members(group, 3);
  for (const gpumem_content content : {GPUMEM_CONTENT_ZERO, GPUMEM_CONTENT_DROP}) {
    SCOPED_TRACE(content);
    size_t piece = 0;
    for (;; ++piece) {
      SCOPED_TRACE(piece);
      Progress down;
      down.cancel_at = piece;
      const gpumem_status status = group.sleep(down.in(sleep_desc(content)));
      if (status == GPUMEM_SUCCESS) break;
      EXPECT_EQ(status, GPUMEM_ERROR_CANCELLED) << last_error().message;
      expect_kept(buffers);
      ASSERT_LT(piece, 100u);
    }
    EXPECT_GE(piece, 1u);
    EXPECT_OK(group.wake());
    for (uint32_t i = 0; i < buffers.size(); ++i)
      write(buffers[i], i);
  }
}

// ---- BUF-18: registrations ----

TEST_F(Sleep, buf_18_registrations_keep_it_awake) {
  const Group group = make_group();
  gpumem_buffer_desc wanted = desc(unit_, 4 * unit_);
  wanted.group = group;
  wanted.name = "parameters";
  const Buffer buffer = make(wanted);
  const Buffer other = member(group, 1);
  write(buffer, 1);
  uint64_t card = 0;
  uint64_t ring = 0;
  EXPECT_OK(gpumem_buffer_note_registration(buffer, "mlx5_0", &card, why()));
  EXPECT_OK(gpumem_buffer_note_registration(buffer, "ring of all", &ring, why()));
  EXPECT_NE(card, 0u);
  EXPECT_NE(ring, 0u);
  EXPECT_NE(card, ring);
  EXPECT_EQ(buffer.info().registrations, 2u);
  const gpumem_buffer_info before = buffer.info();
  const gpumem_buffer_info other_before = other.info();
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, buffer.sleep(GPUMEM_CONTENT_PINNED));
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, group.sleep());
  for (const char* name : {"mlx5_0", "ring of all", "parameters"})
    EXPECT_NE(std::strstr(last_error().message, name), nullptr) << last_error().message;
  conformance::expect_undone(buffer.info(), before);
  conformance::expect_undone(other.info(), other_before);
  EXPECT_OK(gpumem_buffer_forget_registration(buffer, card, why()));
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, buffer.sleep(GPUMEM_CONTENT_PINNED));
  EXPECT_EQ(std::strstr(last_error().message, "mlx5_0"), nullptr) << last_error().message;
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_buffer_forget_registration(buffer, card, why()));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_buffer_forget_registration(other, ring, why()));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_buffer_forget_registration(buffer, 0, why()));
  EXPECT_OK(gpumem_buffer_forget_registration(buffer, ring, why()));
  EXPECT_OK(group.sleep());
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_buffer_forget_registration(buffer, ring, why()));
  EXPECT_OK(group.wake());
  uint64_t again = 0;
  EXPECT_OK(gpumem_buffer_note_registration(buffer, "mlx5_0", &again, why()));
  EXPECT_NE(again, card);
  EXPECT_NE(again, ring);
  expect_kept(buffer, 1);
}

TEST_F(Sleep, buf_18_it_can_be_resized_and_destroyed_meanwhile) {
  Buffer buffer = make(unit_, 4 * unit_);
  uint64_t number = 0;
  EXPECT_OK(gpumem_buffer_note_registration(buffer, "card", &number, why()));
  EXPECT_OK(buffer.resize(2 * unit_));
  const gpumem_buffer handle = buffer;
  buffer.destroy();
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_buffer_forget_registration(handle, number, why()));
}

TEST_F(Sleep, buf_18_bad_names) {
  const Buffer buffer = make(unit_, 4 * unit_);
  uint64_t number = 77;
  const std::string longest(63, 'x');
  const std::string too_long(64, 'x');
  for (const char* name : {static_cast<const char*>(nullptr), "", too_long.c_str(), "a\tb", "\x7f"}) {
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_buffer_note_registration(buffer, name, &number, why()));
  }
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_buffer_note_registration(buffer, "card", nullptr, why()));
  EXPECT_EQ(number, 77u);
  EXPECT_EQ(buffer.info().registrations, 0u);
  EXPECT_OK(gpumem_buffer_note_registration(buffer, longest.c_str(), &number, why()));
  EXPECT_OK(gpumem_buffer_forget_registration(buffer, number, why()));
}

// More names than a message has room for.
TEST_F(Sleep, buf_18_many_registrations) {
  const Buffer buffer = make(unit_, 4 * unit_);
  std::vector<uint64_t> numbers(100);
  const std::string name(63, 'n');
  for (uint64_t& number : numbers)
    EXPECT_OK(gpumem_buffer_note_registration(buffer, name.c_str(), &number, why()));
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, buffer.sleep(GPUMEM_CONTENT_PINNED));
  EXPECT_NE(std::strstr(last_error().message, name.c_str()), nullptr) << last_error().message;
  EXPECT_EQ(buffer.info().registrations, numbers.size());
  for (const uint64_t number : numbers)
    EXPECT_OK(gpumem_buffer_forget_registration(buffer, number, why()));
  EXPECT_OK(buffer.sleep(GPUMEM_CONTENT_PINNED));
}

// Lets a sleep of a group fail, and its first buffer have FAILED: the second is not unmapped, and the first
// is not mapped again from one of its blocks on.
void refuse_to_undo(Faults& faults, uint64_t block) {
  constexpr int kOutOfMemory = 2;
  constexpr int kNotPermitted = 800;
  faults.fail_driver_calls("cuMemUnmap", kNotPermitted, 2, 8);
  faults.fail_driver_calls("cuMemMap", kOutOfMemory, block, 8);
}

// ---- BUF-19: callbacks ----

// The callbacks of one buffer: they write down what they are told, and do what else is asked of them.
struct Told {
  struct Call {
    int buffer;
    bool woke;
    uint64_t generation;
    bool operator==(const Call&) const = default;
  };

  std::deque<Call>* log = nullptr;
  int number = 0;
  bool refuses = false;
  std::function<void(gpumem_buffer)> before_sleep;
  std::function<void(gpumem_buffer)> after_wake;

  void set(const Buffer& buffer) {
    gpumem_buffer_callbacks callbacks = GPUMEM_BUFFER_CALLBACKS_INIT;
    callbacks.before_sleep = [](void* user_data, gpumem_buffer about) -> int32_t {
      auto* const self = static_cast<Told*>(user_data);
      self->log->push_back({self->number, false, 0});
      if (self->before_sleep) self->before_sleep(about);
      return self->refuses ? 1 : 0;
    };
    callbacks.after_wake = [](void* user_data, gpumem_buffer about, uint64_t generation) {
      auto* const self = static_cast<Told*>(user_data);
      self->log->push_back({self->number, true, generation});
      if (self->after_wake) self->after_wake(about);
    };
    callbacks.user_data = this;
    EXPECT_OK(gpumem_buffer_set_callbacks(buffer, &callbacks, why()));
  }
};

class Callbacks : public Sleep {
 protected:
  void SetUp() override {
    Sleep::SetUp();
    if (IsSkipped()) return;
    group_ = make_group();
    buffers_ = members(group_, 3);
    for (int i = 0; i < 3; ++i) {
      told_.at(static_cast<size_t>(i)).log = &log_;
      told_.at(static_cast<size_t>(i)).number = i;
      told_.at(static_cast<size_t>(i)).set(buffers_[static_cast<size_t>(i)]);
    }
  }
  void TearDown() override {
    buffers_.clear();
    group_.destroy();
    Sleep::TearDown();
  }

  Group group_;
  std::vector<Buffer> buffers_;
  std::deque<Told::Call> log_;
  std::array<Told, 3> told_;
};

TEST_F(Callbacks, buf_19_in_order) {
  EXPECT_OK(group_.sleep());
  EXPECT_EQ(log_, (std::deque<Told::Call>{{0, false, 0}, {1, false, 0}, {2, false, 0}}));
  log_.clear();
  EXPECT_OK(group_.wake());
  EXPECT_EQ(log_, (std::deque<Told::Call>{{0, true, 1}, {1, true, 1}, {2, true, 1}}));
  log_.clear();
  EXPECT_OK(buffers_[1].sleep(GPUMEM_CONTENT_DROP));
  EXPECT_OK(group_.sleep(GPUMEM_CONTENT_PAGEABLE));
  EXPECT_EQ(log_, (std::deque<Told::Call>{{1, false, 0}, {0, false, 0}, {2, false, 0}}))
      << "who sleeps already is not told again";
  EXPECT_OK(group_.wake());
  log_.clear();
  // None from now on.
  EXPECT_OK(gpumem_buffer_set_callbacks(buffers_[0], nullptr, why()));
  EXPECT_OK(buffers_[0].sleep(GPUMEM_CONTENT_DROP));
  EXPECT_OK(buffers_[0].wake());
  EXPECT_TRUE(log_.empty());
}

TEST_F(Callbacks, buf_19_a_refusal) {
  told_[1].refuses = true;
  const auto before = infos(buffers_);
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, group_.sleep());
  expect_undone(buffers_, before);
  expect_kept(buffers_);
  // The first one was told in vain, and hears so; whether who refused does is left open.
  std::erase(log_, Told::Call{1, true, 0});
  EXPECT_EQ(log_, (std::deque<Told::Call>{{0, false, 0}, {1, false, 0}, {0, true, 0}}));
  log_.clear();
  told_[1].refuses = false;
  EXPECT_OK(group_.sleep());
  EXPECT_OK(group_.wake());
  EXPECT_EQ(log_.size(), 6u);
}

TEST_F(Callbacks, buf_19_a_sleep_that_does_not_happen) {
  Progress cancels;
  cancels.cancel_at = 0;
  EXPECT_STATUS(GPUMEM_ERROR_CANCELLED, group_.sleep(cancels.in(sleep_desc(GPUMEM_CONTENT_PINNED))));
  std::deque<Told::Call> expected = {{0, false, 0}, {1, false, 0}, {2, false, 0},
                                     {0, true, 0},  {1, true, 0},  {2, true, 0}};
  for (size_t i = 0; i < buffers_.size(); ++i)
    expected[3 + i].generation = buffers_[i].info().generation;
  EXPECT_EQ(log_, expected);
  // A wake that does not happen concerns nobody.
  EXPECT_OK(group_.sleep());
  log_.clear();
  Progress up;
  up.cancel_at = 0;
  const gpumem_wake_desc wake = up.in(wake_desc(0));
  EXPECT_STATUS(GPUMEM_ERROR_CANCELLED, gpumem_group_wake(group_, &wake, why()));
  EXPECT_TRUE(log_.empty());
}

// What an earlier sleep had asked, and could not wake, is told before it is asked again.
TEST_F(Callbacks, buf_19_who_is_woken_by_a_sleep_is_told) {
  if (on_host() || !Faults::available())
    SKIP_RULE("only a fake driver can refuse one call and then all others");
  Faults faults(instance_);
  const auto fail = [&] {
    refuse_to_undo(faults, 1);
    EXPECT_LT(group_.sleep(GPUMEM_CONTENT_ZERO), 0);
    EXPECT_EQ(buffers_[0].info().state, GPUMEM_BUFFER_STATE_FAILED);
    faults.off();
    log_.clear();
  };
  fail();
  told_[1].refuses = true;
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, group_.sleep());
  EXPECT_EQ(log_, (std::deque<Told::Call>{
                      {0, true, 1}, {0, false, 0}, {1, false, 0}, {0, true, buffers_[0].info().generation}}));
  told_[1].refuses = false;
  log_.clear();
  EXPECT_OK(group_.sleep());
  EXPECT_OK(group_.wake());
  EXPECT_EQ(log_.size(), 6u) << "nobody had to be woken";
}

TEST_F(Callbacks, buf_19_registrations_end_and_begin_there) {
  uint64_t number = 0;
  const auto note = [&](gpumem_buffer buffer) {
    EXPECT_OK(gpumem_buffer_note_registration(buffer, "card", &number, why()));
  };
  note(buffers_[2]);
  const uint64_t first = number;
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, group_.sleep()) << "nobody has ended it";
  EXPECT_EQ(log_.size(), 6u) << "all were told, and that it did not happen";
  told_[2].before_sleep = [&](gpumem_buffer buffer) {
    EXPECT_OK(gpumem_buffer_forget_registration(buffer, number, why()));
  };
  told_[2].after_wake = note;
  EXPECT_OK(group_.sleep());
  EXPECT_EQ(buffers_[2].info().registrations, 0u);
  EXPECT_OK(group_.wake());
  EXPECT_EQ(buffers_[2].info().registrations, 1u);
  EXPECT_NE(number, first);
  expect_kept(buffers_);
}

TEST_F(Callbacks, buf_19_what_may_be_called_there) {
  int calls = 0;
  const auto ask = [&](gpumem_buffer buffer) {
    ++calls;
    gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
    EXPECT_OK(gpumem_buffer_get_info(buffer, &info, why()));
    EXPECT_EQ(info.state, GPUMEM_BUFFER_STATE_AWAKE);
    gpumem_group_info of_group = GPUMEM_GROUP_INFO_INIT;
    EXPECT_OK(gpumem_group_get_info(group_, nullptr, &of_group, why()));
    EXPECT_EQ(of_group.buffer_count, 3u);
    // Also on another thread, while this one waits for it.
    std::thread([&] {
      EXPECT_EQ(gpumem_buffer_get_info(buffer, &info, nullptr), GPUMEM_SUCCESS);
      EXPECT_EQ(gpumem_group_get_info(group_, nullptr, &of_group, nullptr), GPUMEM_SUCCESS);
      uint64_t noted = 0;
      EXPECT_EQ(gpumem_buffer_note_registration(buffer, "card", &noted, nullptr), GPUMEM_SUCCESS);
      EXPECT_EQ(gpumem_buffer_forget_registration(buffer, noted, nullptr), GPUMEM_SUCCESS);
    }).join();
    const gpumem_access_desc rights = device_rights(0);
    constexpr gpumem_status kRefused = GPUMEM_ERROR_INVALID_STATE;
    EXPECT_STATUS(kRefused, gpumem_buffer_resize(buffer, 1, why()));
    EXPECT_STATUS(kRefused, gpumem_buffer_set_capacity(buffer, 0, why()));
    EXPECT_STATUS(kRefused, gpumem_buffer_set_ahead(buffer, 1, why()));
    EXPECT_STATUS(kRefused, gpumem_buffer_set_access(buffer, &rights, 1, why()));
    EXPECT_STATUS(kRefused, gpumem_buffer_sleep(buffer, nullptr, why()));
    EXPECT_STATUS(kRefused, gpumem_buffer_wake(buffer, nullptr, why()));
    EXPECT_STATUS(kRefused, gpumem_buffer_prepare(buffer, nullptr, why()));
    EXPECT_STATUS(kRefused, gpumem_buffer_set_callbacks(buffer, nullptr, why()));
    EXPECT_STATUS(kRefused, gpumem_buffer_destroy(buffer, why()));
    EXPECT_STATUS(kRefused, gpumem_group_sleep(group_, nullptr, why()));
    EXPECT_STATUS(kRefused, gpumem_group_wake(group_, nullptr, why()));
    EXPECT_STATUS(kRefused, gpumem_group_prepare(group_, nullptr, why()));
    // It has buffers, or one of them is in a callback: either is a reason.
    EXPECT_STATUS_IN(gpumem_group_destroy(group_, why()), kRefused, GPUMEM_ERROR_BUSY);
  };
  told_[1].before_sleep = told_[1].after_wake = ask;
  EXPECT_OK(group_.sleep());
  EXPECT_OK(group_.wake());
  EXPECT_OK(buffers_[1].sleep(GPUMEM_CONTENT_PINNED));
  EXPECT_OK(buffers_[1].wake());
  EXPECT_EQ(calls, 4);
  expect_kept(buffers_);
}

TEST_F(Sleep, buf_19_what_may_be_called_in_host_functions) {
  const Group group = make_group();
  const Buffer buffer = member(group, 1);
  const Stream stream = create_stream(device_);
  struct Work {
    gpumem_buffer buffer;
    gpumem_group group;
    std::vector<gpumem_status> allowed;
    std::vector<gpumem_status> refused;
  } work = {buffer, group, {}, {}};
  const auto function = [](void* user_data) {
    auto* const self = static_cast<Work*>(user_data);
    gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
    gpumem_group_info of_group = GPUMEM_GROUP_INFO_INIT;
    uint64_t number = 0;
    self->allowed = {gpumem_buffer_get_info(self->buffer, &info, nullptr),
                     gpumem_group_get_info(self->group, nullptr, &of_group, nullptr),
                     gpumem_buffer_note_registration(self->buffer, "card", &number, nullptr),
                     gpumem_buffer_forget_registration(self->buffer, number, nullptr)};
    self->refused = {gpumem_buffer_sleep(self->buffer, nullptr, nullptr),
                     gpumem_buffer_wake(self->buffer, nullptr, nullptr),
                     gpumem_buffer_prepare(self->buffer, nullptr, nullptr),
                     gpumem_buffer_set_ahead(self->buffer, 1, nullptr),
                     gpumem_buffer_set_callbacks(self->buffer, nullptr, nullptr),
                     gpumem_group_sleep(self->group, nullptr, nullptr),
                     gpumem_group_wake(self->group, nullptr, nullptr),
                     gpumem_group_prepare(self->group, nullptr, nullptr),
                     gpumem_group_destroy(self->group, nullptr)};
  };
  EXPECT_OK(gpumem_stream_launch_host_function(stream, function, &work, why()));
  stream.synchronize();
  EXPECT_EQ(work.allowed, std::vector<gpumem_status>(4, GPUMEM_SUCCESS));
  EXPECT_EQ(work.refused, std::vector<gpumem_status>(9, GPUMEM_ERROR_INVALID_STATE));
}

// ---- BUF-20, BUF-21: groups ----

TEST_F(Sleep, buf_20_sleeps_and_wakes_as_one) {
  const Group group = make_group("model");
  EXPECT_STREQ(group.info().name, "model");
  EXPECT_EQ(group.info().buffer_count, 0u);
  EXPECT_OK(group.sleep());
  EXPECT_OK(group.wake());
  const std::vector<Buffer> buffers = members(group, 3);
  EXPECT_EQ(buffers[0].info().group, group.get());
  for (const gpumem_content content : kKept) {
    EXPECT_OK(group.sleep(sleep_in(content)));
    gpumem_group_info info = group.info();
    EXPECT_EQ(info.buffer_count, 3u);
    EXPECT_EQ(info.asleep_count, 3u);
    EXPECT_EQ(info.awake_count, 0u);
    EXPECT_EQ(info.size, 6 * unit_);
    EXPECT_EQ(info.stored_size, 6 * unit_);
    EXPECT_GE(info.store_capacity, 6 * unit_);
    EXPECT_OK(group.sleep(sleep_in(content))) << "all of them sleep";
    EXPECT_OK(group.wake());
    EXPECT_OK(group.wake());
    info = group.info();
    EXPECT_EQ(info.awake_count, 3u);
    EXPECT_EQ(info.stored_size, 0u);
    expect_kept(buffers);
  }
  EXPECT_EQ(buffers[2].info().generation, 3u);
}

TEST_F(Sleep, buf_20_by_tag) {
  const Group group = make_group();
  const Buffer weights = member(group, 1, "weights");
  const Buffer cache = member(group, 2, "cache");
  const Buffer more = member(group, 1, "weights");
  const Buffer none = member(group, 1);
  write(weights, 1);
  write(more, 3);
  EXPECT_STREQ(weights.info().tag, "weights");
  EXPECT_STREQ(none.info().tag, "");
  EXPECT_OK(group.sleep(GPUMEM_CONTENT_PAGEABLE, "weights"));
  EXPECT_EQ(group.info("weights").asleep_count, 2u);
  EXPECT_EQ(group.info("weights").size, 2 * unit_);
  EXPECT_EQ(group.info("cache").awake_count, 1u);
  EXPECT_EQ(group.info("cache").buffer_count, 1u);
  EXPECT_EQ(group.info("nothing").buffer_count, 0u);
  EXPECT_EQ(group.info().awake_count, 2u);
  EXPECT_OK(group.sleep(GPUMEM_CONTENT_DROP, "nothing"));
  EXPECT_OK(group.sleep(GPUMEM_CONTENT_ZERO));
  EXPECT_EQ(group.info().asleep_count, 4u);
  EXPECT_EQ(weights.info().stored_size, unit_) << "it kept what it had";
  EXPECT_OK(group.wake("cache"));
  EXPECT_EQ(group.info().awake_count, 1u);
  EXPECT_EQ(cache.info().state, GPUMEM_BUFFER_STATE_AWAKE);
  expect(cache, 0, 2 * unit_, 0);
  EXPECT_OK(group.wake());
  expect_kept(weights, 1);
  expect_kept(more, 3);
  EXPECT_EQ(cache.info().generation, 1u);
}

TEST_F(Sleep, buf_20_life_of_a_group) {
  Group group = make_group();
  const gpumem_group handle = group;
  Buffer buffer = member(group, 1);
  EXPECT_OK(buffer.sleep(GPUMEM_CONTENT_DROP));
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_group_destroy(group, why()));
  EXPECT_EQ(group.info().buffer_count, 1u);
  buffer.destroy();
  EXPECT_EQ(group.info().buffer_count, 0u);
  group.destroy();
  gpumem_group_info info = GPUMEM_GROUP_INFO_INIT;
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_group_get_info(handle, nullptr, &info, why()));
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_group_sleep(handle, nullptr, why()));
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_group_destroy(handle, why()));
  EXPECT_OK(gpumem_group_destroy(nullptr, why()));
  gpumem_buffer_desc wanted = desc(unit_, unit_);
  wanted.group = handle;
  gpumem_buffer none = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_buffer_create(device_, &wanted, &none, why()));
}

TEST_F(Sleep, buf_20_bad_descriptions) {
  const Group group = make_group();
  const Instance other = open_instance();
  gpumem_group theirs = nullptr;
  ASSERT_OK(gpumem_group_create(other, nullptr, &theirs, why()));
  const Group of_other(theirs);
  const std::string too_long(64, 'x');
  const auto refused = [&](const std::function<void(gpumem_buffer_desc&)>& change) {
    gpumem_buffer_desc wanted = desc(unit_, 4 * unit_);
    wanted.group = group;
    change(wanted);
    gpumem_buffer buffer = nullptr;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_buffer_create(device_, &wanted, &buffer, why()));
    EXPECT_EQ(buffer, nullptr);
  };
  refused([&](gpumem_buffer_desc& wanted) { wanted.group = of_other; });
  refused([](gpumem_buffer_desc& wanted) {
    wanted.group = nullptr;
    wanted.tag = "weights";
  });
  refused([&](gpumem_buffer_desc& wanted) { wanted.tag = too_long.c_str(); });
  refused([](gpumem_buffer_desc& wanted) { wanted.tag = "a\nb"; });
  EXPECT_EQ(group.info().buffer_count, 0u);
  gpumem_group made = nullptr;
  const auto no_group = [&](const std::function<void(gpumem_group_desc&)>& change) {
    gpumem_group_desc wanted = GPUMEM_GROUP_DESC_INIT;
    change(wanted);
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_group_create(instance_, &wanted, &made, why()));
    EXPECT_EQ(made, nullptr);
  };
  no_group([](gpumem_group_desc& wanted) { wanted.struct_size = 7; });
  no_group([&](gpumem_group_desc& wanted) { wanted.name = too_long.c_str(); });
  no_group([](gpumem_group_desc& wanted) { wanted.name = "\n"; });
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_group_create(instance_, nullptr, nullptr, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_group_create(nullptr, nullptr, &made, why()));
  // A buffer that cannot be made does not stay in the group.
  gpumem_buffer_desc too_large = desc(uint64_t{1} << 50, uint64_t{1} << 50);
  too_large.group = group;
  gpumem_buffer buffer = nullptr;
  EXPECT_NE(gpumem_buffer_create(device_, &too_large, &buffer, why()), GPUMEM_SUCCESS);
  EXPECT_EQ(group.info().buffer_count, 0u);
}

TEST_F(Sleep, buf_20_over_several_devices) {
  const gpumem_device second = instance_.device_count() > 1 ? instance_.device(1) : nullptr;
  if (second == nullptr) SKIP_RULE("there is no second device");
  const Group group = make_group();
  const Buffer here = member(group, 2);
  gpumem_buffer_desc wanted = desc(unit_, 2 * unit_);
  wanted.group = group;
  gpumem_buffer handle = nullptr;
  ASSERT_OK(gpumem_buffer_create(second, &wanted, &handle, why()));
  const Buffer there(handle);
  write(here, 1);
  write(there, 2);
  GatedStream stream(second);
  EXPECT_OK(gpumem_fill_async(stream, there.base(), 1, pattern_byte(2, 0), 1, why()));
  expect_to_wait(stream, [&] { return group.sleep(); });
  EXPECT_OK(group.wake());
  expect_kept(here, 1);
  expect_kept(there, 2);
}

TEST_F(Sleep, buf_20_a_closed_instance) {
  Instance other = open_instance();
  gpumem_group group = nullptr;
  ASSERT_OK(gpumem_group_create(other, nullptr, &group, why()));
  gpumem_buffer_desc wanted = desc(1, unit_);
  wanted.group = group;
  gpumem_buffer buffer = nullptr;
  ASSERT_OK(gpumem_buffer_create(other.device(), &wanted, &buffer, why()));
  gpumem_prepare_desc prepare = GPUMEM_PREPARE_DESC_INIT;
  prepare.bytes_per_second = 1;
  EXPECT_OK(gpumem_group_prepare(group, &prepare, why()));
  EXPECT_OK(gpumem_buffer_set_ahead(buffer, unit_, why()));
  const gpumem_instance closed = other.release();
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_instance_close(closed, GPUMEM_CLOSE_CHECK, nullptr, why()));
  EXPECT_NE(std::strstr(last_error().message, "1 group"), nullptr) << last_error().message;
  EXPECT_OK(gpumem_instance_close(closed, GPUMEM_CLOSE_FORCE, nullptr, why()));
  EXPECT_STATUS(GPUMEM_ERROR_CLOSED, gpumem_group_sleep(group, nullptr, why()));
  EXPECT_STATUS(GPUMEM_ERROR_CLOSED, gpumem_buffer_wake(buffer, nullptr, why()));
}

TEST_F(Sleep, buf_21_a_failing_step_is_undone) {
  if (!Faults::available()) SKIP_RULE("no step of a real driver can be made to fail");
  const Group group = make_group();
  const std::vector<Buffer> buffers = members(group, 2);
  Faults faults(instance_);
  for (const gpumem_content content : {GPUMEM_CONTENT_PINNED, GPUMEM_CONTENT_FILE}) {
    SCOPED_TRACE(content);
    // Blocks of this size take seconds.
    if (content == GPUMEM_CONTENT_FILE && (!on_host() || kThreadSanitizer)) break;
    uint64_t failures = 0;
    const auto fails = [&](uint64_t step, const std::function<gpumem_status()>& call) {
      const auto before = infos(buffers);
      const auto counted = live(instance_);
      faults.fail_step(step);
      const gpumem_status status = call();
      faults.off();
      if (status == GPUMEM_SUCCESS) return false;
      expect_undone(buffers, before);
      EXPECT_EQ(live(instance_), counted);
      ++failures;
      return true;
    };
    uint64_t passed = 0;
    for (uint64_t step = 1; passed < 8 && step < 200; step += kSanitized ? 2 : 1) {
      SCOPED_TRACE(step);
      const bool down = fails(step, [&] { return group.sleep(sleep_in(content)); });
      if (down) {
        expect_kept(buffers);
        EXPECT_OK(group.sleep(sleep_in(content)));
      }
      const bool up = fails(step, [&] { return group.wake(); });
      if (up) {
        EXPECT_OK(group.wake());
      }
      expect_kept(buffers);
      passed = down || up ? 0 : passed + 1;
    }
    EXPECT_EQ(passed, 8u);
    EXPECT_GE(failures, 6u);
  }
}

// The call fails at some point, and nothing gives memory again to what it put to sleep before.
TEST_F(Sleep, buf_21_what_cannot_be_woken_has_failed) {
  if (!Faults::available()) SKIP_RULE("no step of a real driver can be made to fail");
  const Group group = make_group();
  const std::vector<Buffer> buffers = members(group, 3);
  Faults faults(instance_);
  uint64_t failed = 0;
  bool passed = false;
  for (uint64_t step = 1; !passed && step < 200; ++step) {
    SCOPED_TRACE(step);
    Progress down;
    if (on_host()) {
      faults.fail_step(step, true);
    } else {
      constexpr int kOutOfMemory = 2;
      Faults::fail_driver_call("cuMemCreate", kOutOfMemory, true);
      down.cancel_at = step - 1;
    }
    const gpumem_status status = group.sleep(down.in(sleep_desc(GPUMEM_CONTENT_PINNED)));
    const std::string message = last_error().message;
    faults.off();
    passed = status == GPUMEM_SUCCESS;
    const gpumem_group_info info = group.info();
    EXPECT_EQ(info.awake_count + info.failed_count + info.asleep_count, 3u);
    EXPECT_TRUE(passed || info.asleep_count == 0) << info.asleep_count;
    for (uint32_t i = 0; i < buffers.size(); ++i) {
      const gpumem_buffer_info now = buffers[i].info();
      if (now.state == GPUMEM_BUFFER_STATE_AWAKE) expect_kept(buffers[i], i);
      if (now.state != GPUMEM_BUFFER_STATE_FAILED) continue;
      ++failed;
      EXPECT_EQ(now.stored_size, 2 * unit_);
      EXPECT_NE(message.find(std::to_string(info.failed_count)), std::string::npos) << message;
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, buffers[i].resize(unit_));
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, buffers[i].sleep(GPUMEM_CONTENT_DROP));
    }
    EXPECT_OK(group.wake());
    EXPECT_EQ(group.info().awake_count, 3u);
    expect_kept(buffers);
  }
  EXPECT_TRUE(passed);
  EXPECT_GT(failed, 0u) << "memory was given back after all that can fail";
}

// Also content that nobody wants to keep stays until the call cannot fail any more.
TEST_F(Sleep, buf_21_a_failing_step_drops_no_content) {
  if (!Faults::available()) SKIP_RULE("no step of a real driver can be made to fail");
  const Group group = make_group();
  const std::vector<Buffer> buffers = members(group, 2);
  constexpr int kNotPermitted = 800;
  const auto counted = live(instance_);
  Faults faults(instance_);
  for (const gpumem_content content : {GPUMEM_CONTENT_DROP, GPUMEM_CONTENT_ZERO}) {
    SCOPED_TRACE(content);
    if (content == GPUMEM_CONTENT_ZERO && !on_host()) break;  // filling blocks of this size takes seconds
    uint64_t failures = 0;
    uint64_t passed = 0;
    for (uint64_t step = 1; passed < 4 && step < 100; ++step) {
      SCOPED_TRACE(step);
      const auto before = infos(buffers);
      if (on_host()) {
        faults.fail_step(step);
      } else {
        faults.fail_driver_calls("*", kNotPermitted, step, 4);  // the next tries too
      }
      const gpumem_status status = group.sleep(content);
      faults.off();
      if (status == GPUMEM_SUCCESS) {
        ++passed;
        EXPECT_OK(group.wake());
        for (uint32_t i = 0; i < buffers.size(); ++i)
          write(buffers[i], i);
        continue;
      }
      passed = 0;
      ++failures;
      if (group.info().failed_count != 0) {
        EXPECT_OK(group.wake());
      } else {
        expect_undone(buffers, before);
      }
      expect_kept(buffers);
      // Any call that changes a buffer releases what was refused.
      EXPECT_OK(gpumem_buffer_set_capacity(buffers[0], 0, why()));
      EXPECT_EQ(live(instance_), counted);
    }
    EXPECT_EQ(passed, 4u);
    EXPECT_GE(failures, 4u) << "a handle of each block is needed first";
  }
}

// The memory that was unmapped cannot be mapped again either.
TEST_F(Sleep, buf_21_a_failed_buffer_holds_its_memory) {
  if (on_host() || !Faults::available())
    SKIP_RULE("only a fake driver can refuse one call and then all others");
  const Group group = make_group();
  std::vector<Buffer> buffers = members(group, 3);
  Faults faults(instance_);
  const uint64_t free = free_bytes();
  const auto fail = [&] {
    refuse_to_undo(faults, 1);
    EXPECT_LT(group.sleep(GPUMEM_CONTENT_ZERO), 0);
    EXPECT_NE(std::strstr(last_error().message, "with their content"), nullptr) << last_error().message;
    EXPECT_EQ(group.info().failed_count, 1u);
    EXPECT_EQ(buffers[0].info().state, GPUMEM_BUFFER_STATE_FAILED);
    EXPECT_EQ(buffers[0].info().stored_size, 2 * unit_);
    EXPECT_EQ(free_bytes(), free) << "the memory is not given back";
    EXPECT_EQ(stats(instance_).live_bytes, 6 * unit_) << "nor does it cease to count";
    EXPECT_LT(group.wake(), 0);
    faults.off();
    expect_kept(buffers[1], 1);
    expect_kept(buffers[2], 2);
  };
  fail();
  EXPECT_OK(group.wake());
  expect_kept(buffers);
  EXPECT_EQ(free_bytes(), free);
  fail();
  EXPECT_OK(group.sleep(GPUMEM_CONTENT_PAGEABLE));
  EXPECT_EQ(group.info().asleep_count, 3u);
  EXPECT_EQ(free_bytes(), free + 6 * unit_);
  EXPECT_OK(group.wake());
  expect_kept(buffers);
  fail();
  buffers.erase(buffers.begin());
  EXPECT_EQ(free_bytes(), free + 2 * unit_);
}

// Its first block was mapped again, and then the driver refused to unmap that too.
TEST_F(Sleep, buf_21_a_failed_buffer_that_is_half_mapped) {
  if (on_host() || !Faults::available())
    SKIP_RULE("only a fake driver can refuse one call and then all others");
  const Group group = make_group();
  std::vector<Buffer> buffers = members(group, 3);
  Faults faults(instance_);
  const uint64_t free = free_bytes();
  const auto fail = [&] {
    refuse_to_undo(faults, 2);
    EXPECT_LT(group.sleep(GPUMEM_CONTENT_ZERO), 0);
    faults.off();
    EXPECT_EQ(buffers[0].info().state, GPUMEM_BUFFER_STATE_FAILED);
    EXPECT_EQ(free_bytes(), free);
  };
  fail();
  EXPECT_OK(group.wake());
  expect_kept(buffers);
  EXPECT_EQ(free_bytes(), free);
  fail();
  buffers.erase(buffers.begin());
  EXPECT_EQ(free_bytes(), free + 2 * unit_);
}

TEST_F(Sleep, buf_21_waking_without_memory) {
  if (!on_host()) SKIP_RULE("only the host backend has devices of a few blocks");
  const Group group = make_group();
  const std::vector<Buffer> buffers = members(group, 3);
  EXPECT_OK(group.sleep());
  {
    // There is room for the first two.
    const Physical other = create_physical(device_, physical_desc(59 * unit_));
    const auto before = infos(buffers);
    const uint64_t free = free_bytes();
    EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, group.wake());
    expect_undone(buffers, before);
    EXPECT_EQ(free_bytes(), free);
    EXPECT_OK(buffers[1].wake());
    expect_kept(buffers[1], 1);
  }
  EXPECT_OK(group.wake());
  expect_kept(buffers);
}

TEST_F(Sleep, buf_21_a_failed_buffer_can_be_destroyed) {
  if (!on_host()) SKIP_RULE("only the host backend has devices of a few blocks");
  const Group group = make_group();
  std::vector<Buffer> buffers = members(group, 3);
  // As soon as memory is given back, somebody else takes it; then the call is cancelled.
  std::vector<Physical> taken;
  const uint64_t free = free_bytes();
  Progress down;
  down.also = [&] {
    while (free_bytes() >= unit_)
      taken.push_back(create_physical(device_, physical_desc(unit_)));
    if (taken.size() * unit_ > free) down.cancel_at = 0;
  };
  const gpumem_status status = group.sleep(down.in(sleep_desc(GPUMEM_CONTENT_PAGEABLE)));
  if (status == GPUMEM_SUCCESS) {
    taken.clear();
    EXPECT_OK(group.wake());
    SKIP_RULE("all memory is given back after the last piece");
  }
  EXPECT_EQ(status, GPUMEM_ERROR_CANCELLED);
  EXPECT_GT(group.info().failed_count, 0u);
  EXPECT_EQ(buffers[0].info().state, GPUMEM_BUFFER_STATE_FAILED);
  EXPECT_EQ(buffers[0].info().stored_size, 2 * unit_);
  EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, buffers[0].wake());
  taken.clear();
  buffers.erase(buffers.begin());
  EXPECT_OK(group.wake());
  expect_kept(buffers[0], 1);
  expect_kept(buffers[1], 2);
}

// ---- BUF-22: growth ahead ----

TEST_F(Sleep, buf_22_grows_ahead) {
  const Buffer buffer = make(unit_, 16 * unit_);
  write(buffer, 1);
  EXPECT_EQ(buffer.info().ahead, 0u);
  EXPECT_OK(gpumem_buffer_set_ahead(buffer, 4 * unit_, why()));
  EXPECT_EQ(buffer.info().ahead, 4 * unit_);
  EXPECT_TRUE(until([&] { return buffer.info().capacity >= 5 * unit_; }));
  EXPECT_LE(buffer.info().capacity, 5 * unit_);
  EXPECT_EQ(buffer.info().size, unit_);
  // More than half is left.
  const uint64_t calls = driver_calls();
  const uint64_t blocks = buffer.info().block_count;
  EXPECT_OK(buffer.resize(2 * unit_));
  EXPECT_EQ(driver_calls(), calls) << "the memory was there";
  EXPECT_EQ(buffer.info().block_count, blocks);
  EXPECT_OK(buffer.resize(4 * unit_));
  EXPECT_TRUE(until([&] { return buffer.info().capacity >= 8 * unit_; }));
  EXPECT_TRUE(holds_pattern(instance_, buffer.base(), unit_, 1));
  EXPECT_OK(gpumem_buffer_set_ahead(buffer, 0, why()));
  const uint64_t capacity = buffer.info().capacity;
  EXPECT_EQ(buffer.info().ahead, 0u);
  EXPECT_OK(buffer.resize(capacity));
  std::this_thread::sleep_for(10ms);
  EXPECT_EQ(buffer.info().capacity, capacity);
  fill(buffer, 0, capacity, 0x22);
  expect(buffer, 0, capacity, 0x22);
}

TEST_F(Sleep, buf_22_ends_with_the_reservation_and_the_memory) {
  const Buffer small = make(unit_, 3 * unit_);
  const uint64_t reserved = small.info().reserved_size;
  EXPECT_OK(gpumem_buffer_set_ahead(small, 2 * reserved, why()));
  EXPECT_TRUE(until([&] { return small.info().capacity == reserved; }));
  EXPECT_OK(small.resize(reserved));
  EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE, small.resize(reserved + 1));
  EXPECT_OK(small.resize(0));
  EXPECT_OK(gpumem_buffer_set_ahead(small, 0, why()));
  EXPECT_OK(gpumem_buffer_set_capacity(small, 0, why()));
  if (!on_host()) return;  // other devices are larger
  const Physical other = create_physical(device_, physical_desc(62 * unit_));
  const Buffer large = make(unit_, 16 * unit_);
  EXPECT_OK(gpumem_buffer_set_ahead(large, 4 * unit_, why()));
  std::this_thread::sleep_for(10ms);
  EXPECT_LE(large.info().capacity, 2 * unit_);
  EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, large.resize(3 * unit_));
  EXPECT_EQ(large.info().size, unit_);
}

TEST_F(Sleep, buf_22_nothing_while_it_sleeps) {
  const Buffer buffer = make(unit_, 8 * unit_);
  write(buffer, 2);
  EXPECT_OK(buffer.sleep(GPUMEM_CONTENT_PINNED));
  const uint64_t free = free_bytes();
  EXPECT_OK(gpumem_buffer_set_ahead(buffer, 4 * unit_, why()));
  std::this_thread::sleep_for(10ms);
  EXPECT_EQ(buffer.info().capacity, unit_);
  if (on_host() || on_fake_cuda()) {
    EXPECT_EQ(free_bytes(), free);
  }
  EXPECT_OK(buffer.wake());
  expect_kept(buffer, 2);
  EXPECT_OK(buffer.resize(unit_ + 1));
  EXPECT_TRUE(until([&] { return buffer.info().capacity >= 5 * unit_; }));
  EXPECT_OK(buffer.sleep(GPUMEM_CONTENT_PINNED));
  EXPECT_OK(buffer.wake());
  EXPECT_GE(buffer.info().capacity, 5 * unit_);
}

// ---- BUF-23: without virtual memory management ----

Instance without_vmm() {
  if (on_host()) {
    gpumem_host_options host = GPUMEM_HOST_OPTIONS_INIT;
    host.masked = "vmm";
    gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
    desc.backend = GPUMEM_BACKEND_HOST;
    desc.host = &host;
    gpumem_instance tried = nullptr;
    if (gpumem_instance_open(&desc, &tried, nullptr) != GPUMEM_SUCCESS)
      skip_child("the host backend has no option that takes virtual memory management away");
    const Instance closes(tried);
  }
  return open_instance([](gpumem_instance_desc&, gpumem_host_options& host) {
    host.masked = "vmm";
    host.device_bytes = uint64_t{4} << 20;
  });
}

Buffer copyable(const Instance& instance, uint64_t size, const char* tag = nullptr,
                gpumem_group group = nullptr, gpumem_buffer_flags flags = 0) {
  gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
  desc.size = size;
  desc.flags = GPUMEM_BUFFER_COPYABLE | flags;
  desc.group = group;
  desc.tag = tag;
  gpumem_buffer buffer = nullptr;
  EXPECT_OK(gpumem_buffer_create(instance.device(), &desc, &buffer, why()));
  return Buffer(buffer);
}

CHILD(buf_23_an_ordinary_allocation) {
  const Instance instance = without_vmm();
  if (has_vmm(instance.device())) skip_child("the device has virtual memory management");
  const Folder folder;
  gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
  desc.size = 100'000;
  gpumem_buffer none = nullptr;
  for (const gpumem_location location : {GPUMEM_LOCATION_HOST, GPUMEM_LOCATION_DEVICE}) {
    desc.location = location;
    EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_buffer_create(instance.device(), &desc, &none, why()));
    for (const char* const named : {"vmm.device", "GPUMEM_BUFFER_COPYABLE"})
      EXPECT_NE(std::strstr(last_error().message, named), nullptr) << last_error().message;
  }
  desc.flags = GPUMEM_BUFFER_COPYABLE;
  desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_buffer_create(instance.device(), &desc, &none, why()));
  EXPECT_EQ(none, nullptr);

  const Buffer buffer = copyable(instance, 100'000);
  gpumem_buffer_info info = buffer.info();
  EXPECT_EQ(info.range, nullptr);
  EXPECT_EQ(info.size, 100'000u);
  EXPECT_GE(info.capacity, 100'000u);
  EXPECT_EQ(info.block_count, 1u);
  EXPECT_EQ(info.generation, 0u);
  const gpumem_pointer_info pointer = pointer_info(instance, buffer.base() + 7);
  EXPECT_EQ(pointer.kind, GPUMEM_KIND_DEVICE);
  EXPECT_EQ(pointer.buffer_id, info.buffer_id);
  put_pattern(instance, buffer.base(), 100'000, 1);
  EXPECT_OK(buffer.resize(300'000));
  EXPECT_NE(buffer.info().buffer_id, info.buffer_id);
  EXPECT_EQ(buffer.info().generation, info.generation + 1);
  EXPECT_TRUE(holds_pattern(instance, buffer.base(), 100'000, 1));
  EXPECT_OK(gpumem_buffer_set_capacity(buffer, 400'000, why()));
  info = buffer.info();
  put_pattern(instance, buffer.base(), info.capacity, 4);  // also behind the size
  EXPECT_TRUE(holds_pattern(instance, buffer.base(), info.capacity, 4));
  std::vector<uint8_t> beyond(info.capacity + 1);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_copy(instance, beyond.data(), buffer.base(), beyond.size(), nullptr, why()));
  EXPECT_OK(buffer.resize(400'000));
  EXPECT_EQ(buffer.info().base, info.base) << "the memory was there";
  EXPECT_EQ(buffer.info().generation, info.generation);
  put_pattern(instance, buffer.base(), 400'000, 2);
  EXPECT_OK(buffer.resize(50'000));
  EXPECT_TRUE(holds_pattern(instance, buffer.base(), 50'000, 2));
  const gpumem_access_desc rights = device_rights(0);
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_buffer_set_access(buffer, &rights, 1, why()));
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_buffer_set_ahead(buffer, 1, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, buffer.resize(UINT64_MAX));

  for (const gpumem_content content : {GPUMEM_CONTENT_PINNED, GPUMEM_CONTENT_PAGEABLE, GPUMEM_CONTENT_FILE,
                                       GPUMEM_CONTENT_ZERO, GPUMEM_CONTENT_DROP}) {
    put_pattern(instance, buffer.base(), 50'000, 3);
    const gpumem_buffer_info before = buffer.info();
    gpumem_sleep_desc sleep = sleep_desc(content);
    if (content == GPUMEM_CONTENT_FILE) sleep.directory = folder.path();
    EXPECT_OK(buffer.sleep(sleep));
    EXPECT_EQ(buffer.info().state, GPUMEM_BUFFER_STATE_ASLEEP);
    EXPECT_OK(buffer.wake());
    EXPECT_EQ(buffer.info().generation, before.generation + 1);
    EXPECT_EQ(buffer.info().size, 50'000u);
    if (content == GPUMEM_CONTENT_DROP) continue;
    if (content != GPUMEM_CONTENT_ZERO) {
      EXPECT_TRUE(holds_pattern(instance, buffer.base(), 50'000, 3));
      continue;
    }
    std::vector<uint8_t> bytes(50'000, 1);
    EXPECT_OK(gpumem_copy(instance, bytes.data(), buffer.base(), bytes.size(), nullptr, why()));
    EXPECT_EQ(bytes, std::vector<uint8_t>(50'000));
  }
  EXPECT_OK(buffer.resize(0));
  EXPECT_EQ(buffer.info().capacity, 0u);
  EXPECT_OK(buffer.resize(1000));
  EXPECT_OK(gpumem_fill(instance, buffer.base(), 1000, 1, 1, why()));
}

TEST_F(Sleep, buf_23_an_ordinary_allocation) {
  EXPECT_CHILD_OK(run_child("buf_23_an_ordinary_allocation", {"FAKE_CUDA_ATTRIBUTE_102=0"}));
}

CHILD(uva_5_a_buffer_in_an_ordinary_allocation) {
  const Instance instance = without_vmm();
  if (has_vmm(instance.device())) skip_child("the device has virtual memory management");
  const Buffer buffer = copyable(instance, 100'000);
  const auto expect_named = [&](uint8_t* before) {
    const gpumem_buffer_info info = buffer.info();
    for (const uint64_t offset : {uint64_t{0}, info.size - 1, info.capacity - 1})
      EXPECT_EQ(pointer_info(instance, buffer.base() + offset).buffer, buffer.get()) << offset;
    // The new allocation may reach over the old place.
    if (before < buffer.base() || before >= buffer.base() + info.capacity) {
      EXPECT_EQ(pointer_info(instance, before).buffer, nullptr);
    }
  };
  uint8_t* base = buffer.base();
  expect_named(base);
  EXPECT_OK(buffer.resize(300'000));
  expect_named(base);
  for (const gpumem_content content : {GPUMEM_CONTENT_PINNED, GPUMEM_CONTENT_ZERO}) {
    base = buffer.base();
    EXPECT_OK(buffer.sleep(content));
    EXPECT_EQ(pointer_info(instance, base).buffer, nullptr);
    EXPECT_OK(buffer.wake());
    expect_named(base);
  }
  const Memory other = alloc_device(instance.device(), 1000);
  EXPECT_EQ(pointer_info(instance, other.device()).buffer, nullptr);
}

TEST_F(Sleep, uva_5_a_buffer_in_an_ordinary_allocation) {
  EXPECT_CHILD_OK(run_child("uva_5_a_buffer_in_an_ordinary_allocation", {"FAKE_CUDA_ATTRIBUTE_102=0"}));
}

// As its range is elsewhere.
CHILD(buf_23_its_memory_is_its_own) {
  const Instance instance = without_vmm();
  if (has_vmm(instance.device())) skip_child("the device has virtual memory management");
  const Buffer buffer = copyable(instance, 100'000);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_free(instance, buffer.base(), why()));
  const gpumem_memory memory = pointer_info(instance, buffer.base()).memory;
  if (memory != nullptr) {
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_memory_destroy(memory, why()));
  }
  EXPECT_OK(gpumem_fill(instance, buffer.base(), 100'000, 1, 1, why()));
}

TEST_F(Sleep, buf_23_its_memory_is_its_own) {
  EXPECT_CHILD_OK(run_child("buf_23_its_memory_is_its_own", {"FAKE_CUDA_ATTRIBUTE_102=0"}));
}

CHILD(buf_23_failures) {
  const Instance instance = without_vmm();
  if (has_vmm(instance.device())) skip_child("the device has virtual memory management");
  const Buffer buffer = copyable(instance, 100'000);
  put_pattern(instance, buffer.base(), 100'000, 1);
  Faults faults(instance);
  uint64_t failures = 0;
  for (uint64_t step = 1; step <= 20; ++step) {
    SCOPED_TRACE(step);
    const gpumem_buffer_info before = buffer.info();
    const auto counted = live(instance);
    faults.fail_step(step);
    const gpumem_status status = buffer.resize(200'000);
    faults.off();
    if (status == GPUMEM_SUCCESS) {
      EXPECT_OK(buffer.resize(100'000));
      EXPECT_OK(gpumem_buffer_set_capacity(buffer, 0, why()));
    } else {
      expect_same(buffer.info(), before);
      ++failures;
    }
    EXPECT_EQ(live(instance), counted);
    EXPECT_TRUE(holds_pattern(instance, buffer.base(), 100'000, 1));
  }
  EXPECT_GT(failures, 0u);
  if (on_host()) {
    GatedStream stream(instance.device());
    EXPECT_OK(gpumem_fill_async(stream, buffer.base(), 1, pattern_byte(1, 0), 1, why()));
    const gpumem_buffer_info before = buffer.info();
    EXPECT_STATUS(GPUMEM_ERROR_BUSY, buffer.sleep(GPUMEM_CONTENT_PINNED, GPUMEM_SLEEP_IDLE));
    expect_same(buffer.info(), before);
    stream.open();
    stream.finish();
    EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, buffer.resize(uint64_t{5} << 20));
    expect_same(buffer.info(), before);
  }
  EXPECT_OK(buffer.resize(200'000));
  EXPECT_TRUE(holds_pattern(instance, buffer.base(), 100'000, 1));
}

TEST_F(Sleep, buf_23_failures) {
  if (!Faults::available()) SKIP_RULE("no step of a real driver can be made to fail");
  EXPECT_CHILD_OK(run_child("buf_23_failures", {"FAKE_CUDA_ATTRIBUTE_102=0"}));
}

// These are freed one after the other: what the first held is gone when the second cannot be freed.
CHILD(buf_23_dropped_content_of_several) {
  const Instance instance = without_vmm();
  if (has_vmm(instance.device())) skip_child("the device has virtual memory management");
  if (on_host()) skip_child("the host backend does not refuse to free");
  gpumem_group made = nullptr;
  EXPECT_OK(gpumem_group_create(instance, nullptr, &made, why()));
  const Group group(made);
  const Buffer first = copyable(instance, 100'000, nullptr, group);
  const Buffer second = copyable(instance, 100'000, nullptr, group);
  put_pattern(instance, second.base(), 100'000, 2);
  constexpr int kNotPermitted = 800;
  Faults faults(instance);
  for (const uint64_t refused : {uint64_t{1}, uint64_t{2}}) {
    put_pattern(instance, first.base(), 100'000, 1);
    faults.fail_driver_calls("cuMemFree", kNotPermitted, refused, 8);
    EXPECT_LT(group.sleep(GPUMEM_CONTENT_ZERO), 0);
    const bool told = std::strstr(last_error().message, "the content of 1 is gone") != nullptr;
    faults.off();
    EXPECT_EQ(group.info().awake_count, 2u);
    EXPECT_EQ(told, refused == 2) << last_error().message;
    EXPECT_EQ(holds_pattern(instance, first.base(), 100'000, 1), refused == 1);
    EXPECT_TRUE(holds_pattern(instance, second.base(), 100'000, 2));
  }
}

TEST_F(Sleep, buf_23_dropped_content_of_several) {
  EXPECT_CHILD_OK(run_child("buf_23_dropped_content_of_several", {"FAKE_CUDA_ATTRIBUTE_102=0"}));
}

CHILD(buf_25_an_ordinary_allocation) {
  const Instance instance = without_vmm();
  if (has_vmm(instance.device())) skip_child("the device has virtual memory management");
  const Buffer buffer = copyable(instance, 100'000, nullptr, nullptr, GPUMEM_BUFFER_GEOMETRIC);
  const uint64_t page = buffer.info().granularity;
  put_pattern(instance, buffer.base(), 100'000, 1);
  const uint64_t before = buffer.info().capacity;
  EXPECT_OK(buffer.resize(before + 1));
  EXPECT_EQ(buffer.info().capacity, before + (before / 8 + page - 1) / page * page);
  EXPECT_TRUE(holds_pattern(instance, buffer.base(), 100'000, 1));
}

TEST_F(Sleep, buf_25_an_ordinary_allocation) {
  EXPECT_CHILD_OK(run_child("buf_25_an_ordinary_allocation", {"FAKE_CUDA_ATTRIBUTE_102=0"}));
}

TEST_F(Sleep, buf_23_no_difference_where_there_is_vmm) {
  gpumem_buffer_desc wanted = desc(unit_, 4 * unit_);
  wanted.flags = GPUMEM_BUFFER_COPYABLE | GPUMEM_BUFFER_MOVABLE;
  const Buffer buffer = make(wanted);
  const gpumem_buffer_info before = buffer.info();
  EXPECT_NE(before.range, nullptr);
  EXPECT_OK(buffer.resize(3 * unit_));
  EXPECT_EQ(buffer.info().base, before.base);
  EXPECT_OK(gpumem_buffer_set_ahead(buffer, 0, why()));
}

// ---- BUF-12, BUF-24: often, and from several threads ----

TEST_F(Sleep, buf_12_many_nights_of_a_group) {
  const Group group = make_group();
  const std::vector<Buffer> buffers = members(group, 2);
  EXPECT_OK(group.sleep());  // streams for the copies stay with the instance
  EXPECT_OK(group.wake());
  const auto before = live(instance_);
  const Snapshot snapshot = Snapshot::take();
  for (int night = 0; night < 18; ++night) {
    ASSERT_OK(group.sleep(sleep_in(kKept[night % 3])));
    ASSERT_OK(group.wake(nullptr, night % 2 == 0 ? UINT64_MAX : 0));
  }
  expect_kept(buffers);
  EXPECT_EQ(live(instance_), before);
  EXPECT_TRUE(nothing_left_since(snapshot));
}

TEST_F(Sleep, buf_24_asked_while_it_sleeps_and_wakes) {
  const Group group = make_group();
  const std::vector<Buffer> buffers = members(group, 2);
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  others.emplace_back([&] {
    while (!stop) {
      const gpumem_buffer_info info = buffers[0].info();
      EXPECT_EQ(info.size, 2 * unit_);
      EXPECT_GE(info.capacity, info.size);
      EXPECT_LE(info.stored_size, info.store_capacity);
      const gpumem_group_info all = group.info();
      EXPECT_EQ(all.awake_count + all.asleep_count + all.failed_count, 2u);
    }
  });
  // Comes in between: refused, or done.
  others.emplace_back([&] {
    while (!stop) {
      EXPECT_STATUS_IN(buffers[1].resize(3 * unit_), GPUMEM_SUCCESS, GPUMEM_ERROR_INVALID_STATE);
      EXPECT_STATUS_IN(buffers[1].resize(2 * unit_), GPUMEM_SUCCESS, GPUMEM_ERROR_INVALID_STATE);
    }
  });
  // Sleeps and wakes some of the same, in another order.
  others.emplace_back([&] {
    while (!stop) {
      EXPECT_STATUS_IN(buffers[1].sleep(GPUMEM_CONTENT_PAGEABLE), GPUMEM_SUCCESS, GPUMEM_ERROR_INVALID_STATE);
      EXPECT_STATUS_IN(buffers[1].wake(), GPUMEM_SUCCESS, GPUMEM_ERROR_INVALID_STATE);
    }
  });
  for (int round = 0; round < (kSanitized ? 12 : 30); ++round) {
    EXPECT_OK(group.sleep(GPUMEM_CONTENT_PAGEABLE));
    EXPECT_OK(group.wake());
  }
  stop = true;
  for (std::thread& thread : others)
    thread.join();
  EXPECT_OK(group.wake());
  expect_kept(buffers[0], 0);
  EXPECT_TRUE(holds_pattern(instance_, buffers[1].base(), 2 * unit_, 1));
}

TEST_F(Sleep, buf_24_one_buffer_and_a_thread_that_looks) {
  const Buffer buffer = make(unit_, 4 * unit_);
  const Group group = make_group();
  // While a sleep waits for work, the buffer can be asked about.
  GatedStream stream(device_);
  EXPECT_OK(gpumem_fill_async(stream, buffer.base(), unit_, 1, 1, why()));
  std::future<gpumem_status> asleep =
      std::async(std::launch::async, [&] { return buffer.sleep(GPUMEM_CONTENT_DROP); });
  std::this_thread::sleep_for(5ms);
  EXPECT_EQ(buffer.info().size, unit_);
  uint64_t number = 0;
  const gpumem_status noted = gpumem_buffer_note_registration(buffer, "card", &number, nullptr);
  if (noted == GPUMEM_SUCCESS) {
    EXPECT_OK(gpumem_buffer_forget_registration(buffer, number, why()));
  } else {
    EXPECT_EQ(noted, GPUMEM_ERROR_INVALID_STATE);
  }
  stream.open();
  EXPECT_EQ(asleep.get(), GPUMEM_SUCCESS);
}

// ---- BUF-26: who may use its memory meanwhile ----

// An open file without a name that holds so many equal bytes.
class SmallFile {
 public:
  SmallFile(uint64_t size, uint8_t value) : file_(std::tmpfile()) {
    const std::vector<uint8_t> bytes(size, value);
    EXPECT_EQ(std::fwrite(bytes.data(), 1, size, file_), size);
    EXPECT_EQ(std::fflush(file_), 0);
  }
  SmallFile(const SmallFile&) = delete;
  SmallFile& operator=(const SmallFile&) = delete;
  ~SmallFile() { std::fclose(file_); }
  gpumem_copy_file_desc into(void* pointer, uint64_t size) const {
    gpumem_copy_file_desc desc = GPUMEM_COPY_FILE_DESC_INIT;
    desc.file_descriptor = fileno(file_);
    desc.pointer = pointer;
    desc.size = size;
    return desc;
  }

 private:
  std::FILE* file_;
};

// A thread that reads a file into memory, and stands still before the first byte until open().
class HeldCopy {
 public:
  HeldCopy(gpumem_instance instance, void* pointer, uint64_t size, uint8_t value)
      : file_(size, value), thread_([=, this] {
          gpumem_copy_file_desc desc = file_.into(pointer, size);
          desc.progress = hold;
          desc.user_data = this;
          return gpumem_copy_file(instance, &desc, nullptr, why());
        }) {
    reached_.get_future().wait();
  }
  HeldCopy(const HeldCopy&) = delete;
  HeldCopy& operator=(const HeldCopy&) = delete;
  bool copied() const { return copied_; }
  void open() { gate_.set_value(); }
  gpumem_status finish() { return thread_.get(); }

 private:
  static int32_t GPUMEM_CALL hold(void* user_data, uint64_t done, uint64_t /*total*/) {
    auto* const self = static_cast<HeldCopy*>(user_data);
    if (done != 0) {
      self->copied_ = true;
    } else {
      self->reached_.set_value();
      self->gate_.get_future().wait();
    }
    return 0;
  }

  const SmallFile file_;
  std::promise<void> reached_;
  std::promise<void> gate_;
  std::atomic<bool> copied_{false};
  struct Thread {
    template <class F>
    explicit Thread(F body) : future(std::async(std::launch::async, body)) {}
    gpumem_status get() { return future.get(); }
    std::future<gpumem_status> future;
  } thread_;
};

// Each way to read and write bytes through the library, on a thread of its own.
void expect_refused(gpumem_instance instance, gpumem_stream stream, uint8_t* bytes) {
  std::thread other([=] {
    constexpr uint64_t kSize = 64;
    uint8_t ours[kSize] = {};
    const auto refused = [](gpumem_status status) {
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, status);
      EXPECT_NE(std::strstr(last_error().message, "in a buffer that is asleep"), nullptr)
          << last_error().message;
    };
    refused(gpumem_copy(instance, bytes, ours, kSize, nullptr, why()));
    refused(gpumem_copy(instance, ours, bytes, kSize, nullptr, why()));
    refused(gpumem_copy_async(stream, bytes, ours, kSize, nullptr, why()));
    refused(gpumem_copy_async(stream, ours, bytes, kSize, nullptr, why()));
    refused(gpumem_copy_2d(instance, bytes, 16, ours, 16, 8, 4, nullptr, why()));
    gpumem_copy_region region = GPUMEM_COPY_REGION_INIT;
    region.destination.pointer = ours;
    region.source.pointer = bytes;
    region.width = kSize;
    refused(gpumem_copy_regions(instance, &region, 1, nullptr, why()));
    refused(gpumem_copy_regions_async(stream, &region, 1, nullptr, why()));
    refused(gpumem_fill(instance, bytes, kSize, 1, 1, why()));
    refused(gpumem_fill_async(stream, bytes, kSize, 1, 1, why()));
    refused(gpumem_fill_2d(instance, bytes, 16, 8, 4, 1, 1, why()));
    const SmallFile file(kSize, 1);
    const gpumem_copy_file_desc desc = file.into(bytes, kSize);
    refused(gpumem_copy_file(instance, &desc, nullptr, why()));
    refused(gpumem_stream_write_value(stream, bytes, 1, 4, why()));
    refused(gpumem_stream_wait_value(stream, bytes, 0, 4, GPUMEM_WAIT_GEQ, why()));
  });
  other.join();
}

// Reads bytes and writes them again.
void expect_usable(gpumem_instance instance, gpumem_stream stream, uint8_t* bytes) {
  std::thread other([=] {
    uint8_t ours[64] = {};
    EXPECT_OK(gpumem_copy(instance, ours, bytes, sizeof ours, nullptr, why()));
    EXPECT_OK(gpumem_copy(instance, bytes, ours, sizeof ours, nullptr, why()));
    EXPECT_OK(gpumem_copy_async(stream, bytes, ours, sizeof ours, nullptr, why()));
    EXPECT_OK(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()));
  });
  other.join();
}

TEST_F(Sleep, buf_26_refused_until_it_is_awake) {
  const Group group = make_group();
  const std::vector<Buffer> buffers = members(group, 2);
  const Buffer outside = make(unit_, unit_);
  const Stream stream = create_stream(device_);
  for (const gpumem_content content : {GPUMEM_CONTENT_PINNED, GPUMEM_CONTENT_PAGEABLE, GPUMEM_CONTENT_FILE,
                                       GPUMEM_CONTENT_ZERO, GPUMEM_CONTENT_DROP}) {
    SCOPED_TRACE(content);
    for (uint32_t i = 0; i < 2; ++i)
      write(buffers[i], i);
    const auto look = [&] {
      for (const Buffer& buffer : buffers)
        expect_refused(instance_, stream, buffer.base() + unit_ - 32);
      expect_usable(instance_, stream, outside.base());
    };
    Progress down;
    down.also = look;
    EXPECT_OK(group.sleep(down.in(sleep_in(content))));
    EXPECT_GE(down.told.size(), 3u);
    look();
    Progress up;
    up.also = look;
    const gpumem_wake_desc wake = up.in(wake_desc(0));
    EXPECT_OK(gpumem_group_wake(group, &wake, why()));
    EXPECT_GE(up.told.size(), 3u);
    if (std::count(std::begin(kKept), std::end(kKept), content) != 0) expect_kept(buffers);
    for (const Buffer& buffer : buffers)
      expect_usable(instance_, stream, buffer.base());
  }
}

TEST_F(Sleep, buf_26_usable_again_after_a_call_that_fails) {
  const Buffer buffer = make(2 * unit_, 4 * unit_);
  const Stream stream = create_stream(device_);
  write(buffer, 1);
  for (const size_t piece : {size_t{0}, size_t{1}}) {
    Progress down;
    down.cancel_at = piece;
    const gpumem_status status = buffer.sleep(down.in(sleep_desc(GPUMEM_CONTENT_PINNED)));
    if (status == GPUMEM_SUCCESS) {  // it was the last piece
      EXPECT_OK(buffer.wake());
    } else {
      EXPECT_EQ(status, GPUMEM_ERROR_CANCELLED);
    }
    expect_usable(instance_, stream, buffer.base());
  }
  uint64_t number = 0;
  EXPECT_OK(gpumem_buffer_note_registration(buffer, "card", &number, why()));
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, buffer.sleep(GPUMEM_CONTENT_PINNED));
  expect_usable(instance_, stream, buffer.base());
  EXPECT_OK(gpumem_buffer_forget_registration(buffer, number, why()));

  EXPECT_OK(buffer.sleep(GPUMEM_CONTENT_PINNED));
  Progress up;
  up.cancel_at = 0;
  const gpumem_wake_desc wake = up.in(wake_desc(0));
  EXPECT_STATUS(GPUMEM_ERROR_CANCELLED, gpumem_buffer_wake(buffer, &wake, why()));
  expect_refused(instance_, stream, buffer.base());
  EXPECT_OK(buffer.wake());
  expect_usable(instance_, stream, buffer.base());
  expect_kept(buffer, 1);
}

// The time to stop using it, and the first one to use it again.
TEST_F(Callbacks, buf_26_usable_in_callbacks) {
  const Stream stream = create_stream(device_);
  const auto use = [&](gpumem_buffer) {
    for (const Buffer& buffer : buffers_)
      expect_usable(instance_, stream, buffer.base());
  };
  for (Told& told : told_)
    told.before_sleep = told.after_wake = use;
  EXPECT_OK(group_.sleep());
  EXPECT_OK(group_.wake());
  told_[2].refuses = true;
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, group_.sleep());
  EXPECT_EQ(log_.size(), 3u + 3u + 3u + 2u);
  expect_kept(buffers_);
}

TEST_F(Sleep, buf_26_a_copy_under_way_is_waited_for) {
  const Buffer buffer = make(unit_, 4 * unit_);
  for (const gpumem_content content : kKept) {
    SCOPED_TRACE(content);
    const auto value = static_cast<uint8_t>(0x40 + content);
    fill(buffer, 0, unit_, 0);
    HeldCopy copy(instance_, buffer.base(), unit_, value);
    Progress down;
    down.also = [&] { EXPECT_TRUE(copy.copied()) << "before the copy that was under way"; };
    std::promise<pid_t> started;
    std::future<gpumem_status> slept = std::async(std::launch::async, [&] {
      down.caller = std::this_thread::get_id();
      started.set_value(gettid());
      return buffer.sleep(down.in(sleep_in(content)));
    });
    gpumem::test::wait_until_asleep(started.get_future().get());
    EXPECT_EQ(buffer.info().state, GPUMEM_BUFFER_STATE_AWAKE);
    copy.open();
    EXPECT_EQ(copy.finish(), GPUMEM_SUCCESS);
    EXPECT_EQ(slept.get(), GPUMEM_SUCCESS);
    EXPECT_OK(buffer.wake());
    expect(buffer, 0, unit_, value);
  }
}

// A call of the thread itself cannot be waited for.
TEST_F(Sleep, buf_26_not_inside_a_copy_of_the_same_thread) {
  const Buffer buffer = make(unit_, 4 * unit_);
  const SmallFile file(unit_, 7);
  Progress copying;
  copying.also = [&] { EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, buffer.sleep(GPUMEM_CONTENT_PINNED)); };
  const gpumem_copy_file_desc desc = copying.in(file.into(buffer.base(), unit_));
  EXPECT_OK(gpumem_copy_file(instance_, &desc, nullptr, why()));
  EXPECT_GE(copying.told.size(), 2u);
  expect(buffer, 0, unit_, 7);
}

// Writes that were reported done are there, whatever sleeps and wakes meanwhile, and reads never see anything
// else.
TEST_F(Sleep, buf_26_no_write_is_lost) {
  const Buffer buffer = make(unit_, 4 * unit_);
  fill(buffer, 0, unit_, 0);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> written{0};
  std::thread writer([&] {
    uint64_t last = 0;
    auto* const word = buffer.base() + unit_ - sizeof last;
    for (uint64_t next = 1; !stop; ++next) {
      const gpumem_status wrote = gpumem_copy(instance_, word, &next, sizeof next, nullptr, why());
      EXPECT_STATUS_IN(wrote, GPUMEM_SUCCESS, GPUMEM_ERROR_INVALID_STATE);
      if (wrote == GPUMEM_SUCCESS) {
        last = next;
        written = last;
      }
      uint64_t read = UINT64_MAX;
      const gpumem_status got = gpumem_copy(instance_, &read, word, sizeof read, nullptr, why());
      EXPECT_STATUS_IN(got, GPUMEM_SUCCESS, GPUMEM_ERROR_INVALID_STATE);
      if (got == GPUMEM_SUCCESS && read != last) {
        ADD_FAILURE() << "the last write was " << last << ", but " << read << " is there";
        return;
      }
    }
  });
  for (int round = 0; round < (kThreadSanitizer ? 12 : 24); ++round) {
    EXPECT_OK(buffer.sleep(sleep_in(kKept[round % 3])));
    const uint64_t before = written;
    EXPECT_OK(buffer.wake());
    EXPECT_TRUE(until([&] { return written != before || ::testing::Test::HasFailure(); }));
  }
  stop = true;
  writer.join();
}

TEST_F(Sleep, buf_26_open_when_its_destruction_fails) {
  if (on_host() || !Faults::available()) SKIP_RULE("only a fake driver refuses to give addresses back");
  const Buffer buffer = make(unit_, 2 * unit_);
  EXPECT_OK(buffer.sleep(GPUMEM_CONTENT_DROP));
  constexpr int kNotPermitted = 800;
  {
    Faults faults(instance_);
    faults.fail_driver_call("cuMemAddressFree", kNotPermitted, true);
    EXPECT_LT(gpumem_buffer_destroy(buffer, why()), 0);
  }
  EXPECT_EQ(buffer.info().state, GPUMEM_BUFFER_STATE_AWAKE);
  EXPECT_OK(buffer.resize(unit_));
  EXPECT_OK(gpumem_fill(instance_, buffer.base(), unit_, 1, 1, why()));
}

CHILD(buf_26_an_ordinary_allocation) {
  const Instance instance = without_vmm();
  if (has_vmm(instance.device())) skip_child("the device has virtual memory management");
  constexpr uint64_t kSize = 100'000;
  const Buffer buffer = copyable(instance, kSize);
  const Stream stream = create_stream(instance.device());
  put_pattern(instance, buffer.base(), kSize, 1);
  Progress down;
  down.also = [&] {
    if (down.told.size() == 1) expect_refused(instance, stream, buffer.base());
  };
  uint8_t* const before = buffer.base();
  EXPECT_OK(buffer.sleep(down.in(sleep_desc(GPUMEM_CONTENT_PAGEABLE))));
  // Its memory is gone, and its address with that.
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_fill(instance, before, 64, 1, 1, why()));
  Progress up;
  up.also = [&] {
    if (buffer.base() != nullptr) expect_refused(instance, stream, buffer.base());
  };
  const gpumem_wake_desc wake = up.in(wake_desc(0));
  EXPECT_OK(gpumem_buffer_wake(buffer, &wake, why()));
  EXPECT_TRUE(holds_pattern(instance, buffer.base(), kSize, 1));
  expect_usable(instance, stream, buffer.base());

  // Growing copies too.
  uint8_t value = 0x50;
  for (const uint64_t size : {2 * kSize, kSize}) {
    HeldCopy copy(instance, buffer.base(), kSize, ++value);
    std::promise<pid_t> started;
    std::future<gpumem_status> resized = std::async(std::launch::async, [&] {
      started.set_value(gettid());
      return buffer.resize(size);
    });
    gpumem::test::wait_until_asleep(started.get_future().get());
    copy.open();
    EXPECT_EQ(copy.finish(), GPUMEM_SUCCESS);
    EXPECT_EQ(resized.get(), GPUMEM_SUCCESS);
    EXPECT_TRUE(holds_only(instance, buffer.base(), kSize, value));
    expect_usable(instance, stream, buffer.base());
  }
}

// It waits for what streams still write, which would be lost behind the copy.
CHILD(buf_23_work_of_streams_is_waited_for) {
  const Instance instance = without_vmm();
  if (has_vmm(instance.device())) skip_child("the device has virtual memory management");
  constexpr uint64_t kSize = 100'000;
  const Buffer buffer = copyable(instance, kSize);
  uint8_t value = 0x50;
  for (const uint64_t size : {2 * kSize, kSize}) {
    GatedStream stream(instance.device());
    EXPECT_OK(gpumem_fill_async(stream, buffer.base(), kSize, ++value, 1, why()));
    std::promise<pid_t> started;
    std::future<gpumem_status> resized = std::async(std::launch::async, [&] {
      started.set_value(gettid());
      return buffer.resize(size);
    });
    gpumem::test::wait_until_asleep(started.get_future().get());
    stream.open();
    EXPECT_EQ(resized.get(), GPUMEM_SUCCESS);
    EXPECT_EQ(buffer.info().size, size);
    stream.finish();
    EXPECT_TRUE(holds_only(instance, buffer.base(), kSize, value));
  }
}

TEST_F(Sleep, buf_23_work_of_streams_is_waited_for) {
  EXPECT_CHILD_OK(run_child("buf_23_work_of_streams_is_waited_for", {"FAKE_CUDA_ATTRIBUTE_102=0"}));
}

TEST_F(Sleep, buf_26_an_ordinary_allocation) {
  EXPECT_CHILD_OK(run_child("buf_26_an_ordinary_allocation", {"FAKE_CUDA_ATTRIBUTE_102=0"}));
}

}  // namespace
}  // namespace conformance
