#include "coordinator/schedule/fair_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"

namespace bitshard {

// A tenant at one level.
struct FairAccount {
  std::string tenant;
  double weight = 1;
  double service = 0;                       // weighted tokens
  uint32_t sequences = 0;                   // that have joined
  std::map<SequenceId, Sequence*> waiting;  // that have never run
};

namespace {

// The lowest account first; among equals the one whose sequence came first.
struct ServedLess {
  bool operator()(const FairAccount* a, const FairAccount* b) const {
    if (a->service != b->service) return a->service < b->service;
    return a->waiting.begin()->first < b->waiting.begin()->first;
  }
};

struct IdleLess {
  bool operator()(const FairAccount* a, const FairAccount* b) const {
    return a->service != b->service ? a->service < b->service : a->tenant < b->tenant;
  }
};

}  // namespace

struct FairQueue::Level {
  absl::flat_hash_map<std::string, std::unique_ptr<FairAccount>> accounts;
  std::set<FairAccount*, ServedLess> order;  // those with waiting sequences
  std::set<FairAccount*, IdleLess> idle;     // those without sequences
  ById resumed;                              // waiting, and have run before
  double floor = 0;
  double active_weight = 0;  // of accounts with sequences
  size_t sequences = 0;

  bool waits() const { return !order.empty() || !resumed.empty(); }
};

FairQueue::FairQueue() = default;
FairQueue::~FairQueue() = default;

void FairQueue::set_weights(Weights weights) {
  CHECK(levels_.empty()) << "sequences have joined already";
  for (const auto& [tenant, weight] : weights)
    CHECK(weight > 0) << "tenant " << tenant << " has weight " << weight;
  weights_ = std::move(weights);
}

void FairQueue::Join(Sequence* sequence) {
  std::unique_ptr<Level>& level = levels_[sequence->level];
  if (level == nullptr) level = std::make_unique<Level>();
  Forget(*level);
  std::unique_ptr<FairAccount>& account = level->accounts[sequence->tenant];
  if (account == nullptr) {
    account = std::make_unique<FairAccount>();
    account->tenant = sequence->tenant;
    if (auto weight = weights_.find(sequence->tenant); weight != weights_.end())
      account->weight = weight->second;
  }
  level->idle.erase(account.get());
  if (account->sequences++ == 0) level->active_weight += account->weight;
  ++level->sequences;
  sequence->account = account.get();
}

void FairQueue::Leave(Sequence* sequence) {
  auto found = levels_.find(sequence->level);
  Level& level = *found->second;
  FairAccount* account = std::exchange(sequence->account, nullptr);
  if (--account->sequences == 0) {
    level.active_weight -= account->weight;
    level.idle.insert(account);
  }
  if (--level.sequences == 0) levels_.erase(found);
}

void FairQueue::Forget(Level& level) {
  while (!level.idle.empty() && (*level.idle.begin())->service <= level.floor) {
    const std::string tenant = (*level.idle.begin())->tenant;
    level.idle.erase(level.idle.begin());
    level.accounts.erase(tenant);
  }
}

void FairQueue::insert(Sequence* sequence) {
  Level& level = *levels_.at(sequence->level);
  if (sequence->has_run) {
    level.resumed.emplace(sequence->id, sequence);
  } else {
    FairAccount* account = sequence->account;
    if (account->waiting.empty()) {
      if (!level.order.empty())
        level.floor = std::max(level.floor, (*level.order.begin())->service);
      account->service = std::max(account->service, level.floor);
    } else {
      level.order.erase(account);
    }
    account->waiting.emplace(sequence->id, sequence);
    level.order.insert(account);
  }
  waiting_.emplace(sequence->level, &level);
  by_id_.emplace(sequence->id, sequence);
}

void FairQueue::erase(Sequence* sequence) {
  CHECK(by_id_.erase(sequence->id) == 1) << "sequence " << sequence->id << " does not wait";
  Level& level = *levels_.at(sequence->level);
  if (level.resumed.erase(sequence->id) == 0) {
    FairAccount* account = sequence->account;
    level.order.erase(account);
    account->waiting.erase(sequence->id);
    if (!account->waiting.empty()) level.order.insert(account);
  }
  if (!level.waits()) waiting_.erase(sequence->level);
}

bool FairQueue::contains(const Sequence* sequence) const {
  auto entry = by_id_.find(sequence->id);
  return entry != by_id_.end() && entry->second == sequence;
}

Sequence* FairQueue::first() const {
  CHECK(!waiting_.empty()) << "nobody waits";
  const Level& level = *waiting_.begin()->second;
  if (!level.resumed.empty()) return level.resumed.begin()->second;
  return (*level.order.begin())->waiting.begin()->second;
}

std::vector<const Sequence*> FairQueue::InOrder() const {
  std::vector<const Sequence*> order;
  order.reserve(by_id_.size());
  // Of a tenant's sequences each begins where those before it have brought its account.
  std::vector<std::pair<double, const Sequence*>> fresh;
  for (const auto& [key, level] : waiting_) {
    for (const auto& [id, sequence] : level->resumed) order.push_back(sequence);
    fresh.clear();
    for (const FairAccount* account : level->order) {
      double service = account->service;
      for (const auto& [id, sequence] : account->waiting) {
        fresh.emplace_back(service, sequence);
        service += sequence->n_given / account->weight;
      }
    }
    std::sort(fresh.begin(), fresh.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first < b.first : a.second->id < b.second->id;
    });
    for (const auto& [service, sequence] : fresh) order.push_back(sequence);
  }
  return order;
}

void FairQueue::Charge(Sequence* sequence, uint32_t start, uint32_t n_tokens,
                       std::optional<uint32_t> output_index) {
  double tokens = 0;
  const uint32_t end = std::min(start + n_tokens, sequence->n_given);
  const uint32_t begin = std::max(start, sequence->charged_prompt);
  if (begin < end) tokens += end - begin;
  sequence->charged_prompt = std::max(sequence->charged_prompt, end);
  if (output_index.has_value() && *output_index >= sequence->charged_outputs) {
    tokens += kOutputWeight;
    sequence->charged_outputs = *output_index + 1;
  }
  if (tokens == 0) return;
  Level& level = *levels_.at(sequence->level);
  FairAccount* account = sequence->account;
  const bool waits = !account->waiting.empty();
  if (waits) level.order.erase(account);
  account->service += tokens / account->weight;
  if (waits) level.order.insert(account);
  level.floor += tokens / level.active_weight;
  if (!level.order.empty()) level.floor = std::max(level.floor, (*level.order.begin())->service);
}

double FairQueue::ServiceOf(const ServiceLevel& level, const std::string& tenant) const {
  auto found = levels_.find(level);
  if (found == levels_.end()) return 0;
  auto account = found->second->accounts.find(tenant);
  return account == found->second->accounts.end() ? 0 : account->second->service;
}

size_t FairQueue::accounts() const {
  size_t count = 0;
  for (const auto& [key, level] : levels_) count += level->accounts.size();
  return count;
}

absl::Status FairQueue::CheckInvariants() const {
  size_t waiting = 0;
  for (const auto& [key, level] : levels_) {
    size_t sequences = 0, in_order = 0, idle = 0;
    waiting += level->resumed.size();
    for (const auto& [tenant, account] : level->accounts) {
      sequences += account->sequences;
      waiting += account->waiting.size();
      if (!account->waiting.empty()) ++in_order;
      if (account->sequences == 0) ++idle;
    }
    if (sequences != level->sequences || sequences == 0 || in_order != level->order.size() ||
        idle != level->idle.size() || level->waits() != waiting_.contains(key)) {
      return absl::InternalError(
          absl::StrCat("level batch=", key.batch, " priority=", key.priority, ": ", sequences,
                       " of ", level->sequences, " sequences have accounts, ", in_order,
                       " tenants wait, ", level->order.size(), " are in the order, ", idle, " of ",
                       level->idle.size(), " are idle"));
    }
  }
  if (waiting != by_id_.size()) {
    return absl::InternalError(
        absl::StrCat(waiting, " sequences wait at their levels, ", by_id_.size(), " wait"));
  }
  return absl::OkStatus();
}

}  // namespace bitshard
