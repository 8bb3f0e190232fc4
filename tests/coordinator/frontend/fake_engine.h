// An Engine whose requests the test plays itself: it sees what was submitted and calls the sinks.
#pragma once

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
    submitted_.push_back({std::move(request), std::move(sink)});
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
    changed_.wait(lock, [&] { return submitted_.size() >= count; });
    return submitted_[count - 1];
  }
  // The last one that was cancelled, as "#<handle>", or aborted, as "<caller>/<request_id>".
  std::string AwaitCancel() {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait(lock, [&] { return !cancelled_.empty(); });
    return cancelled_.back();
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
    std::lock_guard<std::mutex> lock(mu_);
    submitted.swap(submitted_);
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
  mutable std::mutex mu_;
  std::condition_variable changed_;
  std::vector<Submitted> submitted_;
  std::vector<std::string> cancelled_;
  absl::Status refusal_;
  EngineStats stats_;
};

}  // namespace bitshard
