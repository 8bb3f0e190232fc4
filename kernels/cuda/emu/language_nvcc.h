// The nvcc half of cuda_emu.h: included by it alone.
#pragma once

#include <cstdlib>
#include <cstring>
#include <utility>

#include <cuda_runtime.h>

#define SHARED_ARRAY(T, name, dimensions) __shared__ __align__(16) T name dimensions
#define DYNAMIC_SHARED(T, name)                                \
  extern __shared__ __align__(128) unsigned char name##_raw[]; \
  T* name = reinterpret_cast<T*>(name##_raw)
#define LAUNCH_KERNEL(kernel, grid, block, dynamic_shared_bytes, stream, ...)                \
  ::bitshard::cuda::LaunchOnDevice(kernel, grid, block, dynamic_shared_bytes, stream, false, \
                                   __VA_ARGS__)
#define LAUNCH_KERNEL_EARLY(kernel, grid, block, dynamic_shared_bytes, stream, ...)         \
  ::bitshard::cuda::LaunchOnDevice(kernel, grid, block, dynamic_shared_bytes, stream, true, \
                                   __VA_ARGS__)

namespace bitshard::cuda {

constexpr size_t kSharedBytesWithoutAsking = 48 << 10;

template <class... Parameters, class... Arguments>
[[nodiscard]] cudaError_t LaunchOnDevice(void (*kernel)(Parameters...), dim3 grid, dim3 block,
                                         size_t dynamic_shared_bytes, cudaStream_t stream,
                                         bool overlaps_previous, Arguments&&... arguments) {
  if (dynamic_shared_bytes > kSharedBytesWithoutAsking) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(dynamic_shared_bytes));
    if (error != cudaSuccess) return error;
  }
  // Code for architectures below 90 has no wait in it (ptx/pdl.cuh): later devices that run its PTX
  // must not start it early. Drivers before CUDA 12.3 do not capture such launches.
  // BITSHARD_EARLY_LAUNCH=0: none starts early. All kernels of a program are of the same
  // architectures.
  static const bool can_wait = [kernel] {
    const char* const told = std::getenv("BITSHARD_EARLY_LAUNCH");
    int driver = 0;
    cudaFuncAttributes attributes = {};
    return (told == nullptr || std::strcmp(told, "0") != 0) &&
           cudaDriverGetVersion(&driver) == cudaSuccess && driver >= 12030 &&
           cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess && attributes.ptxVersion >= 90;
  }();
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = dynamic_shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = overlaps_previous && can_wait ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

// Before the atomic ticket that publishes this block's writes to the other blocks of the launch...
__device__ __forceinline__ void GridRelease() { __threadfence(); }
// ... and after it, before reading theirs.
__device__ __forceinline__ void GridAcquire() { __threadfence(); }

// All 32 lanes call; all get the result of the same tree: offsets 16, 8, 4, 2, 1.
__device__ __forceinline__ float WarpSum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1)
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}
__device__ __forceinline__ float WarpMax(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}

__device__ __forceinline__ uint16_t HalfBits(float value) {
  return __half_as_ushort(__float2half_rn(value));
}
__device__ __forceinline__ uint16_t Bf16Bits(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

}  // namespace bitshard::cuda
