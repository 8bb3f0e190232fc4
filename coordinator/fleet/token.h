// The shared secret of a group's coordinator and workers.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace bitshard {

// PERMISSION_DENIED unless they are the same. Time depends on the lengths only, so that a peer
// cannot guess a token byte by byte.
inline absl::Status CheckToken(absl::string_view given, absl::string_view wanted) {
  unsigned char difference = given.size() == wanted.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^
                  static_cast<unsigned char>(wanted.empty() ? 0 : wanted[i % wanted.size()]);
  }
  if (difference == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(
      "wrong token; give coordinator and workers the same --token-file");
}

}  // namespace bitshard
