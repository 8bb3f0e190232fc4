// Health on every port and its changes; readiness and what decides it; the operators' face.

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "gtest/gtest.h"

#include "coordinator/frontend/readiness.h"
#include "coordinator/loop_beat.h"
#include "kernels/base/monotonic_time.h"
#include "proto/admin.grpc.pb.h"
#include "proto/health.grpc.pb.h"
#include "tests/coordinator/frontend/frontend_fixture.h"

namespace bitshard {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using ::testing::HasSubstr;

EngineStats Ready() {
  EngineStats stats;
  stats.group = EngineStats::GroupState::kReady;
  stats.last_progress = absl::InfiniteFuture();
  return stats;
}

class HealthTest : public FrontendTest {
 protected:
  void SetUp() override { StartServer(); }

  HealthCheckRequest Named(const std::string& service) {
    HealthCheckRequest request;
    request.set_service(service);
    return request;
  }
  HealthCheckResponse::ServingStatus Check(int port, const std::string& service) {
    grpc::ClientContext context;
    HealthCheckResponse response;
    const grpc::Status status =
        Health::NewStub(Channel(port))->Check(&context, Named(service), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.status();
  }
  // Waits, through Watch, until the service has the status.
  void Await(const std::string& service, HealthCheckResponse::ServingStatus wanted) {
    grpc::ClientContext context;
    auto stream = Health::NewStub(channel_)->Watch(&context, Named(service));
    HealthCheckResponse response;
    do {
      ASSERT_TRUE(stream->Read(&response));
    } while (response.status() != wanted);
    context.TryCancel();
    stream->Finish();
  }
};

TEST_F(HealthTest, EveryPortSaysTheSame) {
  for (const int port :
       {server_->ports().inference, server_->ports().admin, server_->ports().health}) {
    EXPECT_EQ(Check(port, ""), HealthCheckResponse::NOT_SERVING);
    EXPECT_EQ(Check(port, "readiness"), HealthCheckResponse::NOT_SERVING);
    EXPECT_EQ(Check(port, "startup"), HealthCheckResponse::NOT_SERVING);
    EXPECT_EQ(Check(port, "liveness"), HealthCheckResponse::SERVING);
  }
}

TEST_F(HealthTest, ReadinessFollowsTheGroupAndStartupStays) {
  engine_.set_stats(Ready());
  Await("readiness", HealthCheckResponse::SERVING);
  EXPECT_EQ(Check(server_->ports().health, ""), HealthCheckResponse::SERVING);
  EXPECT_EQ(Check(server_->ports().health, "startup"), HealthCheckResponse::SERVING);
  EngineStats lost = Ready();
  lost.group = EngineStats::GroupState::kLost;
  engine_.set_stats(lost);
  Await("", HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Check(server_->ports().health, "startup"), HealthCheckResponse::SERVING);
}

TEST_F(HealthTest, DrainingTakesReadinessDownBeforeItReturns) {
  engine_.set_stats(Ready());
  Await("readiness", HealthCheckResponse::SERVING);
  server_->SetDraining();
  EXPECT_EQ(Check(server_->ports().health, "readiness"), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Check(server_->ports().health, "liveness"), HealthCheckResponse::SERVING);
}

TEST_F(HealthTest, LivenessFollowsTheLoopsOfTheProcess) {
  LoopBeat loop("a loop of the test");
  loop.Works(MonotonicNow() - absl::Hours(1));
  EXPECT_EQ(Check(server_->ports().health, "liveness"), HealthCheckResponse::NOT_SERVING);
  loop.Works();
  EXPECT_EQ(Check(server_->ports().health, "liveness"), HealthCheckResponse::SERVING);
  loop.Works(MonotonicNow() - absl::Hours(1));
  Await("liveness", HealthCheckResponse::NOT_SERVING);
  loop.Waits();
  Await("liveness", HealthCheckResponse::SERVING);
}

TEST_F(HealthTest, WatchersMayGoWhileReadinessChanges) {
  constexpr int kRounds = 20, kWatchers = 20;
  const auto stub = Health::NewStub(channel_);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<grpc::ClientContext> contexts(kWatchers);
    std::vector<std::unique_ptr<grpc::ClientReader<HealthCheckResponse>>> streams;
    for (grpc::ClientContext& context : contexts)
      streams.push_back(stub->Watch(&context, Named("readiness")));
    std::thread changes([&] {
      for (int i = 0; i < 10; ++i) {
        engine_.set_stats(i % 2 == 0 ? Ready() : EngineStats());
        Check(server_->ports().health, "readiness");  // looks at once, and tells the watchers
      }
    });
    for (grpc::ClientContext& context : contexts) context.TryCancel();
    for (const auto& stream : streams) {
      HealthCheckResponse response;
      while (stream->Read(&response)) {
      }
      EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
    }
    changes.join();
  }
  EXPECT_EQ(Check(server_->ports().health, "liveness"), HealthCheckResponse::SERVING);
}

TEST_F(HealthTest, UnknownServicesAreNotFoundAndWatchedAsUnknown) {
  grpc::ClientContext context;
  HealthCheckResponse response;
  const auto stub = Health::NewStub(channel_);
  EXPECT_EQ(stub->Check(&context, Named("what"), &response).error_code(),
            grpc::StatusCode::NOT_FOUND);
  grpc::ClientContext watch;
  auto stream = stub->Watch(&watch, Named("what"));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVICE_UNKNOWN);
  watch.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(HealthTest, MalformedHealthRequestsAreInvalidArgument) {
  EXPECT_EQ(Raw("/grpc.health.v1.Health/Check", "\x0a\x01\xff").error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST(Readiness, NeedsAReadyGroupProgressAndNoDrain) {
  const absl::Time now = absl::FromUnixSeconds(1000);
  EngineStats stats = Ready();
  stats.last_progress = now - absl::Seconds(4);
  EXPECT_TRUE(JudgeReadiness(stats, false, absl::Seconds(5), now).ready);
  EXPECT_FALSE(JudgeReadiness(stats, true, absl::Seconds(5), now).ready);
  stats.last_progress = now - absl::Seconds(6);
  EXPECT_FALSE(JudgeReadiness(stats, false, absl::Seconds(5), now).ready);
  EXPECT_THAT(JudgeReadiness(stats, false, absl::Seconds(5), now).reason,
              HasSubstr("no step has moved"));
  for (const auto state : {EngineStats::GroupState::kForming, EngineStats::GroupState::kLost}) {
    stats = Ready();
    stats.group = state;
    EXPECT_FALSE(JudgeReadiness(stats, false, absl::Seconds(5), now).ready);
  }
}

class AdminTest : public FrontendTest {
 protected:
  void SetUp() override {
    group_.state = GroupSnapshot::State::kReady;
    group_.term = 3;
    group_.epoch = 4;
    group_.world = 2;
    group_.ranks.resize(2);
    group_.ranks[0] = {.rank = 0,
                       .present = true,
                       .phase = Member::Phase::kReady,
                       .host = "h",
                       .pid = 9,
                       .device = "cpu",
                       .isa = "avx2",
                       .step = 5,
                       .op = 6,
                       .acked_step = 5,
                       .busy = true,
                       .heartbeat_age = absl::Milliseconds(20),
                       .done_bytes = 0,
                       .total_bytes = 0,
                       .weight_bytes = 100,
                       .read_bytes = 100,
                       .padding_bytes = 10,
                       .vector_bytes = 7,
                       .deterministic = false};
    internal::KernelChoice& choice = group_.ranks[0].kernels.emplace_back();
    choice.set_op("linear");
    choice.set_format("int4 group=32");
    choice.set_kernel("reference/x");
    choice.set_activations("a16");
    choice.set_nodes(3);
    choice.set_first_node("layers.0.q");
    choice.set_fallback(true);
    internal::RefusedChoice& refused = *choice.add_refused();
    refused.set_kernel("cpu/x");
    refused.set_reason("odd");
    internal::ProbeFigure& figure = group_.ranks[0].probe.emplace_back();
    figure.set_kernel("cpu/x");
    figure.set_gmacs_per_s(12.5);
    internal::MemoryReport& memory = group_.ranks[0].memory;
    memory.set_resident_bytes(500);
    memory.set_weight_resident_bytes(104);
    memory.set_kv_cache_bytes(4096);
    memory.set_kv_cache_resident_bytes(96);
    memory.set_workspace_resident_bytes(50);
    group_.ranks[0].memory_age = absl::Seconds(1);
    group_.ranks[1].rank = 1;
    group_.spares.push_back({.host = "h", .pid = 10});
    options_.admin.load.max_waiting = 20;
    options_.admin.load.max_waiting_tokens = 3000;
    StartServer();
    admin_ = v1::Admin::NewStub(Channel(server_->ports().admin));
  }
  std::unique_ptr<v1::Admin::Stub> admin_;
};

TEST_F(AdminTest, StatusTellsTermEpochAndRanks) {
  EngineStats stats = Ready();
  stats.steps = 50;
  stats.epoch_steps = 7;
  engine_.set_stats(stats);
  grpc::ClientContext context;
  v1::GetStatusResponse response;
  ASSERT_TRUE(admin_->GetStatus(&context, v1::GetStatusRequest(), &response).ok());
  const v1::ServiceStatus& status = response.status();
  EXPECT_EQ(status.term(), 3u);
  ASSERT_EQ(status.spares_size(), 1);
  EXPECT_EQ(status.spares(0).host(), "h");
  EXPECT_EQ(status.spares(0).pid(), 10);
  EXPECT_EQ(status.epoch(), 4u);
  EXPECT_EQ(status.state(), v1::GROUP_STATE_READY);
  EXPECT_TRUE(status.ready());
  ASSERT_EQ(status.ranks_size(), 2);
  EXPECT_EQ(status.ranks(0).phase(), v1::RANK_PHASE_READY);
  EXPECT_EQ(status.ranks(0).op(), 6u);
  EXPECT_TRUE(status.ranks(0).has_deterministic());
  EXPECT_FALSE(status.ranks(0).deterministic());
  EXPECT_FALSE(status.ranks(1).has_deterministic());  // nothing is loaded there
  EXPECT_EQ(status.ranks(0).heartbeat_age().nanos(), 20'000'000);
  EXPECT_EQ(status.ranks(1).phase(), v1::RANK_PHASE_MISSING);
  EXPECT_EQ(status.model(), "tiny");
  EXPECT_EQ(status.steps(), 7u);  // of this epoch
  EXPECT_FALSE(status.draining());
  EXPECT_FALSE(status.load().draining());
}

// Every field of `message` and below is set.
void ExpectFilled(const google::protobuf::Message& message) {
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *type.field(i);
    ASSERT_FALSE(field.is_repeated()) << field.full_name();
    EXPECT_TRUE(message.GetReflection()->HasField(message, &field)) << field.full_name();
    if (field.message_type() != nullptr && field.message_type()->file() == type.file())
      ExpectFilled(message.GetReflection()->GetMessage(message, &field));
  }
}

TEST_F(AdminTest, LoadIsWhole) {
  EngineStats stats = Ready();
  stats.running = 2;
  stats.waiting = 3;
  stats.waiting_tokens = 400;
  stats.predicted_wait = absl::Milliseconds(1500);
  stats.places = 8;
  stats.blocks_total = 10;
  stats.blocks_used = 5;
  const absl::Time now = absl::Now();
  stats.prompt_rate.Add(1000, now);
  stats.output_rate.Add(100, now);
  engine_.set_stats(stats);
  grpc::ClientContext context;
  v1::GetLoadResponse response;
  ASSERT_TRUE(admin_->GetLoad(&context, v1::GetLoadRequest(), &response).ok());
  const v1::Load& load = response.load();
  ExpectFilled(response);
  EXPECT_EQ(load.waiting_tokens(), 400u);
  EXPECT_EQ(load.predicted_wait().seconds(), 1);
  EXPECT_EQ(load.predicted_wait().nanos(), 500'000'000);
  EXPECT_EQ(load.max_running(), 8u);
  EXPECT_EQ(load.max_waiting(), 20u);
  EXPECT_EQ(load.max_waiting_tokens(), 3000u);
  EXPECT_GT(load.generated_tokens_per_second(), 0);
  EXPECT_NEAR(load.prompt_tokens_per_second(), 10 * load.generated_tokens_per_second(),
              0.01 * load.prompt_tokens_per_second());
}

// When Drain is answered, readiness is down already and everybody is told.
TEST_F(AdminTest, DrainTakesReadinessDownBeforeItAnswers) {
  engine_.set_stats(Ready());
  const auto health = grpc::health::v1::Health::NewStub(Channel(server_->ports().health));
  const auto ready = [&] {
    grpc::ClientContext context;
    HealthCheckRequest request;
    HealthCheckResponse response;
    EXPECT_TRUE(health->Check(&context, request, &response).ok());
    return response.status() == HealthCheckResponse::SERVING;
  };
  ASSERT_TRUE(ready());
  v1::DrainRequest drain;
  drain.mutable_timeout()->set_seconds(-1);
  v1::DrainResponse drained;
  grpc::ClientContext bad;
  EXPECT_EQ(admin_->Drain(&bad, drain, &drained).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(ready());
  drain.mutable_timeout()->set_seconds(5);
  grpc::ClientContext good;
  ASSERT_TRUE(admin_->Drain(&good, drain, &drained).ok());
  EXPECT_EQ(drained_, absl::Seconds(5));
  EXPECT_FALSE(ready());
  grpc::ClientContext context;
  v1::GetStatusResponse response;
  ASSERT_TRUE(admin_->GetStatus(&context, v1::GetStatusRequest(), &response).ok());
  EXPECT_TRUE(response.status().draining());
  EXPECT_TRUE(response.status().load().draining());
  EXPECT_FALSE(response.status().ready());
}

TEST_F(AdminTest, WatchStatusSendsAgainAndAgain) {
  grpc::ClientContext context;
  v1::WatchStatusRequest request;
  request.mutable_interval()->set_nanos(100'000'000);
  auto stream = admin_->WatchStatus(&context, request);
  v1::WatchStatusResponse response;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.status().term(), 3u);
  }
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  grpc::ClientContext hasty;
  request.mutable_interval()->set_nanos(1);
  EXPECT_EQ(admin_->WatchStatus(&hasty, request)->Finish().error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

// Watchers that go while their status is being made: the worst moment for a call to be freed.
TEST_F(AdminTest, WatchersMayGoWhileTheirStatusIsMade) {
  constexpr int kRounds = 20, kWatchers = 20;
  struct Watcher {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::WatchStatusResponse>> stream;
  };
  v1::WatchStatusRequest request;
  request.mutable_interval()->set_nanos(100'000'000);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<Watcher> watchers(kWatchers);
    {
      std::lock_guard<std::mutex> lock(group_hook_mu_);
      group_hook_ = [&] {
        for (Watcher& watcher : watchers) watcher.context.TryCancel();
        // On the same connection: when this is answered the cancellations have come.
        grpc::ClientContext context;
        v1::GetLoadResponse response;
        EXPECT_TRUE(admin_->GetLoad(&context, v1::GetLoadRequest(), &response).ok());
      };
    }
    for (Watcher& watcher : watchers)
      watcher.stream = admin_->WatchStatus(&watcher.context, request);
    for (Watcher& watcher : watchers) {
      v1::WatchStatusResponse response;
      while (watcher.stream->Read(&response)) {
      }
      EXPECT_EQ(watcher.stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
    }
    std::lock_guard<std::mutex> lock(group_hook_mu_);
    group_hook_ = nullptr;
  }
  grpc::ClientContext context;
  auto stream = admin_->WatchStatus(&context, request);
  v1::WatchStatusResponse response;
  EXPECT_TRUE(stream->Read(&response));
  context.TryCancel();
  stream->Finish();
}

TEST_F(AdminTest, ReportsLoadAndDrain) {
  EngineStats stats = Ready();
  stats.running = 2;
  stats.waiting = 3;
  stats.blocks_total = 10;
  stats.blocks_used = 5;
  engine_.set_stats(stats);
  grpc::ClientContext a, b, c, d;
  v1::GetLoadResponse load;
  ASSERT_TRUE(admin_->GetLoad(&a, v1::GetLoadRequest(), &load).ok());
  EXPECT_EQ(load.load().running(), 2u);
  EXPECT_EQ(load.load().kv_usage(), 0.5);
  v1::GetKernelReportResponse kernels;
  ASSERT_TRUE(admin_->GetKernelReport(&b, v1::GetKernelReportRequest(), &kernels).ok());
  ASSERT_EQ(kernels.ranks_size(), 1);
  const v1::KernelBinding& binding = kernels.ranks(0).kernels(0);
  EXPECT_EQ(binding.text(), "linear int4 group=32: reference/x, a fallback (cpu/x: odd) x3");
  EXPECT_EQ(binding.op(), "linear");
  EXPECT_EQ(binding.format(), "int4 group=32");
  EXPECT_EQ(binding.activations(), "a16");
  EXPECT_EQ(binding.layers(), 3u);
  EXPECT_EQ(binding.first_layer(), "layers.0.q");
  EXPECT_EQ(binding.speed(), v1::KERNEL_SPEED_FALLBACK);
  ASSERT_EQ(binding.refused_size(), 1);
  EXPECT_EQ(binding.refused(0).reason(), "odd");
  EXPECT_EQ(kernels.ranks(0).probe(0).gmacs_per_s(), 12.5);
  v1::GetMemoryReportResponse memory;
  ASSERT_TRUE(admin_->GetMemoryReport(&c, v1::GetMemoryReportRequest(), &memory).ok());
  ASSERT_EQ(memory.ranks_size(), 1);
  EXPECT_EQ(memory.ranks(0).weight_bytes(), 100u);
  EXPECT_EQ(memory.ranks(0).padding_bytes(), 10u);
  EXPECT_EQ(memory.ranks(0).kv_cache_bytes(), 4096u);
  EXPECT_EQ(memory.ranks(0).other_bytes(), 500u - 104 - 96 - 50);
  EXPECT_EQ(memory.ranks(0).age().seconds(), 1);
  v1::DrainResponse drain;
  ASSERT_TRUE(admin_->Drain(&d, v1::DrainRequest(), &drain).ok());
  EXPECT_EQ(drained_, absl::Seconds(77));
}

TEST_F(AdminTest, TheAdminFaceIsNotOnThePublicPort) {
  grpc::ClientContext context;
  v1::GetStatusResponse response;
  EXPECT_EQ(v1::Admin::NewStub(channel_)
                ->GetStatus(&context, v1::GetStatusRequest(), &response)
                .error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(AdminTest, ATakenPortIsNamed) {
  FrontendServer::Options options = options_;
  options.port = server_->ports().inference;
  const auto second = FrontendServer::Start(options, &engine_, &model_, &metrics_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("--port"));
}

}  // namespace
}  // namespace bitshard
