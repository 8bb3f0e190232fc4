#include "coordinator/engine/admission.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "coordinator/engine/error_reason.h"
#include "coordinator/engine/sampling.h"
#include "kernels/base/check.h"
#include "proto/status_details.h"

namespace bitshard {
namespace {

constexpr int32_t kAnyToken = std::numeric_limits<int32_t>::max();

}  // namespace

Admission::Admission(const Engine::Options& options)
    : options_(options), book_(&options_.tenant_weights) {}

absl::StatusOr<SequenceId> Admission::Admit(const GenerateRequest& request, absl::Time now) {
  ++received_;
  if (std::optional<Refusal> refusal = Judge(request, now)) {
    ++rejected_;
    ledger_.Rejected(refusal->reason);
    return refusal->status;
  }
  const SequenceId id = ++last_id_;
  Name name(request.caller, request.request_id);
  by_name_.emplace(name, id);
  const uint64_t tokens = request.prompt_tokens.size();
  const ServiceLevel level{request.batch, request.priority};
  live_.emplace(id, Entry{std::move(name), tokens, level});
  live_prompt_tokens_ += tokens;
  book_.Add(level, request.caller, tokens);
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
  const uint64_t total_tokens =
      request.prompt_tokens.size() + std::max<uint64_t>(1, request.max_tokens);
  if (total_tokens > scheduling_.max_request_tokens) {
    return Refusal{RejectReason::kKvImpossible,
                   KvPoolTooSmallError(request.prompt_tokens.size(), request.max_tokens,
                                       scheduling_.max_request_tokens)};
  }
  if (by_name_.contains(Name(request.caller, request.request_id))) {
    return Refusal{RejectReason::kDuplicateId, DuplicateRequestError(request.request_id)};
  }
  if (std::optional<Refusal> refusal = JudgeQueue(request)) return refusal;
  return JudgeWait(request, now);
}

WaitingBook::Sum Admission::Waiting() const {
  return {live_.size() - scheduling_.running, live_prompt_tokens_ - running_prompt_tokens_};
}

std::optional<Admission::Refusal> Admission::JudgeQueue(const GenerateRequest& request) const {
  // Each class has a queue of its own, so that a heap of batch requests keeps nobody out, nor do
  // those of them that ran and were pushed out: the queue is who has never run.
  const WaitingBook::Sum& batch = book_.batch();
  WaitingBook::Sum queue = batch;
  if (!request.batch) {
    const WaitingBook::Sum all = Waiting(), fresh = book_.sum();
    const uint64_t requests = std::min(all.requests, fresh.requests);
    const uint64_t tokens = std::min(all.tokens, fresh.tokens);
    queue = {requests - std::min(requests, batch.requests),
             tokens - std::min(tokens, batch.tokens)};
  }
  uint64_t most = options_.max_waiting, most_tokens = options_.max_waiting_tokens;
  if (!request.caller.empty()) {  // else there is one tenant
    const WaitingBook::Sum own = book_.of_tenant(request.caller);
    if (own.requests > most / 2) most -= most / 8;
    if (own.tokens > most_tokens / 2) most_tokens -= most_tokens / 8;
  }
  if (queue.requests >= most) {
    return Refusal{RejectReason::kQueueFull,
                   QueueFullError("waiting_requests", queue.requests, most)};
  }
  // One request alone may be larger than the bound: it would never come in otherwise.
  if (queue.requests > 0 && request.prompt_tokens.size() + queue.tokens > most_tokens) {
    return Refusal{RejectReason::kQueueTokens,
                   QueueFullError("waiting_tokens", queue.tokens, most_tokens)};
  }
  return std::nullopt;
}

std::optional<Admission::Refusal> Admission::JudgeWait(const GenerateRequest& request,
                                                       absl::Time now) const {
  const absl::Duration left = request.deadline - now;
  const absl::Duration bound = request.batch ? absl::InfiniteDuration() : options_.max_queue_wait;
  const absl::Duration allowed = std::min(left, bound);
  if (allowed == absl::InfiniteDuration()) return std::nullopt;
  const absl::Duration wait =
      Predict({request.batch, request.priority}, request.caller, request.prompt_tokens.size());
  if (wait <= allowed) return std::nullopt;
  return Refusal{RejectReason::kQueueWait,
                 QueueWaitError(wait, allowed, /*by_deadline=*/left <= bound)};
}

absl::Duration Admission::Predict(const ServiceLevel& level, const std::string& tenant,
                                  uint64_t tokens) const {
  // While a group is being rebuilt nobody knows.
  if (scheduling_.group != EngineStats::GroupState::kReady) return absl::ZeroDuration();
  const WaitingBook::Sum ahead = book_.AheadOf(level, tenant, tokens);
  const WaitingBook::Sum all = Waiting(), fresh = book_.sum();
  QueueAhead queue;
  // Those that wait again, after a preemption, go before.
  queue.requests = ahead.requests + (all.requests - std::min(all.requests, fresh.requests));
  queue.prompt_tokens = ahead.tokens + (all.tokens - std::min(all.tokens, fresh.tokens)) +
                        scheduling_.uncomputed_tokens;
  queue.running = scheduling_.running;
  queue.places = scheduling_.places;
  queue.blocked = scheduling_.no_room;
  return PredictWait(scheduling_.rates, queue);
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
  if (request.max_tokens == 0 && !request.score_from.has_value()) {
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
  if (std::optional<absl::Status> bad = JudgeSampling(request, options_.vocab_size)) {
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

void Admission::Started(SequenceId id) {
  auto entry = live_.find(id);
  CHECK(entry != live_.end()) << "request " << id << " starts after its end";
  Entry& live = entry->second;
  if (!std::exchange(live.started, true))
    book_.Remove(live.level, live.name.first, live.prompt_tokens);
}

void Admission::End(SequenceId id, EndReason reason, absl::StatusCode code) {
  auto entry = live_.find(id);
  CHECK(entry != live_.end()) << "request " << id << " ends twice";
  if (!entry->second.started) Started(id);
  live_prompt_tokens_ -= entry->second.prompt_tokens;
  by_name_.erase(entry->second.name);
  live_.erase(entry);
  ++finished_;
  ledger_.Ended(reason, code);
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
  stats.ledger = ledger_;
  stats.waiting = static_cast<uint32_t>(live_.size()) - stats.running;
  stats.waiting_tokens = live_prompt_tokens_ - running_prompt_tokens_;
  stats.predicted_wait = Predict({}, "", /*tokens=*/1);
  return stats;
}

}  // namespace bitshard
