// Builds a Tokenizer from GGUF metadata (tokenizer.ggml.*), byte-level BPE only.
//
// GGUF names a split style (`pre`) instead of spelling the stages out; the table below says what
// each name stands for.
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/text/concat.h"
#include "coordinator/text/gguf_vocab.h"
#include "coordinator/text/tokenizer.h"
#include "coordinator/text/tokenizer_parts.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

constexpr std::string_view kSpaces = R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct PreStyle {
  std::string_view name;
  std::vector<SplitPattern> patterns;  // first these,
  std::vector<std::string> regexes;    // then these
  bool nfc = false;                    // GGUF drops the normalizer of the Qwen family
  bool whole_pieces = false;
  bool add_bos = false;  // when the file does not say
};

const std::vector<PreStyle>& PreStyles() {
  static const auto& styles = *new std::vector<PreStyle>{
      {.name = "smollm", .patterns = {SplitPattern::kDigits, SplitPattern::kGpt2}, .regexes = {}},
      {.name = "gpt-2", .patterns = {SplitPattern::kGpt2}, .regexes = {}},
      {.name = "llama-bpe",
       .patterns = {SplitPattern::kLlama3},
       .regexes = {},
       .whole_pieces = true,
       .add_bos = true},
      {.name = "qwen2", .patterns = {SplitPattern::kQwen2}, .regexes = {}, .nfc = true},
      {.name = "deepseek-r1-qwen", .patterns = {SplitPattern::kQwen2}, .regexes = {}, .nfc = true},
      {.name = "qwen35", .patterns = {SplitPattern::kQwen35}, .regexes = {}, .nfc = true},
      {.name = "tekken",
       .patterns = {},
       .regexes = {Concat(R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*)",
                          R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)",
                          R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+)",
                          R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*)",
                          kSpaces)},
       .whole_pieces = true,
       .add_bos = true},
      {.name = "gpt-4o",
       .patterns = {},
       .regexes = {Concat(R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*)",
                          R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)",
                          R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+)",
                          R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)",
                          R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*)", kSpaces)}},
      {.name = "deepseek-v3",
       .patterns = {},
       .regexes = {R"(\p{N}{1,3})", R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)",
                   Concat(R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|)",
                          R"([^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)",
                          kSpaces)}},
      // What files carry whose converter knew no better; llama.cpp splits them like this.
      {.name = "default",
       .patterns = {},
       .regexes = {R"([\p{P}\$\+<=>\^~\|]+)",
                   R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))",
                   R"(\p{N}+)", R"([0-9][0-9][0-9])"}},
  };
  return styles;
}

absl::StatusOr<const PreStyle*> FindPreStyle(const std::string& name) {
  std::string known;
  for (const PreStyle& style : PreStyles()) {
    if (style.name == name) return &style;
    known += Concat(known.empty() ? "" : ", ", style.name);
  }
  return absl::UnimplementedError(
      name.empty()
          ? Concat("tokenizer.ggml.pre is missing (files from before April 2024): how to ",
                   "split text is unknown; convert the model again")
          : Concat("tokenizer.ggml.pre '", name, "' is not supported; supported: ", known));
}

enum TokenType : int32_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

absl::StatusOr<Vocabulary> ReadVocabulary(const GgufVocab& in, std::vector<AddedToken>* added) {
  using Spelling = Vocabulary::Spelling;
  if (in.tokens.empty() || in.tokens.size() > static_cast<size_t>(Vocabulary::kMaxSize)) {
    return absl::DataLossError(Concat("tokenizer.ggml.tokens has ", in.tokens.size(),
                                      " entries; expected 1 to ", Vocabulary::kMaxSize));
  }
  if (!in.token_types.empty() && in.token_types.size() != in.tokens.size()) {
    return absl::DataLossError(Concat("tokenizer.ggml.token_type has ", in.token_types.size(),
                                      " entries, but there are ", in.tokens.size(), " tokens"));
  }
  Vocabulary vocabulary(static_cast<int32_t>(in.tokens.size()));
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const std::string& text = in.tokens[id];
    const int32_t type = in.token_types.empty() ? kNormal : in.token_types[id];
    Spelling spelling = Spelling::kLiteral;
    switch (type) {
      case kNormal:
      case kUnused:
        spelling = Spelling::kByteLevel;
        break;
      case kByte:
        spelling = Spelling::kHexByte;
        break;
      case kUnknown:
      case kControl:
      case kUserDefined:
        break;
      default:
        return absl::DataLossError(
            Concat("tokenizer.ggml.token_type of token ", id, " is ", type, "; known are 1 to 6"));
    }
    RETURN_IF_ERROR(vocabulary.Add(id, text, spelling));
    const bool special = type == kControl || type == kUnknown;
    if (special) vocabulary.MarkSpecial(id);
    if (special || type == kUserDefined) {
      added->push_back({.id = id, .content = text, .special = special});
    }
  }
  return vocabulary;
}

absl::StatusOr<std::vector<std::pair<std::string_view, std::string_view>>> ReadMerges(
    const GgufVocab& in) {
  std::vector<std::pair<std::string_view, std::string_view>> merges;
  merges.reserve(in.merges.size());
  for (const std::string& merge : in.merges) {
    const std::string_view text = merge;
    const size_t space = text.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == text.size()) {
      return absl::DataLossError(Concat("tokenizer.ggml.merges: entry ", merges.size(), " ('", text,
                                        "') is no pair of tokens"));
    }
    merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  return merges;
}

absl::StatusOr<std::optional<int32_t>> CheckedId(std::optional<int64_t> id, std::string_view name,
                                                 const Vocabulary& vocabulary) {
  if (!id.has_value()) return std::optional<int32_t>();
  if (*id < 0 || *id >= vocabulary.size()) {
    return absl::DataLossError(Concat("tokenizer.ggml.", name, " is ", *id, ", but there are ",
                                      vocabulary.size(), " tokens"));
  }
  return std::optional<int32_t>(static_cast<int32_t>(*id));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromGgufVocab(const GgufVocab& in) {
  if (in.model != "gpt2") {
    return absl::UnimplementedError(Concat("tokenizer.ggml.model '", in.model, "'",
                                           in.model == "llama" ? " (SentencePiece)" : "",
                                           " is not supported; supported: gpt2 (byte-level BPE)"));
  }
  ASSIGN_OR_RETURN(const PreStyle* style, FindPreStyle(in.pre));
  std::vector<AddedToken> added;
  ASSIGN_OR_RETURN(Vocabulary vocabulary, ReadVocabulary(in, &added));
  ASSIGN_OR_RETURN(const auto merges, ReadMerges(in));

  auto parts = std::make_unique<TokenizerParts>(
      std::move(vocabulary), AddedTokenSplitter(std::move(added)), AddedTokenSplitter({}));
  ASSIGN_OR_RETURN(parts->bpe, ByteBpe::Create(&parts->vocabulary, merges, style->whole_pieces));
  if (style->nfc) parts->normalizer = Normalizer({UnicodeForm::kNfc});
  for (SplitPattern pattern : style->patterns) parts->pre_tokenizer.AddPattern(pattern);
  for (const std::string& regex : style->regexes) {
    RETURN_IF_ERROR(parts->pre_tokenizer.AddRegex(regex));
  }
  parts->add_prefix_space = in.add_space_prefix.value_or(false);

  ASSIGN_OR_RETURN(parts->bos_id, CheckedId(in.bos_id, "bos_token_id", parts->vocabulary));
  std::optional<int32_t> eos;
  std::vector<int32_t> stop_ids;
  const std::array<std::pair<std::string_view, std::optional<int64_t>>, 3> stops = {
      {{"eos_token_id", in.eos_id}, {"eot_token_id", in.eot_id}, {"eom_token_id", in.eom_id}}};
  for (const auto& [name, value] : stops) {
    ASSIGN_OR_RETURN(const std::optional<int32_t> id, CheckedId(value, name, parts->vocabulary));
    if (!id.has_value()) continue;
    stop_ids.push_back(*id);
    if (name == "eos_token_id") eos = id;
  }
  parts->eos_ids = StopIds(parts->vocabulary, std::move(stop_ids));

  if (in.add_bos.value_or(style->add_bos)) {
    if (!parts->bos_id.has_value()) {
      return absl::DataLossError(
          "tokenizer.ggml: texts begin with BOS but bos_token_id is missing");
    }
    parts->prefix.push_back(*parts->bos_id);
  }
  if (in.add_eos.value_or(false)) {
    if (!eos.has_value()) {
      return absl::DataLossError("tokenizer.ggml: texts end with EOS but eos_token_id is missing");
    }
    parts->suffix.push_back(*eos);
  }
  return std::make_unique<Tokenizer>(std::move(parts));
}

}  // namespace bitshard
