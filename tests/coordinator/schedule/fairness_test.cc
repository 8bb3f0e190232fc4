// Tenants, classes and the bound on prefill, through the whole scheduler.
#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "coordinator/schedule/scheduler.h"

namespace bitshard {
namespace {

SchedulerLimits Limits(uint32_t blocks, uint32_t slots, uint32_t budget) {
  SchedulerLimits limits;
  limits.total_blocks = blocks;
  limits.block_tokens = 4;
  limits.max_slots = slots;
  limits.token_budget = budget;
  return limits;
}

// A scheduler whose workers answer each step at once; a sequence is removed with its last output.
class Service {
 public:
  explicit Service(const SchedulerLimits& limits) { scheduler.StartEpoch(limits); }

  SequenceId Add(const std::string& tenant, uint32_t prompt, uint32_t outputs, bool batch = false,
                 int32_t priority = 0) {
    SequenceSpec spec;
    spec.id = ++last_id_;
    spec.tenant = tenant;
    spec.batch = batch;
    spec.priority = priority;
    // Nothing in common with others.
    for (uint32_t i = 0; i < prompt; ++i)
      spec.prompt.push_back(static_cast<uint32_t>(spec.id) * 1000 + i);
    spec.max_tokens = outputs;
    scheduler.Add(std::move(spec));
    return last_id_;
  }

  // The rows, as (id, tokens).
  std::vector<std::pair<SequenceId, uint32_t>> Step(const PrefillLimit* limit = nullptr) {
    const StepSchedule step = scheduler.Schedule(false, limit);
    std::vector<std::pair<SequenceId, uint32_t>> rows;
    internal::StepResult result;
    for (const ScheduledRow& row : step.rows) {
      rows.emplace_back(row.sequence->id, row.n_tokens);
      served[row.sequence->tenant] += row.n_tokens;
      if (row.first_time) started.push_back(row.sequence->id);
      if (!row.sample) continue;
      internal::StepOutput* output = result.add_outputs();
      output->set_slot(row.slot.slot);
      output->set_slot_gen(row.slot.gen);
      output->set_output_index(row.output_index);
      output->set_token(7);
    }
    load = step.load;
    if (!rows.empty()) {
      for (const Commit& commit : scheduler.CommitStep(result)) {
        const Sequence& sequence = scheduler.Get(commit.id);
        if (sequence.outputs() < sequence.max_tokens) continue;
        scheduler.Remove(commit.id);
        ended.push_back(commit.id);
      }
    }
    EXPECT_TRUE(scheduler.CheckInvariants().ok()) << scheduler.CheckInvariants();
    return rows;
  }
  bool Started(SequenceId id) const {
    return std::find(started.begin(), started.end(), id) != started.end();
  }

  Scheduler scheduler;
  StepLoad load;                           // of the last step
  std::map<std::string, uint64_t> served;  // tokens computed, by tenant
  std::vector<SequenceId> started, ended;  // in order

 private:
  SequenceId last_id_ = 0;
};

using Rows = std::vector<std::pair<SequenceId, uint32_t>>;

TEST(Fairness, AThousandQueuedRequestsDelayAnothersSingleOneByItsShare) {
  Service service(Limits(/*blocks=*/400, /*slots=*/4, /*budget=*/32));
  for (int i = 0; i < 1000; ++i) service.Add("heavy", 20, 6);
  for (int i = 0; i < 30; ++i) service.Step();
  const size_t before = service.started.size();
  const SequenceId single = service.Add("light", 20, 6);
  while (!service.Started(single)) service.Step();
  // At most one more of the heavy tenant's comes in front.
  EXPECT_LE(service.started.size() - before, 2u);
}

TEST(Fairness, TenantsWithUnequalRequestsShareTheTokens) {
  Service service(Limits(/*blocks=*/1000, /*slots=*/6, /*budget=*/64));
  for (int i = 0; i < 300; ++i) {
    service.Add("long", 60, 1);
    service.Add("short", 6, 1);
    service.Add("short", 6, 1);
  }
  for (int i = 0; i < 100; ++i) service.Step();
  const double ratio =
      static_cast<double>(service.served["long"]) / static_cast<double>(service.served["short"]);
  // Outputs weigh 2: a long request costs 62, a short one 8, of which 60 and 6 are counted here.
  EXPECT_NEAR(ratio, (60. / 62) / (6. / 8), 0.1);
}

// Whatever others do, a request of a tenant with one request at a time starts after a bounded
// amount of service to others.
TEST(Fairness, NobodyStarves) {
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
    const uint32_t slots = 1 + below(6);
    Service service(Limits(/*blocks=*/40 + below(100), slots, /*budget=*/8 + below(64)));
    const uint32_t hogs = 1 + below(4), singles = 1 + below(4);
    std::map<std::string, SequenceId> live;
    std::map<SequenceId, uint64_t> since;
    constexpr uint32_t kMost = 60;  // a request: at most 40 + 2 x 10
    const auto request = [&](const std::string& tenant) {
      return service.Add(tenant, 1 + below(40), 1 + below(10));
    };
    uint64_t total = 0;
    uint32_t guests = 0;
    for (int step = 0; step < 2000; ++step) {
      for (uint32_t hog = 0; hog < hogs; ++hog) {
        // Guests are tenants that are never seen again.
        if (service.scheduler.waiting() < 50) request(absl::StrCat("hog", hog));
        if (below(8) == 0) request(absl::StrCat("guest", ++guests));
      }
      for (uint32_t i = 0; i < singles; ++i) {
        const std::string tenant = absl::StrCat("single", i);
        if (!live.contains(tenant)) {
          const SequenceId id = live[tenant] = request(tenant);
          since[id] = total;
        }
      }
      for (const auto& [id, tokens] : service.Step()) total += 2 * tokens;
      for (auto it = live.begin(); it != live.end();) {
        const SequenceId id = it->second;
        if (service.Started(id)) since.erase(id);
        it = std::find(service.ended.begin(), service.ended.end(), id) != service.ended.end()
                 ? live.erase(it)
                 : std::next(it);
      }
      // Everybody who may go before: the tenants that wait with two requests each, and what runs.
      const uint64_t bound = (2 * (hogs + singles + service.scheduler.waiting()) + slots) * kMost;
      for (const auto& [id, begin] : since) ASSERT_LT(total - begin, 4 * bound) << "id " << id;
    }
    EXPECT_GT(service.ended.size(), 100u);
  }
}

TEST(ServiceClass, BatchRunsInWhatInteractiveLeavesOver) {
  Service service(Limits(/*blocks=*/100, /*slots=*/4, /*budget=*/10));
  const SequenceId batch = service.Add("a", 30, 3, /*batch=*/true, /*priority=*/-5);
  EXPECT_EQ(service.Step(), (Rows{{batch, 10}}));
  const SequenceId interactive = service.Add("a", 16, 3);
  EXPECT_EQ(service.Step(), (Rows{{interactive, 10}}));
  EXPECT_EQ(service.Step(), (Rows{{interactive, 6}, {batch, 4}}));
  EXPECT_EQ(service.Step(), (Rows{{interactive, 1}, {batch, 9}}));
}

TEST(ServiceClass, BatchGivesItsSlotUpToSomethingInteractive) {
  Service service(Limits(/*blocks=*/100, /*slots=*/2, /*budget=*/10));
  const SequenceId first = service.Add("a", 4, 20, /*batch=*/true);
  const SequenceId second = service.Add("a", 4, 20, /*batch=*/true);
  service.Step();
  const SequenceId interactive = service.Add("a", 4, 2);
  EXPECT_EQ(service.Step(), (Rows{{interactive, 4}, {first, 1}}));
  EXPECT_EQ(service.scheduler.Get(second).preemptions, 1u);
  while (service.scheduler.running() + service.scheduler.waiting() > 0) service.Step();
  EXPECT_EQ(service.ended, (std::vector<SequenceId>{interactive, first, second}));
}

TEST(ServiceClass, BatchGivesItsBlocksUpButNotInVain) {
  Service service(Limits(/*blocks=*/10, /*slots=*/4, /*budget=*/40));
  const SequenceId holder = service.Add("a", 24, 16);  // 6 blocks, 10 in the end
  const SequenceId batch = service.Add("a", 8, 8, /*batch=*/true);
  service.Step();
  ASSERT_EQ(service.scheduler.running(), 2u);
  // Even with the batch request's blocks there are only 4.
  const SequenceId large = service.Add("a", 20, 1);
  service.Step();
  EXPECT_EQ(service.scheduler.Get(batch).preemptions, 0u);
  EXPECT_FALSE(service.Started(large));
  service.scheduler.Remove(large);
  const SequenceId small = service.Add("a", 10, 1);
  service.Step();
  EXPECT_EQ(service.scheduler.Get(batch).preemptions, 1u);
  EXPECT_TRUE(service.Started(small));
  EXPECT_EQ(service.scheduler.Get(holder).preemptions, 0u);
}

TEST(ServiceClass, BatchIsThereLastOfAllPriorities) {
  Service service(Limits(/*blocks=*/100, /*slots=*/1, /*budget=*/10));
  const SequenceId batch = service.Add("a", 4, 1, /*batch=*/true, /*priority=*/-100);
  const SequenceId late = service.Add("b", 4, 1, /*batch=*/false, /*priority=*/100);
  for (int i = 0; i < 4; ++i) service.Step();
  EXPECT_EQ(service.started, (std::vector<SequenceId>{late, batch}));
}

TEST(Levels, APromptUnderWayPausesForAnEarlierLevelAndKeepsItsBlocks) {
  Service service(Limits(/*blocks=*/100, /*slots=*/4, /*budget=*/10));
  const SequenceId late = service.Add("a", 35, 3, /*batch=*/false, /*priority=*/5);
  EXPECT_EQ(service.Step(), (Rows{{late, 10}}));
  const SequenceId early = service.Add("a", 24, 3);
  EXPECT_EQ(service.Step(), (Rows{{early, 10}}));
  EXPECT_EQ(service.scheduler.Get(late).computed, 10u);
  EXPECT_EQ(service.Step(), (Rows{{early, 10}}));
  EXPECT_EQ(service.Step(), (Rows{{early, 4}, {late, 6}}));
  // Decodes pause for nobody, and one level shares what is left as ever.
  EXPECT_EQ(service.Step(), (Rows{{early, 1}, {late, 9}}));
  const SequenceId same = service.Add("b", 5, 1, /*batch=*/false, /*priority=*/5);
  EXPECT_EQ(service.Step(), (Rows{{early, 1}, {late, 9}}));
  EXPECT_EQ(service.Step(), (Rows{{late, 1}, {same, 5}}));
  EXPECT_EQ(service.scheduler.preemptions(), 0u);
}

TEST(Levels, WhatFindsNoRoomHoldsUpNoPromptThatIsUnderWay) {
  Service service(Limits(/*blocks=*/10, /*slots=*/4, /*budget=*/10));
  const SequenceId late = service.Add("a", 35, 1, /*batch=*/false, /*priority=*/5);  // 9 blocks
  EXPECT_EQ(service.Step(), (Rows{{late, 10}}));
  const SequenceId early = service.Add("a", 8, 1);
  const SequenceId last = service.Add("a", 1, 1, /*batch=*/false, /*priority=*/7);
  for (const uint32_t tokens : {10u, 10u, 5u}) {
    EXPECT_EQ(service.Step(), (Rows{{late, tokens}}));  // and `last` does not pass `early` by
  }
  EXPECT_EQ(service.Step(), (Rows{{early, 8}, {last, 1}}));
}

TEST(Levels, AnEarlierOneIsAskedForFirstOfWhatTheItlBoundLeaves) {
  Service service(Limits(/*blocks=*/100, /*slots=*/4, /*budget=*/20));
  const PrefillLimit limit = [](const StepLoad& load, uint32_t) {
    return load.prefill_tokens == 0 ? 5u : 0u;
  };
  const SequenceId decoding = service.Add("a", 2, 10);
  service.Step(&limit);
  const SequenceId late = service.Add("a", 12, 10, /*batch=*/false, /*priority=*/5);
  EXPECT_EQ(service.Step(&limit), (Rows{{decoding, 1}, {late, 5}}));
  const SequenceId early = service.Add("a", 7, 10);
  EXPECT_EQ(service.Step(&limit), (Rows{{decoding, 1}, {early, 5}}));
  EXPECT_EQ(service.Step(&limit), (Rows{{decoding, 1}, {early, 2}}));
  EXPECT_EQ(service.Step(&limit), (Rows{{decoding, 1}, {early, 1}, {late, 5}}));
}

TEST(Levels, AsManyBatchSequencesAsNeedBeGiveWayInOneStep) {
  Service service(Limits(/*blocks=*/64, /*slots=*/16, /*budget=*/200));
  for (int i = 0; i < 16; ++i) service.Add("a", 8, 20, /*batch=*/true);  // 2 blocks, then 3
  service.Step();
  service.Step();
  ASSERT_EQ(service.scheduler.blocks().used(), 48u);
  ASSERT_EQ(service.scheduler.blocks().reclaimable(), 48u);
  // 16 blocks are free, 25 are wanted: three batch sequences are enough.
  const SequenceId large = service.Add("a", 100, 1);
  EXPECT_EQ(service.Step().front(), (std::pair<SequenceId, uint32_t>(large, 100)));
  EXPECT_EQ(service.scheduler.preemptions(), 3u);
  EXPECT_EQ(service.scheduler.running(), 13u);
}

TEST(Levels, TellsWhatRunsAndWaitsAgainAtEach) {
  Service service(Limits(/*blocks=*/100, /*slots=*/2, /*budget=*/10));
  service.Add("a", 4, 20, /*batch=*/true);
  service.Add("a", 4, 20, /*batch=*/true);
  service.Step();
  service.Add("a", 25, 2, /*batch=*/false, /*priority=*/-3);
  service.Step();
  std::vector<LevelLoad> loads;
  service.scheduler.FillLevelLoads(&loads);
  ASSERT_EQ(loads.size(), 2u);
  EXPECT_EQ(loads[0].level, (ServiceLevel{.batch = false, .priority = -3}));
  EXPECT_EQ(loads[0].running, 1u);
  EXPECT_EQ(loads[0].uncomputed_tokens, 15u);
  EXPECT_EQ(loads[0].waiting_again, 0u);
  EXPECT_EQ(loads[1].level, (ServiceLevel{.batch = true, .priority = 0}));
  EXPECT_EQ(loads[1].running, 1u);
  EXPECT_EQ(loads[1].uncomputed_tokens, 0u);
  EXPECT_EQ(loads[1].waiting_again, 1u);
  EXPECT_EQ(loads[1].again_tokens, 5u);
  EXPECT_EQ(service.scheduler.uncomputed_prompt_tokens(), 15u);
  EXPECT_EQ(service.scheduler.running_prompt_tokens(), 29u);
  EXPECT_EQ(service.scheduler.running_outputs(), 1u);
  for (SequenceId id = 1; id <= 3; ++id) service.scheduler.Remove(id);
  service.scheduler.FillLevelLoads(&loads);
  EXPECT_TRUE(loads.empty());
  EXPECT_EQ(service.scheduler.running_prompt_tokens(), 0u);
}

TEST(PrefillLimit, IsAskedOnlyBesideDecodesAndCutsWhatComesAfterThem) {
  Service service(Limits(/*blocks=*/100, /*slots=*/4, /*budget=*/20));
  std::vector<std::pair<StepLoad, uint32_t>> asked;
  const PrefillLimit limit = [&](const StepLoad& load, uint32_t start) {
    asked.emplace_back(load, start);
    return load.prefill_tokens == 0 ? 5u : 0u;
  };
  const SequenceId first = service.Add("a", 10, 10);
  EXPECT_EQ(service.Step(&limit), (Rows{{first, 10}}));
  EXPECT_TRUE(asked.empty());
  const SequenceId second = service.Add("a", 12, 10), third = service.Add("a", 12, 10);
  EXPECT_EQ(service.Step(&limit), (Rows{{first, 1}, {second, 5}}));
  ASSERT_EQ(asked.size(), 2u);
  EXPECT_EQ(asked[0].first.decode_rows, 1u);
  EXPECT_EQ(asked[0].first.prefill_tokens, 0u);
  EXPECT_EQ(asked[0].first.context_tokens, 11u);
  EXPECT_EQ(asked[1].first.prefill_tokens, 5u);
  EXPECT_EQ(asked[1].first.context_tokens, 11u + 1 + 2 + 3 + 4 + 5);
  EXPECT_EQ(service.Step(&limit), (Rows{{first, 1}, {second, 5}}));
  EXPECT_EQ(asked.back().second, 0u);  // the third one, that waits
  EXPECT_EQ(service.Step(&limit), (Rows{{first, 1}, {second, 2}}));
  EXPECT_EQ(service.Step(&limit), (Rows{{first, 1}, {second, 1}, {third, 5}}));
  EXPECT_EQ(service.load.decode_rows, 2u);
  EXPECT_EQ(service.load.prefill_tokens, 5u);
}

TEST(PrefillLimit, DoesNotHoldForBatchAmongItself) {
  Service service(Limits(/*blocks=*/100, /*slots=*/4, /*budget=*/20));
  const PrefillLimit none = [](const StepLoad&, uint32_t) { return 0u; };
  const SequenceId first = service.Add("a", 10, 10, /*batch=*/true);
  service.Step(&none);
  const SequenceId second = service.Add("a", 12, 10, /*batch=*/true);
  EXPECT_EQ(service.Step(&none), (Rows{{first, 1}, {second, 12}}));
  const SequenceId interactive = service.Add("a", 4, 10);
  EXPECT_EQ(service.Step(&none), (Rows{{interactive, 4}, {first, 1}, {second, 1}}));
  EXPECT_EQ(service.Step(&none), (Rows{{interactive, 1}}));
}

}  // namespace
}  // namespace bitshard
