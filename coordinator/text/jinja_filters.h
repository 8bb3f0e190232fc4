// The filters of templates: {{ value | filter(arguments) }}.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "coordinator/text/jinja_value.h"

namespace bitshard {

// Arguments of a call, evaluated.
struct JinjaArguments {
  std::vector<JinjaValue> positional;
  std::vector<std::pair<std::string, JinjaValue>> keywords;

  // INVALID_ARGUMENT when there are more than `max` positional ones or keywords other than `names`;
  // `function` is for the message.
  absl::Status Check(std::string_view function, size_t max,
                     const std::vector<std::string_view>& names = {}) const;
  // The argument at `position`, or called `name`; null when it was not given.
  const JinjaValue* Get(size_t position, std::string_view name) const;
};

using JinjaFilterFn = absl::StatusOr<JinjaValue> (*)(const JinjaValue& input,
                                                     const JinjaArguments& arguments,
                                                     JinjaHeap* heap);

// Null when there is no filter of this name.
JinjaFilterFn FindJinjaFilter(std::string_view name);

// The elements that a loop over `value` sees: a list's items, a dict's keys, a string's characters,
// nothing of an undefined. INVALID_ARGUMENT for what cannot be looped over.
absl::StatusOr<std::vector<JinjaValue>> JinjaIterate(const JinjaValue& value, JinjaHeap* heap);

}  // namespace bitshard
