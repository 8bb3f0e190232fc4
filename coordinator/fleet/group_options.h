// What a group of workers must agree on, and how long it may take.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "proto/graph.pb.h"
#include "proto/worker.pb.h"

namespace bitshard {

inline constexpr uint32_t kFleetProtocol = 1;
// Tokens of a step where nothing is said: as many as keep the arithmetic units busy.
inline constexpr uint32_t kCpuStepTokens = 256, kGpuStepTokens = 8192;
inline constexpr uint64_t kCpuCacheBytes = uint64_t{1} << 30;

struct GroupOptions {
  uint32_t world = 1;
  std::string token;     // shared secret; empty: none asked for
  std::string build;     // version that workers must have
  std::string instance;  // random name of this coordinator process; part of communicator ids
  bool require_equal_numerics = true;
  // max_step_tokens = 0: by the workers' device, but not below max_slots.
  internal::NumericsOptions numerics;
  // KV blocks of a rank, or bytes per rank: at most what the poorest rank holds. Neither: all that
  // it holds of a GPU's memory, kCpuCacheBytes on CPUs, whose memory is not theirs alone.
  std::optional<uint32_t> kv_blocks;
  std::optional<uint64_t> kv_bytes;
  // One positive share a rank; empty: equal shares.
  std::vector<double> shares;
  // Cuts the model. Called once, when the first group forms.
  std::function<absl::StatusOr<std::vector<internal::RankPlan>>(const std::vector<double>& shares)>
      build_plans;

  absl::Duration heartbeat_interval = absl::Milliseconds(250);
  absl::Duration silence_timeout = absl::Seconds(3);
  absl::Duration stall_timeout =
      absl::Seconds(4);  // the loss is known within 5 s: heartbeats and ticks come on top
  absl::Duration register_timeout = absl::Seconds(5);  // from connection to Register
  absl::Duration load_timeout = absl::Seconds(60);     // without progress
  absl::Duration join_timeout = absl::Seconds(30);
  absl::Duration allocate_timeout = absl::Seconds(60);
  absl::Duration quiesce_timeout = absl::Seconds(3);
  absl::Duration blame_grace =
      absl::Milliseconds(300);  // between "my communicator broke" and who broke it
  absl::Duration retry_delay =
      absl::Milliseconds(500);  // after a failed bring-up, doubled each time up to 16 s
  absl::Duration partial_timeout =
      absl::Seconds(60);  // of a part of the group that waits for the rest; up to twice as long
  uint32_t max_unregistered = 64;  // connections
};

}  // namespace bitshard
