#include "coordinator/frontend/delta_buffer.h"

#include <iterator>
#include <utility>

#include "kernels/base/check.h"

namespace bitshard {

void DeltaBuffer::Push(TokenDelta delta, absl::Time now) {
  pending_bytes_ += delta.text.size() + 4 * delta.tokens.size();
  for (const auto* list : {&delta.logprobs, &delta.prompt_logprobs}) {
    for (const TokenLogprobs& logprobs : *list) pending_bytes_ += 16 + 16 * logprobs.top.size();
  }
  if (!pending_) {
    pending_ = std::move(delta);
  } else {
    CHECK_EQ(delta.first_index, pending_->first_index + pending_->tokens.size())
        << "the engine left a gap";
    pending_->tokens.insert(pending_->tokens.end(), delta.tokens.begin(), delta.tokens.end());
    pending_->logprobs.insert(pending_->logprobs.end(),
                              std::make_move_iterator(delta.logprobs.begin()),
                              std::make_move_iterator(delta.logprobs.end()));
    pending_->text += delta.text;
    ++coalesced_;
  }
  if (!over_since_ && (pending_->tokens.size() > policy_.max_pending_tokens ||
                       pending_bytes_ > policy_.max_pending_bytes)) {
    over_since_ = now;
  }
}

TokenDelta DeltaBuffer::Take() {
  CHECK(pending_.has_value());
  TokenDelta delta = *std::move(pending_);
  Clear();
  return delta;
}

void DeltaBuffer::Clear() {
  pending_.reset();
  pending_bytes_ = 0;
  over_since_.reset();
}

}  // namespace bitshard
