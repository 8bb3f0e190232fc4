// The g++ half of cuda_emu.h: included by it alone. CUDA's words become host words here; builtins
// that are more than a word are in builtins_host.h.
//
// In the check build this header is compiled with the kernel: what reads or writes device memory on
// the kernel's behalf without being one plain access (atomics) is kept out of the instrumentation.
#pragma once

#include "kernels/base/float_types.h"
#include "kernels/cuda/emu/core.h"

// The toolkit's own definitions are attributes that only nvcc knows.
#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __managed__
#undef __launch_bounds__
#undef __grid_constant__
#undef __forceinline__
#undef __noinline__
#define __global__
#define __device__
#define __host__
#define __constant__
#define __launch_bounds__(...)
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))

#define threadIdx (*::bitshard::emu::thread_index)
#define blockIdx (::bitshard::emu::block_ids.index)
#define blockDim (::bitshard::emu::block_ids.size)
#define gridDim (::bitshard::emu::block_ids.grid)
#define warpSize 32

// A default argument that names the caller's line.
#define EMU_WHERE const ::bitshard::emu::Where& where = ::bitshard::emu::Where::current()

#define SHARED_ARRAY(T, name, dimensions)                                        \
  static ::bitshard::emu::SharedSite name##_site = {#name, 0, nullptr};          \
  using name##_array = T dimensions;                                             \
  name##_array& name = *static_cast<name##_array*>(::bitshard::emu::SharedArray( \
      &name##_site, sizeof(name##_array), ::bitshard::emu::Where::current()))
#define DYNAMIC_SHARED(T, name) T* name = static_cast<T*>(::bitshard::emu::DynamicShared())
#define EMU_LAUNCH(kernel, grid, block, dynamic_shared_bytes, early, stream, ...)               \
  ::bitshard::emu::Launch(#kernel,                                                              \
                          ::bitshard::emu::MakeShape(grid, block, dynamic_shared_bytes, early), \
                          stream, kernel, __VA_ARGS__)
#define LAUNCH_KERNEL(kernel, grid, block, dynamic_shared_bytes, stream, ...) \
  EMU_LAUNCH(kernel, grid, block, dynamic_shared_bytes, false, stream, __VA_ARGS__)
#define LAUNCH_KERNEL_EARLY(kernel, grid, block, dynamic_shared_bytes, stream, ...) \
  EMU_LAUNCH(kernel, grid, block, dynamic_shared_bytes, true, stream, __VA_ARGS__)

#include "kernels/cuda/emu/builtins_host.h"

namespace bitshard::cuda {

__forceinline__ void GridRelease() { emu::FenceGrid(); }
__forceinline__ void GridAcquire() { emu::AcquireGrid(); }

// One meeting of the lanes in place of five; the same tree, the same bits.
__forceinline__ float WarpSum(float value, EMU_WHERE) {
  return emu::FromBits<float>(
      emu::Meet(emu::Collective::kSumFloat, ~0u, emu::ToBits(value), 0, 32, where));
}
__forceinline__ float WarpMax(float value, EMU_WHERE) {
  return emu::FromBits<float>(
      emu::Meet(emu::Collective::kMaxFloat, ~0u, emu::ToBits(value), 0, 32, where));
}

__forceinline__ uint16_t HalfBits(float value) {
  return value != value ? uint16_t{0x7fff} : F32ToF16(value);
}
__forceinline__ uint16_t Bf16Bits(float value) {
  return value != value ? uint16_t{0x7fff} : F32ToBf16(value);
}

}  // namespace bitshard::cuda
