// What ops may ask for while the graph is bound: values as memory, weights, shared kernels and
// scratch.
//
// Made by StepRunner::Bind and used by the step thread; lives as long as the ops. Nodes are bound
// in graph order. Everything that a graph says is checked here or in the op: a bad graph is
// INVALID_ARGUMENT, never a crash.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "kernels/base/cpu_features.h"
#include "kernels/base/thread_pool.h"
#include "kernels/registry/activations.h"
#include "kernels/registry/attention.h"
#include "kernels/registry/rope.h"
#include "kernels/tensor/buffer.h"
#include "kernels/tensor/packed_matrix.h"
#include "proto/graph.pb.h"
#include "worker/ops/buffer_plan.h"

namespace bitshard {

// The prepared form of one value, shared by the linear ops that read it one after the other. The
// first of them prepares it, in all forms that the group needs.
struct SharedInput {
  PreparedActivations* prepared = nullptr;
  unsigned forms = 0;
};

// An attention kernel with its scratch, shared by all layers of the same configuration.
struct SharedAttention {
  AttentionConfig config;
  BoundAttention bound;
};

class BindContext {
 public:
  using LogitsTap =
      std::function<void(uint32_t slot, uint32_t position, absl::Span<const float> logits)>;

  struct Options {
    ActivationMode activations = ActivationMode::kA16;
    KvType cache_type = KvType::kBf16;
    Isa isa = Isa::kScalar;
    int threads = 1;
    ThreadPool* pool = nullptr;
    int64_t max_step_tokens = 0;
    int64_t max_outputs = 0;  // sampled tokens in a step
    uint32_t world = 1;
    // Most that workspace_bytes() may become.
    uint64_t max_workspace_bytes = std::numeric_limits<uint64_t>::max();
    LogitsTap logits_tap;
  };

  // `matrices` and `vectors` are indexed like graph.weights; all outlive the context.
  // INVALID_ARGUMENT when the values of the graph do not fit together, RESOURCE_EXHAUSTED when they
  // alone pass the budget.
  static absl::StatusOr<std::unique_ptr<BindContext>> Create(
      const internal::ModelGraph& graph, const std::vector<PackedMatrix>& matrices,
      const std::vector<std::vector<float>>& vectors, const Options& options);

  const Options& options() const { return options_; }
  const internal::ModelGraph& graph() const { return graph_; }

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

  // The rank's matrix, or null when it owns nothing of it. INVALID_ARGUMENT when the graph's shape
  // is not the loaded one.
  absl::StatusOr<const PackedMatrix*> Matrix(uint32_t weight) const;
  absl::Status MatrixShape(uint32_t weight, int64_t* rows, int64_t* cols) const;
  absl::StatusOr<const std::vector<float>*> Vector(uint32_t weight, int64_t width) const;

  // Called by Linear (and LmHead) in graph order. `leader` is set for the first of a group that
  // shares its input: it must call Prepare.
  absl::StatusOr<SharedInput*> ShareInput(uint32_t value, int64_t rows, int64_t cols,
                                          int64_t segment_cols, bool* leader);

  absl::StatusOr<SharedAttention*> Attention(const AttentionConfig& config);
  // Says which layout the cache layer has; every layer once.
  absl::Status AddCacheLayer(uint32_t layer, const KvLayout& layout);
  // Layers without an Attention node have no heads.
  const std::vector<KvLayout>& cache_layers() const { return cache_layers_; }

  absl::StatusOr<const RopeTable*> Rope(const RopeConfig& config);

  // For `rows` x `width` floats; zeroed, 64-byte aligned, for the life of the context.
  absl::StatusOr<float*> Scratch(int64_t rows, int64_t width);

  // Of values, prepared activations and scratch; about.
  uint64_t workspace_bytes() const { return workspace_bytes_; }

 private:
  BindContext(const internal::ModelGraph& graph, const std::vector<PackedMatrix>& matrices,
              const std::vector<std::vector<float>>& vectors, const Options& options)
      : graph_(graph), matrices_(matrices), vectors_(vectors), options_(options) {}
  // Before anything is allocated: RESOURCE_EXHAUSTED, with what is needed and what to change, when
  // it does not fit into the budget with all that was claimed before. No value: it overflowed.
  absl::Status Claim(std::optional<uint64_t> bytes);
  uint8_t* Memory(uint32_t value) { return arena_.data() + plan_.offsets[value]; }

  const internal::ModelGraph& graph_;
  const std::vector<PackedMatrix>& matrices_;
  const std::vector<std::vector<float>>& vectors_;
  const Options options_;
  BufferPlan plan_;
  Buffer arena_;
  uint64_t workspace_bytes_ = 0;
  std::deque<Buffer> scratch_;
  PreparedActivations prepared_;  // one for all: it is used at once
  uint64_t prepared_bytes_ = 0;
  std::deque<SharedInput> shared_inputs_;
  struct {
    uint32_t value = 0;
    int64_t segment_cols = 0;
    bool open = false;
  } group_;
  std::deque<SharedAttention> attentions_;
  std::vector<KvLayout> cache_layers_;
  std::vector<bool> has_cache_layer_;
  struct NamedRope {
    RopeConfig config;
    RopeTable table;
  };
  std::deque<NamedRope> ropes_;
};

}  // namespace bitshard
