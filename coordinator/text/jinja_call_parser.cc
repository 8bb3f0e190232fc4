// The second half of the parser of expressions: filters, tests and arguments of calls.
#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/text/concat.h"
#include "coordinator/text/jinja_expression_parser.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

using Kind = JinjaExpr::Kind;
using TokenKind = JinjaToken::Kind;

}  // namespace

absl::StatusOr<JinjaExprPtr> JinjaExpressionParser::FiltersAndTests(JinjaExprPtr expr) {
  while (true) {
    if (tokens_.AtOperator("|")) {
      ASSIGN_OR_RETURN(expr, Filter(std::move(expr)));
    } else if (tokens_.AtName("is")) {
      ASSIGN_OR_RETURN(expr, Test(std::move(expr)));
    } else {
      return expr;
    }
  }
}

absl::StatusOr<JinjaExprPtr> JinjaExpressionParser::Filter(JinjaExprPtr input) {
  JinjaExpr node = Node(Kind::kFilter);
  tokens_.SkipOperator("|");
  ASSIGN_OR_RETURN(node.name, tokens_.TakeName("a filter's name"));
  node.filter = FindJinjaFilter(node.name);
  if (node.filter == nullptr) return JinjaUnsupported(node.line, "filter", node.name);
  node.operands.push_back(std::move(input));
  if (tokens_.AtOperator("(")) {
    ASSIGN_OR_RETURN(node.arguments, CallArguments());
  }
  RETURN_IF_ERROR(CheckFilter(node));
  return Finish(std::move(node));
}

absl::Status JinjaExpressionParser::CheckFilter(const JinjaExpr& node) const {
  const std::vector<std::string_view>& known = node.filter->arguments;
  const auto& [positional, keywords] = node.arguments;
  if (!node.filter->any_positional && positional.size() > known.size()) {
    return JinjaUnsupported(node.line, Concat("argument ", known.size() + 1, " of filter"),
                            node.name);
  }
  for (const auto& [keyword, value] : keywords) {
    if (std::find(known.begin(), known.end(), keyword) == known.end()) {
      return JinjaUnsupported(node.line, Concat("argument '", keyword, "' of filter"), node.name);
    }
  }
  // Filters and tests that are called by name: map('trim'), selectattr('role', 'equalto', 'user').
  const size_t place = node.name.ends_with("attr") ? 1 : 0;
  if (!node.filter->any_positional || node.name == "format" || positional.size() <= place) {
    return absl::OkStatus();
  }
  const JinjaExpr& inner = *positional[place];
  if (inner.kind != Kind::kLiteral || !inner.literal.is_string()) return absl::OkStatus();
  const std::string& name = inner.literal.string();
  if (node.name == "map" ? FindJinjaFilter(name) == nullptr : FindJinjaTest(name) == nullptr) {
    return JinjaUnsupported(node.line, node.name == "map" ? "filter" : "test", name);
  }
  return absl::OkStatus();
}

absl::StatusOr<JinjaExprPtr> JinjaExpressionParser::BlockFilters() {
  JinjaExpr block = Node(Kind::kName);
  block.name = kJinjaBlockText;
  ASSIGN_OR_RETURN(JinjaExprPtr expr, Finish(std::move(block)));
  do {
    ASSIGN_OR_RETURN(expr, Filter(std::move(expr)));
  } while (tokens_.AtOperator("|"));
  return expr;
}

absl::StatusOr<JinjaExprPtr> JinjaExpressionParser::Test(JinjaExprPtr input) {
  JinjaExpr node = Node(Kind::kTest);
  tokens_.Advance();
  const bool negated = tokens_.SkipName("not");
  ASSIGN_OR_RETURN(node.name, tokens_.TakeName("a test's name"));
  node.test = FindJinjaTest(node.name);
  if (input->kind == Kind::kName &&
      (node.name == "defined" || node.name == "undefined" || node.name == "callable")) {
    names_.known.insert(input->name);
  }
  if (node.test == nullptr) return JinjaUnsupported(node.line, "test", node.name);
  node.operands.push_back(std::move(input));
  const JinjaToken& token = tokens_.now();
  if (tokens_.AtOperator("(")) {
    ASSIGN_OR_RETURN(node.arguments, CallArguments());
  } else {  // one argument may do without brackets: x is equalto y
    const bool value = token.kind == TokenKind::kString || token.kind == TokenKind::kInteger ||
                       token.kind == TokenKind::kFloat || tokens_.AtOperator("[") ||
                       tokens_.AtOperator("{");
    constexpr std::string_view kNotOperands[] = {"else", "or", "and", "if", "in", "is", "not"};
    const bool name = token.kind == TokenKind::kName &&
                      std::find(std::begin(kNotOperands), std::end(kNotOperands), token.text) ==
                          std::end(kNotOperands);
    if (value || name) {
      ASSIGN_OR_RETURN(JinjaExprPtr argument, Primary());
      ASSIGN_OR_RETURN(argument, Postfix(std::move(argument)));
      node.arguments.positional.push_back(std::move(argument));
    }
  }
  const int line = node.line;
  ASSIGN_OR_RETURN(JinjaExprPtr test, Finish(std::move(node)));
  if (!negated) return test;
  JinjaExpr negation = Node(Kind::kNot);
  negation.line = line;
  negation.operands.push_back(std::move(test));
  return Finish(std::move(negation));
}

absl::StatusOr<JinjaExpr::Arguments> JinjaExpressionParser::CallArguments() {
  JinjaExpr::Arguments arguments;
  tokens_.Advance();
  bool first = true;
  while (!tokens_.AtOperator(")")) {
    if (!first) {
      RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      if (tokens_.AtOperator(")")) break;
    }
    first = false;
    if (tokens_.AtOperator("*") || tokens_.AtOperator("**")) {
      return JinjaUnsupported(tokens_.line(), "argument", Concat(tokens_.now().text, "args"));
    }
    if (tokens_.now().kind == TokenKind::kName && tokens_.next().Is(TokenKind::kOperator, "=")) {
      std::string name = tokens_.now().text;
      tokens_.Advance();
      tokens_.Advance();
      ASSIGN_OR_RETURN(JinjaExprPtr value, Expression());
      arguments.keywords.emplace_back(std::move(name), std::move(value));
      continue;
    }
    if (!arguments.keywords.empty()) {
      return JinjaError(tokens_.line(), "a positional argument after a keyword argument");
    }
    ASSIGN_OR_RETURN(JinjaExprPtr value, Expression());
    arguments.positional.push_back(std::move(value));
  }
  RETURN_IF_ERROR(tokens_.ExpectOperator(")"));
  return arguments;
}

}  // namespace bitshard
