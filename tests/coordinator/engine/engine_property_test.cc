// The simulator: random requests with random priorities, stops, deadlines and cancels, on random
// pools, budgets and plan depths, with groups that are lost and logits that are not finite, on a
// virtual clock. Each request must end exactly once, with what it would have got alone in an
// undisturbed engine or with a prefix of it, and all blocks must come back.
#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "coordinator/engine/sampling.h"
#include "tests/coordinator/engine/core_harness.h"
#include "tests/support/seed_count.h"

namespace bitshard {
namespace {

// Few letters, so that stop strings match; now and then a piece of a longer character or the end
// token.
uint32_t NextToken(absl::Span<const uint32_t> history, const internal::SamplingParams& sampling) {
  static const FakeWorker::NextToken hashed = FakeWorker::HashedNextToken(1u << 16);
  const uint32_t hash = hashed(history, sampling);
  if (hash % 128 == 0) return kByteTokenizerEos;
  if (hash % 128 < 6) return "\xE2\x82\xAC\xC3\xA9\xF0"[hash % 6] & 0xFF;
  return 'a' + hash / 128 % 4;
}

// About one sequence in twelve, at some point of its life.
bool NonFinite(absl::Span<const uint32_t> history) {
  uint32_t sum = 0;
  for (uint32_t token : history) sum = sum * 31 + token;
  return history[0] == 'n' && sum % 12 == 0;
}

class Simulation {
 public:
  struct Seen {
    std::map<absl::StatusCode, int> ends;
    int64_t preempted = 0, lost_groups = 0, resumed = 0, cached_tokens = 0;
    int64_t several = 0;  // requests with several choices that ended well
  };

  explicit Simulation(uint32_t seed)
      : random_(seed),
        options_(RandomOptions()),
        group_(RandomGroup()),
        engine_(options_, group_),
        alone_({.token_budget = 64,
                .max_running = 1,
                .prefix_cache = false,
                .idle_plan_interval = absl::InfiniteDuration()},
               BigGroup()) {
    engine_.MakeReady();
    alone_.MakeReady();
  }

  void Run(int requests, Seen& seen) {
    int sent = 0;
    for (int turn = 0; sent < requests || engine_.core().live() > 0; ++turn) {
      ASSERT_LT(turn, 100000) << "no end in sight";
      if (sent < requests && Percent(40)) Send(sent++);
      if (Percent(5)) {
        const int victim = static_cast<int>(Below(static_cast<uint32_t>(requests)));
        engine_.Cancel(std::to_string(victim), CallerOf(victim));
      }
      if (Percent(10)) engine_.Wait(absl::Milliseconds(Below(400)));
      if (Percent(1) && ready_) {
        ready_ = false;
        ++seen.lost_groups;
        if (!options_.fail_on_group_loss)
          seen.resumed += static_cast<int64_t>(engine_.core().live());
        engine_.executor().LoseGroup(absl::UnavailableError("rank 1 is gone"));
        engine_.Advance();
      }
      if (!ready_ && Percent(30)) {
        ready_ = true;
        engine_.MakeReady();
      }
      if (Percent(80)) engine_.Step();
      if (testing::Test::HasFatalFailure()) return;
    }
    const EngineStats stats = engine_.Stats();
    EXPECT_EQ(stats.blocks_used, 0u);
    EXPECT_EQ(stats.finished + stats.rejected, static_cast<uint64_t>(requests));
    EXPECT_LE(engine_.executor().largest_step_tokens(), options_.token_budget);
    if (options_.prefill_chunk > 0) {
      EXPECT_LE(engine_.executor().largest_row_tokens(), options_.prefill_chunk);
    }
    for (const Sent& request : sent_) {
      Compare(request, seen);
      if (testing::Test::HasFatalFailure()) return;
    }
    seen.preempted += static_cast<int64_t>(engine_.metrics().preempted);
    seen.cached_tokens += static_cast<int64_t>(stats.prefix_hit_tokens);
  }

 private:
  struct Sent {
    GenerateRequest request;
    std::shared_ptr<RecordingSink> sink;
  };

  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  bool Percent(uint32_t percent) { return Below(100) < percent; }
  static std::string CallerOf(int name) { return std::string(static_cast<size_t>(name % 3), 'a'); }

  Engine::Options RandomOptions() {
    Engine::Options options;
    options.token_budget = 1 + Below(48);
    options.prefill_chunk = Percent(30) ? 1 + Below(12) : 0;
    options.max_running = 1 + Below(8);
    options.max_waiting = Percent(80) ? 1000 : 1 + Below(6);
    options.async_depth = 1 + Below(2);
    options.prefix_cache = Percent(80);
    if (Percent(30)) options.itl_slo = absl::Microseconds(1);  // steps take as long
    options.tenant_weights = {{"a", 0.5 + Below(4)}};
    options.fail_on_group_loss = Percent(30);
    options.idle_plan_interval = absl::Milliseconds(100 + Below(500));
    return options;
  }
  FakeExecutor::Options RandomGroup() {
    FakeExecutor::Options group;
    group.group.cache_blocks = 4 + Below(28);
    group.group.block_tokens = Percent(50) ? 16 : 1 + Below(8);
    group.group.max_slots = 1 + Below(10);
    group.worker.vocab_size = kByteTokenizerVocab;
    group.worker.next_token = NextToken;
    group.worker.non_finite = NonFinite;
    return group;
  }
  static FakeExecutor::Options BigGroup() {
    FakeExecutor::Options group;
    group.group.cache_blocks = 4096;
    group.worker.vocab_size = kByteTokenizerVocab;
    group.worker.next_token = NextToken;
    group.worker.non_finite = NonFinite;
    return group;
  }

  void Send(int name) {
    GenerateRequest request;
    request.request_id = std::to_string(name);
    request.caller = CallerOf(name);
    request.batch = Percent(20);
    const uint32_t n_prompt = 1 + Below(60);
    if (Percent(50)) {  // some begin alike
      const uint32_t common = Below(n_prompt);
      for (uint32_t i = 0; i < common; ++i)
        request.prompt_tokens.push_back('a' + static_cast<int32_t>(i * i % 13));
      if (Percent(20)) request.cache_salt = "salt";
    }
    while (request.prompt_tokens.size() < n_prompt)
      request.prompt_tokens.push_back('a' + static_cast<int32_t>(Below(16)));
    request.max_tokens = 1 + Below(50);
    if (Percent(15)) request.choices = std::min(2 + Below(3), options_.max_running);
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
    request.priority = static_cast<int32_t>(Below(3)) - 1;
    if (Percent(25)) request.deadline = engine_.now() + absl::Milliseconds(1 + Below(3000));
    auto sink = std::make_shared<RecordingSink>();
    const absl::Status status = engine_.Submit(request, sink);
    if (status.ok()) {
      sent_.push_back({request, sink});
      return;
    }
    const bool expected = status.code() == absl::StatusCode::kFailedPrecondition ||
                          status.code() == absl::StatusCode::kResourceExhausted ||
                          (status.code() == absl::StatusCode::kUnavailable && !ready_);
    EXPECT_TRUE(expected) << status;
  }

  void Compare(const Sent& sent, Seen& seen) {
    ASSERT_TRUE(sent.sink->ended());
    const RequestEnd end = sent.sink->AwaitEnd();
    ++seen.ends[end.status.code()];

    bool one_fails = false;
    for (uint32_t choice = 0; choice < sent.request.choices; ++choice) {
      GenerateRequest request = sent.request;
      request.deadline = absl::InfiniteFuture();
      request.choices = 1;
      request.seed = ChoiceSeed(sent.request.seed, choice);
      const auto alone_sink = alone_.Send(request);
      alone_.StepUntilIdle();
      ASSERT_TRUE(alone_sink->ended());
      CompareChoice(sent, end, choice, *alone_sink);
      if (testing::Test::HasFatalFailure()) return;
      one_fails = one_fails || !alone_sink->AwaitEnd().status.ok();
    }
    if (end.status.ok() || end.status.code() == absl::StatusCode::kInternal) {
      ASSERT_EQ(one_fails, !end.status.ok()) << "request " << sent.request.request_id;
    }
    seen.several += end.status.ok() && sent.request.choices > 1 ? 1 : 0;
    if (end.status.code() == absl::StatusCode::kDeadlineExceeded) {
      ASSERT_NE(sent.request.deadline, absl::InfiniteFuture()) << sent.request.request_id;
    }
  }

  // Ended well, a choice has all that it would have got alone, else a part of it.
  static void CompareChoice(const Sent& sent, const RequestEnd& end, uint32_t choice,
                            const RecordingSink& alone_sink) {
    const RequestEnd alone = alone_sink.AwaitEnd();
    const std::vector<int32_t> got = sent.sink->tokens(choice), expected = alone_sink.tokens();
    const std::string text = sent.sink->text(choice);
    const std::string who = absl::StrCat("request ", sent.request.request_id, ", choice ", choice,
                                         ": ", end.status.ToString());
    const std::optional<RequestEnd> of_choice = sent.sink->choice_end(choice);
    ASSERT_TRUE(of_choice.has_value() || !end.status.ok()) << who;
    if (of_choice.has_value()) {
      ASSERT_TRUE(alone.status.ok()) << who;
      ASSERT_EQ(got, expected) << who;
      ASSERT_EQ(text, alone_sink.text()) << who;
      ASSERT_EQ(of_choice->finish_reason, alone.finish_reason) << who;
      ASSERT_EQ(of_choice->matched_stop, alone.matched_stop) << who;
      ASSERT_EQ(of_choice->matched_token, alone.matched_token) << who;
      return;
    }
    if (end.status.code() == absl::StatusCode::kInternal && sent.request.choices == 1) {
      ASSERT_EQ(got, expected) << who;
    }
    ASSERT_LE(got.size(), expected.size()) << who;
    ASSERT_TRUE(std::equal(got.begin(), got.end(), expected.begin())) << who;
    ASSERT_EQ(text, alone_sink.text().substr(0, text.size())) << who;
  }

  std::mt19937 random_;
  const Engine::Options options_;
  const FakeExecutor::Options group_;
  CoreHarness engine_, alone_;
  bool ready_ = true;
  std::vector<Sent> sent_;
};

constexpr int kSeeds = SeedCount(120);

TEST(EngineProperty, EachRequestEndsOnceWithWhatItWouldGetAlone) {
  Simulation::Seen seen;
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Simulation(seed).Run(/*requests=*/40, seen);
    if (HasFailure()) return;
  }
  // The faults must have been met, or the test shows little.
  EXPECT_GT(seen.ends[absl::StatusCode::kOk], 10 * kSeeds);
  EXPECT_GT(seen.ends[absl::StatusCode::kCancelled], kSeeds);
  EXPECT_GT(seen.ends[absl::StatusCode::kDeadlineExceeded], kSeeds);
  EXPECT_GT(seen.ends[absl::StatusCode::kInternal], kSeeds / 5);
  EXPECT_GT(seen.ends[absl::StatusCode::kUnavailable], kSeeds / 5);
  EXPECT_GT(seen.preempted, 2 * kSeeds);
  EXPECT_GT(seen.cached_tokens, 5 * kSeeds);
  EXPECT_GT(seen.several, kSeeds);
  EXPECT_GT(seen.lost_groups, kSeeds / 2);
  EXPECT_GT(seen.resumed, kSeeds);
}

}  // namespace
}  // namespace bitshard
