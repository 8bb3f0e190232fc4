// CompressedTensorsConfig: the settings of config.json checked, and the scheme of a module found.
#include <algorithm>
#include <array>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

#include "coordinator/checkpoint/compressed_tensors.h"
#include "coordinator/checkpoint/json.h"
#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

constexpr char kPacked[] = "pack-quantized";
constexpr char kDense[] = "dense";

absl::StatusOr<std::vector<std::string>> Strings(const JsonFields& fields, const char* key) {
  std::vector<std::string> out;
  const Json* const list = fields.Find(key);
  if (list == nullptr) return out;
  const std::string wrong =
      absl::StrCat(fields.where(), ": \"", key, "\" is not a list of strings");
  if (!list->is_array()) return absl::InvalidArgumentError(wrong);
  for (const Json& entry : *list) {
    if (!entry.is_string()) return absl::InvalidArgumentError(wrong);
    out.push_back(entry.get<std::string>());
  }
  return out;
}

absl::Status NotPacked(const std::string& where, const std::string& format) {
  return absl::UnimplementedError(
      absl::StrCat(where, ": compressed-tensors format '", format,
                   "' is not supported; supported are pack-quantized (integers of 2 to 8 bits, "
                   "grouped or by channel) and dense"));
}

bool IsLegacySparse(const std::string& format) {
  return format == "marlin-24" || format == "sparse-bitmask" || format == "sparse-24-bitmask";
}

// What a group says of its weights, before the format is known.
struct WeightArgs {
  std::string type = "int";
  uint64_t bits = 8;
  std::string strategy;
  std::optional<uint64_t> group_columns;  // given and above 0
  bool symmetric = true;
  bool scale_is_u8 = false;
};

absl::StatusOr<WeightArgs> ParseWeightArgs(const JsonFields& weights) {
  const auto invalid = [&weights](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(weights.where(), ": ", what...));
  };
  WeightArgs args;
  ASSIGN_OR_RETURN(const auto type, weights.String("type"));
  args.type = type.value_or("int");
  if (args.type != "int" && args.type != "float") return invalid("unknown type '", args.type, "'");
  ASSIGN_OR_RETURN(const auto bits, weights.Unsigned("num_bits", 64));
  args.bits = bits.value_or(8);
  ASSIGN_OR_RETURN(const auto symmetric, weights.Bool("symmetric"));
  args.symmetric = symmetric.value_or(true);
  if (args.type == "float" && !args.symmetric)
    return invalid("float weights with zero points do not exist");
  const Json* const dynamic = weights.Find("dynamic");
  if (dynamic != nullptr && *dynamic != false)
    return absl::UnimplementedError(
        absl::StrCat(weights.where(), ": weights that are quantized at run time (\"dynamic\")"));

  const Json* const size = weights.Find("group_size");
  bool is_minus_one = false;
  if (size != nullptr) {
    is_minus_one = size->is_number_integer() && *size == -1;
    ASSIGN_OR_RETURN(const auto columns,
                     is_minus_one
                         ? std::optional<uint64_t>()
                         : weights.Unsigned("group_size", std::numeric_limits<int32_t>::max()));
    if (!is_minus_one && columns == 0) return invalid("a group of 0 columns");
    args.group_columns = columns;
  }
  ASSIGN_OR_RETURN(const auto strategy, weights.String("strategy"));
  args.strategy = strategy             ? absl::AsciiStrToLower(*strategy)
                  : args.group_columns ? "group"
                  : is_minus_one       ? "channel"
                                       : "tensor";
  constexpr std::array<std::string_view, 7> kStrategies = {
      "tensor", "channel", "group", "block", "token", "tensor_group", "attn_head"};
  if (std::find(kStrategies.begin(), kStrategies.end(), args.strategy) == kStrategies.end())
    return invalid("unknown strategy '", args.strategy, "'");
  const bool grouped = args.strategy == "group" || args.strategy == "tensor_group";
  if (grouped != args.group_columns.has_value()) {
    return invalid("strategy '", args.strategy, "' ", grouped ? "needs" : "does not go with",
                   " a group_size above 0");
  }
  ASSIGN_OR_RETURN(const auto scale_dtype, weights.String("scale_dtype"));
  args.scale_is_u8 = scale_dtype && absl::StrContains(*scale_dtype, "uint8");

  // Column orders: "weight" and "static" are over when the weights are stored.
  const Json* const order = weights.Find("actorder");
  if (order == nullptr || *order == false) return args;
  const std::string name =
      order->is_string() ? absl::AsciiStrToLower(order->get<std::string>()) : "true";
  if (name == "weight" || name == "static") return args;
  return absl::UnimplementedError(absl::StrCat(
      weights.where(), ": actorder '", name,
      "' spreads a group over any columns (weight_g_idx), which is not supported; supported are "
      "none, weight and static"));
}

// The format of a group that names none, where the config as a whole names none either.
std::string InferFormat(const WeightArgs& w, bool quantizes_input) {
  const uint64_t group = w.group_columns.value_or(0);
  if (w.type == "float" && w.bits == 4 && group == 32) return "mxfp4-pack-quantized";
  if (w.type == "float" && w.bits == 6) return "mxfp6-pack-quantized";
  if (w.type == "float" && w.bits == 8 && group == 32 && w.scale_is_u8) return "mxfp8-quantized";
  if (w.type == "float" && w.bits == 4 && group == 16) return "nvfp4-pack-quantized";
  // Below 8 bits the tensors' names decide; modules without weight_packed are refused there.
  if (w.type == "int" && quantizes_input) return w.bits < 8 ? kPacked : "int-quantized";
  if (w.type == "int" && w.bits >= 1 && w.bits <= 8) return kPacked;
  return w.type == "float" && quantizes_input ? "float-quantized" : "naive-quantized";
}

// A group that is only a preset's name. The formats of those that are not packed integers.
absl::StatusOr<CompressedTensorsScheme> PresetScheme(const std::string& preset,
                                                     const std::string& where) {
  const std::string name = absl::AsciiStrToUpper(preset);
  CompressedTensorsScheme scheme{.group = preset, .format = kPacked, .group_columns = 128};
  if (name == "UNQUANTIZED") {
    scheme.format = kDense;
    return scheme;
  }
  const bool plain = name.size() >= 4 && name[0] == 'W' && name[1] >= '2' && name[1] <= '8';
  const std::string rest = plain ? name.substr(2) : "";
  if (plain) scheme.bits = name[1] - '0';
  if (rest == "A16") return scheme;
  if ((rest == "A8" && scheme.bits <= 7) || (rest == "A4" && scheme.bits <= 4)) {
    LogWarning("checkpoint: activations stay unquantized group={} reason=weight_only_execution",
               preset);
    return scheme;
  }
  if (name == "W4A16_ASYM") {
    scheme.symmetric = false;
    return scheme;
  }
  const std::pair<const char*, const char*> others[] = {{"W8A8", "int-quantized"},
                                                        {"INT8", "int-quantized"},
                                                        {"W4AFP8", "float-quantized"},
                                                        {"FP8", "float-quantized"},
                                                        {"FP8_DYNAMIC", "float-quantized"},
                                                        {"FP8_BLOCK", "float-quantized"},
                                                        {"NVFP4A16", "nvfp4-pack-quantized"},
                                                        {"NVFP4", "nvfp4-pack-quantized"},
                                                        {"MXFP4A16", "mxfp4-pack-quantized"},
                                                        {"MXFP4", "mxfp4-pack-quantized"},
                                                        {"MXFP4XFP8", "mxfp4-pack-quantized"},
                                                        {"MXFP6A16", "mxfp6-pack-quantized"},
                                                        {"MXFP6A8", "mxfp6-pack-quantized"},
                                                        {"MXFP8A16", "mxfp8-quantized"},
                                                        {"MXFP8", "mxfp8-quantized"}};
  for (const auto& [known, format] : others) {
    if (name == known) return NotPacked(absl::StrCat(where, ": preset '", preset, "'"), format);
  }
  return absl::InvalidArgumentError(absl::StrCat(where, ": unknown preset '", preset, "'"));
}

absl::StatusOr<CompressedTensorsScheme> GroupScheme(const std::string& name,
                                                    const JsonFields& group,
                                                    const std::string& global_format) {
  const auto unsupported = [&group](const auto&... what) {
    return absl::UnimplementedError(absl::StrCat(group.where(), ": ", what...));
  };
  ASSIGN_OR_RETURN(const auto own_format, group.String("format"));
  std::string format = own_format.value_or(global_format);
  CompressedTensorsScheme scheme{.group = name, .format = format};
  const Json* const weights = group.Find("weights");
  if (weights == nullptr || format == kDense) {  // activations alone are nothing to load
    scheme.format = kDense;
    return scheme;
  }
  if (!weights->is_object())
    return absl::InvalidArgumentError(absl::StrCat(group.where(), ": \"weights\" is no object"));
  ASSIGN_OR_RETURN(const WeightArgs args,
                   ParseWeightArgs(JsonFields(*weights, absl::StrCat(group.where(), ": weights"))));
  if (group.Find("output_activations") != nullptr)
    return unsupported("quantized output activations are not supported");
  const bool quantizes_input = group.Find("input_activations") != nullptr;
  if (format.empty() || format == "mixed-precision") format = InferFormat(args, quantizes_input);
  if (format != kPacked) return NotPacked(group.where(), format);
  if (args.type != "int" || args.bits < 2 || args.bits > 8) {
    return absl::InvalidArgumentError(absl::StrCat(group.where(), ": ", args.type, " of ",
                                                   args.bits,
                                                   " bits in format pack-quantized, which holds "
                                                   "integers of 2 to 8 bits"));
  }
  if (args.strategy != "group" && args.strategy != "channel") {
    return unsupported("strategy '", args.strategy,
                       "' in format pack-quantized; supported are group and channel");
  }
  if (quantizes_input) {
    LogWarning("checkpoint: activations stay unquantized group={} reason=weight_only_execution",
               name);
  }
  scheme.format = kPacked;
  scheme.bits = static_cast<int>(args.bits);
  scheme.group_columns = args.group_columns.value_or(0);
  scheme.symmetric = args.symmetric;
  return scheme;
}

absl::Status RefuseSparsity(const JsonFields& config) {
  const Json* const sparsity = config.Find("sparsity_config");
  if (sparsity == nullptr) return absl::OkStatus();
  if (!sparsity->is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(config.where(), ": sparsity_config is no object"));
  }
  const JsonFields fields(*sparsity, absl::StrCat(config.where(), ": sparsity_config"));
  ASSIGN_OR_RETURN(const auto format, fields.String("format"));
  ASSIGN_OR_RETURN(const std::vector<std::string> targets, Strings(fields, "targets"));
  if (targets.empty() && format.value_or(kDense) == kDense) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(fields.where(), ": sparse weights (format '",
                                               format.value_or("none"),
                                               "') are not supported; supported are dense ones"));
}

// Transforms of "weight_input" and "weight_output" are in the stored weights; the others would have
// to be computed with every token, and leaving one out gives garbage.
absl::Status RefuseRunTimeTransforms(const JsonFields& config) {
  for (const char* key : {"rotation_config", "rotation"}) {
    if (config.Find(key) == nullptr) continue;
    return absl::UnimplementedError(
        absl::StrCat(config.where(), ": \"", key, "\": rotated models are not supported"));
  }
  const Json* const transforms = config.Find("transform_config");
  if (transforms == nullptr) return absl::OkStatus();
  const std::string where = absl::StrCat(config.where(), ": transform_config");
  const auto invalid = [&where](const char* what) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": ", what));
  };
  if (!transforms->is_object()) return invalid("is no object");
  const Json* const groups = JsonFields(*transforms, where).Find("config_groups");
  if (groups == nullptr) return absl::OkStatus();
  if (!groups->is_object()) return invalid("config_groups is no object");
  for (const auto& [name, group] : groups->items()) {
    const Json* const applied =
        group.is_object() ? JsonFields(group, where).Find("apply") : nullptr;
    if (applied == nullptr || !applied->is_array()) return invalid("a group without \"apply\"");
    for (const Json& entry : *applied) {
      if (!entry.is_object()) return invalid("an entry of \"apply\" is no object");
      const JsonFields fields(entry, absl::StrCat(where, ": ", name));
      ASSIGN_OR_RETURN(const auto location, fields.String("location"));
      if (location == "weight_input" || location == "weight_output") continue;
      const Json* const targets = fields.Find("targets");
      return absl::UnimplementedError(absl::StrCat(
          fields.where(), ": a transform at run time (location '", location.value_or("none"),
          "', targets ",
          targets == nullptr ? "none"
                             : targets->dump(-1, ' ', true, Json::error_handler_t::replace),
          ") is not supported; without it the model's answers are garbage"));
    }
  }
  return absl::OkStatus();
}

// Embeddings are called so in every family ("embed_tokens", "pos_embed"); everything else with a
// matrix that a scheme could mean is a linear layer, the head included.
std::string_view ClassOf(const std::string& module) {
  const std::string last = module.substr(module.rfind('.') + 1);
  if (absl::StrContains(last, "embed")) return "Embedding";
  if (absl::EndsWith(last, "norm") || last == "conv1d") return "";
  return "Linear";
}

}  // namespace

std::vector<std::string> NamesOfModule(const std::string& module) {
  constexpr std::array<const char*, 4> kPrefixes = {
      "model.language_model.", "language_model.model.", "language_model.", "model."};
  constexpr std::array<std::pair<const char*, const char*>, 9> kFused = {
      {{"q_proj", "qkv_proj"},
       {"k_proj", "qkv_proj"},
       {"v_proj", "qkv_proj"},
       {"gate_proj", "gate_up_proj"},
       {"up_proj", "gate_up_proj"},
       {"in_proj_qkv", "in_proj_qkvz"},
       {"in_proj_z", "in_proj_qkvz"},
       {"in_proj_b", "in_proj_ba"},
       {"in_proj_a", "in_proj_ba"}}};
  std::vector<std::string> names = {module};
  const auto add = [&names](std::string name) {
    if (std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(std::move(name));
  };
  const auto add_prefixed = [&add, &kPrefixes](const std::string& name) {
    add(name);
    std::string core = name;
    for (const char* prefix : kPrefixes) {
      if (!absl::StartsWith(name, prefix)) continue;
      core = name.substr(std::string_view(prefix).size());
      break;
    }
    add(core);
    for (const char* prefix : kPrefixes) add(prefix + core);
  };
  add_prefixed(module);
  const size_t last = module.rfind('.') + 1;  // 0 when there is no dot
  for (const auto& [part, fused] : kFused) {
    if (module.substr(last) == part) add_prefixed(module.substr(0, last) + fused);
  }
  return names;
}

absl::Status CompressedTensorsConfig::Matcher::Add(const std::string& text, size_t value,
                                                   const std::string& where) {
  if (!NamePattern::IsRegex(text)) {
    names.try_emplace(text, value);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(NamePattern pattern, NamePattern::Create(text, where));
  patterns.emplace_back(std::move(pattern), value);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<CompressedTensorsConfig::Matcher::Hit>>
CompressedTensorsConfig::Matcher::Find(const std::string& module) const {
  // The module's own name first, then the others that may stand for it.
  const std::vector<std::string> all = NamesOfModule(module);
  const absl::Span<const std::string> own(all.data(), 1);
  const absl::Span<const std::string> others = absl::MakeSpan(all).subspan(1);
  for (const auto& spellings : {own, others}) {
    std::optional<Hit> first;  // in the order of the config
    for (const std::string& name : spellings) {
      const auto found = names.find(name);
      if (found != names.end() && (!first || found->second < first->value))
        first = Hit{found->second, found->first};
    }
    if (first) return first;
  }
  for (const auto& spellings : {own, others}) {
    for (const auto& [pattern, value] : patterns) {
      for (const std::string& name : spellings) {
        ASSIGN_OR_RETURN(const bool matches, pattern.Matches(name));
        if (matches) return Hit{value, pattern.text()};
      }
    }
  }
  const auto of_class = names.find(ClassOf(module));
  if (of_class != names.end()) return Hit{of_class->second, of_class->first};
  return std::nullopt;
}

absl::StatusOr<CompressedTensorsConfig::Match> CompressedTensorsConfig::Find(
    const std::string& module) const {
  ASSIGN_OR_RETURN(const auto ignored, ignored_.Find(module));
  if (ignored) return Match{nullptr, ignored->text};
  ASSIGN_OR_RETURN(const auto hit, targets_.Find(module));
  if (!hit) return Match{};
  const CompressedTensorsScheme& scheme = schemes_[hit->value];
  return Match{scheme.format == kDense ? nullptr : &scheme, hit->text};
}

absl::StatusOr<CompressedTensorsConfig> CompressedTensorsConfig::Parse(
    const QuantizationDeclaration& declaration) {
  const JsonFields fields(declaration.settings, declaration.where);
  CompressedTensorsConfig config;
  config.where_ = declaration.where;
  ASSIGN_OR_RETURN(const auto status, fields.String("quantization_status"));
  config.status_ = absl::AsciiStrToLower(status.value_or("compressed"));
  ASSIGN_OR_RETURN(const auto format, fields.String("format"));
  const std::string global_format = format.value_or("");
  if (IsLegacySparse(global_format) || global_format == "fakequant")
    return NotPacked(fields.where(), global_format);
  RETURN_IF_ERROR(RefuseSparsity(fields));
  RETURN_IF_ERROR(RefuseRunTimeTransforms(fields));
  if (fields.Find("kv_cache_scheme") != nullptr) {
    LogWarning("checkpoint: kv_cache_scheme ignored file={} reason=cache_has_its_own_dtype",
               fields.where());
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> ignored, Strings(fields, "ignore"));
  for (const std::string& text : ignored)
    RETURN_IF_ERROR(config.ignored_.Add(text, 0, absl::StrCat(fields.where(), ": ignore")));

  const Json* const groups = fields.Find("config_groups");
  if (groups != nullptr && !groups->is_object())
    return absl::InvalidArgumentError(absl::StrCat(fields.where(), ": config_groups is no object"));
  for (const std::string& name : declaration.groups) {
    const Json& group = (*groups)[name];
    const std::string where = absl::StrCat(fields.where(), ": config_groups.", name);
    const Json as_list = {{"targets", group}};
    const JsonFields group_fields(group.is_array() ? as_list : group, where);
    if (!group.is_array() && !group.is_object())
      return absl::InvalidArgumentError(where + " is neither an object nor a list of targets");
    ASSIGN_OR_RETURN(const std::vector<std::string> targets, Strings(group_fields, "targets"));
    if (targets.empty()) continue;
    ASSIGN_OR_RETURN(CompressedTensorsScheme scheme,
                     group.is_array() ? PresetScheme(name, where)
                                      : GroupScheme(name, group_fields, global_format));
    const bool global_rules = !global_format.empty() && global_format != "mixed-precision";
    if (group.is_array() && global_rules && scheme.format != kDense) {
      if (global_format != kPacked && global_format != kDense)
        return NotPacked(fields.where(), global_format);
      scheme.format = global_format;
    }
    for (const std::string& target : targets)
      RETURN_IF_ERROR(config.targets_.Add(target, config.schemes_.size(), where));
    config.schemes_.push_back(std::move(scheme));
  }
  return config;
}

}  // namespace bitshard
