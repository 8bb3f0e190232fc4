// Ranks as threads of a test, each with an emulated GPU of its own: the real device_cuda.cc,
// kernels, nccl.cc and executor on fakes of the CUDA runtime and of NCCL.
#pragma once

#include <memory>
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

inline NumericsOptions DeviceNumerics() {
  NumericsOptions numerics = Numerics(NumericsOptions::ACTIVATIONS_A16);
  numerics.set_max_slots(4);
  return numerics;
}

class DeviceRanks {
 public:
  struct Options {
    NumericsOptions numerics = DeviceNumerics();
    bool use_graphs = true;
  };

  DeviceRanks(const TinyModel& model, int world, const Options& options)
      : machine_({.devices = world}) {
    for (int rank = 0; rank < world; ++rank) {
      auto device = OpenDevice("cuda", rank);
      CHECK_OK(device.status());
      devices_.push_back(*std::move(device));
    }
    group_ = std::make_unique<Group>(model, world, options.numerics, /*tap=*/true, /*fuse=*/true,
                                     Maker(options.use_graphs));
  }

  Group& operator*() const { return *group_; }
  Group* operator->() const { return group_.get(); }
  Device& device(int rank) const { return *devices_[static_cast<size_t>(rank)]; }

 private:
  RankMaker Maker(bool use_graphs) {
    RankMaker maker;
    maker.bind = [this, use_graphs](int rank, const internal::RankPlan& plan,
                                    const StepRunner::Options& options) {
      Device& gpu = device(rank);
      auto sink = MakeDeviceWeightSink(gpu, static_cast<size_t>(plan.graph().weights_size()),
                                       *options.pool);
      CHECK_OK(sink.status());
      auto weights = LoadWeights(plan, *options.pool, nullptr, UINT64_MAX, sink->get());
      CHECK_OK(weights.status());
      auto runner = BindRunnerOnDevice(plan, *std::move(weights),
                                       {.device = &gpu, .use_graphs = use_graphs}, options);
      CHECK_OK(runner.status());
      return *std::move(runner);
    };
    maker.join = [this](int rank, int world, const std::string& id) {
      DeviceGroup meeting;
      meeting.id = id;
      meeting.epoch = 1;
      meeting.rank = rank;
      meeting.world = world;
      meeting.tell = FileRendezvous(id, rank, world);
      meeting.device = &device(rank);
      meeting.operation_timeout = absl::Seconds(60);
      auto joined = JoinDeviceCollective("nccl", meeting, absl::Seconds(60));
      CHECK_OK(joined.status());
      return std::unique_ptr<Collective>(*std::move(joined));
    };
    return maker;
  }

  const fake::ScopedCudaMachine machine_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::unique_ptr<Group> group_;
};

}  // namespace bitshard
