// Joining when not all ranks come: who is named, who may come again, and nothing stays behind.
#include <atomic>
#include <fcntl.h>
#include <signal.h>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/check.h"
#include "tests/support/await.h"
#include "tests/support/forked_ranks.h"
#include "tests/support/unique_id.h"
#include "worker/collective/collective.h"
#include "worker/collective/shm_layout.h"

namespace bitshard {
namespace {

using ::testing::HasSubstr;

// Long enough for a crowded machine; nothing waits for it when things go well.
constexpr absl::Duration kPatience = absl::Seconds(30);

std::string NewId() { return UniqueId("join"); }

bool HasSegment(const std::string& id) {
  return access(absl::StrCat("/dev/shm/bitshard_", id).c_str(), F_OK) == 0;
}

// Joins and sums the ranks' ones; the text is empty when all went well.
std::string JoinAndAdd(const std::string& id, int rank, int world) {
  auto collective = JoinShmCollective(id, rank, world, kPatience);
  if (!collective.ok()) return collective.status().ToString();
  std::vector<int64_t> values = {1};
  const absl::Status status = (*collective)->AllReduceSum(absl::MakeSpan(values));
  if (!status.ok()) return status.ToString();
  return values[0] == world ? "" : absl::StrCat("a sum of ", values[0]);
}

TEST(ShmJoin, MissingRanksAreNamed) {
  const std::string id = NewId();
  std::thread other([&] {
    const auto joined = JoinShmCollective(id, 2, 4, absl::Seconds(20));
    EXPECT_EQ(joined.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(joined.status().message(), HasSubstr("ranks 1, 3 of 4 did not come"));
  });
  const auto joined = JoinShmCollective(id, 0, 4, absl::Seconds(2));
  other.join();
  EXPECT_EQ(joined.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(joined.status().message(), HasSubstr("ranks 1, 3 of 4 did not come"));
  EXPECT_FALSE(HasSegment(id));
}

TEST(ShmJoin, JoiningIsOverSoonAfterItIsCalledOff) {
  for (const int rank : {0, 1}) {
    std::atomic<bool> stop{false};
    absl::Status status;
    std::thread waiting([&] {
      status = JoinShmCollective(NewId(), rank, 2, absl::InfiniteDuration(), &stop).status();
    });
    stop = true;
    waiting.join();
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << "rank " << rank << ": " << status;
  }
}

TEST(ShmJoin, MissingRankZeroIsNamed) {
  const auto joined = JoinShmCollective(NewId(), 1, 2, absl::Milliseconds(30));
  EXPECT_EQ(joined.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(joined.status().message(), HasSubstr("rank 0 of 2 did not come"));
}

TEST(ShmJoin, RankZeroThatDiesWhileOthersWaitIsNamedAndNothingStays) {
  const std::string id = NewId();
  ForkedRanks crashed(0, 1, [&](int) {
    (void)JoinShmCollective(id, 0, 3, kPatience);
    return std::string();
  });
  AwaitTrue("the segment " + id, [&] { return HasSegment(id); });
  absl::Status status;
  std::thread other(
      [&] { status = JoinShmCollective(id, 1, 3, absl::Milliseconds(400)).status(); });
  kill(crashed.pid(0), SIGKILL);
  other.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("did not come"));
  shm_unlink(absl::StrCat("/bitshard_", id)
                 .c_str());  // rank 1 removes it only if it had attached before the kill
}

// The group's segment, looked at from outside while it forms.
class Watched {
 public:
  Watched(const std::string& id, int world) : bytes_(ShmView::Bytes(world)) {
    AwaitTrue("the segment " + id, [&] { return HasSegment(id); });
    const int fd = shm_open(absl::StrCat("/bitshard_", id).c_str(), O_RDWR, 0);
    CHECK(fd >= 0);
    base_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(base_ != MAP_FAILED);
    close(fd);
    view_ = ShmView(static_cast<uint8_t*>(base_), world);
  }
  ~Watched() { munmap(base_, bytes_); }

  void AwaitArrivals(uint32_t count) const {
    AwaitTrue(absl::StrCat(count, " arrivals"), [&] { return view_.header().joined >= count; });
  }

 private:
  const size_t bytes_;
  void* base_;
  ShmView view_;
};

TEST(ShmJoin, ARankThatDiedBeforeAllWereThereMayComeAgainAndCountsOnce) {
  const std::string id = NewId();
  ForkedRanks crashed(1, 2, [&](int rank) { return JoinAndAdd(id, rank, 3); });
  std::string complaints[3];
  std::vector<std::thread> ranks;
  const auto start = [&](int rank) {
    ranks.emplace_back([&, rank] { complaints[rank] = JoinAndAdd(id, rank, 3); });
  };
  start(0);
  const Watched segment(id, 3);
  segment.AwaitArrivals(2);
  kill(crashed.pid(0), SIGKILL);
  EXPECT_EQ(crashed.Wait(0), "killed");
  start(1);
  segment.AwaitArrivals(3);  // as many as ranks, but rank 2 is not among them
  start(2);
  for (std::thread& rank : ranks) rank.join();
  for (const std::string& complaint : complaints) EXPECT_EQ(complaint, "");
}

TEST(ShmJoin, ARankThatDiedBeforeAllWereThereIsNamed) {
  const std::string id = NewId();
  ForkedRanks crashed(1, 2, [&](int rank) { return JoinAndAdd(id, rank, 3); });
  absl::Status first, last;
  std::thread zero([&] { first = JoinShmCollective(id, 0, 3, absl::Seconds(3)).status(); });
  {
    const Watched segment(id, 3);
    segment.AwaitArrivals(2);
  }
  kill(crashed.pid(0), SIGKILL);
  EXPECT_EQ(crashed.Wait(0), "killed");
  std::thread two([&] { last = JoinShmCollective(id, 2, 3, absl::Seconds(20)).status(); });
  zero.join();
  two.join();
  for (const absl::Status& status : {first, last}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr("rank 1 of 3 did not come"));
  }
}

}  // namespace
}  // namespace bitshard
