// y = W x in mode f32 on AVX2: dense f32, f16, bf16 and 4- and 8-bit codes. The 16 virtual lanes of
// an output are two vectors, columns in lane order; the tree is the same as everywhere (l+8, l+4,
// l+2, l+1).
//
// Values of some runs are decoded into a buffer in L1 and reused by 2 rows of x.
#include <cstdint>

#include "kernels/cpu/isa_region.h"
#include "kernels/cpu/linear_cells.h"
#include "kernels/cpu/linear_store.h"

namespace bitshard {
namespace {

constexpr int kRowBlock = 2;
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

ISA_BEGIN_AVX2

// 16 lanes of f32.
struct Lanes {
  __m256 low, high;
};

ISA_INLINE Lanes LoadLanes(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
ISA_INLINE void StoreLanes(float* p, Lanes v) {
  _mm256_storeu_ps(p, v.low);
  _mm256_storeu_ps(p + 8, v.high);
}
ISA_INLINE Lanes Fma(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}

ISA_INLINE void LoadGroup(const LinearArgs& args, int64_t group, TileView& view, Block& block) {
  const uint16_t* plane = view.scales + group * (args.has_min ? 32 : 16);
  ISA_UNROLL
  for (int i = 0; i < 16; i += 8) {
    _mm256_store_ps(block.scale + i,
                    _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(plane + i))));
    if (!args.has_min) continue;
    _mm256_store_ps(
        block.min + i,
        _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(plane + 16 + i))));
  }
  view.group = group;
}

ISA_INLINE __m256 DequantizeHalf(const LinearArgs& args, __m128i codes, int slot,
                                 const Block& block) {
  const __m256i centred =
      _mm256_sub_epi32(_mm256_cvtepu8_epi32(codes), _mm256_set1_epi32(args.zero_point));
  const __m256 scale = _mm256_set1_ps(block.scale[slot]);
  if (!args.has_min) return _mm256_mul_ps(_mm256_cvtepi32_ps(centred), scale);
  return _mm256_fmadd_ps(_mm256_cvtepi32_ps(centred), scale, _mm256_set1_ps(block.min[slot]));
}

ISA_INLINE Lanes Dequantize(const LinearArgs& args, __m128i codes, int row, const Block& block) {
  const int slot = 4 * (row & 3) + (row >> 2);
  return {DequantizeHalf(args, codes, slot, block),
          DequantizeHalf(args, _mm_srli_si128(codes, 8), slot, block)};
}

template <Kind kKind>
ISA_INLINE __m256 Widen(__m128i bits) {
  return kKind == Kind::kF16
             ? _mm256_cvtph_ps(bits)
             : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

// One row of one run of 16 columns. LoadGroup must have been called for the run's group.
template <Kind kKind>
ISA_INLINE Lanes DecodeRow(const LinearArgs& args, const TileView& view, int64_t run, int r,
                           const Block& block) {
  if (kKind == Kind::kW4) {
    const uint8_t* word = view.codes + (run >> 2) * 512 + (run & 3) * 128 + (r & 7) * 16;
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(word));
    const __m128i shifted = r < 8 ? bytes : _mm_srli_epi16(bytes, 4);
    return Dequantize(args, _mm_and_si128(shifted, _mm_set1_epi8(15)), r, block);
  }
  if (kKind == Kind::kW8) {
    const uint8_t* word =
        view.codes + (run >> 2) * 1024 + (run & 3) * 128 + (r >> 3) * 512 + (r & 7) * 16;
    return Dequantize(args, _mm_loadu_si128(reinterpret_cast<const __m128i*>(word)), r, block);
  }
  if (kKind == Kind::kF32)
    return LoadLanes(reinterpret_cast<const float*>(view.codes) + run * 256 + 16 * r);
  const uint16_t* values = reinterpret_cast<const uint16_t*>(view.codes) + run * 256 + 16 * r;
  return {Widen<kKind>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values))),
          Widen<kKind>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values + 8)))};
}

template <Kind kKind>
ISA_INLINE void BeginRun(const LinearArgs& args, int64_t run, TileView& view, Block& block) {
  if (kKind == Kind::kW8) PrefetchByteTile(view.codes + (run >> 2) * 1024 + (run & 3) * 128);
  if (kKind != Kind::kW4 && kKind != Kind::kW8) return;
  const int64_t group = (run * 16 + args.first_group_offset) / args.group_size;
  if (group != view.group) LoadGroup(args, group, view, block);
}

// Lanes l + 8, l + 4, l + 2, l + 1 of the columns lie 1, 8, 4, 2 places apart in lane order.
ISA_INLINE float SumLanes(Lanes v) {
  v.low = _mm256_add_ps(v.low, _mm256_permute_ps(v.low, 0xb1));
  v.high = _mm256_add_ps(v.high, _mm256_permute_ps(v.high, 0xb1));
  __m256 s = _mm256_add_ps(v.low, v.high);
  s = _mm256_add_ps(s, _mm256_permute2f128_ps(s, s, 1));
  s = _mm256_add_ps(s, _mm256_permute_ps(s, 0x4e));
  return _mm256_cvtss_f32(s);
}

// Adds runs [0, runs) of the buffer for kRows rows of x.
template <int kRows>
ISA_INLINE void AddBuffer(const float* x, int64_t stride, int runs, Block& block) {
  ISA_UNROLL
  for (int r = 0; r < kTileRows; r += 2) {
    Lanes acc[kRows][2];
    ISA_UNROLL
    for (int i = 0; i < kRows; ++i) {
      ISA_UNROLL
      for (int c = 0; c < 2; ++c) acc[i][c] = LoadLanes(block.acc[i][r + c]);
    }
    for (int run = 0; run < runs; ++run) {
      const Lanes w[2] = {LoadLanes(block.decoded[run][r]), LoadLanes(block.decoded[run][r + 1])};
      ISA_UNROLL
      for (int i = 0; i < kRows; ++i) {
        const Lanes xv = LoadLanes(x + i * stride + 16 * run);
        ISA_UNROLL
        for (int c = 0; c < 2; ++c) acc[i][c] = Fma(w[c], xv, acc[i][c]);
      }
    }
    ISA_UNROLL
    for (int i = 0; i < kRows; ++i) {
      ISA_UNROLL
      for (int c = 0; c < 2; ++c) StoreLanes(block.acc[i][r + c], acc[i][c]);
    }
  }
}

template <Kind kKind>
void RunSegment(const LinearArgs& args, TileView& view, int64_t begin, int64_t end, int64_t row,
                int rows, Block& block) {
  const float* x = args.x + row * args.padded_cols;
  for (int i = 0; i < rows; ++i) {
    ISA_UNROLL
    for (int r = 0; r < kTileRows; ++r)
      StoreLanes(block.acc[i][r], {_mm256_setzero_ps(), _mm256_setzero_ps()});
  }
  for (int64_t run = begin; run < end; run += kBufferRuns) {
    const int runs = static_cast<int>(end - run < kBufferRuns ? end - run : kBufferRuns);
    for (int b = 0; b < runs; ++b) {
      BeginRun<kKind>(args, run + b, view, block);
      ISA_UNROLL
      for (int r = 0; r < kTileRows; ++r) {
        StoreLanes(block.decoded[b][r], DecodeRow<kKind>(args, view, run + b, r, block));
      }
    }
    if (rows == 1) {
      AddBuffer<1>(x + 16 * run, args.padded_cols, runs, block);
    } else {
      AddBuffer<2>(x + 16 * run, args.padded_cols, runs, block);
    }
  }
  for (int i = 0; i < rows; ++i) {
    ISA_UNROLL
    for (int r = 0; r < kTileRows; ++r) block.values[i][r] = SumLanes(LoadLanes(block.acc[i][r]));
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
          .isa = Isa::kAvx2,
          .cost = 200,
          .form = kFormF32,
          .refuses = refuses,
          .run = run};
}

const RegisterKernel<LinearKernel> kF32(Kernel("cpu/linear_f32_f32_avx2",
                                               &RefusesType<PackedSpec::Type::kF32>,
                                               &Run<Kind::kF32>));
const RegisterKernel<LinearKernel> kF16(Kernel("cpu/linear_f16_f32_avx2",
                                               &RefusesType<PackedSpec::Type::kF16>,
                                               &Run<Kind::kF16>));
const RegisterKernel<LinearKernel> kBf16(Kernel("cpu/linear_bf16_f32_avx2",
                                                &RefusesType<PackedSpec::Type::kBf16>,
                                                &Run<Kind::kBf16>));
const RegisterKernel<LinearKernel> kW4(Kernel("cpu/linear_w4_f32_avx2", &RefusesInt<4>,
                                              &Run<Kind::kW4>));
const RegisterKernel<LinearKernel> kW8(Kernel("cpu/linear_w8_f32_avx2", &RefusesInt<8>,
                                              &Run<Kind::kW8>));

}  // namespace
}  // namespace bitshard
