#include "kernels/tensor/device_limits.h"

#include <cerrno>
#include <cstring>
#include <sys/statvfs.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace bitshard {
namespace {

// NCCL without direct access between devices asks for segments of 9,637,888 bytes ("Error while
// creating shared memory segment" in NVIDIA/nccl issues 342 and 525), one a direction, neighbour
// and channel: 2 neighbours x 2 directions x 2 channels.
constexpr uint64_t kNcclSegmentBytes = 9'637'888;
constexpr uint64_t kNcclBytesARank = 8 * kNcclSegmentBytes;

std::string Gib(uint64_t bytes) {
  return absl::StrFormat("%.2f GiB", static_cast<double>(bytes) / 0x1p30);
}
std::string Mib(uint64_t bytes) {
  return absl::StrFormat("%.0f MiB", static_cast<double>(bytes) / 0x1p20);
}

// The end of a sum is its greatest value where it would not fit.
uint64_t AddSaturated(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }

}  // namespace

absl::Status ExplainMemory(const DeviceFacts& facts, const DeviceMemory& memory,
                           const DeviceMemoryNeed& need) {
  const uint64_t sum =
      AddSaturated(AddSaturated(need.weight_bytes, need.kv_bytes), need.workspace_bytes);
  if (sum <= memory.free_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      facts.kind, ":", facts.index, " (", facts.name, "): weights ", Gib(need.weight_bytes),
      sum == need.weight_bytes ? std::string(" alone")
                               : absl::StrCat(" + KV cache ", Gib(need.kv_bytes), " + workspace ",
                                              Gib(need.workspace_bytes), " = ", Gib(sum)),
      " > ", Gib(memory.free_bytes), " free of ", Gib(memory.total_bytes),
      " (the rest is taken, or kept back by --memory), ", Gib(sum - memory.free_bytes),
      " are missing; try ",
      need.weight_bytes > memory.free_bytes
          ? "more workers or weights of fewer bits"
          : "a smaller --kv-cache-bytes or --kv-blocks, more workers, or weights of fewer bits"));
}

absl::Status CheckSharedMemory(int local_ranks, const std::string& folder) {
  if (local_ranks <= 1) return absl::OkStatus();
  const uint64_t need = kNcclBytesARank * static_cast<uint64_t>(local_ranks);
  const std::string advice = absl::StrCat(
      "Docker: --shm-size=1g, or --ipc=host. Kubernetes: a volume {name: dshm, emptyDir: {medium: "
      "Memory, sizeLimit: 8Gi}} mounted at ",
      folder,
      " (it counts against the memory limit). With NVLink between all devices "
      "NCCL_SHM_DISABLE=1 does without");
  struct statvfs facts;
  if (statvfs(folder.c_str(), &facts) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder, ": ", std::strerror(errno), "; NCCL needs ", Mib(need),
                     " of shared memory there for ", local_ranks, " ranks. ", advice));
  }
  const uint64_t free_bytes = static_cast<uint64_t>(facts.f_bavail) * facts.f_frsize;
  if (free_bytes >= need) return absl::OkStatus();
  const uint64_t total_bytes = static_cast<uint64_t>(facts.f_blocks) * facts.f_frsize;
  return absl::FailedPreconditionError(absl::StrCat(
      folder, " has ", Mib(free_bytes), " free of ", Mib(total_bytes), ", but NCCL needs ",
      Mib(need), " for ", local_ranks,
      " ranks of this host: with less it fails in the middle of a start, or hangs. ", advice));
}

}  // namespace bitshard
