// The tensor types of GGUF files by their number: what they are called and how large a block is.
// All that the format knows are here, so that a file with any of them can be described; which can
// be loaded is kernels/formats' affair.
#pragma once

#include <cstdint>
#include <string_view>

namespace bitshard {

struct GgufType {
  uint32_t id;
  std::string_view name;  // lower-case, as in kernels/formats where that has it
  uint64_t block_elements;
  uint64_t block_bytes;
};

// Null for unknown and for removed types.
const GgufType* FindGgufType(uint32_t id);

}  // namespace bitshard
