// Attention: every kernel and ISA against the reference, bit for bit; prefill in any chunks, alone
// or in a batch, gives the same bits; and the result is near softmax in doubles.
#include "kernels/registry/attention.h"

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/base/float_types.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

std::vector<uint32_t> Bits(const std::vector<float>& v) {
  std::vector<uint32_t> out;
  for (float x : v) out.push_back(std::isnan(x) ? 0x7fc00000u : std::bit_cast<uint32_t>(x));
  return out;
}

struct Model {
  AttentionConfig config;
  int tokens = 0;
  std::vector<float> q, k, v;
  // Blocks of the sequence are scattered, and others hold garbage.
  std::vector<uint32_t> blocks;
  Buffer cache;
};

Model MakeModel(KvType type, int kv_heads, std::vector<int> kv_head_of_q, int head_dim, int window,
                int tokens, uint32_t seed) {
  Model m;
  m.config.layout = {.type = type, .kv_heads = kv_heads, .head_dim = head_dim};
  m.config.q_heads = static_cast<int>(kv_head_of_q.size());
  m.config.kv_head_of_q = std::move(kv_head_of_q);
  m.config.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  m.config.window = window;
  m.tokens = tokens;
  m.q = RandomFloats(int64_t{tokens} * m.config.q_heads * head_dim, seed, 2.0f);
  m.k = RandomFloats(int64_t{tokens} * kv_heads * head_dim, seed + 1, 2.0f);
  m.v = RandomFloats(int64_t{tokens} * kv_heads * head_dim, seed + 2);
  const uint32_t count = static_cast<uint32_t>((tokens + 15) / 16);
  for (uint32_t i = 0; i < count; ++i) m.blocks.push_back((count - 1 - i) * 2 + 1);
  m.cache = Buffer((2 * count + 1) * m.config.layout.block_bytes());
  return m;
}

// Feeds the tokens in steps of `chunk` into a cache full of garbage and returns all outputs.
std::vector<float> Feed(Model& m, int chunk, Isa isa, ThreadPool& pool,
                        std::string* kernel = nullptr) {
  auto attention = BoundAttention::Bind(m.config, pool.threads(), isa);
  EXPECT_TRUE(attention.ok()) << attention.status();
  if (kernel != nullptr) *kernel = attention->kernel();
  const int64_t q_stride = int64_t{m.config.q_heads} * m.config.layout.head_dim;
  const int64_t kv_stride = int64_t{m.config.layout.kv_heads} * m.config.layout.head_dim;
  std::fill_n(m.cache.data(), m.cache.bytes(), uint8_t{0xff});  // NaN in every type
  std::vector<float> out(m.q.size(), -7.0f);
  for (int start = 0; start < m.tokens; start += chunk) {
    const int count = std::min(chunk, m.tokens - start);
    const AttentionRow row{
        .blocks = m.blocks.data(), .start = start, .tokens = count, .first_row = 0};
    attention->Append({&row, 1}, m.k.data() + start * kv_stride, m.v.data() + start * kv_stride,
                      kv_stride, m.cache.data(), pool);
    attention->Run({&row, 1}, m.q.data() + start * q_stride, q_stride, m.cache.data(),
                   out.data() + start * q_stride, q_stride, pool);
  }
  return out;
}

struct Case {
  KvType type;
  int kv_heads;
  std::vector<int> kv_head_of_q;
  int head_dim, window, tokens;
};

std::vector<Case> Cases() {
  return {
      {KvType::kBf16, 1, {0, 0, 0}, 64, 0, 300},  // SmolLM2: 3 query heads share a kv head
      {KvType::kF32, 2, {0, 0, 1, 1}, 32, 0, 70},
      {KvType::kF16, 2, {1, 0, 1}, 48, 0, 275},           // uneven groups
      {KvType::kBf16, 1, {0}, 128, 0, 530},               // three chunks of 256
      {KvType::kF32, 1, {0, 0}, 16, 20, 300},             // a window inside a chunk
      {KvType::kBf16, 1, {0, 0, 0, 0, 0}, 80, 260, 540},  // a window over two chunks
      {KvType::kBf16, 3, {0, 1, 2, 2}, 20, 0, 40},        // for the reference alone
      {KvType::kF32, 2, {0, 0}, 64, 0, 33},               // a kv head without queries
  };
}

TEST(Attention, EveryIsaGivesTheBitsOfTheReference) {
  ThreadPool pool(2);
  uint32_t seed = 100;
  for (const Case& c : Cases()) {
    Model m =
        MakeModel(c.type, c.kv_heads, c.kv_head_of_q, c.head_dim, c.window, c.tokens, seed += 10);
    const auto expected = Bits(Feed(m, c.tokens, Isa::kScalar, pool));
    for (Isa isa : {Isa::kAvx2, Isa::kAvx512Vnni}) {
      if (!HasIsa(isa)) continue;
      std::string kernel;
      EXPECT_TRUE(Bits(Feed(m, c.tokens, isa, pool, &kernel)) == expected)
          << kernel << " head_dim=" << c.head_dim << " tokens=" << c.tokens
          << " window=" << c.window << " seed=" << seed;
    }
  }
}

TEST(Attention, ChunksOfPrefillDoNotChangeBits) {
  ThreadPool pool(1);
  uint32_t seed = 500;
  for (const Case& c : Cases()) {
    Model m =
        MakeModel(c.type, c.kv_heads, c.kv_head_of_q, c.head_dim, c.window, c.tokens, seed += 10);
    const auto expected = Bits(Feed(m, c.tokens, BestIsa(), pool));
    for (int chunk : {1, 7, 64}) {
      EXPECT_TRUE(Bits(Feed(m, chunk, BestIsa(), pool)) == expected)
          << "chunk=" << chunk << " head_dim=" << c.head_dim;
    }
  }
}

TEST(Attention, HeadsOnOtherRanksDoNotChangeBits) {
  ThreadPool pool(1);
  Model both = MakeModel(KvType::kBf16, 1, {0, 0, 0}, 64, 0, 50, 900);
  const std::vector<float> together = Feed(both, 50, BestIsa(), pool);
  for (int head = 0; head < 3; ++head) {
    Model one = MakeModel(KvType::kBf16, 1, {0}, 64, 0, 50, 900);
    one.k = both.k;
    one.v = both.v;
    for (int t = 0; t < 50; ++t)
      std::copy_n(both.q.begin() + (t * 3 + head) * 64, 64, one.q.begin() + t * 64);
    const std::vector<float> alone = Feed(one, 50, BestIsa(), pool);
    for (int t = 0; t < 50; ++t) {
      for (int d = 0; d < 64; ++d)
        ASSERT_EQ(alone[t * 64 + d], together[(t * 3 + head) * 64 + d]) << head << " " << t;
    }
  }
}

TEST(Attention, BatchesAndThreadsDoNotChangeBits) {
  // Five sequences of different lengths decode one token each, in one call.
  AttentionConfig config;
  config.layout = {.type = KvType::kBf16, .kv_heads = 2, .head_dim = 32};
  config.q_heads = 4;
  config.kv_head_of_q = {0, 0, 1, 1};
  config.scale = 0.2f;
  const int lengths[] = {1, 17, 256, 257, 40};
  std::vector<std::vector<uint32_t>> tables;
  uint32_t next = 0;
  for (int length : lengths) {
    tables.emplace_back();
    for (int i = 0; i < (length + 15) / 16; ++i) tables.back().push_back(next++);
  }
  Buffer cache(next * config.layout.block_bytes());
  ThreadPool solo(1), three(3);
  auto attention = BoundAttention::Bind(config, 3, BestIsa());
  ASSERT_TRUE(attention.ok());
  std::vector<AttentionRow> rows;
  for (int s = 0; s < 5; ++s) {
    const AttentionRow all{
        .blocks = tables[s].data(), .start = 0, .tokens = lengths[s], .first_row = 0};
    const auto k = RandomFloats(lengths[s] * 64, s), v = RandomFloats(lengths[s] * 64, s + 50);
    attention->Append({&all, 1}, k.data(), v.data(), 64, cache.data(), solo);
    rows.push_back(
        {.blocks = tables[s].data(), .start = lengths[s] - 1, .tokens = 1, .first_row = s});
  }
  const auto q = RandomFloats(5 * 128, 77);
  std::vector<float> batch(5 * 128), alone(5 * 128);
  attention->Run(rows, q.data(), 128, cache.data(), batch.data(), 128, three);
  for (const AttentionRow& row : rows)
    attention->Run({&row, 1}, q.data(), 128, cache.data(), alone.data(), 128, solo);
  EXPECT_TRUE(Bits(batch) == Bits(alone));
}

TEST(Attention, IsNearSoftmaxInDoubles) {
  ThreadPool pool(1);
  Model m = MakeModel(KvType::kF32, 1, {0, 0}, 64, 0, 300, 40);
  const std::vector<float> out = Feed(m, 300, BestIsa(), pool);
  for (int t : {0, 5, 255, 256, 299}) {
    for (int h = 0; h < 2; ++h) {
      std::vector<double> scores(t + 1);
      double max = -1e300, sum = 0;
      for (int p = 0; p <= t; ++p) {
        for (int d = 0; d < 64; ++d)
          scores[p] += double{m.q[(t * 2 + h) * 64 + d]} * m.k[p * 64 + d];
        scores[p] *= m.config.scale;
        max = std::max(max, scores[p]);
      }
      for (double& s : scores) sum += s = std::exp(s - max);
      for (int d = 0; d < 64; ++d) {
        double expected = 0, magnitude = 0;
        for (int p = 0; p <= t; ++p) {
          expected += scores[p] / sum * m.v[p * 64 + d];
          magnitude += scores[p] / sum * std::fabs(m.v[p * 64 + d]);
        }
        // Scores of magnitude 30 with 64 roundings, then some 300 roundings of sums.
        EXPECT_NEAR(out[(t * 2 + h) * 64 + d], expected, magnitude * (2 * 30 * 64 + 300) * 0x1p-24)
            << t << " " << d;
      }
    }
  }
}

TEST(Attention, NonFiniteKeysReachOnlyTheirReaders) {
  ThreadPool pool(1);
  for (Isa isa : kAllIsas) {
    if (!HasIsa(isa)) continue;
    Model m = MakeModel(KvType::kBf16, 1, {0}, 32, 0, 30, 60);
    m.k[20 * 32 + 3] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> out = Feed(m, 30, isa, pool);
    for (int t = 0; t < 30; ++t) {
      for (int d = 0; d < 32; ++d) EXPECT_EQ(std::isnan(out[t * 32 + d]), t >= 20) << t;
    }
  }
}

TEST(Attention, BindRefusesHeadsThatDoNotExist) {
  AttentionConfig config;
  config.layout = {.type = KvType::kBf16, .kv_heads = 1, .head_dim = 32};
  config.q_heads = 1;
  config.kv_head_of_q = {1};
  EXPECT_FALSE(BoundAttention::Bind(config, 1, BestIsa()).ok());
}

}  // namespace
}  // namespace bitshard
