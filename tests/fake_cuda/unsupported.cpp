// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Entry points that programs want to find and the fake cannot serve: arrays, textures, code, graphics.
#include "driver.h"

namespace fake {

CUresult cuArray3DCreate_v2(CUarray*, const CUDA_ARRAY3D_DESCRIPTOR*) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuArrayDestroy(CUarray) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuCtxSetLimit(CUlimit, size_t) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuDevicePrimaryCtxReset(CUdevice) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuGLGetDevices_v2(unsigned*, CUdevice*, unsigned, unsigned) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuGraphicsGLRegisterBuffer(CUgraphicsResource*, unsigned, unsigned) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuGraphicsGLRegisterImage(CUgraphicsResource*, unsigned, unsigned, unsigned) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuGraphicsMapResources(unsigned, CUgraphicsResource*, CUstream) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuGraphicsResourceGetMappedPointer_v2(CUdeviceptr*, size_t*, CUgraphicsResource) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuGraphicsResourceSetMapFlags_v2(CUgraphicsResource, unsigned) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuGraphicsSubResourceGetMappedArray(CUarray*, CUgraphicsResource, unsigned, unsigned) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuGraphicsUnmapResources(unsigned, CUgraphicsResource*, CUstream) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuGraphicsUnregisterResource(CUgraphicsResource) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuLinkAddData(CUlinkState, CUjitInputType, void*, size_t, const char*, unsigned, CUjit_option*,
                       void**) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuLinkComplete(CUlinkState, void**, size_t*) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuLinkCreate(unsigned, CUjit_option*, void**, CUlinkState*) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuLinkDestroy(CUlinkState) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuModuleGetGlobal(CUdeviceptr_v1*, unsigned*, CUmodule, const char*) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuModuleUnload(CUmodule) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuStreamAddCallback(CUstream, CUstreamCallback, void*, unsigned) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuTexObjectCreate(CUtexObject*, const CUDA_RESOURCE_DESC*, const CUDA_TEXTURE_DESC*,
                           const CUDA_RESOURCE_VIEW_DESC*) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuTexObjectDestroy(CUtexObject) { return CUDA_ERROR_NOT_SUPPORTED; }

}  // namespace fake
