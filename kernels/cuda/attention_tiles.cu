// Prefill attention on tensor cores, where the order of summation is free. A block of four warps
// reads K and V of one kv head once for up to 64 queries: 16 tokens of one sequence a warp, of 1, 2
// or 4 q heads. What is no whole tile of 16 tokens is left to attention.cu, which leaves out what
// is one (AttendArgs::without_tiles): the host need not know how a step's tokens lie, and a graph
// serves any.
#include <algorithm>

#include "kernels/cuda/attend_tiles.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace bitshard::cuda {
namespace {

// All threads: the tiles of a run that are whole. The warp's tile begins at `token`; head < 0:
// none.
template <int kHeadDim>
__device__ __forceinline__ void AttendRun(const AttendArgs& args, const TokenRun& run, int token,
                                          int head, TileShared<kHeadDim>& shared) {
  const int first_token = (run.token + kTileQueries - 1) / kTileQueries * kTileQueries;
  const int end_token = (run.token + run.tokens) / kTileQueries * kTileQueries;
  if (first_token >= end_token) return;
  const int lowest = FirstVisible(run.position + first_token - run.token, args.window);
  const int highest = run.position + end_token - 1 - run.token;
  TileStage<kHeadDim> stage(args, static_cast<int>(blockIdx.y),
                            args.tokens.block_begin[args.tokens.row[run.token]], lowest, highest,
                            shared);
  const bool mine = head >= 0 && token >= first_token && token < end_token;
  const int any = mine ? token : first_token;  // a warp without queries only loads for the others
  TileQueries<kHeadDim> queries(args, any, run.position + any - run.token, max(head, 0), shared);
  __syncthreads();  // all are done with the run before
  if (threadIdx.x < 2 * kTilePositions / 32) shared.bad[threadIdx.x % 2][threadIdx.x / 2] = 0;
  for (int base = lowest / kTilePositions * kTilePositions; base <= highest;
       base += kTilePositions) {
    __syncthreads();  // all are done with the tile before
    stage.Load(base);
    __syncthreads();
    if (mine && base <= queries.last() && base + kTilePositions > queries.first())
      queries.Add(base);
  }
  if (mine) queries.Store();
}

template <int kHeadDim>
__global__ void __launch_bounds__(kTileThreads, 2)
    AttendTilesKernel(const __grid_constant__ AttendArgs args, int heads_at_once) {
  SHARED_ARRAY(TileShared<kHeadDim>, shareds, [1]);
  TileShared<kHeadDim>& shared = shareds[0];
  GridDependencyLaunch();
  GridDependencyWait();
  const int group_found = FindHeads(args, static_cast<int>(blockIdx.y), shared.head_of);
  if (threadIdx.x == 0) shared.group = group_found;
  __syncthreads();
  const int group = shared.group, warp = static_cast<int>(threadIdx.x) / 32;
  const int block_tokens = kTileWarps / heads_at_once * kTileQueries;
  const int begin = static_cast<int>(blockIdx.x) * block_tokens;
  const int end = min(begin + block_tokens, static_cast<int>(args.tokens.m));
  const int token = begin + warp / heads_at_once * kTileQueries;
  for (int first = static_cast<int>(blockIdx.z) * heads_at_once; first < group;
       first += static_cast<int>(gridDim.z) * heads_at_once) {
    const int index = first + warp % heads_at_once;
    const int head = index < group ? shared.head_of[index] : -1;
    for (int at = begin; at < end;) {
      const TokenRun run = RunAt(args.tokens, at, end);
      at += run.tokens;
      if (run.position >= 0) AttendRun<kHeadDim>(args, run, token, head, shared);
    }
  }
}

template <int kHeadDim>
cudaError_t Launch(const AttendArgs& args, cudaStream_t stream) {
  const int group = (args.q_heads + args.cache.kv_heads - 1) / args.cache.kv_heads;
  const int heads_at_once = group <= 1 ? 1 : group == 2 ? 2 : kTileWarps;
  const int block_tokens = kTileWarps / heads_at_once * kTileQueries;
  const dim3 grid(static_cast<unsigned>((args.tokens.m + block_tokens - 1) / block_tokens),
                  static_cast<unsigned>(args.cache.kv_heads),
                  static_cast<unsigned>(std::max(1, (group + heads_at_once - 1) / heads_at_once)));
  return LAUNCH_KERNEL_EARLY((AttendTilesKernel<kHeadDim>), grid, dim3(kTileThreads), 0, stream,
                             args, heads_at_once);
}

}  // namespace

bool ServesAttendTiles(const KvCache& cache, int64_t m) {
  // Most batches below are of decodes, one token a sequence, for which it would be a launch in
  // vain.
  constexpr int64_t kLeastTokens = 64;
  return m >= kLeastTokens && cache.type != KvType::kF32 &&
         (cache.head_dim == 64 || cache.head_dim == 128);
}

cudaError_t LaunchAttendTiles(const AttendArgs& args, cudaStream_t stream) {
  if (args.tokens.m == 0 || args.cache.kv_heads == 0) return cudaSuccess;
  return args.cache.head_dim == 64 ? Launch<64>(args, stream) : Launch<128>(args, stream);
}

}  // namespace bitshard::cuda
