// y = W x in mode a16 for 4- and 8-bit codes on AVX2: vpmaddwd on 16-bit codes and 16-bit q gives
// the same integers as two terms of 8 bits (vpmaddubsw would saturate at 8-bit codes).
//
// A vector of 32 packed bytes holds 2 rows x 4 lanes t x 4 bytes; its even and its odd bytes become
// 16-bit codes by a mask and a shift. The rows are taken in the order in which the transposing
// addition gives the order of the scale plane.
#include <cstdint>

#include "kernels/cpu/isa_region.h"
#include "kernels/cpu/linear_cells.h"
#include "kernels/cpu/linear_store.h"

namespace bitshard {
namespace {

constexpr int kRowBlock = 8;

struct alignas(32) Block {
  float acc[kRowBlock][kTileRows];     // of the running segment, slot order
  float values[kTileRows];             // row order
  int64_t sums[kRowBlock][kTileRows];  // row order
  int64_t poison[kRowBlock];
};

ISA_BEGIN_AVX2

// Adds code * q of two vectors of 16-bit codes (even and odd bytes) to 2 rows x 4 t of int32.
ISA_INLINE __m256i AddPair(__m256i dot, __m256i even, __m256i odd, __m256i q_even, __m256i q_odd) {
  dot = _mm256_add_epi32(dot, _mm256_madd_epi16(even, q_even));
  return _mm256_add_epi32(dot, _mm256_madd_epi16(odd, q_odd));
}

// dot[0..3]: rows (a, a+1), (a+4, a+5), (a+8, a+9), (a+12, a+13) where a = 2 * half.
template <int kBits>
ISA_INLINE void AddRun(const uint8_t* tile, int64_t run, int half, __m256i q_even, __m256i q_odd,
                       __m256i dot[4]) {
  const __m256i byte = _mm256_set1_epi16(255);
  const uint8_t* word = tile + (run >> 2) * (128 * kBits) + (run & 3) * 128 + half * 32;
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(word));  // rows a, a+1
  const __m256i b =
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(word + 64));  // rows a+4, a+5
  if (kBits == 4) {
    if (half == 0) PrefetchWeights(word);
    const __m256i nibble = _mm256_set1_epi16(15);
    dot[0] = AddPair(dot[0], _mm256_and_si256(a, nibble),
                     _mm256_and_si256(_mm256_srli_epi16(a, 8), nibble), q_even, q_odd);
    dot[1] = AddPair(dot[1], _mm256_and_si256(b, nibble),
                     _mm256_and_si256(_mm256_srli_epi16(b, 8), nibble), q_even, q_odd);
    dot[2] = AddPair(dot[2], _mm256_and_si256(_mm256_srli_epi16(a, 4), nibble),
                     _mm256_srli_epi16(a, 12), q_even, q_odd);
    dot[3] = AddPair(dot[3], _mm256_and_si256(_mm256_srli_epi16(b, 4), nibble),
                     _mm256_srli_epi16(b, 12), q_even, q_odd);
  } else {
    if (half == 0) PrefetchByteTile(word);
    const __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(word + 512));
    const __m256i d = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(word + 512 + 64));
    dot[0] = AddPair(dot[0], _mm256_and_si256(a, byte), _mm256_srli_epi16(a, 8), q_even, q_odd);
    dot[1] = AddPair(dot[1], _mm256_and_si256(b, byte), _mm256_srli_epi16(b, 8), q_even, q_odd);
    dot[2] = AddPair(dot[2], _mm256_and_si256(c, byte), _mm256_srli_epi16(c, 8), q_even, q_odd);
    dot[3] = AddPair(dot[3], _mm256_and_si256(d, byte), _mm256_srli_epi16(d, 8), q_even, q_odd);
  }
}

// The q of one run, in the order of even and odd bytes, for both rows of a vector.
ISA_INLINE void SplitQ(const int16_t* q, __m256i* even, __m256i* odd) {
  const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q));
  // 32-bit elements hold (even, odd); gather the halves of each 128-bit lane, then of both.
  const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,  //
                                         0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
  const __m256i halves = _mm256_shuffle_epi8(v, order);  // [e0-3 o0-3 | e4-7 o4-7]
  *even = _mm256_permute4x64_epi64(halves, 0x88);        // [e0-3 e4-7] twice
  *odd = _mm256_permute4x64_epi64(halves, 0xdd);
}

template <int kBits>
ISA_INLINE void RunCell(const LinearArgs& args, const uint8_t* tile, const uint16_t* scales,
                        const Cell& cell, int64_t row, int rows, Block& block) {
  const uint16_t* plane = scales + cell.group * (args.has_min ? 32 : 16);
  for (int i = 0; i < rows; ++i) {
    const int16_t* q = args.q + (row + i) * args.padded_cols;
    const int32_t* run_sums = args.run_sums + (row + i) * (args.padded_cols / 16);
    __m256i dot[2][4];
    ISA_UNROLL
    for (int half = 0; half < 2; ++half) {
      ISA_UNROLL
      for (int v = 0; v < 4; ++v) dot[half][v] = _mm256_setzero_si256();
    }
    int32_t q_sum = 0;
    for (int64_t run = cell.run; run < cell.run + cell.runs; ++run) {
      __m256i q_even, q_odd;
      SplitQ(q + run * 16, &q_even, &q_odd);
      AddRun<kBits>(tile, run, 0, q_even, q_odd, dot[0]);
      AddRun<kBits>(tile, run, 1, q_even, q_odd, dot[1]);
      q_sum += run_sums[run];
    }
    const float s_a = args.act_scales[(row + i) * args.act_groups + cell.act_group];
    const __m256 s_a_vector = _mm256_set1_ps(s_a);
    const __m256 min_factor = _mm256_set1_ps(s_a * static_cast<float>(q_sum));
    const __m256i zero_part = _mm256_set1_epi32(args.zero_point * q_sum);
    ISA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const __m256i* d = dot[half];
      const __m256i ab =
          _mm256_add_epi32(_mm256_unpacklo_epi32(d[0], d[1]), _mm256_unpackhi_epi32(d[0], d[1]));
      const __m256i cd =
          _mm256_add_epi32(_mm256_unpacklo_epi32(d[2], d[3]), _mm256_unpackhi_epi32(d[2], d[3]));
      const __m256i sum = _mm256_sub_epi32(
          _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd)),
          zero_part);
      const __m256 s_w =
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(plane + 8 * half)));
      __m256 acc = _mm256_load_ps(block.acc[i] + 8 * half);
      acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(s_w, s_a_vector), acc);
      if (args.has_min) {
        const __m256 min = _mm256_cvtph_ps(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(plane + 16 + 8 * half)));
        acc = _mm256_fmadd_ps(min, min_factor, acc);
      }
      _mm256_store_ps(block.acc[i] + 8 * half, acc);
    }
  }
}

template <int kBits>
void RunSegment(const LinearArgs& args, int64_t tile, int64_t segment, int64_t row, int rows,
                Block& block) {
  const uint8_t* codes = args.codes + tile * args.tile_bytes;
  const uint16_t* scales = args.scales + tile * args.scale_stride;
  const int64_t begin = SegmentBeginRun(args, segment), end = SegmentEndRun(args, segment);
  for (int i = 0; i < rows; ++i) {
    _mm256_store_ps(block.acc[i], _mm256_setzero_ps());
    _mm256_store_ps(block.acc[i] + 8, _mm256_setzero_ps());
  }
  for (int64_t run = begin; run < end;) {
    const Cell cell = CellAt(args, segment, begin, end, run);
    run += cell.runs;
    RunCell<kBits>(args, codes, scales, cell, row, rows, block);
  }
}

ISA_END

template <int kBits>
void Run(const LinearArgs& args, int64_t tile_begin, int64_t tile_end) {
  Block block;
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const int tile_rows = RowsOfTile(args, tile);
    for (int64_t row = 0; row < args.m; row += kRowBlock) {
      const int rows = static_cast<int>(args.m - row < kRowBlock ? args.m - row : kRowBlock);
      for (int i = 0; i < rows; ++i) {
        block.poison[i] = 0;
        for (int r = 0; r < kTileRows; ++r) block.sums[i][r] = 0, block.acc[i][r] = 0;
      }
      for (int64_t segment = 0; segment < args.segments; ++segment) {
        RunSegment<kBits>(args, tile, segment, row, rows, block);
        if (args.sums == nullptr) continue;  // one segment
        for (int i = 0; i < rows; ++i) {
          for (int r = 0; r < kTileRows; ++r) block.values[r] = block.acc[i][ScaleSlotOfRow(r)];
          block.poison[i] += AddSegmentScalar(block.values, tile_rows, args.limit, block.sums[i]);
        }
      }
      for (int i = 0; i < rows; ++i) {
        if (args.sums != nullptr) {
          StoreSums(args, tile, row + i, block.sums[i], block.poison[i]);
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

const RegisterKernel<LinearKernel> kW4({.name = "cpu/linear_w4_a16_avx2",
                                        .isa = Isa::kAvx2,
                                        .cost = 200,
                                        .form = kFormA16,
                                        .refuses = &Refuses<4>,
                                        .run = &Run<4>});
const RegisterKernel<LinearKernel> kW8({.name = "cpu/linear_w8_a16_avx2",
                                        .isa = Isa::kAvx2,
                                        .cost = 200,
                                        .form = kFormA16,
                                        .refuses = &Refuses<8>,
                                        .run = &Run<8>});

}  // namespace
}  // namespace bitshard
