#include "coordinator/text/jinja_filters.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "unicode/locid.h"
#include "unicode/unistr.h"

#include "coordinator/text/concat.h"
#include "coordinator/text/jinja_json.h"
#include "coordinator/text/jinja_lexer.h"
#include "coordinator/text/jinja_methods.h"
#include "coordinator/text/jinja_operators.h"
#include "coordinator/text/jinja_writer.h"
#include "coordinator/text/utf8.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

using Value = JinjaValue;
using Arguments = JinjaArguments;

absl::Status WrongInput(std::string_view filter, const Value& input) {
  RETURN_IF_ERROR(input.CheckDefined());
  return absl::InvalidArgumentError(
      Concat("filter '", filter, "' cannot take a value of type ", input.TypeName()));
}

absl::StatusOr<int64_t> IntegerArgument(const Arguments& arguments, size_t position,
                                        std::string_view name, int64_t fallback) {
  const Value* value = arguments.Get(position, name);
  if (value == nullptr || value->is_none()) return fallback;
  if (!value->AsInt().has_value()) {
    return absl::InvalidArgumentError(Concat("argument '", name, "' must be an integer"));
  }
  return *value->AsInt();
}

absl::StatusOr<Value> Trim(const Value& input, const Arguments& arguments, JinjaHeap* heap) {
  ASSIGN_OR_RETURN(const JinjaString text, JinjaToText(input, heap));
  const Value* chars = arguments.Get(0, "chars");
  if (chars == nullptr || chars->is_none()) return JinjaTrim(*text, true, true, heap);
  JinjaArguments set;
  set.positional.push_back(*chars);
  return FindJinjaMethod("strip")(Value::Shared(text), set, heap);
}

absl::StatusOr<Value> Length(const Value& input, const Arguments&, JinjaHeap*) {
  if (input.is_undefined()) return Value::Int(0);
  if (input.is_list()) return Value::Int(static_cast<int64_t>(input.list().items.size()));
  if (input.is_dict()) return Value::Int(static_cast<int64_t>(input.dict().items.size()));
  if (!input.is_string()) return WrongInput("length", input);
  return Value::Int(std::count_if(input.string().begin(), input.string().end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;  // characters, not bytes
  }));
}

// str(), and `safe`: there is no autoescape to protect the text from.
absl::StatusOr<Value> String(const Value& input, const Arguments&, JinjaHeap* heap) {
  ASSIGN_OR_RETURN(JinjaString text, JinjaToText(input, heap));
  return Value::Shared(std::move(text));
}

template <bool kUpper>
absl::StatusOr<Value> Case(const Value& input, const Arguments&, JinjaHeap* heap) {
  ASSIGN_OR_RETURN(const JinjaString text, JinjaToText(input, heap));
  return JinjaChangeCase(*text, kUpper, heap);
}

template <bool kEachWord>
absl::StatusOr<Value> Capitalize(const Value& input, const Arguments&, JinjaHeap* heap) {
  ASSIGN_OR_RETURN(const JinjaString text, JinjaToText(input, heap));
  return JinjaCapitalize(*text, kEachWord, heap);
}

absl::StatusOr<Value> Default(const Value& input, const Arguments& arguments, JinjaHeap*) {
  const Value* fallback = arguments.Get(0, "default_value");
  const Value* boolean = arguments.Get(1, "boolean");
  const bool use = input.is_undefined() || (boolean && boolean->Truthy() && !input.Truthy());
  if (!use) return input;
  return fallback == nullptr ? Value::String("") : *fallback;
}

absl::StatusOr<Value> Replace(const Value& input, const Arguments& arguments, JinjaHeap* heap) {
  const Value* from = arguments.Get(0, "old");
  const Value* to = arguments.Get(1, "new");
  if (from == nullptr || to == nullptr) {
    return absl::InvalidArgumentError("filter 'replace' takes the old text and the new one");
  }
  ASSIGN_OR_RETURN(const int64_t limit, IntegerArgument(arguments, 2, "count", -1));
  ASSIGN_OR_RETURN(const JinjaString text, JinjaToText(input, heap));
  ASSIGN_OR_RETURN(const JinjaString old_text, JinjaToText(*from, heap));
  ASSIGN_OR_RETURN(const JinjaString new_text, JinjaToText(*to, heap));
  return JinjaReplace(*text, *old_text, *new_text, limit, heap);
}

absl::StatusOr<Value> Join(const Value& input, const Arguments& arguments, JinjaHeap* heap) {
  JinjaString separator = std::make_shared<const JinjaText>();
  if (const Value* d = arguments.Get(0, "d")) {
    ASSIGN_OR_RETURN(separator, JinjaToText(*d, heap));
  }
  ASSIGN_OR_RETURN(std::vector<Value> items, JinjaIterate(input, heap));
  if (const Value* attribute = arguments.Get(1, "attribute")) {
    for (Value& item : items) {
      ASSIGN_OR_RETURN(item, JinjaItem(item, *attribute, heap));
    }
  }
  return JinjaJoin(items, *separator, heap);
}

absl::StatusOr<Value> Format(const Value& input, const Arguments& arguments, JinjaHeap* heap) {
  ASSIGN_OR_RETURN(JinjaString text, JinjaToText(input, heap));
  return JinjaFormat(Value::Shared(std::move(text)), arguments.positional, heap);
}

// Lines after the first (with `first` that too) begin with `width` blanks; empty ones only with
// `blank`.
absl::StatusOr<Value> Indent(const Value& input, const Arguments& arguments, JinjaHeap* heap) {
  std::string indent(4, ' ');
  if (const Value* width = arguments.Get(0, "width")) {
    if (width->is_string()) {
      RETURN_IF_ERROR(heap->ChargeBytes(width->string().size()));
      indent = width->string();
    } else {
      ASSIGN_OR_RETURN(const int64_t blanks, IntegerArgument(arguments, 0, "width", 4));
      indent.assign(std::clamp<int64_t>(blanks, 0, 1000), ' ');
    }
  }
  const Value* first = arguments.Get(1, "first");
  const Value* blank = arguments.Get(2, "blank");
  ASSIGN_OR_RETURN(const JinjaString text, JinjaToText(input, heap));
  const std::string_view bytes = text->bytes();
  JinjaWriter out(heap);
  for (size_t at = 0;;) {
    const size_t end = std::min(bytes.find('\n', at), bytes.size());
    const bool wanted = at == 0 ? first != nullptr && first->Truthy()
                                : end > at || (blank != nullptr && blank->Truthy());
    if (wanted) RETURN_IF_ERROR(out.Append(indent));
    if (end == bytes.size()) {
      RETURN_IF_ERROR(out.Append(*text, at, end - at));
      return out.TakeValue();
    }
    RETURN_IF_ERROR(out.Append(*text, at, end + 1 - at));
    at = end + 1;
  }
}

absl::StatusOr<Value> Int(const Value& input, const Arguments& arguments, JinjaHeap*) {
  const Value* given = arguments.Get(0, "default");
  const Value fallback = given == nullptr ? Value::Int(0) : *given;
  if (const auto integer = input.AsInt()) return Value::Int(*integer);
  double number = 0;
  if (input.is_string()) {
    const std::string_view digits = StripJinjaSpace(input.string(), true, true);
    int64_t integer = 0;
    if (absl::SimpleAtoi(absl::string_view(digits.data(), digits.size()), &integer)) {
      return Value::Int(integer);
    }
    if (!absl::SimpleAtod(absl::string_view(digits.data(), digits.size()), &number)) {
      return fallback;
    }
  } else if (input.is_float()) {
    number = input.AsDouble();
  } else {
    return fallback;
  }
  if (!(std::fabs(number) < 9e18)) return fallback;
  return Value::Int(static_cast<int64_t>(number));
}

absl::StatusOr<Value> Float(const Value& input, const Arguments& arguments, JinjaHeap*) {
  if (input.is_number()) return Value::Float(input.AsDouble());
  double number = 0;
  if (input.is_string()) {
    const std::string_view digits = StripJinjaSpace(input.string(), true, true);
    if (absl::SimpleAtod(absl::string_view(digits.data(), digits.size()), &number)) {
      return Value::Float(number);
    }
  }
  const Value* fallback = arguments.Get(0, "default");
  return fallback == nullptr ? Value::Float(0) : *fallback;
}

absl::StatusOr<Value> Abs(const Value& input, const Arguments&, JinjaHeap*) {
  if (!input.is_number()) return WrongInput("abs", input);
  if (input.is_float()) return Value::Float(std::fabs(input.AsDouble()));
  return *input.AsInt() < 0 ? JinjaNegate(input)
                            : absl::StatusOr<Value>(Value::Int(*input.AsInt()));
}

absl::StatusOr<Value> Round(const Value& input, const Arguments& arguments, JinjaHeap* heap) {
  if (!input.is_number()) return WrongInput("round", input);
  ASSIGN_OR_RETURN(const int64_t precision, IntegerArgument(arguments, 0, "precision", 0));
  std::string method = "common";
  if (const Value* given = arguments.Get(1, "method")) {
    ASSIGN_OR_RETURN(const JinjaString text, JinjaToText(*given, heap));
    method = text->bytes().substr(0, 16);
  }
  if (precision < -15 || precision > 15) {
    return absl::InvalidArgumentError("'round': the precision must be from -15 to 15");
  }
  const double unit = std::pow(10.0, static_cast<double>(precision));
  const double scaled = input.AsDouble() * unit;
  if (method == "ceil") return Value::Float(std::ceil(scaled) / unit);
  if (method == "floor") return Value::Float(std::floor(scaled) / unit);
  if (method != "common") {
    return absl::InvalidArgumentError("'round': method must be common, ceil or floor");
  }
  return Value::Float(std::nearbyint(scaled) / unit);  // half to even, as Python's round
}

absl::StatusOr<Value> ToJson(const Value& input, const Arguments& arguments, JinjaHeap* heap) {
  JinjaJsonFormat format;
  if (const Value* ascii = arguments.Get(0, "ensure_ascii")) format.ensure_ascii = ascii->Truthy();
  if (const Value* indent = arguments.Get(1, "indent"); indent != nullptr && !indent->is_none()) {
    if (indent->is_string()) {
      RETURN_IF_ERROR(heap->ChargeBytes(indent->string().size()));
      format.indent = indent->string();
    } else {
      ASSIGN_OR_RETURN(const int64_t blanks, IntegerArgument(arguments, 1, "indent", 0));
      format.indent = std::string(std::clamp<int64_t>(blanks, 0, 1000), ' ');
    }
    format.item_separator = std::string(1, ',');  // assigning a literal trips GCC 12's -Wrestrict
  }
  if (const Value* separators = arguments.Get(2, "separators");
      separators != nullptr && !separators->is_none()) {
    ASSIGN_OR_RETURN(const std::vector<Value> two, JinjaIterate(*separators, heap));
    if (two.size() != 2 || !two[0].is_string() || !two[1].is_string()) {
      return absl::InvalidArgumentError("'tojson': separators must be two strings");
    }
    RETURN_IF_ERROR(heap->ChargeBytes(two[0].string().size() + two[1].string().size()));
    format.item_separator = two[0].string();
    format.key_separator = two[1].string();
  }
  if (const Value* sort = arguments.Get(3, "sort_keys")) format.sort_keys = sort->Truthy();
  JinjaWriter out(heap);
  RETURN_IF_ERROR(JinjaToJson(input, format, heap, &out));
  return out.TakeValue();
}

absl::StatusOr<Value> FromJson(const Value& input, const Arguments&, JinjaHeap* heap) {
  if (!input.is_string()) return WrongInput("from_json", input);
  return JinjaFromJson(input.string(), input.text().foreign().empty(), heap);
}

}  // namespace

const std::vector<JinjaFilter>& JinjaValueFilters() {
  static const auto& filters = *new std::vector<JinjaFilter>{
      {"abs", Abs, {}},
      {"capitalize", Capitalize<false>, {}},
      {"count", Length, {}},
      {"d", Default, {"default_value", "boolean"}},
      {"default", Default, {"default_value", "boolean"}},
      {"float", Float, {"default"}},
      {"format", Format, {}, /*any_positional=*/true},
      {"from_json", FromJson, {}},
      {"indent", Indent, {"width", "first", "blank"}},
      {"int", Int, {"default"}},
      {"join", Join, {"d", "attribute"}},
      {"length", Length, {}},
      {"lower", Case<false>, {}},
      {"replace", Replace, {"old", "new", "count"}},
      {"round", Round, {"precision", "method"}},
      {"safe", String, {}},
      {"string", String, {}},
      {"title", Capitalize<true>, {}},
      {"tojson", ToJson, {"ensure_ascii", "indent", "separators", "sort_keys"}},
      {"trim", Trim, {"chars"}},
      {"upper", Case<true>, {}},
  };
  return filters;
}

const JinjaFilter* FindJinjaFilter(std::string_view name) {
  for (const auto* table : {&JinjaValueFilters(), &JinjaSequenceFilters()}) {
    for (const JinjaFilter& filter : *table) {
      if (filter.name == name) return &filter;
    }
  }
  return nullptr;
}

absl::Status JinjaArguments::Check(std::string_view function, size_t max,
                                   const std::vector<std::string_view>& names) const {
  if (positional.size() > max) {
    return absl::InvalidArgumentError(
        Concat("'", function, "' takes at most ", max, " arguments, not ", positional.size()));
  }
  for (const auto& [keyword, value] : keywords) {
    if (std::find(names.begin(), names.end(), keyword) == names.end()) {
      return absl::InvalidArgumentError(
          Concat("'", function, "' has no argument called '", keyword, "'"));
    }
  }
  return absl::OkStatus();
}

const Value* JinjaArguments::Get(size_t position, std::string_view name) const {
  if (position < positional.size()) return &positional[position];
  for (const auto& [keyword, value] : keywords) {
    if (keyword == name) return &value;
  }
  return nullptr;
}

absl::StatusOr<Value> JinjaTrim(const JinjaText& text, bool left, bool right, JinjaHeap* heap) {
  const std::string_view kept = StripJinjaSpace(text.bytes(), left, right);
  return heap->NewSlice(text, kept.data() - text.bytes().data(), kept.size());
}

absl::StatusOr<Value> JinjaChangeCase(const JinjaText& text, bool upper, JinjaHeap* heap) {
  // Twice as wide on the way, and some characters become three.
  RETURN_IF_ERROR(heap->ChargeBytes(4 * text.size()));
  icu::UnicodeString wide = icu::UnicodeString::fromUTF8(text.bytes());
  if (upper) {
    wide.toUpper(icu::Locale::getRoot());
  } else {
    wide.toLower(icu::Locale::getRoot());
  }
  std::string out;
  wide.toUTF8String(out);
  return heap->NewText(text.Rewritten(std::move(out)));
}

absl::StatusOr<Value> JinjaCapitalize(const JinjaText& text, bool each_word, JinjaHeap* heap) {
  JinjaWriter out(heap);
  bool begin = true;
  const std::string& bytes = text.bytes();
  for (size_t at = 0; at < bytes.size();) {
    // Up to the next place where a word may begin.
    size_t end = at;
    bool letter = false;
    do {
      const CodePoint c = CodePointAt(bytes, end);
      letter = ClassOf(c.value) == CharClass::kLetter;
      end += c.bytes;
    } while (!begin && (!each_word || letter) && end < bytes.size());
    ASSIGN_OR_RETURN(const Value word, heap->NewSlice(text, at, end - at));
    ASSIGN_OR_RETURN(const Value piece, JinjaChangeCase(word.text(), begin, heap));
    RETURN_IF_ERROR(out.Append(piece.text()));
    begin = each_word && !letter;
    at = end;
  }
  return out.TakeValue();
}

absl::StatusOr<Value> JinjaReplace(const JinjaText& text, const JinjaText& from,
                                   const JinjaText& to, int64_t limit, JinjaHeap* heap) {
  if (from.size() == 0) {
    return absl::UnimplementedError("'replace' of an empty text is not supported");
  }
  JinjaWriter out(heap);
  for (size_t done = 0;;) {
    size_t at = limit == 0 ? std::string::npos : text.bytes().find(from.bytes(), done);
    const bool last = at == std::string::npos;
    if (last) at = text.size();
    RETURN_IF_ERROR(out.Append(text, done, at - done));
    if (last) return out.TakeValue();
    RETURN_IF_ERROR(out.Append(to));
    done = at + from.size();
    if (limit > 0) --limit;
  }
}

absl::StatusOr<Value> JinjaJoin(const std::vector<Value>& items, const JinjaText& separator,
                                JinjaHeap* heap) {
  JinjaWriter out(heap);
  for (size_t i = 0; i < items.size(); ++i) {
    ASSIGN_OR_RETURN(const JinjaString text, JinjaToText(items[i], heap));
    if (i > 0) RETURN_IF_ERROR(out.Append(separator));
    RETURN_IF_ERROR(out.Append(*text));
  }
  return out.TakeValue();
}

absl::StatusOr<std::vector<Value>> JinjaIterate(const Value& value, JinjaHeap* heap) {
  std::vector<Value> items;
  if (value.is_undefined()) return items;
  if (value.is_list()) {
    RETURN_IF_ERROR(heap->ChargeBytes(value.list().items.size() * sizeof(Value)));
    return value.list().items;
  }
  if (value.is_dict() && !value.dict().is_namespace) {
    RETURN_IF_ERROR(heap->ChargeItems(value.dict().items.size()));
    for (const auto& [key, item] : value.dict().items) {
      ASSIGN_OR_RETURN(Value text, heap->NewKey(value.dict(), key));
      items.push_back(std::move(text));
    }
    return items;
  }
  if (value.is_string()) {
    const std::string& text = value.string();
    RETURN_IF_ERROR(heap->ChargeItems(text.size()));
    for (size_t at = 0; at < text.size();) {
      const int bytes = CodePointAt(text, at).bytes;
      ASSIGN_OR_RETURN(Value character, heap->NewSlice(value.text(), at, bytes));
      items.push_back(std::move(character));
      at += bytes;
    }
    return items;
  }
  return absl::InvalidArgumentError(Concat("'", value.TypeName(), "' object is not iterable"));
}

}  // namespace bitshard
