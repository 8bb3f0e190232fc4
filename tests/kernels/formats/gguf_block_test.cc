// GGUF's quantized types against the values of the gguf package (tests/golden/gguf_blocks.json) and
// worked blocks.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "kernels/formats/format.h"
#include "tests/support/test_paths.h"

namespace bitshard {
namespace {

TEST(GgufBlock, RandomBlocksDecodeToTheBitsOfTheGgufPackage) {
  std::ifstream file(GoldenFile("gguf_blocks.json"));
  ASSERT_TRUE(file) << "golden file missing";
  const nlohmann::json golden = nlohmann::json::parse(file);
  size_t types = 0;
  for (const auto& [name, blocks] : golden["types"].items()) {
    const BlockFormat* const format = FindBlockFormat(name);
    ASSERT_NE(format, nullptr) << name;
    std::string stored, expected;
    for (const nlohmann::json& block : blocks) {
      stored += absl::HexStringToBytes(block["block"].get<std::string>());
      expected += absl::HexStringToBytes(block["f32"].get<std::string>());
    }
    const uint64_t count = blocks.size(), size = format->block_elements();
    ASSERT_EQ(stored.size(), count * format->block_bytes()) << name;
    ASSERT_EQ(expected.size(), count * size * sizeof(float)) << name;
    std::vector<float> values(count * size), reference(count * size);
    std::memcpy(reference.data(), expected.data(), expected.size());
    format->Decode({reinterpret_cast<const uint8_t*>(stored.data()), stored.size()}, count, size,
                   values.data());
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(std::memcmp(&values[i], &reference[i], sizeof(float)), 0)
          << name << " block " << i / size << " element " << i % size << ": " << values[i]
          << ", the package has " << reference[i];
    }
    ++types;
  }
  EXPECT_EQ(types, 10u);
}

std::vector<float> DecodeOne(const std::string& name, const std::string& bytes) {
  const BlockFormat* const format = FindBlockFormat(name);
  EXPECT_NE(format, nullptr) << name;
  EXPECT_EQ(bytes.size(), format->block_bytes()) << name;
  std::vector<float> out(format->block_elements());
  format->Decode({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, 1, out.size(),
                 out.data());
  return out;
}

// What the types make of (i - 16) / 4.
TEST(GgufBlock, ARampOf32DecodesToItsWorkedValues) {
  const auto q4_0 =
      DecodeOne("q4_0", absl::HexStringToBytes("0038809191a2a2b3b3c4c4d5d5e6e6f7f7f8"));
  const auto q5_0 =
      DecodeOne("q5_0", absl::HexStringToBytes("00340000ffff00112233445566778899aabbccddeeff"));
  const auto q5_1 =
      DecodeOne("q5_1", absl::HexStringToBytes("003400c40000ffff00112233445566778899aabbccddeeff"));
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(q4_0[i], 0.5f * static_cast<float>(std::min((i + 1) / 2, 15) - 8)) << i;
    EXPECT_EQ(q5_0[i], static_cast<float>(i - 16) / 4) << i;
    EXPECT_EQ(q5_1[i], static_cast<float>(i - 16) / 4) << i;
  }
}

// Byte k of a block is (37 k + 11) mod 256, but d = 1 and dmin = 0.5.
TEST(GgufBlock, KBlocksDecodeToTheirWorkedValues) {
  constexpr int kElements[] = {0, 1, 16, 31, 32, 64, 100, 128, 200, 255};
  struct Worked {
    std::string name;
    int d_at, dmin_at;  // the same: no dmin
    std::vector<float> values;
  };
  const std::vector<Worked> all = {
      {"q2_k", 80, 82, {33, 0, -1.5, -1.5, 7.5, 10.5, 20, 7.5, 8, 4.5}},
      {"q3_k", 108, 108, {81, -108, -96, 64, -22, 34, 0, 2, 25, 42}},
      {"q4_k", 0, 2, {315.5, -25.5, 315.5, 160.5, 8, 420.5, 95, 423, 138.5, 48.5}},
      {"q5_k", 0, 2, {811.5, -25.5, 811.5, 160.5, 112, 420.5, 235, 1047, 138.5, 108.5}},
      {"q6_k", 208, 208, {-1431, 1696, -432, -96, 231, -3040, 2523, -351, 1089, -60}},
  };
  for (const Worked& worked : all) {
    std::string bytes(FindBlockFormat(worked.name)->block_bytes(), '\0');
    for (size_t k = 0; k < bytes.size(); ++k) bytes[k] = static_cast<char>(37 * k + 11);
    if (worked.dmin_at != worked.d_at) bytes.replace(worked.dmin_at, 2, std::string("\x00\x38", 2));
    bytes.replace(worked.d_at, 2, std::string("\x00\x3c", 2));
    const std::vector<float> values = DecodeOne(worked.name, bytes);
    for (size_t i = 0; i < std::size(kElements); ++i)
      EXPECT_EQ(values[kElements[i]], worked.values[i]) << worked.name << " " << kElements[i];
  }
}

}  // namespace
}  // namespace bitshard
