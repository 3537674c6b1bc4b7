/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Events: time the work of a stream, and let one stream wait for another. See docs/events.md. */
#include "common.h"

int main(void) {
  enum { SIZE = 4 << 20 };
  gpumem_instance instance;
  gpumem_device device;
  gpumem_stream upload, work;
  void *host, *memory;
  TRY(gpumem_instance_default(&instance, &error));
  TRY(gpumem_device_get(instance, 0, &device, &error));
  TRY(gpumem_stream_create(device, NULL, &upload, &error));
  TRY(gpumem_stream_create(device, NULL, &work, &error));
  TRY(gpumem_malloc(device, GPUMEM_KIND_PINNED, SIZE, &host, &error));
  TRY(gpumem_malloc(device, GPUMEM_KIND_DEVICE, SIZE, &memory, &error));
  memset(host, 1, SIZE);

  gpumem_event start, end;
  TRY(gpumem_event_create(device, NULL, &start, &error));
  TRY(gpumem_event_create(device, NULL, &end, &error));
  TRY(gpumem_event_record(start, upload, &error));
  TRY(gpumem_copy_async(upload, memory, host, SIZE, NULL, &error));
  TRY(gpumem_event_record(end, upload, &error));

  /* The fill begins after the copy, in another stream. No thread waits. */
  TRY(gpumem_stream_wait_event(work, end, &error));
  TRY(gpumem_fill_async(work, memory, SIZE / 2, 0, 1, &error));

  /* Up to a second. GPUMEM_NOT_READY is no failure, so TRY lets it pass. */
  gpumem_status status = gpumem_event_synchronize(end, UINT64_C(1000000000), &error);
  TRY(status);
  if (status == GPUMEM_NOT_READY) printf("the copy is still on its way\n");
  TRY(gpumem_event_synchronize(end, GPUMEM_TIMEOUT_INFINITE, &error));
  int64_t nanoseconds;
  TRY(gpumem_event_get_elapsed_time(start, end, &nanoseconds, &error));
  printf("copied %d bytes in %lld ns\n", SIZE, (long long)nanoseconds);

  /* This observes the fill, and with it the copy that it waited for. */
  TRY(gpumem_stream_synchronize(work, GPUMEM_TIMEOUT_INFINITE, &error));
  TRY(gpumem_copy(instance, host, memory, SIZE, NULL, &error));
  int right = ((char*)host)[0] == 0 && ((char*)host)[SIZE - 1] == 1 && nanoseconds > 0;
  TRY(gpumem_free(instance, memory, &error));
  TRY(gpumem_free(instance, host, &error));
  TRY(gpumem_event_destroy(start, &error));
  TRY(gpumem_event_destroy(end, &error));
  TRY(gpumem_stream_destroy(upload, &error));
  TRY(gpumem_stream_destroy(work, &error));
  return !right;
}
