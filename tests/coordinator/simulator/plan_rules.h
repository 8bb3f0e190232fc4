// What every step plan must keep to, besides what a worker can run: the budgets, the order of
// service, and the tenants' shares (coordinator/schedule/README.md).
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "coordinator/engine/engine.h"
#include "coordinator/schedule/scheduler.h"
#include "proto/plan.pb.h"
#include "tests/coordinator/simulator/world.h"

namespace bitshard::sim {

class PlanRules {
 public:
  PlanRules(const Engine::Options& options, World* world) : options_(options), world_(world) {}

  // The most that one sequence of the simulation costs its tenant (weighted tokens).
  void set_most_cost(double cost) { most_cost_ = cost; }
  // Blocks were set aside, or the group was lost: who leaves its slot now was not pushed out.
  void Forgive() { forgiven_ = true; }

  // Before the engine plans. `ids`: of all sequences that may be there.
  void Before(const Scheduler& scheduler, const std::vector<SequenceId>& ids);
  // The scheduler is as it is after the plan. `ids` as above, with those that came since.
  void Check(const internal::StepPlan& plan, const Scheduler& scheduler,
             const std::vector<SequenceId>& ids);

  uint64_t share_checks() const { return share_checks_; }

 private:
  struct Row {
    const Sequence* sequence;
    uint32_t start, n_tokens;
    bool enters, samples, first_time;
  };
  struct Seen {  // of a sequence, before the plan
    std::optional<SlotRef> slot;
    uint32_t preemptions = 0;
    uint32_t paid_prompt = 0, paid_outputs = 0;
    bool has_run = false;
  };
  using Tenant = std::pair<ServiceLevel, std::string>;
  struct Contest {  // of two tenants of a level that have both been waiting since
    double first_begin = 0, second_begin = 0;
  };

  bool FindRows(const internal::StepPlan& plan, const Scheduler& scheduler,
                const std::vector<SequenceId>& ids);
  void CheckBudgets() const;
  void CheckOrder(const Scheduler& scheduler) const;
  void CheckVictims(const Scheduler& scheduler) const;
  void CheckShares(const Scheduler& scheduler, const std::vector<SequenceId>& ids);
  double WeightOf(const std::string& tenant) const;

  const Engine::Options options_;
  World* const world_;
  double most_cost_ = 0;
  bool forgiven_ = false;
  std::map<SequenceId, Seen> seen_;
  std::vector<Row> rows_;             // of the plan at hand
  std::map<Tenant, double> service_;  // weighted tokens by weight
  std::map<std::pair<Tenant, std::string>, Contest> contests_;
  uint64_t share_checks_ = 0;
};

}  // namespace bitshard::sim
