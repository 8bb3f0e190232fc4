// One hex string of what the maths and small kernels give on this machine with this ISA. Ranks of a
// CPU group must agree.
#pragma once

#include <string>

#include "kernels/base/cpu_features.h"

namespace bitshard {

// 32 hex digits. Equal for every ISA and machine, or the same-bits promise is broken there.
std::string NumericsDigest(Isa isa);

}  // namespace bitshard
