// What the sampler gets of a device's logits, on emulated GPUs: the results do not depend on
// whether rows are looked through there or come to the host whole, and most do not come.
#include "worker/device/device_logits.h"

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/worker/device/device_ranks.h"

namespace bitshard {
namespace {

using SetParams = std::function<void(internal::SamplingParams&)>;

// The last two reach beyond what a scan lists, or change the logits.
const std::vector<SetParams>& Params() {
  static const std::vector<SetParams> params = {
      [](auto& p) { p.set_top_logprobs(0); },  // greedy
      [](auto& p) {
        p.set_temperature(1.5f);
        p.set_logprobs(false);
        p.set_top_logprobs(0);
      },
      [](auto& p) {
        p.set_temperature(0.7f);
        p.set_top_p(0.9f);
      },
      [](auto& p) {
        p.set_temperature(1);
        p.set_top_k(5);
        p.set_min_p(0.01f);
        p.set_top_logprobs(20);
      },
      [](auto& p) {
        p.set_temperature(50);
        p.set_top_k(170);
        p.set_top_p(0.99f);
      },
      [](auto& p) {
        p.set_temperature(1);
        p.set_frequency_penalty(0.5f);
        p.add_bias_tokens(7);
        p.add_biases(3);
      },
  };
  return params;
}

// Four sequences at once, each with other params; every output of some steps.
std::string Sample(Group& group, size_t first) {
  std::string text;
  for (uint32_t step = 0; step < 4; ++step) {
    StepPlan plan = group.NextPlan();
    for (uint32_t slot = 0; slot < 4; ++slot) {
      if (step == 0) {
        AddSequence(plan, slot, 1, Prompt(5 + slot, slot));
        internal::SamplingParams& params =
            *plan.mutable_new_sequences(static_cast<int>(slot))->mutable_sampling();
        params.set_seed(100 + slot);
        Params()[(first + slot) % Params().size()](params);
      }
      const uint32_t known = 5 + slot;
      AddRow(plan, slot, 1, step == 0 ? 0 : known + step - 1, step == 0 ? known : 1,
             internal::ROW_SAMPLE, step);
    }
    const auto result = group.Run(plan);
    CHECK_OK(result.status());
    for (const internal::StepOutput& output : result->outputs()) {
      EXPECT_EQ(output.flags(), 0u);
      text += output.ShortDebugString() + "\n";
    }
  }
  return text;
}

TEST(DeviceLogits, ResultsAreThoseOfWholeRows) {
  TinyModelOptions options;
  options.format = "q4_1";
  const TinyModel model = MakeTinyModel(options);
  for (const size_t first : {0, 2}) {
    // One group at a time: each begins with a new runtime.
    const auto sampled = [&](int world, const DeviceRanks::Options& device) {
      const DeviceRanks ranks(model, world, device);
      return Sample(*ranks, first);
    };
    const std::string expected = sampled(1, {.scan_logits = false, .tap = false});
    for (const int world : {1, 2, 3}) {
      EXPECT_EQ(sampled(world, {.tap = false}), expected)
          << world << " ranks, params from " << first;
    }
    EXPECT_EQ(sampled(1, {}), expected) << "with a tap, params from " << first;
  }
}

uint64_t BytesOfSteps(const TinyModel& model, const SetParams& set, bool scan) {
  const DeviceRanks ranks(model, 1, {.scan_logits = scan, .tap = false});
  uint64_t before = 0;
  for (uint32_t step = 0; step < 3; ++step) {
    StepPlan plan = ranks->NextPlan();
    if (step == 0) {
      AddSequence(plan, 0, 1, Prompt(5, 1));
      internal::SamplingParams& params = *plan.mutable_new_sequences(0)->mutable_sampling();
      params.Clear();
      params.set_top_p(1);
      set(params);
    }
    AddRow(plan, 0, 1, step == 0 ? 0 : 4 + step, step == 0 ? 5 : 1, internal::ROW_SAMPLE, step);
    if (step == 1) before = fake::BytesToHost();
    CHECK_OK(ranks->Run(plan).status());
  }
  return fake::BytesToHost() - before;
}

TEST(DeviceLogits, FewBytesComeToTheHost) {
  const TinyModel model = MakeTinyModel();
  // Of the last two steps, each one row; and one byte a token that says whether sums were finite.
  const uint64_t vocab = TinyModelOptions().vocab, step = 1 + sizeof(LogitScan);
  const uint64_t key = sizeof(uint64_t);
  const auto bytes = [&](const SetParams& set) { return BytesOfSteps(model, set, /*scan=*/true); };
  EXPECT_EQ(BytesOfSteps(
                model, [](auto&) {}, /*scan=*/false),
            2 * (1 + vocab * sizeof(float)));
  EXPECT_EQ(bytes([](auto&) {}), 2 * step);
  EXPECT_EQ(bytes([](auto& p) { p.set_temperature(1); }), 2 * step);
  EXPECT_EQ(bytes([](auto& p) {
              p.set_temperature(1);
              p.set_top_k(5);
            }),
            2 * (step + 5 * key));
  EXPECT_EQ(bytes([](auto& p) { p.set_logprobs(true); }), 2 * (step + sizeof(LogitSums)));
  EXPECT_EQ(bytes([](auto& p) {
              p.set_temperature(0.1f);
              p.set_top_p(0.5f);
            }),
            2 * (step + 128 * key + sizeof(LogitSums)));
  // All tokens but 20 are kept: the row is wanted.
  EXPECT_EQ(bytes([](auto& p) {
              p.set_temperature(50);
              p.set_top_k(180);
            }),
            2 * (step + 128 * key + vocab * sizeof(float)));
  // Edited rows are not looked through.
  EXPECT_EQ(bytes([](auto& p) { p.set_presence_penalty(1); }), 2 * (1 + vocab * sizeof(float)));
}

// A prompt scored in two steps, one of which samples too; more tokens than are scored at once.
std::string Score(const TinyModel& model, int world, uint32_t top, const DeviceRanks::Options& on) {
  const DeviceRanks ranks(model, world, on);
  constexpr uint32_t kPrompt = 40, kFirst = 23;
  std::string text;
  for (const bool second : {false, true}) {
    StepPlan plan = ranks->NextPlan();
    if (!second) {
      AddSequence(plan, 0, 1, Prompt(kPrompt, 1));
      plan.mutable_new_sequences(0)->mutable_sampling()->set_top_logprobs(top);
    }
    AddRow(plan, 0, 1, second ? kFirst : 0, second ? kPrompt - kFirst : kFirst,
           internal::ROW_SCORE | (second ? internal::ROW_SAMPLE : 0));
    const auto result = ranks->Run(plan);
    CHECK_OK(result.status());
    CHECK_EQ(result->scores_size(), 1);
    text += result->ShortDebugString() + "\n";
  }
  return text;
}

TEST(DeviceLogits, ScoresAreThoseOfWholeRows) {
  const TinyModel model = MakeTinyModel();
  for (const uint32_t top : {0u, 20u}) {
    const std::string expected = Score(model, 1, top, {.scan_logits = false, .tap = false});
    for (const int world : {1, 3})
      EXPECT_EQ(Score(model, world, top, {.tap = false}), expected) << world << " ranks, " << top;
  }
}

uint64_t BytesOfScores(const TinyModel& model, uint32_t tokens, uint32_t top, bool scan) {
  const DeviceRanks ranks(model, 1, {.scan_logits = scan, .tap = false});
  StepPlan plan = ranks->NextPlan();
  AddSequence(plan, 0, 1, Prompt(tokens + 1, 1));
  plan.mutable_new_sequences(0)->mutable_sampling()->set_top_logprobs(top);
  AddRow(plan, 0, 1, 0, tokens, internal::ROW_SCORE);
  const uint64_t before = fake::BytesToHost();
  CHECK_OK(ranks->Run(plan).status());
  return fake::BytesToHost() - before;
}

TEST(DeviceLogits, FewBytesOfAScoredTokenComeToTheHost) {
  const TinyModel model = MakeTinyModel();
  constexpr uint64_t kScored = 20;
  // Beside them a byte a token that says whether sums were finite.
  EXPECT_EQ(BytesOfScores(model, kScored, 3, /*scan=*/false),
            kScored * (1 + TinyModelOptions().vocab * sizeof(float)));
  for (const uint32_t top : {0u, 3u}) {
    EXPECT_EQ(BytesOfScores(model, kScored, top, /*scan=*/true),
              kScored * (1 + sizeof(LogitScan) + top * sizeof(uint64_t) + sizeof(float) +
                         sizeof(LogitSums)));
  }
}

// One step whose row is asked for in the sampler; the device is lost after so many pieces of work.
absl::Status RunUntilLost(const TinyModel& model, int works) {
  const DeviceRanks ranks(model, 1, {.use_graphs = false, .tap = false});
  StepPlan plan = ranks->NextPlan();
  AddSequence(plan, 0, 1, Prompt(5, 1));
  internal::SamplingParams& params = *plan.mutable_new_sequences(0)->mutable_sampling();
  params.set_temperature(50);
  params.set_top_p(0.9f);
  AddRow(plan, 0, 1, 0, 5, internal::ROW_SAMPLE);
  fake::BreakDevice(0, cudaErrorIllegalAddress, works);
  return ranks->Run(plan).status();
}

TEST(DeviceLogits, ALostDeviceIsSaidWhileTheSamplerAsks) {
  const TinyModel model = MakeTinyModel();
  int failing = 0, enough = 2000;
  ASSERT_TRUE(RunUntilLost(model, enough).ok());
  while (enough - failing > 1) {
    const int works = (failing + enough) / 2;
    (RunUntilLost(model, works).ok() ? enough : failing) = works;
  }
  // The last pieces are the row's copy, before it two of the sums, and what they copy there and
  // back.
  for (int works = enough - 6; works < enough; ++works) {
    const absl::Status status = RunUntilLost(model, works);
    EXPECT_TRUE(IsDeviceLost(status)) << works << " of " << enough << ": " << status;
  }
}

}  // namespace
}  // namespace bitshard
