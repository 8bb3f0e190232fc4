// The coordinator's Prometheus page. The only file besides main that knows the library is
// metrics.cc.
//
// Events come from the engine and the frontend; gauges are read from snapshots when a scrape comes.
// Thread-safe. Every series whose labels are known beforehand is there from the start, at 0.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"

#include "coordinator/engine/engine_metrics.h"
#include "coordinator/engine/engine_stats.h"
#include "coordinator/fleet/member.h"

namespace bitshard {

class CoordinatorMetrics final : public EngineMetrics {
 public:
  struct Info {
    std::string version;
    std::string model_name;
    std::string engine = "0";  // id of the group, the label `engine`
    std::string family;
    std::string weight_formats;  // comma-separated
    std::string kv_cache_type;
    std::string activations;
    std::string fingerprint;
    uint32_t world = 1;
    uint32_t context_tokens = 0;
    uint32_t block_tokens = 16;
  };

  explicit CoordinatorMetrics(const Info& info);
  ~CoordinatorMetrics() override;

  // Where gauges come from; called at each scrape, on the scraper's thread. Both must stay valid
  // until ClearSources.
  void SetSources(std::function<EngineStats()> engine, std::function<GroupSnapshot()> group);
  void ClearSources();

  // Serves http://host:port/metrics; 0 = any port. UNAVAILABLE when the address cannot be bound.
  absl::Status Serve(const std::string& host, int port);
  int port() const;  // 0 before Serve

  // The page as a scrape would get it.
  std::string Page() const;

  void Received() override;
  void Rejected(RejectReason reason) override;
  void FirstToken(absl::Duration since_received) override;
  void InterToken(absl::Duration gap) override;
  void PromptTokens(uint32_t tokens, uint32_t cached_tokens) override;
  void GeneratedTokens(uint32_t tokens) override;
  void Preempted(uint32_t requests) override;
  void Ended(const RequestSummary& summary) override;
  void StepEnded(const StepSummary& summary) override;
  void ScheduleTime(absl::Duration time) override;
  void Gauges(const EngineStats&) override {}  // read at scrapes

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace bitshard
