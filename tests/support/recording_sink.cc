#include "tests/support/recording_sink.h"

#include <utility>

#include <gtest/gtest.h>

namespace bitshard {

void RecordingSink::OnAdmitted() {
  absl::MutexLock lock(&mu_);
  EXPECT_FALSE(admitted_) << "admitted twice";
  EXPECT_FALSE(end_.has_value()) << "admitted after its end";
  admitted_ = true;
}

void RecordingSink::OnDelta(TokenDelta delta) {
  absl::MutexLock lock(&mu_);
  EXPECT_TRUE(admitted_) << "a delta before the admission";
  EXPECT_FALSE(end_.has_value()) << "a delta after the end";
  EXPECT_EQ(delta.first_index, tokens_.size()) << "a gap or a repetition in the stream";
  tokens_.insert(tokens_.end(), delta.tokens.begin(), delta.tokens.end());
  logprobs_.insert(logprobs_.end(), delta.logprobs.begin(), delta.logprobs.end());
  text_ += delta.text;
}

void RecordingSink::OnEnd(RequestEnd end) {
  absl::MutexLock lock(&mu_);
  EXPECT_FALSE(end_.has_value()) << "ended twice: " << end_->status << " and " << end.status;
  EXPECT_EQ(end.status.ok(), end.finish_reason.has_value());
  EXPECT_EQ(end.completion_tokens, tokens_.size());
  text_ += end.tail_text;
  end_ = std::move(end);
}

RequestEnd RecordingSink::AwaitEnd() const {
  absl::MutexLock lock(&mu_);
  auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return end_.has_value(); };
  mu_.Await(absl::Condition(&ended));
  return *end_;
}

void RecordingSink::AwaitTokens(size_t count) const {
  absl::MutexLock lock(&mu_);
  auto enough = [this, count]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return end_.has_value() || tokens_.size() >= count;
  };
  mu_.Await(absl::Condition(&enough));
}

bool RecordingSink::ended() const {
  absl::MutexLock lock(&mu_);
  return end_.has_value();
}

bool RecordingSink::admitted() const {
  absl::MutexLock lock(&mu_);
  return admitted_;
}

std::vector<int32_t> RecordingSink::tokens() const {
  absl::MutexLock lock(&mu_);
  return tokens_;
}

std::vector<TokenLogprobs> RecordingSink::logprobs() const {
  absl::MutexLock lock(&mu_);
  return logprobs_;
}

std::string RecordingSink::text() const {
  absl::MutexLock lock(&mu_);
  return text_;
}

}  // namespace bitshard
