// config.json: old and new names, defaults, and what is refused.
#include "coordinator/checkpoint/hf_config.h"

#include <cmath>
#include <string>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "coordinator/checkpoint/json.h"

namespace bitshard {
namespace {

// A small llama, with `more` members.
std::string Config(const std::string& more) {
  return absl::StrCat(
      R"({"architectures":["LlamaForCausalLM"],"hidden_size":64,"intermediate_size":192,"vocab_size":100,
      "num_hidden_layers":2,"num_attention_heads":4,"rms_norm_eps":1e-6,"max_position_embeddings":512)",
      more.empty() ? "" : ",", more, "}");
}

void ExpectError(const std::string& json, absl::StatusCode code, const std::string& part) {
  const absl::Status status = ParseHfConfig(json, "c").status();
  EXPECT_EQ(status.code(), code) << status << "\n" << json;
  EXPECT_TRUE(absl::StrContains(status.message(), part)) << status << "\nlacks: " << part;
}

ModelConfig Parsed(const std::string& more) {
  const auto config = ParseHfConfig(Config(more), "c");
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : ModelConfig{};
}

TEST(HfConfig, MissingMembersHaveTheirDefaults) {
  const ModelConfig config = Parsed("");
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.rope.theta, 10000);
  EXPECT_EQ(config.rope.rotary_dim, 16);
  EXPECT_EQ(config.activation, "silu");
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_EQ(config.sliding_window, 0);
  EXPECT_FALSE(config.bos_id.has_value());
}

TEST(HfConfig, NullIsTheSameAsMissing) {
  const ModelConfig config = Parsed(
      R"("head_dim":null,"num_key_value_heads":null,"rope_scaling":null,"sliding_window":null,"bos_token_id":null,
         "quantization_config":null)");
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
}

TEST(HfConfig, EosMayBeAListOrANumber) {
  EXPECT_EQ(Parsed(R"("eos_token_id":3)").eos_ids, (std::vector<int32_t>{3}));
  EXPECT_EQ(Parsed(R"("eos_token_id":[3,5])").eos_ids, (std::vector<int32_t>{3, 5}));
  for (const char* ids : {"100", "-1", "1.5", "\"1\"", "[1,[2]]", "[1,100]"}) {
    ExpectError(Config(absl::StrCat("\"eos_token_id\":", ids)), absl::StatusCode::kInvalidArgument,
                "\"eos_token_id\"");
  }
}

TEST(HfConfig, OldAndNewRopeNamesMeanTheSame) {
  const ModelConfig old_names = Parsed(
      R"("rope_theta":500000.0,"rope_scaling":{"type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
         "original_max_position_embeddings":8192})");
  const ModelConfig new_names = Parsed(
      R"("rope_parameters":{"rope_theta":500000.0,"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,
         "high_freq_factor":4.0,"original_max_position_embeddings":8192})");
  for (const ModelConfig& config : {old_names, new_names}) {
    EXPECT_EQ(config.rope.theta, 500000);
    const auto* const llama3 = std::get_if<RopeConfig::Llama3>(&config.rope.scaling);
    ASSERT_NE(llama3, nullptr);
    EXPECT_EQ(llama3->factor, 8);
    EXPECT_EQ(llama3->low_freq_factor, 1);
    EXPECT_EQ(llama3->high_freq_factor, 4);
    EXPECT_EQ(llama3->original_context, 8192);
  }
}

TEST(HfConfig, YarnComputesItsAttentionFactor) {
  const auto factor = [](const std::string& more) {
    const ModelConfig config =
        Parsed(absl::StrCat(R"("rope_scaling":{"rope_type":"yarn","factor":4.0)", more, "}"));
    const auto* const yarn = std::get_if<RopeConfig::Yarn>(&config.rope.scaling);
    EXPECT_NE(yarn, nullptr);
    EXPECT_EQ(yarn->original_context, 512);
    return yarn->attention_factor;
  };
  const double log4 = std::log(4.0);
  EXPECT_NEAR(factor(""), 0.1 * log4 + 1, 1e-12);
  EXPECT_NEAR(factor(R"(,"attention_factor":1.5)"), 1.5, 0);
  EXPECT_NEAR(factor(R"(,"mscale":0.7,"mscale_all_dim":1.0)"), (0.07 * log4 + 1) / (0.1 * log4 + 1),
              1e-12);
}

TEST(HfConfig, LinearAndPartialRotation) {
  const ModelConfig config =
      Parsed(R"("rope_scaling":{"type":"linear","factor":2},"partial_rotary_factor":0.5)");
  EXPECT_EQ(std::get<RopeConfig::Linear>(config.rope.scaling).factor, 2);
  EXPECT_EQ(config.rope.rotary_dim, 8);
  ExpectError(Config(R"("partial_rotary_factor":0.2)"), absl::StatusCode::kInvalidArgument,
              "must be even");
  ExpectError(Config(R"("partial_rotary_factor":2.0)"), absl::StatusCode::kInvalidArgument,
              "at most all");
}

TEST(HfConfig, RopeSettingsThatWeDoNotHaveAreRefusedByName) {
  for (const char* type : {"dynamic", "longrope", "proportional", "mrope", "su"}) {
    ExpectError(
        Config(absl::StrCat(R"("rope_scaling":{"type":")", type, R"(","factor":2})")),
        absl::StatusCode::kUnimplemented,
        absl::StrCat("'", type, "' is not supported; supported are default, linear, llama3, yarn"));
  }
  ExpectError(Config(R"("rope_parameters":{"full_attention":{"rope_theta":1e6}})"),
              absl::StatusCode::kUnimplemented, "'full_attention' layers");
  ExpectError(Config(R"("rope_scaling":{"type":"linear"})"), absl::StatusCode::kInvalidArgument,
              "\"factor\" is missing");
  ExpectError(Config(R"("rope_scaling":{"type":"linear","factor":0})"),
              absl::StatusCode::kInvalidArgument, "\"factor\"");
  ExpectError(
      Config(R"("rope_scaling":{"type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":1,
      "original_max_position_embeddings":9})"),
      absl::StatusCode::kInvalidArgument, "high_freq_factor must be above");
  ExpectError(Config(R"("rope_scaling":[])"), absl::StatusCode::kInvalidArgument, "not an object");
  ExpectError(Config(R"("rope_theta":0)"), absl::StatusCode::kInvalidArgument,
              "rope_theta must be above 1");
}

TEST(HfConfig, AWindowThatNoLayerHasIsNone) {
  const auto window = [](const std::string& architecture, const std::string& more) {
    const auto config =
        ParseHfConfig(absl::StrCat(R"({"architectures":[")", architecture,
                                   R"("],"num_hidden_layers":4,"sliding_window":64)", more, "}"),
                      "c");
    EXPECT_TRUE(config.ok()) << config.status();
    return config->sliding_window;
  };
  EXPECT_EQ(window("MistralForCausalLM", ""), 64);
  EXPECT_EQ(window("MistralForCausalLM", R"(,"use_sliding_window":false)"), 0);
  EXPECT_EQ(window("Qwen2ForCausalLM", ""), 0);
  EXPECT_EQ(window("Qwen2ForCausalLM", R"(,"use_sliding_window":true)"), 64);
  EXPECT_EQ(window("Qwen2ForCausalLM", R"(,"use_sliding_window":true,"max_window_layers":3)"), 64);
  EXPECT_EQ(window("Qwen2ForCausalLM", R"(,"use_sliding_window":true,"max_window_layers":4)"), 0);
  EXPECT_EQ(window("Qwen2ForCausalLM", R"(,"use_sliding_window":true,"max_window_layers":4,
      "layer_types":["full_attention","sliding_attention"])"),
            64);
  EXPECT_EQ(
      window("Qwen2ForCausalLM", R"(,"use_sliding_window":true,"layer_types":["full_attention"])"),
      0);
}

TEST(HfConfig, SizesThatAreNoneAreRefused) {
  for (const char* value : {"-1", "1.0", "1e3", "\"64\"", "[64]", "true", "99999999999999999999"}) {
    std::string json = Config("");
    json.replace(json.find("64"), 2, value);
    ExpectError(json, absl::StatusCode::kInvalidArgument, "\"hidden_size\"");
  }
  ExpectError(Config(R"("head_dim":5000)"), absl::StatusCode::kInvalidArgument,
              "\"head_dim\" is 5000");
  ExpectError(Config(R"("rms_norm_eps":"x")"), absl::StatusCode::kDataLoss, "appears twice");
}

TEST(HfConfig, FilesThatAreNoConfigAreRefused) {
  ExpectError("", absl::StatusCode::kDataLoss, "no valid JSON");
  ExpectError("[]", absl::StatusCode::kInvalidArgument, "not a JSON object");
  ExpectError("{}", absl::StatusCode::kInvalidArgument, "names no architecture");
  ExpectError(R"({"architectures":[]})", absl::StatusCode::kInvalidArgument,
              "names no architecture");
  ExpectError(R"({"architectures":[7]})", absl::StatusCode::kInvalidArgument,
              "names no architecture");
  ExpectError(std::string(5000, '['), absl::StatusCode::kDataLoss, "nested deeper than 64");
  ExpectError(R"({"a":NaN})", absl::StatusCode::kDataLoss, "no valid JSON");
  ExpectError(R"({"a":1e999})", absl::StatusCode::kDataLoss, "no valid JSON");
}

TEST(HfConfig, MultimodalWrappersKeepTheLanguageModelInside) {
  const auto config = ParseHfConfig(
      R"({"architectures":["Wrapped"],"tie_word_embeddings":true,"text_config":{"hidden_size":8,"num_attention_heads":2}})",
      "c");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, "Wrapped");
  EXPECT_EQ(config->hidden_size, 8);
  EXPECT_TRUE(config->tied_embeddings);
}

}  // namespace
}  // namespace bitshard
