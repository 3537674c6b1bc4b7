// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/memory/physical.h"

#include <cinttypes>
#include <cstdio>

#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "core/memory/statistics.h"
#include "core/object/context.h"
#include "core/object/destroy.h"
#include "core/object/held.h"
#include "core/object/host_function_guard.h"
#include "core/object/precedence.h"

namespace gpumem::core {

void Physical::set_backend(std::unique_ptr<backend::Physical> made) noexcept {
  backend_ = std::move(made);
  const backend::PhysicalFacts& known = facts();
  info_.location = known.location;
  info_.location_id = known.location_id;
  info_.device = reinterpret_cast<gpumem_device>(pointer_to(device_.handle()));
  info_.device_ordinal = device_.ordinal();
  info_.imported = known.imported ? 1 : 0;
  info_.size = known.size;
  info_.granularity = known.granularity;
  info_.block_id = known.block_id;
  info_.handle_types = known.handle_types;
  info_.granted_flags = known.granted;
  info_.native_handle = backend_->native();
  std::snprintf(info_.name, sizeof info_.name, "%s", name_.c_str());
}

Result<backend::VirtualMemory*> virtual_memory_of(Device& device) {
  if (backend::VirtualMemory* const facet = device.backend().vmm()) return facet;
  return make_error(GPUMEM_ERROR_UNSUPPORTED, "device %u has no virtual memory management (vmm.device is NO)",
                    device.ordinal());
}

namespace {

Result<void> check_node(const Context& context, const backend::PhysicalRequest& request) {
  if (request.location != GPUMEM_LOCATION_HOST_NUMA || context.backend().has_numa_node(request.numa_node))
    return {};
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "there is no NUMA node %d", request.numa_node);
}

gpumem_capability capability_of(gpumem_location location) {
  if (location == GPUMEM_LOCATION_HOST) return GPUMEM_CAPABILITY_VMM_HOST;
  return location == GPUMEM_LOCATION_HOST_NUMA ? GPUMEM_CAPABILITY_VMM_HOST_NUMA
                                               : GPUMEM_CAPABILITY_VMM_DEVICE;
}

// Refuses required properties that are impossible, and drops preferred ones that are (VMM-4, VMM-6).
Result<void> settle(Device& device, backend::PhysicalRequest* request) {
  struct Need {
    uint64_t bit;
    gpumem_capability capability;
  };
  GPUMEM_TRY(device.need(capability_of(request->location)));
  for (const Need& type : {Need{GPUMEM_HANDLE_TYPE_POSIX_FD, GPUMEM_CAPABILITY_VMM_HANDLE_POSIX_FD},
                           Need{GPUMEM_HANDLE_TYPE_FABRIC, GPUMEM_CAPABILITY_VMM_HANDLE_FABRIC}}) {
    if ((request->handle_types & type.bit) != 0) GPUMEM_TRY(device.need(type.capability));
  }
  for (const Need& flag : {Need{GPUMEM_PHYSICAL_COMPRESSIBLE, GPUMEM_CAPABILITY_VMM_COMPRESSIBLE},
                           Need{GPUMEM_PHYSICAL_RDMA, GPUMEM_CAPABILITY_VMM_RDMA},
                           Need{GPUMEM_PHYSICAL_HW_DECOMPRESS, GPUMEM_CAPABILITY_VMM_HW_DECOMPRESS}}) {
    if (((request->require | request->prefer) & flag.bit) == 0) continue;
    Result<void> can = device.need(flag.capability);
    if (can && request->location != GPUMEM_LOCATION_DEVICE) {
      can = make_error(GPUMEM_ERROR_UNSUPPORTED,
                       "memory of the host has no GPUMEM_PHYSICAL_ properties; do not require them");
    }
    if (can) continue;
    if ((request->require & flag.bit) != 0) return can;
    request->prefer &= ~flag.bit;
  }
  return {};
}

Result<void> check_size(uint64_t size, const backend::Granularity& unit) {
  if (size % unit.minimum == 0) return {};
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                    "the size of %" PRIu64 " bytes is not a multiple of the granularity of %" PRIu64
                    " bytes; see gpumem_physical_get_granularity()",
                    size, unit.minimum);
}

// Checks the size by the location's unit first, because a bad size outranks the device's other refusals
// (COM-17). A location unknown to the device has no unit.
Result<void> check_plain_size(Device& device, const backend::PhysicalRequest& request) {
  backend::VirtualMemory* const facet = device.backend().vmm();
  if (facet == nullptr) return {};
  backend::PhysicalRequest plain;
  plain.location = request.location;
  plain.numa_node = request.numa_node;
  auto unit = facet->granularity(plain);
  if (unit) return check_size(request.size, *unit);
  const Status status = unit.error().status;
  const bool unknown = status == GPUMEM_ERROR_INVALID_ARGUMENT || status == GPUMEM_ERROR_UNSUPPORTED ||
                       status == GPUMEM_ERROR_SYMBOL_MISSING || status == GPUMEM_ERROR_DEVICE_LOST;
  return unknown ? Result<void>() : unit.error();
}

}  // namespace

Result<uint64_t> make_physical(const std::shared_ptr<Context>& context, Device& device, std::string name,
                               const MakePhysical& make) {
  auto object = std::make_unique<Physical>(context, device, std::move(name));
  auto handle = handles::reserve(*object);
  if (!handle) return handle.error();
  Cleanup undo([&] { handles::cancel(*object); });
  Statistics::Blocks room{{0, {}}};
  auto made = make();
  if (!made) return made.error();
  undo.dismiss();
  object->set_backend(std::move(*made));
  const backend::PhysicalFacts& facts = object->facts();
  context->statistics().keep_block(std::move(room), facts.block_id, facts.size,
                                   facts.on_device() && !facts.imported ? facts.location_id : -1);
  context->add_object(*object);
  handles::publish(object.release());
  return *handle;
}

namespace {

// Creates or imports. Either way, the size can be checked only with the device's unit.
template <class Make>
Result<uint64_t> make_checked(DeviceObject& object, backend::PhysicalRequest request, std::string name,
                              Make make) {
  Context& context = object.context();
  Device& device = object.device();
  Verdict verdict;
  verdict.note(check_node(context, request));
  const auto outside = outside_host_function();
  if (outside) verdict.note(check_plain_size(device, request));
  verdict.note(device.usable());
  verdict.note(outside);
  if (!verdict) return verdict.error();
  const auto open = context.stay_open();
  if (!open) return open.error();
  auto facet = virtual_memory_of(device);
  if (!facet) return facet.error();
  GPUMEM_TRY(settle(device, &request));
  auto unit = (*facet)->granularity(request);
  if (!unit) return unit.error();
  GPUMEM_TRY(check_size(request.size, *unit));
  return make_physical(object.shared_context(), device, std::move(name),
                       [&] { return make(**facet, request); });
}

}  // namespace

Result<backend::Granularity> physical_granularity(DeviceObject& object, backend::PhysicalRequest request) {
  Device& device = object.device();
  Verdict verdict;
  verdict.note(check_node(object.context(), request));
  verdict.note(device.usable());
  verdict.note(outside_host_function());
  if (!verdict) return verdict.error();
  auto facet = virtual_memory_of(device);
  if (!facet) return facet.error();
  GPUMEM_TRY(settle(device, &request));
  return (*facet)->granularity(request);
}

Result<uint64_t> create_physical(DeviceObject& device, backend::PhysicalRequest request, std::string name) {
  return make_checked(device, request, std::move(name),
                      [&](backend::VirtualMemory& facet, const backend::PhysicalRequest& wanted) {
                        return with_room(device.context(), [&] { return facet.create(wanted); });
                      });
}

Result<uint64_t> import_physical(DeviceObject& device, const backend::PhysicalRequest& request,
                                 int file_descriptor, std::string name) {
  return make_checked(device, request, std::move(name),
                      [&](backend::VirtualMemory& facet, const backend::PhysicalRequest& wanted) {
                        return facet.import_fd(wanted, file_descriptor);
                      });
}

Result<uint64_t> import_fabric(DeviceObject& device, const backend::PhysicalRequest& request,
                               const gpumem_fabric_handle& handle, std::string name) {
  using Made = Result<std::unique_ptr<backend::Physical>>;
  return make_checked(device, request, std::move(name),
                      [&](backend::VirtualMemory& facet, const backend::PhysicalRequest& wanted) -> Made {
                        // Check even if the request does not name the type: an older driver does not know it.
                        GPUMEM_TRY(device.device().need(GPUMEM_CAPABILITY_VMM_HANDLE_FABRIC));
                        return facet.import_fabric(wanted, handle);
                      });
}

namespace {

Result<void> check_exportable(const Physical& physical, gpumem_handle_types type, const char* name) {
  GPUMEM_TRY(physical.device().usable());
  GPUMEM_TRY(outside_host_function());
  if ((physical.facts().handle_types & type) != 0) return {};
  if (physical.facts().imported) {
    return make_error(GPUMEM_ERROR_UNSUPPORTED,
                      "this backend does not export memory that was imported; export it where it was made");
  }
  return make_error(GPUMEM_ERROR_UNSUPPORTED, "the memory was created without %s; it cannot be exported so",
                    name);
}

}  // namespace

Result<int> export_physical(Physical& physical) {
  GPUMEM_TRY(check_exportable(physical, GPUMEM_HANDLE_TYPE_POSIX_FD, "GPUMEM_HANDLE_TYPE_POSIX_FD"));
  return physical.backend().export_fd();
}

Result<gpumem_fabric_handle> export_fabric(Physical& physical) {
  GPUMEM_TRY(check_exportable(physical, GPUMEM_HANDLE_TYPE_FABRIC, "GPUMEM_HANDLE_TYPE_FABRIC"));
  return physical.backend().export_fabric();
}

Line Physical::describe() const {
  return line_of("physical memory %s: %" PRIu64 " bytes, device %u%s", shown(name()), facts().size,
                 device().ordinal(), facts().on_device() ? "" : ", on the host");
}

void Physical::list(Fields& fields) const noexcept {
  fields.add("name", name());
  fields.add("size", facts().size);
  fields.add("device", uint64_t{device().ordinal()});
  fields.add("location", facts().on_device() ? "device" : "host");
}

Object::Discard Physical::discard() const noexcept {
  return [](uint64_t handle) { return give_back<Physical>(handle, destroy_object); };
}

Result<void> Physical::release() {
  GPUMEM_TRY(backend().release());
  context().statistics().drop_block(facts().block_id);
  return {};
}

}  // namespace gpumem::core
