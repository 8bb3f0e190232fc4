// Rotation on CUDA gives the bits of RopeTable, at any position, and leaves the rest alone.
#include "kernels/registry/rope.h"

#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/base/thread_pool.h"
#include "kernels/registry/device_kernels.h"
#include "tests/kernels/cuda/linear_on_device.h"
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
      {"more pairs than threads", config(600, 600, Pairing::kHalves), 1},
      {"llama3", config(64, 64, Pairing::kHalves), 1},
      {"yarn", config(64, 64, Pairing::kHalves), 1},
  };
  forms[6].config.theta = 500000;
  forms[6].config.scaling = RopeConfig::Llama3{8, 1, 4, 8192};
  RopeConfig::Yarn yarn;
  yarn.factor = 4;
  yarn.original_context = 32768;
  yarn.attention_factor = 1.1386294361119891;
  forms[7].config.scaling = yarn;
  return forms;
}

TEST(CudaRope, GivesTheBitsOfTheTable) {
  TestGpu& gpu = TestGpu::Get();
  ThreadPool pool(1);
  const std::vector<int32_t> positions = {0, 1, 255, 256, 257, -1, 4095, 131071, 199999};
  const int64_t m = static_cast<int64_t>(positions.size());
  uint32_t seed = 0;
  for (const Form& form : Forms()) {
    const RopeConfig& config = form.config;
    const auto table = RopeTable::Create(config);
    ASSERT_TRUE(table.ok()) << table.status();
    const int64_t stride = int64_t{form.heads} * config.head_dim + 5;
    const std::vector<float> x = RandomFloats(m * stride, ++seed);
    std::vector<float> want = x;
    for (int64_t row = 0; row < m; ++row) {
      if (positions[row] < 0) continue;  // padding stays as it is
      table->Apply(want.data() + row * stride, 1, form.heads, stride, {&positions[row], 1}, pool);
    }
    const DeviceBuffer on_device = gpu.Upload(x), on_positions = gpu.Upload(positions);
    const DeviceBuffer inv_freq = gpu.Upload(table->inv_freq());
    DeviceRope rope;
    rope.inv_freq = inv_freq.as<double>();
    if (const auto* yarn = std::get_if<RopeConfig::Yarn>(&config.scaling))
      rope.attention_factor = yarn->attention_factor;
    rope.rotary_dim = config.rotary_dim;
    rope.pairing = config.pairing;
    DeviceTokens tokens;
    tokens.position = on_positions.as<int32_t>();
    CHECK_OK(gpu.kernels().Rotate(on_device.as<float>(), stride, form.heads, config.head_dim, rope,
                                  tokens, m, gpu.stream()));
    const std::vector<float> got = gpu.Download<float>(on_device, x.size());
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_TRUE(SameBits(got[i], want[i])) << form.name << " " << i;
  }
  ExpectNoFindings();
}

TEST(CudaRope, RefusesWhatDoesNotFit) {
  TestGpu& gpu = TestGpu::Get();
  for (const int rotary_dim : {7, 66, 2048}) {
    DeviceRope rope;
    rope.rotary_dim = rotary_dim;
    EXPECT_EQ(gpu.kernels().Rotate(nullptr, 64, 1, 64, rope, {}, 1, gpu.stream()).code(),
              absl::StatusCode::kInvalidArgument)
        << rotary_dim;
  }
}

}  // namespace
}  // namespace bitshard
