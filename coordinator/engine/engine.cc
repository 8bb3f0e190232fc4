// The engine's thread and its inbox around EngineCore. Everything that other threads may touch is
// under one mutex: the inbox, the admission book, and the copy of the stats that the engine thread
// publishes after each turn.
#include "coordinator/engine/engine.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/call_once.h"
#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "coordinator/engine/admission.h"
#include "coordinator/engine/engine_core.h"
#include "coordinator/engine/engine_metrics.h"
#include "coordinator/engine/error_reason.h"
#include "coordinator/engine/mask_threads.h"
#include "coordinator/loop_beat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

class ThreadedEngine final : public Engine, public StepListener, private EngineCore::Observer {
 public:
  ThreadedEngine(const Options& options, const Tokenizer* tokenizer, StepExecutor* executor,
                 EngineMetrics* metrics)
      : executor_(executor),
        admission_(options),
        masks_({}, [this](MaskResult result) { Post(std::move(result)); }),
        core_(options, tokenizer, executor, metrics, this, &masks_) {}
  ~ThreadedEngine() override { Stop(); }

  // Engine, on any thread.
  void Start() override;
  absl::StatusOr<RequestHandle> Submit(GenerateRequest request,
                                       std::shared_ptr<RequestSink> sink) override;
  absl::StatusOr<std::vector<RequestHandle>> SubmitAll(
      std::vector<Submission> submissions) override;
  void Cancel(RequestHandle request) override { Post(Cancellation{request}); }
  void Abort(const std::string& caller, const std::string& request_id) override;
  EngineStats Stats() const override;
  void Drain(absl::Duration timeout) override;
  void Stop() override;

  // StepListener, on the executor's threads.
  void OnGroupReady(const GroupInfo& info) override { Post(info); }
  void OnStepDone(std::unique_ptr<internal::StepResult> result) override {
    Post(std::move(result));
  }
  void OnStepMoved() override {
    absl::MutexLock lock(&mu_);
    moved_ = absl::Now();
  }
  void OnGroupLost(uint64_t term, uint64_t epoch, const absl::Status& why) override {
    Post(GroupLoss{term, epoch, why});
  }

 private:
  struct Cancellation {
    SequenceId id;
    const char* why = "cancelled by the caller";
  };
  struct GroupLoss {
    uint64_t term, epoch;
    absl::Status why;
  };
  struct EndAll {
    absl::Status status;
  };
  struct Quit {};
  using Message =
      std::variant<EngineCore::Accepted, Cancellation, GroupInfo,
                   std::unique_ptr<internal::StepResult>, MaskResult, GroupLoss, EndAll, Quit>;

  template <typename M>
  void Post(M message) {
    absl::MutexLock lock(&mu_);
    inbox_.emplace_back(std::move(message));
  }

  // On the engine thread.
  void Run();
  void BeforeEnd(SequenceId id, EndReason reason, absl::StatusCode code) override;
  void OnStarted(SequenceId id, uint32_t choice) override;
  void Publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Handle(EngineCore::Accepted& m, absl::Time now) { core_.Accept(std::move(m), now); }
  void Handle(Cancellation& m, absl::Time now) { core_.Cancel(m.id, now, m.why); }
  void Handle(GroupInfo& m, absl::Time now) { core_.GroupReady(m, now); }
  void Handle(std::unique_ptr<internal::StepResult>& m, absl::Time now) { core_.StepDone(*m, now); }
  void Handle(MaskResult& m, absl::Time now) { core_.MaskDone(std::move(m), now); }
  void Handle(GroupLoss& m, absl::Time now) { core_.GroupLost(m.term, m.epoch, m.why, now); }
  void Handle(EndAll& m, absl::Time now) { core_.EndAll(m.status, EndReason::kShutdown, now); }
  void Handle(Quit&, absl::Time now) {
    core_.EndAll(DrainingError(), EndReason::kShutdown, now);
    quit_ = true;
  }

  StepExecutor* const executor_;
  absl::once_flag stop_once_;

  mutable absl::Mutex mu_;
  std::vector<Message> inbox_ ABSL_GUARDED_BY(mu_);
  Admission admission_ ABSL_GUARDED_BY(mu_);
  EngineStats scheduling_ ABSL_GUARDED_BY(mu_);  // as of the last Publish
  bool idle_ ABSL_GUARDED_BY(mu_) = true;  // the engine thread waits and has nothing to wait for
  absl::Time moved_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();  // a rank in a step
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;

  LoopBeat beat_{"the engine's thread"};
  MaskThreads masks_;  // ends before what its results go to
  EngineCore core_;    // engine thread
  bool quit_ = false;  // engine thread
  std::thread thread_;
};

void ThreadedEngine::Start() {
  {
    absl::MutexLock lock(&mu_);
    CHECK(!started_ && !stopped_) << "an engine starts once";
    started_ = true;
  }
  thread_ = std::thread([this] { Run(); });
  executor_->Start(this);
}

absl::StatusOr<RequestHandle> ThreadedEngine::Submit(GenerateRequest request,
                                                     std::shared_ptr<RequestSink> sink) {
  std::vector<Submission> one;
  one.push_back({std::move(request), std::move(sink)});
  ASSIGN_OR_RETURN(const std::vector<RequestHandle> handles, SubmitAll(std::move(one)));
  return handles.front();
}

absl::StatusOr<std::vector<RequestHandle>> ThreadedEngine::SubmitAll(
    std::vector<Submission> submissions) {
  const absl::Time now = absl::Now();
  std::vector<const GenerateRequest*> requests;
  for (Submission& submission : submissions) {
    GenerateRequest& request = submission.request;
    if (request.received == absl::InfinitePast()) request.received = now;
    requests.push_back(&request);
  }
  const GenerateRequest& first = *requests.front();
  absl::MutexLock lock(&mu_);
  std::optional<SequenceId> superseded;
  if (first.supersede) superseded = admission_.Find(first.caller, first.request_id);
  ASSIGN_OR_RETURN(std::vector<RequestHandle> ids, admission_.AdmitAll(requests, now));
  // Before the new one, which finds in the prefix cache what the old one leaves.
  if (superseded.has_value())
    inbox_.push_back(Cancellation{*superseded, "superseded: it goes on in another call"});
  for (size_t i = 0; i < ids.size(); ++i) {
    Submission& submission = submissions[i];
    inbox_.push_back(
        EngineCore::Accepted{ids[i], std::move(submission.request), std::move(submission.sink)});
  }
  return ids;
}

void ThreadedEngine::Abort(const std::string& caller, const std::string& request_id) {
  absl::MutexLock lock(&mu_);
  // Resolved here: by the time the message is read the name may belong to a later request.
  const std::optional<SequenceId> id = admission_.Find(caller, request_id);
  if (id.has_value()) inbox_.push_back(Cancellation{*id});
}

EngineStats ThreadedEngine::Stats() const {
  absl::MutexLock lock(&mu_);
  EngineStats stats = admission_.Stats();
  stats.last_progress =
      idle_ && inbox_.empty() ? absl::Now() : std::max(stats.last_progress, moved_);
  return stats;
}

void ThreadedEngine::Drain(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  admission_.Close();
  auto empty = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return admission_.live() == 0; };
  if (mu_.AwaitWithTimeout(absl::Condition(&empty), timeout)) return;
  inbox_.push_back(EndAll{DrainingError()});
  mu_.Await(absl::Condition(&empty));
}

void ThreadedEngine::Stop() {
  absl::call_once(stop_once_, [this] {
    bool started;
    {
      absl::MutexLock lock(&mu_);
      stopped_ = true;
      admission_.Close();
      started = started_;
    }
    if (!started) return;
    Post(Quit{});
    thread_.join();
    executor_->Stop();  // events that still come in are left in the inbox
  });
}

void ThreadedEngine::Run() {
  std::vector<Message> batch;
  while (!quit_) {
    {
      auto mail = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !inbox_.empty(); };
      const absl::Time wakeup = core_.NextWakeup();
      absl::MutexLock lock(&mu_);
      beat_.Waits();
      mu_.AwaitWithDeadline(absl::Condition(&mail), wakeup);
      beat_.Works();
      batch.swap(inbox_);
      idle_ = false;
    }
    const absl::Time now = absl::Now();
    for (Message& message : batch) {
      std::visit([this, now](auto& m) { Handle(m, now); }, message);
    }
    batch.clear();
    if (!quit_) core_.Advance(absl::Now());
    absl::MutexLock lock(&mu_);
    Publish();
    idle_ = core_.idle();
  }
  beat_.Waits();
}

void ThreadedEngine::BeforeEnd(SequenceId id, EndReason reason, absl::StatusCode code) {
  absl::MutexLock lock(&mu_);
  admission_.End(id, reason, code);
  Publish();
}

void ThreadedEngine::OnStarted(SequenceId id, uint32_t choice) {
  absl::MutexLock lock(&mu_);
  admission_.Started(id, choice, absl::Now());
}

void ThreadedEngine::Publish() {
  core_.FillStats(&scheduling_);
  admission_.SetScheduling(scheduling_, core_.taken_prompt_tokens());
  admission_.set_group_cause(core_.group_cause());
}

}  // namespace

std::unique_ptr<Engine> Engine::Create(const Options& options, const Tokenizer* tokenizer,
                                       StepExecutor* executor, EngineMetrics* metrics) {
  CHECK(options.token_budget > 0 && options.max_running > 0 && options.async_depth > 0)
      << "token_budget " << options.token_budget << ", max_running " << options.max_running
      << ", async_depth " << options.async_depth;
  CHECK(options.itl_slo >= absl::ZeroDuration()) << "itl_slo " << options.itl_slo;
  return std::make_unique<ThreadedEngine>(options, tokenizer, executor, metrics);
}

}  // namespace bitshard
