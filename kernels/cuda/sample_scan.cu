// A pass over rows of logits: maximum, first candidates and best draw of each, with the bits of
// worker/sample/row_scan.h. First a block a chunk of tokens, then a block a row.
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/sample_select.cuh"

namespace bitshard::cuda {
namespace {

// A thread holds groups of four neighbours: one load, one block of noise.
constexpr int kGroup = 4;
constexpr int kGroups = kHeld / kGroup;
__device__ __forceinline__ int PlaceOf(int i) {  // in the chunk
  return (i / kGroup * kScanThreads + static_cast<int>(threadIdx.x)) * kGroup + i % kGroup;
}

// What a block has found in its tokens.
struct ChunkScan {
  uint64_t first_key;  // of its first token in the order
  DrawKey draw;
  uint32_t bad;
};

__device__ __forceinline__ void StoreDraw(const DrawKey& draw, ChunkScan& result) {
  result.draw.score_key = draw.score_key;
  result.draw.token = draw.token;
}

// Between the two kernels.
struct ScanScratch {
  ChunkScan* chunks;  // [m][chunks]
  uint64_t* keys;     // [m][chunks * most], a chunk's list behind the other
};

struct Chunk {
  const float* logits;
  int count;
  uint32_t begin;  // its first id
};

__device__ __forceinline__ void Load(const Chunk& chunk, bool aligned, float (&x)[kHeld]) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int place = PlaceOf(g * kGroup);
    if (aligned && place + kGroup <= chunk.count) {
      const float4 v = *reinterpret_cast<const float4*>(chunk.logits + place);
      x[g * kGroup] = v.x;
      x[g * kGroup + 1] = v.y;
      x[g * kGroup + 2] = v.z;
      x[g * kGroup + 3] = v.w;
      continue;
    }
#pragma unroll
    for (int c = 0; c < kGroup; ++c)
      x[g * kGroup + c] = place + c < chunk.count ? chunk.logits[place + c] : kNoLogit;
  }
}

struct ScanShared {
  uint64_t first_key[kScanWarps];
  uint64_t bound_key[kScanWarps];
  int bad[kScanWarps];
  DrawKey draw[kScanWarps];
  double some_score;
  int listed;
  SelectShared select;
};

// What all threads of the block know together.
struct Summary {
  uint64_t first_key;  // of the first token of the order
  uint64_t bound_key;  // of the largest bound on a score, and its ~place
  bool bad;
};
__device__ __forceinline__ Summary Summarize(uint64_t first_key, uint64_t bound_key, bool bad,
                                             bool draws, ScanShared& shared) {
  const int warp = threadIdx.x / 32;
  const bool is_leader = threadIdx.x % 32 == 0;
  const uint64_t warp_first = WarpMaxKey(first_key);
  const int warp_bad = __any_sync(kAllLanes, bad);
  if (is_leader) {
    shared.first_key[warp] = warp_first;
    shared.bad[warp] = warp_bad;
  }
  if (draws) {
    const uint64_t warp_bound = WarpMaxKey(bound_key);
    if (is_leader) shared.bound_key[warp] = warp_bound;
  }
  __syncthreads();
  Summary all = {0, 0, false};
#pragma unroll
  for (int w = 0; w < kScanWarps; ++w) {
    all.first_key = max(all.first_key, shared.first_key[w]);
    all.bad = all.bad || shared.bad[w] != 0;
    if (draws) all.bound_key = max(all.bound_key, shared.bound_key[w]);
  }
  return all;
}

// Of all threads' draws; thread 0 gets the best.
__device__ __forceinline__ DrawKey BestDraw(const DrawKey& mine, ScanShared& shared) {
  const DrawKey of_warp = WarpBestDraw(mine);
  if (threadIdx.x % 32 == 0) shared.draw[threadIdx.x / 32] = of_warp;
  __syncthreads();
  DrawKey best = NoDraw();
#pragma unroll
  for (int w = 0; w < kScanWarps; ++w) best = BetterDraw(best, shared.draw[w]);
  return best;
}

__device__ __forceinline__ double Score(const LogitScanRequest& request, float x, uint32_t token) {
  const uint32_t word = NoiseOf(request, token / kGroup).word[token % kGroup];
  return x / static_cast<double>(request.temperature) + Gumbel(word);
}

// Below a token's score by no more than rounding, or not a number: see DrawFromRow in
// worker/sample/row_scan.cc.
__device__ __forceinline__ void BoundScores(const Chunk& chunk, const LogitScanRequest& request,
                                            float inverse, const float (&x)[kHeld],
                                            float (&bound)[kHeld]) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const uint32_t token = chunk.begin + static_cast<uint32_t>(PlaceOf(g * kGroup));
    const NoiseWords words = NoiseOf(request, token / kGroup);
#pragma unroll
    for (int c = 0; c < kGroup; ++c)
      bound[g * kGroup + c] = x[g * kGroup + c] * inverse + NoiseBound(words.word[c]);
  }
}

__global__ void __launch_bounds__(kScanThreads)
    ScanChunkKernel(DeviceScan args, ScanScratch scratch, bool aligned) {
  SHARED_ARRAY(ScanShared, shareds, [1]);
  ScanShared& shared = shareds[0];
  GridDependencyLaunch();
  GridDependencyWait();
  const int64_t row = blockIdx.y, first = int64_t{blockIdx.x} * kScanTokens;
  LogitScanRequest request = args.requests[row];
  request.candidates = min(request.candidates, args.most);  // what there is room for
  const Chunk chunk = {args.logits + row * args.stride + first,
                       static_cast<int>(min(args.count - first, int64_t{kScanTokens})),
                       args.begin + static_cast<uint32_t>(first)};
  ChunkScan& result = scratch.chunks[row * gridDim.x + blockIdx.x];
  const bool draws = request.draws != 0;
  float x[kHeld];
  Load(chunk, aligned, x);

  bool bad = false;
  float largest = kNoLogit;
  int at_largest = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    bad = bad || (PlaceOf(i) < chunk.count && !(fabsf(x[i]) < INFINITY));
    if (x[i] > largest) {
      largest = x[i];
      at_largest = PlaceOf(i);
    }
  }
  const uint64_t first_key =
      largest > kNoLogit ? TokenKey(largest, chunk.begin + static_cast<uint32_t>(at_largest)) : 0;
  const float inverse = static_cast<float>(1 / static_cast<double>(request.temperature));
  float bound[kHeld];
  uint64_t bound_key = 0;
  if (draws) {
    BoundScores(chunk, request, inverse, x, bound);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const uint64_t key = TokenKey(bound[i], static_cast<uint32_t>(PlaceOf(i)));
      if (PlaceOf(i) < chunk.count && key > bound_key) bound_key = key;
    }
  }
  const Summary all = Summarize(first_key, bound_key, bad, draws, shared);
  if (threadIdx.x == 0) {
    result.first_key = all.first_key;
    result.bad = all.bad ? 1 : 0;
    if (!draws || all.bad) StoreDraw(NoDraw(), result);
  }
  if (all.bad) return;

  if (draws) {
    // Something to compare with, so that few tokens' logarithms are computed.
    const int some = static_cast<int>(KeyToken(all.bound_key));
    if (some / kGroup % kScanThreads == static_cast<int>(threadIdx.x))
      shared.some_score =
          Score(request, chunk.logits[some], chunk.begin + static_cast<uint32_t>(some));
    __syncthreads();
    const double score = shared.some_score;
    const float enough = fabsf(inverse) < INFINITY
                             ? static_cast<float>(score - 1e-3 - 1e-6 * fabs(score))
                             : -INFINITY;
    unsigned may_win = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      may_win |= PlaceOf(i) < chunk.count && !(bound[i] < enough) ? 1u << i : 0u;
    DrawKey best = NoDraw();
    for (; may_win != 0; may_win &= may_win - 1) {
      const int place = PlaceOf(__ffs(static_cast<int>(may_win)) - 1);
      const uint32_t token = chunk.begin + static_cast<uint32_t>(place);
      best = BetterDraw(best, {SortableScore(Score(request, chunk.logits[place], token)), token});
    }
    best = BestDraw(best, shared);
    if (threadIdx.x == 0) StoreDraw(best, result);
  }

  if (request.candidates == 0) return;
  if (threadIdx.x == 0) shared.listed = 0;
  const int want = min(static_cast<int>(request.candidates), chunk.count);
  const auto id_of = [&](int i) { return chunk.begin + static_cast<uint32_t>(PlaceOf(i)); };
  const Boundary boundary =
      FindBoundary(x, id_of, want, chunk.count, chunk.begin,
                   chunk.begin + static_cast<uint32_t>(chunk.count - 1), shared.select);
  __syncthreads();
  // Only the last chunk's list may be shorter than asked.
  uint64_t* const list =
      scratch.keys + row * gridDim.x * args.most + int64_t{blockIdx.x} * request.candidates;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (boundary.Has(x[i], id_of(i))) list[atomicAdd(&shared.listed, 1)] = TokenKey(x[i], id_of(i));
  }
}

// The lists of a row's chunks, together `total` keys in any order: the first `want` of them, in
// their order.
__device__ __forceinline__ void MergeLists(const uint64_t* lists, int64_t total, int want,
                                           uint64_t (&kept)[kMaxScanCandidates], ScanShared& shared,
                                           uint64_t* out) {
  int n = 0;  // kept so far
  for (int64_t at = 0; at < total;) {
    const int fresh = static_cast<int>(min(total - at, int64_t{kScanTokens} - n));
    float x[kHeld];
    uint32_t id[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int place = i * kScanThreads + static_cast<int>(threadIdx.x);
      const bool is_there = place < n + fresh;
      const uint64_t key = !is_there ? 0 : place < n ? kept[place] : lists[at + place - n];
      x[i] = is_there ? KeyLogit(key) : kNoLogit;
      id[i] = KeyToken(key);
    }
    at += fresh;
    const int there = n + fresh;
    n = min(want, there);
    if (threadIdx.x == 0) shared.listed = 0;
    __syncthreads();
    const Boundary boundary = FindBoundary(
        x, [&](int i) { return id[i]; }, n, there, 0, kNoScanToken - 1, shared.select);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (boundary.Has(x[i], id[i])) kept[atomicAdd(&shared.listed, 1)] = TokenKey(x[i], id[i]);
    }
    __syncthreads();
  }
  const int mine = static_cast<int>(threadIdx.x);
  if (mine >= n) return;
  const uint64_t key = kept[mine];
  int before = 0;
  for (int i = 0; i < n; ++i) before += kept[i] > key ? 1 : 0;
  out[before] = key;
}

__global__ void __launch_bounds__(kScanThreads)
    ScanRowKernel(DeviceScan args, ScanScratch scratch, int64_t chunks) {
  SHARED_ARRAY(ScanShared, shareds, [1]);
  SHARED_ARRAY(uint64_t, kept, [kMaxScanCandidates]);
  ScanShared& shared = shareds[0];
  GridDependencyLaunch();
  GridDependencyWait();
  const int64_t row = blockIdx.x;
  LogitScanRequest request = args.requests[row];
  request.candidates = min(request.candidates, args.most);  // what there is room for
  uint64_t first_key = 0;
  bool bad = false;
  DrawKey best = NoDraw();
  for (int64_t c = threadIdx.x; c < chunks; c += kScanThreads) {
    const ChunkScan& of_chunk = scratch.chunks[row * chunks + c];
    first_key = max(first_key, of_chunk.first_key);
    bad = bad || of_chunk.bad != 0;
    best = BetterDraw(best, of_chunk.draw);
  }
  const Summary all = Summarize(first_key, 0, bad, /*draws=*/false, shared);
  best = BestDraw(best, shared);
  const int64_t total = (chunks - 1) * request.candidates +
                        min(int64_t{request.candidates}, args.count - (chunks - 1) * kScanTokens);
  const int want = static_cast<int>(min(int64_t{request.candidates}, total));
  if (threadIdx.x == 0) {
    LogitScan result;
    result.bad = all.bad ? 1 : 0;
    if (!all.bad) {
      result.max = KeyLogit(all.first_key);
      result.token = KeyToken(all.first_key);
      result.n_candidates = static_cast<uint32_t>(want);
      if (request.draws != 0) {
        result.draw_score = ScoreOfSortable(best.score_key);
        result.draw_logit = args.logits[row * args.stride + (best.token - args.begin)];
        result.draw_token = best.token;
      }
    }
    args.scans[row] = result;
  }
  if (all.bad || want == 0) return;
  MergeLists(scratch.keys + row * chunks * args.most, total, want, kept, shared,
             args.keys + row * args.most);
}

}  // namespace

uint64_t ScanScratchBytes(int64_t m, int64_t count) {
  const uint64_t chunks = static_cast<uint64_t>(m * ScanChunks(count));
  return chunks * (sizeof(ChunkScan) + kMaxScanCandidates * sizeof(uint64_t));
}

cudaError_t LaunchScan(const DeviceScan& args, cudaStream_t stream) {
  if (args.m == 0 || args.count == 0) return cudaSuccess;
  const int64_t chunks = ScanChunks(args.count);
  ChunkScan* const of_chunks = static_cast<ChunkScan*>(args.scratch);
  const ScanScratch scratch = {of_chunks, reinterpret_cast<uint64_t*>(of_chunks + args.m * chunks)};
  const bool aligned =
      args.stride % kGroup == 0 && reinterpret_cast<uintptr_t>(args.logits) % sizeof(float4) == 0;
  const dim3 rows(static_cast<unsigned>(args.m));
  const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>(args.m));
  const cudaError_t error = LAUNCH_KERNEL_EARLY(ScanChunkKernel, grid, dim3(kScanThreads), 0,
                                                stream, args, scratch, aligned);
  if (error != cudaSuccess) return error;
  return LAUNCH_KERNEL_EARLY(ScanRowKernel, rows, dim3(kScanThreads), 0, stream, args, scratch,
                             chunks);
}

}  // namespace bitshard::cuda
