// Open loop at three times what the engine can do, on a virtual clock: what is taken starts within
// --max-queue-wait, nearly always, though requests differ more than predictions can know; what is
// not is refused at once; and the engine does as much as it ever could.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "coordinator/engine/error_reason.h"
#include "proto/status_details.h"
#include "tests/coordinator/engine/timed_engine.h"

namespace bitshard {
namespace {

using MakeRequest = std::function<GenerateRequest(std::mt19937& random)>;

struct Workload {
  const char* name;
  MakeRequest make;
};
void PrintTo(const Workload& workload, std::ostream* out) { *out << workload.name; }

uint32_t Draw(std::mt19937& random, uint32_t least, uint32_t most) {
  return least + static_cast<uint32_t>(random() % (most - least + 1));
}

class Overload : public testing::TestWithParam<Workload> {
 protected:
  static double TokensPerSecond(TimedEngine& engine, absl::Time since) {
    return static_cast<double>(engine.harness().Stats().tokens) /
           absl::ToDoubleSeconds(engine.now() - since);
  }
};

TEST_P(Overload, GoodputStaysAtItsPeakAndNearlyAllAcceptedOnesStartInTime) {
  constexpr int kAlone = 300;
  const MakeRequest& make = GetParam().make;
  Engine::Options options;
  options.max_running = 8;
  options.max_queue_wait = absl::Seconds(1);
  double peak = 0;
  absl::Duration gap;
  {
    std::mt19937 random(6);
    Engine::Options patient = options;
    patient.max_queue_wait = absl::InfiniteDuration();
    TimedEngine engine(patient);
    const absl::Time begin = engine.now();
    for (int i = 0; i < kAlone; ++i) engine.Send(make(random));
    engine.harness().StepUntilIdle();
    peak = TokensPerSecond(engine, begin);
    gap = (engine.now() - begin) / kAlone / 3;
  }
  TimedEngine engine(options);
  std::mt19937 random(7);
  std::vector<std::shared_ptr<RecordingSink>> accepted;
  size_t refused = 0;
  const absl::Time begin = engine.now(), end = begin + absl::Seconds(20);
  for (absl::Time next = begin; engine.now() < end;) {
    for (; next <= engine.now(); next += gap) {
      std::shared_ptr<RecordingSink> sink;
      const absl::Status status = engine.TrySend(make(random), &sink);
      if (status.ok()) {
        accepted.push_back(sink);
      } else {
        ASSERT_EQ(ErrorReason(status), kReasonQueueWait) << status;
        ++refused;
      }
    }
    if (!engine.harness().Step()) engine.harness().Wait(next - engine.now());
  }
  const double goodput = TokensPerSecond(engine, begin);
  EXPECT_GE(goodput, 0.9 * peak);
  EXPECT_GT(refused, accepted.size());
  engine.harness().StepUntilIdle();
  std::vector<absl::Duration> waits;
  for (const auto& sink : accepted) {
    ASSERT_TRUE(sink->AwaitEnd().status.ok());
    waits.push_back(sink->AwaitEnd().timings.queue);
  }
  // It has to see how wrong its predictions are.
  waits.erase(waits.begin(), waits.begin() + static_cast<std::ptrdiff_t>(waits.size() / 4));
  std::sort(waits.begin(), waits.end());
  EXPECT_LE(waits[waits.size() * 99 / 100], options.max_queue_wait);
  std::printf(
      "%s: %zu served, %zu refused; goodput %.2f of the peak; waits p50 %.0f ms, p99 %.0f ms, "
      "most %.0f ms\n",
      GetParam().name, accepted.size(), refused, goodput / peak,
      absl::ToDoubleMilliseconds(waits[waits.size() / 2]),
      absl::ToDoubleMilliseconds(waits[waits.size() * 99 / 100]),
      absl::ToDoubleMilliseconds(waits.back()));
}

INSTANTIATE_TEST_SUITE_P(
    All, Overload,
    testing::Values(Workload{"alike", [](std::mt19937&) { return TimedEngine::Make(30, 25); }},
                    Workload{"mixed",
                             [](std::mt19937& random) {
                               const uint32_t prompt = Draw(random, 10, 49);
                               return TimedEngine::Make(prompt, Draw(random, 10, 40));
                             }},
                    Workload{"few_long_ones",
                             [](std::mt19937& random) {
                               const bool is_long = random() % 20 == 0;
                               return TimedEngine::Make(20, is_long ? 200 : Draw(random, 5, 25));
                             }},
                    Workload{"long_prompts",
                             [](std::mt19937& random) {
                               return TimedEngine::Make(Draw(random, 100, 900), 3);
                             }}),
    [](const testing::TestParamInfo<Workload>& info) { return info.param.name; });

}  // namespace
}  // namespace bitshard
