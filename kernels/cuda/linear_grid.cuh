// How the rows of a launch's matrices and its tokens are shared out over blocks: units of rows,
// each of one matrix, times chunks of tokens.
#pragma once

#include <climits>
#include <cstdint>

#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/linear.h"

namespace bitshard::cuda {

// False: more than a grid can have.
inline bool ShareOut(int rows_a_unit, int tokens_a_chunk, LinearLaunchBase& launch,
                     unsigned& blocks) {
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

// What a block has of its launch.
struct BlockShare {
  const LinearMember& member;
  const int unit;  // of the member's rows
  const int first_token;
};
// Tokens are the fastest: those who read the same weights run at about the same time.
__device__ __forceinline__ BlockShare ShareOfBlock(const LinearLaunchBase& launch,
                                                   int tokens_a_chunk) {
  const int unit = static_cast<int>(blockIdx.x) / launch.token_chunks;
  const int chunk = static_cast<int>(blockIdx.x) % launch.token_chunks;
  int index = 0;
  while (index + 1 < launch.count && unit >= launch.first_unit[index + 1]) ++index;
  return {launch.members[index], unit - launch.first_unit[index], chunk * tokens_a_chunk};
}

}  // namespace bitshard::cuda
