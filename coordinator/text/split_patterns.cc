#include "coordinator/text/split_patterns.h"

#include <cstddef>
#include <utility>

#include "coordinator/text/utf8.h"

namespace bitshard {
namespace {

// clang-format off
#define BITSHARD_CONTRACTIONS R"((?i:'s|'t|'re|'ve|'m|'ll|'d))"
#define BITSHARD_TAIL R"([\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"
constexpr std::pair<SplitPattern, std::string_view> kRegexes[] = {
    {SplitPattern::kGpt2,
     R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {SplitPattern::kLlama3,
     BITSHARD_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+)"
     BITSHARD_TAIL},
    {SplitPattern::kQwen2,
     BITSHARD_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+)"
     BITSHARD_TAIL},
    {SplitPattern::kQwen35,
     BITSHARD_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+)"
     BITSHARD_TAIL},
};
#undef BITSHARD_CONTRACTIONS
#undef BITSHARD_TAIL
// clang-format on

// A place in the text with the character that stands there; `bytes` is 0 at the end.
struct Cursor {
  explicit Cursor(std::string_view whole, size_t offset = 0) : text(whole), at(offset) { Read(); }

  bool end() const { return bytes == 0; }
  bool is(CharClass c) const { return bytes != 0 && cls == c; }
  bool newline() const { return value == U'\n' || value == U'\r'; }
  Cursor Next() const { return Cursor(text, at + bytes); }
  void Advance() {
    at += bytes;
    Read();
  }

  std::string_view text;
  size_t at;
  char32_t value = 0;
  int bytes = 0;
  CharClass cls = CharClass::kOther;

 private:
  void Read() {
    if (at == text.size()) {
      value = 0;
      bytes = 0;
      return;
    }
    const CodePoint c = CodePointAt(text, at);
    value = c.value;
    bytes = c.bytes;
    cls = ClassOf(value);
  }
};

// What differs between the families.
struct Style {
  bool gpt2 =
      false;  // words take only a space in front, numbers too; newlines are plain white space
  bool ignore_case = false;  // of the contractions
  bool marks_are_letters = false;
  int max_digits = 1;  // of one number piece; gpt2: no limit
};

Style StyleOf(SplitPattern pattern) {
  switch (pattern) {
    case SplitPattern::kGpt2:
      return {.gpt2 = true};
    case SplitPattern::kLlama3:
      return {.ignore_case = true, .max_digits = 3};
    case SplitPattern::kQwen35:
      return {.ignore_case = true, .marks_are_letters = true};
    default:
      return {.ignore_case = true};
  }
}

// The end of 's 't 're 've 'm 'll 'd at `c`, or nothing.
std::optional<size_t> Contraction(Cursor c, bool ignore_case) {
  if (c.value != U'\'' || c.end()) return std::nullopt;
  const auto lower = [ignore_case](const Cursor& at) -> char32_t {
    if (at.end() || !ignore_case) return at.value;
    if (at.value >= U'A' && at.value <= U'Z') return at.value + 32;
    // The long s is the only other character whose case folding is one of these letters.
    return at.value == U'\u017F' ? U's' : at.value;
  };
  c.Advance();
  const char32_t first = lower(c);
  c.Advance();
  if (first == U's' || first == U't' || first == U'm' || first == U'd') return c.at;
  const char32_t second = lower(c);
  const bool two = (first == U'r' && second == U'e') || (first == U'v' && second == U'e') ||
                   (first == U'l' && second == U'l');
  if (!two) return std::nullopt;
  return c.at + c.bytes;
}

template <typename Pred>
Cursor SkipWhile(Cursor c, Pred pred) {
  while (!c.end() && pred(c)) c.Advance();
  return c;
}

// The end of the piece that starts at the white space `start`: `\s*[\r\n]+` where the family has
// it, then
// `\s+(?!\S)`, then `\s+`.
size_t SpaceEnd(const Cursor& start, bool newlines_first) {
  Cursor c = start;
  size_t last = start.at;         // start of the run's last character
  std::optional<size_t> newline;  // end of the run's last newline
  for (; c.is(CharClass::kSpace); c.Advance()) {
    last = c.at;
    if (c.newline()) newline = c.at + c.bytes;
  }
  if (newlines_first && newline.has_value()) return *newline;
  if (c.end() || last == start.at) return c.at;
  return last;  // leave one character for the word that follows
}

size_t PieceEnd(const Cursor& start, const Style& style) {
  if (auto end = Contraction(start, style.ignore_case)) return *end;
  const auto letter = [&](const Cursor& c) {
    return c.is(CharClass::kLetter) || (style.marks_are_letters && c.is(CharClass::kMark));
  };
  const auto number = [](const Cursor& c) { return c.is(CharClass::kNumber); };
  const auto other = [&](const Cursor& c) {
    return !c.end() && !letter(c) && !number(c) && !c.is(CharClass::kSpace);
  };

  if (letter(start)) return SkipWhile(start, letter).at;
  if (!style.gpt2) {
    if (number(start)) {
      Cursor c = start;
      for (int i = 0; i < style.max_digits && number(c); ++i) c.Advance();
      return c.at;
    }
    // Any one character in front of a word, but for newlines.
    if (!start.newline()) {
      const Cursor next = start.Next();
      if (letter(next)) return SkipWhile(next, letter).at;
    }
  }
  // One space may lead a word (GPT-2), a number (GPT-2) or a run of signs (all).
  const Cursor body = start.value == U' ' ? start.Next() : start;
  if (style.gpt2) {
    if (letter(body)) return SkipWhile(body, letter).at;
    if (number(body)) return SkipWhile(body, number).at;
  }
  if (other(body)) {
    Cursor c = SkipWhile(body, other);
    if (!style.gpt2) c = SkipWhile(c, [](const Cursor& at) { return at.newline(); });
    return c.at;
  }
  return SpaceEnd(start, /*newlines_first=*/!style.gpt2);
}

void SplitDigits(std::string_view text, bool runs, std::vector<std::string_view>* pieces) {
  const auto number = [](const Cursor& c) { return c.is(CharClass::kNumber); };
  Cursor c(text);
  while (!c.end()) {
    const size_t begin = c.at;
    if (!number(c)) {
      c = SkipWhile(c, [&](const Cursor& at) { return !number(at); });
    } else if (runs) {
      c = SkipWhile(c, number);
    } else {
      c.Advance();
    }
    pieces->push_back(text.substr(begin, c.at - begin));
  }
}

}  // namespace

std::optional<SplitPattern> RecognizeSplitPattern(std::string_view regex) {
  for (const auto& [pattern, text] : kRegexes) {
    if (text == regex) return pattern;
  }
  return std::nullopt;
}

std::string_view RegexOf(SplitPattern pattern) {
  for (const auto& [known, text] : kRegexes) {
    if (known == pattern) return text;
  }
  return {};
}

void SplitByPattern(SplitPattern pattern, std::string_view text,
                    std::vector<std::string_view>* pieces) {
  if (pattern == SplitPattern::kDigits || pattern == SplitPattern::kDigitRuns) {
    SplitDigits(text, pattern == SplitPattern::kDigitRuns, pieces);
    return;
  }
  const Style style = StyleOf(pattern);
  for (size_t at = 0; at < text.size();) {
    const size_t end = PieceEnd(Cursor(text, at), style);
    pieces->push_back(text.substr(at, end - at));
    at = end;
  }
}

}  // namespace bitshard
