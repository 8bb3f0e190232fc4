// A coordinator and N workers on this machine as child processes: what `bitshard serve`, `bitshard
// bench --local` and `bitshard eval` share. Not thread-safe; used from the main thread only (see
// child_process.h).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "coordinator/tools/child_process.h"
#include "coordinator/tools/temporary_folder.h"
#include "proto/admin.grpc.pb.h"

namespace bitshard {

inline constexpr int kMaxLocalWorkers = 64;

struct LocalServiceOptions {
  std::string model;   // path
  int workers = 1;     // 1 to kMaxLocalWorkers
  int threads = 0;     // of each worker; 0 = its share of the cores
  std::string device;  // of each worker, its --device; "" = what it takes by itself
  std::string bind = "127.0.0.1";
  int port = 0;           // 0 = any free one
  int metrics_port = -1;  // 0 = any free one, -1 = none
  std::string activations, kv_cache_dtype;
  bool deterministic = true;
  std::string served_model_name;  // "" = the checkpoint's
  std::string log_level = "info";
  std::string bin_dir;  // of the programs; "" = beside this one
  std::vector<std::string> coordinator_flags, worker_flags;
};

// "--shares=3,2,--max-running=8" is two flags: a comma ends one only where the next begins with --.
std::vector<std::string> SplitFlags(const std::string& flags);

// What --workers, --threads, --device, --activations, --kv-cache-dtype, --deterministic, --bin-dir,
// --coordinator-flags and --worker-flags say; the rest as above. INVALID_ARGUMENT names a bad flag.
absl::StatusOr<LocalServiceOptions> LocalServiceOptionsFromFlags(const std::string& model);

class LocalService {
 public:
  explicit LocalService(LocalServiceOptions options) : options_(std::move(options)) {}
  // Kills what still runs.
  ~LocalService();

  // Starts the coordinator alone.
  absl::Status StartCoordinator();
  // True once the coordinator has told its ports. UNAVAILABLE when it ended: it has said why.
  absl::StatusOr<bool> HavePorts();
  // REQUIRES: HavePorts() was true.
  absl::StatusOr<ChildProcess> StartWorker(int index);
  // nullopt when the coordinator does not answer within two seconds.
  std::optional<v1::ServiceStatus> AskStatus();

  // Ends everything, in order: the coordinator drains and lets the workers go; what is left after
  // that is killed. `hurry` is asked meanwhile: true ends the wait for running answers. `on_wait`
  // is called once when they take longer than an idle service does.
  void End(std::vector<ChildProcess*> workers, const std::function<bool()>& hurry,
           const std::function<void()>& on_wait);

  const LocalServiceOptions& options() const { return options_; }
  // Null before StartCoordinator.
  ChildProcess* coordinator() { return coordinator_ ? &*coordinator_ : nullptr; }
  // "port", "admin_port", "health_port", ...; the coordinator's --port-file.
  const std::string& port(const std::string& name) { return ports_[name]; }
  std::string token_path() const { return folder_.path() + "/fleet-token"; }
  std::string ports_path() const { return folder_.path() + "/ports"; }
  v1::Admin::Stub& admin() { return *admin_; }

 private:
  const LocalServiceOptions options_;
  TemporaryFolder folder_;  // of the token and the ports
  std::map<std::string, std::string> ports_;
  std::optional<ChildProcess> coordinator_;
  std::unique_ptr<v1::Admin::Stub> admin_;
};

// A LocalService with all its workers, ready for requests; nobody restarts what dies. Ends with
// this object.
class ReadyService {
 public:
  // Waits until the service is ready. `stopped` is asked meanwhile: true gives CANCELLED.
  static absl::StatusOr<std::unique_ptr<ReadyService>> Start(LocalServiceOptions options,
                                                             const std::function<bool()>& stopped);
  ~ReadyService();

  LocalService& service() { return service_; }
  const std::vector<ChildProcess>& workers() const { return workers_; }

 private:
  explicit ReadyService(LocalServiceOptions options) : service_(std::move(options)) {}
  absl::Status AwaitReady(const std::function<bool()>& stopped);

  LocalService service_;
  std::vector<ChildProcess> workers_;
};

}  // namespace bitshard
