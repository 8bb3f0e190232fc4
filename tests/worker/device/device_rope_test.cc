// However a graph's rotations stand to its attention, a step gives the same bits: as one launch
// with the append, which models have, or by themselves.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "proto/graph.pb.h"
#include "tests/worker/device/device_ranks.h"

namespace bitshard {
namespace {

using internal::ModelGraph;
using internal::Node;
using internal::Value;

// The first rope of each layer, from the last layer on.
std::vector<int> RopePairs(const ModelGraph& graph) {
  std::vector<int> firsts;
  for (int n = graph.nodes_size() - 1; n > 0; --n) {
    if (graph.nodes(n - 1).has_rope() && graph.nodes(n).has_rope()) firsts.push_back(n - 1);
  }
  return firsts;
}

// Behind node `after` adds the value to itself, into one that nobody reads.
void AddReader(ModelGraph& graph, uint32_t value, int after) {
  const auto sum = static_cast<uint32_t>(graph.values_size());
  *graph.add_values() = Value(graph.values(static_cast<int>(value)));
  Node node;
  node.set_name("reader");
  node.mutable_residual_add();
  node.add_inputs(value);
  node.add_inputs(value);
  node.add_outputs(sum);
  *graph.add_nodes() = node;
  auto& nodes = *graph.mutable_nodes();
  std::rotate(nodes.pointer_begin() + after + 1, nodes.pointer_end() - 1, nodes.pointer_end());
}

struct Change {
  std::string name;
  std::function<void(ModelGraph& graph, int first_rope)> of_layer;
  int64_t rotations, copies;  // launches and copies of a step's layer that it has besides
};

std::vector<Change> Changes() {
  return {
      {"k before q",
       [](ModelGraph& graph, int first) { graph.mutable_nodes()->SwapElements(first, first + 1); },
       0, 0},
      {"rotated keys are read again",
       [](ModelGraph& graph, int first) {
         AddReader(graph, graph.nodes(first + 1).outputs(0), first + 2);
       },
       2, 0},
      {"q is read before it is rotated, and later",
       [](ModelGraph& graph, int first) {
         AddReader(graph, graph.nodes(first).inputs(0), first + 2);
       },
       0, 1},
      {"k is read before it is rotated, and later",
       [](ModelGraph& graph, int first) {
         AddReader(graph, graph.nodes(first + 1).inputs(0), first + 2);
       },
       0, 0},
      {"something between the ropes and the attention",
       [](ModelGraph& graph, int first) {
         AddReader(graph, graph.nodes(first + 2).inputs(2), first + 1);
       },
       2, 0},
  };
}

std::function<void(ModelGraph&)> OnAllLayers(const Change& change) {
  return [change](ModelGraph& graph) {
    for (const int first : RopePairs(graph)) change.of_layer(graph, first);
  };
}

TEST(DeviceRope, GivesTheSameBitsWhereverItStands) {
  TinyModelOptions options;
  options.format = "q4_1";
  const TinyModel model = MakeTinyModel(options);
  const std::string expected = RunTwoSequences(*DeviceRanks(model, 1, {}), 64);
  for (const Change& change : Changes()) {
    const DeviceRanks ranks(model, 2, {.change_graph = OnAllLayers(change)});
    EXPECT_EQ(RunTwoSequences(*ranks, 7), expected) << change.name;
  }
}

TEST(DeviceRope, IsALaunchOfItsOwnOnlyWhereItMust) {
  const TinyModel model = MakeTinyModel();
  const auto layers = static_cast<int64_t>(TinyModelOptions().layers);
  std::vector<Change> changes = Changes();
  changes.insert(changes.begin(), Change{"none", [](ModelGraph&, int) {}, 0, 0});
  int64_t copies_without = 0;
  for (const Change& change : changes) {
    const DeviceRanks ranks(model, 1, {.tap = false, .change_graph = OnAllLayers(change)});
    StepPlan plan = ranks->NextPlan();
    AddSequence(plan, 0, 1, Prompt(3, 1));
    AddRow(plan, 0, 1, 0, 3, internal::ROW_SAMPLE);
    fake::StartRecord();
    ASSERT_TRUE(ranks->Run(plan).ok()) << change.name;
    const std::vector<fake::RanWork> works = fake::EndRecord();
    const auto count = [&](const char* part) {
      return std::count_if(works.begin(), works.end(), [part](const fake::RanWork& work) {
        return work.what.find(part) != std::string::npos;
      });
    };
    EXPECT_EQ(count("RotateAppend"), layers * (1 + change.rotations)) << change.name;
    const int64_t copies = count("copy");
    if (change.name == "none") copies_without = copies;
    EXPECT_EQ(copies - copies_without, layers * change.copies) << change.name;
  }
}

}  // namespace
}  // namespace bitshard
