#include "tests/gpu/roofline.h"

#include <algorithm>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/emu/findings.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

using ::testing::HasSubstr;

constexpr RooflineSize kSmall = {.rotate_bytes = 1 << 14, .repetitions = 2};

Ceilings SomeCeilings() {
  Ceilings ceilings;
  ceilings.copy_bytes_per_s = 4e12;
  ceilings.mma_sync_flops_per_s = 6e14;
  return ceilings;
}

// The times are the emulator's and mean nothing; that every call is right is what is tested.
TEST(Roofline, RunsOnAnyDeviceAndCountsTheFormulasBytes) {
  absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice("cuda", 0);
  ASSERT_TRUE(device.ok()) << device.status();
  const Ceilings ceilings = SomeCeilings();
  const absl::StatusOr<std::vector<RooflineLine>> linear =
      MeasureLinear(**device, {.spec = IntSpec(32, 256, {5, 128})}, {2, 1}, ceilings, kSmall);
  ASSERT_TRUE(linear.ok()) << linear.status();
  ASSERT_EQ(linear->size(), 2u);
  const RooflineLine& line = (*linear)[0];
  // 5 bits and 2 groups of f16 a row; 2 rows of fp16 in, of f32 out.
  EXPECT_EQ(line.bytes, 32 * 256 * 5 / 8 + 2 * 2 * 32 + 2 * 2 * 256 + 4 * 2 * 32);
  EXPECT_EQ(line.flops, 2.0 * 2 * 32 * 256);
  EXPECT_GT(line.seconds, 0);
  EXPECT_GT(line.again, 0);
  EXPECT_TRUE(line.by_copies);
  EXPECT_DOUBLE_EQ(line.share,
                   static_cast<double>(line.bytes) / ceilings.copy_bytes_per_s / line.seconds);
  EXPECT_EQ(line.bar, 0);
  EXPECT_THAT(RooflineText(line), HasSubstr("32x256 m=2\t"));
  EXPECT_THAT((*linear)[1].what, HasSubstr("m=1"));
  const std::string head = RooflineHead(), text = RooflineText(line);
  EXPECT_EQ(std::count(head.begin(), head.end(), '\t'), std::count(text.begin(), text.end(), '\t'));

  const KvLayout layout{.type = KvType::kInt8, .kv_heads = 2, .head_dim = 64};
  const absl::StatusOr<RooflineLine> attention = MeasureAttention(
      **device, {.layout = layout, .q_heads = 4, .sequences = 3, .context = 40}, ceilings, kSmall);
  ASSERT_TRUE(attention.ok()) << attention.status();
  EXPECT_EQ(attention->bytes, uint64_t(3 * 3 * layout.block_bytes()));
  EXPECT_EQ(attention->flops, 4.0 * 3 * 4 * 64 * 40);

  // Each of 70 tokens sees those before it and itself.
  const AttentionRoofline prompt{
      .layout = layout, .q_heads = 4, .context = 70, .tokens = 70, .deterministic = false};
  const absl::StatusOr<RooflineLine> prefill = MeasureAttention(**device, prompt, ceilings, kSmall);
  ASSERT_TRUE(prefill.ok()) << prefill.status();
  EXPECT_EQ(prefill->bytes, uint64_t(5 * layout.block_bytes() + 2 * 70 * 4 * 64 * 4));
  EXPECT_EQ(prefill->flops, 4.0 * 4 * 64 * (70 * 71 / 2));
  EXPECT_THAT(prefill->what, HasSubstr("the last 70 tokens any order"));
  EXPECT_EQ(emu::Errors(), 0u) << emu::FindingsText();
}

// The product's rate bounds what multiplies much of what it reads.
TEST(Roofline, ManyTokensAreHeldToTheMatrixRate) {
  absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice("cuda", 0);
  ASSERT_TRUE(device.ok()) << device.status();
  Ceilings ceilings = SomeCeilings();
  ceilings.mma_sync_flops_per_s = 1e9;
  const absl::StatusOr<std::vector<RooflineLine>> lines =
      MeasureLinear(**device, {.spec = Q4Spec(16, 128)}, {3}, ceilings, kSmall);
  ASSERT_TRUE(lines.ok()) << lines.status();
  EXPECT_FALSE((*lines)[0].by_copies);
  EXPECT_DOUBLE_EQ((*lines)[0].share, 2.0 * 3 * 16 * 128 / 1e9 / (*lines)[0].seconds);
}

// Every form that roofline_main measures, its segments, and the kernels that keep no order.
TEST(Roofline, ServesEveryFormOfWeights) {
  absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice("cuda", 0);
  ASSERT_TRUE(device.ok()) << device.status();
  const PackedSpec w4 = IntSpec(48, 256, {4, 128});
  const LinearRoofline all[] = {
      {.spec = w4, .segment_cols = 64},
      {.spec = w4, .deterministic = false},
      {.spec = {.rows = 24, .cols = 128, .type = PackedSpec::Type::kBf16}},
      {.spec = IntSpec(24, 256, {4, 64, ScaleKind::kNested})},
      {.spec = IntSpec(24, 256, {4, 32, ScaleKind::kSuperU8Min})},
      {.spec = IntSpec(24, 256, {6, 16, ScaleKind::kSuperS8})},
      {.spec = IntSpec(24, 256, {4, 16, ScaleKind::kE4m3})}};
  for (const LinearRoofline& of : all) {
    const absl::StatusOr<std::vector<RooflineLine>> lines =
        MeasureLinear(**device, of, {of.deterministic ? 1 : 256}, SomeCeilings(), kSmall);
    ASSERT_TRUE(lines.ok()) << of.spec.Describe() << ": " << lines.status();
    EXPECT_GT((*lines)[0].share, 0);
    EXPECT_EQ((*lines)[0].bar, 0);
  }
  EXPECT_EQ(emu::Errors(), 0u) << emu::FindingsText();
}

TEST(Roofline, CountsWhatLiesBetweenMatrices) {
  absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice("cuda", 0);
  ASSERT_TRUE(device.ok()) << device.status();
  const auto line_of = [](const absl::StatusOr<RooflineLine>& line) {
    EXPECT_TRUE(line.ok()) << line.status();
    EXPECT_GT(line->share, 0);
    return *line;
  };
  const RooflineLine norm = line_of(MeasureSumNorm(**device, 3, 128, SomeCeilings(), kSmall));
  EXPECT_EQ(norm.bytes, 3u * (128 * 18 + 8 * 4 + 12));
  EXPECT_EQ(norm.what, "sum and norm 3x128");
  const KvLayout layout{.type = KvType::kBf16, .kv_heads = 2, .head_dim = 64};
  const RooflineLine append =
      line_of(MeasureAppend(**device, layout, 6, 20, SomeCeilings(), kSmall));
  EXPECT_EQ(append.bytes,
            uint64_t(20 * (2 * 128 + 64 + 2 * 6 * 64) * 4 + 2 * layout.block_bytes()));
  EXPECT_EQ(append.what, "rotate and append bf16 6/2 heads of 64, 20 tokens");
  const RooflineLine scan = line_of(MeasureScan(**device, 2, 1000, SomeCeilings(), kSmall));
  EXPECT_EQ(scan.bytes, 2u * 1000 * 4);
  EXPECT_TRUE(scan.by_copies);
  EXPECT_EQ(MeasureSumNorm(**device, 3, 100, SomeCeilings(), kSmall).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(emu::Errors(), 0u) << emu::FindingsText();
}

TEST(Roofline, TheVerdictCountsLinesBelowTheirBar) {
  const std::vector<RooflineLine> lines = {{.what = "good", .share = 0.8, .bar = 0.75},
                                           {.what = "bad", .share = 0.5, .bar = 0.7},
                                           {.what = "free", .share = 0.1, .bar = 0}};
  const RooflineVerdict verdict = JudgeRoofline(lines);
  EXPECT_EQ(verdict.below, 1);
  EXPECT_EQ(verdict.text, "3 lines, 1 of 2 with a bar are below it; the worst, 0.500: bad");
  EXPECT_EQ(JudgeRoofline({}).text, "0 lines, 0 of 0 with a bar are below it");
  EXPECT_THAT(RooflineText(lines[1]), HasSubstr("0.70 BELOW"));
}

}  // namespace
}  // namespace bitshard
