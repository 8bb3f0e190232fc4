// Penalties, biases and masks in real steps: against the same edits done by hand on the logits
// that lm_head made, over ranks, chunks and replaced slots.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "proto/token_mask.h"
#include "tests/worker/step/step_group.h"

namespace bitshard {
namespace {

constexpr uint32_t kVocab = 200;
constexpr uint32_t kSample = internal::ROW_SAMPLE;

// Greedy, so that the test can tell the token from the logits. Prompt(9, 2) has tokens below 200.
internal::SamplingParams& AddEdited(StepPlan& plan, uint32_t gen,
                                    const std::vector<uint32_t>& tokens, uint32_t n_prompt) {
  AddSequence(plan, 0, gen, tokens);
  internal::NewSequence& sequence = *plan.mutable_new_sequences(plan.new_sequences_size() - 1);
  sequence.set_n_prompt(n_prompt);
  internal::SamplingParams& sampling = *sequence.mutable_sampling();
  sampling.set_repetition_penalty(1.3f);
  sampling.set_frequency_penalty(0.7f);
  sampling.set_presence_penalty(0.4f);
  for (const uint32_t token : {3u, 64u, 199u}) {
    sampling.add_bias_tokens(token);
    sampling.add_biases(token == 64 ? 0.5f : -1.0f);
  }
  return sampling;
}

// The edited logits' first maximum, token by token.
uint32_t Expected(const std::vector<float>& logits, const std::vector<uint32_t>& history,
                  uint32_t n_prompt, const std::string& mask = "") {
  uint32_t best = kVocab;
  float most = -std::numeric_limits<float>::infinity();
  for (uint32_t t = 0; t < kVocab; ++t) {
    float x = logits[t];
    if (std::count(history.begin(), history.end(), t) > 0) x = x > 0 ? x / 1.3f : x * 1.3f;
    const auto n = std::count(history.begin() + n_prompt, history.end(), t);
    if (n > 0) {
      const float frequency = 0.7f * static_cast<float>(n);
      x -= frequency;
      x -= 0.4f;
    }
    if (t == 64) x += 0.5f;
    if (t == 3 || t == 199) x -= 1.0f;
    if (!mask.empty() && !MaskAllows(mask, t)) continue;
    if (x > most) {
      most = x;
      best = t;
    }
  }
  return best;
}

std::string EveryThird() {
  std::string mask = MakeTokenMask(kVocab, /*allowed=*/false);
  for (uint32_t t = 0; t < kVocab; t += 3) AllowToken(t, &mask);
  return mask;
}

// Eight tokens after a prompt, every second one under a mask; the outputs as bytes.
std::string Generate(Group& group, uint32_t chunk, std::vector<uint32_t>* history, bool check) {
  constexpr uint32_t kPrompt = 23;
  *history = Prompt(kPrompt, 1);
  const std::string mask = EveryThird();
  std::string bytes;
  uint32_t done = 0;
  for (uint32_t output = 0; output < 8;) {
    StepPlan plan = group.NextPlan();
    if (done == 0) AddEdited(plan, 1, *history, kPrompt);
    const uint32_t n = std::min(chunk, static_cast<uint32_t>(history->size()) - done);
    const bool sample = done + n == history->size(), masked = sample && output % 2 == 1;
    AddRow(plan, 0, 1, done, n,
           (sample ? kSample : 0) | (masked ? uint32_t{internal::ROW_MASKED} : 0), output);
    if (masked) plan.add_masks(mask);
    done += n;
    const auto result = group.Run(plan);
    CHECK_OK(result.status());
    if (!sample) continue;
    const internal::StepOutput& out = result->outputs(0);
    if (check) {
      EXPECT_EQ(out.token(), Expected(group.LogitsAt(0, done - 1), *history, kPrompt,
                                      masked ? mask : std::string()))
          << "output " << output;
    }
    if (masked) {
      EXPECT_EQ(out.token() % 3, 0u);
    }
    bytes += out.SerializeAsString();
    history->push_back(out.token());
    ++output;
  }
  return bytes;
}

TEST(StepEdits, AreThoseOfTheSlotsHistoryOverRanksAndChunks) {
  const TinyModel model = MakeTinyModel();
  std::string expected;
  for (const int world : {1, 2, 3, 4}) {
    Group group(model, world, Numerics(), /*tap=*/true);
    uint64_t epoch = 1;
    for (const uint32_t chunk : {64u, 5u}) {
      if (epoch > 1) group.StartEpoch(epoch);
      ++epoch;
      std::vector<uint32_t> history;
      const std::string got = Generate(group, chunk, &history, /*check=*/true);
      if (expected.empty()) expected = got;
      EXPECT_EQ(got, expected) << world << " ranks, chunks of " << chunk;
    }
  }
}

// What a coordinator sends after a preemption: prompt and outputs in another slot generation.
TEST(StepEdits, GoOnTheSameWhenTheHistoryIsSentAgain) {
  const TinyModel model = MakeTinyModel();
  Group group(model, 2, Numerics());
  std::vector<uint32_t> history;
  Generate(group, 64, &history, /*check=*/false);
  const uint32_t n = static_cast<uint32_t>(history.size());
  StepPlan plan = group.NextPlan();
  AddRow(plan, 0, 1, n - 1, 1, kSample, n - 23);
  const auto straight = group.Run(plan);
  ASSERT_TRUE(straight.ok()) << straight.status();
  StepPlan again = group.NextPlan();
  AddEdited(again, 2, history, /*n_prompt=*/23);
  AddRow(again, 0, 2, 0, n, kSample, n - 23);
  const auto recomputed = group.Run(again);
  ASSERT_TRUE(recomputed.ok()) << recomputed.status();
  internal::StepOutput a = straight->outputs(0), b = recomputed->outputs(0);
  b.set_slot_gen(1);
  EXPECT_EQ(a.SerializeAsString(), b.SerializeAsString());
}

TEST(StepEdits, EndTokensComeOnlyAfterMinTokens) {
  const TinyModel model = MakeTinyModel();
  for (const int world : {1, 3}) {
    Group group(model, world, Numerics());
    StepPlan plan = group.NextPlan();
    AddSequence(plan, 0, 1, Prompt(5, 1));
    AddRow(plan, 0, 1, 0, 5, kSample);
    const auto free = group.Run(plan);
    ASSERT_TRUE(free.ok()) << free.status();
    const uint32_t wanted = free->outputs(0).token();
    // The same, with that token an end token before three outputs; a bias keeps it wanted.
    plan = group.NextPlan();
    AddSequence(plan, 0, 2, Prompt(5, 1));
    internal::SamplingParams& sampling = *plan.mutable_new_sequences(0)->mutable_sampling();
    sampling.add_bias_tokens(wanted);
    sampling.add_biases(50);
    sampling.set_min_tokens(3);
    sampling.add_end_tokens(wanted);
    AddRow(plan, 0, 2, 0, 5, kSample);
    for (uint32_t output = 0; output < 5; ++output) {
      const auto result = group.Run(plan);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->outputs(0).token() == wanted, output >= 3) << "output " << output;
      plan = group.NextPlan();
      AddRow(plan, 0, 2, 5 + output, 1, kSample, output + 1);
    }
  }
}

TEST(StepEdits, WhereNothingIsAllowedTheOthersGoOn) {
  const TinyModel model = MakeTinyModel();
  for (const int world : {1, 2}) {
    Group group(model, world, Numerics());
    StepPlan plan = group.NextPlan();
    AddSequence(plan, 0, 1, Prompt(5, 1));
    AddSequence(plan, 1, 1, Prompt(6, 2));
    AddRow(plan, 0, 1, 0, 5, kSample | internal::ROW_MASKED);
    AddRow(plan, 1, 1, 0, 6, kSample);
    plan.add_masks(MakeTokenMask(kVocab, /*allowed=*/false));
    const auto result = group.Run(plan);
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->outputs_size(), 2);
    EXPECT_EQ(result->outputs(0).flags(), uint32_t{internal::OUTPUT_NO_TOKEN_ALLOWED});
    EXPECT_EQ(result->outputs(0).top_size(), 0);
    EXPECT_EQ(result->outputs(1).flags(), 0u);
    // A plan that was on its way already does no harm.
    StepPlan next = group.NextPlan();
    AddRow(next, 0, 1, 5, 1, kSample, 1);
    AddRow(next, 1, 1, 6, 1, kSample, 1);
    EXPECT_TRUE(group.Run(next).ok());
  }
}

TEST(StepEdits, PromptsAreScoredBesidesASampledToken) {
  const TinyModel model = MakeTinyModel();
  std::string expected;
  for (const int world : {1, 2, 3}) {
    Group group(model, world, Numerics());
    StepPlan plan = group.NextPlan();
    AddSequence(plan, 0, 1, Prompt(23, 1));
    AddRow(plan, 0, 1, 0, 23, internal::ROW_SCORE | kSample);
    AddEdited(plan, 1, Prompt(20, 4), 20);
    plan.mutable_new_sequences(1)->set_slot(1);
    AddRow(plan, 1, 1, 0, 20, internal::ROW_SCORE | kSample);
    const auto result = group.Run(plan);
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->outputs_size(), 2);
    ASSERT_EQ(result->scores_size(), 2);
    EXPECT_EQ(result->scores(0).first(), 1u);
    EXPECT_EQ(result->scores(0).logprob_size(), 22);
    EXPECT_EQ(result->scores(0).top_size(), 3 * 22);
    EXPECT_EQ(result->scores(1).logprob_size(), 19);
    if (expected.empty()) expected = result->SerializeAsString();
    EXPECT_EQ(result->SerializeAsString(), expected) << world << " ranks";
  }
}

}  // namespace
}  // namespace bitshard
