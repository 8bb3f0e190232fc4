// Inference.Generate: one stream to one client.
//
// The engine's pieces go into a DeltaBuffer; Pump takes out all there is and writes it as one
// message a choice (or as several, when it is text, reasoning and calls of tools), one write at a
// time. A
// client that reads too slowly is ended with RESOURCE_EXHAUSTED, and cut off when it does not even
// take that.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "coordinator/frontend/answer_splitter.h"
#include "coordinator/frontend/delta_buffer.h"
#include "coordinator/frontend/generation_call.h"

namespace bitshard {

class GenerateCall final : public GenerationCall,
                           public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  // Frees itself when gRPC, the engine and the writer are through with it.
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(const FrontendContext* frontend,
                                                           grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer& request);

  GenerateCall(const FrontendContext* frontend, grpc::CallbackServerContext* context)
      : GenerationCall(frontend, context),
        metrics_(frontend->metrics),
        buffer_(frontend->slow_reader) {}
  ~GenerateCall() override;

 private:
  absl::StatusOr<PreparedRequest> Prepare(const grpc::ByteBuffer& request) override;
  void Refuse(const absl::Status& status) override ABSL_LOCKS_EXCLUDED(mu_);

  void OnAdmitted() override ABSL_LOCKS_EXCLUDED(mu_);
  void OnStatus(const RequestStatus& status) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnDelta(TokenDelta delta) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnChoiceEnd(RequestEnd end) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnEnd(RequestEnd end) override ABSL_LOCKS_EXCLUDED(mu_);

  absl::Time Now() const { return frontend_->slow_reader.now(); }
  bool Pump(absl::Time) override ABSL_LOCKS_EXCLUDED(mu_);
  bool LookAfterSlowReader(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ClearBuffer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishWith(const absl::Status& status, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `ends`: of choices that ended well, after their last tokens. With `last` the last of them is
  // the request's end.
  std::vector<v1::GenerateResponse> Messages(const std::vector<TokenDelta>& deltas,
                                             const std::vector<RequestEnd>& ends, bool last);
  // Of one choice: tokens, or its end, or both.
  void AddMessages(const TokenDelta* delta, const RequestEnd* end,
                   std::vector<v1::GenerateResponse>* messages);
  // Into the first of them, for it came before these tokens or while they were on their way; into
  // one of its own where there is none.
  void AddStatus(const RequestStatus& status, std::vector<v1::GenerateResponse>* messages);
  // Writes the next of more_.
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnCancel() override { CancelInEngine(); }
  void OnDone() override ABSL_LOCKS_EXCLUDED(mu_);

  EngineMetrics* const metrics_;        // outlives the call, which may outlive the frontend
  std::shared_ptr<GenerateCall> self_;  // until OnDone
  bool started_sent_ = false;           // of whoever holds the right to write
  std::map<uint32_t, AnswerSplitter> splitters_;  // the same; by choice

  absl::Mutex mu_;
  DeltaBuffer buffer_ ABSL_GUARDED_BY(mu_);
  std::vector<RequestEnd> choice_ends_ ABSL_GUARDED_BY(mu_);  // that are not in messages yet
  std::optional<RequestEnd> end_ ABSL_GUARDED_BY(mu_);
  std::optional<RequestStatus> status_ ABSL_GUARDED_BY(mu_);  // the latest that is not sent
  bool admitted_ ABSL_GUARDED_BY(mu_) = false;
  bool metadata_sent_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;  // a write is on its way: the right to write is taken
  absl::Time write_since_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Time> finished_ ABSL_GUARDED_BY(mu_);  // Finish has been called
  absl::Time end_since_ ABSL_GUARDED_BY(mu_);                // of end_
  bool slow_ ABSL_GUARDED_BY(mu_) = false;                   // ended as a slow reader
  bool cut_ ABSL_GUARDED_BY(mu_) = false;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<grpc::ByteBuffer> more_ ABSL_GUARDED_BY(mu_);  // made, not yet written
  bool more_end_ ABSL_GUARDED_BY(mu_) = false;              // its last one ends the call
  grpc::ByteBuffer current_;                                // of the write on its way
};

}  // namespace bitshard
