// y = W x in mode a8 for codes of 2 to 8 bits on AVX2: u8 codes x s8 q. Up to 7 bits by vpmaddubsw
// (127 * 127 * 2 fits 16 bits; up to 6 bits so does the whole cell of 32 columns); 8 bits as 16-bit
// numbers by vpmaddwd.
#include "kernels/cpu/linear_int_avx2.h"

namespace bitshard {
namespace {

ISA_BEGIN_AVX2

template <int kBits, int kRuns>
ISA_INLINE void DotBytes(const int8_t* q, const uint8_t* codes, __m256i sum[2]) {
  // 7 bits widen after every run.
  constexpr int kFolds = kBits == 7 ? 0 : FoldsIn16Bits(((1 << kBits) - 1) * 127 * 2 * kRuns);
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i x[kRuns];
  ISA_UNROLL
  for (int j = 0; j < kRuns; ++j) x[j] = Broadcast16(q + kLaneCols * j);
  ISA_UNROLL
  for (int half = 0; half < 2; ++half) {
    __m256i pair[2];
    ISA_UNROLL
    for (int p = 0; p < 2; ++p) {
      __m256i d[2];
      ISA_UNROLL
      for (int v = 0; v < 2; ++v) {
        const uint8_t* at = codes + 32 * (4 * half + 2 * p + v);
        d[v] = _mm256_maddubs_epi16(LoadVector(at), x[0]);
        if (kBits == 7) d[v] = _mm256_madd_epi16(d[v], ones);
        ISA_UNROLL
        for (int j = 1; j < kRuns; ++j) {
          const __m256i next = _mm256_maddubs_epi16(LoadVector(at + kRunBytes * j), x[j]);
          d[v] = kBits == 7 ? _mm256_add_epi32(d[v], _mm256_madd_epi16(next, ones))
                            : _mm256_add_epi16(d[v], next);
        }
        if (kBits != 7 && kFolds == 0) d[v] = _mm256_madd_epi16(d[v], ones);
      }
      pair[p] = kFolds == 0 ? FoldPair(d[0], d[1]) : FoldPair16(d[0], d[1]);
      if (kFolds == 1) pair[p] = _mm256_madd_epi16(pair[p], ones);
    }
    sum[half] = kFolds == 2 ? _mm256_madd_epi16(FoldHalves16(pair[0], pair[1]), ones)
                            : FoldHalves(pair[0], pair[1]);
  }
}

// 8 q as 16-bit numbers, for both rows of a vector.
ISA_INLINE __m256i Widen8(const int8_t* q) {
  return _mm256_broadcastsi128_si256(
      _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(q))));
}

template <int kWidth>
struct DotA8 {
  static constexpr unsigned kForm = kFormA8;
  static constexpr int kBits = kWidth;
  static constexpr int kMaxRuns = kActRuns<kForm>;

  struct Terms {
    const int8_t* q;
  };
  ISA_INLINE static Terms TermsOf(const LinearArgs& args, int64_t row, int64_t run) {
    return {args.a8 + row * args.padded_cols + run * kLaneCols};
  }

  template <int kRuns>
  ISA_INLINE static void Cell(const Terms& terms, const StripCell& cell, const uint8_t* codes,
                              __m256i sum[2]) {
    const int8_t* q = terms.q + cell.run * kLaneCols;
    if (kBytes<kForm, kBits>) {
      DotBytes<kBits, kRuns>(q, codes + cell.run * kRunBytes, sum);
    } else {
      __m256i x[kRuns][2];
      ISA_UNROLL
      for (int j = 0; j < kRuns; ++j) {
        x[j][0] = Widen8(q + kLaneCols * j);
        x[j][1] = Widen8(q + kLaneCols * j + 8);
      }
      DotWide<kRuns>(x, codes + 2 * cell.run * kRunBytes, sum);
    }
  }
};

ISA_END

template <int kBits>
constexpr LinearKernel Kernel(const char* name) {
  return {.name = name,
          .isa = Isa::kAvx2,
          .cost = 200,
          .form = kFormA8,
          .is_for = &IsOfKind<PackedSpec::Type::kInt, kBits>,
          .refuses = &RefusesUnalignedRuns,
          .run = &RunTiles<DotA8<kBits>>};
}

const RegisterKernel<LinearKernel> kW2(Kernel<2>("cpu/linear_w2_a8_avx2"));
const RegisterKernel<LinearKernel> kW3(Kernel<3>("cpu/linear_w3_a8_avx2"));
const RegisterKernel<LinearKernel> kW4(Kernel<4>("cpu/linear_w4_a8_avx2"));
const RegisterKernel<LinearKernel> kW5(Kernel<5>("cpu/linear_w5_a8_avx2"));
const RegisterKernel<LinearKernel> kW6(Kernel<6>("cpu/linear_w6_a8_avx2"));
const RegisterKernel<LinearKernel> kW7(Kernel<7>("cpu/linear_w7_a8_avx2"));
const RegisterKernel<LinearKernel> kW8(Kernel<8>("cpu/linear_w8_a8_avx2"));

}  // namespace
}  // namespace bitshard
