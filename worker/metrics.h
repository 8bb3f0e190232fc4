// The worker's own metrics page, for Prometheus. The only worker file besides main that knows the
// library is metrics.cc.
//
// Thread-safe. Series with a rank begin when the rank is assigned.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace bitshard {

class WorkerMetrics {
 public:
  // Serves http://host:port/metrics; UNAVAILABLE when the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<WorkerMetrics>> Serve(const std::string& address,
                                                              const std::string& version,
                                                              const std::string& isa);
  ~WorkerMetrics();

  void OnLoaded(uint32_t rank, uint64_t arena_bytes, uint64_t read_bytes, absl::Duration took);
  void OnLoadFailed(const absl::Status& status);
  void OnCacheAllocated(uint32_t rank, uint64_t bytes);
  void OnStep(uint32_t rank, absl::Duration took, uint64_t outputs);

 private:
  struct Impl;
  explicit WorkerMetrics(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace bitshard
