// The split patterns of the common model families, as hand-written matchers.
//
// Same pieces as the regular expressions that tokenizer.json spells out, in one pass and with no
// backtracking beyond one run of white space, so no text can make them slow. Each matcher covers
// every character: the pieces laid end to end are the text. The expressions are next to the
// enumerators; `\s` is Unicode white space.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace bitshard {

enum class SplitPattern {
  // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  kGpt2,
  // (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
  // ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|
  // \s+(?!\S)|\s+
  kLlama3,
  // As kLlama3 with \p{N} for \p{N}{1,3}.
  kQwen2,
  // As kQwen2 with [\p{L}\p{M}]+ for \p{L}+ and [^\s\p{L}\p{M}\p{N}]+ for [^\s\p{L}\p{N}]+.
  kQwen35,
  // \p{N}, alone or as a run; what is between is one piece. Not an expression but the Digits
  // pre-tokenizer.
  kDigits,
  kDigitRuns,
};

// The matcher for a regular expression that is spelled exactly as a known family spells it.
std::optional<SplitPattern> RecognizeSplitPattern(std::string_view regex);

// The regular expression of a pattern, for messages and tests; empty for the Digits pair.
std::string_view RegexOf(SplitPattern pattern);

// Appends the pieces of `text` to `pieces`; they point into `text`. REQUIRES: valid UTF-8.
void SplitByPattern(SplitPattern pattern, std::string_view text,
                    std::vector<std::string_view>* pieces);

}  // namespace bitshard
