// A RequestSink that keeps all it gets and checks the contract of the calls: admitted at most once
// and first, contiguous token indices in each choice, one end of each and nothing after it.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "coordinator/engine/engine.h"

namespace bitshard {

class RecordingSink : public RequestSink {
 public:
  // `resumed`: tokens that the request brings along.
  explicit RecordingSink(size_t resumed = 0) : resumed_(resumed) {}

  void OnAdmitted() override;
  void OnStatus(const RequestStatus& status) override;
  void OnDelta(TokenDelta delta) override;
  void OnChoiceEnd(RequestEnd end) override;
  void OnEnd(RequestEnd end) override;

  // Blocks until the end has come.
  RequestEnd AwaitEnd() const;
  // Blocks until `count` tokens have come, of all choices, or the end.
  void AwaitTokens(size_t count) const;

  bool ended() const;
  bool admitted() const;
  // Of a choice; what came of it so far.
  std::vector<int32_t> tokens(uint32_t choice = 0) const;
  std::vector<TokenLogprobs> logprobs(uint32_t choice = 0) const;
  std::vector<TokenLogprobs> prompt_logprobs(uint32_t choice = 0) const;
  std::string text(uint32_t choice = 0) const;  // the tail included
  // When it ended well.
  std::optional<RequestEnd> choice_end(uint32_t choice) const;
  // Choices in the order in which their tokens came, one entry a delta.
  std::vector<uint32_t> order() const;
  std::vector<RequestStatus> statuses() const;

 private:
  struct Choice {
    std::vector<int32_t> tokens;
    std::vector<TokenLogprobs> logprobs, prompt_logprobs;
    std::string text;
    std::optional<RequestEnd> end;
  };
  Choice Of(uint32_t choice) const;
  size_t Tokens() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  void EndChoice(const RequestEnd& end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const size_t resumed_;
  mutable absl::Mutex mu_;
  bool admitted_ ABSL_GUARDED_BY(mu_) = false;
  std::map<uint32_t, Choice> choices_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> order_ ABSL_GUARDED_BY(mu_);
  std::vector<RequestStatus> statuses_ ABSL_GUARDED_BY(mu_);
  std::optional<RequestEnd> end_ ABSL_GUARDED_BY(mu_);
};

}  // namespace bitshard
