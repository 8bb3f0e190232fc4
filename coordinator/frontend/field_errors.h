// Collects everything that is wrong with a request, so that the caller is told once and whole.
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

#include "proto/status_details.h"

namespace bitshard {

class FieldErrors {
 public:
  // At most 16 are kept: what a caller can read, and what trailers can carry. The ErrorInfo
  // `reason` is told when all errors have the same.
  void Add(std::string field, std::string description, absl::string_view reason = "") {
    if (errors_.empty()) reason_ = reason;
    if (reason_ != reason) reason_ = "";
    if (errors_.size() < 16) errors_.emplace_back(std::move(field), std::move(description));
  }
  // `value` must be a number in [low, high], or in (low, high] with `open_low`.
  void CheckRange(absl::string_view field, float value, float low, float high,
                  bool open_low = false) {
    if (std::isfinite(value) && value <= high && (open_low ? value > low : value >= low)) return;
    Add(std::string(field),
        absl::StrCat("must be in ", open_low ? "(" : "[", low, ", ", high, "], not ", value));
  }

  bool empty() const { return errors_.empty(); }

  absl::Status ToStatus() const {
    if (errors_.empty()) return absl::OkStatus();
    const auto format = [](std::string* out, const std::pair<std::string, std::string>& error) {
      absl::StrAppend(out, error.first, ": ", error.second);
    };
    absl::Status status = absl::InvalidArgumentError(absl::StrJoin(errors_, "; ", format));
    for (const auto& [field, description] : errors_)
      status = WithBadField(std::move(status), field, description);
    return reason_.empty() ? status : WithErrorInfo(std::move(status), reason_);
  }

 private:
  absl::string_view reason_;  // a constant
  std::vector<std::pair<std::string, std::string>> errors_;
};

}  // namespace bitshard
