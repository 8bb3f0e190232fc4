// A Hugging Face model folder: config.json, safetensors, tokenizer and template files.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "coordinator/checkpoint/checkpoint.h"

namespace bitshard {

// `folder` is a real path that holds a config.json.
absl::StatusOr<Checkpoint> OpenHfFolder(const std::string& folder);

}  // namespace bitshard
