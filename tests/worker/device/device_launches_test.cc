// What a step is for the stream: which kernels, in which order, and that each one that reads
// weights may start while the kernel before it ends.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/worker/device/device_ranks.h"

namespace bitshard {
namespace {

// "LinearTiles" of "(LinearTilesKernel<Weights, 1>)".
std::string ShortName(const std::string& what) {
  const size_t begin = what.rfind('(') == std::string::npos ? 0 : what.rfind('(') + 1;
  return what.substr(begin, what.find("Kernel") - begin);
}

bool ReadsWeights(const fake::RanWork& work) {
  return work.what.find("Linear") != std::string::npos;
}

std::string Text(const std::vector<fake::RanWork>& works) {
  std::string text;
  for (const fake::RanWork& work : works)
    text += ShortName(work.what) + (work.early ? " early\n" : "\n");
  return text;
}

// One token behind a prompt, by a graph.
std::vector<fake::RanWork> DecodeStep(const std::string& format, const NumericsOptions& numerics) {
  TinyModelOptions options;
  options.format = format;
  const TinyModel model = MakeTinyModel(options);
  const DeviceRanks ranks(model, 1, {.numerics = numerics, .tap = false});
  StepPlan prompt = ranks->NextPlan();
  AddSequence(prompt, 0, 1, Prompt(3, 1));
  AddRow(prompt, 0, 1, 0, 3, internal::ROW_SAMPLE);
  CHECK_OK(ranks->Run(prompt).status());
  StepPlan decode = ranks->NextPlan();
  AddRow(decode, 0, 1, 3, 1, internal::ROW_SAMPLE, 1);
  fake::StartRecord();
  CHECK_OK(ranks->Run(decode).status());
  return fake::EndRecord();
}

void ExpectEarlyMatrices(const std::vector<fake::RanWork>& works) {
  size_t matrices = 0;
  for (size_t i = 1; i < works.size(); ++i) {
    if (!ReadsWeights(works[i])) continue;
    ++matrices;
    EXPECT_TRUE(works[i].early) << i << " of\n" << Text(works);
    EXPECT_TRUE(works[i - 1].early) << i - 1 << " of\n" << Text(works);
  }
  EXPECT_EQ(matrices, 4 * TinyModelOptions().layers + 1);
}

TEST(DeviceLaunches, OfALayerLetEachMatrixStartEarly) {
  const std::vector<fake::RanWork> works = DecodeStep("q4_1", DeviceNumerics());
  ExpectEarlyMatrices(works);
  const auto layer = std::find_if(works.begin(), works.end(), &ReadsWeights);
  ASSERT_GT(works.end() - layer, 10) << Text(works);
  std::vector<std::string> names;
  for (auto work = layer; work != layer + 10; ++work) names.push_back(ShortName(work->what));
  EXPECT_EQ(names, (std::vector<std::string>{
                       "LinearTiles", "RotateAppend", "Attend", "PrepareSegments", "LinearTiles",
                       "SumNorm", "LinearTiles", "PrepareSegments", "LinearTiles", "SumNorm"}))
      << Text(works);
  // Angles once for all layers.
  const auto is_angles = [](const fake::RanWork& work) { return ShortName(work.what) == "Angles"; };
  EXPECT_EQ(std::count_if(works.begin(), works.end(), is_angles), 1) << Text(works);
  EXPECT_LT(std::find_if(works.begin(), works.end(), is_angles), layer) << Text(works);
}

TEST(DeviceLaunches, OfOtherNumericsLetEachMatrixStartEarly) {
  ExpectEarlyMatrices(DecodeStep("q4_1", DeviceNumerics(NumericsOptions::ACTIVATIONS_A8)));
  ExpectEarlyMatrices(DecodeStep("q4_1", FloatSums()));
  ExpectEarlyMatrices(DecodeStep("bf16", DeviceNumerics()));
}

// Poison counts lie where the step before left its own. A token whose embedding is no number
// poisons its sequence, in every sum, and nothing of a later step.
TEST(DeviceLaunches, PoisonOfAStepIsGoneInTheNext) {
  constexpr uint32_t kPoisoned = 150;
  TinyModelOptions options;
  options.format = "bf16";
  const TinyModel model = MakeTinyModel(options);
  PoisonEmbedding(model, options, kPoisoned);
  for (const int world : {1, 2}) {
    const DeviceRanks ranks(model, world, {});
    std::vector<std::vector<float>> logits;
    for (const bool poisoned : {false, true, false}) {
      StepPlan plan = ranks->NextPlan();
      const uint32_t slot = static_cast<uint32_t>(logits.size());
      std::vector<uint32_t> prompt = Prompt(4, 1);
      if (poisoned) prompt[2] = kPoisoned;
      AddSequence(plan, slot, 1, prompt);
      AddRow(plan, slot, 1, 0, 4, internal::ROW_SAMPLE);
      const auto result = ranks->Run(plan);
      ASSERT_TRUE(result.ok()) << result.status();
      ASSERT_EQ(result->outputs_size(), 1);
      EXPECT_EQ(result->outputs(0).flags(), poisoned ? uint32_t{internal::OUTPUT_NON_FINITE} : 0u)
          << world << " ranks, step " << logits.size();
      logits.push_back(ranks->LogitsAt(slot, 3));
    }
    EXPECT_EQ(logits[2], logits[0]);
  }
}

}  // namespace
}  // namespace bitshard
