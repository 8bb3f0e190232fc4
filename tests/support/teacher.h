// Teacher forcing over a ThreadGroup: the logits that the model gives at every position of a known
// text.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "tests/support/thread_group.h"

namespace bitshard {

// Collects the ranks' vocabulary slices. Give `Tap()` to ThreadGroup::Options; one sequence (slot
// 0) at a time.
class LogitsRecorder {
 public:
  explicit LogitsRecorder(uint64_t vocab_size) : vocab_size_(vocab_size) {}

  std::function<void(int, uint64_t, uint32_t, uint32_t, absl::Span<const float>)> Tap();
  void Clear();
  // Raw logits at `position` [vocab_size]; empty when that position had no output.
  absl::Span<const float> At(uint32_t position) const;
  // Natural-log probabilities of the row at `position`, in double.
  std::vector<double> LogProbs(uint32_t position) const;

 private:
  const uint64_t vocab_size_;
  std::mutex mu_;
  std::vector<std::vector<float>> rows_;  // by position
};

enum class Outputs { kLast, kAll };

// Runs `tokens` as one sequence in a fresh epoch, in chunks of at most `chunk` tokens.
absl::Status TeacherForce(ThreadGroup& group, absl::Span<const int32_t> tokens, uint32_t chunk,
                          Outputs outputs);

// Greedy continuation of `tokens` by `count` tokens, one row a step, the end tokens not special.
absl::StatusOr<std::vector<int32_t>> GreedyContinue(ThreadGroup& group,
                                                    absl::Span<const int32_t> tokens,
                                                    uint32_t count);

}  // namespace bitshard
