// What lies between the q | k | v matrix and attention, in one launch: rotates queries in place and
// keys on their way into the cache, rounds new keys and values to its type and stores them
// (kernels/tensor/kv_layout.h), with the CPU's bits (RopeTable::Apply, BoundAttention). Rotated
// keys lie in the cache alone. Without a rotation it stores, without kv heads it rotates.
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
constexpr int kQHeadsOfBlock = 4;

// Where pair i of a head lies.
__device__ __forceinline__ int LowOf(const Rotation& rotation, int i) {
  return rotation.interleaved ? 2 * i : i;
}
__device__ __forceinline__ int HighOf(const Rotation& rotation, int i) {
  return rotation.interleaved ? 2 * i + 1 : i + rotation.rotary_dim / 2;
}

__device__ __forceinline__ float2 Rotated(float low, float high, float2 cos_sin) {
  return make_float2(low * cos_sin.x - high * cos_sin.y, high * cos_sin.x + low * cos_sin.y);
}

// Of the token blockIdx.x, kQHeadsOfBlock heads or what is left.
__device__ __forceinline__ void RotateQueries(const RotateAppendArgs& args, int first_head) {
  const int head_dim = args.cache.head_dim, half = args.rotation.rotary_dim / 2;
  const int heads = min(kQHeadsOfBlock, args.q_heads - first_head);
  const float2* const cos_sin = args.rotation.cos_sin + int64_t{blockIdx.x} * half;
  float* const q =
      args.q + int64_t{blockIdx.x} * args.q_stride + static_cast<int64_t>(first_head) * head_dim;
  for (int at = threadIdx.x; at < heads * half; at += kThreads) {
    const int i = at % half;
    float* const head = q + at / half * head_dim;
    float* const low = head + LowOf(args.rotation, i);
    float* const high = head + HighOf(args.rotation, i);
    const float2 rotated = Rotated(*low, *high, cos_sin[i]);
    *low = rotated.x;
    *high = rotated.y;
  }
}

__device__ __forceinline__ bool Follows(const TokenRows& tokens, int64_t token) {
  return tokens.row[token] == tokens.row[token - 1] &&
         tokens.position[token] == tokens.position[token - 1] + 1;
}

// The slot behind those of the tokens from `token` on, of slot `first`, that share a block of the
// cache. All lanes of the warp call.
__device__ __forceinline__ int EndOfRun(const TokenRows& tokens, int64_t token, int first) {
  const int lane = threadIdx.x % 32;
  const bool follows = lane == 0 || (first + lane < kKvBlockTokens && token + lane < tokens.m &&
                                     Follows(tokens, token + lane));
  const unsigned others = ~__ballot_sync(0xffffffffu, follows);
  return first + __ffs(static_cast<int>(others)) - 1;
}

// Of rows of keys, [slot][d], between rotation and rounding: what a warp rounds at once, 4 d of 8
// slots, lies in different banks.
constexpr int KeyStride(int head_dim) { return (head_dim + 13) / 16 * 16 + 2; }

// K or V of one token, by one warp. As KvScale of kernels/registry/attention_codes.h.
template <KvType kType>
__device__ __forceinline__ float TokenScale(const float* x, int head_dim) {
  float largest = 0;
  for (int d = threadIdx.x % 32; d < head_dim; d += 32) largest = fmaxf(largest, Magnitude(x[d]));
  largest = WarpMax(largest);
  return __float_as_uint(largest) < 0x7f800000u ? largest / KvElement<kType>::kLargest
                                                : __uint_as_float(0x7fc00000u);
}

// One kv head of the tokens from blockIdx.x on that share a block of the cache.
template <KvType kType>
__device__ __forceinline__ void Append(const RotateAppendArgs& args, int kv_head, int position) {
  using Element = KvElement<kType>;
  using Stored = typename Element::Stored;
  using Pair = typename Element::Pair;
  SHARED_ARRAY(float, k_scale, [kKvBlockTokens]);  // by slot
  SHARED_ARRAY(float, v_scale, [kKvBlockTokens]);
  DYNAMIC_SHARED(float, keys);
  const TokenRows& tokens = args.tokens;
  const int64_t token = blockIdx.x;
  const int first = position % kKvBlockTokens;  // slot
  if (first > 0 && token > 0 && Follows(tokens, token)) return;
  const int end = EndOfRun(tokens, token, first);

  const KvCache& cache = args.cache;
  const int head_dim = cache.head_dim;
  const int64_t block =
      tokens.blocks[tokens.block_begin[tokens.row[token]] + position / kKvBlockTokens];
  uint8_t* const k_plane = cache.data + block * cache.block_bytes + kv_head * cache.head_bytes;
  uint8_t* const v_plane = k_plane + cache.v_offset;
  const float* const k = args.k + static_cast<int64_t>(kv_head) * head_dim;
  const float* const v = args.v + static_cast<int64_t>(kv_head) * head_dim;
  const auto row = [&](const float* x, int slot) {
    return x + (token + slot - first) * args.stride;
  };
  const int key_stride = KeyStride(head_dim);

  const Rotation& rotation = args.rotation;
  const int half = rotation.rotary_dim / 2;
  for (int at = threadIdx.x; at < (end - first) * half; at += kThreads) {
    const int slot = first + at / half, i = at % half;
    const int low = LowOf(rotation, i), high = HighOf(rotation, i);
    const float2 cos_sin = rotation.cos_sin[(token + slot - first) * half + i];
    const float2 rotated = Rotated(row(k, slot)[low], row(k, slot)[high], cos_sin);
    keys[slot * key_stride + low] = rotated.x;
    keys[slot * key_stride + high] = rotated.y;
  }
  const int rest = head_dim - rotation.rotary_dim;
  for (int at = threadIdx.x; at < (end - first) * rest; at += kThreads) {
    const int slot = first + at / rest, d = rotation.rotary_dim + at % rest;
    keys[slot * key_stride + d] = row(k, slot)[d];
  }

  // Pairs of d, from the last thread on: of a single token the first ones rotate.
  const auto store_values = [&] {
    Stored* const out = reinterpret_cast<Stored*>(v_plane);
    const int pairs = head_dim / 2;
    for (int at = kThreads - 1 - threadIdx.x; at < (end - first) * pairs; at += kThreads) {
      const int slot = first + at / pairs, d = 2 * (at % pairs);
      const float scale = Element::kHasScales ? v_scale[slot] : 0.0f;
      Pair pair;
      pair.x = Element::Encode(row(v, slot)[d], scale);
      pair.y = Element::Encode(row(v, slot)[d + 1], scale);
      *reinterpret_cast<Pair*>(out + slot * head_dim + d) = pair;
    }
  };
  if constexpr (!Element::kHasScales) store_values();
  __syncthreads();
  if constexpr (Element::kHasScales) {
    for (int i = threadIdx.x / 32; i < 2 * (end - first); i += kThreads / 32) {
      const int slot = first + i / 2;
      const bool is_key = i % 2 == 0;
      const float scale =
          TokenScale<kType>(is_key ? keys + slot * key_stride : row(v, slot), head_dim);
      if (threadIdx.x % 32 != 0) continue;
      (is_key ? k_scale : v_scale)[slot] = scale;
      reinterpret_cast<float*>((is_key ? k_plane : v_plane) + cache.plane_bytes)[slot] = scale;
    }
    __syncthreads();
    store_values();
  }

  // K: pairs of slots, several pairs for each d.
  const auto encode = [&](int slot, int d) {
    return Element::Encode(keys[slot * key_stride + d], Element::kHasScales ? k_scale[slot] : 0.0f);
  };
  Stored* const k_out = reinterpret_cast<Stored*>(k_plane);
  const int first_pair = first / 2, pairs = (end - 1) / 2 - first_pair + 1;
  for (int at = threadIdx.x; at < head_dim * pairs; at += kThreads) {
    const int d = at / pairs, slot = 2 * (first_pair + at % pairs);
    Stored* const to = k_out + d * kKvBlockTokens + slot;
    if (slot >= first && slot + 1 < end) {
      Pair pair;
      pair.x = encode(slot, d);
      pair.y = encode(slot + 1, d);
      *reinterpret_cast<Pair*>(to) = pair;
    } else if (slot >= first) {
      to[0] = encode(slot, d);
    } else {
      to[1] = encode(slot + 1, d);
    }
  }
}

// The first blocks of a token are its kv heads, the others its query heads.
template <KvType kType>
__global__ void __launch_bounds__(kThreads)
    RotateAppendKernel(const __grid_constant__ RotateAppendArgs args) {
  GridDependencyLaunch();
  GridDependencyWait();
  const int position = args.tokens.position[blockIdx.x];
  if (position < 0) return;
  const int y = static_cast<int>(blockIdx.y);
  if (y < args.cache.kv_heads) {
    Append<kType>(args, y, position);
  } else {
    RotateQueries(args, (y - args.cache.kv_heads) * kQHeadsOfBlock);
  }
}

template <KvType kType>
cudaError_t Launch(const RotateAppendArgs& args, int blocks, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.tokens.m), static_cast<unsigned>(blocks));
  const int keys = args.cache.kv_heads == 0 ? 0 : kKvBlockTokens * KeyStride(args.cache.head_dim);
  return LAUNCH_KERNEL_EARLY(RotateAppendKernel<kType>, grid, dim3(kThreads),
                             static_cast<size_t>(keys) * sizeof(float), stream, args);
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

cudaError_t LaunchRotateAppend(const RotateAppendArgs& args, cudaStream_t stream) {
  const int q_heads = args.rotation.rotary_dim == 0 ? 0 : args.q_heads;
  const int blocks = args.cache.kv_heads + (q_heads + kQHeadsOfBlock - 1) / kQHeadsOfBlock;
  if (args.tokens.m == 0 || blocks == 0) return cudaSuccess;
  return VisitKvType(args.cache.type,
                     [&](auto type) { return Launch<type.value>(args, blocks, stream); });
}

}  // namespace bitshard::cuda
