// The pre-tokenizer stage: cuts text into the pieces that BPE never merges across.
//
// A list of splits; each cuts every piece that the one before it left.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "coordinator/text/regex_splitter.h"
#include "coordinator/text/split_patterns.h"

namespace bitshard {

class PreTokenizer {
 public:
  // Pieces and gaps are kept: the known patterns leave no gaps.
  void AddPattern(SplitPattern pattern) { steps_.emplace_back(pattern); }
  // A hand-written matcher when there is one for this spelling, else PCRE2. DATA_LOSS when it does
  // not compile.
  absl::Status AddRegex(std::string_view regex, bool keep_matches = true, bool keep_gaps = true);

  // Appends the pieces of `text`; they point into it. REQUIRES: valid UTF-8.
  absl::Status Split(std::string_view text, std::vector<std::string_view>* pieces) const;

 private:
  struct Regex {
    RegexSplitter splitter;
    bool keep_matches;
    bool keep_gaps;
  };
  std::vector<std::variant<SplitPattern, Regex>> steps_;
};

}  // namespace bitshard
