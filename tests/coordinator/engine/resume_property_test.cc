// Random requests of every kind whose streams break again and again: the group is lost, the caller
// goes, takes over its own half-open stream, or has not received all that was sent. Each goes on
// from what its caller has until it has an end, and must then be what an undisturbed engine makes
// of it: the same tokens, text and end.
#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "tests/coordinator/engine/core_harness.h"
#include "tests/support/piece_sink.h"
#include "tests/support/seed_count.h"
#include "tests/support/words_grammar.h"

namespace bitshard {
namespace {

// Few letters, so that stop strings match; now and then a piece of a longer character or the end
// token.
uint32_t NextToken(absl::Span<const uint32_t> history, const internal::SamplingParams& sampling) {
  static const FakeWorker::NextToken hashed = FakeWorker::HashedNextToken(1u << 16);
  const uint32_t hash = hashed(history, sampling);
  if (hash % 64 == 0) return kByteTokenizerEos;
  if (hash % 64 < 6) return "\xE2\x82\xAC\xC3\xA9\xF0"[hash % 6] & 0xFF;
  return 'a' + hash / 128 % 4;
}

class Simulation {
 public:
  struct Seen {
    int breaks = 0, half_open = 0, ends_alone = 0, constrained = 0, longest_chain = 0;
    std::map<FinishReason, int> ends;
  };

  explicit Simulation(uint32_t seed)
      : random_(seed),
        engine_(RandomOptions(), RandomGroup()),
        alone_({.token_budget = 64,
                .max_running = 1,
                .prefix_cache = false,
                .idle_plan_interval = absl::InfiniteDuration()},
               BigGroup()) {
    engine_.MakeReady();
    alone_.MakeReady();
  }

  void Run(int callers, Seen& seen) {
    for (int i = 0; i < callers; ++i) callers_.push_back(RandomCaller(i));
    size_t over = 0;
    for (int turn = 0; over < callers_.size(); ++turn) {
      ASSERT_LT(turn, 200000) << "no end in sight";
      if (ready_ && Percent(2)) {
        ready_ = false;
        engine_.executor().LoseGroup(absl::UnavailableError("rank 1 is gone"));
        engine_.Advance();
      }
      if (!ready_ && Percent(30)) {
        ready_ = true;
        engine_.MakeReady();
      }
      if (Percent(80)) engine_.Step();
      over = 0;
      for (Caller& caller : callers_) {
        Look(caller, seen);
        if (testing::Test::HasFatalFailure()) return;
        over += caller.over ? 1 : 0;
      }
    }
    EXPECT_EQ(engine_.Stats().blocks_used, 0u);
    uint64_t generated = 0;
    for (const RequestSummary& summary : engine_.metrics().ended)
      generated += summary.completion_tokens;
    EXPECT_EQ(generated, engine_.metrics().generated_tokens);
  }

 private:
  struct Caller {
    GenerateRequest request;  // the first one
    std::vector<int32_t> tokens;
    std::string text;
    std::shared_ptr<PieceSink> stream;
    int calls = 0;
    bool over = false;
  };

  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  bool Percent(uint32_t percent) { return Below(100) < percent; }

  Engine::Options RandomOptions() {
    Engine::Options options;
    options.token_budget = 1 + Below(48);
    options.prefill_chunk = Percent(30) ? 1 + Below(12) : 0;
    options.max_running = 1 + Below(8);
    options.async_depth = 1 + Below(2);
    options.prefix_cache = Percent(80);
    options.idle_plan_interval = absl::InfiniteDuration();
    return options;
  }
  FakeExecutor::Options RandomGroup() {
    FakeExecutor::Options group = BigGroup();
    group.group.cache_blocks = 24 + Below(40);
    group.group.block_tokens = 4;
    group.group.max_slots = 1 + Below(10);
    return group;
  }
  static FakeExecutor::Options BigGroup() {
    FakeExecutor::Options group;
    group.group.cache_blocks = 4096;
    group.worker.vocab_size = kByteTokenizerVocab;
    group.worker.next_token = NextToken;
    return group;
  }

  Caller RandomCaller(int name) {
    GenerateRequest request;
    request.request_id = absl::StrCat("r", name);
    for (uint32_t n = 1 + Below(30); n > 0; --n)
      request.prompt_tokens.push_back('a' + static_cast<int32_t>(Below(16)));
    request.max_tokens = 1 + Below(50);
    request.seed = random_();
    for (uint32_t i = Below(3); i > 0; --i) {
      std::string stop;
      for (uint32_t letters = 2 + Below(4); letters > 0; --letters)
        stop += static_cast<char>('a' + Below(4));
      request.stop.push_back(stop);
    }
    if (Percent(20)) request.stop_token_ids.push_back(0xE2);
    request.include_stop = Percent(30);
    request.ignore_eos = Percent(50);
    if (Percent(30)) request.min_tokens = Below(request.max_tokens + 1);
    request.logprobs = Percent(30);
    request.status_events = Percent(30);
    request.priority = static_cast<int32_t>(Below(3)) - 1;
    request.batch = Percent(20);
    if (Percent(25)) {
      request.grammar = std::make_shared<const WordsGrammar>(
          std::vector<std::string>{"abcdabcdabcd", "abcdab", "aacc\xE2\x82\xAC!", "dddddddd", "b"});
    }
    return {.request = request, .tokens = {}, .text = "", .stream = nullptr};
  }

  // The caller takes what has come of its stream, or a part of it, as all that it has.
  void Receive(Caller& caller) {
    std::vector<int32_t> came = caller.stream->tokens();
    if (Percent(30)) came.resize(came.empty() ? 0 : Below(static_cast<uint32_t>(came.size())));
    caller.tokens.insert(caller.tokens.end(), came.begin(), came.end());
    caller.text += caller.stream->Shown(came.size());
    caller.stream = nullptr;
  }

  void Look(Caller& caller, Seen& seen) {
    if (caller.over) return;
    if (caller.stream == nullptr) {
      if (Percent(30)) Call(caller, /*supersede=*/false);
      return;
    }
    if (caller.stream->ended()) {
      const RequestEnd end = caller.stream->AwaitEnd();
      if (end.status.ok() && !Percent(10)) return Finish(caller, end, seen);
      ASSERT_TRUE(end.status.ok() || absl::IsUnavailable(end.status) ||
                  absl::IsCancelled(end.status))
          << end.status;
      ++seen.breaks;
      if (end.status.ok()) ++seen.ends_alone;  // the last message was lost, perhaps with more
      return Receive(caller);
    }
    if (Percent(1)) {
      engine_.Cancel(caller.request.request_id);
    } else if (ready_ && Percent(1)) {
      ++seen.half_open;
      Receive(caller);
      Call(caller, /*supersede=*/true);
    }
  }

  void Call(Caller& caller, bool supersede) {
    GenerateRequest request = caller.request;
    request.resumed = caller.tokens;
    request.supersede = supersede;
    auto stream = std::make_shared<PieceSink>(request.resumed.size());
    const absl::Status status = engine_.Submit(request, stream);
    if (status.ok()) {
      caller.stream = std::move(stream);
      ++caller.calls;
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_FALSE(ready_);
    }
  }

  void Finish(Caller& caller, const RequestEnd& end, Seen& seen) {
    caller.over = true;
    const std::vector<int32_t> came = caller.stream->tokens();
    caller.tokens.insert(caller.tokens.end(), came.begin(), came.end());
    caller.text += caller.stream->text();
    ++seen.ends[*end.finish_reason];
    if (caller.request.grammar != nullptr) ++seen.constrained;
    seen.longest_chain = std::max(seen.longest_chain, caller.calls);

    const auto alone_sink = alone_.Send(caller.request);
    alone_.StepUntilIdle();
    ASSERT_TRUE(alone_sink->ended());
    const RequestEnd alone = alone_sink->AwaitEnd();
    const std::string who =
        absl::StrCat(caller.request.request_id, " after ", caller.calls, " calls");
    ASSERT_TRUE(alone.status.ok()) << who << ": " << alone.status;
    ASSERT_EQ(caller.tokens, alone_sink->tokens()) << who;
    ASSERT_EQ(caller.text, alone_sink->text()) << who;
    ASSERT_EQ(end.finish_reason, alone.finish_reason) << who;
    ASSERT_EQ(end.matched_stop, alone.matched_stop) << who;
    ASSERT_EQ(end.matched_token, alone.matched_token) << who;
    ASSERT_EQ(end.completion_tokens, alone.completion_tokens) << who;
  }

  std::mt19937 random_;
  CoreHarness engine_, alone_;
  bool ready_ = true;
  std::vector<Caller> callers_;
};

constexpr int kSeeds = SeedCount(100);

TEST(ResumeProperty, AnswersThatBreakAnywhereGoOnToTheSameEnd) {
  Simulation::Seen seen;
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Simulation(seed).Run(/*callers=*/30, seen);
    if (HasFailure()) return;
  }
  // The breaks must have been met, or the test shows little.
  EXPECT_GT(seen.breaks, 10 * kSeeds);
  EXPECT_GT(seen.half_open, kSeeds);
  EXPECT_GT(seen.ends_alone, kSeeds);
  EXPECT_GT(seen.constrained, 3 * kSeeds);
  EXPECT_GT(seen.longest_chain, 4);
  EXPECT_GT(seen.ends[FinishReason::kStop], 5 * kSeeds);
  EXPECT_GT(seen.ends[FinishReason::kLength], 5 * kSeeds);
}

}  // namespace
}  // namespace bitshard
