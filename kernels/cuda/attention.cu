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
// Two for each place of a large GPU (two an SM). With fewer, SMs stand idle for long: there
// splitting is worth more memory for partial results.
constexpr int64_t kFewBlocks = 512;
constexpr uint64_t kPartialBytes = uint64_t{64} << 20;
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

template <KvType kType, int kQueries>
__global__ void __launch_bounds__(kAttendThreads, 2)
    AttendKernel(const __grid_constant__ AttendArgs args) {
  SHARED_ARRAY(AttendShared<kQueries>, shared, [1]);
  SHARED_ARRAY(AttendTile, tiles, [1]);
  AttendTile& tile = tiles[0];
  GridDependencyLaunch();
  GridDependencyWait();
  if (args.without_tiles && IsWholeTile(args.tokens, TileBegin(args) / kTileQueries)) return;
  // Parts beyond the longest run have nothing to do; part 0 is always there, for padding.
  if (blockIdx.z > 0 && static_cast<int>(blockIdx.z) >= LongestRun(args)) return;
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
}

constexpr int kFoldChunks = 32;  // at once: a lane each

struct FoldChunks {
  float out[kFoldChunks];  // of each, the lane's d
  float2 max_sum;          // of the lane's chunk
};
// Those from `first` on.
__device__ __forceinline__ FoldChunks LoadChunks(const float2* max_sum, const float* out,
                                                 int head_dim, int first, int chunks) {
  FoldChunks loaded;
  const int mine = first + static_cast<int>(threadIdx.x);
  loaded.max_sum = mine < chunks ? max_sum[mine] : make_float2(__uint_as_float(0xff800000u), 0.0f);
#pragma unroll
  for (int i = 0; i < kFoldChunks; ++i)
    loaded.out[i] = first + i < chunks ? out[int64_t{first + i} * head_dim] : 0.0f;
  return loaded;
}

// The fold of a query's chunks, left to right: a warp for 32 of its d. Each lane finds out how its
// chunk enters (AddChunk), which takes the largest maximum before it and no more; then all lanes
// add up. The next chunks are on their way meanwhile.
__global__ void __launch_bounds__(kFoldChunks) FoldKernel(const __grid_constant__ AttendArgs args) {
  GridDependencyLaunch();
  GridDependencyWait();
  const int token = blockIdx.x, lane = threadIdx.x, head_dim = args.cache.head_dim;
  const int position = args.tokens.position[token];
  if (position < 0) return;  // zeros are there
  if (args.without_tiles && IsWholeTile(args.tokens, token / kTileQueries)) return;
  const int chunks =
      position / kKvChunkTokens - FirstVisible(position, args.window) / kKvChunkTokens + 1;
  const int64_t query = int64_t{token} * args.q_heads + blockIdx.y;
  const int d = blockIdx.z * kFoldChunks + lane;
  const AttendScratch scratch = ScratchOf(args);
  const float2* const max_sum = scratch.max_sum + query * args.plan.chunks;
  // Lanes without a d of their own add up another's.
  const float* const out = scratch.out + query * args.plan.chunks * head_dim + min(d, head_dim - 1);

  float max_so_far = max_sum[0].x, sum_so_far = max_sum[0].y, total = out[0];
  FoldChunks x = LoadChunks(max_sum, out, head_dim, 1, chunks);
#pragma unroll 1
  for (int first = 1; first < chunks; first += kFoldChunks) {
    const FoldChunks next = LoadChunks(max_sum, out, head_dim, first + kFoldChunks, chunks);
    float new_max = x.max_sum.x;
#pragma unroll
    for (int lanes = 1; lanes < kFoldChunks; lanes *= 2) {
      const float earlier = __shfl_up_sync(0xffffffffu, new_max, lanes);
      if (lane >= lanes) new_max = new_max > earlier ? new_max : earlier;
    }
    new_max = new_max > max_so_far ? new_max : max_so_far;
    float old_max = __shfl_up_sync(0xffffffffu, new_max, 1);
    if (lane == 0) old_max = max_so_far;
    max_so_far = __shfl_sync(0xffffffffu, new_max, kFoldChunks - 1);
    const float before = ExpF32(old_max - new_max), now = ExpF32(x.max_sum.x - new_max);
    const float sum = x.max_sum.y * now;
#pragma unroll
    for (int i = 0; i < kFoldChunks; ++i) {
      if (first + i >= chunks) break;
      const float before_i = __shfl_sync(0xffffffffu, before, i);
      total = fmaf(total, before_i, x.out[i] * __shfl_sync(0xffffffffu, now, i));
      sum_so_far = fmaf(sum_so_far, before_i, __shfl_sync(0xffffffffu, sum, i));
    }
    x = next;
  }
  if (d < head_dim)
    args.out[token * args.out_stride + int64_t{blockIdx.y} * head_dim + d] = total / sum_so_far;
}

cudaError_t LaunchFold(const AttendArgs& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.tokens.m), static_cast<unsigned>(args.q_heads),
                  static_cast<unsigned>((args.cache.head_dim + kFoldChunks - 1) / kFoldChunks));
  return LAUNCH_KERNEL_EARLY(FoldKernel, grid, dim3(kFoldChunks), 0, stream, args);
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

int GroupOf(const KvLayout& layout, int q_heads) {
  return (q_heads + layout.kv_heads - 1) / layout.kv_heads;
}

// Powers of two: a tile lies in one of LaunchAttendTiles' (kTileQueries).
int TileTokens(int group) { return group <= 1 ? 8 : group == 2 ? 4 : group <= 4 ? 2 : 1; }

int64_t ChunksOf(int64_t max_context) {
  return std::max<int64_t>(1, (max_context + kKvChunkTokens - 1) / kKvChunkTokens);
}

uint64_t PartialBytes(const KvLayout& layout, int q_heads, int64_t m, int64_t chunks) {
  return static_cast<uint64_t>(m) * q_heads * chunks * (layout.head_dim + 2) * sizeof(float);
}

}  // namespace

AttendPlan PlanAttend(const KvLayout& layout, int q_heads, int64_t m, int64_t max_context,
                      int window, uint64_t scratch_bytes) {
  AttendPlan plan;
  plan.chunks = ChunksOf(max_context);
  if (window > 0) plan.chunks = std::min<int64_t>(plan.chunks, (window - 1) / kKvChunkTokens + 2);
  if (layout.kv_heads == 0 || m == 0) return plan;
  const int group = GroupOf(layout, q_heads);
  if (m >= kTileFromRows) plan.tile_tokens = TileTokens(group);
  const int queries = group * plan.tile_tokens;
  plan.queries = queries <= 1 ? 1 : queries <= 4 ? 4 : 8;
  const int64_t blocks = (m + plan.tile_tokens - 1) / plan.tile_tokens * layout.kv_heads;
  const uint64_t bytes = PartialBytes(layout, q_heads, m, plan.chunks);
  if (blocks < kTargetBlocks && bytes <= scratch_bytes &&
      (blocks < kFewBlocks || bytes <= kPartialBytes)) {
    plan.parts =
        static_cast<int>(std::min<int64_t>(plan.chunks, (kTargetBlocks + blocks - 1) / blocks));
  }
  return plan;
}

uint64_t AttendScratchBytes(const KvLayout& layout, int q_heads, int64_t max_tokens,
                            int64_t max_context, uint64_t max_bytes) {
  const int64_t chunks = ChunksOf(max_context);
  if (chunks == 1 || q_heads == 0 || layout.kv_heads == 0) return 0;
  const auto bytes = [&](int64_t rows) {
    return PartialBytes(layout, q_heads, std::min(rows, max_tokens), chunks);
  };
  const int64_t few_rows = kFewBlocks / layout.kv_heads * TileTokens(GroupOf(layout, q_heads));
  return std::min(max_bytes, std::max(std::min(kPartialBytes, bytes(max_tokens)), bytes(few_rows)));
}

cudaError_t LaunchAttend(const AttendArgs& args, cudaStream_t stream) {
  if (args.tokens.m == 0 || args.cache.kv_heads == 0) return cudaSuccess;
  const cudaError_t error =
      VisitKvType(args.cache.type, [&](auto type) { return Launch<type.value>(args, stream); });
  return error != cudaSuccess || args.plan.parts == 1 ? error : LaunchFold(args, stream);
}

}  // namespace bitshard::cuda
