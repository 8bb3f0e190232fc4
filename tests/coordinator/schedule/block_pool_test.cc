#include "coordinator/schedule/block_pool.h"

#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace bitshard {
namespace {

TEST(BlockPool, RefusedAllocationLeavesPoolUnchanged) {
  BlockPool pool(4);
  ASSERT_TRUE(pool.Allocate(3).ok());
  const absl::StatusOr<std::vector<BlockId>> refused = pool.Allocate(2);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pool.free(), 1u);
  EXPECT_EQ(pool.used(), 3u);
  EXPECT_TRUE(pool.Allocate(1).ok());
}

TEST(BlockPool, AllocatingNothingFromAnEmptyPoolWorks) {
  BlockPool pool(0);
  const absl::StatusOr<std::vector<BlockId>> none = pool.Allocate(0);
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->empty());
}

TEST(BlockPool, BlockIsFreeOnlyWhenItsLastOwnerLetsGo) {
  BlockPool pool(2);
  const BlockId id = pool.Allocate(1)->front();
  pool.AddReference(id);
  pool.Release(id);
  EXPECT_EQ(pool.free(), 1u);
  EXPECT_EQ(pool.refcount(id), 1u);
  pool.Release(id);
  EXPECT_EQ(pool.free(), 2u);
}

TEST(BlockPool, QuarantinedBlockIsNeverGivenAwayAgain) {
  BlockPool pool(3);
  const std::vector<BlockId> ids = *pool.Allocate(2);
  pool.ReleaseToQuarantine(ids[0]);
  pool.Release(ids[1]);
  EXPECT_EQ(pool.quarantined(), 1u);
  EXPECT_EQ(pool.usable(), 2u);
  const std::vector<BlockId> rest = *pool.Allocate(2);
  EXPECT_EQ(std::count(rest.begin(), rest.end(), ids[0]), 0);
  EXPECT_FALSE(pool.Allocate(1).ok());
}

TEST(BlockPool, SharedBlockGoesToQuarantineWithItsLastOwner) {
  BlockPool pool(2);
  const BlockId id = pool.Allocate(1)->front();
  pool.AddReference(id);
  pool.ReleaseToQuarantine(id);
  EXPECT_EQ(pool.used(), 1u);
  EXPECT_EQ(pool.quarantined(), 0u);
  EXPECT_EQ(pool.usable(), 1u);  // condemned already
  pool.Release(id);
  EXPECT_EQ(pool.used(), 0u);
  EXPECT_EQ(pool.quarantined(), 1u);
  EXPECT_EQ(pool.usable(), 1u);
}

TEST(BlockPool, KeptBlockIsCachedWithItsLastOwnerAndGivenAwayOnlyWhenForgotten) {
  BlockPool pool(3);
  const std::vector<BlockId> ids = *pool.Allocate(2);
  pool.Keep(ids[0]);
  pool.Keep(ids[1]);
  pool.Release(ids[0]);
  EXPECT_TRUE(pool.is_cached(ids[0]));
  EXPECT_EQ(pool.free(), 1u);
  EXPECT_EQ(pool.cached(), 1u);
  EXPECT_EQ(pool.available(), 2u);
  EXPECT_EQ(pool.used(), 1u);
  EXPECT_FALSE(pool.Allocate(2).ok());
  pool.AddReference(ids[0]);  // somebody finds it
  EXPECT_EQ(pool.used(), 2u);
  EXPECT_EQ(pool.cached(), 0u);
  pool.Release(ids[1]);
  pool.Release(ids[0]);
  EXPECT_EQ(pool.OldestCached(), ids[1]);
  pool.Touch(ids[1]);
  EXPECT_EQ(pool.OldestCached(), ids[0]);
  pool.Forget(ids[0]);
  EXPECT_EQ(pool.free(), 2u);
  EXPECT_EQ(pool.OldestCached(), ids[1]);
  EXPECT_TRUE(pool.CheckInvariants({}).ok()) << pool.CheckInvariants({});
}

TEST(BlockPool, UsedBlocksComeBackBeforeUntouchedOnesAndBothBeforeCachedOnes) {
  BlockPool pool(4);
  const std::vector<BlockId> ids = *pool.Allocate(2);
  pool.Keep(ids[0]);
  pool.Release(ids[0]);
  pool.Release(ids[1]);
  EXPECT_EQ(*pool.Allocate(1), (std::vector<BlockId>{ids[1]}));
  EXPECT_EQ(*pool.Allocate(2), (std::vector<BlockId>{2, 3}));
  EXPECT_TRUE(pool.is_cached(ids[0]));
  EXPECT_FALSE(pool.Allocate(1).ok());
}

TEST(BlockPool, BlocksThatOnlyOwnersHoldWhoGiveWayAreReclaimable) {
  constexpr auto kGivesWay = BlockPool::Owner::kGivesWay;
  BlockPool pool(4);
  const std::vector<BlockId> ids = *pool.Allocate(2, kGivesWay);
  const BlockId firm = pool.Allocate(1)->front();
  EXPECT_EQ(pool.reclaimable(), 2u);
  EXPECT_FALSE(pool.has_firm_owner(ids[0]));
  EXPECT_TRUE(pool.has_firm_owner(firm));
  pool.AddReference(ids[0]);
  pool.AddReference(firm, kGivesWay);
  EXPECT_EQ(pool.reclaimable(), 1u);
  pool.Release(firm);  // the other one stays
  EXPECT_EQ(pool.reclaimable(), 2u);
  pool.Keep(firm);
  pool.Release(firm, kGivesWay);
  EXPECT_EQ(pool.reclaimable(), 1u);
  EXPECT_EQ(pool.cached(), 1u);
  pool.AddReference(firm, kGivesWay);
  EXPECT_EQ(pool.reclaimable(), 2u);
  pool.ReleaseToQuarantine(ids[1], kGivesWay);
  EXPECT_EQ(pool.reclaimable(), 1u);
  pool.AddReference(ids[0], kGivesWay);
  pool.ReleaseToQuarantine(ids[0]);  // condemned: nobody gets it any more
  EXPECT_EQ(pool.reclaimable(), 1u);
  const std::vector<BlockId> table = {firm, ids[0]}, other = {ids[0]};
  const std::vector<const std::vector<BlockId>*> tables = {&table, &other};
  EXPECT_TRUE(pool.CheckInvariants(tables, tables).ok()) << pool.CheckInvariants(tables, tables);
  EXPECT_FALSE(pool.CheckInvariants(tables).ok());
}

TEST(BlockPoolDeathTest, KeptBlockCannotGoToQuarantine) {
  BlockPool pool(1);
  const BlockId id = pool.Allocate(1)->front();
  pool.Keep(id);
  EXPECT_DEATH(pool.ReleaseToQuarantine(id), "still in the prefix cache");
}

TEST(BlockPoolDeathTest, ReleasingTwiceDies) {
  BlockPool pool(1);
  const BlockId id = pool.Allocate(1)->front();
  pool.Release(id);
  EXPECT_DEATH(pool.Release(id), "has no owner");
}

// Random owners take, share and drop blocks; after each move the counts are recomputed from the
// owners' tables.
TEST(BlockPool, CountsAndReferencesHoldUnderRandomUse) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    auto below = [&](size_t n) { return static_cast<uint32_t>(random() % n); };
    BlockPool pool(1 + below(40));
    std::vector<std::vector<BlockId>> tables(6);
    const auto owner_of = [](size_t table) {
      return table % 2 == 0 ? BlockPool::Owner::kFirm : BlockPool::Owner::kGivesWay;
    };
    for (int move = 0; move < 200; ++move) {
      const size_t which = below(tables.size());
      std::vector<BlockId>& table = tables[which];
      const BlockPool::Owner owner = owner_of(which);
      switch (below(5)) {
        case 0:
        case 1: {
          const uint32_t count = below(8);
          const uint32_t free_before = pool.free();
          const absl::StatusOr<std::vector<BlockId>> ids = pool.Allocate(count, owner);
          ASSERT_EQ(ids.ok(), count <= free_before);
          if (ids.ok()) table.insert(table.end(), ids->begin(), ids->end());
          break;
        }
        case 2: {  // share somebody's first block
          const std::vector<BlockId>& other = tables[below(tables.size())];
          if (other.empty() || std::count(table.begin(), table.end(), other.front()) > 0) break;
          const BlockId id = other.front();
          pool.AddReference(id, owner);
          table.push_back(id);
          break;
        }
        case 3:
          for (BlockId id : table) pool.Release(id, owner);
          table.clear();
          break;
        case 4:
          if (below(8) > 0) break;
          for (BlockId id : table) pool.ReleaseToQuarantine(id, owner);
          table.clear();
          break;
      }
      std::vector<const std::vector<BlockId>*> owners, giving_way;
      for (size_t i = 0; i < tables.size(); ++i) {
        owners.push_back(&tables[i]);
        if (owner_of(i) == BlockPool::Owner::kGivesWay) giving_way.push_back(&tables[i]);
      }
      const absl::Status status = pool.CheckInvariants(owners, giving_way);
      ASSERT_TRUE(status.ok()) << status << " after move " << move;
      ASSERT_EQ(pool.free() + pool.used() + pool.quarantined(), pool.total());
    }
    for (size_t i = 0; i < tables.size(); ++i) {
      for (BlockId id : tables[i]) pool.Release(id, owner_of(i));
    }
    EXPECT_EQ(pool.used(), 0u);
  }
}

}  // namespace
}  // namespace bitshard
