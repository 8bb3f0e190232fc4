// A RequestSink that keeps all it gets and checks the contract of the calls: admitted at most once
// and first, contiguous token indices, one end and nothing after it. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "coordinator/engine/engine.h"

namespace bitshard {

class RecordingSink : public RequestSink {
 public:
  void OnAdmitted() override;
  void OnDelta(TokenDelta delta) override;
  void OnEnd(RequestEnd end) override;

  // Blocks until the end has come.
  RequestEnd AwaitEnd() const;
  // Blocks until `count` tokens have come, or the end.
  void AwaitTokens(size_t count) const;

  bool ended() const;
  bool admitted() const;
  std::vector<int32_t> tokens() const;
  std::vector<TokenLogprobs> logprobs() const;
  std::string text() const;  // the tail included

 private:
  mutable absl::Mutex mu_;
  bool admitted_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<int32_t> tokens_ ABSL_GUARDED_BY(mu_);
  std::vector<TokenLogprobs> logprobs_ ABSL_GUARDED_BY(mu_);
  std::string text_ ABSL_GUARDED_BY(mu_);
  std::optional<RequestEnd> end_ ABSL_GUARDED_BY(mu_);
};

}  // namespace bitshard
