// What the engine tells about itself, one method an event. coordinator/metrics.cc turns them into
// Prometheus series; here is no Prometheus.
//
// Received and Rejected are called on the callers' threads, the rest on the engine thread:
// implementations are thread-safe and return at once. For each accepted request: Ended exactly
// once.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "coordinator/engine/engine_stats.h"

namespace bitshard {

enum class RejectReason {
  kQueueFull,
  kQueueTokens,
  kPromptTooLong,
  kKvImpossible,
  kDraining,
  kGroupDown,
  kBadRequest,
  kDeadline,
  kDuplicateId,
};
inline constexpr RejectReason kAllRejectReasons[] = {
    RejectReason::kQueueFull,    RejectReason::kQueueTokens, RejectReason::kPromptTooLong,
    RejectReason::kKvImpossible, RejectReason::kDraining,    RejectReason::kGroupDown,
    RejectReason::kBadRequest,   RejectReason::kDeadline,    RejectReason::kDuplicateId,
};

// Why an accepted request ended; the label finished_reason.
enum class EndReason { kStop, kLength, kCancelled, kDeadline, kError, kWorkerLost, kShutdown };
inline constexpr EndReason kAllEndReasons[] = {
    EndReason::kStop,  EndReason::kLength,     EndReason::kCancelled, EndReason::kDeadline,
    EndReason::kError, EndReason::kWorkerLost, EndReason::kShutdown,
};

// What a step had in it; the label kind. kIdle: an empty step that only shows that every rank is
// alive.
enum class StepKind { kPrefill, kDecode, kMixed, kIdle };
inline constexpr StepKind kAllStepKinds[] = {StepKind::kPrefill, StepKind::kDecode,
                                             StepKind::kMixed, StepKind::kIdle};

// Label values: "queue_full", "worker_lost", "decode" ...
absl::string_view Name(RejectReason reason);
absl::string_view Name(EndReason reason);
absl::string_view Name(StepKind kind);
absl::string_view Name(EngineStats::GroupState state);

// A request at its end. The three phases follow each other without a gap: their sum is the time
// since `received`.
struct RequestSummary {
  EndReason reason = EndReason::kError;
  absl::StatusCode code = absl::StatusCode::kOk;
  uint32_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0, max_tokens = 0,
           preemptions = 0;
  absl::Duration queue;    // received -> in a step's plan for the first time
  absl::Duration prefill;  // -> first token committed
  absl::Duration decode;   // -> end
};

struct StepSummary {
  StepKind kind = StepKind::kIdle;
  uint32_t tokens = 0;  // positions computed
  uint32_t rows = 0;
  absl::Duration execution;   // on rank 0, waiting for the other ranks included
  absl::Duration round_trip;  // plan handed to the executor -> result at the engine
};

class EngineMetrics {
 public:
  virtual ~EngineMetrics() = default;
  virtual void Received() = 0;
  virtual void Rejected(RejectReason reason) = 0;
  virtual void FirstToken(absl::Duration since_received) = 0;
  virtual void InterToken(absl::Duration gap) = 0;
  virtual void PromptTokens(uint32_t tokens, uint32_t cached_tokens) = 0;  // with the first token
  virtual void GeneratedTokens(uint32_t tokens) = 0;
  virtual void Preempted(uint32_t requests) = 0;
  virtual void Ended(const RequestSummary& summary) = 0;
  virtual void StepEnded(const StepSummary& summary) = 0;
  virtual void ScheduleTime(absl::Duration time) = 0;  // choosing and writing one plan
  // After each step and each change of the group's state. Engine::Stats() gives the same at any
  // time: gauges are better read from there when a scrape comes.
  virtual void Gauges(const EngineStats& stats) = 0;
};

class NullEngineMetrics : public EngineMetrics {
 public:
  void Received() override {}
  void Rejected(RejectReason) override {}
  void FirstToken(absl::Duration) override {}
  void InterToken(absl::Duration) override {}
  void PromptTokens(uint32_t, uint32_t) override {}
  void GeneratedTokens(uint32_t) override {}
  void Preempted(uint32_t) override {}
  void Ended(const RequestSummary&) override {}
  void StepEnded(const StepSummary&) override {}
  void ScheduleTime(absl::Duration) override {}
  void Gauges(const EngineStats&) override {}
};

}  // namespace bitshard
