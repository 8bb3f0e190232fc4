// Activations of a block's tokens on their way through shared memory, a tile of 64 columns a stage,
// for kernels whose warps all have the same tokens.
#pragma once

#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/linear_a8_tiles.cuh"
#include "kernels/cuda/ptx/cp_async.cuh"

namespace bitshard::cuda {

constexpr int kA8Stages = 3;

// Stages follow each other at `memory`, aligned to 16 bytes.
template <int kTokens>
class A8Ring {
 public:
  static constexpr size_t kBytes = size_t{kA8Stages} * kTokens * kA8RecordBytes;

  __device__ __forceinline__ A8Ring(const LinearA8Launch& launch, int first_token, int tiles,
                                    uint8_t* memory)
      : memory_(memory), tiles_(tiles) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int at = i * kThreads + static_cast<int>(threadIdx.x);
      const int row = at / kChunks, chunk = at % kChunks;
      const bool there = first_token + row < launch.m;
      const int64_t token = there ? first_token + row : 0;
      from_[i] = launch.records + token * launch.row_bytes + chunk * 16;
      bytes_[i] = there ? 16 : 0;
      // In a stage: q of all tokens, then what is about their pairs, then about their runs.
      to_[i] = chunk < 4 ? row * kA8TileCols + chunk * 16
                         : kTokens * (kA8TileCols + (chunk - 4) * 16) + row * 16;
    }
#pragma unroll
    for (int i = 0; i < kA8Stages - 1; ++i) {
      if (i < tiles_) LoadInto(i);
      CpAsyncCommit();
    }
    loaded_ = kA8Stages - 1;
  }

  // Before the use of each tile, by the whole block: it is there.
  __device__ __forceinline__ void Next() {
    CpAsyncWait<kA8Stages - 2>();
    __syncthreads();  // the stage is there for all, and all are done with the one before it
    if (loaded_ < tiles_) LoadInto(before_);
    ++loaded_;
    CpAsyncCommit();
    stage_ = memory_ + After(before_) * kStageBytes;
    before_ = After(before_);
  }

  template <bool kPairs>
  __device__ __forceinline__ void Read(int block, int lane, A8Tokens& to) const {
    const int token = 8 * block + lane % 4 * 2;
    to.q = At((8 * block + lane / 4) * kA8TileCols + lane % 4 * 16);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      to.pairs[i] = At(kTokens * kA8TileCols + (token + i) * 16);
      if constexpr (!kPairs) to.runs[i] = At(kTokens * (kA8TileCols + 16) + (token + i) * 16);
    }
  }

 private:
  static constexpr int kThreads = 32 * kA8Warps;
  static constexpr int kChunks = kA8RecordBytes / 16;
  static constexpr int kCopies = (kTokens * kChunks + kThreads - 1) / kThreads;
  static constexpr int kStageBytes = kTokens * kA8RecordBytes;

  static __device__ __forceinline__ int After(int stage) {
    return stage == kA8Stages - 1 ? 0 : stage + 1;
  }
  __device__ __forceinline__ uint4 At(int at) const {
    return *reinterpret_cast<const uint4*>(stage_ + at);
  }
  // The next tile of each copy.
  __device__ __forceinline__ void LoadInto(int stage) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int at = i * kThreads + static_cast<int>(threadIdx.x);
      if ((i + 1) * kThreads <= kTokens * kChunks || at < kTokens * kChunks)
        CpAsync16(memory_ + stage * kStageBytes + to_[i], from_[i], bytes_[i]);
      from_[i] += kA8RecordBytes;
    }
  }

  uint8_t* const memory_;
  const int tiles_;
  const uint8_t* from_[kCopies];
  int to_[kCopies], bytes_[kCopies];
  int loaded_ = 0, before_ = kA8Stages - 1;
  const uint8_t* stage_ = nullptr;
};

}  // namespace bitshard::cuda
