// A client of bitshard: deadlines, retries, resumed streams and typed errors over ordinary gRPC
// C++.
//
//   bitshard::client::Client client("bitshard.example:50051");  // one for the whole program
//   auto answer = client.Generate(request);
//   for (bitshard::v1::GenerateResponse message; answer->Read(&message);) std::cout <<
//   message.text(); if (const auto status = answer->Finish(); !status.ok()) std::cerr <<
//   status.ToString();
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bitshard_client/answer.h"
#include "bitshard_client/call_status.h"
#include "bitshard_client/connection.h"
#include <grpcpp/client_context.h>
#include <grpcpp/support/sync_stream.h>

#include "proto/inference.grpc.pb.h"

namespace bitshard::client {

struct CallOptions {
  std::optional<std::chrono::milliseconds> timeout;  // absent: ClientOptions.default_timeout
  std::vector<std::pair<std::string, std::string>> metadata;
};

// An answer as it is written. A stream that breaks is resumed; nothing comes twice or is missing.
//
// One thread calls Read and Finish; Cancel is for any thread. The destructor cancels what has not
// ended. It may outlive its client.
class AnswerStream {
 public:
  ~AnswerStream();
  AnswerStream(const AnswerStream&) = delete;
  AnswerStream& operator=(const AnswerStream&) = delete;

  // The next piece; false at the end: Finish tells how it ended.
  bool Read(v1::GenerateResponse* message);
  // Cancels what has not ended. OK: the answer is complete.
  CallStatus Finish();
  void Cancel();

  // As in the service's log and its x-request-id.
  const std::string& request_id() const { return answer_.request_id(); }
  // Seed, fingerprint and prompt length; once the first message has come.
  const std::optional<v1::Started>& started() const { return answer_.started(); }
  // How often the stream broke and went on.
  int resumes() const { return answer_.resumes(); }
  // Keep it to go on later, or from another process: the same request with this in its field
  // `resume`. Take it after a message with a token_count above 0; deltas read after that message
  // would come again. REQUIRES: the request has this choice.
  v1::Resume ResumeState(uint32_t choice = 0) const;

 private:
  friend class Client;
  using Clock = std::chrono::system_clock;  // gRPC's deadlines are of this one
  using Metadata = std::vector<std::pair<std::string, std::string>>;
  AnswerStream(std::shared_ptr<v1::Inference::Stub> stub, const v1::GenerateRequest& request,
               std::chrono::milliseconds timeout, const ClientOptions& options, Metadata metadata);

  // Puts what came next into ready_, or ends the stream.
  void Next();
  // A new call; false when the stream ended instead.
  bool Begin();
  // Ends the call, if there is one; its status.
  grpc::Status EndCall();
  bool Cancelled();
  // Waits for the next try, or ends the stream with `status`.
  void GoOnAfter(const CallStatus& status);
  void End(CallStatus status);
  void EndCancelled();

  const std::shared_ptr<v1::Inference::Stub> stub_;
  const std::chrono::milliseconds timeout_;
  const Clock::time_point start_ = Clock::now(), end_ = start_ + timeout_;
  const bool wait_for_ready_;
  const Metadata metadata_;
  Answer answer_;
  std::deque<v1::GenerateResponse> ready_;
  std::optional<CallStatus> status_;  // set: over
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader_;

  std::mutex mu_;
  std::condition_variable cancel_;
  bool cancelled_ = false;  // guarded by mu_
  std::unique_ptr<grpc::ClientContext>
      context_;  // of reader_; changed under mu_, as Cancel wants it
};

// What a call of one answer took, for the message of its failure. For Client alone.
struct Effort {
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  int calls = 0;  // that are over; gRPC's own tries are within a call
  void Tell(CallStatus* status) const;
};

// Calls a service. Thread-safe; one for the whole program.
class Client {
 public:
  // `target`: "host:port", or any of gRPC's names.
  explicit Client(const std::string& target, ClientOptions options = {});

  // The answer as a stream. Calls nothing until it is read; the deadline counts from now.
  std::unique_ptr<AnswerStream> Generate(const v1::GenerateRequest& request,
                                         const CallOptions& call = {});
  // The whole answer at once.
  CallStatus Complete(const v1::CompleteRequest& request, v1::CompleteResponse* response,
                      const CallOptions& call = {});
  CallStatus Score(const v1::ScoreRequest& request, v1::ScoreResponse* response,
                   const CallOptions& call = {});
  CallStatus Embed(const v1::EmbedRequest& request, v1::EmbedResponse* response,
                   const CallOptions& call = {});
  CallStatus Tokenize(const v1::TokenizeRequest& request, v1::TokenizeResponse* response,
                      const CallOptions& call = {});
  CallStatus Detokenize(const v1::DetokenizeRequest& request, v1::DetokenizeResponse* response,
                        const CallOptions& call = {});
  CallStatus ApplyChatTemplate(const v1::ApplyChatTemplateRequest& request,
                               v1::ApplyChatTemplateResponse* response,
                               const CallOptions& call = {});
  CallStatus ListModels(v1::ListModelsResponse* response, const CallOptions& call = {});
  // Ends live requests of this caller, wherever they are read. Unknown ids are no error.
  CallStatus Abort(const std::vector<std::string>& request_ids, const CallOptions& call = {});

 private:
  std::shared_ptr<v1::Inference::Stub> NextStub();
  std::chrono::milliseconds Timeout(const CallOptions& call) const;
  template <typename Request, typename Response>
  CallStatus Unary(grpc::Status (v1::Inference::Stub::*method)(grpc::ClientContext*, const Request&,
                                                               Response*),
                   const Request& request, Response* response, const CallOptions& call,
                   std::string request_id = "", Effort effort = Effort());
  // The same with an id, drawn for a request that has none.
  template <typename Request, typename Response>
  CallStatus UnaryWithId(grpc::Status (v1::Inference::Stub::*method)(grpc::ClientContext*,
                                                                     const Request&, Response*),
                         const Request& request, Response* response, const CallOptions& call);

  const ClientOptions options_;
  std::vector<std::shared_ptr<v1::Inference::Stub>> stubs_;  // one a channel
  std::atomic<size_t> turn_{0};
};

}  // namespace bitshard::client
