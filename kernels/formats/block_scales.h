// What block formats with an f16 scale share: reading it, and refusing one that no writer produces.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace bitshard {

inline uint16_t LoadF16Bits(const uint8_t* bytes) {
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return bits;
}

inline bool IsFiniteF16(uint16_t bits) { return (bits & 0x7c00u) != 0x7c00u; }

inline absl::Status NonFiniteScale(const std::string& format, uint64_t row, uint64_t block) {
  return absl::DataLossError(absl::StrCat(format, ": the scale of row ", row, ", block ", block,
                                          " is not finite; the file is damaged"));
}

}  // namespace bitshard
