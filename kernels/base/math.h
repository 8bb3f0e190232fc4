// exp, log, sin, cos, pow with the same bits on every CPU: additions, multiplications and fma in a
// written order, no table look-ups, no libm (whose results change with the CPU). std::fma and
// std::sqrt are exact by IEEE 754.
//
// Errors, tested: ExpF32 <= 1 ulp; the double functions <= 2 ulp, Pow 6e-15 relative while
// |y ln x| <= 20. NaN gives NaN. The vector forms in kernels/cpu follow these operation by
// operation.
#pragma once

namespace bitshard {

float ExpF32(float x);       // subnormal results are rounded once; overflow gives inf
float LogF32(float x);       // through the double form
float SigmoidF32(float x);   // 1 / (1 + exp(-x))
float SiluF32(float x);      // x / (1 + exp(-x))
float GeluTanhF32(float x);  // 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))

double Exp(double x);            // results below 2^-1022 are rounded twice
double Log(double x);            // 0 gives -inf, negative NaN
double Sin(double x);            // |x| <= 2^30
double Cos(double x);            // |x| <= 2^30
double Pow(double x, double y);  // x > 0

}  // namespace bitshard
