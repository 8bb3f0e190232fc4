// A WorkerService over fakes of all that is below it, and the coordinator's end of its stream: what
// the tests of the service have in common.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include <gtest/gtest.h>

#include "kernels/tensor/device.h"
#include "tests/support/await.h"
#include "tests/worker/service/fake_coordinator.h"
#include "worker/service/worker_service.h"

namespace bitshard {

using Stream = FakeCoordinator::Stream;
using internal::CoordinatorMessage;
using internal::WorkerMessage;

// What the fakes have been asked to do, in order.
class Log {
 public:
  void Add(const std::string& line) {
    absl::MutexLock lock(&mu_);
    lines_.push_back(line);
  }
  int Count(const std::string& line) const {
    absl::MutexLock lock(&mu_);
    return static_cast<int>(std::count(lines_.begin(), lines_.end(), line));
  }
  // How many pieces of the cache the fakes still lack memory for.
  std::atomic<int> pieces_ahead{0};
  // The fakes' device is lost, and nobody has noticed.
  std::atomic<bool> device_is_lost{false};

 private:
  mutable absl::Mutex mu_;
  std::vector<std::string> lines_;
};

class FakeCollective final : public Collective {
 public:
  FakeCollective(int rank, int world, Log* log) : rank_(rank), world_(world), log_(log) {}
  int rank() const override { return rank_; }
  int world() const override { return world_; }
  absl::Status AllReduceSum(absl::Span<int64_t>) override { return WaitForAbort(); }
  absl::Status AllGather(absl::Span<const uint8_t>, absl::Span<uint8_t>) override {
    return WaitForAbort();
  }
  absl::Status Broadcast(absl::Span<uint8_t>, int) override { return WaitForAbort(); }
  void Abort() override {
    log_->Add("abort");
    absl::MutexLock lock(&mu_);
    aborted_ = true;
  }

 private:
  absl::Status WaitForAbort() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&aborted_));
    return absl::UnavailableError("aborted");
  }
  const int rank_, world_;
  Log* const log_;
  absl::Mutex mu_;
  bool aborted_ = false;
};

// A step with this many rows ... : 1 answers at once, 2 waits in a collective, 3 fails, 4 waits for
// the next plan, 5 for that and then in a collective.
enum : int { kAnswer = 1, kHang = 2, kFailStep = 3, kLookAhead = 4, kLookAheadAndHang = 5 };

class FakeRunner final : public StepRunner {
 public:
  explicit FakeRunner(Log* log) : log_(log) {}
  absl::Status StartEpoch(uint64_t term, uint64_t epoch, std::unique_ptr<Collective> collective,
                          uint32_t blocks) override {
    log_->Add(absl::StrCat("start epoch ", epoch, " term ", term, " blocks ", blocks));
    collective_ = std::move(collective);
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<internal::StepResult>> Run(const internal::StepPlan& plan,
                                                            NextPlanFn next) override {
    progress_.step = plan.step();
    progress_.op = 7;
    progress_.busy = true;
    absl::Status status;
    const int kind = plan.slot_size();
    std::shared_ptr<const internal::StepPlan> then;
    while (kind >= kLookAhead && (then = next()) == nullptr) absl::SleepFor(absl::Milliseconds(1));
    if (then != nullptr) log_->Add(absl::StrCat("step ", plan.step(), " sees ", then->step()));
    if (kind == kHang || kind == kLookAheadAndHang) status = collective_->AllReduceSum({});
    if (then != nullptr) log_->Add(absl::StrCat("step ", plan.step(), " has seen ", then->step()));
    if (kind == kFailStep) status = absl::InvalidArgumentError("a bad plan");
    progress_.busy = false;
    if (!status.ok()) return status;
    auto result = std::make_unique<internal::StepResult>();
    result->set_term(plan.term());
    result->set_epoch(plan.epoch());
    result->set_step(plan.step());
    return result;
  }
  bool TakeCacheAhead() override {
    log_->Add("take cache ahead");
    return log_->pieces_ahead > 0 && --log_->pieces_ahead > 0;
  }
  absl::Status EndEpoch() override {
    if (log_->device_is_lost) {
      log_->Add("lost at the end");
      return DeviceLostError("cuda:0: gone");
    }
    if (collective_ == nullptr) return absl::OkStatus();
    log_->Add("end epoch");
    collective_.reset();
    return absl::OkStatus();
  }
  const StepProgress& progress() const override { return progress_; }
  Collective* collective() override { return collective_.get(); }
  std::vector<internal::KernelChoice> Kernels() const override {
    internal::KernelChoice choice;
    choice.set_op("linear");
    choice.set_kernel("fake");
    choice.set_first_node("layers.0.q_proj");
    choice.set_nodes(1);
    choice.set_fallback(true);
    return {choice};
  }
  uint64_t CacheBytesPerBlock() const override { return 1000; }
  uint64_t WorkspaceBytes() const override { return 500; }

 private:
  Log* const log_;
  StepProgress progress_;
  std::unique_ptr<Collective> collective_;
};

class WorkerServiceTest : public testing::Test {
 protected:
  ~WorkerServiceTest() override {
    if (service_ != nullptr) service_->Leave("test over");
    Stop();
  }

  void Start(absl::Duration silence_limit = absl::Seconds(60),
             absl::Duration coordinator_timeout = absl::InfiniteDuration()) {
    WorkerService::Options options;
    options.coordinator = coordinator_.address();
    options.credentials = grpc::InsecureChannelCredentials();
    options.registration.set_token("secret");
    options.registration.set_memory_bytes(100000);
    options.heartbeat_period = absl::Milliseconds(10);
    options.memory_period = absl::Milliseconds(20);
    options.silence_limit = silence_limit;
    options.first_backoff = absl::Milliseconds(1);
    options.coordinator_timeout = coordinator_timeout;
    WorkerBackend backend;
    backend.load = [this](const internal::RankPlan& plan, const LoadProgressFn& progress)
        -> absl::StatusOr<std::shared_ptr<const LoadedWeights>> {
      log_.Add("load " + plan.digest());
      if (plan.digest() == "missing") return absl::NotFoundError("no such file");
      progress(10, 20);
      progress(20, 20);
      auto weights = std::make_shared<LoadedWeights>();
      weights->arena_bytes = 9500;
      weights->read_bytes = 20;
      return std::shared_ptr<const LoadedWeights>(std::move(weights));
    };
    backend.bind =
        [this](const internal::RankPlan&, std::shared_ptr<const LoadedWeights>,
               const internal::NumericsOptions&) -> absl::StatusOr<std::unique_ptr<StepRunner>> {
      return std::make_unique<FakeRunner>(&log_);
    };
    backend.join =
        [this](const internal::JoinCommunicator& join, int rank, int world, const TellRanksFn& tell,
               const std::atomic<bool>& stop) -> absl::StatusOr<std::unique_ptr<Collective>> {
      const std::string& id = join.id();
      log_.Add("join " + id);
      if (join.collective() == "gloo") {
        const auto told = tell("where I am");
        if (!told.ok()) return told.status();
        log_.Add("told " + absl::StrJoin(*told, ", "));
      }
      while (id == "hang") {
        if (stop) return absl::CancelledError("called off");
        std::this_thread::yield();
      }
      if (id == "nobody") return absl::UnavailableError("missing ranks: 1");
      return std::make_unique<FakeCollective>(rank, world, &log_);
    };
    backend.self_test = [this](Collective& collective) {
      log_.Add("self-test");
      return hang_in_self_test_ ? collective.AllReduceSum({}) : absl::OkStatus();
    };
    backend.measure_memory = measure_memory_;
    backend.on_device_lost = [this] { log_.Add("device lost"); };
    service_ = std::make_unique<WorkerService>(std::move(options), std::move(backend), nullptr);
    thread_ = std::thread([this] { run_status_ = service_->Run(); });
  }

  // Waits until the fakes have been asked to do it so often.
  void AwaitLog(const std::string& line, int times = 1) {
    AwaitTrue(line, [&] { return log_.Count(line) >= times; });
  }

  // Waits for Run to return.
  void Stop() {
    if (thread_.joinable()) thread_.join();
  }

  std::shared_ptr<Stream> AcceptRegistered(internal::Register* registration = nullptr) {
    auto stream = coordinator_.Accept();
    const WorkerMessage first = stream->Next();
    EXPECT_TRUE(first.has_registration()) << first.ShortDebugString();
    if (registration != nullptr) *registration = first.registration();
    return stream;
  }

  static void Assign(Stream& stream, uint64_t term, const std::string& digest = "d1") {
    CoordinatorMessage message;
    internal::Assign& assign = *message.mutable_assign();
    assign.set_term(term);
    assign.set_rank(0);
    assign.set_world(2);
    assign.mutable_plan()->set_rank(0);
    assign.mutable_plan()->set_world(2);
    assign.mutable_plan()->set_digest(digest);
    stream.Send(message);
  }
  static void Join(Stream& stream, uint64_t term, uint64_t epoch, const std::string& id = "shm",
                   const std::string& collective = "", uint32_t timeout_ms = 60'000) {
    CoordinatorMessage message;
    internal::JoinCommunicator& join = *message.mutable_join_communicator();
    join.set_term(term);
    join.set_epoch(epoch);
    join.set_id(id);
    join.set_timeout_ms(timeout_ms);
    join.set_collective(collective);
    stream.Send(message);
  }
  static void Allocate(Stream& stream, uint64_t epoch) {
    CoordinatorMessage message;
    message.mutable_allocate_cache()->set_epoch(epoch);
    message.mutable_allocate_cache()->set_blocks(64);
    stream.Send(message);
  }
  static void Plan(Stream& stream, uint64_t term, uint64_t epoch, uint64_t step, int kind) {
    CoordinatorMessage message;
    internal::StepPlan& plan = *message.mutable_step_plan();
    plan.set_term(term);
    plan.set_epoch(epoch);
    plan.set_step(step);
    for (int i = 0; i < kind; ++i) plan.add_slot(0);
    stream.Send(message);
  }
  static void End(Stream& stream, uint64_t term, uint64_t epoch) {
    CoordinatorMessage message;
    message.mutable_end_epoch()->set_term(term);
    message.mutable_end_epoch()->set_epoch(epoch);
    stream.Send(message);
  }

  static internal::Loaded AwaitLoaded(Stream& stream) {
    WorkerMessage message = stream.Next();
    while (message.has_progress()) message = stream.Next();
    EXPECT_TRUE(message.has_loaded()) << message.ShortDebugString();
    return message.loaded();
  }
  static void BringUp(Stream& stream, uint64_t term, uint64_t epoch) {
    Join(stream, term, epoch);
    EXPECT_EQ(stream.Next().joined().epoch(), epoch);
    Allocate(stream, epoch);
    EXPECT_EQ(stream.Next().ready().epoch(), epoch);
  }

  Log log_;
  bool hang_in_self_test_ = false;
  std::function<internal::MemoryReport()> measure_memory_;
  FakeCoordinator coordinator_;
  std::unique_ptr<WorkerService> service_;
  std::thread thread_;
  absl::Status run_status_ = absl::UnknownError("Run has not returned");
};

}  // namespace bitshard
