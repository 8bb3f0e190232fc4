// The fleet's state machine: bring-up in any order, who is let in, and how results are joined.

#include <algorithm>
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

TEST(Group, FormsOnceAllRanksAreThere) {
  GroupHarness h(2);
  h.Join(1, 1);
  EXPECT_EQ(h.Count(1, Message::kAssign), 0);
  EXPECT_THAT(h.group.Snapshot(h.now).detail, HasSubstr("1 of 2"));
  h.Join(2, 2);
  EXPECT_EQ(h.LastAssign(1)->rank(), 0u);
  EXPECT_EQ(h.LastAssign(2)->rank(), 1u);
  h.Loaded(1, 70);
  EXPECT_EQ(h.Count(1, Message::kJoinCommunicator), 0);
  h.Loaded(2, 50);
  EXPECT_EQ(h.Count(1, Message::kJoinCommunicator), 1);
  h.Joined(2);
  h.Joined(1);
  ASSERT_EQ(h.Count(2, Message::kAllocateCache), 1);
  EXPECT_EQ(h.sent[2].back().allocate_cache().blocks(), 50u) << "as many as the poorest rank holds";
  h.Ready(1);
  EXPECT_THAT(h.events, ElementsAre());
  h.Ready(2);
  EXPECT_THAT(h.events, ElementsAre("ready 1/1"));
  EXPECT_EQ(h.infos[0].cache_blocks, 50u);
}

TEST(Group, EveryOrderOfAnswersGivesOneReady) {
  std::vector<ConnectionId> order = GroupHarness::Range(3);
  do {
    GroupHarness h(3);
    for (int i = 1; i <= 3; ++i) h.Join(i, i);
    h.BringUpFromLoading(order);
    EXPECT_THAT(h.events, ElementsAre("ready 1/1"));
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Group, RanksFollowHeldPlanThenLocalRankThenArrival) {
  GroupHarness h(3);
  auto first = GroupHarness::Registration(1);
  first.set_local_rank(2);
  auto second = GroupHarness::Registration(2);
  second.set_plan_digest("digest-1");
  second.set_held_rank(1);
  auto third = GroupHarness::Registration(3);
  third.set_local_rank(0);
  for (int i = 1; i <= 3; ++i) h.Connect(i);
  h.Register(1, first);
  h.Register(2, second);
  h.Register(3, third);
  EXPECT_EQ(h.LastAssign(2)->rank(), 1u);
  EXPECT_EQ(h.LastAssign(3)->rank(), 0u);
  EXPECT_EQ(h.LastAssign(1)->rank(), 2u);
}

TEST(Group, AHeldPlanOfAnotherModelCountsForNothing) {
  GroupHarness h(2);
  auto first = GroupHarness::Registration(1);
  first.set_plan_digest("of-another-model");
  first.set_held_rank(1);
  h.Connect(1);
  h.Register(1, first);
  h.Join(2, 2);
  EXPECT_EQ(h.LastAssign(1)->rank(), 0u);
}

TEST(Group, TwoClaimsForOneRankGoToTheFirst) {
  GroupHarness h(2);
  for (int i = 1; i <= 2; ++i) {
    auto registration = GroupHarness::Registration(i);
    registration.set_plan_digest("digest-0");
    registration.set_held_rank(0);
    h.Connect(i);
    h.Register(i, registration);
  }
  EXPECT_EQ(h.LastAssign(1)->rank(), 0u);
  EXPECT_EQ(h.LastAssign(2)->rank(), 1u);
}

TEST(Group, TermIsAboveEveryReportedOne) {
  GroupHarness h(2);
  auto registration = GroupHarness::Registration(1);
  registration.set_term(41);
  h.Connect(1);
  h.Register(1, registration);
  h.Join(2, 2);
  EXPECT_EQ(h.LastAssign(1)->term(), 42u);
  EXPECT_EQ(h.LastAssign(2)->term(), 42u);
}

TEST(Group, WrongTokenIsPermissionDenied) {
  for (const std::string token : {"", "secreT", "secret ", "secretsecret"}) {
    GroupHarness h(1);
    auto registration = GroupHarness::Registration(1);
    registration.set_token(token);
    h.Connect(1);
    h.Register(1, registration);
    EXPECT_EQ(h.closed[1].code(), absl::StatusCode::kPermissionDenied) << token;
    EXPECT_EQ(h.Count(1, Message::kAssign), 0);
    EXPECT_EQ(h.Count(1, Message::kRelease), 1);
  }
}

TEST(Group, OtherBuildProtocolNumericsOrHostAreRefusedByName) {
  struct Case {
    std::function<void(internal::Register&)> change;
    std::string says;
  };
  const std::vector<Case> cases = {
      {[](auto& r) { r.set_build("0.9"); }, "build"},
      {[](auto& r) { r.set_protocol_min(2), r.set_protocol_max(3); }, "protocol"},
      {[](auto& r) { r.set_protocol_max(0), r.set_protocol_min(0); }, "protocol"},
      {[](auto& r) { r.set_numerics_digest("other"); }, "numerics"},
      {[](auto& r) { r.set_host("elsewhere"); }, "host"},
      {[](auto& r) { r.set_instance(""); }, "instance"},
      {[](auto& r) { r.set_device(std::string(300, 'x')); }, "256"},
  };
  for (const Case& c : cases) {
    GroupHarness h(2);
    h.Join(1, 1);
    auto registration = GroupHarness::Registration(2);
    c.change(registration);
    h.Connect(2);
    h.Register(2, registration);
    EXPECT_THAT(std::string(h.closed[2].message()), HasSubstr(c.says));
    EXPECT_EQ(h.closed.count(1), 0u) << c.says;
    h.Join(3, 3);  // the place is still free
    EXPECT_NE(h.LastAssign(3), nullptr) << c.says;
  }
}

TEST(Group, AWorkerThatLacksAnOpIsRefusedAndNamed) {
  GroupHarness h(2);
  h.Join(1, 1);
  auto registration = GroupHarness::Registration(2);
  registration.clear_ops();
  registration.add_ops("rms_norm");
  h.Connect(2);
  h.Register(2, registration);
  EXPECT_EQ(h.closed[2].code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(h.closed[2].message()), HasSubstr("attention"));
  EXPECT_EQ(h.LastAssign(1), nullptr);
}

TEST(Group, ASpareWaitsAndTakesThePlaceOfALostRank) {
  GroupHarness h(2);
  h.BringUp(2);
  h.Join(3, 3);
  const GroupSnapshot snapshot = h.group.Snapshot(h.now);
  ASSERT_EQ(snapshot.spares.size(), 1u);
  EXPECT_EQ(snapshot.spares[0].pid, 103);
  EXPECT_EQ(snapshot.spares[0].host, "host");
  h.group.Disconnected(2, h.now);
  EXPECT_THAT(h.events, ElementsAre("ready 1/1", "lost 1/1"));
  h.Quiesced(1);
  h.Pass(absl::Seconds(1), {1, 3});
  ASSERT_NE(h.LastAssign(3), nullptr);
  EXPECT_EQ(h.LastAssign(3)->rank(), 1u);
  EXPECT_EQ(h.LastAssign(1)->rank(), 0u) << "a survivor keeps its rank, and with it its weights";
  EXPECT_EQ(h.LastAssign(1)->term(), 2u);
  h.BringUpFromLoading({1, 3});
  EXPECT_THAT(h.events, ElementsAre("ready 1/1", "lost 1/1", "ready 2/2"));
}

// Two coordinators that each hold half of the workers would wait for ever.
TEST(Group, APartOfAGroupIsLetGoAfterARandomWhile) {
  std::vector<absl::Duration> delays;
  for (const char* instance : {"one", "two", "three"}) {
    GroupOptions options = GroupHarness::DefaultOptions(3);
    options.instance = instance;
    GroupHarness h(options);
    h.Connect(7);  // says nothing; no part of it
    h.Join(1, 1);
    h.Join(2, 2);
    EXPECT_EQ(h.group.Snapshot(h.now).spares.size(), 2u) << "waiting workers are seen, too";
    const absl::Time start = h.now;
    while (h.closed.count(1) == 0 && h.now - start < absl::Minutes(3))
      h.Pass(absl::Milliseconds(50), {1, 2});
    delays.push_back(h.now - start);
    EXPECT_GE(delays.back(), absl::Seconds(60)) << instance;
    EXPECT_LE(delays.back(), absl::Seconds(121)) << instance;
    EXPECT_EQ(h.closed.count(2), 1u);
    for (const ConnectionId c : {1, 2}) {
      ASSERT_EQ(h.Count(c, Message::kRelease), 1);
      EXPECT_FALSE(h.sent[c].back().release().exit()) << "it dials again";
      EXPECT_THAT(h.sent[c].back().release().reason(), HasSubstr("only 2 of 3"));
    }
    // They come back, and with the third the group forms.
    for (int i = 1; i <= 3; ++i) h.Join(10 + i, i);
    h.BringUpFromLoading({11, 12, 13});
    EXPECT_THAT(h.events, ElementsAre("ready 1/1"));
    h.Pass(absl::Minutes(3), {11, 12, 13});
    EXPECT_THAT(h.events, ElementsAre("ready 1/1"));
  }
  EXPECT_NE(delays[0], delays[1]);
  EXPECT_NE(delays[0], delays[2]);
}

TEST(Group, ASecondRegisterIsAProtocolErrorAndLosesTheRank) {
  GroupHarness h(2);
  h.BringUp(2);
  h.Register(2, GroupHarness::Registration(2));
  EXPECT_THAT(std::string(h.closed[2].message()), HasSubstr("second Register"));
  EXPECT_THAT(h.events, ElementsAre("ready 1/1", "lost 1/1"));
}

TEST(Group, AProcessThatDialsAgainReplacesItsFormerStream) {
  GroupHarness h(2);
  h.BringUp(2);
  h.Join(3, 2);  // the same instance as connection 2
  EXPECT_EQ(h.closed.count(2), 1u);
  EXPECT_THAT(h.events, ElementsAre("ready 1/1", "lost 1/1"));
  EXPECT_THAT(std::string(h.losses[0].message()), HasSubstr("rank 1"));
  h.Quiesced(1);
  h.Pass(absl::Seconds(1), {1, 3});
  EXPECT_EQ(h.LastAssign(3)->rank(), 1u);
}

TEST(Group, AnythingBeforeRegisterIsRefused) {
  GroupHarness h(1);
  h.Connect(1);
  h.Heartbeat(1, 0, 0, false);
  EXPECT_EQ(h.closed[1].code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Group, AConnectionThatNeverRegistersIsCut) {
  GroupHarness h(1);
  h.Connect(1);
  h.Pass(absl::Seconds(6), {});
  EXPECT_EQ(h.closed.count(1), 1u);
}

TEST(Group, TooManyUnregisteredConnectionsAreTurnedAway) {
  GroupHarness h(1);
  for (ConnectionId c = 1; c <= 64; ++c) h.Connect(c);
  EXPECT_EQ(h.closed.size(), 0u);
  h.Connect(65);
  EXPECT_EQ(h.closed[65].code(), absl::StatusCode::kResourceExhausted);
}

TEST(Group, ResultsOfRankZeroAreGivenOutInOrder) {
  GroupHarness h(2);
  h.BringUp(2);
  h.Submit(1);
  h.Submit(2);
  EXPECT_EQ(h.Count(1, Message::kStepPlan), 2);
  EXPECT_EQ(h.Count(2, Message::kStepPlan), 2);
  h.Result(1, 0, 1);
  EXPECT_THAT(h.events, ElementsAre("ready 1/1", "step 1 of rank 0"));
  h.Result(1, 0, 1);  // a duplicate
  h.Result(1, 0, 2);
  EXPECT_THAT(h.events, ElementsAre("ready 1/1", "step 1 of rank 0", "step 2 of rank 0"));
}

TEST(Group, HeartbeatsTellWhatTheOtherRanksHaveFinished) {
  GroupHarness h(2);
  h.BringUp(2);
  const auto finished = [&h] { return h.group.Snapshot(h.now).ranks[1].acked_step; };
  h.Submit(1);
  h.Submit(2);
  h.Heartbeat(2, 1, 3, /*busy=*/true);
  EXPECT_EQ(finished(), 0u);
  h.Heartbeat(2, 2, 3, /*busy=*/true);
  EXPECT_EQ(finished(), 1u);
  h.Heartbeat(2, 2, 7, /*busy=*/false);
  EXPECT_EQ(finished(), 2u);
  h.Heartbeat(2, 9, 7, /*busy=*/false);  // of a plan that was never sent
  EXPECT_EQ(finished(), 2u);
}

TEST(Group, AGapOrAResultOfTheFutureOrOfAnotherRankEndsTheEpoch) {
  for (const auto& [rank, step] :
       std::vector<std::pair<uint32_t, uint64_t>>{{0, 2}, {0, 3}, {1, 1}}) {
    GroupHarness h(2);
    h.BringUp(2);
    h.Submit(1);
    h.Submit(2);
    h.Result(1, rank, step);
    EXPECT_THAT(h.events, ElementsAre("ready 1/1", "lost 1/1")) << rank << " " << step;
    EXPECT_THAT(std::string(h.losses[0].message()), HasSubstr("rank 0"));
  }
}

TEST(Group, OnlyRankZeroSpeaks) {
  for (const uint32_t name : {0u, 1u}) {
    GroupHarness h(2);
    h.BringUp(2);
    h.Submit(1);
    h.Result(2, name, 1);
    EXPECT_THAT(h.events, ElementsAre("ready 1/1", "lost 1/1")) << name;
    EXPECT_THAT(std::string(h.losses[0].message()), HasSubstr("rank 1"));
  }
}

TEST(Group, PlansOfAnEndedEpochGoNowhere) {
  GroupHarness h(2);
  h.BringUp(2);
  h.group.Disconnected(2, h.now);
  h.Submit(1);
  EXPECT_EQ(h.Count(1, Message::kStepPlan), 0);
}

TEST(Group, ResultsAfterALossAreNotGivenOut) {
  GroupHarness h(2);
  h.BringUp(2);
  h.Submit(1);
  h.group.Disconnected(2, h.now);
  h.Result(1, 0, 1);
  EXPECT_THAT(h.events, ElementsAre("ready 1/1", "lost 1/1"));
}

TEST(Group, KvBytesLimitTheBlocks) {
  GroupOptions options = GroupHarness::DefaultOptions(1);
  options.kv_bytes = 10 * 1024 + 5;  // a block: 2 x 1 head x 8 x 4 bytes x 16 tokens = 1024
  GroupHarness h(options);
  h.BringUp(1);
  EXPECT_EQ(h.infos[0].cache_blocks, 10u);
}

// Of ranks whose words say that they are further, not of those that say the same again.
TEST(Group, TellsThatAStepMoves) {
  GroupHarness h(2);
  h.BringUp(2);
  h.Submit(1);
  h.moves = 0;
  h.Heartbeat(2, 1, 3, /*busy=*/true);
  EXPECT_EQ(h.moves, 1);
  h.Heartbeat(2, 1, 3, /*busy=*/true);
  EXPECT_EQ(h.moves, 1);
  h.Heartbeat(2, 1, 4, /*busy=*/true);
  EXPECT_EQ(h.moves, 2);
}

// What is not given follows from the device. A KV block of DefaultOptions has 1,024 bytes.
TEST(Group, TheDeviceDecidesWhatIsNotGiven) {
  constexpr uint64_t kBlocks = 3 << 20;  // 3 GiB
  for (const auto& [device, tokens, blocks] :
       {std::tuple("cpu", 256u, uint64_t{1} << 20), std::tuple("cuda:0", 8192u, kBlocks)}) {
    GroupOptions options = GroupHarness::DefaultOptions(1);
    options.numerics.set_max_step_tokens(0);
    GroupHarness h(options);
    h.Connect(1);
    internal::Register registration = GroupHarness::Registration(1);
    registration.set_device(device);
    registration.add_collectives("shm");
    h.Register(1, registration);
    ASSERT_EQ(h.sent[1].size(), 1u) << device;
    EXPECT_EQ(h.sent[1].back().assign().numerics().max_step_tokens(), tokens) << device;
    h.Loaded(1, kBlocks);
    h.Joined(1);
    h.Ready(1);
    ASSERT_EQ(h.infos.size(), 1u) << device;
    EXPECT_EQ(h.infos[0].max_step_tokens, tokens) << device;
    EXPECT_EQ(h.infos[0].cache_blocks, blocks) << device;
  }
}

// Anew for each group, whatever the last one ran on.
TEST(Group, AnotherDeviceAfterALossDecidesAnew) {
  GroupOptions options = GroupHarness::DefaultOptions(1);
  options.numerics.set_max_step_tokens(0);
  GroupHarness h(options);
  uint32_t connection = 0;
  for (const auto& [device, tokens] :
       {std::pair("cpu", 256u), std::pair("cuda:0", 8192u), std::pair("cpu", 256u)}) {
    ++connection;
    h.Connect(connection);
    internal::Register registration = GroupHarness::Registration(static_cast<int>(connection));
    registration.set_device(device);
    registration.add_collectives("shm");
    h.Register(connection, registration);
    h.Loaded(connection, /*blocks=*/3 << 20);
    h.Joined(connection);
    h.Ready(connection);
    ASSERT_EQ(h.infos.size(), connection) << device;
    EXPECT_EQ(h.infos.back().max_step_tokens, tokens) << device;
    EXPECT_EQ(h.infos.back().cache_blocks, tokens == 256 ? 1u << 20 : 3u << 20) << device;
    h.group.Disconnected(connection, h.now);
    h.Pass(absl::Seconds(20), {});
  }
}

TEST(Group, TheBudgetHasRoomForAllThatRun) {
  GroupOptions options = GroupHarness::DefaultOptions(1);
  options.numerics.set_max_step_tokens(0);
  options.numerics.set_max_slots(300);
  GroupHarness h(options);
  h.BringUp(1);
  EXPECT_EQ(h.infos[0].max_step_tokens, 300u);
}

TEST(Group, NoRoomForABlockIsHopeless) {
  GroupOptions options = GroupHarness::DefaultOptions(1);
  options.kv_bytes = 1000;
  GroupHarness h(options);
  h.Join(1, 1);
  h.Loaded(1);
  ASSERT_EQ(h.hopeless.size(), 1u);
  EXPECT_THAT(std::string(h.hopeless[0].message()), HasSubstr("rank 0"));
}

TEST(Group, MoreCacheThanARankHasRoomForIsCutWithAWarning) {
  GroupOptions options = GroupHarness::DefaultOptions(2);
  options.kv_blocks = UINT32_MAX;
  GroupHarness h(options);
  InitLogging("test", "warning");
  testing::internal::CaptureStderr();
  h.BringUp(2);
  EXPECT_EQ(h.infos[0].cache_blocks, 100u);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("event=cache_cut rank=1"));
}

TEST(Group, PlansThatCannotBeMadeAreHopelessOnce) {
  GroupOptions options = GroupHarness::DefaultOptions(1);
  options.build_plans =
      [](const std::vector<double>&) -> absl::StatusOr<std::vector<internal::RankPlan>> {
    return absl::InvalidArgumentError("shares");
  };
  GroupHarness h(options);
  h.Join(1, 1);
  h.Pass(absl::Seconds(2), {1});
  EXPECT_EQ(h.hopeless.size(), 1u);
}

TEST(Group, HeartbeatsGoToEveryRegisteredWorkerFourTimesASecond) {
  GroupHarness h(2);
  h.Join(1, 1);
  h.Connect(2);
  h.Pass(absl::Seconds(2), {1});
  EXPECT_EQ(h.Count(1, Message::kHeartbeat), 8);
  EXPECT_EQ(h.Count(2, Message::kHeartbeat), 0);
}

TEST(Group, ReleaseLetsEveryoneGo) {
  GroupHarness h(2);
  h.BringUp(2);
  h.group.Release("bye", /*exit=*/false);
  EXPECT_EQ(h.Count(1, Message::kRelease), 1);
  EXPECT_EQ(h.Count(2, Message::kRelease), 1);
  EXPECT_EQ(h.closed.size(), 2u);
}

TEST(Group, AJoinThatCanNeverBeIsHopelessUntilAGroupHasBeenReady) {
  for (const auto code : {absl::StatusCode::kInvalidArgument, absl::StatusCode::kUnimplemented}) {
    {
      GroupHarness h(2);
      h.Join(1, 1);
      h.Join(2, 2);
      h.Loaded(1);
      h.Loaded(2);
      h.Joined(1);
      h.Fail(2, code, 1, "no such graph");
      ASSERT_EQ(h.hopeless.size(), 1u) << code;
      EXPECT_THAT(std::string(h.hopeless[0].message()), HasSubstr("rank 1"));
      EXPECT_THAT(std::string(h.hopeless[0].message()), HasSubstr("no such graph"));
    }
    GroupHarness h(2);
    h.BringUp(2);
    h.Fail(2, code, 1, "no such graph");
    EXPECT_EQ(h.hopeless.size(), 0u) << code;
  }
  GroupHarness h(2);
  h.Join(1, 1);
  h.Join(2, 2);
  h.Loaded(1);
  h.Loaded(2);
  h.Fail(2, absl::StatusCode::kFailedPrecondition, 1, "a segment of another group");
  EXPECT_EQ(h.hopeless.size(), 0u) << "tried again";
}

}  // namespace
}  // namespace bitshard
