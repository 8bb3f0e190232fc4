// Who waits for a first step, by level and tenant: what admission needs to know to say how much is
// in front of a request that comes now. Each choice of a request counts as one.
//
// Kept by Admission, under its lock. It follows the order of service of
// coordinator/schedule/fair_queue.h without its accounts: within a level a tenant waits for its own
// requests, and for as much of every other tenant's as their weights allow meanwhile.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/container/flat_hash_map.h"

#include "coordinator/schedule/service_level.h"

namespace bitshard {

class WaitingBook {
 public:
  struct Sum {
    uint64_t requests = 0, tokens = 0;  // prompt tokens
  };

  // Weights by tenant, 1 where there is none; outlives this object.
  explicit WaitingBook(const absl::flat_hash_map<std::string, double>* weights)
      : weights_(weights) {}

  // `tokens`: of all `requests` together.
  void Add(const ServiceLevel& level, const std::string& tenant, uint64_t tokens,
           uint64_t requests = 1);
  // REQUIRES: so much was added.
  void Remove(const ServiceLevel& level, const std::string& tenant, uint64_t tokens,
              uint64_t requests = 1);

  const Sum& sum() const { return sum_; }
  const Sum& batch() const { return batch_; }
  Sum of_tenant(const std::string& tenant) const;
  // What is served before a new request of `tokens`. O(tenants and levels that wait).
  Sum AheadOf(const ServiceLevel& level, const std::string& tenant, uint64_t tokens) const;

 private:
  struct Level {
    Sum sum;
    std::map<std::string, Sum> tenants;
  };
  double WeightOf(const std::string& tenant) const;

  const absl::flat_hash_map<std::string, double>* const weights_;
  std::map<ServiceLevel, Level> levels_;
  absl::flat_hash_map<std::string, Sum> tenants_;
  Sum sum_, batch_;
};

}  // namespace bitshard
