// A request's edits of the logits as a slot keeps them: the plain form of what
// internal::SamplingParams says of them. Counts are not kept: they follow from the slot's history.
//
// Owned by the step thread. Assign allocates nothing after Reserve.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "proto/plan.pb.h"
#include "worker/sample/logit_edits.h"

namespace bitshard {

class EditParams {
 public:
  static constexpr int kMaxBiases = 1024;
  static constexpr int kMaxEndTokens = 1024;

  void Reserve(uint32_t vocab_size);
  // What it reserves.
  static uint64_t Bytes(uint32_t vocab_size);
  // INVALID_ARGUMENT names the field that is out of its range and the range.
  static absl::Status Check(const internal::SamplingParams& proto, uint32_t vocab_size);

  // REQUIRES: Check(proto) is OK.
  void Assign(const internal::SamplingParams& proto);

  // Whether these edits change anything about the token after `outputs` ones.
  bool ApplyAfter(size_t outputs) const { return always_ || outputs < min_tokens_; }
  // The edits of that token. `history` is the sequence so far, `mask` the row's own or empty;
  // both are viewed.
  LogitEdits Edits(absl::Span<const int32_t> history, size_t n_prompt,
                   absl::string_view mask) const;

 private:
  bool always_ = false;
  float repetition_ = 1, frequency_ = 0, presence_ = 0;
  uint32_t min_tokens_ = 0;
  std::vector<TokenBias> biases_;
  std::string allowed_;  // a token mask, or empty
  std::vector<uint32_t> end_tokens_;
};

}  // namespace bitshard
