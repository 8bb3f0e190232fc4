// Mode a16 on AVX-512 VNNI, codes of 2 to 8 bits: linear_int_avx512.h in pairs of columns. Goes
// before the kernel of hi and lo bytes only where its additions cost nothing.
#include "kernels/cpu/linear_int_avx512.h"

namespace bitshard {
namespace {

const int kCost = AddsBesideMultiplications() ? 90 : 110;

const RegisterKernel<LinearKernel> kW2(IntLinear<2, Pairs>("cpu/linear_w2_a16_pairs_avx512vnni",
                                                           kCost));
const RegisterKernel<LinearKernel> kW3(IntLinear<3, Pairs>("cpu/linear_w3_a16_pairs_avx512vnni",
                                                           kCost));
const RegisterKernel<LinearKernel> kW4(IntLinear<4, Pairs>("cpu/linear_w4_a16_pairs_avx512vnni",
                                                           kCost));
const RegisterKernel<LinearKernel> kW5(IntLinear<5, Pairs>("cpu/linear_w5_a16_pairs_avx512vnni",
                                                           kCost));
const RegisterKernel<LinearKernel> kW6(IntLinear<6, Pairs>("cpu/linear_w6_a16_pairs_avx512vnni",
                                                           kCost));
const RegisterKernel<LinearKernel> kW7(IntLinear<7, Pairs>("cpu/linear_w7_a16_pairs_avx512vnni",
                                                           kCost));
const RegisterKernel<LinearKernel> kW8(IntLinear<8, Pairs>("cpu/linear_w8_a16_pairs_avx512vnni",
                                                           kCost));

}  // namespace
}  // namespace bitshard
