/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* An AVBufferPool over a pool of gpumem, for the CUDA frames of FFmpeg 5.0 or newer. */
#include "gpumem_ffmpeg.h"

#include <libavutil/imgutils.h>
#include <libavutil/log.h>
#include <libavutil/mem.h>
#include <libavutil/version.h>

/* The loader of the driver that libavutil has, too. It brings the types for hwcontext_cuda.h. */
#define FFNV_LOG_FUNC(context, ...) av_log(context, AV_LOG_ERROR, __VA_ARGS__)
#define FFNV_DEBUG_LOG_FUNC(context, ...) av_log(context, AV_LOG_DEBUG, __VA_ARGS__)
#include <ffnvcodec/dynlink_loader.h>

#include <libavutil/hwcontext_cuda.h>

#if LIBAVUTIL_VERSION_MAJOR < 57
#error FFmpeg 5.0 or newer is needed
#endif

#define STREAM_PER_THREAD ((CUstream)2)

/* Where frames come from. It belongs to the AVBufferPool, and lives as long as any frame of that. */
typedef struct Source {
  gpumem_pool pool;
  gpumem_stream stream;
  uint64_t alignment;
  AVBufferRef* device; /* messages are logged with it */
} Source;

static int averror(gpumem_status status) {
  switch (status) {
    case GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY:
    case GPUMEM_ERROR_OUT_OF_HOST_MEMORY:
    case GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE:
    case GPUMEM_ERROR_LIMIT_EXCEEDED:
      return AVERROR(ENOMEM);
    case GPUMEM_ERROR_INVALID_ARGUMENT:
    case GPUMEM_ERROR_STALE_HANDLE:
      return AVERROR(EINVAL);
    default:
      return AVERROR_EXTERNAL;
  }
}

/* Logs a failure of gpumem, and translates it. */
static int failed(void* context, const char* what, const gpumem_error* error) {
  av_log(context, AV_LOG_ERROR, "gpumem cannot %s: %s\n", what, error->message);
  return averror(error->status);
}

static void free_frame(void* opaque, uint8_t* data) {
  Source* source = opaque;
  gpumem_error error = GPUMEM_ERROR_INIT;
  if (GPUMEM_FAILED(gpumem_pool_free(source->pool, data, source->stream, &error)))
    failed(source->device->data, "free a frame; destroy its pool after all frames", &error);
}

static AVBufferRef* allocate_frame(void* opaque, size_t size) {
  Source* source = opaque;
  gpumem_error error = GPUMEM_ERROR_INIT;
  void* data;
  if (GPUMEM_FAILED(
          gpumem_pool_alloc_aligned(source->pool, size, source->alignment, source->stream, &data, &error))) {
    failed(source->device->data, "allocate a frame", &error);
    return NULL;
  }
  AVBufferRef* frame = av_buffer_create(data, size, free_frame, source, 0);
  if (frame == NULL) free_frame(source, data);
  return frame;
}

static void free_source(void* opaque) {
  Source* source = opaque;
  gpumem_error error = GPUMEM_ERROR_INIT;
  if (GPUMEM_FAILED(gpumem_stream_destroy(source->stream, &error)))
    failed(source->device->data, "release the stream of the device", &error);
  av_buffer_unref(&source->device);
  av_free(source);
}

/* libavutil frees only pools that it has made itself. */
static void free_pool(AVHWFramesContext* frames) { av_buffer_pool_uninit(&frames->pool); }

/* The texture alignment of the device, by which libavutil lays out frames, and a new stream in the context.
 */
static CUresult ask_driver(CudaFunctions* cu, CUcontext context, int* alignment, CUstream* probe) {
  CUdevice device;
  CUcontext popped;
  CUresult result = cu->cuCtxPushCurrent(context);
  if (result != CUDA_SUCCESS) return result;
  result = cu->cuCtxGetDevice(&device);
  if (result == CUDA_SUCCESS)
    result = cu->cuDeviceGetAttribute(alignment, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, device);
  if (result == CUDA_SUCCESS) result = cu->cuStreamCreate(probe, CU_STREAM_NON_BLOCKING);
  cu->cuCtxPopCurrent(&popped);
  return result;
}

/* Whether the pool works in the context of the frames, which only a stream of that can tell: the default
 * stream, which most programs use, means another one in each context. */
static int check_context(AVHWFramesContext* frames, gpumem_device device, int* alignment) {
  const AVCUDADeviceContext* cuda = frames->device_ctx->hwctx;
  CudaFunctions* cu = NULL;
  CUstream probe = NULL;
  int result = AVERROR_EXTERNAL;
  if (cuda_load_functions(&cu, frames) == 0) {
    const CUresult code = ask_driver(cu, cuda->cuda_ctx, alignment, &probe);
    if (code == CUDA_SUCCESS) {
      gpumem_error error = GPUMEM_ERROR_INIT;
      gpumem_stream wrapped = NULL;
      result = GPUMEM_FAILED(gpumem_stream_wrap(device, probe, &wrapped, &error))
                   ? failed(frames, "use the CUDA context of the device", &error)
                   : 0;
      gpumem_stream_destroy(wrapped, NULL);
      cu->cuStreamDestroy(probe);
    } else {
      const char* name = NULL;
      cu->cuGetErrorName(code, &name);
      av_log(frames, AV_LOG_ERROR, "the CUDA context of the device cannot be used: %s\n",
             name != NULL ? name : "unknown error");
    }
  }
  cuda_free_functions(&cu);
  return result;
}

/* What can be refused without asking the driver. Gets the device of the pool. */
static int check_arguments(AVHWFramesContext* frames, gpumem_pool pool, gpumem_device* device) {
  if (frames->device_ctx->type != AV_HWDEVICE_TYPE_CUDA) {
    av_log(frames, AV_LOG_ERROR, "gpumem serves frames of CUDA devices only\n");
    return AVERROR(EINVAL);
  }
  if (frames->pool != NULL || frames->free != NULL) {
    av_log(frames, AV_LOG_ERROR,
           "the frames context already has a pool or a free function; use a new context\n");
    return AVERROR(EINVAL);
  }
  const AVCUDADeviceContext* cuda = frames->device_ctx->hwctx;
  if (cuda->stream == STREAM_PER_THREAD) {
    av_log(frames, AV_LOG_ERROR,
           "frames are freed on any thread, so the stream of the device cannot be CU_STREAM_PER_THREAD; set "
           "one of cuStreamCreate() or NULL\n");
    return AVERROR(EINVAL);
  }
  gpumem_error error = GPUMEM_ERROR_INIT;
  gpumem_pool_info info = GPUMEM_POOL_INFO_INIT;
  gpumem_device_info facts = GPUMEM_DEVICE_INFO_INIT;
  if (GPUMEM_FAILED(gpumem_pool_get_info(pool, &info, &error)) ||
      GPUMEM_FAILED(gpumem_device_get_info(info.device, &facts, &error)))
    return failed(frames, "use the pool", &error);
  if (facts.pci_id[0] == '\0') {
    av_log(frames, AV_LOG_ERROR,
           "the pool is of the host backend, whose memory CUDA does not know; open the instance with "
           "GPUMEM_BACKEND_CUDA\n");
    return AVERROR(EINVAL);
  }
  if (info.kind != GPUMEM_KIND_DEVICE) {
    av_log(frames, AV_LOG_ERROR, "frames need a pool of GPUMEM_KIND_DEVICE\n");
    return AVERROR(EINVAL);
  }
  *device = info.device;
  return 0;
}

int gpumem_ffmpeg_use_pool(AVHWFramesContext* frames, gpumem_pool pool) {
  gpumem_device device = NULL;
  int alignment = 0;
  int result = check_arguments(frames, pool, &device);
  if (result == 0) result = check_context(frames, device, &alignment);
  if (result < 0) return result;

  /* As libavutil does: NVENC wants the chroma planes of YUV420P at half of the pitch. */
  const int layout = frames->sw_format == AV_PIX_FMT_YUV420P ? 2 * alignment : alignment;
  const int size = av_image_get_buffer_size(frames->sw_format, frames->width, frames->height, layout);
  if (size < 0) {
    av_log(frames, AV_LOG_ERROR, "set sw_format, width and height before the pool\n");
    return size;
  }

  Source* source = av_mallocz(sizeof *source);
  if (source == NULL) return AVERROR(ENOMEM);
  source->pool = pool;
  source->alignment = (uint64_t)alignment;
  source->device = av_buffer_ref(frames->device_ref);
  const AVCUDADeviceContext* cuda = frames->device_ctx->hwctx;
  gpumem_error error = GPUMEM_ERROR_INIT;
  if (source->device == NULL) {
    result = AVERROR(ENOMEM);
  } else if (GPUMEM_FAILED(gpumem_stream_wrap(device, cuda->stream, &source->stream, &error))) {
    result = failed(frames, "use the stream of the device", &error);
  } else {
    frames->pool = av_buffer_pool_init2((size_t)size, source, allocate_frame, free_source);
    result = frames->pool != NULL ? 0 : AVERROR(ENOMEM);
  }
  if (result < 0) {
    free_source(source);
    return result;
  }
  frames->free = free_pool;
  return 0;
}
