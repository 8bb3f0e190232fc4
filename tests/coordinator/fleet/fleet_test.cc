// The fleet port with real streams: scripted workers over loopback gRPC against WorkerFleet.

#include "coordinator/fleet/fleet.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <grpcpp/grpcpp.h>

#include "kernels/base/check.h"
#include "proto/fleet_token.h"
#include "proto/worker.grpc.pb.h"
#include "tests/coordinator/fleet/group_harness.h"
#include "tests/support/await.h"

namespace {
std::atomic<int64_t> wall_clock_step_s = 0;
}  // namespace

// In front of libc's: a wall clock that a test can set.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const int result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (result == 0 && clock == CLOCK_REALTIME) time->tv_sec += wall_clock_step_s.load();
  return result;
}

namespace bitshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What the engine would hear.
class Listener : public StepListener {
 public:
  void OnGroupReady(const GroupInfo& info) override {
    Add(absl::StrCat("ready ", info.term, "/", info.epoch));
  }
  void OnStepDone(std::unique_ptr<internal::StepResult> result) override {
    Add(absl::StrCat("step ", result->step()));
  }
  void OnGroupLost(uint64_t term, uint64_t epoch, const absl::Status& why) override {
    Add(absl::StrCat("lost ", term, "/", epoch, " ", why.message()));
  }
  // Waits for the next event.
  std::string Next() {
    std::unique_lock<std::mutex> lock(mu_);
    const bool came = changed_.wait_for(lock, absl::ToChronoSeconds(kAwaitPatience),
                                        [this] { return !events_.empty(); });
    CHECK(came) << "it never came: an event of the group";
    std::string event = events_.front();
    events_.pop_front();
    return event;
  }
  size_t pending() {
    std::lock_guard<std::mutex> lock(mu_);
    return events_.size();
  }

 private:
  void Add(std::string event) {
    std::lock_guard<std::mutex> lock(mu_);
    events_.push_back(std::move(event));
    changed_.notify_all();
  }
  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<std::string> events_;
};

// A worker's side of the stream, read by the test itself.
class ScriptedWorker {
 public:
  // `token`: in the metadata of its call.
  ScriptedWorker(int port, int number, const std::string& token = "secret") : number_(number) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel_ = grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port),
                                         grpc::InsecureChannelCredentials(), arguments);
    if (!token.empty()) context_.AddMetadata(kFleetTokenMetadata, token);
    stream_ = internal::Fleet::NewStub(channel_)->Connect(&context_);
  }
  ~ScriptedWorker() { Vanish(); }

  void Say(const std::function<void(internal::WorkerMessage&)>& fill) {
    internal::WorkerMessage message;
    fill(message);
    stream_->Write(message);
  }
  void Register() {
    Say([&](auto& m) { *m.mutable_registration() = GroupHarness::Registration(number_); });
  }
  // The next message that is no heartbeat; nothing when the stream has ended.
  std::optional<internal::CoordinatorMessage> Hear() {
    internal::CoordinatorMessage message;
    while (stream_->Read(&message)) {
      if (!message.has_heartbeat()) return message;
    }
    return std::nullopt;
  }
  void HearHeartbeat() {
    internal::CoordinatorMessage message;
    while (stream_->Read(&message) && !message.has_heartbeat()) {
    }
  }
  void Answer(const internal::StepPlan& plan) {
    Say([&](auto& m) {
      internal::StepResult& result = *m.mutable_step_result();
      result.set_term(plan.term());
      result.set_epoch(plan.epoch());
      result.set_step(plan.step());
      result.set_rank(rank_);
    });
  }
  uint32_t rank() const { return rank_; }
  void set_rank(uint32_t rank) { rank_ = rank; }
  grpc::Status End() {
    stream_->WritesDone();
    while (Hear()) {
    }
    return Finish();
  }
  // As if the process had been killed.
  void Vanish() {
    context_.TryCancel();
    if (!finished_) Finish();
  }
  // Waits for the coordinator to end the stream.
  grpc::Status Finish() {
    finished_ = true;
    return stream_->Finish();
  }

 private:
  const int number_;
  uint32_t rank_ = 0;
  bool finished_ = false;
  std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<internal::WorkerMessage, internal::CoordinatorMessage>>
      stream_;
};

// Answers everything up to Ready, phase by phase: each phase waits for all ranks.
void BringUp(const std::vector<ScriptedWorker*>& workers) {
  for (ScriptedWorker* worker : workers) {
    const auto assign = worker->Hear();
    ASSERT_TRUE(assign && assign->has_assign());
    worker->set_rank(assign->assign().rank());
    worker->Say([](auto& m) { m.mutable_loaded()->set_max_cache_blocks(8); });
  }
  uint64_t epoch = 0;
  for (ScriptedWorker* worker : workers) {
    const auto join = worker->Hear();
    ASSERT_TRUE(join && join->has_join_communicator());
    epoch = join->join_communicator().epoch();
    worker->Say([&](auto& m) { m.mutable_joined()->set_epoch(epoch); });
  }
  for (ScriptedWorker* worker : workers) {
    const auto allocate = worker->Hear();
    ASSERT_TRUE(allocate && allocate->has_allocate_cache());
    worker->Say([&](auto& m) { m.mutable_ready()->set_epoch(epoch); });
  }
}

std::unique_ptr<WorkerFleet> Listen(uint32_t world) {
  WorkerFleet::Options options;
  options.group = GroupHarness::DefaultOptions(world);
  // A loaded machine must not make a test of something else fail.
  options.group.silence_timeout = absl::Seconds(60);
  options.group.stall_timeout = absl::Seconds(60);
  auto fleet = WorkerFleet::Listen(std::move(options));
  EXPECT_TRUE(fleet.ok()) << fleet.status();
  return *std::move(fleet);
}

std::unique_ptr<internal::StepPlan> Plan(uint64_t term, uint64_t epoch, uint64_t step) {
  auto plan = std::make_unique<internal::StepPlan>();
  plan->set_term(term);
  plan->set_epoch(epoch);
  plan->set_step(step);
  return plan;
}

TEST(Fleet, StepsGoToAllRanksAndComeBackOnce) {
  const auto fleet = Listen(2);
  Listener listener;
  fleet->Start(&listener);
  ScriptedWorker a(fleet->port(), 1), b(fleet->port(), 2);
  a.Register();
  b.Register();
  BringUp({&a, &b});
  EXPECT_EQ(listener.Next(), "ready 1/1");
  for (uint64_t step = 1; step <= 50; ++step) {
    fleet->Submit(Plan(1, 1, step));
    for (ScriptedWorker* worker : {&a, &b}) {
      const auto plan = worker->Hear();
      ASSERT_TRUE(plan && plan->has_step_plan());
      ASSERT_EQ(plan->step_plan().step(), step);
      // Rank 0 speaks for all; who came first is not said.
      if (worker->rank() == 0) worker->Answer(plan->step_plan());
    }
    ASSERT_EQ(listener.Next(), absl::StrCat("step ", step));
  }
  EXPECT_EQ(listener.pending(), 0u);
  fleet->Stop();
}

TEST(Fleet, ADeadWorkersStreamEndsTheEpochAndAReplacementJoins) {
  const auto fleet = Listen(2);
  Listener listener;
  fleet->Start(&listener);
  ScriptedWorker a(fleet->port(), 1);
  a.Register();
  {
    ScriptedWorker b(fleet->port(), 2);
    b.Register();
    BringUp({&a, &b});
    EXPECT_EQ(listener.Next(), "ready 1/1");
    EXPECT_EQ(fleet->Snapshot().state, GroupSnapshot::State::kReady);
    b.Vanish();
  }
  EXPECT_THAT(listener.Next(), HasSubstr("lost 1/1 rank "));
  const auto end = a.Hear();
  ASSERT_TRUE(end && end->has_end_epoch());
  a.Say([](auto& m) {
    m.mutable_quiesced()->set_epoch(1);
    m.mutable_quiesced()->set_weights_intact(true);
  });
  ScriptedWorker c(fleet->port(), 3);
  c.Register();
  BringUp({&a, &c});
  EXPECT_EQ(listener.Next(), "ready 2/2");
  EXPECT_NE(a.rank(), c.rank());
  fleet->Stop();
}

TEST(Fleet, HeartbeatsGoOnWhenTheWallClockIsSetBack) {
  const auto fleet = Listen(2);
  Listener listener;
  fleet->Start(&listener);
  ScriptedWorker a(fleet->port(), 1);
  a.Register();
  a.HearHeartbeat();
  const absl::Time before = absl::Now();
  wall_clock_step_s = -3600;
  // Abseil counts cycles in between and looks at the clock every few seconds.
  for (int i = 0; i < 40 && absl::Now() >= before; ++i) a.HearHeartbeat();
  EXPECT_LT(absl::Now(), before) << "this test sets no clock";
  for (int i = 0; i < 3; ++i) a.HearHeartbeat();
  wall_clock_step_s = 0;
  fleet->Stop();
}

TEST(Fleet, AWrongTokenIsToldSoAndThenCut) {
  const auto fleet = Listen(1);
  Listener listener;
  fleet->Start(&listener);
  ScriptedWorker a(fleet->port(), 1);
  auto registration = GroupHarness::Registration(1);
  registration.set_token("guess");
  a.Say([&](auto& m) { *m.mutable_registration() = registration; });
  const auto release = a.Hear();
  ASSERT_TRUE(release && release->has_release());
  EXPECT_TRUE(release->release().exit());
  EXPECT_EQ(a.End().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  fleet->Stop();
}

TEST(Fleet, WhoBringsNoTokenIsTurnedAwayBeforeAnythingIsRead) {
  const auto fleet = Listen(1);
  Listener listener;
  fleet->Start(&listener);
  for (const char* token : {"", "secre", "secret ", "\xff\xfe"}) {
    ScriptedWorker stranger(fleet->port(), 1, token);
    const grpc::Status end = stranger.Finish();  // it has not said a word
    EXPECT_EQ(end.error_code(), grpc::StatusCode::PERMISSION_DENIED) << token;
    EXPECT_THAT(end.error_message(), HasSubstr("--token-file")) << token;
  }
  EXPECT_TRUE(fleet->Snapshot().spares.empty());
  // Nor does what it sends after all reach anybody, a registration with the right token included.
  ScriptedWorker late(fleet->port(), 1, "guess");
  late.Register();
  EXPECT_EQ(late.End().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  ScriptedWorker worker(fleet->port(), 2);
  worker.Register();
  BringUp({&worker});
  EXPECT_EQ(listener.Next(), "ready 1/1");
  fleet->Stop();
}

TEST(Fleet, BytesThatAreNoMessageCutTheStream) {
  const auto fleet = Listen(1);
  Listener listener;
  fleet->Start(&listener);
  // A Register whose token is no UTF-8.
  ScriptedWorker a(fleet->port(), 1);
  a.Say([](auto& m) { m.mutable_registration()->set_token("\xff\xfe"); });
  EXPECT_FALSE(a.Hear() && a.Hear());  // at most a farewell
  EXPECT_FALSE(a.End().ok());
  EXPECT_EQ(listener.pending(), 0u);
  fleet->Stop();
}

TEST(Fleet, WorkersAreTurnedAwayBeforeStart) {
  const auto fleet = Listen(1);
  ScriptedWorker a(fleet->port(), 1);
  a.Register();
  EXPECT_EQ(a.End().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(Fleet, StopLetsWorkersGoAndGivesNoEvents) {
  const auto fleet = Listen(1);
  Listener listener;
  fleet->Start(&listener);
  ScriptedWorker a(fleet->port(), 1);
  a.Register();
  BringUp({&a});
  EXPECT_EQ(listener.Next(), "ready 1/1");
  fleet->Stop();
  const auto release = a.Hear();
  EXPECT_TRUE(release && release->has_release());
  EXPECT_EQ(listener.pending(), 0u);
}

TEST(Fleet, ATakenPortIsAnErrorThatNamesTheFlag) {
  const auto fleet = Listen(1);
  WorkerFleet::Options options;
  options.group = GroupHarness::DefaultOptions(1);
  options.port = fleet->port();
  const auto second = WorkerFleet::Listen(std::move(options));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("--fleet-port"));
}

}  // namespace
}  // namespace bitshard
