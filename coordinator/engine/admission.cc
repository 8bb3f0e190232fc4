#include "coordinator/engine/admission.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

#include "coordinator/engine/error_reason.h"
#include "kernels/base/check.h"
#include "proto/status_details.h"

namespace bitshard {
namespace {

constexpr int32_t kAnyToken = std::numeric_limits<int32_t>::max();
constexpr uint32_t kMaxTopLogprobs = 20;  // proto/plan.proto

// Written so that NaN is refused.
std::optional<absl::Status> JudgeSampling(const GenerateRequest& request) {
  if (!(request.temperature >= 0) || std::isinf(request.temperature)) {
    return BadFieldError("temperature", "must be 0 (greedy) or a finite number above");
  }
  if (!(request.top_p >= 0 && request.top_p <= 1)) {
    return BadFieldError("top_p", "must be between 0 and 1 (all)");
  }
  if (!(request.min_p >= 0 && request.min_p <= 1)) {
    return BadFieldError("min_p", "must be between 0 (all) and 1");
  }
  if (request.top_logprobs > kMaxTopLogprobs) {
    return BadFieldError("top_logprobs", absl::StrCat("must be at most ", kMaxTopLogprobs));
  }
  return std::nullopt;
}

}  // namespace

Admission::Admission(const Engine::Options& options, EngineMetrics* metrics)
    : options_(options), metrics_(metrics) {}

absl::StatusOr<SequenceId> Admission::Admit(const GenerateRequest& request, absl::Time now) {
  ++received_;
  metrics_->Received();
  if (std::optional<Refusal> refusal = Judge(request, now)) {
    ++rejected_;
    metrics_->Rejected(refusal->reason);
    return refusal->status;
  }
  const SequenceId id = ++last_id_;
  Name name(request.caller, request.request_id);
  by_name_.emplace(name, id);
  live_.emplace(id, Entry{std::move(name), request.prompt_tokens.size()});
  live_prompt_tokens_ += request.prompt_tokens.size();
  return id;
}

std::optional<Admission::Refusal> Admission::Judge(const GenerateRequest& request,
                                                   absl::Time now) const {
  if (std::optional<Refusal> refusal = JudgeFields(request)) return refusal;
  if (request.deadline <= now) {
    return Refusal{RejectReason::kDeadline,
                   absl::DeadlineExceededError("the deadline had passed when the request arrived")};
  }
  if (closed_) return Refusal{RejectReason::kDraining, DrainingError()};
  // A group that is being rebuilt takes the queue up where it was; one that has never been ready
  // promises nothing.
  const bool group_may_come_back =
      !options_.fail_on_group_loss && scheduling_.group == EngineStats::GroupState::kLost;
  if (scheduling_.group != EngineStats::GroupState::kReady && !group_may_come_back) {
    return Refusal{RejectReason::kGroupDown, GroupNotReadyError(group_cause_)};
  }
  // The last of the tokens that are generated needs no place in the cache; of those that are given
  // each does.
  const uint64_t total_tokens = request.prompt_tokens.size() +
                                (request.score_from.has_value() ? 1 : uint64_t{request.max_tokens});
  if (total_tokens > scheduling_.max_request_tokens) {
    return Refusal{RejectReason::kKvImpossible,
                   KvPoolTooSmallError(request.prompt_tokens.size(), request.max_tokens,
                                       scheduling_.max_request_tokens)};
  }
  if (by_name_.contains(Name(request.caller, request.request_id))) {
    return Refusal{RejectReason::kDuplicateId, DuplicateRequestError(request.request_id)};
  }
  const EngineStats stats = Stats();
  if (stats.waiting >= options_.max_waiting) {
    return Refusal{RejectReason::kQueueFull,
                   QueueFullError("waiting_requests", stats.waiting, options_.max_waiting)};
  }
  // One request alone may be larger than the bound: it would never come in otherwise.
  if (stats.waiting > 0 &&
      request.prompt_tokens.size() + stats.waiting_tokens > options_.max_waiting_tokens) {
    return Refusal{
        RejectReason::kQueueTokens,
        QueueFullError("waiting_tokens", stats.waiting_tokens, options_.max_waiting_tokens)};
  }
  return std::nullopt;
}

std::optional<Admission::Refusal> Admission::JudgeFields(const GenerateRequest& request) const {
  if (request.prompt_tokens.empty()) {
    return Refusal{RejectReason::kBadRequest,
                   BadFieldError("prompt", "is empty; give at least one token")};
  }
  if (request.score_from.value_or(0) > request.prompt_tokens.size()) {
    return Refusal{RejectReason::kBadRequest,
                   BadFieldError("first_token", "must not be beyond the last token")};
  }
  if ((request.max_tokens == 0) != request.score_from.has_value()) {
    return Refusal{RejectReason::kBadRequest, BadFieldError("max_tokens", "must be at least 1")};
  }
  const uint64_t limit = options_.context_tokens > 0
                             ? options_.context_tokens
                             : uint64_t{std::numeric_limits<int32_t>::max()};
  const uint64_t prompt = request.prompt_tokens.size();
  if (prompt + request.max_tokens > limit) {
    return Refusal{
        RejectReason::kPromptTooLong,
        PromptTooLongError("max_tokens",
                           absl::StrCat("prompt ", prompt, " + max_tokens ", request.max_tokens,
                                        " is more than the context of ", limit, " tokens"))};
  }
  // One plan carries many requests, and workers refuse a bad plan whole: nothing of this may reach
  // it.
  if (std::optional<absl::Status> bad = JudgeSampling(request)) {
    return Refusal{RejectReason::kBadRequest, *std::move(bad)};
  }
  const int32_t vocab_size =
      options_.vocab_size > 0 ? static_cast<int32_t>(options_.vocab_size) : kAnyToken;
  for (int32_t token : request.prompt_tokens) {
    if (token < 0 || token >= vocab_size) {
      return Refusal{RejectReason::kBadRequest,
                     BadFieldError("prompt", absl::StrCat("token id ", token,
                                                          " is not in the model's vocabulary"))};
    }
  }
  return std::nullopt;
}

std::optional<SequenceId> Admission::Find(const std::string& caller,
                                          const std::string& request_id) const {
  auto entry = by_name_.find(Name(caller, request_id));
  if (entry == by_name_.end()) return std::nullopt;
  return entry->second;
}

void Admission::End(SequenceId id) {
  auto entry = live_.find(id);
  CHECK(entry != live_.end()) << "request " << id << " ends twice";
  live_prompt_tokens_ -= entry->second.prompt_tokens;
  by_name_.erase(entry->second.name);
  live_.erase(entry);
  ++finished_;
}

void Admission::SetScheduling(const EngineStats& stats, uint64_t running_prompt_tokens) {
  CHECK_LE(stats.running, live_.size());
  CHECK_LE(running_prompt_tokens, live_prompt_tokens_);
  scheduling_ = stats;
  running_prompt_tokens_ = running_prompt_tokens;
}

EngineStats Admission::Stats() const {
  EngineStats stats = scheduling_;
  stats.received = received_;
  stats.rejected = rejected_;
  stats.finished = finished_;
  stats.waiting = static_cast<uint32_t>(live_.size()) - stats.running;
  stats.waiting_tokens = live_prompt_tokens_ - running_prompt_tokens_;
  return stats;
}

}  // namespace bitshard
