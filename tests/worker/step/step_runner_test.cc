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
#include "tests/worker/tiny_model.h"
#include "worker/load/loader.h"

namespace bitshard {
namespace {

using internal::NumericsOptions;
using internal::StepPlan;
using internal::StepResult;

constexpr uint32_t kBlocks = 64;

NumericsOptions Numerics(
    NumericsOptions::Activations activations = NumericsOptions::ACTIVATIONS_F32) {
  NumericsOptions numerics;
  numerics.set_activations(activations);
  numerics.set_kv_cache_type(NumericsOptions::CACHE_TYPE_F32);
  numerics.set_block_tokens(16);
  numerics.set_max_step_tokens(64);
  numerics.set_max_slots(8);
  return numerics;
}

// One row of a plan that gives the slot all the blocks it needs: block i of slot s is 8 s + i.
void AddRow(StepPlan& plan, uint32_t slot, uint32_t gen, uint32_t start, uint32_t n_tokens,
            uint32_t flags, uint32_t output_index = 0) {
  plan.add_slot(slot);
  plan.add_slot_gen(gen);
  plan.add_start(start);
  plan.add_n_tokens(n_tokens);
  plan.add_output_index(output_index);
  plan.add_flags(flags);
  const uint32_t held = (start + 15) / 16, needed = (start + n_tokens + 15) / 16;
  plan.add_n_new_blocks(needed - held);
  for (uint32_t i = held; i < needed; ++i) plan.add_new_blocks(8 * slot + i);
}

void AddSequence(StepPlan& plan, uint32_t slot, uint32_t gen, const std::vector<uint32_t>& tokens) {
  internal::NewSequence& sequence = *plan.add_new_sequences();
  sequence.set_slot(slot);
  sequence.set_slot_gen(gen);
  for (const uint32_t token : tokens) sequence.add_tokens(token);
  sequence.set_n_prompt(static_cast<uint32_t>(tokens.size()));
  internal::SamplingParams& sampling = *sequence.mutable_sampling();
  sampling.set_top_p(1);
  sampling.set_logprobs(true);
  sampling.set_top_logprobs(3);
  if (slot % 2 == 1) {
    sampling.set_temperature(0.8f);
    sampling.set_seed(17 + slot);
  }
}

std::vector<uint32_t> Prompt(uint32_t length, uint32_t seed) {
  std::vector<uint32_t> tokens;
  for (uint32_t i = 0; i < length; ++i) tokens.push_back((i * 37 + seed * 11) % 200);
  return tokens;
}

// The ranks of a group as threads of the test.
class Group {
 public:
  // logits[rank][(slot, position)].
  using Logits = std::vector<std::map<std::pair<uint32_t, uint32_t>, std::vector<float>>>;

  Group(const TinyModel& model, int world, const NumericsOptions& numerics, bool tap = false,
        bool fuse = true)
      : plans_(CutTinyModel(model, world)), logits_(static_cast<size_t>(world)) {
    for (int rank = 0; rank < world; ++rank) {
      pools_.push_back(std::make_unique<ThreadPool>(1 + rank % 2));
      auto weights = LoadWeights(plans_[static_cast<size_t>(rank)], *pools_.back(), nullptr);
      CHECK_OK(weights.status());
      StepRunner::Options options;
      options.numerics = numerics;
      options.pool = pools_.back().get();
      options.fuse = fuse;
      if (tap) {
        options.logits_tap = [this, rank](uint32_t slot, uint32_t position,
                                          absl::Span<const float> logits) {
          logits_[static_cast<size_t>(rank)][{slot, position}].assign(logits.begin(), logits.end());
        };
      }
      auto runner = StepRunner::Bind(plans_[static_cast<size_t>(rank)], *weights, options);
      CHECK_OK(runner.status());
      runners_.push_back(*std::move(runner));
    }
    StartEpoch(1);
  }

  void StartEpoch(uint64_t epoch) {
    static std::atomic<int> next{0};
    const std::string id = absl::StrCat("bitshard-step-", getpid(), "-", next.fetch_add(1));
    epoch_ = epoch;
    step_ = 0;
    OnAllRanks([&](int rank) {
      std::unique_ptr<Collective> collective;
      if (world() == 1) {
        collective = MakeSoloCollective();
      } else {
        auto joined = JoinShmCollective(id, rank, world(), absl::Seconds(20));
        CHECK_OK(joined.status());
        collective = *std::move(joined);
      }
      CHECK_OK(runners_[static_cast<size_t>(rank)]->StartEpoch(1, epoch, std::move(collective),
                                                               kBlocks));
    });
  }

  StepPlan NextPlan() {
    StepPlan plan;
    plan.set_term(1);
    plan.set_epoch(epoch_);
    plan.set_step(++step_);
    return plan;
  }

  // Runs it on all ranks; every rank must give the same outputs, rank 0's is returned.
  absl::StatusOr<StepResult> Run(const StepPlan& plan) {
    std::vector<absl::StatusOr<std::unique_ptr<StepResult>>> results(runners_.size());
    OnAllRanks([&](int rank) {
      results[static_cast<size_t>(rank)] = runners_[static_cast<size_t>(rank)]->Run(plan);
    });
    for (const auto& result : results) {
      if (!result.ok()) return result.status();
    }
    if (*results[0] == nullptr) return absl::AlreadyExistsError("a duplicate");
    for (size_t rank = 0; rank < results.size(); ++rank) {
      StepResult& result = **results[rank];
      EXPECT_EQ(result.rank(), rank);
      result.clear_exec_us();
      result.clear_rank();
      EXPECT_EQ(result.SerializeAsString(), (*results[0])->SerializeAsString()) << "rank " << rank;
    }
    return **results[0];
  }

  void OnAllRanks(const std::function<void(int)>& work) {
    std::vector<std::thread> threads;
    for (int rank = 1; rank < world(); ++rank) threads.emplace_back([&, rank] { work(rank); });
    work(0);
    for (std::thread& thread : threads) thread.join();
  }

  // The whole vocabulary's logits of an output position, ranks put together.
  std::vector<float> LogitsAt(uint32_t slot, uint32_t position) const {
    std::vector<float> all;
    for (const auto& of_rank : logits_) {
      const auto it = of_rank.find({slot, position});
      if (it != of_rank.end()) all.insert(all.end(), it->second.begin(), it->second.end());
    }
    return all;
  }

  int world() const { return static_cast<int>(plans_.size()); }
  StepRunner& runner(int rank) { return *runners_[static_cast<size_t>(rank)]; }
  void RewindStep() { --step_; }

 private:
  std::vector<internal::RankPlan> plans_;
  std::vector<std::unique_ptr<ThreadPool>> pools_;
  std::vector<std::unique_ptr<StepRunner>> runners_;
  Logits logits_;
  uint64_t epoch_ = 0, step_ = 0;
};

// Two sequences, prefilled in chunks and decoded together; returns every result as bytes and every
// logits row.
std::string RunTwoSequences(Group& group, uint32_t chunk) {
  std::string bytes;
  const std::vector<std::vector<uint32_t>> prompts = {Prompt(23, 1), Prompt(9, 2)};
  std::vector<uint32_t> known = {23, 9}, done = {0, 0}, outputs = {0, 0};
  std::vector<bool> entered = {false, false};
  while (outputs[0] < 6 || outputs[1] < 6) {
    StepPlan plan = group.NextPlan();
    for (uint32_t slot = 0; slot < 2; ++slot) {
      if (outputs[slot] == 6) continue;
      if (!entered[slot]) AddSequence(plan, slot, 1, prompts[slot]);
      entered[slot] = true;
      const uint32_t n = std::min(chunk, known[slot] - done[slot]);
      const bool sample = done[slot] + n == known[slot];
      AddRow(plan, slot, 1, done[slot], n, sample ? internal::ROW_SAMPLE : 0, outputs[slot]);
      done[slot] += n;
      if (sample) {
        ++known[slot];
        ++outputs[slot];
      }
    }
    const auto result = group.Run(plan);
    CHECK_OK(result.status());
    for (const internal::StepOutput& output : result->outputs()) {
      EXPECT_EQ(output.flags(), 0u);
      EXPECT_LT(output.token(), 200u);
      EXPECT_EQ(output.top_size(), 3);
      absl::StrAppend(&bytes, output.slot(), ":", output.output_index(), ":",
                      output.ShortDebugString(), "\n");
    }
  }
  std::vector<std::string> lines;  // the order of the steps depends on the chunk
  for (size_t begin = 0; begin < bytes.size();) {
    const size_t end = bytes.find('\n', begin);
    lines.push_back(bytes.substr(begin, end - begin));
    begin = end + 1;
  }
  std::sort(lines.begin(), lines.end());
  std::string sorted;
  for (const std::string& line : lines) absl::StrAppend(&sorted, line, "\n");
  return sorted;
}

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
  group_.runner(0).EndEpoch();
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

// A weight that is not finite poisons the sequences that meet it, and only those.
TEST(StepRunner, NonFiniteValuesEndTheirSequenceAlone) {
  const TinyModel model = MakeTinyModel();
  // Row 7 of the embedding becomes infinite: token 7 is poison.
  const TensorInfo* info = model.index.Find("embed.weight");
  FILE* file = fopen(model.path.c_str(), "r+b");
  ASSERT_NE(file, nullptr);
  const float infinite = std::numeric_limits<float>::infinity();
  fseek(file, static_cast<long>(info->parts[0].offset + (7 * info->cols + 3) * sizeof(float)),
        SEEK_SET);
  fwrite(&infinite, sizeof(infinite), 1, file);
  fclose(file);
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
  while (!group.runner(0).progress().busy) std::this_thread::yield();
  group.runner(0).collective()->Abort();
  waiting.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

}  // namespace
}  // namespace bitshard
