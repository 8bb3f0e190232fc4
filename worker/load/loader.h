// LoadPlan -> this rank's weights in canonical form. Reads only the plan's ranges (pread, counted),
// packs strip by strip while reading, several threads. Beyond the weights themselves it holds one
// strip a thread, 32 MiB at most; what a sink takes leaves a matrix at a time. Synthetic weights
// (kernels/tensor/synthetic.h) are made in place instead of read.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/base/thread_pool.h"
#include "kernels/tensor/mapped_memory.h"
#include "kernels/tensor/packed_matrix.h"
#include "kernels/tensor/synthetic_values.h"
#include "proto/graph.pb.h"

namespace bitshard {

class DeviceWeights;  // worker/device/device_weights.h

// Where matrices go that do not stay in the host's memory: each is given away as soon as all of it
// is there, so that the host holds one at a time. Called by the loading thread.
class WeightSink {
 public:
  virtual ~WeightSink() = default;
  // The matrix is dropped after the call. Returns the bytes that it takes where it went.
  virtual absl::StatusOr<uint64_t> Take(uint32_t weight, const PackedMatrix& matrix) = 0;
  // A matrix that the sink makes itself, and the host never holds.
  virtual absl::StatusOr<uint64_t> Make(uint32_t weight, const PackedSpec& spec,
                                        const SyntheticSource& source) = 0;
  // After the last one; `vectors` is indexed like the graph's weights.
  virtual absl::StatusOr<std::shared_ptr<const DeviceWeights>> Finish(
      const std::vector<std::vector<float>>& vectors) = 0;
};

// Indexed like ModelGraph.weights. Immutable after load; shared by the runner and a later rebind.
class LoadedWeights {
 public:
  // What Embed, Linear and LmHead multiply with is packed; what other nodes use (norms, biases,
  // rope divisors; always one row) is in `vectors`. The other of the two is empty, and so is a
  // matrix of which this rank owns nothing. Where a sink has taken the matrices all of them are
  // empty, and `moved` says what they were.
  std::unique_ptr<MemoryArena> arena;  // of the matrices
  std::vector<PackedMatrix> matrices;
  std::vector<std::vector<float>> vectors;
  struct MovedMatrix {
    PackedSpec spec;
    uint64_t bytes = 0;  // where it is now
  };
  std::vector<MovedMatrix> moved;
  std::shared_ptr<const DeviceWeights> device;  // what a sink made of them

  size_t matrix_count() const { return moved.empty() ? matrices.size() : moved.size(); }
  const PackedSpec& SpecOf(size_t weight) const {
    return moved.empty() ? matrices[weight].spec() : moved[weight].spec;
  }
  uint64_t BytesOf(size_t weight) const {
    return moved.empty() ? matrices[weight].bytes() : moved[weight].bytes;
  }

  uint64_t arena_bytes = 0;    // codes, scales, minima, vectors, tile padding included
  uint64_t vector_bytes = 0;   // of arena_bytes: the vectors, which lie on the heap
  uint64_t padding_bytes = 0;  // of arena_bytes: rows and columns that fill up tiles
  uint64_t read_bytes = 0;     // what pread returned, all ranges
  // Time in reads and in packing (or making), all threads together.
  uint64_t read_us = 0, pack_us = 0;
};

// Called by one thread at a time, `done_bytes` never falls. Bytes read; of synthetic weights, made.
using LoadProgressFn = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

// DATA_LOSS when a file is shorter than planned or has changed size, NOT_FOUND when it is gone
// (names the path, and that every worker must see the model under the same path), INVALID_ARGUMENT
// on a plan that contradicts itself, RESOURCE_EXHAUSTED when the weights would take more than
// `max_arena_bytes`. With a sink also its errors.
absl::StatusOr<std::shared_ptr<const LoadedWeights>> LoadWeights(
    const internal::RankPlan& plan, ThreadPool& pool, const LoadProgressFn& progress,
    uint64_t max_arena_bytes = std::numeric_limits<uint64_t>::max(), WeightSink* sink = nullptr);

}  // namespace bitshard
