// What one GPU can show of ranks over NCCL: worker/collective/nccl.cc and the device layer in a
// group of one, and a rank that waits in vain for a second one. NCCL takes no two ranks on one GPU.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
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

// What must hold of a wait behind a kernel that runs on, once its communicator is aborted: it ends
// within the deadline of an operation, counted from the abort, however long the kernel takes. Not
// how soon: that is the machine's. Times from the begin of the wait; INTERNAL says all of them.
struct AbortTimes {
  absl::Duration abort;   // it was asked for
  absl::Duration waited;  // the wait was over
  absl::Duration kernel;  // the kernel was
};
absl::Status JudgeAbort(const AbortTimes& times, absl::Duration deadline);
// "abort after 100ms, the wait ended after 120ms, the kernel after 1s"
std::string AbortText(const AbortTimes& times);

// `report` gets each result as soon as there is one; so many are returned. The first join that
// fails ends it.
std::vector<NcclCheckResult> CheckNccl(Device& device, const NcclCheckOptions& options,
                                       const std::function<void(const NcclCheckResult&)>& report);

}  // namespace bitshard
