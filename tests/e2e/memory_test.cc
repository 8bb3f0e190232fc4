// Design promise 1: a rank's weights take at most 1.05 times the bytes that it read for them, plus
// tile padding, for any width and any number of workers; and loading needs at most 64 MiB more for
// a while.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include <gtest/gtest.h>

#include "kernels/base/thread_pool.h"
#include "tests/support/test_paths.h"
#include "tests/support/thread_group.h"
#include "worker/load/loader.h"

namespace bitshard {
namespace {

constexpr uint64_t kLoadMayTake = 64 << 20;

// Rows and columns beyond the matrices' own, in values; an independent count of what there is to
// pad.
uint64_t PaddedValues(const internal::RankPlan& plan) {
  uint64_t values = 0;
  for (const internal::Weight& weight : plan.graph().weights()) {
    const uint64_t rows = (weight.rows() + 15) / 16 * 16, cols = (weight.cols() + 63) / 64 * 64;
    values += rows * cols - weight.rows() * weight.cols();
  }
  return values;
}

void ExpectPromise(const std::string& path, int max_world) {
  auto model = TestModel::Open(path);
  ASSERT_TRUE(model.ok()) << model.status();
  for (int world = 1; world <= max_world; ++world) {
    auto ranks = (*model)->Ranks(world, {});
    ASSERT_TRUE(ranks.ok()) << ranks.status();
    for (const TestModel::Rank& rank : **ranks) {
      const LoadedWeights& weights = *rank.weights;
      EXPECT_EQ(weights.read_bytes, rank.plan.load().read_bytes());
      // Four bytes a value and half as much for its scales are more than any format has.
      EXPECT_LE(weights.padding_bytes, 6 * PaddedValues(rank.plan)) << path;
      const double most = 1.05 * static_cast<double>(weights.read_bytes) +
                          static_cast<double>(weights.padding_bytes);
      EXPECT_LE(static_cast<double>(weights.arena_bytes), most)
          << path << " rank " << rank.plan.rank() << " of " << world << ": payload "
          << weights.read_bytes << ", padding " << weights.padding_bytes;
      // The arena itself has nothing but the matrices, each of at most three pieces.
      EXPECT_GE(weights.arena->used(), weights.arena_bytes - weights.vector_bytes);
      EXPECT_LE(weights.arena->used(),
                weights.arena_bytes - weights.vector_bytes + weights.matrices.size() * 3 * 64);
      std::printf("%s rank %u of %d: payload %lu, arena %lu (%.4f), padding %lu, vectors %lu\n",
                  path.substr(path.rfind('/') + 1).c_str(), rank.plan.rank(), world,
                  static_cast<unsigned long>(weights.read_bytes),
                  static_cast<unsigned long>(weights.arena_bytes),
                  static_cast<double>(weights.arena_bytes - weights.padding_bytes) /
                      static_cast<double>(weights.read_bytes),
                  static_cast<unsigned long>(weights.padding_bytes),
                  static_cast<unsigned long>(weights.vector_bytes));
    }
  }
}

class Fixture : public testing::TestWithParam<const char*> {};

TEST_P(Fixture, ArenaIsThePayloadAndPadding) { ExpectPromise(GoldenModel(GetParam()), 3); }

INSTANTIATE_TEST_SUITE_P(Memory, Fixture,
                         testing::Values("ct-int3-g32-g128", "ct-int5-g32-g128", "gguf-Q4_1",
                                         "gguf-Q8_0", "tiny-llama-q"));

TEST(SmolLm2, ArenaIsThePayloadAndPadding) {
  if (SmolLm2Path().empty())
    GTEST_SKIP() << "BITSHARD_TEST_MODELS is not set: tests/run.sh fetches the model";
  ExpectPromise(SmolLm2Path(), 3);
}

uint64_t StatusBytes(const std::string& field) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (absl::StartsWith(line, field)) return 1024 * std::stoull(line.substr(field.size()));
  }
  return 0;
}

TEST(SmolLm2, LoadingTakesLittleMoreThanWhatStays) {
  if (SmolLm2Path().empty())
    GTEST_SKIP() << "BITSHARD_TEST_MODELS is not set: tests/run.sh fetches the model";
  auto model = TestModel::Open(SmolLm2Path());
  ASSERT_TRUE(model.ok()) << model.status();
  auto ranks = (*model)->Ranks(1, {});
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  ThreadPool pool(4);
  // Makes the peak count from now on.
  std::ofstream("/proc/self/clear_refs") << "5";
  const uint64_t before = StatusBytes("VmRSS:");
  ASSERT_GT(before, 0u);
  if (StatusBytes("VmHWM:") > before + (4 << 20))
    GTEST_SKIP() << "this system does not let a process reset its peak";
  const auto weights = LoadWeights((*ranks)->at(0).plan, pool, nullptr);
  ASSERT_TRUE(weights.ok()) << weights.status();
  const uint64_t peak = StatusBytes("VmHWM:") - before;
  EXPECT_GE(peak, (*weights)->arena_bytes) << "the arena is resident once it is loaded";
  EXPECT_LE(peak, (*weights)->arena_bytes + kLoadMayTake);
  std::printf("peak %lu bytes above the arena's %lu\n",
              static_cast<unsigned long>(peak - std::min(peak, (*weights)->arena_bytes)),
              static_cast<unsigned long>((*weights)->arena_bytes));
}

}  // namespace
}  // namespace bitshard
