/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* What others registered while a buffer sleeps in a file, and a waking that is cancelled. See
 * docs/virtual-memory.md. */
#include "common.h"

/* What a network card knows of the buffer. */
struct card {
  uint64_t registration;
  uint64_t generation;
};

static int32_t GPUMEM_CALL before_sleep(void* user_data, gpumem_buffer buffer) {
  struct card* card = user_data;
  /* Here the card would forget the memory. */
  return GPUMEM_FAILED(gpumem_buffer_forget_registration(buffer, card->registration, NULL));
}

static void GPUMEM_CALL after_wake(void* user_data, gpumem_buffer buffer, uint64_t generation) {
  struct card* card = user_data;
  /* And here it would register the new memory. */
  gpumem_buffer_note_registration(buffer, "network card", &card->registration, NULL);
  card->generation = generation;
}

static int32_t GPUMEM_CALL cancel(void* user_data, uint64_t done, uint64_t total) {
  const int* wanted = user_data;
  (void)done;
  (void)total;
  return !*wanted;
}

int main(void) {
  enum { SIZE = 8 << 20 };
  gpumem_instance instance;
  gpumem_device device;
  gpumem_stream stream;
  TRY(gpumem_instance_default(&instance, &error));
  TRY(gpumem_device_get(instance, 0, &device, &error));
  TRY(gpumem_stream_create(device, NULL, &stream, &error));

  gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
  desc.size = SIZE;
  desc.reserve = SIZE;
  gpumem_buffer buffer;
  TRY(gpumem_buffer_create(device, &desc, &buffer, &error));
  gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
  TRY(gpumem_buffer_get_info(buffer, &info, &error));
  TRY(gpumem_fill_async(stream, info.base, SIZE, 7, 1, &error));

  /* The card holds the memory of the buffer. */
  struct card card = {0, 0};
  TRY(gpumem_buffer_note_registration(buffer, "network card", &card.registration, &error));

  gpumem_sleep_desc sleep = GPUMEM_SLEEP_DESC_INIT;
  sleep.content = GPUMEM_CONTENT_FILE;
  sleep.directory = "/tmp";
  sleep.stream = stream;
  const gpumem_status refused = gpumem_buffer_sleep(buffer, &sleep, &error);
  printf("%s: %s\n", gpumem_status_name(refused), error.message);

  /* It lets go in time if it is told. */
  gpumem_buffer_callbacks callbacks = GPUMEM_BUFFER_CALLBACKS_INIT;
  callbacks.before_sleep = before_sleep;
  callbacks.after_wake = after_wake;
  callbacks.user_data = &card;
  TRY(gpumem_buffer_set_callbacks(buffer, &callbacks, &error));
  TRY(gpumem_buffer_sleep(buffer, &sleep, &error));

  /* A waking that is not wanted after all: the buffer sleeps on. */
  int wanted = 0;
  gpumem_wake_desc wake = GPUMEM_WAKE_DESC_INIT;
  wake.progress = cancel;
  wake.user_data = &wanted;
  const gpumem_status cancelled = gpumem_buffer_wake(buffer, &wake, &error);
  TRY(gpumem_buffer_get_info(buffer, &info, &error));
  const int sleeps_on = info.state == GPUMEM_BUFFER_STATE_ASLEEP;
  printf("%s, and %llu bytes are kept\n", gpumem_status_name(cancelled),
         (unsigned long long)info.stored_size);

  wanted = 1;
  TRY(gpumem_buffer_wake(buffer, &wake, &error));
  char last;
  TRY(gpumem_copy(instance, &last, (char*)info.base + SIZE - 1, 1, NULL, &error));
  TRY(gpumem_buffer_get_info(buffer, &info, &error));
  printf("the last byte is %d, and the card knows generation %llu\n", last,
         (unsigned long long)card.generation);

  TRY(gpumem_buffer_forget_registration(buffer, card.registration, &error));
  TRY(gpumem_buffer_destroy(buffer, &error));
  TRY(gpumem_stream_destroy(stream, &error));
  return refused != GPUMEM_ERROR_BUSY || cancelled != GPUMEM_ERROR_CANCELLED || !sleeps_on || last != 7 ||
         card.generation != info.generation;
}
