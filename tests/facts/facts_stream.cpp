// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Facts about streams, events, host functions, value operations and capture.
#include "facts.hpp"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <iterator>
#include <thread>
#include <vector>

namespace facts {
namespace {

void misuse(int) {
  CUstream stream = nullptr;
  CUevent event = nullptr;
  say("create_flags_2", cu.StreamCreate(&stream, 2));
  say("create_null", cu.StreamCreate(nullptr, 0));
  say("event_create_flags_0x10", cu.EventCreate(&event, 0x10));
  say("event_create_null", cu.EventCreate(nullptr, 0));
  say("event_create_interprocess_with_timing", cu.EventCreate(&event, CU_EVENT_INTERPROCESS));
  say("event_create_interprocess", cu.EventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
  stream = new_stream();
  event = new_event();
  say("event_record_null", cu.EventRecord(nullptr, stream));
  say("event_query_null", cu.EventQuery(nullptr));
  say("event_synchronize_null", cu.EventSynchronize(nullptr));
  say("event_destroy_null", cu.EventDestroy(nullptr));
  say("wait_event_null", cu.StreamWaitEvent(stream, nullptr, 0));
  say("wait_event_flags_2", cu.StreamWaitEvent(stream, event, 2));
  say("host_function_null", cu.LaunchHostFunc(stream, nullptr, nullptr));
  say("stream_query_null", cu.StreamQuery(nullptr));
  say("stream_query_legacy", cu.StreamQuery(CU_STREAM_LEGACY));
  say("stream_query_per_thread", cu.StreamQuery(CU_STREAM_PER_THREAD));
  say("stream_synchronize_null", cu.StreamSynchronize(nullptr));
  unsigned flags = 99;
  say("get_flags", cu.StreamGetFlags(stream, &flags));
  say_number("flags_of_non_blocking", flags);
  CUcontext ctx = nullptr;
  say("get_context", cu.StreamGetCtx(stream, &ctx));
  say_yes("context_is_primary", ctx == context());
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  say("is_capturing", cu.StreamIsCapturing(stream, &status));
  say_number("capture_status", status);
  say("is_capturing_default_stream", cu.StreamIsCapturing(nullptr, &status));
  say("stream_destroy_null", cu.StreamDestroy(nullptr));
  say("stream_destroy_legacy", cu.StreamDestroy(CU_STREAM_LEGACY));
  say("is_capturing_null_out", cu.StreamIsCapturing(stream, nullptr));
}

void events(int) {
  CUstream stream = new_stream();
  CUevent unrecorded = new_event();
  CUevent first = new_event();
  CUevent second = new_event();
  CUevent untimed = new_event(CU_EVENT_DISABLE_TIMING);
  const auto elapsed = [](const char* detail, CUevent from, CUevent to) {
    float ms = -1;
    say(detail, cu.EventElapsedTime(&ms, from, to));
    say(std::string(detail) + "_old_entry", cu.EventElapsedTimeOld(&ms, from, to));
  };
  say("query_unrecorded", cu.EventQuery(unrecorded));
  say("synchronize_unrecorded", cu.EventSynchronize(unrecorded));
  say("wait_unrecorded", cu.StreamWaitEvent(stream, unrecorded, 0));
  say("record", cu.EventRecord(first, stream));
  say("record_untimed", cu.EventRecord(untimed, stream));
  must(cu.StreamSynchronize(stream), "cuStreamSynchronize");
  elapsed("elapsed_unrecorded_end", first, unrecorded);
  elapsed("elapsed_unrecorded_start", unrecorded, first);
  elapsed("elapsed_untimed", first, untimed);
  elapsed("elapsed_same", first, first);
  float ms = -1;
  say("elapsed_null_out", cu.EventElapsedTime(nullptr, first, first));
  say("elapsed_null_event", cu.EventElapsedTime(&ms, first, nullptr));
  {
    Hold hold(stream);
    must(cu.EventRecord(second, stream), "cuEventRecord");
    say("query_pending", cu.EventQuery(second));
    say("stream_query_busy", cu.StreamQuery(stream));
    elapsed("elapsed_pending_end", first, second);
    elapsed("elapsed_pending_start", second, first);
    say_yes("still_held", hold.active());
    // Recorded again elsewhere: the pending record no longer counts.
    CUstream other = new_stream();
    must(cu.EventRecord(second, other), "cuEventRecord");
    say("query_recorded_again_elsewhere",
        settle(other) == "CUDA_SUCCESS" ? text(cu.EventQuery(second)) : "stream busy");
    say_yes("still_held", hold.active());
  }
  must(cu.StreamSynchronize(stream), "cuStreamSynchronize");
  must(cu.EventRecord(second, stream), "cuEventRecord");
  must(cu.StreamSynchronize(stream), "cuStreamSynchronize");
  elapsed("elapsed", first, second);
  elapsed("elapsed_backwards", second, first);
  say("elapsed_backwards_sign",
      cu.EventElapsedTime(&ms, second, first) == CUDA_SUCCESS && ms < 0 ? "negative" : "not");
}

void destroy_busy(int) {
  CUstream stream = new_stream();
  CUevent event = new_event();
  std::uint8_t* pinned = pinned_memory(kMiB);
  std::memset(pinned, 0x41, kMiB);
  const CUdeviceptr device = device_memory(kMiB);
  must(cu.MemsetD8(device, 0, kMiB), "cuMemsetD8");
  must(cu.CtxSynchronize(), "cuCtxSynchronize");
  Hold hold(stream);
  must(cu.MemcpyHtoDAsync(device, pinned, kMiB, stream), "cuMemcpyHtoDAsync");
  must(cu.EventRecord(event, stream), "cuEventRecord");
  say("stream_destroy", cu.StreamDestroy(stream));
  say_yes("waited", !hold.active());
  say("event_query", cu.EventQuery(event));
  CUstream other = new_stream();
  say("wait_event", cu.StreamWaitEvent(other, event, 0));
  hold.release();
  say("event_synchronize", cu.EventSynchronize(event));
  say("event_query_then", cu.EventQuery(event));
  say("other_stream", settle(other));
  say_yes("work_was_done", device_bytes(device, kMiB, 0x41));
  {
    Hold again(other);
    must(cu.EventRecord(event, other), "cuEventRecord");
    say("event_destroy_pending", cu.EventDestroy(event));
    say_yes("event_destroy_waited", !again.active());
  }
  say("other_stream_then", settle(other));
}

// A destroyed handle is undefined for the driver: each use in a process of its own.
void destroyed_handle(int which) {
  CUstream stream = new_stream();
  CUevent event = new_event();
  must(cu.EventRecord(event, stream), "cuEventRecord");
  must(cu.StreamSynchronize(stream), "cuStreamSynchronize");
  const CUdeviceptr device = device_memory(kMiB);
  std::uint8_t* pinned = pinned_memory(kMiB);
  if (which < 10) {
    must(cu.StreamDestroy(stream), "cuStreamDestroy");
  } else {
    must(cu.EventDestroy(event), "cuEventDestroy");
  }
  CUstreamCaptureStatus status;
  float ms = 0;
  CUresult code = CUDA_SUCCESS;
  switch (which) {
    case 0:
      code = cu.StreamQuery(stream);
      break;
    case 1:
      code = cu.StreamSynchronize(stream);
      break;
    case 2:
      code = cu.MemcpyHtoDAsync(device, pinned, 64, stream);
      break;
    case 3:
      code = cu.StreamDestroy(stream);
      break;
    case 4:
      code = cu.EventRecord(event, stream);
      break;
    case 5:
      code = cu.StreamIsCapturing(stream, &status);
      break;
    case 6:
      code = cu.LaunchHostFunc(
          stream, [](void*) {}, nullptr);
      break;
    case 7:
      code = cu.StreamQuery(reinterpret_cast<CUstream>(std::uintptr_t{0x12345670}));
      break;
    case 10:
      code = cu.EventQuery(event);
      break;
    case 11:
      code = cu.EventSynchronize(event);
      break;
    case 12:
      code = cu.EventRecord(event, stream);
      break;
    case 13:
      code = cu.EventDestroy(event);
      break;
    case 14:
      code = cu.StreamWaitEvent(stream, event, 0);
      break;
    case 15:
      code = cu.EventElapsedTime(&ms, event, event);
      break;
    default:
      code = cu.EventQuery(reinterpret_cast<CUevent>(std::uintptr_t{0x12345670}));
      break;
  }
  say("code", code);
}

// --- host functions that call the driver ---

struct Inside {
  int which = 0;
  CUstream stream = nullptr;
  CUstream idle = nullptr;
  CUevent event = nullptr;
  CUdeviceptr device = 0;
  std::uint8_t* pinned = nullptr;
  std::atomic<bool> entered = false;
  std::atomic<bool> returned = false;
  std::atomic<int> code = -1;
  std::thread::id thread;
};

CUresult call_from_host_function(const Inside& in) {
  CUdeviceptr p = 0;
  void* host = nullptr;
  CUcontext ctx = nullptr;
  CUstream stream = nullptr;
  std::size_t bytes = 0;
  CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  unsigned type = 0;
  void* slot = &type;
  switch (in.which) {
    case 0:
      return cu.MemAlloc(&p, 4096);
    case 1:
      return cu.MemFree(in.device);
    case 2:
      return cu.StreamSynchronize(in.stream);
    case 3:
      return cu.StreamQuery(in.stream);
    case 4:
      return cu.EventQuery(in.event);
    case 5:
      return cu.MemcpyHtoD(in.device, in.pinned, 64);
    case 6:
      return cu.MemcpyHtoDAsync(in.device, in.pinned, 64, in.idle);
    case 7:
      return cu.CtxGetCurrent(&ctx);
    case 8:
      return cu.PointerGetAttributes(1, &attribute, &slot, in.device);
    case 9:
      return cu.CtxSynchronize();
    case 10:
      return cu.MemHostAlloc(&host, 4096, 0);
    case 11:
      return cu.MemGetInfo(&bytes, &bytes);
    case 12:
      return cu.StreamCreate(&stream, 0);
    case 13:
      return cu.LaunchHostFunc(
          in.idle, [](void*) {}, nullptr);
    case 14:
      return cu.CtxSetCurrent(context());
    case 15:
      return cu.StreamSynchronize(in.idle);
    default:
      return cu.EventSynchronize(in.event);
  }
}

void in_host_function(int which) {
  // Never freed: the function may still be stuck when the fact ends.
  Inside* in = new Inside;
  in->which = which;
  in->stream = new_stream();
  in->idle = new_stream();
  in->event = new_event();
  must(cu.EventRecord(in->event, in->idle), "cuEventRecord");
  in->device = device_memory(kMiB);
  in->pinned = pinned_memory(kMiB);
  must(cu.LaunchHostFunc(
           in->stream,
           [](void* data) {
             Inside* inside = static_cast<Inside*>(data);
             inside->thread = std::this_thread::get_id();
             inside->entered = true;
             inside->code = static_cast<int>(call_from_host_function(*inside));
             inside->returned = true;
           },
           in),
       "cuLaunchHostFunc");
  for (int waited = 0; waited < 5000 && !in->returned; ++waited)
    usleep(1000);
  if (!in->returned) {
    say("code", in->entered ? "the call did not return in 5 s" : "the function was not entered in 5 s");
    return;
  }
  say("code", static_cast<CUresult>(in->code.load()));
  say_yes("on_another_thread", in->thread != std::this_thread::get_id());
  say("stream_then", settle(in->stream));
  say("context_then", cu.CtxSynchronize());
}

// --- ordering of pageable copies ---

// When the driver reads the pageable source of an asynchronous copy in a held stream.
void pageable_source(int kib) {
  const std::size_t size = static_cast<std::size_t>(kib) * kKiB;
  CUstream stream = new_stream();
  const CUdeviceptr device = device_memory(size);
  std::vector<std::uint8_t> source(size, 0x51);
  {
    Hold hold(stream);
    say("code", cu.MemcpyHtoDAsync(device, source.data(), size, stream));
    say_yes("waited_for_the_stream", !hold.active());
    std::memset(source.data(), 0x52, size);
  }
  say("stream_then", settle(stream));
  say("device_sees", device_bytes(device, size, 0x51)   ? "the bytes at the call"
                     : device_bytes(device, size, 0x52) ? "the bytes at execution"
                                                        : "a mixture");
  Hold hold(stream, Hold::kShortMs);
  say("to_host_code", cu.MemcpyDtoHAsync(source.data(), device, size, stream));
  say_yes("to_host_waited_for_the_stream", !hold.active());
}

// Whether synchronous forms wait for the device, with the default stream held by a kernel.
void synchronous_forms(int which) {
  const CUdeviceptr device = device_memory(4 * kMiB);
  std::uint8_t* pinned = pinned_memory(kMiB);
  std::uint8_t* flag = pinned_memory(kPage);
  std::memset(flag, 0, kPage);
  std::vector<std::uint8_t> pageable(kMiB);
  CUfunction function = kernel(Kernel::kWaitThenFill);
  CUdeviceptr flag_address = as_device(flag);
  CUdeviceptr target = device + 3 * kMiB;
  std::uint64_t bytes = 64;
  std::uint32_t value = 1;
  void* params[] = {&flag_address, &target, &bytes, &value};
  must(launch(function, nullptr, params), "cuLaunchKernel");
  CUresult code = CUDA_SUCCESS;
  switch (which) {
    case 0:
      code = cu.MemsetD8(device, 1, kMiB);
      break;
    case 1:
      code = cu.MemcpyDtoD(device, device + kMiB, kMiB);
      break;
    case 2:
      code = cu.MemcpyHtoD(device, pageable.data(), 16 * kKiB);
      break;
    case 3:
      code = cu.MemcpyHtoD(device, pageable.data(), kMiB);
      break;
    case 4:
      code = cu.MemcpyHtoD(device, pinned, kMiB);
      break;
    default:
      code = cu.MemcpyDtoH(pinned, device, kMiB);
      break;
  }
  say("code", code);
  say_yes("waited_for_the_kernel", cu.StreamQuery(nullptr) == CUDA_SUCCESS);
  *reinterpret_cast<volatile std::uint32_t*>(flag) = 1;
  say("context_then", cu.CtxSynchronize());
}

// --- value operations ---

enum ValueMemory { kPinned, kDevice, kManaged, kRegistered, kPageable, kCombined };

CUdeviceptr value_memory(int kind) {
  switch (kind) {
    case kPinned:
      return as_device(pinned_memory(kPage));
    case kDevice:
      return device_memory(kPage);
    case kManaged:
      return managed_memory(2 * kMiB);
    case kRegistered:
      return as_device(registered_memory(kPage));
    case kPageable:
      return as_device(cpu_memory(kPage));
    default: {
      CUdeviceptr p = 0;
      must(cu.MemHostGetDevicePointer(&p, pinned_memory(kPage, CU_MEMHOSTALLOC_WRITECOMBINED), 0),
           "device pointer");
      return p;
    }
  }
}

std::uint64_t read_value(CUdeviceptr p) {
  std::uint64_t value = 0;
  if (cu.MemcpyDtoH(&value, p, sizeof value) != CUDA_SUCCESS) return ~std::uint64_t{0};
  return value;
}

void value_write(int kind) {
  CUstream stream = new_stream();
  const CUdeviceptr p = value_memory(kind);
  std::uint64_t zero[8] = {};
  (void)cu.Memcpy(p, as_device(zero), sizeof zero);
  (void)cu.CtxSynchronize();
  const auto attempt = [&](const char* detail, CUresult code, CUdeviceptr at) {
    say(detail, code);
    if (code == CUDA_SUCCESS) {
      say(std::string(detail) + ".stream", settle(stream));
      say(std::string(detail) + ".value", hex(read_value(at)));
    }
  };
  attempt("write32", cu.StreamWriteValue32(stream, p, 0x11223344, 0), p);
  attempt("write32_no_barrier",
          cu.StreamWriteValue32(stream, p + 8, 0x11223344, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER), p + 8);
  attempt("write64", cu.StreamWriteValue64(stream, p + 16, 0x1122334455667788, 0), p + 16);
  attempt("write32_flags_2", cu.StreamWriteValue32(stream, p, 1, 2), p);
  attempt("write32_at_2", cu.StreamWriteValue32(stream, p + 26, 1, 0), p + 24);
  attempt("write32_at_1", cu.StreamWriteValue32(stream, p + 25, 1, 0), p + 24);
  attempt("write64_at_4", cu.StreamWriteValue64(stream, p + 36, 1, 0), p + 32);
  attempt("write64_at_1", cu.StreamWriteValue64(stream, p + 33, 1, 0), p + 32);
}

void value_wait(int kind) {
  CUstream stream = new_stream();
  CUstream other = new_stream();
  const CUdeviceptr p = value_memory(kind);
  // Pinned words are set by the CPU, so that only the wait itself is in question.
  const auto set = [&](std::uint64_t value) {
    if (kind != kDevice) {
      *reinterpret_cast<volatile std::uint64_t*>(as_host(p)) = value;
      return;
    }
    must(cu.MemcpyHtoDAsync(p, &value, sizeof value, other), "cuMemcpyHtoDAsync");
    if (settle(other) != "CUDA_SUCCESS") give_up("a copy in another stream does not end beside the wait");
  };
  struct Case {
    const char* name;
    unsigned flags;
    std::uint64_t held_by;
    std::uint64_t wanted;
    std::uint64_t released_by;
  };
  constexpr Case kCases[] = {
      {"geq", CU_STREAM_WAIT_VALUE_GEQ, 4, 5, 5},
      {"geq_above", CU_STREAM_WAIT_VALUE_GEQ, 4, 5, 6},
      {"eq", CU_STREAM_WAIT_VALUE_EQ, 6, 5, 5},
      {"and", CU_STREAM_WAIT_VALUE_AND, 2, 4, 6},
      {"nor", CU_STREAM_WAIT_VALUE_NOR, 0xFFFFFFFFFFFFFFF0, 0x0F, 0xFFFFFFFFFFFFFF00},
  };
  for (int width : {32, 64}) {
    for (const Case& test : kCases) {
      const std::string detail = std::string(test.name) + "_" + std::to_string(width);
      set(test.held_by);
      const CUresult code =
          width == 32 ? cu.StreamWaitValue32(stream, p, static_cast<cuuint32_t>(test.wanted), test.flags)
                      : cu.StreamWaitValue64(stream, p, test.wanted, test.flags);
      say(detail, code);
      if (code != CUDA_SUCCESS) continue;
      say(detail + ".held", settle(stream, 50));
      set(test.released_by);
      say(detail + ".released", settle(stream));
    }
  }
  // Signed and cyclic: a value just below zero is "before" one.
  set(0xFFFFFFFF);
  say("geq_32_of_minus_1_wanted_0", cu.StreamWaitValue32(stream, p, 0, CU_STREAM_WAIT_VALUE_GEQ));
  say("geq_32_cyclic.held", settle(stream, 50));
  set(0);
  say("geq_32_cyclic.released", settle(stream));
  set(0);
  say("released_by_write_of_other_stream.wait", cu.StreamWaitValue32(stream, p, 9, CU_STREAM_WAIT_VALUE_EQ));
  say("released_by_write_of_other_stream.write", cu.StreamWriteValue32(other, p, 9, 0));
  say("released_by_write_of_other_stream.released", settle(stream));
}

// Waits that the driver should refuse; the value already satisfies them, should it not.
void value_wait_misuse(int kind) {
  CUstream stream = new_stream();
  const CUdeviceptr p = value_memory(kind);
  std::uint64_t zero[8] = {};
  (void)cu.Memcpy(p, as_device(zero), sizeof zero);
  (void)cu.CtxSynchronize();
  const auto attempt = [&](const char* detail, CUresult code) {
    say(detail, code);
    if (code == CUDA_SUCCESS) say(std::string(detail) + ".stream", settle(stream));
  };
  attempt("wait32", cu.StreamWaitValue32(stream, p, 0, CU_STREAM_WAIT_VALUE_EQ));
  attempt("wait64", cu.StreamWaitValue64(stream, p, 0, CU_STREAM_WAIT_VALUE_EQ));
  attempt("wait32_flush",
          cu.StreamWaitValue32(stream, p, 0, CU_STREAM_WAIT_VALUE_EQ | CU_STREAM_WAIT_VALUE_FLUSH));
  attempt("wait32_flags_4", cu.StreamWaitValue32(stream, p, 0, 4));
  attempt("wait32_at_2", cu.StreamWaitValue32(stream, p + 2, 0, CU_STREAM_WAIT_VALUE_EQ));
  attempt("wait32_at_1", cu.StreamWaitValue32(stream, p + 1, 0, CU_STREAM_WAIT_VALUE_EQ));
  attempt("wait64_at_4", cu.StreamWaitValue64(stream, p + 4, 0, CU_STREAM_WAIT_VALUE_EQ));
  attempt("wait32_null", cu.StreamWaitValue32(stream, 0, 0, CU_STREAM_WAIT_VALUE_EQ));
  attempt("write32_null", cu.StreamWriteValue32(stream, 0, 0, 0));
  attempt("wait32_default_stream", cu.StreamWaitValue32(nullptr, p, 0, CU_STREAM_WAIT_VALUE_EQ));
}

// --- capture ---

struct CaptureWorld {
  CUstream stream = nullptr;
  CUstream other = nullptr;
  CUevent event = nullptr;
  CUevent recorded_before = nullptr;
  CUdeviceptr device = 0;
  std::uint8_t* pinned = nullptr;
  std::uint8_t* registered = nullptr;
  std::vector<std::uint8_t> pageable;
};

struct CaptureCall {
  const char* name;
  CUresult (*call)(CaptureWorld&);
};

const CaptureCall kCaptureCalls[] = {
    {"nothing", [](CaptureWorld&) { return CUDA_SUCCESS; }},
    {"mem_alloc",
     [](CaptureWorld&) {
       CUdeviceptr p = 0;
       return cu.MemAlloc(&p, 64 * kMiB);
     }},
    {"mem_free", [](CaptureWorld& w) { return cu.MemFree(w.device); }},
    {"host_alloc",
     [](CaptureWorld&) {
       void* p = nullptr;
       return cu.MemHostAlloc(&p, kMiB, 0);
     }},
    {"host_register", [](CaptureWorld&) { return cu.MemHostRegister(cpu_memory(kMiB), kMiB, 0); }},
    {"host_unregister", [](CaptureWorld& w) { return cu.MemHostUnregister(w.registered); }},
    {"managed_alloc",
     [](CaptureWorld&) {
       CUdeviceptr p = 0;
       return cu.MemAllocManaged(&p, 2 * kMiB, CU_MEM_ATTACH_GLOBAL);
     }},
    {"copy_async_pinned",
     [](CaptureWorld& w) { return cu.MemcpyHtoDAsync(w.device, w.pinned, kMiB, w.stream); }},
    {"copy_async_pageable",
     [](CaptureWorld& w) { return cu.MemcpyHtoDAsync(w.device, w.pageable.data(), kMiB, w.stream); }},
    {"copy_async_inferred",
     [](CaptureWorld& w) { return cu.MemcpyAsync(w.device, as_device(w.pinned), kMiB, w.stream); }},
    {"copy_sync", [](CaptureWorld& w) { return cu.MemcpyHtoD(w.device, w.pinned, kMiB); }},
    {"copy_async_other_stream",
     [](CaptureWorld& w) { return cu.MemcpyHtoDAsync(w.device, w.pinned, kMiB, w.other); }},
    {"copy_async_default_stream",
     [](CaptureWorld& w) { return cu.MemcpyHtoDAsync(w.device, w.pinned, kMiB, nullptr); }},
    {"memset_async", [](CaptureWorld& w) { return cu.MemsetD8Async(w.device, 1, kMiB, w.stream); }},
    {"host_function",
     [](CaptureWorld& w) {
       return cu.LaunchHostFunc(
           w.stream, [](void*) {}, nullptr);
     }},
    {"stream_query", [](CaptureWorld& w) { return cu.StreamQuery(w.stream); }},
    {"stream_query_other", [](CaptureWorld& w) { return cu.StreamQuery(w.other); }},
    {"stream_synchronize", [](CaptureWorld& w) { return cu.StreamSynchronize(w.stream); }},
    {"context_synchronize", [](CaptureWorld&) { return cu.CtxSynchronize(); }},
    {"event_record", [](CaptureWorld& w) { return cu.EventRecord(w.event, w.stream); }},
    {"event_query_of_captured",
     [](CaptureWorld& w) {
       (void)cu.EventRecord(w.event, w.stream);
       return cu.EventQuery(w.event);
     }},
    {"event_query_of_older", [](CaptureWorld& w) { return cu.EventQuery(w.recorded_before); }},
    {"event_create",
     [](CaptureWorld&) {
       CUevent event = nullptr;
       return cu.EventCreate(&event, 0);
     }},
    {"stream_create",
     [](CaptureWorld&) {
       CUstream stream = nullptr;
       return cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING);
     }},
    {"mem_get_info",
     [](CaptureWorld&) {
       std::size_t bytes = 0;
       return cu.MemGetInfo(&bytes, &bytes);
     }},
    {"pointer_attributes",
     [](CaptureWorld& w) {
       CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
       unsigned type = 0;
       void* slot = &type;
       return cu.PointerGetAttributes(1, &attribute, &slot, w.device);
     }},
    {"write_value", [](CaptureWorld& w) { return cu.StreamWriteValue32(w.stream, w.device, 1, 0); }},
    {"mem_create",
     [](CaptureWorld&) {
       CUmemAllocationProp prop = {};
       prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
       prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
       CUmemGenericAllocationHandle handle = 0;
       return cu.MemCreate(&handle, 2 * kMiB, &prop, 0);
     }},
};

void capture(int mode) {
  for (const CaptureCall& call : kCaptureCalls) {
    CaptureWorld world;
    world.stream = new_stream();
    world.other = new_stream();
    world.event = new_event();
    world.recorded_before = new_event();
    must(cu.EventRecord(world.recorded_before, world.other), "cuEventRecord");
    world.device = device_memory(kMiB);
    world.pinned = pinned_memory(kMiB);
    world.registered = registered_memory(kMiB);
    world.pageable.resize(kMiB);
    must(cu.CtxSynchronize(), "cuCtxSynchronize");
    const std::string detail = call.name;
    must(cu.StreamBeginCapture(world.stream, static_cast<CUstreamCaptureMode>(mode)), "cuStreamBeginCapture");
    say(detail, call.call(world));
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult asked = cu.StreamIsCapturing(world.stream, &status);
    say(detail + ".is_capturing", asked == CUDA_SUCCESS ? "status " + std::to_string(status) : text(asked));
    CUgraph graph = nullptr;
    const CUresult end = cu.StreamEndCapture(world.stream, &graph);
    std::size_t nodes = 0;
    if (graph) {
      must(cu.GraphGetNodes(graph, nullptr, &nodes), "cuGraphGetNodes");
      must(cu.GraphDestroy(graph), "cuGraphDestroy");
    }
    say(detail + ".end", text(end) + ", nodes " + std::to_string(nodes));
  }
}

void capture_destroy(int) {
  CUstream stream = new_stream();
  must(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
  say("destroy_while_capturing", cu.StreamDestroy(stream));
  CUstream next = new_stream();
  say("next_stream_works", settle(next));
  say("begin_on_default_stream", cu.StreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED));
  say("end_without_begin", [&] {
    CUgraph graph = nullptr;
    return cu.StreamEndCapture(next, &graph);
  }());
}

constexpr Fact kFacts[] = {
    {.name = "str.misuse", .run = misuse},
    {.name = "str.events", .run = events},
    {.name = "str.destroy_busy", .run = destroy_busy},
    {.name = "str.destroyed_stream_query", .run = destroyed_handle, .arg = 0},
    {.name = "str.destroyed_stream_synchronize", .run = destroyed_handle, .arg = 1},
    {.name = "str.destroyed_stream_copy", .run = destroyed_handle, .arg = 2},
    {.name = "str.destroyed_stream_destroy", .run = destroyed_handle, .arg = 3},
    {.name = "str.destroyed_stream_event_record", .run = destroyed_handle, .arg = 4},
    {.name = "str.destroyed_stream_is_capturing", .run = destroyed_handle, .arg = 5},
    {.name = "str.destroyed_stream_host_function", .run = destroyed_handle, .arg = 6},
    {.name = "str.garbage_stream_query", .run = destroyed_handle, .arg = 7},
    {.name = "str.destroyed_event_query", .run = destroyed_handle, .arg = 10},
    {.name = "str.destroyed_event_synchronize", .run = destroyed_handle, .arg = 11},
    {.name = "str.destroyed_event_record", .run = destroyed_handle, .arg = 12},
    {.name = "str.destroyed_event_destroy", .run = destroyed_handle, .arg = 13},
    {.name = "str.destroyed_event_wait", .run = destroyed_handle, .arg = 14},
    {.name = "str.destroyed_event_elapsed", .run = destroyed_handle, .arg = 15},
    {.name = "str.garbage_event_query", .run = destroyed_handle, .arg = 16},
    {.name = "str.in_host_function_mem_alloc", .run = in_host_function, .arg = 0},
    {.name = "str.in_host_function_mem_free", .run = in_host_function, .arg = 1},
    {.name = "str.in_host_function_synchronize_self", .run = in_host_function, .arg = 2},
    {.name = "str.in_host_function_query_self", .run = in_host_function, .arg = 3},
    {.name = "str.in_host_function_event_query", .run = in_host_function, .arg = 4},
    {.name = "str.in_host_function_copy", .run = in_host_function, .arg = 5},
    {.name = "str.in_host_function_copy_async", .run = in_host_function, .arg = 6},
    {.name = "str.in_host_function_get_current", .run = in_host_function, .arg = 7},
    {.name = "str.in_host_function_pointer_query", .run = in_host_function, .arg = 8},
    {.name = "str.in_host_function_context_synchronize", .run = in_host_function, .arg = 9},
    {.name = "str.in_host_function_host_alloc", .run = in_host_function, .arg = 10},
    {.name = "str.in_host_function_mem_get_info", .run = in_host_function, .arg = 11},
    {.name = "str.in_host_function_stream_create", .run = in_host_function, .arg = 12},
    {.name = "str.in_host_function_host_function", .run = in_host_function, .arg = 13},
    {.name = "str.in_host_function_set_current", .run = in_host_function, .arg = 14},
    {.name = "str.in_host_function_synchronize_idle", .run = in_host_function, .arg = 15},
    {.name = "str.in_host_function_event_synchronize", .run = in_host_function, .arg = 16},
    {.name = "str.pageable_source_1KiB", .run = pageable_source, .arg = 1},
    {.name = "str.pageable_source_64KiB", .run = pageable_source, .arg = 64},
    {.name = "str.pageable_source_1MiB", .run = pageable_source, .arg = 1024},
    {.name = "str.sync_memset", .run = synchronous_forms, .arg = 0},
    {.name = "str.sync_dtod", .run = synchronous_forms, .arg = 1},
    {.name = "str.sync_htod_pageable_16KiB", .run = synchronous_forms, .arg = 2},
    {.name = "str.sync_htod_pageable_1MiB", .run = synchronous_forms, .arg = 3},
    {.name = "str.sync_htod_pinned", .run = synchronous_forms, .arg = 4},
    {.name = "str.sync_dtoh_pinned", .run = synchronous_forms, .arg = 5},
    {.name = "str.value_write_pinned", .run = value_write, .arg = kPinned},
    {.name = "str.value_write_device", .run = value_write, .arg = kDevice},
    {.name = "str.value_write_managed", .run = value_write, .arg = kManaged},
    {.name = "str.value_write_registered", .run = value_write, .arg = kRegistered},
    {.name = "str.value_write_pageable", .run = value_write, .arg = kPageable},
    {.name = "str.value_write_combined", .run = value_write, .arg = kCombined},
    {.name = "str.value_wait_pinned", .run = value_wait, .arg = kPinned},
    {.name = "str.value_wait_device", .run = value_wait, .arg = kDevice},
    {.name = "str.value_wait_registered", .run = value_wait, .arg = kRegistered},
    {.name = "str.value_wait_misuse_pinned", .run = value_wait_misuse, .arg = kPinned},
    {.name = "str.value_wait_misuse_device", .run = value_wait_misuse, .arg = kDevice},
    {.name = "str.value_wait_misuse_managed", .run = value_wait_misuse, .arg = kManaged},
    {.name = "str.value_wait_misuse_pageable", .run = value_wait_misuse, .arg = kPageable},
    {.name = "str.capture_global", .run = capture, .arg = CU_STREAM_CAPTURE_MODE_GLOBAL},
    {.name = "str.capture_thread_local", .run = capture, .arg = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL},
    {.name = "str.capture_relaxed", .run = capture, .arg = CU_STREAM_CAPTURE_MODE_RELAXED},
    {.name = "str.capture_destroy", .run = capture_destroy},
};

}  // namespace

std::span<const Fact> stream_facts() { return kFacts; }

}  // namespace facts
