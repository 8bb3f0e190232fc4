// What is said of NCCL's errors, and of what it will lack.
#pragma once

#include <string>

#include <nccl.h>

#include "kernels/tensor/device.h"

namespace bitshard {

// What to try.
std::string NcclAdvice();

// `communicator` may be null: then of the last call in this thread.
std::string DescribeNccl(const char* call, ncclResult_t result, ncclComm_t communicator);

// As PeerWarning (device_collective.h).
std::string NcclPeerWarning(const Device& device, int ranks);

}  // namespace bitshard
