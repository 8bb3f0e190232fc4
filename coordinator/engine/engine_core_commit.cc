// EngineCore: what comes back of a step, and becomes tokens, scores, vectors and masks.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "coordinator/engine/engine_core.h"
#include "coordinator/engine/error_reason.h"
#include "coordinator/engine/sampling.h"
#include "kernels/base/check.h"
#include "kernels/base/log.h"

namespace bitshard {

void EngineCore::StepDone(const internal::StepResult& result, absl::Time now) {
  if (!scheduler_.has_epoch() || result.term() != group_.term || result.epoch() != group_.epoch)
    return;
  if (plans_out_.empty() || result.step() != plans_out_.front().step) {
    LogError("engine: result out of order step={} expected={}", result.step(),
             plans_out_.empty() ? 0 : plans_out_.front().step);
    return;
  }
  const PlanOut plan = std::move(plans_out_.front());
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
  const std::vector<Commit> commits = scheduler_.CommitStep(result);
  // All of them first: the end of a request takes its other choices out, and what they hold must
  // not go into the prefix cache; nor must what a step may not have written.
  for (const Commit& commit : commits) {
    if (commit.kind == Commit::Kind::kNonFinite || commit.kind == Commit::Kind::kMissing)
      scheduler_.Quarantine(commit.id);
  }
  for (const Commit& commit : commits) {
    const std::optional<Place> place = Find(commit.id);
    if (!place.has_value()) continue;  // another choice's end was its request's
    const SequenceId id = place->request->id;
    switch (commit.kind) {
      case Commit::Kind::kToken:
        ++committed;
        CommitToken(commit, now);
        break;
      case Commit::Kind::kScores:
        CommitScores(commit, now);
        break;
      case Commit::Kind::kEmbedding:
        CommitEmbedding(commit, now);
        break;
      case Commit::Kind::kNonFinite:
        LogError("engine: non-finite logits request_id=\"{}\" output_index={} step={}",
                 absl::CHexEscape(place->request->request.request_id), commit.output_index,
                 result.step());
        metrics_->NonFinite();
        End(id, NonFiniteError(commit.output_index), EndReason::kError, now);
        break;
      case Commit::Kind::kNoneAllowed:
        End(id,
            NoTokenAllowedError(commit.output_index,
                                ForbiddingFields(place->request->request, commit.output_index)),
            EndReason::kError, now);
        break;
      case Commit::Kind::kMissing:
        End(id,
            absl::InternalError(absl::StrCat("the workers returned no valid token for output ",
                                             commit.output_index, " in step ", result.step())),
            EndReason::kError, now);
        break;
    }
  }
  for (const auto& [sequence, tokens] : plan.computed) TellComputed(sequence, tokens);
  if (committed > 0) metrics_->GeneratedTokens(committed);
  pace_.StepEnded(plan.load, pace, committed, now);
  metrics_->SchedulerTime(SchedulerOp::kCommit, absl::Now() - begin);
}

void EngineCore::CommitToken(const Commit& commit, absl::Time now) {
  const Place place = At(commit.id);
  Live& live = *place.request;
  LiveChoice& choice = place.choice();
  const int32_t token = static_cast<int32_t>(commit.output->token());
  ++tokens_;
  ++choice.completion_tokens;
  EndRecompute(live, now);
  if (!live.first_token.has_value()) {
    live.first_token = now;
    metrics_->PromptTokens(static_cast<uint32_t>(live.request.given_tokens()), live.cached_tokens);
  }
  if (!choice.first_token.has_value()) {
    choice.first_token = now;
  } else {
    metrics_->InterToken(Between(*choice.last_token, now));
  }
  choice.last_token = now;

  TextStream::Piece piece =
      choice.text.Push(token, choice.completion_tokens == live.request.max_tokens);
  TokenDelta delta;
  delta.choice = live.request.first_choice + place.index;
  delta.tokens = {token};
  delta.first_index = commit.output_index;
  delta.text = std::move(piece.text);
  if (place.index == 0) delta.prompt_logprobs = std::exchange(live.scores, {});
  if (live.request.logprobs) {
    TokenLogprobs logprobs;
    logprobs.chosen = commit.output->logprob();
    for (const internal::TokenLogprob& top : commit.output->top()) {
      logprobs.top.emplace_back(static_cast<int32_t>(top.token()), top.logprob());
    }
    delta.logprobs.push_back(std::move(logprobs));
  }
  live.sink->OnDelta(std::move(delta));
  if (piece.end.has_value()) {
    EndChoice(place, *std::move(piece.end), now);
  } else if (choice.place != nullptr) {
    FindMask(commit.id, {token}, now);
  }
}

void EngineCore::FindMask(SequenceId sequence, std::vector<int32_t> tokens, absl::Time now) {
  const Place at = At(sequence);
  const LiveChoice& choice = at.choice();
  const size_t resumed = at.request->request.resumed.size();
  MaskJob job{.id = sequence,
              .output_index = choice.completion_tokens,
              .place = choice.place,
              .tokens = std::move(tokens),
              .resumed = choice.completion_tokens == resumed};
  ++masks_out_;
  if (masks_ != nullptr) {
    masks_->Run(std::move(job));
  } else {
    MaskDone(RunMaskJob(job), now);
  }
}

void EngineCore::MaskDone(MaskResult result, absl::Time now) {
  --masks_out_;
  const std::optional<Place> place = Find(result.id);
  if (!place.has_value()) return;
  CHECK_EQ(result.output_index, place->choice().completion_tokens) << "sequence " << result.id;
  if (!result.status.ok()) {
    End(place->request->id, std::move(result.status), EndReason::kError, now);
  } else if (result.ended) {
    EndChoice(*place, place->choice().text.Stop(), now);
  } else {
    scheduler_.SetMask(result.id, std::move(result.mask));
  }
}

void EngineCore::CommitScores(const Commit& commit, absl::Time now) {
  const Place place = At(commit.id);
  Live& live = *place.request;
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
  if (commit.last && live.request.max_tokens == 0) EndGiven(place, now);
}

void EngineCore::CommitEmbedding(const Commit& commit, absl::Time now) {
  const Place place = At(commit.id);
  const auto& values = commit.embedding->values();
  place.request->embedding.assign(values.begin(), values.end());
  EndGiven(place, now);
}

void EngineCore::EndGiven(const Place& place, absl::Time now) {
  metrics_->PromptTokens(static_cast<uint32_t>(place.request->request.prompt_tokens.size()),
                         place.request->cached_tokens);
  TextStream::End end;
  end.reason = FinishReason::kLength;
  EndChoice(place, std::move(end), now);
}

}  // namespace bitshard
