// compressed-tensors: what the config declares, and which modules it means.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "coordinator/checkpoint/compressed_tensors.h"

namespace bitshard {
namespace {

using absl::StatusCode;

void ExpectError(const absl::Status& status, StatusCode code, const std::string& part) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), part)) << status << "\nlacks: " << part;
}

std::string Config(const std::string& settings) {
  return absl::StrCat(R"({"quantization_config":)", settings, "}");
}

absl::StatusOr<CompressedTensorsConfig> Parse(const std::string& settings) {
  const auto declaration = FindQuantization(Config(settings), "config.json");
  if (!declaration.ok()) return declaration.status();
  return CompressedTensorsConfig::Parse(declaration->value());
}

// `more`: members beside the groups, each with a comma before it.
std::string Settings(const std::string& groups, const std::string& more = "",
                     const std::string& format = "\"pack-quantized\"") {
  return absl::StrCat(R"({"quant_method":"compressed-tensors","format":)", format,
                      R"(,"config_groups":{)", groups, "}", more, "}");
}

// Weights of 4 bits in groups of 32, but for what `weights` says first.
std::string Group(const std::string& name, const std::string& targets, const std::string& weights,
                  const std::string& more = "") {
  return absl::StrCat("\"", name, "\":{\"targets\":[", targets, "],\"weights\":{", weights, "}",
                      more, "}");
}
constexpr char kInt4[] = R"("type":"int","num_bits":4,"strategy":"group","group_size":32)";

// Bits of the scheme of a module; 0 when it has none.
int BitsOf(const absl::StatusOr<CompressedTensorsConfig>& config, const std::string& module) {
  EXPECT_TRUE(config.ok()) << config.status();
  const auto match = config->Find(module);
  EXPECT_TRUE(match.ok()) << match.status();
  return match->scheme == nullptr ? 0 : match->scheme->bits;
}

TEST(CompressedTensorsConfig, ExactNamesWinOverPatternsAndPatternsOverClasses) {
  const auto weights = [](int bits) {
    return absl::StrCat(R"("num_bits":)", bits, R"(,"strategy":"channel")");
  };
  const auto config = Parse(Settings(
      absl::StrCat(Group("group_2", R"("Linear")", weights(2)), ",",
                   Group("group_10", R"("re:.*mlp.*_proj$","re:yers")", weights(3)), ",",
                   Group("group_1", R"("re:.*up_proj")", weights(4)), ",",
                   Group("group_0", R"("model.layers.1.mlp.up_proj","Embedding")", weights(5)), ",",
                   Group("last", R"("model.layers.1.mlp.up_proj")", weights(6)))));
  EXPECT_EQ(BitsOf(config, "model.layers.0.self_attn.q_proj"), 2);  // its class
  EXPECT_EQ(BitsOf(config, "lm_head"), 2);
  EXPECT_EQ(BitsOf(config, "model.layers.0.mlp.up_proj"), 3);  // the pattern first in the file
  EXPECT_EQ(BitsOf(config, "model.layers.1.mlp.up_proj"), 5);  // exact, first in the file
  EXPECT_EQ(BitsOf(config, "model.embed_tokens"), 5);
  EXPECT_EQ(BitsOf(config, "model.norm"), 0);
  EXPECT_EQ(BitsOf(config, "model.layers.0.linear_attn.conv1d"), 0);
}

TEST(CompressedTensorsConfig, PatternsMatchAtTheStartAndRunFreeToTheRight) {
  const auto config =
      Parse(Settings(Group("g", R"("re:model\\.layers\\.[0-3]\\.", "re:.*down_proj$")", kInt4),
                     R"(,"ignore":["re:.*layers\\.2\\.","re:q_proj"])"));
  EXPECT_EQ(BitsOf(config, "model.layers.1.mlp.up_proj"), 4);
  EXPECT_EQ(BitsOf(config, "model.layers.9.mlp.up_proj"), 0);
  EXPECT_EQ(BitsOf(config, "model.layers.9.mlp.down_proj"), 4);
  EXPECT_EQ(BitsOf(config, "model.layers.9.mlp.down_proj_2"), 0);
  EXPECT_EQ(BitsOf(config, "model.layers.2.mlp.down_proj"), 0);       // ignored
  EXPECT_EQ(BitsOf(config, "model.layers.1.self_attn.q_proj"), 4);    // "q_proj" is not its start
  EXPECT_EQ(BitsOf(config, "vision.model.layers.1.mlp.up_proj"), 0);  // nor is "model.layers"
}

TEST(CompressedTensorsConfig, PrefixesAndFusedNamesOfExportersAreUnderstood) {
  const auto config = Parse(Settings(
      Group("g", R"("model.layers.0.self_attn.qkv_proj","language_model.layers.1.mlp.gate_up_proj",
                    "re:^layers\\.2\\..*in_proj_qkvz$")",
            kInt4),
      R"(,"ignore":["model.language_model.layers.0.self_attn.v_proj"])"));
  EXPECT_EQ(BitsOf(config, "model.layers.0.self_attn.q_proj"), 4);
  EXPECT_EQ(BitsOf(config, "model.language_model.layers.0.self_attn.k_proj"), 4);
  EXPECT_EQ(BitsOf(config, "model.layers.0.self_attn.v_proj"), 0);
  EXPECT_EQ(BitsOf(config, "model.layers.1.mlp.up_proj"), 4);
  EXPECT_EQ(BitsOf(config, "model.layers.1.mlp.down_proj"), 0);
  EXPECT_EQ(BitsOf(config, "model.language_model.layers.2.linear_attn.in_proj_z"), 4);
  EXPECT_EQ(BitsOf(config, "model.language_model.layers.2.linear_attn.in_proj_b"), 0);
}

TEST(CompressedTensorsConfig, AMixedConfigGivesEachPartItsOwnWidth) {
  const auto config =
      Parse(Settings(absl::StrCat(Group("g0", R"("re:.*mlp.*_proj$")",
                                        R"("num_bits":5,"strategy":"group","group_size":128)"),
                                  ",",
                                  Group("g1", R"("re:.*(self_attn|linear_attn).*proj.*")",
                                        R"("num_bits":6,"strategy":"group","group_size":128)"),
                                  ",",
                                  Group("g2", R"("re:.*embed_tokens$","re:.*lm_head$")",
                                        R"("num_bits":8,"strategy":"channel")")),
                     R"(,"ignore":["re:.*in_proj_[ab]$","re:.*visual.*","re:^mtp.*"])"));
  const std::string layer = "model.language_model.layers.3.";
  EXPECT_EQ(BitsOf(config, layer + "mlp.down_proj"), 5);
  EXPECT_EQ(BitsOf(config, layer + "self_attn.o_proj"), 6);
  EXPECT_EQ(BitsOf(config, layer + "linear_attn.in_proj_qkv"), 6);
  EXPECT_EQ(BitsOf(config, layer + "linear_attn.in_proj_a"), 0);
  EXPECT_EQ(BitsOf(config, "model.language_model.embed_tokens"), 8);
  EXPECT_EQ(BitsOf(config, "lm_head"), 8);
  EXPECT_EQ(BitsOf(config, "model.visual.blocks.0.mlp.down_proj"), 0);
  EXPECT_EQ(BitsOf(config, "mtp.layers.0.mlp.down_proj"), 0);
}

TEST(CompressedTensorsConfig, PresetsAreGroupsByName) {
  const auto preset = [](const std::string& name, const std::string& format = "null") {
    return Parse(Settings(absl::StrCat("\"", name, R"(":["Linear"])"), "", format));
  };
  for (int bits = 2; bits <= 8; ++bits) {
    const auto config = preset(absl::StrCat("W", bits, "A16"));
    EXPECT_EQ(BitsOf(config, "m.q_proj"), bits);
    EXPECT_EQ(config->Find("m.q_proj")->scheme->group_columns, 128);
    EXPECT_TRUE(config->Find("m.q_proj")->scheme->symmetric);
  }
  EXPECT_EQ(BitsOf(preset("w4a16"), "m.q_proj"), 4);
  EXPECT_EQ(BitsOf(preset("W4A8"), "m.q_proj"), 4);
  EXPECT_FALSE(preset("W4A16_ASYM")->Find("m.q_proj")->scheme->symmetric);
  EXPECT_EQ(BitsOf(preset("UNQUANTIZED"), "m.q_proj"), 0);
  for (const auto& [name, format] :
       std::vector<std::pair<std::string, std::string>>{{"W8A8", "int-quantized"},
                                                        {"FP8_BLOCK", "float-quantized"},
                                                        {"NVFP4", "nvfp4-pack-quantized"},
                                                        {"MXFP4A16", "mxfp4-pack-quantized"},
                                                        {"MXFP6A8", "mxfp6-pack-quantized"},
                                                        {"MXFP8", "mxfp8-quantized"}}) {
    ExpectError(
        preset(name).status(), StatusCode::kUnimplemented,
        absl::StrCat("format '", format, "' is not supported; supported are pack-quantized"));
  }
  ExpectError(preset("W8A16", "\"naive-quantized\"").status(), StatusCode::kUnimplemented,
              "'naive-quantized'");
  ExpectError(preset("W9A16").status(), StatusCode::kInvalidArgument, "unknown preset 'W9A16'");
}

TEST(CompressedTensorsConfig, AGroupWithoutStrategyIsReadByItsGroupSize) {
  const auto columns = [](const std::string& weights) {
    const auto config = Parse(Settings(Group("g", R"("Linear")", weights)));
    EXPECT_TRUE(config.ok()) << config.status();
    return config->Find("m.q_proj")->scheme->group_columns;
  };
  EXPECT_EQ(columns(R"("num_bits":4,"group_size":64)"), 64);
  EXPECT_EQ(columns(R"("num_bits":4,"group_size":-1)"), 0);
  EXPECT_EQ(columns(R"("num_bits":4,"group_size":-1,"strategy":"channel")"), 0);
  EXPECT_EQ(columns(R"("num_bits":4,"strategy":"channel","actorder":"weight")"), 0);
  EXPECT_EQ(columns(R"("num_bits":4,"group_size":64,"actorder":"static")"), 64);
}

TEST(CompressedTensorsConfig, TheFormatIsTheGroupsOrTheWholeConfigsOrFollows) {
  const auto status = [](const std::string& weights, const std::string& own,
                         const std::string& whole) {
    return Parse(Settings(Group("g", R"("Linear")", weights, own), "", whole)).status();
  };
  const std::string packed = R"(,"format":"pack-quantized")";
  EXPECT_TRUE(status(kInt4, packed, "\"mixed-precision\"").ok());
  EXPECT_TRUE(status(kInt4, packed, "\"float-quantized\"").ok());
  EXPECT_TRUE(status(kInt4, "", "\"mixed-precision\"").ok());
  EXPECT_TRUE(status(kInt4, "", "null").ok());
  EXPECT_TRUE(status(kInt4, R"(,"input_activations":{"num_bits":8})", "null").ok());
  const auto expect_format = [&](const std::string& weights, const std::string& own,
                                 const std::string& whole, const std::string& format) {
    ExpectError(status(weights, own, whole), StatusCode::kUnimplemented,
                absl::StrCat("compressed-tensors format '", format, "' is not supported"));
  };
  expect_format(kInt4, R"(,"format":"int-quantized")", "\"pack-quantized\"", "int-quantized");
  expect_format(R"("type":"int","num_bits":8,"strategy":"channel")",
                R"(,"input_activations":{"num_bits":8})", "null", "int-quantized");
  const std::string group = R"("strategy":"group","group_size":)";
  expect_format(R"("type":"float","num_bits":4,)" + group + "32", "", "null",
                "mxfp4-pack-quantized");
  expect_format(R"("type":"float","num_bits":6,)" + group + "32", "", "null",
                "mxfp6-pack-quantized");
  expect_format(R"("type":"float","num_bits":8,"scale_dtype":"torch.uint8",)" + group + "32", "",
                "null", "mxfp8-quantized");
  expect_format(R"("type":"float","num_bits":4,"strategy":"tensor_group","group_size":16)", "",
                "\"mixed-precision\"", "nvfp4-pack-quantized");
  expect_format(R"("type":"float","num_bits":8,"strategy":"channel")",
                R"(,"input_activations":{"num_bits":8})", "null", "float-quantized");
  expect_format(R"("type":"float","num_bits":8,"strategy":"channel")", "", "null",
                "naive-quantized");
  for (const char* legacy : {"marlin-24", "sparse-bitmask", "sparse-24-bitmask", "fakequant"})
    expect_format(kInt4, "", absl::StrCat("\"", legacy, "\""), legacy);
}

TEST(CompressedTensorsConfig, WhatCannotBeRunIsRefusedWithTheReason) {
  const auto weights = [](const std::string& w) {
    return Parse(Settings(Group("g", R"("Linear")", w))).status();
  };
  const auto more = [](const std::string& m) {
    return Parse(Settings(Group("g", R"("Linear")", kInt4), "," + m)).status();
  };
  ExpectError(weights(R"("num_bits":9,"strategy":"channel")"), StatusCode::kInvalidArgument,
              "integers of 2 to 8 bits");
  ExpectError(weights(R"("num_bits":1,"strategy":"channel")"), StatusCode::kInvalidArgument,
              "integers of 2 to 8 bits");
  ExpectError(weights(R"("num_bits":4,"strategy":"tensor")"), StatusCode::kUnimplemented,
              "supported are group and channel");
  ExpectError(weights(R"("num_bits":4,"strategy":"odd")"), StatusCode::kInvalidArgument,
              "unknown strategy 'odd'");
  ExpectError(weights(R"("num_bits":4,"strategy":"channel","group_size":32)"),
              StatusCode::kInvalidArgument, "does not go with a group_size");
  ExpectError(weights(R"("num_bits":4,"strategy":"group")"), StatusCode::kInvalidArgument,
              "needs a group_size");
  ExpectError(weights(R"("num_bits":4,"group_size":0)"), StatusCode::kInvalidArgument,
              "a group of 0 columns");
  ExpectError(weights(R"("num_bits":4,"group_size":-2)"), StatusCode::kInvalidArgument,
              "\"group_size\" is -2");
  ExpectError(weights(R"("num_bits":4,"type":"bool")"), StatusCode::kInvalidArgument,
              "unknown type 'bool'");
  ExpectError(weights(R"("num_bits":8,"type":"float","symmetric":false)"),
              StatusCode::kInvalidArgument, "zero points");
  ExpectError(weights(R"("num_bits":4,"strategy":"channel","dynamic":true)"),
              StatusCode::kUnimplemented, "dynamic");
  for (const char* order : {"\"group\"", "\"dynamic\"", "true"}) {
    ExpectError(weights(absl::StrCat(kInt4, R"(,"actorder":)", order)), StatusCode::kUnimplemented,
                "weight_g_idx");
  }
  ExpectError(
      Parse(Settings(Group("g", R"("Linear")", kInt4, R"(,"output_activations":{"num_bits":8})")))
          .status(),
      StatusCode::kUnimplemented, "output activations");
  ExpectError(more(R"("sparsity_config":{"format":"sparse-24-bitmask"})"),
              StatusCode::kUnimplemented, "sparse weights");
  ExpectError(more(R"("sparsity_config":{"targets":["Linear"]})"), StatusCode::kUnimplemented,
              "sparse weights");
  EXPECT_TRUE(more(R"("sparsity_config":{})").ok());
  EXPECT_TRUE(more(R"("sparsity_config":{"format":"dense","targets":[]})").ok());
  const auto transform = [&more](const std::string& location) {
    return more(
        absl::StrCat(R"("transform_config":{"config_groups":{"u":{"type":"hadamard","apply":[
        {"targets":["Linear"],"location":"weight_input"},{"targets":["re:.*q_proj"],"location":")",
                     location, R"("}]}}})"));
  };
  EXPECT_TRUE(transform("weight_output").ok());
  for (const char* location : {"input", "output", "q_attn", "k_cache"}) {
    ExpectError(transform(location), StatusCode::kUnimplemented,
                absl::StrCat("location '", location, "', targets [\"re:.*q_proj\"]"));
  }
  EXPECT_TRUE(more(R"("transform_config":{},"rotation_config":null)").ok());
  ExpectError(more(R"("rotation_config":{})"), StatusCode::kUnimplemented, "rotat");
  ExpectError(more(R"("ignore":["re:("])"), StatusCode::kInvalidArgument, "does not compile");
  ExpectError(more(R"("ignore":[1])"), StatusCode::kInvalidArgument, "not a list of strings");
  ExpectError(Parse(R"({"config_groups":[]})").status(), StatusCode::kInvalidArgument,
              "config_groups is no object");
  ExpectError(Parse(R"({"config_groups":{"g":1}})").status(), StatusCode::kInvalidArgument,
              "neither an object nor a list");
}

// Patterns with exponential backtracking end.
TEST(CompressedTensorsConfig, PatternsThatTakeTooLongAreAnError) {
  const auto config = Parse(Settings(Group("g", R"("re:(a+)+$")", kInt4)));
  ASSERT_TRUE(config.ok()) << config.status();
  ExpectError(config->Find(std::string(60, 'a') + "b").status(), StatusCode::kInvalidArgument,
              "matching the pattern 're:(a+)+$'");
}

}  // namespace
}  // namespace bitshard
