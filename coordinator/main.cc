// bitshard-coordinator: makes the parts, joins them, and ends them in order. What each part does is
// in its own room.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <pthread.h>
#include <signal.h>
#include <string>
#include <sys/prctl.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "absl/random/random.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "google/protobuf/stubs/logging.h"
#include <grpc/support/log.h>

#include "coordinator/ending.h"
#include "coordinator/engine/engine.h"
#include "coordinator/engine/engine_metrics.h"
#include "coordinator/fleet/fleet.h"
#include "coordinator/frontend/server.h"
#include "coordinator/grammar/compile_guard.h"
#include "coordinator/grammar/grammar_compiler.h"
#include "coordinator/heap_trimmer.h"
#include "coordinator/metrics.h"
#include "coordinator/model_setup.h"
#include "coordinator/options.h"
#include "coordinator/stack_thread.h"
#include "kernels/base/command_line.h"
#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"
#include "proto/version.h"

namespace bitshard {
namespace {

constexpr int kExitCannotServe = 1;
constexpr int kExitBadFlags = 2;
constexpr uint32_t kBlockTokens = 16;
// For the last messages of streams that the drain has ended.
constexpr absl::Duration kLastWords = absl::Seconds(1);
// An end that takes so much longer than its drain hangs.
constexpr absl::Duration kEndPatience = absl::Seconds(30);

// Dies with `parent`.
void DieWithParent(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) {
    std::fprintf(stderr, "bitshard-coordinator: the parent process has gone\n");
    std::_Exit(0);
  }
}

// Signals are blocked in all threads and taken by one that may use locks.
sigset_t BlockSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return set;
}

// The first signal ends in order, the second at once. So does an end that hangs.
void TakeSignals(const sigset_t& signals, absl::Duration drain, Ending* ending) {
  std::thread([signals, drain, ending] {
    int signal = 0;
    sigwait(&signals, &signal);
    ending->Begin({absl::OkStatus(), signal == SIGTERM ? "SIGTERM" : "SIGINT", drain});
    const timespec patience = absl::ToTimespec(drain + kEndPatience);
    while ((signal = sigtimedwait(&signals, nullptr, &patience)) < 0 && errno == EINTR) {
    }
    if (signal > 0) std::_Exit(128 + signal);
    LogError("coordinator: event=end_hangs after={}", absl::FormatDuration(drain + kEndPatience));
    std::fflush(nullptr);
    std::_Exit(kExitCannotServe);
  }).detach();
}

absl::Status WritePortFile(const std::string& path, const FrontendServer::Ports& ports,
                           int fleet_port, int metrics_port) {
  if (path.empty()) return absl::OkStatus();
  const std::string temporary = path + ".new";
  {
    std::ofstream out(temporary, std::ios::trunc);
    out << "port=" << ports.inference << "\nfleet_port=" << fleet_port
        << "\nadmin_port=" << ports.admin << "\nhealth_port=" << ports.health
        << "\nmetrics_port=" << metrics_port << "\n";
    out.flush();
    if (!out)
      return absl::InvalidArgumentError(absl::StrCat("--port-file=", path, ": cannot be written"));
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--port-file=", path, ": cannot be written"));
  }
  return absl::OkStatus();
}

WorkerFleet::Options FleetOptions(const CoordinatorOptions& options, const ModelSetup& model,
                                  Ending* ending) {
  WorkerFleet::Options fleet;
  GroupOptions& group = fleet.group;
  group.world = options.workers;
  group.token = options.token;
  group.build = kBuildVersion;
  absl::BitGen random;
  group.instance = absl::StrCat(absl::Hex(absl::Uniform<uint64_t>(random), absl::kZeroPad16));
  group.numerics.set_activations(options.activations);
  group.numerics.set_kv_cache_type(options.kv_cache_type);
  group.numerics.set_nondeterministic(!options.deterministic);
  group.numerics.set_require_fast_kernels(options.require_fast_kernels);
  group.numerics.set_block_tokens(kBlockTokens);
  group.numerics.set_max_step_tokens(options.token_budget);
  group.numerics.set_max_slots(options.max_running);
  group.kv_blocks = options.kv_blocks;
  if (!options.kv_blocks) group.kv_bytes = options.kv_bytes;
  group.shares = options.shares;
  group.stall_timeout = options.stall_timeout;
  group.build_plans = [&model, world = options.workers](const std::vector<double>& shares) {
    return model.Plans(shares, world);
  };
  fleet.host = options.fleet_bind;
  fleet.port = options.fleet_port;
  fleet.on_hopeless = [ending](const absl::Status& why) {
    ending->Begin({why, "no group can form", absl::ZeroDuration()});
  };
  return fleet;
}

std::unique_ptr<CoordinatorMetrics> MakeMetrics(const CoordinatorOptions& options,
                                                const ServedModel& model) {
  CoordinatorMetrics::Info info;
  info.version = kBuildVersion;
  info.model_name = model.names.front();
  info.family = model.family;
  info.weight_formats = absl::StrJoin(model.weight_formats, ",");
  info.kv_cache_type = model.kv_cache_type;
  info.activations = model.activations;
  info.fingerprint = model.fingerprint;
  info.world = options.workers;
  info.context_tokens = model.context_tokens;
  info.block_tokens = kBlockTokens;
  return std::make_unique<CoordinatorMetrics>(info);
}

GrammarKind KindOf(Constraint::Kind kind) {
  switch (kind) {
    case Constraint::Kind::kJsonSchema:
      return GrammarKind::kJsonSchema;
    case Constraint::Kind::kRegex:
      return GrammarKind::kRegex;
    case Constraint::Kind::kGrammar:
      return GrammarKind::kEbnf;
    case Constraint::Kind::kChoice:
      break;
  }
  return GrammarKind::kChoice;
}

GrammarCompiler::Options GrammarOptions(EngineMetrics* metrics) {
  GrammarCompiler::Options options;
  options.on_compiled = [metrics](Constraint::Kind kind, absl::Duration time,
                                  const absl::Status& status) {
    metrics->GrammarCompiled(KindOf(kind), time, status.ok());
  };
  options.on_kept = [metrics] { metrics->GrammarCacheHit(); };
  return options;
}

absl::StatusOr<std::unique_ptr<FrontendServer>> StartFrontend(
    const CoordinatorOptions& options, Engine* engine, const ServedModel& model, WorkerFleet* fleet,
    EngineMetrics* metrics, GrammarCompiler* grammars, Ending* ending) {
  FrontendServer::Options frontend;
  frontend.grammars = grammars;
  frontend.host = options.bind;
  frontend.admin_host = options.admin_bind;
  frontend.port = options.port;
  frontend.admin_port = options.admin_port;
  frontend.health_port = options.health_port;
  frontend.reflection = options.reflection;
  frontend.stall_timeout = options.stall_timeout;
  frontend.slow_reader.patience = options.slow_reader_timeout;
  frontend.admin.group = [fleet] { return fleet->Snapshot(); };
  frontend.admin.drain = [ending,
                          drain = options.drain_timeout](std::optional<absl::Duration> timeout) {
    ending->Begin({absl::OkStatus(), "Admin.Drain", timeout.value_or(drain)});
  };
  frontend.admin.version = kBuildVersion;
  frontend.admin.started_at = absl::Now();
  frontend.admin.load.block_tokens = kBlockTokens;
  frontend.admin.load.max_waiting = options.max_waiting;
  frontend.admin.load.max_waiting_tokens = options.max_waiting_tokens;
  return FrontendServer::Start(std::move(frontend), engine, &model, metrics);
}

absl::Status Serve(const CoordinatorOptions& options, Ending* ending) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ModelSetup> model, SetUpModel(options));
  LogInfo("model: event=opened path={} name={} family={} formats={} context={} digest={}",
          options.model, model->served.names.front(), model->served.family,
          absl::StrJoin(model->served.weight_formats, ","), model->served.context_tokens,
          model->checkpoint.model_digest());
  const std::unique_ptr<CoordinatorMetrics> metrics = MakeMetrics(options, model->served);
  ASSIGN_OR_RETURN(const std::unique_ptr<WorkerFleet> fleet,
                   WorkerFleet::Listen(FleetOptions(options, *model, ending)));

  Engine::Options engine_options;
  if (options.token_budget > 0) engine_options.token_budget = options.token_budget;
  engine_options.prefill_chunk = options.prefill_chunk;
  engine_options.prefix_cache = options.prefix_cache;
  engine_options.model_fingerprint = model->served.fingerprint;
  engine_options.vocab_size = model->served.vocabulary_size;
  engine_options.max_running = options.max_running;
  engine_options.max_waiting = options.max_waiting;
  engine_options.max_waiting_tokens = options.max_waiting_tokens;
  engine_options.max_queue_wait = options.max_queue_wait;
  engine_options.itl_slo = options.itl_slo;
  engine_options.tenant_weights = options.tenant_weights;
  engine_options.context_tokens = model->served.context_tokens;
  GrammarCompiler grammars(VocabularyBytes::Of(*model->tokenizer, model->served.vocabulary_size,
                                               model->served.end_tokens),
                           GrammarOptions(metrics.get()));
  const std::unique_ptr<Engine> engine =
      Engine::Create(engine_options, model->tokenizer.get(), fleet.get(), metrics.get());
  ASSIGN_OR_RETURN(const std::unique_ptr<FrontendServer> frontend,
                   StartFrontend(options, engine.get(), model->served, fleet.get(), metrics.get(),
                                 &grammars, ending));
  metrics->SetSources([&engine] { return engine->Stats(); },
                      [&fleet] { return fleet->Snapshot(); });
  absl::Status status =
      options.metrics_port ? metrics->Serve(options.bind, *options.metrics_port) : absl::OkStatus();
  if (status.ok())
    status = WritePortFile(options.port_file, frontend->ports(), fleet->port(), metrics->port());
  if (status.ok()) {
    const HeapTrimmer trimmer{HeapTrimmer::Options()};
    engine->Start();  // lets the workers in
    LogInfo(
        "coordinator: event=listening port={} fleet_port={} admin_port={} health_port={} "
        "metrics_port={} workers={}",
        frontend->ports().inference, fleet->port(), frontend->ports().admin,
        frontend->ports().health, metrics->port(), options.workers);
    status = ending->Await().status;
    // Readiness first, so that balancers look elsewhere; then no admissions; then the rest in the
    // order of its use.
    frontend->SetDraining();
    ending->Drain([&engine](const Ending::Reason& reason) {
      LogInfo("coordinator: event=ending cause=\"{}\" drain={}", reason.what,
              absl::FormatDuration(reason.drain));
      engine->Drain(reason.drain);
    });
  }
  grammars.Stop();  // calls that wait for it end with it
  frontend->Shutdown(kLastWords);
  metrics->ClearSources();
  engine->Stop();
  fleet->Stop();
  return status;
}

int Main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == kCompileGuardArgument) return RunCompileGuard();
  // Debian builds Abseil with it on: a graph of all locks, searched at every second one.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  SetDefaultThreadStack();         // gRPC's threads render templates
  const pid_t parent = getppid();  // first: it may die while we start
  AnswerHelp(CoordinatorHelp(), argc, argv);
  const std::vector<std::string> extra = ParseCommandLine("bitshard-coordinator", argc, argv);
  if (ListMetricsAsked()) {
    std::fputs(CoordinatorMetricsDoc().c_str(), stdout);
    return EXIT_SUCCESS;
  }
  const absl::StatusOr<CoordinatorOptions> options = CoordinatorOptionsFromFlags(extra);
  if (!options.ok()) {
    std::fprintf(stderr, "bitshard-coordinator: %s\n",
                 std::string(options.status().message()).c_str());
    return kExitBadFlags;
  }
  if (!InitLogging("bitshard-coordinator", options->log_level)) {
    std::fprintf(stderr,
                 "bitshard-coordinator: --log-level=%s: use debug, info, warning or error\n",
                 options->log_level.c_str());
    return kExitBadFlags;
  }
  // Of a taken port gRPC writes 600 characters: for debugging. We say ourselves what matters.
  gpr_set_log_function([](gpr_log_func_args* args) { LogDebug("grpc: {}", args->message); });
  if (options->open) {
    LogWarning(
        "coordinator: --bind={}: whoever reaches the port may use the service, in clear text; see "
        "SECURITY.md",
        options->bind);
  }
  if (options->exit_with_parent) DieWithParent(parent);
  // Protobuf's own lines about hostile requests would fill the log; the caller is told.
  google::protobuf::SetLogHandler(nullptr);
  Ending ending;
  TakeSignals(BlockSignals(), options->drain_timeout, &ending);
  absl::Status status;
  // The model's template is tried out there.
  StackThread([&] { status = Serve(*options, &ending); }).Join();
  if (!status.ok()) {
    std::fprintf(stderr, "bitshard-coordinator: %s\n", std::string(status.message()).c_str());
    std::fflush(nullptr);
    std::_Exit(kExitCannotServe);
  }
  LogInfo("coordinator: event=ended");
  std::fflush(nullptr);
  std::_Exit(EXIT_SUCCESS);  // the signal thread still refers to what lives here
}

}  // namespace
}  // namespace bitshard

int main(int argc, char** argv) { return bitshard::Main(argc, argv); }
