#include "coordinator/engine/engine_core.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "coordinator/engine/error_reason.h"
#include "coordinator/engine/sampling.h"
#include "coordinator/schedule/step_planner.h"
#include "kernels/base/check.h"
#include "kernels/base/log.h"

namespace bitshard {
namespace {

using GroupState = EngineStats::GroupState;

// A wall clock may be set back between two readings.
absl::Duration Between(absl::Time from, absl::Time to) {
  return std::max(to - from, absl::ZeroDuration());
}

SequenceSpec SpecOf(SequenceId id, const GenerateRequest& request, const Tokenizer& tokenizer,
                    const Engine::Options& options) {
  SequenceSpec spec;
  spec.id = id;
  spec.priority = request.priority;
  spec.batch = request.batch;
  spec.tenant = request.caller;
  spec.prompt.assign(request.prompt_tokens.begin(), request.prompt_tokens.end());
  spec.max_tokens = request.max_tokens;
  spec.sampling = SamplingOf(request, tokenizer, options.vocab_size);
  spec.score_from = request.score_from;
  spec.constrained = request.grammar != nullptr;
  // With lengths, so that no such three look like others. Who is known shares with nobody.
  spec.cache_seed = absl::StrCat(options.model_fingerprint.size(), ":", options.model_fingerprint,
                                 request.caller.size(), ":", request.caller, request.cache_salt);
  return spec;
}

LossCause CauseOf(const absl::Status& why) {
  switch (why.code()) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
      return LossCause::kWorkerLost;
    case absl::StatusCode::kDeadlineExceeded:
      return LossCause::kTimeout;
    default:
      return LossCause::kFailed;
  }
}

StepKind KindOf(const StepSchedule& schedule) {
  bool prefill = false, decode = false;
  for (const ScheduledRow& row : schedule.rows) {
    (row.is_decode() ? decode : prefill) = true;
  }
  if (!prefill && !decode) return StepKind::kIdle;
  return prefill && decode ? StepKind::kMixed : prefill ? StepKind::kPrefill : StepKind::kDecode;
}

}  // namespace

EngineCore::EngineCore(const Engine::Options& options, const Tokenizer* tokenizer,
                       StepExecutor* executor, EngineMetrics* metrics, Observer* observer,
                       MaskRunner* masks)
    : options_(options),
      tokenizer_(tokenizer),
      executor_(executor),
      metrics_(metrics),
      observer_(observer),
      masks_(masks),
      pace_(options.itl_slo) {
  scheduler_.SetTenantWeights(options.tenant_weights);
}

void EngineCore::Accept(Accepted accepted, absl::Time now) {
  const SequenceId id = accepted.id;
  auto live = std::make_unique<Live>(std::move(accepted), tokenizer_);
  live->accepted = now;
  const GenerateRequest& request = live->request;
  if (request.deadline != absl::InfiniteFuture()) deadlines_.emplace(request.deadline, id);
  scheduler_.Add(SpecOf(id, request, *tokenizer_, options_));
  if (request.grammar != nullptr) {
    const bool end_tokens = !request.ignore_eos;
    live->place = std::make_shared<GrammarPlace>(
        GrammarPlace{.grammar = request.grammar, .end_tokens = end_tokens, .matcher = nullptr});
    scheduler_.SetMask(id, request.grammar->FirstMask(end_tokens));
  }
  live_.emplace(id, std::move(live));
  // Admission looked at the group a moment ago; it may have been lost since.
  if (options_.fail_on_group_loss && !scheduler_.has_epoch()) {
    End(id, WorkerLostError(group_cause_), EndReason::kWorkerLost, now);
  }
}

void EngineCore::Cancel(SequenceId id, absl::Time now) {
  auto live = live_.find(id);
  if (live == live_.end()) return;
  if (live->second->request.deadline <= now) {
    EndExpired(id, now);
  } else {
    End(id, absl::CancelledError("cancelled by the caller"), EndReason::kCancelled, now);
  }
}

void EngineCore::GroupReady(const GroupInfo& info, absl::Time now) {
  if (scheduler_.has_epoch()) {
    GroupLost(group_.term, group_.epoch, absl::UnavailableError("replaced by a new group"), now);
  }
  SchedulerLimits limits;
  limits.total_blocks = info.cache_blocks;
  limits.block_tokens = info.block_tokens;
  limits.max_slots = std::min(options_.max_running, info.max_slots);
  limits.token_budget = std::min(options_.token_budget, info.max_step_tokens);
  if (options_.prefill_chunk > 0) limits.max_chunk = options_.prefill_chunk;
  limits.prefix_cache = options_.prefix_cache;
  if (limits.total_blocks == 0 || limits.block_tokens == 0 || limits.max_slots == 0 ||
      limits.token_budget == 0) {
    group_cause_ = absl::UnavailableError(
        absl::StrCat("the group offers nothing to run on: ", info.cache_blocks, " KV blocks of ",
                     info.block_tokens, " tokens, ", info.max_slots, " slots, ",
                     info.max_step_tokens, " tokens a step"));
    LogError("engine: group refused cause=\"{}\"", group_cause_.ToString());
    return;
  }
  group_ = info;
  group_state_ = GroupState::kReady;
  group_cause_ = absl::OkStatus();
  last_step_ = epoch_steps_ = 0;
  last_progress_ = now;
  if (last_loss_) {
    const auto resumes = [](const auto& entry) { return entry.second->first_token.has_value(); };
    metrics_->GroupRebuilt(*std::exchange(last_loss_, std::nullopt),
                           static_cast<uint32_t>(absl::c_count_if(live_, resumes)));
  }
  scheduler_.StartEpoch(limits);
  LogInfo(
      "engine: group ready term={} epoch={} world={} kv_blocks={} slots={} token_budget={} live={}",
      info.term, info.epoch, info.world, limits.total_blocks, limits.max_slots, limits.token_budget,
      live_.size());
}

void EngineCore::GroupLost(uint64_t term, uint64_t epoch, const absl::Status& why, absl::Time now) {
  if (!scheduler_.has_epoch()) {
    group_cause_ = why;  // it did not come up
    return;
  }
  if (term != group_.term || epoch != group_.epoch) return;  // an epoch that is over already
  LogError("engine: group lost term={} epoch={} live={} cause=\"{}\"", term, epoch, live_.size(),
           why.ToString());
  group_state_ = GroupState::kLost;
  group_cause_ = why.ok() ? absl::UnavailableError("no cause was given") : why;
  last_loss_ = CauseOf(why);
  metrics_->GroupLost(*last_loss_);
  plans_out_.clear();
  scheduler_.EndEpoch();
  BeginRecompute(/*all=*/true, now);
  if (options_.fail_on_group_loss)
    EndAll(WorkerLostError(group_cause_), EndReason::kWorkerLost, now);
}

void EngineCore::StepDone(const internal::StepResult& result, absl::Time now) {
  if (!scheduler_.has_epoch() || result.term() != group_.term || result.epoch() != group_.epoch)
    return;
  if (plans_out_.empty() || result.step() != plans_out_.front().step) {
    LogError("engine: result out of order step={} expected={}", result.step(),
             plans_out_.empty() ? 0 : plans_out_.front().step);
    return;
  }
  const PlanOut plan = plans_out_.front();
  plans_out_.pop_front();
  ++steps_;
  ++epoch_steps_;
  const absl::Duration execution = absl::Microseconds(result.exec_us());
  // What callers see of a step: it is as long as until the next one ends.
  const absl::Duration pace =
      std::max(execution, Between(std::max(plan.sent, last_progress_), now));
  last_progress_ = now;
  metrics_->StepEnded({.kind = plan.kind,
                       .tokens = plan.tokens,
                       .rows = plan.rows,
                       .execution = execution,
                       .round_trip = Between(plan.sent, now)});
  uint32_t committed = 0;
  const absl::Time begin = absl::Now();
  for (const Commit& commit : scheduler_.CommitStep(result)) {
    switch (commit.kind) {
      case Commit::Kind::kToken:
        ++committed;
        CommitToken(commit, now);
        break;
      case Commit::Kind::kScores:
        CommitScores(commit, now);
        break;
      case Commit::Kind::kNonFinite:
        LogError("engine: non-finite logits request_id=\"{}\" output_index={} step={}",
                 absl::CHexEscape(live_.at(commit.id)->request.request_id), commit.output_index,
                 result.step());
        metrics_->NonFinite();
        scheduler_.Quarantine(commit.id);
        End(commit.id, NonFiniteError(commit.output_index), EndReason::kError, now);
        break;
      case Commit::Kind::kNoneAllowed:
        End(commit.id, NoTokenAllowedError(commit.output_index), EndReason::kError, now);
        break;
      case Commit::Kind::kMissing:
        End(commit.id,
            absl::InternalError(absl::StrCat("the workers returned no valid token for output ",
                                             commit.output_index, " in step ", result.step())),
            EndReason::kError, now);
        break;
    }
  }
  if (committed > 0) metrics_->GeneratedTokens(committed);
  pace_.StepEnded(plan.load, pace, committed, now);
  metrics_->SchedulerTime(SchedulerOp::kCommit, absl::Now() - begin);
}

void EngineCore::CommitToken(const Commit& commit, absl::Time now) {
  Live& live = *live_.at(commit.id);
  const int32_t token = static_cast<int32_t>(commit.output->token());
  ++tokens_;
  ++live.completion_tokens;
  EndRecompute(live, now);
  if (!live.first_token.has_value()) {
    live.first_token = now;
    metrics_->PromptTokens(static_cast<uint32_t>(live.request.prompt_tokens.size()),
                           live.cached_tokens);
  } else {
    metrics_->InterToken(Between(*live.last_token, now));
  }
  live.last_token = now;

  TextStream::Piece piece =
      live.text.Push(token, live.completion_tokens == live.request.max_tokens);
  TokenDelta delta;
  delta.tokens = {token};
  delta.first_index = commit.output_index;
  delta.text = std::move(piece.text);
  delta.prompt_logprobs = std::exchange(live.scores, {});
  if (live.request.logprobs) {
    TokenLogprobs logprobs;
    logprobs.chosen = commit.output->logprob();
    for (const internal::TokenLogprob& top : commit.output->top()) {
      logprobs.top.emplace_back(static_cast<int32_t>(top.token()), top.logprob());
    }
    delta.logprobs.push_back(std::move(logprobs));
  }
  live.sink->OnDelta(std::move(delta));
  if (!piece.end.has_value()) {
    if (live.place != nullptr) FindMask(commit.id, {token}, now);
    return;
  }
  const EndReason reason =
      piece.end->reason == FinishReason::kStop ? EndReason::kStop : EndReason::kLength;
  End(commit.id, absl::OkStatus(), reason, *std::move(piece.end), now);
}

void EngineCore::FindMask(SequenceId id, std::vector<int32_t> tokens, absl::Time now) {
  const Live& live = *live_.at(id);
  MaskJob job{.id = id,
              .output_index = live.completion_tokens,
              .place = live.place,
              .tokens = std::move(tokens)};
  ++masks_out_;
  if (masks_ != nullptr) {
    masks_->Run(std::move(job));
  } else {
    MaskDone(RunMaskJob(job), now);
  }
}

void EngineCore::MaskDone(MaskResult result, absl::Time now) {
  --masks_out_;
  auto live = live_.find(result.id);
  if (live == live_.end()) return;
  CHECK_EQ(result.output_index, live->second->completion_tokens) << "request " << result.id;
  if (!result.status.ok()) {
    End(result.id, std::move(result.status), EndReason::kError, now);
  } else if (result.ended) {
    End(result.id, absl::OkStatus(), EndReason::kStop, live->second->text.Stop(), now);
  } else {
    scheduler_.SetMask(result.id, std::move(result.mask));
  }
}

void EngineCore::CommitScores(const Commit& commit, absl::Time now) {
  Live& live = *live_.at(commit.id);
  const internal::StepScores& scores = *commit.scores;
  const int count = scores.logprob_size();
  const int top = count == 0 ? 0 : scores.top_size() / count;
  for (int i = 0; i < count; ++i) {
    TokenLogprobs& score = live.scores.emplace_back();
    score.chosen = scores.logprob(i);
    for (int t = i * top; t < (i + 1) * top; ++t) {
      score.top.emplace_back(static_cast<int32_t>(scores.top(t).token()), scores.top(t).logprob());
    }
  }
  if (!commit.last || live.request.max_tokens > 0) return;
  metrics_->PromptTokens(static_cast<uint32_t>(live.request.prompt_tokens.size()),
                         live.cached_tokens);
  TextStream::End end;
  end.reason = FinishReason::kLength;
  End(commit.id, absl::OkStatus(), EndReason::kLength, std::move(end), now);
}

void EngineCore::BeginRecompute(bool all, absl::Time now) {
  for (const auto& [id, live] : live_) {
    if (!live->first_planned.has_value() || !scheduler_.Contains(id)) continue;
    const uint32_t preemptions = scheduler_.Get(id).preemptions;
    const bool lost = all || preemptions > live->preemptions;
    live->preemptions = preemptions;
    if (lost && !live->recompute_since.has_value()) live->recompute_since = now;
  }
}

void EngineCore::EndRecompute(Live& live, absl::Time now) {
  if (!live.recompute_since.has_value()) return;
  (live.first_token.has_value() ? live.recompute_after : live.recompute_before) +=
      Between(*live.recompute_since, now);
  live.recompute_since.reset();
}

void EngineCore::EndAll(const absl::Status& status, EndReason reason, absl::Time now) {
  std::vector<SequenceId> ids;
  ids.reserve(live_.size());
  for (const auto& [id, live] : live_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (SequenceId id : ids) End(id, status, reason, now);
}

void EngineCore::EndExpired(SequenceId id, absl::Time now) {
  const Live& live = *live_.at(id);
  std::string where = "while the request was waiting in the queue";
  if (live.first_planned.has_value() && live.request.max_tokens == 0) {
    where = absl::StrCat("after ", live.scores.size(), " scored tokens");
  } else if (live.first_planned.has_value()) {
    where = absl::StrCat("after ", live.completion_tokens, " of at most ", live.request.max_tokens,
                         " generated tokens");
  }
  End(id, absl::DeadlineExceededError(absl::StrCat("the deadline passed ", where)),
      EndReason::kDeadline, now);
}

void EngineCore::End(SequenceId id, absl::Status status, EndReason reason, TextStream::End finish,
                     absl::Time now) {
  auto entry = live_.find(id);
  CHECK(entry != live_.end()) << "request " << id << " has no end to give any more";
  const std::unique_ptr<Live> live = std::move(entry->second);
  live_.erase(entry);
  const GenerateRequest& request = live->request;
  deadlines_.erase({request.deadline, id});

  RequestSummary summary;
  if (scheduler_.Contains(id)) {  // quarantined and unfit ones are gone from there
    summary.preemptions = scheduler_.Get(id).preemptions;
    scheduler_.Remove(id);
  }
  summary.reason = reason;
  summary.code = status.code();
  summary.prompt_tokens = static_cast<uint32_t>(request.prompt_tokens.size());
  summary.cached_tokens = live->cached_tokens;
  summary.completion_tokens = live->completion_tokens;
  summary.max_tokens = request.max_tokens;
  std::optional<uint32_t> outputs;
  if (status.ok() && request.max_tokens > 0) outputs = live->completion_tokens;
  pace_.RequestEnded(outputs, now);
  EndRecompute(*live, now);
  const absl::Time planned = live->first_planned.value_or(now);
  const absl::Time first_token = live->first_token.value_or(now);
  summary.e2e = Between(request.received, now);
  summary.frontend = Between(request.received, live->accepted);
  summary.queue = Between(live->accepted, planned);
  summary.prefill = Between(planned, first_token) - live->recompute_before;
  summary.after_first_token = Between(first_token, now);
  summary.decode = summary.after_first_token - live->recompute_after;
  summary.recompute = live->recompute_before + live->recompute_after;
  metrics_->Ended(summary);

  RequestEnd end;
  if (status.ok()) {
    end.finish_reason = finish.reason;
    end.matched_stop = std::move(finish.matched_stop);
    end.matched_token = finish.matched_token;
    end.tail_text = std::move(finish.tail_text);
    end.scores = std::move(live->scores);
  }
  end.status = std::move(status);
  end.prompt_tokens = summary.prompt_tokens;
  end.cached_tokens = summary.cached_tokens;
  end.completion_tokens = summary.completion_tokens;
  // What a caller sees has three phases: what came before and in between counts to the next one.
  end.timings = {.queue = summary.frontend + summary.queue,
                 .prefill = summary.prefill + live->recompute_before,
                 .decode = summary.after_first_token};
  observer_->BeforeEnd(id, reason, summary.code);
  live->sink->OnEnd(std::move(end));
}

void EngineCore::Advance(absl::Time now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now)
    EndExpired(deadlines_.begin()->second, now);
  while (scheduler_.has_epoch() && plans_out_.size() < options_.async_depth && PlanStep(now)) {
  }
}

bool EngineCore::PlanStep(absl::Time now) {
  const absl::Time begin = absl::Now();
  const bool idle_plan_due = idle() && now - last_progress_ >= options_.idle_plan_interval;
  const StepSchedule schedule = scheduler_.Schedule(/*allow_empty=*/idle_plan_due, pace_.limit());
  no_room_ = schedule.no_room;
  limited_ = schedule.limited;
  std::unique_ptr<internal::StepPlan> plan;
  if (!schedule.rows.empty() || idle_plan_due) {
    if (plans_out_.empty())
      last_progress_ = now;  // until now there was nothing that could stand still
    plan =
        WriteStepPlan(schedule, {.term = group_.term, .epoch = group_.epoch, .step = ++last_step_});
    plans_out_.push_back({.step = last_step_,
                          .kind = KindOf(schedule),
                          .tokens = schedule.tokens,
                          .rows = static_cast<uint32_t>(schedule.rows.size()),
                          .load = schedule.load,
                          .sent = now});
  }
  metrics_->SchedulerTime(SchedulerOp::kPlan, absl::Now() - begin);
  if (schedule.preempted > 0) {
    metrics_->Preempted(schedule.preempted);
    BeginRecompute(/*all=*/false, now);
  }
  for (const ScheduledRow& row : schedule.rows) {
    if (!row.first_time) continue;
    Live& live = *live_.at(row.sequence->id);
    live.first_planned = now;
    live.cached_tokens = row.start;
    observer_->OnStarted(row.sequence->id);
    live.sink->OnAdmitted();
  }
  for (SequenceId id : schedule.unfit) End(id, KvPoolShrankError(), EndReason::kError, now);
  if (plan == nullptr) {
    DCHECK(scheduler_.steps_in_flight() > 0 || live_.empty() || masks_out_ > 0)
        << live_.size() << " requests stand still";
    return false;
  }
  executor_->Submit(std::move(plan));
  return true;
}

absl::Time EngineCore::NextWakeup() const {
  absl::Time wakeup = deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
  if (scheduler_.has_epoch() && idle())
    wakeup = std::min(wakeup, last_progress_ + options_.idle_plan_interval);
  return wakeup;
}

void EngineCore::FillStats(EngineStats* stats) const {
  const BlockPool& blocks = scheduler_.blocks();
  stats->group = group_state_;
  stats->term = group_.term;
  stats->epoch = group_.epoch;
  stats->steps = steps_;
  stats->epoch_steps = epoch_steps_;
  stats->running = scheduler_.running();
  stats->waiting = scheduler_.waiting();
  stats->blocks_total = blocks.total();
  stats->blocks_free = blocks.free();
  stats->blocks_cached = blocks.cached();
  stats->blocks_used = blocks.used();
  stats->blocks_quarantined = blocks.quarantined();
  stats->tokens = tokens_;
  stats->last_progress = last_progress_;
  stats->preemptions = scheduler_.preemptions();
  stats->stale_outputs = scheduler_.stale_outputs();
  stats->prefix_query_tokens = scheduler_.prefix_queries();
  stats->prefix_hit_tokens = scheduler_.prefix_hits();
  stats->prefix_evicted_blocks = scheduler_.prefix_evictions();
  // While a group is being rebuilt the last one's size is the best guess.
  if (scheduler_.has_epoch()) {
    stats->max_request_tokens = scheduler_.max_sequence_tokens();
    stats->places = scheduler_.limits().max_slots;
    pace_.FillStats(scheduler_.limits().token_budget, stats);
  }
  stats->uncomputed_tokens = scheduler_.uncomputed_prompt_tokens();
  stats->no_room = no_room_ && stats->waiting > 0;
  stats->waiting_deferred = limited_ ? stats->waiting : 0;
  const std::optional<SequenceId> oldest = scheduler_.OldestWaiting();
  stats->oldest_waiting =
      oldest.has_value() ? live_.at(*oldest)->request.received : absl::InfiniteFuture();
}

}  // namespace bitshard
