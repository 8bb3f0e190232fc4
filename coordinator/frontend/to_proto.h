// The engine's words into the public ones.
#pragma once

#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"

#include "coordinator/engine/engine.h"
#include "coordinator/text/tokenizer.h"
#include "proto/inference.pb.h"

namespace bitshard {

void SetDuration(absl::Duration duration, google::protobuf::Duration* out);
absl::Duration FromProto(const google::protobuf::Duration& duration);
void SetTimestamp(absl::Time time, google::protobuf::Timestamp* out);

// `token`: the one that was chosen.
void SetLogprobs(int32_t token, const TokenLogprobs& logprobs, const Tokenizer& tokenizer,
                 v1::TokenLogprobs* out);

void SetUsage(const RequestEnd& end, v1::Usage* out);

// REQUIRES: end.status is OK.
void SetFinished(const RequestEnd& end, v1::Finished* out);

void SetLoad(const EngineStats& stats, uint32_t block_tokens, v1::Load* out);

}  // namespace bitshard
