#include "worker/step/step_runner.h"

#include <atomic>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "kernels/base/check.h"
#include "tests/support/await.h"
#include "tests/worker/step/step_group.h"

namespace bitshard {
namespace {

class SameBits
    : public testing::TestWithParam<std::tuple<std::string, NumericsOptions::Activations>> {};

TEST_P(SameBits, OverRanksAndChunks) {
  TinyModelOptions model_options;
  model_options.format = std::get<0>(GetParam());
  const TinyModel model = MakeTinyModel(model_options);
  std::string expected;
  std::vector<float> expected_logits;
  // 3 KV heads, 2.5 MLP units, 3.1 vocabulary units: some ranks own nothing. The first group binds
  // every node as an op of its own.
  for (const int world : {1, 1, 2, 3, 4}) {
    Group group(model, world, Numerics(std::get<1>(GetParam())), /*tap=*/true,
                /*fuse=*/!expected.empty());
    uint64_t epoch = 1;
    for (const uint32_t chunk : {64u, 7u, 1u}) {
      if (epoch > 1) group.StartEpoch(epoch);
      ++epoch;
      const std::string got = RunTwoSequences(group, chunk);
      const std::vector<float> logits = group.LogitsAt(0, 22);
      ASSERT_EQ(logits.size(), 200u);
      if (expected.empty()) {
        expected = got;
        expected_logits = logits;
      }
      EXPECT_EQ(got, expected) << world << " ranks, chunks of " << chunk;
      EXPECT_EQ(std::memcmp(logits.data(), expected_logits.data(), logits.size() * sizeof(float)),
                0)
          << world << " ranks, chunks of " << chunk;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, SameBits,
                         testing::Values(std::tuple("f32", NumericsOptions::ACTIVATIONS_F32),
                                         std::tuple("q8_0", NumericsOptions::ACTIVATIONS_A16),
                                         std::tuple("q4_1", NumericsOptions::ACTIVATIONS_A16),
                                         std::tuple("q4_1", NumericsOptions::ACTIVATIONS_A8),
                                         std::tuple("q4_1", NumericsOptions::ACTIVATIONS_F32)));

TEST(StepRunner, ScoredRowsShowTheLogitsThatSamplingSees) {
  const TinyModel model = MakeTinyModel();
  Group group(model, 2, Numerics(), /*tap=*/true);
  StepPlan plan = group.NextPlan();
  AddSequence(plan, 0, 1, Prompt(40, 3));
  AddRow(plan, 0, 1, 0, 40, internal::ROW_SCORE | internal::ROW_SAMPLE);
  ASSERT_TRUE(group.Run(plan).ok());
  const std::vector<float> in_chunk = group.LogitsAt(0, 20);
  ASSERT_EQ(in_chunk.size(), 200u);
  StepPlan again = group.NextPlan();
  AddSequence(again, 0, 2, Prompt(21, 3));
  AddRow(again, 0, 2, 0, 21, internal::ROW_SAMPLE);
  ASSERT_TRUE(group.Run(again).ok());
  EXPECT_EQ(group.LogitsAt(0, 20), in_chunk);
}

class OneRank : public testing::Test {
 protected:
  OneRank() : model_(MakeTinyModel()), group_(model_, 1, Numerics()) {}

  StepPlan FirstPlan() {
    StepPlan plan = group_.NextPlan();
    AddSequence(plan, 0, 1, Prompt(5, 1));
    AddRow(plan, 0, 1, 0, 5, internal::ROW_SAMPLE);
    return plan;
  }

  TinyModel model_;
  Group group_;
};

TEST_F(OneRank, EmptyPlanIsAHeartbeat) {
  const auto result = group_.Run(group_.NextPlan());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->outputs_size(), 0);
  EXPECT_EQ(result->step(), 1u);
}

TEST_F(OneRank, DuplicateIsIgnoredAndAGapIsRefused) {
  const StepPlan first = FirstPlan();
  ASSERT_TRUE(group_.Run(first).ok());
  EXPECT_EQ(group_.Run(first).status().code(), absl::StatusCode::kAlreadyExists);
  group_.NextPlan();
  EXPECT_EQ(group_.Run(group_.NextPlan()).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(OneRank, ForeignTermOrEpochIsRefused) {
  StepPlan plan = FirstPlan();
  plan.set_term(2);
  EXPECT_EQ(group_.Run(plan).status().code(), absl::StatusCode::kFailedPrecondition);
  plan.set_term(1);
  plan.set_epoch(9);
  EXPECT_EQ(group_.Run(plan).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(group_.runner(0).EndEpoch().ok());
  EXPECT_EQ(group_.Run(plan).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(OneRank, RefusedPlanLeavesTheStateSoThatTheRightOneStillRuns) {
  Group other(model_, 1, Numerics());
  const auto expected_first = other.Run(FirstPlan());
  ASSERT_TRUE(expected_first.ok());
  group_.RewindStep();
  ASSERT_TRUE(group_.Run(FirstPlan()).ok());
  StepPlan bad = group_.NextPlan();
  AddSequence(bad, 0, 2, Prompt(3, 5));
  AddRow(bad, 0, 1, 5, 1, internal::ROW_SAMPLE, 1);  // the old generation
  EXPECT_EQ(group_.Run(bad).status().code(), absl::StatusCode::kInvalidArgument);
  group_.RewindStep();
  StepPlan good = group_.NextPlan();
  AddRow(good, 0, 1, 5, 1, internal::ROW_SAMPLE,
         1);  // starts at the token that the worker sampled itself
  const auto result = group_.Run(good);
  ASSERT_TRUE(result.ok()) << result.status();
  other.NextPlan();
  const auto expected = other.Run(good);
  ASSERT_TRUE(expected.ok());
  EXPECT_EQ(result->SerializeAsString(), expected->SerializeAsString());
}

TEST_F(OneRank, NewEpochForgetsSequencesAndBeginsWithStepOne) {
  ASSERT_TRUE(group_.Run(FirstPlan()).ok());
  group_.StartEpoch(2);
  StepPlan plan = group_.NextPlan();
  AddRow(plan, 0, 1, 5, 1, internal::ROW_SAMPLE, 1);
  EXPECT_EQ(group_.Run(plan).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(OneRank, TakesTheHostsMemoryForTheCacheAheadOfPlans) {
  // The tiny model's cache is smaller than what may lie ahead: all of it, in pieces of a layer.
  int pieces = 1;
  while (group_.runner(0).TakeCacheAhead()) ASSERT_LT(++pieces, 1000);
  EXPECT_GT(pieces, 1);
  EXPECT_FALSE(group_.runner(0).TakeCacheAhead());
  ASSERT_TRUE(group_.Run(FirstPlan()).ok());
  EXPECT_FALSE(group_.runner(0).TakeCacheAhead());
  group_.StartEpoch(2);  // a new cache
  EXPECT_TRUE(group_.runner(0).TakeCacheAhead());
  EXPECT_TRUE(group_.runner(0).EndEpoch().ok());
  EXPECT_FALSE(group_.runner(0).TakeCacheAhead());
}

TEST_F(OneRank, DescribesEachKernelOnce) {
  const std::vector<internal::KernelChoice> kernels = group_.runner(0).Kernels();
  std::map<std::string, uint32_t> nodes;  // by op; all matrices of this model have one format
  for (const internal::KernelChoice& kernel : kernels) {
    EXPECT_TRUE(nodes.emplace(kernel.op(), kernel.nodes()).second) << kernel.ShortDebugString();
  }
  // Fused or not, every node has its line.
  const std::map<std::string, uint32_t> expected = {{"all_reduce", 4}, {"attention", 2},
                                                    {"gated_act", 2},  {"linear", 14},
                                                    {"lm_head", 1},    {"rms_norm", 5}};
  EXPECT_EQ(nodes, expected);
  // 2 layers x (K and V) x 3 heads x 32 x 16 positions x 4 bytes.
  EXPECT_EQ(group_.runner(0).CacheBytesPerBlock(), 2u * 2 * 3 * 32 * 16 * 4);
  EXPECT_GT(group_.runner(0).WorkspaceBytes(), 0u);
}

// Its row of the embedding becomes infinite.
void PoisonToken(const TinyModel& model, uint64_t token) {
  const TensorInfo* info = model.index.Find("embed.weight");
  FILE* file = fopen(model.path.c_str(), "r+b");
  ASSERT_NE(file, nullptr);
  const float infinite = std::numeric_limits<float>::infinity();
  fseek(file, static_cast<long>(info->parts[0].offset + (token * info->cols + 3) * sizeof(float)),
        SEEK_SET);
  fwrite(&infinite, sizeof(infinite), 1, file);
  fclose(file);
}

// A weight that is not finite poisons the sequences that meet it, and only those.
TEST(StepRunner, NonFiniteValuesEndTheirSequenceAlone) {
  const TinyModel model = MakeTinyModel();
  PoisonToken(model, 7);
  for (const int world : {1, 2}) {
    Group healthy(model, world, Numerics()), group(model, world, Numerics());
    StepPlan plan = group.NextPlan();
    AddSequence(plan, 0, 1, Prompt(5, 1));
    AddSequence(plan, 2, 1, {3, 7, 4});
    AddRow(plan, 0, 1, 0, 5, internal::ROW_SAMPLE);
    AddRow(plan, 2, 1, 0, 3, internal::ROW_SAMPLE);
    StepPlan alone = healthy.NextPlan();
    AddSequence(alone, 0, 1, Prompt(5, 1));
    AddRow(alone, 0, 1, 0, 5, internal::ROW_SAMPLE);
    for (uint32_t step = 0; step < 3; ++step) {
      const auto result = group.Run(plan);
      const auto expected = healthy.Run(alone);
      ASSERT_TRUE(result.ok() && expected.ok()) << result.status() << expected.status();
      ASSERT_EQ(result->outputs_size(), 2);
      EXPECT_EQ(result->outputs(0).SerializeAsString(), expected->outputs(0).SerializeAsString());
      EXPECT_EQ(result->outputs(1).flags(), static_cast<uint32_t>(internal::OUTPUT_NON_FINITE))
          << "step " << step;
      plan = group.NextPlan();
      AddRow(plan, 0, 1, 5 + step, 1, internal::ROW_SAMPLE, step + 1);
      AddRow(plan, 2, 1, 3 + step, 1, internal::ROW_SAMPLE, step + 1);
      alone = healthy.NextPlan();
      AddRow(alone, 0, 1, 5 + step, 1, internal::ROW_SAMPLE, step + 1);
    }
  }
}

// Other sequences may be about to read what a chunk of a prompt wrote.
TEST(StepRunner, NonFiniteValuesAreReportedByTheRowThatMeetsThemThoughItSamplesNothing) {
  const TinyModel model = MakeTinyModel();
  PoisonToken(model, 7);
  for (const int world : {1, 2}) {
    Group group(model, world, Numerics());
    StepPlan plan = group.NextPlan();
    AddSequence(plan, 0, 1, {3, 7, 4, 5});
    AddSequence(plan, 1, 1, {3, 4, 5, 7});
    AddRow(plan, 0, 1, 0, 3, /*flags=*/0);
    AddRow(plan, 1, 1, 0, 3, /*flags=*/0);
    auto result = group.Run(plan);
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->outputs_size(), 1);
    EXPECT_EQ(result->outputs(0).slot(), 0u);
    EXPECT_EQ(result->outputs(0).slot_gen(), 1u);
    EXPECT_EQ(result->outputs(0).flags(), static_cast<uint32_t>(internal::OUTPUT_NON_FINITE));
    // Who reads it from the cache meets it, too.
    plan = group.NextPlan();
    AddSequence(plan, 2, 1, {3, 7, 4, 6});
    plan.mutable_new_sequences(0)->set_cached_tokens(3);
    plan.mutable_new_sequences(0)->add_blocks(0);  // of slot 0
    AddRow(plan, 2, 1, 3, 1, internal::ROW_SAMPLE);
    result = group.Run(plan);
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->outputs_size(), 1);
    EXPECT_EQ(result->outputs(0).flags(), static_cast<uint32_t>(internal::OUTPUT_NON_FINITE));
  }
}

TEST(StepRunner, DifferentPlansFailOnEveryRankBeforeAnyResult) {
  const TinyModel model = MakeTinyModel();
  Group group(model, 2, Numerics());
  std::vector<StepPlan> plans(2, group.NextPlan());
  for (uint32_t rank = 0; rank < 2; ++rank) {
    AddSequence(plans[rank], 0, 1, Prompt(5, rank));
    AddRow(plans[rank], 0, 1, 0, 5, internal::ROW_SAMPLE);
  }
  std::vector<absl::Status> statuses(2);
  group.OnAllRanks([&](int rank) {
    statuses[static_cast<size_t>(rank)] =
        group.runner(rank).Run(plans[static_cast<size_t>(rank)]).status();
  });
  for (const absl::Status& status : statuses)
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  // The epoch is over.
  EXPECT_EQ(group.runner(0).Run(group.NextPlan()).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(StepRunner, AbortFreesAStepThatWaitsForItsPeer) {
  const TinyModel model = MakeTinyModel();
  Group group(model, 2, Numerics());
  absl::Status status;
  std::thread waiting([&] { status = group.runner(0).Run(group.NextPlan()).status(); });
  AwaitTrue("a step that is under way", [&] { return group.runner(0).progress().busy.load(); });
  group.runner(0).collective()->Abort();
  waiting.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

}  // namespace
}  // namespace bitshard
