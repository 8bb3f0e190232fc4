// y = W x in mode f32 on AVX2: dense f32, f16, bf16 and codes of 2 to 8 bits. The 16 virtual lanes
// of an output are two vectors, columns in lane order; the tree is the same as everywhere (l+8,
// l+4, l+2, l+1).
//
// Values of some runs are decoded into a buffer in L1 and used by up to 12 rows of x, 3 at a time.
#include <cstdint>

#include "kernels/cpu/isa_region.h"
#include "kernels/cpu/linear_segments.h"
#include "kernels/cpu/linear_store.h"
#include "kernels/cpu/linear_unpack_avx2.h"
#include "kernels/cpu/scale_plane_avx2.h"
#include "kernels/cpu/vec16_avx2.h"

namespace bitshard {
namespace {

constexpr int kRowBlock = 12;
constexpr int kBufferRuns = 8;

// What a kernel reads: codes of this many bits, or one of these.
constexpr int kDenseF32 = 32, kDenseF16 = 16, kDenseBf16 = 17;
constexpr bool IsInt(int kind) { return kind <= 8; }

struct alignas(64) Block {
  float acc[kRowBlock][kTileRows][kLaneCols];
  float decoded[kBufferRuns][kTileRows][kLaneCols];
  uint8_t codes[(kBufferRuns / kTileRuns + 1) * kTileRuns * kRunBytes];  // unpacked tiles
  float scale[kTileRows], min[kTileRows];  // of the group at hand, slot order
  int32_t zero[kTileRows];
  float values[kRowBlock][kTileRows];
  int64_t sums[kRowBlock][kTileRows];
  int64_t poison[kRowBlock];
};

// Where a tile's bytes are, and the group whose scales are in the block.
struct TileView {
  const uint8_t* codes;
  int64_t tile;
  int64_t group;  // -1: none
};

ISA_BEGIN_AVX2

ISA_INLINE void LoadGroup(const LinearArgs& args, int64_t group, TileView& view, Block& block) {
  ISA_UNROLL
  for (int half = 0; half < 2; ++half) {
    _mm256_store_ps(block.scale + 8 * half, LoadScales(args.scale, view.tile, group, half));
    _mm256_store_si256(reinterpret_cast<__m256i*>(block.zero + 8 * half),
                       LoadZeros(args.scale, view.tile, group, half));
    if (!args.scale.has_min) continue;
    _mm256_store_ps(block.min + 8 * half, LoadMins(args.scale, view.tile, group, half));
  }
  view.group = group;
}

// A run of 16 columns of unpacked codes.
template <bool kMin>
ISA_INLINE void DequantizeRun(const uint8_t* codes, const Block& block,
                              float out[kTileRows][kLaneCols]) {
  ISA_UNROLL
  for (int r = 0; r < kTileRows; ++r) {
    const int slot = 4 * (r & 3) + (r >> 2);
    const __m256 scale = _mm256_set1_ps(block.scale[slot]), min = _mm256_set1_ps(block.min[slot]);
    const __m256i zero = _mm256_set1_epi32(block.zero[slot]);
    __m256 values[2];
    ISA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const __m256i code = _mm256_cvtepu8_epi32(LoadBytes8(codes + UnpackedRow(r) + 8 * half));
      const __m256 centred = _mm256_cvtepi32_ps(_mm256_sub_epi32(code, zero));
      values[half] = kMin ? _mm256_fmadd_ps(centred, scale, min) : _mm256_mul_ps(centred, scale);
    }
    _mm256_store_ps(out[r], values[0]);
    _mm256_store_ps(out[r] + 8, values[1]);
  }
}

// One row of one run of a dense matrix.
template <int kKind>
ISA_INLINE Vec16 DenseRow(const TileView& view, int64_t run, int r) {
  const int64_t at = run * 256 + 16 * r;
  if (kKind == kDenseF32) return Load(reinterpret_cast<const float*>(view.codes) + at);
  const uint16_t* values = reinterpret_cast<const uint16_t*>(view.codes) + at;
  return kKind == kDenseF16 ? LoadF16(values) : LoadBf16(values);
}

// Runs [run, run + runs) into the block's buffer.
template <int kKind>
ISA_INLINE void Decode(const LinearArgs& args, int64_t run, int runs, TileView& view,
                       Block& block) {
  if (!IsInt(kKind)) {
    for (int b = 0; b < runs; ++b) {
      ISA_UNROLL
      for (int r = 0; r < kTileRows; ++r)
        Store(block.decoded[b][r], DenseRow<kKind>(view, run + b, r));
    }
    return;
  }
  constexpr int kBits = IsInt(kKind) ? kKind : 8;
  const int64_t first = run / kTileRuns, end = (run + runs + kTileRuns - 1) / kTileRuns;
  for (int64_t t = first; t < end; ++t) {
    const uint8_t* tile = view.codes + t * (128 * kBits);
    ISA_UNROLL
    for (int w = 0; w < kBits; ++w) PrefetchWeights(tile + 128 * w);
    UnpackTile<kBits>(tile, block.codes + (t - first) * kTileRuns * kRunBytes);
  }
  for (int b = 0; b < runs; ++b) {
    const int64_t group =
        ((run + b) * kLaneCols + args.scale.first_group_offset) / args.scale.group_size;
    if (group != view.group) LoadGroup(args, group, view, block);
    const uint8_t* codes = block.codes + (run + b - first * kTileRuns) * kRunBytes;
    if (args.scale.has_min) {
      DequantizeRun<true>(codes, block, block.decoded[b]);
    } else {
      DequantizeRun<false>(codes, block, block.decoded[b]);
    }
  }
}

// Lanes l + 8, l + 4, l + 2, l + 1 of the columns lie 1, 8, 4, 2 places apart in lane order.
ISA_INLINE float SumLanes(Vec16 v) {
  v.low = _mm256_add_ps(v.low, _mm256_permute_ps(v.low, 0xb1));
  v.high = _mm256_add_ps(v.high, _mm256_permute_ps(v.high, 0xb1));
  __m256 s = _mm256_add_ps(v.low, v.high);
  s = _mm256_add_ps(s, _mm256_permute2f128_ps(s, s, 1));
  s = _mm256_add_ps(s, _mm256_permute_ps(s, 0x4e));
  return _mm256_cvtss_f32(s);
}

// Adds runs [0, runs) of the buffer for kRows rows of x, kOuts rows of weights at a time.
template <int kRows, int kOuts>
ISA_INLINE void AddBuffer(const float* x, int64_t stride, int runs, int row, Block& block) {
  ISA_UNROLL
  for (int r = 0; r < kTileRows; r += kOuts) {
    __m256 acc[kRows][kOuts][2];
    ISA_UNROLL
    for (int i = 0; i < kRows; ++i) {
      ISA_UNROLL
      for (int c = 0; c < kOuts; ++c) {
        acc[i][c][0] = _mm256_load_ps(block.acc[row + i][r + c]);
        acc[i][c][1] = _mm256_load_ps(block.acc[row + i][r + c] + 8);
      }
    }
    for (int run = 0; run < runs; ++run) {
      ISA_UNROLL
      for (int half = 0; half < 2; ++half) {
        __m256 w[kOuts];
        ISA_UNROLL
        for (int c = 0; c < kOuts; ++c) w[c] = _mm256_load_ps(block.decoded[run][r + c] + 8 * half);
        ISA_UNROLL
        for (int i = 0; i < kRows; ++i) {
          const __m256 xv = _mm256_loadu_ps(x + i * stride + 16 * run + 8 * half);
          ISA_UNROLL
          for (int c = 0; c < kOuts; ++c)
            acc[i][c][half] = _mm256_fmadd_ps(w[c], xv, acc[i][c][half]);
        }
      }
    }
    ISA_UNROLL
    for (int i = 0; i < kRows; ++i) {
      ISA_UNROLL
      for (int c = 0; c < kOuts; ++c) {
        _mm256_store_ps(block.acc[row + i][r + c], acc[i][c][0]);
        _mm256_store_ps(block.acc[row + i][r + c] + 8, acc[i][c][1]);
      }
    }
  }
}

template <int kKind>
void RunSegment(const LinearArgs& args, TileView& view, int64_t begin, int64_t end, int64_t row,
                int rows, Block& block) {
  const float* x = args.x + row * args.padded_cols;
  for (int i = 0; i < rows; ++i) {
    ISA_UNROLL
    for (int r = 0; r < kTileRows; ++r) Store(block.acc[i][r], Zero());
  }
  for (int64_t run = begin; run < end; run += kBufferRuns) {
    const int runs = static_cast<int>(end - run < kBufferRuns ? end - run : kBufferRuns);
    Decode<kKind>(args, run, runs, view, block);
    for (int i = 0; i < rows; i += 3) {
      const float* from = x + i * args.padded_cols + 16 * run;
      if (rows - i == 1) {
        AddBuffer<1, 4>(from, args.padded_cols, runs, i, block);
      } else if (rows - i == 2) {
        AddBuffer<2, 2>(from, args.padded_cols, runs, i, block);
      } else {
        AddBuffer<3, 2>(from, args.padded_cols, runs, i, block);
      }
    }
  }
  for (int i = 0; i < rows; ++i) {
    ISA_UNROLL
    for (int r = 0; r < kTileRows; ++r) block.values[i][r] = SumLanes(Load(block.acc[i][r]));
  }
}

ISA_END

template <int kKind>
void Run(const LinearArgs& args, int64_t tile_begin, int64_t tile_end) {
  Block block;
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const int tile_rows = RowsOfTile(args, tile);
    TileView view{args.codes + tile * args.tile_bytes, tile, -1};
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

constexpr LinearKernel Kernel(const char* name, bool (*is_for)(const PackedSpec&),
                              void (*run)(const LinearArgs&, int64_t, int64_t)) {
  return {.name = name,
          .isa = Isa::kAvx2,
          .cost = 200,
          .form = kFormF32,
          .is_for = is_for,
          .refuses = &RefusesUnalignedRuns,
          .run = run};
}
template <int kBits>
constexpr LinearKernel IntKernel(const char* name) {
  return Kernel(name, &IsOfKind<PackedSpec::Type::kInt, kBits>, &Run<kBits>);
}

const RegisterKernel<LinearKernel> kF32(Kernel("cpu/linear_f32_f32_avx2",
                                               &IsOfKind<PackedSpec::Type::kF32>, &Run<kDenseF32>));
const RegisterKernel<LinearKernel> kF16(Kernel("cpu/linear_f16_f32_avx2",
                                               &IsOfKind<PackedSpec::Type::kF16>, &Run<kDenseF16>));
const RegisterKernel<LinearKernel> kBf16(Kernel("cpu/linear_bf16_f32_avx2",
                                                &IsOfKind<PackedSpec::Type::kBf16>,
                                                &Run<kDenseBf16>));
const RegisterKernel<LinearKernel> kW2(IntKernel<2>("cpu/linear_w2_f32_avx2"));
const RegisterKernel<LinearKernel> kW3(IntKernel<3>("cpu/linear_w3_f32_avx2"));
const RegisterKernel<LinearKernel> kW4(IntKernel<4>("cpu/linear_w4_f32_avx2"));
const RegisterKernel<LinearKernel> kW5(IntKernel<5>("cpu/linear_w5_f32_avx2"));
const RegisterKernel<LinearKernel> kW6(IntKernel<6>("cpu/linear_w6_f32_avx2"));
const RegisterKernel<LinearKernel> kW7(IntKernel<7>("cpu/linear_w7_f32_avx2"));
const RegisterKernel<LinearKernel> kW8(IntKernel<8>("cpu/linear_w8_f32_avx2"));

}  // namespace
}  // namespace bitshard
