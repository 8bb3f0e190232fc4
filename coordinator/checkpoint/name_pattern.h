// How the configs of quantizers name modules: a whole name, or "re:" and a regular expression that
// must match at the start of the name (Python's re.match).
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace bitshard {

// Thread-compatible; immutable after Create.
class NamePattern {
 public:
  static bool IsRegex(std::string_view text) { return text.substr(0, 3) == "re:"; }

  // `text` with its "re:". INVALID_ARGUMENT when the expression does not compile; `where` names the
  // file in messages.
  static absl::StatusOr<NamePattern> Create(std::string_view text, const std::string& where);

  const std::string& text() const { return text_; }

  // INVALID_ARGUMENT when the matcher takes too many steps for this name.
  absl::StatusOr<bool> Matches(std::string_view name) const;

 private:
  struct FreeCode {
    void operator()(void* code) const;
  };
  using Code = std::unique_ptr<void, FreeCode>;  // pcre2_code

  NamePattern(std::string text, std::string where, Code code)
      : text_(std::move(text)), where_(std::move(where)), code_(std::move(code)) {}

  std::string text_;
  std::string where_;
  Code code_;
};

}  // namespace bitshard
