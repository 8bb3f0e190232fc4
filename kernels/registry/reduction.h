// Between f32 and the int64 in which ranks add up: segment sums (value * 2^32) and raw f32 bits of
// embedding rows.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

#include "kernels/base/thread_pool.h"
#include "kernels/tensor/packed_matrix.h"

namespace bitshard {

// value * 2^32, round to even. REQUIRES: |value| < 2^31 (callers check and poison).
int64_t F32ToFixed(float value);
// Through double.
float FixedToF32(int64_t sum);

// out[tokens, cols]: raw f32 bits (as 0..2^32-1) of row token - vocab_begin of `embedding`; all
// zero for a token whose row this rank does not hold.
void GatherRawBits(const PackedMatrix& embedding, int64_t vocab_begin,
                   absl::Span<const int32_t> tokens, int64_t* out, int64_t stride,
                   ThreadPool& pool);

}  // namespace bitshard
