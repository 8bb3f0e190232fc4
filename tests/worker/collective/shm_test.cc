// Joining, working, failing and leaving over real POSIX shared memory: ranks as threads and as
// processes.
#include <atomic>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <signal.h>
#include <string>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/forked_ranks.h"
#include "worker/collective/collective.h"
#include "worker/collective/shm_layout.h"

namespace bitshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Long enough for a crowded machine; nothing waits for it when things go well.
constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr uint64_t kSeed = 20240607;

std::string NewId() {
  static std::atomic<int> counter{0};
  return absl::StrCat("test-", getpid(), "-", counter.fetch_add(1));
}

std::vector<std::string> SegmentsOf(const std::string& part) {
  std::vector<std::string> names;
  DIR* dir = opendir("/dev/shm");
  if (dir == nullptr) return names;
  while (const dirent* entry = readdir(dir)) {
    if (std::strstr(entry->d_name, part.c_str()) != nullptr) names.push_back(entry->d_name);
  }
  closedir(dir);
  return names;
}

using Body = std::function<std::string(Collective&)>;

// Joins and runs; the text is empty when all went well.
std::string JoinAndRun(const std::string& id, int rank, int world, const Body& body) {
  auto collective = JoinShmCollective(id, rank, world, kPatience);
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

std::vector<int64_t> RandomValues(int rank, size_t n) {
  std::mt19937_64 random(kSeed + 977 * rank + n);
  std::vector<int64_t> values(n);
  for (int64_t& v : values) v = static_cast<int64_t>(random());
  return values;
}

// Every operation at many sizes; "" or the first wrong thing.
std::string AllOperations(Collective& c) {
  constexpr size_t kPiece = kShmStagingBytes / 8;
  for (size_t n : {size_t{0}, size_t{1}, size_t{7}, size_t{1000}, size_t{4097}, size_t{8192},
                   size_t{8193}, kPiece - 1, kPiece, kPiece + 1, 3 * kPiece + 5}) {
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

TEST(ShmCollective, OperationsAreExactBetweenProcesses) {
  for (int world = 2; world <= 4; ++world) RunAsProcesses(world, AllOperations);
}

TEST(ShmCollective, OperationsAreExactBetweenThreads) {
  for (int world = 1; world <= 4; ++world) RunAsThreads(world, AllOperations);
}

TEST(ShmCollective, GatherMayBeInPlace) {
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

TEST(ShmCollective, SelfTestPassesBetweenProcesses) {
  for (int world = 1; world <= 4; ++world) {
    RunAsProcesses(world, [](Collective& c) -> std::string {
      const absl::Status status = SelfTestCollective(c);
      return status.ok() ? "" : status.ToString();
    });
  }
}

TEST(ShmCollective, TwoHundredEpochsLeaveNothingBehind) {
  const std::string prefix = NewId();
  std::string complaint;
  for (int epoch = 0; epoch < 200; ++epoch) {
    std::vector<std::thread> threads;
    std::mutex mu;
    for (int r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        const std::string text =
            JoinAndRun(absl::StrCat(prefix, "-e", epoch), r, 2, [](Collective& c) -> std::string {
              std::vector<int64_t> values = {c.rank() + 1};
              const absl::Status status = c.AllReduceSum(absl::MakeSpan(values));
              return status.ok() && values[0] == 3
                         ? ""
                         : absl::StrCat(values[0], " ", status.ToString());
            });
        const std::lock_guard lock(mu);
        complaint += text;
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(complaint, "") << "epoch " << epoch;
  }
  EXPECT_THAT(SegmentsOf(prefix), ::testing::IsEmpty());
}

TEST(ShmCollective, SegmentHasNoNameOnceAllHaveJoined) {
  const std::string id = NewId();
  std::vector<std::string> names[2];
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      JoinAndRun(id, r, 2, [&](Collective&) -> std::string {
        names[r] = SegmentsOf(id);
        return "";
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(names[0], ::testing::IsEmpty());
  EXPECT_THAT(names[1], ::testing::IsEmpty());
}

// Two ranks as threads of this process, for tests of endings.
struct Pair {
  std::unique_ptr<Collective> rank[2];
  explicit Pair(const std::string& id = NewId()) {
    std::thread other([&] { rank[1] = *JoinShmCollective(id, 1, 2, kPatience); });
    rank[0] = *JoinShmCollective(id, 0, 2, kPatience);
    other.join();
  }
};

TEST(ShmCollective, AbortFromAnotherThreadEndsPendingAndLaterCallsOnAllRanks) {
  Pair pair;
  std::atomic<bool> entered{false};
  std::vector<int64_t> values(1000, 1);
  absl::Status pending;
  std::thread step([&] {
    entered = true;
    pending = pair.rank[0]->AllReduceSum(absl::MakeSpan(values));  // rank 1 never comes
  });
  while (!entered) std::this_thread::yield();
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

TEST(ShmCollective, AbortOfOneRankWakesTheOther) {
  Pair pair;
  std::vector<int64_t> values(100'000, 1);
  absl::Status pending;
  std::thread step([&] { pending = pair.rank[0]->AllReduceSum(absl::MakeSpan(values)); });
  pair.rank[1]->Abort();
  step.join();
  EXPECT_EQ(pending.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(pending.message(), HasSubstr("aborted by rank 1"));
}

TEST(ShmCollective, RankThatLeavesIsNamed) {
  Pair pair;
  pair.rank[1].reset();
  std::vector<int64_t> values(3);
  const absl::Status status = pair.rank[0]->AllReduceSum(absl::MakeSpan(values));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("rank 1"), HasSubstr("has left")));
}

TEST(ShmCollective, KilledPeerIsNamedByEverySurvivor) {
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
  auto joined = JoinShmCollective(id, 0, kWorld, kPatience);
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
  EXPECT_THAT(status.message(),
              HasSubstr(absl::StrCat("rank 2 (pid ", others.pid(1), ") has died")));
  EXPECT_THAT(others.Wait(0), HasSubstr("rank 2"));
  EXPECT_EQ(others.Wait(1), "killed");
}

TEST(ShmCollective, DisagreementIsTheSameInternalErrorOnAllRanks) {
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

TEST(ShmCollective, AnIdMayBeUsedAgainAfterItsGroupHasEnded) {
  const std::string id = NewId();
  for (int i = 0; i < 3; ++i) {
    Pair pair(id);
    std::vector<int64_t> a = {1}, b = {2};
    std::thread other([&] { EXPECT_TRUE(pair.rank[1]->AllReduceSum(absl::MakeSpan(b)).ok()); });
    EXPECT_TRUE(pair.rank[0]->AllReduceSum(absl::MakeSpan(a)).ok());
    other.join();
    EXPECT_EQ(a[0], 3);
    EXPECT_EQ(b[0], 3);
  }
}

TEST(ShmCollective, AnIdThatALiveGroupIsFormingWithIsRefused) {
  const std::string id = NewId();
  std::thread first([&] { (void)JoinShmCollective(id, 0, 2, absl::Seconds(20)); });
  while (SegmentsOf(id).empty()) std::this_thread::yield();
  const auto second = JoinShmCollective(id, 0, 2, absl::Seconds(20));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists) << second.status();
  (void)JoinShmCollective(id, 1, 2, kPatience);
  first.join();
}

TEST(ShmCollective, SegmentOfACrashedRunIsReplaced) {
  const std::string id = NewId();
  {
    ForkedRanks crashed(0, 1, [&](int) {
      (void)JoinShmCollective(id, 0, 2, kPatience);
      return std::string();
    });
    while (SegmentsOf(id).empty()) std::this_thread::yield();
    kill(crashed.pid(0), SIGKILL);
    EXPECT_EQ(crashed.Wait(0), "killed");
  }
  ASSERT_EQ(SegmentsOf(id).size(), 1u);
  // The other rank comes first and finds the leftover: it must wait for the new one.
  std::string complaint;
  std::thread other([&] { complaint = JoinAndRun(id, 1, 2, AllOperations); });
  EXPECT_EQ(JoinAndRun(id, 0, 2, AllOperations), "");
  other.join();
  EXPECT_EQ(complaint, "");
  EXPECT_THAT(SegmentsOf(id), ::testing::IsEmpty());
}

TEST(ShmCollective, AnotherWorldSizeIsRefused) {
  const std::string id = NewId();
  std::thread first([&] { (void)JoinShmCollective(id, 0, 2, kPatience); });
  while (SegmentsOf(id).empty()) std::this_thread::yield();
  const auto wrong = JoinShmCollective(id, 1, 3, kPatience);
  EXPECT_EQ(wrong.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(wrong.status().message(), HasSubstr("for 2 ranks, rank 1 was told 3"));
  (void)JoinShmCollective(id, 1, 2, kPatience);
  first.join();
}

TEST(ShmCollective, SegmentThatOthersCouldOpenIsRefused) {
  const std::string id = NewId(), name = absl::StrCat("/bitshard_", id);
  const int fd = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(fchmod(fd, 0666), 0);
  for (int rank = 0; rank < 2; ++rank) {
    const auto joined = JoinShmCollective(id, rank, 2, kPatience);
    EXPECT_EQ(joined.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(joined.status().message(), HasSubstr("private segments"));
  }
  close(fd);
  shm_unlink(name.c_str());
}

TEST(ShmCollective, TooSmallSharedMemoryIsAnErrorWithAdvice) {
  // A limit on file sizes stands for a full /dev/shm.
  ForkedRanks child(0, 1, [](int) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 20, 1 << 20};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return std::string("setrlimit failed");
    return JoinShmCollective(NewId(), 0, 2, kPatience).status().ToString();
  });
  EXPECT_THAT(child.Wait(0), AllOf(HasSubstr("RESOURCE_EXHAUSTED"), HasSubstr("--shm-size")));
}

TEST(ShmCollective, BadIdsAndRanksAreRefused) {
  for (const std::string& id : {std::string(), std::string("a/b"), std::string("a\0b", 3),
                                std::string("a b"), std::string(201, 'x')}) {
    EXPECT_EQ(JoinShmCollective(id, 0, 2, kPatience).status().code(),
              absl::StatusCode::kInvalidArgument)
        << id;
  }
  const int bad[][2] = {{-1, 2}, {2, 2}, {0, 0}, {0, 65}, {0, -3}};
  for (const auto& [rank, world] : bad) {
    EXPECT_EQ(JoinShmCollective("x", rank, world, kPatience).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace bitshard
