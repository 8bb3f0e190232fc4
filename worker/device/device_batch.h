// The arrays of a step on the device: filled in a pinned buffer, sent with one copy. There are two
// such buffers, so that the next step's is filled while the device works on what it was sent.
//
// [token m | position m | row m | first block m | block tables | sampled and scored rows], all of
// 32 bits: for a given m the first five places are fixed, as graphs want it. Owned by the executor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

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

  // What Send will send: the step's tokens, padded to m rows. The Send before the last has been
  // passed. REQUIRES: step.count() <= m <= limits.tokens.
  void Fill(const StepState& step, int64_t m);
  // The tokens of the last Fill again: they were not all known.
  void FillTokens(const StepState& step);
  // m rows of padding, of which the first is sampled so many times. REQUIRES: m <= limits.tokens,
  // sampled <= limits.outputs.
  void FillPadding(int64_t m, int64_t sampled);
  absl::Status Send(Device& device, DeviceStream& stream);

  // Where the arrays lie, on the device.
  DeviceTokens Tokens(int64_t m) const;
  // Rows of the sampled tokens, on the device; behind them those of the scored ones. Of the last
  // Send.
  const int32_t* sampled_rows() const { return device_ + sides_[sent_].index_at; }
  // No position of the last Send is at or beyond it.
  int64_t positions() const { return sides_[sent_].positions; }

 private:
  struct Side {
    DeviceBuffer host;
    int64_t index_at = 0, end = 0;  // in the arrays
    int64_t positions = 0;
  };

  explicit DeviceBatch(int32_t* device) : device_(device) {}
  // What the device does not read.
  Side& Unsent() { return sides_[1 - sent_]; }

  int32_t* const device_;
  std::array<Side, 2> sides_;
  size_t sent_ = 0;
};

}  // namespace bitshard
