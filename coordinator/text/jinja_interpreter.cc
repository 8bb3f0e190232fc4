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
  const std::string text(status.message());
  if (text.starts_with("chat template")) return status;
  return absl::Status(status.code(), Concat("chat template, line ", line, ": ", text));
}

absl::StatusOr<JinjaValue> Range(const JinjaArguments& arguments, JinjaHeap* heap) {
  RETURN_IF_ERROR(arguments.Check("range", 3));
  int64_t numbers[3] = {0, 0, 1};  // begin, end, step
  const size_t given = arguments.positional.size();
  if (given == 0) return absl::InvalidArgumentError("'range' takes 1 to 3 arguments");
  for (size_t i = 0; i < given; ++i) {
    const std::optional<int64_t> number = arguments.positional[i].AsInt();
    if (!number.has_value()) return absl::InvalidArgumentError("'range' takes integers");
    numbers[given == 1 ? 1 : i] = *number;
  }
  const auto [begin, end, step] = numbers;
  if (step == 0) return absl::InvalidArgumentError("range() arg 3 must not be zero");
  std::vector<JinjaValue> items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    RETURN_IF_ERROR(heap->ChargeStep());
    items.push_back(JinjaValue::Int(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return JinjaValue::List(heap->NewList(std::move(items)));
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
}

}  // namespace

JinjaInterpreter::JinjaInterpreter(std::vector<std::pair<std::string, JinjaValue>> variables,
                                   JinjaHeap* heap)
    : heap_(heap), variables_(std::move(variables)) {
  constexpr std::pair<std::string_view, JinjaFunction> kFunctions[] = {
      {"raise_exception", JinjaFunction::kRaiseException},
      {"namespace", JinjaFunction::kNamespace},
      {"range", JinjaFunction::kRange}};
  for (const auto& [name, function] : kFunctions) {
    variables_.emplace_back(std::string(name), JinjaValue::Function(function));
  }
}

// While it lives, assignments are to a scope of their own.
class JinjaInterpreter::Scope {
 public:
  explicit Scope(JinjaInterpreter* owner)
      : owner_(*owner), outer_begin_(owner->scope_begin_), begin_(owner->variables_.size()) {
    owner_.scope_begin_ = begin_;
  }
  ~Scope() {
    Clear();
    owner_.scope_begin_ = outer_begin_;
  }
  void Clear() {
    owner_.variables_.erase(owner_.variables_.begin() + begin_, owner_.variables_.end());
  }

 private:
  JinjaInterpreter& owner_;
  const size_t outer_begin_;
  const size_t begin_;
};

absl::Status JinjaInterpreter::Run(const JinjaTemplate& program, std::string* out) {
  return RunBody(program.body, out).status();
}

absl::Status JinjaInterpreter::Print(std::string_view text, std::string* out) {
  if (out->size() + text.size() > kMaxOutputBytes) {
    return absl::ResourceExhaustedError(
        Concat("the template prints more than ", kMaxOutputBytes, " bytes"));
  }
  *out += text;
  return absl::OkStatus();
}

absl::StatusOr<JinjaInterpreter::Flow> JinjaInterpreter::RunBody(const JinjaBody& body,
                                                                 std::string* out) {
  for (const JinjaStatement& statement : body) {
    absl::StatusOr<Flow> flow = RunStatement(statement, out);
    if (!flow.ok()) return AtLine(statement.line, flow.status());
    if (*flow != Flow::kOn) return flow;
  }
  return Flow::kOn;
}

absl::StatusOr<JinjaInterpreter::Flow> JinjaInterpreter::RunInner(const JinjaBody& body,
                                                                  std::string* out) {
  Scope scope(this);
  return RunBody(body, out);
}

absl::StatusOr<JinjaInterpreter::Flow> JinjaInterpreter::RunStatement(
    const JinjaStatement& statement, std::string* out) {
  RETURN_IF_ERROR(heap_->ChargeStep());
  switch (statement.kind) {
    case StatementKind::kText:
      RETURN_IF_ERROR(Print(statement.text, out));
      return Flow::kOn;
    case StatementKind::kPrint: {
      ASSIGN_OR_RETURN(const JinjaValue value, Eval(*statement.value));
      if (value.is_string()) {
        RETURN_IF_ERROR(Print(value.string(), out));
      } else {
        ASSIGN_OR_RETURN(const std::string text, JinjaToString(value, heap_));
        RETURN_IF_ERROR(Print(text, out));
      }
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
      std::string text;
      ASSIGN_OR_RETURN(const Flow flow, RunInner(statement.bodies[0], &text));
      ASSIGN_OR_RETURN(JinjaValue value, heap_->NewString(std::move(text)));
      Assign(statement.targets[0], std::move(value));
      return flow;
    }
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
                                                                std::string* out) {
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
    RETURN_IF_ERROR(heap_->ChargeBytes(sizeof(JinjaDict) + 16 * sizeof(JinjaValue)));
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

absl::Status JinjaInterpreter::RunSet(const JinjaStatement& statement) {
  ASSIGN_OR_RETURN(JinjaValue value, Eval(*statement.value));
  if (!statement.attribute.has_value()) return AssignTargets(statement.targets, value);
  const JinjaValue object = Lookup(statement.targets[0]);
  RETURN_IF_ERROR(object.CheckDefined());
  if (!object.is_dict() || !object.dict().is_namespace) {
    return absl::InvalidArgumentError(
        Concat("cannot assign attribute on ", object.TypeName(), ", only on a namespace"));
  }
  object.dict().Set(*statement.attribute, std::move(value));
  return absl::OkStatus();
}

JinjaValue JinjaInterpreter::Lookup(std::string_view name) const {
  for (auto it = variables_.rbegin(); it != variables_.rend(); ++it) {
    if (it->first == name) return it->second;
  }
  return JinjaValue::MakeUndefined(name);
}

void JinjaInterpreter::Assign(std::string_view name, JinjaValue value) {
  for (size_t i = scope_begin_; i < variables_.size(); ++i) {
    if (variables_[i].first != name) continue;
    variables_[i].second = std::move(value);
    return;
  }
  variables_.emplace_back(std::string(name), std::move(value));
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
  RETURN_IF_ERROR(heap_->ChargeStep());
  switch (expr.kind) {
    case ExprKind::kLiteral:
      return expr.literal;
    case ExprKind::kName:
      return Lookup(expr.name);
    case ExprKind::kList:
    case ExprKind::kTuple: {
      ASSIGN_OR_RETURN(std::vector<JinjaValue> items, EvalAll(expr.operands));
      RETURN_IF_ERROR(heap_->ChargeBytes(items.size() * sizeof(JinjaValue)));
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
        RETURN_IF_ERROR(heap_->ChargeBytes(key.string().size() + 2 * sizeof(JinjaValue)));
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
      if (expr.kind == ExprKind::kFilter) return expr.filter(input, arguments, heap_);
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

absl::StatusOr<JinjaValue> JinjaInterpreter::EvalCall(const JinjaExpr& expr) {
  ASSIGN_OR_RETURN(const JinjaValue callee, Eval(*expr.operands[0]));
  RETURN_IF_ERROR(callee.CheckDefined());
  if (!callee.is_function()) {
    return absl::InvalidArgumentError(Concat("'", callee.TypeName(), "' object is not callable"));
  }
  ASSIGN_OR_RETURN(const JinjaArguments arguments, EvalArguments(expr.arguments));
  switch (callee.function()) {
    case JinjaFunction::kRaiseException: {
      const JinjaValue* message = arguments.Get(0, "message");
      if (message == nullptr) return absl::InvalidArgumentError("raise_exception()");
      ASSIGN_OR_RETURN(const std::string text, JinjaToString(*message, heap_));
      return absl::InvalidArgumentError(text);
    }
    case JinjaFunction::kNamespace: {
      JinjaDict* dict = heap_->NewDict();
      dict->is_namespace = true;
      for (const JinjaValue& from : arguments.positional) {
        if (!from.is_dict()) return absl::InvalidArgumentError("namespace() takes dicts");
        for (const auto& [key, value] : from.dict().items) dict->Set(key, value);
      }
      for (const auto& [key, value] : arguments.keywords) dict->Set(key, value);
      return JinjaValue::Dict(dict);
    }
    case JinjaFunction::kRange:
      return Range(arguments, heap_);
  }
  return JinjaValue();
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

absl::StatusOr<JinjaArguments> JinjaInterpreter::EvalArguments(
    const JinjaExpr::Arguments& arguments) {
  JinjaArguments values;
  ASSIGN_OR_RETURN(values.positional, EvalAll(arguments.positional));
  for (const auto& [name, expr] : arguments.keywords) {
    ASSIGN_OR_RETURN(JinjaValue value, Eval(*expr));
    values.keywords.emplace_back(name, std::move(value));
  }
  return values;
}

}  // namespace bitshard
