// Builds a Tokenizer from Hugging Face's tokenizer.json and tokenizer_config.json.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"

#include "coordinator/text/concat.h"
#include "coordinator/text/json_members.h"
#include "coordinator/text/tokenizer.h"
#include "coordinator/text/tokenizer_json_stages.h"
#include "coordinator/text/tokenizer_parts.h"
#include "coordinator/text/utf8.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

// Ids may have gaps (removed or reserved tokens), but no file can make us allocate a table far
// beyond what it lists.
constexpr int64_t kMaxGaps = 65536;

struct AddedEntry {
  AddedToken token;
  bool normalized = false;
};

absl::StatusOr<AddedEntry> ReadAddedToken(const Json& json, int32_t id, std::string_view what) {
  AddedEntry entry;
  entry.token.id = id;
  ASSIGN_OR_RETURN(entry.token.content, StringMember(json, "content", what));
  ASSIGN_OR_RETURN(entry.token.special, BoolMemberOr(json, "special", false, what));
  ASSIGN_OR_RETURN(entry.token.single_word, BoolMemberOr(json, "single_word", false, what));
  ASSIGN_OR_RETURN(entry.token.lstrip, BoolMemberOr(json, "lstrip", false, what));
  ASSIGN_OR_RETURN(entry.token.rstrip, BoolMemberOr(json, "rstrip", false, what));
  ASSIGN_OR_RETURN(entry.normalized, BoolMemberOr(json, "normalized", !entry.token.special, what));
  return entry;
}

absl::StatusOr<Json> ParseObject(std::string_view bytes, const std::string& file) {
  ASSIGN_OR_RETURN(Json json, ParseJson(bytes, file));
  if (!json.is_object()) return absl::DataLossError(Concat(file, ": no JSON object"));
  return json;
}

// added_tokens of tokenizer.json, then those of tokenizer_config.json's added_tokens_decoder that
// are new.
absl::StatusOr<std::vector<AddedEntry>> ReadAddedTokens(const Json& tokenizer, const Json& config) {
  std::vector<AddedEntry> entries;
  if (const Json* list = FindMember(tokenizer, "added_tokens")) {
    if (!list->is_array()) return absl::DataLossError("tokenizer.json: added_tokens is no list");
    for (const Json& item : *list) {
      const Json* id_json = FindMember(item, "id");
      if (id_json == nullptr) {
        return absl::DataLossError("tokenizer.json: an added token without an id");
      }
      ASSIGN_OR_RETURN(const int32_t id, TokenIdOf(*id_json, "tokenizer.json: added_tokens"));
      ASSIGN_OR_RETURN(AddedEntry entry, ReadAddedToken(item, id, "tokenizer.json: added_tokens"));
      entries.push_back(std::move(entry));
    }
  }
  if (const Json* table = FindMember(config, "added_tokens_decoder")) {
    constexpr std::string_view kWhat = "tokenizer_config.json: added_tokens_decoder";
    if (!table->is_object()) return absl::DataLossError(Concat(kWhat, " is no object"));
    const size_t own = entries.size();
    for (const auto& [key, value] : table->items()) {
      int32_t id = -1;
      if (!absl::SimpleAtoi(key, &id) || id < 0) {
        return absl::DataLossError(Concat(kWhat, ": '", key, "' is no token id"));
      }
      ASSIGN_OR_RETURN(AddedEntry entry, ReadAddedToken(value, id, kWhat));
      const bool known = std::any_of(entries.begin(), entries.begin() + own, [&](const auto& e) {
        return e.token.id == id && e.token.content == entry.token.content;
      });
      if (!known) entries.push_back(std::move(entry));
    }
  }
  return entries;
}

absl::StatusOr<Vocabulary> ReadVocabulary(const Json& model, const std::vector<AddedEntry>& added) {
  const Json* table = FindMember(model, "vocab");
  if (table == nullptr || !table->is_object()) {
    return absl::DataLossError("tokenizer.json: model.vocab is missing or no object");
  }
  std::vector<std::pair<int32_t, std::string_view>> entries;
  entries.reserve(table->size());
  int64_t max_id = -1;
  for (const auto& [text, value] : table->items()) {
    ASSIGN_OR_RETURN(const int32_t id, TokenIdOf(value, "tokenizer.json: model.vocab"));
    // items() gives a reference into the object for keys.
    entries.emplace_back(id, text);
    max_id = std::max<int64_t>(max_id, id);
  }
  for (const AddedEntry& entry : added) max_id = std::max<int64_t>(max_id, entry.token.id);
  const int64_t listed = static_cast<int64_t>(entries.size() + added.size());
  if (max_id >= listed + kMaxGaps || max_id >= Vocabulary::kMaxSize) {
    return absl::DataLossError(
        Concat("tokenizer.json: id ", max_id, " with only ", listed, " tokens listed"));
  }
  // Ascending ids, so that of two ids with one text the lower is found.
  std::sort(entries.begin(), entries.end());
  Vocabulary vocabulary(static_cast<int32_t>(max_id + 1));
  for (const auto& [id, text] : entries) {
    RETURN_IF_ERROR(vocabulary.Add(id, text, Vocabulary::Spelling::kByteLevel));
  }
  for (const AddedEntry& entry : added) {
    const AddedToken& token = entry.token;
    const std::optional<int32_t> known = vocabulary.Find(token.content);
    if (known.has_value() && *known != token.id) {
      return absl::DataLossError(Concat("tokenizer.json: added token '", token.content,
                                        "' has both id ", *known, " and id ", token.id));
    }
    RETURN_IF_ERROR(vocabulary.Add(token.id, token.content, Vocabulary::Spelling::kByteLevel));
    if (token.special) vocabulary.MarkSpecial(token.id);
  }
  return vocabulary;
}

absl::Status CheckModel(const Json& model) {
  std::string type = "BPE";  // old files do not say
  if (FindMember(model, "type") != nullptr) {
    ASSIGN_OR_RETURN(type, StringMember(model, "type", "tokenizer.json: model"));
  }
  if (type != "BPE") {
    return absl::UnimplementedError(
        Concat("tokenizer.json: model '", type, "' is not supported; supported: BPE"));
  }
  ASSIGN_OR_RETURN(const bool byte_fallback,
                   BoolMemberOr(model, "byte_fallback", false, "tokenizer.json: model"));
  if (byte_fallback) {
    return absl::UnimplementedError(
        "tokenizer.json: model BPE with byte_fallback (SentencePiece style) is not supported");
  }
  for (std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json* value = FindMember(model, key);
    if (value != nullptr && !(value->is_string() && value->get_ref<const std::string&>().empty())) {
      return absl::UnimplementedError(
          Concat("tokenizer.json: model BPE with ", key, " is not supported"));
    }
  }
  return absl::OkStatus();
}

// Views into `model`.
absl::StatusOr<std::vector<std::pair<std::string_view, std::string_view>>> ReadMerges(
    const Json& model) {
  const Json* list = FindMember(model, "merges");
  if (list == nullptr || !list->is_array()) {
    return absl::DataLossError("tokenizer.json: model.merges is missing or no list");
  }
  std::vector<std::pair<std::string_view, std::string_view>> merges;
  merges.reserve(list->size());
  for (const Json& item : *list) {
    if (item.is_string()) {
      const std::string_view text = item.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
        merges.emplace_back(text.substr(0, space), text.substr(space + 1));
        continue;
      }
    } else if (item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string()) {
      merges.emplace_back(item[0].get_ref<const std::string&>(),
                          item[1].get_ref<const std::string&>());
      continue;
    }
    return absl::DataLossError(
        Concat("tokenizer.json: merge ", merges.size(), " is no pair of tokens"));
  }
  return merges;
}

// bos_token and the like: a string or {"content": ...}; nothing when absent or not in the
// vocabulary.
std::optional<int32_t> NamedToken(const Json& config, std::string_view key,
                                  const Vocabulary& vocabulary) {
  const Json* value = FindMember(config, key);
  if (value != nullptr && value->is_object()) value = FindMember(*value, "content");
  if (value == nullptr || !value->is_string()) return std::nullopt;
  return vocabulary.Find(value->get_ref<const std::string&>());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromTokenizerJson(
    std::string_view tokenizer_json_bytes, std::string_view tokenizer_config_json) {
  ASSIGN_OR_RETURN(const Json root, ParseObject(tokenizer_json_bytes, "tokenizer.json"));
  Json config = Json::object();
  if (!tokenizer_config_json.empty()) {
    ASSIGN_OR_RETURN(config, ParseObject(tokenizer_config_json, "tokenizer_config.json"));
  }
  const Json* model = FindMember(root, "model");
  if (model == nullptr || !model->is_object()) {
    return absl::DataLossError("tokenizer.json: 'model' is missing or no object");
  }
  RETURN_IF_ERROR(CheckModel(*model));
  ASSIGN_OR_RETURN(Normalizer normalizer, ReadNormalizer(FindMember(root, "normalizer")));
  ASSIGN_OR_RETURN(PreTokenizerStage split, ReadPreTokenizer(FindMember(root, "pre_tokenizer")));
  RETURN_IF_ERROR(CheckDecoder(FindMember(root, "decoder")));
  ASSIGN_OR_RETURN(const std::vector<AddedEntry> added, ReadAddedTokens(root, config));
  ASSIGN_OR_RETURN(Vocabulary vocabulary, ReadVocabulary(*model, added));
  ASSIGN_OR_RETURN(PostProcessorStage post,
                   ReadPostProcessor(FindMember(root, "post_processor"), vocabulary));
  ASSIGN_OR_RETURN(const auto merges, ReadMerges(*model));
  ASSIGN_OR_RETURN(const bool whole_pieces,
                   BoolMemberOr(*model, "ignore_merges", false, "tokenizer.json: model"));

  std::vector<AddedToken> raw, normalized;
  for (const AddedEntry& entry : added) {
    AddedToken token = entry.token;
    if (!entry.normalized) {
      raw.push_back(std::move(token));
      continue;
    }
    std::string storage;
    ASSIGN_OR_RETURN(const std::string_view content, normalizer.Apply(token.content, &storage));
    token.content = std::string(content);
    normalized.push_back(std::move(token));
  }

  auto parts =
      std::make_unique<TokenizerParts>(std::move(vocabulary), AddedTokenSplitter(std::move(raw)),
                                       AddedTokenSplitter(std::move(normalized)));
  parts->normalizer = std::move(normalizer);
  parts->pre_tokenizer = std::move(split.pre_tokenizer);
  parts->add_prefix_space = split.add_prefix_space;
  ASSIGN_OR_RETURN(parts->bpe, ByteBpe::Create(&parts->vocabulary, merges, whole_pieces));
  parts->bos_id = NamedToken(config, "bos_token", parts->vocabulary);
  if (!parts->bos_id.has_value() && !post.prefix.empty()) parts->bos_id = post.prefix.front();
  parts->prefix = std::move(post.prefix);
  parts->suffix = std::move(post.suffix);
  std::vector<int32_t> eos;
  if (const auto id = NamedToken(config, "eos_token", parts->vocabulary)) eos.push_back(*id);
  parts->eos_ids = StopIds(parts->vocabulary, std::move(eos));
  return std::make_unique<Tokenizer>(std::move(parts));
}

}  // namespace bitshard
