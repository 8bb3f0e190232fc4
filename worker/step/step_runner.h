// One rank's part in the step protocol: a bound graph, its weights, its KV cache and its slots.
// Bind once, then run plans in order. What computes the graph is below GraphExecutor.
//
// Owned by the step thread; only Abort (of the collective), `progress()` and `Kernels` may be
// called from elsewhere. Nothing is allocated, looked up by name or chosen inside Run.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "kernels/base/cpu_features.h"
#include "kernels/base/thread_pool.h"
#include "proto/graph.pb.h"
#include "proto/plan.pb.h"
#include "proto/worker.pb.h"
#include "worker/collective/collective.h"

namespace bitshard {

class GraphExecutor;  // worker/step/graph_executor.h
class KernelOrder;    // kernels/registry/kernel_probe.h
class LoadedWeights;  // worker/load/loader.h

// Where the time of steps goes, for metrics and benchmarks.
struct StepProfile {
  std::vector<std::string> kinds;  // of each op; filled at bind
  std::vector<int64_t> op_ns;      // so far, of each op
};

struct StepProgress {
  std::atomic<uint64_t> step{0};  // last step begun
  std::atomic<uint64_t> op{0};    // node index inside it; see Op()
  std::atomic<bool> busy{false};
  // Where a device writes `op` itself; lives as long as what runs there. Null: nowhere.
  std::atomic<const uint64_t*> device_op{nullptr};
  std::atomic<uint64_t> launched_ahead{0};  // steps, before their turn came

  uint64_t Op() const {
    const uint64_t* const word = device_op.load(std::memory_order_acquire);
    return word == nullptr ? op.load(std::memory_order_relaxed)
                           : __atomic_load_n(word, __ATOMIC_RELAXED);
  }
};

// Shared: a queue may drop the plan while the runner still looks at it.
using NextPlanFn = absl::FunctionRef<std::shared_ptr<const internal::StepPlan>()>;

class StepRunner {
 public:
  // More are never reported, whatever the memory: 2^28 tokens.
  static constexpr uint64_t kMaxCacheBlocks = uint64_t{1} << 24;

  struct Options {
    internal::NumericsOptions numerics;
    Isa isa = BestIsa();  // forced by tests, also different ones on the ranks of a group
    const KernelOrder* kernel_order = nullptr;  // as the probe found it; outlives the runner
    ThreadPool* pool = nullptr;                 // outlives the runner
    // Most that WorkspaceBytes() may become: what memory is left beside the weights.
    uint64_t max_workspace_bytes = std::numeric_limits<uint64_t>::max();
    // For tests and the harness: called on the step thread with this rank's logits of one output
    // position. [local vocabulary]; vocab_begin is in the graph's lm_head node.
    std::function<void(uint32_t slot, uint32_t position, absl::Span<const float> logits)>
        logits_tap;
    StepProfile* profile = nullptr;  // outlives the runner
    bool fuse = true;                // false: every node an op of its own; the bits are the same
  };

  // On the CPU. Chooses kernels and buffers, checks every node and shape. UNIMPLEMENTED names a
  // node kind it does not know, RESOURCE_EXHAUSTED says how much memory the buffers need.
  static absl::StatusOr<std::unique_ptr<StepRunner>> Bind(
      const internal::RankPlan& plan, std::shared_ptr<const LoadedWeights> weights,
      const Options& options);
  // Over whatever computes the plan's graph. REQUIRES: CheckStepNumerics(plan, options.numerics).
  static std::unique_ptr<StepRunner> Over(const internal::RankPlan& plan,
                                          std::unique_ptr<GraphExecutor> executor,
                                          const Options& options);
  virtual ~StepRunner() = default;

  // A new epoch: takes the communicator, allocates a cache of `blocks` blocks, empties all slots,
  // expects step 1. The communicator stays until EndEpoch, also after an error: another thread may
  // be about to abort it.
  virtual absl::Status StartEpoch(uint64_t term, uint64_t epoch,
                                  std::unique_ptr<Collective> collective, uint32_t blocks) = 0;

  // Runs plan.step == last + 1; a duplicate of an earlier step returns nullptr (ignored), a gap or
  // a foreign term / epoch is FAILED_PRECONDITION, a malformed plan INVALID_ARGUMENT, a lost peer
  // UNAVAILABLE. After an error the epoch is over. In every step the ranks compare (epoch, step,
  // plan hash, last-token hash) before results leave.
  //
  // `next`: the plan that will be run next (the same object), null as long as nobody knows. While a
  // device computes it is asked for, until there is one; that is checked and spread out meanwhile,
  // and launched as soon as the tokens of this one are there and compared. Results do not depend on
  // it.
  virtual absl::StatusOr<std::unique_ptr<internal::StepResult>> Run(const internal::StepPlan& plan,
                                                                    NextPlanFn next) = 0;
  absl::StatusOr<std::unique_ptr<internal::StepResult>> Run(const internal::StepPlan& plan) {
    return Run(plan, [] { return nullptr; });
  }

  // Takes the host's memory for a piece of the cache that plans will want next, a few milliseconds'
  // worth; false when there is enough ahead of them. On the step thread, between plans.
  virtual bool TakeCacheAhead() { return false; }

  // Drops cache, slots and communicator; weights stay. An error is a device that is lost, with
  // which the process cannot go on.
  virtual absl::Status EndEpoch() = 0;

  virtual const StepProgress& progress() const = 0;
  virtual Collective* collective() = 0;  // of the running epoch, for Abort; null between epochs
  // One a distinct choice, in the order of their first nodes.
  virtual std::vector<internal::KernelChoice> Kernels() const = 0;
  virtual uint64_t CacheBytesPerBlock()
      const = 0;                                // all layers; 0 on a rank without attention heads
  virtual uint64_t WorkspaceBytes() const = 0;  // buffers allocated at bind
  // As GraphExecutor::deterministic.
  virtual bool deterministic() const { return true; }
};

}  // namespace bitshard
