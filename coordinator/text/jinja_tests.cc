#include "coordinator/text/jinja_tests.h"

#include <cstdint>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "unicode/locid.h"
#include "unicode/unistr.h"

#include "coordinator/text/concat.h"
#include "coordinator/text/jinja_operators.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

using Value = JinjaValue;
using Arguments = JinjaArguments;

// Letters, and none of the other case.
bool HasCase(const Value& v, bool upper) {
  if (!v.is_string()) return false;
  icu::UnicodeString text = icu::UnicodeString::fromUTF8(v.string());
  icu::UnicodeString same = text;
  icu::UnicodeString other = text;
  if (upper) {
    same.toUpper(icu::Locale::getRoot());
    other.toLower(icu::Locale::getRoot());
  } else {
    same.toLower(icu::Locale::getRoot());
    other.toUpper(icu::Locale::getRoot());
  }
  return text == same && text != other;
}

constexpr std::pair<std::string_view, bool (*)(const Value&)> kKinds[] = {
    {"defined", [](const Value& v) { return !v.is_undefined(); }},
    {"undefined", [](const Value& v) { return v.is_undefined(); }},
    {"none", [](const Value& v) { return v.is_none(); }},
    {"string", [](const Value& v) { return v.is_string(); }},
    {"mapping", [](const Value& v) { return v.is_dict() && !v.dict().is_namespace; }},
    {"boolean", [](const Value& v) { return v.is_bool(); }},
    {"true", [](const Value& v) { return v.is_bool() && v.Truthy(); }},
    {"false", [](const Value& v) { return v.is_bool() && !v.Truthy(); }},
    {"integer", [](const Value& v) { return v.is_int(); }},
    {"float", [](const Value& v) { return v.is_float(); }},
    {"number", [](const Value& v) { return v.is_number(); }},
    {"callable", [](const Value& v) { return v.is_function() || v.is_macro(); }},
    {"lower", [](const Value& v) { return HasCase(v, /*upper=*/false); }},
    {"upper", [](const Value& v) { return HasCase(v, /*upper=*/true); }},
};

// An undefined value can be looped over (no elements) and has a length (0).
bool IsIterable(const Value& v) {
  return v.is_undefined() || v.is_string() || v.is_list() ||
         (v.is_dict() && !v.dict().is_namespace);
}

template <int kIndex>
absl::StatusOr<bool> KindTest(const Value& value, const Arguments& arguments, JinjaHeap* heap) {
  if (!arguments.positional.empty() || !arguments.keywords.empty()) {
    return absl::InvalidArgumentError(
        Concat("test '", kKinds[kIndex].first, "' takes no argument"));
  }
  // Three copies, twice as wide, for those that look at letters.
  constexpr bool kOfText = kKinds[kIndex].first == "lower" || kKinds[kIndex].first == "upper";
  if (kOfText && value.is_string()) RETURN_IF_ERROR(heap->ChargeBytes(6 * value.string().size()));
  return kKinds[kIndex].second(value);
}

absl::StatusOr<bool> IterableTest(const Value& value, const Arguments&, JinjaHeap*) {
  return IsIterable(value);
}

absl::StatusOr<Value> OneArgument(std::string_view test, const Arguments& arguments) {
  if (arguments.positional.size() == 1 && arguments.keywords.empty()) {
    return arguments.positional[0];
  }
  return absl::InvalidArgumentError(Concat("test '", test, "' takes one argument"));
}

template <JinjaCompare kCompare>
absl::StatusOr<bool> Compare(const Value& value, const Arguments& arguments, JinjaHeap* heap) {
  ASSIGN_OR_RETURN(const Value other, OneArgument("of comparison", arguments));
  return JinjaCompareValues(kCompare, value, other, heap);
}

// The same object; values that cannot change are the same when they are equal.
absl::StatusOr<bool> SameAs(const Value& value, const Arguments& arguments, JinjaHeap* heap) {
  ASSIGN_OR_RETURN(const Value other, OneArgument("sameas", arguments));
  if (value.is_list() && other.is_list()) return &value.list() == &other.list();
  if (value.is_dict() && other.is_dict()) return &value.dict() == &other.dict();
  return value.TypeName() == other.TypeName() ? JinjaEquals(value, other, heap) : false;
}

absl::StatusOr<bool> Divides(const Value& value, int64_t divisor, int64_t rest) {
  RETURN_IF_ERROR(value.CheckDefined());
  if (!value.AsInt().has_value()) {
    return absl::InvalidArgumentError(Concat("'", value.TypeName(), "' is no integer"));
  }
  if (divisor == 0) return absl::InvalidArgumentError("integer modulo by zero");
  if (divisor == -1) return rest == 0;  // INT64_MIN % -1 does not fit
  return std::abs(*value.AsInt() % divisor) == rest;
}

template <int kRest>
absl::StatusOr<bool> Parity(const Value& value, const Arguments&, JinjaHeap*) {
  return Divides(value, 2, kRest);
}

absl::StatusOr<bool> DivisibleBy(const Value& value, const Arguments& arguments, JinjaHeap*) {
  ASSIGN_OR_RETURN(const Value divisor, OneArgument("divisibleby", arguments));
  if (!divisor.AsInt().has_value()) {
    return absl::InvalidArgumentError("test 'divisibleby' takes an integer");
  }
  return Divides(value, *divisor.AsInt(), 0);
}

constexpr std::pair<std::string_view, JinjaTestFn> kOthers[] = {
    {"iterable", &IterableTest},
    {"sequence", &IterableTest},
    {"in", &Compare<JinjaCompare::kIn>},
    {"equalto", &Compare<JinjaCompare::kEq>},
    {"eq", &Compare<JinjaCompare::kEq>},
    {"==", &Compare<JinjaCompare::kEq>},
    {"ne", &Compare<JinjaCompare::kNe>},
    {"!=", &Compare<JinjaCompare::kNe>},
    {"lt", &Compare<JinjaCompare::kLt>},
    {"lessthan", &Compare<JinjaCompare::kLt>},
    {"<", &Compare<JinjaCompare::kLt>},
    {"le", &Compare<JinjaCompare::kLe>},
    {"<=", &Compare<JinjaCompare::kLe>},
    {"gt", &Compare<JinjaCompare::kGt>},
    {"greaterthan", &Compare<JinjaCompare::kGt>},
    {">", &Compare<JinjaCompare::kGt>},
    {"ge", &Compare<JinjaCompare::kGe>},
    {">=", &Compare<JinjaCompare::kGe>},
    {"sameas", &SameAs},
    {"odd", &Parity<1>},
    {"even", &Parity<0>},
    {"divisibleby", &DivisibleBy},
};

template <int... kIndices>
JinjaTestFn FindKindTest(std::string_view name, std::integer_sequence<int, kIndices...>) {
  JinjaTestFn found = nullptr;
  ((kKinds[kIndices].first == name ? void(found = &KindTest<kIndices>) : void()), ...);
  return found;
}

}  // namespace

JinjaTestFn FindJinjaTest(std::string_view name) {
  for (const auto& [known, test] : kOthers) {
    if (known == name) return test;
  }
  return FindKindTest(name, std::make_integer_sequence<int, std::size(kKinds)>());
}

}  // namespace bitshard
