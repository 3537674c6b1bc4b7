// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Sharing between processes by handles. A handle names a process and a file there; the importer finds the
// file among the open ones of that process by its name, so nothing has to be served and nothing is left
// behind.
#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "driver.h"

namespace fake {
namespace {

// --- Processes ---

// A process in one word, its number and when it began; 0 for none.
using Process = uint64_t;
constexpr unsigned kProcessBits = 22;  // the largest number that the kernel gives

Process process_at(const char* folder, uint64_t number) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%s/stat", folder);
  char text[1024] = {};
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t size = read(file, text, sizeof(text) - 1);
  close(file);
  // The name, which may hold anything, ends at the last parenthesis.
  const char* rest = size > 0 ? std::strrchr(text, ')') : nullptr;
  char state = 0;
  unsigned flags = 0;
  unsigned long long start = 0;
  const char* const fields =
      ") %c %*d %*d %*d %*d %*d %u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu";
  if (rest == nullptr || std::sscanf(rest, fields, &state, &flags, &start) != 3) return 0;
  constexpr unsigned kExiting = 4;
  if (state == 'Z' || state == 'X' || (flags & kExiting) != 0) return 0;
  return start << kProcessBits | number;
}

Process this_process() { return process_at("self", static_cast<uint64_t>(getpid())); }

uint64_t number_of(Process process) { return process & ((uint64_t{1} << kProcessBits) - 1); }

bool is_alive(Process process) {
  const std::string folder = std::to_string(number_of(process));
  return process != 0 && process_at(folder.c_str(), number_of(process)) == process;
}

struct FoundFile {
  int file = -1;  // the caller closes it
  std::string name;
};

// The name of a file in memory, empty for any other.
std::string name_of(int folder, const char* descriptor) {
  constexpr const char* kPrefix = "/memfd:";
  char link[256] = {};
  if (readlinkat(folder, descriptor, link, sizeof(link) - 1) <= 0) return "";
  const std::string text = link;
  return text.starts_with(kPrefix) ? text.substr(std::strlen(kPrefix)) : "";
}

// The file that a process has open in memory under a name that begins so.
FoundFile open_file_of(Process process, const std::string& prefix) {
  const std::string folder = "/proc/" + std::to_string(number_of(process)) + "/fd";
  std::unique_ptr<DIR, int (*)(DIR*)> files(opendir(folder.c_str()), closedir);
  if (files == nullptr) return {};
  while (const dirent* entry = readdir(files.get())) {
    if (!name_of(dirfd(files.get()), entry->d_name).starts_with(prefix)) continue;
    const int file = openat(dirfd(files.get()), entry->d_name, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) continue;
    // The process may just have closed it and opened another one under the number.
    const std::string name = name_of(AT_FDCWD, ("/proc/self/fd/" + std::to_string(file)).c_str());
    if (name.starts_with(prefix)) return {file, name};
    close(file);
  }
  return {};
}

// --- Memory ---

constexpr const char* kSlabName = "fake_cuda-slab-%" PRIxPTR "-";

std::string prefix_of_slab(uintptr_t address) {
  char name[64];
  std::snprintf(name, sizeof(name), kSlabName, address);
  return name;
}

// An address and not a file is named: memory that is allocated there later answers to an old handle.
struct MemoryHandle {
  static constexpr uint64_t kMagic = 0x6d656d2d6370692e;
  uint64_t magic;
  Process process;
  uint64_t block;
  uint64_t offset;  // of the allocation in the block
  uint64_t id;
  uint64_t rest[3];  // zeros
};
static_assert(sizeof(MemoryHandle) == sizeof(CUipcMemHandle));

// The handle as its own structure, if it is one.
template <class Handle, class Given>
Handle read_handle(const Given& given) {
  Handle handle;
  std::memcpy(&handle, &given, sizeof(handle));
  const bool whole =
      std::all_of(std::begin(handle.rest), std::end(handle.rest), [](uint64_t word) { return word == 0; });
  require(whole && handle.magic == Handle::kMagic);
  return handle;
}

// Closes the file unless it was taken.
struct OpenFile {
  ~OpenFile() {
    if (file >= 0) close(file);
  }
  int file;
};

std::shared_ptr<Memory> find_import(const Context& context, ino_t file) {
  for (const auto& [address, memory] : driver().memory) {
    if (memory->kind == Kind::kImported && memory->context.get() == &context && memory->file == file)
      return memory;
  }
  return nullptr;
}

std::shared_ptr<Memory> import_block(OpenFile& open, const struct stat& status, const std::string& name) {
  int ordinal = -1;
  const size_t digits = name.rfind('-');
  require(std::sscanf(name.c_str() + digits, "-%d", &ordinal) == 1);
  auto context = current_context();
  Device& device = find_device(ordinal);
  require(context->device == &device || can_access_peer(*context->device, device),
          CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  auto memory = std::make_shared<Memory>();
  memory->kind = Kind::kImported;
  memory->size = static_cast<size_t>(status.st_size);
  memory->file = status.st_ino;
  memory->context = context;
  memory->device = &device;
  memory->id = next_id();
  // The lock goes with the mapping; by it the exporter sees whether anybody has the block open.
  require(flock(open.file, LOCK_SH) == 0, CUDA_ERROR_OPERATING_SYSTEM);
  memory->backing = std::make_shared<Backing>(memory->size, open.file);
  // Not kept open: by its name others would take it for a block of this process.
  memory->backing->file = -1;
  memory->bytes = memory->backing->bytes;
  memory->address = memory->device_address = reserve_addresses(memory->size, kSlab);
  add_memory(memory);
  return memory;
}

CUresult open_memory(CUdeviceptr* address, const CUipcMemHandle& given, unsigned flags) {
  require(address != nullptr && flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  const auto handle = read_handle<MemoryHandle>(given);
  require(handle.process != this_process(), CUDA_ERROR_INVALID_CONTEXT);
  const FoundFile found = open_file_of(handle.process, prefix_of_slab(handle.block));
  OpenFile open{found.file};
  // Asked afterwards: a process that is ending has lost its files before it is gone.
  require(is_alive(handle.process), CUDA_ERROR_INVALID_HANDLE);
  struct stat status = {};
  require(open.file >= 0 && fstat(open.file, &status) == 0);
  require(handle.offset < static_cast<uint64_t>(status.st_size));
  auto memory = find_import(*current_context(), status.st_ino);
  if (!memory) memory = import_block(open, status, found.name);
  *address = memory->address + handle.offset;
  ++memory->opened[*address];
  return CUDA_SUCCESS;
}

// The import that an address was answered for, or a violation.
std::shared_ptr<Memory> find_opened(uintptr_t address) {
  auto memory = locate(address).memory;
  const bool opened = memory && memory->kind == Kind::kImported && memory->opened.contains(address);
  if (!opened)
    violation(driver().freed.contains(address) ? "double-free" : "stray-free", "cuIpcCloseMemHandle");
  require(opened);
  return memory;
}

// --- Events ---

std::string prefix_of_event(uint64_t id) { return "fake_cuda-event-" + std::to_string(id) + "-"; }

struct EventHandle {
  static constexpr uint64_t kMagic = 0x746e76656370692e;
  uint64_t magic;
  Process process;
  uint64_t id;
  uint64_t rest[5];  // zeros
};
static_assert(sizeof(EventHandle) == sizeof(CUipcEventHandle));

void require_ipc_events(const Device& device) {
  constexpr int kFirstToSay = 12020;
  if (driver().version < kFirstToSay) return;
  require(attribute(device, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED) != 0, CUDA_ERROR_NOT_SUPPORTED);
}

// A ticket is the number of a record and the place of its process in the page.
constexpr unsigned kPlaceBits = 12;
constexpr size_t kPlaces = size_t{1} << kPlaceBits;
constexpr size_t kRecords = 256;  // in flight at once; what is older counts as complete

uint64_t number_of_ticket(uint64_t ticket) { return ticket >> kPlaceBits; }

}  // namespace

struct SharedEvent::Page {
  std::atomic<uint64_t> latest;
  std::atomic<uint32_t> bell;                 // a futex, which every completion moves on
  std::atomic<uint64_t> completed[kRecords];  // number of the record that was the last one to complete here
  std::atomic<Process> processes[kPlaces];    // at place - 1
};

SharedEvent::SharedEvent(uint64_t of_id) : id(of_id) {
  static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);
  file_ = memfd_create(prefix_of_event(id).c_str(), MFD_CLOEXEC);
  require(file_ >= 0, CUDA_ERROR_OUT_OF_MEMORY);
  const bool sized = ftruncate(file_, sizeof(Page)) == 0;
  void* mapped =
      sized ? mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0) : MAP_FAILED;
  if (mapped == MAP_FAILED) close(file_);
  require(mapped != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
  madvise(mapped, sizeof(Page), MADV_DONTFORK);
  page_ = static_cast<Page*>(mapped);
}

SharedEvent::SharedEvent(int file) : id(0) {
  void* mapped = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  require(mapped != MAP_FAILED, CUDA_ERROR_MAP_FAILED);
  madvise(mapped, sizeof(Page), MADV_DONTFORK);
  page_ = static_cast<Page*>(mapped);
}

SharedEvent::~SharedEvent() {
  munmap(page_, sizeof(Page));
  if (file_ >= 0) close(file_);
}

uint64_t SharedEvent::latest() const { return page_->latest; }

void SharedEvent::enlist() {
  if (place_ != 0) return;
  const Process own = this_process();
  for (unsigned place = 1; place < kPlaces; ++place) {
    Process there = 0;
    if (!page_->processes[place - 1].compare_exchange_strong(there, own) && there != own) continue;
    place_ = place;
    return;
  }
  throw Failure{CUDA_ERROR_OUT_OF_MEMORY};
}

uint64_t SharedEvent::add_record() {
  uint64_t before = page_->latest;
  uint64_t ticket = 0;
  do {
    ticket = (number_of_ticket(before) + 1) << kPlaceBits | place_;
  } while (!page_->latest.compare_exchange_weak(before, ticket));
  return ticket;
}

void SharedEvent::complete(uint64_t ticket) {
  const uint64_t number = number_of_ticket(ticket);
  std::atomic<uint64_t>& last = page_->completed[number % kRecords];
  for (uint64_t before = last; before < number && !last.compare_exchange_weak(before, number);)
    continue;
  ++page_->bell;
  syscall(SYS_futex, &page_->bell, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

bool SharedEvent::is_complete(uint64_t ticket) const {
  const uint64_t number = number_of_ticket(ticket);
  const uint64_t place = ticket % kPlaces;
  if (page_->completed[number % kRecords] >= number) return true;
  return place != place_ && !is_alive(page_->processes[place - 1]);
}

bool SharedEvent::await(uint64_t ticket) const {
  const uint32_t seen = page_->bell;
  if (is_complete(ticket)) return true;
  // No end of a process rings, so every now and then the wait looks for itself.
  const timespec moment = {0, 20'000'000};
  syscall(SYS_futex, &page_->bell, FUTEX_WAIT, seen, &moment, nullptr, 0);
  return is_complete(ticket);
}

bool is_imported_elsewhere(const Backing& backing) {
  if (backing.file < 0) return false;
  // A process that ends closes its files one by one, and others may know of its end before this one is
  // closed.
  for (int tries = 0; tries < 100; ++tries) {
    if (flock(backing.file, LOCK_EX | LOCK_NB) == 0) {
      flock(backing.file, LOCK_UN);
      return false;
    }
    if (errno != EWOULDBLOCK) return false;
    usleep(1000);
  }
  return true;
}

std::string name_of_slab(uintptr_t address, const Device& device) {
  return prefix_of_slab(address) + std::to_string(device.ordinal);
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  require(handle != nullptr);
  const Located found = locate(address);
  require(found.memory != nullptr && found.memory->kind == Kind::kDevice && !in_pool(*found.memory));
  const Memory& memory = *found.memory;
  const MemoryHandle made = {MemoryHandle::kMagic,
                             this_process(),
                             memory.slab->address,
                             memory.address - memory.slab->address,
                             memory.id,
                             {}};
  std::memcpy(handle, &made, sizeof(made));
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  return open_memory(address, handle, flags);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  return open_memory(address, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  auto memory = find_opened(address);
  const auto is_last = [&] { return memory->opened.size() == 1 && memory->opened[address] == 1; };
  if (is_last()) {
    const Ending ending(memory->address, memory->size);
    check_idle(*memory, "an import is closed");
    drain(*memory->context);
    memory = find_opened(address);
  }
  const bool last = is_last();
  if (--memory->opened[address] == 0) {
    memory->opened.erase(address);
    driver().freed.insert(address);
  }
  if (last) remove_memory(memory);
  return CUDA_SUCCESS;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event) {
  require(handle != nullptr);
  const auto found = find_event(event);
  require(found->shared != nullptr && found->shared->id != 0, CUDA_ERROR_INVALID_HANDLE);
  require_ipc_events(*found->context->device);
  const EventHandle made = {EventHandle::kMagic, this_process(), found->shared->id, {}};
  std::memcpy(handle, &made, sizeof(made));
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent* handle, CUipcEventHandle given) {
  require(handle != nullptr);
  require_ipc_events(*current_context()->device);
  const auto asked = read_handle<EventHandle>(given);
  require(asked.process != this_process(), CUDA_ERROR_INVALID_CONTEXT);
  const OpenFile open{open_file_of(asked.process, prefix_of_event(asked.id)).file};
  require(open.file >= 0 && is_alive(asked.process), CUDA_ERROR_MAP_FAILED);
  auto event = std::make_shared<Event>();
  event->context = current_context();
  event->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
  event->shared = std::make_shared<SharedEvent>(open.file);
  *handle = next_handle<CUevent>();
  driver().events.add(*handle, event);
  return CUDA_SUCCESS;
}

// A descriptor that stands for the memory and holds none of it: whoever would use it is a device that is not
// here.
CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr address, size_t size,
                                       CUmemRangeHandleType type, unsigned long long flags) {
  require(handle != nullptr && type == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
  require(size != 0 && address % kPage == 0 && size % kPage == 0 && address + size > address);
  for (uintptr_t reached = address; reached < address + size;) {
    const Located found = locate(reached);
    require(found.memory != nullptr && found.memory->device != nullptr);
    const Memory& memory = *found.memory;
    require(memory.kind == Kind::kDevice || memory.kind == Kind::kMapping);
    require(attribute(*memory.device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) != 0, CUDA_ERROR_NOT_SUPPORTED);
    if (memory.kind == Kind::kMapping) {
      reached = memory.address + memory.size;
    } else {
      reached = memory.slab->address + memory.slab->backing->size;
      require(address + size <= reached);
    }
  }
  require(flags <= CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE);
  require(flags == 0, CUDA_ERROR_NOT_SUPPORTED);
  const int file = memfd_create("fake_cuda-dma_buf", MFD_CLOEXEC);
  require(file >= 0, CUDA_ERROR_OPERATING_SYSTEM);
  if (ftruncate(file, static_cast<off_t>(size)) != 0) {
    close(file);
    throw Failure{CUDA_ERROR_OPERATING_SYSTEM};
  }
  *static_cast<int*>(handle) = file;
  return CUDA_SUCCESS;
}

}  // namespace fake
