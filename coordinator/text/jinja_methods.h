// The methods of templates' values, those of Python's str and dict: {{ text.strip() }}.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"

#include "coordinator/text/jinja_filters.h"
#include "coordinator/text/jinja_value.h"

namespace bitshard {

using JinjaMethodFn = absl::StatusOr<JinjaValue> (*)(const JinjaValue& self,
                                                     const JinjaArguments& arguments,
                                                     JinjaHeap* heap);

// Null when no kind of value has a method of this name.
JinjaMethodFn FindJinjaMethod(std::string_view name);

}  // namespace bitshard
