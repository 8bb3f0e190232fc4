// The arrays of a step on the device: filled in one pinned buffer, sent with one copy.
//
// [token m | position m | row m | first block m | block tables | sampled and scored rows], all of
// 32 bits: for a given m the first five places are fixed, as graphs want it. Owned by the executor;
// filled only when the last step's copy has been passed.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/registry/device_kernels.h"
#include "kernels/tensor/device.h"
#include "worker/device/device_bind_context.h"
#include "worker/ops/op.h"

namespace bitshard {

class DeviceBatch {
 public:
  struct Limits {
    int64_t tokens = 0;   // of a step
    int64_t rows = 0;     // sequences
    int64_t outputs = 0;  // sampled
    int64_t context = 0;  // positions of a sequence
  };

  static absl::StatusOr<std::unique_ptr<DeviceBatch>> Create(const Limits& limits,
                                                             DeviceBindContext& bind);

  // The step's tokens, padded to m rows. REQUIRES: step.count() <= m <= limits.tokens.
  void Fill(const StepState& step, int64_t m);
  // m rows of padding, of which the first is sampled so many times. REQUIRES: m <= limits.tokens,
  // sampled <= limits.outputs.
  void FillPadding(int64_t m, int64_t sampled);
  absl::Status Send(Device& device, DeviceStream& stream) const;

  // Where the arrays lie, on the device.
  DeviceTokens Tokens(int64_t m) const;
  // Rows of the sampled tokens, on the device; behind them those of the scored ones. Of the last
  // Fill.
  const int32_t* sampled_rows() const { return device_ + index_at_; }
  // No position of the last Fill is at or beyond it.
  int64_t positions() const { return positions_; }

 private:
  DeviceBatch(DeviceBuffer host, int32_t* device) : host_(std::move(host)), device_(device) {}

  const DeviceBuffer host_;
  int32_t* const device_;
  int64_t index_at_ = 0, end_ = 0;  // in the arrays
  int64_t positions_ = 0;
};

}  // namespace bitshard
