#include "tests/gpu/ptx_vectors.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/emu/findings.h"
#include "kernels/cuda/emu/options.h"
#include "kernels/tensor/device.h"
#include "tests/gpu/ptx_run.h"
#include "tests/support/fake_cudart.h"

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

TEST(PtxVectors, UlpsCountFloatsBetween) {
  EXPECT_EQ(UlpsApart(0x3f800000, 0x3f800000), 0u);
  EXPECT_EQ(UlpsApart(0x3f800000, 0x3f800003), 3u);
  EXPECT_EQ(UlpsApart(0x00000001, 0x80000002), 3u);  // over both zeros
  EXPECT_EQ(UlpsApart(0x7fc00000, 0xffc00001), 0u);
  EXPECT_EQ(UlpsApart(0x7fc00000, 0x3f800000), UINT32_MAX);
}

TEST(PtxVectors, FilesThatDoNotFitAreRefused) {
  const std::string path = testing::TempDir() + "/ptx.bin";
  std::vector<uint32_t> words(PtxWords(), 7);
  ASSERT_TRUE(WritePtxFile(path, words).ok());
  EXPECT_EQ(*ReadPtxFile(path), words);
  words.push_back(1);
  ASSERT_TRUE(WritePtxFile(path, words).ok());
  EXPECT_EQ(ReadPtxFile(path).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ReadPtxFile(path + ".none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(WritePtxFile("/", words).code(), absl::StatusCode::kUnavailable);
}

TEST(PtxVectors, WarpgroupsAreOfSm90Alone) {
  const std::vector<uint32_t> hopper = Vectors();
  EXPECT_EQ(hopper.size(), PtxWords() + WgmmaPtxWords());
  std::vector<uint32_t> other;
  {
    const fake::ScopedCudaMachine machine({.compute_capability = 80});
    other = Vectors();
  }
  EXPECT_EQ(other.size(), PtxWords());
  EXPECT_EQ(ComparePtxVectors(other, hopper).size(), std::size(kPtxFields));
  std::vector<uint32_t> changed = hopper;
  changed.back() ^= uint32_t{1} << 22;
  const PtxDifference d = ComparePtxVectors(changed, hopper).back();
  EXPECT_EQ(d.field, "WgmmaF16");
  EXPECT_EQ(d.beyond, 1);
  EXPECT_NE(d.first.find("word 65535:"), std::string::npos) << d.first;
}

// A wrapper that is added later and not here would stay unproven.
TEST(PtxVectors, EveryWrapperIsCalled) {
  std::string calls;
  for (const char* path : {"tests/gpu/ptx_vectors.cu", "tests/gpu/wgmma_vectors.cu"}) {
    std::ifstream source(path);
    calls.append(std::istreambuf_iterator<char>(source), {});
  }
  ASSERT_FALSE(calls.empty());
  // What a vector cannot show: launches that overlap, and what L2 drops first.
  const std::set<std::string> exempt = {"GridDependencyWait", "GridDependencyLaunch",
                                        "EvictFirstPolicy"};
  const std::regex definition(R"(__device__ __forceinline__ \w+ (\w+)\()");
  int wrappers = 0;
  for (const auto& entry : std::filesystem::directory_iterator("kernels/cuda/ptx")) {
    if (entry.path().extension() != ".cuh") continue;
    std::ifstream header(entry.path());
    const std::string text{std::istreambuf_iterator<char>(header), {}};
    for (std::sregex_iterator i(text.begin(), text.end(), definition), end; i != end; ++i) {
      const std::string name = (*i)[1];
      ++wrappers;
      if (exempt.count(name) == 0) {
        EXPECT_TRUE(std::regex_search(calls, std::regex("\\b" + name + "(<\\d+>)?\\(")))
            << name << " of " << entry.path() << " is in neither file of vectors";
      }
    }
  }
  EXPECT_GT(wrappers, 10);
}

TEST(PtxVectors, LastBitsOfProductsAreWithinTheTolerance) {
  const std::vector<uint32_t> words = Vectors();
  std::vector<uint32_t> changed = words;
  changed[0] ^= 1;  // MmaF16
  const PtxDifference d = ComparePtxVectors(words, changed)[0];
  EXPECT_EQ(d.unequal, 1);
  EXPECT_EQ(d.beyond, 0);
  EXPECT_GT(d.largest, 0);
  EXPECT_EQ(d.largest_ulps, 1u);
  EXPECT_GT(d.mean_ulps, 0);
}

}  // namespace
}  // namespace bitshard
