// The contract of collective.h, over each transport between ranks: exact operations, aborts,
// losses, disagreements. Ranks are threads or processes, Gloo's on loopback.
#include "worker/collective/collective.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <signal.h>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/await.h"
#include "tests/support/file_rendezvous.h"
#include "tests/support/forked_ranks.h"
#include "tests/support/unique_id.h"
#include "worker/collective/gloo.h"
#include "worker/collective/gloo_link.h"
#include "worker/collective/shm_layout.h"

namespace bitshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Long enough for a crowded machine; nothing waits for it when things go well.
constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr uint64_t kSeed = 20240607;

std::string NewId() { return UniqueId("test"); }

using Body = std::function<std::string(Collective&)>;

class CollectiveContract : public testing::TestWithParam<std::string> {
 public:
  absl::StatusOr<std::unique_ptr<Collective>> Join(const std::string& id, int rank, int world) {
    if (GetParam() == "shm") return JoinShmCollective(id, rank, world, kPatience);
    return JoinGlooCollective({.id = id,
                               .rank = rank,
                               .world = world,
                               .address = "127.0.0.1",
                               .tell = FileRendezvous(id, rank, world)},
                              kPatience);
  }

  // Joins and runs; the text is empty when all went well.
  std::string JoinAndRun(const std::string& id, int rank, int world, const Body& body) {
    auto collective = Join(id, rank, world);
    if (!collective.ok()) return collective.status().ToString();
    return body(**collective);
  }

  void RunAsThreads(int world, const Body& body) {
    const std::string id = NewId();
    std::vector<std::string> complaints(world);
    std::vector<std::thread> threads;
    for (int r = 0; r < world; ++r) {
      threads.emplace_back([&, r] { complaints[r] = JoinAndRun(id, r, world, body); });
    }
    for (std::thread& thread : threads) thread.join();
    for (int r = 0; r < world; ++r) EXPECT_EQ(complaints[r], "") << "rank " << r << " of " << world;
  }

  void RunAsProcesses(int world, const Body& body) {
    const std::string id = NewId();
    ForkedRanks others(1, world, [&](int rank) { return JoinAndRun(id, rank, world, body); });
    EXPECT_EQ(JoinAndRun(id, 0, world, body), "");
    for (int r = 1; r < world; ++r)
      EXPECT_EQ(others.Wait(r - 1), "") << "rank " << r << " of " << world;
  }
};

INSTANTIATE_TEST_SUITE_P(Transports, CollectiveContract, testing::Values("shm", "gloo"),
                         [](const auto& info) { return info.param; });

// Two ranks as threads of this process, for tests of endings.
struct Pair {
  std::unique_ptr<Collective> rank[2];
  explicit Pair(CollectiveContract& test) {
    const std::string id = NewId();
    std::thread other([&] { rank[1] = *test.Join(id, 1, 2); });
    rank[0] = *test.Join(id, 0, 2);
    other.join();
  }
};

std::vector<int64_t> RandomValues(int rank, size_t n) {
  std::mt19937_64 random(kSeed + 977 * rank + n);
  std::vector<int64_t> values(n);
  for (int64_t& v : values) v = static_cast<int64_t>(random());
  return values;
}

// Every operation at many sizes; "" or the first wrong thing.
std::string AllOperations(Collective& c) {
  constexpr size_t kShm = kShmStagingBytes / 8, kGloo = kGlooPayloadBytes / 8;
  for (size_t n :
       {size_t{0}, size_t{1}, size_t{7}, size_t{1000}, size_t{4097}, size_t{8192}, size_t{8193},
        kShm - 1, kShm, kShm + 1, kGloo - 1, kGloo, kGloo + 1, 3 * kGloo + 5}) {
    std::vector<int64_t> values = RandomValues(c.rank(), n), want(n, 0);
    for (int r = 0; r < c.world(); ++r) {
      const std::vector<int64_t> theirs = RandomValues(r, n);
      for (size_t i = 0; i < n; ++i) {
        want[i] =
            static_cast<int64_t>(static_cast<uint64_t>(want[i]) + static_cast<uint64_t>(theirs[i]));
      }
    }
    absl::Status status = c.AllReduceSum(absl::MakeSpan(values));
    if (!status.ok()) return status.ToString();
    if (values != want) return absl::StrCat("wrong sum of ", n, " values, seed ", kSeed);

    const auto bytes_of = [n](int rank) {
      const std::vector<int64_t> v = RandomValues(rank, n);
      std::vector<uint8_t> bytes(n * 8 - (n > 0 ? 3 : 0));  // an odd number of bytes
      if (!bytes.empty()) std::memcpy(bytes.data(), v.data(), bytes.size());
      return bytes;
    };
    const std::vector<uint8_t> mine = bytes_of(c.rank());
    std::vector<uint8_t> all(mine.size() * c.world());
    status = c.AllGather(mine, absl::MakeSpan(all));
    if (!status.ok()) return status.ToString();
    for (int r = 0; r < c.world(); ++r) {
      const std::vector<uint8_t> theirs = bytes_of(r);
      if (!std::equal(theirs.begin(), theirs.end(), all.begin() + r * theirs.size())) {
        return absl::StrCat("wrong bytes of rank ", r, " in a gather of ", theirs.size());
      }
    }
    for (int root = 0; root < c.world(); ++root) {
      std::vector<uint8_t> data = mine;
      status = c.Broadcast(absl::MakeSpan(data), root);
      if (!status.ok()) return status.ToString();
      if (data != bytes_of(root))
        return absl::StrCat("wrong broadcast of ", data.size(), " bytes from ", root);
    }
  }
  return "";
}

TEST_P(CollectiveContract, OperationsAreExactBetweenProcesses) {
  for (int world = 2; world <= 4; ++world) RunAsProcesses(world, AllOperations);
}

TEST_P(CollectiveContract, OperationsAreExactBetweenThreads) {
  for (int world = 1; world <= 4; ++world) RunAsThreads(world, AllOperations);
}

TEST_P(CollectiveContract, GatherMayBeInPlace) {
  RunAsThreads(3, [](Collective& c) -> std::string {
    std::vector<uint8_t> all(3 * 5, 255);
    for (int i = 0; i < 5; ++i) all[c.rank() * 5 + i] = static_cast<uint8_t>(10 * c.rank() + i);
    const auto mine = absl::MakeSpan(all).subspan(c.rank() * 5, 5);
    const absl::Status status = c.AllGather(mine, absl::MakeSpan(all));
    if (!status.ok()) return status.ToString();
    for (int i = 0; i < 15; ++i) {
      if (all[i] != 10 * (i / 5) + i % 5) return absl::StrCat("byte ", i, " is ", all[i]);
    }
    return "";
  });
}

TEST_P(CollectiveContract, SelfTestPassesBetweenProcesses) {
  for (int world = 1; world <= 4; ++world) {
    RunAsProcesses(world, [](Collective& c) -> std::string {
      const absl::Status status = SelfTestCollective(c);
      return status.ok() ? "" : status.ToString();
    });
  }
}

TEST_P(CollectiveContract, AbortFromAnotherThreadEndsPendingAndLaterCallsOnAllRanks) {
  Pair pair(*this);
  std::atomic<bool> entered{false};
  std::vector<int64_t> values(1000, 1);
  absl::Status pending;
  std::thread step([&] {
    entered = true;
    pending = pair.rank[0]->AllReduceSum(absl::MakeSpan(values));  // rank 1 never comes
  });
  AwaitTrue("the thread of the step", [&] { return entered.load(); });
  pair.rank[0]->Abort();
  step.join();
  EXPECT_EQ(pending.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(pending.message(), HasSubstr("aborted by rank 0"));
  std::vector<uint8_t> all(2);
  for (int r = 0; r < 2; ++r) {
    const absl::Status later =
        pair.rank[r]->AllGather(absl::Span<const uint8_t>(all).first(1), absl::MakeSpan(all));
    EXPECT_EQ(later.code(), absl::StatusCode::kUnavailable) << later;
    EXPECT_THAT(later.message(), HasSubstr("aborted by rank 0"));
  }
}

TEST_P(CollectiveContract, AbortOfOneRankWakesTheOther) {
  Pair pair(*this);
  std::vector<int64_t> values(100'000, 1);
  absl::Status pending;
  std::thread step([&] { pending = pair.rank[0]->AllReduceSum(absl::MakeSpan(values)); });
  pair.rank[1]->Abort();
  step.join();
  EXPECT_EQ(pending.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(pending.message(), HasSubstr("aborted by rank 1"));
}

TEST_P(CollectiveContract, RankThatLeavesIsNamed) {
  Pair pair(*this);
  pair.rank[1].reset();
  std::vector<int64_t> values(3);
  const absl::Status status = pair.rank[0]->AllReduceSum(absl::MakeSpan(values));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("rank 1"), HasSubstr("has left")));
  EXPECT_FALSE(IsCollectiveAbort(status)) << "a rank that left is a cause";
}

// One survivor finds out and tells the others, which come later: they must not take the teller for
// the one that left.
TEST_P(CollectiveContract, RankThatLeavesIsNamedByEverySurvivor) {
  for (const int world : {3, 4}) {
    for (int leaver = 0; leaver < world; ++leaver) {
      for (int first = 0; first < world; ++first) {
        if (first == leaver) continue;
        const std::string id = NewId();
        std::vector<std::unique_ptr<Collective>> ranks(world);
        std::vector<std::thread> threads;
        for (int r = 0; r < world; ++r) {
          threads.emplace_back([&, r] { ranks[r] = *Join(id, r, world); });
        }
        for (std::thread& thread : threads) thread.join();
        ranks[leaver].reset();
        // Pauses make it likely that each has heard of what those before it found out.
        const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
        std::vector<absl::Status> ends(world);
        threads.clear();
        for (int i = 0; i < world; ++i) {
          const int r = (first + i) % world;
          if (r == leaver) continue;
          pause();
          threads.emplace_back([&, r] {
            std::vector<int64_t> values(3);
            ends[r] = ranks[r]->AllReduceSum(absl::MakeSpan(values));
          });
        }
        for (std::thread& thread : threads) thread.join();
        for (int r = 0; r < world; ++r) {
          if (r == leaver) continue;
          EXPECT_EQ(ends[r].code(), absl::StatusCode::kUnavailable) << ends[r];
          EXPECT_THAT(ends[r].message(),
                      AllOf(HasSubstr(absl::StrCat("rank ", leaver)), HasSubstr("has left")))
              << "rank " << r << " of " << world << ", rank " << first << " was first";
        }
      }
    }
  }
}

TEST_P(CollectiveContract, KilledPeerIsNamedByEverySurvivor) {
  const std::string id = NewId();
  constexpr int kWorld = 3;
  const auto work_until_error = [](Collective& c) {
    for (;;) {
      std::vector<int64_t> values(20'000, 1);
      const absl::Status status = c.AllReduceSum(absl::MakeSpan(values));
      if (!status.ok()) return status.ToString();
    }
  };
  ForkedRanks others(1, kWorld,
                     [&](int rank) { return JoinAndRun(id, rank, kWorld, work_until_error); });
  auto joined = Join(id, 0, kWorld);
  ASSERT_TRUE(joined.ok()) << joined.status();
  std::vector<int64_t> values(20'000, 1);
  for (int i = 0; i < 50; ++i) {
    const absl::Status status = (*joined)->AllReduceSum(absl::MakeSpan(values));
    ASSERT_TRUE(status.ok()) << status;
  }
  kill(others.pid(1), SIGKILL);  // rank 2, in the middle of what it is doing
  absl::Status status;
  while (status.ok()) status = (*joined)->AllReduceSum(absl::MakeSpan(values));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("rank 2"));
  if (GetParam() == "shm") {
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("(pid ", others.pid(1), ") has died")));
  }
  EXPECT_THAT(others.Wait(0), HasSubstr("rank 2"));
  EXPECT_EQ(others.Wait(1), "killed");
}

TEST_P(CollectiveContract, DisagreementIsTheSameInternalErrorOnAllRanks) {
  const std::vector<std::pair<Body, std::string>> cases = {
      {[](Collective& c) {
         std::vector<int64_t> values(c.rank() == 1 ? 577 : 576);
         return c.AllReduceSum(absl::MakeSpan(values)).ToString();
       },
       "rank 1 is in operation 1: all_reduce of 4616 bytes"},
      {[](Collective& c) {
         std::vector<uint8_t> bytes(8);
         if (c.rank() == 2) return c.Broadcast(absl::MakeSpan(bytes), 0).ToString();
         std::vector<int64_t> values(1);
         return c.AllReduceSum(absl::MakeSpan(values)).ToString();
       },
       "rank 2 is in operation 1: broadcast of 8 bytes from rank 0"},
      {[](Collective& c) {
         std::vector<uint8_t> bytes(300);
         return c.Broadcast(absl::MakeSpan(bytes), c.rank() == 2 ? 1 : 0).ToString();
       },
       "rank 2 is in operation 1: broadcast of 300 bytes from rank 1"},
      {[](Collective& c) {  // many pieces on one rank, none on the others
         std::vector<int64_t> values(c.rank() == 1 ? 500'000 : 0);
         return c.AllReduceSum(absl::MakeSpan(values)).ToString();
       },
       "rank 1 is in operation 1: all_reduce of 4000000 bytes"}};
  for (const auto& [body, text] : cases) {
    const std::string id = NewId();
    ForkedRanks others(1, 3, [&, &body = body](int rank) { return JoinAndRun(id, rank, 3, body); });
    const std::string first = JoinAndRun(id, 0, 3, body);
    EXPECT_THAT(first, AllOf(HasSubstr("INTERNAL"), HasSubstr("ranks disagree"), HasSubstr(text)));
    EXPECT_EQ(others.Wait(0), first);
    EXPECT_EQ(others.Wait(1), first);
  }
}

TEST_P(CollectiveContract, ThousandsOfMixedOperationsAreExact) {
  for (int world = 2; world <= 4; ++world) {
    RunAsThreads(world, [](Collective& c) -> std::string {
      std::mt19937 sizes(7);  // the same on all ranks
      const int world = c.world();
      for (int op = 0; op < 500; ++op) {
        const size_t n = op % 100 == 0 ? 20'000 : sizes() % 300;
        std::vector<int64_t> values(n);
        for (size_t i = 0; i < n; ++i) values[i] = static_cast<int64_t>(op + i) * (c.rank() + 1);
        absl::Status status = c.AllReduceSum(absl::MakeSpan(values));
        if (!status.ok()) return status.ToString();
        for (size_t i = 0; i < n; ++i) {
          if (values[i] != static_cast<int64_t>(op + i) * world * (world + 1) / 2)
            return absl::StrCat("wrong sum in operation ", op);
        }
        std::vector<uint8_t> mine(sizes() % 64, static_cast<uint8_t>(c.rank() + op)),
            all(mine.size() * world);
        status = c.AllGather(mine, absl::MakeSpan(all));
        if (!status.ok()) return status.ToString();
        for (size_t i = 0; i < all.size(); ++i) {
          if (all[i] != static_cast<uint8_t>(i / mine.size() + op))
            return absl::StrCat("wrong bytes in operation ", op);
        }
      }
      return "";
    });
  }
}

// Whoever has what it needs may go: the others still get what it sent.
TEST_P(CollectiveContract, RanksThatLeaveAfterTheLastOperationDoNotSpoilIt) {
  for (int round = 0; round < 30; ++round) {
    RunAsThreads(3, [](Collective& c) -> std::string {
      std::vector<int64_t> values(150'000, c.rank() + 1);
      const absl::Status status = c.AllReduceSum(absl::MakeSpan(values));
      if (!status.ok()) return status.ToString();
      return values.back() == 6 ? "" : "a wrong sum";
    });
  }
}

TEST_P(CollectiveContract, AbortInTheMiddleStopsAllRanksWithTheSameCause) {
  for (int round = 0; round < 20; ++round) {
    const std::string id = NewId();
    std::unique_ptr<Collective> ranks[3];
    std::vector<absl::Status> ends(3);
    std::atomic<int> done{0};
    std::vector<std::thread> threads;
    for (int r = 0; r < 3; ++r) {
      threads.emplace_back([&, r] {
        ranks[r] = *Join(id, r, 3);
        std::vector<int64_t> values(5000, r);
        while (ends[r].ok()) {
          ends[r] = ranks[r]->AllReduceSum(absl::MakeSpan(values));
          ++done;
        }
      });
    }
    AwaitTrue("30 operations", [&] { return done >= 30; });
    ranks[1]->Abort();
    for (std::thread& thread : threads) thread.join();
    for (const absl::Status& end : ends) {
      EXPECT_EQ(end, CollectiveAbort(1));
      EXPECT_TRUE(IsCollectiveAbort(end)) << end;
    }
  }
}

// A stopped rank says nothing at all: the others wait until one of them is told to end.
TEST_P(CollectiveContract, AStoppedPeerIsWaitedForUntilTheGroupIsAborted) {
  const std::string id = NewId();
  ForkedRanks others(1, 2, [&](int rank) {
    return JoinAndRun(id, rank, 2, [](Collective& c) {
      for (;;) {
        std::vector<int64_t> values(200'000, 1);  // more than a socket holds
        const absl::Status status = c.AllReduceSum(absl::MakeSpan(values));
        if (!status.ok()) return status.ToString();
      }
    });
  });
  auto joined = Join(id, 0, 2);
  ASSERT_TRUE(joined.ok()) << joined.status();
  std::vector<int64_t> values(200'000, 1);
  ASSERT_TRUE((*joined)->AllReduceSum(absl::MakeSpan(values)).ok());
  kill(others.pid(0), SIGSTOP);
  absl::Status status;
  std::atomic<int> begun{0};
  std::thread step([&] {
    while (status.ok()) {
      ++begun;
      status = (*joined)->AllReduceSum(absl::MakeSpan(values));
    }
  });
  // It is stuck once it begins nothing more.
  for (int last = -1; last != begun; absl::SleepFor(absl::Milliseconds(50))) last = begun;
  (*joined)->Abort();
  step.join();
  EXPECT_EQ(status, CollectiveAbort(0));
  joined->reset();
  kill(others.pid(0), SIGCONT);
  EXPECT_THAT(others.Wait(0), HasSubstr("rank 0"));
}

}  // namespace
}  // namespace bitshard
