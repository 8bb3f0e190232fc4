#include "tests/coordinator/simulator/cache_model.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

#include "kernels/base/status_macros.h"
#include "proto/token_mask.h"
#include "tests/coordinator/simulator/truth.h"

namespace bitshard::sim {
namespace {

template <typename... Args>
absl::Status Wrong(const Args&... args) {
  return absl::InternalError(absl::StrCat(args...));
}

}  // namespace

CacheModel::CacheModel(const Shape& shape, absl::Span<const uint32_t> bad_blocks)
    : shape_(shape),
      slots_(shape.max_slots),
      cells_(size_t{shape.blocks} * shape.block_tokens),
      writers_(shape.blocks),
      bad_(shape.blocks),
      met_(shape.blocks) {
  for (const uint32_t block : bad_blocks) {
    if (block < shape.blocks) bad_[block] = true;
  }
}

absl::StatusOr<std::unique_ptr<internal::StepResult>> CacheModel::Run(
    const internal::StepPlan& plan) {
  if (plan.term() != shape_.term || plan.epoch() != shape_.epoch)
    return Wrong("a plan of term ", plan.term(), " epoch ", plan.epoch(), " in term ", shape_.term,
                 " epoch ", shape_.epoch);
  if (plan.step() != last_step_ + 1) return Wrong("step ", plan.step(), " after ", last_step_);
  last_step_ = plan.step();
  for (const internal::NewSequence& sequence : plan.new_sequences())
    RETURN_IF_ERROR(Enter(sequence));
  RETURN_IF_ERROR(ReadRows(plan));
  for (const Row& row : rows_) RETURN_IF_ERROR(MarkWritten(row, plan.step()));
  for (Row& row : rows_) RETURN_IF_ERROR(CheckReads(row, plan.step()));

  auto result = std::make_unique<internal::StepResult>();
  result->set_term(plan.term());
  result->set_epoch(plan.epoch());
  result->set_step(plan.step());
  for (Row& row : rows_) {
    Write(row);
    const bool embeds =
        (row.flags & internal::ROW_POOL) != 0 && row.end == row.slot->history.size();
    if ((row.flags & internal::ROW_SCORE) != 0) Score(row, result.get());
    if (embeds) Embed(row, result.get());
    if ((row.flags & internal::ROW_SAMPLE) != 0) {
      RETURN_IF_ERROR(Sample(row, result.get()));
    } else if (!row.finite && (row.flags & internal::ROW_SCORE) == 0 && !embeds) {
      internal::StepOutput& output = *result->add_outputs();
      output.set_slot(row.index);
      output.set_slot_gen(row.slot->gen);
      output.set_flags(internal::OUTPUT_NON_FINITE);
    }
  }
  return result;
}

absl::Status CacheModel::Enter(const internal::NewSequence& sequence) {
  if (sequence.slot() >= slots_.size())
    return Wrong("slot ", sequence.slot(), " of ", slots_.size());
  Slot& slot = slots_[sequence.slot()];
  if (sequence.slot_gen() <= slot.gen)
    return Wrong("slot ", sequence.slot(), " goes from generation ", slot.gen, " to ",
                 sequence.slot_gen());
  const uint32_t n_tokens = static_cast<uint32_t>(sequence.tokens_size());
  if (sequence.n_prompt() == 0 || sequence.n_prompt() > n_tokens ||
      sequence.cached_tokens() >= n_tokens)
    return Wrong("a sequence of ", n_tokens, " tokens enters with a prompt of ",
                 sequence.n_prompt(), " and ", sequence.cached_tokens(), " cached");
  const internal::SamplingParams& sampling = sequence.sampling();
  slot.used = true;
  slot.gen = sequence.slot_gen();
  slot.n_prompt = sequence.n_prompt();
  slot.computed = sequence.cached_tokens();
  slot.score_from = std::max(1u, sequence.score_from());
  slot.seed = sampling.seed();
  slot.key = sampling.temperature() > 0 ? sampling.seed() : 0;
  slot.identity = IdentityOf(sampling.top_k());
  slot.min_tokens = sampling.min_tokens();
  slot.pooling = sequence.pooling();
  slot.pooled = 0;
  slot.end_tokens.assign(sampling.end_tokens().begin(), sampling.end_tokens().end());
  slot.history.clear();
  slot.digests.clear();
  slot.blocks.clear();
  for (const uint32_t token : sequence.tokens()) {
    if (token >= kVocab) return Wrong("token ", token, " of ", kVocab);
    Append(slot, token);
  }
  return TakeBlocks(slot, absl::MakeConstSpan(sequence.blocks().data(),
                                              static_cast<size_t>(sequence.blocks_size())));
}

absl::Status CacheModel::TakeBlocks(Slot& slot, absl::Span<const uint32_t> blocks) {
  for (const uint32_t block : blocks) {
    if (block >= shape_.blocks) return Wrong("block ", block, " of ", shape_.blocks);
    if (absl::c_linear_search(slot.blocks, block))
      return Wrong("block ", block, " twice in the table of the sequence with seed ", slot.seed);
    slot.blocks.push_back(block);
  }
  return absl::OkStatus();
}

absl::Status CacheModel::ReadRows(const internal::StepPlan& plan) {
  const int n_rows = plan.slot_size();
  if (plan.slot_gen_size() != n_rows || plan.start_size() != n_rows ||
      plan.n_tokens_size() != n_rows || plan.output_index_size() != n_rows ||
      plan.flags_size() != n_rows || plan.n_new_blocks_size() != n_rows)
    return Wrong("the rows' arrays differ in length");
  rows_.clear();
  absl::Span<const uint32_t> new_blocks(plan.new_blocks().data(),
                                        static_cast<size_t>(plan.new_blocks_size()));
  int masks = 0, entering_rows = 0;
  uint64_t tokens = 0;
  for (int i = 0; i < n_rows; ++i) {
    Row row;
    row.index = plan.slot(i);
    if (row.index >= slots_.size() || !slots_[row.index].used)
      return Wrong("row ", i, " is for slot ", row.index, ", which holds nothing");
    row.slot = &slots_[row.index];
    if (row.slot->gen != plan.slot_gen(i))
      return Wrong("row ", i, " is for generation ", plan.slot_gen(i), " of slot ", row.index,
                   ", which holds ", row.slot->gen);
    for (const Row& other : rows_) {
      if (other.index == row.index) return Wrong("slot ", row.index, " has two rows");
    }
    row.start = plan.start(i);
    row.end = row.start + plan.n_tokens(i);
    row.output_index = plan.output_index(i);
    row.flags = plan.flags(i);
    if ((row.flags & internal::ROW_MASKED) != 0) {
      if (masks == plan.masks_size()) return Wrong("row ", i, " has no mask");
      row.mask = &plan.masks(masks++);
    }
    if (plan.n_new_blocks(i) > new_blocks.size()) return Wrong("row ", i, " lacks new blocks");
    RETURN_IF_ERROR(TakeBlocks(*row.slot, new_blocks.first(plan.n_new_blocks(i))));
    new_blocks.remove_prefix(plan.n_new_blocks(i));
    RETURN_IF_ERROR(CheckRow(row));
    for (const internal::NewSequence& sequence : plan.new_sequences())
      entering_rows += sequence.slot() == row.index;
    tokens += plan.n_tokens(i);
    rows_.push_back(row);
  }
  if (tokens > shape_.max_step_tokens)
    return Wrong(tokens, " tokens in a step of at most ", shape_.max_step_tokens);
  if (!new_blocks.empty() || masks != plan.masks_size())
    return Wrong("new blocks or masks that no row takes");
  if (entering_rows != plan.new_sequences_size()) return Wrong("a sequence enters without a row");
  return absl::OkStatus();
}

absl::Status CacheModel::CheckRow(const Row& row) const {
  const Slot& slot = *row.slot;
  if (row.start != slot.computed || row.end <= row.start || row.end > slot.history.size())
    return Wrong("row [", row.start, ", ", row.end, ") of slot ", row.index, " with ",
                 slot.computed, " computed of ", slot.history.size());
  if (uint64_t{row.end} > slot.blocks.size() * uint64_t{shape_.block_tokens})
    return Wrong("slot ", row.index, " has ", slot.blocks.size(), " blocks for ", row.end,
                 " tokens");
  if (row.mask != nullptr &&
      ((row.flags & internal::ROW_SAMPLE) == 0 || row.mask->size() != TokenMaskBytes(kVocab)))
    return Wrong("slot ", row.index, " has a mask of ", row.mask->size(), " bytes, flags ",
                 row.flags);
  const bool pools = (row.flags & internal::ROW_POOL) != 0;
  const bool last = row.end == slot.history.size();
  if (pools ? row.flags != uint32_t{internal::ROW_POOL} || slot.pooling == internal::POOLING_NONE ||
                  (slot.pooling == internal::POOLING_LAST && !last)
            : slot.pooling == internal::POOLING_MEAN ||
                  (slot.pooling == internal::POOLING_LAST && last))
    return Wrong("slot ", row.index, " with pooling ", slot.pooling, " has a row that ends at ",
                 row.end, " of ", slot.history.size(), ", flags ", row.flags);
  if (slot.pooling == internal::POOLING_MEAN && row.start == 0 && slot.pooled != 0)
    return Wrong("slot ", row.index, " pools its first token twice");
  return absl::OkStatus();
}

absl::Status CacheModel::MarkWritten(const Row& row, uint64_t step) {
  for (uint32_t i = row.start / shape_.block_tokens; i <= (row.end - 1) / shape_.block_tokens;
       ++i) {
    Writer& writer = writers_[row.slot->blocks[i]];
    if (writer.step == step)
      return Wrong("slots ", writer.slot, " and ", row.index, " both write block ",
                   row.slot->blocks[i], " in step ", step);
    writer = {step, row.index};
  }
  return absl::OkStatus();
}

absl::Status CacheModel::CheckReads(Row& row, uint64_t step) const {
  const Slot& slot = *row.slot;
  for (uint32_t i = 0; i < row.start; ++i) {
    const uint32_t block = slot.blocks[i / shape_.block_tokens];
    const Writer& writer = writers_[block];
    if (writer.step == step && writer.slot != row.index)
      return Wrong("slot ", row.index, " reads block ", block, ", which slot ", writer.slot,
                   " writes in the same step ", step);
    const Cell& cell = CellAt(slot, i);
    if (cell.digest != slot.digests[i]) {
      const std::string held =
          cell.digest == 0 ? std::string("nothing")
                           : absl::StrCat("position ", cell.position, " of seed ", cell.seed);
      return Wrong("step ", step, ": slot ", row.index, " (seed ", slot.seed,
                   ") looks for its position ", i, " in block ", block, " and finds ", held);
    }
    if (!cell.finite) row.finite = false;
  }
  return absl::OkStatus();
}

void CacheModel::Write(Row& row) {
  Slot& slot = *row.slot;
  for (uint32_t i = row.start; i < row.end; ++i) {
    const uint32_t block = slot.blocks[i / shape_.block_tokens];
    if (bad_[block]) {
      if (!met_[block]) ++bad_blocks_met_;
      met_[block] = true;
      bad_writers_.insert(slot.seed);
    }
    if (bad_[block] || NonFinite(slot.digests[i], slot.identity)) row.finite = false;
    CellAt(slot, i) = {slot.digests[i], slot.seed, i, row.finite};
    if ((row.flags & internal::ROW_POOL) != 0) slot.pooled = Pool(slot.pooled, slot.digests[i]);
  }
  slot.computed = row.end;
}

void CacheModel::Score(const Row& row, internal::StepResult* result) const {
  const Slot& slot = *row.slot;
  internal::StepScores& scores = *result->add_scores();
  scores.set_slot(row.index);
  scores.set_slot_gen(slot.gen);
  const uint32_t first = std::max(row.start + 1, slot.score_from);
  scores.set_first(first);
  if (!row.finite) {
    scores.set_flags(internal::OUTPUT_NON_FINITE);
    return;
  }
  const uint32_t end = std::min(row.end + 1, static_cast<uint32_t>(slot.history.size()));
  for (uint32_t place = first; place < end; ++place)
    scores.add_logprob(LogprobOf(slot.digests[place - 1], slot.history[place]));
}

void CacheModel::Embed(const Row& row, internal::StepResult* result) const {
  const Slot& slot = *row.slot;
  internal::StepEmbedding& embedding = *result->add_embeddings();
  embedding.set_slot(row.index);
  embedding.set_slot_gen(slot.gen);
  if (row.finite) {
    embedding.add_values(
        VectorOf(slot.pooling == internal::POOLING_MEAN ? slot.pooled : slot.digests.back()));
  } else {
    embedding.set_flags(internal::OUTPUT_NON_FINITE);
  }
}

absl::Status CacheModel::Sample(const Row& row, internal::StepResult* result) {
  Slot& slot = *row.slot;
  const uint32_t outputs = static_cast<uint32_t>(slot.history.size()) - slot.n_prompt;
  if (row.end != slot.history.size())
    return Wrong("slot ", row.index, " samples in the middle of its tokens");
  if (row.output_index != outputs)
    return Wrong("slot ", row.index, " samples output ", row.output_index, " after ", outputs);
  internal::StepOutput& output = *result->add_outputs();
  output.set_slot(row.index);
  output.set_slot_gen(slot.gen);
  output.set_output_index(row.output_index);
  const uint64_t digest = slot.digests.back();
  std::optional<uint32_t> token;
  if (!row.finite) {
    output.set_flags(internal::OUTPUT_NON_FINITE);
  } else {
    token = Draw(digest, slot.key, [&](uint32_t candidate) {
      if (outputs < slot.min_tokens && absl::c_linear_search(slot.end_tokens, candidate))
        return false;
      return row.mask == nullptr || MaskAllows(*row.mask, candidate);
    });
    if (!token.has_value()) output.set_flags(internal::OUTPUT_NO_TOKEN_ALLOWED);
  }
  output.set_token(token.value_or(0));
  output.set_logprob(token.has_value() ? LogprobOf(digest, *token) : 0);
  Append(slot, token.value_or(0));
  return absl::OkStatus();
}

void CacheModel::Append(Slot& slot, uint32_t token) {
  const uint64_t last = slot.digests.empty() ? RootDigest(slot.identity) : slot.digests.back();
  slot.digests.push_back(Extend(last, token));
  slot.history.push_back(token);
}

}  // namespace bitshard::sim
