#include "tests/coordinator/simulator/truth.h"

#include <algorithm>
#include <memory>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"

#include "coordinator/grammar/token_matcher.h"
#include "proto/token_mask.h"

namespace bitshard::sim {
namespace {

constexpr uint32_t kCallers = 3;

class Answer {
 public:
  Answer(const GenerateRequest& request, uint64_t seed)
      : request_(request),
        key_(request.temperature > 0 ? seed : 0),
        identity_(IdentityOf(request.top_k)),
        digest_(RootDigest(identity_)) {
    if (request.grammar != nullptr)
      matcher_ = request.grammar->NewMatcher(/*end_tokens=*/!request.ignore_eos);
  }

  Expected Find() && {
    if (!Read()) return Ended(absl::StatusCode::kInternal);
    if (request_.pooling != internal::POOLING_NONE) {
      expected_.embedding = {
          VectorOf(request_.pooling == internal::POOLING_MEAN ? pooled_ : digest_)};
    }
    if (request_.max_tokens == 0) {
      expected_.finish_reason = FinishReason::kLength;
      return std::move(expected_);
    }
    while (true) {
      const std::optional<uint32_t> token = Next();
      if (!token.has_value()) return Ended(absl::StatusCode::kInternal);
      expected_.logprobs.push_back(LogprobOf(digest_, *token));
      expected_.tokens.push_back(static_cast<int32_t>(*token));
      if (Push(*token)) return std::move(expected_);
      // Only now does somebody compute it.
      digest_ = Extend(digest_, *token);
      if (NonFinite(digest_, identity_)) return Ended(absl::StatusCode::kInternal);
    }
  }

 private:
  // The prompt; false when its logits are not finite.
  bool Read() {
    const uint32_t first = std::max<uint32_t>(1, request_.score_from.value_or(1));
    for (uint32_t i = 0; i < request_.prompt_tokens.size(); ++i) {
      const uint32_t token = static_cast<uint32_t>(request_.prompt_tokens[i]);
      if (request_.score_from.has_value() && i >= first)
        expected_.scores.push_back(LogprobOf(digest_, token));
      digest_ = Extend(digest_, token);
      pooled_ = Pool(pooled_, digest_);
      if (NonFinite(digest_, identity_)) return false;
    }
    return true;
  }

  std::optional<uint32_t> Next() {
    const size_t output = expected_.tokens.size();
    std::string mask;
    if (matcher_ != nullptr) matcher_->FillMask(&mask);
    return Draw(digest_, key_, [&](uint32_t token) {
      if (output < request_.min_tokens && IsEnd(token)) return false;
      return mask.empty() || MaskAllows(mask, token);
    });
  }

  bool IsEnd(uint32_t token) const {
    return (token == uint32_t{kByteTokenizerEos} && !request_.ignore_eos) ||
           absl::c_linear_search(request_.stop_token_ids, static_cast<int32_t>(token));
  }

  // True when the request ends with this token.
  bool Push(uint32_t token) {
    const size_t pushed = expected_.tokens.size();
    const bool may_end = pushed > request_.min_tokens;
    if (may_end && IsEnd(token)) {
      expected_.finish_reason = FinishReason::kStop;
      expected_.matched_token = static_cast<int32_t>(token);
      return true;
    }
    if (token < 256) expected_.text += static_cast<char>(token);
    if (!may_end) searched_from_ = expected_.text.size();
    for (const std::string& stop : request_.stop) {
      if (!may_end || expected_.text.size() - searched_from_ < stop.size() ||
          !absl::EndsWith(expected_.text, stop))
        continue;
      expected_.finish_reason = FinishReason::kStop;
      expected_.matched_stop = stop;
      if (!request_.include_stop) expected_.text.resize(expected_.text.size() - stop.size());
      return true;
    }
    if (pushed == request_.max_tokens) {
      expected_.finish_reason = FinishReason::kLength;
      return true;
    }
    if (matcher_ == nullptr) return false;
    std::string mask;
    matcher_->AcceptToken(static_cast<int32_t>(token));
    if (matcher_->FillMask(&mask)) return false;
    expected_.finish_reason = FinishReason::kStop;
    return true;
  }

  Expected Ended(absl::StatusCode code) {
    expected_.code = code;
    return std::move(expected_);
  }

  const GenerateRequest& request_;
  const uint64_t key_;
  const uint32_t identity_;
  uint64_t digest_, pooled_ = 0;
  size_t searched_from_ = 0;
  std::unique_ptr<TokenMatcher> matcher_;
  Expected expected_;
};

}  // namespace

std::string CallerOf(uint32_t identity) {
  return identity == kSickIdentity ? "a" : std::string(identity % kCallers, 'a');
}

std::string SaltOf(uint32_t identity) {
  return identity == kSickIdentity ? "sick" : std::string(identity / kCallers, 's');
}

Expected ExpectedOf(const GenerateRequest& request, uint64_t seed) {
  return Answer(request, seed).Find();
}

}  // namespace bitshard::sim
