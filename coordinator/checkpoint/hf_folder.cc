#include "coordinator/checkpoint/hf_folder.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "coordinator/checkpoint/hf_config.h"
#include "coordinator/checkpoint/input_file.h"
#include "coordinator/checkpoint/json.h"
#include "coordinator/checkpoint/model_digest.h"
#include "coordinator/checkpoint/quantization.h"
#include "coordinator/checkpoint/safetensors.h"
#include "coordinator/checkpoint/token_ids.h"
#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxSideFileBytes = 256ull << 20;
constexpr uint64_t kMaxTemplateBytes = 1 << 20;

// Empty when the file is not there.
absl::StatusOr<std::string> ReadIfThere(const fs::path& path,
                                        uint64_t limit_bytes = kMaxSideFileBytes) {
  if (!PathExists(path.string())) return std::string();
  return ReadTextFile(path.string(), limit_bytes);
}

// A token is written "text" or {"content": "text", ...}.
absl::StatusOr<std::string> TokenText(const JsonFields& fields, const char* key) {
  const Json* const token = fields.Find(key);
  if (token == nullptr) return std::string();
  if (token->is_string()) return token->get<std::string>();
  if (token->is_object()) {
    ASSIGN_OR_RETURN(const auto content,
                     JsonFields(*token, absl::StrCat(fields.where(), ": ", key)).String("content"));
    if (content) return *content;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(fields.where(), ": \"", key, "\" is not the text of a token"));
}

// One template, or a list of named ones of which "default" is meant.
absl::StatusOr<std::string> TemplateIn(const JsonFields& fields) {
  const Json* const source = fields.Find("chat_template");
  if (source == nullptr) return std::string();
  if (source->is_string()) return source->get<std::string>();
  if (source->is_array()) {
    for (const Json& entry : *source) {
      if (!entry.is_object()) continue;
      const JsonFields named(entry, absl::StrCat(fields.where(), ": chat_template"));
      ASSIGN_OR_RETURN(const auto name, named.String("name"));
      ASSIGN_OR_RETURN(const auto text, named.String("template"));
      if (name == "default" && text) return *text;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat(fields.where(),
                   ": \"chat_template\" is neither a text nor a list with one named \"default\""));
}

absl::Status ReadTokenizerConfig(const std::string& text, const std::string& where,
                                 Checkpoint& checkpoint) {
  if (text.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Json json, ParseJson(text, where));
  if (!json.is_object())
    return absl::InvalidArgumentError(absl::StrCat(where, " is not a JSON object"));
  const JsonFields fields(json, where);
  ASSIGN_OR_RETURN(checkpoint.bos_token, TokenText(fields, "bos_token"));
  ASSIGN_OR_RETURN(checkpoint.eos_token, TokenText(fields, "eos_token"));
  ASSIGN_OR_RETURN(checkpoint.chat_template, TemplateIn(fields));
  return absl::OkStatus();
}

// A template file of its own wins over the one in tokenizer_config.json.
absl::Status ReadTemplateFiles(const fs::path& folder, Checkpoint& checkpoint) {
  ASSIGN_OR_RETURN(std::string jinja,
                   ReadIfThere(folder / "chat_template.jinja", kMaxTemplateBytes));
  if (!jinja.empty()) checkpoint.chat_template = std::move(jinja);
  if (checkpoint.chat_template.empty()) {
    const std::string where = (folder / "chat_template.json").string();
    ASSIGN_OR_RETURN(const std::string text, ReadIfThere(where));
    if (text.empty()) return absl::OkStatus();
    ASSIGN_OR_RETURN(const Json json, ParseJson(text, where));
    if (!json.is_object())
      return absl::InvalidArgumentError(absl::StrCat(where, " is not a JSON object"));
    ASSIGN_OR_RETURN(checkpoint.chat_template, TemplateIn(JsonFields(json, where)));
  }
  return absl::OkStatus();
}

absl::Status AddGenerationEosIds(const fs::path& folder, Checkpoint& checkpoint) {
  checkpoint.eos_ids = checkpoint.config.eos_ids;
  const std::string where = (folder / "generation_config.json").string();
  ASSIGN_OR_RETURN(const std::string text, ReadIfThere(where));
  if (!text.empty()) {
    ASSIGN_OR_RETURN(const Json json, ParseJson(text, where));
    if (!json.is_object())
      return absl::InvalidArgumentError(absl::StrCat(where, " is not a JSON object"));
    ASSIGN_OR_RETURN(
        const std::vector<int32_t> more,
        TokenIds(JsonFields(json, where), "eos_token_id", checkpoint.config.vocab_size));
    checkpoint.eos_ids.insert(checkpoint.eos_ids.end(), more.begin(), more.end());
  }
  std::vector<int32_t>& ids = checkpoint.eos_ids;
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return absl::OkStatus();
}

// Quantized tensors without a declaration in config.json: names of the producers' packed forms and
// their own side files.
absl::Status RefuseUndeclaredQuantization(const fs::path& folder, const TensorIndex& index) {
  constexpr std::array<std::string_view, 10> kSuffixes = {
      ".weight_packed", ".qweight", ".weight_scale", ".weight_scale_inv", ".weight_scale_2",
      ".SCB",           ".W_q",     ".absmax",       "_blocks",           ".qzeros"};
  for (const TensorInfo& tensor : index.tensors()) {
    for (const std::string_view suffix : kSuffixes) {
      if (!absl::EndsWith(tensor.name, {suffix.data(), suffix.size()})) continue;
      return absl::UnimplementedError(
          absl::StrCat(folder.string(), ": tensor '", tensor.name,
                       "' belongs to a quantized form, but config.json declares none; supported "
                       "are ",
                       kSupportedQuantization));
    }
  }
  for (const char* file : {"hf_quant_config.json", "quantize_config.json", "quant_config.json"}) {
    if (!PathExists((folder / file).string())) continue;
    return absl::UnimplementedError(absl::StrCat(
        (folder / file).string(), " declares a quantization that is not supported; supported are ",
        kSupportedQuantization));
  }
  return absl::OkStatus();
}

// Quantized, the embedding and the head are two matrices where both are stored, whatever the config
// says of tied ones; where only the head is stored it is the embedding too.
absl::Status UntieWhatIsStored(Checkpoint& checkpoint) {
  constexpr char kEmbedding[] = "model.embed_tokens.weight", kHead[] = "lm_head.weight";
  const TensorInfo* const embedding = checkpoint.index.Find(kEmbedding);
  const TensorInfo* const head = checkpoint.index.Find(kHead);
  if (!checkpoint.config.tied_embeddings || head == nullptr) return absl::OkStatus();
  if (embedding == nullptr) {
    TensorInfo shared = *head;
    shared.name = kEmbedding;
    return checkpoint.index.Add(std::move(shared));
  }
  if (embedding->parts.size() == 1 && head->parts.size() == 1) return absl::OkStatus();
  LogWarning("checkpoint: tied embeddings overruled file={} reason=both_are_stored",
             checkpoint.path);
  checkpoint.config.tied_embeddings = false;
  return absl::OkStatus();
}

bool HasPicklesOnly(const fs::path& folder) {
  bool pickle = false;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string extension = it->path().extension().string();
    if (extension == ".safetensors") return false;
    pickle |=
        extension == ".bin" || extension == ".pt" || extension == ".pth" || extension == ".ckpt";
  }
  return pickle;
}

// The hub's cache keeps a model in models--<owner>--<name>/snapshots/<revision>.
std::string ModelName(const fs::path& folder) {
  const std::string repository = folder.parent_path().parent_path().filename().string();
  if (folder.parent_path().filename() == "snapshots" && absl::StartsWith(repository, "models--")) {
    return repository.substr(repository.rfind("--") + 2);
  }
  return folder.filename().string();
}

}  // namespace

absl::StatusOr<Checkpoint> OpenHfFolder(const std::string& folder_path) {
  const fs::path folder(folder_path);
  Checkpoint checkpoint;
  checkpoint.path = folder_path;
  checkpoint.name = ModelName(folder);
  checkpoint.container = Checkpoint::Container::kHfFolder;

  const std::string config_path = (folder / "config.json").string();
  ASSIGN_OR_RETURN(const std::string config_json, ReadTextFile(config_path, kMaxSideFileBytes));
  ASSIGN_OR_RETURN(checkpoint.config, ParseHfConfig(config_json, config_path));
  if (HasPicklesOnly(folder)) {
    return absl::UnimplementedError(absl::StrCat(folder_path,
                                                 " holds its weights as pickles (.bin, .pt), which "
                                                 "can run code and are never read; convert them to "
                                                 "safetensors"));
  }
  ASSIGN_OR_RETURN(const auto quantization, FindQuantization(config_json, config_path));
  RETURN_IF_ERROR(IndexSafetensorsFolder(folder_path, checkpoint.index));
  if (quantization) {
    ASSIGN_OR_RETURN(checkpoint.index, ApplyQuantization(*quantization, checkpoint.index));
    RETURN_IF_ERROR(UntieWhatIsStored(checkpoint));
  } else {
    RETURN_IF_ERROR(RefuseUndeclaredQuantization(folder, checkpoint.index));
  }

  HfTokenizerFiles tokenizer;
  ASSIGN_OR_RETURN(tokenizer.tokenizer_json, ReadIfThere(folder / "tokenizer.json"));
  ASSIGN_OR_RETURN(tokenizer.tokenizer_config_json, ReadIfThere(folder / "tokenizer_config.json"));
  RETURN_IF_ERROR(ReadTokenizerConfig(tokenizer.tokenizer_config_json,
                                      (folder / "tokenizer_config.json").string(), checkpoint));
  checkpoint.tokenizer = std::move(tokenizer);
  RETURN_IF_ERROR(ReadTemplateFiles(folder, checkpoint));
  RETURN_IF_ERROR(AddGenerationEosIds(folder, checkpoint));
  ASSIGN_OR_RETURN(std::string digest, ModelDigest(checkpoint.config, checkpoint.index));
  checkpoint.index.set_model_digest(std::move(digest));
  return checkpoint;
}

}  // namespace bitshard
