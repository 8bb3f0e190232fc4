// Inference.Score: log-probabilities of given tokens, through the engine like any request.
#pragma once

#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "coordinator/frontend/generation_call.h"

namespace bitshard {

class ScoreCall final : public GenerationCall, public grpc::ServerUnaryReactor {
 public:
  static grpc::ServerUnaryReactor* Start(const FrontendContext* frontend,
                                         grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer& request,
                                         grpc::ByteBuffer* response);

  ScoreCall(const FrontendContext* frontend, grpc::CallbackServerContext* context,
            grpc::ByteBuffer* response)
      : GenerationCall(frontend, context), response_(response) {}

 private:
  absl::StatusOr<PreparedRequest> Prepare(const grpc::ByteBuffer& request) override;
  void Refuse(const absl::Status& status) override;

  void OnDelta(TokenDelta) override {}  // nothing is generated
  void OnEnd(RequestEnd end) override ABSL_LOCKS_EXCLUDED(mu_);
  bool Pump(absl::Time now) override ABSL_LOCKS_EXCLUDED(mu_);

  void OnCancel() override { CancelInEngine(); }
  void OnDone() override { self_.reset(); }

  grpc::ByteBuffer* const response_;  // gRPC's, valid until Finish
  std::shared_ptr<ScoreCall> self_;   // until OnDone

  absl::Mutex mu_;
  std::optional<RequestEnd> end_ ABSL_GUARDED_BY(mu_);
};

}  // namespace bitshard
