#include "coordinator/frontend/embed_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "coordinator/frontend/to_proto.h"
#include "coordinator/frontend/wire.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

// All inputs as one: from receipt to the first step of any, from there to the end of the last.
RequestEnd Together(const std::vector<RequestEnd>& ends) {
  RequestEnd all;
  absl::Duration queue = absl::InfiniteDuration(), e2e;
  for (const RequestEnd& end : ends) {
    all.prompt_tokens += end.prompt_tokens;
    all.cached_tokens += end.cached_tokens;
    queue = std::min(queue, end.timings.queue);
    e2e = std::max(e2e, end.timings.queue + end.timings.prefill + end.timings.decode);
  }
  all.timings = {.queue = queue, .prefill = e2e - queue, .decode = absl::ZeroDuration()};
  return all;
}

}  // namespace

// The inputs after the first; the first one's is the call itself.
class EmbedCall::InputSink final : public RequestSink {
 public:
  InputSink(std::shared_ptr<EmbedCall> call, size_t input)
      : call_(std::move(call)), input_(input) {}

  void OnDelta(TokenDelta) override {}
  void OnEnd(RequestEnd end) override { call_->InputEnded(input_, std::move(end)); }

 private:
  const std::shared_ptr<EmbedCall> call_;  // which lives until all of its inputs have ended
  const size_t input_;
};

grpc::ServerUnaryReactor* EmbedCall::Start(const FrontendContext* frontend,
                                           grpc::CallbackServerContext* context,
                                           const grpc::ByteBuffer& request,
                                           grpc::ByteBuffer* response) {
  auto call = std::make_shared<EmbedCall>(frontend, context, response);
  EmbedCall* raw = call.get();
  raw->self_ = std::move(call);
  raw->Begin(request);
  return raw;
}

absl::StatusOr<PreparedRequest> EmbedCall::Prepare(const grpc::ByteBuffer& request) {
  v1::EmbedRequest parsed;
  RETURN_IF_ERROR(ParseMessage(request, &parsed));
  normalize_ = parsed.has_normalize() ? parsed.normalize() : true;
  values_ = parsed.has_dimensions() ? parsed.dimensions() : frontend_->model->embedding_size;
  return PrepareEmbed(parsed, *frontend_->model);
}

std::vector<Engine::Submission> EmbedCall::Submissions() {
  const size_t inputs = 1 + prepared_.more_inputs.size();
  {
    absl::MutexLock lock(&mu_);
    ends_.resize(inputs);
    left_ = inputs;
  }
  std::vector<Engine::Submission> submissions;
  submissions.reserve(inputs);
  submissions.push_back({prepared_.engine, shared_from_this()});
  const auto self = std::static_pointer_cast<EmbedCall>(shared_from_this());
  GenerateRequest further = prepared_.engine;
  std::vector<int32_t>().swap(further.prompt_tokens);  // no input has the memory of the first
  for (size_t i = 1; i < inputs; ++i) {
    submissions.push_back({further, std::make_shared<InputSink>(self, i)});
    submissions.back().request.prompt_tokens = prepared_.more_inputs[i - 1];
  }
  return submissions;
}

void EmbedCall::Refuse(const absl::Status& status) { Finish(EndOfCall(context_, status)); }

void EmbedCall::InputEnded(size_t input, RequestEnd end) {
  {
    absl::MutexLock lock(&mu_);
    if (failure_.ok()) failure_ = end.status;
    ends_[input] = std::move(end);
    --left_;
    if (left_ > 0 && (failure_.ok() || told_)) return;
  }
  WakeWriter();
}

bool EmbedCall::Pump(absl::Time) {
  std::vector<RequestEnd> ends;
  absl::Status failure;
  bool cancel = false;
  {
    absl::MutexLock lock(&mu_);
    if (left_ > 0) {
      cancel = !failure_.ok() && !std::exchange(told_, true);
    } else {
      ends.swap(ends_);  // none are left the second time
      failure = failure_;
    }
  }
  if (cancel) CancelInEngine();
  if (!ends.empty()) Answer(ends, std::move(failure));
  return false;
}

void EmbedCall::Answer(const std::vector<RequestEnd>& ends, absl::Status status) {
  v1::EmbedResponse answer;
  if (status.ok()) status = Fill(ends, &answer);
  if (status.ok()) {
    context_->AddInitialMetadata("x-request-id", prepared_.started.request_id());
    *response_ = Serialize(answer);
  }
  LogEnd(status, Together(ends));
  Finish(EndOfCall(context_, status));
}

absl::Status EmbedCall::Fill(const std::vector<RequestEnd>& ends, v1::EmbedResponse* answer) const {
  for (const RequestEnd& end : ends) {
    if (end.embedding.size() < values_) {
      return absl::InternalError(absl::StrCat("the workers sent a vector of ", end.embedding.size(),
                                              " values, the model's have ",
                                              frontend_->model->embedding_size));
    }
    v1::Embedding& embedding = *answer->add_embeddings();
    SetVector(end.embedding, values_, normalize_, embedding.mutable_values());
    embedding.set_prompt_tokens(end.prompt_tokens);
  }
  SetUsage(Together(ends), answer->mutable_usage());
  return absl::OkStatus();
}

}  // namespace bitshard
