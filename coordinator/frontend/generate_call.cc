#include "coordinator/frontend/generate_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

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
  raw->Begin(request);
  return raw;
}

absl::StatusOr<PreparedRequest> GenerateCall::Prepare(const grpc::ByteBuffer& request) {
  return PrepareGenerate(request, v1::GenerateRequest::descriptor()->full_name());
}

GenerateCall::~GenerateCall() {
  absl::MutexLock lock(&mu_);
  ClearBuffer();
}

void GenerateCall::Refuse(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  FinishWith(status, Now());
}

void GenerateCall::OnAdmitted() {
  {
    absl::MutexLock lock(&mu_);
    admitted_ = true;
  }
  WakeWriter();
}

void GenerateCall::OnStatus(const RequestStatus& status) {
  {
    absl::MutexLock lock(&mu_);
    if (finished_) return;
    status_ = status;
    if (writing_) return;  // OnWriteDone takes it along
  }
  WakeWriter();
}

void GenerateCall::OnDelta(TokenDelta delta) {
  {
    absl::MutexLock lock(&mu_);
    if (finished_) return;
    if (buffer_.Push(std::move(delta), Now())) {
      metrics_->Coalesced();
    } else {
      metrics_->StreamBacklog(1);
    }
    if (writing_ && !buffer_.TooSlow(Now())) return;  // OnWriteDone takes it along
  }
  WakeWriter();
}

void GenerateCall::OnChoiceEnd(RequestEnd end) {
  {
    absl::MutexLock lock(&mu_);
    if (finished_) return;
    choice_ends_.push_back(std::move(end));
    if (writing_) return;  // OnWriteDone takes it along
  }
  WakeWriter();
}

void GenerateCall::OnEnd(RequestEnd end) {
  LogEnd(end.status, end);
  {
    absl::MutexLock lock(&mu_);
    end_ = std::move(end);
    end_since_ = Now();
  }
  WakeWriter();
}

bool GenerateCall::Pump(absl::Time) {
  const absl::Time now = Now();
  std::vector<TokenDelta> deltas;
  std::vector<RequestEnd> ends;
  std::optional<RequestStatus> status;
  bool last = false;
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
    if (end_) status_.reset();  // it is past
    if ((admitted_ || status_) && !std::exchange(metadata_sent_, true)) {
      context_->AddInitialMetadata("x-request-id", prepared_.started.request_id());
      StartSendInitialMetadata();
    }
    last = end_ && end_->status.ok();
    metrics_->StreamBacklog(-static_cast<int64_t>(buffer_.size()));
    deltas = buffer_.Take();
    ends = std::exchange(choice_ends_, {});
    status = std::exchange(status_, std::nullopt);
    if (deltas.empty() && ends.empty() && !last && !status) {
      if (!end_) return false;
      FinishWith(end_->status, now);
      return true;
    }
    if (last) {
      ends.push_back(*end_);
      finished_ = now;
    }
    writing_ = true;
    write_since_ = now;
  }
  // Nobody else writes now: messages are made without the lock, which the engine's thread wants
  // too.
  std::deque<grpc::ByteBuffer> made;
  std::vector<v1::GenerateResponse> messages = Messages(deltas, ends, last);
  if (status) AddStatus(*status, &messages);
  for (const v1::GenerateResponse& message : messages) made.push_back(Serialize(message));
  absl::MutexLock lock(&mu_);
  if (!last && finished_) return true;  // a slow reader was ended meanwhile; the call may be gone
  if (!deltas.empty()) TokensHanded();
  more_ = std::move(made);
  more_end_ = last;
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
  // All that it asked for is on its way, but for the end: a client that does not take even that is
  // cut off.
  const bool all_handed = end_ && end_->status.ok() && buffer_.empty() && choice_ends_.empty();
  const absl::Time since = std::max(write_since_, finished_.value_or(end_since_));
  if (finished_ || all_handed) {
    if (now - since > 2 * patience && !std::exchange(cut_, true)) {
      context_->TryCancel();
      if (!slow_) metrics_->SlowReaderEnded();
    }
    return true;
  }
  const bool stuck_at_the_end = end_.has_value() && now - since > patience;
  if (!buffer_.TooSlow(now) && !stuck_at_the_end) return true;
  ClearBuffer();
  if (!end_) CancelInEngine();
  slow_ = true;
  metrics_->SlowReaderEnded();
  FinishWith(WithErrorInfo(absl::ResourceExhaustedError(absl::StrCat(
                               "the client reads too slowly: more than ",
                               frontend_->slow_reader.max_pending_tokens, " tokens waited for ",
                               absl::FormatDuration(patience),
                               "; read faster, or resume after the last token that came")),
                           "SLOW_READER"),
             now);
  return true;
}

void GenerateCall::ClearBuffer() {
  metrics_->StreamBacklog(-static_cast<int64_t>(buffer_.size()));
  buffer_.Clear();
  choice_ends_.clear();
}

void GenerateCall::FinishWith(const absl::Status& status, absl::Time now) {
  if (finished_) return;
  finished_ = now;
  more_.clear();
  Finish(EndOfCall(context_, status));
}

std::vector<v1::GenerateResponse> GenerateCall::Messages(const std::vector<TokenDelta>& deltas,
                                                         const std::vector<RequestEnd>& ends,
                                                         bool last) {
  std::vector<v1::GenerateResponse> messages;
  // Choices that go on first: the end of the request is in the last message.
  for (const TokenDelta& delta : deltas) {
    const bool goes_on = std::none_of(ends.begin(), ends.end(), [&](const RequestEnd& end) {
      return end.choice == delta.choice;
    });
    if (goes_on) AddMessages(&delta, nullptr, &messages);
  }
  for (const RequestEnd& end : ends) {
    const auto delta = std::find_if(deltas.begin(), deltas.end(), [&](const TokenDelta& one) {
      return one.choice == end.choice;
    });
    AddMessages(delta == deltas.end() ? nullptr : &*delta, &end, &messages);
  }
  if (last) SetUsageOfAll(ends.back(), messages.back().mutable_usage());
  return messages;
}

void GenerateCall::AddMessages(const TokenDelta* delta, const RequestEnd* end,
                               std::vector<v1::GenerateResponse>* messages) {
  const uint32_t choice = delta != nullptr ? delta->choice : end->choice;
  std::vector<v1::GenerateResponse> mine(1);
  v1::GenerateResponse& message = mine[0];
  message.set_choice(choice);
  if (!std::exchange(started_sent_, true)) *message.mutable_started() = prepared_.started;
  if (delta != nullptr && prepared_.engine.score_from.has_value() && delta->first_index == 0 &&
      choice == prepared_.engine.first_choice) {
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
    message.set_token_index(end->completion_tokens);
    message.set_token_count(0);
  }
  if (end != nullptr) text += end->tail_text;
  AnswerSplitter& splitter = splitters_.try_emplace(choice, prepared_, choice).first->second;
  if (prepared_.send_text) splitter.Split(text, end != nullptr, &mine);
  if (end != nullptr) splitter.Finished(*end, mine.back().mutable_finished());
  for (v1::GenerateResponse& one : mine) messages->push_back(std::move(one));
}

void GenerateCall::AddStatus(const RequestStatus& status,
                             std::vector<v1::GenerateResponse>* messages) {
  if (messages->empty()) messages->emplace_back();
  v1::GenerateResponse& message = messages->front();
  if (!std::exchange(started_sent_, true)) *message.mutable_started() = prepared_.started;
  SetStatusEvent(status, message.mutable_status());
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
  Pump(Now());
}

void GenerateCall::OnDone() {
  std::shared_ptr<GenerateCall> self;  // frees this object after the lock
  absl::MutexLock lock(&mu_);
  done_ = true;
  self = std::move(self_);
}

}  // namespace bitshard
