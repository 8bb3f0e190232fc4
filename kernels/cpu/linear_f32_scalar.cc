// y = W x in mode f32 on plain floats, any weight type, whole runs of 16 columns. Order:
// kernels/registry/linear.h; the 16 virtual lanes are those of the columns in lane order.
//
// For machines without AVX2 and for tests: std::fma goes through libm, a call for every
// multiplication.
#include <cmath>
#include <cstring>

#include "kernels/base/float_types.h"
#include "kernels/cpu/linear_segments.h"
#include "kernels/cpu/linear_store.h"
#include "kernels/tensor/p16x64.h"

namespace bitshard {
namespace {

// The values of one row of a tile in one run of 16 columns, lane order.
void DecodeRun(const LinearArgs& args, int64_t tile, int r, int64_t run, float w[kLaneCols]) {
  const uint8_t* codes = args.codes + tile * args.tile_bytes;
  const int64_t dense = (run * kTileRows + r) * kLaneCols;
  switch (args.type) {
    case PackedSpec::Type::kF32:
      std::memcpy(w, codes + 4 * dense, kLaneCols * sizeof(float));
      return;
    case PackedSpec::Type::kF16:
      for (int i = 0; i < kLaneCols; ++i)
        w[i] = F16ToF32(reinterpret_cast<const uint16_t*>(codes)[dense + i]);
      return;
    case PackedSpec::Type::kBf16:
      for (int i = 0; i < kLaneCols; ++i)
        w[i] = Bf16ToF32(reinterpret_cast<const uint16_t*>(codes)[dense + i]);
      return;
    case PackedSpec::Type::kInt:
      break;
  }
  const auto* words = reinterpret_cast<const uint32_t*>(codes + run / 4 * TileBytes(args.bits));
  const int64_t group = (run * kLaneCols + args.scale.first_group_offset) / args.scale.group_size;
  const float scale = ScaleAt(args.scale, tile, ScaleSlotOfRow(r), group);
  const float min = MinAt(args.scale, tile, ScaleSlotOfRow(r), group);
  const int zero = ZeroAt(args.scale, tile, ScaleSlotOfRow(r), group);
  uint8_t of_run[kLaneCols];
  GetRun(words, args.bits, r, static_cast<int>(run % 4), of_run);
  for (int c = 0; c < kLaneCols; ++c) {
    const float centred = static_cast<float>(of_run[c] - zero);
    w[LaneOfColumn(c)] = args.scale.has_min ? std::fma(centred, scale, min) : centred * scale;
  }
}

// The tree (l+8, l+4, l+2, l+1) over lanes that lie in lane order.
float SumLanes(const float lanes[kLaneCols]) {
  float v[kLaneCols];
  for (int l = 0; l < kLaneCols; ++l) v[l] = lanes[LaneOfColumn(l)];
  for (int half = kLaneCols / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) v[l] = v[l] + v[l + half];
  }
  return v[0];
}

constexpr int kRowBlock = 8;  // rows of x that share one decoding of a weight run

void RunTile(const LinearArgs& args, int64_t tile, int64_t row_begin, int rows) {
  const int tile_rows = RowsOfTile(args, tile);
  float values[kRowBlock][kTileRows];
  int64_t sums[kRowBlock][kTileRows] = {};
  int64_t poison[kRowBlock] = {};
  for (int64_t segment = 0; segment < args.segments; ++segment) {
    const int64_t begin = SegmentBeginRun(args, segment), end = SegmentEndRun(args, segment);
    for (int r = 0; r < tile_rows; ++r) {
      float lanes[kRowBlock][kLaneCols] = {};
      for (int64_t run = begin; run < end; ++run) {
        float w[kLaneCols];
        DecodeRun(args, tile, r, run, w);
        for (int i = 0; i < rows; ++i) {
          const float* x = args.x + (row_begin + i) * args.padded_cols + run * kLaneCols;
          for (int l = 0; l < kLaneCols; ++l) lanes[i][l] = std::fma(w[l], x[l], lanes[i][l]);
        }
      }
      for (int i = 0; i < rows; ++i) values[i][r] = SumLanes(lanes[i]);
    }
    if (args.sums == nullptr) continue;  // one segment
    for (int i = 0; i < rows; ++i)
      poison[i] += AddSegmentScalar(values[i], tile_rows, args.limit, sums[i]);
  }
  for (int i = 0; i < rows; ++i) {
    if (args.sums != nullptr) {
      StoreSums(args, tile, row_begin + i, sums[i], poison[i]);
    } else if (args.segments > 0) {
      StoreValues(args, tile, row_begin + i, values[i]);
    } else {
      const float zeros[kTileRows] = {};
      StoreValues(args, tile, row_begin + i, zeros);
    }
  }
}

void Run(const LinearArgs& args, int64_t tile_begin, int64_t tile_end) {
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    for (int64_t row = 0; row < args.m; row += kRowBlock) {
      RunTile(args, tile, row,
              static_cast<int>(args.m - row < kRowBlock ? args.m - row : kRowBlock));
    }
  }
}

const RegisterKernel<LinearKernel> kRegistered({.name = "cpu/linear_f32_scalar",
                                                .isa = Isa::kScalar,
                                                .cost = 300,
                                                .form = kFormF32,
                                                .refuses = &RefusesUnalignedRuns,
                                                .run = &Run});

}  // namespace
}  // namespace bitshard
