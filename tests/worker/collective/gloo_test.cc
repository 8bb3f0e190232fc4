// What TCP adds to the contract of collective_test.cc: addresses, ranks that do not come,
// strangers, and bytes that are spoilt or cut off on the way.
#include "worker/collective/gloo.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <netinet/in.h>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/file_rendezvous.h"
#include "tests/support/tcp_proxy.h"
#include "tests/support/unique_id.h"
#include "worker/collective/collective.h"
#include "worker/collective/gloo_address.h"
#include "worker/collective/gloo_link.h"

namespace bitshard {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(30);

std::string NewId() { return UniqueId("gloo"); }

GlooGroup Group(const std::string& id, int rank, int world,
                const std::string& address = "127.0.0.1") {
  return {.id = id,
          .rank = rank,
          .world = world,
          .address = address,
          .tell = FileRendezvous(id, rank, world)};
}

// What a rank tells that has gone since: nobody listens there.
std::string AddressesOfNobody(int world) {
  auto device = OpenGlooDevice("127.0.0.1");
  std::string told;
  for (int r = 0; r < world; ++r) told += (*GlooLink::Open(*device, true))->address();
  return told;
}

TEST(GlooJoin, ARankThatDoesNotComeIsNamed) {
  GlooGroup group = Group(NewId(), 0, 2);
  group.tell = [](const std::string& mine) {
    return std::vector<std::string>{mine, AddressesOfNobody(2)};
  };
  const absl::Status status = JoinGlooCollective(group, absl::Milliseconds(500)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(status.message(), AnyOf(HasSubstr("rank 1 of 2 did not come within 500ms"),
                                      HasSubstr("no connection to rank 1 at 127.0.0.1:")));
}

TEST(GlooJoin, ARankThatTellsNothingEndsTheJoin) {
  GlooGroup group = Group(NewId(), 1, 3);
  group.tell = [](const std::string&) { return absl::UnavailableError("rank 2 told nothing"); };
  const absl::Status status = JoinGlooCollective(group, kPatience).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("rank 2 told nothing"));
}

TEST(GlooJoin, IsOverSoonAfterItIsCalledOff) {
  for (const int rank : {0, 1}) {
    std::atomic<bool> stop{false};
    absl::Status status;
    std::thread waiting([&] {
      GlooGroup group = Group(NewId(), rank, 2);
      auto device = OpenGlooDevice("127.0.0.1");
      // Listens, so a connection comes about, and says no word.
      std::vector<std::unique_ptr<GlooLink>> mute;
      group.tell = [&](const std::string& mine) {
        std::string theirs;
        for (int r = 0; r < 2; ++r)
          theirs += mute.emplace_back(*GlooLink::Open(*device, rank == 1))->address();
        stop = true;
        return rank == 0 ? std::vector<std::string>{mine, theirs}
                         : std::vector<std::string>{theirs, mine};
      };
      status = JoinGlooCollective(group, absl::InfiniteDuration(), &stop).status();
    });
    waiting.join();
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << "rank " << rank << ": " << status;
  }
}

TEST(GlooJoin, ARankOfAnotherCommunicatorIsRefused) {
  const std::string meeting = NewId();
  std::vector<absl::Status> ends(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      GlooGroup group = Group(absl::StrCat(meeting, "-epoch-", r), r, 2);
      group.tell = FileRendezvous(meeting, r, 2);
      ends[r] = JoinGlooCollective(group, kPatience).status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  // Who finds out first hangs up.
  EXPECT_TRUE(absl::IsFailedPrecondition(ends[0]) || absl::IsFailedPrecondition(ends[1]));
  for (int r = 0; r < 2; ++r) {
    EXPECT_FALSE(ends[r].ok());
    EXPECT_THAT(ends[r].message(), HasSubstr(absl::StrCat("rank ", 1 - r))) << ends[r];
  }
}

TEST(GlooJoin, BadRanksAndAddressesAreRefused) {
  const int bad[][2] = {{-1, 2}, {2, 2}, {0, 0}, {0, 65}, {0, -3}};
  for (const auto& [rank, world] : bad) {
    EXPECT_EQ(JoinGlooCollective(Group("x", rank, world), kPatience).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  // An address for documentation, which no host has.
  const absl::Status status =
      JoinGlooCollective(Group(NewId(), 0, 2, "192.0.2.1"), kPatience).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("192.0.2.1"), HasSubstr("--gloo-address")));
}

TEST(GlooJoin, TwoHundredEpochsInOneProcess) {
  const std::string prefix = NewId();
  for (int epoch = 0; epoch < 200; ++epoch) {
    std::vector<absl::Status> ends(2);
    std::vector<std::thread> threads;
    for (int r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        auto joined = JoinGlooCollective(Group(absl::StrCat(prefix, "-e", epoch), r, 2), kPatience);
        std::vector<int64_t> values = {r + 1};
        ends[r] = joined.ok() ? (*joined)->AllReduceSum(absl::MakeSpan(values)) : joined.status();
        if (ends[r].ok() && values[0] != 3) ends[r] = absl::InternalError("a wrong sum");
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(ends[0], absl::OkStatus()) << "epoch " << epoch;
    ASSERT_EQ(ends[1], absl::OkStatus()) << "epoch " << epoch;
  }
}

// Two ranks; what rank 1 sends goes through a proxy. Each sums until an error, which is returned.
std::vector<absl::Status> SumThrough(TcpProxy::Fault fault, size_t n) {
  const std::string id = NewId();
  std::optional<TcpProxy> proxy;
  std::vector<absl::Status> ends(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      // The higher address dials: rank 1.
      GlooGroup group = Group(id, r, 2, r == 0 ? "127.0.0.1" : "127.0.0.2");
      if (r == 1) {
        group.tell = [&, plain = group.tell](
                         const std::string& mine) -> absl::StatusOr<std::vector<std::string>> {
          auto told = plain(mine);
          if (!told.ok()) return told;
          char* address = (*told)[0].data() + GlooAddressBytes();  // of rank 0's link to rank 1
          sockaddr_in target;
          std::memcpy(&target, address, sizeof(target));
          proxy.emplace(target, fault);
          std::memcpy(address, &proxy->address(), sizeof(target));
          return told;
        };
      }
      auto joined = JoinGlooCollective(group, kPatience);
      ends[r] = joined.status();
      for (int i = 0; ends[r].ok() && i < 50; ++i) {
        std::vector<int64_t> values(n, r + i);
        ends[r] = (*joined)->AllReduceSum(absl::MakeSpan(values));
        if (ends[r].ok() && values.back() != 2 * i + 1) ends[r] = absl::DataLossError("wrong sum");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ends;
}

TEST(GlooFaults, AProxyThatSpoilsNothingChangesNothing) {
  for (const absl::Status& end : SumThrough({}, 100'000)) EXPECT_EQ(end, absl::OkStatus());
}

TEST(GlooFaults, AFlippedBitIsAnErrorAndNeverAWrongSum) {
  for (const uint64_t at : {5'000, 300'000, 3'000'000, 9'999'999}) {
    const std::vector<absl::Status> ends = SumThrough({.flip_at = at}, 100'000);
    EXPECT_EQ(ends[0].code(), absl::StatusCode::kInternal) << ends[0];
    EXPECT_THAT(ends[0].message(), HasSubstr("message of rank 1"));
    EXPECT_THAT(ends[0].message(), HasSubstr("was corrupted on the way"));
    EXPECT_EQ(ends[1].code(), absl::StatusCode::kUnavailable) << "rank 0 leaves: " << ends[1];
  }
}

// Also in the middle of a message, where Gloo does not wake the one who waits for the rest of it.
TEST(GlooFaults, ACutConnectionEndsBothRanks) {
  for (const uint64_t at : {1'000, 300'000, 1'000'000, 1'700'000, 3'000'000}) {
    const std::vector<absl::Status> ends = SumThrough({.cut_at = at}, 100'000);
    for (int r = 0; r < 2; ++r) {
      EXPECT_EQ(ends[r].code(), absl::StatusCode::kUnavailable) << ends[r];
      EXPECT_THAT(ends[r].message(), HasSubstr(absl::StrCat("the connection to rank ", 1 - r)));
    }
  }
}

TEST(MessageSum, SeesEveryBitAndTheOrderOfWords) {
  std::vector<uint8_t> bytes(203);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 37 + 5);
  const uint64_t sum = MessageSum(bytes.data(), bytes.size());
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= 1 << bit % 8;
    EXPECT_NE(MessageSum(bytes.data(), bytes.size()), sum) << bit;
    bytes[bit / 8] ^= 1 << bit % 8;
  }
  std::swap_ranges(bytes.begin(), bytes.begin() + 8, bytes.begin() + 64);
  EXPECT_NE(MessageSum(bytes.data(), bytes.size()), sum);
  EXPECT_EQ(MessageSum(nullptr, 0), MessageSum(bytes.data(), 0));
}

TEST(GlooAddress, IsTheOneOnTheWayToTheCoordinator) {
  const auto address = ChooseGlooAddress(
      {.address = "", .interface = "", .coordinator = "127.0.0.1:50052", .several_hosts = false});
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(*address, "127.0.0.1");
}

TEST(GlooAddress, OfAnInterface) {
  const auto address = ChooseGlooAddress(
      {.address = "", .interface = "lo", .coordinator = "unused:1", .several_hosts = false});
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(*address, "127.0.0.1");
}

TEST(GlooAddress, LoopbackIsRefusedBetweenHosts) {
  for (const char* coordinator : {"127.0.0.1:50052", "localhost:50052"}) {
    const absl::Status status =
        ChooseGlooAddress({.address = "", .interface = "", .coordinator = coordinator}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("several hosts"), HasSubstr("--gloo-interface"),
                                        HasSubstr("127.0.0.1 (lo)")));
  }
}

TEST(GlooAddress, WhatThisHostDoesNotHaveIsRefusedWithWhatItHas) {
  const GlooAddressChoice cases[] = {
      {.address = "192.0.2.7", .interface = "", .coordinator = "127.0.0.1:1"},
      {.address = "nonsense", .interface = "", .coordinator = "127.0.0.1:1"},
      {.address = "", .interface = "nosuch0", .coordinator = "127.0.0.1:1"}};
  for (const GlooAddressChoice& choice : cases) {
    const absl::Status status = ChooseGlooAddress(choice).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), AllOf(HasSubstr(choice.address + choice.interface),
                                        HasSubstr("this host has 127.0.0.1 (lo)")));
  }
}

}  // namespace
}  // namespace bitshard
