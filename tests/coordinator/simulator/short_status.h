// A status as a line of a trace has it: its details come in another order every time.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace bitshard::sim {

inline std::string Short(const absl::Status& status) {
  return status.ToString(absl::StatusToStringMode::kWithNoExtraData);
}

}  // namespace bitshard::sim
