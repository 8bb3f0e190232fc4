// Split patterns that have no hand-written matcher, run by PCRE2 with limits: no text can make one
// run away.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace bitshard {

class RegexSplitter {
 public:
  // DATA_LOSS when `regex` does not compile. Unicode classes, \s and case folding are Unicode's.
  static absl::StatusOr<RegexSplitter> Compile(std::string_view regex);

  // Appends the matches and, when `keep_gaps`, what lies between them, in order; pieces point into
  // `text`. INVALID_ARGUMENT when the text needs more than the allowed matching steps. REQUIRES:
  // valid UTF-8.
  absl::Status Split(std::string_view text, bool keep_matches, bool keep_gaps,
                     std::vector<std::string_view>* pieces) const;

 private:
  struct FreeCode {
    void operator()(void* code) const;
  };
  using Code = std::unique_ptr<void, FreeCode>;  // pcre2_code, kept out of this header

  RegexSplitter(Code code, std::string regex) : code_(std::move(code)), regex_(std::move(regex)) {}

  Code code_;
  std::string regex_;  // for messages
};

}  // namespace bitshard
