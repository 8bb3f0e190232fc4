#include "coordinator/engine/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "proto/status_details.h"
#include "proto/token_mask.h"

namespace bitshard {
namespace {

constexpr uint32_t kMaxTopLogprobs = 20;
// The plan's bound of a request's end tokens; half of them for the caller's.
constexpr size_t kMaxEndTokens = 1024;

bool Positive(float x) { return x > 0 && std::isfinite(x); }

std::optional<absl::Status> JudgeEdits(const GenerateRequest& request, uint32_t vocab_size) {
  if (!Positive(request.repetition_penalty))
    return BadFieldError("repetition_penalty", "must be a finite number above 0");
  if (!std::isfinite(request.frequency_penalty))
    return BadFieldError("frequency_penalty", "must be a finite number");
  if (!std::isfinite(request.presence_penalty))
    return BadFieldError("presence_penalty", "must be a finite number");
  if (request.logit_bias.size() > kMaxBiases)
    return BadFieldError("logit_bias", absl::StrCat("must have at most ", kMaxBiases, " tokens"));
  const uint32_t end = vocab_size > 0 ? vocab_size : std::numeric_limits<uint32_t>::max();
  for (size_t i = 0; i < request.logit_bias.size(); ++i) {
    const auto& [token, bias] = request.logit_bias[i];
    const bool ascends = i == 0 || token > request.logit_bias[i - 1].first;
    if (token >= end || !ascends || !std::isfinite(bias)) {
      return BadFieldError("logit_bias", absl::StrCat("token ", token,
                                                      " must be in the vocabulary, after the ones "
                                                      "before it, and have a finite bias"));
    }
  }
  if (vocab_size > 0 && !request.allowed_tokens.empty() &&
      request.allowed_tokens.size() != TokenMaskBytes(vocab_size)) {
    return BadFieldError("allowed_token_ids", "must be a mask of the whole vocabulary");
  }
  if (request.min_tokens > request.max_tokens)
    return BadFieldError("min_tokens", "must be at most max_tokens");
  if (request.stop_token_ids.size() > kMaxEndTokens / 2) {
    return BadFieldError("stop_token_ids",
                         absl::StrCat("must be at most ", kMaxEndTokens / 2, " ids"));
  }
  return std::nullopt;
}

}  // namespace

// Written so that NaN is refused.
std::optional<absl::Status> JudgeSampling(const GenerateRequest& request, uint32_t vocab_size) {
  if (!(request.temperature >= 0) || std::isinf(request.temperature)) {
    return BadFieldError("temperature", "must be 0 (greedy) or a finite number above");
  }
  if (!(request.top_p >= 0 && request.top_p <= 1)) {
    return BadFieldError("top_p", "must be between 0 and 1 (all)");
  }
  if (!(request.min_p >= 0 && request.min_p <= 1)) {
    return BadFieldError("min_p", "must be between 0 (all) and 1");
  }
  if (request.top_logprobs > kMaxTopLogprobs) {
    return BadFieldError("top_logprobs", absl::StrCat("must be at most ", kMaxTopLogprobs));
  }
  return JudgeEdits(request, vocab_size);
}

internal::SamplingParams SamplingOf(const GenerateRequest& request, const Tokenizer& tokenizer,
                                    uint32_t vocab_size) {
  internal::SamplingParams out;
  out.set_temperature(request.temperature);
  out.set_top_k(request.top_k);
  out.set_top_p(request.top_p);
  out.set_min_p(request.min_p);
  out.set_seed(request.seed);
  out.set_logprobs(request.logprobs);
  out.set_top_logprobs(request.logprobs || request.score_from ? request.top_logprobs : 0);
  if (request.repetition_penalty != 1) out.set_repetition_penalty(request.repetition_penalty);
  out.set_frequency_penalty(request.frequency_penalty);
  out.set_presence_penalty(request.presence_penalty);
  for (const auto& [token, bias] : request.logit_bias) {
    out.add_bias_tokens(token);
    out.add_biases(bias);
  }
  out.set_allowed(request.allowed_tokens);
  if (request.min_tokens == 0) return out;
  out.set_min_tokens(request.min_tokens);
  for (const int32_t token : EndTokensOf(request, tokenizer)) {
    const uint32_t id = static_cast<uint32_t>(token);
    if ((vocab_size > 0 && id >= vocab_size) || token < 0) continue;      // never drawn
    if (out.end_tokens_size() == static_cast<int>(kMaxEndTokens)) break;  // no model has so many
    out.add_end_tokens(id);
  }
  return out;
}

uint64_t ChoiceSeed(uint64_t seed, uint32_t choice) { return seed + choice * 0x9E3779B97F4A7C15; }

std::vector<int32_t> EndTokensOf(const GenerateRequest& request, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids = request.stop_token_ids;
  if (!request.ignore_eos)
    ids.insert(ids.end(), tokenizer.eos_ids().begin(), tokenizer.eos_ids().end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

std::vector<std::string> ForbiddingFields(const GenerateRequest& request, uint32_t output_index) {
  std::vector<std::string> fields;
  if (request.grammar != nullptr) fields.push_back("constraint");
  if (!request.allowed_tokens.empty()) {
    // The mask is of both lists: few tokens allowed is the one, few banned the other.
    size_t allowed = 0;
    for (const char byte : request.allowed_tokens)
      allowed += std::popcount(static_cast<uint8_t>(byte));
    const bool few = allowed <= request.allowed_tokens.size() * 4;
    fields.push_back(few ? "sampling.allowed_token_ids" : "sampling.banned_token_ids");
  }
  if (output_index < request.min_tokens) fields.push_back("stop.min_tokens");
  return fields;
}

}  // namespace bitshard
