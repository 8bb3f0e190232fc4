// Strict JSON for files that we did not write: duplicate keys, deep nesting, more values than any
// checkpoint has and invalid UTF-8 are errors with the place in the file, never an exception and
// never a surprise.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace bitshard {

using Json = nlohmann::json;

// `where` names the text in messages. DATA_LOSS unless `text` is one JSON value.
absl::StatusOr<Json> ParseJson(std::string_view text, const std::string& where);

// The keys of the object at `path` in the order in which the text has them, which Json forgets.
// Empty when there is no object at this place. REQUIRES: ParseJson(text) is OK.
std::vector<std::string> KeysInFileOrder(std::string_view text,
                                         const std::vector<std::string>& path);

// The members of a JSON object by name, with the checks that every reader of a config needs. A
// missing member and null are the same. Errors name the file and the key. The object outlives the
// reader.
class JsonFields {
 public:
  // REQUIRES: object.is_object().
  JsonFields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const std::string& where() const { return where_; }
  // Null when missing.
  const Json* Find(const char* key) const;

  absl::StatusOr<std::optional<uint64_t>> Unsigned(const char* key, uint64_t max) const;
  absl::StatusOr<uint64_t> RequiredUnsigned(const char* key, uint64_t min, uint64_t max) const;
  // Finite numbers only.
  absl::StatusOr<std::optional<double>> Number(const char* key) const;
  absl::StatusOr<std::optional<bool>> Bool(const char* key) const;
  absl::StatusOr<std::optional<std::string>> String(const char* key) const;

 private:
  absl::Status Wrong(const char* key, const std::string& expected) const;

  const Json& object_;
  const std::string where_;
};

}  // namespace bitshard
