// Where the time of steps on a device goes, for StepProfile.
//
// A captured graph is one piece of work: "device" is everything from a step's arrays to the logits
// on the host, "sample" what the host then does. By ops ("device linear+linear+linear", ... "device
// lm_head", "sample") only where every step runs launch by launch, with an event behind each op:
// slower than a graph, and the time between launches counts to the op that was waited for.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"

#include "kernels/tensor/device.h"
#include "proto/graph.pb.h"
#include "worker/ops/fusion.h"
#include "worker/step/step_runner.h"

namespace bitshard {

class DeviceProfile {
 public:
  // Nothing is noted.
  DeviceProfile() = default;

  // `device` and `profile` outlive it; profile null: nothing is noted. `groups`: up to lm_head.
  absl::Status Bind(Device& device, const internal::ModelGraph& graph,
                    const std::vector<NodeGroup>& groups, bool by_ops, StepProfile* profile);
  bool by_ops() const { return !passed_.empty(); }

  void BeginStep();
  // What is enqueued from here on is of op `op`, in the order of the groups; behind them are
  // lm_head and, with groups.size() + 1, the end. Also in work that is not of a step.
  absl::Status BeginOp(size_t op, DeviceStream& stream);
  // The stream has passed all that.
  absl::Status EndDevice();
  void EndSampling();

 private:
  using Clock = std::chrono::steady_clock;
  int64_t Lap();  // nanoseconds since the last one

  Device* device_ = nullptr;
  StepProfile* profile_ = nullptr;
  std::vector<std::unique_ptr<DeviceEvent>> passed_;  // [ops + 1]
  Clock::time_point last_;
};

}  // namespace bitshard
