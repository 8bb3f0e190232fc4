#include "coordinator/text/jinja_parser.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "coordinator/text/concat.h"
#include "coordinator/text/jinja_expression_parser.h"
#include "coordinator/text/jinja_interpreter.h"
#include "coordinator/text/jinja_lexer.h"
#include "coordinator/text/jinja_token_stream.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

using Kind = JinjaStatement::Kind;
using TokenKind = JinjaToken::Kind;
using Names = std::vector<std::string_view>;

constexpr int kMaxNesting = 100;  // of blocks

// What Jinja knows beyond us; anything else is a spelling mistake.
constexpr std::string_view kOtherStatements[] = {"include", "import",     "from",  "extends",
                                                 "block",   "autoescape", "do",    "trans",
                                                 "debug",   "pluralize",  "scoped"};

class Parser {
 public:
  explicit Parser(std::vector<JinjaToken> tokens)
      : tokens_(std::move(tokens)), expressions_(&tokens_, &names_) {}

  absl::StatusOr<JinjaBody> Run() {
    ASSIGN_OR_RETURN(JinjaBody body, Body(/*ends=*/{}));
    for (const auto& [name, line] : names_.called) {
      const auto is_name = [&](const auto& function) { return function.first == name; };
      const bool ours = std::any_of(JinjaFunctions().begin(), JinjaFunctions().end(), is_name) ||
                        name == "caller";
      if (ours || names_.known.contains(name)) continue;
      return JinjaUnsupported(line, "function", name);
    }
    return body;
  }

 private:
  JinjaStatement Statement(Kind kind) const {
    JinjaStatement statement{};
    statement.kind = kind;
    statement.line = tokens_.line();
    return statement;
  }

  // Statements up to {% NAME where NAME is one of `ends`; the cursor is then at NAME. Without
  // `ends`: up to the end.
  absl::StatusOr<JinjaBody> Body(const Names& ends) {
    if (nesting_ == kMaxNesting) {
      return JinjaError(tokens_.line(), Concat("blocks are nested deeper than ", kMaxNesting));
    }
    ++nesting_;
    JinjaBody body;
    while (true) {
      const JinjaToken& token = tokens_.now();
      if (token.kind == TokenKind::kText) {
        JinjaStatement text = Statement(Kind::kText);
        text.text = token.text;
        body.push_back(std::move(text));
        tokens_.Advance();
      } else if (token.kind == TokenKind::kPrintBegin) {
        JinjaStatement print = Statement(Kind::kPrint);
        tokens_.Advance();
        ASSIGN_OR_RETURN(print.value, expressions_.Tuple(/*conditional=*/true));
        RETURN_IF_ERROR(tokens_.Expect(TokenKind::kPrintEnd, "}}"));
        body.push_back(std::move(print));
      } else if (token.kind == TokenKind::kBlockBegin) {
        tokens_.Advance();
        if (AtEndOf(ends)) break;
        ASSIGN_OR_RETURN(JinjaStatement block, Block());
        body.push_back(std::move(block));
      } else if (token.kind == TokenKind::kEnd) {
        if (ends.empty()) break;
        return JinjaError(token.line, Concat("{% ", ends.back(), " %} is missing"));
      } else {
        return tokens_.Unexpected("text or a tag");
      }
    }
    --nesting_;
    return body;
  }

  bool AtEndOf(const Names& ends) const {
    return std::any_of(ends.begin(), ends.end(),
                       [&](std::string_view end) { return tokens_.AtName(end); });
  }

  absl::Status BlockEnd() { return tokens_.Expect(TokenKind::kBlockEnd, "%}"); }
  absl::Status BlockEnd(std::string_view name) {
    RETURN_IF_ERROR(tokens_.ExpectName(name));
    return BlockEnd();
  }

  absl::StatusOr<JinjaStatement> Block() {
    if (tokens_.AtName("if")) return If();
    if (tokens_.AtName("for")) return For();
    if (tokens_.AtName("set")) return Set();
    if (tokens_.AtName("generation")) return Generation();
    if (tokens_.AtName("macro")) return Macro();
    if (tokens_.AtName("call")) return Call();
    if (tokens_.AtName("filter")) return Filter();
    if (tokens_.AtName("with")) return With();
    if (tokens_.AtName("break") || tokens_.AtName("continue")) {
      JinjaStatement jump = Statement(tokens_.AtName("break") ? Kind::kBreak : Kind::kContinue);
      if (loops_ == 0) return JinjaError(jump.line, "break or continue outside of a loop");
      tokens_.Advance();
      RETURN_IF_ERROR(BlockEnd());
      return jump;
    }
    const JinjaToken& token = tokens_.now();
    for (std::string_view name : kOtherStatements) {
      if (!tokens_.AtName(name)) continue;
      return JinjaUnsupported(token.line, "statement", name);
    }
    return tokens_.Unexpected("a statement");
  }

  absl::StatusOr<JinjaStatement> If() {
    JinjaStatement statement = Statement(Kind::kIf);
    do {  // at "if" or "elif"
      tokens_.Advance();
      ASSIGN_OR_RETURN(JinjaExprPtr condition, expressions_.Tuple(/*conditional=*/false));
      RETURN_IF_ERROR(BlockEnd());
      ASSIGN_OR_RETURN(JinjaBody body, Body({"elif", "else", "endif"}));
      statement.conditions.push_back(std::move(condition));
      statement.bodies.push_back(std::move(body));
    } while (tokens_.AtName("elif"));
    if (tokens_.SkipName("else")) {
      RETURN_IF_ERROR(BlockEnd());
      ASSIGN_OR_RETURN(JinjaBody body, Body({"endif"}));
      statement.bodies.push_back(std::move(body));
    }
    RETURN_IF_ERROR(BlockEnd("endif"));
    return statement;
  }

  // name, name ... of `for` and `set`.
  absl::StatusOr<std::vector<std::string>> Targets() {
    std::vector<std::string> targets;
    const bool brackets = tokens_.SkipOperator("(");
    do {
      if (!targets.empty() && tokens_.now().kind != TokenKind::kName) break;  // a last comma
      ASSIGN_OR_RETURN(std::string name, tokens_.TakeName("a variable's name"));
      names_.known.insert(name);
      targets.push_back(std::move(name));
    } while (tokens_.SkipOperator(","));
    if (brackets) RETURN_IF_ERROR(tokens_.ExpectOperator(")"));
    return targets;
  }

  absl::StatusOr<JinjaStatement> For() {
    JinjaStatement statement = Statement(Kind::kFor);
    tokens_.Advance();
    ASSIGN_OR_RETURN(statement.targets, Targets());
    RETURN_IF_ERROR(tokens_.ExpectName("in"));
    ASSIGN_OR_RETURN(statement.value, expressions_.Tuple(/*conditional=*/false));
    if (tokens_.SkipName("if")) {
      ASSIGN_OR_RETURN(statement.filter, expressions_.Expression());
    }
    if (tokens_.AtName("recursive")) {
      return JinjaUnsupported(tokens_.line(), "loop", "recursive");
    }
    RETURN_IF_ERROR(BlockEnd());
    ++loops_;
    ++scopes_;
    ASSIGN_OR_RETURN(JinjaBody body, Body({"else", "endfor"}));
    --scopes_;
    --loops_;
    statement.bodies.push_back(std::move(body));
    if (tokens_.SkipName("else")) {
      RETURN_IF_ERROR(BlockEnd());
      ASSIGN_OR_RETURN(JinjaBody otherwise, Body({"endfor"}));
      statement.bodies.push_back(std::move(otherwise));
    }
    RETURN_IF_ERROR(BlockEnd("endfor"));
    return statement;
  }

  absl::StatusOr<JinjaStatement> Set() {
    JinjaStatement statement = Statement(Kind::kSet);
    tokens_.Advance();
    ASSIGN_OR_RETURN(statement.targets, Targets());
    if (statement.targets.size() == 1 && tokens_.SkipOperator(".")) {
      ASSIGN_OR_RETURN(statement.attribute, tokens_.TakeName("an attribute's name"));
    }
    if (tokens_.SkipOperator("=")) {
      ASSIGN_OR_RETURN(statement.value, expressions_.Tuple(/*conditional=*/true));
      RETURN_IF_ERROR(BlockEnd());
      return statement;
    }
    if (statement.targets.size() != 1 || statement.attribute.has_value()) {
      return tokens_.Unexpected("'='");
    }
    statement.kind = Kind::kSetBlock;
    if (tokens_.SkipOperator("|")) {
      ASSIGN_OR_RETURN(statement.value, expressions_.BlockFilters());
    }
    RETURN_IF_ERROR(InnerBody("endset", &statement));
    return statement;
  }

  // %} body {% end %}, in a scope of its own.
  absl::Status InnerBody(std::string_view end, JinjaStatement* statement) {
    RETURN_IF_ERROR(BlockEnd());
    ++scopes_;
    ASSIGN_OR_RETURN(JinjaBody body, Body({end}));
    --scopes_;
    statement->bodies.push_back(std::move(body));
    return BlockEnd(end);
  }

  // (name, name=default, ...)
  absl::Status Parameters(JinjaStatement* statement) {
    RETURN_IF_ERROR(tokens_.ExpectOperator("("));
    while (!tokens_.SkipOperator(")")) {
      if (!statement->targets.empty()) RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      ASSIGN_OR_RETURN(std::string name, tokens_.TakeName("a parameter's name"));
      names_.known.insert(name);
      statement->targets.push_back(std::move(name));
      JinjaExprPtr fallback;
      if (tokens_.SkipOperator("=")) {
        ASSIGN_OR_RETURN(fallback, expressions_.Expression());
      }
      statement->defaults.push_back(std::move(fallback));
    }
    return absl::OkStatus();
  }

  // A body that runs on a call: no break in it leaves a loop around it.
  absl::Status CalledBody(std::string_view end, JinjaStatement* statement) {
    const int loops = std::exchange(loops_, 0);
    RETURN_IF_ERROR(InnerBody(end, statement));
    loops_ = loops;
    return absl::OkStatus();
  }

  absl::StatusOr<JinjaStatement> Macro() {
    JinjaStatement statement = Statement(Kind::kMacro);
    if (scopes_ > 0) {  // its variables would be those of the scope, whatever has become of it
      return JinjaUnsupported(statement.line, "inside of a loop or block, statement", "macro");
    }
    tokens_.Advance();
    ASSIGN_OR_RETURN(statement.text, tokens_.TakeName("the macro's name"));
    names_.known.insert(statement.text);
    RETURN_IF_ERROR(Parameters(&statement));
    RETURN_IF_ERROR(CalledBody("endmacro", &statement));
    return statement;
  }

  absl::StatusOr<JinjaStatement> Call() {
    JinjaStatement statement = Statement(Kind::kCall);
    tokens_.Advance();
    if (tokens_.AtOperator("(")) RETURN_IF_ERROR(Parameters(&statement));
    ASSIGN_OR_RETURN(statement.value, expressions_.Expression());
    if (statement.value->kind != JinjaExpr::Kind::kCall) return tokens_.Unexpected("a call");
    RETURN_IF_ERROR(CalledBody("endcall", &statement));
    return statement;
  }

  absl::StatusOr<JinjaStatement> Filter() {
    JinjaStatement statement = Statement(Kind::kFilter);
    tokens_.Advance();
    ASSIGN_OR_RETURN(statement.value, expressions_.BlockFilters());
    RETURN_IF_ERROR(InnerBody("endfilter", &statement));
    return statement;
  }

  absl::StatusOr<JinjaStatement> With() {
    JinjaStatement statement = Statement(Kind::kWith);
    tokens_.Advance();
    while (tokens_.now().kind != TokenKind::kBlockEnd) {
      if (!statement.targets.empty()) RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      ASSIGN_OR_RETURN(std::string name, tokens_.TakeName("a variable's name"));
      names_.known.insert(name);
      statement.targets.push_back(std::move(name));
      RETURN_IF_ERROR(tokens_.ExpectOperator("="));
      ASSIGN_OR_RETURN(JinjaExprPtr value, expressions_.Expression());
      statement.conditions.push_back(std::move(value));
    }
    RETURN_IF_ERROR(InnerBody("endwith", &statement));
    return statement;
  }

  // Marks what the model is trained on; prints as if it were not there.
  absl::StatusOr<JinjaStatement> Generation() {
    JinjaStatement statement = Statement(Kind::kBlock);
    tokens_.Advance();
    RETURN_IF_ERROR(InnerBody("endgeneration", &statement));
    return statement;
  }

  JinjaTokenStream tokens_;
  JinjaNames names_;
  JinjaExpressionParser expressions_;
  int nesting_ = 0;
  int loops_ = 0;   // around the cursor
  int scopes_ = 0;  // around the cursor: loops, and blocks whose variables are their own
};

}  // namespace

absl::StatusOr<std::unique_ptr<const JinjaTemplate>> ParseJinja(std::string_view source) {
  ASSIGN_OR_RETURN(std::vector<JinjaToken> tokens, LexJinja(source));
  ASSIGN_OR_RETURN(JinjaBody body, Parser(std::move(tokens)).Run());
  auto result = std::make_unique<JinjaTemplate>();
  result->body = std::move(body);
  return result;
}

}  // namespace bitshard
