// y = W x by the definition in kernels/registry/linear.h, one element at a time. Any widths,
// groups, segments and cuts.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "kernels/registry/linear_kernel.h"
#include "kernels/registry/reduction.h"

namespace bitshard {
namespace {

int64_t LaneIndex(int64_t k) {
  return k / kLaneCols * kLaneCols + LaneOfColumn(static_cast<int>(k % kLaneCols));
}

// One row of the weights, element by element.
struct OutputRow {
  std::vector<float> values;  // mode f32: [columns padded to 16]
  std::vector<int> codes;     // integer modes: [columns]
  std::vector<float> scales, mins;
  std::vector<int> zeros;  // [groups]
};

template <unsigned kForm>
void Decode(const PackedMatrix& w, int64_t out, OutputRow& row) {
  if (kForm == kFormF32) {
    row.values.clear();
    for (int64_t k = 0; k < (w.cols() + kLaneCols - 1) / kLaneCols * kLaneCols; ++k)
      row.values.push_back(w.ValueAt(out, k));
    return;
  }
  row.codes.clear(), row.scales.clear(), row.mins.clear(), row.zeros.clear();
  for (int64_t k = 0; k < w.cols(); ++k) row.codes.push_back(w.CodeAt(out, k));
  for (int64_t g = 0; g < w.groups(); ++g) {
    row.scales.push_back(w.ScaleAt(out, g));
    row.mins.push_back(w.spec().has_min() ? w.MinAt(out, g) : 0.0f);
    row.zeros.push_back(w.ZeroAt(out, g));
  }
}

// Columns [begin, end) are one segment; it is padded with x = 0 to a multiple of 16.
float DotF32(const LinearArgs& args, const OutputRow& w, int64_t row, int64_t begin, int64_t end) {
  const float* x = args.x + row * args.padded_cols;
  float lanes[kLaneCols] = {};
  for (int64_t k = begin; k < begin + (end - begin + kLaneCols - 1) / kLaneCols * kLaneCols; ++k) {
    const bool inside = k < end;
    const float value = inside || end == args.k ? w.values[k] : 0.0f;
    float& lane = lanes[(k - begin) % kLaneCols];
    lane = std::fma(value, inside ? x[LaneIndex(k)] : 0.0f, lane);
  }
  for (int half = kLaneCols / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] = lanes[l] + lanes[l + half];
  }
  return lanes[0];
}

// q: of the row, in groups of `kGroupCols` columns.
template <int kGroupCols, typename Q>
float DotInt(const LinearArgs& args, const OutputRow& w, const Q* q, int64_t row, int64_t segment,
             int64_t begin, int64_t end) {
  const float* scales =
      args.act_scales + row * args.act_groups + segment * args.act_groups_per_segment;
  float acc = 0;
  for (int64_t k = begin; k < end;) {
    const int64_t group = args.matrix->GroupOf(k);
    const int64_t act_group = (k - begin) / kGroupCols;
    int64_t cell_end =
        std::min(end, (group + 1) * args.scale.group_size - args.scale.first_group_offset);
    cell_end = std::min(cell_end, begin + (act_group + 1) * kGroupCols);
    int32_t sum = 0, q_sum = 0;
    for (; k < cell_end; ++k) {
      sum += (w.codes[k] - w.zeros[group]) * q[LaneIndex(k)];
      q_sum += q[LaneIndex(k)];
    }
    const float s_a = scales[act_group];
    acc = std::fma(static_cast<float>(sum), w.scales[group] * s_a, acc);
    if (args.scale.has_min) acc = std::fma(w.mins[group], s_a * static_cast<float>(q_sum), acc);
  }
  return acc;
}

template <unsigned kForm>
float Dot(const LinearArgs& args, const OutputRow& w, int64_t row, int64_t segment, int64_t begin,
          int64_t end) {
  const int64_t at = row * args.padded_cols;
  if (kForm == kFormA16)
    return DotInt<kActivationGroup>(args, w, args.q + at, row, segment, begin, end);
  if (kForm == kFormA8) return DotInt<kA8Group>(args, w, args.a8 + at, row, segment, begin, end);
  return DotF32(args, w, row, begin, end);
}

template <unsigned kForm>
void Run(const LinearArgs& args, int64_t tile_begin, int64_t tile_end) {
  thread_local OutputRow w;
  const int64_t out_end = std::min(args.n, tile_end * kTileRows);
  for (int64_t out = tile_begin * kTileRows; out < out_end; ++out) {
    Decode<kForm>(*args.matrix, out, w);
    for (int64_t row = 0; row < args.m; ++row) {
      float whole = 0;
      int64_t sum = 0, poison = 0;
      for (int64_t segment = 0; segment < args.segments; ++segment) {
        const int64_t begin = segment * args.segment_cols;
        const int64_t end = std::min(begin + args.segment_cols, args.k);
        const float value = Dot<kForm>(args, w, row, segment, begin, end);
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
                                         .run = &Run<kFormF32>});
const RegisterKernel<LinearKernel> kA16({.name = "reference/linear_a16",
                                         .isa = Isa::kScalar,
                                         .cost = 1000,
                                         .form = kFormA16,
                                         .refuses = &RefusesNothing,
                                         .run = &Run<kFormA16>});
const RegisterKernel<LinearKernel> kA8({.name = "reference/linear_a8",
                                        .isa = Isa::kScalar,
                                        .cost = 1000,
                                        .form = kFormA8,
                                        .refuses = &RefusesNothing,
                                        .run = &Run<kFormA8>});

}  // namespace
}  // namespace bitshard
