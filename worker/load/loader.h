// LoadPlan -> this rank's weights in canonical form. Reads only the plan's ranges (pread, counted),
// packs strip by strip while reading, several threads. Beyond the weights themselves it holds one
// strip a thread, 32 MiB at most.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/base/thread_pool.h"
#include "kernels/tensor/mapped_memory.h"
#include "kernels/tensor/packed_matrix.h"
#include "proto/graph.pb.h"

namespace bitshard {

// Indexed like ModelGraph.weights. Immutable after load; shared by the runner and a later rebind.
class LoadedWeights {
 public:
  // What Embed, Linear and LmHead multiply with is packed; what other nodes use (norms, biases,
  // rope divisors; always one row) is in `vectors`. The other of the two is empty, and so is a
  // matrix of which this rank owns nothing.
  std::unique_ptr<MemoryArena> arena;  // of the matrices
  std::vector<PackedMatrix> matrices;
  std::vector<std::vector<float>> vectors;
  uint64_t arena_bytes = 0;    // codes, scales, minima, vectors, tile padding included
  uint64_t vector_bytes = 0;   // of arena_bytes: the vectors, which lie on the heap
  uint64_t padding_bytes = 0;  // of arena_bytes: rows and columns that fill up tiles
  uint64_t read_bytes = 0;     // what pread returned, all ranges
  // Time in reads and in packing, all threads together.
  uint64_t read_us = 0, pack_us = 0;
};

// Called by one thread at a time, `done_bytes` never falls.
using LoadProgressFn = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

// DATA_LOSS when a file is shorter than planned or has changed size, NOT_FOUND when it is gone
// (names the path, and that every worker must see the model under the same path), INVALID_ARGUMENT
// on a plan that contradicts itself, RESOURCE_EXHAUSTED when the weights would take more than
// `max_arena_bytes`.
absl::StatusOr<std::shared_ptr<const LoadedWeights>> LoadWeights(
    const internal::RankPlan& plan, ThreadPool& pool, const LoadProgressFn& progress,
    uint64_t max_arena_bytes = std::numeric_limits<uint64_t>::max());

}  // namespace bitshard
