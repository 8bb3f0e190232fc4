#include "coordinator/engine/error_reason.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "proto/status_details.h"

namespace bitshard {
namespace {

// When to try again. A place in the queue comes free with the next request that ends; a group needs
// its workers.
constexpr absl::Duration kRetryQueue = absl::Seconds(1);
constexpr absl::Duration kRetryGroup = absl::Seconds(2);
constexpr absl::Duration kRetryElsewhere = absl::Seconds(1);
// A predicted wait is no promise.
constexpr absl::Duration kShortestRetry = absl::Milliseconds(100),
                         kLongestRetry = absl::Seconds(30);

}  // namespace

absl::Status QueueFullError(absl::string_view limit, uint64_t used, uint64_t maximum) {
  const std::string state = absl::StrCat(used, " of ", maximum, " ", limit);
  absl::Status status = absl::ResourceExhaustedError(
      absl::StrCat("the queue is full (", state, "); retry after the delay in RetryInfo"));
  status = WithQuotaFailure(std::move(status), limit, state);
  return WithRetryInfo(WithErrorInfo(std::move(status), kReasonQueueFull), kRetryQueue);
}

absl::Status QueueWaitError(absl::Duration predicted, absl::Duration allowed, bool by_deadline) {
  const std::string state =
      absl::StrCat(absl::FormatDuration(absl::Ceil(predicted, absl::Milliseconds(1))), " of ",
                   absl::FormatDuration(absl::Trunc(allowed, absl::Milliseconds(1))), " ",
                   by_deadline ? "until the deadline" : "allowed");
  absl::Status status = absl::ResourceExhaustedError(absl::StrCat(
      "the predicted wait in the queue is too long (", state,
      "); retry after the delay in RetryInfo", by_deadline ? ", or with a later deadline" : ""));
  status = WithQuotaFailure(std::move(status), "predicted_wait", state);
  return WithRetryInfo(WithErrorInfo(std::move(status), kReasonQueueWait),
                       std::min(std::max(predicted - allowed, kShortestRetry), kLongestRetry));
}

absl::Status PromptTooLongError(absl::string_view field, absl::string_view description) {
  return WithErrorInfo(BadFieldError(field, description), kReasonPromptTooLong);
}

absl::Status KvPoolTooSmallError(uint64_t prompt_tokens, uint64_t max_tokens,
                                 uint64_t pool_tokens) {
  return WithErrorInfo(
      absl::FailedPreconditionError(absl::StrCat(
          "the request can never fit the KV pool: prompt ", prompt_tokens, " + max_tokens ",
          max_tokens, ", but the pool holds ", pool_tokens,
          " tokens; lower max_tokens or the prompt, or give the workers more KV memory")),
      kReasonKvPoolTooSmall);
}

absl::Status KvPoolShrankError() {
  return WithRetryInfo(
      WithErrorInfo(absl::UnavailableError(
                        "blocks of the KV pool were quarantined after non-finite results, and what "
                        "is left cannot hold this request; retry later or on another group"),
                    kReasonKvPoolTooSmall),
      kRetryElsewhere);
}

absl::Status GroupNotReadyError(const absl::Status& why) {
  const std::string text = why.ok() ? "the worker group is not ready yet"
                                    : absl::StrCat("the worker group is down: ", why.message());
  return WithRetryInfo(WithErrorInfo(absl::UnavailableError(text), kReasonGroupNotReady),
                       kRetryGroup);
}

absl::Status WorkerLostError(const absl::Status& why) {
  return WithRetryInfo(WithErrorInfo(absl::UnavailableError(absl::StrCat(
                                         "the worker group was lost: ", why.message())),
                                     kReasonWorkerLost),
                       kRetryGroup);
}

absl::Status DrainingError() {
  return WithRetryInfo(WithErrorInfo(absl::UnavailableError(
                                         "the service is shutting down; retry on another replica"),
                                     kReasonDraining),
                       kRetryElsewhere);
}

absl::Status DuplicateRequestError(absl::string_view request_id) {
  return WithErrorInfo(absl::AlreadyExistsError(absl::StrCat(
                           "a request with id \"", absl::CHexEscape(request_id),
                           "\" is still running; use a new id, or abort that one first")),
                       kReasonDuplicateRequest);
}

absl::Status NonFiniteError(uint32_t output_index) {
  return WithErrorInfo(
      absl::InternalError(
          absl::StrCat("the model's logits for output token ", output_index,
                       " are not finite; the request was ended and its KV blocks were set aside")),
      kReasonNonFinite);
}

absl::Status NoTokenAllowedError(uint32_t output_index, const std::vector<std::string>& fields) {
  const std::string what = absl::StrCat("no token may be output token ", output_index);
  if (fields.size() < 2) {
    return WithErrorInfo(absl::InternalError(absl::StrCat(
                             what, ", and nothing in the request forbids them; the request ends")),
                         kReasonNoTokenAllowed);
  }
  const std::string together = absl::StrJoin(fields, ", ");
  absl::Status status = absl::InvalidArgumentError(
      absl::StrCat(what, ": ", together,
                   " contradict each other there; allow more tokens, or drop one of them"));
  for (const std::string& field : fields) {
    status = WithBadField(
        std::move(status), field,
        absl::StrCat(what, ": together with the other fields named here it leaves none"));
  }
  return WithErrorInfo(std::move(status), kReasonNoTokenAllowed);
}

}  // namespace bitshard
