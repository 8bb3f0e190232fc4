// Over which collective a group meets, what its ranks must have in common for it, and what they
// tell each other first.

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/coordinator/fleet/group_harness.h"

namespace bitshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Message = internal::CoordinatorMessage;

// Registers worker `number` of `host` with those collectives, in its place.
void JoinFrom(GroupHarness& h, int number, const std::string& host,
              const std::vector<std::string>& collectives) {
  auto registration = GroupHarness::Registration(number);
  registration.set_host(host);
  for (const std::string& name : collectives) registration.add_collectives(name);
  h.Connect(number);
  h.Register(number, registration);
}

TEST(CollectiveChoice, RanksOfOneHostShareMemoryAndOthersUseGloo) {
  struct Case {
    std::string second_host;
    std::vector<std::string> first, second;
    std::string chosen;  // "" = the second is refused
    bool several_hosts = false;
  };
  const std::vector<std::string> both = {"shm", "gloo"};
  const std::vector<Case> cases = {
      {"host", {}, {}, "shm", false},
      {"host", both, both, "shm", false},
      {"host", both, {"gloo"}, "gloo", false},
      {"elsewhere", both, both, "gloo", true},
      {"elsewhere", {"gloo"}, both, "gloo", true},
      {"elsewhere", both, {"shm"}, "", true},
      {"elsewhere", {"shm"}, both, "", true},
      {"host", {"shm"}, {"gloo"}, "", false},
      {"host", {"nccl"}, {"nccl"}, "nccl", false},
      {"elsewhere", {"nccl"}, {"nccl"}, "nccl", true},
      {"host", {"nccl"}, both, "", false},
      {"host", both, {"nccl"}, "", false},
  };
  for (const Case& c : cases) {
    GroupHarness h(2);
    JoinFrom(h, 1, "host", c.first);
    JoinFrom(h, 2, c.second_host, c.second);
    if (c.chosen.empty()) {
      EXPECT_EQ(h.closed[2].code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(std::string(h.closed[2].message()),
                  AllOf(HasSubstr("none in common"), HasSubstr("--collective=auto")));
      continue;
    }
    h.Loaded(1);
    h.Loaded(2);
    ASSERT_EQ(h.Count(2, Message::kJoinCommunicator), 1);
    EXPECT_EQ(h.sent[2].back().join_communicator().collective(), c.chosen);
    EXPECT_EQ(h.sent[2].back().join_communicator().several_hosts(), c.several_hosts);
  }
}

// Every two have one in common, the three have none.
TEST(CollectiveChoice, AWorkerThatLeavesTheGroupWithoutACommonCollectiveIsRefused) {
  GroupHarness h(3);
  JoinFrom(h, 1, "host", {"shm", "gloo"});
  JoinFrom(h, 2, "host", {"gloo", "nccl"});
  JoinFrom(h, 3, "host", {"nccl", "shm"});
  EXPECT_EQ(h.closed.count(2), 0u);
  EXPECT_EQ(h.closed[3].code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(h.closed[3].message()), HasSubstr("none in common"));
}

// Registers worker `number` of `host` with that device, in its place.
void JoinOn(GroupHarness& h, int number, const std::string& host, const std::string& device,
            const std::string& device_id) {
  auto registration = GroupHarness::Registration(number);
  registration.set_host(host);
  registration.set_device(device);
  registration.set_device_id(device_id);
  registration.add_collectives("nccl");
  h.Connect(number);
  h.Register(number, registration);
}

TEST(CollectiveChoice, RanksHaveOneKindOfDeviceAndEachItsOwn) {
  struct Case {
    std::string host, device, id;  // of the second; the first: host, cuda:0, GPU-1
    std::string says;              // "" = it is let in
  };
  const std::vector<Case> cases = {
      {"host", "cuda:1", "GPU-2", ""},
      {"host", "cuda:0", "GPU-2", ""},  // each sees its own alone
      {"elsewhere", "cuda:0", "GPU-1", ""},
      {"host", "cuda:0", "GPU-1", "its device GPU-1 of host host is that of pid 101"},
      {"host", "cpu", "", "pid 101 on host host on cuda:0"},
  };
  for (const Case& c : cases) {
    GroupHarness h(2);
    JoinOn(h, 1, "host", "cuda:0", "GPU-1");
    JoinOn(h, 2, c.host, c.device, c.id);
    EXPECT_EQ(h.closed.count(1), 0u);
    EXPECT_EQ(h.closed.count(2), c.says.empty() ? 0u : 1u) << c.device << c.id;
    if (c.says.empty()) continue;
    EXPECT_EQ(h.closed[2].code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(h.closed[2].message()),
                AllOf(HasSubstr(c.says), HasSubstr("--device")));
    JoinOn(h, 3, "host", "cuda:1", "GPU-3");  // the place is still free
    EXPECT_EQ(h.closed.count(3), 0u);
  }
  GroupHarness h(2);  // CPUs have none
  JoinOn(h, 1, "host", "cpu", "");
  JoinOn(h, 2, "host", "cpu", "");
  EXPECT_EQ(h.closed.count(2), 0u);
}

// Architectures of two kinds give bits of two kinds: that is fine where bits may differ at all.
TEST(CollectiveChoice, GpusOfTwoKindsGoTogetherWhereNothingIsDeterministic) {
  for (const bool deterministic : {true, false}) {
    for (const std::string device : {"cuda", "cpu"}) {
      GroupOptions options = GroupHarness::DefaultOptions(2);
      options.numerics.set_nondeterministic(!deterministic);
      GroupHarness h(options);
      for (const int number : {1, 2}) {
        auto registration = GroupHarness::Registration(number);
        registration.set_device(device == "cpu" ? device : absl::StrCat("cuda:", number));
        registration.set_numerics_digest(absl::StrCat("digest ", number));
        registration.add_collectives(device == "cpu" ? "shm" : "nccl");
        h.Connect(number);
        h.Register(number, registration);
      }
      EXPECT_EQ(h.closed.count(1), 0u);
      const bool refused = deterministic || device == "cpu";
      ASSERT_EQ(h.closed.count(2), refused ? 1u : 0u) << device << deterministic;
      if (!refused) continue;
      const std::string why(h.closed[2].message());
      EXPECT_THAT(why, AllOf(HasSubstr("digest 1"), HasSubstr("digest 2")));
      EXPECT_EQ(why.find("--deterministic=false") != std::string::npos, device == "cuda") << why;
    }
  }
}

TEST(CollectiveChoice, AGpuOfAWorkerThatIsSilentMayBeHadLater) {
  GroupHarness h(2);
  JoinOn(h, 1, "host", "cuda:0", "GPU-1");
  JoinOn(h, 2, "host", "cuda:0", "GPU-1");
  ASSERT_EQ(h.Count(2, Message::kRelease), 1);
  EXPECT_TRUE(h.sent[2].back().release().exit()) << "the first is alive";
  // Its process ends, which the coordinator is not told, and a new one is started.
  h.Pass(absl::Milliseconds(500), {});
  int number = 3;
  for (; number < 100; ++number) {
    JoinOn(h, number, "host", "cuda:0", "GPU-1");
    if (h.closed.count(number) == 0) break;
    ASSERT_EQ(h.Count(number, Message::kRelease), 1);
    EXPECT_FALSE(h.sent[number].back().release().exit()) << "it dials again";
    EXPECT_EQ(h.closed.count(1), 0u);
    h.Pass(absl::Milliseconds(50), {});
  }
  EXPECT_LT(number, 100) << "it was let in";
  EXPECT_EQ(h.closed.count(1), 1u) << "and not before the first was lost";
}

TEST(CollectiveChoice, WorkersOnGpusAreToldOfTheirBuildAndNotOfAFlag) {
  GroupHarness h(2);
  JoinOn(h, 1, "host", "cuda:0", "GPU-1");
  auto registration = GroupHarness::Registration(2);
  registration.set_device("cuda:1");
  registration.set_device_id("GPU-2");
  h.Connect(2);
  h.Register(2, registration);
  EXPECT_THAT(std::string(h.closed[2].message()),
              AllOf(HasSubstr("none in common"), HasSubstr("--config=cuda"),
                    Not(HasSubstr("--collective"))));
}

// It has more patience than we: whoever stalls is named by the one who sees all ranks.
TEST(CollectiveChoice, RanksAreToldHowLongAnOperationMayTake) {
  GroupOptions options = GroupHarness::DefaultOptions(1);
  options.stall_timeout = absl::Seconds(7);
  GroupHarness h(options);
  h.Join(1, 1);
  h.Loaded(1);
  ASSERT_EQ(h.Count(1, Message::kJoinCommunicator), 1);
  EXPECT_GT(h.sent[1].back().join_communicator().operation_timeout_ms(), 7000u);
}

// An abort of NCCL's may take longer than one of shared memory.
TEST(CollectiveChoice, SurvivorsOnGpusHaveLongerToComeToRest) {
  for (const auto& [device, stays] : {std::pair("cpu", false), std::pair("cuda:0", true)}) {
    GroupHarness h(2);
    JoinOn(h, 1, "host", device, "");
    JoinOn(h, 2, "elsewhere", device, "");
    h.BringUpFromLoading({1, 2});
    h.group.Disconnected(2, h.now);
    h.Pass(absl::Seconds(5), {1});
    EXPECT_EQ(h.closed.count(1) == 0, stays) << device;
  }
}

TEST(CollectiveChoice, WhatRanksTellGoesToAllOnceAllHaveTold) {
  GroupHarness h(3);
  for (int i = 1; i <= 3; ++i) h.Join(i, i);
  for (int i = 1; i <= 3; ++i) h.Loaded(i);
  h.Rendezvous(3, "third");
  h.Rendezvous(1, "first");
  EXPECT_EQ(h.Count(1, Message::kRendezvousOfAll), 0);
  h.Rendezvous(2, "of an older epoch", /*epoch=*/7);
  EXPECT_EQ(h.Count(1, Message::kRendezvousOfAll), 0);
  h.Rendezvous(2, "second");
  for (int i = 1; i <= 3; ++i) {
    ASSERT_EQ(h.Count(i, Message::kRendezvousOfAll), 1);
    const internal::RendezvousOfAll& all = h.sent[i].back().rendezvous_of_all();
    EXPECT_EQ(all.epoch(), 1u);
    EXPECT_THAT(all.data(), ElementsAre("first", "second", "third"));
  }
  // A rank that goes before all have joined: the next epoch begins with nothing told.
  h.group.Disconnected(2, h.now);
  h.Quiesced(1);
  h.Quiesced(3);
  h.Join(4, 4);
  h.Pass(absl::Seconds(1), {1, 3, 4});
  for (int i : {1, 3, 4}) h.Loaded(i);
  h.Rendezvous(4, "new");
  EXPECT_EQ(h.Count(4, Message::kRendezvousOfAll), 0);
  h.Rendezvous(1, "first again");
  h.Rendezvous(3, "third again");
  ASSERT_EQ(h.Count(4, Message::kRendezvousOfAll), 1);
  EXPECT_THAT(h.sent[4].back().rendezvous_of_all().data(),
              ElementsAre("first again", "new", "third again"));
}

TEST(CollectiveChoice, ARankThatTellsTwiceNothingOrTooMuchIsLetGo) {
  for (const std::string& second :
       {std::string("twice"), std::string(), std::string(70'000, 'x')}) {
    GroupHarness h(2);
    for (int i = 1; i <= 2; ++i) h.Join(i, i);
    for (int i = 1; i <= 2; ++i) h.Loaded(i);
    if (second == "twice") h.Rendezvous(2, "once");
    h.Rendezvous(2, second);
    EXPECT_EQ(h.closed[2].code(), absl::StatusCode::kFailedPrecondition) << second.size();
  }
}

}  // namespace
}  // namespace bitshard
