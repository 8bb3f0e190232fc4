// Several choices of one request: each is what a request of its own with that choice's seed gives,
// the prompt is computed once, and the request ends once.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "coordinator/engine/error_reason.h"
#include "coordinator/engine/sampling.h"
#include "proto/status_details.h"
#include "tests/coordinator/engine/core_harness.h"
#include "tests/support/words_grammar.h"

namespace bitshard {
namespace {

constexpr uint32_t kBlock = 16;
const std::string kPrompt = "a prompt of 40 letters: two and a half b";  // blocks

// Few letters, so that stop strings match, and an end token now and then.
uint32_t NextToken(absl::Span<const uint32_t> history, const internal::SamplingParams& sampling) {
  static const FakeWorker::NextToken hashed = FakeWorker::HashedNextToken(1u << 16);
  const uint32_t hash = hashed(history, sampling);
  return hash % 24 == 0 ? static_cast<uint32_t>(kByteTokenizerEos) : 'a' + hash / 24 % 4;
}

struct Conditions {
  std::string name = {};
  bool prefix_cache = true;
  uint32_t depth = 2, chunk = 0, blocks = 256, slots = 16;
  bool lose = false;
};

std::unique_ptr<CoreHarness> Harness(const Conditions& given) {
  Engine::Options options;
  options.prefix_cache = given.prefix_cache;
  options.async_depth = given.depth;
  options.prefill_chunk = given.chunk;
  options.fail_on_group_loss = false;
  FakeExecutor::Options executor;
  executor.group.cache_blocks = given.blocks;
  executor.group.block_tokens = kBlock;
  executor.group.max_slots = given.slots;
  executor.worker.vocab_size = kByteTokenizerVocab;
  executor.worker.next_token = NextToken;
  auto harness = std::make_unique<CoreHarness>(options, executor);
  harness->MakeReady();
  return harness;
}

GenerateRequest Several(uint32_t choices, uint32_t max_tokens, uint64_t seed = 7) {
  GenerateRequest request = Request(kPrompt, max_tokens);
  request.choices = choices;
  request.seed = seed;
  return request;
}

struct Answer {
  std::vector<int32_t> tokens;
  std::string text, matched_stop;
  std::optional<FinishReason> reason;
  std::optional<int32_t> matched_token;
  friend bool operator==(const Answer&, const Answer&) = default;
};

std::vector<Answer> Answers(const RecordingSink& sink, uint32_t choices) {
  std::vector<Answer> answers;
  for (uint32_t i = 0; i < choices; ++i) {
    const std::optional<RequestEnd> end = sink.choice_end(i);
    EXPECT_TRUE(end.has_value()) << "choice " << i << " did not end";
    if (!end.has_value()) continue;
    answers.push_back({.tokens = sink.tokens(i),
                       .text = sink.text(i),
                       .matched_stop = end->matched_stop,
                       .reason = end->finish_reason,
                       .matched_token = end->matched_token});
  }
  return answers;
}

// What each choice is as a request of its own.
std::vector<Answer> Alone(const GenerateRequest& request) {
  const auto harness = Harness({});
  std::vector<Answer> answers;
  for (uint32_t i = 0; i < request.choices; ++i) {
    GenerateRequest one = request;
    one.choices = 1;
    one.seed = ChoiceSeed(request.seed, i);
    const auto sink = harness->Send(one);
    harness->StepUntilIdle();
    answers.push_back(Answers(*sink, 1).at(0));
  }
  return answers;
}

TEST(Choices, EachIsARequestOfItsOwnWithItsSeed) {
  EXPECT_EQ(ChoiceSeed(7, 0), 7u) << "the first has the request's";
  const std::vector<Conditions> all_given = {
      {.name = "plain"},
      {.name = "without prefix cache", .prefix_cache = false},
      {.name = "one plan out", .depth = 1},
      {.name = "in chunks", .chunk = 5},
      {.name = "preempted", .blocks = 7},
      {.name = "preempted without prefix cache", .prefix_cache = false, .blocks = 7},
      {.name = "two slots", .slots = 2},
      {.name = "group lost", .lose = true},
      {.name = "group lost without prefix cache", .prefix_cache = false, .lose = true}};
  std::map<bool, uint64_t> preempted;  // by prefix_cache
  for (const uint64_t seed : {7u, 8u, 9u, 10u, 11u}) {
    GenerateRequest request = Several(5, 60, seed);
    request.ignore_eos = false;
    request.stop = {"abca", "ddd"};
    const std::vector<Answer> alone = Alone(request);
    EXPECT_NE(alone[0].tokens, alone[1].tokens);
    for (const Conditions& given : all_given) {
      SCOPED_TRACE(absl::StrCat(given.name, ", seed ", seed));
      const auto harness = Harness(given);
      GenerateRequest other = Several(1, 30, seed + 100);
      const auto sink = harness->Send(request);
      const auto beside = harness->Send(other);
      for (int i = 0; given.lose && i < 6; ++i) {
        harness->Step();
        if (i % 3 != 2) continue;
        harness->executor().LoseGroup(absl::UnavailableError("lost"));
        harness->MakeReady();
      }
      harness->StepUntilIdle();
      ASSERT_TRUE(sink->AwaitEnd().status.ok()) << sink->AwaitEnd().status;
      EXPECT_EQ(Answers(*sink, 5), alone);
      EXPECT_EQ(harness->Stats().blocks_used, 0u);
      if (given.blocks == 7) preempted[given.prefix_cache] += harness->metrics().preempted;
    }
  }
  EXPECT_GT(preempted[true], 2u) << "the pool was meant to be too small";
  EXPECT_GT(preempted[false], 2u) << "the pool was meant to be too small";
}

TEST(Choices, ThePromptIsComputedOnce) {
  constexpr uint64_t kChoices = 8, kOutputs = 10;
  ASSERT_EQ(kPrompt.size(), 40u);
  const uint64_t decoded = kChoices * (kOutputs - 1);
  for (const bool prefix_cache : {true, false}) {
    const auto harness = Harness({.prefix_cache = prefix_cache});
    const auto sink = harness->Send(Several(kChoices, kOutputs));
    harness->StepUntilIdle();
    const RequestEnd end = sink->AwaitEnd();
    ASSERT_TRUE(end.status.ok()) << end.status;
    // The others compute what does not fill a block.
    const uint64_t further = prefix_cache ? 40 % kBlock : 40;
    EXPECT_EQ(harness->executor().computed_tokens(), 40 + (kChoices - 1) * further + decoded);
    EXPECT_EQ(end.cached_tokens, 0u) << "it had not been there before";
    EXPECT_EQ(end.prompt_tokens, 40u);
    EXPECT_EQ(end.all.completion_tokens, kChoices * kOutputs);
  }
}

TEST(Choices, TheFirstOneHasThePromptsScores) {
  const auto harness = Harness({});
  GenerateRequest request = Several(4, 6);
  request.score_from = 0;
  request.top_logprobs = 2;
  const auto sink = harness->Send(request);
  harness->StepUntilIdle();
  ASSERT_TRUE(sink->AwaitEnd().status.ok());
  EXPECT_EQ(sink->order().front(), 0u) << "so that they come with the first piece of all";
  EXPECT_EQ(sink->prompt_logprobs(0).size(), kPrompt.size() - 1);
  for (uint32_t i = 1; i < 4; ++i) EXPECT_TRUE(sink->prompt_logprobs(i).empty()) << i;
  request.score_from.reset();
  const std::vector<Answer> alone = Alone(request);
  EXPECT_EQ(Answers(*sink, 4), alone);
}

TEST(Choices, TheRequestIsCountedOnceAndEndsWithTheLast) {
  const auto harness = Harness({});
  GenerateRequest request = Several(4, 50);
  request.ignore_eos = false;
  const auto sink = harness->Send(request);
  while (harness->core().live() > 0) {
    harness->Wait(absl::Milliseconds(10));
    ASSERT_TRUE(harness->Step());
    const EngineStats stats = harness->Stats();
    EXPECT_EQ(stats.running + stats.waiting, stats.finished == 0 ? 1u : 0u);
    if (stats.finished == 0) {
      EXPECT_LE(stats.running_choices + stats.waiting_choices + stats.ended_choices, 4u);
    }
  }
  const RequestEnd end = sink->AwaitEnd();
  ASSERT_EQ(harness->metrics().ended.size(), 1u);
  const RequestSummary& summary = harness->metrics().ended[0];
  uint32_t tokens = 0, longest = 0;
  bool cut_off = false;
  for (uint32_t i = 0; i < 4; ++i) {
    const RequestEnd of_choice = *sink->choice_end(i);
    tokens += of_choice.completion_tokens;
    longest = std::max(longest, of_choice.completion_tokens);
    cut_off = cut_off || of_choice.finish_reason == FinishReason::kLength;
    EXPECT_EQ(of_choice.prompt_tokens, 40u);
    EXPECT_LE(of_choice.timings.decode, end.all.timings.decode);
  }
  EXPECT_EQ(summary.choices, 4u);
  EXPECT_EQ(summary.completion_tokens, tokens);
  EXPECT_EQ(summary.longest_choice, longest);
  EXPECT_EQ(summary.prompt_tokens, 40u);
  EXPECT_EQ(summary.reason, cut_off ? EndReason::kLength : EndReason::kStop);
  EXPECT_EQ(end.all.completion_tokens, tokens);
  EXPECT_EQ(end.completion_tokens, sink->tokens(end.choice).size()) << "its own choice's";
  EXPECT_EQ(harness->metrics().gaps, tokens - 4) << "a gap for each token but a choice's first";
  EXPECT_EQ(end.all.timings.queue + end.all.timings.prefill + end.all.timings.decode, summary.e2e);
}

TEST(Choices, ACancelOrADeadlineEndsAllAndFreesTheirBlocks) {
  for (const bool by_deadline : {false, true}) {
    for (const int steps : {0, 1, 2, 6}) {
      SCOPED_TRACE(absl::StrCat(by_deadline ? "deadline" : "cancel", " after ", steps, " steps"));
      const auto harness = Harness({});
      GenerateRequest request = Several(6, 200);
      request.request_id = "many";
      if (by_deadline) request.deadline = harness->now() + absl::Seconds(1);
      const auto sink = harness->Send(request);
      for (int i = 0; i < steps; ++i) harness->Step();
      by_deadline ? harness->Wait(absl::Seconds(2)) : harness->Cancel("many");
      ASSERT_TRUE(sink->ended());
      EXPECT_EQ(sink->AwaitEnd().status.code(),
                by_deadline ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kCancelled);
      const EngineStats stats = harness->Stats();
      EXPECT_EQ(stats.blocks_used, 0u);
      EXPECT_EQ(stats.running_choices + stats.waiting_choices, 0u);
      EXPECT_EQ(stats.waiting_tokens, 0u);
      EXPECT_EQ(stats.finished, 1u);
      while (harness->Step()) {
      }
      EXPECT_EQ(harness->Stats().blocks_used, 0u);
    }
  }
}

TEST(Choices, AnErrorOfOneEndsAllAndPoisonsNothing) {
  for (const bool in_all : {false, true}) {
    SCOPED_TRACE(in_all ? "all at once" : "one");
    const auto harness = Harness({});
    int step = 0;
    harness->executor().set_tamper([&](internal::StepResult* result) {
      if (++step != 6) return;
      ASSERT_EQ(result->outputs_size(), 4);
      for (int i = in_all ? 0 : 2; i < (in_all ? 4 : 3); ++i)
        result->mutable_outputs(i)->set_flags(internal::OUTPUT_NON_FINITE);
    });
    const auto sink = harness->Send(Several(4, 100));
    harness->StepUntilIdle();
    const RequestEnd end = sink->AwaitEnd();
    EXPECT_EQ(end.status.code(), absl::StatusCode::kInternal);
    EXPECT_EQ(ErrorReason(end.status), std::string(kReasonNonFinite));
    EXPECT_EQ(harness->metrics().ended.size(), 1u);
    EngineStats stats = harness->Stats();
    EXPECT_EQ(stats.blocks_used, 0u);
    EXPECT_GT(stats.blocks_quarantined, 0u);
    // The prompt's blocks were among those: it is computed anew.
    const auto again = harness->Send(Several(4, 10));
    harness->StepUntilIdle();
    ASSERT_TRUE(again->AwaitEnd().status.ok());
    EXPECT_EQ(again->AwaitEnd().cached_tokens, 0u);
    EXPECT_EQ(Answers(*again, 4), Alone(Several(4, 10)));
  }
}

TEST(Choices, EachFollowsTheConstraintByItself) {
  GenerateRequest request = Several(6, 40);
  request.ignore_eos = false;
  request.grammar = std::make_shared<const WordsGrammar>(
      std::vector<std::string>{"alpha", "alphabet", "!mark", "Upper case"});
  const std::vector<Answer> alone = Alone(request);
  for (const bool prefix_cache : {true, false}) {
    const auto harness = Harness({.prefix_cache = prefix_cache});
    const auto sink = harness->Send(request);
    harness->StepUntilIdle();
    ASSERT_TRUE(sink->AwaitEnd().status.ok()) << sink->AwaitEnd().status;
    EXPECT_EQ(Answers(*sink, 6), alone);
  }
  std::vector<std::string> texts;
  for (const Answer& answer : alone) texts.push_back(answer.text);
  std::sort(texts.begin(), texts.end());
  EXPECT_GT(std::unique(texts.begin(), texts.end()) - texts.begin(), 1) << "all drew the same";
}

TEST(Choices, MoreThanRunAtOnceAreRefused) {
  Engine::Options options;
  options.max_running = 3;
  CoreHarness harness(options);
  harness.MakeReady();
  const auto refusal = [&](GenerateRequest request) {
    request.request_id = "x";
    return harness.Submit(std::move(request), std::make_shared<RecordingSink>());
  };
  for (const uint32_t choices : {0u, 4u, kMaxChoices + 1, 0xFFFFFFFFu}) {
    const absl::Status status = refusal(Several(choices, 5));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << choices;
    EXPECT_NE(status.message().find("choices"), absl::string_view::npos) << status;
  }
  EXPECT_NE(refusal(Several(4, 5)).message().find("--max-running"), absl::string_view::npos);
  GenerateRequest scores = Several(2, 0);
  scores.score_from = 0;
  EXPECT_EQ(refusal(scores).code(), absl::StatusCode::kInvalidArgument);
  const auto sink = harness.Send(Several(3, 5));
  harness.StepUntilIdle();
  EXPECT_TRUE(sink->AwaitEnd().status.ok());
  Engine::Options wide;
  wide.max_running = 1000;
  CoreHarness many(wide);
  many.MakeReady();
  EXPECT_EQ(many.Submit(Several(kMaxChoices + 1, 5), std::make_shared<RecordingSink>()).code(),
            absl::StatusCode::kInvalidArgument);
  const auto most = many.Send(Several(kMaxChoices, 3));
  many.StepUntilIdle();
  EXPECT_EQ(most->AwaitEnd().all.completion_tokens, 3 * kMaxChoices);
}

}  // namespace
}  // namespace bitshard
