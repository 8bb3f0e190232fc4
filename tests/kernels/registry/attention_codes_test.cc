// What the KV cache stores: the 8-bit codes against their definition, and every kernel's append
// against the scalar conversions, on ordinary, tiny, huge and broken values.
#include "kernels/registry/attention_codes.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/registry/attention.h"

namespace bitshard {
namespace {

float FromBits(uint32_t bits) { return std::bit_cast<float>(bits); }

// The code whose value is nearest to y, by trying all; of two the one with an even code.
uint8_t Nearest(float y, float (*decode)(uint8_t), uint8_t (*usable)(int)) {
  int best = -1;
  double distance = 0;
  for (int i = 0; i < 256; ++i) {
    if (!usable(i)) continue;
    const double d = std::fabs(double{decode(static_cast<uint8_t>(i))} - double{y});
    if (best < 0 || d < distance || (d == distance && i % 2 == 0)) {
      best = i;
      distance = d;
    }
  }
  return static_cast<uint8_t>(best);
}

TEST(AttentionCodes, Fp8CodesAreE4m3InUnits) {
  for (int i = 0; i < 256; ++i) {
    const uint8_t code = static_cast<uint8_t>(i);
    if ((i & 0x7f) == 0x7f) continue;  // e4m3's NaN, which no value is stored as
    EXPECT_EQ(DecodeFp8(code), E4m3ToF32(code) * 0x1p-8f) << i;
    EXPECT_EQ(EncodeFp8(DecodeFp8(code), 1.0f), code) << i;
  }
}

TEST(AttentionCodes, TheNearestCodeIsChosen) {
  std::mt19937 rng(5);
  std::uniform_real_distribution<float> exponent(-22, 0.9f);
  const auto fp8 = [](int i) -> uint8_t { return (i & 0x7f) != 0x7f; };
  const auto int8 = [](int i) -> uint8_t { return i != 0x80; };
  for (int i = 0; i < 20000; ++i) {
    const float sign = rng() % 2 == 0 ? 1.0f : -1.0f;
    const float y = sign * std::exp2(exponent(rng));
    EXPECT_EQ(DecodeFp8(EncodeFp8(y, 1.0f)), DecodeFp8(Nearest(y, &DecodeFp8, fp8))) << y;
    // Halves between codes come up too.
    const float z = sign * static_cast<float>(rng() % 1024) / 8.0f;
    EXPECT_EQ(DecodeInt8(EncodeInt8(z, 1.0f)), DecodeInt8(Nearest(z, &DecodeInt8, int8))) << z;
  }
  for (int i = 0; i < 0x7e; ++i) {  // the middle of two codes goes to the even one
    const float low = DecodeFp8(static_cast<uint8_t>(i));
    const float high = DecodeFp8(static_cast<uint8_t>(i + 1));
    EXPECT_EQ(EncodeFp8((low + high) / 2, 1.0f), i + i % 2) << i;
    EXPECT_EQ(EncodeInt8(static_cast<float>(i) + 0.5f, 1.0f), i + i % 2) << i;
  }
}

TEST(AttentionCodes, ScalesMakeTheLargestTheLastCode) {
  const float x[4] = {1.0f, -6.5f, 3.0f, 0.0f};
  EXPECT_EQ(KvScale(KvType::kInt8, x, 4), 6.5f / 127.0f);
  EXPECT_EQ(KvScale(KvType::kFp8E4m3, x, 4), 6.5f / 1.75f);
  EXPECT_EQ(EncodeInt8(-6.5f, KvScale(KvType::kInt8, x, 4)), 0x81);
  EXPECT_EQ(EncodeFp8(-6.5f, KvScale(KvType::kFp8E4m3, x, 4)), 0xfe);
  const float zeros[2] = {0.0f, -0.0f};
  EXPECT_EQ(KvScale(KvType::kInt8, zeros, 2), 0.0f);
  EXPECT_EQ(EncodeInt8(-0.0f, 0.0f), 0);
  EXPECT_EQ(EncodeFp8(-0.0f, 0.0f), 0);
  const float broken[2] = {1.0f, -std::numeric_limits<float>::infinity()};
  EXPECT_TRUE(std::isnan(KvScale(KvType::kFp8E4m3, broken, 2)));
}

// Heads that are hard to store.
std::vector<std::vector<float>> Heads(int head_dim) {
  std::mt19937 rng(9);
  std::vector<std::vector<float>> heads(5, std::vector<float>(head_dim));
  std::normal_distribution<float> normal;
  for (int d = 0; d < head_dim; ++d) {
    heads[0][d] = normal(rng);
    heads[1][d] = 0;
    heads[2][d] = normal(rng) * std::exp2(static_cast<float>(d % 40) - 20);
    heads[3][d] = d % 2 == 0 ? 0.0f : -0.0f;
    heads[4][d] = normal(rng) * 0x1p126f;
  }
  for (const float amax : {0x1p-149f, 0x1p-148f, 150 * 0x1p-149f, 190 * 0x1p-149f, 0x1p-140f,
                           0x1p-126f, std::numeric_limits<float>::max()}) {
    std::vector<float> head(head_dim);
    for (int d = 0; d < head_dim; ++d) head[d] = (normal(rng) < 0 ? -amax : amax) / (1 + d % 5);
    heads.push_back(head);
  }
  for (const uint32_t bits : {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc12345u, 0x7f800001u}) {
    heads.push_back(heads[0]);
    heads.back()[head_dim - 2] = FromBits(bits);
  }
  for (int i = 0; i < 50; ++i) {  // any bits at all
    std::vector<float> head(head_dim);
    for (float& x : head) x = FromBits(static_cast<uint32_t>(rng()));
    heads.push_back(head);
  }
  return heads;
}

class Append : public testing::TestWithParam<KvType> {};

TEST_P(Append, StoresWhatTheScalarConversionsGive) {
  constexpr int kDim = 48;
  const KvLayout layout = {.type = GetParam(), .kv_heads = 1, .head_dim = kDim};
  const auto heads = Heads(kDim);
  ThreadPool pool(2);
  for (Isa isa : kAllIsas) {
    if (!HasIsa(isa)) continue;
    AttentionConfig config;
    config.layout = layout;
    config.q_heads = 1;
    config.kv_head_of_q = {0};
    auto attention = BoundAttention::Bind(config, 2, isa);
    ASSERT_TRUE(attention.ok());
    for (size_t i = 0; i < heads.size(); ++i) {
      const std::vector<float>&k = heads[i], &v = heads[(i + 1) % heads.size()];
      const uint32_t block = 0;
      const int slot = static_cast<int>(i % kKvBlockTokens);
      const AttentionRow row{.blocks = &block, .start = slot, .tokens = 1, .first_row = 0};
      Buffer cache(layout.block_bytes());
      attention->Append({&row, 1}, k.data(), v.data(), kDim, cache.data(), pool);
      for (const bool value : {false, true}) {
        const uint8_t* plane = cache.data() + (value ? layout.v_offset(0) : layout.k_offset(0));
        const std::vector<float>& x = value ? v : k;
        const float scale = KvHasScales(GetParam()) ? KvScale(GetParam(), x.data(), kDim) : 1;
        if (KvHasScales(GetParam())) {
          float stored;
          std::memcpy(&stored, plane + layout.plane_bytes() + slot * kKvScaleBytes, 4);
          EXPECT_EQ(std::bit_cast<uint32_t>(stored), std::bit_cast<uint32_t>(scale)) << i;
        }
        for (int d = 0; d < kDim; ++d) {
          uint32_t expected = 0;
          switch (GetParam()) {
            case KvType::kBf16:
              expected = F32ToBf16(x[d]);
              break;
            case KvType::kF16:
              expected = F32ToF16(x[d]);
              break;
            case KvType::kF32:
              expected = std::bit_cast<uint32_t>(x[d]);
              break;
            case KvType::kInt8:
              expected = EncodeInt8(x[d], scale);
              break;
            case KvType::kFp8E4m3:
              expected = EncodeFp8(x[d], scale);
              break;
          }
          const int bytes = KvElementBytes(GetParam());
          uint32_t stored = 0;
          std::memcpy(&stored, plane + bytes * (value ? slot * kDim + d : d * 16 + slot), bytes);
          EXPECT_EQ(stored, expected) << IsaName(isa) << (value ? " v" : " k") << " head " << i
                                      << " d=" << d << " " << x[d];
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Caches, Append, testing::ValuesIn(kAllKvTypes),
                         [](const testing::TestParamInfo<KvType>& info) {
                           return std::string(KvTypeName(info.param));
                         });

}  // namespace
}  // namespace bitshard
