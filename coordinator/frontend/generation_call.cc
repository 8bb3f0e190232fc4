#include "coordinator/frontend/generation_call.h"

#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "coordinator/engine/deadline.h"
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

// Of a constraint that was not compiled.
RejectReason ReasonOfConstraint(const absl::Status& refusal) {
  switch (refusal.code()) {
    case absl::StatusCode::kResourceExhausted:
      return RejectReason::kQueueFull;
    case absl::StatusCode::kUnavailable:  // the machine is busy, or the service ends
      return ErrorReason(refusal) == kReasonDraining ? RejectReason::kDraining
                                                     : RejectReason::kQueueWait;
    case absl::StatusCode::kCancelled:
      return RejectReason::kCancelled;
    default:
      return RejectReason::kBadRequest;
  }
}

std::string Metadata(const grpc::CallbackServerContext& context, const char* key) {
  const auto it = context.client_metadata().find(key);
  if (it == context.client_metadata().end()) return "";
  return absl::CHexEscape(
      absl::string_view(it->second.data(), std::min<size_t>(it->second.size(), 128)));
}

}  // namespace

absl::StatusOr<PreparedRequest> GenerationCall::PrepareGenerate(
    const grpc::ByteBuffer& request, const std::string& message_name) const {
  v1::GenerateRequest parsed;
  if (!ParseMessage(request, &parsed).ok()) return MalformedError(message_name);
  return PrepareRequest(parsed, *frontend_->model, frontend_->engine->Stats().max_request_tokens);
}

void GenerationCall::Begin(const grpc::ByteBuffer& request) {
  received_ = absl::Now();
  if (!request.Valid()) {  // not even an empty message came
    Refuse(absl::CancelledError("the caller went before its request was there"));
    return;
  }
  frontend_->metrics->Received(Face::kOwn);
  const auto deadline = context_->deadline();
  deadline_ = deadline == std::chrono::system_clock::time_point::max() ? absl::InfiniteFuture()
                                                                       : absl::FromChrono(deadline);
  caller_ = CallerOf(*context_);
  trace_ = Metadata(*context_, "traceparent");
  if (request.Length() <= kInlineBytes) {
    PrepareAndSubmit(request);
    return;
  }
  // The copy shares the bytes.
  const auto work = [self = shared_from_this(), request](const absl::Status& turn) {
    if (turn.ok()) return self->PrepareAndSubmit(request);
    self->frontend_->metrics->Refused(RejectReason::kDraining);
    self->SendRefusal(turn);
  };
  if (frontend_->background->Run(request.Length(), work)) return;
  frontend_->metrics->Refused(RejectReason::kQueueFull);
  SendRefusal(
      WithRetryInfo(absl::ResourceExhaustedError("too many long prompts wait to be tokenized"),
                    absl::Seconds(1)));
}

void GenerationCall::PrepareAndSubmit(const grpc::ByteBuffer& request) {
  if (const absl::Status status = StillWanted(); !status.ok()) return SendRefusal(status);
  const absl::Time begin = absl::Now();
  absl::StatusOr<PreparedRequest> prepared = Prepare(request);
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
    if (absl::IsCancelled(grammar.status())) {
      if (const absl::Status gone = self->StillWanted(); !gone.ok()) return self->SendRefusal(gone);
    }
    self->frontend_->metrics->Refused(ReasonOfConstraint(grammar.status()));
    self->SendRefusal(grammar.status());
  };
  if (frontend_->grammars == nullptr)
    return done(absl::UnimplementedError("constraint: this service compiles none"));
  const GrammarCompiler::Ticket ticket =
      frontend_->grammars->Compile(*prepared_.constraint, caller_, done);
  bool cancelled = false;
  {
    absl::MutexLock lock(&cancel_mu_);
    compiling_ = ticket;
    cancelled = cancelled_.has_value();
  }
  if (cancelled) frontend_->grammars->Cancel(ticket);
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

absl::Status GenerationCall::StillWanted() {
  absl::MutexLock lock(&cancel_mu_);
  if (!cancelled_) return absl::OkStatus();
  if (EndedByDeadline(received_, deadline_, *cancelled_)) {
    frontend_->metrics->Refused(RejectReason::kDeadline);
    return absl::DeadlineExceededError("the deadline passed before the request was read");
  }
  frontend_->metrics->Refused(RejectReason::kCancelled);
  return absl::CancelledError("the caller has gone");
}

absl::Status GenerationCall::Submit() {
  RETURN_IF_ERROR(StillWanted());
  std::vector<Engine::Submission> submissions = Submissions();
  for (Engine::Submission& submission : submissions) {
    submission.request.caller = caller_;
    submission.request.received = received_;
    submission.request.deadline = deadline_;
  }
  // A call is a request until it is known to be several.
  for (size_t i = 1; i < submissions.size(); ++i) frontend_->metrics->Received(Face::kOwn);
  ASSIGN_OR_RETURN(std::vector<RequestHandle> handles,
                   frontend_->engine->SubmitAll(std::move(submissions)));
  first_token_.Accepted(handles.size());
  absl::MutexLock lock(&cancel_mu_);
  handles_ = std::move(handles);
  if (cancelled_) CancelAll();
  return absl::OkStatus();
}

std::vector<Engine::Submission> GenerationCall::Submissions() {
  return {{prepared_.engine, shared_from_this()}};
}

void GenerationCall::CancelAll() {
  for (const RequestHandle handle : handles_) frontend_->engine->Cancel(handle);
}

void GenerationCall::CancelInEngine() {
  GrammarCompiler::Ticket compiling = 0;
  {
    absl::MutexLock lock(&cancel_mu_);
    cancelled_ = absl::Now();
    CancelAll();
    compiling = compiling_;
  }
  // Refuses the call, if that is what it waits for.
  if (compiling != 0) frontend_->grammars->Cancel(compiling);
}

void GenerationCall::LogEnd(const absl::Status& status, const RequestEnd& end) const {
  LogInfo(
      "request id={} event=end code={} prompt_tokens={} cached_tokens={} completion_tokens={} "
      "resumed_tokens={} queue_ms={:.1f} "
      "prefill_ms={:.1f} decode_ms={:.1f} trace={}",
      prepared_.started.request_id(), absl::StatusCodeToString(status.code()), end.prompt_tokens,
      end.cached_tokens, end.all.completion_tokens, end.resumed_tokens,
      absl::ToDoubleMilliseconds(end.timings.queue),
      absl::ToDoubleMilliseconds(end.timings.prefill),
      absl::ToDoubleMilliseconds(end.timings.decode), trace_);
}

}  // namespace bitshard
