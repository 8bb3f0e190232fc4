// y = W x for a packed matrix, and its row-parallel form that sums segments in integers.
//
// Bits. Mode f32: an output is the sum of 16 virtual lanes (k mod 16 within the segment, ascending
// k, fma), then one tree (l+8, l+4, l+2, l+1). Mode a16: per cell (weight group x activation group)
// in ascending k, I = int32 sum of (code - zero) * q, acc = fma(float(I), s_w * s_a, acc), then acc
// = fma(min, s_a * float(sum of q), acc) if the format has minima. Equal on every ISA, for any
// number of rows, threads, and any cut along N. (NaN payloads are not part of it.) A matrix without
// integer form (f32, f16, bf16) runs as f32 in both modes.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

#include "kernels/base/cpu_features.h"
#include "kernels/base/thread_pool.h"
#include "kernels/registry/activations.h"
#include "kernels/tensor/packed_matrix.h"

namespace bitshard {

struct LinearKernel;  // kernels/registry/linear_kernel.h

// A matrix bound to a kernel. Cheap to move; keeps a pointer to the matrix, which must outlive it.
class BoundLinear {
 public:
  // segment_cols = 0: column-parallel, K is whole (Run). Otherwise row-parallel (RunSegments): the
  // local columns are a run of whole segments, only the last may be shorter; segments_total counts
  // those of the whole matrix over all ranks. Kernels of a wider set than `isa` are not considered.
  static absl::StatusOr<BoundLinear> Bind(const PackedMatrix& w, ActivationMode mode,
                                          int64_t segment_cols, int64_t segments_total, Isa isa);

  // The same with a kernel of the caller's choice: for sweeps and benchmarks. INVALID_ARGUMENT when
  // it refuses.
  static absl::StatusOr<BoundLinear> BindTo(const LinearKernel& kernel, const PackedMatrix& w,
                                            ActivationMode mode, int64_t segment_cols,
                                            int64_t segments_total);

  // Forms that Prepare must make for it: kFormF32 or kFormA16.
  unsigned forms() const { return forms_; }
  // "cpu/linear_w4_a16_avx512vnni", and why each faster one was refused ("" when none was faster).
  const std::string& kernel() const { return kernel_name_; }
  const std::string& reason() const { return reason_; }
  const PackedMatrix& weight() const { return *w_; }

  // y[x.rows(), w.rows()], row r at y + r * stride.
  void Run(const PreparedActivations& x, float* y, int64_t stride, ThreadPool& pool) const;

  // sums[x.rows(), w.rows()] is overwritten with the int64 sums of this rank's segments (value *
  // 2^32, round to even); a segment sum that is not finite, or not below 2^31 / segments_total,
  // adds 0 and one to poison[row].
  void RunSegments(const PreparedActivations& x, int64_t* sums, int64_t stride, int64_t* poison,
                   ThreadPool& pool) const;

 private:
  const PackedMatrix* w_ = nullptr;
  const LinearKernel* impl_ = nullptr;
  unsigned forms_ = 0;
  int64_t segment_cols_ = 0;
  float limit_ = 0;  // smallest magnitude that poisons
  std::string kernel_name_;
  std::string reason_;
};

}  // namespace bitshard
