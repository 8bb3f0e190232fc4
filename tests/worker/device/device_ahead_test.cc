// Steps of which the next plan is known while they run: the results are those of one after the
// other, whichever ranks know it and when, and the device is given the next step's work before the
// results leave.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "proto/token_mask.h"
#include "tests/worker/device/device_ranks.h"

namespace bitshard {
namespace {

using Plans = std::vector<std::shared_ptr<const StepPlan>>;

// Whether the rank knows plan i + 1 while plan i runs.
using KnowsFn = std::function<bool(int rank, size_t i)>;
bool Always(int, size_t) { return true; }

absl::StatusOr<std::unique_ptr<StepResult>> RunOne(Group& group, int rank, const Plans& plans,
                                                   size_t i, const KnowsFn& knows) {
  return group.runner(rank).Run(*plans[i], [&]() -> std::shared_ptr<const StepPlan> {
    return i + 1 < plans.size() && knows(rank, i) ? plans[i + 1] : nullptr;
  });
}

// What every step gave, the same on all ranks.
std::vector<std::string> RunAll(Group& group, const Plans& plans, const KnowsFn& knows) {
  std::vector<std::vector<std::string>> texts(static_cast<size_t>(group.world()));
  group.OnAllRanks([&](int rank) {
    for (size_t i = 0; i < plans.size(); ++i) {
      const auto result = RunOne(group, rank, plans, i, knows);
      CHECK_OK(result.status());
      (*result)->clear_exec_us();
      (*result)->clear_rank();
      texts[static_cast<size_t>(rank)].push_back((*result)->ShortDebugString());
    }
  });
  for (const auto& text : texts) EXPECT_EQ(text, texts[0]);
  return texts[0];
}

uint64_t LaunchedAhead(Group& group, int rank) {
  return group.runner(rank).progress().launched_ahead.load();
}

constexpr uint32_t kPoisoned = 150;  // a token whose embedding is no number

// Plans of sequences that come, are cut into chunks, sample, score or pool, pause, end, and give
// way to others while their last step is on its way. Some may draw nothing, some are poisoned.
class Workload {
 public:
  explicit Workload(uint64_t seed) : random_(seed) {}

  Plans Make(Group& group, int steps) {
    Plans plans;
    for (int i = 0; i < steps; ++i) {
      auto plan = std::make_shared<StepPlan>(group.NextPlan());
      for (uint32_t slot = 0; !Chance(12) && slot < std::size(sequences_); ++slot)
        AddTo(*plan, slot);
      plans.push_back(std::move(plan));
    }
    return plans;
  }

 private:
  enum Kind { kSamples, kPenalized, kMasked, kScores, kPools, kKinds };
  struct Sequence {
    Kind kind = kSamples;
    uint32_t gen = 0, known = 0, done = 0, outputs = 0, wanted = 0;
  };

  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>(random_() % bound); }
  bool Chance(uint32_t one_in) { return Below(one_in) == 0; }

  void Begin(StepPlan& plan, uint32_t slot) {
    Sequence& sequence = sequences_[slot];
    sequence = {.kind = static_cast<Kind>(Below(kKinds)),
                .gen = sequence.gen + 1,
                .known = 1 + Below(30),
                .wanted = 1 + Below(12)};
    std::vector<uint32_t> prompt = Prompt(sequence.known, Below(100));
    std::replace(prompt.begin(), prompt.end(), kPoisoned, 1u);
    if (Chance(10)) prompt.back() = kPoisoned;
    AddSequence(plan, slot, sequence.gen, prompt);
    internal::NewSequence& made = *plan.mutable_new_sequences(plan.new_sequences_size() - 1);
    if (sequence.kind == kPools) made.set_pooling(internal::POOLING_MEAN);
    if (sequence.kind != kPenalized) return;
    made.mutable_sampling()->set_repetition_penalty(1.3f);
    made.mutable_sampling()->set_frequency_penalty(0.7f);
  }

  void AddTo(StepPlan& plan, uint32_t slot) {
    Sequence& sequence = sequences_[slot];
    const bool over = sequence.kind == kPools ? sequence.done == sequence.known
                                              : sequence.outputs == sequence.wanted;
    if (over || Chance(25)) {
      Begin(plan, slot);
    } else if (Chance(5)) {
      return;
    }
    const uint32_t n = std::min(1 + Below(12), sequence.known - sequence.done);
    const bool last = sequence.done + n == sequence.known;
    uint32_t flags = last ? internal::ROW_SAMPLE : 0, again = 0;
    if (sequence.kind == kScores) {
      // After the prompt: the token before once more, which scores the one that is being sampled.
      again = sequence.outputs > 0 && sequence.done % 16 != 1 ? 1 : 0;
      if (sequence.outputs == 0 || again > 0) flags |= internal::ROW_SCORE;
    }
    if (sequence.kind == kPools) flags = internal::ROW_POOL;
    if (sequence.kind == kMasked && last) {
      flags |= internal::ROW_MASKED;
      std::string mask = MakeTokenMask(kVocab, /*allowed=*/!Chance(4));
      for (uint32_t token = Below(7); token < kVocab; token += 7) ForbidToken(token, &mask);
      plan.add_masks(mask);
    }
    AddRow(plan, slot, sequence.gen, sequence.done - again, n + again, flags, sequence.outputs);
    sequence.done += n;
    if (!last || sequence.kind == kPools) return;
    ++sequence.known;
    ++sequence.outputs;
  }

  static constexpr uint32_t kVocab = 200;

  std::mt19937_64 random_;
  Sequence sequences_[4];
};

TEST(DeviceAhead, ResultsAreThoseOfOneStepAfterTheOther) {
  constexpr int kSteps = 70;
  TinyModelOptions options;
  options.format = "bf16";
  const TinyModel model = MakeTinyModel(options);
  PoisonEmbedding(model, options, kPoisoned);
  for (const uint64_t seed : {1u, 2u}) {
    std::vector<std::string> expected;
    {
      const DeviceRanks ranks(model, 1, {.tap = false});
      const Plans plans = Workload(seed).Make(*ranks, kSteps);
      expected = RunAll(*ranks, plans, [](int, size_t) { return false; });
      EXPECT_EQ(LaunchedAhead(*ranks, 0), 0u);
      // All that may happen does: NO_TOKEN_ALLOWED and NON_FINITE too.
      for (const char* word : {"scores", "embeddings", "flags: 1", "flags: 2"}) {
        EXPECT_TRUE(std::any_of(expected.begin(), expected.end(), [word](const std::string& text) {
          return text.find(word) != std::string::npos;
        })) << word;
      }
    }
    for (const int world : {1, 2, 3}) {
      const DeviceRanks ranks(model, world, {.use_graphs = world != 2, .tap = false});
      const Plans plans = Workload(seed).Make(*ranks, kSteps);
      const uint64_t made = fake::ObjectsMade();
      EXPECT_EQ(RunAll(*ranks, plans, Always), expected) << world;
      EXPECT_EQ(fake::ObjectsMade(), made);
      EXPECT_GT(LaunchedAhead(*ranks, 0), uint64_t{kSteps} / 8);
    }
    const DeviceRanks ranks(model, 3, {.tap = false});
    const Plans plans = Workload(seed).Make(*ranks, kSteps);
    const auto some = [](int rank, size_t i) {
      return (i * 7 + static_cast<size_t>(rank)) % 5 != 0;
    };
    EXPECT_EQ(RunAll(*ranks, plans, some), expected);
    const uint64_t launched = LaunchedAhead(*ranks, 0);
    EXPECT_GT(launched, 0u);
    for (const int rank : {1, 2}) EXPECT_EQ(LaunchedAhead(*ranks, rank), launched);
  }
}

// One sequence in slot 0 that samples in every step.
Plans Decoding(Group& group, size_t steps) {
  Plans plans;
  for (uint32_t i = 0; i < steps; ++i) {
    StepPlan plan = group.NextPlan();
    if (i == 0) AddSequence(plan, 0, 1, Prompt(9, 1));
    AddRow(plan, 0, 1, i == 0 ? 0 : 8 + i, i == 0 ? 9 : 1, internal::ROW_SAMPLE, i);
    plans.push_back(std::make_shared<const StepPlan>(plan));
  }
  return plans;
}

TEST(DeviceAhead, ALaunchedStepIsOnTheDeviceBeforeItsTurn) {
  const TinyModel model = MakeTinyModel();
  const DeviceRanks ranks(model, 1, {.tap = false});
  const Plans plans = Decoding(*ranks, 5);
  CHECK_OK(RunOne(*ranks, 0, plans, 0, Always).status());
  EXPECT_EQ(LaunchedAhead(*ranks, 0), 1u);
  // Its kernels are in the stream: they run when somebody waits for it, without a plan.
  fake::StartRecord();
  CHECK_OK(ranks->runner(0).EndEpoch());
  const std::vector<fake::RanWork> works = fake::EndRecord();
  EXPECT_TRUE(std::any_of(works.begin(), works.end(), [](const fake::RanWork& work) {
    return work.what.find("Linear") != std::string::npos;
  }));
}

TEST(DeviceAhead, AnEpochThatEndsBetweenLeavesNothing) {
  const TinyModel model = MakeTinyModel();
  const DeviceRanks ranks(model, 2, {.tap = false});
  const Plans first = Decoding(*ranks, 6);
  const std::vector<std::string> expected = RunAll(*ranks, first, Always);
  for (const uint64_t epoch : {2u, 3u, 4u}) {
    ranks->OnAllRanks([&](int rank) { CHECK_OK(ranks->runner(rank).EndEpoch()); });
    ranks->StartEpoch(epoch);
    const Plans plans = Decoding(*ranks, 6);
    if (epoch == 4) {
      std::vector<std::string> got = RunAll(*ranks, plans, Always);
      for (std::string& text : got) text.replace(text.find("epoch: 4"), 8, "epoch: 1");
      EXPECT_EQ(got, expected);
      break;
    }
    // Ends with a step on the device, then with one that a rank alone has ready.
    const auto knows = [epoch](int rank, size_t) { return epoch == 2 || rank == 1; };
    ranks->OnAllRanks([&](int rank) {
      for (size_t i = 0; i < 3; ++i) CHECK_OK(RunOne(*ranks, rank, plans, i, knows).status());
    });
  }
}

// What is wrong with a plan is said when its turn comes; the step before is as it would have been.
TEST(DeviceAhead, AMalformedPlanFailsAtItsOwnTurn) {
  const TinyModel model = MakeTinyModel();
  const DeviceRanks ranks(model, 1, {.tap = false});
  Plans plans = Decoding(*ranks, 3);
  StepPlan wrong = *plans[2];
  wrong.set_slot_gen(0, 7);
  plans[2] = std::make_shared<const StepPlan>(wrong);
  for (const size_t i : {0u, 1u}) {
    const auto result = RunOne(*ranks, 0, plans, i, Always);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ((*result)->outputs_size(), 1);
  }
  EXPECT_EQ(LaunchedAhead(*ranks, 0), 1u);
  EXPECT_EQ(RunOne(*ranks, 0, plans, 2, Always).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(DeviceAhead, APlanThatIsNotTheNextIsLeftAlone) {
  const TinyModel model = MakeTinyModel();
  const DeviceRanks ranks(model, 1, {.tap = false});
  const Plans plans = Decoding(*ranks, 6);
  StepPlan foreign = *plans[3];
  foreign.set_epoch(7);
  // The one that runs, one too many, another epoch's.
  const Plans others = {plans[0], plans[3], std::make_shared<const StepPlan>(foreign), nullptr};
  for (size_t i = 0; i < plans.size(); ++i) {
    const auto result =
        ranks->runner(0).Run(*plans[i], [&] { return others[std::min<size_t>(i, 3)]; });
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ((*result)->step(), i + 1);
  }
  EXPECT_EQ(LaunchedAhead(*ranks, 0), 0u);
}

// Whichever piece of work it is: what was returned before is right, and the loss is said once.
TEST(DeviceAhead, ALostDeviceIsSaidByTheStepThatNeedsIt) {
  constexpr size_t kSteps = 4;
  const TinyModel model = MakeTinyModel();
  std::vector<std::string> expected;
  {
    const DeviceRanks ranks(model, 1, {.tap = false});
    expected = RunAll(*ranks, Decoding(*ranks, kSteps), Always);
  }
  size_t most = 0;
  for (int works = 0; works < 400; works += 23) {
    const DeviceRanks ranks(model, 1, {.tap = false});
    const Plans plans = Decoding(*ranks, kSteps);
    fake::BreakDevice(0, cudaErrorIllegalAddress, works);
    for (size_t i = 0; i < kSteps; ++i) {
      const auto result = RunOne(*ranks, 0, plans, i, Always);
      if (!result.ok()) {
        EXPECT_TRUE(IsDeviceLost(result.status())) << works << ": " << result.status();
        break;
      }
      (*result)->clear_exec_us();
      (*result)->clear_rank();
      EXPECT_EQ((*result)->ShortDebugString(), expected[i]) << works;
      most = std::max(most, i + 1);
    }
  }
  EXPECT_GE(most, 2u) << "broken before anything was launched ahead";
}

TEST(DeviceAhead, RanksThatKnowDifferentPlansSaySo) {
  const TinyModel model = MakeTinyModel();
  const DeviceRanks ranks(model, 3, {.tap = false});
  const Plans plans = Decoding(*ranks, 2);
  StepPlan other = *plans[1];
  other.set_output_index(0, 7);
  const Plans others = {plans[0], std::make_shared<const StepPlan>(other)};
  std::vector<absl::Status> statuses(3);
  ranks->OnAllRanks([&](int rank) {
    statuses[static_cast<size_t>(rank)] =
        RunOne(*ranks, rank, rank == 2 ? others : plans, 0, Always).status();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    for (const char* text : {"ranks disagree in step 2", "rank 0 has plan", "rank 2 has plan"})
      EXPECT_NE(status.message().find(text), std::string::npos) << text << " in " << status;
  }
}

TEST(DeviceAhead, TheCpuComputesOneStepAfterTheOther) {
  const TinyModel model = MakeTinyModel();
  Group group(model, 1, Numerics());
  const Plans plans = Decoding(group, 4);
  bool asked = false;
  RunAll(group, plans, [&](int, size_t) {
    asked = true;
    return true;
  });
  EXPECT_FALSE(asked);
  EXPECT_EQ(LaunchedAhead(group, 0), 0u);
}

}  // namespace
}  // namespace bitshard
