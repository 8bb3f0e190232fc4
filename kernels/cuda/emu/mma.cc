// Most of an emulated model's time is spent here.
#pragma GCC optimize("O3")

#include "kernels/cuda/emu/mma.h"

#include <bit>
#include <cstring>

namespace bitshard::emu {
namespace {

// Without branches and without subnormal operands, which cost a hundred cycles each.
float HalfValue(uint32_t half) {
  const uint32_t exponent = half >> 10 & 31, mantissa = half & 0x3ff;
  const uint32_t is_normal = exponent != 0;
  const float digits = static_cast<float>(static_cast<int32_t>(is_normal << 10 | mantissa));
  // digits * 2^(exponent - 25), and subnormals as if their exponent were 1.
  const uint32_t power = (exponent + 1 - is_normal + 102) << 23;
  const float finite = digits * std::bit_cast<float>(power);
  const uint32_t special = mantissa << 13 | 0x7f800000u;
  const uint32_t bits = exponent == 31 ? special : std::bit_cast<uint32_t>(finite);
  return std::bit_cast<float>(bits | (half & 0x8000u) << 16);
}
float Bf16Value(uint32_t half) { return std::bit_cast<float>(half << 16); }

template <float (*kValue)(uint32_t)>
void MultiplyHalves(Thread* lanes) {
  // Gathered first and converted in loops of their own, which the compiler vectorizes.
  uint32_t a_bits[16][16], b_bits[16][8];
  double a[16][16], b[16][8], d[16][8];
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const int g = lane / 4, k = lane % 4 * 2;
    const Thread& thread = lanes[lane];
    for (int h = 0; h < 2; ++h) {
      const int shift = 16 * h;
      a_bits[g][k + h] = thread.a[0] >> shift & 0xffffu;
      a_bits[g + 8][k + h] = thread.a[1] >> shift & 0xffffu;
      a_bits[g][k + 8 + h] = thread.a[2] >> shift & 0xffffu;
      a_bits[g + 8][k + 8 + h] = thread.a[3] >> shift & 0xffffu;
      b_bits[k + h][g] = thread.b[0] >> shift & 0xffffu;
      b_bits[k + 8 + h][g] = thread.b[1] >> shift & 0xffffu;
    }
    const float* const c = static_cast<const float*>(thread.d);
    d[g][k] = c[0];
    d[g][k + 1] = c[1];
    d[g + 8][k] = c[2];
    d[g + 8][k + 1] = c[3];
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) a[row][k] = kValue(a_bits[row][k]);
    for (int column = 0; column < 8; ++column) b[row][column] = kValue(b_bits[row][column]);
  }
  for (int row = 0; row < 16; ++row) {
    double sums[8];
    std::memcpy(sums, d[row], sizeof(sums));
    for (int k = 0; k < 16; ++k) {
      const double factor = a[row][k];
      for (int column = 0; column < 8; ++column) sums[column] += factor * b[k][column];
    }
    std::memcpy(d[row], sums, sizeof(sums));
  }
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const int g = lane / 4, k = lane % 4 * 2;
    float* const c = static_cast<float*>(lanes[lane].d);
    c[0] = static_cast<float>(d[g][k]);
    c[1] = static_cast<float>(d[g][k + 1]);
    c[2] = static_cast<float>(d[g + 8][k]);
    c[3] = static_cast<float>(d[g + 8][k + 1]);
  }
}

}  // namespace

void MultiplyF16(Thread* lanes) { MultiplyHalves<HalfValue>(lanes); }

void MultiplyBf16(Thread* lanes) { MultiplyHalves<Bf16Value>(lanes); }

void MultiplyBytes(Thread* lanes) {
  int32_t a[16][32], b[32][8];
  uint32_t d[16][8];  // wraps
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const int g = lane / 4, k = lane % 4 * 4;
    const Thread& thread = lanes[lane];
    for (int byte = 0; byte < 4; ++byte) {
      const int shift = 8 * byte;
      a[g][k + byte] = static_cast<uint8_t>(thread.a[0] >> shift);
      a[g + 8][k + byte] = static_cast<uint8_t>(thread.a[1] >> shift);
      a[g][k + 16 + byte] = static_cast<uint8_t>(thread.a[2] >> shift);
      a[g + 8][k + 16 + byte] = static_cast<uint8_t>(thread.a[3] >> shift);
      b[k + byte][g] = static_cast<int8_t>(thread.b[0] >> shift);
      b[k + 16 + byte][g] = static_cast<int8_t>(thread.b[1] >> shift);
    }
    const int32_t* const c = static_cast<const int32_t*>(thread.d);
    for (int i = 0; i < 4; ++i)
      d[g + 8 * (i / 2)][lane % 4 * 2 + i % 2] = static_cast<uint32_t>(c[i]);
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 32; ++k) {
      for (int column = 0; column < 8; ++column)
        d[row][column] += static_cast<uint32_t>(a[row][k] * b[k][column]);
    }
  }
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    int32_t* const c = static_cast<int32_t*>(lanes[lane].d);
    for (int i = 0; i < 4; ++i)
      c[i] = static_cast<int32_t>(d[lane / 4 + 8 * (i / 2)][lane % 4 * 2 + i % 2]);
  }
}

}  // namespace bitshard::emu
