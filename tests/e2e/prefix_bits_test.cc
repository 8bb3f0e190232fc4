// The prefix cache through the real engine and real ranks: whatever a request finds in it, loses to
// a preemption or has in flight, its tokens, text and the bits of every log-probability are those
// of a request that computes all by itself.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "kernels/base/check.h"
#include "tests/support/engine_run.h"
#include "tests/support/test_paths.h"
#include "tests/support/thread_group.h"

namespace bitshard {
namespace {

constexpr uint32_t kBlockTokens = 16;
constexpr uint32_t kSlots = 12;

struct Subject {
  std::string name;
  std::string path;
  internal::NumericsOptions::Activations activations;
  internal::NumericsOptions::CacheType cache;
};

class Prompts {
 public:
  Prompts(const TestModel& model, uint64_t seed)
      : random_(seed), vocab_(model.checkpoint().config.vocab_size) {}

  uint32_t Below(uint64_t n) { return static_cast<uint32_t>(random_() % n); }
  int32_t Token() { return 7 + static_cast<int32_t>(Below(vocab_ - 7)); }
  // Another token than `not_this`.
  int32_t OtherToken(int32_t not_this) {
    int32_t token = Token();
    while (token == not_this) token = Token();
    return token;
  }
  void Append(uint32_t n, std::vector<int32_t>& tokens) {
    for (uint32_t i = 0; i < n; ++i) tokens.push_back(Token());
  }
  // Sampling of every kind, all numbers reported.
  GenerateRequest Request(const std::string& id, uint32_t max_tokens) {
    GenerateRequest r;
    r.request_id = id;
    r.max_tokens = max_tokens;
    r.ignore_eos = true;
    r.logprobs = true;
    r.top_logprobs = 3;
    r.seed = random_();
    switch (Below(3)) {
      case 0:
        r.temperature = 0.8f;
        break;
      case 1:
        r.temperature = 1.2f;
        r.top_k = 40;
        r.top_p = 0.9f;
        break;
      default:
        break;  // greedy
    }
    return r;
  }

 private:
  std::mt19937_64 random_;
  const uint64_t vocab_;
};

// A few long beginnings (one of them longer than a chunk of attention), random ends; some are only
// scored, two have a salt of their own.
std::vector<GenerateRequest> SharedPrompts(const TestModel& model) {
  Prompts prompts(model, 20261130);
  std::vector<std::vector<int32_t>> beginnings(3);
  prompts.Append(40, beginnings[0]);
  beginnings[1].assign(beginnings[0].begin(), beginnings[0].begin() + 24);
  prompts.Append(51, beginnings[1]);
  prompts.Append(272, beginnings[2]);
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 36; ++i) {
    GenerateRequest r = prompts.Request(absl::StrCat("r", i), 20 + prompts.Below(30));
    r.prompt_tokens = beginnings[i % 8 == 7 ? 2 : static_cast<size_t>(i) % 2];
    prompts.Append(prompts.Below(24), r.prompt_tokens);
    if (i % 9 == 5) {
      r.score_from = prompts.Below(r.prompt_tokens.size());
      r.max_tokens = 0;
    }
    if (i % 18 == 4) r.cache_salt = "another tenant";
    requests.push_back(std::move(r));
  }
  return requests;
}

ThreadGroup::Options GroupOptions(const Subject& subject, int workers, uint32_t cache_blocks) {
  ThreadGroup::Options options;
  options.world = workers;
  options.activations = subject.activations;
  options.kv_cache_type = subject.cache;
  options.cache_blocks = cache_blocks;
  options.max_slots = kSlots;
  options.max_step_tokens = 256;
  return options;
}

std::vector<Transcript> RunAll(TestModel& model, ThreadGroup& group,
                               const std::vector<GenerateRequest>& requests,
                               const EngineRunOptions& options) {
  auto transcripts = RunThroughEngine(model, group, requests, options);
  CHECK_OK(transcripts.status());
  return *std::move(transcripts);
}

int CountDifferences(const std::vector<Transcript>& reference, const std::vector<Transcript>& got,
                     const std::string& cell, bool report = true) {
  int differences = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i].status.ok() && got[i].SameBits(reference[i])) continue;
    ++differences;
    if (report) {
      ADD_FAILURE() << cell << ", request " << i << " with " << got[i].cached_tokens
                    << " cached tokens\n  got       " << got[i].DebugString() << "\n  reference "
                    << reference[i].DebugString();
    }
  }
  return differences;
}

class PrefixBits : public testing::TestWithParam<Subject> {};

TEST_P(PrefixBits, HitOrMissPreemptedOrNotOneOrTwoPlansOut) {
  auto model = TestModel::Open(GetParam().path);
  ASSERT_TRUE(model.ok()) << model.status();
  const std::vector<GenerateRequest> requests = SharedPrompts(**model);
  auto alone = ThreadGroup::Create(**model, GroupOptions(GetParam(), 1, 512));
  ASSERT_TRUE(alone.ok()) << alone.status();
  const std::vector<Transcript> reference =
      RunAll(**model, **alone, requests, {.async_depth = 1, .prefix_cache = false});
  int cells = 0;
  for (int workers : {1, 2}) {
    for (bool preempted : {false, true}) {
      // The longest request alone needs 22 blocks; twelve at once, without sharing, some 80.
      auto group =
          ThreadGroup::Create(**model, GroupOptions(GetParam(), workers, preempted ? 24 : 512));
      ASSERT_TRUE(group.ok()) << group.status();
      for (bool prefix_cache : {true, false}) {
        for (uint32_t depth : {1u, 2u}) {
          const std::string cell =
              absl::StrCat("workers ", workers, preempted ? ", preempted" : "", ", prefix cache ",
                           prefix_cache ? "on" : "off", ", plans out ", depth);
          EngineStats stats;
          const std::vector<Transcript> got = RunAll(**model, **group, requests,
                                                     {.concurrent = kSlots,
                                                      .prefill_chunk = depth == 1 ? 0u : 29u,
                                                      .async_depth = depth,
                                                      .prefix_cache = prefix_cache,
                                                      .stats = &stats});
          EXPECT_EQ(CountDifferences(reference, got, cell), 0);
          // Or the cell would not be what it says.
          EXPECT_EQ(stats.preemptions > 0, preempted) << cell;
          EXPECT_EQ(stats.prefix_hit_tokens > 0, prefix_cache) << cell;
          EXPECT_EQ(stats.prefix_evicted_blocks > 0, prefix_cache && preempted) << cell;
          EXPECT_EQ(stats.blocks_used, 0u) << cell;
          EXPECT_EQ(stats.blocks_free + stats.blocks_cached, stats.blocks_total) << cell;
          ++cells;
        }
      }
    }
  }
  EXPECT_EQ(cells, 16);
}

// A second turn begins with the first one's prompt and answer, whose KV was written token by token.
TEST_P(PrefixBits, SecondTurnFindsWhatDecodeWrote) {
  auto model = TestModel::Open(GetParam().path);
  ASSERT_TRUE(model.ok()) << model.status();
  auto group = ThreadGroup::Create(**model, GroupOptions(GetParam(), 2, 512));
  ASSERT_TRUE(group.ok()) << group.status();
  Prompts prompts(**model, 7);
  std::vector<GenerateRequest> turns(1, prompts.Request("first", 70));
  prompts.Append(21, turns[0].prompt_tokens);
  const std::vector<Transcript> first = RunAll(**model, **group, turns, {.prefix_cache = false});
  turns.push_back(prompts.Request("second", 8));
  turns[1].prompt_tokens = turns[0].prompt_tokens;
  turns[1].prompt_tokens.insert(turns[1].prompt_tokens.end(), first[0].tokens.begin(),
                                first[0].tokens.end());
  prompts.Append(5, turns[1].prompt_tokens);
  const std::vector<Transcript> reference =
      RunAll(**model, **group, turns, {.prefix_cache = false});
  const std::vector<Transcript> got = RunAll(**model, **group, turns, {});
  EXPECT_EQ(CountDifferences(reference, got, "two turns"), 0);
  // 91 tokens stand before the new ones; the last of the answer was never computed.
  EXPECT_EQ(got[1].cached_tokens, 80u);
}

// Blocks that hold something else must show: of every hit the first two are exchanged.
TEST_P(PrefixBits, HarnessFailsWhenAHitNamesTheWrongBlocks) {
  auto model = TestModel::Open(GetParam().path);
  ASSERT_TRUE(model.ok()) << model.status();
  const std::vector<GenerateRequest> requests = SharedPrompts(**model);
  int touched = 0;
  ThreadGroup::Options options = GroupOptions(GetParam(), 1, 512);
  options.edit_plan = [&touched](internal::StepPlan* plan) {
    for (internal::NewSequence& sequence : *plan->mutable_new_sequences()) {
      if (sequence.cached_tokens() < 2 * kBlockTokens) continue;
      sequence.mutable_blocks()->SwapElements(0, 1);
      ++touched;
    }
  };
  auto group = ThreadGroup::Create(**model, options);
  ASSERT_TRUE(group.ok()) << group.status();
  const std::vector<Transcript> reference =
      RunAll(**model, **group, requests, {.concurrent = kSlots, .prefix_cache = false});
  EXPECT_EQ(touched, 0);
  const std::vector<Transcript> got = RunAll(**model, **group, requests, {.concurrent = kSlots});
  EXPECT_GT(touched, 5);
  EXPECT_GT(CountDifferences(reference, got, "", /*report=*/false), 5);
}

INSTANTIATE_TEST_SUITE_P(Models, PrefixBits,
                         testing::Values(Subject{"TinyLlamaF32", GoldenModel("tiny-llama"),
                                                 internal::NumericsOptions::ACTIVATIONS_F32,
                                                 internal::NumericsOptions::CACHE_TYPE_F32},
                                         Subject{"TinyLlamaQ4A16", GoldenModel("gguf-Q4_1"),
                                                 internal::NumericsOptions::ACTIVATIONS_A16,
                                                 internal::NumericsOptions::CACHE_TYPE_BF16},
                                         Subject{"TinyLlamaQ4A8Int8Cache", GoldenModel("gguf-Q4_1"),
                                                 internal::NumericsOptions::ACTIVATIONS_A8,
                                                 internal::NumericsOptions::CACHE_TYPE_INT8}),
                         [](const auto& info) { return info.param.name; });

// Pairs whose prompts agree in a random number of tokens: the second finds exactly the full blocks
// of these, and answers with the bits of one that finds nothing.
TEST(PrefixPairs, HitEqualsMissForAThousandRandomPairs) {
  constexpr int kPairs = 1000;
  auto model = TestModel::Open(GoldenModel("gguf-Q4_1"));
  ASSERT_TRUE(model.ok()) << model.status();
  const Subject subject = {"", "", internal::NumericsOptions::ACTIVATIONS_A16,
                           internal::NumericsOptions::CACHE_TYPE_BF16};
  auto group = ThreadGroup::Create(**model, GroupOptions(subject, 1, 512));
  ASSERT_TRUE(group.ok()) << group.status();
  Prompts prompts(**model, 1);
  std::vector<GenerateRequest> both, second;
  std::vector<uint32_t> expected;
  for (int i = 0; i < kPairs; ++i) {
    GenerateRequest a = prompts.Request(absl::StrCat("a", i), 1);
    prompts.Append(2 + prompts.Below(120), a.prompt_tokens);
    GenerateRequest b = prompts.Request(absl::StrCat("b", i), 3);
    const uint32_t common = prompts.Below(a.prompt_tokens.size());
    b.prompt_tokens.assign(a.prompt_tokens.begin(), a.prompt_tokens.begin() + common);
    b.prompt_tokens.push_back(prompts.OtherToken(a.prompt_tokens[common]));
    prompts.Append(prompts.Below(40), b.prompt_tokens);
    uint32_t may_be_cached = common;
    if (i % 4 == 3) {
      const uint32_t from = prompts.Below(b.prompt_tokens.size());
      b.score_from = from;
      b.max_tokens = 0;
      may_be_cached = std::min(common, std::max(from, 1u) - 1);
    }
    expected.push_back(may_be_cached / kBlockTokens * kBlockTokens);
    both.push_back(std::move(a));
    both.push_back(b);
    second.push_back(std::move(b));
  }
  const std::vector<Transcript> miss = RunAll(**model, **group, second, {.prefix_cache = false});
  const std::vector<Transcript> pairs = RunAll(**model, **group, both, {});
  uint32_t with_hit = 0, hit_tokens = 0;
  for (int i = 0; i < kPairs; ++i) {
    const size_t at = static_cast<size_t>(i);
    const Transcript& hit = pairs[2 * at + 1];
    ASSERT_TRUE(hit.status.ok()) << hit.status;
    ASSERT_TRUE(hit.SameBits(miss[at])) << "pair " << i << "\n  hit  " << hit.DebugString()
                                        << "\n  miss " << miss[at].DebugString();
    ASSERT_EQ(hit.cached_tokens, expected[at]) << "pair " << i;
    ASSERT_EQ(miss[at].cached_tokens, 0u);
    with_hit += hit.cached_tokens > 0;
    hit_tokens += hit.cached_tokens;
  }
  std::printf("%d pairs, %u with a hit, %u tokens from the cache\n", kPairs, with_hit, hit_tokens);
  EXPECT_GT(with_hit, kPairs / 3u);
}

}  // namespace
}  // namespace bitshard
