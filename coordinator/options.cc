#include "coordinator/options.h"

#include <cmath>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "kernels/base/status_macros.h"
#include "kernels/tensor/kv_type_by_name.h"
#include "proto/cache_type.h"
#include "proto/version.h"

ABSL_FLAG(std::string, model, "",
          "the model: a GGUF file, or a folder with config.json and *.safetensors");
ABSL_FLAG(std::string, served_model_name, "",
          "names for requests, comma-separated; empty = the checkpoint's own");
ABSL_FLAG(int, workers, 1,
          "how many workers share the model; the group forms when so many have registered");
ABSL_FLAG(std::string, shares, "",
          "how much of the model each rank gets, such as 3,2; empty = equal");
ABSL_FLAG(std::string, token_file, "",
          "file with the secret that workers must show; empty = none, for loopback only");
ABSL_FLAG(std::string, bind, "127.0.0.1",
          "address of the public, health and metrics ports; 0.0.0.0 = all");
ABSL_FLAG(std::string, fleet_bind, "",
          "address of the port that workers dial; empty = that of --bind");
ABSL_FLAG(int, port, 50051, "public gRPC port; 0 picks one");
ABSL_FLAG(int, fleet_port, 50052, "gRPC port that workers dial; 0 picks one");
ABSL_FLAG(int, health_port, 50053, "plaintext port of grpc.health.v1 for probes; 0 picks one");
ABSL_FLAG(int, admin_port, 50054, "gRPC port of bitshard.v1.Admin; 0 picks one");
ABSL_FLAG(std::string, admin_bind, "127.0.0.1",
          "address of the admin port; whoever reaches it may drain the service");
ABSL_FLAG(int, metrics_port, 9464,
          "port of the Prometheus page at /metrics; 0 picks one, -1 = none");
ABSL_FLAG(bool, list_metrics, false, "print what the Prometheus page has, as Markdown, and end");
ABSL_FLAG(
    std::string, reflection, "auto",
    "gRPC reflection on the public and health ports: on, off, auto (= on when --bind is loopback)");
ABSL_FLAG(std::string, port_file, "",
          "write the chosen ports there as key=value lines, once all are open");
ABSL_FLAG(std::string, activations, "a16",
          "a16: 16-bit fixed point, as good as f32 and faster; a8: 8 bits, faster still, loses "
          "some quality; f32: the exact path");
ABSL_FLAG(std::string, kv_cache_dtype, "bf16", "bf16, f16, f32, int8 or fp8_e4m3");
ABSL_FLAG(
    bool, deterministic, true,
    "the same bits for any batch and number of workers; false: on GPUs faster sums over ranks, "
    "whose bits depend on both (the CPU has no others)");
ABSL_FLAG(std::string, require_kernels, "any",
          "fast: refuse to start when anything would run on a fallback kernel; any: report it");
ABSL_FLAG(int, kv_blocks, 0, "KV blocks of 16 tokens on every rank; 0 = by --kv-cache-bytes");
ABSL_FLAG(std::string, kv_cache_bytes, "auto",
          "KV cache of a rank at most: bytes, 512MiB, 24GiB; auto: 1 GiB on CPUs, on GPUs all that "
          "the worker's --memory leaves. What does not fit is left out");
ABSL_FLAG(int, token_budget, 0,
          "tokens computed in a step at most; 0 = 256 on CPUs, 8192 on GPUs, and as many as "
          "--max-running at least");
ABSL_FLAG(int, prefill_chunk, 0,
          "prompt tokens of one request in a step at most; 0 = only the budget limits");
ABSL_FLAG(
    std::string, prefix_cache, "on",
    "on: prompts that begin like earlier ones are computed from where they differ (cache_salt "
    "in a request keeps tenants apart); off: every prompt is computed whole");
ABSL_FLAG(
    int, max_running, 64,
    "requests in steps at most, each choice of one counts; not above a --token-budget that is "
    "given, of which each takes in every step");
ABSL_FLAG(int, max_waiting, 1024,
          "requests in the queue at most, each choice of one counts; beyond it RESOURCE_EXHAUSTED");
ABSL_FLAG(int64_t, max_waiting_tokens, 1 << 20, "prompt tokens in the queue at most");
ABSL_FLAG(absl::Duration, max_queue_wait, absl::ZeroDuration(),
          "refuse at once what would wait longer for its first step, such as 5s; 0 = only what "
          "would wait beyond its deadline");
ABSL_FLAG(absl::Duration, itl_slo, absl::ZeroDuration(),
          "steps that generate tokens take on prompts only as long as they mostly end within this, "
          "such as 50ms; 0 = no bound");
ABSL_FLAG(std::string, tenant_weights, "",
          "shares of the service among callers that wait, such as alice=2,bob=0.5; others have 1. "
          "Not taken yet: callers are told apart by TLS, which is not built");
ABSL_FLAG(int, max_context, 0, "longest prompt + output in tokens; 0 = the model's");
ABSL_FLAG(absl::Duration, stall_timeout, absl::Seconds(4),
          "a step that makes no progress for so long ends the group; seen up to 0.5 s later");
ABSL_FLAG(absl::Duration, drain_timeout, absl::Seconds(30),
          "how long streams may go on after SIGTERM");
ABSL_FLAG(absl::Duration, slow_reader_timeout, absl::Seconds(10),
          "how long a client may leave much unread");
ABSL_FLAG(bool, exit_with_parent, false,
          "die when the process that started this one dies (`bitshard serve`)");
ABSL_FLAG(std::string, log_level, "info", "debug, info, warning or error");
ABSL_FLAG(std::string, tls_cert_file, "", "not built yet");
ABSL_FLAG(std::string, tls_key_file, "", "not built yet");
ABSL_FLAG(std::string, tls_client_ca_file, "", "not built yet");

namespace bitshard {
namespace {

constexpr int kMaxWorkers = 1024;
constexpr double kLeastWeight = 0.001, kMostWeight = 1000;

absl::Status BadFlag(absl::string_view flag, absl::string_view value, absl::string_view hint) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", value, ": ", hint));
}

template <typename T>
absl::Status CheckRange(absl::string_view flag, T value, T low, T high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return BadFlag(flag, absl::StrCat(value), absl::StrCat("must be ", low, " to ", high));
}

absl::Status CheckPositive(absl::string_view flag, absl::Duration value, absl::Duration low) {
  if (value >= low && value <= absl::Hours(24)) return absl::OkStatus();
  return BadFlag(
      flag, absl::FormatDuration(value),
      absl::StrCat("must be ", absl::FormatDuration(low), " to 24h, such as 5s or 500ms"));
}

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  std::ifstream in(path);
  if (!in)
    return BadFlag("token-file", path, "cannot be read; is it there, and may this user read it?");
  std::ostringstream text;
  text << in.rdbuf();
  const std::string token(absl::StripAsciiWhitespace(text.str()));
  if (token.empty() || token.size() > 4096)
    return BadFlag("token-file", path, "must hold one secret of 1 to 4096 bytes");
  return token;
}

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host == "[::1]" || absl::StartsWith(host, "127.");
}

absl::Status ReadPorts(CoordinatorOptions& options) {
  const std::pair<const char*, std::pair<int, int*>> ports[] = {
      {"port", {absl::GetFlag(FLAGS_port), &options.port}},
      {"fleet-port", {absl::GetFlag(FLAGS_fleet_port), &options.fleet_port}},
      {"health-port", {absl::GetFlag(FLAGS_health_port), &options.health_port}},
      {"admin-port", {absl::GetFlag(FLAGS_admin_port), &options.admin_port}},
  };
  std::set<int> taken;
  for (const auto& [name, port] : ports) {
    RETURN_IF_ERROR(CheckRange(name, port.first, 0, 65535));
    if (port.first != 0 && !taken.insert(port.first).second) {
      return BadFlag(name, absl::StrCat(port.first),
                     "two ports are the same; give each its own, or 0 to pick one");
    }
    *port.second = port.first;
  }
  const int metrics = absl::GetFlag(FLAGS_metrics_port);
  RETURN_IF_ERROR(CheckRange("metrics-port", metrics, -1, 65535));
  if (metrics > 0 && taken.count(metrics) > 0) {
    return BadFlag("metrics-port", absl::StrCat(metrics),
                   "is the port of a gRPC service; give it its own, or 0");
  }
  if (metrics >= 0) options.metrics_port = metrics;
  return absl::OkStatus();
}

absl::Status ReadNumerics(CoordinatorOptions& options) {
  options.activations_name = absl::GetFlag(FLAGS_activations);
  if (options.activations_name == "a16") {
    options.activations = internal::NumericsOptions::ACTIVATIONS_A16;
  } else if (options.activations_name == "a8") {
    options.activations = internal::NumericsOptions::ACTIVATIONS_A8;
  } else if (options.activations_name == "f32") {
    options.activations = internal::NumericsOptions::ACTIVATIONS_F32;
  } else {
    return BadFlag("activations", options.activations_name, "use a16, a8 or f32");
  }
  options.kv_cache_name = absl::GetFlag(FLAGS_kv_cache_dtype);
  const auto cache_type = CacheTypeByName(options.kv_cache_name);
  if (!KvTypeByName(options.kv_cache_name) || !cache_type)
    return BadFlag("kv-cache-dtype", options.kv_cache_name, "use bf16, f16, f32, int8 or fp8_e4m3");
  options.kv_cache_type = *cache_type;
  options.deterministic = absl::GetFlag(FLAGS_deterministic);
  const std::string kernels = absl::GetFlag(FLAGS_require_kernels);
  if (kernels != "any" && kernels != "fast")
    return BadFlag("require-kernels", kernels, "use any or fast");
  options.require_fast_kernels = kernels == "fast";
  const int blocks = absl::GetFlag(FLAGS_kv_blocks);
  RETURN_IF_ERROR(CheckRange("kv-blocks", blocks, 0, 1 << 24));
  if (blocks > 0) options.kv_blocks = static_cast<uint32_t>(blocks);
  const std::string bytes = absl::GetFlag(FLAGS_kv_cache_bytes);
  if (bytes == "auto") return absl::OkStatus();
  const absl::StatusOr<uint64_t> parsed = ParseBytes(bytes);
  if (!parsed.ok())
    return BadFlag("kv-cache-bytes", bytes, absl::StrCat(parsed.status().message(), ", or auto"));
  options.kv_bytes = *parsed;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<uint64_t> ParseBytes(const std::string& text) {
  absl::string_view number = absl::StripAsciiWhitespace(text);
  double factor = 1;
  for (const auto& [suffix, value] :
       {std::pair("KiB", 0x1p10), std::pair("MiB", 0x1p20), std::pair("GiB", 0x1p30),
        std::pair("TiB", 0x1p40), std::pair("K", 0x1p10), std::pair("M", 0x1p20),
        std::pair("G", 0x1p30), std::pair("T", 0x1p40)}) {
    if (absl::ConsumeSuffix(&number, suffix)) {
      factor = value;
      break;
    }
  }
  double value = 0;
  if (!absl::SimpleAtod(absl::StripAsciiWhitespace(number), &value) || !std::isfinite(value) ||
      value <= 0 || value * factor < 1 || value * factor >= 0x1p60) {
    return absl::InvalidArgumentError("is no amount of memory; use bytes, 512MiB or 24GiB");
  }
  return static_cast<uint64_t>(value * factor);
}

absl::StatusOr<std::vector<double>> ParseShares(const std::string& text, uint32_t workers) {
  std::vector<double> shares;
  if (text.empty()) return shares;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    double share = 0;
    if (!absl::SimpleAtod(part, &share) || !std::isfinite(share) || share <= 0) {
      return BadFlag("shares", text,
                     "needs positive numbers with commas between them, such as 3,2");
    }
    shares.push_back(share);
  }
  if (shares.size() != workers) {
    return BadFlag("shares", text,
                   absl::StrCat("names ", shares.size(), " ranks, but --workers is ", workers));
  }
  return shares;
}

absl::StatusOr<absl::flat_hash_map<std::string, double>> ParseTenantWeights(
    const std::string& text) {
  absl::flat_hash_map<std::string, double> weights;
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    // Names may hold '=', weights do not.
    const size_t equals = part.rfind('=');
    double weight = 0;
    if (equals == absl::string_view::npos || equals == 0 ||
        !absl::SimpleAtod(part.substr(equals + 1), &weight) ||
        !(weight >= kLeastWeight && weight <= kMostWeight)) {
      return BadFlag("tenant-weights", text,
                     absl::StrCat("\"", part, "\" is no NAME=WEIGHT with a weight of ",
                                  kLeastWeight, " to ", kMostWeight, ", such as alice=2"));
    }
    if (!weights.emplace(part.substr(0, equals), weight).second) {
      return BadFlag("tenant-weights", text,
                     absl::StrCat(part.substr(0, equals), " is named twice"));
    }
  }
  return weights;
}

ProgramHelp CoordinatorHelp() {
  return {
      "bitshard-coordinator", kBuildVersion,
      "the bitshard service: gRPC API, scheduler, and the group of workers.\n\n"
      "  bitshard-coordinator --model=PATH --workers=N [--port=50051] [--fleet-port=50052]\n\n"
      "It answers when N workers (bitshard-worker --coordinator=HOST:FLEET_PORT) have registered "
      "and loaded\n"
      "their parts. SIGTERM drains: readiness goes down, running answers finish, then it exits "
      "with 0.\n"
      "Exit codes: 0 drained, 1 the model or a port cannot be used, 2 bad flags.\n"
      "On one machine `bitshard serve MODEL --workers=N` starts everything.",
      "coordinator/options.cc"};
}

absl::StatusOr<CoordinatorOptions> CoordinatorOptionsFromFlags(
    const std::vector<std::string>& extra) {
  CoordinatorOptions options;
  options.model = absl::GetFlag(FLAGS_model);
  if (!extra.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("unexpected argument \"", extra[0], "\"; flags begin with --",
                     options.model.empty() ? ", the model is --model=PATH" : ""));
  }
  if (options.model.empty()) {
    return absl::InvalidArgumentError(
        "--model is missing: give a GGUF file or a folder with config.json and *.safetensors");
  }
  for (const std::string& tls :
       {absl::GetFlag(FLAGS_tls_cert_file), absl::GetFlag(FLAGS_tls_key_file),
        absl::GetFlag(FLAGS_tls_client_ca_file)}) {
    if (!tls.empty()) {
      return absl::InvalidArgumentError(
          "--tls-*: TLS is not built yet; bind to loopback, or put a proxy with TLS in front");
    }
  }
  for (const absl::string_view name :
       absl::StrSplit(absl::GetFlag(FLAGS_served_model_name), ',', absl::SkipEmpty())) {
    if (name.size() > 256) return BadFlag("served-model-name", name, "at most 256 bytes a name");
    options.served_names.emplace_back(name);
  }
  const int workers = absl::GetFlag(FLAGS_workers);
  RETURN_IF_ERROR(CheckRange("workers", workers, 1, kMaxWorkers));
  options.workers = static_cast<uint32_t>(workers);
  ASSIGN_OR_RETURN(options.shares, ParseShares(absl::GetFlag(FLAGS_shares), options.workers));

  options.bind = absl::GetFlag(FLAGS_bind);
  const std::string fleet_bind = absl::GetFlag(FLAGS_fleet_bind);
  options.fleet_bind = fleet_bind.empty() ? options.bind : fleet_bind;
  options.admin_bind = absl::GetFlag(FLAGS_admin_bind);
  if (options.bind.empty())
    return BadFlag("bind", "", "give an address, such as 127.0.0.1 or 0.0.0.0");
  if (options.admin_bind.empty())
    return BadFlag("admin-bind", "", "give an address, such as 127.0.0.1");
  if (const std::string path = absl::GetFlag(FLAGS_token_file); !path.empty()) {
    ASSIGN_OR_RETURN(options.token, ReadToken(path));
  } else if (!IsLoopback(options.fleet_bind)) {
    return BadFlag(fleet_bind.empty() ? "bind" : "fleet-bind", options.fleet_bind,
                   "workers from other hosts need a secret: give coordinator and workers the same "
                   "--token-file; if there are none, use --fleet-bind=127.0.0.1");
  }
  RETURN_IF_ERROR(ReadPorts(options));
  const std::string reflection = absl::GetFlag(FLAGS_reflection);
  if (reflection != "on" && reflection != "off" && reflection != "auto") {
    return BadFlag("reflection", reflection, "use on, off or auto");
  }
  options.open = !IsLoopback(options.bind);
  options.reflection = reflection == "on" || (reflection == "auto" && !options.open);
  options.port_file = absl::GetFlag(FLAGS_port_file);
  RETURN_IF_ERROR(ReadNumerics(options));

  const int budget = absl::GetFlag(FLAGS_token_budget), running = absl::GetFlag(FLAGS_max_running),
            waiting = absl::GetFlag(FLAGS_max_waiting), context = absl::GetFlag(FLAGS_max_context);
  const int64_t waiting_tokens = absl::GetFlag(FLAGS_max_waiting_tokens);
  RETURN_IF_ERROR(CheckRange("token-budget", budget, 0, 65535));
  RETURN_IF_ERROR(CheckRange("max-running", running, 1, 4096));
  RETURN_IF_ERROR(CheckRange("max-waiting", waiting, 1, 1 << 20));
  RETURN_IF_ERROR(CheckRange<int64_t>("max-waiting-tokens", waiting_tokens, 1, int64_t{1} << 40));
  RETURN_IF_ERROR(CheckRange("max-context", context, 0, 1 << 24));
  if (budget > 0 && running > budget) {
    return BadFlag("max-running", absl::StrCat(running),
                   absl::StrCat("more than --token-budget=", budget,
                                ": each request that generates needs a token of the budget in "
                                "every step; lower the one or raise the other"));
  }
  options.token_budget = static_cast<uint32_t>(budget);
  const int chunk = absl::GetFlag(FLAGS_prefill_chunk);
  if (chunk < 0) return BadFlag("prefill-chunk", absl::StrCat(chunk), "use 0 (no limit) or more");
  options.prefill_chunk = static_cast<uint32_t>(chunk);
  const std::string prefix_cache = absl::GetFlag(FLAGS_prefix_cache);
  if (prefix_cache != "on" && prefix_cache != "off")
    return BadFlag("prefix-cache", prefix_cache, "use on or off");
  options.prefix_cache = prefix_cache == "on";
  options.max_running = static_cast<uint32_t>(running);
  options.max_waiting = static_cast<uint32_t>(waiting);
  options.max_waiting_tokens = static_cast<uint64_t>(waiting_tokens);
  options.itl_slo = absl::GetFlag(FLAGS_itl_slo);
  RETURN_IF_ERROR(CheckPositive("itl-slo", options.itl_slo, absl::ZeroDuration()));
  const absl::Duration queue_wait = absl::GetFlag(FLAGS_max_queue_wait);
  RETURN_IF_ERROR(CheckPositive("max-queue-wait", queue_wait, absl::ZeroDuration()));
  if (queue_wait > absl::ZeroDuration()) options.max_queue_wait = queue_wait;
  const std::string weights = absl::GetFlag(FLAGS_tenant_weights);
  ASSIGN_OR_RETURN(options.tenant_weights, ParseTenantWeights(weights));
  if (!options.tenant_weights.empty()) {
    return BadFlag("tenant-weights", weights,
                   "only TLS can tell callers apart, and it is not built yet; leave the flag out");
  }
  options.max_context = static_cast<uint32_t>(context);

  options.stall_timeout = absl::GetFlag(FLAGS_stall_timeout);
  options.drain_timeout = absl::GetFlag(FLAGS_drain_timeout);
  options.slow_reader_timeout = absl::GetFlag(FLAGS_slow_reader_timeout);
  RETURN_IF_ERROR(CheckPositive("stall-timeout", options.stall_timeout, absl::Milliseconds(500)));
  RETURN_IF_ERROR(CheckPositive("drain-timeout", options.drain_timeout, absl::ZeroDuration()));
  RETURN_IF_ERROR(
      CheckPositive("slow-reader-timeout", options.slow_reader_timeout, absl::Milliseconds(100)));
  options.exit_with_parent = absl::GetFlag(FLAGS_exit_with_parent);
  options.log_level = absl::GetFlag(FLAGS_log_level);
  return options;
}

bool ListMetricsAsked() { return absl::GetFlag(FLAGS_list_metrics); }

}  // namespace bitshard
