// JSON in templates: what tojson prints, and JSON texts as values.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "coordinator/text/jinja_value.h"
#include "coordinator/text/jinja_writer.h"

namespace bitshard {

// As the arguments of Python's json.dumps; the defaults are those of chat templates' tojson.
struct JinjaJsonFormat {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // of one level; none: all on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

// Appends `value` as json.dumps writes it. INVALID_ARGUMENT for what JSON does not have.
absl::Status JinjaToJson(const JinjaValue& value, const JinjaJsonFormat& format, JinjaHeap* heap,
                         JinjaWriter* out);

// The value of a JSON text, keys in its order, of equal keys the last. Its strings are the
// caller's unless `own`. INVALID_ARGUMENT unless `text` is one JSON value, nested 100 deep at most.
absl::StatusOr<JinjaValue> JinjaFromJson(std::string_view text, bool own, JinjaHeap* heap);

}  // namespace bitshard
