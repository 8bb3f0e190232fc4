// y = W x for a packed matrix, and its row-parallel form that sums segments in integers.
//
// Bits. Mode f32: an output is the sum of 16 virtual lanes (k mod 16 within the segment, ascending
// k, fma), then one tree (l+8, l+4, l+2, l+1). Mode a16: per cell (weight group x activation group)
// in ascending k, I = int32 sum of (code - zero) * q, acc = fma(float(I), s_w * s_a, acc), then acc
// = fma(min, s_a * float(sum of q), acc) if the format has minima; mode a8 likewise with its q and
// its groups. Equal on every ISA, for any number of rows, threads, and any cut along N. (NaN
// payloads are not part of it.) A matrix without integer form (f32, f16, bf16) runs as f32 in all
// modes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "kernels/base/cpu_features.h"
#include "kernels/base/thread_pool.h"
#include "kernels/registry/activations.h"
#include "kernels/registry/kernel_choice.h"
#include "kernels/tensor/packed_matrix.h"

namespace bitshard {

struct LinearKernel;  // kernels/registry/linear_kernel.h
class KernelOrder;    // kernels/registry/kernel_probe.h
struct LinearArgs;

// A matrix bound to a kernel. Cheap to move; keeps a pointer to the matrix, which must outlive it.
class BoundLinear {
 public:
  // segment_cols = 0: column-parallel, K is whole (Run). Otherwise row-parallel (RunSegments): the
  // local columns are a run of whole segments, only the last may be shorter; segments_total counts
  // those of the whole matrix over all ranks. Kernels of a wider set than `isa` are not considered.
  // `order`: of the sets of instructions, as measured; null = the widest first.
  static absl::StatusOr<BoundLinear> Bind(const PackedMatrix& w, ActivationMode mode,
                                          int64_t segment_cols, int64_t segments_total, Isa isa,
                                          const KernelOrder* order = nullptr);

  // What Bind would choose for such a matrix.
  static absl::StatusOr<KernelChoice> Choose(const PackedSpec& spec, ActivationMode mode,
                                             int64_t segment_cols, Isa isa,
                                             const KernelOrder* order = nullptr);

  // The same with a kernel of the caller's choice: for sweeps and benchmarks. INVALID_ARGUMENT when
  // it refuses.
  static absl::StatusOr<BoundLinear> BindTo(const LinearKernel& kernel, const PackedMatrix& w,
                                            ActivationMode mode, int64_t segment_cols,
                                            int64_t segments_total);

  // The form that Prepare must make for it: kFormF32, kFormA16 or kFormA8.
  unsigned forms() const { return forms_; }
  // "cpu/linear_w4_a16_avx512vnni", and why each faster one was refused ("" when none was faster).
  const std::string& kernel() const { return kernel_name_; }
  std::string reason() const { return RefusalText(refused_); }
  KernelChoice choice() const;
  const PackedMatrix& weight() const { return *w_; }

  // y[x.rows(), w.rows()], row r at y + r * stride.
  void Run(const PreparedActivations& x, float* y, int64_t stride, ThreadPool& pool) const;

  // sums[x.rows(), w.rows()] is overwritten with the int64 sums of this rank's segments (value *
  // 2^32, round to even); a segment sum that is not finite, or not below 2^31 / segments_total,
  // adds 0 and one to poison[row].
  void RunSegments(const PreparedActivations& x, int64_t* sums, int64_t stride, int64_t* poison,
                   ThreadPool& pool) const;

  // Asks for what a run touches first. A step reads more weights than caches hold, so that all of
  // it has gone again since the last one.
  void Prefetch() const;

 private:
  friend class LinearGroup;
  LinearArgs ArgsFor(const PreparedActivations& x, float* y, int64_t stride) const;

  const PackedMatrix* w_ = nullptr;
  const LinearKernel* impl_ = nullptr;
  unsigned forms_ = 0;
  int64_t segment_cols_ = 0;
  float limit_ = 0;  // smallest magnitude that poisons
  // What the weight says to the kernel. Shared by copies, because it never changes.
  std::shared_ptr<const LinearArgs> args_;
  const uint8_t* first_codes_ = nullptr;
  const uint8_t* first_scales_ = nullptr;  // null: none
  std::string kernel_name_;
  std::vector<RefusedKernel> refused_;
};

// Column-parallel matrices that take the same input (q | k | v, gate | up) in one parallel region,
// shared out by what their tiles cost. The same bits as Run, one after the other.
class LinearGroup {
 public:
  static constexpr size_t kMaxMembers = 8;

  struct Member {
    const BoundLinear* linear = nullptr;
    float* y = nullptr;  // row r at y + r * stride
    int64_t stride = 0;
    const float* bias = nullptr;  // added to every row; null: none
  };

  // REQUIRES: at most kMaxMembers, of equally many columns.
  explicit LinearGroup(std::vector<Member> members);

  absl::Span<const Member> members() const { return members_; }
  unsigned forms() const;  // of all members

  void Run(const PreparedActivations& x, ThreadPool& pool) const;

  // done(begin, end): outputs [begin, end) of all members are there, for all rows of x; called by
  // the thread that made them, while they are in its cache. Every output once; begin is a multiple
  // of unit_rows. REQUIRES: members of equally many rows, unit_rows a multiple of 16.
  using DoneFn = absl::FunctionRef<void(int64_t begin, int64_t end)>;
  void RunInUnits(const PreparedActivations& x, int64_t unit_rows, DoneFn done,
                  ThreadPool& pool) const;

  // As BoundLinear's, of all members.
  void Prefetch() const;

 private:
  absl::InlinedVector<Member, kMaxMembers> members_;
  absl::InlinedVector<BoundLinear, kMaxMembers> bound_;  // copies: together, so read faster
};

}  // namespace bitshard
