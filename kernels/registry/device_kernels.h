// What a device computes: each call enqueues on a stream and returns. All pointers are the
// device's; all shapes are known to the host. One implementation a kind of device
// (kernels/cuda/cuda_kernels.cc); got from Device::kernels().
//
// Calls may be captured into graphs: nothing depends on values that only the device knows, but for
// the arrays named so. Rows beyond the step's tokens, up to the graph's bucket, are computed like
// others and read by nobody: their positions are -1, their tokens 0.
//
// Bits, where `deterministic` is asked for (a8: always): an output row depends on its own inputs
// alone, never on m, on other rows, on the cut of N over ranks, or on time. Linear: activations are
// fp16 times a power of two (DeviceActivations); per cell (weight group x segment, ascending k) acc
// = mma sums in f32 over steps of 16 columns, y = fma(acc, s_w * s_x, y), then y = fma(min, s_x *
// X, y) where the format has minima, X the f32 sum of the cell's fp16 values, runs of 16 ascending.
// Of a whole K the cells fold in parts whose bounds follow from K and the groups alone. Segments:
// the f32 sum times 2^32, to the nearest even int64, added to the others; a sum that is not finite
// or not below 2^31 / segments_total adds 0 and one to the row's poison count. Integer matrices on
// a8: the bits of kernels/registry/linear.h's mode a8, on every device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "kernels/registry/activations.h"
#include "kernels/registry/device_rows.h"
#include "kernels/registry/kernel_choice.h"
#include "kernels/registry/logit_scan.h"
#include "kernels/registry/rope.h"
#include "kernels/tensor/device.h"
#include "kernels/tensor/device_matrix.h"
#include "kernels/tensor/kv_layout.h"
#include "kernels/tensor/synthetic_values.h"

namespace bitshard {

struct DeviceLinear {
  const DeviceMatrix* w = nullptr;  // of the host, used during the call only
  // One of the two. Row r at + r * stride.
  float* y = nullptr;  // also partial sums of ranks that add up in f32
  int64_t* sums = nullptr;
  int64_t stride = 0;
  const float* bias = nullptr;  // with y only; null: none
  int64_t* poison = nullptr;    // [rows], with sums; was set to 0 before
  int64_t segments_total = 1;
  // False: the order of summation, and so the bits, may depend on m and on the device.
  bool deterministic = true;
};

// One step's tokens on the device. Arrays of the bucket's size; block tables of all rows one after
// the other. Filled before every launch, the addresses stay.
struct DeviceTokens {
  const int32_t* token = nullptr;        // [m]
  const int32_t* position = nullptr;     // [m]; -1: padding
  const int32_t* row = nullptr;          // [m] index into block_begin
  const int32_t* block_begin = nullptr;  // [rows] first entry in blocks
  const uint32_t* blocks = nullptr;
};

struct DeviceRope {
  const double* inv_freq = nullptr;  // [rotary_dim / 2] on the device
  double attention_factor = 1;       // multiplies cos and sin
  int rotary_dim = 0;
  RopeConfig::Pairing pairing = RopeConfig::Pairing::kHalves;
  float* cos_sin = nullptr;  // [m][rotary_dim / 2]{cos, sin} of a step's tokens, aligned to 8 bytes
};

struct DeviceAttention {
  KvLayout layout;
  int q_heads = 0;
  const int32_t* kv_head_of_q = nullptr;  // [q_heads] on the device
  float scale = 1;
  int window = 0;            // 0: all
  uint8_t* cache = nullptr;  // of the layer
  // Up to AttentionScratchBytes are of use; all layers of a stream share them. With fewer, or none,
  // long contexts are not split over the device, slow for few tokens. The bits are the same.
  void* scratch = nullptr;
  uint64_t scratch_bytes = 0;
  int64_t max_context = 0;    // no position is at or beyond it: the launch covers so many chunks
  bool deterministic = true;  // as DeviceLinear's
};

// A step's keys and values on their way into the cache.
struct DeviceAppend {
  const float* k = nullptr;  // [m][kv_heads * head_dim], row r at + r * stride
  const float* v = nullptr;
  int64_t stride = 0;
  // Not null: k is rotated before it is rounded, and q [m][q_heads * head_dim] in place.
  const DeviceRope* rope = nullptr;  // of the host, used during the call only
  float* q = nullptr;                // row r at + r * q_stride
  int64_t q_stride = 0;
};

class DeviceKernels {
 public:
  virtual ~DeviceKernels() = default;

  // Which kernel serves such a matrix and why not a faster one; UNIMPLEMENTED when none does.
  // Modes: kA8, or another: then integers read fp16. Without `deterministic` large steps may have a
  // kernel of their own: "that for decode; prefill: that for them".
  virtual absl::StatusOr<KernelChoice> ChooseLinear(const PackedSpec& spec, int64_t segment_cols,
                                                    ActivationMode mode = ActivationMode::kA16,
                                                    bool deterministic = true) const = 0;
  // Whether it reads DeviceActivations::a8 in this mode.
  virtual bool ReadsA8(const PackedSpec& spec, int64_t segment_cols, ActivationMode mode) const = 0;

  // out[m][width]: raw f32 bits in int64 of the rows of tokens in [vocab_begin, vocab_begin +
  // rows), zeros for others.
  virtual absl::Status Gather(const DeviceMatrix& w, int64_t vocab_begin, const int32_t* tokens,
                              int64_t m, int64_t* out, DeviceStream& stream) const = 0;

  virtual absl::Status Sum(const DeviceSum& args, DeviceStream& stream) const = 0;

  virtual absl::Status Norm(const DeviceNorm& args, DeviceStream& stream) const = 0;

  // The prepared form of x[m][cols], row r at x + r * stride.
  virtual absl::Status Prepare(const float* x, int64_t stride, int64_t m,
                               const DeviceActivations& out, DeviceStream& stream) const = 0;

  virtual absl::Status Gated(const DeviceGated& args, DeviceStream& stream) const = 0;

  // x[m][width] = a + b.
  virtual absl::Status Add(const float* a, const float* b, float* x, int64_t m, int64_t width,
                           DeviceStream& stream) const = 0;

  // out[i] = x[index[i]], rows of `width` floats; index on the device.
  virtual absl::Status GatherRows(const float* x, const int32_t* index, int64_t count,
                                  int64_t width, float* out, DeviceStream& stream) const = 0;

  // Matrices that take the same input; at most 8, all of x.cols columns and x.segment_cols.
  virtual absl::Status Linear(absl::Span<const DeviceLinear> members, const DeviceActivations& x,
                              int64_t m, DeviceStream& stream) const = 0;

  // Which kernel serves such heads, as ChooseLinear; UNIMPLEMENTED when none does.
  virtual absl::StatusOr<KernelChoice> ChooseAttention(const KvLayout& layout, int q_heads,
                                                       bool deterministic = true) const = 0;

  // Makes rope.cos_sin, with the bits of RopeTable: once a step, for all layers. Nothing for
  // padding rows.
  virtual absl::Status Angles(const DeviceRope& rope, const DeviceTokens& tokens, int64_t m,
                              DeviceStream& stream) const = 0;

  // Rotates heads in place, with the bits of RopeTable; Angles comes first. Padding rows stay as
  // they are.
  virtual absl::Status Rotate(float* x, int64_t stride, int heads, int head_dim,
                              const DeviceRope& rope, const DeviceTokens& tokens, int64_t m,
                              DeviceStream& stream) const = 0;

  // Rounds k and v to the cache type and stores them at their tokens' places, with the bits of
  // BoundAttention; with a rope as Rotate of q and of k before. Padding rows store nothing. Tokens
  // of one sequence follow each other, at consecutive positions.
  virtual absl::Status Append(const DeviceAttention& attention, const DeviceAppend& args,
                              const DeviceTokens& tokens, int64_t m,
                              DeviceStream& stream) const = 0;
  // out[m][q_heads * head_dim], not q. Reads the cache as stored: Append comes first. Chunks of 256
  // positions at absolute multiples, each alone, folded left to right, with the bits of
  // kernels/registry/attention.h. Padding rows give zeros.
  virtual absl::Status Attend(const DeviceAttention& attention, const float* q, int64_t q_stride,
                              float* out, int64_t out_stride, const DeviceTokens& tokens, int64_t m,
                              DeviceStream& stream) const = 0;
  // Of DeviceAttention::scratch for up to `max_tokens` rows, within a small share of the device.
  virtual uint64_t AttentionScratchBytes(const KvLayout& layout, int q_heads, int64_t max_tokens,
                                         int64_t max_context) const = 0;

  // Fills a matrix's blob, laid out as `layout` says, with the numbers of
  // kernels/tensor/synthetic.h. REQUIRES: CheckSynthetic(spec) is OK.
  virtual absl::Status MakeSynthetic(const PackedSpec& spec, const DeviceMatrixLayout& layout,
                                     const SyntheticSource& source, uint8_t* blob,
                                     DeviceStream& stream) const = 0;

  virtual absl::Status Scan(const DeviceScan& args, DeviceStream& stream) const = 0;
  // Of DeviceScan::scratch.
  virtual uint64_t ScanScratchBytes(int64_t m, int64_t count) const = 0;
  virtual absl::Status SumMasses(const DeviceMassSums& args, DeviceStream& stream) const = 0;
};

}  // namespace bitshard
