#include "coordinator/frontend/load_trailer.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/time/clock.h"

namespace bitshard {
namespace {

using grpc::experimental::InterceptionHookPoints;

class LoadTrailer final : public grpc::experimental::Interceptor {
 public:
  explicit LoadTrailer(const Engine* engine) : engine_(engine) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      methods->GetSendTrailingMetadata()->emplace(
          kLoadTrailer, LoadReport(engine_->Stats(), absl::Now()).SerializeAsString());
    }
    methods->Proceed();
  }

 private:
  const Engine* const engine_;
};

class LoadTrailerFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit LoadTrailerFactory(const Engine* engine) : engine_(engine) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    if (info->method() == nullptr || absl::StartsWith(info->method(), "/grpc.")) return nullptr;
    return new LoadTrailer(engine_);
  }

 private:
  const Engine* const engine_;
};

}  // namespace

xds::data::orca::v3::OrcaLoadReport LoadReport(const EngineStats& stats, absl::Time now) {
  xds::data::orca::v3::OrcaLoadReport report;
  const double kv_usage =
      stats.blocks_total == 0 ? 0 : static_cast<double>(stats.blocks_used) / stats.blocks_total;
  const double asked_for = static_cast<double>(stats.running_choices) + stats.waiting_choices;
  report.set_mem_utilization(kv_usage);
  report.set_application_utilization(
      std::max(kv_usage, stats.places == 0 ? 0 : asked_for / stats.places));
  report.set_rps_fractional(stats.request_rate.At(now));
  auto& named = *report.mutable_named_metrics();
  named["kv_usage"] = kv_usage;
  named["running"] = stats.running;
  named["waiting"] = stats.waiting;
  named["waiting_tokens"] = static_cast<double>(stats.waiting_tokens);
  named["predicted_wait_seconds"] = absl::ToDoubleSeconds(stats.predicted_wait);
  return report;
}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeLoadTrailer(
    const Engine* engine) {
  return std::make_unique<LoadTrailerFactory>(engine);
}

}  // namespace bitshard
