// The worker's command line, read once in main and checked before anything starts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "kernels/base/command_line.h"
#include "kernels/base/cpu_features.h"

namespace bitshard {

// What --device asks for.
struct AskedDevice {
  enum class Kind { kCpu, kCuda, kAuto };  // kAuto: a GPU where one opens, else the CPU
  Kind kind = Kind::kAuto;
  int index = 0;      // among the GPUs that the process sees
  bool told = false;  // the flag was given
};

struct WorkerOptions {
  AskedDevice device;
  std::string coordinator;  // host:port
  std::string token;        // content of --token-file
  int threads = 1;
  std::vector<int> cpus;      // of the threads, one each; empty: unpinned
  bool crowded = false;       // the workers of this host have more threads than it has CPUs
  uint64_t memory_bytes = 0;  // of the host
  std::string memory;         // as asked for; of a device's memory when there is one
  Isa isa = Isa::kScalar;
  bool isa_forced = false;  // by --isa: no probe
  bool require_fast_kernels = false;
  uint32_t local_rank = 0;
  uint32_t local_ranks = 1;
  std::vector<std::string> collectives;  // over which it may meet the others: "shm", "gloo"
  std::string gloo_interface;            // "" = by the way to the coordinator
  std::string gloo_address;              // numeric; "" = of the interface
  std::string metrics_host;
  std::optional<int> metrics_port;  // none: no page
  bool profile_ops = false;         // on a device the page has its time by kinds of ops
  std::string score_log;            // folder; "" = none
  std::string log_level;
  bool exit_with_parent = false;
  absl::Duration coordinator_timeout = absl::InfiniteDuration();
};

ProgramHelp WorkerHelp();

// From the parsed flags; an error says which flag and what it takes.
absl::StatusOr<WorkerOptions> WorkerOptionsFromFlags();

// --list-metrics: nothing is to be done but to print what the metrics page has.
bool ListMetricsAsked();

// "auto", "cpu", "cuda", "cuda:1"; "" is auto that nobody has asked for. Without a number a GPU is
// that of the local rank.
absl::StatusOr<AskedDevice> ParseDevice(const std::string& text, int local_rank);

// "1073741824", "512MiB", "24GiB", "24G" (= GiB), "80%" (of `available`). For --memory.
absl::StatusOr<uint64_t> ParseMemory(const std::string& text, uint64_t available);

}  // namespace bitshard
