// bitshard-worker: one rank. Flags in, then the control thread of worker/service until it says that
// we are done.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <memory>
#include <pthread.h>
#include <signal.h>
#include <sstream>
#include <string>
#include <sys/prctl.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include <grpc/support/log.h>
#include <grpcpp/security/credentials.h>

#include "kernels/base/command_line.h"
#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/thread_pool.h"
#include "kernels/registry/kernel_probe.h"
#include "kernels/registry/numerics_digest.h"
#include "proto/version.h"
#include "worker/collective/collective.h"
#include "worker/collective/gloo.h"
#include "worker/collective/gloo_address.h"
#include "worker/device/worker_device.h"
#include "worker/load/loader.h"
#include "worker/machine.h"
#include "worker/memory_report.h"
#include "worker/metrics.h"
#include "worker/ops/op.h"
#include "worker/options.h"
#include "worker/score_log.h"
#include "worker/service/worker_service.h"
#include "worker/step/step_runner.h"

namespace bitshard {
namespace {

constexpr uint32_t kProtocol = 1;  // of proto/worker.proto

constexpr int kExitNoCoordinator = 3;
constexpr int kExitDeviceLost = 4;

// Dies with `parent`. SIGKILL: a worker that hangs in a system call must not stay behind.
void DieWithParent(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) {
    std::fprintf(stderr, "bitshard-worker: the parent process has gone\n");
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

internal::Register Registration(const WorkerOptions& options, const WorkerDevice* device) {
  internal::Register out;
  out.set_token(options.token);
  out.set_instance(RandomInstance());
  out.set_protocol_min(kProtocol);
  out.set_protocol_max(kProtocol);
  out.set_build(kBuildVersion);
  out.set_host(SharedMemoryHost());
  out.set_pid(getpid());
  out.set_local_rank(options.local_rank);
  if (device != nullptr) {
    device->Describe(out);
    return out;
  }
  out.set_device("cpu");
  out.set_isa(std::string(IsaName(options.isa)));
  out.set_memory_bytes(options.memory_bytes);
  out.set_bandwidth_bytes_per_s(MeasureReadBandwidth());
  out.set_numerics_digest(NumericsDigest(options.isa));
  for (std::string& op : RegisteredOps()) out.add_ops(std::move(op));
  for (const std::string& name : options.collectives) out.add_collectives(name);
  return out;
}

uint64_t VocabBegin(const internal::ModelGraph& graph) {
  for (const internal::Node& node : graph.nodes()) {
    if (node.has_lm_head()) return node.lm_head().vocab_begin();
  }
  return 0;
}

// Of the fastest linear kernel on all threads; 0 when nothing was probed.
double PeakFlops(const KernelOrder& order, int threads) {
  double best = 0;
  for (const ProbeFigure& figure : order.figures()) best = std::max(best, figure.gmacs_per_s);
  return 2e9 * best * threads;
}

// From the process's start, as the kernel has it, to now.
std::chrono::microseconds ProcessAge() {
  std::ifstream in("/proc/self/stat");
  std::string stat((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  // The 22nd field, the 20th after the name in brackets: clock ticks since the machine started.
  std::istringstream rest(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
  std::string field;
  for (int i = 0; i < 20; ++i) rest >> field;
  timespec now = {};
  if (clock_gettime(CLOCK_BOOTTIME, &now) != 0 || field.empty()) return {};
  const double start =
      std::strtod(field.c_str(), nullptr) / static_cast<double>(sysconf(_SC_CLK_TCK));
  const double age =
      static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) - start;
  return std::chrono::microseconds(static_cast<int64_t>(std::max(0.0, age) * 1e6));
}

absl::StatusOr<std::unique_ptr<Collective>> Join(const WorkerOptions& options,
                                                 const internal::JoinCommunicator& join, int rank,
                                                 int world, const TellRanksFn& tell,
                                                 const std::atomic<bool>& stop) {
  const absl::Duration timeout = absl::Milliseconds(join.timeout_ms());
  if (world == 1) return MakeSoloCollective();
  if (join.collective().empty() || join.collective() == "shm")
    return JoinShmCollective(join.id(), rank, world, timeout, &stop);
  if (join.collective() != "gloo") {
    return absl::UnimplementedError(
        absl::StrCat("asked to join over \"", join.collective(), "\"; there are shm and gloo"));
  }
  GlooGroup group;
  group.id = join.id();
  group.rank = rank;
  group.world = world;
  group.tell = tell;
  ASSIGN_OR_RETURN(group.address, ChooseGlooAddress({.address = options.gloo_address,
                                                     .interface = options.gloo_interface,
                                                     .coordinator = options.coordinator,
                                                     .several_hosts = join.several_hosts()}));
  LogInfo("worker: joining over gloo rank={} world={} address={} epoch={}", rank, world,
          group.address, join.epoch());
  return JoinGlooCollective(group, timeout, &stop);
}

// `options` and `device` outlive the backend; no device: the CPU.
WorkerBackend Backend(const WorkerOptions& options, WorkerDevice* device, const KernelOrder* order,
                      ThreadPool* pool, ScoreLog* score_log, StepProfile* profile) {
  WorkerBackend backend;
  backend.profile = profile;
  backend.load =
      [device, pool, memory = options.memory_bytes](
          const internal::RankPlan& plan,
          const LoadProgressFn& progress) -> absl::StatusOr<std::shared_ptr<const LoadedWeights>> {
    if (device != nullptr) return device->Load(plan, *pool, progress);
    return LoadWeights(plan, *pool, progress, memory);
  };
  backend.bind = [device, pool, order, score_log, profile, isa = options.isa,
                  memory = options.memory_bytes](const internal::RankPlan& plan,
                                                 std::shared_ptr<const LoadedWeights> weights,
                                                 const internal::NumericsOptions& numerics) {
    StepRunner::Options bind;
    bind.numerics = numerics;
    bind.isa = isa;
    bind.kernel_order = order;
    bind.pool = pool;
    bind.profile = profile;
    bind.max_workspace_bytes = memory - std::min(memory, weights->arena_bytes);
    if (score_log != nullptr) {
      bind.logits_tap = [score_log, begin = static_cast<uint32_t>(VocabBegin(plan.graph()))](
                            uint32_t, uint32_t position, absl::Span<const float> logits) {
        score_log->Write(position, begin, logits);
      };
    }
    if (device != nullptr) return device->Bind(plan, std::move(weights), bind);
    return StepRunner::Bind(plan, std::move(weights), bind);
  };
  backend.join = [&options, device](const internal::JoinCommunicator& join, int rank, int world,
                                    const TellRanksFn& tell, const std::atomic<bool>& stop) {
    if (device != nullptr) return device->Join(join, rank, world, tell, stop);
    return Join(options, join, rank, world, tell, stop);
  };
  backend.self_test = &SelfTestCollective;
  backend.measure_memory = [device] {
    internal::MemoryReport report = MeasureMemory();
    if (device != nullptr) device->AddMemory(report);
    return report;
  };
  backend.require_fast_kernels = options.require_fast_kernels;
  for (const ProbeFigure& figure : order->figures()) {
    internal::ProbeFigure& out = backend.probe.emplace_back();
    out.set_kernel(figure.kernel);
    out.set_activations(FormName(figure.form));
    out.set_tokens(static_cast<uint32_t>(figure.tokens));
    out.set_gmacs_per_s(figure.gmacs_per_s);
  }
  return backend;
}

int Main(int argc, char** argv) {
  // Debian builds Abseil with it on: a graph of all locks, searched at every second one.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  const pid_t parent = getppid();  // first: it may die while we start
  AnswerHelp(WorkerHelp(), argc, argv);
  const std::vector<std::string> extra = ParseCommandLine("bitshard-worker", argc, argv);
  if (!extra.empty()) {
    std::fprintf(stderr, "bitshard-worker: unexpected argument \"%s\"; flags begin with --\n",
                 extra[0].c_str());
    return kExitBadCommandLine;
  }
  if (ListMetricsAsked()) {
    std::fputs(WorkerMetricsDoc().c_str(), stdout);
    return EXIT_SUCCESS;
  }
  const absl::StatusOr<WorkerOptions> options = WorkerOptionsFromFlags();
  if (!options.ok()) {
    std::fprintf(stderr, "bitshard-worker: %s\n", std::string(options.status().message()).c_str());
    return kExitBadCommandLine;
  }
  if (!InitLogging("bitshard-worker", options->log_level)) {
    std::fprintf(stderr, "bitshard-worker: --log-level=%s: use debug, info, warning or error\n",
                 options->log_level.c_str());
    return kExitBadCommandLine;
  }
  // gRPC's own lines are for debugging; we say ourselves what matters.
  gpr_set_log_function([](gpr_log_func_args* args) { LogDebug("grpc: {}", args->message); });
  if (options->exit_with_parent) DieWithParent(parent);
  const sigset_t signals = BlockSignals();

  std::unique_ptr<ScoreLog> score_log;
  if (!options->score_log.empty()) {
    auto opened = ScoreLog::Open(options->score_log);
    if (!opened.ok()) {
      std::fprintf(stderr, "bitshard-worker: %s\n", std::string(opened.status().message()).c_str());
      return kExitBadCommandLine;
    }
    score_log = *std::move(opened);
  }

  auto device = WorkerDevice::Open(*options);
  if (!device.ok()) {
    std::fprintf(stderr, "bitshard-worker: --device: %s\n",
                 std::string(device.status().message()).c_str());
    return kExitBadCommandLine;
  }

  std::unique_ptr<WorkerMetrics> metrics;
  if (options->metrics_port) {
    WorkerMetrics::Build build = {kBuildVersion, "cpu", std::string(IsaName(options->isa))};
    if (*device != nullptr) {
      build.backend = (*device)->facts().kind;
      build.isa = (*device)->facts().architecture;
    }
    auto served = WorkerMetrics::Serve(options->metrics_host, *options->metrics_port, build);
    if (!served.ok()) {
      std::fprintf(stderr, "bitshard-worker: %s\n", std::string(served.status().message()).c_str());
      return kExitBadCommandLine;
    }
    metrics = *std::move(served);
  }

  const auto before_probe = std::chrono::steady_clock::now();
  const bool probes = *device == nullptr && !options->isa_forced;
  const KernelOrder order = probes ? ProbeKernels(options->isa) : KernelOrder();
  const auto probe_time = std::chrono::steady_clock::now() - before_probe;

  ThreadPool pool(options->threads, options->cpus,
                  options->crowded ? 0 : ThreadPool::kDefaultSpinNs);
  WorkerService::Options service_options;
  service_options.coordinator = options->coordinator;
  service_options.credentials = grpc::InsecureChannelCredentials();
  service_options.registration = Registration(*options, device->get());
  if (metrics != nullptr) {
    service_options.registration.set_metrics_address(
        absl::StrCat(options->metrics_host, ":", metrics->port()));
    metrics->OnMachine(service_options.registration.bandwidth_bytes_per_s(),
                       PeakFlops(order, options->threads));
  }
  service_options.coordinator_timeout = options->coordinator_timeout;
  StepProfile profile;  // of the metrics
  WorkerBackend backend = Backend(*options, device->get(), &order, &pool, score_log.get(),
                                  metrics == nullptr ? nullptr : &profile);
  const std::chrono::microseconds age = ProcessAge();
  backend.process_start = std::chrono::steady_clock::now() - age;
  backend.bring_up.set_process_start_us(static_cast<uint64_t>(age.count()));
  backend.bring_up.set_kernel_probe_us(static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(probe_time).count()));
  LogInfo(
      "worker: starting pid={} coordinator={} device={} threads={} pinned={} memory_bytes={} "
      "isa={} metrics_port={}",
      getpid(), options->coordinator, service_options.registration.device(), options->threads,
      !options->cpus.empty(), service_options.registration.memory_bytes(),
      service_options.registration.isa(), metrics == nullptr ? -1 : metrics->port());
  std::atomic<WorkerService*> running{nullptr};
  std::atomic<bool> device_lost{false};
  backend.on_device_lost = [&running, &device_lost] {
    device_lost = true;
    running.load()->Leave("the device is lost");
  };
  WorkerService service(std::move(service_options), std::move(backend), metrics.get());
  running = &service;

  std::thread([&service, signals] {
    int signal = 0;
    sigwait(&signals, &signal);
    service.Leave(signal == SIGTERM ? "SIGTERM" : "SIGINT");
  }).detach();

  const absl::Status status = service.Run();
  if (!status.ok()) LogError("worker: {}", std::string(status.message()));
  LogInfo("worker: exiting pid={}", getpid());
  // Not through destructors: a load or a step may still be running, and nothing it does matters any
  // more.
  std::fflush(nullptr);
  if (device_lost) std::_Exit(kExitDeviceLost);
  if (absl::IsPermissionDenied(status)) std::_Exit(kExitTurnedAway);
  std::_Exit(status.ok() ? EXIT_SUCCESS : kExitNoCoordinator);
}

}  // namespace
}  // namespace bitshard

int main(int argc, char** argv) { return bitshard::Main(argc, argv); }
