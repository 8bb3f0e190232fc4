#include "kernels/registry/reduction.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace bitshard {
namespace {

constexpr int64_t kGatherCols = 64;

}  // namespace

int64_t F32ToFixed(float value) { return std::llrint(static_cast<double>(value) * 0x1p32); }

float FixedToF32(int64_t sum) { return static_cast<float>(static_cast<double>(sum) * 0x1p-32); }

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

}  // namespace bitshard
