// Activations in the forms that linear kernels read, made once and shared by all matrices that take
// the same input (q | k | v, gate | up).
//
// Forms: kFormF32 keeps the f32 values; kFormA16 is 16-bit fixed point with one scale per 64
// columns, restarting at every segment: s = amax / 32639, q = round-to-even(x / s), q = 256 hi + lo
// with hi = (q + 128) >> 8. amax = 0, or an s below 2^-126, gives s = 0 and q = 0. A group with a
// non-finite value gets s = NaN, so that every sum it enters is NaN. Columns are stored in runs of
// 16 in the order LaneOfColumn, padded with zeros to 64 at the end of the row.
#pragma once

#include <cstdint>

#include "kernels/base/cpu_features.h"
#include "kernels/base/thread_pool.h"
#include "kernels/tensor/buffer.h"

namespace bitshard {

// What `--activations` says; dense formats run as kF32 in both.
enum class ActivationMode { kF32, kA16 };

inline constexpr unsigned kFormF32 = 1;
inline constexpr unsigned kFormA16 = 2;

inline constexpr int kActivationGroup = 64;

class PreparedActivations {
 public:
  // At bind, once for each use: room for `max_rows` x `cols` in all forms. segment_cols as in
  // Prepare.
  void Reserve(int64_t max_rows, int64_t cols, int64_t segment_cols);

  // x[rows, cols], row r at x + r * stride. `segment_cols` = 0: one segment, the whole row. `isa`
  // picks the code path only. REQUIRES: reserved for it. Allocates nothing.
  void Prepare(const float* x, int64_t rows, int64_t cols, int64_t stride, int64_t segment_cols,
               unsigned forms, Isa isa, ThreadPool& pool);

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
  const float* scales(int64_t row) const { return scales_.as<float>() + row * groups_; }

 private:
  int64_t rows_ = 0, cols_ = 0, segment_cols_ = 0, padded_cols_ = 0, groups_per_segment_ = 0,
          groups_ = 0;
  unsigned forms_ = 0;
  Buffer f32_, q_, hi_, lo_, run_sums_, scales_;
};

}  // namespace bitshard
