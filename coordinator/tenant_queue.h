// Work of several tenants: each one's in its order, the tenants in turns, and of one tenant at most
// a share at work at the same time, so that who brings much or slow work holds up himself.
//
// Not thread-safe.
#pragma once

#include <algorithm>
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
    Work work;
  };

  // `share`: at least 1.
  explicit TenantQueue(int share) : share_(share) {}

  void Push(const std::string& tenant, Work work) {
    Tenant& of = tenants_[tenant];
    if (of.waiting.empty()) turns_.push_back(tenant);
    of.waiting.push_back(std::move(work));
    ++waiting_;
  }

  // Somebody waits who has not his share at work.
  bool CanPop() const {
    return std::any_of(turns_.begin(), turns_.end(), [this](const std::string& tenant) {
      return tenants_.at(tenant).at_work < share_;
    });
  }

  // REQUIRES: CanPop(). It is at work until Done.
  Taken Pop() {
    const auto turn = std::find_if(turns_.begin(), turns_.end(), [this](const std::string& tenant) {
      return tenants_.at(tenant).at_work < share_;
    });
    Tenant& of = tenants_.at(*turn);
    Taken taken{*turn, std::move(of.waiting.front())};
    of.waiting.pop_front();
    ++of.at_work;
    --waiting_;
    turns_.erase(turn);
    if (!of.waiting.empty()) turns_.push_back(taken.tenant);
    return taken;
  }

  // One of the tenant's that were popped is over.
  void Done(const std::string& tenant) {
    const auto of = tenants_.find(tenant);
    --of->second.at_work;
    Forget(of);
  }

  // Takes out what waits and is `work`.
  void Remove(const std::string& tenant, const Work& work) {
    const auto of = tenants_.find(tenant);
    if (of == tenants_.end() || of->second.waiting.empty()) return;
    std::deque<Work>& waiting = of->second.waiting;
    const auto gone = std::remove(waiting.begin(), waiting.end(), work);
    waiting_ -= static_cast<size_t>(waiting.end() - gone);
    waiting.erase(gone, waiting.end());
    if (waiting.empty()) turns_.remove(tenant);
    Forget(of);
  }

  // All that waits.
  void Clear() {
    for (const std::string& tenant : turns_) {
      const auto of = tenants_.find(tenant);
      of->second.waiting.clear();
      Forget(of);
    }
    turns_.clear();
    waiting_ = 0;
  }

  size_t waiting() const { return waiting_; }
  size_t waiting(const std::string& tenant) const {
    const auto of = tenants_.find(tenant);
    return of == tenants_.end() ? 0 : of->second.waiting.size();
  }

 private:
  struct Tenant {
    std::deque<Work> waiting;
    int at_work = 0;
  };
  using Tenants = absl::flat_hash_map<std::string, Tenant>;

  void Forget(typename Tenants::iterator of) {
    if (of->second.waiting.empty() && of->second.at_work == 0) tenants_.erase(of);
  }

  const int share_;
  Tenants tenants_;               // who waits or is at work
  std::list<std::string> turns_;  // who waits; the next one comes first
  size_t waiting_ = 0;
};

}  // namespace bitshard
