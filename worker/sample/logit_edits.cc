#include "worker/sample/logit_edits.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace bitshard {
namespace {

static_assert(std::endian::native == std::endian::little, "masks are read as words");

constexpr float kMost = std::numeric_limits<float>::max();
constexpr float kMasked = -std::numeric_limits<float>::infinity();
constexpr size_t kWordTokens = 32;

float Finite(float x) { return std::clamp(x, -kMost, kMost); }

// What `counts` says of a token: twice its occurrences in the output, and 1 when the prompt has it.
constexpr uint32_t kInPrompt = 1, kOutput = 2;

float Penalized(const LogitEdits& edits, uint32_t noted, float x) {
  if (edits.repetition != 1) x = Finite(x > 0 ? x / edits.repetition : x * edits.repetition);
  const uint32_t n = noted / kOutput;
  if (n == 0) return x;
  x = Finite(x - edits.frequency * static_cast<float>(n));
  return Finite(x - edits.presence);
}

void Penalize(const LogitEdits& edits, uint32_t begin, size_t count, uint32_t* counts, float* out) {
  const bool prompt_too = edits.repetition != 1;
  // Below `begin` it wraps around, and is no local token either.
  const auto local = [&](int32_t token) { return static_cast<uint32_t>(token) - begin; };
  for (const int32_t token : edits.output) {
    if (local(token) < count) counts[local(token)] += kOutput;
  }
  if (prompt_too) {
    for (const int32_t token : edits.prompt) {
      if (local(token) < count) counts[local(token)] |= kInPrompt;
    }
  }
  const auto apply = [&](absl::Span<const int32_t> tokens) {
    for (const int32_t token : tokens) {
      const uint32_t i = local(token);
      if (i >= count || counts[i] == 0) continue;  // another rank's, or done
      out[i] = Penalized(edits, counts[i], out[i]);
      counts[i] = 0;
    }
  };
  apply(edits.output);
  if (prompt_too) apply(edits.prompt);
}

// 32 bits from token `first` on; a mask is a whole number of such words.
uint32_t MaskWord(absl::string_view mask, size_t first) {
  uint32_t word;
  std::memcpy(&word, mask.data() + first / 8, sizeof(word));
  return word;
}

void ApplyMask(absl::string_view mask, uint32_t begin, size_t count, float* out) {
  for (size_t first = 0; first < count; first += kWordTokens) {
    const uint32_t word = MaskWord(mask, begin + first);
    if (word == ~uint32_t{0}) continue;
    float* const x = out + first;
    const size_t n = std::min(kWordTokens, count - first);
    for (size_t i = 0; i < n; ++i) x[i] = (word >> i & 1) != 0 ? x[i] : kMasked;
  }
}

}  // namespace

void EditLogits(const LogitEdits& edits, const float* raw, uint32_t begin, size_t count,
                uint32_t* counts, float* out) {
  std::copy_n(raw, count, out);
  if (edits.repetition != 1 || edits.frequency != 0 || edits.presence != 0) {
    Penalize(edits, begin, count, counts, out);
  }
  const auto first =
      std::lower_bound(edits.biases.begin(), edits.biases.end(), begin,
                       [](const TokenBias& bias, uint32_t token) { return bias.token < token; });
  for (auto it = first; it != edits.biases.end() && it->token - begin < count; ++it) {
    float& x = out[it->token - begin];
    x = Finite(x + it->bias);
  }
  for (const absl::string_view mask : {edits.allowed, edits.mask}) {
    if (!mask.empty()) ApplyMask(mask, begin, count, out);
  }
  for (const uint32_t token : edits.forbidden) {
    if (token - begin < count) out[token - begin] = kMasked;
  }
}

}  // namespace bitshard
