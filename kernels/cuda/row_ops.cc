#include "kernels/cuda/row_ops.h"

#include <limits>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "kernels/base/checked_math.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/rows.h"
#include "kernels/registry/activations.h"
#include "kernels/tensor/packed_matrix.h"

namespace bitshard {
namespace {

// Rows are the grid's x, columns its y in blocks of 256 or more.
constexpr int64_t kMaxRows = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxCols = int64_t{65535} * 256;

absl::Status CheckShape(const char* op, int64_t m, int64_t cols) {
  if (m < 0 || m > kMaxRows || cols < 0 || cols > kMaxCols) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cuda ", op, ": ", m, " rows of ", cols, " columns; at most ", kMaxRows, " of ", kMaxCols));
  }
  return absl::OkStatus();
}

absl::Status CheckSum(const DeviceSum& args) {
  RETURN_IF_ERROR(CheckShape("sum", args.m, args.width));
  if (args.m > 0 && args.width > 0 && (args.in == nullptr) == (args.floats == nullptr))
    return absl::InvalidArgumentError("cuda sum: one of int64 and f32 sums");
  return absl::OkStatus();
}

// DeviceActivations::a8. REQUIRES: whole tiles of columns, segments of whole runs.
cuda::A8Rows A8RowsOf(const DeviceActivations& form) {
  cuda::A8Rows rows;
  rows.records = form.a8;
  rows.counts = form.counts;
  rows.row_bytes = form.padded_cols / kTileCols * kA8RecordBytes;
  rows.cols = form.cols;
  rows.padded_cols = form.padded_cols;
  rows.segments = form.segments();
  rows.segment_cols = rows.segments == 1 ? form.cols : form.segment_cols;
  const int64_t before_last = rows.segments - 1;
  rows.groups =
      before_last * static_cast<int64_t>(CeilDiv(rows.segment_cols, kA8Group)) +
      static_cast<int64_t>(CeilDiv(form.padded_cols - before_last * rows.segment_cols, kA8Group));
  return rows;
}

// `made`: where the f32 values lie already, rows one behind the other; null: nowhere.
absl::StatusOr<cuda::PreparedRows> RowsOf(const char* op, const DeviceActivations& form,
                                          int64_t cols, const float* made) {
  const auto refuse = [op](const auto&... words) {
    return absl::InvalidArgumentError(absl::StrCat("cuda ", op, ": ", words...));
  };
  if (form.cols != cols)
    return refuse("the form is for ", form.cols, " columns, the rows have ", cols);
  if (form.segment_cols < 0) return refuse("segments of ", form.segment_cols, " columns");
  if (form.half != nullptr && (form.scale == nullptr || form.run_sum == nullptr ||
                               form.padded_cols < cols || form.padded_cols % kTileCols != 0)) {
    return refuse("fp16 values need scales, run sums and ", kTileCols, " columns at a time, not ",
                  form.padded_cols, " for ", cols);
  }
  if (form.a8 != nullptr && (form.padded_cols < cols || form.padded_cols % kTileCols != 0 ||
                             (form.segments() > 1 && form.segment_cols % kLaneCols != 0))) {
    return refuse("int8 values come ", kTileCols, " columns at a time, not ", form.padded_cols,
                  " for ", cols, ", in segments of whole runs of ", kLaneCols, ", not of ",
                  form.segment_cols);
  }
  if (form.counts != nullptr && (cols == 0 || (form.half == nullptr && form.a8 == nullptr)))
    return refuse("counts are cleared with fp16 or int8 values, of which the form has none");
  cuda::PreparedRows rows;
  rows.half = form.half;
  rows.scale = form.scale;
  rows.run_sum = form.run_sum;
  rows.x = form.x == made ? nullptr : form.x;
  rows.cols = cols;
  rows.padded_cols = form.half == nullptr ? (cols + 15) / 16 * 16 : form.padded_cols;
  rows.segments = form.half == nullptr ? 1 : form.segments();
  rows.segment_cols = rows.segments == 1 ? cols : form.segment_cols;
  rows.counts = form.counts;
  if (form.a8 != nullptr && cols > 0) rows.a8 = A8RowsOf(form);
  return rows;
}

bool Wanted(const cuda::PreparedRows& rows) {
  return rows.half != nullptr || rows.x != nullptr || rows.a8.records != nullptr;
}

}  // namespace

absl::Status CudaSum(const DeviceSum& args, cudaStream_t stream) {
  RETURN_IF_ERROR(CheckSum(args));
  return CudaStatus(cuda::LaunchSum(args, stream), "LaunchSum");
}

absl::Status CudaNorm(const DeviceNorm& args, cudaStream_t stream) {
  RETURN_IF_ERROR(CheckShape("norm", args.m, args.width));
  if (args.sum != nullptr) {
    RETURN_IF_ERROR(CheckSum(*args.sum));
    if (args.sum->x != args.x || args.sum->m != args.m || args.sum->width != args.width)
      return absl::InvalidArgumentError("cuda norm: its sum makes other rows than it reads");
  }
  cuda::PreparedRows out;
  if (args.prepared != nullptr) {
    if (args.prepared->counts != nullptr)
      return absl::InvalidArgumentError("cuda norm: clears no counts");
    ASSIGN_OR_RETURN(out, RowsOf("norm", *args.prepared, args.width, args.y));
  }
  return CudaStatus(cuda::LaunchNorm(args, Wanted(out) ? &out : nullptr, stream), "LaunchNorm");
}

absl::Status CudaPrepare(const float* x, int64_t stride, int64_t m, const DeviceActivations& out,
                         cudaStream_t stream) {
  RETURN_IF_ERROR(CheckShape("prepare", m, out.cols));
  if (out.x == x && stride != out.cols && m > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("cuda prepare: rows of ", out.cols, " values at a stride of ", stride,
                     " cannot be their own f32 form, whose rows follow each other"));
  }
  cuda::PrepareArgs launch;
  launch.x = x;
  launch.stride = stride;
  launch.m = m;
  ASSIGN_OR_RETURN(launch.out, RowsOf("prepare", out, out.cols, x));
  if (!Wanted(launch.out)) return absl::OkStatus();
  return CudaStatus(cuda::LaunchPrepare(launch, stream), "LaunchPrepare");
}

absl::Status CudaGated(const DeviceGated& args, cudaStream_t stream) {
  RETURN_IF_ERROR(CheckShape("gated", args.m, args.width));
  cuda::PreparedRows out;
  if (args.prepared != nullptr) {
    ASSIGN_OR_RETURN(out, RowsOf("gated", *args.prepared, args.width, args.y));
  }
  return CudaStatus(cuda::LaunchGated(args, Wanted(out) ? &out : nullptr, stream), "LaunchGated");
}

absl::Status CudaAdd(const float* a, const float* b, float* x, int64_t m, int64_t width,
                     cudaStream_t stream) {
  RETURN_IF_ERROR(CheckShape("add", m, width));
  cuda::AddArgs launch;
  launch.a = a;
  launch.b = b;
  launch.x = x;
  launch.count = m * width;
  return CudaStatus(cuda::LaunchAdd(launch, stream), "LaunchAdd");
}

absl::Status CudaGatherRows(const float* x, const int32_t* index, int64_t count, int64_t width,
                            float* out, cudaStream_t stream) {
  RETURN_IF_ERROR(CheckShape("gather rows", count, width));
  cuda::GatherRowsArgs launch;
  launch.x = x;
  launch.index = index;
  launch.out = out;
  launch.count = count;
  launch.width = width;
  return CudaStatus(cuda::LaunchGatherRows(launch, stream), "LaunchGatherRows");
}

}  // namespace bitshard
