// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What the cuda backend makes of the driver's codes. Needs no driver.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "backends/cuda/device.h"
#include "backends/cuda/error.h"

namespace gpumem::cuda {
namespace {

Status status(int code) { return status_of(static_cast<CUresult>(code), Place::kDevice); }

TEST(CudaError, EveryRowOfTheContract) {
  struct Row {
    Status status;
    std::vector<int> codes;
  };
  const Row rows[] = {
      {GPUMEM_SUCCESS, {0}},
      {GPUMEM_ERROR_INVALID_ARGUMENT, {1, 101}},
      {GPUMEM_ERROR_INVALID_STATE, {211, 401, 705, 900, 901, 902, 903, 904, 905, 906, 907, 908}},
      {GPUMEM_ERROR_UNSUPPORTED, {217, 801}},
      {GPUMEM_ERROR_LIMIT_EXCEEDED, {711, 808, 809}},
      {GPUMEM_ERROR_NOT_FOUND, {500, 713}},
      {GPUMEM_ERROR_ALREADY_EXISTS, {208, 704, 712}},
      {GPUMEM_ERROR_BUSY, {46, 600, 807}},
      {GPUMEM_ERROR_PERMISSION_DENIED, {800}},
      {GPUMEM_ERROR_STALE_HANDLE, {400}},
      {GPUMEM_ERROR_CLOSED, {4}},
      {GPUMEM_ERROR_DEVICE_LOST,
       {201, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810}},
      {GPUMEM_ERROR_NO_DEVICE, {100, 802}},
      {GPUMEM_ERROR_DRIVER_NOT_FOUND, {34}},
      {GPUMEM_ERROR_DRIVER_TOO_OLD, {36, 803, 804}},
      {GPUMEM_ERROR_INTERNAL, {3, 205, 206, 304, 805, 806, 999, 917, 1023}},
  };
  std::set<int> listed = {2};
  for (const Row& row : rows) {
    for (const int code : row.codes) {
      EXPECT_EQ(status(code), row.status) << code;
      listed.insert(code);
    }
  }
  for (int code = 0; code < 1000; ++code) {
    if (listed.count(code) == 0) {
      EXPECT_EQ(status(code), GPUMEM_ERROR_INTERNAL) << code;
    }
  }
}

TEST(CudaError, WhoseMemoryIsExhaustedDependsOnThePlace) {
  EXPECT_EQ(status_of(CUDA_ERROR_OUT_OF_MEMORY, Place::kDevice), GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY);
  EXPECT_EQ(status_of(CUDA_ERROR_OUT_OF_MEMORY, Place::kHost), GPUMEM_ERROR_OUT_OF_HOST_MEMORY);
  EXPECT_EQ(status_of(CUDA_ERROR_OUT_OF_MEMORY, Place::kAddresses), GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE);
}

TEST(CudaError, KeepsTheNativeCode) {
  const Error error = error_of({CUDA_ERROR_NOT_PERMITTED, "cuMemAlloc"}, Place::kDevice, "no %d bytes", 7);
  EXPECT_EQ(error.status, GPUMEM_ERROR_PERMISSION_DENIED);
  EXPECT_EQ(error.native_domain, GPUMEM_NATIVE_CUDA);
  EXPECT_EQ(error.native_code, 800);
  EXPECT_STREQ(error.native_name, "CUDA_ERROR_NOT_PERMITTED");
  EXPECT_STREQ(error.entry_point, "cuMemAlloc");
  EXPECT_EQ(std::strncmp(error.message, "no 7 bytes: ", 12), 0) << error.message;
}

TEST(CudaError, KeepsANumberThatNobodyKnows) {
  const Error error = error_of({static_cast<CUresult>(1017), "cuMemFree"}, Place::kDevice, "x");
  EXPECT_EQ(error.status, GPUMEM_ERROR_INTERNAL);
  EXPECT_EQ(error.native_code, 1017);
  EXPECT_STREQ(error.native_name, "CUDA_ERROR_?");
}

TEST(CudaError, AMissingEntryPointIsNoCodeOfTheDriver) {
  const Entry<PFN_cuMemFree_v3020> missing{"cuMemFree"};
  const Outcome outcome = missing(CUdeviceptr{0});
  EXPECT_FALSE(outcome.ok());
  const Error error = error_of(outcome, Place::kDevice, "x");
  EXPECT_EQ(error.status, GPUMEM_ERROR_SYMBOL_MISSING);
  EXPECT_EQ(error.native_domain, GPUMEM_NATIVE_NONE);
  EXPECT_STREQ(error.entry_point, "cuMemFree");
  EXPECT_NE(std::strstr(error.message, "cuMemFree"), nullptr) << error.message;
}

TEST(CudaError, OnlyACaptureOrAMissingSymbolRefusesARelease) {
  EXPECT_TRUE(refused({CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "cuMemFree"}));
  EXPECT_TRUE(refused({kMissing, "cuMemFree"}));
  EXPECT_FALSE(refused({CUDA_ERROR_LAUNCH_FAILED, "cuMemFree"}));
  EXPECT_FALSE(refused({CUDA_ERROR_UNKNOWN, "cuMemFree"}));
  EXPECT_FALSE(refused({CUDA_SUCCESS, "cuMemFree"}));
}

}  // namespace
}  // namespace gpumem::cuda
