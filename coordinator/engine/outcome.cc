#include "coordinator/engine/outcome.h"

namespace bitshard {

absl::string_view Name(RejectReason reason) {
  switch (reason) {
    case RejectReason::kQueueFull:
      return "queue_full";
    case RejectReason::kQueueTokens:
      return "queue_tokens";
    case RejectReason::kQueueWait:
      return "queue_wait";
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
    case RejectReason::kCancelled:
      return "cancelled";
    case RejectReason::kAuth:
      return "auth";
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

}  // namespace bitshard
