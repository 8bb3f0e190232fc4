#include "coordinator/text/tokenizer_json_stages.h"

#include <cctype>
#include <string>
#include <string_view>
#include <utility>

#include "coordinator/text/concat.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

absl::Status Unknown(std::string_view stage, std::string_view type, std::string_view supported) {
  return absl::UnimplementedError(
      Concat("tokenizer.json: ", stage, " '", type, "' is not supported; supported: ", supported));
}

// Calls `visit(component, type)` for a component, or for those of a Sequence, whose list is called
// `list_key`.
template <typename Visit>
absl::Status ForEachComponent(const Json& json, std::string_view stage, std::string_view list_key,
                              const Visit& visit) {
  ASSIGN_OR_RETURN(const std::string type,
                   StringMember(json, "type", Concat("tokenizer.json: ", stage)));
  if (type != "Sequence") return visit(json, type);
  const Json* list = FindMember(json, list_key);
  if (list == nullptr || !list->is_array()) {
    return absl::DataLossError(
        Concat("tokenizer.json: ", stage, " Sequence without a '", list_key, "' list"));
  }
  for (const Json& component : *list) {
    RETURN_IF_ERROR(ForEachComponent(component, stage, list_key, visit));
  }
  return absl::OkStatus();
}

std::string QuoteForRegex(std::string_view literal) {
  std::string out;
  for (char c : literal) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && !std::isalnum(byte)) out.push_back('\\');
    out.push_back(c);
  }
  return out;
}

absl::Status AddSplit(const Json& json, PreTokenizer* out) {
  constexpr std::string_view kWhat = "tokenizer.json: pre_tokenizer Split";
  const Json* pattern = FindMember(json, "pattern");
  if (pattern == nullptr) return absl::DataLossError(Concat(kWhat, " without a pattern"));
  std::string regex;
  if (const Json* text = FindMember(*pattern, "Regex"); text != nullptr && text->is_string()) {
    regex = text->get<std::string>();
  } else {
    ASSIGN_OR_RETURN(const std::string literal, StringMember(*pattern, "String", kWhat));
    regex = QuoteForRegex(literal);
  }
  ASSIGN_OR_RETURN(const std::string behavior, StringMember(json, "behavior", kWhat));
  ASSIGN_OR_RETURN(const bool invert, BoolMemberOr(json, "invert", false, kWhat));
  if (behavior == "Isolated") return out->AddRegex(regex);
  if (behavior == "Removed") {
    return out->AddRegex(regex, /*keep_matches=*/invert, /*keep_gaps=*/!invert);
  }
  return Unknown("pre_tokenizer Split behavior", behavior, "Isolated, Removed");
}

// The ids that one SpecialToken of a template stands for.
absl::StatusOr<std::vector<int32_t>> TemplateIds(const Json& processor, const std::string& name,
                                                 const Vocabulary& vocabulary) {
  constexpr std::string_view kWhat = "tokenizer.json: post_processor TemplateProcessing";
  const Json* table = FindMember(processor, "special_tokens");
  const Json* entry = table == nullptr ? nullptr : FindMember(*table, name);
  const Json* list = entry == nullptr ? nullptr : FindMember(*entry, "ids");
  if (list == nullptr || !list->is_array()) {
    return absl::DataLossError(Concat(kWhat, ": no ids for special token '", name, "'"));
  }
  std::vector<int32_t> ids;
  for (const Json& value : *list) {
    ASSIGN_OR_RETURN(const int32_t id, TokenIdOf(value, kWhat));
    if (vocabulary.Get(id) == nullptr) {
      return absl::DataLossError(Concat(kWhat, ": id ", id, " is not in the vocabulary"));
    }
    ids.push_back(id);
  }
  return ids;
}

absl::Status ApplyTemplate(const Json& processor, const Vocabulary& vocabulary,
                           PostProcessorStage* out) {
  constexpr std::string_view kWhat = "tokenizer.json: post_processor TemplateProcessing";
  const Json* single = FindMember(processor, "single");
  if (single == nullptr || !single->is_array()) {
    return absl::DataLossError(Concat(kWhat, " without a 'single' list"));
  }
  std::vector<int32_t> before, after;
  bool seen_text = false;
  for (const Json& piece : *single) {
    if (const Json* token = FindMember(piece, "SpecialToken")) {
      ASSIGN_OR_RETURN(const std::string name, StringMember(*token, "id", kWhat));
      ASSIGN_OR_RETURN(const std::vector<int32_t> ids, TemplateIds(processor, name, vocabulary));
      std::vector<int32_t>& side = seen_text ? after : before;
      side.insert(side.end(), ids.begin(), ids.end());
    } else if (FindMember(piece, "Sequence") != nullptr && !seen_text) {
      seen_text = true;
    } else {
      return absl::DataLossError(Concat(kWhat, ": 'single' is not tokens around one text"));
    }
  }
  if (!seen_text) return absl::DataLossError(Concat(kWhat, ": 'single' has no text"));
  before.insert(before.end(), out->prefix.begin(), out->prefix.end());
  out->prefix = std::move(before);
  out->suffix.insert(out->suffix.end(), after.begin(), after.end());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Normalizer> ReadNormalizer(const Json* json) {
  std::vector<UnicodeForm> forms;
  if (json != nullptr) {
    RETURN_IF_ERROR(ForEachComponent(
        *json, "normalizer", "normalizers", [&](const Json&, const std::string& type) {
          if (type == "NFC") {
            forms.push_back(UnicodeForm::kNfc);
          } else if (type == "NFD") {
            forms.push_back(UnicodeForm::kNfd);
          } else if (type == "NFKC") {
            forms.push_back(UnicodeForm::kNfkc);
          } else if (type == "NFKD") {
            forms.push_back(UnicodeForm::kNfkd);
          } else {
            return Unknown("normalizer", type, "NFC, NFD, NFKC, NFKD, Sequence, none");
          }
          return absl::OkStatus();
        }));
  }
  return Normalizer(std::move(forms));
}

absl::StatusOr<PreTokenizerStage> ReadPreTokenizer(const Json* json) {
  constexpr std::string_view kSupported = "Sequence, Split, Digits, ByteLevel";
  if (json == nullptr) {
    return absl::UnimplementedError(
        "tokenizer.json: BPE without a ByteLevel pre_tokenizer (SentencePiece style) is not "
        "supported");
  }
  PreTokenizerStage stage;
  bool byte_level = false;
  bool first = true;
  RETURN_IF_ERROR(ForEachComponent(
      *json, "pre_tokenizer", "pretokenizers",
      [&](const Json& component, const std::string& type) -> absl::Status {
        const std::string what = Concat("tokenizer.json: pre_tokenizer ", type);
        const bool is_first = std::exchange(first, false);
        if (byte_level) return Unknown("pre_tokenizer after ByteLevel", type, "none");
        if (type == "Split") return AddSplit(component, &stage.pre_tokenizer);
        if (type == "Digits") {
          ASSIGN_OR_RETURN(const bool each,
                           BoolMemberOr(component, "individual_digits", false, what));
          stage.pre_tokenizer.AddPattern(each ? SplitPattern::kDigits : SplitPattern::kDigitRuns);
          return absl::OkStatus();
        }
        if (type != "ByteLevel") return Unknown("pre_tokenizer", type, kSupported);
        byte_level = true;
        ASSIGN_OR_RETURN(stage.add_prefix_space,
                         BoolMemberOr(component, "add_prefix_space", true, what));
        if (stage.add_prefix_space && !is_first) {
          return Unknown("pre_tokenizer", "ByteLevel with add_prefix_space after another split",
                         kSupported);
        }
        ASSIGN_OR_RETURN(const bool use_regex, BoolMemberOr(component, "use_regex", true, what));
        if (use_regex) stage.pre_tokenizer.AddPattern(SplitPattern::kGpt2);
        return absl::OkStatus();
      }));
  if (!byte_level) {
    return absl::UnimplementedError(
        "tokenizer.json: BPE without a ByteLevel pre_tokenizer (SentencePiece style) is not "
        "supported");
  }
  return stage;
}

absl::StatusOr<PostProcessorStage> ReadPostProcessor(const Json* json,
                                                     const Vocabulary& vocabulary) {
  PostProcessorStage stage;
  if (json == nullptr) return stage;
  RETURN_IF_ERROR(ForEachComponent(
      *json, "post_processor", "processors", [&](const Json& component, const std::string& type) {
        if (type == "ByteLevel") return absl::OkStatus();  // moves offsets, not ids
        if (type == "TemplateProcessing") return ApplyTemplate(component, vocabulary, &stage);
        return Unknown("post_processor", type, "Sequence, ByteLevel, TemplateProcessing");
      }));
  return stage;
}

absl::Status CheckDecoder(const Json* json) {
  constexpr std::string_view kSupported = "ByteLevel";
  if (json == nullptr) return Unknown("decoder", "null", kSupported);
  bool byte_level = false;
  RETURN_IF_ERROR(
      ForEachComponent(*json, "decoder", "decoders", [&](const Json&, const std::string& type) {
        if (type != "ByteLevel") return Unknown("decoder", type, kSupported);
        byte_level = true;
        return absl::OkStatus();
      }));
  return byte_level ? absl::OkStatus() : Unknown("decoder", "empty Sequence", kSupported);
}

}  // namespace bitshard
