#include "coordinator/checkpoint/token_ids.h"

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"

namespace bitshard {

absl::StatusOr<std::vector<int32_t>> TokenIds(const JsonFields& fields, const char* key,
                                              uint64_t vocab_size) {
  std::vector<int32_t> ids;
  const Json* const value = fields.Find(key);
  if (value == nullptr) return ids;
  const uint64_t limit = vocab_size > 0 ? vocab_size : std::numeric_limits<int32_t>::max();
  const auto add = [&](const Json& id) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= limit) return false;
    ids.push_back(static_cast<int32_t>(id.get<uint64_t>()));
    return true;
  };
  bool all_good = true;
  if (value->is_array()) {
    for (const Json& id : *value) all_good = all_good && add(id);
  } else {
    all_good = add(*value);
  }
  if (all_good) return ids;
  return absl::InvalidArgumentError(absl::StrCat(
      fields.where(), ": \"", key, "\" is not a token id, or a list of them, below ", limit));
}

}  // namespace bitshard
