#include "coordinator/checkpoint/gguf_config.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/strings/str_cat.h"

#include "coordinator/checkpoint/config_limits.h"
#include "coordinator/checkpoint/gguf_names.h"
#include "kernels/base/math.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

constexpr int32_t kControlToken = 3;

// The keys of one architecture: "llama.block_count".
class ArchitectureKeys {
 public:
  ArchitectureKeys(const GgufMetadata& metadata, std::string architecture)
      : metadata_(metadata), architecture_(std::move(architecture)) {}

  std::string Key(std::string_view name) const {
    return absl::StrCat(architecture_, ".", std::string(name));
  }

  // Leaves `out` as it is when the key is missing.
  template <typename T>
  absl::Status Read(std::string_view name, uint64_t max, T& out) const {
    ASSIGN_OR_RETURN(const auto value, metadata_.UniformUnsigned(Key(name), max));
    if (value) out = static_cast<T>(*value);
    return absl::OkStatus();
  }
  absl::Status Read(std::string_view name, double& out) const {
    ASSIGN_OR_RETURN(const auto value, metadata_.Number(Key(name)));
    if (value) out = *value;
    return absl::OkStatus();
  }

 private:
  const GgufMetadata& metadata_;
  const std::string architecture_;
};

absl::Status ReadRopeScaling(const GgufMetadata& metadata, const ArchitectureKeys& keys,
                             const TensorIndex& index, const ModelConfig& config,
                             RopeConfig& rope) {
  ASSIGN_OR_RETURN(const auto type, metadata.String(keys.Key("rope.scaling.type")));
  double factor = 0;
  RETURN_IF_ERROR(
      keys.Read("rope.scale_linear", factor));  // the key of files from before rope.scaling
  const bool old_linear = !type && factor != 0 && factor != 1;
  RETURN_IF_ERROR(keys.Read("rope.scaling.factor", factor));
  const bool is_linear = old_linear || type == "linear", is_yarn = type == "yarn";
  if (type && !is_linear && !is_yarn && *type != "none") {
    return absl::UnimplementedError(
        absl::StrCat(metadata.where(), ": rope scaling '", *type,
                     "' is not supported; supported are none, linear, yarn, rope_freqs"));
  }
  if ((is_linear || is_yarn) && !(factor > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(metadata.where(), ": rope scaling without a factor above 0"));
  }
  if (is_linear) rope.scaling = RopeConfig::Linear{.factor = factor};
  if (is_yarn) {
    RopeConfig::Yarn yarn{.factor = factor,
                          .original_context = static_cast<double>(config.context_length)};
    double attention_factor = 1;
    RETURN_IF_ERROR(keys.Read("rope.scaling.original_context_length", yarn.original_context));
    RETURN_IF_ERROR(keys.Read("rope.scaling.attn_factor", attention_factor));
    RETURN_IF_ERROR(keys.Read("rope.scaling.yarn_beta_fast", yarn.beta_fast));
    RETURN_IF_ERROR(keys.Read("rope.scaling.yarn_beta_slow", yarn.beta_slow));
    if (!(yarn.original_context > 0) || !(yarn.beta_fast > 0) || !(yarn.beta_slow > 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat(metadata.where(), ": yarn settings must be above 0"));
    }
    yarn.attention_factor = attention_factor * (factor <= 1 ? 1 : 0.1 * Log(factor) + 1);
    rope.scaling = yarn;
  }
  if (index.Find(kGgufRopeDivisors) == nullptr) return absl::OkStatus();
  if (is_linear || is_yarn) {
    return absl::UnimplementedError(absl::StrCat(metadata.where(), ": ", kGgufRopeDivisors,
                                                 " together with rope scaling '",
                                                 type.value_or("linear"), "'"));
  }
  rope.scaling = RopeConfig::Divisors{.tensor = kGgufRopeDivisors};
  return absl::OkStatus();
}

absl::StatusOr<std::optional<int64_t>> ReadId(const GgufMetadata& metadata, std::string_view key,
                                              size_t tokens) {
  ASSIGN_OR_RETURN(const auto id, metadata.Unsigned(key, kMaxVocabSize));
  if (!id) return std::nullopt;
  if (*id >= tokens) {
    return absl::InvalidArgumentError(absl::StrCat(metadata.where(), ": metadata '",
                                                   std::string(key), "' is ", *id,
                                                   " but there are ", tokens, " tokens"));
  }
  return static_cast<int64_t>(*id);
}

}  // namespace

absl::StatusOr<ModelConfig> GgufModelConfig(const GgufMetadata& metadata,
                                            const TensorIndex& index) {
  ASSIGN_OR_RETURN(const auto architecture, metadata.String("general.architecture"));
  if (!architecture) {
    return absl::InvalidArgumentError(
        absl::StrCat(metadata.where(), " does not say its general.architecture"));
  }
  ModelConfig config;
  config.architecture = *architecture;
  const ArchitectureKeys keys(metadata, *architecture);
  RETURN_IF_ERROR(keys.Read("embedding_length", kMaxHiddenSize, config.hidden_size));
  RETURN_IF_ERROR(keys.Read("feed_forward_length", kMaxIntermediateSize, config.intermediate_size));
  RETURN_IF_ERROR(keys.Read("context_length", kMaxContextLength, config.context_length));
  RETURN_IF_ERROR(keys.Read("block_count", kMaxLayers, config.layers));
  RETURN_IF_ERROR(keys.Read("attention.head_count", kMaxHeads, config.heads));
  config.kv_heads = config.heads;
  RETURN_IF_ERROR(keys.Read("attention.head_count_kv", kMaxHeads, config.kv_heads));
  RETURN_IF_ERROR(keys.Read("attention.layer_norm_rms_epsilon", config.rms_norm_epsilon));
  RETURN_IF_ERROR(keys.Read("attention.sliding_window", kMaxContextLength, config.sliding_window));
  RETURN_IF_ERROR(keys.Read("expert_count", kMaxHeads, config.experts));

  if (config.heads > 0) config.head_dim = static_cast<uint32_t>(config.hidden_size / config.heads);
  RETURN_IF_ERROR(keys.Read("attention.key_length", kMaxHeadDim, config.head_dim));
  uint32_t value_dim = config.head_dim;
  RETURN_IF_ERROR(keys.Read("attention.value_length", kMaxHeadDim, value_dim));
  if (value_dim != config.head_dim) {
    return absl::UnimplementedError(absl::StrCat(metadata.where(), ": key heads of ",
                                                 config.head_dim, " and value heads of ", value_dim,
                                                 " dimensions"));
  }
  if (config.head_dim > kMaxHeadDim) {
    return absl::InvalidArgumentError(
        absl::StrCat(metadata.where(), ": heads of ", config.head_dim, " are too wide"));
  }

  ASSIGN_OR_RETURN(const std::vector<std::string> tokens,
                   metadata.Strings("tokenizer.ggml.tokens"));
  const TensorInfo* const embedding = index.Find("model.embed_tokens.weight");
  config.vocab_size = tokens.empty() && embedding != nullptr ? embedding->rows : tokens.size();
  RETURN_IF_ERROR(keys.Read("vocab_size", kMaxVocabSize, config.vocab_size));
  if (config.vocab_size < tokens.size() || config.vocab_size > kMaxVocabSize) {
    return absl::InvalidArgumentError(absl::StrCat(metadata.where(), ": a vocabulary of ",
                                                   config.vocab_size, " cannot hold the ",
                                                   tokens.size(), " tokens of the file"));
  }

  RETURN_IF_ERROR(keys.Read("rope.freq_base", config.rope.theta));
  config.rope.rotary_dim = config.head_dim;
  RETURN_IF_ERROR(keys.Read("rope.dimension_count", kMaxHeadDim, config.rope.rotary_dim));
  if (!(config.rope.theta > 1) || config.rope.rotary_dim > config.head_dim ||
      config.rope.rotary_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(metadata.where(), ": cannot rotate ", config.rope.rotary_dim, " of ",
                     config.head_dim, " head dimensions with base ", config.rope.theta));
  }
  // The converter permutes q and k rows of this architecture alone, so that pairs lie side by side.
  if (config.architecture == "llama") config.rope.pairing = RopeConfig::Pairing::kInterleaved;
  RETURN_IF_ERROR(ReadRopeScaling(metadata, keys, index, config, config.rope));

  config.activation = "silu";
  config.tied_embeddings = index.Find("lm_head.weight") == nullptr;
  config.attention_bias = index.Find("model.layers.0.self_attn.q_proj.bias") != nullptr;
  config.attention_output_bias = index.Find("model.layers.0.self_attn.o_proj.bias") != nullptr;
  config.mlp_bias = index.Find("model.layers.0.mlp.up_proj.bias") != nullptr;

  ASSIGN_OR_RETURN(const auto bos,
                   ReadId(metadata, "tokenizer.ggml.bos_token_id", config.vocab_size));
  ASSIGN_OR_RETURN(const auto eos,
                   ReadId(metadata, "tokenizer.ggml.eos_token_id", config.vocab_size));
  if (bos) config.bos_id = static_cast<int32_t>(*bos);
  if (eos) config.eos_ids = {static_cast<int32_t>(*eos)};
  return config;
}

absl::StatusOr<GgufVocab> ReadGgufVocab(const GgufMetadata& metadata) {
  GgufVocab vocab;
  ASSIGN_OR_RETURN(const auto model, metadata.String("tokenizer.ggml.model"));
  ASSIGN_OR_RETURN(const auto pre, metadata.String("tokenizer.ggml.pre"));
  vocab.model = model.value_or("");
  vocab.pre = pre.value_or("");
  ASSIGN_OR_RETURN(vocab.tokens, metadata.Strings("tokenizer.ggml.tokens"));
  ASSIGN_OR_RETURN(vocab.token_types, metadata.Int32s("tokenizer.ggml.token_type"));
  ASSIGN_OR_RETURN(vocab.scores, metadata.Floats("tokenizer.ggml.scores"));
  ASSIGN_OR_RETURN(vocab.merges, metadata.Strings("tokenizer.ggml.merges"));
  const size_t tokens = vocab.tokens.size();
  const auto fits = [tokens](size_t size) { return size == 0 || size == tokens; };
  if (!fits(vocab.token_types.size()) || !fits(vocab.scores.size())) {
    return absl::InvalidArgumentError(absl::StrCat(metadata.where(), ": ", tokens, " tokens but ",
                                                   vocab.token_types.size(), " token types and ",
                                                   vocab.scores.size(), " scores"));
  }
  ASSIGN_OR_RETURN(vocab.bos_id, ReadId(metadata, "tokenizer.ggml.bos_token_id", tokens));
  ASSIGN_OR_RETURN(vocab.eos_id, ReadId(metadata, "tokenizer.ggml.eos_token_id", tokens));
  ASSIGN_OR_RETURN(vocab.eot_id, ReadId(metadata, "tokenizer.ggml.eot_token_id", tokens));
  ASSIGN_OR_RETURN(vocab.eom_id, ReadId(metadata, "tokenizer.ggml.eom_token_id", tokens));
  ASSIGN_OR_RETURN(vocab.unk_id, ReadId(metadata, "tokenizer.ggml.unknown_token_id", tokens));
  ASSIGN_OR_RETURN(vocab.pad_id, ReadId(metadata, "tokenizer.ggml.padding_token_id", tokens));
  ASSIGN_OR_RETURN(vocab.add_bos, metadata.Bool("tokenizer.ggml.add_bos_token"));
  ASSIGN_OR_RETURN(vocab.add_eos, metadata.Bool("tokenizer.ggml.add_eos_token"));
  ASSIGN_OR_RETURN(vocab.add_space_prefix, metadata.Bool("tokenizer.ggml.add_space_prefix"));
  return vocab;
}

std::vector<int32_t> GgufEndIds(const GgufVocab& vocab) {
  constexpr std::array<std::string_view, 7> kEndOfTurn = {
      "<|eot_id|>",    "<|im_end|>", "<|end|>", "<end_of_turn>",
      "<|endoftext|>", "<|eom_id|>", "</s>"};
  std::vector<int32_t> ids;
  for (const auto& id : {vocab.eos_id, vocab.eot_id, vocab.eom_id}) {
    if (id) ids.push_back(static_cast<int32_t>(*id));
  }
  for (size_t id = 0; id < vocab.token_types.size(); ++id) {
    if (vocab.token_types[id] == kControlToken &&
        std::find(kEndOfTurn.begin(), kEndOfTurn.end(), vocab.tokens[id]) != kEndOfTurn.end()) {
      ids.push_back(static_cast<int32_t>(id));
    }
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace bitshard
