// bitshard serve: a coordinator and N workers on this machine, as processes, looked after until
// Ctrl-C.
//
// What dies is started again: a worker that ended, and one that the coordinator no longer counts
// although its process still exists (it hangs: it is killed first). The coordinator's end ends the
// service.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "coordinator/tools/child_process.h"
#include "coordinator/tools/local_service.h"
#include "coordinator/tools/progress.h"
#include "coordinator/tools/verb.h"
#include "kernels/base/command_line.h"
#include "kernels/base/monotonic_time.h"
#include "kernels/base/status_macros.h"
#include "proto/admin.grpc.pb.h"

ABSL_FLAG(std::string, bind, "127.0.0.1", "address that the service listens on");
ABSL_FLAG(int32_t, port, 50051, "port of the service; 0 = any free one");
ABSL_FLAG(int32_t, metrics_port, 0,
          "port of the coordinator's Prometheus page; 0 = any free one, -1 = none");
ABSL_FLAG(std::string, served_model_name, "", "name for requests; empty = the checkpoint's");
ABSL_FLAG(std::string, log_level, "",
          "debug, info, warning or error; empty = warning on a terminal, else info");
ABSL_FLAG(std::string, require_kernels, "any", "fast: refuse fallback kernels; any: report them");
ABSL_FLAG(std::string, port_file, "", "write the chosen ports here as key=value lines");

namespace bitshard {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(200);
constexpr int kRestartsAMinute = 5;  // of one worker, before we give up
// A worker that is let go ends just before the coordinator does.
constexpr absl::Duration kLetGoGrace = absl::Seconds(2);
// A worker that runs but is not registered for so long hangs; registration takes well under a
// second.
constexpr absl::Duration kLostWorkerGrace = absl::Seconds(6);
constexpr absl::Duration kSilence = absl::Seconds(10);  // of the coordinator, before we say so

std::atomic<int> stop_signals{0};

// Whether the coordinator hears from this process, with a rank or waiting for one.
bool Counts(const v1::ServiceStatus& status, pid_t pid) {
  return std::any_of(status.ranks().begin(), status.ranks().end(),
                     [pid](const v1::RankStatus& rank) {
                       return rank.pid() == pid && rank.phase() != v1::RANK_PHASE_MISSING;
                     }) ||
         std::any_of(status.spares().begin(), status.spares().end(),
                     [pid](const v1::SpareWorker& spare) { return spare.pid() == pid; });
}

struct Worker {
  ChildProcess process;
  absl::Time last_counted;  // when the coordinator last listed it
  bool was_counted = false;
  std::deque<absl::Time> restarts;  // within the last minute
};

class Service {
 public:
  explicit Service(LocalServiceOptions options) : local_(std::move(options)) {}

  int Run();

 private:
  // Waits for the coordinator's ports. Nothing to say when it ended: it has said why.
  absl::Status AwaitPorts();
  void ShowProgress(const v1::ServiceStatus& status);
  void ShowSilence(bool answers);
  absl::Status LookAfterWorkers(const std::optional<v1::ServiceStatus>& status);
  // Whether the coordinator ends, or we are told to end.
  bool EndsWithin(absl::Duration patience);
  void End();

  LocalService local_;
  std::vector<Worker> workers_;
  ProgressBar progress_;
  bool was_ready_ = false;
  absl::Time last_answer_ = MonotonicNow();  // of the coordinator
  bool told_silence_ = false;
};

absl::Status Service::AwaitPorts() {
  progress_.Phase("reading the model's headers");
  while (true) {
    const absl::StatusOr<bool> have = local_.HavePorts();
    if (!have.ok()) {
      progress_.Clear();
      return have.status();
    }
    if (*have) break;
    if (stop_signals > 0) return absl::CancelledError("stopped before the coordinator was up");
    absl::SleepFor(absl::Milliseconds(10));
  }
  if (!absl::GetFlag(FLAGS_port_file).empty()) {
    const std::string path = absl::GetFlag(FLAGS_port_file);
    std::error_code error;
    std::filesystem::copy_file(local_.ports_path(), path + ".new",
                               std::filesystem::copy_options::overwrite_existing, error);
    if (!error) std::filesystem::rename(path + ".new", path, error);
    if (error)
      return absl::InvalidArgumentError(absl::StrCat("--port-file=", path, ": ", error.message()));
  }
  return absl::OkStatus();
}

void Service::ShowProgress(const v1::ServiceStatus& status) {
  if (status.ready()) {
    if (!was_ready_) {
      progress_.Clear();
      std::fprintf(stderr,
                   "%s is ready on %s:%s (%d worker%s). Ctrl-C ends.\n"
                   "  metrics http://localhost:%s/metrics, health port %s, admin port %s\n",
                   status.model().c_str(), local_.options().bind.c_str(),
                   local_.port("port").c_str(), local_.options().workers,
                   local_.options().workers == 1 ? "" : "s", local_.port("metrics_port").c_str(),
                   local_.port("health_port").c_str(), local_.port("admin_port").c_str());
    }
    was_ready_ = true;
    return;
  }
  if (was_ready_) std::fprintf(stderr, "not ready: %s\n", status.reason().c_str());
  was_ready_ = false;
  uint64_t done = 0, total = 0;
  for (const v1::RankStatus& rank : status.ranks()) {
    // A rank that has loaded reports the size of what it holds, and no progress any more.
    const bool loaded = rank.phase() >= v1::RANK_PHASE_LOADED;
    done += loaded ? rank.weight_bytes() : rank.loaded_bytes();
    total += loaded ? rank.weight_bytes() : rank.total_bytes();
  }
  if (total > 0 && done < total) {
    progress_.Update("loading weights", done, total);
  } else {
    progress_.Phase(total > 0 ? "joining the workers" : "waiting for the workers");
  }
}

void Service::ShowSilence(bool answers) {
  const absl::Time now = MonotonicNow();
  if (answers) last_answer_ = now;
  const bool silent = now - last_answer_ > kSilence;
  if (silent == told_silence_) return;
  told_silence_ = silent;
  progress_.Clear();
  const std::string what =
      silent ? absl::StrCat("has not answered for ", absl::FormatDuration(kSilence), ": it hangs")
             : "answers again";
  std::fprintf(stderr, "the coordinator (pid %d) %s\n", local_.coordinator()->pid(), what.c_str());
}

absl::Status Service::LookAfterWorkers(const std::optional<v1::ServiceStatus>& status) {
  const absl::Time now = MonotonicNow();
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    std::optional<std::string> ended = worker.process.Ended();
    if (!ended && status) {
      const bool counted = Counts(*status, worker.process.pid());
      worker.was_counted = worker.was_counted || counted;
      if (counted) worker.last_counted = now;
      if (now - worker.last_counted > kLostWorkerGrace) {
        std::fprintf(stderr,
                     "worker %zu (pid %d) hangs, or cannot reach the coordinator: not registered "
                     "for %s; killing it\n",
                     i, worker.process.pid(), absl::FormatDuration(kLostWorkerGrace).c_str());
        worker.process.Signal(SIGKILL);
        worker.last_counted = now;  // its end is seen in a later round
      }
    }
    if (!ended) continue;
    const int code = worker.process.exit_code();
    if ((code == 0 || code == kExitTurnedAway) && EndsWithin(kLetGoGrace)) return absl::OkStatus();
    progress_.Clear();
    if (code == kExitBadCommandLine && !worker.was_counted)
      return absl::InvalidArgumentError("the workers cannot start like this, see above");
    while (!worker.restarts.empty() && now - worker.restarts.front() > absl::Minutes(1))
      worker.restarts.pop_front();
    if (worker.restarts.size() >= kRestartsAMinute) {
      return absl::UnavailableError(absl::StrCat("worker ", i, " ended ", kRestartsAMinute + 1,
                                                 " times within a minute, last with ", *ended,
                                                 "; see its log above"));
    }
    std::fprintf(stderr, "worker %zu (pid %d) ended: %s; starting it again\n", i,
                 worker.process.pid(), ended->c_str());
    ASSIGN_OR_RETURN(worker.process, local_.StartWorker(static_cast<int>(i)));
    worker.restarts.push_back(now);
    worker.last_counted = now;
  }
  return absl::OkStatus();
}

bool Service::EndsWithin(absl::Duration patience) {
  const absl::Time end = MonotonicNow() + patience;
  while (stop_signals == 0 && !local_.coordinator()->Ended()) {
    if (MonotonicNow() > end) return false;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return true;
}

void Service::End() {
  std::vector<ChildProcess*> workers;
  for (Worker& worker : workers_) workers.push_back(&worker.process);
  const int signals_before = stop_signals;
  local_.End(
      workers, [&] { return stop_signals != signals_before; },
      [] { std::fprintf(stderr, "finishing the running answers; Ctrl-C again ends at once\n"); });
}

int Service::Run() {
  const auto fail = [&](const absl::Status& status) {
    progress_.Clear();
    if (!absl::IsCancelled(status))
      std::fprintf(stderr, "bitshard serve: %s\n", std::string(status.message()).c_str());
    ChildProcess* coordinator = local_.coordinator();
    const bool coordinator_failed =
        coordinator != nullptr && coordinator->Ended() && coordinator->exit_code() != 0;
    const int code = coordinator_failed                ? coordinator->exit_code()
                     : absl::IsInvalidArgument(status) ? kExitBadCommandLine
                                                       : 1;
    End();
    return absl::IsCancelled(status) ? 0 : code;
  };
  if (const absl::Status status = local_.StartCoordinator(); !status.ok()) return fail(status);
  if (const absl::Status status = AwaitPorts(); !status.ok()) return fail(status);
  for (int i = 0; i < local_.options().workers; ++i) {
    auto worker = local_.StartWorker(i);
    if (!worker.ok()) return fail(worker.status());
    workers_.push_back({*std::move(worker), MonotonicNow(), false, {}});
  }
  while (stop_signals == 0) {
    if (const auto ended = local_.coordinator()->Ended()) {
      if (local_.coordinator()->exit_code() == 0) {
        progress_.Clear();
        std::fprintf(stderr,
                     "bitshard serve: drained (Admin.Drain, or a signal to the coordinator)\n");
        break;
      }
      return fail(absl::UnavailableError(absl::StrCat("the coordinator ended: ", *ended)));
    }
    const std::optional<v1::ServiceStatus> status = local_.AskStatus();
    ShowSilence(status.has_value());
    if (status) ShowProgress(*status);
    if (const absl::Status looked = LookAfterWorkers(status); !looked.ok()) return fail(looked);
    absl::SleepFor(kPoll);
  }
  progress_.Clear();
  End();
  return 0;
}

int Run(const std::vector<std::string>& args) {
  if (args.size() != 1)
    return UsageError("serve", "needs exactly one model: a GGUF file or a Hugging Face folder");
  absl::StatusOr<LocalServiceOptions> options = LocalServiceOptionsFromFlags(args[0]);
  if (!options.ok()) return UsageError("serve", std::string(options.status().message()));
  options->bind = absl::GetFlag(FLAGS_bind);
  options->port = absl::GetFlag(FLAGS_port);
  options->metrics_port = absl::GetFlag(FLAGS_metrics_port);
  options->served_model_name = absl::GetFlag(FLAGS_served_model_name);
  options->coordinator_flags.push_back("--require-kernels=" + absl::GetFlag(FLAGS_require_kernels));
  options->log_level = absl::GetFlag(FLAGS_log_level);
  if (options->log_level.empty())
    options->log_level = isatty(STDERR_FILENO) != 0 ? "warning" : "info";
  struct sigaction action = {};
  action.sa_handler = [](int) { ++stop_signals; };
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGHUP, &action, nullptr);  // the terminal was closed
  return Service(*std::move(options)).Run();
}

const RegisterVerb kRegistered({
    .name = "serve",
    .summary = "serve a model on this machine: a coordinator and N workers",
    .help =
        "bitshard serve MODEL [--flags]      MODEL: a GGUF file or a Hugging Face folder\n\n"
        "Starts a coordinator and --workers worker processes that share the model's weights (any "
        "number: heads and\n"
        "columns need not divide), waits until they are ready, and looks after them: a worker that "
        "dies or hangs is\n"
        "started again. Ctrl-C lets running answers finish (30 s at most) and ends; a second one "
        "ends at once.\n\n"
        "  --workers=N           worker processes (1)\n"
        "  --bind=ADDRESS --port=PORT   where the gRPC service listens (127.0.0.1:50051)\n"
        "  --activations=a16     a16: 16-bit fixed point, as good as f32 (KLD < 1e-6) and faster; "
        "a8: 8 bits, faster still, loses some quality; "
        "f32: exact path\n"
        "  --kv-cache-dtype=bf16 bf16, f16, f32, int8 or fp8_e4m3\n"
        "  --deterministic=false on GPUs: faster sums over workers, whose bits depend on batch and "
        "workers (true)\n"
        "  --threads=N           threads of each worker (its share of the cores)\n"
        "  --device=cuda         a GPU for each worker; cpu; auto: a GPU where one opens (the log "
        "says why not)\n"
        "  --require-kernels=fast   refuse to start when anything would run on a fallback kernel "
        "(any: report it)\n"
        "  --bin-dir=FOLDER      where bitshard-coordinator and bitshard-worker are (beside this "
        "program)\n"
        "  --metrics-port=PORT   Prometheus page (a free port, printed)\n"
        "  --served-model-name=NAME   name for requests (the checkpoint's)\n"
        "  --log-level=LEVEL     debug, info, warning, error (warning on a terminal, else info)\n"
        "  --port-file=FILE      write the chosen ports there, for scripts; before the service is "
        "ready: ask its health\n"
        "  --coordinator-flags=F,F  --worker-flags=F,F   anything else: "
        "--shares=3,2,--max-running=8 is "
        "two flags\n"
        "                        (bitshard-coordinator --help and bitshard-worker --help list "
        "them)\n"
        "Exit codes: 0 ended in order (Ctrl-C, SIGTERM, a drain), 1 cannot serve, 2 wrong flags. A "
        "coordinator that\n"
        "dies is not started again: serve ends with its exit code, 128 + the signal if one killed "
        "it (137: SIGKILL).\n"
        "\nExamples:\n"
        "  bitshard serve SmolLM2-135M-Instruct.Q4_1.gguf --workers=2\n"
        "  bitshard serve ./my-model --workers=3 --kv-cache-dtype=f32 --activations=f32\n",
    .starts_programs = true,
    .run = &Run,
});

}  // namespace
}  // namespace bitshard
