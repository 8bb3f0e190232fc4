#include "kernels/cuda/synthetic_ops.h"

#include <limits>

#include "absl/strings/str_cat.h"

#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/synthetic.h"
#include "kernels/tensor/synthetic.h"

namespace bitshard {
namespace {

// Blocks of 256 threads in the grid's x, a thread a byte or more.
constexpr uint64_t kMaxBytes = uint64_t{std::numeric_limits<int32_t>::max()} * 256;

ScaleKind KindOf(PackedSpec::Type type) {
  if (type == PackedSpec::Type::kF32) return ScaleKind::kF32;
  return type == PackedSpec::Type::kF16 ? ScaleKind::kF16 : ScaleKind::kBf16;
}

absl::Status MakeScales(const PackedSpec& spec, const DeviceMatrixLayout& layout,
                        const SyntheticSource& source, uint8_t* blob, cudaStream_t stream) {
  const auto first_group = static_cast<int64_t>(
      SyntheticFirstGroup(spec.scale, source.col_begin, static_cast<uint64_t>(spec.group_size)));
  if (spec.block_rows != 1) {
    cuda::SyntheticSharedLaunch shared;
    shared.source = source;
    shared.row_blocks = static_cast<int64_t>(spec.row_blocks());
    shared.groups = static_cast<int64_t>(spec.groups());
    if (spec.block_rows > 0)
      shared.first_row_block = static_cast<int64_t>(source.row_begin) / spec.block_rows;
    shared.first_group = first_group;
    shared.bits = spec.bits;
    shared.kind = spec.scale;
    shared.out = blob + layout.scales;
    return CudaStatus(cuda::LaunchSyntheticShared(shared, stream), "LaunchSyntheticShared");
  }
  cuda::SyntheticScalesLaunch scales;
  scales.source = source;
  scales.rows = static_cast<int64_t>(spec.rows);
  scales.groups = static_cast<int64_t>(spec.groups());
  scales.first_group = first_group;
  if (IsSuper(spec.scale)) scales.record_groups = kSuperBlockCols / spec.group_size;
  scales.bits = spec.bits;
  scales.kind = spec.scale;
  scales.offset = spec.offset;
  scales.record_bytes = layout.record_bytes;
  scales.tile_bytes = layout.scale_tile_bytes;
  scales.out = blob + layout.scales;
  RETURN_IF_ERROR(CudaStatus(cuda::LaunchSyntheticScales(scales, stream), "LaunchSyntheticScales"));
  if (spec.scale != ScaleKind::kNested) return absl::OkStatus();
  cuda::SyntheticNestedLaunch nested;
  nested.source = source;
  nested.blocks =
      static_cast<int64_t>((layout.bytes - layout.nested) / sizeof(float)) - kNestedBlock;
  nested.first_block = static_cast<int64_t>(spec.first_block / kNestedBlock);
  nested.out = reinterpret_cast<uint32_t*>(blob + layout.nested);
  return CudaStatus(cuda::LaunchSyntheticNested(nested, stream), "LaunchSyntheticNested");
}

}  // namespace

absl::Status CudaMakeSynthetic(const PackedSpec& spec, const DeviceMatrixLayout& layout,
                               const SyntheticSource& source, uint8_t* blob, cudaStream_t stream) {
  RETURN_IF_ERROR(CheckSynthetic(spec));
  if (layout.bytes > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat("cuda synthetic weights: a matrix of ",
                                                   layout.bytes, " bytes; at most ", kMaxBytes));
  }
  if (spec.rows == 0 || spec.cols == 0) return absl::OkStatus();
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

  return MakeScales(spec, layout, source, blob, stream);
}

}  // namespace bitshard
