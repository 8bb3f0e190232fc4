#include "tests/coordinator/simulator/simulation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "coordinator/engine/sampling.h"
#include "kernels/base/checked_math.h"
#include "tests/coordinator/simulator/short_status.h"

namespace bitshard::sim {
namespace {

// A group that has its workers again is ready within this: silence is noticed, they back off, load
// and join, and may have to do all that again.
constexpr int64_t kReadyWithin = 90 * kSecond;
// A step, with messages, delays and slow ranks.
constexpr int64_t kStepWithin = 300 * kMillisecond;

}  // namespace

void Met::Add(const Met& other) {
  schedules += other.schedules;
  requests += other.requests;
  rejected += other.rejected;
  tokens += other.tokens;
  steps += other.steps;
  for (const auto& [code, count] : other.ends) ends[code] += count;
  preemptions += other.preemptions;
  stale_outputs += other.stale_outputs;
  cached_tokens += other.cached_tokens;
  evicted_blocks += other.evicted_blocks;
  lost_groups += other.lost_groups;
  quarantined_blocks += other.quarantined_blocks;
  shared_quarantines += other.shared_quarantines;
  bad_block_victims += other.bad_block_victims;
  share_checks += other.share_checks;
}

std::string Met::ToString() const {
  std::string text = absl::StrCat(schedules, " schedules, ", steps, " steps, ", tokens, " tokens, ",
                                  requests, " requests accepted, ", rejected, " refused; ended");
  for (const auto& [code, count] : ends)
    absl::StrAppend(&text, " ", absl::StatusCodeToString(code), " ", count);
  absl::StrAppend(&text, "; ", preemptions, " preemptions, ", stale_outputs, " stale outputs, ",
                  cached_tokens, " cached tokens, ", evicted_blocks, " evicted blocks, ",
                  lost_groups, " lost groups, ", quarantined_blocks, " quarantined blocks, ",
                  shared_quarantines, " times shared ones, ", bad_block_victims,
                  " victims of bad blocks, ", share_checks, " share checks");
  return text;
}

Simulation::Simulation(uint64_t seed, const Tokenizer* tokenizer, const TraceOptions& trace)
    : scenario_(MakeScenario(seed)),
      world_(seed, trace),
      rules_(scenario_.engine.engine, &world_),
      fleet_(scenario_.fleet, &world_),
      tap_(this),
      engine_(scenario_.engine, tokenizer, &tap_, &world_,
              {.on_ready = [this](const GroupInfo& info) { OnReady(info); },
               .before_plans = [this] { rules_.Before(engine_.core().scheduler(), Ids()); }}) {
  circumstances_.too_large = [this](uint64_t tokens) {
    const Scheduler& scheduler = engine_.core().scheduler();
    return scheduler.has_epoch() &&
           CeilDiv(tokens - 1, scheduler.limits().block_tokens) > scheduler.blocks().usable();
  };
  double most_cost = 0;
  for (const Arrival& arrival : scenario_.arrivals)
    most_cost = std::max(most_cost, static_cast<double>(arrival.request.prompt_tokens.size() +
                                                        2 * arrival.request.max_tokens));
  rules_.set_most_cost(most_cost);
  to_come_ = scenario_.arrivals.size();
}

void Simulation::Tap::Submit(std::unique_ptr<internal::StepPlan> plan) {
  Simulation& s = *simulation_;
  const Scheduler& scheduler = s.engine_.core().scheduler();
  if (!scheduler.has_epoch()) {
    s.world_.Fail(absl::StrCat("step ", plan->step(), " of epoch ", plan->epoch(),
                               " is planned after the end of its epoch"));
    return;
  }
  // Who had to leave its slot because blocks were set aside was not pushed out.
  const uint64_t quarantined = scheduler.blocks().quarantined();
  if (quarantined != s.quarantined_ || scheduler.blocks().condemned() > 0) s.rules_.Forgive();
  s.quarantined_ = quarantined;
  s.most_quarantined_ = std::max(s.most_quarantined_, quarantined);
  s.rules_.Check(*plan, scheduler, s.Ids());
  s.fleet_.Submit(std::move(plan));
}

const std::vector<SequenceId>& Simulation::Ids() {
  ids_.clear();
  for (const auto& call : calls_) {
    if (call->ended()) continue;
    for (uint32_t choice = 0; choice < call->request().choices; ++choice)
      ids_.push_back(call->id() + choice);
  }
  return ids_;
}

void Simulation::OnReady(const GroupInfo&) {
  quarantined_ = 0;
  rules_.Forgive();
  if (std::exchange(started_, true)) return;
  for (const Arrival& arrival : scenario_.arrivals)
    world_.events.After(arrival.at_us, [this, &arrival] { Send(arrival); });
  if (scenario_.drain_at_us.has_value())
    world_.events.After(*scenario_.drain_at_us, [this] { Drain(); });
  fleet_.StartFaults(/*drop_after_us=*/5 * kSecond);
}

void Simulation::Send(const Arrival& arrival) {
  --to_come_;
  last_news_us_ = world_.events.now();
  GenerateRequest request = arrival.request;
  if (arrival.deadline_after_us > 0)
    request.deadline = world_.events.time() + absl::Microseconds(arrival.deadline_after_us);
  const bool duplicate = std::any_of(calls_.begin(), calls_.end(), [&](const auto& call) {
    return !call->ended() && call->request().request_id == request.request_id &&
           call->request().caller == request.caller;
  });
  auto call = std::make_shared<Call>(request, &circumstances_, &world_);
  const absl::StatusOr<SequenceId> id = engine_.Submit(request, call);
  world_.Note([&] {
    return absl::StrCat("request ", request.request_id,
                        id.ok() ? absl::StrCat(" is accepted as ", *id)
                                : absl::StrCat(" is refused: ", Short(id.status())));
  });
  if (!id.ok()) {
    ++rejected_;
    const absl::StatusCode code = id.status().code();
    const bool expected =
        code == absl::StatusCode::kResourceExhausted ||
        (code == absl::StatusCode::kAlreadyExists && duplicate) ||
        (code == absl::StatusCode::kFailedPrecondition &&
         (!engine_.has_group() || circumstances_.too_large(request.prompt_tokens.size() +
                                                           std::max(1u, request.max_tokens)))) ||
        (code == absl::StatusCode::kUnavailable &&
         (scenario_.drain_at_us.has_value() ||
          (scenario_.engine.engine.fail_on_group_loss && fleet_.was_lost())));
    if (!expected) world_.Fail(absl::StrCat("no reason to refuse: ", Short(id.status())));
    return;
  }
  if (duplicate) world_.Fail("two live requests have one name");
  call->set_id(*id);
  calls_.push_back(call);
  if (!arrival.cancelled_after_us.has_value()) return;
  call->set_cancelled();
  world_.events.After(*arrival.cancelled_after_us, [this, call, by_name = arrival.by_name] {
    if (call->ended()) return;
    world_.Note([&] { return absl::StrCat("request ", call->id(), " is cancelled"); });
    if (by_name) {
      engine_.Abort(call->request().caller, call->request().request_id);
    } else {
      engine_.Cancel(call->id());
    }
  });
}

void Simulation::Drain() {
  world_.Note([] { return std::string("drain"); });
  engine_.Close();
  world_.events.After(*scenario_.drain_for_us, [this] {
    circumstances_.draining = true;
    engine_.EndAll();
  });
}

bool Simulation::Over() {
  return to_come_ == 0 && started_ && engine_.admitted_live() == 0 && engine_.quiet() &&
         engine_.has_group() && fleet_.state() == Group::State::kReady &&
         engine_.core().scheduler().steps_in_flight() == 0;
}

Outcome Simulation::Run() {
  fleet_.Start(&engine_);
  // All tokens, and all of them again for each that may push others out: nobody waits longer.
  uint64_t tokens = 0;
  for (const Arrival& arrival : scenario_.arrivals)
    tokens += arrival.request.choices *
              (arrival.request.prompt_tokens.size() + arrival.request.max_tokens);
  const int64_t work_us = static_cast<int64_t>(tokens * scenario_.arrivals.size()) * kStepWithin;
  uint64_t losses = 0;
  while (!world_.violation().has_value() && !Over()) {
    if (!world_.events.RunNext()) world_.Fail("nothing will ever happen any more");
    if (fleet_.losses() != losses) {
      losses = fleet_.losses();
      circumstances_.lost_ends = scenario_.engine.engine.fail_on_group_loss;
    }
    const int64_t quiet_since = std::max(last_news_us_, fleet_.disturbed_until());
    if (world_.events.now() > quiet_since + kReadyWithin + (started_ ? work_us : 0))
      world_.Fail(absl::StrCat("no end: ", engine_.admitted_live(), " requests are left, group ",
                               Name(fleet_.state())));
  }
  if (!world_.violation().has_value()) CheckEnd();

  Outcome outcome;
  outcome.violation = world_.violation();
  outcome.trace.assign(world_.trace().begin(), world_.trace().end());
  if (outcome.violation.has_value()) outcome.scenario = scenario_.Describe();
  const Scheduler& scheduler = engine_.core().scheduler();
  Met& met = outcome.met;
  met.schedules = 1;
  met.requests = calls_.size();
  met.rejected = rejected_;
  for (const auto& call : calls_) {
    met.tokens += call->tokens();
    if (!call->ended()) continue;
    ++met.ends[call->code()];
    met.bad_block_victims += call->bad_block_victim();
  }
  met.steps = engine_.steps();
  met.preemptions = scheduler.preemptions();
  met.stale_outputs = scheduler.stale_outputs();
  met.cached_tokens = scheduler.prefix_hits();
  met.evicted_blocks = scheduler.prefix_evictions();
  met.lost_groups = fleet_.losses();
  met.quarantined_blocks = most_quarantined_;
  met.shared_quarantines = engine_.shared_quarantines();
  met.share_checks = rules_.share_checks();
  return outcome;
}

void Simulation::CheckEnd() {
  const Switchboard& switchboard = fleet_.switchboard();
  uint64_t victims = 0;
  for (const auto& call : calls_) {
    if (!call->ended()) world_.Fail(absl::StrCat("request ", call->id(), " has no end"));
    if (!call->bad_block_victim()) continue;
    ++victims;
    bool wrote = false;
    for (uint32_t choice = 0; choice < call->request().choices; ++choice)
      wrote =
          wrote || switchboard.has_written_to_bad_block(ChoiceSeed(call->request().seed, choice));
    if (!wrote)
      world_.Fail(absl::StrCat("request ", call->id(),
                               " ends INTERNAL, but nothing of its own was not finite"));
  }
  if (victims > switchboard.bad_blocks_met())
    world_.Fail(absl::StrCat(victims, " requests end because of bad blocks, of which ",
                             switchboard.bad_blocks_met(), " were met"));
  const Scheduler& scheduler = engine_.core().scheduler();
  const BlockPool& blocks = scheduler.blocks();
  if (blocks.used() != 0 || scheduler.running() != 0 || scheduler.waiting() != 0)
    world_.Fail(absl::StrCat("all requests have ended, but ", blocks.used(), " blocks are used, ",
                             scheduler.running(), " sequences run and ", scheduler.waiting(),
                             " wait"));
  if (blocks.free() + blocks.cached() + blocks.quarantined() != blocks.total())
    world_.Fail("blocks have gone");
  if (const absl::Status status = scheduler.CheckInvariants(); !status.ok())
    world_.Fail(absl::StrCat("scheduler, at the end: ", status.message()));
}

}  // namespace bitshard::sim
