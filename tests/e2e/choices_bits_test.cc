// Several choices of a request through the real engine and real ranks: each has the tokens, the
// text and the bits of every log-probability of a request of its own with that choice's seed,
// whatever the number of ranks, the chunks, the prefix cache, the plans outstanding, and after
// preemptions.
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "coordinator/engine/sampling.h"
#include "kernels/base/check.h"
#include "tests/support/engine_run.h"
#include "tests/support/test_paths.h"
#include "tests/support/thread_group.h"

namespace bitshard {
namespace {

constexpr uint32_t kRequests = 10, kSlots = 12;

std::vector<GenerateRequest> Requests(const TestModel& model) {
  std::mt19937_64 random(20261201);
  const uint64_t vocab = model.checkpoint().config.vocab_size;
  std::vector<GenerateRequest> requests(kRequests);
  for (uint32_t i = 0; i < kRequests; ++i) {
    GenerateRequest& r = requests[i];
    r.request_id = absl::StrCat("r", i);
    const uint32_t lengths[] = {1, 16, 17, 40, 70};
    for (uint32_t t = 0; t < lengths[i % 5]; ++t)
      r.prompt_tokens.push_back(static_cast<int32_t>(7 + random() % (vocab - 7)));
    r.choices = 1 + i % 4;
    r.max_tokens = 20;
    r.ignore_eos = i % 2 == 0;
    r.seed = random();
    r.logprobs = true;
    r.top_logprobs = 2;
    if (i % 3 != 0) r.temperature = 1.2f;
    if (i % 3 == 2) r.top_p = 0.9f;
    if (i % 4 == 3) {
      r.repetition_penalty = 1.3f;
      r.frequency_penalty = 0.5f;
    }
    if (i % 5 == 3) r.score_from = 0;
    if (i == 7) r.stop = {"e"};
  }
  return requests;
}

// Each choice as a request of its own.
std::vector<GenerateRequest> Singles(const std::vector<GenerateRequest>& requests) {
  std::vector<GenerateRequest> singles;
  for (const GenerateRequest& request : requests) {
    for (uint32_t i = 0; i < request.choices; ++i) {
      GenerateRequest& one = singles.emplace_back(request);
      one.request_id = absl::StrCat(request.request_id, ".", i);
      one.choices = 1;
      one.seed = ChoiceSeed(request.seed, i);
      if (i > 0) one.score_from.reset();  // once is enough
    }
  }
  return singles;
}

struct Cell {
  std::string name = {};
  int workers = 1;
  uint32_t concurrent = kRequests, chunk = 0, depth = 2, blocks = 512;
  bool prefix_cache = true;
};

std::vector<Transcript> RunCell(TestModel& model, const std::vector<GenerateRequest>& requests,
                                const Cell& cell, EngineStats* stats = nullptr) {
  ThreadGroup::Options options;
  options.world = cell.workers;
  options.activations = internal::NumericsOptions::ACTIVATIONS_A16;
  options.cache_blocks = cell.blocks;
  options.max_slots = kSlots;
  options.max_step_tokens = 256;
  auto group = ThreadGroup::Create(model, options);
  CHECK_OK(group.status());
  EngineRunOptions run;
  run.concurrent = cell.concurrent;
  run.prefill_chunk = cell.chunk;
  run.async_depth = cell.depth;
  run.prefix_cache = cell.prefix_cache;
  run.stats = stats;
  auto transcripts = RunThroughEngine(model, **group, requests, run);
  CHECK_OK(transcripts.status());
  return *std::move(transcripts);
}

class ChoicesBits : public testing::TestWithParam<std::string> {};

TEST_P(ChoicesBits, AreThoseOfRequestsOfTheirOwn) {
  auto model = TestModel::Open(GoldenModel(GetParam()));
  ASSERT_TRUE(model.ok()) << model.status();
  const std::vector<GenerateRequest> requests = Requests(**model);
  const std::vector<Transcript> alone =
      RunCell(**model, Singles(requests), {.concurrent = 1, .depth = 1, .prefix_cache = false});
  const std::vector<Cell> cells = {
      {.name = "one at a time", .concurrent = 1},
      {.name = "together", .workers = 2},
      {.name = "in chunks, one plan out", .workers = 3, .chunk = 7, .depth = 1},
      {.name = "without prefix cache", .workers = 2, .prefix_cache = false},
      {.name = "too small a pool", .workers = 1, .blocks = 20},
      {.name = "too small a pool, no prefix cache",
       .workers = 2,
       .blocks = 20,
       .prefix_cache = false}};
  for (const Cell& cell : cells) {
    EngineStats stats;
    const std::vector<Transcript> got = RunCell(**model, requests, cell, &stats);
    ASSERT_EQ(got.size(), alone.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(got[i].status.ok()) << got[i].status;
      EXPECT_TRUE(got[i].SameBits(alone[i]))
          << cell.name << ", choice " << i << "\n  got   " << got[i].DebugString() << "\n  alone "
          << alone[i].DebugString();
    }
    EXPECT_EQ(stats.blocks_used, 0u);
    EXPECT_EQ(stats.finished, uint64_t{kRequests});
    if (cell.blocks == 20) {
      EXPECT_GT(stats.preemptions, 0u) << cell.name;
    }
    if (cell.prefix_cache) {
      EXPECT_GT(stats.prefix_hit_tokens, 0u) << cell.name;
    }
  }
  // Greedy choices are all the same, drawn ones are not.
  size_t first = 0, drawn_differ = 0;
  for (const GenerateRequest& request : requests) {
    for (uint32_t i = 1; i < request.choices; ++i) {
      const bool same = alone[first + i].tokens == alone[first].tokens;
      if (request.temperature == 0) {
        EXPECT_TRUE(same) << request.request_id;
      } else {
        drawn_differ += same ? 0 : 1;
      }
    }
    first += request.choices;
  }
  EXPECT_GT(drawn_differ, 5u);
}

INSTANTIATE_TEST_SUITE_P(Models, ChoicesBits, testing::Values("tiny-llama", "gguf-Q4_1"),
                         [](const auto& info) {
                           return info.param == "tiny-llama" ? "TinyLlama" : "Q4";
                         });

}  // namespace
}  // namespace bitshard
