#include "worker/collective/nccl_words.h"

#include <cstdint>
#include <sys/statvfs.h>

#include "absl/strings/str_cat.h"

namespace bitshard {

std::string NcclAdvice() {
  std::string shm = "unknown";
  struct statvfs space = {};
  if (statvfs("/dev/shm", &space) == 0)
    shm = absl::StrCat((static_cast<uint64_t>(space.f_bavail) * space.f_frsize) >> 20, " MiB");
  return absl::StrCat(
      "NCCL_DEBUG=INFO in the workers' environment makes NCCL say more. Often it is /dev/shm (free "
      "here: ",
      shm,
      "; containers begin with 64 MiB, --shm-size=1g gives more), peer access between the GPUs "
      "(NCCL_P2P_DISABLE=1 goes without), or between hosts the network (NCCL_SOCKET_IFNAME names "
      "the interface)");
}

std::string DescribeNccl(const char* call, ncclResult_t result, ncclComm_t communicator) {
  const char* detail = ncclGetLastError(communicator);
  return absl::StrCat(call, ": ", ncclGetErrorString(result),
                      detail == nullptr || *detail == '\0' ? "" : absl::StrCat(" (", detail, ")"));
}

}  // namespace bitshard
