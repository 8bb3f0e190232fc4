// What the language layer (cuda_emu.h, ptx/*.cuh) calls in the emulator. Tests and the fake runtime
// use memory.h, findings.h, counters.h and options.h instead.
//
// Each CUDA thread is a fibre. All fibres of a launch run on the host thread that runs the launch,
// one at a time, and blocks run one after another; one mutex serializes launches of several
// threads. Every function below that takes a Where is called by a fibre; calls are told apart by
// their place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <driver_types.h>
#include <functional>
#include <source_location>
#include <tuple>
#include <utility>
#include <vector_types.h>

#include "kernels/cuda/emu/stream_hook.h"

namespace bitshard::emu {

using Where = std::source_location;

// Ids of the running block and of the running thread.
struct BlockIds {
  uint3 index;
  dim3 size;
  dim3 grid;
};
extern BlockIds block_ids;
extern const uint3* thread_index;

// What the lanes of a warp do together.
enum class Collective : uint8_t {
  kShuffle,
  kShuffleXor,
  kShuffleUp,
  kShuffleDown,
  kBallot,
  kReduceAdd,
  kReduceMin,
  kReduceMax,
  kReduceMinSigned,
  kReduceMaxSigned,
  kSumFloat,  // the tree of five xor shuffles, 16 first
  kMaxFloat,
  kSyncWarp,
  kMmaF16,
  kMmaBf16,
  kMmaU8S8,
  kLdMatrix,
  kLdMatrixTrans,
};

// The lanes of `mask` meet here; each gets its own result. `argument` is the shuffle's lane or
// offset.
uint64_t Meet(Collective collective, unsigned mask, uint64_t value, int argument, int width,
              const Where& where);
// d += a * b over fragments: f32 (kMmaF16, kMmaBf16) or s32 (kMmaU8S8) accumulators.
void Mma(Collective collective, void* d, const uint32_t* a, const uint32_t* b, const Where& where);
// Each lane gives the address of a 16-byte row in shared memory and gets four registers.
void LdMatrix(Collective collective, uint32_t* registers, const void* row, const Where& where);

void SyncBlock(const Where& where);
// Barrier that also counts the threads whose predicate holds.
int SyncBlockCount(bool predicate, const Where& where);

// The zero-initialized static that stands for one shared array in the source.
struct SharedSite {
  const char* name;
  uint64_t block;  // the block for which `address` holds
  void* address;
};
void* SharedArray(SharedSite* site, size_t bytes, const Where& where);
void* DynamicShared();

// cp.async of 16 bytes of which the first `bytes` come from `source` and the rest is zero.
void CopyAsync(void* shared, const void* source, int bytes, const Where& where);
void CommitCopies();
// Until at most `groups_in_flight` of the thread's newest groups are still in flight.
void WaitForCopies(int groups_in_flight);

// Called before an atomic operation on `bytes` bytes at `address`.
void BeforeAtomic(const void* address, int bytes);
void FenceGrid();
void AcquireGrid();
void WaitForPreviousKernel();
[[noreturn]] void Trap(const Where& where);

template <class T>
uint64_t ToBits(T value) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}
template <class T>
T FromBits(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t dynamic_shared_bytes;
  bool overlaps_previous;  // may start before the stream's previous kernel is done
};

inline LaunchShape MakeShape(dim3 grid, dim3 block, size_t dynamic_shared_bytes,
                             bool overlaps_previous) {
  return {grid, block, dynamic_shared_bytes, overlaps_previous};
}

// What the real runtime refuses: cudaErrorInvalidConfiguration or cudaErrorInvalidValue.
cudaError_t CheckLaunch(const LaunchShape& shape);
// Runs `body` once a thread, all blocks.
void RunKernel(const char* kernel, const LaunchShape& shape, const std::function<void()>& body);

template <class... Parameters, class... Arguments>
[[nodiscard]] cudaError_t Launch(const char* name, const LaunchShape& shape, cudaStream_t stream,
                                 void (*kernel)(Parameters...), Arguments&&... arguments) {
  if (const cudaError_t error = CheckLaunch(shape); error != cudaSuccess) return error;
  std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
  return Enqueue(stream, [name, shape, kernel, values = std::move(values)] {
    RunKernel(name, shape, [&] { std::apply(kernel, values); });
  });
}

}  // namespace bitshard::emu
