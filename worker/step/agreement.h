// The small all-gather of every step: do all ranks run the same plan, and did they sample the same
// tokens?
//
// Two rounds. Before the computation the plans are compared, so that ranks never enter collectives
// of different sizes; after it the tokens, before any result leaves. A mismatch is INTERNAL on
// every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
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

uint64_t HashPlan(const internal::StepPlan& plan);

class Agreement {
 public:
  explicit Agreement(int world) : all_(static_cast<size_t>(world)) {}

  absl::Status ComparePlans(Collective& collective, const internal::StepPlan& plan);
  absl::Status CompareTokens(Collective& collective, const internal::StepPlan& plan,
                             absl::Span<const uint32_t> tokens);

 private:
  struct Word {
    uint64_t epoch, step, plan_hash, token_hash;
    friend bool operator==(const Word&, const Word&) = default;
  };
  absl::Status Compare(Collective& collective, const Word& mine);

  std::vector<Word> all_;  // by rank
  uint64_t plan_hash_ = 0;
};

}  // namespace bitshard
