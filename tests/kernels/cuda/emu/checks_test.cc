// The emulator's checks on planted faults: each must be found by its kind and at its line, and
// sound kernels must pass.
#include <fstream>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/cuda/emu/faulty_kernels.h"
#include "tests/support/cuda_kernel_test.h"
#include "tests/support/test_paths.h"

namespace bitshard::emu {
namespace {

struct Expected {
  const char* name;
  std::optional<FindingKind> kind;  // nothing: sound
  const char* mark;                 // of the faulty lines
};

void PrintTo(const Expected& expected, std::ostream* out) { *out << expected.name; }

const Expected kExpected[] = {
    {"ExchangeInWarp", {}, ""},
    {"ExchangeWithoutSync", FindingKind::kUninitialized, "ExchangeWithoutSync"},
    {"ShuffleIsNoFence", FindingKind::kRaceShared, "ShuffleIsNoFence"},
    {"OtherWarp", FindingKind::kUninitialized, "OtherWarp"},
    {"WriteAfterRead", FindingKind::kRaceShared, "WriteAfterRead"},
    {"WriteAfterReadAndBarrier", {}, ""},
    {"WriteAfterReadInWarp", {}, ""},
    {"SameValue", FindingKind::kRaceShared, "SameValue"},
    {"BehindArray", FindingKind::kOutOfBounds, "BehindArray"},
    {"TooMuchShared", FindingKind::kSharedLimit, "TooMuchShared"},
    {"BranchedShuffle", FindingKind::kDivergentCollective, "BranchedShuffle"},
    {"HalfWarp", {}, ""},
    {"HalfWarpFullMask", FindingKind::kDeadlock, "HalfWarpFullMask"},
    {"OutsideMask", FindingKind::kInactiveLane, "OutsideMask"},
    {"NotInOwnMask", FindingKind::kWrongMask, "NotInOwnMask"},
    {"TwoBarriers", FindingKind::kDivergentBarrier, "TwoBarriers"},
    {"ExitBeforeBarrier", FindingKind::kDivergentBarrier, "ExitBeforeBarrier"},
    {"Traps", FindingKind::kTrap, "Traps"},
    {"BehindAllocation", FindingKind::kOutOfBounds, "BehindAllocation"},
    {"WritesFreed", FindingKind::kFreedMemory, "WritesFreed"},
    {"Misaligned", FindingKind::kMisaligned, "Misaligned"},
    {"ReadsUnwritten", FindingKind::kUninitialized, "ReadsUnwritten"},
    {"BlocksWriteOneWord", FindingKind::kRaceGlobal, "BlocksWriteOneWord"},
    {"BlocksAddAtomically", {}, ""},
    {"Merge", {}, ""},
    {"MergeFenceAfterBarrier", {}, ""},
    {"MergeNoFence", FindingKind::kRaceGlobal, "Merge"},
    {"MergeOneFence", FindingKind::kRaceGlobal, "Merge"},
    {"MergeNoBarrier", FindingKind::kRaceGlobal, "Merge"},
    {"MergeNoAcquire", FindingKind::kRaceGlobal, "Merge"},
    {"MergeByAll", {}, ""},
    {"CopyOnce", {}, ""},
    {"CopyNotWaited", FindingKind::kInFlight, "CopyOnce"},
    {"CopyRing", {}, ""},
    {"CopyRingNoBarrier", FindingKind::kRaceShared, "CopyRing"},
    {"LdMatrixMisaligned", FindingKind::kMisaligned, "LdMatrixMisaligned"},
    {"WritesEarly", FindingKind::kEarlyAccess, "WritesEarly"},
    {"ReadsEarly", FindingKind::kEarlyAccess, "ReadsEarly"},
    {"WaitsFirst", {}, ""},
};

// "faulty_kernels.cu:12" of the lines that carry the mark.
std::set<std::string> MarkedPlaces(const std::string& mark) {
  std::ifstream source(RunfilesPath("tests/kernels/cuda/emu/faulty_kernels.cu"));
  EXPECT_TRUE(source.good());
  std::set<std::string> places;
  std::string line;
  const std::string end = "// FAULT: " + mark;
  for (int number = 1; std::getline(source, line); ++number) {
    if (line.size() >= end.size() && line.compare(line.size() - end.size(), end.size(), end) == 0)
      places.insert("faulty_kernels.cu:" + std::to_string(number));
  }
  return places;
}

class Checks : public ::testing::TestWithParam<Expected> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(ChecksAccesses());
    ResetFindings();
  }
  void TearDown() override {
    SetOptions({});
    ResetFindings();
  }
};

TEST_P(Checks, FindsWhatIsThereAndNothingElse) {
  const Expected& expected = GetParam();
  DeviceArray<int> data(128);
  data.Write(std::vector<int>(64, 0));
  if (expected.kind == FindingKind::kFreedMemory) Free(data.get());
  ASSERT_EQ(cuda::LaunchFaulty(expected.name, data.get(), nullptr), cudaSuccess);
  const std::vector<Finding> findings = Findings();
  if (!expected.kind.has_value()) {
    EXPECT_EQ(Errors(), 0u) << FindingsText();
    return;
  }
  const std::set<std::string> places = MarkedPlaces(expected.mark);
  ASSERT_FALSE(places.empty());
  bool found = false;
  for (const Finding& finding : findings) {
    EXPECT_TRUE(places.contains(finding.place)) << FindingsText();
    found = found || finding.kind == *expected.kind;
  }
  EXPECT_TRUE(found) << "no " << FindingName(*expected.kind) << " among:\n" << FindingsText();
}

// A race is one in any order of the threads; what is only uninitialized in one order is a race in
// another.
TEST_P(Checks, FindsItInOtherOrders) {
  const Expected& expected = GetParam();
  for (const Order order : {Order::kBackward, Order::kShuffled}) {
    ResetFindings();
    SetOptions({.order = order, .seed = 5});
    DeviceArray<int> data(128);
    data.Write(std::vector<int>(64, 0));
    if (expected.kind == FindingKind::kFreedMemory) Free(data.get());
    ASSERT_EQ(cuda::LaunchFaulty(expected.name, data.get(), nullptr), cudaSuccess);
    EXPECT_EQ(Errors() > 0, expected.kind.has_value()) << FindingsText();
  }
}

INSTANTIATE_TEST_SUITE_P(All, Checks, ::testing::ValuesIn(kExpected),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(HostCopies, OfBytesNeverWrittenAreFound) {
  ResetFindings();
  DeviceArray<int> data(8);
  data.Write({1, 2, 3, 4});
  EXPECT_EQ(data.Read(0, 4), (std::vector<int>{1, 2, 3, 4}));
  EXPECT_EQ(Errors(), 0u) << FindingsText();
  data.Read(2, 4);
  ASSERT_EQ(Findings().size(), 1u);
  EXPECT_EQ(Findings()[0].kind, FindingKind::kUninitialized);
  EXPECT_EQ(Findings()[0].place, "the host");
  ResetFindings();
}

TEST(HostCopies, OnTheDeviceTakeTheStateAlong) {
  ResetFindings();
  DeviceArray<int> from(8), to(std::vector<int>(8, 5));
  from.Write({1, 2, 3, 4});
  CopyOnDevice(to.get(), from.get(), 8 * sizeof(int));
  EXPECT_EQ(to.Read(0, 4), (std::vector<int>{1, 2, 3, 4}));
  EXPECT_EQ(Errors(), 0u) << FindingsText();
  to.Read();
  EXPECT_EQ(Errors(), 1u);
  ResetFindings();
}

TEST(HostCopies, OutsideAllocationsAreRefused) {
  ResetFindings();
  DeviceArray<int> data(std::vector<int>{1, 2, 3, 4});
  int host[5] = {7, 7, 7, 7, 7};
  CopyFromDevice(host, data.get(), sizeof(host));
  CopyToDevice(data.get() + 1, host, 4 * sizeof(int));
  EXPECT_EQ(host[0], 7);
  ASSERT_EQ(Errors(), 2u) << FindingsText();
  EXPECT_EQ(Findings()[0].kind, FindingKind::kBadCopy);
  ResetFindings();
  EXPECT_EQ(data.Read(), (std::vector<int>{1, 2, 3, 4}));
}

}  // namespace
}  // namespace bitshard::emu
