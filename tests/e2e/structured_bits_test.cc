// Same bits under constraints: tokens, text and log-probabilities of constrained requests are equal
// on 1, 2 and 3 ranks, with one and two plans outstanding, alone and in a batch with free ones, and
// when their streams break and are resumed.
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "coordinator/grammar/constraint_compiler.h"
#include "kernels/base/check.h"
#include "tests/support/engine_run.h"
#include "tests/support/test_paths.h"
#include "tests/support/thread_group.h"

namespace bitshard {
namespace {

using Kind = Constraint::Kind;
constexpr int kRequests = 24;

std::vector<GenerateRequest> Requests(const TestModel& model) {
  const uint32_t vocab = static_cast<uint32_t>(model.checkpoint().config.vocab_size);
  const ConstraintCompiler compiler(VocabularyBytes::Of(model.tokenizer(), vocab, {}));
  const Constraint constraints[] = {
      {Kind::kRegex, "[a-z]{2,12}( [a-z]{2,5}){3}", {}},
      {Kind::kChoice, "", {"alpha", "beta", "gamma", "alphabet"}},
      {Kind::kJsonSchema,
       R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string","maxLength":9},
          "c":{"enum":["x",1,null]}},"required":["a","b","c"]})",
       {}},
      {Kind::kGrammar, "root ::= n (\"+\" n){2,4}\nn ::= [1-9] | \"(\" root \")\"", {}}};
  std::vector<std::shared_ptr<const CompiledGrammar>> grammars;
  for (const Constraint& constraint : constraints) {
    auto compiled = compiler.Compile(constraint);
    CHECK_OK(compiled.status());
    grammars.push_back(*std::move(compiled));
  }
  std::mt19937_64 random(20261130);
  std::vector<GenerateRequest> requests(kRequests);
  for (int i = 0; i < kRequests; ++i) {
    GenerateRequest& r = requests[static_cast<size_t>(i)];
    r.request_id = absl::StrCat("r", i);
    for (int t = 0; t <= i % 7 * 5; ++t)
      r.prompt_tokens.push_back(static_cast<int32_t>(7 + random() % (vocab - 7)));
    r.max_tokens = 60;
    r.temperature = i % 3 == 0 ? 0.0f : 1.0f;
    r.top_p = i % 2 == 0 ? 1.0f : 0.9f;
    r.seed = random();
    r.logprobs = true;
    r.top_logprobs = 2;
    if (i % 6 != 5) {
      r.grammar = grammars[static_cast<size_t>(i) % grammars.size()];
    } else {
      r.max_tokens = 15;
    }
  }
  return requests;
}

TEST(StructuredBits, EqualOverRanksDepthsAndBatches) {
  auto model = TestModel::Open(GoldenModel("tiny-llama"));
  CHECK_OK(model.status());
  const std::vector<GenerateRequest> requests = Requests(**model);
  std::vector<Transcript> reference;
  for (const int world : {1, 2, 3}) {
    ThreadGroup::Options group_options;
    group_options.world = world;
    group_options.max_slots = kRequests;
    group_options.max_step_tokens = 256;
    auto group = ThreadGroup::Create(**model, group_options);
    CHECK_OK(group.status());
    for (const uint32_t depth : {1u, 2u}) {
      for (const uint32_t concurrent : {1u, uint32_t{kRequests}}) {
        EngineRunOptions run;
        run.concurrent = concurrent;
        run.async_depth = depth;
        // Streams that break in the middle of their grammars.
        if (world == 2) run.break_every = depth + concurrent / 8;
        uint32_t breaks = 0;
        run.breaks = &breaks;
        auto transcripts = RunThroughEngine(**model, **group, requests, run);
        CHECK_OK(transcripts.status());
        EXPECT_EQ(breaks > requests.size(), run.break_every > 0) << breaks;
        if (reference.empty()) reference = *transcripts;
        for (size_t i = 0; i < requests.size(); ++i) {
          EXPECT_TRUE((*transcripts)[i].status.ok()) << (*transcripts)[i].status;
          EXPECT_TRUE((*transcripts)[i].SameBits(reference[i]))
              << "world " << world << " depth " << depth << " concurrent " << concurrent
              << " broken every " << run.break_every << " request " << i << "\n  got       "
              << (*transcripts)[i].DebugString() << "\n  reference " << reference[i].DebugString();
        }
      }
    }
  }
}

}  // namespace
}  // namespace bitshard
