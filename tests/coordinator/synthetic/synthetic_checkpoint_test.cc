// Checkpoints that are not there: the same tensors as real ones, the public models' sizes, shares
// as the planner cuts them.
#include "coordinator/synthetic/synthetic_checkpoint.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "coordinator/models/model_builder.h"
#include "coordinator/shard/shard.h"
#include "coordinator/synthetic/shapes.h"
#include "coordinator/text/tokenizer.h"
#include "kernels/formats/format.h"
#include "tests/support/test_paths.h"

namespace bitshard {
namespace {

Checkpoint Open(const std::string& model) {
  absl::StatusOr<Checkpoint> checkpoint = OpenModel(model);
  EXPECT_TRUE(checkpoint.ok()) << model << ": " << checkpoint.status();
  return checkpoint.ok() ? *std::move(checkpoint) : Checkpoint();
}

struct Stored {
  std::string format;
  std::vector<uint64_t> shape;
  uint64_t bytes = 0;
  friend bool operator==(const Stored&, const Stored&) = default;
};

std::map<std::string, Stored> Tensors(const Checkpoint& checkpoint) {
  std::map<std::string, Stored> out;
  for (const TensorInfo& tensor : checkpoint.index.tensors())
    out[tensor.name] = {tensor.format, tensor.shape, tensor.bytes()};
  return out;
}

TEST(SyntheticCheckpoint, HasTheTensorsOfTheRealOne) {
  for (const char* name : {"tiny-llama", "tiny-qwen2", "ct-int5-g32-g128", "ct-int6-channel",
                           "ct-int4-g32-asym", "ct-int4-embed-lmhead-int8"}) {
    const Checkpoint real = Open(GoldenModel(name));
    const std::map<std::string, Stored> wanted = Tensors(real);
    ASSERT_FALSE(wanted.empty());
    for (const std::string& file : {GoldenModel(name), GoldenModel(name) + "/config.json"}) {
      const Checkpoint made = Open("synthetic::" + file);
      EXPECT_EQ(made.name, std::string("synthetic-") + name);
      EXPECT_EQ(made.index.synthetic_seed(), 1u);
      const std::map<std::string, Stored> got = Tensors(made);
      ASSERT_EQ(got.size(), wanted.size()) << name;
      for (const auto& [tensor, stored] : wanted) {
        const auto found = got.find(tensor);
        ASSERT_NE(found, got.end()) << name << ": " << tensor;
        EXPECT_EQ(found->second.format, stored.format) << name << ": " << tensor;
        EXPECT_EQ(found->second.shape, stored.shape) << name << ": " << tensor;
        EXPECT_EQ(found->second.bytes, stored.bytes) << name << ": " << tensor;
      }
    }
  }
}

TEST(SyntheticCheckpoint, OptionsCountBeforeTheConfig) {
  const std::string config = GoldenModel("ct-int5-g32-g128");
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  const auto format = [&](const std::string& options, const std::string& tensor) {
    return Tensors(Open("synthetic:" + options + ":" + config))[tensor].format;
  };
  EXPECT_EQ(format("bits=3,group=64", name), "ct_int3 group=64 scale=bf16 sym dense");
  EXPECT_EQ(format("bits=8,group=0,asym", name), "ct_int8 channel scale=bf16 asym");
  EXPECT_EQ(format("bits=16", name), "bf16");
  EXPECT_EQ(format("bits=3,group=64", "lm_head.weight"), "bf16");
  EXPECT_EQ(format("bits=3,group=64", "model.embed_tokens.weight"), "bf16");
  EXPECT_EQ(format("bits=3,group=64", "model.norm.weight"), "bf16");
}

TEST(SyntheticCheckpoint, EveryFormatMayBeThatOfTheLayers) {
  std::vector<std::string> names = {"ct_int3 group=64 scale=f16 asym padded",
                                    "ct_int8 channel scale=f32 sym"};
  for (const WeightFormat* format : AllFormats()) names.push_back(format->name());
  EXPECT_GE(names.size(), 15u);
  for (const std::string& name : names) {
    const auto tensors = Tensors(Open("synthetic:format=" + name + ":llama-3.2-1b"));
    EXPECT_EQ(tensors.at("model.layers.1.mlp.down_proj.weight").format, name);
    EXPECT_EQ(tensors.at("model.layers.0.self_attn.q_proj.weight").format, name);
    EXPECT_EQ(tensors.at("model.embed_tokens.weight").format, "bf16") << name;
    EXPECT_EQ(tensors.at("model.norm.weight").format, "bf16") << name;
  }
  // The format counts before the config's own.
  const std::string config = GoldenModel("ct-int5-g32-g128");
  EXPECT_EQ(Tensors(Open("synthetic:format=q8_0:" + config))
                .at("model.layers.1.mlp.down_proj.weight")
                .format,
            "q8_0");
}

// As the models' publishers count their parameters.
TEST(SyntheticCheckpoint, ShapesHaveThePublicModelsParameters) {
  const std::map<std::string, uint64_t> parameters = {
      {"smollm2-135m", 134'515'008},     {"qwen2.5-0.5b", 494'032'768},
      {"llama-3.2-1b", 1'235'814'400},   {"qwen2.5-1.5b", 1'543'714'304},
      {"llama-3.2-3b", 3'212'749'824},   {"qwen2.5-7b", 7'615'616'512},
      {"llama-3.1-8b", 8'030'261'248},   {"qwen2.5-32b", 32'763'876'352},
      {"llama-3.1-70b", 70'553'706'496}, {"qwen2.5-72b", 72'706'203'648}};
  ASSERT_EQ(ShapeNames().size(), parameters.size());
  for (const std::string& name : ShapeNames()) {
    uint64_t sum = 0;
    const Checkpoint checkpoint = Open("synthetic::" + name);
    for (const TensorInfo& tensor : checkpoint.index.tensors()) sum += tensor.rows * tensor.cols;
    EXPECT_EQ(sum, parameters.at(name)) << name;
  }
}

// The share of every rank is what the planner gives it of the whole.
TEST(SyntheticCheckpoint, AShareIsTheRanksPartOfEveryTensor) {
  const Checkpoint whole = Open("synthetic:bits=4:llama-3.1-70b");
  const auto graph = BuildModelGraph(whole.config, whole.index);
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (const int ranks : {2, 8, 16}) {
    const auto plans =
        ShardModel(*graph, whole.index, std::vector<double>(static_cast<size_t>(ranks), 1.0));
    ASSERT_TRUE(plans.ok()) << plans.status();
    for (const int rank : {0, ranks - 1}) {
      const Checkpoint share = Open("synthetic:bits=4,shard=" + std::to_string(rank) + "/" +
                                    std::to_string(ranks) + ":llama-3.1-70b");
      const internal::ModelGraph& part = (*plans)[static_cast<size_t>(rank)].graph();
      ASSERT_EQ(static_cast<size_t>(part.weights_size()), share.index.tensors().size());
      for (const internal::Weight& weight : part.weights()) {
        const TensorInfo* const tensor = share.index.Find(weight.name());
        ASSERT_NE(tensor, nullptr) << weight.name();
        EXPECT_EQ(tensor->rows, weight.rows()) << weight.name();
        EXPECT_EQ(tensor->cols, weight.cols()) << weight.name();
      }
      EXPECT_EQ(share.config.head_dim, whole.config.head_dim);
    }
  }
}

TEST(SyntheticCheckpoint, TheDigestKnowsSeedFormatAndShare) {
  const std::string config = GoldenModel("tiny-llama");
  std::map<std::string, std::string> digests;
  for (const char* options :
       {"", "seed=2", "bits=4,group=32", "bits=4,group=32,asym", "bits=4,group=64", "shard=0/2"}) {
    digests[Open(std::string("synthetic:") + options + ":" + config).model_digest()] = options;
  }
  EXPECT_EQ(digests.size(), 6u);
  EXPECT_EQ(Open("synthetic:seed=1:" + config).model_digest(),
            Open("synthetic::" + config).model_digest());
}

TEST(SyntheticCheckpoint, TheTokenizerHasATokenAByte) {
  const Checkpoint checkpoint = Open("synthetic::llama-3.1-8b");
  const auto& files = std::get<HfTokenizerFiles>(checkpoint.tokenizer);
  const auto tokenizer =
      Tokenizer::FromTokenizerJson(files.tokenizer_json, files.tokenizer_config_json);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto ids = (*tokenizer)->Encode("a b\n\xc3\xa9", {});
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(*ids, (std::vector<int32_t>{'a', ' ', 'b', '\n', 0xc3, 0xa9}));
  EXPECT_EQ((*tokenizer)->Decode(*ids, false), "a b\n\xc3\xa9");
  EXPECT_EQ((*tokenizer)->Decode(std::vector<int32_t>{'a', 5000, 'b'}, false), "ab");
}

std::string WriteConfig(const std::string& name, const std::string& text) {
  const char* const folder = std::getenv("TEST_TMPDIR");
  const std::string path = std::string(folder == nullptr ? "/tmp" : folder) + "/" + name;
  std::ofstream(path) << text;
  return path;
}

// Without the closing brace.
std::string Llama(int heads, int kv_heads, int vocabulary) {
  return absl::StrCat(R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 128,
      "intermediate_size": 320, "num_hidden_layers": 1, "head_dim": 32, "rms_norm_eps": 1e-5,
      "max_position_embeddings": 256, "num_attention_heads": )",
                      heads, R"(, "num_key_value_heads": )", kv_heads, R"(, "vocab_size": )",
                      vocabulary);
}

TEST(SyntheticCheckpoint, WhatCannotBeMadeSaysWhy) {
  const std::string llama = Llama(6, 2, 512);
  const std::string good = WriteConfig("good.json", llama + "}");
  EXPECT_TRUE(OpenModel("synthetic::" + good).ok());
  const std::string gptq =
      WriteConfig("gptq.json", llama + R"(, "quantization_config": {"quant_method": "gptq"}})");
  EXPECT_TRUE(OpenModel("synthetic:bits=4,group=32:" + gptq).ok());
  for (const auto& [model, word] : std::vector<std::pair<std::string, std::string>>{
           {":llama-9", "llama-3.1-8b"},
           {":/no/such/config.json", "/no/such/config.json"},
           {":" + WriteConfig("text.json", "no json"), "text.json"},
           {":" + WriteConfig("other.json", R"({"architectures": ["Other"]})"), "Other"},
           {":" + WriteConfig("empty.json", R"({"architectures": ["LlamaForCausalLM"]})"),
            "missing or 0"},
           {":" + WriteConfig("small.json", Llama(6, 2, 200) + "}"), "vocabulary of 200"},
           {":" + WriteConfig("half.json", llama + R"(, "torch_dtype": "float8"})"), "float8"},
           {":" + gptq, "gptq"},
           {"bits=4,group=96:" + good, "group size 96"},
           {"format=q4_k:" + good, "whole blocks of 256"},
           {"format=q9_k:" + good, "'q9_k' is not supported; supported are"},
           {"format=ct_int9 channel scale=bf16 sym:" + good, "is not supported"},
           {"shard=1/3:" + WriteConfig("ten.json", Llama(10, 2, 512) + "}"), "no whole heads"},
           {"shard=0/900:" + good, "900"},
           {"bits=4,group=64,shard=0/2:" + good, "group size 64"}}) {
    const absl::Status status = OpenModel("synthetic:" + model).status();
    EXPECT_FALSE(status.ok()) << model;
    EXPECT_NE(status.message().find(word), std::string::npos) << model << ": " << status;
  }
}

}  // namespace
}  // namespace bitshard
