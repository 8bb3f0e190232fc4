// One request as the scheduler sees it: `computed` chasing `known` tokens. There is no prefill and
// no decode phase; a fresh request has many known tokens and none computed, a decoding one lacks
// exactly the last.
//
// Owned by Scheduler, engine thread. Counts are in tokens unless the name says blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/schedule/block_pool.h"
#include "coordinator/schedule/prefix_cache.h"
#include "coordinator/schedule/service_level.h"
#include "kernels/base/checked_math.h"
#include "proto/plan.pb.h"

namespace bitshard {

// Given out in order of arrival.
using SequenceId = uint64_t;

struct FairAccount;  // fair_queue.cc

struct SlotRef {
  uint32_t slot = 0;
  uint32_t gen = 0;  // which of the sequences that have been in the slot
  friend bool operator==(const SlotRef&, const SlotRef&) = default;
};

// What the engine asks for.
struct SequenceSpec {
  SequenceId id = 0;
  // Of one of several choices: the id of the first one. Together they count as one request.
  std::optional<SequenceId> first_choice = {};
  int32_t priority = 0;          // lower first
  bool batch = false;            // after everything that is not
  std::string tenant;            // shares the service with the others of its level
  std::vector<uint32_t> prompt;  // not empty
  // Outputs that a resumed request brings along, fewer than max_tokens: it goes on after them.
  std::vector<uint32_t> outputs;
  uint32_t max_tokens = 0;  // outputs; 0: nothing is sampled
  internal::SamplingParams sampling;
  // All that KV must have in common with this one's to be shared, besides the tokens: the model's
  // fingerprint, the caller's salt.
  std::string cache_seed;
  // The prompt's tokens from this one on are scored; with max_tokens 0 that is all.
  std::optional<uint32_t> score_from;
  // The prompt becomes a vector; then nothing is sampled or scored.
  internal::Pooling pooling = internal::POOLING_NONE;
  // Every output is drawn under a token mask that depends on the ones before it (SetMask).
  bool constrained = false;
};

// What a sequence counts for in the sums over its level and over all (scheduler_load.cc).
struct LoadShare {
  // 0 or 1.
  uint32_t running = 0, again = 0;
  // Running ones: given; of these, such that no plan computes yet; outputs planned.
  uint64_t prompt_tokens = 0, uncomputed_tokens = 0, output_tokens = 0;
  uint64_t further_tokens = 0;  // of prompt_tokens, those of choices after their request's first
  uint64_t again_tokens = 0;    // known ones of those that wait again
  uint64_t owed_blocks = 0;     // Scheduler::OwedBlocks of running ones
  friend bool operator==(const LoadShare&, const LoadShare&) = default;
};

// Of a level that has sequences.
struct LevelSums {
  LoadShare sum;
  uint32_t sequences = 0;
};

struct Sequence {
  explicit Sequence(SequenceSpec spec)
      : id(spec.id),
        first_choice(spec.first_choice),
        level{spec.batch, spec.priority},
        tenant(std::move(spec.tenant)),
        n_prompt(static_cast<uint32_t>(spec.prompt.size())),
        n_given(n_prompt + static_cast<uint32_t>(spec.outputs.size())),
        // A place for an output that never comes keeps the counts below alike.
        max_tokens(std::max<uint32_t>(1, spec.max_tokens)),
        samples(spec.max_tokens > 0),
        scores(spec.score_from.has_value()),
        pooling(spec.pooling),
        constrained(spec.constrained),
        sampling(std::move(spec.sampling)),
        cache_seed(std::move(spec.cache_seed)),
        tokens(std::move(spec.prompt)),
        next_score(std::max<uint32_t>(1, spec.score_from.value_or(1))) {
    tokens.insert(tokens.end(), spec.outputs.begin(), spec.outputs.end());
  }

  const SequenceId id;
  const std::optional<SequenceId> first_choice;
  const ServiceLevel level;
  const std::string tenant;
  const uint32_t n_prompt;
  const uint32_t n_given;  // n_prompt and the outputs that came with the request
  const uint32_t max_tokens;
  const bool samples;
  const bool scores;  // tokens of its prompt
  const internal::Pooling pooling;
  const bool constrained;
  const internal::SamplingParams sampling;
  const std::string cache_seed;

  std::vector<uint32_t> tokens;  // prompt and committed outputs; only Commit appends
  uint32_t next_score = 1;       // with `scores`: the first token whose score is not committed yet
  uint32_t computed = 0;         // leading tokens whose KV the plans written so far produce
  uint32_t in_flight = 0;        // outputs that those plans sample and that are not committed yet
  std::string mask;  // with `constrained`: of the output after the committed ones, if known
  std::vector<BlockId> blocks;  // just enough for `computed`; empty while waiting
  std::optional<SlotRef> slot;  // set while running
  // Of `blocks`, the leading ones that the prefix cache knows the tokens of, and where the last of
  // them is there.
  uint32_t indexed_blocks = 0;
  std::optional<PrefixCache::Place> cache_place;
  uint32_t preemptions = 0;
  bool has_run = false;  // has been in a plan before

  // Scheduler's: its level's sums, and what they hold of it; the schedule that it last had a row
  // in.
  LevelSums* level_sums = nullptr;
  LoadShare share;
  uint64_t last_schedule = 0;

  // FairQueue's: who pays, and what has been paid for.
  FairAccount* account = nullptr;
  uint32_t charged_prompt = 0, charged_outputs = 0;

  // Committed outputs, those that came with the request included.
  uint32_t outputs() const { return static_cast<uint32_t>(tokens.size()) - n_prompt; }
  // Tokens that exist once the plans written so far have run. Workers feed the ones in flight back
  // by themselves.
  uint32_t known() const { return static_cast<uint32_t>(tokens.size()) + in_flight; }
  // The next output cannot be drawn yet: its mask is not known.
  bool awaits_mask() const { return constrained && (in_flight > 0 || mask.empty()); }
  // Tokens that a plan could compute now. The last output is never computed: nothing is sampled
  // after it. Nor is the last token as long as what comes after it cannot be drawn.
  uint32_t pending() const {
    if (outputs() + in_flight >= max_tokens) return 0;
    const uint32_t lacking = known() - computed;
    return awaits_mask() && lacking > 0 ? lacking - 1 : lacking;
  }

  // Leading tokens that need not be computed if somebody else did. What is sampled or scored next
  // needs the token before it in a step; and something must be pending for who enters.
  uint32_t cacheable() const {
    if (pooling == internal::POOLING_MEAN) return 0;  // every token's hidden state is needed
    const uint32_t kept_back = awaits_mask() ? 2 : 1;
    const uint32_t last = std::max(static_cast<uint32_t>(tokens.size()), kept_back) - kept_back;
    return scores_left() ? std::min(last, next_score - 1) : last;
  }
  // Some of its scores are not committed. Who samples nothing ends with the last of them, and so
  // has some left until then, be they none.
  bool scores_left() const { return scores && (!samples || next_score < n_prompt); }

  // Blocks for the tokens known now, and for all that may ever be computed.
  uint32_t known_blocks(uint32_t block_tokens) const {
    return static_cast<uint32_t>(CeilDiv(known(), block_tokens));
  }
  uint64_t most_blocks(uint32_t block_tokens) const {
    return CeilDiv(uint64_t{n_prompt} + max_tokens - 1, block_tokens);
  }
};

// The order of those that run: by level, then who came first. Who enters is FairQueue's affair.
struct ServedBefore {
  bool operator()(const Sequence* a, const Sequence* b) const {
    return a->level != b->level ? a->level < b->level : a->id < b->id;
  }
};

}  // namespace bitshard
