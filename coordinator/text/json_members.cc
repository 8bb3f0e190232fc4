#include "coordinator/text/json_members.h"

#include <limits>

#include "absl/status/status.h"

#include "coordinator/text/concat.h"

namespace bitshard {

const Json* FindMember(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(std::string(key));
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

absl::StatusOr<std::string> StringMember(const Json& object, std::string_view key,
                                         std::string_view what) {
  const Json* value = FindMember(object, key);
  if (value == nullptr || !value->is_string()) {
    return absl::DataLossError(Concat(what, ": '", key, "' is missing or no string"));
  }
  return value->get<std::string>();
}

absl::StatusOr<bool> BoolMemberOr(const Json& object, std::string_view key, bool fallback,
                                  std::string_view what) {
  const Json* value = FindMember(object, key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    return absl::DataLossError(Concat(what, ": '", key, "' is neither true nor false"));
  }
  return value->get<bool>();
}

absl::StatusOr<int32_t> TokenIdOf(const Json& value, std::string_view what) {
  if (!value.is_number_unsigned() ||
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) {
    return absl::DataLossError(Concat(what, ": a token id is no whole number in range"));
  }
  return static_cast<int32_t>(value.get<uint64_t>());
}

}  // namespace bitshard
