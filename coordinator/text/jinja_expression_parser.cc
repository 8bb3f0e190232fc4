#include "coordinator/text/jinja_expression_parser.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"

#include "coordinator/text/concat.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

using Kind = JinjaExpr::Kind;
using TokenKind = JinjaToken::Kind;

constexpr int kMaxNesting = 100;  // of brackets
constexpr int kMaxDepth = 250;    // of trees: a + b + c ... is as deep as it is long

}  // namespace

JinjaExpr JinjaExpressionParser::Node(Kind kind) const {
  JinjaExpr expr{};
  expr.kind = kind;
  expr.line = tokens_.line();
  return expr;
}

absl::StatusOr<JinjaExprPtr> JinjaExpressionParser::Finish(JinjaExpr expr) const {
  int depth = 0;
  const auto look = [&](const JinjaExprPtr& child) {
    if (child != nullptr) depth = std::max(depth, child->depth);
  };
  for (const JinjaExprPtr& child : expr.operands) look(child);
  for (const JinjaExprPtr& child : expr.arguments.positional) look(child);
  for (const auto& [name, child] : expr.arguments.keywords) look(child);
  expr.depth = depth + 1;
  if (expr.depth > kMaxDepth) {
    return JinjaError(expr.line, Concat("an expression is nested deeper than ", kMaxDepth));
  }
  return std::make_unique<const JinjaExpr>(std::move(expr));
}

absl::StatusOr<JinjaExprPtr> JinjaExpressionParser::Binary(JinjaOp op, int line, JinjaExprPtr left,
                                                           JinjaExprPtr right) {
  JinjaExpr expr = Node(Kind::kBinary);
  expr.line = line;
  expr.op = op;
  expr.operands.push_back(std::move(left));
  expr.operands.push_back(std::move(right));
  return Finish(std::move(expr));
}

absl::StatusOr<JinjaExprPtr> JinjaExpressionParser::Expression() {
  if (nesting_ == kMaxNesting) {
    return JinjaError(tokens_.line(), Concat("brackets are nested deeper than ", kMaxNesting));
  }
  ++nesting_;
  ASSIGN_OR_RETURN(JinjaExprPtr expr, Or());
  while (tokens_.AtName("if")) {
    JinjaExpr inline_if = Node(Kind::kInlineIf);
    tokens_.Advance();
    ASSIGN_OR_RETURN(JinjaExprPtr condition, Or());
    JinjaExprPtr otherwise;
    if (tokens_.SkipName("else")) {
      ASSIGN_OR_RETURN(otherwise, Expression());
    }
    inline_if.operands.push_back(std::move(expr));
    inline_if.operands.push_back(std::move(condition));
    inline_if.operands.push_back(std::move(otherwise));
    ASSIGN_OR_RETURN(expr, Finish(std::move(inline_if)));
  }
  --nesting_;
  return expr;
}

absl::StatusOr<JinjaExprPtr> JinjaExpressionParser::Tuple(bool conditional) {
  const auto element = [&] { return conditional ? Expression() : Or(); };
  JinjaExpr tuple = Node(Kind::kTuple);
  ASSIGN_OR_RETURN(JinjaExprPtr first, element());
  if (!tokens_.AtOperator(",")) return first;
  tuple.operands.push_back(std::move(first));
  while (tokens_.SkipOperator(",")) {
    const TokenKind kind = tokens_.now().kind;
    if (kind == TokenKind::kBlockEnd || kind == TokenKind::kPrintEnd || tokens_.AtOperator(")")) {
      break;
    }
    ASSIGN_OR_RETURN(JinjaExprPtr next, element());
    tuple.operands.push_back(std::move(next));
  }
  return Finish(std::move(tuple));
}

absl::StatusOr<JinjaExprPtr> JinjaExpressionParser::Or() {
  ASSIGN_OR_RETURN(JinjaExprPtr left, And());
  while (tokens_.AtName("or")) {
    JinjaExpr expr = Node(Kind::kOr);
    tokens_.Advance();
    ASSIGN_OR_RETURN(JinjaExprPtr right, And());
    expr.operands.push_back(std::move(left));
    expr.operands.push_back(std::move(right));
    ASSIGN_OR_RETURN(left, Finish(std::move(expr)));
  }
  return left;
}

absl::StatusOr<JinjaExprPtr> JinjaExpressionParser::And() {
  ASSIGN_OR_RETURN(JinjaExprPtr left, Not());
  while (tokens_.AtName("and")) {
    JinjaExpr expr = Node(Kind::kAnd);
    tokens_.Advance();
    ASSIGN_OR_RETURN(JinjaExprPtr right, Not());
    expr.operands.push_back(std::move(left));
    expr.operands.push_back(std::move(right));
    ASSIGN_OR_RETURN(left, Finish(std::move(expr)));
  }
  return left;
}

absl::StatusOr<JinjaExprPtr> JinjaExpressionParser::Not() {
  int count = 0;
  const int line = tokens_.line();
  while (tokens_.SkipName("not")) ++count;
  ASSIGN_OR_RETURN(JinjaExprPtr expr, Compare());
  // Two of them make a bool of the value, any further pair changes nothing.
  for (int i = count > 2 ? 2 - count % 2 : count; i > 0; --i) {
    JinjaExpr negation = Node(Kind::kNot);
    negation.line = line;
    negation.operands.push_back(std::move(expr));
    ASSIGN_OR_RETURN(expr, Finish(std::move(negation)));
  }
  return expr;
}

absl::StatusOr<JinjaExprPtr> JinjaExpressionParser::Compare() {
  constexpr std::pair<std::string_view, JinjaCompare> kCompares[] = {
      {"==", JinjaCompare::kEq}, {"!=", JinjaCompare::kNe}, {"<=", JinjaCompare::kLe},
      {">=", JinjaCompare::kGe}, {"<", JinjaCompare::kLt},  {">", JinjaCompare::kGt}};
  JinjaExpr expr = Node(Kind::kCompare);
  ASSIGN_OR_RETURN(JinjaExprPtr first, Sum());
  while (true) {
    std::optional<JinjaCompare> compare;
    for (const auto& [op, value] : kCompares) {
      if (tokens_.AtOperator(op)) compare = value;
    }
    if (tokens_.AtName("in")) compare = JinjaCompare::kIn;
    if (tokens_.AtName("not") && tokens_.next().Is(TokenKind::kName, "in")) {
      tokens_.Advance();
      compare = JinjaCompare::kNotIn;
    }
    if (!compare.has_value()) break;
    tokens_.Advance();
    if (expr.operands.empty()) expr.operands.push_back(std::move(first));
    ASSIGN_OR_RETURN(JinjaExprPtr right, Sum());
    expr.compares.push_back(*compare);
    expr.operands.push_back(std::move(right));
  }
  if (expr.operands.empty()) return first;
  return Finish(std::move(expr));
}

absl::StatusOr<JinjaExprPtr> JinjaExpressionParser::Sum() {
  ASSIGN_OR_RETURN(JinjaExprPtr left, Concatenation());
  while (tokens_.AtOperator("+") || tokens_.AtOperator("-")) {
    const JinjaOp op = tokens_.AtOperator("+") ? JinjaOp::kAdd : JinjaOp::kSub;
    const int line = tokens_.line();
    tokens_.Advance();
    ASSIGN_OR_RETURN(JinjaExprPtr right, Concatenation());
    ASSIGN_OR_RETURN(left, Binary(op, line, std::move(left), std::move(right)));
  }
  return left;
}

absl::StatusOr<JinjaExprPtr> JinjaExpressionParser::Concatenation() {
  ASSIGN_OR_RETURN(JinjaExprPtr left, Product());
  while (tokens_.AtOperator("~")) {
    const int line = tokens_.line();
    tokens_.Advance();
    ASSIGN_OR_RETURN(JinjaExprPtr right, Product());
    ASSIGN_OR_RETURN(left, Binary(JinjaOp::kConcat, line, std::move(left), std::move(right)));
  }
  return left;
}

absl::StatusOr<JinjaExprPtr> JinjaExpressionParser::Product() {
  constexpr std::pair<std::string_view, JinjaOp> kOps[] = {
      {"*", JinjaOp::kMul}, {"/", JinjaOp::kDiv}, {"//", JinjaOp::kFloorDiv}, {"%", JinjaOp::kMod}};
  ASSIGN_OR_RETURN(JinjaExprPtr left, Unary(/*with_filter=*/true));
  while (true) {
    std::optional<JinjaOp> op;
    for (const auto& [text, value] : kOps) {
      if (tokens_.AtOperator(text)) op = value;
    }
    const int line = tokens_.line();
    if (tokens_.AtOperator("**")) return JinjaUnsupported(line, "operator", "**");
    if (!op.has_value()) return left;
    tokens_.Advance();
    ASSIGN_OR_RETURN(JinjaExprPtr right, Unary(/*with_filter=*/true));
    ASSIGN_OR_RETURN(left, Binary(*op, line, std::move(left), std::move(right)));
  }
}

absl::StatusOr<JinjaExprPtr> JinjaExpressionParser::Unary(bool with_filter) {
  JinjaExprPtr expr;
  if (tokens_.AtOperator("-") || tokens_.AtOperator("+")) {
    JinjaExpr negation = Node(Kind::kNegate);
    const bool negate = tokens_.AtOperator("-");
    if (nesting_ == kMaxNesting) return JinjaError(tokens_.line(), "too many signs in a row");
    tokens_.Advance();
    ++nesting_;
    ASSIGN_OR_RETURN(expr, Unary(/*with_filter=*/false));
    --nesting_;
    if (negate) {
      negation.operands.push_back(std::move(expr));
      ASSIGN_OR_RETURN(expr, Finish(std::move(negation)));
    }
  } else {
    ASSIGN_OR_RETURN(expr, Primary());
  }
  ASSIGN_OR_RETURN(expr, Postfix(std::move(expr)));
  return with_filter ? FiltersAndTests(std::move(expr)) : std::move(expr);
}

absl::StatusOr<JinjaExprPtr> JinjaExpressionParser::Primary() {
  const JinjaToken& token = tokens_.now();
  JinjaExpr expr = Node(Kind::kLiteral);
  switch (token.kind) {
    case TokenKind::kName: {
      const std::string& name = token.text;
      if (name == "true" || name == "True") {
        expr.literal = JinjaValue::Bool(true);
      } else if (name == "false" || name == "False") {
        expr.literal = JinjaValue::Bool(false);
      } else if (name == "none" || name == "None") {
        expr.literal = JinjaValue::MakeNone();
      } else {
        expr.kind = Kind::kName;
        expr.name = name;
      }
      tokens_.Advance();
      return Finish(std::move(expr));
    }
    case TokenKind::kString: {
      std::string text;
      while (tokens_.now().kind == TokenKind::kString) {  // 'a' 'b' is 'ab'
        text += tokens_.now().text;
        tokens_.Advance();
      }
      expr.literal = JinjaValue::String(std::move(text));
      return Finish(std::move(expr));
    }
    case TokenKind::kInteger: {
      int64_t value = 0;
      if (!absl::SimpleAtoi(token.text, &value)) {
        return JinjaError(token.line, Concat("the integer ", token.text, " is too large"));
      }
      expr.literal = JinjaValue::Int(value);
      tokens_.Advance();
      return Finish(std::move(expr));
    }
    case TokenKind::kFloat: {
      double value = 0;
      if (!absl::SimpleAtod(token.text, &value)) return tokens_.Unexpected("a number");
      expr.literal = JinjaValue::Float(value);
      tokens_.Advance();
      return Finish(std::move(expr));
    }
    case TokenKind::kOperator:
      if (token.text == "(") return Parenthesized();
      if (token.text == "[") return ListLiteral();
      if (token.text == "{") return DictLiteral();
      [[fallthrough]];
    default:
      return tokens_.Unexpected("an expression");
  }
}

absl::StatusOr<JinjaExprPtr> JinjaExpressionParser::Parenthesized() {
  JinjaExpr empty = Node(Kind::kTuple);
  tokens_.Advance();
  if (tokens_.SkipOperator(")")) return Finish(std::move(empty));
  ASSIGN_OR_RETURN(JinjaExprPtr expr, Tuple(/*conditional=*/true));
  RETURN_IF_ERROR(tokens_.ExpectOperator(")"));
  return expr;
}

absl::StatusOr<JinjaExprPtr> JinjaExpressionParser::ListLiteral() {
  JinjaExpr list = Node(Kind::kList);
  tokens_.Advance();
  while (!tokens_.AtOperator("]")) {
    if (!list.operands.empty()) {
      RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      if (tokens_.AtOperator("]")) break;
    }
    ASSIGN_OR_RETURN(JinjaExprPtr item, Expression());
    list.operands.push_back(std::move(item));
  }
  RETURN_IF_ERROR(tokens_.ExpectOperator("]"));
  return Finish(std::move(list));
}

absl::StatusOr<JinjaExprPtr> JinjaExpressionParser::DictLiteral() {
  JinjaExpr dict = Node(Kind::kDict);
  tokens_.Advance();
  while (!tokens_.AtOperator("}")) {
    if (!dict.operands.empty()) {
      RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      if (tokens_.AtOperator("}")) break;
    }
    ASSIGN_OR_RETURN(JinjaExprPtr key, Expression());
    if (key->kind == Kind::kLiteral && !key->literal.is_string()) {
      return JinjaUnsupported(key->line, "dict key of type", key->literal.TypeName());
    }
    RETURN_IF_ERROR(tokens_.ExpectOperator(":"));
    ASSIGN_OR_RETURN(JinjaExprPtr value, Expression());
    dict.operands.push_back(std::move(key));
    dict.operands.push_back(std::move(value));
  }
  RETURN_IF_ERROR(tokens_.ExpectOperator("}"));
  return Finish(std::move(dict));
}

absl::StatusOr<JinjaExprPtr> JinjaExpressionParser::Postfix(JinjaExprPtr expr) {
  while (true) {
    if (tokens_.AtOperator("[")) {
      ASSIGN_OR_RETURN(expr, Subscript(std::move(expr)));
    } else if (tokens_.AtOperator(".")) {
      JinjaExpr node = Node(Kind::kAttribute);
      tokens_.Advance();
      if (tokens_.now().kind == TokenKind::kInteger) return tokens_.Unexpected("a name after '.'");
      ASSIGN_OR_RETURN(node.name, tokens_.TakeName("a name after '.'"));
      node.operands.push_back(std::move(expr));
      if (tokens_.AtOperator("(")) {
        node.kind = Kind::kMethod;
        node.method = FindJinjaMethod(node.name);
        if (node.method == nullptr) return JinjaUnsupported(node.line, "method", node.name);
        ASSIGN_OR_RETURN(node.arguments, CallArguments());
      }
      ASSIGN_OR_RETURN(expr, Finish(std::move(node)));
    } else if (tokens_.AtOperator("(")) {
      JinjaExpr call = Node(Kind::kCall);
      if (expr->kind == Kind::kName) names_.called.emplace(expr->name, call.line);
      call.operands.push_back(std::move(expr));
      ASSIGN_OR_RETURN(call.arguments, CallArguments());
      ASSIGN_OR_RETURN(expr, Finish(std::move(call)));
    } else {
      return expr;
    }
  }
}

absl::StatusOr<JinjaExprPtr> JinjaExpressionParser::Subscript(JinjaExprPtr object) {
  JinjaExpr node = Node(Kind::kItem);
  tokens_.Advance();
  node.operands.push_back(std::move(object));
  while (true) {  // an index, or up to three parts of a slice
    JinjaExprPtr part;
    if (!tokens_.AtOperator(":") && !tokens_.AtOperator("]")) {
      ASSIGN_OR_RETURN(part, Expression());
    }
    node.operands.push_back(std::move(part));
    if (!tokens_.AtOperator(":") || node.operands.size() == 4) break;
    node.kind = Kind::kSlice;
    tokens_.Advance();
  }
  RETURN_IF_ERROR(tokens_.ExpectOperator("]"));
  if (node.kind == Kind::kItem && node.operands[1] == nullptr) {
    return JinjaError(node.line, "[] without an index");
  }
  if (node.kind == Kind::kSlice) node.operands.resize(4);
  return Finish(std::move(node));
}

}  // namespace bitshard
