// Resumed requests in the engine: an answer goes on after any of its tokens as if it had never been
// broken off.
#include "coordinator/engine/resume.h"

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/status_details.h"
#include "proto/token_mask.h"
#include "tests/coordinator/engine/core_harness.h"
#include "tests/support/piece_sink.h"
#include "tests/support/words_grammar.h"

namespace bitshard {
namespace {

using ::testing::HasSubstr;

constexpr char kText[] = "a caf\xC3\xA9 for 5 \xE2\x82\xAC, na\xC3\xAFve stop words";

FakeExecutor::Options Group(FakeWorker::NextToken next_token, uint32_t blocks = 256) {
  FakeExecutor::Options group;
  group.group.cache_blocks = blocks;
  group.group.block_tokens = 4;
  group.worker.vocab_size = kByteTokenizerVocab;
  group.worker.next_token = std::move(next_token);
  return group;
}

struct Answer {
  std::shared_ptr<PieceSink> sink;
  RequestEnd end;
};

Answer AnswerOf(CoreHarness& engine, const GenerateRequest& request) {
  Answer answer{std::make_shared<PieceSink>(request.resumed.size()), {}};
  const absl::Status status = engine.Submit(request, answer.sink);
  EXPECT_TRUE(status.ok()) << status;
  if (!status.ok()) return answer;
  engine.StepUntilIdle();
  answer.end = answer.sink->AwaitEnd();
  return answer;
}

// Breaks the answer after each of its tokens; returns it whole.
Answer ExpectGoesOnAnywhere(CoreHarness& engine, const GenerateRequest& request) {
  const Answer whole = AnswerOf(engine, request);
  EXPECT_TRUE(whole.end.status.ok()) << whole.end.status;
  const std::vector<int32_t> tokens = whole.sink->tokens();
  const std::vector<std::string>& pieces = whole.sink->pieces();
  for (size_t k = 0; k <= tokens.size(); ++k) {
    SCOPED_TRACE(absl::StrCat("after ", k, " of ", tokens.size(), " tokens"));
    const auto at = static_cast<std::ptrdiff_t>(k);
    GenerateRequest rest = request;
    rest.resumed.assign(tokens.begin(), tokens.begin() + at);
    const Answer got = AnswerOf(engine, rest);
    EXPECT_TRUE(got.end.status.ok()) << got.end.status;
    EXPECT_EQ(got.sink->tokens(), std::vector<int32_t>(tokens.begin() + at, tokens.end()));
    EXPECT_EQ(got.sink->pieces(), std::vector<std::string>(pieces.begin() + at, pieces.end()));
    EXPECT_EQ(got.end.tail_text, whole.end.tail_text);
    EXPECT_EQ(got.end.finish_reason, whole.end.finish_reason);
    EXPECT_EQ(got.end.matched_stop, whole.end.matched_stop);
    EXPECT_EQ(got.end.matched_token, whole.end.matched_token);
    EXPECT_EQ(got.end.prompt_tokens, whole.end.prompt_tokens);
    EXPECT_EQ(got.end.completion_tokens, tokens.size());
    EXPECT_EQ(got.end.resumed_tokens, k);
    EXPECT_EQ(got.sink->logprobs().size(), request.logprobs ? tokens.size() - k : 0);
    EXPECT_TRUE(got.sink->admitted());
    if (testing::Test::HasFailure()) break;
  }
  return whole;
}

TEST(Resume, GoesOnInTheMiddleOfCharactersAndStopStrings) {
  GenerateRequest request = Request("prompt", 60);
  CoreHarness engine({}, Group(Reciting(kText, 6)));
  engine.MakeReady();
  ExpectGoesOnAnywhere(engine, request);

  request.stop = {"na\xC3\xAFve stop w", "caf\xC3\xA9!"};
  for (const bool include : {false, true}) {
    request.include_stop = include;
    const Answer stopped = ExpectGoesOnAnywhere(engine, request);
    EXPECT_EQ(stopped.end.matched_stop, request.stop[0]);
    EXPECT_EQ(stopped.sink->text(),
              std::string("a caf\xC3\xA9 for 5 \xE2\x82\xAC, ") + (include ? request.stop[0] : ""));
  }
  // The first tokens are not searched; a stop string that begins among them does not count.
  request.min_tokens = 30;
  request.max_tokens = 80;
  const Answer later = ExpectGoesOnAnywhere(engine, request);
  EXPECT_GT(later.sink->tokens().size(), sizeof(kText));
  // An answer that is cut off in the middle of a character.
  request = Request("prompt", 6);
  EXPECT_EQ(ExpectGoesOnAnywhere(engine, request).end.tail_text, "\xEF\xBF\xBD");
}

TEST(Resume, EndTokensAndStopTokensEndItWhereTheyWould) {
  const std::string text = "one two";
  CoreHarness engine({}, Group([&](absl::Span<const uint32_t> history, const auto&) -> uint32_t {
                       const size_t i = history.size() - 3;
                       return i < text.size() ? static_cast<unsigned char>(text[i])
                                              : uint32_t{kByteTokenizerEos};
                     }));
  engine.MakeReady();
  GenerateRequest request = Request("abc", 20);
  request.ignore_eos = false;
  request.logprobs = true;
  request.top_logprobs = 2;
  EXPECT_EQ(ExpectGoesOnAnywhere(engine, request).end.matched_token, kByteTokenizerEos);
  request.stop_token_ids = {'w'};
  EXPECT_EQ(ExpectGoesOnAnywhere(engine, request).end.matched_token, 'w');
  request.min_tokens = 7;
  EXPECT_EQ(ExpectGoesOnAnywhere(engine, request).end.matched_token, kByteTokenizerEos);
  request.ignore_eos = true;
  EXPECT_EQ(ExpectGoesOnAnywhere(engine, request).end.finish_reason, FinishReason::kLength);
}

TEST(Resume, DrawnTokensAreThoseOfTheSameSeed) {
  CoreHarness engine({}, Group(FakeWorker::HashedNextToken(256)));
  engine.MakeReady();
  for (uint64_t seed : {1u, 2u, 3u}) {
    GenerateRequest request = Request("a longer prompt that fills blocks", 40);
    request.temperature = 1;
    request.seed = seed;
    request.logprobs = true;
    const Answer first = ExpectGoesOnAnywhere(engine, request);
    // Another choice of the same request.
    request.first_choice = 3;
    const std::vector<int32_t> tokens = AnswerOf(engine, request).sink->tokens(3);
    EXPECT_NE(tokens, first.sink->tokens());
    request.resumed.assign(tokens.begin(), tokens.begin() + 15);
    EXPECT_EQ(AnswerOf(engine, request).sink->tokens(3),
              std::vector<int32_t>(tokens.begin() + 15, tokens.end()));
  }
}

TEST(Resume, TheGrammarIsWhereItWas) {
  CoreHarness engine({}, Group(FakeWorker::HashedNextToken(256)));
  engine.MakeReady();
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    GenerateRequest request = Request("x", 40);
    request.seed = seed;
    request.ignore_eos = seed % 2 == 0;  // then only what may follow ends it
    request.grammar = std::make_shared<const WordsGrammar>(
        std::vector<std::string>{"alpha", "alphabet", "!mark", "\xC3\xA9t\xC3\xA9"});
    const Answer whole = ExpectGoesOnAnywhere(engine, request);
    EXPECT_EQ(whole.end.finish_reason, FinishReason::kStop);
  }
}

TEST(Resume, WhatIsComputedAgainIsInThePrefixCache) {
  CoreHarness engine({}, Group(FakeWorker::HashedNextToken(256)));
  engine.MakeReady();
  GenerateRequest request = Request("a prompt of some twenty tokens", 40);
  const Answer whole = AnswerOf(engine, request);
  const uint64_t computed = engine.executor().computed_tokens();
  const std::vector<int32_t> tokens = whole.sink->tokens();
  request.resumed.assign(tokens.begin(), tokens.begin() + 30);
  const Answer rest = AnswerOf(engine, request);
  EXPECT_EQ(rest.sink->tokens().size(), 10u);
  // Nine that were drawn, and at most a block that was not full before it.
  EXPECT_LE(engine.executor().computed_tokens() - computed, 9u + 4u);
  EXPECT_EQ(rest.end.cached_tokens, 30u) << "of the prompt alone";
  EXPECT_EQ(rest.end.prompt_tokens, 30u);
}

TEST(Resume, CountsWhatItGeneratesAndComputesTheRestAsAPrompt) {
  CoreHarness engine({}, Group(FakeWorker::HashedNextToken(256)));
  engine.MakeReady();
  GenerateRequest request = Request("abcde", 10);
  const std::vector<int32_t> tokens = AnswerOf(engine, request).sink->tokens();
  request.resumed.assign(tokens.begin(), tokens.begin() + 7);
  AnswerOf(engine, request);
  request.resumed = tokens;
  const Answer nothing_left = AnswerOf(engine, request);
  EXPECT_EQ(nothing_left.end.finish_reason, FinishReason::kLength);
  const std::vector<RequestSummary>& ended = engine.metrics().ended;
  ASSERT_EQ(ended.size(), 3u);
  EXPECT_EQ(ended[1].prompt_tokens, 12u);
  EXPECT_EQ(ended[1].completion_tokens, 3u);
  EXPECT_EQ(ended[2].completion_tokens, 0u);
  EXPECT_EQ(engine.metrics().generated_tokens, 13u);
  EXPECT_EQ(engine.metrics().gaps, 9u + 2u);
  EXPECT_EQ(engine.Stats().finished, 3u);
}

TEST(Resume, WaitsAsLongAsAllOfItTakesToCompute) {
  Engine::Options options;
  options.max_waiting_tokens = 100;
  CoreHarness engine(options, Group(FakeWorker::HashedNextToken(256)));
  engine.MakeReady();
  std::vector<std::shared_ptr<RecordingSink>> running;
  for (int i = 0; i < 16; ++i) running.push_back(engine.Send(Request("p", 50)));
  for (int i = 0; i < 20; ++i) engine.Step();
  ASSERT_EQ(engine.Stats().running, 16u);
  GenerateRequest request = Request(std::string(10, 'p'), 100);
  request.request_id = "first";
  request.resumed.assign(60, 'x');
  const auto waits = engine.Send(request);
  EXPECT_EQ(engine.Stats().waiting_tokens, 70u);
  request.request_id = "second";
  const absl::Status full = engine.Submit(request, std::make_shared<RecordingSink>(60));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  engine.StepUntilIdle();
  EXPECT_EQ(engine.Stats().waiting_tokens, 0u);
}

TEST(Resume, WhatCannotBeIsRefused) {
  Engine::Options options;
  options.vocab_size = kByteTokenizerVocab;
  CoreHarness engine(options, Group(FakeWorker::HashedNextToken(256)));
  engine.MakeReady();
  const auto refused = [&](const GenerateRequest& request) {
    return engine.Submit(request, std::make_shared<RecordingSink>(request.resumed.size()));
  };
  GenerateRequest request = Request("abc", 3);
  request.resumed = {1, 2, 3, 4};
  EXPECT_EQ(refused(request).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused(request).message()), HasSubstr("resume.output_ids[3]"));
  request.resumed = {1, 300};
  EXPECT_THAT(std::string(refused(request).message()), HasSubstr("resume.output_ids[1]"));
  request.resumed = {1, -1};
  EXPECT_EQ(refused(request).code(), absl::StatusCode::kInvalidArgument);
  request.resumed = {1};
  request.choices = 2;
  EXPECT_THAT(std::string(refused(request).message()), HasSubstr("choices"));

  // What takes a look at the text ends it.
  request = Request("abc", 10);
  request.stop = {"st"};
  request.resumed = {'x', 's', 't', 'y'};
  Answer ended = AnswerOf(engine, request);
  EXPECT_EQ(ended.end.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ended.end.status.message()), HasSubstr("resume.output_ids[3]"));
  EXPECT_THAT(std::string(ended.end.status.message()), HasSubstr("stop string"));
  request.grammar = std::make_shared<const WordsGrammar>(std::vector<std::string>{"xyz"});
  request.resumed = {'x', 'y', 'y'};
  ended = AnswerOf(engine, request);
  EXPECT_EQ(ended.end.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ended.end.status.message()), HasSubstr("resume.output_ids[2]"));
  EXPECT_EQ(engine.Stats().blocks_used, 0u);
}

TEST(Resume, WhatWasReplayedBeforeIsNotReplayedAgain) {
  CoreHarness engine({}, Group([](const auto&, const auto&) { return uint32_t{'z'}; }));
  engine.MakeReady();
  GenerateRequest request = Request("abc", 10);
  request.stop = {"xyz"};
  // Not what the tokens below would bring about: the engine does not look at them.
  request.resumed = {'x', 'y'};
  std::string text;
  absl::StatusOr<ResumedAnswer> answer = ReplayResumed(request, &engine.tokenizer(), &text);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(text, "") << "it may become the stop string";
  EXPECT_FALSE(answer->end.has_value());
  request.resumed = {'a', 'b'};
  request.replayed = std::make_shared<const ResumedAnswer>(*std::move(answer));
  Answer rest = AnswerOf(engine, request);
  EXPECT_EQ(rest.end.matched_stop, "xyz");
  EXPECT_EQ(rest.end.completion_tokens, 3u);
  // Once more: what is shared is not changed by who goes on from it.
  rest = AnswerOf(engine, request);
  EXPECT_EQ(rest.end.matched_stop, "xyz");

  request.resumed = {'x', 'y', 'z'};
  const absl::StatusOr<ResumedAnswer> ended =
      ReplayResumed(request, &engine.tokenizer(), /*text=*/nullptr);
  ASSERT_TRUE(ended.ok() && ended->end.has_value());
  request.resumed = {'a', 'b', 'c'};
  request.replayed = std::make_shared<const ResumedAnswer>(*ended);
  rest = AnswerOf(engine, request);
  EXPECT_EQ(rest.end.matched_stop, "xyz") << "it had ended";
  EXPECT_EQ(rest.end.completion_tokens, 3u);
}

TEST(Resume, CheckResumedAllowedNamesTheFirstTokenThatIsRefused) {
  const auto tokenizer = MakeByteTokenizer();
  GenerateRequest request = Request("abc", 10);
  request.resumed = {'a', 'b', 'c'};
  EXPECT_TRUE(CheckResumedAllowed(request, *tokenizer).ok());
  request.allowed_tokens = MakeTokenMask(kByteTokenizerVocab, /*allowed=*/true);
  ForbidToken('b', &request.allowed_tokens);
  const auto message = [&] {
    return std::string(CheckResumedAllowed(request, *tokenizer).message());
  };
  EXPECT_THAT(message(), HasSubstr("resume.output_ids[1]"));
  request.allowed_tokens.clear();
  request.ignore_eos = false;
  request.min_tokens = 3;
  request.resumed = {'a', 'b', kByteTokenizerEos};
  EXPECT_THAT(message(), HasSubstr("stop.min_tokens"));
  request.min_tokens = 2;
  EXPECT_EQ(message(), "");
}

TEST(Resume, OneThatSupersedesEndsTheOtherOnceItIsAccepted) {
  Engine::Options options;
  options.vocab_size = kByteTokenizerVocab;
  CoreHarness engine(options, Group(FakeWorker::HashedNextToken(256)));
  engine.MakeReady();
  GenerateRequest request = Request("abc", 20);
  request.request_id = "same";
  const auto whole = engine.Send(request);
  engine.StepUntilIdle();
  const auto half_open = engine.Send(request);
  for (int i = 0; i < 5; ++i) engine.Step();
  GenerateRequest again = request;
  again.resumed = half_open->tokens();
  ASSERT_GT(again.resumed.size(), 2u);
  EXPECT_EQ(engine.Submit(again, std::make_shared<RecordingSink>()).code(),
            absl::StatusCode::kAlreadyExists);
  again.supersede = true;
  again.resumed.back() = 300;
  EXPECT_EQ(engine.Submit(again, std::make_shared<RecordingSink>()).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(half_open->ended()) << "what is refused ends nothing";
  again.resumed = half_open->tokens();
  const auto resumed = engine.Send(again);
  ASSERT_TRUE(half_open->ended());
  EXPECT_EQ(half_open->AwaitEnd().status.code(), absl::StatusCode::kCancelled);
  // The name is the new one's: the old one's end has not freed it.
  EXPECT_EQ(engine.Submit(request, std::make_shared<RecordingSink>()).code(),
            absl::StatusCode::kAlreadyExists);
  engine.StepUntilIdle();
  std::vector<int32_t> tokens = again.resumed;
  for (const int32_t token : resumed->tokens()) tokens.push_back(token);
  EXPECT_EQ(tokens, whole->tokens());
  again.resumed.clear();
  const auto anew = engine.Send(again);  // nothing is there to be superseded
  engine.StepUntilIdle();
  EXPECT_EQ(anew->tokens(), whole->tokens());
}

}  // namespace
}  // namespace bitshard
