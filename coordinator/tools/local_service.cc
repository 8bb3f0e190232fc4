#include "coordinator/tools/local_service.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include <grpcpp/grpcpp.h>

#include "kernels/base/monotonic_time.h"
#include "kernels/base/status_macros.h"

ABSL_FLAG(int32_t, workers, 1, "worker processes on this machine");
ABSL_FLAG(int32_t, threads, 0, "threads of each worker; 0 = its share of the cores");
ABSL_FLAG(
    std::string, device, "",
    "what the workers compute on: cpu, cuda (each a GPU of its own), auto; empty = cuda where the "
    "worker was built for GPUs, else cpu");
ABSL_FLAG(std::string, activations, "a16", "a16, a8 or f32");
ABSL_FLAG(std::string, kv_cache_dtype, "bf16", "bf16, f16, f32, int8 or fp8_e4m3");
ABSL_FLAG(bool, deterministic, true,
          "the same bits for any batch and number of workers; false: faster sums over GPUs");
ABSL_FLAG(std::string, bin_dir, "",
          "folder of bitshard-coordinator and bitshard-worker; empty = beside this program");
ABSL_FLAG(std::string, coordinator_flags, "",
          "further flags for the coordinator, comma-separated; a comma before no -- is of a value");
ABSL_FLAG(std::string, worker_flags, "",
          "further flags for every worker, comma-separated; a comma before no -- is of a value");

namespace bitshard {
namespace {

// 32 random bytes in hexadecimal.
absl::StatusOr<std::string> DrawToken() {
  std::string bytes(32, '\0');
  std::ifstream random("/dev/urandom", std::ios::binary);
  if (!random.read(bytes.data(), static_cast<std::streamsize>(bytes.size())))
    return absl::InternalError("/dev/urandom cannot be read: there is nothing to make a token of");
  return absl::BytesToHexString(bytes);
}

}  // namespace

std::vector<std::string> SplitFlags(const std::string& flags) {
  std::vector<std::string> split;
  for (absl::string_view word : absl::StrSplit(flags, ',')) {
    if (split.empty() || absl::StartsWith(word, "--")) {
      split.emplace_back(word);
    } else {
      absl::StrAppend(&split.back(), ",", word);
    }
  }
  if (split == std::vector<std::string>{""}) split.clear();
  return split;
}

absl::StatusOr<LocalServiceOptions> LocalServiceOptionsFromFlags(const std::string& model) {
  LocalServiceOptions options;
  options.model = model;
  options.workers = absl::GetFlag(FLAGS_workers);
  if (options.workers < 1 || options.workers > kMaxLocalWorkers) {
    return absl::InvalidArgumentError(absl::StrCat("--workers must be 1 to ", kMaxLocalWorkers));
  }
  options.threads = absl::GetFlag(FLAGS_threads);
  options.device = absl::GetFlag(FLAGS_device);
  if (options.workers > 1 && absl::StrContains(options.device, ':')) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--device=", options.device, " is one device, and each of --workers=", options.workers,
        " needs its own: --device=", options.device.substr(0, options.device.find(':')),
        " gives each worker the next one"));
  }
  options.activations = absl::GetFlag(FLAGS_activations);
  options.kv_cache_dtype = absl::GetFlag(FLAGS_kv_cache_dtype);
  options.deterministic = absl::GetFlag(FLAGS_deterministic);
  options.bin_dir = absl::GetFlag(FLAGS_bin_dir);
  options.coordinator_flags = SplitFlags(absl::GetFlag(FLAGS_coordinator_flags));
  options.worker_flags = SplitFlags(absl::GetFlag(FLAGS_worker_flags));
  for (const auto& [name, flags] : {std::pair("--coordinator-flags", &options.coordinator_flags),
                                    std::pair("--worker-flags", &options.worker_flags)}) {
    if (flags->empty() || absl::StartsWith(flags->front(), "--")) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        name, "=", flags->front(), ": flags begin with --, as in ", name, "=--log-level=debug"));
  }
  return options;
}

LocalService::~LocalService() {
  if (coordinator_) coordinator_->Signal(SIGKILL);
}

absl::Status LocalService::StartCoordinator() {
  ASSIGN_OR_RETURN(folder_, TemporaryFolder::Make("local"));
  ASSIGN_OR_RETURN(const std::string token, DrawToken());
  RETURN_IF_ERROR(WritePrivateFile(token_path(), token));
  ASSIGN_OR_RETURN(const std::string program,
                   FindProgram("bitshard-coordinator", options_.bin_dir));
  std::vector<std::string> command = {
      program,
      "--model=" + options_.model,
      absl::StrCat("--workers=", options_.workers),
      "--bind=" + options_.bind,
      absl::StrCat("--port=", options_.port),
      "--fleet-bind=127.0.0.1",
      "--fleet-port=0",
      "--health-port=0",
      "--admin-port=0",
      absl::StrCat("--metrics-port=", options_.metrics_port),
      "--activations=" + options_.activations,
      "--kv-cache-dtype=" + options_.kv_cache_dtype,
      absl::StrCat("--deterministic=", options_.deterministic ? "true" : "false"),
      "--token-file=" + token_path(),
      "--port-file=" + ports_path(),
      "--exit-with-parent",
      "--log-level=" + options_.log_level};
  if (!options_.served_model_name.empty())
    command.push_back("--served-model-name=" + options_.served_model_name);
  for (const std::string& flag : options_.coordinator_flags) command.push_back(flag);
  ASSIGN_OR_RETURN(coordinator_, ChildProcess::Start(command));
  return absl::OkStatus();
}

absl::StatusOr<bool> LocalService::HavePorts() {
  std::ifstream file(ports_path());
  std::string line;
  while (std::getline(file, line)) {
    const size_t equals = line.find('=');
    if (equals != std::string::npos) ports_[line.substr(0, equals)] = line.substr(equals + 1);
  }
  if (ports_.empty()) {
    if (const auto ended = coordinator_->Ended())
      return absl::UnavailableError(absl::StrCat("the coordinator did not start: ", *ended));
    return false;
  }
  if (ports_["fleet_port"].empty() || ports_["admin_port"].empty() || ports_["port"].empty()) {
    return absl::InternalError("the coordinator's port file lacks port, fleet_port or admin_port");
  }
  admin_ = v1::Admin::NewStub(
      grpc::CreateChannel("127.0.0.1:" + ports_["admin_port"], grpc::InsecureChannelCredentials()));
  return true;
}

absl::StatusOr<ChildProcess> LocalService::StartWorker(int index) {
  ASSIGN_OR_RETURN(const std::string program, FindProgram("bitshard-worker", options_.bin_dir));
  std::vector<std::string> command = {program,
                                      "--coordinator=127.0.0.1:" + ports_["fleet_port"],
                                      "--token-file=" + token_path(),
                                      absl::StrCat("--local-rank=", index),
                                      absl::StrCat("--local-ranks=", options_.workers),
                                      absl::StrCat("--threads=", options_.threads),
                                      "--exit-with-parent",
                                      "--log-level=" + options_.log_level};
  if (!options_.device.empty()) command.push_back("--device=" + options_.device);
  for (const std::string& flag : options_.worker_flags) command.push_back(flag);
  return ChildProcess::Start(command);
}

std::optional<v1::ServiceStatus> LocalService::AskStatus() {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
  v1::GetStatusResponse response;
  if (!admin_->GetStatus(&context, v1::GetStatusRequest(), &response).ok()) return std::nullopt;
  return response.status();
}

void LocalService::End(std::vector<ChildProcess*> workers, const std::function<bool()>& hurry,
                       const std::function<void()>& on_wait) {
  admin_.reset();  // an open connection is waited for
  if (coordinator_) coordinator_->Signal(SIGTERM);
  const absl::Time patience = MonotonicNow() + absl::Seconds(3);  // an idle service ends within two
  bool told = false;
  while (coordinator_ && !coordinator_->Ended() && !hurry()) {
    if (!told && MonotonicNow() > patience) {
      on_wait();
      told = true;
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
  for (ChildProcess* worker : workers) worker->Signal(SIGTERM);
  const absl::Time grace = MonotonicNow() + absl::Seconds(2);
  const auto all_ended = [&] {
    bool all = true;
    for (ChildProcess* worker : workers) all &= worker->Ended().has_value();
    return all;
  };
  while (!all_ended() && MonotonicNow() < grace) absl::SleepFor(absl::Milliseconds(20));
  if (coordinator_) coordinator_->Signal(SIGKILL);
  for (ChildProcess* worker : workers) worker->Signal(SIGKILL);
  while (!all_ended() || (coordinator_ && !coordinator_->Ended()))
    absl::SleepFor(absl::Milliseconds(5));
}

absl::StatusOr<std::unique_ptr<ReadyService>> ReadyService::Start(
    LocalServiceOptions options, const std::function<bool()>& stopped) {
  auto service = std::unique_ptr<ReadyService>(new ReadyService(std::move(options)));
  RETURN_IF_ERROR(service->AwaitReady(stopped));
  return service;
}

absl::Status ReadyService::AwaitReady(const std::function<bool()>& stopped) {
  RETURN_IF_ERROR(service_.StartCoordinator());
  while (true) {
    ASSIGN_OR_RETURN(const bool have, service_.HavePorts());
    if (have) break;
    if (stopped()) return absl::CancelledError("stopped before the coordinator was up");
    absl::SleepFor(absl::Milliseconds(10));
  }
  for (int i = 0; i < service_.options().workers; ++i) {
    ASSIGN_OR_RETURN(ChildProcess worker, service_.StartWorker(i));
    workers_.push_back(std::move(worker));
  }
  while (true) {
    if (stopped()) return absl::CancelledError("stopped before the service was ready");
    if (const auto ended = service_.coordinator()->Ended())
      return absl::UnavailableError(absl::StrCat("the coordinator ended: ", *ended));
    for (ChildProcess& worker : workers_) {
      if (const auto ended = worker.Ended())
        return absl::UnavailableError(absl::StrCat("a worker ended: ", *ended));
    }
    const auto status = service_.AskStatus();
    if (status && status->ready()) return absl::OkStatus();
    absl::SleepFor(absl::Milliseconds(20));
  }
}

ReadyService::~ReadyService() {
  std::vector<ChildProcess*> workers;
  for (ChildProcess& worker : workers_) workers.push_back(&worker);
  // Whoever asked has ended: what the coordinator still does is worth little.
  const absl::Time patience = MonotonicNow() + absl::Seconds(3);
  service_.End(
      workers, [patience] { return MonotonicNow() > patience; }, [] {});
}

}  // namespace bitshard
