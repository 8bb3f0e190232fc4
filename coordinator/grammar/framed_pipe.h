// Messages of bytes over a socket between two processes of this build: a length, then the bytes.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace bitshard {

// UNAVAILABLE when the other side is gone.
absl::Status WriteFrame(int fd, absl::string_view bytes);

// UNAVAILABLE when the other side is gone, DEADLINE_EXCEEDED when `timeout` passes first.
absl::StatusOr<std::string> ReadFrame(int fd, absl::Duration timeout);

}  // namespace bitshard
