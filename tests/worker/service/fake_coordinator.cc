#include "tests/worker/service/fake_coordinator.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "kernels/base/check.h"
#include "proto/fleet_token.h"

namespace bitshard {
namespace {

// Only a broken worker takes so long.
constexpr absl::Duration kPatience = absl::Seconds(40);

}  // namespace

FakeCoordinator::FakeCoordinator(int port) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), grpc::InsecureServerCredentials(),
                           &port_);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  CHECK(server_ != nullptr);
}

FakeCoordinator::~FakeCoordinator() {
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

void FakeCoordinator::Want(const std::string& token) {
  absl::MutexLock lock(&mu_);
  wanted_token_ = token;
}

std::string FakeCoordinator::address() const { return absl::StrCat("127.0.0.1:", port_); }

std::shared_ptr<FakeCoordinator::Stream> FakeCoordinator::Accept() {
  absl::MutexLock lock(&mu_);
  auto ready = [this] { return !accepted_.empty(); };
  if (!mu_.AwaitWithTimeout(absl::Condition(&ready), kPatience)) {
    ADD_FAILURE() << "no worker dialled";
    return nullptr;
  }
  auto stream = accepted_.front();
  accepted_.pop_front();
  return stream;
}

grpc::Status FakeCoordinator::Connect(
    grpc::ServerContext* context,
    grpc::ServerReaderWriter<internal::CoordinatorMessage, internal::WorkerMessage>* rpc) {
  auto stream = std::make_shared<Stream>();
  stream->context_ = context;
  stream->rpc_ = rpc;
  const auto token = context->client_metadata().find(kFleetTokenMetadata);
  if (token != context->client_metadata().end())
    stream->token_.assign(token->second.data(), token->second.size());
  {
    absl::MutexLock lock(&mu_);
    if (wanted_token_.value_or(stream->token_) != stream->token_)
      return {grpc::StatusCode::PERMISSION_DENIED, "wrong token"};
    accepted_.push_back(stream);
  }
  internal::WorkerMessage message;
  while (rpc->Read(&message)) {
    absl::MutexLock lock(&stream->mu_);
    stream->received_.push_back(message);
  }
  absl::MutexLock lock(&stream->mu_);
  stream->ended_ = stream->released_ = true;
  return grpc::Status::OK;
}

void FakeCoordinator::Stream::Send(const internal::CoordinatorMessage& message) {
  absl::MutexLock lock(&mu_);
  if (!released_) rpc_->Write(message);
}

void FakeCoordinator::Stream::Close() {
  absl::MutexLock lock(&mu_);
  if (!released_) context_->TryCancel();
}

std::optional<internal::WorkerMessage> FakeCoordinator::Stream::Take(
    const std::function<bool(const internal::WorkerMessage&)>& wanted) {
  const absl::Time deadline = absl::Now() + kPatience;
  absl::MutexLock lock(&mu_);
  while (true) {
    const auto it = std::find_if(received_.begin(), received_.end(), wanted);
    if (it != received_.end()) {
      internal::WorkerMessage message = *it;
      received_.erase(received_.begin(), it + 1);
      return message;
    }
    if (ended_) return std::nullopt;
    const size_t seen = received_.size();
    auto more = [this, seen] { return ended_ || received_.size() > seen; };
    if (!mu_.AwaitWithDeadline(absl::Condition(&more), deadline)) return std::nullopt;
  }
}

internal::WorkerMessage FakeCoordinator::Stream::Next() {
  auto message = Take([](const internal::WorkerMessage& m) {
    return !m.has_heartbeat() && !m.has_memory_report();
  });
  if (message.has_value()) return *message;
  ADD_FAILURE() << "the worker said nothing more";
  return {};
}

internal::Heartbeat FakeCoordinator::Stream::NextHeartbeat(
    const std::function<bool(const internal::Heartbeat&)>& wanted) {
  auto message = Take(
      [&](const internal::WorkerMessage& m) { return m.has_heartbeat() && wanted(m.heartbeat()); });
  if (message.has_value()) return message->heartbeat();
  ADD_FAILURE() << "no such heartbeat came";
  return {};
}

internal::MemoryReport FakeCoordinator::Stream::NextMemoryReport(
    const std::function<bool(const internal::MemoryReport&)>& wanted) {
  auto message = Take([&](const internal::WorkerMessage& m) {
    return m.has_memory_report() && wanted(m.memory_report());
  });
  if (message.has_value()) return message->memory_report();
  ADD_FAILURE() << "no such memory report came";
  return {};
}

bool FakeCoordinator::Stream::WaitForEnd() {
  absl::MutexLock lock(&mu_);
  auto over = [this] { return ended_; };
  return mu_.AwaitWithTimeout(absl::Condition(&over), kPatience);
}

}  // namespace bitshard
