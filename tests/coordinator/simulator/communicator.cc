#include "tests/coordinator/simulator/communicator.h"

#include <algorithm>
#include <utility>

namespace bitshard::sim {

void Communicator::Meet(uint32_t rank, ToWorker plan, int64_t takes_us, Done done) {
  Waiting& waiting = waiting_.at(rank);
  if (waiting.here) {
    world_->Fail(absl::StrCat("rank ", rank, " meets itself in one communicator"));
    return;
  }
  waiting = {true, std::move(plan), std::move(done)};
  takes_us_ = std::max(takes_us_, takes_us);
  if (broken_) {
    MaybeNotice(rank);
    return;
  }
  if (++here_ < waiting_.size()) return;
  world_->events.After(takes_us_, [this, meeting = meeting_] {
    if (meeting == meeting_ && !broken_) Compute();
  });
}

void Communicator::Compute() {
  ++meeting_;
  here_ = 0;
  takes_us_ = 0;
  std::unique_ptr<internal::StepResult> result;
  if (const ToWorker& plan = waiting_[0].plan; plan != nullptr) {
    for (const Waiting& other : waiting_) {
      if (other.plan == plan) continue;
      if (other.plan != nullptr && other.plan->SerializeAsString() == plan->SerializeAsString())
        continue;
      world_->Fail(
          absl::StrCat("the ranks compute different plans in step ", plan->step_plan().step()));
      return;
    }
    if (!cache_.has_value()) cache_.emplace(shape_, bad_blocks_);
    absl::StatusOr<std::unique_ptr<internal::StepResult>> ran = cache_->Run(plan->step_plan());
    if (!ran.ok()) {
      world_->Note([&] { return absl::StrCat("plan ", plan->step_plan().ShortDebugString()); });
      world_->Fail(absl::StrCat("workers: ", ran.status().message()));
      return;
    }
    result = *std::move(ran);
  }
  std::vector<Done> done;
  for (Waiting& waiting : waiting_) {
    done.push_back(std::move(waiting.done));
    waiting = Waiting();
  }
  for (const Done& each : done) each(true, result.get());
}

void Communicator::Leave(uint32_t rank) {
  waiting_.at(rank) = Waiting();
  if (std::exchange(broken_, true)) return;
  for (uint32_t other = 0; other < waiting_.size(); ++other) {
    if (waiting_[other].here) MaybeNotice(other);
  }
}

void Communicator::MaybeNotice(uint32_t rank) {
  if (world_->dice.Percent(50)) return;
  world_->events.After(world_->dice.Between(0, 5 * kMillisecond), [this, rank] {
    if (!waiting_[rank].here) return;
    const Done done = std::move(waiting_[rank].done);
    waiting_[rank] = Waiting();
    done(false, nullptr);
  });
}

void Communicator::Allocate(const CacheModel::Shape& shape,
                            const std::vector<uint32_t>& bad_blocks) {
  shape_ = shape;
  bad_blocks_.insert(bad_blocks_.end(), bad_blocks.begin(), bad_blocks.end());
}

std::shared_ptr<Communicator> Switchboard::Find(const std::string& id, uint32_t ranks) {
  std::shared_ptr<Communicator>& found = all_[id];
  if (found == nullptr) found = std::make_shared<Communicator>(world_, ranks);
  return found;
}

uint32_t Switchboard::bad_blocks_met() const {
  uint32_t blocks = 0;
  for (const auto& [id, communicator] : all_) {
    if (communicator->cache().has_value()) blocks += communicator->cache()->bad_blocks_met();
  }
  return blocks;
}

bool Switchboard::has_written_to_bad_block(uint64_t seed) const {
  return std::any_of(all_.begin(), all_.end(), [&](const auto& entry) {
    const std::optional<CacheModel>& cache = entry.second->cache();
    return cache.has_value() && cache->bad_writers().count(seed) > 0;
  });
}

}  // namespace bitshard::sim
