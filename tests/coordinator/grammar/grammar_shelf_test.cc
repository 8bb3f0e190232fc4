#include "coordinator/grammar/grammar_shelf.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace bitshard {
namespace {

class SizedGrammar : public CompiledGrammar {
 public:
  explicit SizedGrammar(uint64_t bytes) : bytes_(bytes) {}
  std::unique_ptr<TokenMatcher> NewMatcher(bool) const override { return nullptr; }
  const std::string& FirstMask(bool) const override { return mask_; }
  uint64_t MemoryBytes() const override {
    ++asked;
    return bytes_;
  }
  bool TooLarge() const override { return bytes_ > kTooLarge; }
  static constexpr uint64_t kTooLarge = 1'000'000;
  static inline int asked = 0;  // of all
  void Grow(uint64_t bytes) { bytes_ = bytes; }

 private:
  uint64_t bytes_;
  const std::string mask_;
};

std::shared_ptr<SizedGrammar> Sized(uint64_t bytes) {
  return std::make_shared<SizedGrammar>(bytes);
}

TEST(GrammarShelf, WhatNobodyUsesGoesInTheOrderOfItsLastUse) {
  GrammarShelf shelf({.kept_bytes = 30, .kept_grammars = 10, .bytes = 1000});
  for (const char* key : {"a", "b", "c"}) EXPECT_TRUE(shelf.Put(key, Sized(10)));
  EXPECT_NE(shelf.Find("a"), nullptr);
  EXPECT_TRUE(shelf.Put("d", Sized(10)));
  EXPECT_EQ(shelf.Find("b"), nullptr);
  for (const char* key : {"a", "c", "d"}) EXPECT_NE(shelf.Find(key), nullptr) << key;
}

TEST(GrammarShelf, WhatIsUsedStaysAndCounts) {
  GrammarShelf shelf({.kept_bytes = 30, .kept_grammars = 2, .bytes = 50});
  const auto used = Sized(20), more = Sized(20), third = Sized(20);
  EXPECT_TRUE(shelf.Put("used", used));
  EXPECT_TRUE(shelf.Put("more", more));
  EXPECT_FALSE(shelf.Full());
  EXPECT_FALSE(shelf.Put("third", third)) << "60 of 50 bytes are in use";
  EXPECT_EQ(shelf.Find("third"), nullptr);
  EXPECT_EQ(shelf.Find("used"), used);
  EXPECT_EQ(shelf.Find("more"), more);
  used->Grow(40);
  EXPECT_TRUE(shelf.Full()) << "they grow while they are used";
  EXPECT_EQ(shelf.size(), 2u);
}

TEST(GrammarShelf, OfManyOnlyAFewAreMeasuredAtACallAndAllInTurns) {
  GrammarShelf shelf({.kept_bytes = 10'000, .kept_grammars = 1000, .bytes = 10'000});
  std::vector<std::shared_ptr<SizedGrammar>> used;
  for (int i = 0; i < 300; ++i) {
    used.push_back(Sized(10));
    EXPECT_TRUE(shelf.Put(std::to_string(i), used.back()));
  }
  SizedGrammar::asked = 0;
  EXPECT_FALSE(shelf.Full());
  EXPECT_TRUE(shelf.Put("one more", Sized(10)));
  EXPECT_LT(SizedGrammar::asked, 30);
  for (const auto& grammar : used) grammar->Grow(100);
  for (int i = 0; i < 100; ++i) shelf.Full();
  EXPECT_TRUE(shelf.Full());
  EXPECT_EQ(shelf.size(), 300u) << "what nobody uses has gone";
  for (const auto& grammar : used) grammar->Grow(1);
  for (int i = 0; i < 100; ++i) shelf.Full();
  EXPECT_FALSE(shelf.Full());
  used.clear();
  EXPECT_TRUE(shelf.Put("large", Sized(9'800)));
  EXPECT_EQ(shelf.size(), 201u) << "9,800 and 200 times 1";
}

TEST(GrammarShelf, WhatHasGrownTooLargeIsNotGivenOutAgain) {
  constexpr uint64_t kGrown = SizedGrammar::kTooLarge + 1;
  GrammarShelf shelf({.kept_bytes = 2 * kGrown, .kept_grammars = 10, .bytes = 2 * kGrown});
  const auto popular = Sized(10), other = Sized(kGrown - 1);
  EXPECT_TRUE(shelf.Put("popular", popular));
  EXPECT_TRUE(shelf.Put("other", other));
  EXPECT_EQ(shelf.Find("popular"), popular);
  popular->Grow(kGrown);
  EXPECT_EQ(shelf.Find("popular"), nullptr) << "whoever got it would end at the first mask";
  EXPECT_EQ(shelf.size(), 1u);
  EXPECT_EQ(popular.use_count(), 1) << "who follows it keeps it, and nobody else";
  const auto afresh = Sized(10);
  EXPECT_TRUE(shelf.Put("popular", afresh));
  EXPECT_EQ(shelf.Find("popular"), afresh);
  EXPECT_TRUE(shelf.Put("more", Sized(kGrown - 1))) << "what has gone does not count";
  EXPECT_FALSE(shelf.Full());
  EXPECT_EQ(shelf.Find("other"), other);
}

TEST(GrammarShelf, TheMostGrammarsIsABoundOfTheirNumber) {
  GrammarShelf shelf({.kept_bytes = 1000, .kept_grammars = 2, .bytes = 1000});
  for (const char* key : {"a", "b", "c", "d"}) EXPECT_TRUE(shelf.Put(key, Sized(1)));
  EXPECT_EQ(shelf.size(), 2u);
  EXPECT_NE(shelf.Find("d"), nullptr);
}

TEST(RefusalBook, ForgetsTheOldest) {
  RefusalBook book(2);
  book.Add("a", absl::InvalidArgumentError("a"));
  book.Add("b", absl::InvalidArgumentError("b"));
  EXPECT_EQ(book.Find("a").message(), "a");
  book.Add("c", absl::InvalidArgumentError("c"));
  EXPECT_TRUE(book.Find("b").ok());
  EXPECT_EQ(book.Find("a").message(), "a");
  EXPECT_EQ(book.Find("c").message(), "c");
}

}  // namespace
}  // namespace bitshard
