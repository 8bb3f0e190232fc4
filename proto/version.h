// The version of this build, which coordinator and workers of a group must share.
#pragma once

namespace bitshard {

inline constexpr char kBuildVersion[] = "0.1.0";

}  // namespace bitshard
