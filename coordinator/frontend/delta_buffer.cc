#include "coordinator/frontend/delta_buffer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/base/check.h"

namespace bitshard {

bool DeltaBuffer::Push(TokenDelta delta, absl::Time now) {
  pending_tokens_ += delta.tokens.size();
  pending_bytes_ += delta.text.size() + 4 * delta.tokens.size();
  for (const auto* list : {&delta.logprobs, &delta.prompt_logprobs}) {
    for (const TokenLogprobs& logprobs : *list) pending_bytes_ += 16 + 16 * logprobs.top.size();
  }
  const auto pending = std::find_if(pending_.begin(), pending_.end(), [&](const TokenDelta& one) {
    return one.choice == delta.choice;
  });
  const bool merged = pending != pending_.end();
  if (merged) {
    CHECK_EQ(delta.first_index, pending->first_index + pending->tokens.size())
        << "the engine left a gap";
    pending->tokens.insert(pending->tokens.end(), delta.tokens.begin(), delta.tokens.end());
    pending->logprobs.insert(pending->logprobs.end(),
                             std::make_move_iterator(delta.logprobs.begin()),
                             std::make_move_iterator(delta.logprobs.end()));
    pending->text += delta.text;
    ++coalesced_;
  } else {
    pending_.push_back(std::move(delta));
  }
  if (!over_since_ && (pending_tokens_ > policy_.max_pending_tokens ||
                       pending_bytes_ > policy_.max_pending_bytes)) {
    over_since_ = now;
  }
  return merged;
}

std::vector<TokenDelta> DeltaBuffer::Take() {
  std::vector<TokenDelta> deltas = std::move(pending_);
  Clear();
  return deltas;
}

void DeltaBuffer::Clear() {
  pending_.clear();
  pending_bytes_ = pending_tokens_ = 0;
  over_since_.reset();
}

}  // namespace bitshard
