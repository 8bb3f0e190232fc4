// nccl_check: what one GPU can show of ranks over NCCL (nccl_check.h). One line a check as it ends;
// exit status 1 when one failed. Needs libnccl.so.2 of the machine.
#include <cstdio>
#include <memory>
#include <vector>

#include "kernels/base/status_macros.h"
#include "tests/gpu/nccl_check.h"

namespace bitshard {
namespace {

// The number of checks that failed.
absl::StatusOr<int> Run() {
  ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenDevice("cuda", 0));
  const std::vector<NcclCheckResult> results =
      CheckNccl(*device, {}, [](const NcclCheckResult& result) {
        std::printf("%s: %s (%s)%s%s\n", result.error.empty() ? "ok" : "FAILED",
                    result.name.c_str(), result.note.c_str(), result.error.empty() ? "" : ": ",
                    result.error.c_str());
        std::fflush(stdout);
      });
  int failed = 0;
  for (const NcclCheckResult& result : results) failed += !result.error.empty();
  std::printf("%d of %zu checks failed\n", failed, results.size());
  return failed;
}

}  // namespace
}  // namespace bitshard

int main() {
  const absl::StatusOr<int> failed = bitshard::Run();
  if (!failed.ok()) std::fprintf(stderr, "error: %s\n", failed.status().ToString().c_str());
  return failed.ok() && *failed == 0 ? 0 : 1;
}
