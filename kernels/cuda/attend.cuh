// Attention of one block of threads: what attention.cu cuts the work into.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/kv_codes.cuh"
#include "kernels/cuda/math.cuh"

namespace bitshard::cuda {

constexpr int kAttendThreads =
    kKvChunkTokens;  // scores: a thread a position; outputs: a thread a d
constexpr int kAttendWarps = kAttendThreads / 32;
constexpr int kChunkBlocks = kKvChunkTokens / kKvBlockTokens;

// Consecutive tokens of one sequence at consecutive positions; or one padding token (position < 0).
struct TokenRun {
  int token;
  int tokens;
  int position;
};

__device__ __forceinline__ TokenRun RunAt(const TokenRows& tokens, int token, int end) {
  TokenRun run = {token, 1, tokens.position[token]};
  if (run.position < 0) return run;
  while (token + run.tokens < end && tokens.row[token + run.tokens] == tokens.row[token] &&
         tokens.position[token + run.tokens] == run.position + run.tokens)
    ++run.tokens;
  return run;
}

// Tokens [16 i, 16 i + 16) follow each other in one sequence: attention_tiles.cu can have them.
constexpr int kTileQueries = 16;
__device__ __forceinline__ bool IsWholeTile(const TokenRows& tokens, int i) {
  const int begin = i * kTileQueries, end = begin + kTileQueries;
  return end <= tokens.m && RunAt(tokens, begin, end).tokens == kTileQueries;
}

// The q heads of a kv head, ascending; how many, for thread 0. By the first warp; a barrier is the
// caller's.
__device__ __forceinline__ int FindHeads(const AttendArgs& args, int kv_head,
                                         int (&head_of)[kMaxQHeads]) {
  const int t = threadIdx.x;
  if (t >= 32) return 0;
  int found = 0;
  for (int begin = 0; begin < args.q_heads; begin += 32) {
    const int head = begin + t;
    const bool mine = head < args.q_heads && args.kv_head_of_q[head] == kv_head;
    const unsigned mask = __ballot_sync(0xffffffffu, mine);
    if (mine) head_of[found + __popc(mask & ((1u << t) - 1u))] = head;
    found += __popc(mask);
  }
  return found;
}

__device__ __forceinline__ int FirstVisible(int position, int window) {
  return window == 0 ? 0 : max(0, position - window + 1);
}

// One q head of one token: it sees the positions [first, last]. Nobody: last < first.
struct AttendQuery {
  int token;
  int head;
  int first, last;
};
__device__ __forceinline__ AttendQuery QueryAt(const TokenRun& run, int index, int group,
                                               const int* head_of, int window) {
  const int position = run.position + index / group;
  return {run.token + index / group, head_of[index % group], FirstVisible(position, window),
          position};
}

// How a chunk enters the fold: out = fma(out, before, chunk * now).
struct FoldFactors {
  float before, now;
};
__device__ __forceinline__ FoldFactors AddChunk(float chunk_max, float chunk_sum, float& max_so_far,
                                                float& sum_so_far) {
  const float new_max = chunk_max > max_so_far ? chunk_max : max_so_far;
  const FoldFactors factors = {ExpF32(max_so_far - new_max), ExpF32(chunk_max - new_max)};
  sum_so_far = fmaf(sum_so_far, factors.before, chunk_sum * factors.now);
  max_so_far = new_max;
  return factors;
}

// The results of single chunks, [token][q head][chunk, from the first that the token sees].
struct AttendScratch {
  float2* max_sum;
  float* out;  // ...[head_dim]
};
__device__ __forceinline__ AttendScratch ScratchOf(const AttendArgs& args) {
  const int64_t count = args.tokens.m * args.q_heads * args.plan.chunks;
  float2* const max_sum = static_cast<float2*>(args.scratch);
  return {max_sum, reinterpret_cast<float*>(max_sum + count)};
}

// A p is never below 0, so that -0 says: unseen. It adds nothing to a sum.
constexpr float kUnseen = -0.0f;
__device__ __forceinline__ bool IsSeen(float p) { return __float_as_uint(p) != 0x80000000u; }

// What a block works on. In shared memory: registers are for the sums.
struct AttendTile {
  int head_of[kMaxQHeads];  // the q heads of the block's kv head, ascending
  int group;                // how many
  TokenRun run;
  int first;  // query of the run, of the next turn
};

// What the queries of one turn share.
template <int kQueries>
struct AttendShared {
  float q[kQueries][kMaxHeadDim];
  // Rows lie 16 banks apart: the lanes of two queries are summed by one warp.
  float p[kQueries][kKvChunkTokens + kKvBlockTokens];  // kUnseen: not for this query
  float warp_max[kQueries][kAttendWarps];
  AttendQuery query[kQueries];         // in the order of their tokens
  int lowest, highest;                 // the first position of the first, the last of the last
  int common_lowest, common_highest;   // the last one's first, the first one's last
  float max[kQueries], sum[kQueries];  // of the chunk
  float max_so_far[kQueries], sum_so_far[kQueries], out_so_far[kQueries][kMaxHeadDim];
  FoldFactors factors[kQueries];
  uint32_t block[kChunkBlocks];
};

// The part of a chunk that a turn works on; positions counted from the chunk's first.
struct AttendWindow {
  int base;
  int first, last;  // that some query sees
};

template <KvType kType, int kQueries>
class Attend {
 public:
  using Element = KvElement<kType>;
  using Stored = typename Element::Stored;
  // Values that a thread loads together: registers for more there are not.
  static constexpr int kAtOnce = sizeof(Stored) == 4 ? 4 : 8;

  __device__ __forceinline__ Attend(const AttendArgs& args, AttendTile& tile,
                                    AttendShared<kQueries>& shared)
      : args_(args), tile_(tile), shared_(shared) {}

  // The next queries of the tile's run, over the run's chunks blockIdx.z, + parts ... Of several
  // parts each chunk's result goes to scratch; of one the outputs are written.
  __device__ __forceinline__ void Turn() {
    LoadQueries();
    for (int chunk = FirstVisible(tile_.run.position, args_.window) / kKvChunkTokens + blockIdx.z;
         chunk * kKvChunkTokens <= shared_.highest; chunk += args_.plan.parts) {
      AttendWindow w;
      w.base = chunk * kKvChunkTokens;
      w.first = max(shared_.lowest - w.base, 0);
      w.last = min(shared_.highest - w.base, kKvChunkTokens - 1);
      if (w.first > w.last) continue;
      Scores(w);
      float out[kQueries];
      Outputs(w, out);
      __syncthreads();
      if (args_.plan.parts > 1) {
        StorePartials(w.base, out);
      } else {
        Fold(w.base, out);
      }
    }
    if (args_.plan.parts == 1) {
      __syncthreads();
      Store();
    }
    if (threadIdx.x == 0) tile_.first += kQueries;
    __syncthreads();
  }

 private:
  __device__ __forceinline__ bool Sees(const AttendQuery& query, int base) const {
    return query.last >= base && query.first < base + kKvChunkTokens;
  }

  __device__ __forceinline__ void LoadQueries() {
    const int t = threadIdx.x;
    const int count = min(kQueries, tile_.run.tokens * tile_.group - tile_.first);
    if (t < kQueries) {
      AttendQuery query = {0, 0, 0, -1};
      if (t < count)
        query = QueryAt(tile_.run, tile_.first + t, tile_.group, tile_.head_of, args_.window);
      shared_.query[t] = query;
      if (t == 0) {
        shared_.lowest = query.first;
        shared_.common_highest = query.last;
      }
      if (t == count - 1) {
        shared_.highest = query.last;
        shared_.common_lowest = query.first;
      }
    }
    __syncthreads();
    const int head_dim = args_.cache.head_dim;
    const int padded = (head_dim + kAtOnce - 1) / kAtOnce * kAtOnce;
    for (int i = t; i < kQueries * padded; i += kAttendThreads) {
      const int j = i / padded, d = i % padded;
      const AttendQuery& query = shared_.query[j];
      shared_.q[j][d] = j < count && d < head_dim
                            ? args_.q[query.token * args_.q_stride + query.head * head_dim + d]
                            : 0.0f;
    }
    // The barrier comes with the first chunk's blocks.
  }

  __device__ __forceinline__ const uint8_t* KOf(int position) const {
    return args_.cache.data + shared_.block[position / kKvBlockTokens] * args_.cache.block_bytes +
           int64_t{blockIdx.y} * args_.cache.head_bytes;
  }

  // p, max and sum of all queries. For types with scales p is then that of the outputs.
  __device__ __forceinline__ void Scores(const AttendWindow& w) {
    const float infinity = __uint_as_float(0x7f800000u);
    const int t = threadIdx.x, warp = t / 32;
    if (t >= w.first / kKvBlockTokens && t <= w.last / kKvBlockTokens) {
      const int begin = args_.tokens.block_begin[args_.tokens.row[tile_.run.token]];
      shared_.block[t] = args_.tokens.blocks[begin + w.base / kKvBlockTokens + t];
    }
    __syncthreads();
    float score[kQueries];
#pragma unroll
    for (int j = 0; j < kQueries; ++j) score[j] = 0;
    const bool inside = t >= w.first && t <= w.last;
    const int slot = t % kKvBlockTokens;
    if (inside) {
      Dots(reinterpret_cast<const Stored*>(KOf(t)) + slot, score);
      if constexpr (Element::kHasScales) {
        const float k_scale = ScaleAt(KOf(t), slot);
#pragma unroll
        for (int j = 0; j < kQueries; ++j) score[j] = score[j] * k_scale;
      }
    }
    uint32_t visible = 0;  // bit j: to query j
#pragma unroll
    for (int j = 0; j < kQueries; ++j) {
      score[j] = score[j] * args_.scale;
      const bool sees =
          inside && shared_.query[j].first <= w.base + t && shared_.query[j].last >= w.base + t;
      visible |= sees ? 1u << j : 0u;
      // NaN is nobody's maximum.
      const float of_warp = WarpMax(sees && score[j] == score[j] ? score[j] : -infinity);
      if (t % 32 == 0) shared_.warp_max[j][warp] = of_warp;
      shared_.p[j][t] = score[j];
    }
    __syncthreads();
    // The scores wait in p: so many exp at once would not fit into registers.
#pragma unroll 2
    for (int j = 0; j < kQueries; ++j) {
      float largest = shared_.warp_max[j][0];
#pragma unroll
      for (int i = 1; i < kAttendWarps; ++i) largest = fmaxf(largest, shared_.warp_max[j][i]);
      float& p = shared_.p[j][t];
      p = (visible >> j & 1u) != 0 ? ExpF32(p - largest) : kUnseen;
      if (t == 0) shared_.max[j] = largest;
    }
    __syncthreads();
    SumLanes();
    if constexpr (Element::kHasScales) {
      __syncthreads();
      const float v_scale = inside ? ScaleAt(KOf(t) + args_.cache.v_offset, slot) : 0.0f;
#pragma unroll
      for (int j = 0; j < kQueries; ++j) {
        if ((visible >> j & 1u) != 0) shared_.p[j][t] *= v_scale;
      }
      __syncthreads();
    }
  }

  __device__ __forceinline__ float ScaleAt(const uint8_t* plane, int slot) const {
    return reinterpret_cast<const float*>(plane + args_.cache.plane_bytes)[slot];
  }

  // q k of this thread's position: fma over d ascending. k[d] at k + 16 d. The next values are on
  // their way while these are used.
  __device__ __forceinline__ void Dots(const Stored* k, float (&dot)[kQueries]) const {
    const int head_dim = args_.cache.head_dim;
    Stored x[kAtOnce], next[kAtOnce];
    LoadKeys(k, head_dim, x);
#pragma unroll 1
    for (int d = 0; d < head_dim; d += kAtOnce) {
      LoadKeys(k + (d + kAtOnce) * kKvBlockTokens, head_dim - d - kAtOnce, next);
#pragma unroll
      for (int i = 0; i < kAtOnce; i += 4) {
        const float x0 = Element::Value(x[i]), x1 = Element::Value(x[i + 1]);
        const float x2 = Element::Value(x[i + 2]), x3 = Element::Value(x[i + 3]);
#pragma unroll
        for (int j = 0; j < kQueries; ++j) {
          const float4 q = *reinterpret_cast<const float4*>(&shared_.q[j][d + i]);
          dot[j] = fmaf(q.x, x0, dot[j]);
          dot[j] = fmaf(q.y, x1, dot[j]);
          dot[j] = fmaf(q.z, x2, dot[j]);
          dot[j] = fmaf(q.w, x3, dot[j]);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) x[i] = next[i];
    }
  }

  // `left` of them; zeros behind.
  __device__ __forceinline__ void LoadKeys(const Stored* k, int left, Stored (&x)[kAtOnce]) const {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) x[i] = i < left ? k[i * kKvBlockTokens] : Stored{0};
  }

  // 16 lanes (position mod 16, ascending) of each query, then the tree l+8, l+4, l+2, l+1.
  __device__ __forceinline__ void SumLanes() {
    constexpr int kThreads = kQueries == 1 ? 32 : kQueries * kKvBlockTokens;  // whole warps
    const int t = threadIdx.x;
    if (t >= kThreads) return;
    const int j = min(t / kKvBlockTokens, kQueries - 1), lane = t % kKvBlockTokens;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kChunkBlocks; ++i) sum += shared_.p[j][lane + i * kKvBlockTokens];
#pragma unroll
    for (int half = kKvBlockTokens / 2; half > 0; half /= 2)
      sum = sum + __shfl_down_sync(0xffffffffu, sum, half, kKvBlockTokens);
    if (lane == 0 && t / kKvBlockTokens < kQueries) shared_.sum[j] = sum;
  }

  // p v of this thread's d: fma over positions ascending, of those that the query sees. Loads go
  // ahead as in Dots.
  __device__ __forceinline__ void Outputs(const AttendWindow& w, float (&out)[kQueries]) const {
#pragma unroll
    for (int j = 0; j < kQueries; ++j) out[j] = 0;
    if (static_cast<int>(threadIdx.x) >= args_.cache.head_dim) return;
    Stored x[kAtOnce], next[kAtOnce];
    int begin = w.first / kAtOnce * kAtOnce;
    LoadValues(w, begin, x);
#pragma unroll 1
    for (; begin <= w.last; begin += kAtOnce) {
      LoadValues(w, begin + kAtOnce, next);
      if (w.base + begin >= shared_.common_lowest &&
          w.base + begin + kAtOnce - 1 <= shared_.common_highest) {
        AddValues<true>(begin, x, out);
      } else {
        AddValues<false>(begin, x, out);
      }
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s) x[s] = next[s];
    }
  }

  // Of the positions from `begin` on. What no query sees is not touched: zeros.
  __device__ __forceinline__ void LoadValues(const AttendWindow& w, int begin,
                                             Stored (&x)[kAtOnce]) const {
    const int head_dim = args_.cache.head_dim;
    const Stored* from = nullptr;
    if (begin <= w.last) {
      from = reinterpret_cast<const Stored*>(KOf(begin) + args_.cache.v_offset) +
             begin % kKvBlockTokens * head_dim + threadIdx.x;
    }
#pragma unroll
    for (int s = 0; s < kAtOnce; ++s) {
      const bool inside = begin + s >= w.first && begin + s <= w.last;
      x[s] = inside ? from[s * head_dim] : Stored{0};
    }
  }

  template <bool kSeenByAll>
  __device__ __forceinline__ void AddValues(int begin, const Stored (&x)[kAtOnce],
                                            float (&out)[kQueries]) const {
#pragma unroll
    for (int s = 0; s < kAtOnce; s += 4) {
      const float x0 = Element::Value(x[s]), x1 = Element::Value(x[s + 1]);
      const float x2 = Element::Value(x[s + 2]), x3 = Element::Value(x[s + 3]);
#pragma unroll
      for (int j = 0; j < kQueries; ++j) {
        const float4 p = *reinterpret_cast<const float4*>(&shared_.p[j][begin + s]);
        if (kSeenByAll || IsSeen(p.x)) out[j] = fmaf(p.x, x0, out[j]);
        if (kSeenByAll || IsSeen(p.y)) out[j] = fmaf(p.y, x1, out[j]);
        if (kSeenByAll || IsSeen(p.z)) out[j] = fmaf(p.z, x2, out[j]);
        if (kSeenByAll || IsSeen(p.w)) out[j] = fmaf(p.w, x3, out[j]);
      }
    }
  }

  // Where a query's chunk lies in scratch.
  __device__ __forceinline__ int64_t PartialAt(const AttendQuery& query, int base) const {
    const int chunk = (base - query.first / kKvChunkTokens * kKvChunkTokens) / kKvChunkTokens;
    return (int64_t{query.token} * args_.q_heads + query.head) * args_.plan.chunks + chunk;
  }

  __device__ __forceinline__ void StorePartials(int base, const float (&out)[kQueries]) {
    const AttendScratch scratch = ScratchOf(args_);
    const int t = threadIdx.x, head_dim = args_.cache.head_dim;
    if (t < kQueries && Sees(shared_.query[t], base))
      scratch.max_sum[PartialAt(shared_.query[t], base)] =
          make_float2(shared_.max[t], shared_.sum[t]);
    if (t >= head_dim) return;
#pragma unroll
    for (int j = 0; j < kQueries; ++j) {
      if (Sees(shared_.query[j], base))
        scratch.out[PartialAt(shared_.query[j], base) * head_dim + t] = out[j];
    }
  }

  // Adds a chunk to what the chunks before it gave.
  __device__ __forceinline__ void Fold(int base, const float (&out)[kQueries]) {
    const int t = threadIdx.x;
    if (t < kQueries && Sees(shared_.query[t], base)) {
      if (shared_.query[t].first >= base) {  // its first
        shared_.max_so_far[t] = shared_.max[t];
        shared_.sum_so_far[t] = shared_.sum[t];
      } else {
        shared_.factors[t] =
            AddChunk(shared_.max[t], shared_.sum[t], shared_.max_so_far[t], shared_.sum_so_far[t]);
      }
    }
    __syncthreads();
    if (t >= args_.cache.head_dim) return;
#pragma unroll
    for (int j = 0; j < kQueries; ++j) {
      if (!Sees(shared_.query[j], base)) continue;
      float& total = shared_.out_so_far[j][t];
      if (shared_.query[j].first >= base) {
        total = out[j];
      } else {
        const FoldFactors factors = shared_.factors[j];
        total = fmaf(total, factors.before, out[j] * factors.now);
      }
    }
  }

  __device__ __forceinline__ void Store() const {
    const int d = threadIdx.x, head_dim = args_.cache.head_dim;
    if (d >= head_dim) return;
#pragma unroll
    for (int j = 0; j < kQueries; ++j) {
      const AttendQuery& query = shared_.query[j];
      if (query.last < 0) continue;
      args_.out[query.token * args_.out_stride + query.head * head_dim + d] =
          shared_.out_so_far[j][d] / shared_.sum_so_far[j];
    }
  }

  const AttendArgs& args_;
  AttendTile& tile_;
  AttendShared<kQueries>& shared_;
};

}  // namespace bitshard::cuda
