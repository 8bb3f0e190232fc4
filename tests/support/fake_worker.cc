#include "tests/support/fake_worker.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/base/status_macros.h"
#include "proto/token_mask.h"

namespace bitshard {
namespace {

constexpr uint64_t kEmptyCell = 0;
constexpr uint64_t kStartDigest = 0x9E3779B97F4A7C15u;

// One round of SplitMix64: cheap, and every bit of the input moves every bit of the output.
uint64_t Mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9u;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

uint64_t Extend(uint64_t digest, uint32_t token) {
  const uint64_t next = Mix(digest + token + 1);
  return next == kEmptyCell ? 1 : next;
}

template <typename... Args>
absl::Status Bad(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat("fake worker: ", args...));
}

}  // namespace

FakeWorker::NextToken FakeWorker::HashedNextToken(uint32_t vocab_size) {
  return
      [vocab_size](absl::Span<const uint32_t> history, const internal::SamplingParams& sampling) {
        uint64_t digest = Mix(kStartDigest ^ sampling.seed());
        for (uint32_t token : history) digest = Extend(digest, token);
        return static_cast<uint32_t>(digest % vocab_size);
      };
}

FakeWorker::FakeWorker(Options options) : options_(std::move(options)) {
  if (options_.next_token == nullptr) options_.next_token = HashedNextToken(options_.vocab_size);
}

void FakeWorker::StartEpoch(const GroupInfo& info) {
  info_ = info;
  last_step_ = 0;
  slots_.assign(info.max_slots, Slot());
  cache_.assign(size_t{info.cache_blocks} * info.block_tokens, kEmptyCell);
}

absl::StatusOr<std::unique_ptr<internal::StepResult>> FakeWorker::Run(
    const internal::StepPlan& plan) {
  if (plan.term() != info_.term || plan.epoch() != info_.epoch) {
    return absl::FailedPreconditionError(absl::StrCat("fake worker: plan of term ", plan.term(),
                                                      " epoch ", plan.epoch(), ", mine are ",
                                                      info_.term, " and ", info_.epoch));
  }
  if (plan.step() != last_step_ + 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("fake worker: step ", plan.step(), " after step ", last_step_));
  }
  last_step_ = plan.step();
  ++steps_;
  const int n_rows = plan.slot_size();
  if (options_.require_rows && n_rows == 0) return Bad("a plan without rows");
  if (plan.slot_gen_size() != n_rows || plan.start_size() != n_rows ||
      plan.n_tokens_size() != n_rows || plan.output_index_size() != n_rows ||
      plan.flags_size() != n_rows || plan.n_new_blocks_size() != n_rows) {
    return Bad("the rows' arrays differ in length");
  }

  std::set<uint32_t> entering;
  for (const internal::NewSequence& sequence : plan.new_sequences()) {
    if (!entering.insert(sequence.slot()).second)
      return Bad("two sequences enter slot ", sequence.slot());
    RETURN_IF_ERROR(Enter(sequence));
  }

  auto result = std::make_unique<internal::StepResult>();
  result->set_term(plan.term());
  result->set_epoch(plan.epoch());
  result->set_step(plan.step());
  result->set_exec_us(1);
  std::set<uint32_t> seen_slots;
  uint64_t total_tokens = 0;
  size_t next_block = 0;
  int next_mask = 0;
  std::vector<Row> rows;
  for (int i = 0; i < n_rows; ++i) {
    const size_t n_blocks = plan.n_new_blocks(i);
    const absl::Span<const uint32_t> all_blocks(plan.new_blocks().data(), plan.new_blocks_size());
    if (n_blocks > all_blocks.size() - next_block)
      return Bad("row ", i, " wants more blocks than the plan brings");
    Row row{plan.slot(i),
            plan.slot_gen(i),
            plan.start(i),
            plan.n_tokens(i),
            plan.output_index(i),
            plan.flags(i),
            all_blocks.subspan(next_block, n_blocks)};
    if ((row.flags & internal::ROW_MASKED) != 0) {
      if (next_mask == plan.masks_size()) return Bad("row ", i, " has no mask");
      row.mask = &plan.masks(next_mask++);
    }
    next_block += n_blocks;
    if (!seen_slots.insert(row.slot).second) return Bad("slot ", row.slot, " has two rows");
    total_tokens += row.n_tokens;
    if (total_tokens > info_.max_step_tokens)
      return Bad("more than ", info_.max_step_tokens, " tokens in a step");
    rows.push_back(row);
  }
  // All read before any writes: within a step nobody may count on another's row.
  for (const Row& row : rows) RETURN_IF_ERROR(CheckReads(row));
  for (const Row& row : rows) RETURN_IF_ERROR(RunRow(row, result.get()));
  if (next_mask != plan.masks_size()) return Bad("masks that no row takes");
  if (next_block != static_cast<size_t>(plan.new_blocks_size()))
    return Bad("new_blocks that no row takes");
  for (uint32_t slot : entering) {
    if (!seen_slots.contains(slot)) return Bad("a sequence enters slot ", slot, " but has no row");
  }
  largest_step_tokens_ = std::max(largest_step_tokens_, static_cast<uint32_t>(total_tokens));
  return result;
}

absl::Status FakeWorker::Enter(const internal::NewSequence& sequence) {
  if (sequence.slot() >= slots_.size()) return Bad("slot ", sequence.slot(), " of ", slots_.size());
  Slot& slot = slots_[sequence.slot()];
  if (sequence.slot_gen() <= slot.gen) {
    return Bad("slot ", sequence.slot(), " goes from generation ", slot.gen, " to ",
               sequence.slot_gen());
  }
  const uint32_t n_tokens = static_cast<uint32_t>(sequence.tokens_size());
  if (sequence.n_prompt() == 0 || sequence.n_prompt() > n_tokens) {
    return Bad("prompt of ", sequence.n_prompt(), " among ", n_tokens, " tokens");
  }
  if (sequence.cached_tokens() >= n_tokens) return Bad("nothing is left to compute");
  slot = Slot();
  slot.gen = sequence.slot_gen();
  slot.live = true;
  slot.n_prompt = sequence.n_prompt();
  slot.computed = sequence.cached_tokens();
  slot.sampling = sequence.sampling();
  slot.score_from = std::max(1u, sequence.score_from());
  slot.pooling = sequence.pooling();
  for (uint32_t token : sequence.tokens()) {
    if (token >= options_.vocab_size) return Bad("token ", token, " of ", options_.vocab_size);
    Append(slot, token);
  }
  return TakeBlocks(slot, sequence.blocks());
}

absl::Status FakeWorker::TakeBlocks(Slot& slot, absl::Span<const uint32_t> blocks) {
  for (uint32_t block : blocks) {
    if (block >= info_.cache_blocks) return Bad("block ", block, " of ", info_.cache_blocks);
    if (std::find(slot.blocks.begin(), slot.blocks.end(), block) != slot.blocks.end()) {
      return Bad("block ", block, " twice in one table");
    }
    slot.blocks.push_back(block);
  }
  return absl::OkStatus();
}

absl::Status FakeWorker::CheckReads(const Row& row) {
  if (row.slot >= slots_.size() || !slots_[row.slot].live)
    return Bad("row for slot ", row.slot, ", which is empty");
  Slot& slot = slots_[row.slot];
  if (slot.gen != row.slot_gen) {
    return Bad("row for generation ", row.slot_gen, " of slot ", row.slot, ", which holds ",
               slot.gen);
  }
  if (row.n_tokens == 0 || row.start != slot.computed ||
      row.n_tokens > slot.history.size() - row.start) {
    return Bad("row [", row.start, ", +", row.n_tokens, ") of slot ", row.slot, " with ",
               slot.computed, " computed of ", slot.history.size());
  }
  if ((row.flags & ~uint32_t{internal::ROW_SAMPLE | internal::ROW_SCORE | internal::ROW_MASKED |
                             internal::ROW_POOL}) != 0)
    return Bad("flags ", row.flags);
  if ((row.flags & internal::ROW_POOL) != 0) RETURN_IF_ERROR(CheckPooling(row, slot));
  if (row.mask != nullptr && ((row.flags & internal::ROW_SAMPLE) == 0 ||
                              row.mask->size() != TokenMaskBytes(options_.vocab_size))) {
    return Bad("a mask of ", row.mask->size(), " bytes with flags ", row.flags);
  }
  if (uint64_t{row.start} > uint64_t{slot.blocks.size()} * info_.block_tokens) {
    return Bad("slot ", row.slot, " has ", slot.blocks.size(), " blocks for ", row.start,
               " tokens before its row");
  }
  for (uint32_t i = 0; i < row.start; ++i) {
    if (Cell(slot, i) != slot.digests[i]) {
      return Bad("slot ", row.slot, ": the KV at position ", i, " is not this sequence's (block ",
                 slot.blocks[i / info_.block_tokens], ")");
    }
  }
  return absl::OkStatus();
}

absl::Status FakeWorker::CheckPooling(const Row& row, const Slot& slot) {
  const size_t end = size_t{row.start} + row.n_tokens;
  if (row.flags != internal::ROW_POOL) return Bad("a row that pools and does more");
  if (slot.pooling == internal::POOLING_NONE) return Bad("slot ", row.slot, " pools nothing");
  if (slot.pooling == internal::POOLING_LAST && end != slot.history.size())
    return Bad("slot ", row.slot, " pools its last token before the end");
  if (slot.pooling == internal::POOLING_MEAN && slot.pooled.size() != row.start) {
    return Bad("slot ", row.slot, " pools from ", row.start, " on after ", slot.pooled.size(),
               " tokens");
  }
  return absl::OkStatus();
}

void FakeWorker::Pool(const Row& row, Slot& slot, internal::StepResult* result) const {
  const auto begin = slot.history.begin() + row.start;
  slot.pooled.insert(slot.pooled.end(), begin, begin + row.n_tokens);
  if (row.start + row.n_tokens != slot.history.size()) return;
  internal::StepEmbedding* embedding = result->add_embeddings();
  embedding->set_slot(row.slot);
  embedding->set_slot_gen(row.slot_gen);
  if (options_.non_finite != nullptr && options_.non_finite(slot.history)) {
    embedding->set_flags(internal::OUTPUT_NON_FINITE);
    return;
  }
  // With POOLING_MEAN of what came in, not of the history.
  const bool mean = slot.pooling == internal::POOLING_MEAN;
  for (const float value : EmbeddingOf(mean ? slot.pooled : slot.history, slot.pooling))
    embedding->add_values(value);
}

std::vector<float> FakeWorker::EmbeddingOf(absl::Span<const uint32_t> tokens,
                                           internal::Pooling pooling) {
  const size_t first = pooling == internal::POOLING_MEAN ? 0 : tokens.size() - 1;
  double sum = 0;
  for (size_t i = first; i < tokens.size(); ++i) sum += tokens[i] * static_cast<double>(i + 1);
  return {static_cast<float>(sum), static_cast<float>(tokens.size() - first)};
}

absl::Status FakeWorker::RunRow(const Row& row, internal::StepResult* result) {
  Slot& slot = slots_[row.slot];
  RETURN_IF_ERROR(TakeBlocks(slot, row.new_blocks));
  const uint32_t end = row.start + row.n_tokens;
  if (uint64_t{end} > uint64_t{slot.blocks.size()} * info_.block_tokens) {
    return Bad("slot ", row.slot, " has ", slot.blocks.size(), " blocks for ", end, " tokens");
  }
  for (uint32_t i = row.start; i < end; ++i) Cell(slot, i) = slot.digests[i];
  slot.computed = end;
  computed_tokens_ += row.n_tokens;
  largest_row_tokens_ = std::max(largest_row_tokens_, row.n_tokens);
  if ((row.flags & internal::ROW_SCORE) != 0) Score(row, slot, result->add_scores());
  if ((row.flags & internal::ROW_POOL) != 0) Pool(row, slot, result);
  if ((row.flags & internal::ROW_SAMPLE) == 0) return absl::OkStatus();

  if (end != slot.history.size())
    return Bad("slot ", row.slot, " samples in the middle of its history");
  if (row.output_index != slot.history.size() - slot.n_prompt) {
    return Bad("slot ", row.slot, ": output ", row.output_index, " follows ",
               slot.history.size() - slot.n_prompt);
  }
  internal::StepOutput* output = result->add_outputs();
  output->set_slot(row.slot);
  output->set_slot_gen(row.slot_gen);
  output->set_output_index(row.output_index);
  if (options_.non_finite != nullptr && options_.non_finite(slot.history)) {
    output->set_flags(internal::OUTPUT_NON_FINITE);
    Append(slot, 0);
    return absl::OkStatus();
  }
  uint32_t token = options_.next_token(slot.history, slot.sampling);
  const std::string& allowed = slot.sampling.allowed();
  const auto forbidden = [&](uint32_t t) {
    return (row.mask != nullptr && !MaskAllows(*row.mask, t)) ||
           (allowed.size() == TokenMaskBytes(options_.vocab_size) && !MaskAllows(allowed, t));
  };
  for (uint32_t tries = 0; forbidden(token); ++tries) {
    if (tries == options_.vocab_size) {
      output->set_flags(internal::OUTPUT_NO_TOKEN_ALLOWED);
      Append(slot, 0);
      return absl::OkStatus();
    }
    token = (token + 1) % options_.vocab_size;
  }
  output->set_token(token);
  if (slot.sampling.logprobs()) output->set_logprob(-0.5f);
  for (uint32_t i = 0; i < slot.sampling.top_logprobs(); ++i) {
    internal::TokenLogprob* top = output->add_top();
    top->set_token((token + i) % options_.vocab_size);
    top->set_logprob(-0.5f - static_cast<float>(i));
  }
  Append(slot, token);
  return absl::OkStatus();
}

void FakeWorker::Score(const Row& row, const Slot& slot, internal::StepScores* scores) const {
  scores->set_slot(row.slot);
  scores->set_slot_gen(row.slot_gen);
  const uint32_t first = std::max(row.start + 1, slot.score_from);
  const uint32_t end =
      std::min(row.start + row.n_tokens + 1, static_cast<uint32_t>(slot.history.size()));
  scores->set_first(first);
  for (uint32_t place = first; place < end; ++place) {
    const std::vector<uint32_t> before(slot.history.begin(), slot.history.begin() + place);
    if (options_.non_finite != nullptr && options_.non_finite(before)) {
      scores->clear_logprob();
      scores->clear_top();
      scores->set_flags(internal::OUTPUT_NON_FINITE);
      return;
    }
    scores->add_logprob(ScoreOf(slot.history[place], place));
    for (uint32_t i = 0; i < slot.sampling.top_logprobs(); ++i) {
      internal::TokenLogprob* top = scores->add_top();
      top->set_token(i);
      top->set_logprob(-static_cast<float>(i));
    }
  }
}

void FakeWorker::Append(Slot& slot, uint32_t token) {
  slot.digests.push_back(Extend(slot.digests.empty() ? kStartDigest : slot.digests.back(), token));
  slot.history.push_back(token);
}

uint64_t& FakeWorker::Cell(const Slot& slot, uint32_t position) {
  return cache_[size_t{slot.blocks[position / info_.block_tokens]} * info_.block_tokens +
                position % info_.block_tokens];
}

}  // namespace bitshard
