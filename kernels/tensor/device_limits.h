// Whether a device and its host have what a worker needs, and if not, in words for the operator:
// who lacks how much of what, and what to try.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

#include "kernels/tensor/device.h"

namespace bitshard {

struct DeviceMemoryNeed {
  uint64_t weight_bytes = 0;
  uint64_t kv_bytes = 0;
  uint64_t workspace_bytes = 0;  // activations, step arrays, staging, the collective's
};

// OK when weights + KV + workspace <= free (what this process may still take); else
// RESOURCE_EXHAUSTED with the inequality.
absl::Status ExplainMemory(const DeviceFacts& facts, const DeviceMemory& memory,
                           const DeviceMemoryNeed& need);

// Whether `folder` (/dev/shm) has room for the shared memory of NCCL when `local_ranks` ranks run
// on this host; OK for one rank. FAILED_PRECONDITION says how much is free and needed, and how to
// set it in Docker and Kubernetes.
absl::Status CheckSharedMemory(int local_ranks, const std::string& folder = "/dev/shm");

}  // namespace bitshard
