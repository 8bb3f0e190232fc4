// What shared memory adds to the contract of collective_test.cc: names, leftovers, rights, room.
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <functional>
#include <memory>
#include <mutex>
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
#include "absl/time/time.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/await.h"
#include "tests/support/forked_ranks.h"
#include "tests/support/unique_id.h"
#include "worker/collective/collective.h"

namespace bitshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Long enough for a crowded machine; nothing waits for it when things go well.
constexpr absl::Duration kPatience = absl::Seconds(30);

std::string NewId() { return UniqueId("test"); }

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

void AwaitSegment(const std::string& id) {
  AwaitTrue("the segment " + id, [&] { return !SegmentsOf(id).empty(); });
}

using Body = std::function<std::string(Collective&)>;

// Joins and runs; the text is empty when all went well.
std::string JoinAndRun(const std::string& id, int rank, int world, const Body& body) {
  auto collective = JoinShmCollective(id, rank, world, kPatience);
  if (!collective.ok()) return collective.status().ToString();
  return body(**collective);
}

std::string SelfTest(Collective& c) {
  const absl::Status status = SelfTestCollective(c);
  return status.ok() ? "" : status.ToString();
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

// Two ranks as threads of this process.
struct Pair {
  std::unique_ptr<Collective> rank[2];
  explicit Pair(const std::string& id = NewId()) {
    std::thread other([&] { rank[1] = *JoinShmCollective(id, 1, 2, kPatience); });
    rank[0] = *JoinShmCollective(id, 0, 2, kPatience);
    other.join();
  }
};

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
  AwaitSegment(id);
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
    AwaitSegment(id);
    kill(crashed.pid(0), SIGKILL);
    EXPECT_EQ(crashed.Wait(0), "killed");
  }
  ASSERT_EQ(SegmentsOf(id).size(), 1u);
  // The other rank comes first and finds the leftover: it must wait for the new one.
  std::string complaint;
  std::thread other([&] { complaint = JoinAndRun(id, 1, 2, SelfTest); });
  EXPECT_EQ(JoinAndRun(id, 0, 2, SelfTest), "");
  other.join();
  EXPECT_EQ(complaint, "");
  EXPECT_THAT(SegmentsOf(id), ::testing::IsEmpty());
}

TEST(ShmCollective, AnotherWorldSizeIsRefused) {
  const std::string id = NewId();
  std::thread first([&] { (void)JoinShmCollective(id, 0, 2, kPatience); });
  AwaitSegment(id);
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
