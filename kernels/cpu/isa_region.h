// Regions compiled for a wider instruction set than the file.
//
// Inside: functions on raw pointers and intrinsics only. Lambdas do not inherit the target, and
// inline library code that is also compiled elsewhere must not be compiled here (the linker might
// hand the wide copy to plain callers); so no standard library, no headers between BEGIN and END.
// Functions of a region have internal linkage.
#pragma once

#include <cstdint>

// GCC 12's own header draws it at every use of an "undefined" vector.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include "kernels/base/cpu_features.h"

#define BITSHARD_PRAGMA(text) _Pragma(#text)
#define ISA_BEGIN(features) BITSHARD_PRAGMA(GCC push_options) BITSHARD_PRAGMA(GCC target(features))
#define ISA_END BITSHARD_PRAGMA(GCC pop_options)

#define ISA_BEGIN_AVX2 ISA_BEGIN("avx2,fma,f16c")
#define ISA_BEGIN_AVX512VNNI \
  ISA_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,prefer-vector-width=512")

// For helpers of the inner loops.
#define ISA_INLINE __attribute__((always_inline)) inline
// Before a loop of constant length over vectors in an array: only an unrolled loop keeps them in
// registers.
#define ISA_UNROLL BITSHARD_PRAGMA(GCC unroll 16)

namespace bitshard {

// Outside of every region: it is initialized on any CPU.
inline const bool kAsksForLinesAhead = AsksForLinesAhead();

// Weights are read once, front to back: asks for 128 bytes of the stream at `word` 4 KiB ahead.
// Beyond the matrix it does nothing.
ISA_INLINE void PrefetchWeights(const void* word) {
  const char* ahead = static_cast<const char*>(word) + 4096;
  _mm_prefetch(ahead, _MM_HINT_T0);
  _mm_prefetch(ahead + 64, _MM_HINT_T0);
}

}  // namespace bitshard
