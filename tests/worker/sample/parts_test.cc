// The sampler's parts: generator, noise, order, integer masses, parameters.
#include <cmath>
#include <limits>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/plan.pb.h"
#include "worker/sample/gumbel.h"
#include "worker/sample/mass.h"
#include "worker/sample/params.h"
#include "worker/sample/philox.h"
#include "worker/sample/token_order.h"
#include "worker/sample/unit_noise.h"

namespace bitshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();

// Known answers of the authors' Random123 distribution for philox4x32 with 10 rounds.
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_THAT(Philox4x32({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u));
  EXPECT_THAT(
      Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
      ElementsAre(0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu));
  EXPECT_THAT(
      Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      ElementsAre(0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u));
}

TEST(Gumbel, IsTheDoubleLogarithmOfTheWord) {
  std::mt19937 random(1);
  for (uint32_t word : {0u, 1u, 0x7fffffffu, 0x80000000u, 0xfffffffeu, 0xffffffffu}) {
    const double u = (word + 0.5) * std::pow(2.0, -32);
    EXPECT_NEAR(Gumbel(word), -std::log(-std::log(u)), 1e-9) << word;
    EXPECT_LT(Gumbel(word), kGumbelMost);
  }
  for (int i = 0; i < 10'000; ++i) {
    const uint32_t word = random();
    EXPECT_NEAR(Gumbel(word), -std::log(-std::log((word + 0.5) * std::pow(2.0, -32))), 1e-9)
        << word;
  }
}

TEST(Gumbel, BoundIsNeverBelowTheNoise) {
  std::mt19937 random(2);
  for (int ones = 0; ones <= 32; ++ones) {
    // The tightest words have `ones` leading ones and then a zero and all ones, or nothing but
    // zeros.
    const uint32_t head = ones == 0 ? 0 : ~uint32_t{0} << (32 - ones);
    const uint32_t tail = ones >= 31 ? 0 : (uint32_t{1} << (31 - ones)) - 1;
    for (uint32_t word : {head, head | tail})
      EXPECT_LE(Gumbel(word), NoiseBound(word)) << std::hex << word;
  }
  for (int i = 0; i < 100'000; ++i) {
    const uint32_t word = random();
    EXPECT_LE(Gumbel(word), NoiseBound(word)) << word;
    // Close, or the filter would filter nothing.
    if (Gumbel(word) > 3) {
      EXPECT_GE(Gumbel(word), NoiseBound(word) - 0.1) << word;
    }
  }
}

TEST(UnitNoise, IsTheNoiseOfEachToken) {
  const NoiseKey key{.seed = 0x0123456789abcdef, .position = 0xfedcba9876543210, .choice = 3};
  uint32_t words[64];
  for (uint32_t first : {0u, 64u, 128'000u}) {
    UnitNoise(key, first, words);
    for (uint32_t i = 0; i < 64; ++i) {
      EXPECT_EQ(words[i], NoiseWords(key, (first + i) / 4)[(first + i) % 4]) << first + i;
    }
  }
}

TEST(TokenOrder, IsByLogitDescendingThenIdAscending) {
  const float ascending[] = {-kInf, -3e38f, -2.0f, -1e-45f, 0.0f, 1e-45f, 1.5f, 3e38f, kInf};
  for (size_t i = 0; i + 1 < std::size(ascending); ++i) {
    EXPECT_LT(SortableLogit(ascending[i]), SortableLogit(ascending[i + 1]));
    EXPECT_GT(TokenKey(ascending[i + 1], 9), TokenKey(ascending[i], 3));
    EXPECT_EQ(KeyLogit(TokenKey(ascending[i], 7)), ascending[i]);
  }
  EXPECT_GT(TokenKey(1, 3), TokenKey(1, 4));
  EXPECT_GT(TokenKey(-0.0f, 3), TokenKey(0.0f, 4));
  EXPECT_GT(TokenKey(0.0f, 3), TokenKey(-0.0f, 4));
  EXPECT_EQ(KeyToken(TokenKey(-2.5f, 49'151)), 49'151u);
}

TEST(Mass, VanishesExactlyWhereTheShortcutSaysSo) {
  EXPECT_EQ(MassOfExponent(0), int64_t{1} << 40);
  EXPECT_EQ(ScaleMass(ExpF32(kNoMassBelow)), 0);
  EXPECT_EQ(MassOfExponent(-1000), 0);
  EXPECT_EQ(MassOfExponent(-kInf), 0);
  EXPECT_EQ(MassOfExponent(-28), 1);
  // Monotone, or a threshold on the exponent would not be a prefix by mass.
  for (float t = -29; t < 0; t += 0.001f)
    ASSERT_LE(MassOfExponent(t), MassOfExponent(t + 0.001f)) << t;
}

TEST(SampleParams, FieldsOutOfRangeAreNamed) {
  internal::SamplingParams proto;
  EXPECT_TRUE(SampleParamsOf(proto).ok()) << "the default is greedy";
  const auto refuse = [](auto set, const char* field) {
    internal::SamplingParams bad;
    set(bad);
    const auto status = SampleParamsOf(bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(field));
  };
  for (float v : {-1.0f, kInf, std::numeric_limits<float>::quiet_NaN()}) {
    refuse([v](auto& p) { p.set_temperature(v); }, "temperature");
    refuse([v](auto& p) { p.set_top_p(v); }, "top_p");
    refuse([v](auto& p) { p.set_min_p(v); }, "min_p");
  }
  refuse([](auto& p) { p.set_top_p(1.5f); }, "top_p");
  refuse([](auto& p) { p.set_top_logprobs(21); }, "top_logprobs");
}

TEST(SampleParams, AllFieldsArrive) {
  internal::SamplingParams proto;
  proto.set_temperature(0.5f);
  proto.set_top_k(7);
  proto.set_top_p(0.25f);
  proto.set_min_p(0.125f);
  proto.set_seed(1ull << 60);
  proto.set_choice(3);
  proto.set_top_logprobs(20);
  proto.set_logprobs(true);
  const auto p = SampleParamsOf(proto);
  ASSERT_TRUE(p.ok()) << p.status();
  EXPECT_EQ(p->temperature, 0.5f);
  EXPECT_EQ(p->top_k, 7u);
  EXPECT_EQ(p->top_p, 0.25f);
  EXPECT_EQ(p->min_p, 0.125f);
  EXPECT_EQ(p->seed, 1ull << 60);
  EXPECT_EQ(p->choice, 3u);
  EXPECT_EQ(p->top_logprobs, 20u);
  EXPECT_TRUE(p->want_logprob);
}

}  // namespace
}  // namespace bitshard
