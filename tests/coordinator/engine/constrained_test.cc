// Constrained requests in the engine: masks, their ends, and what goes on while a mask is awaited.
#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "coordinator/engine/mask_job.h"
#include "proto/status_details.h"
#include "proto/token_mask.h"
#include "tests/coordinator/engine/core_harness.h"
#include "tests/support/words_grammar.h"

namespace bitshard {
namespace {

const std::vector<std::string> kWords = {"alpha", "alphabet", "!mark", "Upper case",
                                         "\xc3\xa9t\xc3\xa9"};

std::shared_ptr<const CompiledGrammar> Words(std::vector<std::string> words = kWords) {
  return std::make_shared<const WordsGrammar>(std::move(words));
}

GenerateRequest Constrained(const std::string& prompt, uint64_t seed, uint32_t max_tokens = 40) {
  GenerateRequest request = Request(prompt, max_tokens);
  request.ignore_eos = false;
  request.seed = seed;
  request.grammar = Words();
  return request;
}

bool IsWord(const std::string& text) {
  return std::find(kWords.begin(), kWords.end(), text) != kWords.end();
}

// Keeps jobs until the test lets them go.
class HeldMasks : public MaskRunner {
 public:
  void Run(MaskJob job) override { jobs_.push_back(std::move(job)); }
  size_t waiting() const { return jobs_.size(); }
  MaskResult Next() {
    MaskResult result = RunMaskJob(jobs_.front());
    jobs_.pop_front();
    return result;
  }

 private:
  std::deque<MaskJob> jobs_;
};

// The answers of 24 constrained requests among 8 free ones.
std::vector<std::string> Answers(uint32_t depth, uint32_t blocks, uint32_t* preemptions = nullptr,
                                 bool lose = false) {
  Engine::Options options;
  options.async_depth = depth;
  options.fail_on_group_loss = false;
  FakeExecutor::Options executor;
  executor.group.cache_blocks = blocks;
  executor.group.block_tokens = 4;
  executor.group.max_slots = 12;
  CoreHarness harness(options, executor);
  harness.MakeReady();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (uint64_t i = 0; i < 32; ++i) {
    GenerateRequest request = Constrained(absl::StrCat("prompt ", i), i);
    if (i % 4 == 3) {
      request = Request(absl::StrCat("free ", i), 12);
      request.seed = i;
    }
    sinks.push_back(harness.Send(request));
  }
  for (int i = 0; lose && i < 9; ++i) {
    harness.Step();
    if (i % 3 != 2) continue;
    harness.executor().LoseGroup(absl::UnavailableError("lost"));
    harness.MakeReady();
  }
  harness.StepUntilIdle();
  if (preemptions != nullptr)
    *preemptions = static_cast<uint32_t>(harness.core().scheduler().preemptions());
  std::vector<std::string> answers;
  for (size_t i = 0; i < sinks.size(); ++i) {
    const RequestEnd end = sinks[i]->AwaitEnd();
    EXPECT_TRUE(end.status.ok()) << end.status;
    if (i % 4 != 3) {
      EXPECT_TRUE(IsWord(sinks[i]->text())) << sinks[i]->text();
      EXPECT_EQ(end.finish_reason, FinishReason::kStop);
    }
    answers.push_back(sinks[i]->text());
  }
  return answers;
}

TEST(Constrained, AnswersAreWordsAtAnyDepthWithPreemptionAndLoss) {
  const std::vector<std::string> alone = Answers(/*depth=*/1, /*blocks=*/256);
  EXPECT_EQ(Answers(/*depth=*/2, /*blocks=*/256), alone);
  uint32_t preemptions = 0;
  EXPECT_EQ(Answers(/*depth=*/2, /*blocks=*/14, &preemptions), alone);
  EXPECT_GT(preemptions, 0u) << "the pool was meant to be too small";
  EXPECT_EQ(Answers(/*depth=*/2, /*blocks=*/256, nullptr, /*lose=*/true), alone);
  std::map<std::string, int> seen;
  for (size_t i = 0; i < alone.size(); ++i)
    if (i % 4 != 3) ++seen[alone[i]];
  EXPECT_GT(seen.size(), 2u) << "the seeds draw always the same";
}

TEST(Constrained, EndsByItselfWhenNothingMayFollow) {
  CoreHarness harness(Engine::Options{});
  harness.MakeReady();
  GenerateRequest request = Constrained("x", 1);
  request.grammar = Words({"done"});
  const auto sink = harness.Send(request);
  harness.StepUntilIdle();
  const RequestEnd end = sink->AwaitEnd();
  EXPECT_EQ(sink->text(), "done");
  EXPECT_EQ(sink->tokens().size(), 4u) << "no end token was needed";
  EXPECT_EQ(end.finish_reason, FinishReason::kStop);
  EXPECT_FALSE(end.matched_token.has_value());
  EXPECT_EQ(end.completion_tokens, 4u);
}

TEST(Constrained, AnEndTokenEndsWhereTheTextMayEnd) {
  // "alpha" may go on to "alphabet": some seed draws the end token, some the "b".
  int with_token = 0, longer = 0;
  for (uint64_t seed = 0; seed < 60 && (with_token == 0 || longer == 0); ++seed) {
    CoreHarness harness(Engine::Options{});
    harness.MakeReady();
    GenerateRequest request = Constrained("x", seed);
    request.grammar = Words({"a", "ab"});
    const auto sink = harness.Send(request);
    harness.StepUntilIdle();
    if (sink->text() == "a") {
      EXPECT_EQ(sink->AwaitEnd().matched_token, kByteTokenizerEos);
      ++with_token;
    } else {
      EXPECT_EQ(sink->text(), "ab");
      ++longer;
    }
  }
  EXPECT_TRUE(with_token > 0 && longer > 0) << with_token << " " << longer;
}

TEST(Constrained, IgnoreEosGoesOnToTheLongestText) {
  CoreHarness harness(Engine::Options{});
  harness.MakeReady();
  GenerateRequest request = Constrained("x", 3);
  request.grammar = Words({"a", "ab", "abc"});
  request.ignore_eos = true;
  const auto sink = harness.Send(request);
  harness.StepUntilIdle();
  EXPECT_EQ(sink->text(), "abc");
  EXPECT_EQ(sink->AwaitEnd().finish_reason, FinishReason::kStop);
}

TEST(Constrained, MaxTokensCutsItOff) {
  CoreHarness harness(Engine::Options{});
  harness.MakeReady();
  GenerateRequest request = Constrained("x", 3, /*max_tokens=*/3);
  request.grammar = Words({"abcdef"});
  const auto sink = harness.Send(request);
  harness.StepUntilIdle();
  EXPECT_EQ(sink->text(), "abc");
  EXPECT_EQ(sink->AwaitEnd().finish_reason, FinishReason::kLength);
}

TEST(Constrained, HeldBackTextComesWithTheEnd) {
  CoreHarness harness(Engine::Options{});
  harness.MakeReady();
  GenerateRequest request = Constrained("x", 3);
  request.grammar = Words({"abc"});
  request.stop = {"bcd"};
  const auto sink = harness.Send(request);
  harness.StepUntilIdle();
  EXPECT_EQ(sink->text(), "abc");
  EXPECT_EQ(sink->AwaitEnd().tail_text, "bc");
}

TEST(Constrained, ADeadEndIsToldAndGivesAllBack) {
  CoreHarness harness(Engine::Options{});
  harness.MakeReady();
  GenerateRequest request = Constrained("x", 3);
  request.grammar = Words({std::string("ab") + WordsMatcher::kNoToken + "c"});
  const auto sink = harness.Send(request);
  harness.StepUntilIdle();
  const RequestEnd end = sink->AwaitEnd();
  EXPECT_EQ(end.status.code(), absl::StatusCode::kFailedPrecondition) << end.status;
  EXPECT_EQ(ErrorReason(end.status), "CONSTRAINT_DEAD_END");
  EXPECT_EQ(harness.Stats().blocks_used, 0u);
}

TEST(Constrained, OthersGoOnWhileAMaskIsAwaited) {
  HeldMasks masks;
  CoreHarness harness(Engine::Options{}, {}, &masks);
  harness.MakeReady();
  const auto held = harness.Send(Constrained("held", 1));
  const auto free = harness.Send(Request("free", 20));
  while (!free->ended()) ASSERT_TRUE(harness.Step()) << "a request stood still";
  EXPECT_EQ(free->tokens().size(), 20u);
  EXPECT_EQ(held->tokens().size(), 1u) << "drew without its mask";
  EXPECT_EQ(masks.waiting(), 1u);
  while (!held->ended()) {
    ASSERT_EQ(masks.waiting(), 1u);
    ASSERT_FALSE(harness.Step()) << "a step without a mask";
    harness.core().MaskDone(masks.Next(), harness.now());
    harness.Advance();
    harness.Step();
  }
  EXPECT_TRUE(IsWord(held->text())) << held->text();
}

// Readiness looks at when the last step ended: the workers are fine, and it must see so.
TEST(Constrained, AMaskThatTakesLongIsNoStallOfTheWorkers) {
  HeldMasks masks;
  Engine::Options options;
  options.idle_plan_interval = absl::Seconds(1);
  CoreHarness harness(options, {}, &masks);
  harness.MakeReady();
  const auto sink = harness.Send(Constrained("held", 1));
  while (harness.Step()) {
  }
  ASSERT_EQ(masks.waiting(), 1u);
  for (int second = 0; second < 60; ++second) {
    EXPECT_LE(harness.core().NextWakeup(), harness.now() + absl::Seconds(1));
    harness.Wait(absl::Seconds(1));
    ASSERT_TRUE(harness.Step()) << "no plan went out";
    EXPECT_EQ(harness.Stats().last_progress, harness.now());
  }
  EXPECT_EQ(sink->tokens().size(), 1u);
  while (!sink->ended()) {
    if (masks.waiting() > 0) harness.core().MaskDone(masks.Next(), harness.now());
    harness.Advance();
    harness.Step();
  }
  EXPECT_TRUE(IsWord(sink->text())) << sink->text();
}

TEST(Constrained, AMaskOfARequestThatHasEndedIsNotComputed) {
  HeldMasks masks;
  CoreHarness harness(Engine::Options{}, {}, &masks);
  harness.MakeReady();
  const auto sink = harness.Send(Constrained("held", 1));
  while (harness.Step()) {
  }
  ASSERT_EQ(masks.waiting(), 1u);
  harness.core().EndAll(absl::CancelledError("gone"), EndReason::kCancelled, harness.now());
  ASSERT_TRUE(sink->ended());
  const MaskResult result = masks.Next();
  EXPECT_EQ(result.status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(result.mask.empty());
  harness.core().MaskDone(result, harness.now());
  const auto next = harness.Send(Constrained("next", 2));
  while (!next->ended()) {
    if (masks.waiting() > 0) harness.core().MaskDone(masks.Next(), harness.now());
    harness.Advance();
    harness.Step();
  }
  EXPECT_TRUE(IsWord(next->text())) << next->text();
}

TEST(Constrained, WhatTheCallersOwnFieldsForbidIsTheCallersError) {
  CoreHarness harness(Engine::Options{});
  harness.MakeReady();
  GenerateRequest request = Constrained("x", 1);
  request.grammar = Words({"abc"});
  request.allowed_tokens = MakeTokenMask(kByteTokenizerVocab, /*allowed=*/false);
  for (const uint32_t token : {'a', 'c'}) AllowToken(token, &request.allowed_tokens);
  const auto sink = harness.Send(request), good = harness.Send(Request("free", 5));
  harness.StepUntilIdle();
  const absl::Status status = sink->AwaitEnd().status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(ErrorReason(status), "NO_TOKEN_ALLOWED");
  for (const char* words : {"output token 1", "constraint", "sampling.allowed_token_ids"})
    EXPECT_NE(status.message().find(words), absl::string_view::npos) << status;
  EXPECT_EQ(status.message().find("min_tokens"), absl::string_view::npos) << status;
  EXPECT_EQ(sink->text(), "a");
  EXPECT_TRUE(good->AwaitEnd().status.ok());
}

TEST(Constrained, AMaskThatComesAfterTheEndIsDropped) {
  HeldMasks masks;
  CoreHarness harness(Engine::Options{}, {}, &masks);
  harness.MakeReady();
  GenerateRequest cancelled = Constrained("a", 1), expired = Constrained("b", 2);
  cancelled.request_id = "cancelled";
  expired.deadline = harness.now() + absl::Seconds(10);
  const auto first = harness.Send(cancelled), second = harness.Send(expired);
  while (harness.Step()) {
  }
  ASSERT_EQ(masks.waiting(), 2u);
  harness.Cancel("cancelled");
  harness.Wait(absl::Seconds(11));
  EXPECT_EQ(first->AwaitEnd().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(second->AwaitEnd().status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(harness.Stats().blocks_used, 0u);
  while (masks.waiting() > 0) harness.core().MaskDone(masks.Next(), harness.now());
  harness.Advance();
  const auto third = harness.Send(Request("c", 5));
  while (!third->ended()) ASSERT_TRUE(harness.Step());
}

TEST(Constrained, AMaskMayComeWhileThereIsNoGroup) {
  HeldMasks masks;
  Engine::Options options;
  options.fail_on_group_loss = false;
  CoreHarness harness(options, {}, &masks);
  harness.MakeReady();
  const auto sink = harness.Send(Constrained("a", 1));
  while (harness.Step()) {
  }
  harness.executor().LoseGroup(absl::UnavailableError("lost"));
  harness.core().MaskDone(masks.Next(), harness.now());
  harness.MakeReady();
  while (!sink->ended()) {
    harness.Step();
    if (masks.waiting() > 0) harness.core().MaskDone(masks.Next(), harness.now());
    harness.Advance();
  }
  EXPECT_TRUE(IsWord(sink->text())) << sink->text();
}

}  // namespace
}  // namespace bitshard
