#include "coordinator/frontend/to_proto.h"

#include <cmath>

#include "kernels/base/check.h"

namespace bitshard {

void SetDuration(absl::Duration duration, google::protobuf::Duration* out) {
  absl::Duration rest;
  out->set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &rest));
  out->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
}

absl::Duration FromProto(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

void SetTimestamp(absl::Time time, google::protobuf::Timestamp* out) {
  absl::Duration rest;
  out->set_seconds(absl::IDivDuration(time - absl::UnixEpoch(), absl::Seconds(1), &rest));
  out->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
}

void SetLogprobs(int32_t token, const TokenLogprobs& logprobs, const Tokenizer& tokenizer,
                 v1::TokenLogprobs* out) {
  const auto set = [&](int32_t id, float logprob, v1::Logprob* one) {
    one->set_token_id(static_cast<uint32_t>(id));
    one->set_logprob(logprob);
    one->set_text(tokenizer.Decode({id}, /*skip_special=*/false));
  };
  set(token, logprobs.chosen, out->mutable_chosen());
  for (const auto& [id, logprob] : logprobs.top) set(id, logprob, out->add_top());
}

void SetTokenScores(const std::vector<int32_t>& tokens, const std::vector<TokenLogprobs>& scores,
                    const Tokenizer& tokenizer,
                    google::protobuf::RepeatedPtrField<v1::TokenLogprobs>* out) {
  CHECK_LE(scores.size(), tokens.size());
  const size_t first = tokens.size() - scores.size();
  for (size_t i = 0; i < tokens.size(); ++i) {
    v1::TokenLogprobs& one = *out->Add();
    SetLogprobs(tokens[i], i < first ? TokenLogprobs() : scores[i - first], tokenizer, &one);
    if (i < first) one.mutable_chosen()->clear_logprob();
  }
}

void SetUsage(const RequestEnd& end, v1::Usage* out) {
  out->set_prompt_tokens(end.prompt_tokens);
  out->set_completion_tokens(end.completion_tokens);
  if (end.resumed_tokens > 0) out->set_resumed_tokens(end.resumed_tokens);
  out->set_cached_tokens(end.cached_tokens);
  SetDuration(end.timings.queue, out->mutable_queue_time());
  SetDuration(end.timings.prefill, out->mutable_prefill_time());
  SetDuration(end.timings.decode, out->mutable_decode_time());
}

void SetVector(const std::vector<float>& pooled, size_t count, bool normalize,
               google::protobuf::RepeatedField<float>* out) {
  CHECK_LE(count, pooled.size());
  double squares = 0;  // the square of any float is far from the bounds of a double
  for (size_t i = 0; i < count; ++i) {
    const double x = pooled[i];
    squares += x * x;
  }
  const double length = normalize && squares > 0 ? std::sqrt(squares) : 1;
  out->Reserve(static_cast<int>(count));
  for (size_t i = 0; i < count; ++i) out->Add(static_cast<float>(pooled[i] / length));
}

void SetStatusEvent(const RequestStatus& status, v1::StatusEvent* out) {
  switch (status.state) {
    case RequestStatus::State::kQueued:
      out->set_state(v1::REQUEST_STATE_QUEUED);
      out->set_queue_position(status.ahead);
      if (status.predicted_wait.has_value())
        SetDuration(*status.predicted_wait, out->mutable_predicted_wait());
      break;
    case RequestStatus::State::kPrefill:
      out->set_state(v1::REQUEST_STATE_PREFILL);
      out->set_computed_tokens(status.computed);
      out->set_total_tokens(status.total);
      break;
    case RequestStatus::State::kPreempted:
      out->set_state(v1::REQUEST_STATE_PREEMPTED);
      break;
    case RequestStatus::State::kRecovering:
      out->set_state(v1::REQUEST_STATE_RECOVERING);
      break;
  }
}

void SetUsageOfAll(const RequestEnd& end, v1::Usage* out) {
  RequestEnd all = end;
  all.completion_tokens = end.all.completion_tokens;
  all.timings = end.all.timings;
  SetUsage(all, out);
}

void SetFinished(const RequestEnd& end, v1::Finished* out) {
  CHECK(end.finish_reason.has_value());
  switch (*end.finish_reason) {
    case FinishReason::kStop:
      out->set_reason(v1::FINISH_REASON_STOP);
      break;
    case FinishReason::kLength:
      out->set_reason(v1::FINISH_REASON_LENGTH);
      break;
  }
  if (!end.matched_stop.empty()) {
    out->set_stop(end.matched_stop);
  } else if (end.matched_token) {
    out->set_token_id(static_cast<uint32_t>(*end.matched_token));
  }
  SetUsage(end, out->mutable_usage());
}

void SetLoad(const EngineStats& stats, const LoadBounds& bounds, bool draining, absl::Time now,
             v1::Load* out) {
  out->set_running(stats.running);
  out->set_waiting(stats.waiting);
  v1::BlockCounts& blocks = *out->mutable_blocks();
  blocks.set_total(stats.blocks_total);
  blocks.set_free(stats.blocks_free);
  blocks.set_used(stats.blocks_used);
  blocks.set_cached(stats.blocks_cached);
  blocks.set_quarantined(stats.blocks_quarantined);
  out->set_kv_usage(
      stats.blocks_total == 0 ? 0 : static_cast<double>(stats.blocks_used) / stats.blocks_total);
  out->set_block_tokens(bounds.block_tokens);
  out->set_waiting_tokens(stats.waiting_tokens);
  SetDuration(stats.predicted_wait, out->mutable_predicted_wait());
  out->set_prompt_tokens_per_second(stats.prompt_rate.At(now));
  out->set_generated_tokens_per_second(stats.output_rate.At(now));
  out->set_max_running(stats.places);
  out->set_max_waiting(bounds.max_waiting);
  out->set_max_waiting_tokens(bounds.max_waiting_tokens);
  out->set_draining(draining);
  out->set_running_choices(stats.running_choices);
  out->set_waiting_choices(stats.waiting_choices);
}

}  // namespace bitshard
