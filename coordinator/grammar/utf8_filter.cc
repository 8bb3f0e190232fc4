#include "coordinator/grammar/utf8_filter.h"

namespace bitshard {
namespace {

// First bytes after which not every continuation byte is right.
constexpr uint8_t kFirstBytes[] = {0xe0, 0xed, 0xf0, 0xf4};

}  // namespace

// False for what gives an overlong form, a surrogate, or what is beyond U+10FFFF.
bool Utf8Filter::Allows(uint8_t last, uint8_t next) {
  if (next < 0x80 || next > 0xbf) return true;  // no continuation: the grammar's own affair
  switch (last) {
    case 0xe0:
      return next >= 0xa0;
    case 0xed:
      return next <= 0x9f;
    case 0xf0:
      return next >= 0x90;
    case 0xf4:
      return next <= 0x8f;
    default:
      return true;
  }
}

Utf8Filter::Utf8Filter(uint32_t vocab_size, std::vector<std::string>* tokens) {
  for (std::string& token : *tokens) {
    for (size_t i = 1; i < token.size(); ++i) {
      if (!Allows(static_cast<uint8_t>(token[i - 1]), static_cast<uint8_t>(token[i])))
        token.clear();
    }
  }
  for (const uint8_t first : kFirstBytes) {
    std::vector<uint32_t>& words = allowed_[first];
    words.assign((size_t{vocab_size} + 31) / 32, ~0u);
    for (size_t id = 0; id < tokens->size(); ++id) {
      const std::string& token = (*tokens)[id];
      if (!token.empty() && !Allows(first, static_cast<uint8_t>(token[0])))
        words[id / 32] &= ~(1u << (id % 32));
    }
  }
}

void Utf8Filter::Apply(uint8_t last, std::vector<uint32_t>* words) const {
  const auto allowed = allowed_.find(last);
  if (allowed == allowed_.end()) return;
  for (size_t i = 0; i < words->size(); ++i) (*words)[i] &= allowed->second[i];
}

}  // namespace bitshard
