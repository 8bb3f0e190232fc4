#include "coordinator/tenant_queue.h"

#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace bitshard {
namespace {

TEST(TenantQueue, TenantsTakeTurnsAndKeepTheirOrder) {
  TenantQueue<int> queue(/*share=*/100);
  for (int i = 0; i < 4; ++i) queue.Push("a", i);
  for (int i = 10; i < 12; ++i) queue.Push("b", i);
  queue.Push("c", 20);
  std::vector<int> order;
  while (queue.CanPop()) order.push_back(queue.Pop().work);
  EXPECT_EQ(order, (std::vector<int>{0, 10, 20, 1, 11, 2, 3}));
}

TEST(TenantQueue, NobodyHasMoreThanHisShareAtWork) {
  TenantQueue<int> queue(/*share=*/2);
  for (int i = 0; i < 5; ++i) queue.Push("a", i);
  EXPECT_EQ(queue.Pop().work, 0);
  EXPECT_EQ(queue.Pop().work, 1);
  EXPECT_FALSE(queue.CanPop());
  EXPECT_EQ(queue.waiting("a"), 3u);
  queue.Push("b", 10);
  EXPECT_EQ(queue.Pop().work, 10) << "passes who has his share";
  queue.Done("a");
  EXPECT_EQ(queue.Pop().work, 2);
  EXPECT_FALSE(queue.CanPop());
}

TEST(TenantQueue, ATenantsSlowWorkTakesTurnsWithTheRestAndCountsInItsShare) {
  TenantQueue<int> queue(/*share=*/3, /*slow_share=*/2);
  for (int i = 0; i < 4; ++i) queue.Push("a", i, /*slow=*/true);
  for (int i = 10; i < 14; ++i) queue.Push("a", i);
  std::vector<int> order;
  while (queue.CanPop()) order.push_back(queue.Pop().work);
  EXPECT_EQ(order, (std::vector<int>{0, 10, 1})) << "three in all";
  queue.Push("b", 20, /*slow=*/true);
  EXPECT_EQ(queue.Pop().work, 20);
  queue.Done("a");
  EXPECT_EQ(queue.Pop().work, 11) << "no third slow one";
  queue.Done("a", /*slow=*/true);
  const auto next = queue.Pop();
  EXPECT_EQ(next.work, 2);
  EXPECT_TRUE(next.slow);
  EXPECT_EQ(queue.waiting("a"), 3u);
  queue.Remove("a", 3);
  queue.Remove("a", 12);
  EXPECT_EQ(queue.waiting("a"), 1u);
  queue.Clear();
  EXPECT_EQ(queue.waiting(), 0u);
  for (const bool slow : {true, true, false}) queue.Done("a", slow);
  queue.Push("a", 30);
  EXPECT_EQ(queue.Pop().work, 30);
}

TEST(TenantQueue, WhatIsTakenOutLeavesNothingBehind) {
  TenantQueue<int> queue(/*share=*/1);
  queue.Push("a", 1);
  queue.Push("a", 2);
  queue.Push("b", 2);
  queue.Remove("a", 2);
  queue.Remove("b", 3);
  queue.Remove("nobody", 3);
  EXPECT_EQ(queue.waiting(), 2u);
  queue.Remove("a", 1);
  EXPECT_EQ(queue.Pop().work, 2);
  EXPECT_FALSE(queue.CanPop());
  queue.Push("b", 4);
  queue.Clear();
  EXPECT_EQ(queue.waiting(), 0u);
  EXPECT_FALSE(queue.CanPop());
  queue.Done("b");
}

// Every tenant that waits is served once before any is served twice.
TEST(TenantQueue, RandomLoadsAreServedInTurns) {
  std::mt19937 random(11);
  TenantQueue<int> queue(/*share=*/1000000);
  std::map<std::string, int> waited;  // turns of others since it began to wait or was served
  size_t waiting = 0;
  for (int i = 0; i < 20000; ++i) {
    if (random() % 2 == 0) {
      const std::string tenant(1, static_cast<char>('a' + random() % 8));
      queue.Push(tenant, i);
      waited.try_emplace(tenant, 0);
      ++waiting;
    } else if (queue.CanPop()) {
      const std::string tenant = queue.Pop().tenant;
      --waiting;
      for (auto& [name, turns] : waited) {
        if (name == tenant) continue;
        EXPECT_LT(++turns, 8) << name;
      }
      waited.erase(tenant);
      if (queue.waiting(tenant) > 0) waited.emplace(tenant, 0);
    }
    ASSERT_EQ(queue.waiting(), waiting);
  }
}

}  // namespace
}  // namespace bitshard
