// Vectors of prompts through the real engine and real ranks: against transformers' hidden states,
// and the same bits for any number of workers, chunk, batch and instruction set, after preemptions
// and with a prefix cache.
#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "tests/support/engine_run.h"
#include "tests/support/golden_tensors.h"
#include "tests/support/test_paths.h"
#include "tests/support/thread_group.h"

namespace bitshard {
namespace {

using Activations = internal::NumericsOptions::Activations;

// As the goldens' logits (golden_logits_test.cc).
constexpr double kRelativeL2Bound = 1e-4;

std::unique_ptr<ThreadGroup> MakeGroup(TestModel& model, int world, Activations activations,
                                       std::vector<Isa> isas = {}, uint32_t cache_blocks = 512) {
  ThreadGroup::Options options;
  options.world = world;
  options.activations = activations;
  options.isas = std::move(isas);
  options.cache_blocks = cache_blocks;
  auto group = ThreadGroup::Create(model, options);
  EXPECT_TRUE(group.ok()) << group.status();
  return *std::move(group);
}

GenerateRequest EmbedRequest(const std::vector<int32_t>& tokens, internal::Pooling pooling) {
  static int names = 0;
  GenerateRequest request;
  request.request_id = absl::StrCat("embed-", ++names);
  request.prompt_tokens = tokens;
  request.pooling = pooling;
  return request;
}

std::string Bits(const Transcript& transcript) {
  std::string text = absl::StrCat(transcript.status.ToString(), " ");
  for (const float value : transcript.embedding)
    absl::StrAppend(&text, absl::Hex(std::bit_cast<uint32_t>(value)), " ");
  for (const TokenLogprobs& score : transcript.scores)
    absl::StrAppend(&text, absl::Hex(std::bit_cast<uint32_t>(score.chosen)), " ");
  return text + transcript.DebugString();
}

class EmbedGolden : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(EmbedGolden, VectorsAreTransformersHiddenStatesAfterTheLastNorm) {
  const auto& [name, workers] = GetParam();
  auto model = TestModel::Open(GoldenModel(name));
  ASSERT_TRUE(model.ok()) << model.status();
  auto golden = ReadGoldenTensors(GoldenModel(name) + "/golden.safetensors");
  ASSERT_TRUE(golden.ok()) << golden.status();
  const std::vector<int32_t>& tokens = golden->i32.at("p17.input_ids");
  const size_t width = (*model)->checkpoint().config.hidden_size;
  const size_t layers = (*model)->checkpoint().config.layers;
  const std::vector<float>& hidden = golden->f32.at(absl::StrCat("p17.fp32.hidden.", layers));
  ASSERT_EQ(hidden.size(), tokens.size() * width);
  std::vector<float> mean(width);
  for (size_t i = 0; i < width; ++i) {
    double sum = 0;
    for (size_t t = 0; t < tokens.size(); ++t) sum += hidden[t * width + i];
    mean[i] = static_cast<float>(sum / static_cast<double>(tokens.size()));
  }

  auto group = MakeGroup(**model, workers, internal::NumericsOptions::ACTIVATIONS_F32);
  std::vector<GenerateRequest> requests = {EmbedRequest(tokens, internal::POOLING_MEAN)};
  for (size_t n = 1; n <= tokens.size(); ++n) {
    requests.push_back(EmbedRequest(
        {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(n)}, internal::POOLING_LAST));
  }
  auto run = RunThroughEngine(**model, *group, requests, {.prefill_chunk = 5});
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_EQ(run->at(0).embedding.size(), width) << run->at(0).status;
  double worst = RelativeL2(run->at(0).embedding, mean);
  EXPECT_LT(worst, kRelativeL2Bound) << "the mean";
  for (size_t n = 1; n <= tokens.size(); ++n) {
    ASSERT_EQ(run->at(n).embedding.size(), width) << run->at(n).status;
    const auto row = hidden.begin() + static_cast<std::ptrdiff_t>((n - 1) * width);
    const double error = RelativeL2(
        run->at(n).embedding, std::vector<float>(row, row + static_cast<std::ptrdiff_t>(width)));
    worst = std::max(worst, error);
    EXPECT_LT(error, kRelativeL2Bound) << "token " << n - 1;
  }
  std::printf("%s at %d workers: largest relative L2 error %.3g (bound %.0e)\n", name.c_str(),
              workers, worst, kRelativeL2Bound);
}

INSTANTIATE_TEST_SUITE_P(Models, EmbedGolden,
                         testing::Combine(testing::Values("tiny-llama", "tiny-llama-q"),
                                          testing::Values(1, 3)));

// A prompt in all three shapes, among generations and scores that share its beginning.
std::vector<GenerateRequest> Mix(const TestModel& model) {
  const int32_t vocab = static_cast<int32_t>(model.checkpoint().config.vocab_size);
  std::vector<GenerateRequest> requests;
  for (int r = 0; r < 4; ++r) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < 20; ++i) tokens.push_back(7 + i * 131 % (vocab - 7));
    const int own = r == 3 ? 250 : 20 + 15 * r;  // beyond 256 attention folds two chunks
    for (int i = 0; i < own; ++i) tokens.push_back(7 + (i * 57 + r * 17) % (vocab - 7));
    requests.push_back(EmbedRequest(tokens, internal::POOLING_MEAN));
    requests.push_back(EmbedRequest(tokens, internal::POOLING_LAST));
    GenerateRequest other = EmbedRequest(tokens, internal::POOLING_NONE);
    other.logprobs = true;
    if (r % 2 == 0) {
      other.max_tokens = 8;
      other.ignore_eos = true;
      other.temperature = 0.9f;
      other.seed = 5;
    } else {
      other.score_from = 10;
    }
    requests.push_back(other);
  }
  return requests;
}

TEST(Embed, SameBitsForAnyWorkersChunkBatchAndInstructionSet) {
  for (const char* name : {"tiny-llama", "gguf-Q4_1"}) {
    auto model = TestModel::Open(GoldenModel(name));
    ASSERT_TRUE(model.ok()) << model.status();
    const std::vector<GenerateRequest> requests = Mix(**model);
    std::vector<std::string> want;
    for (const int workers : {1, 2, 3}) {
      std::vector<Isa> isas;
      if (workers > 1) {
        for (int rank = 0; rank < workers; ++rank)
          isas.push_back(rank == 0 ? Isa::kScalar : BestIsa());
      }
      auto group = MakeGroup(**model, workers, internal::NumericsOptions::ACTIVATIONS_A16, isas);
      for (const uint32_t chunk : {0u, 17u}) {
        for (const uint32_t concurrent : {1u, 12u}) {
          if (concurrent == 1 && workers > 1 && chunk > 0) continue;  // slow, and nothing new
          auto run = RunThroughEngine(**model, *group, requests,
                                      {.concurrent = concurrent, .prefill_chunk = chunk});
          ASSERT_TRUE(run.ok()) << run.status();
          std::vector<std::string> got;
          for (const Transcript& transcript : *run) {
            ASSERT_TRUE(transcript.status.ok()) << transcript.status;
            got.push_back(Bits(transcript));
          }
          if (want.empty()) want = got;
          for (size_t r = 0; r < got.size(); ++r) {
            EXPECT_EQ(got[r], want[r])
                << name << ": request " << r << " at " << workers << " workers, chunk " << chunk
                << ", " << concurrent << " at once";
          }
        }
      }
    }
    ASSERT_EQ(want.size(), 12u);
    EXPECT_NE(want[0], want[1]);
  }
}

TEST(Embed, SameBitsPreemptedOrNotWithAPrefixCacheOrWithout) {
  auto model = TestModel::Open(GoldenModel("gguf-Q4_1"));
  ASSERT_TRUE(model.ok()) << model.status();
  const auto activations = internal::NumericsOptions::ACTIVATIONS_A16;
  // Answers that grow take the blocks of what came after them.
  std::vector<GenerateRequest> requests;
  const std::vector<GenerateRequest> mix = Mix(**model);
  for (int i = 0; i < 3; ++i) {
    GenerateRequest& grows = requests.emplace_back(mix[2]);
    grows.request_id = absl::StrCat("grows-", i);
    grows.prompt_tokens.resize(20);
    grows.max_tokens = 150;
    grows.seed = static_cast<uint64_t>(i);
  }
  requests.insert(requests.end(), mix.begin(), mix.end());
  auto alone = MakeGroup(**model, 1, activations);
  auto reference = RunThroughEngine(**model, *alone, requests, {.prefix_cache = false});
  ASSERT_TRUE(reference.ok()) << reference.status();
  for (const bool preempted : {false, true}) {
    // The longest prompt alone needs 17 blocks, the answers 33; all at once some 130.
    auto group = MakeGroup(**model, 2, activations, {}, preempted ? 32 : 512);
    for (const bool prefix_cache : {true, false}) {
      EngineStats stats;
      auto run = RunThroughEngine(**model, *group, requests,
                                  {.concurrent = 15,
                                   .token_budget = 64,
                                   .prefill_chunk = 13,
                                   .prefix_cache = prefix_cache,
                                   .stats = &stats});
      ASSERT_TRUE(run.ok()) << run.status();
      for (size_t r = 0; r < run->size(); ++r) {
        EXPECT_EQ(Bits(run->at(r)), Bits(reference->at(r)))
            << "request " << r << (preempted ? ", preempted" : "")
            << (prefix_cache ? ", prefix cache" : "");
        if (requests[r].pooling == internal::POOLING_MEAN) {
          EXPECT_EQ(run->at(r).cached_tokens, 0u);
        }
      }
      // Or the cell would not be what it says.
      EXPECT_EQ(stats.prefix_hit_tokens > 0, prefix_cache);
      EXPECT_EQ(stats.preemptions > 0, preempted);
      EXPECT_EQ(stats.blocks_used, 0u);
    }
  }
}

}  // namespace
}  // namespace bitshard
