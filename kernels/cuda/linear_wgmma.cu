// y = W x for many tokens on Hopper's warpgroup products: a block has 128 rows x 128 tokens, a warp
// 16 rows and all of K. Weights go from global memory through registers, as exact integers code -
// zero; activations through two stages in shared memory. While the tensor cores work on one tile of
// 64 columns the warps make the next one's operands.
//
// Order of summation: f32 over a weight group, y = fma(acc, s_w, y) over the groups in ascending k,
// times the token's scale at the end. Not that of linear_cells.cuh: not for --deterministic.
#include <climits>

#include "kernels/cuda/dequant.cuh"
#include "kernels/cuda/dequant_scale.cuh"
#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/linear_launch.cuh"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"

namespace bitshard::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kRowsOfBlock = 16 * kWarps;
constexpr int kAlignment = 1024;
constexpr size_t kSharedBytes = 2 * kWgmmaTileBytes + kAlignment;
static_assert(kTileColumns == kWgmmaTileK);

// A thread's part of the activations, tile after tile: from global memory to registers, and from
// there to a stage, with the columns of each run in their own order.
class ActivationTiles {
  static constexpr int kRunsOfThread = kWgmmaColumns * kRunsOfTile / kThreads;

 public:
  __device__ __forceinline__ ActivationTiles(const LinearLaunch& launch, int first_token) {
#pragma unroll
    for (int i = 0; i < kRunsOfThread; ++i) {
      const int run = static_cast<int>(threadIdx.x) % kRunsOfTile;
      const int column = (static_cast<int>(threadIdx.x) + i * kThreads) / kRunsOfTile;
      // Where there is no such token the last one is computed again, for nobody.
      const int token = first_token + column < launch.m ? first_token + column : launch.m - 1;
      from_[i] = launch.half + int64_t{token} * launch.padded_cols + 16 * run;
      to_[i][0] = WgmmaPlace(column, 2 * run);
      to_[i][1] = WgmmaPlace(column, 2 * run + 1);
    }
  }
  __device__ __forceinline__ void LoadNext() {
#pragma unroll
    for (int i = 0; i < kRunsOfThread; ++i) {
      values_[i][0] = reinterpret_cast<const uint4*>(from_[i])[0];
      values_[i][1] = reinterpret_cast<const uint4*>(from_[i])[1];
      from_[i] += kTileColumns;
    }
  }
  __device__ __forceinline__ void Store(uint8_t* stage) const {
#pragma unroll
    for (int i = 0; i < kRunsOfThread; ++i) {
      // In a run pairs of columns lie as 0, 8, 2, 10, 4, 12, 6, 14.
      const uint4 low = values_[i][0], high = values_[i][1];
      *reinterpret_cast<uint4*>(stage + to_[i][0]) = make_uint4(low.x, low.z, high.x, high.z);
      *reinterpret_cast<uint4*>(stage + to_[i][1]) = make_uint4(low.y, low.w, high.y, high.w);
    }
  }

 private:
  const uint16_t* from_[kRunsOfThread];
  int to_[kRunsOfThread][2];
  uint4 values_[kRunsOfThread][2];
};

template <int kBits>
__device__ __forceinline__ void MakeOperands(const uint32_t (&words)[kBits],
                                             const ZeroTerms<kBits>& zeros, uint32_t half_1024,
                                             uint32_t (&a)[kRunsOfTile][4]) {
  Fragment<kBits, 0>(words, zeros, half_1024, a[0]);
  Fragment<kBits, 1>(words, zeros, half_1024, a[1]);
  Fragment<kBits, 2>(words, zeros, half_1024, a[2]);
  Fragment<kBits, 3>(words, zeros, half_1024, a[3]);
}

__device__ __forceinline__ void StoreRow(const LinearLaunch& launch, const LinearMember& member,
                                         int64_t row, int64_t token, float value) {
  if (row >= member.w.rows || token >= launch.m) return;
  value *= launch.scale[token];
  if (member.bias != nullptr) value += member.bias[row];
  member.y[token * member.stride + row] = value;
}

template <int kBits>
__global__ void __launch_bounds__(kThreads, 1)
    LinearWgmmaKernel(const __grid_constant__ LinearLaunch launch) {
#if defined(BITSHARD_HAS_WGMMA) || !defined(__CUDACC__)
  DYNAMIC_SHARED(uint8_t, shared);
  uint8_t* const stages =
      shared + (kAlignment - reinterpret_cast<uintptr_t>(shared) % kAlignment) % kAlignment;
  GridDependencyLaunch();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const BlockShare share = ShareOfBlock(launch, kWgmmaColumns);
  const LinearMember& member = share.member;
  const int first_token = share.first_token;
  const int wanted_tile = share.unit * kWarps + warp;
  // A warp without rows takes part in its group's products with the last ones.
  const int last_tile = static_cast<int>((member.w.rows + 15) / 16) - 1;
  const int row_tile = wanted_tile < last_tile ? wanted_tile : last_tile;
  const int tiles = static_cast<int>(launch.padded_cols / kTileColumns);

  constexpr int64_t kTileBytes = 128 * kBits;
  const uint8_t* codes = member.w.codes + row_tile * member.w.tile_bytes;
  uint32_t words[kBits];
  LoadTile<kBits>(codes, lane, words);
  HalfScaleRows<1> scales(member.w.scale, {row_tile}, lane, 0);
  PairNumbers numbers[1];
  scales.NextAsStored(numbers);
  ZeroTerms<kBits> zeros;
  zeros.Set(numbers[0].zero[0], numbers[0].zero[1]);
  uint32_t even[kRunsOfTile][4], odd[kRunsOfTile][4];
  MakeOperands<kBits>(words, zeros, launch.half_1024, even);
  codes += kTileBytes;
  if (tiles > 1) LoadTile<kBits>(codes, lane, words);
  const int group_tiles = member.group_runs == 0 ? INT_MAX : member.group_runs / kRunsOfTile;
  int left = group_tiles - member.first_group_runs / kRunsOfTile;  // of the group

  GridDependencyWait();
  ActivationTiles tokens(launch, first_token);
  tokens.LoadNext();
  tokens.Store(stages);
  if (tiles > 1) tokens.LoadNext();
  PublishShared();
  __syncthreads();

  WgmmaF16 products;
  float acc[kWgmmaBlocks][4] = {}, y[kWgmmaBlocks][4] = {};
  bool fresh = true;
  // The tile in `stage` with the operands a, while the next one's are made.
  const auto multiply = [&](int tile, uint32_t(&a)[kRunsOfTile][4], uint32_t(&next)[kRunsOfTile][4],
                            uint8_t* stage, uint8_t* next_stage) {
    products.Begin();
#pragma unroll
    for (int run = 0; run < kRunsOfTile; ++run)
      products.Multiply(acc, a[run], stage, run, fresh && run == 0);
    products.End();

    const bool more = tile + 1 < tiles;
    fresh = --left == 0 || !more;
    const float scale[2] = {numbers[0].scale[0], numbers[0].scale[1]};
    if (more) {
      tokens.Store(next_stage);  // all are done with what was there
      PublishShared();
      if (fresh) {
        scales.NextAsStored(numbers);
        zeros.Set(numbers[0].zero[0], numbers[0].zero[1]);
        left = group_tiles;
      }
      MakeOperands<kBits>(words, zeros, launch.half_1024, next);
      if (tile + 2 < tiles) {
        codes += kTileBytes;
        LoadTile<kBits>(codes, lane, words);
        tokens.LoadNext();
      }
    }
    products.Wait(acc);
    if (fresh) {
#pragma unroll
      for (int i = 0; i < 4 * kWgmmaBlocks; ++i)
        y[i / 4][i % 4] = fmaf(acc[i / 4][i % 4], scale[i % 4 / 2], y[i / 4][i % 4]);
    }
    __syncthreads();
  };
  for (int tile = 0; tile < tiles; tile += 2) {
    multiply(tile, even, odd, stages, stages + kWgmmaTileBytes);
    if (tile + 1 < tiles) multiply(tile + 1, odd, even, stages + kWgmmaTileBytes, stages);
  }
  if (wanted_tile > last_tile) return;
#pragma unroll
  for (int i = 0; i < 4 * kWgmmaBlocks; ++i) {
    StoreRow(launch, member, int64_t{row_tile} * 16 + lane / 4 + i % 4 / 2 * 8,
             first_token + i / 4 * 8 + lane % 4 * 2 + i % 2, y[i / 4][i % 4]);
  }
#else
  __trap();  // DeviceHasWgmma() keeps it from other devices
#endif
}

template <int kBits>
cudaError_t LaunchWith(LinearLaunch launch, cudaStream_t stream) {
  unsigned blocks = 0;
  if (!ShareOut(kRowsOfBlock, kWgmmaColumns, launch, blocks)) return cudaErrorInvalidValue;
  if (blocks == 0) return cudaSuccess;
  return LAUNCH_KERNEL_EARLY((LinearWgmmaKernel<kBits>), dim3(blocks), dim3(kThreads), kSharedBytes,
                             stream, launch);
}

// The code that this device runs has the instructions: it is sm_90a's own.
bool DeviceHasWgmma() {
#if defined(__CUDACC__)
  static const bool has = [] {
    cudaFuncAttributes attributes = {};
    return cudaFuncGetAttributes(&attributes, LinearWgmmaKernel<4>) == cudaSuccess &&
           attributes.binaryVersion == 90 && attributes.ptxVersion == 90;
  }();
  return has;
#else
  return true;
#endif
}

}  // namespace

bool ServesLinearWgmma(const LinearLaunch& launch) {
  if (launch.segmented || launch.m < kLeastWgmmaTokens || launch.cols == 0 || launch.count == 0)
    return false;
  for (int i = 0; i < launch.count; ++i) {
    const LinearMember& member = launch.members[i];
    if (!ScalesArePlainHalves(member.w) || member.w.scale.has_min ||
        member.group_runs % kRunsOfTile != 0 || member.first_group_runs % kRunsOfTile != 0) {
      return false;
    }
  }
  LinearLaunch shared_out = launch;
  unsigned blocks = 0;
  return ShareOut(kRowsOfBlock, kWgmmaColumns, shared_out, blocks) && IsForMany(launch.m, blocks) &&
         DeviceHasWgmma();
}

cudaError_t LaunchLinearWgmma(const LinearLaunch& launch, cudaStream_t stream) {
  switch (launch.members[0].w.bits) {
    case 2:
      return LaunchWith<2>(launch, stream);
    case 3:
      return LaunchWith<3>(launch, stream);
    case 4:
      return LaunchWith<4>(launch, stream);
    case 5:
      return LaunchWith<5>(launch, stream);
    case 6:
      return LaunchWith<6>(launch, stream);
    case 7:
      return LaunchWith<7>(launch, stream);
    case 8:
      return LaunchWith<8>(launch, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace bitshard::cuda
