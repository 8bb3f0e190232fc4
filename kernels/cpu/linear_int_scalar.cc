// y = W x in modes a16 and a8 on plain integers: codes of 2 to 8 bits, whole runs of 16 columns.
// Order: kernels/registry/linear.h.
//
// For machines without AVX2 and for tests: one std::fma a cell and row goes through libm, which is
// slow where the CPU has none.
#include <cmath>
#include <cstring>

#include "kernels/cpu/linear_store.h"
#include "kernels/cpu/linear_strips.h"
#include "kernels/tensor/p16x64.h"

namespace bitshard {
namespace {

constexpr int kRowBlock = 8;    // rows of x that share one unpacking
constexpr int kStripTiles = 2;  // a cell may straddle two
using IntStrip = Strip<kStripTiles>;

struct Block {
  uint8_t codes[kStripTiles * kTileRuns][kTileRows][kLaneCols];  // column order
  float acc[kRowBlock][kTileRows];                               // row order
  int64_t sums[kRowBlock][kTileRows];
  int64_t poison[kRowBlock];
};

// A run of q in column order.
template <typename Q>
void LoadRun(const Q* q, int32_t out[kLaneCols]) {
  for (int c = 0; c < kLaneCols; ++c) out[c] = q[LaneOfColumn(c)];
}

// Adds one cell for `rows` rows of x, the first of which has the terms q, run_sums and act_scales.
template <typename Q>
void AddCell(const LinearArgs& args, const StripCell& cell, int64_t first_run, int64_t tile,
             const Q* q, const int32_t* run_sums, const float* act_scales, int rows, Block& block) {
  float scale[kTileRows], min[kTileRows];
  int32_t zero[kTileRows];
  for (int r = 0; r < kTileRows; ++r) {
    const int slot = ScaleSlotOfRow(r);
    scale[r] = ScaleAt(args.scale, tile, slot, cell.group);
    min[r] = MinAt(args.scale, tile, slot, cell.group);
    zero[r] = ZeroAt(args.scale, tile, slot, cell.group);
  }
  for (int i = 0; i < rows; ++i) {
    int32_t dot[kTileRows] = {};
    int32_t q_sum = 0;
    for (int j = cell.run; j < cell.run + cell.runs; ++j) {
      int32_t terms[kLaneCols];
      LoadRun(q + i * args.padded_cols + (first_run + j) * kLaneCols, terms);
      q_sum += run_sums[i * (args.padded_cols / kLaneCols) + first_run + j];
      for (int r = 0; r < kTileRows; ++r) {
        for (int c = 0; c < kLaneCols; ++c) dot[r] += block.codes[j][r][c] * terms[c];
      }
    }
    const float s_a = act_scales[i * args.act_groups + cell.act_group];
    const float min_factor = s_a * static_cast<float>(q_sum);
    for (int r = 0; r < kTileRows; ++r) {
      float& acc = block.acc[i][r];
      acc = std::fma(static_cast<float>(dot[r] - zero[r] * q_sum), scale[r] * s_a, acc);
      if (args.scale.has_min) acc = std::fma(min[r], min_factor, acc);
    }
  }
}

template <int kActCols, typename Q>
void RunBlock(const LinearArgs& args, const Q* q, int64_t tile, int64_t row, int rows,
              Block& block) {
  const int tile_rows = RowsOfTile(args, tile);
  const int64_t tile_bytes = TileBytes(args.bits);
  std::memset(block.acc, 0, sizeof(block.acc));
  std::memset(block.sums, 0, sizeof(block.sums));
  std::memset(block.poison, 0, sizeof(block.poison));
  IntStrip strip;
  for (StripWalk walk(args, true, kActCols); walk.Next(strip);) {
    const uint8_t* words = args.codes + tile * args.tile_bytes + strip.first_tile * tile_bytes;
    for (int run = 0; run < strip.tiles * kTileRuns; ++run) {
      const auto* of_run = reinterpret_cast<const uint32_t*>(words + run / kTileRuns * tile_bytes);
      for (int r = 0; r < kTileRows; ++r)
        GetRun(of_run, args.bits, r, run % kTileRuns, block.codes[run][r]);
    }
    for (int c = 0; c < strip.cells; ++c) {
      AddCell(args, strip.cell[c], strip.first_tile * kTileRuns, tile, q + row * args.padded_cols,
              args.run_sums + row * (args.padded_cols / kLaneCols),
              args.act_scales + row * args.act_groups, rows, block);
      if (!strip.cell[c].closes || args.sums == nullptr) continue;
      for (int i = 0; i < rows; ++i) {
        block.poison[i] += AddSegmentScalar(block.acc[i], tile_rows, args.limit, block.sums[i]);
      }
      std::memset(block.acc, 0, sizeof(block.acc));
    }
  }
}

template <int kActCols, typename Q>
void RunForm(const LinearArgs& args, const Q* q, int64_t tile_begin, int64_t tile_end) {
  Block block;
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    for (int64_t row = 0; row < args.m; row += kRowBlock) {
      const int rows = static_cast<int>(args.m - row < kRowBlock ? args.m - row : kRowBlock);
      RunBlock<kActCols>(args, q, tile, row, rows, block);
      for (int i = 0; i < rows; ++i) {
        if (args.sums != nullptr) {
          StoreSums(args, tile, row + i, block.sums[i], block.poison[i]);
        } else {
          StoreValues(args, tile, row + i, block.acc[i]);
        }
      }
    }
  }
}

void RunA16(const LinearArgs& args, int64_t tile_begin, int64_t tile_end) {
  RunForm<kActivationGroup>(args, args.q, tile_begin, tile_end);
}
void RunA8(const LinearArgs& args, int64_t tile_begin, int64_t tile_end) {
  RunForm<kA8Group>(args, args.a8, tile_begin, tile_end);
}

const RegisterKernel<LinearKernel> kA16({.name = "cpu/linear_int_a16_scalar",
                                         .isa = Isa::kScalar,
                                         .cost = 300,
                                         .form = kFormA16,
                                         .refuses = &RefusesUnalignedRuns,
                                         .run = &RunA16});
const RegisterKernel<LinearKernel> kA8({.name = "cpu/linear_int_a8_scalar",
                                        .isa = Isa::kScalar,
                                        .cost = 300,
                                        .form = kFormA8,
                                        .refuses = &RefusesUnalignedRuns,
                                        .run = &RunA8});

}  // namespace
}  // namespace bitshard
