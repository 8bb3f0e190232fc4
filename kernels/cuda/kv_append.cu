// Rounds new keys and values to the type of the cache and stores them (kernels/tensor/kv_layout.h),
// with the CPU's bits.
//
// Tokens of one sequence that lie in the same block of 16 positions are stored together, by the
// thread block of the first of them: neighbours in a K plane leave in one access.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/kv_codes.cuh"
#include "kernels/cuda/prepare.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace bitshard::cuda {
namespace {

constexpr int kThreads = 128;

__device__ __forceinline__ bool Follows(const TokenRows& tokens, int64_t token) {
  return tokens.row[token] == tokens.row[token - 1] &&
         tokens.position[token] == tokens.position[token - 1] + 1;
}

// K or V of one token, by one warp. As KvScale of kernels/registry/attention_codes.h.
template <KvType kType>
__device__ __forceinline__ float TokenScale(const float* x, int head_dim) {
  float largest = 0;
  for (int d = threadIdx.x % 32; d < head_dim; d += 32) largest = fmaxf(largest, Magnitude(x[d]));
  largest = WarpMax(largest);
  return __float_as_uint(largest) < 0x7f800000u ? largest / KvElement<kType>::kLargest
                                                : __uint_as_float(0x7fc00000u);
}

// A block is one kv head of the tokens from blockIdx.x on that share a block of the cache.
template <KvType kType>
__global__ void __launch_bounds__(kThreads) AppendKernel(const __grid_constant__ AppendArgs args) {
  using Element = KvElement<kType>;
  using Stored = typename Element::Stored;
  using Pair = typename Element::Pair;
  SHARED_ARRAY(float, k_scale, [kKvBlockTokens]);  // by slot
  SHARED_ARRAY(float, v_scale, [kKvBlockTokens]);
  GridDependencyLaunch();
  GridDependencyWait();
  const TokenRows& tokens = args.tokens;
  const int64_t token = blockIdx.x;
  const int position = tokens.position[token];
  if (position < 0) return;
  const int first = position % kKvBlockTokens;  // slot
  if (first > 0 && token > 0 && Follows(tokens, token)) return;
  int end = first + 1;
  while (end < kKvBlockTokens && token + end - first < tokens.m &&
         Follows(tokens, token + end - first))
    ++end;

  const KvCache& cache = args.cache;
  const int head_dim = cache.head_dim;
  const int64_t block =
      tokens.blocks[tokens.block_begin[tokens.row[token]] + position / kKvBlockTokens];
  uint8_t* const k_plane =
      cache.data + block * cache.block_bytes + int64_t{blockIdx.y} * cache.head_bytes;
  uint8_t* const v_plane = k_plane + cache.v_offset;
  const float* const k = args.k + int64_t{blockIdx.y} * head_dim;
  const float* const v = args.v + int64_t{blockIdx.y} * head_dim;
  const auto row = [&](const float* x, int slot) {
    return x + (token + slot - first) * args.stride;
  };

  if constexpr (Element::kHasScales) {
    for (int i = threadIdx.x / 32; i < 2 * (end - first); i += kThreads / 32) {
      const int slot = first + i / 2;
      const float scale = TokenScale<kType>(row(i % 2 == 0 ? k : v, slot), head_dim);
      if (threadIdx.x % 32 != 0) continue;
      (i % 2 == 0 ? k_scale : v_scale)[slot] = scale;
      uint8_t* const plane = i % 2 == 0 ? k_plane : v_plane;
      reinterpret_cast<float*>(plane + cache.plane_bytes)[slot] = scale;
    }
    __syncthreads();
  }
  const auto encode = [&](const float* x, const float* scales, int slot, int d) {
    const float scale = Element::kHasScales ? scales[slot] : 0.0f;
    return Element::Encode(row(x, slot)[d], scale);
  };

  // K: pairs of slots, several pairs for each d.
  Stored* const k_out = reinterpret_cast<Stored*>(k_plane);
  const int first_pair = first / 2, pairs = (end - 1) / 2 - first_pair + 1;
  for (int i = threadIdx.x; i < head_dim * pairs; i += kThreads) {
    const int d = i / pairs, slot = 2 * (first_pair + i % pairs);
    Stored* const to = k_out + d * kKvBlockTokens + slot;
    if (slot >= first && slot + 1 < end) {
      Pair pair;
      pair.x = encode(k, k_scale, slot, d);
      pair.y = encode(k, k_scale, slot + 1, d);
      *reinterpret_cast<Pair*>(to) = pair;
    } else if (slot >= first) {
      to[0] = encode(k, k_scale, slot, d);
    } else {
      to[1] = encode(k, k_scale, slot + 1, d);
    }
  }
  // V: pairs of d.
  Stored* const v_out = reinterpret_cast<Stored*>(v_plane);
  const int half = head_dim / 2;
  for (int i = threadIdx.x; i < half * (end - first); i += kThreads) {
    const int slot = first + i / half, d = 2 * (i % half);
    Pair pair;
    pair.x = encode(v, v_scale, slot, d);
    pair.y = encode(v, v_scale, slot, d + 1);
    *reinterpret_cast<Pair*>(v_out + slot * head_dim + d) = pair;
  }
}

template <KvType kType>
cudaError_t Launch(const AppendArgs& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.tokens.m), static_cast<unsigned>(args.cache.kv_heads));
  return LAUNCH_KERNEL_EARLY(AppendKernel<kType>, grid, dim3(kThreads), 0, stream, args);
}

}  // namespace

KvCache MakeKvCache(const KvLayout& layout, uint8_t* data) {
  return {.type = layout.type,
          .kv_heads = layout.kv_heads,
          .head_dim = layout.head_dim,
          .data = data,
          .block_bytes = layout.block_bytes(),
          .head_bytes = layout.head_bytes(),
          .plane_bytes = layout.plane_bytes(),
          .v_offset = layout.v_offset(0)};
}

cudaError_t LaunchAppend(const AppendArgs& args, cudaStream_t stream) {
  if (args.tokens.m == 0 || args.cache.kv_heads == 0) return cudaSuccess;
  return VisitKvType(args.cache.type, [&](auto type) { return Launch<type.value>(args, stream); });
}

}  // namespace bitshard::cuda
