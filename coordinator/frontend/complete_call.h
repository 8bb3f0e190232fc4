// Inference.Complete: the unary twin of Generate. Pieces are kept until the end.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "coordinator/frontend/generation_call.h"

namespace bitshard {

class CompleteCall final : public GenerationCall, public grpc::ServerUnaryReactor {
 public:
  static grpc::ServerUnaryReactor* Start(const FrontendContext* frontend,
                                         grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer& request,
                                         grpc::ByteBuffer* response);

  CompleteCall(const FrontendContext* frontend, grpc::CallbackServerContext* context,
               grpc::ByteBuffer* response)
      : GenerationCall(frontend, context), response_(response) {}

 private:
  absl::StatusOr<PreparedRequest> Prepare(const grpc::ByteBuffer& request) override;
  void Refuse(const absl::Status& status) override;

  void OnDelta(TokenDelta delta) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnChoiceEnd(RequestEnd end) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnEnd(RequestEnd end) override ABSL_LOCKS_EXCLUDED(mu_);
  bool Pump(absl::Time now) override ABSL_LOCKS_EXCLUDED(mu_);

  void OnCancel() override { CancelInEngine(); }
  void OnDone() override { self_.reset(); }

  // The part of the answer that is this choice's.
  v1::CompletedChoice& Part(uint32_t choice) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishPart(const RequestEnd& end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  grpc::ByteBuffer* const response_;    // gRPC's, valid until Finish
  std::shared_ptr<CompleteCall> self_;  // until OnDone

  absl::Mutex mu_;
  v1::CompleteResponse answer_ ABSL_GUARDED_BY(mu_);
  std::vector<RequestEnd> choice_ends_ ABSL_GUARDED_BY(mu_);
  std::optional<RequestEnd> end_ ABSL_GUARDED_BY(mu_);
};

}  // namespace bitshard
