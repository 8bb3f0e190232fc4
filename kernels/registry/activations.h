// Activations in the forms that linear kernels read, made once and shared by all matrices that take
// the same input (q | k | v, gate | up).
//
// Forms: kFormF32 keeps the f32 values; kFormA16 is 16-bit fixed point with one scale per 64
// columns, restarting at every segment: s = amax / 32639, q = round-to-even(x / s), q = 256 hi + lo
// with hi = (q + 128) >> 8; kFormA8 is one signed byte with one scale per 32 columns, restarting
// alike: s = amax / 127, q = round-to-even(x / s). In both amax = 0, or an s below 2^-126, gives s
// = 0 and q = 0, and a group with a non-finite value gets s = NaN, so that every sum it enters is
// NaN. Columns are stored in runs of 16 in the order LaneOfColumn, padded with zeros to 64 at the
// end of the row. Forms have memory of their own: a row may be there in all of them.
#pragma once

#include <cstdint>

#include "kernels/base/cpu_features.h"
#include "kernels/base/thread_pool.h"
#include "kernels/tensor/buffer.h"

namespace bitshard {

// What `--activations` says; dense formats run as kF32 in all.
enum class ActivationMode { kF32, kA16, kA8 };

inline constexpr unsigned kFormF32 = 1;
inline constexpr unsigned kFormA16 = 2;
inline constexpr unsigned kFormA8 = 4;

inline constexpr int kActivationGroup = 64;  // columns that share a scale in kFormA16
inline constexpr int kA8Group = 32;          // in kFormA8

struct PrepareKernel;  // kernels/registry/prepare_kernel.h

class PreparedActivations {
 public:
  // At bind, once for each use: room for `max_rows` x `cols` in all forms. segment_cols as in
  // Begin.
  void Reserve(int64_t max_rows, int64_t cols, int64_t segment_cols);

  // All at once: Begin, and PrepareRow for every row of x[rows, cols], row r at x + r * stride.
  void Prepare(const float* x, int64_t rows, int64_t cols, int64_t stride, int64_t segment_cols,
               unsigned forms, Isa isa, ThreadPool& pool);

  // Or in parts, by those who make the values: Begin says what comes, and then every column of
  // every row is prepared once, in any order, by any threads. `segment_cols` = 0: one segment, the
  // whole row. `isa` picks the code path only. REQUIRES: reserved for it. Allocates nothing.
  void Begin(int64_t rows, int64_t cols, int64_t segment_cols, unsigned forms, Isa isa);
  // x[cols].
  void PrepareRow(int64_t row, const float* x) { PrepareSegments(row, 0, cols_, x); }
  // Columns [begin, end) of a row, whole segments; x[end - begin].
  void PrepareSegments(int64_t row, int64_t begin, int64_t end, const float* x);

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t segment_cols() const { return segment_cols_; }  // cols() when asked for 0
  unsigned forms() const { return forms_; }

  // For kernels. Row strides in elements; padded_cols is a multiple of 64.
  int64_t padded_cols() const { return padded_cols_; }
  int64_t groups_per_segment() const { return groups_per_segment_; }
  int64_t groups() const { return groups_; }  // of a row
  const float* f32(int64_t row) const { return f32_.as<float>() + row * padded_cols_; }
  const int16_t* q(int64_t row) const { return q_.as<int16_t>() + row * padded_cols_; }
  const int8_t* hi(int64_t row) const { return hi_.as<int8_t>() + row * padded_cols_; }
  const int8_t* lo(int64_t row) const { return lo_.as<int8_t>() + row * padded_cols_; }
  // Sums of q over runs of 16 columns: [padded_cols / 16].
  const int32_t* run_sums(int64_t row) const {
    return run_sums_.as<int32_t>() + row * (padded_cols_ / 16);
  }
  // Of each run, the sum of q[i] q[i + 2] over the columns i of 4 i', 4 i' + 1 in lane order,
  // modulo 2^32: linear_int_pairs_avx512.h. [padded_cols / 16].
  const int32_t* pair_sums(int64_t row) const {
    return pair_sums_.as<int32_t>() + row * (padded_cols_ / 16);
  }
  const float* scales(int64_t row) const { return scales_.as<float>() + row * groups_; }

  // kFormA8, likewise. Its groups are of kA8Group columns.
  int64_t a8_groups_per_segment() const { return a8_groups_per_segment_; }
  int64_t a8_groups() const { return a8_groups_; }  // of a row
  const int8_t* a8(int64_t row) const { return a8_.as<int8_t>() + row * padded_cols_; }
  const int32_t* a8_run_sums(int64_t row) const {
    return a8_run_sums_.as<int32_t>() + row * (padded_cols_ / 16);
  }
  const float* a8_scales(int64_t row) const { return a8_scales_.as<float>() + row * a8_groups_; }

 private:
  // Columns from `from` to the end of the row's padding.
  void ZeroPadding(int64_t row, int64_t from);

  int64_t rows_ = 0, cols_ = 0, segment_cols_ = 0, padded_cols_ = 0, groups_per_segment_ = 0,
          groups_ = 0, a8_groups_per_segment_ = 0, a8_groups_ = 0;
  unsigned forms_ = 0;
  const PrepareKernel* kernel_ = nullptr;
  Buffer f32_, q_, hi_, lo_, run_sums_, pair_sums_, scales_, a8_, a8_run_sums_, a8_scales_;
};

}  // namespace bitshard
