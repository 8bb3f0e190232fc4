// A GGUF model: one file, or the parts of a split one.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "coordinator/checkpoint/checkpoint.h"

namespace bitshard {

// `path` is absolute; of a split model it is the first part (<prefix>-00001-of-0000N.gguf).
absl::StatusOr<Checkpoint> OpenGguf(const std::string& path);

}  // namespace bitshard
