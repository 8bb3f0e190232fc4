// Typed members of the JSON objects in tokenizer files. A missing member and null are the same.
//
// Errors are DATA_LOSS; `what` names the file and the object.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "coordinator/checkpoint/json.h"

namespace bitshard {

// Null when `object` is no object or has no such member.
const Json* FindMember(const Json& object, std::string_view key);

absl::StatusOr<std::string> StringMember(const Json& object, std::string_view key,
                                         std::string_view what);
absl::StatusOr<bool> BoolMemberOr(const Json& object, std::string_view key, bool fallback,
                                  std::string_view what);
// A whole number from 0 to the largest id.
absl::StatusOr<int32_t> TokenIdOf(const Json& value, std::string_view what);

}  // namespace bitshard
