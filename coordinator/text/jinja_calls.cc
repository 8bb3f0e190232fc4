// Calls in templates: macros, call blocks, and the functions that every template has.
#include <array>
#include <cstdint>
#include <ctime>

#include "coordinator/text/concat.h"
#include "coordinator/text/jinja_interpreter.h"
#include "coordinator/text/utf8.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

using StatementKind = JinjaStatement::Kind;

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
    RETURN_IF_ERROR(heap->ChargeBytes(sizeof(JinjaValue)));
    items.push_back(JinjaValue::Int(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return JinjaValue::List(heap->NewList(std::move(items)));
}

}  // namespace

const std::vector<std::pair<std::string_view, JinjaFunction>>& JinjaFunctions() {
  static const auto& functions = *new std::vector<std::pair<std::string_view, JinjaFunction>>{
      {"raise_exception", JinjaFunction::kRaiseException},
      {"namespace", JinjaFunction::kNamespace},
      {"range", JinjaFunction::kRange},
      {"dict", JinjaFunction::kDict},
      {"strftime_now", JinjaFunction::kStrftimeNow},
  };
  return functions;
}

absl::Status JinjaInterpreter::RunCallBlock(const JinjaStatement& statement, JinjaWriter* out) {
  const JinjaExpr& call = *statement.value;
  ASSIGN_OR_RETURN(const JinjaValue callee, Eval(*call.operands[0]));
  RETURN_IF_ERROR(callee.CheckDefined());
  if (!callee.is_macro()) {
    return absl::InvalidArgumentError(
        Concat("a call block takes a macro, not a ", callee.TypeName()));
  }
  ASSIGN_OR_RETURN(const JinjaArguments arguments, EvalArguments(call.arguments));
  RETURN_IF_ERROR(heap_->ChargeBytes(sizeof(JinjaMacro)));
  const JinjaMacro* caller = heap_->NewMacro(
      {.statement = &statement, .outer_begin = frame_.begin, .outer_end = variables_.size()});
  ASSIGN_OR_RETURN(const JinjaValue text, CallMacro(callee.macro(), arguments, caller));
  return PrintValue(text, out);
}

absl::StatusOr<JinjaValue> JinjaInterpreter::CallMacro(const JinjaMacro& macro,
                                                       const JinjaArguments& arguments,
                                                       const JinjaMacro* caller) {
  const JinjaStatement& statement = *macro.statement;
  const std::string_view name =
      statement.kind == StatementKind::kMacro ? std::string_view(statement.text) : "caller";
  const std::vector<std::string_view> names(statement.targets.begin(), statement.targets.end());
  RETURN_IF_ERROR(arguments.Check(name, names.size(), names));
  if (macro.outer_end > variables_.size()) {
    return absl::InvalidArgumentError("a call block's body is called after the block has ended");
  }
  const Frame outside = frame_;
  frame_ = {macro.outer_begin, macro.outer_end, variables_.size()};
  absl::StatusOr<JinjaValue> result = [&]() -> absl::StatusOr<JinjaValue> {
    Scope scope(this);
    if (caller != nullptr) Assign("caller", JinjaValue::Macro(caller));
    for (size_t i = 0; i < names.size(); ++i) {
      JinjaValue value = JinjaValue::MakeUndefined(names[i]);
      if (const JinjaValue* given = arguments.Get(i, names[i])) {
        value = *given;
      } else if (statement.defaults[i] != nullptr) {
        ASSIGN_OR_RETURN(value, Eval(*statement.defaults[i]));
      }
      Assign(names[i], std::move(value));
    }
    JinjaWriter text(heap_);
    RETURN_IF_ERROR(RunBody(statement.bodies[0], &text).status());
    return text.TakeValue();
  }();
  frame_ = outside;
  return result;
}

absl::StatusOr<JinjaValue> JinjaInterpreter::EvalCall(const JinjaExpr& expr) {
  ASSIGN_OR_RETURN(const JinjaValue callee, Eval(*expr.operands[0]));
  RETURN_IF_ERROR(callee.CheckDefined());
  if (!callee.is_function() && !callee.is_macro()) {
    return absl::InvalidArgumentError(Concat("'", callee.TypeName(), "' object is not callable"));
  }
  ASSIGN_OR_RETURN(const JinjaArguments arguments, EvalArguments(expr.arguments));
  if (callee.is_macro()) return CallMacro(callee.macro(), arguments, /*caller=*/nullptr);
  return CallFunction(callee.function(), arguments);
}

absl::StatusOr<JinjaValue> JinjaInterpreter::CallFunction(JinjaFunction function,
                                                          const JinjaArguments& arguments) {
  switch (function) {
    case JinjaFunction::kRaiseException: {
      const JinjaValue* message = arguments.Get(0, "message");
      if (message == nullptr) return absl::InvalidArgumentError("raise_exception()");
      ASSIGN_OR_RETURN(const JinjaString text, JinjaToText(*message, heap_));
      return absl::InvalidArgumentError(JinjaShown(text->bytes()));
    }
    case JinjaFunction::kNamespace:
    case JinjaFunction::kDict: {
      JinjaDict* dict = heap_->NewDict();
      dict->is_namespace = function == JinjaFunction::kNamespace;
      for (const JinjaValue& from : arguments.positional) {
        if (!from.is_dict()) {
          return absl::InvalidArgumentError("namespace() and dict() take dicts");
        }
        dict->foreign_keys |= from.dict().foreign_keys;
        for (const auto& [key, value] : from.dict().items) {
          RETURN_IF_ERROR(heap_->ChargeBytes(JinjaDict::CostOf(key)));
          dict->Set(key, value);
        }
      }
      for (const auto& [key, value] : arguments.keywords) {
        RETURN_IF_ERROR(heap_->ChargeBytes(JinjaDict::CostOf(key)));
        dict->Set(key, value);
      }
      return JinjaValue::Dict(dict);
    }
    case JinjaFunction::kRange:
      return Range(arguments, heap_);
    case JinjaFunction::kStrftimeNow:
      return StrftimeNow(arguments);
  }
  return JinjaValue();
}

absl::StatusOr<JinjaValue> JinjaInterpreter::StrftimeNow(const JinjaArguments& arguments) {
  const JinjaValue* format = arguments.Get(0, "format");
  if (format == nullptr || !format->is_string()) {
    return absl::InvalidArgumentError("'strftime_now' takes a format");
  }
  if (format->string().empty()) return *format;
  const std::tm time = absl::ToTM(now_, absl::LocalTimeZone());
  std::array<char, 1024> buffer;
  const size_t bytes = std::strftime(buffer.data(), buffer.size(), format->string().c_str(), &time);
  if (bytes == 0) {
    return absl::InvalidArgumentError(
        Concat("'strftime_now': the format gives nothing, or more than ", buffer.size(), " bytes"));
  }
  const std::string text(buffer.data(), bytes);
  if (FirstInvalidUtf8(text).has_value()) {
    return absl::InvalidArgumentError("'strftime_now': the date is not valid UTF-8");
  }
  return heap_->NewText(format->text().Rewritten(text));
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
