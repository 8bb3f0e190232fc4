#include "kernels/registry/reduction.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/base/check.h"

namespace bitshard {
namespace {

constexpr int64_t kGatherCols = 64;

}  // namespace

int64_t F32ToFixed(float value) { return std::llrint(static_cast<double>(value) * 0x1p32); }

float FixedToF32(int64_t sum) { return static_cast<float>(static_cast<double>(sum) * 0x1p-32); }

void SumsToF32(const int64_t* sums, int64_t sums_stride, const int64_t* poison, int64_t rows,
               int64_t width, const float* bias, float* y, int64_t y_stride, ThreadPool& pool) {
  pool.ParallelFor(rows, [&](int64_t row, int) {
    const int64_t* in = sums + row * sums_stride;
    float* out = y + row * y_stride;
    if (poison[row] != 0) {
      for (int64_t i = 0; i < width; ++i) out[i] = std::numeric_limits<float>::quiet_NaN();
    } else if (bias != nullptr) {
      for (int64_t i = 0; i < width; ++i) out[i] = FixedToF32(in[i]) + bias[i];
    } else {
      for (int64_t i = 0; i < width; ++i) out[i] = FixedToF32(in[i]);
    }
  });
}

void GatherRawBits(const PackedMatrix& embedding, int64_t vocab_begin,
                   absl::Span<const int32_t> tokens, int64_t* out, int64_t stride,
                   ThreadPool& pool) {
  pool.ParallelFor(static_cast<int64_t>(tokens.size()), [&](int64_t i, int) {
    int64_t* row = out + i * stride;
    const int64_t local = tokens[i] - vocab_begin;
    const bool mine = local >= 0 && local < embedding.rows();
    float values[kGatherCols] = {};
    for (int64_t k = 0; k < embedding.cols(); k += kGatherCols) {
      const int64_t end = std::min(k + kGatherCols, embedding.cols());
      if (mine) embedding.RowToF32(local, k, end, values);
      for (int64_t c = k; c < end; ++c) row[c] = int64_t{std::bit_cast<uint32_t>(values[c - k])};
    }
  });
}

void RawBitsToF32(const int64_t* bits, int64_t bits_stride, int64_t rows, int64_t width, float* y,
                  int64_t y_stride, ThreadPool& pool) {
  pool.ParallelFor(rows, [&](int64_t row, int) {
    for (int64_t i = 0; i < width; ++i) {
      y[row * y_stride + i] =
          std::bit_cast<float>(static_cast<uint32_t>(bits[row * bits_stride + i]));
    }
  });
}

}  // namespace bitshard
