// Runs a parsed template: one object a rendering, one thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "coordinator/text/jinja_ast.h"
#include "coordinator/text/jinja_value.h"

namespace bitshard {

class JinjaInterpreter {
 public:
  // `heap` holds all values, those of `variables` too, and must outlive this object.
  JinjaInterpreter(std::vector<std::pair<std::string, JinjaValue>> variables, JinjaHeap* heap);

  // Appends what the program prints. INVALID_ARGUMENT when the program fails or calls
  // raise_exception, RESOURCE_EXHAUSTED past the limits; both name the line.
  absl::Status Run(const JinjaTemplate& program, std::string* out);

 private:
  enum class Flow { kOn, kBreak, kContinue };
  class Scope;

  absl::StatusOr<Flow> RunBody(const JinjaBody& body, std::string* out);
  // In a scope of its own.
  absl::StatusOr<Flow> RunInner(const JinjaBody& body, std::string* out);
  absl::StatusOr<Flow> RunStatement(const JinjaStatement& statement, std::string* out);
  absl::StatusOr<Flow> RunFor(const JinjaStatement& statement, std::string* out);
  absl::Status RunSet(const JinjaStatement& statement);
  absl::Status Print(std::string_view text, std::string* out);

  absl::StatusOr<JinjaValue> Eval(const JinjaExpr& expr);
  absl::StatusOr<JinjaValue> EvalCompare(const JinjaExpr& expr);
  absl::StatusOr<JinjaValue> EvalAttribute(const JinjaExpr& expr);
  absl::StatusOr<JinjaValue> EvalSlice(const JinjaExpr& expr);
  absl::StatusOr<JinjaValue> EvalCall(const JinjaExpr& expr);
  absl::StatusOr<JinjaArguments> EvalArguments(const JinjaExpr::Arguments& arguments);
  absl::StatusOr<std::vector<JinjaValue>> EvalAll(const std::vector<JinjaExprPtr>& exprs);

  // Variables: the innermost scope is the last; loops and blocks open scopes, ifs do not.
  JinjaValue Lookup(std::string_view name) const;
  void Assign(std::string_view name, JinjaValue value);
  absl::Status AssignTargets(const std::vector<std::string>& targets, const JinjaValue& value);

  JinjaHeap* heap_;
  std::vector<std::pair<std::string, JinjaValue>> variables_;
  size_t scope_begin_ = 0;  // of the innermost scope in variables_
};

}  // namespace bitshard
