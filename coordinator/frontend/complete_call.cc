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
  raw->Begin(request.Length(),
             raw->ParseGenerate(request, v1::CompleteRequest::descriptor()->full_name()));
  return raw;
}

void CompleteCall::Refuse(const absl::Status& status) { Finish(EndOfCall(context_, status)); }

void CompleteCall::OnDelta(TokenDelta delta) {
  TokensHanded();
  absl::MutexLock lock(&mu_);
  if (answer_.choices().empty()) answer_.add_choices()->set_choice(0);
  v1::CompletedChoice& choice = *answer_.mutable_choices(0);
  if (prepared_.send_text) choice.mutable_text()->append(delta.text);
  if (prepared_.send_token_ids) {
    for (const int32_t token : delta.tokens) choice.add_token_ids(static_cast<uint32_t>(token));
  }
  if (prepared_.engine.score_from.has_value() && delta.first_index == 0) {
    SetTokenScores(prepared_.engine.prompt_tokens, delta.prompt_logprobs,
                   *frontend_->model->tokenizer, answer_.mutable_prompt_logprobs());
  }
  for (size_t i = 0; i < delta.logprobs.size() && i < delta.tokens.size(); ++i) {
    SetLogprobs(delta.tokens[i], delta.logprobs[i], *frontend_->model->tokenizer,
                choice.add_logprobs());
  }
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
    if (answer_.choices().empty()) answer_.add_choices()->set_choice(0);
    v1::CompletedChoice& choice = *answer_.mutable_choices(0);
    AnswerSplitter splitter(prepared_, choice.choice());
    if (prepared_.send_text) {
      const std::string text = choice.text() + end.tail_text;
      choice.clear_text();
      splitter.Split(text, &choice);
    }
    splitter.Finished(end, choice.mutable_finished());
    *answer_.mutable_started() = prepared_.started;
    context_->AddInitialMetadata("x-request-id", prepared_.started.request_id());
    *response_ = Serialize(answer_);
  }
  Finish(EndOfCall(context_, end.status));
  return false;
}

}  // namespace bitshard
