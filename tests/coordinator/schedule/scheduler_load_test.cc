// The sums that the scheduler keeps. That they are sums at all times is in CheckInvariants, which
// the property tests call after every step.
#include <gtest/gtest.h>

#include "coordinator/schedule/scheduler.h"

namespace bitshard {
namespace {

SchedulerLimits Limits() {
  return {.total_blocks = 40,
          .block_tokens = 4,
          .max_slots = 8,
          .token_budget = 100,
          .max_chunk = {},
          .prefix_cache = false};
}

TEST(SchedulerLoad, SeveralChoicesThatRunAreOneRequest) {
  Scheduler scheduler;
  scheduler.StartEpoch(Limits());
  for (SequenceId id = 1; id <= 4; ++id) {
    SequenceSpec spec;
    spec.id = id;
    if (id >= 2) spec.first_choice = 2;
    spec.prompt.assign(6, 7);
    spec.max_tokens = 3;
    scheduler.Add(spec);
  }
  EXPECT_EQ(scheduler.running_requests(), 0u);
  ASSERT_EQ(scheduler.Schedule().rows.size(), 4u);
  EXPECT_EQ(scheduler.running(), 4u);
  EXPECT_EQ(scheduler.running_requests(), 2u);
  EXPECT_EQ(scheduler.running_prompt_tokens(), 24u);
  EXPECT_EQ(scheduler.running_further_tokens(), 12u);
  scheduler.Remove(2);  // the first one ends before the others
  EXPECT_EQ(scheduler.running_requests(), 2u);
  EXPECT_EQ(scheduler.running_further_tokens(), 12u);
  scheduler.Quarantine(3);
  EXPECT_EQ(scheduler.running_requests(), 2u);
  EXPECT_EQ(scheduler.running_further_tokens(), 6u);
  EXPECT_TRUE(scheduler.CheckInvariants().ok()) << scheduler.CheckInvariants();
  scheduler.EndEpoch();
  EXPECT_EQ(scheduler.running_requests(), 0u);
  EXPECT_EQ(scheduler.running_further_tokens(), 0u);
  scheduler.StartEpoch(Limits());
  ASSERT_EQ(scheduler.Schedule().rows.size(), 2u);
  EXPECT_EQ(scheduler.running_requests(), 2u);
  scheduler.Remove(4);
  EXPECT_EQ(scheduler.running_requests(), 1u);
  EXPECT_TRUE(scheduler.CheckInvariants().ok()) << scheduler.CheckInvariants();
}

}  // namespace
}  // namespace bitshard
