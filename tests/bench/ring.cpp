// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "ring.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <exception>
#include <thread>
#include <vector>

#include "share.h"

namespace bench {
namespace {

constexpr uint64_t kSlotSize = 4096;
constexpr uint32_t kStop = UINT32_MAX;

// A number that one process sets, and another waits for.
class Word {
 public:
  void post(uint32_t value) {
    value_.store(value);
    if (sleeps_.load() == 0) return;
    sleeps_.store(0);
    (void)syscall(SYS_futex, &value_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  // Until it is `value` or kStop; false for that.
  bool await(uint32_t value) {
    for (int i = 0; i < 300; ++i) {
      const uint32_t seen = value_.load();
      if (seen == value || seen == kStop) return seen != kStop;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    for (;;) {
      sleeps_.store(1);
      const uint32_t seen = value_.load();
      if (seen == value || seen == kStop) return seen != kStop;
      (void)syscall(SYS_futex, &value_, FUTEX_WAIT, seen, nullptr, nullptr, 0);
    }
  }

 private:
  std::atomic<uint32_t> value_;
  std::atomic<uint32_t> sleeps_;
};

// The page that both map. One message at a time, as in a ring with one slot.
struct Page {
  alignas(128) Word there;
  alignas(128) Word back;
};

class SharedPage {
 public:
  explicit SharedPage(int file) : file_(file) {
    void* const view = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (view == MAP_FAILED) fail("no shared page");
    page_ = static_cast<Page*>(view);
  }
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;
  ~SharedPage() {
    munmap(page_, sizeof(Page));
    close(file_);
  }
  static int make_file() {
    const int file = memfd_create("gpumem-bench", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, sizeof(Page)) != 0) fail("no shared page");
    return file;
  }
  int file() const { return file_; }
  Page* operator->() const { return page_; }

 private:
  const int file_;
  Page* page_;
};

enum class Kind : int32_t { kRing, kRingInStream, kPage, kEvents };

// What the second process is to take part in.
struct Work {
  Kind kind = Kind::kRing;
  gpumem_share_handle ring{};
  RawEventHandles events;
};

class Peer {
 public:
  explicit Peer(const Scene& scene) : scene_(scene), process_("--ring-peer", scene.runner.backend()) {
    gpumem_device_info device = GPUMEM_DEVICE_INFO_INIT;
    MUST(gpumem_device_get_info(scene.device, &device, &error));
    uint64_t device_bytes = device.total_bytes;
    transfer(process_.socket(), &device_bytes, sizeof device_bytes, true);
  }
  void start(Work work, int file = -1) {
    transfer(process_.socket(), &work, sizeof work, true);
    send_descriptor(process_.socket(), file);
    char ready = 0;
    transfer(process_.socket(), &ready, 1, false);
  }

  // A row of hand-overs. Without a stream, the two only pass numbers.
  void hand_over(const std::string& name, uint32_t slots, gpumem_stream stream, const Call& raw,
                 const Call& settle) {
    gpumem_ring_desc desc = GPUMEM_RING_DESC_INIT;
    desc.slot_size = kSlotSize;
    desc.slot_count = slots;
    desc.consumers_max = 1;
    gpumem_ring ring = nullptr;
    MUST(gpumem_ring_create(scene_.device, &desc, &ring, &error));
    Work work;
    work.kind = stream != nullptr ? Kind::kRingInStream : Kind::kRing;
    MUST(gpumem_ring_export(ring, &work.ring, &error));
    start(work);
    gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
    scene_.runner.time(
        name,
        [&] {
          MUST(gpumem_ring_acquire(ring, stream, GPUMEM_TIMEOUT_INFINITE, &slot, &error));
          MUST(gpumem_ring_publish(ring, stream, kSlotSize, 0, &error));
        },
        raw, settle);
    MUST(gpumem_ring_finish(ring, GPUMEM_TIMEOUT_INFINITE, &error));
    MUST(gpumem_ring_destroy(ring, &error));
  }

 private:
  const Scene& scene_;
  SecondProcess process_;
};

}  // namespace

void rings(const Scene& scene) {
  if (!scene.runner.any_wanted("share: ring")) return;
  Peer peer(scene);
  {
    const SharedPage page(SharedPage::make_file());
    Work work;
    work.kind = Kind::kPage;
    peer.start(work, page.file());
    uint32_t count = 0;
    peer.hand_over("share: ring of 1 slot, hand over and take back", 1, nullptr,
                   [&] {
                     page->back.await(count);
                     page->there.post(++count);
                   },
                   {});
    page->back.await(count);
    page->there.post(kStop);
  }
  peer.hand_over("share: ring of 8 slots, hand over", 8, nullptr, {}, {});

  gpumem_stream stream = nullptr;
  MUST(gpumem_stream_create(scene.device, nullptr, &stream, &error));
  RawEventHandles handles;
  const std::unique_ptr<RawEvents> events = scene.raw.create_events(&handles);
  const SharedPage page(SharedPage::make_file());
  Call raw;
  uint32_t count = 0;
  if (events != nullptr) {
    Work work;
    work.kind = Kind::kEvents;
    work.events = handles;
    peer.start(work, page.file());
    raw = [&] {
      page->back.await(count);
      events->wait();
      events->record();
      page->there.post(++count);
    };
  }
  const Call settle = [&] {
    MUST(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, &error));
    if (events != nullptr) events->synchronize();
  };
  peer.hand_over("share: ring of 1 slot, hand over and take back, in streams", 1, stream, raw, settle);
  peer.hand_over("share: ring of 8 slots, hand over, in streams", 8, stream, {}, settle);
  if (events != nullptr) {
    page->back.await(count);
    page->there.post(kStop);
  }
  settle();
  MUST(gpumem_stream_destroy(stream, &error));
}

namespace {

void take_from_ring(gpumem_instance instance, gpumem_device device, const Work& work, char* ready) {
  gpumem_stream stream = nullptr;
  if (work.kind == Kind::kRingInStream) MUST(gpumem_stream_create(device, nullptr, &stream, &error));
  gpumem_ring ring = nullptr;
  MUST(gpumem_ring_open(instance, &work.ring, nullptr, &ring, &error));
  transfer(kPeerSocket, ready, 1, true);
  for (;;) {
    gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
    gpumem_error why = GPUMEM_ERROR_INIT;
    const gpumem_status status = gpumem_ring_wait(ring, stream, GPUMEM_TIMEOUT_INFINITE, &slot, &why);
    if (status == GPUMEM_ERROR_CLOSED) break;
    must(status, why);
    MUST(gpumem_ring_release(ring, stream, slot.number, &error));
  }
  MUST(gpumem_ring_destroy(ring, &error));
  MUST(gpumem_stream_destroy(stream, &error));
}

void take_from_page(Raw& raw, const Work& work, int file, char* ready) {
  const SharedPage page(file);
  raw.prepare_thread();
  const std::unique_ptr<RawEvents> events =
      work.kind == Kind::kEvents ? raw.open_events(work.events) : nullptr;
  transfer(kPeerSocket, ready, 1, true);
  for (uint32_t count = 1; page->there.await(count); ++count) {
    if (events != nullptr) {
      events->wait();
      events->record();
    }
    page->back.post(count);
  }
  if (events != nullptr) events->synchronize();
}

}  // namespace

int ring_peer(gpumem_backend backend) {
  gpumem_host_options host = GPUMEM_HOST_OPTIONS_INIT;
  host.strict = host.fill = GPUMEM_TOGGLE_OFF;  // as the first process has it
  transfer(kPeerSocket, &host.device_bytes, sizeof host.device_bytes, false);
  gpumem_instance_desc open = GPUMEM_INSTANCE_DESC_INIT;
  open.backend = backend;
  open.host = &host;
  gpumem_instance instance = nullptr;
  MUST(gpumem_instance_open(&open, &instance, &error));
  gpumem_device device = nullptr;
  MUST(gpumem_device_get(instance, 0, &device, &error));
  const auto raw = backend == GPUMEM_BACKEND_CUDA ? open_raw_cuda() : open_raw_host();
  std::vector<std::thread> threads;
  Work work;
  while (recv(kPeerSocket, &work, sizeof work, MSG_WAITALL) == static_cast<ssize_t>(sizeof work)) {
    const int file = receive_descriptor(kPeerSocket);
    threads.emplace_back([&, work, file] {
      char ready = 1;
      try {
        if (work.kind == Kind::kRing || work.kind == Kind::kRingInStream) {
          take_from_ring(instance, device, work, &ready);
        } else {
          take_from_page(*raw, work, file, &ready);
        }
      } catch (const std::exception& problem) {
        std::fprintf(stderr, "gpumem: bench: the second process: %s\n", problem.what());
        _exit(1);
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  MUST(gpumem_instance_close(instance, GPUMEM_CLOSE_CHECK, nullptr, &error));
  return 0;
}

}  // namespace bench
