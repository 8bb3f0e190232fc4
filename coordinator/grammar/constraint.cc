#include "coordinator/grammar/constraint.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"

#include "coordinator/grammar/schema_check.h"
#include "proto/status_details.h"

namespace bitshard {
namespace {

// The deepest nesting of ( outside of quotes, classes and comments. Wrong texts give some number:
// they do not compile anyway.
int ParenthesesDepth(absl::string_view text, bool is_grammar) {
  int depth = 0, deepest = 0;
  char closing = 0;  // of the quote or class that we are in
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\') {
      ++i;
    } else if (closing != 0) {
      if (c == closing) closing = 0;
    } else if (is_grammar && c == '#') {
      while (i + 1 < text.size() && text[i + 1] != '\n') ++i;
    } else if (is_grammar && c == '"') {
      closing = '"';
    } else if (c == '[') {
      closing = ']';
    } else if (c == '(') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ')') {
      --depth;
    }
  }
  return deepest;
}

absl::Status CheckOptions(const Constraint& constraint) {
  const std::vector<std::string>& options = constraint.options;
  if (options.empty() || options.size() > kMaxConstraintOptions) {
    return BadFieldError(constraint.Field(), absl::StrCat("must have 1 to ", kMaxConstraintOptions,
                                                          ", not ", options.size()));
  }
  size_t bytes = 0;
  for (size_t i = 0; i < options.size(); ++i) {
    bytes += options[i].size();
    if (options[i].empty() || options[i].find('\0') != std::string::npos) {
      return BadFieldError(absl::StrCat(constraint.Field(), "[", i, "]"),
                           "must not be empty and must have no NUL");
    }
  }
  if (bytes > kMaxConstraintBytes) {
    return BadFieldError(constraint.Field(), absl::StrCat("must have at most ", kMaxConstraintBytes,
                                                          " bytes in all, not ", bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view Constraint::Field() const {
  switch (kind) {
    case Kind::kJsonSchema:
      return "constraint.json_schema";
    case Kind::kRegex:
      return "constraint.regex";
    case Kind::kGrammar:
      return "constraint.grammar";
    case Kind::kChoice:
      return "constraint.choice.options";
  }
  return "constraint";
}

std::string Constraint::Key() const {
  std::string key = absl::StrCat(static_cast<int>(kind), ":", text);
  for (const std::string& option : options) absl::StrAppend(&key, option.size(), ":", option);
  return key;
}

absl::Status CheckConstraint(const Constraint& constraint) {
  if (constraint.kind == Constraint::Kind::kChoice) return CheckOptions(constraint);
  const std::string& text = constraint.text;
  if (text.empty() || text.size() > kMaxConstraintBytes) {
    return BadFieldError(constraint.Field(), absl::StrCat("must have 1 to ", kMaxConstraintBytes,
                                                          " bytes, not ", text.size()));
  }
  if (text.find('\0') != std::string::npos)
    return BadFieldError(constraint.Field(), "must have no NUL");
  if (constraint.kind == Constraint::Kind::kJsonSchema) {
    const std::optional<std::string> wrong = WrongInSchema(text);
    return wrong.has_value() ? BadFieldError(constraint.Field(), *wrong) : absl::OkStatus();
  }
  const int depth = ParenthesesDepth(text, constraint.kind == Constraint::Kind::kGrammar);
  if (depth > kMaxConstraintNesting) {
    return BadFieldError(constraint.Field(),
                         absl::StrCat("has parentheses ", depth, " deep, at most ",
                                      kMaxConstraintNesting, " are allowed"));
  }
  return absl::OkStatus();
}

}  // namespace bitshard
