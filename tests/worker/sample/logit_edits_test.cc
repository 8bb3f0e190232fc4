// Edits of logits, one rule at a time, and what the plan says of them.
#include "worker/sample/logit_edits.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/plan.pb.h"
#include "proto/token_mask.h"
#include "worker/sample/edit_params.h"

namespace bitshard {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kMost = std::numeric_limits<float>::max();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> Edit(const LogitEdits& edits, const std::vector<float>& raw,
                        uint32_t begin = 0) {
  std::vector<float> out(raw.size());
  std::vector<uint32_t> counts(raw.size(), 0);
  EditLogits(edits, raw.data(), begin, raw.size(), counts.data(), out.data());
  EXPECT_THAT(counts, Each(0u)) << "left as it was found";
  return out;
}

TEST(LogitEdits, RepetitionDividesPositiveAndMultipliesOtherLogitsOnce) {
  const std::vector<int32_t> prompt = {0, 1, 1}, output = {1, 2, 2};
  LogitEdits edits;
  edits.repetition = 2;
  edits.prompt = prompt;
  edits.output = output;
  EXPECT_THAT(Edit(edits, {4, -4, 3, 8, -8}), ElementsAre(2, -8, 1.5f, 8, -8));
}

TEST(LogitEdits, FrequencyCountsAndPresenceDoesNotBothInTheOutputAlone) {
  const std::vector<int32_t> prompt = {0, 0, 3}, output = {1, 2, 2, 2};
  LogitEdits edits;
  edits.prompt = prompt;
  edits.output = output;
  edits.frequency = 0.5f;
  EXPECT_THAT(Edit(edits, {1, 1, 1, 1}), ElementsAre(1, 0.5f, -0.5f, 1));
  edits.frequency = 0;
  edits.presence = 2;
  EXPECT_THAT(Edit(edits, {1, 1, 1, 1}), ElementsAre(1, -1, -1, 1));
  edits.frequency = -1;  // wishes for repetition
  EXPECT_THAT(Edit(edits, {1, 1, 1, 1}), ElementsAre(1, 0, 2, 1));
}

TEST(LogitEdits, ComeInTheOrderPenaltiesBiasMask) {
  const std::vector<int32_t> output = {0};
  const std::vector<TokenBias> biases = {{0, 10}, {1, 10}};
  const std::vector<uint32_t> forbidden = {1};
  LogitEdits edits;
  edits.output = output;
  edits.repetition = 2;
  edits.frequency = 1;
  edits.biases = biases;
  edits.forbidden = forbidden;
  // (8 / 2 - 1) + 10; the bias does not help a token that is masked.
  EXPECT_THAT(Edit(edits, {8, 8, 8}), ElementsAre(13, -kInf, 8));
}

TEST(LogitEdits, StayFiniteSoThatMinusInfinityMeansMasked) {
  const std::vector<int32_t> output = {0, 1, 2};
  const std::vector<TokenBias> biases = {{3, -100}};
  LogitEdits edits;
  edits.output = output;
  edits.repetition = 1e-38f;
  EXPECT_THAT(Edit(edits, {kMost, -kMost, 0, -kMost}),
              ElementsAre(kMost, -kMost * 1e-38f, 0, -kMost));
  edits.repetition = 2;
  edits.presence = kMost;
  edits.frequency = kMost;
  edits.biases = biases;
  EXPECT_THAT(Edit(edits, {-kMost, kMost, 0, -kMost}), ElementsAre(-kMost, -kMost, -kMost, -kMost));
}

TEST(LogitEdits, ARankEditsItsOwnRows) {
  const std::vector<int32_t> prompt = {0, 63, 64, 70, 199}, output = {64, 64, 3, 198};
  const std::vector<TokenBias> biases = {{1, 7}, {66, 7}, {150, 7}};
  const std::vector<uint32_t> forbidden = {5, 69, 180};
  std::string mask = MakeTokenMask(200, /*allowed=*/true);
  for (const uint32_t token : {4u, 68u, 127u, 128u}) ForbidToken(token, &mask);
  LogitEdits edits;
  edits.prompt = prompt;
  edits.output = output;
  edits.repetition = 1.5f;
  edits.frequency = 0.25f;
  edits.biases = biases;
  edits.allowed = mask;
  edits.forbidden = forbidden;
  std::vector<float> raw(200);
  for (size_t i = 0; i < raw.size(); ++i) raw[i] = static_cast<float>(i) * 0.1f - 5;
  const std::vector<float> whole = Edit(edits, raw);
  std::vector<float> pieces;
  for (const auto& [begin, end] :
       std::vector<std::pair<int, int>>{{0, 64}, {64, 128}, {128, 200}}) {
    const std::vector<float> piece =
        Edit(edits, std::vector<float>(raw.begin() + begin, raw.begin() + end),
             static_cast<uint32_t>(begin));
    pieces.insert(pieces.end(), piece.begin(), piece.end());
  }
  EXPECT_EQ(pieces, whole);
  EXPECT_EQ(whole[66], raw[66] + 7);
  for (const int token : {4, 5, 68, 69, 127, 128, 180}) EXPECT_EQ(whole[token], -kInf) << token;
}

TEST(EditParams, BadOnesAreNamed) {
  constexpr uint32_t kVocab = 100;
  internal::SamplingParams none;
  EXPECT_TRUE(EditParams::Check(none, kVocab).ok());
  const auto refuse = [](const std::function<void(internal::SamplingParams&)>& set,
                         const char* field) {
    internal::SamplingParams bad;
    set(bad);
    const absl::Status status = EditParams::Check(bad, kVocab);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_THAT(std::string(status.message()), HasSubstr(field));
  };
  for (const float v : {kInf, -kInf, kNan}) {
    refuse([v](auto& p) { p.set_repetition_penalty(v); }, "repetition_penalty");
    refuse([v](auto& p) { p.set_frequency_penalty(v); }, "frequency_penalty");
    refuse([v](auto& p) { p.set_presence_penalty(v); }, "presence_penalty");
    refuse([v](auto& p) { p.add_bias_tokens(1), p.add_biases(v); }, "biases");
  }
  refuse([](auto& p) { p.set_repetition_penalty(-1); }, "repetition_penalty");
  refuse([](auto& p) { p.add_biases(1); }, "biases");
  refuse([](auto& p) { p.add_bias_tokens(100), p.add_biases(1); }, "bias_tokens");
  refuse(
      [](auto& p) {
        for (const uint32_t token : {7u, 7u}) p.add_bias_tokens(token), p.add_biases(1);
      },
      "bias_tokens");
  refuse(
      [](auto& p) {
        for (uint32_t i = 0; i < 1025; ++i) p.add_bias_tokens(i), p.add_biases(1);
      },
      "at most 1024");
  refuse([](auto& p) { p.set_allowed("\x01"); }, "allowed");
  refuse([](auto& p) { p.add_end_tokens(100); }, "end_tokens");
  refuse(
      [](auto& p) {
        for (int i = 0; i < 1025; ++i) p.add_end_tokens(1);
      },
      "end_tokens");
}

TEST(EditParams, SayWhatTheNextTokenNeeds) {
  EditParams params;
  params.Reserve(100);
  const std::vector<int32_t> history = {9, 8, 7, 6};
  internal::SamplingParams proto;
  params.Assign(proto);
  EXPECT_FALSE(params.ApplyAfter(0));

  proto.set_min_tokens(2);
  proto.add_end_tokens(5);
  params.Assign(proto);
  EXPECT_TRUE(params.ApplyAfter(1));
  EXPECT_FALSE(params.ApplyAfter(2)) << "costs nothing once the end is allowed";
  EXPECT_THAT(params.Edits(history, 3, "").forbidden, ElementsAre(5u));
  EXPECT_TRUE(params.Edits(history, 2, "").forbidden.empty());

  proto.Clear();
  proto.set_repetition_penalty(1.5f);
  proto.set_frequency_penalty(0.5f);
  proto.set_presence_penalty(0.25f);
  proto.add_bias_tokens(3);
  proto.add_biases(-2);
  proto.set_allowed(MakeTokenMask(100, /*allowed=*/true));
  params.Assign(proto);
  EXPECT_TRUE(params.ApplyAfter(50));
  const LogitEdits edits = params.Edits(history, 3, "m");
  EXPECT_EQ(edits.repetition, 1.5f);
  EXPECT_EQ(edits.frequency, 0.5f);
  EXPECT_EQ(edits.presence, 0.25f);
  EXPECT_THAT(edits.prompt, ElementsAre(9, 8, 7));
  EXPECT_THAT(edits.output, ElementsAre(6));
  ASSERT_EQ(edits.biases.size(), 1u);
  EXPECT_EQ(edits.biases[0].bias, -2);
  EXPECT_EQ(edits.allowed, proto.allowed());
  EXPECT_EQ(edits.mask, "m");
  EXPECT_TRUE(edits.forbidden.empty());

  params.Assign(internal::SamplingParams());
  EXPECT_FALSE(params.ApplyAfter(0)) << "nothing of the slot's last sequence stays";
}

}  // namespace
}  // namespace bitshard
