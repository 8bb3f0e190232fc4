// The engine's refusals and failures as statuses with typed details (google.rpc ErrorInfo,
// RetryInfo, QuotaFailure): the rows of the status contract that are the engine's. The frontend
// sends them on as they are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace bitshard {

// ErrorInfo.reason; part of the public contract.
inline constexpr absl::string_view kReasonKvPoolTooSmall = "KV_POOL_TOO_SMALL";
// The group failed under a request.
inline constexpr absl::string_view kReasonWorkerLost = "WORKER_LOST";
// No group yet, or not again.
inline constexpr absl::string_view kReasonGroupNotReady = "GROUP_NOT_READY";
inline constexpr absl::string_view kReasonDraining = "DRAINING";
inline constexpr absl::string_view kReasonQueueFull = "QUEUE_FULL";
inline constexpr absl::string_view kReasonQueueWait = "QUEUE_WAIT";
inline constexpr absl::string_view kReasonNonFinite = "NON_FINITE_LOGITS";
inline constexpr absl::string_view kReasonNoTokenAllowed = "NO_TOKEN_ALLOWED";
inline constexpr absl::string_view kReasonPromptTooLong = "PROMPT_TOO_LONG";
inline constexpr absl::string_view kReasonDuplicateRequest = "DUPLICATE_REQUEST_ID";

// RESOURCE_EXHAUSTED. `limit` is the one that is full ("waiting_requests", "waiting_tokens").
absl::Status QueueFullError(absl::string_view limit, uint64_t used, uint64_t maximum);

// RESOURCE_EXHAUSTED: the predicted wait is longer than what the caller, or `--max-queue-wait`,
// allows.
absl::Status QueueWaitError(absl::Duration predicted, absl::Duration allowed, bool by_deadline);

// INVALID_ARGUMENT: prompt, or prompt + max_tokens, is more than the context.
absl::Status PromptTooLongError(absl::string_view field, absl::string_view description);

// FAILED_PRECONDITION: prompt + max_tokens can never fit.
absl::Status KvPoolTooSmallError(uint64_t prompt_tokens, uint64_t max_tokens, uint64_t pool_tokens);

// UNAVAILABLE: blocks were quarantined since the request was admitted and what is left can never
// hold it.
absl::Status KvPoolShrankError();

// UNAVAILABLE. `why` is what the executor told about the loss; may be OK when nothing is known
// (forming).
absl::Status GroupNotReadyError(const absl::Status& why);
absl::Status WorkerLostError(const absl::Status& why);

// UNAVAILABLE.
absl::Status DrainingError();

// ALREADY_EXISTS.
absl::Status DuplicateRequestError(absl::string_view request_id);

// INTERNAL.
absl::Status NonFiniteError(uint32_t output_index);

// INVALID_ARGUMENT: the request's `fields` together leave no token for this output. INTERNAL when
// they are fewer than two: each alone was seen to leave some.
absl::Status NoTokenAllowedError(uint32_t output_index, const std::vector<std::string>& fields);

}  // namespace bitshard
