// Inference.Embed: a vector for each input, each through the engine as a request of its own; all
// are admitted together, and when one fails the others are cancelled.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "coordinator/frontend/generation_call.h"

namespace bitshard {

class EmbedCall final : public GenerationCall, public grpc::ServerUnaryReactor {
 public:
  static grpc::ServerUnaryReactor* Start(const FrontendContext* frontend,
                                         grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer& request,
                                         grpc::ByteBuffer* response);

  EmbedCall(const FrontendContext* frontend, grpc::CallbackServerContext* context,
            grpc::ByteBuffer* response)
      : GenerationCall(frontend, context), response_(response) {}

 private:
  class InputSink;

  absl::StatusOr<PreparedRequest> Prepare(const grpc::ByteBuffer& request) override;
  std::vector<Engine::Submission> Submissions() override ABSL_LOCKS_EXCLUDED(mu_);
  void Refuse(const absl::Status& status) override;

  void OnDelta(TokenDelta) override {}  // nothing is generated
  void OnEnd(RequestEnd end) override { InputEnded(0, std::move(end)); }
  void InputEnded(size_t input, RequestEnd end) ABSL_LOCKS_EXCLUDED(mu_);
  bool Pump(absl::Time now) override ABSL_LOCKS_EXCLUDED(mu_);
  // When all have ended.
  void Answer(const std::vector<RequestEnd>& ends, absl::Status status);
  absl::Status Fill(const std::vector<RequestEnd>& ends, v1::EmbedResponse* answer) const;

  void OnCancel() override { CancelInEngine(); }
  void OnDone() override { self_.reset(); }

  grpc::ByteBuffer* const response_;  // gRPC's, valid until Finish
  std::shared_ptr<EmbedCall> self_;   // until OnDone
  // Of the request; constant once it is parsed.
  bool normalize_ = true;
  size_t values_ = 0;  // of each vector

  absl::Mutex mu_;
  std::vector<RequestEnd> ends_ ABSL_GUARDED_BY(mu_);  // by input
  size_t left_ ABSL_GUARDED_BY(mu_) = 0;               // have not ended
  absl::Status failure_ ABSL_GUARDED_BY(mu_);          // the first input's that failed
  bool told_ ABSL_GUARDED_BY(mu_) = false;             // the others, of the failure
};

}  // namespace bitshard
