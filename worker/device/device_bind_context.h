// What ops of a device may ask for while the graph is bound: values as memory of the device,
// weights, prepared activations, tables and scratch.
//
// Made by MakeDeviceExecutor and used by the step thread; lives as long as the ops. Groups are
// bound in graph order. All memory is the device's but where a name says host.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "kernels/registry/device_kernels.h"
#include "kernels/registry/rope.h"
#include "kernels/tensor/device.h"
#include "kernels/tensor/device_matrix.h"
#include "kernels/tensor/kv_layout.h"
#include "proto/graph.pb.h"
#include "worker/device/device_weights.h"
#include "worker/device/prepared_plan.h"
#include "worker/load/loader.h"
#include "worker/ops/graph_values.h"

namespace bitshard {

class DeviceBindContext : public GraphValues {
 public:
  struct Options {
    Device* device = nullptr;  // outlives the context
    KvType cache_type = KvType::kBf16;
    ActivationMode activations = ActivationMode::kA16;  // kA8, or fp16
    int64_t max_step_tokens = 0;
    int64_t max_outputs = 0;  // sampled tokens in a step
    uint32_t world = 1;       // ranks that the sums go over
    // Row-parallel matrices make int64 sums of segments; false: f32 sums of all their columns.
    bool deterministic = true;
    // Most that workspace_bytes() may become.
    uint64_t max_workspace_bytes = std::numeric_limits<uint64_t>::max();
  };

  // `weights` are on the device; they and the graph outlive the context. INVALID_ARGUMENT when the
  // values of the graph do not fit together, RESOURCE_EXHAUSTED when they pass the budget or the
  // device. `stream`: on which new memory is cleared.
  static absl::StatusOr<std::unique_ptr<DeviceBindContext>> Create(
      const internal::ModelGraph& graph, const LoadedWeights& weights, const Options& options,
      DeviceStream& stream);

  const Options& options() const { return options_; }
  Device& device() const { return *options_.device; }
  const DeviceKernels& kernels() const { return *options_.device->kernels(); }

  // The rank's matrix, or null when it owns nothing of it. INVALID_ARGUMENT when the graph's shape
  // is not the loaded one.
  absl::StatusOr<const DeviceMatrix*> Matrix(uint32_t weight) const;
  absl::StatusOr<const float*> Vector(uint32_t weight, int64_t width) const override;

  PreparedPlan& prepared() { return *prepared_; }
  // Where the sums over ranks lie, the same on all of them; empty in a group of one.
  const DeviceBuffer& sums() const { return sums_; }

  // Zeroed, 256-byte aligned, for the life of the context.
  absl::StatusOr<uint8_t*> Scratch(std::optional<uint64_t> bytes);
  // Pinned memory of the host, as it comes.
  absl::StatusOr<DeviceBuffer> Pinned(std::optional<uint64_t> bytes);
  // A copy of host memory, as of Scratch; equal ones are one.
  absl::StatusOr<uint8_t*> Table(const void* data, uint64_t bytes);
  // Shared by all layers of the same rotation, its cos_sin too.
  absl::StatusOr<DeviceRope> Rope(const RopeConfig& config);
  // Of all these: before a step's first op.
  absl::Status EnqueueAngles(const DeviceTokens& tokens, int64_t m, DeviceStream& stream) const;
  // For Attend; all layers share it.
  absl::Status ReserveAttention(const KvLayout& layout, int q_heads);
  // After all ops are bound: what they reserved, or what a device with little left can spare.
  absl::Status MakeAttentionScratch();
  void* attention_scratch() const { return attention_scratch_; }
  uint64_t attention_scratch_bytes() const { return attention_bytes_; }

  // Of values, prepared activations and scratch, as claimed.
  uint64_t workspace_bytes() const { return workspace_bytes_; }
  // Of the host, given away by Pinned.
  uint64_t pinned_bytes() const { return pinned_bytes_; }

 private:
  DeviceBindContext(const internal::ModelGraph& graph, const LoadedWeights& weights,
                    const Options& options, DeviceStream& stream);
  absl::Status Claim(std::optional<uint64_t> bytes);
  absl::Status MakeSums();

  const LoadedWeights& weights_;
  const Options options_;
  DeviceStream& stream_;
  std::unique_ptr<PreparedPlan> prepared_;
  DeviceBuffer sums_;
  std::deque<DeviceBuffer> memory_;
  uint64_t workspace_bytes_ = 0, pinned_bytes_ = 0;
  struct NamedRope {
    std::vector<double> inv_freq;
    DeviceRope rope;
  };
  std::deque<NamedRope> ropes_;
  std::map<std::string, uint8_t*> tables_;  // by content
  uint64_t attention_bytes_ = 0;
  void* attention_scratch_ = nullptr;
};

}  // namespace bitshard
