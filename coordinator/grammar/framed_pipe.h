// Messages of bytes over a socket between two processes of this build: a length, then the bytes.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace bitshard {

// Of both: UNAVAILABLE when the other side is gone, DEADLINE_EXCEEDED when `timeout` passes first,
// part of the frame being on its way then.
absl::Status WriteFrame(int fd, absl::string_view bytes, absl::Duration timeout);
absl::StatusOr<std::string> ReadFrame(int fd, absl::Duration timeout);

}  // namespace bitshard
