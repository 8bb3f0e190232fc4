#include "coordinator/text/tokenizer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "coordinator/text/concat.h"
#include "coordinator/text/tokenizer_parts.h"
#include "coordinator/text/utf8.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

// Far above any context; keeps offsets inside the stages within 32 bits.
constexpr size_t kMaxTextBytes = size_t{1} << 30;

// One stretch without added tokens.
absl::Status EncodePlain(const TokenizerParts& parts, std::string_view text,
                         std::vector<int32_t>* ids) {
  std::string prefixed;
  if (parts.add_prefix_space && !text.empty() && text.front() != ' ') {
    prefixed = Concat(" ", text);
    text = prefixed;
  }
  std::vector<std::string_view> pieces;
  RETURN_IF_ERROR(parts.pre_tokenizer.Split(text, &pieces));
  for (std::string_view piece : pieces) parts.bpe.Encode(piece, ids);
  return absl::OkStatus();
}

// The parts of `spans` between `begin` and `end`, counted from `begin`.
std::vector<TextSpan> SpansWithin(absl::Span<const TextSpan> spans, size_t begin, size_t end) {
  std::vector<TextSpan> within;
  const auto first =
      std::upper_bound(spans.begin(), spans.end(), begin,
                       [](size_t offset, const TextSpan& span) { return offset < span.end; });
  for (auto it = first; it != spans.end() && it->begin < end; ++it) {
    within.push_back({std::max(it->begin, begin) - begin, std::min(it->end, end) - begin});
  }
  return within;
}

// The normalizer's text, and where the `plain` parts of `text` are in it. Where it changes the
// text, the parts are normalized one by one, so that their edges stay known.
absl::StatusOr<std::string_view> Normalize(const TokenizerParts& parts, std::string_view text,
                                           std::vector<TextSpan>* plain, std::string* storage) {
  ASSIGN_OR_RETURN(const std::string_view whole, parts.normalizer.Apply(text, storage));
  if (plain->empty() || whole == text) return whole;
  std::string joined;
  std::string one;
  size_t done = 0;
  const auto append = [&](size_t end) -> absl::Status {
    ASSIGN_OR_RETURN(const std::string_view piece,
                     parts.normalizer.Apply(text.substr(done, end - done), &one));
    joined += piece;
    done = end;
    return absl::OkStatus();
  };
  for (TextSpan& span : *plain) {
    RETURN_IF_ERROR(append(span.begin));
    const size_t begin = joined.size();
    RETURN_IF_ERROR(append(span.end));
    span = {begin, joined.size()};
  }
  RETURN_IF_ERROR(append(text.size()));
  *storage = std::move(joined);
  return std::string_view(*storage);
}

// Of harmony models (gpt-oss), which write several messages in one answer: <|end|> ends only one of
// them, these the answer.
bool IsHarmony(const Vocabulary& vocabulary) {
  return vocabulary.Find("<|channel|>").has_value() && vocabulary.Find("<|call|>").has_value();
}

}  // namespace

std::vector<int32_t> StopIds(const Vocabulary& vocabulary, std::vector<int32_t> declared) {
  if (IsHarmony(vocabulary)) {
    for (std::string_view name : {"<|return|>", "<|call|>"}) {
      const std::optional<int32_t> id = vocabulary.Find(name);
      if (id.has_value()) declared.push_back(*id);
    }
    const std::optional<int32_t> end = vocabulary.Find("<|end|>");
    if (end.has_value()) std::erase(declared, *end);
  }
  for (std::string_view name : kKnownStopTokens) {
    if (name == "<|end|>" && IsHarmony(vocabulary)) continue;
    const std::optional<int32_t> id = vocabulary.Find(name);
    if (id.has_value() && vocabulary.Get(*id)->special) declared.push_back(*id);
  }
  std::sort(declared.begin(), declared.end());
  declared.erase(std::unique(declared.begin(), declared.end()), declared.end());
  return declared;
}

Tokenizer::Tokenizer(std::unique_ptr<const TokenizerParts> parts) : parts_(std::move(parts)) {
  CHECK(parts_ != nullptr);
}

Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                                       EncodeOptions options) const {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        Concat("text of ", text.size(), " bytes is longer than ", kMaxTextBytes));
  }
  if (const std::optional<size_t> bad = FirstInvalidUtf8(text)) {
    return absl::InvalidArgumentError(
        Concat("text is not valid UTF-8 at byte ", *bad, "; send UTF-8, or token ids"));
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + parts_->prefix.size() + parts_->suffix.size());
  if (options.add_special) ids = parts_->prefix;

  std::vector<TextSegment> raw;
  std::vector<TextSegment> normalized;
  std::string storage;
  parts_->raw_added.Split(text, options.parse_special, options.plain, &raw);
  for (const TextSegment& segment : raw) {
    if (segment.token.has_value()) {
      ids.push_back(*segment.token);
      continue;
    }
    std::vector<TextSpan> plain;
    if (options.parse_special && parts_->normalized_added.has_special()) {
      const size_t begin = segment.text.data() - text.data();
      plain = SpansWithin(options.plain, begin, begin + segment.text.size());
    }
    ASSIGN_OR_RETURN(const std::string_view changed,
                     Normalize(*parts_, segment.text, &plain, &storage));
    normalized.clear();
    parts_->normalized_added.Split(changed, options.parse_special, plain, &normalized);
    for (const TextSegment& part : normalized) {
      if (part.token.has_value()) {
        ids.push_back(*part.token);
      } else {
        RETURN_IF_ERROR(EncodePlain(*parts_, part.text, &ids));
      }
    }
  }
  if (options.add_special) ids.insert(ids.end(), parts_->suffix.begin(), parts_->suffix.end());
  return ids;
}

std::string Tokenizer::Decode(absl::Span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (int32_t id : ids) {
    const Vocabulary::Entry* entry = parts_->vocabulary.Get(id);
    if (entry != nullptr && !(skip_special && entry->special)) bytes += entry->bytes;
  }
  std::string text;
  text.reserve(bytes.size());
  AppendUtf8Lossy(bytes, /*keep_incomplete_tail=*/false, &text);
  return text;
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  const Vocabulary::Entry* entry = parts_->vocabulary.Get(id);
  return entry == nullptr ? std::string_view() : entry->bytes;
}

std::string_view Tokenizer::IdToToken(int32_t id) const {
  const Vocabulary::Entry* entry = parts_->vocabulary.Get(id);
  return entry == nullptr ? std::string_view() : entry->text;
}

bool Tokenizer::IsSpecial(int32_t id) const {
  const Vocabulary::Entry* entry = parts_->vocabulary.Get(id);
  return entry != nullptr && entry->special;
}

int32_t Tokenizer::vocab_size() const { return parts_->vocabulary.size(); }
std::optional<int32_t> Tokenizer::bos_id() const { return parts_->bos_id; }
const std::vector<int32_t>& Tokenizer::eos_ids() const { return parts_->eos_ids; }

std::optional<int32_t> Tokenizer::TokenToId(std::string_view token) const {
  return parts_->vocabulary.Find(token);
}

}  // namespace bitshard
