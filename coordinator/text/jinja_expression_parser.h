// Expressions of templates, from tokens to tree, with Jinja's precedences.
//
// Filters, tests and methods are looked up here, so that a template that wants one that we do not
// have is refused (UNIMPLEMENTED, by name) when its model is loaded.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "coordinator/text/jinja_ast.h"
#include "coordinator/text/jinja_token_stream.h"

namespace bitshard {

class JinjaExpressionParser {
 public:
  // Both streams of calls, this parser's and its owner's, move the same cursor. It must outlive
  // this object.
  explicit JinjaExpressionParser(JinjaTokenStream* tokens) : tokens_(*tokens) {}

  absl::StatusOr<JinjaExprPtr> Expression();
  // One expression, or several with commas: a tuple then. Without `conditional` an `if` that
  // follows is left alone (it is a loop's filter).
  absl::StatusOr<JinjaExprPtr> Tuple(bool conditional);

 private:
  absl::StatusOr<JinjaExprPtr> Or();
  absl::StatusOr<JinjaExprPtr> And();
  absl::StatusOr<JinjaExprPtr> Not();
  absl::StatusOr<JinjaExprPtr> Compare();
  absl::StatusOr<JinjaExprPtr> Sum();
  absl::StatusOr<JinjaExprPtr> Concatenation();
  absl::StatusOr<JinjaExprPtr> Product();
  absl::StatusOr<JinjaExprPtr> Unary(bool with_filter);
  absl::StatusOr<JinjaExprPtr> Primary();
  absl::StatusOr<JinjaExprPtr> Parenthesized();
  absl::StatusOr<JinjaExprPtr> ListLiteral();
  absl::StatusOr<JinjaExprPtr> DictLiteral();
  absl::StatusOr<JinjaExprPtr> Postfix(JinjaExprPtr expr);
  absl::StatusOr<JinjaExprPtr> Subscript(JinjaExprPtr object);
  absl::StatusOr<JinjaExprPtr> FiltersAndTests(JinjaExprPtr expr);
  absl::StatusOr<JinjaExprPtr> Filter(JinjaExprPtr input);
  absl::StatusOr<JinjaExprPtr> Test(JinjaExprPtr input);
  absl::StatusOr<JinjaExpr::Arguments> CallArguments();

  // Sets the depth and refuses trees that are too deep to walk.
  absl::StatusOr<JinjaExprPtr> Finish(JinjaExpr expr) const;
  JinjaExpr Node(JinjaExpr::Kind kind) const;
  absl::StatusOr<JinjaExprPtr> Binary(JinjaOp op, int line, JinjaExprPtr left, JinjaExprPtr right);

  JinjaTokenStream& tokens_;
  int nesting_ = 0;  // of calls of Expression
};

}  // namespace bitshard
