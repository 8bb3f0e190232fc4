// The one way to make a text longer: every piece is charged to the rendering before it is added, so
// that no program can make more than it is allowed, not even for a moment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/status/status.h"

#include "coordinator/text/jinja_text.h"
#include "coordinator/text/jinja_value.h"

namespace bitshard {

class JinjaWriter {
 public:
  // `heap` outlives this object.
  explicit JinjaWriter(JinjaHeap* heap) : heap_(*heap) {}

  // All of them are RESOURCE_EXHAUSTED, and add nothing, when the rendering has had its share.
  absl::Status Append(std::string_view own);
  absl::Status Append(const JinjaText& text) { return Append(text, 0, text.size()); }
  // REQUIRES: the slice is inside.
  absl::Status Append(const JinjaText& text, size_t begin, size_t bytes);
  absl::Status AppendTimes(const JinjaText& text, uint64_t times);
  // What the byte of `from` at `at` has become.
  absl::Status AppendInPlaceOf(const JinjaText& from, size_t at, std::string_view replacement);

  size_t size() const { return text_.size(); }
  // The text, and nothing is left. It is paid for.
  JinjaText Take() { return std::exchange(text_, JinjaText()); }
  JinjaValue TakeValue() { return JinjaValue::Text(Take()); }

 private:
  JinjaHeap& heap_;
  JinjaText text_;
};

}  // namespace bitshard
