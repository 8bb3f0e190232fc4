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
  std::vector<std::pair<std::string_view, JinjaValue>> keywords;  // names are the program's

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

struct JinjaFilter {
  std::string_view name;
  JinjaFilterFn run;
  // Names by position. The parser checks calls against them, so that a template that wants more is
  // refused when its model is loaded.
  std::vector<std::string_view> arguments;
  bool any_positional = false;  // more than these: select('equalto', x)
};

// Null when there is no filter of this name.
const JinjaFilter* FindJinjaFilter(std::string_view name);

// The tables that FindJinjaFilter looks into: of single values, and of sequences.
const std::vector<JinjaFilter>& JinjaValueFilters();
const std::vector<JinjaFilter>& JinjaSequenceFilters();

// The elements that a loop over `value` sees: a list's items, a dict's keys, a string's characters,
// nothing of an undefined. INVALID_ARGUMENT for what cannot be looped over.
absl::StatusOr<std::vector<JinjaValue>> JinjaIterate(const JinjaValue& value, JinjaHeap* heap);

// A string with its case changed, as one piece.
absl::StatusOr<JinjaValue> JinjaChangeCase(const JinjaText& text, bool upper, JinjaHeap* heap);
// The first character in upper case, the others in lower; with `each_word` of every word.
absl::StatusOr<JinjaValue> JinjaCapitalize(const JinjaText& text, bool each_word, JinjaHeap* heap);
// Every occurrence of `from`, at most `limit` ones (negative: all), becomes `to`.
absl::StatusOr<JinjaValue> JinjaReplace(const JinjaText& text, const JinjaText& from,
                                        const JinjaText& to, int64_t limit, JinjaHeap* heap);
// separator.join(items), items as they print.
absl::StatusOr<JinjaValue> JinjaJoin(const std::vector<JinjaValue>& items,
                                     const JinjaText& separator, JinjaHeap* heap);
// A slice of `text` without the white space at its ends.
absl::StatusOr<JinjaValue> JinjaTrim(const JinjaText& text, bool left, bool right, JinjaHeap* heap);

}  // namespace bitshard
