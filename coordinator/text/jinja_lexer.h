// A template's text as tokens: literal text, and what stands between {{ }} and {% %}.
//
// White space is settled here: trim_blocks, lstrip_blocks and the signs of {%- -%} {{- -}} {%+ +%},
// the template's last newline, comments, and {% raw %}.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace bitshard {

struct JinjaToken {
  enum class Kind {
    kText,        // literal text, never empty
    kPrintBegin,  // {{
    kPrintEnd,    // }}
    kBlockBegin,  // {%
    kBlockEnd,    // %}
    kName,
    kString,  // text: the decoded contents
    kInteger,
    kFloat,
    kOperator,
    kEnd,  // of the template
  };
  Kind kind;
  std::string text;
  int line;  // from 1

  bool Is(Kind k, std::string_view t) const { return kind == k && text == t; }
};

// INVALID_ARGUMENT with the line for unclosed tags and strings, unknown characters, a template that
// is too large or not valid UTF-8. The last token is kEnd.
absl::StatusOr<std::vector<JinjaToken>> LexJinja(std::string_view source);

// An error at a line of the template.
absl::Status JinjaError(int line, std::string_view text);

// UNIMPLEMENTED: a construct that we do not have, at a line of the template.
absl::Status JinjaUnsupported(int line, std::string_view what, std::string_view name);

// White space as Python's str.strip() knows it.
bool IsJinjaSpace(char32_t c);
std::string_view StripJinjaSpace(std::string_view text, bool left, bool right);

}  // namespace bitshard
