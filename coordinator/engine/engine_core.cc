#include "coordinator/engine/engine_core.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

#include "coordinator/engine/deadline.h"
#include "coordinator/engine/error_reason.h"
#include "coordinator/engine/resume.h"
#include "coordinator/engine/sampling.h"
#include "coordinator/schedule/step_planner.h"
#include "kernels/base/check.h"
#include "kernels/base/log.h"

namespace bitshard {
namespace {

using GroupState = EngineStats::GroupState;

SequenceSpec SpecOf(const LiveRequest& live, uint32_t choice, const Tokenizer& tokenizer,
                    const Engine::Options& options) {
  const GenerateRequest& request = live.request;
  SequenceSpec spec;
  spec.id = live.id + choice;
  if (live.has_several()) spec.first_choice = live.id;
  spec.priority = request.priority;
  spec.batch = request.batch;
  spec.tenant = request.caller;
  spec.prompt.assign(request.prompt_tokens.begin(), request.prompt_tokens.end());
  spec.outputs.assign(request.resumed.begin(), request.resumed.end());
  spec.max_tokens = request.max_tokens;
  spec.sampling = SamplingOf(request, tokenizer, options.vocab_size);
  spec.sampling.set_seed(ChoiceSeed(request.seed, request.first_choice + choice));
  if (choice == 0) {
    spec.score_from = request.score_from;  // once is enough
  } else if (!request.logprobs) {
    spec.sampling.set_top_logprobs(0);
  }
  spec.pooling = request.pooling;
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

std::optional<EngineCore::Place> EngineCore::Find(SequenceId sequence) const {
  const auto next = live_.upper_bound(sequence);
  if (next == live_.begin()) return std::nullopt;
  Live* const live = std::prev(next)->second.get();
  const SequenceId index = sequence - live->id;
  if (index >= live->choices.size() || live->choices[index].ended) return std::nullopt;
  return Place{.request = live, .index = static_cast<uint32_t>(index)};
}

EngineCore::Place EngineCore::At(SequenceId sequence) const {
  const std::optional<Place> place = Find(sequence);
  CHECK(place.has_value()) << "sequence " << sequence << " is nobody's";
  return *place;
}

void EngineCore::Accept(Accepted accepted, absl::Time now) {
  const SequenceId id = accepted.id;
  GenerateRequest& request = accepted.request;
  absl::Status replayed;
  if (!request.resumed.empty() && request.replayed == nullptr) {
    absl::StatusOr<ResumedAnswer> answer = ReplayResumed(request, tokenizer_, /*text=*/nullptr);
    replayed = answer.status();
    if (answer.ok()) request.replayed = std::make_shared<const ResumedAnswer>(*std::move(answer));
  }
  auto owned =
      std::make_unique<Live>(id, std::move(accepted.request), std::move(accepted.sink), tokenizer_);
  Live& live = *owned;
  live_.emplace(id, std::move(owned));
  live.accepted = now;
  if (live.request.deadline != absl::InfiniteFuture())
    deadlines_.emplace(live.request.deadline, id);
  if (live.request.status_events) {
    queued_.insert(id);
    queue_news_ = true;
  }
  if (!replayed.ok()) {
    End(id, std::move(replayed), EndReason::kError, now);
    return;
  }
  if (live.request.replayed != nullptr && live.request.replayed->end.has_value()) {
    EndChoice({.request = &live, .index = 0}, *live.request.replayed->end, now);
    return;
  }
  AddChoice(live, 0, now);
  if (!live_.contains(id)) return;
  // Without the cache they have nothing to wait for.
  if (!options_.prefix_cache) Release(live, now);
  // Admission looked at the group a moment ago; it may have been lost since.
  if (options_.fail_on_group_loss && !scheduler_.has_epoch()) {
    End(id, WorkerLostError(group_cause_), EndReason::kWorkerLost, now);
  }
}

void EngineCore::AddChoice(Live& live, uint32_t index, absl::Time now) {
  const SequenceId sequence = live.id + index;
  scheduler_.Add(SpecOf(live, index, *tokenizer_, options_));
  const GenerateRequest& request = live.request;
  if (request.grammar == nullptr) return;
  const bool end_tokens = !request.ignore_eos;
  const auto place = std::make_shared<GrammarPlace>();
  place->grammar = request.grammar;
  place->end_tokens = end_tokens;
  place->tenant = request.caller;
  live.choices[index].place = place;
  if (request.resumed.empty()) {
    scheduler_.SetMask(sequence, request.grammar->FirstMask(end_tokens));
  } else {
    FindMask(sequence, request.resumed, now);  // which may be the request's end
  }
}

void EngineCore::Release(Live& live, absl::Time now) {
  if (std::exchange(live.released, true)) return;
  for (uint32_t i = 1; i < live.choices.size(); ++i) AddChoice(live, i, now);
}

void EngineCore::Cancel(SequenceId id, absl::Time now, absl::string_view why) {
  auto live = live_.find(id);
  if (live == live_.end()) return;
  const GenerateRequest& request = live->second->request;
  const absl::Time begun =
      request.received == absl::InfinitePast() ? live->second->accepted : request.received;
  if (EndedByDeadline(begun, request.deadline, now)) {
    EndExpired(id, now);
  } else {
    End(id, absl::CancelledError(why), EndReason::kCancelled, now);
  }
}

void EngineCore::GroupReady(const GroupInfo& info, absl::Time now) {
  if (scheduler_.has_epoch()) {
    GroupLost(group_.term, group_.epoch, absl::UnavailableError("replaced by a new group"), now);
  }
  SchedulerLimits limits;
  limits.total_blocks = info.cache_blocks;
  limits.block_tokens = info.block_tokens;
  limits.token_budget = std::min(options_.token_budget, info.max_step_tokens);
  // Each that decodes needs a token of every step.
  limits.max_slots = std::min({options_.max_running, info.max_slots, limits.token_budget});
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
  queue_news_ = true;
  next_news_look_ = now;
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
  if (options_.fail_on_group_loss) {
    EndAll(WorkerLostError(group_cause_), EndReason::kWorkerLost, now);
  } else {
    TellRecovering();
  }
}

void EngineCore::Advance(absl::Time now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now)
    EndExpired(deadlines_.begin()->second, now);
  while (scheduler_.has_epoch() && plans_out_.size() < options_.async_depth && PlanStep(now)) {
  }
  TellQueue(now);
}

bool EngineCore::PlanStep(absl::Time now) {
  const absl::Time begin = absl::Now();
  // Also while all that is live waits for masks: the workers' steps are shown to make progress.
  const bool idle_plan_due =
      plans_out_.empty() && now - last_progress_ >= options_.idle_plan_interval;
  const StepSchedule schedule = scheduler_.Schedule(/*allow_empty=*/idle_plan_due, pace_.limit());
  no_room_ = schedule.no_room;
  next_is_batch_ = schedule.next_is_batch;
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
                          .sent = now,
                          .computed = {}});
  }
  metrics_->SchedulerTime(SchedulerOp::kPlan, absl::Now() - begin);
  if (schedule.preempted > 0) {
    metrics_->Preempted(schedule.preempted);
    BeginRecompute(/*all=*/false, now);
    TellPreempted();
  }
  std::vector<Live*> computed;  // prompts, of which others wait to be used
  for (const ScheduledRow& row : schedule.rows) {
    const bool prompt_ends = row.sample && !row.is_decode();
    if (!row.enters && !prompt_ends && row.sample) continue;
    const Place place = At(row.sequence->id);
    Live& live = *place.request;
    if (row.first_time) {
      if (place.index == 0) {
        live.cached_tokens = row.start;
        pace_.Entered(row.sequence->n_given, row.start);
      }
      const bool is_first = !live.first_planned.has_value();
      if (is_first) live.first_planned = now;
      observer_->OnStarted(live.id, place.index);
      if (is_first) live.sink->OnAdmitted();
      queued_.erase(live.id);
    }
    if (row.enters) TellEntered(row);
    if (!row.sample && live.request.status_events)
      plans_out_.back().computed.emplace_back(row.sequence->id, row.start + row.n_tokens);
    if (prompt_ends && !live.released) computed.push_back(&live);
  }
  for (Live* live : computed) Release(*live, now);
  for (SequenceId sequence : schedule.unfit) {
    const std::optional<Place> place = Find(sequence);
    if (place.has_value()) End(place->request->id, KvPoolShrankError(), EndReason::kError, now);
  }
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
  if (scheduler_.has_epoch() && plans_out_.empty())
    wakeup = std::min(wakeup, last_progress_ + options_.idle_plan_interval);
  if (queue_news_) wakeup = std::min(wakeup, next_news_look_);
  return wakeup;
}

void EngineCore::FillStats(EngineStats* stats) const {
  const BlockPool& blocks = scheduler_.blocks();
  stats->group = group_state_;
  stats->term = group_.term;
  stats->epoch = group_.epoch;
  stats->steps = steps_;
  stats->epoch_steps = epoch_steps_;
  stats->running = scheduler_.running_requests();
  stats->running_choices = scheduler_.running();
  stats->ended_choices = ended_choices_;
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
    // As long as nothing has ended: the running ones have had so many at least.
    if (stats->rates.outputs == 0 && scheduler_.running() > 0) {
      stats->rates.outputs =
          static_cast<double>(scheduler_.running_outputs()) / scheduler_.running();
    }
  }
  scheduler_.FillLevelLoads(&stats->level_loads);
  stats->uncomputed_tokens = scheduler_.uncomputed_prompt_tokens();
  stats->no_room = no_room_ && scheduler_.waiting() > 0;
  stats->next_is_batch = next_is_batch_;
  stats->waiting_deferred = limited_ ? static_cast<uint32_t>(live_.size()) - stats->running : 0;
  const std::optional<SequenceId> oldest = scheduler_.OldestWaiting();
  stats->oldest_waiting =
      oldest.has_value() ? At(*oldest).request->request.received : absl::InfiniteFuture();
}

uint64_t EngineCore::taken_prompt_tokens() const {
  // With the cache the prompt is the first choice's.
  const uint64_t not_counted = options_.prefix_cache ? scheduler_.running_further_tokens() : 0;
  return scheduler_.running_prompt_tokens() - not_counted + ended_prompt_tokens_;
}

}  // namespace bitshard
