// Where the ranks of an epoch meet: in the join, and in every step. A step is computed once for
// all, on one CacheModel, when every rank has come to it with the same plan.
//
// Who leaves (dies, is told to end the epoch, breaks) breaks it for good: of those that wait some
// notice, and some hang until they are told.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/worker.pb.h"
#include "tests/coordinator/simulator/cache_model.h"
#include "tests/coordinator/simulator/world.h"

namespace bitshard::sim {

using ToWorker = std::shared_ptr<const internal::CoordinatorMessage>;  // one for all ranks

class Communicator {
 public:
  // `result`: of the step; null in the join. Not `ok`: it broke.
  using Done = std::function<void(bool ok, const internal::StepResult* result)>;

  Communicator(World* world, uint32_t ranks) : world_(world), waiting_(ranks) {}

  // A rank comes, to compute `plan` for `takes_us` (null: to join). `done` comes once all are
  // through, or not at all.
  void Meet(uint32_t rank, ToWorker plan, int64_t takes_us, Done done);
  void Leave(uint32_t rank);

  // A rank has its part of the cache.
  void Allocate(const CacheModel::Shape& shape, const std::vector<uint32_t>& bad_blocks);
  const std::optional<CacheModel>& cache() const { return cache_; }

 private:
  struct Waiting {
    bool here = false;
    ToWorker plan;
    Done done;
  };
  void Compute();
  void MaybeNotice(uint32_t rank);

  World* const world_;
  std::vector<Waiting> waiting_;  // by rank
  uint32_t here_ = 0;
  int64_t takes_us_ = 0;  // the slowest of those here
  bool broken_ = false;
  uint64_t meeting_ = 0;
  CacheModel::Shape shape_;
  std::vector<uint32_t> bad_blocks_;
  std::optional<CacheModel> cache_;  // from the first step on
};

// All communicators by their ids.
class Switchboard {
 public:
  explicit Switchboard(World* world) : world_(world) {}
  std::shared_ptr<Communicator> Find(const std::string& id, uint32_t ranks);
  // Over all epochs.
  uint32_t bad_blocks_met() const;
  bool has_written_to_bad_block(uint64_t seed) const;

 private:
  World* const world_;
  std::map<std::string, std::shared_ptr<Communicator>> all_;
};

}  // namespace bitshard::sim
