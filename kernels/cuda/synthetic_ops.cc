#include "kernels/cuda/synthetic_ops.h"

#include <limits>

#include "absl/strings/str_cat.h"

#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/synthetic.h"
#include "kernels/tensor/synthetic.h"

namespace bitshard {
namespace {

// Blocks of 256 threads in the grid's x, a thread two bytes or more.
constexpr uint64_t kMaxBytes = uint64_t{std::numeric_limits<int32_t>::max()} * 512;

ScaleKind KindOf(PackedSpec::Type type) {
  if (type == PackedSpec::Type::kF32) return ScaleKind::kF32;
  return type == PackedSpec::Type::kF16 ? ScaleKind::kF16 : ScaleKind::kBf16;
}

}  // namespace

absl::Status CudaMakeSynthetic(const PackedSpec& spec, const DeviceMatrixLayout& layout,
                               const SyntheticSource& source, uint8_t* blob, cudaStream_t stream) {
  RETURN_IF_ERROR(CheckSynthetic(spec));
  if (layout.bytes > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat("cuda synthetic weights: a matrix of ",
                                                   layout.bytes, " bytes; at most ", kMaxBytes));
  }
  const auto rows = static_cast<int64_t>(spec.rows), cols = static_cast<int64_t>(spec.cols);
  if (spec.type != PackedSpec::Type::kInt) {
    cuda::SyntheticValuesLaunch values;
    values.source = source;
    values.rows = rows;
    values.cols = cols;
    values.kind = KindOf(spec.type);
    values.out = blob + layout.codes;
    return CudaStatus(cuda::LaunchSyntheticValues(values, stream), "LaunchSyntheticValues");
  }
  cuda::SyntheticCodesLaunch codes;
  codes.source = source;
  codes.rows = rows;
  codes.cols = cols;
  codes.bits = spec.bits;
  codes.zero = static_cast<uint32_t>(spec.zero_point);
  codes.out = reinterpret_cast<uint32_t*>(blob + layout.codes);
  RETURN_IF_ERROR(CudaStatus(cuda::LaunchSyntheticCodes(codes, stream), "LaunchSyntheticCodes"));

  cuda::SyntheticScalesLaunch scales;
  scales.source = source;
  scales.rows = rows;
  scales.groups = static_cast<int64_t>(spec.groups());
  scales.first_group =
      static_cast<int64_t>(source.col_begin) / static_cast<int64_t>(spec.group_size);
  scales.bits = spec.bits;
  scales.kind = spec.scale;
  scales.has_zeros = spec.offset == ScaleOffset::kZero;
  scales.record_bytes = layout.record_bytes;
  scales.tile_bytes = layout.scale_tile_bytes;
  scales.out = blob + layout.scales;
  return CudaStatus(cuda::LaunchSyntheticScales(scales, stream), "LaunchSyntheticScales");
}

}  // namespace bitshard
