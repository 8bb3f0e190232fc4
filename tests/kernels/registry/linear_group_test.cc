// Matrices run as a group give the bits of the same matrices run one by one, on any number of
// threads, and in units every output is announced once, by the thread that made it.
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/registry/linear.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

constexpr uint64_t kCols = 192;

struct Matrices {
  std::vector<PackedMatrix> weights;
  std::vector<BoundLinear> bound;
  std::vector<std::vector<float>> bias;

  explicit Matrices(const std::vector<PackedSpec>& specs) {
    for (const PackedSpec& spec : specs) {
      weights.push_back(RandomMatrix(spec, static_cast<uint32_t>(weights.size()) + 1));
      bias.push_back(RandomFloats(spec.rows, static_cast<uint32_t>(weights.size()) + 50));
    }
    for (const PackedMatrix& w : weights)
      bound.push_back(*BoundLinear::Bind(w, ActivationMode::kA16, 0, 1, BestIsa()));
  }
};

PreparedActivations PreparedRows(int64_t m, ThreadPool& pool) {
  const std::vector<float> x = RandomFloats(m * kCols, 7);
  PreparedActivations prepared;
  prepared.Reserve(m, kCols, 0);
  prepared.Prepare(x.data(), m, kCols, kCols, 0, kFormF32 | kFormA16, BestIsa(), pool);
  return prepared;
}

TEST(LinearGroup, GivesTheBitsOfItsMembersAlone) {
  // Different widths, rows that end inside a tile, and one that runs in f32.
  const Matrices m({Q4Spec(100, kCols, 0),
                    Q8Spec(17, kCols, 0),
                    Q4Spec(16, kCols, 0),
                    {.rows = 33, .cols = kCols, .type = PackedSpec::Type::kBf16}});
  for (int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    for (int64_t rows : {1, 5, 40}) {
      const PreparedActivations x = PreparedRows(rows, pool);
      std::vector<std::vector<float>> expected, got;
      std::vector<LinearGroup::Member> members;
      for (size_t i = 0; i < m.bound.size(); ++i) {
        const int64_t n = m.weights[i].rows();
        expected.emplace_back(rows * n);
        got.emplace_back(rows * (n + 3), -1.0f);
        m.bound[i].Run(x, expected[i].data(), n, pool);
      }
      for (size_t i = 0; i < m.bound.size(); ++i) {
        members.push_back({.linear = &m.bound[i],
                           .y = got[i].data(),
                           .stride = m.weights[i].rows() + 3,
                           .bias = i == 1 ? m.bias[i].data() : nullptr});
      }
      LinearGroup(members).Run(x, pool);
      for (size_t i = 0; i < m.bound.size(); ++i) {
        const int64_t n = m.weights[i].rows();
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < n; ++c) {
            const float e = expected[i][r * n + c] + (i == 1 ? m.bias[i][c] : 0.0f);
            ASSERT_EQ(got[i][r * (n + 3) + c], e) << i << " row " << r << " output " << c;
          }
          for (int64_t c = n; c < n + 3; ++c) ASSERT_EQ(got[i][r * (n + 3) + c], -1.0f);
        }
      }
    }
  }
}

TEST(LinearGroup, AnnouncesEveryUnitOnceWhenItIsThere) {
  const Matrices m({Q4Spec(200, kCols, 0), Q8Spec(200, kCols, 0)});
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    for (int64_t unit : {16, 64, 256}) {
      for (int64_t rows : {1, 300}) {
        const PreparedActivations x = PreparedRows(rows, pool);
        std::vector<float> expected[2], got[2];
        std::vector<LinearGroup::Member> members;
        for (int i = 0; i < 2; ++i) {
          expected[i].resize(rows * 200);
          got[i].resize(rows * 200, -1.0f);
          m.bound[i].Run(x, expected[i].data(), 200, pool);
          members.push_back({&m.bound[i], got[i].data(), 200, nullptr});
        }
        std::vector<std::atomic<int>> announced(200);
        std::atomic<int> wrong{0};
        LinearGroup(members).RunInUnits(
            x, unit,
            [&](int64_t begin, int64_t end) {
              if (begin % unit != 0 || (end % unit != 0 && end != 200)) ++wrong;
              for (int64_t c = begin; c < end; ++c) {
                announced[c].fetch_add(1);
                for (int i = 0; i < 2; ++i) {
                  if (got[i][(rows - 1) * 200 + c] != expected[i][(rows - 1) * 200 + c]) ++wrong;
                }
              }
            },
            pool);
        EXPECT_EQ(wrong.load(), 0) << "threads=" << threads << " unit=" << unit;
        for (const auto& count : announced) ASSERT_EQ(count.load(), 1);
        for (int i = 0; i < 2; ++i) EXPECT_EQ(got[i], expected[i]);
      }
    }
  }
}

}  // namespace
}  // namespace bitshard
