// For which sizes of a step a graph is captured: a step runs in the smallest that holds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace bitshard {

class DeviceBuckets {
 public:
  // Steps of more tokens run without a graph: there the launches cost little against the work.
  static constexpr int64_t kMostTokens = 256;

  // `max_tokens` of a step, `max_rows`: sequences in it; `context`: positions.
  DeviceBuckets(int64_t max_tokens, int64_t max_rows, int64_t context);

  // 1, 2, 4, 8, 16, 24 ... 64, 96 ... 256: up to one that holds a token of every row.
  const std::vector<int64_t>& tokens() const { return tokens_; }
  // 1024, 4096 ... : multiples of attention's chunk, the last holds the whole context.
  const std::vector<int64_t>& contexts() const { return contexts_; }

  // Index in tokens(); nothing: too many.
  std::optional<size_t> TokensFor(int64_t tokens) const;
  // Index in contexts(). REQUIRES: no position of the step is at or beyond the context.
  size_t ContextFor(int64_t positions) const;

 private:
  std::vector<int64_t> tokens_, contexts_;
};

}  // namespace bitshard
