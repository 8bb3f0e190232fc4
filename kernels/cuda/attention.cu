// Causal attention over the paged cache, decode and prefill alike, with the CPU's bits
// (kernels/registry/attention.h). All in f32: fma chains of a query over d (scores) and over
// positions (outputs), each whole in one thread, so that the cut into blocks cannot show.
//
// A block works for a tile of tokens and the q heads of one kv head, up to 8 queries at once: each
// K and V is loaded once for all of them. Its 256 threads are the positions of a chunk, then the
// dimensions of a head. How the work is cut over blocks: attention.h, AttendPlan.
#include <algorithm>

#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace bitshard::cuda {
namespace {

// Blocks that fill a large GPU a few times over; with fewer, contexts are split.
constexpr int64_t kTargetBlocks = 2048;
static_assert(kTargetBlocks * sizeof(unsigned) <= kAttendTicketBytes);
// Of partial results. With more rows there are blocks enough without splitting.
constexpr uint64_t kMaxPartialBytes = uint64_t{64} << 20;
constexpr int64_t kTileFromRows = 32;  // fewer are decoded a token a block

// The tokens of the block's tile.
__device__ __forceinline__ int TileBegin(const AttendArgs& args) {
  return blockIdx.x * args.plan.tile_tokens;
}
__device__ __forceinline__ int TileEnd(const AttendArgs& args) {
  return min(TileBegin(args) + args.plan.tile_tokens, static_cast<int>(args.tokens.m));
}

// Chunks of the tile's longest run.
__device__ __forceinline__ int LongestRun(const AttendArgs& args) {
  int longest = 0;
  for (int token = TileBegin(args); token < TileEnd(args);) {
    const TokenRun run = RunAt(args.tokens, token, TileEnd(args));
    token += run.tokens;
    if (run.position < 0) continue;
    const int first = FirstVisible(run.position, args.window) / kKvChunkTokens;
    longest = max(longest, (run.position + run.tokens - 1) / kKvChunkTokens - first + 1);
  }
  return longest;
}

__device__ __forceinline__ void StoreZeros(const AttendArgs& args, const AttendTile& tile,
                                           int token) {
  const int head_dim = args.cache.head_dim;
  for (int i = threadIdx.x; i < tile.group * head_dim; i += kAttendThreads)
    args.out[token * args.out_stride + tile.head_of[i / head_dim] * head_dim + i % head_dim] = 0;
}

// Folds the chunks of all queries of a run.
__device__ __forceinline__ void FoldRun(const AttendArgs& args, const AttendTile& tile,
                                        const TokenRun& run) {
  const AttendScratch scratch = ScratchOf(args);
  const int head_dim = args.cache.head_dim;
  for (int i = threadIdx.x; i < run.tokens * tile.group * head_dim; i += kAttendThreads) {
    const AttendQuery query = QueryAt(run, i / head_dim, tile.group, tile.head_of, args.window);
    const int d = i % head_dim;
    const int chunks = query.last / kKvChunkTokens - query.first / kKvChunkTokens + 1;
    const int64_t at = (int64_t{query.token} * args.q_heads + query.head) * args.plan.chunks;
    const float2* const max_sum = scratch.max_sum + at;
    const float* const out = scratch.out + at * head_dim + d;
    float max_so_far = max_sum[0].x, sum_so_far = max_sum[0].y, total = out[0];
#pragma unroll 4
    for (int c = 1; c < chunks; ++c) {
      const float2 chunk = max_sum[c];
      const float chunk_out = out[int64_t{c} * head_dim];
      const FoldFactors factors = AddChunk(chunk.x, chunk.y, max_so_far, sum_so_far);
      total = fmaf(total, factors.before, chunk_out * factors.now);
    }
    args.out[query.token * args.out_stride + query.head * head_dim + d] = total / sum_so_far;
  }
}

template <KvType kType, int kQueries>
__global__ void __launch_bounds__(kAttendThreads, 2)
    AttendKernel(const __grid_constant__ AttendArgs args) {
  SHARED_ARRAY(AttendShared<kQueries>, shared, [1]);
  SHARED_ARRAY(AttendTile, tiles, [1]);
  AttendTile& tile = tiles[0];
  GridDependencyLaunch();
  GridDependencyWait();
  if (args.without_tiles && IsWholeTile(args.tokens, TileBegin(args) / kTileQueries)) return;
  {
    // Parts beyond the longest run have nothing to do; part 0 is always there, for padding.
    const int parts = max(1, min(args.plan.parts, LongestRun(args)));
    if (static_cast<int>(blockIdx.z) >= parts) return;
    if (threadIdx.x == 0) tile.parts = parts;
  }
  const int group = FindHeads(args, static_cast<int>(blockIdx.y), tile.head_of);
  if (threadIdx.x == 0) tile.group = group;
  __syncthreads();
  if (tile.group == 0) return;
  Attend<kType, kQueries> attend(args, tile, shared[0]);
  for (int token = TileBegin(args); token < TileEnd(args);
       token = tile.run.token + tile.run.tokens) {
    const TokenRun run = RunAt(args.tokens, token, TileEnd(args));
    __syncthreads();
    if (threadIdx.x == 0) {
      tile.run = run;
      tile.first = 0;
    }
    __syncthreads();
    if (run.position < 0) {
      if (blockIdx.z == 0) StoreZeros(args, tile, run.token);
      continue;
    }
    while (tile.first < tile.run.tokens * tile.group) attend.Turn();
  }
  if (tile.parts == 1) return;

  GridRelease();
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned* const ticket = ScratchOf(args).tickets + blockIdx.x * gridDim.y + blockIdx.y;
    const unsigned last = static_cast<unsigned>(tile.parts - 1);
    tile.is_last = atomicInc(ticket, last) == last;  // which leaves 0
  }
  __syncthreads();
  if (!tile.is_last) return;
  GridAcquire();
  for (int token = TileBegin(args); token < TileEnd(args);) {
    const TokenRun run = RunAt(args.tokens, token, TileEnd(args));
    token += run.tokens;
    if (run.position >= 0) FoldRun(args, tile, run);
  }
}

template <KvType kType>
cudaError_t Launch(const AttendArgs& args, cudaStream_t stream) {
  const AttendPlan& plan = args.plan;
  const int64_t tiles = (args.tokens.m + plan.tile_tokens - 1) / plan.tile_tokens;
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(args.cache.kv_heads),
                  static_cast<unsigned>(plan.parts));
  const dim3 block(kAttendThreads);
  switch (plan.queries) {
    case 1:
      return LAUNCH_KERNEL_EARLY((AttendKernel<kType, 1>), grid, block, 0, stream, args);
    case 4:
      return LAUNCH_KERNEL_EARLY((AttendKernel<kType, 4>), grid, block, 0, stream, args);
    case 8:
      return LAUNCH_KERNEL_EARLY((AttendKernel<kType, 8>), grid, block, 0, stream, args);
  }
  return cudaErrorInvalidValue;
}

int64_t ChunksOf(int64_t max_context) {
  return std::max<int64_t>(1, (max_context + kKvChunkTokens - 1) / kKvChunkTokens);
}

uint64_t PartialBytes(const KvLayout& layout, int q_heads, int64_t m, int64_t chunks) {
  return static_cast<uint64_t>(m) * q_heads * chunks * (layout.head_dim + 2) * sizeof(float);
}

}  // namespace

AttendPlan PlanAttend(const KvLayout& layout, int q_heads, int64_t m, int64_t max_context,
                      int window, bool may_split) {
  AttendPlan plan;
  plan.chunks = ChunksOf(max_context);
  if (window > 0) plan.chunks = std::min<int64_t>(plan.chunks, (window - 1) / kKvChunkTokens + 2);
  if (layout.kv_heads == 0 || m == 0) return plan;
  const int group = (q_heads + layout.kv_heads - 1) / layout.kv_heads;
  // Powers of two: a tile lies in one of LaunchAttendTiles' (kTileQueries).
  if (m >= kTileFromRows) plan.tile_tokens = group <= 1 ? 8 : group == 2 ? 4 : group <= 4 ? 2 : 1;
  const int queries = group * plan.tile_tokens;
  plan.queries = queries <= 1 ? 1 : queries <= 4 ? 4 : 8;
  const int64_t blocks = (m + plan.tile_tokens - 1) / plan.tile_tokens * layout.kv_heads;
  if (may_split && blocks < kTargetBlocks &&
      PartialBytes(layout, q_heads, m, plan.chunks) <= kMaxPartialBytes) {
    plan.parts =
        static_cast<int>(std::min<int64_t>(plan.chunks, (kTargetBlocks + blocks - 1) / blocks));
  }
  return plan;
}

uint64_t AttendScratchBytes(const KvLayout& layout, int q_heads, int64_t max_tokens,
                            int64_t max_context) {
  const int64_t chunks = ChunksOf(max_context);
  if (chunks == 1 || q_heads == 0 || layout.kv_heads == 0) return 0;
  return kAttendTicketBytes +
         std::min(kMaxPartialBytes, PartialBytes(layout, q_heads, max_tokens, chunks));
}

cudaError_t LaunchAttend(const AttendArgs& args, cudaStream_t stream) {
  if (args.tokens.m == 0 || args.cache.kv_heads == 0) return cudaSuccess;
  return VisitKvType(args.cache.type, [&](auto type) { return Launch<type.value>(args, stream); });
}

}  // namespace bitshard::cuda
