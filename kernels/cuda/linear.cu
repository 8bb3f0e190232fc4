// Which kernel a launch goes to.
#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/linear.h"

namespace bitshard::cuda {

bool ScalesArePlainHalves(const Weight& w) {
  return w.type == WeightType::kInt && !w.scale.shared_rows &&
         (w.scale.kind == ScaleKind::kF16 || w.scale.kind == ScaleKind::kBf16);
}

cudaError_t LaunchLinearTiles(const LinearLaunch& launch, cudaStream_t stream) {
  if (launch.count <= 0) return cudaSuccess;
  const Weight& w = launch.members[0].w;
  if (w.type == WeightType::kF16 || w.type == WeightType::kBf16)
    return LaunchLinearHalf(launch, stream);
  if (w.type != WeightType::kInt) return cudaErrorInvalidValue;
  switch (w.bits) {
    case 2:
      return LaunchLinearW2(launch, stream);
    case 3:
      return LaunchLinearW3(launch, stream);
    case 4:
      return LaunchLinearW4(launch, stream);
    case 5:
      return LaunchLinearW5(launch, stream);
    case 6:
      return LaunchLinearW6(launch, stream);
    case 7:
      return LaunchLinearW7(launch, stream);
    case 8:
      return LaunchLinearW8(launch, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace bitshard::cuda
