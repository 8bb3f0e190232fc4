#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/ptx/cp_async.cuh"
#include "kernels/cuda/ptx/ldmatrix.cuh"
#include "kernels/cuda/ptx/pdl.cuh"
#include "tests/kernels/cuda/emu/faulty_kernels.h"

namespace bitshard::cuda {
namespace {

// ---- Shared memory.

__global__ void ExchangeInWarp(int* data) {
  SHARED_ARRAY(int, s, [64]);
  const int t = threadIdx.x;
  s[t] = t;
  __syncwarp();
  data[t] = s[t ^ 1];
}

__global__ void ExchangeWithoutSync(int* data) {
  SHARED_ARRAY(int, s, [64]);
  const int t = threadIdx.x;
  s[t] = t;            // FAULT: ExchangeWithoutSync
  data[t] = s[t ^ 1];  // FAULT: ExchangeWithoutSync
}

__global__ void ShuffleIsNoFence(int* data) {
  SHARED_ARRAY(int, s, [64]);
  const int t = threadIdx.x;
  s[t] = t;
  const int v = __shfl_xor_sync(~0u, t, 1);
  data[t] = s[t ^ 1] + v;  // FAULT: ShuffleIsNoFence
}

__global__ void OtherWarp(int* data) {
  SHARED_ARRAY(int, s, [64]);
  const int t = threadIdx.x;
  s[t] = t;  // FAULT: OtherWarp
  __syncwarp();
  data[t] = s[(t + 32) & 63];  // FAULT: OtherWarp
}

__global__ void WriteAfterRead(int* data) {
  SHARED_ARRAY(int, s, [64]);
  const int t = threadIdx.x;
  s[t] = t;
  __syncthreads();
  const int v = s[63 - t];  // FAULT: WriteAfterRead
  s[t] = v;                 // FAULT: WriteAfterRead
  data[t] = v;
}

__global__ void WriteAfterReadAndBarrier(int* data) {
  SHARED_ARRAY(int, s, [64]);
  const int t = threadIdx.x;
  s[t] = t;
  __syncthreads();
  const int v = s[63 - t];
  __syncthreads();
  s[t] = v;
  data[t] = s[t];
}

__global__ void WriteAfterReadInWarp(int* data) {
  SHARED_ARRAY(int, s, [64]);
  const int t = threadIdx.x;
  for (int i = 0; i < 3; ++i) {
    s[t] = t + i;
    __syncwarp();
    data[t] = s[t ^ 5] + s[t ^ 9];
    __syncwarp();
  }
}

__global__ void SameValue(int* data) {
  SHARED_ARRAY(int, s, [1]);
  s[0] = 7;  // FAULT: SameValue
  __syncthreads();
  data[threadIdx.x] = s[0];
}

__global__ void BehindArray(int* data) {
  SHARED_ARRAY(int, s, [64]);
  SHARED_ARRAY(int, other, [64]);
  const int t = threadIdx.x;
  s[t] = other[t] = t;
  __syncthreads();
  data[t] = s[t + 1] + other[t];  // FAULT: BehindArray
}

__global__ void TooMuchShared(int* data) {
  DYNAMIC_SHARED(int, dynamic);
  SHARED_ARRAY(int, s, [10 << 10]);  // FAULT: TooMuchShared
  const int t = threadIdx.x;
  s[t] = dynamic[t] = t;
  data[t] = s[t] + dynamic[t];
}

// ---- Warp and block.

__global__ void BranchedShuffle(int* data) {
  const int t = threadIdx.x;
  int v;
  if (t & 1) {
    v = __shfl_xor_sync(~0u, t, 1);  // FAULT: BranchedShuffle
  } else {
    v = __shfl_xor_sync(~0u, t, 2);  // FAULT: BranchedShuffle
  }
  data[t] = v;
}

__global__ void HalfWarp(int* data) {
  const int t = threadIdx.x;
  int v = 0;
  if ((t & 31) < 16) v = __shfl_xor_sync(0xffffu, t, 1);
  data[t] = v;
}

__global__ void HalfWarpFullMask(int* data) {
  const int t = threadIdx.x;
  int v = 0;
  if ((t & 31) < 16) v = __shfl_xor_sync(~0u, t, 1);  // FAULT: HalfWarpFullMask
  data[t] = v;
}

__global__ void OutsideMask(int* data) {
  const int t = threadIdx.x;
  int v = 0;
  if ((t & 31) < 16) v = __shfl_sync(0xffffu, t, 20);  // FAULT: OutsideMask
  data[t] = v;
}

__global__ void NotInOwnMask(int* data) {
  const int t = threadIdx.x;
  if ((t & 31) < 2) __syncwarp(2u);  // FAULT: NotInOwnMask
  data[t] = t;
}

__global__ void TwoBarriers(int* data) {
  if (threadIdx.x < 32) {
    __syncthreads();  // FAULT: TwoBarriers
  } else {
    __syncthreads();  // FAULT: TwoBarriers
  }
  data[threadIdx.x] = 1;
}

__global__ void ExitBeforeBarrier(int* data) {
  if (threadIdx.x >= 40) return;
  __syncthreads();  // FAULT: ExitBeforeBarrier
  data[threadIdx.x] = 1;
}

__global__ void Traps(int* data) {
  if (data[0] == 0) __trap();  // FAULT: Traps
}

// ---- Global memory.

__global__ void BehindAllocation(int* data) {
  data[threadIdx.x + 65 * (threadIdx.x / 63)] = 1;  // FAULT: BehindAllocation
}

__global__ void WritesFreed(int* data) {
  data[threadIdx.x] = 1;  // FAULT: WritesFreed
}

__global__ void Misaligned(int* data) {
  const char* const bytes = reinterpret_cast<const char*>(data);
  const int v = *reinterpret_cast<const int*>(bytes + 2);  // FAULT: Misaligned
  if (threadIdx.x == 0) data[64] = v;
}

__global__ void ReadsUnwritten(int* data) {
  data[threadIdx.x] = data[64 + threadIdx.x];  // FAULT: ReadsUnwritten
}

__global__ void BlocksWriteOneWord(int* data) {
  if (threadIdx.x == 0) data[0] = blockIdx.x;  // FAULT: BlocksWriteOneWord
}

__global__ void BlocksAddAtomically(int* data) { atomicAdd(&data[0], 1); }

// The last block to arrive adds up what all have written: data[1] = 32.
enum class Ticket { kSound, kFenceAfterBarrier, kNoFence, kOneFence, kNoBarrier, kNoAcquire };

template <Ticket kTicket>
__global__ void Merge(int* data) {
  SHARED_ARRAY(int, last, [1]);
  const int t = threadIdx.x;
  if (t < 8) data[8 + blockIdx.x * 8 + t] = 1;
  constexpr bool kAllFence =
      kTicket == Ticket::kSound || kTicket == Ticket::kNoBarrier || kTicket == Ticket::kNoAcquire;
  if (kAllFence || (kTicket == Ticket::kOneFence && t == 0)) GridRelease();
  if (kTicket != Ticket::kNoBarrier) __syncthreads();
  if (t == 0) {
    if (kTicket == Ticket::kFenceAfterBarrier) GridRelease();
    last[0] = atomicAdd(&data[0], 1) == 3;
  }
  __syncthreads();
  if (last[0] == 0) return;
  if (kTicket != Ticket::kNoAcquire) GridAcquire();
  if (t != 0) return;
  int sum = 0;
  for (int i = 0; i < 32; ++i) sum += data[8 + i];  // FAULT: Merge
  data[1] = sum;
}

// One thread acquires, a barrier passes it on.
__global__ void MergeByAll(int* data) {
  SHARED_ARRAY(int, last, [1]);
  const int t = threadIdx.x;
  if (t < 8) data[8 + blockIdx.x * 8 + t] = 1;
  __syncthreads();
  if (t == 0) {
    GridRelease();
    last[0] = atomicAdd(&data[0], 1) == 3;
    GridAcquire();
  }
  __syncthreads();
  if (last[0] != 0 && t < 32) data[64 + t] = data[8 + t];
}

// ---- cp.async.

template <bool kWaits>
__global__ void CopyOnce(int* data) {
  SHARED_ARRAY(uint4, tile, [64]);
  const int t = threadIdx.x;
  CpAsync16(&tile[t], data + t % 16 * 4);  // FAULT: CopyOnce
  CpAsyncCommit();
  if (kWaits) CpAsyncWait<0>();
  __syncthreads();
  data[64 + t] = static_cast<int>(tile[63 - t].x);  // FAULT: CopyOnce
}

template <bool kBarrier>
__global__ void CopyRing(int* data) {
  SHARED_ARRAY(uint4, tile, [2][64]);
  const int t = threadIdx.x;
  int sum = 0;
  CpAsync16(&tile[0][t], data + t % 16 * 4);
  CpAsyncCommit();
  for (int i = 0; i < 4; ++i) {
    CpAsync16(&tile[(i + 1) % 2][t], data + (t + i) % 16 * 4);  // FAULT: CopyRing
    CpAsyncCommit();
    CpAsyncWait<1>();
    __syncthreads();
    sum += static_cast<int>(tile[i % 2][63 - t].x);  // FAULT: CopyRing
    if (kBarrier) __syncthreads();
  }
  CpAsyncWait<0>();
  data[64 + t] = sum;
}

__global__ void LdMatrixMisaligned(int* data) {
  SHARED_ARRAY(uint4, tile, [64]);
  const int t = threadIdx.x;
  tile[t] = make_uint4(t, t, t, t);
  __syncthreads();
  const char* const row = reinterpret_cast<const char*>(&tile[t & 31]) + 4;
  uint32_t r[4];
  LdMatrixX4(r, row);  // FAULT: LdMatrixMisaligned
  data[t] = static_cast<int>(r[0]);
}

// ---- Programmatic dependent launch.

__global__ void WritesEarly(int* data) {
  data[threadIdx.x] = 1;  // FAULT: WritesEarly
  GridDependencyWait();
}

__global__ void Fill(int* data) { data[threadIdx.x] = 3; }

__global__ void ReadsEarly(int* data) {
  const int v = data[threadIdx.x];  // FAULT: ReadsEarly
  GridDependencyWait();
  data[threadIdx.x] = v;
}

__global__ void WaitsFirst(int* data) {
  GridDependencyLaunch();
  GridDependencyWait();
  data[threadIdx.x] += 1;
}

struct Case {
  std::string_view name;
  void (*kernel)(int*);
  unsigned blocks = 1;
  size_t dynamic_shared_bytes = 0;
};

const Case kCases[] = {
    {"ExchangeInWarp", ExchangeInWarp},
    {"ExchangeWithoutSync", ExchangeWithoutSync},
    {"ShuffleIsNoFence", ShuffleIsNoFence},
    {"OtherWarp", OtherWarp},
    {"WriteAfterRead", WriteAfterRead},
    {"WriteAfterReadAndBarrier", WriteAfterReadAndBarrier},
    {"WriteAfterReadInWarp", WriteAfterReadInWarp},
    {"SameValue", SameValue},
    {"BehindArray", BehindArray},
    {"TooMuchShared", TooMuchShared, 1, 200 << 10},
    {"BranchedShuffle", BranchedShuffle},
    {"HalfWarp", HalfWarp},
    {"HalfWarpFullMask", HalfWarpFullMask},
    {"OutsideMask", OutsideMask},
    {"NotInOwnMask", NotInOwnMask},
    {"TwoBarriers", TwoBarriers},
    {"ExitBeforeBarrier", ExitBeforeBarrier},
    {"Traps", Traps},
    {"BehindAllocation", BehindAllocation},
    {"WritesFreed", WritesFreed},
    {"Misaligned", Misaligned},
    {"ReadsUnwritten", ReadsUnwritten},
    {"BlocksWriteOneWord", BlocksWriteOneWord, 4},
    {"BlocksAddAtomically", BlocksAddAtomically, 4},
    {"Merge", Merge<Ticket::kSound>, 4},
    {"MergeFenceAfterBarrier", Merge<Ticket::kFenceAfterBarrier>, 4},
    {"MergeNoFence", Merge<Ticket::kNoFence>, 4},
    {"MergeOneFence", Merge<Ticket::kOneFence>, 4},
    {"MergeNoBarrier", Merge<Ticket::kNoBarrier>, 4},
    {"MergeNoAcquire", Merge<Ticket::kNoAcquire>, 4},
    {"MergeByAll", MergeByAll, 4},
    {"CopyOnce", CopyOnce<true>},
    {"CopyNotWaited", CopyOnce<false>},
    {"CopyRing", CopyRing<true>},
    {"CopyRingNoBarrier", CopyRing<false>},
    {"LdMatrixMisaligned", LdMatrixMisaligned},
};

}  // namespace

cudaError_t LaunchFaulty(std::string_view name, int* data, cudaStream_t stream) {
  for (const Case& c : kCases) {
    if (c.name != name) continue;
    return LAUNCH_KERNEL(c.kernel, c.blocks, 64, c.dynamic_shared_bytes, stream, data);
  }
  if (name == "WritesEarly") return LAUNCH_KERNEL_EARLY(WritesEarly, 1, 64, 0, stream, data);
  if (name == "WaitsFirst") return LAUNCH_KERNEL_EARLY(WaitsFirst, 1, 64, 0, stream, data);
  if (name == "ReadsEarly") {
    const cudaError_t error = LAUNCH_KERNEL(Fill, 1, 64, 0, stream, data);
    if (error != cudaSuccess) return error;
    return LAUNCH_KERNEL_EARLY(ReadsEarly, 1, 64, 0, stream, data);
  }
  return cudaErrorInvalidValue;
}

}  // namespace bitshard::cuda
