// The engine's words into the public ones.
#pragma once

#include <vector>

#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"

#include "coordinator/engine/engine.h"
#include "coordinator/text/tokenizer.h"
#include "proto/admin.pb.h"
#include "proto/inference.pb.h"

namespace bitshard {

void SetDuration(absl::Duration duration, google::protobuf::Duration* out);
absl::Duration FromProto(const google::protobuf::Duration& duration);
void SetTimestamp(absl::Time time, google::protobuf::Timestamp* out);

// `token`: the one that was chosen.
void SetLogprobs(int32_t token, const TokenLogprobs& logprobs, const Tokenizer& tokenizer,
                 v1::TokenLogprobs* out);

// One a token; those before `scores` begin have no log-probability. REQUIRES: scores.size() <=
// tokens.size().
void SetTokenScores(const std::vector<int32_t>& tokens, const std::vector<TokenLogprobs>& scores,
                    const Tokenizer& tokenizer,
                    google::protobuf::RepeatedPtrField<v1::TokenLogprobs>* out);

void SetUsage(const RequestEnd& end, v1::Usage* out);
// Of all choices together.
void SetUsageOfAll(const RequestEnd& end, v1::Usage* out);

// The first `count` values of a pooled vector, with `normalize` scaled to length 1 (in f64, rounded
// once; a vector of zeros stays as it is). REQUIRES: it has that many.
void SetVector(const std::vector<float>& pooled, size_t count, bool normalize,
               google::protobuf::RepeatedField<float>* out);

void SetStatusEvent(const RequestStatus& status, v1::StatusEvent* out);

// REQUIRES: end.status is OK.
void SetFinished(const RequestEnd& end, v1::Finished* out);

// What of the load is fixed, or not the engine's.
struct LoadBounds {
  uint32_t block_tokens = 16;
  uint32_t max_waiting = 0;         // requests
  uint64_t max_waiting_tokens = 0;  // prompt tokens
};

void SetLoad(const EngineStats& stats, const LoadBounds& bounds, bool draining, absl::Time now,
             v1::Load* out);

}  // namespace bitshard
