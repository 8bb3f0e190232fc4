#include "tests/gpu/ptx_vectors.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/emu/findings.h"
#include "kernels/cuda/emu/options.h"
#include "kernels/tensor/device.h"
#include "tests/gpu/ptx_run.h"

namespace bitshard {
namespace {

std::vector<uint32_t> Vectors() {
  absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice("cuda", 0);
  EXPECT_TRUE(device.ok()) << device.status();
  const absl::StatusOr<std::vector<uint32_t>> words = RunPtxVectors(**device);
  EXPECT_TRUE(words.ok()) << words.status();
  return *words;
}

TEST(PtxVectors, TheKernelIsCleanAndTheSameInEveryOrder) {
  const std::vector<uint32_t> forward = Vectors();
  emu::SetOptions({.order = emu::Order::kShuffled, .seed = 7, .copies_land_early = true});
  const std::vector<uint32_t> shuffled = Vectors();
  emu::SetOptions({});
  EXPECT_EQ(forward, shuffled);
  EXPECT_EQ(emu::Errors(), 0u) << emu::FindingsText();
}

TEST(PtxVectors, ComparisonNamesTheFieldThatDiffers) {
  const std::vector<uint32_t> words = Vectors();
  for (const PtxDifference& d : ComparePtxVectors(words, words)) {
    EXPECT_EQ(d.unequal, 0) << d.field;
    EXPECT_EQ(d.beyond, 0) << d.field;
  }
  int64_t begin = 0;
  for (size_t f = 0; f < std::size(kPtxFields); ++f) {
    std::vector<uint32_t> changed = words;
    // The top bit of the mantissa: half of the number's own size.
    const int64_t at = int64_t{77} * PtxOutputWords() + begin + kPtxFields[f].words - 1;
    changed[at] ^= uint32_t{1} << 22;
    const std::vector<PtxDifference> differences = ComparePtxVectors(words, changed);
    for (size_t other = 0; other < differences.size(); ++other) {
      EXPECT_EQ(differences[other].beyond, other == f ? 1 : 0) << differences[other].field;
    }
    EXPECT_NE(differences[f].first.find("lane 13 of warp 2"), std::string::npos)
        << differences[f].first;
    begin += kPtxFields[f].words;
  }
}

TEST(PtxVectors, LastBitsOfProductsAreWithinTheTolerance) {
  const std::vector<uint32_t> words = Vectors();
  std::vector<uint32_t> changed = words;
  changed[0] ^= 1;  // MmaF16
  const PtxDifference d = ComparePtxVectors(words, changed)[0];
  EXPECT_EQ(d.unequal, 1);
  EXPECT_EQ(d.beyond, 0);
  EXPECT_GT(d.largest, 0);
}

}  // namespace
}  // namespace bitshard
