#include "coordinator/schedule/prefix_cache.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "coordinator/schedule/block_pool.h"

namespace bitshard {
namespace {

constexpr uint32_t kBlockTokens = 2;
using Tokens = std::vector<uint32_t>;
using Blocks = std::vector<BlockId>;

// A pool with a cache over it, and an owner who computes sequences.
class PrefixCacheTest : public testing::Test {
 protected:
  // Blocks for all of `tokens`, known to the cache.
  Blocks Compute(const Tokens& tokens, const std::string& seed = "") {
    const Blocks blocks = *cache_.Allocate(static_cast<uint32_t>(tokens.size() / kBlockTokens));
    std::optional<PrefixCache::Place> place;
    for (size_t i = 0; i < blocks.size(); ++i) {
      place = cache_.Insert(seed, place,
                            absl::MakeConstSpan(tokens).subspan(i * kBlockTokens, kBlockTokens),
                            blocks[i]);
      EXPECT_TRUE(place.has_value());
    }
    place_ = place;
    return blocks;
  }
  void Release(const Blocks& blocks) {
    for (auto id = blocks.rbegin(); id != blocks.rend(); ++id) pool_.Release(*id);
  }
  Blocks Find(const Tokens& tokens, uint32_t most = 100, const std::string& seed = "") {
    return cache_.Find(seed, tokens, most).blocks;
  }
  void Check() { ASSERT_TRUE(cache_.CheckInvariants().ok()) << cache_.CheckInvariants(); }

  BlockPool pool_{6};
  PrefixCache cache_{&pool_, kBlockTokens};
  std::optional<PrefixCache::Place> place_;  // of the last Compute
};

TEST_F(PrefixCacheTest, FindsTheLongestChainOfFullBlocks) {
  const Blocks blocks = Compute({1, 2, 3, 4, 5, 6});
  EXPECT_EQ(Find({1, 2, 3, 4, 5, 6}), blocks);
  EXPECT_EQ(Find({1, 2, 3, 4, 9, 6}), (Blocks{blocks[0], blocks[1]}));
  EXPECT_EQ(Find({1, 2, 3}), (Blocks{blocks[0]}));
  EXPECT_EQ(Find({1, 2, 3, 4, 5, 6, 7, 8}), blocks);
  EXPECT_EQ(Find({3, 4, 5, 6}), (Blocks{})) << "a block is known by all that stands before it";
  EXPECT_EQ(Find({1, 2, 3, 4, 5, 6}, /*most=*/2), (Blocks{blocks[0], blocks[1]}));
  EXPECT_EQ(Find({1}), (Blocks{}));
  Check();
}

TEST_F(PrefixCacheTest, AnotherSeedFindsNothing) {
  const Blocks mine = Compute({1, 2, 3, 4}, "mine");
  EXPECT_EQ(Find({1, 2, 3, 4}, 100, ""), (Blocks{}));
  EXPECT_EQ(Find({1, 2, 3, 4}, 100, "yours"), (Blocks{}));
  const Blocks yours = Compute({1, 2, 3, 4}, "yours");
  EXPECT_EQ(Find({1, 2, 3, 4}, 100, "yours"), yours);
  EXPECT_EQ(Find({1, 2, 3, 4}, 100, "mine"), mine);
  Check();
}

TEST_F(PrefixCacheTest, ReleasedBlocksAreFoundUntilSomebodyNeedsThemTailFirst) {
  const Blocks blocks = Compute({1, 2, 3, 4, 5, 6});
  Release(blocks);
  EXPECT_EQ(pool_.free(), 3u);
  EXPECT_EQ(pool_.cached(), 3u);
  EXPECT_EQ(pool_.available(), 6u);
  EXPECT_EQ(Find({1, 2, 3, 4, 5, 6}), blocks);
  ASSERT_TRUE(cache_.Allocate(4).ok());
  EXPECT_EQ(Find({1, 2, 3, 4, 5, 6}), (Blocks{blocks[0], blocks[1]}));
  EXPECT_EQ(cache_.evicted(), 1u);
  Check();
  EXPECT_FALSE(cache_.Allocate(3).ok());
  EXPECT_EQ(pool_.cached(), 2u) << "a refused allocation evicts nothing";
  ASSERT_TRUE(cache_.Allocate(2).ok());
  EXPECT_EQ(Find({1, 2, 3, 4, 5, 6}), (Blocks{}));
  EXPECT_EQ(cache_.size(), 0u);
  Check();
}

TEST_F(PrefixCacheTest, WhatWasUsedLastIsEvictedLast) {
  const Blocks first = Compute({1, 2, 3, 4}), second = Compute({5, 6, 7, 8});
  Release(first);
  Release(second);
  for (BlockId id : Find({1, 2, 3, 4})) pool_.AddReference(id);
  Release(first);
  ASSERT_TRUE(cache_.Allocate(4).ok());
  EXPECT_EQ(Find({1, 2, 3, 4}), first);
  EXPECT_EQ(Find({5, 6, 7, 8}), (Blocks{}));
  Check();
}

TEST_F(PrefixCacheTest, SecondBlockWithTheSameTokensIsNotKept) {
  const Blocks first = Compute({1, 2, 3, 4});
  const Blocks twin = Compute({1, 2, 3, 4, 5, 6});  // hangs on the first one's blocks
  EXPECT_EQ(Find({1, 2, 3, 4, 5, 6}), (Blocks{first[0], first[1], twin[2]}));
  Release(twin);
  EXPECT_EQ(pool_.cached(), 1u);
  EXPECT_EQ(pool_.free(), 3u);
  Check();
}

TEST_F(PrefixCacheTest, WhatIsBelowABlockGoesWithIt) {
  const Blocks first = Compute({1, 2, 3, 4});
  const Blocks twin = Compute({1, 2, 3, 4, 5, 6});
  const std::optional<PrefixCache::Place> place = place_;
  Release(first);
  EXPECT_EQ(pool_.free(), 1u);
  ASSERT_TRUE(cache_.Allocate(2).ok());  // evicts first[1], on which twin[2] hangs
  EXPECT_EQ(Find({1, 2, 3, 4, 5, 6}), (Blocks{first[0]}));
  EXPECT_FALSE(cache_.Has(*place));
  EXPECT_FALSE(cache_.Insert("", place, Tokens{7, 8}, twin[1]).has_value());
  Check();
  Release(twin);
  EXPECT_EQ(pool_.cached(), 1u) << "twin[2] cannot be found: nothing to keep";
  Check();
}

TEST_F(PrefixCacheTest, ChainThatWasHungOnIsEvictedAfterWhatHangsOnIt) {
  const Blocks first = Compute({1, 2, 3, 4});
  const Blocks twin = Compute({1, 2, 3, 4, 5, 6});
  Release(first);
  Release(twin);
  cache_.Touch(*place_);
  Check();
  ASSERT_TRUE(cache_.Allocate(4).ok());
  EXPECT_EQ(Find({1, 2, 3, 4, 5, 6}), first);
}

TEST_F(PrefixCacheTest, DroppedBlocksAreFreeOrWithTheirOwner) {
  const Blocks blocks = Compute({1, 2, 3, 4, 5, 6});
  pool_.Release(blocks[2]);
  cache_.Drop(blocks[1]);
  EXPECT_EQ(Find({1, 2, 3, 4, 5, 6}), (Blocks{blocks[0]}));
  EXPECT_EQ(pool_.free(), 4u);
  EXPECT_EQ(pool_.refcount(blocks[1]), 1u);
  cache_.Drop(blocks[1]);  // has no node any more
  pool_.ReleaseToQuarantine(blocks[1]);
  EXPECT_EQ(pool_.quarantined(), 1u);
  Check();
}

TEST(PrefixCache, LongChainGoesWithoutDeepRecursion) {
  constexpr uint32_t kBlocks = 200'000;
  BlockPool pool(kBlocks);
  PrefixCache cache(&pool, 1);
  const Blocks blocks = *cache.Allocate(kBlocks);
  std::optional<PrefixCache::Place> place;
  for (uint32_t i = 0; i < kBlocks; ++i) place = cache.Insert("", place, Tokens{i % 7}, blocks[i]);
  cache.Drop(blocks[0]);
  EXPECT_EQ(cache.size(), 0u);
}

// Random owners over few different tokens, so that chains meet. A book of what each block holds
// says what may be found.
TEST(PrefixCache, FindsOnlyWhatBlocksHoldUnderRandomUse) {
  uint64_t hits = 0, evicted = 0;
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    auto below = [&](size_t n) { return static_cast<uint32_t>(random() % n); };
    BlockPool pool(2 + below(30));
    PrefixCache cache(&pool, kBlockTokens);
    struct Owner {
      std::string seed;
      Tokens tokens;
      Blocks blocks;
      size_t known = 0;
      std::optional<PrefixCache::Place> place;
    };
    std::vector<Owner> owners;
    std::map<BlockId, std::pair<std::string, Tokens>> holds;  // all tokens up to the block's end
    const auto prefix = [](const Owner& o, size_t blocks) {
      return Tokens(o.tokens.begin(),
                    o.tokens.begin() + static_cast<std::ptrdiff_t>(blocks * kBlockTokens));
    };
    for (int move = 0; move < 150; ++move) {
      const uint32_t what = below(10);
      if (what < 5) {  // one more sequence: what is found of it, and blocks for the rest
        Owner o;
        o.seed = std::string(below(2), 's');
        const size_t n = 1 + below(6);
        for (size_t i = 0; i < n * kBlockTokens; ++i) o.tokens.push_back(below(2));
        const PrefixCache::Hit hit = cache.Find(o.seed, o.tokens, below(7));
        hits += hit.blocks.size();
        for (size_t i = 0; i < hit.blocks.size(); ++i)
          ASSERT_EQ(holds[hit.blocks[i]], std::pair(o.seed, prefix(o, i + 1)));
        for (BlockId id : hit.blocks) pool.AddReference(id);
        o.blocks = hit.blocks;
        o.known = hit.blocks.size();
        o.place = hit.place;
        const auto rest = cache.Allocate(static_cast<uint32_t>(n - hit.blocks.size()));
        if (rest.ok()) {
          for (BlockId id : *rest) {
            o.blocks.push_back(id);
            holds[id] = {o.seed, prefix(o, o.blocks.size())};
          }
          owners.push_back(std::move(o));
        } else {
          for (auto id = o.blocks.rbegin(); id != o.blocks.rend(); ++id) pool.Release(*id);
          if (o.place.has_value()) cache.Touch(*o.place);
        }
      } else if (!owners.empty()) {
        Owner& o = owners[below(owners.size())];
        if (o.place.has_value() && !cache.Has(*o.place)) {
          o.place.reset();
          o.known = 0;
        }
        if (what < 8) {  // more of it is known
          for (size_t i = o.known; i < o.blocks.size() && below(4) > 0; ++i) {
            const Tokens all = prefix(o, i + 1);
            o.place = cache.Insert(o.seed, o.place,
                                   absl::MakeConstSpan(all).subspan(i * kBlockTokens), o.blocks[i]);
            ASSERT_TRUE(o.place.has_value());
            o.known = i + 1;
          }
        } else {  // over
          for (auto id = o.blocks.rbegin(); id != o.blocks.rend(); ++id) pool.Release(*id);
          if (o.place.has_value()) cache.Touch(*o.place);
          std::swap(o, owners.back());
          owners.pop_back();
        }
      }
      const absl::Status status = cache.CheckInvariants();
      ASSERT_TRUE(status.ok()) << status << " after move " << move;
      std::vector<const Blocks*> tables;
      for (const Owner& o : owners) tables.push_back(&o.blocks);
      const absl::Status counts = pool.CheckInvariants(tables);
      ASSERT_TRUE(counts.ok()) << counts << " after move " << move;
    }
    evicted += cache.evicted();
  }
  EXPECT_GT(hits, 3000u);
  EXPECT_GT(evicted, 3000u);
}

}  // namespace
}  // namespace bitshard
