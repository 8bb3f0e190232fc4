// A caller's request, what came of it, and whether that is right: exactly one end, and the tokens
// of truth.h, all of them or, where something that may end a request early did, the first ones.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/engine/engine.h"
#include "coordinator/schedule/sequence.h"
#include "tests/coordinator/simulator/truth.h"
#include "tests/coordinator/simulator/world.h"

namespace bitshard::sim {

// What may end a request early, as the simulation knows it.
struct Circumstances {
  bool draining = false;   // all that lived was told to end
  bool lost_ends = false;  // a lost group ends its requests
  // What is left of the pool can never hold the tokens.
  std::function<bool(uint64_t tokens)> too_large;
};

class Call final : public RequestSink {
 public:
  // `circumstances` and `world` outlive the call.
  Call(GenerateRequest request, const Circumstances* circumstances, World* world);

  const GenerateRequest& request() const { return request_; }
  void set_id(SequenceId id) { id_ = id; }
  SequenceId id() const { return id_; }
  void set_cancelled() { cancelled_ = true; }

  bool ended() const { return code_.has_value(); }
  absl::StatusCode code() const { return *code_; }
  // It ended because of logits that are not finite though its own are: a bad block's doing.
  bool bad_block_victim() const { return bad_block_victim_; }
  uint64_t tokens() const;
  uint32_t cached_tokens() const { return cached_tokens_; }

  // RequestSink.
  void OnAdmitted() override;
  void OnStatus(const RequestStatus& status) override;
  void OnDelta(TokenDelta delta) override;
  void OnChoiceEnd(RequestEnd end) override;
  void OnEnd(RequestEnd end) override;

 private:
  struct Answer {
    Expected expected;
    std::vector<int32_t> tokens;  // those that came with the request included
    std::vector<float> logprobs, scores;
    std::string text;
    bool ended = false;
  };

  template <typename... Args>
  void Wrong(const Args&... args) {
    world_->Fail(absl::StrCat("request ", id_, ": ", args...));
  }
  Answer* At(uint32_t choice);
  // The answer is complete.
  void CheckComplete(uint32_t choice, const RequestEnd& end);
  // What there is of each answer is right.
  void CheckBegun();
  void CheckError(const absl::Status& status);

  const GenerateRequest request_;
  const Circumstances* const circumstances_;
  World* const world_;
  SequenceId id_ = 0;
  bool cancelled_ = false, admitted_ = false, bad_block_victim_ = false;
  uint32_t cached_tokens_ = 0;
  std::vector<Answer> answers_;  // by choice
  std::optional<absl::StatusCode> code_;
};

}  // namespace bitshard::sim
