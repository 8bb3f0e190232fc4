// The small all-gather of every step: do all ranks run the same plan, and did they sample the same
// tokens?
//
// Before the computation the plans are compared, so that ranks never enter collectives of different
// sizes; after it the tokens, before any result leaves. Who has the next plan by then names it,
// too: where all do, that step needs no round of its own. A mismatch is INTERNAL on every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "proto/plan.pb.h"
#include "worker/collective/collective.h"

namespace bitshard {

// 64 bits over words, the same in every process and build. Not cryptographic: ranks trust each
// other.
class StableHash {
 public:
  void Add(uint64_t word) {
    state_ = (state_ ^ word) * 0x9e3779b97f4a7c15u;
    state_ ^= state_ >> 32;
  }
  void Add(absl::Span<const uint32_t> words) {
    Add(words.size());
    for (const uint32_t word : words) Add(word);
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0x6269747368617264u;
};

// Never 0.
uint64_t HashPlan(const internal::StepPlan& plan);

class Agreement {
 public:
  explicit Agreement(int world) : all_(static_cast<size_t>(world)) {}

  // `hash`: HashPlan of the plan.
  absl::Status ComparePlans(Collective& collective, const internal::StepPlan& plan, uint64_t hash);
  // Of the step whose plan was compared last. `next_hash`: of the next plan, 0 when this rank does
  // not know it. True: all ranks know it, and it counts as compared. The same on all ranks.
  absl::StatusOr<bool> CompareTokens(Collective& collective, const internal::StepPlan& plan,
                                     absl::Span<const uint32_t> tokens, uint64_t next_hash);

 private:
  struct Word {
    uint64_t epoch, step, plan_hash, token_hash;
    friend bool operator==(const Word&, const Word&) = default;
  };
  struct Told {
    Word word;           // the same on all ranks, or they disagree
    uint64_t next_hash;  // may be 0 on some
  };
  absl::Status Compare(Collective& collective, const Told& told);

  std::vector<Told> all_;  // by rank
  uint64_t plan_hash_ = 0;
};

}  // namespace bitshard
