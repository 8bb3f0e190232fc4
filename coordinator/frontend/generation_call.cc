#include "coordinator/frontend/generation_call.h"

#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "coordinator/engine/error_reason.h"
#include "coordinator/frontend/wire.h"
#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"
#include "proto/status_details.h"

namespace bitshard {
namespace {

// Shorter requests are tokenized in less time than it takes to hand them to another thread.
constexpr size_t kInlineBytes = 16 << 10;

RejectReason ReasonOf(const absl::Status& refusal) {
  return ErrorReason(refusal) == kReasonPromptTooLong ? RejectReason::kPromptTooLong
                                                      : RejectReason::kBadRequest;
}

std::string Metadata(const grpc::CallbackServerContext& context, const char* key) {
  const auto it = context.client_metadata().find(key);
  if (it == context.client_metadata().end()) return "";
  return absl::CHexEscape(
      absl::string_view(it->second.data(), std::min<size_t>(it->second.size(), 128)));
}

}  // namespace

absl::StatusOr<GenerationCall::PrepareFn> GenerationCall::ParseGenerate(
    const grpc::ByteBuffer& bytes, const std::string& message_name) const {
  const auto request = std::make_shared<v1::GenerateRequest>();  // std::function wants copies
  if (!ParseMessage(bytes, request.get()).ok()) return MalformedError(message_name);
  return PrepareFn([frontend = frontend_, request] {
    return PrepareRequest(*request, *frontend->model, frontend->engine->Stats().max_request_tokens);
  });
}

void GenerationCall::Begin(size_t bytes, absl::StatusOr<PrepareFn> prepare) {
  received_ = absl::Now();
  if (bytes == 0 && !prepare.ok()) {  // not even an empty message came
    Refuse(absl::CancelledError("the caller went before its request was there"));
    return;
  }
  frontend_->metrics->Received(Face::kOwn);
  const auto deadline = context_->deadline();
  deadline_ = deadline == std::chrono::system_clock::time_point::max() ? absl::InfiniteFuture()
                                                                       : absl::FromChrono(deadline);
  caller_ = CallerOf(*context_);
  trace_ = Metadata(*context_, "traceparent");
  if (!prepare.ok()) {
    frontend_->metrics->Refused(RejectReason::kBadRequest);
    SendRefusal(prepare.status());
    return;
  }
  if (bytes <= kInlineBytes) {
    PrepareAndSubmit(*prepare);
    return;
  }
  const std::shared_ptr<GenerationCall> self = shared_from_this();
  const auto work = [self, prepare = *std::move(prepare)] { self->PrepareAndSubmit(prepare); };
  if (frontend_->background->Run(work)) return;
  frontend_->metrics->Refused(RejectReason::kQueueFull);
  SendRefusal(
      WithRetryInfo(absl::ResourceExhaustedError("too many long prompts wait to be tokenized"),
                    absl::Seconds(1)));
}

void GenerationCall::PrepareAndSubmit(const PrepareFn& prepare) {
  const absl::Time begin = absl::Now();
  absl::StatusOr<PreparedRequest> prepared = prepare();
  frontend_->metrics->TokenizerTime(TokenizerOp::kRequest, absl::Now() - begin);
  if (!prepared.ok()) {
    frontend_->metrics->Refused(ReasonOf(prepared.status()));
    return SendRefusal(prepared.status());
  }
  prepared_ = *std::move(prepared);
  prepared_.constraint.has_value() ? CompileAndSubmit() : SubmitOrRefuse();
}

void GenerationCall::CompileAndSubmit() {
  const auto done = [self = shared_from_this()](const GrammarCompiler::Result& grammar) {
    if (grammar.ok()) {
      self->prepared_.engine.grammar = *grammar;
      return self->SubmitOrRefuse();
    }
    self->frontend_->metrics->Refused(absl::IsResourceExhausted(grammar.status())
                                          ? RejectReason::kQueueFull
                                          : RejectReason::kBadRequest);
    self->SendRefusal(grammar.status());
  };
  if (frontend_->grammars == nullptr)
    return done(absl::UnimplementedError("constraint: this service compiles none"));
  frontend_->grammars->Compile(*prepared_.constraint, done);
}

void GenerationCall::SubmitOrRefuse() {
  const absl::Status status = Submit();
  if (!status.ok()) SendRefusal(status);
}

void GenerationCall::SendRefusal(const absl::Status& status) {
  LogInfo("request id={} event=refused code={} trace={} cause=\"{}\"",
          prepared_.started.request_id(), absl::StatusCodeToString(status.code()), trace_,
          absl::CHexEscape(status.message().substr(0, 256)));
  frontend_->metrics->RefusalSent(absl::Now() - received_);
  Refuse(status);
}

absl::Status GenerationCall::Submit() {
  {
    absl::MutexLock lock(&cancel_mu_);
    if (cancelled_) {
      frontend_->metrics->Refused(RejectReason::kCancelled);
      return absl::CancelledError("the caller has gone");
    }
  }
  GenerateRequest request = prepared_.engine;
  request.caller = caller_;
  request.received = received_;
  request.deadline = deadline_;
  ASSIGN_OR_RETURN(const RequestHandle handle,
                   frontend_->engine->Submit(std::move(request), shared_from_this()));
  first_token_.Accepted();
  absl::MutexLock lock(&cancel_mu_);
  handle_ = handle;
  if (cancelled_) frontend_->engine->Cancel(handle);
  return absl::OkStatus();
}

void GenerationCall::CancelInEngine() {
  absl::MutexLock lock(&cancel_mu_);
  cancelled_ = true;
  if (handle_) frontend_->engine->Cancel(*handle_);
}

void GenerationCall::LogEnd(const absl::Status& status, const RequestEnd& end) const {
  LogInfo(
      "request id={} event=end code={} prompt_tokens={} cached_tokens={} completion_tokens={} "
      "queue_ms={:.1f} "
      "prefill_ms={:.1f} decode_ms={:.1f} trace={}",
      prepared_.started.request_id(), absl::StatusCodeToString(status.code()), end.prompt_tokens,
      end.cached_tokens, end.completion_tokens, absl::ToDoubleMilliseconds(end.timings.queue),
      absl::ToDoubleMilliseconds(end.timings.prefill),
      absl::ToDoubleMilliseconds(end.timings.decode), trace_);
}

}  // namespace bitshard
