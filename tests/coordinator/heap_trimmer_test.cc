#include "coordinator/heap_trimmer.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace bitshard {
namespace {

constexpr uint64_t kMiB = 1 << 20;

HeapTrimmer::Options ByHand() {
  HeapTrimmer::Options options;
  options.interval = absl::InfiniteDuration();
  options.slack_bytes = 8 * kMiB;
  return options;
}

TEST(HeapTrimmer, GivesBackWhatLiesBetweenPiecesThatLive) {
  HeapTrimmer trimmer(ByHand());
  std::vector<std::unique_ptr<std::string>> pieces;  // each below what the allocator maps by itself
  for (int i = 0; i < 8192; ++i) pieces.push_back(std::make_unique<std::string>(16 << 10, 'x'));
  EXPECT_FALSE(trimmer.Look()) << "nothing is free";
  const uint64_t full = ResidentBytes();
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (i % 64 != 63) pieces[i].reset();
  }
  EXPECT_GT(ResidentBytes() + 16 * kMiB, full) << "the allocator gives it back by itself";
  EXPECT_TRUE(trimmer.Look());
  EXPECT_LT(ResidentBytes(), full - 64 * kMiB);
  for (const auto& piece : pieces) {
    if (piece == nullptr) continue;
    EXPECT_EQ(piece->find_first_not_of('x'), std::string::npos);
  }
  EXPECT_FALSE(trimmer.Look()) << "nothing has changed";
}

TEST(HeapTrimmer, TrimsAgainWhenMoreIsFreedThoughTheProcessHasNotGrownSince) {
  HeapTrimmer trimmer(ByHand());
  const uint64_t before = ResidentBytes();
  std::vector<std::unique_ptr<std::string>> pieces;
  for (int i = 0; i < 8192; ++i) pieces.push_back(std::make_unique<std::string>(16 << 10, 'x'));
  const auto free_some = [&pieces](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      if (i % 64 != 63) pieces[i].reset();
    }
  };
  free_some(0, 2048);
  EXPECT_TRUE(trimmer.Look());  // most of it still lives
  EXPECT_GT(ResidentBytes(), before + 64 * kMiB);
  free_some(2048, 8192);
  EXPECT_TRUE(trimmer.Look());
  EXPECT_LT(ResidentBytes(), before + 32 * kMiB);
  EXPECT_FALSE(trimmer.Look()) << "nothing has changed";
}

TEST(HeapTrimmer, TrimsWhatWasUsedAndFreedAgainSince) {
  HeapTrimmer trimmer(ByHand());
  const uint64_t before = ResidentBytes();
  for (int round = 0; round < 4; ++round) {
    std::vector<std::unique_ptr<std::string>> pieces;
    for (int i = 0; i < 8192; ++i) pieces.push_back(std::make_unique<std::string>(16 << 10, 'x'));
    const auto last = std::make_unique<std::string>(16 << 10, 'x');  // keeps the top of the heap
    pieces.clear();
    EXPECT_TRUE(trimmer.Look()) << round;
    EXPECT_LT(ResidentBytes(), before + 32 * kMiB) << round;
  }
}

TEST(HeapTrimmer, EndsWhileItWaits) {
  HeapTrimmer::Options often;
  often.interval = absl::Milliseconds(1);
  for (int i = 0; i < 20; ++i) HeapTrimmer trimmer(often);
}

}  // namespace
}  // namespace bitshard
