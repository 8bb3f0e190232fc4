// What the host does between two steps of a device, without the device: microseconds of the runner
// from the end of one step's computation to the launch of the next, and of what it does while the
// device computes, when it knows the next plan and when not.
//
//   bazel run -c opt //tests/bench/worker:plan_ahead_bench
//
// Every sequence samples in every step. In place of a device nothing computes: sampling, the
// arrays' copy into pinned memory and the launch itself are not in these numbers. Medians.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/thread_pool.h"
#include "worker/collective/collective.h"
#include "worker/step/graph_executor.h"
#include "worker/step/step_runner.h"

namespace bitshard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kContext = 8192, kVocab = 128256, kSteps = 300;

struct Marks {
  std::vector<double> between_us;  // from a step's end to the next one's launch
  std::vector<double> hidden_us;   // beside the device
};

class NoDevice final : public GraphExecutor {
 public:
  explicit NoDevice(Marks* marks) : marks_(*marks) {}

  absl::Status StartEpoch(Collective&, uint32_t) override { return absl::OkStatus(); }
  absl::Status EndEpoch(std::unique_ptr<Collective>) override { return absl::OkStatus(); }
  absl::Status Launch(StepState& step, StepProgress&) override {
    if (ended_ != Clock::time_point()) marks_.between_us.push_back(Since(ended_));
    for (SampleOutput& sample : step.samples) sample.token = 7;
    return absl::OkStatus();
  }
  absl::Status Collect(StepState&, absl::FunctionRef<void()> meanwhile) override {
    const Clock::time_point begin = Clock::now();
    meanwhile();
    marks_.hidden_us.push_back(Since(begin));
    ended_ = Clock::now();
    return absl::OkStatus();
  }
  const float* final_hidden() const override { return nullptr; }
  bool TakeCacheAhead(uint32_t) override { return false; }
  std::vector<internal::KernelChoice> Kernels() const override { return {}; }
  uint64_t CacheBytesPerBlock() const override { return 1; }
  uint64_t WorkspaceBytes() const override { return 0; }
  bool on_host() const override { return false; }

 private:
  static double Since(Clock::time_point begin) {
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  }

  Marks& marks_;
  Clock::time_point ended_;
};

std::vector<std::shared_ptr<const internal::StepPlan>> Plans(uint32_t rows, uint32_t known) {
  std::vector<std::shared_ptr<const internal::StepPlan>> plans;
  const uint32_t blocks = kContext / 16;
  for (uint32_t step = 1; step <= kSteps; ++step) {
    auto plan = std::make_shared<internal::StepPlan>();
    plan->set_term(1);
    plan->set_epoch(1);
    plan->set_step(step);
    for (uint32_t slot = 0; slot < rows; ++slot) {
      if (step == 1) {  // all but the last token are in the cache already
        internal::NewSequence& sequence = *plan->add_new_sequences();
        sequence.set_slot(slot);
        sequence.set_slot_gen(1);
        for (uint32_t t = 0; t < known; ++t) sequence.add_tokens(t % kVocab);
        sequence.set_n_prompt(known);
        sequence.set_cached_tokens(known - 1);
        for (uint32_t b = 0; b < blocks; ++b) sequence.add_blocks(slot * blocks + b);
        sequence.mutable_sampling()->set_top_p(1);
      }
      plan->add_slot(slot);
      plan->add_slot_gen(1);
      plan->add_start(known + step - 2);
      plan->add_n_tokens(1);
      plan->add_output_index(step - 1);
      plan->add_flags(internal::ROW_SAMPLE);
      plan->add_n_new_blocks(0);
    }
    plans.push_back(std::move(plan));
  }
  return plans;
}

Marks Measure(uint32_t rows, uint32_t known, bool knows_next) {
  internal::RankPlan plan;
  plan.set_world(1);
  plan.mutable_graph()->set_vocab_size(kVocab);
  plan.mutable_graph()->set_context_length(kContext);
  ThreadPool pool(1);
  StepRunner::Options options;
  options.pool = &pool;
  options.numerics.set_block_tokens(16);
  options.numerics.set_max_slots(rows);
  options.numerics.set_max_step_tokens(std::max(rows, 16u));
  Marks marks;
  const auto runner = StepRunner::Over(plan, std::make_unique<NoDevice>(&marks), options);
  CHECK_OK(runner->StartEpoch(1, 1, MakeSoloCollective(), rows * kContext / 16));
  const auto plans = Plans(rows, known);
  for (size_t i = 0; i < plans.size(); ++i) {
    const auto next = [&]() -> std::shared_ptr<const internal::StepPlan> {
      return knows_next && i + 1 < plans.size() ? plans[i + 1] : nullptr;
    };
    CHECK_OK(runner->Run(*plans[i], next).status());
  }
  return marks;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void Main() {
  std::printf("%10s %8s | %18s | %18s %18s\n", "sequences", "tokens", "next plan unknown", "known",
              "beside the device");
  for (const uint32_t rows : {1u, 16u, 64u, 256u}) {
    for (const uint32_t known : {512u, 4096u}) {
      const Marks blind = Measure(rows, known, false), ahead = Measure(rows, known, true);
      std::printf("%10u %8u | %15.1f us | %15.1f us %15.1f us\n", rows, known,
                  Median(blind.between_us), Median(ahead.between_us), Median(ahead.hidden_us));
    }
  }
}

}  // namespace
}  // namespace bitshard

int main() { bitshard::Main(); }
