// The runs of 16 columns of a segment, the padded last one included.
#pragma once

#include <cstdint>

#include "kernels/registry/linear_kernel.h"

namespace bitshard {

inline int64_t SegmentBeginRun(const LinearArgs& args, int64_t segment) {
  return segment * args.segment_cols / kLaneCols;
}
inline int64_t SegmentEndRun(const LinearArgs& args, int64_t segment) {
  const int64_t end = (segment + 1) * args.segment_cols;
  return ((end < args.k ? end : args.k) + kLaneCols - 1) / kLaneCols;
}

}  // namespace bitshard
