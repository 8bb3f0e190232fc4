// How much is in front of a request that comes now.
#include "coordinator/engine/waiting_book.h"

#include <gtest/gtest.h>

namespace bitshard {
namespace {

constexpr ServiceLevel kNormal, kUrgent = {.batch = false, .priority = -1},
                                kBatch = {.batch = true, .priority = -9};

class WaitingBookTest : public testing::Test {
 protected:
  absl::flat_hash_map<std::string, double> weights_;
  WaitingBook book_{&weights_};
};

TEST_F(WaitingBookTest, WhatComesAndGoesLeavesNothing) {
  book_.Add(kNormal, "a", 10);
  book_.Add(kBatch, "a", 7);
  book_.Add(kUrgent, "b", 5);
  EXPECT_EQ(book_.sum().requests, 3u);
  EXPECT_EQ(book_.sum().tokens, 22u);
  EXPECT_EQ(book_.batch().tokens, 7u);
  EXPECT_EQ(book_.of_tenant("a").tokens, 17u);
  book_.Remove(kNormal, "a", 10);
  book_.Remove(kUrgent, "b", 5);
  EXPECT_EQ(book_.of_tenant("b").requests, 0u);
  book_.Remove(kBatch, "a", 7);
  EXPECT_EQ(book_.sum().requests, 0u);
  EXPECT_EQ(book_.batch().requests, 0u);
  EXPECT_EQ(book_.AheadOf(kBatch, "a", 1).requests, 0u);
}

TEST_F(WaitingBookTest, SeveralComeAndGoTogether) {
  book_.Add(kNormal, "a", 10, 4);
  EXPECT_EQ(book_.sum().requests, 4u);
  EXPECT_EQ(book_.AheadOf(kNormal, "a", 1).requests, 4u);
  book_.Remove(kNormal, "a", 10);
  EXPECT_EQ(book_.of_tenant("a").requests, 3u);
  EXPECT_EQ(book_.of_tenant("a").tokens, 0u);
  book_.Remove(kNormal, "a", 0, 3);
  EXPECT_EQ(book_.sum().requests, 0u);
  EXPECT_EQ(book_.AheadOf(kNormal, "a", 1).requests, 0u);
}

TEST_F(WaitingBookTest, EarlierLevelsAreInFrontLaterOnesAreNot) {
  book_.Add(kUrgent, "b", 100);
  book_.Add(kNormal, "a", 10);
  book_.Add(kBatch, "a", 1000);
  EXPECT_EQ(book_.AheadOf(kUrgent, "c", 1).tokens, 1u);  // a token's worth of b's: equal shares
  EXPECT_EQ(book_.AheadOf(kNormal, "a", 1).tokens, 110u);
  EXPECT_EQ(book_.AheadOf(kNormal, "a", 1).requests, 2u);
  EXPECT_EQ(book_.AheadOf(kBatch, "a", 1).tokens, 1110u);
}

TEST_F(WaitingBookTest, OtherTenantsAreInFrontByTheirShareOnly) {
  for (int i = 0; i < 1000; ++i) book_.Add(kNormal, "heavy", 20);
  // Of its own tenant all is in front.
  EXPECT_EQ(book_.AheadOf(kNormal, "heavy", 20).requests, 1000u);
  EXPECT_EQ(book_.AheadOf(kNormal, "light", 20).requests, 1u);
  EXPECT_EQ(book_.AheadOf(kNormal, "light", 20).tokens, 20u);
  book_.Add(kNormal, "light", 80);
  const WaitingBook::Sum second = book_.AheadOf(kNormal, "light", 20);
  EXPECT_EQ(second.requests, 1u + 5u);
  EXPECT_EQ(second.tokens, 80u + 100u);
}

TEST_F(WaitingBookTest, WeightsSayHowMuchThatIs) {
  weights_ = {{"heavy", 4}, {"light", 0.5}};
  for (int i = 0; i < 1000; ++i) book_.Add(kNormal, "heavy", 20);
  EXPECT_EQ(book_.AheadOf(kNormal, "light", 20).requests, 8u);
}

}  // namespace
}  // namespace bitshard
