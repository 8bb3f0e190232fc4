// A tensor-parallel group inside one test process: the real checkpoint reader, shard planner,
// loader, step runner and shm collective, one thread a rank in place of one process a rank. Nothing
// of the arithmetic is replaced.
//
// TestModel holds what does not depend on the numerics (plans and weights of every world size,
// loaded once); ThreadGroup is a StepExecutor over it, so that the real engine can drive it.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "coordinator/checkpoint/checkpoint.h"
#include "coordinator/engine/step_executor.h"
#include "coordinator/text/tokenizer.h"
#include "kernels/base/cpu_features.h"
#include "kernels/base/thread_pool.h"
#include "proto/graph.pb.h"
#include "proto/worker.pb.h"
#include "worker/collective/collective.h"
#include "worker/load/loader.h"
#include "worker/step/step_runner.h"

namespace bitshard {

// Not thread-safe. Weights stay loaded until it is destroyed.
class TestModel {
 public:
  struct Rank {
    internal::RankPlan plan;
    std::shared_ptr<const LoadedWeights> weights;
  };

  // `tokenizer_of`: the folder whose tokenizer a checkpoint without one uses (quantized goldens:
  // their base model's); without it such a checkpoint has none.
  static absl::StatusOr<std::unique_ptr<TestModel>> Open(const std::string& path,
                                                         const std::string& tokenizer_of = "");

  // Plans and weights of `world` ranks with the given shares (empty: equal).
  absl::StatusOr<const std::vector<Rank>*> Ranks(int world, std::vector<double> shares = {});

  const Checkpoint& checkpoint() const { return checkpoint_; }
  // REQUIRES: the checkpoint has one.
  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  explicit TestModel(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}

  Checkpoint checkpoint_;
  std::unique_ptr<Tokenizer> tokenizer_;
  internal::ModelGraph graph_;
  std::map<std::vector<double>, std::vector<Rank>> ranks_;  // by shares
};

class ThreadGroup : public StepExecutor {
 public:
  struct Options {
    int world = 1;
    std::vector<double> shares;  // empty: equal
    internal::NumericsOptions::Activations activations = internal::NumericsOptions::ACTIVATIONS_F32;
    internal::NumericsOptions::CacheType kv_cache_type = internal::NumericsOptions::CACHE_TYPE_F32;
    std::vector<Isa> isas;  // one a rank; empty: the best of this machine
    int threads_per_rank = 1;
    uint32_t cache_blocks = 512;
    uint32_t max_step_tokens = 1024;
    uint32_t max_slots = 64;
    // Tests that plant a fault wrap the communicator of every rank.
    std::function<std::unique_ptr<Collective>(std::unique_ptr<Collective>)> wrap_collective;
    // Likewise: changes every plan of the engine before the ranks get it.
    std::function<void(internal::StepPlan*)> edit_plan;
    // This rank's logits of one output position; called on the rank's step thread, ranks
    // concurrently.
    std::function<void(int rank, uint64_t vocab_begin, uint32_t slot, uint32_t position,
                       absl::Span<const float>)>
        logits_tap;
  };

  // The model outlives the group.
  static absl::StatusOr<std::unique_ptr<ThreadGroup>> Create(TestModel& model,
                                                             const Options& options);
  ~ThreadGroup() override;

  void Start(StepListener* listener) override;
  void Submit(std::unique_ptr<internal::StepPlan> plan) override;
  void Stop() override;

  // Runs one plan on all ranks and waits; for tests that write their own plans. Not together with
  // Start.
  absl::StatusOr<internal::StepResult> RunPlan(const internal::StepPlan& plan);

  // A fresh epoch (cache and slots empty). RunPlan's next step is 1.
  absl::Status StartEpoch();
  uint64_t term() const { return 1; }
  uint64_t epoch() const { return epoch_; }
  const Options& options() const { return options_; }

 private:
  struct RankThread {
    std::unique_ptr<ThreadPool> pool;
    std::unique_ptr<StepRunner> runner;
    std::thread thread;
    std::deque<std::function<void()>> queue;
  };

  explicit ThreadGroup(const Options& options) : options_(options) {}
  void Enqueue(int rank, std::function<void()> work);
  void RankLoop(int rank);
  // Runs `work(rank)` on every rank's thread; the first error by rank wins.
  absl::Status OnAllRanks(const std::function<absl::Status(int)>& work);

  const Options options_;
  uint64_t epoch_ = 0;
  StepListener* listener_ = nullptr;
  std::vector<RankThread> ranks_;

  std::mutex mu_;
  std::condition_variable changed_;
  bool stopping_ = false;
};

}  // namespace bitshard
