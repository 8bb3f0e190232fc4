// An EngineCore on a virtual clock, over a FakeExecutor that runs a step only when the test says
// so. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "coordinator/engine/admission.h"
#include "coordinator/engine/engine_core.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/fake_executor.h"
#include "tests/support/recording_sink.h"

namespace bitshard {

// Keeps the sums that the tests compare.
class CountingMetrics : public NullEngineMetrics {
 public:
  void Ended(const RequestSummary& summary) override { ended.push_back(summary); }
  void StepEnded(const StepSummary& summary) override { steps.push_back(summary); }
  void InterToken(absl::Duration) override { ++gaps; }
  void GeneratedTokens(uint32_t tokens) override { generated_tokens += tokens; }
  void Preempted(uint32_t requests) override { preempted += requests; }
  void GroupLost(LossCause cause) override { losses.push_back(cause); }
  void GroupRebuilt(LossCause cause, uint32_t requests) override {
    rebuilds.push_back(cause);
    resumed += requests;
  }

  uint64_t gaps = 0, generated_tokens = 0, preempted = 0, resumed = 0;
  std::vector<LossCause> losses, rebuilds;
  std::vector<RequestSummary> ended;
  std::vector<StepSummary> steps;
};

class CoreHarness : public StepListener, private EngineCore::Observer {
 public:
  explicit CoreHarness(const Engine::Options& options, FakeExecutor::Options executor_options = {},
                       MaskRunner* masks = nullptr)
      : prefix_cache_(options.prefix_cache),
        tokenizer_(MakeByteTokenizer()),
        executor_([&] {
          executor_options.mode = FakeExecutor::Mode::kManual;
          if (executor_options.worker.next_token == nullptr)
            executor_options.worker.vocab_size = kByteTokenizerVocab;
          return executor_options;
        }()),
        admission_(options),
        core_(options, tokenizer_.get(), &executor_, &metrics_, this, masks) {
    executor_.Start(this);
  }

  void MakeReady() {
    executor_.MakeReady();
    Advance();
  }

  absl::Status Submit(GenerateRequest request, std::shared_ptr<RequestSink> sink) {
    request.received = now_;
    std::optional<SequenceId> superseded;
    if (request.supersede) superseded = admission_.Find(request.caller, request.request_id);
    absl::StatusOr<SequenceId> id = admission_.Admit(request, now_);
    if (!id.ok()) return id.status();
    if (superseded.has_value()) core_.Cancel(*superseded, now_, "superseded");
    several_ = several_ || request.choices > 1;
    accepted_[*id] = {.choices = request.choices, .tokens = request.given_tokens(), .started = {}};
    core_.Accept({*id, std::move(request), std::move(sink)}, now_);
    Advance();
    return absl::OkStatus();
  }
  // Submits and expects it to be taken.
  std::shared_ptr<RecordingSink> Send(GenerateRequest request) {
    if (request.request_id.empty()) request.request_id = std::to_string(++names_);
    auto sink = std::make_shared<RecordingSink>(request.resumed.size());
    const absl::Status status = Submit(std::move(request), sink);
    EXPECT_TRUE(status.ok()) << status;
    return sink;
  }

  void Cancel(const std::string& name, const std::string& caller = "") {
    const std::optional<SequenceId> id = admission_.Find(caller, name);
    if (id.has_value()) core_.Cancel(*id, now_);
    Advance();
  }

  // One step to its end; false when none was out.
  bool Step() {
    const bool ran = executor_.RunOne();
    Advance();
    return ran;
  }
  void StepUntilIdle() {
    for (int i = 0; core_.live() > 0; ++i) {
      ASSERT_LT(i, 100000) << "no end in sight";
      ASSERT_TRUE(Step()) << core_.live() << " requests live, no plan out";
    }
  }

  void Advance() {
    core_.Advance(now_);
    Publish();
    CheckAll();
  }
  // Time passes, and the engine does not look yet.
  void Pass(absl::Duration time) { now_ += time; }
  void Wait(absl::Duration time) {
    now_ += time;
    Advance();
  }

  EngineStats Stats() const { return admission_.Stats(); }
  absl::Time now() const { return now_; }
  FakeExecutor& executor() { return executor_; }
  EngineCore& core() { return core_; }
  CountingMetrics& metrics() { return metrics_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }

  void OnGroupReady(const GroupInfo& info) override {
    core_.GroupReady(info, now_);
    Publish();
  }
  void OnStepDone(std::unique_ptr<internal::StepResult> result) override {
    core_.StepDone(*result, now_);
  }
  void OnGroupLost(uint64_t term, uint64_t epoch, const absl::Status& why) override {
    core_.GroupLost(term, epoch, why, now_);
    Publish();
  }

 private:
  void OnStarted(SequenceId id, uint32_t choice) override {
    accepted_.at(id).started.insert(choice);
    admission_.Started(id, choice, now_);
  }
  void BeforeEnd(SequenceId id, EndReason reason, absl::StatusCode code) override {
    EXPECT_FALSE(core_.scheduler().Contains(id)) << "an end while blocks are still held";
    accepted_.erase(id);
    admission_.End(id, reason, code);
    Publish();
  }

  void Publish() {
    core_.FillStats(&stats_);
    admission_.SetScheduling(stats_, core_.taken_prompt_tokens());
    admission_.set_group_cause(core_.group_cause());
  }

  void CheckAll() const {
    const absl::Status status = core_.scheduler().CheckInvariants();
    ASSERT_TRUE(status.ok()) << status;
    const EngineStats stats = Stats();
    ASSERT_EQ(stats.received, stats.finished + stats.rejected + stats.waiting + stats.running);
    ASSERT_EQ(stats.running_choices, core_.scheduler().running());
    if (several_) {  // some wait for the first choice of their request
      ASSERT_EQ(stats.waiting, core_.live() - stats.running);
      ASSERT_GE(stats.waiting_choices, core_.scheduler().waiting());
      ASSERT_LE(stats.running, stats.running_choices);
    } else {
      ASSERT_EQ(stats.waiting, core_.scheduler().waiting());
      ASSERT_EQ(stats.waiting_choices, stats.waiting);
    }
    ASSERT_EQ(stats.blocks_total, stats.blocks_free + stats.blocks_cached + stats.blocks_used +
                                      stats.blocks_quarantined);
    ASSERT_EQ(stats.finished, metrics_.ended.size());
    uint64_t rejected = 0, ended = 0;
    for (const uint64_t count : stats.ledger.rejected) rejected += count;
    for (const auto& of_reason : stats.ledger.ended) {
      for (const uint64_t count : of_reason) ended += count;
    }
    ASSERT_EQ(stats.rejected, rejected);
    ASSERT_EQ(stats.finished, ended);
    // A request is always in exactly one phase.
    if (!metrics_.ended.empty()) {
      const RequestSummary& last = metrics_.ended.back();
      ASSERT_EQ(
          last.frontend + last.queue + last.prefill + last.decode + last.recompute + last.paused,
          last.e2e);
    }
    ASSERT_EQ(stats.tokens, metrics_.generated_tokens);
    CheckCounters(stats);
  }

  // What is kept as it changes is what a walk over all choices of all requests finds.
  void CheckCounters(const EngineStats& stats) const {
    uint64_t running = 0, ended = 0, tokens = 0;
    for (const auto& [id, request] : accepted_) {
      bool runs = false;
      for (uint32_t i = 0; i < request.choices; ++i) {
        const bool there = core_.scheduler().Contains(id + i);
        const bool in_steps = there && core_.scheduler().Get(id + i).slot.has_value();
        const bool over = !there && request.started.contains(i);
        runs = runs || in_steps;
        ended += over ? 1 : 0;
        if ((in_steps || over) && (i == 0 || !prefix_cache_)) tokens += request.tokens;
      }
      running += runs ? 1 : 0;
    }
    ASSERT_EQ(stats.running, running);
    ASSERT_EQ(stats.ended_choices, ended);
    ASSERT_EQ(core_.taken_prompt_tokens(), tokens);
  }

  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  int names_ = 0;
  bool several_ = false;  // a request had several choices
  struct Accepted {
    uint32_t choices = 0;
    uint64_t tokens = 0;  // of its prompt
    std::set<uint32_t> started;
  };
  std::map<SequenceId, Accepted> accepted_;  // and not ended
  const bool prefix_cache_;
  CountingMetrics metrics_;
  const std::unique_ptr<Tokenizer> tokenizer_;
  FakeExecutor executor_;
  Admission admission_;
  EngineStats stats_;
  EngineCore core_;
};

inline GenerateRequest Request(const std::string& prompt, uint32_t max_tokens) {
  GenerateRequest request;
  for (unsigned char c : prompt) request.prompt_tokens.push_back(c);
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  return request;
}

// A worker that always answers with the bytes of `text`, over and over.
inline FakeWorker::NextToken Reciting(std::string text, uint32_t n_prompt) {
  return [text = std::move(text), n_prompt](absl::Span<const uint32_t> history,
                                            const internal::SamplingParams&) {
    return static_cast<uint32_t>(
        static_cast<unsigned char>(text[(history.size() - n_prompt) % text.size()]));
  };
}

}  // namespace bitshard
