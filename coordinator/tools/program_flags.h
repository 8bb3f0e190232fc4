// Flags of bitshard-coordinator and bitshard-worker that somebody gives to `bitshard` itself.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace bitshard {

struct ProgramFlag {
  std::string_view type, name;  // "bool", "list_metrics"
};
const std::vector<ProgramFlag>& CoordinatorFlags();
const std::vector<ProgramFlag>& WorkerFlags();

// Where flags are wrong and one is known to those programs alone: whose it is, and how to hand it
// on. Else "". `argv[0]` is not looked at.
std::string HintOfProgramFlag(int argc, const char* const* argv);

}  // namespace bitshard
