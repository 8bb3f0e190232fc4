// Embedding rows on CUDA are the exact values of the packed matrix.
#include <bit>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/registry/device_kernels.h"
#include "tests/kernels/cuda/linear_on_device.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

class CudaGather : public testing::Test {
 protected:
  void TearDown() override { ExpectNoFindings(); }
};

void ExpectRows(const PackedSpec& spec, uint32_t seed, const std::string& name) {
  TestGpu& gpu = TestGpu::Get();
  const PackedMatrix w = RandomMatrix(spec, seed);
  const UploadedMatrix uploaded(w);
  const int64_t rows = w.rows(), cols = w.cols(), first = 1000;
  // Rows before and after this rank's, a row twice, tokens that no vocabulary has.
  const std::vector<int32_t> tokens = {static_cast<int32_t>(first),
                                       static_cast<int32_t>(first + rows - 1),
                                       static_cast<int32_t>(first - 1),
                                       static_cast<int32_t>(first + rows),
                                       static_cast<int32_t>(first),
                                       0,
                                       -1,
                                       std::numeric_limits<int32_t>::max()};
  const auto m = static_cast<int64_t>(tokens.size());
  const DeviceBuffer on_device = gpu.Upload(tokens);
  const DeviceBuffer out = gpu.Empty(m * cols * 8);
  ASSERT_TRUE(gpu.kernels()
                  .Gather(uploaded.get(), first, on_device.as<int32_t>(), m, out.as<int64_t>(),
                          gpu.stream())
                  .ok());
  const std::vector<int64_t> got = gpu.Download<int64_t>(out, m * cols);
  for (int64_t i = 0; i < m; ++i) {
    std::vector<float> expected(cols, 0.0f);
    const int64_t row = tokens[i] - first;
    if (row >= 0 && row < rows) w.RowToF32(row, expected.data());
    for (int64_t k = 0; k < cols; ++k) {
      ASSERT_EQ(got[i * cols + k], int64_t{std::bit_cast<uint32_t>(expected[k])})
          << name << " token " << tokens[i] << " column " << k;
    }
  }
}

TEST_F(CudaGather, EverySpecOfTheTableComesOutExactly) {
  for (const auto& [rows, cols] :
       std::vector<std::pair<uint64_t, uint64_t>>{{37, 150}, {16, 336}}) {
    for (const NamedSpec& named : AllSpecs(rows, cols))
      ExpectRows(named.spec, static_cast<uint32_t>(cols), named.name);
  }
}

TEST_F(CudaGather, EveryKindWithEveryOffsetAndWidthComesOutExactly) {
  for (int kind = 0; kind <= static_cast<int>(ScaleKind::kSuperU4Min); ++kind) {
    const auto scale = static_cast<ScaleKind>(kind);
    for (int bits = 2; bits <= 8; ++bits) {
      for (const ScaleOffset offset : {ScaleOffset::kNone, ScaleOffset::kMin, ScaleOffset::kZero}) {
        if (IsSuper(scale) && offset != ScaleOffset::kNone) continue;
        const PackedSpec spec = IntSpec(20, 75,
                                        {.bits = bits,
                                         .group_size = 8,
                                         .scale = scale,
                                         .offset = offset,
                                         .first_group_offset = 5});
        ExpectRows(spec, static_cast<uint32_t>(kind), spec.Describe());
      }
    }
  }
}

TEST_F(CudaGather, NoTokensAndNoRowsAreNothing) {
  TestGpu& gpu = TestGpu::Get();
  const UploadedMatrix empty(RandomMatrix(Q4Spec(0, 64), 1));
  const DeviceBuffer tokens = gpu.Upload(std::vector<int32_t>{5});
  const DeviceBuffer out = gpu.Empty(64 * 8);
  EXPECT_TRUE(gpu.kernels()
                  .Gather(empty.get(), 0, tokens.as<int32_t>(), 0, out.as<int64_t>(), gpu.stream())
                  .ok());
  EXPECT_TRUE(gpu.kernels()
                  .Gather(empty.get(), 0, tokens.as<int32_t>(), 1, out.as<int64_t>(), gpu.stream())
                  .ok());
  EXPECT_EQ(gpu.Download<int64_t>(out, 64), std::vector<int64_t>(64, 0));
  EXPECT_EQ(gpu.kernels()
                .Gather(empty.get(), 0, tokens.as<int32_t>(), int64_t{1} << 20, out.as<int64_t>(),
                        gpu.stream())
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace bitshard
