// The coordinator's Prometheus page. What there is stands in the table of metrics_table.cc, from
// which docs/metrics.md is written.
//
// Events come from the engine and the frontend; gauges, and the counts of the engine's ledger, are
// read from snapshots when a scrape comes. Thread-safe. Every series whose labels are known
// beforehand is there from the start, at 0.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "coordinator/engine/engine_metrics.h"
#include "coordinator/engine/engine_stats.h"
#include "coordinator/fleet/member.h"
#include "kernels/base/metric_page.h"

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

  void InterToken(absl::Duration gap) override;
  void PromptTokens(uint32_t tokens, uint32_t cached_tokens) override;
  void GeneratedTokens(uint32_t tokens) override;
  void Preempted(uint32_t requests) override;
  void NonFinite() override;
  void Ended(const RequestSummary& summary) override;
  void StepEnded(const StepSummary& summary) override;
  void SchedulerTime(SchedulerOp op, absl::Duration time) override;
  void GroupLost(LossCause cause) override;
  void GroupRebuilt(LossCause cause, uint32_t resumed) override;

  void Received(Face face) override;
  void Refused(RejectReason reason) override;
  void RefusalSent(absl::Duration since_received) override;
  void FirstToken(absl::Duration since_received) override;
  void EndedWithoutToken() override;
  void TokenizerTime(TokenizerOp op, absl::Duration time) override;
  void GrammarCompiled(GrammarKind kind, absl::Duration time, bool ok) override;
  void GrammarCacheHit() override;
  void StreamBacklog(int64_t change) override;
  void Coalesced() override;
  void SlowReaderEnded() override;
  void CallStarted(absl::string_view method) override;
  void CallEnded(absl::string_view method, absl::StatusCode code, absl::Duration time) override;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

// The gRPC methods that have series of their own; the last is {"other", "other"}.
struct CallMethod {
  std::string service, method;
};
std::vector<CallMethod> CountedMethods();

std::vector<MetricDef> CoordinatorMetricTable(const CoordinatorMetrics::Info& info);
// Of docs/metrics.md.
std::string CoordinatorMetricsDoc();

}  // namespace bitshard
