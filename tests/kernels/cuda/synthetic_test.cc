// Synthetic weights on CUDA are the bytes of the host's, in the device's order.
#include "kernels/tensor/synthetic.h"

#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/cuda/linear_on_device.h"
#include "tests/kernels/synthetic_specs.h"

namespace bitshard {
namespace {

constexpr uint64_t kRowBegin = 31, kColBegin = 301;  // no tile, word, group or block begins there

class CudaSynthetic : public testing::Test {
 protected:
  void TearDown() override { ExpectNoFindings(); }
};

void ExpectHostsBytes(const PackedSpec& spec) {
  SCOPED_TRACE(spec.Describe());
  TestGpu& gpu = TestGpu::Get();
  const SyntheticSource source =
      SyntheticSourceOf(3, "model.layers.0.mlp.gate_proj.weight", spec, 4096, kRowBegin, kColBegin);
  PackedMatrixBuilder builder(spec);
  FillSyntheticRows(source, 0, spec.rows, builder);
  const PackedMatrix host = std::move(builder).Build();
  const auto layout = LayoutOnDevice(spec);
  ASSERT_TRUE(layout.ok()) << layout.status();
  std::vector<uint8_t> expected(layout->bytes);
  CopyInDeviceOrder(host, *layout, 0, layout->bytes, expected.data());

  // What lies between the parts is nobody's.
  const DeviceBuffer blob = gpu.Upload(std::vector<uint8_t>(layout->bytes, 0));
  const absl::Status made =
      gpu.kernels().MakeSynthetic(spec, *layout, source, blob.data(), gpu.stream());
  ASSERT_TRUE(made.ok()) << made;
  EXPECT_EQ(gpu.Download<uint8_t>(blob, layout->bytes), expected);
}

TEST_F(CudaSynthetic, EveryWidthAndScaleHasTheHostsBytes) {
  for (const PackedSpec& whole : SyntheticIntSpecs(128, 512))
    ExpectHostsBytes(SliceOf(whole, 37, 150, kRowBegin, kColBegin));
}

TEST_F(CudaSynthetic, WholeTilesHaveTheHostsBytes) {
  for (const PackedSpec& whole : SyntheticIntSpecs(48, 320)) {
    if (whole.bits == 4) ExpectHostsBytes(SliceOf(whole, 16, 64, kRowBegin, kColBegin));
  }
}

TEST_F(CudaSynthetic, DenseTypesHaveTheHostsBytes) {
  for (const auto type :
       {PackedSpec::Type::kF32, PackedSpec::Type::kF16, PackedSpec::Type::kBf16}) {
    ExpectHostsBytes({.rows = 37, .cols = 150, .type = type});
    ExpectHostsBytes({.rows = 32, .cols = 64, .type = type});  // whole tiles
  }
}

TEST_F(CudaSynthetic, NothingOfAMatrixIsNothing) {
  PackedSpec spec;
  spec.type = PackedSpec::Type::kBf16;
  spec.rows = 0;
  spec.cols = 64;
  ExpectHostsBytes(spec);
  for (const PackedSpec& whole : SyntheticIntSpecs(48, 320)) {
    if (whole.bits != 4) continue;
    ExpectHostsBytes(SliceOf(whole, 0, 64, kRowBegin, kColBegin));
    ExpectHostsBytes(SliceOf(whole, 16, 0, kRowBegin, kColBegin));
  }
}

TEST_F(CudaSynthetic, AScaleFactorThatLeavesNoNumbersIsRefused) {
  TestGpu& gpu = TestGpu::Get();
  PackedSpec spec;
  spec.rows = spec.cols = 64;
  spec.type = PackedSpec::Type::kInt;
  spec.bits = 4;
  spec.group_size = 32;
  spec.scale = ScaleKind::kE4m3;
  spec.scale_factor = 0;
  const auto layout = LayoutOnDevice(spec);
  ASSERT_TRUE(layout.ok()) << layout.status();
  const DeviceBuffer blob = gpu.Empty(layout->bytes);
  const absl::Status made =
      gpu.kernels().MakeSynthetic(spec, *layout, {}, blob.data(), gpu.stream());
  EXPECT_EQ(made.code(), absl::StatusCode::kInvalidArgument) << made;
}

}  // namespace
}  // namespace bitshard
