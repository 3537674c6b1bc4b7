// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Threads that meet: every call has one of the outcomes that some order of the calls would have given it, and
// none is held up by a call that it does not depend on. A deadlock shows as a test that does not end.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "harness.h"
#include "vmm.h"

namespace conformance {
namespace {

constexpr uint64_t kKiB = 1024;

class Race : public Conformance {};

// Runs `other` beside `self`, from the same moment on.
template <class Self, class Other>
void together(Self self, Other other) {
  std::atomic<int> ready{0};
  const auto meet = [&] {
    for (++ready; ready < 2;)
      std::this_thread::yield();
  };
  std::thread thread([&] {
    meet();
    other();
  });
  meet();
  self();
  thread.join();
}

TEST_F(Race, com_24_two_destroy_while_one_closes) {
  const Stream lives = create_stream(device_);  // so that every close is refused
  std::atomic<bool> stop{false};
  std::thread closer([&] {
    while (!stop) {
      EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_instance_close(instance_, GPUMEM_CLOSE_CHECK, nullptr, why()));
    }
  });
  constexpr int kRounds = 3000;
  std::atomic<gpumem_event> shared{nullptr};
  std::atomic<int> made{0};
  std::atomic<int> done{0};
  gpumem_status other = GPUMEM_SUCCESS;
  std::thread second([&] {
    for (int round = 0; round < kRounds; ++round) {
      while (made == round)
        std::this_thread::yield();
      other = gpumem_event_destroy(shared, nullptr);
      ++done;
    }
  });
  for (int round = 0; round < kRounds; ++round) {
    shared = create_event(device_).release();
    ++made;
    const gpumem_status own = gpumem_event_destroy(shared, nullptr);
    while (done == round)
      std::this_thread::yield();
    EXPECT_EQ(own + other, GPUMEM_SUCCESS + GPUMEM_ERROR_STALE_HANDLE) << own << " and " << other;
  }
  second.join();
  stop = true;
  closer.join();
}

TEST_F(Race, com_24_a_refused_close_holds_up_nobody) {
  const gpumem_event event = create_event(device_).release();
  GatedStream stream(device_);
  ASSERT_OK(gpumem_event_record(event, stream, why()));
  std::atomic<bool> begun{false};
  std::thread waiter([&] {
    begun = true;
    EXPECT_STATUS_IN(gpumem_event_synchronize(event, GPUMEM_TIMEOUT_INFINITE, why()), GPUMEM_SUCCESS,
                     GPUMEM_ERROR_STALE_HANDLE);
  });
  while (!begun)
    std::this_thread::yield();
  // Most likely inside the call then; otherwise less is tested.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::thread destroyer([&] { EXPECT_OK(gpumem_event_destroy(event, why())); });
  while (gpumem_event_query(event, nullptr) != GPUMEM_ERROR_STALE_HANDLE)
    std::this_thread::yield();
  // The waiter waits for the gate and the destroyer for the waiter; nobody else waits.
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_instance_close(instance_, GPUMEM_CLOSE_CHECK, nullptr, why()));
  create_event(device_).destroy();
  stream.finish();
  waiter.join();
  destroyer.join();
}

TEST_F(Race, com_24_force_lets_no_work_come_later) {
  const auto count = [](void* counter) { ++*static_cast<std::atomic<int>*>(counter); };
  for (int round = 0; round < 20; ++round) {
    const gpumem_instance instance = open_instance().release();
    gpumem_device device = nullptr;
    ASSERT_OK(gpumem_device_get(instance, 0, &device, why()));
    const gpumem_stream stream = create_stream(device).release();
    const gpumem_memory memory = alloc_pinned(device, 4 * kKiB).release();
    gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
    ASSERT_OK(gpumem_memory_get_info(memory, &info, why()));
    const bool has_values = capability(device, GPUMEM_CAPABILITY_STREAM_VALUE32).value != GPUMEM_ANSWER_NO;
    std::atomic<int> ran{0};
    std::atomic<int> launched{0};
    std::thread launcher([&] {
      // Not more than a few at a time, so that close has not to wait for thousands.
      for (gpumem_status status = GPUMEM_SUCCESS; status == GPUMEM_SUCCESS;) {
        if (launched - ran > 3) {
          std::this_thread::yield();
          continue;
        }
        status = gpumem_stream_launch_host_function(stream, count, &ran, why());
        EXPECT_STATUS_IN(status, GPUMEM_SUCCESS, GPUMEM_ERROR_CLOSED);
        if (status == GPUMEM_SUCCESS) ++launched;
      }
    });
    std::thread writer([&] {
      for (gpumem_status status = GPUMEM_SUCCESS; has_values && status == GPUMEM_SUCCESS;) {
        status = gpumem_stream_write_value(stream, info.host_pointer, 1, 4, why());
        EXPECT_STATUS_IN(status, GPUMEM_SUCCESS, GPUMEM_ERROR_CLOSED);
        if (launched == ran) std::this_thread::yield();
      }
    });
    while (launched < 10)
      std::this_thread::yield();
    uint64_t destroyed = 0;
    EXPECT_OK(gpumem_instance_close(instance, GPUMEM_CLOSE_FORCE, &destroyed, why()));
    const int at_the_end = ran;
    EXPECT_EQ(destroyed, 2u);
    launcher.join();
    writer.join();
    EXPECT_EQ(at_the_end, launched);
    EXPECT_EQ(ran, launched);
  }
}

TEST_F(Race, com_12_two_free_one_pointer) {
  for (int round = 0; round < 300; ++round) {
    void* pointer = nullptr;
    ASSERT_OK(gpumem_malloc(device_, GPUMEM_KIND_DEVICE, kKiB, &pointer, why()));
    gpumem_status one = GPUMEM_SUCCESS;
    gpumem_status two = GPUMEM_SUCCESS;
    together([&] { one = gpumem_free(instance_, pointer, nullptr); },
             [&] { two = gpumem_free(instance_, pointer, nullptr); });
    EXPECT_EQ(one + two, GPUMEM_SUCCESS + GPUMEM_ERROR_NOT_FOUND) << one << " and " << two;
  }
}

TEST_F(Race, pin_11_while_an_unregister_is_refused) {
  if (!on_host()) SKIP_RULE("only the host backend refuses to unregister memory that is in use");
  Pages pages(4 * page_size());
  const Memory target = alloc_device(device_, pages.size());
  ASSERT_OK(gpumem_register(device_, pages.get(), pages.size(), 0, why()));
  GatedStream stream(device_);
  ASSERT_OK(gpumem_copy_async(stream, target.device(), pages.get(), pages.size(), nullptr, why()));
  std::atomic<bool> stop{false};
  std::thread unregisterer([&] {
    while (!stop)
      EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_unregister(instance_, pages.get(), why()));
  });
  for (int round = 0; round < 3000; ++round) {
    // The whole, and a part that begins elsewhere.
    EXPECT_STATUS(GPUMEM_ERROR_ALREADY_EXISTS, gpumem_register(device_, pages.get(), pages.size(), 0, why()));
    EXPECT_STATUS(GPUMEM_ERROR_ALREADY_EXISTS,
                  gpumem_register(device_, pages.get() + page_size(), page_size(), 0, why()));
  }
  stop = true;
  unregisterer.join();
  stream.finish();
  EXPECT_OK(gpumem_unregister(instance_, pages.get(), why()));
}

TEST_F(Race, pin_11_two_register_one_page) {
  Pages pages(page_size());
  const auto come_and_go = [&] {
    for (int round = 0; round < 3000; ++round) {
      const gpumem_status status = gpumem_register(device_, pages.get(), pages.size(), 0, why());
      EXPECT_STATUS_IN(status, GPUMEM_SUCCESS, GPUMEM_ERROR_ALREADY_EXISTS);
      if (status == GPUMEM_SUCCESS) {
        EXPECT_OK(gpumem_unregister(instance_, pages.get(), why()));
      }
    }
  };
  together(come_and_go, come_and_go);
}

TEST_F(Race, com_10_a_refused_destroy_hides_nothing) {
  if (!on_host()) SKIP_RULE("only the host backend refuses to free memory that is in use");
  const Memory memory = alloc_pinned(device_, kKiB);
  const uint8_t* const address = memory.host();
  GatedStream stream(device_);
  ASSERT_OK(gpumem_fill_async(stream, memory.host(), kKiB, 1, 1, why()));
  std::atomic<bool> stop{false};
  std::thread destroyer([&] {
    while (!stop) {
      EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_memory_destroy(memory, why()));
      EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_free(instance_, const_cast<uint8_t*>(address), why()));
    }
  });
  for (int round = 0; round < 3000; ++round) {
    EXPECT_EQ(memory.info().kind, GPUMEM_KIND_PINNED);
    EXPECT_EQ(pointer_info(instance_, address).kind, GPUMEM_KIND_PINNED);
  }
  stop = true;
  destroyer.join();
  stream.finish();
}

TEST_F(Race, com_10_a_copy_while_its_bytes_are_registered) {
  if (on_cuda()) SKIP_RULE("a driver sees the bytes unregistered under a copy of ordinary memory");
  Pages pages(4 * page_size());
  const Memory target = alloc_device(device_, pages.size());
  std::atomic<bool> stop{false};
  std::thread registerer([&] {
    while (!stop) {
      EXPECT_OK(gpumem_register(device_, pages.get(), pages.size(), 0, why()));
      EXPECT_OK(gpumem_unregister(instance_, pages.get(), why()));
    }
  });
  for (int round = 0; round < 3000; ++round) {
    EXPECT_OK(gpumem_copy(instance_, target.device(), pages.get(), pages.size(), nullptr, why()));
  }
  stop = true;
  registerer.join();
}

// The system hands out the addresses of a range as soon as they are free, before the release has returned.
TEST_F(Race, com_10_ordinary_memory_where_a_range_has_just_been) {
  if (!on_host()) SKIP_RULE("a driver keeps the addresses of its reservations");
  gpumem_range_desc desc = range_desc(unit_of(device_, physical_desc(0)));
  // Far below all else, so that nobody else is given these addresses.
  desc.address = reserve(instance_, desc).base() - (uint64_t{64} << 30);
  desc.flags = GPUMEM_RANGE_FIXED;
  ASSERT_EQ(reserve(instance_, desc).base(), desc.address);
  const Memory target = alloc_device(device_, page_size());
  std::atomic<bool> stop{false};
  std::thread releaser([&] {
    while (!stop) {
      gpumem_range range = nullptr;
      const gpumem_status status = gpumem_range_reserve(instance_, &desc, &range, why());
      if (status == GPUMEM_ERROR_ALREADY_EXISTS) continue;
      EXPECT_OK(status);
      EXPECT_OK(gpumem_range_release(range, why()));
    }
  });
  for (int met = 0; met < 3000 && !HasFailure();) {
    void* const page = mmap(desc.address, page_size(), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (page == MAP_FAILED) continue;
    ++met;
    EXPECT_OK(gpumem_copy(instance_, target.device(), page, page_size(), nullptr, why()));
    EXPECT_EQ(pointer_info(instance_, page).kind, GPUMEM_KIND_PAGEABLE);
    munmap(page, page_size());
  }
  stop = true;
  releaser.join();
}

TEST_F(Race, com_21_a_trial_holds_up_no_other_call) {
  // The driver lets the trial of a registration wait for the device; the call that ends the wait must not
  // wait for the trial.
  if (on_cuda() && !on_fake_cuda()) SKIP_RULE("a driver may hold up other calls by itself");
  const Instance fresh = open_instance();
  const gpumem_device device = fresh.device();
  const Memory pinned = alloc_pinned(device, kKiB);
  Pages pages(page_size());
  GatedStream stream(device);
  std::thread registerer([&] {
    EXPECT_OK(gpumem_register(device, pages.get(), pages.size(), 0, why()));
    EXPECT_OK(gpumem_unregister(fresh, pages.get(), why()));
  });
  for (int round = 0; round < 100; ++round)
    EXPECT_OK(gpumem_fill(fresh, pinned.host(), kKiB, 1, 1, why()));
  stream.finish();
  registerer.join();
}

struct SlowListener {
  static void listen(void* user_data, gpumem_log_level, const char*) {
    ++*static_cast<std::atomic<int>*>(user_data);
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
};

TEST_F(Race, com_27_the_log_function_changes_amid_messages) {
  std::atomic<int> heard{0};
  std::atomic<bool> stop{false};
  ASSERT_OK(gpumem_log_set_function(SlowListener::listen, &heard, GPUMEM_LOG_DEBUG, why()));
  std::vector<std::thread> talkers;
  for (int i = 0; i < 4; ++i) {
    talkers.emplace_back([&] {
      while (!stop)
        gpumem_device_get(nullptr, 0, nullptr, nullptr);
    });
  }
  while (heard < 20)
    std::this_thread::yield();
  EXPECT_OK(gpumem_log_set_function(nullptr, nullptr, 0, why()));
  const int at_the_end = heard;
  stop = true;
  for (std::thread& talker : talkers)
    talker.join();
  EXPECT_EQ(heard, at_the_end);
}

TEST_F(Race, str_20_force_leaves_a_capture_alone) {
  REQUIRE_FOREIGN();
  if (on_host()) SKIP_RULE("a native stream of the host backend belongs to one instance");
  NativeStream native(device_);
  {
    const gpumem_instance instance = open_instance().release();
    gpumem_device device = nullptr;
    ASSERT_OK(gpumem_device_get(instance, 0, &device, why()));
    gpumem_stream adopted = nullptr;
    ASSERT_OK(gpumem_stream_wrap(device, native.get(), &adopted, why()));
    native.begin_capture(adopted);
    EXPECT_OK(gpumem_instance_close(instance, GPUMEM_CLOSE_FORCE, nullptr, why()));
  }
  gpumem_stream again = nullptr;
  ASSERT_OK(gpumem_stream_wrap(device_, native.get(), &again, why()));
  const Stream stream(again);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_stream_query(stream, why()));
  native.end_capture(stream);  // and the capture is whole
}

// Threads with streams of their own, which do everything at once with memory that one of them frees.
void race_managed(const Instance& instance, bool concurrent) {
  constexpr uint64_t kSize = 64 * kKiB;
  constexpr int kRounds = 30;
  constexpr int kCalls = 8;
  const gpumem_device device = instance.device();
  const gpumem_status hinted = concurrent ? GPUMEM_SUCCESS : GPUMEM_NO_EFFECT;
  std::atomic<uint8_t*> base{nullptr};
  std::atomic<int> round{0};
  std::atomic<int> done{0};
  // Every thread does its part once in each round.
  const auto in_each_round = [&](auto part) {
    return std::thread([&, part] {
      for (int mine = 1; mine <= kRounds; ++mine) {
        while (round < mine)
          std::this_thread::yield();
        for (int i = 0; i < kCalls; ++i)
          part(base.load(), i);
        ++done;
      }
    });
  };
  const Stream streams[] = {create_stream(device), create_stream(device)};
  std::vector<std::thread> users;
  users.push_back(in_each_round([&](uint8_t* bytes, int i) {
    const gpumem_attach ways[] = {GPUMEM_ATTACH_SINGLE, GPUMEM_ATTACH_HOST, GPUMEM_ATTACH_GLOBAL};
    EXPECT_STATUS_IN(gpumem_managed_attach(streams[0], bytes, 0, ways[i % 3], why()), GPUMEM_SUCCESS,
                     GPUMEM_ERROR_BUSY);
  }));
  users.push_back(in_each_round([&](uint8_t* bytes, int i) {
    const gpumem_location where = i % 2 == 0 ? GPUMEM_LOCATION_DEVICE : GPUMEM_LOCATION_HOST;
    EXPECT_STATUS(hinted, gpumem_managed_prefetch(streams[1], bytes, kSize / 2, where, 0, why()));
    EXPECT_STATUS_IN(gpumem_fill_async(streams[1], bytes + kSize / 2, kKiB, 1, 1, why()), GPUMEM_SUCCESS,
                     GPUMEM_ERROR_NO_ACCESS, GPUMEM_ERROR_BUSY);
  }));
  users.push_back(in_each_round([&](uint8_t* bytes, int) {
    EXPECT_OK(gpumem_managed_begin_host_access(instance, bytes, why()));
    EXPECT_OK(gpumem_managed_end_host_access(instance, bytes + kSize - 1, why()));
  }));
  // These go on while the memory is freed.
  const auto or_gone = [](gpumem_status status) {
    if (!on_cuda()) {
      EXPECT_STATUS_IN(status, GPUMEM_SUCCESS, GPUMEM_NO_EFFECT, GPUMEM_ERROR_NOT_FOUND);
      return;
    }
    // A driver knows the memory of the next round before the instance does, which may begin behind the
    // address. What was freed stays readable for a while, as if it were ordinary memory.
    EXPECT_STATUS_IN(status, GPUMEM_SUCCESS, GPUMEM_NO_EFFECT, GPUMEM_ERROR_NOT_FOUND,
                     GPUMEM_ERROR_WRONG_KIND, GPUMEM_ERROR_INVALID_ARGUMENT, GPUMEM_ERROR_UNSUPPORTED);
  };
  std::atomic<bool> stop{false};
  const auto go_on = [&](auto part) {
    return std::thread([&, part] {
      for (int i = 0; !stop; ++i) {
        uint8_t* const bytes = base.load();
        if (bytes != nullptr) part(bytes, i);
      }
    });
  };
  std::vector<std::thread> lookers;
  lookers.push_back(go_on([&](const uint8_t* bytes, int i) {
    const gpumem_advice advice =
        i % 2 == 0 ? GPUMEM_ADVICE_SET_PREFERRED_LOCATION : GPUMEM_ADVICE_UNSET_PREFERRED_LOCATION;
    or_gone(gpumem_managed_advise(instance, bytes, kSize, advice, GPUMEM_LOCATION_DEVICE, 0, why()));
  }));
  lookers.push_back(go_on([&](const uint8_t* bytes, int) {
    gpumem_managed_info info = GPUMEM_MANAGED_INFO_INIT;
    or_gone(gpumem_managed_get_info(instance, bytes, kSize, &info, why()));
    if (info.preferred_location != GPUMEM_LOCATION_NONE) {
      EXPECT_EQ(info.preferred_location, GPUMEM_LOCATION_DEVICE);
      EXPECT_EQ(info.preferred_location_id, 0);
    }
  }));
  for (int now = 1; now <= kRounds; ++now) {
    const Memory memory = create_memory(device, memory_desc(GPUMEM_KIND_MANAGED, kSize));
    base = memory.host();
    done = 0;
    round = now;
    while (done < 3)
      std::this_thread::yield();
    for (const Stream& stream : streams)
      stream.synchronize();
  }
  base = nullptr;
  stop = true;
  for (auto* const threads : {&users, &lookers}) {
    for (std::thread& thread : *threads)
      thread.join();
  }
}

TEST_F(Race, vmm_22_two_import_one_block) {
  if (!on_host()) SKIP_RULE("a driver's imports are handles of their own");
  const Instance maker = open_instance();
  const Instance instance = open_instance();
  const gpumem_physical_desc desc =
      physical_desc(2048 * kKiB, GPUMEM_LOCATION_DEVICE, GPUMEM_HANDLE_TYPE_POSIX_FD);
  for (int round = 0; round < 300; ++round) {
    const Physical block = create_physical(maker.device(), desc);
    int32_t file = -1;
    ASSERT_OK(gpumem_physical_export_fd(block, &file, why()));
    gpumem_physical handles[2] = {};
    const auto import = [&](size_t index) {
      EXPECT_OK(gpumem_physical_import_fd(instance.device(), &desc, file, &handles[index], why()));
    };
    together([&] { import(0); }, [&] { import(1); });
    close(file);
    const Physical first(handles[0]);
    const Physical second(handles[1]);
    ASSERT_EQ(first.info().block_id, second.info().block_id) << "round " << round;
  }
}

TEST_F(Race, com_10_managed_memory_of_several_threads) {
  if (capability(device_, GPUMEM_CAPABILITY_MANAGED).value == GPUMEM_ANSWER_NO)
    SKIP_RULE("no managed memory");
  race_managed(instance_,
               capability(device_, GPUMEM_CAPABILITY_MANAGED_CONCURRENT).value != GPUMEM_ANSWER_NO);
  if (!on_host()) return;
  const Instance other = open_instance(
      [](gpumem_instance_desc&, gpumem_host_options& host) { host.concurrent = GPUMEM_TOGGLE_OFF; });
  race_managed(other, false);
}

}  // namespace
}  // namespace conformance
