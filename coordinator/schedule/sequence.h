// One request as the scheduler sees it: `computed` chasing `known` tokens. There is no prefill and
// no decode phase; a fresh request has many known tokens and none computed, a decoding one lacks
// exactly the last.
//
// Owned by Scheduler, engine thread. Counts are in tokens unless the name says blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "coordinator/schedule/block_pool.h"
#include "kernels/base/checked_math.h"
#include "proto/plan.pb.h"

namespace bitshard {

// Given out in order of arrival.
using SequenceId = uint64_t;

struct SlotRef {
  uint32_t slot = 0;
  uint32_t gen = 0;  // which of the sequences that have been in the slot
  friend bool operator==(const SlotRef&, const SlotRef&) = default;
};

// What the engine asks for.
struct SequenceSpec {
  SequenceId id = 0;
  int32_t priority = 0;          // lower first
  std::vector<uint32_t> prompt;  // not empty
  uint32_t max_tokens = 0;       // outputs, at least 1
  internal::SamplingParams sampling;
  // The prompt's tokens from this one on are scored and nothing is sampled; max_tokens does not
  // count.
  std::optional<uint32_t> score_from;
};

struct Sequence {
  explicit Sequence(SequenceSpec spec)
      : id(spec.id),
        priority(spec.priority),
        n_prompt(static_cast<uint32_t>(spec.prompt.size())),
        // A place for an output that never comes keeps the counts below alike.
        max_tokens(spec.score_from.has_value() ? 1 : spec.max_tokens),
        scores(spec.score_from.has_value()),
        sampling(std::move(spec.sampling)),
        tokens(std::move(spec.prompt)),
        next_score(std::max<uint32_t>(1, spec.score_from.value_or(1))) {}

  const SequenceId id;
  const int32_t priority;
  const uint32_t n_prompt;
  const uint32_t max_tokens;
  const bool scores;  // its tokens are scored, nothing is sampled
  const internal::SamplingParams sampling;

  std::vector<uint32_t> tokens;  // prompt and committed outputs; only Commit appends
  uint32_t next_score = 1;       // with `scores`: the first token whose score is not committed yet
  uint32_t computed = 0;         // leading tokens whose KV the plans written so far produce
  uint32_t in_flight = 0;        // outputs that those plans sample and that are not committed yet
  std::vector<BlockId> blocks;   // just enough for `computed`; empty while waiting
  std::optional<SlotRef> slot;   // set while running
  uint32_t preemptions = 0;
  bool has_run = false;  // has been in a plan before

  // Committed outputs.
  uint32_t outputs() const { return static_cast<uint32_t>(tokens.size()) - n_prompt; }
  // Tokens that exist once the plans written so far have run. Workers feed the ones in flight back
  // by themselves.
  uint32_t known() const { return static_cast<uint32_t>(tokens.size()) + in_flight; }
  // Tokens that a plan could compute now. The last output is never computed: nothing is sampled
  // after it.
  uint32_t pending() const { return outputs() + in_flight >= max_tokens ? 0 : known() - computed; }

  // Blocks for the tokens known now, and for all that may ever be computed.
  uint32_t known_blocks(uint32_t block_tokens) const {
    return static_cast<uint32_t>(CeilDiv(known(), block_tokens));
  }
  uint64_t most_blocks(uint32_t block_tokens) const {
    return CeilDiv(uint64_t{n_prompt} + max_tokens - 1, block_tokens);
  }
};

// The order of service: lower priority number first, then who came first.
struct ServedBefore {
  bool operator()(const Sequence* a, const Sequence* b) const {
    return a->priority != b->priority ? a->priority < b->priority : a->id < b->id;
  }
};

}  // namespace bitshard
