/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* NVIDIA's management library as far as `gpumem why` calls it, with two GPUs. FAKE_NVML_PROCESSES has the
 * processes of the first, "PID BYTES" with a comma between two; `?` for BYTES that are not known. All but the
 * first of them draw, too, and the first has its bytes on the second GPU as well. FAKE_NVML_FAILS is the
 * number of the call that fails. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
enum { kSuccess = 0, kUnknown = 999, kInsufficientSize = 7 };

typedef struct {
  unsigned long long total, free, used;
} memory_info;

typedef struct {
  unsigned process;
  unsigned long long bytes;
  unsigned gpu_instance, compute_instance;
} process_info;

static char gpus[2];
static int calls, open;

static int answer(void) {
  const char* fails = getenv("FAKE_NVML_FAILS");
  return fails != NULL && atoi(fails) == ++calls ? kUnknown : kSuccess;
}

EXPORT int nvmlInit_v2(void) {
  const int status = answer();
  if (status == kSuccess) open = 1;
  return status;
}

EXPORT int nvmlShutdown(void) {
  if (!open) abort();
  open = 0;
  return kSuccess;
}

EXPORT const char* nvmlErrorString(int status) {
  return status == kUnknown ? "Unknown Error" : "something else";
}

EXPORT int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return answer();
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
  *handle = &gpus[index];
  return answer();
}

EXPORT int nvmlDeviceGetName(void* handle, char* name, unsigned size) {
  snprintf(name, size, "fake GPU %d", (int)((char*)handle - gpus));
  return answer();
}

EXPORT int nvmlDeviceGetMemoryInfo(void* handle, memory_info* info) {
  info->total = 8ULL << 30;
  info->free = (handle == &gpus[0] ? 5ULL : 8ULL) << 30;
  info->used = info->total - info->free;
  return answer();
}

static int list(void* handle, unsigned* count, process_info* infos, unsigned first) {
  const char* text = getenv("FAKE_NVML_PROCESSES");
  const unsigned room = *count;
  const int status = answer();
  if (status != kSuccess) return status;
  *count = 0;
  for (unsigned number = 0; text != NULL && *text != '\0'; ++number) {
    char* end;
    const unsigned process = (unsigned)strtoul(text, &end, 10);
    const int known = end[1] != '?';
    const unsigned long long bytes = known ? strtoull(end, &end, 10) : ~0ULL;
    if (!known) end += 2;
    text = *end == ',' ? end + 1 : end;
    if (number < first || (handle != &gpus[0] && number != 0)) continue;
    if (*count < room) infos[*count] = (process_info){process, bytes, ~0U, ~0U};
    ++*count;
  }
  return *count > room ? kInsufficientSize : kSuccess;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void* handle, unsigned* count, process_info* infos) {
  return list(handle, count, infos, 0);
}

EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(void* handle, unsigned* count, process_info* infos) {
  return list(handle, count, infos, 1);
}
