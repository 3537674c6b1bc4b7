// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The CUDA driver called directly, to compare with. It shares nothing with gpumem but the device's primary
// context.
#include "path.h"

#if HAVE_CUDA_HEADERS
#include <cuda.h>
#include <dlfcn.h>

#include <cstring>
#endif

namespace gpumem::cli {

#if HAVE_CUDA_HEADERS

namespace {

// Name and type of an entry point both come from the header, where cuMemAlloc stands for cuMemAlloc_v2 and so
// on.
#define GPUMEM_QUOTE(name) #name
#define GPUMEM_ENTRY(name) find<decltype(&::name)>(GPUMEM_QUOTE(name))
#define GPUMEM_NAME(name) GPUMEM_QUOTE(name)

class Driver {
 public:
  void check(CUresult result, const char* what) const {
    if (result == CUDA_SUCCESS) return;
    const char* name = nullptr;
    get_error_name(result, &name);
    throw std::runtime_error(std::string("the CUDA driver, called directly: ") + what + ": " +
                             (name != nullptr ? name : std::to_string(result)));
  }

 private:
  template <typename Function>
  Function find_if_there(const char* name) const {
    return reinterpret_cast<Function>(library != nullptr ? dlsym(library, name) : nullptr);
  }
  template <typename Function>
  Function find(const char* name) const {
    const auto entry = find_if_there<Function>(name);
    if (entry == nullptr) throw std::runtime_error(std::string("the CUDA driver has no ") + name);
    return entry;
  }

  // The library stays loaded: gpumem uses it too.
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

 public:
  decltype(&::cuGetErrorName) get_error_name = GPUMEM_ENTRY(cuGetErrorName);
  decltype(&::cuInit) init = GPUMEM_ENTRY(cuInit);
  decltype(&::cuDeviceGetCount) device_get_count = GPUMEM_ENTRY(cuDeviceGetCount);
  decltype(&::cuDeviceGet) device_get = GPUMEM_ENTRY(cuDeviceGet);
  decltype(&::cuDeviceGetUuid) device_get_uuid = GPUMEM_ENTRY(cuDeviceGetUuid);
  decltype(&::cuDevicePrimaryCtxRetain) primary_retain = GPUMEM_ENTRY(cuDevicePrimaryCtxRetain);
  decltype(&::cuDevicePrimaryCtxRelease) primary_release = GPUMEM_ENTRY(cuDevicePrimaryCtxRelease);
  decltype(&::cuCtxSetCurrent) set_current = GPUMEM_ENTRY(cuCtxSetCurrent);
  decltype(&::cuStreamCreate) stream_create = GPUMEM_ENTRY(cuStreamCreate);
  decltype(&::cuStreamDestroy) stream_destroy = GPUMEM_ENTRY(cuStreamDestroy);
  decltype(&::cuStreamSynchronize) stream_synchronize = GPUMEM_ENTRY(cuStreamSynchronize);
  decltype(&::cuMemAlloc) mem_alloc = GPUMEM_ENTRY(cuMemAlloc);
  decltype(&::cuMemFree) mem_free = GPUMEM_ENTRY(cuMemFree);
  decltype(&::cuMemAllocManaged) managed_alloc = GPUMEM_ENTRY(cuMemAllocManaged);
  decltype(&::cuMemHostAlloc) host_alloc = GPUMEM_ENTRY(cuMemHostAlloc);
  decltype(&::cuMemFreeHost) host_free = GPUMEM_ENTRY(cuMemFreeHost);
  decltype(&::cuMemHostGetDevicePointer) host_device_pointer = GPUMEM_ENTRY(cuMemHostGetDevicePointer);
  decltype(&::cuMemHostRegister) host_register = GPUMEM_ENTRY(cuMemHostRegister);
  decltype(&::cuMemHostUnregister) host_unregister = GPUMEM_ENTRY(cuMemHostUnregister);
  decltype(&::cuMemcpyAsync) copy = GPUMEM_ENTRY(cuMemcpyAsync);
  // Null before 12.2.
  decltype(&::cuMemPrefetchAsync) prefetch =
      find_if_there<decltype(&::cuMemPrefetchAsync)>(GPUMEM_NAME(cuMemPrefetchAsync));
};

// The device's primary context, current in this thread, with a stream and device memory.
class Context {
 public:
  Context(const gpumem_device_info& device, uint64_t capacity) : device_(find_device(device)) {
    driver.check(driver.primary_retain(&context_, device_), "cuDevicePrimaryCtxRetain");
    try {
      driver.check(driver.set_current(context_), "cuCtxSetCurrent");
      driver.check(driver.stream_create(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
      driver.check(driver.mem_alloc(&memory, capacity), "cuMemAlloc");
    } catch (...) {
      release();
      throw;
    }
  }
  ~Context() { release(); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Driver driver;
  CUstream stream = nullptr;
  CUdeviceptr memory = 0;

  CUdevice device() const { return device_; }

 private:
  CUdevice find_device(const gpumem_device_info& wanted) const {
    int count = 0;
    driver.check(driver.init(0), "cuInit");
    driver.check(driver.device_get_count(&count), "cuDeviceGetCount");
    for (int ordinal = 0; ordinal < count; ++ordinal) {
      CUdevice device = 0;
      CUuuid uuid = {};
      driver.check(driver.device_get(&device, ordinal), "cuDeviceGet");
      driver.check(driver.device_get_uuid(&uuid, device), "cuDeviceGetUuid");
      if (std::memcmp(uuid.bytes, wanted.uuid, sizeof wanted.uuid) == 0) return device;
    }
    throw std::runtime_error("the CUDA driver, called directly, does not have the device");
  }

  void release() {
    if (memory != 0) driver.mem_free(memory);
    if (stream != nullptr) driver.stream_destroy(stream);
    driver.set_current(nullptr);
    driver.primary_release(device_);
  }

  CUdevice device_;
  CUcontext context_ = nullptr;
};

class CudaPath final : public Path {
 public:
  CudaPath(Kind kind, const Context& context, uint64_t capacity, uint64_t chunk, bool migrates)
      : Path(chunk), kind_(kind), context_(context) {
    migrates_ = migrates;
    const Driver& driver = context.driver;
    if (kind == Kind::kPageable || kind == Kind::kRegistered) {
      pages_ = Pages(capacity);
      bytes_ = pages_.get();
      if (kind == Kind::kRegistered)
        driver.check(driver.host_register(bytes_, capacity, 0), "cuMemHostRegister");
    } else if (kind == Kind::kManaged) {
      driver.check(driver.managed_alloc(&address_, capacity, CU_MEM_ATTACH_GLOBAL), "cuMemAllocManaged");
      bytes_ = reinterpret_cast<std::byte*>(address_);
    } else {  // a range or buffer too: beside it stands memory of cuMemAlloc
      unsigned flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
      if (kind == Kind::kWriteCombined) flags |= CU_MEMHOSTALLOC_WRITECOMBINED;
      void* pointer = nullptr;
      driver.check(driver.host_alloc(&pointer, capacity, flags), "cuMemHostAlloc");
      bytes_ = static_cast<std::byte*>(pointer);
    }
    address_ = reinterpret_cast<CUdeviceptr>(bytes_);
    if (kind == Kind::kMapped && driver.host_device_pointer(&address_, bytes_, 0) != CUDA_SUCCESS) {
      driver.host_free(bytes_);
      throw std::runtime_error("the CUDA driver, called directly: cuMemHostGetDevicePointer failed");
    }
  }

  ~CudaPath() override {
    if (kind_ == Kind::kRegistered) {
      context_.driver.host_unregister(bytes_);
    } else if (kind_ == Kind::kManaged) {
      context_.driver.mem_free(address_);
    } else if (kind_ != Kind::kPageable) {
      context_.driver.host_free(bytes_);
    }
  }

 private:
  void enqueue(Direction direction, uint64_t offset, uint64_t size) override {
    const CUdeviceptr host = address_ + offset;
    const CUdeviceptr device = context_.memory + offset;
    const bool to_device = direction == Direction::kToDevice;
    context_.driver.check(
        context_.driver.copy(to_device ? device : host, to_device ? host : device, size, context_.stream),
        "cuMemcpyAsync");
  }

  void enqueue_prefetch(Direction direction, uint64_t offset, uint64_t size) override {
    CUmemLocation location = {};
    const bool to_device = direction == Direction::kToDevice;
    location.type = to_device ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST;
    location.id = to_device ? context_.device() : 0;
    context_.driver.check(context_.driver.prefetch(address_ + offset, size, location, 0, context_.stream),
                          "cuMemPrefetchAsync");
  }

  void wait() override {
    context_.driver.check(context_.driver.stream_synchronize(context_.stream), "cuStreamSynchronize");
  }

  Kind kind_;
  const Context& context_;
  Pages pages_;  // pageable and registered
  CUdeviceptr address_ = 0;
};

class CudaPaths final : public RawPaths {
 public:
  CudaPaths(const gpumem_device_info& device, uint64_t capacity) : context_(device, capacity) {}
  std::string name() const override { return "the CUDA driver"; }
  std::unique_ptr<Path> make(Kind kind, uint64_t capacity, uint64_t chunk, bool migrates) override {
    if (migrates && context_.driver.prefetch == nullptr)
      throw std::runtime_error("the CUDA driver has no " GPUMEM_NAME(cuMemPrefetchAsync));
    return std::make_unique<CudaPath>(kind, context_, capacity, chunk, migrates);
  }

 private:
  Context context_;
};

#undef GPUMEM_ENTRY
#undef GPUMEM_NAME
#undef GPUMEM_QUOTE

}  // namespace

std::unique_ptr<RawPaths> make_cuda_paths(const gpumem_device_info& device, uint64_t capacity) {
  return std::make_unique<CudaPaths>(device, capacity);
}

#else

std::unique_ptr<RawPaths> make_cuda_paths(const gpumem_device_info& /*device*/, uint64_t /*capacity*/) {
  throw std::runtime_error("this program was built without the headers of CUDA");
}

#endif

}  // namespace gpumem::cli
