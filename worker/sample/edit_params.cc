#include "worker/sample/edit_params.h"

#include <cmath>

#include "absl/strings/str_cat.h"

#include "proto/token_mask.h"

namespace bitshard {
namespace {

template <typename T>
absl::Status Bad(const char* field, T value, const std::string& allowed) {
  return absl::InvalidArgumentError(
      absl::StrCat("sampling: ", field, " is ", value, "; allowed: ", allowed));
}

}  // namespace

void EditParams::Reserve(uint32_t vocab_size) {
  biases_.reserve(kMaxBiases);
  allowed_.reserve(TokenMaskBytes(vocab_size));
  end_tokens_.reserve(kMaxEndTokens);
}

uint64_t EditParams::Bytes(uint32_t vocab_size) {
  return kMaxBiases * sizeof(TokenBias) + TokenMaskBytes(vocab_size) +
         kMaxEndTokens * sizeof(uint32_t);
}

absl::Status EditParams::Check(const internal::SamplingParams& p, uint32_t vocab_size) {
  // Written so that NaN is refused.
  if (!(p.repetition_penalty() >= 0) || std::isinf(p.repetition_penalty()))
    return Bad("repetition_penalty", p.repetition_penalty(), "0 (none) and above");
  if (!std::isfinite(p.frequency_penalty()))
    return Bad("frequency_penalty", p.frequency_penalty(), "finite numbers");
  if (!std::isfinite(p.presence_penalty()))
    return Bad("presence_penalty", p.presence_penalty(), "finite numbers");
  if (p.bias_tokens_size() != p.biases_size() || p.biases_size() > kMaxBiases) {
    return Bad("biases", absl::StrCat(p.biases_size(), " numbers for ", p.bias_tokens_size()),
               absl::StrCat("one a token, at most ", kMaxBiases));
  }
  for (int i = 0; i < p.biases_size(); ++i) {
    if (p.bias_tokens(i) >= vocab_size || (i > 0 && p.bias_tokens(i) <= p.bias_tokens(i - 1))) {
      return Bad("bias_tokens", p.bias_tokens(i), absl::StrCat("ascending ids below ", vocab_size));
    }
    if (!std::isfinite(p.biases(i))) return Bad("biases", p.biases(i), "finite numbers");
  }
  if (!p.allowed().empty() && p.allowed().size() != TokenMaskBytes(vocab_size)) {
    return Bad("allowed", absl::StrCat(p.allowed().size(), " bytes"),
               absl::StrCat("none, or ", TokenMaskBytes(vocab_size)));
  }
  if (p.end_tokens_size() > kMaxEndTokens) {
    return Bad("end_tokens", absl::StrCat(p.end_tokens_size(), " ids"),
               absl::StrCat("at most ", kMaxEndTokens));
  }
  for (const uint32_t token : p.end_tokens()) {
    if (token >= vocab_size)
      return Bad("end_tokens", token, absl::StrCat("ids below ", vocab_size));
  }
  return absl::OkStatus();
}

void EditParams::Assign(const internal::SamplingParams& p) {
  repetition_ = p.repetition_penalty() > 0 ? p.repetition_penalty() : 1;
  frequency_ = p.frequency_penalty();
  presence_ = p.presence_penalty();
  biases_.clear();
  for (int i = 0; i < p.biases_size(); ++i) biases_.push_back({p.bias_tokens(i), p.biases(i)});
  allowed_.assign(p.allowed());
  min_tokens_ = p.min_tokens();
  end_tokens_.assign(p.end_tokens().begin(), p.end_tokens().end());
  if (end_tokens_.empty()) min_tokens_ = 0;
  always_ = repetition_ != 1 || frequency_ != 0 || presence_ != 0 || !biases_.empty() ||
            !allowed_.empty();
}

LogitEdits EditParams::Edits(absl::Span<const int32_t> history, size_t n_prompt,
                             absl::string_view mask) const {
  LogitEdits edits;
  edits.repetition = repetition_;
  edits.frequency = frequency_;
  edits.presence = presence_;
  edits.prompt = history.first(n_prompt);
  edits.output = history.subspan(n_prompt);
  edits.biases = biases_;
  edits.allowed = allowed_;
  edits.mask = mask;
  if (edits.output.size() < min_tokens_) edits.forbidden = end_tokens_;
  return edits;
}

}  // namespace bitshard
