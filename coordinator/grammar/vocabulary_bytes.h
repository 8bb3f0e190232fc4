// What grammars need to know of a tokenizer: the bytes of every token, and the tokens that end a
// text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "coordinator/text/tokenizer.h"

namespace bitshard {

struct VocabularyBytes {
  uint32_t vocab_size = 0;          // of the model: bits in a mask
  std::vector<std::string> tokens;  // by id, at most vocab_size; empty: never part of a text
  std::vector<int32_t> end_tokens;  // ascending, below vocab_size; their bytes are empty

  // Control tokens have no bytes here. `end_tokens`: beyond those that the tokenizer knows.
  static VocabularyBytes Of(const Tokenizer& tokenizer, uint32_t vocab_size,
                            const std::vector<int32_t>& end_tokens);

  // As bytes for another process of this build, and back; INVALID_ARGUMENT when they are none.
  std::string Serialize() const;
  static absl::StatusOr<VocabularyBytes> Parse(absl::string_view bytes);
};

}  // namespace bitshard
