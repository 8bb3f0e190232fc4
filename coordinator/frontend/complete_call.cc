#include "coordinator/frontend/complete_call.h"

#include <utility>

#include "coordinator/frontend/answer_splitter.h"
#include "coordinator/frontend/to_proto.h"
#include "coordinator/frontend/wire.h"

namespace bitshard {

grpc::ServerUnaryReactor* CompleteCall::Start(const FrontendContext* frontend,
                                              grpc::CallbackServerContext* context,
                                              const grpc::ByteBuffer& request,
                                              grpc::ByteBuffer* response) {
  auto call = std::make_shared<CompleteCall>(frontend, context, response);
  CompleteCall* raw = call.get();
  raw->self_ = std::move(call);
  raw->Begin(request);
  return raw;
}

absl::StatusOr<PreparedRequest> CompleteCall::Prepare(const grpc::ByteBuffer& request) {
  return PrepareGenerate(request, v1::CompleteRequest::descriptor()->full_name());
}

void CompleteCall::Refuse(const absl::Status& status) { Finish(EndOfCall(context_, status)); }

void CompleteCall::OnDelta(TokenDelta delta) {
  TokensHanded();
  absl::MutexLock lock(&mu_);
  v1::CompletedChoice& choice = Part(delta.choice);
  if (prepared_.send_text) choice.mutable_text()->append(delta.text);
  if (prepared_.send_token_ids) {
    for (const int32_t token : delta.tokens) choice.add_token_ids(static_cast<uint32_t>(token));
  }
  if (prepared_.engine.score_from.has_value() && delta.first_index == 0 &&
      delta.choice == prepared_.engine.first_choice) {
    SetTokenScores(prepared_.engine.prompt_tokens, delta.prompt_logprobs,
                   *frontend_->model->tokenizer, answer_.mutable_prompt_logprobs());
  }
  for (size_t i = 0; i < delta.logprobs.size() && i < delta.tokens.size(); ++i) {
    SetLogprobs(delta.tokens[i], delta.logprobs[i], *frontend_->model->tokenizer,
                choice.add_logprobs());
  }
}

v1::CompletedChoice& CompleteCall::Part(uint32_t choice) {
  const uint32_t first = prepared_.engine.first_choice;
  for (int size = answer_.choices_size(); first + static_cast<uint32_t>(size) <= choice; ++size)
    answer_.add_choices()->set_choice(first + static_cast<uint32_t>(size));
  return *answer_.mutable_choices(static_cast<int>(choice - first));
}

void CompleteCall::OnChoiceEnd(RequestEnd end) {
  absl::MutexLock lock(&mu_);
  choice_ends_.push_back(std::move(end));
}

void CompleteCall::OnEnd(RequestEnd end) {
  LogEnd(end.status, end);
  {
    absl::MutexLock lock(&mu_);
    end_ = std::move(end);
  }
  WakeWriter();
}

bool CompleteCall::Pump(absl::Time) {
  absl::MutexLock lock(&mu_);
  if (!end_) return false;
  const RequestEnd end = *std::exchange(end_, std::nullopt);
  if (end.status.ok()) {
    for (const RequestEnd& of_choice : choice_ends_) FinishPart(of_choice);
    FinishPart(end);
    SetUsageOfAll(end, answer_.mutable_usage());
    *answer_.mutable_started() = prepared_.started;
    context_->AddInitialMetadata("x-request-id", prepared_.started.request_id());
    *response_ = Serialize(answer_);
  }
  Finish(EndOfCall(context_, end.status));
  return false;
}

void CompleteCall::FinishPart(const RequestEnd& end) {
  v1::CompletedChoice& choice = Part(end.choice);
  AnswerSplitter splitter(prepared_, end.choice);
  if (prepared_.send_text) {
    const std::string text = choice.text() + end.tail_text;
    choice.clear_text();
    splitter.Split(text, &choice);
  }
  splitter.Finished(end, choice.mutable_finished());
}

}  // namespace bitshard
