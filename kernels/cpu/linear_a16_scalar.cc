// y = W x in mode a16 on plain integers: codes of 2..8 bits, whole runs of 16 columns.
// Order: kernels/registry/linear.h.
#include <cmath>
#include <cstring>

#include "kernels/base/float_types.h"
#include "kernels/cpu/linear_cells.h"
#include "kernels/cpu/linear_store.h"
#include "kernels/tensor/p16x64.h"

namespace bitshard {
namespace {

// Codes of one run of 16 columns of a tile, [row][lane order].
void UnpackRun(const LinearArgs& args, const uint8_t* tile, int64_t run,
               uint8_t codes[kTileRows][kLaneCols]) {
  const uint8_t* words = tile + run / 4 * TileBytes(args.bits);
  const int j = static_cast<int>(run % 4);
  for (int g = 0; g < 8; ++g) {
    if (args.bits == 4) {
      const uint8_t* bytes = words + j * 128 + g * 16;
      for (int i = 0; i < kLaneCols; ++i) {
        codes[g][i] = bytes[i] & 15;
        codes[g + 8][i] = bytes[i] >> 4;
      }
    } else if (args.bits == 8) {
      std::memcpy(codes[g], words + j * 128 + g * 16, kLaneCols);
      std::memcpy(codes[g + 8], words + (4 + j) * 128 + g * 16, kLaneCols);
    } else {
      const auto* tile_words = reinterpret_cast<const uint32_t*>(words);
      for (int r = g; r < kTileRows; r += 8) {
        for (int c = 0; c < kLaneCols; ++c) {
          codes[r][LaneOfColumn(c)] =
              static_cast<uint8_t>(GetCode(tile_words, args.bits, r, 16 * j + c));
        }
      }
    }
  }
}

void RunTile(const LinearArgs& args, int64_t tile, int64_t row) {
  const uint8_t* codes = args.codes + tile * args.tile_bytes;
  const uint16_t* scales = args.scales + tile * args.scale_stride;
  const int16_t* q = args.q + row * args.padded_cols;
  const int32_t* run_sums = args.run_sums + row * (args.padded_cols / kLaneCols);
  const float* act_scales = args.act_scales + row * args.act_groups;
  const int rows = RowsOfTile(args, tile);
  const int slots = args.has_min ? 2 * kTileRows : kTileRows;
  float acc[kTileRows] = {};
  int64_t sums[kTileRows] = {};
  int64_t poison = 0;
  for (int64_t segment = 0; segment < args.segments; ++segment) {
    const int64_t begin = SegmentBeginRun(args, segment), end = SegmentEndRun(args, segment);
    std::memset(acc, 0, sizeof(acc));
    for (int64_t run = begin; run < end;) {
      const Cell cell = CellAt(args, segment, begin, end, run);
      int32_t dot[kTileRows] = {};
      int32_t q_sum = 0;
      for (; run < cell.run + cell.runs; ++run) {
        uint8_t unpacked[kTileRows][kLaneCols];
        UnpackRun(args, codes, run, unpacked);
        const int16_t* values = q + run * kLaneCols;
        for (int r = 0; r < kTileRows; ++r) {
          int32_t sum = 0;
          for (int i = 0; i < kLaneCols; ++i) sum += int32_t{unpacked[r][i]} * values[i];
          dot[r] += sum;
        }
        q_sum += run_sums[run];
      }
      const float s_a = act_scales[cell.act_group];
      const float min_factor = s_a * static_cast<float>(q_sum);
      const uint16_t* group_scales = scales + cell.group * slots;
      for (int r = 0; r < rows; ++r) {
        const int slot = ScaleSlotOfRow(r);
        const float value = static_cast<float>(dot[r] - args.zero_point * q_sum);
        acc[r] = std::fma(value, F16ToF32(group_scales[slot]) * s_a, acc[r]);
        if (args.has_min)
          acc[r] = std::fma(F16ToF32(group_scales[kTileRows + slot]), min_factor, acc[r]);
      }
    }
    if (args.sums != nullptr) poison += AddSegmentScalar(acc, rows, args.limit, sums);
  }
  if (args.sums != nullptr) {
    StoreSums(args, tile, row, sums, poison);
  } else {
    StoreValues(args, tile, row, acc);
  }
}

void Run(const LinearArgs& args, int64_t tile_begin, int64_t tile_end) {
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    for (int64_t row = 0; row < args.m; ++row) RunTile(args, tile, row);
  }
}

std::string Refuses(const LinearKey& key) { return RefusesUnalignedRuns(key); }

const RegisterKernel<LinearKernel> kRegistered({.name = "cpu/linear_int_a16_scalar",
                                                .isa = Isa::kScalar,
                                                .cost = 300,
                                                .form = kFormA16,
                                                .refuses = &Refuses,
                                                .run = &Run});

}  // namespace
}  // namespace bitshard
