#include "coordinator/shard/deal.h"

#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace bitshard {
namespace {

using Counts = std::vector<uint64_t>;

TEST(Deal, EqualSharesOfUnitsThatDoNotDivideGoToTheLowerRanksFirst) {
  EXPECT_EQ(DealUnits(3, {1, 1}), (Counts{2, 1}));
  EXPECT_EQ(DealUnits(9, {1, 1, 1, 1}), (Counts{3, 2, 2, 2}));
  EXPECT_EQ(DealUnits(8, {5, 5, 5}), (Counts{3, 3, 2}));
}

TEST(Deal, UnevenSharesFollowTheLargestRemainder) {
  EXPECT_EQ(DealUnits(12, {24, 48}), (Counts{4, 8}));
  EXPECT_EQ(DealUnits(10, {1, 2, 4}), (Counts{1, 3, 6}));  // quotas 1.43 2.86 5.71
}

TEST(Deal, FewerUnitsThanRanksLeaveRanksWithNone) {
  EXPECT_EQ(DealUnits(2, {1, 1, 1, 1}), (Counts{1, 1, 0, 0}));
  EXPECT_EQ(DealUnits(0, {1, 1}), (Counts{0, 0}));
}

TEST(Deal, UnitsAreNeverLostOrInvented) {
  for (uint64_t units = 0; units < 300; ++units) {
    for (const std::vector<double>& shares : std::vector<std::vector<double>>{
             {1}, {0.1, 0.2, 0.7}, {1e-9, 1e9}, {3, 3, 3, 3, 3, 3, 3}, {1e-300, 1e-300}}) {
      const Counts dealt = DealUnits(units, shares);
      ASSERT_EQ(std::accumulate(dealt.begin(), dealt.end(), uint64_t{0}), units);
    }
  }
}

TEST(Deal, UnitsOnTopMakeUpForWhatWasUneven) {
  // 100 bytes in all; the first rank has 20 of them already.
  EXPECT_EQ(DealUnitsOnTop(8, 10, {20, 0}, {1, 1}), (Counts{3, 5}));
  EXPECT_EQ(DealUnitsOnTop(8, 10, {0, 0}, {1, 3}), (Counts{2, 6}));
}

TEST(Deal, ARankThatHasMoreThanItsShareGetsNoneOnTop) {
  EXPECT_EQ(DealUnitsOnTop(4, 10, {100, 0, 0}, {1, 1, 1}), (Counts{0, 2, 2}));
  EXPECT_EQ(DealUnitsOnTop(0, 10, {5, 5}, {1, 1}), (Counts{0, 0}));
}

TEST(Deal, RunsFollowOneAnother) {
  EXPECT_EQ(RunsOf({2, 0, 1}), (std::vector<bitshard::Run>{{0, 2}, {2, 2}, {2, 3}}));
}

}  // namespace
}  // namespace bitshard
