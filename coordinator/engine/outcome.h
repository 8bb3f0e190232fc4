// What can become of a request, and a book of it: the labels `reason` and `finished_reason`.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace bitshard {

// Why a request was not accepted. Values are places in RequestLedger: without gaps, from 0.
enum class RejectReason {
  kQueueFull,
  kQueueTokens,
  kQueueWait,  // the predicted wait is beyond the deadline or the bound
  kPromptTooLong,
  kKvImpossible,
  kDraining,
  kGroupDown,
  kBadRequest,
  kDeadline,
  kDuplicateId,
  kCancelled,  // the caller went before its request was read
  kAuth,
};
inline constexpr RejectReason kAllRejectReasons[] = {
    RejectReason::kQueueFull,     RejectReason::kQueueTokens,  RejectReason::kQueueWait,
    RejectReason::kPromptTooLong, RejectReason::kKvImpossible, RejectReason::kDraining,
    RejectReason::kGroupDown,     RejectReason::kBadRequest,   RejectReason::kDeadline,
    RejectReason::kDuplicateId,   RejectReason::kCancelled,    RejectReason::kAuth,
};

// Why an accepted request ended.
enum class EndReason { kStop, kLength, kCancelled, kDeadline, kError, kWorkerLost, kShutdown };
inline constexpr EndReason kAllEndReasons[] = {
    EndReason::kStop,  EndReason::kLength,     EndReason::kCancelled, EndReason::kDeadline,
    EndReason::kError, EndReason::kWorkerLost, EndReason::kShutdown,
};

// Label values: "queue_full", "worker_lost" ...
absl::string_view Name(RejectReason reason);
absl::string_view Name(EndReason reason);

// How many requests were rejected and ended, by reason (and status code).
struct RequestLedger {
  static constexpr size_t kCodes = 17;  // canonical

  void Rejected(RejectReason reason) { ++rejected[static_cast<size_t>(reason)]; }
  void Ended(EndReason reason, absl::StatusCode code) {
    ++ended[static_cast<size_t>(reason)][static_cast<size_t>(code) % kCodes];
  }

  std::array<uint64_t, std::size(kAllRejectReasons)> rejected = {};
  std::array<std::array<uint64_t, kCodes>, std::size(kAllEndReasons)> ended = {};
};

}  // namespace bitshard
