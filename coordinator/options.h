// The coordinator's command line, read once in main and checked before anything starts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "kernels/base/command_line.h"
#include "proto/worker.pb.h"

namespace bitshard {

struct CoordinatorOptions {
  std::string model;                      // path
  std::vector<std::string> served_names;  // empty = the checkpoint's
  uint32_t workers = 1;
  std::vector<double> shares;  // empty = equal
  std::string token;           // content of --token-file

  std::string bind;   // public, health, metrics
  bool open = false;  // --bind is not loopback: other machines reach the public port
  std::string fleet_bind;
  std::string admin_bind;
  int port = 0, fleet_port = 0, health_port = 0, admin_port = 0;
  std::optional<int> metrics_port;  // none: no page
  bool reflection = true;
  std::string port_file;

  internal::NumericsOptions::Activations activations = internal::NumericsOptions::ACTIVATIONS_A16;
  internal::NumericsOptions::CacheType kv_cache_type = internal::NumericsOptions::CACHE_TYPE_BF16;
  std::string activations_name, kv_cache_name;  // "a16", "bf16"
  bool deterministic = true;
  bool require_fast_kernels = false;
  std::optional<uint32_t> kv_blocks;
  std::optional<uint64_t> kv_bytes;  // per rank; without kv_blocks; none: by the device

  uint32_t token_budget = 0;   // 0 = by the device
  uint32_t prefill_chunk = 0;  // 0 = only the budget limits
  bool prefix_cache = true;
  uint32_t max_running = 64;
  uint32_t max_waiting = 1024;
  uint64_t max_waiting_tokens = 1 << 20;
  absl::Duration max_queue_wait = absl::InfiniteDuration();
  absl::Duration itl_slo = absl::ZeroDuration();  // zero = none
  absl::flat_hash_map<std::string, double> tenant_weights;
  uint32_t max_context = 0;  // 0 = the model's

  absl::Duration stall_timeout = absl::Seconds(4);
  absl::Duration drain_timeout = absl::Seconds(30);
  absl::Duration slow_reader_timeout = absl::Seconds(10);
  bool exit_with_parent = false;
  std::string log_level;
};

ProgramHelp CoordinatorHelp();

// --list-metrics: nothing is to be done but to print what the metrics page has.
bool ListMetricsAsked();

// From the parsed flags; an error says which flag and what it takes. `extra`: arguments that are no
// flags.
absl::StatusOr<CoordinatorOptions> CoordinatorOptionsFromFlags(
    const std::vector<std::string>& extra);

// "3,2,2" for `workers` ranks; "" = equal.
absl::StatusOr<std::vector<double>> ParseShares(const std::string& text, uint32_t workers);
// "alice=2,bob=0.5"; "" = none.
absl::StatusOr<absl::flat_hash_map<std::string, double>> ParseTenantWeights(
    const std::string& text);
// "1073741824", "512MiB", "1.5GiB", "2G" (= GiB).
absl::StatusOr<uint64_t> ParseBytes(const std::string& text);

}  // namespace bitshard
