// A rotation on the CPU and on the device, for the tests of kernels that rotate.
#pragma once

#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/base/check.h"
#include "kernels/base/thread_pool.h"
#include "kernels/registry/device_kernels.h"
#include "kernels/registry/rope.h"
#include "tests/kernels/cuda/linear_on_device.h"

namespace bitshard {

class UploadedRope {
 public:
  explicit UploadedRope(const RopeConfig& config) : config_(config) {
    absl::StatusOr<RopeTable> table = RopeTable::Create(config);
    CHECK_OK(table.status());
    table_ = *std::move(table);
    inv_freq_ = TestGpu::Get().Upload(table_.inv_freq());
    rope_.inv_freq = inv_freq_.as<double>();
    if (const auto* yarn = std::get_if<RopeConfig::Yarn>(&config.scaling))
      rope_.attention_factor = yarn->attention_factor;
    rope_.rotary_dim = config.rotary_dim;
    rope_.pairing = config.pairing;
  }

  const RopeConfig& config() const { return config_; }
  const RopeTable& table() const { return table_; }

  // With the angles of these tokens; of those before no more.
  const DeviceRope& Of(const DeviceTokens& tokens, int64_t m) {
    TestGpu& gpu = TestGpu::Get();
    gpu.Sync();
    cos_sin_ = gpu.Empty(static_cast<size_t>(m * config_.rotary_dim) * sizeof(float));
    rope_.cos_sin = cos_sin_.as<float>();
    CHECK_OK(gpu.kernels().Angles(rope_, tokens, m, gpu.stream()));
    return rope_;
  }

  // The CPU's: rows of heads, row r at x + r * stride. Padding rows stay as they are.
  void Apply(std::vector<float>& x, int heads, int64_t stride,
             const std::vector<int32_t>& positions) const {
    ThreadPool pool(1);
    for (size_t row = 0; row < positions.size(); ++row) {
      if (positions[row] < 0) continue;
      table_.Apply(x.data() + static_cast<int64_t>(row) * stride, 1, heads, stride,
                   {&positions[row], 1}, pool);
    }
  }

 private:
  const RopeConfig config_;
  RopeTable table_;
  DeviceBuffer inv_freq_, cos_sin_;
  DeviceRope rope_;
};

}  // namespace bitshard
