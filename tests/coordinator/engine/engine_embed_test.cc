// Requests that turn their tokens into a vector, on a virtual clock.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "coordinator/engine/engine_core.h"
#include "coordinator/engine/error_reason.h"
#include "proto/status_details.h"
#include "tests/coordinator/engine/core_harness.h"
#include "tests/coordinator/engine/given_tokens.h"

namespace bitshard {
namespace {

GenerateRequest EmbedRequest(const std::string& text,
                             internal::Pooling pooling = internal::POOLING_MEAN) {
  GenerateRequest request = Request(text, 0);
  request.pooling = pooling;
  return request;
}

void ExpectVector(const RequestEnd& end, const std::string& text, internal::Pooling pooling) {
  ASSERT_TRUE(end.status.ok()) << end.status;
  std::vector<uint32_t> tokens;
  for (const unsigned char c : text) tokens.push_back(c);
  EXPECT_EQ(end.embedding, FakeWorker::EmbeddingOf(tokens, pooling)) << text;
  EXPECT_EQ(end.prompt_tokens, text.size());
  EXPECT_EQ(end.completion_tokens, 0u);
}

TEST(EngineCoreEmbed, GivenTokensBecomeAVectorInAnyNumberOfSteps) {
  for (const uint32_t step_tokens : {256u, 16u, 1u}) {
    CoreHarness engine({}, Group(64, 8, step_tokens));
    engine.MakeReady();
    const auto mean = engine.Send(EmbedRequest(kText, internal::POOLING_MEAN));
    const auto last = engine.Send(EmbedRequest(kText, internal::POOLING_LAST));
    const auto one = engine.Send(EmbedRequest("x", internal::POOLING_MEAN));
    engine.StepUntilIdle();
    ExpectVector(mean->AwaitEnd(), kText, internal::POOLING_MEAN);
    ExpectVector(last->AwaitEnd(), kText, internal::POOLING_LAST);
    ExpectVector(one->AwaitEnd(), "x", internal::POOLING_MEAN);
    EXPECT_TRUE(mean->tokens().empty());
    EXPECT_EQ(engine.Stats().tokens, 0u);
    EXPECT_EQ(engine.Stats().blocks_free + engine.Stats().blocks_cached, 64u);
  }
}

TEST(EngineCoreEmbed, WhatThePrefixCacheHoldsHelpsTheLastTokenAndNotTheMean) {
  CoreHarness engine({}, Group(64));
  engine.MakeReady();
  engine.Send(EmbedRequest(kText, internal::POOLING_MEAN));
  engine.StepUntilIdle();
  const auto mean = engine.Send(EmbedRequest(kText, internal::POOLING_MEAN));
  engine.StepUntilIdle();
  const auto last = engine.Send(EmbedRequest(kText, internal::POOLING_LAST));
  engine.StepUntilIdle();
  ExpectVector(mean->AwaitEnd(), kText, internal::POOLING_MEAN);
  ExpectVector(last->AwaitEnd(), kText, internal::POOLING_LAST);
  EXPECT_EQ(mean->AwaitEnd().cached_tokens, 0u);
  EXPECT_EQ(last->AwaitEnd().cached_tokens, 32u);
}

TEST(EngineCoreEmbed, APreemptedOrRebuiltRequestHasEachTokenOnce) {
  Engine::Options options;
  options.fail_on_group_loss = false;
  // Blocks for one and a half of them: they must give way to each other.
  CoreHarness engine(options, Group(/*blocks=*/5, 8, /*step_tokens=*/8));
  engine.MakeReady();
  const auto a = engine.Send(EmbedRequest(kText));
  const auto b = engine.Send(EmbedRequest(kText + "b"));
  for (int i = 0; i < 3; ++i) engine.Step();
  engine.executor().LoseGroup(absl::UnavailableError("test"));
  engine.MakeReady();
  engine.StepUntilIdle();
  ExpectVector(a->AwaitEnd(), kText, internal::POOLING_MEAN);
  ExpectVector(b->AwaitEnd(), kText + "b", internal::POOLING_MEAN);
}

// Embeddings, generations and scores of all sizes, cancelled at random, in pools that are too small
// for them: whoever ends well has the vector that its own tokens make.
TEST(EngineCoreEmbed, RandomMixesGiveEachItsOwnVector) {
  uint64_t preempted = 0, complete = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t n) { return static_cast<uint32_t>(random() % n); };
    Engine::Options options;
    options.async_depth = 1 + below(2);
    options.prefix_cache = below(2) == 0;
    options.prefill_chunk = below(3) == 0 ? 5 : 0;
    options.fail_on_group_loss = false;
    CoreHarness engine(options, Group(/*blocks=*/6 + below(10), 1 + below(6), 4 + below(40)));
    engine.MakeReady();
    struct Sent {
      std::string text;
      internal::Pooling pooling;
      std::shared_ptr<RecordingSink> sink;
    };
    std::vector<Sent> all;
    for (int i = 0; i < 25; ++i) {
      Sent sent;
      // Beginnings are shared, so that the prefix cache has something to give.
      sent.text = kText.substr(0, below(2) * 33);
      sent.text.append(1 + below(40), static_cast<char>('a' + below(3)));
      sent.pooling = static_cast<internal::Pooling>(below(3));
      GenerateRequest request = EmbedRequest(sent.text, sent.pooling);
      if (sent.pooling == internal::POOLING_NONE) request.max_tokens = 1 + below(12);
      request.request_id = std::to_string(i);
      request.batch = below(4) == 0;
      request.caller = std::to_string(below(3));
      sent.sink = engine.Send(request);
      all.push_back(sent);
      for (uint32_t steps = below(4); steps > 0; --steps) engine.Step();
      if (below(12) == 0) engine.Cancel(request.request_id, request.caller);
      if (below(40) == 0) {
        engine.executor().LoseGroup(absl::UnavailableError("test"));
        engine.MakeReady();
      }
      if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
    }
    engine.StepUntilIdle();
    for (const Sent& sent : all) {
      const RequestEnd end = sent.sink->AwaitEnd();
      if (!end.status.ok() || sent.pooling == internal::POOLING_NONE) continue;
      ExpectVector(end, sent.text, sent.pooling);
      ++complete;
    }
    preempted += engine.Stats().preemptions;
    EXPECT_EQ(engine.Stats().blocks_used, 0u);
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
  EXPECT_GT(preempted, 100u) << "or the pools were not too small";
  EXPECT_GT(complete, 1500u);
}

TEST(EngineCoreEmbed, CancelAndDeadlineEndARunningOneAndGiveItsBlocksBack) {
  CoreHarness engine({}, Group(64, 8, /*step_tokens=*/8));
  engine.MakeReady();
  GenerateRequest cancelled = EmbedRequest(kText), late = EmbedRequest(kText);
  cancelled.request_id = "cancelled";
  late.deadline = engine.now() + absl::Seconds(1);
  const auto a = engine.Send(cancelled);
  const auto b = engine.Send(late);
  for (int i = 0; i < 3; ++i) engine.Step();
  engine.Cancel("cancelled");
  engine.Wait(absl::Seconds(2));
  EXPECT_EQ(a->AwaitEnd().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(b->AwaitEnd().status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(b->AwaitEnd().embedding.empty());
  engine.Step();
  EXPECT_EQ(engine.Stats().blocks_free + engine.Stats().blocks_cached, 64u);
}

TEST(EngineCoreEmbed, NonFiniteValuesEndTheRequestAlone) {
  FakeExecutor::Options group = Group(64, 8, /*step_tokens=*/8);
  group.worker.non_finite = [](absl::Span<const uint32_t> history) { return history[0] == 'b'; };
  CoreHarness engine({}, group);
  engine.MakeReady();
  const auto good = engine.Send(EmbedRequest(kText));
  const auto bad = engine.Send(EmbedRequest("b" + kText));
  engine.StepUntilIdle();
  ExpectVector(good->AwaitEnd(), kText, internal::POOLING_MEAN);
  EXPECT_EQ(bad->AwaitEnd().status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ErrorReason(bad->AwaitEnd().status), kReasonNonFinite);
  EXPECT_GT(engine.Stats().blocks_quarantined, 0u);
}

TEST(EngineCoreEmbed, OnlyTheTokensThemselvesMustFitTheContextAndNothingElseIsAsked) {
  Engine::Options options;
  options.context_tokens = static_cast<uint32_t>(kText.size());
  CoreHarness engine(options, Group(64));
  engine.MakeReady();
  const auto fits = engine.Send(EmbedRequest(kText));
  engine.StepUntilIdle();
  ExpectVector(fits->AwaitEnd(), kText, internal::POOLING_MEAN);
  const auto refused = [&](const GenerateRequest& request) {
    return engine.Submit(request, std::make_shared<RecordingSink>());
  };
  EXPECT_EQ(ErrorReason(refused(EmbedRequest(kText + "!"))), kReasonPromptTooLong);
  GenerateRequest generates = EmbedRequest("abc"), scores = EmbedRequest("abc");
  generates.max_tokens = 1;
  scores.score_from = 0;
  EXPECT_EQ(refused(generates).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(scores).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace bitshard
