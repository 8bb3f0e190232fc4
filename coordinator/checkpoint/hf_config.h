// config.json of a Hugging Face model folder -> ModelConfig. Knows the old and the new names of the
// rope settings.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "coordinator/checkpoint/config.h"

namespace bitshard {

// `where` names the file in messages. UNIMPLEMENTED for rope types that we do not have. What it
// says of quantization is quantization.h's affair.
absl::StatusOr<ModelConfig> ParseHfConfig(std::string_view json, const std::string& where);

}  // namespace bitshard
