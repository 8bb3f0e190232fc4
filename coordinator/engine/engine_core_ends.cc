// EngineCore: how choices and requests end, and the time that they spend making up for lost blocks.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "coordinator/engine/engine_core.h"
#include "kernels/base/check.h"

namespace bitshard {

void EngineCore::BeginRecompute(bool all, absl::Time now) {
  for (const auto& [id, live] : live_) {
    if (!live->first_planned.has_value()) continue;
    bool lost = false;
    for (uint32_t i = 0; i < live->choices.size(); ++i) {
      if (!scheduler_.Contains(id + i)) continue;
      const uint32_t preemptions = scheduler_.Get(id + i).preemptions;
      lost = lost || all || preemptions > live->choices[i].preemptions;
      live->choices[i].preemptions = preemptions;
    }
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
  while (!live_.empty()) End(live_.begin()->first, status, reason, now);
}

void EngineCore::EndExpired(SequenceId id, absl::Time now) {
  const Live& live = *live_.at(id);
  std::string where = "while the request was waiting in the queue";
  if (live.first_planned.has_value() && live.request.pooling != internal::POOLING_NONE) {
    where = "while the input was being computed";
  } else if (live.first_planned.has_value() && live.request.max_tokens == 0) {
    where = absl::StrCat("after ", live.scores.size(), " scored tokens");
  } else if (live.first_planned.has_value()) {
    uint64_t tokens = 0;
    for (const LiveChoice& choice : live.choices) tokens += choice.completion_tokens;
    where =
        absl::StrCat("after ", tokens, " of at most ",
                     uint64_t{live.request.max_tokens} * live.choices.size(), " generated tokens");
  }
  End(id, absl::DeadlineExceededError(absl::StrCat("the deadline passed ", where)),
      EndReason::kDeadline, now);
}

void EngineCore::TakeOut(Live& live, uint32_t index) {
  const SequenceId sequence = live.id + index;
  if (!scheduler_.Contains(sequence)) return;
  live.ended_preemptions += scheduler_.Get(sequence).preemptions;
  scheduler_.Remove(sequence);
}

void EngineCore::EndChoice(const Place& place, TextStream::End finish, absl::Time now) {
  Live& live = *place.request;
  LiveChoice& choice = place.choice();
  live.cut_off = live.cut_off || finish.reason == FinishReason::kLength;
  if (live.ended + 1 == live.choices.size()) {
    End(live.id, absl::OkStatus(), live.cut_off ? EndReason::kLength : EndReason::kStop,
        Complete{.choice = place.index, .finish = std::move(finish)}, now);
    return;
  }
  TakeOut(live, place.index);
  choice.ended = true;
  ++live.ended;
  ++ended_choices_;
  if (place.index == 0 || !options_.prefix_cache) {
    const uint64_t prompt_tokens = live.request.prompt_tokens.size();
    live.ended_prompt_tokens += prompt_tokens;
    ended_prompt_tokens_ += prompt_tokens;
  }
  pace_.ChoiceEnded(choice.completion_tokens);
  live.sink->OnChoiceEnd(EndOf(live, {.choice = place.index, .finish = std::move(finish)}, now));
}

RequestEnd EngineCore::EndOf(const Live& live, Complete complete, absl::Time now) {
  const LiveChoice& choice = live.choices[complete.choice];
  RequestEnd end;
  end.choice = live.request.first_choice + complete.choice;
  end.finish_reason = complete.finish.reason;
  end.matched_stop = std::move(complete.finish.matched_stop);
  end.matched_token = complete.finish.matched_token;
  end.tail_text = std::move(complete.finish.tail_text);
  end.prompt_tokens = static_cast<uint32_t>(live.request.prompt_tokens.size());
  end.cached_tokens = std::min(live.cached_tokens, end.prompt_tokens);
  end.completion_tokens = choice.completion_tokens;
  end.resumed_tokens = static_cast<uint32_t>(live.request.resumed.size());
  end.timings = TimingsOf(live, choice.first_token, now);
  return end;
}

// What a caller sees has three phases: what came before and in between counts to the next one.
RequestTimings EngineCore::TimingsOf(const Live& live, std::optional<absl::Time> first_token,
                                     absl::Time now) {
  const absl::Time planned = live.first_planned.value_or(now);
  const absl::Time token = first_token.value_or(now);
  return {.queue = Between(live.request.received, live.accepted) + Between(live.accepted, planned),
          .prefill = Between(planned, token),
          .decode = Between(token, now)};
}

void EngineCore::End(SequenceId id, absl::Status status, EndReason reason,
                     std::optional<Complete> last, absl::Time now) {
  auto entry = live_.find(id);
  CHECK(entry != live_.end()) << "request " << id << " has no end to give any more";
  const std::unique_ptr<Live> owned = std::move(entry->second);
  Live& live = *owned;
  live_.erase(entry);
  ended_choices_ -= live.ended;
  ended_prompt_tokens_ -= live.ended_prompt_tokens;
  const GenerateRequest& request = live.request;
  deadlines_.erase({request.deadline, id});
  queued_.erase(id);

  RequestSummary summary;
  // What came with the request was not generated here; it was computed as the prompt was.
  const uint32_t resumed = static_cast<uint32_t>(request.resumed.size());
  for (uint32_t i = 0; i < live.choices.size(); ++i) {
    const LiveChoice& choice = live.choices[i];
    if (!choice.ended) TakeOut(live, i);
    const uint32_t generated = choice.completion_tokens - resumed;
    summary.completion_tokens += generated;
    summary.longest_choice = std::max(summary.longest_choice, generated);
  }
  summary.reason = reason;
  summary.code = status.code();
  summary.choices = static_cast<uint32_t>(live.choices.size());
  summary.preemptions = live.ended_preemptions;
  summary.prompt_tokens = static_cast<uint32_t>(request.given_tokens());
  summary.cached_tokens = live.cached_tokens;
  summary.max_tokens = request.max_tokens;
  std::optional<uint32_t> outputs;
  if (last.has_value() && summary.completion_tokens > 0)
    outputs = live.choices[last->choice].completion_tokens - resumed;
  pace_.RequestEnded(outputs, now);
  EndRecompute(live, now);
  const absl::Time planned = live.first_planned.value_or(now);
  const absl::Time first_token = live.first_token.value_or(now);
  summary.e2e = Between(request.received, now);
  summary.frontend = Between(request.received, live.accepted);
  summary.queue = Between(live.accepted, planned);
  summary.prefill = Between(planned, first_token) - live.recompute_before;
  summary.after_first_token = Between(first_token, now);
  summary.decode = summary.after_first_token - live.recompute_after;
  summary.recompute = live.recompute_before + live.recompute_after;
  metrics_->Ended(summary);

  RequestEnd end;
  if (last.has_value()) {
    end = EndOf(live, *std::move(last), now);
    end.scores = std::move(live.scores);
    end.embedding = std::move(live.embedding);
  } else {
    end.prompt_tokens = static_cast<uint32_t>(request.prompt_tokens.size());
    end.cached_tokens = std::min(live.cached_tokens, end.prompt_tokens);
    end.completion_tokens = summary.completion_tokens + resumed;
    end.resumed_tokens = resumed;
    end.timings = TimingsOf(live, live.first_token, now);
  }
  end.status = std::move(status);
  end.all = {.completion_tokens = summary.completion_tokens + resumed,
             .timings = TimingsOf(live, live.first_token, now)};
  observer_->BeforeEnd(id, reason, summary.code);
  // Of a resumed request that had nothing left to do.
  if (last.has_value() && !live.first_planned.has_value()) live.sink->OnAdmitted();
  live.sink->OnEnd(std::move(end));
}

}  // namespace bitshard
