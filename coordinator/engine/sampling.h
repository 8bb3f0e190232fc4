// A request's sampling parameters: judged at admission, and in the words of a plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "coordinator/engine/engine.h"
#include "coordinator/text/tokenizer.h"
#include "proto/plan.pb.h"

namespace bitshard {

// INVALID_ARGUMENT naming the field, for whatever workers would refuse: one plan carries many
// requests, and they refuse it whole. `vocab_size` 0: ids are not checked.
std::optional<absl::Status> JudgeSampling(const GenerateRequest& request, uint32_t vocab_size);

// REQUIRES: JudgeSampling has nothing against it.
internal::SamplingParams SamplingOf(const GenerateRequest& request, const Tokenizer& tokenizer,
                                    uint32_t vocab_size);

// The seed that a request's choice is drawn with; the first one's is the request's own. Callers
// know the rule (Started.choice_seeds).
uint64_t ChoiceSeed(uint64_t seed, uint32_t choice);

// The ids that end the request, once min_tokens allows it; ascending.
std::vector<int32_t> EndTokensOf(const GenerateRequest& request, const Tokenizer& tokenizer);

// The fields of the request that forbid tokens as output `output_index`.
std::vector<std::string> ForbiddingFields(const GenerateRequest& request, uint32_t output_index);

}  // namespace bitshard
