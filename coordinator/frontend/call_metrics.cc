#include "coordinator/frontend/call_metrics.h"

#include "absl/time/clock.h"

namespace bitshard {
namespace {

using grpc::experimental::InterceptionHookPoints;

// One call; gRPC frees it when the call is over.
class CallCount final : public grpc::experimental::Interceptor {
 public:
  CallCount(EngineMetrics* metrics, const char* method)
      : metrics_(metrics), method_(method == nullptr ? "" : method), begin_(absl::Now()) {
    metrics_->CallStarted(method_);
  }
  ~CallCount() override {
    // Nobody took a status: the connection went first.
    if (!ended_) End(absl::StatusCode::kCancelled);
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      End(static_cast<absl::StatusCode>(methods->GetSendStatus().error_code()));
    }
    methods->Proceed();
  }

 private:
  void End(absl::StatusCode code) {
    if (ended_) return;
    ended_ = true;
    metrics_->CallEnded(method_, code, absl::Now() - begin_);
  }

  EngineMetrics* const metrics_;
  const absl::string_view method_;  // gRPC's, as long as the call
  const absl::Time begin_;
  bool ended_ = false;
};

class CallCountFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit CallCountFactory(EngineMetrics* metrics) : metrics_(metrics) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    return new CallCount(metrics_, info->method());
  }

 private:
  EngineMetrics* const metrics_;
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeCallMetrics(
    EngineMetrics* metrics) {
  return std::make_unique<CallCountFactory>(metrics);
}

}  // namespace bitshard
