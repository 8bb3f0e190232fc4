#include "coordinator/engine/admission.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "coordinator/engine/error_reason.h"
#include "coordinator/engine/resume.h"
#include "coordinator/engine/running_load.h"
#include "coordinator/engine/sampling.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "proto/status_details.h"

namespace bitshard {
namespace {

constexpr int32_t kAnyToken = std::numeric_limits<int32_t>::max();

// They share the prompt's blocks in the cache, but each keeps its ids here by itself, while it
// waits too, and nothing else counts them: 128 MiB, as much as all choices of a prompt of 256 Ki
// tokens. What they generate takes a place in the cache and is bounded by it.
constexpr uint64_t kMaxPromptIdsOfChoices = uint64_t{kMaxChoices} << 18;

}  // namespace

Admission::Admission(const Engine::Options& options)
    : options_(options), book_(&options_.tenant_weights) {}

absl::StatusOr<SequenceId> Admission::Admit(const GenerateRequest& request, absl::Time now) {
  const GenerateRequest* const one = &request;
  ASSIGN_OR_RETURN(const std::vector<SequenceId> ids, AdmitAll(absl::MakeConstSpan(&one, 1), now));
  return ids.front();
}

absl::StatusOr<std::vector<SequenceId>> Admission::AdmitAll(
    absl::Span<const GenerateRequest* const> requests, absl::Time now) {
  received_ += requests.size();
  absl::Duration predicted = absl::ZeroDuration();
  if (std::optional<Refusal> refusal = Judge(requests, now, &predicted)) {
    rejected_ += requests.size();
    for (size_t i = 0; i < requests.size(); ++i) ledger_.Rejected(refusal->reason);
    return refusal->status;
  }
  std::vector<SequenceId> ids;
  ids.reserve(requests.size());
  for (const GenerateRequest* request : requests) ids.push_back(Enter(*request));
  // Of several the later ones wait for the first. Short waits are made of steps, and far off in
  // relation. With a large factor only short ones come in, and these must be able to lower it.
  if (requests.size() == 1 && predicted >= options_.max_queue_wait / 4 / wait_error_.factor()) {
    Entry& entry = live_.find(ids.front())->second;
    entry.predicted = predicted;
    entry.admitted = now;
    entry.epoch = scheduling_.epoch;
  }
  const GenerateRequest& first = *requests.front();
  by_name_.insert_or_assign(Name(first.caller, first.request_id),
                            Named{.first = ids.front(), .last = ids.back(), .live = ids.size()});
  return ids;
}

SequenceId Admission::Enter(const GenerateRequest& request) {
  const SequenceId id = last_id_ + 1;
  last_id_ += request.choices;
  Entry entry = {.name = Name(request.caller, request.request_id),
                 .prompt_tokens = request.given_tokens(),
                 .further_tokens = options_.prefix_cache ? 0 : request.given_tokens(),
                 .level = {request.batch, request.priority},
                 .choices = request.choices,
                 .further_wait = request.choices - 1};
  live_choices_ += entry.choices;
  live_prompt_tokens_ += entry.tokens();
  book_.Add(entry.level, request.caller, entry.tokens(), entry.choices);
  live_.emplace(id, std::move(entry));
  return id;
}

uint64_t Admission::TokensOf(const GenerateRequest& request) const {
  return request.given_tokens() * (options_.prefix_cache ? 1 : request.choices);
}

std::optional<Admission::Refusal> Admission::Judge(
    absl::Span<const GenerateRequest* const> requests, absl::Time now,
    absl::Duration* predicted) const {
  WaitingBook::Sum sum;
  for (const GenerateRequest* request : requests) {
    if (std::optional<Refusal> refusal = JudgeAlone(*request, now)) return refusal;
    sum.requests += request->choices;
    sum.tokens += TokensOf(*request);
  }
  if (std::optional<Refusal> refusal = JudgeQueue(*requests.front(), sum)) return refusal;
  return JudgeWait(*requests.front(), sum.tokens, now, predicted);
}

std::optional<Admission::Refusal> Admission::JudgeAlone(const GenerateRequest& request,
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
  if (!request.supersede && by_name_.contains(Name(request.caller, request.request_id))) {
    return Refusal{RejectReason::kDuplicateId, DuplicateRequestError(request.request_id)};
  }
  return std::nullopt;
}

WaitingBook::Sum Admission::Waiting() const {
  return {live_choices_ - scheduling_.running_choices - scheduling_.ended_choices,
          live_prompt_tokens_ - taken_prompt_tokens_};
}

std::optional<Admission::Refusal> Admission::JudgeQueue(const GenerateRequest& request,
                                                        const WaitingBook::Sum& sum) const {
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
  // One request alone may be larger than a bound: it would never come in otherwise.
  const bool alone = queue.requests == 0;
  if (queue.requests >= most || (!alone && queue.requests + sum.requests > most)) {
    return Refusal{RejectReason::kQueueFull,
                   QueueFullError("waiting_requests", queue.requests, most)};
  }
  if (!alone && sum.tokens + queue.tokens > most_tokens) {
    return Refusal{RejectReason::kQueueTokens,
                   QueueFullError("waiting_tokens", queue.tokens, most_tokens)};
  }
  return std::nullopt;
}

std::optional<Admission::Refusal> Admission::JudgeWait(const GenerateRequest& request,
                                                       uint64_t tokens, absl::Time now,
                                                       absl::Duration* predicted) const {
  const absl::Duration left = request.deadline - now;
  const absl::Duration bound = request.batch ? absl::InfiniteDuration() : options_.max_queue_wait;
  if (std::min(left, bound) == absl::InfiniteDuration()) return std::nullopt;
  const absl::Duration mean = Predict({request.batch, request.priority}, request.caller, tokens);
  const absl::Duration most = mean * wait_error_.factor();  // nearly always
  if (mean > left && (left <= bound || most <= bound))
    return Refusal{RejectReason::kQueueWait, QueueWaitError(mean, left, /*by_deadline=*/true)};
  if (most > bound)
    return Refusal{RejectReason::kQueueWait, QueueWaitError(most, bound, /*by_deadline=*/false)};
  if (!request.batch) *predicted = mean;
  return std::nullopt;
}

absl::Duration Admission::Predict(const ServiceLevel& level, const std::string& tenant,
                                  uint64_t tokens) const {
  // While a group is being rebuilt nobody knows.
  if (scheduling_.group != EngineStats::GroupState::kReady) return absl::ZeroDuration();
  const WaitingBook::Sum ahead = book_.AheadOf(level, tenant, tokens);
  QueueAhead queue;
  queue.requests = ahead.requests;
  queue.prompt_tokens = ahead.tokens;
  // Who waits again, after a preemption, goes before all that have not run.
  for (const LevelLoad& load : scheduling_.level_loads) {
    if (level < load.level) break;
    queue.requests += load.waiting_again;
    queue.prompt_tokens += load.again_tokens;
  }
  const RunningLoad running = {.levels = scheduling_.level_loads,
                               .uncomputed_tokens = scheduling_.uncomputed_tokens,
                               .running = scheduling_.running_choices,
                               .places = scheduling_.places,
                               .no_room = scheduling_.no_room,
                               .next_is_batch = scheduling_.next_is_batch};
  running.Fill(level, &queue);
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
  const bool embeds = request.pooling != internal::POOLING_NONE;
  if (embeds && (request.max_tokens > 0 || request.score_from.has_value())) {
    return Refusal{RejectReason::kBadRequest,
                   BadFieldError("pooling", "goes with neither max_tokens nor scores")};
  }
  if (request.max_tokens == 0 && !request.score_from.has_value() && !embeds) {
    return Refusal{RejectReason::kBadRequest, BadFieldError("max_tokens", "must be at least 1")};
  }
  const uint32_t most = request.max_tokens == 0 ? 1 : std::min(kMaxChoices, options_.max_running);
  if (request.choices == 0 || request.choices > most) {
    const bool by_flag = most == options_.max_running && request.choices <= kMaxChoices;
    return Refusal{
        RejectReason::kBadRequest,
        BadFieldError("choices",
                      absl::StrCat("must be 1 to ", most, ", not ", request.choices,
                                   by_flag ? ": so many run at once here (--max-running); ask for "
                                             "the rest in another request"
                                           : ""))};
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
  if (request.choices > 1 && prompt * request.choices > kMaxPromptIdsOfChoices) {
    return Refusal{
        RejectReason::kBadRequest,
        BadFieldError("choices",
                      absl::StrCat(request.choices, " times the prompt of ", prompt,
                                   " tokens are more than the ", kMaxPromptIdsOfChoices,
                                   " tokens that a request's choices may keep in memory; ask for "
                                   "at most ",
                                   std::max<uint64_t>(1, kMaxPromptIdsOfChoices / prompt),
                                   " in a request, or shorten the prompt"))};
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
  return JudgeResumed(request, vocab_size);
}

std::optional<Admission::Refusal> Admission::JudgeResumed(const GenerateRequest& request,
                                                          int32_t vocab_size) {
  if (request.resumed.size() > request.max_tokens) {
    return Refusal{RejectReason::kBadRequest,
                   ResumedTokenError(request.max_tokens,
                                     absl::StrCat("is beyond max_tokens ", request.max_tokens,
                                                  ", which counts the whole answer; send the "
                                                  "first request's"))};
  }
  if (!request.resumed.empty() && request.choices > 1) {
    return Refusal{RejectReason::kBadRequest,
                   BadFieldError("choices", "must be 1 with tokens to resume: they are one's")};
  }
  for (size_t i = 0; i < request.resumed.size(); ++i) {
    const int32_t token = request.resumed[i];
    if (token < 0 || token >= vocab_size) {
      return Refusal{RejectReason::kBadRequest,
                     ResumedTokenError(
                         i, absl::StrCat("token id ", token, " is not in the model's vocabulary"))};
    }
  }
  return std::nullopt;
}

std::optional<SequenceId> Admission::Find(const std::string& caller,
                                          const std::string& request_id) const {
  auto entry = by_name_.find(Name(caller, request_id));
  if (entry == by_name_.end()) return std::nullopt;
  SequenceId id = entry->second.first;
  while (!live_.contains(id)) ++id;  // of several that came together the first may have ended
  return id;
}

void Admission::Started(SequenceId id, uint32_t choice, absl::Time now) {
  auto entry = live_.find(id);
  CHECK(entry != live_.end()) << "request " << id << " starts after its end";
  Entry& live = entry->second;
  if (choice == 0) {
    CHECK(std::exchange(live.first_waits, false)) << "request " << id << " starts twice";
    book_.Remove(live.level, live.name.first, live.prompt_tokens);
    // A wait for another group would say nothing of this one.
    if (live.predicted > absl::ZeroDuration() && now > live.admitted &&
        live.epoch == scheduling_.epoch) {
      // What is predicted below the least that can be refused says little: 5 ms instead of 1.
      wait_error_.Add(std::max(live.predicted, options_.max_queue_wait / WaitError::kMost),
                      now - live.admitted);
    }
  } else {
    CHECK(live.further_wait-- > 0) << "request " << id << " has fewer choices";
    book_.Remove(live.level, live.name.first, live.further_tokens);
  }
}

void Admission::End(SequenceId id, EndReason reason, absl::StatusCode code) {
  auto entry = live_.find(id);
  CHECK(entry != live_.end()) << "request " << id << " ends twice";
  const Entry& live = entry->second;
  const uint32_t waits = live.further_wait + (live.first_waits ? 1 : 0);
  const uint64_t tokens =
      (live.first_waits ? live.prompt_tokens : 0) + live.further_wait * live.further_tokens;
  if (waits > 0) book_.Remove(live.level, live.name.first, tokens, waits);
  live_choices_ -= live.choices;
  live_prompt_tokens_ -= live.tokens();
  auto name = by_name_.find(live.name);
  if (name != by_name_.end() && name->second.first <= id && id <= name->second.last &&
      --name->second.live == 0) {  // else superseded, or one of several
    by_name_.erase(name);
  }
  live_.erase(entry);
  ++finished_;
  ledger_.Ended(reason, code);
}

void Admission::SetScheduling(const EngineStats& stats, uint64_t taken_prompt_tokens) {
  CHECK_LE(stats.running, live_.size());
  CHECK_LE(stats.running_choices + stats.ended_choices, live_choices_);
  CHECK_LE(taken_prompt_tokens, live_prompt_tokens_);
  scheduling_ = stats;
  taken_prompt_tokens_ = taken_prompt_tokens;
}

EngineStats Admission::Stats() const {
  EngineStats stats = scheduling_;
  stats.received = received_;
  stats.rejected = rejected_;
  stats.finished = finished_;
  stats.ledger = ledger_;
  stats.waiting = static_cast<uint32_t>(live_.size()) - stats.running;
  const WaitingBook::Sum waiting = Waiting();
  stats.waiting_choices = static_cast<uint32_t>(waiting.requests);
  stats.waiting_tokens = waiting.tokens;
  stats.predicted_wait = Predict({}, "", /*tokens=*/1);
  return stats;
}

}  // namespace bitshard
