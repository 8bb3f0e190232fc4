#include "tests/support/fake_executor.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "kernels/base/check.h"
#include "tests/support/await.h"

namespace bitshard {

FakeExecutor::FakeExecutor(Options options)
    : options_(std::move(options)), worker_(options_.worker), info_(options_.group) {}

FakeExecutor::~FakeExecutor() { Stop(); }

void FakeExecutor::Start(StepListener* listener) {
  CHECK(listener_ == nullptr) << "started twice";
  listener_ = listener;
  if (options_.mode == Mode::kManual) return;
  if (options_.ready_at_start) MakeReady();
  thread_ = std::thread([this] { RunThread(); });
}

void FakeExecutor::Submit(std::unique_ptr<internal::StepPlan> plan) {
  absl::MutexLock lock(&mu_);
  // What the engine sent before it heard of the loss.
  if (stopped_ || !ready_ || plan->epoch() < info_.epoch) return;
  plans_.push_back(std::move(plan));
}

void FakeExecutor::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    ready_ = false;
    plans_.clear();
  }
  if (thread_.joinable()) thread_.join();
  absl::MutexLock events(&events_mu_);  // whoever is calling the listener now gets done
}

void FakeExecutor::MakeReady() {
  CHECK(listener_ != nullptr) << "not started";
  absl::MutexLock events(&events_mu_);
  GroupInfo info;
  {
    absl::MutexLock lock(&mu_);
    if (stopped_) return;
    CHECK(!ready_) << "the group is ready already";
    ready_ = true;
    ++info_.epoch;
    worker_.StartEpoch(info_);
    info = info_;
  }
  listener_->OnGroupReady(info);
}

void FakeExecutor::LoseGroup(absl::Status why) {
  absl::MutexLock events(&events_mu_);
  GroupInfo info;
  {
    absl::MutexLock lock(&mu_);
    if (stopped_ || !ready_) return;
    ready_ = false;
    plans_.clear();
    info = info_;
  }
  listener_->OnGroupLost(info.term, info.epoch, why);
}

void FakeExecutor::Hold() {
  absl::MutexLock lock(&mu_);
  held_ = true;
}

void FakeExecutor::Release() {
  absl::MutexLock lock(&mu_);
  held_ = false;
}

void FakeExecutor::AwaitPlans(size_t count) {
  absl::MutexLock lock(&mu_);
  auto enough = [this, count]()
                    ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return plans_.size() >= count; };
  AwaitOn(&mu_, absl::Condition(&enough), absl::StrCat(count, " plans that wait"));
}

bool FakeExecutor::RunOne() {
  CHECK(options_.mode == Mode::kManual) << "a thread runs the plans";
  std::unique_ptr<internal::StepPlan> plan;
  {
    absl::MutexLock lock(&mu_);
    if (plans_.empty()) return false;
    plan = std::move(plans_.front());
    plans_.pop_front();
  }
  RunPlan(std::move(plan));
  return true;
}

void FakeExecutor::RunThread() {
  while (true) {
    std::unique_ptr<internal::StepPlan> plan;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &FakeExecutor::CanRun));
      if (stopped_) return;
      plan = std::move(plans_.front());
      plans_.pop_front();
    }
    RunPlan(std::move(plan));
  }
}

void FakeExecutor::RunPlan(std::unique_ptr<internal::StepPlan> plan) {
  absl::Status refusal;
  {
    absl::MutexLock events(&events_mu_);
    std::unique_ptr<internal::StepResult> result;
    {
      absl::MutexLock lock(&mu_);
      if (stopped_ || !ready_ || plan->epoch() < info_.epoch) return;
      absl::StatusOr<std::unique_ptr<internal::StepResult>> run = worker_.Run(*plan);
      refusal = run.status();
      if (run.ok()) result = *std::move(run);
    }
    if (result != nullptr) {
      if (tamper_ != nullptr) tamper_(result.get());
      listener_->OnStepDone(std::move(result));
      return;
    }
  }
  ADD_FAILURE() << "refused plan: " << refusal << "\n" << plan->ShortDebugString();
  LoseGroup(refusal);
}

size_t FakeExecutor::plans_waiting() const {
  absl::MutexLock lock(&mu_);
  return plans_.size();
}

uint64_t FakeExecutor::computed_tokens() const {
  absl::MutexLock lock(&mu_);
  return worker_.computed_tokens();
}

uint32_t FakeExecutor::largest_step_tokens() const {
  absl::MutexLock lock(&mu_);
  return worker_.largest_step_tokens();
}

uint32_t FakeExecutor::largest_row_tokens() const {
  absl::MutexLock lock(&mu_);
  return worker_.largest_row_tokens();
}

uint64_t FakeExecutor::steps() const {
  absl::MutexLock lock(&mu_);
  return worker_.steps();
}

}  // namespace bitshard
