// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Streams: what their handles point to, and what can be enqueued in one besides copies.
#pragma once

#include <memory>
#include <string>

#include "contract/stream.h"
#include "core/device/device.h"
#include "core/object/handles.h"
#include "core/object/host_function_guard.h"
#include "core/object/object.h"

namespace gpumem::core {

class Stream final : public Object {
 public:
  static constexpr Type kType = Type::kStream;
  Stream(std::shared_ptr<Context> context, Device& device, bool wrapped, std::string name)
      : Object(kType, std::move(context)), device_(device), wrapped_(wrapped), name_(std::move(name)) {}

  Line describe() const override;
  void list(Fields& fields) const noexcept override;
  Result<void> release() override;

  Device& device() const { return device_; }
  bool wrapped() const { return wrapped_; }
  // The device's legacy NULL stream.
  bool is_default() const { return wrapped_ && backend_->is_default(); }
  const std::string& name() const { return name_; }
  backend::Stream& backend() const { return *backend_; }
  const std::shared_ptr<backend::Stream>& shared_backend() const { return backend_; }
  // Identifies the stream's work among all streams; never 0.
  uint64_t order_key() const { return order_key_; }
  // The answer of gpumem_stream_get_info(), which has the native handle.
  const gpumem_stream_info& info() const {
    backend_->expose();
    return info_;
  }
  // Refuses on a lost device and from a host function. `captured`: whether the stream is being captured, so
  // that the work becomes a node of a graph (STR-20).
  Result<void> accepts_work(bool* captured) const {
    GPUMEM_TRY(device_.usable());
    GPUMEM_TRY(outside_host_function());
    const auto capturing = backend_->is_capturing();
    if (!capturing) [[unlikely]]
      return capturing.error();
    *captured = *capturing;
    return {};
  }
  // The same for calls that no graph can hold.
  Result<void> usable() const {
    bool captured = false;
    GPUMEM_TRY(accepts_work(&captured));
    if (captured) [[unlikely]]
      return captured_error();
    return {};
  }
  // The capture that it is part of; with an id of 0 if it is not being captured.
  Result<backend::Capture> capture() const {
    bool captured = false;
    GPUMEM_TRY(accepts_work(&captured));
    if (captured) [[unlikely]]
      return current_capture(*backend_);
    return backend::Capture{};
  }
  // Of a stream that is being captured. INVALID_STATE if that was invalidated.
  static Result<backend::Capture> current_capture(backend::Stream& stream);

 private:
  static Error captured_error();
  void set_backend(std::shared_ptr<backend::Stream> made);

  template <class T, class Make>
  friend Result<uint64_t> make_object(DeviceObject& device, bool wrapped, std::string name, Make make);

  Device& device_;
  const bool wrapped_;
  const std::string name_;
  std::shared_ptr<backend::Stream> backend_;
  gpumem_stream_info info_ = GPUMEM_STREAM_INFO_INIT;
  uint64_t order_key_ = 0;
};

Result<uint64_t> create_stream(DeviceObject& device, int32_t priority, std::string name);
Result<uint64_t> wrap_stream(DeviceObject& device, void* native);
// What a wait or query answers.
inline Result<Status> ready(const Result<bool>& complete) {
  if (!complete) return complete.error();
  return *complete ? GPUMEM_SUCCESS : GPUMEM_NOT_READY;
}
inline Result<Status> query_stream(Stream& stream) {
  GPUMEM_TRY(stream.usable());
  return ready(stream.backend().query());
}
Result<Status> synchronize_stream(Stream& stream, uint64_t timeout_ns);
Result<void> launch_host_function(Stream& stream, gpumem_host_function function, void* user_data);
Result<void> write_value(Stream& stream, void* address, uint64_t value, uint32_t value_size);
Result<void> wait_value(Stream& stream, void* address, uint64_t value, uint32_t value_size,
                        gpumem_wait_condition condition);

}  // namespace gpumem::core
