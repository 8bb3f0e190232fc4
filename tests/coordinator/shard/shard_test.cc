// What every plan must satisfy, at many worlds and shares.
#include "coordinator/shard/shard.h"

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "coordinator/models/model_builder.h"
#include "tests/coordinator/models/made_llama.h"

namespace bitshard {
namespace {

using internal::ModelGraph;
using internal::Node;
using internal::RankPlan;
using internal::TensorLoad;

std::vector<RankPlan> Plans(const ModelConfig& config, const std::string& format,
                            const std::vector<double>& shares) {
  const TensorIndex index = MadeLlamaIndex(config, format);
  const auto graph = BuildModelGraph(config, index);
  EXPECT_TRUE(graph.ok()) << graph.status();
  const auto plans = ShardModel(*graph, index, shares);
  EXPECT_TRUE(plans.ok()) << plans.status();
  return plans.ok() ? *plans : std::vector<RankPlan>{};
}

std::vector<double> EvenShares(size_t world) { return std::vector<double>(world, 1.0); }

const TensorLoad& Load(const RankPlan& plan, const std::string& name) {
  for (const TensorLoad& load : plan.load().tensors()) {
    if (plan.graph().weights(static_cast<int>(load.weight())).name() == name) return load;
  }
  ADD_FAILURE() << "no load of " << name;
  return TensorLoad::default_instance();
}

std::vector<const Node*> NodesOf(const ModelGraph& graph, Node::OpCase op) {
  std::vector<const Node*> nodes;
  for (const Node& node : graph.nodes()) {
    if (node.op_case() == op) nodes.push_back(&node);
  }
  return nodes;
}

constexpr char kLayer0[] = "model.layers.0.";

struct Heads {
  uint32_t q, kv;
};

std::vector<Heads> HeadsOf(const std::vector<RankPlan>& plans) {
  std::vector<Heads> heads;
  for (const RankPlan& plan : plans) {
    const internal::Attention& attention = NodesOf(plan.graph(), Node::kAttention)[0]->attention();
    heads.push_back({attention.q_heads(), attention.kv_heads()});
  }
  return heads;
}

TEST(Shard, SmolLm2OnTwoWorkersSplitsNineHeadsIntoFiveAndFour) {
  const auto plans = Plans(SmolLm2Config(2), "q4_1", EvenShares(2));
  ASSERT_EQ(plans.size(), 2);
  // The middle KV head is on both: whole groups would give one rank six Q heads, and two KV heads
  // as well.
  EXPECT_EQ(HeadsOf(plans)[0].q, 5);
  EXPECT_EQ(HeadsOf(plans)[0].kv, 2);
  EXPECT_EQ(HeadsOf(plans)[1].q, 4);
  EXPECT_EQ(HeadsOf(plans)[1].kv, 2);
  // 24 MLP units, each more than the difference of the heads.
  EXPECT_EQ(Load(plans[0], absl::StrCat(kLayer0, "mlp.down_proj.weight")).col_end(), 12 * 64);
  EXPECT_EQ(Load(plans[1], absl::StrCat(kLayer0, "mlp.down_proj.weight")).col_begin(), 12 * 64);
}

TEST(Shard, GroupsStayWholeWhereSplittingThemCostsCacheOrWinsNothing) {
  struct Case {
    uint32_t q, kv;
    size_t ranks;
    std::vector<Heads> heads;
  };
  const Case cases[] = {
      {32, 8, 2, {{16, 4}, {16, 4}}},          // as even either way
      {32, 8, 3, {{12, 3}, {12, 3}, {8, 2}}},  // one by one a rank would keep 4 KV heads
      {28, 4, 3, {{10, 2}, {9, 2}, {9, 2}}},   // whole groups: 14, 7, 7
      {8, 8, 3, {{3, 3}, {3, 3}, {2, 2}}},     // no groups
      {12, 4, 4, {{3, 1}, {3, 1}, {3, 1}, {3, 1}}},
  };
  for (const Case& c : cases) {
    ModelConfig config = SmolLm2Config(1);
    config.heads = c.q;
    config.kv_heads = c.kv;
    const auto heads = HeadsOf(Plans(config, "q4_1", EvenShares(c.ranks)));
    ASSERT_EQ(heads.size(), c.ranks);
    for (size_t r = 0; r < c.ranks; ++r) {
      EXPECT_EQ(heads[r].q, c.heads[r].q) << c.q << "/" << c.kv << " rank " << r;
      EXPECT_EQ(heads[r].kv, c.heads[r].kv) << c.q << "/" << c.kv << " rank " << r;
    }
  }
}

TEST(Shard, FewerKvHeadsThanRanksSpreadsQHeadsAndReplicatesTheirKvHeads) {
  const auto plans = Plans(SmolLm2Config(1), "q4_1", EvenShares(4));
  ASSERT_EQ(plans.size(), 4);
  // Nine Q heads in runs of 3, 2, 2, 2 over KV heads {0}, {1}, {1, 2}, {2}.
  const std::vector<std::vector<uint32_t>> kv_head_of_q = {{0, 0, 0}, {0, 0}, {0, 1}, {0, 0}};
  const std::vector<std::pair<uint64_t, uint64_t>> kv_rows = {
      {0, 64}, {64, 128}, {64, 192}, {128, 192}};
  for (size_t r = 0; r < 4; ++r) {
    const internal::Attention& attention =
        NodesOf(plans[r].graph(), Node::kAttention)[0]->attention();
    EXPECT_EQ(
        std::vector<uint32_t>(attention.kv_head_of_q().begin(), attention.kv_head_of_q().end()),
        kv_head_of_q[r]);
    const TensorLoad& k = Load(plans[r], absl::StrCat(kLayer0, "self_attn.k_proj.weight"));
    EXPECT_EQ(std::make_pair(k.row_begin(), k.row_end()), kv_rows[r]) << "rank " << r;
  }
}

TEST(Shard, SumSegmentsDoNotDependOnTheCut) {
  for (size_t world = 1; world <= 8; ++world) {
    for (const RankPlan& plan : Plans(SmolLm2Config(1), "q4_1", EvenShares(world))) {
      for (const Node* node : NodesOf(plan.graph(), Node::kLinear)) {
        const bool is_o = absl::EndsWith(node->name(), "o_proj"),
                   is_down = absl::EndsWith(node->name(), "down_proj");
        EXPECT_EQ(node->linear().segment_cols(), is_o || is_down ? 64u : 0u) << node->name();
        EXPECT_EQ(node->linear().segments_total(), is_o ? 9u : is_down ? 24u : 0u) << node->name();
      }
    }
  }
}

TEST(Shard, EveryWorldHasTheSameNodesInTheSameOrder) {
  std::vector<std::string> names;
  for (size_t world = 1; world <= 8; ++world) {
    for (const RankPlan& plan : Plans(SmallLlamaConfig(), "bf16", EvenShares(world))) {
      std::vector<std::string> own;
      for (const Node& node : plan.graph().nodes()) own.push_back(node.name());
      if (names.empty()) names = own;
      EXPECT_EQ(own, names) << "rank " << plan.rank() << " of " << world;
    }
  }
  EXPECT_EQ(std::count_if(names.begin(), names.end(),
                          [](const auto& n) { return absl::EndsWith(n, "all_reduce"); }),
            5);
}

TEST(Shard, ValuesFlowInOrderAndHaveTheWidthsOfTheirNodes) {
  for (size_t world = 1; world <= 8; ++world) {
    for (const RankPlan& plan : Plans(SmolLm2Config(2), "q8_0", EvenShares(world))) {
      const ModelGraph& graph = plan.graph();
      std::set<uint32_t> made;
      for (const Node& node : graph.nodes()) {
        for (uint32_t input : node.inputs()) EXPECT_TRUE(made.contains(input)) << node.name();
        for (uint32_t output : node.outputs())
          EXPECT_TRUE(made.insert(output).second) << node.name();
        const auto width = [&](uint32_t value) {
          return graph.values(static_cast<int>(value)).width();
        };
        if (node.has_linear()) {
          const internal::Weight& weight = graph.weights(static_cast<int>(node.linear().weight()));
          EXPECT_EQ(width(node.inputs(0)), weight.cols()) << node.name();
          EXPECT_EQ(width(node.outputs(0)), weight.rows()) << node.name();
        } else if (node.has_attention()) {
          EXPECT_EQ(width(node.inputs(0)),
                    node.attention().q_heads() * node.attention().head_dim());
          EXPECT_EQ(width(node.inputs(1)),
                    node.attention().kv_heads() * node.attention().head_dim());
          EXPECT_EQ(width(node.outputs(0)), width(node.inputs(0)));
        } else if (node.has_rope()) {
          EXPECT_EQ(width(node.inputs(0)), node.rope().heads() * node.rope().head_dim());
        } else if (node.has_lm_head()) {
          EXPECT_EQ(width(node.outputs(0)),
                    graph.weights(static_cast<int>(node.lm_head().weight())).rows());
        }
      }
      EXPECT_EQ(made.size(), static_cast<size_t>(graph.values_size()));
    }
  }
}

TEST(Shard, RowParallelOutputsAreReducedBeforeAnybodyUsesThem) {
  for (const RankPlan& plan : Plans(SmallLlamaConfig(), "bf16", EvenShares(3))) {
    const ModelGraph& graph = plan.graph();
    for (const Node& node : graph.nodes()) {
      for (uint32_t input : node.inputs()) {
        const bool is_f32 = graph.values(static_cast<int>(input)).type() == internal::Value::F32;
        EXPECT_EQ(is_f32, !node.has_all_reduce()) << node.name();
      }
    }
  }
}

TEST(Shard, TiedEmbeddingAndHeadAreOneWeightCutTheSameWay) {
  for (const RankPlan& plan : Plans(SmolLm2Config(1), "q8_0", EvenShares(3))) {
    const internal::Embed& embed = NodesOf(plan.graph(), Node::kEmbed)[0]->embed();
    const internal::LmHead& head = NodesOf(plan.graph(), Node::kLmHead)[0]->lm_head();
    EXPECT_EQ(embed.weight(), head.weight());
    EXPECT_EQ(embed.vocab_begin(), 256 * 64 * plan.rank());
    EXPECT_EQ(head.vocab_begin(), embed.vocab_begin());
  }
}

TEST(Shard, BiasOfRowParallelLinearsIsAddedOnceAfterTheSum) {
  ModelConfig config = SmallLlamaConfig();
  config.attention_bias = config.attention_output_bias = true;
  for (const RankPlan& plan : Plans(config, "bf16", EvenShares(3))) {
    const ModelGraph& graph = plan.graph();
    int reduced = 0;
    for (const Node& node : graph.nodes()) {
      if (node.has_all_reduce() && absl::StrContains(node.name(), "o_proj")) {
        ASSERT_TRUE(node.all_reduce().has_bias());
        EXPECT_EQ(graph.weights(static_cast<int>(node.all_reduce().bias())).cols(),
                  config.hidden_size);
        ++reduced;
      } else if (node.has_linear()) {
        EXPECT_EQ(node.linear().has_bias(),
                  absl::StrContains(node.name(), "self_attn") && node.linear().segment_cols() == 0);
        if (!node.linear().has_bias()) continue;
        EXPECT_EQ(graph.weights(static_cast<int>(node.linear().bias())).cols(),
                  graph.weights(static_cast<int>(node.linear().weight())).rows());
      }
    }
    EXPECT_EQ(reduced, 2);
  }
}

TEST(Shard, BytesOfALayerFollowTheShares) {
  const auto plans = Plans(SmolLm2Config(2), "q4_1", {24, 48});
  uint64_t bytes[2] = {0, 0};
  for (size_t r = 0; r < 2; ++r) {
    for (const TensorLoad& load : plans[r].load().tensors()) {
      const internal::PartLoad& part = load.parts(0);
      if (!absl::StartsWith(part.source_name(), "made.model.layers.0.") || part.ranges_size() == 0)
        continue;
      bytes[r] += part.ranges(0).length() * part.ranges(0).count();
    }
  }
  const double share = static_cast<double>(bytes[0]) / static_cast<double>(bytes[0] + bytes[1]);
  // Off by less than one MLP unit, a 24th of three quarters of the layer.
  EXPECT_NEAR(share, 1.0 / 3, 1.0 / 32);
}

TEST(Shard, TheMlpMakesUpForUnevenHeads) {
  ModelConfig config = SmolLm2Config(1);
  config.heads = config.kv_heads = 3;  // two heads and one, nothing to spread
  const auto plans = Plans(config, "q4_1", EvenShares(2));
  const uint64_t first =
      Load(plans[0], absl::StrCat(kLayer0, "mlp.down_proj.weight")).col_end() / 64;
  EXPECT_LT(first, 12);  // of 24 units
}

TEST(Shard, RanksWithoutUnitsOfAMatrixHaveEmptyPartsOfIt) {
  // 8 heads, 4 KV heads, 5 MLP units, 8 vocabulary units over 8 ranks: some ranks have no MLP.
  const auto plans = Plans(SmallLlamaConfig(), "q8_0", EvenShares(8));
  ASSERT_EQ(plans.size(), 8);
  uint64_t empty = 0, rows = 0;
  for (const RankPlan& plan : plans) {
    const TensorLoad& gate = Load(plan, "model.layers.1.mlp.gate_proj.weight");
    rows += gate.row_end() - gate.row_begin();
    if (gate.row_begin() == gate.row_end()) {
      ++empty;
      EXPECT_EQ(gate.parts(0).ranges_size(), 0);
      EXPECT_EQ(Load(plan, "model.layers.1.mlp.down_proj.weight").parts(0).ranges_size(), 0);
    }
  }
  EXPECT_EQ(rows, 320);
  EXPECT_EQ(empty, 3);
}

TEST(Shard, TheLastMlpUnitMayBeShorter) {
  ModelConfig config = SmallLlamaConfig();
  config.intermediate_size = 65;
  const auto plans = Plans(config, "f16", EvenShares(2));
  std::set<uint64_t> widths;
  for (const RankPlan& plan : plans) {
    const TensorLoad& down = Load(plan, absl::StrCat(kLayer0, "mlp.down_proj.weight"));
    widths.insert(down.col_end() - down.col_begin());
  }
  EXPECT_EQ(widths, (std::set<uint64_t>{1, 64}));
}

TEST(Shard, ARankThatWouldOwnNothingIsAnErrorThatSaysSo) {
  ModelConfig config = SmallLlamaConfig();
  config.vocab_size =
      64;  // 8 heads for the first ranks, 5 MLP units for the next ones, one unit of the vocabulary
  const TensorIndex index = MadeLlamaIndex(config, "bf16");
  const auto graph = BuildModelGraph(config, index);
  ASSERT_TRUE(graph.ok());
  EXPECT_TRUE(ShardModel(*graph, index, EvenShares(13)).ok());
  const absl::Status status = ShardModel(*graph, index, EvenShares(14)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(), "rank 13 of 14 would own no part")) << status;
}

TEST(Shard, SharesMustBePositiveNumbers) {
  const TensorIndex index = MadeLlamaIndex(SmallLlamaConfig(), "bf16");
  const auto graph = BuildModelGraph(SmallLlamaConfig(), index);
  ASSERT_TRUE(graph.ok());
  const double inf = std::numeric_limits<double>::infinity();
  for (const std::vector<double>& shares : std::vector<std::vector<double>>{
           {}, {0}, {1, -1}, {1, inf}, {1, inf - inf}, {1.7e308, 1.7e308}}) {
    EXPECT_EQ(ShardModel(*graph, index, shares).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

// Whatever the shapes and shares: rows and columns that are cut are dealt out once, in order, at
// whole units.
TEST(Shard, RandomShapesAndSharesAreCutWithoutGapsOrOverlaps) {
  constexpr uint32_t kSeed = 7;
  std::mt19937 random(kSeed);
  int cut = 0;
  for (int round = 0; round < 200; ++round) {
    ModelConfig config = SmallLlamaConfig();
    config.kv_heads = 1 + random() % 8;
    config.heads = config.kv_heads * (1 + random() % 6);
    config.intermediate_size = 1 + random() % 700;
    config.vocab_size = 512 + random() % 700;
    std::vector<double> shares(1 + random() % 8);
    for (double& share : shares) share = 1 + random() % 8;
    const TensorIndex index = MadeLlamaIndex(config, "bf16");
    const auto graph = BuildModelGraph(config, index);
    ASSERT_TRUE(graph.ok()) << graph.status();
    const auto result = ShardModel(*graph, index, shares);
    if (absl::IsInvalidArgument(result.status())) continue;  // a share too small for any unit
    ASSERT_TRUE(result.ok()) << result.status();
    ++cut;
    const std::vector<RankPlan>& plans = *result;
    for (int w = 0; w < plans[0].load().tensors_size(); ++w) {
      const std::string& name = plans[0].graph().weights(w).name();
      const bool is_replicated = absl::StrContains(name, "norm") ||
                                 absl::StrContains(name, "k_proj") ||
                                 absl::StrContains(name, "v_proj");
      if (is_replicated) continue;
      const bool by_cols =
          absl::StrContains(name, "o_proj") || absl::StrContains(name, "down_proj");
      const uint64_t unit = absl::StrContains(name, "self_attn") ? config.head_dim : 64;
      uint64_t end = 0;
      for (const RankPlan& plan : plans) {
        const TensorLoad& load = plan.load().tensors(w);
        ASSERT_EQ(by_cols ? load.col_begin() : load.row_begin(), end)
            << name << " round " << round << " seed " << kSeed;
        ASSERT_TRUE(end % unit == 0 || end == (by_cols ? load.cols() : load.rows()))
            << name << " " << end;
        end = by_cols ? load.col_end() : load.row_end();
      }
      ASSERT_EQ(end,
                by_cols ? plans[0].load().tensors(w).cols() : plans[0].load().tensors(w).rows())
          << name;
    }
  }
  EXPECT_GT(cut, 150);
}

TEST(Shard, DigestsTellRanksAndModelsApartButNotFolders) {
  const auto at_home = Plans(SmallLlamaConfig(), "bf16", EvenShares(2));
  const auto again = Plans(SmallLlamaConfig(), "bf16", EvenShares(2));
  const auto other = Plans(SmallLlamaConfig(), "f16", EvenShares(2));
  EXPECT_EQ(at_home[0].digest(), again[0].digest());
  EXPECT_NE(at_home[0].digest(), at_home[1].digest());
  EXPECT_NE(at_home[0].digest(), other[0].digest());
  EXPECT_EQ(at_home[0].model_digest(), at_home[1].model_digest());
  EXPECT_NE(at_home[0].model_digest(), other[0].model_digest());
  EXPECT_EQ(at_home[0].digest().size(), 64);
}

TEST(Shard, ReadBytesIsTheSumOfTheRanges) {
  for (const RankPlan& plan : Plans(SmolLm2Config(1), "q4_1", EvenShares(3))) {
    uint64_t bytes = 0;
    for (const TensorLoad& load : plan.load().tensors()) {
      for (const internal::ByteRange& range : load.parts(0).ranges())
        bytes += range.length() * range.count();
    }
    EXPECT_EQ(plan.load().read_bytes(), bytes);
  }
}

}  // namespace
}  // namespace bitshard
