/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* One process shares memory, a buffer and an event; another uses them. See docs/sharing.md. */
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common.h"

enum { SIZE = 2 << 20 };

static char path[64];   /* of the hub */
static char keeper[64]; /* of the keeper */

static void need(int condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "%s\n", what);
  exit(1);
}

/* A buffer full of one value, for other processes to read. */
static gpumem_buffer filled_buffer(gpumem_instance instance, gpumem_device device, int value,
                                   gpumem_share_handle* handle) {
  gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
  desc.size = SIZE;
  desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
  gpumem_buffer buffer;
  TRY(gpumem_buffer_create(device, &desc, &buffer, &error));
  gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
  TRY(gpumem_buffer_get_info(buffer, &info, &error));
  TRY(gpumem_fill(instance, info.base, SIZE, (uint32_t)value, 1, &error));
  TRY(gpumem_share_export(instance, info.base, NULL, handle, &error));
  return buffer;
}

/* A hub that is closed and opened again, and in each two versions of a name. */
static void publish_and_restart(gpumem_instance instance, gpumem_device device, int channel) {
  for (int value = 1; value <= 4; value += 2) {
    gpumem_hub_desc desc = GPUMEM_HUB_DESC_INIT;
    desc.path = path;
    gpumem_hub hub;
    TRY(gpumem_hub_open(instance, &desc, &hub, &error));
    gpumem_buffer buffers[2];
    for (int i = 0; i < 2; ++i) {
      gpumem_share_handle handle;
      buffers[i] = filled_buffer(instance, device, value + i, &handle);
      TRY(gpumem_hub_publish(hub, "model", &handle, NULL, NULL, &error));
      char byte;
      need(read(channel, &byte, 1) == 1, "the other process has ended");
    }
    TRY(gpumem_hub_close(hub, &error));
    TRY(gpumem_buffer_destroy(buffers[0], &error));
    TRY(gpumem_buffer_destroy(buffers[1], &error));
  }
}

/* The parent: it has the memory. */
static void exporter(gpumem_instance instance, gpumem_device device, gpumem_stream stream, int channel) {
  /* Device memory that is alone in its block of the driver, and an event for other processes. */
  gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
  desc.kind = GPUMEM_KIND_DEVICE;
  desc.size = SIZE;
  desc.require = GPUMEM_MEMORY_SHAREABLE;
  gpumem_memory memory;
  TRY(gpumem_memory_create(device, &desc, &memory, &error));
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  TRY(gpumem_memory_get_info(memory, &info, &error));
  gpumem_event_desc event_desc = GPUMEM_EVENT_DESC_INIT;
  event_desc.flags = GPUMEM_EVENT_INTERPROCESS | GPUMEM_EVENT_DISABLE_TIMING;
  gpumem_event filled;
  TRY(gpumem_event_create(device, &event_desc, &filled, &error));

  /* 256 bytes each, which go by any channel. */
  gpumem_share_handle handles[2];
  TRY(gpumem_share_export(instance, info.device_pointer, NULL, &handles[0], &error));
  TRY(gpumem_event_export(filled, &handles[1], &error));

  /* Record here, wait there. The record comes before the other process can wait for it. */
  TRY(gpumem_fill_async(stream, info.device_pointer, SIZE, 7, 1, &error));
  TRY(gpumem_event_record(filled, stream, &error));
  need(write(channel, handles, sizeof handles) == sizeof handles, "the other process has ended");

  /* A buffer is shared by file descriptors. Others may only read this one. */
  gpumem_buffer_desc buffer_desc = GPUMEM_BUFFER_DESC_INIT;
  buffer_desc.size = SIZE;
  buffer_desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
  gpumem_buffer buffer;
  TRY(gpumem_buffer_create(device, &buffer_desc, &buffer, &error));
  gpumem_buffer_info buffer_info = GPUMEM_BUFFER_INFO_INIT;
  TRY(gpumem_buffer_get_info(buffer, &buffer_info, &error));
  TRY(gpumem_fill(instance, buffer_info.base, SIZE, 8, 1, &error));

  gpumem_export_desc export_desc = GPUMEM_EXPORT_DESC_INIT;
  export_desc.access = GPUMEM_ACCESS_READ;
  gpumem_share_handle handle;
  TRY(gpumem_share_export(instance, buffer_info.base, &export_desc, &handle, &error));
  TRY(gpumem_share_send(instance, &handle, channel, NULL, &error));

  /* The same buffer under a name. */
  gpumem_hub_desc hub_desc = GPUMEM_HUB_DESC_INIT;
  hub_desc.path = path;
  gpumem_hub hub;
  TRY(gpumem_hub_open(instance, &hub_desc, &hub, &error));
  uint64_t version;
  TRY(gpumem_hub_publish(hub, "weights", &handle, NULL, &version, &error));
  printf("published version %llu\n", (unsigned long long)version);
  need(write(channel, "!", 1) == 1, "the other process has ended");

  TRY(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, &error));
  /* While the other process has imported the memory, it cannot be freed. */
  char byte;
  need(read(channel, &byte, 1) == 1, "the other process has ended");
  need(gpumem_memory_destroy(memory, &error) == GPUMEM_ERROR_BUSY, "shared memory was freed");
  need(write(channel, "!", 1) == 1, "the other process has ended");
  need(read(channel, &byte, 1) == 1, "the other process has ended");
  TRY(gpumem_memory_destroy(memory, &error));
  TRY(gpumem_event_destroy(filled, &error));
  TRY(gpumem_hub_close(hub, &error));
  TRY(gpumem_buffer_destroy(buffer, &error));
  publish_and_restart(instance, device, channel);
}

static int all_are(gpumem_instance instance, const void* pointer, char value) {
  static char bytes[SIZE];
  TRY(gpumem_copy(instance, bytes, pointer, SIZE, NULL, &error));
  for (size_t i = 0; i < SIZE; ++i) {
    if (bytes[i] != value) return 0;
  }
  return 1;
}

static void use(gpumem_instance instance, const void* table, char value, int channel) {
  need(all_are(instance, table, value), "other bytes than were published");
  need(write(channel, &value, 1) == 1, "the publisher has ended");
}

/* Uses each new version of a name, also when its hub was restarted. */
static void follow(gpumem_instance instance, int channel) {
  gpumem_link_desc link_desc = GPUMEM_LINK_DESC_INIT;
  link_desc.path = path;
  gpumem_memory current = NULL;
  for (char used = 0; used < 4;) {
    gpumem_link link;
    gpumem_status status = gpumem_link_connect(instance, &link_desc, &link, &error);
    if (status == GPUMEM_ERROR_NOT_FOUND) {
      /* No hub is there yet. */
      const struct timespec pause = {0, 10 * 1000 * 1000};
      nanosleep(&pause, NULL);
      continue;
    }
    TRY(status);
    /* Another hub counts anew. */
    uint64_t seen = 0;
    while (used < 4) {
      gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
      void* table;
      gpumem_memory next;
      status = gpumem_link_import_next(link, "model", seen, GPUMEM_TIMEOUT_INFINITE, NULL, &entry, &table,
                                       &next, &error);
      if (status == GPUMEM_ERROR_PEER_GONE) break;
      TRY(status);
      seen = entry.version;
      /* From here on the new one is used, and the old one is not needed. */
      TRY(gpumem_memory_destroy(current, &error));
      current = next;
      use(instance, table, ++used, channel);
    }
    TRY(gpumem_link_close(link, &error));
  }
  TRY(gpumem_memory_destroy(current, &error));
}

/* The child: it uses what the parent has. */
static void importer(gpumem_instance instance, gpumem_device device, gpumem_stream stream, int channel) {
  gpumem_share_handle handles[2];
  need(recv(channel, handles, sizeof handles, MSG_WAITALL) == sizeof handles, "the exporter has ended");
  void* pointer;
  gpumem_memory memory;
  TRY(gpumem_share_import(instance, &handles[0], NULL, 0, NULL, &pointer, &memory, &error));
  gpumem_event filled;
  TRY(gpumem_event_import(device, &handles[1], NULL, 0, &filled, &error));

  /* What comes behind this in the stream sees what the exporter wrote. */
  TRY(gpumem_stream_wait_event(stream, filled, &error));
  TRY(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, &error));
  need(all_are(instance, pointer, 7), "other bytes than the exporter wrote");

  gpumem_share_handle handle;
  void* table;
  gpumem_memory buffer;
  TRY(gpumem_share_receive(instance, channel, GPUMEM_TIMEOUT_INFINITE, &handle, &error));
  TRY(gpumem_share_import(instance, &handle, NULL, 0, NULL, &table, &buffer, &error));
  need(all_are(instance, table, 8), "other bytes than the exporter wrote");
  need(gpumem_fill(instance, table, SIZE, 0, 1, &error) == GPUMEM_ERROR_NO_ACCESS, "it was written");

  char byte;
  need(read(channel, &byte, 1) == 1, "the exporter has ended");
  gpumem_link_desc link_desc = GPUMEM_LINK_DESC_INIT;
  link_desc.path = path;
  gpumem_link link;
  TRY(gpumem_link_connect(instance, &link_desc, &link, &error));
  gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
  TRY(gpumem_link_wait(link, "weights", 0, GPUMEM_TIMEOUT_INFINITE, &entry, &error));
  /* That very version: there may be a newer one by now. */
  gpumem_fetch_desc fetch_desc = GPUMEM_FETCH_DESC_INIT;
  fetch_desc.version = entry.version;
  TRY(gpumem_link_fetch(link, "weights", &fetch_desc, &handle, &error));
  gpumem_memory again;
  TRY(gpumem_share_import(instance, &handle, NULL, 0, NULL, &table, &again, &error));
  need(again == buffer, "the same memory was mapped twice");

  gpumem_import_info state = GPUMEM_IMPORT_INFO_INIT;
  TRY(gpumem_memory_get_import_info(again, &state, &error));
  printf("version %llu: imported %llu times, %s\n", (unsigned long long)entry.version,
         (unsigned long long)state.count, state.state == GPUMEM_IMPORT_LIVE ? "live" : "gone");

  need(write(channel, "!", 1) == 1 && read(channel, &byte, 1) == 1, "the exporter has ended");
  TRY(gpumem_memory_destroy(again, &error));
  TRY(gpumem_memory_destroy(buffer, &error));
  TRY(gpumem_link_close(link, &error));
  TRY(gpumem_event_destroy(filled, &error));
  TRY(gpumem_memory_destroy(memory, &error));
  need(write(channel, "!", 1) == 1, "the exporter has ended");
  follow(instance, channel);
}

/* A keeper in this process; `gpumem keep` is one of its own. */
static void keep(gpumem_instance instance) {
  gpumem_hub_desc desc = GPUMEM_HUB_DESC_INIT;
  desc.path = keeper;
  desc.flags = GPUMEM_HUB_KEEPER;
  gpumem_hub hub;
  TRY(gpumem_hub_open(instance, &desc, &hub, &error));
}

/* One run of a program that finds again what its last run had. */
static void run(gpumem_instance instance, gpumem_device device) {
  gpumem_link_desc link_desc = GPUMEM_LINK_DESC_INIT;
  link_desc.path = keeper;
  gpumem_link link;
  TRY(gpumem_link_connect(instance, &link_desc, &link, &error));

  gpumem_share_handle handle;
  const gpumem_status status = gpumem_link_fetch(link, "state", NULL, &handle, &error);
  if (status == GPUMEM_ERROR_NOT_FOUND) {
    /* The first run. The next one may write too. */
    filled_buffer(instance, device, 5, &handle);
    gpumem_publish_desc publish_desc = GPUMEM_PUBLISH_DESC_INIT;
    publish_desc.access = GPUMEM_ACCESS_READWRITE;
    TRY(gpumem_link_publish(link, "state", &handle, &publish_desc, NULL, &error));
    return;
  }
  TRY(status);
  void* state;
  gpumem_memory memory;
  TRY(gpumem_share_import(instance, &handle, NULL, 0, NULL, &state, &memory, &error));
  need(all_are(instance, state, 5), "other bytes than the last run had");
  TRY(gpumem_fill(instance, state, SIZE, 6, 1, &error));
}

int main(void) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 1;
  snprintf(path, sizeof path, "@gpumem-example-%d", (int)getpid());
  snprintf(keeper, sizeof keeper, "@gpumem-example-keeper-%d", (int)getpid());
  /* Before anything is opened: a driver does not survive a fork. */
  const pid_t child = fork();
  if (child < 0) return 1;
  const int channel = ends[child == 0];
  close(ends[child != 0]);

  gpumem_instance instance;
  gpumem_device device;
  gpumem_stream stream;
  TRY(gpumem_instance_default(&instance, &error));
  TRY(gpumem_device_get(instance, 0, &device, &error));
  TRY(gpumem_stream_create(device, NULL, &stream, &error));
  if (child != 0) keep(instance);
  (child == 0 ? importer : exporter)(instance, device, stream, channel);
  TRY(gpumem_stream_destroy(stream, &error));
  print_live_objects(instance);
  if (child == 0) {
    /* It ends with all that it has, as a crash would end it. */
    run(instance, device);
    return 0;
  }
  int status;
  if (waitpid(child, &status, 0) != child || status != 0) return 1;
  run(instance, device);
  return 0;
}
