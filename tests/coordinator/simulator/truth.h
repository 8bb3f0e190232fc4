// The model that the simulated workers compute, small enough to know its answers without running
// anything.
//
// A digest stands for the KV of a position: it covers everything that KV depends on, that is who
// may share it (the identity: caller and salt) and all tokens up to there. The next token is a
// function of the last digest alone (greedy), or of it and the seed. So each request has one right
// answer, whatever else happens: ExpectedOf works it out from the request alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "coordinator/engine/engine.h"
#include "tests/coordinator/simulator/random.h"
#include "tests/support/byte_tokenizer.h"

namespace bitshard::sim {

inline constexpr uint32_t kVocab = kByteTokenizerVocab;

// Workers are not told who may share what; it travels as top_k, so that they can tell when KV went
// to somebody who must not have it. Requests of the last identity meet logits that are not finite.
inline constexpr uint32_t kIdentities = 8, kSickIdentity = 7;
inline uint32_t TopKOf(uint32_t identity) { return identity + 1; }
inline uint32_t IdentityOf(uint32_t top_k) { return top_k - 1; }
std::string CallerOf(uint32_t identity);
std::string SaltOf(uint32_t identity);

inline uint64_t RootDigest(uint32_t identity) { return Mix(0xD1CE + identity); }
inline uint64_t Extend(uint64_t digest, uint32_t token) {
  return Mix(digest + 0x9E3779B97F4A7C15u * (token + 1)) | 1;  // never 0: that is an empty cell
}
inline bool NonFinite(uint64_t digest, uint32_t identity) {
  return identity == kSickIdentity && Mix(digest) % 20 == 0;
}
// The log-probability of `token` after what `digest` stands for.
inline float LogprobOf(uint64_t digest, uint32_t token) {
  return -static_cast<float>(Mix(digest ^ (uint64_t{token} << 32)) % 4096) / 256;
}

// What a further token adds to the mean of a prompt; the vector that comes of it, or of the last.
inline uint64_t Pool(uint64_t pooled, uint64_t digest) { return Mix(pooled * 3 + digest); }
inline float VectorOf(uint64_t pooled) { return static_cast<float>(Mix(pooled) >> 40); }

// The token after `digest`: the wanted one, or the next that `allowed` allows; nullopt when none.
// `key`: the seed, 0 when greedy.
template <typename Allowed>
std::optional<uint32_t> Draw(uint64_t digest, uint64_t key, const Allowed& allowed) {
  const uint64_t hash = Mix(digest ^ Mix(key));
  // Few letters, so that stop strings and constraints meet them.
  const uint32_t wanted =
      hash % 48 == 0 ? uint32_t{kByteTokenizerEos} : 'a' + static_cast<uint32_t>(hash / 64 % 4);
  for (uint32_t i = 0; i < kVocab; ++i) {
    const uint32_t token = (wanted + i) % kVocab;
    if (allowed(token)) return token;
  }
  return std::nullopt;
}

// What an undisturbed run gives.
struct Expected {
  absl::StatusCode code = absl::StatusCode::kOk;
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;  // one a token
  std::string text;
  std::optional<FinishReason> finish_reason;
  std::string matched_stop;
  std::optional<int32_t> matched_token;
  std::vector<float> scores;     // of the prompt's tokens from max(1, score_from) on
  std::vector<float> embedding;  // with pooling
};
// `seed`: of the choice that is asked for.
Expected ExpectedOf(const GenerateRequest& request, uint64_t seed);

}  // namespace bitshard::sim
