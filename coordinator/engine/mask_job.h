// The mask of a constrained sequence's next token, computed where nobody waits for it.
//
// Following a grammar over a large vocabulary may take milliseconds, so it is not the engine
// thread's work: a job goes out after each committed token of a constrained sequence, and the
// sequence gets its next sampling row once the result is back. Other sequences go on meanwhile. A
// sequence has at most one job out, and its place in the grammar belongs to that job as long.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "coordinator/grammar/token_matcher.h"
#include "coordinator/schedule/sequence.h"

namespace bitshard {

// How far a sequence is in its grammar.
struct GrammarPlace {
  std::shared_ptr<const CompiledGrammar> grammar;
  bool end_tokens = true;                 // as NewMatcher has it
  std::unique_ptr<TokenMatcher> matcher;  // made by the first job
  std::string tenant;                     // among whom the threads are shared
  absl::Duration used;                    // processor time of its jobs so far
  std::atomic<bool> gone = false;         // the sequence has ended: its job may as well
};

struct MaskJob {
  SequenceId id = 0;
  uint32_t output_index = 0;            // of the output that the mask is for
  std::shared_ptr<GrammarPlace> place;  // shared: the sequence may end while the job is out
  std::vector<int32_t> tokens;          // committed since the last job
  bool resumed = false;                 // these are what the caller brought along
};

struct MaskResult {
  SequenceId id = 0;
  uint32_t output_index = 0;
  // INTERNAL, INVALID_ARGUMENT, FAILED_PRECONDITION or RESOURCE_EXHAUSTED: the request's end.
  absl::Status status;
  bool ended = false;  // the text is complete and nothing may follow
  std::string mask;
};

// Of processor time, which is nobody's fault to have spent on a busy machine. What takes longer
// ends its request.
struct MaskTimeLimits {
  absl::Duration one = absl::Seconds(2);
  // All of a sequence's until its output i: begin + i * each.
  absl::Duration begin = absl::Seconds(10);
  absl::Duration each = absl::Milliseconds(10);

  absl::Duration Until(uint32_t output_index) const { return begin + output_index * each; }
  // Of this job alone. A resumed one follows many tokens, but computes one mask.
  absl::Duration accept = absl::Microseconds(100);  // of a token
  absl::Duration Of(const MaskJob& job) const {
    return job.resumed ? one + job.output_index * accept : one;
  }
};

// CANCELLED as soon as the sequence is gone.
MaskResult RunMaskJob(const MaskJob& job, const MaskTimeLimits& limits = {});

// What ends the request when its mask is not there after `time`.
absl::Status MaskTooSlowError(uint32_t output_index, absl::Duration time);

class MaskRunner {
 public:
  virtual ~MaskRunner() = default;
  // Its result goes to EngineCore::MaskDone, later, on the engine thread.
  virtual void Run(MaskJob job) = 0;
};

}  // namespace bitshard
