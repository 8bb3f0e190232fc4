// The real engine without its thread: EngineCore and Admission on virtual time, with an inbox that
// is read a moment after something came, as coordinator/engine/engine.cc does around them; and what
// must be true after each of its turns.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "coordinator/engine/admission.h"
#include "coordinator/engine/engine_core.h"
#include "tests/coordinator/simulator/world.h"

namespace bitshard::sim {

class EngineHost final : public StepListener, private EngineCore::Observer, private MaskRunner {
 public:
  struct Options {
    Engine::Options engine;
    uint32_t check_every = 1;  // turns: of the checks that walk through everything
    int64_t turn_delay_us = 0, mask_delay_us = 0;  // at most, most of the time
  };
  struct Hooks {
    std::function<void(const GroupInfo& info)> on_ready;  // the engine knows of it
    std::function<void()> before_plans;
  };

  EngineHost(const Options& options, const Tokenizer* tokenizer, StepExecutor* executor,
             World* world, Hooks hooks);

  // On a caller's thread, so to speak.
  absl::StatusOr<SequenceId> Submit(GenerateRequest request, std::shared_ptr<RequestSink> sink);
  void Cancel(SequenceId id) { Post(Cancellation{id}); }
  void Abort(const std::string& caller, const std::string& request_id);
  void Close() { admission_.Close(); }
  void EndAll() { Post(EndOfAll{}); }

  const EngineCore& core() const { return core_; }
  // Nothing waits to be read, and no mask is being worked out.
  bool quiet() const { return inbox_.empty() && masks_out_ == 0; }
  uint64_t admitted_live() const { return admission_.live(); }
  bool has_group() const { return core_.scheduler().has_epoch(); }
  uint64_t steps() const { return scheduling_.steps; }
  // Blocks were set aside that others read, too.
  uint64_t shared_quarantines() const { return shared_quarantines_; }

  // StepListener, on the fleet's threads.
  void OnGroupReady(const GroupInfo& info) override { Post(info); }
  void OnStepDone(std::unique_ptr<internal::StepResult> result) override {
    Post(std::move(result));
  }
  void OnGroupLost(uint64_t term, uint64_t epoch, const absl::Status& why) override {
    Post(GroupLoss{term, epoch, why});
  }

 private:
  struct Cancellation {
    SequenceId id;
  };
  struct GroupLoss {
    uint64_t term, epoch;
    absl::Status why;
  };
  struct EndOfAll {};
  using Message =
      std::variant<EngineCore::Accepted, Cancellation, GroupInfo,
                   std::unique_ptr<internal::StepResult>, MaskResult, GroupLoss, EndOfAll>;

  // The phases of a request add up, and it ends once.
  class Metrics final : public NullEngineMetrics {
   public:
    explicit Metrics(World* world) : world_(world) {}
    void Ended(const RequestSummary& summary) override;
    uint64_t ended() const { return ended_; }

   private:
    World* const world_;
    uint64_t ended_ = 0;
  };

  void Post(Message message);
  void Turn();
  void Wake(uint64_t number);
  void Publish();
  void Check();

  void Handle(EngineCore::Accepted& m, absl::Time now) { core_.Accept(std::move(m), now); }
  void Handle(Cancellation& m, absl::Time now) { core_.Cancel(m.id, now); }
  void Handle(GroupInfo& m, absl::Time now);
  void Handle(std::unique_ptr<internal::StepResult>& m, absl::Time now) { core_.StepDone(*m, now); }
  void Handle(MaskResult& m, absl::Time now) { core_.MaskDone(std::move(m), now); }
  void Handle(GroupLoss& m, absl::Time now) { core_.GroupLost(m.term, m.epoch, m.why, now); }
  void Handle(EndOfAll& m, absl::Time now);

  void BeforeEnd(SequenceId id, EndReason reason, absl::StatusCode code) override;
  void OnStarted(SequenceId id, uint32_t choice) override;
  void Run(MaskJob job) override;

  const Options options_;
  World* const world_;
  const Hooks hooks_;
  Metrics metrics_;
  Admission admission_;
  EngineStats scheduling_;
  EngineCore core_;
  std::vector<Message> inbox_;
  bool turn_planned_ = false;
  uint64_t wake_number_ = 0;  // of the wake-up that counts
  int64_t wake_at_ = INT64_MAX;
  uint64_t turns_ = 0, shared_quarantines_ = 0;
  uint32_t masks_out_ = 0;
};

}  // namespace bitshard::sim
