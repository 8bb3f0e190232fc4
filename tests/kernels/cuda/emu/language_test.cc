// Every word of the language layer and of kernels/cuda/ptx against its definition, in all orders of
// the threads. The definitions are written from CUDA's and PTX's manuals and share no code with the
// emulator.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/cuda/emu/language_kernels.h"
#include "tests/support/cuda_kernel_test.h"
#include "tests/support/toolkit_floats.h"

namespace bitshard {
namespace {

using emu::DeviceArray;
using emu::ExpectNoFindings;
using emu::UnderEachSchedule;

std::vector<uint32_t> RandomWords(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint32_t> words(count);
  for (uint32_t& word : words) word = random();
  return words;
}

class Language : public ::testing::Test {
 protected:
  void SetUp() override { emu::ResetFindings(); }
  void TearDown() override { ExpectNoFindings(); }
};

TEST_F(Language, ThreadsAndBlocksHaveTheirIds) {
  const dim3 grid(3, 2, 2), block(5, 3, 2);
  const size_t threads = 12 * 30;
  UnderEachSchedule([&](const std::string& schedule) {
    DeviceArray<uint32_t> out(threads);
    ASSERT_EQ(cuda::LaunchIds(out.get(), grid, block, nullptr), cudaSuccess);
    const std::vector<uint32_t> ids = out.Read();
    for (uint32_t i = 0; i < threads; ++i) {
      const uint32_t t = i % 30, b = i / 30;
      const uint32_t expected = (t % 5 + 16 * (t / 5 % 3) + 256 * (t / 15)) |
                                (b % 3 + 16 * (b / 3 % 2) + 256 * (b / 6)) << 12;
      ASSERT_EQ(ids[i], expected) << schedule << " thread " << i;
    }
  });
}

TEST_F(Language, WarpCollectives) {
  const std::vector<uint32_t> v = RandomWords(32, 1);
  UnderEachSchedule([&](const std::string& schedule) {
    DeviceArray<uint32_t> in(v), out(32 * cuda::kWarpResults);
    ASSERT_EQ(cuda::LaunchWarp(out.get(), in.get(), nullptr), cudaSuccess);
    const std::vector<uint32_t> got = out.Read();
    uint32_t ballot = 0, sum = 0, least = ~0u;
    int32_t most = INT32_MIN;
    for (int i = 0; i < 32; ++i) {
      ballot |= (v[i] & 1) << i;
      sum += v[i];
      least = std::min(least, v[i]);
      most = std::max(most, static_cast<int32_t>(v[i]));
    }
    for (int i = 0; i < 32; ++i) {
      const int in8 = i / 8 * 8, in16 = i / 16 * 16;
      EXPECT_EQ(got[i], v[in8 + 5]) << schedule << i;
      EXPECT_EQ(got[32 + i], v[in16 + (i % 16 ^ 9)]) << schedule << i;
      EXPECT_EQ(got[64 + i], i % 16 >= 3 ? v[i - 3] : v[i]) << schedule << i;
      EXPECT_EQ(got[96 + i], i % 8 + 3 < 8 ? v[i + 3] : v[i]) << schedule << i;
      EXPECT_EQ(got[128 + i], ballot);
      EXPECT_EQ(got[160 + i], sum);
      EXPECT_EQ(got[192 + i], least);
      EXPECT_EQ(got[224 + i], static_cast<uint32_t>(most));
      EXPECT_EQ(got[256 + i], 0u);
      EXPECT_EQ(got[288 + i], 1u);
    }
  });
}

TEST_F(Language, WarpSumIsTheTreeOfShuffles) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> v(32);
  for (float& x : v) x = normal(random) * std::exp2(static_cast<float>(random() % 20));
  DeviceArray<float> in(v), out(96);
  ASSERT_EQ(cuda::LaunchReductions(out.get(), in.get(), nullptr), cudaSuccess);
  const std::vector<float> got = out.Read();
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(got[32 + i]));
    EXPECT_EQ(got[64 + i], *std::max_element(v.begin(), v.end()));
  }
}

// One warp's product by the manual's table of fragments: where element (row, k) of a lives, and so
// on.
double Half(uint32_t word, int half, bool bf16) {
  const uint16_t bits = static_cast<uint16_t>(word >> (16 * half));
  return bf16 ? toolkit::Bf16ToFloat(bits) : toolkit::HalfToFloat(bits);
}

class MmaTest : public Language, public ::testing::WithParamInterface<bool> {};

TEST_P(MmaTest, OfHalvesAddsAllProductsAndRoundsOnce) {
  const bool bf16 = GetParam();
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const auto pair = [&] {
    uint32_t word = 0;
    for (int h = 0; h < 2; ++h) {
      const float x = normal(random);
      const uint16_t bits = bf16 ? toolkit::ToBf16(x) : toolkit::ToHalf(x);
      word |= uint32_t{bits} << (16 * h);
    }
    return word;
  };
  std::vector<uint32_t> a(128), b(64), c(128);
  for (uint32_t& w : a) w = pair();
  for (uint32_t& w : b) w = pair();
  for (uint32_t& w : c) w = std::bit_cast<uint32_t>(normal(random));
  UnderEachSchedule([&](const std::string& schedule) {
    DeviceArray<uint32_t> da(a), db(b), dc(c), dd(128);
    ASSERT_EQ(cuda::LaunchMma(bf16 ? cuda::MmaKind::kBf16 : cuda::MmaKind::kF16, dd.get(), da.get(),
                              db.get(), dc.get(), nullptr),
              cudaSuccess);
    const std::vector<uint32_t> d = dd.Read();
    for (int row = 0; row < 16; ++row) {
      for (int column = 0; column < 8; ++column) {
        const int lane_d = row % 8 * 4 + column / 2, i_d = row / 8 * 2 + column % 2;
        double sum = std::bit_cast<float>(c[4 * lane_d + i_d]);
        for (int k = 0; k < 16; ++k) {
          const int lane_a = row % 8 * 4 + k % 8 / 2, i_a = row / 8 + k / 8 * 2;
          const int lane_b = column * 4 + k % 8 / 2, i_b = k / 8;
          sum += Half(a[4 * lane_a + i_a], k % 2, bf16) * Half(b[2 * lane_b + i_b], k % 2, bf16);
        }
        EXPECT_EQ(std::bit_cast<float>(d[4 * lane_d + i_d]), static_cast<float>(sum))
            << schedule << " row " << row << " column " << column;
      }
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Types, MmaTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Bf16" : "F16"; });

TEST_F(Language, MmaOfBytesIsExactAndWraps) {
  const std::vector<uint32_t> a = RandomWords(128, 4), b = RandomWords(64, 5),
                              c = RandomWords(128, 6);
  DeviceArray<uint32_t> da(a), db(b), dc(c), dd(128);
  ASSERT_EQ(cuda::LaunchMma(cuda::MmaKind::kU8S8, dd.get(), da.get(), db.get(), dc.get(), nullptr),
            cudaSuccess);
  const std::vector<uint32_t> d = dd.Read();
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      const int lane_d = row % 8 * 4 + column / 2, i_d = row / 8 * 2 + column % 2;
      int64_t sum = static_cast<int32_t>(c[4 * lane_d + i_d]);
      for (int k = 0; k < 32; ++k) {
        const int lane_a = row % 8 * 4 + k % 16 / 4, i_a = row / 8 + k / 16 * 2;
        const int lane_b = column * 4 + k % 16 / 4, i_b = k / 16;
        sum += static_cast<uint8_t>(a[4 * lane_a + i_a] >> (8 * (k % 4))) *
               static_cast<int8_t>(b[2 * lane_b + i_b] >> (8 * (k % 4)));
      }
      EXPECT_EQ(d[4 * lane_d + i_d], static_cast<uint32_t>(sum)) << row << " " << column;
    }
  }
}

TEST_F(Language, LdMatrixGivesRowsAndColumns) {
  std::vector<uint4> rows(32);
  std::vector<uint16_t> halves(256);  // [matrix][row][column]
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i * 257 + 3);
  std::memcpy(rows.data(), halves.data(), 512);
  UnderEachSchedule([&](const std::string& schedule) {
    DeviceArray<uint4> in(rows);
    DeviceArray<uint32_t> out(256);
    ASSERT_EQ(cuda::LaunchLdMatrix(out.get(), in.get(), nullptr), cudaSuccess);
    const std::vector<uint32_t> got = out.Read();
    const auto at = [&](int matrix, int row, int column) {
      return uint32_t{halves[matrix * 64 + row * 8 + column]};
    };
    for (int lane = 0; lane < 32; ++lane) {
      const int outer = lane / 4, inner = lane % 4 * 2;
      for (int m = 0; m < 4; ++m) {
        EXPECT_EQ(got[32 * m + lane], at(m, outer, inner) | at(m, outer, inner + 1) << 16)
            << schedule;
        EXPECT_EQ(got[32 * (4 + m) + lane], at(m, inner, outer) | at(m, inner + 1, outer) << 16)
            << schedule;
      }
    }
  });
}

TEST_F(Language, AsyncCopiesFillWithZeros) {
  std::vector<uint4> in(32);
  std::mt19937 random(7);
  for (uint4& v : in) {
    v.x = random();
    v.y = random();
    v.z = random();
    v.w = random();
  }
  UnderEachSchedule([&](const std::string& schedule) {
    DeviceArray<uint4> from(in), to(32);
    ASSERT_EQ(cuda::LaunchCopy(to.get(), from.get(), nullptr), cudaSuccess);
    const std::vector<uint4> out = to.Read();
    for (int lane = 0; lane < 32; ++lane) {
      uint4 expected = {0, 0, 0, 0};
      std::memcpy(&expected, &in[lane], static_cast<size_t>(lane % 17));
      EXPECT_EQ(std::memcmp(&out[lane], &expected, 16), 0) << schedule << " lane " << lane;
    }
  });
}

uint16_t HalfOf(double value) {
  return std::isnan(value) ? uint16_t{0x7fff} : toolkit::ToHalf(value);
}

TEST_F(Language, PackedHalvesRoundOnce) {
  const int n = 20000;
  std::vector<uint32_t> a = RandomWords(n, 8), b = RandomWords(n, 9), c = RandomWords(n, 10);
  DeviceArray<uint32_t> da(a), db(b), dc(c), out(3 * n);
  ASSERT_EQ(cuda::LaunchHalves(out.get(), da.get(), db.get(), dc.get(), n, nullptr), cudaSuccess);
  const std::vector<uint32_t> got = out.Read();
  for (int i = 0; i < n; ++i) {
    for (int h = 0; h < 2; ++h) {
      const double x = Half(a[i], h, false), y = Half(b[i], h, false), z = Half(c[i], h, false);
      const auto half = [&](int which) {
        return static_cast<uint16_t>(got[which * n + i] >> (16 * h));
      };
      ASSERT_EQ(half(0), HalfOf(x - y)) << x << " - " << y;
      ASSERT_EQ(half(1), HalfOf(x * y)) << x << " * " << y;
      ASSERT_EQ(half(2), HalfOf(std::fma(x, y, z))) << x << " * " << y << " + " << z;
    }
  }
}

TEST_F(Language, StoresRoundAsTheToolkitDoes) {
  std::vector<float> v;
  for (const uint32_t bits : RandomWords(20000, 11)) v.push_back(std::bit_cast<float>(bits));
  for (const uint32_t bits : RandomWords(5000, 12))  // near the halves' range
    v.push_back(std::bit_cast<float>((bits & 0x8fffffffu) | 0x30000000u));
  for (const float x : {0.0f, -0.0f, 65519.0f, 65520.0f, 0x1p-25f, 0x1.8p-25f, INFINITY, NAN})
    v.push_back(x);
  const int n = static_cast<int>(v.size());
  DeviceArray<float> in(v);
  DeviceArray<uint16_t> half(v.size()), bf16(v.size());
  ASSERT_EQ(cuda::LaunchStores(half.get(), bf16.get(), in.get(), n, nullptr), cudaSuccess);
  const std::vector<uint16_t> h = half.Read(), b = bf16.Read();
  for (size_t i = 0; i < v.size(); ++i) {
    if (std::isnan(v[i])) {
      EXPECT_EQ(h[i], 0x7fff);
      EXPECT_EQ(b[i], 0x7fff);
      continue;
    }
    EXPECT_EQ(h[i], toolkit::ToHalf(v[i])) << v[i];
    EXPECT_EQ(b[i], toolkit::ToBf16(v[i])) << v[i];
  }
}

TEST_F(Language, E4m3DecodesAsTheToolkitDoes) {
  DeviceArray<uint32_t> out(65536);
  ASSERT_EQ(cuda::LaunchE4m3(out.get(), 65536, nullptr), cudaSuccess);
  const std::vector<uint32_t> got = out.Read();
  for (uint32_t i = 0; i < 65536; ++i) {
    for (int h = 0; h < 2; ++h) {
      const uint8_t code = static_cast<uint8_t>(i >> (8 * h));
      const double expected = toolkit::E4m3ToFloat(code);
      const double value = Half(got[i], h, false);
      ASSERT_TRUE(value == expected || (std::isnan(value) && std::isnan(expected))) << int{code};
    }
  }
}

TEST_F(Language, Atomics) {
  UnderEachSchedule([&](const std::string& schedule) {
    DeviceArray<uint32_t> counts(std::vector<uint32_t>{0, 0, 1000, 0, 0}), out(3);
    ASSERT_EQ(cuda::LaunchAtomics(counts.get(), out.get(), nullptr), cudaSuccess);
    EXPECT_EQ(counts.Read(), (std::vector<uint32_t>{768, 767, 0, 768 % 101, ~0u})) << schedule;
    EXPECT_EQ(out.Read(), std::vector<uint32_t>(3, 86)) << schedule;
  });
}

TEST_F(Language, Bits) {
  std::vector<uint32_t> a = RandomWords(64, 13), b = RandomWords(64, 14), c = RandomWords(64, 15);
  const uint32_t edges[] = {0,
                            1,
                            0x80000000u,
                            ~0u,
                            0x7fffffffu,
                            0x4f000000u /* 2^31 */,
                            0xcf000000u /* -2^31 */,
                            0x7fc00000u /* NaN */,
                            0x3f000000u /* 0.5 */,
                            0x3fc00000u /* 1.5 */,
                            0xbfc00000u /* -1.5 */,
                            0xff800000u};
  std::copy(std::begin(edges), std::end(edges), a.begin());
  DeviceArray<uint32_t> da(a), db(b), dc(c), out(64 * cuda::kBitResults);
  ASSERT_EQ(cuda::LaunchBits(out.get(), da.get(), db.get(), dc.get(), nullptr), cudaSuccess);
  const std::vector<uint32_t> got = out.Read();
  for (int t = 0; t < 64; ++t) {
    const uint32_t x = a[t], y = b[t], z = c[t];
    uint8_t bytes[8];
    std::memcpy(bytes, &x, 4);
    std::memcpy(bytes + 4, &y, 4);
    uint32_t perm = 0, reversed = 0;
    int32_t dp = 7;
    uint32_t udp = 7;
    for (int i = 0; i < 4; ++i) {
      const uint32_t choice = z >> (4 * i) & 15;
      const uint8_t byte = bytes[choice & 7];
      const uint8_t result = choice & 8 ? (byte & 128 ? 255 : 0) : byte;
      perm |= uint32_t{result} << (8 * i);
      dp += static_cast<int8_t>(bytes[i]) * static_cast<int8_t>(bytes[4 + i]);
      udp += uint32_t{bytes[i]} * bytes[4 + i];
    }
    for (int i = 0; i < 32; ++i) reversed |= (x >> i & 1) << (31 - i);
    const uint64_t both = uint64_t{y} << 32 | x;
    const float f = std::bit_cast<float>(x);
    const auto to_int = [](float rounded) -> int32_t {
      if (std::isnan(rounded)) return 0;
      if (rounded >= 0x1p31f) return INT32_MAX;
      return rounded < -0x1p31f ? INT32_MIN : static_cast<int32_t>(rounded);
    };
    const uint32_t expected[cuda::kBitResults] = {
        perm,
        static_cast<uint32_t>(dp),
        udp,
        static_cast<uint32_t>(std::popcount(x)),
        static_cast<uint32_t>(std::countl_zero(x)),
        x == 0 ? 0u : static_cast<uint32_t>(std::countr_zero(x) + 1),
        reversed,
        static_cast<uint32_t>(both << (z & 31) >> 32),
        static_cast<uint32_t>(both >> (z & 31)),
        static_cast<uint32_t>(uint64_t{x} * y >> 32),
        static_cast<uint32_t>(
            static_cast<uint64_t>(int64_t{static_cast<int32_t>(x)} * static_cast<int32_t>(y)) >>
            32),
        static_cast<uint32_t>(to_int(std::nearbyint(f))),
        static_cast<uint32_t>(to_int(std::trunc(f))),
    };
    for (int i = 0; i < cuda::kBitResults; ++i)
      EXPECT_EQ(got[64 * i + t], expected[i]) << "result " << i << " of " << std::hex << x;
  }
}

}  // namespace
}  // namespace bitshard
