// How the rows of a launch's matrices and its tokens are shared out over blocks: units of rows,
// each of one matrix, times chunks of tokens. For LinearLaunch and LinearA8Launch.
#pragma once

#include <climits>
#include <cstdint>

#include "kernels/cuda/emu/cuda_emu.h"

namespace bitshard::cuda {

// False: more than a grid can have.
template <class Launch>
bool ShareOut(int rows_a_unit, int tokens_a_chunk, Launch& launch, unsigned& blocks) {
  launch.token_chunks = (launch.m + tokens_a_chunk - 1) / tokens_a_chunk;
  int64_t units = 0;
  for (int i = 0; i < launch.count; ++i) {
    units += (launch.members[i].w.rows + rows_a_unit - 1) / rows_a_unit;
    if (units > INT_MAX / launch.token_chunks) return false;
    launch.first_unit[i + 1] = static_cast<int32_t>(units);
  }
  blocks = static_cast<unsigned>(units * launch.token_chunks);
  return true;
}

// Whether a kernel whose blocks are large has tokens to fill their chunks, or blocks to fill a GPU.
inline bool IsForMany(int64_t m, unsigned blocks) {
  constexpr int kManyTokens = 256;
  constexpr unsigned kManyBlocks = 96;
  return blocks > 0 && (m >= kManyTokens || blocks >= kManyBlocks);
}

// Which matrix of the launch a unit of row tiles belongs to.
template <class Launch>
__device__ __forceinline__ int MemberOfUnit(const Launch& launch, int unit) {
  int member = 0;
  while (member + 1 < launch.count && unit >= launch.first_unit[member + 1]) ++member;
  return member;
}

}  // namespace bitshard::cuda
