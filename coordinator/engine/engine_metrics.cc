#include "coordinator/engine/engine_metrics.h"

namespace bitshard {

absl::string_view Name(RejectReason reason) {
  switch (reason) {
    case RejectReason::kQueueFull:
      return "queue_full";
    case RejectReason::kQueueTokens:
      return "queue_tokens";
    case RejectReason::kPromptTooLong:
      return "prompt_too_long";
    case RejectReason::kKvImpossible:
      return "kv_impossible";
    case RejectReason::kDraining:
      return "draining";
    case RejectReason::kGroupDown:
      return "group_down";
    case RejectReason::kBadRequest:
      return "bad_request";
    case RejectReason::kDeadline:
      return "deadline";
    case RejectReason::kDuplicateId:
      return "duplicate_id";
  }
  return "unknown";
}

absl::string_view Name(EndReason reason) {
  switch (reason) {
    case EndReason::kStop:
      return "stop";
    case EndReason::kLength:
      return "length";
    case EndReason::kCancelled:
      return "cancelled";
    case EndReason::kDeadline:
      return "deadline";
    case EndReason::kError:
      return "error";
    case EndReason::kWorkerLost:
      return "worker_lost";
    case EndReason::kShutdown:
      return "shutdown";
  }
  return "unknown";
}

absl::string_view Name(StepKind kind) {
  switch (kind) {
    case StepKind::kPrefill:
      return "prefill";
    case StepKind::kDecode:
      return "decode";
    case StepKind::kMixed:
      return "mixed";
    case StepKind::kIdle:
      return "idle";
  }
  return "unknown";
}

absl::string_view Name(EngineStats::GroupState state) {
  switch (state) {
    case EngineStats::GroupState::kForming:
      return "forming";
    case EngineStats::GroupState::kReady:
      return "ready";
    case EngineStats::GroupState::kLost:
      return "lost";
  }
  return "unknown";
}

}  // namespace bitshard
