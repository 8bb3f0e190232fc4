// y = W x of integer codes on AVX2, modes a16 and a8: what both have in common. Order:
// kernels/registry/linear.h.
//
// A chunk of columns of a row tile is unpacked into L1 once, with the scales of its cells, and used
// by up to 32 rows of x; a single row goes the same way. Codes of up to 7 bits in a8 stay bytes for
// vpmaddubsw, whose pairs of code x q then fit 16 bits; all others become 16-bit codes for vpmaddwd
// (measured on Zen 5 in a16, 4 bits: 74 against 62 G multiply-adds a second for two terms of
// bytes).
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/isa_region.h"
#include "kernels/cpu/linear_store.h"
#include "kernels/cpu/linear_strips.h"
#include "kernels/cpu/linear_unpack_avx2.h"
#include "kernels/cpu/scale_plane_avx2.h"

namespace bitshard {
namespace {

constexpr int kRowBlock = 32;
constexpr int kChunkTiles = 8;
constexpr int kChunkRuns = kChunkTiles * kTileRuns;
// A chunk's bytes are asked for one chunk and this much ahead. Measured on Zen 5, one row of x, 8
// bits from memory: 21 GB/s without the lead, 26 with it.
constexpr int kLeadBytes = 4096;

template <unsigned kForm>
constexpr int kActRuns = (kForm == kFormA8 ? kA8Group : kActivationGroup) / kLaneCols;

// Whether the codes stay bytes: q is in -127..127, so 127 * 127 * 2 fits 16 bits, and up to 6 bits
// a whole cell does.
template <unsigned kForm, int kBits>
constexpr bool kBytes = (kForm == kFormA8) && (kBits <= 7);
static_assert(127 * 127 * 2 < 1 << 15 && 63 * 127 * 2 * kActRuns<kFormA8> < 1 << 15);

// The chunks from a walk's place on, as many as there is room for. A row of up to 16,384 columns is
// walked once for all row tiles.
constexpr int kPlanChunks = 32;
struct Plan {
  int chunks;
  Strip<kChunkTiles> chunk[kPlanChunks];
  int cell_runs[kPlanChunks];  // of every cell of the chunk, 0 if they differ
};

// False at the end of K.
inline bool MakePlan(StripWalk& walk, Plan& plan) {
  for (plan.chunks = 0; plan.chunks < kPlanChunks; ++plan.chunks) {
    Strip<kChunkTiles>& chunk = plan.chunk[plan.chunks];
    if (!walk.Next(chunk)) break;
    int runs = chunk.cell[0].runs;
    for (int c = 1; c < chunk.cells; ++c) runs = chunk.cell[c].runs == runs ? runs : 0;
    plan.cell_runs[plan.chunks] = runs;
  }
  return plan.chunks > 0;
}

struct alignas(32) CellScales {
  float scale[kTileRows], min[kTileRows];  // slot order
  int32_t zero[kTileRows];
};

struct alignas(64) Block {
  uint8_t codes[2 * kChunkRuns * kRunBytes];  // bytes use half of it
  CellScales scales[kChunkRuns];
  float acc[kRowBlock][kTileRows];     // of the running segment, slot order
  int64_t sums[kRowBlock][kTileRows];  // slot order
  int64_t poison[kRowBlock];
};

ISA_BEGIN_AVX2

// The scales of `cells` cells of a row tile.
ISA_INLINE void LoadCells(const ScaleView& scale, int64_t tile, const StripCell* cell, int cells,
                          CellScales* out) {
  const int64_t bytes = scale.record_bytes;
  if (scale.kind == ScaleKind::kF16 && !scale.shared_rows && !scale.has_zeros) {
    const uint8_t* plane = scale.plane + tile * scale.tile_bytes;
    for (int c = 0; c < cells; ++c) {
      const uint8_t* record = plane + cell[c].group * bytes;
      _mm_prefetch(reinterpret_cast<const char*>(record + 1024), _MM_HINT_T0);
      _mm256_store_ps(out[c].scale, LoadHalf8(record));
      _mm256_store_ps(out[c].scale + 8, LoadHalf8(record + 16));
      if (!scale.has_min) continue;
      _mm256_store_ps(out[c].min, LoadHalf8(record + 32));
      _mm256_store_ps(out[c].min + 8, LoadHalf8(record + 48));
    }
    return;
  }
  for (int c = 0; c < cells; ++c) {
    ISA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int64_t group = cell[c].group;
      _mm256_store_ps(out[c].scale + 8 * half, LoadScales(scale, tile, group, half));
      if (scale.has_min) _mm256_store_ps(out[c].min + 8 * half, LoadMins(scale, tile, group, half));
      if (scale.has_zeros) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(out[c].zero + 8 * half),
                           LoadZeros(scale, tile, group, half));
      }
    }
  }
}

// The transposing addition: vectors 4 h .. 4 h + 3 of a run, each 2 rows x 4 int32, fold in pairs
// and then once more into the sums of slots 8 h .. 8 h + 7. Elements of 16 bits fold alike.
ISA_INLINE __m256i FoldPair(__m256i a, __m256i b) {
  return _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
}
ISA_INLINE __m256i FoldPair16(__m256i a, __m256i b) {
  return _mm256_add_epi16(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
}
ISA_INLINE __m256i FoldHalves(__m256i ab, __m256i cd) {
  return _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
}
ISA_INLINE __m256i FoldHalves16(__m256i ab, __m256i cd) {
  return _mm256_add_epi16(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
}
// How many of the two foldings 16-bit sums of magnitude `largest` bear: folding them before they
// widen saves multiplications.
constexpr int FoldsIn16Bits(int largest) {
  return largest * 4 < 1 << 15 ? 2 : largest * 2 < 1 << 15 ? 1 : 0;
}

// 16 terms for both rows of a vector.
ISA_INLINE __m256i Broadcast16(const void* p) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}

// The sums of slots of one cell of 16-bit codes; x: 16-bit q of every run, columns 0-7 in lane
// order and 8-15, each for both rows of a vector.
template <int kRuns>
ISA_INLINE void DotWide(const __m256i x[kRuns][2], const uint8_t* codes, __m256i sum[2]) {
  ISA_UNROLL
  for (int half = 0; half < 2; ++half) {
    __m256i pair[2];
    ISA_UNROLL
    for (int p = 0; p < 2; ++p) {
      __m256i d[2];
      ISA_UNROLL
      for (int v = 0; v < 2; ++v) {
        const uint8_t* at = codes + 64 * (4 * half + 2 * p + v);
        d[v] = _mm256_add_epi32(_mm256_madd_epi16(x[0][0], LoadVector(at)),
                                _mm256_madd_epi16(x[0][1], LoadVector(at + 32)));
        ISA_UNROLL
        for (int j = 1; j < kRuns; ++j) {
          at += 2 * kRunBytes;
          d[v] = _mm256_add_epi32(d[v], _mm256_madd_epi16(x[j][0], LoadVector(at)));
          d[v] = _mm256_add_epi32(d[v], _mm256_madd_epi16(x[j][1], LoadVector(at + 32)));
        }
      }
      pair[p] = FoldPair(d[0], d[1]);
    }
    sum[half] = FoldHalves(pair[0], pair[1]);
  }
}

// Adding 1.5 * 2^52 to a double below 2^51 rounds it to an integer, ties to even, and leaves it in
// the low bits. The bits of the constant stay in the sums, once a segment, until StoreRow.
constexpr double kRounder = 0x1.8p52;
constexpr uint64_t kRounderBits = 0x4338000000000000u;

// Adds 8 slots' values of a segment to their fixed-point sums (see AddSegmentScalar); returns the
// slots that poison. limit, small: args.limit, and no more than 2^19.
ISA_INLINE unsigned AddSegment8(__m256 v, __m256 limit, __m256 small, int64_t sums[8]) {
  const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v);
  const __m256d rounder = _mm256_set1_pd(kRounder), unit = _mm256_set1_pd(0x1p32);
  __m256i* sum = reinterpret_cast<__m256i*>(sums);
  if (_mm256_movemask_ps(_mm256_cmp_ps(magnitude, small, _CMP_LT_OQ)) == 255) {
    ISA_UNROLL
    for (int i = 0; i < 2; ++i) {
      const __m128 part = i == 0 ? _mm256_castps256_ps128(v) : _mm256_extractf128_ps(v, 1);
      const __m256d fixed = _mm256_fmadd_pd(_mm256_cvtps_pd(part), unit, rounder);
      _mm256_store_si256(sum + i,
                         _mm256_add_epi64(_mm256_load_si256(sum + i), _mm256_castpd_si256(fixed)));
    }
    return 0;
  }
  // v = whole + rest exactly, and whole * 2^32 is even, so rounding the rest rounds the sum.
  const __m256 good = _mm256_cmp_ps(magnitude, limit, _CMP_LT_OQ);
  v = _mm256_and_ps(v, good);
  const __m256i whole = _mm256_cvttps_epi32(v);
  const __m256 rest = _mm256_sub_ps(v, _mm256_cvtepi32_ps(whole));
  ISA_UNROLL
  for (int i = 0; i < 2; ++i) {
    const __m128 part = i == 0 ? _mm256_castps256_ps128(rest) : _mm256_extractf128_ps(rest, 1);
    const __m128i high =
        i == 0 ? _mm256_castsi256_si128(whole) : _mm256_extracti128_si256(whole, 1);
    const __m256d low = _mm256_fmadd_pd(_mm256_cvtps_pd(part), unit, rounder);
    const __m256i fixed = _mm256_add_epi64(_mm256_castpd_si256(low),
                                           _mm256_slli_epi64(_mm256_cvtepi32_epi64(high), 32));
    _mm256_store_si256(sum + i, _mm256_add_epi64(_mm256_load_si256(sum + i), fixed));
  }
  return ~static_cast<unsigned>(_mm256_movemask_ps(good)) & 255u;
}

// Adds the chunk's cells for one row of x, and asks for the chunk's bytes from `ahead` on (unless
// null) meanwhile: the memory must not idle while a chunk is multiplied. kRuns: of every cell, 0 if
// they differ. `real`: slots of rows that exist.
template <typename Dot, int kRuns>
__attribute__((noinline)) void AddChunk(const LinearArgs& args, const Strip<kChunkTiles>& chunk,
                                        int64_t row, int i, unsigned real, const uint8_t* ahead,
                                        Block& block) {
  const int64_t first_run = chunk.first_tile * kTileRuns;
  const int32_t* run_sums = args.run_sums + row * (args.padded_cols / kLaneCols) + first_run;
  const float* act_scales = args.act_scales + row * args.act_groups;
  const bool has_min = args.scale.has_min, has_zeros = args.scale.has_zeros;
  const bool fixed = args.sums != nullptr;
  const int zero_point = args.scale.zero_point;
  const typename Dot::Terms terms = Dot::TermsOf(args, row, first_run);
  const CellScales* scales = block.scales;
  __m256 acc[2] = {_mm256_load_ps(block.acc[i]), _mm256_load_ps(block.acc[i] + 8)};
  const StripCell* cell = chunk.cell;
  for (const StripCell* end = cell + chunk.cells; cell != end; ++cell, ++scales) {
    if (ahead != nullptr) {
      constexpr int kLines = (kRuns != 0 ? kRuns : 1) * Dot::kBits / 2;
      ISA_UNROLL
      for (int line = 0; line < kLines; ++line)
        _mm_prefetch(reinterpret_cast<const char*>(ahead + 64 * line), _MM_HINT_T0);
      ahead += 64 * kLines;
    }
    __m256i sum[2];
    int32_t q_sum = run_sums[cell->run];
    if (kRuns != 0) {
      Dot::template Cell<kRuns != 0 ? kRuns : 1>(terms, *cell, block.codes, sum);
      ISA_UNROLL
      for (int j = 1; j < kRuns; ++j) q_sum += run_sums[cell->run + j];
    } else {
      for (int j = 1; j < cell->runs; ++j) q_sum += run_sums[cell->run + j];
      switch (cell->runs) {
        case 1:
          Dot::template Cell<1>(terms, *cell, block.codes, sum);
          break;
        case 2:
          Dot::template Cell<2>(terms, *cell, block.codes, sum);
          break;
        case 3:
          Dot::template Cell < Dot::kMaxRuns<3 ? 1 : 3>(terms, *cell, block.codes, sum);
          break;
        default:
          Dot::template Cell < Dot::kMaxRuns<4 ? 1 : 4>(terms, *cell, block.codes, sum);
          break;
      }
    }
    const float s_a = act_scales[cell->act_group];
    const __m256 s_a_vector = _mm256_set1_ps(s_a);
    const __m256i q_sum_vector = _mm256_set1_epi32(has_zeros ? q_sum : zero_point * q_sum);
    const __m256 min_factor = _mm256_set1_ps(s_a * static_cast<float>(q_sum));
    ISA_UNROLL
    for (int h = 0; h < 2; ++h) {
      __m256i zero = q_sum_vector;
      if (has_zeros) {
        zero = _mm256_mullo_epi32(
            zero, _mm256_load_si256(reinterpret_cast<const __m256i*>(scales->zero + 8 * h)));
      }
      acc[h] =
          _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(sum[h], zero)),
                          _mm256_mul_ps(_mm256_load_ps(scales->scale + 8 * h), s_a_vector), acc[h]);
      if (has_min)
        acc[h] = _mm256_fmadd_ps(_mm256_load_ps(scales->min + 8 * h), min_factor, acc[h]);
    }
    if (fixed && cell->closes) {
      const __m256 limit = _mm256_set1_ps(args.limit);
      int64_t* sums = block.sums[i];
      const __m256 small = _mm256_min_ps(limit, _mm256_set1_ps(0x1p19f));
      const unsigned bad = AddSegment8(acc[0], limit, small, sums) |
                           AddSegment8(acc[1], limit, small, sums + 8) << 8;
      if (bad & real) block.poison[i] += __builtin_popcount(bad & real);
      acc[0] = acc[1] = _mm256_setzero_ps();
    }
  }
  _mm256_store_ps(block.acc[i], acc[0]);
  _mm256_store_ps(block.acc[i] + 8, acc[1]);
}

// One chunk of a row tile for a block of rows of x.
template <typename Dot>
void RunChunk(const LinearArgs& args, const Strip<kChunkTiles>& chunk, int cell_runs, int64_t tile,
              int64_t row, int rows, unsigned real, Block& block) {
  constexpr int kTileBytes = 128 * Dot::kBits;
  const uint8_t* codes = args.codes + tile * args.tile_bytes + chunk.first_tile * kTileBytes;
  for (int t = 0; t < chunk.tiles; ++t) {
    if (kBytes<Dot::kForm, Dot::kBits>) {
      UnpackTile<Dot::kBits>(codes + t * kTileBytes, block.codes + t * kTileRuns * kRunBytes);
    } else {
      UnpackWideTile<Dot::kBits>(codes + t * kTileBytes,
                                 block.codes + 2 * t * kTileRuns * kRunBytes);
    }
  }
  LoadCells(args.scale, tile, chunk.cell, chunk.cells, block.scales);
  for (int i = 0; i < rows; ++i) {
    const uint8_t* ahead = i == 0 ? codes + chunk.tiles * kTileBytes + kLeadBytes : nullptr;
    if (cell_runs == Dot::kMaxRuns) {
      AddChunk<Dot, Dot::kMaxRuns>(args, chunk, row + i, i, real, ahead, block);
    } else if (cell_runs == 2) {
      AddChunk<Dot, 2>(args, chunk, row + i, i, real, ahead, block);
    } else {
      AddChunk<Dot, 0>(args, chunk, row + i, i, real, ahead, block);
    }
  }
}

ISA_END

inline void StoreRow(const LinearArgs& args, int64_t tile, int64_t row, int i, const Block& block) {
  if (args.sums != nullptr) {
    int64_t ordered[kTileRows];
    const uint64_t rounders = kRounderBits * static_cast<uint64_t>(args.segments);
    for (int r = 0; r < kTileRows; ++r) {
      ordered[r] =
          static_cast<int64_t>(static_cast<uint64_t>(block.sums[i][ScaleSlotOfRow(r)]) - rounders);
    }
    StoreSums(args, tile, row, ordered, block.poison[i]);
  } else {
    float ordered[kTileRows];
    for (int r = 0; r < kTileRows; ++r) ordered[r] = block.acc[i][ScaleSlotOfRow(r)];
    StoreValues(args, tile, row, ordered);
  }
}

template <typename Dot>
void RunTiles(const LinearArgs& args, int64_t tile_begin, int64_t tile_end) {
  Block block;
  Plan plan;
  const auto begin = [&args] { return StripWalk(args, true, Dot::kMaxRuns * kLaneCols); };
  StripWalk first = begin();
  MakePlan(first, plan);
  const bool whole = plan.chunks == 0 || plan.chunk[plan.chunks - 1].last;
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    unsigned real = 0;
    for (int r = 0; r < RowsOfTile(args, tile); ++r) real |= 1u << ScaleSlotOfRow(r);
    for (int64_t row = 0; row < args.m; row += kRowBlock) {
      const int rows = static_cast<int>(args.m - row < kRowBlock ? args.m - row : kRowBlock);
      std::memset(block.acc, 0, rows * sizeof(block.acc[0]));
      std::memset(block.sums, 0, rows * sizeof(block.sums[0]));
      std::memset(block.poison, 0, rows * sizeof(block.poison[0]));
      const auto run_plan = [&] {
        for (int c = 0; c < plan.chunks; ++c)
          RunChunk<Dot>(args, plan.chunk[c], plan.cell_runs[c], tile, row, rows, real, block);
      };
      if (whole) {
        run_plan();
      } else {
        for (StripWalk walk = begin(); MakePlan(walk, plan);) run_plan();
      }
      for (int i = 0; i < rows; ++i) StoreRow(args, tile, row + i, i, block);
    }
  }
}

}  // namespace
}  // namespace bitshard
