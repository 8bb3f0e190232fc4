// What a request asks to be done to the logits before they are scaled: penalties, biases, masks.
//
// All of it is a function of one token at a time, so a rank edits its own rows and the result does
// not depend on the cut. Order, in f32, for the logit x of a token that occurs n times in the
// output:
//   repetition  in prompt or output: x = x > 0 ? x / repetition : x * repetition
//   frequency   n > 0: x = x - frequency * n
//   presence    n > 0: x = x - presence
//   bias        x = x + bias
//   masks       -infinity unless `allowed` and `mask` have the token and `forbidden` has not
// After each step but the last x is held within the finite numbers, so -infinity means a masked
// token and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace bitshard {

struct TokenBias {
  uint32_t token = 0;
  float bias = 0;
};

// Views of one row's edits. Tokens are below the vocabulary size.
struct LogitEdits {
  float repetition = 1;  // > 0
  float frequency = 0, presence = 0;
  absl::Span<const int32_t> prompt, output;  // the sequence so far
  absl::Span<const TokenBias> biases;        // by token, ascending
  absl::string_view allowed, mask;           // token masks (proto/token_mask.h); empty = all
  absl::Span<const uint32_t> forbidden;
};

// out[i] = the edited logit of token begin + i, from raw[i]. `begin` is a multiple of 32. `counts`
// has `count` entries, all 0, and is left so. REQUIRES: raw is finite.
void EditLogits(const LogitEdits& edits, const float* raw, uint32_t begin, size_t count,
                uint32_t* counts, float* out);

}  // namespace bitshard
