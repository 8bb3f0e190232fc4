// How ranks come to know each other before there is a communicator.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace bitshard {

// Gives a few bytes of this rank to all ranks, waits for theirs, and returns all of them by rank.
using TellRanksFn =
    std::function<absl::StatusOr<std::vector<std::string>>(const std::string& mine)>;

}  // namespace bitshard
