// Which kernel a launch goes to.
#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/linear_a8.h"

namespace bitshard::cuda {

A8Cells CellsOf(const LinearMember& member, const LinearA8Launch& launch) {
  const bool one_segment = launch.segment_cols >= launch.cols;
  if (!one_segment && launch.segment_cols % (16 * kA8GroupRuns) != 0) return A8Cells::kAny;
  const int runs = member.group_runs, first = member.first_group_runs;
  if (runs == 1) return A8Cells::kRuns;
  return runs % kA8GroupRuns == 0 && first % kA8GroupRuns == 0 ? A8Cells::kPairs : A8Cells::kAny;
}

cudaError_t LaunchLinearA8(const LinearA8Launch& launch, cudaStream_t stream) {
  if (launch.count <= 0 || launch.m <= 0) return cudaSuccess;
  if (launch.members[0].w.type != WeightType::kInt) return cudaErrorInvalidValue;
  switch (launch.members[0].w.bits) {
    case 2:
      return LaunchLinearA8W2(launch, stream);
    case 3:
      return LaunchLinearA8W3(launch, stream);
    case 4:
      return LaunchLinearA8W4(launch, stream);
    case 5:
      return LaunchLinearA8W5(launch, stream);
    case 6:
      return LaunchLinearA8W6(launch, stream);
    case 7:
      return LaunchLinearA8W7(launch, stream);
    case 8:
      return LaunchLinearA8W8(launch, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace bitshard::cuda
