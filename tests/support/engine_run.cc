#include "tests/support/engine_run.h"

#include <bit>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "coordinator/engine/engine_metrics.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

bool SameFloat(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

bool SameLogprobs(const std::vector<TokenLogprobs>& a, const std::vector<TokenLogprobs>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!SameFloat(a[i].chosen, b[i].chosen) || a[i].top.size() != b[i].top.size()) return false;
    for (size_t j = 0; j < a[i].top.size(); ++j) {
      if (a[i].top[j].first != b[i].top[j].first ||
          !SameFloat(a[i].top[j].second, b[i].top[j].second))
        return false;
    }
  }
  return true;
}

// Counts the requests that are in the engine.
struct Gate {
  std::mutex mu;
  std::condition_variable changed;
  uint32_t live = 0;
};

class TranscriptSink : public RequestSink {
 public:
  TranscriptSink(Transcript* out, Gate* gate) : out_(out), gate_(gate) {}
  void OnDelta(TokenDelta delta) override {
    out_->tokens.insert(out_->tokens.end(), delta.tokens.begin(), delta.tokens.end());
    out_->logprobs.insert(out_->logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
    out_->scores.insert(out_->scores.end(), delta.prompt_logprobs.begin(),
                        delta.prompt_logprobs.end());
    out_->text += delta.text;
  }
  void OnEnd(RequestEnd end) override {
    out_->status = end.status;
    out_->scores.insert(out_->scores.end(), end.scores.begin(), end.scores.end());
    out_->cached_tokens = end.cached_tokens;
    out_->text += end.tail_text;
    std::lock_guard<std::mutex> lock(gate_->mu);
    --gate_->live;
    gate_->changed.notify_all();
  }

 private:
  Transcript* out_;
  Gate* gate_;
};

}  // namespace

bool Transcript::SameBits(const Transcript& other) const {
  return status == other.status && tokens == other.tokens && text == other.text &&
         SameLogprobs(logprobs, other.logprobs) && SameLogprobs(scores, other.scores);
}

std::string Transcript::DebugString() const {
  std::string out =
      absl::StrCat(status.ToString(), " tokens ", absl::StrJoin(tokens, ","), " logprobs ");
  for (const TokenLogprobs& l : logprobs)
    absl::StrAppend(&out, absl::Hex(std::bit_cast<uint32_t>(l.chosen)), " ");
  return out;
}

absl::StatusOr<std::vector<Transcript>> RunThroughEngine(
    TestModel& model, ThreadGroup& group, const std::vector<GenerateRequest>& requests,
    const EngineRunOptions& options) {
  RETURN_IF_ERROR(group.StartEpoch());
  Engine::Options engine_options;
  engine_options.token_budget = options.token_budget;
  engine_options.prefill_chunk = options.prefill_chunk;
  engine_options.async_depth = options.async_depth;
  engine_options.prefix_cache = options.prefix_cache;
  engine_options.max_running = group.options().max_slots;
  engine_options.context_tokens = static_cast<uint32_t>(model.checkpoint().config.context_length);
  NullEngineMetrics metrics;
  std::vector<Transcript> transcripts(requests.size());
  Gate gate;
  auto engine = Engine::Create(engine_options, &model.tokenizer(), &group, &metrics);
  engine->Start();
  while (engine->Stats().group != EngineStats::GroupState::kReady) std::this_thread::yield();
  for (size_t i = 0; i < requests.size(); ++i) {
    {
      std::unique_lock<std::mutex> lock(gate.mu);
      gate.changed.wait(lock, [&] { return gate.live < options.concurrent; });
      ++gate.live;
    }
    RETURN_IF_ERROR(
        engine->Submit(requests[i], std::make_shared<TranscriptSink>(&transcripts[i], &gate))
            .status());
  }
  {
    std::unique_lock<std::mutex> lock(gate.mu);
    gate.changed.wait(lock, [&] { return gate.live == 0; });
  }
  if (options.stats != nullptr) *options.stats = engine->Stats();
  engine->Stop();
  return transcripts;
}

}  // namespace bitshard
