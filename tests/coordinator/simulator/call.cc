#include "tests/coordinator/simulator/call.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"

#include "coordinator/engine/sampling.h"
#include "tests/coordinator/simulator/short_status.h"

namespace bitshard::sim {
namespace {

template <typename T>
bool Begins(const std::vector<T>& whole, const std::vector<T>& part) {
  return part.size() <= whole.size() && std::equal(part.begin(), part.end(), whole.begin());
}

}  // namespace

Call::Call(GenerateRequest request, const Circumstances* circumstances, World* world)
    : request_(std::move(request)), circumstances_(circumstances), world_(world) {
  for (uint32_t choice = 0; choice < request_.choices; ++choice) {
    Answer& answer = answers_.emplace_back();
    answer.expected = ExpectedOf(request_, ChoiceSeed(request_.seed, choice));
    answer.tokens = request_.resumed;
  }
}

uint64_t Call::tokens() const {
  uint64_t tokens = 0;
  for (const Answer& answer : answers_) tokens += answer.tokens.size() - request_.resumed.size();
  return tokens;
}

Call::Answer* Call::At(uint32_t choice) {
  if (ended()) {
    Wrong("something comes after its end");
  } else if (choice >= answers_.size()) {
    Wrong("choice ", choice, " of ", answers_.size());
  } else if (answers_[choice].ended) {
    Wrong("something comes after the end of choice ", choice);
  } else {
    return &answers_[choice];
  }
  return nullptr;
}

void Call::OnAdmitted() {
  if (std::exchange(admitted_, true) || ended()) Wrong("admitted twice, or after its end");
}

void Call::OnStatus(const RequestStatus& status) {
  if (ended()) Wrong("a status after its end");
  if (!request_.status_events) Wrong("a status that nobody asked for");
  if (status.computed > status.total)
    Wrong("computed ", status.computed, " of ", status.total, " tokens");
}

void Call::OnDelta(TokenDelta delta) {
  Answer* const answer = At(delta.choice);
  if (answer == nullptr) return;
  if (!admitted_) Wrong("a delta before its admission");
  if (delta.first_index != answer->tokens.size())
    Wrong("choice ", delta.choice, " goes on with token ", delta.first_index, " after ",
          answer->tokens.size(), " tokens");
  absl::c_copy(delta.tokens, std::back_inserter(answer->tokens));
  for (const TokenLogprobs& logprob : delta.logprobs) answer->logprobs.push_back(logprob.chosen);
  for (const TokenLogprobs& score : delta.prompt_logprobs) answer->scores.push_back(score.chosen);
  answer->text += delta.text;
}

void Call::OnChoiceEnd(RequestEnd end) {
  Answer* const answer = At(end.choice);
  if (answer == nullptr) return;
  if (!end.status.ok()) Wrong("choice ", end.choice, " ends with ", Short(end.status));
  CheckComplete(end.choice, end);
}

void Call::OnEnd(RequestEnd end) {
  if (ended()) {
    Wrong("ends twice, now with ", Short(end.status));
    return;
  }
  world_->Note([&] {
    return absl::StrCat("request ", id_, " ends after ", tokens(), " tokens: ", Short(end.status));
  });
  cached_tokens_ = end.cached_tokens;
  if (end.status.ok()) {
    if (At(end.choice) == nullptr) return;
    CheckComplete(end.choice, end);
    for (uint32_t choice = 0; choice < answers_.size(); ++choice) {
      if (!answers_[choice].ended) Wrong("ends well, but choice ", choice, " has not ended");
    }
  } else {
    CheckBegun();
    CheckError(end.status);
  }
  code_ = end.status.code();
}

void Call::CheckComplete(uint32_t choice, const RequestEnd& end) {
  Answer& answer = answers_[choice];
  const Expected& expected = answer.expected;
  answer.text += end.tail_text;
  for (const TokenLogprobs& score : end.scores) answer.scores.push_back(score.chosen);
  answer.ended = true;
  CheckBegun();
  const std::string who = absl::StrCat("choice ", choice, ": ");
  if (expected.code != absl::StatusCode::kOk) {
    Wrong(who, "ends well, but should end ", absl::StatusCodeToString(expected.code), " after ",
          expected.tokens.size(), " tokens");
  } else if (answer.tokens.size() != expected.tokens.size() ||
             answer.scores.size() != (choice == 0 ? expected.scores.size() : 0)) {
    Wrong(who, answer.tokens.size(), " tokens and ", answer.scores.size(), " scores, expected ",
          expected.tokens.size(), " and ", expected.scores.size());
  } else if (end.embedding != expected.embedding) {
    Wrong(who, "the vector is not the one expected");
  } else if (end.finish_reason != expected.finish_reason ||
             end.matched_stop != expected.matched_stop ||
             end.matched_token != expected.matched_token) {
    Wrong(who, "ends for another reason than expected, matched stop \"", end.matched_stop,
          "\", expected \"", expected.matched_stop, "\"");
  } else if (!absl::EndsWith(expected.text, answer.text) ||
             (request_.resumed.empty() && answer.text != expected.text)) {
    Wrong(who, "the text is \"", answer.text, "\", expected \"", expected.text, "\"");
  }
}

void Call::CheckBegun() {
  for (size_t choice = 0; choice < answers_.size(); ++choice) {
    const Answer& answer = answers_[choice];
    const Expected& expected = answer.expected;
    const std::string who = absl::StrCat("choice ", choice, ": ");
    if (!Begins(expected.tokens, answer.tokens)) {
      Wrong(who, "the tokens are ", absl::StrJoin(answer.tokens, " "), ", expected ",
            absl::StrJoin(expected.tokens, " "));
    } else if (!Begins(expected.scores, answer.scores)) {
      Wrong(who, "the scores are ", absl::StrJoin(answer.scores, " "), ", expected ",
            absl::StrJoin(expected.scores, " "));
    } else if (request_.logprobs &&
               (answer.logprobs.size() + request_.resumed.size() != answer.tokens.size() ||
                !std::equal(answer.logprobs.begin(), answer.logprobs.end(),
                            expected.logprobs.begin() +
                                static_cast<std::ptrdiff_t>(request_.resumed.size())))) {
      Wrong(who, "the log-probabilities are not those of the tokens");
    } else if (request_.resumed.empty() && !absl::StartsWith(expected.text, answer.text)) {
      Wrong(who, "the text begins \"", answer.text, "\", expected \"", expected.text, "\"");
    }
  }
}

void Call::CheckError(const absl::Status& status) {
  bool allowed = false;
  switch (status.code()) {
    case absl::StatusCode::kCancelled:
      allowed = cancelled_;
      break;
    case absl::StatusCode::kDeadlineExceeded:
      // A cancel just before the deadline is the caller's clock (engine/deadline.h).
      allowed = request_.deadline <=
                world_->events.time() + (cancelled_ ? absl::Milliseconds(5) : absl::ZeroDuration());
      break;
    case absl::StatusCode::kUnavailable:
      allowed = circumstances_->draining || circumstances_->lost_ends ||
                circumstances_->too_large(request_.prompt_tokens.size() +
                                          std::max(1u, request_.max_tokens));
      break;
    case absl::StatusCode::kInternal: {
      // One of the choices has come to logits that are not finite, or to where no token may be.
      bad_block_victim_ = absl::c_none_of(answers_, [](const Answer& answer) {
        return answer.expected.code == absl::StatusCode::kInternal &&
               answer.tokens.size() == answer.expected.tokens.size();
      });
      allowed = true;  // the simulation counts the victims
      break;
    }
    default:
      break;
  }
  if (!allowed) Wrong("has no reason to end with ", Short(status));
}

}  // namespace bitshard::sim
