// Which kernels were launched, and how large their grids were. On the emulator alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bitshard {

struct LoggedLaunch {
  std::string kernel;  // as the launch names it: "LinearTilesKernel<Weights, kBlocks, 2, true>"
  uint64_t blocks = 0;
};

// Every launch of the process from here on is logged; not twice.
void StartLaunchLog();
// Those since the last call, in the order in which they ran.
std::vector<LoggedLaunch> TakeLaunchLog();

}  // namespace bitshard
