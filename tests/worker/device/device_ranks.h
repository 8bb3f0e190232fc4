// Ranks as threads of a test, each with an emulated GPU of its own: the real device_cuda.cc,
// kernels, nccl.cc and executor on fakes of the CUDA runtime and of NCCL.
#pragma once

#include <cmath>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/tensor/device.h"
#include "tests/support/fake_cudart.h"
#include "tests/support/file_rendezvous.h"
#include "tests/worker/step/step_group.h"
#include "worker/collective/device_collective.h"
#include "worker/device/device_executor.h"
#include "worker/device/device_weights.h"

namespace bitshard {

inline NumericsOptions DeviceNumerics(
    NumericsOptions::Activations activations = NumericsOptions::ACTIVATIONS_A16) {
  NumericsOptions numerics = Numerics(activations);
  numerics.set_max_slots(4);
  return numerics;
}

inline NumericsOptions FloatSums() {
  NumericsOptions numerics = DeviceNumerics();
  numerics.set_nondeterministic(true);
  return numerics;
}

inline std::unique_ptr<StepRunner> BindOn(Device& gpu, const internal::RankPlan& plan,
                                          const StepRunner::Options& options, DeviceOptions on) {
  on.device = &gpu;
  auto sink =
      MakeDeviceWeightSink(gpu, static_cast<size_t>(plan.graph().weights_size()), *options.pool);
  CHECK_OK(sink.status());
  auto weights = LoadWeights(plan, *options.pool, nullptr, UINT64_MAX, sink->get());
  CHECK_OK(weights.status());
  auto runner = BindRunnerOnDevice(plan, *std::move(weights), on, options);
  CHECK_OK(runner.status());
  return *std::move(runner);
}

inline std::unique_ptr<Collective> JoinOn(Device& gpu, int rank, int world, const std::string& id) {
  DeviceGroup meeting;
  meeting.id = id;
  meeting.epoch = 1;
  meeting.rank = rank;
  meeting.world = world;
  meeting.tell = FileRendezvous(id, rank, world);
  meeting.device = &gpu;
  meeting.operation_timeout = absl::Seconds(60);
  auto joined = JoinDeviceCollective("nccl", meeting, absl::Seconds(60));
  CHECK_OK(joined.status());
  return *std::move(joined);
}

class DeviceRanks {
 public:
  struct Options {
    NumericsOptions numerics = DeviceNumerics();
    bool use_graphs = true;
    bool scan_logits = true;
    bool tap = true;  // LogitsAt: every row of logits comes to the host
    bool profile_ops = false;
    absl::Duration end_patience = DeviceOptions().end_patience;
    std::function<void(internal::ModelGraph& graph)> change_graph = nullptr;  // each rank's
  };

  DeviceRanks(const TinyModel& model, int world, const Options& options)
      : machine_({.devices = world}) {
    for (int rank = 0; rank < world; ++rank) {
      auto device = OpenDevice("cuda", rank);
      CHECK_OK(device.status());
      devices_.push_back(*std::move(device));
    }
    profiles_.resize(devices_.size());
    group_ = std::make_unique<Group>(model, world, options.numerics, options.tap, /*fuse=*/true,
                                     Maker(options));
  }

  Group& operator*() const { return *group_; }
  Group* operator->() const { return group_.get(); }
  Device& device(int rank) const { return *devices_[static_cast<size_t>(rank)]; }
  const StepProfile& profile(int rank) const { return profiles_[static_cast<size_t>(rank)]; }

 private:
  RankMaker Maker(const Options& asked) {
    RankMaker maker;
    maker.bind = [this, asked](int rank, const internal::RankPlan& plan,
                               StepRunner::Options options) {
      options.profile = &profiles_[static_cast<size_t>(rank)];
      DeviceOptions on;
      on.use_graphs = asked.use_graphs;
      on.profile_ops = asked.profile_ops;
      on.scan_logits = asked.scan_logits;
      on.end_patience = asked.end_patience;
      if (asked.change_graph == nullptr) return BindOn(device(rank), plan, options, on);
      internal::RankPlan changed = plan;
      asked.change_graph(*changed.mutable_graph());
      return BindOn(device(rank), changed, options, on);
    };
    maker.join = [this](int rank, int world, const std::string& id) {
      return JoinOn(device(rank), rank, world, id);
    };
    return maker;
  }

  const fake::ScopedCudaMachine machine_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<StepProfile> profiles_;
  std::unique_ptr<Group> group_;
};

// Makes the token's embedding no numbers. REQUIRES: a bf16 model.
inline void PoisonEmbedding(const TinyModel& model, const TinyModelOptions& options,
                            uint32_t token) {
  const TensorPart& part = model.index.Find("embed.weight")->parts[0];
  std::fstream file(model.path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(part.offset + token * options.hidden * 2));
  const uint16_t nan = 0x7fc0;
  file.write(reinterpret_cast<const char*>(&nan), sizeof(nan));
  file.close();
  CHECK(file.good());
}

inline constexpr uint32_t kTokens = 21;

// Logits of every position of a prompt, by scoring it in one step.
inline std::vector<std::vector<float>> ScoreAll(Group& group) {
  StepPlan plan = group.NextPlan();
  AddSequence(plan, 0, 1, Prompt(kTokens, 3));
  AddRow(plan, 0, 1, 0, kTokens, internal::ROW_SCORE | internal::ROW_SAMPLE);
  CHECK_OK(group.Run(plan).status());
  std::vector<std::vector<float>> logits;
  for (uint32_t position = 0; position < kTokens; ++position)
    logits.push_back(group.LogitsAt(0, position));
  return logits;
}

// Of the difference, relative to `truth`, as lengths of vectors.
inline double Error(const std::vector<float>& got, const std::vector<float>& truth) {
  CHECK_EQ(got.size(), truth.size());
  double difference = 0, length = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    difference += std::pow(static_cast<double>(got[i]) - truth[i], 2);
    length += std::pow(static_cast<double>(truth[i]), 2);
  }
  return std::sqrt(difference / length);
}

// fp16 rounds an activation by 2^-12 of itself on the average, so a product of random matrix and
// activations is off by about that. Between a token and its logits are four such products a layer
// and one; at the worst they add up. Measured: 4e-4 to 7e-4 with two layers.
inline double Bound(uint32_t layers) { return (4 * layers + 1) * 0x1p-12; }

}  // namespace bitshard
