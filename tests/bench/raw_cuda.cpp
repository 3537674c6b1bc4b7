// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The cuda backend's counterpart: the driver API, loaded at run time.
#include "raw.h"

#ifdef HAVE_CUDA_HEADERS
#include <cuda.h>
#include <dlfcn.h>

#include <array>
#include <cstring>
#include <vector>

namespace bench {
namespace {

// clang-format off
#define RAW_FUNCTIONS(X)                                                                                  \
  X(cuInit) X(cuDriverGetVersion) X(cuDeviceGet) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) \
  X(cuCtxPushCurrent) X(cuCtxPopCurrent) X(cuMemAlloc) X(cuMemFree) X(cuMemHostAlloc) X(cuMemFreeHost)    \
  X(cuMemHostRegister) X(cuMemHostUnregister) X(cuMemcpyAsync) X(cuStreamCreate)              \
  X(cuStreamDestroy) X(cuStreamSynchronize) X(cuStreamQuery) X(cuEventCreate) X(cuEventDestroy)           \
  X(cuEventRecord) X(cuEventQuery) X(cuMemsetD8Async) X(cuPointerGetAttributes) X(cuMemGetAddressRange)       \
  X(cuCtxSetCurrent) X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemCreate) X(cuMemRelease) X(cuMemMap)     \
  X(cuMemUnmap) X(cuMemSetAccess) X(cuMemAllocManaged) X(cuIpcGetMemHandle) X(cuIpcOpenMemHandle)             \
  X(cuIpcCloseMemHandle) X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle)               \
  X(cuIpcGetEventHandle) X(cuIpcOpenEventHandle) X(cuStreamWaitEvent)
// Of drivers from 12.2 on.
#define RAW_NEWER_FUNCTIONS(X) X(cuMemPrefetchAsync_v2) X(cuMemAdvise_v2) X(cuMemAllocAsync) X(cuMemFreeAsync) \
  X(cuDeviceGetDefaultMemPool) X(cuMemPoolSetAttribute) X(cuMemcpyBatchAsync_v2) X(cuModuleLoadData) \
  X(cuModuleGetFunction) X(cuLaunchKernel)
// clang-format on

struct Driver {
#define RAW_MEMBER(function) decltype(&::function) function = nullptr;
  RAW_FUNCTIONS(RAW_MEMBER)
  RAW_NEWER_FUNCTIONS(RAW_MEMBER)
#undef RAW_MEMBER

  Driver() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) fail(dlerror());
      // cuda.h gives some functions another exported name by a macro, so the name is that of the expanded
      // one.
#define RAW_NAME(function) #function
#define RAW_LOAD(function) load(library, RAW_NAME(function), &Driver::function);
    RAW_FUNCTIONS(RAW_LOAD)
#undef RAW_LOAD
#define RAW_FIND(function) function = reinterpret_cast<decltype(function)>(dlsym(library, #function));
    RAW_NEWER_FUNCTIONS(RAW_FIND)
#undef RAW_FIND
#undef RAW_NAME
  }

 private:
  template <class Function>
  void load(void* library, const char* name, Function Driver::*member) {
    this->*member = reinterpret_cast<Function>(dlsym(library, name));
    if (this->*member == nullptr) fail(std::string("the driver has no ") + name);
  }
};

void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) fail(std::string(what) + " gave " + std::to_string(result));
}
#define CHECK(call) check(driver_.call, #call)

CUdeviceptr address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

class RawCudaEvents : public RawEvents {
 public:
  explicit RawCudaEvents(const Driver& driver) : driver_(driver) {
    CHECK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
  }
  RawCudaEvents(const RawCudaEvents&) = delete;
  RawCudaEvents& operator=(const RawCudaEvents&) = delete;
  ~RawCudaEvents() override {
    driver_.cuStreamDestroy(stream_);
    driver_.cuEventDestroy(own_);
    driver_.cuEventDestroy(others_);
  }
  void create(RawEventHandles* out) {
    create(&own_, &out->there);
    create(&others_, &out->back);
  }
  void open(const RawEventHandles& handles) {
    open(&others_, handles.there);
    open(&own_, handles.back);
  }
  void record() override { CHECK(cuEventRecord(own_, stream_)); }
  void wait() override { CHECK(cuStreamWaitEvent(stream_, others_, 0)); }
  void synchronize() override { CHECK(cuStreamSynchronize(stream_)); }

 private:
  void create(CUevent* event, std::array<char, 64>* out) {
    CHECK(cuEventCreate(event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    CUipcEventHandle handle = {};
    CHECK(cuIpcGetEventHandle(&handle, *event));
    static_assert(sizeof handle == sizeof *out);
    std::memcpy(out->data(), &handle, sizeof handle);
  }
  void open(CUevent* event, const std::array<char, 64>& bytes) {
    CUipcEventHandle handle;
    std::memcpy(&handle, bytes.data(), sizeof handle);
    CHECK(cuIpcOpenEventHandle(event, handle));
  }

  const Driver& driver_;
  CUstream stream_ = nullptr;
  CUevent own_ = nullptr;
  CUevent others_ = nullptr;
};

class RawCudaRange : public RawRange {
 public:
  RawCudaRange(const Driver& driver, CUdevice device, uint64_t size, int blocks)
      : driver_(driver), size_(size), blocks_(static_cast<size_t>(blocks)) {
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    access_ = {properties_.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CHECK(cuMemAddressReserve(&base_, size_ * blocks_.size(), 0, 0, 0));
  }
  RawCudaRange(const RawCudaRange&) = delete;
  RawCudaRange& operator=(const RawCudaRange&) = delete;
  ~RawCudaRange() override { driver_.cuMemAddressFree(base_, size_ * blocks_.size()); }

  void create(int index) override { CHECK(cuMemCreate(&block(index), size_, &properties_, 0)); }
  void map(int index) override {
    CHECK(cuMemMap(at(index), size_, 0, block(index), 0));
    CHECK(cuMemSetAccess(at(index), size_, &access_, 1));
  }
  void unmap(int index) override { CHECK(cuMemUnmap(at(index), size_)); }
  void release(int index) override { CHECK(cuMemRelease(block(index))); }

 private:
  CUmemGenericAllocationHandle& block(int index) { return blocks_[static_cast<size_t>(index)]; }
  CUdeviceptr at(int index) const { return base_ + static_cast<uint64_t>(index) * size_; }

  const Driver& driver_;
  uint64_t size_;
  std::vector<CUmemGenericAllocationHandle> blocks_;
  CUmemAllocationProp properties_ = {};
  CUmemAccessDesc access_ = {};
  CUdeviceptr base_ = 0;
};

// 16 bytes a thread at a time. What is read is added up, and stored where the sum is one that no memory of
// the benchmarks has: else the compiler would leave the loads out.
std::string kernel(const char* name, const char* body) {
  return std::string(".visible .entry ") + name + R"((.param .u64 pointer, .param .u64 size)
{
  .reg .pred %done, %odd;
  .reg .b32 %block, %blocks, %threads, %thread, %a, %b, %c, %d, %sum;
  .reg .b64 %base, %end, %at, %step, %place;
  ld.param.u64 %base, [pointer];
  ld.param.u64 %end, [size];
  mov.u32 %block, %ctaid.x;
  mov.u32 %blocks, %nctaid.x;
  mov.u32 %threads, %ntid.x;
  mov.u32 %thread, %tid.x;
  mad.lo.u32 %block, %block, %threads, %thread;
  mul.lo.u32 %blocks, %blocks, %threads;
  mul.wide.u32 %at, %block, 16;
  mul.wide.u32 %step, %blocks, 16;
  mov.u32 %sum, 1;
next:
  setp.ge.u64 %done, %at, %end;
  @%done bra end;
  add.u64 %place, %base, %at;
)" + body +
         R"(
  add.u64 %at, %at, %step;
  bra next;
end:
  setp.eq.u32 %odd, %sum, 0x9e3779b9;
  @%odd st.global.u32 [%base], %sum;
  ret;
}
)";
}

std::string kernels() {
  return ".version 6.0\n.target sm_50\n.address_size 64\n" + kernel("bench_read", R"(
  ld.global.v4.u32 {%a, %b, %c, %d}, [%place];
  add.u32 %a, %a, %b;
  add.u32 %c, %c, %d;
  add.u32 %a, %a, %c;
  add.u32 %sum, %sum, %a;)") +
         kernel("bench_write", R"(
  st.global.v4.u32 [%place], {%sum, %sum, %sum, %sum};)");
}

class RawCuda : public Raw {
 public:
  RawCuda() {
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device_, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context_, device_));
    CHECK(cuCtxPushCurrent(context_));
    CHECK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    CHECK(cuEventCreate(&event_, CU_EVENT_DEFAULT));
  }
  RawCuda(const RawCuda&) = delete;
  RawCuda& operator=(const RawCuda&) = delete;
  ~RawCuda() override {
    driver_.cuEventDestroy(event_);
    driver_.cuStreamDestroy(stream_);
    driver_.cuCtxPopCurrent(&context_);
    driver_.cuDevicePrimaryCtxRelease(device_);
  }

  std::string name() const override {
    int version = 0;
    CHECK(cuDriverGetVersion(&version));
    return "CUDA driver API " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  }

  bool has_kernels() override {
    CUmodule module = nullptr;
    if (read_ == nullptr && driver_.cuModuleLoadData != nullptr &&
        driver_.cuModuleLoadData(&module, kernels().c_str()) == CUDA_SUCCESS) {
      CHECK(cuModuleGetFunction(&read_, module, "bench_read"));
      CHECK(cuModuleGetFunction(&write_, module, "bench_write"));
    }
    return read_ != nullptr;
  }
  void run_kernel(void* pointer, uint64_t size, bool write) override {
    constexpr unsigned kBlocks = 2048;
    constexpr unsigned kThreads = 256;
    void* arguments[] = {&pointer, &size};
    CHECK(cuLaunchKernel(write ? write_ : read_, kBlocks, 1, 1, kThreads, 1, 1, 0, stream_, arguments,
                         nullptr));
    synchronize();
  }

  void share(uint64_t size, RawShare* out) override {
    CUdeviceptr pointer = 0;
    CHECK(cuMemAlloc(&pointer, size));
    CUipcMemHandle handle = {};
    static_assert(sizeof handle == sizeof out->handle);
    CHECK(cuIpcGetMemHandle(&handle, pointer));
    std::memcpy(out->handle.data(), &handle, sizeof handle);
    out->whole = true;
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle block = 0;
    CHECK(cuMemCreate(&block, size, &properties, 0));
    CHECK(cuMemExportToShareableHandle(&out->descriptor, block, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  }
  std::unique_ptr<RawEvents> create_events(RawEventHandles* out) override {
    auto made = std::make_unique<RawCudaEvents>(driver_);
    made->create(out);
    return made;
  }
  std::unique_ptr<RawEvents> open_events(const RawEventHandles& handles) override {
    auto made = std::make_unique<RawCudaEvents>(driver_);
    made->open(handles);
    return made;
  }
  void open_and_close(const RawShare& share) override {
    CUipcMemHandle handle;
    std::memcpy(&handle, share.handle.data(), sizeof handle);
    CUdeviceptr pointer = 0;
    CHECK(cuIpcOpenMemHandle(&pointer, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CHECK(cuIpcCloseMemHandle(pointer));
  }
  void map_and_unmap(int descriptor, uint64_t size) override {
    CUmemGenericAllocationHandle block = 0;
    CHECK(cuMemImportFromShareableHandle(&block, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CUdeviceptr base = 0;
    CHECK(cuMemAddressReserve(&base, size, 0, 0, 0));
    CHECK(cuMemMap(base, size, 0, block, 0));
    CUmemAccessDesc access = {};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CHECK(cuMemSetAccess(base, size, &access, 1));
    CHECK(cuMemUnmap(base, size));
    CHECK(cuMemAddressFree(base, size));
    CHECK(cuMemRelease(block));
  }

  void* allocate(gpumem_kind kind, gpumem_memory_flags flags, uint64_t size) override {
    if (kind == GPUMEM_KIND_DEVICE) {
      CUdeviceptr pointer = 0;
      CHECK(cuMemAlloc(&pointer, size));
      return reinterpret_cast<void*>(pointer);
    }
    if (kind == GPUMEM_KIND_MANAGED) {
      CUdeviceptr pointer = 0;
      CHECK(cuMemAllocManaged(&pointer, size, CU_MEM_ATTACH_GLOBAL));
      return reinterpret_cast<void*>(pointer);
    }
    void* pointer = nullptr;
    unsigned native = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
    if ((flags & GPUMEM_MEMORY_WRITE_COMBINED) != 0) native |= CU_MEMHOSTALLOC_WRITECOMBINED;
    CHECK(cuMemHostAlloc(&pointer, size, native));
    return pointer;
  }
  void free(gpumem_kind kind, void* pointer, uint64_t) override {
    if (kind == GPUMEM_KIND_DEVICE || kind == GPUMEM_KIND_MANAGED) {
      CHECK(cuMemFree(address(pointer)));
    } else {
      CHECK(cuMemFreeHost(pointer));
    }
  }
  void pin(void* pointer, uint64_t size) override {
    CHECK(cuMemHostRegister(pointer, size, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
  }
  void unpin(void* pointer, uint64_t) override { CHECK(cuMemHostUnregister(pointer)); }

  std::unique_ptr<RawRange> reserve(uint64_t block_size, int blocks) override {
    return std::make_unique<RawCudaRange>(driver_, device_, block_size, blocks);
  }

  void copy(void* destination, const void* source, uint64_t size) override {
    // cuMemcpy alone may return before the bytes are there, which a synchronous copy of gpumem never does.
    CHECK(cuMemcpyAsync(address(destination), address(source), size, stream_));
    CHECK(cuStreamSynchronize(stream_));
  }
  void enqueue_copy(void* destination, const void* source, uint64_t size) override {
    CHECK(cuMemcpyAsync(address(destination), address(source), size, stream_));
  }
  bool enqueue_batch(RawBatch& batch) override {
    if (driver_.cuMemcpyBatchAsync_v2 == nullptr) return false;
    CUmemcpyAttributes attributes = {};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    size_t first = 0;
    static_assert(sizeof(void*) == sizeof(CUdeviceptr));
    CHECK(cuMemcpyBatchAsync_v2(reinterpret_cast<CUdeviceptr*>(batch.to.data()),
                                reinterpret_cast<CUdeviceptr*>(batch.from.data()), batch.sizes.data(),
                                batch.to.size(), &attributes, &first, 1, stream_));
    return true;
  }
  void synchronize() override { CHECK(cuStreamSynchronize(stream_)); }

  Call enqueue_prefetch(void* pointer, uint64_t size, bool to_device) override {
    if (driver_.cuMemPrefetchAsync_v2 == nullptr) return {};
    const CUmemLocation where = {to_device ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST, 0};
    return [=, this] { CHECK(cuMemPrefetchAsync_v2(address(pointer), size, where, 0, stream_)); };
  }
  Call advise(void* pointer, uint64_t size) override {
    if (driver_.cuMemAdvise_v2 == nullptr) return {};
    const CUmemLocation where = {CU_MEM_LOCATION_TYPE_HOST, 0};
    return [=, this] {
      CHECK(cuMemAdvise_v2(address(pointer), size, CU_MEM_ADVISE_SET_READ_MOSTLY, where));
      CHECK(cuMemAdvise_v2(address(pointer), size, CU_MEM_ADVISE_UNSET_READ_MOSTLY, where));
    };
  }

  void prepare_thread() override { CHECK(cuCtxSetCurrent(context_)); }
  ThreadWork thread_work(ThreadCall which) override {
    struct Own {
      explicit Own(RawCuda& raw) : raw_(raw) {
        check(raw.driver_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        check(raw.driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
        check(raw.driver_.cuMemAlloc(&device, 4096), "cuMemAlloc");
        check(raw.driver_.cuMemHostAlloc(&host, 4096, 0), "cuMemHostAlloc");
      }
      Own(const Own&) = delete;
      Own& operator=(const Own&) = delete;
      ~Own() {
        raw_.driver_.cuStreamSynchronize(stream);
        raw_.driver_.cuMemFreeHost(host);
        raw_.driver_.cuMemFree(device);
        raw_.driver_.cuEventDestroy(event);
        raw_.driver_.cuStreamDestroy(stream);
      }
      RawCuda& raw_;
      CUstream stream = nullptr;
      CUevent event = nullptr;
      CUdeviceptr device = 0;
      void* host = nullptr;
    };
    const auto own = std::make_shared<Own>(*this);
    const Call settle = [this, own] { CHECK(cuStreamSynchronize(own->stream)); };
    switch (which) {
      case ThreadCall::kCopy:
        return {[this, own] { CHECK(cuMemcpyAsync(own->device, address(own->host), 4096, own->stream)); },
                settle};
      case ThreadCall::kFill:
        return {[this, own] { CHECK(cuMemsetD8Async(own->device, 7, 4096, own->stream)); }, settle};
      case ThreadCall::kRecord:
        return {[this, own] { CHECK(cuEventRecord(own->event, own->stream)); }, settle};
      case ThreadCall::kEventQuery:
        return {[this, own] { CHECK(cuEventQuery(own->event)); }, settle};
      case ThreadCall::kStreamQuery:
        return {[this, own] { CHECK(cuStreamQuery(own->stream)); }, settle};
      case ThreadCall::kPointerQuery:
        return {[this, own] { query(reinterpret_cast<void*>(own->device + 100)); }, settle};
    }
    return {};
  }

  PoolWork pool_work(bool of_host) override {
    if (of_host) return Raw::pool_work(true);
    if (driver_.cuMemAllocAsync == nullptr || driver_.cuDeviceGetDefaultMemPool == nullptr) return {};
    // It keeps its memory, as ours does.
    CUmemoryPool pool = nullptr;
    CUdevice device = 0;
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDeviceGetDefaultMemPool(&pool, device));
    cuuint64_t all = UINT64_MAX;
    CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    CUstream made = nullptr;
    CHECK(cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
    const std::shared_ptr<CUstream_st> stream(made, [this](CUstream it) {
      driver_.cuStreamSynchronize(it);
      driver_.cuStreamDestroy(it);
    });
    return {[this, stream](uint64_t size) {
              CUdeviceptr block = 0;
              CHECK(cuMemAllocAsync(&block, size, stream.get()));
              return reinterpret_cast<void*>(block);
            },
            [this, stream](void* block) { CHECK(cuMemFreeAsync(address(block), stream.get())); }};
  }

  Call small_call(SmallCall which, void* pointer) override {
    switch (which) {
      case SmallCall::kPointerQuery:
        return [this, pointer] { query(pointer); };
      case SmallCall::kMemoryQuery:
        return [this, pointer] {
          CUdeviceptr base = 0;
          size_t size = 0;
          CHECK(cuMemGetAddressRange(&base, &size, address(pointer)));
        };
      case SmallCall::kStreamQuery:
        return [this] { CHECK(cuStreamQuery(stream_)); };
      case SmallCall::kEventRecord:
        return [this] { CHECK(cuEventRecord(event_, stream_)); };
      case SmallCall::kEmptyCopy:
        return [this, pointer] { CHECK(cuMemcpyAsync(address(pointer), address(pointer), 0, stream_)); };
    }
    return {};
  }

 private:
  // The attributes that answer what gpumem_pointer_get_info() answers.
  void query(void* pointer) {
    int type = 0;
    int ordinal = 0;
    CUdeviceptr base = 0;
    CUdeviceptr device_pointer = 0;
    void* host_pointer = nullptr;
    size_t size = 0;
    uint64_t id = 0;
    std::array<CUpointer_attribute, 7> attributes = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_HOST_POINTER,
        CU_POINTER_ATTRIBUTE_BUFFER_ID,      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    std::array<void*, 7> values = {&type, &ordinal, &device_pointer, &host_pointer, &id, &base, &size};
    CHECK(cuPointerGetAttributes(static_cast<unsigned>(attributes.size()), attributes.data(), values.data(),
                                 address(pointer)));
  }

  Driver driver_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  CUfunction read_ = nullptr;  // once there are kernels
  CUfunction write_ = nullptr;
  CUevent event_ = nullptr;
};

}  // namespace

std::unique_ptr<Raw> open_raw_cuda() { return std::make_unique<RawCuda>(); }

}  // namespace bench

#else

namespace bench {

std::unique_ptr<Raw> open_raw_cuda() { fail("built without the CUDA headers: nothing to measure against"); }

}  // namespace bench

#endif
