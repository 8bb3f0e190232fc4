#include "coordinator/frontend/generate_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "coordinator/frontend/to_proto.h"
#include "coordinator/frontend/wire.h"
#include "proto/status_details.h"

namespace bitshard {

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerateCall::Start(
    const FrontendContext* frontend, grpc::CallbackServerContext* context,
    const grpc::ByteBuffer& request) {
  auto call = std::make_shared<GenerateCall>(frontend, context);
  GenerateCall* raw = call.get();
  raw->self_ = std::move(call);
  raw->Begin(request.Length(),
             raw->ParseGenerate(request, v1::GenerateRequest::descriptor()->full_name()));
  return raw;
}

GenerateCall::~GenerateCall() {
  absl::MutexLock lock(&mu_);
  ClearBuffer();
}

void GenerateCall::Refuse(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  FinishWith(status, absl::Now());
}

void GenerateCall::OnAdmitted() {
  {
    absl::MutexLock lock(&mu_);
    admitted_ = true;
  }
  WakeWriter();
}

void GenerateCall::OnDelta(TokenDelta delta) {
  {
    absl::MutexLock lock(&mu_);
    if (finished_) return;
    if (buffer_.empty()) {
      metrics_->StreamBacklog(1);
    } else {
      metrics_->Coalesced();
    }
    buffer_.Push(std::move(delta), absl::Now());
    if (writing_ && !buffer_.TooSlow(absl::Now())) return;  // OnWriteDone takes it along
  }
  WakeWriter();
}

void GenerateCall::OnEnd(RequestEnd end) {
  LogEnd(end.status, end);
  {
    absl::MutexLock lock(&mu_);
    end_ = std::move(end);
  }
  WakeWriter();
}

bool GenerateCall::Pump(absl::Time now) {
  std::optional<TokenDelta> delta;
  std::optional<RequestEnd> end;
  {
    absl::MutexLock lock(&mu_);
    if (done_) return false;
    if (!writing_ && !more_.empty()) {
      writing_ = true;
      write_since_ = now;
      WriteNext();
      return true;
    }
    if (finished_ || writing_) return LookAfterSlowReader(now);
    if (admitted_ && !std::exchange(metadata_sent_, true)) {
      context_->AddInitialMetadata("x-request-id", prepared_.started.request_id());
      StartSendInitialMetadata();
    }
    const bool ended_well = end_ && end_->status.ok();
    if (!buffer_.empty()) {
      delta = buffer_.Take();
      metrics_->StreamBacklog(-1);
    }
    if (!delta && end_ && !ended_well) {
      FinishWith(end_->status, now);
      return true;
    }
    if (!delta && !end_) return false;
    if (ended_well) {
      end = end_;
      finished_ = now;
    }
    writing_ = true;
    write_since_ = now;
    if (delta) next_index_ = delta->first_index + static_cast<uint32_t>(delta->tokens.size());
  }
  // Nobody else writes now: messages are made without the lock, which the engine's thread wants
  // too.
  std::deque<grpc::ByteBuffer> made;
  for (const v1::GenerateResponse& message :
       Messages(delta ? &*delta : nullptr, end ? &*end : nullptr)) {
    made.push_back(Serialize(message));
  }
  absl::MutexLock lock(&mu_);
  if (!end && finished_) return true;  // a slow reader was ended meanwhile; the call may be gone
  if (delta) TokensHanded();
  more_ = std::move(made);
  more_end_ = end.has_value();
  WriteNext();
  return true;
}

void GenerateCall::WriteNext() {
  current_ = std::move(more_.front());
  more_.pop_front();
  if (more_.empty() && more_end_) {
    StartWriteAndFinish(&current_, grpc::WriteOptions(), grpc::Status::OK);
  } else {
    StartWrite(&current_);
  }
}

bool GenerateCall::LookAfterSlowReader(absl::Time now) {
  const absl::Duration patience = frontend_->slow_reader.patience;
  if (finished_) {
    // What is on its way is the last: a client that does not take even that is cut off.
    if (now - *finished_ > 2 * patience && !std::exchange(cut_, true)) context_->TryCancel();
    return true;
  }
  const bool stuck_at_the_end = end_.has_value() && now - write_since_ > patience;
  if (!buffer_.TooSlow(now) && !stuck_at_the_end) return true;
  ClearBuffer();
  if (!end_) CancelInEngine();
  metrics_->SlowReaderEnded();
  FinishWith(WithErrorInfo(absl::ResourceExhaustedError(
                               absl::StrCat("the client reads too slowly: more than ",
                                            frontend_->slow_reader.max_pending_tokens,
                                            " tokens waited for ", absl::FormatDuration(patience),
                                            "; read faster, or resume from token ", next_index_)),
                           "SLOW_READER"),
             now);
  return true;
}

void GenerateCall::ClearBuffer() {
  if (!buffer_.empty()) metrics_->StreamBacklog(-1);
  buffer_.Clear();
}

void GenerateCall::FinishWith(const absl::Status& status, absl::Time now) {
  if (finished_) return;
  finished_ = now;
  more_.clear();
  Finish(EndOfCall(context_, status));
}

std::vector<v1::GenerateResponse> GenerateCall::Messages(const TokenDelta* delta,
                                                         const RequestEnd* end) {
  std::vector<v1::GenerateResponse> messages(1);
  v1::GenerateResponse& message = messages[0];
  message.set_choice(0);
  if (!std::exchange(started_sent_, true)) *message.mutable_started() = prepared_.started;
  if (delta != nullptr && prepared_.engine.score_from.has_value() && delta->first_index == 0) {
    SetTokenScores(prepared_.engine.prompt_tokens, delta->prompt_logprobs,
                   *frontend_->model->tokenizer, message.mutable_prompt_logprobs());
  }
  std::string text;
  if (delta != nullptr) {
    message.set_token_index(delta->first_index);
    message.set_token_count(static_cast<uint32_t>(delta->tokens.size()));
    text = delta->text;
    if (prepared_.send_token_ids) {
      for (const int32_t token : delta->tokens) message.add_token_ids(static_cast<uint32_t>(token));
    }
    for (size_t i = 0; i < delta->logprobs.size() && i < delta->tokens.size(); ++i) {
      SetLogprobs(delta->tokens[i], delta->logprobs[i], *frontend_->model->tokenizer,
                  message.add_logprobs());
    }
  } else {
    message.set_token_index(end != nullptr ? end->completion_tokens : 0);
    message.set_token_count(0);
  }
  if (end != nullptr) text += end->tail_text;
  if (!splitter_) splitter_.emplace(prepared_, /*choice=*/0);
  if (prepared_.send_text) splitter_->Split(text, end != nullptr, &messages);
  if (end != nullptr) splitter_->Finished(*end, messages.back().mutable_finished());
  return messages;
}

void GenerateCall::OnWriteDone(bool ok) {
  {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    if (!ok) {
      // The client has gone; the engine's end will find finished_ set or finish the call.
      ClearBuffer();
      if (!end_) CancelInEngine();
      const bool end_is_unsent = more_end_ && !more_.empty();
      more_.clear();
      if (end_is_unsent) Finish(grpc::Status::CANCELLED);
    }
  }
  Pump(absl::Now());
}

void GenerateCall::OnDone() {
  std::shared_ptr<GenerateCall> self;  // frees this object after the lock
  absl::MutexLock lock(&mu_);
  done_ = true;
  self = std::move(self_);
}

}  // namespace bitshard
