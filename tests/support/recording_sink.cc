#include "tests/support/recording_sink.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "tests/support/await.h"

namespace bitshard {

void RecordingSink::OnAdmitted() {
  absl::MutexLock lock(&mu_);
  EXPECT_FALSE(admitted_) << "admitted twice";
  EXPECT_FALSE(end_.has_value()) << "admitted after its end";
  admitted_ = true;
}

void RecordingSink::OnStatus(const RequestStatus& status) {
  absl::MutexLock lock(&mu_);
  EXPECT_FALSE(end_.has_value()) << "a status event after the end";
  EXPECT_TRUE(statuses_.empty() || statuses_.back() != status) << "told twice";
  statuses_.push_back(status);
}

void RecordingSink::OnDelta(TokenDelta delta) {
  absl::MutexLock lock(&mu_);
  Choice& choice = choices_[delta.choice];
  EXPECT_TRUE(admitted_) << "a delta before the admission";
  EXPECT_FALSE(end_.has_value() || choice.end.has_value()) << "a delta after the end";
  EXPECT_EQ(delta.first_index, resumed_ + choice.tokens.size())
      << "a gap or a repetition in the stream";
  choice.tokens.insert(choice.tokens.end(), delta.tokens.begin(), delta.tokens.end());
  choice.logprobs.insert(choice.logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
  choice.prompt_logprobs.insert(choice.prompt_logprobs.end(), delta.prompt_logprobs.begin(),
                                delta.prompt_logprobs.end());
  choice.text += delta.text;
  order_.push_back(delta.choice);
}

void RecordingSink::OnChoiceEnd(RequestEnd end) {
  absl::MutexLock lock(&mu_);
  EXPECT_TRUE(end.status.ok()) << "a choice that ends badly ends its request: " << end.status;
  EXPECT_FALSE(end_.has_value()) << "a choice ends after its request";
  EndChoice(end);
}

void RecordingSink::OnEnd(RequestEnd end) {
  absl::MutexLock lock(&mu_);
  EXPECT_FALSE(end_.has_value()) << "ended twice: " << end_->status << " and " << end.status;
  EXPECT_EQ(end.status.ok(), end.finish_reason.has_value());
  EXPECT_EQ(end.all.completion_tokens, resumed_ + Tokens());
  EXPECT_EQ(end.resumed_tokens, resumed_);
  if (end.status.ok()) {
    EndChoice(end);
  } else {
    EXPECT_EQ(end.completion_tokens, resumed_ + Tokens());
  }
  end_ = std::move(end);
}

void RecordingSink::EndChoice(const RequestEnd& end) {
  Choice& choice = choices_[end.choice];
  EXPECT_FALSE(choice.end.has_value()) << "choice " << end.choice << " ends twice";
  EXPECT_EQ(end.completion_tokens, resumed_ + choice.tokens.size());
  choice.text += end.tail_text;
  choice.end = end;
}

RequestEnd RecordingSink::AwaitEnd() const {
  absl::MutexLock lock(&mu_);
  auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return end_.has_value(); };
  AwaitOn(&mu_, absl::Condition(&ended), "the end of a request");
  return *end_;
}

void RecordingSink::AwaitTokens(size_t count) const {
  absl::MutexLock lock(&mu_);
  auto enough = [this, count]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return end_.has_value() || Tokens() >= count;
  };
  AwaitOn(&mu_, absl::Condition(&enough), absl::StrCat(count, " tokens of a request"));
}

bool RecordingSink::ended() const {
  absl::MutexLock lock(&mu_);
  return end_.has_value();
}

bool RecordingSink::admitted() const {
  absl::MutexLock lock(&mu_);
  return admitted_;
}

size_t RecordingSink::Tokens() const {
  size_t tokens = 0;
  for (const auto& [index, choice] : choices_) tokens += choice.tokens.size();
  return tokens;
}

RecordingSink::Choice RecordingSink::Of(uint32_t choice) const {
  absl::MutexLock lock(&mu_);
  const auto found = choices_.find(choice);
  return found == choices_.end() ? Choice() : found->second;
}

std::vector<int32_t> RecordingSink::tokens(uint32_t choice) const { return Of(choice).tokens; }

std::vector<TokenLogprobs> RecordingSink::logprobs(uint32_t choice) const {
  return Of(choice).logprobs;
}

std::vector<TokenLogprobs> RecordingSink::prompt_logprobs(uint32_t choice) const {
  return Of(choice).prompt_logprobs;
}

std::string RecordingSink::text(uint32_t choice) const { return Of(choice).text; }

std::optional<RequestEnd> RecordingSink::choice_end(uint32_t choice) const {
  return Of(choice).end;
}

std::vector<uint32_t> RecordingSink::order() const {
  absl::MutexLock lock(&mu_);
  return order_;
}

std::vector<RequestStatus> RecordingSink::statuses() const {
  absl::MutexLock lock(&mu_);
  return statuses_;
}

}  // namespace bitshard
