#include "coordinator/text/jinja_filters.h"

#include <algorithm>
#include <cctype>
#include <string>

#include "absl/status/status.h"
#include "unicode/locid.h"
#include "unicode/unistr.h"

#include "coordinator/text/concat.h"
#include "coordinator/text/jinja_lexer.h"
#include "coordinator/text/utf8.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

absl::Status WrongInput(std::string_view filter, const JinjaValue& input) {
  RETURN_IF_ERROR(input.CheckDefined());
  return absl::InvalidArgumentError(
      Concat("filter '", filter, "' cannot take a value of type ", input.TypeName()));
}

absl::StatusOr<JinjaValue> Trim(const JinjaValue& input, const JinjaArguments& arguments,
                                JinjaHeap* heap) {
  RETURN_IF_ERROR(arguments.Check("trim", 0));
  ASSIGN_OR_RETURN(const std::string text, JinjaToString(input, heap));
  return heap->NewString(std::string(StripJinjaSpace(text, /*left=*/true, /*right=*/true)));
}

absl::StatusOr<JinjaValue> Length(const JinjaValue& input, const JinjaArguments& arguments,
                                  JinjaHeap*) {
  RETURN_IF_ERROR(arguments.Check("length", 0));
  if (input.is_undefined()) return JinjaValue::Int(0);
  if (input.is_list()) return JinjaValue::Int(static_cast<int64_t>(input.list().items.size()));
  if (input.is_dict()) return JinjaValue::Int(static_cast<int64_t>(input.dict().items.size()));
  if (!input.is_string()) return WrongInput("length", input);
  return JinjaValue::Int(std::count_if(input.string().begin(), input.string().end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;  // characters, not bytes
  }));
}

absl::StatusOr<JinjaValue> String(const JinjaValue& input, const JinjaArguments& arguments,
                                  JinjaHeap* heap) {
  RETURN_IF_ERROR(arguments.Check("string", 0));
  ASSIGN_OR_RETURN(std::string text, JinjaToString(input, heap));
  return heap->NewString(std::move(text));
}

absl::StatusOr<JinjaValue> ChangeCase(const JinjaValue& input, bool upper, JinjaHeap* heap) {
  ASSIGN_OR_RETURN(const std::string text, JinjaToString(input, heap));
  RETURN_IF_ERROR(heap->ChargeBytes(2 * text.size()));
  icu::UnicodeString wide = icu::UnicodeString::fromUTF8(text);
  if (upper) {
    wide.toUpper(icu::Locale::getRoot());
  } else {
    wide.toLower(icu::Locale::getRoot());
  }
  std::string out;
  wide.toUTF8String(out);
  return heap->NewString(std::move(out));
}

absl::StatusOr<JinjaValue> Upper(const JinjaValue& input, const JinjaArguments& arguments,
                                 JinjaHeap* heap) {
  RETURN_IF_ERROR(arguments.Check("upper", 0));
  return ChangeCase(input, /*upper=*/true, heap);
}

absl::StatusOr<JinjaValue> Lower(const JinjaValue& input, const JinjaArguments& arguments,
                                 JinjaHeap* heap) {
  RETURN_IF_ERROR(arguments.Check("lower", 0));
  return ChangeCase(input, /*upper=*/false, heap);
}

absl::StatusOr<JinjaValue> Default(const JinjaValue& input, const JinjaArguments& arguments,
                                   JinjaHeap*) {
  RETURN_IF_ERROR(arguments.Check("default", 2, {"default_value", "boolean"}));
  const JinjaValue* fallback = arguments.Get(0, "default_value");
  const JinjaValue* boolean = arguments.Get(1, "boolean");
  const bool use = input.is_undefined() || (boolean && boolean->Truthy() && !input.Truthy());
  if (!use) return input;
  return fallback == nullptr ? JinjaValue::String("") : *fallback;
}

absl::StatusOr<JinjaValue> First(const JinjaValue& input, const JinjaArguments& arguments,
                                 JinjaHeap* heap) {
  RETURN_IF_ERROR(arguments.Check("first", 0));
  ASSIGN_OR_RETURN(const std::vector<JinjaValue> items, JinjaIterate(input, heap));
  return items.empty() ? JinjaValue::MakeUndefined("first of nothing") : items.front();
}

absl::StatusOr<JinjaValue> Last(const JinjaValue& input, const JinjaArguments& arguments,
                                JinjaHeap* heap) {
  RETURN_IF_ERROR(arguments.Check("last", 0));
  ASSIGN_OR_RETURN(const std::vector<JinjaValue> items, JinjaIterate(input, heap));
  return items.empty() ? JinjaValue::MakeUndefined("last of nothing") : items.back();
}

absl::StatusOr<JinjaValue> List(const JinjaValue& input, const JinjaArguments& arguments,
                                JinjaHeap* heap) {
  RETURN_IF_ERROR(arguments.Check("list", 0));
  ASSIGN_OR_RETURN(std::vector<JinjaValue> items, JinjaIterate(input, heap));
  return JinjaValue::List(heap->NewList(std::move(items)));
}

absl::StatusOr<JinjaValue> Join(const JinjaValue& input, const JinjaArguments& arguments,
                                JinjaHeap* heap) {
  RETURN_IF_ERROR(arguments.Check("join", 1, {"d"}));
  std::string separator;
  if (const JinjaValue* d = arguments.Get(0, "d")) {
    ASSIGN_OR_RETURN(separator, JinjaToString(*d, heap));
  }
  ASSIGN_OR_RETURN(const std::vector<JinjaValue> items, JinjaIterate(input, heap));
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    ASSIGN_OR_RETURN(const std::string text, JinjaToString(items[i], heap));
    RETURN_IF_ERROR(heap->ChargeBytes(text.size() + separator.size()));
    if (i > 0) out += separator;
    out += text;
  }
  return JinjaValue::String(std::move(out));
}

// The text as it is: there is no autoescape to protect it from.
absl::StatusOr<JinjaValue> Safe(const JinjaValue& input, const JinjaArguments& arguments,
                                JinjaHeap* heap) {
  return String(input, arguments, heap);
}

constexpr std::pair<std::string_view, JinjaFilterFn> kFilters[] = {
    {"default", Default}, {"d", Default},    {"first", First}, {"join", Join},   {"last", Last},
    {"length", Length},   {"count", Length}, {"list", List},   {"lower", Lower}, {"safe", Safe},
    {"string", String},   {"trim", Trim},    {"upper", Upper},
};

}  // namespace

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

const JinjaValue* JinjaArguments::Get(size_t position, std::string_view name) const {
  if (position < positional.size()) return &positional[position];
  for (const auto& [keyword, value] : keywords) {
    if (keyword == name) return &value;
  }
  return nullptr;
}

JinjaFilterFn FindJinjaFilter(std::string_view name) {
  for (const auto& [known, filter] : kFilters) {
    if (known == name) return filter;
  }
  return nullptr;
}

absl::StatusOr<std::vector<JinjaValue>> JinjaIterate(const JinjaValue& value, JinjaHeap* heap) {
  std::vector<JinjaValue> items;
  if (value.is_undefined()) return items;
  if (value.is_list()) {
    RETURN_IF_ERROR(heap->ChargeBytes(value.list().items.size() * sizeof(JinjaValue)));
    return value.list().items;
  }
  if (value.is_dict() && !value.dict().is_namespace) {
    RETURN_IF_ERROR(heap->ChargeBytes(value.dict().items.size() * sizeof(JinjaValue)));
    for (const auto& [key, item] : value.dict().items) {
      ASSIGN_OR_RETURN(JinjaValue text, heap->NewString(key));
      items.push_back(std::move(text));
    }
    return items;
  }
  if (value.is_string()) {
    const std::string& text = value.string();
    RETURN_IF_ERROR(heap->ChargeBytes(text.size() * 2 * sizeof(JinjaValue)));
    for (size_t at = 0; at < text.size();) {
      const int bytes = CodePointAt(text, at).bytes;
      items.push_back(JinjaValue::String(text.substr(at, bytes)));
      at += bytes;
    }
    return items;
  }
  return absl::InvalidArgumentError(Concat("'", value.TypeName(), "' object is not iterable"));
}

}  // namespace bitshard
