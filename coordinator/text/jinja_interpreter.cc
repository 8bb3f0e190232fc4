#include "coordinator/text/jinja_interpreter.h"

#include <cstdint>

#include "coordinator/text/concat.h"
#include "coordinator/text/jinja_filters.h"
#include "coordinator/text/jinja_lexer.h"
#include "coordinator/text/jinja_operators.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

using ExprKind = JinjaExpr::Kind;
using StatementKind = JinjaStatement::Kind;

constexpr size_t kMaxOutputBytes = size_t{16} << 20;
// The error with the line of the statement that met it first.
absl::Status AtLine(int line, const absl::Status& status) {
  const std::string text =
      JinjaShown(std::string_view(status.message().data(), status.message().size()));
  if (text.starts_with("chat template")) return status;
  return absl::Status(status.code(), Concat("chat template, line ", line, ": ", text));
}

// Sets the members of `loop`, one object for all rounds of a loop.
void SetLoop(const std::vector<JinjaValue>& items, size_t at, JinjaDict* loop) {
  const int64_t index = static_cast<int64_t>(at);
  const int64_t length = static_cast<int64_t>(items.size());
  loop->Set("index", JinjaValue::Int(index + 1));
  loop->Set("index0", JinjaValue::Int(index));
  loop->Set("revindex", JinjaValue::Int(length - index));
  loop->Set("revindex0", JinjaValue::Int(length - index - 1));
  loop->Set("first", JinjaValue::Bool(at == 0));
  loop->Set("last", JinjaValue::Bool(at + 1 == items.size()));
  loop->Set("length", JinjaValue::Int(length));
  loop->Set("previtem", at > 0 ? items[at - 1] : JinjaValue::MakeUndefined("previtem"));
  loop->Set("nextitem",
            at + 1 < items.size() ? items[at + 1] : JinjaValue::MakeUndefined("nextitem"));
  loop->Set("depth", JinjaValue::Int(1));  // there are no recursive loops
  loop->Set("depth0", JinjaValue::Int(0));
}

}  // namespace

JinjaInterpreter::JinjaInterpreter(std::vector<std::pair<std::string, JinjaValue>> variables,
                                   absl::Time now, JinjaHeap* heap)
    : heap_(heap), now_(now), given_(std::move(variables)) {
  for (const auto& [name, value] : given_) variables_.emplace_back(name, value);
  for (const auto& [name, function] : JinjaFunctions()) {
    variables_.emplace_back(name, JinjaValue::Function(function));
  }
}

absl::Status JinjaInterpreter::Run(const JinjaTemplate& program, JinjaText* out) {
  JinjaWriter text(heap_);
  RETURN_IF_ERROR(RunBody(program.body, &text).status());
  *out = text.Take();
  return absl::OkStatus();
}

absl::Status JinjaInterpreter::PrintValue(const JinjaValue& value, JinjaWriter* out) {
  const auto print = [out](const JinjaText& text) -> absl::Status {
    if (out->size() + text.size() > kMaxOutputBytes) {
      return absl::ResourceExhaustedError(
          Concat("the template prints more than ", kMaxOutputBytes, " bytes"));
    }
    return out->Append(text);
  };
  if (value.is_string()) return print(value.text());
  ASSIGN_OR_RETURN(const JinjaString text, JinjaToText(value, heap_));
  return print(*text);
}

absl::StatusOr<JinjaInterpreter::Flow> JinjaInterpreter::RunBody(const JinjaBody& body,
                                                                 JinjaWriter* out) {
  Depth depth(this);
  RETURN_IF_ERROR(depth.Check());
  for (const JinjaStatement& statement : body) {
    absl::StatusOr<Flow> flow = RunStatement(statement, out);
    if (!flow.ok()) return AtLine(statement.line, flow.status());
    if (*flow != Flow::kOn) return flow;
  }
  return Flow::kOn;
}

absl::StatusOr<JinjaInterpreter::Flow> JinjaInterpreter::RunInner(const JinjaBody& body,
                                                                  JinjaWriter* out) {
  Scope scope(this);
  return RunBody(body, out);
}

absl::StatusOr<JinjaInterpreter::Flow> JinjaInterpreter::RunStatement(
    const JinjaStatement& statement, JinjaWriter* out) {
  RETURN_IF_ERROR(heap_->ChargeStep());
  switch (statement.kind) {
    case StatementKind::kText:
      if (out->size() + statement.text.size() > kMaxOutputBytes) {
        return absl::ResourceExhaustedError(
            Concat("the template prints more than ", kMaxOutputBytes, " bytes"));
      }
      RETURN_IF_ERROR(out->Append(statement.text));
      return Flow::kOn;
    case StatementKind::kPrint: {
      ASSIGN_OR_RETURN(const JinjaValue value, Eval(*statement.value));
      RETURN_IF_ERROR(PrintValue(value, out));
      return Flow::kOn;
    }
    case StatementKind::kIf:
      for (size_t i = 0; i < statement.conditions.size(); ++i) {
        ASSIGN_OR_RETURN(const JinjaValue condition, Eval(*statement.conditions[i]));
        if (condition.Truthy()) return RunBody(statement.bodies[i], out);
      }
      if (statement.bodies.size() > statement.conditions.size()) {
        return RunBody(statement.bodies.back(), out);
      }
      return Flow::kOn;
    case StatementKind::kFor:
      return RunFor(statement, out);
    case StatementKind::kSet:
      RETURN_IF_ERROR(RunSet(statement));
      return Flow::kOn;
    case StatementKind::kSetBlock: {
      JinjaWriter text(heap_);
      ASSIGN_OR_RETURN(const Flow flow, RunInner(statement.bodies[0], &text));
      JinjaValue value = text.TakeValue();
      if (statement.value != nullptr) {
        ASSIGN_OR_RETURN(value, Filtered(*statement.value, std::move(value)));
      }
      Assign(statement.targets[0], std::move(value));
      return flow;
    }
    case StatementKind::kFilter: {
      JinjaWriter text(heap_);
      ASSIGN_OR_RETURN(const Flow flow, RunInner(statement.bodies[0], &text));
      JinjaValue value = text.TakeValue();
      ASSIGN_OR_RETURN(value, Filtered(*statement.value, std::move(value)));
      RETURN_IF_ERROR(PrintValue(value, out));
      return flow;
    }
    case StatementKind::kWith:
      return RunWith(statement, out);
    case StatementKind::kMacro: {
      RETURN_IF_ERROR(heap_->ChargeBytes(sizeof(JinjaMacro)));
      Assign(statement.text, JinjaValue::Macro(heap_->NewMacro({.statement = &statement})));
      return Flow::kOn;
    }
    case StatementKind::kCall:
      RETURN_IF_ERROR(RunCallBlock(statement, out));
      return Flow::kOn;
    case StatementKind::kBlock:
      return RunInner(statement.bodies[0], out);
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kOn;
}

absl::StatusOr<JinjaInterpreter::Flow> JinjaInterpreter::RunFor(const JinjaStatement& statement,
                                                                JinjaWriter* out) {
  ASSIGN_OR_RETURN(const JinjaValue iterable, Eval(*statement.value));
  ASSIGN_OR_RETURN(std::vector<JinjaValue> items, JinjaIterate(iterable, heap_));
  bool any_round_complete = false;
  {
    Scope scope(this);
    if (statement.filter != nullptr) {
      std::vector<JinjaValue> kept;
      for (JinjaValue& item : items) {
        RETURN_IF_ERROR(AssignTargets(statement.targets, item));
        ASSIGN_OR_RETURN(const JinjaValue keep, Eval(*statement.filter));
        if (keep.Truthy()) kept.push_back(std::move(item));
      }
      items = std::move(kept);
    }
    RETURN_IF_ERROR(heap_->ChargeBytes(sizeof(JinjaDict) + 11 * JinjaDict::CostOf("revindex0")));
    JinjaDict* loop = heap_->NewDict();
    for (size_t i = 0; i < items.size(); ++i) {
      scope.Clear();
      RETURN_IF_ERROR(heap_->ChargeStep());
      RETURN_IF_ERROR(AssignTargets(statement.targets, items[i]));
      SetLoop(items, i, loop);
      Assign("loop", JinjaValue::Dict(loop));
      ASSIGN_OR_RETURN(const Flow flow, RunBody(statement.bodies[0], out));
      any_round_complete |= flow == Flow::kOn;
      if (flow == Flow::kBreak) break;
    }
  }
  // As Jinja does it: a loop that only ever left its body by break or continue runs the else, too.
  if (!any_round_complete && statement.bodies.size() > 1) {
    return RunBody(statement.bodies[1], out);
  }
  return Flow::kOn;
}

absl::StatusOr<JinjaInterpreter::Flow> JinjaInterpreter::RunWith(const JinjaStatement& statement,
                                                                 JinjaWriter* out) {
  // All values are those of outside.
  ASSIGN_OR_RETURN(const std::vector<JinjaValue> values, EvalAll(statement.conditions));
  Scope scope(this);
  for (size_t i = 0; i < values.size(); ++i) Assign(statement.targets[i], values[i]);
  return RunBody(statement.bodies[0], out);
}

absl::StatusOr<JinjaValue> JinjaInterpreter::Filtered(const JinjaExpr& filters, JinjaValue text) {
  Scope scope(this);
  Assign(kJinjaBlockText, std::move(text));
  return Eval(filters);
}

absl::Status JinjaInterpreter::RunSet(const JinjaStatement& statement) {
  ASSIGN_OR_RETURN(JinjaValue value, Eval(*statement.value));
  if (!statement.attribute.has_value()) return AssignTargets(statement.targets, value);
  const JinjaValue object = Lookup(statement.targets[0]);
  RETURN_IF_ERROR(object.CheckDefined());
  if (!object.is_dict() || !object.dict().is_namespace) {
    return absl::InvalidArgumentError(
        Concat("cannot assign attribute on ", object.TypeName(), ", only on a namespace"));
  }
  if (object.dict().Find(*statement.attribute) == nullptr)
    RETURN_IF_ERROR(heap_->ChargeBytes(JinjaDict::CostOf(*statement.attribute)));
  object.dict().Set(*statement.attribute, std::move(value));
  return absl::OkStatus();
}

JinjaValue JinjaInterpreter::Lookup(std::string_view name) const {
  const auto find = [&](size_t begin, size_t end) -> const JinjaValue* {
    while (end-- > begin) {
      if (variables_[end].first == name) return &variables_[end].second;
    }
    return nullptr;
  };
  const JinjaValue* found = find(frame_.begin, variables_.size());
  if (found == nullptr) found = find(frame_.outer_begin, frame_.outer_end);
  if (found == nullptr && frame_.begin > 0) found = find(0, root_end_);
  return found == nullptr ? JinjaValue::MakeUndefined(name) : *found;
}

void JinjaInterpreter::Assign(std::string_view name, JinjaValue value) {
  for (size_t i = scope_begin_; i < variables_.size(); ++i) {
    if (variables_[i].first != name) continue;
    variables_[i].second = std::move(value);
    return;
  }
  variables_.emplace_back(name, std::move(value));
}

absl::Status JinjaInterpreter::AssignTargets(const std::vector<std::string>& targets,
                                             const JinjaValue& value) {
  if (targets.size() == 1) {
    Assign(targets[0], value);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::vector<JinjaValue> parts, JinjaIterate(value, heap_));
  if (parts.size() != targets.size()) {
    return absl::InvalidArgumentError(
        Concat("cannot unpack ", parts.size(), " values into ", targets.size(), " names"));
  }
  for (size_t i = 0; i < parts.size(); ++i) Assign(targets[i], parts[i]);
  return absl::OkStatus();
}

absl::StatusOr<JinjaValue> JinjaInterpreter::Eval(const JinjaExpr& expr) {
  Depth depth(this);
  RETURN_IF_ERROR(depth.Check());
  RETURN_IF_ERROR(heap_->ChargeStep());
  switch (expr.kind) {
    case ExprKind::kLiteral:
      return expr.literal;
    case ExprKind::kName:
      return Lookup(expr.name);
    case ExprKind::kList:
    case ExprKind::kTuple: {
      RETURN_IF_ERROR(heap_->ChargeBytes(expr.operands.size() * sizeof(JinjaValue)));
      ASSIGN_OR_RETURN(std::vector<JinjaValue> items, EvalAll(expr.operands));
      return JinjaValue::List(heap_->NewList(std::move(items), expr.kind == ExprKind::kTuple));
    }
    case ExprKind::kDict: {
      JinjaDict* dict = heap_->NewDict();
      for (size_t i = 0; i < expr.operands.size(); i += 2) {
        ASSIGN_OR_RETURN(const JinjaValue key, Eval(*expr.operands[i]));
        ASSIGN_OR_RETURN(JinjaValue value, Eval(*expr.operands[i + 1]));
        if (!key.is_string()) {
          return absl::UnimplementedError(
              Concat("a dict key of type '", key.TypeName(), "' is not supported, only str"));
        }
        RETURN_IF_ERROR(heap_->ChargeBytes(JinjaDict::CostOf(key.string())));
        dict->foreign_keys |= !key.text().foreign().empty();
        dict->Set(key.string(), std::move(value));
      }
      return JinjaValue::Dict(dict);
    }
    case ExprKind::kNot: {
      ASSIGN_OR_RETURN(const JinjaValue value, Eval(*expr.operands[0]));
      return JinjaValue::Bool(!value.Truthy());
    }
    case ExprKind::kNegate: {
      ASSIGN_OR_RETURN(const JinjaValue value, Eval(*expr.operands[0]));
      return JinjaNegate(value);
    }
    case ExprKind::kAnd:
    case ExprKind::kOr: {  // the value of one side, as in Python
      ASSIGN_OR_RETURN(JinjaValue left, Eval(*expr.operands[0]));
      if (left.Truthy() == (expr.kind == ExprKind::kOr)) return left;
      return Eval(*expr.operands[1]);
    }
    case ExprKind::kBinary: {
      ASSIGN_OR_RETURN(const JinjaValue left, Eval(*expr.operands[0]));
      ASSIGN_OR_RETURN(const JinjaValue right, Eval(*expr.operands[1]));
      return JinjaBinary(expr.op, left, right, heap_);
    }
    case ExprKind::kCompare:
      return EvalCompare(expr);
    case ExprKind::kInlineIf: {
      ASSIGN_OR_RETURN(const JinjaValue condition, Eval(*expr.operands[1]));
      if (condition.Truthy()) return Eval(*expr.operands[0]);
      if (expr.operands[2] == nullptr) return JinjaValue::MakeUndefined("if without else");
      return Eval(*expr.operands[2]);
    }
    case ExprKind::kAttribute:
      return EvalAttribute(expr);
    case ExprKind::kItem: {
      ASSIGN_OR_RETURN(const JinjaValue object, Eval(*expr.operands[0]));
      ASSIGN_OR_RETURN(const JinjaValue key, Eval(*expr.operands[1]));
      return JinjaItem(object, key, heap_);
    }
    case ExprKind::kSlice:
      return EvalSlice(expr);
    case ExprKind::kCall:
      return EvalCall(expr);
    case ExprKind::kMethod:
    case ExprKind::kFilter:
    case ExprKind::kTest: {
      ASSIGN_OR_RETURN(const JinjaValue input, Eval(*expr.operands[0]));
      ASSIGN_OR_RETURN(const JinjaArguments arguments, EvalArguments(expr.arguments));
      RETURN_IF_ERROR(heap_->ChargeStep(input.is_string() ? input.string().size() : 0));
      if (expr.kind == ExprKind::kMethod) return expr.method(input, arguments, heap_);
      if (expr.kind == ExprKind::kFilter) return expr.filter->run(input, arguments, heap_);
      ASSIGN_OR_RETURN(const bool holds, expr.test(input, arguments, heap_));
      return JinjaValue::Bool(holds);
    }
  }
  return JinjaValue();
}

absl::StatusOr<JinjaValue> JinjaInterpreter::EvalCompare(const JinjaExpr& expr) {
  ASSIGN_OR_RETURN(JinjaValue left, Eval(*expr.operands[0]));
  for (size_t i = 0; i < expr.compares.size(); ++i) {
    ASSIGN_OR_RETURN(JinjaValue right, Eval(*expr.operands[i + 1]));
    ASSIGN_OR_RETURN(const bool holds, JinjaCompareValues(expr.compares[i], left, right, heap_));
    if (!holds) return JinjaValue::Bool(false);
    left = std::move(right);
  }
  return JinjaValue::Bool(true);
}

absl::StatusOr<JinjaValue> JinjaInterpreter::EvalAttribute(const JinjaExpr& expr) {
  ASSIGN_OR_RETURN(const JinjaValue object, Eval(*expr.operands[0]));
  RETURN_IF_ERROR(object.CheckDefined());
  if (object.is_dict()) {
    if (const JinjaValue* found = object.dict().Find(expr.name)) return *found;
  }
  return JinjaValue::MakeUndefined(expr.name);
}

absl::StatusOr<JinjaValue> JinjaInterpreter::EvalSlice(const JinjaExpr& expr) {
  ASSIGN_OR_RETURN(const JinjaValue object, Eval(*expr.operands[0]));
  std::optional<int64_t> bounds[3];
  for (int i = 0; i < 3; ++i) {
    if (expr.operands[i + 1] == nullptr) continue;
    ASSIGN_OR_RETURN(const JinjaValue bound, Eval(*expr.operands[i + 1]));
    RETURN_IF_ERROR(bound.CheckDefined());
    bounds[i] = bound.AsInt();
    if (!bounds[i].has_value() && !bound.is_none()) {
      return absl::InvalidArgumentError("slice indices must be integers or None");
    }
  }
  return JinjaSlice(object, bounds[0], bounds[1], bounds[2], heap_);
}

absl::StatusOr<std::vector<JinjaValue>> JinjaInterpreter::EvalAll(
    const std::vector<JinjaExprPtr>& exprs) {
  std::vector<JinjaValue> values;
  values.reserve(exprs.size());
  for (const JinjaExprPtr& expr : exprs) {
    ASSIGN_OR_RETURN(JinjaValue value, Eval(*expr));
    values.push_back(std::move(value));
  }
  return values;
}

}  // namespace bitshard
