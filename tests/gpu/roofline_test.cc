#include "tests/gpu/roofline.h"

#include <memory>

#include "gtest/gtest.h"

#include "kernels/cuda/emu/findings.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

constexpr RooflineSize kSmall = {.rotate_bytes = 1 << 14, .copy_bytes = 1 << 12, .repetitions = 2};

// The times are the emulator's and mean nothing; that every call is right is what is tested.
TEST(Roofline, RunsOnAnyDeviceAndCountsTheFormulasBytes) {
  absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice("cuda", 0);
  ASSERT_TRUE(device.ok()) << device.status();
  const absl::StatusOr<double> rate = MeasureCopyRate(**device, kSmall);
  ASSERT_TRUE(rate.ok()) << rate.status();
  EXPECT_GT(*rate, 0);

  const absl::StatusOr<RooflineLine> linear =
      MeasureLinear(**device, IntSpec(32, 256, {5, 128}), 2, *rate, kSmall);
  ASSERT_TRUE(linear.ok()) << linear.status();
  // 5 bits and 2 groups of f16 a row; 2 rows of fp16 in, of f32 out.
  EXPECT_EQ(linear->bytes, 32 * 256 * 5 / 8 + 2 * 2 * 32 + 2 * 2 * 256 + 4 * 2 * 32);
  EXPECT_GT(linear->seconds, 0);
  EXPECT_DOUBLE_EQ(linear->share, static_cast<double>(linear->bytes) / linear->seconds / *rate);
  EXPECT_NE(RooflineText(*linear).find("32x256 m=2\t"), std::string::npos) << RooflineText(*linear);

  const KvLayout layout{.type = KvType::kInt8, .kv_heads = 2, .head_dim = 64};
  const absl::StatusOr<RooflineLine> attention =
      MeasureAttention(**device, layout, 4, 3, 40, *rate, kSmall);
  ASSERT_TRUE(attention.ok()) << attention.status();
  EXPECT_EQ(attention->bytes, uint64_t(3 * 3 * layout.block_bytes()));
  EXPECT_EQ(emu::Errors(), 0u) << emu::FindingsText();
}

TEST(Roofline, RefusesWhatRepeatedTilesCannotBe) {
  absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice("cuda", 0);
  ASSERT_TRUE(device.ok()) << device.status();
  const absl::StatusOr<RooflineLine> line =
      MeasureLinear(**device, IntSpec(40, 256, {5, 128}), 1, 1, kSmall);
  EXPECT_EQ(line.status().code(), absl::StatusCode::kInvalidArgument) << line.status();
}

}  // namespace
}  // namespace bitshard
