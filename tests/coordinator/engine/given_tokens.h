// What tests of requests that generate nothing have in common: a small group, and a text that takes
// it some steps.
#pragma once

#include <string>

#include "tests/support/fake_executor.h"

namespace bitshard {

inline FakeExecutor::Options Group(uint32_t blocks, uint32_t slots = 8,
                                   uint32_t step_tokens = 256) {
  FakeExecutor::Options options;
  options.group.cache_blocks = blocks;
  options.group.max_slots = slots;
  options.group.max_step_tokens = step_tokens;
  return options;
}

inline const std::string kText = "forty-two letters are enough for some steps.";

}  // namespace bitshard
