#include "worker/options.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "kernels/base/status_macros.h"
#include "kernels/base/thread_pool.h"
#include "proto/version.h"
#include "worker/machine.h"

ABSL_FLAG(std::string, coordinator, "",
          "host:port of the coordinator's fleet port. The worker dials it, again and again until "
          "it answers");
ABSL_FLAG(std::string, token_file, "",
          "file with the secret that coordinator and workers share; spaces and line ends around it "
          "do not count");
ABSL_FLAG(
    std::string, device, "",
    "what computes: cpu; cuda:N, the GPU with that number among those the process sees; cuda, "
    "the one of --local-rank; auto, such a GPU where it opens, else the CPU (the log says "
    "why). Empty = cuda in a worker built for GPUs, cpu in one that is not");
ABSL_FLAG(int, threads, 0,
          "compute threads; 0 = the CPUs that the cgroup and the affinity mask grant, divided by "
          "--local-ranks");
ABSL_FLAG(std::string, memory, "80%",
          "memory for weights, buffers and KV cache: bytes, 512MiB, 24GiB, or a share of what is "
          "available now, "
          "divided by --local-ranks; on a GPU: of its free memory, undivided (the rest is for "
          "captured graphs and NCCL's buffers)");
ABSL_FLAG(std::string, isa, "auto",
          "widest instruction set that kernels may use: auto (what a measurement at start finds "
          "fastest), scalar, avx2, avx512vnni. All give the same bits");
ABSL_FLAG(
    std::string, require_kernels, "any",
    "fast: refuse a model of which anything would run on a fallback (reference, or scalar on a "
    "machine with more); any: report it");
ABSL_FLAG(std::string, pin, "auto",
          "auto: compute threads stay on CPUs of their own where the workers of this host fill all "
          "that they may use; off: the system places them");
ABSL_FLAG(int, local_rank, 0,
          "which of the workers on this host this is: which CPUs are its own, which GPU with "
          "--device=cuda, and a preference for the order of ranks");
ABSL_FLAG(int, local_ranks, 1,
          "how many workers share this host: default threads and memory are divided by it, and "
          "/dev/shm must hold what NCCL wants for so many GPUs");
ABSL_FLAG(
    std::string, collective, "auto",
    "how a worker on a CPU may meet the others in a step (GPUs always take NCCL): shm (all on one "
    "host, shared memory), gloo "
    "(TCP, also between hosts), auto (either: the coordinator takes shm where it can). All give "
    "the same bits");
ABSL_FLAG(std::string, gloo_interface, "",
          "network interface whose address the other workers connect to, such as eth1; empty = the "
          "one on the way to the coordinator");
ABSL_FLAG(std::string, gloo_address, "",
          "numeric address of this host that the other workers connect to, at any port; instead of "
          "--gloo-interface");
ABSL_FLAG(int, metrics_port, -1,
          "port of the Prometheus page at /metrics; 0 picks one (the log names it), -1 = none");
ABSL_FLAG(bool, list_metrics, false, "print what the Prometheus page has, as Markdown, and end");
ABSL_FLAG(std::string, metrics_host, "127.0.0.1", "address that the metrics page listens on");
ABSL_FLAG(
    bool, profile_ops, false,
    "on a GPU: time each op for worker_step_seconds of the metrics page; steps then run launch "
    "by launch instead of as graphs, slower. On the CPU each op is always timed");
ABSL_FLAG(
    std::string, score_log, "",
    "folder for a file with the raw logits of every scored or sampled position (`bitshard eval` "
    "reads it); empty = none");
ABSL_FLAG(std::string, log_level, "info", "debug, info, warning or error");
ABSL_FLAG(
    bool, exit_with_parent, false,
    "die when the process that started this one dies (for supervisors such as `bitshard serve`)");
ABSL_FLAG(absl::Duration, coordinator_timeout, absl::InfiniteDuration(),
          "exit when the coordinator stays away for so long, such as 10s; inf = dial for ever");

namespace bitshard {
namespace {

// What ThreadPool can count.
constexpr int kMaxThreads = 255;
constexpr int kMaxLocalRanks = 1024;

absl::Status BadFlag(const char* flag, const std::string& value, const std::string& hint) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", value, ": ", hint));
}

absl::Status CheckTarget(const std::string& target) {
  const size_t colon = target.rfind(':');
  int port = 0;
  if (target.empty()) {
    return absl::InvalidArgumentError(
        "--coordinator is missing: give the host:port of the coordinator's fleet port, such as "
        "--coordinator=127.0.0.1:50052 (it prints the address when it starts)");
  }
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(target.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return BadFlag("coordinator", target, "give host:port, such as 10.0.0.5:50052 or [::1]:50052");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  std::ifstream in(path);
  if (!in) {
    return BadFlag("token-file", path, "cannot be read; is it there, and may this user read it?");
  }
  std::ostringstream text;
  text << in.rdbuf();
  const std::string token(absl::StripAsciiWhitespace(text.str()));
  if (token.empty() || token.size() > 4096) {
    return BadFlag("token-file", path, "must hold one secret of 1 to 4096 bytes");
  }
  return token;
}

}  // namespace

absl::StatusOr<AskedDevice> ParseDevice(const std::string& text, int local_rank) {
  AskedDevice device;
  device.told = !text.empty();
  device.index = local_rank;
  if (text.empty() || text == "auto") return device;
  if (text == "cpu") {
    device.kind = AskedDevice::Kind::kCpu;
    return device;
  }
  absl::string_view rest = text;
  device.kind = AskedDevice::Kind::kCuda;
  if (rest == "cuda") return device;
  if (!absl::ConsumePrefix(&rest, "cuda:") || !absl::SimpleAtoi(rest, &device.index) ||
      device.index < 0) {
    return BadFlag("device", text, "use auto, cpu, cuda, or cuda:N such as cuda:0");
  }
  return device;
}

absl::StatusOr<uint64_t> ParseMemory(const std::string& text, uint64_t available) {
  struct Unit {
    absl::string_view suffix;
    double factor;
  };
  const Unit units[] = {
      {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
      {"TiB", 0x1p40}, {"K", 0x1p10},   {"M", 0x1p20},
      {"G", 0x1p30},   {"T", 0x1p40},   {"%", static_cast<double>(available) / 100},
  };
  absl::string_view number = absl::StripAsciiWhitespace(text);
  double factor = 1;
  for (const Unit& unit : units) {
    if (absl::ConsumeSuffix(&number, unit.suffix)) {
      factor = unit.factor;
      break;
    }
  }
  double value = 0;
  if (!absl::SimpleAtod(absl::StripAsciiWhitespace(number), &value) || !std::isfinite(value) ||
      value <= 0 || value * factor >= 0x1p60) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is no amount of memory; use bytes, 512MiB, 24GiB or 80%"));
  }
  return static_cast<uint64_t>(value * factor);
}

ProgramHelp WorkerHelp() {
  return {
      "bitshard-worker", kBuildVersion,
      "one rank of a bitshard group: loads its shard of the weights and runs steps.\n\n"
      "  bitshard-worker --coordinator=HOST:PORT [--threads=N] [--memory=24GiB]\n\n"
      "Start as many workers as the coordinator's --workers says, on any hosts that see the model "
      "files\n"
      "under the same path. The coordinator gives each its rank; a worker that loses it keeps its "
      "weights\n"
      "and dials again. SIGTERM announces the departure and exits.\n"
      "Exit codes: 0 left, 2 bad flags or no such device, 3 no coordinator, 4 device lost, 5 "
      "turned "
      "away by the\n"
      "coordinator (wrong token, another build, ...). On one machine `bitshard serve` starts "
      "everything.",
      "worker/options.cc"};
}

absl::StatusOr<WorkerOptions> WorkerOptionsFromFlags() {
  WorkerOptions options;
  options.coordinator = absl::GetFlag(FLAGS_coordinator);
  RETURN_IF_ERROR(CheckTarget(options.coordinator));
  if (const std::string path = absl::GetFlag(FLAGS_token_file); !path.empty()) {
    ASSIGN_OR_RETURN(options.token, ReadToken(path));
  }

  const int local_rank = absl::GetFlag(FLAGS_local_rank);
  const int local_ranks = absl::GetFlag(FLAGS_local_ranks);
  if (local_ranks < 1 || local_ranks > kMaxLocalRanks) {
    return BadFlag("local-ranks", absl::StrCat(local_ranks),
                   absl::StrCat("how many workers share this host, 1 to ", kMaxLocalRanks));
  }
  if (local_rank < 0 || local_rank >= kMaxLocalRanks) {
    return BadFlag("local-rank", absl::StrCat(local_rank), "a number from 0 on");
  }
  options.local_rank = static_cast<uint32_t>(local_rank);
  options.local_ranks = static_cast<uint32_t>(local_ranks);

  const int threads = absl::GetFlag(FLAGS_threads);
  if (threads < 0 || threads > kMaxThreads) {
    return BadFlag("threads", absl::StrCat(threads),
                   absl::StrCat("1 to ", kMaxThreads,
                                ", or 0 for this host's share; a machine "
                                "with more CPUs holds several workers, see --local-ranks"));
  }
  options.threads =
      threads != 0 ? threads : std::clamp(AvailableCpus() / local_ranks, 1, kMaxThreads);

  const std::string pin = absl::GetFlag(FLAGS_pin);
  if (pin != "auto" && pin != "off") return BadFlag("pin", pin, "use auto or off");
  if (pin == "auto") options.cpus = CpusOfRank(local_rank, local_ranks, options.threads);
  options.crowded = int64_t{local_ranks} * options.threads > AvailableCpus();

  const std::string memory = absl::GetFlag(FLAGS_memory);
  const absl::StatusOr<uint64_t> bytes =
      ParseMemory(memory, AvailableMemoryBytes() / static_cast<uint64_t>(local_ranks));
  if (!bytes.ok()) return BadFlag("memory", memory, std::string(bytes.status().message()));
  options.memory_bytes = *bytes;
  options.memory = memory;
  ASSIGN_OR_RETURN(options.device, ParseDevice(absl::GetFlag(FLAGS_device), local_rank));

  const std::string isa = absl::GetFlag(FLAGS_isa);
  if (isa == "auto") {
    options.isa = BestIsa();
  } else {
    const std::optional<Isa> parsed = ParseIsa(isa);
    if (!parsed.has_value()) {
      return BadFlag("isa", isa, "use auto, scalar, avx2 or avx512vnni");
    }
    if (!HasIsa(*parsed)) {
      std::string reasons;
      for (const std::string& reason : ProbeIsa().reasons) absl::StrAppend(&reasons, "; ", reason);
      return BadFlag(
          "isa", isa,
          absl::StrCat("this machine offers ", std::string(IsaName(BestIsa())), reasons));
    }
    options.isa = *parsed;
    options.isa_forced = true;
  }

  const std::string kernels = absl::GetFlag(FLAGS_require_kernels);
  if (kernels != "any" && kernels != "fast")
    return BadFlag("require-kernels", kernels, "use any or fast");
  options.require_fast_kernels = kernels == "fast";

  const std::string collective = absl::GetFlag(FLAGS_collective);
  if (collective != "auto" && collective != "shm" && collective != "gloo")
    return BadFlag("collective", collective, "use auto, shm or gloo");
  for (const char* name : {"shm", "gloo"}) {
    if (collective == "auto" || collective == name) options.collectives.push_back(name);
  }
  options.gloo_interface = absl::GetFlag(FLAGS_gloo_interface);
  options.gloo_address = absl::GetFlag(FLAGS_gloo_address);
  if (!options.gloo_interface.empty() && !options.gloo_address.empty()) {
    return BadFlag("gloo-address", options.gloo_address,
                   "not together with --gloo-interface: give one of them");
  }

  const int port = absl::GetFlag(FLAGS_metrics_port);
  if (port < -1 || port > 65535) {
    return BadFlag("metrics-port", absl::StrCat(port), "0 to 65535, or -1 for no page");
  }
  options.metrics_host = absl::GetFlag(FLAGS_metrics_host);
  if (port >= 0) options.metrics_port = port;
  options.profile_ops = absl::GetFlag(FLAGS_profile_ops);
  if (options.profile_ops && port < 0)
    return BadFlag("profile-ops", "true",
                   "the times are told on the metrics page: give --metrics-port");

  options.score_log = absl::GetFlag(FLAGS_score_log);
  options.log_level = absl::GetFlag(FLAGS_log_level);
  options.exit_with_parent = absl::GetFlag(FLAGS_exit_with_parent);
  options.coordinator_timeout = absl::GetFlag(FLAGS_coordinator_timeout);
  if (options.coordinator_timeout <= absl::ZeroDuration()) {
    return BadFlag("coordinator-timeout", absl::FormatDuration(options.coordinator_timeout),
                   "a positive time such as 10s, or inf");
  }
  return options;
}

bool ListMetricsAsked() { return absl::GetFlag(FLAGS_list_metrics); }

}  // namespace bitshard
