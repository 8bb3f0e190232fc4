// A request that the engine has accepted and not yet ended, with its choices.
//
// Owned by EngineCore, engine thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"

#include "coordinator/engine/engine.h"
#include "coordinator/engine/mask_job.h"
#include "coordinator/engine/resume.h"
#include "coordinator/engine/text_stream.h"
#include "coordinator/schedule/scheduler.h"
#include "coordinator/schedule/sequence.h"
#include "coordinator/text/tokenizer.h"

namespace bitshard {

// A wall clock may be set back between two readings.
inline absl::Duration Between(absl::Time from, absl::Time to) {
  return std::max(to - from, absl::ZeroDuration());
}

// One of the answers that a request asked for: one sequence of the scheduler.
struct LiveChoice {
  LiveChoice(const Tokenizer* tokenizer, const GenerateRequest& request)
      : text(request.replayed == nullptr ? TextStream(tokenizer, request)
                                         : request.replayed->stream),
        completion_tokens(static_cast<uint32_t>(request.resumed.size())) {}
  ~LiveChoice() {
    if (place != nullptr) place->gone.store(true, std::memory_order_relaxed);
  }
  LiveChoice(const LiveChoice&) = delete;
  LiveChoice& operator=(const LiveChoice&) = delete;

  TextStream text;
  std::shared_ptr<GrammarPlace> place;  // null: not constrained; a job's while one is out
  uint32_t completion_tokens;           // those that came with the request included
  std::optional<absl::Time> first_token, last_token;
  uint32_t preemptions = 0;  // that recompute_since knows of
  bool ended = false;        // well, before others of its request
};

struct LiveRequest {
  LiveRequest(SequenceId id, GenerateRequest what, std::shared_ptr<RequestSink> to,
              const Tokenizer* tokenizer)
      : id(id), request(std::move(what)), sink(std::move(to)) {
    for (uint32_t i = 0; i < request.choices; ++i) choices.emplace_back(tokenizer, request);
  }

  bool has_several() const { return choices.size() > 1; }

  // Choice i is the sequence id + i.
  const SequenceId id;
  const GenerateRequest request;
  const std::shared_ptr<RequestSink> sink;
  std::deque<LiveChoice> choices;
  // The choices after the first are with the scheduler; until then they wait for the first one to
  // compute the prompt.
  bool released = false;
  bool cut_off = false;               // a choice has ended kLength
  uint32_t ended = 0;                 // choices
  uint32_t ended_preemptions = 0;     // of these
  uint64_t ended_prompt_tokens = 0;   // of these, as EngineCore::taken_prompt_tokens counts
  uint32_t cached_tokens = 0;         // of the prompt, from the prefix cache: the first choice's
  std::vector<TokenLogprobs> scores;  // committed so far; the first choice's
  std::vector<float> embedding;       // with pooling, at its end
  std::optional<RequestStatus> told;  // the last status event
  absl::Time accepted;
  std::optional<absl::Time> first_planned, first_token;  // of the first choice that comes to it
  // Since when a choice makes up for lost blocks; how long that was so until the request's first
  // token, and after it.
  std::optional<absl::Time> recompute_since;
  absl::Duration recompute_before, recompute_after;
};

// Whether a choice is in steps; how many of its are.
inline bool Runs(const LiveRequest& live, uint32_t choice, const Scheduler& scheduler) {
  const SequenceId sequence = live.id + choice;
  return scheduler.Contains(sequence) && scheduler.Get(sequence).slot.has_value();
}
inline uint32_t RunningOf(const LiveRequest& live, const Scheduler& scheduler) {
  uint32_t running = 0;
  for (uint32_t i = 0; i < live.choices.size(); ++i) running += Runs(live, i, scheduler) ? 1 : 0;
  return running;
}

}  // namespace bitshard
