#include "tests/support/engine_run.h"

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"

#include "coordinator/engine/engine_metrics.h"
#include "kernels/base/status_macros.h"
#include "tests/support/await.h"

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

// The requests that are in the engine, and those whose streams broke and that are to go on.
struct Gate {
  std::mutex mu;
  std::condition_variable changed;
  uint32_t live = 0;
  std::deque<size_t> broken;
};

// When a stream breaks.
struct Break {
  Engine* engine = nullptr;
  const GenerateRequest* request = nullptr;
  size_t place = 0;     // among the requests
  uint32_t tokens = 0;  // that come before it; 0 = never
};

class TranscriptSink : public RequestSink {
 public:
  // `out`: one a choice.
  TranscriptSink(absl::Span<Transcript> out, uint32_t first_choice, const Break& to_break,
                 Gate* gate)
      : out_(out), first_choice_(first_choice), break_(to_break), gate_(gate) {}
  void OnDelta(TokenDelta delta) override {
    Transcript& out = out_[delta.choice - first_choice_];
    out.tokens.insert(out.tokens.end(), delta.tokens.begin(), delta.tokens.end());
    out.logprobs.insert(out.logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
    out.scores.insert(out.scores.end(), delta.prompt_logprobs.begin(), delta.prompt_logprobs.end());
    out.text += delta.text;
    if (++deltas_ == break_.tokens)
      break_.engine->Abort(break_.request->caller, break_.request->request_id);
  }
  void OnChoiceEnd(RequestEnd end) override {
    out_[end.choice - first_choice_].text += end.tail_text;
  }
  void OnEnd(RequestEnd end) override {
    if (absl::IsCancelled(end.status)) {
      std::lock_guard<std::mutex> lock(gate_->mu);
      gate_->broken.push_back(break_.place);
      gate_->changed.notify_all();
      return;
    }
    for (Transcript& out : out_) {
      out.status = end.status;
      out.cached_tokens = end.cached_tokens;
    }
    Transcript& out = out_[end.status.ok() ? end.choice - first_choice_ : 0];
    out.scores.insert(out.scores.end(), end.scores.begin(), end.scores.end());
    out.embedding = std::move(end.embedding);
    out.text += end.tail_text;
    std::lock_guard<std::mutex> lock(gate_->mu);
    --gate_->live;
    gate_->changed.notify_all();
  }

 private:
  const absl::Span<Transcript> out_;
  const uint32_t first_choice_;
  const Break break_;
  Gate* const gate_;
  uint32_t deltas_ = 0;
};

}  // namespace

bool Transcript::SameBits(const Transcript& other) const {
  return status == other.status && tokens == other.tokens && text == other.text &&
         SameLogprobs(logprobs, other.logprobs) && SameLogprobs(scores, other.scores) &&
         std::equal(embedding.begin(), embedding.end(), other.embedding.begin(),
                    other.embedding.end(), SameFloat);
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
  size_t choices = 0;
  for (const GenerateRequest& request : requests) choices += request.choices;
  std::vector<Transcript> transcripts(choices);
  std::vector<absl::Span<Transcript>> outs;
  for (size_t i = 0, next = 0; i < requests.size(); next += requests[i++].choices)
    outs.push_back(absl::MakeSpan(transcripts).subspan(next, requests[i].choices));
  uint32_t breaks = 0;
  Gate gate;
  auto engine = Engine::Create(engine_options, &model.tokenizer(), &group, &metrics);
  engine->Start();
  AwaitTrue("a group that is ready",
            [&] { return engine->Stats().group == EngineStats::GroupState::kReady; });
  for (size_t next = 0;;) {
    size_t i = next;
    bool resumes = false;
    {
      std::unique_lock<std::mutex> lock(gate.mu);
      gate.changed.wait(lock, [&] {
        const bool all = next == requests.size();
        return !gate.broken.empty() || (all ? gate.live == 0 : gate.live < options.concurrent);
      });
      resumes = !gate.broken.empty();
      if (resumes) {
        i = gate.broken.front();
        gate.broken.pop_front();
      } else if (next == requests.size()) {
        break;
      } else {
        ++next;
        ++gate.live;
      }
    }
    GenerateRequest request = requests[i];
    if (resumes) {
      ++breaks;
      request.resumed = outs[i].front().tokens;
      if (!request.resumed.empty()) request.score_from.reset();
    }
    const Break to_break{.engine = engine.get(),
                         .request = &requests[i],
                         .place = i,
                         .tokens = request.choices > 1 ? 0 : options.break_every};
    auto sink = std::make_shared<TranscriptSink>(outs[i], request.first_choice, to_break, &gate);
    RETURN_IF_ERROR(engine->Submit(std::move(request), std::move(sink)).status());
  }
  if (options.breaks != nullptr) *options.breaks = breaks;
  if (options.stats != nullptr) *options.stats = engine->Stats();
  engine->Stop();
  return transcripts;
}

}  // namespace bitshard
