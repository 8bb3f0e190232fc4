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
  if (buffer.bytes() < bytes) buffer = Buffer(bytes, MemoryPart::kWorkspace);
}

// Groups of a row and of a segment.
int64_t GroupsPerSegment(int64_t segment_cols, int group) { return CeilDiv(segment_cols, group); }
int64_t Groups(int64_t cols, int64_t segment_cols, int group) {
  return segment_cols == 0 ? 0
                           : static_cast<int64_t>(CeilDiv(cols, segment_cols)) *
                                 GroupsPerSegment(segment_cols, group);
}

int64_t LaneIndex(int64_t k) {
  return k / kLaneCols * kLaneCols + LaneOfColumn(static_cast<int>(k % kLaneCols));
}

// One group of a segment of RunUnaligned; x: its first column.
template <typename Store>
void QuantizeUnaligned(const float* x, int64_t begin, int64_t end, float steps, float* scale,
                       const Store& store) {
  uint32_t amax_bits = 0;
  for (int64_t k = begin; k < end; ++k)
    amax_bits = std::max(amax_bits, std::bit_cast<uint32_t>(x[k - begin]) & 0x7fffffffu);
  const bool finite = amax_bits < 0x7f800000u;
  *scale =
      finite ? std::bit_cast<float>(amax_bits) / steps : std::numeric_limits<float>::quiet_NaN();
  const bool zero = !finite || *scale < kSmallestActivationScale;
  if (finite && zero) *scale = 0;
  for (int64_t k = begin; k < end; ++k)
    store(LaneIndex(k), zero ? 0 : static_cast<int>(std::nearbyintf(x[k - begin] / *scale)));
}

// Segments whose ends are no multiples of 16, column by column. Only reference kernels read them;
// they need no run sums. Pointers in `args` are to the row, x to column `begin`.
void RunUnaligned(const PrepareArgs& args, int64_t begin, int64_t end) {
  const float* const x = args.x - begin;
  if (args.f32 != nullptr) {
    for (int64_t k = begin; k < end; ++k) args.f32[LaneIndex(k)] = x[k];
  }
  for (int64_t first = begin; first < end; first += args.segment_cols) {
    const int64_t segment = first / args.segment_cols;
    const int64_t last = std::min(first + args.segment_cols, end);
    if (args.q != nullptr) {
      float* scale = args.scales + segment * args.groups_per_segment;
      for (int64_t k = first; k < last; k += kActivationGroup, ++scale) {
        const int64_t group_end = std::min<int64_t>(k + kActivationGroup, last);
        QuantizeUnaligned(x + k, k, group_end, kActivationSteps, scale, [&](int64_t at, int q) {
          const int hi = (q + 128) >> 8;
          args.q[at] = static_cast<int16_t>(q);
          args.hi[at] = static_cast<int8_t>(hi);
          args.lo[at] = static_cast<int8_t>(q - 256 * hi);
        });
      }
    }
    if (args.a8 != nullptr) {
      float* scale = args.a8_scales + segment * args.a8_groups_per_segment;
      for (int64_t k = first; k < last; k += kA8Group, ++scale) {
        QuantizeUnaligned(x + k, k, std::min<int64_t>(k + kA8Group, last), kA8Steps, scale,
                          [&](int64_t at, int q) { args.a8[at] = static_cast<int8_t>(q); });
      }
    }
  }
}

}  // namespace

void PreparedActivations::Reserve(int64_t max_rows, int64_t cols, int64_t segment_cols) {
  CHECK(max_rows >= 0 && cols >= 0 && segment_cols >= 0);
  const size_t rows = static_cast<size_t>(max_rows);
  const size_t padded = RoundUp(cols, kTileCols);
  const int64_t segment = segment_cols == 0 ? cols : segment_cols;
  Grow(f32_, rows * padded * sizeof(float));
  Grow(q_, rows * padded * sizeof(int16_t));
  Grow(hi_, rows * padded);
  Grow(lo_, rows * padded);
  Grow(run_sums_, rows * padded / kLaneCols * sizeof(int32_t));
  Grow(pair_sums_, rows * padded / kLaneCols * sizeof(int32_t));
  Grow(scales_, rows * Groups(cols, segment, kActivationGroup) * sizeof(float));
  Grow(a8_, rows * padded);
  Grow(a8_run_sums_, rows * padded / kLaneCols * sizeof(int32_t));
  Grow(a8_scales_, rows * Groups(cols, segment, kA8Group) * sizeof(float));
}

void PreparedActivations::Begin(int64_t rows, int64_t cols, int64_t segment_cols, unsigned forms,
                                Isa isa) {
  rows_ = rows;
  cols_ = cols;
  segment_cols_ = segment_cols == 0 ? cols : segment_cols;
  padded_cols_ = static_cast<int64_t>(RoundUp(cols, kTileCols));
  groups_per_segment_ = GroupsPerSegment(segment_cols_, kActivationGroup);
  groups_ = Groups(cols, segment_cols_, kActivationGroup);
  a8_groups_per_segment_ = GroupsPerSegment(segment_cols_, kA8Group);
  a8_groups_ = Groups(cols, segment_cols_, kA8Group);
  forms_ = forms;
  CHECK(static_cast<size_t>(rows * padded_cols_) * sizeof(float) <= f32_.bytes() &&
        static_cast<size_t>(rows * groups_) * sizeof(float) <= scales_.bytes() &&
        static_cast<size_t>(rows * a8_groups_) * sizeof(float) <= a8_scales_.bytes())
      << "not reserved: rows=" << rows << " cols=" << cols << " segment_cols=" << segment_cols;
  kernel_ = KernelRegistry<PrepareKernel>::Get().Fastest(isa);
  CHECK(kernel_ != nullptr) << "no prepare kernel is linked in";
}

void PreparedActivations::PrepareSegments(int64_t row, int64_t begin, int64_t end, const float* x) {
  DCHECK(row >= 0 && row < rows_ && begin >= 0 && begin <= end && end <= cols_);
  DCHECK(begin == end || begin % segment_cols_ == 0);
  if (begin == end) return;
  const bool aligned = segment_cols_ % kLaneCols == 0 || segment_cols_ >= cols_;
  const int64_t segment = begin / segment_cols_;
  const int64_t at = row * padded_cols_ + (aligned ? begin : 0);
  const int64_t run = at / kLaneCols;
  PrepareArgs args;
  args.x = x;
  args.cols = end - begin;
  args.segment_cols = segment_cols_;
  args.groups_per_segment = groups_per_segment_;
  args.a8_groups_per_segment = a8_groups_per_segment_;
  if (forms_ & kFormF32) args.f32 = f32_.as<float>() + at;
  if (forms_ & kFormA16) {
    args.q = q_.as<int16_t>() + at;
    args.hi = hi_.as<int8_t>() + at;
    args.lo = lo_.as<int8_t>() + at;
    args.run_sums = run_sums_.as<int32_t>() + run;
    args.pair_sums = pair_sums_.as<int32_t>() + run;
    args.scales =
        scales_.as<float>() + row * groups_ + (aligned ? segment : 0) * groups_per_segment_;
  }
  if (forms_ & kFormA8) {
    args.a8 = a8_.as<int8_t>() + at;
    args.a8_run_sums = a8_run_sums_.as<int32_t>() + run;
    args.a8_scales = a8_scales_.as<float>() + row * a8_groups_ +
                     (aligned ? segment : 0) * a8_groups_per_segment_;
  }
  if (aligned) {
    kernel_->run(args);
  } else {
    RunUnaligned(args, begin, end);
  }
  if (end == cols_) ZeroPadding(row, aligned ? static_cast<int64_t>(RoundUp(end, kLaneCols)) : end);
}

void PreparedActivations::ZeroPadding(int64_t row, int64_t from) {
  for (int64_t k = from; k < padded_cols_; ++k) {
    const int64_t at = row * padded_cols_ + LaneIndex(k);
    if (forms_ & kFormF32) f32_.as<float>()[at] = 0;
    if (forms_ & kFormA16) {
      q_.as<int16_t>()[at] = 0;
      hi_.as<int8_t>()[at] = 0;
      lo_.as<int8_t>()[at] = 0;
      run_sums_.as<int32_t>()[at / kLaneCols] = 0;
      pair_sums_.as<int32_t>()[at / kLaneCols] = 0;
    }
    if (forms_ & kFormA8) {
      a8_.as<int8_t>()[at] = 0;
      a8_run_sums_.as<int32_t>()[at / kLaneCols] = 0;
    }
  }
}

void PreparedActivations::Prepare(const float* x, int64_t rows, int64_t cols, int64_t stride,
                                  int64_t segment_cols, unsigned forms, Isa isa, ThreadPool& pool) {
  Begin(rows, cols, segment_cols, forms, isa);
  pool.ParallelFor(rows, [&](int64_t row, int) { PrepareRow(row, x + row * stride); });
}

}  // namespace bitshard
