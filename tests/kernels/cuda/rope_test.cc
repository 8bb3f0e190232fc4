// Angles and rotation on CUDA are those of RopeTable, bit by bit, at any position, and leave the
// rest alone.
#include "kernels/registry/rope.h"

#include <vector>

#include <gtest/gtest.h>

#include "kernels/registry/device_kernels.h"
#include "tests/kernels/cuda/rope_on_device.h"
#include "tests/kernels/cuda/rows_on_device.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

constexpr int64_t kMaxPositions = 200000;

struct Form {
  const char* name;
  RopeConfig config;
  int heads;
};

std::vector<Form> Forms() {
  using Pairing = RopeConfig::Pairing;
  const auto config = [](int head_dim, int rotary_dim, Pairing pairing) {
    RopeConfig c;
    c.head_dim = head_dim;
    c.rotary_dim = rotary_dim;
    c.pairing = pairing;
    c.max_positions = kMaxPositions;
    return c;
  };
  std::vector<Form> forms = {
      {"halves", config(64, 64, Pairing::kHalves), 3},
      {"interleaved", config(64, 64, Pairing::kInterleaved), 3},
      {"more heads than a block takes", config(32, 32, Pairing::kHalves), 9},
      {"a part of the head", config(80, 32, Pairing::kHalves), 2},
      {"a part of the head, interleaved", config(20, 6, Pairing::kInterleaved), 2},
      {"a head of odd width", config(63, 62, Pairing::kHalves), 5},
      {"more pairs than threads", config(600, 600, Pairing::kHalves), 1},
      {"llama3", config(64, 64, Pairing::kHalves), 1},
      {"yarn", config(64, 64, Pairing::kHalves), 1},
  };
  forms[7].config.theta = 500000;
  forms[7].config.scaling = RopeConfig::Llama3{8, 1, 4, 8192};
  RopeConfig::Yarn yarn;
  yarn.factor = 4;
  yarn.original_context = 32768;
  yarn.attention_factor = 1.1386294361119891;
  forms[8].config.scaling = yarn;
  return forms;
}

const std::vector<int32_t> kPositions = {0, 1, 255, 256, 257, -1, 4095, 131071, 199999};

TEST(CudaRope, AnglesAndRotationHaveTheBitsOfTheTable) {
  TestGpu& gpu = TestGpu::Get();
  const int64_t m = static_cast<int64_t>(kPositions.size());
  const DeviceBuffer positions = gpu.Upload(kPositions);
  DeviceTokens tokens;
  tokens.position = positions.as<int32_t>();
  uint32_t seed = 0;
  for (const Form& form : Forms()) {
    UploadedRope rope(form.config);
    const DeviceRope& angles = rope.Of(tokens, m);
    const size_t half = static_cast<size_t>(form.config.rotary_dim) / 2;
    for (size_t row = 0; row < kPositions.size(); ++row) {
      if (kPositions[row] < 0) continue;  // nothing is written for padding
      std::vector<float> cos(half), sin(half);
      rope.table().CosSin(kPositions[row], cos.data(), sin.data());
      const auto got = DownloadFrom(angles.cos_sin + row * 2 * half, 2 * half);
      for (size_t i = 0; i < half; ++i) {
        ASSERT_TRUE(SameBits(got[2 * i], cos[i])) << form.name << " " << row << " " << i;
        ASSERT_TRUE(SameBits(got[2 * i + 1], sin[i])) << form.name << " " << row << " " << i;
      }
    }

    const int head_dim = form.config.head_dim;
    const int64_t stride = int64_t{form.heads} * head_dim + 5;
    const std::vector<float> x = RandomFloats(m * stride, ++seed);
    std::vector<float> want = x;
    rope.Apply(want, form.heads, stride, kPositions);
    const DeviceBuffer there = gpu.Upload(x);
    CHECK_OK(gpu.kernels().Rotate(there.as<float>(), stride, form.heads, head_dim, angles, tokens,
                                  m, gpu.stream()));
    EXPECT_TRUE(SameFloats(gpu.Download<float>(there, x.size()), want)) << form.name;
  }
  ExpectNoFindings();
}

TEST(CudaRope, RefusesWhatDoesNotFit) {
  TestGpu& gpu = TestGpu::Get();
  DeviceAttention attention;
  attention.layout = {.type = KvType::kBf16, .kv_heads = 1, .head_dim = 64};
  attention.q_heads = 1;
  for (const int rotary_dim : {-2, 7, 66, 2048}) {
    DeviceRope rope;
    rope.rotary_dim = rotary_dim;
    EXPECT_EQ(gpu.kernels().Rotate(nullptr, 64, 1, 64, rope, {}, 1, gpu.stream()).code(),
              absl::StatusCode::kInvalidArgument)
        << rotary_dim;
    EXPECT_EQ(gpu.kernels().Append(attention, {.rope = &rope}, {}, 1, gpu.stream()).code(),
              absl::StatusCode::kInvalidArgument)
        << rotary_dim;
  }
  DeviceRope odd;
  odd.rotary_dim = 7;
  EXPECT_EQ(gpu.kernels().Angles(odd, {}, 1, gpu.stream()).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace bitshard
