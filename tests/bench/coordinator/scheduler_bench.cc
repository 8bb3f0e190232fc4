// CPU microseconds that the scheduler takes for one step (choosing the rows, writing the plan,
// taking the result) with many running requests, and the bytes of the plans.
//
//   bazel run -c opt //tests/bench/coordinator:scheduler_bench
//
// Each number is the median of kRounds rounds of kSteps steps; "spread" is (slowest - fastest) /
// median. The reference of the same run is the writing and reading back of the plan's bytes, which
// any scheduler in another process would have to do.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/schedule/scheduler.h"
#include "coordinator/schedule/step_planner.h"
#include "kernels/base/check.h"

namespace bitshard {
namespace {

constexpr int kRounds = 9, kSteps = 50;
constexpr uint32_t kPrompt = 500, kOutputs = 520, kPushed = 100;

// CPU time of this thread: others on the machine do not count.
double Now() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}
double MicrosSince(double begin) { return Now() - begin; }

struct Median {
  double value, spread;
};
Median MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const double median = values[values.size() / 2];
  return {median, (values.back() - values.front()) / median};
}

internal::StepResult ResultOf(const StepSchedule& step) {
  internal::StepResult result;
  for (const ScheduledRow& row : step.rows) {
    if (!row.sample) continue;
    internal::StepOutput* output = result.add_outputs();
    output->set_slot(row.slot.slot);
    output->set_slot_gen(row.slot.gen);
    output->set_output_index(row.output_index);
    output->set_token(7);
  }
  return result;
}

// `running` requests that decode, with 500 tokens of prompt, half of it shared by all.
class Load {
 public:
  Load(uint32_t running, bool prefix_cache, bool batch = false) {
    scheduler_.StartEpoch({.total_blocks = running * 64,
                           .block_tokens = 16,
                           .max_slots = running,
                           .token_budget = 1 << 16,
                           .max_chunk = {},
                           .prefix_cache = prefix_cache});
    for (uint32_t i = 0; i < running; ++i) Add(batch);
    while (scheduler_.waiting() > 0) Step();
    Step();
  }

  void Add(bool batch = false) {
    SequenceSpec spec;
    spec.id = ++last_id_;
    spec.batch = batch;
    for (uint32_t t = 0; t < kPrompt; ++t)
      spec.prompt.push_back(t < kPrompt / 2 ? t : static_cast<uint32_t>(spec.id) * 1000 + t);
    spec.max_tokens = kOutputs;
    scheduler_.Add(std::move(spec));
  }

  // Two plans are out, as in the engine. Returns the plan.
  std::unique_ptr<internal::StepPlan> Step(double* plan_us = nullptr, double* commit_us = nullptr) {
    double begin = Now();
    const StepSchedule step = scheduler_.Schedule();
    auto plan = WriteStepPlan(step, {.term = 1, .epoch = 1, .step = ++step_});
    if (plan_us != nullptr) *plan_us += MicrosSince(begin);
    out_.push_back(ResultOf(step));
    if (out_.size() == 2) {
      begin = Now();
      commits_ += scheduler_.CommitStep(out_.front()).size();
      if (commit_us != nullptr) *commit_us += MicrosSince(begin);
      out_.pop_front();
    }
    return plan;
  }

  uint64_t preemptions() const { return scheduler_.preemptions(); }

  // One request ends and another comes in: what an entry costs on top.
  void Replace() {
    scheduler_.Remove(++removed_);
    Add();
  }

 private:
  Scheduler scheduler_;
  SequenceId last_id_ = 0, removed_ = 0;
  uint64_t step_ = 0, commits_ = 0;
  std::deque<internal::StepResult> out_;
};

void MeasureSteps(uint32_t running, bool prefix_cache, bool replace) {
  Load load(running, prefix_cache);
  std::vector<double> plan_us, commit_us, bytes_us;
  for (int round = 0; round < kRounds; ++round) {
    double plan = 0, commit = 0, bytes = 0;
    for (int i = 0; i < kSteps; ++i) {
      if (replace) {
        const double begin = Now();
        load.Replace();
        plan += MicrosSince(begin);
      }
      const auto written = load.Step(&plan, &commit);
      const double begin = Now();
      internal::StepPlan read;
      CHECK(read.ParseFromString(written->SerializeAsString()));
      bytes += MicrosSince(begin);
    }
    plan_us.push_back(plan / kSteps);
    commit_us.push_back(commit / kSteps);
    bytes_us.push_back(bytes / kSteps);
  }
  const Median plan = MedianOf(plan_us), commit = MedianOf(commit_us), bytes = MedianOf(bytes_us);
  std::printf(
      "%5u running%s, prefix cache %-3s: plan %6.1f us (spread %3.0f %%), commit %6.1f us "
      "(spread %3.0f %%), %4.1f x the plan's bytes written and read (%5.1f us)\n",
      running, replace ? ", one of them new" : "", prefix_cache ? "on" : "off", plan.value,
      100 * plan.spread, commit.value, 100 * commit.spread,
      (plan.value + commit.value) / bytes.value, bytes.value);
}

// As many interactive requests come at once as batch requests run: each pushes one out.
void MeasurePushing(uint32_t running) {
  std::vector<double> plan_us;
  for (int round = 0; round < kRounds; ++round) {
    Load load(running, /*prefix_cache=*/true, /*batch=*/true);
    for (uint32_t i = 0; i < kPushed; ++i) load.Add();
    double plan = 0;
    load.Step(&plan);
    CHECK_EQ(load.preemptions(), kPushed);
    plan_us.push_back(plan / kPushed);
  }
  const Median plan = MedianOf(plan_us);
  std::printf("%5u batch running, %u pushed out in a step: %6.1f us each (spread %3.0f %%)\n",
              running, kPushed, plan.value, 100 * plan.spread);
}

void PrintBytes(uint32_t decodes) {
  Load load(decodes, /*prefix_cache=*/true);
  size_t least = SIZE_MAX, most = 0, sum = 0;
  for (int i = 0; i < 160; ++i) {
    const size_t bytes = load.Step()->ByteSizeLong();
    least = std::min(least, bytes);
    most = std::max(most, bytes);
    sum += bytes;
  }
  std::printf("%5u decodes: StepPlan of %zu bytes on average (%zu to %zu)\n", decodes, sum / 160,
              least, most);
}

}  // namespace
}  // namespace bitshard

int main() {
  for (const uint32_t running : {256u, 1024u}) {
    for (const bool replace : {false, true}) {
      for (const bool prefix_cache : {true, false})
        bitshard::MeasureSteps(running, prefix_cache, replace);
    }
  }
  for (const uint32_t running : {256u, 1024u}) bitshard::MeasurePushing(running);
  for (const uint32_t decodes : {1u, 128u, 1024u}) bitshard::PrintBytes(decodes);
  return 0;
}
