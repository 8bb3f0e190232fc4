#include "coordinator/synthetic/synthetic_checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "coordinator/checkpoint/compressed_tensors.h"
#include "coordinator/checkpoint/hf_config.h"
#include "coordinator/checkpoint/input_file.h"
#include "coordinator/checkpoint/json.h"
#include "coordinator/checkpoint/model_digest.h"
#include "coordinator/checkpoint/quantization.h"
#include "coordinator/models/model_builder.h"
#include "coordinator/shard/shard.h"
#include "coordinator/synthetic/shapes.h"
#include "coordinator/text/byte_level.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"

namespace bitshard {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxConfigBytes = 16 << 20;
constexpr int kBytes = 256;  // tokens that the tokenizer has

struct Source {
  std::string name;   // for people
  std::string where;  // for messages
  std::string json;
};

absl::StatusOr<Source> ReadSource(const std::string& config) {
  if (auto json = ConfigOfShape(config)) return Source{config, config, *std::move(json)};
  std::error_code error;
  fs::path path = fs::absolute(config, error).lexically_normal();
  if (error || !PathExists(path.string())) {
    return absl::NotFoundError(
        absl::StrCat("'", config,
                     "' is neither a config.json, nor a folder that has one, nor one "
                     "of the known shapes: ",
                     absl::StrJoin(ShapeNames(), ", ")));
  }
  if (fs::is_directory(path, error)) path /= "config.json";
  ASSIGN_OR_RETURN(std::string json, ReadTextFile(path.string(), kMaxConfigBytes));
  const bool plain = path.filename() == "config.json";
  const fs::path named = plain ? path.parent_path().filename() : path.stem();
  return Source{named.string(), path.string(), std::move(json)};
}

// What the unquantized weights are stored as, and the scales of others.
absl::StatusOr<std::string> DenseFormat(const Source& source) {
  ASSIGN_OR_RETURN(const Json root, ParseJson(source.json, source.where));
  const JsonFields outer(root, source.where);
  const Json* const nested = outer.Find("text_config");
  std::optional<std::string> type;
  for (const Json* object : {&root, nested != nullptr && nested->is_object() ? nested : &root}) {
    for (const char* key : {"dtype", "torch_dtype"}) {
      if (type) continue;
      ASSIGN_OR_RETURN(type, JsonFields(*object, source.where).String(key));
    }
  }
  if (!type || *type == "bfloat16") return "bf16";
  if (*type == "float16") return "f16";
  if (*type == "float32") return "f32";
  return absl::UnimplementedError(
      absl::StrCat(source.where, ": weights of type '", *type,
                   "' cannot be made; bfloat16, float16 and float32 can"));
}

QuantizationDeclaration DeclarationOf(const SyntheticModel& model) {
  Json weights = {{"num_bits", static_cast<unsigned>(model.bits)},
                  {"type", "int"},
                  {"symmetric", model.symmetric},
                  {"strategy", model.group == 0 ? "channel" : "group"}};
  if (model.group != 0) weights["group_size"] = model.group;
  const Json group = {{"targets", Json::array({"Linear"})}, {"weights", weights}};
  return {.method = "compressed-tensors",
          .settings = {{"format", "pack-quantized"},
                       {"ignore", Json::array({"lm_head"})},
                       {"config_groups", {{"group_0", group}}}},
          .where = model.Describe(),
          .groups = {"group_0"}};
}

// Null: nothing is quantized.
absl::StatusOr<std::optional<CompressedTensorsConfig>> Quantization(const SyntheticModel& model,
                                                                    const Source& source) {
  std::optional<QuantizationDeclaration> declared;
  if (model.quantizes()) {
    declared = DeclarationOf(model);
  } else if (model.bits == 0 && model.format.empty()) {
    ASSIGN_OR_RETURN(declared, FindQuantization(source.json, source.where));
  }
  if (!declared) return std::nullopt;
  if (declared->method != "compressed-tensors") {
    return absl::UnimplementedError(absl::StrCat(
        declared->where, ": weights of quant_method '", declared->method,
        "' cannot be made; those of compressed-tensors can, and bits=2 to 8 or format= "
        "makes others whatever the config says"));
  }
  ASSIGN_OR_RETURN(CompressedTensorsConfig config, CompressedTensorsConfig::Parse(*declared));
  return config;
}

// The weights of a model as its family asks for them.
class Inventor {
 public:
  Inventor(const Source& source, std::string dense,
           const std::optional<CompressedTensorsConfig>& quantization, const SyntheticModel& model)
      : dense_(std::move(dense)), quantization_(quantization), layers_(model.format) {
    index_.AddFile({absl::StrCat(source.where, " (synthetic weights, seed ", model.seed, ")"), 0});
    index_.set_synthetic_seed(model.seed);
  }

  absl::StatusOr<internal::ModelGraph> Build(const ModelConfig& config) {
    return BuildModelGraph(config, index_,
                           [this](const std::string& name, uint64_t rows, uint64_t cols,
                                  bool is_vector) { return Add(name, rows, cols, is_vector); });
  }
  TensorIndex Take() && { return std::move(index_); }

 private:
  absl::StatusOr<std::string> FormatOf(const std::string& name) const {
    if (!layers_.empty())
      return name == "model.embed_tokens.weight" || name == "lm_head.weight" ? dense_ : layers_;
    constexpr absl::string_view kWeight = ".weight";
    if (!quantization_ || !absl::EndsWith(name, kWeight)) return dense_;
    ASSIGN_OR_RETURN(const CompressedTensorsConfig::Match match,
                     quantization_->Find(name.substr(0, name.size() - kWeight.size())));
    if (match.scheme == nullptr) return dense_;
    const CompressedTensorsScheme& scheme = *match.scheme;
    return absl::StrCat(
        "ct_int", scheme.bits,
        scheme.group_columns == 0 ? " channel" : absl::StrCat(" group=", scheme.group_columns),
        " scale=", dense_, scheme.symmetric ? " sym" : " asym",
        32 % scheme.bits != 0 ? " dense" : "");
  }

  absl::Status Add(const std::string& name, uint64_t rows, uint64_t cols, bool is_vector) {
    std::string format_name = dense_;
    if (!is_vector) {
      ASSIGN_OR_RETURN(format_name, FormatOf(name));
    }
    ASSIGN_OR_RETURN(const WeightFormat* const format, GetFormat(format_name));
    TensorInfo tensor;
    tensor.name = name;
    tensor.format = format_name;
    tensor.rows = rows;
    tensor.cols = cols;
    if (!is_vector) tensor.shape.push_back(rows);
    tensor.shape.push_back(cols);
    for (size_t part = 0; part < format->part_count(); ++part) {
      const absl::StatusOr<PartShape> shape = format->ShapeOfPart(part, rows, cols);
      if (!shape.ok()) {
        return absl::Status(shape.status().code(), absl::StrCat(name, " [", rows, ", ", cols,
                                                                "]: ", shape.status().message()));
      }
      const std::optional<uint64_t> bytes = CheckedMul(shape->rows, shape->row_bytes);
      const std::optional<uint64_t> end = bytes ? CheckedAdd(offset_, *bytes) : std::nullopt;
      if (!end) return absl::InvalidArgumentError(absl::StrCat(name, " is too large"));
      tensor.parts.push_back({name, 0, offset_, *bytes});
      offset_ = *end;
    }
    return index_.Add(std::move(tensor));
  }

  const std::string dense_;
  const std::optional<CompressedTensorsConfig>& quantization_;
  const std::string layers_;  // the format of their matrices; empty: quantization_ says
  TensorIndex index_;
  uint64_t offset_ = 0;  // of the file that there is not
};

// The config of a model that has of every layer what the rank would have. The cut is that of the
// workers (coordinator/shard).
absl::Status TakeShare(const internal::ModelGraph& graph, const TensorIndex& index,
                       const SyntheticModel& model, ModelConfig& config) {
  ASSIGN_OR_RETURN(const std::vector<internal::RankPlan> plans,
                   ShardModel(graph, index, std::vector<double>(model.shards, 1.0)));
  const internal::ModelGraph& rank = plans[model.shard].graph();
  std::optional<std::pair<uint32_t, uint32_t>> heads;
  std::optional<uint64_t> columns;
  for (const internal::Node& node : rank.nodes()) {
    if (node.has_attention()) {
      const std::pair<uint32_t, uint32_t> own(node.attention().q_heads(),
                                              node.attention().kv_heads());
      if (heads && *heads != own) {
        return absl::UnimplementedError(
            "layers are cut at different heads; a share of such a model cannot stand alone");
      }
      heads = own;
    } else if (node.has_gated_act()) {
      const uint64_t own = rank.values(static_cast<int>(node.outputs(0))).width();
      if (columns && *columns != own) {
        return absl::UnimplementedError(
            "layers are cut at different columns; a share of such a model cannot stand alone");
      }
      columns = own;
    } else if (node.has_lm_head()) {
      config.vocab_size = rank.weights(static_cast<int>(node.lm_head().weight())).rows();
    }
  }
  if (!heads || !columns || *columns == 0 || heads->second == 0 ||
      heads->first % heads->second != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", model.shard, " of ", model.shards, " has no whole heads with their KV heads (",
        heads ? heads->first : 0, " for ", heads ? heads->second : 0,
        ") or no columns of the MLP: such a share cannot stand alone; take another number of "
        "ranks"));
  }
  config.heads = heads->first;
  config.kv_heads = heads->second;
  config.intermediate_size = *columns;
  return absl::OkStatus();
}

std::string ByteTokenizer() {
  Json vocabulary = Json::object();
  for (int byte = 0; byte < kBytes; ++byte)
    vocabulary[std::string(ByteLevelChar(static_cast<unsigned char>(byte)))] = byte;
  const Json tokenizer = {
      {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}}},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
      {"decoder", {{"type", "ByteLevel"}}}};
  return tokenizer.dump();
}

void ForgetTokensBeyond(uint64_t vocabulary, ModelConfig& config) {
  const auto beyond = [vocabulary](int32_t id) { return static_cast<uint64_t>(id) >= vocabulary; };
  config.eos_ids.erase(std::remove_if(config.eos_ids.begin(), config.eos_ids.end(), beyond),
                       config.eos_ids.end());
  if (config.bos_id && beyond(*config.bos_id)) config.bos_id.reset();
}

}  // namespace

absl::StatusOr<Checkpoint> OpenSyntheticModel(const SyntheticModel& model) {
  RETURN_IF_ERROR(CheckSyntheticModel(model));
  ASSIGN_OR_RETURN(const Source source, ReadSource(model.config));
  const auto named = [&source](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(source.where, ": ", status.message()));
  };
  Checkpoint checkpoint;
  checkpoint.path = Spelled(model);
  checkpoint.name = absl::StrCat("synthetic-", source.name);
  ModelConfig& config = checkpoint.config;
  ASSIGN_OR_RETURN(config, ParseHfConfig(source.json, source.where));
  ASSIGN_OR_RETURN(const auto quantization, Quantization(model, source));
  ASSIGN_OR_RETURN(const std::string dense, DenseFormat(source));

  Inventor whole(source, dense, quantization, model);
  absl::StatusOr<internal::ModelGraph> graph = whole.Build(config);
  if (!graph.ok()) return named(graph.status());
  checkpoint.index = std::move(whole).Take();
  if (model.shards > 1) {
    const absl::Status taken = TakeShare(*graph, checkpoint.index, model, config);
    if (!taken.ok()) return named(taken);
    Inventor share(source, dense, quantization, model);
    graph = share.Build(config);
    if (!graph.ok()) return named(graph.status());
    checkpoint.index = std::move(share).Take();
  }
  if (config.vocab_size < kBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(source.where, ": a vocabulary of ", config.vocab_size,
                     " tokens; with synthetic weights it must have ", kBytes, " or more"));
  }
  ForgetTokensBeyond(config.vocab_size, config);
  checkpoint.eos_ids = config.eos_ids;
  std::sort(checkpoint.eos_ids.begin(), checkpoint.eos_ids.end());
  checkpoint.tokenizer = HfTokenizerFiles{ByteTokenizer(), ""};
  checkpoint.index.set_model_digest(IndexDigest(config, checkpoint.index));
  return checkpoint;
}

absl::StatusOr<Checkpoint> OpenModel(const std::string& model) {
  if (!IsSyntheticModel(model)) return OpenCheckpoint(model);
  ASSIGN_OR_RETURN(const SyntheticModel synthetic, ParseSyntheticModel(model));
  return OpenSyntheticModel(synthetic);
}

}  // namespace bitshard
