// What a step has to do, in the three measures that its time depends on.
#pragma once

#include <cstdint>
#include <functional>

namespace bitshard {

struct StepLoad {
  uint32_t prefill_tokens = 0;  // of rows that are no decodes
  uint32_t decode_rows = 0;     // one token each, then a sample
  uint64_t context_tokens = 0;  // cached positions that are read, summed over all tokens

  // What a row of tokens [start, start + n_tokens) reads.
  static uint64_t ContextOf(uint64_t start, uint64_t n_tokens) {
    return n_tokens * start + n_tokens * (n_tokens + 1) / 2;
  }
};

// At most how many tokens, from `start` on, a sequence may compute in a step that holds `load`
// already; 0 = none.
using PrefillLimit = std::function<uint32_t(const StepLoad& load, uint32_t start)>;

}  // namespace bitshard
