// bitshard.v1.Inference.Generate over so many connections, by gRPC's callback API: no thread a
// call.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "proto/inference.grpc.pb.h"
#include "tests/bench/load/load_run.h"

namespace bitshard {

class GrpcFace final : public LoadFace {
 public:
  struct Options {
    std::string address;
    uint32_t channels = 1;  // a connection each; calls go to them in turn
    absl::Duration timeout = absl::InfiniteDuration();  // of a call
    bool token_ids = false;                             // digests are of these; else of the text
    std::string cache_salt;                             // keeps calls of several runs apart
  };

  explicit GrpcFace(Options options);
  ~GrpcFace() override;  // waits for the ends of all calls

  // Opens the connections; UNAVAILABLE when one does not come up in time.
  absl::Status Connect(absl::Duration patience);

  void Start(const LoadCall& call, LoadRecord* record, std::function<void()> ended) override;
  // Cancels the blockers that are live.
  void CancelBlockers();

 private:
  class Stream;

  const Options options_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::vector<std::unique_ptr<v1::Inference::Stub>> stubs_;
  size_t next_ = 0;  // stub; used by the thread that starts calls

  std::mutex mu_;
  std::condition_variable idle_;
  // Guarded by mu_.
  size_t live_ = 0;
  std::unordered_set<std::shared_ptr<Stream>> blockers_;
};

}  // namespace bitshard
