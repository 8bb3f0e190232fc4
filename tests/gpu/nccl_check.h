// What one GPU can show of ranks over NCCL: worker/collective/nccl.cc and the device layer in a
// group of one, and a rank that waits in vain for a second one. NCCL takes no two ranks on one GPU.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"

#include "kernels/tensor/device.h"

namespace bitshard {

struct NcclCheckOptions {
  // How long the kernel runs during which the communicator is aborted, about.
  absl::Duration long_kernel = absl::Seconds(1);
  // How long the rank without a partner waits.
  absl::Duration join_timeout = absl::Seconds(2);
  // Of an operation, the work before it in its stream included.
  absl::Duration operation_timeout = absl::Seconds(10);
};

struct NcclCheckResult {
  std::string name;   // "a captured sum is done at every launch"
  std::string error;  // "" when it passed
  std::string note;   // what was measured
};

// `report` gets each result as soon as there is one; so many are returned. The first join that
// fails ends it.
std::vector<NcclCheckResult> CheckNccl(Device& device, const NcclCheckOptions& options,
                                       const std::function<void(const NcclCheckResult&)>& report);

}  // namespace bitshard
