#include "worker/step/slot_table.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>

#include <gtest/gtest.h>

namespace bitshard {
namespace {

using internal::NewSequence;
using internal::StepPlan;

constexpr SlotLimits kLimits = {.max_slots = 4,
                                .max_step_tokens = 32,
                                .context_tokens = 40,
                                .vocab_size = 100,
                                .block_tokens = 16,
                                .hidden_size = 2};
constexpr uint32_t kCacheBlocks = 8;

NewSequence& AddSequence(StepPlan& plan, uint32_t slot, uint32_t gen, uint32_t tokens) {
  NewSequence& sequence = *plan.add_new_sequences();
  sequence.set_slot(slot);
  sequence.set_slot_gen(gen);
  for (uint32_t i = 0; i < tokens; ++i) sequence.add_tokens(i);
  sequence.set_n_prompt(tokens);
  sequence.mutable_sampling()->set_top_p(1);
  return sequence;
}

void AddRow(StepPlan& plan, uint32_t slot, uint32_t gen, uint32_t start, uint32_t n_tokens,
            uint32_t flags, std::vector<uint32_t> new_blocks = {}) {
  plan.add_slot(slot);
  plan.add_slot_gen(gen);
  plan.add_start(start);
  plan.add_n_tokens(n_tokens);
  plan.add_output_index(0);
  plan.add_flags(flags);
  plan.add_n_new_blocks(static_cast<uint32_t>(new_blocks.size()));
  for (const uint32_t block : new_blocks) plan.add_new_blocks(block);
}

std::string Show(const SlotTable& table) {
  std::string text;
  for (uint32_t i = 0; i < kLimits.max_slots; ++i) {
    const Slot& slot = table.slot(i);
    text += std::to_string(slot.used) + "/" + std::to_string(slot.gen) + "/" +
            std::to_string(slot.computed) + ":";
    for (const int32_t token : slot.tokens) text += std::to_string(token) + ",";
    for (const uint32_t block : slot.blocks) text += "b" + std::to_string(block);
    text += ";";
  }
  return text;
}

class SlotTableTest : public testing::Test {
 protected:
  SlotTableTest() : table_(kLimits) {
    table_.Reset(kCacheBlocks);
    // Slot 0 holds 20 tokens in two blocks, all computed but the last 4.
    StepPlan plan;
    AddSequence(plan, 0, 1, 20);
    AddRow(plan, 0, 1, 0, 16, 0, {3});
    EXPECT_TRUE(table_.Check(plan).ok());
    table_.Apply(plan);
  }
  SlotTable table_;
};

TEST_F(SlotTableTest, ApplyReplacesTheSlotAppendsBlocksAndMovesComputed) {
  EXPECT_EQ(table_.slot(0).tokens.size(), 20u);
  EXPECT_EQ(table_.slot(0).blocks, std::vector<uint32_t>({3}));
  EXPECT_EQ(table_.slot(0).computed, 16u);
  StepPlan plan;
  AddRow(plan, 0, 1, 16, 4, internal::ROW_SAMPLE, {5});
  ASSERT_TRUE(table_.Check(plan).ok()) << table_.Check(plan);
  table_.Apply(plan);
  EXPECT_EQ(table_.slot(0).blocks, std::vector<uint32_t>({3, 5}));
  EXPECT_EQ(table_.slot(0).computed, 20u);
}

TEST_F(SlotTableTest, NewGenerationTakesTheSlotAndTheOldOneIsRefused) {
  StepPlan plan;
  AddSequence(plan, 0, 2, 3);
  AddRow(plan, 0, 2, 0, 3, internal::ROW_SAMPLE, {1});
  ASSERT_TRUE(table_.Check(plan).ok()) << table_.Check(plan);
  table_.Apply(plan);
  EXPECT_EQ(table_.slot(0).tokens.size(), 3u);
  EXPECT_EQ(table_.slot(0).blocks, std::vector<uint32_t>({1}));
  StepPlan stale;
  AddRow(stale, 0, 1, 2, 1, 0);
  EXPECT_EQ(table_.Check(stale).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SlotTableTest, CachedTokensCountAsComputed) {
  StepPlan plan;
  NewSequence& sequence = AddSequence(plan, 1, 1, 20);
  sequence.set_cached_tokens(16);
  sequence.add_blocks(7);
  AddRow(plan, 1, 1, 16, 4, internal::ROW_SAMPLE, {2});
  EXPECT_TRUE(table_.Check(plan).ok()) << table_.Check(plan);
}

// A preempted sequence comes back into the slot with what the prefix cache has kept of it.
TEST_F(SlotTableTest, SequenceThatComesBackStartsBehindItsCachedTokens) {
  StepPlan plan;
  NewSequence& sequence = AddSequence(plan, 0, 2, 20);
  sequence.set_n_prompt(12);
  sequence.set_cached_tokens(16);
  sequence.add_blocks(3);
  AddRow(plan, 0, 2, 16, 4, internal::ROW_SAMPLE, {6});
  ASSERT_TRUE(table_.Check(plan).ok()) << table_.Check(plan);
  table_.slot(0).poisoned = true;  // the one before it
  table_.Apply(plan);
  EXPECT_FALSE(table_.slot(0).poisoned);
  EXPECT_EQ(table_.slot(0).tokens.size(), 20u);
  EXPECT_EQ(table_.slot(0).blocks, std::vector<uint32_t>({3, 6}));
  EXPECT_EQ(table_.slot(0).computed, 20u);
  StepPlan gap;
  AddSequence(gap, 0, 3, 20).set_cached_tokens(16);
  gap.mutable_new_sequences(0)->add_blocks(3);
  AddRow(gap, 0, 3, 17, 3, internal::ROW_SAMPLE, {6});
  EXPECT_FALSE(table_.Check(gap).ok()) << "token 16 is neither cached nor computed";
}

TEST_F(SlotTableTest, ScoringStartsAtTheSecondTokenUnlessThePlanSaysLater) {
  for (const uint32_t from : {0u, 1u, 3u}) {
    StepPlan plan;
    AddSequence(plan, 1, from + 1, 3).set_score_from(from);
    AddRow(plan, 1, from + 1, 0, 3, internal::ROW_SCORE, {1});
    ASSERT_TRUE(table_.Check(plan).ok()) << table_.Check(plan);
    table_.Apply(plan);
    EXPECT_EQ(table_.slot(1).score_from, std::max(1u, from));
  }
}

TEST_F(SlotTableTest, RowsThatPoolGoOnWhereTheVectorIs) {
  const float hidden[2 * 20] = {};
  StepPlan plan;
  AddSequence(plan, 1, 1, 20).set_pooling(internal::POOLING_MEAN);
  AddRow(plan, 1, 1, 0, 12, internal::ROW_POOL, {1});
  ASSERT_TRUE(table_.Check(plan).ok()) << table_.Check(plan);
  table_.Apply(plan);
  EXPECT_EQ(table_.slot(1).pooled.pooling(), internal::POOLING_MEAN);
  table_.slot(1).pooled.Add(hidden, 12);
  for (const uint32_t start : {0u, 11u}) {
    StepPlan again;
    AddRow(again, 1, 1, start, 20 - start, internal::ROW_POOL, {2});
    EXPECT_FALSE(table_.Check(again).ok()) << "token " << start << " would go in twice";
  }
  StepPlan next;
  AddRow(next, 1, 1, 12, 8, internal::ROW_POOL, {2});
  EXPECT_TRUE(table_.Check(next).ok()) << table_.Check(next);
  // Who takes the slot begins with nothing.
  StepPlan other;
  AddSequence(other, 1, 2, 20).set_pooling(internal::POOLING_MEAN);
  AddRow(other, 1, 2, 0, 20, internal::ROW_POOL, {1, 2});
  EXPECT_TRUE(table_.Check(other).ok()) << table_.Check(other);
}

TEST_F(SlotTableTest, EditsComeAndGoWithTheSequence) {
  StepPlan plan;
  NewSequence& sequence = AddSequence(plan, 1, 1, 5);
  sequence.set_n_prompt(3);
  sequence.mutable_sampling()->set_presence_penalty(1);
  AddRow(plan, 1, 1, 0, 5, internal::ROW_SAMPLE | internal::ROW_MASKED, {1});
  plan.add_masks(std::string(16, '\1'));
  ASSERT_TRUE(table_.Check(plan).ok()) << table_.Check(plan);
  table_.Apply(plan);
  EXPECT_EQ(table_.slot(1).n_prompt, 3u);
  EXPECT_TRUE(table_.slot(1).edits.ApplyAfter(2));
  StepPlan next;
  AddSequence(next, 1, 2, 5);
  ASSERT_TRUE(table_.Check(next).ok());
  table_.Apply(next);
  EXPECT_FALSE(table_.slot(1).edits.ApplyAfter(0));
}

TEST_F(SlotTableTest, EmptyPlanIsSound) { EXPECT_TRUE(table_.Check(StepPlan()).ok()); }

TEST_F(SlotTableTest, RefusedPlanLeavesEverythingUnchanged) {
  const std::map<std::string, std::function<void(StepPlan&)>> plans = {
      {"scores from beyond its tokens",
       [](StepPlan& p) {
         AddSequence(p, 1, 1, 3).set_score_from(4);
         AddRow(p, 1, 1, 0, 3, internal::ROW_SCORE, {1});
       }},
      {"slot out of range", [](StepPlan& p) { AddRow(p, 4, 1, 0, 1, 0, {1}); }},
      {"empty slot", [](StepPlan& p) { AddRow(p, 2, 0, 0, 1, 0, {1}); }},
      {"wrong generation", [](StepPlan& p) { AddRow(p, 0, 9, 16, 1, 0, {1}); }},
      {"no tokens", [](StepPlan& p) { AddRow(p, 0, 1, 16, 0, 0, {1}); }},
      {"beyond the history", [](StepPlan& p) { AddRow(p, 0, 1, 16, 5, 0, {1}); }},
      {"start overflows", [](StepPlan& p) { AddRow(p, 0, 1, 0xffffffffu, 2, 0, {1}); }},
      {"gap before start", [](StepPlan& p) { AddRow(p, 0, 1, 18, 2, 0, {1}); }},
      {"too few blocks", [](StepPlan& p) { AddRow(p, 0, 1, 16, 4, 0); }},
      {"block out of range", [](StepPlan& p) { AddRow(p, 0, 1, 16, 4, 0, {kCacheBlocks}); }},
      {"more blocks than the context",
       [](StepPlan& p) {
         AddRow(p, 0, 1, 16, 4, 0, {1, 2, 4});
       }},
      {"slot twice",
       [](StepPlan& p) {
         AddRow(p, 0, 1, 15, 1, 0);
         AddRow(p, 0, 1, 15, 1, 0);
       }},
      {"unknown flag", [](StepPlan& p) { AddRow(p, 0, 1, 16, 4, 16, {1}); }},
      {"pools and has no pooling",
       [](StepPlan& p) { AddRow(p, 0, 1, 16, 4, internal::ROW_POOL, {1}); }},
      {"unknown pooling",
       [](StepPlan& p) {
         AddSequence(p, 1, 1, 3).set_pooling(static_cast<internal::Pooling>(3));
         AddRow(p, 1, 1, 0, 3, internal::ROW_POOL, {1});
       }},
      {"pools and samples",
       [](StepPlan& p) {
         AddSequence(p, 1, 1, 3).set_pooling(internal::POOLING_MEAN);
         AddRow(p, 1, 1, 0, 3, internal::ROW_POOL | internal::ROW_SAMPLE, {1});
       }},
      {"samples and its sequence pools",
       [](StepPlan& p) {
         AddSequence(p, 1, 1, 3).set_pooling(internal::POOLING_LAST);
         AddRow(p, 1, 1, 0, 3, internal::ROW_SAMPLE, {1});
       }},
      {"pools the last token before the end",
       [](StepPlan& p) {
         AddSequence(p, 1, 1, 3).set_pooling(internal::POOLING_LAST);
         AddRow(p, 1, 1, 0, 2, internal::ROW_POOL, {1});
       }},
      {"pools the mean without cached tokens",
       [](StepPlan& p) {
         NewSequence& sequence = AddSequence(p, 1, 1, 20);
         sequence.set_pooling(internal::POOLING_MEAN);
         sequence.set_cached_tokens(16);
         sequence.add_blocks(1);
         AddRow(p, 1, 1, 16, 4, internal::ROW_POOL, {2});
       }},
      {"masked and not sampled",
       [](StepPlan& p) {
         AddRow(p, 0, 1, 16, 4, internal::ROW_MASKED, {1});
         p.add_masks(std::string(16, '\1'));
       }},
      {"no mask for a masked row",
       [](StepPlan& p) {
         AddRow(p, 0, 1, 16, 4, internal::ROW_SAMPLE | internal::ROW_MASKED, {1});
       }},
      {"a mask for no row",
       [](StepPlan& p) {
         AddRow(p, 0, 1, 16, 4, internal::ROW_SAMPLE, {1});
         p.add_masks(std::string(16, '\1'));
       }},
      {"a mask of another vocabulary",
       [](StepPlan& p) {
         AddRow(p, 0, 1, 16, 4, internal::ROW_SAMPLE | internal::ROW_MASKED, {1});
         p.add_masks(std::string(13, '\1'));
       }},
      {"frequency penalty",
       [](StepPlan& p) {
         AddSequence(p, 1, 1, 3).mutable_sampling()->set_frequency_penalty(INFINITY);
       }},
      {"end token out of the vocabulary",
       [](StepPlan& p) { AddSequence(p, 1, 1, 3).mutable_sampling()->add_end_tokens(100); }},
      {"sample before the end",
       [](StepPlan& p) { AddRow(p, 0, 1, 16, 3, internal::ROW_SAMPLE, {1}); }},
      {"arrays differ",
       [](StepPlan& p) {
         AddRow(p, 0, 1, 16, 4, 0, {1});
         p.add_flags(0);
       }},
      {"block of no row",
       [](StepPlan& p) {
         AddRow(p, 0, 1, 16, 4, 0, {1});
         p.add_new_blocks(2);
       }},
      {"block claimed and not there",
       [](StepPlan& p) {
         AddRow(p, 0, 1, 16, 4, 0, {1});
         p.set_n_new_blocks(0, 2);
       }},
      {"more tokens than a step",
       [](StepPlan& p) {
         AddSequence(p, 1, 1, 33);
         AddRow(p, 1, 1, 0, 33, 0, {1, 2, 4});
       }},
      {"new sequence without tokens", [](StepPlan& p) { AddSequence(p, 1, 1, 0); }},
      {"new sequence beyond the context", [](StepPlan& p) { AddSequence(p, 1, 1, 41); }},
      {"new sequence in no slot", [](StepPlan& p) { AddSequence(p, 4, 1, 3); }},
      {"two new sequences for a slot",
       [](StepPlan& p) {
         AddSequence(p, 1, 1, 3);
         AddSequence(p, 1, 2, 3);
       }},
      {"token out of the vocabulary",
       [](StepPlan& p) { AddSequence(p, 1, 1, 3).set_tokens(1, 100); }},
      {"cached beyond the tokens",
       [](StepPlan& p) { AddSequence(p, 1, 1, 3).set_cached_tokens(4); }},
      {"cached without blocks", [](StepPlan& p) { AddSequence(p, 1, 1, 3).set_cached_tokens(3); }},
      {"cached block out of range", [](StepPlan& p) { AddSequence(p, 1, 1, 3).add_blocks(99); }},
      {"temperature",
       [](StepPlan& p) { AddSequence(p, 1, 1, 3).mutable_sampling()->set_temperature(-1); }},
      {"temperature NaN",
       [](StepPlan& p) { AddSequence(p, 1, 1, 3).mutable_sampling()->set_temperature(NAN); }},
      {"bad row after a good sequence",
       [](StepPlan& p) {
         AddSequence(p, 0, 2, 3);
         AddRow(p, 0, 1, 0, 3, 0, {1});
       }},
      {"full context samples",
       [](StepPlan& p) {
         AddSequence(p, 1, 1, 40).set_cached_tokens(39);
         p.mutable_new_sequences(0)->add_blocks(1);
         p.mutable_new_sequences(0)->add_blocks(2);
         p.mutable_new_sequences(0)->add_blocks(4);
         AddRow(p, 1, 1, 39, 1, internal::ROW_SAMPLE);
       }},
  };
  const std::string before = Show(table_);
  for (const auto& [name, fill] : plans) {
    StepPlan plan;
    fill(plan);
    const absl::Status status = table_.Check(plan);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name << ": " << status;
    EXPECT_EQ(Show(table_), before) << name;
    // Nothing of the refused plan is remembered: a good one passes.
    StepPlan good;
    AddSequence(good, 1, 1, 3);
    AddRow(good, 0, 1, 16, 4, internal::ROW_SAMPLE, {1});
    AddRow(good, 1, 1, 0, 3, internal::ROW_SAMPLE, {2});
    EXPECT_TRUE(table_.Check(good).ok()) << name << ", then: " << table_.Check(good);
  }
}

}  // namespace
}  // namespace bitshard
