// Steps without --deterministic: f32 partial sums over NCCL, in a window of its memory.
#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "tests/support/fake_nccl.h"
#include "tests/support/unique_id.h"
#include "tests/worker/device/device_ranks.h"

namespace bitshard {
namespace {

TEST(FloatSums, LogitsAreThoseOfTheCpuWithinTheRoundingOfActivations) {
  TinyModelOptions options;
  options.format = "q4_1";
  const TinyModel model = MakeTinyModel(options);
  Group cpu(model, 1, Numerics(NumericsOptions::ACTIVATIONS_F32), /*tap=*/true);
  const auto truth = ScoreAll(cpu);
  const auto deterministic = ScoreAll(*DeviceRanks(model, 1, {.use_graphs = false}));
  bool differs = false;
  for (const int world : {1, 2, 3}) {
    const DeviceRanks gpu(model, world, {.numerics = FloatSums(), .use_graphs = false});
    const auto got = ScoreAll(*gpu);
    double worst = 0;
    for (uint32_t position = 0; position < kTokens; ++position)
      worst = std::max(worst, Error(got[position], truth[position]));
    EXPECT_LT(worst, Bound(options.layers)) << world;
    EXPECT_FALSE(gpu->runner(0).deterministic());
    differs = differs || got != deterministic;
  }
  // With a segment or two a rank both ways often round alike.
  EXPECT_TRUE(differs) << "--deterministic has no effect";
}

TEST(FloatSums, AreInAWindowInEveryEpoch) {
  const int misuses = fake::NcclMisuses();
  {
    const TinyModel model = MakeTinyModel();
    const DeviceRanks ranks(model, 2, {.numerics = FloatSums()});
    EXPECT_EQ(fake::LiveNcclWindows(), 2);  // of the two ranks in this process
    const std::string first = RunTwoSequences(*ranks, 64);
    const auto end = [&](int rank) { CHECK_OK(ranks->runner(rank).EndEpoch()); };
    ranks->OnAllRanks(end);
    EXPECT_EQ(fake::LiveNcclWindows(), 0);
    ranks->StartEpoch(2);
    EXPECT_EQ(fake::LiveNcclWindows(), 2);
    EXPECT_EQ(RunTwoSequences(*ranks, 64), first);
    ranks->runner(0).collective()->Abort();
    ranks->OnAllRanks(end);
    EXPECT_EQ(fake::LiveNcclWindows(), 0);
    ranks->StartEpoch(3);
    EXPECT_EQ(RunTwoSequences(*ranks, 64), first);
  }
  EXPECT_EQ(fake::LiveNcclWindows(), 0);
  EXPECT_EQ(fake::NcclMisuses(), misuses);
}

TEST(FloatSums, AreOfAllRanksOrOfNone) {
  const TinyModel model = MakeTinyModel();
  const std::vector<internal::RankPlan> plans = CutTinyModel(model, 2);
  const fake::ScopedCudaMachine machine({.devices = 2});
  const std::string id = UniqueId("bitshard-disagree");
  absl::Status began[2];
  std::vector<std::thread> threads;
  for (const int rank : {0, 1}) {
    threads.emplace_back([&, rank] {
      auto device = OpenDevice("cuda", rank);
      CHECK_OK(device.status());
      ThreadPool pool(1);
      StepRunner::Options options;
      options.pool = &pool;
      options.numerics = rank == 0 ? DeviceNumerics() : FloatSums();
      const auto runner = BindOn(**device, plans[static_cast<size_t>(rank)], options, {});
      began[rank] = runner->StartEpoch(1, 1, JoinOn(**device, rank, 2, id), kBlocks);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : began) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_NE(status.message().find("--deterministic"), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace bitshard
