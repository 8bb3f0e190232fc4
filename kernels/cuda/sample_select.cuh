// The first tokens of the sampler's order among those that a block of threads holds, exactly, by
// halving an interval of logits: no sort, no histogram, the same work whatever the values.
#pragma once

#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/sample_math.cuh"

namespace bitshard::cuda {

constexpr int kScanThreads = 256;
constexpr int kScanWarps = kScanThreads / 32;
constexpr int kHeld = kScanTokens / kScanThreads;  // values a thread holds
constexpr unsigned kAllLanes = 0xffffffffu;

constexpr float kNoLogit = -INFINITY;              // in place of a token that is not there
constexpr uint32_t kLowestSortable = 0x00800000u;  // of the lowest finite number

__device__ __forceinline__ uint64_t WarpMaxKey(uint64_t key) {
  const uint32_t high = static_cast<uint32_t>(key >> 32);
  const uint32_t max_high = __reduce_max_sync(kAllLanes, high);
  const uint32_t low = high == max_high ? static_cast<uint32_t>(key) : 0u;
  return static_cast<uint64_t>(max_high) << 32 | __reduce_max_sync(kAllLanes, low);
}

// The best draw so far: largest score, lowest id among equals.
struct DrawKey {
  uint64_t score_key;  // 0: none
  uint32_t token;
};
__device__ __forceinline__ DrawKey NoDraw() { return {0, kNoScanToken}; }
__device__ __forceinline__ DrawKey BetterDraw(const DrawKey& a, const DrawKey& b) {
  const bool is_a = a.score_key != b.score_key ? a.score_key > b.score_key : a.token <= b.token;
  return {is_a ? a.score_key : b.score_key, is_a ? a.token : b.token};
}
__device__ __forceinline__ DrawKey WarpBestDraw(const DrawKey& mine) {
  const uint64_t score_key = WarpMaxKey(mine.score_key);
  const uint32_t token = mine.score_key == score_key ? mine.token : kNoScanToken;
  return {score_key, __reduce_min_sync(kAllLanes, token)};
}

// Sums over the block, one barrier each.
struct CountsOfWarps {
  int count[2][kScanWarps];  // in turns: one is read while the next is written
};
class BlockCounter {
 public:
  __device__ __forceinline__ explicit BlockCounter(CountsOfWarps& counts) : counts_(counts) {}

  __device__ __forceinline__ int Sum(int mine) {
    int(&count)[kScanWarps] = counts_.count[turn_];
    turn_ ^= 1;
    mine = __reduce_add_sync(kAllLanes, mine);
    if (threadIdx.x % 32 == 0) count[threadIdx.x / 32] = mine;
    __syncthreads();
    int sum = 0;
#pragma unroll
    for (int w = 0; w < kScanWarps; ++w) sum += count[w];
    return sum;
  }

 private:
  CountsOfWarps& counts_;
  int turn_ = 0;
};

// Which tokens are in: those above `logit`, and of those equal to it the ids up to `last`.
struct Boundary {
  float logit;
  uint32_t last;
  __device__ __forceinline__ bool Has(float x, uint32_t id) const {
    return x > logit || (x == logit && id <= last);
  }
};

struct SelectShared {
  CountsOfWarps counts;
  uint32_t lowest[kScanWarps], highest[kScanWarps];
};

// Of the first `want` among the `there` values (kNoLogit elsewhere) that the block holds. Ids lie
// in [first_id, last_id]; id_of(i) is that of x[i]. All threads call. REQUIRES: values are finite,
// 1 <= want <= there, want <= kScanThreads; nobody reads `shared` any more.
template <class IdOf>
__device__ __forceinline__ Boundary FindBoundary(const float (&x)[kHeld], const IdOf& id_of,
                                                 int want, int there, uint32_t first_id,
                                                 uint32_t last_id, SelectShared& shared) {
  if (want == there) return {LogitOfSortable(kLowestSortable), last_id};
  // A value of each thread, hence `want` values, are not below the smallest of the threads'
  // largest.
  float largest = x[0];
#pragma unroll
  for (int i = 1; i < kHeld; ++i) largest = fmaxf(largest, x[i]);
  const uint32_t sortable = SortableLogit(largest);
  const uint32_t warp_lowest = __reduce_min_sync(kAllLanes, sortable);
  const uint32_t warp_highest = __reduce_max_sync(kAllLanes, sortable);
  if (threadIdx.x % 32 == 0) {
    shared.lowest[threadIdx.x / 32] = warp_lowest;
    shared.highest[threadIdx.x / 32] = warp_highest;
  }
  __syncthreads();
  uint32_t low = shared.lowest[0], high = shared.highest[0];
#pragma unroll
  for (int w = 1; w < kScanWarps; ++w) {
    low = min(low, shared.lowest[w]);
    high = max(high, shared.highest[w]);
  }
  low = max(low, kLowestSortable);

  // At least `want` values are not below `low`; fewer are above `high`.
  BlockCounter counter(shared.counts);
  while (low < high) {
    const uint32_t middle = low + (high - low + 1) / 2;
    const float bound = LogitOfSortable(middle);
    int mine = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) mine += x[i] >= bound ? 1 : 0;
    const int not_below = counter.Sum(mine);
    if (not_below == want) return {bound, last_id};
    if (not_below > want) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }

  // The last one's logit is known; of its equals the lowest ids are in.
  const float logit = LogitOfSortable(low);
  int above = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) above += x[i] > logit ? 1 : 0;
  const int equals = want - counter.Sum(above);
  uint32_t first = first_id, last = last_id;
  while (first < last) {
    const uint32_t middle = first + (last - first) / 2;
    int mine = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) mine += x[i] == logit && id_of(i) <= middle ? 1 : 0;
    if (counter.Sum(mine) >= equals) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return {logit, last};
}

}  // namespace bitshard::cuda
