// An Engine whose requests the test plays itself: it sees what was submitted and calls the sinks.
// What the test leaves without an end gets one in EndAll, for a server waits for its calls.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "coordinator/engine/engine.h"
#include "coordinator/engine/engine_metrics.h"
#include "kernels/base/check.h"
#include "tests/support/await.h"

namespace bitshard {

class FakeEngine : public Engine {
 public:
  struct Submitted {
    GenerateRequest request;
    std::shared_ptr<RequestSink> sink;
  };

  void Start() override {}
  // Handles count from 1.
  absl::StatusOr<RequestHandle> Submit(GenerateRequest request,
                                       std::shared_ptr<RequestSink> sink) override {
    std::lock_guard<std::mutex> lock(mu_);
    if (!refusal_.ok()) return refusal_;
    sinks_.push_back(std::make_shared<EndedOnce>(std::move(sink)));
    submitted_.push_back({std::move(request), sinks_.back()});
    changed_.notify_all();
    return submitted_.size();
  }
  absl::StatusOr<std::vector<RequestHandle>> SubmitAll(
      std::vector<Submission> submissions) override {
    std::vector<RequestHandle> handles;
    for (Submission& submission : submissions) {
      auto handle = Submit(std::move(submission.request), std::move(submission.sink));
      if (!handle.ok()) return handle.status();
      handles.push_back(*handle);
    }
    return handles;
  }
  void Cancel(RequestHandle request) override {
    std::lock_guard<std::mutex> lock(mu_);
    cancelled_.push_back(absl::StrCat("#", request));
    changed_.notify_all();
  }
  void Abort(const std::string& caller, const std::string& request_id) override {
    std::lock_guard<std::mutex> lock(mu_);
    cancelled_.push_back(absl::StrCat(caller, "/", request_id));
    changed_.notify_all();
  }
  EngineStats Stats() const override {
    std::lock_guard<std::mutex> lock(mu_);
    return stats_;
  }
  void Drain(absl::Duration) override {}
  void Stop() override {}

  // Waits until that many requests have been submitted; returns the last of these.
  Submitted Await(size_t count = 1) {
    std::unique_lock<std::mutex> lock(mu_);
    AwaitChange(lock, absl::StrCat("request ", count), [&] { return submitted_.size() >= count; });
    return submitted_[count - 1];
  }
  // The last one that was cancelled, as "#<handle>", or aborted, as "<caller>/<request_id>".
  std::string AwaitCancel() {
    std::unique_lock<std::mutex> lock(mu_);
    AwaitChange(lock, "a cancel", [&] { return !cancelled_.empty(); });
    return cancelled_.back();
  }
  bool cancelled() const {
    std::lock_guard<std::mutex> lock(mu_);
    return !cancelled_.empty();
  }
  size_t submitted() const {
    std::lock_guard<std::mutex> lock(mu_);
    return submitted_.size();
  }
  void set_refusal(absl::Status refusal) {
    std::lock_guard<std::mutex> lock(mu_);
    refusal_ = std::move(refusal);
  }
  void set_stats(const EngineStats& stats) {
    std::lock_guard<std::mutex> lock(mu_);
    stats_ = stats;
  }

  // Lets go of the sinks.
  void ForgetAll() {
    std::vector<Submitted> submitted;
    std::vector<std::shared_ptr<EndedOnce>> sinks;
    std::lock_guard<std::mutex> lock(mu_);
    submitted.swap(submitted_);
    sinks.swap(sinks_);
  }
  // Ends what has no end; nothing is taken any more.
  void EndAll() {
    set_refusal(absl::CancelledError("the test is over"));
    std::vector<std::shared_ptr<EndedOnce>> sinks;
    {
      std::lock_guard<std::mutex> lock(mu_);
      sinks = sinks_;
    }
    for (const auto& sink : sinks) sink->EndIfLeft();
  }

  static TokenDelta Delta(uint32_t index, const std::string& text, uint32_t choice = 0) {
    TokenDelta delta;
    delta.choice = choice;
    for (const char c : text) delta.tokens.push_back(static_cast<unsigned char>(c));
    delta.first_index = index;
    delta.text = text;
    return delta;
  }
  static RequestEnd End(uint32_t tokens, uint32_t choice = 0) {
    RequestEnd end;
    end.choice = choice;
    end.finish_reason = FinishReason::kLength;
    end.prompt_tokens = 3;
    end.completion_tokens = tokens;
    end.timings = {absl::Milliseconds(1), absl::Milliseconds(20), absl::Milliseconds(1500)};
    end.all = {.completion_tokens = tokens, .timings = end.timings};
    return end;
  }
  static RequestEnd Failed(absl::Status status) {
    RequestEnd end;
    end.status = std::move(status);
    return end;
  }

 private:
  class EndedOnce : public RequestSink {
   public:
    explicit EndedOnce(std::shared_ptr<RequestSink> sink) : sink_(std::move(sink)) {}
    void OnAdmitted() override { sink_->OnAdmitted(); }
    void OnStatus(const RequestStatus& status) override { sink_->OnStatus(status); }
    void OnDelta(TokenDelta delta) override { sink_->OnDelta(std::move(delta)); }
    void OnChoiceEnd(RequestEnd end) override { sink_->OnChoiceEnd(std::move(end)); }
    void OnEnd(RequestEnd end) override {
      if (!ended_.exchange(true)) sink_->OnEnd(std::move(end));
    }
    void EndIfLeft() { OnEnd(Failed(absl::CancelledError("the test is over"))); }

   private:
    const std::shared_ptr<RequestSink> sink_;
    std::atomic<bool> ended_{false};
  };

  template <typename Condition>
  void AwaitChange(std::unique_lock<std::mutex>& lock, const std::string& what,
                   const Condition& condition) {
    CHECK(changed_.wait_for(lock, absl::ToChronoSeconds(kAwaitPatience), condition))
        << "it never came: " << what;
  }

  mutable std::mutex mu_;
  std::condition_variable changed_;
  std::vector<Submitted> submitted_;
  std::vector<std::shared_ptr<EndedOnce>> sinks_;  // of these
  std::vector<std::string> cancelled_;
  absl::Status refusal_;
  EngineStats stats_;
};

}  // namespace bitshard
