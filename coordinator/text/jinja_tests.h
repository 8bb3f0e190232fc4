// The tests of templates: {% if value is test %}.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"

#include "coordinator/text/jinja_filters.h"
#include "coordinator/text/jinja_value.h"

namespace bitshard {

using JinjaTestFn = absl::StatusOr<bool> (*)(const JinjaValue& value,
                                             const JinjaArguments& arguments, JinjaHeap* heap);

// Null when there is no test of this name.
JinjaTestFn FindJinjaTest(std::string_view name);

}  // namespace bitshard
