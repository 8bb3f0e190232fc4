// EngineCore: what callers are told while no tokens come (GenerateRequest::status_events).
#include <algorithm>
#include <utility>
#include <vector>

#include "coordinator/engine/engine_core.h"
#include "coordinator/engine/running_load.h"

namespace bitshard {
namespace {

using State = RequestStatus::State;

// Between two looks at the whole queue: for what has changed, and for who has just come. A look
// puts the queue in order, so that those who come to a long one wait for it together.
constexpr absl::Duration kQueueInterval = absl::Milliseconds(500);
constexpr absl::Duration kNewsInterval = absl::Milliseconds(50);
constexpr uint32_t kShortQueue = 64;

}  // namespace

void EngineCore::Tell(Live& live, const RequestStatus& status) {
  if (!live.request.status_events || live.told == status) return;
  live.told = status;
  live.sink->OnStatus(status);
}

void EngineCore::TellQueue(absl::Time now) {
  if (queued_.empty()) queue_news_ = false;
  const bool due = now >= next_queue_look_;
  const bool dear = scheduler_.has_epoch() && scheduler_.waiting() > kShortQueue;
  const bool news = queue_news_ && (!dear || now >= next_news_look_);
  if (queued_.empty() || (!due && !news)) return;
  if (due) next_queue_look_ = now + kQueueInterval;
  next_news_look_ = now + kNewsInterval;
  queue_news_ = false;
  if (!scheduler_.has_epoch()) {
    for (const SequenceId id : queued_) Tell(*live_.at(id), {.state = State::kRecovering});
    return;
  }
  const ServiceRates rates = pace_.Rates(scheduler_.limits().token_budget);
  const bool measured = rates.prefill_token_seconds > 0 || rates.decode_step_seconds > 0;
  std::vector<LevelLoad> levels;
  scheduler_.FillLevelLoads(&levels);
  const RunningLoad running = {.levels = levels,
                               .uncomputed_tokens = scheduler_.uncomputed_prompt_tokens(),
                               .running = scheduler_.running(),
                               .places = scheduler_.limits().max_slots,
                               .no_room = no_room_,
                               .next_is_batch = next_is_batch_};
  QueueAhead ahead;
  size_t left = queued_.size();
  for (const Sequence* sequence : scheduler_.WaitingInOrder()) {
    if (left == 0) break;
    if (queued_.contains(sequence->id)) {
      --left;
      Live& live = *live_.at(sequence->id);
      RequestStatus status{.state = State::kQueued, .ahead = static_cast<uint32_t>(ahead.requests)};
      if (measured) {
        running.Fill(sequence->level, &ahead);
        status.predicted_wait = PredictWait(rates, ahead);
      }
      // That the prediction changes is no news.
      const bool known = live.told.has_value() && live.told->state == State::kQueued;
      if (!known || (due && live.told->ahead != status.ahead)) Tell(live, status);
    }
    ++ahead.requests;
    ahead.prompt_tokens += sequence->n_given;
  }
}

void EngineCore::TellPreempted() {
  for (const auto& [id, live] : live_) {
    if (!live->request.status_events || !live->first_planned.has_value()) continue;
    const bool lost = live->told.has_value() && live->told->state == State::kRecovering;
    if (!lost && RunningOf(*live, scheduler_) == 0) Tell(*live, {.state = State::kPreempted});
  }
}

void EngineCore::TellRecovering() {
  for (const auto& [id, live] : live_) Tell(*live, {.state = State::kRecovering});
}

void EngineCore::TellEntered(const ScheduledRow& row) {
  Live& live = *At(row.sequence->id).request;
  // Another of its choices brings tokens meanwhile.
  if (!live.request.status_events || RunningOf(live, scheduler_) > 1) return;
  Tell(live, {.state = State::kPrefill,
              .computed = row.start,
              .total = static_cast<uint32_t>(row.sequence->tokens.size())});
}

void EngineCore::TellComputed(SequenceId sequence, uint32_t tokens) {
  const std::optional<Place> place = Find(sequence);
  if (!place.has_value() || !scheduler_.Contains(sequence)) return;
  const Sequence& s = scheduler_.Get(sequence);
  // It may have lost them again.
  if (s.computed < tokens || RunningOf(*place->request, scheduler_) > 1) return;
  Tell(*place->request, {.state = State::kPrefill,
                         .computed = tokens,
                         .total = static_cast<uint32_t>(s.tokens.size())});
}

}  // namespace bitshard
