// One call that goes through the engine, whatever its shape: from bytes to an admitted request, and
// cancellation on the way.
//
// Shared by gRPC (until OnDone), the engine (until OnEnd) and the writer; the last one to let go
// frees it. Threads: Begin on gRPC's thread; what follows on it or, for long prompts, on the
// background thread; OnAdmitted, OnDelta and OnEnd on the engine's, where they only store and wake
// the writer.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>

#include "coordinator/engine/engine.h"
#include "coordinator/frontend/first_token.h"
#include "coordinator/frontend/frontend_context.h"
#include "coordinator/frontend/prepare_request.h"
#include "coordinator/frontend/stream_writer.h"
#include "proto/inference.pb.h"

namespace bitshard {

class GenerationCall : public RequestSink,
                       public PumpedStream,
                       public std::enable_shared_from_this<GenerationCall> {
 protected:
  GenerationCall(const FrontendContext* frontend, grpc::CallbackServerContext* context)
      : frontend_(frontend), context_(context), first_token_(frontend->metrics) {}

  // Parses, checks and tokenizes; once, not on the writer's thread.
  virtual absl::StatusOr<PreparedRequest> Prepare(const grpc::ByteBuffer& request) = 0;
  // Of a GenerateRequest, or of a CompleteRequest, which is field for field the same.
  absl::StatusOr<PreparedRequest> PrepareGenerate(const grpc::ByteBuffer& request,
                                                  const std::string& message_name) const;

  // Prepares and submits; a request of many bytes on the background thread, where it is parsed
  // only when its turn has come: what is parsed can be many times what was sent. On any error
  // Refuse is called, once.
  void Begin(const grpc::ByteBuffer& request);
  // What goes to the engine; caller and times are filled in. By default one request, of this call.
  virtual std::vector<Engine::Submission> Submissions();
  // The call ends with `status`; nothing has been sent.
  virtual void Refuse(const absl::Status& status) = 0;
  // Nobody wants the answer any more: the client has gone, its deadline has passed, or it reads too
  // slowly.
  void CancelInEngine() ABSL_LOCKS_EXCLUDED(cancel_mu_);
  // The transport gets tokens of this request.
  void TokensHanded() { first_token_.Handed(absl::Now() - received_); }
  void WakeWriter() { frontend_->writer->Wake(shared_from_this()); }
  // One line for the log.
  void LogEnd(const absl::Status& status, const RequestEnd& end) const;

  const FrontendContext* const frontend_;
  grpc::CallbackServerContext* const context_;  // valid until OnDone
  PreparedRequest prepared_;                    // constant once submitted

 private:
  void PrepareAndSubmit(const grpc::ByteBuffer& request);
  // For a request with a constraint: submits once it is compiled, on the compiler's thread.
  void CompileAndSubmit();
  void SubmitOrRefuse();
  // Once the caller has gone, CANCELLED, or DEADLINE_EXCEEDED by its clock; counted as such.
  absl::Status StillWanted() ABSL_LOCKS_EXCLUDED(cancel_mu_);
  absl::Status Submit() ABSL_LOCKS_EXCLUDED(cancel_mu_);
  void CancelAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(cancel_mu_);
  // Refuse, and how long it took.
  void SendRefusal(const absl::Status& status);

  absl::Time received_;
  absl::Time deadline_;
  std::string caller_;
  FirstTokenCount first_token_;
  std::string trace_;  // of the caller's traceparent, for the log

  absl::Mutex cancel_mu_;
  std::optional<absl::Time> cancelled_ ABSL_GUARDED_BY(cancel_mu_);
  std::vector<RequestHandle> handles_ ABSL_GUARDED_BY(cancel_mu_);     // once submitted
  GrammarCompiler::Ticket compiling_ ABSL_GUARDED_BY(cancel_mu_) = 0;  // 0: never was
};

}  // namespace bitshard
