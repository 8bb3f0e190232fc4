#include "coordinator/grammar/vocabulary_bytes.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace bitshard {
namespace {

void AppendNumber(uint32_t number, std::string* out) {
  out->append(reinterpret_cast<const char*>(&number), sizeof(number));
}

bool TakeNumber(absl::string_view* bytes, uint32_t* number) {
  if (bytes->size() < sizeof(*number)) return false;
  std::memcpy(number, bytes->data(), sizeof(*number));
  bytes->remove_prefix(sizeof(*number));
  return true;
}

}  // namespace

VocabularyBytes VocabularyBytes::Of(const Tokenizer& tokenizer, uint32_t vocab_size,
                                    const std::vector<int32_t>& end_tokens) {
  VocabularyBytes vocabulary;
  vocabulary.vocab_size = vocab_size;
  const int32_t limit = static_cast<int32_t>(vocab_size);
  std::vector<int32_t>& ends = vocabulary.end_tokens;
  ends = tokenizer.eos_ids();
  ends.insert(ends.end(), end_tokens.begin(), end_tokens.end());
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  ends.erase(
      std::remove_if(ends.begin(), ends.end(), [&](int32_t t) { return t < 0 || t >= limit; }),
      ends.end());
  vocabulary.tokens.resize(std::min(limit, tokenizer.vocab_size()));
  for (int32_t id = 0; id < static_cast<int32_t>(vocabulary.tokens.size()); ++id) {
    if (tokenizer.IsSpecial(id) || std::binary_search(ends.begin(), ends.end(), id)) continue;
    vocabulary.tokens[id] = std::string(tokenizer.TokenBytes(id));
  }
  return vocabulary;
}

std::string VocabularyBytes::Serialize() const {
  std::string out;
  AppendNumber(vocab_size, &out);
  AppendNumber(static_cast<uint32_t>(end_tokens.size()), &out);
  for (const int32_t token : end_tokens) AppendNumber(static_cast<uint32_t>(token), &out);
  for (const std::string& token : tokens) {
    AppendNumber(static_cast<uint32_t>(token.size()), &out);
    out += token;
  }
  return out;
}

absl::StatusOr<VocabularyBytes> VocabularyBytes::Parse(absl::string_view bytes) {
  const absl::Status wrong = absl::InvalidArgumentError("these bytes are no vocabulary");
  VocabularyBytes vocabulary;
  uint32_t ends = 0;
  if (!TakeNumber(&bytes, &vocabulary.vocab_size) || !TakeNumber(&bytes, &ends)) return wrong;
  for (uint32_t i = 0; i < ends; ++i) {
    uint32_t token = 0;
    if (!TakeNumber(&bytes, &token) || token >= vocabulary.vocab_size) return wrong;
    vocabulary.end_tokens.push_back(static_cast<int32_t>(token));
  }
  while (!bytes.empty()) {
    uint32_t size = 0;
    if (!TakeNumber(&bytes, &size) || size > bytes.size()) return wrong;
    vocabulary.tokens.emplace_back(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  if (vocabulary.tokens.size() > vocabulary.vocab_size) return wrong;
  return vocabulary;
}

}  // namespace bitshard
