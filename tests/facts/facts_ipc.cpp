// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Facts about sharing between processes. The process of the fact is the importer; its Peer, role "exporter",
// owns the memory and does one thing for each byte that comes through the socket.
#include "facts.hpp"

#include <unistd.h>

#include <cstring>

namespace facts {
namespace {

constexpr std::size_t kSize = 4 * kMiB;
using Handle = CUmemGenericAllocationHandle;

bool is_exporter() { return current_role == "exporter"; }

CUipcMemHandle legacy_handle(CUdeviceptr p) {
  CUipcMemHandle handle = {};
  must(cu.IpcGetMemHandle(&handle, p), "cuIpcGetMemHandle");
  return handle;
}

CUmemAllocationProp shareable(CUmemLocationType type = CU_MEM_LOCATION_TYPE_DEVICE) {
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = type;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return prop;
}

CUdeviceptr map_with_access(Handle handle, CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
  CUdeviceptr p = 0;
  must(cu.MemAddressReserve(&p, kSize, 0, 0, 0), "cuMemAddressReserve");
  must(cu.MemMap(p, kSize, 0, handle, 0), "cuMemMap");
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = flags;
  must(cu.MemSetAccess(p, kSize, &access, 1), "cuMemSetAccess");
  return p;
}

int export_fd(Handle handle) {
  int fd = -1;
  must(cu.MemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
       "cuMemExportToShareableHandle");
  return fd;
}

// A block that can be shared, mapped and filled.
struct SharedBlock {
  explicit SharedBlock(std::uint8_t byte) {
    const CUmemAllocationProp prop = shareable();
    must(cu.MemCreate(&handle, kSize, &prop, 0), "cuMemCreate");
    address = map_with_access(handle);
    must(cu.MemsetD8(address, byte, kSize), "cuMemsetD8");
    must(cu.CtxSynchronize(), "cuCtxSynchronize");
  }

  Handle handle = 0;
  CUdeviceptr address = 0;
};

// How an exporter goes: it leaves, is killed, or only gives its memory back.
enum Parting { kLeaves, kIsKilled, kGivesBack };

void await_parting(Peer& exporter, int how) {
  if (how == kIsKilled) return exporter.kill();
  exporter.signal();
  if (how == kGivesBack) return exporter.await();
  exporter.wait_for_end();
}

// What the importer sees of bytes whose exporter has gone.
void try_orphan(CUdeviceptr p, std::uint8_t byte, std::uint8_t own) {
  say_yes("bytes_then", device_bytes(p, kSize, byte));
  say("memset", cu.MemsetD8(p, own, kSize));
  say("context_then", cu.CtxSynchronize());
  say_yes("own_write_is_there", device_bytes(p, kSize, own));
}

CUresult import_fd(int fd, Handle& handle) {
  return cu.MemImportFromShareableHandle(&handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

// Opens, reports, closes.
void try_open(const std::string& detail, const CUipcMemHandle& handle) {
  CUdeviceptr p = 0;
  const CUresult code = cu.IpcOpenMemHandle(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  say(detail, code);
  if (code == CUDA_SUCCESS) {
    std::uint8_t byte = 0;
    say(detail + ".copy_from", cu.MemcpyDtoH(&byte, p, 1));
    say(detail + ".close", cu.IpcCloseMemHandle(p));
  }
}

void legacy_stale(int) {
  if (is_exporter()) {
    Peer importer = Peer::other_side();
    CUdeviceptr p = device_memory(kSize);
    must(cu.MemsetD8(p, 0x61, kSize), "cuMemsetD8");
    CUipcMemHandle handle = legacy_handle(p);
    importer.send(&handle, sizeof handle);
    importer.await();
    must(cu.MemFree(p), "cuMemFree");
    importer.signal();
    importer.await();
    const CUdeviceptr again = device_memory(kSize);
    const char same = again == p ? 'y' : 'n';
    importer.send(&same, 1);
    const CUipcMemHandle second = legacy_handle(again);
    importer.send(&second, sizeof second);
    importer.await_end();
    return;
  }
  Peer exporter("exporter");
  CUipcMemHandle handle;
  exporter.receive(&handle, sizeof handle);
  try_open("alive", handle);
  try_open("alive_again", handle);
  exporter.signal();
  exporter.await();
  try_open("freed", handle);
  exporter.signal();
  char same = 0;
  exporter.receive(&same, 1);
  CUipcMemHandle second;
  exporter.receive(&second, sizeof second);
  say_yes("allocated_again_at_same_address", same == 'y');
  say_yes("same_handle_bytes", std::memcmp(&handle, &second, sizeof handle) == 0);
  try_open("old_handle_after_new_allocation", handle);
  try_open("new_handle", second);
  exporter.signal();
  exporter.wait_for_end();
  try_open("new_handle_after_exporter_ended", second);
  CUipcMemHandle zeros = {};
  try_open("zeros", zeros);
  std::memset(&zeros, 0xA5, sizeof zeros);
  try_open("garbage", zeros);
}

void legacy_misuse(int) {
  if (is_exporter()) {
    Peer importer = Peer::other_side();
    const CUdeviceptr p = device_memory(kSize);
    must(cu.MemsetD8(p, 0x61, kSize), "cuMemsetD8");
    CUipcMemHandle handles[2] = {legacy_handle(p), {}};
    must(cu.IpcGetMemHandle(&handles[1], p + kMiB), "cuIpcGetMemHandle of an interior pointer");
    importer.send(handles, sizeof handles);
    importer.await_end();
    return;
  }
  Peer exporter("exporter");
  CUipcMemHandle handles[2];
  exporter.receive(handles, sizeof handles);
  say_yes("interior_gives_same_handle", std::memcmp(&handles[0], &handles[1], sizeof handles[0]) == 0);
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  say("open", cu.IpcOpenMemHandle(&first, handles[0], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  say("open_again", cu.IpcOpenMemHandle(&second, handles[0], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  say_yes("same_address", first == second);
  say("open_flags_0", cu.IpcOpenMemHandle(&second, handles[0], 0));
  say("open_flags_2", cu.IpcOpenMemHandle(&second, handles[0], 2));
  CUdeviceptr base = 0;
  std::size_t size = 0;
  say("address_range", cu.MemGetAddressRange(&base, &size, first + 100));
  say_yes("address_range_is_whole", base == first && size == kSize);
  CUipcMemHandle handle;
  say("get_handle_of_import", cu.IpcGetMemHandle(&handle, first));
  say("free_import", cu.MemFree(first));
  say("close_interior", cu.IpcCloseMemHandle(first + 4096));
  say("close", cu.IpcCloseMemHandle(first));
  say("close_again", cu.IpcCloseMemHandle(first));
  say("close_third", cu.IpcCloseMemHandle(first));
  const CUdeviceptr mine = device_memory(kSize);
  say("close_own_memory", cu.IpcCloseMemHandle(mine));
  say("close_null", cu.IpcCloseMemHandle(0));
  say("open_own", cu.IpcOpenMemHandle(&second, legacy_handle(mine), CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  say("get_null", cu.IpcGetMemHandle(&handle, 0));
  say("get_pinned", cu.IpcGetMemHandle(&handle, as_device(pinned_memory(kMiB))));
  say("get_registered", cu.IpcGetMemHandle(&handle, as_device(registered_memory(kMiB))));
  say("get_managed", cu.IpcGetMemHandle(&handle, managed_memory(kSize)));
  say("get_pageable", cu.IpcGetMemHandle(&handle, as_device(cpu_memory(kMiB))));
  Handle block = 0;
  const CUmemAllocationProp prop = shareable();
  must(cu.MemCreate(&block, kSize, &prop, 0), "cuMemCreate");
  say("get_virtual", cu.IpcGetMemHandle(&handle, map_with_access(block)));
  must(cu.MemFree(mine), "cuMemFree");
  say("get_freed", cu.IpcGetMemHandle(&handle, mine));
  CUdeviceptr pooled = 0;
  must(cu.MemAllocAsync(&pooled, kMiB, nullptr), "cuMemAllocAsync");
  say("get_pool", cu.IpcGetMemHandle(&handle, pooled));
  exporter.signal();
}

// The exporter of an opened handle frees the memory, leaves or is killed, or only frees.
void legacy_exporter_gone(int how) {
  if (is_exporter()) {
    Peer importer = Peer::other_side();
    const CUdeviceptr p = device_memory(kSize);
    must(cu.MemsetD8(p, 0x61, kSize), "cuMemsetD8");
    must(cu.CtxSynchronize(), "cuCtxSynchronize");
    const CUipcMemHandle handle = legacy_handle(p);
    importer.send(&handle, sizeof handle);
    importer.await();
    if (how == kGivesBack) {
      must(cu.MemFree(p), "cuMemFree");
      importer.signal();
      importer.await_end();
    }
    return;
  }
  Peer exporter("exporter");
  CUipcMemHandle handle;
  exporter.receive(&handle, sizeof handle);
  CUdeviceptr p = 0;
  must(cu.IpcOpenMemHandle(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "cuIpcOpenMemHandle");
  say_yes("bytes_while_alive", device_bytes(p, kSize, 0x61));
  await_parting(exporter, how);
  std::uint8_t byte = 0;
  say("copy_from", cu.MemcpyDtoH(&byte, p, 1));
  try_orphan(p, 0x61, 0x62);
  CUdeviceptr fresh = 0;
  say("alloc", cu.MemAlloc(&fresh, kSize));
  say("close", cu.IpcCloseMemHandle(p));
  say("context_at_end", cu.CtxSynchronize());
}

// A shared block by file descriptor: the exporter releases everything, leaves, or is killed.
void block_exporter_gone(int how) {
  if (is_exporter()) {
    Peer importer = Peer::other_side();
    const SharedBlock block(0x63);
    const int fd = export_fd(block.handle);
    importer.send_fd(fd);
    close(fd);
    importer.await();
    if (how == kGivesBack) {
      must(cu.MemUnmap(block.address, kSize), "cuMemUnmap");
      must(cu.MemRelease(block.handle), "cuMemRelease");
      must(cu.MemAddressFree(block.address, kSize), "cuMemAddressFree");
      importer.signal();
      importer.await_end();
    }
    return;
  }
  Peer exporter("exporter");
  const int fd = exporter.receive_fd();
  Handle block = 0;
  must(import_fd(fd, block), "cuMemImportFromShareableHandle");
  const CUdeviceptr p = map_with_access(block);
  say_yes("bytes_while_alive", device_bytes(p, kSize, 0x63));
  await_parting(exporter, how);
  try_orphan(p, 0x63, 0x64);
  Handle late = 0;
  say("import_again_then", import_fd(fd, late));
  if (late) {
    const CUdeviceptr alias = map_with_access(late);
    say_yes("late_import_sees_bytes", device_bytes(alias, kSize, 0x64));
  }
  say("unmap", cu.MemUnmap(p, kSize));
  say("release", cu.MemRelease(block));
  say("address_free", cu.MemAddressFree(p, kSize));
}

// An imported block: imported twice, exported again, its properties.
void reexport(int) {
  if (is_exporter()) {
    Peer importer = Peer::other_side();
    const SharedBlock block(0x65);
    importer.send_fd(export_fd(block.handle));
    importer.await_end();
    return;
  }
  Peer exporter("exporter");
  const int fd = exporter.receive_fd();
  Handle first = 0;
  Handle second = 0;
  say("import", import_fd(fd, first));
  say("import_again", import_fd(fd, second));
  say_yes("same_handle_value", first == second);
  const CUdeviceptr p = map_with_access(first);
  const CUdeviceptr q = map_with_access(second);
  must(cu.MemsetD8(p, 0x66, kSize), "cuMemsetD8");
  must(cu.CtxSynchronize(), "cuCtxSynchronize");
  say_yes("both_name_the_same_bytes", device_bytes(q, kSize, 0x66));
  CUmemAllocationProp prop = {};
  say("properties", cu.MemGetAllocationPropertiesFromHandle(&prop, first));
  say("properties_are", "type " + std::to_string(prop.type) + ", handles " +
                            std::to_string(prop.requestedHandleTypes) + ", location " +
                            std::to_string(prop.location.type) + " " + std::to_string(prop.location.id));
  int again = -1;
  say("export_of_import",
      cu.MemExportToShareableHandle(&again, first, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  if (again >= 0) {
    Handle third = 0;
    say("import_of_that", import_fd(again, third));
    if (third) say_yes("third_names_the_same_bytes", device_bytes(map_with_access(third), kSize, 0x66));
  }
  CUdeviceptr reserved = 0;
  must(cu.MemAddressReserve(&reserved, 2 * kSize, 0, 0, 0), "cuMemAddressReserve");
  say("map_longer_than_exported", cu.MemMap(reserved, 2 * kSize, 0, first, 0));
  say("map_shorter_than_exported", cu.MemMap(reserved, kSize / 2, 0, first, 0));
  Handle none = 0;
  say("import_of_closed_fd", import_fd(987, none));
  say("import_of_pipe", [&] {
    int ends[2];
    if (pipe(ends) != 0) give_up("pipe");
    return import_fd(ends[0], none);
  }());
  say("import_as_fabric",
      cu.MemImportFromShareableHandle(&none, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
                                      CU_MEM_HANDLE_TYPE_NONE));
  CUmemAllocationProp plain = shareable();
  plain.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  Handle own = 0;
  must(cu.MemCreate(&own, kSize, &plain, 0), "cuMemCreate");
  say("export_of_undeclared",
      cu.MemExportToShareableHandle(&again, own, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  exporter.signal();
}

// Device writes through an import with READ access.
void read_import(int which) {
  if (is_exporter()) {
    Peer importer = Peer::other_side();
    const SharedBlock block(0x67);
    importer.send_fd(export_fd(block.handle));
    importer.await();
    const char intact = device_bytes(block.address, kSize, 0x67) ? 'y' : 'n';
    importer.send(&intact, 1);
    return;
  }
  Peer exporter("exporter");
  Handle block = 0;
  must(import_fd(exporter.receive_fd(), block), "cuMemImportFromShareableHandle");
  const CUdeviceptr p = map_with_access(block, CU_MEM_ACCESS_FLAGS_PROT_READ);
  say_yes("readable", device_bytes(p, kSize, 0x67));
  std::uint8_t* pinned = pinned_memory(kPage);
  try_device_write(which, p, [&](CUstream stream) { return cu.MemcpyHtoDAsync(p, pinned, 64, stream); });
  exporter.signal();
  char intact = 0;
  exporter.receive(&intact, 1);
  say_yes("exporters_bytes_intact", intact == 'y');
}

// Events, whose exporter leaves or is killed.
void events(int how) {
  if (is_exporter()) {
    Peer importer = Peer::other_side();
    CUstream stream = new_stream();
    CUevent event = new_event(CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
    CUipcEventHandle handle = {};
    must(cu.IpcGetEventHandle(&handle, event), "cuIpcGetEventHandle");
    importer.send(&handle, sizeof handle);
    importer.await();
    Hold hold(stream);
    must(cu.EventRecord(event, stream), "cuEventRecord");
    importer.signal();
    importer.await();
    hold.release();
    must(cu.StreamSynchronize(stream), "cuStreamSynchronize");
    importer.signal();
    importer.await_end();
    return;
  }
  Peer exporter("exporter");
  CUipcEventHandle handle;
  exporter.receive(&handle, sizeof handle);
  CUevent event = nullptr;
  say("open", cu.IpcOpenEventHandle(&event, handle));
  say("query_never_recorded", cu.EventQuery(event));
  exporter.signal();
  exporter.await();
  say("query_recorded_there", cu.EventQuery(event));
  CUstream stream = new_stream();
  say("wait_for_it", cu.StreamWaitEvent(stream, event, 0));
  say("stream_held_by_it", settle(stream, 100));
  exporter.signal();
  exporter.await();
  say("query_completed_there", cu.EventQuery(event));
  say("stream_then", settle(stream));
  float ms = 0;
  say("elapsed", cu.EventElapsedTime(&ms, event, event));
  say("get_handle_of_import", cu.IpcGetEventHandle(&handle, event));
  CUevent timed = new_event();
  say("get_handle_of_ordinary", cu.IpcGetEventHandle(&handle, timed));
  CUevent own = new_event(CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
  CUipcEventHandle own_handle = {};
  must(cu.IpcGetEventHandle(&own_handle, own), "cuIpcGetEventHandle");
  CUevent opened = nullptr;
  say("open_own", cu.IpcOpenEventHandle(&opened, own_handle));
  await_parting(exporter, how);
  say("query_exporter_gone", cu.EventQuery(event));
  say("record_exporter_gone", cu.EventRecord(event, stream));
  say("stream_exporter_gone", settle(stream));
  say("wait_exporter_gone", cu.StreamWaitEvent(stream, event, 0));
  say("stream_exporter_gone_too", settle(stream));
  say("open_exporter_gone", cu.IpcOpenEventHandle(&opened, handle));
  say("destroy", cu.EventDestroy(event));
}

void dma_buf(int) {
  const auto ask = [](const char* detail, CUdeviceptr p, std::size_t size, unsigned long long flags) {
    int fd = -1;
    const CUresult code =
        cu.MemGetHandleForAddressRange(&fd, p, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, flags);
    say(detail, code);
    if (fd >= 0) close(fd);
  };
  const CUdeviceptr p = device_memory(kSize);
  ask("device", p, kSize, 0);
  ask("device_part", p + kMiB, kMiB, 0);
  ask("device_unaligned", p + 100, kPage, 0);
  ask("device_unaligned_size", p, 100, 0);
  ask("device_past_end", p, 64 * kMiB, 0);
  ask("device_pcie_flag", p, kSize, 1);
  ask("device_size_0", p, 0, 0);
  const CUdeviceptr odd = device_memory(1000);
  ask("odd_size", odd, kPage, 0);
  ask("pinned", as_device(pinned_memory(kSize)), kSize, 0);
  ask("managed", managed_memory(kSize), kSize, 0);
  ask("pageable", as_device(cpu_memory(kSize)), kSize, 0);
  Handle block = 0;
  const CUmemAllocationProp prop = shareable();
  must(cu.MemCreate(&block, kSize, &prop, 0), "cuMemCreate");
  ask("virtual", map_with_access(block), kSize, 0);
}

constexpr Fact kFacts[] = {
    {.name = "ipc.legacy_stale", .run = legacy_stale},
    {.name = "ipc.legacy_misuse", .run = legacy_misuse},
    {.name = "ipc.legacy_exporter_left", .run = legacy_exporter_gone, .arg = kLeaves},
    {.name = "ipc.legacy_exporter_killed", .run = legacy_exporter_gone, .arg = kIsKilled},
    {.name = "ipc.legacy_exporter_freed", .run = legacy_exporter_gone, .arg = kGivesBack},
    {.name = "ipc.block_exporter_left", .run = block_exporter_gone, .arg = kLeaves},
    {.name = "ipc.block_exporter_killed", .run = block_exporter_gone, .arg = kIsKilled},
    {.name = "ipc.block_exporter_released", .run = block_exporter_gone, .arg = kGivesBack},
    {.name = "ipc.block_reexport", .run = reexport},
    {.name = "ipc.read_import_memset", .run = read_import, .arg = 0},
    {.name = "ipc.read_import_htod", .run = read_import, .arg = 1},
    {.name = "ipc.read_import_dtod", .run = read_import, .arg = 2},
    {.name = "ipc.read_import_kernel", .run = read_import, .arg = 3},
    {.name = "ipc.event_exporter_left", .run = events, .arg = kLeaves},
    {.name = "ipc.event_exporter_killed", .run = events, .arg = kIsKilled},
    {.name = "ipc.dma_buf", .run = dma_buf},
};

}  // namespace

std::span<const Fact> ipc_facts() { return kFacts; }

}  // namespace facts
