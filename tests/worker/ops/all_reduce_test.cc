// A token's row after the collective: sums with bias and residual, poison, raw bits.
#include "worker/ops/all_reduce.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace bitshard {
namespace {

constexpr int64_t kOne = int64_t{1} << 32;

// Two tokens of two values, every ISA; `poison` stands behind the sums as after the collective.
class AllReduceRow : public testing::Test {
 protected:
  std::vector<float> Row(AllReducePart part, int64_t row, const float* residual, Isa isa) {
    StepState step;
    const std::vector<int32_t> tokens = {5, 6};
    step.tokens = tokens;
    part.in = in_.data();
    part.width = 2;
    std::vector<float> out(2, -1.0f);
    part.Row(step, row, residual, ChooseRowKernels(isa), out.data());
    return out;
  }

  std::vector<int64_t> in_ = {kOne, 2 * kOne, 3 * kOne, 4 * kOne, /*poison=*/0, 17};
};

TEST_F(AllReduceRow, IsSumsAndBiasAndResidual) {
  const std::vector<float> bias = {0.5f, -0.5f}, residual = {8.0f, 16.0f};
  AllReducePart with_bias;
  with_bias.bias = bias.data();
  for (Isa isa : kAllIsas) {
    if (!HasIsa(isa)) continue;
    EXPECT_EQ(Row({}, 0, nullptr, isa), (std::vector<float>{1.0f, 2.0f})) << IsaName(isa);
    EXPECT_EQ(Row(with_bias, 0, nullptr, isa), (std::vector<float>{1.5f, 1.5f})) << IsaName(isa);
    EXPECT_EQ(Row(with_bias, 0, residual.data(), isa), (std::vector<float>{9.5f, 17.5f}))
        << IsaName(isa);
  }
}

TEST_F(AllReduceRow, OfAPoisonedTokenIsNan) {
  const std::vector<float> residual = {8.0f, 16.0f};
  for (const float* r : {static_cast<const float*>(nullptr), residual.data()}) {
    for (float value : Row({}, 1, r, Isa::kScalar)) EXPECT_TRUE(std::isnan(value)) << value;
  }
}

TEST_F(AllReduceRow, OfRawBitsIsTheFloatWithThoseBits) {
  AllReducePart part;
  part.raw_bits = true;
  const std::vector<float> values = {-0.0f, 1e-40f, std::numeric_limits<float>::infinity(), 1.5f};
  for (size_t i = 0; i < values.size(); ++i) in_[i] = int64_t{std::bit_cast<uint32_t>(values[i])};
  for (int64_t row : {0, 1}) {
    const std::vector<float> out = Row(part, row, nullptr, Isa::kScalar);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(std::bit_cast<uint32_t>(out[i]),
                std::bit_cast<uint32_t>(values[static_cast<size_t>(row) * 2 + i]));
    }
  }
}

}  // namespace
}  // namespace bitshard
