#include "worker/collective/nccl_words.h"

#include <cstdint>
#include <sys/statvfs.h>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

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

std::string NcclPeerWarning(const Device& device, int ranks) {
  const int index = device.facts().index;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) cudaGetLastError();
  if (index < ranks && ranks < count) count = ranks;
  std::vector<std::string> unreached;
  for (int other = 0; other < count; ++other) {
    int reaches = 0;
    if (other == index) continue;
    if (cudaDeviceCanAccessPeer(&reaches, index, other) != cudaSuccess) cudaGetLastError();
    if (reaches == 0) unreached.push_back(absl::StrCat("cuda:", other));
  }
  if (unreached.empty() && count < ranks) {
    return absl::StrCat("cuda:", index, " is one of ", count, " that this process sees, for ",
                        ranks,
                        " ranks on this host: where it does not reach the memory of the others "
                        "(P2P), sums go through the host's memory and need room in /dev/shm");
  }
  if (unreached.empty()) return "";
  return absl::StrCat(
      "cuda:", index, " has no direct access (P2P) to ", absl::StrJoin(unreached, ", "),
      ": sums between them go through the host's memory, slower, and need room in /dev/shm. "
      "Usual reasons: GeForce cards, a virtual machine, PCIe access control (ACS); nvidia-smi "
      "topo -p2p r shows all pairs");
}

}  // namespace bitshard
