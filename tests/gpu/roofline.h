// How close the kernels come to what the device can do (ceilings.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "kernels/tensor/device.h"
#include "kernels/tensor/kv_layout.h"
#include "kernels/tensor/packed_matrix.h"
#include "tests/gpu/ceilings.h"

namespace bitshard {

// One line of the table. Bytes and operations are the formula's: what must be read and written
// once and multiplied, however the kernel does it.
struct RooflineLine {
  std::string what;  // "int4 zero=8 group=128 scale=f16 14336x4096 m=1"
  uint64_t bytes = 0;
  double flops = 0;
  double seconds = 0;  // of one launch: the median of the repetitions
  double again = 0;    // the same, measured once more
  double spread = 0;   // (largest - smallest) / median
  // Of the bound's rate: copies or products, whichever takes longer.
  double share = 0;
  bool by_copies = true;
  double bar = 0;  // the share that is wanted; 0: none
};

struct RooflineSize {
  uint64_t rotate_bytes = 0;  // copies of the weights that one after the other are read
  int repetitions = 1;
};
// So much that no cache holds it.
inline constexpr RooflineSize kRooflineSize = {uint64_t{192} << 20, 9};

// Shares wanted of what reads at least so much memory.
inline constexpr uint64_t kBarBytes = uint64_t{32} << 20;
inline constexpr double kVectorBar = 0.75;  // one row of x
inline constexpr double kAttentionBar = 0.70;

struct LinearRoofline {
  PackedSpec spec;
  int64_t segment_cols = 0;   // not 0: int64 sums of such segments, as row-parallel matrices have
  bool deterministic = true;  // false: the fastest kernel
};
// y = w x for m rows of x, the weights rotated, launched from a graph; a line for each m.
absl::StatusOr<std::vector<RooflineLine>> MeasureLinear(Device& device, const LinearRoofline& of,
                                                        absl::Span<const int> ms,
                                                        const Ceilings& ceilings,
                                                        const RooflineSize& size);

struct AttentionRoofline {
  KvLayout layout;
  int q_heads = 0;
  int sequences = 1;
  int64_t context = 0;  // positions that the newest token of each sequence sees
  int64_t tokens = 1;   // the newest ones of each sequence, which attend; more than one: a prefill
  bool deterministic = true;
};
absl::StatusOr<RooflineLine> MeasureAttention(Device& device, const AttentionRoofline& of,
                                              const Ceilings& ceilings, const RooflineSize& size);

// What lies between matrices, on m rows: sums of ranks added up, the norm, and the form that
// matrices read; queries and keys of m tokens rotated, keys and values into the cache; a look
// through logits (Scan).
absl::StatusOr<RooflineLine> MeasureSumNorm(Device& device, int64_t m, int64_t width,
                                            const Ceilings& ceilings, const RooflineSize& size);
absl::StatusOr<RooflineLine> MeasureAppend(Device& device, const KvLayout& layout, int q_heads,
                                           int64_t m, const Ceilings& ceilings,
                                           const RooflineSize& size);
absl::StatusOr<RooflineLine> MeasureScan(Device& device, int64_t m, int64_t count,
                                         const Ceilings& ceilings, const RooflineSize& size);

// `line` with its what, bytes and flops: its times and shares. `enqueue` enqueues `launches` equal
// pieces of work.
absl::StatusOr<RooflineLine> TimeLine(Device& device, DeviceStream& stream, RooflineLine line,
                                      int launches, const Ceilings& ceilings,
                                      const RooflineSize& size,
                                      const std::function<absl::Status()>& enqueue);

// "what<tab>bytes<tab>us<tab>again us<tab>GB/s<tab>TFLOP/s<tab>share<tab>of<tab>bar<tab>spread"
std::string RooflineHead();
std::string RooflineText(const RooflineLine& line);

// "3 of 40 lines with a bar are below it; the worst: ...", and how many are.
struct RooflineVerdict {
  int below = 0;
  std::string text;
};
RooflineVerdict JudgeRoofline(absl::Span<const RooflineLine> lines);

}  // namespace bitshard
