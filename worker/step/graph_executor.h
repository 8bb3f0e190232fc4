// What computes a rank's graph in a step: the CPU (cpu_executor.h) or an accelerator
// (worker/device/device_executor.h). Turn order, checks of plans, slots, agreement and results are
// the runner's, the same over all of them.
//
// Owned by the runner and used by the step thread. A step allocates nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

#include "proto/worker.pb.h"
#include "worker/collective/collective.h"
#include "worker/ops/op.h"
#include "worker/step/step_runner.h"

namespace bitshard {

class GraphExecutor {
 public:
  virtual ~GraphExecutor() = default;

  // An empty cache of so many blocks, and all that must be ready before the first step. Other ranks
  // do the same at the same time. `collective` stays until EndEpoch, also after an error.
  virtual absl::Status StartEpoch(Collective& collective, uint32_t blocks) = 0;
  // Drops the cache, and the communicator where its turn is. Null: no epoch was running. An error
  // is a device that is lost; others were said when they came, or are of work that was cut off.
  virtual absl::Status EndEpoch(std::unique_ptr<Collective> collective) = 0;

  // All nodes, for a step that has tokens, in two halves: the samples are there after the second
  // one, for which `step` is the same. Errors as Op::Run. The host computes it all in the first;
  // a device has been given its work then, and `meanwhile` is called again and again until it is
  // done.
  virtual absl::Status Launch(StepState& step, StepProgress& progress) = 0;
  virtual absl::Status Collect(StepState& step, absl::FunctionRef<void()> meanwhile) = 0;
  // In `meanwhile`: the step that will be launched next, its tokens not all known yet.
  virtual void Prepare(const StepState& /*next*/) {}
  // [tokens, hidden size] on the host, of a step that reads them (StepState::reads_hidden).
  virtual const float* final_hidden() const = 0;

  // Takes the host's memory for a piece of the cache beyond the blocks below `used_blocks`; false
  // when there is enough.
  virtual bool TakeCacheAhead(uint32_t used_blocks) = 0;

  // One a distinct choice, in the order of their first nodes.
  virtual std::vector<internal::KernelChoice> Kernels() const = 0;
  // All layers; 0 on a rank without attention heads.
  virtual uint64_t CacheBytesPerBlock() const = 0;
  // Buffers made at bind, in the memory that also holds weights and cache.
  virtual uint64_t WorkspaceBytes() const = 0;
  // That memory is the host's, where the runner's slots are.
  virtual bool on_host() const = 0;
  // Its bits do not depend on batch, chunk and ranks, whatever the coordinator allows.
  virtual bool deterministic() const { return true; }
};

}  // namespace bitshard
