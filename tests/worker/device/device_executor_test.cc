// Steps on emulated GPUs: the whole host path of the CUDA backend, from the loader to the sampler,
// against the CPU's f32.
#include "worker/device/device_executor.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/worker/device/device_ranks.h"
#include "worker/ops/fusion.h"

namespace bitshard {
namespace {

class Formats : public testing::TestWithParam<std::string> {};

TEST_P(Formats, LogitsAreThoseOfTheCpuWithinTheRoundingOfActivations) {
  TinyModelOptions options;
  options.format = GetParam();
  const TinyModel model = MakeTinyModel(options);
  Group cpu(model, 1, Numerics(NumericsOptions::ACTIVATIONS_F32), /*tap=*/true);
  const DeviceRanks gpu(model, 1, {});
  const auto truth = ScoreAll(cpu), got = ScoreAll(*gpu);
  double worst = 0;
  for (uint32_t position = 0; position < kTokens; ++position) {
    ASSERT_EQ(got[position].size(), options.vocab) << position;
    worst = std::max(worst, Error(got[position], truth[position]));
  }
  EXPECT_LT(worst, Bound(options.layers));
  // Half precision somewhere, or these would be the CPU's.
  if (GetParam() != "f32") {
    EXPECT_GT(worst, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Formats,
                         testing::Values("f32", "f16", "bf16", "q8_0", "q4_1",
                                         "ct_int5 group=32 scale=bf16 asym dense",
                                         "ct_int3 group=32 scale=bf16 sym dense"));

// The matrices give the CPU's bits (tests/kernels/cuda/linear_a8_test.cc), the norm another order
// of summation: a last digit may move an activation to its neighbour among the int8, and that
// others after it. So the logits need not be the CPU's, but they lose as much.
TEST(DeviceExecutor, A8LosesWhatItLosesOnTheCpu) {
  TinyModelOptions options;
  options.format = "q4_1";
  const TinyModel model = MakeTinyModel(options);
  Group cpu(model, 1, Numerics(NumericsOptions::ACTIVATIONS_A8), /*tap=*/true);
  Group f32(model, 1, Numerics(NumericsOptions::ACTIVATIONS_F32), /*tap=*/true);
  const DeviceRanks gpu(model, 1, {.numerics = DeviceNumerics(NumericsOptions::ACTIVATIONS_A8)});
  const auto on_cpu = ScoreAll(cpu), exact = ScoreAll(f32), on_gpu = ScoreAll(*gpu);
  double cpu_loss = 0, gpu_loss = 0;
  for (uint32_t position = 0; position < kTokens; ++position) {
    cpu_loss += Error(on_cpu[position], exact[position]);
    gpu_loss += Error(on_gpu[position], exact[position]);
  }
  EXPECT_NEAR(gpu_loss / cpu_loss, 1, 0.5);
  for (const internal::KernelChoice& kernel : gpu->runner(0).Kernels()) {
    if (kernel.kernel().find("linear") == std::string::npos) continue;
    EXPECT_NE(kernel.kernel().find("_a8"), std::string::npos) << kernel.ShortDebugString();
    EXPECT_EQ(kernel.activations(), "a8");
  }
}

class DeviceBits : public testing::Test {
 protected:
  static TinyModel Model(const std::string& format) {
    TinyModelOptions options;
    options.format = format;
    return MakeTinyModel(options);
  }
};

TEST_F(DeviceBits, AreTheSameOverRanksChunksAndGraphs) {
  for (const char* format : {"q4_1", "ct_int5 group=32 scale=bf16 asym dense"}) {
    const TinyModel model = Model(format);
    std::string expected;
    {
      const DeviceRanks one(model, 1, {.use_graphs = false});
      expected = RunTwoSequences(*one, 64);
    }
    EXPECT_EQ(RunTwoSequences(*DeviceRanks(model, 1, {}), 5), expected) << format;
    EXPECT_EQ(RunTwoSequences(*DeviceRanks(model, 2, {}), 7), expected) << format;
    EXPECT_EQ(RunTwoSequences(*DeviceRanks(model, 3, {}), 64), expected) << format;
  }
}

TEST_F(DeviceBits, OfA8AreTheSameOverRanksChunksAndGraphs) {
  const NumericsOptions a8 = DeviceNumerics(NumericsOptions::ACTIVATIONS_A8);
  for (const char* format : {"q4_1", "ct_int5 group=32 scale=bf16 asym dense"}) {
    const TinyModel model = Model(format);
    std::string expected;
    {
      const DeviceRanks one(model, 1, {.numerics = a8, .use_graphs = false});
      expected = RunTwoSequences(*one, 64);
    }
    EXPECT_EQ(RunTwoSequences(*DeviceRanks(model, 1, {.numerics = a8}), 5), expected) << format;
    EXPECT_EQ(RunTwoSequences(*DeviceRanks(model, 2, {.numerics = a8}), 7), expected) << format;
    EXPECT_EQ(RunTwoSequences(*DeviceRanks(model, 3, {.numerics = a8}), 64), expected) << format;
    EXPECT_NE(RunTwoSequences(*DeviceRanks(model, 1, {}), 64), expected) << format;
  }
}

TEST_F(DeviceBits, AreTheSameInASecondEpoch) {
  const TinyModel model = Model("q4_1");
  const DeviceRanks ranks(model, 2, {});
  const std::string first = RunTwoSequences(*ranks, 64);
  ranks->OnAllRanks([&](int rank) { CHECK_OK(ranks->runner(rank).EndEpoch()); });
  ranks->StartEpoch(2);
  EXPECT_EQ(RunTwoSequences(*ranks, 64), first);
}

TEST_F(DeviceBits, OfARowDoNotDependOnTheOthers) {
  const TinyModel model = Model("q4_1");
  const DeviceRanks ranks(model, 1, {});
  StepPlan alone = ranks->NextPlan();
  AddSequence(alone, 0, 1, Prompt(9, 4));
  AddRow(alone, 0, 1, 0, 9, internal::ROW_SAMPLE);
  ASSERT_TRUE(ranks->Run(alone).ok());
  const std::vector<float> expected = ranks->LogitsAt(0, 8);
  StepPlan among = ranks->NextPlan();
  AddSequence(among, 1, 2, Prompt(30, 5));
  AddSequence(among, 2, 2, Prompt(9, 4));
  AddSequence(among, 3, 2, Prompt(1, 6));
  AddRow(among, 1, 2, 0, 30, internal::ROW_SAMPLE);
  AddRow(among, 2, 2, 0, 9, internal::ROW_SAMPLE);
  AddRow(among, 3, 2, 0, 1, internal::ROW_SAMPLE);
  ASSERT_TRUE(ranks->Run(among).ok());
  EXPECT_EQ(ranks->LogitsAt(2, 8), expected);
}

TEST(DeviceExecutor, PoolsTheHiddenStatesOfTheCpu) {
  const TinyModel model = MakeTinyModel();
  Group cpu(model, 1, Numerics());
  const DeviceRanks gpu(model, 2, {});
  std::vector<float> vectors[2];
  for (Group* group : {&cpu, &*gpu}) {
    StepPlan plan = group->NextPlan();
    AddSequence(plan, 0, 1, Prompt(10, 1));
    plan.mutable_new_sequences(0)->set_pooling(internal::POOLING_MEAN);
    AddRow(plan, 0, 1, 0, 10, internal::ROW_POOL);
    const auto result = group->Run(plan);
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->embeddings_size(), 1);
    const auto& values = result->embeddings(0).values();
    vectors[group != &cpu].assign(values.begin(), values.end());
  }
  EXPECT_LT(Error(vectors[1], vectors[0]), Bound(2));
}

// Sums beyond what int64 takes, or f32: every sequence is poisoned, none gets a token.
class TooLarge : public testing::TestWithParam<bool> {};

TEST_P(TooLarge, SumsAreToldOf) {
  const bool deterministic = GetParam();
  const TinyModel model = MakeTinyModel();
  const TensorPart& part = model.index.Find("layers.0.o.weight")->parts[0];
  std::fstream file(model.path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(part.offset));
  const std::vector<float> huge(part.bytes / sizeof(float),
                                deterministic ? 1e20f : std::numeric_limits<float>::infinity());
  file.write(reinterpret_cast<const char*>(huge.data()), static_cast<std::streamsize>(part.bytes));
  file.close();
  ASSERT_TRUE(file.good());
  const DeviceRanks ranks(model, 2, {.numerics = deterministic ? DeviceNumerics() : FloatSums()});
  StepPlan plan = ranks->NextPlan();
  AddSequence(plan, 0, 1, Prompt(3, 1));
  AddRow(plan, 0, 1, 0, 3, internal::ROW_SAMPLE);
  const auto result = ranks->Run(plan);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->outputs_size(), 1);
  EXPECT_EQ(result->outputs(0).flags(), uint32_t{internal::OUTPUT_NON_FINITE});
  EXPECT_EQ(result->outputs(0).top_size(), 0);
}

INSTANTIATE_TEST_SUITE_P(Int64AndF32, TooLarge, testing::Bool());

// Not even for a moment: no memory, stream, event or graph. What the first steps of a service ask
// for: prefill and decode, scores, log-probabilities, top-p, changed logits.
TEST(DeviceExecutor, StepsMakeNothingNew) {
  const TinyModel model = MakeTinyModel();
  for (const int world : {1, 2}) {
    const DeviceRanks ranks(model, world, {.tap = false});
    const uint64_t before = fake::ObjectsMade();
    for (uint32_t step = 0; step < 4; ++step) {
      StepPlan plan = ranks->NextPlan();
      for (uint32_t slot = 0; slot < 3; ++slot) {
        const uint32_t known = 15 + slot;
        const uint32_t wanted = internal::ROW_SAMPLE | (step == 0 ? internal::ROW_SCORE : 0);
        AddRow(plan, slot, 1, step == 0 ? 0 : known + step - 1, step == 0 ? known : 1, wanted,
               step);
        if (step > 0) continue;
        AddSequence(plan, slot, 1, Prompt(known, slot));  // with log-probabilities
        internal::SamplingParams& params =
            *plan.mutable_new_sequences(static_cast<int>(slot))->mutable_sampling();
        if (slot == 1) params.set_top_p(0.9f);
        if (slot == 2) {
          params.set_frequency_penalty(0.5f);
          params.add_bias_tokens(7);
          params.add_biases(3);
        }
      }
      ASSERT_TRUE(ranks->Run(plan).ok());
      EXPECT_EQ(fake::ObjectsMade(), before) << world << " ranks, step " << step;
    }
  }
}

// Steps until one fails, on all ranks; the status of `rank`. The others get to know of it from the
// coordinator.
absl::Status RunUntilItFails(Group& group, int rank) {
  StepPlan plan = group.NextPlan();
  AddSequence(plan, 0, 1, Prompt(20, 1));
  AddRow(plan, 0, 1, 0, 20, internal::ROW_SAMPLE | internal::ROW_SCORE);
  absl::Status status;
  for (uint32_t at = 20; at < 40; ++at) {
    group.OnAllRanks([&](int r) {
      const absl::Status ran = group.runner(r).Run(plan).status();
      if (r != rank || ran.ok()) return;
      status = ran;
      for (int other = 0; other < group.world(); ++other) group.runner(other).collective()->Abort();
    });
    if (!status.ok()) return status;
    plan = group.NextPlan();
    AddRow(plan, 0, 1, at, 1, internal::ROW_SAMPLE, at - 19);
  }
  return absl::OkStatus();
}

TEST(DeviceExecutor, SaysThatTheDeviceIsLostWhereverThatShows) {
  const TinyModel model = MakeTinyModel();
  for (const int world : {1, 2}) {
    for (const int works : {0, 1, 2, 9, 30, 120, 300}) {
      const DeviceRanks ranks(model, world, {.use_graphs = works % 2 == 0});
      const int broken = world - 1;
      fake::BreakDevice(broken, cudaErrorIllegalAddress, works);
      const absl::Status status = RunUntilItFails(*ranks, broken);
      EXPECT_TRUE(IsDeviceLost(status)) << world << " ranks, after " << works << ": " << status;
      // The end of the epoch says so too, and the next one does not begin.
      if (world > 1) continue;
      StepRunner& runner = ranks->runner(0);
      const absl::Status ended = runner.EndEpoch();
      EXPECT_TRUE(IsDeviceLost(ended)) << ended;
      EXPECT_NE(ended.message().find("when an epoch ended"), std::string::npos) << ended;
      const absl::Status next =
          runner.StartEpoch(1, 2, MakeSoloDeviceCollective(&ranks.device(0)), kBlocks);
      EXPECT_TRUE(IsDeviceLost(next)) << next;
    }
  }
}

TEST(DeviceExecutor, SaysThatTheDeviceIsLostWhileAnEpochStarts) {
  const TinyModel model = MakeTinyModel();
  for (const int works : {0, 3, 50}) {
    const DeviceRanks ranks(model, 1, {});
    StepRunner& runner = ranks->runner(0);
    CHECK_OK(runner.EndEpoch());
    fake::BreakDevice(0, cudaErrorIllegalAddress, works);
    const absl::Status status =
        runner.StartEpoch(1, 2, MakeSoloDeviceCollective(&ranks.device(0)), kBlocks);
    EXPECT_TRUE(IsDeviceLost(status)) << works << ": " << status;
  }
  const DeviceRanks ranks(model, 1, {});
  StepRunner& runner = ranks->runner(0);
  CHECK_OK(runner.EndEpoch());
  fake::FailCall("cudaMalloc", cudaErrorIllegalAddress);
  const absl::Status status =
      runner.StartEpoch(1, 2, MakeSoloDeviceCollective(&ranks.device(0)), kBlocks);
  EXPECT_NE(status.message().find("KV cache of"), std::string::npos) << status;
  EXPECT_TRUE(IsDeviceLost(status)) << status;
}

// A peer may be gone and the kernel that waits for it never end, whatever was called off.
// With several ranks the communicator has memory on the device too, which must not be given back;
// the other ranks end their epoch.
TEST(DeviceExecutor, GivesADeviceUpThatWorksOnWhenAnEpochEnds) {
  for (const int world : {1, 2}) {
    const TinyModel model = MakeTinyModel();
    const DeviceRanks ranks(model, world, {.end_patience = absl::Milliseconds(50)});
    StepRunner& runner = ranks->runner(0);
    StepPlan plan = ranks->NextPlan();
    AddSequence(plan, 0, 1, Prompt(3, 1));
    AddRow(plan, 0, 1, 0, 3, internal::ROW_SAMPLE);
    fake::HoldDevice(0);
    std::vector<std::thread> steps;
    for (int rank = 0; rank < world; ++rank)
      steps.emplace_back([&, rank] { EXPECT_FALSE(ranks->runner(rank).Run(plan).ok()); });
    fake::AwaitHeldWork(0);
    for (int rank = 0; rank < world; ++rank) ranks->runner(rank).collective()->Abort();
    for (std::thread& step : steps) step.join();
    const absl::Status ended = runner.EndEpoch();
    EXPECT_TRUE(IsDeviceLost(ended)) << ended;
    EXPECT_NE(ended.message().find("when an epoch ended: the device still works 50ms after"),
              std::string::npos)
        << ended;
    for (int rank = 1; rank < world; ++rank) EXPECT_TRUE(ranks->runner(rank).EndEpoch().ok());
    fake::ResumeDevice(0);
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_TRUE(runner.EndEpoch().ok());  // and the cache goes
  }
}

TEST(DeviceExecutor, ErrorsOfNodesKeepThatTheDeviceIsLost) {
  const absl::Status status = NodeError(internal::Node(), DeviceLostError("gone"));
  EXPECT_TRUE(IsDeviceLost(status)) << status;
  EXPECT_FALSE(IsDeviceLost(NodeError(internal::Node(), absl::InternalError("no"))));
}

TEST(DeviceExecutor, SaysHowFarAStepHasCome) {
  const TinyModel model = MakeTinyModel();
  const DeviceRanks ranks(model, 1, {});
  StepPlan plan = ranks->NextPlan();
  AddSequence(plan, 0, 1, Prompt(3, 1));
  AddRow(plan, 0, 1, 0, 3, internal::ROW_SAMPLE);
  ASSERT_TRUE(ranks->Run(plan).ok());
  // Behind the last sum over the ranks, with the last norm, are lm_head and sample.
  EXPECT_EQ(ranks->runner(0).progress().Op(),
            static_cast<uint64_t>(CutTinyModel(model, 1)[0].graph().nodes_size()) - 2);
  EXPECT_TRUE(ranks->runner(0).EndEpoch().ok());
  EXPECT_EQ(ranks->runner(0).progress().Op(), 0u);
}

TEST(DeviceExecutor, MeasuresTheDevicesWorkAsOneAndTheSampling) {
  const TinyModel model = MakeTinyModel();
  const DeviceRanks ranks(model, 1, {});
  const StepProfile& profile = ranks.profile(0);
  EXPECT_EQ(profile.kinds, (std::vector<std::string>{"device", "sample"}));
  EXPECT_EQ(profile.op_ns, (std::vector<int64_t>{0, 0})) << "there was no step yet";
  RunTwoSequences(*ranks, 64);
  for (const int64_t ns : profile.op_ns) EXPECT_GT(ns, 0);
}

TEST(DeviceExecutor, MeasuresEachOpWhenAskedTo) {
  const TinyModel model = MakeTinyModel();
  std::string expected;
  {
    const DeviceRanks graphs(model, 2, {});
    expected = RunTwoSequences(*graphs, 64);
  }
  const DeviceRanks ranks(model, 2, {.profile_ops = true});
  EXPECT_EQ(RunTwoSequences(*ranks, 64), expected);
  for (int rank = 0; rank < 2; ++rank) {
    const StepProfile& profile = ranks.profile(rank);
    const auto count = [&](const char* kind) {
      return std::count(profile.kinds.begin(), profile.kinds.end(), kind);
    };
    const auto layers = static_cast<ptrdiff_t>(TinyModelOptions().layers);
    EXPECT_EQ(count("device linear+linear+linear"), layers);
    EXPECT_EQ(count("device rope+rope+attention"), layers);
    EXPECT_EQ(count("device all_reduce+rms_norm"), 1);
    EXPECT_EQ(count("device all_reduce+residual_add+rms_norm"), 2 * layers);
    EXPECT_EQ(profile.kinds.front(), "device embed");
    EXPECT_EQ(profile.kinds[profile.kinds.size() - 2], "device lm_head");
    EXPECT_EQ(profile.kinds.back(), "sample");
    ASSERT_EQ(profile.op_ns.size(), profile.kinds.size());
    for (size_t i = 0; i < profile.op_ns.size(); ++i)
      EXPECT_GT(profile.op_ns[i], 0) << profile.kinds[i];
  }
}

TEST(DeviceExecutor, TellsWhichKernelsItRuns) {
  TinyModelOptions options;
  options.format = "q4_1";
  const TinyModel model = MakeTinyModel(options);
  const DeviceRanks ranks(model, 1, {});
  const std::vector<internal::KernelChoice> kernels = ranks->runner(0).Kernels();
  uint32_t nodes = 0;
  for (const internal::KernelChoice& kernel : kernels) {
    EXPECT_FALSE(kernel.fallback()) << kernel.ShortDebugString();
    EXPECT_NE(kernel.kernel().find("cuda"), std::string::npos) << kernel.ShortDebugString();
    nodes += kernel.nodes();
  }
  EXPECT_EQ(nodes, 8 * options.layers + 1);  // linear nodes, attention, lm_head
}

TEST(DeviceExecutor, RefusesWhatOnlyTheCpuHas) {
  const TinyModel model = MakeTinyModel();
  const internal::RankPlan plan = CutTinyModel(model, 1)[0];
  const fake::ScopedCudaMachine machine({});
  auto device = OpenDevice("cuda", 0);
  ASSERT_TRUE(device.ok()) << device.status();
  ThreadPool pool(1);
  const size_t count = static_cast<size_t>(plan.graph().weights_size());
  auto sink = MakeDeviceWeightSink(**device, count, pool);
  ASSERT_TRUE(sink.ok()) << sink.status();
  auto weights = LoadWeights(plan, pool, nullptr, UINT64_MAX, sink->get());
  ASSERT_TRUE(weights.ok()) << weights.status();
  sink->reset();
  StepRunner::Options options;
  options.pool = &pool;
  options.numerics = Numerics(NumericsOptions::ACTIVATIONS_F32);
  const DeviceOptions on = {.device = device->get()};
  const absl::Status f32 = BindRunnerOnDevice(plan, *weights, on, options).status();
  EXPECT_EQ(f32.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(f32.message().find("--activations=a16"), std::string::npos) << f32;

  options.numerics = DeviceNumerics();
  options.max_workspace_bytes = 1000;
  const absl::Status small = BindRunnerOnDevice(plan, *weights, on, options).status();
  EXPECT_EQ(small.code(), absl::StatusCode::kResourceExhausted) << small;
  EXPECT_NE(small.message().find("1000 are left"), std::string::npos) << small;

  options.max_workspace_bytes = UINT64_MAX;
  for (const int skip : {0, 3, 5}) {  // buffers for all nodes, and of one
    fake::FailCall("cudaMalloc", cudaErrorIllegalAddress, skip);
    const absl::Status lost = BindRunnerOnDevice(plan, *weights, on, options).status();
    EXPECT_TRUE(IsDeviceLost(lost)) << skip << ": " << lost;
  }
  DeviceMemoryUse use;
  auto runner = BindRunnerOnDevice(plan, *weights, {.device = device->get(), .use = &use}, options);
  ASSERT_TRUE(runner.ok()) << runner.status();
  EXPECT_EQ(use.workspace_bytes, (*runner)->WorkspaceBytes());
  EXPECT_GT(use.pinned_bytes, 64 * TinyModelOptions().hidden * sizeof(float));
  const absl::Status host = (*runner)->StartEpoch(1, 1, MakeSoloCollective(), kBlocks);
  EXPECT_EQ(host.code(), absl::StatusCode::kInvalidArgument) << host;
  runner->reset();
  EXPECT_EQ(use.workspace_bytes, 0u);
  EXPECT_EQ(use.pinned_bytes, 0u);
}

}  // namespace
}  // namespace bitshard
