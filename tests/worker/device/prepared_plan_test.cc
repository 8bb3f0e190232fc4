// Which values get a prepared form, and that forms alive together do not share memory.
#include "worker/device/prepared_plan.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "worker/device/device_groups.h"

namespace bitshard {
namespace {

using internal::ModelGraph;
using internal::Node;
using internal::Value;

constexpr uint64_t kRows = 4;

// norm -> q, k (one group) -> gated of both -> down (segments of 64) -> all_reduce -> add.
class PreparedPlanTest : public testing::Test {
 protected:
  PreparedPlanTest() {
    for (int i = 0; i < 3; ++i) graph_.add_weights();
    const uint32_t x = AddValue(100);
    norm_ = Add("norm", {x}, 100);
    graph_.mutable_nodes(0)->mutable_rms_norm();
    const uint32_t q = Add("q", {norm_}, 96), k = Add("k", {norm_}, 96);
    graph_.mutable_nodes(1)->mutable_linear()->set_weight(0);
    graph_.mutable_nodes(2)->mutable_linear()->set_weight(1);
    act_ = Add("act", {q, k}, 96);
    graph_.mutable_nodes(3)->mutable_gated_act();
    const uint32_t sums = Add("down", {act_}, 100);
    internal::Linear& down = *graph_.mutable_nodes(4)->mutable_linear();
    down.set_weight(2);
    down.set_segment_cols(64);
    const uint32_t y = Add("reduce", {sums}, 100);
    graph_.mutable_nodes(5)->mutable_all_reduce();
    sum_ = Add("add", {x, y}, 100);
    graph_.mutable_nodes(6)->mutable_residual_add();
  }

  uint32_t AddValue(uint64_t width) {
    graph_.add_values()->set_width(width);
    return static_cast<uint32_t>(graph_.values_size()) - 1;
  }
  uint32_t Add(const std::string& name, const std::vector<uint32_t>& inputs, uint64_t width) {
    Node& node = *graph_.add_nodes();
    node.set_name(name);
    for (const uint32_t input : inputs) node.add_inputs(input);
    const uint32_t out = AddValue(width);
    node.add_outputs(out);
    return out;
  }
  PreparedPlan Plan(const std::vector<bool>& owned, const std::vector<bool>& f32) {
    return PreparedPlan(graph_, GroupForDevice(graph_), owned, f32);
  }

  ModelGraph graph_;
  uint32_t norm_ = 0, act_ = 0, sum_ = 0;
};

TEST_F(PreparedPlanTest, GroupsAreMatricesOfOneInputAndTheSumWithItsResidual) {
  std::vector<int> counts;
  for (const NodeGroup& group : GroupForDevice(graph_)) counts.push_back(group.count);
  EXPECT_EQ(counts, (std::vector<int>{1, 2, 1, 1, 2}));
}

TEST_F(PreparedPlanTest, TheNormOfASumIsInItsGroupAndThatOfAnotherValueIsNot) {
  const auto last_counts = [&] {
    std::vector<int> counts;
    for (const NodeGroup& group : GroupForDevice(graph_)) counts.push_back(group.count);
    return std::vector<int>(counts.begin() + 4, counts.end());
  };
  Add("next_norm", {act_}, 96);
  Node& next = *graph_.mutable_nodes(7);
  next.mutable_rms_norm();
  EXPECT_EQ(last_counts(), (std::vector<int>{2, 1}));
  next.set_inputs(0, sum_);
  EXPECT_EQ(last_counts(), (std::vector<int>{3}));
  // A sum that two read stays, and the norm with it only if it reads the sum itself.
  graph_.mutable_nodes(3)->set_inputs(1, graph_.nodes(5).outputs(0));
  EXPECT_EQ(last_counts(), (std::vector<int>{1, 1, 1}));
}

TEST_F(PreparedPlanTest, AFormForEveryValueThatAMatrixReads) {
  PreparedPlan plan = Plan({true, true, true}, {false, false, false});
  ASSERT_NE(plan.Find(norm_, 0), nullptr);
  EXPECT_EQ(plan.Find(norm_, 0)->form.padded_cols, 128);
  EXPECT_EQ(plan.Find(norm_, 0)->form.segments(), 1);
  ASSERT_NE(plan.Find(act_, 64), nullptr);
  EXPECT_EQ(plan.Find(act_, 64)->form.segments(), 2);
  EXPECT_EQ(plan.First(act_), plan.Find(act_, 64));
  EXPECT_EQ(plan.Find(act_, 0), nullptr);
  EXPECT_FALSE(plan.NeedsF32(norm_));
  EXPECT_FALSE(plan.NeedsF32(act_));
}

TEST_F(PreparedPlanTest, OneScaleARowForAllWithoutSegments) {
  PreparedPlan plan(graph_, GroupForDevice(graph_), {true, true, true}, {false, false, false},
                    /*segments=*/false);
  EXPECT_NE(plan.Find(norm_, 0), nullptr);
  ASSERT_NE(plan.Find(act_, 0), nullptr);
  EXPECT_EQ(plan.Find(act_, 0)->form.segments(), 1);
  EXPECT_EQ(plan.Find(act_, 64), nullptr);
}

TEST_F(PreparedPlanTest, NoneWhereTheRankOwnsNothing) {
  PreparedPlan plan = Plan({false, false, true}, {false, false, false});
  EXPECT_EQ(plan.Find(norm_, 0), nullptr);
  EXPECT_NE(plan.Find(act_, 64), nullptr);
}

TEST_F(PreparedPlanTest, AnF32MatrixReadsTheValuesThemselves) {
  PreparedPlan plan = Plan({true, true, true}, {false, true, false});
  EXPECT_TRUE(plan.NeedsF32(norm_));
  EXPECT_FALSE(plan.NeedsF32(act_));
  std::vector<uint8_t> memory(*plan.Place(kRows));
  std::vector<float> values(100);
  plan.SetMemory(memory.data(), kRows, [&](uint32_t) { return values.data(); });
  EXPECT_EQ(plan.Find(norm_, 0)->form.x, values.data());
  EXPECT_EQ(plan.Find(act_, 64)->form.x, nullptr);
}

// q is an integer matrix, k beside it is none; down's segments let it read a8.
TEST_F(PreparedPlanTest, AFormHasThePartsThatItsMatricesRead) {
  std::vector<int64_t> asked;
  PreparedPlan plan(graph_, GroupForDevice(graph_), {true, true, true}, {false, false, false},
                    /*segments=*/true, [&](uint32_t weight, int64_t segment_cols) {
                      asked.push_back(segment_cols);
                      return weight != 1;
                    });
  EXPECT_EQ(asked, (std::vector<int64_t>{0, 0, 64}));
  std::vector<uint8_t> memory(*plan.Place(kRows));
  plan.SetMemory(memory.data(), kRows, [](uint32_t) { return static_cast<float*>(nullptr); });
  const DeviceActivations& norm = plan.Find(norm_, 0)->form;
  const DeviceActivations& act = plan.Find(act_, 64)->form;
  EXPECT_NE(norm.half, nullptr);
  EXPECT_EQ(act.half, nullptr);
  EXPECT_EQ(act.a8, memory.data());
  const uint64_t half = *PreparedPlan::FormBytes(norm, kRows, PreparedPlan::kHalf);
  const uint64_t a8 = *PreparedPlan::FormBytes(norm, kRows, PreparedPlan::kA8);
  EXPECT_EQ(a8, kRows * 2 * kA8RecordBytes);
  EXPECT_EQ(norm.a8, memory.data() + half);
  EXPECT_EQ(memory.size(), half + a8);
}

// Counts of a matrix are cleared with its form only if they are its own by then.
TEST_F(PreparedPlanTest, SaysWhereOtherSumsAreAliveBeforeTheLastReader) {
  const uint32_t sums = graph_.nodes(4).outputs(0);
  graph_.mutable_values(static_cast<int>(sums))->set_type(Value::SEGMENT_SUM);
  EXPECT_FALSE(Plan({true, true, true}, {false, false, false}).Find(act_, 64)->meets_sums);
  Add("down2", {act_}, 100);
  internal::Linear& down = *graph_.mutable_nodes(7)->mutable_linear();
  down.set_weight(2);
  down.set_segment_cols(64);
  EXPECT_TRUE(Plan({true, true, true}, {false, false, false}).Find(act_, 64)->meets_sums);
  EXPECT_FALSE(Plan({true, true, true}, {false, false, false}).Find(norm_, 0)->meets_sums);
}

TEST_F(PreparedPlanTest, FormsOfDifferentTimesShareMemory) {
  PreparedPlan plan = Plan({true, true, true}, {false, false, false});
  const uint64_t bytes = *plan.Place(kRows);
  const uint64_t norm = *PreparedPlan::FormBytes(plan.Find(norm_, 0)->form, kRows);
  const uint64_t act = *PreparedPlan::FormBytes(plan.Find(act_, 64)->form, kRows);
  EXPECT_EQ(bytes, std::max(norm, act));
}

TEST_F(PreparedPlanTest, FormsAliveTogetherDoNot) {
  // down reads the norm's value as well.
  graph_.mutable_nodes(4)->set_inputs(0, norm_);
  Add("down2", {act_}, 100);
  internal::Linear& down = *graph_.mutable_nodes(7)->mutable_linear();
  down.set_weight(2);
  down.set_segment_cols(64);
  PreparedPlan plan = Plan({true, true, true}, {false, false, false});
  // The norm prepares one of its value's two forms; the other is made of the f32 values.
  EXPECT_TRUE(plan.NeedsF32(norm_));
  EXPECT_FALSE(plan.NeedsF32(act_));
  std::vector<uint8_t> memory(*plan.Place(kRows));
  plan.SetMemory(memory.data(), kRows, [](uint32_t) { return static_cast<float*>(nullptr); });
  const DeviceActivations& norm = plan.Find(norm_, 64)->form;
  const DeviceActivations& act = plan.Find(act_, 64)->form;
  const uint64_t norm_bytes = *PreparedPlan::FormBytes(norm, kRows);
  const uint64_t act_bytes = *PreparedPlan::FormBytes(act, kRows);
  const auto* norm_begin = reinterpret_cast<const uint8_t*>(norm.half);
  const auto* act_begin = reinterpret_cast<const uint8_t*>(act.half);
  EXPECT_TRUE(norm_begin + norm_bytes <= act_begin || act_begin + act_bytes <= norm_begin);
  EXPECT_EQ(plan.Place(UINT64_MAX / 8), std::nullopt);
}

}  // namespace
}  // namespace bitshard
