// y = W x in mode a16 for 4- and 8-bit codes on AVX-512 VNNI: u8 codes x s8 terms (hi, lo), int32
// cells, f32 per cell.
//
// A vector of codes holds 4 rows x 4 lanes t x 4 bytes; vpdpbusd sums the bytes, a transposing
// addition sums the t and leaves the 16 rows in the order of the scale plane. 256 hi + lo needs one
// shift between the two passes. The codes of a cell stay in registers for all rows of x of a block.
#include <cstdint>

#include "kernels/cpu/isa_region.h"
#include "kernels/cpu/linear_cells.h"
#include "kernels/cpu/linear_store.h"

namespace bitshard {
namespace {

constexpr int kRowBlock = 8;

struct alignas(64) Block {
  float acc[kRowBlock][kTileRows];  // of the running segment, slot order
  int64_t sums[kRowBlock][kTileRows];
  int64_t poison[kRowBlock];
  float values[kTileRows];  // row order
  int64_t ordered[kTileRows];
};

ISA_BEGIN_AVX512VNNI

// Codes of one run of 16 columns: rows 0-3, 4-7, 8-11, 12-15.
template <int kBits>
ISA_INLINE void LoadRun(const uint8_t* tile, int64_t run, __m512i codes[4]) {
  const uint8_t* word = tile + (run >> 2) * (128 * kBits) + (run & 3) * 128;
  if (kBits == 4) {
    PrefetchWeights(word);
    const __m512i nibble = _mm512_set1_epi8(15);
    const __m512i a = _mm512_loadu_si512(word), b = _mm512_loadu_si512(word + 64);
    codes[0] = _mm512_and_si512(a, nibble);
    codes[1] = _mm512_and_si512(b, nibble);
    codes[2] = _mm512_and_si512(_mm512_srli_epi16(a, 4), nibble);
    codes[3] = _mm512_and_si512(_mm512_srli_epi16(b, 4), nibble);
  } else {
    PrefetchByteTile(word);
    codes[0] = _mm512_loadu_si512(word);
    codes[1] = _mm512_loadu_si512(word + 64);
    codes[2] = _mm512_loadu_si512(word + 512);
    codes[3] = _mm512_loadu_si512(word + 512 + 64);
  }
}

template <int kRuns>
ISA_INLINE void AddProducts(const int8_t* terms, const __m512i codes[kRuns][4], __m512i dot[4]) {
  ISA_UNROLL
  for (int j = 0; j < kRuns; ++j) {
    const __m512i x =
        _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(terms + 16 * j)));
    ISA_UNROLL
    for (int i = 0; i < 4; ++i) dot[i] = _mm512_dpbusd_epi32(dot[i], codes[j][i], x);
  }
}

template <int kBits, int kRuns>
ISA_INLINE void RunCell(const LinearArgs& args, const uint8_t* tile, const uint16_t* scales,
                        const Cell& cell, int64_t row, int rows, Block& block) {
  __m512i codes[kRuns][4];
  ISA_UNROLL
  for (int j = 0; j < kRuns; ++j) LoadRun<kBits>(tile, cell.run + j, codes[j]);
  const uint16_t* plane = scales + cell.group * (args.has_min ? 32 : 16);
  const __m512 s_w = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(plane)));
  __m512 min = _mm512_setzero_ps();
  if (args.has_min)
    min = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(plane + 16)));
  for (int i = 0; i < rows; ++i) {
    const int64_t at = (row + i) * args.padded_cols + cell.run * 16;
    __m512i dot[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(),
                      _mm512_setzero_si512()};
    AddProducts<kRuns>(args.hi + at, codes, dot);
    ISA_UNROLL
    for (int v = 0; v < 4; ++v) dot[v] = _mm512_slli_epi32(dot[v], 8);
    AddProducts<kRuns>(args.lo + at, codes, dot);
    const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(dot[0], dot[1]),
                                        _mm512_unpackhi_epi32(dot[0], dot[1]));
    const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(dot[2], dot[3]),
                                        _mm512_unpackhi_epi32(dot[2], dot[3]));
    __m512i sum = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    const int32_t* run_sums = args.run_sums + (row + i) * (args.padded_cols / 16) + cell.run;
    int32_t q_sum = run_sums[0];
    for (int j = 1; j < kRuns; ++j) q_sum += run_sums[j];
    if (args.zero_point != 0)
      sum = _mm512_sub_epi32(sum, _mm512_set1_epi32(args.zero_point * q_sum));
    const float s_a = args.act_scales[(row + i) * args.act_groups + cell.act_group];
    __m512 acc = _mm512_load_ps(block.acc[i]);
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(s_w, _mm512_set1_ps(s_a)), acc);
    if (args.has_min)
      acc = _mm512_fmadd_ps(min, _mm512_set1_ps(s_a * static_cast<float>(q_sum)), acc);
    _mm512_store_ps(block.acc[i], acc);
  }
}

// Adds the segment's values to the fixed-point sums; `real` has the slots of existing rows.
ISA_INLINE void CloseSegment(const LinearArgs& args, __mmask16 real, int rows, Block& block) {
  const __m512 limit = _mm512_set1_ps(args.limit);
  const __m512d unit = _mm512_set1_pd(0x1p32);
  for (int i = 0; i < rows; ++i) {
    const __m512 v = _mm512_load_ps(block.acc[i]);
    const __mmask16 good = _mm512_cmp_ps_mask(_mm512_abs_ps(v), limit, _CMP_LT_OQ);
    const __m512 kept = _mm512_maskz_mov_ps(good, v);
    const __m512i low =
        _mm512_cvtpd_epi64(_mm512_mul_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(kept)), unit));
    const __m512i high =
        _mm512_cvtpd_epi64(_mm512_mul_pd(_mm512_cvtps_pd(_mm512_extractf32x8_ps(kept, 1)), unit));
    _mm512_store_si512(block.sums[i], _mm512_add_epi64(_mm512_load_si512(block.sums[i]), low));
    _mm512_store_si512(block.sums[i] + 8,
                       _mm512_add_epi64(_mm512_load_si512(block.sums[i] + 8), high));
    block.poison[i] +=
        __builtin_popcount(static_cast<unsigned>(real & static_cast<__mmask16>(~good)));
  }
}

template <int kBits>
void RunTile(const LinearArgs& args, int64_t tile, int64_t row, int rows, __mmask16 real,
             Block& block) {
  const uint8_t* codes = args.codes + tile * args.tile_bytes;
  const uint16_t* scales = args.scales + tile * args.scale_stride;
  const __m512i zero = _mm512_setzero_si512();
  for (int i = 0; i < rows; ++i) {
    block.poison[i] = 0;
    _mm512_store_si512(block.sums[i], zero);
    _mm512_store_si512(block.sums[i] + 8, zero);
    _mm512_store_ps(block.acc[i], _mm512_setzero_ps());
  }
  for (int64_t segment = 0; segment < args.segments; ++segment) {
    const int64_t begin = SegmentBeginRun(args, segment), end = SegmentEndRun(args, segment);
    for (int i = 0; i < rows; ++i) _mm512_store_ps(block.acc[i], _mm512_setzero_ps());
    for (int64_t run = begin; run < end;) {
      const Cell cell = CellAt(args, segment, begin, end, run);
      run += cell.runs;
      switch (cell.runs) {
        case 1:
          RunCell<kBits, 1>(args, codes, scales, cell, row, rows, block);
          break;
        case 2:
          RunCell<kBits, 2>(args, codes, scales, cell, row, rows, block);
          break;
        case 3:
          RunCell<kBits, 3>(args, codes, scales, cell, row, rows, block);
          break;
        default:
          RunCell<kBits, 4>(args, codes, scales, cell, row, rows, block);
          break;
      }
    }
    if (args.sums != nullptr) CloseSegment(args, real, rows, block);
  }
}

ISA_END

template <int kBits>
void Run(const LinearArgs& args, int64_t tile_begin, int64_t tile_end) {
  Block block;
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    unsigned real = 0;
    for (int r = 0; r < RowsOfTile(args, tile); ++r) real |= 1u << ScaleSlotOfRow(r);
    for (int64_t row = 0; row < args.m; row += kRowBlock) {
      const int rows = static_cast<int>(args.m - row < kRowBlock ? args.m - row : kRowBlock);
      RunTile<kBits>(args, tile, row, rows, static_cast<uint16_t>(real), block);
      for (int i = 0; i < rows; ++i) {
        if (args.sums != nullptr) {
          for (int r = 0; r < kTileRows; ++r) block.ordered[r] = block.sums[i][ScaleSlotOfRow(r)];
          StoreSums(args, tile, row + i, block.ordered, block.poison[i]);
        } else {
          for (int r = 0; r < kTileRows; ++r) block.values[r] = block.acc[i][ScaleSlotOfRow(r)];
          StoreValues(args, tile, row + i, block.values);
        }
      }
    }
  }
}

template <int kBits>
std::string Refuses(const LinearKey& key) {
  if (key.weight->bits != kBits)
    return "codes are " + std::to_string(key.weight->bits) + " bits wide";
  return RefusesUnalignedRuns(key);
}

const RegisterKernel<LinearKernel> kW4({.name = "cpu/linear_w4_a16_avx512vnni",
                                        .isa = Isa::kAvx512Vnni,
                                        .cost = 100,
                                        .form = kFormA16,
                                        .refuses = &Refuses<4>,
                                        .run = &Run<4>});
const RegisterKernel<LinearKernel> kW8({.name = "cpu/linear_w8_a16_avx512vnni",
                                        .isa = Isa::kAvx512Vnni,
                                        .cost = 100,
                                        .form = kFormA16,
                                        .refuses = &Refuses<8>,
                                        .run = &Run<8>});

}  // namespace
}  // namespace bitshard
