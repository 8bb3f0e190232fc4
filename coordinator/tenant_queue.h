// Work of several tenants: each one's in its order, the tenants in turns, and of one tenant at most
// a share at work at the same time, so that who brings much or slow work holds up himself. A
// tenant's slow work stands in a row of its own and takes turns with the rest; at most a part of
// the share does slow work.
//
// Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <list>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace bitshard {

template <typename Work>
class TenantQueue {
 public:
  struct Taken {
    std::string tenant;
    bool slow;
    Work work;
  };

  // `share`, and what of it may do slow work: at least 1.
  TenantQueue(int share, int slow_share) : share_(share), slow_share_(slow_share) {}
  explicit TenantQueue(int share) : TenantQueue(share, share) {}

  void Push(const std::string& tenant, Work work, bool slow = false) {
    Row& row = tenants_[tenant].rows[slow];
    if (row.waiting.empty()) turns_.push_back({tenant, slow});
    row.waiting.push_back(std::move(work));
    ++waiting_;
  }

  // Somebody waits who has not his share at work.
  bool CanPop() const { return NextTurn() != turns_.end(); }

  // REQUIRES: CanPop(). It is at work until Done.
  Taken Pop() {
    const auto turn = NextTurn();
    Row& row = tenants_.at(turn->tenant).rows[turn->slow];
    Taken taken{turn->tenant, turn->slow, std::move(row.waiting.front())};
    row.waiting.pop_front();
    ++row.at_work;
    --waiting_;
    turns_.erase(turn);
    if (!row.waiting.empty()) turns_.push_back({taken.tenant, taken.slow});
    return taken;
  }

  // One of the tenant's that were popped is over.
  void Done(const std::string& tenant, bool slow = false) {
    const auto of = tenants_.find(tenant);
    --of->second.rows[slow].at_work;
    Forget(of);
  }

  // Takes out what waits and is `work`.
  void Remove(const std::string& tenant, const Work& work) {
    const auto of = tenants_.find(tenant);
    if (of == tenants_.end()) return;
    for (const bool slow : {false, true}) {
      std::deque<Work>& waiting = of->second.rows[slow].waiting;
      if (waiting.empty()) continue;
      const auto gone = std::remove(waiting.begin(), waiting.end(), work);
      waiting_ -= static_cast<size_t>(waiting.end() - gone);
      waiting.erase(gone, waiting.end());
      if (waiting.empty())
        turns_.remove_if([&](const Turn& t) { return t.tenant == tenant && t.slow == slow; });
    }
    Forget(of);
  }

  // All that waits.
  void Clear() {
    for (const Turn& turn : turns_) {
      const auto of = tenants_.find(turn.tenant);
      of->second.rows[turn.slow].waiting.clear();
      Forget(of);
    }
    turns_.clear();
    waiting_ = 0;
  }

  size_t waiting() const { return waiting_; }
  size_t waiting(const std::string& tenant) const {
    const auto of = tenants_.find(tenant);
    if (of == tenants_.end()) return 0;
    return of->second.rows[false].waiting.size() + of->second.rows[true].waiting.size();
  }

 private:
  struct Row {
    std::deque<Work> waiting;
    int at_work = 0;
  };
  struct Tenant {
    std::array<Row, 2> rows;  // by whether it is slow

    int at_work() const { return rows[false].at_work + rows[true].at_work; }
    bool waits() const { return !rows[false].waiting.empty() || !rows[true].waiting.empty(); }
  };
  using Tenants = absl::flat_hash_map<std::string, Tenant>;
  struct Turn {
    std::string tenant;
    bool slow;
  };

  std::list<Turn>::const_iterator NextTurn() const {
    return std::find_if(turns_.begin(), turns_.end(), [this](const Turn& turn) {
      const Tenant& tenant = tenants_.at(turn.tenant);
      return tenant.at_work() < share_ && (!turn.slow || tenant.rows[true].at_work < slow_share_);
    });
  }

  void Forget(typename Tenants::iterator of) {
    if (!of->second.waits() && of->second.at_work() == 0) tenants_.erase(of);
  }

  const int share_, slow_share_;
  Tenants tenants_;        // who waits or is at work
  std::list<Turn> turns_;  // rows in which somebody waits; the next one comes first
  size_t waiting_ = 0;
};

}  // namespace bitshard
