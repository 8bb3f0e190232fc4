#include "worker/ops/buffer_plan.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace bitshard {
namespace {

using internal::ModelGraph;
using internal::Node;
using internal::Value;

Node& AddNode(ModelGraph& graph, const std::vector<uint32_t>& inputs, uint64_t width,
              Value::Type type = Value::F32) {
  Value& value = *graph.add_values();
  value.set_width(width);
  value.set_type(type);
  Node& node = *graph.add_nodes();
  for (const uint32_t input : inputs) node.add_inputs(input);
  node.add_outputs(static_cast<uint32_t>(graph.values_size()) - 1);
  return node;
}

TEST(PlanBuffers, ElementwiseOpsWriteOverAnInputThatDies) {
  ModelGraph graph;
  AddNode(graph, {}, 64);
  AddNode(graph, {0}, 64);
  AddNode(graph, {1, 0}, 64).mutable_residual_add();  // 1 dies here
  AddNode(graph, {0, 2}, 64).mutable_residual_add();  // 0 dies here
  const auto plan = PlanBuffers(graph, 4, 1);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->offsets[2], plan->offsets[1]);
  EXPECT_EQ(plan->offsets[3], plan->offsets[0]);
  EXPECT_EQ(plan->arena_bytes, 2u * 4 * 64 * sizeof(float));
}

TEST(PlanBuffers, AnInputThatLivesOnIsKept) {
  ModelGraph graph;
  AddNode(graph, {}, 64);
  AddNode(graph, {0}, 64).mutable_rope();
  AddNode(graph, {1, 0}, 64).mutable_residual_add();
  const auto plan = PlanBuffers(graph, 4, 1);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_NE(plan->offsets[1], plan->offsets[0]);
}

TEST(PlanBuffers, SegmentSumsHaveRoomForPoisonAndLogitsOnlyForOutputs) {
  ModelGraph graph;
  AddNode(graph, {}, 64, Value::SEGMENT_SUM);
  AddNode(graph, {0}, 1).mutable_all_reduce();
  EXPECT_EQ(PlanBuffers(graph, 16, 1)->arena_bytes,
            16u * 65 * sizeof(int64_t) + 16 * sizeof(float));
  ModelGraph head;
  AddNode(head, {}, 64).mutable_lm_head();
  EXPECT_EQ(PlanBuffers(head, 16, 2)->arena_bytes, 2u * 64 * sizeof(float));
}

TEST(PlanBuffers, SumsApartLieAlikeWhateverTheOtherValuesAre) {
  for (const uint64_t width : {64, 640}) {
    ModelGraph graph;
    AddNode(graph, {}, 32, Value::RAW_BITS);
    AddNode(graph, {}, 48, Value::SEGMENT_SUM);
    AddNode(graph, {}, width);  // of this rank alone
    AddNode(graph, {0}, 32).mutable_all_reduce();
    AddNode(graph, {}, 32, Value::SEGMENT_SUM);
    AddNode(graph, {1}, 48).mutable_all_reduce();
    AddNode(graph, {4}, 32).mutable_all_reduce();
    const auto plan = PlanBuffers(graph, 16, 1, {}, /*sums_apart=*/true);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const uint64_t first = 16 * 32 * sizeof(int64_t), second = 16 * 49 * sizeof(int64_t);
    const uint64_t third = 16 * 33 * sizeof(int64_t);
    EXPECT_EQ(plan->offsets[0], 0u);
    EXPECT_EQ(plan->offsets[1], first);
    EXPECT_EQ(plan->offsets[4], first + second);  // 33 columns do not fit where 32 were
    EXPECT_EQ(plan->sums_bytes, first + second + third);
    EXPECT_EQ(plan->offsets[2], 0u);  // in the other arena
  }
}

TEST(PlanBuffers, RefusesValuesThatDoNotFitTogether) {
  ModelGraph early;
  AddNode(early, {1}, 64);
  AddNode(early, {}, 64);
  EXPECT_EQ(PlanBuffers(early, 4, 1).status().code(), absl::StatusCode::kInvalidArgument);
  ModelGraph twice;
  AddNode(twice, {}, 64).add_outputs(0);
  EXPECT_EQ(PlanBuffers(twice, 4, 1).status().code(), absl::StatusCode::kInvalidArgument);
  ModelGraph huge;
  AddNode(huge, {}, ~uint64_t{0});
  EXPECT_EQ(PlanBuffers(huge, 4, 1).status().code(), absl::StatusCode::kInvalidArgument);
  ModelGraph untyped;
  AddNode(untyped, {}, 64, Value::TYPE_UNSPECIFIED);
  EXPECT_EQ(PlanBuffers(untyped, 4, 1).status().code(), absl::StatusCode::kInvalidArgument);
}

void ExpectRefusal(const ModelGraph& graph, const std::string& part) {
  const absl::Status status = PlanBuffers(graph, 4, 1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(status.message().find(part), std::string::npos) << status;
}

TEST(PlanBuffers, LogitsAreForSampleAlone) {
  ModelGraph graph;
  AddNode(graph, {}, 64).mutable_lm_head();
  Node& reader = AddNode(graph, {0}, 64);
  reader.set_name("reader");
  reader.mutable_sample();
  EXPECT_TRUE(PlanBuffers(graph, 4, 1).ok());
  reader.mutable_rope();
  ExpectRefusal(graph, "node reader reads value 0, logits");
}

TEST(PlanBuffers, IntegerSumsAreForOneAllReduce) {
  for (const Value::Type type : {Value::SEGMENT_SUM, Value::RAW_BITS}) {
    ModelGraph graph;
    AddNode(graph, {}, 64, type).set_name("writer");
    ExpectRefusal(graph, "node writer writes sums that no AllReduce reads");
    Node& first = AddNode(graph, {0}, 64);
    first.set_name("first");
    first.mutable_all_reduce();
    EXPECT_TRUE(PlanBuffers(graph, 4, 1).ok());
    ModelGraph twice = graph;
    Node& second = AddNode(twice, {0}, 64);
    second.set_name("second");
    second.mutable_all_reduce();
    ExpectRefusal(twice, "node second reads value 0, sums of this rank alone; another AllReduce");
    first.mutable_rope();
    ExpectRefusal(graph, "node first reads value 0, sums of this rank alone; only AllReduce");
  }
}

// Random graphs: while a value is alive nothing else lies on it, but for the op that writes over
// its dying input.
TEST(PlanBuffers, LiveValuesNeverOverlap) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    ModelGraph graph;
    AddNode(graph, {}, 16);
    std::vector<uint32_t> floats = {0};
    for (uint32_t n = 1; n < 30; ++n) {
      const uint32_t width = 1 + random() % 40;
      if (graph.values(n - 1).type() == Value::SEGMENT_SUM) {
        AddNode(graph, {n - 1}, width).mutable_all_reduce();
      } else {
        const uint32_t a = floats[random() % floats.size()], b = floats[random() % floats.size()];
        const bool sums = n < 29 && random() % 4 == 0;
        Node& node = AddNode(graph, {a, b}, width, sums ? Value::SEGMENT_SUM : Value::F32);
        if (random() % 2 == 0) node.mutable_residual_add();
        if (sums) continue;
      }
      floats.push_back(n);
    }
    const auto plan = PlanBuffers(graph, 3, 1);
    ASSERT_TRUE(plan.ok()) << plan.status();
    std::vector<int> last(30);
    std::vector<uint64_t> bytes(30);
    for (int n = 0; n < 30; ++n) {
      last[n] = n;
      for (const uint32_t input : graph.nodes(n).inputs()) last[input] = n;
      const Value& value = graph.values(n);
      bytes[n] = 3 * (value.type() == Value::F32 ? value.width() * 4 : (value.width() + 1) * 8);
      EXPECT_LE(plan->offsets[n] + bytes[n], plan->arena_bytes);
    }
    for (int a = 0; a < 30; ++a) {
      for (int b = a + 1; b < 30; ++b) {
        if (last[a] < b) continue;
        const bool apart = plan->offsets[a] + bytes[a] <= plan->offsets[b] ||
                           plan->offsets[b] + bytes[b] <= plan->offsets[a];
        const Node& writer = graph.nodes(b);
        const bool in_place = writer.has_residual_add() && last[a] == b &&
                              writer.inputs(0) == static_cast<uint32_t>(a) &&
                              plan->offsets[a] == plan->offsets[b];
        EXPECT_TRUE(apart || in_place) << "seed " << seed << ": values " << a << " and " << b;
      }
    }
  }
}

}  // namespace
}  // namespace bitshard
