// An engine on a virtual clock whose steps take a time, and requests for it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "tests/coordinator/engine/core_harness.h"

namespace bitshard {

// A step takes 4 ms + 60 us a prefill token + 250 us a decode, and a little noise.
class TimedEngine {
 public:
  explicit TimedEngine(Engine::Options options, uint32_t blocks = 4096, uint32_t slots = 64)
      : options_(SetUp(std::move(options))), harness_(options_, Group(blocks, slots)) {
    harness_.executor().set_tamper([this](internal::StepResult* result) {
      const uint64_t computed = harness_.executor().computed_tokens();
      const auto outputs = static_cast<uint64_t>(result->outputs_size());
      const uint64_t tokens = computed - std::exchange(computed_, computed);
      const double noise = 1 + 0.04 * (static_cast<double>(random_() % 100) / 50 - 1);
      const auto us = static_cast<uint64_t>(
          noise *
          static_cast<double>(4000 + 60 * (tokens - std::min(tokens, outputs)) + 250 * outputs));
      result->set_exec_us(us / said_part_);
      harness_.Pass(absl::Microseconds(us));
    });
    harness_.MakeReady();
  }

  // The workers say that a step took 1 / `parts` of its time: the rest goes by outside of them.
  void set_said_part(uint64_t parts) { said_part_ = parts; }

  static GenerateRequest Make(uint32_t prompt, uint32_t outputs, const std::string& tenant = "") {
    static uint32_t names = 0;
    GenerateRequest request;
    request.request_id = std::to_string(++names);
    request.caller = tenant;
    // Prompts have nothing in common.
    for (uint32_t i = 0; i < prompt; ++i)
      request.prompt_tokens.push_back('a' + static_cast<int32_t>((names * 7919 + i * i) % 26));
    request.prompt_tokens[0] = static_cast<int32_t>(names % 256);
    request.prompt_tokens[prompt / 2] = static_cast<int32_t>(names / 256 % 256);
    request.max_tokens = outputs;
    request.ignore_eos = true;
    return request;
  }
  std::shared_ptr<RecordingSink> Send(GenerateRequest request) {
    return harness_.Send(std::move(request));
  }
  absl::Status TrySend(GenerateRequest request, std::shared_ptr<RecordingSink>* sink = nullptr) {
    auto own = std::make_shared<RecordingSink>();
    if (sink != nullptr) *sink = own;
    return harness_.Submit(std::move(request), own);
  }
  void StepFor(absl::Duration time) {
    const absl::Time end = now() + time;
    while (now() < end) {
      if (!harness_.Step()) harness_.Wait(end - now());
    }
  }
  absl::Time now() const { return harness_.now(); }
  CoreHarness& harness() { return harness_; }

 private:
  static Engine::Options SetUp(Engine::Options options) {
    options.idle_plan_interval = absl::InfiniteDuration();
    options.vocab_size = kByteTokenizerVocab;
    return options;
  }
  static FakeExecutor::Options Group(uint32_t blocks, uint32_t slots) {
    FakeExecutor::Options group;
    group.group.cache_blocks = blocks;
    group.group.max_slots = slots;
    group.group.max_step_tokens = 512;
    return group;
  }

  const Engine::Options options_;
  CoreHarness harness_;
  std::mt19937 random_{1};
  uint64_t computed_ = 0, said_part_ = 1;
};

}  // namespace bitshard
