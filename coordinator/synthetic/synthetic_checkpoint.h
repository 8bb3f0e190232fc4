// The checkpoint that a synthetic model would be, and the one way to open a model of either kind.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "coordinator/checkpoint/checkpoint.h"
#include "coordinator/synthetic/synthetic_model.h"

namespace bitshard {

// Sizes, formats and names as a checkpoint of the config would have them; the index knows the seed
// of the weights. The tokenizer is one token a byte, for ids below 256; the others have no text.
// Errors as OpenCheckpoint; INVALID_ARGUMENT also for a share that no rank could own.
absl::StatusOr<Checkpoint> OpenSyntheticModel(const SyntheticModel& model);

// OpenCheckpoint, and what begins with "synthetic:".
absl::StatusOr<Checkpoint> OpenModel(const std::string& model);

}  // namespace bitshard
