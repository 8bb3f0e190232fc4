// Abseil flags with the spelling that people type: --kv-cache-dtype=f32 is the flag kv_cache_dtype.
#pragma once

#include <string>
#include <vector>

namespace bitshard {

// Turns dashes in flag names (not in values, not after "--") into underscores, then lets Abseil
// parse. Returns the arguments that are no flags, without the program's name. Unknown flags and bad
// values end the program with a hint.
std::vector<std::string> ParseCommandLine(int argc, char** argv);

}  // namespace bitshard
