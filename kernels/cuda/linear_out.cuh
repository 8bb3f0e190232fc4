// What becomes of the sums that a kernel of y = W x has found, the same in all of them: int64 parts
// of segments, the poison count, the output with its bias.
#pragma once

#include <cstdint>

#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/linear.h"

namespace bitshard::cuda {

// Not those that fill up a tile of rows or a chunk of tokens.
__device__ __forceinline__ bool IsOutput(const LinearLaunchBase& launch, const LinearMember& member,
                                         int64_t row, int64_t token) {
  return row < member.w.rows && token < launch.m;
}

// Adds a segment's `value` to its output's sum; one that is too large, or no number, poisons its
// token instead.
__device__ __forceinline__ void AddFixed(const LinearLaunchBase& launch, const LinearMember& member,
                                         int64_t row, int64_t token, float value, long long& sum) {
  if (fabsf(value) < member.limit) {
    sum += __float2ll_rn(value * 4294967296.0f);  // a power of two: exact
  } else if (IsOutput(launch, member, row, token)) {
    atomicAdd(reinterpret_cast<unsigned long long*>(member.poison) + token, 1ull);
  }
}

// One output: the sum of its segments, or y and the bias.
__device__ __forceinline__ void StoreOutput(const LinearLaunchBase& launch,
                                            const LinearMember& member, int64_t row, int64_t token,
                                            float y, long long sum) {
  if (!IsOutput(launch, member, row, token)) return;
  const int64_t at = token * member.stride + row;
  if (launch.segmented) {
    member.sums[at] = sum;
    return;
  }
  if (member.bias != nullptr) y += member.bias[row];
  member.y[at] = y;
}

}  // namespace bitshard::cuda
