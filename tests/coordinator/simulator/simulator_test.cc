#include <cstdint>
#include <optional>

#include <gtest/gtest.h>

#include "tests/coordinator/simulator/run_seeds.h"
#include "tests/support/byte_tokenizer.h"

namespace bitshard::sim {
namespace {

// In parts, so that they can be spread over processes.
constexpr uint64_t kParts = 16;
// A sanitizer makes it 20 times slower; there is one thread, so fewer seeds show as much.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kSeeds = 2'000;
#else
constexpr uint64_t kSeeds = 100'000;
#endif

class Simulator : public testing::TestWithParam<uint64_t> {};

TEST_P(Simulator, KeepsEveryPromiseWhateverHappens) {
  constexpr uint64_t kCount = kSeeds / kParts;
  Met met;
  const std::optional<Finding> finding = RunSeeds(1 + GetParam() * kCount, kCount, &met);
  ASSERT_FALSE(finding.has_value()) << finding->report;
  SCOPED_TRACE(met.ToString());
  RecordProperty("met", met.ToString());
  EXPECT_EQ(met.schedules, kCount);
  // What may go wrong must have been met, or this shows little.
  EXPECT_GT(met.ends[absl::StatusCode::kOk], 2 * kCount);
  EXPECT_GT(met.ends[absl::StatusCode::kCancelled], kCount / 10);
  EXPECT_GT(met.ends[absl::StatusCode::kDeadlineExceeded], kCount / 20);
  EXPECT_GT(met.ends[absl::StatusCode::kInternal], kCount / 50);
  EXPECT_GT(met.ends[absl::StatusCode::kUnavailable], kCount / 50);
  EXPECT_GT(met.preemptions, kCount / 5);
  EXPECT_GT(met.stale_outputs, kCount / 10);
  EXPECT_GT(met.cached_tokens, 5 * kCount);
  EXPECT_GT(met.evicted_blocks, kCount / 2);
  EXPECT_GT(met.lost_groups, kCount / 5);
  EXPECT_GT(met.quarantined_blocks, kCount / 20);
  EXPECT_GE(met.shared_quarantines, kCount / 1000);
  EXPECT_GT(met.bad_block_victims, kCount / 200);
  EXPECT_GT(met.share_checks, kCount);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Simulator, testing::Range<uint64_t>(0, kParts));

// A seed replays: the same lines, whether or not somebody looks.
TEST(SimulatorReplay, GivesTheSameEveryTime) {
  KeepQuiet();
  const auto tokenizer = MakeByteTokenizer();
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const Outcome blind = Simulation(seed, tokenizer.get(), {}).Run();
    const Outcome first = Simulation(seed, tokenizer.get(), {.keep = 1'000'000}).Run();
    const Outcome second = Simulation(seed, tokenizer.get(), {.keep = 1'000'000}).Run();
    ASSERT_FALSE(first.trace.empty());
    ASSERT_EQ(first.trace, second.trace) << "seed " << seed;
    ASSERT_EQ(blind.met.ToString(), first.met.ToString()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace bitshard::sim
