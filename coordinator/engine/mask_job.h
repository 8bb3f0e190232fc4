// The mask of a constrained sequence's next token, computed where nobody waits for it.
//
// Following a grammar over a large vocabulary may take milliseconds, so it is not the engine
// thread's work: a job goes out after each committed token of a constrained sequence, and the
// sequence gets its next sampling row once the result is back. Other sequences go on meanwhile. A
// sequence has at most one job out, and its place in the grammar belongs to that job as long.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "coordinator/grammar/token_matcher.h"
#include "coordinator/schedule/sequence.h"

namespace bitshard {

// How far a sequence is in its grammar.
struct GrammarPlace {
  std::shared_ptr<const CompiledGrammar> grammar;
  bool end_tokens = true;                 // as NewMatcher has it
  std::unique_ptr<TokenMatcher> matcher;  // made by the first job
};

struct MaskJob {
  SequenceId id = 0;
  uint32_t output_index = 0;            // of the output that the mask is for
  std::shared_ptr<GrammarPlace> place;  // shared: the sequence may end while the job is out
  std::vector<int32_t> tokens;          // committed since the last job
};

struct MaskResult {
  SequenceId id = 0;
  uint32_t output_index = 0;
  absl::Status status;  // INTERNAL, FAILED_PRECONDITION or RESOURCE_EXHAUSTED: the request's end
  bool ended = false;   // the text is complete and nothing may follow
  std::string mask;
};

// Of processor time. A mask that takes longer ends its request: the next ones would too.
inline constexpr absl::Duration kMaxMaskTime = absl::Seconds(2);

MaskResult RunMaskJob(const MaskJob& job);

class MaskRunner {
 public:
  virtual ~MaskRunner() = default;
  // Its result goes to EngineCore::MaskDone, later, on the engine thread.
  virtual void Run(MaskJob job) = 0;
};

// On a few threads, made with the first job.
class MaskThreads final : public MaskRunner {
 public:
  // `done` is called on these threads.
  MaskThreads(int threads, std::function<void(MaskResult)> done);
  ~MaskThreads() override;  // jobs that wait are dropped

  void Run(MaskJob job) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Loop();

  const int max_threads_;
  const std::function<void(MaskResult)> done_;
  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<MaskJob> queue_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;  // of the thread that calls Run
};

}  // namespace bitshard
