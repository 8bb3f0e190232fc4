// bitshard serve: a coordinator and N workers on this machine, as processes, looked after until
// Ctrl-C.
//
// What dies is started again: a worker that ended, and one that the coordinator no longer counts
// although its process still exists (it hangs: it is killed first). The coordinator's end ends the
// service.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include <grpcpp/grpcpp.h>

#include "coordinator/tools/child_process.h"
#include "coordinator/tools/progress.h"
#include "coordinator/tools/verb.h"
#include "kernels/base/monotonic_time.h"
#include "kernels/base/status_macros.h"
#include "proto/inference.grpc.pb.h"

ABSL_FLAG(int32_t, workers, 1, "worker processes on this machine");
ABSL_FLAG(std::string, bind, "127.0.0.1", "address that the service listens on");
ABSL_FLAG(int32_t, port, 50051, "port of the service; 0 = any free one");
ABSL_FLAG(int32_t, metrics_port, 0,
          "port of the coordinator's Prometheus page; 0 = any free one, -1 = none");
ABSL_FLAG(int32_t, threads, 0, "threads of each worker; 0 = its share of the cores");
ABSL_FLAG(std::string, activations, "a16", "a16 or f32");
ABSL_FLAG(std::string, kv_cache_dtype, "bf16", "bf16, f16 or f32");
ABSL_FLAG(std::string, served_model_name, "", "name for requests; empty = the checkpoint's");
ABSL_FLAG(std::string, log_level, "",
          "debug, info, warning or error; empty = warning on a terminal, else info");
ABSL_FLAG(std::string, port_file, "", "write the chosen ports here as key=value lines");
ABSL_FLAG(std::string, bin_dir, "",
          "folder of bitshard-coordinator and bitshard-worker; empty = beside this program");
ABSL_FLAG(std::vector<std::string>, coordinator_flags, {},
          "further flags for the coordinator, comma-separated");
ABSL_FLAG(std::vector<std::string>, worker_flags, {},
          "further flags for every worker, comma-separated");

namespace bitshard {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(200);
constexpr int kRestartsAMinute = 5;  // of one worker, before we give up
// A worker that runs but is not registered for so long hangs; registration takes well under a
// second.
constexpr absl::Duration kLostWorkerGrace = absl::Seconds(6);

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
  absl::Time last_counted;          // when the coordinator last listed it
  std::deque<absl::Time> restarts;  // within the last minute
};

class Service {
 public:
  explicit Service(std::string model) : model_(std::move(model)) {}
  ~Service() { std::filesystem::remove_all(folder_); }

  int Run();

 private:
  absl::Status StartCoordinator();
  // Waits for the coordinator's ports. Nothing to say when it ended: it has said why.
  absl::Status AwaitPorts();
  absl::StatusOr<ChildProcess> StartWorker(int index);
  std::optional<v1::ServiceStatus> AskStatus();
  void ShowProgress(const v1::ServiceStatus& status);
  absl::Status LookAfterWorkers(const std::optional<v1::ServiceStatus>& status);
  void End();
  std::string LogLevel() const;

  const std::string model_;
  std::string folder_;
  std::string token_file_;
  std::map<std::string, std::string> ports_;
  std::optional<ChildProcess> coordinator_;
  std::vector<Worker> workers_;
  std::unique_ptr<v1::Admin::Stub> admin_;
  ProgressBar progress_;
  bool was_ready_ = false;
};

std::string Service::LogLevel() const {
  const std::string level = absl::GetFlag(FLAGS_log_level);
  if (!level.empty()) return level;
  return isatty(STDERR_FILENO) != 0 ? "warning" : "info";
}

absl::Status Service::StartCoordinator() {
  char folder[] = "/tmp/bitshard-serve-XXXXXX";
  if (mkdtemp(folder) == nullptr) return absl::InternalError("cannot make a folder in /tmp");
  folder_ = folder;
  token_file_ = folder_ + "/fleet-token";
  {
    std::ifstream random("/dev/urandom", std::ios::binary);
    char bytes[32];
    random.read(bytes, sizeof bytes);
    std::ofstream token(token_file_);
    for (char byte : bytes)
      token << absl::StrCat(absl::Hex(static_cast<uint8_t>(byte), absl::kZeroPad2));
  }
  ASSIGN_OR_RETURN(const std::string program,
                   FindProgram("bitshard-coordinator", absl::GetFlag(FLAGS_bin_dir)));
  std::vector<std::string> command = {
      program,
      "--model=" + model_,
      absl::StrCat("--workers=", absl::GetFlag(FLAGS_workers)),
      "--bind=" + absl::GetFlag(FLAGS_bind),
      absl::StrCat("--port=", absl::GetFlag(FLAGS_port)),
      "--fleet-bind=127.0.0.1",
      "--fleet-port=0",
      "--health-port=0",
      "--admin-port=0",
      absl::StrCat("--metrics-port=", absl::GetFlag(FLAGS_metrics_port)),
      "--activations=" + absl::GetFlag(FLAGS_activations),
      "--kv-cache-dtype=" + absl::GetFlag(FLAGS_kv_cache_dtype),
      "--token-file=" + token_file_,
      "--port-file=" + folder_ + "/ports",
      "--exit-with-parent",
      "--log-level=" + LogLevel()};
  if (!absl::GetFlag(FLAGS_served_model_name).empty()) {
    command.push_back("--served-model-name=" + absl::GetFlag(FLAGS_served_model_name));
  }
  for (const std::string& flag : absl::GetFlag(FLAGS_coordinator_flags)) command.push_back(flag);
  ASSIGN_OR_RETURN(coordinator_, ChildProcess::Start(command));
  return absl::OkStatus();
}

absl::Status Service::AwaitPorts() {
  progress_.Phase("reading the model's headers");
  while (true) {
    std::ifstream file(folder_ + "/ports");
    std::string line;
    while (std::getline(file, line)) {
      const size_t equals = line.find('=');
      if (equals != std::string::npos) ports_[line.substr(0, equals)] = line.substr(equals + 1);
    }
    if (!ports_.empty()) break;
    if (const auto ended = coordinator_->Ended()) {
      progress_.Clear();
      return absl::UnavailableError(absl::StrCat("the coordinator did not start: ", *ended));
    }
    if (stop_signals > 0) return absl::CancelledError("stopped before the coordinator was up");
    absl::SleepFor(absl::Milliseconds(10));
  }
  if (ports_["fleet_port"].empty() || ports_["admin_port"].empty() || ports_["port"].empty()) {
    return absl::InternalError("the coordinator's port file lacks port, fleet_port or admin_port");
  }
  admin_ = v1::Admin::NewStub(
      grpc::CreateChannel("127.0.0.1:" + ports_["admin_port"], grpc::InsecureChannelCredentials()));
  if (!absl::GetFlag(FLAGS_port_file).empty()) {
    const std::string path = absl::GetFlag(FLAGS_port_file);
    std::error_code error;
    std::filesystem::copy_file(folder_ + "/ports", path + ".new",
                               std::filesystem::copy_options::overwrite_existing, error);
    if (!error) std::filesystem::rename(path + ".new", path, error);
    if (error)
      return absl::InvalidArgumentError(absl::StrCat("--port-file=", path, ": ", error.message()));
  }
  return absl::OkStatus();
}

absl::StatusOr<ChildProcess> Service::StartWorker(int index) {
  ASSIGN_OR_RETURN(const std::string program,
                   FindProgram("bitshard-worker", absl::GetFlag(FLAGS_bin_dir)));
  std::vector<std::string> command = {program,
                                      "--coordinator=127.0.0.1:" + ports_["fleet_port"],
                                      "--token-file=" + token_file_,
                                      absl::StrCat("--local-rank=", index),
                                      absl::StrCat("--local-ranks=", absl::GetFlag(FLAGS_workers)),
                                      absl::StrCat("--threads=", absl::GetFlag(FLAGS_threads)),
                                      "--exit-with-parent",
                                      "--log-level=" + LogLevel()};
  for (const std::string& flag : absl::GetFlag(FLAGS_worker_flags)) command.push_back(flag);
  return ChildProcess::Start(command);
}

std::optional<v1::ServiceStatus> Service::AskStatus() {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
  v1::GetStatusResponse response;
  if (!admin_->GetStatus(&context, v1::GetStatusRequest(), &response).ok()) return std::nullopt;
  return response.status();
}

void Service::ShowProgress(const v1::ServiceStatus& status) {
  if (status.ready()) {
    if (!was_ready_) {
      progress_.Clear();
      std::fprintf(stderr,
                   "%s is ready on %s:%s (%d worker%s). Ctrl-C ends.\n"
                   "  metrics http://localhost:%s/metrics, health port %s, admin port %s\n",
                   status.model().c_str(), absl::GetFlag(FLAGS_bind).c_str(),
                   ports_["port"].c_str(), absl::GetFlag(FLAGS_workers),
                   absl::GetFlag(FLAGS_workers) == 1 ? "" : "s", ports_["metrics_port"].c_str(),
                   ports_["health_port"].c_str(), ports_["admin_port"].c_str());
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

absl::Status Service::LookAfterWorkers(const std::optional<v1::ServiceStatus>& status) {
  const absl::Time now = MonotonicNow();
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    std::optional<std::string> ended = worker.process.Ended();
    if (!ended && status) {
      const bool counted = Counts(*status, worker.process.pid());
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
    progress_.Clear();
    while (!worker.restarts.empty() && now - worker.restarts.front() > absl::Minutes(1))
      worker.restarts.pop_front();
    if (worker.restarts.size() >= kRestartsAMinute) {
      return absl::UnavailableError(absl::StrCat("worker ", i, " ended ", kRestartsAMinute + 1,
                                                 " times within a minute, last with ", *ended,
                                                 "; see its log above"));
    }
    std::fprintf(stderr, "worker %zu (pid %d) ended: %s; starting it again\n", i,
                 worker.process.pid(), ended->c_str());
    ASSIGN_OR_RETURN(worker.process, StartWorker(static_cast<int>(i)));
    worker.restarts.push_back(now);
    worker.last_counted = now;
  }
  return absl::OkStatus();
}

// In order: the coordinator drains and lets the workers go; what is left after that is killed.
void Service::End() {
  if (coordinator_) coordinator_->Signal(SIGTERM);
  const int signals_before = stop_signals;
  const absl::Time patience = MonotonicNow() + absl::Seconds(3);  // an idle service ends within two
  bool told = false;
  while (coordinator_ && !coordinator_->Ended() && stop_signals == signals_before) {
    if (!told && MonotonicNow() > patience) {
      std::fprintf(stderr, "finishing the running answers; Ctrl-C again ends at once\n");
      told = true;
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
  for (Worker& worker : workers_) worker.process.Signal(SIGTERM);
  const absl::Time grace = MonotonicNow() + absl::Seconds(2);
  const auto all_ended = [&] {
    bool all = true;
    for (Worker& worker : workers_) all &= worker.process.Ended().has_value();
    return all;
  };
  while (!all_ended() && MonotonicNow() < grace) absl::SleepFor(absl::Milliseconds(20));
  if (coordinator_) coordinator_->Signal(SIGKILL);
  for (Worker& worker : workers_) worker.process.Signal(SIGKILL);
  while (!all_ended() || (coordinator_ && !coordinator_->Ended()))
    absl::SleepFor(absl::Milliseconds(5));
}

int Service::Run() {
  const auto fail = [&](const absl::Status& status) {
    progress_.Clear();
    if (!absl::IsCancelled(status))
      std::fprintf(stderr, "bitshard serve: %s\n", std::string(status.message()).c_str());
    const bool coordinator_failed =
        coordinator_ && coordinator_->Ended() && coordinator_->exit_code() != 0;
    const int code = coordinator_failed ? coordinator_->exit_code() : 1;
    End();
    return absl::IsCancelled(status) ? 0 : code;
  };
  if (const absl::Status status = StartCoordinator(); !status.ok()) return fail(status);
  if (const absl::Status status = AwaitPorts(); !status.ok()) return fail(status);
  for (int i = 0; i < absl::GetFlag(FLAGS_workers); ++i) {
    auto worker = StartWorker(i);
    if (!worker.ok()) return fail(worker.status());
    workers_.push_back({*std::move(worker), MonotonicNow(), {}});
  }
  while (stop_signals == 0) {
    if (const auto ended = coordinator_->Ended()) {
      if (coordinator_->exit_code() == 0) break;  // drained by somebody else
      return fail(absl::UnavailableError(absl::StrCat("the coordinator ended: ", *ended)));
    }
    const std::optional<v1::ServiceStatus> status = AskStatus();
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
  if (absl::GetFlag(FLAGS_workers) < 1 || absl::GetFlag(FLAGS_workers) > 64) {
    return UsageError("serve", "--workers must be 1 to 64");
  }
  struct sigaction action = {};
  action.sa_handler = [](int) { ++stop_signals; };
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGHUP, &action, nullptr);  // the terminal was closed
  return Service(args[0]).Run();
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
        "f32: exact path\n"
        "  --kv-cache-dtype=bf16 bf16, f16 or f32\n"
        "  --threads=N           threads of each worker (its share of the cores)\n"
        "  --metrics-port=PORT   Prometheus page (a free port, printed)\n"
        "  --served-model-name=NAME   name for requests (the checkpoint's)\n"
        "  --log-level=LEVEL     debug, info, warning, error (warning on a terminal, else info)\n"
        "  --port-file=FILE      write the chosen ports there, for scripts\n"
        "  --coordinator-flags=F,F  --worker-flags=F,F   anything else (see bitshard-coordinator "
        "--help)\n"
        "\nExamples:\n"
        "  bitshard serve SmolLM2-135M-Instruct.Q4_1.gguf --workers=2\n"
        "  bitshard serve ./my-model --workers=3 --kv-cache-dtype=f32 --activations=f32\n",
    .run = &Run,
});

}  // namespace
}  // namespace bitshard
