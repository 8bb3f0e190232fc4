// Added tokens: strings that are one token whatever stands around them, cut out before the text is
// split.
//
// tokenizer.json calls them added_tokens, GGUF control and user-defined tokens. The leftmost
// longest match wins. Entries with `normalized` are looked for after the normalizer, the others
// before it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

#include "coordinator/text/byte_trie.h"
#include "coordinator/text/text_span.h"

namespace bitshard {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special =
      false;  // a control token: not taken from plain text, skipped on request when decoding
  bool single_word = false;  // only between non-word characters
  bool lstrip = false;       // takes the white space to its left with it
  bool rstrip = false;       // ... to its right
};

// A stretch of text, or the token that took its place.
struct TextSegment {
  std::string_view text;
  std::optional<int32_t> token;
};

// One of the two passes.
class AddedTokenSplitter {
 public:
  // Tokens with empty content are ignored.
  explicit AddedTokenSplitter(std::vector<AddedToken> tokens);

  // Appends the segments of `text`; empty ones are left out. Special tokens stay text unless
  // `parse_special`, and where they touch one of `plain` (ascending, apart).
  void Split(std::string_view text, bool parse_special, absl::Span<const TextSpan> plain,
             std::vector<TextSegment>* segments) const;

  // Whether there is a special token to look for.
  bool has_special() const { return has_special_; }

 private:
  struct Match {
    int32_t token;  // index into tokens_
    size_t end;
  };
  // `special_end`: special tokens that end beyond it do not count.
  std::optional<Match> LongestAt(std::string_view text, size_t begin, size_t special_end) const;

  bool has_special_ = false;
  std::vector<AddedToken> tokens_;
  ByteTrie trie_;
  std::vector<int32_t> token_at_;  // trie node -> index into tokens_, or -1
};

}  // namespace bitshard
