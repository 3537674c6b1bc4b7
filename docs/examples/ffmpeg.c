/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* CUDA frames of FFmpeg in a pool: see docs/ffmpeg.md. Built by tests/consumers/ffmpeg.py. */
#include <ffnvcodec/dynlink_cuda.h>
#include <gpumem_ffmpeg.h>
#include <libavutil/hwcontext_cuda.h>
#include <libavutil/pixfmt.h>

#include "common.h"

#define TRY_AV(call)                                                         \
  do {                                                                       \
    const int result = (call);                                               \
    if (result < 0) {                                                        \
      fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, result); \
      exit(1);                                                               \
    }                                                                        \
  } while (0)

/* A frames context of NV12 frames whose memory comes from the pool. */
static AVBufferRef* make_frames(AVBufferRef* device_ref, gpumem_pool pool, int width, int height) {
  AVBufferRef* frames_ref = av_hwframe_ctx_alloc(device_ref);
  if (frames_ref == NULL) return NULL;
  AVHWFramesContext* frames = (AVHWFramesContext*)frames_ref->data;
  frames->format = AV_PIX_FMT_CUDA;
  frames->sw_format = AV_PIX_FMT_NV12;
  frames->width = width;
  frames->height = height;
  if (gpumem_ffmpeg_use_pool(frames, pool) < 0 || av_hwframe_ctx_init(frames_ref) < 0)
    av_buffer_unref(&frames_ref);
  return frames_ref;
}

int main(void) {
  /* FFmpeg makes the context, and gpumem works in it. */
  AVBufferRef* device_ref = NULL;
  TRY_AV(av_hwdevice_ctx_create(&device_ref, AV_HWDEVICE_TYPE_CUDA, "0", NULL, 0));
  AVCUDADeviceContext* cuda = ((AVHWDeviceContext*)device_ref->data)->hwctx;
  void* contexts[] = {cuda->cuda_ctx};
  gpumem_cuda_options cuda_options = GPUMEM_CUDA_OPTIONS_INIT;
  cuda_options.contexts = contexts;
  cuda_options.context_count = 1;
  gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
  desc.backend = GPUMEM_BACKEND_CUDA;
  desc.cuda = &cuda_options;
  gpumem_instance instance;
  gpumem_device device;
  TRY(gpumem_instance_open(&desc, &instance, &error));
  TRY(gpumem_device_get(instance, 0, &device, &error));

  gpumem_pool_desc pool_desc = GPUMEM_POOL_DESC_INIT;
  pool_desc.limit = UINT64_C(64) << 20;
  pool_desc.name = "frames";
  gpumem_pool pool;
  TRY(gpumem_pool_create(device, &pool_desc, &pool, &error));

  AVBufferRef* frames_ref = make_frames(device_ref, pool, 1920, 1080);
  if (frames_ref == NULL) return 1;
  AVFrame* frame = av_frame_alloc();
  TRY_AV(av_hwframe_get_buffer(frames_ref, frame, 0));
  gpumem_pool_info info = GPUMEM_POOL_INFO_INIT;
  TRY(gpumem_pool_get_info(pool, &info, &error));
  printf("%llu frame, %llu bytes\n", (unsigned long long)info.live_count,
         (unsigned long long)info.live_bytes);

  /* All frames, then the pool and the instance, then the device. */
  av_frame_free(&frame);
  av_buffer_unref(&frames_ref);
  TRY(gpumem_pool_destroy(pool, &error));
  print_live_objects(instance);
  TRY(gpumem_instance_close(instance, GPUMEM_CLOSE_CHECK, NULL, &error));
  av_buffer_unref(&device_ref);
  return 0;
}
