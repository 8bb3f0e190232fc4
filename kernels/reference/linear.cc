// y = W x by the definition in kernels/registry/linear.h, one element at a time. Any widths,
// groups, segments and cuts.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "kernels/registry/linear_kernel.h"
#include "kernels/registry/reduction.h"

namespace bitshard {
namespace {

int64_t LaneIndex(int64_t k) {
  return k / kLaneCols * kLaneCols + LaneOfColumn(static_cast<int>(k % kLaneCols));
}

// Columns [begin, end) are one segment; it is padded with x = 0 to a multiple of 16.
float DotF32(const LinearArgs& args, int64_t row, int64_t out, int64_t begin, int64_t end) {
  const float* x = args.x + row * args.padded_cols;
  float lanes[kLaneCols] = {};
  for (int64_t k = begin; k < begin + (end - begin + kLaneCols - 1) / kLaneCols * kLaneCols; ++k) {
    const bool inside = k < end;
    const float w = inside || end == args.k ? args.matrix->ValueAt(out, k) : 0.0f;
    float& lane = lanes[(k - begin) % kLaneCols];
    lane = std::fma(w, inside ? x[LaneIndex(k)] : 0.0f, lane);
  }
  for (int half = kLaneCols / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] = lanes[l] + lanes[l + half];
  }
  return lanes[0];
}

float DotA16(const LinearArgs& args, int64_t row, int64_t out, int64_t segment, int64_t begin,
             int64_t end) {
  const PackedMatrix& w = *args.matrix;
  const int16_t* q = args.q + row * args.padded_cols;
  const float* scales =
      args.act_scales + row * args.act_groups + segment * args.act_groups_per_segment;
  float acc = 0;
  for (int64_t k = begin; k < end;) {
    const int64_t group = w.GroupOf(k);
    const int64_t act_group = (k - begin) / kActivationGroup;
    int64_t cell_end = std::min(end, (group + 1) * args.group_size - args.first_group_offset);
    cell_end = std::min(cell_end, begin + (act_group + 1) * kActivationGroup);
    int32_t sum = 0, q_sum = 0;
    for (; k < cell_end; ++k) {
      sum += w.CodeAt(out, k) * q[LaneIndex(k)];
      q_sum += q[LaneIndex(k)];
    }
    sum -= args.zero_point * q_sum;
    const float s_a = scales[act_group];
    acc = std::fma(static_cast<float>(sum), w.ScaleAt(out, group) * s_a, acc);
    if (args.has_min) acc = std::fma(w.MinAt(out, group), s_a * static_cast<float>(q_sum), acc);
  }
  return acc;
}

template <bool kA16>
void Run(const LinearArgs& args, int64_t tile_begin, int64_t tile_end) {
  const int64_t out_end = std::min(args.n, tile_end * kTileRows);
  for (int64_t out = tile_begin * kTileRows; out < out_end; ++out) {
    for (int64_t row = 0; row < args.m; ++row) {
      float whole = 0;
      int64_t sum = 0, poison = 0;
      for (int64_t segment = 0; segment < args.segments; ++segment) {
        const int64_t begin = segment * args.segment_cols;
        const int64_t end = std::min(begin + args.segment_cols, args.k);
        const float value =
            kA16 ? DotA16(args, row, out, segment, begin, end) : DotF32(args, row, out, begin, end);
        if (args.sums == nullptr) {
          whole = value;
        } else if (std::fabs(value) < args.limit) {
          sum = static_cast<int64_t>(static_cast<uint64_t>(sum) +
                                     static_cast<uint64_t>(F32ToFixed(value)));
        } else {
          ++poison;  // also when it is NaN
        }
      }
      if (args.sums == nullptr) {
        args.y[row * args.stride + out] = whole;
      } else {
        args.sums[row * args.stride + out] = sum;
        if (poison != 0)
          std::atomic_ref<int64_t>(args.poison[row]).fetch_add(poison, std::memory_order_relaxed);
      }
    }
  }
}

std::string RefusesNothing(const LinearKey&) { return ""; }

const RegisterKernel<LinearKernel> kF32({.name = "reference/linear_f32",
                                         .isa = Isa::kScalar,
                                         .cost = 1000,
                                         .form = kFormF32,
                                         .refuses = &RefusesNothing,
                                         .run = &Run<false>});
const RegisterKernel<LinearKernel> kA16({.name = "reference/linear_a16",
                                         .isa = Isa::kScalar,
                                         .cost = 1000,
                                         .form = kFormA16,
                                         .refuses = &RefusesNothing,
                                         .run = &Run<true>});

}  // namespace
}  // namespace bitshard
