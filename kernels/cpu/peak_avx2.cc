// Peaks of a machine with AVX2: 32-byte loads, vpmaddwd, which multiplies 16-bit numbers as a16
// does. (In a8 codes of up to 7 bits go through vpmaddubsw, twice as many an instruction.)
#include "kernels/cpu/isa_region.h"
#include "kernels/registry/kernel_registry.h"
#include "kernels/registry/machine_peak.h"

namespace bitshard {
namespace {

ISA_BEGIN_AVX2

uint64_t Read(const void* memory, size_t bytes) {
  const char* p = static_cast<const char*>(memory);
  __m256i sums[8];
  ISA_UNROLL
  for (int j = 0; j < 8; ++j) sums[j] = _mm256_setzero_si256();
  for (const char* end = p + bytes; p != end; p += 256) {
    ISA_UNROLL
    for (int j = 0; j < 8; ++j) {
      if (j % 2 == 0) _mm_prefetch(p + 4096 + 32 * j, _MM_HINT_T0);
      sums[j] = _mm256_xor_si256(sums[j],
                                 _mm256_load_si256(reinterpret_cast<const __m256i*>(p + 32 * j)));
    }
  }
  alignas(32) uint64_t words[4];
  ISA_UNROLL
  for (int j = 1; j < 8; ++j) sums[0] = _mm256_xor_si256(sums[0], sums[j]);
  _mm256_store_si256(reinterpret_cast<__m256i*>(words), sums[0]);
  return words[0] ^ words[1] ^ words[2] ^ words[3];
}

uint64_t MultiplyAdd(uint64_t rounds) {
  __m256i sums[8];
  ISA_UNROLL
  for (int j = 0; j < 8; ++j) sums[j] = _mm256_setzero_si256();
  __m256i ones = _mm256_set1_epi16(1);
  for (uint64_t i = 0; i < rounds; ++i) {
    ISA_UNROLL
    for (int j = 0; j < 8; ++j) {
      // Each time anew, as a kernel does.
      asm volatile("" : "+x"(ones));
      sums[j] = _mm256_add_epi32(sums[j], _mm256_madd_epi16(ones, ones));
    }
  }
  uint64_t all = 0;
  for (int j = 0; j < 8; ++j) {
    alignas(32) uint32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sums[j]);
    for (int lane = 0; lane < 8; ++lane) all += lanes[lane];
  }
  return all;
}

ISA_END

const RegisterKernel<PeakProbe> kRegistered({.name = "cpu/peak_avx2",
                                             .isa = Isa::kAvx2,
                                             .cost = 2,
                                             .read = &Read,
                                             .instruction = "vpmaddwd, 256 bits",
                                             .multiply_adds_a_round = 8 * 16,
                                             .multiply_add = &MultiplyAdd});

}  // namespace
}  // namespace bitshard
