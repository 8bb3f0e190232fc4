// What ops may ask for while the graph is bound: values as memory, weights, shared kernels and
// scratch.
//
// Made by StepRunner::Bind and used by the step thread; lives as long as the ops. Nodes are bound
// in graph order.
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
#include "worker/ops/fusion.h"
#include "worker/ops/graph_values.h"

namespace bitshard {

class KernelOrder;  // kernels/registry/kernel_probe.h
class ScoreLogits;  // worker/ops/op.h

// The prepared form of one value, shared by the linear ops that read it one after the other, in all
// forms that they need. The first of them prepares it, unless the op that makes the value has.
struct SharedInput {
  PreparedActivations* prepared = nullptr;
  unsigned forms = 0;
  int64_t cols = 0, segment_cols = 0;
  Isa isa = Isa::kScalar;

  // Before its rows are prepared in a step of so many.
  void Begin(int64_t rows) const { prepared->Begin(rows, cols, segment_cols, forms, isa); }
};

// What an op that makes a value has offered to prepare. Complete once the graph is bound.
struct Handover {
  const SharedInput* shared = nullptr;  // null: nobody took it
  int reads = 0;                        // that `shared` stands for
};

// An attention kernel with its scratch, shared by all layers of the same configuration.
struct SharedAttention {
  AttentionConfig config;
  BoundAttention bound;
};

// cos and sin of the step's tokens, shared by all layers of the same rotation. The first of them
// computes.
struct SharedAngles {
  const RopeTable* table = nullptr;
  AttentionRotation rotation;
  float* cos = nullptr;  // [max_step_tokens, rotary_dim / 2], where rotation looks
  float* sin = nullptr;

  void Compute(absl::Span<const int32_t> positions, ThreadPool& pool) const {
    pool.ParallelFor(static_cast<int64_t>(positions.size()), [&](int64_t i, int) {
      table->CosSin(positions[static_cast<size_t>(i)], cos + i * rotation.stride,
                    sin + i * rotation.stride);
    });
  }
};

class BindContext : public GraphValues {
 public:
  using LogitsTap =
      std::function<void(uint32_t slot, uint32_t position, absl::Span<const float> logits)>;

  struct Options {
    ActivationMode activations = ActivationMode::kA16;
    KvType cache_type = KvType::kBf16;
    Isa isa = Isa::kScalar;
    const KernelOrder* kernel_order = nullptr;  // null = the widest set first; outlives the ops
    int threads = 1;
    ThreadPool* pool = nullptr;
    int64_t max_step_tokens = 0;
    int64_t max_outputs = 0;  // sampled tokens in a step
    uint32_t world = 1;
    // Most that workspace_bytes() may become.
    uint64_t max_workspace_bytes = std::numeric_limits<uint64_t>::max();
    LogitsTap logits_tap;
    bool fuse = true;  // worker/ops/fusion.h
  };

  // `matrices` and `vectors` are indexed like graph.weights; all outlive the context.
  // INVALID_ARGUMENT when the values of the graph do not fit together, RESOURCE_EXHAUSTED when they
  // alone pass the budget.
  static absl::StatusOr<std::unique_ptr<BindContext>> Create(
      const internal::ModelGraph& graph, const std::vector<PackedMatrix>& matrices,
      const std::vector<std::vector<float>>& vectors, const Options& options);

  const Options& options() const { return options_; }

  // The rank's matrix, or null when it owns nothing of it. INVALID_ARGUMENT when the graph's shape
  // is not the loaded one.
  absl::StatusOr<const PackedMatrix*> Matrix(uint32_t weight) const;
  absl::StatusOr<const float*> Vector(uint32_t weight, int64_t width) const override;

  // Called by Linear (and LmHead) in graph order. `leader` is set for the first of a group that
  // shares its input: it must call Prepare.
  absl::StatusOr<SharedInput*> ShareInput(uint32_t value, int64_t rows, int64_t cols,
                                          int64_t segment_cols, bool* leader);

  // Called by an op that makes `value` in every step and can prepare its rows on the way: whole
  // ones, or with `most_segment_cols` whole segments of at most so many columns, multiples of 16.
  // The linear ops that come next take it or not.
  Handover* OfferPrepared(uint32_t value, int64_t most_segment_cols = 0);
  // Whether ops other than those of a handover read the value: then its f32 form must be there too.
  bool ReadElsewhere(uint32_t value, const Handover& handover) const {
    return handover.shared == nullptr || view_.reads(value) > handover.reads;
  }

  // LmHead tells Sample who makes the logits of scored tokens.
  void set_score_logits(ScoreLogits* score_logits) { score_logits_ = score_logits; }
  ScoreLogits* score_logits() const { return score_logits_; }

  // LmHead tells where the hidden states after the last norm, [tokens, width of its input], lie
  // from its turn to the end of the step.
  void set_final_hidden(const float* hidden) { final_hidden_ = hidden; }
  const float* final_hidden() const { return final_hidden_; }

  absl::StatusOr<SharedAttention*> Attention(const AttentionConfig& config);

  absl::StatusOr<const RopeTable*> Rope(const RopeConfig& config);
  // `leader` is set for the first that asks: it must call Compute in every step.
  absl::StatusOr<SharedAngles*> Angles(const RopeConfig& config, bool* leader);

  // For `rows` x `width` floats; zeroed, 64-byte aligned, for the life of the context.
  absl::StatusOr<float*> Scratch(int64_t rows, int64_t width);

  // Of values, prepared activations and scratch; about.
  uint64_t workspace_bytes() const { return workspace_bytes_; }

 private:
  BindContext(const internal::ModelGraph& graph, const std::vector<PackedMatrix>& matrices,
              const std::vector<std::vector<float>>& vectors, const Options& options)
      : GraphValues(graph, vectors, GroupNodes(graph, options.fuse)),
        matrices_(matrices),
        options_(options),
        view_(graph) {}
  // Before anything is allocated: RESOURCE_EXHAUSTED, with what is needed and what to change, when
  // it does not fit into the budget with all that was claimed before. No value: it overflowed.
  absl::Status Claim(std::optional<uint64_t> bytes);
  // The offer that these linear ops can take; null: none.
  Handover* TakeOffer(uint32_t value, int64_t segment_cols);

  const std::vector<PackedMatrix>& matrices_;
  const Options options_;
  const GraphView view_;
  Buffer arena_;
  uint64_t workspace_bytes_ = 0;
  std::deque<Buffer> scratch_;
  // Taken in turn: while one is read the next is made.
  struct {
    PreparedActivations activations;
    uint64_t bytes = 0;
  } prepared_[2];
  std::deque<SharedInput> shared_inputs_;
  struct Offer {
    uint32_t value = 0;
    int64_t most_segment_cols = 0;
    size_t shared_inputs = 0;  // when it was made
    Handover handover;
  };
  std::deque<Offer> offers_;
  struct {
    uint32_t value = 0;
    int64_t segment_cols = 0;
    bool open = false;
    Handover* handover = nullptr;  // null: the leader prepares
  } group_;
  ScoreLogits* score_logits_ = nullptr;
  const float* final_hidden_ = nullptr;
  std::deque<SharedAttention> attentions_;
  struct NamedRope {
    RopeConfig config;
    RopeTable table;
  };
  std::deque<NamedRope> ropes_;
  std::deque<SharedAngles> angles_;
};

}  // namespace bitshard
