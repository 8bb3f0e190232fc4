#include "coordinator/text/pre_tokenizer.h"

#include <optional>
#include <utility>

#include "kernels/base/status_macros.h"

namespace bitshard {

absl::Status PreTokenizer::AddRegex(std::string_view regex, bool keep_matches, bool keep_gaps) {
  if (keep_matches) {
    if (const std::optional<SplitPattern> known = RecognizeSplitPattern(regex)) {
      AddPattern(*known);
      return absl::OkStatus();
    }
  }
  ASSIGN_OR_RETURN(RegexSplitter splitter, RegexSplitter::Compile(regex));
  steps_.push_back(Regex{std::move(splitter), keep_matches, keep_gaps});
  return absl::OkStatus();
}

absl::Status PreTokenizer::Split(std::string_view text,
                                 std::vector<std::string_view>* pieces) const {
  std::vector<std::string_view> now = {text};
  std::vector<std::string_view> next;
  for (const auto& step : steps_) {
    next.clear();
    for (std::string_view piece : now) {
      if (const auto* pattern = std::get_if<SplitPattern>(&step)) {
        SplitByPattern(*pattern, piece, &next);
      } else {
        const Regex& regex = std::get<Regex>(step);
        RETURN_IF_ERROR(regex.splitter.Split(piece, regex.keep_matches, regex.keep_gaps, &next));
      }
    }
    now.swap(next);
  }
  pieces->insert(pieces->end(), now.begin(), now.end());
  return absl::OkStatus();
}

}  // namespace bitshard
