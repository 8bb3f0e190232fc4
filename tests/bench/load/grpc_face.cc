#include "tests/bench/load/grpc_face.h"

#include <chrono>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include <grpcpp/grpcpp.h>

#include "proto/status_map.h"

namespace bitshard {

// One call; holds itself until its end.
class GrpcFace::Stream final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  Stream(GrpcFace* face, const LoadCall& call, LoadRecord* record, std::function<void()> ended)
      : face_(face), blocker_(call.blocker), record_(record), ended_(std::move(ended)) {
    request_.mutable_tokens()->mutable_ids()->Add(call.prompt.begin(), call.prompt.end());
    request_.set_max_tokens(call.output_tokens);
    request_.mutable_sampling()->set_temperature(0);
    request_.mutable_stop()->set_ignore_eos(true);
    if (call.blocker) request_.set_priority(-1);
    if (!face->options_.cache_salt.empty()) request_.set_cache_salt(face->options_.cache_salt);
    if (face->options_.token_ids) {
      request_.mutable_output()->set_token_ids(true);
      request_.mutable_output()->set_text(false);
    }
    if (face->options_.timeout != absl::InfiniteDuration())
      context_.set_deadline(absl::ToChronoTime(absl::Now() + face->options_.timeout));
  }

  void Begin(std::shared_ptr<Stream> self, v1::Inference::Stub* stub) {
    self_ = std::move(self);
    stub->async()->Generate(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }
  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (response_.token_count() > 0) {
      if (tokens_ == 0) first_s_ = LoadNow();
      tokens_ += response_.token_count();
    }
    for (const uint32_t token : response_.token_ids()) digest_.Add(token);
    digest_.Add(response_.text());
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    record_->end_s = LoadNow();
    record_->first_s = first_s_;
    record_->tokens = tokens_;
    record_->digest = digest_.value();
    record_->code = FromGrpc(status).code();
    record_->message = status.error_message();
    const auto& trailers = context_.GetServerTrailingMetadata();
    if (const auto delay = trailers.find("grpc-retry-pushback-ms"); delay != trailers.end()) {
      const std::string text(delay->second.data(), delay->second.size());
      record_->pushback_ms = std::strtoll(text.c_str(), nullptr, 10);
    }
    GrpcFace* const face = face_;
    std::shared_ptr<Stream> self = std::move(self_);
    if (blocker_) {
      std::lock_guard<std::mutex> lock(face->mu_);
      face->blockers_.erase(self);
    }
    ended_();
    self.reset();  // before the face may go
    std::lock_guard<std::mutex> lock(face->mu_);
    if (--face->live_ == 0) face->idle_.notify_all();
  }

 private:
  GrpcFace* const face_;
  const bool blocker_;
  LoadRecord* const record_;
  const std::function<void()> ended_;
  std::shared_ptr<Stream> self_;
  grpc::ClientContext context_;
  v1::GenerateRequest request_;
  v1::GenerateResponse response_;
  double first_s_ = 0;
  uint32_t tokens_ = 0;
  AnswerDigest digest_;
};

GrpcFace::GrpcFace(Options options) : options_(std::move(options)) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // else all would share one connection
  for (uint32_t i = 0; i < options_.channels; ++i) {
    channels_.push_back(
        grpc::CreateCustomChannel(options_.address, grpc::InsecureChannelCredentials(), arguments));
    stubs_.push_back(v1::Inference::NewStub(channels_.back()));
  }
}

GrpcFace::~GrpcFace() {
  std::unique_lock<std::mutex> lock(mu_);
  idle_.wait(lock, [this] { return live_ == 0; });
}

absl::Status GrpcFace::Connect(absl::Duration patience) {
  const auto deadline = absl::ToChronoTime(absl::Now() + patience);
  for (const auto& channel : channels_) channel->GetState(/*try_to_connect=*/true);
  for (size_t i = 0; i < channels_.size(); ++i) {
    if (channels_[i]->WaitForConnected(deadline)) continue;
    return absl::UnavailableError(absl::StrCat("connection ", i + 1, " of ", channels_.size(),
                                               " to ", options_.address, " did not come up within ",
                                               absl::FormatDuration(patience)));
  }
  return absl::OkStatus();
}

void GrpcFace::Start(const LoadCall& call, LoadRecord* record, std::function<void()> ended) {
  auto stream = std::make_shared<Stream>(this, call, record, std::move(ended));
  {
    std::lock_guard<std::mutex> lock(mu_);
    ++live_;
    if (call.blocker) blockers_.insert(stream);
  }
  Stream* const raw = stream.get();
  raw->Begin(std::move(stream), stubs_[next_++ % stubs_.size()].get());
}

void GrpcFace::CancelBlockers() {
  std::unordered_set<std::shared_ptr<Stream>> blockers;
  {
    std::lock_guard<std::mutex> lock(mu_);
    blockers = blockers_;
  }
  // Without the lock: a cancelled call may end at once, on this thread.
  for (const std::shared_ptr<Stream>& stream : blockers) stream->Cancel();
}

}  // namespace bitshard
