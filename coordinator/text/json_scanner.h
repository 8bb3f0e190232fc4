// Reads one JSON value byte by byte, strictly, to find its end while it is still being written.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace bitshard {

class JsonScanner {
 public:
  enum class State {
    kMore,
    kDone,    // the byte was the value's last
    kBefore,  // the value had ended before the byte: a number's end shows only behind it
    kBad,     // no JSON
  };
  // REQUIRES: no other result than kMore so far.
  State Push(char c);

 private:
  enum class Wants { kValue, kValueOrEnd, kKey, kKeyOrEnd, kColon, kCommaOrEnd };
  enum class Number { kSign, kZero, kDigits, kDot, kFraction, kE, kESign, kExponent };

  State Value(char c);
  State InString(char c);
  State InNumber(char c);
  State Ended();  // a value has
  State Close(char c);

  std::string open_;  // brackets, innermost last
  Wants wants_ = Wants::kValue;
  bool in_string_ = false;
  bool is_key_ = false;
  bool escaped_ = false;
  int hex_left_ = 0;
  bool in_number_ = false;
  Number number_ = Number::kSign;
  std::string_view literal_left_;
};

// The text that a JSON string stands for. REQUIRES: JsonScanner found `json` well-formed. Lone
// surrogates become U+FFFD.
std::string DecodeJsonString(std::string_view json);

// `text` as a JSON string.
std::string EncodeJsonString(std::string_view text);

// Whether `text` is one JSON value and nothing else but white space.
bool IsJson(std::string_view text);

inline bool IsJsonSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

}  // namespace bitshard
