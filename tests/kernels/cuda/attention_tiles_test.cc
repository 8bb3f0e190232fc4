// Prefill attention where the order of summation is free: near the CPU's reference.
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/emu/options.h"
#include "tests/kernels/cuda/attention_on_device.h"

namespace bitshard {
namespace {

class CudaAttentionTiles : public testing::TestWithParam<KvType> {
 protected:
  void TearDown() override { ExpectNoFindings(); }
};

// |got - want| / |want| over all values.
double NormError(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    norm += double{want[i]} * want[i];
  }
  return std::sqrt(error / norm);
}

// q, K, V and p have 11 digits each, and their errors are independent.
constexpr double kBound = 2 * 0x1p-11;

// Whole tiles of several sequences, tokens that are in none, padding.
std::vector<TokenAt> MixedStep() {
  std::vector<TokenAt> tokens = Positions(0, 60, 124);                       // four tiles
  for (const TokenAt& token : Positions(1, 0, 20)) tokens.push_back(token);  // one, and 4 more
  tokens.push_back({2, 6});
  for (int i = 0; i < 11; ++i) tokens.push_back({-1, 0});
  for (const TokenAt& token : Positions(0, 124, 145)) tokens.push_back(token);
  return tokens;
}

TEST_P(CudaAttentionTiles, AnyStepIsNearTheReference) {
  const std::vector<AttentionShape> shapes = {
      {"one head each", 2, {0, 1}, 64},
      {"groups of 2", 1, {0, 0}, 64},
      {"groups of 3, a window", 1, {0, 0, 0}, 64, 70},
      {"uneven groups, one kv head without queries", 3, {2, 0, 2, 2, 2, 2}, 64},
      {"wide heads", 1, {0}, 128, 20},
  };
  uint32_t seed = 100;
  for (const AttentionShape& shape : shapes) {
    AttentionModel model(GetParam(), shape, {145, 33, 7}, seed += 100);
    model.AppendOnCpu();
    model.Append(model.AllTokens());
    const std::vector<TokenAt> tokens = MixedStep();
    const std::vector<float> want = model.AttendOnCpu(tokens);
    const std::vector<float> exact = model.Attend(tokens);
    model.attention().deterministic = false;
    const std::vector<float> got = model.Attend(tokens);
    EXPECT_LE(NormError(got, want), kBound) << shape.name;
    // What is in no tile keeps its bits.
    size_t others = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const size_t token = i / shape.q_width();
      const bool in_tile = token < 80 || (token >= 96 && token < 112);
      if (in_tile) {
        others += SameBits(got[i], exact[i]) ? 0 : 1;
      } else {
        ASSERT_TRUE(SameBits(got[i], exact[i])) << shape.name << " token " << token;
      }
    }
    EXPECT_GT(others, 0u) << "no tile was computed by the other kernel";
  }
}

TEST_P(CudaAttentionTiles, TheOrderOfThreadsDoesNotShow) {
  const AttentionShape shape = {"groups of 5", 1, {0, 0, 0, 0, 0}, 64};
  AttentionModel model(GetParam(), shape, {100}, 2000);
  model.Append(model.AllTokens());
  model.attention().deterministic = false;
  const std::vector<TokenAt> tokens = Positions(0, 36, 100);
  const std::vector<float> want = model.Attend(tokens);
  for (const emu::Order order : {emu::Order::kBackward, emu::Order::kShuffled}) {
    emu::SetOptions({.order = order});
    const std::vector<float> got = model.Attend(tokens);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_TRUE(SameBits(got[i], want[i])) << i;
  }
  emu::SetOptions({});
}

TEST_P(CudaAttentionTiles, WhoeverSeesANonFiniteTokenGetsNanAndNobodyElse) {
  for (const int window : {0, 40}) {
    const AttentionShape shape = {"groups of 2", 1, {0, 0}, 64, window};
    AttentionModel model(GetParam(), shape, {160}, 3000);
    // Tiles take turns with two notes of such values, a bit each. 148 and 149 lie as 20 in its
    // tile, and through the window see none of these.
    model.v(0)[20 * 64 + 9] = std::numeric_limits<float>::quiet_NaN();
    model.v(0)[96 * 64 + 9] = std::numeric_limits<float>::quiet_NaN();
    model.k(0)[100 * 64 + 5] = std::numeric_limits<float>::infinity();
    model.v(0)[150 * 64 + 3] = std::numeric_limits<float>::infinity();
    model.Append(model.AllTokens());
    model.attention().deterministic = false;
    const std::vector<TokenAt> tokens = Positions(0, 16, 160);
    const std::vector<float> got = model.Attend(tokens);
    for (size_t i = 0; i < got.size(); ++i) {
      const int position = tokens[i / shape.q_width()].position;
      const auto sees = [&](int at) {
        return at <= position && (window == 0 || at > position - window);
      };
      const bool sees_column_9 = sees(20) || sees(96), sees_others = sees(100) || sees(150);
      if (!sees_column_9 && !sees_others) {
        EXPECT_TRUE(std::isfinite(got[i])) << position << " window " << window;
      } else if (i % 64 == 9 || !sees_column_9) {
        EXPECT_TRUE(std::isnan(got[i])) << position << " window " << window;
      }
    }
  }
}

// Keys and values beyond f16 are its largest, not infinite.
TEST(CudaAttentionTilesRange, WhatIsBeyondHalvesIsTheirLargest) {
  const AttentionShape shape = {"one head", 1, {0}, 64};
  AttentionModel model(KvType::kBf16, shape, {64}, 4000);
  model.v(0)[3 * 64 + 1] = 1e6f;
  model.k(0)[4 * 64 + 2] = -1e6f;
  model.Append(model.AllTokens());
  model.attention().deterministic = false;
  for (const float value : model.Attend(Positions(0, 0, 64))) ASSERT_TRUE(std::isfinite(value));
}

TEST(CudaAttentionTilesRefuse, CachesOfF32AndFewTokensKeepTheirBits) {
  const AttentionShape shape = {"one head", 1, {0}, 64};
  for (const auto& [type, tokens] : {std::pair(KvType::kF32, 80), std::pair(KvType::kBf16, 63)}) {
    AttentionModel model(type, shape, {80}, 5000);
    model.Append(model.AllTokens());
    const std::vector<float> want = model.Attend(Positions(0, 0, tokens));
    model.attention().deterministic = false;
    EXPECT_EQ(model.Attend(Positions(0, 0, tokens)), want) << KvTypeName(type);
  }
  ExpectNoFindings();
}

// As far as they serve it, the choice names them beside the kernel of decode.
TEST(CudaAttentionTilesChoice, NamesTheKernelsOfDecodeAndPrefill) {
  const auto kernel = [](KvType type, int head_dim, bool deterministic = false) {
    const KvLayout layout = {.type = type, .kv_heads = 1, .head_dim = head_dim};
    return TestGpu::Get().kernels().ChooseAttention(layout, 4, deterministic)->kernel;
  };
  EXPECT_EQ(kernel(KvType::kInt8, 128), "cuda/attention; prefill: cuda/attention_tiles");
  EXPECT_EQ(kernel(KvType::kBf16, 64), "cuda/attention; prefill: cuda/attention_tiles");
  EXPECT_EQ(kernel(KvType::kBf16, 64, /*deterministic=*/true), "cuda/attention");
  EXPECT_EQ(kernel(KvType::kBf16, 80), "cuda/attention");
  EXPECT_EQ(kernel(KvType::kF32, 64), "cuda/attention");
}

std::string TypeName(const testing::TestParamInfo<KvType>& info) { return KvTypeName(info.param); }

INSTANTIATE_TEST_SUITE_P(Types, CudaAttentionTiles,
                         testing::Values(KvType::kBf16, KvType::kF16, KvType::kInt8,
                                         KvType::kFp8E4m3),
                         &TypeName);

}  // namespace
}  // namespace bitshard
