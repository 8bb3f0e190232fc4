// Mode a16 on AVX-512 VNNI, codes of 2 to 8 bits: linear_int_avx512.h with two terms.
#include "kernels/cpu/linear_int_avx512.h"

namespace bitshard {
namespace {

const RegisterKernel<LinearKernel> kW2(IntLinear<2, Bytes<2>>("cpu/linear_w2_a16_avx512vnni"));
const RegisterKernel<LinearKernel> kW3(IntLinear<3, Bytes<2>>("cpu/linear_w3_a16_avx512vnni"));
const RegisterKernel<LinearKernel> kW4(IntLinear<4, Bytes<2>>("cpu/linear_w4_a16_avx512vnni"));
const RegisterKernel<LinearKernel> kW5(IntLinear<5, Bytes<2>>("cpu/linear_w5_a16_avx512vnni"));
const RegisterKernel<LinearKernel> kW6(IntLinear<6, Bytes<2>>("cpu/linear_w6_a16_avx512vnni"));
const RegisterKernel<LinearKernel> kW7(IntLinear<7, Bytes<2>>("cpu/linear_w7_a16_avx512vnni"));
const RegisterKernel<LinearKernel> kW8(IntLinear<8, Bytes<2>>("cpu/linear_w8_a16_avx512vnni"));

}  // namespace
}  // namespace bitshard
