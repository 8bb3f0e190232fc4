#include "coordinator/text/jinja_tests.h"

#include <utility>

#include "absl/status/status.h"

#include "coordinator/text/concat.h"

namespace bitshard {
namespace {

using Value = JinjaValue;
using Arguments = JinjaArguments;

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
    {"callable", [](const Value& v) { return v.is_function(); }},
};

// An undefined value can be looped over (no elements) and has a length (0).
bool IsIterable(const Value& v) {
  return v.is_undefined() || v.is_string() || v.is_list() ||
         (v.is_dict() && !v.dict().is_namespace);
}

template <int kIndex>
absl::StatusOr<bool> KindTest(const Value& value, const Arguments& arguments, JinjaHeap*) {
  if (!arguments.positional.empty() || !arguments.keywords.empty()) {
    return absl::InvalidArgumentError(
        Concat("test '", kKinds[kIndex].first, "' takes no argument"));
  }
  return kKinds[kIndex].second(value);
}

absl::StatusOr<bool> IterableTest(const Value& value, const Arguments&, JinjaHeap*) {
  return IsIterable(value);
}

absl::StatusOr<bool> EqualTo(const Value& value, const Arguments& arguments, JinjaHeap* heap) {
  if (arguments.positional.size() != 1) {
    return absl::InvalidArgumentError("test 'equalto' takes one argument");
  }
  return JinjaEquals(value, arguments.positional[0], heap);
}

template <int... kIndices>
JinjaTestFn FindKindTest(std::string_view name, std::integer_sequence<int, kIndices...>) {
  JinjaTestFn found = nullptr;
  ((kKinds[kIndices].first == name ? void(found = &KindTest<kIndices>) : void()), ...);
  return found;
}

}  // namespace

JinjaTestFn FindJinjaTest(std::string_view name) {
  if (name == "iterable" || name == "sequence") return &IterableTest;
  if (name == "equalto" || name == "eq") return &EqualTo;
  return FindKindTest(name, std::make_integer_sequence<int, std::size(kKinds)>());
}

}  // namespace bitshard
