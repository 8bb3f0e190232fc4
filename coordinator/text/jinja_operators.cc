#include "coordinator/text/jinja_operators.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "coordinator/text/concat.h"
#include "coordinator/text/jinja_writer.h"
#include "coordinator/text/utf8.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

using Value = JinjaValue;

absl::Status Unsupported(std::string_view op, const Value& a, const Value& b) {
  return absl::InvalidArgumentError(Concat("unsupported operand type(s) for ", op, ": '",
                                           a.TypeName(), "' and '", b.TypeName(), "'"));
}

std::string_view SignOf(JinjaOp op) {
  switch (op) {
    case JinjaOp::kAdd:
      return "+";
    case JinjaOp::kSub:
      return "-";
    case JinjaOp::kMul:
      return "*";
    case JinjaOp::kDiv:
      return "/";
    case JinjaOp::kFloorDiv:
      return "//";
    case JinjaOp::kMod:
      return "%";
    case JinjaOp::kConcat:
      return "~";
  }
  return "?";
}

absl::StatusOr<Value> Integers(JinjaOp op, int64_t a, int64_t b) {
  int64_t out = 0;
  bool overflow = false;
  switch (op) {
    case JinjaOp::kAdd:
      overflow = __builtin_add_overflow(a, b, &out);
      break;
    case JinjaOp::kSub:
      overflow = __builtin_sub_overflow(a, b, &out);
      break;
    case JinjaOp::kMul:
      overflow = __builtin_mul_overflow(a, b, &out);
      break;
    default: {  // floor division and its remainder, which has b's sign
      if (b == 0) return absl::InvalidArgumentError("integer division or modulo by zero");
      if (b == -1) {  // the one quotient that may not fit
        if (op == JinjaOp::kMod) return Value::Int(0);
        overflow = __builtin_sub_overflow(int64_t{0}, a, &out);
        break;
      }
      int64_t quotient = a / b;
      int64_t rest = a % b;
      if (rest != 0 && (rest < 0) != (b < 0)) {
        --quotient;
        rest += b;
      }
      out = op == JinjaOp::kMod ? rest : quotient;
      break;
    }
  }
  if (overflow) return absl::InvalidArgumentError("an integer does not fit into 64 bits");
  return Value::Int(out);
}

absl::StatusOr<Value> Numbers(JinjaOp op, const Value& a, const Value& b) {
  if (op != JinjaOp::kDiv && !a.is_float() && !b.is_float()) {
    return Integers(op, *a.AsInt(), *b.AsInt());
  }
  const double x = a.AsDouble();
  const double y = b.AsDouble();
  switch (op) {
    case JinjaOp::kAdd:
      return Value::Float(x + y);
    case JinjaOp::kSub:
      return Value::Float(x - y);
    case JinjaOp::kMul:
      return Value::Float(x * y);
    default:
      break;
  }
  if (y == 0) return absl::InvalidArgumentError("division by zero");
  if (op == JinjaOp::kDiv) return Value::Float(x / y);
  if (op == JinjaOp::kFloorDiv) return Value::Float(std::floor(x / y));
  const double rest = std::fmod(x, y);
  return Value::Float(rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest);
}

absl::StatusOr<Value> Join(const JinjaList& a, const JinjaList& b, JinjaHeap* heap) {
  RETURN_IF_ERROR(heap->ChargeBytes((a.items.size() + b.items.size()) * sizeof(Value)));
  std::vector<Value> items = a.items;
  items.insert(items.end(), b.items.begin(), b.items.end());
  return Value::List(heap->NewList(std::move(items), a.is_tuple));
}

// text * n and list * n.
absl::StatusOr<Value> Repeat(const Value& what, int64_t times, JinjaHeap* heap) {
  const uint64_t n = static_cast<uint64_t>(std::max<int64_t>(times, 0));
  if (what.is_string()) {
    JinjaWriter text(heap);
    RETURN_IF_ERROR(text.AppendTimes(what.text(), n));
    return text.TakeValue();
  }
  const std::vector<Value>& unit = what.list().items;
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(n, unit.size() * sizeof(Value), &bytes)) {
    return absl::ResourceExhaustedError("a repetition is too long");
  }
  RETURN_IF_ERROR(heap->ChargeBytes(bytes));
  std::vector<Value> items;
  for (uint64_t i = 0; i < n && !unit.empty(); ++i)
    items.insert(items.end(), unit.begin(), unit.end());
  return Value::List(heap->NewList(std::move(items), what.list().is_tuple));
}

absl::StatusOr<bool> Contains(const Value& container, const Value& item, JinjaHeap* heap) {
  if (container.is_undefined()) return false;
  if (container.is_string()) {
    RETURN_IF_ERROR(item.CheckDefined());
    if (!item.is_string()) {
      return absl::InvalidArgumentError(
          Concat("'in <string>' requires string as left operand, not ", item.TypeName()));
    }
    RETURN_IF_ERROR(heap->ChargeStep(container.string().size() + item.string().size()));
    return container.string().find(item.string()) != std::string::npos;
  }
  if (container.is_list()) {
    for (const Value& element : container.list().items) {
      ASSIGN_OR_RETURN(const bool same, JinjaEquals(element, item, heap));
      if (same) return true;
    }
    return false;
  }
  if (container.is_dict() && !container.dict().is_namespace) {
    return item.is_string() && container.dict().Find(item.string()) != nullptr;
  }
  return absl::InvalidArgumentError(
      Concat("argument of type '", container.TypeName(), "' is not iterable"));
}

bool IsInsideChar(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

int64_t CharCount(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return !IsInsideChar(c); });
}

// The byte offset `chars` characters on from the one at `at`, or back. REQUIRES: so many are there.
size_t Walk(std::string_view text, size_t at, int64_t chars) {
  for (; chars > 0; --chars) at += CodePointAt(text, at).bytes;
  for (; chars < 0; ++chars) {
    do --at;
    while (IsInsideChar(text[at]));
  }
  return at;
}

// Characters from, from + stride, ... before `to`. REQUIRES: they are there.
absl::StatusOr<Value> SliceOfText(const JinjaText& text, int64_t from, int64_t to, int64_t stride,
                                  JinjaHeap* heap) {
  JinjaWriter out(heap);
  const std::string& bytes = text.bytes();
  const int64_t count =
      stride > 0 ? (to - from + stride - 1) / stride : (from - to - stride - 1) / -stride;
  if (count <= 0) return out.TakeValue();
  size_t at = Walk(bytes, 0, from);
  if (stride == 1) {
    RETURN_IF_ERROR(out.Append(text, at, Walk(bytes, at, count) - at));
    return out.TakeValue();
  }
  for (int64_t i = 0; i < count; ++i) {
    if (i > 0) at = Walk(bytes, at, stride);
    RETURN_IF_ERROR(out.Append(text, at, CodePointAt(bytes, at).bytes));
  }
  return out.TakeValue();
}

}  // namespace

absl::StatusOr<Value> JinjaBinary(JinjaOp op, const Value& a, const Value& b, JinjaHeap* heap) {
  if (op == JinjaOp::kConcat) {
    ASSIGN_OR_RETURN(const JinjaString left, JinjaToText(a, heap));
    ASSIGN_OR_RETURN(const JinjaString right, JinjaToText(b, heap));
    JinjaWriter text(heap);
    RETURN_IF_ERROR(text.Append(*left));
    RETURN_IF_ERROR(text.Append(*right));
    return text.TakeValue();
  }
  RETURN_IF_ERROR(a.CheckDefined());
  RETURN_IF_ERROR(b.CheckDefined());
  if (a.is_number() && b.is_number()) return Numbers(op, a, b);
  if (op == JinjaOp::kAdd && a.is_string()) {
    if (!b.is_string()) {
      return absl::InvalidArgumentError(
          Concat("can only concatenate str (not \"", b.TypeName(), "\") to str"));
    }
    JinjaWriter text(heap);
    RETURN_IF_ERROR(text.Append(a.text()));
    RETURN_IF_ERROR(text.Append(b.text()));
    return text.TakeValue();
  }
  if (op == JinjaOp::kAdd && a.is_list() && b.is_list() && a.list().is_tuple == b.list().is_tuple) {
    return Join(a.list(), b.list(), heap);
  }
  if (op == JinjaOp::kMod && a.is_string()) {
    const bool tuple = b.is_list() && b.list().is_tuple;
    return JinjaFormat(a, tuple ? b.list().items : std::vector<Value>{b}, heap);
  }
  if (op == JinjaOp::kMul) {
    const bool a_repeats = a.is_string() || a.is_list();
    const bool b_repeats = b.is_string() || b.is_list();
    if (a_repeats && b.AsInt().has_value()) return Repeat(a, *b.AsInt(), heap);
    if (b_repeats && a.AsInt().has_value()) return Repeat(b, *a.AsInt(), heap);
  }
  return Unsupported(SignOf(op), a, b);
}

absl::StatusOr<Value> JinjaFormat(const Value& format, const std::vector<Value>& values,
                                  JinjaHeap* heap) {
  const std::string_view text = format.string();
  JinjaWriter out(heap);
  size_t next = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t percent = std::min(text.find('%', at), text.size());
    RETURN_IF_ERROR(out.Append(format.text(), at, percent - at));
    at = percent + 2;
    if (percent == text.size()) break;
    const char kind = at <= text.size() ? text[at - 1] : '\0';
    if (kind == '%') {
      RETURN_IF_ERROR(out.Append(format.text(), percent, 1));
      continue;
    }
    if (kind != 's' && kind != 'd' && kind != 'i') {
      return absl::UnimplementedError(
          Concat("the format '", text.substr(percent, 2), "' is not supported; %s, %d and %% are"));
    }
    if (next == values.size()) {
      return absl::InvalidArgumentError("not enough arguments for format string");
    }
    Value value = values[next++];
    if (kind != 's') {
      if (!value.is_number()) {
        return absl::InvalidArgumentError(
            Concat("%d format: a real number is required, not ", value.TypeName()));
      }
      const double number = std::trunc(value.AsDouble());
      if (value.is_float() && !(std::fabs(number) < 9e18)) {
        return absl::InvalidArgumentError("%d format: the number does not fit into 64 bits");
      }
      value = Value::Int(value.is_float() ? static_cast<int64_t>(number) : *value.AsInt());
    }
    ASSIGN_OR_RETURN(const JinjaString piece, JinjaToText(value, heap));
    RETURN_IF_ERROR(out.Append(*piece));
  }
  if (next < values.size()) {
    return absl::InvalidArgumentError("not all arguments converted during string formatting");
  }
  return out.TakeValue();
}

absl::StatusOr<Value> JinjaNegate(const Value& value) {
  RETURN_IF_ERROR(value.CheckDefined());
  if (value.is_float()) return Value::Float(-value.AsDouble());
  if (value.AsInt().has_value()) return Integers(JinjaOp::kSub, 0, *value.AsInt());
  return absl::InvalidArgumentError(
      Concat("bad operand type for unary -: '", value.TypeName(), "'"));
}

absl::StatusOr<bool> JinjaCompareValues(JinjaCompare compare, const Value& a, const Value& b,
                                        JinjaHeap* heap) {
  absl::StatusOr<bool> result = false;
  bool negate = false;
  switch (compare) {
    case JinjaCompare::kEq:
    case JinjaCompare::kNe:
      result = JinjaEquals(a, b, heap);
      negate = compare == JinjaCompare::kNe;
      break;
    case JinjaCompare::kLt:
      return JinjaLess(a, b, heap);
    case JinjaCompare::kGt:
      return JinjaLess(b, a, heap);
    case JinjaCompare::kLe:
    case JinjaCompare::kGe: {
      const bool le = compare == JinjaCompare::kLe;
      ASSIGN_OR_RETURN(const bool less, le ? JinjaLess(a, b, heap) : JinjaLess(b, a, heap));
      if (less) return true;
      return JinjaEquals(a, b, heap);  // not "not greater": NaN is neither
    }
    case JinjaCompare::kIn:
    case JinjaCompare::kNotIn:
      result = Contains(b, a, heap);
      negate = compare == JinjaCompare::kNotIn;
      break;
  }
  if (!result.ok()) return result;
  return *result != negate;
}

absl::StatusOr<Value> JinjaItem(const Value& object, const Value& key, JinjaHeap* heap) {
  RETURN_IF_ERROR(object.CheckDefined());
  RETURN_IF_ERROR(key.CheckDefined());
  if (object.is_dict() && key.is_string()) {
    const Value* found = object.dict().Find(key.string());
    return found != nullptr ? *found : Value::MakeUndefined(key.string());
  }
  const std::optional<int64_t> index = key.AsInt();
  if (index.has_value() && object.is_list()) {
    const std::vector<Value>& items = object.list().items;
    const int64_t size = static_cast<int64_t>(items.size());
    const int64_t at = *index < 0 ? *index + size : *index;
    if (at >= 0 && at < size) return items[at];
  } else if (index.has_value() && object.is_string()) {
    RETURN_IF_ERROR(heap->ChargeStep(object.string().size()));
    const int64_t size = CharCount(object.string());
    const int64_t at = *index < 0 ? *index + size : *index;
    if (at >= 0 && at < size) return SliceOfText(object.text(), at, at + 1, 1, heap);
  }
  return Value::MakeUndefined(Concat(object.TypeName(), " element"));
}

absl::StatusOr<Value> JinjaSlice(const Value& object, std::optional<int64_t> begin,
                                 std::optional<int64_t> end, std::optional<int64_t> step,
                                 JinjaHeap* heap) {
  RETURN_IF_ERROR(object.CheckDefined());
  if (!object.is_string() && !object.is_list()) {
    return Value::MakeUndefined(Concat(object.TypeName(), " slice"));
  }
  if (step == 0) return absl::InvalidArgumentError("slice step cannot be zero");
  if (object.is_string()) RETURN_IF_ERROR(heap->ChargeStep(object.string().size()));
  const int64_t size = object.is_string() ? CharCount(object.string())
                                          : static_cast<int64_t>(object.list().items.size());
  // Beyond the size a stride takes one element, whatever it is; so it cannot overflow below.
  const int64_t stride = std::clamp<int64_t>(step.value_or(1), -(size + 1), size + 1);
  const int64_t lowest = stride > 0 ? 0 : -1;
  const int64_t highest = stride > 0 ? size : size - 1;
  const auto bound = [&](std::optional<int64_t> index, int64_t fallback) {
    if (!index.has_value()) return fallback;
    return std::clamp(*index < 0 ? *index + size : *index, lowest, highest);
  };
  const int64_t from = bound(begin, stride > 0 ? lowest : highest);
  const int64_t to = bound(end, stride > 0 ? highest : lowest);

  if (object.is_string()) return SliceOfText(object.text(), from, to, stride, heap);
  std::vector<Value> items;
  for (int64_t at = from; stride > 0 ? at < to : at > to; at += stride) {
    RETURN_IF_ERROR(heap->ChargeBytes(sizeof(Value)));
    items.push_back(object.list().items[at]);
  }
  return Value::List(heap->NewList(std::move(items), object.list().is_tuple));
}

}  // namespace bitshard
