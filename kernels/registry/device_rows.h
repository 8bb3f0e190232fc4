// What DeviceKernels' operations on rows of f32 are asked to do: plain structs, which host code
// fills and CUDA's kernels get as they are. Pointers are the device's, but for `prepared`.
#pragma once

#include <cstdint>

namespace bitshard {

// The form of activations that linear kernels read, for rows [0, rows).
//   half[row][padded_cols]: fp16 bits of x / scale, to nearest even; columns padded to 64 with
//     zeros; in every run of 16 the order (2t, 2t+1, 2t+8, 2t+9) for t = 0..3, the B operand of
//     mma.m16n8k16: 8 bytes a lane.
//   scale[row][segments]: power of two with max |x / scale| in [2^14, 2^15) over the segment, at
//     least 2^-126 (0 when all are 0, NaN when one is not finite: then all fp16 values are 0).
//   run_sum[row][padded_cols / 16]: f32 sum of the run's fp16 values, in column order.
//   x[row][cols]: the f32 values, for f32 matrices only; null elsewhere.
//   a8[row][padded_cols / 64]: the numbers of kFormA8 (kernels/registry/activations.h), for integer
//     matrices, which read it in place of half where it is there. Records of kA8RecordBytes: s8 q,
//     for t = 0..3 and each run of 16 the columns 2t, 2t+8, 2t+1, 2t+9; f32 scales of runs 0 and 2,
//     i32 sums of q over runs 0 and 1, 2 and 3; f32 scales of runs 1 and 3, i16 sums of the four
//     runs. (Where the groups of 32 do not begin at runs 0 and 2, the sums of two are not.)
// half, scale and run_sum are null where no matrix reads them.
// counts[row]: set to 0 on the way, by Prepare and Gated where they make half or a8: the poison
// counts of the matrix that reads the form. Null: none.
inline constexpr int kA8RecordBytes = 96;
struct DeviceActivations {
  uint16_t* half = nullptr;
  float* scale = nullptr;
  float* run_sum = nullptr;
  float* x = nullptr;
  uint8_t* a8 = nullptr;
  int64_t* counts = nullptr;
  int64_t cols = 0, padded_cols = 0;
  int64_t segment_cols = 0;  // 0: one scale a row
  int64_t segments() const {
    return segment_cols == 0 ? 1 : (cols + segment_cols - 1) / segment_cols;
  }
};

// x[m][width] f32 = residual (or 0) + value, where value is the f32 of raw bits (`raw_bits`), or
// sums / 2^32 through double, + bias; NaN in rows with poison, which also set poisoned[row]. Sums
// that are f32 already (`floats`) stay as they are; one that is not finite sets poisoned[row].
// Before that `mark` goes to `progress`, a word that the host reads: all earlier work is done.
struct DeviceSum {
  const int64_t* in = nullptr;      // [m][width]
  const float* floats = nullptr;    // [m][width]; in place of `in`
  const int64_t* poison = nullptr;  // [m]; null with raw_bits and floats
  bool raw_bits = false;
  const float* bias = nullptr;      // null: none
  const float* residual = nullptr;  // null: none; may be x
  float* x = nullptr;
  uint8_t* poisoned = nullptr;   // [m]; only ever set to 1 here
  uint64_t* progress = nullptr;  // null: nobody asks
  uint64_t mark = 0;
  int64_t m = 0, width = 0;
};

// y[m][width] = w * x / sqrt(mean(x^2) + epsilon), and/or its prepared form. y, prepared: null
// when nobody wants it.
struct DeviceNorm {
  const float* x = nullptr;
  const float* weight = nullptr;
  float epsilon = 0;
  float* y = nullptr;
  const DeviceActivations* prepared = nullptr;
  int64_t m = 0, width = 0;
  // Made first, in the same launch, with the bits of Sum: x is its x. Null: x is there.
  const DeviceSum* sum = nullptr;
};

// activation(gate) * up, f32 (y) and/or prepared; rows at a stride. GELU in its tanh form.
struct DeviceGated {
  const float* gate = nullptr;
  const float* up = nullptr;
  int64_t in_stride = 0;
  bool gelu = false;
  float* y = nullptr;
  const DeviceActivations* prepared = nullptr;
  int64_t m = 0, width = 0;
};

}  // namespace bitshard
