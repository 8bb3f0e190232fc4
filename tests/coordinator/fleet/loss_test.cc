// The fleet's state machine when things break: death in every phase, silence, stalls, failures, and
// who is blamed.

#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/coordinator/fleet/group_harness.h"

namespace bitshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Message = internal::CoordinatorMessage;

TEST(GroupLoss, DeathWhileLoadingFormsAgainWithoutEndingAnEpoch) {
  GroupHarness h(2);
  h.Join(1, 1);
  h.Join(2, 2);
  h.Loaded(1);
  h.group.Disconnected(2, h.now);
  EXPECT_EQ(h.Count(1, Message::kEndEpoch), 0);
  h.Join(3, 3);
  h.Pass(absl::Seconds(1), {1, 3});
  EXPECT_EQ(h.LastAssign(3)->rank(), 1u);
  EXPECT_EQ(h.LastAssign(1)->term(), 2u);
  h.BringUpFromLoading({1, 3});
  EXPECT_THAT(h.events, ElementsAre("ready 2/1"));
}

TEST(GroupLoss, DeathWhileJoiningOrAllocatingEndsTheEpochUnseenByTheEngine) {
  for (const bool allocating : {false, true}) {
    GroupHarness h(2);
    h.Join(1, 1);
    h.Join(2, 2);
    h.Loaded(1);
    h.Loaded(2);
    if (allocating) {
      h.Joined(1);
      h.Joined(2);
    }
    h.group.Disconnected(2, h.now);
    EXPECT_EQ(h.Count(1, Message::kEndEpoch), 1);
    h.Quiesced(1);
    h.Join(3, 3);
    h.Pass(absl::Seconds(1), {1, 3});
    h.BringUpFromLoading({1, 3});
    EXPECT_THAT(h.events, ElementsAre("ready 2/2")) << allocating;
  }
}

TEST(GroupLoss, DeathWhileReadyIsReportedAtOnceAndNamesTheRank) {
  GroupHarness h(2);
  h.BringUp(2);
  h.Submit(1);
  h.group.Disconnected(2, h.now);
  EXPECT_THAT(h.events, ElementsAre("ready 1/1", "lost 1/1"));
  EXPECT_EQ(h.losses[0].code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(h.losses[0].message()),
              HasSubstr("rank 1 (pid 102 on host): connection closed"));
  EXPECT_EQ(h.Count(1, Message::kEndEpoch), 1);
}

TEST(GroupLoss, TheNextGroupWaitsUntilSurvivorsAreAtRest) {
  GroupHarness h(2);
  h.BringUp(2);
  h.group.Disconnected(2, h.now);
  h.Join(3, 3);
  h.Pass(absl::Seconds(1), {1, 3});
  EXPECT_EQ(h.LastAssign(3), nullptr);
  h.Quiesced(1);
  h.Pass(absl::Seconds(1), {1, 3});
  EXPECT_NE(h.LastAssign(3), nullptr);
}

TEST(GroupLoss, WhoDoesNotComeToRestIsLost) {
  GroupHarness h(2);
  h.BringUp(2);
  h.group.Disconnected(2, h.now);
  h.Pass(absl::Seconds(4), {1});
  EXPECT_EQ(h.closed.count(1), 1u);
  EXPECT_THAT(h.events, ElementsAre("ready 1/1", "lost 1/1"))
      << "one loss, however many ranks go with it";
  EXPECT_EQ(h.group.state(), Group::State::kWaiting);
}

TEST(GroupLoss, BothRanksGoneFormAFreshGroup) {
  GroupHarness h(2);
  h.BringUp(2);
  h.group.Disconnected(1, h.now);
  h.group.Disconnected(2, h.now);
  h.Join(3, 3);
  h.Join(4, 4);
  h.Pass(absl::Seconds(1), {3, 4});
  h.BringUpFromLoading({3, 4});
  EXPECT_THAT(h.events, ElementsAre("ready 1/1", "lost 1/1", "ready 2/2"));
}

TEST(GroupLoss, ThreeSecondsOfSilenceAreALossWithinFive) {
  GroupHarness h(2);
  h.BringUp(2);
  h.Submit(1);
  h.Pass(absl::Milliseconds(2900), {1});
  EXPECT_THAT(h.events, ElementsAre("ready 1/1"));
  h.Pass(absl::Milliseconds(300), {1});
  EXPECT_THAT(h.events, ElementsAre("ready 1/1", "lost 1/1"));
  EXPECT_THAT(std::string(h.losses[0].message()), HasSubstr("rank 1"));
  EXPECT_THAT(std::string(h.losses[0].message()), HasSubstr("silent"));
  EXPECT_EQ(h.closed.count(2), 1u);
}

TEST(GroupLoss, AStoppedCoordinatorDoesNotBlameItsWorkers) {
  GroupHarness h(2);
  h.BringUp(2);
  h.Pass(absl::Seconds(1), {1, 2});
  h.now += absl::Seconds(10);
  h.group.Tick(h.now);
  EXPECT_THAT(h.events, ElementsAre("ready 1/1"));
}

TEST(GroupLoss, AStoppedCoordinatorStillFindsWhoFallsSilentAfterwards) {
  GroupHarness h(2);
  h.BringUp(2);
  h.Pass(absl::Seconds(1), {1, 2});
  h.Submit(1);
  h.now += absl::Minutes(1);
  h.Heartbeat(1, 1, 7, true);  // what had queued up comes before the first tick
  h.Heartbeat(2, 1, 6, true);
  h.group.Tick(h.now);
  h.Pass(absl::Milliseconds(3200), {1});
  ASSERT_EQ(h.losses.size(), 1u);
  EXPECT_THAT(std::string(h.losses[0].message()), HasSubstr("rank 1 (pid 102 on host): silent"));
}

TEST(GroupLoss, AStoppedCoordinatorStillFindsWhoStallsAfterwards) {
  GroupHarness h(2);
  h.BringUp(2);
  h.Pass(absl::Seconds(1), {1, 2});
  h.Submit(1);
  h.now += absl::Minutes(1);
  h.Heartbeat(1, 1, 7, true);
  h.Heartbeat(2, 1, 6, true);
  h.group.Tick(h.now);
  h.Pass(absl::Milliseconds(4200), {1, 2});
  ASSERT_EQ(h.losses.size(), 1u);
  EXPECT_THAT(std::string(h.losses[0].message()),
              HasSubstr("rank 1 (pid 102 on host): no progress"));
}

// As a real worker does it: heartbeats every 250 ms, the last progress just after one of them.
TEST(GroupLoss, AHungStepThreadIsALossWithinFiveSeconds) {
  GroupHarness h(2);
  h.BringUp(2);
  h.Submit(1);
  h.Heartbeat(1, 1, 7, true);
  h.Heartbeat(2, 1, 5, true);
  const absl::Time hung = h.now;  // in op 6, of which the next heartbeat tells
  while (h.losses.empty() && h.now - hung < absl::Seconds(10)) {
    h.Pass(absl::Milliseconds(250), {});
    h.Heartbeat(1, 1, 7, true);
    h.Heartbeat(2, 1, 6, true);
  }
  ASSERT_EQ(h.losses.size(), 1u);
  EXPECT_LT(h.now - hung, absl::Seconds(5));
  EXPECT_THAT(std::string(h.losses[0].message()),
              HasSubstr("rank 1 (pid 102 on host): no progress"));
}

TEST(GroupLoss, AStallBlamesTheRankThatIsBehind) {
  GroupHarness h(2);
  h.BringUp(2);
  h.Submit(1);
  h.Heartbeat(1, 1, 7, true);
  h.Heartbeat(2, 1, 6, true);
  h.Pass(absl::Milliseconds(3900), {1, 2});
  EXPECT_THAT(h.events, ElementsAre("ready 1/1"));
  h.Pass(absl::Milliseconds(300), {1, 2});
  EXPECT_THAT(h.events, ElementsAre("ready 1/1", "lost 1/1"));
  EXPECT_THAT(std::string(h.losses[0].message()),
              HasSubstr("rank 1 (pid 102 on host): no progress"));
}

TEST(GroupLoss, AStallOfAllInOnePlaceBlamesTheLink) {
  GroupHarness h(2);
  h.BringUp(2);
  h.Submit(1);
  h.Heartbeat(1, 1, 7, true);
  h.Heartbeat(2, 1, 7, true);
  h.Pass(absl::Seconds(6), {1, 2});
  ASSERT_EQ(h.losses.size(), 1u);
  EXPECT_THAT(std::string(h.losses[0].message()), HasSubstr("link"));
}

TEST(GroupLoss, ProgressWithinALongStepIsNoStall) {
  GroupHarness h(2);
  h.BringUp(2);
  h.Submit(1);
  for (uint64_t op = 1; op <= 10; ++op) {
    h.Heartbeat(1, 1, op, true);
    h.Heartbeat(2, 1, op, true);
    h.Pass(absl::Seconds(2), {1, 2});
  }
  EXPECT_THAT(h.events, ElementsAre("ready 1/1"));
}

TEST(GroupLoss, AnIdleGroupDoesNotStall) {
  GroupHarness h(2);
  h.BringUp(2);
  h.Pass(absl::Seconds(30), {1, 2});
  EXPECT_THAT(h.events, ElementsAre("ready 1/1"));
}

TEST(GroupLoss, ABrokenCommunicatorBlamesWhoeverBrokeIt) {
  GroupHarness h(2);
  h.BringUp(2);
  h.Submit(1);
  h.Fail(1, absl::StatusCode::kUnavailable, 1, "peer is gone");
  EXPECT_THAT(h.events, ElementsAre("ready 1/1"));
  h.Pass(absl::Milliseconds(100), {1, 2});
  h.group.Disconnected(2, h.now);
  ASSERT_EQ(h.losses.size(), 1u);
  EXPECT_THAT(std::string(h.losses[0].message()), HasSubstr("rank 1"));
}

TEST(GroupLoss, ABrokenCommunicatorWithoutACulpritEndsTheEpochToo) {
  GroupHarness h(2);
  h.BringUp(2);
  h.Submit(1);
  h.Fail(1, absl::StatusCode::kUnavailable, 1, "peer is gone");
  h.Pass(absl::Seconds(1), {1, 2});
  ASSERT_EQ(h.losses.size(), 1u);
  EXPECT_THAT(std::string(h.losses[0].message()), HasSubstr("rank 0"));
  EXPECT_THAT(std::string(h.losses[0].message()), HasSubstr("peer is gone"));
}

TEST(GroupLoss, AWorkersOwnFaultEndsTheEpochAtOnceAndItMayStay) {
  GroupHarness h(2);
  h.BringUp(2);
  h.Submit(1);
  h.Fail(2, absl::StatusCode::kInternal, 1, "plan hash differs");
  ASSERT_EQ(h.losses.size(), 1u);
  EXPECT_THAT(std::string(h.losses[0].message()), HasSubstr("rank 1"));
  EXPECT_EQ(h.closed.size(), 0u);
  h.Quiesced(1);
  h.Quiesced(2);
  h.Pass(absl::Seconds(1), {1, 2});
  h.BringUpFromLoading({1, 2});
  EXPECT_EQ(h.events.back(), "ready 2/2");
}

TEST(GroupLoss, AFailureOfAnEarlierEpochIsIgnored) {
  GroupHarness h(2);
  h.BringUp(2);
  h.Fail(2, absl::StatusCode::kInternal, 99, "late");
  EXPECT_THAT(h.events, ElementsAre("ready 1/1"));
}

TEST(GroupLoss, BrokenWeightsAreHopelessAndNameTheRank) {
  GroupHarness h(2);
  h.Join(1, 1);
  h.Join(2, 2);
  h.Fail(2, absl::StatusCode::kDataLoss, 0, "model.gguf: ends at byte 17");
  ASSERT_EQ(h.hopeless.size(), 1u);
  EXPECT_EQ(h.hopeless[0].code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(h.hopeless[0].message()), HasSubstr("rank 1"));
  EXPECT_THAT(std::string(h.hopeless[0].message()), HasSubstr("model.gguf"));
}

TEST(GroupLoss, WhatAReplacementCannotFindOrHoldIsItsOwnTrouble) {
  for (const auto code : {absl::StatusCode::kNotFound, absl::StatusCode::kPermissionDenied,
                          absl::StatusCode::kResourceExhausted}) {
    {
      GroupHarness h(2);  // before the first group nothing has ever sufficed
      h.Join(1, 1);
      h.Join(2, 2);
      h.Fail(2, code, 0, "no room");
      EXPECT_EQ(h.hopeless.size(), 1u) << code;
    }
    GroupHarness h(2);
    h.BringUp(2);
    h.group.Disconnected(2, h.now);
    h.Quiesced(1);
    h.Join(3, 3);
    h.Pass(absl::Seconds(1), {1, 3});
    ASSERT_NE(h.LastAssign(3), nullptr);
    h.Fail(3, code, 0, "no room");
    EXPECT_EQ(h.hopeless.size(), 0u) << code;
    ASSERT_EQ(h.Count(3, Message::kRelease), 1);
    EXPECT_FALSE(h.sent[3].back().release().exit());
    h.Join(4, 4);
    EXPECT_EQ(h.LastAssign(4), nullptr) << "backs off first";
    h.Pass(absl::Seconds(2), {1, 4});
    ASSERT_NE(h.LastAssign(4), nullptr);
    h.BringUpFromLoading({1, 4});
    EXPECT_EQ(h.infos.size(), 2u);
  }
}

TEST(GroupLoss, BrokenWeightsAreHopelessInAReplacementToo) {
  GroupHarness h(2);
  h.BringUp(2);
  h.group.Disconnected(2, h.now);
  h.Quiesced(1);
  h.Join(3, 3);
  h.Pass(absl::Seconds(1), {1, 3});
  h.Fail(3, absl::StatusCode::kDataLoss, 0, "model.gguf: ends at byte 17");
  EXPECT_EQ(h.hopeless.size(), 1u);
}

TEST(GroupLoss, MissingRanksOfEachPhaseAreNamedWhenItTakesTooLong) {
  {
    GroupHarness h(2);
    h.Join(1, 1);
    h.Join(2, 2);
    h.Loaded(1);
    h.Pass(absl::Seconds(61), {1, 2});
    EXPECT_THAT(std::string(h.closed[2].message()), HasSubstr("no progress in loading"));
    EXPECT_THAT(h.group.Snapshot(h.now).detail, HasSubstr("rank 1"));
  }
  {
    GroupHarness h(2);
    h.Join(1, 1);
    h.Join(2, 2);
    h.Loaded(1);
    h.Loaded(2);
    h.Joined(1);
    h.Pass(absl::Seconds(30) + absl::Milliseconds(100), {1, 2});
    EXPECT_EQ(h.Count(1, Message::kEndEpoch), 1);
    EXPECT_THAT(h.group.Snapshot(h.now).detail, HasSubstr("joining"));
    EXPECT_THAT(h.group.Snapshot(h.now).detail, HasSubstr("missing: rank 1"));
  }
  {
    GroupHarness h(2);
    h.Join(1, 1);
    h.Join(2, 2);
    h.Loaded(1);
    h.Loaded(2);
    h.Joined(1);
    h.Joined(2);
    h.Ready(2);
    h.Pass(absl::Seconds(60) + absl::Milliseconds(100), {1, 2});
    EXPECT_THAT(h.group.Snapshot(h.now).detail, HasSubstr("missing: rank 0"));
  }
}

TEST(GroupLoss, LoadingMayTakeLongWhileItMoves) {
  GroupHarness h(1);
  h.Join(1, 1);
  for (int i = 1; i <= 20; ++i) {
    h.Receive(1, [&](auto& m) { m.mutable_progress()->set_done_bytes(i); });
    h.Pass(absl::Seconds(30), {1});
  }
  EXPECT_EQ(h.group.state(), Group::State::kLoading);
}

TEST(GroupLoss, FailedBringUpsBackOff) {
  GroupHarness h(1);
  h.Join(1, 1);
  int attempts = 0;
  for (int i = 0; i < 400; ++i) {  // 20 s
    if (h.group.state() == Group::State::kLoading) {
      ++attempts;
      h.Loaded(1);
      h.Fail(1, absl::StatusCode::kInternal, h.Epoch(), "self-test");
      h.Quiesced(1);
    }
    h.Pass(absl::Milliseconds(50), {1});
  }
  EXPECT_GE(attempts, 4);
  EXPECT_LE(attempts, 7);
  EXPECT_THAT(h.events, ElementsAre());
}

TEST(GroupLoss, LostWeightsAreAskedForAgain) {
  GroupHarness h(2);
  h.BringUp(2);
  h.group.Disconnected(2, h.now);
  h.Quiesced(1, /*intact=*/false);
  h.Join(3, 3);
  h.Pass(absl::Seconds(1), {1, 3});
  EXPECT_EQ(h.LastAssign(1)->rank(), 0u);
}

TEST(GroupLoss, LeavingIsALossWithItsReason) {
  GroupHarness h(2);
  h.BringUp(2);
  h.Receive(2, [](auto& m) { m.mutable_leaving()->set_reason("SIGTERM"); });
  ASSERT_EQ(h.losses.size(), 1u);
  EXPECT_THAT(std::string(h.losses[0].message()), HasSubstr("is leaving: SIGTERM"));
}

// Whatever workers say and whenever they go: ready and lost alternate, steps come in order and only
// in between, nothing dies.
TEST(GroupLoss, AnyOrderOfEventsKeepsTheListenersContract) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    const auto pick = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
    const uint32_t world = 1 + pick(3);
    GroupHarness h(world);
    ConnectionId next = 1;
    std::vector<ConnectionId> alive;
    uint64_t submitted = 0;
    size_t seen_ready = 0;
    for (int i = 0; i < 400; ++i) {
      if (h.infos.size() != seen_ready) {
        seen_ready = h.infos.size();
        submitted = 0;
      }
      std::erase_if(alive, [&](ConnectionId c) { return h.closed.count(c) > 0; });
      const ConnectionId c = alive.empty() ? 0 : alive[pick(alive.size())];
      switch (pick(13)) {
        case 0:
          if (alive.size() < world + 1) {
            h.Join(next, static_cast<int>(next));
            alive.push_back(next++);
          }
          break;
        case 1:
          if (c != 0 && pick(4) == 0) {
            h.group.Disconnected(c, h.now);
            std::erase(alive, c);
          }
          break;
        case 2:
          if (c) h.Loaded(c);
          break;
        case 3:
          if (c) h.Joined(c);
          break;
        case 4:
          if (c) h.Ready(c);
          break;
        case 5:
          if (c) h.Quiesced(c, pick(2));
          break;
        case 6:
        case 7:
          if (h.group.state() == Group::State::kReady && submitted < 1000) h.Submit(++submitted);
          break;
        case 8:
        case 9:
          if (c && !h.infos.empty()) {
            const GroupSnapshot snapshot = h.group.Snapshot(h.now);
            for (const auto& rank : snapshot.ranks) {
              if (rank.present && rank.pid == 100 + static_cast<int64_t>(c) &&
                  (rank.rank == 0 || pick(20) == 0))
                h.Result(c, rank.rank, rank.acked_step + (pick(20) != 0));
            }
          }
          break;
        case 10:
          if (c && pick(4) == 0)
            h.Fail(c, pick(2) ? absl::StatusCode::kInternal : absl::StatusCode::kUnavailable,
                   pick(2) ? h.Epoch() : 0, "x");
          break;
        case 11:
          if (c) h.Heartbeat(c, pick(3), pick(3), pick(2));
          break;
        case 12:
          h.Pass(absl::Milliseconds(50 * (1 + pick(20))), alive);
          break;
      }
    }
    bool ready = false;
    uint64_t step = 0;
    for (const std::string& event : h.events) {
      if (event.starts_with("ready")) {
        ASSERT_FALSE(ready);
        ready = true;
        step = 0;
      } else if (event.starts_with("lost")) {
        ASSERT_TRUE(ready);
        ready = false;
      } else {
        ASSERT_TRUE(ready);
        ASSERT_EQ(event, absl::StrCat("step ", ++step, " of rank 0"));
      }
    }
  }
}

}  // namespace
}  // namespace bitshard
