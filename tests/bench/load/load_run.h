// Calls on a service, begun when they are due, and what became of each.
//
// Open loop: moments are drawn beforehand, as from callers who know nothing of each other
// (Poisson), and kept whatever becomes of the calls. Closed loop: so many at once, each followed by
// the next. Or all at once.
//
// One thread begins calls (Run's caller); their ends come in on the face's threads.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace bitshard {

struct LoadCall {
  std::vector<uint32_t> prompt;
  uint32_t output_tokens = 1;
  // Goes before all others and stands in their way until it is cancelled.
  bool blocker = false;
};

// Times are in seconds of one monotonic clock (LoadNow).
struct LoadRecord {
  double due_s = 0;    // when it was to begin
  double sent_s = 0;   // of the last attempt
  double first_s = 0;  // its first token; 0 = none came
  double end_s = 0;
  uint32_t tokens = 0;
  uint32_t attempts = 0;
  absl::StatusCode code = absl::StatusCode::kUnknown;
  std::string message;                 // of an error
  std::optional<int64_t> pushback_ms;  // when a refusal says to come back
  uint64_t digest = 0;                 // of the answer
};

double LoadNow();

// FNV-1a over an answer's pieces: equal answers have equal digests, however they are cut.
class AnswerDigest {
 public:
  void Add(std::string_view bytes);
  void Add(uint32_t token);
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 14695981039346656037u;
};

// A protocol in which calls are made.
class LoadFace {
 public:
  virtual ~LoadFace() = default;
  // Begins a call and returns at once. When it is over the record has all but due_s, sent_s and
  // attempts, and `ended` is called, on any thread. `call` and `record` live until then.
  virtual void Start(const LoadCall& call, LoadRecord* record, std::function<void()> ended) = 0;
};

class LoadRun {
 public:
  struct Options {
    double rate = 0;       // calls a second, open loop; 0 = no such loop
    uint32_t at_once = 0;  // closed loop; 0 with rate 0: all at once
    uint64_t seed = 1;     // of the moments
    // Who is refused and told when to come back does so; otherwise the refusal is the call's end.
    bool come_back = false;
    std::function<void()> all_begun;  // called on Run's thread; may be empty
  };

  // `face` outlives this object; Run may be called once.
  LoadRun(Options options, LoadFace* face, std::vector<LoadCall> calls);

  // Makes all calls and waits for their ends; a record each, in their order.
  std::vector<LoadRecord> Run();

 private:
  using Due = std::pair<double, size_t>;  // when, which call

  void Schedule(double at, size_t index);
  void Ended(size_t index);
  // Waits for the next one that is due; nullopt when all have ended.
  std::optional<size_t> Next();

  const Options options_;
  LoadFace* const face_;
  const std::vector<LoadCall> calls_;
  std::vector<LoadRecord> records_;

  std::mutex mu_;
  std::condition_variable changed_;
  // Guarded by mu_.
  std::vector<Due> due_;    // a heap, the earliest first
  size_t unscheduled_ = 0;  // the first call of a closed loop that has no moment yet
  size_t begun_ = 0;        // calls with at least one attempt
  size_t ended_ = 0;
};

}  // namespace bitshard
