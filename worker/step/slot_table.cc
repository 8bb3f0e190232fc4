#include "worker/step/slot_table.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

#include "kernels/base/checked_math.h"
#include "kernels/base/status_macros.h"
#include "proto/token_mask.h"

namespace bitshard {
namespace {

constexpr uint32_t kKnownFlags =
    internal::ROW_SAMPLE | internal::ROW_SCORE | internal::ROW_MASKED | internal::ROW_POOL;

}  // namespace

SlotTable::SlotTable(const SlotLimits& limits)
    : limits_(limits),
      max_blocks_(static_cast<uint32_t>(CeilDiv(limits.context_tokens, limits.block_tokens))),
      slots_(limits.max_slots),
      new_sequence_(limits.max_slots, 0),
      has_row_(limits.max_slots, 0) {
  for (Slot& slot : slots_) {
    slot.tokens.reserve(limits.context_tokens);
    slot.blocks.reserve(max_blocks_);
    slot.edits.Reserve(limits.vocab_size);
    slot.pooled.Reserve(limits.hidden_size);
  }
}

uint64_t SlotTable::Bytes(const SlotLimits& limits) {
  const uint64_t tokens = uint64_t{limits.context_tokens} * sizeof(int32_t);
  const uint64_t blocks = CeilDiv(limits.context_tokens, limits.block_tokens) * sizeof(uint32_t);
  return limits.max_slots * (tokens + blocks + EditParams::Bytes(limits.vocab_size) +
                             PooledVector::Bytes(limits.hidden_size) + sizeof(Slot));
}

void SlotTable::Reset(uint32_t cache_blocks) {
  cache_blocks_ = cache_blocks;
  for (Slot& slot : slots_) {
    slot.used = slot.poisoned = false;
    slot.pooled.Begin(internal::POOLING_NONE);
    slot.gen = slot.computed = 0;
    slot.tokens.clear();
    slot.blocks.clear();
  }
}

absl::Status SlotTable::Check(const internal::StepPlan& plan) {
  const absl::Status status = CheckRows(plan);
  ForgetNotes(plan);
  return status;
}

absl::Status SlotTable::CheckRows(const internal::StepPlan& plan) {
  const int rows = plan.slot_size();
  if (plan.slot_gen_size() != rows || plan.start_size() != rows || plan.n_tokens_size() != rows ||
      plan.output_index_size() != rows || plan.flags_size() != rows ||
      plan.n_new_blocks_size() != rows) {
    return absl::InvalidArgumentError("step plan: its row arrays differ in length");
  }
  for (int i = 0; i < plan.new_sequences_size(); ++i) {
    const internal::NewSequence& sequence = plan.new_sequences(i);
    RETURN_IF_ERROR(CheckNewSequence(sequence));
    if (new_sequence_[sequence.slot()] != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("step plan: two new sequences for slot ", sequence.slot()));
    }
    new_sequence_[sequence.slot()] = static_cast<uint32_t>(i) + 1;
  }
  uint64_t tokens = 0;
  absl::Span<const uint32_t> new_blocks(plan.new_blocks().data(),
                                        static_cast<size_t>(plan.new_blocks_size()));
  for (int row = 0; row < rows; ++row) {
    const uint32_t slot = plan.slot(row);
    if (slot >= limits_.max_slots) {
      return absl::InvalidArgumentError(
          absl::StrCat("step plan row ", row, ": slot ", slot, " of ", limits_.max_slots));
    }
    if (has_row_[slot] != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("step plan row ", row, ": slot ", slot, " has a row already"));
    }
    has_row_[slot] = 1;
    if (plan.n_new_blocks(row) > new_blocks.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("step plan row ", row, ": fewer new blocks than rows claim"));
    }
    RETURN_IF_ERROR(CheckRow(plan, row, new_blocks.first(plan.n_new_blocks(row))));
    new_blocks.remove_prefix(plan.n_new_blocks(row));
    tokens += plan.n_tokens(row);
  }
  if (!new_blocks.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("step plan: ", new_blocks.size(), " new blocks belong to no row"));
  }
  if (tokens > limits_.max_step_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("step plan: ", tokens, " tokens, at most ",
                                                   limits_.max_step_tokens, " fit a step"));
  }
  return CheckMasks(plan);
}

absl::Status SlotTable::CheckMasks(const internal::StepPlan& plan) const {
  int masked = 0;
  for (const uint32_t flags : plan.flags()) masked += (flags & internal::ROW_MASKED) != 0 ? 1 : 0;
  if (masked != plan.masks_size()) {
    return absl::InvalidArgumentError(absl::StrCat("step plan: ", plan.masks_size(), " masks for ",
                                                   masked, " rows with ROW_MASKED"));
  }
  for (const std::string& mask : plan.masks()) {
    if (mask.size() == TokenMaskBytes(limits_.vocab_size)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("step plan: a mask of ", mask.size(), " bytes, the vocabulary of ",
                     limits_.vocab_size, " tokens needs ", TokenMaskBytes(limits_.vocab_size)));
  }
  return absl::OkStatus();
}

absl::Status SlotTable::CheckNewSequence(const internal::NewSequence& sequence) const {
  const auto wrong = [&](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat("step plan: new sequence for slot ", sequence.slot(), ": ", what));
  };
  if (sequence.slot() >= limits_.max_slots) {
    return wrong(absl::StrCat("there are ", limits_.max_slots, " slots"));
  }
  const uint64_t tokens = static_cast<uint64_t>(sequence.tokens_size());
  if (tokens == 0 || tokens > limits_.context_tokens) {
    return wrong(absl::StrCat(tokens, " tokens, the context holds 1 to ", limits_.context_tokens));
  }
  if (sequence.n_prompt() == 0 || sequence.n_prompt() > tokens ||
      sequence.cached_tokens() > tokens) {
    return wrong(absl::StrCat("prompt of ", sequence.n_prompt(), " and ", sequence.cached_tokens(),
                              " cached of ", tokens, " tokens"));
  }
  for (const uint32_t token : sequence.tokens()) {
    if (token >= limits_.vocab_size) {
      return wrong(absl::StrCat("token id ", token, " of a vocabulary of ", limits_.vocab_size));
    }
  }
  const uint64_t blocks = static_cast<uint64_t>(sequence.blocks_size());
  if (blocks > max_blocks_ || blocks * limits_.block_tokens < sequence.cached_tokens()) {
    return wrong(absl::StrCat(blocks, " blocks for ", sequence.cached_tokens(),
                              " cached tokens, at most ", max_blocks_));
  }
  for (const uint32_t block : sequence.blocks()) {
    if (block >= cache_blocks_) {
      return wrong(absl::StrCat("block ", block, " of a cache of ", cache_blocks_));
    }
  }
  if (sequence.score_from() > tokens) {
    return wrong(absl::StrCat("scores from token ", sequence.score_from(), " of ", tokens));
  }
  if (!internal::Pooling_IsValid(sequence.pooling())) {
    return wrong(absl::StrCat("unknown pooling ", static_cast<int>(sequence.pooling())));
  }
  const absl::StatusOr<SampleParams> sampling = SampleParamsOf(sequence.sampling());
  if (!sampling.ok()) return wrong(std::string(sampling.status().message()));
  const absl::Status edits = EditParams::Check(sequence.sampling(), limits_.vocab_size);
  if (!edits.ok()) return wrong(std::string(edits.message()));
  return absl::OkStatus();
}

absl::Status SlotTable::CheckRow(const internal::StepPlan& plan, int row,
                                 absl::Span<const uint32_t> new_blocks) const {
  const uint32_t slot = plan.slot(row);
  const auto wrong = [&](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat("step plan row ", row, " (slot ", slot, "): ", what));
  };
  // The slot as it will be once the plan's new sequences are in.
  bool used;
  uint32_t gen, computed, pooled;
  uint64_t known, blocks;
  internal::Pooling pooling;
  if (const uint32_t entry = new_sequence_[slot]; entry != 0) {
    const internal::NewSequence& sequence = plan.new_sequences(static_cast<int>(entry) - 1);
    used = true;
    gen = sequence.slot_gen();
    computed = sequence.cached_tokens();
    known = static_cast<uint64_t>(sequence.tokens_size());
    blocks = static_cast<uint64_t>(sequence.blocks_size());
    pooling = sequence.pooling();
    pooled = 0;
  } else {
    const Slot& now = slots_[slot];
    used = now.used;
    gen = now.gen;
    computed = now.computed;
    known = now.tokens.size();
    blocks = now.blocks.size();
    pooling = now.pooled.pooling();
    pooled = now.pooled.tokens();
  }
  if (!used) return wrong("no sequence is in it");
  if (gen != plan.slot_gen(row)) {
    return wrong(absl::StrCat("generation ", plan.slot_gen(row), ", it holds ", gen));
  }
  const uint64_t start = plan.start(row), end = start + plan.n_tokens(row);
  if (plan.n_tokens(row) == 0 || end > known) {
    return wrong(absl::StrCat("tokens [", start, ", ", end, ") of the ", known, " known ones"));
  }
  if (start > computed) {
    return wrong(
        absl::StrCat("starts at ", start, ", but only ", computed, " tokens have been computed"));
  }
  for (const uint32_t block : new_blocks) {
    if (block >= cache_blocks_) {
      return wrong(absl::StrCat("block ", block, " of a cache of ", cache_blocks_));
    }
  }
  blocks += new_blocks.size();
  if (blocks > max_blocks_ || blocks * limits_.block_tokens < end) {
    return wrong(absl::StrCat(blocks, " blocks for ", end, " tokens, at most ", max_blocks_));
  }
  const uint32_t flags = plan.flags(row);
  if ((flags & ~kKnownFlags) != 0) return wrong(absl::StrCat("unknown flags ", flags));
  if ((flags & internal::ROW_POOL) != 0) {
    if (flags != internal::ROW_POOL) return wrong("pools, and samples or scores too");
    if (pooling == internal::POOLING_NONE) return wrong("pools, and its sequence does not");
    if (pooling == internal::POOLING_LAST && end != known) {
      return wrong(absl::StrCat("pools token ", end, " as the last of ", known));
    }
    if (pooling == internal::POOLING_MEAN && start != pooled) {
      return wrong(absl::StrCat("pools from token ", start, " on after ", pooled, " tokens"));
    }
  }
  if ((flags & internal::ROW_MASKED) != 0 && (flags & internal::ROW_SAMPLE) == 0) {
    return wrong("has a mask and samples nothing");
  }
  if ((flags & internal::ROW_SAMPLE) != 0) {
    if (end != known) {
      return wrong(absl::StrCat("samples after token ", end, " of ", known, " known ones"));
    }
    if (known == limits_.context_tokens) {
      return wrong(absl::StrCat("samples beyond the context of ", limits_.context_tokens));
    }
    if (pooling != internal::POOLING_NONE) return wrong("samples, and its sequence pools");
  }
  return absl::OkStatus();
}

void SlotTable::ForgetNotes(const internal::StepPlan& plan) {
  for (const internal::NewSequence& sequence : plan.new_sequences()) {
    if (sequence.slot() < limits_.max_slots) new_sequence_[sequence.slot()] = 0;
  }
  for (const uint32_t slot : plan.slot()) {
    if (slot < limits_.max_slots) has_row_[slot] = 0;
  }
}

void SlotTable::Apply(const internal::StepPlan& plan) {
  for (const internal::NewSequence& sequence : plan.new_sequences()) {
    Slot& slot = slots_[sequence.slot()];
    slot.used = true;
    slot.poisoned = false;
    slot.gen = sequence.slot_gen();
    slot.computed = sequence.cached_tokens();
    slot.n_prompt = sequence.n_prompt();
    slot.score_from = std::max<uint32_t>(1, sequence.score_from());
    slot.tokens.assign(sequence.tokens().begin(), sequence.tokens().end());
    slot.blocks.assign(sequence.blocks().begin(), sequence.blocks().end());
    slot.sampling = *SampleParamsOf(sequence.sampling());  // Check has seen it
    slot.edits.Assign(sequence.sampling());
    slot.pooled.Begin(sequence.pooling());
  }
  int next_block = 0;
  for (int row = 0; row < plan.slot_size(); ++row) {
    Slot& slot = slots_[plan.slot(row)];
    for (uint32_t i = 0; i < plan.n_new_blocks(row); ++i) {
      slot.blocks.push_back(plan.new_blocks(next_block++));
    }
    slot.computed = std::max(slot.computed, plan.start(row) + plan.n_tokens(row));
  }
}

}  // namespace bitshard
