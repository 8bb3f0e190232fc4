// From a config to a graph: the llama family, and the errors of checkpoints that do not fit their
// config.
#include "coordinator/models/model_builder.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "tests/coordinator/models/made_llama.h"

namespace bitshard {
namespace {

using internal::ModelGraph;
using internal::Node;

void ExpectError(const ModelConfig& config, const TensorIndex& index, absl::StatusCode code,
                 const std::string& part) {
  const absl::Status status = BuildModelGraph(config, index).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), part)) << status << "\nlacks: " << part;
}

// The index of `config` with one tensor left out or replaced.
TensorIndex Without(const ModelConfig& config, const std::string& name,
                    const TensorInfo* instead = nullptr) {
  const TensorIndex whole = MadeLlamaIndex(config, "bf16");
  TensorIndex index;
  index.AddFile(whole.files()[0]);
  for (const TensorInfo& tensor : whole.tensors()) {
    if (tensor.name == name) continue;
    EXPECT_TRUE(index.Add(tensor).ok());
  }
  if (instead != nullptr) {
    EXPECT_TRUE(index.Add(*instead).ok());
  }
  return index;
}

constexpr char kUp[] = "model.layers.1.mlp.up_proj.weight";

TEST(ModelBuilder, ALlamaLayerIsTheNodesOfThePaperInOrder) {
  ModelConfig config = SmallLlamaConfig();
  config.layers = 1;
  const auto graph = BuildModelGraph(config, MadeLlamaIndex(config, "bf16"));
  ASSERT_TRUE(graph.ok()) << graph.status();
  std::vector<std::string> names;
  for (const Node& node : graph->nodes()) names.push_back(node.name());
  EXPECT_EQ(names, (std::vector<std::string>{
                       "model.embed_tokens", "layers.0.input_layernorm",
                       "layers.0.self_attn.q_proj", "layers.0.self_attn.k_proj",
                       "layers.0.self_attn.v_proj", "layers.0.self_attn.q_rope",
                       "layers.0.self_attn.k_rope", "layers.0.self_attn.attention",
                       "layers.0.self_attn.o_proj", "layers.0.self_attn.residual_add",
                       "layers.0.post_attention_layernorm", "layers.0.mlp.gate_proj",
                       "layers.0.mlp.up_proj", "layers.0.mlp.gated_act", "layers.0.mlp.down_proj",
                       "layers.0.mlp.residual_add", "model.norm", "lm_head", "sample"}));
  EXPECT_EQ(graph->kv_layers(), 1);
  EXPECT_EQ(graph->weights_size(), 12);
  EXPECT_EQ(graph->family(), "llama");
}

TEST(ModelBuilder, OnlyRowParallelLinearsHaveSegments) {
  const ModelConfig config = SmallLlamaConfig();
  const auto graph = BuildModelGraph(config, MadeLlamaIndex(config, "bf16"));
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (const Node& node : graph->nodes()) {
    if (!node.has_linear()) continue;
    const bool is_o = absl::EndsWith(node.name(), "o_proj"),
               is_down = absl::EndsWith(node.name(), "down_proj");
    EXPECT_EQ(node.linear().segment_cols(), is_o ? 16u : is_down ? 64u : 0u) << node.name();
    EXPECT_EQ(node.linear().segments_total(), is_o ? 8u : is_down ? 5u : 0u) << node.name();
    EXPECT_EQ(graph->values(static_cast<int>(node.outputs(0))).type(),
              is_o || is_down ? internal::Value::SEGMENT_SUM : internal::Value::F32);
  }
}

TEST(ModelBuilder, TiedEmbeddingsAreOneWeight) {
  const ModelConfig config = SmolLm2Config(1);
  const auto graph = BuildModelGraph(config, MadeLlamaIndex(config, "q8_0"));
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->weights_size(), 11);
  EXPECT_EQ(graph->nodes(0).embed().weight(), 0);
  EXPECT_EQ(graph->nodes(graph->nodes_size() - 2).lm_head().weight(), 0);
}

TEST(ModelBuilder, RopeSettingsTravelWithTheGraph) {
  ModelConfig config = SmallLlamaConfig();
  const TensorIndex index = MadeLlamaIndex(config, "bf16");
  config.rope.pairing = RopeConfig::Pairing::kInterleaved;
  config.rope.scaling =
      RopeConfig::Yarn{.factor = 4, .original_context = 512, .attention_factor = 1.25};
  const auto graph = BuildModelGraph(config, index);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const internal::Rope& rope = graph->nodes(5).rope();
  EXPECT_EQ(rope.pairing(), internal::Rope::INTERLEAVED);
  EXPECT_EQ(rope.yarn().factor(), 4);
  EXPECT_EQ(rope.yarn().beta_fast(), 32);
  EXPECT_EQ(rope.yarn().attention_factor(), 1.25);
  EXPECT_TRUE(rope.yarn().truncate());
}

TEST(ModelBuilder, RopeDivisorsAreOneSharedVector) {
  ModelConfig config = SmallLlamaConfig();
  TensorIndex index = MadeLlamaIndex(config, "bf16");
  ASSERT_TRUE(index
                  .Add({.name = "rope_freqs.weight",
                        .format = "f32",
                        .shape = {8},
                        .rows = 1,
                        .cols = 8,
                        .parts = {{.source_name = "rope_freqs.weight", .bytes = 32}}})
                  .ok());
  config.rope.scaling = RopeConfig::Divisors{.tensor = "rope_freqs.weight"};
  const auto graph = BuildModelGraph(config, index);
  ASSERT_TRUE(graph.ok()) << graph.status();
  int uses = 0;
  for (const Node& node : graph->nodes()) {
    if (!node.has_rope()) continue;
    EXPECT_EQ(graph->weights(static_cast<int>(node.rope().divisors_weight())).name(),
              "rope_freqs.weight");
    ++uses;
  }
  EXPECT_EQ(uses, 4);
}

TEST(ModelBuilder, UnknownArchitecturesAreRefusedWithTheKnownOnes) {
  ModelConfig config;
  config.architecture = "GPT2LMHeadModel";
  ExpectError(config, TensorIndex(), absl::StatusCode::kUnimplemented,
              "architecture 'GPT2LMHeadModel' is not supported; supported are LlamaForCausalLM, "
              "MistralForCausalLM, Qwen2ForCausalLM, llama, qwen2");
}

TEST(ModelBuilder, MissingSizesAreNamed) {
  ModelConfig config = SmallLlamaConfig();
  config.intermediate_size = 0;
  ExpectError(config, TensorIndex(), absl::StatusCode::kInvalidArgument,
              "intermediate size is missing or 0");
  config = SmallLlamaConfig();
  config.kv_heads = 3;
  ExpectError(config, TensorIndex(), absl::StatusCode::kInvalidArgument, "8 heads for 3 kv heads");
  config = SmallLlamaConfig();
  config.rms_norm_epsilon = 0;
  ExpectError(config, TensorIndex(), absl::StatusCode::kInvalidArgument, "epsilon is 0");
}

TEST(ModelBuilder, WhatLlamaDoesNotHaveIsRefusedAtLoad) {
  ModelConfig config = SmallLlamaConfig();
  const TensorIndex index = MadeLlamaIndex(config, "bf16");
  config.experts = 8;
  ExpectError(config, index, absl::StatusCode::kUnimplemented, "8 experts");
  config = SmallLlamaConfig();
  config.sliding_window = 100;
  ExpectError(config, index, absl::StatusCode::kUnimplemented, "sliding window of 100");
  config.sliding_window = config.context_length;  // never reached
  EXPECT_TRUE(BuildModelGraph(config, index).ok());
  config = SmallLlamaConfig();
  config.activation = "gelu";
  ExpectError(config, index, absl::StatusCode::kUnimplemented, "activation 'gelu'");
}

TEST(ModelBuilder, Qwen2HasABiasOfQKAndVAndOfNothingElse) {
  ModelConfig config = SmallLlamaConfig();
  config.attention_bias = true;  // of the tensors that are made; the family does not ask
  const TensorIndex index = MadeLlamaIndex(config, "bf16");
  for (const char* architecture : {"Qwen2ForCausalLM", "qwen2"}) {
    config.architecture = architecture;
    config.attention_bias = false;
    const auto graph = BuildModelGraph(config, index);
    ASSERT_TRUE(graph.ok()) << graph.status();
    EXPECT_EQ(graph->family(), architecture);
    int with_bias = 0;
    for (const Node& node : graph->nodes()) {
      if (!node.has_linear() || !node.linear().has_bias()) continue;
      ++with_bias;
      EXPECT_TRUE(absl::EndsWith(node.name(), "q_proj") || absl::EndsWith(node.name(), "k_proj") ||
                  absl::EndsWith(node.name(), "v_proj"))
          << node.name();
    }
    EXPECT_EQ(with_bias, 6);
    ExpectError(config, MadeLlamaIndex(SmallLlamaConfig(), "bf16"),
                absl::StatusCode::kInvalidArgument,
                "'model.layers.0.self_attn.q_proj.bias' is missing");
  }
  ModelConfig with_output_bias = config;
  with_output_bias.attention_bias = with_output_bias.attention_output_bias = true;
  ExpectError(config, MadeLlamaIndex(with_output_bias, "bf16"), absl::StatusCode::kInvalidArgument,
              "o_proj.bias' but its config says no bias");
  config.sliding_window = 100;
  ExpectError(config, index, absl::StatusCode::kUnimplemented, "sliding window of 100");
  config = SmallLlamaConfig();
  config.architecture = "qwen2";
  config.activation = "gelu";
  ExpectError(config, index, absl::StatusCode::kUnimplemented, "activation 'gelu' of a qwen2");
}

TEST(ModelBuilder, MissingTensorsAreNamed) {
  const ModelConfig config = SmallLlamaConfig();
  ExpectError(config, Without(config, kUp), absl::StatusCode::kInvalidArgument,
              absl::StrCat("tensor '", kUp, "' is missing"));
  ExpectError(config, Without(config, "lm_head.weight"), absl::StatusCode::kInvalidArgument,
              "'lm_head.weight' is missing");
}

TEST(ModelBuilder, ShapesMustBeTheConfigs) {
  const ModelConfig config = SmallLlamaConfig();
  TensorInfo wrong = *MadeLlamaIndex(config, "bf16").Find(kUp);
  wrong.shape = {64, 640};
  wrong.rows = 64;
  wrong.cols = 640;
  ExpectError(config, Without(config, kUp, &wrong), absl::StatusCode::kInvalidArgument,
              "has shape [64, 640] but the config wants [320, 128]");
  wrong.shape = {2, 160, 128};
  wrong.rows = 320;
  wrong.cols = 128;
  ExpectError(config, Without(config, kUp, &wrong), absl::StatusCode::kInvalidArgument,
              "has shape [2, 160, 128]");
}

TEST(ModelBuilder, FormatsThatCannotBeLoadedAreNamedWithThoseThatCan) {
  const ModelConfig config = SmallLlamaConfig();
  TensorInfo other = *MadeLlamaIndex(config, "bf16").Find(kUp);
  other.format = "iq4_nl";
  ExpectError(config, Without(config, kUp, &other), absl::StatusCode::kUnimplemented,
              "weight format 'iq4_nl' is not supported; supported are bf16, f16, f32, ");
}

TEST(ModelBuilder, BiasesMustBeWhatTheConfigSays) {
  ModelConfig with_bias = SmallLlamaConfig();
  with_bias.attention_bias = true;
  const TensorIndex index = MadeLlamaIndex(with_bias, "bf16");
  EXPECT_TRUE(BuildModelGraph(with_bias, index).ok());
  ExpectError(SmallLlamaConfig(), index, absl::StatusCode::kInvalidArgument,
              "q_proj.bias' but its config says no bias");
  ExpectError(with_bias, MadeLlamaIndex(SmallLlamaConfig(), "bf16"),
              absl::StatusCode::kInvalidArgument,
              "'model.layers.0.self_attn.q_proj.bias' is missing");
}

}  // namespace
}  // namespace bitshard
