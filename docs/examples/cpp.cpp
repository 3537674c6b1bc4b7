// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The C interface from C++20: owners, exceptions, spans and texts. See docs/cpp.md.
#include <gpumem/gpumem.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

// A call that failed. Decide by the status; the text is for people.
class GpuError : public std::runtime_error {
 public:
  explicit GpuError(const gpumem_error& error)
      : std::runtime_error(std::string(error.function) + ": " + error.message), status_(error.status) {}
  gpumem_status status() const { return status_; }
  std::string_view name() const { return gpumem_status_name(status_); }

 private:
  gpumem_status status_;
};

// Calls a function whose last parameter is the error. Returns success or a note, such as GPUMEM_NOT_READY.
template <class Function, class... Arguments>
gpumem_status call(Function function, Arguments... arguments) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  const gpumem_status status = function(arguments..., &error);
  if (GPUMEM_FAILED(status)) throw GpuError(error);
  return status;
}

// A handle points to an incomplete struct, so a unique_ptr can own it.
template <auto function>
struct Destroy {
  template <class Object>
  void operator()(Object* handle) const {
    function(handle, nullptr);
  }
};

// Waits before it destroys, so that memory declared before the stream may be freed after it.
struct Finish {
  void operator()(gpumem_stream stream) const {
    gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, nullptr);
    gpumem_stream_destroy(stream, nullptr);
  }
};

struct Close {
  void operator()(gpumem_instance instance) const {
    gpumem_instance_close(instance, GPUMEM_CLOSE_FORCE, nullptr, nullptr);
  }
};

template <class Handle, class Deleter>
using Owner = std::unique_ptr<std::remove_pointer_t<Handle>, Deleter>;
using Instance = Owner<gpumem_instance, Close>;
using Memory = Owner<gpumem_memory, Destroy<gpumem_memory_destroy>>;
using Stream = Owner<gpumem_stream, Finish>;
using Event = Owner<gpumem_event, Destroy<gpumem_event_destroy>>;

Instance open(gpumem_backend backend) {
  gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
  desc.backend = backend;
  gpumem_instance instance = nullptr;
  call(gpumem_instance_open, &desc, &instance);
  return Instance(instance);
}

Stream create_stream(gpumem_device device) {
  gpumem_stream stream = nullptr;
  call(gpumem_stream_create, device, nullptr, &stream);
  return Stream(stream);
}

Memory allocate(gpumem_device device, gpumem_kind kind, uint64_t size, std::string_view name) {
  const std::string terminated(name);  // a string_view has no 0 at its end
  gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
  desc.kind = kind;
  desc.size = size;
  desc.name = terminated.c_str();
  gpumem_memory memory = nullptr;
  call(gpumem_memory_create, device, &desc, &memory);
  return Memory(memory);
}

gpumem_memory_info info(const Memory& memory) {
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  call(gpumem_memory_get_info, memory.get(), &info);
  return info;
}

// Pinned memory, for the CPU.
template <class T>
std::span<T> elements(const Memory& memory) {
  static_assert(std::is_trivially_copyable_v<T>);
  const gpumem_memory_info known = info(memory);
  if (known.host_pointer == nullptr) throw std::logic_error("the CPU cannot access this memory");
  return {static_cast<T*>(known.host_pointer), known.size / sizeof(T)};
}

void upload(const Stream& stream, const Memory& to, std::span<const std::byte> from) {
  call(gpumem_copy_async, stream.get(), info(to).device_pointer, from.data(), from.size(), nullptr);
}

void download(const Stream& stream, std::span<std::byte> to, const Memory& from) {
  call(gpumem_copy_async, stream.get(), to.data(), info(from).device_pointer, to.size(), nullptr);
}

using Group = Owner<gpumem_group, Destroy<gpumem_group_destroy>>;
using Buffer = Owner<gpumem_buffer, Destroy<gpumem_buffer_destroy>>;

Group create_group(gpumem_instance instance, std::string_view name) {
  const std::string terminated(name);
  gpumem_group_desc desc = GPUMEM_GROUP_DESC_INIT;
  desc.name = terminated.c_str();
  gpumem_group group = nullptr;
  call(gpumem_group_create, instance, &desc, &group);
  return Group(group);
}

Buffer create_buffer(gpumem_device device, uint64_t size, const Group& group, std::string_view tag) {
  const std::string terminated(tag);
  gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
  desc.size = size;
  desc.reserve = 2 * size;
  desc.group = group.get();
  desc.tag = terminated.c_str();
  gpumem_buffer buffer = nullptr;
  call(gpumem_buffer_create, device, &desc, &buffer);
  return Buffer(buffer);
}

gpumem_buffer_info info(const Buffer& buffer) {
  gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
  call(gpumem_buffer_get_info, buffer.get(), &info);
  return info;
}

// Is told the bytes that are copied and all bytes; false cancels.
using Progress = std::function<bool(uint64_t done, uint64_t total)>;

// A progress function of C++, and what it threw.
struct ProgressCall {
  const Progress& progress;
  std::exception_ptr thrown = nullptr;

  static int32_t GPUMEM_CALL run(void* user_data, uint64_t done, uint64_t total) noexcept {
    auto& self = *static_cast<ProgressCall*>(user_data);
    try {
      return self.progress(done, total) ? 0 : 1;
    } catch (...) {
      self.thrown = std::current_exception();
      return 1;
    }
  }
};

// Puts the buffers of a group to sleep. An exception in the progress function cancels, and goes on here.
void sleep(const Group& group, gpumem_sleep_desc desc, const Progress& progress) {
  ProgressCall state{progress};
  desc.progress = ProgressCall::run;
  desc.user_data = &state;
  gpumem_error error = GPUMEM_ERROR_INIT;
  const gpumem_status status = gpumem_group_sleep(group.get(), &desc, &error);
  if (state.thrown) std::rethrow_exception(state.thrown);
  if (GPUMEM_FAILED(status)) throw GpuError(error);
}

// What was made from the memory of a buffer, such as a registration with a network card.
struct Derived {
  bool valid = true;
  uint64_t generation = 0;
};

// The buffer keeps the address of `derived`, which must live longer.
void follow(const Buffer& buffer, Derived& derived) {
  gpumem_buffer_callbacks callbacks = GPUMEM_BUFFER_CALLBACKS_INIT;
  callbacks.before_sleep = [](void* user_data, gpumem_buffer) noexcept -> int32_t {
    static_cast<Derived*>(user_data)->valid = false;
    return 0;  // anything else refuses to sleep
  };
  callbacks.after_wake = [](void* user_data, gpumem_buffer, uint64_t generation) noexcept {
    *static_cast<Derived*>(user_data) = {true, generation};
  };
  callbacks.user_data = &derived;
  call(gpumem_buffer_set_callbacks, buffer.get(), &callbacks);
}

bool sleep_and_wake(const Instance& instance, gpumem_device device) {
  constexpr uint64_t kSize = uint64_t{4} << 20;
  Derived derived;  // destroyed last: the buffer has its address
  const Group model = create_group(instance.get(), "model");
  const Buffer weights = create_buffer(device, kSize, model, "weights");
  follow(weights, derived);
  call(gpumem_fill, instance.get(), info(weights).base, kSize, uint32_t{7}, uint32_t{1});

  gpumem_sleep_desc desc = GPUMEM_SLEEP_DESC_INIT;
  desc.content = GPUMEM_CONTENT_PAGEABLE;
  try {
    sleep(model, desc, [](uint64_t, uint64_t) -> bool { throw std::runtime_error("no time for this"); });
  } catch (const std::runtime_error& problem) {
    std::cout << "awake: " << problem.what() << '\n';
  }
  if (info(weights).state != GPUMEM_BUFFER_STATE_AWAKE || !derived.valid) return false;

  uint64_t copied = 0;
  sleep(model, desc, [&copied](uint64_t done, uint64_t) {
    copied = done;
    return true;
  });
  if (copied != kSize || derived.valid) return false;
  call(gpumem_group_wake, model.get(), nullptr);

  char last = 0;
  call(gpumem_copy, instance.get(), &last, static_cast<char*>(info(weights).base) + kSize - 1, sizeof last,
       nullptr);
  return last == 7 && derived.valid && derived.generation == info(weights).generation;
}

bool round_trip(gpumem_device device) {
  constexpr size_t kCount = 1024;
  // Destroyed in the reverse order: the stream waits for its work, then the memory goes.
  const Memory memory = allocate(device, GPUMEM_KIND_DEVICE, kCount * sizeof(float), "table");
  const Memory staging = allocate(device, GPUMEM_KIND_PINNED, kCount * sizeof(float), "staging");
  const Stream stream = create_stream(device);

  const std::span<float> numbers = elements<float>(staging);
  std::iota(numbers.begin(), numbers.end(), 0.0F);
  const std::vector<float> sent(numbers.begin(), numbers.end());
  upload(stream, memory, std::as_bytes(numbers));
  call(gpumem_stream_synchronize, stream.get(), GPUMEM_TIMEOUT_INFINITE);
  std::fill(numbers.begin(), numbers.end(), -1.0F);
  download(stream, std::as_writable_bytes(numbers), memory);
  call(gpumem_stream_synchronize, stream.get(), GPUMEM_TIMEOUT_INFINITE);
  return std::equal(numbers.begin(), numbers.end(), sent.begin());
}

int main() {
  try {
    Instance instance = open(GPUMEM_BACKEND_ANY);  // before everything else
    gpumem_device device = nullptr;
    call(gpumem_device_get, instance.get(), uint32_t{0}, &device);
    if (!round_trip(device)) {
      std::cerr << "the numbers came back changed\n";
      return 1;
    }
    std::cout << "the numbers came back unchanged\n";
    if (!sleep_and_wake(instance, device)) {
      std::cerr << "the weights came back changed\n";
      return 1;
    }

    try {
      allocate(device, GPUMEM_KIND_DEVICE, uint64_t{1} << 50, "far too much");
      std::cerr << "a PiB was allocated\n";
      return 1;
    } catch (const GpuError& problem) {
      if (problem.status() != GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY) throw;
      std::cout << "expected: " << problem.name() << ": " << problem.what() << '\n';
    }

    // A deleter cannot report; this can: it fails if something was forgotten.
    call(gpumem_instance_close, instance.get(), GPUMEM_CLOSE_CHECK, nullptr);
    instance.release();
    return 0;
  } catch (const std::exception& problem) {
    std::cerr << problem.what() << '\n';
    return 1;
  }
}
