// A stretch of a text.
#pragma once

#include <cstddef>

namespace bitshard {

// Bytes [begin, end).
struct TextSpan {
  size_t begin = 0;
  size_t end = 0;
  bool operator==(const TextSpan&) const = default;
};

}  // namespace bitshard
