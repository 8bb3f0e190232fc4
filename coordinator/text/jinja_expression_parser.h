// Expressions of templates, from tokens to tree, with Jinja's precedences.
//
// Filters, tests and methods are looked up here, so that a template that wants one that we do not
// have is refused (UNIMPLEMENTED, by name) when its model is loaded.
#pragma once

#include <map>
#include <set>
#include <string>

#include "absl/status/statusor.h"

#include "coordinator/text/jinja_ast.h"
#include "coordinator/text/jinja_token_stream.h"

namespace bitshard {

// Names as a template uses them: a function that it calls and nobody defines is one that we do not
// have, unless it asks before.
struct JinjaNames {
  std::map<std::string, int> called;  // name -> line of the first call
  std::set<std::string> known;        // assigned somewhere, or asked for: "is defined"
};

class JinjaExpressionParser {
 public:
  // Both streams of calls, this parser's and its owner's, move the same cursor. Both pointers must
  // outlive this object.
  JinjaExpressionParser(JinjaTokenStream* tokens, JinjaNames* names)
      : tokens_(*tokens), names_(*names) {}

  absl::StatusOr<JinjaExprPtr> Expression();
  // One expression, or several with commas: a tuple then. Without `conditional` an `if` that
  // follows is left alone (it is a loop's filter).
  absl::StatusOr<JinjaExprPtr> Tuple(bool conditional);
  // kJinjaBlockText | filter | filter ...: the cursor is at the first filter's name.
  absl::StatusOr<JinjaExprPtr> BlockFilters();

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
  absl::Status CheckFilter(const JinjaExpr& node) const;
  absl::StatusOr<JinjaExprPtr> Test(JinjaExprPtr input);
  absl::StatusOr<JinjaExpr::Arguments> CallArguments();

  // Sets the depth and refuses trees that are too deep to walk.
  absl::StatusOr<JinjaExprPtr> Finish(JinjaExpr expr) const;
  JinjaExpr Node(JinjaExpr::Kind kind) const;
  absl::StatusOr<JinjaExprPtr> Binary(JinjaOp op, int line, JinjaExprPtr left, JinjaExprPtr right);

  JinjaTokenStream& tokens_;
  JinjaNames& names_;
  int nesting_ = 0;  // of calls of Expression
};

}  // namespace bitshard
