// y = W x in mode a16 for codes of 2 to 8 bits on AVX2: vpmaddwd on 16-bit codes and 16-bit q gives
// the same integers as two terms of 8 bits.
#include "kernels/cpu/linear_int_avx2.h"

namespace bitshard {
namespace {

ISA_BEGIN_AVX2

template <int kWidth>
struct DotA16 {
  static constexpr unsigned kForm = kFormA16;
  static constexpr int kBits = kWidth;
  static constexpr int kMaxRuns = kActRuns<kForm>;

  struct Terms {
    const int16_t* q;
  };
  ISA_INLINE static Terms TermsOf(const LinearArgs& args, int64_t row, int64_t run) {
    return {args.q + row * args.padded_cols + run * kLaneCols};
  }

  template <int kRuns>
  ISA_INLINE static void Cell(const Terms& terms, const StripCell& cell, const uint8_t* codes,
                              __m256i sum[2]) {
    const int16_t* q = terms.q + cell.run * kLaneCols;
    __m256i x[kRuns][2];
    ISA_UNROLL
    for (int j = 0; j < kRuns; ++j) {
      x[j][0] = Broadcast16(q + kLaneCols * j);
      x[j][1] = Broadcast16(q + kLaneCols * j + 8);
    }
    DotWide<kRuns>(x, codes + 2 * cell.run * kRunBytes, sum);
  }
};

ISA_END

template <int kBits>
constexpr LinearKernel Kernel(const char* name) {
  return {.name = name,
          .isa = Isa::kAvx2,
          .cost = 200,
          .form = kFormA16,
          .is_for = &IsOfKind<PackedSpec::Type::kInt, kBits>,
          .refuses = &RefusesUnalignedRuns,
          .run = &RunTiles<DotA16<kBits>>};
}

const RegisterKernel<LinearKernel> kW2(Kernel<2>("cpu/linear_w2_a16_avx2"));
const RegisterKernel<LinearKernel> kW3(Kernel<3>("cpu/linear_w3_a16_avx2"));
const RegisterKernel<LinearKernel> kW4(Kernel<4>("cpu/linear_w4_a16_avx2"));
const RegisterKernel<LinearKernel> kW5(Kernel<5>("cpu/linear_w5_a16_avx2"));
const RegisterKernel<LinearKernel> kW6(Kernel<6>("cpu/linear_w6_a16_avx2"));
const RegisterKernel<LinearKernel> kW7(Kernel<7>("cpu/linear_w7_a16_avx2"));
const RegisterKernel<LinearKernel> kW8(Kernel<8>("cpu/linear_w8_a16_avx2"));

}  // namespace
}  // namespace bitshard
