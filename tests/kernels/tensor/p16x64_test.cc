// The packed layout against vectors from another program (tests/golden/p16x64s.json), and single
// codes back from it.
#include "kernels/tensor/p16x64.h"

#include <fstream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include <gtest/gtest.h>

#include "tests/support/test_paths.h"

namespace bitshard {
namespace {

// The rule of the golden file's codes.
uint32_t RuleCode(int bits, int row, int col) {
  return (37 * row + 11 * col + 5 * row * col) & ((1u << bits) - 1);
}

TEST(P16x64, EveryWidthPacksAsTheGoldenTile) {
  std::ifstream file(GoldenFile("p16x64s.json"));
  ASSERT_TRUE(file) << "golden file missing";
  const nlohmann::json golden = nlohmann::json::parse(file);
  for (int bits = 2; bits <= 8; ++bits) {
    std::vector<uint32_t> tile(TileBytes(bits) / 4, 0);
    for (int row = 0; row < 16; ++row) {
      for (int col = 0; col < 64; ++col)
        PutCode(tile.data(), bits, row, col, RuleCode(bits, row, col));
    }
    const auto& lanes = golden["widths"][std::to_string(bits)];
    ASSERT_EQ(lanes.size(), 32u);
    for (int lane = 0; lane < 32; ++lane) {
      for (int word = 0; word < bits; ++word) {
        const auto expected =
            static_cast<uint32_t>(std::stoul(lanes[lane][word].get<std::string>(), nullptr, 16));
        EXPECT_EQ(tile[word * kTileLanes + lane], expected)
            << "bits=" << bits << " lane=" << lane << " word=" << word;
      }
    }
  }
}

TEST(P16x64, CodesComeBack) {
  for (int bits = 2; bits <= 8; ++bits) {
    std::vector<uint32_t> tile(TileBytes(bits) / 4, 0);
    for (int row = 0; row < 16; ++row) {
      for (int col = 0; col < 64; ++col)
        PutCode(tile.data(), bits, row, col, RuleCode(bits, row, col));
    }
    for (int row = 0; row < 16; ++row) {
      for (int col = 0; col < 64; ++col) {
        EXPECT_EQ(GetCode(tile.data(), bits, row, col), RuleCode(bits, row, col))
            << bits << " " << row << " " << col;
      }
    }
  }
}

TEST(P16x64, WholeRowsAndRunsAreTheSameAsSingleCodes) {
  constexpr int kTiles = 3;
  for (int bits = 2; bits <= 8; ++bits) {
    const int64_t words = TileBytes(bits) / 4;
    std::vector<uint32_t> single(kTiles * words, 0), rows = single;
    for (int row = 15; row >= 0; --row) {
      std::vector<uint8_t> codes(64 * kTiles);
      for (int col = 0; col < 64 * kTiles; ++col) {
        codes[col] = static_cast<uint8_t>(RuleCode(bits, row, col + col / 64));
        PutCode(single.data() + col / 64 * words, bits, row, col % 64, codes[col]);
      }
      PutRow(rows.data(), bits, row, codes.data(), kTiles);
      for (int run = 0; run < 4 * kTiles; ++run) {
        uint8_t back[16];
        GetRun(rows.data() + run / 4 * words, bits, row, run % 4, back);
        for (int c = 0; c < 16; ++c)
          EXPECT_EQ(back[c], codes[16 * run + c]) << bits << " " << row << " " << run << " " << c;
      }
    }
    EXPECT_EQ(rows, single) << bits;
  }
}

TEST(P16x64, EveryBitOfATileIsUsed) {
  for (int bits = 2; bits <= 8; ++bits) {
    std::vector<uint32_t> tile(TileBytes(bits) / 4, 0);
    for (int row = 0; row < 16; ++row) {
      for (int col = 0; col < 64; ++col) PutCode(tile.data(), bits, row, col, (1u << bits) - 1);
    }
    EXPECT_EQ(tile, std::vector<uint32_t>(tile.size(), 0xffffffffu)) << bits;
  }
}

}  // namespace
}  // namespace bitshard
