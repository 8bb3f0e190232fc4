// What the operators of template expressions do, with Python's meaning and Python's words in the
// errors.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"

#include "coordinator/text/jinja_ast.h"
#include "coordinator/text/jinja_value.h"

namespace bitshard {

absl::StatusOr<JinjaValue> JinjaBinary(JinjaOp op, const JinjaValue& a, const JinjaValue& b,
                                       JinjaHeap* heap);
// format % values of Python: %s, %d and %%. REQUIRES: format.is_string().
absl::StatusOr<JinjaValue> JinjaFormat(const JinjaValue& format,
                                       const std::vector<JinjaValue>& values, JinjaHeap* heap);
absl::StatusOr<JinjaValue> JinjaNegate(const JinjaValue& value);
absl::StatusOr<bool> JinjaCompareValues(JinjaCompare compare, const JinjaValue& a,
                                        const JinjaValue& b, JinjaHeap* heap);

// object[key]; undefined when there is no such element.
absl::StatusOr<JinjaValue> JinjaItem(const JinjaValue& object, const JinjaValue& key,
                                     JinjaHeap* heap);
// object[begin:end:step] of a list or string.
absl::StatusOr<JinjaValue> JinjaSlice(const JinjaValue& object, std::optional<int64_t> begin,
                                      std::optional<int64_t> end, std::optional<int64_t> step,
                                      JinjaHeap* heap);

}  // namespace bitshard
