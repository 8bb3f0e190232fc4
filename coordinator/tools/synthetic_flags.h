// --synthetic and what belongs to it: a model without weights, for `bitshard bench`.
#pragma once

#include <optional>

#include "absl/status/statusor.h"

#include "coordinator/synthetic/synthetic_model.h"

namespace bitshard {

// Nullopt without --synthetic. INVALID_ARGUMENT names a bad flag, and one that goes with it alone.
absl::StatusOr<std::optional<SyntheticModel>> SyntheticModelFromFlags();

}  // namespace bitshard
