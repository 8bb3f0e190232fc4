#include "coordinator/grammar/grammar_memory.h"

#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace bitshard {
namespace {

// A grammar whose size a test sets.
struct Sized {
  Sized(std::shared_ptr<GrammarMemory> memory, uint64_t begin)
      : bytes(begin), size(std::move(memory), [this] {
          ++measured;
          return bytes;
        }) {}
  // Until it has been measured.
  void GrowTo(uint64_t now) {
    bytes = now;
    for (int i = 0; i < 100 && size.bytes() != now; ++i) size.Filled();
  }

  uint64_t bytes;
  int measured = 0;
  GrammarSize size;
};

std::shared_ptr<GrammarMemory> Memory(uint64_t one, uint64_t all) {
  return std::make_shared<GrammarMemory>(GrammarMemory::Limits{.one = one, .all = all});
}

TEST(GrammarMemory, OneThatGrowsBeyondItsBoundIsTooLargeWhateverElseThereIs) {
  Sized grammar(Memory(/*one=*/100, /*all=*/10'000), 50);
  grammar.size.Join();
  grammar.GrowTo(100);
  EXPECT_FALSE(grammar.size.TooLarge());
  grammar.GrowTo(101);
  EXPECT_EQ(grammar.size.bytes(), 101u);
  EXPECT_TRUE(grammar.size.TooLarge());
}

TEST(GrammarMemory, IsMeasuredOnceInManyMasks) {
  Sized grammar(Memory(100, 100), 50);
  grammar.size.Join();
  for (int i = 0; i < 1000; ++i) grammar.size.Filled();
  EXPECT_LT(grammar.measured, 100);
  EXPECT_GT(grammar.measured, 10);
}

TEST(GrammarMemory, WhenAllTakeTooMuchThoseBelowTheAverageGoOn) {
  const auto memory = Memory(/*one=*/1000, /*all=*/1000);
  Sized a(memory, 600), b(memory, 300), c(memory, 50), kept(memory, 900);
  for (Sized* grammar : {&a, &b, &c}) grammar->size.Join();
  for (const Sized* grammar : {&a, &b, &c}) EXPECT_FALSE(grammar->size.TooLarge());
  c.GrowTo(110);  // 1,010 together, 337 on average; what nobody follows does not count
  EXPECT_TRUE(a.size.TooLarge());
  EXPECT_FALSE(b.size.TooLarge());
  EXPECT_FALSE(c.size.TooLarge());
  a.size.Leave();
  for (const Sized* grammar : {&a, &b, &c}) EXPECT_FALSE(grammar->size.TooLarge());
  kept.size.Join();
  EXPECT_TRUE(kept.size.TooLarge());
}

// However they come and go: somebody is too large exactly when all together are, and when none is
// followed nothing is left.
TEST(GrammarMemory, RandomGrammarsAddUp) {
  std::mt19937 random(5);
  const auto memory = Memory(/*one=*/1000, /*all=*/2000);
  std::vector<std::unique_ptr<Sized>> grammars;
  for (int i = 0; i < 12; ++i) grammars.push_back(std::make_unique<Sized>(memory, random() % 300));
  std::vector<int> followers(grammars.size(), 0);
  int too_much = 0;
  for (int turn = 0; turn < 20'000; ++turn) {
    const size_t at = random() % grammars.size();
    const uint32_t what = random() % 3;
    if (what == 0) {
      grammars[at]->size.Join();
      ++followers[at];
    } else if (what == 1 && followers[at] > 0) {
      grammars[at]->size.Leave();
      --followers[at];
    } else {
      grammars[at]->GrowTo(random() % 500);
    }
    uint64_t all = 0;
    bool somebody = false;
    for (size_t i = 0; i < grammars.size(); ++i) {
      if (followers[i] == 0) continue;
      all += grammars[i]->bytes;
      somebody = somebody || grammars[i]->size.TooLarge();
    }
    ASSERT_EQ(somebody, all > 2000) << "turn " << turn << ", " << all << " bytes";
    too_much += somebody ? 1 : 0;
  }
  EXPECT_GT(too_much, 100);
  for (size_t i = 0; i < grammars.size(); ++i) {
    for (; followers[i] > 0; --followers[i]) grammars[i]->size.Leave();
  }
  EXPECT_FALSE(memory->TooLarge(1000));
}

}  // namespace
}  // namespace bitshard
