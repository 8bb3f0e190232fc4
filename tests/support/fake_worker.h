// A worker without a model: it keeps slots, histories and a KV cache as a real one does, refuses
// every plan that a real one could not run, and samples tokens that depend on nothing but the
// sequence.
//
// A block's cells hold a digest of all tokens up to theirs. Before a row runs, every cell before it
// must hold the digest of the slot's own history: a block that was given to two sequences, freed
// too early, or filled with a gap is found at the next row that reads it. The next token is a
// function of the whole history and the sampling seed, so any order of scheduling must give each
// request the same tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "coordinator/engine/step_executor.h"
#include "proto/plan.pb.h"

namespace bitshard {

class FakeWorker {
 public:
  // The token that follows `history`, given the sequence's sampling.
  using NextToken = std::function<uint32_t(absl::Span<const uint32_t> history,
                                           const internal::SamplingParams& sampling)>;
  using Predicate = std::function<bool(absl::Span<const uint32_t> history)>;

  struct Options {
    uint32_t vocab_size = 256;
    NextToken next_token;       // default: HashedNextToken(vocab_size)
    Predicate non_finite;       // histories after which the logits are not finite; default: none
    bool require_rows = false;  // refuse plans without rows
  };
  static NextToken HashedNextToken(uint32_t vocab_size);
  // The log-probability that it gives a known token at this place of a sequence.
  static float ScoreOf(uint32_t token, uint32_t place) {
    return -0.25f * static_cast<float>(token) - static_cast<float>(place);
  }

  // The vector that it gives a sequence of these tokens: those that were pooled, each times its
  // place, added up, and how many they were.
  static std::vector<float> EmbeddingOf(absl::Span<const uint32_t> tokens,
                                        internal::Pooling pooling);

  explicit FakeWorker(Options options);

  // An empty cache, empty slots, step 1 next.
  void StartEpoch(const GroupInfo& info);

  // INVALID_ARGUMENT or FAILED_PRECONDITION with what is wrong with the plan.
  absl::StatusOr<std::unique_ptr<internal::StepResult>> Run(const internal::StepPlan& plan);

  // Positions computed since construction.
  uint64_t computed_tokens() const { return computed_tokens_; }
  uint64_t steps() const { return steps_; }
  uint32_t largest_step_tokens() const { return largest_step_tokens_; }
  uint32_t largest_row_tokens() const { return largest_row_tokens_; }

 private:
  struct Slot {
    uint32_t gen = 0;
    bool live = false;
    uint32_t n_prompt = 0;
    uint32_t computed = 0;
    std::vector<uint32_t> history;
    std::vector<uint64_t> digests;  // [i] covers history[0..i]
    std::vector<uint32_t> blocks;
    uint32_t score_from = 1;
    internal::SamplingParams sampling;
    internal::Pooling pooling = internal::POOLING_NONE;
    std::vector<uint32_t> pooled;  // tokens that went into the vector
  };
  struct Row {
    uint32_t slot, slot_gen, start, n_tokens, output_index, flags;
    absl::Span<const uint32_t> new_blocks;
    const std::string* mask = nullptr;  // with ROW_MASKED
  };

  absl::Status Enter(const internal::NewSequence& sequence);
  // Slot and flags, and that the KV before the row is the sequence's.
  absl::Status CheckReads(const Row& row);
  absl::Status RunRow(const Row& row, internal::StepResult* result);
  void Score(const Row& row, const Slot& slot, internal::StepScores* scores) const;
  static absl::Status CheckPooling(const Row& row, const Slot& slot);
  void Pool(const Row& row, Slot& slot, internal::StepResult* result) const;
  absl::Status TakeBlocks(Slot& slot, absl::Span<const uint32_t> blocks);
  void Append(Slot& slot, uint32_t token);
  uint64_t& Cell(const Slot& slot, uint32_t position);

  Options options_;
  GroupInfo info_;
  uint64_t last_step_ = 0;
  std::vector<Slot> slots_;
  std::vector<uint64_t> cache_;  // [block, position in block]
  uint64_t computed_tokens_ = 0, steps_ = 0;
  uint32_t largest_step_tokens_ = 0, largest_row_tokens_ = 0;
};

}  // namespace bitshard
