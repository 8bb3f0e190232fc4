// The normalizer stage: rewrites text before it is split. Only the Unicode forms are built (Qwen
// uses NFC).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace bitshard {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

class Normalizer {
 public:
  // Applied in this order; empty: text stays as it is.
  explicit Normalizer(std::vector<UnicodeForm> forms = {}) : forms_(std::move(forms)) {}

  bool identity() const { return forms_.empty(); }

  // `text` itself when nothing changes it, else a view of `storage`. REQUIRES: valid UTF-8.
  absl::StatusOr<std::string_view> Apply(std::string_view text, std::string* storage) const;

 private:
  std::vector<UnicodeForm> forms_;
};

}  // namespace bitshard
