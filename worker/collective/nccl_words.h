// What is said of NCCL's errors.
#pragma once

#include <string>

#include <nccl.h>

namespace bitshard {

// What to try.
std::string NcclAdvice();

// `communicator` may be null: then of the last call in this thread.
std::string DescribeNccl(const char* call, ncclResult_t result, ncclComm_t communicator);

}  // namespace bitshard
