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
  uint64_t MemoryBytes() const override { return bytes_; }
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
