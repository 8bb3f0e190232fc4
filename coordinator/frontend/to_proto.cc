#include "coordinator/frontend/to_proto.h"

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
  out->set_cached_tokens(end.cached_tokens);
  SetDuration(end.timings.queue, out->mutable_queue_time());
  SetDuration(end.timings.prefill, out->mutable_prefill_time());
  SetDuration(end.timings.decode, out->mutable_decode_time());
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
}

}  // namespace bitshard
