// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The library as the commands use it: calls that throw, and owners of its objects.
#pragma once

#include <gpumem/gpumem.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "commands.h"

namespace gpumem::cli {

// A call of the library failed.
class CallFailed : public std::runtime_error {
 public:
  explicit CallFailed(const gpumem_error& error);
  gpumem_status status() const { return status_; }

 private:
  gpumem_status status_;
};

// Calls a function of the library whose last parameter is the error; throws CallFailed if it fails.
template <typename Function, typename... Arguments>
void call(Function function, Arguments... arguments) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  if (GPUMEM_FAILED(function(arguments..., &error))) throw CallFailed(error);
}

// Destroys its object at the end of its life.
template <typename Handle, gpumem_status (*destroy)(Handle, gpumem_error*)>
class Owner {
 public:
  Owner() = default;
  explicit Owner(Handle handle) : handle_(handle) {}
  Owner(Owner&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owner& operator=(Owner&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  // What cannot be destroyed still lives, and require_nothing_lives() finds it.
  ~Owner() { destroy(handle_, nullptr); }

  Handle get() const { return handle_; }
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  Handle handle_ = nullptr;
};

using Memory = Owner<gpumem_memory, gpumem_memory_destroy>;
using Stream = Owner<gpumem_stream, gpumem_stream_destroy>;
using Hub = Owner<gpumem_hub, gpumem_hub_close>;
using Link = Owner<gpumem_link, gpumem_link_close>;

// Device memory in a range: several blocks with seams between them, which the device may read and write.
class MappedRange {
 public:
  MappedRange() = default;
  MappedRange(gpumem_instance instance, gpumem_device device, uint64_t size);
  MappedRange(MappedRange&& other) noexcept { *this = std::move(other); }
  MappedRange& operator=(MappedRange&& other) noexcept {
    std::swap(range_, other.range_);
    std::swap(base_, other.base_);
    std::swap(mapped_, other.mapped_);
    return *this;
  }
  ~MappedRange();

  void* base() const { return base_; }

 private:
  gpumem_range range_ = nullptr;
  void* base_ = nullptr;
  uint64_t mapped_ = 0;  // bytes
};

// Device memory in a buffer that has grown to its size in several steps.
class GrownBuffer {
 public:
  GrownBuffer() = default;
  GrownBuffer(gpumem_device device, uint64_t size);

  void* base() const { return info().base; }
  explicit operator bool() const { return static_cast<bool>(buffer_); }

  // Sleeps once what is in the stream is done, and wakes with its bytes.
  void nap(gpumem_stream stream);

 private:
  gpumem_buffer_info info() const;

  Owner<gpumem_buffer, gpumem_buffer_destroy> buffer_;
};

// The default instance, so that the variables of the environment count. `backend`, unless empty, wins over
// GPUMEM_BACKEND.
gpumem_instance open_instance(const std::string& backend);

gpumem_instance_info instance_info(gpumem_instance instance);
gpumem_device_info device_info(gpumem_device device);
gpumem_memory_info memory_info(const Memory& memory);

gpumem_device find_device(gpumem_instance instance, uint32_t ordinal);
Stream create_stream(gpumem_device device);
Memory create_memory(gpumem_device device, const gpumem_memory_desc& desc);
Memory register_memory(gpumem_device device, void* pointer, uint64_t size);

Hub open_hub(gpumem_instance instance, const HubPlace& place, gpumem_hub_flags flags, uint32_t links);
// The hub may take so long for each answer; 0 is the library's default.
Link connect_to_hub(gpumem_instance instance, const HubPlace& place, uint64_t timeout_ns = 0);
gpumem_hub_info hub_info(const Hub& hub);
gpumem_link_info link_info(const Link& link);
// All that is published there.
std::vector<gpumem_entry_info> entries_of(const Link& link);
// Throws if the hub is no keeper.
void require_keeper(const Link& link);

// Throws with the library's own list if memory, streams or events of the instance are left.
void require_nothing_lives(gpumem_instance instance);

std::string backend_name(gpumem_backend backend);
std::string type_name(gpumem_share_type type);

// Cause and remedy of a status; empty texts if the library does not know the number.
gpumem_status_info status_info(gpumem_status status);

}  // namespace gpumem::cli
