#include "coordinator/frontend/delta_buffer.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/coordinator/frontend/fake_engine.h"

namespace bitshard {
namespace {

using ::testing::ElementsAre;

const absl::Time kStart = absl::FromUnixSeconds(1000);

TEST(DeltaBuffer, MergesWhatIsPending) {
  DeltaBuffer buffer(SlowReaderPolicy{});
  EXPECT_TRUE(buffer.empty());
  EXPECT_FALSE(buffer.Push(FakeEngine::Delta(4, "ab"), kStart));
  EXPECT_TRUE(buffer.Push(FakeEngine::Delta(6, "c"), kStart));
  const std::vector<TokenDelta> deltas = buffer.Take();
  ASSERT_EQ(deltas.size(), 1u);
  const TokenDelta& delta = deltas[0];
  EXPECT_EQ(delta.first_index, 4u);
  EXPECT_EQ(delta.text, "abc");
  EXPECT_THAT(delta.tokens, ElementsAre('a', 'b', 'c'));
  EXPECT_TRUE(buffer.empty());
  EXPECT_EQ(buffer.coalesced(), 1u);
}

TEST(DeltaBuffer, ChoicesAreMergedEachByItselfAndBoundedTogether) {
  SlowReaderPolicy policy;
  policy.max_pending_tokens = 4;
  DeltaBuffer buffer(policy);
  EXPECT_FALSE(buffer.Push(FakeEngine::Delta(3, "a", 2), kStart));
  EXPECT_FALSE(buffer.Push(FakeEngine::Delta(0, "x", 0), kStart));
  EXPECT_TRUE(buffer.Push(FakeEngine::Delta(4, "b", 2), kStart));
  EXPECT_TRUE(buffer.Push(FakeEngine::Delta(1, "y", 0), kStart));
  EXPECT_EQ(buffer.size(), 2u);
  EXPECT_FALSE(buffer.TooSlow(kStart + absl::Hours(1)));
  EXPECT_FALSE(buffer.Push(FakeEngine::Delta(0, "z", 1), kStart));
  EXPECT_TRUE(buffer.TooSlow(kStart + absl::Hours(1)));
  const std::vector<TokenDelta> deltas = buffer.Take();
  ASSERT_EQ(deltas.size(), 3u);
  EXPECT_EQ(deltas[0].choice, 2u);
  EXPECT_EQ(deltas[0].first_index, 3u);
  EXPECT_EQ(deltas[0].text, "ab");
  EXPECT_EQ(deltas[1].text, "xy");
  EXPECT_EQ(deltas[2].text, "z");
  EXPECT_FALSE(buffer.TooSlow(kStart + absl::Hours(1)));
}

TEST(DeltaBuffer, IsTooSlowOnlyAfterThePatienceOverTheBound) {
  SlowReaderPolicy policy;
  policy.max_pending_tokens = 2;
  policy.patience = absl::Seconds(10);
  DeltaBuffer buffer(policy);
  buffer.Push(FakeEngine::Delta(0, "ab"), kStart);
  EXPECT_FALSE(buffer.TooSlow(kStart + absl::Hours(1)));
  buffer.Push(FakeEngine::Delta(2, "c"), kStart + absl::Seconds(5));
  EXPECT_FALSE(buffer.TooSlow(kStart + absl::Seconds(15)));
  EXPECT_TRUE(buffer.TooSlow(kStart + absl::Seconds(16)));
  buffer.Take();
  EXPECT_FALSE(buffer.TooSlow(kStart + absl::Seconds(16)));
}

TEST(DeltaBuffer, BytesCountToo) {
  SlowReaderPolicy policy;
  policy.max_pending_bytes = 100;
  DeltaBuffer buffer(policy);
  TokenDelta delta = FakeEngine::Delta(0, "a");
  delta.logprobs.resize(1);
  delta.logprobs[0].top.resize(20);
  buffer.Push(delta, kStart);
  EXPECT_TRUE(buffer.TooSlow(kStart + absl::Seconds(11)));
}

}  // namespace
}  // namespace bitshard
