#include "coordinator/text/jinja_lexer.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>

#include "absl/status/status.h"

#include "coordinator/text/concat.h"
#include "coordinator/text/utf8.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

using Kind = JinjaToken::Kind;

constexpr size_t kMaxSourceBytes = size_t{1} << 20;

bool IsNameStart(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameChar(char c) { return IsNameStart(c) || IsDigit(c); }

// \r\n and \r are \n; one newline at the very end is dropped.
std::string NormalizedSource(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
      continue;
    }
    out.push_back('\n');
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  absl::StatusOr<std::vector<JinjaToken>> Run() {
    while (at_ < source_.size()) {
      const size_t tag = FindTag();
      RETURN_IF_ERROR(Text(tag));
      if (tag == source_.size()) break;
      RETURN_IF_ERROR(Tag());
    }
    Put(Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  void Put(Kind kind, std::string_view text) {
    tokens_.push_back({kind, std::string(text), line_});
  }
  bool At(std::string_view s) const { return source_.substr(at_).starts_with(s); }
  void Skip(size_t bytes) {
    line_ +=
        static_cast<int>(std::count(source_.begin() + at_, source_.begin() + at_ + bytes, '\n'));
    at_ += bytes;
  }
  void SkipSpace() {
    const std::string_view rest = source_.substr(at_);
    Skip(rest.size() - StripJinjaSpace(rest, /*left=*/true, /*right=*/false).size());
  }

  // The next {{, {% or {#, or the end.
  size_t FindTag() const {
    for (size_t i = at_; i + 1 < source_.size(); ++i) {
      const char next = source_[i + 1];
      if (source_[i] == '{' && (next == '{' || next == '%' || next == '#')) return i;
    }
    return source_.size();
  }

  // The literal text up to `tag`, less the white space that the tag takes away on its left.
  absl::Status Text(size_t tag) {
    std::string_view text = source_.substr(at_, tag - at_);
    if (tag < source_.size()) {
      const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
      if (sign == '-') {
        text = StripJinjaSpace(text, /*left=*/false, /*right=*/true);
      } else if (sign != '+' && source_[tag + 1] != '{') {
        text = WithoutIndent(text);
      }
    }
    if (!text.empty()) Put(Kind::kText, text);
    Skip(tag - at_);
    return absl::OkStatus();
  }

  // lstrip_blocks: white space between the line's beginning and a block or comment goes.
  std::string_view WithoutIndent(std::string_view text) const {
    const size_t newline = text.rfind('\n');
    const size_t begin = newline == text.npos ? 0 : newline + 1;
    const bool line_begins = newline != text.npos || at_ == 0 || source_[at_ - 1] == '\n';
    if (!line_begins || !StripJinjaSpace(text.substr(begin), true, false).empty()) return text;
    return text.substr(0, begin);
  }

  // What the end of a block or comment takes away on its right. `at_` is behind it.
  void AfterTag(char sign, bool trims_newline) {
    if (sign == '-') {
      SkipSpace();
    } else if (sign != '+' && trims_newline && At("\n")) {
      Skip(1);
    }
  }

  absl::Status Tag() {
    const int begin_line = line_;
    const char type = source_[at_ + 1];
    if (type == '#') {
      const size_t end = source_.find("#}", at_ + 2);
      if (end == source_.npos) return JinjaError(begin_line, "comment {# without #}");
      const char sign = end > at_ + 2 ? source_[end - 1] : '\0';
      Skip(end + 2 - at_);
      AfterTag(sign, /*trims_newline=*/true);
      return absl::OkStatus();
    }
    if (type == '%') {
      ASSIGN_OR_RETURN(const bool raw, RawBlock());
      if (raw) return absl::OkStatus();
    }
    const bool print = type == '{';
    Put(print ? Kind::kPrintBegin : Kind::kBlockBegin, "");
    Skip(2);
    if (At("-") || At("+")) Skip(1);
    const std::string_view close = print ? "}}" : "%}";
    int open_brackets = 0;  // "}}" closes two dicts when two are open
    while (true) {
      SkipSpace();
      if (at_ >= source_.size()) {
        return JinjaError(begin_line, Concat(print ? "{{" : "{%", " without ", close));
      }
      if (open_brackets == 0) {
        const char sign = source_[at_];
        const bool has_sign = sign == '-' || (sign == '+' && !print);
        if (source_.substr(at_ + (has_sign ? 1 : 0)).starts_with(close)) {
          Put(print ? Kind::kPrintEnd : Kind::kBlockEnd, "");
          Skip((has_sign ? 1 : 0) + 2);
          AfterTag(has_sign ? sign : '\0', /*trims_newline=*/!print);
          return absl::OkStatus();
        }
      }
      RETURN_IF_ERROR(Word(&open_brackets));
    }
  }

  // {% raw %}...{% endraw %}: true, and its text is out, when one begins here.
  absl::StatusOr<bool> RawBlock() {
    size_t p = at_ + 2;
    if (!SkipTagWord("raw", &p)) return false;
    const int begin_line = line_;
    const char begin_sign = source_[p - 3];
    Skip(p - at_);
    AfterTag(begin_sign, /*trims_newline=*/true);
    for (size_t tag = source_.find("{%", at_); tag != source_.npos;
         tag = source_.find("{%", tag + 2)) {
      size_t end = tag + 2;
      if (!SkipTagWord("endraw", &end)) continue;
      RETURN_IF_ERROR(Text(tag));
      const char end_sign = source_[end - 3];
      Skip(end - at_);
      AfterTag(end_sign, /*trims_newline=*/true);
      return true;
    }
    return JinjaError(begin_line, "{% raw %} without {% endraw %}");
  }

  // Moves `p` from behind "{%" to behind "%}" when only `word` and signs are between.
  bool SkipTagWord(std::string_view word, size_t* p) const {
    size_t at = *p;
    const auto skip_space = [&] {
      while (at < source_.size() && std::isspace(static_cast<unsigned char>(source_[at]))) ++at;
    };
    if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) ++at;
    skip_space();
    if (!source_.substr(at).starts_with(word)) return false;
    at += word.size();
    skip_space();
    if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) ++at;
    if (!source_.substr(at).starts_with("%}")) return false;
    *p = at + 2;
    return true;
  }

  absl::Status Word(int* open_brackets) {
    const char c = source_[at_];
    if (IsNameStart(c)) {
      size_t end = at_;
      while (end < source_.size() && IsNameChar(source_[end])) ++end;
      Put(Kind::kName, source_.substr(at_, end - at_));
      Skip(end - at_);
      return absl::OkStatus();
    }
    if (IsDigit(c)) return Number();
    if (c == '"' || c == '\'') return String(c);
    constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                               "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                               ">",  "<",  "=",  ".",  ":",  "|",  ","};
    for (std::string_view op : kOperators) {
      if (!At(op)) continue;
      if (op == "(" || op == "[" || op == "{") ++*open_brackets;
      if ((op == ")" || op == "]" || op == "}") && --*open_brackets < 0) {
        return JinjaError(line_, Concat("'", op, "' closes nothing"));
      }
      Put(Kind::kOperator, op);
      Skip(op.size());
      return absl::OkStatus();
    }
    return JinjaError(line_, Concat("unexpected character '",
                                    source_.substr(at_, CodePointAt(source_, at_).bytes), "'"));
  }

  absl::Status Number() {
    size_t end = at_;
    const auto digits = [&] {
      while (end < source_.size() && (IsDigit(source_[end]) || source_[end] == '_')) ++end;
    };
    digits();
    bool is_float = false;
    if (end + 1 < source_.size() && source_[end] == '.' && IsDigit(source_[end + 1])) {
      is_float = true;
      ++end;
      digits();
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) {
        ++exponent;
      }
      if (exponent < source_.size() && IsDigit(source_[exponent])) {
        is_float = true;
        end = exponent;
        digits();
      }
    }
    std::string text(source_.substr(at_, end - at_));
    std::erase(text, '_');
    Put(is_float ? Kind::kFloat : Kind::kInteger, text);
    Skip(end - at_);
    return absl::OkStatus();
  }

  absl::Status String(char quote) {
    const int begin_line = line_;
    std::string text;
    size_t p = at_ + 1;
    while (true) {
      if (p >= source_.size()) return JinjaError(begin_line, "string without its end quote");
      const char c = source_[p++];
      if (c == quote) break;
      if (c != '\\') {
        text.push_back(c);
        continue;
      }
      if (p >= source_.size()) return JinjaError(begin_line, "string without its end quote");
      RETURN_IF_ERROR(Escape(&p, &text));
    }
    Put(Kind::kString, text);
    Skip(p - at_);
    return absl::OkStatus();
  }

  // What follows a backslash, as in Python's strings; `p` is behind the backslash.
  absl::Status Escape(size_t* p, std::string* text) {
    const char c = source_[(*p)++];
    constexpr std::string_view kFrom = "\\'\"abfnrtv";
    constexpr std::string_view kTo = "\\'\"\a\b\f\n\r\t\v";
    if (const size_t i = kFrom.find(c); i != kFrom.npos) {
      text->push_back(kTo[i]);
      return absl::OkStatus();
    }
    if (c == '\n') return absl::OkStatus();  // a line that goes on
    const size_t hex_digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    char32_t value = 0;
    if (hex_digits > 0) {
      for (size_t i = 0; i < hex_digits; ++i, ++*p) {
        if (*p >= source_.size() || !std::isxdigit(static_cast<unsigned char>(source_[*p]))) {
          return JinjaError(
              line_, Concat("\\", std::string(1, c), " needs ", hex_digits, " hexadecimal digits"));
        }
        const char d = source_[*p];
        value = value * 16 + (IsDigit(d) ? d - '0' : (d | 0x20) - 'a' + 10);
      }
    } else if (c >= '0' && c <= '7') {
      value = c - '0';
      for (int i = 0; i < 2 && *p < source_.size() && source_[*p] >= '0' && source_[*p] <= '7';
           ++i) {
        value = value * 8 + (source_[(*p)++] - '0');
      }
    } else if (c == 'N') {
      return absl::UnimplementedError(
          Concat("chat template, line ", line_, ": \\N{name} in a string is not supported"));
    } else {
      text->push_back('\\');
      text->push_back(c);
      return absl::OkStatus();
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
      return JinjaError(line_, "an escape in a string is no Unicode character");
    }
    AppendUtf8(value, text);
    return absl::OkStatus();
  }

  const std::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  std::vector<JinjaToken> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<JinjaToken>> LexJinja(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    return absl::InvalidArgumentError(Concat(
        "chat template of ", source.size(), " bytes; more than ", kMaxSourceBytes, " are refused"));
  }
  if (const std::optional<size_t> bad = FirstInvalidUtf8(source)) {
    return absl::InvalidArgumentError(Concat("chat template is not valid UTF-8 at byte ", *bad));
  }
  const std::string normalized = NormalizedSource(source);
  return Lexer(normalized).Run();
}

absl::Status JinjaError(int line, std::string_view text) {
  return absl::InvalidArgumentError(Concat("chat template, line ", line, ": ", text));
}

absl::Status JinjaUnsupported(int line, std::string_view what, std::string_view name) {
  return absl::UnimplementedError(
      Concat("chat template, line ", line, ": ", what, " '", name, "' is not supported"));
}

bool IsJinjaSpace(char32_t c) {
  return ClassOf(c) == CharClass::kSpace || (c >= 0x1C && c <= 0x1F);
}

std::string_view StripJinjaSpace(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const CodePoint c = CodePointAt(text, 0);
    if (!IsJinjaSpace(c.value)) break;
    text.remove_prefix(c.bytes);
  }
  while (right && !text.empty()) {
    size_t last = text.size() - 1;
    while ((static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
    if (!IsJinjaSpace(CodePointAt(text, last).value)) break;
    text.remove_suffix(text.size() - last);
  }
  return text;
}

}  // namespace bitshard
