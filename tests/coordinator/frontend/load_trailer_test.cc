// The load report on every answer, and what refusals for load carry.
#include "coordinator/frontend/load_trailer.h"

#include <optional>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "coordinator/engine/error_reason.h"
#include "tests/coordinator/frontend/frontend_fixture.h"
#include "tests/coordinator/frontend/raw_call.h"

namespace bitshard {
namespace {

using xds::data::orca::v3::OrcaLoadReport;

EngineStats Busy() {
  EngineStats stats;
  stats.group = EngineStats::GroupState::kReady;
  stats.running = 5;
  stats.waiting = 4;
  stats.running_choices = 8;
  stats.waiting_choices = 4;
  stats.waiting_tokens = 100;
  stats.places = 8;
  stats.blocks_total = 10;
  stats.blocks_used = 4;
  stats.predicted_wait = absl::Milliseconds(250);
  stats.request_rate.Add(10, absl::Now());
  return stats;
}

class LoadTrailerTest : public FrontendTest {
 protected:
  void SetUp() override {
    engine_.set_stats(Busy());
    StartServer();
  }
  // Of a call as it is on the wire.
  OrcaLoadReport ReportOn(const std::string& method, const google::protobuf::Message& request) {
    const std::string trailers =
        RawCall::Trailers(server_->ports().inference, "/bitshard.v1.Inference/" + method,
                          request.SerializeAsString());
    const std::optional<std::string> value = RawCall::Value(trailers, kLoadTrailer);
    EXPECT_TRUE(value.has_value());
    OrcaLoadReport report;
    EXPECT_TRUE(report.ParseFromString(value.value_or("")));
    return report;
  }
};

TEST(LoadReport, SaysHowMuchIsAskedForInRelationToWhatRunsAtOnce) {
  const OrcaLoadReport report = LoadReport(Busy(), absl::Now());
  EXPECT_EQ(report.application_utilization(), 1.5);
  EXPECT_EQ(report.mem_utilization(), 0.4);
  EXPECT_GT(report.rps_fractional(), 0);
  EXPECT_EQ(report.named_metrics().at("waiting"), 4);
  EXPECT_EQ(report.named_metrics().at("predicted_wait_seconds"), 0.25);
  EngineStats full = Busy();
  full.running_choices = full.waiting_choices = 1;
  full.blocks_used = 9;
  EXPECT_EQ(LoadReport(full, absl::Now()).application_utilization(), 0.9);
  EXPECT_EQ(LoadReport(EngineStats(), absl::Now()).application_utilization(), 0);
}

TEST_F(LoadTrailerTest, IsOnStreamsThatEndWell) {
  std::thread engine([this] {
    const FakeEngine::Submitted submitted = engine_.Await();
    submitted.sink->OnAdmitted();
    submitted.sink->OnDelta(FakeEngine::Delta(0, "ab"));
    submitted.sink->OnEnd(FakeEngine::End(2));
  });
  EXPECT_EQ(ReportOn("Generate", Request()).application_utilization(), 1.5);
  engine.join();
}

TEST_F(LoadTrailerTest, IsOnRefusalsThatAlsoSayWhenToComeBack) {
  engine_.set_refusal(QueueWaitError(absl::Seconds(3), absl::Seconds(1), /*by_deadline=*/true));
  EXPECT_EQ(ReportOn("Generate", Request()).application_utilization(), 1.5);

  grpc::ClientContext context;
  auto stream = stub_->Generate(&context, Request());
  const grpc::Status status = Finish(*stream);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ErrorReason(FromGrpc(status)), std::string(kReasonQueueWait));
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto pushback = trailers.find("grpc-retry-pushback-ms");
  ASSERT_NE(pushback, trailers.end());
  EXPECT_EQ(pushback->second, "2000");
}

TEST_F(LoadTrailerTest, IsOnUnaryAnswers) {
  EXPECT_EQ(ReportOn("ListModels", v1::ListModelsRequest()).named_metrics().at("running"), 5);
}

TEST_F(LoadTrailerTest, HealthChecksGoWithout) {
  const std::string trailers =
      RawCall::Trailers(server_->ports().inference, "/grpc.health.v1.Health/Check", "");
  EXPECT_NE(trailers, "");
  EXPECT_EQ(RawCall::Value(trailers, kLoadTrailer), std::nullopt);
}

TEST_F(LoadTrailerTest, BatchRequestsReachTheEngineAsSuch) {
  v1::GenerateRequest request = Request();
  request.set_service_class(v1::SERVICE_CLASS_BATCH);
  request.set_priority(3);
  grpc::ClientContext context;
  auto stream = stub_->Generate(&context, request);
  const FakeEngine::Submitted submitted = engine_.Await();
  EXPECT_TRUE(submitted.request.batch);
  EXPECT_EQ(submitted.request.priority, 3);
  submitted.sink->OnEnd(FakeEngine::End(0));
  Finish(*stream);
  request.set_service_class(v1::SERVICE_CLASS_INTERACTIVE);
  grpc::ClientContext second;
  auto other = stub_->Generate(&second, request);
  const FakeEngine::Submitted interactive = engine_.Await(2);
  EXPECT_FALSE(interactive.request.batch);
  interactive.sink->OnEnd(FakeEngine::End(0));
  Finish(*other);
}

}  // namespace
}  // namespace bitshard
