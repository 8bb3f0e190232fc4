#include "coordinator/engine/waiting_book.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"

namespace bitshard {
namespace {

void Plus(WaitingBook::Sum& sum, const WaitingBook::Sum& more) {
  sum.requests += more.requests;
  sum.tokens += more.tokens;
}

void Minus(WaitingBook::Sum& sum, const WaitingBook::Sum& less) {
  CHECK(sum.requests >= less.requests && sum.tokens >= less.tokens)
      << sum.requests << " requests of " << sum.tokens << " tokens, " << less.requests << " of "
      << less.tokens << " go";
  sum.requests -= less.requests;
  sum.tokens -= less.tokens;
}

}  // namespace

double WaitingBook::WeightOf(const std::string& tenant) const {
  auto found = weights_->find(tenant);
  return found == weights_->end() ? 1 : found->second;
}

void WaitingBook::Add(const ServiceLevel& level, const std::string& tenant, uint64_t tokens,
                      uint64_t requests) {
  const Sum more = {.requests = requests, .tokens = tokens};
  Level& at = levels_[level];
  Plus(at.sum, more);
  Plus(at.tenants[tenant], more);
  Plus(tenants_[tenant], more);
  Plus(sum_, more);
  if (level.batch) Plus(batch_, more);
}

void WaitingBook::Remove(const ServiceLevel& level, const std::string& tenant, uint64_t tokens,
                         uint64_t requests) {
  const Sum less = {.requests = requests, .tokens = tokens};
  auto at = levels_.find(level);
  CHECK(at != levels_.end()) << "nobody waits at the level";
  auto own = at->second.tenants.find(tenant);
  CHECK(own != at->second.tenants.end()) << "tenant " << tenant << " does not wait at the level";
  Minus(own->second, less);
  if (own->second.requests == 0) at->second.tenants.erase(own);
  Minus(at->second.sum, less);
  if (at->second.sum.requests == 0) levels_.erase(at);
  auto all = tenants_.find(tenant);
  Minus(all->second, less);
  if (all->second.requests == 0) tenants_.erase(all);
  Minus(sum_, less);
  if (level.batch) Minus(batch_, less);
}

WaitingBook::Sum WaitingBook::of_tenant(const std::string& tenant) const {
  auto found = tenants_.find(tenant);
  return found == tenants_.end() ? Sum() : found->second;
}

WaitingBook::Sum WaitingBook::AheadOf(const ServiceLevel& level, const std::string& tenant,
                                      uint64_t tokens) const {
  Sum ahead;
  for (const auto& [key, at] : levels_) {
    if (key > level) break;
    if (key < level) {
      ahead.requests += at.sum.requests;
      ahead.tokens += at.sum.tokens;
      continue;
    }
    Sum own;
    if (auto found = at.tenants.find(tenant); found != at.tenants.end()) own = found->second;
    const double served = static_cast<double>(own.tokens + tokens) / WeightOf(tenant);
    for (const auto& [name, sum] : at.tenants) {
      const double share =
          name == tenant || sum.tokens == 0
              ? 1
              : std::min(1., served * WeightOf(name) / static_cast<double>(sum.tokens));
      ahead.requests += static_cast<uint64_t>(std::ceil(share * static_cast<double>(sum.requests)));
      ahead.tokens += static_cast<uint64_t>(share * static_cast<double>(sum.tokens));
    }
  }
  return ahead;
}

}  // namespace bitshard
