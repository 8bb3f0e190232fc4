#include "coordinator/frontend/score_call.h"

#include <algorithm>
#include <utility>

#include "coordinator/frontend/to_proto.h"
#include "coordinator/frontend/wire.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

void FillAnswer(const GenerateRequest& request, const RequestEnd& end, const Tokenizer& tokenizer,
                v1::ScoreResponse* answer) {
  const std::vector<int32_t>& tokens = request.prompt_tokens;
  // The first token has nothing before it.
  const size_t first = std::min<size_t>(std::max<uint32_t>(1, *request.score_from), tokens.size());
  CHECK_EQ(end.scores.size(), tokens.size() - first);
  SetTokenScores(tokens, end.scores, tokenizer, answer->mutable_logprobs());
  SetUsage(end, answer->mutable_usage());
}

}  // namespace

grpc::ServerUnaryReactor* ScoreCall::Start(const FrontendContext* frontend,
                                           grpc::CallbackServerContext* context,
                                           const grpc::ByteBuffer& request,
                                           grpc::ByteBuffer* response) {
  auto call = std::make_shared<ScoreCall>(frontend, context, response);
  ScoreCall* raw = call.get();
  raw->self_ = std::move(call);
  raw->Begin(request);
  return raw;
}

absl::StatusOr<PreparedRequest> ScoreCall::Prepare(const grpc::ByteBuffer& request) {
  v1::ScoreRequest parsed;
  RETURN_IF_ERROR(ParseMessage(request, &parsed));
  return PrepareScore(parsed, *frontend_->model);
}

void ScoreCall::Refuse(const absl::Status& status) { Finish(EndOfCall(context_, status)); }

void ScoreCall::OnEnd(RequestEnd end) {
  LogEnd(end.status, end);
  {
    absl::MutexLock lock(&mu_);
    end_ = std::move(end);
  }
  WakeWriter();
}

bool ScoreCall::Pump(absl::Time) {
  std::optional<RequestEnd> end;
  {
    absl::MutexLock lock(&mu_);
    end = std::exchange(end_, std::nullopt);
  }
  if (!end) return false;
  if (end->status.ok()) {
    v1::ScoreResponse answer;
    FillAnswer(prepared_.engine, *end, *frontend_->model->tokenizer, &answer);
    context_->AddInitialMetadata("x-request-id", prepared_.started.request_id());
    *response_ = Serialize(answer);
  }
  Finish(EndOfCall(context_, end->status));
  return false;
}

}  // namespace bitshard
