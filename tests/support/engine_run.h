// Requests through the real engine over a ThreadGroup, and all that came out of them, ready to be
// compared bit for bit.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "coordinator/engine/engine.h"
#include "tests/support/thread_group.h"

namespace bitshard {

struct Transcript {
  absl::Status status;
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;
  std::vector<TokenLogprobs> scores;  // of the prompt, where asked for
  std::vector<float> embedding;       // where asked for
  std::string text;
  uint32_t cached_tokens = 0;  // of the prompt; no part of the bits

  // Tokens, text and the bit patterns of every reported log-probability and value.
  bool SameBits(const Transcript& other) const;
  std::string DebugString() const;
};

struct EngineRunOptions {
  uint32_t concurrent = 1;  // requests that are in the engine at once
  uint32_t token_budget = 256;
  uint32_t prefill_chunk =
      0;  // at most so many prompt tokens of one sequence a step; 0 = no limit but the budget
  uint32_t async_depth = 2;
  bool prefix_cache = true;
  // The stream of a request of one choice is broken off each time so many tokens have come, and the
  // request is resumed; 0 = never.
  uint32_t break_every = 0;
  uint32_t* breaks = nullptr;    // out: how often that happened
  EngineStats* stats = nullptr;  // out: after the last request
};

// One transcript a choice, those of the first request first. The group's epoch is started afresh.
absl::StatusOr<std::vector<Transcript>> RunThroughEngine(
    TestModel& model, ThreadGroup& group, const std::vector<GenerateRequest>& requests,
    const EngineRunOptions& options);

}  // namespace bitshard
