// The sequences that wait for a slot, and who of them is next: by level, and within a level fairly
// among tenants, weighted by tokens.
//
// Each tenant has an account a level: prompt tokens computed + kOutputWeight x outputs sampled,
// divided by the tenant's weight; each token counts once, also when a preemption makes it be
// computed again, and what the prefix cache brought does not count. Of the tenants that wait the
// one with the lowest account is next, with its sequence that came first. A sequence that has run
// before goes before all of its level that have not: it has been paid for. Outputs that a resumed
// request brings along are computed as its prompt is, and count alike.
//
// Idling saves up nothing: a tenant that begins to wait is lifted to the level's floor, the lowest
// account of those that wait. The floor also rises by what an evenly served tenant gets, so that
// an endless row of new tenants cannot keep an old one waiting. Accounts at or below the floor of
// tenants without sequences are forgotten, which changes nothing; a level without sequences
// begins anew.
//
// Owned by Scheduler. Costs of every call: logarithmic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

#include "coordinator/schedule/sequence.h"
#include "coordinator/schedule/service_level.h"

namespace bitshard {

class FairQueue {
 public:
  // An output costs a whole pass over the weights, a prompt token shares one.
  static constexpr double kOutputWeight = 2;
  // By tenant; positive. A tenant that is not named has weight 1.
  using Weights = absl::flat_hash_map<std::string, double>;

  FairQueue();
  ~FairQueue();
  FairQueue(const FairQueue&) = delete;
  FairQueue& operator=(const FairQueue&) = delete;

  // REQUIRES: no sequence has joined.
  void set_weights(Weights weights);

  // A sequence is there, and is over. It joins before anything else is said of it, and does not
  // wait when it leaves.
  void Join(Sequence* sequence);
  void Leave(Sequence* sequence);

  // It waits, or waits no more.
  void insert(Sequence* sequence);
  void erase(Sequence* sequence);
  bool contains(const Sequence* sequence) const;
  bool empty() const { return by_id_.empty(); }
  size_t size() const { return by_id_.size(); }
  // The next one. REQUIRES: !empty().
  Sequence* first() const;
  // The one with the lowest id. REQUIRES: !empty().
  const Sequence* oldest() const { return by_id_.begin()->second; }
  // All, the next one first: the order of service if nothing changed but that each is served in its
  // turn. O(n log n).
  std::vector<const Sequence*> InOrder() const;

  // A plan computes tokens [start, start + n_tokens) of the sequence and, with `output_index`,
  // samples that output.
  void Charge(Sequence* sequence, uint32_t start, uint32_t n_tokens,
              std::optional<uint32_t> output_index);

  // For tests. What the tenant has been served at the level, in weighted tokens; 0 when it has no
  // account.
  double ServiceOf(const ServiceLevel& level, const std::string& tenant) const;
  size_t accounts() const;
  // INTERNAL with the first broken invariant.
  absl::Status CheckInvariants() const;

 private:
  struct Level;
  using ById = std::map<SequenceId, Sequence*>;

  void Forget(Level& level);  // accounts that say nothing any more

  Weights weights_;
  std::map<ServiceLevel, std::unique_ptr<Level>> levels_;  // with sequences
  std::map<ServiceLevel, Level*> waiting_;                 // of these, with ones that wait
  ById by_id_;                                             // all that wait
};

}  // namespace bitshard
