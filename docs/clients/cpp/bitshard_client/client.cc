#include "bitshard_client/client.h"

#include <algorithm>
#include <iomanip>
#include <iterator>
#include <sstream>

namespace bitshard::client {
namespace {

CallStatus Local(grpc::StatusCode code, std::string message) {
  CallStatus status;
  status.code = code;
  status.message = std::move(message);
  return status;
}

// Of a call that cannot begin any more.
CallStatus NoTime(std::chrono::milliseconds timeout) {
  return Local(grpc::StatusCode::DEADLINE_EXCEEDED, timeout.count() > 0
                                                        ? "the deadline passed before a try"
                                                        : "the timeout is 0 or less");
}

}  // namespace

AnswerStream::AnswerStream(std::shared_ptr<v1::Inference::Stub> stub,
                           const v1::GenerateRequest& request, std::chrono::milliseconds timeout,
                           const ClientOptions& options, Metadata metadata)
    : stub_(std::move(stub)),
      timeout_(timeout),
      wait_for_ready_(options.wait_for_ready),
      metadata_(std::move(metadata)),
      answer_(request, options.max_resumes) {}

AnswerStream::~AnswerStream() { Finish(); }

bool AnswerStream::Read(v1::GenerateResponse* message) {
  while (ready_.empty() && !status_) Next();
  if (ready_.empty()) return false;
  *message = std::move(ready_.front());
  ready_.pop_front();
  return true;
}

CallStatus AnswerStream::Finish() {
  ready_.clear();
  if (!status_) {
    Cancel();
    EndCancelled();
  }
  return *status_;
}

void AnswerStream::Cancel() {
  const std::lock_guard<std::mutex> lock(mu_);
  cancelled_ = true;
  if (context_ != nullptr) context_->TryCancel();
  cancel_.notify_all();
}

v1::Resume AnswerStream::ResumeState(uint32_t choice) const {
  int pending = 0;
  for (const v1::GenerateResponse& message : ready_)
    if (message.choice() == choice) pending += static_cast<int>(message.token_count());
  return answer_.ResumeState(choice, pending);
}

void AnswerStream::Next() {
  if (Cancelled()) return EndCancelled();
  if (reader_ == nullptr && !Begin()) return;
  v1::GenerateResponse message;
  if (reader_->Read(&message)) {
    std::vector<v1::GenerateResponse> given;
    CallStatus status = answer_.Take(std::move(message), &given);
    std::move(given.begin(), given.end(), std::back_inserter(ready_));
    if (!status.ok()) {
      Cancel();
      End(std::move(status));
    }
    return;
  }
  const CallStatus status = CallStatus::From(EndCall(), request_id());
  if (answer_.complete()) {  // whatever became of the status, all is here
    End(CallStatus());
  } else if (!status.ok()) {
    GoOnAfter(status);
  } else if (CallStatus fault = answer_.WentOn(); !fault.ok()) {
    End(std::move(fault));
  }
}

bool AnswerStream::Begin() {
  if (Clock::now() >= end_) {
    End(NoTime(timeout_));
    return false;
  }
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(end_);
  context->set_wait_for_ready(wait_for_ready_);
  for (const auto& [key, value] : metadata_) context->AddMetadata(key, value);
  {
    const std::lock_guard<std::mutex> lock(mu_);
    context_ = std::move(context);
    if (cancelled_) context_->TryCancel();  // the context remembers it until there is a call
  }
  reader_ = stub_->Generate(context_.get(), answer_.Request());
  return true;
}

grpc::Status AnswerStream::EndCall() {
  if (reader_ == nullptr) return grpc::Status::OK;
  const grpc::Status status = reader_->Finish();
  if (!context_->GetServerInitialMetadata().empty()) answer_.Accepted();
  reader_.reset();
  const std::lock_guard<std::mutex> lock(mu_);
  context_.reset();
  return status;
}

void AnswerStream::GoOnAfter(const CallStatus& status) {
  const std::optional<std::chrono::milliseconds> delay = answer_.Broke(status);
  if (!delay || Clock::now() + *delay >= end_) {
    End(status);
    return;
  }
  std::unique_lock<std::mutex> lock(mu_);
  cancel_.wait_for(lock, *delay, [this] { return cancelled_; });
}

bool AnswerStream::Cancelled() {
  const std::lock_guard<std::mutex> lock(mu_);
  return cancelled_;
}

void AnswerStream::End(CallStatus status) {
  EndCall();
  answer_.Tell(std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start_),
               &status);
  status.request_id = request_id();
  status_ = std::move(status);
}

void AnswerStream::EndCancelled() {
  End(answer_.complete() ? CallStatus()
                         : Local(grpc::StatusCode::CANCELLED, "cancelled by its reader"));
}

Client::Client(const std::string& target, ClientOptions options) : options_(std::move(options)) {
  for (int i = 0; i < std::max(1, options_.connections); ++i)
    stubs_.push_back(v1::Inference::NewStub(OpenChannel(target, options_)));
}

std::unique_ptr<AnswerStream> Client::Generate(const v1::GenerateRequest& request,
                                               const CallOptions& call) {
  AnswerStream::Metadata metadata = options_.metadata;
  metadata.insert(metadata.end(), call.metadata.begin(), call.metadata.end());
  return std::unique_ptr<AnswerStream>(
      new AnswerStream(NextStub(), request, Timeout(call), options_, std::move(metadata)));
}

CallStatus Client::Complete(const v1::CompleteRequest& request, v1::CompleteResponse* response,
                            const CallOptions& call) {
  return UnaryWithId(&v1::Inference::Stub::Complete, request, response, call);
}

CallStatus Client::Score(const v1::ScoreRequest& request, v1::ScoreResponse* response,
                         const CallOptions& call) {
  return UnaryWithId(&v1::Inference::Stub::Score, request, response, call);
}

CallStatus Client::Embed(const v1::EmbedRequest& request, v1::EmbedResponse* response,
                         const CallOptions& call) {
  return UnaryWithId(&v1::Inference::Stub::Embed, request, response, call);
}

CallStatus Client::Tokenize(const v1::TokenizeRequest& request, v1::TokenizeResponse* response,
                            const CallOptions& call) {
  return Unary(&v1::Inference::Stub::Tokenize, request, response, call);
}

CallStatus Client::Detokenize(const v1::DetokenizeRequest& request,
                              v1::DetokenizeResponse* response, const CallOptions& call) {
  return Unary(&v1::Inference::Stub::Detokenize, request, response, call);
}

CallStatus Client::ApplyChatTemplate(const v1::ApplyChatTemplateRequest& request,
                                     v1::ApplyChatTemplateResponse* response,
                                     const CallOptions& call) {
  return Unary(&v1::Inference::Stub::ApplyChatTemplate, request, response, call);
}

CallStatus Client::ListModels(v1::ListModelsResponse* response, const CallOptions& call) {
  return Unary(&v1::Inference::Stub::ListModels, v1::ListModelsRequest(), response, call);
}

CallStatus Client::Abort(const std::vector<std::string>& request_ids, const CallOptions& call) {
  v1::AbortRequest request;
  for (const std::string& id : request_ids) request.add_request_ids(id);
  v1::AbortResponse response;
  return Unary(&v1::Inference::Stub::Abort, request, &response, call);
}

std::shared_ptr<v1::Inference::Stub> Client::NextStub() {
  return stubs_[turn_.fetch_add(1, std::memory_order_relaxed) % stubs_.size()];
}

std::chrono::milliseconds Client::Timeout(const CallOptions& call) const {
  return call.timeout.value_or(options_.default_timeout);
}

void Effort::Tell(CallStatus* status) const {
  if (status->code != grpc::StatusCode::UNAVAILABLE &&
      status->code != grpc::StatusCode::DEADLINE_EXCEEDED)
    return;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << " (after " << took.count() << " s, " << calls
       << (calls == 1 ? " call)" : " calls)");
  status->message += text.str();
}

template <typename Request, typename Response>
CallStatus Client::Unary(grpc::Status (v1::Inference::Stub::*method)(grpc::ClientContext*,
                                                                     const Request&, Response*),
                         const Request& request, Response* response, const CallOptions& call,
                         std::string request_id, Effort effort) {
  if (Timeout(call).count() <= 0) {
    CallStatus status = NoTime(Timeout(call));
    status.request_id = std::move(request_id);
    effort.Tell(&status);
    return status;
  }
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + Timeout(call));
  context.set_wait_for_ready(options_.wait_for_ready);
  for (const auto& [key, value] : options_.metadata) context.AddMetadata(key, value);
  for (const auto& [key, value] : call.metadata) context.AddMetadata(key, value);
  const std::shared_ptr<v1::Inference::Stub> stub = NextStub();
  CallStatus status =
      CallStatus::From(((*stub).*method)(&context, request, response), std::move(request_id));
  ++effort.calls;
  effort.Tell(&status);
  return status;
}

template <typename Request, typename Response>
CallStatus Client::UnaryWithId(
    grpc::Status (v1::Inference::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
    const Request& request, Response* response, const CallOptions& call) {
  if (request.has_request_id()) return Unary(method, request, response, call, request.request_id());
  Effort effort;
  const auto end = effort.start + Timeout(call);
  Request drawn = request;
  CallOptions rest = call;
  while (true) {
    drawn.set_request_id(DrawId());
    CallStatus status = Unary(method, drawn, response, rest, drawn.request_id(), effort);
    ++effort.calls;
    // A try of gRPC's that broke has the id that was drawn.
    if (status.code != grpc::StatusCode::ALREADY_EXISTS) return status;
    rest.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    if (rest.timeout->count() <= 0) return status;
  }
}

}  // namespace bitshard::client
