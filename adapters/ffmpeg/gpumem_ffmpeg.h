/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* CUDA frames of FFmpeg in a pool of gpumem: see docs/ffmpeg.md. */
#ifndef GPUMEM_FFMPEG_H
#define GPUMEM_FFMPEG_H

#include <gpumem/gpumem.h>
#include <libavutil/hwcontext.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a CUDA frames context take its frames from a pool. Call it after `format`, `sw_format`, `width` and
 * `height` are set, and before av_hwframe_ctx_init(). It sets `pool` and `free` of the context, which must be
 * NULL.
 *
 * The pool is of GPUMEM_KIND_DEVICE, and its instance works in the CUDA context of the device: see `contexts`
 * in gpumem_cuda_options.
 *
 * libavutil keeps a frame that nobody refers to for the next av_hwframe_get_buffer() of the same frames
 * context. The memory goes back to the pool when the frames context and all frames have been freed, on the
 * thread that frees the last one. It is allocated and freed in the order of AVCUDADeviceContext.stream: work
 * that was enqueued in that stream before still has it. You must
 *   - set that stream before this call, and keep it until all frames have been freed. CU_STREAM_PER_THREAD is
 *     refused;
 *   - order work of other streams that uses a frame before the work of that stream, by events, before you
 *     unreference the frame;
 *   - destroy the pool only after all frames have been freed;
 *   - keep a reference to the device context until the instance is closed, unless that is the primary one;
 *   - unreference no frame of the same frames context in the callback of the pool: it would wait for itself.
 *
 * Returns 0 or an AVERROR; the reason is logged with the frames context. If the pool cannot serve a frame,
 * av_hwframe_get_buffer() returns AVERROR(ENOMEM), and the message of gpumem is logged with the device. */
int gpumem_ffmpeg_use_pool(AVHWFramesContext* frames, gpumem_pool pool);

#ifdef __cplusplus
}
#endif

#endif
