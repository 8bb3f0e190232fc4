#include "tests/coordinator/simulator/plan_rules.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace bitshard::sim {

void PlanRules::Before(const Scheduler& scheduler, const std::vector<SequenceId>& ids) {
  std::map<SequenceId, Seen> seen;
  for (const SequenceId id : ids) {
    if (!scheduler.Contains(id)) continue;
    const Sequence& sequence = scheduler.Get(id);
    auto known = seen_.find(id);
    Seen& now = seen[id];
    if (known != seen_.end()) now = known->second;
    now.slot = sequence.slot;
    now.preemptions = sequence.preemptions;
    now.has_run = sequence.has_run;
  }
  seen_ = std::move(seen);
}

void PlanRules::Check(const internal::StepPlan& plan, const Scheduler& scheduler,
                      const std::vector<SequenceId>& ids) {
  if (!FindRows(plan, scheduler, ids)) return;
  CheckBudgets();
  CheckOrder(scheduler);
  if (!forgiven_) CheckVictims(scheduler);
  forgiven_ = false;
  CheckShares(scheduler, ids);
  Before(scheduler, ids);  // the engine may plan another one at once
}

bool PlanRules::FindRows(const internal::StepPlan& plan, const Scheduler& scheduler,
                         const std::vector<SequenceId>& ids) {
  absl::flat_hash_map<uint32_t, const Sequence*> by_slot;
  for (const SequenceId id : ids) {
    if (!scheduler.Contains(id)) continue;
    const Sequence& sequence = scheduler.Get(id);
    if (sequence.slot.has_value()) by_slot.emplace(sequence.slot->slot, &sequence);
  }
  const bool gone = std::any_of(seen_.begin(), seen_.end(),
                                [&](const auto& seen) { return !scheduler.Contains(seen.first); });
  std::set<uint32_t> entering;
  for (const internal::NewSequence& sequence : plan.new_sequences())
    entering.insert(sequence.slot());
  rows_.clear();
  for (int i = 0; i < plan.slot_size(); ++i) {
    auto found = by_slot.find(plan.slot(i));
    if (found == by_slot.end() || found->second->slot->gen != plan.slot_gen(i)) {
      // The choice of a request that ended just now, because another one of it did not fit.
      if (gone) continue;
      world_->Fail(absl::StrCat("step ", plan.step(), " has a row for generation ",
                                plan.slot_gen(i), " of slot ", plan.slot(i),
                                ", which no sequence holds"));
      return false;
    }
    auto seen = seen_.find(found->second->id);
    rows_.push_back({.sequence = found->second,
                     .start = plan.start(i),
                     .n_tokens = plan.n_tokens(i),
                     .enters = entering.contains(plan.slot(i)),
                     .samples = (plan.flags(i) & internal::ROW_SAMPLE) != 0,
                     .first_time = seen == seen_.end() || !seen->second.has_run});
  }
  return true;
}

void PlanRules::CheckBudgets() const {
  uint64_t tokens = 0;
  for (const Row& row : rows_) {
    tokens += row.n_tokens;
    if (options_.prefill_chunk > 0 && row.n_tokens > options_.prefill_chunk)
      world_->Fail(absl::StrCat("a row of ", row.n_tokens, " tokens, at most ",
                                options_.prefill_chunk, " of one sequence"));
  }
  if (tokens > options_.token_budget)
    world_->Fail(
        absl::StrCat("a step of ", tokens, " tokens, the budget is ", options_.token_budget));
}

void PlanRules::CheckOrder(const Scheduler& scheduler) const {
  if (scheduler.running() > options_.max_running)
    world_->Fail(absl::StrCat(scheduler.running(), " run, at most ", options_.max_running));
  bool batch = false, prompts = false;
  for (const Row& row : rows_) {
    const Sequence& sequence = *row.sequence;
    batch = batch || sequence.level.batch;
    const bool decodes = row.samples && row.n_tokens == 1 && row.start >= sequence.n_prompt;
    prompts = prompts || (!sequence.level.batch && !decodes);
  }
  for (const auto& [id, seen] : seen_) {
    if (!scheduler.Contains(id)) continue;  // it did not fit any more
    const Sequence& other = scheduler.Get(id);
    if (!other.slot.has_value()) {
      if (batch && !other.level.batch)
        world_->Fail(absl::StrCat("a batch sequence is served while ", id, " waits"));
      for (const Row& row : rows_) {
        if (row.enters && other.level < row.sequence->level)
          world_->Fail(absl::StrCat("sequence ", row.sequence->id, " enters while ", id,
                                    " waits at an earlier level"));
      }
      continue;
    }
    if (!prompts || other.level.batch || seen.slot != other.slot || other.pending() != 1) continue;
    const bool served = std::any_of(rows_.begin(), rows_.end(),
                                    [&](const Row& row) { return row.sequence == &other; });
    if (!served)
      world_->Fail(absl::StrCat("prompts are computed while ", id, ", which decodes, pauses"));
  }
}

void PlanRules::CheckVictims(const Scheduler& scheduler) const {
  for (const auto& [id, before] : seen_) {
    if (!scheduler.Contains(id) || scheduler.Get(id).preemptions == before.preemptions) continue;
    const Sequence& victim = scheduler.Get(id);
    for (const auto& [other_id, other_before] : seen_) {
      if (other_id == id || !scheduler.Contains(other_id) || !other_before.slot.has_value())
        continue;
      const Sequence& other = scheduler.Get(other_id);
      if (other.slot == other_before.slot && ServedBefore()(&victim, &other))
        world_->Fail(absl::StrCat("sequence ", id, " is preempted, but ", other_id,
                                  ", which comes after it, goes on"));
    }
  }
}

double PlanRules::WeightOf(const std::string& tenant) const {
  auto weight = options_.tenant_weights.find(tenant);
  return weight == options_.tenant_weights.end() ? 1 : weight->second;
}

void PlanRules::CheckShares(const Scheduler& scheduler, const std::vector<SequenceId>& ids) {
  for (const Row& row : rows_) {
    const Sequence& sequence = *row.sequence;
    Seen& paid = seen_[sequence.id];
    const uint32_t end = std::min(row.start + row.n_tokens, sequence.n_prompt);
    const uint32_t begin = std::max(row.start, paid.paid_prompt);
    double cost = begin < end ? end - begin : 0;
    paid.paid_prompt = std::max(paid.paid_prompt, end);
    if (row.samples && sequence.outputs() + sequence.in_flight > paid.paid_outputs) {
      cost += FairQueue::kOutputWeight;
      paid.paid_outputs = sequence.outputs() + sequence.in_flight;
    }
    service_[{sequence.level, sequence.tenant}] += cost / WeightOf(sequence.tenant);
  }
  // Those that have something waiting that has never run.
  std::set<Tenant> waiting;
  for (const SequenceId id : ids) {
    if (!scheduler.Contains(id)) continue;
    const Sequence& sequence = scheduler.Get(id);
    if (!sequence.slot.has_value() && !sequence.has_run)
      waiting.insert({sequence.level, sequence.tenant});
  }
  std::erase_if(contests_, [&](const auto& contest) {
    const Tenant& first = contest.first.first;
    return !waiting.contains(first) || !waiting.contains({first.first, contest.first.second});
  });
  for (auto first = waiting.begin(); first != waiting.end(); ++first) {
    for (auto second = std::next(first); second != waiting.end(); ++second) {
      if (first->first != second->first) break;  // another level
      const double a = service_[*first], b = service_[*second];
      auto [contest, is_new] = contests_.try_emplace({*first, second->second}, Contest{a, b});
      if (is_new) continue;
      ++share_checks_;
      const double gap = (a - contest->second.first_begin) - (b - contest->second.second_begin);
      // What runs already goes on, on both sides, at the begin and now.
      const double bound = 2 * options_.max_running * most_cost_ *
                           (1 / WeightOf(first->second) + 1 / WeightOf(second->second));
      if (std::abs(gap) > bound)
        world_->Fail(absl::StrCat("tenants \"", first->second, "\" and \"", second->second,
                                  "\" both wait, but one has had ", std::abs(gap),
                                  " weighted tokens more than the other, at most ", bound));
    }
  }
}

}  // namespace bitshard::sim
