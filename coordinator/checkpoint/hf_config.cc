#include "coordinator/checkpoint/hf_config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "coordinator/checkpoint/config_limits.h"
#include "coordinator/checkpoint/json.h"
#include "coordinator/checkpoint/token_ids.h"
#include "kernels/base/math.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

absl::StatusOr<double> PositiveNumber(const JsonFields& fields, const char* key) {
  ASSIGN_OR_RETURN(const std::optional<double> value, fields.Number(key));
  if (value && *value > 0) return *value;
  return absl::InvalidArgumentError(
      absl::StrCat(fields.where(), ": \"", key, "\" is missing or not above 0"));
}

// yarn: a scale of cos and sin that makes up for the flatter attention over long contexts.
double YarnMscale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * Log(factor) + 1;
}

absl::StatusOr<RopeConfig::Yarn> ParseYarn(const JsonFields& rope, uint64_t context_length) {
  RopeConfig::Yarn yarn;
  ASSIGN_OR_RETURN(yarn.factor, PositiveNumber(rope, "factor"));
  ASSIGN_OR_RETURN(const auto original, rope.Number("original_max_position_embeddings"));
  yarn.original_context = original.value_or(static_cast<double>(context_length));
  if (!(yarn.original_context > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(rope.where(), ": yarn needs original_max_position_embeddings"));
  }
  ASSIGN_OR_RETURN(const auto beta_fast, rope.Number("beta_fast"));
  ASSIGN_OR_RETURN(const auto beta_slow, rope.Number("beta_slow"));
  ASSIGN_OR_RETURN(const auto truncate, rope.Bool("truncate"));
  yarn.beta_fast = beta_fast.value_or(32);
  yarn.beta_slow = beta_slow.value_or(1);
  yarn.truncate = truncate.value_or(true);
  if (!(yarn.beta_fast > 0) || !(yarn.beta_slow > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(rope.where(), ": yarn's beta_fast and beta_slow must be above 0"));
  }
  ASSIGN_OR_RETURN(const auto attention_factor, rope.Number("attention_factor"));
  ASSIGN_OR_RETURN(const auto mscale, rope.Number("mscale"));
  ASSIGN_OR_RETURN(const auto mscale_all_dim, rope.Number("mscale_all_dim"));
  if (attention_factor) {
    yarn.attention_factor = *attention_factor;
  } else if (mscale.value_or(0) != 0 && mscale_all_dim.value_or(0) != 0) {
    yarn.attention_factor =
        YarnMscale(yarn.factor, *mscale) / YarnMscale(yarn.factor, *mscale_all_dim);
  } else {
    yarn.attention_factor = YarnMscale(yarn.factor, 1);
  }
  return yarn;
}

absl::Status ParseRopeScaling(const JsonFields& rope, uint64_t context_length, RopeConfig& out) {
  ASSIGN_OR_RETURN(std::optional<std::string> type, rope.String("rope_type"));
  if (!type) {
    ASSIGN_OR_RETURN(type, rope.String("type"));
  }
  if (!type || *type == "default") return absl::OkStatus();
  if (*type == "linear") {
    ASSIGN_OR_RETURN(const double factor, PositiveNumber(rope, "factor"));
    out.scaling = RopeConfig::Linear{.factor = factor};
    return absl::OkStatus();
  }
  if (*type == "llama3") {
    RopeConfig::Llama3 llama3;
    ASSIGN_OR_RETURN(llama3.factor, PositiveNumber(rope, "factor"));
    ASSIGN_OR_RETURN(llama3.low_freq_factor, PositiveNumber(rope, "low_freq_factor"));
    ASSIGN_OR_RETURN(llama3.high_freq_factor, PositiveNumber(rope, "high_freq_factor"));
    ASSIGN_OR_RETURN(llama3.original_context,
                     PositiveNumber(rope, "original_max_position_embeddings"));
    if (llama3.high_freq_factor <= llama3.low_freq_factor) {
      return absl::InvalidArgumentError(
          absl::StrCat(rope.where(), ": high_freq_factor must be above low_freq_factor"));
    }
    out.scaling = llama3;
    return absl::OkStatus();
  }
  if (*type == "yarn") {
    ASSIGN_OR_RETURN(out.scaling, ParseYarn(rope, context_length));
    return absl::OkStatus();
  }
  return absl::UnimplementedError(
      absl::StrCat(rope.where(), ": rope type '", *type,
                   "' is not supported; supported are default, linear, llama3, yarn"));
}

// New files: everything in rope_parameters. Old ones: rope_theta beside a rope_scaling that may be
// null.
absl::StatusOr<RopeConfig> ParseRope(const JsonFields& config, uint64_t head_dim,
                                     uint64_t context_length) {
  RopeConfig rope;
  const Json* parameters = config.Find("rope_parameters");
  if (parameters == nullptr) parameters = config.Find("rope_scaling");
  std::optional<double> theta, partial;
  if (parameters != nullptr) {
    if (!parameters->is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat(config.where(), ": the rope settings are not an object"));
    }
    for (const auto& [key, value] : parameters->items()) {
      if (value.is_object()) {
        return absl::UnimplementedError(absl::StrCat(config.where(),
                                                     ": rope settings of their own for '", key,
                                                     "' layers are not supported"));
      }
    }
    const JsonFields fields(*parameters, absl::StrCat(config.where(), ": rope settings"));
    ASSIGN_OR_RETURN(theta, fields.Number("rope_theta"));
    ASSIGN_OR_RETURN(partial, fields.Number("partial_rotary_factor"));
    RETURN_IF_ERROR(ParseRopeScaling(fields, context_length, rope));
  }
  if (!theta) {
    ASSIGN_OR_RETURN(theta, config.Number("rope_theta"));
  }
  if (!partial) {
    ASSIGN_OR_RETURN(partial, config.Number("partial_rotary_factor"));
  }
  rope.theta = theta.value_or(10000);
  if (!(rope.theta > 1))
    return absl::InvalidArgumentError(absl::StrCat(config.where(), ": rope_theta must be above 1"));
  const double rotary = static_cast<double>(head_dim) * partial.value_or(1);
  if (!(rotary >= 0) || rotary > static_cast<double>(head_dim) || std::fmod(rotary, 2) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(config.where(), ": ", rotary, " of the ", head_dim,
                     " head dimensions are to be rotated; must be even, at most all"));
  }
  rope.rotary_dim = static_cast<uint32_t>(rotary);
  return rope;
}

// Whether any layer has the window. Configs name one that no layer uses: Qwen2's is off unless
// "use_sliding_window" says otherwise, and then the first max_window_layers layers go without.
absl::StatusOr<bool> HasSlidingLayers(const JsonFields& fields, const ModelConfig& config) {
  const bool is_qwen2 = absl::StartsWith(config.architecture, "Qwen2");
  ASSIGN_OR_RETURN(const auto use_window, fields.Bool("use_sliding_window"));
  if (!use_window.value_or(!is_qwen2)) return false;
  const Json* const types = fields.Find("layer_types");
  if (types != nullptr && types->is_array()) {
    return !std::all_of(types->begin(), types->end(),
                        [](const Json& type) { return type == "full_attention"; });
  }
  ASSIGN_OR_RETURN(const auto full_layers, fields.Unsigned("max_window_layers", UINT32_MAX));
  return !is_qwen2 || full_layers.value_or(0) < config.layers;
}

absl::StatusOr<std::string> Architecture(const JsonFields& root) {
  const Json* const list = root.Find("architectures");
  if (list == nullptr || !list->is_array() || list->empty() || !list->front().is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat(root.where(), " names no architecture (\"architectures\": [\"...\"])"));
  }
  return list->front().get<std::string>();
}

}  // namespace

absl::StatusOr<ModelConfig> ParseHfConfig(std::string_view json, const std::string& where) {
  ASSIGN_OR_RETURN(const Json root, ParseJson(json, where));
  if (!root.is_object())
    return absl::InvalidArgumentError(absl::StrCat(where, " is not a JSON object"));
  const JsonFields outer(root, where);
  ModelConfig config;
  ASSIGN_OR_RETURN(config.architecture, Architecture(outer));

  // Multimodal wrappers keep the language model's settings one level down.
  const Json* const nested = outer.Find("text_config");
  const bool is_wrapper = nested != nullptr && nested->is_object();
  const JsonFields fields(is_wrapper ? *nested : root,
                          is_wrapper ? absl::StrCat(where, ": text_config") : where);

  const auto read = [&fields](const char* key, uint64_t max, auto& out) -> absl::Status {
    ASSIGN_OR_RETURN(const auto value, fields.Unsigned(key, max));
    if (value) out = static_cast<std::remove_reference_t<decltype(out)>>(*value);
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(read("hidden_size", kMaxHiddenSize, config.hidden_size));
  RETURN_IF_ERROR(read("intermediate_size", kMaxIntermediateSize, config.intermediate_size));
  RETURN_IF_ERROR(read("vocab_size", kMaxVocabSize, config.vocab_size));
  RETURN_IF_ERROR(read("max_position_embeddings", kMaxContextLength, config.context_length));
  RETURN_IF_ERROR(read("num_hidden_layers", kMaxLayers, config.layers));
  RETURN_IF_ERROR(read("num_attention_heads", kMaxHeads, config.heads));
  config.kv_heads = config.heads;
  RETURN_IF_ERROR(read("num_key_value_heads", kMaxHeads, config.kv_heads));
  if (config.heads > 0) config.head_dim = static_cast<uint32_t>(config.hidden_size / config.heads);
  RETURN_IF_ERROR(read("head_dim", kMaxHeadDim, config.head_dim));
  if (config.head_dim > kMaxHeadDim) {
    return absl::InvalidArgumentError(
        absl::StrCat(fields.where(), ": heads of ", config.head_dim, " are too wide"));
  }
  RETURN_IF_ERROR(read("sliding_window", kMaxContextLength, config.sliding_window));
  ASSIGN_OR_RETURN(const bool slides, HasSlidingLayers(fields, config));
  if (!slides) config.sliding_window = 0;

  ASSIGN_OR_RETURN(const auto epsilon, fields.Number("rms_norm_eps"));
  config.rms_norm_epsilon = epsilon.value_or(0);
  ASSIGN_OR_RETURN(const auto activation, fields.String("hidden_act"));
  config.activation = activation.value_or("silu");
  ASSIGN_OR_RETURN(auto tied, fields.Bool("tie_word_embeddings"));
  if (!tied) {
    ASSIGN_OR_RETURN(tied, outer.Bool("tie_word_embeddings"));
  }
  config.tied_embeddings = tied.value_or(false);
  ASSIGN_OR_RETURN(const auto attention_bias, fields.Bool("attention_bias"));
  config.attention_bias = config.attention_output_bias = attention_bias.value_or(false);
  ASSIGN_OR_RETURN(const auto mlp_bias, fields.Bool("mlp_bias"));
  config.mlp_bias = mlp_bias.value_or(false);
  ASSIGN_OR_RETURN(config.rope, ParseRope(fields, config.head_dim, config.context_length));

  ASSIGN_OR_RETURN(config.eos_ids, TokenIds(fields, "eos_token_id", config.vocab_size));
  ASSIGN_OR_RETURN(const std::vector<int32_t> bos,
                   TokenIds(fields, "bos_token_id", config.vocab_size));
  if (!bos.empty()) config.bos_id = bos.front();
  return config;
}

}  // namespace bitshard
