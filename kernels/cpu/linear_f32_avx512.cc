// y = W x in mode f32 on AVX-512: dense f32, f16, bf16 and 4- and 8-bit codes. The 16 virtual lanes
// of an output are one vector, columns in lane order; the tree is four shuffles in the order (l+8,
// l+4, l+2, l+1).
//
// One row of x: 16 accumulators, values decoded on the fly. More rows: values of some runs are
// decoded into a buffer in L1 and reused by 4 rows of x at a time. Both do the same operations on
// every lane.
#include <cstdint>

#include "kernels/cpu/isa_region.h"
#include "kernels/cpu/linear_cells.h"
#include "kernels/cpu/linear_store.h"

namespace bitshard {
namespace {

constexpr int kRowBlock = 4;
constexpr int kBufferRuns = 8;

enum class Kind { kF32, kF16, kBf16, kW4, kW8 };

struct alignas(64) Block {
  float acc[kRowBlock][kTileRows][kLaneCols];
  float decoded[kBufferRuns][kTileRows][kLaneCols];
  float scale[kTileRows], min[kTileRows];  // of the group at hand, slot order
  float values[kRowBlock][kTileRows];
  int64_t sums[kRowBlock][kTileRows];
  int64_t poison[kRowBlock];
};

// Where a tile's bytes are, and the group whose scales are in the block.
struct TileView {
  const uint8_t* codes;
  const uint16_t* scales;
  int64_t group;  // -1: none
};

ISA_BEGIN_AVX512VNNI

ISA_INLINE void LoadGroup(const LinearArgs& args, int64_t group, TileView& view, Block& block) {
  const uint16_t* plane = view.scales + group * (args.has_min ? 32 : 16);
  _mm512_store_ps(block.scale,
                  _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(plane))));
  if (args.has_min) {
    _mm512_store_ps(
        block.min,
        _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(plane + 16))));
  }
  view.group = group;
}

ISA_INLINE __m512 Dequantize(const LinearArgs& args, __m128i codes, int row, const Block& block) {
  const __m512i centred =
      _mm512_sub_epi32(_mm512_cvtepu8_epi32(codes), _mm512_set1_epi32(args.zero_point));
  const int slot = 4 * (row & 3) + (row >> 2);
  const __m512 scale = _mm512_set1_ps(block.scale[slot]);
  if (!args.has_min) return _mm512_mul_ps(_mm512_cvtepi32_ps(centred), scale);
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(centred), scale, _mm512_set1_ps(block.min[slot]));
}

// The 16 rows of one run of 16 columns.
template <Kind kKind>
ISA_INLINE void DecodeRun(const LinearArgs& args, TileView& view, int64_t run, Block& block,
                          __m512 w[kTileRows]) {
  if (kKind == Kind::kW4 || kKind == Kind::kW8) {
    const int64_t group = (run * 16 + args.first_group_offset) / args.group_size;
    if (group != view.group) LoadGroup(args, group, view, block);
  }
  if (kKind == Kind::kW4) {
    const uint8_t* word = view.codes + (run >> 2) * 512 + (run & 3) * 128;
    const __m128i nibble = _mm_set1_epi8(15);
    ISA_UNROLL
    for (int g = 0; g < 8; ++g) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(word + 16 * g));
      w[g] = Dequantize(args, _mm_and_si128(bytes, nibble), g, block);
      w[g + 8] = Dequantize(args, _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble), g + 8, block);
    }
  } else if (kKind == Kind::kW8) {
    const uint8_t* word = view.codes + (run >> 2) * 1024 + (run & 3) * 128;
    PrefetchByteTile(word);
    ISA_UNROLL
    for (int r = 0; r < kTileRows; ++r) {
      const uint8_t* bytes = word + (r >> 3) * 512 + (r & 7) * 16;
      w[r] = Dequantize(args, _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)), r, block);
    }
  } else if (kKind == Kind::kF32) {
    const float* values = reinterpret_cast<const float*>(view.codes) + run * 256;
    ISA_UNROLL
    for (int r = 0; r < kTileRows; ++r) w[r] = _mm512_loadu_ps(values + 16 * r);
  } else {
    const uint16_t* values = reinterpret_cast<const uint16_t*>(view.codes) + run * 256;
    ISA_UNROLL
    for (int r = 0; r < kTileRows; ++r) {
      const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + 16 * r));
      w[r] = kKind == Kind::kF16
                 ? _mm512_cvtph_ps(bits)
                 : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
    }
  }
}

// Lanes l + 8, l + 4, l + 2, l + 1 of the columns lie 1, 8, 4, 2 places apart in lane order.
ISA_INLINE float SumLanes(__m512 v) {
  v = _mm512_add_ps(v, _mm512_permute_ps(v, 0xb1));
  v = _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, 0x4e));
  v = _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, 0xb1));
  v = _mm512_add_ps(v, _mm512_permute_ps(v, 0x4e));
  return _mm512_cvtss_f32(v);
}

template <Kind kKind>
ISA_INLINE void SegmentOfOneRow(const LinearArgs& args, TileView& view, int64_t begin, int64_t end,
                                const float* x, Block& block) {
  __m512 acc[kTileRows];
  ISA_UNROLL
  for (int r = 0; r < kTileRows; ++r) acc[r] = _mm512_setzero_ps();
  for (int64_t run = begin; run < end; ++run) {
    __m512 w[kTileRows];
    DecodeRun<kKind>(args, view, run, block, w);
    const __m512 xv = _mm512_loadu_ps(x + 16 * run);
    ISA_UNROLL
    for (int r = 0; r < kTileRows; ++r) acc[r] = _mm512_fmadd_ps(w[r], xv, acc[r]);
  }
  ISA_UNROLL
  for (int r = 0; r < kTileRows; ++r) block.values[0][r] = SumLanes(acc[r]);
}

// Adds runs [0, runs) of the buffer for kRows rows of x.
template <int kRows>
ISA_INLINE void AddBuffer(const float* x, int64_t stride, int runs, Block& block) {
  ISA_UNROLL
  for (int r = 0; r < kTileRows; r += 4) {
    __m512 acc[kRows][4];
    ISA_UNROLL
    for (int i = 0; i < kRows; ++i) {
      ISA_UNROLL
      for (int c = 0; c < 4; ++c) acc[i][c] = _mm512_load_ps(block.acc[i][r + c]);
    }
    for (int run = 0; run < runs; ++run) {
      __m512 w[4];
      ISA_UNROLL
      for (int c = 0; c < 4; ++c) w[c] = _mm512_load_ps(block.decoded[run][r + c]);
      ISA_UNROLL
      for (int i = 0; i < kRows; ++i) {
        const __m512 xv = _mm512_loadu_ps(x + i * stride + 16 * run);
        ISA_UNROLL
        for (int c = 0; c < 4; ++c) acc[i][c] = _mm512_fmadd_ps(w[c], xv, acc[i][c]);
      }
    }
    ISA_UNROLL
    for (int i = 0; i < kRows; ++i) {
      ISA_UNROLL
      for (int c = 0; c < 4; ++c) _mm512_store_ps(block.acc[i][r + c], acc[i][c]);
    }
  }
}

template <Kind kKind>
void RunSegment(const LinearArgs& args, TileView& view, int64_t begin, int64_t end, int64_t row,
                int rows, Block& block) {
  const float* x = args.x + row * args.padded_cols;
  if (rows == 1) {
    SegmentOfOneRow<kKind>(args, view, begin, end, x, block);
    return;
  }
  for (int i = 0; i < rows; ++i) {
    ISA_UNROLL
    for (int r = 0; r < kTileRows; ++r) _mm512_store_ps(block.acc[i][r], _mm512_setzero_ps());
  }
  for (int64_t run = begin; run < end; run += kBufferRuns) {
    const int runs = static_cast<int>(end - run < kBufferRuns ? end - run : kBufferRuns);
    for (int b = 0; b < runs; ++b) {
      __m512 w[kTileRows];
      DecodeRun<kKind>(args, view, run + b, block, w);
      ISA_UNROLL
      for (int r = 0; r < kTileRows; ++r) _mm512_store_ps(block.decoded[b][r], w[r]);
    }
    switch (rows) {
      case 2:
        AddBuffer<2>(x + 16 * run, args.padded_cols, runs, block);
        break;
      case 3:
        AddBuffer<3>(x + 16 * run, args.padded_cols, runs, block);
        break;
      default:
        AddBuffer<4>(x + 16 * run, args.padded_cols, runs, block);
        break;
    }
  }
  for (int i = 0; i < rows; ++i) {
    ISA_UNROLL
    for (int r = 0; r < kTileRows; ++r)
      block.values[i][r] = SumLanes(_mm512_load_ps(block.acc[i][r]));
  }
}

ISA_END

template <Kind kKind>
void Run(const LinearArgs& args, int64_t tile_begin, int64_t tile_end) {
  Block block;
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const int tile_rows = RowsOfTile(args, tile);
    TileView view{args.codes + tile * args.tile_bytes, args.scales + tile * args.scale_stride, -1};
    for (int64_t row = 0; row < args.m; row += kRowBlock) {
      const int rows = static_cast<int>(args.m - row < kRowBlock ? args.m - row : kRowBlock);
      for (int i = 0; i < rows; ++i) {
        block.poison[i] = 0;
        for (int r = 0; r < kTileRows; ++r) block.sums[i][r] = 0, block.values[i][r] = 0;
      }
      for (int64_t segment = 0; segment < args.segments; ++segment) {
        RunSegment<kKind>(args, view, SegmentBeginRun(args, segment), SegmentEndRun(args, segment),
                          row, rows, block);
        if (args.sums == nullptr) continue;  // one segment
        for (int i = 0; i < rows; ++i) {
          block.poison[i] +=
              AddSegmentScalar(block.values[i], tile_rows, args.limit, block.sums[i]);
        }
      }
      for (int i = 0; i < rows; ++i) {
        if (args.sums != nullptr) {
          StoreSums(args, tile, row + i, block.sums[i], block.poison[i]);
        } else {
          StoreValues(args, tile, row + i, block.values[i]);
        }
      }
    }
  }
}

template <PackedSpec::Type kType>
std::string RefusesType(const LinearKey& key) {
  if (key.weight->type != kType) return "the weight is " + key.weight->Describe();
  return RefusesUnalignedRuns(key);
}

template <int kBits>
std::string RefusesInt(const LinearKey& key) {
  if (key.weight->type != PackedSpec::Type::kInt || key.weight->bits != kBits) {
    return "the weight is " + key.weight->Describe();
  }
  return RefusesUnalignedRuns(key);
}

constexpr LinearKernel Kernel(const char* name, std::string (*refuses)(const LinearKey&),
                              void (*run)(const LinearArgs&, int64_t, int64_t)) {
  return {.name = name,
          .isa = Isa::kAvx512Vnni,
          .cost = 100,
          .form = kFormF32,
          .refuses = refuses,
          .run = run};
}

const RegisterKernel<LinearKernel> kF32(Kernel("cpu/linear_f32_f32_avx512",
                                               &RefusesType<PackedSpec::Type::kF32>,
                                               &Run<Kind::kF32>));
const RegisterKernel<LinearKernel> kF16(Kernel("cpu/linear_f16_f32_avx512",
                                               &RefusesType<PackedSpec::Type::kF16>,
                                               &Run<Kind::kF16>));
const RegisterKernel<LinearKernel> kBf16(Kernel("cpu/linear_bf16_f32_avx512",
                                                &RefusesType<PackedSpec::Type::kBf16>,
                                                &Run<Kind::kBf16>));
const RegisterKernel<LinearKernel> kW4(Kernel("cpu/linear_w4_f32_avx512", &RefusesInt<4>,
                                              &Run<Kind::kW4>));
const RegisterKernel<LinearKernel> kW8(Kernel("cpu/linear_w8_f32_avx512", &RefusesInt<8>,
                                              &Run<Kind::kW8>));

}  // namespace
}  // namespace bitshard
