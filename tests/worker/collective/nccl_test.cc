// Operations of ranks on GPUs over NCCL, and how they end.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <signal.h>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/check.h"
#include "kernels/tensor/device.h"
#include "tests/support/fake_cudart.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/forked_ranks.h"
#include "tests/worker/collective/nccl_ranks.h"
#include "worker/collective/collective.h"
#include "worker/collective/device_collective.h"

namespace bitshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Of operations that are to be late. Ranks begin the first one together (MeetIn).
constexpr absl::Duration kShort = absl::Milliseconds(1500);

TEST(Nccl, SelfTestOfTheHostsOperationsPasses) {
  EveryWay([](Rank& rank) { return Text(SelfTestCollective(*rank)); });
}

// Longer than the collective's buffers, which the self-test's are not.
TEST(Nccl, LongGathersAndBroadcastsOfTheHostGoInPieces) {
  EveryWay([](Rank& rank) -> std::string {
    const size_t n = 1'200'003;
    const auto value = [](size_t r, size_t i) { return static_cast<uint8_t>(31 * r + i % 251); };
    std::vector<uint8_t> mine(n), all(n * rank.world()), want(all.size());
    for (size_t i = 0; i < n; ++i) mine[i] = value(rank.rank(), i);
    for (size_t i = 0; i < want.size(); ++i) want[i] = value(i / n, i % n);
    RETURN_IF_ERROR_TEXT((*rank).AllGather(mine, absl::MakeSpan(all)));
    if (all != want) return "gathered wrong";
    RETURN_IF_ERROR_TEXT((*rank).Broadcast(absl::MakeSpan(mine), 1));
    return std::equal(mine.begin(), mine.end(), want.begin() + n) ? "" : "broadcast wrong";
  });
}

TEST(Nccl, SumsOfDeviceMemoryAreExactAndWrap) {
  EveryWay([](Rank& rank) -> std::string {
    const int world = rank.world();
    std::vector<int64_t> mine(70'001), want(mine.size());  // of several rounds
    for (size_t i = 0; i < mine.size(); ++i) {
      const uint64_t value = 0x9e3779b97f4a7c15u * (i + 1);
      mine[i] = static_cast<int64_t>(value * (rank.rank() + 1));
      want[i] = static_cast<int64_t>(value * (world * (world + 1) / 2));
    }
    const Values values(rank, mine);
    RETURN_IF_ERROR_TEXT((*rank).AllReduceSum(values.data(), mine.size(), *rank.stream));
    RETURN_IF_ERROR_TEXT(rank.Await());
    return values.Back() == want ? "" : "a wrong sum";
  });
}

TEST(Nccl, SumsOfFloatsAreTheSameOnAllRanks) {
  EveryWay([](Rank& rank) -> std::string {
    const int world = rank.world();
    std::vector<float> mine(70'001);
    for (size_t i = 0; i < mine.size(); ++i)
      mine[i] = 1 / static_cast<float>(i % 1000 + 3 * rank.rank() + 1);
    const ValuesOf<float> values(rank, mine);
    RETURN_IF_ERROR_TEXT((*rank).AllReduceSum(values.data(), mine.size(), *rank.stream));
    RETURN_IF_ERROR_TEXT(rank.Await());
    const std::vector<float> got = values.Back();
    for (size_t i = 0; i < got.size(); ++i) {
      double want = 0;
      for (int r = 0; r < world; ++r) want += 1 / static_cast<double>(i % 1000 + 3 * r + 1);
      // Each addition, and each value, rounded once.
      if (std::abs(got[i] - want) > want * world * 0x1p-23) return absl::StrCat("wrong at ", i);
    }
    std::vector<float> all(got.size() * world);
    RETURN_IF_ERROR_TEXT((*rank).AllGather(
        absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(got.data()), got.size() * 4),
        absl::MakeSpan(reinterpret_cast<uint8_t*>(all.data()), all.size() * 4)));
    for (int r = 0; r < world; ++r) {
      if (!std::equal(got.begin(), got.end(), all.begin() + r * got.size()))
        return absl::StrCat("rank ", r, " has other bits");
    }
    return "";
  });
}

TEST(Nccl, DeviceMemoryIsGatheredInPlaceAndFromElsewhere) {
  EveryWay([](Rank& rank) -> std::string {
    constexpr size_t kEach = 333;
    std::vector<int64_t> all(kEach * rank.world()), want(all.size());
    for (size_t i = 0; i < want.size(); ++i) want[i] = static_cast<int64_t>(1000 * (i / kEach) + i);
    const std::vector<int64_t> mine(want.begin() + rank.rank() * kEach,
                                    want.begin() + (rank.rank() + 1) * kEach);
    const Values from(rank, mine), to(rank, all);
    std::copy(mine.begin(), mine.end(), all.begin() + rank.rank() * kEach);
    const Values in_place(rank, all);
    const size_t bytes = kEach * sizeof(int64_t);
    RETURN_IF_ERROR_TEXT((*rank).AllGather(from.data(), to.data(), bytes, *rank.stream));
    RETURN_IF_ERROR_TEXT((*rank).AllGather(in_place.data() + rank.rank() * kEach, in_place.data(),
                                           bytes, *rank.stream));
    RETURN_IF_ERROR_TEXT(rank.Await());
    return to.Back() == want && in_place.Back() == want ? "" : "wrong values";
  });
}

TEST(Nccl, ACapturedSumIsDoneAtEveryLaunch) {
  EveryWay([](Rank& rank) -> std::string {
    const Values values(rank, std::vector<int64_t>(64, 1));
    const auto sum = [&] { return (*rank).AllReduceSum(values.data(), 64, *rank.stream); };
    RETURN_IF_ERROR_TEXT(sum());
    RETURN_IF_ERROR_TEXT(rank.Await());
    RETURN_IF_ERROR_TEXT(rank.device->BeginCapture(*rank.stream));
    RETURN_IF_ERROR_TEXT(sum());
    RETURN_IF_ERROR_TEXT(sum());
    absl::StatusOr<std::unique_ptr<DeviceGraph>> graph = rank.device->EndCapture(*rank.stream);
    RETURN_IF_ERROR_TEXT(graph.status());
    int64_t want = rank.world();
    for (int launch = 0; launch < 3; ++launch) {
      RETURN_IF_ERROR_TEXT(rank.device->Launch(**graph, *rank.stream));
      want *= rank.world() * rank.world();
    }
    RETURN_IF_ERROR_TEXT(rank.Await());
    // The host's operations go on between launches.
    int64_t one = 1;
    RETURN_IF_ERROR_TEXT((*rank).AllReduceSum(absl::MakeSpan(&one, 1)));
    if (one != rank.world()) return "a wrong sum of the host";
    return values.Back() == std::vector<int64_t>(64, want) ? "" : "a wrong sum";
  });
}

TEST(Nccl, RanksThatLeaveAfterTheLastOperationDoNotSpoilIt) {
  for (int round = 0; round < 10; ++round) {
    const auto said = RunThreads({.id = NewId(), .world = 3}, [](Rank& rank) -> std::string {
      std::vector<int64_t> values(150'000, rank.rank() + 1);
      RETURN_IF_ERROR_TEXT((*rank).AllReduceSum(absl::MakeSpan(values)));
      return values.back() == 6 ? "" : "a wrong sum";
    });
    EXPECT_EQ(said, std::vector<std::string>(3));
  }
}

// The last rank hangs in its third operation. All ranks find out by themselves, and meet again
// under a new id.
TEST(Nccl, AHangingRankIsLateOnAllRanksWhichThenMeetAgain) {
  static constexpr int kWorld = 3;
  const Plan plan = {.id = NewId(), .world = kWorld, .operation_timeout = kShort, .epoch = 7};
  const std::string second_id = NewId();
  ForkedRanks ranks = Fork(kWorld, [&](int r) -> std::string {
    setenv("BITSHARD_FAKE_NCCL_RANK", absl::StrCat(kWorld - 1).c_str(), 1);
    setenv("BITSHARD_FAKE_NCCL_HANG_AT", "2", 1);
    const fake::ScopedCudaMachine machine({.devices = kWorld});
    Plan mine = plan;
    mine.rank = r;
    const std::string meeting = plan.id + "-begin";
    const std::string first = JoinAndRun(mine, [meeting](Rank& rank) -> std::string {
      RETURN_IF_ERROR_TEXT(MeetIn(meeting, rank.rank(), kWorld));
      std::vector<int64_t> values(100, 1);
      for (int i = 0; i < 2; ++i)
        RETURN_IF_ERROR_TEXT((*rank).AllReduceSum(absl::MakeSpan(values)));
      const absl::Status late = (*rank).AllReduceSum(absl::MakeSpan(values));
      // It stays so.
      uint8_t byte = 1, all[kWorld] = {};
      const Values on_device(rank, values);
      if ((*rank).AllGather(absl::MakeSpan(&byte, 1), absl::MakeSpan(all)) != late ||
          (*rank).Broadcast(absl::MakeSpan(&byte, 1), 0) != late ||
          (*rank).AllReduceSum(on_device.data(), 100, *rank.stream) != late || rank.Await() != late)
        return "a later call does not say the same";
      return Text(late);
    });
    mine.id = second_id;
    mine.epoch = 8;
    mine.operation_timeout = kPatience;
    const std::string second =
        JoinAndRun(mine, [](Rank& rank) { return Text(SelfTestCollective(*rank)); });
    return second.empty() ? first : second;
  });
  for (int r = 0; r < kWorld; ++r) {
    // Who came first to its deadline has aborted, which the others may have seen before theirs.
    EXPECT_THAT(
        ranks.Wait(r),
        AllOf(HasSubstr("UNAVAILABLE"), HasSubstr(absl::StrCat("rank ", r)), HasSubstr(plan.id),
              HasSubstr("epoch 7"), HasSubstr("operation 3 (all_reduce of 800 bytes)"),
              ::testing::AnyOf(HasSubstr("not over within 1.5s"), HasSubstr("aborted")),
              HasSubstr("NCCL_DEBUG=INFO"), HasSubstr("/dev/shm")));
  }
}

TEST(Nccl, AKilledRankEndsTheOthersBeforeTheirDeadline) {
  constexpr int kWorld = 3;
  const Plan plan = {.id = NewId(), .world = kWorld};
  ForkedRanks ranks = Fork(kWorld, [&](int r) {
    const fake::ScopedCudaMachine machine({.devices = kWorld});
    Plan mine = plan;
    mine.rank = r;
    return JoinAndRun(mine, [](Rank& rank) -> std::string {
      std::vector<int64_t> values(20'000, 0);
      for (int round = 0;; ++round) {
        if (rank.rank() == 1 && round == 20) raise(SIGKILL);
        RETURN_IF_ERROR_TEXT((*rank).AllReduceSum(absl::MakeSpan(values)));
      }
    });
  });
  EXPECT_EQ(ranks.Wait(1), "killed");
  for (const int r : {0, 2}) {
    EXPECT_THAT(ranks.Wait(r), AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("all_reduce"),
                                     HasSubstr("remote process"), Not(HasSubstr("not over"))));
  }
}

// Whoever waits for it sees nothing, neither of it nor of the other one's abort.
TEST(Nccl, AKilledRankThatNobodySeesGoEndsTheOthersAtTheirOwnDeadlines) {
  constexpr int kWorld = 3;
  const Plan plan = {.id = NewId(), .world = kWorld, .operation_timeout = kShort};
  ForkedRanks ranks = Fork(kWorld, [&](int r) {
    setenv("BITSHARD_FAKE_NCCL_BLIND", "1", 1);
    const fake::ScopedCudaMachine machine({.devices = kWorld});
    Plan mine = plan;
    mine.rank = r;
    return JoinAndRun(mine, [&](Rank& rank) -> std::string {
      RETURN_IF_ERROR_TEXT(MeetIn(plan.id + "-begin", rank.rank(), kWorld));
      std::vector<int64_t> values(100, 0);
      for (int round = 0;; ++round) {
        if (rank.rank() == 1 && round == 2) raise(SIGKILL);
        RETURN_IF_ERROR_TEXT((*rank).AllReduceSum(absl::MakeSpan(values)));
      }
    });
  });
  EXPECT_EQ(ranks.Wait(1), "killed");
  for (const int r : {0, 2}) {
    EXPECT_THAT(ranks.Wait(r),
                AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("operation 3 (all_reduce of 800 bytes)"),
                      HasSubstr("not over within 1.5s"), Not(HasSubstr("abort")),
                      Not(HasSubstr("remote process"))));
  }
}

TEST(Nccl, RanksInDifferentOperationsAllEnd) {
  const auto said = RunProcesses({.id = NewId(), .world = 3}, [](Rank& rank) {
    std::vector<int64_t> values(rank.rank() == 1 ? 577 : 576);
    return Text((*rank).AllReduceSum(absl::MakeSpan(values)));
  });
  for (const std::string& text : said) {
    EXPECT_THAT(text, AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("invalid usage"),
                            HasSubstr("count=576"), HasSubstr("count=577")));
  }
}

TEST(Nccl, EpochsFollowEachOtherOnOneDevice) {
  const std::string id = NewId();
  ForkedRanks ranks = Fork(2, [&](int r) -> std::string {
    const fake::ScopedCudaMachine machine({.devices = 2});
    for (uint64_t epoch = 1; epoch <= 5; ++epoch) {
      const Plan plan = {.id = absl::StrCat(id, "-", epoch), .rank = r, .world = 2, .epoch = epoch};
      const std::string said = JoinAndRun(plan, [&](Rank& rank) -> std::string {
        std::vector<int64_t> values(1000, static_cast<int64_t>(epoch));
        RETURN_IF_ERROR_TEXT((*rank).AllReduceSum(absl::MakeSpan(values)));
        RETURN_IF_ERROR_TEXT(MeetIn(plan.id + "-end", r, 2));
        if (epoch % 2 == 0) (*rank).Abort();  // as when another rank is lost
        return values[999] == static_cast<int64_t>(2 * epoch) ? "" : "a wrong sum";
      });
      if (!said.empty()) return absl::StrCat("epoch ", epoch, ": ", said);
    }
    return "";
  });
  EXPECT_EQ(ranks.Wait(0), "");
  EXPECT_EQ(ranks.Wait(1), "");
}

TEST(Nccl, AbortFromAnotherThreadEndsAWait) {
  std::atomic<bool> over{false};
  const auto said = RunThreads({.id = NewId(), .world = 2}, [&](Rank& rank) -> std::string {
    if (rank.rank() == 1) {  // does not come
      while (!over) absl::SleepFor(absl::Milliseconds(1));
      return "";
    }
    std::thread other([&] {
      absl::SleepFor(absl::Milliseconds(20));
      (*rank).Abort();
    });
    const Values values(rank, {1, 2, 3});
    absl::Status status = (*rank).AllReduceSum(values.data(), 3, *rank.stream);
    if (status.ok()) status = rank.Await();
    other.join();
    over = true;
    return IsCollectiveAbort(status) ? "" : status.ToString();
  });
  EXPECT_EQ(said, std::vector<std::string>(2));
}

// Each call stays in NCCL for a while: the watchdog's looks fall into calls and looks of the step
// thread. Two threads that find a call of the background over would free it twice.
TEST(Nccl, TheWatchdogDoesNotLookWhileTheStepThreadIsInNccl) {
  const Plan plan = {.id = NewId(), .world = 2};
  ForkedRanks ranks = Fork(2, [&](int r) {
    setenv("BITSHARD_FAKE_NCCL_CALL_US", "3000", 1);
    const fake::ScopedCudaMachine machine({.devices = 2});
    Plan mine = plan;
    mine.rank = r;
    const std::string said = JoinAndRun(mine, [](Rank& rank) -> std::string {
      int64_t one = 1;
      for (int i = 0; i < 20; ++i) RETURN_IF_ERROR_TEXT((*rank).AllReduceSum({&one, 1}));
      return one == int64_t{1} << 20 ? "" : "a wrong sum";
    });
    return said.empty() && fake::NcclMisuses() > 0 ? "two threads at once" : said;
  });
  EXPECT_EQ(ranks.Wait(0), "");
  EXPECT_EQ(ranks.Wait(1), "");
}

// Runs a step of 5 s on both ranks' devices, whose word changes every 10 ms or not at all.
std::vector<std::string> LongStep(bool moves) {
  const Plan plan = {.id = NewId(), .world = 2, .operation_timeout = kShort};
  return RunThreads(plan, [moves](Rank& rank) -> std::string {
    uint64_t word = 0;
    (*rank).SetProgressWord(&word);
    const auto work = [&] {
      for (int i = 0; i < 500; ++i) {
        absl::SleepFor(absl::Milliseconds(10));
        if (moves) std::atomic_ref<uint64_t>(word).fetch_add(1);
      }
    };
    CHECK_EQ(fake::EnqueueHostWork(static_cast<cudaStream_t>(rank.stream->native()), work),
             cudaSuccess);
    const absl::Status status = rank.Await();
    (*rank).SetProgressWord(nullptr);
    RETURN_IF_ERROR_TEXT(rank.device->Sync(*rank.stream));
    return Text(status);
  });
}

TEST(Nccl, AStepThatMovesOnMayTakeLongerThanAnOperation) {
  EXPECT_EQ(LongStep(/*moves=*/true), std::vector<std::string>(2));
  for (const std::string& text : LongStep(/*moves=*/false)) {
    EXPECT_THAT(text, AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("not over within 1.5s")));
  }
}

// ---- A lost device.

// Empty when every operation of the rank, and a wait, say that its device is lost.
std::string AllSayLost(Rank& rank, int64_t* on_device) {
  int64_t value = 1;
  uint8_t byte = 1, all[2] = {};
  for (const absl::Status& status :
       {(*rank).AllReduceSum(on_device, 3, *rank.stream),
        (*rank).AllReduceSum(on_device, 0, *rank.stream),
        (*rank).AllGather(on_device, on_device, 8, *rank.stream),
        (*rank).AllReduceSum(absl::MakeSpan(&value, 1)),
        (*rank).AllGather(absl::MakeSpan(&byte, 1), absl::MakeSpan(all)),
        (*rank).Broadcast(absl::MakeSpan(&byte, 1), 0), (*rank).Await(*rank.event)}) {
    if (!IsDeviceLost(status)) return absl::StrCat("not lost: ", status.ToString());
  }
  return "";
}

// Rank 0's device, during a sum; and what the other rank says.
TEST(Nccl, ALostDeviceComesOutOfAwaitAndStays) {
  const auto said = RunThreads({.id = NewId(), .world = 2}, [](Rank& rank) -> std::string {
    const Values values(rank, {1, 2, 3});
    if (rank.rank() == 0) fake::BreakDevice(0, cudaErrorIllegalAddress);
    RETURN_IF_ERROR_TEXT((*rank).AllReduceSum(values.data(), 3, *rank.stream));
    const absl::Status status = rank.Await();
    if (rank.rank() == 1) {
      if (IsDeviceLost(status)) return "this one's is not lost";
      return status.code() == absl::StatusCode::kUnavailable ? "" : status.ToString();
    }
    if (!IsDeviceLost(status)) return absl::StrCat("not lost: ", status.ToString());
    const std::string later = AllSayLost(rank, values.data());
    if (!later.empty()) return later;
    (*rank).Abort();
    return AllSayLost(rank, values.data());
  });
  EXPECT_EQ(said, std::vector<std::string>(2));
}

// Of NCCL it is an "unhandled cuda error".
TEST(Nccl, ALostDeviceComesOutOfTheFirstCallAndOutOfAnAbortedCommunicator) {
  for (const bool aborts : {false, true}) {
    const auto said = RunThreads({.id = NewId(), .world = 2}, [&](Rank& rank) -> std::string {
      if (rank.rank() == 1) return "";
      const Values values(rank, {1, 2, 3});
      fake::BreakDevice(0, cudaErrorIllegalAddress);
      RETURN_IF_ERROR_TEXT(rank.device->Fill(values.data(), 0, 8, *rank.stream));
      if (!IsDeviceLost(rank.device->Sync(*rank.stream))) return "not broken";
      if (aborts) (*rank).Abort();
      return AllSayLost(rank, values.data());
    });
    EXPECT_EQ(said, std::vector<std::string>(2)) << aborts;
  }
}

// ---- Joining.

}  // namespace
}  // namespace bitshard
