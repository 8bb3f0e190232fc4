// Symmetric windows of NCCL: sums in them, their life over epochs and deaths, and what becomes of
// sums where there are none.
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <signal.h>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/device.h"
#include "tests/support/fake_cudart.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/forked_ranks.h"
#include "tests/worker/collective/nccl_ranks.h"
#include "worker/collective/device_collective.h"

namespace bitshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kCount = 1000;

absl::Status OpenWindow(Rank& rank) {
  if (rank.window.bytes() == 0) {
    ASSIGN_OR_RETURN(rank.window, AllocCollectiveMemory(*rank.device, kCount * sizeof(float)));
  }
  return (*rank).OpenWindow(rank.window, *rank.stream);
}

absl::Status Write(Rank& rank, float value) {
  const std::vector<float> values(kCount, value);
  RETURN_IF_ERROR(
      rank.device->Copy(rank.window.data(), values.data(), kCount * sizeof(float), *rank.stream));
  return rank.device->Sync(*rank.stream);  // `values` goes
}

absl::StatusOr<std::vector<float>> Read(Rank& rank) {
  RETURN_IF_ERROR(rank.Await());  // first: a sum that was cut off leaves nothing to read
  std::vector<float> values(kCount);
  RETURN_IF_ERROR(
      rank.device->Copy(values.data(), rank.window.data(), kCount * sizeof(float), *rank.stream));
  RETURN_IF_ERROR(rank.device->Sync(*rank.stream));
  return values;
}

absl::Status Sum(Rank& rank) {
  return (*rank).AllReduceSum(rank.window.as<float>(), kCount, *rank.stream);
}

// Of `mine` of each rank.
absl::StatusOr<std::vector<float>> SumOf(Rank& rank, float mine) {
  RETURN_IF_ERROR(Write(rank, mine));
  RETURN_IF_ERROR(Sum(rank));
  return Read(rank);
}

// What the fake has counted, in a process of one rank.
std::string Expect(int windows, const std::string& when) {
  if (fake::LiveNcclWindows() != windows)
    return absl::StrCat(fake::LiveNcclWindows(), " windows ", when, ", want ", windows);
  return fake::NcclMisuses() == 0 ? "" : absl::StrCat("misuses ", when);
}

// The fake adds up in a window in the order of the ranks, elsewhere round a ring: (1 + 2^-24) +
// 2^-24 is 1, (2^-24 + 2^-24) + 1 is not.
std::string ExpectSum(Rank& rank, bool in_window) {
  const auto got = SumOf(rank, rank.rank() == 0 ? 1.0f : 0x1p-24f);
  RETURN_IF_ERROR_TEXT(got.status());
  const float first = in_window ? 1.0f : 1.0f + 0x1p-23f;  // of a slice that begins at rank 1
  return got->front() == first ? "" : absl::StrCat("got 1 + ", got->front() - 1);
}

std::vector<std::string> InThree(const Body& body) {
  return RunProcesses({.id = NewId(), .world = 3}, body);
}

TEST(NcclWindow, SumsInIt) {
  const auto said = InThree([](Rank& rank) -> std::string {
    RETURN_IF_ERROR_TEXT(OpenWindow(rank));
    std::string wrong = Expect(1, "once it is open");
    if (wrong.empty()) wrong = ExpectSum(rank, /*in_window=*/true);
    if (!wrong.empty()) return wrong;
    rank.collective.reset();
    return Expect(0, "after the collective");
  });
  EXPECT_EQ(said, std::vector<std::string>(3));
}

TEST(NcclWindow, IsOfThreadsToo) {
  const int misuses = fake::NcclMisuses();
  const auto said = RunThreads({.id = NewId(), .world = 2}, [](Rank& rank) -> std::string {
    RETURN_IF_ERROR_TEXT(OpenWindow(rank));
    const auto got = SumOf(rank, 1.5f);
    RETURN_IF_ERROR_TEXT(got.status());
    return *got == std::vector<float>(kCount, 3.0f) ? "" : "a wrong sum";
  });
  EXPECT_EQ(said, std::vector<std::string>(2));
  EXPECT_EQ(fake::LiveNcclWindows(), 0);
  EXPECT_EQ(fake::NcclMisuses(), misuses);
}

// One epoch after another in the same memory, with graphs; every second one ends by an abort.
TEST(NcclWindow, EpochsOpenAndCloseIt) {
  const std::string id = NewId();
  ForkedRanks ranks = Fork(2, [&](int r) -> std::string {
    const fake::ScopedCudaMachine machine({.devices = 2});
    Plan plan = {.id = id + "-0", .rank = r, .world = 2};
    absl::StatusOr<Rank> joined = Join(plan);
    RETURN_IF_ERROR_TEXT(joined.status());
    Rank& rank = *joined;
    for (uint64_t epoch = 1; epoch <= 4; ++epoch) {
      RETURN_IF_ERROR_TEXT(OpenWindow(rank));
      if (std::string wrong = Expect(1, "in an epoch"); !wrong.empty()) return wrong;
      RETURN_IF_ERROR_TEXT(SumOf(rank, 1).status());
      RETURN_IF_ERROR_TEXT(Write(rank, 1));
      RETURN_IF_ERROR_TEXT(rank.device->BeginCapture(*rank.stream));
      RETURN_IF_ERROR_TEXT(Sum(rank));
      auto graph = rank.device->EndCapture(*rank.stream);
      RETURN_IF_ERROR_TEXT(graph.status());
      for (int i = 0; i < 3; ++i) RETURN_IF_ERROR_TEXT(rank.device->Launch(**graph, *rank.stream));
      const auto got = Read(rank);
      RETURN_IF_ERROR_TEXT(got.status());
      if (*got != std::vector<float>(kCount, 8)) return "a wrong sum";
      graph->reset();
      RETURN_IF_ERROR_TEXT(MeetIn(plan.id + "-end", r, 2));
      if (epoch % 2 == 0) (*rank).Abort();
      rank.collective.reset();
      if (std::string wrong = Expect(0, "between epochs"); !wrong.empty()) return wrong;
      plan.id = absl::StrCat(id, "-", epoch);
      plan.epoch = epoch + 1;
      auto met = Meet(plan, *rank.device);
      RETURN_IF_ERROR_TEXT(met.status());
      rank.collective = *std::move(met);
    }
    return "";
  });
  EXPECT_EQ(ranks.Wait(0), "");
  EXPECT_EQ(ranks.Wait(1), "");
}

// Ranks 0 and 2 go on as ranks 0 and 1, in the memory that they have.
TEST(NcclWindow, AKilledRankEndsItAndTheOthersOpenANewOne) {
  const Plan plan = {.id = NewId(), .world = 3};
  const std::string second_id = NewId();
  ForkedRanks ranks = Fork(3, [&](int r) -> std::string {
    const fake::ScopedCudaMachine machine({.devices = 3});
    Plan mine = plan;
    mine.rank = r;
    absl::StatusOr<Rank> joined = Join(mine);
    RETURN_IF_ERROR_TEXT(joined.status());
    Rank& rank = *joined;
    RETURN_IF_ERROR_TEXT(OpenWindow(rank));
    absl::Status status;
    for (int round = 0; status.ok(); ++round) {
      if (r == 1 && round == 20) raise(SIGKILL);
      status = SumOf(rank, 0).status();
    }
    if (status.code() != absl::StatusCode::kUnavailable) return status.ToString();
    rank.collective.reset();
    if (std::string wrong = Expect(0, "after the death"); !wrong.empty()) return wrong;
    auto met = Meet({.id = second_id, .rank = r / 2, .world = 2, .epoch = 2}, *rank.device);
    RETURN_IF_ERROR_TEXT(met.status());
    rank.collective = *std::move(met);
    RETURN_IF_ERROR_TEXT(OpenWindow(rank));
    if (std::string wrong = Expect(1, "in the next epoch"); !wrong.empty()) return wrong;
    const auto got = SumOf(rank, static_cast<float>(r));
    RETURN_IF_ERROR_TEXT(got.status());
    return *got == std::vector<float>(kCount, 2) ? "" : "a wrong sum";
  });
  EXPECT_EQ(ranks.Wait(1), "killed");
  EXPECT_EQ(ranks.Wait(0), "");
  EXPECT_EQ(ranks.Wait(2), "");
}

// NCCL then registers the memory on each rank alone, and gives a handle as for a window.
TEST(NcclWindow, MayBeNoSymmetricOneWhichNobodyClaims) {
  const auto said = InThree([](Rank& rank) -> std::string {
    setenv("NCCL_WIN_ENABLE", "0", 1);
    ::testing::internal::CaptureStdout();
    const absl::Status opened = OpenWindow(rank);
    const std::string log = ::testing::internal::GetCapturedStdout();
    RETURN_IF_ERROR_TEXT(opened);
    if (!absl::StrContains(log, "memory of sums registered") || absl::StrContains(log, "symmetric"))
      return absl::StrCat("logged: ", log);
    std::string wrong = Expect(1, "once it is registered");
    if (wrong.empty()) wrong = ExpectSum(rank, /*in_window=*/false);
    if (!wrong.empty()) return wrong;
    rank.collective.reset();
    return Expect(0, "after the collective");
  });
  EXPECT_EQ(said, std::vector<std::string>(3));
}

// ---- Where there is none.

// Sums go on without; also when one rank alone has no window.
TEST(NcclWindow, IsDoneWithoutWhereItIsRefused) {
  const std::vector<std::function<void(Rank&)>> ways = {
      [](Rank&) { setenv("BITSHARD_FAKE_NCCL_VERSION", "22605", 1); },
      [](Rank&) { setenv("BITSHARD_FAKE_NCCL_VERSION", "23004", 1); },  // there, but not sound
      [](Rank&) { setenv("BITSHARD_FAKE_NCCL_WINDOWS", "refuse", 1); },
      [](Rank&) { setenv("BITSHARD_FAKE_NCCL_WINDOWS", "none", 1); },
      [](Rank& rank) {
        if (rank.rank() == 1) setenv("BITSHARD_FAKE_NCCL_VERSION", "22605", 1);
      },
      [](Rank& rank) {
        if (rank.rank() == 2) rank.window = *rank.device->Alloc(kCount * sizeof(float));
      },
  };
  for (size_t i = 0; i < ways.size(); ++i) {
    const auto said = InThree([&](Rank& rank) -> std::string {
      ways[i](rank);
      RETURN_IF_ERROR_TEXT(OpenWindow(rank));
      const std::string wrong = Expect(0, "once it was refused");
      return wrong.empty() ? ExpectSum(rank, /*in_window=*/false) : wrong;
    });
    EXPECT_EQ(said, std::vector<std::string>(3)) << "way " << i;
  }
}

TEST(NcclWindow, MemoryIsTheDevicesOwnWhereNcclHasNone) {
  const fake::ScopedCudaMachine machine({});
  auto device = OpenDevice("cuda", 0);
  ASSERT_TRUE(device.ok()) << device.status();
  fake::FailCall("cudaMalloc", cudaErrorMemoryAllocation);
  auto memory = AllocCollectiveMemory(**device, 4096);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->bytes(), 4096u);
}

// Registering ends rank 1's communicator: so does the epoch. The next one goes without a window.
TEST(NcclWindow, AnAttemptThatEndsTheCommunicatorIsNotMadeAgain) {
  const std::string second_id = NewId();
  const auto said = RunProcesses({.id = NewId(), .world = 2}, [&](Rank& rank) -> std::string {
    const int r = rank.rank();
    if (r == 1) setenv("BITSHARD_FAKE_NCCL_WINDOWS", "break", 1);
    const absl::Status broken = OpenWindow(rank);
    rank.collective.reset();
    auto met = Meet({.id = second_id, .rank = r, .world = 2, .epoch = 2}, *rank.device);
    RETURN_IF_ERROR_TEXT(met.status());
    rank.collective = *std::move(met);
    RETURN_IF_ERROR_TEXT(OpenWindow(rank));
    std::string wrong = Expect(0, "in the second epoch");
    if (!wrong.empty()) return wrong;
    const auto got = SumOf(rank, 1);
    RETURN_IF_ERROR_TEXT(got.status());
    return *got == std::vector<float>(kCount, 2) ? broken.ToString() : "a wrong sum";
  });
  EXPECT_THAT(said[1], AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("window_register of 4000 bytes"),
                             HasSubstr("told to fail")));
  EXPECT_THAT(said[0], AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("remote process")));
}

// Registering does not end on any rank. The next epoch goes without.
TEST(NcclWindow, AnAttemptThatHangsIsNotMadeAgain) {
  const Plan plan = {.id = NewId(), .world = 2, .operation_timeout = absl::Seconds(1)};
  const std::string second_id = NewId();
  const auto said = RunProcesses(plan, [&](Rank& rank) -> std::string {
    const int r = rank.rank();
    setenv("BITSHARD_FAKE_NCCL_WINDOWS", "hang", 1);
    RETURN_IF_ERROR_TEXT(MeetIn(plan.id + "-begin", r, 2));
    const absl::Status late = OpenWindow(rank);
    rank.collective.reset();
    auto met = Meet({.id = second_id, .rank = r, .world = 2, .epoch = 2}, *rank.device);
    RETURN_IF_ERROR_TEXT(met.status());
    rank.collective = *std::move(met);
    RETURN_IF_ERROR_TEXT(OpenWindow(rank));
    const std::string wrong = Expect(0, "in the second epoch");
    if (!wrong.empty()) return wrong;
    const auto got = SumOf(rank, 1);
    RETURN_IF_ERROR_TEXT(got.status());
    return *got == std::vector<float>(kCount, 2) ? late.ToString() : "a wrong sum";
  });
  for (const std::string& text : said) {
    EXPECT_THAT(text, AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("window_register of 4000 bytes"),
                            HasSubstr("not over within 1s")));
  }
}

TEST(NcclWindow, RanksOfUnequalSizesAreTold) {
  const auto said = RunProcesses({.id = NewId(), .world = 2}, [](Rank& rank) -> std::string {
    rank.window = *AllocCollectiveMemory(*rank.device, rank.rank() == 0 ? 4096 : 8192);
    return OpenWindow(rank).ToString();
  });
  for (const std::string& text : said) {
    EXPECT_THAT(text, AllOf(HasSubstr("INTERNAL"), HasSubstr("4096"), HasSubstr("8192"),
                            HasSubstr("do not run the same graph")));
  }
}

}  // namespace
}  // namespace bitshard
