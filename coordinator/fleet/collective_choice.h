// Over which collective a group meets: workers say which they can, hosts say which will do.
#pragma once

#include <string>
#include <vector>

#include "proto/worker.pb.h"

namespace bitshard {

// "nccl" when all can, else "shm" when all can and share a host, else "gloo" when all can; "" when
// there is none. A worker that names none can shm.
std::string ChooseCollective(const std::vector<const internal::Register*>& workers);

bool OnSeveralHosts(const std::vector<const internal::Register*>& workers);

}  // namespace bitshard
