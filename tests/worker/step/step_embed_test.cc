// Vectors of sequences in real steps: what they are made of, that they do not depend on how the
// work is cut, and that nothing is done for them beyond the hidden states.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tests/worker/step/step_group.h"

namespace bitshard {
namespace {

using Vector = std::vector<float>;

constexpr uint32_t kPool = internal::ROW_POOL;

void AddPooled(StepPlan& plan, uint32_t slot, uint32_t gen, const std::vector<uint32_t>& tokens,
               internal::Pooling pooling) {
  AddSequence(plan, slot, gen, tokens);
  plan.mutable_new_sequences(plan.new_sequences_size() - 1)->set_pooling(pooling);
}

std::vector<uint32_t> Bits(const Vector& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

// The sequence in slot 0, in chunks; the vector comes with the last one alone.
Vector Embed(Group& group, uint32_t gen, const std::vector<uint32_t>& tokens,
             internal::Pooling pooling, uint32_t chunk) {
  const uint32_t known = static_cast<uint32_t>(tokens.size());
  for (uint32_t start = 0; start < known; start += chunk) {
    StepPlan plan = group.NextPlan();
    if (start == 0) AddPooled(plan, 0, gen, tokens, pooling);
    const uint32_t n = std::min(chunk, known - start);
    const bool last = start + n == known;
    AddRow(plan, 0, gen, start, n, last || pooling == internal::POOLING_MEAN ? kPool : 0);
    const auto result = group.Run(plan);
    CHECK_OK(result.status());
    EXPECT_EQ(result->outputs_size(), 0);
    EXPECT_EQ(result->scores_size(), 0);
    EXPECT_EQ(result->embeddings_size(), last ? 1 : 0);
    if (!last) continue;
    const internal::StepEmbedding& embedding = result->embeddings(0);
    EXPECT_EQ(embedding.slot(), 0u);
    EXPECT_EQ(embedding.slot_gen(), gen);
    EXPECT_EQ(embedding.flags(), 0u);
    return Vector(embedding.values().begin(), embedding.values().end());
  }
  return {};
}

// With f32 activations the head's product is a plain dot product of the last hidden state, which
// the test does in double from the file's own numbers.
TEST(StepEmbed, LastIsWhatTheHeadMakesTheLogitsOf) {
  const TinyModel model = MakeTinyModel();
  const std::vector<float> head = DecodeTensor(model, "lm_head.weight");  // [vocabulary, hidden]
  for (const int world : {1, 3}) {
    Group group(model, world, Numerics(), /*tap=*/true);
    const std::vector<uint32_t> tokens = Prompt(23, 1);
    const Vector last = Embed(group, 1, tokens, internal::POOLING_LAST, 64);
    ASSERT_EQ(last.size(), 64u);
    EXPECT_TRUE(group.LogitsAt(0, 22).empty()) << "an embedding has no logits";
    StepPlan plan = group.NextPlan();
    AddSequence(plan, 0, 2, tokens);
    AddRow(plan, 0, 2, 0, 23, internal::ROW_SAMPLE);
    ASSERT_TRUE(group.Run(plan).ok());
    const std::vector<float> logits = group.LogitsAt(0, 22);
    ASSERT_EQ(logits.size() * last.size(), head.size());
    for (size_t row = 0; row < logits.size(); ++row) {
      double dot = 0, magnitude = 0;
      for (size_t i = 0; i < last.size(); ++i) {
        const double product = double{head[row * last.size() + i]} * last[i];
        dot += product;
        magnitude += std::fabs(product);
      }
      // 64 products and sums in f32: at most 65 roundings of what has been added up.
      EXPECT_NEAR(logits[row], dot, 65 * 0x1p-24 * magnitude) << "logit " << row;
    }
  }
}

// The last hidden state of each beginning of the sequence is that of its token in the whole: their
// f64 mean, made here, must be the mean's every bit.
TEST(StepEmbed, MeanIsThatOfTheLastOnesOfAllBeginnings) {
  const TinyModel model = MakeTinyModel();
  Group group(model, 2, Numerics());
  const std::vector<uint32_t> tokens = Prompt(40, 3);
  uint32_t gen = 0;
  std::vector<double> sum(64, 0.0);
  for (size_t n = 1; n <= tokens.size(); ++n) {
    const std::vector<uint32_t> beginning(tokens.begin(),
                                          tokens.begin() + static_cast<std::ptrdiff_t>(n));
    const Vector last = Embed(group, ++gen, beginning, internal::POOLING_LAST, 64);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += last[i];
  }
  Vector want;
  for (const double value : sum)
    want.push_back(static_cast<float>(value / static_cast<double>(tokens.size())));
  for (const uint32_t chunk : {64u, 11u, 1u}) {
    const Vector mean = Embed(group, ++gen, tokens, internal::POOLING_MEAN, chunk);
    EXPECT_EQ(Bits(mean), Bits(want)) << "chunks of " << chunk;
  }
}

class StepEmbedBits
    : public testing::TestWithParam<std::tuple<std::string, NumericsOptions::Activations>> {};

TEST_P(StepEmbedBits, AreTheSameOverRanksAndChunks) {
  TinyModelOptions options;
  options.format = std::get<0>(GetParam());
  const TinyModel model = MakeTinyModel(options);
  std::map<int, std::vector<uint32_t>> want;  // by pooling
  for (const int world : {1, 2, 3, 4}) {
    Group group(model, world, Numerics(std::get<1>(GetParam())), /*tap=*/false,
                /*fuse=*/world != 4);
    uint32_t gen = 0;
    for (const internal::Pooling pooling : {internal::POOLING_LAST, internal::POOLING_MEAN}) {
      for (const uint32_t chunk : {64u, 7u, 1u}) {
        const std::vector<uint32_t> got = Bits(Embed(group, ++gen, Prompt(45, 7), pooling, chunk));
        ASSERT_EQ(got.size(), 64u);
        const auto [entry, is_first] = want.emplace(pooling, got);
        EXPECT_EQ(got, entry->second)
            << world << " ranks, chunks of " << chunk << ", pooling " << pooling;
      }
    }
  }
  EXPECT_NE(want[internal::POOLING_LAST], want[internal::POOLING_MEAN]);
}

INSTANTIATE_TEST_SUITE_P(Formats, StepEmbedBits,
                         testing::Values(std::tuple("f32", NumericsOptions::ACTIVATIONS_F32),
                                         std::tuple("q4_1", NumericsOptions::ACTIVATIONS_A16),
                                         std::tuple("q4_1", NumericsOptions::ACTIVATIONS_A8)));

// A step of everything at once: nobody notices the others.
TEST(StepEmbed, MixesWithSamplingAndScoring) {
  const TinyModel model = MakeTinyModel();
  Group alone(model, 2, Numerics());
  const Vector last = Embed(alone, 1, Prompt(12, 1), internal::POOLING_LAST, 64);
  const Vector mean = Embed(alone, 2, Prompt(9, 2), internal::POOLING_MEAN, 64);
  StepPlan sampled = alone.NextPlan();
  AddSequence(sampled, 3, 1, Prompt(10, 4));
  AddRow(sampled, 3, 1, 0, 10, internal::ROW_SAMPLE | internal::ROW_SCORE);
  const auto want = alone.Run(sampled);
  ASSERT_TRUE(want.ok()) << want.status();

  Group group(model, 2, Numerics());
  StepPlan plan = group.NextPlan();
  AddPooled(plan, 1, 1, Prompt(12, 1), internal::POOLING_LAST);
  AddSequence(plan, 3, 1, Prompt(10, 4));
  AddPooled(plan, 5, 1, Prompt(9, 2), internal::POOLING_MEAN);
  AddRow(plan, 1, 1, 0, 12, kPool);
  AddRow(plan, 3, 1, 0, 10, internal::ROW_SAMPLE | internal::ROW_SCORE);
  AddRow(plan, 5, 1, 0, 9, kPool);
  const auto got = group.Run(plan);
  ASSERT_TRUE(got.ok()) << got.status();
  ASSERT_EQ(got->embeddings_size(), 2);
  EXPECT_EQ(got->embeddings(0).slot(), 1u);
  EXPECT_EQ(got->embeddings(1).slot(), 5u);
  const auto values = [&](int i) {
    return Vector(got->embeddings(i).values().begin(), got->embeddings(i).values().end());
  };
  EXPECT_EQ(Bits(values(0)), Bits(last));
  EXPECT_EQ(Bits(values(1)), Bits(mean));
  ASSERT_EQ(got->outputs_size(), 1);
  EXPECT_EQ(got->outputs(0).SerializeAsString(), want->outputs(0).SerializeAsString());
  ASSERT_EQ(got->scores_size(), 1);
  EXPECT_EQ(got->scores(0).SerializeAsString(), want->scores(0).SerializeAsString());
}

// A preempted sequence begins anew, also in the slot in which it was.
TEST(StepEmbed, ASequenceThatComesBackIsNotAddedTwice) {
  const TinyModel model = MakeTinyModel();
  Group group(model, 1, Numerics());
  const std::vector<uint32_t> tokens = Prompt(30, 5);
  const Vector want = Embed(group, 1, tokens, internal::POOLING_MEAN, 64);
  StepPlan begun = group.NextPlan();
  AddPooled(begun, 0, 2, tokens, internal::POOLING_MEAN);
  AddRow(begun, 0, 2, 0, 13, kPool);
  ASSERT_TRUE(group.Run(begun).ok());
  EXPECT_EQ(Bits(Embed(group, 3, tokens, internal::POOLING_MEAN, 8)), Bits(want));
}

// What comes out of the prefix cache gives the last hidden state its bits.
TEST(StepEmbed, LastAfterCachedTokensIsTheSame) {
  const TinyModel model = MakeTinyModel();
  Group group(model, 2, Numerics());
  const std::vector<uint32_t> tokens = Prompt(41, 6);
  const Vector want = Embed(group, 1, tokens, internal::POOLING_LAST, 64);
  StepPlan plan = group.NextPlan();
  AddPooled(plan, 0, 2, tokens, internal::POOLING_LAST);
  internal::NewSequence& sequence = *plan.mutable_new_sequences(0);
  sequence.set_cached_tokens(32);
  sequence.add_blocks(0);
  sequence.add_blocks(1);
  AddRow(plan, 0, 2, 32, 9, kPool);
  const auto result = group.Run(plan);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->embeddings_size(), 1);
  const auto& values = result->embeddings(0).values();
  EXPECT_EQ(Bits(Vector(values.begin(), values.end())), Bits(want));
}

// A token whose row of the embedding table is infinite, within the sequence: a mean says so in the
// row that meets it, others are not touched.
TEST(StepEmbed, NonFiniteOnesSayItAndBringNoValues) {
  const TinyModel model = MakeTinyModel();
  const TensorInfo* info = model.index.Find("embed.weight");
  ASSERT_NE(info, nullptr);
  constexpr uint32_t kBad = 199;  // Prompt(n, 1) has it not among the first 20
  std::FILE* file = std::fopen(model.path.c_str(), "r+b");
  ASSERT_NE(file, nullptr);
  const float infinite = std::numeric_limits<float>::infinity();
  std::fseek(file,
             static_cast<long>(info->parts[0].offset + (kBad * info->cols + 3) * sizeof(float)),
             SEEK_SET);
  std::fwrite(&infinite, sizeof(infinite), 1, file);
  std::fclose(file);

  Group group(model, 2, Numerics());
  std::vector<uint32_t> good = Prompt(20, 1), bad = good;
  ASSERT_EQ(std::count(good.begin(), good.end(), kBad), 0);
  bad[4] = kBad;
  StepPlan first = group.NextPlan();
  AddPooled(first, 0, 1, good, internal::POOLING_MEAN);
  AddPooled(first, 1, 1, bad, internal::POOLING_MEAN);
  AddRow(first, 0, 1, 0, 10, kPool);
  AddRow(first, 1, 1, 0, 10, kPool);
  const auto early = group.Run(first);
  ASSERT_TRUE(early.ok()) << early.status();
  ASSERT_EQ(early->outputs_size(), 1) << "the row says so at once";
  EXPECT_EQ(early->outputs(0).slot(), 1u);
  EXPECT_EQ(early->outputs(0).flags(), static_cast<uint32_t>(internal::OUTPUT_NON_FINITE));
  EXPECT_EQ(early->embeddings_size(), 0);
  StepPlan second = group.NextPlan();
  AddRow(second, 0, 1, 10, 10, kPool);
  AddRow(second, 1, 1, 10, 10, kPool);
  const auto late = group.Run(second);
  ASSERT_TRUE(late.ok()) << late.status();
  ASSERT_EQ(late->embeddings_size(), 2);
  EXPECT_EQ(late->embeddings(0).flags(), 0u);
  EXPECT_EQ(late->embeddings(0).values_size(), 64);
  EXPECT_EQ(late->embeddings(1).flags(), static_cast<uint32_t>(internal::OUTPUT_NON_FINITE));
  EXPECT_EQ(late->embeddings(1).values_size(), 0);
}

}  // namespace
}  // namespace bitshard
