// Synthetic weights on CUDA are the bytes of the host's, in the device's order.
#include "kernels/tensor/synthetic.h"

#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/cuda/linear_on_device.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

constexpr uint64_t kRowBegin = 7, kColBegin = 45;  // no tile, word or group begins there

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
  for (const auto& [rows, cols] : std::vector<std::pair<uint64_t, uint64_t>>{{37, 150}, {16, 64}}) {
    for (int bits = 2; bits <= 8; ++bits) {
      for (const ScaleOffset offset : {ScaleOffset::kNone, ScaleOffset::kZero}) {
        for (const ScaleKind scale : {ScaleKind::kF16, ScaleKind::kBf16, ScaleKind::kF32}) {
          const bool by_row = bits == 5;
          PackedSpec spec;
          spec.rows = rows;
          spec.cols = cols;
          spec.type = PackedSpec::Type::kInt;
          spec.bits = bits;
          spec.zero_point = offset == ScaleOffset::kZero ? 0 : 1 << (bits - 1);
          spec.group_size = by_row ? 4096 : 32;
          spec.scale = scale;
          spec.offset = offset;
          spec.first_group_offset = by_row ? static_cast<int>(kColBegin) : kColBegin % 32;
          ExpectHostsBytes(spec);
        }
      }
    }
  }
}

TEST_F(CudaSynthetic, DenseTypesHaveTheHostsBytes) {
  for (const auto type :
       {PackedSpec::Type::kF32, PackedSpec::Type::kF16, PackedSpec::Type::kBf16}) {
    PackedSpec spec;
    spec.rows = 37;
    spec.cols = 150;
    spec.type = type;
    ExpectHostsBytes(spec);
  }
}

TEST_F(CudaSynthetic, NothingOfAMatrixIsNothing) {
  PackedSpec spec;
  spec.type = PackedSpec::Type::kBf16;
  spec.rows = 0;
  spec.cols = 64;
  ExpectHostsBytes(spec);
}

TEST_F(CudaSynthetic, OtherScalesAreRefused) {
  TestGpu& gpu = TestGpu::Get();
  PackedSpec spec;
  spec.rows = spec.cols = 64;
  spec.type = PackedSpec::Type::kInt;
  spec.bits = 4;
  spec.group_size = 32;
  spec.scale = ScaleKind::kE8m0;
  const auto layout = LayoutOnDevice(spec);
  ASSERT_TRUE(layout.ok()) << layout.status();
  const DeviceBuffer blob = gpu.Empty(layout->bytes);
  const absl::Status made =
      gpu.kernels().MakeSynthetic(spec, *layout, {}, blob.data(), gpu.stream());
  EXPECT_EQ(made.code(), absl::StatusCode::kUnimplemented) << made;
}

}  // namespace
}  // namespace bitshard
