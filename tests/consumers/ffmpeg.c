/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Stock libavutil with frames in pools of gpumem. It runs over the fake driver with two devices, and on a
 * GPU. Prints a line for each case. */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ffnvcodec/dynlink_loader.h>

#include <gpumem_ffmpeg.h>
#include <libavutil/frame.h>
#include <libavutil/hwcontext_cuda.h>
#include <libavutil/imgutils.h>
#include <libavutil/log.h>
#include <libavutil/mem.h>
#include <libavutil/pixdesc.h>

#include "fake_cuda.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))

/* ---- results ---- */

static int problems; /* of the case that runs */

#define CHECK(condition, ...)              \
  do {                                     \
    if (!(condition)) {                    \
      pthread_mutex_lock(&log_mutex);      \
      ++problems;                          \
      printf("# line %d: ", __LINE__);     \
      printf(__VA_ARGS__);                 \
      printf("\n# the log: %s\n", logged); \
      pthread_mutex_unlock(&log_mutex);    \
    }                                      \
  } while (0)

/* Nothing else can be tried after it. */
#define MUST(call)                                                   \
  do {                                                               \
    if (GPUMEM_FAILED(call)) {                                       \
      printf("# line %d: %s: %s\n", __LINE__, #call, error.message); \
      exit(1);                                                       \
    }                                                                \
  } while (0)

static pthread_mutex_t log_mutex = PTHREAD_MUTEX_INITIALIZER;
static char logged[65536]; /* the errors of this case */

static void keep_errors(void* context, int level, const char* format, va_list arguments) {
  (void)context;
  if (level > AV_LOG_ERROR) return;
  pthread_mutex_lock(&log_mutex);
  const size_t used = strlen(logged);
  vsnprintf(logged + used, sizeof logged - used, format, arguments);
  pthread_mutex_unlock(&log_mutex);
}

static void forget_log(void) { logged[0] = '\0'; }

/* ---- the fake driver ---- */

/* NULL on a GPU. */
static struct {
  uint64_t (*live)(int);
  size_t (*violations)(char*, size_t);
  void (*fail)(const char*, uint64_t, int, int);
  uint64_t (*failures)(void);
  int (*configure)(const char*, const char*);
  void (*section_begin)(void);
  void (*section_end)(const char*);
} fake;

static void find_fake(void) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) return;
  *(void**)&fake.live = dlsym(library, "fake_cuda_live");
  *(void**)&fake.violations = dlsym(library, "fake_cuda_violations");
  *(void**)&fake.fail = dlsym(library, "fake_cuda_fail");
  *(void**)&fake.failures = dlsym(library, "fake_cuda_failures");
  *(void**)&fake.configure = dlsym(library, "fake_cuda_configure");
  *(void**)&fake.section_begin = dlsym(library, "fake_cuda_section_begin");
  *(void**)&fake.section_end = dlsym(library, "fake_cuda_section_end");
}

/* ---- what the cases begin and end with ---- */

typedef struct World {
  AVBufferRef* device_ref;
  gpumem_instance instance;
  gpumem_device device;
  gpumem_pool pool;
} World;

static AVCUDADeviceContext* cuda_of(const World* world) {
  return ((AVHWDeviceContext*)world->device_ref->data)->hwctx;
}

static gpumem_pool make_pool(gpumem_device device, gpumem_kind kind, uint64_t limit,
                             gpumem_pool_flags flags) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  gpumem_pool_desc desc = GPUMEM_POOL_DESC_INIT;
  desc.kind = kind;
  desc.limit = limit;
  desc.flags = flags;
  gpumem_pool pool;
  MUST(gpumem_pool_create(device, &desc, &pool, &error));
  return pool;
}

/* A device of FFmpeg, and an instance in its context. */
static World open_world(int flags, uint64_t limit, gpumem_pool_flags pool_flags) {
  World world = {NULL, NULL, NULL, NULL};
  gpumem_error error = GPUMEM_ERROR_INIT;
  const int result = av_hwdevice_ctx_create(&world.device_ref, AV_HWDEVICE_TYPE_CUDA, "0", NULL, flags);
  if (result < 0) {
    printf("# FFmpeg opens no CUDA device: %d\n# %s\n", result, logged);
    exit(1);
  }
  void* contexts[] = {cuda_of(&world)->cuda_ctx};
  gpumem_cuda_options options = GPUMEM_CUDA_OPTIONS_INIT;
  options.contexts = contexts;
  options.context_count = 1;
  gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
  desc.backend = GPUMEM_BACKEND_CUDA;
  desc.cuda = (flags & AV_CUDA_USE_PRIMARY_CONTEXT) == 0 ? &options : NULL;
  MUST(gpumem_instance_open(&desc, &world.instance, &error));
  MUST(gpumem_device_get(world.instance, 0, &world.device, &error));
  world.pool = make_pool(world.device, GPUMEM_KIND_DEVICE, limit, pool_flags);
  return world;
}

static gpumem_pool_info info_of(const World* world) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  gpumem_pool_info info = GPUMEM_POOL_INFO_INIT;
  MUST(gpumem_pool_get_info(world->pool, &info, &error));
  return info;
}

static void check_violations(void) {
  char text[4096] = "";
  const size_t count = fake.violations != NULL ? fake.violations(text, sizeof text) : 0;
  CHECK(count == 0, "the driver was used wrongly: %s", text);
}

static void close_world(World* world) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  const gpumem_pool_info info = info_of(world);
  CHECK(info.live_count == 0, "%llu frames live in the pool", (unsigned long long)info.live_count);
  CHECK(!GPUMEM_FAILED(gpumem_pool_destroy(world->pool, &error)), "%s", error.message);
  gpumem_stats stats = GPUMEM_STATS_INIT;
  MUST(gpumem_stats_get(world->instance, &stats, &error));
  CHECK(stats.live_count == 0 && stats.streams == 0, "%llu objects and %llu streams are left",
        (unsigned long long)stats.live_count, (unsigned long long)stats.streams);
  CHECK(!GPUMEM_FAILED(gpumem_instance_close(world->instance, GPUMEM_CLOSE_CHECK, NULL, &error)), "%s",
        error.message);
  av_buffer_unref(&world->device_ref);
  if (fake.live != NULL) {
    const unsigned long long left = fake.live(FAKE_CUDA_ANY);
    CHECK(left == 0, "%llu objects of the driver are left", left);
  }
  check_violations();
}

/* ---- frames ---- */

static AVBufferRef* describe_frames(AVBufferRef* device_ref, enum AVPixelFormat format, int width,
                                    int height) {
  AVBufferRef* const ref = av_hwframe_ctx_alloc(device_ref);
  if (ref == NULL) exit(1);
  AVHWFramesContext* const frames = (AVHWFramesContext*)ref->data;
  frames->format = AV_PIX_FMT_CUDA;
  frames->sw_format = format;
  frames->width = width;
  frames->height = height;
  return ref;
}

/* With the pool of the world, or as libavutil makes them. */
static AVBufferRef* make_frames(const World* world, int with_pool, enum AVPixelFormat format, int width,
                                int height) {
  AVBufferRef* const ref = describe_frames(world->device_ref, format, width, height);
  const int used = with_pool ? gpumem_ffmpeg_use_pool((AVHWFramesContext*)ref->data, world->pool) : 0;
  CHECK(used == 0, "the pool cannot be used: %d", used);
  const int result = av_hwframe_ctx_init(ref);
  CHECK(result == 0, "the frames context cannot be made: %d", result);
  return ref;
}

static AVFrame* get_frame(AVBufferRef* frames_ref, int* result) {
  AVFrame* frame = av_frame_alloc();
  *result = av_hwframe_get_buffer(frames_ref, frame, 0);
  if (*result < 0) av_frame_free(&frame);
  return frame;
}

static AVFrame* must_get(AVBufferRef* frames_ref) {
  int result;
  AVFrame* const frame = get_frame(frames_ref, &result);
  if (frame == NULL) {
    printf("# there is no frame: %d: %s\n", result, logged);
    exit(1);
  }
  return frame;
}

static AVFrame* make_picture(AVBufferRef* frames_ref) {
  const AVHWFramesContext* const frames = (AVHWFramesContext*)frames_ref->data;
  AVFrame* const picture = av_frame_alloc();
  picture->format = frames->sw_format;
  picture->width = frames->width;
  picture->height = frames->height;
  if (av_frame_get_buffer(picture, 0) < 0) exit(1);
  return picture;
}

/* Rows of a plane that libavutil copies: it forgets half a row of chroma. */
static int rows_of(const AVFrame* picture, int plane) {
  return plane == 0 ? picture->height
                    : picture->height >> av_pix_fmt_desc_get(picture->format)->log2_chroma_h;
}

static uint8_t pattern(unsigned seed, int plane, int row, int column) {
  return (uint8_t)((seed * 31 + (unsigned)plane * 7 + (unsigned)row) * 2654435761u >> 24 ^ (unsigned)column);
}

static int upload(AVFrame* frame, unsigned seed) {
  AVFrame* picture = make_picture(frame->hw_frames_ctx);
  for (int plane = 0; picture->data[plane] != NULL; ++plane) {
    const int bytes = av_image_get_linesize(picture->format, picture->width, plane);
    for (int row = 0; row < rows_of(picture, plane); ++row) {
      for (int column = 0; column < bytes; ++column)
        picture->data[plane][row * picture->linesize[plane] + column] = pattern(seed, plane, row, column);
    }
  }
  const int result = av_hwframe_transfer_data(frame, picture, 0);
  av_frame_free(&picture);
  return result;
}

/* How many bytes are not those that were uploaded. */
static long differing(const AVFrame* frame, unsigned seed) {
  AVFrame* picture = make_picture(frame->hw_frames_ctx);
  long count = 0;
  if (av_hwframe_transfer_data(picture, frame, 0) < 0) count = -1;
  for (int plane = 0; count >= 0 && picture->data[plane] != NULL; ++plane) {
    const int bytes = av_image_get_linesize(picture->format, picture->width, plane);
    for (int row = 0; row < rows_of(picture, plane); ++row) {
      for (int column = 0; column < bytes; ++column)
        count += picture->data[plane][row * picture->linesize[plane] + column] !=
                 pattern(seed, plane, row, column);
    }
  }
  av_frame_free(&picture);
  return count;
}

static void check_round_trip(AVFrame* frame, unsigned seed) {
  const int result = upload(frame, seed);
  CHECK(result == 0, "it cannot be uploaded: %d", result);
  const long wrong = differing(frame, seed);
  CHECK(wrong == 0, "%ld bytes are wrong", wrong);
}

/* ---- cases ---- */

static void check_layout(const World* world, enum AVPixelFormat format, int width, int height) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  AVBufferRef* ours = make_frames(world, 1, format, width, height);
  AVBufferRef* stock = make_frames(world, 0, format, width, height);
  AVFrame* frame = must_get(ours);
  AVFrame* other = must_get(stock);
  const char* const name = av_get_pix_fmt_name(format);
  CHECK(frame->buf[0]->size == other->buf[0]->size, "%s %dx%d has %zu bytes, not %zu", name, width, height,
        (size_t)frame->buf[0]->size, (size_t)other->buf[0]->size);
  for (int plane = 0; other->data[plane] != NULL; ++plane) {
    CHECK(frame->linesize[plane] == other->linesize[plane] &&
              frame->data[plane] - frame->data[0] == other->data[plane] - other->data[0],
          "plane %d of %s %dx%d is laid out otherwise", plane, name, width, height);
  }
  CHECK((uintptr_t)frame->data[0] % 512 == 0, "%s %dx%d begins at %p", name, width, height,
        (void*)frame->data[0]);
  gpumem_pool_block_info block = GPUMEM_POOL_BLOCK_INFO_INIT;
  CHECK(!GPUMEM_FAILED(gpumem_pool_get_block_info(world->instance, frame->data[0], &block, &error)), "%s",
        error.message);
  CHECK(block.pool == world->pool && block.base == frame->data[0] && block.usable_size >= frame->buf[0]->size,
        "the frame is no block of the pool");
  check_round_trip(frame, (unsigned)width);
  av_frame_free(&frame);
  av_frame_free(&other);
  av_buffer_unref(&ours);
  av_buffer_unref(&stock);
}

static void case_layout(void) {
  static const enum AVPixelFormat formats[] = {AV_PIX_FMT_NV12, AV_PIX_FMT_P010, AV_PIX_FMT_YUV420P};
  static const int sizes[][2] = {{33, 17}, {641, 359}, {1920, 1080}};
  /* In debug mode, blocks lie between guards. */
  static const gpumem_pool_flags flags[] = {0, GPUMEM_POOL_DEBUG};
  for (size_t mode = 0; mode < LENGTH(flags); ++mode) {
    World world = open_world(0, 0, flags[mode]);
    for (size_t format = 0; format < LENGTH(formats); ++format) {
      for (size_t size = 0; size < LENGTH(sizes); ++size)
        check_layout(&world, formats[format], sizes[size][0], sizes[size][1]);
    }
    close_world(&world);
  }
}

static void case_primary_context(void) {
  World world = open_world(AV_CUDA_USE_PRIMARY_CONTEXT, 0, 0);
  AVBufferRef* frames = make_frames(&world, 1, AV_PIX_FMT_NV12, 641, 359);
  AVFrame* frame = must_get(frames);
  check_round_trip(frame, 1);
  av_frame_free(&frame);
  av_buffer_unref(&frames);
  close_world(&world);
}

/* An instance has the primary context before FFmpeg, which then takes it only by hand. */
static void case_context_of_others(void) {
  World world = {NULL, NULL, NULL, NULL};
  gpumem_error error = GPUMEM_ERROR_INIT;
  gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
  desc.backend = GPUMEM_BACKEND_CUDA;
  MUST(gpumem_instance_open(&desc, &world.instance, &error));
  MUST(gpumem_device_get(world.instance, 0, &world.device, &error));
  world.pool = make_pool(world.device, GPUMEM_KIND_DEVICE, 0, 0);
  int result = av_hwdevice_ctx_create(&world.device_ref, AV_HWDEVICE_TYPE_CUDA, "0", NULL,
                                      AV_CUDA_USE_PRIMARY_CONTEXT);
  CHECK(result == AVERROR(ENOTSUP) && world.device_ref == NULL, "FFmpeg takes it by itself: %d", result);
  forget_log();

  CudaFunctions* cu = NULL;
  CUdevice device;
  CUcontext primary, current = NULL;
  if (cuda_load_functions(&cu, NULL) < 0 || cu->cuDeviceGet(&device, 0) != CUDA_SUCCESS ||
      cu->cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS)
    exit(1);
  world.device_ref = av_hwdevice_ctx_alloc(AV_HWDEVICE_TYPE_CUDA);
  cuda_of(&world)->cuda_ctx = primary;
  result = av_hwdevice_ctx_init(world.device_ref);
  CHECK(result == 0, "FFmpeg does not take the context: %d", result);
  AVBufferRef* frames = make_frames(&world, 1, AV_PIX_FMT_NV12, 641, 359);
  AVFrame* frame = must_get(frames);
  check_round_trip(frame, 4);
  av_frame_free(&frame);
  av_buffer_unref(&frames);

  /* The context stays that of the others when FFmpeg has freed its device. */
  av_buffer_unref(&world.device_ref);
  gpumem_memory memory;
  gpumem_memory_desc some = GPUMEM_MEMORY_DESC_INIT;
  some.kind = GPUMEM_KIND_DEVICE;
  some.size = 4096;
  MUST(gpumem_memory_create(world.device, &some, &memory, &error));
  MUST(gpumem_memory_destroy(memory, &error));
  CHECK(cu->cuCtxPushCurrent(primary) == CUDA_SUCCESS && cu->cuCtxPopCurrent(&current) == CUDA_SUCCESS &&
            current == primary,
        "FFmpeg has ended the context");
  cu->cuDevicePrimaryCtxRelease(device);
  cuda_free_functions(&cu);
  close_world(&world);
}

/* Frames go from thread to thread: each thread makes some, and reads and frees those of another one. */
enum { THREADS = 4, ROUNDS = 50 };

typedef struct Queue {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  AVFrame* frames[ROUNDS];
  int count;
} Queue;

static Queue queues[THREADS];
static AVBufferRef* shared_frames;

static void* pass_frames(void* argument) {
  const int own = (int)(intptr_t)argument;
  Queue* const next = &queues[(own + 1) % THREADS];
  Queue* const mine = &queues[own];
  for (int round = 0; round < ROUNDS; ++round) {
    AVFrame* frame = must_get(shared_frames);
    const int result = upload(frame, (unsigned)(own * ROUNDS + round));
    CHECK(result == 0, "it cannot be uploaded: %d", result);
    pthread_mutex_lock(&next->mutex);
    next->frames[next->count++] = av_frame_clone(frame);
    pthread_cond_signal(&next->changed);
    pthread_mutex_unlock(&next->mutex);
    av_frame_free(&frame);
    pthread_mutex_lock(&mine->mutex);
    while (mine->count <= round)
      pthread_cond_wait(&mine->changed, &mine->mutex);
    AVFrame* received = mine->frames[round];
    pthread_mutex_unlock(&mine->mutex);
    const long wrong = differing(received, (unsigned)((own + THREADS - 1) % THREADS * ROUNDS + round));
    CHECK(wrong == 0, "%ld bytes are wrong in thread %d, round %d", wrong, own, round);
    av_frame_free(&received);
  }
  return NULL;
}

static void case_threads(void) {
  World world = open_world(0, 0, 0);
  shared_frames = make_frames(&world, 1, AV_PIX_FMT_NV12, 321, 181);
  pthread_t threads[THREADS];
  for (int index = 0; index < THREADS; ++index) {
    pthread_mutex_init(&queues[index].mutex, NULL);
    pthread_cond_init(&queues[index].changed, NULL);
    queues[index].count = 0;
  }
  for (int index = 0; index < THREADS; ++index)
    pthread_create(&threads[index], NULL, pass_frames, (void*)(intptr_t)index);
  for (int index = 0; index < THREADS; ++index)
    pthread_join(threads[index], NULL);
  /* For each thread, a frame is being made, on its way or being read; it may hold on to the one before. */
  const gpumem_pool_info info = info_of(&world);
  CHECK(info.total_count <= 2 * THREADS, "%llu frames were made", (unsigned long long)info.total_count);
  av_buffer_unref(&shared_frames);
  close_world(&world);
}

static void case_reuse(void) {
  enum { COUNT = 8 };
  World world = open_world(0, 0, 0);
  AVFrame* frames[COUNT];
  /* The largest first: the later ones find their memory in the pool. */
  static const int widths[] = {1920, 1280, 720};
  uint64_t reserved = 0, grown = 0;
  for (size_t size = 0; size < LENGTH(widths); ++size) {
    AVBufferRef* ref = make_frames(&world, 1, AV_PIX_FMT_NV12, widths[size], widths[size] * 9 / 16);
    for (int round = 0; round < 3; ++round) {
      for (int index = 0; index < COUNT; ++index) {
        frames[index] = must_get(ref);
        if (round == 2) check_round_trip(frames[index], (unsigned)index);
      }
      gpumem_pool_info info = info_of(&world);
      CHECK(info.live_count == COUNT && info.total_count == COUNT * (size + 1),
            "%llu frames live and %llu were made, in round %d of size %zu",
            (unsigned long long)info.live_count, (unsigned long long)info.total_count, round, size);
      if (size == 0) {
        reserved = info.reserved_bytes;
        grown = info.grow_count;
      }
      CHECK(info.reserved_bytes == reserved && info.grow_count == grown,
            "size %zu took new memory: %llu, not %llu", size, (unsigned long long)info.reserved_bytes,
            (unsigned long long)reserved);
      for (int index = 0; index < COUNT; ++index)
        av_frame_free(&frames[index]);
    }
    av_buffer_unref(&ref);
    CHECK(info_of(&world).live_count == 0, "the frames have not gone back");
  }
  close_world(&world);
}

static void case_limit(void) {
  enum { MOST = 64 };
  World world = open_world(0, UINT64_C(16) << 20, 0);
  AVBufferRef* ref = make_frames(&world, 1, AV_PIX_FMT_NV12, 1920, 1080);
  AVFrame* frames[MOST];
  int count = 0, result = 0;
  while (count < MOST && (frames[count] = get_frame(ref, &result)) != NULL)
    ++count;
  /* A frame takes 51 times 64 KiB. */
  CHECK(result == AVERROR(ENOMEM) && count == 5, "%d frames, then %d", count, result);
  CHECK(strstr(logged, "gpumem cannot allocate a frame: ") != NULL && strstr(logged, "limit") != NULL,
        "what was said?");
  forget_log();
  av_frame_free(&frames[--count]);
  frames[count] = get_frame(ref, &result);
  CHECK(frames[count] != NULL, "no frame is free again: %d", result);
  ++count;
  while (count > 0)
    av_frame_free(&frames[--count]);
  av_buffer_unref(&ref);

  /* Frames that are wished for at the beginning. */
  ref = describe_frames(world.device_ref, AV_PIX_FMT_NV12, 1920, 1080);
  AVHWFramesContext* const context = (AVHWFramesContext*)ref->data;
  context->initial_pool_size = 6;
  CHECK(gpumem_ffmpeg_use_pool(context, world.pool) == 0, "the pool cannot be used");
  result = av_hwframe_ctx_init(ref);
  CHECK(result == AVERROR(ENOMEM), "six frames fit: %d", result);
  av_buffer_unref(&ref);
  forget_log();
  close_world(&world);
}

static void* unref_buffer(void* buffer) {
  AVBufferRef* ref = buffer;
  av_buffer_unref(&ref);
  return NULL;
}

static void case_outlives(void) {
  World world = open_world(0, 0, 0);
  AVBufferRef* ref = make_frames(&world, 1, AV_PIX_FMT_P010, 641, 359);
  AVFrame* frame = must_get(ref);
  AVFrame* idle = must_get(ref);
  av_frame_free(&idle);
  CHECK(upload(frame, 5) == 0, "it cannot be uploaded");
  av_buffer_unref(&ref);
  const long wrong = differing(frame, 5);
  CHECK(wrong == 0, "%ld bytes are wrong without the frames context", wrong);
  AVBufferRef* const buffer = av_buffer_ref(frame->buf[0]);
  av_frame_free(&frame);
  CHECK(info_of(&world).live_count == 1, "%llu frames live", (unsigned long long)info_of(&world).live_count);
  pthread_t thread;
  pthread_create(&thread, NULL, unref_buffer, buffer);
  pthread_join(thread, NULL);
  CHECK(info_of(&world).live_count == 0, "the last reference frees nothing");
  close_world(&world);
}

static void GPUMEM_CALL wait_for(void* semaphore) {
  while (sem_wait(semaphore) != 0)
    continue;
}

/* The frame is freed while the stream of the device still has work for it. */
static void case_stream(void) {
  World world = open_world(0, 0, 0);
  gpumem_error error = GPUMEM_ERROR_INIT;
  AVCUDADeviceContext* const cuda = cuda_of(&world);
  CudaFunctions* cu = NULL;
  CUcontext popped;
  CUstream stream = NULL;
  if (cuda_load_functions(&cu, NULL) < 0 || cu->cuCtxPushCurrent(cuda->cuda_ctx) != CUDA_SUCCESS ||
      cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS ||
      cu->cuCtxPopCurrent(&popped) != CUDA_SUCCESS)
    exit(1);
  cuda->stream = stream;
  gpumem_stream work, other;
  MUST(gpumem_stream_wrap(world.device, stream, &work, &error));
  MUST(gpumem_stream_create(world.device, NULL, &other, &error));
  AVBufferRef* ref = make_frames(&world, 1, AV_PIX_FMT_NV12, 1280, 720);
  AVFrame* frame = must_get(ref);
  check_round_trip(frame, 3);
  const uint64_t size = frame->buf[0]->size;
  void* const before = frame->data[0];

  sem_t semaphore;
  sem_init(&semaphore, 0, 0);
  MUST(gpumem_stream_launch_host_function(work, wait_for, &semaphore, &error));
  MUST(gpumem_fill_async(work, before, size, 7, 1, &error));
  av_frame_free(&frame);
  av_buffer_unref(&ref);
  CHECK(info_of(&world).live_count == 0, "the frame has not gone back");
  void *second, *third;
  MUST(gpumem_pool_alloc(world.pool, size, other, &second, &error));
  MUST(gpumem_pool_alloc(world.pool, size, NULL, &third, &error));
  CHECK(second != before && third != before, "others get the frame while its stream still has work for it");
  ref = make_frames(&world, 1, AV_PIX_FMT_NV12, 1280, 720);
  frame = must_get(ref);
  CHECK(frame->data[0] == before, "the next frame in its stream is another one");
  sem_post(&semaphore);
  MUST(gpumem_stream_synchronize(work, GPUMEM_TIMEOUT_INFINITE, &error));
  av_frame_free(&frame);
  av_buffer_unref(&ref);
  MUST(gpumem_pool_free(world.pool, second, NULL, &error));
  MUST(gpumem_pool_free(world.pool, third, NULL, &error));
  MUST(gpumem_stream_destroy(work, &error));
  MUST(gpumem_stream_destroy(other, &error));
  sem_destroy(&semaphore);
  cuda->stream = NULL;
  cu->cuStreamDestroy(stream);
  cuda_free_functions(&cu);
  close_world(&world);
}

static void check_refused(AVBufferRef* frames_ref, gpumem_pool pool, int code, const char* reason) {
  AVHWFramesContext* const frames = (AVHWFramesContext*)frames_ref->data;
  AVBufferPool* const before = frames->pool;
  forget_log();
  const int result = gpumem_ffmpeg_use_pool(frames, pool);
  CHECK(result == code, "%d, not %d, for: %s", result, code, reason);
  CHECK(strstr(logged, reason) != NULL, "not said: %s", reason);
  CHECK(frames->pool == before, "a pool was set");
  forget_log();
}

static void refuse_once(const World* world, gpumem_pool pool, int code, const char* reason) {
  AVBufferRef* ref = describe_frames(world->device_ref, AV_PIX_FMT_NV12, 64, 64);
  check_refused(ref, pool, code, reason);
  av_buffer_unref(&ref);
}

static void case_wrong_device(void) {
  World world = open_world(0, 0, 0);
  gpumem_error error = GPUMEM_ERROR_INIT;
  gpumem_device second;
  if (!GPUMEM_FAILED(gpumem_device_get(world.instance, 1, &second, &error))) {
    gpumem_pool pool = make_pool(second, GPUMEM_KIND_DEVICE, 0, 0);
    refuse_once(&world, pool, AVERROR(EINVAL), "does not belong to the context in use on device 1");
    MUST(gpumem_pool_destroy(pool, &error));
  } else {
    CHECK(fake.live == NULL, "the fake driver needs two devices");
  }

  /* On the same device, in the primary context. */
  gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
  desc.backend = GPUMEM_BACKEND_CUDA;
  gpumem_instance instance;
  gpumem_device device;
  MUST(gpumem_instance_open(&desc, &instance, &error));
  MUST(gpumem_device_get(instance, 0, &device, &error));
  gpumem_pool pool = make_pool(device, GPUMEM_KIND_DEVICE, 0, 0);
  refuse_once(&world, pool, AVERROR(EINVAL), "pass its context to gpumem_instance_open()");
  MUST(gpumem_pool_destroy(pool, &error));
  MUST(gpumem_instance_close(instance, GPUMEM_CLOSE_CHECK, NULL, &error));
  close_world(&world);
}

static void case_host_backend(void) {
  World world = open_world(0, 0, 0);
  gpumem_error error = GPUMEM_ERROR_INIT;
  gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
  desc.backend = GPUMEM_BACKEND_HOST;
  gpumem_instance instance;
  gpumem_device device;
  MUST(gpumem_instance_open(&desc, &instance, &error));
  MUST(gpumem_device_get(instance, 0, &device, &error));
  gpumem_pool pool = make_pool(device, GPUMEM_KIND_DEVICE, 0, 0);
  refuse_once(&world, pool, AVERROR(EINVAL), "open the instance with GPUMEM_BACKEND_CUDA");
  MUST(gpumem_pool_destroy(pool, &error));
  MUST(gpumem_instance_close(instance, GPUMEM_CLOSE_CHECK, NULL, &error));
  close_world(&world);
}

static void leave_pool(AVHWFramesContext* frames) { (void)frames; }

static void case_refused(void) {
  World world = open_world(0, 0, 0);
  gpumem_error error = GPUMEM_ERROR_INIT;
  gpumem_pool pool = make_pool(world.device, GPUMEM_KIND_PINNED, 0, 0);
  refuse_once(&world, pool, AVERROR(EINVAL), "frames need a pool of GPUMEM_KIND_DEVICE");
  MUST(gpumem_pool_destroy(pool, &error));
  refuse_once(&world, pool, AVERROR(EINVAL), "gpumem cannot use the pool: ");
  refuse_once(&world, NULL, AVERROR(EINVAL), "gpumem cannot use the pool: ");

  cuda_of(&world)->stream = (CUstream)2;
  refuse_once(&world, world.pool, AVERROR(EINVAL),
              "CU_STREAM_PER_THREAD; set one of cuStreamCreate() or NULL");
  cuda_of(&world)->stream = NULL;

  AVBufferRef* ref = describe_frames(world.device_ref, AV_PIX_FMT_NV12, 0, 64);
  check_refused(ref, world.pool, AVERROR(EINVAL), "set sw_format, width and height before the pool");
  av_buffer_unref(&ref);
  ref = describe_frames(world.device_ref, AV_PIX_FMT_NV12, 64, 64);
  AVBufferPool* other = ((AVHWFramesContext*)ref->data)->pool = av_buffer_pool_init(16, NULL);
  check_refused(ref, world.pool, AVERROR(EINVAL), "already has a pool or a free function");
  av_buffer_unref(&ref);
  av_buffer_pool_uninit(&other);
  ref = describe_frames(world.device_ref, AV_PIX_FMT_NV12, 64, 64);
  ((AVHWFramesContext*)ref->data)->free = leave_pool;
  check_refused(ref, world.pool, AVERROR(EINVAL), "already has a pool or a free function");
  av_buffer_unref(&ref);

  AVBufferRef* drm = av_hwdevice_ctx_alloc(AV_HWDEVICE_TYPE_DRM);
  if (drm != NULL) {
    ref = describe_frames(drm, AV_PIX_FMT_NV12, 64, 64);
    check_refused(ref, world.pool, AVERROR(EINVAL), "CUDA devices only");
    av_buffer_unref(&ref);
    av_buffer_unref(&drm);
  }
  close_world(&world);
}

/* Each call of the driver that setting the pool makes fails once. */
static void case_driver_fails(void) {
  if (fake.fail == NULL) return;
  World world = open_world(0, 0, 0);
  uint64_t failures = 0;
  for (uint64_t call = 1;; ++call) {
    AVBufferRef* ref = describe_frames(world.device_ref, AV_PIX_FMT_NV12, 64, 64);
    AVHWFramesContext* const frames = (AVHWFramesContext*)ref->data;
    forget_log();
    fake.section_begin();
    fake.fail("*", call, 0, 2);
    const int result = gpumem_ffmpeg_use_pool(frames, world.pool);
    fake.configure("FAKE_CUDA_FAIL", "");
    fake.section_end("gpumem_ffmpeg_use_pool");
    const int failed = fake.failures() != failures;
    failures = fake.failures();
    CHECK(result == 0 || (failed && frames->pool == NULL && frames->free == NULL && logged[0] != '\0'),
          "call %llu: %d", (unsigned long long)call, result);
    forget_log();
    av_buffer_unref(&ref);
    if (!failed) {
      CHECK(result == 0 && call > 5, "%llu calls of the driver", (unsigned long long)call);
      break;
    }
  }

  AVBufferRef* ref = make_frames(&world, 1, AV_PIX_FMT_NV12, 1920, 1080);
  fake.fail("cuMemCreate", 1, 1, 2);
  int result;
  AVFrame* frame = get_frame(ref, &result);
  CHECK(frame == NULL && result == AVERROR(ENOMEM), "without memory: %d", result);
  CHECK(strstr(logged, "gpumem cannot allocate a frame: ") != NULL, "what was said?");
  forget_log();
  fake.configure("FAKE_CUDA_FAIL", "");
  frame = must_get(ref);
  check_round_trip(frame, 9);
  av_frame_free(&frame);
  av_buffer_unref(&ref);
  close_world(&world);
}

/* libavutil allocates no more than so many bytes at once, while a pool is set and while a frame is made. */
static void case_libavutil_lacks_memory(void) {
  World world = open_world(0, 0, 0);
  enum { LARGEST = 512 };
  int used = 0, got = 0;
  for (size_t bytes = 1; bytes < LARGEST; bytes += 8) {
    AVBufferRef* ref = describe_frames(world.device_ref, AV_PIX_FMT_NV12, 64, 64);
    AVHWFramesContext* const frames = (AVHWFramesContext*)ref->data;
    av_max_alloc(bytes);
    int result = gpumem_ffmpeg_use_pool(frames, world.pool);
    av_max_alloc(INT_MAX);
    CHECK(result == 0 || (result == AVERROR(ENOMEM) && frames->pool == NULL && frames->free == NULL),
          "a pool with %zu bytes: %d", bytes, result);
    used += result == 0;
    av_buffer_unref(&ref);

    ref = make_frames(&world, 1, AV_PIX_FMT_NV12, 64, 64);
    AVFrame* frame = av_frame_alloc();
    av_max_alloc(bytes);
    result = av_hwframe_get_buffer(ref, frame, 0);
    av_max_alloc(INT_MAX);
    CHECK(result == 0 || result == AVERROR(ENOMEM), "a frame with %zu bytes: %d", bytes, result);
    got += result == 0;
    av_frame_free(&frame);
    av_buffer_unref(&ref);
    CHECK(info_of(&world).live_count == 0, "a frame is left with %zu bytes", bytes);
  }
  CHECK(used > 0 && used < LARGEST / 8 && got > 0 && got < LARGEST / 8, "%d pools, %d frames", used, got);
  forget_log();
  close_world(&world);
}

static void case_pool_destroyed_first(void) {
  World world = open_world(0, 0, 0);
  gpumem_error error = GPUMEM_ERROR_INIT;
  gpumem_pool kept = world.pool;
  world.pool = make_pool(world.device, GPUMEM_KIND_DEVICE, 0, 0);
  AVBufferRef* ref = make_frames(&world, 1, AV_PIX_FMT_NV12, 64, 64);
  AVFrame* frame = must_get(ref);
  void* const data = frame->data[0];
  MUST(gpumem_pool_destroy(world.pool, &error));
  av_frame_free(&frame);
  av_buffer_unref(&ref);
  CHECK(strstr(logged, "gpumem cannot free a frame; destroy its pool after all frames: ") != NULL,
        "what was said?");
  forget_log();
  MUST(gpumem_pool_free_pointer(world.instance, data, NULL, &error));
  world.pool = kept;
  close_world(&world);
}

static void run(const char* name, void (*function)(void)) {
  problems = 0;
  forget_log();
  function();
  CHECK(logged[0] == '\0', "something was said that no check expected");
  printf("%s - %s\n", problems == 0 ? "ok" : "not ok", name);
  fflush(stdout);
}

int main(void) {
  find_fake();
  av_log_set_callback(keep_errors);
  run("frames of odd sizes lie as those of libavutil and keep their contents", case_layout);
  run("the primary context", case_primary_context);
  run("the primary context, which an instance has first", case_context_of_others);
  run("many frames, freed by other threads", case_threads);
  run("freed frames are used again, also for another size", case_reuse);
  run("the limit of the pool", case_limit);
  run("frames outlive their context, and a buffer its frame", case_outlives);
  run("a frame is free after the work in the stream of the device", case_stream);
  run("a pool of another device or context is refused", case_wrong_device);
  run("a pool of the host backend is refused", case_host_backend);
  run("what else is refused", case_refused);
  run("calls of the driver fail", case_driver_fails);
  run("libavutil lacks memory", case_libavutil_lacks_memory);
  run("the pool is destroyed too early", case_pool_destroyed_first);
  return 0;
}
