// Attention: every kernel and ISA against the reference, bit for bit, with every type of cache;
// prefill in any chunks, alone or in a batch, on any number of threads, with rotation and append
// apart or together, gives the same bits; and the result is near softmax in doubles.
#include "kernels/registry/attention.h"

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
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

struct Shape {
  int kv_heads;
  std::vector<int> kv_head_of_q;
  int head_dim, window, tokens;
};

const Shape kSmolLm2 = {1, {0, 0, 0}, 64, 0, 300};  // 3 query heads share a kv head

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes = {
      kSmolLm2,
      {2, {0, 0, 1, 1}, 32, 0, 70},
      {2, {1, 0, 1}, 48, 0, 275},             // uneven groups
      {1, {0}, 128, 0, 530},                  // three chunks of 256
      {1, {0, 0}, 16, 20, 300},               // a window inside a chunk
      {1, {0, 0, 0, 0, 0}, 80, 260, 540},     // a window over two chunks
      {3, {0, 1, 2, 2}, 20, 0, 40},           // for the reference alone
      {2, {0, 0}, 64, 0, 33},                 // a kv head without queries
      {1, {0, 0, 0, 0, 0, 0, 0}, 48, 0, 90},  // groups of 4 and 3 queries
  };
  shapes.push_back(
      {1, std::vector<int>(26, 0), 16, 0, 40});  // more heads than one task has queries
  return shapes;
}

struct Model {
  AttentionConfig config;
  int tokens = 0;
  std::vector<float> q, k, v;
  // Blocks of the sequence are scattered, and others hold garbage.
  std::vector<uint32_t> blocks;
  Buffer cache;

  int64_t q_width() const { return int64_t{config.q_heads} * config.layout.head_dim; }
  int64_t kv_width() const { return int64_t{config.layout.kv_heads} * config.layout.head_dim; }
};

Model MakeModel(KvType type, const Shape& shape, uint32_t seed) {
  Model m;
  m.config.layout = {.type = type, .kv_heads = shape.kv_heads, .head_dim = shape.head_dim};
  m.config.q_heads = static_cast<int>(shape.kv_head_of_q.size());
  m.config.kv_head_of_q = shape.kv_head_of_q;
  m.config.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  m.config.window = shape.window;
  m.tokens = shape.tokens;
  m.q = RandomFloats(m.tokens * m.q_width(), seed, 2.0f);
  m.k = RandomFloats(m.tokens * m.kv_width(), seed + 1, 2.0f);
  m.v = RandomFloats(m.tokens * m.kv_width(), seed + 2);
  const uint32_t count = static_cast<uint32_t>((m.tokens + 15) / 16);
  for (uint32_t i = 0; i < count; ++i) m.blocks.push_back((count - 1 - i) * 2 + 1);
  m.cache = Buffer((2 * count + 1) * m.config.layout.block_bytes());
  return m;
}

BoundAttention BindTo(const Model& m, Isa isa, const ThreadPool& pool) {
  auto attention = BoundAttention::Bind(m.config, pool.threads(), isa);
  EXPECT_TRUE(attention.ok()) << attention.status();
  return *std::move(attention);
}

// Fills the cache with garbage, appends the tokens before `from`, feeds the others in steps of
// `chunk` and returns their outputs.
std::vector<float> Feed(Model& m, int chunk, Isa isa, ThreadPool& pool, bool together = false,
                        int from = 0) {
  BoundAttention attention = BindTo(m, isa, pool);
  std::fill_n(m.cache.data(), m.cache.bytes(), uint8_t{0xff});  // NaN in every type
  const AttentionRow before{.blocks = m.blocks.data(), .start = 0, .tokens = from, .first_row = 0};
  attention.Append({&before, 1}, m.k.data(), m.v.data(), m.kv_width(), m.cache.data(), pool);
  std::vector<float> out(m.q.size(), -7.0f);
  for (int start = from; start < m.tokens; start += chunk) {
    const int count = std::min(chunk, m.tokens - start);
    const AttentionRow row{
        .blocks = m.blocks.data(), .start = start, .tokens = count, .first_row = start};
    const AttentionValues values = {.q = m.q.data(),
                                    .q_stride = m.q_width(),
                                    .k = m.k.data(),
                                    .v = m.v.data(),
                                    .kv_stride = m.kv_width(),
                                    .out = out.data(),
                                    .out_stride = m.q_width()};
    if (together) {
      attention.AppendAndRun({&row, 1}, values, nullptr, m.cache.data(), pool);
      continue;
    }
    attention.Append({&row, 1}, values.k, values.v, values.kv_stride, m.cache.data(), pool);
    attention.Run({&row, 1}, values.q, values.q_stride, m.cache.data(), values.out,
                  values.out_stride, pool);
  }
  return {out.begin() + from * m.q_width(), out.end()};
}

class Attention : public testing::TestWithParam<KvType> {};

TEST_P(Attention, EveryIsaGivesTheBitsOfTheReference) {
  ThreadPool pool(2);
  uint32_t seed = 100;
  for (const Shape& shape : Shapes()) {
    Model m = MakeModel(GetParam(), shape, seed += 10);
    const auto expected = Bits(Feed(m, m.tokens, Isa::kScalar, pool));
    const std::vector<uint8_t> cache(m.cache.data(), m.cache.data() + m.cache.bytes());
    for (Isa isa : {Isa::kAvx2, Isa::kAvx512Vnni}) {
      if (!HasIsa(isa)) continue;
      EXPECT_TRUE(Bits(Feed(m, m.tokens, isa, pool)) == expected)
          << BindTo(m, isa, pool).kernel() << " head_dim=" << shape.head_dim
          << " tokens=" << m.tokens << " window=" << shape.window << " seed=" << seed;
      EXPECT_TRUE(std::equal(cache.begin(), cache.end(), m.cache.data()))
          << "stored K and V, head_dim=" << shape.head_dim;
    }
  }
}

TEST_P(Attention, ChunksOfPrefillDoNotChangeBits) {
  ThreadPool pool(1);
  uint32_t seed = 500;
  for (const Shape& shape : Shapes()) {
    Model m = MakeModel(GetParam(), shape, seed += 10);
    const auto expected = Bits(Feed(m, m.tokens, BestIsa(), pool));
    const std::vector<uint8_t> cache(m.cache.data(), m.cache.data() + m.cache.bytes());
    for (int chunk : {1, 7, 64}) {
      for (bool together : {false, true}) {
        EXPECT_TRUE(Bits(Feed(m, chunk, BestIsa(), pool, together)) == expected)
            << "chunk=" << chunk << " head_dim=" << shape.head_dim << " together=" << together;
        EXPECT_TRUE(std::equal(cache.begin(), cache.end(), m.cache.data())) << "stored K and V";
      }
    }
  }
}

// The work of a row is split by chunks when threads are more than (kv head, run of queries).
TEST_P(Attention, ThreadsDoNotChangeBits) {
  ThreadPool solo(1);
  const Shape shapes[] = {
      {1, {0, 0, 0}, 64, 0, 1300}, {2, {0, 1, 1}, 32, 0, 800}, {1, {0}, 16, 700, 1100}};
  uint32_t seed = 700;
  for (const Shape& shape : shapes) {
    Model m = MakeModel(GetParam(), shape, seed += 10);
    const int from = m.tokens - 10;
    const auto expected = Bits(Feed(m, 10, BestIsa(), solo, false, from));
    for (int threads : {2, 3, 8}) {
      ThreadPool pool(threads);
      for (Isa isa : kAllIsas) {
        if (!HasIsa(isa)) continue;
        for (int chunk : {1, 10}) {
          for (bool together : {false, true}) {
            EXPECT_TRUE(Bits(Feed(m, chunk, isa, pool, together, from)) == expected)
                << IsaName(isa) << " threads=" << threads << " tokens=" << m.tokens
                << " chunk=" << chunk << " together=" << together;
          }
        }
      }
    }
  }
}

TEST_P(Attention, HeadsOnOtherRanksDoNotChangeBits) {
  ThreadPool pool(1);
  const Shape all = {1, {0, 0, 0}, 64, 0, 50};
  Model both = MakeModel(GetParam(), all, 900);
  const std::vector<float> together = Feed(both, 50, BestIsa(), pool);
  for (int head = 0; head < 3; ++head) {
    Model one = MakeModel(GetParam(), {1, {0}, 64, 0, 50}, 900);
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

// Sequences in one step, some of which decode and some of which prefill, against each alone.
TEST_P(Attention, BatchesDoNotChangeBits) {
  const Shape shape = {2, {0, 0, 1, 1}, 32, 0, 0};
  const int lengths[] = {1, 17, 256, 257, 40, 900, 33};
  const int new_tokens[] = {1, 1, 1, 1, 40, 1, 5};
  Model m = MakeModel(GetParam(), shape, 0);
  std::vector<std::vector<uint32_t>> tables;
  uint32_t next = 0;
  for (int length : lengths) {
    tables.emplace_back((length + 15) / 16);
    std::iota(tables.back().begin(), tables.back().end(), next);
    next += static_cast<uint32_t>(tables.back().size());
  }
  m.cache = Buffer(next * m.config.layout.block_bytes());
  ThreadPool solo(1), three(3);
  BoundAttention attention = BindTo(m, BestIsa(), three);
  std::vector<AttentionRow> rows;
  int64_t count = 0;
  for (int s = 0; s < 7; ++s) {
    const int before = lengths[s] - new_tokens[s];
    const AttentionRow old{
        .blocks = tables[s].data(), .start = 0, .tokens = before, .first_row = 0};
    const auto k = RandomFloats(before * 64, s), v = RandomFloats(before * 64, s + 50);
    attention.Append({&old, 1}, k.data(), v.data(), 64, m.cache.data(), solo);
    rows.push_back(
        {.blocks = tables[s].data(), .start = before, .tokens = new_tokens[s], .first_row = count});
    count += new_tokens[s];
  }
  const auto q = RandomFloats(count * 128, 77), k = RandomFloats(count * 64, 78),
             v = RandomFloats(count * 64, 79);
  std::vector<float> batch(count * 128), alone(count * 128), apart(count * 128);
  AttentionValues values = {.q = q.data(),
                            .q_stride = 128,
                            .k = k.data(),
                            .v = v.data(),
                            .kv_stride = 64,
                            .out = batch.data(),
                            .out_stride = 128};
  attention.AppendAndRun(rows, values, nullptr, m.cache.data(), three);
  values.out = alone.data();
  for (const AttentionRow& row : rows)
    attention.AppendAndRun({&row, 1}, values, nullptr, m.cache.data(), solo);
  attention.Append(rows, k.data(), v.data(), 64, m.cache.data(), three);
  attention.Run(rows, q.data(), 128, m.cache.data(), apart.data(), 128, three);
  EXPECT_TRUE(Bits(batch) == Bits(alone));
  EXPECT_TRUE(Bits(batch) == Bits(apart));
}

TEST_P(Attention, MoreRowsThanOneRegionTakes) {
  constexpr int kRows = 300;
  Model m = MakeModel(GetParam(), {1, {0, 0}, 16, 0, kRows}, 12);
  std::vector<uint32_t> blocks(kRows);
  std::iota(blocks.begin(), blocks.end(), 0u);
  m.cache = Buffer(kRows * m.config.layout.block_bytes());
  ThreadPool pool(3);
  BoundAttention attention = BindTo(m, BestIsa(), pool);
  std::vector<AttentionRow> rows;
  for (int r = 0; r < kRows; ++r)
    rows.push_back({.blocks = &blocks[r], .start = 0, .tokens = 1, .first_row = r});
  std::vector<float> out(m.q.size());
  const AttentionValues values = {m.q.data(), 32, m.k.data(), m.v.data(), 16, out.data(), 32};
  attention.AppendAndRun(rows, values, nullptr, m.cache.data(), pool);
  // One position: its weight is 1, the output its stored v.
  for (int r = 0; r < kRows; ++r) {
    for (int d = 0; d < 32; ++d)
      ASSERT_NEAR(out[r * 32 + d], m.v[r * 16 + d % 16], 0.2) << r << " " << d;
  }
}

TEST_P(Attention, RotatesLikeRopeTable) {
  const Shape shapes[] = {{1, {0, 0, 0}, 64, 0, 70}, {2, {0, 1, 1}, 32, 0, 70}};
  for (const Shape& shape : shapes) {
    for (const auto pairing : {RopeConfig::Pairing::kHalves, RopeConfig::Pairing::kInterleaved}) {
      for (int rotary_dim : {shape.head_dim, shape.head_dim / 2, 6}) {
        Model m = MakeModel(GetParam(), shape, 30);
        const auto table = RopeTable::Create({.head_dim = shape.head_dim,
                                              .rotary_dim = rotary_dim,
                                              .pairing = pairing,
                                              .max_positions = 100});
        ASSERT_TRUE(table.ok()) << table.status();
        const int half = rotary_dim / 2;
        std::vector<float> cos(m.tokens * half), sin(m.tokens * half);
        std::vector<int32_t> positions(m.tokens);
        for (int t = 0; t < m.tokens; ++t) {
          positions[t] = t;
          table->CosSin(t, &cos[t * half], &sin[t * half]);
        }
        for (Isa isa : kAllIsas) {
          if (!HasIsa(isa)) continue;
          ThreadPool pool(3);
          for (int chunk : {m.tokens, 1}) {
            std::vector<float> fused(m.q.size());
            BoundAttention attention = BindTo(m, isa, pool);
            for (int t = 0; t < m.tokens; t += chunk) {
              const AttentionRow row{
                  .blocks = m.blocks.data(), .start = t, .tokens = chunk, .first_row = t};
              const AttentionRotation rotation = {cos.data(), sin.data(), half, rotary_dim,
                                                  pairing};
              const AttentionValues values = {m.q.data(),   m.q_width(),  m.k.data(), m.v.data(),
                                              m.kv_width(), fused.data(), m.q_width()};
              attention.AppendAndRun({&row, 1}, values, &rotation, m.cache.data(), pool);
            }
            Model rotated = MakeModel(GetParam(), shape, 30);
            table->Apply(rotated.q.data(), m.tokens, m.config.q_heads, m.q_width(), positions,
                         pool);
            table->Apply(rotated.k.data(), m.tokens, shape.kv_heads, m.kv_width(), positions, pool);
            EXPECT_TRUE(Bits(fused) == Bits(Feed(rotated, m.tokens, isa, pool)))
                << IsaName(isa) << " rotary_dim=" << rotary_dim << " chunk=" << chunk
                << " interleaved=" << (pairing == RopeConfig::Pairing::kInterleaved);
          }
        }
      }
    }
  }
}

TEST_P(Attention, IsNearSoftmaxInDoubles) {
  ThreadPool pool(1);
  Model m = MakeModel(GetParam(), {1, {0, 0}, 64, 0, 300}, 40);
  const std::vector<float> out = Feed(m, 300, BestIsa(), pool);
  double error = 0, power = 0;
  for (int t : {0, 5, 100, 255, 256, 299}) {
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
        const double got = out[(t * 2 + h) * 64 + d];
        error += (got - expected) * (got - expected);
        power += expected * expected;
        if (GetParam() == KvType::kF32) {
          // Scores of magnitude 30 with 64 roundings, then some 300 roundings of sums.
          EXPECT_NEAR(got, expected, magnitude * (2 * 30 * 64 + 300) * 0x1p-24) << t << " " << d;
        }
      }
    }
  }
  // Scores have a deviation of 4, so that roundings of K change the weights by several times more.
  // Half as much again as was measured: 0.0006, 0.0036, 0.014, 0.036.
  const double relative = std::sqrt(error / power);
  switch (GetParam()) {
    case KvType::kF32:
      EXPECT_LT(relative, 1e-6);
      break;
    case KvType::kF16:
      EXPECT_LT(relative, 1e-3);
      break;
    case KvType::kBf16:
      EXPECT_LT(relative, 6e-3);
      break;
    case KvType::kInt8:
      EXPECT_LT(relative, 2.2e-2);
      break;
    case KvType::kFp8E4m3:
      EXPECT_LT(relative, 5.5e-2);
      break;
  }
}

// What is not finite reaches those who see it, and nobody else. With 8 bits all of them wholly:
// the token's scale is NaN.
TEST_P(Attention, NonFiniteKeysAndValuesReachOnlyTheirReaders) {
  ThreadPool pool(1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (Isa isa : kAllIsas) {
    if (!HasIsa(isa)) continue;
    for (float planted : {nan, infinity, -infinity}) {
      for (bool value : {false, true}) {
        // A weight of 0 does not hide it either.
        const bool all_elements = KvHasScales(GetParam()) || !value;
        if (!KvHasScales(GetParam()) && !std::isnan(planted) && !value) continue;
        Model m = MakeModel(GetParam(), {1, {0}, 32, 0, 30}, 60);
        (value ? m.v : m.k)[20 * 32 + 3] = planted;
        const std::vector<float> out = Feed(m, 30, isa, pool);
        for (int t = 0; t < 30; ++t) {
          for (int d = 0; d < 32; ++d) {
            EXPECT_EQ(!std::isfinite(out[t * 32 + d]), t >= 20 && (all_elements || d == 3))
                << IsaName(isa) << " " << planted << (value ? " in v" : " in k") << " t=" << t
                << " d=" << d;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Caches, Attention, testing::ValuesIn(kAllKvTypes),
                         [](const testing::TestParamInfo<KvType>& info) {
                           return std::string(KvTypeName(info.param));
                         });

TEST(AttentionBind, RefusesHeadsThatDoNotExist) {
  AttentionConfig config;
  config.layout = {.type = KvType::kBf16, .kv_heads = 1, .head_dim = 32};
  config.q_heads = 1;
  config.kv_head_of_q = {1};
  EXPECT_FALSE(BoundAttention::Bind(config, 1, BestIsa()).ok());
}

}  // namespace
}  // namespace bitshard
