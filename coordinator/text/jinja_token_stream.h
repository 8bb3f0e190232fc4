// A cursor over a template's tokens, shared by the two halves of the parser.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "coordinator/text/concat.h"
#include "coordinator/text/jinja_lexer.h"
#include "kernels/base/status_macros.h"

namespace bitshard {

class JinjaTokenStream {
 public:
  using Kind = JinjaToken::Kind;

  // REQUIRES: `tokens` end with kEnd.
  explicit JinjaTokenStream(std::vector<JinjaToken> tokens) : tokens_(std::move(tokens)) {}

  const JinjaToken& now() const { return tokens_[at_]; }
  const JinjaToken& next() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  int line() const { return now().line; }
  bool AtName(std::string_view name) const { return now().Is(Kind::kName, name); }
  bool AtOperator(std::string_view op) const { return now().Is(Kind::kOperator, op); }

  void Advance() {
    if (now().kind != Kind::kEnd) ++at_;
  }
  bool SkipName(std::string_view name) {
    if (!AtName(name)) return false;
    Advance();
    return true;
  }
  bool SkipOperator(std::string_view op) {
    if (!AtOperator(op)) return false;
    Advance();
    return true;
  }

  absl::Status Unexpected(std::string_view wanted) const {
    const std::string found = now().kind == Kind::kEnd        ? "the end of the template"
                              : now().kind == Kind::kBlockEnd ? "%}"
                              : now().kind == Kind::kPrintEnd ? "}}"
                              : now().kind == Kind::kText     ? "text"
                                                              : Concat("'", now().text, "'");
    return JinjaError(line(), Concat("expected ", wanted, ", found ", found));
  }
  absl::Status ExpectOperator(std::string_view op) {
    if (!SkipOperator(op)) return Unexpected(Concat("'", op, "'"));
    return absl::OkStatus();
  }
  absl::Status ExpectName(std::string_view name) {
    if (!SkipName(name)) return Unexpected(Concat("'", name, "'"));
    return absl::OkStatus();
  }
  absl::Status Expect(Kind kind, std::string_view what) {
    if (now().kind != kind) return Unexpected(what);
    Advance();
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> TakeName(std::string_view what) {
    if (now().kind != Kind::kName) return Unexpected(what);
    std::string name = now().text;
    Advance();
    return name;
  }

 private:
  std::vector<JinjaToken> tokens_;
  size_t at_ = 0;
};

}  // namespace bitshard
