// A graph's values as places in one arena, and what the graph says of shapes, checked: what binding
// has in common wherever the graph is computed. BindContext (this folder) is the CPU's,
// DeviceBindContext (worker/device) that of an accelerator, whose arena lies in its own memory.
//
// Everything that a graph says is checked here or in the op: a bad graph is INVALID_ARGUMENT, never
// a crash.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "kernels/tensor/kv_layout.h"
#include "proto/graph.pb.h"
#include "worker/ops/buffer_plan.h"
#include "worker/ops/fusion.h"

namespace bitshard {

class GraphValues {
 public:
  virtual ~GraphValues() = default;
  GraphValues(const GraphValues&) = delete;
  GraphValues& operator=(const GraphValues&) = delete;

  const internal::ModelGraph& graph() const { return graph_; }
  const std::vector<NodeGroup>& groups() const { return groups_; }

  // Shape of a node, checked: so many inputs and outputs, of these types.
  absl::Status ExpectValues(const internal::Node& node,
                            absl::Span<const internal::Value::Type> inputs,
                            absl::Span<const internal::Value::Type> outputs) const;

  // REQUIRES: the index was checked by ExpectValues.
  int64_t width(uint32_t value) const {
    return static_cast<int64_t>(graph_.values(static_cast<int>(value)).width());
  }
  float* f32(uint32_t value) { return reinterpret_cast<float*>(Memory(value)); }
  int64_t* i64(uint32_t value) { return reinterpret_cast<int64_t*>(Memory(value)); }
  // Poison counts of a SEGMENT_SUM in a step of `tokens` tokens lie behind its sums: i64(value) +
  // tokens * width.

  absl::Status MatrixShape(uint32_t weight, int64_t* rows, int64_t* cols) const;
  // [width], where the graph is computed.
  virtual absl::StatusOr<const float*> Vector(uint32_t weight, int64_t width) const = 0;
  // The same in the host's memory.
  absl::StatusOr<const std::vector<float>*> HostVector(uint32_t weight, int64_t width) const;

  // Says which layout the cache layer has; every layer once.
  absl::Status AddCacheLayer(uint32_t layer, const KvLayout& layout);
  // Layers without an Attention node have no heads.
  const std::vector<KvLayout>& cache_layers() const { return cache_layers_; }

 protected:
  // `vectors` is indexed like graph.weights; both outlive the object.
  GraphValues(const internal::ModelGraph& graph, const std::vector<std::vector<float>>& vectors,
              std::vector<NodeGroup> groups)
      : graph_(graph), vectors_(vectors), groups_(std::move(groups)) {}

  // The graph's frame, and as PlanBuffers. `set_arena` comes before the first f32 or i64, and
  // `set_sums_arena` too if sums are apart.
  absl::Status PlanValues(uint64_t max_step_tokens, uint64_t max_outputs, bool sums_apart = false);
  uint64_t arena_bytes() const { return plan_.arena_bytes; }
  uint64_t sums_bytes() const { return plan_.sums_bytes; }
  void set_arena(uint8_t* arena) { arena_ = arena; }
  void set_sums_arena(uint8_t* arena) { sums_arena_ = arena; }

 private:
  uint8_t* Memory(uint32_t value) {
    const bool apart = sums_apart_ && IsSumOverRanks(graph_.values(static_cast<int>(value)));
    return (apart ? sums_arena_ : arena_) + plan_.offsets[value];
  }

  const internal::ModelGraph& graph_;
  const std::vector<std::vector<float>>& vectors_;
  const std::vector<NodeGroup> groups_;
  BufferPlan plan_;
  bool sums_apart_ = false;
  uint8_t* arena_ = nullptr;
  uint8_t* sums_arena_ = nullptr;
  std::vector<KvLayout> cache_layers_;
  std::vector<bool> has_cache_layer_;
};

}  // namespace bitshard
