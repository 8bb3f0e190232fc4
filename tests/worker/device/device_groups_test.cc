// Which nodes are one op; those around matrices and sums are in prepared_plan_test.cc.
#include "worker/device/device_groups.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace bitshard {
namespace {

using internal::ModelGraph;
using internal::Node;

constexpr uint32_t kQIn = 0, kKIn = 1, kV = 2, kQ = 3, kK = 4, kOut = 5;
using Counts = std::vector<int>;

// The ropes of q and k, their attention, and what reads its result.
class RopeGroups : public testing::Test {
 protected:
  RopeGroups() {
    for (int i = 0; i < 8; ++i) graph_.add_values()->set_width(64);
    SetRope(Add({kQIn}, kQ), 2);
    SetRope(Add({kKIn}, kK), 1);
    Add({kQ, kK, kV}, kOut).mutable_attention()->set_head_dim(32);
    Add({kOut}, 6).mutable_rms_norm();
  }

  Node& Add(const std::vector<uint32_t>& inputs, uint32_t output) {
    Node& node = *graph_.add_nodes();
    for (const uint32_t input : inputs) node.add_inputs(input);
    node.add_outputs(output);
    return node;
  }
  static void SetRope(Node& node, uint32_t heads) {
    internal::Rope& rope = *node.mutable_rope();
    rope.set_heads(heads);
    rope.set_head_dim(32);
    rope.set_rotary_dim(32);
    rope.set_theta(10000);
  }
  Node& node(int index) { return *graph_.mutable_nodes(index); }
  Counts GroupCounts() const {
    Counts counts;
    int next = 0;
    for (const NodeGroup& group : GroupForDevice(graph_)) {
      EXPECT_EQ(group.first, next);
      next += group.count;
      counts.push_back(group.count);
    }
    EXPECT_EQ(next, graph_.nodes_size());
    return counts;
  }

  ModelGraph graph_;
};

TEST_F(RopeGroups, AreBothRopesAndTheirAttention) {
  EXPECT_EQ(GroupCounts(), (Counts{3, 1}));
  node(0).Swap(&node(1));
  EXPECT_EQ(GroupCounts(), (Counts{3, 1})) << "in either order";
}

TEST_F(RopeGroups, StayApartWhereSomebodyElseReadsWhatIsRotated) {
  node(3).add_inputs(kK);
  EXPECT_EQ(GroupCounts(), (Counts{1, 1, 1, 1}));
  node(3).set_inputs(1, kQ);
  EXPECT_EQ(GroupCounts(), (Counts{1, 1, 1, 1}));
  node(3).mutable_inputs()->RemoveLast();
  node(2).set_inputs(2, kK);  // as values, too
  EXPECT_EQ(GroupCounts(), (Counts{1, 1, 1, 1}));
}

TEST_F(RopeGroups, MayShareWhatTheyRead) {
  node(1).set_inputs(0, kQIn);
  node(2).set_inputs(2, kQIn);
  EXPECT_EQ(GroupCounts(), (Counts{3, 1}));
}

TEST_F(RopeGroups, StayApartWhereTheyRotateUnlike) {
  node(1).mutable_rope()->set_theta(20000);
  EXPECT_EQ(GroupCounts(), (Counts{1, 1, 1, 1}));
  node(1).mutable_rope()->set_theta(10000);
  node(1).mutable_rope()->set_pairing(internal::Rope::INTERLEAVED);
  EXPECT_EQ(GroupCounts(), (Counts{1, 1, 1, 1}));
  SetRope(node(1), 1);
  node(1).mutable_rope()->clear_pairing();
  EXPECT_EQ(GroupCounts(), (Counts{3, 1}));
  node(2).mutable_attention()->set_head_dim(64);
  EXPECT_EQ(GroupCounts(), (Counts{1, 1, 1, 1}));
}

TEST_F(RopeGroups, AnAttentionWithOneRopeOrNoneIsAlone) {
  node(0).mutable_gated_act();
  EXPECT_EQ(GroupCounts(), (Counts{1, 1, 1, 1}));
  node(1).mutable_gated_act();
  EXPECT_EQ(GroupCounts(), (Counts{1, 1, 1, 1}));
}

TEST_F(RopeGroups, MalformedNodesAreAlone) {
  const ModelGraph good = graph_;
  const auto expect_alone = [&](const char* what) {
    EXPECT_EQ(GroupCounts(), Counts(static_cast<size_t>(graph_.nodes_size()), 1)) << what;
    graph_ = good;
  };
  node(0).clear_inputs();
  expect_alone("a rope of nothing");
  node(1).clear_outputs();
  expect_alone("a rope into nothing");
  node(1).add_outputs(7);
  expect_alone("a rope into two values");
  node(1).set_outputs(0, kQ);
  expect_alone("two ropes into one value");
  node(0).set_outputs(0, 99);
  node(2).set_inputs(0, 99);
  expect_alone("a value that does not exist");
  node(2).clear_inputs();
  expect_alone("an attention to nothing");
  node(2).add_inputs(kV);
  expect_alone("an attention to four values");
  node(2).set_inputs(0, kV);
  expect_alone("an attention to another value");
  graph_.mutable_nodes()->DeleteSubrange(2, 2);
  expect_alone("no attention");
  graph_.mutable_nodes()->DeleteSubrange(1, 3);
  expect_alone("a rope at the end");
}

}  // namespace
}  // namespace bitshard
