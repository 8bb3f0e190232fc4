#include "coordinator/text/vocabulary.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"

#include "coordinator/text/byte_level.h"
#include "coordinator/text/concat.h"
#include "coordinator/text/utf8.h"
#include "kernels/base/check.h"

namespace bitshard {
namespace {

std::optional<std::string> ParseHexByte(std::string_view text) {
  uint32_t value = 0;
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>' ||
      !absl::SimpleHexAtoi(std::string(text.substr(3, 2)), &value)) {
    return std::nullopt;
  }
  return std::string(1, static_cast<char>(value));
}

}  // namespace

Vocabulary::Vocabulary(int32_t size) : entries_(size) {
  CHECK(size >= 0 && size <= kMaxSize) << size;
}

absl::Status Vocabulary::Add(int32_t id, std::string_view text, Spelling spelling) {
  if (id < 0 || id >= size()) {
    return absl::DataLossError(Concat("tokenizer: token id ", id, " is outside 0..", size() - 1));
  }
  if (FirstInvalidUtf8(text).has_value()) {
    return absl::DataLossError(Concat("tokenizer: token ", id, " ('",
                                      absl::CHexEscape(std::string(text)),
                                      "') is not valid UTF-8"));
  }
  Entry& entry = entries_[id];
  if (entry.present) {
    if (entry.text == text) return absl::OkStatus();
    return absl::DataLossError(Concat("tokenizer: token id ", id, " is given to both '", entry.text,
                                      "' and '", text, "'"));
  }
  std::string bytes(text);
  if (spelling == Spelling::kByteLevel) {
    if (std::optional<std::string> decoded = BytesOfByteLevel(text)) {
      bytes = *std::move(decoded);
      by_bytes_.try_emplace(bytes, id);
    }
  } else if (spelling == Spelling::kHexByte) {
    std::optional<std::string> byte = ParseHexByte(text);
    if (!byte.has_value()) {
      return absl::DataLossError(Concat("tokenizer: token ", id, " is a byte token but '", text,
                                        "' is not of the form <0xNN>"));
    }
    bytes = *std::move(byte);
  }
  entry.present = true;
  entry.text = std::string(text);
  entry.bytes = std::move(bytes);
  by_text_.try_emplace(entry.text, id);
  return absl::OkStatus();
}

void Vocabulary::MarkSpecial(int32_t id) {
  CHECK(Get(id) != nullptr) << id;
  entries_[id].special = true;
}

std::optional<int32_t> Vocabulary::Find(std::string_view text) const {
  auto it = by_text_.find(absl::string_view(text.data(), text.size()));
  if (it == by_text_.end()) return std::nullopt;
  return it->second;
}

std::optional<int32_t> Vocabulary::FindBytes(std::string_view bytes) const {
  auto it = by_bytes_.find(absl::string_view(bytes.data(), bytes.size()));
  if (it == by_bytes_.end()) return std::nullopt;
  return it->second;
}

}  // namespace bitshard
