#include "kernels/cuda/sample_ops.h"

#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"

#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/sample.h"

namespace bitshard {
namespace {

absl::Status CheckRows(const char* op, int64_t m, int64_t count, int64_t stride) {
  constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();
  if (m < 0 || m > kMaxScanRows || count < 0 || count > kMostTokens || stride < count) {
    return absl::InvalidArgumentError(absl::StrCat("cuda ", op, ": ", m, " rows of ", count,
                                                   " logits at a stride of ", stride, "; at most ",
                                                   kMaxScanRows, " of ", kMostTokens));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CudaScan(const DeviceScan& args, cudaStream_t stream) {
  RETURN_IF_ERROR(CheckRows("scan of logits", args.m, args.count, args.stride));
  if (args.most > kMaxScanCandidates || args.begin % 64 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cuda scan of logits: ", args.most, " candidates of tokens from ", args.begin,
                     "; at most ", kMaxScanCandidates, ", from a multiple of 64"));
  }
  return CudaStatus(cuda::LaunchScan(args, stream), "LaunchScan");
}

absl::Status CudaSumMasses(const DeviceMassSums& args, cudaStream_t stream) {
  RETURN_IF_ERROR(CheckRows("sum of masses", args.m, args.count, args.stride));
  return CudaStatus(cuda::LaunchMassSums(args, stream), "LaunchMassSums");
}

}  // namespace bitshard
