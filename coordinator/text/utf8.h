// UTF-8 as this room needs it: validating, walking valid text, replacing what is invalid,
// classifying characters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace bitshard {

// The offset of the first byte that does not belong to a well-formed character; nullopt when `text`
// is valid. Well-formed as in Unicode's table 3-7: no surrogates, no overlong forms, nothing above
// U+10FFFF.
std::optional<size_t> FirstInvalidUtf8(std::string_view text);

// How `bytes` begins. REQUIRES: not empty.
struct Utf8Head {
  enum Kind { kComplete, kIncomplete, kInvalid } kind;
  // kComplete: the character's length. kInvalid: the length of the maximal invalid part (1..3),
  // which stands for one U+FFFD. kIncomplete: `bytes` is a proper prefix of some character; all of
  // it.
  size_t bytes;
};
Utf8Head InspectUtf8(std::string_view bytes);

// Appends `bytes` to `out` with U+FFFD for every maximal invalid part. When `keep_incomplete_tail`,
// a last part that further bytes could still complete is not appended; returns how many bytes at
// the end were left for that reason.
size_t AppendUtf8Lossy(std::string_view bytes, bool keep_incomplete_tail, std::string* out);

// One character of valid UTF-8. REQUIRES: `offset` is the start of a character in valid `text`.
struct CodePoint {
  char32_t value;
  int bytes;
};
CodePoint CodePointAt(std::string_view text, size_t offset);
void AppendUtf8(char32_t value, std::string* out);

// The classes that the split patterns speak of; a character can have one at most.
enum class CharClass : uint8_t {
  kLetter,  // \p{L}
  kMark,    // \p{M}
  kNumber,  // \p{N}
  kSpace,   // \s: Unicode White_Space, \r and \n included
  kOther,
};
CharClass ClassOf(char32_t value);

// Letters, marks, decimal digits and connectors: what \w means for `single_word` added tokens.
bool IsWordChar(char32_t value);

// Whether Python's repr() shows it as it is: no control, format, surrogate, private or unassigned
// character, and no separator but the space.
bool IsPrintable(char32_t value);

}  // namespace bitshard
