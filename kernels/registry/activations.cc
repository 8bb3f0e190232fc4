#include "kernels/registry/activations.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "kernels/registry/prepare_kernel.h"
#include "kernels/tensor/packed_matrix.h"

namespace bitshard {
namespace {

void Grow(Buffer& buffer, size_t bytes) {
  if (buffer.bytes() < bytes) buffer = Buffer(bytes);
}

// x[cols] into lane order, zeros up to padded_cols.
void ToLaneOrder(const float* x, int64_t cols, int64_t padded_cols, float* out) {
  const int64_t whole = cols / kLaneCols * kLaneCols;
  for (int64_t k = 0; k < whole; k += kLaneCols) {
    for (int i = 0; i < 8; ++i) {
      out[k + LaneOfColumn(i)] = x[k + i];
      out[k + LaneOfColumn(i + 8)] = x[k + i + 8];
    }
  }
  std::fill(out + whole, out + padded_cols, 0.0f);
  for (int64_t k = whole; k < cols; ++k)
    out[whole + LaneOfColumn(static_cast<int>(k - whole))] = x[k];
}

// A group whose ends are no multiples of 16, column by column; only the reference kernel reads it.
struct UnalignedGroup {
  const float* x;      // the whole row, lane order
  int64_t begin, end;  // columns
  int16_t* q;
  int8_t* hi;
  int8_t* lo;
  float* scale;
};

int64_t LaneIndex(int64_t k) {
  return k / kLaneCols * kLaneCols + LaneOfColumn(static_cast<int>(k % kLaneCols));
}

void QuantizeUnaligned(const UnalignedGroup& group) {
  uint32_t amax_bits = 0;
  for (int64_t k = group.begin; k < group.end; ++k) {
    amax_bits = std::max(amax_bits, std::bit_cast<uint32_t>(group.x[LaneIndex(k)]) & 0x7fffffffu);
  }
  const bool finite = amax_bits < 0x7f800000u;
  float scale = finite ? std::bit_cast<float>(amax_bits) / kActivationSteps
                       : std::numeric_limits<float>::quiet_NaN();
  const bool zero = !finite || scale < kSmallestActivationScale;
  if (finite && zero) scale = 0;
  for (int64_t k = group.begin; k < group.end; ++k) {
    const int q = zero ? 0 : static_cast<int>(std::nearbyintf(group.x[LaneIndex(k)] / scale));
    const int hi = (q + 128) >> 8;
    group.q[LaneIndex(k)] = static_cast<int16_t>(q);
    group.hi[LaneIndex(k)] = static_cast<int8_t>(hi);
    group.lo[LaneIndex(k)] = static_cast<int8_t>(q - 256 * hi);
  }
  *group.scale = scale;
}

}  // namespace

void PreparedActivations::Reserve(int64_t max_rows, int64_t cols, int64_t segment_cols) {
  CHECK(max_rows >= 0 && cols >= 0 && segment_cols >= 0);
  const size_t rows = static_cast<size_t>(max_rows);
  const size_t padded = RoundUp(cols, kTileCols);
  const size_t segment = segment_cols == 0 ? cols : segment_cols;
  const size_t groups =
      segment == 0 ? 0 : CeilDiv(cols, segment) * CeilDiv(segment, kActivationGroup);
  Grow(f32_, rows * padded * sizeof(float));
  Grow(q_, rows * padded * sizeof(int16_t));
  Grow(hi_, rows * padded);
  Grow(lo_, rows * padded);
  Grow(run_sums_, rows * padded / kLaneCols * sizeof(int32_t));
  Grow(scales_, rows * groups * sizeof(float));
}

void PreparedActivations::Prepare(const float* x, int64_t rows, int64_t cols, int64_t stride,
                                  int64_t segment_cols, unsigned forms, Isa isa, ThreadPool& pool) {
  rows_ = rows;
  cols_ = cols;
  segment_cols_ = segment_cols == 0 ? cols : segment_cols;
  padded_cols_ = static_cast<int64_t>(RoundUp(cols, kTileCols));
  groups_per_segment_ = static_cast<int64_t>(CeilDiv(segment_cols_, kActivationGroup));
  groups_ = segment_cols_ == 0
                ? 0
                : static_cast<int64_t>(CeilDiv(cols, segment_cols_)) * groups_per_segment_;
  forms_ = forms;
  CHECK(static_cast<size_t>(rows * padded_cols_) * sizeof(float) <= f32_.bytes() &&
        static_cast<size_t>(rows * groups_) * sizeof(float) <= scales_.bytes())
      << "not reserved: rows=" << rows << " cols=" << cols << " segment_cols=" << segment_cols;
  const PrepareKernel* kernel = KernelRegistry<PrepareKernel>::Get().Fastest(isa);
  CHECK(kernel != nullptr) << "no prepare kernel is linked in";
  const bool aligned = segment_cols_ % kLaneCols == 0 || segment_cols_ >= cols;

  pool.ParallelFor(rows, [&](int64_t row, int) {
    float* lanes = f32_.as<float>() + row * padded_cols_;
    ToLaneOrder(x + row * stride, cols, padded_cols_, lanes);
    if (!(forms & kFormA16)) return;
    int16_t* q = q_.as<int16_t>() + row * padded_cols_;
    int8_t* hi = hi_.as<int8_t>() + row * padded_cols_;
    int8_t* lo = lo_.as<int8_t>() + row * padded_cols_;
    int32_t* sums = run_sums_.as<int32_t>() + row * (padded_cols_ / kLaneCols);
    float* scales = scales_.as<float>() + row * groups_;
    if (!aligned) {
      std::memset(q, 0, padded_cols_ * sizeof(int16_t));
      std::memset(hi, 0, padded_cols_);
      std::memset(lo, 0, padded_cols_);
    }
    for (int64_t begin = 0; begin < cols; begin += segment_cols_) {
      const int64_t end = std::min(begin + segment_cols_, cols);
      float* scale = scales + begin / segment_cols_ * groups_per_segment_;
      for (int64_t k = begin; k < end; k += kActivationGroup, ++scale) {
        const int64_t group_end = std::min<int64_t>(k + kActivationGroup, end);
        if (aligned) {
          kernel->run({.x = lanes + k,
                       .runs = static_cast<int>(CeilDiv(group_end - k, kLaneCols)),
                       .q = q + k,
                       .hi = hi + k,
                       .lo = lo + k,
                       .run_sums = sums + k / kLaneCols,
                       .scale = scale});
        } else {
          QuantizeUnaligned({.x = lanes,
                             .begin = k,
                             .end = group_end,
                             .q = q,
                             .hi = hi,
                             .lo = lo,
                             .scale = scale});
        }
      }
    }
  });
}

}  // namespace bitshard
