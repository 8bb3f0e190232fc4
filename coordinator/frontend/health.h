// grpc.health.v1: what the service says about itself, and the face that says it.
//
// HealthState is shared by all ports; each port has a service of its own over it. Thread-safe.
//   "readiness", ""  steps make progress on every rank, and new requests are taken
//   "startup"        a group has been ready once
//   "liveness"       the loops of this process come round; says nothing of workers
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include <grpcpp/impl/service_type.h>

namespace bitshard {

class HealthState {
 public:
  HealthState();

  void SetReady(bool ready) { Set(ready, &ready_); }
  void SetStarted(bool started) { Set(started, &started_); }
  void SetAlive(bool alive) { Set(alive, &alive_); }

  // What `Refresh` calls, so that an answer tells of now and not of the last periodic look. Nullptr
  // takes it away; when that returns, no call of the old one is running.
  void SetRefresh(std::function<void()> refresh) ABSL_LOCKS_EXCLUDED(refresh_mu_);
  void Refresh() ABSL_LOCKS_EXCLUDED(refresh_mu_);

  // Nullopt for a service that is not known.
  std::optional<bool> Get(const std::string& service) const ABSL_LOCKS_EXCLUDED(mu_);

  // `changed` is called after each change, on the thread that made it, and not again once Unwatch
  // has returned. It must not call back into the state but through Get.
  uint64_t Watch(std::function<void()> changed) ABSL_LOCKS_EXCLUDED(watch_mu_);
  void Unwatch(uint64_t id) ABSL_LOCKS_EXCLUDED(watch_mu_);

 private:
  void Set(bool value, bool* field) ABSL_LOCKS_EXCLUDED(mu_, watch_mu_);

  mutable absl::Mutex mu_;
  bool ready_ ABSL_GUARDED_BY(mu_) = false;
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  bool alive_ ABSL_GUARDED_BY(mu_) = true;

  absl::Mutex refresh_mu_;
  std::function<void()> refresh_ ABSL_GUARDED_BY(refresh_mu_);

  absl::Mutex watch_mu_;
  uint64_t last_id_ ABSL_GUARDED_BY(watch_mu_) = 0;
  std::map<uint64_t, std::function<void()>> watchers_ ABSL_GUARDED_BY(watch_mu_);
};

// `state` outlives the service and its server.
std::unique_ptr<grpc::Service> MakeHealthService(HealthState* state);

}  // namespace bitshard
