// Token ids in JSON configs: one number or a list of them.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "coordinator/checkpoint/json.h"

namespace bitshard {

// Empty when the key is missing. INVALID_ARGUMENT when an id lies outside of the vocabulary
// (vocab_size 0: not known).
absl::StatusOr<std::vector<int32_t>> TokenIds(const JsonFields& fields, const char* key,
                                              uint64_t vocab_size);

}  // namespace bitshard
