// Rotation in both pairings and the four scalings, against the formulas in long doubles.
#include "kernels/registry/rope.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

RopeConfig Plain(int head_dim, int64_t positions) {
  RopeConfig config;
  config.head_dim = head_dim;
  config.rotary_dim = head_dim;
  config.max_positions = positions;
  return config;
}

TEST(Rope, TablesAreNearTheFormulaAtFarPositions) {
  const auto table = RopeTable::Create(Plain(64, 200000));
  ASSERT_TRUE(table.ok());
  std::vector<float> cos(32), sin(32);
  for (int64_t position : {0, 1, 255, 256, 257, 8191, 131071, 199999}) {
    table->CosSin(position, cos.data(), sin.data());
    for (int i = 0; i < 32; ++i) {
      const long double angle = position * std::pow(10000.0L, -2.0L * i / 64);
      // Half an ulp of f32 near 1, and the double errors of inv_freq times the angle.
      const double tolerance = 0x1p-24 + static_cast<double>(angle) * 4e-15 + 1e-15;
      EXPECT_NEAR(cos[i], static_cast<double>(std::cos(angle)), tolerance) << position << " " << i;
      EXPECT_NEAR(sin[i], static_cast<double>(std::sin(angle)), tolerance) << position << " " << i;
    }
  }
}

TEST(Rope, BothPairingsRotateTheSamePlanes) {
  ThreadPool pool(2);
  RopeConfig config = Plain(32, 100);
  const auto halves = RopeTable::Create(config);
  config.pairing = RopeConfig::Pairing::kInterleaved;
  const auto interleaved = RopeTable::Create(config);
  const std::vector<int32_t> positions = {0, 99, 7};
  const std::vector<float> x = RandomFloats(3 * 2 * 32, 1);
  std::vector<float> a = x, b(x.size());
  // b holds the same pairs in the other arrangement.
  const auto permute = [](int i) { return i % 2 == 0 ? i / 2 : i / 2 + 16; };
  for (size_t v = 0; v < 6; ++v) {
    for (int i = 0; i < 32; ++i) b[v * 32 + i] = x[v * 32 + permute(i)];
  }
  halves->Apply(a.data(), 3, 2, 64, positions, pool);
  interleaved->Apply(b.data(), 3, 2, 64, positions, pool);
  std::vector<float> cos(16), sin(16);
  for (size_t v = 0; v < 6; ++v) {
    halves->CosSin(positions[v / 2], cos.data(), sin.data());
    for (int i = 0; i < 32; ++i) EXPECT_EQ(b[v * 32 + i], a[v * 32 + permute(i)]);
    for (int i = 0; i < 16; ++i) {
      EXPECT_EQ(a[v * 32 + i], x[v * 32 + i] * cos[i] - x[v * 32 + i + 16] * sin[i]);
      EXPECT_EQ(a[v * 32 + i + 16], x[v * 32 + i + 16] * cos[i] + x[v * 32 + i] * sin[i]);
    }
  }
}

TEST(Rope, TheRestOfAHeadPassesThrough) {
  ThreadPool pool(1);
  RopeConfig config = Plain(32, 10);
  config.rotary_dim = 8;
  const auto table = RopeTable::Create(config);
  const std::vector<float> x = RandomFloats(32, 1);
  std::vector<float> y = x;
  table->Apply(y.data(), 1, 1, 32, std::vector<int32_t>{5}, pool);
  for (int i = 8; i < 32; ++i) EXPECT_EQ(y[i], x[i]);
  EXPECT_NE(y[0], x[0]);
}

TEST(Rope, LinearDividesFrequencies) {
  RopeConfig config = Plain(64, 10);
  config.scaling = RopeConfig::Linear{.factor = 4};
  const auto scaled = RopeTable::Create(config), plain = RopeTable::Create(Plain(64, 10));
  for (int i = 0; i < 32; ++i) EXPECT_EQ(scaled->inv_freq()[i], plain->inv_freq()[i] / 4);
}

TEST(Rope, DivisorsDivideFrequencies) {
  RopeConfig config = Plain(8, 10);
  config.divisors = {1.0f, 2.0f, 4.0f, 8.0f};
  const auto scaled = RopeTable::Create(config), plain = RopeTable::Create(Plain(8, 10));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(scaled->inv_freq()[i], plain->inv_freq()[i] / (1 << i));
}

TEST(Rope, Llama3KeepsHighDividesLowAndBlendsBetween) {
  RopeConfig config = Plain(128, 10);
  config.theta = 500000;
  const RopeConfig::Llama3 s{
      .factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_context = 8192};
  config.scaling = s;
  const auto table = RopeTable::Create(config);
  int kept = 0, divided = 0, blended = 0;
  for (int i = 0; i < 64; ++i) {
    const double inv = std::pow(500000.0, -2.0 * i / 128), wavelength = 2 * M_PI / inv;
    double expected;
    if (wavelength < s.original_context / s.high_freq_factor) {
      expected = inv, ++kept;
    } else if (wavelength > s.original_context / s.low_freq_factor) {
      expected = inv / s.factor, ++divided;
    } else {
      const double smooth = (s.original_context / wavelength - 1) / 3;
      expected = (1 - smooth) * inv / s.factor + smooth * inv, ++blended;
    }
    EXPECT_NEAR(table->inv_freq()[i], expected, expected * 1e-13);
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(divided, 0);
  EXPECT_GT(blended, 0);
}

TEST(Rope, YarnRampsAndScalesItsMagnitude) {
  RopeConfig config = Plain(64, 100);
  RopeConfig::Yarn yarn{.factor = 4,
                        .original_context = 2048,
                        .beta_fast = 32,
                        .beta_slow = 1,
                        .truncate = true,
                        .attention_factor = 1.25};
  config.scaling = yarn;
  const auto table = RopeTable::Create(config);
  ASSERT_TRUE(table.ok());
  const auto dim = [](double r) {
    return 64 * std::log(2048 / (2 * M_PI * r)) / (2 * std::log(10000.0));
  };
  const double low = std::floor(dim(32)), high = std::ceil(dim(1));
  for (int i = 0; i < 32; ++i) {
    const double inv = std::pow(10000.0, -2.0 * i / 64),
                 ramp = std::clamp((i - low) / (high - low), 0.0, 1.0);
    const double expected = inv / 4 * ramp + inv * (1 - ramp);
    EXPECT_NEAR(table->inv_freq()[i], expected, expected * 1e-13);
  }
  std::vector<float> cos(32), sin(32);
  table->CosSin(0, cos.data(), sin.data());
  EXPECT_EQ(cos[0], 1.25f);
  EXPECT_EQ(sin[0], 0.0f);
}

TEST(Rope, RefusesImpossibleSettings) {
  const auto refused = [](RopeConfig c) { return !RopeTable::Create(c).ok(); };
  RopeConfig bad = Plain(32, 10);
  bad.rotary_dim = 34;
  EXPECT_TRUE(refused(bad));
  bad = Plain(32, 10), bad.rotary_dim = 7;
  EXPECT_TRUE(refused(bad));
  bad = Plain(32, 10), bad.theta = std::nan("");
  EXPECT_TRUE(refused(bad));
  bad = Plain(32, 10), bad.divisors = {1.0f};
  EXPECT_TRUE(refused(bad));
  bad = Plain(32, 10), bad.divisors.assign(16, 0.0f);
  EXPECT_TRUE(refused(bad));
  bad = Plain(32, 10), bad.scaling = RopeConfig::Linear{.factor = 0};
  EXPECT_TRUE(refused(bad));
  bad = Plain(32, 10),
  bad.scaling = RopeConfig::Llama3{.factor = 8, .low_freq_factor = 4, .high_freq_factor = 4};
  EXPECT_TRUE(refused(bad));
  bad = Plain(32, 10), bad.scaling = RopeConfig::Yarn{.factor = 2, .original_context = 0};
  EXPECT_TRUE(refused(bad));
  EXPECT_TRUE(refused(Plain(32, 0)));
}

}  // namespace
}  // namespace bitshard
